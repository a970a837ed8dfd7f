# SPDX-License-Identifier: MIT
"""The requester, over two ports and a wire that does what the test says: what is sent when, and what ends how."""

import re

import pytest
from tests.netsim import frames
from tests.netsim.pair import (
    FLUSH_ERR,
    RETRY_EXC_ERR,
    RNR_RETRY_EXC_ERR,
    SEND,
    SIGNALED,
    SUCCESS,
    WR_FAA,
    WR_READ,
    WR_SEND,
    WR_WRITE,
    WRITE,
    End,
    Pair,
    dropping,
)
from tests.netsim.sim import ERR, MS, RNR_NS, RTS, SECOND, TIMEOUT_NS, US

from softverbs.core.base.limits import Options

EVENT_SQ_DRAINED = 5
DATA = bytes(range(256)) * 32
REQUESTS = tuple(code for code in range(0x18) if code not in frames.ANSWERS)
RNR_LONGEST = 40_000_000  # ns, core/transport/requester.py


def silence(_: bytes) -> list[bytes]:
    """A rule: nothing gets through."""
    return []


def statuses(end: End) -> list[int]:
    return [wc.status for wc in end.polled()]


def psns(pair: Pair, end: End, *opcodes: int) -> list[int]:
    return [frames.psn(frame) for frame in pair.sent(end, *opcodes)]


# -- PSNs, acknowledgements, the window


def test_psn_wraps() -> None:
    with Pair(path_mtu=1, sq_psn=0xFFFFFD, rq_psn=0xFFFFFD) as pair:
        pair.a.memory.put(0, DATA)
        pair.a.post(WR_WRITE, 0, 6 * 256, 0x4000)
        pair.a.post(WR_READ, 0x8000, 6 * 256, 0x4000)
        assert [wc.status for wc in pair.a.wait(2)] == [SUCCESS, SUCCESS]
        assert pair.a.memory.at(0x8000, 6 * 256) == DATA[: 6 * 256]
        assert psns(pair, pair.a) == [0xFFFFFD, 0xFFFFFE, 0xFFFFFF, 0, 1, 2, 3]
        assert psns(pair, pair.b, *frames.RESPONSES) == [3, 4, 5, 6, 7, 8]


def test_psn_is_taken_from_the_attributes() -> None:
    with Pair(path_mtu=1, sq_psn=0x123456, rq_psn=0x123456) as pair:
        pair.a.post(WR_WRITE, 0, 8, 0)
        assert pair.a.status() == SUCCESS
        assert psns(pair, pair.a) == [0x123456]
        assert pair.a.qp.requester.una == 0x123457


def test_acknowledgements_are_coalesced() -> None:
    """One is asked for every 16 packets, when the window is full and at the end; none comes unasked."""
    with Pair(path_mtu=1) as pair:
        pair.a.memory.put(0, DATA)
        pair.a.post(WR_WRITE, 0, 256 * 32, 0)
        pair.a.post(WR_WRITE, 0, 256 * 30, 0)
        assert [wc.status for wc in pair.a.wait(2)] == [SUCCESS, SUCCESS]
        asked = [frames.psn(frame) - 0x1000 for frame in pair.sent(pair.a) if frames.bth(frame).ask]
        assert asked == [15, 31, 47, 61]
        assert psns(pair, pair.b, frames.ACKNOWLEDGE)[-1] == 0x1000 + 61
        assert len(pair.sent(pair.b)) <= 4


def test_an_acknowledgement_is_sent_once() -> None:
    with Pair() as pair:
        pair.a.post(WR_WRITE, 0, 8, 0)
        assert pair.a.status() == SUCCESS
        for end in (pair.b, pair.a, pair.b):
            end.post(WR_WRITE, 0, 8, 0)
            assert end.status() == SUCCESS
        assert [len(pair.sent(end, frames.ACKNOWLEDGE)) for end in (pair.a, pair.b)] == [2, 2]


def test_one_acknowledgement_retires_many_in_order() -> None:
    with Pair() as pair:
        pair.rule = dropping(frames.ACKNOWLEDGE, times=1)
        for number in range(10):
            pair.a.post(WR_WRITE, 0, 8, 0, wr_id=number, flags=SIGNALED if number % 2 else 0)
        assert [wc.wr_id for wc in pair.a.wait(5)] == [1, 3, 5, 7, 9]
        assert pair.a.count(WRITE) == (10, 0)


