# SPDX-License-Identifier: MIT
"""Completion queues, plain and extended, and completion channels."""

import errno
import logging
import time
from typing import Any

from softverbs.pyverbs._fields import fill, integer, refused
from softverbs.pyverbs.base import Resource
from softverbs.pyverbs.cq import CQ, CQEX, CompChannel, CqInitAttrEx, ModifyCqAttr, PollCqAttr, WcTmInfo
from softverbs.pyverbs.device import Context
from softverbs.pyverbs.pyverbs_error import PyverbsError
from softverbs.verbs._convention import need, note, returns_object, returns_status, store

_log = logging.getLogger("softverbs.verbs")
_ANY_CQ = (CQ, CQEX)
#: Seconds after which somebody who waits for acknowledgements says so.
PATIENCE = 3.0
_STEP_NS = 20_000_000


@returns_object
def ibv_create_comp_channel(context: Context) -> CompChannel:
    """Makes a completion channel: a descriptor (``fd``) through which CQs tell that there are completions.

    :param context: the open device
    :return: a CompChannel, or None with errno set
    """
    return CompChannel(need(context, Context, "context"))


@returns_status
def ibv_destroy_comp_channel(channel: CompChannel) -> None:
    """Ends a completion channel.

    :param channel: the channel
    :return: 0, or the value of errno: EBUSY while a CQ is on it
    """
    need(channel, CompChannel, "channel")._destroy()


@returns_object
def ibv_create_cq(context: Context, cqe: int, cq_context: object, channel: CompChannel | None, comp_vector: int) -> CQ:
    """Makes a completion queue.

    :param context: the open device
    :param cqe: entries, at least; ``cq.cqe`` tells how many there are
    :param cq_context: anything; events return it
    :param channel: where events go, or None
    :param comp_vector: which completion vector, 0 to ``num_comp_vectors`` - 1
    :return: a CQ, or None with errno set: EINVAL for what is out of range
    """
    return CQ(need(context, Context, "context"), cqe, cq_context, channel, comp_vector)


@returns_object
def ibv_create_cq_ex(context: Context, cq_attr: CqInitAttrEx) -> CQEX:
    """Makes an extended completion queue, which is read one completion after the other, field by field.

    :param context: the open device
    :param cq_attr: its size, the fields of a completion that are wanted (``wc_flags``), creation flags
    :return: a CQEX, or None with errno set: EINVAL for unknown bits, EOPNOTSUPP for unsupported ``wc_flags``
    """
    return CQEX(need(context, Context, "context"), need(cq_attr, CqInitAttrEx, "cq_attr"))


def ibv_cq_ex_to_cq(cq: CQEX) -> CQEX:
    """The same queue, for the functions that take a plain one.

    :param cq: the extended CQ
    """
    return cq


@returns_status
def ibv_resize_cq(cq: CQ | CQEX, cqe: int) -> None:
    """Changes how many entries a queue has; what waits to be polled stays, in order.

    :param cq: the queue
    :param cqe: entries, at least
    :return: 0, or the value of errno: EINVAL where it is out of range or less than what waits
    """
    need(cq, _ANY_CQ, "cq").resize(cqe)


@returns_status
def ibv_modify_cq(cq: CQ | CQEX, cq_attr: ModifyCqAttr) -> None:
    """Changes when a queue's events come: one for so many completions, or after so long.

    :param cq: the queue
    :param cq_attr: ``struct ibv_modify_cq_attr``
    :return: 0, or the value of errno: EINVAL for unknown bits of ``attr_mask``
    """
    need(cq, _ANY_CQ, "cq").modify(need(cq_attr, ModifyCqAttr, "cq_attr"))


