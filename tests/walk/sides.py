# SPDX-License-Identifier: MIT
"""Ends of any type in a mixed walk: what each has posted, what it has received, and what its memory should hold."""

import itertools
from collections import Counter, deque
from dataclasses import dataclass
from random import Random
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from tests.netsim.pair import (
    BIT,
    FENCE,
    FLUSH_ERR,
    INLINE,
    LOC_PROT_ERR,
    OP_NAMES,
    READ,
    RECV,
    REMOTE_READ,
    REMOTE_WRITE,
    SEND,
    SIGNALED,
    SOLICITED,
    SUCCESS,
    WR_ATOMIC_WRITE,
    WR_BIND,
    WR_CAS,
    WR_FAA,
    WR_FLUSH,
    WR_LOCAL_INV,
    WR_READ,
    WR_SEND,
    WR_SEND_IMM,
    WR_SEND_INV,
    WR_WRITE,
    WR_WRITE_IMM,
    WRITE,
    End,
)
from tests.netsim.sim import ERR, QPT_RC, QPT_UC, QPT_UD, QPT_XRC_RECV, QPT_XRC_SEND, RTS, Node
from tests.walk.model import UNTOUCHED, Request, check
from tests.walk.receivers import GRH, Arrival, Datagrams, Memory, Pool, Receiver, Slot, Stream

from softverbs.core.queues.completion import CompletionQueue
from softverbs.core.queues.srq import SharedReceiveQueue
from softverbs.core.queues.wr import SGE, WC, RecvWR, SendWR

if TYPE_CHECKING:
    from tests.walk.mixed import MixedWalk

CELLS = 64
RECEIVES = 1 << 63
NAMES = {QPT_RC: "RC", QPT_UC: "UC", QPT_UD: "UD", QPT_XRC_SEND: "INI", QPT_XRC_RECV: "TGT"}
WORDS = {
    WR_WRITE: "WRITE", WR_WRITE_IMM: "WRITE_IMM", WR_SEND: "SEND", WR_SEND_IMM: "SEND_IMM", WR_READ: "READ",
    WR_CAS: "CAS", WR_FAA: "FAA", WR_LOCAL_INV: "LOCAL_INV", WR_BIND: "BIND", WR_SEND_INV: "SEND_INV",
    WR_FLUSH: "FLUSH", WR_ATOMIC_WRITE: "ATOMIC_WRITE",
}  # fmt: skip
WC_OPCODES = {
    WR_WRITE: 1, WR_WRITE_IMM: 1, WR_SEND: 0, WR_SEND_IMM: 0, WR_READ: 2, WR_CAS: 3, WR_FAA: 4, WR_BIND: 5,
    WR_LOCAL_INV: 6, WR_SEND_INV: 0, WR_FLUSH: 8, WR_ATOMIC_WRITE: 9,
}  # fmt: skip
#: What is drawn, and how often, by type.
_SENDS = {WR_SEND: 5, WR_SEND_IMM: 3}
_WRITES = {WR_WRITE: 5, WR_WRITE_IMM: 3}
_ANSWERED = {WR_READ: 4, WR_CAS: 2, WR_FAA: 2}
DRAWS = {
    QPT_UD: _SENDS, QPT_UC: {**_SENDS, **_WRITES}, QPT_XRC_SEND: {**_SENDS, **_WRITES, **_ANSWERED},
    QPT_RC: {**_SENDS, **_WRITES, **_ANSWERED, WR_FLUSH: 1, WR_ATOMIC_WRITE: 2}, QPT_XRC_RECV: {},
}  # fmt: skip
RELIABLE = (QPT_RC, QPT_XRC_SEND, QPT_XRC_RECV)
GROUP = bytes(10) + b"\xff\xff\xef\1\1\7"


@dataclass
class Work(Request):
    """A send work request of any operation."""

    key: int = 0  # the remote key
    pool: Pool | None = None  # which receives it takes from, where this is known
    result: Slot | None = None
    target: "Side | None" = None  # of a datagram
    group: bool = False

    @property
    def sends(self) -> bool:
        return self.opcode in (WR_SEND, WR_SEND_IMM, WR_SEND_INV)

    @property
    def writes(self) -> bool:
        return self.opcode in (WR_WRITE, WR_WRITE_IMM, WR_ATOMIC_WRITE)

    @property
    def reads(self) -> bool:
        return self.opcode == WR_READ or self.atomic

    def __str__(self) -> str:
        words = f"{WORDS[self.opcode]} #{self.number} of {self.length} at {self.to:#x}"
        return words + (f" ({self.fault})" if self.fault else "") + ("" if self.signaled else " unsignaled")


