# SPDX-License-Identifier: MIT
"""Completion queues as objects: size, vector, flags, resizing, destruction, channels."""

import errno
import itertools
import logging
import os
import time
from typing import Any

import pytest
from tests.pyverbs.world import SECOND, World, readable, refused

from softverbs import verbs
from softverbs.pyverbs import libibverbs_enums as e
from softverbs.pyverbs.cq import CQ, CQEX, CompChannel, CqInitAttrEx

FLAGS, PARENT = e.IBV_CQ_INIT_ATTR_MASK_FLAGS, e.IBV_CQ_INIT_ATTR_MASK_PD
STANDARD = e.IBV_WC_STANDARD_FLAGS


def write_many(world: World, cq: Any, wr_ids: Any) -> Any:
    """A QP of side ``a`` on ``cq``, after these writes; its completions are unpolled."""
    first, _ = world.connect(world.a.qp(cq), world.b.qp())
    for wr_id in wr_ids:
        first.post_send(world.a.wr(e.IBV_WR_RDMA_WRITE, wr_id))
    world.run()
    return first


@pytest.mark.row("2: cqe out of range")
@pytest.mark.parametrize("cqe", [0, -1, -(2**31), 301, 2**31 - 1])
def test_a_size_out_of_range_is_refused(build: Any, cqe: int) -> None:
    context = build(max_cqe=300).a.context
    refused(errno.EINVAL, CQ, context, cqe)
    assert verbs.ibv_create_cq(context, cqe, None, None, 0) is None
    if cqe >= 0:
        refused(errno.EINVAL, CQEX, context, CqInitAttrEx(cqe))


@pytest.mark.row("2: cqe out of range")
@pytest.mark.parametrize("cqe", [1, 299, 300])
def test_sizes_up_to_the_maximum_work(build: Any, cqe: int) -> None:
    context = build(max_cqe=300).a.context
    assert context.query_device().max_cqe == 300
    for queue in (CQ(context, cqe), CQEX(context, CqInitAttrEx(cqe))):
        assert queue.cqe >= cqe


@pytest.mark.row("2: cqe out of range")
def test_the_largest_queue_of_the_device_can_be_made(build: Any) -> None:
    context = build().a.context
    limit = context.query_device().max_cqe
    with CQ(context, limit) as cq:
        assert cq.cqe >= limit
    refused(errno.EINVAL, CQ, context, limit + 1)


@pytest.mark.row("2: Actual size")
@pytest.mark.parametrize("cqe", [1, 2, 3, 10, 15, 16, 17, 1000])
@pytest.mark.parametrize("rounding", ["exact", "pow2"])
def test_the_actual_size_is_exact_or_a_power_of_two_less_one(build: Any, cqe: int, rounding: str) -> None:
    context = build(cqe_rounding=rounding).a.context
    actual = CQ(context, cqe).cqe
    assert actual == CQEX(context, CqInitAttrEx(cqe)).cqe
    assert actual == (cqe if rounding == "exact" else (1 << cqe.bit_length()) - 1)


@pytest.mark.row("2: Actual size")
@pytest.mark.parametrize("rounding", ["exact", "pow2"])
def test_as_many_completions_fit_as_the_size_says(build: Any, rounding: str) -> None:
    world = build(cqe_rounding=rounding)
    cq = CQ(world.a.context, 10)
    first = write_many(world, cq, range(cq.cqe))
    assert first.qp_state == e.IBV_QPS_RTS
    assert world.a.done(cq) == [(wr_id, 0) for wr_id in range(cq.cqe)]


@pytest.mark.row("2: comp_vector")
@pytest.mark.parametrize("offset", [-1, 1, 2**31 - 20])
def test_a_vector_that_is_not_there_is_refused(build: Any, offset: int) -> None:
    context = build().a.context
    vector = -1 if offset < 0 else context.num_comp_vectors - 1 + offset
    refused(errno.EINVAL, CQ, context, 4, None, None, vector)
    if vector >= 0:
        refused(errno.EINVAL, CQEX, context, CqInitAttrEx(4, comp_vector=vector))


@pytest.mark.row("2: comp_vector")
def test_every_vector_can_be_used(build: Any) -> None:
    context = build().a.context
    assert context.num_comp_vectors >= 1
    for vector in range(context.num_comp_vectors):
        CQ(context, 4, None, None, vector).close()
        CQEX(context, CqInitAttrEx(4, comp_vector=vector)).close()


