# SPDX-License-Identifier: MIT
"""Measure softverbs between two processes, each with its own device, over UDP on loopback.

Turns, as perftest's ib_write_lat takes them (half a round trip; each side writes, then waits for the other's write):

- ``polled``: waits by looking at memory, polling a CQ meanwhile so that the device makes progress;
- ``event``: RDMA WRITE with immediate; waits for a CQ event, asleep;
- ``counter``: waits on a counter of REMOTE_RDMA_WRITE, asleep.

One-sided, the other side passive: ``completion`` posts a write and polls until it has completed; ``write`` and ``read``
keep a window outstanding; ``lists`` does so with posts of whole lists. With ``--busy`` the passive side polls its
device, else it sleeps outside of the library.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Callable
from typing import Any

import control
import endpoint

from softverbs.pyverbs import libibverbs_enums as e
from softverbs.pyverbs.comp_cntr import CompCntr, CompCntrInitAttr
from softverbs.pyverbs.device import Context
from softverbs.pyverbs.qp import QPAttachCompCntrAttr
from softverbs.pyverbs.wr import SGE, RecvWR

TURNS = ("polled", "event", "counter")
ONE_SIDED = ("completion", "write", "lists", "read")
SIGNAL_EVERY = 32
SIGNALS_OUT = 3
WINDOW_BYTES = 8 << 20
Step = Callable[[], None]


def depth_for(mode: str, size: int) -> int:
    """How many work requests may be outstanding: 8 MiB's worth, from 4 to 128; 128 for turns."""
    if mode in TURNS or mode == "completion":
        return 4 * SIGNAL_EVERY
    return max(4, min(128, WINDOW_BYTES // size))


class Turns:
    """One side of a ping-pong: ``send`` and ``receive``, one message each."""

    def __init__(self, own: endpoint.Endpoint, opcode: int) -> None:
        self.own = own
        self._post, self._poll = own.qp.post_send, own.send_cq.poll
        self._plain, self._signaled = own.request(opcode, 0), own.request(opcode, e.IBV_SEND_SIGNALED)
        self._posted, self._signals = 0, 0

    def post(self) -> None:
        """Post one message; one in SIGNAL_EVERY is signaled, and at most SIGNALS_OUT of those are outstanding."""
        self._posted += 1
        if self._posted % SIGNAL_EVERY:
            self._post(self._plain)
            return
        while self._signals >= SIGNALS_OUT:
            self.poll()
        self._post(self._signaled)
        self._signals += 1

    def poll(self) -> None:
        """Take a completion of the send queue, if there is one."""
        polled, completions = self._poll(1)
        if polled:
            self._signals -= polled
            endpoint.check(completions)

    def steps(self) -> tuple[Step, Step]:
        """How to send and how to receive one message."""
        raise NotImplementedError


class PolledTurns(Turns):
    """The last byte of each message is its number; the receiver spins until that byte is in its memory."""

    def steps(self) -> tuple[Step, Step]:
        """See Turns."""
        out, incoming, last, poll = self.own.outbox, self.own.inbox, self.own.size - 1, self.poll
        sent, awaited = (itertools.cycle(range(1, 256)).__next__ for _ in range(2))

        def send() -> None:
            out[last] = sent()
            self.post()

        def receive() -> None:
            number = awaited()
            while incoming[last] != number:
                poll()

        incoming[last] = 0
        return send, receive


class EventTurns(Turns):
    """Each message consumes a receive; the receiver sleeps on the completion channel."""

    def __init__(self, own: endpoint.Endpoint, opcode: int) -> None:
        super().__init__(own, opcode)
        self._receive = RecvWR(num_sge=1, sg=[SGE(own.in_address, own.size, own.region.lkey)])
        for _ in range(endpoint.RECEIVES):
            own.qp.post_recv(self._receive)

    def steps(self) -> tuple[Step, Step]:
        """See Turns."""
        cq, channel, post_recv = self.own.recv_cq, self.own.channel, self.own.qp.post_recv
        assert channel is not None

        def receive() -> None:
            polled, completions = cq.poll(1)
            while not polled:
                cq.req_notify()
                polled, completions = cq.poll(1)
                if polled:
                    break
                channel.get_cq_event(cq)
                cq.ack_events(1)
                polled, completions = cq.poll(1)
            endpoint.check(completions)
            post_recv(self._receive)

        return self.post, receive


class CounterTurns(Turns):
    """The receiver sleeps until its counter of inbound writes reaches the next number."""

    def __init__(self, own: endpoint.Endpoint, opcode: int, counter: CompCntr) -> None:
        super().__init__(own, opcode)
        self._counter = counter

    def steps(self) -> tuple[Step, Step]:
        """See Turns."""
        wait, next_number = self._counter.wait, itertools.count(1).__next__

        def receive() -> None:
            wait(next_number())

        return self.post, receive


class Side:
    """One process of the pair, connected."""

    def __init__(self, line: control.Line, mode: str, size: int) -> None:
        self.line, self.mode, self.size = line, mode, size
        context = Context(name="softverbs0")
        self.own = endpoint.Endpoint(context, size, depth_for(mode, size), events=mode == "event")
        self.counter = CompCntr(context, CompCntrInitAttr())
        bit = e.IBV_QP_ATTACH_COMP_CNTR_OP_REMOTE_RDMA_WRITE
        self.own.qp.attach_comp_cntr(self.counter, QPAttachCompCntrAttr(op_mask=bit))
        line.send(self.own.name())
        self.own.connect(line.receive())
        self.steps = self._turns().steps() if mode in TURNS else None
        line.send("connected")
        line.receive()

    def _turns(self) -> Turns:
        """The ping-pong of this mode."""
        if self.mode == "polled":
            return PolledTurns(self.own, e.IBV_WR_RDMA_WRITE)
        if self.mode == "event":
            return EventTurns(self.own, e.IBV_WR_RDMA_WRITE_WITH_IMM)
        return CounterTurns(self.own, e.IBV_WR_RDMA_WRITE, self.counter)

    def take_turns(self, count: int, first: bool) -> None:
        """Exchange ``count`` messages each way; ``first`` begins."""
        assert self.steps is not None
        send, receive = self.steps
        if not first:
            receive()
            count -= 1
            for _ in range(count):
                send()
                receive()
            send()
            return
        for _ in range(count):
            send()
            receive()


def passive(side: Side, busy: bool) -> None:
    """Do what the active side says, until it says 0."""
    poll, flag = side.own.send_cq.poll, side.own.control
    if busy:
        while not flag[0]:
            poll(1)
    while count := side.line.receive():
        side.take_turns(count, first=False)
    if side.mode in ("completion", "write", "lists"):
        side.line.send(bool(side.own.inbox == endpoint.pattern(side.size)))


def measure_turns(side: Side, seconds: float) -> float:
    """Returns seconds for half a round trip."""

    def exchange(count: int) -> None:
        side.line.send(count)
        side.take_turns(count, first=True)

    return control.per_operation(control.timed(exchange), seconds) / 2


def measure_one_sided(side: Side, seconds: float) -> float:
    """Returns seconds for one operation."""
    own, mode = side.own, side.mode
    opcode = e.IBV_WR_RDMA_READ if mode == "read" else e.IBV_WR_RDMA_WRITE
    if mode == "completion":
        signaled = own.request(opcode, e.IBV_SEND_SIGNALED)
        return control.per_operation(control.timed(lambda count: endpoint.complete_each(own, signaled, count)), seconds)
    interval = max(1, own.depth // 4)
    operate = control.timed(lambda count: endpoint.stream(own, opcode, interval, mode == "lists", count))
    return control.per_operation(operate, seconds, interval)


def active(side: Side, seconds: float, busy: bool) -> float:
    """Measure, end the passive side, check the data; returns seconds for one operation."""
    result = measure_turns(side, seconds) if side.mode in TURNS else measure_one_sided(side, seconds)
    if busy:
        side.own.stop_peer()
    side.line.send(0)
    right: Any = True
    if side.mode == "read":
        right = side.own.inbox == endpoint.pattern(side.size)
    elif side.mode in ONE_SIDED:
        right = side.line.receive()
    if not right:
        raise RuntimeError("the bytes that arrived are not those that were sent")
    return result


def main() -> None:
    """Be the active side, or with ``--line`` the passive one."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("mode", choices=(*TURNS, *ONE_SIDED))
    parser.add_argument("--size", type=int, required=True)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--core", type=int, required=True)
    parser.add_argument("--partner-core", type=int, default=0)
    parser.add_argument("--busy", action="store_true")
    parser.add_argument("--line", type=int)
    arguments = parser.parse_args()
    mode, size, busy = arguments.mode, arguments.size, arguments.busy
    if arguments.line is not None:
        control.pin(arguments.core)
        passive(Side(control.join_line(arguments.line), mode, size), busy)
        return
    options = [mode, "--size", str(size), *(["--busy"] if busy else [])]
    partner, line = control.start_partner(__file__, options, arguments.partner_core)
    control.pin(arguments.core)
    seconds = active(Side(line, mode, size), arguments.seconds, busy)
    if partner.wait() != 0:
        raise RuntimeError("the passive side failed")
    control.answer(seconds=seconds, build=endpoint.build())


if __name__ == "__main__":
    main()
