# SPDX-License-Identifier: MIT
"""Extensions for counters: wait, wait for any, a descriptor at a threshold, await; both values of one moment."""

import asyncio
import errno
import select
import threading
from typing import Any

import pytest

from softverbs.device import Device
from softverbs.links.inproc import Network
from softverbs.pyverbs import libibverbs_enums as e
from softverbs.pyverbs.comp_cntr import CompCntr, CompCntrInitAttr
from softverbs.pyverbs.device import Context
from softverbs.pyverbs.pyverbs_error import PyverbsRDMAError
from softverbs.pyverbs.qp import QPAttachCompCntrAttr

SEND = QPAttachCompCntrAttr(e.IBV_QP_ATTACH_COMP_CNTR_OP_RDMA_WRITE)


def readable(fd: Any) -> bool:
    poller = select.poll()
    poller.register(fd, select.POLLIN)
    return bool(poller.poll(0))


def test_wait_for_traffic(rig: Any) -> None:
    counter, first, second = rig.counter(), rig.qp(), rig.qp()
    first.attach_comp_cntr(counter, SEND)
    rig.connect(first, second)
    for _ in range(5):
        first.post_send(rig.write(flags=0))
    assert counter.wait(5, timeout=10) == 5
    assert counter.wait(0) == 5
    assert counter.read_pair() == (5, 0)


def test_wait_from_another_thread(rig: Any) -> None:
    counter = rig.counter()
    timer = threading.Timer(0.05, counter.inc, [3])
    timer.start()
    assert counter.wait(3, timeout=30) == 3
    assert counter.wait(3, timeout=-1) == 3
    timer.join()


def test_wait_times_out_and_says_how_far_it_came(rig: Any) -> None:
    counter = rig.counter()
    counter.inc(2)
    for timeout in (0, 0.01):
        with pytest.raises(PyverbsRDMAError, match="2 of 3 completions") as caught:
            counter.wait(3, timeout)
        assert caught.value.errno == errno.ETIMEDOUT


def test_an_error_ends_a_wait_at_once(rig: Any) -> None:
    counter = rig.counter()
    timer = threading.Timer(0.05, counter.inc_err, [1])
    timer.start()
    with pytest.raises(PyverbsRDMAError, match="error count moved, it is 1 now") as caught:
        counter.wait(3, timeout=30)
    assert caught.value.errno == errno.EIO
    timer.join()


def test_an_error_before_the_wait_ends_it_too_until_it_was_read(rig: Any) -> None:
    counter = rig.counter()
    counter.inc_err(1)
    with pytest.raises(PyverbsRDMAError, match="error count moved"):
        counter.wait(1)
    with pytest.raises(PyverbsRDMAError, match="within"):
        counter.wait(1, 0)
    counter.inc_err(1)
    assert counter.read_err() == 2
    with pytest.raises(PyverbsRDMAError, match="within"):
        counter.wait(1, 0)
    counter.inc_err(1)
    counter.inc(1)
    assert counter.wait(1, 0) == 1, "a threshold that is reached comes first"


@pytest.mark.parametrize("threshold", [8, 2**64, -1, "1", None])
def test_an_impossible_threshold(threshold: Any) -> None:
    device = Device(link=Network().link("10.0.0.1"), thread=False, counter_max_value=7)
    counter = CompCntr(Context(device=device), CompCntrInitAttr())
    for wait in (counter.wait, counter.threshold_fd, lambda t: asyncio.run(counter.reached(t))):
        with pytest.raises(PyverbsRDMAError, match="threshold") as caught:
            wait(threshold)
        assert caught.value.errno == errno.EINVAL
    counter.close()
    device.close()


@pytest.mark.parametrize("timeout", ["soon", float("nan"), float("inf")])
def test_an_impossible_timeout(rig: Any, timeout: Any) -> None:
    with pytest.raises(PyverbsRDMAError, match="timeout"):
        rig.counter().wait(1, timeout)


def test_wait_ends_when_the_counter_is_closed(rig: Any) -> None:
    counter = rig.counter()
    timer = threading.Timer(0.05, counter.close)
    timer.start()
    with pytest.raises(PyverbsRDMAError, match="closed"):
        counter.wait(1, timeout=30)
    timer.join()


