# SPDX-License-Identifier: MIT
"""One side of ``softverbs pingpong``: its queue pairs, its memory, and the messages to and fro.

Every message is checked. The server knows two ways to fill one: that of the softverbs client, and that of rdma-core's
programs, which fill it with 0x7b (older ones with 0) and, where they validate, begin each page with 0.
"""

from __future__ import annotations

import random
import struct
import time
from collections.abc import Callable
from typing import NamedTuple

from softverbs.cli.common import Fault, check
from softverbs.cli.exchange import Address
from softverbs.cli.rc import (
    GRH_LENGTH,
    QKEY,
    Way,
    address_handle,
    join,
    make_datagram_qp,
    make_qp,
    random_psn,
)
from softverbs.pyverbs import libibverbs_enums as e
from softverbs.pyverbs.cq import CQ, WC, CompChannel
from softverbs.pyverbs.device import Context
from softverbs.pyverbs.mr import MR
from softverbs.pyverbs.pd import PD
from softverbs.pyverbs.qp import QP
from softverbs.pyverbs.srq import SRQ, SrqAttr, SrqInitAttr
from softverbs.pyverbs.wr import SGE, RecvWR, SendWR

TYPES = {"rc": e.IBV_QPT_RC, "uc": e.IBV_QPT_UC, "ud": e.IBV_QPT_UD, "srq": e.IBV_QPT_RC}
_RECEIVE, _SEND = 1, 2  # bits of wr_id; the slot of a receive is above them
_SLOT = 2
_FILL = 0x7B  # what rdma-core's programs fill their buffer with
_UNTOUCHED = b"\xa5"
_MOST_MEMORY = 1 << 30
_PAGES = (4096, 16384, 65536)  # that machines have
_STAMP = struct.Struct("<Q")
_STAMP_AT = 1  # byte 0 begins a page


class Task(NamedTuple):
    """What the command line asks for."""

    kind: str
    """One of TYPES."""
    size: int
    """Bytes of a message."""
    depth: int
    """Receives posted at a time."""
    iters: int
    """Messages each way, of all queue pairs together."""
    events: bool
    """Whether to sleep on completion events."""
    server: bool
    qps: int = 1

    @property
    def loses(self) -> bool:
        """Whether what the network loses stays lost."""
        return self.kind in ("uc", "ud")


