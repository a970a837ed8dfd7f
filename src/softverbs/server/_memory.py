# SPDX-License-Identifier: MIT
"""Memory that the device shares with one program, and what a program has mapped."""

import ctypes
import errno
import fcntl
import os
import sys
from collections.abc import Callable

from softverbs._interrupts import finalizer
from softverbs.core.base.errors import PyverbsRDMAError
from softverbs.core.memory import spaces
from softverbs.core.memory.raw import store32, store64

PAGE = 4096
_ADD_SEALS = 1033  # F_ADD_SEALS; the fcntl module of older Pythons does not have these
_SEALS = 0x1 | 0x2 | 0x4  # F_SEAL_SEAL, F_SEAL_SHRINK, F_SEAL_GROW
_PROT_READ_WRITE = 0x3
_MAP_SHARED = 0x1
_FAILED = ctypes.c_void_p(-1).value

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]


class SharedMemory:
    """Zeroed memory that another process maps too. It is unmapped when nobody refers to this object any more.

    The program could make it shorter, and the device would die of SIGBUS: seals forbid that. The descriptor is closed
    once it has been passed on, so that the device holds none for each queue. (``mmap.mmap`` would keep one.)
    """

    def __init__(self, size: int) -> None:
        """
        :param size: bytes; whole pages are made of it
        :raises OSError: ENOMEM, EMFILE
        """
        self.size = size + -size % PAGE
        self.address = 0
        self.descriptor = os.memfd_create("softverbs", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(self.descriptor, self.size)
            fcntl.fcntl(self.descriptor, _ADD_SEALS, _SEALS)
            address = _libc.mmap(None, self.size, _PROT_READ_WRITE, _MAP_SHARED, self.descriptor, 0)
            if address == _FAILED:
                code = ctypes.get_errno()
                raise OSError(code, f"{self.size} bytes cannot be mapped: {os.strerror(code)}")
        except BaseException:
            self.close_descriptor()
            raise
        self.address = int(address)

    def close_descriptor(self) -> None:
        """Closes the descriptor; the memory stays mapped."""
        descriptor, self.descriptor = self.descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def store32(self, offset: int, value: int) -> None:
        """Writes 32 bits at ``offset``."""
        store32(self.address + offset, value)

    def store64(self, offset: int, value: int) -> None:
        """Writes 64 bits at ``offset``."""
        store64(self.address + offset, value)

    @finalizer
    def __del__(self, munmap: Callable[[int, int], int] = _libc.munmap) -> None:
        if getattr(self, "descriptor", -1) >= 0:
            self.close_descriptor()
        if getattr(self, "address", 0):
            munmap(self.address, self.size)


def own_memory(passed: list[int], pid: int) -> int:
    """A program of another user than the device's hands over its own right to its memory: a descriptor of its
    /proc/self/mem. The device has no use for a right of its own (CAP_SYS_PTRACE), which would reach a program that the
    user may execute and not look into, too.

    :param passed: descriptors that came with HELLO
    :param pid: of the process
    :returns: a descriptor, the caller's
    :raises PyverbsRDMAError: EPERM where none came, or another one
    """
    if not passed:
        raise PyverbsRDMAError(
            f"the device is of user {os.geteuid()}: programs of other users pass a descriptor of their /proc/self/mem, "
            "which the driver does where the device is root's; each user can run a device of his own",
            errno.EPERM,
        )
    try:
        wanted, found = os.stat(f"/proc/{pid}/mem"), os.fstat(passed[0])
    except OSError as error:
        raise PyverbsRDMAError(f"/proc/{pid}/mem: {error.strerror}", errno.EPERM) from None
    if (wanted.st_dev, wanted.st_ino) != (found.st_dev, found.st_ino):
        raise PyverbsRDMAError(f"the descriptor that came with HELLO is not one of /proc/{pid}/mem", errno.EPERM)
    return os.dup(passed[0])


def open_reader(pid: int, guard: int, secret: int) -> int:
    """A descriptor of the memory of a process, which stays that of its present address space (proc(5), /proc/PID/mem).

    :param pid: of the process
    :param guard: address of its guard
    :param secret: what stands there, which tells that it is still the process that has drawn it
    :returns: a descriptor, the caller's; -1 where the kernel gives none, or of another process
    """
    try:
        reader = os.open(f"/proc/{pid}/mem", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return -1
    try:
        if os.pread(reader, 8, guard) == secret.to_bytes(8, sys.byteorder):
            return reader
    except (OSError, OverflowError):  # it is not mapped
        pass
    os.close(reader)
    return -1


def check_mapped(space: int, pid: int, address: int, length: int, writing: bool) -> None:
    """EFAULT where a process has not mapped a range, as a kernel finds when it pins the pages (ibv_reg_mr(3)).

    A courtesy: whatever the process unmaps later, each access of the device fails by itself.

    :param space: the process's (core/memory/spaces.py)
    :param pid: of the process
    :param address: first byte
    :param length: bytes, at least 1
    :param writing: whether it must be writable
    """
    end = address + length
    reached = address
    with open(f"/proc/{pid}/maps", encoding="ascii", errors="replace") as rows:
        # What was opened is of the address space that the process had then. It was this one if it still is.
        if not spaces.holds(space):
            raise PyverbsRDMAError(spaces.explain(), errno.EFAULT)
        for row in rows:
            span, rights, _ = row.split(" ", 2)
            low, high = (int(part, 16) for part in span.split("-"))
            if high <= reached:
                continue
            if low > reached:
                break
            if rights[0] != "r" or (writing and rights[1] != "w"):
                wanted = "written" if writing else "read"
                raise PyverbsRDMAError(f"the memory at {reached:#x} cannot be {wanted}: it is {rights}", errno.EFAULT)
            reached = high
            if reached >= end:
                return
    raise PyverbsRDMAError(
        f"{length} bytes at {address:#x}: from {reached:#x} on process {pid} has nothing mapped", errno.EFAULT
    )
