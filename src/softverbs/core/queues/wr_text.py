# SPDX-License-Identifier: MIT
"""Words for what work requests and completions say: what ``str()`` of them shows. pyverbs re-exports the functions."""

_SEND_FLAGS = {1: "FENCE", 2: "SIGNALED", 4: "SOLICITED", 8: "INLINE", 16: "IP_CSUM"}
_STATUSES = (
    "success",
    "local length error",
    "local QP op error",
    "local EEC op error",
    "local protection error",
    "WR flush error",
    "memory window bind error",
    "bad response error",
    "local access error",
    "remote invalidate request error",
    "remote access error",
    "remote op error",
    "retry exceeded error",
    "RNR retry exceeded",
    "local RDD violation error",
    "remote invalidate RD request error",
    "remote abort error",
    "invalidate EECN error",
    "invalidate EEC state error",
    "WC fatal error",
    "response timeout error",
    "general error",
)
_OPCODES = {
    0x0: "Send",
    0x1: "RDMA write",
    0x2: "RDMA read",
    0x3: "Compare and swap",
    0x4: "Fetch and add",
    0x5: "Bind Memory window",
    0x6: "Local invalidate",
    0x7: "TSO",
    0x80: "Receive",
    0x81: "Receive RDMA with immediate",
    0x82: "Tag matching - add",
    0x83: "Tag matching - delete",
    0x84: "Tag matching - sync",
    0x85: "Tag matching - receive",
    0x86: "Tag matching - no tag",
    0x87: "Driver WR",
}
_FLAGS = {
    1: "GRH",
    2: "With immediate",
    4: "IP csum OK",
    8: "With invalidate",
    16: "TM sync request",
    32: "TM match",
    64: "TM data valid",
}


def lines(rows: tuple[tuple[str, object], ...]) -> str:
    """``name: value``, one a line, in the columns of pyverbs."""
    return "".join(f"{name:22}: {value:<20}\n" for name, value in rows)


def names(flags: int, of: dict[int, str], prefix: str = "") -> str:
    """The names of the set bits, each followed by a space."""
    return "".join(f"{prefix}{name} " for bit, name in of.items() if flags & bit)


def send_flags_to_str(flags: int) -> str:
    """The names of ``IBV_SEND_*`` bits, each followed by a space."""
    return names(flags, _SEND_FLAGS, "IBV_SEND_")


def cqe_status_to_str(status: int) -> str:
    """``success`` for IBV_WC_SUCCESS, and so on."""
    return _STATUSES[status] if 0 <= status < len(_STATUSES) else "Unknown CQE status"


def cqe_opcode_to_str(opcode: int) -> str:
    """``Send`` for IBV_WC_SEND, and so on."""
    return _OPCODES.get(opcode, f"Unknown CQE opcode {opcode}")


def cqe_flags_to_str(flags: int) -> str:
    """The names of ``IBV_WC_*`` flag bits, each followed by a space."""
    return names(flags, _FLAGS)
