# SPDX-License-Identifier: MIT
"""Completion counters: how many operations are done, and how many failed."""

import errno
import threading
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from softverbs._interrupts import Shield, finalizer, shielded
from softverbs.core.queues.counters import CompCntr as _Counter
from softverbs.pyverbs._bell import Bell, setter
from softverbs.pyverbs._fields import fill as _fill
from softverbs.pyverbs._fields import instance, integer, reading, refused
from softverbs.pyverbs.base import PyverbsCM, PyverbsObject, PyverbsRDMAError, Resource, bury, reworded
from softverbs.pyverbs.device import Context

_NS_PER_S = 1_000_000_000


class CompCntrInitAttr(PyverbsObject):
    """How a counter is made, ``struct ibv_comp_cntr_init_attr`` of ibv_create_comp_cntr(3)."""

    comp_mask = reading("Which further fields are valid: none, 0.")
    cntr_type = reading("What it counts: IBV_COMP_CNTR_TYPE_WRS or IBV_COMP_CNTR_TYPE_BYTES.")
    flags = reading("Reserved, 0.")

    def __init__(self, comp_mask: int = 0, cntr_type: int = 0, flags: int = 0) -> None:
        """
        :param comp_mask: 0
        :param cntr_type: IBV_COMP_CNTR_TYPE_WRS (0) counts operations, IBV_COMP_CNTR_TYPE_BYTES (1) their bytes
        :param flags: 0
        """
        _fill(self, comp_mask=comp_mask, cntr_type=cntr_type, flags=flags)