@pytest.mark.row("2: create_cq_ex")
@pytest.mark.parametrize(
    ("settings", "code"),
    [
        ({"comp_mask": 1 << 2}, errno.EINVAL),
        ({"comp_mask": 1 << 31}, errno.EINVAL),
        ({"comp_mask": FLAGS, "flags": 1 << 2}, errno.EINVAL),
        ({"comp_mask": FLAGS, "flags": 1 << 31}, errno.EINVAL),
        ({"wc_flags": e.IBV_WC_EX_WITH_CVLAN}, errno.EOPNOTSUPP),
        ({"wc_flags": e.IBV_WC_EX_WITH_FLOW_TAG | STANDARD}, errno.EOPNOTSUPP),
        ({"wc_flags": 1 << 40}, errno.EOPNOTSUPP),
    ],
)
def test_extended_attributes_that_cannot_be_had(build: Any, settings: dict[str, int], code: int) -> None:
    context = build().a.context
    refused(code, CQEX, context, CqInitAttrEx(4, **settings))
    assert verbs.ibv_create_cq_ex(context, CqInitAttrEx(4, **settings)) is None


@pytest.mark.row("2: create_cq_ex")
def test_a_plain_domain_is_no_parent_domain(build: Any) -> None:
    side = build().a
    refused(errno.EINVAL, CQEX, side.context, CqInitAttrEx(4, comp_mask=PARENT, parent_domain=side.pd))


@pytest.mark.row("2: create_cq_ex")
@pytest.mark.parametrize("flags", range(4))
def test_both_flags_and_the_standard_fields_are_supported(build: Any, flags: int) -> None:
    assert CQEX(build().a.context, CqInitAttrEx(4, wc_flags=STANDARD, comp_mask=FLAGS, flags=flags)).cqe >= 4


@pytest.mark.row("2: Resize")
@pytest.mark.parametrize("cqe", [0, -1, 4, 10**9])
def test_a_resize_below_what_waits_or_out_of_range_is_refused(build: Any, cqe: int) -> None:
    world = build()
    cq = CQ(world.a.context, 10)
    write_many(world, cq, range(5))
    refused(errno.EINVAL, cq.resize, cqe)
    assert verbs.ibv_resize_cq(cq, cqe) == errno.EINVAL
    assert cq.cqe == 10
    assert [wr_id for wr_id, _ in world.a.done(cq)] == [0, 1, 2, 3, 4]


@pytest.mark.row("2: Resize")
@pytest.mark.parametrize("polled", [0, 1, 7])
@pytest.mark.parametrize("cqe", [7, 8, 10, 11, 500])
def test_a_resize_keeps_every_completion_in_order(world: World, cqe: int, polled: int) -> None:
    """The queue has wrapped around before; afterwards it takes as many as its new size says."""
    cq = CQ(world.a.context, 10)
    first = write_many(world, cq, range(polled))
    world.a.poll(cq)
    for wr_id in range(100, 107):
        first.post_send(world.a.wr(e.IBV_WR_RDMA_WRITE, wr_id))
    world.run()
    cq.resize(cqe)
    assert cq.cqe >= cqe
    more = min(cqe - 7, 40)
    for wr_id in range(107, 107 + more):
        first.post_send(world.a.wr(e.IBV_WR_RDMA_WRITE, wr_id))
    world.run()
    assert world.a.done(cq) == [(wr_id, 0) for wr_id in range(100, 107 + more)]
    assert first.qp_state == e.IBV_QPS_RTS


@pytest.mark.row("2: Resize")
def test_the_new_size_is_where_it_overruns(build: Any) -> None:
    world = build()
    cq = CQ(world.a.context, 10)
    first = write_many(world, cq, range(2))
    cq.resize(3)
    for wr_id in (2, 3):
        first.post_send(world.a.wr(e.IBV_WR_RDMA_WRITE, wr_id))
    world.run()
    assert first.qp_state == e.IBV_QPS_ERR
    assert [wr_id for wr_id, _ in world.a.done(cq)] == [0, 1, 2]


# -- destruction


@pytest.mark.row("2: Destroy while used")
@pytest.mark.parametrize("role", ["send", "recv", "both"])
def test_a_queue_that_a_qp_uses_is_busy(build: Any, role: str) -> None:
    side = build().a
    cq, other = CQ(side.context, 4), CQ(side.context, 4)
    qp = side.qp(other if role == "recv" else cq, other if role == "send" else cq)
    assert verbs.ibv_destroy_cq(cq) == errno.EBUSY
    assert cq.poll(1) == (0, [])
    assert verbs.ibv_destroy_qp(qp) == 0
    assert verbs.ibv_destroy_cq(cq) == 0
    assert verbs.ibv_destroy_cq(other) == 0


