# SPDX-License-Identifier: MIT
"""The two sides of ``softverbs perf``: what they agree on, and their resources."""

from __future__ import annotations

import ctypes
import random
import statistics
import sys
from dataclasses import asdict, dataclass, fields
from typing import Any

from softverbs.cli.common import MTUS, Fault, check
from softverbs.cli.exchange import Line
from softverbs.cli.rc import (
    ALL_ACCESS,
    GRH_LENGTH,
    QKEY,
    READS_IN_FLIGHT,
    Region,
    Timing,
    Way,
    address_handle,
    counter_of,
    join,
    make_datagram_qp,
    make_qp,
    random_psn,
)
from softverbs.links.base import address_of
from softverbs.pyverbs import libibverbs_enums as e
from softverbs.pyverbs.addr import AH
from softverbs.pyverbs.cq import CQ, WC
from softverbs.pyverbs.device import Context
from softverbs.pyverbs.mr import MR
from softverbs.pyverbs.pd import PD
from softverbs.pyverbs.qp import QP
from softverbs.pyverbs.wr import SGE, RecvWR, SendWR

TESTS = ("write", "read", "send", "atomic")
#: Types of connection, and what they can do.
CONNECTIONS = {"rc": TESTS, "uc": ("write", "send"), "ud": ("send",)}
RECEIVES = 512
MAX_SIZE = 1 << 30  # bytes
MAX_COUNT = 1 << 40
MAX_DEPTH = 8192
MAX_QPS = 128
_OTHER_VERSION = "the peer is another version of softverbs perf"
_PAGE = 4096
_WORD = 8
ARRIVALS = e.IBV_QP_ATTACH_COMP_CNTR_OP_REMOTE_RDMA_WRITE
_TIMING = Timing(min_rnr_timer=1)
_OPCODES = {
    "write": e.IBV_WR_RDMA_WRITE,
    "read": e.IBV_WR_RDMA_READ,
    "send": e.IBV_WR_SEND,
    "atomic": e.IBV_WR_ATOMIC_FETCH_AND_ADD,
}


@dataclass
class Plan:
    """What the client asks for; the server takes part in it."""

    test: str
    latency: bool
    sizes: list[int]
    iters: list[int]
    seconds: float
    depth: int
    qps: int
    mtu: int
    busy: bool
    connection: str = "rc"

    def packed(self) -> dict[str, Any]:
        """For the line."""
        return asdict(self)

    @classmethod
    def parsed(cls, values: Any) -> Plan:
        """What a peer sent; Fault if it is no plan."""
        names = {field.name for field in fields(cls)}
        if not isinstance(values, dict) or set(values) != names or not _plausible(values):
            raise Fault(_OTHER_VERSION)
        return cls(**values)

    @property
    def both_ways(self) -> bool:
        """Whether the two sides take turns."""
        return self.latency and self.test in ("write", "send")

    @property
    def loses(self) -> bool:
        """Whether what the network loses stays lost."""
        return self.connection != "rc"

    @property
    def words(self) -> str:
        """What is going on, for messages."""
        return f"perf over {self.connection}, which does not repair losses" if self.loses else "perf"


def _plausible(values: dict[str, Any]) -> bool:
    """Whether a plan from the peer has values that a plan can have."""
    sizes, counts = values["sizes"], values["iters"]
    if not isinstance(sizes, list) or not isinstance(counts, list) or not 0 < len(sizes) == len(counts) <= 64:
        return False
    limits = [(size, MAX_SIZE) for size in sizes] + [(count, MAX_COUNT) for count in counts]
    limits += [(values["depth"], MAX_DEPTH), (values["qps"], MAX_QPS), (values["mtu"], len(MTUS))]
    numbers = all(isinstance(value, int) and 0 < value <= most for value, most in limits)
    possible = values["test"] in CONNECTIONS.get(str(values["connection"]), ())
    if values["connection"] == "ud" and values["qps"] != 1:
        return False
    return numbers and possible and isinstance(values["seconds"], (int, float))


