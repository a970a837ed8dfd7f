# SPDX-License-Identifier: MIT
"""READs of a peer that answers each request in full, one after the other, as Soft-RoCE does: answers come late."""

from collections.abc import Iterator
from contextlib import contextmanager

from tests.netsim import frames
from tests.netsim.pair import READ, SUCCESS, WR_READ, WR_WRITE, Pair, dropping
from tests.netsim.sim import MS, SECOND, TIMEOUT_NS

MTU, PACKETS, FIRST = 256, 12, 0x1000
DATA = bytes(range(1, 13)) * (MTU * PACKETS // 12)


@contextmanager
def asked(retry_cnt: int) -> Iterator[Pair]:
    """A READ whose requests nobody gets: the test answers in the peer's place."""
    with Pair(path_mtu=1, retry_cnt=retry_cnt) as pair:
        pair.rule = dropping(frames.READ_REQUEST, times=99)
        pair.a.post(WR_READ, 0x4000, MTU * PACKETS, 0)
        pair.sim.run_for(0)
        yield pair


def answer(pair: Pair, *numbers: int) -> None:
    """Responses of the READ, by their number."""
    for number in numbers:
        last = number == PACKETS - 1
        opcode = frames.RESPONSE_LAST if last else frames.RESPONSE_MIDDLE if number else frames.RESPONSE_FIRST
        aeth = b"" if opcode == frames.RESPONSE_MIDDLE else frames.put_aeth(frames.ACK)
        header = frames.put_bth(opcode, pair.a.qp.qp_num, FIRST + number, ask=False)
        pair.inject(pair.b, header + aeth + DATA[number * MTU : (number + 1) * MTU])


def requests(pair: Pair) -> list[int]:
    """Where the READ requests so far began, in responses."""
    return [frames.psn(frame) - FIRST for frame in pair.sent(pair.a, frames.READ_REQUEST)]


def test_late_answers_put_off_the_timeout() -> None:
    """They take many times the time-out. Asking again meanwhile would only make the peer's work longer."""
    with asked(retry_cnt=1) as pair:
        answer(pair, 0)
        for number in range(2, PACKETS):
            pair.sim.run_for(TIMEOUT_NS - MS)
            answer(pair, number)
        assert requests(pair) == [0, 1]
        answer(pair, *range(1, PACKETS))
        assert pair.a.status() == SUCCESS
        assert pair.a.memory.at(0x4000, len(DATA)) == DATA


def test_answers_to_an_earlier_read_put_off_the_timeout() -> None:
    with asked(retry_cnt=0) as pair:
        answer(pair, *range(PACKETS))
        assert pair.a.status() == SUCCESS
        pair.a.post(WR_READ, 0, 8, 0)
        for number in range(PACKETS):
            pair.sim.run_for(TIMEOUT_NS - MS)
            answer(pair, number)
        assert pair.a.polled() == []
        assert requests(pair) == [0, PACKETS]


def test_silence_after_late_answers_is_a_timeout() -> None:
    with asked(retry_cnt=2) as pair:
        answer(pair, 0, 2)
        pair.sim.run_for(TIMEOUT_NS - MS)
        answer(pair, 3)
        pair.sim.run_for(TIMEOUT_NS - MS)
        assert requests(pair) == [0, 1]
        pair.sim.run_for(2 * MS)
        assert requests(pair) == [0, 1, 1]
        answer(pair, 2)
        assert requests(pair) == [0, 1, 1, 1], "the answer to the third request lacks its head as well"
        answer(pair, *range(1, PACKETS))
        assert pair.a.status() == SUCCESS


def test_an_answer_that_begins_anew_without_its_head_is_asked_for_at_once() -> None:
    """It costs no retry, of which there is one."""
    with asked(retry_cnt=1) as pair:
        answer(pair, 0, 5, 6, 7)
        assert requests(pair) == [0, 1]
        answer(pair, 3)
        assert requests(pair) == [0, 1, 1]
        answer(pair, 4, 5, 6)
        assert requests(pair) == [0, 1, 1]
        answer(pair, 2)
        assert requests(pair) == [0, 1, 1, 1]
        answer(pair, *range(1, PACKETS))
        assert pair.a.status() == SUCCESS
        assert pair.sim.now == SECOND
        assert pair.a.count(READ) == (1, 0)


def test_a_read_of_nothing_is_acknowledged_by_what_answers_a_later_request() -> None:
    """Soft-RoCE of Linux 6.12 answers it once, and is silent when asked again."""
    for later in (WR_WRITE, WR_READ):
        with Pair() as pair:
            lost = dropping(frames.RESPONSE_ONLY)
            pair.rule = lost
            pair.a.post(WR_READ, 0, 0, 0)
            pair.a.post(later, 0x100, 8, 0x100)
            assert [wc.status for wc in pair.a.wait(2)] == [SUCCESS] * 2
            assert pair.sim.now == SECOND
            assert pair.a.count(READ) == (1 + (later == WR_READ), 0)
            assert len(pair.sent(pair.a)) == 2
            requester = pair.a.qp.requester
            assert (requester.in_flight, requester.reads) == (0, 0)


def test_a_read_of_nothing_alone_is_asked_for_again() -> None:
    with Pair() as pair:
        pair.rule = dropping(frames.RESPONSE_ONLY)
        pair.a.post(WR_READ, 0, 0, 0)
        assert pair.a.status() == SUCCESS
        assert pair.sim.now == SECOND + TIMEOUT_NS
