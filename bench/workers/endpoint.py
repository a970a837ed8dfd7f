# SPDX-License-Identifier: MIT
"""One end of a reliable connection, through the public API alone: what the softverbs workers measure with."""

from __future__ import annotations

import ctypes
import random
from typing import Any

import softverbs.core.memory.raw
from softverbs.pyverbs import libibverbs_enums as e
from softverbs.pyverbs.addr import GID, AHAttr, GlobalRoute
from softverbs.pyverbs.cq import CQ, CompChannel
from softverbs.pyverbs.device import Context
from softverbs.pyverbs.mr import MR
from softverbs.pyverbs.pd import PD
from softverbs.pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr
from softverbs.pyverbs.wr import SGE, SendWR

PAGE = 4096
ACCESS = e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_REMOTE_WRITE | e.IBV_ACCESS_REMOTE_READ
RECEIVES = 64
READS_IN_FLIGHT = 16


def build() -> str:
    """Which build of the core this process has loaded: ``compiled`` or ``uncompiled``."""
    return "uncompiled" if str(softverbs.core.memory.raw.__file__).endswith(".py") else "compiled"


def pattern(size: int) -> bytes:
    """The bytes that a message of ``size`` bytes carries: the same on both sides, so that each can check the other."""
    return random.Random(size).randbytes(size)


class Endpoint:
    """A QP with its queues and one registered region: the outgoing message, the incoming one, and a word of control.

    Args:
        context: the device; several endpoints may share it.
        size: bytes of a message.
        depth: work requests that may be outstanding.
        events: give the receive CQ a completion channel.
    """

    def __init__(self, context: Context, size: int, depth: int, events: bool = False) -> None:
        self.context, self.size, self.depth = context, size, depth
        self.pd = PD(context)
        stride = (size + PAGE - 1) // PAGE * PAGE
        self.region = MR(self.pd, 2 * stride + PAGE, ACCESS)
        self.out_address, self.in_address = self.region.buf, self.region.buf + stride
        self.control_address = self.region.buf + 2 * stride
        self.outbox = self._window(self.out_address, size)
        self.inbox = self._window(self.in_address, size)
        self.control = self._window(self.control_address, 8)
        self.outbox[:] = pattern(size)
        self.inbox[:] = bytes(size)
        self.control[:] = bytes(8)
        self.channel = CompChannel(context) if events else None
        self.send_cq = CQ(context, depth)
        self.recv_cq = CQ(context, RECEIVES, None, self.channel, 0)
        cap = QPCap(max_send_wr=depth, max_recv_wr=RECEIVES, max_send_sge=1, max_recv_sge=1)
        self.qp = QP(
            self.pd,
            QPInitAttr(qp_type=e.IBV_QPT_RC, scq=self.send_cq, rcq=self.recv_cq, cap=cap, sq_sig_all=0),
        )
        self.peer: dict[str, Any] = {}

    @staticmethod
    def _window(address: int, size: int) -> memoryview:
        """A view of registered memory, through which the application looks at it."""
        return memoryview((ctypes.c_ubyte * size).from_address(address)).cast("B")

    def name(self) -> dict[str, Any]:
        """What the other side must know to connect, as JSON values."""
        return {
            "gid": self.context.query_gid(port_num=1, index=0).gid,
            "qpn": self.qp.qp_num,
            "rkey": self.region.rkey,
            "out": self.out_address,
            "in": self.in_address,
            "control": self.control_address,
        }

    def connect(self, peer: dict[str, Any]) -> None:
        """Bring the QP to RTS, connected to the one that ``peer`` names."""
        self.peer = peer
        attr = QPAttr(port_num=1, path_mtu=e.IBV_MTU_4096)
        attr.qp_access_flags = ACCESS
        attr.dest_qp_num = peer["qpn"]
        attr.max_rd_atomic = attr.max_dest_rd_atomic = READS_IN_FLIGHT
        attr.min_rnr_timer, attr.timeout, attr.retry_cnt, attr.rnr_retry = 1, 14, 7, 7
        route = GlobalRoute(dgid=GID(peer["gid"]), sgid_index=0)
        attr.ah_attr = AHAttr(gr=route, is_global=1, port_num=1)
        self.qp.to_rts(attr)

    def request(self, opcode: int, flags: int, following: SendWR | None = None) -> SendWR:
        """A work request for one message to or from the peer; ``following`` is posted with it, after it."""
        wr = SendWR(
            opcode=opcode,
            num_sge=1,
            sg=[SGE(self._local(opcode), self.size, self.region.lkey)],
            send_flags=flags,
            next_wr=following,
        )
        wr.set_wr_rdma(self.peer["rkey"], self.peer["out" if opcode == e.IBV_WR_RDMA_READ else "in"])
        return wr

    def _local(self, opcode: int) -> int:
        """Where the local side of an operation lies."""
        return int(self.in_address if opcode == e.IBV_WR_RDMA_READ else self.out_address)

    def chain(self, opcode: int, length: int) -> SendWR:
        """A list of ``length`` work requests to post in one call; only the last is signaled."""
        wr = self.request(opcode, e.IBV_SEND_SIGNALED)
        for _ in range(length - 1):
            wr = self.request(opcode, 0, wr)
        return wr

    def stop_peer(self) -> None:
        """Set the peer's control word, and await it."""
        self.control[0] = 1
        wr = SendWR(opcode=e.IBV_WR_RDMA_WRITE, num_sge=1, sg=[SGE(self.control_address, 1, self.region.lkey)])
        wr.set_wr_rdma(self.peer["rkey"], self.peer["control"])
        self.qp.post_send(wr)
        self.reap()

    def reap(self) -> None:
        """Poll the send CQ until a completion comes, and check its status."""
        poll = self.send_cq.poll
        while True:
            polled, completions = poll(1)
            if polled:
                check(completions)
                return


