# SPDX-License-Identifier: MIT
"""A mixed walk: lines of every type beside each other, with shared receive queues, XRC, groups and memory windows.

Two nodes; on each a shared receive queue and an XRC domain; between them a few lines (RC, UC, XRC) and UD queue pairs.
What reliable lines do is known beforehand; what unreliable ones do is known from the frames that arrive (receivers.py).
Every completion is checked when it comes, everything else when all is quiet.
"""

from collections import Counter
from random import Random
from typing import Any

from tests.netsim import frames
from tests.netsim.pair import (
    WR_BIND,
    WR_FLUSH,
    WR_LOCAL_INV,
)
from tests.netsim.sim import (
    ERR,
    MS,
    QPT_RC,
    QPT_UC,
    QPT_UD,
    QPT_XRC_RECV,
    QPT_XRC_SEND,
    RESET,
    RTS,
    SQD,
    SQE,
    US,
    Node,
    Sim,
    connect,
    move,
)
from tests.walk.drawing import draw, pool_of
from tests.walk.model import WalkError, check
from tests.walk.plan import Trace
from tests.walk.receivers import GROUP_QP, Datagrams, Pool, Stream
from tests.walk.sides import (
    DRAWS,
    GROUP,
    RECEIVES,
    RELIABLE,
    Kit,
    Side,
    Work,
    draw_slot,
    receive_of,
)

ACCESS = 15 | 768
TROUBLES = {
    QPT_RC: ("err", "lkey", "rkey", "sqd", "port"), QPT_UC: ("err", "lkey", "small", "reset", "sqd", "port"),
    QPT_UD: ("err", "lkey", "small", "reset", "sqd", "port"), QPT_XRC_SEND: ("err", "lkey", "rkey", "sqd", "port"),
    QPT_XRC_RECV: ("err",),
}  # fmt: skip


COMM_EST, PORT_ACTIVE, PORT_ERR, SRQ_LIMIT_REACHED, LAST_WQE_REACHED = 4, 9, 10, 15, 16


class Line:
    """A connection. ``trouble``: something was done to it; ``broken``: it has failed."""

    def __init__(self, a: Side, b: Side) -> None:
        self.sides = (a, b)
        self.trouble = self.broken = False
        a.peer, b.peer = b, a
        a.end.peer, b.end.peer = b.end, a.end


