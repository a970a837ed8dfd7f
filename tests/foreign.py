# SPDX-License-Identifier: MIT
"""A forked child whose memory a device in this process works on: it does what it is told, and nothing by itself."""

import ctypes
import mmap
import os
import signal
import sys
import warnings
from collections.abc import Callable
from multiprocessing import Pipe
from typing import Any

from tests.guard import Guard
from tests.netsim.sim import ALL, Node

from softverbs.core.memory import spaces
from softverbs.core.memory.regions import MemoryRegion, ProtectionDomain

PAGE = mmap.PAGESIZE
READ_ONLY = mmap.PROT_READ
_libc = ctypes.CDLL(None, use_errno=True)


class Child:
    """The child, with ``size`` bytes of memory at ``address``; the same address here is other memory, all zeros."""

    def __init__(self, size: int, **tasks: Callable[..., Any]) -> None:
        """tasks: what ``call`` can ask for besides; they run in the child."""
        self.size = size
        self.memory = mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))
        self._tasks: dict[str, Callable[..., Any]] = {
            "at": self._at, "put": self._put, "unmap": self._unmap, "protect": self._protect, **tasks,
        }  # fmt: skip
        self._pipe, other = Pipe()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # 3.12: forking a process that has threads
            self.pid = os.fork()
        if self.pid == 0:
            self._serve(other)
        other.close()
        self.guard: tuple[int, int] = self._pipe.recv()
        self.space = spaces.enter(self.pid, *self.guard)

    def _serve(self, pipe: Any) -> None:
        try:
            self._pipe.close()
            guard = Guard()
            pipe.send((guard.address, guard.secret))
            while True:
                name, arguments = pipe.recv()
                pipe.send(self._tasks[name](*arguments))
        except EOFError:
            os._exit(0)
        finally:
            os._exit(1)

    def _at(self, offset: int, length: int) -> bytes:
        return self.memory[offset : offset + length]

    def _put(self, offset: int, data: bytes) -> None:
        self.memory[offset : offset + len(data)] = data

    def _unmap(self, offset: int, length: int) -> int:
        return int(_libc.munmap(ctypes.c_void_p(self.address + offset), ctypes.c_size_t(length)))

    def _protect(self, offset: int, length: int, protection: int) -> int:
        return int(_libc.mprotect(ctypes.c_void_p(self.address + offset), ctypes.c_size_t(length), protection))

    def call(self, name: str, *arguments: Any) -> Any:
        """Has the child do something; its result."""
        self._pipe.send((name, arguments))
        return self._pipe.recv()

    def kill(self) -> None:
        """Ends it at once."""
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
            self.pid = 0

    def __enter__(self) -> "Child":
        return self

    def __exit__(self, *exc: object) -> None:
        self._pipe.close()
        self.kill()
        spaces.leave(self.space)


class ForeignRegion:
    """Registered memory of a child, as ``netsim.sim.Region`` is of this process; ``at`` and ``put`` ask the child."""

    def __init__(
        self, node: Node, pd: ProtectionDomain, child: Child, access: int = ALL, iova: int = 0x10000, offset: int = 0,
        size: int = 0,
    ) -> None:  # fmt: skip
        self.node, self.child, self.iova, self.offset = node, child, iova, offset
        self.size = size or child.size - offset
        self.address = child.address + offset
        self.mr: MemoryRegion = node.port.regions.register(
            pd, self.address, self.size, access, iova, None, 0, child.space
        )

    @property
    def key(self) -> int:
        return self.mr.lkey

    def untouched(self) -> bool:
        """Whether this process has not been written to instead."""
        return self.child.memory[:] == bytes(self.child.size)

    def at(self, offset: int, length: int) -> bytes:
        return bytes(self.child.call("at", self.offset + offset, length))

    def put(self, offset: int, data: bytes) -> None:
        self.child.call("put", self.offset + offset, data)

    def word(self, offset: int) -> int:
        return int.from_bytes(self.at(offset, 8), sys.byteorder)

    def unmap(self, offset: int, length: int = PAGE) -> None:
        assert self.child.call("unmap", self.offset + offset, length) == 0

    def protect(self, offset: int, protection: int, length: int = PAGE) -> None:
        assert self.child.call("protect", self.offset + offset, length, protection) == 0

    def deregister(self) -> None:
        self.node.port.regions.deregister(self.mr)
