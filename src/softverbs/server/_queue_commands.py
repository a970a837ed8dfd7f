# SPDX-License-Identifier: MIT
"""Commands about completion channels and queues, shared receive queues, and completion counters."""

import errno
import os
import socket
from typing import Any

from softverbs.core.base.errors import PyverbsRDMAError
from softverbs.core.memory import spaces
from softverbs.core.queues.completion import CompChannel, CompletionQueue
from softverbs.core.queues.counters import CompCntr
from softverbs.core.queues.rings import VALUES
from softverbs.core.queues.srq import SharedReceiveQueue
from softverbs.pyverbs import libibverbs_enums as e
from softverbs.server import abi
from softverbs.server._layout import COUNTER, COUNTER_FLAGS, RING_HEADER
from softverbs.server._memory import SharedMemory
from softverbs.server._registry import handles
from softverbs.server.session import Entry, Session

Values = dict[str, Any]
_CHANNEL = abi.RECORDS["channel_record"]
_NS_PER_US = 1000
_WORD = 8  # bytes of a count
_EXTERNAL = COUNTER_FLAGS["COUNTER_EXTERNAL_VALUE"] | COUNTER_FLAGS["COUNTER_EXTERNAL_ERRORS"]


# -- channels


@handles("CREATE_CHANNEL")
def create_channel(session: Session, request: Values) -> Values:
    """ibv_create_comp_channel(3)."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setblocking(False)
    entry = session.add("channel", None)
    entry.core = CompChannel(lambda: session.server.note_channel(entry))
    entry.end, entry.far = ours, theirs
    session.passing.append(os.dup(theirs.fileno()))
    return {"handle": entry.handle}


@handles("DESTROY_CHANNEL")
def destroy_channel(session: Session, request: Values) -> None:
    """ibv_destroy_comp_channel(3)."""
    session.close(session.find("channel", request["handle"]))


def deliver_channel(entry: Entry) -> None:
    """Sends the events of a channel to its program."""
    if entry.closed:
        return
    while True:
        cq = entry.core.pop()
        if cq is None:
            return
        entry.session.send_record(entry.end, _CHANNEL.pack({"cq": cq.user.handle}), cq.user)


# -- completion queues


def _cq_memory(core: CompletionQueue, memory: SharedMemory) -> Values:
    stride = VALUES["CQ_SLOT"]
    slots = core.rings()[0].mask + 1
    return {"cqe": core.cqe, "memory_size": memory.size, "offset": RING_HEADER, "stride": stride, "slots": slots}


@handles("CREATE_CQ")
def create_cq(session: Session, request: Values) -> Values:
    """ibv_create_cq(3), ibv_create_cq_ex(3)."""
    channel = session.optional("channel", request["channel"])
    cqe, vector = request["cqe"], request["comp_vector"]
    core = CompletionQueue(session.port, session, cqe, None, channel, vector, request["flags"])
    memory = session.share_new(core)
    core.user = session.add("CQ", core, memory, core.handle)
    core.user.channel = session.find("channel", request["channel"]) if request["channel"] else None
    return {"handle": core.user.handle, **_cq_memory(core, memory)}


@handles("RESIZE_CQ")
def resize_cq(session: Session, request: Values) -> Values:
    """ibv_resize_cq(3)."""
    entry = session.find("CQ", request["handle"])
    if request["cqe"] <= session.device.options.max_cqe:
        session.check_resize(request["cqe"], VALUES["CQ_SLOT"])
    session.settle()  # so that what was posted before counts
    entry.core.resize(request["cqe"])
    return _cq_memory(entry.core, session.share_again(entry))


@handles("DESTROY_CQ")
def destroy_cq(session: Session, request: Values) -> Values:
    """ibv_destroy_cq(3)."""
    entry = session.find("CQ", request["handle"])
    session.close(entry)
    return {"comp_events_reported": entry.core.events_read, "async_events_reported": entry.reported}


@handles("MODIFY_CQ")
def modify_cq(session: Session, request: Values) -> None:
    """ibv_modify_cq(3)."""
    session.core("CQ", request["handle"]).moderate(request["count"], request["period"] * _NS_PER_US)


@handles("ACK_EVENTS")
def ack_events(session: Session, request: Values) -> None:
    """ibv_ack_cq_events(3)."""
    session.core("CQ", request["handle"]).ack(request["count"])


@handles("COMPLETION_REASON")
def completion_reason(session: Session, request: Values) -> Values:
    """The words of a completion with an error."""
    text = session.core("CQ", request["handle"]).reason(request["index"])
    return {"text": text.encode("utf-8", "replace")[: abi.TEXT_SIZE]}


# -- shared receive queues


def receive_rings(core: Any, memory: SharedMemory) -> Values:
    """Where the slots of an SRQ are."""
    ring = core.rings()[0]
    return {
        "memory_size": memory.size,
        "rq_offset": RING_HEADER,
        "rq_stride": ring.stride,
        "rq_slots": ring.mask + 1,
        "mark": core.mark,
    }


@handles("CREATE_SRQ")
def create_srq(session: Session, request: Values) -> Values:
    """ibv_create_srq(3), ibv_create_srq_ex(3)."""
    pd = session.core("PD", request["pd"])
    kind = request["srq_type"]
    domain = cq = None
    if kind == e.IBV_SRQT_XRC:
        domain = session.core("XRCD", request["xrcd"])
        cq = session.core("CQ", request["cq"])
    elif kind != e.IBV_SRQT_BASIC:
        raise PyverbsRDMAError(f"srq_type={kind}: BASIC (0) and XRC (1) are supported", errno.EOPNOTSUPP)
    max_wr, max_sge = request["max_wr"], request["max_sge"]
    core = SharedReceiveQueue(
        session.port, session, pd, max_wr, max_sge, request["srq_limit"], domain and domain.core, cq
    )
    memory = session.share_new(core)
    core.user = entry = session.add("SRQ", core, memory)
    if domain is not None:
        session.bind(entry, domain)
    rings = receive_rings(core, memory)
    return {"handle": entry.handle, "srq_num": core.srq_num, "max_wr": max_wr, "max_sge": max_sge, "rings": rings}


@handles("MODIFY_SRQ")
def modify_srq(session: Session, request: Values) -> Values:
    """ibv_modify_srq(3)."""
    entry = session.find("SRQ", request["handle"])
    mask = request["attr_mask"]
    if mask & ~(e.IBV_SRQ_MAX_WR | e.IBV_SRQ_LIMIT):
        raise PyverbsRDMAError(f"srq_attr_mask={mask:#x}: MAX_WR and LIMIT are known", errno.EINVAL)
    session.port.take_shared()
    resized = bool(mask & e.IBV_SRQ_MAX_WR)
    if resized and request["max_wr"] <= session.device.options.max_srq_wr:
        session.check_resize(request["max_wr"], entry.core.rings()[0].stride)
    entry.core.modify(request["max_wr"] if resized else None, request["srq_limit"] if mask & e.IBV_SRQ_LIMIT else None)
    rings = receive_rings(entry.core, session.share_again(entry)) if resized else {}
    return {"max_wr": entry.core.max_wr, "rings": rings}


@handles("QUERY_SRQ")
def query_srq(session: Session, request: Values) -> Values:
    """ibv_query_srq(3)."""
    max_wr, max_sge, limit = session.core("SRQ", request["handle"]).query()
    return {"max_wr": max_wr, "max_sge": max_sge, "srq_limit": limit}


@handles("DESTROY_SRQ")
def destroy_srq(session: Session, request: Values) -> Values:
    """ibv_destroy_srq(3)."""
    entry = session.find("SRQ", request["handle"])
    session.close(entry)
    return {"async_events_reported": entry.reported}


# -- completion counters


@handles("CREATE_COMP_CNTR")
def create_comp_cntr(session: Session, request: Values) -> Values:
    """ibv_create_comp_cntr(3), efadv_create_comp_cntr(3)."""
    external = request["external"]
    if external & ~_EXTERNAL:
        raise PyverbsRDMAError(f"external={external:#x}: no bit above {_EXTERNAL:#x} is known", errno.EINVAL)
    core = CompCntr(session.port, session, request["comp_mask"], request["type"], request["flags"])
    try:
        core.keep(
            _external(session, external & COUNTER_FLAGS["COUNTER_EXTERNAL_VALUE"], request["value_address"]),
            _external(session, external & COUNTER_FLAGS["COUNTER_EXTERNAL_ERRORS"], request["error_address"]),
        )
        page = session.allocate(COUNTER["COUNTER_SIZE"])
    except BaseException:
        core.close()
        raise
    core.show(page.address, page)
    return {"handle": session.add("counter", core, page, core.handle).handle}


def _external(session: Session, wanted: int, address: int) -> int:
    """The far address of a count in the program's memory, checked; 0 where it is not to be there."""
    if not wanted:
        return 0
    if not address or address % _WORD:
        raise PyverbsRDMAError(
            f"a count at {address:#x}: the address must be a multiple of {_WORD}, and not 0", errno.EINVAL
        )
    return spaces.far(session.space, address)