class Side:
    """One side with a single queue pair, whose receives and sends all use the same memory."""

    def __init__(self, context: Context, way: Way, task: Task) -> None:
        """
        :param context: the device
        :param way: how packets travel
        :param task: what to do
        """
        self.way, self.task = way, task
        #: Messages so far.
        self.received = self.sent = 0
        self._events = 0
        self._pd = PD(context)
        #: What comes before each message in memory: the header of a datagram.
        self._ahead = GRH_LENGTH if task.kind == "ud" else 0
        self._region = self._memory()
        self._channel = CompChannel(context) if task.events else None
        self._cq = CQ(context, task.depth + task.qps, None, self._channel)
        self.psns = [random_psn() for _ in range(task.qps)]
        #: The queue pairs, by their index.
        self.qps = self._made()
        self._index = {qp.qp_num: index for index, qp in enumerate(self.qps)}
        self._pending = [_RECEIVE] * task.qps
        self._contents = Contents(task.size)
        self._requests = [self._request() for _ in self.qps]
        self._sources = [0] * task.qps  # queue pairs of the peer
        self._posted = 0
        self._fill_up()
        if self._channel is not None:
            self._cq.req_notify()

    # -- resources

    def _memory(self) -> MR:
        return MR(self._pd, max(self.task.size + self._ahead, 1), e.IBV_ACCESS_LOCAL_WRITE)

    def _made(self) -> list[QP]:
        if self.task.kind == "ud":
            return [make_datagram_qp(self._pd, self._cq, self._cq, 1, self.task.depth, self.psns[0], self.way.port)]
        kind = TYPES[self.task.kind]
        return [make_qp(self._pd, self._cq, self._cq, 1, self.task.depth, self.way.port, 0, qp_type=kind)]

    def _elements(self, offset: int, length: int) -> list[SGE]:
        return [SGE(self._region.buf + offset, length, self._region.lkey)] if length else []

    def _request(self, slot: int = 0) -> SendWR:
        """A SEND of the message in a slot."""
        elements = self._elements(slot * self.task.size + self._ahead, self.task.size)
        return SendWR(_SEND, e.IBV_WR_SEND, len(elements), sg=elements, send_flags=e.IBV_SEND_SIGNALED)

    def _receipt(self, slot: int = 0) -> RecvWR:
        """A receive into a slot."""
        elements = self._elements(slot * self.task.size, self.task.size + self._ahead)
        return RecvWR(_RECEIVE | slot << _SLOT, len(elements), elements)

    def own(self, gid: bytes) -> list[Address]:
        """Where the queue pairs are.

        :param gid: of this side
        """
        return [Address(0, qp.qp_num, psn, gid) for qp, psn in zip(self.qps, self.psns, strict=True)]

    def connect(self, index: int, peer: Address) -> None:
        """Connects a queue pair to the peer's; of type UD, makes ready for sending there.

        :param index: which
        :param peer: where that is
        :raises Fault: where there is none
        """
        qp, self._sources[index] = self.qps[index], peer.qpn
        if not peer.qpn:
            raise Fault("the peer has fewer QPs: give both sides the same -q")
        if self.task.kind == "ud":
            self._requests[index].set_wr_ud(address_handle(self._pd, self.way, peer.gid), peer.qpn, QKEY)
        else:
            join(qp, self.way, self.psns[index], (peer.gid, peer.qpn, peer.psn), 1)

    # -- the exchange

    def run(self) -> float:
        """The whole exchange; seconds that it took."""
        step = self._poll if self._channel is None else self._sleep
        iters = self.task.iters
        start = time.perf_counter()
        if not self.task.server:
            for index in range(len(self.qps)):
                self._post(index)
        while self.received < iters or self.sent < iters:
            for completion in step():
                self._take(completion)
        seconds = time.perf_counter() - start
        if self._events:
            self._cq.ack_events(self._events)
        return max(seconds, 1e-9)

    def _poll(self) -> list[WC]:
        return self._cq.poll(2 * len(self.qps))[1]

    def _sleep(self) -> list[WC]:
        """What there is after the next event."""
        assert self._channel is not None
        self._channel.get_cq_event(self._cq)
        self._events += 1
        self._cq.req_notify()
        return self._poll()

    def _take(self, completion: WC) -> None:
        if self.received >= self.task.iters <= self.sent:
            return  # the peer may have ended
        check(completion)
        index = self._index[completion.qp_num]
        if completion.wr_id == _SEND:
            self.sent += 1
            self._pending[index] &= ~_SEND
            self._left(index)
        else:
            self._got(completion, index)
            self.received += 1
            self._pending[index] &= ~_RECEIVE
        if not self._pending[index] and self.sent < self.task.iters:
            self._pending[index] = _RECEIVE
            self._post(index)

    def _got(self, completion: WC, index: int) -> None:
        """A message has come."""
        if self.task.kind == "ud":
            self._check_source(completion, index)
        self._check(completion, self._region.read(self.task.size, self._ahead), self.received)
        self._posted -= 1
        if self._posted <= 1:
            self._fill_up()

    def _left(self, index: int) -> None:
        """A message has been sent."""

    def _check_source(self, completion: WC, index: int) -> None:
        if not completion.wc_flags & e.IBV_WC_GRH:
            raise Fault(f"datagram {self.received} came without a GRH")
        if completion.src_qp != self._sources[index]:
            raise Fault(f"datagram {self.received} is of QP 0x{completion.src_qp:06x}, which is not the peer's")

    def _check(self, completion: WC, data: bytes, number: int) -> None:
        length = completion.byte_len - self._ahead
        if length != self.task.size:
            raise Fault(
                f"message {self.received} has {length} bytes, not {self.task.size}: give both sides the same -s"
            )
        self._contents.check(data, number, self.task.server)

    def _fill_up(self) -> None:
        receive = self._receipt()
        for _ in range(self.task.depth - self._posted):
            self.qps[0].post_recv(receive)
        self._posted = self.task.depth

    def _post(self, index: int) -> None:
        """The next message of a queue pair: a client's is new, a server's is the one that it got."""
        if not self.task.server:
            self._region.write(self._contents.ours(self.sent), self.task.size, self._ahead)
        self.qps[index].post_send(self._requests[index])
        self._pending[index] |= _SEND


