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
    End,
    Pair,
)
from tests.netsim.sim import ERR, SECOND

from softverbs.core.limits import Options

BURSTS = 512  # that an arena holds, of any length
CAP = (1024, 16, 1, 1, 0)


def fill(end: End) -> None:
    """Lets the link of an end take nothing, and its arena hold as many bursts as it can."""
    end.node.link.send = lambda *_: False
    # Of growing lengths: a frame that is longer than the one before starts a burst of its own.
    for number in range(BURSTS + 40):
        end.post(WR_WRITE, 0, 4 + 4 * (number % 64), 0x8000, flags=0)
    end.node.device.progress()


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
    assert [frame[0] for frame in pair.sent(pair.b)[-2:]] == [0xC0, frames.ACKNOWLEDGE], "words, then the NAK"


@pytest.mark.parametrize(
    ("ask", "check", "status"),
    [
        (write, wrote, SUCCESS),
        (read, has_read, SUCCESS),
        (add, added, SUCCESS),
        (send, sent, SUCCESS),
        (write_nowhere, refused, REM_ACCESS_ERR),
    ],
)
def test_answers_that_find_no_room_leave_as_soon_as_there_is(
    ask: Callable[[Pair], None], check: Callable[[Pair], None], status: int
) -> None:
    with Pair(cap=CAP) as pair:
        fill(pair.b)
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
        assert pair.a.node.stats()["retransmissions"] <= 1, "of the SEND after its RNR NAK; none for lack of an answer"


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
    """Without a loss each READ is answered a little faster; never faster than 16 bytes per ns."""
    size = 1 << 20
    with Pair(size=size) as pair:
        spans = []
        for _ in range(40):
            start = pair.sim.now
            pair.a.post(WR_READ, 0, size, 0)
            assert pair.a.status() == SUCCESS
            spans.append(pair.sim.now - start)
            pair.sim.run_for(SECOND)
        rest = size - (1 << 18)  # the first 256 KiB need no pause
        assert spans[0] >= rest / 4 * 0.9
        assert spans == sorted(spans, reverse=True)
        assert spans[-1] < spans[0] / 2
        assert spans[-1] >= rest / 20
        assert len(set(spans[-10:])) == 1, "the limit"
