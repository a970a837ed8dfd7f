# SPDX-License-Identifier: MIT
"""What is made to happen: late and failed completions, stalled counters, a port that goes down, QPs in error, the end
of the device, events; and single frames on the wire. All in virtual time.
"""

import errno
import os
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from tests.pyverbs.world import ACK, MS, WRITE, Side, World, refused, set_state

from softverbs.core.base.errors import PyverbsRDMAError, PyverbsUserError
from softverbs.device import Device, default_device
from softverbs.faults import Plan, Rule
from softverbs.links.faults import FaultLink
from softverbs.links.inproc import Network
from softverbs.pyverbs import libibverbs_enums as e
from softverbs.pyverbs.cq import CQ, CompChannel
from softverbs.pyverbs.device import Context
from softverbs.pyverbs.pd import PD
from softverbs.pyverbs.srq import SRQ, SrqAttr, SrqInitAttr

SUCCESS, FLUSHED = e.IBV_WC_SUCCESS, e.IBV_WC_WR_FLUSH_ERR


@pytest.fixture
def build() -> Iterator[Callable[..., World]]:
    made: list[World] = []

    def make(over: str = "network", **settings: Any) -> World:
        made.append(World(over, **settings))
        return made[-1]

    yield make
    for world in made:
        for device in world.devices:
            device.faults.clear()
        world.close()


@pytest.fixture(params=["network", "loopback"])
def world(request: pytest.FixtureRequest, build: Callable[..., World]) -> World:
    return build(request.param)


def write(side: Side, qp: Any, *wr_ids: int, flags: int = e.IBV_SEND_SIGNALED) -> None:
    for wr_id in wr_ids:
        qp.post_send(side.wr(e.IBV_WR_RDMA_WRITE, wr_id, flags=flags))


def faults(world: World) -> Plan:
    return world.a.device.faults


# -- completions that are late


def test_a_late_completion_is_seen_when_its_time_has_come(world: World) -> None:
    qp, _ = world.pair()
    start = world.now
    rule = faults(world).add("completion:wr_id=2:delay=2ms")
    write(world.a, qp, 1, 2, 3)
    world.run()
    assert world.a.done() == [(1, SUCCESS)], "what comes after it waits too"
    world.pass_time(2 * MS - (world.now - start) - 1)
    assert world.a.done() == []
    world.pass_time(1)
    assert world.a.done() == [(2, SUCCESS), (3, SUCCESS)]
    assert (rule.seen, rule.hits) == (1, 1)


def test_the_counter_moves_before_a_late_completion(world: World) -> None:
    qp, _ = world.a.qp(), world.b.qp()
    counter = world.a.count(qp, WRITE)
    world.connect(qp, _)
    faults(world).add("completion:delay=1ms")
    write(world.a, qp, 1, 2)
    world.run()
    assert counter.read() == 2
    assert world.a.done() == []
    world.settle()
    assert len(world.a.done()) == 2


def test_a_late_completion_raises_its_event_when_it_is_seen(world: World) -> None:
    channel = CompChannel(world.a.context)
    cq = CQ(world.a.context, 16, None, channel)
    qp, peer = world.a.qp(cq), world.b.qp()
    world.connect(qp, peer)
    faults(world).add("completion:delay=3ms:nth=1")
    cq.req_notify()
    write(world.a, qp, 1)
    os.set_blocking(channel.fd, False)
    world.run()
    assert refused(errno.EAGAIN, channel.get_cq_event)
    start = world.now
    os.set_blocking(channel.fd, True)
    assert channel.get_cq_event() is cq, "who waits for it waits as long as it takes, and no longer"
    assert world.now == start + 3 * MS
    assert world.a.done(cq) == [(1, SUCCESS)]
    cq.ack_events(1)


def test_lateness_of_one_queue_is_no_other_queues(world: World) -> None:
    slow, quick = CQ(world.a.context, 16), CQ(world.a.context, 16)
    first, second = world.a.qp(slow), world.a.qp(quick)
    for qp in (first, second):
        world.connect(qp, world.b.qp())
    faults(world).add(f"completion:cq={slow.handle}:delay=1ms")
    write(world.a, first, 1)
    write(world.a, second, 2)
    world.run()
    assert (world.a.done(slow), world.a.done(quick)) == ([], [(2, SUCCESS)])
    world.settle()
    assert world.a.done(slow) == [(1, SUCCESS)]


