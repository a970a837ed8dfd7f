# SPDX-License-Identifier: MIT
"""Commands about queue pairs, address handles, multicast groups and XRC domains."""

import errno
import os
from typing import Any

from softverbs.core.base.errors import PyverbsRDMAError
from softverbs.core.transport.address import AddressHandle, AddressVector
from softverbs.core.transport.qp import QueuePair
from softverbs.core.transport.qp_states import CAP, QPT_XRC_RECV
from softverbs.pyverbs import libibverbs_enums as e
from softverbs.pyverbs._qp_values import MEMBERS
from softverbs.server._domains import OpenDomain, Target
from softverbs.server._layout import RING_HEADER
from softverbs.server._memory import SharedMemory
from softverbs.server._registry import handles
from softverbs.server.session import Session

Values = dict[str, Any]
_CAP = ("max_send_wr", "max_recv_wr", "max_send_sge", "max_recv_sge", "max_inline_data")


# -- address handles


def _vector(attr: Values) -> AddressVector:
    """``struct ibv_ah_attr`` as the core has it."""
    return AddressVector(
        attr["dgid"],
        attr["sgid_index"],
        attr["flow_label"] & 0xFFFFF,
        attr["hop_limit"],
        attr["traffic_class"],
        attr["sl"],
        attr["port_num"],
        bool(attr["is_global"]),
        attr["static_rate"],
    )


def ah_attr_of(vector: AddressVector) -> Values:
    """The core's as ``struct ibv_ah_attr``."""
    names = ("dgid", "sgid_index", "flow_label", "hop_limit", "traffic_class", "sl", "port_num", "static_rate")
    return {name: getattr(vector, name) for name in names} | {"is_global": int(vector.is_global)}


@handles("CREATE_AH")
def create_ah(session: Session, request: Values) -> Values:
    """ibv_create_ah(3)."""
    core = AddressHandle(session.port, session.core("PD", request["pd"]), _vector(request["attr"]))
    return {"handle": session.add("AH", core).handle, "number": core.handle}


@handles("DESTROY_AH")
def destroy_ah(session: Session, request: Values) -> None:
    """ibv_destroy_ah(3); the datagrams that were posted with it are taken first."""
    session.port.take_shared()
    session.close(session.find("AH", request["handle"]))


# -- queue pairs


def _rings(core: QueuePair, memory: SharedMemory) -> Values:
    """Where the slots of the queues are."""
    queues = core.rings()
    sends = queues[0]
    values = {"memory_size": memory.size, "sq_offset": RING_HEADER, "sq_stride": sends.stride}
    values |= {"sq_slots": sends.mask + 1, "mark": core.mark}
    receives = queues[1:]
    if receives:
        end = RING_HEADER + sends.stride * (sends.mask + 1)
        values |= {"rq_offset": end + -end % 64, "rq_stride": receives[0].stride, "rq_slots": receives[0].mask + 1}
    return values


def _cap(core: QueuePair) -> Values:
    return dict(zip(_CAP, core.query()["cap"], strict=True))


@handles("CREATE_QP")
def create_qp(session: Session, request: Values) -> Values:
    """ibv_create_qp(3), ibv_create_qp_ex(3)."""
    qp_type, cap = request["qp_type"], request["cap"]
    domain: OpenDomain | None = None
    pd = send_cq = recv_cq = srq = None
    if qp_type == QPT_XRC_RECV:
        domain = session.core("XRCD", request["xrcd"])
    else:
        pd = session.optional("PD", request["pd"])
        send_cq = session.optional("CQ", request["send_cq"])
        recv_cq = session.optional("CQ", request["recv_cq"]) if qp_type != e.IBV_QPT_XRC_SEND else None
        srq = session.optional("SRQ", request["srq"])
    core = QueuePair(
        session.port,
        session,
        pd,
        send_cq,
        recv_cq,
        srq,
        (
            cap["max_send_wr"],
            cap["max_recv_wr"],
            cap["max_send_sge"],
            cap["max_recv_sge"],
            cap["max_inline_data"],
        ),
        qp_type,
        bool(request["sq_sig_all"]),
        xrcd=domain.core if domain is not None else None,
    )
    memory = session.share_new(core)
    entry = session.add("QP", core, memory)
    if domain is not None:
        entry.core = Target(core, domain.domain).opened(entry)
        session.bind(entry, domain)
    else:
        core.user = entry
    rings = _rings(core, memory)
    number = core.sends.ring.number
    return {"handle": entry.handle, "qp_num": core.qp_num, "cap": _cap(core), "rings": rings, "send_queue": number}


