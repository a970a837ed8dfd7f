# SPDX-License-Identifier: MIT
"""What tells the objects of one context from those of another, and the descriptor by which a context is imported."""

import errno
import os
import weakref
from typing import TYPE_CHECKING, TypeAlias

from softverbs._interrupts import shielded
from softverbs.pyverbs._fields import integer, refused

if TYPE_CHECKING:
    from softverbs.device import Device
    from softverbs.pyverbs.device import Context

_Key: TypeAlias = tuple[int, int]


class Identity:
    """What the core knows of a context: objects of one context have the same, and so have those of the contexts that
    were imported from it.
    """

    __slots__ = ("__weakref__", "_fd", "_key", "contexts", "device")

    def __init__(self, device: "Device") -> None:
        """
        :param device: that is open
        """
        self.device = device
        #: The context, and those that were imported from it, while they are open.
        self.contexts: weakref.WeakSet[Context] = weakref.WeakSet()
        self._fd = -1
        self._key: _Key | None = None

    @property
    @shielded
    def fd(self) -> int:
        """The descriptor that stands for the context, made when it is first asked for: a file in memory, which its
        duplicates share.
        """
        if self._fd < 0:
            self._fd = os.memfd_create(f"{self.device.name} cmd_fd", os.MFD_CLOEXEC)
            self._key = _key(self._fd)
            os.write(self._fd, f"device {self.device.name} of process {os.getpid()}\n".encode())
            _exported[self._key] = self
        return self._fd

    def leave(self, context: "Context") -> None:
        """A context is closed; with the last one goes the descriptor."""
        self.contexts.discard(context)
        # A set that is garbage with its member still counts it; to iterate finds those that are alive.
        if self._fd >= 0 and not any(True for _ in self.contexts):
            if self._key is not None:
                _exported.pop(self._key, None)
            fd, self._fd = self._fd, -1
            os.close(fd)


def _key(fd: int) -> _Key:
    found = os.fstat(fd)
    return found.st_dev, found.st_ino


_exported: "weakref.WeakValueDictionary[_Key, Identity]" = weakref.WeakValueDictionary()


def _owner(fd: int) -> str:
    """Whose a descriptor is that is not known here, for a message; "" for one that never was a context's."""
    try:
        text = os.pread(fd, 80, 0)
    except OSError:  # a pipe, for instance
        return ""
    return f"{text.decode(errors='replace').strip()}: " if text.startswith(b"device ") else ""


def imported(cmd_fd: int) -> Identity:
    """The context that a duplicate of its ``cmd_fd`` stands for.

    :param cmd_fd: the duplicate
    :raises PyverbsRDMAError: EBADF, ENODEV where it is none of a context that is open in this process, EINVAL where it
        is no duplicate
    """
    what = "Failed to import device"
    fd = integer(cmd_fd, f"{what}: cmd_fd", signed=True)
    try:
        found = _exported.get(_key(fd))
    except OSError as error:
        raise refused(f"{what}: cmd_fd={fd}: {error.strerror}", error.errno or errno.EBADF) from None
    if found is None or not found.contexts:
        raise refused(f"{what}: cmd_fd={fd}: {_owner(fd)}no open context of this process has it", errno.ENODEV)
    if fd == found.fd:
        raise refused(f"{what}: cmd_fd={fd} is the context's own; os.dup() it first, since closing closes it")
    return found
