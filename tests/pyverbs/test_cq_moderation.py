# SPDX-License-Identifier: MIT
"""CQ moderation, ibv_modify_cq(3): one event for so many completions, or after so long."""

import errno
import os
from typing import Any

import pytest
from tests.pyverbs.world import MS, World, readable, refused

from softverbs import verbs
from softverbs.pyverbs import libibverbs_enums as e
from softverbs.pyverbs.cq import CQ, CQEX, CompChannel, CqInitAttrEx, ModifyCqAttr

US = 1000


class Bench:
    """A QP whose completions go to a CQ on a channel."""

    def __init__(self, world: World, extended: bool = False) -> None:
        self.world = world
        self.channel = CompChannel(world.a.context)
        os.set_blocking(self.channel.fd, False)
        attr = CqInitAttrEx(64, self.channel)
        self.cq: Any = CQEX(world.a.context, attr) if extended else CQ(world.a.context, 64, None, self.channel)
        self.qp, _ = world.connect(world.a.qp(self.cq), world.b.qp())

    def complete(self, count: int = 1) -> None:
        for _ in range(count):
            self.qp.post_send(self.world.a.wr(e.IBV_WR_RDMA_WRITE))
            self.world.run()

    def event(self) -> bool:
        """Whether there was an event; it is read and acknowledged."""
        if not readable(self.channel.fd):
            refused(errno.EAGAIN, self.channel.get_cq_event)
            return False
        self.channel.get_cq_event().ack_events(1)
        return True


@pytest.fixture(params=[False, True], ids=["CQ", "CQEX"])
def bench(world: World, request: pytest.FixtureRequest) -> Bench:
    return Bench(world, request.param)


def test_an_event_for_so_many_completions(bench: Bench) -> None:
    bench.cq.modify(ModifyCqAttr(cq_count=3, cq_period=60_000))
    for _ in range(2):
        bench.cq.req_notify()
        bench.complete(2)
        assert not bench.event()
        bench.complete()
        assert bench.event()
        bench.complete(3)  # not armed
        assert not bench.event()


def test_an_event_after_so_long(bench: Bench) -> None:
    bench.cq.modify(ModifyCqAttr(cq_count=100, cq_period=500))
    bench.cq.req_notify()
    bench.complete()
    bench.world.pass_time(300 * US)
    bench.complete()  # the first one's time counts
    assert not bench.event()
    bench.world.pass_time(199 * US)
    assert not bench.event()
    bench.world.pass_time(2 * US)
    assert bench.event()
    bench.world.pass_time(10 * MS)
    assert not bench.event()


def test_what_is_there_before_it_is_armed_does_not_count(bench: Bench) -> None:
    bench.cq.modify(ModifyCqAttr(cq_count=2, cq_period=60_000))
    bench.complete(5)
    bench.cq.req_notify()
    bench.complete()
    assert not bench.event()
    bench.complete()
    assert bench.event()


@pytest.mark.parametrize(("count", "period"), [(0, 0), (0, 100), (100, 0), (1, 100)])
def test_none(bench: Bench, count: int, period: int) -> None:
    bench.cq.modify(ModifyCqAttr(cq_count=count, cq_period=period))
    bench.cq.req_notify()
    bench.complete()
    assert bench.event()


def test_less_of_it_lets_go_what_it_holds(bench: Bench) -> None:
    bench.cq.modify(ModifyCqAttr(cq_count=10, cq_period=60_000))
    bench.cq.req_notify()
    bench.complete(3)
    bench.cq.modify(ModifyCqAttr(0))
    bench.cq.modify(ModifyCqAttr(cq_count=4, cq_period=60_000))
    assert not bench.event()
    bench.cq.modify(ModifyCqAttr(cq_count=3, cq_period=60_000))
    assert bench.event()
    bench.cq.req_notify()
    bench.complete()
    bench.cq.modify(ModifyCqAttr())
    assert bench.event()


def test_errors_wait_too_but_not_for_ever(bench: Bench) -> None:
    bench.cq.modify(ModifyCqAttr(cq_count=10, cq_period=100))
    bench.cq.req_notify(solicited_only=True)
    bench.qp.post_send(bench.world.a.wr(e.IBV_WR_RDMA_WRITE, key=0))
    bench.world.run()
    assert not bench.event()
    bench.world.pass_time(101 * US)
    assert bench.event()


def test_a_closed_queue_raises_none(bench: Bench) -> None:
    bench.cq.modify(ModifyCqAttr(cq_count=10, cq_period=100))
    bench.cq.req_notify()
    bench.complete()
    bench.cq.close()
    bench.world.pass_time(10 * MS)
    assert not bench.event()


def test_refusals(bench: Bench) -> None:
    assert "attr_mask bits 0x2" in refused(errno.EINVAL, bench.cq.modify, ModifyCqAttr(3))
    assert "ModifyCqAttr is expected" in refused(errno.EINVAL, bench.cq.modify, 5)
    for name in ("cq_count", "cq_period"):
        assert name in refused(errno.EINVAL, lambda name=name: ModifyCqAttr(**{name: 65536}))
    bench.cq.close()
    assert "CQ is closed" in refused(errno.EINVAL, bench.cq.modify, ModifyCqAttr())


def test_function(bench: Bench) -> None:
    assert verbs.ibv_modify_cq(bench.cq, ModifyCqAttr(cq_count=2, cq_period=60_000)) == 0
    assert verbs.ibv_modify_cq(bench.cq, ModifyCqAttr(8)) == errno.EINVAL
    assert verbs.ibv_modify_cq(bench.cq, None) == errno.EINVAL  # type: ignore[arg-type]
    bench.cq.req_notify()
    bench.complete()
    assert not bench.event()


def test_a_thread_that_sleeps_gets_its_event() -> None:
    with World("udp") as world:
        channel = CompChannel(world.a.context)
        cq = CQ(world.a.context, 64, None, channel)
        qp, _ = world.connect(world.a.qp(cq), world.b.qp())
        cq.modify(ModifyCqAttr(cq_count=100, cq_period=20_000))
        cq.req_notify()
        qp.post_send(world.a.wr(e.IBV_WR_RDMA_WRITE))
        assert channel.get_cq_event(cq) is cq
        cq.ack_events(1)
