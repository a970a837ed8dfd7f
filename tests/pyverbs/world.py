# SPDX-License-Identifier: MIT
"""Two sides of a reliable connection in one process, in virtual time: what the tests of the contract stand on.

``World("network")`` has two devices on one in-process network, ``World("loopback")`` both sides on one device, and
``World("udp")`` two devices with real sockets on loopback, in real time. Nothing here sleeps in virtual time: when no
device has anything to do, the clock jumps to the next deadline, and where there is none the test fails.
"""

import os
import random
import select
import sys
import time
from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any

import pytest

from softverbs.device import Device
from softverbs.links.faults import FaultLink
from softverbs.links.inproc import Network
from softverbs.pyverbs import libibverbs_enums as e
from softverbs.pyverbs.addr import AHAttr, GlobalRoute
from softverbs.pyverbs.comp_cntr import CompCntr, CompCntrInitAttr
from softverbs.pyverbs.cq import CQ
from softverbs.pyverbs.device import Context
from softverbs.pyverbs.mr import MR
from softverbs.pyverbs.pd import PD
from softverbs.pyverbs.pyverbs_error import PyverbsRDMAError
from softverbs.pyverbs.qp import QP, QPAttachCompCntrAttr, QPAttr, QPCap, QPInitAttr
from softverbs.pyverbs.wr import SGE, RecvWR, SendWR

MS = 1_000_000
SECOND = 1_000_000_000
SIZE = 1 << 16
REMOTE = e.IBV_ACCESS_REMOTE_WRITE | e.IBV_ACCESS_REMOTE_READ | e.IBV_ACCESS_REMOTE_ATOMIC
ALL = e.IBV_ACCESS_LOCAL_WRITE | REMOTE | e.IBV_ACCESS_MW_BIND
SIGNALED = e.IBV_SEND_SIGNALED

SEND, RECV, READ, REMOTE_READ, WRITE, REMOTE_WRITE = OPS = tuple(1 << bit for bit in range(6))
OP_NAMES = dict(zip(OPS, ("SEND", "RECV", "READ", "REMOTE_READ", "WRITE", "REMOTE_WRITE"), strict=True))

#: First byte of a packet: its opcode (IBA table 38, reliable connection).
WRITE_MIDDLE, WRITE_LAST, WRITE_ONLY, READ_REQUEST, READ_ONLY, ACK, ATOMIC_ACK, FETCH_ADD = (
    0x07, 0x08, 0x0A, 0x0C, 0x10, 0x11, 0x12, 0x14,
)  # fmt: skip

#: All attributes on the way to RTS; single ones are replaced by keyword.
PATH = {
    "path_mtu": e.IBV_MTU_1024, "qp_access_flags": REMOTE, "rq_psn": 0x1000, "sq_psn": 0x1000,
    "max_rd_atomic": 4, "max_dest_rd_atomic": 4, "min_rnr_timer": 12, "timeout": 14, "retry_cnt": 7, "rnr_retry": 7,
}  # fmt: skip
CAP = {"max_send_wr": 64, "max_recv_wr": 64, "max_send_sge": 4, "max_recv_sge": 4, "max_inline_data": 64}


class WaitsForEverError(AssertionError):
    """Nothing can happen any more, in any device, and still something waits."""


class Wire:
    """What the frames of a network pass through, in both directions: ``rule`` may replace each by any number."""

    def __init__(self) -> None:
        self.frames: list[bytes] = []
        self.rule: Callable[[bytes], list[bytes] | None] | None = None

    def __call__(self, _index: int, frame: bytes) -> list[bytes]:
        self.frames.append(frame)
        result = self.rule(frame) if self.rule is not None else None
        return [frame] if result is None else result

    def count(self, *opcodes: int) -> int:
        return sum(frame[0] in opcodes for frame in self.frames)

    def drop(self, opcode: int, times: int = 1, skip: int = 0) -> None:
        """Loses frames of this opcode: not the first ``skip``, the next ``times``."""
        seen = 0

        def rule(frame: bytes) -> list[bytes] | None:
            nonlocal seen
            if frame[0] != opcode:
                return None
            seen += 1
            return [] if skip < seen <= skip + times else None

        self.rule = rule


