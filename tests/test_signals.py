# SPDX-License-Identifier: MIT
"""When handlers of signals wait, when they run, and what of that a program can see; and sleeps that are exact."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from types import FrameType
from typing import Any

import pytest

from softverbs import _interrupts
from softverbs._interrupts import Shield, finalizer, shielded
from softverbs._sleep import Sleeper, nap_length
from softverbs.device import Device
from softverbs.links.inproc import Network

NUMBER = signal.SIGUSR2
MS = 1_000_000
SOON_S = 10


class Stop(BaseException):
    pass


class Calls:
    """A handler that notes its calls, and raises if it is to."""

    def __init__(self) -> None:
        self.count = 0
        self.raises = True

    def __call__(self, signum: int, frame: FrameType | None) -> None:
        assert signum == NUMBER
        assert frame is not None
        self.count += 1
        if self.raises:
            raise Stop


@pytest.fixture
def device() -> Iterator[Device]:
    with Device(link=Network().link("10.0.0.1"), thread=False) as made:
        yield made


@pytest.fixture
def calls(device: Device) -> Iterator[Calls]:
    handler = Calls()
    before = signal.signal(NUMBER, handler)
    yield handler
    signal.signal(NUMBER, before)
    assert not _interrupts._pending


def ring() -> None:
    signal.raise_signal(NUMBER)


def test_a_handler_runs_at_once_where_the_device_is_not_at_work(calls: Calls) -> None:
    with pytest.raises(Stop):
        ring()


def test_a_handler_waits_until_the_lock_is_released(device: Device, calls: Calls) -> None:
    with pytest.raises(Stop), device.lock:  # noqa: PT012
        with device.lock:
            ring()
        ring()
        assert calls.count == 0, "it is held once more"
    assert calls.count == 1, "signals of one number that wait are one, as those of the kernel"
    assert not device.lock._is_owned()


def test_a_handler_waits_for_the_locks_of_all_devices(device: Device, calls: Calls) -> None:
    with Device(link=Network().link("10.0.0.2"), thread=False) as other:
        with pytest.raises(Stop), device.lock:  # noqa: PT012
            with other.lock:
                ring()
            assert calls.count == 0
        assert calls.count == 1


def test_the_lock_of_another_thread_holds_no_handler_back(device: Device, calls: Calls) -> None:
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        with device.lock:
            held.set()
            done.wait(SOON_S)

    thread = threading.Thread(target=hold)
    thread.start()
    assert held.wait(SOON_S)
    with pytest.raises(Stop):
        ring()
    done.set()
    thread.join(SOON_S)


def test_a_handler_waits_for_the_end_of_a_shield(calls: Calls) -> None:
    with pytest.raises(Stop), Shield():  # noqa: PT012
        with Shield():
            ring()
        assert calls.count == 0
    assert calls.count == 1


def test_a_shield_that_is_open_lets_handlers_run_and_shuts_where_one_raises(calls: Calls) -> None:
    with Shield() as shield:
        ring()
        with pytest.raises(Stop):
            shield.open()
        assert calls.count == 1
        ring()
        assert calls.count == 1, "the way out is not interrupted"
        calls.raises = False
        shield.open()
        assert calls.count == 2
        ring()
        assert calls.count == 3
        shield.shut()
        ring()
        assert calls.count == 3
    assert calls.count == 4


def test_an_inner_shield_does_not_open_the_outer_one(calls: Calls) -> None:
    calls.raises = False
    with Shield():
        with Shield() as inner:
            inner.open()
            ring()
            inner.shut()
        assert calls.count == 0
    assert calls.count == 1


def test_an_error_of_the_block_comes_with_that_of_the_handler(calls: Calls) -> None:
    @shielded
    def fail() -> None:
        ring()
        raise KeyError

    with pytest.raises(Stop) as caught:
        fail()
    assert isinstance(caught.value.__context__, KeyError)


def test_a_handler_waits_for_a_finalizer_and_is_not_lost(calls: Calls) -> None:
    class Owner:
        @finalizer
        def __del__(self) -> None:
            ring()
            finished.append(calls.count)

    finished: list[int] = []
    with pytest.raises(Stop):  # noqa: PT012
        owner = Owner()
        del owner
        end = time.monotonic() + SOON_S
        while time.monotonic() < end:
            pass
    assert finished == [0]
    assert calls.count == 1


def test_a_handler_does_not_wait_for_ever(device: Device, calls: Calls, monkeypatch: pytest.MonkeyPatch) -> None:
    """A call that never returns can be ended."""
    monkeypatch.setattr(_interrupts, "PATIENCE_S", 0.05)
    start = time.monotonic()
    with pytest.raises(Stop), device.lock:  # noqa: PT012
        ring()
        while time.monotonic() < start + SOON_S:
            pass
    assert time.monotonic() < start + SOON_S
    assert not device.lock._is_owned()


def test_several_signals_that_wait_run_all_of_them(device: Device, calls: Calls) -> None:
    others: list[int] = []
    before = signal.signal(signal.SIGUSR1, lambda number, _: others.append(number))
    try:
        with pytest.raises(Stop), device.lock:  # noqa: PT012
            ring()
            signal.raise_signal(signal.SIGUSR1)
            assert others == []
        signal.raise_signal(signal.SIGUSR1)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert calls.count == 1
    assert len(others) == 2


def test_programs_see_the_handlers_that_they_have_installed(calls: Calls) -> None:
    assert signal.getsignal(NUMBER) is calls
    assert signal.signal(NUMBER, signal.SIG_IGN) is calls
    assert signal.getsignal(NUMBER) is signal.SIG_IGN
    assert signal.signal(NUMBER, signal.SIG_DFL) is signal.SIG_IGN
    assert signal.signal(NUMBER, calls) is signal.SIG_DFL
    assert isinstance(_interrupts._native.getsignal(NUMBER), _interrupts.Handler)
    with pytest.raises(TypeError):
        signal.signal(NUMBER, 77 * "x")  # type: ignore[arg-type]


def test_handlers_from_before_the_first_device_wait_too() -> None:
    script = """
