# SPDX-License-Identifier: MIT
"""What a queue pair of each type may be made of (ibv_create_qp(3), ibv_create_qp_ex(3))."""

import errno
from typing import Any

from softverbs.core.base.errors import PyverbsRDMAError
from softverbs.core.base.limits import MAX_INLINE_DATA, MAX_SGE
from softverbs.core.queues.operations import TYPE_NAMES
from softverbs.core.transport.qp_states import QPT_XRC_RECV, QPT_XRC_SEND

Cap = tuple[int, int, int, int, int]


def check_type(qp_type: int) -> None:
    """Refuses types that the device has not, with EOPNOTSUPP."""
    if qp_type not in TYPE_NAMES:
        known = ", ".join(f"{name} ({number})" for number, name in TYPE_NAMES.items())
        raise PyverbsRDMAError(f"qp_type={qp_type} is not supported; these are: {known}", errno.EOPNOTSUPP)


def effective_cap(cap: Cap, qp_type: int, has_srq: bool) -> Cap:
    """Sizes of queues that a queue pair does not have are ignored (ibv_create_qp(3))."""
    send_wr, recv_wr, send_sge, recv_sge, inline = cap
    if has_srq or qp_type in (QPT_XRC_SEND, QPT_XRC_RECV):
        recv_wr = recv_sge = 0
    if qp_type == QPT_XRC_RECV:
        send_wr = send_sge = inline = 0
    return send_wr, recv_wr, send_sge, recv_sge, inline


def check_objects(qp_type: int, pd: object, send_cq: object, recv_cq: object, srq: Any, xrcd: object) -> None:
    """Which objects a queue pair of each type stands on (ibv_create_qp_ex(3))."""
    kind = TYPE_NAMES[qp_type]
    target = qp_type == QPT_XRC_RECV
    if target:
        _require(xrcd is not None, kind, "an XRC domain")
        _require(srq is None, kind, "no SRQ of its own")
        return
    _require(pd is not None, kind, "a protection domain")
    _require(send_cq is not None, kind, "a send completion queue")
    if qp_type == QPT_XRC_SEND:
        _require(srq is None, kind, "no SRQ")
        return
    _require(recv_cq is not None, kind, "a receive completion queue")
    _require(srq is None or srq.xrcd is None, kind, "an SRQ of the basic type")


def _require(fulfilled: bool, kind: str, what: str) -> None:
    if not fulfilled:
        raise PyverbsRDMAError(f"a QP of type {kind} needs {what}", errno.EINVAL)


def check_cap(cap: Cap, options: Any) -> None:
    """Refuses sizes that are out of range, with EINVAL."""
    names = ("max_send_wr", "max_recv_wr", "max_send_sge", "max_recv_sge", "max_inline_data")
    limits = (options.max_qp_wr, options.max_qp_wr, MAX_SGE, MAX_SGE, MAX_INLINE_DATA)
    for name, value, most in zip(names, cap, limits, strict=True):
        if not 0 <= value <= most:
            raise PyverbsRDMAError(f"{name}={value} is out of range: 0 to {most}", errno.EINVAL)
