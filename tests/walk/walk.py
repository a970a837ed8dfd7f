# SPDX-License-Identifier: MIT
"""A walk: random requests of two or four queue pairs over a network that loses, repeats, reorders and damages frames.

The walk posts, lets time pass, polls, and has the model (model.py) check every completion when it comes, and
everything else when all is quiet: every byte of every region, every counter, every status.
"""

import itertools
import sys
from collections import Counter
from random import Random

from tests.netsim.pair import (
    SUCCESS,
    WR_CAS,
    WR_FAA,
    WR_READ,
    WR_SEND_IMM,
    WR_WRITE,
    WR_WRITE_IMM,
)
from tests.netsim.sim import ERR, MS, RESET, RTS, SECOND, SQD, US, Node, Sim, connect, move
from tests.walk.end import CELLS, RECEIVES, SHARED, End
from tests.walk.model import OP_WORDS, UNTOUCHED, Flow, Request, WalkError, check, scatter
from tests.walk.plan import Plan, Trace

from softverbs.core.queues.completion import CompletionQueue
from softverbs.core.queues.wr import WC

FAR = 1 << 21  # PSNs between two connections of a queue pair, at least
LIMIT = 600 * SECOND


class Walk:
    """One walk, of one seed."""

    def __init__(self, seed: int, say: bool = False) -> None:
        self.seed = seed
        self.rng = Random(seed)
        self.trace = Trace(say)
        self.tally: Counter[str] = Counter()
        self.plan = plan = Plan.draw(self.rng)
        self.sim = Sim()
        self.sim.tap = self._tap
        self.flows = 0
        self.trouble: tuple[str, End] | None = None
        for _ in range(plan.nodes):
            node_seed = self.rng.randrange(1 << 16)
            self.sim.node(seed=node_seed, options=plan.options, bare=plan.bare, **plan.faults)
        nodes = self.sim.nodes
        self.shared = {node: node.region(node.pd(), SHARED, iova=0x10000) for node in nodes}
        self.sums = dict.fromkeys(nodes, 0)
        #: What each flow of this epoch may have added, per node; and whether all is certain.
        self.added: dict[Node, list[set[int]]] = {node: [] for node in nodes}
        self.before: dict[Node, list[tuple[int, int]]] = {node: [] for node in nodes}
        cqs = {node: (node.cq(), node.cq()) for node in nodes}
        self.cqs = [(node, cq) for node, pair in cqs.items() for cq in pair]
        self.ends: list[End] = []
        for _ in range(plan.connections):
            for node in (nodes[0], nodes[-1]):
                self.ends.append(End(self, node, len(self.ends), cqs[node]))
        for a, b in zip(self.ends[::2], self.ends[1::2], strict=True):
            a.peer, b.peer = b, a
        self.by_number = {(end.node, end.qp.qp_num): end for end in self.ends}
        self.psns = [self.rng.choice((0, 0xFFFFFF, self.rng.randrange(1 << 24))) for _ in self.ends]

    def _tap(self, node: Node, frame: bytes) -> list[bytes]:
        self.trace.frame(self.sim.now, node, frame)
        return [frame]

    def note(self, what: str) -> None:
        self.trace.event(self.sim.now, what)

    # -- drawing

    def split(self, length: int, parts: int) -> list[int]:
        """``length`` as the sum of so many lengths, of which some may be 0."""
        cuts = sorted(self.rng.randint(0, length) for _ in range(parts - 1))
        return [end - start for start, end in itertools.pairwise([0, *cuts, length])]

    def draw_length(self, mtu: int) -> int:
        kind = self.rng.random()
        if kind < 0.1:
            return 0
        if kind < 0.45:
            return self.rng.randint(1, 128)
        if kind < 0.65:
            return mtu * self.rng.randint(1, 3) + self.rng.randint(-1, 1)
        return self.rng.randint(1, 4 * mtu)

    def draw_request(self, end: End, last: bool) -> Request | None:
        """The next request of an end; None where there is no room for its result."""
        rng, flow = self.rng, end.out
        opcode = WR_WRITE if last else rng.choices(tuple(OP_WORDS), (4, 2, 4, 2, 4, 2, 3))[0]
        length = 8 if opcode in (WR_CAS, WR_FAA) else self.draw_length(end.mtu)
        request = Request(len(flow.requests), opcode, length, signaled=last or rng.random() < 0.5)
        if request.number - flow.polled > self.plan.depth // 2:
            request.signaled = True  # or the queue could fill with requests that nobody hears of
        if self.trouble is not None and self.trouble[1] is end and self.trouble[0] in ("lkey", "rkey", "unaligned"):
            self._spoil(request, self.trouble[0])
        if opcode in (WR_SEND_IMM, WR_WRITE_IMM):
            request.imm = rng.getrandbits(32)
        if request.atomic:
            self._aim_atomic(end, request)
        elif not request.sends:
            request.to = rng.randint(0, end.peer.target - request.length)
        if request.sends or request.writes:
            for size in self.split(request.length, rng.randint(1, 4)):
                request.places.append((rng.randint(0, end.source - size), size))
            request.data = b"".join(bytes(end.mirror[offset : offset + size]) for offset, size in request.places)
        elif request.fault != "lkey":
            places = end.take(request.length, 1 if request.atomic else rng.randint(1, 4))
            if places is None:
                return None
            request.places = places
        return request

    def _aim_atomic(self, end: End, request: Request) -> None:
        rng = self.rng
        request.to = end.peer.target - CELLS + 8 * rng.randrange(CELLS // 8)
        if request.opcode == WR_FAA:
            request.shared = not request.fault and rng.random() < 0.3
            # Sums of some of these differ: what was added twice, or not at all, shows.
            request.add = rng.getrandbits(48 if request.shared else 64) | 1
            return
        now = int.from_bytes(end.out.ahead[request.to : request.to + 8], sys.byteorder)
        request.add = now if rng.random() < 0.7 else rng.getrandbits(64)
        request.swap = rng.getrandbits(64)

    def _spoil(self, request: Request, fault: str) -> None:
        """Makes a request fail, if its kind can fail like this."""
        if fault == "unaligned" and not request.atomic:
            return
        if fault == "rkey" and request.sends:
            return
        request.length = max(request.length, 8)
        request.fault = fault
        self.trouble = None
        self.tally[f"fault {fault}"] += 1

    # -- the walk

    def run(self) -> str:
        """Walks to the end; the hash of everything that happened. WalkError says what was wrong, and where."""
        try:
            with self.sim:
                for end in self.ends:
                    end.begin()
                self._connect(self.ends)
                for _ in range(self.plan.epochs):
                    self._epoch()
        except Exception as error:
            raise WalkError(f"seed {self.seed}: {error!r}; python -m tests.walk --seed {self.seed} -v") from error
        return self.trace.hash.hexdigest()

    def _connect(self, ends: list[End]) -> None:
        """Connects these ends, both of each connection among them, under PSNs far from those of before."""
        for end in ends:
            index = self.ends.index(end)
            self.psns[index] = self.psns[index] + self.rng.choice((-FAR, FAR)) + self.rng.randrange(1000) & 0xFFFFFF
        psns = dict(zip(self.ends, self.psns, strict=True))
        for end in ends:
            values = {**self.plan.attributes, "path_mtu": self.plan.mtu, "qp_access_flags": 15}
            psn = {"sq_psn": psns[end], "rq_psn": psns[end.peer]}
            connect(end.qp, end.peer.qp, end.node, end.peer.node, {**values, **psn}.items())

    def _epoch(self) -> None:
        """Traffic, perhaps trouble, silence, and every check; then what is broken is connected anew."""
        rng = self.rng
        kinds = ("lkey", "rkey", "unaligned", "small", "err", "reset", "sqd")
        trouble = (rng.choice(kinds), rng.choice(self.ends)) if rng.random() < 0.5 else None
        turns = rng.randint(8, 32)
        moment = rng.randrange(turns)
        for turn in range(turns):
            if trouble is not None and turn == moment:
                self._begin_trouble(*trouble)
            self._turn()
        self._finish()
        for end in self.ends:
            end.rest = end.qp.state
        for end in self.ends:
            self._check(end)
        self._check_sums()
        self._check_regions()
        for end in self.ends[::2]:
            self._renew(end, end.peer)

    def _begin_trouble(self, kind: str, end: End) -> None:
        self.note(f"trouble: {kind} at {end.name}")
        if kind == "small":
            end.post_receives(1, small=True)
        elif kind == "err":
            end.stopped = True
            move(end.qp, ERR)
        elif kind == "reset":
            self._reset(end)
        elif kind == "sqd":
            self._drain(end)
        else:
            self.trouble = kind, end
        self.tally[f"trouble {kind}"] += 1

    def _drain(self, end: End) -> None:
        """Stops new requests for a while."""
        if end.qp.state == RTS:
            move(end.qp, SQD)
            self.sim.after(self.rng.randrange(20 * MS), lambda: move(end.qp, RTS) if end.qp.state == SQD else None)

    def _reset(self, end: End) -> None:
        """Resets both ends in the midst of everything: what is not done by now counts nowhere. Then connects them anew.

        Frames of before may still be on the way.
        """
        if not (end.counts_requests and end.peer.counts_requests):
            return  # nobody could tell what is done
        self._collect()
        for each in (end, end.peer):
            each.finish_unsignaled()
            each.out.dropped = each.qp.state != ERR
            each.rest = each.qp.state
            move(each.qp, RESET)
        for each in (end, end.peer):
            self._check(each)
        self._restart(end, end.peer)

    def _restart(self, a: End, b: End) -> None:
        for end in (a, b):
            end.begin()
        self._connect([a, b])

    def _turn(self) -> None:
        rng = self.rng
        end = rng.choice(self.ends)
        what = rng.random()
        if what < 0.6:
            end.post(rng.randint(1, 6))
        elif what < 0.85:
            end.post_receives(rng.randint(1, 6))
        else:
            self.sim.run_for(rng.choice((0, 10 * US, 100 * US, MS, 10 * MS)))
        for _ in range(rng.randrange(6)):
            self.sim.step()
        self._collect()

    def _finish(self) -> None:
        """Posts what is missing, and waits until everything is done and nothing is on the way."""
        self.trouble = None
        for end in self.ends:
            if not end.counts_requests and end.out.requests and not end.out.requests[-1].signaled:
                # A counter of bytes does not tell how many requests are done: the last one must.
                self.sim.run_until(lambda end=end: self._supply() or end.room() > 0, LIMIT)
                end.post(1, last=True)
        self.sim.run_until(lambda: self._supply() or all(end.retired() for end in self.ends), LIMIT)
        self.sim.settle()
        self._collect()
        for end in self.ends:
            if end.out.retired < len(end.out.requests):
                end.finish_unsignaled()

    def _supply(self) -> None:
        """Takes completions, and posts the receives that are missing."""
        self._collect()
        for end in self.ends:
            missing = len(end.into.taking) - len(end.into.receives)
            if missing > 0 and end.qp.state != ERR:
                end.post_receives(missing)

    def _collect(self) -> None:
        """Takes every completion; does not let time pass."""
        for node, cq in self.cqs:
            while cq.count():
                for wc in cq.poll(32):
                    self._on_completion(self.by_number[node, wc.qp_num], cq, wc)

    def _on_completion(self, end: End, cq: CompletionQueue, wc: WC) -> None:
        is_receive = wc.wr_id >= RECEIVES
        what = "receive" if is_receive else "request"
        self.note(f"{end.name} {what} #{wc.wr_id & 0xFFFFFFFF}: status {wc.status} {wc.reason}")
        check(cq is (end.recv_cq if is_receive else end.send_cq), f"{end.name}: a {what} completed in the wrong queue")
        if is_receive:
            end.on_receive(wc)
        else:
            end.on_send(wc)
        self.tally["completions"] += 1

    # -- checks

    def _check(self, end: End) -> None:
        """Everything about the flow from this end to its peer, when it has come to rest."""
        flow, peer = end.out, end.peer
        flow.cut = end.stopped or end.into.refused
        flow.deaf = peer.rest != RTS
        flow.check_statuses()
        flow.check_receives(flushed=peer.rest == ERR)
        flow.check_initiator(end.count())
        flow.check_target(peer.count())
        self._adopt_partial_read(end)
        partial = self._adopt_partial_receive(peer)
        memory = peer.region.at(peer.to, peer.target)
        found = list(flow.explanations(memory, partial, peer.count()))
        check(found, f"{flow.name}: nothing explains what is there; {flow.describe(peer.count())}")
        peer.mirror[peer.to : peer.to + peer.target] = memory
        adding = [[request.add for request in flow.requests[flow.summed : most] if request.shared] for most, _ in found]
        self.added[peer.node].append({sum(adds) for adds in adding})
        self._tally(flow, found)
        flow.summed = len(flow.requests)

    def _tally(self, flow: Flow, found: list[tuple[int, int]]) -> None:
        self.tally["flows"] += 1
        self.tally["bad luck"] += flow.lucky
        self.tally["executed, and not known to be"] += found[0][0] > flow.successes
        self.tally["partly placed"] += found[0][1] > 0
        for request in flow.requests[flow.summed : flow.successes]:
            self.tally[OP_WORDS[request.opcode]] += 1

    def _adopt_partial_read(self, end: End) -> None:
        """A READ that failed may have left its first packets behind, and nothing else."""
        flow = end.out
        if flow.successes == len(flow.requests):
            return
        request = flow.requests[flow.successes]
        if request.opcode != WR_READ or request.fault:
            return
        there = b"".join(end.region.at(*place) for place in request.places)
        for packets in range(-(-request.length // end.mtu) + 1):
            data = request.data[: packets * end.mtu]
            if there == data + UNTOUCHED * (len(there) - len(data)):
                scatter(end.mirror, request.places, data)
                return
        raise WalkError(f"{flow.name}: {request} failed and left something else behind")

    def _adopt_partial_receive(self, end: End) -> bytes:
        """What is in the first receive that did not succeed."""
        for receive in end.into.receives:
            if receive.status != SUCCESS:
                there = b"".join(end.region.at(*place) for place in receive.places)
                scatter(end.mirror, receive.places, there)
                return there
        return b""

    def _check_sums(self) -> None:
        """Additions to the cell that all flows share: each that was executed is in the sum, once."""
        for node, region in self.shared.items():
            now, before = region.word(0), self.sums[node]
            possible = {before}
            for sums in self.added[node]:
                possible = {start + more for start in possible for more in sums}
            check(now in possible, f"{node.name}: the shared sum went from {before} to {now}")
            if all(len(sums) == 1 for sums in self.added[node]):
                self._check_chain(node, before, now)
            self.sums[node] = now
            self.added[node] = []
            self.before[node] = []

    def _check_chain(self, node: Node, start: int, end: int) -> None:
        """Where every addition succeeded, each found what the one before it had left."""
        links = sorted(self.before[node])
        if sum(add for _, add in links) != end - start:
            return  # some succeeded that nobody was told of
        for found, add in links:
            check(found == start, f"{node.name}: an addition found {found}, not {start}")
            start += add

    def _check_regions(self) -> None:
        """Every byte that was registered, and what is around it."""
        for end in self.ends:
            for name, start, stop in (
                ("source", 0, end.source), ("target", end.to, end.arrival), ("arrivals", end.arrival, end.region.size)
            ):  # fmt: skip
                same = end.region.at(start, stop - start) == end.mirror[start:stop]
                check(same, f"{end.name}: the memory differs in the {name}")
            check(end.region.untouched(), f"{end.name}: something wrote beside the region")
            check(end.readonly.at(0, 64) == bytes(64), f"{end.name}: something wrote to the read-only region")
        for node, region in self.shared.items():
            check(region.at(8, SHARED - 8) == bytes(SHARED - 8), f"{node.name}: beside the shared cell")

    def _renew(self, a: End, b: End) -> None:
        """A connection that is broken is made anew; one that is whole may go on, or be ended in good order."""
        whole = a.qp.state == b.qp.state == RTS
        if whole and self.rng.random() < 0.5:
            return
        for end in (a, b):
            if self.rng.random() < 0.5:
                move(end.qp, ERR)
        self._collect()
        for end in (a, b):
            end.into.check_receives(flushed=end.qp.state == ERR)
            end.into.check_target(end.count())
            move(end.qp, RESET)
        self._restart(a, b)
