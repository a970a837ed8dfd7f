# SPDX-License-Identifier: MIT
"""Shared receive queues and XRC domains."""

from typing import Any

from softverbs.core.queues.wr import RecvWR
from softverbs.pyverbs.device import Context
from softverbs.pyverbs.pd import PD
from softverbs.pyverbs.srq import SRQ, OpsWr, SrqAttr, SrqInitAttr, SrqInitAttrEx
from softverbs.pyverbs.xrcd import XRCD, XRCDInitAttr
from softverbs.verbs._convention import need, post, returns_object, returns_status, store
from softverbs.verbs.queues import wait_for_acks


@returns_object
def ibv_create_srq(pd: PD, srq_init_attr: SrqInitAttr) -> SRQ:
    """Makes a shared receive queue.

    :param pd: protection domain of the memory that is received into
    :param srq_init_attr: its sizes, which are replaced by the actual ones
    :return: an SRQ, or None with errno set
    """
    return SRQ(need(pd, PD, "pd"), need(srq_init_attr, SrqInitAttr, "srq_init_attr"))


@returns_object
def ibv_create_srq_ex(context: Context, srq_init_attr_ex: SrqInitAttrEx) -> SRQ:
    """Makes a shared receive queue, for QPs or for an XRC domain.

    :param context: the open device
    :param srq_init_attr_ex: its kind and its sizes; these are replaced by the actual ones
    :return: an SRQ, or None with errno set: EOPNOTSUPP for tag matching
    """
    return SRQ(need(context, Context, "context"), need(srq_init_attr_ex, SrqInitAttrEx, "srq_init_attr_ex"))


@returns_status
def ibv_destroy_srq(srq: SRQ) -> None:
    """Ends a shared receive queue; what is posted is dropped. Waits until its asynchronous events that were read are
    acknowledged.

    :param srq: the queue
    :return: 0, or the value of errno: EBUSY while a QP uses it
    """
    need(srq, SRQ, "srq")._open()
    wait_for_acks(srq, lambda: srq._async_events, lambda: 0, "asynchronous events")
    srq._destroy()


@returns_status
def ibv_modify_srq(srq: SRQ, srq_attr: SrqAttr, srq_attr_mask: int) -> None:
    """Changes the size of a queue, or arms its limit; all or nothing.

    :param srq: the queue
    :param srq_attr: the attributes
    :param srq_attr_mask: which of them: IBV_SRQ_MAX_WR, IBV_SRQ_LIMIT
    :return: 0, or the value of errno
    """
    need(srq, SRQ, "srq").modify(need(srq_attr, SrqAttr, "srq_attr"), srq_attr_mask)


@returns_status
def ibv_query_srq(srq: SRQ, srq_attr: SrqAttr) -> None:
    """The attributes of a queue. A ``srq_limit`` of 0: no limit is armed.

    :param srq: the queue
    :param srq_attr: filled in
    :return: 0, or the value of errno
    """
    need(srq_attr, SrqAttr, "srq_attr")
    srq_attr.__dict__.update(need(srq, SRQ, "srq").query().__dict__)


@returns_status
def ibv_get_srq_num(srq: SRQ, srq_num: Any) -> None:
    """The number of an XRC SRQ.

    :param srq: the queue
    :param srq_num: ``uint32_t *``: where the number goes
    :return: 0, or the value of errno: EINVAL for any other SRQ
    """
    store(srq_num, need(srq, SRQ, "srq").get_srq_num(), "srq_num")


@returns_status
def ibv_post_srq_recv(srq: SRQ, wr: RecvWR, bad_wr: Any) -> None:
    """Posts a list of receive work requests, up to the first that is refused.

    :param srq: the queue
    :param wr: the first of the list
    :param bad_wr: ``struct ibv_recv_wr **``: a ``ctypes.py_object()`` or a list of one element, where the work request
        that was refused goes; or None
    :return: 0, or the value of errno: ENOMEM when the queue is full
    """
    post(need(srq, SRQ, "srq").post_recv, need(wr, RecvWR, "wr"), bad_wr)


@returns_status
def ibv_post_srq_ops(srq: SRQ, wr: OpsWr, bad_wr: Any) -> None:
    """Changes the list of a tag matching queue: there are none here.

    :param srq: the queue
    :param wr: the first of the list
    :param bad_wr: where the work request that was refused goes, or None
    :return: EOPNOTSUPP
    """
    post(need(srq, SRQ, "srq").post_srq_ops, need(wr, OpsWr, "wr"), bad_wr)


@returns_object
def ibv_open_xrcd(context: Context, xrcd_init_attr: XRCDInitAttr) -> XRCD:
    """Opens an XRC domain; of the same file, within one process, the same one.

    :param context: the open device
    :param xrcd_init_attr: the file that names it, or -1; O_CREAT, O_EXCL
    :return: an XRCD, or None with errno set: EAGAIN where there is none and O_CREAT is not set
    """
    return XRCD(need(context, Context, "context"), need(xrcd_init_attr, XRCDInitAttr, "xrcd_init_attr"))


@returns_status
def ibv_close_xrcd(xrcd: XRCD) -> None:
    """Closes an XRC domain; the last one ends it.

    :param xrcd: the domain
    :return: 0, or the value of errno: EBUSY while an SRQ or a QP was made with it
    """
    need(xrcd, XRCD, "xrcd")._destroy()
