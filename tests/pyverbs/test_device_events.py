# SPDX-License-Identifier: MIT
"""Asynchronous events: of queues, of the port, of the device; who gets them, and what comes after the last one."""

import errno
import gc
import os
import select
import threading
from collections.abc import Callable
from typing import Any

import pytest
from tests.pyverbs.world import SECOND, Side, World, readable, refused, set_state

from softverbs.device import Device
from softverbs.links.inproc import Network
from softverbs.pyverbs import libibverbs_enums as e
from softverbs.pyverbs.cq import CQ, CQEX, CompChannel, CqInitAttrEx
from softverbs.pyverbs.device import AsyncEvent, Context
from softverbs.pyverbs.mr import MR
from softverbs.pyverbs.pd import PD
from softverbs.pyverbs.pyverbs_error import PyverbsRDMAError
from softverbs.pyverbs.qp import QP, QPCap, QPInitAttr
from softverbs.pyverbs.srq import SRQ, SrqAttr, SrqInitAttr
from softverbs.pyverbs.wr import SGE, RecvWR

ACTIVE, DOWN = e.IBV_EVENT_PORT_ACTIVE, e.IBV_EVENT_PORT_ERR
FATAL = e.IBV_EVENT_DEVICE_FATAL


def types(side: Side) -> list[int]:
    return [event_type for event_type, _ in side.events()]


# -- of objects


def shared(side: Side, limit: int = 0) -> SRQ:
    srq = SRQ(side.pd, SrqInitAttr(SrqAttr(16, 1)))
    for wr_id in range(4):
        srq.post_recv(RecvWR(wr_id, 1, [SGE(side.mr.buf, 64, side.mr.lkey)]))
    if limit:
        srq.modify(SrqAttr(srq_limit=limit), e.IBV_SRQ_LIMIT)
    return srq


def on_shared(side: Side, srq: SRQ) -> QP:
    cap = QPCap(16, 0, 1, 0, 0)
    return QP(side.pd, QPInitAttr(e.IBV_QPT_RC, None, side.cq, side.cq, srq, cap))


def test_the_limit_of_an_srq(world: World) -> None:
    srq = shared(world.b, limit=3)
    sender, _ = world.connect(world.a.qp(), on_shared(world.b, srq))
    for _ in range(3):
        sender.post_send(world.a.wr(e.IBV_WR_SEND))
        world.settle()
    found = [event for event in world.b.events() if event[0] == e.IBV_EVENT_SRQ_LIMIT_REACHED]
    assert found == [(e.IBV_EVENT_SRQ_LIMIT_REACHED, srq)]
    assert e.IBV_EVENT_SRQ_LIMIT_REACHED not in types(world.a)


def test_the_last_receive_of_a_qp_with_an_srq(world: World) -> None:
    srq = shared(world.b)
    _, receiver = world.connect(world.a.qp(), on_shared(world.b, srq))
    set_state(receiver, e.IBV_QPS_ERR)
    world.settle()
    assert (e.IBV_EVENT_QP_LAST_WQE_REACHED, receiver) in world.b.events()


def test_an_event_of_an_object_goes_to_its_context_alone(world: World) -> None:
    bystander = Context(device=world.devices[0])
    cq = CQ(world.a.context, 1)
    first, _ = world.connect(world.a.qp(cq), world.b.qp())
    for _ in range(3):
        first.post_send(world.a.wr(e.IBV_WR_RDMA_WRITE))
    world.settle()
    assert (e.IBV_EVENT_CQ_ERR, cq) in world.a.events()
    assert not readable(bystander.async_fd)
    bystander.close()


def test_an_event_of_what_is_gone_goes_nowhere(world: World) -> None:
    cq = CQ(world.a.context, 1)
    first, _ = world.connect(world.a.qp(cq), world.b.qp())
    for _ in range(3):
        first.post_send(world.a.wr(e.IBV_WR_RDMA_WRITE))
    world.settle()
    first.close()
    cq.close()
    assert types(world.a) == []
    assert not readable(world.a.context.async_fd)


def test_an_event_of_an_object_that_nobody_knows_goes_nowhere(world: World) -> None:
    class Inner:
        user = None

    with world.devices[0].lock:
        world.devices[0].port.raise_event(e.IBV_EVENT_CQ_ERR, Inner())
    assert types(world.a) == []


# -- of the port


