# SPDX-License-Identifier: MIT
"""What must come of the frames that a device hears on unreliable transports, written down once more from IBA 9.8.

Nothing tells a sender what has arrived. But the walk hears every frame after all faults, just before the device does,
so that a few lines here can say exactly which receives complete, with which bytes, and what becomes of memory.
"""

import sys
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from tests.netsim import frames
from tests.netsim.pair import FLUSH_ERR, LOC_LEN_ERR, SUCCESS
from tests.netsim.sim import ERR, RTR
from tests.walk.model import UNTOUCHED, check, scatter

GRH = 40
GROUP_QP = 0xFFFFFF
WC_RECV, WC_RECV_IMM = 128, 129
WC_GRH, WITH_IMM, WITH_INV = 1, 2, 8


@dataclass
class Slot:
    """A posted receive: its place in the pool's region, and the pieces of it that the work request names."""

    number: int
    start: int
    places: list[tuple[int, int]]
    image: bytearray  # what its place should hold

    @property
    def size(self) -> int:
        return sum(length for _, length in self.places)

    def put(self, data: bytes) -> None:
        """``data`` from the beginning of the receive on; what is beyond stays."""
        pieces = [(offset - self.start, length) for offset, length in self.places]
        scatter(self.image, pieces, data)


class Arrival(NamedTuple):
    """A completion of a receive that is due. ``content``: bytes of the receive, from its beginning."""

    status: int
    content: bytes = b""
    length: int = 0
    opcode: int = WC_RECV
    imm: int = 0
    flags: int = 0
    source: int = 0
    slot: Slot | None = None  # which, where the queue is the queue pair's own


@dataclass
class Tally:
    """What counters of the target should say."""

    received: int = 0
    failed: int = 0
    written: int = 0


@dataclass
class Receiver:
    """The receive side of a UC or UD queue pair. ``slots``: its own queue; None where it takes from a shared one."""

    slots: "deque[Slot] | None"
    room: int  # bytes of each receive of a shared queue
    left: "Callable[[], int]"  # how many the shared queue has now
    due: "deque[Arrival]" = field(default_factory=deque)
    tally: Tally = field(default_factory=Tally)

    def finish(self, arrival: Arrival) -> None:
        """The receive in hand completes."""
        if self.slots is not None:
            arrival = arrival._replace(slot=self.slots.popleft())
        self.due.append(arrival)
        if arrival.status == SUCCESS:
            self.tally.received += 1
        else:
            self.tally.failed += 1

    def flush(self) -> None:
        """The queue pair is in ERR: its own receives come back."""
        while self.slots:
            self.finish(Arrival(FLUSH_ERR))


@dataclass
class Datagrams(Receiver):
    """Of a UD queue pair."""

    qkey: int = 0

    def hear(self, state: int, frame: bytes) -> bool:
        """A genuine datagram for this queue pair. Whether it has got one."""
        if state < RTR or state == ERR:
            return False
        opcode = frame[0]
        if opcode not in (0x64, 0x65) or int.from_bytes(frame[12:16], "big") != self.qkey:
            return False
        headers = 20 + (4 if opcode == 0x65 else 0)
        payload = frame[headers : len(frame) - 4 - frames.bth(frame).pad]
        if not (self.slots if self.slots is not None else self.left()):
            return False
        room = self.slots[0].size if self.slots is not None else self.room
        if GRH + len(payload) > room:
            self.finish(Arrival(LOC_LEN_ERR))
            self.flush()
            return False
        imm = int.from_bytes(frame[20:24], sys.byteorder) if opcode == 0x65 else 0
        source = int.from_bytes(frame[17:20], "big")
        flags = WC_GRH | (WITH_IMM if opcode == 0x65 else 0)
        self.finish(Arrival(SUCCESS, payload, GRH + len(payload), WC_RECV, imm, flags, source))
        return True


