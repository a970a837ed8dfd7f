# SPDX-License-Identifier: MIT
"""Completion channels and asynchronous events: descriptors, waiting, acknowledging."""

import asyncio
import errno
import os
import select
import threading
from typing import Any

import pytest

from softverbs.pyverbs import libibverbs_enums as e
from softverbs.pyverbs.cq import CQ, CQEX, CompChannel, CqInitAttrEx
from softverbs.pyverbs.device import AsyncEvent
from softverbs.pyverbs.pyverbs_error import PyverbsRDMAError


def readable(fd: int) -> bool:
    poller = select.poll()
    poller.register(fd, select.POLLIN)
    return bool(poller.poll(0))


def test_an_event_is_read_acknowledged_and_gone(rig: Any) -> None:
    first, _ = rig.pair()
    rig.cq.req_notify()
    first.post_send(rig.write())
    rig.run()
    assert readable(rig.channel.fd)
    assert rig.channel.get_cq_event(rig.cq) is rig.cq
    assert not readable(rig.channel.fd)
    assert rig.cq.cq_context == "context of the cq"
    with pytest.raises(PyverbsRDMAError, match="2 events acknowledged"):
        rig.cq.ack_events(2)
    rig.cq.ack_events(1)
    with pytest.raises(PyverbsRDMAError) as caught:
        rig.cq.ack_events(1)
    assert caught.value.errno == errno.EINVAL
    assert rig.cq.poll(5)[0] == 1


def test_a_non_blocking_channel(rig: Any) -> None:
    os.set_blocking(rig.channel.fd, False)
    with pytest.raises(PyverbsRDMAError, match="there is none") as caught:
        rig.channel.get_cq_event(rig.cq)
    assert caught.value.errno == errno.EAGAIN
    first, _ = rig.pair()
    rig.cq.req_notify()
    first.post_send(rig.write())
    rig.channel.get_cq_event(rig.cq)
    rig.cq.close()


def test_waiting_for_an_event(rig: Any) -> None:
    first, _ = rig.pair()
    rig.cq.req_notify()
    timer = threading.Timer(0.05, first.post_send, [rig.write()])
    timer.start()
    assert rig.channel.get_cq_event() is rig.cq
    timer.join()


def test_waiting_ends_when_the_channel_is_closed(rig: Any) -> None:
    timer = threading.Timer(0.05, rig.channel.close)
    timer.start()
    with pytest.raises(PyverbsRDMAError, match="closed"):
        rig.channel.get_cq_event()
    timer.join()


def test_an_event_of_another_cq(rig: Any) -> None:
    other = CQ(rig.context, 4, None, rig.channel)
    first, _ = rig.pair(other)
    other.req_notify()
    first.post_send(rig.write())
    with pytest.raises(PyverbsRDMAError, match="unexpected CQ"):
        rig.channel.get_cq_event(rig.cq)
    other.close()


def test_events_that_nobody_read_go_with_their_cq(rig: Any) -> None:
    other = CQ(rig.context, 4, None, rig.channel)
    first, _ = rig.pair(other)
    other.req_notify()
    first.post_send(rig.write())
    rig.run()
    assert readable(rig.channel.fd)
    other.close()
    assert not readable(rig.channel.fd)


def test_a_channel_with_queues_closes_them(rig: Any) -> None:
    channel = CompChannel(rig.context)
    cqs = [CQ(rig.context, 4, None, channel), CQEX(rig.context, CqInitAttrEx(4, channel))]
    assert all(cq.comp_channel is channel for cq in cqs)
    channel.close()
    assert all(cq._core is None for cq in cqs)


def test_await_an_event_and_completions(rig: Any) -> None:
    first, _ = rig.pair()

    async def main() -> tuple[list[int], bool]:
        waiting = asyncio.ensure_future(rig.cq.completions(8))
        await asyncio.sleep(0.01)
        first.post_send(rig.write(wr_id=5))
        rig.run()
        ids = [wc.wr_id for wc in await asyncio.wait_for(waiting, 30)]
        first.post_send(rig.write(wr_id=6))
        rig.run()
        ids += [wc.wr_id for wc in await rig.cq.completions()]
        rig.cq.req_notify()
        first.post_send(rig.write(wr_id=7))
        rig.run()
        return ids, await rig.channel.event() is rig.cq

    assert asyncio.run(main()) == ([5, 6], True)
    with pytest.raises(PyverbsRDMAError, match="no completion channel"):
        asyncio.run(CQ(rig.context, 4).completions())


def test_asynchronous_events(rig: Any) -> None:
    os.set_blocking(rig.context.async_fd, False)
    with pytest.raises(PyverbsRDMAError) as caught:
        rig.context.get_async_event()
    assert caught.value.errno == errno.EAGAIN
    small = CQ(rig.context, 1)
    first, _ = rig.pair(small)
    for _ in range(2):
        first.post_send(rig.write())
    rig.run()
    assert readable(rig.context.async_fd)
    event = rig.context.get_async_event()
    assert event.event_type == e.IBV_EVENT_CQ_ERR
    assert event.element is small
    assert "IBV_EVENT_CQ_ERR" in str(event)
    event.ack()
    event.ack()
    assert small._async_events == 0
    kinds = set()
    while readable(rig.context.async_fd):
        fatal = rig.context.get_async_event()
        kinds.add(fatal.event_type)
        fatal.ack()
    assert e.IBV_EVENT_QP_FATAL in kinds
    AsyncEvent(e.IBV_EVENT_PORT_ERR).ack()


def test_asynchronous_events_of_what_is_closed_are_dropped(rig: Any) -> None:
    os.set_blocking(rig.context.async_fd, False)
    small = CQ(rig.context, 1)
    first, _ = rig.pair(small)
    for _ in range(2):
        first.post_send(rig.write())
    rig.run()
    small.close()
    with pytest.raises(PyverbsRDMAError, match="there is none"):
        rig.context.get_async_event()
    assert not readable(rig.context.async_fd)


def test_waiting_for_an_asynchronous_event_ends_when_the_context_is_closed(rig: Any) -> None:
    timer = threading.Timer(0.05, rig.context.close)
    timer.start()
    with pytest.raises(PyverbsRDMAError, match="closed"):
        rig.context.get_async_event()
    timer.join()