def test_nothing_is_on_the_way_when_everything_is_acknowledged() -> None:
    with Pair(path_mtu=1) as pair:
        pair.rule = dropping(frames.WRITE_LAST, frames.RESPONSE_MIDDLE, times=2)
        for opcode, length in ((WR_WRITE, 2000), (WR_READ, 2000), (WR_WRITE, 0), (WR_READ, 0), (WR_FAA, 8)):
            pair.a.post(opcode, 0x4000, length, 0)
        assert len(pair.a.wait(5)) == 5
        requester = pair.a.qp.requester
        assert (requester.in_flight, requester.reads, requester.una) == (0, 0, requester.top)
        assert requester.deadline == 0


def test_window_bounds_what_is_on_the_way() -> None:
    with Pair(options=Options(window=4 * (1024 + 64)), path_mtu=3) as pair:
        pair.rule = silence
        for _ in range(20):
            pair.a.post(WR_WRITE, 0, 1024, 0)
        pair.sim.run_for(MS)
        # A packet costs 64 bytes beside its payload.
        assert len(pair.wire) == 4
        assert frames.bth(pair.wire[-1][1]).ask
        assert pair.a.qp.requester.in_flight == 4 * (1024 + 64)


def test_window_grows_with_answers_and_halves_on_loss() -> None:
    with Pair(options=Options(window=1 << 20), path_mtu=3) as pair:
        start = pair.a.qp.requester.window
        assert start == 192 << 10
        for _ in range(8):
            pair.a.post(WR_WRITE, 0, 8, 0)
            assert pair.a.status() == SUCCESS
        grown = pair.a.qp.requester.window
        assert grown == start + 8 * 1024
        pair.rule = silence
        pair.a.post(WR_WRITE, 0, 8, 0)
        pair.sim.run_for(TIMEOUT_NS + MS)
        assert pair.a.qp.requester.window == grown // 2
        pair.sim.run_for(6 * TIMEOUT_NS)
        assert pair.a.qp.requester.window == 2 * (1024 + 64)


def test_a_blocked_link_loses_nothing() -> None:
    """The network takes 4 bursts at a time: what it refuses waits."""
    with Pair(path_mtu=1) as pair:
        pair.sim.network.capacity = 4
        pair.a.memory.put(0, DATA)
        for number in range(50):
            pair.a.post(WR_WRITE, 0, 256 * (1 + number % 3), 0, flags=0)
        pair.a.post(WR_READ, 0x8000, 512, 0)
        assert pair.a.status() == SUCCESS
        assert pair.a.count(WRITE) == (50, 0)
        assert pair.a.memory.at(0x8000, 512) == DATA[:512]


# -- loss


def test_sequence_nak_sends_again_from_the_gap_on() -> None:
    with Pair(path_mtu=1) as pair:
        pair.rule = dropping(frames.WRITE_MIDDLE, skip=1)
        pair.a.post(WR_WRITE, 0, 256 * 5, 0)
        assert pair.a.status() == SUCCESS
        assert [psn - 0x1000 for psn in psns(pair, pair.a)] == [0, 1, 2, 3, 4, 2, 3, 4]
        naks = [frame for frame in pair.sent(pair.b) if frames.syndrome(frame) == frames.NAK_SEQUENCE]
        assert [frames.psn(frame) for frame in naks] == [0x1002]
        assert pair.sim.now < SECOND + MS, "a NAK was waited for until the time-out"
        assert pair.a.node.stats()["retransmissions"] == 3


def test_lost_tail_is_sent_again_after_the_timeout() -> None:
    with Pair(path_mtu=1) as pair:
        pair.rule = dropping(frames.WRITE_LAST)
        pair.a.post(WR_WRITE, 0, 256 * 3, 0)
        assert pair.a.status() == SUCCESS
        assert [psn - 0x1000 for psn in psns(pair, pair.a)] == [0, 1, 2, 0, 1, 2]
        assert pair.sim.now == SECOND + TIMEOUT_NS


