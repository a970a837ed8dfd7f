# SPDX-License-Identifier: MIT
"""Completion counters as objects: creation, values, limits, destruction, memory of the application."""

import ctypes
import errno
import threading
from typing import Any

import pytest
from tests.pyverbs.world import OPS, SEND, WRITE, World, refused

from softverbs import verbs
from softverbs.pyverbs import libibverbs_enums as e
from softverbs.pyverbs.comp_cntr import CompCntr, CompCntrInitAttr
from softverbs.pyverbs.qp import QPAttachCompCntrAttr

U64 = 2**64 - 1


@pytest.mark.row("1: Types")
@pytest.mark.parametrize("kind", [e.IBV_COMP_CNTR_TYPE_WRS, e.IBV_COMP_CNTR_TYPE_BYTES])
def test_both_types_can_be_made(world: World, kind: int) -> None:
    with CompCntr(world.a.context, CompCntrInitAttr(0, kind, 0)) as counter:
        assert counter.context is world.a.context


@pytest.mark.row("1: Types")
@pytest.mark.parametrize(
    ("attr", "code"),
    [
        (CompCntrInitAttr(cntr_type=2), errno.EOPNOTSUPP),
        (CompCntrInitAttr(cntr_type=0xFFFFFFFF), errno.EOPNOTSUPP),
        (CompCntrInitAttr(flags=1), errno.EINVAL),
        (CompCntrInitAttr(flags=1 << 31), errno.EINVAL),
        (CompCntrInitAttr(comp_mask=1), errno.EINVAL),
        (CompCntrInitAttr(comp_mask=1 << 31), errno.EINVAL),
    ],
)
def test_other_types_flags_and_masks_are_refused(build: Any, attr: CompCntrInitAttr, code: int) -> None:
    refused(code, CompCntr, build().a.context, attr)


@pytest.mark.row("1: First value")
def test_a_counter_starts_at_zero(build: Any) -> None:
    side = build().a
    for kind in (0, 1):
        counter = side.counter(kind)
        assert (counter.read(), counter.read_err(), counter.read_pair()) == (0, 0, (0, 0))


@pytest.mark.row("1: First value")
def test_a_counter_does_not_inherit_the_values_of_one_before(build: Any) -> None:
    side = build(max_counters=1).a
    for _ in range(3):
        with side.counter() as counter:
            assert counter.read_pair() == (0, 0)
            counter.set(5)
            counter.set_err(6)


def test_the_two_values_are_set_and_incremented_apart(build: Any) -> None:
    counter = build().a.counter()
    counter.set(10)
    counter.inc(5)
    assert counter.read_pair() == (15, 0)
    counter.set_err(3)
    counter.inc_err(4)
    assert counter.read_pair() == (15, 7)
    counter.inc(0)
    counter.inc_err(0)
    counter.set(0)
    assert (counter.read(), counter.read_err()) == (0, 7)


def test_handles_are_distinct_numbers_of_32_bits(build: Any) -> None:
    side = build().a
    counters = [side.counter() for _ in range(20)]
    handles = {counter.handle for counter in counters}
    assert len(handles) == 20
    assert all(0 <= handle < 2**32 for handle in handles)


@pytest.mark.row("1: Overflow")
@pytest.mark.parametrize("max_value", [1, 7, 100, 2**32, U64])
def test_an_increment_beyond_the_maximum_wraps(build: Any, max_value: int) -> None:
    world = build(counter_max_value=max_value)
    assert world.a.context.query_comp_cntr_caps().max_value == max_value
    counter = world.a.counter()
    counter.set(max_value)
    counter.set_err(max_value)
    counter.inc(1)
    counter.inc_err(1)
    assert counter.read_pair() == (0, 0)
    counter.set(max_value)
    counter.inc(max_value)
    counter.inc_err(max_value)
    assert counter.read_pair() == (max_value - 1, max_value)


@pytest.mark.row("1: Overflow")
def test_traffic_wraps_as_increments_do(build: Any) -> None:
    world = build(counter_max_value=7)
    first, second = world.a.qp(), world.b.qp()
    requests = world.a.count(first, WRITE)
    bytes_ = world.b.count(second, 32, e.IBV_COMP_CNTR_TYPE_BYTES)
    failures = world.a.count(first, SEND)
    world.connect(first, second)
    for _ in range(10):
        first.post_send(world.a.wr(e.IBV_WR_RDMA_WRITE, length=5, flags=0))
    world.run()
    assert requests.read_pair() == (10 % 8, 0)
    assert bytes_.read_pair() == (50 % 8, 0)
    first.modify(world.attr(first, 1, qp_state=e.IBV_QPS_ERR), e.IBV_QP_STATE)
    for _ in range(11):
        first.post_send(world.a.wr(e.IBV_WR_SEND))
    assert failures.read_pair() == (0, 11 % 8)


