# SPDX-License-Identifier: MIT
"""What all objects of the API share: context managers, the order of closing, errors that say why."""

import ctypes
import logging
import os
import weakref
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from softverbs._interrupts import Shield, finalizer
from softverbs.core.base.errors import PyverbsError
from softverbs.core.base.errors import PyverbsRDMAError as PyverbsRDMAError
from softverbs.pyverbs._fields import integer, refused

if TYPE_CHECKING:
    from softverbs.device import Device
    from softverbs.pyverbs.device import Context

_Self = TypeVar("_Self", bound="PyverbsCM")


def inc_rkey(rkey: int) -> int:
    """The next key of a memory window: the low 8 bits count on, the rest stays (ibv_inc_rkey(3))."""
    rkey = integer(rkey, "rkey")
    return (rkey & 0xFFFFFF00) | ((rkey + 1) & 0xFF)


def PyverbsRDMAErrno(msg: str) -> PyverbsRDMAError:
    """A PyverbsRDMAError with the errno that ctypes keeps for this thread (``ctypes.get_errno``).

    :param msg: why, in words
    """
    return PyverbsRDMAError(msg, ctypes.get_errno())


def close_weakrefs(iterables: Iterable["weakref.WeakSet[Any] | None"]) -> None:
    """Closes what is alive in each set, set by set, and empties the sets: children go before their parents.

    :param iterables: sets in the order of closing; None is passed over
    """
    for members in iterables:
        if members is None:
            continue
        for member in list(members):
            member.close()  # where it raises, this one and the rest are still its parent's children
            members.discard(member)


class PyverbsObject:
    """The root of the API's classes."""

    @property
    def logger(self) -> logging.Logger:
        """The logger of this class, ``softverbs.pyverbs.<class>``."""
        return logging.getLogger(f"softverbs.pyverbs.{type(self).__name__}")

    def set_log_level(self, val: int) -> None:
        """Sets the level of the class's logger.

        :param val: a level of the ``logging`` module
        """
        self.logger.setLevel(val)


