# SPDX-License-Identifier: MIT
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

from softverbs.core.base.limits import Options
from softverbs.core.memory.regions import MemoryRegion, ProtectionDomain
from softverbs.core.queues.completion import CompChannel, CompletionQueue
from softverbs.core.queues.counters import CompCntr
from softverbs.core.queues.srq import SharedReceiveQueue, XrcDomain
from softverbs.core.transport.address import AddressHandle, AddressVector
from softverbs.core.transport.qp import QueuePair
from softverbs.core.transport.qp_states import (
    ACCESS_FLAGS,
    AV,
    DEST_QPN,
    MAX_DEST_RD_ATOMIC,
    MAX_QP_RD_ATOMIC,
    MIN_RNR_TIMER,
    PATH_MTU,
    PKEY_INDEX,
    PORT,
    QKEY,
    RETRY_CNT,
    RNR_RETRY,
    RQ_PSN,
    SQ_PSN,
    STATE,
    TIMEOUT,
)
from softverbs.device import Device
from softverbs.links import base
from softverbs.links.faults import FaultLink
from softverbs.links.inproc import Network

US = 1_000
MS = 1_000_000
SECOND = 1_000_000_000

RESET, INIT, RTR, RTS, SQD, SQE, ERR = range(7)
QPT_RC, QPT_UC, QPT_UD, QPT_XRC_SEND, QPT_XRC_RECV = 2, 3, 4, 9, 10
LOCAL_WRITE, REMOTE_WRITE, REMOTE_READ, REMOTE_ATOMIC, MW_BIND = 1, 2, 4, 8, 16
REMOTE = REMOTE_WRITE | REMOTE_READ | REMOTE_ATOMIC
ALL = LOCAL_WRITE | REMOTE | MW_BIND

#: max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data
CAP = (256, 256, 4, 4, 128)
#: Attributes on the way to RTS. The time-out is 4.096 us * 2^14, 67 ms; the RNR timer 12 is 640 us.
PATH = {
    "path_mtu": 3, "rq_psn": 0x1000, "sq_psn": 0x1000, "max_rd_atomic": 4, "max_dest_rd_atomic": 4, "min_rnr_timer": 12,
    "timeout": 14, "retry_cnt": 7, "rnr_retry": 7, "qp_access_flags": REMOTE, "qkey": 0x1234567,
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


class Handle:
    """Stands for the application's address handle."""

    def __init__(self, core: AddressHandle) -> None:
        self.core = core

    def _open(self) -> AddressHandle:
        return self.core


class Node:
    """A device of the world. Every frame it sends passes ``Sim.tap`` and then the faults, unless it is ``bare``."""

    def __init__(
        self, sim: "Sim", address: str | list[str], seed: int, options: Options | None, bare: bool,
        faults: dict[str, Any],
    ) -> None:  # fmt: skip
        self.sim = sim
        self.name = address if isinstance(address, str) else address[0]
        self.link: Any = sim.network.link(address)
        if not bare:
            self.link = FaultLink(self.link, seed=seed, direction="send", script=self._tap, **faults)
            if sim.ear is not None:
                self.link = _Ear(self.link, lambda *heard: sim.ear(self, *heard))
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
        self, pd: ProtectionDomain | None, send_cq: CompletionQueue | None, recv_cq: CompletionQueue | None = None,
        cap: tuple[int, int, int, int, int] = CAP, signal_all: bool = False, kind: int = QPT_RC,
        srq: SharedReceiveQueue | None = None, xrcd: XrcDomain | None = None, number: int = -1,
    ) -> QueuePair:  # fmt: skip
        recv_cq = None if kind in (QPT_XRC_SEND, QPT_XRC_RECV) else recv_cq or send_cq
        return QueuePair(self.port, self, pd, send_cq, recv_cq, srq, cap, kind, signal_all, xrcd, number)

    def srq(
        self, pd: ProtectionDomain, max_wr: int = 256, max_sge: int = 4, xrcd: XrcDomain | None = None,
        cq: CompletionQueue | None = None,
    ) -> SharedReceiveQueue:  # fmt: skip
        """A shared receive queue; with an XRC domain and a completion queue one of XRC targets."""
        return SharedReceiveQueue(self.port, self, pd, max_wr, max_sge, 0, xrcd, cq)

    def xrcd(self) -> XrcDomain:
        return XrcDomain(self.port, self)

    def handle(self, pd: ProtectionDomain, gid: bytes, **vector: Any) -> "Handle":
        """An address handle that a work request can name."""
        return Handle(AddressHandle(self.port, pd, AddressVector(gid, **vector)))

    def events(self) -> list[tuple[int, Any]]:
        """The asynchronous events since the last call: (type, object)."""
        events = list(self.port.events)
        self.port.events.clear()
        return events

    def stats(self) -> dict[str, int]:
        stats: dict[str, int] = self.port.stats()
        return stats