def test_every_third_completion_of_a_qp_is_late_and_none_is_lost(world: World) -> None:
    first, second = world.pair()[0], world.pair()[0]
    rule = faults(world).add(f"completion:qp={first.qp_num}:opcode=RDMA_WRITE:every=3:delay=100us")
    write(world.a, first, *range(30))
    write(world.a, second, *range(100, 130))
    world.settle()
    done = world.a.done()
    assert sorted(done) == [(number, SUCCESS) for number in (*range(30), *range(100, 130))]
    assert [number for number, _ in done if number < 100] == list(range(30))
    assert rule.hits == 10


def test_late_completions_of_a_qp_that_is_destroyed_never_come(world: World) -> None:
    doomed, other = world.pair()[0], world.pair()[0]
    faults(world).add("completion:nth=1:delay=1ms")
    write(world.a, doomed, 1, 2)
    write(world.a, other, 3)
    world.run()
    set_state(doomed, e.IBV_QPS_RESET)
    world.settle()
    assert world.a.done() == [(3, SUCCESS)]


def test_lateness_may_end_before_the_completion_comes(world: World) -> None:
    qp, _ = world.pair()
    with faults(world).applied("completion:delay=1ms"):
        write(world.a, qp, 1)
        world.run()
    write(world.a, qp, 2)
    world.run()
    assert world.a.done() == []
    world.settle()
    assert world.a.done() == [(1, SUCCESS), (2, SUCCESS)]
    assert world.a.device.port.plan is None, "nothing is left to do"


def test_a_queue_with_late_completions_can_be_closed(world: World) -> None:
    cq = CQ(world.a.context, 16)
    qp, peer = world.a.qp(cq), world.b.qp()
    world.connect(qp, peer)
    faults(world).add("completion:delay=1ms")
    write(world.a, qp, 1)
    world.run()
    qp.close()
    cq.close()
    world.settle()


def test_late_completions_overrun_a_queue_as_others_do(build: Callable[..., World]) -> None:
    world = build("network")
    cq = CQ(world.a.context, 2)
    qp, peer = world.a.qp(cq), world.b.qp()
    world.connect(qp, peer)
    faults(world).add("completion:nth=1:delay=1ms")
    write(world.a, qp, 1, 2, 3)
    world.settle()
    assert world.a.done(cq) == [(1, SUCCESS), (2, SUCCESS)]
    assert {event for event, _ in world.a.events()} == {e.IBV_EVENT_CQ_ERR, e.IBV_EVENT_QP_FATAL}


def test_who_sleeps_is_woken_for_a_late_completion(build: Callable[..., World]) -> None:
    """In real time, with the device's thread: nobody polls."""
    world = build("udp")
    channel = CompChannel(world.a.context)
    cq = CQ(world.a.context, 16, None, channel)
    qp, peer = world.a.qp(cq), world.b.qp()
    world.connect(qp, peer)
    faults(world).add("completion:delay=30ms")
    cq.req_notify()
    start = time.monotonic_ns()
    write(world.a, qp, 1)
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(channel.get_cq_event).result(30) is cq
    assert time.monotonic_ns() - start >= 30 * MS
    assert world.a.done(cq) == [(1, SUCCESS)]
    cq.ack_events(1)


# -- completions that fail


@pytest.mark.parametrize("status", ["RETRY_EXC_ERR", "REM_ACCESS_ERR", "LOC_PROT_ERR"])
def test_a_completion_fails_and_the_rest_is_flushed(world: World, status: str) -> None:
    qp, _ = world.pair()
    counter = world.a.counter()
    rule = faults(world).add(f"completion:nth=3:fail={status}")
    write(world.a, qp, *range(1, 7))
    world.run()
    code = getattr(e, f"IBV_WC_{status}")
    completions = world.a.poll()
    assert [(wc.wr_id, wc.status) for wc in completions] == [
        (1, SUCCESS), (2, SUCCESS), (3, code), (4, FLUSHED), (5, FLUSHED), (6, FLUSHED),
    ]  # fmt: skip
    assert f"made to fail by completion:nth=3:fail={status}" in completions[2].reason
    assert completions[3].reason
    assert qp.qp_state == e.IBV_QPS_ERR
    assert rule.hits == 1
    assert counter.read() == 0
    write(world.a, qp, 7)
    assert world.a.done() == [(7, FLUSHED)]