@pytest.mark.row("1: Overflow")
def test_a_message_longer_than_the_maximum_wraps_more_than_once(build: Any) -> None:
    world = build(counter_max_value=7)
    first, second = world.a.qp(), world.b.qp()
    counter = world.a.count(first, WRITE, e.IBV_COMP_CNTR_TYPE_BYTES)
    world.connect(first, second)
    first.post_send(world.a.wr(e.IBV_WR_RDMA_WRITE, length=3001))
    world.run()
    assert counter.read() == 3001 % 8


@pytest.mark.row("1: set / inc beyond max_value")
@pytest.mark.parametrize("value", [8, 9, 2**32, U64])
def test_values_beyond_the_maximum_are_refused(build: Any, value: int) -> None:
    counter = build(counter_max_value=7).a.counter()
    counter.set(3)
    counter.set_err(4)
    for act in (counter.set, counter.set_err, counter.inc, counter.inc_err):
        assert "7" in refused(errno.EINVAL, act, value)
    assert counter.read_pair() == (3, 4)


@pytest.mark.row("1: More than max_counters")
@pytest.mark.parametrize("limit", [0, 1, 3])
def test_there_are_no_more_counters_than_the_device_has(build: Any, limit: int) -> None:
    world = build("loopback", max_counters=limit)
    caps = world.a.context.query_comp_cntr_caps()
    assert caps.max_counters == limit
    counters = [side.counter() for side, _ in zip([world.a, world.b] * 2, range(limit), strict=False)]
    for side in (world.a, world.b):
        refused(errno.ENOMEM, side.counter)
    for counter in counters:
        counter.close()
    assert [world.b.counter().read() for _ in range(limit)] == [0] * limit


@pytest.mark.row("1: Destroy while attached")
def test_an_attached_counter_cannot_be_destroyed_and_stays_usable(world: World) -> None:
    first, second = world.a.qp(), world.b.qp()
    counter = world.a.count(first, WRITE)
    world.connect(first, second)
    assert verbs.ibv_destroy_comp_cntr(counter) == errno.EBUSY
    refused(errno.EBUSY, counter.close)
    first.post_send(world.a.wr(e.IBV_WR_RDMA_WRITE))
    world.run()
    counter.inc(1)
    assert counter.read_pair() == (2, 0)
    first.close()
    assert verbs.ibv_destroy_comp_cntr(counter) == 0


@pytest.mark.row("1: Destroy while attached")
def test_a_counter_of_two_qps_is_busy_until_both_are_gone(build: Any) -> None:
    side = build().a
    first, second = side.qp(), side.qp()
    counter = side.count(first, WRITE)
    second.attach_comp_cntr(counter, QPAttachCompCntrAttr(SEND))
    for qp in (first, second):
        refused(errno.EBUSY, counter.close)
        qp.close()
    counter.close()


def test_the_caps_are_those_of_the_device(build: Any) -> None:
    world = build(counter_max_value=99, max_counters=5, counter_ops=0b101010)
    caps = world.a.context.query_comp_cntr_caps()
    assert (caps.max_value, caps.max_counters, caps.supported_qp_attach_ops) == (99, 5, 0b101010)


def test_the_caps_by_default(build: Any) -> None:
    caps = build().a.context.query_comp_cntr_caps()
    assert caps.max_value == U64
    assert caps.max_counters > 0
    assert caps.supported_qp_attach_ops == sum(OPS)


@pytest.mark.row("1: set while traffic runs")
def test_increments_are_never_lost(world: World) -> None:
    first, second = world.a.qp(), world.b.qp()
    counter = world.a.count(first, WRITE)
    world.connect(first, second)

    def increment() -> None:
        for _ in range(200):
            counter.inc(1)
            counter.inc_err(2)

    threads = [threading.Thread(target=increment) for _ in range(3)]
    for thread in threads:
        thread.start()
    for _ in range(60):
        first.post_send(world.a.wr(e.IBV_WR_RDMA_WRITE, flags=0))
        world.run()
    for thread in threads:
        thread.join()
    assert counter.read_pair() == (60 + 600, 1200)


