# SPDX-License-Identifier: MIT
"""Attaching counters to queue pairs: when, what, how many, and what becomes of it."""

import errno
from typing import Any

import pytest
from tests.pyverbs.world import OPS, READ, RECV, REMOTE_WRITE, SEND, WRITE, World, set_state

from softverbs.pyverbs import libibverbs_enums as e
from softverbs.pyverbs.comp_cntr import CompCntr, CompCntrInitAttr
from softverbs.pyverbs.device import Context
from softverbs.pyverbs.pyverbs_error import PyverbsRDMAError
from softverbs.pyverbs.qp import QP, QPAttachCompCntrAttr

ALL_OPS = sum(OPS)
LATER_STATES = [e.IBV_QPS_RTR, e.IBV_QPS_RTS, e.IBV_QPS_SQD, e.IBV_QPS_ERR]


def attach(qp: QP, counter: CompCntr, op_mask: int, comp_mask: int = 0) -> int:
    """0, or the errno of the refusal."""
    try:
        qp.attach_comp_cntr(counter, QPAttachCompCntrAttr(op_mask, comp_mask))
    except PyverbsRDMAError as error:
        return error.errno or -1
    return 0


@pytest.mark.row("1: Attach: QP state")
@pytest.mark.parametrize("state", [e.IBV_QPS_RESET, e.IBV_QPS_INIT])
def test_a_counter_is_attached_before_rtr(world: World, state: int) -> None:
    qp = world.move(world.a.qp(), state)
    assert attach(qp, world.a.counter(), ALL_OPS) == 0
    assert qp.qp_state == state


@pytest.mark.row("1: Attach: QP state")
@pytest.mark.parametrize("state", LATER_STATES)
def test_a_counter_is_not_attached_from_rtr_on(world: World, state: int) -> None:
    qp = world.move(world.a.qp(), state)
    counter = world.a.counter()
    assert attach(qp, counter, SEND) == errno.EINVAL
    set_state(qp, e.IBV_QPS_RESET)
    assert attach(qp, counter, SEND) == 0, "the refusal attached nothing"


@pytest.mark.row("1: Attach: EINVAL")
@pytest.mark.parametrize(("op_mask", "comp_mask"), [(0, 0), (SEND, 1), (SEND, 1 << 31), (0, 1)])
def test_an_empty_mask_or_an_unknown_field_is_refused(build: Any, op_mask: int, comp_mask: int) -> None:
    side = build().a
    assert attach(side.qp(), side.counter(), op_mask, comp_mask) == errno.EINVAL


@pytest.mark.row("1: Attach: EINVAL")
@pytest.mark.parametrize("over", ["loopback", "network"])
def test_a_counter_of_another_context_is_refused(build: Any, over: str) -> None:
    world = build(over)
    foreign = world.b.counter()
    assert attach(world.a.qp(), foreign, SEND) == errno.EINVAL
    with Context(device=world.a.device) as context:
        assert attach(world.a.qp(), CompCntr(context, CompCntrInitAttr()), SEND) == errno.EINVAL
    foreign.close()


@pytest.mark.row("1: Attach: EOPNOTSUPP")
@pytest.mark.parametrize("op_mask", [64, 64 | SEND, 1 << 31, 0xFFFFFFFF])
def test_unknown_operations_are_refused(build: Any, op_mask: int) -> None:
    side = build().a
    qp, counter = side.qp(), side.counter()
    assert attach(qp, counter, op_mask) == errno.EOPNOTSUPP
    assert attach(qp, counter, ALL_OPS) == 0, "all or nothing"


@pytest.mark.row("1: Attach: EOPNOTSUPP")
@pytest.mark.row("1+: device options for tests")
@pytest.mark.parametrize("supported", [0, SEND | RECV, ALL_OPS & ~READ])
def test_operations_that_the_device_does_not_list_are_refused(build: Any, supported: int) -> None:
    side = build(counter_ops=supported).a
    assert side.context.query_comp_cntr_caps().supported_qp_attach_ops == supported
    for bit in OPS:
        expected = 0 if bit & supported else errno.EOPNOTSUPP
        assert attach(side.qp(), side.counter(), bit) == expected
    if supported:
        assert attach(side.qp(), side.counter(), supported) == 0


@pytest.mark.row("1: Attach: EBUSY")
@pytest.mark.parametrize("overlap", [SEND, SEND | READ, READ | SEND | WRITE])
def test_an_operation_that_has_a_counter_is_busy_and_nothing_is_attached(build: Any, overlap: int) -> None:
    side = build().a
    qp, counter = side.qp(), side.count(side.qp(), SEND)
    assert attach(qp, counter, SEND | RECV) == 0
    other = side.counter()
    assert attach(qp, other, overlap) == errno.EBUSY
    other.close()  # not attached, not even in part
    assert attach(qp, side.counter(), ALL_OPS & ~(SEND | RECV)) == 0


@pytest.mark.row("1: Attach: EBUSY")
def test_the_same_counter_twice_is_busy_too(build: Any) -> None:
    side = build().a
    qp, counter = side.qp(), side.counter()
    assert [attach(qp, counter, SEND), attach(qp, counter, SEND), attach(qp, counter, READ)] == [0, errno.EBUSY, 0]