class Kit:
    """What the sides of a node have in common: shared queues, and the domain of XRC."""

    def __init__(self, walk: "MixedWalk", node: Node) -> None:
        self.node = node
        self.pd = node.pd()
        self.cq: CompletionQueue = node.cq()
        self.room = GRH + 3 * walk.mtu
        self.unreliable = False  # whether a queue pair takes from the SRQ that cannot wait
        self.pool, self.srq = self._queue(walk, None, None, 0)
        self.xrcd = node.xrcd()
        self.xcqs = [node.cq() for _ in range(2)]
        made = [self._queue(walk, self.xrcd, cq, 1 + index) for index, cq in enumerate(self.xcqs)]
        self.xpools = [pool for pool, _ in made]
        self.xsrqs = [srq for _, srq in made]

    def _queue(self, walk: "MixedWalk", xrcd: Any, cq: Any, index: int) -> tuple[Pool, SharedReceiveQueue]:
        count = 120
        iova = 0x40000000 + index * 0x8000000
        region = self.node.region(self.pd, Pool.size(count, self.room), iova=iova, guard=512)
        return Pool(region, count, self.room), self.node.srq(self.pd, count, xrcd=xrcd, cq=cq)

    def queues(self) -> list[tuple[Pool, SharedReceiveQueue]]:
        return [(self.pool, self.srq), *zip(self.xpools, self.xsrqs, strict=True)]