def test_read_is_asked_for_again_from_the_middle() -> None:
    with Pair(path_mtu=1) as pair:
        pair.b.memory.put(0x100, DATA)
        pair.rule = dropping(frames.RESPONSE_MIDDLE, skip=1)
        pair.a.post(WR_READ, 0x8000, 256 * 6 + 10, 0x100)
        assert pair.a.status() == SUCCESS
        assert pair.a.memory.at(0x8000, 256 * 6 + 10) == DATA[: 256 * 6 + 10]
        first, again = pair.sent(pair.a, frames.READ_REQUEST)
        assert frames.psn(again) == frames.psn(first) + 2
        base, key = pair.b.memory.iova, pair.b.memory.key
        assert frames.reth(first) == (base + 0x100, key, 256 * 6 + 10)
        assert frames.reth(again) == (base + 0x100 + 512, key, 256 * 4 + 10)
        assert pair.b.count(8) == (1, 0)


def test_only_response_of_a_read_is_asked_for_again() -> None:
    with Pair(path_mtu=1) as pair:
        pair.b.memory.put(0, DATA)
        pair.rule = dropping(frames.RESPONSE_LAST)
        pair.a.post(WR_READ, 0x8000, 256 * 3 + 1, 0)
        assert pair.a.status() == SUCCESS
        assert frames.reth(pair.sent(pair.a)[-1])[2] == 1
        assert pair.sent(pair.b)[-1][0] == frames.RESPONSE_ONLY
        assert pair.a.memory.at(0x8000, 256 * 3 + 1) == DATA[: 256 * 3 + 1]


def test_acknowledgement_of_later_says_that_a_response_is_missing() -> None:
    """IBA 9.7.5.1.4, the implied NAK: no time-out is waited for."""
    with Pair() as pair:
        pair.rule = dropping(frames.RESPONSE_ONLY)
        pair.a.post(WR_READ, 0, 8, 0)
        pair.a.post(WR_WRITE, 0, 8, 0x100)
        assert [wc.status for wc in pair.a.wait(2)] == [SUCCESS, SUCCESS]
        assert pair.sim.now == SECOND


def test_a_missing_response_is_one_loss_however_many_acknowledgements_tell_of_it() -> None:
    with Pair(retry_cnt=2) as pair:
        pair.rule = silence
        pair.a.post(WR_READ, 0, 8, 0)
        for _ in range(4):
            pair.a.post(WR_WRITE, 0, 8, 0x100)
        pair.sim.run_for(0)
        pair.rule = dropping(*REQUESTS, times=99)
        for psn in range(0x1001, 0x1005):
            header = frames.put_bth(frames.ACKNOWLEDGE, pair.a.qp.qp_num, psn)
            pair.inject(pair.b, header + frames.put_aeth(frames.ACK))
        pair.rule = None
        assert [wc.status for wc in pair.a.wait(5)] == [SUCCESS] * 5


def test_a_nak_that_the_network_repeats_is_one_loss() -> None:
    """Three copies arrive at once."""
    with Pair(path_mtu=1, retry_cnt=1) as pair:
        lose = dropping(frames.WRITE_MIDDLE)
        pair.rule = lambda frame: [frame] * 3 if frame[0] == frames.ACKNOWLEDGE else lose(frame)
        pair.a.post(WR_WRITE, 0, 1000, 0)
        assert pair.a.status() == SUCCESS
        assert psns(pair, pair.a) == [0x1000, 0x1001, 0x1002, 0x1003, 0x1001, 0x1002, 0x1003]


def test_stale_answers_are_of_no_consequence() -> None:
    with Pair() as pair:
        for _ in range(3):
            pair.a.post(WR_WRITE, 0, 8, 0)
        assert len(pair.a.wait(3)) == 3
        a, b = pair.a, pair.b
        for psn in (0xFFF, 0x1000, 0x1002, 0x1003, 0x1004, 0x800000):
            for syndrome in (frames.ACK, frames.NAK_SEQUENCE, frames.NAK_ACCESS, frames.RNR):
                pair.inject(
                    b, frames.put_bth(frames.ACKNOWLEDGE, a.qp.qp_num, psn, ask=False) + frames.put_aeth(syndrome)
                )
            pair.inject(
                b,
                frames.put_bth(frames.RESPONSE_ONLY, a.qp.qp_num, psn) + frames.put_aeth(frames.ACK) + bytes(8),
            )
            pair.inject(
                b,
                frames.put_bth(frames.ATOMIC_ACKNOWLEDGE, a.qp.qp_num, psn) + frames.put_aeth(frames.ACK) + bytes(8),
            )
        a.post(WR_WRITE, 0, 8, 0)
        assert a.status() == SUCCESS
        assert a.qp.state == RTS
        assert a.count(WRITE) == (4, 0)


