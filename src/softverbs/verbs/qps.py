"""Queue pairs: making them, moving them through their states, posting work."""

from typing import Any

from softverbs.core.wr import RecvWR, SendWR
from softverbs.pyverbs.device import Context
from softverbs.pyverbs.pd import PD
from softverbs.pyverbs.pyverbs_error import PyverbsRDMAError
from softverbs.pyverbs.qp import QP, QPAttr, QPInitAttr, QPInitAttrEx
from softverbs.verbs._convention import need, returns_object, returns_status, store
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
    :return: a QP, or None with errno set
    """
    return QP(need(context, Context, "context"), need(qp_init_attr_ex, QPInitAttrEx, "qp_init_attr_ex"))


@returns_status
def ibv_destroy_qp(qp: QP) -> None:
    """Ends a queue pair; unfinished work is dropped, counters are detached. Waits until its asynchronous events that
    were read are acknowledged.

    :param qp: the QP
    :return: 0, or the value of errno
    """
    need(qp, QP, "qp")._open()
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
    _post(need(qp, QP, "qp").post_send, need(wr, SendWR, "wr"), bad_wr)


@returns_status
def ibv_post_recv(qp: QP, wr: RecvWR, bad_wr: Any) -> None:
    """Posts a list of receive work requests, up to the first that is refused.

    :param qp: the QP
    :param wr: the first of the list
    :param bad_wr: ``struct ibv_recv_wr **``: a ``ctypes.py_object()`` or a list of one element, where the work request
        that was refused goes; or None
    :return: 0, or the value of errno: ENOMEM when the queue is full
    """
    _post(need(qp, QP, "qp").post_recv, need(wr, RecvWR, "wr"), bad_wr)


def _post(post: Any, wr: Any, bad_wr: Any) -> None:
    try:
        post(wr)
    except PyverbsRDMAError as error:
        failed = getattr(error, "bad_wr", None)
        if bad_wr is not None:
            store(bad_wr, failed if failed is not None else wr, "bad_wr")
        raise
