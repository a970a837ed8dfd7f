# SPDX-License-Identifier: MIT
"""Every limit of the device and every option, in one table each."""

from collections.abc import Mapping
from dataclasses import dataclass, fields

from softverbs.core.base.errors import PyverbsUserError

MAX_QP = (
    65536 - 16
)  # a number has 16 bits for the place in the table, whose first 16 are not given away (core/engine/port.py)
MAX_QP_WR = 32768
MAX_SGE = 32
MAX_INLINE_DATA = 1024  # bytes
MAX_CQ = 65536
MAX_CQE = 1048576
MAX_MR = 1048576
MAX_MR_SIZE = 2**63  # bytes
MAX_MW = 65536
MAX_DM_SIZE = 2**30  # bytes
MAX_PD = 65536
MAX_AH = 65536
MAX_SRQ = 16384
MAX_SRQ_WR = 32768
MAX_XRCD = 65536
MAX_MCAST_GRP = 8192
MAX_MCAST_QP_ATTACH = 4096
MAX_RD_ATOMIC = 128
MAX_MESSAGE_SIZE = 2**30  # bytes; the specification allows 2^31 (IBA 9.4)
MAX_PKEYS = 1
NUM_COMP_VECTORS = 4
DEFAULT_PKEY = 0xFFFF  # full member of the default partition, IBA 10.9.1

_UINT64_MAX = 2**64 - 1


@dataclass
class Options:
    """What a device may be told. Values are checked here, once.

    The text form is ``name=value`` separated by commas, as in ``imm=efa,counter_max_value=7``.
    """

    #: A completion counter wraps to zero above this (``max_value`` of the caps).
    counter_max_value: int = _UINT64_MAX
    #: How many completion counters exist at most.
    max_counters: int = 1024
    #: Bits of ``ibv_qp_attach_comp_cntr_op`` that can be attached.
    counter_ops: int = 0x3F
    #: Updates of a counter become visible after this time, ns (the man page allows a delay).
    counter_delay_ns: int = 0
    #: ``standard``: an inbound WRITE_WITH_IMM consumes a receive; ``efa``: it does not.
    imm: str = "standard"
    #: ``exact`` or ``pow2``: the size of a completion queue.
    cqe_rounding: str = "exact"
    #: ``standard``: a completion queue that overruns is dead and its QPs go to ERR; ``rxe``: the CQE is lost.
    overrun: str = "standard"
    #: When the slot of a send work request is free. ``polled``: once the completion of it, or of a later one, has been
    #: polled, as on NICs; ``completed``: once it has completed, as on Soft-RoCE.
    send_slots: str = "polled"
    #: Whether completions of a destroyed or reset QP are removed from its completion queues.
    purge: bool = True
    #: Poison fields that are not valid; detect concurrent polls of a SINGLE_THREADED queue.
    debug: bool = False
    #: Who is told in words why a request was refused, beside the NAK: peers on this host, any, none.
    explain: str = "local"
    #: What the GID table has: ``repeat``: an entry of RoCE v2 for each address, and these again until there are 4, so
    #: that indexes which are usual on NICs work; ``single``: these once; ``mlx5``: the entries of a port of that
    #: driver in its order, RoCE v1 and v2 of a link-local GID and of each address (core/wire/gid.py).
    gid_table: str = "repeat"
    #: Most bytes on the way to one peer, per queue pair, before an ACK must come back.
    window: int = 1024 * 1024
    max_qp: int = MAX_QP
    max_cq: int = MAX_CQ
    max_cqe: int = MAX_CQE
    max_mr: int = MAX_MR
    max_pd: int = MAX_PD
    max_mw: int = MAX_MW
    #: Bytes of the device's own memory (ibv_alloc_dm(3)); 0: it has none.
    max_dm_size: int = 1024 * 1024
    max_qp_wr: int = MAX_QP_WR
    max_srq: int = MAX_SRQ
    max_srq_wr: int = MAX_SRQ_WR
    max_xrcd: int = MAX_XRCD
    max_ah: int = MAX_AH

    def __post_init__(self) -> None:
        for name, allowed in _CHOICES.items():
            if getattr(self, name) not in allowed:
                raise PyverbsUserError(f"option {name}={getattr(self, name)!r}: one of {', '.join(allowed)}")
        for name, (low, high) in _RANGES.items():
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
                raise PyverbsUserError(f"option {name}={value!r}: an integer from {low} to {high}")
        for name in _FLAGS:
            if not isinstance(getattr(self, name), bool):
                raise PyverbsUserError(f"option {name}={getattr(self, name)!r}: True or False")

    @classmethod
    def from_mapping(cls, values: Mapping[str, object]) -> "Options":
        """Options from names and values; an unknown name raises PyverbsUserError."""
        known = {field.name for field in fields(cls)}
        for name in values:
            if name not in known:
                raise PyverbsUserError(f"unknown device option {name!r}; known: {', '.join(sorted(known))}")
        return cls(**values)  # type: ignore[arg-type]

    @classmethod
    def parse(cls, text: str) -> "Options":
        """Options from their text form; PyverbsUserError names what is wrong."""
        values: dict[str, object] = {}
        for item in filter(None, (part.strip() for part in text.split(","))):
            name, equals, value = item.partition("=")
            if not equals:
                raise PyverbsUserError(f"device option {item!r}: name=value is expected")
            values[name.strip()] = _parse_value(name.strip(), value.strip())
        return cls.from_mapping(values)


def _parse_value(name: str, value: str) -> object:
    """The value that a text stands for; the text itself where it is none, or where nobody knows the option."""
    if name in _FLAGS:
        return _FLAG_WORDS.get(value.lower(), value)
    if name not in _RANGES:
        return value
    try:
        return int(value if value.isascii() else "", 0)  # int takes the digits of every script
    except ValueError:
        raise PyverbsUserError(f"option {name}={value!r}: not a number") from None


_FLAGS = ("purge", "debug")
_FLAG_WORDS = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}
_CHOICES = {
    "imm": ("standard", "efa"),
    "cqe_rounding": ("exact", "pow2"),
    "overrun": ("standard", "rxe"),
    "send_slots": ("polled", "completed"),
    "explain": ("local", "always", "never"),
    "gid_table": ("repeat", "single", "mlx5"),
}
_RANGES = {
    "counter_max_value": (1, _UINT64_MAX),
    "max_counters": (0, 2**20),
    "counter_ops": (0, 0x3F),
    "counter_delay_ns": (0, 2**62),
    "window": (4096, 2**30),
    "max_qp": (1, MAX_QP),
    "max_cq": (1, MAX_CQ),
    "max_cqe": (1, MAX_CQE),
    "max_mr": (1, MAX_MR),
    "max_pd": (1, MAX_PD),
    "max_mw": (0, MAX_MW),
    "max_dm_size": (0, MAX_DM_SIZE),
    "max_qp_wr": (1, MAX_QP_WR),
    "max_srq": (1, MAX_SRQ),
    "max_srq_wr": (1, MAX_SRQ_WR),
    "max_xrcd": (1, MAX_XRCD),
    "max_ah": (1, MAX_AH),
}
