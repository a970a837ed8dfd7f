# SPDX-License-Identifier: MIT
"""The responder at its edges: answers that find the arena full, memory that goes away, the pace of READ responses."""

from collections.abc import Callable

import pytest
from tests.netsim import frames
from tests.netsim.pair import (
    REM_ACCESS_ERR,
    REMOTE_READ,
    REMOTE_WRITE,
    SUCCESS,
    WR_FAA,
    WR_READ,
    WR_SEND,
    WR_WRITE,
    Pair,
    dropping,
)
from tests.netsim.sim import ERR, SECOND, connect

from softverbs.core.base.limits import Options

BURSTS = 512  # that an arena holds, of any length
CAP = (1024, 16, 1, 1, 0)


def fill(pair: Pair) -> None:
    """Lets b's link take nothing, and its arena hold as many bursts as it can, of a queue pair of its own."""
    ours, theirs = pair.b.node.qp(pair.b.pd, pair.b.cq, cap=CAP), pair.a.node.qp(pair.a.pd, pair.a.cq)
    connect(ours, theirs, pair.b.node, pair.a.node)
    connect(theirs, ours, pair.a.node, pair.b.node)
    pair.b.node.link.send = lambda *_: False
    # Of growing lengths: a frame that is longer than the one before starts a burst of its own.
    for number in range(BURSTS + 40):
        ours.post_send(pair.b.wr(WR_WRITE, 0, 4 + 4 * (number % 64), 0x8000, flags=0))
    pair.b.node.device.progress()


def write(pair: Pair) -> None:
    pair.a.memory.put(0, b"12345678")
    pair.a.post(WR_WRITE, 0, 8, 0x100)


def wrote(pair: Pair) -> None:
    assert pair.b.memory.at(0x100, 8) == b"12345678"
    assert pair.b.count(REMOTE_WRITE) == (1, 0)


def read(pair: Pair) -> None:
    pair.b.memory.put(0x100, b"abcdefgh")
    pair.a.post(WR_READ, 0, 8, 0x100)


def has_read(pair: Pair) -> None:
    assert pair.a.memory.at(0, 8) == b"abcdefgh"
    assert pair.b.count(REMOTE_READ) == (1, 0)


def add(pair: Pair) -> None:
    pair.a.post(WR_FAA, 0, 8, 0x100, add=5)


def added(pair: Pair) -> None:
    assert pair.b.memory.word(0x100) == 5
    assert pair.b.count(REMOTE_READ) == (1, 0)


def send(pair: Pair) -> None:
    pair.a.post(WR_SEND, 0, 8)
    pair.sim.after(0, lambda: pair.b.receive(0x200, 8))


def sent(pair: Pair) -> None:
    answers = pair.sent(pair.b, frames.ACKNOWLEDGE)
    assert frames.syndrome(answers[0]) & frames.KIND == frames.RNR
    assert pair.b.cq.count() == 1


def write_nowhere(pair: Pair) -> None:
    pair.a.post(WR_WRITE, 0, 8, 0x100, rkey=0xBAD)


def refused(pair: Pair) -> None:
    assert pair.b.qp.state == ERR
    words, nak = pair.sent(pair.b, 0xC0, frames.ACKNOWLEDGE)[:2]
    assert (words[0], frames.syndrome(nak)) == (0xC0, frames.NAK_ACCESS), "words, then the NAK"


@pytest.mark.parametrize(
    ("ask", "check", "status", "again"),
    [
        (write, wrote, SUCCESS, 0),
        (read, has_read, SUCCESS, 0),
        (add, added, SUCCESS, 0),
        (send, sent, SUCCESS, 1),
        (write_nowhere, refused, REM_ACCESS_ERR, 0),
    ],
)
def test_answers_that_find_no_room_leave_as_soon_as_there_is(
    ask: Callable[[Pair], None], check: Callable[[Pair], None], status: int, again: int
) -> None:
    """``again``: how often the request is sent once more; not for lack of an answer, only after an RNR NAK."""
    with Pair() as pair:
        fill(pair)
        full = pair.b.node.stats()["frames_sent"]
        assert full >= BURSTS
        ask(pair)
        for _ in range(3):
            pair.a.node.device.progress()
            pair.b.node.device.progress()
        assert pair.b.node.stats()["frames_received"] == 1
        assert (pair.b.node.stats()["frames_sent"], pair.sent(pair.b)) == (full, []), "there is no room for an answer"
        assert pair.b.node.port.deadline() == pair.sim.now, "the port comes back to it"
        del pair.b.node.link.send
        wc = pair.a.wait()[0]
        assert wc.status == status
        if status != SUCCESS:
            assert "key 0xbad is not registered" in wc.reason
        check(pair)
        assert pair.a.qp.requester.retransmissions == again


def test_memory_that_goes_away_in_the_middle_of_a_write() -> None:
    with Pair(path_mtu=5, options=Options(window=4096)) as pair:  # so each packet waits for the ACK of the one before
        pair.a.memory.put(0, b"x" * 16384)

        def rule(frame: bytes) -> None:
            if frame[0] == frames.WRITE_MIDDLE and pair.b.memory.mr.handle:
                pair.b.memory.deregister()

        pair.rule = rule  # type: ignore[assignment]
        pair.a.post(WR_WRITE, 0, 16384, 0)
        wc = pair.a.wait()[0]
        assert wc.status == REM_ACCESS_ERR
        assert "is not registered" in wc.reason
        assert pair.b.memory.at(0, 16384) == b"x" * 4096 + bytes(12288)
        assert pair.b.count(REMOTE_WRITE) == (0, 0)
        assert pair.b.qp.state == ERR


def test_the_pace_of_read_responses_grows_to_its_limit() -> None:
    """Without a loss each READ is answered a little faster. Far above the limit, a loss would slow nothing down."""
    size = 1 << 20
    with Pair(size=size) as pair:

        def span() -> int:
            """How long a long READ takes, ns, after a rest."""
            pair.sim.run_for(SECOND)
            start = pair.sim.now
            pair.a.post(WR_READ, 0, size, 0)
            assert pair.a.status() == SUCCESS
            return pair.sim.now - start

        first = span()
        assert first >= (size - (1 << 18)) / 4 * 0.9, "4 bytes per ns, but for the first 256 KiB"
        for _ in range(100):
            pair.a.post(WR_READ, 0, 8, 0)
            assert pair.a.status() == SUCCESS
        best = span()
        assert best < first / 2
        assert span() == best
        pair.rule = dropping(frames.RESPONSE_MIDDLE)
        assert span() > best
        assert span() > best, "the pace itself is less, not only that of the READ with the loss"