@returns_status
def ibv_destroy_cq(cq: CQ | CQEX) -> None:
    """Ends a completion queue, once the events that were read from its channel are acknowledged: it waits for that.

    After a few seconds it says so, once, in the log ``softverbs.verbs``. Events that nobody has read are dropped.

    :param cq: the queue
    :return: 0, or the value of errno: EBUSY, at once, while a QP uses it
    """
    core = need(cq, _ANY_CQ, "cq")._open()
    if core.users:
        raise refused(f"Failed to destroy CQ: completion queue {core.handle} is used by QPs", errno.EBUSY)
    wait_for_acks(cq, lambda: core.events_read, lambda: core.events_acked, "completion events")
    wait_for_acks(cq, lambda: cq._async_events, lambda: 0, "asynchronous events")
    cq._destroy()


def wait_for_acks(resource: Resource, read: Any, acked: Any, what: str) -> None:
    """Waits until as many events of ``resource`` were acknowledged as were read.

    :param resource: what is about to be destroyed
    :param read: how many were read
    :param acked: how many were acknowledged
    :param what: what the message calls the events
    """
    patience = time.monotonic() + PATIENCE
    while read() != acked():
        device = resource._device()
        device.check()
        device.wait_until(lambda: read() == acked(), _STEP_NS)
        if time.monotonic() > patience:
            patience = float("inf")
            _log.warning(
                "destroying %s %d waits for acknowledgements: %d %s were read, %d acknowledged",
                resource._kind,
                resource._open().handle,
                read(),
                what,
                acked(),
            )


def ibv_poll_cq(cq: CQ | CQEX, num_entries: int, wc: list[Any]) -> int:
    """Takes completions, oldest first. Of one in error only ``wr_id``, ``status``, ``qp_num``, ``vendor_err`` count.

    :param cq: the queue
    :param num_entries: so many at most
    :param wc: a list, whose first entries become the completions; it grows where it is shorter
    :return: how many there are, 0 if none; or a negative number, whose absolute value is that of errno
    """
    try:
        count = integer(num_entries, "num_entries", signed=True)
        if count < 0:
            raise refused(f"num_entries is {count}: it cannot be negative")
        found = need(cq, _ANY_CQ, "cq")._open().poll(count)
        need(wc, list, "wc")[: len(found)] = found
        return len(found)
    except PyverbsError as error:
        return -note(error)


@returns_status
def ibv_req_notify_cq(cq: CQ | CQEX, solicited_only: int) -> None:
    """Asks for one event for the next entry of a queue. Poll afterwards: entries that are there raise none.

    :param cq: the queue
    :param solicited_only: not 0: only for errors and for receives whose sender asked for it
    :return: 0, or the value of errno
    """
    need(cq, _ANY_CQ, "cq").req_notify(bool(solicited_only))


@returns_status
def ibv_get_cq_event(channel: CompChannel, cq: Any, cq_context: Any) -> None:
    """Waits for the next event of a channel; EAGAIN instead where O_NONBLOCK is set on ``channel.fd``.

    Each event must be acknowledged with ``ibv_ack_cq_events`` before its queue can be destroyed.

    :param channel: the channel
    :param cq: ``struct ibv_cq **``: a ``ctypes.py_object()`` or a list of one element, where the queue goes
    :param cq_context: ``void **``: likewise, where the queue's ``cq_context`` goes; None if it is not wanted
    :return: 0, or the value of errno (C: -1 with errno set)
    """
    found = need(channel, CompChannel, "channel").get_cq_event()
    store(cq, found, "cq")
    if cq_context is not None:
        store(cq_context, found._open().cq_context, "cq_context")


@returns_status
def ibv_ack_cq_events(cq: CQ | CQEX, nevents: int) -> None:
    """Acknowledges events of a queue. One call for many is cheaper.

    :param cq: the queue
    :param nevents: how many
    :return: 0, or the value of errno (C: nothing): EINVAL for more than were read
    """
    need(cq, _ANY_CQ, "cq").ack_events(nevents)


@returns_status
def ibv_start_poll(cq: CQEX, attr: PollCqAttr | None) -> int:
    """Begins a batch: the oldest completion becomes the current one.

    :param cq: the extended CQ
    :param attr: None, or one with ``comp_mask`` 0
    :return: 0; ENOENT where there is no completion: no ``ibv_end_poll`` then; or another errno
    """
    return int(need(cq, CQEX, "cq").start_poll(attr))