class Side:
    """One end: a context with a protection domain, a completion queue and a region with every right."""

    peer: "Side"

    def __init__(self, device: Device) -> None:
        self.device = device
        self.context = Context(device=device)
        os.set_blocking(self.context.async_fd, False)
        self.pd = PD(self.context)
        self.cq = CQ(self.context, 256)
        self.memory = bytearray(SIZE)
        self.mr = MR(self.pd, self.memory, ALL)
        self._windows: list[Any] = []

    def close(self) -> None:
        with self.device.lock:
            for window in self._windows:
                self.device.port.regions.deregister(window)
        self.context.close()

    # -- objects

    def qp(self, send_cq: Any = None, recv_cq: Any = None, signal_all: int = 0, pd: PD | None = None, **cap: int) -> QP:
        send_cq = send_cq or self.cq
        init = QPInitAttr(e.IBV_QPT_RC, None, send_cq, recv_cq or send_cq, None, QPCap(**{**CAP, **cap}), signal_all)
        return QP(pd or self.pd, init)

    def counter(self, kind: int = e.IBV_COMP_CNTR_TYPE_WRS) -> CompCntr:
        return CompCntr(self.context, CompCntrInitAttr(cntr_type=kind))

    def count(self, qp: QP, ops: int, kind: int = e.IBV_COMP_CNTR_TYPE_WRS) -> CompCntr:
        """A new counter of ``ops`` of ``qp``."""
        counter = self.counter(kind)
        qp.attach_comp_cntr(counter, QPAttachCompCntrAttr(ops))
        return counter

    def count_all(self, qp: QP, kind: int = e.IBV_COMP_CNTR_TYPE_WRS) -> dict[str, CompCntr]:
        """A counter for each operation bit, by name."""
        return {name: self.count(qp, bit, kind) for bit, name in OP_NAMES.items()}

    def window(self) -> Any:
        """A memory window of type 2 that nothing is bound to; the Python face has no class for it yet."""
        with self.device.lock:
            self._windows.append(self.device.port.regions.allocate_window(self.pd._core, 2))
        return self._windows[-1]

    # -- work requests

    def sge(self, length: int, offset: int = 0, mr: MR | None = None) -> SGE:
        mr = mr or self.mr
        return SGE(mr.buf + offset, length, mr.lkey)

    def wr(
        self,
        opcode: int,
        wr_id: int = 1,
        length: int = 8,
        offset: int = 0,
        at: int = 0,
        flags: int = SIGNALED,
        imm: int = 0,
        key: int | None = None,
        sg: list[SGE] | None = None,
        operands: tuple[int, int] = (1, 0),
    ) -> SendWR:
        """A request of ``length`` bytes from ``offset`` here to, or from, ``at`` in the peer's region."""
        sg = [self.sge(length, offset)] if sg is None else sg
        wr = SendWR(wr_id, opcode, len(sg), imm, sg, flags)
        remote = self.peer.mr
        key = remote.rkey if key is None else key
        if opcode in (e.IBV_WR_ATOMIC_CMP_AND_SWP, e.IBV_WR_ATOMIC_FETCH_AND_ADD):
            wr.set_wr_atomic(key, remote.buf + at, *operands)
        elif opcode in (e.IBV_WR_RDMA_WRITE, e.IBV_WR_RDMA_WRITE_WITH_IMM, e.IBV_WR_RDMA_READ, e.IBV_WR_ATOMIC_WRITE):
            wr.set_wr_rdma(key, remote.buf + at)
        return wr

    def bind(
        self, window: Any, wr_id: int = 1, length: int = SIZE, rights: int = REMOTE, mr: MR | None = None
    ) -> SendWR:
        """Binds a window to the start of a region, by default this side's."""
        mr = mr or self.mr
        wr = SendWR(wr_id, e.IBV_WR_BIND_MW)
        wr.set_bind_wr(window, SimpleNamespace(mr=mr, addr=mr.buf, length=length, mw_access_flags=rights))
        return wr

    def post_recv(self, qp: QP, *wr_ids: int, length: int = 4096, offset: int = 0, sg: list[SGE] | None = None) -> None:
        for wr_id in wr_ids:
            elements = [self.sge(length, offset)] if sg is None else sg
            qp.post_recv(RecvWR(wr_id, len(elements), elements))

    # -- what happened

    def poll(self, cq: Any = None, count: int = 1000) -> list[Any]:
        return (cq or self.cq).poll(count)[1]

    def done(self, cq: Any = None) -> list[tuple[int, int]]:
        """Number and status of each completion that waits."""
        return [(wc.wr_id, wc.status) for wc in self.poll(cq)]

    def events(self) -> list[tuple[int, Any]]:
        """Type and object of each asynchronous event that waits; all are acknowledged."""
        found = []
        while True:
            try:
                event = self.context.get_async_event()
            except PyverbsRDMAError:
                return found
            found.append((event.event_type, event.element))
            event.ack()


