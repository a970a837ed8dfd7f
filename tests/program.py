# SPDX-License-Identifier: MIT
"""A program on the other side of shared rings: it writes and reads the bytes that ``core/queues/rings.py`` describes.

The same class works in the test's own process, where a test wants to see every step, and in a forked child.
"""

import ctypes
import mmap
import struct
from collections.abc import Callable
from typing import Any

from tests import words

from softverbs.core.queues.marks import VALUES as MARKS
from softverbs.core.queues.marks import Marks
from softverbs.core.queues.rings import VALUES

HEADER = VALUES["RING_HEADER"]
SEND, RECEIVE = "SQ", "RQ"
INLINE = 8
_TAILS = (VALUES["QP_SQ_TAIL"], VALUES["QP_RQ_TAIL"])


def arming(solicited: bool) -> int:
    """Where a completion queue's memory has what is armed."""
    return VALUES["CQ_ARM_SOLICITED" if solicited else "CQ_ARM_ANY"]


class Shared:
    """Memory that is shared with a forked child; ``address`` is the same in both processes."""

    def __init__(self, size: int) -> None:
        self.memory = mmap.mmap(-1, size)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))

    def load(self, offset: int, form: str = "Q") -> Any:
        return words.load(self.memory, offset, form)

    def store(self, offset: int, value: int, form: str = "Q") -> None:
        words.store(self.memory, offset, value, form)


class Program(Shared):
    """The marks of a program: what it has posted to."""

    def __init__(self, size: int = 4096) -> None:
        super().__init__(size)
        self.marks = Marks(self.address, size, self)

    def mark(self, number: int) -> None:
        self.memory[number] = 1
        while number >= MARKS["LINE"]:
            number = number // MARKS["LINE"] - 1
            self.memory[number] = 1


def program_of(node: Any) -> Program:
    """The program whose queues those of a simulated device are."""
    if not hasattr(node, "program"):
        node.program = Program()
        node.port.enter_program(node.program.marks)
    program: Program = node.program
    return program


