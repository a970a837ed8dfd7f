"""Where things are in the memory that the device shares with a program. The queues' parts are core/rings.py's."""

from softverbs.core.rings import VALUES

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
    "CQ_FLAGS", "CQ_PKEY_INDEX", "CQ_SLID", "CQ_SL", "CQ_DLID_PATH_BITS", "CQ_TIMESTAMP", "CQ_SLOT",
)  # fmt: skip

#: One page for each connection.
CONTROL = {
    "CONTROL_SIZE": 4096,
    "CONTROL_AWAKE": 0,  # 1 while the device looks at the rings by itself
    "CONTROL_GONE": 4,  # 1 once the device was removed, or the connection ended: every call gives EIO
}
#: One page for each completion counter. What is there is what ibv_read_comp_cntr(3) returns.
COUNTER = {"COUNTER_SIZE": 4096, "COUNTER_VALUE": 0, "COUNTER_ERRORS": 8}
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
    ("Control page: is the device awake (then no doorbell is needed), has it gone (32 bits each).", CONTROL),
    ("Page of a completion counter, 64 bits each.", COUNTER),
    ("struct sv_channel_record, struct sv_async_record.", EVENT_SIZES),
    ("HELLO purposes.", PURPOSES),
    ("REG_MR flags.", REG_FLAGS),
    ("Slots (core/rings.py).", _named(SLOTS)),
)