class World:
    """Side ``a``, side ``b``, and time."""

    def __init__(
        self,
        over: str = "network",
        wire: bool = False,
        faults: dict[str, Any] | None = None,
        plan: str | None = None,
        **options: Any,
    ):
        """
        :param over: ``network``, ``loopback`` or ``udp``
        :param wire: whether frames pass through ``self.wire``
        :param faults: arguments of FaultLink, for both directions
        :param plan: what is to fail at the first device (docs/faults.md)
        :param options: of the devices
        """
        self.now = SECOND
        self.real = over == "udp"
        self.wire = Wire()
        self.devices: list[Device] = []
        network = Network()
        for number in (1,) if over == "loopback" else (1, 2):
            if self.real:
                self.devices.append(Device(f"udp{number}", **options))
                continue
            link: Any = network.link(f"10.0.0.{number}")
            if wire or faults:
                link = FaultLink(link, direction="send", **(faults or {"script": self.wire}))
            self.devices.append(
                Device(
                    f"host{number}",
                    link=link,
                    thread=False,
                    clock=self.clock,
                    idle=self.idle,
                    seed=number,
                    faults=plan if number == 1 else None,
                    **options,
                )
            )
        self.a = Side(self.devices[0])
        self.b = Side(self.devices[-1])
        self.a.peer, self.b.peer = self.b, self.a
        self._kept: list[QP] = []

    def __enter__(self) -> "World":
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        for side in (self.a, self.b):
            side.close()
        for device in self.devices:
            device.close()

    # -- connections

    def attr(self, qp: QP, dest: int, **changes: Any) -> QPAttr:
        """Everything that ``qp`` needs on its way to RTS, towards number ``dest`` of the other side."""
        attr = QPAttr()
        for name, value in {**PATH, "dest_qp_num": dest, **changes}.items():
            setattr(attr, name, value)
        gid = self.side_of(qp).peer.context.query_gid(1, 0)
        attr.ah_attr = AHAttr(is_global=1, gr=GlobalRoute(gid, hop_limit=64))
        return attr

    def side_of(self, qp: QP) -> Side:
        return self.a if qp.context is self.a.context else self.b

    def connect(self, first: QP, second: QP, **changes: Any) -> tuple[QP, QP]:
        first.to_rts(self.attr(first, second.qp_num, **changes))
        second.to_rts(self.attr(second, first.qp_num, **changes))
        self._kept += [first, second]
        return first, second

    def pair(self, **changes: Any) -> tuple[QP, QP]:
        """A connected pair: a QP of side ``a``, one of side ``b``."""
        return self.connect(self.a.qp(), self.b.qp(), **changes)

    def move(self, qp: QP, state: int, dest: int = 0xFFFFF0, **changes: Any) -> QP:
        """Moves a QP in RESET to any state; its peer does not exist."""
        attr = self.attr(qp, dest, **changes)
        if state == e.IBV_QPS_INIT:
            qp.to_init(attr)
        elif state == e.IBV_QPS_RTR:
            qp.to_rtr(attr)
        elif state != e.IBV_QPS_RESET:
            qp.to_rts(attr)
            if state != e.IBV_QPS_RTS:
                set_state(qp, state)
        return qp

    # -- time

    def clock(self) -> int:
        return self.now

    def run(self) -> None:
        """Progress until there is nothing to do at this time."""
        for _ in range(100_000):
            if not self._work():
                return
        raise AssertionError("there is no end to it")

    def _work(self) -> bool:
        """One turn of each device; whether there was, or is, something to do."""
        worked = sum([device.progress() for device in self.devices])
        waiting = [device.link.deadline() for device in self.devices]
        return bool(worked) or any(due is not None and due <= self.now for due in waiting)

    def idle(self, due: int | None = None) -> None:
        """What a wait does instead of sleeping: lets others work, or else moves the clock to the next deadline."""
        if self._work():
            return
        if not self._jump(due):
            raise WaitsForEverError("nothing is left that could end this wait")

    def settle(self, jumps: int = 1000) -> None:
        """Progress, and time, until nothing is left to wait for."""
        for _ in range(jumps):
            self.run()
            if not self._jump():
                return
        raise AssertionError("there is no end to it")

    def pass_time(self, ns: int) -> None:
        """Lets time pass, with all that happens meanwhile."""
        end = self.now + ns
        self.run()
        while self._jump(end) and self.now < end:
            self.run()
        self.run()

    def until(self, done: Callable[[], Any]) -> None:
        """Progress, and time, until ``done()``."""
        limit = time.monotonic() + 30
        while not done():
            if self.real:
                assert time.monotonic() < limit, "30 s were not enough"
                for device in self.devices:
                    device.progress()
            else:
                self.idle()

    def _jump(self, *more: int | None) -> bool:
        """Moves the clock to the nearest deadline; False where there is none."""
        deadlines: Iterable[int | None] = (*more, *(device.port.deadline() for device in self.devices))
        due = [deadline for deadline in deadlines if deadline]
        if due:
            self.now = max(self.now + 1, min(due))
        return bool(due)