@pytest.mark.row("1: Attach: EBUSY")
@pytest.mark.parametrize(
    ("state", "op_mask", "comp_mask", "expected"),
    [
        (e.IBV_QPS_INIT, SEND | 64, 0, errno.EOPNOTSUPP),  # before EBUSY
        (e.IBV_QPS_INIT, SEND | 64, 1, errno.EINVAL),
        (e.IBV_QPS_INIT, SEND, 1, errno.EINVAL),
        (e.IBV_QPS_RTS, SEND, 0, errno.EINVAL),
        (e.IBV_QPS_RTS, SEND | 64, 0, errno.EINVAL),
        (e.IBV_QPS_INIT, SEND, 0, errno.EBUSY),
    ],
)
def test_refusals_are_checked_in_order(build: Any, state: int, op_mask: int, comp_mask: int, expected: int) -> None:
    world = build()
    qp = world.a.qp()
    world.a.count(qp, SEND)
    assert attach(world.move(qp, state), world.a.counter(), op_mask, comp_mask) == expected


@pytest.mark.row("1: One counter, many QPs; many counters, one QP")
def test_one_counter_adds_up_many_qps(world: World) -> None:
    total = world.a.counter()
    pairs = [(world.a.qp(), world.b.qp()) for _ in range(4)]
    for number, (first, second) in enumerate(pairs):
        assert attach(first, total, WRITE) == 0
        world.connect(first, second)
        for _ in range(number + 1):
            first.post_send(world.a.wr(e.IBV_WR_RDMA_WRITE, flags=0))
    world.run()
    assert total.read_pair() == (1 + 2 + 3 + 4, 0)


@pytest.mark.row("1: One counter, many QPs; many counters, one QP")
def test_many_counters_share_out_one_qp(world: World) -> None:
    first, second = world.a.qp(), world.b.qp()
    sends, others = world.a.count(first, SEND), world.a.count(first, WRITE | READ)
    received, written = world.b.count(second, RECV), world.b.count(second, REMOTE_WRITE)
    world.connect(first, second)
    world.b.post_recv(second, 1, 2)
    for opcode in (e.IBV_WR_SEND, e.IBV_WR_RDMA_WRITE, e.IBV_WR_RDMA_READ, e.IBV_WR_SEND):
        first.post_send(world.a.wr(opcode))
    world.run()
    assert [c.read() for c in (sends, others, received, written)] == [2, 2, 2, 1]


@pytest.mark.row("1: One counter, many QPs; many counters, one QP")
def test_both_ends_of_a_connection_may_share_a_counter(build: Any) -> None:
    """A QP of the same context at each end: 1 for the write here, 1 for its arrival there."""
    world = build("loopback")
    side = world.a
    first, second = side.qp(), side.qp()
    counter = side.count(first, WRITE)
    assert attach(second, counter, REMOTE_WRITE) == 0
    world.connect(first, second)
    wr = side.wr(e.IBV_WR_RDMA_WRITE)
    wr.set_wr_rdma(side.mr.rkey, side.mr.buf + 100)
    first.post_send(wr)
    world.run()
    assert counter.read_pair() == (2, 0)


def some_traffic(world: World, first: QP, second: QP) -> None:
    """One write and one send that complete, one send that finds no receive, and receives that stay."""
    world.a.post_recv(first, 1, 2)
    world.b.post_recv(second, 3)
    for opcode in (e.IBV_WR_RDMA_WRITE, e.IBV_WR_SEND, e.IBV_WR_SEND):
        first.post_send(world.a.wr(opcode))
    world.run()


@pytest.mark.row("1: Modify to RESET")
def test_reset_keeps_attachment_and_values_and_counts_nothing(world: World) -> None:
    first, second = world.a.qp(), world.b.qp()
    counter = world.a.count(first, ALL_OPS)
    world.connect(first, second)
    some_traffic(world, first, second)
    assert counter.read_pair() == (2, 0)
    set_state(first, e.IBV_QPS_RESET)
    world.settle()
    assert counter.read_pair() == (2, 0), "what the reset dropped is not counted"
    assert attach(first, world.a.counter(), SEND) == errno.EBUSY
    set_state(second, e.IBV_QPS_RESET)
    world.connect(first, second)
    first.post_send(world.a.wr(e.IBV_WR_RDMA_WRITE))
    world.run()
    assert counter.read_pair() == (3, 0)


@pytest.mark.row("1: QP destroy")
def test_destroying_the_qp_detaches_and_counts_nothing(world: World) -> None:
    first, second = world.a.qp(), world.b.qp()
    counter = world.a.count(first, ALL_OPS)
    world.connect(first, second)
    some_traffic(world, first, second)
    first.close()
    world.settle()
    assert counter.read_pair() == (2, 0)
    counter.inc(1)
    other = world.a.qp()
    assert attach(other, counter, ALL_OPS) == 0
    other.close()
    assert counter.read_pair() == (3, 0)
    counter.close()
