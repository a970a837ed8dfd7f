# SPDX-License-Identifier: MIT
"""Queue pairs of any type, each on a device of its own, with memory, a completion queue and six counters."""

import ctypes
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from tests.netsim import frames, sim
from tests.netsim.sim import (
    CAP,
    ERR,
    PATH,
    QPT_RC,
    QPT_UD,
    QPT_XRC_RECV,
    QPT_XRC_SEND,
    Handle,
    Node,
    Region,
    Sim,
    connect,
)

from softverbs.core.base.limits import Options
from softverbs.core.memory.regions import ProtectionDomain
from softverbs.core.queues.completion import CompletionQueue
from softverbs.core.queues.srq import SharedReceiveQueue, XrcDomain
from softverbs.core.queues.wr import SGE, WC, RecvWR, SendWR

SEND, RECV, READ, REMOTE_READ, WRITE, REMOTE_WRITE = OPS = tuple(1 << bit for bit in range(6))
OP_NAMES = dict(zip(OPS, ("SEND", "RECV", "READ", "REMOTE_READ", "WRITE", "REMOTE_WRITE"), strict=True))

WR_WRITE, WR_WRITE_IMM, WR_SEND, WR_SEND_IMM, WR_READ, WR_CAS, WR_FAA, WR_LOCAL_INV, WR_BIND, WR_SEND_INV = range(10)
WR_FLUSH, WR_ATOMIC_WRITE = 14, 15
WC_BIND_MW = 5
FENCE, SIGNALED, SOLICITED, INLINE = 1, 2, 4, 8
#: Which counter counts a work request, by its opcode.
BIT = {
    WR_WRITE: WRITE, WR_WRITE_IMM: WRITE, WR_SEND: SEND, WR_SEND_IMM: SEND, WR_SEND_INV: SEND, WR_READ: READ,
    WR_CAS: READ, WR_FAA: READ, WR_ATOMIC_WRITE: WRITE,
}  # fmt: skip

(SUCCESS, LOC_LEN_ERR, LOC_QP_OP_ERR, _, LOC_PROT_ERR, FLUSH_ERR, MW_BIND_ERR, BAD_RESP_ERR, LOC_ACCESS_ERR,
 REM_INV_REQ_ERR, REM_ACCESS_ERR, REM_OP_ERR, RETRY_EXC_ERR, RNR_RETRY_EXC_ERR) = range(14)  # fmt: skip

Rule = Callable[[bytes], "list[bytes] | None"]