def test_acknowledgement_of_a_reserved_kind_is_ignored() -> None:
    with Pair() as pair:
        pair.rule = silence
        pair.a.post(WR_WRITE, 0, 8, 0)
        pair.sim.run_for(MS)
        pair.rule = None
        body = frames.put_bth(frames.ACKNOWLEDGE, pair.a.qp.qp_num, 0x1000) + frames.put_aeth(0x40)
        pair.inject(pair.b, body)
        assert pair.a.polled() == []
        assert pair.a.status() == SUCCESS


def test_late_acknowledgement_after_a_timeout_skips_ahead() -> None:
    """An acknowledgement that comes while everything is being sent again: what it covers is not sent once more."""
    with Pair(path_mtu=1, options=Options(window=4096)) as pair:
        held: list[bytes] = []

        def hold(frame: bytes) -> list[bytes] | None:
            if frame[0] == frames.ACKNOWLEDGE and not held:
                held.append(frame)
                return []
            return None

        pair.rule = hold
        for _ in range(6):
            pair.a.post(WR_WRITE, 0, 256, 0)
        pair.sim.run_until(lambda: bool(held))
        pair.rule = silence
        pair.sim.run_for(TIMEOUT_NS + MS)
        pair.rule = None
        pair.inject(pair.b, held[0][:-4])
        assert [wc.status for wc in pair.a.wait(6)] == [SUCCESS] * 6
        assert pair.a.count(WRITE) == (6, 0)


# -- giving up


@pytest.mark.parametrize("retries", [0, 1, 7])
def test_retries_are_exhausted(retries: int) -> None:
    with Pair(retry_cnt=retries) as pair:
        pair.rule = silence
        pair.a.post(WR_SEND, 0, 100, wr_id=5)
        pair.a.post(WR_WRITE, 0, 100, 0, wr_id=6, flags=0)
        first, second = pair.a.wait(2)
        assert (first.wr_id, first.status) == (5, RETRY_EXC_ERR)
        assert (second.wr_id, second.status) == (6, FLUSH_ERR)
        assert psns(pair, pair.a) == [0x1000, 0x1001] * (retries + 1)
        assert pair.sim.now == SECOND + (retries + 1) * TIMEOUT_NS
        assert re.search(rf"10\.0\.0\.2.*0x1000.*sent {retries + 1} times", first.reason)
        assert pair.a.qp.state == ERR
        assert pair.a.count(SEND) == (0, 1)
        assert pair.a.count(WRITE) == (0, 1)


def test_progress_renews_the_retries() -> None:
    """Three losses in a row end a connection with retry_cnt=2; each of these ends before that."""
    with Pair(retry_cnt=2) as pair:
        for _ in range(5):
            pair.rule = dropping(frames.WRITE_ONLY, times=2)
            pair.a.post(WR_WRITE, 0, 8, 0)
            assert pair.a.status() == SUCCESS


def test_timeout_starts_anew_with_what_is_sent_again() -> None:
    """A NAK comes late, and what it asks for is lost once more: the time-out counts from then on."""
    with Pair() as pair:
        pair.rule = silence
        pair.a.post(WR_WRITE, 0, 8, 0)
        late = 60 * MS
        pair.sim.run_for(late)
        nak = frames.put_bth(frames.ACKNOWLEDGE, pair.a.qp.qp_num, 0x1000) + frames.put_aeth(frames.NAK_SEQUENCE)
        pair.rule = dropping(frames.WRITE_ONLY)
        pair.inject(pair.b, nak)
        assert pair.a.status() == SUCCESS
        assert pair.sim.now == SECOND + late + TIMEOUT_NS


def test_read_response_after_a_rewind_skips_ahead() -> None:
    """A response that nobody waits for acknowledges what was about to be sent again; PSNs stay with their packets."""
    with Pair() as pair:
        pair.rule = dropping(frames.WRITE_ONLY, times=99)
        for offset in range(3):
            pair.a.post(WR_WRITE, 0, 8, 0x100 * offset)
        pair.sim.run_for(TIMEOUT_NS + MS)
        nak = frames.put_bth(frames.ACKNOWLEDGE, pair.a.qp.qp_num, 0x1000) + frames.put_aeth(frames.RNR | 31)
        pair.inject(pair.b, nak)
        pair.wire.clear()
        pair.rule = None
        header = frames.put_bth(frames.RESPONSE_ONLY, pair.a.qp.qp_num, 0x1002) + frames.put_aeth(frames.ACK)
        pair.inject(pair.b, header + bytes(8))
        assert {frames.psn(frame) for frame in pair.sent(pair.a)} == {0x1002}
        assert frames.reth(pair.sent(pair.a)[0])[0] == pair.b.memory.iova + 0x200


