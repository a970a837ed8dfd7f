# SPDX-License-Identifier: MIT
"""Beyond the standard: waiting on counters, descriptors, pairs, asyncio, device options for tests; in virtual time."""

import asyncio
import errno
import os
import select
import threading
from typing import Any

import pytest
from tests.pyverbs.world import (
    MS,
    REMOTE_WRITE,
    SECOND,
    WRITE,
    WaitsForEverError,
    World,
    readable,
    refused,
)

from softverbs.pyverbs import libibverbs_enums as e
from softverbs.pyverbs.comp_cntr import CompCntr, CompCntrInitAttr
from softverbs.pyverbs.cq import CQ, CompChannel
from softverbs.pyverbs.qp import QP

BAD_KEY = 0xBAD00


class Counted:
    """A connected pair: a counter of the writes of side ``a``, one of their arrival at side ``b``."""

    def __init__(self, world: World, **changes: Any) -> None:
        self.world = world
        self.first: QP = world.a.qp()
        self.second: QP = world.b.qp()
        self.written: CompCntr = world.a.count(self.first, WRITE)
        self.arrived: CompCntr = world.b.count(self.second, REMOTE_WRITE)
        world.connect(self.first, self.second, **changes)

    def write(self, count: int = 1, key: int | None = None) -> None:
        """Posts writes; nothing has moved before somebody makes progress."""
        for _ in range(count):
            self.first.post_send(self.world.a.wr(e.IBV_WR_RDMA_WRITE, flags=0, key=key))


@pytest.fixture
def counted(world: World) -> Counted:
    return Counted(world)


# -- wait


@pytest.mark.row("1+: wait")
def test_wait_returns_when_the_threshold_is_reached(counted: Counted) -> None:
    counted.write(5)
    assert counted.written.wait(5) >= 5
    assert counted.arrived.wait(5) >= 5


@pytest.mark.row("1+: wait")
def test_the_target_waits_without_a_receive_or_a_completion(counted: Counted) -> None:
    counted.write(7)
    assert counted.arrived.wait(7, timeout=1) == 7
    assert counted.world.b.done() == []


@pytest.mark.row("1+: wait")
@pytest.mark.parametrize("threshold", [0, 1, 4, 5])
def test_a_threshold_that_lies_behind_is_reached(counted: Counted, threshold: int) -> None:
    counted.write(5)
    counted.world.run()
    before = counted.world.now
    assert counted.written.wait(threshold, timeout=1) == 5
    assert counted.world.now == before


@pytest.mark.row("1+: wait")
def test_a_jump_over_the_threshold_ends_the_wait(build: Any) -> None:
    """3,000 bytes at once, waiting for 1,000: compared with >=, never with ==."""
    world = build()
    first, second = world.a.qp(), world.b.qp()
    counter = world.b.count(second, REMOTE_WRITE, e.IBV_COMP_CNTR_TYPE_BYTES)
    world.connect(first, second)
    first.post_send(world.a.wr(e.IBV_WR_RDMA_WRITE, length=3000))
    assert counter.wait(1000, timeout=1) == 3000


@pytest.mark.row("1+: wait")
@pytest.mark.parametrize("timeout", [0, 0.25, 3])
def test_a_wait_times_out_on_time_and_says_how_far_it_came(counted: Counted, timeout: float) -> None:
    counted.write(2)
    counted.world.run()
    before = counted.world.now
    with pytest.raises(Exception, match="2 of 3") as caught:
        counted.written.wait(3, timeout)
    assert getattr(caught.value, "errno", None) == errno.ETIMEDOUT
    assert timeout * SECOND <= counted.world.now - before <= timeout * SECOND + MS
    assert counted.written.read_pair() == (2, 0)


@pytest.mark.row("1+: wait")
@pytest.mark.parametrize("timeout", [None, -1, -0.5])
def test_without_a_timeout_a_wait_is_for_ever(counted: Counted, timeout: float | None) -> None:
    with pytest.raises(WaitsForEverError):
        counted.written.wait(1, timeout)
    counted.write()
    assert counted.written.wait(1, timeout) == 1