def test_an_unsignaled_request_that_fails_completes_all_the_same(world: World) -> None:
    qp, peer = world.a.qp(), world.b.qp()
    counter = world.a.count(qp, WRITE)
    world.connect(qp, peer)
    faults(world).add("completion:wr_id=2:fail=GENERAL_ERR")
    write(world.a, qp, 1, 2, 3, flags=0)
    world.run()
    assert world.a.done() == [(2, e.IBV_WC_GENERAL_ERR), (3, FLUSHED)]
    assert counter.read_pair() == (1, 2), "completions + errors is what was posted"


# -- counters that stall


def test_a_counter_stalls_and_goes_on(world: World) -> None:
    qp, peer = world.a.qp(), world.b.qp()
    counter, other = world.a.count(qp, WRITE), world.a.counter()
    world.connect(qp, peer)
    rule = faults(world).add(f"counter_stall:counter={counter.handle}:after=2:for=5ms")
    other.inc(9)
    write(world.a, qp, *range(5))
    world.run()
    assert (counter.read(), other.read()) == (2, 9)
    assert len(world.a.done()) == 5, "completions do not wait for it"
    world.pass_time(5 * MS)
    assert counter.read() == 5, "nothing is lost"
    counter.inc(1)
    assert counter.read() == 6, "once"
    assert (rule.seen, rule.hits) == (6, 1)


def test_a_stall_without_an_end_ends_with_its_rule(world: World) -> None:
    counter = world.a.counter()
    with faults(world).applied("counter_stall"):
        counter.inc(3)
        world.pass_time(MS)
        assert counter.read() == 0
    world.run()
    assert counter.read() == 3


# -- the port


def test_the_port_goes_down_after_so_many_packets_and_comes_up_again(build: Callable[..., World]) -> None:
    world = build("network")
    qp, _ = world.pair()
    world.run()
    rule = faults(world).add("port_down:after=10 packets:for=5ms")
    write(world.a, qp, *range(20))
    world.run()
    down = world.now
    assert not world.a.device.port.up
    assert len(world.a.done()) < 20
    world.settle()
    assert world.now >= down + 5 * MS
    assert [event for event, _ in world.a.events()] == [e.IBV_EVENT_PORT_ERR, e.IBV_EVENT_PORT_ACTIVE]
    assert qp.qp_state == e.IBV_QPS_RTS, "the connection survives"
    assert rule.hits == 1
    assert faults(world).log[0].event == "port_down"


def test_the_port_can_be_down_at_once_and_up_when_the_block_ends(world: World) -> None:
    device = world.a.device
    with device.faults.applied("port_down"):
        assert not device.port.up
        assert world.a.context.query_port(1).state == e.IBV_PORT_DOWN
    assert device.port.up
    assert [event for event, _ in world.a.events()] == [e.IBV_EVENT_PORT_ERR, e.IBV_EVENT_PORT_ACTIVE]


def test_a_port_that_flaps(world: World) -> None:
    rule = faults(world).add("port_down:after=1ms:every=10ms:times=3:for=2ms")
    world.pass_time(100 * MS)
    assert rule.hits == 3
    assert [event for event, _ in world.a.events()] == [e.IBV_EVENT_PORT_ERR, e.IBV_EVENT_PORT_ACTIVE] * 3
    assert [hit.time for hit in faults(world).log] == [1001 * MS, 1011 * MS, 1021 * MS]


def test_a_peer_that_stays_away(build: Callable[..., World]) -> None:
    world = build("network")
    qp, _ = world.pair(retry_cnt=2)
    world.b.device.faults.add("port_down")
    write(world.a, qp, 1)
    world.settle()
    assert world.a.done() == [(1, e.IBV_WC_RETRY_EXC_ERR)]


# -- queue pairs


def test_a_qp_fails_after_so_many_completions(world: World) -> None:
    qp, other = world.pair()[0], world.pair()[0]
    rule = faults(world).add(f"qp_error:qp={qp.qp_num:#x}:after=3 completions")
    write(world.a, other, *range(100, 110))
    write(world.a, qp, *range(1, 7))
    world.run()
    done = dict(world.a.done())
    assert [done[number] for number in range(1, 7)] == [SUCCESS] * 3 + [FLUSHED] * 3
    assert [done[number] for number in range(100, 110)] == [SUCCESS] * 10
    assert (qp.qp_state, other.qp_state) == (e.IBV_QPS_ERR, e.IBV_QPS_RTS)
    assert world.a.events()[-1] == (e.IBV_EVENT_QP_FATAL, qp)
    assert rule.hits == 1


