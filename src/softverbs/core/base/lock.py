# SPDX-License-Identifier: MIT
"""The device's lock, for the compiled build: a reentrant lock that costs a comparison where nobody else wants it.

Compiled, nothing between the look at ``owner`` and its change lets another Python thread run, so no system lock is
needed. Whoever finds it taken pauses and looks again: it is held for microseconds, by code that does not wait.
Uncompiled this would be wrong; there a ``threading.RLock`` with the same methods is used.

While the main thread holds it, handlers of signals wait (_interrupts.py), and run when it is released.
"""

from collections.abc import Callable

try:
    import cython
except ImportError:
    from softverbs import _cython as cython


class Lock:
    """``threading.RLock``, as far as the device uses it."""

    def __init__(
        self, identify: Callable[[], int], pause: Callable[[], None], deliver: Callable[["Lock"], None]
    ) -> None:
        """
        :param identify: the number of the running thread, never 0
        :param pause: lets other threads run for a moment
        :param deliver: called with the lock when it is released and ``interrupted`` is set: handlers of signals wait
        """
        self._identify = identify
        self._pause = pause
        self._deliver = deliver
        self.interrupted = False
        self._owner = 0
        self._depth = 0

    def acquire(self, blocking: bool = True) -> bool:
        """Takes the lock; False where it is taken and ``blocking`` is False."""
        if cython.compiled:
            me = PyThread_get_thread_ident()
        else:
            me = self._identify()
        while self._depth > 0 and self._owner != me:
            if not blocking:
                return False
            self._pause()
        self._owner = me
        self._depth += 1
        return True

    def release(self) -> None:
        """Gives it back. Only the thread that has it may."""
        self._depth -= 1
        if self.interrupted and self._depth == 0:
            self._deliver(self)

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *exc: object) -> None:
        self.release()

    def _is_owned(self) -> bool:
        return self._depth > 0 and self._owner == self._identify()

    def _at_fork_reinit(self) -> None:
        self._depth = 0