class Work(Shared):
    """The rings of a queue pair or, without ``sq``, of an SRQ, as the program sees them."""

    #: Marks the queue; None: it is not shared yet.
    mark: "Callable[[], None] | None" = None

    def __init__(self, size: int, sq: tuple[int, int] | None, rq: tuple[int, int] | None) -> None:
        """sq, rq: stride in bytes and number of slots."""
        super().__init__(size)
        self.rings = {}
        start = HEADER
        for name, ring in ((SEND, sq), (RECEIVE, rq)):
            if ring is not None:
                self.rings[name] = (start, *ring)
                start = start + ring[0] * ring[1] + 63 & ~63

    def slot(self, name: str, index: int) -> int:
        start, stride, count = self.rings[name]
        return start + index % count * stride

    def tail(self, name: str) -> int:
        return int(self.load(VALUES[f"QP_{name}_TAIL"]))

    def taken(self, name: str) -> int:
        return int(self.load(VALUES[f"QP_{name}_TAKEN"]))

    def head(self, name: str) -> int:
        return int(self.load(VALUES[f"QP_{name}_HEAD"]))

    @property
    def state(self) -> int:
        return int(self.load(VALUES["QP_STATE"], "I"))

    def _elements(self, at: int, sg: list[tuple[int, int, int]]) -> None:
        words.store_elements(self.memory, at, sg)

    def put_send(self, opcode: int, sg: list[tuple[int, int, int]] = [], **fields: int) -> int:  # noqa: B006
        """Writes a slot without telling the device; its offset. sg: (address, length, lkey); fields: names of SQ_*."""
        at = self.slot(SEND, self.tail(SEND))
        self.memory[at : at + VALUES["SQ_SGES"]] = bytes([0xEE]) * VALUES["SQ_SGES"]  # what does not count is anything
        forms = {"OPCODE": "B", "FLAGS": "B", "NUM_SGE": "H", "WR_ID": "Q", "REMOTE_ADDRESS": "Q", "COMPARE_ADD": "Q",
                 "SWAP": "Q"}  # fmt: skip
        for name, value in {"wr_id": 0, "flags": 2, "num_sge": len(sg), **fields, "opcode": opcode}.items():
            self.store(at + VALUES[f"SQ_{name.upper()}"], value, forms.get(name.upper(), "I"))
        self._elements(at + VALUES["SQ_SGES"], sg)
        return at

    def send(self, opcode: int, sg: list[tuple[int, int, int]] = [], inline: bytes | None = None, **fields: int) -> int:  # noqa: B006
        """Posts a send; its slot's offset."""
        if inline is not None:
            fields.update(flags=fields.get("flags", 2) | INLINE, length=len(inline))
        at = self.put_send(opcode, sg, **fields)
        if inline is not None:
            self.memory[at + VALUES["SQ_SGES"] : at + VALUES["SQ_SGES"] + len(inline)] = inline
        self.advance(SEND)
        return at

    def receive(self, sg: list[tuple[int, int, int]], wr_id: int = 0, num_sge: int = -1) -> int:
        """Posts a receive; its slot's offset."""
        at = self.slot(RECEIVE, self.tail(RECEIVE))
        self.store(at + VALUES["RQ_WR_ID"], wr_id)
        self.store(at + VALUES["RQ_NUM_SGE"], len(sg) if num_sge < 0 else num_sge, "I")
        self.store(at + VALUES["RQ_LENGTH"], 0xEEEEEEEE, "I")
        self._elements(at + VALUES["RQ_SGES"], sg)
        self.advance(RECEIVE)
        return at

    def share(self, node: Any, core: Any) -> None:
        """Shares these rings with the device, which calls them ``core``."""
        program = program_of(node)
        core.share(self.address, self, program.marks)
        number = core.mark
        self.mark = lambda: program.mark(number)

    def store(self, offset: int, value: int, form: str = "Q") -> None:
        super().store(offset, value, form)
        if self.mark is not None and offset in _TAILS:
            self.mark()

    def advance(self, name: str, count: int = 1) -> None:
        self.store(VALUES[f"QP_{name}_TAIL"], self.tail(name) + count)

    def free(self, name: str, max_wr: int) -> int:
        """How many work requests can be posted."""
        return max_wr - (self.tail(name) - self.head(name))


class Completions(Shared):
    """A completion queue as the program sees it."""

    def __init__(self, size: int, slots: int) -> None:
        super().__init__(size)
        self.slots = slots
        self.armings = 0

    @property
    def tail(self) -> int:
        return int(self.load(VALUES["CQ_TAIL"]))

    @property
    def head(self) -> int:
        return int(self.load(VALUES["CQ_HEAD"]))

    def arm(self, solicited: bool = False, seen: "int | None" = None) -> None:
        """Arms one event; ``seen``: the tail where it was looked at before."""
        self.armings += 1
        self.store(arming(solicited), self.armings << 32 | (self.tail if seen is None else seen) & 0xFFFFFFFF)

    def poll(self, limit: int = 1 << 30) -> list[tuple[int, int]]:
        """Takes completions out: (wr_id, status)."""
        return [(wc["wr_id"], wc["status"]) for wc in self.entries(limit)]

    def entries(self, limit: int = 1 << 30) -> list[dict[str, int]]:
        found = []
        head, tail = self.head, self.tail
        while head < tail and len(found) < limit:
            at = HEADER + head % self.slots * VALUES["CQ_SLOT"]
            names = ("wr_id", "status", "opcode", "vendor_err", "byte_len", "imm", "qp_num", "src_qp", "flags")
            found.append(dict(zip(names, struct.unpack_from("=QIIIIIIII", self.memory, at), strict=True)))
            head += 1
        self.store(VALUES["CQ_HEAD"], head)
        return found