def set_state(qp: QP, state: int) -> None:
    """Moves a QP to ERR, RESET or SQD, which need no other attribute."""
    qp.modify(QPAttr(qp_state=state), e.IBV_QP_STATE)


def values(counters: dict[str, CompCntr]) -> dict[str, tuple[int, int]]:
    """What moved: completions and errors of each counter that is not 0 / 0."""
    pairs = {name: counter.read_pair() for name, counter in counters.items()}
    return {name: pair for name, pair in pairs.items() if pair != (0, 0)}


def refused(code: int, act: Callable[..., Any], *args: Any) -> str:
    """``act`` is refused with this errno; returns the reason."""
    with pytest.raises(PyverbsRDMAError) as caught:
        act(*args)
    assert caught.value.errno == code, caught.value
    assert caught.value.reason
    return caught.value.reason


def readable(fd: Any) -> bool:
    """Whether a descriptor is readable now."""
    poller = select.poll()
    poller.register(fd, select.POLLIN)
    return bool(poller.poll(0))


def pattern(length: int, seed: int = 1) -> bytes:
    """Bytes that look random and are always the same."""
    return random.Random(seed).randbytes(length)


def fill(memory: bytearray, data: bytes, offset: int = 0) -> None:
    memory[offset : offset + len(data)] = data


def word(memory: bytearray, offset: int = 0) -> int:
    """A 64-bit number of this machine."""
    return int.from_bytes(memory[offset : offset + 8], sys.byteorder)


def set_word(memory: bytearray, value: int, offset: int = 0) -> None:
    memory[offset : offset + 8] = value.to_bytes(8, sys.byteorder)