def test_a_qp_fails_after_so_many_packets(build: Callable[..., World]) -> None:
    world = build("network")
    qp, peer = world.pair()
    world.b.device.faults.add("qp_error:after=4 packets")
    write(world.a, qp, *range(8))
    world.settle()
    assert peer.qp_state == e.IBV_QPS_ERR
    assert qp.qp_state == e.IBV_QPS_ERR, "its peer does not answer any more"
    statuses = [status for _, status in world.a.done()]
    assert len(statuses) == 8
    assert e.IBV_WC_RETRY_EXC_ERR in statuses


def test_a_qp_fails_after_so_many_posts(world: World) -> None:
    qp, _ = world.pair()
    faults(world).add("qp_error:after=2 posts")
    write(world.a, qp, 1, 2)
    world.run()
    assert world.a.done() == [(1, FLUSHED), (2, FLUSHED)]


def test_all_qps_fail_at_once_and_one_by_chance(world: World) -> None:
    qps = [world.pair()[0] for _ in range(4)]
    faults(world).add("qp_error")
    world.run()
    assert [qp.qp_state for qp in qps].count(e.IBV_QPS_ERR) <= 1, "one, of this side or of the other"
    assert len(faults(world).log) == 1
    faults(world).add("qp_error:qp=all")
    world.run()
    assert {qp.qp_state for qp in qps} == {e.IBV_QPS_ERR}


# -- the end of the device


def test_a_device_that_is_removed(world: World) -> None:
    qp, peer = world.pair()
    world.a.post_recv(qp, 1, 2)
    device = world.a.device
    device.remove("somebody fell over the cable")
    words = "device host1 was removed: somebody fell over the cable"
    assert (e.IBV_EVENT_DEVICE_FATAL, None) in world.a.events()
    assert world.a.done()[:2] == [(1, FLUSHED), (2, FLUSHED)], "what is there can be polled"
    for act in (
        world.a.cq.poll,
        lambda: write(world.a, qp, 3),
        lambda: world.a.post_recv(qp, 3),
        lambda: PD(world.a.context),
        lambda: CQ(world.a.context, 10),
        lambda: Context(device=device),
        lambda: world.a.context.query_port(1),
        device.progress,
        lambda: device.wait_until(lambda: False),
    ):
        assert words in refused(errno.EIO, act)
    device.remove("again")
    assert not device.usable()
    assert world.a.events() == []
    qp.close()
    world.a.context.close()
    assert peer is not None


def test_a_device_may_be_removed_by_plan(world: World) -> None:
    qp, _ = world.pair()
    faults(world).add("device_fatal:after=5 completions")
    write(world.a, qp, *range(10))
    with pytest.raises(PyverbsRDMAError, match="was removed: made to fail by device_fatal:after=5 completions"):
        world.settle()
    done = world.a.poll()
    refused(errno.EIO, world.a.cq.poll)
    assert sorted(wc.wr_id for wc in done) == list(range(10))
    assert [wc.status for wc in done][:5] == [SUCCESS] * 5


def test_late_completions_come_before_the_end(world: World) -> None:
    qp, _ = world.pair()
    faults(world).add("completion:delay=1s")
    write(world.a, qp, 1)
    world.run()
    world.a.device.remove("the end")
    assert world.a.done() == [(1, SUCCESS)]


def test_who_waits_is_woken_by_the_end() -> None:
    with Device("gone0", link=Network().link("10.0.0.1")) as device, Context(device=device) as context:
        channel = CompChannel(context)
        with ThreadPoolExecutor(2) as pool:
            completion = pool.submit(channel.get_cq_event)
            event = pool.submit(context.get_async_event)
            device.remove("the test is over")
            assert event.result(30).event_type == e.IBV_EVENT_DEVICE_FATAL
            assert "gone0 was removed" in str(completion.exception(30))


def test_a_default_device_that_was_removed_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("softverbs.device._default", None)
    first = default_device()
    first.remove("unplugged")
    second = default_device()
    assert second is not first
    assert second.usable()
    first.close()
    second.close()


# -- events


def test_events_can_be_injected(world: World) -> None:
    qp, _ = world.pair()
    world.a.events()
    plan = faults(world)
    plan.add("event:type=GID_CHANGE")
    plan.add(f"event:type=QP_ACCESS_ERR:qp={qp.qp_num}")
    plan.add(f"event:type=CQ_ERR:cq={world.a.cq.handle}")
    plan.add("event:type=CLIENT_REREGISTER:after=1ms:every=1ms:times=2")
    world.pass_time(10 * MS)
    assert world.a.events() == [
        (e.IBV_EVENT_GID_CHANGE, None),
        (e.IBV_EVENT_QP_ACCESS_ERR, qp),
        (e.IBV_EVENT_CQ_ERR, world.a.cq),
        (e.IBV_EVENT_CLIENT_REREGISTER, None),
        (e.IBV_EVENT_CLIENT_REREGISTER, None),
    ]
    assert qp.qp_state == e.IBV_QPS_RTS, "nothing but the event happens"