class CompCntr(Resource):
    """A completion counter (ibv_create_comp_cntr(3)).

    Its completion count moves when an operation that it is attached to completes, its error count when one completes
    in error; completions + errors is what was retired, signaled or not.
    """

    _kind = "completion counter"
    _verb = "create_comp_cntr"
    _hot = {"_read": "read", "_read_err": "read_err", "_read_pair": "read_pair"}  # noqa: RUF012
    _read: Callable[[], int]
    _read_err: Callable[[], int]
    _read_pair: Callable[[], tuple[int, int]]

    def __init__(self, ctx: Context, attr: CompCntrInitAttr) -> None:
        """
        :param ctx: the open device
        :param attr: how it is made
        :raises PyverbsRDMAError: EINVAL, EOPNOTSUPP, ENOMEM as the manual page has them
        """
        instance(ctx, Context, "CompCntr ctx")
        instance(attr, CompCntrInitAttr, "CompCntr attr")
        with ctx._guard("Failed to create comp_cntr", verb=self._verb) as device:
            core = _Counter(device.port, ctx._core, attr.comp_mask, attr.cntr_type, attr.flags)
            core.user = weakref.ref(self)
            self._start(ctx, core)
            ctx._comp_cntrs.add(self)

    @property
    def handle(self) -> int:
        """Extension (``handle`` of ``struct ibv_comp_cntr``): the device's number for it."""
        return int(self._open().handle)

    # -- ibv_read_comp_cntr(3) and its kin

    def read(self) -> int:
        """The completion count."""
        return self._read()

    def read_err(self) -> int:
        """The error count."""
        return self._read_err()

    def read_pair(self) -> tuple[int, int]:
        """Extension: completion count and error count of one moment."""
        return self._read_pair()

    def set(self, value: int) -> None:
        """Sets the completion count. Updates that come at the same time may be lost.

        :param value: 0 to ``max_value`` of the caps
        """
        value = integer(value, "value", 64)
        with self._guard("Failed to set comp_cntr"):
            self._open().set(value)

    def set_err(self, value: int) -> None:
        """Sets the error count. Updates that come at the same time may be lost.

        :param value: 0 to ``max_value`` of the caps
        """
        value = integer(value, "value", 64)
        with self._guard("Failed to set_err comp_cntr"):
            self._open().set_err(value)

    def inc(self, amount: int) -> None:
        """Adds to the completion count, which wraps to zero beyond ``max_value``; no update is lost.

        :param amount: 0 to ``max_value`` of the caps
        """
        amount = integer(amount, "amount", 64)
        with self._guard("Failed to inc comp_cntr"):
            self._open().inc(amount)

    def inc_err(self, amount: int) -> None:
        """Adds to the error count, which wraps to zero beyond ``max_value``; no update is lost.

        :param amount: 0 to ``max_value`` of the caps
        """
        amount = integer(amount, "amount", 64)
        with self._guard("Failed to inc_err comp_cntr"):
            self._open().inc_err(amount)

    def stall(self, stalled: bool = True) -> None:
        """Extension, for tests: holds updates back from sight, or shows them again. Nothing is lost meanwhile.

        :param stalled: True to hold them back, False to show them
        """
        with self._guard("Failed to stall comp_cntr"):
            self._open().stall(bool(stalled))

    # -- extensions: waiting

    def wait(self, threshold: int, timeout: float | None = None) -> int:
        """Extension: waits until the completion count is at least ``threshold``, and returns the count.

        An error count that moved since it was last read (``read_err``, ``read_pair``, ``set_err``, or a wait that it
        ended) ends the wait at once, unless the threshold is reached: whoever looks at success alone never hangs.

        :param threshold: 0 to ``max_value`` of the caps
        :param timeout: seconds; None or negative: for ever
        :raises PyverbsRDMAError: EIO when the error count has moved, ETIMEDOUT, EINVAL for a threshold beyond
            ``max_value`` and when the counter is closed meanwhile
        """
        CompCntr.wait_any([(self, threshold)], timeout)
        return int(self._open().read())

    @staticmethod
    def wait_any(waits: "Sequence[tuple[CompCntr, int]]", timeout: float | None = None) -> int:
        """Extension: waits for the first of several counters, and returns its position in ``waits``.

        :param waits: counters of one device, each with its threshold, as ``wait`` has them
        :param timeout: seconds; None or negative: for ever
        :raises PyverbsRDMAError: as ``wait`` does; the counter whose error count moved is named by its position
        """
        waits = _checked(waits)
        device = waits[0][0]._device()
        device.check()
        fired: list[int] = []
        try:
            with Shield() as shield:
                over = _first(waits, fired, _nanoseconds(timeout), shield)
        except (PyverbsRDMAError, TypeError, OverflowError) as error:
            raise reworded(error, "Failed to wait for comp_cntr") or error from None
        if fired:
            return _outcome(waits, fired[0])
        if over:
            raise next(counter for counter, _ in waits if counter._core is None)._closed()
        raise refused(_late(waits, timeout), errno.ETIMEDOUT)

    def threshold_fd(self, threshold: int) -> "ThresholdFd":
        """Extension: a file descriptor for ``poll``, epoll or asyncio that becomes readable, once and for good, when
        the completion count is at least ``threshold``, or the error count has moved (see ``wait``); at once where
        that holds already.

        :param threshold: 0 to ``max_value`` of the caps
        """
        return ThresholdFd(self, threshold)

    async def reached(self, threshold: int) -> int:
        """Extension: ``wait`` for asyncio, without a time-out of its own (``asyncio.wait_for`` has one).

        :param threshold: 0 to ``max_value`` of the caps
        """
        import asyncio

        fired = asyncio.Event()
        waits = _checked([(self, threshold)])
        watch = None
        try:
            with self._guard("Failed to wait for comp_cntr"):
                core = self._open()
                watch = core.watch(waits[0][1], setter(fired))
            await fired.wait()
        finally:
            if self._core is not None and watch is not None:
                with self._guard("Failed to wait for comp_cntr"):
                    core.unwatch(watch)
        _outcome(waits, 0)
        return int(self._open().read())


def _first(waits: "Sequence[tuple[CompCntr, int]]", fired: list[int], timeout: int | None, shield: Shield) -> bool:
    """Waits until the position of a counter is in ``fired`` or one is closed; False where the time has passed."""
    device = waits[0][0]._device()
    watches: list[tuple[Any, Any]] = []
    try:
        with device.lock:
            for position, (counter, threshold) in enumerate(waits):
                core = counter._open()
                watches.append((core, core.watch(threshold, _Note(fired, position, device.wake))))
        return device.wait_until(
            lambda: bool(fired) or any(counter._core is None for counter, _ in waits), timeout, shield
        )
    finally:
        with device.lock:
            for core, watch in watches:
                core.unwatch(watch)