class SharedSide(Side):
    """One side with several queue pairs on one SRQ.

    Each receive has memory of its own, which holds nothing of a message when it is posted. All messages are the same:
    ``ibv_srq_pingpong`` answers with what came last on any of its queue pairs.
    """

    def _memory(self) -> MR:
        length = self.task.size * (self.task.depth + 1)  # one for what a client sends
        if length > _MOST_MEMORY:
            raise Fault(f"{self.task.depth} receives of {self.task.size} bytes take too much memory: lower -r")
        self._came: dict[int, int] = {}  # slots by queue pair: what came there last and is to be sent back
        self._sending: dict[int, int] = {}  # and what is being sent back
        return MR(self._pd, max(length, 1), e.IBV_ACCESS_LOCAL_WRITE)

    def _made(self) -> list[QP]:
        self._queue = SRQ(self._pd, SrqInitAttr(SrqAttr(self.task.depth, 1)))
        cq, port = self._cq, self.way.port
        return [make_qp(self._pd, cq, cq, 1, 0, port, 0, srq=self._queue) for _ in range(self.task.qps)]

    def _got(self, completion: WC, index: int) -> None:
        slot = completion.wr_id >> _SLOT
        self._check(completion, self._region.read(self.task.size, slot * self.task.size), 0)
        if self.task.server:
            self._came[index] = slot
        else:
            self._put(slot)

    def _left(self, index: int) -> None:
        if self.task.server:
            self._put(self._sending.pop(index))

    def _fill_up(self) -> None:
        for slot in range(self.task.depth):
            self._put(slot)
        self._region.write(self._contents.ours(0), self.task.size, self.task.depth * self.task.size)
        self._requests = [self._request(self.task.depth) for _ in self.qps]

    def _put(self, slot: int) -> None:
        """Posts a receive into a slot, and makes sure that the message is not there yet."""
        self._region.write(_UNTOUCHED * self.task.size, self.task.size, slot * self.task.size)
        self._queue.post_recv(self._receipt(slot))

    def _post(self, index: int) -> None:
        if self.task.server:
            self._sending[index] = self._came.pop(index)
            self._requests[index] = self._request(self._sending[index])
        self.qps[index].post_send(self._requests[index])
        self._pending[index] |= _SEND


def _always(data: bytes) -> Callable[[int], bytes]:
    return lambda _: data


class Contents:
    """What the messages hold."""

    def __init__(self, size: int) -> None:
        """
        :param size: bytes of a message
        """
        self._base = bytearray(random.Random(size).randbytes(size))
        self._base[:: _PAGES[0]] = bytes(len(range(0, size, _PAGES[0])))  # as rdma-core's programs expect it
        self._stamped = size >= _STAMP_AT + _STAMP.size
        plain = bytes([_FILL]) * size
        self._known: list[Callable[[int], bytes]] = [self.ours, _always(plain), _always(bytes(size))]
        for page in _PAGES:
            marked = bytearray(plain)
            marked[::page] = bytes(len(range(0, size, page)))
            self._known.append(_always(bytes(marked)))

    def ours(self, number: int) -> bytes:
        """Message ``number`` of a softverbs client."""
        if self._stamped:
            _STAMP.pack_into(self._base, _STAMP_AT, number)
        return bytes(self._base)

    def check(self, data: bytes, number: int, server: bool) -> None:
        """Raises Fault unless message ``number`` is as a client sends it; a client knows what it sent itself."""
        if not server:
            self._known = [self.ours]
        fitting = [known for known in self._known if known(number) == data]
        if not fitting:
            raise Fault(self._difference(data, number))
        self._known = fitting

    def _difference(self, data: bytes, number: int) -> str:
        if number and self._stamped and data == self.ours(number - 1):
            return f"message {number} is message {number - 1} once more"
        expected = self._known[0](number)
        at = next(index for index in range(len(data)) if data[index] != expected[index])
        return f"invalid data in message {number}: byte {at} is {data[at]:#04x}, not {expected[at]:#04x}"