@handles("OPEN_QP")
def open_qp(session: Session, request: Values) -> Values:
    """ibv_open_qp(3)."""
    domain = session.core("XRCD", request["xrcd"])
    target = domain.domain.targets.get(request["qp_num"])
    if target is None or request["qp_type"] != QPT_XRC_RECV:
        raise PyverbsRDMAError(
            f"the XRC domain has no QP {request['qp_num']:#x} of type {request['qp_type']}", errno.EINVAL
        )
    entry = session.add("QP", None)
    entry.core = target.opened(entry)
    session.bind(entry, domain)
    return {"handle": entry.handle, "qp_num": target.core.qp_num}


def _qp(session: Session, handle: int) -> Any:
    """The core's queue pair; what was posted to it before counts."""
    core = session.core("QP", handle)
    session.port.take_shared()
    return getattr(core, "core", core)  # that of a target


@handles("MODIFY_QP")
def modify_qp(session: Session, request: Values) -> Values:
    """ibv_modify_qp(3)."""
    core = _qp(session, request["handle"])
    mask, attr = request["attr_mask"], request["attr"]
    if mask & CAP:
        raise PyverbsRDMAError("the queues of a QP cannot be resized: IBV_QP_CAP", errno.EINVAL)
    values = {name: attr[name] for bit, name in MEMBERS.items() if mask & bit}
    if mask & e.IBV_QP_AV:
        values["ah_attr"] = _vector(attr["ah_attr"])
    core.modify(values, mask)
    return {"qp_state": core.state}


@handles("QUERY_QP")
def query_qp(session: Session, request: Values) -> Values:
    """ibv_query_qp(3)."""
    core = _qp(session, request["handle"])
    values = core.query()
    values["cap"] = _cap(core)
    if "ah_attr" in values:
        values["ah_attr"] = ah_attr_of(values["ah_attr"])
    return {"attr": values}


@handles("DESTROY_QP")
def destroy_qp(session: Session, request: Values) -> Values:
    """ibv_destroy_qp(3)."""
    entry = session.find("QP", request["handle"])
    if session.port.failure is None:
        session.settle()  # a datagram that was posted before leaves, as it does where the doorbell came first
    session.close(entry)
    return {"async_events_reported": entry.reported}


@handles("ATTACH_COMP_CNTR")
def attach_comp_cntr(session: Session, request: Values) -> None:
    """ibv_qp_attach_comp_cntr(3)."""
    counter = session.core("counter", request["counter"])
    _qp(session, request["qp"]).attach_comp_cntr(counter, request["op_mask"], request["comp_mask"])


@handles("ATTACH_MCAST")
def attach_mcast(session: Session, request: Values) -> None:
    """ibv_attach_mcast(3)."""
    _qp(session, request["qp"]).attach_mcast(request["gid"], request["lid"])


@handles("DETACH_MCAST")
def detach_mcast(session: Session, request: Values) -> None:
    """ibv_detach_mcast(3)."""
    _qp(session, request["qp"]).detach_mcast(request["gid"], request["lid"])


# -- XRC domains


@handles("OPEN_XRCD")
def open_xrcd(session: Session, request: Values) -> Values:
    """ibv_open_xrcd(3)."""
    descriptor = -1
    if request["has_fd"]:
        if len(session.received) != 1:
            raise PyverbsRDMAError("has_fd is set, and one descriptor must come with the request", errno.EBADF)
        descriptor = session.received[0]
    opened = session.server.domains.open(session, descriptor, request["oflags"] & (os.O_CREAT | os.O_EXCL))
    return {"handle": session.add("XRCD", opened).handle}


@handles("CLOSE_XRCD")
def close_xrcd(session: Session, request: Values) -> None:
    """ibv_close_xrcd(3)."""
    session.close(session.find("XRCD", request["handle"]))