def test_the_port_goes_down_and_up(world: World) -> None:
    bystander = Context(device=world.devices[0])
    os.set_blocking(bystander.async_fd, False)
    device, context = world.a.device, world.a.context
    for up, event, state, physical in ((False, DOWN, e.IBV_PORT_DOWN, 3), (True, ACTIVE, e.IBV_PORT_ACTIVE, 5)):
        device.set_port_state(up)
        device.set_port_state(up)  # once more: nothing
        assert types(world.a) == [event]
        other = bystander.get_async_event()
        assert (other.event_type, other.element, other.port_num) == (event, None, 1)
        assert "IBV_EVENT_PORT" in str(other)
        other.ack()
        refused(errno.EAGAIN, bystander.get_async_event)
        attr = context.query_port(1)
        assert (attr.state, attr.phys_state) == (state, physical)
    bystander.close()


@pytest.mark.parametrize("over", ["network", "loopback"])
def test_while_the_port_is_down_nothing_moves(build: Callable[..., World], over: str) -> None:
    world = build(over)
    first, _ = world.pair()
    world.a.device.set_port_state(False)
    first.post_send(world.a.wr(e.IBV_WR_RDMA_WRITE, 1))
    world.run()
    assert world.a.done() == []
    world.a.device.set_port_state(True)
    world.settle()
    assert world.a.done() == [(1, 0)]  # sent again, once the time-out was over


def test_down_for_too_long(world: World) -> None:
    first, _ = world.pair(retry_cnt=2)
    world.a.device.set_port_state(False)
    first.post_send(world.a.wr(e.IBV_WR_RDMA_WRITE, 1))
    world.settle()
    assert world.a.done() == [(1, e.IBV_WC_RETRY_EXC_ERR)]


# -- of the device


def test_every_context_learns_that_the_device_is_gone_and_then_there_is_eio(world: World) -> None:
    device = world.a.device
    bystander = Context(device=device)
    os.set_blocking(bystander.async_fd, False)
    first, _ = world.pair()
    counter, channel = world.a.counter(), CompChannel(world.a.context)
    os.set_blocking(channel.fd, False)
    cq, pd, mr = world.a.cq, world.a.pd, world.a.mr
    device.remove("pulled out")
    device.remove("again")
    for context in {world.a.context, bystander}:
        assert readable(context.async_fd)
        event = context.get_async_event()
        assert (event.event_type, event.element, event.port_num) == (FATAL, None, 0)
        event.ack()
        assert "was removed: pulled out" in refused(errno.EIO, context.get_async_event)
    context = world.a.context
    for act in (
        context.query_device,
        lambda: context.query_port(1),
        lambda: PD(context),
        lambda: CQ(context, 4),
        lambda: MR(pd, 64, 1),
        lambda: world.a.qp(),
        lambda: QP(pd, QPInitAttr(e.IBV_QPT_RC, None, cq, cq)),
        lambda: first.query(1),
        channel.get_cq_event,
        counter.read,
        lambda: cq.resize(4),
        lambda: Context(device=device),
        lambda: device.set_port_state(False),
    ):
        assert "pulled out" in refused(errno.EIO, act)
    for resource in (first, cq, mr, counter, channel, pd, bystander):
        resource.close()
        resource.close()


def test_flushed_completions_can_be_polled_when_the_device_is_gone(build: Callable[..., World]) -> None:
    world = build("network", wire=True)
    channel = CompChannel(world.a.context)
    cq = CQEX(world.a.context, CqInitAttrEx(4, channel))
    os.set_blocking(channel.fd, False)
    first, _ = world.pair()
    second, _ = world.connect(world.a.qp(cq), world.b.qp())
    world.wire.rule = lambda frame: []
    cq.req_notify()
    for wr_id, qp in ((1, first), (2, second)):
        qp.post_send(world.a.wr(e.IBV_WR_RDMA_WRITE, wr_id))
    world.run()
    world.a.device.remove("pulled out")
    (wc,) = world.a.cq.poll(5)[1]
    assert (wc.wr_id, wc.status) == (1, e.IBV_WC_WR_FLUSH_ERR)
    refused(errno.EIO, world.a.cq.poll, 5)
    assert channel.get_cq_event(cq) is cq
    assert cq.start_poll(None) == 0
    assert (cq.wr_id, cq.status) == (2, e.IBV_WC_WR_FLUSH_ERR)
    assert "pulled out" in cq.reason
    cq.end_poll()
    refused(errno.EIO, cq.start_poll, None)
    refused(errno.EIO, channel.get_cq_event)


def test_whoever_waits_is_told() -> None:
    with Device(link=Network().link("10.0.0.1")) as device:
        context = Context(device=device)
        channel = CompChannel(context)
        found: list[AsyncEvent] = []
        failures: list[PyverbsRDMAError] = []

        def on_channel() -> None:
            try:
                channel.get_cq_event()
            except PyverbsRDMAError as error:
                failures.append(error)

        threads = [
            threading.Thread(target=lambda: found.append(context.get_async_event())),
            threading.Thread(target=on_channel),
        ]
        for thread in threads:
            thread.start()
        device.remove("pulled out")
        for thread in threads:
            thread.join(30)
        assert [event.event_type for event in found] == [FATAL]
        assert [error.errno for error in failures] == [errno.EIO]


