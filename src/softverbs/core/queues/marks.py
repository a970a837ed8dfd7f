# SPDX-License-Identifier: MIT
"""Which queues a program has posted to: bytes in memory that it shares with the device.

A device that looked at every queue for new work requests would do work that grows with the queues that are idle. So a
program that has stored the tail of a queue marks the queue, and the device looks at the marks. Queues are numbered
densely, and number ``n`` has byte ``n``. The bytes form an implicit tree: the children of byte ``n`` are the 64 bytes
(one cache line) from ``64 * (n + 1)`` on, and the first 64 bytes have no parent. A program sets the byte of its queue
and then those of the byte's ancestors; the device looks at the first line, and at another one only where its parent is
set. A program with up to 64 queues stores one byte more than the tail.

No byte needs an atomic read-modify-write, since 1 is all that a program stores and 0 all that the device stores:

* the program stores the tail, then its byte, then the parent's, each behind the one before (release), and then looks,
  behind a full barrier, whether the device sleeps;
* the device clears a byte, and then looks, behind a full barrier, at its children and at the tail of its queue.

A 1 that the device overwrites was stored before the 0, so what its program has stored before that is seen by what the
device loads behind the barrier. Nothing here is believed: a byte that is set for nothing costs one look at a queue, and
those that belong to no queue are not looked at.
"""

import errno
from typing import Any

try:
    import cython
except ImportError:
    from softverbs import _cython as cython
from softverbs.core.base.errors import PyverbsRDMAError

if not cython.compiled:
    from softverbs.core.memory.raw import barrier, load8, load64, store8

#: Bytes of a line, which have one parent.
LINE = 64
_WORD = 8
#: The same for Python: the name above is a C variable where the core is compiled.
VALUES = {"LINE": LINE}


class Marks:
    """The marks of one program, and the queues that they stand for."""

    def __init__(self, address: int, size: int, holder: object) -> None:
        """
        :param address: of zeroed memory that the program maps, too; a multiple of 64
        :param size: bytes, a multiple of 64: most queues
        :param holder: kept alive as long as it is used
        """
        self.address = address
        self.size = size
        self.holder = holder
        #: By number. Those that were given back are None, and in ``free``.
        self.queues: list[Any] = []
        #: Whether anything was marked since ``take_used``.
        self.used = True
        self.free: list[int] = []

    def enter(self, queue: object) -> int:
        """Gives a queue, which nothing was posted to yet, its number.

        :raises PyverbsRDMAError: ENOMEM where there are as many as there are bytes
        """
        if self.free:
            number = self.free.pop()
            self.queues[number] = queue
        elif len(self.queues) < self.size:
            number = len(self.queues)
            self.queues.append(queue)
        else:
            raise PyverbsRDMAError(f"{self.size} queues of one program are the most", errno.ENOMEM)
        return number

    def leave(self, number: int) -> None:
        """A queue is gone, or not to be looked at any more. Twice does nothing."""
        if self.queues[number] is not None:
            self.queues[number] = None
            self.free.append(number)

    def set(self, number: int) -> None:
        """Marks a queue, as its program does."""
        at: int = number
        store8(self.address + at, 1)
        while at >= LINE:
            at = at // LINE - 1
            store8(self.address + at, 1)

    def restore(self, number: int, found: int) -> None:
        """Marks queues again: those from ``number`` on whose bits are set in ``found``."""
        while found != 0:
            if found & 1:
                self.set(number)
            found >>= 1
            number += 1

    def is_set(self) -> bool:
        """Whether any queue is marked."""
        count = min(len(self.queues), LINE)
        offset = 0
        while offset < count:
            if load64(self.address + offset) != 0:
                return True
            offset += _WORD
        return False

    def clear(self, first: int) -> int:
        """Clears a line and says what was set there: bit ``i`` for byte ``first + i``.

        What is loaded from then on, of the queues and of the lines below, is as new as the marks that were cleared.
        """
        found = 0
        bit = 1
        at = self.address + first
        count = min(len(self.queues) - first, LINE)
        offset = 0
        while offset < count:
            if load64(at + offset) != 0:
                for index in range(offset, min(offset + _WORD, count)):
                    if load8(at + index) != 0:
                        store8(at + index, 0)
                        found |= bit << index
            offset += _WORD
        if found != 0:
            self.used = True
            barrier()
        return found

    def take_used(self) -> bool:
        """Whether anything was marked since the last time."""
        used = self.used
        self.used = False
        return used
