# SPDX-License-Identifier: MIT
"""Completion counters whose counts are kept in the memory of another process (efadv_create_comp_cntr(3))."""

import errno
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from tests.foreign import PAGE, READ_ONLY, Child
from tests.netsim.pair import WR_SEND, WR_WRITE, Pair
from tests.program import Completions

from softverbs.core.base.errors import PyverbsRDMAError
from softverbs.core.base.limits import Options
from softverbs.core.memory import spaces
from softverbs.core.memory.raw import Block, load64
from softverbs.core.queues.counters import VALUES, CompCntr

BOTH = VALUES["LOST_VALUE"] | VALUES["LOST_ERRORS"]


@pytest.fixture
def child() -> Iterator[Child]:
    with Child(2 * PAGE) as child:
        child.call("put", 0, b"\xff" * 2 * PAGE)
        yield child


def number(child: Child, offset: int) -> int:
    return int.from_bytes(child.call("at", offset, 8), sys.byteorder)


class Counted:
    """A counter of a node, in a child's memory: the completion count at 64, the error count on the next page."""

    def __init__(self, node: Any, child: Child, external: int = BOTH) -> None:
        self.port, self.child = node.port, child
        self.core = CompCntr(self.port, self, 0, 0, 0)
        self.page = Block(PAGE)
        value = spaces.far(child.space, child.address + 64) if external & VALUES["LOST_VALUE"] else 0
        errors = spaces.far(child.space, child.address + PAGE) if external & VALUES["LOST_ERRORS"] else 0
        self.core.keep(value, errors)
        self.core.show(self.page.address, self.page)

    def there(self) -> tuple[int, int]:
        """What the child finds in its memory."""
        return number(self.child, 64), number(self.child, PAGE)

    def shown(self) -> tuple[int, int, int]:
        """What the page says: the counts, and what is lost."""
        at = self.page.address
        return load64(at), load64(at + VALUES["PAGE_ERRORS"]), load64(at + VALUES["PAGE_LOST"])


@pytest.fixture
def pair() -> Iterator[Pair]:
    with Pair() as pair:
        yield pair


NOTHING = 2**64 - 1


@pytest.mark.parametrize(
    ("external", "after"), [(0, (NOTHING, NOTHING)), (1, (5, NOTHING)), (2, (NOTHING, 6)), (3, (5, 6))]
)
def test_flags_choose_the_counts(pair: Pair, child: Child, external: int, after: tuple[int, int]) -> None:
    counted = Counted(pair.a.node, child, external)
    zeroed = tuple(0 if external & bit else NOTHING for bit in (1, 2))
    assert counted.there() == zeroed
    counted.core.set(5)
    counted.core.set_err(6)
    counted.port.publish_shared()
    assert (counted.there(), counted.shown()) == (after, (5, 6, 0))


def test_one_turn_is_one_store_before_completions_are_shown(pair: Pair, child: Child) -> None:
    counted = Counted(pair.a.node, child)
    for _ in range(100):
        counted.core.inc(1)
    assert (counted.there(), counted.shown()) == ((0, 0), (0, 0, 0)), "not before the end of the turn"
    assert counted.port.unplaced_counters == [counted.core]
    counted.port.publish_shared()
    assert (counted.there(), counted.shown()) == ((100, 0), (100, 0, 0))
    assert counted.port.unplaced_counters == []


class Spy(CompCntr):
    """A counter that notes what a program sees of its completion queue when the counts are stored."""

    tail = -1
    program: Completions

    def place(self) -> None:
        self.tail = self.program.tail
        super().place()


def test_counts_are_stored_before_completions_are_shown(pair: Pair, child: Child) -> None:
    port, cq = pair.a.node.port, pair.a.cq
    spy = Spy(port, None, 0, 0, 0)
    spy.program = Completions(cq.mapped_size(), cq.rings()[0].mask + 1)
    cq.share(spy.program.address, spy.program)
    spy.keep(spaces.far(child.space, child.address + 64), 0)
    pair.a.post(WR_WRITE, 0, 8, 0)
    pair.sim.settle()
    spy.inc(1)
    port.publish_shared()
    assert (spy.tail, spy.program.tail) == (0, 1)
    assert number(child, 64) == 1


