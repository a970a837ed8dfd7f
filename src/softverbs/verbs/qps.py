# SPDX-License-Identifier: MIT
"""Queue pairs: making them, moving them through their states, posting work."""

import errno
from typing import Any

from softverbs.core.queues.wr import RecvWR, SendWR
from softverbs.pyverbs._fields import refused
from softverbs.pyverbs.addr import GID
from softverbs.pyverbs.device import Context
from softverbs.pyverbs.libibverbs_enums import IBV_QP_INIT_ATTR_SEND_OPS_FLAGS
from softverbs.pyverbs.mr import MW, MWBind
from softverbs.pyverbs.pd import PD
from softverbs.pyverbs.pyverbs_error import PyverbsError
from softverbs.pyverbs.qp import ECE, QP, QPAttr, QPInitAttr, QPInitAttrEx, QPOpenAttr, QPRateLimitAttr, open_qp
from softverbs.pyverbs.qpex import QPEx
from softverbs.verbs._convention import need, note, post, returns_object, returns_status
from softverbs.verbs.queues import wait_for_acks


@returns_object
def ibv_create_qp(pd: PD, qp_init_attr: QPInitAttr) -> QP:
    """Makes a queue pair, in state RESET.

    :param pd: the protection domain
    :param qp_init_attr: type, CQs and sizes; the sizes are replaced by the actual ones
    :return: a QP, or None with errno set
    """
    return QP(need(pd, PD, "pd"), need(qp_init_attr, QPInitAttr, "qp_init_attr"))


@returns_object
def ibv_create_qp_ex(context: Context, qp_init_attr_ex: QPInitAttrEx) -> QP:
    """As ``ibv_create_qp``; the attributes name the protection domain.

    :param context: the open device
    :param qp_init_attr_ex: the attributes
    :return: a QP, or None with errno set; one with the extended API for sends (``ibv_qp_to_qp_ex``), where
        ``comp_mask`` has IBV_QP_INIT_ATTR_SEND_OPS_FLAGS
    """
    attr = need(qp_init_attr_ex, QPInitAttrEx, "qp_init_attr_ex")
    kind = QPEx if attr.comp_mask & IBV_QP_INIT_ATTR_SEND_OPS_FLAGS else QP
    return kind(need(context, Context, "context"), attr)


@returns_status
def ibv_destroy_qp(qp: QP) -> None:
    """Ends a queue pair; unfinished work is dropped, counters are detached. Waits until its asynchronous events that
    were read are acknowledged.

    :param qp: the QP
    :return: 0, or the value of errno: EBUSY while it is attached to a multicast group
    """
    need(qp, QP, "qp")._open()
    if qp._groups:
        raise refused(f"Failed to destroy QP: it is attached to {len(qp._groups)} multicast groups", errno.EBUSY)
    wait_for_acks(qp, lambda: qp._async_events, lambda: 0, "asynchronous events")
    qp._destroy()


@returns_status
def ibv_modify_qp(qp: QP, attr: QPAttr, attr_mask: int) -> None:
    """Changes attributes of a QP, among them its state. Each change of state needs some and permits others.

    :param qp: the QP
    :param attr: the attributes
    :param attr_mask: which of them, IBV_QP_* bits
    :return: 0, or the value of errno: EINVAL for what is missing, invalid or out of range (``last_reason`` names it)
    """
    need(qp, QP, "qp").modify(need(attr, QPAttr, "attr"), attr_mask)


@returns_status
def ibv_query_qp(qp: QP, attr: QPAttr, attr_mask: int, init_attr: QPInitAttr) -> None:
    """The attributes of a QP.

    :param qp: the QP
    :param attr: filled in
    :param attr_mask: which of them are wanted; all are filled in
    :param init_attr: filled in
    :return: 0, or the value of errno
    """
    need(attr, QPAttr, "attr")
    need(init_attr, QPInitAttr, "init_attr")
    found, init = need(qp, QP, "qp").query(attr_mask)
    attr.__dict__.update(found.__dict__)
    init_attr.__dict__.update(init.__dict__)


@returns_status
def ibv_post_send(qp: QP, wr: SendWR, bad_wr: Any) -> None:
    """Posts a list of send work requests, up to the first that is refused.

    :param qp: the QP
    :param wr: the first of the list
    :param bad_wr: ``struct ibv_send_wr **``: a ``ctypes.py_object()`` or a list of one element, where the work request
        that was refused goes; or None
    :return: 0, or the value of errno: ENOMEM when the queue is full
    """
    post(need(qp, QP, "qp").post_send, need(wr, SendWR, "wr"), bad_wr)