def check(completions: list[Any]) -> None:
    """Raise RuntimeError if a completion is not a success."""
    for completion in completions:
        if completion.status != e.IBV_WC_SUCCESS:
            reason = getattr(completion, "reason", "")
            raise RuntimeError(f"completion with status {completion.status}: {reason}")


def complete_each(endpoint: Endpoint, wr: SendWR, count: int) -> None:
    """Post ``wr`` and poll until it has completed, ``count`` times."""
    post, poll = endpoint.qp.post_send, endpoint.send_cq.poll
    success = e.IBV_WC_SUCCESS
    for _ in range(count):
        post(wr)
        polled, completions = poll(1)
        while not polled:
            polled, completions = poll(1)
        if completions[0].status != success:
            check(completions)


def stream(endpoint: Endpoint, opcode: int, interval: int, lists: bool, count: int) -> None:
    """Keep ``depth`` work requests outstanding until ``count`` have completed; one in ``interval`` is signaled.

    With ``lists`` each ``interval`` of them is posted in one call, else one by one. ``count`` is a multiple of
    ``interval``.
    """
    post, poll = endpoint.qp.post_send, endpoint.send_cq.poll
    plain, last = endpoint.request(opcode, 0), endpoint.request(opcode, e.IBV_SEND_SIGNALED)
    singles = interval - 1
    if lists:
        last, singles = endpoint.chain(opcode, interval), 0
    room, done = endpoint.depth // interval, 0
    for _ in range(count // interval):
        for _ in range(singles):
            post(plain)
        post(last)
        room -= 1
        polled, completions = poll(16)
        while polled or not room:
            check(completions)
            room, done = room + polled, done + polled
            polled, completions = poll(16)
    _drain(endpoint, count // interval - done)


def _drain(endpoint: Endpoint, missing: int) -> None:
    """Await the completions of what is still outstanding."""
    for _ in range(missing):
        endpoint.reap()