class End:
    """One end: a queue pair of any type. Its memory starts at the same ``iova`` on all ends."""

    peer: "End"

    def __init__(
        self, node: Node, size: int, cap: tuple[int, int, int, int, int] = CAP, kind: int = QPT_RC, *,
        pd: ProtectionDomain | None = None, cq: CompletionQueue | None = None, memory: Region | None = None,
        srq: SharedReceiveQueue | None = None, xrcd: XrcDomain | None = None, counted: bool = True, number: int = -1,
    ) -> None:  # fmt: skip
        """
        size: of its memory, unless ``memory`` is given; kind: IBV_QPT_*; srq: where its receives come from, of an XRC
        target those that ``receive`` posts to; counted: six counters, one for each operation.
        """
        self.node = node
        self.kind = kind
        self.pd = pd or node.pd()
        self.cq = cq or node.cq()
        self.memory: Region = memory or node.region(self.pd, size)
        self.srq = srq
        target = kind == QPT_XRC_RECV
        self.qp = node.qp(
            None if target else self.pd, None if target else self.cq, cap=cap, kind=kind, srq=None if target else srq,
            xrcd=xrcd if target else None, number=number,
        )  # fmt: skip
        self.counters = {op: node.counter() for op in OPS} if counted else {}
        for op, counter in self.counters.items():
            self.qp.attach_comp_cntr(counter, op, 0)
        self._polled: list[WC] = []
        self._handles: dict[bytes, Handle] = {}

    def sge(self, offset: int, length: int) -> SGE:
        return SGE(self.memory.iova + offset, length, self.memory.key)

    def handle(self, gid: bytes | None = None) -> Handle:
        """The address handle to a GID; to the peer without one."""
        gid = gid or self.peer.node.gid
        if gid not in self._handles:
            self._handles[gid] = self.node.handle(self.pd, gid)
        return self._handles[gid]

    def wr(
        self, opcode: int, offset: int = 0, length: int = 0, to: int | None = None, *, flags: int = SIGNALED,
        wr_id: int = 0, imm: int = 0, add: int = 0, swap: int = 0, rkey: int | None = None,
        sg: list[SGE] | None = None, handle: Handle | None = None, qpn: int | None = None, qkey: int = PATH["qkey"],
        srqn: int | None = None,
    ) -> SendWR:  # fmt: skip
        """A send work request of ``length`` bytes at ``offset``, whose remote side is ``to`` in the peer's memory.

        handle, qpn, qkey: of a datagram, else those of the peer; srqn: of an XRC message, else the peer's SRQ.
        """
        if sg is None:
            sg = [self.sge(offset, length)] if length else []
        wr = SendWR(wr_id, opcode, len(sg), imm, sg, flags)
        if self.kind == QPT_UD:
            wr.set_wr_ud(handle or self.handle(), self.peer.qp.qp_num if qpn is None else qpn, qkey)
            return wr
        if self.kind == QPT_XRC_SEND and (srqn is not None or self.peer.srq is not None):
            wr.set_qp_type_xrc(self.peer.srq.srq_num if srqn is None else srqn)  # type: ignore[union-attr]
        remote = self.peer.memory
        key = remote.key if rkey is None else rkey
        if opcode in (WR_CAS, WR_FAA):
            wr.set_wr_atomic(key, remote.iova + (to or 0), add, swap)
        elif to is not None:
            wr.set_wr_rdma(key, remote.iova + to)
        return wr

    def post(self, *args: Any, **more: Any) -> None:
        """Posts what ``wr`` makes of the arguments."""
        self.qp.post_send(self.wr(*args, **more))

    def receive(self, offset: int = 0, length: int = 0, wr_id: int = 0, sg: list[SGE] | None = None) -> None:
        """Posts a receive, to the SRQ where the end has one."""
        if sg is None:
            sg = [self.sge(offset, length)] if length else []
        (self.srq or self.qp).post_recv(RecvWR(wr_id, len(sg), sg))

    def open_window(self, offset: int, length: int, access: int = sim.REMOTE_WRITE | sim.REMOTE_READ) -> int:
        """Binds a new memory window of type 2, and waits for it; its key. Completions until then are dropped."""
        window = self.node.port.regions.allocate_window(self.pd, 2)
        wr = self.wr(WR_BIND)
        address = self.memory.iova + offset
        wr.set_bind_wr(window, SimpleNamespace(mr=self.memory.mr, addr=address, length=length, mw_access_flags=access))
        self.qp.post_send(wr)
        self.node.sim.run_until(lambda: any(wc.opcode == WC_BIND_MW for wc in self.polled()))
        return int(wr.rkey)

    def polled(self) -> list[WC]:
        """Completions since the last call. Does not drive the device."""
        while self.cq.count():
            self._polled += self.cq.poll(64)
        polled, self._polled = self._polled, []
        return polled

    def wait(self, count: int = 1, limit: int = 3600 * 10**9) -> list[WC]:
        """Lets time pass until there are ``count`` completions, and returns them all."""
        self.node.sim.run_until(lambda: self.cq.count() >= count, limit)
        return self.polled()

    def status(self) -> int:
        """Lets time pass until there is a completion; its status."""
        return int(self.wait()[0].status)

    def done(self) -> list[tuple[int, int]]:
        """Completions since the last call: (wr_id, status)."""
        return [(wc.wr_id, wc.status) for wc in self.polled()]

    def put(self, offset: int, data: bytes) -> None:
        self.memory.put(offset, data)

    def at(self, offset: int, length: int) -> bytes:
        return self.memory.at(offset, length)

    def count(self, op: int) -> tuple[int, int]:
        """Completions and errors of the counter of ``op``."""
        counter = self.counters[op]
        return counter.visible_value, counter.visible_errors

    def forge(self, body: bytes) -> bytes:
        """A frame as if this end had sent it."""
        return frames.Seal(self.node.gid, self.peer.node.gid)(body)