def test_wait_for_any_tells_which(rig: Any) -> None:
    counters = [rig.counter() for _ in range(3)]
    waits = [(counter, 2) for counter in counters]
    counters[1].inc(2)
    assert CompCntr.wait_any(waits, 0) == 1
    counters[1].set(0)
    timer = threading.Timer(0.05, counters[2].inc, [2])
    timer.start()
    assert CompCntr.wait_any(waits, 30) == 2
    timer.join()
    counters[2].set(0)
    with pytest.raises(PyverbsRDMAError, match="0 of 2 completions, 0 of 2 completions, 0 of 2"):
        CompCntr.wait_any(waits, 0)
    counters[0].inc_err(1)
    with pytest.raises(PyverbsRDMAError, match="counter 0 of 3: the error count moved"):
        CompCntr.wait_any(waits, 0)


def test_wait_for_any_of_nothing_or_of_two_devices(rig: Any) -> None:
    with pytest.raises(PyverbsRDMAError, match="no counter"):
        CompCntr.wait_any([])
    with pytest.raises(PyverbsRDMAError, match="CompCntr is expected"):
        CompCntr.wait_any([(1, 1)])
    with pytest.raises(PyverbsRDMAError, match="counter and its threshold"):
        CompCntr.wait_any([5])
    other = Device(link=Network().link("10.0.0.1"), thread=False)
    counter = CompCntr(Context(device=other), CompCntrInitAttr())
    with pytest.raises(PyverbsRDMAError, match="different devices"):
        CompCntr.wait_any([(rig.counter(), 1), (counter, 1)])
    counter.close()
    other.close()


def test_a_descriptor_at_a_threshold(rig: Any) -> None:
    counter = rig.counter()
    with counter.threshold_fd(3) as fd:
        counter.inc(2)
        assert not readable(fd)
        assert not fd.reached
        counter.inc(1)
        assert readable(fd)
        assert fd.reached
        counter.set(0)
        assert readable(fd), "one shot: it stays readable"
        assert not fd.reached
    assert fd.fileno() == -1
    assert not fd.reached
    fd.close()


def test_a_descriptor_whose_threshold_is_reached_already(rig: Any) -> None:
    counter = rig.counter()
    counter.inc(5)
    with counter.threshold_fd(5) as fd:
        assert readable(fd)


def test_a_descriptor_tells_of_errors(rig: Any) -> None:
    counter = rig.counter()
    with counter.threshold_fd(5) as fd:
        counter.inc_err(1)
        assert readable(fd)
        assert not fd.reached


def test_a_descriptor_survives_its_counter(rig: Any) -> None:
    counter = rig.counter()
    fd = counter.threshold_fd(5)
    counter.close()
    assert not readable(fd)
    fd.close()


def test_await(rig: Any) -> None:
    counter = rig.counter()

    async def both() -> list[int]:
        waits = asyncio.gather(counter.reached(2), counter.reached(4))
        await asyncio.sleep(0)
        threading.Timer(0.02, counter.inc, [4]).start()
        return await asyncio.wait_for(waits, 30)

    assert asyncio.run(both()) == [4, 4]
    assert asyncio.run(counter.reached(4)) == 4


def test_await_ends_with_an_error_or_by_being_cancelled(rig: Any) -> None:
    counter = rig.counter()

    async def cancelled() -> None:
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(counter.reached(2), 0.01)

    asyncio.run(cancelled())
    counter.inc_err(1)
    with pytest.raises(PyverbsRDMAError, match="error count moved"):
        asyncio.run(counter.reached(2))


def test_values_are_checked(rig: Any) -> None:
    counter = rig.counter()
    for act in (counter.set, counter.set_err, counter.inc, counter.inc_err):
        for value in (-1, 2**64, "1", 1.5, None):
            with pytest.raises(PyverbsRDMAError, match=r"uint64|integer") as caught:
                act(value)
            assert caught.value.errno == errno.EINVAL
    assert counter.read_pair() == (0, 0)
    counter.set(2**64 - 1)
    counter.set_err(5)
    assert counter.read_pair() == (2**64 - 1, 5)
    assert counter.handle
