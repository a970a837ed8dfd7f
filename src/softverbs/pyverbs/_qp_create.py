# SPDX-License-Identifier: MIT
"""What a QP is made of: the objects that its attributes name, checked before the device sees them."""

import errno
from collections.abc import Iterator
from typing import Any, NamedTuple

from softverbs.pyverbs import libibverbs_enums as e
from softverbs.pyverbs._fields import instance, refused
from softverbs.pyverbs._qp_attr import QPInitAttr, QPInitAttrEx
from softverbs.pyverbs._qp_ops import check_send_ops
from softverbs.pyverbs.base import Resource
from softverbs.pyverbs.cq import CQ, CQEX
from softverbs.pyverbs.device import Context
from softverbs.pyverbs.pd import PD
from softverbs.pyverbs.pyverbs_error import PyverbsUserError
from softverbs.pyverbs.srq import SRQ
from softverbs.pyverbs.xrcd import XRCD

#: Types that no RoCE device in software can have.
_ELSEWHERE = {
    e.IBV_QPT_RAW_PACKET: "it sends Ethernet frames as they are; this device has no Ethernet port, only UDP sockets",
    e.IBV_QPT_DRIVER: "it stands for what one vendor's driver adds",
}
#: Bit of comp_mask: (its member, why it must be 0 or None).
_UNSUPPORTED = {
    e.IBV_QP_INIT_ATTR_CREATE_FLAGS: ("create_flags", "no creation flag is supported"),
    e.IBV_QP_INIT_ATTR_MAX_TSO_HEADER: ("max_tso_header", "TCP segmentation is an offload of Ethernet NICs"),
    e.IBV_QP_INIT_ATTR_IND_TABLE: ("ind_table", "receive side scaling is an offload of Ethernet NICs"),
    e.IBV_QP_INIT_ATTR_RX_HASH: ("hash_conf", "receive side scaling is an offload of Ethernet NICs"),
}
_KNOWN = e.IBV_QP_INIT_ATTR_PD | e.IBV_QP_INIT_ATTR_XRCD | e.IBV_QP_INIT_ATTR_SEND_OPS_FLAGS | sum(_UNSUPPORTED)
_FLAGS = (
    e.IBV_QP_CREATE_BLOCK_SELF_MCAST_LB
    | e.IBV_QP_CREATE_SCATTER_FCS
    | e.IBV_QP_CREATE_CVLAN_STRIPPING
    | e.IBV_QP_CREATE_SOURCE_QPN
    | e.IBV_QP_CREATE_PCI_WRITE_END_PADDING
)


class Parts(NamedTuple):
    """The objects that a QP is made of; None where its type needs none."""

    context: Context
    pd: PD | None = None
    send_cq: CQ | CQEX | None = None
    recv_cq: CQ | CQEX | None = None
    srq: SRQ | None = None
    xrcd: XRCD | None = None

    def parents(self) -> Iterator[Resource]:
        """Each that the QP is closed before, once."""
        return iter(dict.fromkeys(part for part in self[1:] if part is not None))

    def cores(self) -> list[Any]:
        """Their core objects; EINVAL where one is closed."""
        return [None if part is None else part._open() for part in self[1:]]


def parts_of(creator: Any, init_attr: Any, what: str) -> Parts:
    """The parts of a QP to be made.

    :param creator: a PD or a Context
    :param init_attr: QPInitAttr or QPInitAttrEx
    :param what: how messages begin
    :raises PyverbsRDMAError: EINVAL for what is missing, closed or of another context; EOPNOTSUPP
    """
    pd: PD | None = None
    xrcd: XRCD | None = None
    if isinstance(creator, PD):
        instance(init_attr, QPInitAttr, "QP init_attr")
        if creator._context is None:
            raise creator._closed()
        context, pd = creator._context, creator
    elif isinstance(creator, Context):
        instance(init_attr, QPInitAttrEx, "QP init_attr")
        creator._open()
        context = creator
        pd, xrcd = _domains(init_attr, what)
    else:
        raise PyverbsUserError(f"Cannot create QP from {type(creator)}")
    for name, domain in (("pd", pd), ("xrcd", xrcd)):
        _check(domain, name, context, what)
    parts = _of_type(Parts(context, pd, init_attr.send_cq, init_attr.recv_cq, init_attr.srq, xrcd), init_attr, what)
    for name in ("send_cq", "recv_cq", "srq"):
        _check(getattr(parts, name), name, context, what)
    if parts.srq is not None and parts.srq._open().xrcd is not None:
        raise refused(f"{what}: srq is an XRC SRQ: QPs of type XRC_SEND name it in each work request")
    return parts


def _check(part: Resource | None, name: str, context: Context, what: str) -> None:
    """Refuses a part that is closed, or of another context."""
    if part is None:
        return
    part._open()
    if part._context is None or part._context._core is not context._core:
        raise refused(f"{what}: {name} belongs to another context")


def _domains(attr: QPInitAttrEx, what: str) -> tuple[PD | None, XRCD | None]:
    """PD and XRC domain of extended attributes, which ask for nothing that is not supported."""
    mask = attr.comp_mask
    if mask & ~_KNOWN:
        raise refused(f"{what}: comp_mask bits {mask & ~_KNOWN:#x} are not known")
    for bit, (name, reason) in _UNSUPPORTED.items():
        value = getattr(attr, name)
        if mask & bit and value:
            if bit == e.IBV_QP_INIT_ATTR_CREATE_FLAGS and attr.create_flags & ~_FLAGS:
                raise refused(f"{what}: create_flags={value:#x}: bits {value & ~_FLAGS:#x} are not known")
            raise refused(f"{what}: {name} is not supported: {reason}", errno.EOPNOTSUPP)
    check_send_ops(attr, what)
    return (
        attr.pd if mask & e.IBV_QP_INIT_ATTR_PD else None,
        attr.xrcd if mask & e.IBV_QP_INIT_ATTR_XRCD else None,
    )


def _of_type(parts: Parts, attr: Any, what: str) -> Parts:
    """``parts`` less what QPs of this type do not have; EINVAL names what they lack."""
    kind = attr.qp_type
    if kind in _ELSEWHERE:
        raise refused(f"{what}: qp_type={kind} is not supported: {_ELSEWHERE[kind]}", errno.EOPNOTSUPP)
    if kind == e.IBV_QPT_XRC_RECV:
        if parts.xrcd is None:
            raise refused(
                f"{what}: a QP of type XRC_RECV needs a Context, and QPInitAttrEx with xrcd and IBV_QP_INIT_ATTR_XRCD "
                "of comp_mask"
            )
        return Parts(parts.context, xrcd=parts.xrcd)
    if parts.xrcd is not None:
        raise refused(f"{what}: xrcd: only a QP of type XRC_RECV is made in an XRC domain")
    if parts.pd is None:
        raise refused(f"{what}: init_attr names no PD; pd and IBV_QP_INIT_ATTR_PD of comp_mask are both needed")
    if parts.send_cq is None:
        raise refused(f"{what}: send_cq is missing")
    if kind == e.IBV_QPT_XRC_SEND:  # what it could receive with is not looked at (ibv_create_qp_ex(3))
        return parts._replace(recv_cq=None, srq=None)
    if parts.recv_cq is None:
        raise refused(f"{what}: recv_cq is missing")
    return parts