import signal
from signal import signal as early
assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
from softverbs.device import Device
from softverbs.links.inproc import Network
device = Device(link=Network().link("10.0.0.1"), thread=False)
assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
def interrupted():
    reached = False
    try:
        with device.lock:
            signal.raise_signal(signal.SIGINT)
            reached = True
    except KeyboardInterrupt:
        return reached
assert interrupted()
early(signal.SIGINT, signal.default_int_handler)
assert interrupted(), "whoever has imported the function before"
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)


def test_a_signal_of_asyncio_is_handled_once(device: Device) -> None:
    seen: list[int] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(NUMBER, lambda: seen.append(1))
        with device.lock:
            os.kill(os.getpid(), NUMBER)
        await asyncio.sleep(0.05)
        loop.remove_signal_handler(NUMBER)

    asyncio.run(main())
    assert seen == [1]


def test_a_wait_ends_by_a_handler_that_raises(device: Device, calls: Calls) -> None:
    threading.Timer(0.02, os.kill, (os.getpid(), NUMBER)).start()
    with pytest.raises(Stop):
        device.wait_until(lambda: False, 1000 * MS * SOON_S)
    assert (device._waiting, device.port.sleepers, device.lock._is_owned()) == (0, 0, False)


def test_a_wait_goes_on_after_a_handler_that_returns(device: Device, calls: Calls) -> None:
    calls.raises = False
    threading.Timer(0.02, os.kill, (os.getpid(), NUMBER)).start()
    assert device.wait_until(lambda: calls.count == 1, 1000 * MS * SOON_S)


# -- sleeps


def test_a_sleep_ends_by_what_is_readable() -> None:
    bell = os.eventfd(0)
    try:
        sleeper = Sleeper([bell])
        assert not sleeper.sleep(1000)
        os.eventfd_write(bell, 1)
        assert sleeper.sleep(1000 * MS * SOON_S)
    finally:
        os.close(bell)


def test_a_sleep_lasts_as_long_as_it_was_asked_for() -> None:
    sleeper = Sleeper([])
    for duration in (0, 1, 50_000, 999_999, MS, 3 * MS + 1):
        start = time.monotonic_ns()
        assert not sleeper.sleep(duration)
        assert time.monotonic_ns() - start >= duration
    assert not sleeper.sleep(-5)


@pytest.mark.parametrize(
    ("due", "now", "most", "length"),
    [(0, 5, 7, 7), (100, 40, 99, 60), (100, 40, 50, 50), (40, 100, 50, 0), (9, 9, 50, 0), (640_000, 0, MS, 640_000)],
)
def test_a_nap_ends_when_something_is_due(due: int, now: int, most: int, length: int) -> None:
    assert nap_length(due, now, most) == length


def test_an_idle_wait_for_a_short_timer_sleeps_until_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A timer of 0.64 ms is slept for, in one sleep, and not looked at again and again."""
    slept: list[int] = []
    clock = [1000 * MS]
    device = Device(link=Network().link("10.0.0.1"), clock=lambda: clock[0], thread=False)

    class Slept:
        def sleep(self, duration: int) -> bool:
            slept.append(duration)
            clock[0] += duration
            return False

    monkeypatch.setattr(device, "_sleeper", Slept)
    monkeypatch.setattr("softverbs.device.SPIN_NS", -1)
    due: Any = clock[0] + 640_000
    monkeypatch.setattr(device, "deadline", lambda: due if clock[0] < due else 0)
    assert device.wait_until(lambda: clock[0] >= due, 1000 * MS)
    assert slept == [640_000]
    device.close()