def test_no_timeout_waits_for_ever() -> None:
    with Pair(timeout=0) as pair:
        pair.rule = dropping(frames.WRITE_ONLY)
        pair.a.post(WR_WRITE, 0, 8, 0)
        pair.sim.run_for(3600 * SECOND)
        assert pair.a.polled() == []
        assert pair.a.node.port.deadline() == 0
        pair.a.post(WR_WRITE, 0, 8, 0)  # whose arrival shows the loss
        assert [wc.status for wc in pair.a.wait(2)] == [SUCCESS] * 2


def test_deadline_is_that_of_the_oldest_answer_missing() -> None:
    with Pair() as pair:
        port = pair.a.node.port
        assert port.deadline() == 0
        pair.rule = silence
        pair.a.post(WR_WRITE, 0, 8, 0)
        assert port.deadline() == pair.sim.now, "there is something to send, at once"
        pair.sim.run_for(0)
        assert port.deadline() == SECOND + TIMEOUT_NS
        pair.sim.run_for(10 * MS)
        pair.a.post(WR_WRITE, 0, 8, 0)
        pair.sim.run_for(0)
        assert port.deadline() == SECOND + TIMEOUT_NS
        pair.rule = None
        assert [wc.status for wc in pair.a.wait(2)] == [SUCCESS] * 2
        pair.sim.settle()
        assert port.deadline() == 0


# -- RNR


def rnr_frames(pair: Pair) -> list[bytes]:
    return [frame for frame in pair.sent(pair.b, frames.ACKNOWLEDGE) if frames.syndrome(frame) & frames.KIND == 0x20]


@pytest.mark.parametrize("retries", [0, 1, 6])
def test_rnr_retries_are_exhausted(retries: int) -> None:
    with Pair(rnr_retry=retries) as pair:
        pair.a.post(WR_SEND, 0, 8)
        wc = pair.a.wait()[0]
        assert wc.status == RNR_RETRY_EXC_ERR
        assert len(pair.sent(pair.a)) == len(rnr_frames(pair)) == retries + 1
        assert pair.sim.now == SECOND + retries * RNR_NS
        assert "no receive" in wc.reason
        assert pair.b.qp.state == RTS


def test_rnr_seven_is_for_ever() -> None:
    with Pair(rnr_retry=7) as pair:
        pair.a.memory.put(0, DATA)
        pair.a.post(WR_SEND, 0, 3000)
        pair.sim.run_for(SECOND)
        assert pair.a.polled() == []
        asked = len(rnr_frames(pair))
        assert SECOND // RNR_LONGEST < asked < SECOND // RNR_LONGEST + 100
        assert pair.a.node.stats()["rnr_naks_received"] == pair.b.node.stats()["rnr_naks_sent"] == asked
        pair.b.receive(0x4000, 3000)
        assert pair.a.status() == SUCCESS
        assert pair.b.memory.at(0x4000, 3000) == DATA[:3000]


