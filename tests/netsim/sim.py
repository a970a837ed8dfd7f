"""A world of devices in one process and in virtual time.

Every device sits on the same in-process network behind a faulty link. Nothing happens but in ``Sim.step``: each device
makes progress in turn; when none has anything to do, the clock jumps to the earliest deadline. No thread, no real
clock, no chance but that of the seed; memory is registered under addresses of the test's choice (``iova``), so that the
frames of two runs are equal byte by byte.
"""

import ctypes
import heapq
import sys
from collections.abc import Callable, Iterable
from typing import Any

from softverbs.core.completion import CompChannel, CompCntr, CompletionQueue
from softverbs.core.limits import Options
from softverbs.core.address import AddressVector
from softverbs.core.qp import QueuePair
from softverbs.core.qp_states import (
    ACCESS_FLAGS,
    AV,
    DEST_QPN,
    MAX_DEST_RD_ATOMIC,
    MAX_QP_RD_ATOMIC,
    MIN_RNR_TIMER,
    PATH_MTU,
    PKEY_INDEX,
    PORT,
    RETRY_CNT,
    RNR_RETRY,
    RQ_PSN,
    SQ_PSN,
    STATE,
    TIMEOUT,
)
from softverbs.core.regions import MemoryRegion, ProtectionDomain
from softverbs.device import Device
from softverbs.links.faults import FaultLink
from softverbs.links.inproc import Network

US = 1_000
MS = 1_000_000
SECOND = 1_000_000_000

RESET, INIT, RTR, RTS, SQD, SQE, ERR = range(7)
QPT_RC = 2
LOCAL_WRITE, REMOTE_WRITE, REMOTE_READ, REMOTE_ATOMIC, MW_BIND = 1, 2, 4, 8, 16
REMOTE = REMOTE_WRITE | REMOTE_READ | REMOTE_ATOMIC
ALL = LOCAL_WRITE | REMOTE | MW_BIND

#: max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data
CAP = (256, 256, 4, 4, 128)
#: Attributes on the way to RTS. The time-out is 4.096 us * 2^14, 67 ms; the RNR timer 12 is 640 us.
PATH = {
    "path_mtu": 3, "rq_psn": 0x1000, "sq_psn": 0x1000, "max_rd_atomic": 4, "max_dest_rd_atomic": 4, "min_rnr_timer": 12,
    "timeout": 14, "retry_cnt": 7, "rnr_retry": 7, "qp_access_flags": REMOTE,
}  # fmt: skip
TIMEOUT_NS = 4096 << 14
RNR_NS = 640 * US

GUARD = b"\xa5"
_IDLE_TURNS = 1000


class StuckError(AssertionError):
    """Nothing can happen any more, or not in the time allowed, and still something waits."""


class Clock:
    """Virtual time, ns."""

    def __init__(self) -> None:
        self.now = SECOND

    def __call__(self) -> int:
        return self.now


class Region:
    """Registered memory between two guard areas that nobody may touch."""

    def __init__(self, node: "Node", pd: ProtectionDomain, size: int, access: int, iova: int, guard: int) -> None:
        self.size = size
        self.iova = iova
        self._node = node
        buffer = (ctypes.c_char * (guard + size + guard + 64))()
        start = (ctypes.addressof(buffer) + guard + 63 & -64) - ctypes.addressof(buffer)
        self._whole = memoryview(buffer).cast("B")
        self._front = self._whole[:start]
        self._behind = self._whole[start + size :]
        self._front[:] = GUARD * len(self._front)
        self._behind[:] = GUARD * len(self._behind)
        self.view = self._whole[start : start + size]
        self.address = ctypes.addressof(buffer) + start
        self.mr: MemoryRegion = node.port.regions.register(pd, self.address, size, access, iova, buffer)

    @property
    def key(self) -> int:
        """lkey and rkey, which are one number."""
        return self.mr.lkey

    def untouched(self) -> bool:
        """Whether the guard areas are as they were."""
        return all(area == GUARD * len(area) for area in (self._front, self._behind))

    def at(self, offset: int, length: int) -> bytes:
        return bytes(self.view[offset : offset + length])

    def put(self, offset: int, data: bytes) -> None:
        self.view[offset : offset + len(data)] = data

    def word(self, offset: int) -> int:
        """The 64-bit integer at ``offset``."""
        return int.from_bytes(self.at(offset, 8), sys.byteorder)

    def deregister(self) -> None:
        self._node.port.regions.deregister(self.mr)


class Node:
    """A device of the world. Every frame it sends passes ``Sim.tap`` and then the faults, unless it is ``bare``."""

    def __init__(
        self, sim: "Sim", address: str, seed: int, options: Options | None, bare: bool, faults: dict[str, Any]
    ) -> None:
        self.sim = sim
        self.name = address
        self.link: Any = sim.network.link(address)
        if not bare:
            self.link = FaultLink(self.link, seed=seed, direction="send", script=self._tap, **faults)
        self.device = Device(link=self.link, clock=sim.clock, thread=False, options=options, seed=seed)
        self.port = self.device.port
        self.gid = self.link.gids[0]
        self.log: list[str] = []
        self.port.log = self.log.append

    def _tap(self, _: int, frame: bytes) -> list[bytes]:
        return self.sim.tap(self, frame)

    def pd(self) -> ProtectionDomain:
        return ProtectionDomain(self.port, self)

    def cq(self, cqe: int = 4096, channel: CompChannel | None = None) -> CompletionQueue:
        return CompletionQueue(self.port, self, cqe, None, channel, 0, 0)

    def counter(self, kind: int = 0) -> CompCntr:
        return CompCntr(self.port, self, 0, kind, 0)

    def region(
        self, pd: ProtectionDomain, size: int, access: int = ALL, iova: int = 0x10000, guard: int = 256
    ) -> Region:
        return Region(self, pd, size, access, iova, guard)

    def qp(
        self, pd: ProtectionDomain, send_cq: CompletionQueue, recv_cq: CompletionQueue | None = None,
        cap: tuple[int, int, int, int, int] = CAP, signal_all: bool = False,
    ) -> QueuePair:  # fmt: skip
        return QueuePair(self.port, self, pd, send_cq, recv_cq or send_cq, None, cap, QPT_RC, signal_all)

    def events(self) -> list[tuple[int, Any]]:
        """The asynchronous events since the last call: (type, object)."""
        events = list(self.port.events)
        self.port.events.clear()
        return events

    def stats(self) -> dict[str, int]:
        stats: dict[str, int] = self.port.stats()
        return stats


