# SPDX-License-Identifier: MIT
"""The simulator itself: time, order, and that it sees what it is there to see."""

import pytest
from tests.netsim import frames
from tests.netsim.pair import SUCCESS, WR_READ, WR_WRITE, Pair, dropping
from tests.netsim.sim import MS, SECOND, TIMEOUT_NS, Clock, Sim, StuckError


def test_time_stands_still_until_nothing_else_can_happen() -> None:
    with Pair() as pair:
        pair.a.post(WR_WRITE, 0, 60000, 0)
        assert pair.a.status() == SUCCESS
        assert pair.sim.now == Clock().now == SECOND


def test_time_jumps_to_the_next_deadline() -> None:
    with Pair() as pair:
        pair.rule = dropping()
        pair.a.post(WR_WRITE, 0, 8, 0)
        assert pair.a.status() == SUCCESS
        assert pair.sim.now == SECOND + TIMEOUT_NS


def test_agenda_is_kept_in_order() -> None:
    with Sim() as sim:
        sim.node()
        done: list[tuple[int, int]] = []
        for delay in (5, 3, 0, 3):
            sim.after(delay * MS, lambda delay=delay: done.append((delay, sim.now - SECOND)))
        sim.run_for(4 * MS)
        assert done == [(0, 0), (3, 3 * MS), (3, 3 * MS)]
        sim.settle()
        assert done[-1] == (5, 5 * MS)


def test_waiting_for_what_never_comes_fails() -> None:
    with Pair(timeout=0) as pair:
        with pytest.raises(StuckError, match="nothing can happen"):
            pair.a.wait()
        pair.rule = lambda _: []
        pair.a.post(WR_WRITE, 0, 8, 0)
        with pytest.raises(StuckError, match="nothing can happen"):
            pair.a.wait()
    with Pair() as pair:
        pair.rule = lambda _: []
        pair.a.post(WR_WRITE, 0, 8, 0)
        with pytest.raises(StuckError, match=r"not done within 0\.01 s"):
            pair.a.wait(limit=10 * MS)


def test_memory_beside_a_region_is_watched() -> None:
    pair = Pair()
    assert pair.a.memory.untouched()
    pair.a.memory._behind[0] ^= 1
    with pytest.raises(AssertionError, match="beside"), pair:
        pass


def test_forged_frames_are_taken_for_real() -> None:
    """The seal of the tests and the ICRC of the device agree, in both directions."""
    with Pair() as pair:
        for end in (pair.a, pair.b):
            before = end.peer.node.stats()["duplicates"]
            pair.inject(end, frames.put_bth(frames.WRITE_ONLY, end.peer.qp.qp_num, 0xFFF) + bytes(16))
            assert end.peer.node.stats()["duplicates"] == before + 1
            assert end.peer.node.stats()["dropped_icrc"] == 0


def test_readers_of_frames_agree_with_what_is_sent() -> None:
    with Pair(path_mtu=1) as pair:
        pair.a.post(WR_READ, 0, 300, 0x40)
        assert pair.a.status() == SUCCESS
        request = pair.sent(pair.a)[0]
        assert frames.bth(request) == (frames.READ_REQUEST, False, 0, pair.b.qp.qp_num, True, 0x1000)
        assert frames.reth(request) == (pair.b.memory.iova + 0x40, pair.b.memory.key, 300)
        assert frames.put_bth(frames.READ_REQUEST, pair.b.qp.qp_num, 0x1000) == request[:12]
        assert frames.syndrome(pair.sent(pair.b)[0]) == frames.ACK


def test_a_device_has_a_deadline_while_the_link_holds_something() -> None:
    """The in-process link says 0, for at once; the port must not take it for never."""
    with Pair() as pair:
        pair.a.post(WR_WRITE, 0, 8, 0)
        pair.a.node.device.progress()
        assert pair.b.node.port.deadline() == pair.sim.now
        pair.sim.settle()
        assert pair.b.node.port.deadline() == 0