@dataclass
class Stream(Receiver):
    """Of a UC queue pair: IBA 9.8.2.2 as a state machine over frames."""

    mtu: int = 0
    epsn: int = 0
    kind: str = ""  # of the message in progress: "send", "write", or none
    placed: int = 0
    length: int = 0  # of the write in progress
    at: int = 0  # where it goes: (address, key)
    key: int = 0
    held: bytes = b""  # what the receive in hand holds of this and of earlier messages
    taken: bool = False  # a receive of the shared queue is in hand

    def hear(self, state: int, frame: bytes, memory: "Memory") -> None:
        """A genuine frame from the peer."""
        bth = frames.bth(frame)
        if state < RTR or state == ERR or not 0x20 <= bth.opcode <= 0x2B:
            return
        part = bth.opcode - 0x20
        kind = "write" if part >= 6 else "send"
        part -= 6 if kind == "write" else 0
        begins, ends, imm = part in (0, 4, 5), part >= 2, part in (3, 5)
        if bth.psn != self.epsn or begins:
            self.kind = ""
        self.epsn = bth.psn + 1 & 0xFFFFFF
        headers = 12 + (16 if kind == "write" and begins else 0) + (4 if imm else 0)
        payload = frame[headers : len(frame) - 4 - bth.pad]
        if begins:
            self.kind, self.placed = kind, 0
            if kind == "write":
                self.at, self.key, self.length = frames.reth(frame)
        elif self.kind != kind:
            self.kind = ""
            return
        right = len(payload) == self.mtu if not ends else len(payload) <= self.mtu and (begins or len(payload) > 0)
        number = int.from_bytes(frame[headers - 4 : headers], sys.byteorder) if imm else 0
        if not right or not (self._send if kind == "send" else self._write)(payload, ends, imm, number, memory):
            self.kind = ""
        if ends:
            self.kind = ""

    def _take(self) -> int | None:
        """Bytes of the receive in hand; None where there is none."""
        if self.slots is None:
            self.taken = self.taken or self.left() > 0
            return self.room if self.taken else None
        return self.slots[0].size if self.slots else None

    def _done(self, arrival: Arrival) -> None:
        self.finish(arrival)
        self.held, self.taken = b"", False

    def _send(self, payload: bytes, ends: bool, imm: bool, number: int, _: "Memory") -> bool:
        room = self._take()
        if room is None:
            return False
        if self.placed + len(payload) > room:
            self._done(Arrival(LOC_LEN_ERR, self.held))
            self.flush()
            return False
        end = self.placed + len(payload)
        self.held = self.held[: self.placed] + payload + self.held[end:]
        self.placed = end
        if ends:
            flags = WITH_IMM if imm else 0
            self._done(Arrival(SUCCESS, self.held, end, WC_RECV, number, flags))
        return True

    def _write(self, payload: bytes, ends: bool, imm: bool, number: int, memory: "Memory") -> bool:
        """Wrong keys and lengths are dropped in silence."""
        if self.placed + len(payload) > self.length or (ends and self.placed + len(payload) != self.length):
            return False
        if self.length and not memory.opens(self.key, self.at, self.length):
            return False
        if imm and self._take() is None:
            return False
        memory.write(self.at + self.placed, payload)
        self.placed += len(payload)
        if ends:
            self.tally.written += 1
            if imm:
                self._done(Arrival(SUCCESS, self.held, self.length, WC_RECV_IMM, number, WITH_IMM))
        return True

    def flush(self) -> None:
        """With what the receive in hand holds."""
        if self.slots is None:
            if self.taken:
                self._done(Arrival(FLUSH_ERR, self.held))
            return
        if self.slots:
            self._done(Arrival(FLUSH_ERR, self.held))
        super().flush()

    def restart(self, psn: int) -> None:
        """The queue pair was reset."""
        self.epsn, self.kind, self.held, self.taken = psn, "", b"", False


class Memory:
    """What a peer may write to, and what it should hold."""

    def __init__(self, base: int, mirror: bytearray) -> None:
        self.base = base
        self.mirror = mirror
        self.keys: dict[int, tuple[int, int]] = {}  # key: (offset, length) that it opens now

    def opens(self, key: int, address: int, length: int) -> bool:
        """Whether the key opens this range."""
        start, size = self.keys.get(key, (0, -1))
        offset = address - self.base
        return start <= offset and offset + length <= start + size

    def write(self, address: int, data: bytes) -> None:
        offset = address - self.base
        self.mirror[offset : offset + len(data)] = data


class Pool:
    """A receive queue's memory: places of one size, each used again when its receive has completed."""

    def __init__(self, region: object, count: int, room: int) -> None:
        """region: of ``count`` places; room: most bytes of a receive."""
        self.region = region
        self.room = room
        self.stride = room + 64
        self.free = deque(range(count))
        self.posted: dict[int, Slot] = {}
        self.numbers = 0

    @staticmethod
    def size(count: int, room: int) -> int:
        """Bytes of the region that it needs."""
        return count * (room + 64)

    def slot(self, sizes: list[int], gaps: list[int]) -> Slot | None:
        """A new receive in pieces of these sizes, each behind a gap; None where there is no place."""
        if not self.free:
            return None
        start = self.free.popleft() * self.stride
        places, at = [], start
        for size, gap in zip(sizes, gaps, strict=True):
            places.append((at + gap, size))
            at += gap + size
        image = bytearray(UNTOUCHED * self.stride)
        slot = Slot(self.numbers, start, places, image)
        self.numbers += 1
        self.posted[slot.number] = slot
        self.region.put(start, image)  # type: ignore[attr-defined]
        return slot

    def take_back(self, number: int, name: str) -> Slot:
        """The receive of this number has completed."""
        check(number in self.posted, f"{name}: receive #{number} completed, which was not posted")
        slot = self.posted.pop(number)
        self.free.append(slot.start // self.stride)
        return slot

    def found(self, slot: Slot) -> bytes:
        """What is in its place."""
        return self.region.at(slot.start, self.stride)  # type: ignore[attr-defined,no-any-return]