def test_a_wait_in_virtual_time_ends_with_the_event() -> None:
    clock = [SECOND]

    def idle(due: int | None = None) -> None:
        clock[0] += 1
        if clock[0] == SECOND + 10:
            device.remove("pulled out")

    device = Device(link=Network().link("10.0.0.1"), thread=False, clock=lambda: clock[0], idle=idle)
    context = Context(device=device)
    assert context.get_async_event().event_type == FATAL
    refused(errno.EIO, context.get_async_event)
    device.close()


# -- imported contexts


def test_a_context_is_imported_by_a_duplicate_of_its_descriptor(world: World) -> None:
    context = world.a.context
    number = os.dup(context.cmd_fd)
    other = Context(cmd_fd=number)
    assert (other.name, other.device) == (context.name, context.device)
    assert other._core is context._core
    assert other.cmd_fd == context.cmd_fd
    assert other._family() == [other, context]
    world.a.device.set_port_state(False)
    assert other.get_async_event().event_type == DOWN
    assert types(world.a) == [DOWN]
    other.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(number)
    assert context._family() == [context]
    context.query_device()


def test_what_is_no_descriptor_of_a_context(world: World) -> None:
    context = world.a.context
    assert "os.dup() it first" in refused(errno.EINVAL, lambda: Context(cmd_fd=context.cmd_fd))
    with open(os.devnull, "rb") as file:
        assert "no open context" in refused(errno.ENODEV, lambda: Context(cmd_fd=file.fileno()))
    refused(errno.EBADF, lambda: Context(cmd_fd=-1))
    assert "'x'" in refused(errno.EINVAL, lambda: Context(cmd_fd="x"))
    with Context(device=world.devices[0]) as gone:
        number = os.dup(gone.cmd_fd)
    reason = refused(errno.ENODEV, lambda: Context(cmd_fd=number))
    assert f"of process {os.getpid()}" in reason
    os.close(number)


def test_an_import_outlives_the_context_that_it_came_from(world: World) -> None:
    origin = Context(device=world.devices[0])
    other = Context(cmd_fd=os.dup(origin.cmd_fd))
    origin.close()
    with PD(other):
        assert other.query_device().max_qp > 0
    again = Context(cmd_fd=os.dup(other.cmd_fd))
    again.close()
    other.close()


def test_a_context_of_a_cmid(world: World) -> None:
    class Id:
        device: Any = None
        ctx: Any = None

    cmid = Id()
    assert "resolve its address first" in refused(errno.EINVAL, lambda: Context(cmid=cmid))
    cmid.device = world.devices[0]
    with Context(cmid=cmid) as context:
        assert cmid.ctx is context
        assert context.device is world.devices[0]
        with Context(cmid=cmid) as second:
            assert cmid.ctx is context
            assert second._core is context._core


# -- the descriptor follows the queue


@pytest.mark.parametrize("collected", [False, True])
def test_the_descriptor_is_readable_only_for_events_that_can_be_read(rig: Any, collected: bool) -> None:
    """An event of an object that is closed, or was garbage, can never be read: nobody is to be woken for it."""
    context, device = rig.context, rig.device
    qp = rig.qp()
    with device.lock:
        device.port.raise_event(e.IBV_EVENT_QP_REQ_ERR, qp._core)
    assert select.select([context.async_fd], [], [], 0)[0]
    if not collected:
        qp.close()
    del qp
    gc.collect()
    device.progress()
    assert not select.select([context.async_fd], [], [], 0)[0]
    with device.lock:
        device.port.raise_event(e.IBV_EVENT_GID_CHANGE, device.port)
    assert select.select([context.async_fd], [], [], 0)[0]
    assert context.get_async_event().event_type == e.IBV_EVENT_GID_CHANGE


@pytest.mark.parametrize("collected", [False, True])
def test_a_completion_channel_follows_its_queues(rig: Any, collected: bool) -> None:
    channel = CompChannel(rig.context)
    queue = CQ(rig.context, 8, None, channel)
    first, second = rig.qp(queue), rig.qp(queue)
    rig.connect(first, second)
    queue.req_notify()
    first.post_send(rig.write())
    rig.device.progress()
    assert select.select([channel.fd], [], [], 0)[0]
    first.close()
    second.close()
    if not collected:
        queue.close()
    del first, second, queue
    gc.collect()
    rig.device.progress()
    assert not select.select([channel.fd], [], [], 0)[0]