def with_events(world: World, read: int, unread: int = 0) -> tuple[CompChannel, CQ, Any]:
    """A channel and a queue on it whose events were read, or wait to be read; none is acknowledged."""
    channel = CompChannel(world.a.context)
    os.set_blocking(channel.fd, False)
    cq = CQ(world.a.context, 50, None, channel)
    first, _ = world.connect(world.a.qp(cq), world.b.qp())
    for number in range(read + unread):
        cq.req_notify()
        first.post_send(world.a.wr(e.IBV_WR_RDMA_WRITE, number))
        world.run()
        if number < read:
            channel.get_cq_event(cq)
    return channel, cq, first


@pytest.mark.row("2: Destroy while used")
@pytest.mark.row("2: Destroy with unacknowledged events")
def test_a_used_queue_is_busy_at_once_before_any_waiting(build: Any) -> None:
    world = build()
    _, cq, _ = with_events(world, read=2)
    before = world.now
    assert verbs.ibv_destroy_cq(cq) == errno.EBUSY
    assert world.now == before
    cq.ack_events(2)


@pytest.mark.row("2: Destroy with unacknowledged events")
@pytest.mark.parametrize("events", [1, 3])
def test_destruction_waits_for_acknowledgements_and_says_so_once(
    build: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, events: int
) -> None:
    world = build()
    _, cq, qp = with_events(world, read=events)
    qp.close()
    handle, start, turns = cq.handle, world.now, itertools.count()

    def idle(due: int) -> None:
        """Someone acknowledges one event after a minute, and the others after two."""
        world.now += SECOND // 2
        turn = next(turns)
        if turn == 120:
            cq.ack_events(1)
        elif turn == 240 and events > 1:
            cq.ack_events(events - 1)

    world.a.device.idle = idle
    monkeypatch.setattr(time, "monotonic", lambda: world.now / SECOND)
    with caplog.at_level(logging.WARNING):
        assert verbs.ibv_destroy_cq(cq) == 0
    assert world.now - start >= 60 * SECOND * (1 if events == 1 else 2)
    (text,) = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    for part in (str(handle), str(events), "0"):
        assert part in text, text


@pytest.mark.row("2: Destroy with unacknowledged events")
def test_more_acknowledgements_than_events_are_an_error(build: Any) -> None:
    world = build()
    _, cq, qp = with_events(world, read=2, unread=1)
    refused(errno.EINVAL, cq.ack_events, 3)
    cq.ack_events(1)
    refused(errno.EINVAL, cq.ack_events, 2)
    assert verbs.ibv_ack_cq_events(cq, 2) == errno.EINVAL
    cq.ack_events(1)
    refused(errno.EINVAL, cq.ack_events, 1)
    cq.ack_events(0)
    qp.close()
    assert verbs.ibv_destroy_cq(cq) == 0


@pytest.mark.row("2: Events never read")
def test_events_that_nobody_read_are_dropped_and_do_not_block(build: Any) -> None:
    world = build()
    channel, cq, qp = with_events(world, read=1, unread=3)
    cq.ack_events(1)
    qp.close()
    before = world.now
    assert verbs.ibv_destroy_cq(cq) == 0
    assert world.now == before
    assert not readable(channel.fd)
    refused(errno.EAGAIN, channel.get_cq_event)


@pytest.mark.row("2: Events never read")
def test_events_of_other_queues_stay_on_the_channel(build: Any) -> None:
    world = build()
    channel, cq, qp = with_events(world, read=0, unread=2)
    other = CQ(world.a.context, 10, "the other", channel)
    other.req_notify()
    write_many(world, other, [1])
    qp.close()
    assert verbs.ibv_destroy_cq(cq) == 0
    assert readable(channel.fd)
    assert channel.get_cq_event() is other
    other.ack_events(1)


@pytest.mark.row("2: destroy_comp_channel")
def test_a_channel_with_queues_on_it_is_busy(build: Any) -> None:
    context = build().a.context
    channel = CompChannel(context)
    queues = [CQ(context, 4, None, channel), CQEX(context, CqInitAttrEx(4, channel))]
    for queue in queues:
        assert verbs.ibv_destroy_comp_channel(channel) == errno.EBUSY
        assert channel.fd >= 0
        assert verbs.ibv_destroy_cq(queue) == 0
    assert verbs.ibv_destroy_comp_channel(channel) == 0