class SteppingClock:
    """A clock that passes ``step`` ns between any two looks, as that of a process that is preempted again and again."""

    def __init__(self, step: int) -> None:
        self.now = 1000 * MS
        self.step = step

    def __call__(self) -> int:
        self.now += self.step
        return self.now


@pytest.mark.timeout(20)
@pytest.mark.parametrize("every", ["1ns", "20us", "999us", "1ms", "3ms"])
@pytest.mark.parametrize("step", [1, 700_000, 2 * MS])
def test_times_that_nobody_was_there_for_are_skipped(every: str, step: int) -> None:
    """However short the interval and however slow the clock: each look at the time lets a rule fire once at most."""
    clock = SteppingClock(step)
    with Device(link=Network().link("10.0.0.1"), clock=clock, thread=False) as device:
        device.progress()
        clock.now += 1000 * MS  # the port's own time stands still meanwhile
        rule = device.faults.add(f"event:type=GID_CHANGE:every={every}")
        assert rule.hits <= 1
        for _ in range(5):
            clock.now += 1000 * MS
            before = rule.hits
            device.progress()
            assert before < rule.hits <= before + 2


def test_a_rule_keeps_its_rhythm_where_times_are_missed(world: World) -> None:
    rule = faults(world).add("event:type=GID_CHANGE:after=2ms:every=10ms")
    world.pass_time(5 * MS)
    start = faults(world).log[0].time
    world.now += 33 * MS
    world.a.device.progress()
    assert rule.hits == 2, "the two that were missed are not made up for"
    world.pass_time(10 * MS)
    assert [hit.time - start for hit in faults(world).log][2:] == [40 * MS]


def test_events_of_the_qp_or_cq_at_which_they_fire(world: World) -> None:
    qp, _ = world.pair()
    world.pair()
    world.a.events()
    plan = faults(world)
    plan.add("event:type=COMM_EST:after=1 posts")
    plan.add("event:type=CQ_ERR:after=2 completions")
    write(world.a, qp, 1, 2)
    world.run()
    events = [event for event in world.a.events() if event[1] is not world.b]
    assert (e.IBV_EVENT_COMM_EST, qp) in events
    assert (e.IBV_EVENT_CQ_ERR, world.a.cq) in events


def test_events_of_shared_receive_queues_and_of_one_cq(world: World) -> None:
    srq = SRQ(world.a.pd, SrqInitAttr(SrqAttr(10, 1)))
    other = CQ(world.a.context, 16)
    qp, peer = world.a.qp(other), world.b.qp()
    world.connect(qp, peer)
    busy, _ = world.pair()
    world.a.events()
    faults(world).add("event:type=SRQ_ERR")
    faults(world).add(f"event:type=CQ_ERR:cq={other.handle}:after=2 completions")
    write(world.a, busy, 1, 2, 3)
    world.run()
    assert world.a.events() == [(e.IBV_EVENT_SRQ_ERR, srq)]
    write(world.a, qp, 4, 5)
    world.run()
    assert world.a.events() == [(e.IBV_EVENT_CQ_ERR, other)]


# -- the end of a rule


def test_what_is_removed_before_its_time_never_happens(world: World) -> None:
    plan = faults(world)
    for text in ("port_down:after=5ms", "qp_error:after=3 posts", "event:type=GID_CHANGE:after=1ms:every=1ms"):
        plan.add(text)
    plan.clear()
    qp, _ = world.pair()
    world.a.events()
    write(world.a, qp, 1, 2, 3)
    world.pass_time(10 * MS)
    assert [status for _, status in world.a.done()] == [SUCCESS] * 3
    assert (world.a.device.port.up, world.a.events(), plan.hits) == (True, [], 0)
    assert world.a.device.port.plan is None


def test_a_counter_may_be_closed_while_it_stalls(world: World) -> None:
    counter = world.a.counter()
    faults(world).add("counter_stall:for=1ms")
    counter.inc(1)
    counter.close()
    world.pass_time(2 * MS)
    faults(world).clear()


