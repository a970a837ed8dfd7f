# SPDX-License-Identifier: MIT
"""Device memory: a little memory of the device's own (ibv_alloc_dm(3)); ``pyverbs.device`` has these names too."""

import contextlib
import ctypes
import errno
import math
import os
from collections.abc import Iterator
from typing import Any

from softverbs.core.memory.device_memory import DeviceMemory
from softverbs.pyverbs._fields import Field, instance, integer, refused
from softverbs.pyverbs._importable import Importable
from softverbs.pyverbs.base import Children, PyverbsObject, reworded
from softverbs.pyverbs.device import Context
from softverbs.pyverbs.pyverbs_error import PyverbsRDMAError, PyverbsUserError


def whole(value: Any) -> Any:
    """A size: fractions are cut off, as pyverbs does with them here."""
    return int(value) if isinstance(value, float) and math.isfinite(value) else value


class AllocDmAttr(PyverbsObject):
    """How device memory is made, ``struct ibv_alloc_dm_attr`` of ibv_alloc_dm(3)."""

    log_align_req = Field("Log base 2 of the alignment that its address needs.")
    comp_mask = Field("Must be 0.")

    def __init__(self, length: int, log_align_req: int = 0, comp_mask: int = 0) -> None:
        """
        :param length: bytes
        :param log_align_req: log base 2 of the alignment that its address needs, for atomics
        :param comp_mask: 0
        """
        self.length = length
        self.log_align_req = log_align_req
        self.comp_mask = comp_mask

    @property
    def length(self) -> int:
        """Bytes."""
        return self._length

    @length.setter
    def length(self, value: int) -> None:
        self._length = integer(whole(value), "AllocDmAttr.length", 64)


class DM(Importable):
    """Device memory, ``struct ibv_dm`` (ibv_alloc_dm(3)). ``DMMR`` registers it.

    A forked child may take device memory of a context that its parent opened, and copy to and from it: it is memory
    of the child's own. Nothing else of the parent's context works in a child.
    """

    _kind = "DM"
    _children = ("_dm_mrs",)
    _dm_mrs: Children
    #: The forked child whose own it is; 0: the device's.
    _child = 0

    def __init__(self, context: Context, dm_attr: AllocDmAttr | None = None, **kwargs: Any) -> None:
        """
        :param context: the open device
        :param dm_attr: how it is made
        :param kwargs: ``handle``: import the memory of this handle, of a context that shares this one's objects
            (ibv_import_dm(3))
        :raises PyverbsUserError: where the device has no memory
        :raises PyverbsRDMAError: EINVAL for impossible values, ENOMEM for more than ``max_dm_size`` in all
        """
        instance(context, Context, "DM context")
        if kwargs.keys() - {"handle"}:
            raise PyverbsUserError(f"DM has no argument {', '.join(sorted(kwargs))}")
        if kwargs.get("handle") is not None:
            self._import(context, integer(kwargs["handle"], "handle"))
            return
        instance(dm_attr, AllocDmAttr, "DM dm_attr")
        assert dm_attr is not None
        most = context._device().options.max_dm_size
        if most <= 0:
            raise PyverbsUserError("Device doesn't support dm allocation: its option max_dm_size is 0")
        what = f"Failed to allocate device memory of size {dm_attr.length}. Max available size {most}"
        device = context.device
        self._child = 0 if device._pid == os.getpid() else os.getpid()
        with self._alone(what) if self._child else context._guard(what, verb="alloc_dm", size=dm_attr.length):
            if dm_attr.comp_mask:
                raise refused(f"comp_mask={dm_attr.comp_mask:#x}: no bit of it is known")
            core = DeviceMemory(device.port, context._core, dm_attr.length, dm_attr.log_align_req)
            self._start(context, core)
            context._dms.add(self)

    def _import(self, context: Context, handle: int) -> None:
        with context._guard("Failed to import DM", verb="import_dm"):
            for other in context._family():
                for dm in other._dms:
                    if isinstance(dm, DM) and dm._core is not None and dm._core.handle == handle:
                        self._imported = True
                        self._start(context, dm._core)
                        context._dms.add(self)
                        return
            raise refused(f"the context has no device memory with handle {handle}")

    @staticmethod
    @contextlib.contextmanager
    def _alone(what: str) -> Iterator[None]:
        """A guard for what a forked child does with memory of its own: there is no device whose lock could be taken."""
        try:
            yield
        except PyverbsRDMAError as error:
            raise reworded(error, what) or error from None

    def _copying(self, what: str, verb: str) -> Any:
        if self._core is not None and self._child and self._child == os.getpid():
            return self._alone(what)
        return self._guard(what, verb=verb)

    @property
    def handle(self) -> int:
        """The device's number for it."""
        return int(self._open().handle)

    @property
    def length(self) -> int:
        """Extension: bytes."""
        return int(self._open().length)

    def copy_to_dm(self, dm_offset: int, data: Any, length: int) -> None:
        """Copies into it (ibv_memcpy_to_dm(3)).

        :param dm_offset: from its first byte, a multiple of 4
        :param data: bytes
        :param length: how many bytes of them, a multiple of 4
        :raises PyverbsRDMAError: EINVAL outside of it, or where it is not made of words of 4 bytes
        """
        offset, size = integer(dm_offset, "dm_offset", 64), integer(length, "length", 64)
        with self._copying("Failed to copy to dm", "memcpy_to_dm"):
            try:
                source = bytes(memoryview(data))
            except TypeError:
                raise refused(f"data is {type(data).__name__}: bytes are expected") from None
            if size > len(source):
                raise refused(f"{size} bytes, but data has {len(source)}")
            ctypes.memmove(self._open().at(offset, size), source, size)

    def copy_from_dm(self, dm_offset: int, length: int) -> bytes:
        """Copies out of it (ibv_memcpy_from_dm(3)).

        :param dm_offset: from its first byte, a multiple of 4
        :param length: bytes, a multiple of 4
        :raises PyverbsRDMAError: EINVAL outside of it, or where it is not made of words of 4 bytes
        """
        offset, size = integer(dm_offset, "dm_offset", 64), integer(length, "length", 64)
        with self._copying("Failed to copy from dm", "memcpy_from_dm"):
            return ctypes.string_at(self._open().at(offset, size), size)

    def export_dmabuf_fd(self) -> int:
        """Refused with EOPNOTSUPP: the memory is the device's, and no file."""
        self._open()
        raise refused("Failed to export dmabuf FD for DM: this device makes no DMA-BUF", errno.EOPNOTSUPP)
