# SPDX-License-Identifier: MIT
"""One end of a connection in a walk: it posts, it checks each completion, and it knows what its memory should hold."""

import errno
import itertools
import sys
from typing import TYPE_CHECKING

from tests.netsim.pair import (
    BIT,
    FENCE,
    INLINE,
    OPS,
    READ,
    RECV,
    REMOTE_READ,
    REMOTE_WRITE,
    SEND,
    SIGNALED,
    SOLICITED,
    SUCCESS,
    WR_CAS,
    WR_FAA,
    WR_READ,
    WR_SEND,
    WR_SEND_IMM,
    WR_WRITE,
    WR_WRITE_IMM,
    WRITE,
)
from tests.netsim.sim import ALL, RESET, Node
from tests.walk.model import UNTOUCHED, Counts, Flow, Receive, Request, check, scatter

from softverbs.core.base.errors import PyverbsRDMAError
from softverbs.core.queues.completion import CompletionQueue
from softverbs.core.queues.wr import SGE, WC, RecvWR, SendWR

if TYPE_CHECKING:
    from tests.walk.walk import Walk

CELLS = 64  # bytes of cells for atomics, behind the area for WRITEs
SHARED = 64  # bytes of each node's region for what all flows add to
GUARD = 512
RECEIVES = 1 << 63  # in a wr_id
WC_OPCODES = {WR_WRITE: 1, WR_WRITE_IMM: 1, WR_SEND: 0, WR_SEND_IMM: 0, WR_READ: 2, WR_CAS: 3, WR_FAA: 4}
RECV_OPCODE, RECV_IMM_OPCODE, WITH_IMM = 128, 129, 2


