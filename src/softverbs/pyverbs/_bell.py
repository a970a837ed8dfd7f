# SPDX-License-Identifier: MIT
"""A file descriptor that is readable while something waits: what ``poll`` and asyncio look at."""

import contextlib
import os
import select
from collections.abc import Callable
from typing import TYPE_CHECKING

from softverbs._interrupts import finalizer

if TYPE_CHECKING:
    import asyncio


async def readable(fd: int) -> None:
    """Waits, in asyncio, until a descriptor is readable.

    :param fd: the descriptor, which no other task may wait for
    """
    import asyncio

    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    loop.add_reader(fd, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(fd)


def setter(event: "asyncio.Event") -> Callable[..., None]:
    """What sets an event of the running loop from any thread; nothing happens once the loop is closed.

    :param event: the event
    """
    import asyncio

    loop = asyncio.get_running_loop()

    def set_it(*_: object) -> None:
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(event.set)

    return set_it


class Bell:
    """An event descriptor (eventfd(2)). Its owner rings it and silences it with the device's lock held.

    It keeps no reference to its owner, so that the core may hold its ``ring`` for as long as it likes.
    """

    def __init__(self) -> None:
        self.fd = os.eventfd(0, os.EFD_CLOEXEC)
        self._rings = False

    def ring(self) -> None:
        """Makes the descriptor readable."""
        if not self._rings and self.fd >= 0:
            self._rings = True
            os.eventfd_write(self.fd, 1)

    def silence(self) -> None:
        """Makes it unreadable again. Whoever read the descriptor itself has only read a hint."""
        if self._rings and self.fd >= 0:
            self._rings = False
            poller = select.poll()
            poller.register(self.fd, select.POLLIN)
            if poller.poll(0):
                os.eventfd_read(self.fd)

    def blocking(self) -> bool:
        """Whether whoever asks and finds nothing wants to wait: O_NONBLOCK is not set on the descriptor."""
        return os.get_blocking(self.fd)

    def close(self) -> None:
        """Closes the descriptor. Twice does nothing."""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)

    @finalizer
    def __del__(self) -> None:
        self.close()
