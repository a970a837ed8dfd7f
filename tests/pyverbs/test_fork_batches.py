# SPDX-License-Identifier: MIT
"""fork while another thread is in the middle of something: the child does not wait for a thread that it has not."""

import errno
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.forked import in_child
from tests.pyverbs.sections import Pair
from tests.pyverbs.world import World

from softverbs._interrupts import Shield
from softverbs.pyverbs.cq import CQEX
from softverbs.pyverbs.pyverbs_error import PyverbsRDMAError


@pytest.fixture
def lone() -> Iterator[Pair]:
    with World("loopback") as world:
        yield Pair(world)


def while_another_thread_has(begin: Callable[[], Any], end: Callable[[], Any], check: Callable[[], None]) -> None:
    """Runs a check in a forked child, while a thread of the parent is between ``begin`` and ``end``."""
    begun, go = threading.Event(), threading.Event()

    def work() -> None:
        begin()
        begun.set()
        go.wait(10)
        end()

    thread = threading.Thread(target=work)
    thread.start()
    assert begun.wait(10)
    in_child(check)
    go.set()
    thread.join()


def refused_after_fork(act: Callable[[], Any]) -> None:
    with pytest.raises(PyverbsRDMAError, match="fork") as caught:
        act()
    assert caught.value.errno == errno.EIO


@pytest.mark.timeout(30)
def test_a_section_of_the_extended_api(lone: Pair) -> None:
    qp = lone.qp
    while_another_thread_has(qp.wr_start, qp.wr_abort, lambda: refused_after_fork(qp.wr_start))
    qp.wr_start()
    qp.wr_abort()


@pytest.mark.timeout(30)
def test_a_batch_of_an_extended_queue(lone: Pair) -> None:
    queue = CQEX(lone.a.context)

    def begin() -> None:
        with Shield() as shield:
            queue._enter_batch(shield)

    while_another_thread_has(begin, queue._leave_batch, lambda: refused_after_fork(queue.start_poll))
    assert queue.start_poll() == errno.ENOENT
