# SPDX-License-Identifier: MIT
"""Where things are in the memory that the device shares with a program. The queues: core/queues/rings.py."""

from softverbs.core.base.limits import MAX_QP, MAX_SRQ
from softverbs.core.queues.counters import VALUES as COUNTS
from softverbs.core.queues.marks import VALUES as MARKS
from softverbs.core.queues.rings import VALUES

#: Bytes before the slots of a queue's memory.
RING_HEADER = VALUES["RING_HEADER"]
CQ_HEADER = ("CQ_TAIL", "CQ_HEAD", "CQ_ARM_ANY", "CQ_ARM_SOLICITED")
QP_HEADER = (
    "QP_SQ_TAIL", "QP_SQ_TAKEN", "QP_SQ_HEAD", "QP_RQ_TAIL", "QP_RQ_TAKEN", "QP_RQ_HEAD", "QP_STATE",
)  # fmt: skip
#: Offsets within slots, those of the device's private parts left out.
SLOTS = (
    "SGE_SIZE", "SGE_LENGTH", "SGE_LKEY",
    "SQ_WR_ID", "SQ_OPCODE", "SQ_FLAGS", "SQ_NUM_SGE", "SQ_IMM", "SQ_REMOTE_ADDRESS", "SQ_RKEY", "SQ_LENGTH",
    "SQ_COMPARE_ADD", "SQ_SWAP", "SQ_DESTINATION", "SQ_AH", "SQ_SGES",
    "RQ_WR_ID", "RQ_NUM_SGE", "RQ_LENGTH", "RQ_SGES",
    "CQ_WR_ID", "CQ_STATUS", "CQ_OPCODE", "CQ_VENDOR_ERR", "CQ_BYTE_LEN", "CQ_IMM", "CQ_QP_NUM", "CQ_SRC_QP",
    "CQ_FLAGS", "CQ_PKEY_INDEX", "CQ_SLID", "CQ_SL", "CQ_DLID_PATH_BITS", "CQ_TIMESTAMP",
    "CQ_FREES", "CQ_SLOT",
)  # fmt: skip

#: Numbers of send queues, in the upper half of CQ_FREES, are below this.
SEND_QUEUES = {"SEND_QUEUES": 65536}

_PAGE = 4096
#: A byte for each queue that can be posted to, in whole pages.
MARKS_SIZE = MAX_QP + MAX_SRQ + -(MAX_QP + MAX_SRQ) % _PAGE
#: The control page of each connection, and behind it the marks (core/queues/marks.py), of which the children of byte
#: n are MARK_LINE bytes from MARK_LINE * (n + 1) on.
CONTROL = {
    "CONTROL_SIZE": _PAGE + MARKS_SIZE,
    "CONTROL_AWAKE": 0,  # 1 while the device looks at the rings by itself
    "CONTROL_GONE": 4,  # 1 once the device was removed, or the connection ended: every call gives EIO
    "CONTROL_ASKS": 8,  # 64 bits: a bit for each of ASKS that has to be asked about
    "CONTROL_MARKS": _PAGE,
    "MARK_LINE": MARKS["LINE"],
}
#: Verbs that the driver does without a command of their own, or that share one. Their numbers in ASK and CONTROL_ASKS.
_ASKED = (
    "post_send", "post_recv", "post_srq_recv", "poll_cq", "bind_mw", "create_cq", "create_cq_ex", "query_device",
    "query_device_ex", "query_gid", "query_gid_ex", "query_gid_table", "query_gid_type", "get_pkey_index",
    "query_rt_values_ex", "alloc_parent_domain", "dealloc_pd", "alloc_td", "dealloc_td", "import_pd", "import_mr",
    "import_dm", "get_cq_event", "req_notify_cq",
)  # fmt: skip
ASKS = {verb: number for number, verb in enumerate(_ASKED)}
#: One page for each completion counter. What is there is what ibv_read_comp_cntr(3) returns. COUNTER_LOST: the counts
#: (COUNTER_EXTERNAL_*) that could not be stored in the program's memory, which is not tried again.
COUNTER = {
    "COUNTER_SIZE": 4096,
    "COUNTER_VALUE": 0,
    "COUNTER_ERRORS": COUNTS["PAGE_ERRORS"],
    "COUNTER_LOST": COUNTS["PAGE_LOST"],
}
#: Bits of CREATE_COMP_CNTR's ``external``: which counts are kept in the program's memory too.
COUNTER_FLAGS = {"COUNTER_EXTERNAL_VALUE": COUNTS["LOST_VALUE"], "COUNTER_EXTERNAL_ERRORS": COUNTS["LOST_ERRORS"]}
#: Records that come by the descriptor of a channel, and by that of asynchronous events.
EVENT_SIZES = {"CHANNEL_RECORD_SIZE": 8, "ASYNC_RECORD_SIZE": 16}
#: HELLO's ``purpose``. LIST: only to list the device; no descriptors come.
PURPOSES = {"PURPOSE_CONTEXT": 0, "PURPOSE_LIST": 1}
#: Bits of REG_MR's ``flags``. NULL: ibv_alloc_null_mr(3); address, length, iova and access are not looked at.
REG_FLAGS = {"REG_NULL": 1}


def _named(names: tuple[str, ...]) -> dict[str, int]:
    return {name: VALUES[name] for name in names}


#: What abi.h gets, with its headings.
GROUPS = (
    ("Bytes before the slots of a queue's memory.", {"RING_HEADER": RING_HEADER}),
    ("Completion queue: tail (device); head, what is armed: number << 32 | tail seen (client).", _named(CQ_HEADER)),
    ("QP and SRQ: SQ tail (client), taken, retired (device); RQ the same; state (device, 32 bits).", _named(QP_HEADER)),
    (
        "Control page: is the device awake (no doorbell is needed), has it gone (32 bits each); what to ask; marks.",
        CONTROL,
    ),
    (
        "Verbs of ASK, and bits of CONTROL_ASKS; NOTHING is never asked about.",
        {f"ASK_{verb.upper()}": number for verb, number in ASKS.items()} | {"ASK_NOTHING": 63},
    ),
    ("Page of a completion counter, 64 bits each.", COUNTER),
    ("CREATE_COMP_CNTR external.", COUNTER_FLAGS),
    ("struct sv_channel_record, struct sv_async_record.", EVENT_SIZES),
    ("HELLO purposes.", PURPOSES),
    ("REG_MR flags.", REG_FLAGS),
    ("Slots (core/queues/rings.py).", _named(SLOTS)),
    ("CQ_FREES is the number of a send queue << 32, then the index behind the work request, 32 bits.", SEND_QUEUES),
)