@returns_status
def ibv_next_poll(cq: CQEX) -> int:
    """Makes the next completion of the batch the current one.

    :param cq: the extended CQ
    :return: 0; ENOENT where there is none: ``ibv_end_poll`` must follow all the same; or another errno
    """
    return int(need(cq, CQEX, "cq").poll_next())


@returns_status
def ibv_end_poll(cq: CQEX) -> None:
    """Ends a batch.

    :param cq: the extended CQ
    :return: 0, or the value of errno (C: nothing)
    """
    need(cq, CQEX, "cq").end_poll()


def ibv_wc_read_opcode(cq: CQEX) -> int:
    """Opcode of the current completion, IBV_WC_SEND and so on."""
    return int(need(cq, CQEX, "cq").read_opcode())


def ibv_wc_read_vendor_err(cq: CQEX) -> int:
    """The device's own error number of the current completion."""
    return int(need(cq, CQEX, "cq").read_vendor_err())


def ibv_wc_read_byte_len(cq: CQEX) -> int:
    """Bytes of the current completion."""
    return int(need(cq, CQEX, "cq").read_byte_len())


def ibv_wc_read_imm_data(cq: CQEX) -> int:
    """Immediate data of the current completion, in network order."""
    return int(need(cq, CQEX, "cq").read_imm_data())


def ibv_wc_read_invalidated_rkey(cq: CQEX) -> int:
    """The key that the current completion's message invalidated."""
    return int(need(cq, CQEX, "cq").read_imm_data())


def ibv_wc_read_qp_num(cq: CQEX) -> int:
    """Number of the local QP of the current completion."""
    return int(need(cq, CQEX, "cq").read_qp_num())


def ibv_wc_read_src_qp(cq: CQEX) -> int:
    """Number of the remote QP of the current completion, for UD."""
    return int(need(cq, CQEX, "cq").read_src_qp())


def ibv_wc_read_wc_flags(cq: CQEX) -> int:
    """Flags of the current completion, IBV_WC_GRH and so on."""
    return int(need(cq, CQEX, "cq").read_wc_flags())


def ibv_wc_read_slid(cq: CQEX) -> int:
    """Source LID of the current completion."""
    return int(need(cq, CQEX, "cq").read_slid())


def ibv_wc_read_sl(cq: CQEX) -> int:
    """Service level of the current completion."""
    return int(need(cq, CQEX, "cq").read_sl())


def ibv_wc_read_dlid_path_bits(cq: CQEX) -> int:
    """Low bits of the destination LID of the current completion."""
    return int(need(cq, CQEX, "cq").read_dlid_path_bits())


def ibv_wc_read_completion_ts(cq: CQEX) -> int:
    """When the current completion was made, ns of the device's clock."""
    return int(need(cq, CQEX, "cq").read_timestamp())


def ibv_wc_read_completion_wallclock_ns(cq: CQEX) -> int:
    """When the current completion was made, ns since 1970."""
    return int(need(cq, CQEX, "cq").read_completion_wallclock_ns())


def ibv_wc_read_cvlan(cq: CQEX) -> int:
    """VLAN of the current completion; no CQ can be created with it."""
    return int(need(cq, CQEX, "cq").read_cvlan())


def ibv_wc_read_flow_tag(cq: CQEX) -> int:
    """Flow tag of the current completion; no CQ can be created with it."""
    return int(need(cq, CQEX, "cq").read_flow_tag())


def ibv_wc_read_tm_info(cq: CQEX, tm_info: WcTmInfo) -> None:
    """Tag matching of the current completion; no CQ can be created with it.

    :param cq: the extended CQ
    :param tm_info: filled in
    """
    found = need(cq, CQEX, "cq").read_tm_info()
    fill(need(tm_info, WcTmInfo, "tm_info"), tag=found.tag, priv=found.priv)
