# SPDX-License-Identifier: MIT
"""The measurements of ``softverbs perf``: operations in a stream, alone, or in turns."""

from __future__ import annotations

import itertools
import time
from array import array
from collections.abc import Callable

from softverbs.cli.exchange import Line
from softverbs.cli.perf_side import Result, Side
from softverbs.cli.rc import chained
from softverbs.pyverbs import libibverbs_enums as e
from softverbs.pyverbs.wr import SendWR

_SIGNAL_EVERY = 32  # of the messages of a ping-pong
_POLL = 16
_CHUNK = 100  # turns in the first chunk of a timed run
_CHUNK_S = 0.2
_LAST_S = 0.3  # after which no more comes
_FOREVER = float("inf")

Advance = Callable[[float], None]
Step = Callable[[], None]


# -- a stream of operations


def stream(side: Side, size: int, count: int, seconds: float, advance: Advance) -> Result:
    """Keeps ``depth`` operations outstanding on each QP, until ``count`` are done or ``seconds``, if any, are over."""
    return _Stream(side, size, count, seconds, advance).run()


class _Stream:
    """One run: operations are posted in lists of a quarter of the depth, of which the last is signaled."""

    def __init__(self, side: Side, size: int, count: int, seconds: float, advance: Advance) -> None:
        self.side, self.size, self.count, self.seconds, self.advance = side, size, count, seconds, advance
        self.batch = max(1, side.plan.depth // 4)
        self.lists = {self.batch: self._list(self.batch)}
        self.room = {qp.qp_num: side.plan.depth // self.batch for qp in side.qps}
        self.posted = self.done = 0
        self.samples: list[tuple[float, int]] = [(0.0, 0)]

    def _list(self, length: int) -> SendWR:
        """``length`` operations for one post; the completion of the last says how many they are."""
        plain = [self.side.request(self.size, 0) for _ in range(length - 1)]
        return chained([*plain, self.side.request(self.size, e.IBV_SEND_SIGNALED, length)])

    def run(self) -> Result:
        """The run."""
        clock = time.perf_counter
        start = clock()
        end = start + self.seconds if self.seconds else _FOREVER
        while self.done < self.posted or (self.posted < self.count and clock() < end):
            if clock() < end:
                self._post()
            self._poll(start)
        seconds = max(clock() - start, 1e-9)
        return Result(self.size, self.done, seconds, peak(self.samples, -(-self.done // 10)) * self.size)

    def _post(self) -> None:
        """Fills the send queues, a list at a time."""
        room = self.room
        for qp in self.side.qps:
            while room[qp.qp_num] and self.posted < self.count:
                length = min(self.batch, self.count - self.posted)
                if length not in self.lists:
                    self.lists[length] = self._list(length)
                qp.post_send(self.lists[length])
                self.posted += length
                room[qp.qp_num] -= 1

    def _poll(self, start: float) -> None:
        polled, completions = self.side.send_cq.poll(_POLL)
        if not polled:
            return
        for completion in completions:
            self.side.check(completion)
            self.room[completion.qp_num] += 1
            self.done += completion.wr_id
        self.side.done = self.done
        passed = time.perf_counter() - start
        self.samples.append((passed, self.done))
        self.advance(passed if self.seconds else self.done)


def peak(samples: list[tuple[float, int]], least: int) -> float:
    """Operations per second of the best stretch of at least ``least`` operations; 0 where there is none.

    :param samples: (seconds, operations done by then), both growing
    """
    best, first = 0.0, 0
    for passed, done in samples[1:]:
        while done - samples[first + 1][1] >= least:
            first += 1
        since, before = samples[first]
        if done - before >= least and passed > since:
            best = max(best, (done - before) / (passed - since))
    return best


def absorb(side: Side, line: Line) -> tuple[int, int]:
    """The server's part of a stream of SENDs: takes messages until the client has said how many they were.

    Where some may be lost, until none has come for a while after that. Returns how many came, and how many were sent.
    """
    receive, by_number = side.receive(), {qp.qp_num: qp for qp in side.qps}
    taken, idle, expected, stop = 0, 0, -1, _FOREVER
    while taken != expected and time.monotonic() < stop:
        polled, completions = side.recv_cq.poll(_POLL)
        for completion in completions:
            side.check(completion)
            by_number[completion.qp_num].post_recv(receive)
        taken += polled
        side.done = taken
        idle = 0 if polled else idle + 1
        if idle > 64 and expected < 0 and line.waits():
            expected = int(line.hear()["done"])
        if side.plan.loses and expected >= 0 and (polled or stop == _FOREVER):
            stop = time.monotonic() + _LAST_S
    return taken, expected


def await_writes(side: Side, before: int, sent: int) -> int:
    """How many writes over a connection that may lose some have come: until they are all there, or no more come.

    :param before: those that had come before
    :param sent: how many the client did
    """
    came, stop = 0, time.monotonic() + _LAST_S
    while came != sent and time.monotonic() < stop:
        side.send_cq.poll(1)
        now = side.arrived() - before
        if now != came:
            came, stop = now, time.monotonic() + _LAST_S
    return came


# -- one operation after another


def alone(side: Side, size: int, count: int, seconds: float, advance: Advance) -> Result:
    """Each operation is timed from its post to its polled completion."""
    request, post, poll = side.request(size, e.IBV_SEND_SIGNALED), side.qps[0].post_send, side.send_cq.poll

    def operate() -> None:
        post(request)
        polled, completions = poll(1)
        while not polled:
            polled, completions = poll(1)
        if completions[0].status:
            side.check(completions[0])

    times = array("d")
    start = time.perf_counter()
    end = start + seconds if seconds else _FOREVER
    while len(times) < count and time.perf_counter() < end:
        _time(side, operate, 1.0, min(64, count - len(times)), times)
        advance(time.perf_counter() - start if seconds else len(times))
    return Result(size, len(times), time.perf_counter() - start, times=list(times))


def _time(side: Side, operate: Step, share: float, count: int, times: array[float]) -> None:
    """Does ``count`` operations and appends what each took, times ``share``, seconds."""
    clock = time.perf_counter
    for _ in range(count):
        begun = clock()
        operate()
        times.append((clock() - begun) * share)
        side.done += 1


# -- in turns


class Turns:
    """One side of a ping-pong of WRITEs or SENDs: ``send`` and ``receive``, one message each.

    Of WRITEs, the last byte is the message's number, and the receiver looks at it until it comes.
    """

    def __init__(self, side: Side, size: int) -> None:
        """
        :param side: its resources, ready for a message of
        :param size: bytes
        """
        self.side, self.size = side, size
        self._plain, self._signaled = side.request(size, 0), side.request(size, e.IBV_SEND_SIGNALED)
        self._post_send, self._poll_cq = side.qps[0].post_send, side.send_cq.poll
        self._posted = self._outstanding = 0
        self.send, self.receive = self._writes() if side.plan.test == "write" else self._sends()

    def exchange(self) -> None:
        """One round trip of the side that begins."""
        self.send()
        self.receive()

    def answer(self, count: int) -> None:
        """``count`` round trips of the other side."""
        for _ in range(count):
            self.receive()
            self.send()
            self.side.done += 1

    def drain(self) -> None:
        """Waits for what completions are to come."""
        while self._outstanding:
            self._poll()

    def _poll(self) -> None:
        polled, completions = self._poll_cq(1)
        if polled:
            self._outstanding -= 1
            self.side.check(completions[0])

    def _post(self) -> None:
        """One message; one in ``_SIGNAL_EVERY`` is signaled, so that the send queue never fills."""
        self._posted += 1
        if self._posted % _SIGNAL_EVERY:
            self._post_send(self._plain)
            return
        self.drain()
        self._post_send(self._signaled)
        self._outstanding += 1

    def _writes(self) -> tuple[Step, Step]:
        outbox, inbox, last, poll, post = self.side.outbox, self.side.inbox, self.size - 1, self._poll, self._post
        sent, awaited = (itertools.cycle(range(1, 256)).__next__ for _ in range(2))

        def send() -> None:
            outbox[last] = sent()
            post()

        def receive() -> None:
            number = awaited()
            while inbox[last] != number:
                poll()

        return send, receive

    def _sends(self) -> tuple[Step, Step]:
        check, poll, post_recv, again = (
            self.side.check,
            self.side.recv_cq.poll,
            self.side.qps[0].post_recv,
            self.side.receive(),
        )

        def receive() -> None:
            polled, completions = poll(1)
            while not polled:
                polled, completions = poll(1)
            check(completions[0])
            post_recv(again)

        return self._post, receive


def take_turns(side: Side, line: Line, size: int, count: int, seconds: float, advance: Advance) -> Result:
    """The client's ping-pong, in chunks that it announces on the line; half of each round trip counts."""
    turns, times = Turns(side, size), array("d")
    start = time.perf_counter()
    end = start + seconds if seconds else _FOREVER
    chunk = min(count, _CHUNK) if seconds else count
    while len(times) < count and time.perf_counter() < end:
        line.tell(turns=chunk)
        line.hear()
        begun = time.perf_counter()
        for left in range(chunk, 0, -64):
            _time(side, turns.exchange, 0.5, min(64, left), times)
            advance(time.perf_counter() - start if seconds else len(times))
        rate = chunk / max(time.perf_counter() - begun, 1e-9)
        chunk = max(1, min(int(rate * min(_CHUNK_S, max(end - time.perf_counter(), 0))), count - len(times)))
    turns.drain()
    line.tell(turns=0)
    return Result(size, len(times), time.perf_counter() - start, times=list(times))


def give_turns(side: Side, line: Line, size: int) -> int:
    """The server's ping-pong: as many turns as the client announces, until that is none; how many they were."""
    turns, total = Turns(side, size), 0
    while count := int(line.hear(patient=True)["turns"]):
        line.tell(ready=True)
        turns.answer(count)
        total += count
    turns.drain()
    return total
