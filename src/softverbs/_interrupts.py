# SPDX-License-Identifier: MIT
"""Handlers of signals wait while the device is at work.

Python runs the handler of a signal in the main thread, between any two instructions. A handler that raises (Ctrl-C, an
alarm that ends a test) splits whatever runs there: an object is registered and nobody knows it, a queue pair is taken
from one list and never put into the next. Code cannot defend itself against that statement by statement, and the signal
mask does not help, since another thread of the process takes the signal and the main thread runs its handler anyway.

So the handlers that Python code installs with ``signal.signal`` are wrapped, from the time when the first device is
opened. A wrapped handler runs at once, unless the main thread

* holds the lock of a device. The lock itself is the mark: it is taken and given back by one C function each, so there
  is no instant at which it is held and a handler may raise; or
* is in a ``Shield``: code that acquires something without the lock, or keeps count of something across a wait; or
* is in a ``finalizer``. What is raised there goes nowhere (``sys.unraisablehook``), and it is not run again.

Then the handler waits, and runs as soon as all of this is left: when the lock is released, at the end of the shield,
or, after a finalizer, a moment later. A wait opens its shield while it sleeps, so that it can be interrupted. A handler
that has waited for ``PATIENCE_S`` runs whatever it splits: a call that does not return can still be ended.

``signal.signal`` and ``signal.getsignal`` return the handlers as they were given. Handlers that are not installed
through the ``signal`` module are left alone.
"""

import _thread
import functools
import signal
import sys
import threading
import time
import weakref
from collections.abc import Callable
from types import CodeType, FrameType, TracebackType
from typing import Any, ParamSpec, TypeVar

_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")
_RLock: Any = type(threading.RLock())
_native: Any = signal._signal  # type: ignore[attr-defined]

#: How long a handler waits at most; and how often it is tried again, at first, s.
PATIENCE_S = 1.0
SOON_S = 0.001

# Where a thread is.
_OUTSIDE = 0
_SHIELDED = 1
_ASLEEP = 2  # in a shield that is open


class _Place(threading.local):
    now = _OUTSIDE


_place = _Place()
#: The locks of the devices that are open.
_locks: list[Any] = []
#: Handlers that wait, by signal, and since when. Only the main thread changes it.
_pending: dict[int, tuple["Handler", float]] = {}
_wrapped = False
_reminding = False
#: The code of finalizers: those of this package, and the one that WeakSet has for each of its members.
_finalizers: set[CodeType] = {weakref.WeakSet()._remove.__code__}  # type: ignore[attr-defined]


class Handler:
    """A handler of a signal that waits while the device is at work."""

    __slots__ = ("handler",)

    def __init__(self, handler: Callable[[int, FrameType | None], Any]) -> None:
        """
        :param handler: what was given to ``signal.signal``
        """
        self.handler = handler

    def __call__(self, signum: int, frame: FrameType | None) -> Any:
        """Runs the handler, or leaves it for later.

        :param signum: the signal
        :param frame: what it has interrupted
        """
        if (_at_work() or _in_finalizer(frame)) and not self._is_overdue(signum):
            return None
        _pending.pop(signum, None)
        try:
            return self._run(signum, frame)
        finally:
            if _pending:
                deliver()

    def _run(self, signum: int, frame: FrameType | None) -> Any:
        try:
            return self.handler(signum, frame)
        except BaseException:
            if _place.now == _ASLEEP:  # what follows is the way out of the wait, which nothing may interrupt
                _place.now = _SHIELDED
            raise

    def _is_overdue(self, signum: int) -> bool:
        """Makes the handler wait; whether it has waited long enough."""
        global _reminding
        now = time.monotonic()
        _, since = _pending.setdefault(signum, (self, now))
        for lock in _locks.copy():
            if lock._is_owned():
                lock.interrupted = True
        if not _reminding:
            _reminding = True
            try:
                _thread.start_new_thread(_remind, ())
            except RuntimeError:  # the interpreter ends, or has no thread left
                _reminding = False
        return now - since >= PATIENCE_S


def _remind() -> None:
    """Sends signals whose handlers wait once more: in time for those that nobody else will run. Runs in a thread."""
    global _reminding
    interval = SOON_S
    while _pending:
        time.sleep(interval)
        interval = min(2 * interval, PATIENCE_S)
        for signum in list(_pending):
            _thread.interrupt_main(signum)  # type: ignore[arg-type]
    _reminding = False