def test_a_request_waits_for_a_receive_an_eighth_longer_at_most() -> None:
    """However long the peer has had none: what is posted late is found soon, and asking costs little meanwhile."""
    for late in (2 * RNR_NS, 10 * RNR_NS, 100 * RNR_NS, SECOND, 10 * SECOND):
        with Pair(rnr_retry=7) as pair:
            start = pair.sim.now
            pair.a.post(WR_SEND, 0, 8)
            pair.sim.run_for(late)
            pair.b.receive(0x4000, 8)
            assert pair.a.status() == SUCCESS
            over = pair.sim.now - start - late
            assert over <= max(RNR_NS, min(late // 8, RNR_LONGEST)) + 1000
            pair.a.post(WR_SEND, 0, 8)
            pair.sim.run_for(4 * RNR_NS)
            assert len(rnr_frames(pair)) > 3, "the next request begins anew"


def test_a_peer_without_a_receive_is_named_once_in_the_log() -> None:
    with Pair(rnr_retry=7) as pair:
        said: list[str] = []
        pair.a.node.port.log = said.append
        pair.a.post(WR_SEND, 0, 8)
        pair.sim.run_for(SECOND // 2)
        assert said == []
        pair.sim.run_for(5 * SECOND)
        assert len(said) == 1
        assert "has no receive posted" in said[0]
        assert "rnr_retry=7" in said[0]


@pytest.mark.parametrize(("code", "delay"), [(1, 10_000), (31, 491_520_000), (0, 655_360_000)])
def test_rnr_timer(code: int, delay: int) -> None:
    with Pair(min_rnr_timer=code) as pair:
        pair.a.post(WR_SEND, 0, 8)
        pair.sim.run_for(0)
        pair.b.receive(0, 8)
        assert SECOND < pair.a.node.port.deadline() <= SECOND + delay
        assert pair.a.status() == SUCCESS
        assert pair.sim.now == SECOND + delay


def test_rnr_nak_repeated_by_the_network_counts_once() -> None:
    with Pair(rnr_retry=1) as pair:
        pair.rule = lambda frame: [frame] * 3
        pair.a.post(WR_SEND, 0, 8)
        pair.sim.run_for(RNR_NS // 2)
        pair.b.receive(0, 8)
        assert pair.a.status() == SUCCESS


@pytest.mark.parametrize("syndrome", [frames.ACK, frames.NAK_SEQUENCE, frames.RNR])
def test_an_answer_in_the_rnr_wait_that_acknowledges_the_packet(syndrome: int) -> None:
    """A copy of the packet came after the receive: the ACK, or a NAK of the next packet, ends the wait."""
    with Pair() as pair:
        pair.a.post(WR_SEND, 0, 8)
        pair.a.post(WR_SEND, 0, 4)
        pair.sim.run_for(0)
        assert len(rnr_frames(pair)) == 1
        for number in range(2):
            pair.b.receive(0, 8, wr_id=number)
        first = pair.sent(pair.a)[0]
        pair.rule = dropping(frames.ACKNOWLEDGE)
        pair.inject(pair.a, first[:-4])
        following = 0x1000 if syndrome == frames.ACK else 0x1001
        body = frames.put_bth(frames.ACKNOWLEDGE, pair.a.qp.qp_num, following) + frames.put_aeth(syndrome | 1)
        pair.inject(pair.b, body if syndrome == frames.RNR else body[:-4] + frames.put_aeth(syndrome))
        assert [wc.status for wc in pair.a.wait(2)] == [SUCCESS, SUCCESS]
        assert pair.sim.now == SECOND + (10 * US if syndrome == frames.RNR else 0)
        assert [wc.byte_len for wc in pair.b.polled()] == [8, 4]


def test_a_gap_in_the_rnr_wait_does_not_end_it() -> None:
    with Pair() as pair:
        pair.a.post(WR_SEND, 0, 8)
        pair.sim.run_for(RNR_NS // 2)
        body = frames.put_bth(frames.ACKNOWLEDGE, pair.a.qp.qp_num, 0x1000) + frames.put_aeth(frames.NAK_SEQUENCE)
        pair.inject(pair.b, body)
        pair.b.receive(0, 8)
        assert pair.a.status() == SUCCESS
        assert pair.sim.now == SECOND + RNR_NS


def test_rnr_for_ever_survives_losses() -> None:
    """Every other frame of a long wait is lost; as each RNR NAK shows that the peer is there, no retry is used up."""
    with Pair(rnr_retry=7, retry_cnt=1) as pair:
        count = 0

        def rule(frame: bytes) -> list[bytes] | None:
            nonlocal count
            count += frame[0] == frames.SEND_ONLY
            return [] if frame[0] == frames.SEND_ONLY and count % 2 else None

        pair.rule = rule
        pair.a.post(WR_SEND, 0, 8)
        pair.sim.run_for(20 * TIMEOUT_NS)
        assert pair.a.polled() == []
        pair.b.receive(0, 8)
        assert pair.a.status() == SUCCESS


def test_rnr_does_not_hold_up_answers_before_it() -> None:
    with Pair() as pair:
        pair.b.memory.put(0, DATA)
        pair.a.post(WR_READ, 0x4000, 100, 0, wr_id=1)
        pair.a.post(WR_SEND, 0, 8, wr_id=2)
        assert pair.a.wait()[0].wr_id == 1
        assert pair.sim.now == SECOND
        pair.b.receive(0, 8)
        assert pair.a.wait()[0].wr_id == 2