class End:
    """One end of a connection: a queue pair, its counters, its memory, and what this should hold."""

    peer: "End"
    out: Flow
    into: Flow

    def __init__(self, walk: "Walk", node: Node, number: int, cqs: tuple[CompletionQueue, CompletionQueue]) -> None:
        plan, rng = walk.plan, walk.rng
        self.walk = walk
        self.node = node
        self.name = "ABCDEFGH"[number]
        self.mtu = 128 << plan.mtu
        self.pd = node.pd()
        self.send_cq, self.recv_cq = cqs
        cap = (plan.depth, 64, 4, 4, 128)
        self.qp = node.qp(self.pd, self.send_cq, self.recv_cq, cap=cap, signal_all=False)
        self.kinds = {op: int(plan.bytes_counted and rng.random() < 0.5) for op in OPS}
        self.counters = {op: node.counter(self.kinds[op]) for op in OPS}
        for op, counter in self.counters.items():
            self.qp.attach_comp_cntr(counter, op, 0)
        # The region: what is sent from, what the peer may write and read, and what results and messages arrive in.
        self.source = 12 * self.mtu
        self.target = 8 * self.mtu + CELLS
        self.buffers = 150 * self.mtu + 4096
        self.to = self.source
        self.arrival = self.source + self.target
        self.region = node.region(self.pd, self.arrival + self.buffers, iova=0x1000000 * (number + 1), guard=GUARD)
        self.readonly = node.region(self.pd, 64, access=1 | 4, iova=0x1000000 * (number + 1) + 0x800000)
        self.shared = node.port.regions.register(
            self.pd, walk.shared[node].address, SHARED, ALL, 0x1000000 * (number + 1) + 0x900000, walk.shared[node]
        )
        self.shared_iova = 0x1000000 * (number + 1) + 0x900000
        self.mirror = bytearray(rng.randbytes(self.arrival) + UNTOUCHED * self.buffers)
        self.region.put(0, bytes(self.mirror))
        self.used = self.arrival
        self.stopped = False
        self.start = Counts()
        self.rest = RESET  # the state in which the flows came to rest

    # -- counters and memory

    def count(self) -> Counts:
        """What the counters have counted since the flows began."""
        counts = Counts()
        for op, counter in self.counters.items():
            counts.done[op] = counter.visible_value - self.start.done[op]
            counts.errors[op] = counter.visible_errors - self.start.errors[op]
        return counts

    def begin(self) -> None:
        """New flows begin: what is there now is the beginning."""
        self.start = Counts()
        self.start = self.count()
        self.region.view[self.arrival : self.arrival + self.buffers] = UNTOUCHED * self.buffers
        self.mirror[self.arrival :] = UNTOUCHED * self.buffers
        self.used = self.arrival
        self.stopped = False
        target = self.mirror[self.to : self.to + self.target]
        rnr_retry = self.walk.plan.attributes["rnr_retry"]
        kinds = {**self.peer.kinds, **{op: self.kinds[op] for op in (RECV, REMOTE_READ, REMOTE_WRITE)}}
        self.walk.flows += 1
        name = f"{self.peer.name} to {self.name}"
        self.into = self.peer.out = Flow(name, self.walk.flows, self.mtu, target, rnr_retry, kinds)

    def take(self, length: int, parts: int) -> list[tuple[int, int]] | None:
        """Room for ``length`` bytes that arrive, in pieces, with gaps; None where there is none left."""
        if self.used + length + 16 * parts > self.arrival + self.buffers:
            return None
        places = []
        for size in self.walk.split(length, parts):
            self.used += self.walk.rng.randrange(12)
            places.append((self.used, size))
            self.used += size
        return places

    def room(self) -> int:
        """Free slots of the send queue: a polled completion frees that of its request and those before it."""
        return self.walk.plan.depth - (len(self.out.requests) - self.out.polled)

    # -- posting

    def post(self, count: int, last: bool = False) -> None:
        """Posts up to ``count`` requests, as a list or one by one; ``last``: the last one is signaled."""
        wrs = []
        room = self.room()
        if room == 0 and self.walk.rng.random() < 0.2:
            self._check_full()
        for index in range(min(count, room)):
            request = self.walk.draw_request(self, last and index == count - 1)
            if request is not None:
                self.out.post(request)
                wrs.append(self._wr(request))
                self.walk.note(f"{self.name} posts {request}")
        if wrs and self.walk.rng.random() < 0.5:
            for wr, following in itertools.pairwise(wrs):
                wr.next_wr = following
            wrs = wrs[:1]
        for wr in wrs:
            self.qp.post_send(wr)

    def _check_full(self) -> None:
        try:
            self.qp.post_send(SendWR(0, WR_WRITE, 0, 0, [], SIGNALED))
        except PyverbsRDMAError as error:
            check(error.errno == errno.ENOMEM, f"{self.name}: a full send queue refuses with {error}")
        else:
            check(False, f"{self.name}: there is room in a full send queue")

    def _wr(self, request: Request) -> SendWR:
        rng = self.walk.rng
        length = request.length
        flags = SIGNALED if request.signaled else 0
        fence = request.writes or request.atomic
        if (fence and self.out.reads_pending(request.to, length)) or rng.random() < 0.1:
            flags |= FENCE
        if request.takes and rng.random() < 0.3:
            flags |= SOLICITED
        if (request.sends or request.writes) and not request.fault and length <= 128 and rng.random() < 0.4:
            flags |= INLINE
        elements = [SGE(self.region.iova + offset, size, self.region.mr.lkey) for offset, size in request.places]
        if request.fault == "lkey":
            outside = SGE(self.region.iova - 1, length, self.region.key)
            elements = [rng.choice((SGE(self.region.iova, length, 0xBAD00), outside))]
        number = self.out.tag << 32 | request.number
        wr = SendWR(number, request.opcode, len(elements), request.imm, elements, flags)
        rkey, address = self._remote(request)
        if request.atomic:
            wr.set_wr_atomic(rkey, address, request.add, request.swap)
        else:
            wr.set_wr_rdma(rkey, address)
        return wr

    def _remote(self, request: Request) -> tuple[int, int]:
        """Key and address of the remote side, wrong where the request is to fail there."""
        peer, rng = self.peer, self.walk.rng
        address = peer.region.iova + peer.to + request.to
        if request.shared:
            return peer.shared.rkey, peer.shared_iova
        if request.fault == "unaligned":
            return peer.region.key, address + rng.randint(1, 7)
        if request.fault != "rkey":
            return peer.region.key, address
        key = rng.randrange(3)
        if key == 0:
            return peer.region.key ^ 1 << rng.randrange(32), address
        if key == 1 or request.opcode == WR_READ:
            return peer.region.key, (peer.region.iova + peer.region.size - request.length // 2 & -8) + 8
        return peer.readonly.key, peer.readonly.iova

    def post_receives(self, count: int, small: bool = False) -> None:
        """Posts ``count`` receives: as large as any message, or as the message that will come, or too ``small``."""
        flow, rng = self.into, self.walk.rng
        for _ in range(count):
            number = len(flow.receives)
            if number - flow.received >= 64:
                return
            coming = flow.taking[number] if number < len(flow.taking) else None
            size = 5 * self.mtu
            if coming is not None and rng.random() < 0.8:
                size = coming.length
            if small:
                size = rng.randrange(size) if size else 0
            places = self.take(size, rng.randint(1, 4))
            if places is None:
                return
            flow.receives.append(Receive(number, places))
            self.walk.note(f"{self.name} posts receive #{number} of {size}")
            elements = [SGE(self.region.iova + offset, length, self.region.key) for offset, length in places]
            self.qp.post_recv(RecvWR(RECEIVES | flow.tag << 32 | number, len(elements), elements))

    # -- completions

    def on_send(self, wc: WC) -> None:
        flow = self.out
        tag, number = divmod(wc.wr_id, 1 << 32)
        check(tag == flow.tag, f"{self.name}: a completion of a request from before the reset")
        first = flow.retired
        flow.complete(number, wc.status)
        request = flow.requests[number]
        if wc.status == SUCCESS:
            check(wc.opcode == WC_OPCODES[request.opcode], f"{self.name}: {request}: opcode {wc.opcode}")
            if request.opcode in (WR_READ, WR_CAS, WR_FAA):
                check(wc.byte_len == request.length, f"{self.name}: {request}: byte_len {wc.byte_len}")
        else:
            check(wc.reason, f"{self.name}: {request}: status {wc.status} without a reason")
            self.walk.tally[f"status {wc.status}"] += 1
        self._succeed(flow.requests[first : flow.retired])
        self._check_order(number)

    def _check_order(self, number: int) -> None:
        """After the completion of request k, completions + errors >= k, and never more than was posted."""
        counts = self.count()
        for op in (SEND, WRITE, READ):
            if not self.kinds[op]:
                counted = counts.done[op] + counts.errors[op]
                least = sum(BIT[request.opcode] == op for request in self.out.requests[: number + 1])
                most = sum(BIT[request.opcode] == op for request in self.out.requests)
                check(least <= counted <= most, f"{self.name}: {counted} counted after request #{number}")

    def _succeed(self, requests: list[Request]) -> None:
        """Results of READs and atomics are due now; of shared cells they are whatever was there."""
        for request in requests:
            if request.status == SUCCESS and request.opcode in (WR_READ, WR_CAS, WR_FAA):
                if request.shared:
                    offset, _ = request.places[0]
                    request.data = self.region.at(offset, 8)
                    self.walk.before[self.peer.node].append((int.from_bytes(request.data, sys.byteorder), request.add))
                scatter(self.mirror, request.places, request.data)

    def on_receive(self, wc: WC) -> None:
        tag, number = divmod(wc.wr_id ^ RECEIVES, 1 << 32)
        check(tag == self.into.tag, f"{self.name}: a completion of a receive from before the reset")
        request = self.into.receive(number, wc.status)
        if request is None:
            check(wc.reason, f"{self.name}: receive #{number}: status {wc.status} without a reason")
            return
        sends = request.sends
        immediate = request.opcode in (WR_SEND_IMM, WR_WRITE_IMM)
        found = wc.opcode, wc.byte_len, wc.wc_flags, wc.imm_data if immediate else 0
        right = RECV_OPCODE if sends else RECV_IMM_OPCODE, request.length, WITH_IMM if immediate else 0, request.imm
        check(found == right, f"{self.name}: receive of {request}: {found} instead of {right}")
        if sends:
            scatter(self.mirror, self.into.receives[number].places, request.data)

    def finish_unsignaled(self) -> None:
        """Requests at the end that made no completion: the counters say how many are done."""
        counts = self.count()
        retired = sum(counts.done[op] + counts.errors[op] for op in (SEND, WRITE, READ))
        first = self.out.retired
        self.out.retire_silently(retired)
        self._succeed(self.out.requests[first:retired])

    @property
    def counts_requests(self) -> bool:
        return not any(self.kinds[op] for op in (SEND, WRITE, READ))

    def retired(self) -> bool:
        """Whether everything posted is done, as far as one can tell."""
        if self.out.retired == len(self.out.requests):
            return True
        if self.out.requests[-1].signaled or not self.counts_requests:
            return False
        counts = self.count()
        return sum(counts.done[op] + counts.errors[op] for op in (SEND, WRITE, READ)) == len(self.out.requests)