class MixedWalk:
    """One walk, of one seed."""

    def __init__(self, seed: int, say: bool = False) -> None:
        self.seed = seed
        self.rng = rng = Random(seed)
        self.trace = Trace(say)
        self.tally: Counter[str] = Counter()
        self.path_mtu = rng.randint(1, 4)
        self.mtu = 128 << self.path_mtu
        self.qkey = rng.getrandbits(31)
        self.sim = Sim(ear=self._hear)
        self.sim.tap = self._tap
        self.genuine: set[bytes] = set()
        self.quiet = False
        chance = rng.choice((0.0, 0.02, 0.07, 0.1))
        faults: dict[str, Any] = dict.fromkeys(("drop", "duplicate", "reorder", "corrupt"), chance)
        if rng.random() < 0.3:
            faults["delay"] = rng.choice((20 * US, MS))
        nodes = [self.sim.node(seed=rng.randrange(1 << 16), **faults) for _ in range(rng.choice((1, 2, 2, 2)))]
        self.kits = {node: Kit(self, node) for node in nodes}
        self.sides: list[Side] = []
        self.lines: list[Line] = []
        for kind in rng.choices((QPT_RC, QPT_UC, QPT_UD, QPT_XRC_SEND), (3, 4, 3, 3), k=rng.randint(2, 4)):
            self._add_line(kind, nodes)
        self.by_number = {(side.node, side.qp.qp_num): side for side in self.sides}
        self.fault: tuple[Side, str] | None = None
        self.armed: Counter[Any] = Counter()  # limits of shared queues
        self.moved: Counter[Node] = Counter()  # changes of the state of ports
        self.resets = Counter[Node]()

    def _add_line(self, kind: int, nodes: list[Node]) -> None:
        rng = self.rng
        ends = [self.kits[nodes[0]], self.kits[nodes[-1]]]
        rng.shuffle(ends)
        sides = []
        for index, kit in enumerate(ends):
            each = QPT_XRC_RECV if kind == QPT_XRC_SEND and index else kind
            shared = each in (QPT_RC, QPT_UC, QPT_UD) and rng.random() < 0.4
            sides.append(Side(self, kit, each, len(self.sides), shared))
            self.sides.append(sides[-1])
            kit.unreliable |= shared and each in (QPT_UC, QPT_UD)
            if each == QPT_UD and rng.random() < 0.5:
                sides[-1].qp.attach_mcast(GROUP, 0)
                sides[-1].members.append(sides[-1])
        if kind != QPT_UD:
            self.lines.append(Line(*sides))

    def note(self, what: str) -> None:
        self.trace.event(self.sim.now, what)

    # -- the wire

    def _tap(self, node: Node, frame: bytes) -> list[bytes]:
        self.trace.frame(self.sim.now, node, frame)
        self.genuine.add(covered(frame))
        if frames.bth(frame).qpn == GROUP_QP:
            self._keep_supplied(node)
            self._group(node, frame)  # a device gives its own members their copies by itself
        return [frame]

    def _hear(self, node: Node, dgid: bytes, frame: bytes) -> None:
        if covered(frame) not in self.genuine or not node.port.up:
            return
        self._keep_supplied(node)
        number = frames.bth(frame).qpn
        if dgid == GROUP:
            if number == GROUP_QP:
                self._group(node, frame)
            return
        side = self.by_number.get((node, number))
        if side is None:
            return
        if isinstance(side.receiver, Stream):
            self._note_window(side)
            side.receiver.hear(side.qp.state, frame, side.memory)
        elif isinstance(side.receiver, Datagrams):
            side.receiver.qkey = self.qkey
            side.receiver.hear(side.qp.state, frame)

    def _group(self, node: Node, frame: bytes) -> None:
        for side in self.sides:
            if side.node is node and side.members and isinstance(side.receiver, Datagrams):
                side.receiver.qkey = self.qkey
                side.receiver.hear(side.qp.state, frame)

    @staticmethod
    def _note_window(side: Side) -> None:
        """What the window of a UC side opens now."""
        window, memory = side.window, side.end.memory
        assert window is not None
        side.memory.keys = {memory.key: (0, memory.size)}
        if window.valid:
            side.memory.keys[window.rkey] = side.opening

    def _keep_supplied(self, node: Node) -> None:
        """A shared queue that unreliable queue pairs take from does not run dry: who found it dry cannot be known."""
        kit = self.kits[node]
        if kit.unreliable and kit.srq.ring.count() < 12:
            self._supply_queue(kit.pool, kit.srq, 16)

    # -- memory windows

    def _turn_window(self, side: Side) -> None:
        """Opens the window of a side, or closes it."""
        rng, window = self.rng, side.window
        if window is None or not side.ready or side.room < 2 or rng.random() < 0.5:
            return
        peer = side.peer
        assert peer is not None
        if side.open_state == "closed" and not window.valid:
            start = rng.randint(side.source, side.end.memory.size - 65)
            side.opening = start, rng.randint(1, side.end.memory.size - start - 64)
            side.open_state = "binding"
            side.post([Work(len(side.works), WR_BIND, 0, signaled=True)])
        elif side.open_state == "open" and (side.kind == QPT_UC or peer.retired == len(peer.works)):
            self._invalidate(side)
        elif side.open_state == "closed":
            self._invalidate(side)  # it was bound before the connection was made anew

    @staticmethod
    def _invalidate(side: Side) -> None:
        side.open_state = "closing"
        side.post([Work(len(side.works), WR_LOCAL_INV, 0, signaled=True, imm=side.window.rkey)])  # type: ignore[union-attr]

    # -- the walk

    def run(self) -> str:
        """Walks to the end; the hash of everything that happened. WalkError says what was wrong, and where."""
        try:
            with self.sim:
                for side in self.sides:
                    if side.kind == QPT_UD:
                        self._connect_alone(side)
                for line in self.lines:
                    self._connect(line)
                for _ in range(self.rng.choice((1, 2, 3))):
                    self._epoch()
        except Exception as error:
            command = f"python -m tests.walk --mixed --seed {self.seed} -v"
            raise WalkError(f"seed {self.seed}: {error!r}; {command}") from error
        return self.trace.hash.hexdigest()

    def _connect(self, line: Line) -> None:
        line.trouble = line.broken = False
        psns = {side: self.rng.choice((0, 0xFFFFFF, self.rng.randrange(1 << 24))) for side in line.sides}
        for side in line.sides:
            side.restart()
            assert side.peer is not None
            side.ahead = bytearray(side.peer.mirror)
            self._reconnect(side, psns[side], psns[side.peer])

    def _reconnect(self, side: Side, sq_psn: int, rq_psn: int) -> None:
        values = {
            "path_mtu": self.path_mtu, "qp_access_flags": ACCESS, "sq_psn": sq_psn, "rq_psn": rq_psn, "timeout": 11,
            "retry_cnt": 7, "rnr_retry": 7, "min_rnr_timer": 6,
        }  # fmt: skip
        peer = side.peer
        assert peer is not None
        connect(side.qp, peer.qp, side.node, peer.node, values.items())
        if isinstance(side.receiver, Stream):
            side.receiver.restart(rq_psn)

    def _connect_alone(self, side: Side) -> None:
        side.restart()
        connect(side.qp, None, side.node, None, qkey=self.qkey)

    def _epoch(self) -> None:
        rng = self.rng
        trouble = None
        if rng.random() < 0.6:
            side = rng.choice(self.sides)
            trouble = rng.choice(TROUBLES[side.kind]), side
        turns = rng.randint(6, 20)
        moment = rng.randrange(turns)
        for turn in range(turns):
            if trouble is not None and turn == moment:
                self._begin_trouble(*trouble)
            self._turn()
        self._finish()
        self._check()
        for side in self.sides:
            if side.kind == QPT_UD and side.qp.state == ERR:
                self._reset(side)
        for line in self.lines:
            if any(side.qp.state == ERR for side in line.sides) or rng.random() < 0.3:
                self._renew(line)

    def _turn(self) -> None:
        rng = self.rng
        for side in self.sides:
            self._turn_window(side)
            if DRAWS[side.kind] and side.room > 0 and rng.random() < 0.7 and side.qp.state in (RTS, SQD, ERR):
                works = []
                for _ in range(min(rng.randint(1, 5), side.room)):
                    work = self.draw_into(side, works)
                    if work is None:
                        break
                if works:
                    side.works = side.works[: len(side.works) - len(works)]
                    side.post(works)
        self._supply(rng.random() < 0.7)
        if rng.random() < 0.1:
            self._turn_queue()
        self.sim.run_for(rng.choice((0, 0, 20 * US, 300 * US, 3 * MS)))
        self._collect()

    def draw_into(self, side: Side, works: list[Work]) -> Work | None:
        """Draws one more of a list that is posted at once."""
        work = draw(self, side)
        if work is not None:
            works.append(work)
            side.works.append(work)
        return work

    def _supply(self, generous: bool) -> None:
        """Posts receives: some, or as many as there will be messages."""
        rng = self.rng
        for side in self.sides:
            if side.shared or side.kind in (QPT_XRC_SEND, QPT_XRC_RECV) or side.qp.state == RESET:
                continue
            waiting = len(side.own.posted)
            for _ in range(max(0, (12 if generous else rng.randrange(3)) - waiting)):
                side.post_receive()
        for kit in self.kits.values():
            for pool, srq in kit.queues():
                enough = 16 if generous or kit.unreliable else rng.randrange(4)
                self._supply_queue(pool, srq, enough)

    def _supply_queue(self, pool: Pool, srq: Any, enough: int) -> None:
        while srq.ring.count() < min(enough, srq.max_wr):
            slot = draw_slot(self.rng, pool, pool.room)
            if slot is None:
                return
            srq.post_recv(receive_of(pool, slot, 0))

    def _turn_queue(self) -> None:
        """Another size of a shared queue, or a limit."""
        rng = self.rng
        kit = rng.choice(list(self.kits.values()))
        _, srq = rng.choice(kit.queues())
        if rng.random() < 0.5:
            srq.modify(rng.randint(max(srq.ring.count(), 16), 120), None)
            return
        limit = rng.randint(1, srq.max_wr)
        self.note(f"limit {limit} of a queue with {srq.ring.count()}")
        srq.modify(None, limit)
        self.armed[srq] += 1

    # -- troubles

    def _begin_trouble(self, kind: str, side: Side) -> None:
        self.note(f"trouble: {kind} at {side.name}")
        self.tally[f"trouble {kind}"] += 1
        line = self._line(side)
        if line is not None and kind not in ("sqd", "port"):
            line.trouble = True
        if kind in ("lkey", "rkey"):
            self.fault = side, kind
        elif kind == "small":
            if not side.shared and not side.members:
                side.post_receive(small=True)
        elif kind == "sqd":
            if side.qp.state == RTS:
                move(side.qp, SQD)
                self.sim.after(self.rng.randrange(5 * MS), lambda: self._wake(side))
        elif kind == "port":
            self._set_port(side.node, False)
            self.sim.after(self.rng.randrange(3 * MS), lambda: self._set_port(side.node, True))
        elif kind == "err":
            self._stop(side)
        else:
            self._reset(side)

    def _set_port(self, node: Node, up: bool) -> None:
        self.moved[node] += node.port.up != up
        node.port.set_state(up)

    @staticmethod
    def _wake(side: Side) -> None:
        if side.qp.state == SQD:
            move(side.qp, RTS)

    def _stop(self, side: Side) -> None:
        line = self._line(side)
        if line is not None and side.kind in RELIABLE:
            line.broken = True
        side.stopped = True
        move(side.qp, ERR)
        if side.receiver is not None:
            side.receiver.flush()

    def _line(self, side: Side) -> Line | None:
        return next((line for line in self.lines if side in line.sides), None)

    def is_broken(self, side: Side) -> bool:
        line = self._line(side)
        return side.qp.state == ERR or (line is not None and line.broken)

    def is_troubled(self, side: Side) -> bool:
        """Whether something was done to it, or to its peer: what is left may be flushed though nothing of it failed."""
        line = self._line(side)
        return side.qp.state == ERR and (side.receiver is not None or (line is not None and line.trouble))

    def break_line(self, side: Side, work: Work, status: int) -> None:
        """A request of a reliable line has failed."""
        line = self._line(side)
        assert line is not None
        if not line.trouble and not line.broken:
            check(status == 12, f"{side.name}: {work} ended with {status}, and nothing was done to it")
            self.tally["bad luck"] += 1
        line.broken = True

    def _recover(self) -> None:
        """From SQE to RTS."""
        for side in self.sides:
            if side.qp.state == SQE:
                check(side.retired == len(side.works), f"{side.name}: in SQE with requests that are not done")
                side.recovered = len(side.works)
                move(side.qp, RTS)
                self.tally["recovered"] += 1

    def _reset(self, side: Side) -> None:
        """RESET, and to RTS at once: what was posted counts nowhere. Frames of before may still be on the way."""
        self._collect()
        done = sum(sum(side.count(op)) for op in (1, 4, 16))
        least, most = self._counted(side.works[: side.retired]), self._counted(side.works)
        check(least <= done <= most, f"{side.name}: {done} requests counted before the reset")
        move(side.qp, RESET)
        self._forget(side)
        side.restart()
        if side.kind == QPT_UD:
            connect(side.qp, None, side.node, None, qkey=self.qkey)
        else:
            self._reconnect(side, self.rng.randrange(1 << 24), self.rng.randrange(1 << 24))
            assert side.peer is not None
            side.ahead = bytearray(side.peer.mirror)

    @staticmethod
    def _counted(works: list[Work]) -> int:
        return sum(work.opcode not in (WR_BIND, WR_LOCAL_INV, WR_FLUSH) for work in works)

    def _forget(self, side: Side) -> None:
        """A reset has dropped everything that was posted to the side's own queues."""
        for pool in (side.own, side.results):
            for slot in list(pool.posted.values()):
                pool.take_back(slot.number, side.name)
        receiver = side.receiver
        if receiver is not None:
            receiver.due.clear()
            if receiver.slots is not None:
                receiver.slots.clear()
        self.resets[side.node] += 1

    def _renew(self, line: Line) -> None:
        self._collect()
        for side in line.sides:
            move(side.qp, RESET)
            self._forget(side)
        self._connect(line)

    # -- silence

    def _finish(self) -> None:
        """Lets everything that was posted be done."""
        self.fault = None
        for _ in range(4000):
            self._supply(True)
            self._collect()
            self._recover()
            for side in self.sides:
                self._wake(side)
                # One that makes a completion says that those before it are done; in ERR too, where it is flushed.
                if side.qp.state in (RTS, ERR) and side.works and not side.works[-1].signaled:
                    work = draw(self, side, last=True)
                    if work is not None:
                        side.post([work])
            if all(side.retired == len(side.works) for side in self.sides):
                break
            self.sim.run_for(2 * MS)
        else:
            raise WalkError("requests are never done")
        self._supply(True)
        self.sim.settle()
        self._collect()

    def _collect(self) -> None:
        """Takes every completion; does not let time pass."""
        pools = {id(cq): pool for kit in self.kits.values() for cq, pool in zip(kit.xcqs, kit.xpools, strict=True)}
        queues = {id(side.end.cq): (side.node, side.end.cq) for side in self.sides}
        for node, kit in self.kits.items():
            queues.update({id(cq): (node, cq) for cq in (kit.cq, *kit.xcqs)})
        for node, cq in queues.values():
            while cq.count():
                for wc in cq.poll(32):
                    self._on_completion(self.by_number[node, wc.qp_num], wc, pools.get(id(cq)))

    def _on_completion(self, side: Side, wc: Any, pool: Pool | None) -> None:
        receive = wc.wr_id >= RECEIVES
        what = "receive" if receive else "request"
        self.note(f"{side.name} {what} #{wc.wr_id & 0xFFFFFFFF}: status {wc.status} {wc.reason}")
        self.tally["completions"] += 1
        if receive:
            side.on_receive(wc, pool or pool_of(side))
        else:
            check(pool is None, f"{side.name}: a request completed in the queue of an SRQ")
            side.on_send(wc)

    # -- checks

    def _check(self) -> None:
        for line in self.lines:
            self._check_line(line)
        for side in self.sides:
            line = self._line(side)
            side.check_counters(line is not None and line.broken)
            side.check_memory()
        for kit in self.kits.values():
            self._check_queues(kit)
            self._check_events(kit)
        self.tally["epochs"] += 1

    def _check_events(self, kit: Kit) -> None:
        """None that has no reason; those of ports and limits exactly."""
        events = Counter(kit.node.events())
        for (kind, element), count in events.items():
            self.tally[f"event {kind}"] += count
            side = self.by_number.get((kit.node, getattr(element, "qp_num", -1)))
            if kind in (PORT_ERR, PORT_ACTIVE):
                continue
            if kind == SRQ_LIMIT_REACHED:
                check(count <= self.armed[element], f"{count} events of a limit, armed {self.armed[element]} times")
                self.armed[element] -= count
            elif kind == LAST_WQE_REACHED:
                check(side is not None and side.shared, "the last receive of a queue that is not shared")
            elif kind != COMM_EST:
                trouble = side is not None and (self.is_broken(side) or side.qp.state == ERR)
                check(trouble, f"event {kind} of {side.name if side else element}, which works")
        changes = events[PORT_ERR, kit.node.port] + events[PORT_ACTIVE, kit.node.port]
        check(
            changes == self.moved[kit.node], f"{changes} events of a port that was moved {self.moved[kit.node]} times"
        )
        self.moved[kit.node] = 0
        for _, srq in kit.queues():
            limit = srq.query()[2]
            check(
                srq.ring.count() >= limit, f"{srq.ring.count()} receives are left, the limit is {limit}, and no event"
            )
            if limit == 0:
                self.armed[srq] = 0

    def _check_line(self, line: Line) -> None:
        if not any(side.kind in RELIABLE for side in line.sides):
            return
        self.tally["lines"] += 1
        self.tally["broken lines"] += line.broken
        failed = any(side.qp.state == ERR for side in line.sides)
        check(line.broken or not failed, f"{line.sides[0].name}: in ERR, and nothing has failed")
        for side in line.sides:
            peer = side.peer
            assert peer is not None
            if line.broken:
                peer.mirror[peer.source :] = peer.end.memory.at(peer.source, peer.target_size)
                continue
            check(not any(side.expected.values()), f"{side.name}: messages have not been received")
            if side.kind != QPT_XRC_RECV:
                peer.mirror[:] = side.ahead

    def _check_queues(self, kit: Kit) -> None:
        """What the shared queues hold is what was posted and not taken."""
        for pool, srq in kit.queues():
            held = sum(
                isinstance(side.receiver, Stream) and side.receiver.taken
                for side in self.sides if side.kit is kit and side.shared and pool is kit.pool
            )  # fmt: skip
            missing = len(pool.posted) - srq.ring.count() - held
            # A message that its sender never ended, and one that a reset has dropped, have their receive.
            cut = sum(side.kit is kit and side.reliable and self.is_broken(side) for side in self.sides)
            most = self.resets[kit.node] + cut
            check(0 <= missing <= most, f"a shared queue has lost {missing} receives")
            held += missing
            check(pool.region.untouched(), "something wrote beside a shared queue's memory")  # type: ignore[attr-defined]
            touched = sum(pool.found(slot) != slot.image for slot in pool.posted.values())
            check(touched <= held, f"{touched} receives of a shared queue were written to, {held} are in hand")


def covered(frame: bytes) -> bytes:
    """What the ICRC protects: all but the byte with FECN and BECN (annex A17.3.3)."""
    return frame[:4] + frame[5:]


__all__ = ["MixedWalk"]
