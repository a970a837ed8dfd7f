# SPDX-License-Identifier: MIT
"""Completion queues and counters without the Python face: reasons that move, queues that close, updates that wait."""

import errno
from typing import Any

import pytest
from tests.netsim.pair import FLUSH_ERR, REM_ACCESS_ERR, REMOTE_WRITE, SUCCESS, WR_WRITE, Pair
from tests.netsim.sim import Sim, connect, move

from softverbs.core.base.errors import PyverbsRDMAError
from softverbs.core.base.limits import Options
from softverbs.core.queues.completion import CompletionQueue

BYTES = 1


def options(**values: Any) -> Options:
    return Options.from_mapping(values)


# -- queues


@pytest.mark.parametrize("flags", [4, 0x80000000, 7])
def test_unknown_creation_flags_are_refused(flags: int) -> None:
    with Sim() as sim:
        node = sim.node()
        with pytest.raises(PyverbsRDMAError, match=f"unknown creation flags {flags:#x}") as caught:
            CompletionQueue(node.port, None, 10, None, None, 0, flags)
        assert caught.value.errno == errno.EINVAL
        assert node.port.counts.get("completion queue", 0) == 0


def test_an_armed_queue_without_a_channel_raises_no_event() -> None:
    with Pair() as pair:
        pair.a.cq.req_notify(False)
        pair.a.post(WR_WRITE, 0, 8, 0)
        assert pair.a.status() == SUCCESS
        assert pair.a.cq.events_queued == 0
        assert pair.a.cq.armed == 0, "it was armed for one event"


def test_a_queue_closes_once() -> None:
    with Sim() as sim:
        node = sim.node(options=options(max_cq=1))
        cq = node.cq()
        cq.close()
        cq.close()
        assert node.port.counts["completion queue"] == 0
        node.cq()
        cq.close()
        with pytest.raises(PyverbsRDMAError, match="1 completion queues at most"):
            node.cq()


def failing(pair: Pair) -> tuple[Any, list[str]]:
    """a's queue: a completion of a second queue pair, then the refusal and the flushes of the first. The reasons."""
    a, b = pair.a, pair.b
    first, second = a.node.qp(a.pd, a.cq), b.node.qp(b.pd, b.cq)
    connect(first, second, a.node, b.node)
    connect(second, first, b.node, a.node)
    first.post_send(a.wr(WR_WRITE, 0, 8, 0, wr_id=1))
    pair.sim.settle()
    a.post(WR_WRITE, 0, 8, 0, rkey=0xBAD, wr_id=2)
    a.post(WR_WRITE, 0, 8, 0, wr_id=3)
    pair.sim.settle()
    assert a.cq.count() == 3
    return first, ["key 0xbad is not registered", "earlier work request"]


def test_reasons_stay_with_their_entries_when_others_are_purged() -> None:
    with Pair() as pair:
        first, reasons = failing(pair)
        move(first, 0)
        left = pair.a.polled()
        assert [(wc.wr_id, wc.status) for wc in left] == [(2, REM_ACCESS_ERR), (3, FLUSH_ERR)]
        for wc, reason in zip(left, reasons, strict=True):
            assert reason in wc.reason


def test_reasons_stay_with_their_entries_when_the_queue_gets_another_size() -> None:
    with Pair() as pair:
        _, reasons = failing(pair)
        assert pair.a.cq.poll(1)[0].wr_id == 1
        pair.a.cq.resize(2)
        left = pair.a.polled()
        assert [(wc.wr_id, wc.status) for wc in left] == [(2, REM_ACCESS_ERR), (3, FLUSH_ERR)]
        for wc, reason in zip(left, reasons, strict=True):
            assert reason in wc.reason


def test_reasons_of_purged_entries_are_not_given_to_later_ones() -> None:
    with Pair() as pair:
        failing(pair)
        move(pair.a.qp, 0)
        move(pair.b.qp, 0)
        pair.connect()
        pair.a.post(WR_WRITE, 0, 8, 0, wr_id=4)
        pair.sim.settle()
        pair.a.qp.modify({"qp_state": 6}, 1)
        pair.a.post(WR_WRITE, 0, 8, 0, wr_id=5)
        done = pair.a.polled()
        assert [(wc.wr_id, wc.status) for wc in done] == [(1, SUCCESS), (4, SUCCESS), (5, FLUSH_ERR)]
        assert [bool(wc.reason) for wc in done] == [False, False, True]
        assert "ERR" in done[2].reason


# -- counters


@pytest.mark.parametrize("length", [1, 7, 8, 9, 100, 8191])
def test_bytes_beyond_several_turns_of_a_small_counter(length: int) -> None:
    with Pair(options=options(counter_max_value=7)) as pair:
        counter = pair.b.node.counter(BYTES)
        ours, theirs = pair.a.node.qp(pair.a.pd, pair.a.cq), pair.b.node.qp(pair.b.pd, pair.b.cq)
        theirs.attach_comp_cntr(counter, REMOTE_WRITE, 0)
        connect(ours, theirs, pair.a.node, pair.b.node)
        connect(theirs, ours, pair.b.node, pair.a.node)
        for turn in range(1, 4):
            ours.post_send(pair.a.wr(WR_WRITE, 0, length, 0))
            assert pair.a.status() == SUCCESS
            assert counter.read() == turn * length % 8


def test_a_counter_closes_once() -> None:
    with Sim() as sim:
        node = sim.node(options=options(max_counters=1))
        counter = node.counter()
        counter.close()
        counter.close()
        node.counter()
        counter.close()
        with pytest.raises(PyverbsRDMAError, match="1 completion counters at most"):
            node.counter()


def test_a_stalled_counter_shows_nothing_and_loses_nothing() -> None:
    with Pair() as pair:
        counter = pair.b.counters[REMOTE_WRITE]
        reached: list[int] = []
        counter.watch(2, lambda counter: reached.append(counter.visible_value))
        counter.stall(True)
        for _ in range(3):
            pair.a.post(WR_WRITE, 0, 8, 0)
        assert [wc.status for wc in pair.a.wait(3)] == [SUCCESS] * 3
        pair.sim.run_for(1000)
        assert (counter.read(), reached) == (0, [])
        counter.stall(False)
        pair.a.post(WR_WRITE, 0, 8, 0)
        pair.sim.settle()
        assert (counter.read(), reached) == (4, [4])
        counter.inc(1)
        assert counter.visible_value == 5, "not stalled, an update is seen at once"


def test_a_counter_without_updates_goes_on_after_a_stall() -> None:
    with Sim() as sim:
        node = sim.node()
        counter = node.counter()
        counter.stall(True)
        counter.stall(False)
        sim.settle()
        counter.inc(2)
        assert counter.visible_value == 2


def test_delayed_updates_become_visible_each_in_its_time() -> None:
    with Sim() as sim:
        node = sim.node(options=options(counter_delay_ns=100))
        early, late = node.counter(), node.counter()
        start = sim.now
        node.device.progress()
        early.inc(1)
        sim.clock.now = start + 40
        node.device.progress()
        late.inc(2)
        node.device.progress()
        seen = []
        while node.port.deadline():
            sim.clock.now = node.port.deadline()
            node.device.progress()
            seen.append((sim.now - start, early.visible_value, late.visible_value))
        assert seen == [(100, 1, 0), (140, 1, 2)]