@pytest.mark.row("1+: wait")
def test_an_error_ends_a_wait_at_once_and_success_alone_is_not_waited_for(counted: Counted) -> None:
    counted.write(2)
    counted.write(1, key=BAD_KEY)
    counted.write(2)
    before = counted.world.now
    reason = refused(errno.EIO, counted.written.wait, 5, 3600)
    assert "error" in reason
    assert counted.world.now - before < SECOND
    counted.world.settle()
    assert counted.written.read_pair() == (2, 3)


@pytest.mark.row("1+: wait")
@pytest.mark.parametrize("look", ["read_err", "read_pair", "set_err", "wait"])
def test_an_error_that_the_application_knows_of_ends_no_wait(build: Any, look: str) -> None:
    """It has to be a new one: whoever has seen an error may go on waiting for what succeeds."""
    counter = build().a.counter()
    counter.inc_err(1)
    if look == "wait":
        refused(errno.EIO, counter.wait, 5, 1)
    elif look == "set_err":
        counter.set_err(1)
    else:
        getattr(counter, look)()
    refused(errno.ETIMEDOUT, counter.wait, 5, 1)
    assert counter.read() == 0
    counter.inc_err(1)
    assert counter.read() == 0, "the completion count tells nothing of errors"
    refused(errno.EIO, counter.wait, 5, 1)


@pytest.mark.row("1+: wait")
def test_a_peer_that_is_gone_ends_a_wait_when_the_retries_are_used_up(build: Any) -> None:
    world = build(wire=True)
    counted = Counted(world, timeout=10, retry_cnt=2)
    world.wire.rule = lambda _: []
    counted.write()
    refused(errno.EIO, counted.written.wait, 1)
    assert counted.written.read_pair() == (0, 1)


@pytest.mark.row("1+: wait")
@pytest.mark.parametrize("threshold", [8, 2**32, 2**64 - 1])
def test_a_threshold_beyond_the_maximum_is_refused(build: Any, threshold: int) -> None:
    counter = build(counter_max_value=7).a.counter()
    counter.set(7)
    assert counter.wait(7, 0) == 7
    for act in (counter.wait, counter.threshold_fd, lambda n: CompCntr.wait_any([(counter, n)])):
        assert "threshold" in refused(errno.EINVAL, act, threshold)


# -- wait for any


@pytest.mark.row("1+: wait for any")
def test_it_tells_which_counter_was_first(counted: Counted) -> None:
    world = counted.world
    waits = [(world.a.counter(), 1), (counted.written, 3), (world.a.counter(), 1)]
    counted.write(3)
    assert CompCntr.wait_any(waits, timeout=1) == 1
    waits[2][0].inc(1)
    counted.written.set(0)
    assert CompCntr.wait_any(waits, timeout=1) == 2


@pytest.mark.row("1+: wait for any")
def test_it_waits_for_each_at_its_own_threshold(world: World) -> None:
    pairs = [(world.a.qp(), world.b.qp()) for _ in range(3)]
    counters = [world.a.count(first, WRITE) for first, _ in pairs]
    for first, second in pairs:
        world.connect(first, second)
    for (first, _), count in zip(pairs, (2, 2, 2), strict=True):
        for _ in range(count):
            first.post_send(world.a.wr(e.IBV_WR_RDMA_WRITE, flags=0))
    assert CompCntr.wait_any([(counters[0], 3), (counters[1], 2), (counters[2], 3)], timeout=1) == 1


@pytest.mark.row("1+: wait for any")
def test_it_times_out_and_an_error_of_any_ends_it(counted: Counted) -> None:
    waits = [(counted.world.a.counter(), 1), (counted.written, 3)]
    before = counted.world.now
    refused(errno.ETIMEDOUT, CompCntr.wait_any, waits, 2)
    assert counted.world.now - before >= 2 * SECOND
    counted.write(1, key=BAD_KEY)
    refused(errno.EIO, CompCntr.wait_any, waits, 3600)
    refused(errno.EINVAL, CompCntr.wait_any, [])


# -- a descriptor at a threshold


@pytest.mark.row("1+: threshold descriptor")
@pytest.mark.parametrize("method", ["poll", "epoll", "select"])
def test_a_descriptor_is_readable_from_the_threshold_on(counted: Counted, method: str) -> None:
    def ready(fd: Any) -> bool:
        if method == "select":
            return bool(select.select([fd], [], [], 0)[0])
        if method == "poll":
            return readable(fd)
        with select.epoll() as poller:
            poller.register(fd, select.EPOLLIN)
            return bool(poller.poll(0))

    with counted.arrived.threshold_fd(3) as fd:
        counted.write(2)
        counted.world.run()
        assert not ready(fd)
        counted.write(1)
        counted.world.run()
        assert ready(fd)


