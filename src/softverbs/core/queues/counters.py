# SPDX-License-Identifier: MIT
"""Completion counters (ibv_create_comp_cntr(3)): two numbers for the same events, with nothing to poll.

They are moved by ``completion.complete``, before the completion queue's entry can be seen (semantics.md, 1).

The counts may be kept elsewhere too. Memory of this process is written at once, and so is a page that is shared with a
program. Where the counts are kept in memory of that program as well (efadv_create_comp_cntr(3)), which takes a system
call, both are written once for each turn of progress, by ``place``, before completions are shown to any program.
"""

import errno
from collections import deque
from collections.abc import Callable
from typing import Any

try:
    import cython
except ImportError:
    from softverbs import _cython as cython
from softverbs.core.base.errors import PyverbsRDMAError

if not cython.compiled:
    from softverbs.core.base.constants import WC_SUCCESS
    from softverbs.core.base.host import Host
    from softverbs.core.memory.raw import store64
    from softverbs.core.memory.spaces import explain, is_far, place_word

#: ``enum ibv_comp_cntr_type``.
COUNT_WRS = 0
COUNT_BYTES = 1

#: Where the error count is in a page, and which counts can no longer be stored in the program's memory (bits).
PAGE_ERRORS = 8
PAGE_LOST = 16
LOST_VALUE = 1
LOST_ERRORS = 2
#: The same for Python, where the module is compiled.
VALUES = {
    "PAGE_ERRORS": PAGE_ERRORS, "PAGE_LOST": PAGE_LOST, "LOST_VALUE": LOST_VALUE, "LOST_ERRORS": LOST_ERRORS,
}  # fmt: skip


