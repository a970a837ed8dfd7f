# SPDX-License-Identifier: MIT
"""One fault, anywhere: every frame of every kind of message is lost, repeated, put off or damaged once.

Whatever happens to a single frame, the message arrives once, the memory is right byte for byte, every counter has
moved by one, and the next message finds the connection in order.
"""

from collections.abc import Callable
from typing import NamedTuple

import pytest
from tests.netsim import frames
from tests.netsim.pair import (
    FENCE,
    INLINE,
    OPS,
    READ,
    RECV,
    REMOTE_READ,
    REMOTE_WRITE,
    SEND,
    SIGNALED,
    WR_CAS,
    WR_FAA,
    WR_READ,
    WR_SEND,
    WR_SEND_IMM,
    WR_WRITE,
    WR_WRITE_IMM,
    WRITE,
    End,
    Pair,
)
from tests.netsim.sim import MS

from softverbs.core.queues.wr import SGE

DATA = bytes(range(251)) * 40
FROM, TO = 0x1000, 0x8000  # where it is taken from, and where it goes
LENGTH = 4 * 256 + 17  # five packets
CELL = 0x4000
OLD = 0x0123456789ABCDEF


class Message(NamedTuple):
    """A kind of message: how it is posted, and what is right afterwards."""

    post: Callable[[End], None]
    check: Callable[[End], None]
    counts: tuple[int, ...]
    takes: int = 0  # receives


def landed(end: End, length: int = LENGTH) -> None:
    assert end.peer.memory.at(TO, LENGTH) == DATA[:length] + bytes(LENGTH - length)


def fetched(end: End) -> None:
    assert end.memory.at(TO, LENGTH) == DATA[:LENGTH]


def added(end: End) -> None:
    assert end.memory.word(TO) == OLD
    assert end.peer.memory.word(CELL) == OLD + 5


def swapped(end: End) -> None:
    assert end.memory.word(TO) == OLD
    assert end.peer.memory.word(CELL) == 77


def several(end: End) -> None:
    """Three elements, one of them empty, that cut packets in odd places."""
    parts = ((0, 5), (900, 0), (5, 700), (705, LENGTH - 705))
    elements = [SGE(end.memory.iova + FROM + offset, length, end.memory.key) for offset, length in parts]
    end.post(WR_WRITE, to=TO, sg=elements)


MESSAGES = {
    "write": Message(lambda end: end.post(WR_WRITE, FROM, LENGTH, TO), landed, (WRITE, REMOTE_WRITE)),
    "write of several elements": Message(several, landed, (WRITE, REMOTE_WRITE)),
    "write with immediate": Message(
        lambda end: end.post(WR_WRITE_IMM, FROM, LENGTH, TO, imm=9), landed, (WRITE, REMOTE_WRITE, RECV), takes=1
    ),
    "empty write": Message(lambda end: end.post(WR_WRITE, to=TO), lambda end: None, (WRITE, REMOTE_WRITE)),
    "send": Message(lambda end: end.post(WR_SEND, FROM, LENGTH), landed, (SEND, RECV), takes=1),
    "send with immediate": Message(
        lambda end: end.post(WR_SEND_IMM, FROM, LENGTH, imm=9), landed, (SEND, RECV), takes=1
    ),
    "inline send": Message(
        lambda end: end.post(WR_SEND, FROM, 100, flags=SIGNALED | INLINE),
        lambda end: landed(end, 100),
        (SEND, RECV),
        takes=1,
    ),
    "read": Message(lambda end: end.post(WR_READ, TO, LENGTH, FROM), fetched, (READ, REMOTE_READ)),
    "empty read": Message(lambda end: end.post(WR_READ, to=FROM), lambda end: None, (READ, REMOTE_READ)),
    "fetch and add": Message(
        lambda end: end.post(WR_FAA, TO, 8, CELL, add=5, flags=SIGNALED | FENCE), added, (READ, REMOTE_READ)
    ),
    "compare and swap": Message(
        lambda end: end.post(WR_CAS, TO, 8, CELL, add=OLD, swap=77), swapped, (READ, REMOTE_READ)
    ),
}