# -- single frames on the wire


@pytest.mark.parametrize(
    ("text", "name", "count"),
    [
        ("drop:nth=3:direction=send", "drop", 1),
        ("drop:opcode=RC_ACK*:times=2", "drop", 2),
        ("duplicate:opcode=RC_RDMA_WRITE_ONLY:nth=2", "duplicate", 1),
        ("corrupt:times=1:direction=receive", "corrupt", 1),
        ("delay:by=3ms:nth=1", "delay", 1),
        ("reorder:nth=2", "reorder", 1),
    ],
)
def test_single_frames(text: str, name: str, count: int) -> None:
    with World("network", plan=text) as world:
        qp, _ = world.pair()
        write(world.a, qp, *range(1, 9))
        world.settle()
        assert world.a.done() == [(number, SUCCESS) for number in range(1, 9)], "the connection heals it"
        plan = world.a.device.faults
        assert world.a.device.link.stats()[f"fault_{name}"] == plan.hits == plan.rules[0].hits == count
        assert {hit.rule for hit in plan.log} == {Rule.parse(text)}


def test_rules_of_the_wire_come_and_go() -> None:
    with World("network", plan="drop=0") as world:
        qp, _ = world.pair()
        write(world.a, qp, 1)
        world.settle()
        with world.a.device.faults.applied("drop:opcode=RC_RDMA_WRITE_ONLY:times=1") as rule:
            start = world.now
            write(world.a, qp, 2)
            world.settle()
            assert world.now - start > 50 * MS, "the request was sent again, after a time-out"
        assert rule.hits == 1
        assert rule.seen >= 2
        assert [hit.event for hit in world.a.device.faults.log] == ["RC_RDMA_WRITE_ONLY"]


def test_a_device_without_faults_of_the_link_cannot_get_some(world: World) -> None:
    with pytest.raises(PyverbsUserError, match="opened without faults of the link; open it with drop=0"):
        faults(world).add("drop:nth=3")
    assert faults(world).rules == ()


@pytest.mark.parametrize(
    ("text", "wrapped"),
    [
        ("", False), ("seed=1", False), ("create_cq:nth=1", False), ("drop=0", True), ("drop:nth=1", True),
        ("seed=1,corrupt=0.5", True),
    ],
)  # fmt: skip
def test_only_faults_of_the_link_cost_a_link(text: str, wrapped: bool) -> None:
    with Device(link=Network().link("10.0.0.1"), thread=False, faults=text) as device:
        assert isinstance(device.link, FaultLink) == wrapped


def test_acknowledgements_are_what_their_name_says() -> None:
    assert ACK == 0x11


# -- where a plan comes from

PROGRAM = """
import softverbs
context = softverbs.Context(name="softverbs0")
print(context.device.faults)
for number in range(3):
    try:
        softverbs.CQ(context, 10)
    except softverbs.PyverbsRDMAError as error:
        print(number, error)
"""


def run(*command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *command], env={**os.environ, **environment}, capture_output=True, text=True, timeout=60
    )


def test_the_environment_says_what_fails() -> None:
    done = run("-c", PROGRAM, SOFTVERBS_FAULTS="seed=1,create_cq:nth=2:errno=ENOMEM")
    assert done.returncode == 0, done.stderr
    plan, failure = done.stdout.splitlines()
    assert plan == "seed=1,create_cq:nth=2:errno=ENOMEM"
    assert failure.startswith("1 Failed to create a CQ: made to fail by create_cq:nth=2:errno=ENOMEM (call 2 of")
    done = run("-c", PROGRAM, SOFTVERBS_FAULTS="creat_cq")
    assert "faults: 'creat_cq': there is no fault 'creat_cq'; did you mean create_cq?" in done.stderr


def test_commands_take_the_same_plan() -> None:
    done = run("-m", "softverbs", "devinfo", SOFTVERBS_FAULTS="query_device*:errno=EIO")
    assert done.returncode == 1
    assert "made to fail by query_device*:errno=EIO" in done.stderr
    done = run("-m", "softverbs", "devinfo", SOFTVERBS_FAULTS="query_devise")
    assert done.returncode == 1
    assert "did you mean query_device" in done.stderr


def test_readiness_of_the_event_descriptor(world: World) -> None:
    poller = select.poll()
    poller.register(world.a.context.async_fd, select.POLLIN)
    assert poller.poll(0) == []
    faults(world).add("event:type=PORT_ERR")
    assert poller.poll(0)