@handles("DESTROY_COMP_CNTR")
def destroy_comp_cntr(session: Session, request: Values) -> None:
    """ibv_destroy_comp_cntr(3)."""
    session.close(session.find("counter", request["handle"]))


def _counter(session: Session, request: Values) -> CompCntr:
    core = session.core("counter", request["handle"])
    assert isinstance(core, CompCntr)
    return core


@handles("SET_COMP_CNTR")
def set_comp_cntr(session: Session, request: Values) -> None:
    """ibv_set_comp_cntr(3)."""
    _counter(session, request).set(request["value"])


@handles("SET_ERR_COMP_CNTR")
def set_err_comp_cntr(session: Session, request: Values) -> None:
    """ibv_set_err_comp_cntr(3)."""
    _counter(session, request).set_err(request["value"])


@handles("INC_COMP_CNTR")
def inc_comp_cntr(session: Session, request: Values) -> None:
    """ibv_inc_comp_cntr(3)."""
    _counter(session, request).inc(request["amount"])


@handles("INC_ERR_COMP_CNTR")
def inc_err_comp_cntr(session: Session, request: Values) -> None:
    """ibv_inc_err_comp_cntr(3)."""
    _counter(session, request).inc_err(request["amount"])


@handles("READ_COMP_CNTR")
def read_comp_cntr(session: Session, request: Values) -> Values:
    """ibv_read_comp_cntr(3), ibv_read_err_comp_cntr(3)."""
    value, errors = _counter(session, request).read_pair()
    return {"value": value, "errors": errors}


@handles("QUERY_COMP_CNTR_CAPS")
def query_comp_cntr_caps(session: Session, request: Values) -> Values:
    """ibv_query_comp_cntr_caps(3)."""
    options = session.device.options
    return {
        "max_value": options.counter_max_value,
        "max_counters": options.max_counters,
        "supported_qp_attach_ops": options.counter_ops,
    }