@pytest.mark.row("1+: threshold descriptor")
def test_a_descriptor_is_readable_at_once_if_the_threshold_is_reached(counted: Counted) -> None:
    counted.write(2)
    counted.world.run()
    for threshold in (0, 1, 2):
        with counted.written.threshold_fd(threshold) as fd:
            assert readable(fd)


@pytest.mark.row("1+: threshold descriptor")
def test_a_descriptor_is_for_one_shot(counted: Counted) -> None:
    """Once readable it stays so, whatever the counter does; a second one is needed to wait again."""
    fd = counted.written.threshold_fd(1)
    counted.write(1)
    counted.world.run()
    counted.written.set(0)
    assert readable(fd)
    fd.close()
    with counted.written.threshold_fd(1) as again:
        assert not readable(again)
        counted.write(1)
        counted.world.run()
        assert readable(again)


@pytest.mark.row("1+: threshold descriptor")
def test_descriptors_of_one_counter_are_independent(counted: Counted) -> None:
    fds = [counted.written.threshold_fd(threshold) for threshold in (1, 2, 2, 4)]
    counted.write(2)
    counted.world.run()
    assert [readable(fd) for fd in fds] == [True, True, True, False]
    for fd in fds:
        fd.close()
    counted.write(2)
    counted.world.run()
    assert counted.written.read() == 4


@pytest.mark.row("1+: threshold descriptor")
def test_a_descriptor_over_real_sockets(build: Any) -> None:
    """The target sleeps in poll(); the thread of its device counts."""
    counted = Counted(build("udp"))
    with counted.arrived.threshold_fd(20) as fd:
        counted.write(20)
        poller = select.poll()
        poller.register(fd, select.POLLIN)
        assert poller.poll(30_000)
    assert counted.arrived.read_pair() == (20, 0)


@pytest.mark.row("1+: wait")
def test_two_threads_wait_over_real_sockets(build: Any) -> None:
    counted = Counted(build("udp"))
    results: list[int] = []
    threads = [
        threading.Thread(target=lambda c=counter: results.append(c.wait(40, 30)))
        for counter in (counted.written, counted.arrived)
    ]
    for thread in threads:
        thread.start()
    counted.write(40)
    for thread in threads:
        thread.join()
    assert results == [40, 40]


# -- both values as a pair


@pytest.mark.row("1+: pair")
def test_the_pair_is_both_values(counted: Counted) -> None:
    assert counted.written.read_pair() == (0, 0)
    counted.write(3)
    counted.write(1, key=BAD_KEY)
    counted.write(2)
    counted.world.settle()
    assert counted.written.read_pair() == (counted.written.read(), counted.written.read_err()) == (3, 3)


@pytest.mark.row("1+: pair")
def test_the_pair_is_of_one_moment(world: World) -> None:
    """A thread moves first one value, then the other: never does the second lead."""
    counter = world.a.counter()
    over = threading.Event()

    def move() -> None:
        for _ in range(2000):
            counter.inc(1)
            counter.inc_err(1)
        over.set()

    thread = threading.Thread(target=move)
    thread.start()
    while not over.is_set():
        completions, errors = counter.read_pair()
        assert completions - errors in (0, 1)
    thread.join()
    assert counter.read_pair() == (2000, 2000)


# -- asyncio


@pytest.mark.row("1+: await")
def test_tasks_await_thresholds(counted: Counted) -> None:
    async def main() -> list[int]:
        tasks = [asyncio.ensure_future(counted.arrived.reached(threshold)) for threshold in (1, 3, 5)]
        for done in (0, 1, 3, 5):
            while counted.arrived.read() < done:
                counted.write(1)
                counted.world.run()
            for _ in range(10):
                await asyncio.sleep(0)
            assert [task.done() for task in tasks] == [done >= threshold for threshold in (1, 3, 5)]
        return [task.result() for task in tasks]

    assert all(result >= threshold for result, threshold in zip(asyncio.run(main()), (1, 3, 5), strict=True))


