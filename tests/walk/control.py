# SPDX-License-Identifier: MIT
"""A walk over the control verbs: objects of every kind are made, used, connected, broken and closed in any order.

What stands on what is all the model knows: an object with users is busy, any other can be closed, at any time, in the
midst of traffic. At the end nothing is left, and the device has as much room as at the beginning.
"""

import errno
from collections import Counter
from random import Random
from typing import Any

from tests.netsim.pair import WR_BIND, WR_READ, WR_SEND, WR_WRITE, WR_WRITE_IMM
from tests.netsim.sim import (
    ALL,
    ERR,
    QPT_RC,
    QPT_UC,
    QPT_UD,
    QPT_XRC_RECV,
    QPT_XRC_SEND,
    RESET,
    RTS,
    US,
    Node,
    Region,
    Sim,
    connect,
    move,
)
from tests.walk.model import WalkError, check
from tests.walk.plan import Trace

from softverbs.core.base.errors import PyverbsRDMAError
from softverbs.core.queues.completion import CompChannel
from softverbs.core.queues.wr import SGE, RecvWR, SendWR
from softverbs.core.transport.qp import QueuePair

KINDS = (QPT_RC, QPT_UC, QPT_UD, QPT_XRC_SEND, QPT_XRC_RECV)
GROUPS = [bytes(10) + b"\xff\xff\xef\1\1" + bytes([number]) for number in range(3)]
MAKES = {
    "pd": 3, "channel": 1, "cq": 4, "xrcd": 2, "srq": 3, "xsrq": 2, "mr": 4, "mw": 3, "ah": 3, "counter": 2, "qp": 8,
}  # fmt: skip


class Thing:
    """An object of the device, and what it stands on."""

    def __init__(self, kind: str, number: int, core: Any, *stands_on: "Thing | None") -> None:
        self.kind, self.number, self.core = kind, number, core
        self.stands_on = [thing for thing in stands_on if thing is not None]
        self.closed = False

    def close(self) -> None:
        if self.kind in ("mr", "mw"):
            pd = self.stands_on[0].core
            pd.port.regions.deregister(self.core.mr if self.kind == "mr" else self.core)
        elif self.kind == "ah":
            self.core.core.close()
        else:
            self.core.close()

    def __str__(self) -> str:
        return f"{self.kind} #{self.number}"