@pytest.mark.row("1: set while traffic runs")
def test_traffic_counts_on_from_the_value_that_was_set(build: Any) -> None:
    world = build()
    first, second = world.a.qp(), world.b.qp()
    counter = world.a.count(first, WRITE)
    world.connect(first, second)
    for start in (1000, 0, U64):
        counter.set(start)
        first.post_send(world.a.wr(e.IBV_WR_RDMA_WRITE))
        world.run()
        assert counter.read() == (start + 1) % 2**64


# -- external memory: the one place that knows how the function of efadv_create_comp_cntr(3) is reached from Python

COMPLETIONS, ERRORS = 1, 2  # EFADV_COMP_CNTR_INIT_WITH_COMP_EXTERNAL_MEM, ..._ERR_EXTERNAL_MEM


def external(context: Any, completions: int | None = None, errors: int | None = None, **changes: int) -> Any:
    """A counter whose values live at these addresses; None with errno set where it is refused."""
    attr = verbs.efadv_comp_cntr_init_attr()
    attr.flags = (completions is not None) * COMPLETIONS | (errors is not None) * ERRORS
    attr.comp_cntr_ext_mem.ptr = completions or 0
    attr.err_cntr_ext_mem.ptr = errors or 0
    for name, value in changes.items():
        setattr(attr, name, value)
    return verbs.efadv_create_comp_cntr(context, CompCntrInitAttr(), attr, ctypes.sizeof(attr))


@pytest.fixture
def words() -> Any:
    """Two words of memory that are not 0, and their addresses."""
    memory = (ctypes.c_uint64 * 2)(11, 22)
    return memory, ctypes.addressof(memory), ctypes.addressof(memory) + 8


@pytest.mark.row("1: External memory")
@pytest.mark.parametrize("which", [COMPLETIONS, ERRORS, COMPLETIONS | ERRORS])
def test_external_memory_is_zeroed_and_follows_every_update(build: Any, words: Any, which: int) -> None:
    memory, first, second = words
    counter = external(build().a.context, first if which & COMPLETIONS else None, second if which & ERRORS else None)

    def check(completions: int, errors: int) -> None:
        assert memory[0] == (completions if which & COMPLETIONS else 11)
        assert memory[1] == (errors if which & ERRORS else 22)
        assert counter.read_pair() == (completions, errors)

    check(0, 0)
    counter.set(5)
    counter.inc_err(2)
    check(5, 2)
    counter.inc(2**63)
    counter.set_err(0)
    check(2**63 + 5, 0)


@pytest.mark.row("1: External memory")
def test_traffic_is_stored_in_external_memory(world: World, words: Any) -> None:
    memory, at_completions, at_errors = words
    first, second = world.a.qp(), world.b.qp()
    counter = external(world.a.context, at_completions, at_errors)
    first.attach_comp_cntr(counter, QPAttachCompCntrAttr(WRITE))
    world.connect(first, second)
    for key in (None, None, 0xBAD00):
        first.post_send(world.a.wr(e.IBV_WR_RDMA_WRITE, key=key))
    world.run()
    assert list(memory) == [2, 1]


@pytest.mark.row("1: External memory")
@pytest.mark.parametrize("shift", [1, 4, 7])
def test_external_memory_must_be_aligned(build: Any, words: Any, shift: int) -> None:
    memory, first, second = words
    context = build().a.context
    for addresses in ((first + shift, None), (None, first + shift), (first, second - shift)):
        ctypes.set_errno(0)
        assert external(context, *addresses) is None
        assert ctypes.get_errno() == errno.EINVAL
    assert list(memory) == [11, 22]


@pytest.mark.row("1: External memory")
def test_unknown_flags_and_masks_of_external_memory_are_refused(build: Any, words: Any) -> None:
    context = build().a.context
    for changes in ({"flags": 4}, {"comp_mask": 1}):
        assert external(context, words[1], words[2], **changes) is None
        assert ctypes.get_errno() in (errno.EINVAL, errno.EOPNOTSUPP)


@pytest.mark.row("1: External memory")
def test_external_memory_is_left_alone_after_the_counter(build: Any, words: Any) -> None:
    memory, first, second = words
    world = build()
    counter = external(world.a.context, first, second)
    counter.inc(3)
    counter.close()
    memory[0] = 77
    world.a.counter().inc(1)
    assert list(memory) == [77, 0]