@pytest.mark.row("1+: await")
def test_an_error_ends_an_await(counted: Counted) -> None:
    async def main() -> None:
        task = asyncio.ensure_future(counted.written.reached(5))
        await asyncio.sleep(0)
        counted.write(1, key=BAD_KEY)
        counted.world.settle()
        await task

    refused(errno.EIO, asyncio.run, main())


@pytest.mark.row("1+: await")
def test_an_await_can_be_cancelled_and_another_begun(counted: Counted) -> None:
    async def main() -> int:
        task = asyncio.ensure_future(counted.written.reached(1))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        counted.write(1)
        counted.world.run()
        return await counted.written.reached(1)

    assert asyncio.run(main()) == 1


@pytest.mark.row("1+: await")
def test_an_await_over_real_sockets(build: Any) -> None:
    counted = Counted(build("udp"))

    async def main() -> list[int]:
        waits = asyncio.gather(counted.written.reached(30), counted.arrived.reached(30))
        await asyncio.sleep(0)
        counted.write(30)
        return await asyncio.wait_for(waits, 30)

    assert asyncio.run(main()) == [30, 30]


@pytest.mark.row("2: get_cq_event")
def test_a_channel_descriptor_with_asyncio(world: World) -> None:
    channel = CompChannel(world.a.context)
    os.set_blocking(channel.fd, False)
    cq = CQ(world.a.context, 20, None, channel)
    first, _ = world.connect(world.a.qp(cq), world.b.qp())

    async def main() -> list[int]:
        loop = asyncio.get_running_loop()
        arrived = asyncio.Event()
        loop.add_reader(channel.fd, arrived.set)
        seen: list[int] = []
        for wr_id in range(5):
            cq.req_notify()
            first.post_send(world.a.wr(e.IBV_WR_RDMA_WRITE, wr_id))
            world.run()
            await asyncio.wait_for(arrived.wait(), 30)
            channel.get_cq_event(cq)
            cq.ack_events(1)
            arrived.clear()
            seen += [wc.wr_id for wc in cq.poll(10)[1]]
        loop.remove_reader(channel.fd)
        return seen

    assert asyncio.run(main()) == [0, 1, 2, 3, 4]


# -- device options for tests


@pytest.mark.row("1+: device options for tests")
def test_updates_can_be_made_visible_late(build: Any) -> None:
    """The manual page allows a delay; what was counted is seen in the end."""
    counted = Counted(build(counter_delay_ns=5 * MS))
    counted.write(3)
    counted.world.run()
    assert counted.written.read_pair() == (0, 0)
    counted.world.pass_time(4 * MS)
    assert counted.written.read() == 0
    counted.world.pass_time(2 * MS)
    assert counted.written.read_pair() == counted.arrived.read_pair() == (3, 0)


@pytest.mark.row("1+: device options for tests")
def test_a_late_update_ends_a_wait_late(build: Any) -> None:
    counted = Counted(build(counter_delay_ns=5 * MS))
    before = counted.world.now
    counted.write(3)
    assert counted.written.wait(3, timeout=1) == 3
    assert 5 * MS <= counted.world.now - before < 20 * MS


@pytest.mark.row("1+: device options for tests")
def test_a_counter_can_be_stalled(build: Any) -> None:
    """Its updates never become visible: a wait has to time out, though the completion is there."""
    counted = Counted(build(counter_delay_ns=2**62))
    counted.first.post_send(counted.world.a.wr(e.IBV_WR_RDMA_WRITE))
    refused(errno.ETIMEDOUT, counted.written.wait, 1, 10)
    assert counted.world.a.done() == [(1, e.IBV_WC_SUCCESS)]
    assert counted.written.read_pair() == (0, 0)


def test_a_wait_is_told_that_something_waits_on_the_link(build: Any) -> None:
    """Deadline 0 means never to a device, and long ago to a link: one must not be taken for the other."""
    world = build()
    counted = Counted(world)
    world.run()
    assert world.b.device.port.deadline() == 0
    counted.write()
    world.a.device.progress()
    assert world.b.device.link.deadline() == 0
    assert world.b.device.port.deadline() != 0


@pytest.mark.row("1+: device options for tests")
def test_a_stalled_counter_moves_when_it_is_let_go(build: Any) -> None:
    world = build("network")
    counter = CompCntr(world.a.context, CompCntrInitAttr())
    counter.stall()
    counter.inc(3)
    assert counter.read() == 0
    counter.stall(False)
    assert counter.read() == 3