@dataclass
class Result:
    """What one size gave."""

    size: int
    iterations: int
    seconds: float
    peak: float = 0.0
    """Bytes per second of the best tenth of the run."""
    times: list[float] | None = None
    """Seconds of each operation, or half of each round trip."""

    def bandwidth_row(self) -> list[str]:
        """#bytes, #iterations, peak and average in MiB/s, million messages per second."""
        rate = self.iterations / self.seconds
        average = rate * self.size / (1 << 20)
        peak = max(self.peak / (1 << 20), average)
        return [str(self.size), str(self.iterations), f"{peak:.2f}", f"{average:.2f}", f"{rate / 1e6:.6f}"]

    def latency_row(self) -> list[str]:
        """#bytes, #iterations, and in microseconds: least, most, median, mean, deviation, 99 and 99.9 percent."""
        times = sorted(value * 1e6 for value in self.times or [])
        last = len(times) - 1
        numbers = [times[0], times[last], statistics.median(times), statistics.fmean(times), statistics.pstdev(times)]
        numbers += [times[min(last, int(len(times) * part))] for part in (0.99, 0.999)]
        return [str(self.size), str(self.iterations), *(f"{number:.2f}" for number in numbers)]


class Side:
    """One side: its QPs, and one region with the outgoing and the incoming message.

    Both sides fill their outgoing message with the same pattern, so that each can check what it gets.
    """

    def __init__(self, context: Context, plan: Plan, way: Way) -> None:
        """
        :param context: the device
        :param plan: what is measured
        :param way: how packets travel
        """
        self.plan, self.way = plan, way
        #: Grows with whatever gets on.
        self.done = 0
        #: Numbers and keys of the peer, in words.
        self.peer_text = ""
        self._stride = -(-max(*plan.sizes, _WORD) // _PAGE) * _PAGE
        self._pattern = random.Random(self._stride).randbytes(self._stride)
        #: What comes before each message in memory: the header of a datagram.
        self._ahead = GRH_LENGTH if plan.connection == "ud" else 0
        self._pd = pd = PD(context)
        self._memory = MR(pd, 2 * self._stride + self._ahead, ALL_ACCESS)
        self.outbox, self.inbox = self._view(0), self._view(self._stride + self._ahead)
        self.send_cq = CQ(context, plan.depth * plan.qps)
        self.recv_cq = CQ(context, RECEIVES * plan.qps)
        self._psns = [random_psn() for _ in range(plan.qps)]
        self.qps = [self._made(psn) for psn in self._psns]
        self._arrivals = [counter_of(context, qp, ARRIVALS) for qp in self.qps if plan.loses and plan.test == "write"]
        self._handle: AH | None = None
        self._peer_qpn = 0
        self._own = Region(self._memory.buf, self._memory.lkey, 0, 0)
        self._remote = self._own

    def _made(self, psn: int) -> QP:
        pd, queues, depth, port = self._pd, (self.send_cq, self.recv_cq), self.plan.depth, self.way.port
        if self.plan.connection == "ud":
            return make_datagram_qp(pd, *queues, depth, RECEIVES, psn, port)
        kind = e.IBV_QPT_UC if self.plan.connection == "uc" else e.IBV_QPT_RC
        return make_qp(pd, *queues, depth, RECEIVES, port, qp_type=kind)

    def _view(self, offset: int) -> memoryview:
        return memoryview((ctypes.c_ubyte * self._stride).from_address(self._memory.buf + offset)).cast("B")

    def connect(self, line: Line, gid: bytes) -> None:
        """Connects every QP to the peer's of the same index.

        :param gid: of this side
        """
        numbers = [[qp.qp_num, psn] for qp, psn in zip(self.qps, self._psns, strict=True)]
        line.tell(gid=gid.hex(), qps=numbers, rkey=self._memory.rkey, address=self._memory.buf)
        peer = line.hear()
        try:
            peer_gid, pairs = bytes.fromhex(peer["gid"]), [(int(number), int(psn)) for number, psn in peer["qps"]]
            self._remote = self._own._replace(remote_address=int(peer["address"]), rkey=int(peer["rkey"]))
        except (KeyError, TypeError, ValueError):
            raise Fault(_OTHER_VERSION) from None
        if len(pairs) != len(self.qps) or len(peer_gid) != len(gid):
            raise Fault(_OTHER_VERSION)
        if self.plan.connection == "ud":
            self._handle, self._peer_qpn = address_handle(self._pd, self.way, peer_gid), pairs[0][0]
        else:
            for qp, psn, (number, first) in zip(self.qps, self._psns, pairs, strict=True):
                join(qp, self.way, psn, (peer_gid, number, first), READS_IN_FLIGHT, _TIMING)
        if self.plan.test == "send":
            self._fill_receives()
        self.own_text = _text(self.qps[0].qp_num, self._psns[0], self._memory.rkey, self._memory.buf, gid)
        self.peer_text = _text(*pairs[0], self._remote.rkey, self._remote.remote_address, peer_gid)
        line.tell(ready=True)
        line.hear()

    def request(self, size: int, flags: int, wr_id: int = 0) -> SendWR:
        """One operation of the plan: from the outbox to the peer's inbox; for READ from its outbox to the inbox."""
        opcode, region = _OPCODES[self.plan.test], self._remote
        if self.plan.test == "send":
            message = SendWR(wr_id, opcode, 1, sg=[SGE(region.address, size, region.lkey)], send_flags=flags)
            if self._handle is not None:
                message.set_wr_ud(self._handle, self._peer_qpn, QKEY)
            return message
        here = self._stride if self.plan.test in ("read", "atomic") else 0
        there = 0 if self.plan.test == "read" else self._stride
        made = SendWR(wr_id, opcode, 1, sg=[SGE(region.address + here, size, region.lkey)], send_flags=flags)
        if self.plan.test == "atomic":
            made.set_wr_atomic(region.rkey, region.remote_address + there, 1)
        else:
            made.set_wr_rdma(region.rkey, region.remote_address + there)
        return made

    def receive(self) -> RecvWR:
        """A receive into the inbox."""
        return RecvWR(0, 1, [SGE(self._own.address + self._stride, self._ahead + self._stride, self._own.lkey)])

    def _fill_receives(self) -> None:
        receive = self.receive()
        for qp in self.qps:
            for _ in range(RECEIVES):
                qp.post_recv(receive)

    def arrived(self) -> int:
        """Writes that have come here, over a connection that may lose some."""
        return sum(counter.read() for counter in self._arrivals)

    def prepare(self, size: int) -> None:
        """Makes both messages ready for a run."""
        self.outbox[:size] = self._pattern[:size]
        self.inbox[: max(size, _WORD)] = bytes(max(size, _WORD))

    def check(self, completion: WC) -> None:
        """Raises Fault where a completion is no success; where it was flushed, with what went wrong before."""
        if completion.status == e.IBV_WC_WR_FLUSH_ERR:
            for other in self.send_cq.poll(self.plan.depth * self.plan.qps)[1]:
                if other.status != e.IBV_WC_WR_FLUSH_ERR:
                    check(other)
        check(completion)

    def compare(self, size: int, done: int, client: bool) -> None:
        """Raises Fault where the data that this side got in a run are wrong.

        :param size: bytes of a message
        :param done: how many operations the run had; of those that lose some, how many have come here
        :param client: whether this is the side that measures
        """
        plan = self.plan
        if plan.loses and not done:
            return  # nothing has come
        if plan.test == "atomic":
            found = int.from_bytes(self.inbox[:_WORD], sys.byteorder)
            if not client and found != done:
                raise Fault(f"{done} atomics added 1 each, but the sum is {found}")
        elif plan.both_ways or client == (plan.test == "read"):
            checked = size - 1 if plan.both_ways and plan.test == "write" else size  # the last byte is a number then
            if self.inbox[:checked].tobytes() != self._pattern[:checked]:
                raise Fault(f"the {size} bytes that came are not those that were sent")


def _text(qpn: int, psn: int, rkey: int, address: int, gid: bytes) -> str:
    return f"QPN 0x{qpn:06x} PSN 0x{psn:06x} RKey 0x{rkey:08x} VAddr 0x{address:012x} GID {address_of(gid)}"
