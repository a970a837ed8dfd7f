# SPDX-License-Identifier: MIT
"""Faults on demand (docs/faults.md) in programs of other processes: which verb a command is, and what rules can ask.

A command is asked about before it is carried out. What the driver does without a command, it asks about by ASK, if
the control page says that the plan has such rules.
"""

import errno
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from softverbs.core.base.errors import PyverbsRDMAError
from softverbs.pyverbs import libibverbs_enums as e
from softverbs.server._layout import ASKS, CONTROL, PURPOSES
from softverbs.server._registry import handles

if TYPE_CHECKING:
    from softverbs.device import Device
    from softverbs.server.session import Session

Values = dict[str, Any]

#: Commands that are called as their verbs are, in capitals.
_ALIKE = (
    "ALLOC_PD", "DEALLOC_PD", "DEREG_MR", "REREG_MR", "ALLOC_DM", "FREE_DM", "REG_DM_MR", "ALLOC_MW", "DEALLOC_MW",
    "ADVISE_MR", "QUERY_PORT", "QUERY_PKEY", "RESIZE_CQ", "DESTROY_CQ", "MODIFY_CQ", "CREATE_QP", "MODIFY_QP",
    "QUERY_QP", "DESTROY_QP", "OPEN_QP", "CREATE_AH", "DESTROY_AH", "CREATE_SRQ", "MODIFY_SRQ", "QUERY_SRQ",
    "DESTROY_SRQ", "OPEN_XRCD", "CLOSE_XRCD", "ATTACH_MCAST", "DETACH_MCAST", "CREATE_COMP_CNTR", "DESTROY_COMP_CNTR",
    "SET_COMP_CNTR", "SET_ERR_COMP_CNTR", "INC_COMP_CNTR", "INC_ERR_COMP_CNTR", "QUERY_COMP_CNTR_CAPS",
)  # fmt: skip
#: The verb of a command. "" is none of its own: the driver asks for the one of several that it stands for, or none.
VERBS: dict[str, str] = {
    **{name: name.lower() for name in _ALIKE},
    "HELLO": "",
    "ASK": "",
    "QUERY_DEVICE": "",
    "QUERY_GID": "",
    "CREATE_CQ": "",
    "REG_MR": "reg_mr",
    "COPY_DM": "memcpy_from_dm",
    "CREATE_CHANNEL": "create_comp_channel",
    "DESTROY_CHANNEL": "destroy_comp_channel",
    "ACK_EVENTS": "",
    "COMPLETION_REASON": "",
    "READ_COMP_CNTR": "",
    "ATTACH_COMP_CNTR": "qp_attach_comp_cntr",
    "CM_BIND": "rdma_bind_addr",
    "CM_RESOLVE_ADDR": "rdma_resolve_addr",
    "CM_RESOLVE_ROUTE": "rdma_resolve_route",
    "CM_LISTEN": "rdma_listen",
    "CM_CONNECT": "rdma_connect",
    "CM_ACCEPT": "rdma_accept",
    "CM_ESTABLISH": "rdma_establish",
    "CM_REJECT": "rdma_reject",
    "CM_NOTIFY": "rdma_notify",
    "CM_DISCONNECT": "rdma_disconnect",
    "CM_JOIN": "rdma_join_multicast",
    "CM_LEAVE": "rdma_leave_multicast",
    "CM_SET_OPTION": "rdma_set_option",
    "CM_MIGRATE_ID": "rdma_migrate_id",
    **dict.fromkeys(
        (
            "CM_CREATE_CHANNEL", "CM_DESTROY_CHANNEL", "CM_CREATE_ID", "CM_DESTROY_ID", "CM_QUERY", "CM_INIT_QP_ATTR",
            "CM_NEGOTIATE", "CM_GET_EVENT",
        ),
        "",
    ),
}  # fmt: skip
#: Where rules find a size: bytes, or entries of a queue.
_SIZES = {
    "REG_MR": "length", "REREG_MR": "length", "ALLOC_DM": "length", "REG_DM_MR": "length", "RESIZE_CQ": "cqe",
    "CREATE_SRQ": "max_wr",
}  # fmt: skip
#: Kind of an object: what rules call its number, and how it is found.
_NUMBERS: dict[str, tuple[str, Callable[[Any], int]]] = {
    "QP": ("qp", lambda core: int(core.qp_num)),
    "CQ": ("cq", lambda core: int(core.handle)),
    "counter": ("counter", lambda core: int(core.handle)),
}
#: Commands about an object of these kinds, by the member of the request that names it.
_SUBJECTS: dict[str, dict[str, tuple[str, ...]]] = {
    "handle": {
        "QP": ("MODIFY_QP", "QUERY_QP", "DESTROY_QP"),
        "CQ": ("RESIZE_CQ", "DESTROY_CQ", "MODIFY_CQ"),
        "counter": (
            "DESTROY_COMP_CNTR", "SET_COMP_CNTR", "SET_ERR_COMP_CNTR", "INC_COMP_CNTR", "INC_ERR_COMP_CNTR",
        ),
    },
    "qp": {"QP": ("ATTACH_MCAST", "DETACH_MCAST", "ATTACH_COMP_CNTR")},
}  # fmt: skip
_SUBJECT = {
    command: (member, kind) for member, kinds in _SUBJECTS.items() for kind, names in kinds.items() for command in names
}
_ASKED = tuple(ASKS)
_POSTS = {"post_send": "QP", "post_recv": "QP", "post_srq_recv": ""}
_ABOUT = {"poll_cq": "CQ", "req_notify_cq": "CQ", "bind_mw": "QP"}