def test_what_is_set_is_stored_though_it_is_the_same(pair: Pair, child: Child) -> None:
    counted = Counted(pair.a.node, child)
    child.call("put", 64, b"\1" * 8)
    child.call("put", PAGE, b"\1" * 8)
    counted.core.set(0)
    counted.port.publish_shared()
    assert counted.there() == (0, 0)


def test_late_and_stalled_counts_are_late_there_too(child: Child) -> None:
    with Pair(options=Options(counter_delay_ns=1000)) as pair:
        counted = Counted(pair.a.node, child)
        counted.core.inc(1)
        counted.port.publish_shared()
        assert (counted.there(), counted.shown()) == ((0, 0), (0, 0, 0))
        counted.core.publish(counted.port.now + 1000)
        counted.port.publish_shared()
        assert (counted.there(), counted.shown()) == ((1, 0), (1, 0, 0))


def test_memory_that_cannot_be_written_is_refused(pair: Pair, child: Child) -> None:
    before = pair.a.node.port.counts["completion counter"]
    child.call("protect", PAGE, PAGE, READ_ONLY)
    with pytest.raises(PyverbsRDMAError, match=r"the error count: 8 bytes at .* not mapped writable") as caught:
        Counted(pair.a.node, child)
    assert caught.value.errno == errno.EFAULT
    child.call("unmap", 0, PAGE)
    with pytest.raises(PyverbsRDMAError, match=r"the completion count: 8 bytes at .* not mapped writable") as caught:
        Counted(pair.a.node, child)
    assert caught.value.errno == errno.EFAULT
    assert pair.a.node.port.counts["completion counter"] == before + 2, "whoever made the counter closes it"


def test_memory_that_goes_is_left_alone(pair: Pair, child: Child) -> None:
    counted, other = Counted(pair.a.node, child), Counted(pair.a.node, child, 0)
    counted.core.inc(1)
    counted.port.publish_shared()
    child.call("protect", PAGE, PAGE, READ_ONLY)
    for core in (counted.core, other.core):
        core.inc(1)
        core.inc_err(1)
    counted.port.publish_shared()
    assert (counted.there(), counted.shown()) == ((2, 0), (2, 1, 2))
    assert counted.port.stats()["counts_lost"] == 1
    words = f"completion counter {counted.core.handle}: its error count is no longer stored: 8 bytes at"
    assert words in pair.a.node.log[-1]
    child.call("protect", PAGE, PAGE, READ_ONLY | 2)
    counted.core.inc_err(1)
    counted.core.inc(1)
    counted.port.publish_shared()
    assert (counted.there(), counted.shown()) == ((3, 0), (3, 2, 2)), "not tried again"
    child.call("unmap", 0, PAGE)
    counted.core.inc(1)
    counted.port.publish_shared()
    assert counted.shown() == (4, 2, 3)
    counted.core.inc(1)
    counted.core.inc_err(1)
    assert counted.shown() == (5, 3, 3), "a page alone is up to date at once"
    assert counted.port.stats()["counts_lost"] == 2
    assert other.shown() == (1, 1, 0)


def test_a_counter_that_is_closed_writes_nothing(pair: Pair, child: Child) -> None:
    """Its space may be another program's by the time at which the update would be stored."""
    counted = Counted(pair.a.node, child)
    counted.core.inc(1)
    counted.core.close()
    counted.port.publish_shared()
    assert (counted.there(), counted.shown()) == ((0, 0), (0, 0, 0))
    assert counted.port.stats()["counts_lost"] == 0


def test_traffic_counts_there(pair: Pair, child: Child) -> None:
    counted = Counted(pair.b.node, child)
    before = pair.b.counters[32]
    where = counted.core.value_address, counted.core.error_address
    before.keep(*where)
    for _ in range(3):
        pair.a.post(WR_WRITE, 0, 8, 0)
    pair.b.receive(8)
    pair.a.post(WR_SEND, 0, 8, 0)
    pair.sim.settle()
    pair.b.node.port.publish_shared()
    assert counted.there() == (3, 0)