class PyverbsCM(PyverbsObject):
    """An object that ``with`` closes."""

    def __enter__(self: _Self) -> _Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc_value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Gives back what the object holds. Twice does nothing."""


class Guard:
    """The device's lock around one call, and the call's refusals in the words of the API.

    What leaves the block as PyverbsRDMAError gets ``what`` in front; a TypeError or OverflowError from below,
    which is bad input that nobody named, becomes EINVAL.
    """

    __slots__ = ("device", "facts", "subject", "what")

    def __init__(
        self, device: "Device", what: str, subject: "Resource | None" = None, facts: dict[str, Any] | None = None
    ) -> None:
        """
        :param device: whose lock is taken; it must be alive and of this process
        :param what: what failed, if it fails
        :param subject: the object that is called
        :param facts: what a fault on demand may ask for (docs/faults.md), and ``verb``, where ``what`` does not tell
        """
        self.device = device
        self.what = what
        self.subject = subject
        self.facts = facts

    def __enter__(self) -> "Device":
        device = self.device
        device.check()
        device.lock.acquire()
        try:
            for _ in range(len(device.deferred)):  # what is garbage must not keep busy what is about to be closed
                device.deferred.popleft()()
            if device.verb_faults is not None:
                self._let_fail(device)
        except BaseException as error:
            device.lock.release()
            raise reworded(error, self.what) or error from None
        return device

    def _let_fail(self, device: "Device") -> None:
        """Asks the plan of faults about this call."""
        from softverbs.pyverbs._verb_names import facts_of, verb_of

        facts = dict(self.facts or ())
        verb = facts.pop("verb", None)
        device.verb_faults.on_call(verb_of(self.what) if verb is None else verb, {**facts_of(self.subject), **facts})

    def __exit__(
        self, exc_type: type[BaseException] | None, exc_value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.device.lock.release()
        if exc_value is not None:
            worded = reworded(exc_value, self.what)
            if worded is not None:
                self.device.log.info("%s", worded)
                raise worded from None


def reworded(error: BaseException, what: str) -> PyverbsRDMAError | None:
    """``error`` with ``what`` in front of its reason; None where it is none of ours and means no bad input."""
    if isinstance(error, PyverbsRDMAError):
        worded = PyverbsRDMAError(f"{what}: {error.reason}", error.error_code)
        worded.bad_wr = error.bad_wr
        return worded
    if isinstance(error, PyverbsError):
        return refused(f"{what}: {error.reason}")
    if isinstance(error, (TypeError, OverflowError)):
        return refused(f"{what}: {error}")
    return None


class Resource(PyverbsCM):
    """An object of the device: it lives in a core object, belongs to a context, and has children that go first.

    ``_core`` is None before creation and after closing. Methods that applications call in a loop go through bound
    methods of the core, kept in attributes (``_hot``); at closing, and in a forked child, they are replaced.
    """

    #: What messages call it.
    _kind = "object"
    #: Attribute that holds a bound method -> its name in the core object.
    _hot: dict[str, str] = {}  # noqa: RUF012
    #: Names of the WeakSets of children, in the order in which they are closed.
    _children: tuple[str, ...] = ()

    _core: Any = None
    _context: "Context | None" = None
    #: Asynchronous events about it that were read and not acknowledged.
    _async_events = 0

    def _start(self, context: "Context", core: Any) -> None:
        """Begins life: ``core`` was made for this object."""
        self._core = core
        self._context = context
        for name in self._children:
            setattr(self, name, weakref.WeakSet())
        for name, method in self._hot.items():
            setattr(self, name, getattr(core, method))
        if self._hot:
            _live.add(self)
        self.logger.debug("Created %s", self._kind)

    @property
    def context(self) -> Any:
        """Extension: the Context that it belongs to; None when closed."""
        return self._context

    def _device(self) -> "Device":
        if self._core is None or self._context is None:
            raise self._closed()
        return self._context.device

    def _closed(self) -> PyverbsRDMAError:
        return refused(f"{self._kind} is closed")

    def _open(self) -> Any:
        """The core object; EINVAL when closed."""
        if self._core is None:
            raise self._closed()
        return self._core

    def _guard(self, what: str, **facts: Any) -> Guard:
        """The lock for one call; EINVAL when closed.

        :param what: what failed, if it fails; it tells the verb too (``_verb_names``)
        :param facts: see Guard
        """
        return Guard(self._device(), what, self, facts)

    def close(self) -> None:
        """Closes its children, then itself. Twice does nothing.

        :raises PyverbsRDMAError: EBUSY while something that is not its child uses it; it stays open then
        """
        if self._core is None:
            return
        close_weakrefs([getattr(self, name) for name in self._children])
        if self._device().usable():
            self._before_destroy()
            self._destroy()
        else:
            with Shield():
                self._forget()

    def _before_destroy(self) -> None:
        """What has to happen between the end of the children and its own."""

    def _destroy(self) -> None:
        """Closes the object alone, as the C function does: EBUSY where it is in use."""
        with self._guard(f"Failed to destroy {self._kind}"):
            if self._core is None:  # another thread was faster
                return
            self._close_alone()
            self._forget()
        self.logger.debug("Closed %s", self._kind)

    def _close_alone(self) -> None:
        """The device's part of closing; the lock is held."""
        self._bury(self._remains())

    def _remains(self) -> Any:
        """What ``_bury`` needs: the core object."""
        return self._core

    @staticmethod
    def _bury(remains: Any) -> None:
        """Ends the core object; the lock is held. Must not need ``self``: finalizers call it later."""
        remains.close()

    def _forget(self) -> None:
        """Ends this object's life without a word to the device: no core, no parents, no hot methods."""
        context = self._context
        self._core = None
        self._context = None
        if context is not None:
            context._drop_stale_events()
        self._unplug(self._raise_closed)

    def _unplug(self, instead: Callable[..., Any]) -> None:
        for name in self._hot:
            setattr(self, name, instead)

    def _raise_closed(self, *_: object) -> Any:
        raise self._closed()

    @finalizer
    def __del__(self) -> None:
        context = self._context
        if self._core is not None and context is not None:
            remains = self._remains()
            self._core = None  # a weak reference still finds this object, and its events are stale from now on
            bury(context.device, self._bury, remains, context._drop_stale_events)


def bury(
    device: "Device", close: Callable[[Any], None], remains: Any, afterwards: "Callable[[], None] | None" = None
) -> None:
    """Ends the core object of an owner that was garbage, without ever waiting for the device.

    The collector runs anywhere, also in the middle of the device's own work: then the device does it later.

    :param close: called with ``remains``
    :param afterwards: called when that has worked
    """
    if not device.usable():
        return

    def finish() -> None:
        try:
            close(remains)
        except PyverbsRDMAError:  # a child in the same garbage has not been collected yet
            device.deferred.append(finish)
            return
        if afterwards is not None:
            afterwards()

    if device.try_enter():
        try:
            finish()
        finally:
            device.lock.release()
    else:
        device.deferred.append(finish)


#: Children of an object, each closed before it.
Children: TypeAlias = weakref.WeakSet[Resource]
_live: Children = weakref.WeakSet()


def _after_fork() -> None:
    """In a forked child each hot method raises what the device has to say about the fork."""
    for resource in list(_live):
        if resource._context is not None:
            check = resource._context.device.check
            resource._unplug(lambda *_, check=check: check())


os.register_at_fork(after_in_child=_after_fork)