class _Ear(base.Middleware):
    """Hears every frame just before the device does, one by one."""

    def __init__(self, inner: Any, hear: Callable[[bytes, bytes], None]) -> None:
        super().__init__(inner)
        self._hear = hear
        self._sink: Any = None
        self._peers: dict[int, tuple[Any, bytes]] = {}

    def receive(self, now: int, sink: Any) -> int:
        self._sink = sink
        self._peers.clear()
        return self.inner.receive(now, _Hearing(self))

    def peer(self, source: bytes, port: int, index: int, dgid: bytes | None) -> object:
        peer = base.peer_of(self._sink, source, port, index, dgid)
        self._peers[id(peer)] = peer, dgid or self.gids[index]
        return peer

    def hand(self, peer: object, address: int, length: int, segment: int) -> None:
        for start in range(0, length, segment):
            size = min(segment, length - start)
            self._hear(self._peers[id(peer)][1], ctypes.string_at(address + start, size))
            self._sink.receive(peer, address + start, size, size)


class _Hearing:
    """What the inner link takes for its sink."""

    def __init__(self, ear: _Ear) -> None:
        self.ear = ear

    def peer(self, source: bytes, port: int, index: int, dgid: bytes | None = None, /) -> object:
        return self.ear.peer(source, port, index, dgid)

    def receive(self, peer: object, address: int, length: int, segment: int, /) -> None:
        self.ear.hand(peer, address, length, segment)


class Sim:
    """The world: its clock, its network, its devices, and what is to happen at which time."""

    def __init__(self, mtu: int = 65507, ear: "Callable[[Node, bytes, bytes], None] | None" = None) -> None:
        """
        mtu: largest frame of the network, bytes; ear: told of every frame just before a device gets it, after all
        faults: the device, the GID that it was sent to, the frame.
        """
        self.ear = ear
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

    def node(
        self, seed: int = 0, options: Options | None = None, bare: bool = False, address: str | list[str] = "",
        **faults: Any,
    ) -> Node:  # fmt: skip
        """A new device; ``faults`` as of FaultLink, which act on what it sends; ``bare``: without even a FaultLink."""
        node = Node(self, address or f"10.0.0.{len(self.nodes) + 1}", seed, options, bare, faults)
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
        due = [time for time in (node.device.deadline() for node in self.nodes) if time]
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


#: Attributes for the steps to INIT, RTR and RTS, by type of queue pair (ibv_modify_qp(3)).
_INIT = {"pkey_index": PKEY_INDEX, "port_num": PORT}
_CONNECTED = {**_INIT, "qp_access_flags": ACCESS_FLAGS}
_PATH = {"ah_attr": AV, "path_mtu": PATH_MTU, "dest_qp_num": DEST_QPN, "rq_psn": RQ_PSN}
_ANSWERS = {"max_dest_rd_atomic": MAX_DEST_RD_ATOMIC, "min_rnr_timer": MIN_RNR_TIMER}
_TIMER, _START = {"timeout": TIMEOUT}, {"sq_psn": SQ_PSN}
_ASKS = {**_TIMER, "retry_cnt": RETRY_CNT, "rnr_retry": RNR_RETRY, **_START, "max_rd_atomic": MAX_QP_RD_ATOMIC}
STEPS: dict[int, tuple[dict[str, int], dict[str, int], dict[str, int]]] = {
    QPT_RC: (_CONNECTED, {**_PATH, **_ANSWERS}, _ASKS),
    QPT_UC: (_CONNECTED, _PATH, _START),
    QPT_UD: ({**_INIT, "qkey": QKEY}, {}, _START),
    QPT_XRC_SEND: (_CONNECTED, _PATH, _ASKS),
    QPT_XRC_RECV: (_CONNECTED, {**_PATH, **_ANSWERS}, {**_TIMER, **_START}),
}


def connect(
    ours: QueuePair, theirs: QueuePair | None, node: Node, peer: Node | None,
    attributes: Iterable[tuple[str, int]] = (), to: int = RTS, **more: int,
) -> None:  # fmt: skip
    """Takes one queue pair from RESET or INIT to RTS, towards the other; ``attributes`` replace those of ``PATH``.

    to: stop in this state; theirs, peer: None for UD.
    """
    values: dict[str, Any] = {"pkey_index": 0, "port_num": 1, **PATH, **dict(attributes), **more}
    if theirs is not None and peer is not None:
        values.setdefault("dest_qp_num", theirs.qp_num)
        values.setdefault("ah_attr", AddressVector(peer.gid))
    for state, names in zip((INIT, RTR, RTS), STEPS[ours.qp_type], strict=True):
        if ours.state < state <= to:
            step(ours, state, names, values)


def step(qp: QueuePair, state: int, names: dict[str, int], values: dict[str, Any]) -> None:
    """One step, with these attributes (name: bit)."""
    mask = STATE
    for bit in names.values():
        mask |= bit
    qp.modify({"qp_state": state, **{name: values[name] for name in names}}, mask)


def move(qp: QueuePair, state: int) -> None:
    """Moves a queue pair to RESET, ERR, SQD or back to RTS, for which no attribute is needed."""
    qp.modify({"qp_state": state}, STATE)