class Side:
    """An end of a line, or a UD queue pair."""

    peer: "Side | None" = None

    def __init__(self, walk: "MixedWalk", kit: Kit, kind: int, number: int, shared: bool) -> None:
        rng = walk.rng
        self.walk, self.kit, self.kind, self.node = walk, kit, kind, kit.node
        self.name = f"{NAMES[kind]}{'*' if shared else ''} {'ABCDEFGHIJKLMNOP'[number]}"
        self.shared = shared
        self.source, self.target_size = 8 * walk.mtu, 6 * walk.mtu + CELLS
        size = self.source + self.target_size
        iova = 0x1000000 * (number + 1)
        memory = self.node.region(kit.pd, size, 31 | 768, iova=iova, guard=512)
        self.mirror = bytearray(rng.randbytes(size))
        memory.put(0, bytes(self.mirror))
        self.memory = Memory(iova, self.mirror)
        self.memory.keys[memory.key] = (0, size)
        self.end = End(
            self.node, 0, (64, 64, 4, 4, 128), kind, pd=kit.pd, cq=kit.cq if rng.random() < 0.5 else None,
            memory=memory, srq=kit.srq if shared else None, xrcd=kit.xrcd if kind == QPT_XRC_RECV else None,
        )  # fmt: skip
        self.qp = self.end.qp
        count = 24
        results = self.node.region(kit.pd, Pool.size(64, 3 * walk.mtu), 1, iova=iova + 0x800000, guard=512)
        self.results = Pool(results, 64, 3 * walk.mtu)
        arrivals = self.node.region(kit.pd, Pool.size(count, kit.room), 1, iova=iova + 0xC00000, guard=512)
        self.own = Pool(arrivals, count, kit.room)
        self.window = self.node.port.regions.allocate_window(kit.pd, 2) if kind in (QPT_RC, QPT_UC) else None
        self.opening = (0, 0)
        self.tag = 0
        self.members: list[Side] = []
        self.receiver: Receiver | None = self._receiver()
        self.base: dict[int, tuple[int, int]] = {}
        self.restart()

    def _receiver(self) -> Receiver | None:
        slots: deque[Slot] | None = None if self.shared else deque()
        room, left = self.kit.room, self.kit.srq.ring.count
        if self.kind == QPT_UD:
            return Datagrams(slots, room, left)
        return Stream(slots, room, left, mtu=self.walk.mtu) if self.kind == QPT_UC else None

    def restart(self) -> None:
        """A new connection: nothing is posted, and what the counters say is where they begin."""
        self.tag += 1
        self.works: list[Work] = []
        self.retired = 0
        self.recovered = 0  # requests before this one that were not done by then have been flushed
        self.failed = -1
        self.ahead = bytearray()  # of the peer's target, for reliable lines
        self.expected: dict[int, deque[Work]] = {}
        self.taken: Counter[int] = Counter()  # completions of receives: SUCCESS, and others
        self.base = {op: self.end.count(op) for op in OP_NAMES}
        self.open_state = "closed"
        self.written = self.receiver.tally.written if self.receiver is not None else 0
        self.stopped = False

    @property
    def room(self) -> int:
        return 24 - (len(self.works) - self.retired)

    @property
    def reliable(self) -> bool:
        return self.kind in RELIABLE

    def count(self, op: int) -> tuple[int, int]:
        done, errors = self.end.count(op)
        before = self.base[op]
        return done - before[0], errors - before[1]

    # -- receives

    def post_receive(self, small: bool = False) -> None:
        """One for the side's own queue."""
        room = self.own.room if not small else self.walk.rng.randrange(self.own.room // 2)
        slot = draw_slot(self.walk.rng, self.own, room)
        if slot is None:
            return
        self.qp.post_recv(receive_of(self.own, slot, self.tag))
        receiver = self.receiver
        if receiver is not None and receiver.slots is not None:
            receiver.slots.append(slot)
            if self.qp.state == ERR:
                receiver.flush()

    # -- posting

    def post(self, works: list[Work]) -> None:
        """Posts them, as a list or one by one."""
        wrs = []
        for work in works:
            self.walk.note(f"{self.name} posts {work}")
            wrs.append(self._wr(work))
            self.works.append(work)
        if self.walk.rng.random() < 0.5:
            for wr, following in itertools.pairwise(wrs):
                wr.next_wr = following
            wrs = wrs[:1]
        for wr in wrs:
            self.qp.post_send(wr)

    def _wr(self, work: Work) -> SendWR:
        rng = self.walk.rng
        flags = SIGNALED if work.signaled else 0
        if ((work.writes or work.atomic) and self._reads_pending(work)) or work.opcode == WR_SEND_INV:
            flags |= FENCE  # a READ may be answered after what follows it (IBA 10.8.3.3)
        if work.takes and rng.random() < 0.3:
            flags |= SOLICITED
        if (work.sends or work.writes) and not work.fault and work.length <= 128 and rng.random() < 0.3:
            flags |= INLINE
        region = self.results.region if work.reads else self.end.memory
        elements = [SGE(region.iova + offset, size, region.key) for offset, size in work.places]  # type: ignore[attr-defined]
        if work.fault == "lkey":
            elements = [*elements[:-1], SGE(self.end.memory.iova, max(work.places[-1][1], 1), 0xBAD00)]
        number = self.tag << 32 | work.number
        more: dict[str, Any] = {}
        if self.kind == QPT_UD:
            target = work.target
            assert target is not None
            handle = self.end.handle(GROUP if work.group else target.node.gid)
            key = rng.choice((*[self.walk.qkey] * 8, 1 << 31, self.walk.qkey ^ 1 << rng.randrange(31)))
            more = {"handle": handle, "qpn": 0xFFFFFF if work.group else target.qp.qp_num, "qkey": key}
        elif self.kind == QPT_XRC_SEND:
            kit = self.peer.kit  # type: ignore[union-attr]
            more = {"srqn": kit.xsrqs[kit.xpools.index(work.pool or kit.xpools[0])].srq_num}
        wr = self.end.wr(
            work.opcode, flags=flags, wr_id=number, imm=work.imm, add=work.add, swap=work.swap, sg=elements,
            to=work.to, rkey=work.key, **more,
        )  # fmt: skip
        if work.opcode == WR_BIND:
            start, length = self.opening
            memory = self.end.memory
            info = SimpleNamespace(mr=memory.mr, addr=memory.iova + start, length=length, mw_access_flags=6)
            wr.set_bind_wr(self.window, info)
        elif work.opcode == WR_FLUSH:
            wr.set_wr_flush(work.key, self.peer.end.memory.iova + work.to, work.length, rng.choice((1, 2, 3)), 0)  # type: ignore[union-attr]
        return wr

    def _reads_pending(self, work: Work) -> bool:
        end = work.to + work.length
        return any(
            other.reads and other.to < end and work.to < other.to + other.length for other in self.works[self.retired :]
        )

    # -- completions of requests

    def on_send(self, wc: WC) -> None:
        tag, number = divmod(wc.wr_id, 1 << 32)
        check(tag == self.tag, f"{self.name}: a completion from before the reset")
        check(self.retired <= number < len(self.works), f"{self.name}: request #{number} completed out of order")
        for work in self.works[self.retired : number]:
            check(not work.signaled, f"{self.name}: {work} is signaled and made no completion")
            self._retire(work, SUCCESS)
        work = self.works[number]
        check(work.signaled or wc.status != SUCCESS, f"{self.name}: {work} succeeded and made a completion")
        if wc.status == SUCCESS:
            check(wc.opcode == WC_OPCODES[work.opcode], f"{self.name}: {work}: opcode {wc.opcode}")
        else:
            check(wc.reason, f"{self.name}: {work}: status {wc.status} without a reason")
            self.walk.tally[f"status {wc.status}"] += 1
        self._retire(work, wc.status)
        self._check_order(number)

    def _retire(self, work: Work, status: int) -> None:
        work.status = status
        self.retired = work.number + 1
        if status == SUCCESS:
            check(not work.fault, f"{self.name}: {work} succeeded")
            check(self.failed < self.recovered, f"{self.name}: {work} succeeded after a failure")
            self.walk.tally[f"{NAMES[self.kind]} {WORDS[work.opcode]}"] += 1
        elif self.failed < self.recovered:
            self.failed = work.number
            self.on_failure(work, status)
        else:
            check(status == FLUSH_ERR, f"{self.name}: {work} ended with {status} after a failure")
        if work.result is not None:
            slot = self.results.take_back(work.result.number, self.name)
            if status == SUCCESS:
                slot.put(work.data)
                check(self.results.found(slot) == slot.image, f"{self.name}: {work} has brought something else")
        if work.opcode == WR_BIND:
            self.open_state = "open" if status == SUCCESS else "closed"
        elif work.opcode == WR_LOCAL_INV and status == SUCCESS:
            self.open_state = "closed"

    def on_failure(self, work: Work, status: int) -> None:
        """The first request since the start, or since RTS, that did not succeed."""
        possible = {LOC_PROT_ERR} if work.fault == "lkey" else {10} if work.fault == "rkey" else set()
        if self.reliable:
            possible |= {12}
        if self.walk.is_troubled(self):
            possible |= {FLUSH_ERR}
        check(status in possible, f"{self.name}: {work} ended with status {status}")
        if self.reliable:
            self.walk.break_line(self, work, status)

    def _check_order(self, number: int) -> None:
        for op in (SEND, WRITE, READ):
            found = sum(self.count(op))
            least = sum(BIT.get(work.opcode) == op for work in self.works[: number + 1])
            most = sum(BIT.get(work.opcode) == op for work in self.works)
            check(least <= found <= most, f"{self.name}: {found} counted after request #{number}")

    # -- completions of receives

    def on_receive(self, wc: WC, pool: Pool) -> None:
        tag, number = divmod(wc.wr_id ^ RECEIVES, 1 << 32)
        check(pool is not self.own or tag == self.tag, f"{self.name}: a receive from before the reset")
        slot = pool.take_back(number, self.name)
        self.taken[SUCCESS if wc.status == SUCCESS else -1] += 1
        if self.receiver is not None:
            check(self.receiver.due, f"{self.name}: receive #{number} completed with {wc.status}, and nothing had come")
            self._check_arrival(wc, slot, pool, self.receiver.due.popleft())
        elif wc.status == SUCCESS:
            self._check_reliable(wc, slot, pool)
        else:
            check(self.walk.is_broken(self), f"{self.name}: receive #{number} ended with {wc.status}")

    def _check_arrival(self, wc: WC, slot: Slot, pool: Pool, arrival: Arrival) -> None:
        check(arrival.slot is None or arrival.slot is slot, f"{self.name}: not the oldest receive was taken")
        check(wc.status == arrival.status, f"{self.name}: receive ended with {wc.status}, not {arrival.status}")
        if wc.status == SUCCESS:
            found = wc.opcode, wc.byte_len, wc.wc_flags, wc.src_qp
            right = arrival.opcode, arrival.length, arrival.flags, arrival.source
            check(found == right, f"{self.name}: receive: {found} instead of {right}")
            check(wc.imm_data == arrival.imm or not arrival.flags & 2, f"{self.name}: immediate data differ")
        content = arrival.content
        if self.kind == QPT_UD and wc.status == SUCCESS:
            there = b"".join(pool.region.at(*place) for place in slot.places)  # type: ignore[attr-defined]
            content = there[:GRH] + content
        slot.put(content)
        check(pool.found(slot) == slot.image, f"{self.name}: a receive holds something else")
        self.walk.tally[f"{NAMES[self.kind]} received"] += wc.status == SUCCESS

    def _check_reliable(self, wc: WC, slot: Slot, pool: Pool) -> None:
        assert self.peer is not None
        waiting = self.peer.expected.get(id(pool))
        check(waiting, f"{self.name}: a receive got a message that nobody sent")
        work = waiting.popleft()  # type: ignore[union-attr]
        flags = {WR_SEND: 0, WR_SEND_IMM: 2, WR_WRITE_IMM: 2, WR_SEND_INV: 8}[work.opcode]
        found = wc.opcode, wc.byte_len, wc.wc_flags, wc.imm_data if flags else 0
        right = 128 if work.sends else 129, work.length, flags, work.imm
        check(found == right, f"{self.name}: receive of {work}: {found} instead of {right}")
        if work.sends:
            slot.put(work.data)
        check(pool.found(slot) == slot.image, f"{self.name}: {work} has brought something else")
        if work.opcode == WR_SEND_INV:
            self.open_state = "closed"

    # -- when all is quiet

    def check_counters(self, broken: bool) -> None:
        for op in (SEND, WRITE, READ):
            mine = [work for work in self.works[: self.retired] if BIT.get(work.opcode) == op]
            done = sum(work.status == SUCCESS for work in mine)
            self._count(op, (done, len(mine) - done))
        self._count(RECV, (self.taken[SUCCESS], self.taken[-1]))
        if self.kind == QPT_UC:
            self._count(REMOTE_WRITE, (self.receiver.tally.written - self.written, 0))  # type: ignore[union-attr]
        if self.kind in (QPT_UC, QPT_UD):
            self._count(REMOTE_READ, (0, 0))
            check(not self.receiver.due, f"{self.name}: {len(self.receiver.due)} messages have not been received")  # type: ignore[union-attr]
        if self.kind in (QPT_RC, QPT_XRC_RECV):
            self._check_remote(broken)

    def _check_remote(self, broken: bool) -> None:
        works = self.peer.works  # type: ignore[union-attr]
        for op, kind in ((REMOTE_WRITE, "writes"), (REMOTE_READ, "reads")):
            mine = [work for work in works if getattr(work, kind)]
            least = sum(work.status == SUCCESS for work in mine)
            done, errors = self.count(op)
            right = least <= done <= len(mine) if broken else done == least
            check(right and not errors, f"{self.name}: counter {OP_NAMES[op]} is {(done, errors)}, not {least}")

    def _count(self, op: int, right: tuple[int, int]) -> None:
        check(self.count(op) == right, f"{self.name}: counter {OP_NAMES[op]} is {self.count(op)}, not {right}")

    def check_memory(self) -> None:
        memory = self.end.memory
        check(memory.at(0, memory.size) == self.mirror, f"{self.name}: its memory holds something else")
        for region in (memory, self.results.region, self.own.region):
            check(region.untouched(), f"{self.name}: something wrote beside a region")  # type: ignore[attr-defined]

    @property
    def ready(self) -> bool:
        return self.qp.state == RTS


def draw_slot(rng: Random, pool: Pool, room: int) -> Slot | None:
    parts = rng.randint(1, 4)
    cuts = sorted(rng.randint(0, room) for _ in range(parts - 1))
    sizes = [end - start for start, end in itertools.pairwise([0, *cuts, room])]
    return pool.slot(sizes, [rng.randrange(12) for _ in sizes])


def receive_of(pool: Pool, slot: Slot, tag: int) -> RecvWR:
    region: Any = pool.region
    elements = [SGE(region.iova + offset, length, region.key) for offset, length in slot.places]
    return RecvWR(RECEIVES | tag << 32 | slot.number, len(elements), elements)


__all__ = ["GROUP", "RECEIVES", "RELIABLE", "UNTOUCHED", "Kit", "Side", "Work", "draw_slot", "receive_of"]