class Pair:
    """The world of one connection from ``a`` to ``b``; what is on the wire is in ``wire``, as (sender, frame)."""

    def __init__(
        self, size: int = 1 << 16, cap: tuple[int, int, int, int, int] = CAP, options: Options | None = None,
        network_mtu: int = 65507, *, kind: int = QPT_RC, shared: bool = False, addresses: tuple[str, str] = ("", ""),
        **attributes: int,
    ) -> None:  # fmt: skip
        """
        kind: of both; XRC_SEND makes ``b`` the target, with an SRQ; shared: ``b`` has an SRQ in any case.
        attributes: of the queue pairs, instead of those of ``sim.PATH``, on both ends.
        """
        self.sim = Sim(network_mtu)
        self.a = End(self.sim.node(seed=1, options=options, address=addresses[0]), size, cap, kind)
        node = self.sim.node(seed=2, options=options, address=addresses[1])
        self.b = self._second(node, size, cap, kind, shared)
        self.a.peer, self.b.peer = self.b, self.a
        self.attributes = attributes
        self.wire: list[tuple[End, bytes]] = []
        self.rule: Rule | None = None
        self.sim.tap = self._tap
        self.connect()

    def _second(self, node: Node, size: int, cap: tuple[int, int, int, int, int], kind: int, shared: bool) -> End:
        xrc = kind == QPT_XRC_SEND
        if not (xrc or shared):
            return End(node, size, cap, kind)
        pd, cq = node.pd(), node.cq()
        xrcd = node.xrcd() if xrc else None
        srq = node.srq(pd, xrcd=xrcd, cq=cq if xrc else None)
        return End(node, size, cap, QPT_XRC_RECV if xrc else kind, pd=pd, cq=cq, srq=srq, xrcd=xrcd)

    def __enter__(self) -> "Pair":
        return self

    def __exit__(self, *exc: object) -> None:
        for end in (self.a, self.b):
            assert end.memory.untouched(), "something wrote beside a memory region"
        self.sim.__exit__(*exc)

    def connect(self, **attributes: int) -> None:
        for end in (self.a, self.b):
            connect(end.qp, end.peer.qp, end.node, end.peer.node, {**self.attributes, **attributes}.items())
        self.sim.settle()

    def _tap(self, node: Node, frame: bytes) -> list[bytes]:
        self.wire.append((self.a if node is self.a.node else self.b, frame))
        result = self.rule(frame) if self.rule is not None else None
        return [frame] if result is None else result

    def sent(self, end: End, *opcodes: int) -> list[bytes]:
        """Frames that ``end`` has sent, of these opcodes or all."""
        return [frame for sender, frame in self.wire if sender is end and (not opcodes or frame[0] in opcodes)]

    def inject(self, end: End, body: bytes) -> None:
        """Lets ``end``'s device send a frame, sealed, that its queue pair knows nothing of."""
        frame = end.forge(body)
        buffer = ctypes.create_string_buffer(frame, len(frame))
        route = end.node.link.route(0, end.peer.node.gid, 0, 0, 64)
        end.node.link.send(self.sim.now, route, ctypes.addressof(buffer), len(frame), len(frame))
        self.sim.run_for(0)

    def finish(self) -> None:
        """Ends the connection: both ends in ERR, and everything flushed."""
        for end in (self.a, self.b):
            if end.qp.state != ERR:
                end.qp.modify({"qp_state": ERR}, 1)


def dropping(*opcodes: int, times: int = 1, skip: int = 0) -> Rule:
    """A rule: frames of these opcodes, or of all, are lost: not the first ``skip``, but the next ``times``."""
    seen = 0

    def rule(frame: bytes) -> list[bytes] | None:
        nonlocal seen
        if opcodes and frame[0] not in opcodes:
            return None
        seen += 1
        return [] if skip < seen <= skip + times else None

    return rule
