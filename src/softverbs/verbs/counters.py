# SPDX-License-Identifier: MIT
"""Completion counters: ibv_create_comp_cntr(3), ibv_qp_attach_comp_cntr(3)."""

from typing import Any

from softverbs.pyverbs.comp_cntr import CompCntr, CompCntrInitAttr
from softverbs.pyverbs.device import Context
from softverbs.pyverbs.qp import QP, QPAttachCompCntrAttr
from softverbs.verbs._convention import need, returns_object, returns_status, store


@returns_object
def ibv_create_comp_cntr(context: Context, cc_attr: CompCntrInitAttr) -> CompCntr:
    """Makes a completion counter, both of whose values are 0.

    It counts without an entry in a completion queue per operation: a completion count of what succeeded, an error
    count of what failed. How many a device has, ``ibv_query_comp_cntr_caps`` tells.

    :param context: the open device
    :param cc_attr: what it counts, work requests or bytes; ``comp_mask`` and ``flags`` are 0
    :return: a CompCntr, or None with errno set: EINVAL for unknown bits, EOPNOTSUPP for another type, ENOMEM when
        there are ``max_counters`` already
    """
    return CompCntr(need(context, Context, "context"), need(cc_attr, CompCntrInitAttr, "cc_attr"))


@returns_status
def ibv_destroy_comp_cntr(comp_cntr: CompCntr) -> None:
    """Ends a counter, which must not be attached to a QP.

    :param comp_cntr: the counter
    :return: 0, or the value of errno: EBUSY while it is attached; it stays usable then
    """
    need(comp_cntr, CompCntr, "comp_cntr")._destroy()


@returns_status
def ibv_set_comp_cntr(comp_cntr: CompCntr, value: int) -> None:
    """Sets the completion count. What the device counts at the same time may be lost.

    :param comp_cntr: the counter
    :param value: ``uint64_t``: 0 to ``max_value``
    :return: 0, or the value of errno: EINVAL beyond ``max_value``
    """
    need(comp_cntr, CompCntr, "comp_cntr").set(value)


@returns_status
def ibv_set_err_comp_cntr(comp_cntr: CompCntr, value: int) -> None:
    """Sets the error count. What the device counts at the same time may be lost.

    :param comp_cntr: the counter
    :param value: ``uint64_t``: 0 to ``max_value``
    :return: 0, or the value of errno: EINVAL beyond ``max_value``
    """
    need(comp_cntr, CompCntr, "comp_cntr").set_err(value)


@returns_status
def ibv_inc_comp_cntr(comp_cntr: CompCntr, amount: int) -> None:
    """Adds to the completion count, which wraps to zero beyond ``max_value``. Nothing that is counted is lost.

    :param comp_cntr: the counter
    :param amount: ``uint64_t``: 0 to ``max_value``
    :return: 0, or the value of errno: EINVAL beyond ``max_value``
    """
    need(comp_cntr, CompCntr, "comp_cntr").inc(amount)


@returns_status
def ibv_inc_err_comp_cntr(comp_cntr: CompCntr, amount: int) -> None:
    """Adds to the error count, which wraps to zero beyond ``max_value``. Nothing that is counted is lost.

    :param comp_cntr: the counter
    :param amount: ``uint64_t``: 0 to ``max_value``
    :return: 0, or the value of errno: EINVAL beyond ``max_value``
    """
    need(comp_cntr, CompCntr, "comp_cntr").inc_err(amount)


@returns_status
def ibv_read_comp_cntr(comp_cntr: CompCntr, value: Any) -> None:
    """Reads the completion count. An update may become visible a little later, but it does.

    :param comp_cntr: the counter
    :param value: ``uint64_t *``: a ``ctypes.c_uint64``, or ``byref`` or ``pointer`` of one
    :return: 0, or the value of errno
    """
    store(value, need(comp_cntr, CompCntr, "comp_cntr").read(), "value")


@returns_status
def ibv_read_err_comp_cntr(comp_cntr: CompCntr, value: Any) -> None:
    """Reads the error count. An update may become visible a little later, but it does.

    :param comp_cntr: the counter
    :param value: ``uint64_t *``: a ``ctypes.c_uint64``, or ``byref`` or ``pointer`` of one
    :return: 0, or the value of errno
    """
    store(value, need(comp_cntr, CompCntr, "comp_cntr").read_err(), "value")


@returns_status
def ibv_qp_attach_comp_cntr(qp: QP, comp_cntr: CompCntr, attr: QPAttachCompCntrAttr) -> None:
    """Lets a counter count operations of a QP, from now until the QP is destroyed; there is no other way to detach.

    One counter may serve many QPs, and a QP have many counters, but an operation of a QP only one.

    :param qp: the QP, in RESET or INIT
    :param comp_cntr: the counter, of the same context
    :param attr: ``op_mask``: the operations, IBV_QP_ATTACH_COMP_CNTR_OP_* bits; ``comp_mask``: 0
    :return: 0, or the value of errno, checked in this order: EINVAL for a QP in another state or arguments that make
        no sense, EOPNOTSUPP for operations that the device does not count, EBUSY for one that has a counter already
    """
    need(comp_cntr, CompCntr, "comp_cntr")
    need(qp, QP, "qp").attach_comp_cntr(comp_cntr, need(attr, QPAttachCompCntrAttr, "attr"))