class Sim:
    """The world: its clock, its network, its devices, and what is to happen at which time."""

    def __init__(self, mtu: int = 65507) -> None:
        """mtu: largest frame of the network, bytes."""
        self.clock = Clock()
        self.network = Network(mtu=mtu)
        self.nodes: list[Node] = []
        #: Given the sender and a frame: the frames that go on to the faults instead.
        self.tap: Callable[[Node, bytes], list[bytes]] = lambda _, frame: [frame]
        self._agenda: list[tuple[int, int, Callable[[], None]]] = []
        self._entries = 0
        self._idle = 0

    def __enter__(self) -> "Sim":
        return self

    def __exit__(self, *exc: object) -> None:
        for node in self.nodes:
            node.device.close()

    @property
    def now(self) -> int:
        return self.clock.now

    def node(self, seed: int = 0, options: Options | None = None, bare: bool = False, **faults: Any) -> Node:
        """A new device; ``faults`` as of FaultLink, which act on what it sends; ``bare``: without even a FaultLink."""
        node = Node(self, f"10.0.0.{len(self.nodes) + 1}", seed, options, bare, faults)
        self.nodes.append(node)
        return node

    def after(self, delay: int, call: Callable[[], None]) -> None:
        """Calls ``call`` when ``delay`` ns have passed."""
        heapq.heappush(self._agenda, (self.now + delay, self._entries, call))
        self._entries += 1

    def step(self) -> bool:
        """Progress once around, or what is due, or a jump of the clock; False where nothing will ever happen again."""
        work = 0
        for node in self.nodes:
            work += node.device.progress()
        if work:
            return True
        if self._agenda and self._agenda[0][0] <= self.now:
            heapq.heappop(self._agenda)[2]()
            return True
        due = [time for time in (node.port.deadline() for node in self.nodes) if time]
        if self._agenda:
            due.append(self._agenda[0][0])
        if not due:
            return False
        if min(due) > self.now:
            self.clock.now = min(due)
            self._idle = 0
        else:
            self._idle += 1
            assert self._idle < _IDLE_TURNS, "a device wants to be called at once, again and again, and does nothing"
        return True

    def run_until(self, done: Callable[[], bool], limit: int = 3600 * SECOND) -> None:
        """Lets time pass until ``done()``; StuckError where it does not come true within ``limit`` ns."""
        end = self.now + limit
        while not done():
            if self.now > end:
                raise StuckError(f"not done within {limit / 1e9:g} s of virtual time")
            if not self.step():
                if done():
                    return
                raise StuckError("nothing can happen any more")

    def run_for(self, span: int) -> None:
        """Lets ``span`` ns pass."""
        reached: list[bool] = []
        self.after(span, lambda: reached.append(True))
        self.run_until(lambda: bool(reached))

    def settle(self) -> None:
        """Lets time pass until nothing is left to happen."""
        while self.step():
            pass


def connect(
    ours: QueuePair, theirs: QueuePair, node: Node, peer: Node, attributes: Iterable[tuple[str, int]] = (), **more: int
) -> None:
    """Takes one queue pair from RESET or INIT to RTS, towards the other; ``attributes`` replace those of ``PATH``."""
    values = {**PATH, **dict(attributes), **more}
    mask = STATE | PKEY_INDEX | PORT | ACCESS_FLAGS
    if ours.state == RESET:
        to_init = {"qp_state": INIT, "pkey_index": 0, "port_num": 1, "qp_access_flags": values["qp_access_flags"]}
        ours.modify(to_init, mask)
    to_rtr = {
        "qp_state": RTR, "ah_attr": AddressVector(peer.gid), "path_mtu": values["path_mtu"],
        "dest_qp_num": theirs.qp_num, "rq_psn": values["rq_psn"], "max_dest_rd_atomic": values["max_dest_rd_atomic"],
        "min_rnr_timer": values["min_rnr_timer"],
    }  # fmt: skip
    ours.modify(to_rtr, STATE | AV | PATH_MTU | DEST_QPN | RQ_PSN | MAX_DEST_RD_ATOMIC | MIN_RNR_TIMER)
    names = ("timeout", "retry_cnt", "rnr_retry", "sq_psn", "max_rd_atomic")
    to_rts = {"qp_state": RTS, **{name: values[name] for name in names}}
    ours.modify(to_rts, STATE | TIMEOUT | RETRY_CNT | RNR_RETRY | SQ_PSN | MAX_QP_RD_ATOMIC)


def move(qp: QueuePair, state: int) -> None:
    """Moves a queue pair to RESET, ERR, SQD or back to RTS, for which no attribute is needed."""
    qp.modify({"qp_state": state}, STATE)
