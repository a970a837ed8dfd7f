# SPDX-License-Identifier: MIT
"""Completion events: arming, solicited only, reading them, descriptors."""

import errno
import os
import select
from typing import Any

import pytest
from tests.pyverbs.world import Side, WaitsForEverError, World, readable, refused, set_state

from softverbs.pyverbs import libibverbs_enums as e
from softverbs.pyverbs.cq import CQ, CompChannel
from softverbs.pyverbs.qp import QP

SOLICITED = e.IBV_SEND_SIGNALED | e.IBV_SEND_SOLICITED
SEND_IMM, WRITE_IMM = e.IBV_WR_SEND_WITH_IMM, e.IBV_WR_RDMA_WRITE_WITH_IMM
BAD_KEY = 0xBAD00


class Armed:
    """A connected pair, each side with a queue on a non-blocking channel."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.channels = [CompChannel(side.context) for side in (world.a, world.b)]
        for channel in self.channels:
            os.set_blocking(channel.fd, False)
        self.cqs = [
            CQ(side.context, 50, side, channel) for side, channel in zip((world.a, world.b), self.channels, strict=True)
        ]
        self.first: QP
        self.second: QP
        self.first, self.second = world.connect(world.a.qp(self.cqs[0]), world.b.qp(self.cqs[1]))

    def write(self, count: int = 1, **changes: Any) -> None:
        """Writes of side ``a``: each is a completion there."""
        for _ in range(count):
            self.first.post_send(self.world.a.wr(e.IBV_WR_RDMA_WRITE, **changes))
        self.world.run()

    def send(self, opcode: int = e.IBV_WR_SEND, flags: int = 0) -> None:
        """A message to side ``b``: a completion of a receive there."""
        self.world.b.post_recv(self.second, 1)
        self.first.post_send(self.world.a.wr(opcode, flags=flags))
        self.world.run()

    def events(self, side: int = 0) -> int:
        """How many events wait; they are read and acknowledged."""
        count = 0
        while readable(self.channels[side].fd):
            self.channels[side].get_cq_event(self.cqs[side])
            self.cqs[side].ack_events(1)
            count += 1
        return count


@pytest.fixture
def armed(world: World) -> Armed:
    return Armed(world)


@pytest.mark.row("2: req_notify")
def test_without_a_request_there_is_no_event(armed: Armed) -> None:
    armed.write(3)
    assert armed.events() == 0


@pytest.mark.row("2: req_notify")
def test_a_request_is_for_one_event(armed: Armed) -> None:
    armed.cqs[0].req_notify()
    armed.write(3)
    assert armed.events() == 1
    armed.write(3)
    assert armed.events() == 0
    armed.cqs[0].req_notify()
    armed.write(1)
    assert armed.events() == 1


@pytest.mark.row("2: req_notify")
def test_what_is_there_already_raises_no_event(armed: Armed) -> None:
    armed.write(2)
    armed.cqs[0].req_notify()
    armed.world.run()
    assert armed.events() == 0
    assert armed.cqs[0].poll(10)[0] == 2, "so poll after arming"
    armed.write(1)
    assert armed.events() == 1, "the request still stands"


@pytest.mark.row("2: req_notify")
def test_a_completion_that_is_polled_at_once_raised_its_event_all_the_same(armed: Armed) -> None:
    armed.cqs[0].req_notify()
    armed.write(1)
    assert armed.cqs[0].poll(10)[0] == 1
    assert armed.events() == 1


@pytest.mark.row("2: req_notify")
@pytest.mark.parametrize("requests", [(False, False), (False, True), (True, False), (False, True, False, True)])
def test_arming_again_is_one_event_and_any_outdoes_solicited(armed: Armed, requests: tuple[bool, ...]) -> None:
    for solicited_only in requests:
        armed.cqs[0].req_notify(solicited_only)
    armed.write(2)  # successful sends are never solicited
    assert armed.events() == 1


@pytest.mark.row("2: req_notify")
@pytest.mark.row("2: Resize")
def test_a_request_outlasts_a_resize(armed: Armed) -> None:
    armed.write(2)
    armed.cqs[0].req_notify()
    armed.cqs[0].resize(60)
    assert armed.events() == 0
    armed.write(1)
    assert armed.events() == 1


@pytest.mark.row("2: req_notify")
@pytest.mark.row("2: Flush")
def test_a_flush_is_one_event(armed: Armed) -> None:
    side = armed.world.a
    side.post_recv(armed.first, 1, 2, 3)
    armed.cqs[0].req_notify()
    set_state(armed.first, e.IBV_QPS_ERR)
    armed.world.run()
    assert armed.events() == 1
    assert armed.cqs[0].poll(10)[0] == 3


@pytest.mark.row("2: Solicited only")
@pytest.mark.parametrize("opcode", [e.IBV_WR_SEND, SEND_IMM, WRITE_IMM])
@pytest.mark.parametrize("flags", [e.IBV_SEND_SIGNALED, SOLICITED])
def test_a_receive_is_solicited_if_its_sender_said_so(armed: Armed, opcode: int, flags: int) -> None:
    armed.cqs[1].req_notify(True)
    armed.send(opcode, flags)
    assert armed.events(1) == (1 if flags == SOLICITED else 0)
    assert armed.cqs[1].poll(10)[0] == 1


@pytest.mark.row("2: Solicited only")
def test_a_long_message_is_solicited_by_its_last_packet(armed: Armed) -> None:
    world = armed.world
    armed.cqs[1].req_notify(True)
    world.b.post_recv(armed.second, 1, length=5000)
    armed.first.post_send(world.a.wr(e.IBV_WR_SEND, length=5000, flags=SOLICITED))
    world.run()
    assert armed.events(1) == 1


@pytest.mark.row("2: Solicited only")
def test_a_solicited_request_outlasts_what_is_not_solicited(armed: Armed) -> None:
    armed.cqs[1].req_notify(True)
    armed.send()
    armed.send()
    assert armed.events(1) == 0
    armed.send(flags=e.IBV_SEND_SOLICITED)
    assert armed.events(1) == 1
    armed.send(flags=e.IBV_SEND_SOLICITED)
    assert armed.events(1) == 0


@pytest.mark.row("2: Solicited only")
def test_a_successful_send_is_not_solicited_and_a_failed_one_is(armed: Armed) -> None:
    armed.cqs[0].req_notify(True)
    armed.write(2, flags=SOLICITED)
    assert armed.events(0) == 0
    armed.write(1, key=BAD_KEY, flags=0)
    assert armed.events(0) == 1


@pytest.mark.row("2: Solicited only")
def test_a_flushed_send_and_a_flushed_receive_are_solicited(armed: Armed) -> None:
    world = armed.world
    armed.write(1, key=BAD_KEY)
    world.a.poll(armed.cqs[0])
    armed.cqs[0].req_notify(True)
    armed.write(1, flags=0)
    assert armed.events(0) == 1
    armed.cqs[0].req_notify(True)
    world.a.post_recv(armed.first, 5)
    world.run()
    assert armed.events(0) == 1


@pytest.mark.row("2: Solicited only")
def test_a_failed_receive_is_solicited(armed: Armed) -> None:
    armed.cqs[1].req_notify(True)
    armed.world.b.post_recv(armed.second, 1, length=4)
    armed.first.post_send(armed.world.a.wr(e.IBV_WR_SEND, length=8))
    armed.world.run()
    assert armed.events(1) == 1


# -- reading


@pytest.mark.row("2: get_cq_event")
def test_without_blocking_it_is_eagain(armed: Armed) -> None:
    channel, cq = armed.channels[0], armed.cqs[0]
    refused(errno.EAGAIN, channel.get_cq_event, cq)
    cq.req_notify()
    armed.write()
    assert channel.get_cq_event() is cq
    assert cq.cq_context is armed.world.a
    refused(errno.EAGAIN, channel.get_cq_event, cq)
    cq.ack_events(1)


@pytest.mark.row("2: get_cq_event")
def test_it_waits_for_the_event(build: Any) -> None:
    """The receive completes only because the wait drives both devices; with nothing on its way it would never end."""
    world = build()
    side: Side = world.b
    channel = CompChannel(side.context)
    cq = CQ(side.context, 10, "mine", channel)
    first, second = world.connect(world.a.qp(), side.qp(cq))
    side.post_recv(second, 1)
    cq.req_notify()
    first.post_send(world.a.wr(e.IBV_WR_SEND))
    assert channel.get_cq_event(cq) is cq
    cq.ack_events(1)
    with pytest.raises(WaitsForEverError):
        channel.get_cq_event(cq)


@pytest.mark.row("2: get_cq_event")
@pytest.mark.parametrize("method", ["poll", "epoll", "select"])
def test_the_descriptor_is_readable_from_the_event_until_it_is_read(armed: Armed, method: str) -> None:
    channel, cq = armed.channels[0], armed.cqs[0]

    def ready() -> bool:
        if method == "select":
            return bool(select.select([channel.fd], [], [], 0)[0])
        if method == "poll":
            return readable(channel.fd)
        with select.epoll() as poller:
            poller.register(channel.fd, select.EPOLLIN)
            return bool(poller.poll(0))

    assert not ready()
    for _ in range(2):
        cq.req_notify()
        armed.write()
    assert [ready(), ready()] == [True, True]
    cq.poll(10)
    assert ready(), "polling the queue reads no event"
    channel.get_cq_event(cq)
    assert ready(), "there is another"
    channel.get_cq_event(cq)
    assert not ready()
    cq.ack_events(2)


@pytest.mark.row("2: get_cq_event")
def test_events_of_several_queues_come_in_order(world: World) -> None:
    channel = CompChannel(world.a.context)
    cqs = [CQ(world.a.context, 10, name, channel) for name in "xyz"]
    qps = [world.connect(world.a.qp(cq), world.b.qp())[0] for cq in cqs]
    for index in (2, 0, 1, 0):
        cqs[index].req_notify()
        qps[index].post_send(world.a.wr(e.IBV_WR_RDMA_WRITE))
        world.run()
    assert "".join(channel.get_cq_event().cq_context for _ in range(4)) == "zxyx"
    for cq, count in zip(cqs, (2, 1, 1), strict=True):
        cq.ack_events(count)


@pytest.mark.row("2: get_cq_event")
def test_the_loop_of_the_manual_page_sees_every_completion(world: World) -> None:
    """Wait, acknowledge, arm, empty: with events that may come without a completion."""
    armed = Armed(world)
    channel, cq = armed.channels[0], armed.cqs[0]
    os.set_blocking(channel.fd, True)
    cq.req_notify()
    seen: list[int] = []
    for wr_id in range(30):
        armed.first.post_send(world.a.wr(e.IBV_WR_RDMA_WRITE, wr_id, length=wr_id * 200))
    while len(seen) < 30:
        channel.get_cq_event(cq)
        cq.ack_events(1)
        cq.req_notify()
        while found := cq.poll(2)[1]:
            seen += [wc.wr_id for wc in found]
    assert seen == list(range(30))


@pytest.mark.row("2: get_cq_event")
def test_the_loop_over_real_sockets(build: Any) -> None:
    """The devices' threads do the work while this one sleeps in poll()."""
    world = build("udp")
    channel = CompChannel(world.b.context)
    os.set_blocking(channel.fd, False)
    cq = CQ(world.b.context, 50, None, channel)
    first, second = world.connect(world.a.qp(), world.b.qp(cq))
    world.b.post_recv(second, *range(20))
    cq.req_notify()
    for wr_id in range(20):
        first.post_send(world.a.wr(e.IBV_WR_SEND, wr_id, flags=0))
    seen: list[int] = []
    poller = select.poll()
    poller.register(channel.fd, select.POLLIN)
    while len(seen) < 20:
        assert poller.poll(30_000), "no event for 30 s"
        channel.get_cq_event(cq)
        cq.ack_events(1)
        cq.req_notify()
        while found := cq.poll(4)[1]:
            seen += [wc.wr_id for wc in found]
    assert seen == list(range(20))
