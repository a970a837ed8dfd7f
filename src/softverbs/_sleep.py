# SPDX-License-Identifier: MIT
"""Sleeping until a descriptor is readable or a time has come, to the microsecond.

The waits of ``select`` and ``selectors`` that take many descriptors count in milliseconds, and timers of this device
are shorter: an RNR timer may be 0.01 ms (IBA table 45). ``ppoll(2)`` takes nanoseconds, and one call does everything.
"""

import ctypes
import errno
import os
from collections.abc import Iterable

_POLLIN = 1
_SECOND_NS = 1_000_000_000
_PR_SET_TIMERSLACK = 29

_libc = ctypes.CDLL(None, use_errno=True)
_ppoll = _libc.ppoll


class _PollFd(ctypes.Structure):
    _fields_ = (("fd", ctypes.c_int), ("events", ctypes.c_short), ("revents", ctypes.c_short))


class _TimeSpec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class Sleeper:
    """Sleeps for one thread: two cannot use one at the same time."""

    __slots__ = ("_count", "_descriptors", "_reference", "_time")

    def __init__(self, descriptors: Iterable[int]) -> None:
        """
        :param descriptors: what ends a sleep when it is readable
        """
        numbers = list(descriptors)
        self._count = len(numbers)
        self._descriptors = (_PollFd * self._count)(*[_PollFd(number, _POLLIN, 0) for number in numbers])
        self._time = _TimeSpec()
        self._reference = ctypes.byref(self._time)

    def sleep(self, duration: int) -> bool:
        """Sleeps; False where the time has passed and nothing was readable. A signal ends it early.

        :param duration: how long, ns
        :raises OSError: ENOMEM
        """
        self._time.seconds, self._time.nanoseconds = divmod(max(duration, 0), _SECOND_NS)
        ready: int = _ppoll(self._descriptors, self._count, self._reference, None)
        if ready < 0 and ctypes.get_errno() != errno.EINTR:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        return ready != 0


def sleep_exactly() -> None:
    """From now on sleeps of this thread end within a few microseconds, and not within 50 (PR_SET_TIMERSLACK)."""
    _libc.prctl(_PR_SET_TIMERSLACK, 1, 0, 0, 0)


def nap_length(due: int, now: int, most: int) -> int:
    """How long to sleep until something is due, ns.

    :param due: when, ns; 0: never
    :param now: the time, ns
    :param most: how long at most, ns
    """
    return most if due == 0 else max(min(most, due - now), 0)