def verb_of(command: str, request: Values) -> str:
    """The verb that a command is; "" for none."""
    if command == "HELLO":
        return "open_device" if request["purpose"] == PURPOSES["PURPOSE_CONTEXT"] else ""
    if command == "REG_MR" and request["flags"]:
        return "alloc_null_mr"
    if command == "CREATE_COMP_CNTR" and request["external"]:
        return "efadv_create_comp_cntr"
    if command == "COPY_DM" and request["to_device"]:
        return "memcpy_to_dm"
    return VERBS[command]


def let_fail(session: "Session", command: str, request: Values) -> None:
    """Asks the plan about a command; raises PyverbsRDMAError where it is to fail."""
    verb = verb_of(command, request)
    if not verb:
        return
    facts: Values = {}
    if command in _SIZES:
        facts["size"] = request[_SIZES[command]]
    if command in _SUBJECT:
        member, kind = _SUBJECT[command]
        facts |= _number(session, kind, request[member])
    if command == "CREATE_QP":
        facts["type"] = request["qp_type"]
    if command == "MODIFY_QP" and request["attr_mask"] & e.IBV_QP_STATE:
        facts["to"] = request["attr"]["qp_state"]
    session.device.verb_faults.on_call(verb, facts)


def _number(session: "Session", kind: str, handle: int) -> Values:
    """The number of an object under the name that rules have for it; nothing where there is no such object."""
    entry = session.entries.get(handle)
    if entry is None or entry.kind != kind:
        return {}
    fact, number = _NUMBERS[kind]
    return {fact: number(getattr(entry.core, "core", entry.core))}


def asks(device: "Device") -> int:
    """What the driver has to ask about, for the control page: a bit for each verb of ``_layout.ASKS``."""
    return sum(1 << bit for verb, bit in ASKS.items() if verb in device.planned)


def show_asks(session: "Session") -> None:
    """Writes that into a session's control page."""
    if session.control is not None:
        session.control.store64(CONTROL["CONTROL_ASKS"], asks(session.device))


@handles("ASK")
def ask(session: "Session", request: Values) -> None:
    """A verb that the driver does by itself: it fails where the plan says so."""
    if request["verb"] >= len(_ASKED):
        raise PyverbsRDMAError(f"there is no verb {request['verb']} to be asked about", errno.EINVAL)
    verb, device = _ASKED[request["verb"]], session.device
    if verb in _POSTS:
        if device.port.plan is None:
            return
        facts = {"wr_id": request["wr_id"], "size": request["size"]}
        if verb == "post_send":
            facts["opcode"] = request["opcode"]
        facts |= _number(session, _POSTS[verb], request["handle"]) if _POSTS[verb] else {}
        device.port.plan.on_posting(verb, facts)
    elif verb == "poll_cq":
        if device.port.plan is not None:
            device.port.plan.on_call(verb, _number(session, "CQ", request["handle"]))
    elif device.verb_faults is not None:
        facts = {"size": request["size"]}
        facts |= _number(session, _ABOUT[verb], request["handle"]) if verb in _ABOUT else {}
        device.verb_faults.on_call(verb, facts)