class CompCntr:
    """A completion counter (ibv_create_comp_cntr(3)): a completion count and an error count of the same events."""

    def __init__(self, port: Host, context_id: object, comp_mask: int, type: int, flags: int) -> None:
        """
        :param port: the port that it belongs to
        :param context_id: the same for all objects of one context
        :param comp_mask: 0
        :param type: ``COUNT_WRS`` or ``COUNT_BYTES``
        :param flags: 0
        :raises PyverbsRDMAError: EINVAL, EOPNOTSUPP, ENOMEM as the manual page has them
        """
        if comp_mask != 0:
            raise PyverbsRDMAError(f"comp_mask={comp_mask:#x}: no bit of it is known", errno.EINVAL)
        if flags != 0:
            raise PyverbsRDMAError(f"flags={flags:#x}: they are reserved and must be 0", errno.EINVAL)
        if type not in (COUNT_WRS, COUNT_BYTES):
            raise PyverbsRDMAError(f"type={type}: WRS (0) and BYTES (1) are supported", errno.EOPNOTSUPP)
        self.port = port
        self.context_id = context_id
        self.type = type
        self.max_value = port.options.counter_max_value
        self.delay = port.options.counter_delay_ns
        self.value = 0
        self.errors = 0
        self.visible_value = 0
        self.visible_errors = 0
        self.seen_errors = 0
        self.stalled = False
        self.late = self.delay > 0
        self.pending: deque[tuple[int, int, int]] = deque()
        self.watchers: list[Watch] = []
        self.attached = 0
        #: Where the visible counts are stored, too; 0: nowhere. Multiples of 8, both here or both far (``spaces``).
        self.value_address = 0
        self.error_address = 0
        #: A page that shows both counts to a program, from its beginning; 0: none.
        self.page = 0
        self.page_holder: object = None
        #: What the far addresses have now, whether that is out of date or to be stored anyhow, and what is lost.
        self.placed_value = 0
        self.placed_errors = 0
        self.unplaced = False
        self.overwrite = False
        self.lost = 0
        self.closed = False
        self.user: Any = None
        self.handle = port.enter("completion counter", port.options.max_counters)

    # -- the device's side

    def record(self, status: int, payload: int) -> None:
        """One work request, or one inbound operation, is done."""
        if status != WC_SUCCESS:
            self.errors = self._plus(self.errors, 1)
        elif self.type == COUNT_BYTES:
            self.value = self._plus(self.value, payload)
        else:
            self.value = self._plus(self.value, 1)
        self._changed()

    def _plus(self, value: int, amount: int) -> int:
        """The sum modulo ``max_value + 1``, without passing 64 bits on the way."""
        if amount <= self.max_value - value:
            return value + amount
        amount -= self.max_value - value
        amount -= 1
        if amount > self.max_value:  # only where max_value is small
            amount %= self.max_value + 1
        return amount

    def _changed(self) -> None:
        if self.port.plan is not None:
            self.port.plan.on_counter(self)
        if self.late:
            self.port.delay_counter(self)
            self.pending.append((self.port.now + self.delay, self.value, self.errors))
            return
        self._show(self.value, self.errors)

    def _show(self, value: int, errors: int) -> None:
        self.visible_value = value
        self.visible_errors = errors
        if is_far(self.value_address | self.error_address):
            if not self.unplaced:
                self.unplaced = True
                self.port.unplaced_counters.append(self)
        else:
            self._store()
        if self.watchers:
            self._wake()

    def _store(self) -> None:
        """Stores the visible counts in this process."""
        if self.value_address:
            store64(self.value_address, self.visible_value)
        if self.error_address:
            store64(self.error_address, self.visible_errors)
        if self.page:
            store64(self.page, self.visible_value)
            store64(self.page + PAGE_ERRORS, self.visible_errors)

    def place(self) -> None:
        """Stores the visible counts in the memory of another process, and then in the page: who reads the page finds
        the memory up to date.

        Memory that cannot be written is not tried again: what is mapped there later is something else.
        """
        self.unplaced = False
        if self.value_address and (self.overwrite or self.placed_value != self.visible_value):
            if not place_word(self.value_address, self.visible_value):
                self._lose(LOST_VALUE)
        if self.error_address and (self.overwrite or self.placed_errors != self.visible_errors):
            if not place_word(self.error_address, self.visible_errors):
                self._lose(LOST_ERRORS)
        self.overwrite = False
        self.placed_value = self.visible_value
        self.placed_errors = self.visible_errors
        if self.page:
            store64(self.page, self.visible_value)
            store64(self.page + PAGE_ERRORS, self.visible_errors)

    def _lose(self, lost: int) -> None:
        """One of the counts cannot be stored any more."""
        self.lost |= lost
        if lost == LOST_VALUE:
            self.value_address = 0
        else:
            self.error_address = 0
        if self.page:
            store64(self.page + PAGE_LOST, self.lost)
        self.port.counts_lost += 1
        name = "completion" if lost == LOST_VALUE else "error"
        self.port.report(f"completion counter {self.handle}: its {name} count is no longer stored: {explain()}")

    def keep(self, value_address: int, error_address: int) -> None:
        """Keeps the counts in memory of another process, too (efadv_create_comp_cntr(3)), which is zeroed now.

        :param value_address: a far address for the completion count, a multiple of 8; 0: none
        :param error_address: the same for the error count
        :raises PyverbsRDMAError: EFAULT where that memory cannot be written
        """
        if value_address and not place_word(value_address, 0):
            raise PyverbsRDMAError(f"the completion count: {explain()}", errno.EFAULT)
        if error_address and not place_word(error_address, 0):
            raise PyverbsRDMAError(f"the error count: {explain()}", errno.EFAULT)
        self.value_address = value_address
        self.error_address = error_address

    def show(self, page: int, holder: object) -> None:
        """Shows both counts in a page that a program maps.

        :param page: its address; it is all zeros
        :param holder: kept alive as long as it is used
        """
        self.page_holder = holder
        self.page = page

    def _wake(self) -> None:
        for watch in [watch for watch in self.watchers if self._reached(watch.threshold)]:
            self.watchers.remove(watch)
            watch.callback(self)

    def _reached(self, threshold: int) -> bool:
        return self.visible_value >= threshold or self.visible_errors != self.seen_errors

    def publish(self, now: int) -> int:
        """Makes the updates visible whose delay is over; when the next is due, or -1."""
        shown = False
        value = 0
        errors = 0
        while self.pending and self.pending[0][0] <= now:
            if self.stalled:
                return -1
            _, value, errors = self.pending.popleft()
            shown = True
        if shown:
            self._show(value, errors)
        self.late = self.stalled or self.delay > 0 or len(self.pending) > 0
        return self.pending[0][0] if self.pending else -1

    # -- the application's side

    def read(self) -> int:
        """The completion count (ibv_read_comp_cntr(3))."""
        self._drive()
        return self.visible_value

    def read_err(self) -> int:
        """The error count (ibv_read_err_comp_cntr(3))."""
        self._drive()
        self.seen_errors = self.visible_errors
        return self.visible_errors

    def read_pair(self) -> tuple[int, int]:
        """Extension: completion count and error count of one moment."""
        self._drive()
        self.seen_errors = self.visible_errors
        return self.visible_value, self.visible_errors

    def _drive(self) -> None:
        port = self.port
        port.lock.acquire()
        try:
            port.drive()
        finally:
            port.lock.release()

    def set(self, value: int) -> None:
        """Sets the completion count (ibv_set_comp_cntr(3)). EINVAL beyond ``max_value``."""
        self.value = self._checked(value, "value")
        self.overwrite = True
        self._changed()

    def set_err(self, value: int) -> None:
        """Sets the error count (ibv_set_err_comp_cntr(3)). EINVAL beyond ``max_value``."""
        self.errors = self._checked(value, "value")
        self.seen_errors = self.errors
        self.overwrite = True
        self._changed()

    def inc(self, amount: int) -> None:
        """Adds to the completion count (ibv_inc_comp_cntr(3)). EINVAL where ``amount`` is beyond ``max_value``."""
        self.value = self._plus(self.value, self._checked(amount, "amount"))
        self._changed()

    def inc_err(self, amount: int) -> None:
        """Adds to the error count (ibv_inc_err_comp_cntr(3)). EINVAL where ``amount`` is beyond ``max_value``."""
        self.errors = self._plus(self.errors, self._checked(amount, "amount"))
        self._changed()

    def _checked(self, value: int, name: str) -> int:
        if not 0 <= value <= self.max_value:
            raise PyverbsRDMAError(f"{name}={value} is beyond the counter's max_value, {self.max_value}", errno.EINVAL)
        return value

    def stall(self, stalled: bool) -> None:
        """Extension, for tests: holds every update back from sight until it is called with False."""
        self.stalled = stalled
        self.late = stalled or self.delay > 0 or len(self.pending) > 0
        if not stalled:
            self.port.delay_counter(self)

    def watch(self, threshold: int, callback: "Callable[[CompCntr], None]") -> "Watch":
        """Calls ``callback`` once, with the device's lock held, when the completion count is at least ``threshold``
        or an error is there that the application has not read yet; at once where that holds already.

        :raises PyverbsRDMAError: EINVAL where the threshold is beyond ``max_value``
        """
        watch = Watch(self._checked(threshold, "threshold"), callback)
        if self._reached(watch.threshold):
            callback(self)
        else:
            self.watchers.append(watch)
        return watch

    def unwatch(self, watch: "Watch") -> None:
        """Takes a watch back; one that has fired is no error."""
        if watch in self.watchers:
            self.watchers.remove(watch)

    def close(self) -> None:
        """Ends the counter (ibv_destroy_comp_cntr(3)).

        :raises PyverbsRDMAError: EBUSY while it is attached to a QP
        """
        if self.closed:
            return
        if self.attached:
            raise PyverbsRDMAError(
                f"counter {self.handle} is attached to {self.attached} (QP, operation) pairs: destroy the QPs first",
                errno.EBUSY,
            )
        self.closed = True
        # An update that is still to come must touch nothing: a space may be another program's by then.
        self.value_address = 0
        self.error_address = 0
        self.page = 0
        self.page_holder = None
        self.port.leave("completion counter")


class Watch:
    """Somebody who waits for a counter: its threshold, and whom to call."""

    def __init__(self, threshold: int, callback: Callable[[CompCntr], None]) -> None:
        self.threshold = threshold
        self.callback = callback