@returns_status
def ibv_post_recv(qp: QP, wr: RecvWR, bad_wr: Any) -> None:
    """Posts a list of receive work requests, up to the first that is refused.

    :param qp: the QP
    :param wr: the first of the list
    :param bad_wr: ``struct ibv_recv_wr **``: a ``ctypes.py_object()`` or a list of one element, where the work request
        that was refused goes; or None
    :return: 0, or the value of errno: ENOMEM when the queue is full
    """
    post(need(qp, QP, "qp").post_recv, need(wr, RecvWR, "wr"), bad_wr)


@returns_object
def ibv_open_qp(context: Context, qp_open_attr: QPOpenAttr) -> QP:
    """Opens a target QP of an XRC domain that was made elsewhere in this process. ``ibv_destroy_qp`` closes it.

    :param context: the open device
    :param qp_open_attr: the domain, and the number of the QP
    :return: a QP, or None with errno set: EINVAL where the domain has no such QP
    """
    return open_qp(need(context, Context, "context"), need(qp_open_attr, QPOpenAttr, "qp_open_attr"))


@returns_status
def ibv_attach_mcast(qp: QP, gid: Any, lid: int) -> None:
    """Lets a QP of type UD receive what is sent to a multicast group.

    :param qp: the QP
    :param gid: the group's GID
    :param lid: 0: groups of RoCE have no LID
    :return: 0, or the value of errno
    """
    need(qp, QP, "qp").attach_mcast(need(gid, GID, "gid"), lid)


@returns_status
def ibv_detach_mcast(qp: QP, gid: Any, lid: int) -> None:
    """Ends ``ibv_attach_mcast``.

    :param qp: the QP
    :param gid: the group's GID
    :param lid: as it was attached
    :return: 0, or the value of errno: EINVAL where the QP is not attached to the group
    """
    need(qp, QP, "qp").detach_mcast(need(gid, GID, "gid"), lid)


@returns_status
def ibv_bind_mw(qp: QP, mw: MW, mw_bind: MWBind) -> None:
    """Posts work that binds a memory window of type 1; the window has its new rkey at once.

    :param qp: the QP
    :param mw: the window
    :param mw_bind: what it shall open
    :return: 0, or the value of errno: EPERM where window and region are of different protection domains
    """
    need(qp, QP, "qp").bind_mw(need(mw, MW, "mw"), need(mw_bind, MWBind, "mw_bind"))


@returns_status
def ibv_modify_qp_rate_limit(qp: QP, attr: QPRateLimitAttr) -> None:
    """Limits the rate that a QP sends at: not supported.

    :param qp: the QP
    :param attr: the limits
    :return: EOPNOTSUPP
    """
    need(qp, QP, "qp").modify_rate_limit(need(attr, QPRateLimitAttr, "attr"))


@returns_status
def ibv_set_ece(qp: QP, ece: ECE) -> None:
    """Sets options of a vendor: there are none.

    :param qp: the QP
    :param ece: the options
    :return: EOPNOTSUPP
    """
    if not need(ece, ECE, "ece").vendor_id:
        raise refused("Failed to set ECE: vendor_id is 0", errno.EOPNOTSUPP)
    need(qp, QP, "qp").set_ece(ece)


@returns_status
def ibv_query_ece(qp: QP, ece: ECE) -> None:
    """The vendor's options that are in use: none.

    :param qp: the QP
    :param ece: all its members become 0
    :return: 0, or the value of errno
    """
    need(ece, ECE, "ece")
    ece.__dict__.update(need(qp, QP, "qp").query_ece().__dict__)


def ibv_query_qp_data_in_order(qp: QP, op: int, flags: int) -> int:
    """Whether the bytes of a message become visible in order: this device makes no promise.

    :param qp: the QP
    :param op: IBV_WR_* opcode
    :param flags: IBV_QUERY_QP_DATA_IN_ORDER_RETURN_CAPS, or 0
    :return: 0, also where an argument is none
    """
    try:
        return int(need(qp, QP, "qp").query_data_in_order(op, flags))
    except PyverbsError as error:
        note(error)
        return 0
