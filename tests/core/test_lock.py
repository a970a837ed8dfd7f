# SPDX-License-Identifier: MIT
"""The lock of the compiled build, in both builds: who has it, who waits, who gets it next. Real threads, handshakes."""

import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from softverbs.core.base.lock import Lock

SOON = 30  # s: a test that waits so long has failed


def never() -> None:
    raise AssertionError("nobody else has the lock, so there is nothing to wait for")


def make(pause: Callable[[], None] = never) -> Lock:
    return Lock(threading.get_ident, pause, lambda _: None)


def elsewhere(call: Callable[..., Any], *args: Any) -> Any:
    """What ``call`` returns in another thread."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(call, *args).result(SOON)


def free(lock: Lock) -> bool:
    """Whether another thread could have it now."""

    def attempt() -> bool:
        if not lock.acquire(False):
            return False
        lock.release()
        return True

    return bool(elsewhere(attempt))


def test_one_thread_has_it_at_a_time() -> None:
    lock = make()
    assert lock.acquire()
    assert not free(lock)
    lock.release()
    assert free(lock)


def test_its_owner_may_take_it_again_and_gives_it_back_as_often() -> None:
    lock = make()
    for blocking in (True, False, True):
        assert lock.acquire(blocking)
    for _ in range(2):
        lock.release()
        assert not free(lock)
    lock.release()
    assert free(lock)


def test_with_gives_it_back_after_an_error_too() -> None:
    lock = make()
    with lock as taken:
        assert taken is True
        with pytest.raises(KeyError), lock:
            raise KeyError
        assert not free(lock), "once taken, once left"
    assert free(lock)


def test_owned_means_by_this_thread() -> None:
    lock = make()
    assert not lock._is_owned()
    with lock:
        assert lock._is_owned()
        assert not elsewhere(lock._is_owned)
    assert not lock._is_owned()


def test_who_had_it_last_does_not_own_it() -> None:
    lock = make()
    elsewhere(lambda: (lock.acquire(), lock.release()))
    assert not lock._is_owned()
    assert free(lock)


def test_whoever_finds_it_taken_pauses_until_it_is_free() -> None:
    waits, released = threading.Event(), threading.Event()
    pauses = []

    def pause() -> None:
        pauses.append(threading.get_ident())
        waits.set()
        assert released.wait(SOON)

    lock = make(pause)
    order = []

    def second() -> int:
        with lock:
            order.append("second")
            assert lock._is_owned()
        return threading.get_ident()

    with ThreadPoolExecutor(1) as pool:
        with lock:
            future = pool.submit(second)
            assert waits.wait(SOON)
            order.append("first")
        released.set()
        ident = future.result(SOON)
    assert order == ["first", "second"]
    assert pauses == [ident], "one look, one pause, and then it was free"
    assert free(lock)


def test_an_error_in_a_pause_leaves_the_lock_alone() -> None:
    """As when a signal arrives while the main thread waits for the lock."""

    def pause() -> None:
        raise KeyboardInterrupt

    lock = make(pause)

    def attempt() -> None:
        with pytest.raises(KeyboardInterrupt):
            lock.acquire()
        assert not lock._is_owned()

    with lock:
        elsewhere(attempt)
        assert lock._is_owned()
    assert free(lock)


def test_after_a_fork_nobody_has_it() -> None:
    """The thread that had it does not exist in the child."""
    lock = make()
    elsewhere(lambda: (lock.acquire(), lock.acquire()))
    assert not lock.acquire(False)
    lock._at_fork_reinit()
    assert not lock._is_owned()
    with lock:
        assert not free(lock)
    assert free(lock)


def test_many_threads_exclude_each_other(core_is_compiled: bool) -> None:
    if not core_is_compiled:
        pytest.skip("uncompiled, the device uses threading.RLock: see core/base/lock.py")
    lock = make(lambda: time.sleep(0))
    inside: list[int] = []
    total = 0
    start = threading.Barrier(4)

    def work() -> None:
        nonlocal total
        start.wait(SOON)
        for _ in range(500):
            with lock:
                inside.append(threading.get_ident())
                with lock:
                    before = total
                    time.sleep(0)  # another thread may run here, and must not get in
                    total = before + 1
                assert inside == [threading.get_ident()]
                inside.pop()

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with ThreadPoolExecutor(4) as pool:
            for future in [pool.submit(work) for _ in range(4)]:
                future.result(SOON)
    finally:
        sys.setswitchinterval(interval)
    assert total == 2000
