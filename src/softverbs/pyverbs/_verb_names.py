# SPDX-License-Identifier: MIT
"""Which verb a refusal is about: what a plan of faults (docs/faults.md) asks by the name of the manual page.

Every ``_guard(what)`` has its verb here, or says ``verb=`` itself; tests/test_faults_verbs.py looks that none is
missing. "" is no verb: an extension, or a part of another verb.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from softverbs.pyverbs.base import Resource

#: What ``what`` begins with, after "Failed to ": the verb.
TEXTS = {
    "acknowledge CQ events": "ack_cq_events",
    "attach QP to a multicast group": "attach_mcast",
    "attach comp cntr to QP": "qp_attach_comp_cntr",
    "create AH": "create_ah",
    "create QP": "create_qp",
    "create SRQ": "create_srq",
    "create a CQ": "create_cq",
    "create a completion channel": "create_comp_channel",
    "create extended CQ": "create_cq_ex",
    "detach QP from a multicast group": "detach_mcast",
    "get CQ event": "get_cq_event",
    "get pkey index": "get_pkey_index",
    "inc comp_cntr": "inc_comp_cntr",
    "inc_err comp_cntr": "inc_err_comp_cntr",
    "modify CQ": "modify_cq",
    "modify QP": "modify_qp",
    "modify SRQ": "modify_srq",
    "open QP": "open_qp",
    "open XRCD": "open_xrcd",
    "open device": "open_device",
    "poll CQ": "",  # the core asks, for each poll
    "query EX device": "query_device_ex",
    "query QP": "query_qp",
    "query SRQ": "query_srq",
    "query comp_cntr caps": "query_comp_cntr_caps",
    "query device": "query_device",
    "query gid": "query_gid",
    "query gid table": "query_gid_ex",
    "query gid tables": "query_gid_table",
    "query gid type": "query_gid_type",
    "query pkey": "query_pkey",
    "query port": "query_port",
    "query port speed": "",
    "query real time values": "query_rt_values_ex",
    "read the statistics": "",
    "register a MR": "reg_mr",
    "request a CQ notification": "req_notify_cq",
    "rereg MR": "rereg_mr",
    "resize CQ": "resize_cq",
    "set comp_cntr": "set_comp_cntr",
    "set_err comp_cntr": "set_err_comp_cntr",
    "stall comp_cntr": "",
    "unwatch comp_cntr": "",
    "wait for comp_cntr": "",
    "watch comp_cntr": "",
}
#: What ends an object, by its kind; everything that is called an MR is deregistered.
DESTROYERS = {
    "AH": "destroy_ah",
    "Buf": "free_buf",
    "CQ": "destroy_cq",
    "DM": "free_dm",
    "DMA Handle": "dealloc_dmah",
    "MW": "dealloc_mw",
    "PD": "dealloc_pd",
    "ParentDomain": "dealloc_pd",
    "QP": "destroy_qp",
    "SRQ": "destroy_srq",
    "TD": "dealloc_td",
    "XRCD": "close_xrcd",
    "completion channel": "destroy_comp_channel",
    "completion counter": "destroy_comp_cntr",
    "context": "",
}
_FAILED = "Failed to "
_DESTROY = "destroy "
_LONGEST_FIRST = sorted(TEXTS, key=len, reverse=True)
#: Kind of an object -> the fact that its handle is.
_HANDLES = {"QP": "qp", "CQ": "cq", "completion counter": "counter"}


def verb_of(what: str) -> str:
    """The verb that ``what`` is the refusal of; "" where it is none that is known."""
    return named(what) or ""


def named(what: str) -> str | None:
    """The same, and None where nobody has thought of it."""
    rest = what.removeprefix(_FAILED)
    if rest.startswith(_DESTROY):
        kind = rest.removeprefix(_DESTROY)
        return "dereg_mr" if "MR" in kind else DESTROYERS.get(kind)
    return next((TEXTS[text] for text in _LONGEST_FIRST if rest.startswith(text)), None)


def facts_of(subject: "Resource | None") -> dict[str, Any]:
    """What rules can ask about the object that is called."""
    fact = None if subject is None else _HANDLES.get(subject._kind)
    return {} if fact is None or subject is None or subject._core is None else {fact: subject._core.handle}
