# SPDX-License-Identifier: MIT
"""The requester at its edges: an arena that is full, answers that come in an odd order, timers of others."""

import pytest
from tests.netsim import frames
from tests.netsim.pair import RETRY_EXC_ERR, SUCCESS, WR_READ, WR_SEND, WR_WRITE, Pair, dropping
from tests.netsim.sim import MS, TIMEOUT_NS, connect

from softverbs.core.base.limits import Options

PACKETS_OF_ARENA = 512 * 1024 // (1024 + 12 + 4)


def test_what_finds_no_room_in_the_arena_is_sent_in_the_next_round() -> None:
    """Several queue pairs post at once more than the arena holds. Nothing is lost, sent twice, or out of order."""
    size = 160 * 1024
    with Pair(size=8 * size) as pair:
        pairs = [(pair.a.qp, pair.b.qp)]
        for _ in range(7):
            ours, theirs = pair.a.node.qp(pair.a.pd, pair.a.cq), pair.b.node.qp(pair.b.pd, pair.b.cq)
            connect(ours, theirs, pair.a.node, pair.b.node)
            connect(theirs, ours, pair.b.node, pair.a.node)
            pairs.append((ours, theirs))
        for number, (ours, _) in enumerate(pairs):
            pair.a.memory.put(number * size, bytes([number + 1]) * size)
            ours.post_send(pair.a.wr(WR_WRITE, number * size, size, number * size, wr_id=number))
        send, handed_over = pair.a.node.link.send, []

        def full(now: int, route: object, address: int, length: int, segment: int) -> bool:
            handed_over.append(length)
            return False

        pair.a.node.link.send = full
        pair.a.node.device.progress()
        sent = pair.a.node.stats()["frames_sent"]
        assert PACKETS_OF_ARENA - 2 <= sent <= PACKETS_OF_ARENA
        pair.a.node.device.progress()
        assert pair.a.node.stats()["frames_sent"] == sent, "there is no room for one more"
        pair.a.node.link.send = send
        done = pair.a.wait(8)
        assert sorted((wc.wr_id, wc.status) for wc in done) == [(number, SUCCESS) for number in range(8)]
        assert pair.b.memory.view == pair.a.memory.view
        assert pair.a.node.stats()["retransmissions"] == 0


def test_an_rnr_nak_behind_a_missing_response_is_not_counted() -> None:
    """The READ before it must be answered first; with rnr_retry=0 the RNR NAK would be the end."""
    with Pair(rnr_retry=0) as pair:
        lose = dropping(*frames.RESPONSES)
        naks = []

        def rule(frame: bytes) -> list[bytes] | None:
            if frame[0] == frames.ACKNOWLEDGE and frames.syndrome(frame) & frames.KIND == frames.RNR:
                naks.append(frames.psn(frame))
                pair.b.receive(0x100, 8)
            return lose(frame)

        pair.rule = rule
        pair.b.memory.put(0, b"response")
        pair.a.post(WR_READ, 0x40, 8, 0, wr_id=1)
        pair.a.post(WR_SEND, 0x40, 8, wr_id=2)
        done = pair.a.wait(2)
        assert [(wc.wr_id, wc.status) for wc in done] == [(1, SUCCESS), (2, SUCCESS)]
        assert naks == [0x1001]
        assert pair.a.memory.at(0x40, 8) == b"response"
        assert pair.b.cq.count() == 1
        assert pair.a.qp.requester.retransmissions >= 2


def read_by_b(pair: Pair, size: int) -> None:
    pair.b.post(WR_READ, 0, size, 0, wr_id=9)


def test_pauses_of_the_responder_do_not_end_an_rnr_wait() -> None:
    """One queue pair, two timers: READ responses are paced in steps of 20 us, an RNR wait lasts 10 ms."""
    size = 1 << 18
    with Pair(size=size, options=Options(window=8192), min_rnr_timer=20) as pair:
        sends: list[int] = []

        def rule(frame: bytes) -> None:
            if frame[0] == frames.SEND_ONLY:
                sends.append(pair.sim.now)

        pair.rule = rule  # type: ignore[assignment]
        pair.a.post(WR_SEND, 0, 8, wr_id=1)
        pair.sim.run_for(0)
        read_by_b(pair, size)
        assert [wc.wr_id for wc in pair.b.wait()] == [9]
        assert len(sends) == 1, "the READ is over before the RNR wait is"
        pair.b.receive(0, 8)
        assert [(wc.wr_id, wc.status) for wc in pair.a.wait()] == [(1, SUCCESS)]
        assert len(sends) == 2
        assert sends[1] - sends[0] >= 10 * MS


def test_pauses_of_the_responder_do_not_end_the_wait_for_an_answer() -> None:
    size = 1 << 18
    with Pair(size=size, options=Options(window=8192)) as pair:
        writes: list[int] = []
        lose = dropping(frames.ACKNOWLEDGE)

        def rule(frame: bytes) -> list[bytes] | None:
            if frame[0] == frames.WRITE_ONLY:
                writes.append(pair.sim.now)
            return lose(frame)

        pair.rule = rule
        pair.a.post(WR_WRITE, 0, 8, 0, wr_id=1)
        pair.sim.run_for(0)
        read_by_b(pair, size)
        assert [wc.wr_id for wc in pair.b.wait()] == [9]
        assert len(writes) == 1
        assert [(wc.wr_id, wc.status) for wc in pair.a.wait()] == [(1, SUCCESS)]
        assert writes[1] - writes[0] == TIMEOUT_NS


@pytest.mark.parametrize("answered_after", [500, 2000])
def test_a_late_answer_takes_back_what_was_about_to_be_sent_again(answered_after: int) -> None:
    """An RNR NAK that the network has held back makes the requester wait, for a SEND whose ACK comes meanwhile.

    Another request is posted after 1 us: behind the SEND, or to an empty queue.
    """
    with Pair() as pair:
        held: list[bytes] = []

        def rule(frame: bytes) -> list[bytes] | None:
            if frame[0] != frames.ACKNOWLEDGE:
                return None
            if frames.syndrome(frame) & frames.KIND == frames.RNR:
                held.append(frame)
                pair.b.receive(0, 8)
                return []
            if not held:
                return None
            pair.sim.after(1000, lambda: pair.a.post(WR_WRITE, 0, 8, 0, wr_id=2))
            pair.sim.after(answered_after, lambda: pair.inject(pair.b, frame[:-4]))
            return [held.pop()]

        pair.rule = rule
        pair.a.post(WR_SEND, 0, 8, wr_id=1)
        assert [(wc.wr_id, wc.status) for wc in pair.a.wait(2)] == [(1, SUCCESS), (2, SUCCESS)]
        sends, writes = pair.sent(pair.a, frames.SEND_ONLY), pair.sent(pair.a, frames.WRITE_ONLY)
        assert [frames.psn(frame) for frame in sends] == [0x1000, 0x1000], "at first, and when no answer came in time"
        assert [frames.psn(frame) for frame in writes] == [0x1001]
        assert pair.b.cq.count() == 1
        assert pair.b.node.stats()["duplicates"] == 0


def test_every_retry_is_a_timer_and_then_it_is_over() -> None:
    with Pair(retry_cnt=3) as pair:
        pair.rule = lambda _: []
        start = pair.sim.now
        pair.a.post(WR_WRITE, 0, 8, 0)
        assert pair.a.status() == RETRY_EXC_ERR
        assert pair.sim.now - start == 4 * TIMEOUT_NS
        assert len(pair.sent(pair.a)) == 4
        assert pair.a.node.port.deadline() == 0, "no timer is left behind"