class _Note:
    """A watch's callback: notes its position. The core calls it with the device's lock held."""

    __slots__ = ("_fired", "_position", "_waiter", "_wake")

    def __init__(self, fired: list[int], position: int, wake: Callable[[], None]) -> None:
        self._fired = fired
        self._position = position
        self._wake = wake
        self._waiter = threading.get_ident()

    def __call__(self, core: object) -> None:
        self._fired.append(self._position)
        if threading.get_ident() != self._waiter:
            self._wake()


class ThresholdFd(PyverbsCM):
    """Extension: a descriptor that becomes readable once a counter has reached a threshold. One use."""

    def __init__(self, counter: CompCntr, threshold: int) -> None:
        """
        :param counter: the counter
        :param threshold: see ``CompCntr.threshold_fd``
        """
        instance(counter, CompCntr, "ThresholdFd counter")
        waits = _checked([(counter, threshold)])
        self._counter: CompCntr | None = counter
        self._threshold = waits[0][1]
        with counter._guard("Failed to watch comp_cntr"):
            self._bell = bell = Bell()
            self._core = counter._open()
            self._watch = self._core.watch(self._threshold, lambda _: bell.ring())

    def fileno(self) -> int:
        """The descriptor; -1 when closed."""
        return self._bell.fd

    @property
    def reached(self) -> bool:
        """Whether the completion count is at the threshold now; False where an error made it readable."""
        return self._counter is not None and self._counter.read() >= self._threshold

    @finalizer
    def __del__(self) -> None:
        counter, watch = getattr(self, "_counter", None), getattr(self, "_watch", None)
        if counter is not None and watch is not None and counter._context is not None:
            bury(counter._context.device, self._core.unwatch, watch)

    @shielded
    def close(self) -> None:
        """Closes the descriptor and stops watching. Twice does nothing."""
        counter, self._counter = self._counter, None
        if counter is not None and counter._core is not None and counter._device().usable():
            with counter._guard("Failed to unwatch comp_cntr"):
                self._core.unwatch(self._watch)
        self._bell.close()


def _checked(waits: Any) -> list[tuple[CompCntr, int]]:
    """``waits`` as it should be: at least one, open, of one device, thresholds that are integers of 64 bits."""
    result: list[tuple[CompCntr, int]] = []
    if not isinstance(waits, Iterable):
        raise refused(f"Failed to wait for comp_cntr: {waits!r} is no list of counters and thresholds")
    for item in waits:
        try:
            counter, threshold = item
        except (TypeError, ValueError):
            raise refused(f"Failed to wait for comp_cntr: {item!r} is not a counter and its threshold") from None
        instance(counter, CompCntr, "counter")
        result.append((counter, integer(threshold, "threshold", 64)))
    if not result:
        raise refused("Failed to wait for comp_cntr: no counter was given")
    devices = {id(counter._device()) for counter, _ in result}
    if len(devices) > 1:
        raise refused("Failed to wait for comp_cntr: the counters are of different devices")
    return result


def _nanoseconds(timeout: float | None) -> int | None:
    if timeout is None:
        return None
    try:
        return None if timeout < 0 else int(timeout * _NS_PER_S)
    except (TypeError, ValueError, OverflowError):
        raise refused(f"timeout is {timeout!r}: seconds are expected, or None") from None


def _outcome(waits: Sequence[tuple[CompCntr, int]], position: int) -> int:
    """``position`` if that counter reached its threshold; EIO if its error count moved instead."""
    counter, threshold = waits[position]
    core = counter._open()
    if core.read() >= threshold:
        return position
    completions, errors = core.read_pair()  # from now on the application knows of these errors
    where = f"counter {position} of {len(waits)}: " if len(waits) > 1 else ""
    raise refused(
        f"{where}the error count moved, it is {errors} now, while waiting for {threshold} completions, "
        f"of which {completions} came",
        errno.EIO,
    )


def _late(waits: Sequence[tuple[CompCntr, int]], timeout: float | None) -> str:
    """What a time-out has to say: how far each counter came."""
    states = ", ".join(f"{counter._open().read()} of {threshold} completions" for counter, threshold in waits)
    return f"no counter reached its threshold within {timeout} s: {states}"