def prepare(pair: Pair) -> None:
    for end in (pair.a, pair.b):
        end.memory.put(FROM, DATA)
    pair.b.memory.put(CELL, OLD.to_bytes(8, "little"))


def exchange(pair: Pair, message: Message) -> None:
    """Sends the message amid others, and checks everything about it."""
    a, b = pair.a, pair.b
    for _ in range(message.takes):
        b.receive(TO, LENGTH)
    a.post(WR_WRITE, FROM, 300, 0x6000, wr_id=1)
    message.post(a)
    a.post(WR_READ, 0x6000, 300, FROM, wr_id=3)
    pair.sim.run_until(lambda: a.cq.count() >= 3, 2000 * MS)
    assert [wc.status for wc in a.polled()] == [0, 0, 0]
    assert [wc.wr_id for wc in b.polled()] == [0] * message.takes
    message.check(a)
    assert b.memory.at(0x6000, 300) == a.memory.at(0x6000, 300) == DATA[:300]
    expected = dict.fromkeys(OPS, 0)
    for op in (*message.counts, WRITE, REMOTE_WRITE, READ, REMOTE_READ):
        expected[op] += 1
    measured = {op: (b if op in (RECV, REMOTE_READ, REMOTE_WRITE) else a).count(op) for op in OPS}
    assert measured == {op: (count, 0) for op, count in expected.items()}


class Fault:
    """Befalls frame ``index`` of the run: it is lost, repeated, put off behind the next two, or damaged."""

    def __init__(self, kind: str, index: int) -> None:
        self.kind = kind
        self.index = index
        self.seen = 0
        self.held: list[bytes] = []
        self.passing = 0

    def __call__(self, frame: bytes) -> list[bytes]:
        self.seen += 1
        if self.held:
            self.passing += 1
            if self.passing == 2:
                return [frame, self.held.pop()]
        if self.seen - 1 != self.index:
            return [frame]
        if self.kind == "lost":
            return []
        if self.kind == "repeated":
            return [frame, frame]
        if self.kind == "put off":
            self.held.append(frame)
            return []
        return [frame[:-9] + bytes([frame[-9] ^ 0x10]) + frame[-8:]]


@pytest.mark.parametrize("kind", ["lost", "repeated", "put off", "damaged"])
@pytest.mark.parametrize("name", MESSAGES)
def test_one_fault_anywhere(name: str, kind: str) -> None:
    message = MESSAGES[name]
    with Pair(path_mtu=1) as pair:
        prepare(pair)
        exchange(pair, message)
        frames_of_one = len(pair.wire)
    for index in range(frames_of_one):
        with Pair(path_mtu=1, sq_psn=0xFFFFFE, rq_psn=0xFFFFFE) as pair:
            prepare(pair)
            pair.rule = Fault(kind, index)
            exchange(pair, message)
            assert len(pair.wire) < 4 * frames_of_one


@pytest.mark.parametrize("name", MESSAGES)
def test_every_frame_repeated(name: str) -> None:
    with Pair(path_mtu=1) as pair:
        prepare(pair)
        pair.rule = lambda frame: [frame, frame, frame]
        exchange(pair, MESSAGES[name])


@pytest.mark.parametrize("name", MESSAGES)
def test_every_request_lost_once(name: str) -> None:
    seen = set()

    def rule(frame: bytes) -> list[bytes] | None:
        number = frames.psn(frame)
        if frame[0] in frames.ANSWERS or number in seen:
            return None
        seen.add(number)
        return []

    with Pair(path_mtu=1) as pair:
        prepare(pair)
        pair.rule = rule
        exchange(pair, MESSAGES[name])


@pytest.mark.parametrize("name", MESSAGES)
def test_every_answer_lost_once(name: str) -> None:
    seen = set()

    def rule(frame: bytes) -> list[bytes] | None:
        number = frames.psn(frame)
        if frame[0] not in frames.ANSWERS or number in seen:
            return None
        seen.add(number)
        return []

    with Pair(path_mtu=1) as pair:
        prepare(pair)
        pair.rule = rule
        exchange(pair, MESSAGES[name])