class ControlWalk:
    """One walk, of one seed."""

    def __init__(self, seed: int, say: bool = False) -> None:
        self.seed = seed
        self.rng = Random(seed)
        self.trace = Trace(say)
        self.tally: Counter[str] = Counter()
        self.sim = Sim()
        self.sim.tap = self._tap
        self.nodes = [self.sim.node(seed=number) for number in range(2)]
        self.things: dict[Node, list[Thing]] = {node: [] for node in self.nodes}
        self.numbers = 0

    def _tap(self, node: Node, frame: bytes) -> list[bytes]:
        self.trace.frame(self.sim.now, node, frame)
        return [frame]

    def run(self) -> str:
        """Walks to the end; the hash of everything that happened."""
        try:
            with self.sim:
                for _ in range(600):
                    self._turn()
                self._close_all()
        except Exception as error:
            command = f"python -m tests.walk --control --seed {self.seed} -v"
            raise WalkError(f"seed {self.seed}: {error!r}; {command}") from error
        return self.trace.hash.hexdigest()

    def _turn(self) -> None:
        rng = self.rng
        node = rng.choice(self.nodes)
        act = rng.random()
        if act < 0.22:
            self._make(node, rng.choices(tuple(MAKES), tuple(MAKES.values()))[0])
        elif act < 0.32 and self.things[node]:
            self._close(node, rng.choice(self.things[node]))
        elif act < 0.88:
            self._use(node)
        else:
            self.sim.run_for(rng.choice((0, 10 * US, 1000 * US)))
        if rng.random() < 0.1:
            self._collect(node)

    # -- making

    def _pick(self, node: Node, kind: str) -> Thing | None:
        found = [thing for thing in self.things[node] if thing.kind == kind]
        return self.rng.choice(found) if found else None

    def _make(self, node: Node, kind: str) -> None:
        thing = getattr(self, f"_make_{kind}")(node)
        if thing is None:
            return
        self.numbers += 1
        self.things[node].append(thing)
        self.trace.event(self.sim.now, f"{node.name} makes {thing}")
        self.tally[f"made {kind}"] += 1

    def _make_pd(self, node: Node) -> Thing:
        return Thing("pd", self.numbers, node.pd())

    def _make_channel(self, _: Node) -> Thing:
        return Thing("channel", self.numbers, CompChannel(lambda: None))

    def _make_cq(self, node: Node) -> Thing:
        channel = self._pick(node, "channel") if self.rng.random() < 0.3 else None
        return Thing("cq", self.numbers, node.cq(2000, channel.core if channel else None), channel)

    def _make_xrcd(self, node: Node) -> Thing:
        return Thing("xrcd", self.numbers, node.xrcd())

    def _make_srq(self, node: Node) -> Thing | None:
        pd = self._pick(node, "pd")
        return pd and Thing("srq", self.numbers, node.srq(pd.core, 20), pd)

    def _make_xsrq(self, node: Node) -> Thing | None:
        pd, xrcd, cq = (self._pick(node, kind) for kind in ("pd", "xrcd", "cq"))
        if pd is None or xrcd is None or cq is None:
            return None
        return Thing("xsrq", self.numbers, node.srq(pd.core, 20, xrcd=xrcd.core, cq=cq.core), pd, xrcd, cq)

    def _make_mr(self, node: Node) -> Thing | None:
        pd = self._pick(node, "pd")
        return pd and Thing("mr", self.numbers, node.region(pd.core, 4096, ALL), pd)

    def _make_mw(self, node: Node) -> Thing | None:
        pd = self._pick(node, "pd")
        kind = self.rng.choice((1, 2))
        return pd and Thing("mw", self.numbers, node.port.regions.allocate_window(pd.core, kind), pd)

    def _make_ah(self, node: Node) -> Thing | None:
        pd = self._pick(node, "pd")
        gid = self.rng.choice([*(other.gid for other in self.nodes), *GROUPS])
        return pd and Thing("ah", self.numbers, node.handle(pd.core, gid), pd)

    def _make_counter(self, node: Node) -> Thing:
        return Thing("counter", self.numbers, node.counter())

    def _make_qp(self, node: Node) -> Thing | None:
        rng = self.rng
        kind = rng.choice(KINDS)
        pd, cq, other, xrcd = (self._pick(node, name) for name in ("pd", "cq", "cq", "xrcd"))
        srq = self._pick(node, "srq") if rng.random() < 0.4 else None
        stands: list[Thing | None]
        if kind == QPT_XRC_RECV:
            if xrcd is None:
                return None
            qp, stands = node.qp(None, None, kind=kind, xrcd=xrcd.core), [xrcd]
        elif pd is None or cq is None or other is None:
            return None
        elif kind == QPT_XRC_SEND:
            qp, stands = node.qp(pd.core, cq.core, kind=kind), [pd, cq]
        else:
            qp = node.qp(pd.core, cq.core, other.core, kind=kind, srq=srq.core if srq else None, cap=(16, 16, 1, 1, 0))
            stands = [pd, cq, other, srq]
        counter = self._pick(node, "counter") if rng.random() < 0.3 else None
        if counter is not None:
            qp.attach_comp_cntr(counter.core, rng.randrange(1, 64), 0)
        return Thing("qp", self.numbers, qp, *stands, counter)

    # -- closing

    def _users(self, node: Node, thing: Thing) -> int:
        users = sum(other.stands_on.count(thing) for other in self.things[node])
        return users + (thing.core.mr.windows if thing.kind == "mr" else 0)

    def _close(self, node: Node, thing: Thing) -> None:
        busy = self._users(node, thing) > 0
        self.trace.event(self.sim.now, f"{node.name} closes {thing}{', which is busy' if busy else ''}")
        try:
            thing.close()
        except PyverbsRDMAError as error:
            check(busy and error.errno == errno.EBUSY, f"{thing} with {self._users(node, thing)} users: {error}")
            self.tally["busy"] += 1
            return
        check(not busy, f"{thing} was closed, though it has {self._users(node, thing)} users")
        self.things[node].remove(thing)
        self.tally[f"closed {thing.kind}"] += 1
        if thing.kind not in ("mr", "mw", "channel") and self.rng.random() < 0.3:
            thing.close()  # twice is as good as once

    def _close_all(self) -> None:
        """In any order that is possible; then as many can be made as before."""
        for node in self.nodes:
            while self.things[node]:
                free = [thing for thing in self.things[node] if not self._users(node, thing)]
                check(free, "nothing can be closed")
                self._close(node, self.rng.choice(free))
                if self.rng.random() < 0.2:
                    self.sim.run_for(0)
        self.sim.settle()
        for node in self.nodes:
            left = {kind: count for kind, count in node.port.counts.items() if count}
            check(not left and not node.port.groups.members, f"{node.name}: left: {left}")
            check(not node.port.live, f"{node.name}: queue pairs are left")

    # -- using

    def _use(self, node: Node) -> None:
        thing = self._pick(node, "qp")
        if thing is None:
            return
        qp: QueuePair = thing.core
        rng = self.rng
        act = rng.random()
        if qp.state == RESET or (qp.state == ERR and act < 0.5) or act < 0.02:
            self._connect(node, thing)
        elif act < 0.04:
            move(qp, rng.choice((ERR, RESET)))
        elif act < 0.1 and qp.qp_type == QPT_UD:
            group = rng.choice(GROUPS)
            if group in qp.groups:
                qp.detach_mcast(group, 0)
            else:
                qp.attach_mcast(group, 0)
        elif act < 0.5:
            self._receive(node, thing)
        elif qp.state >= RTS and qp.qp_type != QPT_XRC_RECV:
            self._send(node, thing)

    def _connect(self, node: Node, thing: Thing) -> None:
        """To some queue pair that may take it, or may not."""
        qp = thing.core
        if qp.state != RESET:
            move(qp, RESET)
        if qp.qp_type == QPT_UD:
            connect(qp, None, node, None)
            return
        fitting = {QPT_XRC_SEND: QPT_XRC_RECV, QPT_XRC_RECV: QPT_XRC_SEND}.get(qp.qp_type, qp.qp_type)
        others = [
            (other, peer.core) for other in self.nodes for peer in self.things[other]
            if peer.kind == "qp" and peer.core.qp_type == fitting
        ]  # fmt: skip
        if not others:
            return
        other, peer = self.rng.choice(others)
        connect(qp, peer, node, other, timeout=8, retry_cnt=2, rnr_retry=2)
        if peer.state == RESET:
            connect(peer, qp, other, node, timeout=8, retry_cnt=2, rnr_retry=2)

    def _elements(self, node: Node) -> list[SGE]:
        region = self._pick(node, "mr")
        if region is None:
            return []
        memory: Region = region.core
        start = self.rng.randrange(3000)
        return [SGE(memory.iova + start, self.rng.randrange(900), memory.key)]

    def _receive(self, node: Node, thing: Thing) -> None:
        sg = self._elements(node)
        wr = RecvWR(1, len(sg), sg)
        srqs = [other.core for other in thing.stands_on if other.kind == "srq"]
        if thing.core.qp_type == QPT_XRC_RECV:
            srqs = [other.core for other in self.things[node] if other.kind == "xsrq"]
        try:
            if srqs:
                self.rng.choice(srqs).post_recv(wr)
            elif thing.core.qp_type in (QPT_RC, QPT_UC, QPT_UD):
                thing.core.post_recv(wr)
        except PyverbsRDMAError as error:
            check(error.errno == errno.ENOMEM, str(error))

    def _send(self, node: Node, thing: Thing) -> None:
        rng, qp = self.rng, thing.core
        sg = self._elements(node)
        opcode = WR_SEND if qp.qp_type == QPT_UD else rng.choice((WR_SEND, WR_WRITE, WR_WRITE_IMM))
        if qp.qp_type in (QPT_RC, QPT_XRC_SEND) and rng.random() < 0.3:
            opcode = WR_READ
        wr = SendWR(1, opcode, len(sg), 0, sg, rng.choice((0, 2)))
        targets = [other.core for place in self.nodes for other in self.things[place] if other.kind == "mr"]
        if targets:
            memory = rng.choice(targets)
            wr.set_wr_rdma(memory.key, memory.iova + rng.randrange(3000))
        numbers = [other.core.srq_num for place in self.nodes for other in self.things[place] if other.kind == "xsrq"]
        if qp.qp_type == QPT_XRC_SEND:
            wr.set_qp_type_xrc(rng.choice([*numbers, 77]))
        elif qp.qp_type == QPT_UD:
            handle = self._pick(node, "ah")
            if handle is None:
                return
            peers = [other.core.qp_num for place in self.nodes for other in self.things[place] if other.kind == "qp"]
            wr.set_wr_ud(handle.core, rng.choice([*peers, 0xFFFFFF, 0xFFFFFF]), 0x1234567)
        elif rng.random() < 0.2:
            wr = self._bind(node) or wr
        try:
            qp.post_send(wr)
            self.tally["posted"] += 1
        except PyverbsRDMAError as error:
            check(error.errno == errno.ENOMEM, str(error))

    def _bind(self, node: Node) -> SendWR | None:
        window, region = self._pick(node, "mw"), self._pick(node, "mr")
        if window is None or region is None:
            return None
        memory = region.core
        wr = SendWR(1, WR_BIND)

        class Info:
            mr, addr, length, mw_access_flags = memory.mr, memory.iova, 64, 6

        wr.set_bind_wr(window.core, Info)
        return wr

    def _collect(self, node: Node) -> None:
        for thing in self.things[node]:
            if thing.kind == "cq":
                while thing.core.count():
                    self.tally["completions"] += len(thing.core.poll(64))
            elif thing.kind == "mr":
                check(thing.core.untouched(), f"something wrote beside {thing}")
        node.events()