def _in_finalizer(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code in _finalizers:
            return True
        frame = frame.f_back
    return False


def finalizer(function: Callable[_Parameters, _Result]) -> Callable[_Parameters, _Result]:
    """A decorator, for ``__del__`` and for what a weak reference calls: handlers wait while it runs."""
    _finalizers.add(function.__code__)
    return function


def _at_work() -> bool:
    """Whether this thread does what no handler may split."""
    if _place.now == _SHIELDED:
        return True
    return any(lock._is_owned() for lock in _locks.copy())


def deliver(lock: Any = None) -> None:
    """Runs the handlers that have waited, if this is the main thread and the device is not at work any more.

    :param lock: a lock that was released and has ``interrupted`` set
    """
    if threading.get_ident() != threading.main_thread().ident:
        return
    if lock is not None:
        lock.interrupted = False
    frame = sys._getframe(1)
    if _pending and not _at_work() and not _in_finalizer(frame):
        signum = next(iter(_pending))
        handler, _ = _pending.pop(signum)
        try:
            handler._run(signum, frame)
        finally:
            deliver()  # the next one, whatever this one has raised


class Shield:
    """A block that no handler splits, in whatever thread: ``with Shield():``."""

    __slots__ = ("_before",)

    def __enter__(self) -> "Shield":
        self._before = _place.now
        _place.now = _SHIELDED
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        _place.now = self._before
        if _pending:
            deliver()

    def open(self) -> None:
        """Lets handlers run until ``shut``: for a wait. Where one raises, the shield is shut again.

        Nothing happens inside of another shield.
        """
        if self._before != _SHIELDED:
            _place.now = _ASLEEP
            if _pending:
                deliver()

    def acquire(self, lock: Any) -> None:
        """Takes a lock that others may hold for long: while it waits, handlers run.

        :param lock: a ``threading.Lock``
        """
        while not lock.acquire(False):
            try:
                self.open()
                with lock:  # given back at once: a handler may raise before the result of ``acquire`` is kept
                    pass
            finally:
                self.shut()

    def shut(self) -> None:
        """Ends what ``open`` began; it may be called twice."""
        if _place.now == _ASLEEP:
            _place.now = _SHIELDED


def shielded(function: Callable[_Parameters, _Result]) -> Callable[_Parameters, _Result]:
    """A decorator: the function runs in a ``Shield``."""

    @functools.wraps(function)
    def in_shield(*args: _Parameters.args, **kwargs: _Parameters.kwargs) -> _Result:
        with Shield():
            return function(*args, **kwargs)

    return in_shield


def waiting() -> bool:
    """Whether a handler waits: a loop that does not sleep opens its shield for it."""
    return bool(_pending)


class ReentrantLock(_RLock):  # type: ignore[misc]
    """``threading.RLock``, which runs handlers that have waited when it is released."""

    interrupted = False

    def release(self) -> None:
        """Gives it back; RuntimeError where this thread does not hold it."""
        _release(self)
        if self.interrupted and not self._is_owned():
            deliver(self)

    def __exit__(self, *exc: object) -> None:
        self.release()


_release = _RLock.release


def register(lock: Any) -> None:
    """From now on handlers wait while the main thread holds this lock.

    :param lock: it has ``_is_owned()`` and an attribute ``interrupted``, and calls ``deliver`` when it is released and
        that is set
    """
    _install()
    _locks.append(lock)


def unregister(lock: Any) -> None:
    """The lock is not used any more. Twice does nothing."""
    if lock in _locks:
        _locks.remove(lock)


# -- between ``signal`` and the handlers


class _SignalModule:
    """What the functions of the module ``signal`` find instead of the built-in module ``_signal``."""

    def __getattr__(self, name: str) -> Any:
        return getattr(_native, name)

    @staticmethod
    def signal(signum: int, handler: Any) -> Any:
        """Installs a handler, wrapped; the one before it, as it was given."""
        return _unwrapped(_native.signal(signum, Handler(handler) if _can_wait(handler) else handler))

    @staticmethod
    def getsignal(signum: int) -> Any:
        """The handler of a signal, as it was given."""
        return _unwrapped(_native.getsignal(signum))


def _can_wait(handler: Any) -> bool:
    """Whether it is a handler to be wrapped. That of asyncio does nothing: what counts is ``set_wakeup_fd``, and to
    send the signal once more would count twice.
    """
    return callable(handler) and getattr(handler, "__name__", "") != "_sighandler_noop" and type(handler) is not Handler


def _unwrapped(handler: Any) -> Any:
    return handler.handler if isinstance(handler, Handler) else handler


def _install() -> None:
    """Stands between ``signal`` and the handlers. Those that are there can be wrapped in the main thread only."""
    global _wrapped
    if not isinstance(signal._signal, _SignalModule):  # type: ignore[attr-defined]
        signal._signal = _SignalModule()  # type: ignore[attr-defined]
    if _wrapped or threading.current_thread() is not threading.main_thread():
        return
    _wrapped = True
    for signum in range(1, signal.NSIG):
        handler = _native.getsignal(signum)
        if _can_wait(handler):
            _native.signal(signum, Handler(handler))
