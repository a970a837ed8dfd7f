# SPDX-License-Identifier: MIT
"""Memory from the C library, by address, as ``pyverbs.mem_alloc`` has it.

As in C, nothing here knows what an address is good for: a wrong one ends the process. ``MR`` over a buffer of Python
needs none of this.
"""

import ctypes
import mmap as _mmap
from typing import Any

from softverbs.pyverbs.base import PyverbsRDMAErrno

PROT_EXEC_ = _mmap.PROT_EXEC
PROT_READ_ = _mmap.PROT_READ
PROT_WRITE_ = _mmap.PROT_WRITE
PROT_NONE_ = 0

# From Linux's <sys/mman.h>: the numbers of x86-64, AArch64 and RISC-V. The mmap module lacks some of them.
MAP_SHARED_ = 0x01
MAP_PRIVATE_ = 0x02
MAP_FIXED_ = 0x10
MAP_ANONYMOUS_ = 0x20
MAP_GROWSDOWN_ = 0x100
MAP_LOCKED_ = 0x2000
MAP_NORESERVE_ = 0x4000
MAP_POPULATE_ = 0x8000
MAP_STACK_ = 0x20000
MAP_HUGETLB_ = 0x40000

MADV_DONTNEED = 4

_MAP_FAILED = ctypes.c_void_p(-1).value
_libc = ctypes.CDLL(None, use_errno=True)


def _function(name: str, result: Any, *arguments: Any) -> Any:
    function = getattr(_libc, name)
    function.restype = result
    function.argtypes = arguments
    return function


_pointer, _size, _int, _long = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_long
_c_mmap = _function("mmap", _pointer, _pointer, _size, _int, _int, _int, _long)
_c_munmap = _function("munmap", _int, _pointer, _size)
_c_madvise = _function("madvise", _int, _pointer, _size, _int)
_c_malloc = _function("malloc", _pointer, _size)
_c_memalign = _function("posix_memalign", _int, ctypes.POINTER(_pointer), _size, _size)
_c_free = _function("free", None, _pointer)


def mmap(
    addr: int = 0,
    length: int = 100,
    prot: int = PROT_READ_ | PROT_WRITE_,
    flags: int = MAP_PRIVATE_ | MAP_ANONYMOUS_,
    fd: int = 0,
    offset: int = 0,
) -> int:
    """Maps memory (mmap(2)); the address.

    :param addr: where, or 0
    :param length: bytes
    :param prot: PROT_*_ bits
    :param flags: MAP_*_ bits
    :param fd: a file, without MAP_ANONYMOUS_
    :param offset: in the file, bytes
    :raises MemoryError: where the kernel refuses
    """
    address = _c_mmap(addr, length, prot, flags, fd, offset)
    if address == _MAP_FAILED:
        raise MemoryError(f"Failed to mmap {length} bytes: {PyverbsRDMAErrno('mmap').args[0]}")
    return int(address)


def munmap(addr: int, length: int) -> None:
    """Unmaps memory (munmap(2)).

    :param addr: of the first byte
    :param length: bytes
    :raises MemoryError: where the kernel refuses
    """
    if _c_munmap(addr, length):
        raise MemoryError(f"Failed to munmap {length} bytes: {PyverbsRDMAErrno('munmap').args[0]}")


def madvise(addr: int, length: int, flags: int = MADV_DONTNEED) -> None:
    """Tells the kernel about the use of memory (madvise(2)).

    :param addr: of the first byte, a multiple of the page size
    :param length: bytes
    :param flags: MADV_*
    :raises PyverbsRDMAError: with the kernel's errno
    """
    if _c_madvise(addr, length, flags):
        raise PyverbsRDMAErrno("Failed to madvise memory")


def malloc(size: int) -> int:
    """Memory of ``size`` bytes (malloc(3)), to be given back by ``free``; its address.

    :raises MemoryError: where there is none
    """
    address = _c_malloc(size)
    if not address:
        raise MemoryError(f"Failed to allocate {size} bytes")
    return int(address)


def posix_memalign(size: int, alignment: int = 8) -> int:
    """Memory of zeros (posix_memalign(3)), to be given back by ``free``; its address.

    :param size: bytes
    :param alignment: of the address: a power of two, at least 8
    :raises MemoryError: where there is none, or the alignment is bad
    """
    address = ctypes.c_void_p()
    if _c_memalign(ctypes.byref(address), alignment, size) or not address.value:
        raise MemoryError(f"Failed to allocate {size} bytes aligned to {alignment}")
    ctypes.memset(address.value, 0, size)
    return address.value


def free(ptr: int) -> None:
    """Gives back what ``malloc`` or ``posix_memalign`` gave (free(3))."""
    _c_free(ptr)


def writebe32(addr: int, val: int, offset: int = 0) -> None:
    """Puts a 32-bit integer in network order.

    :param addr: where
    :param val: the integer; its low 32 bits count
    :param offset: from ``addr``, in units of 4 bytes
    """
    ctypes.memmove(addr + 4 * offset, (val & 0xFFFFFFFF).to_bytes(4, "big"), 4)


def writebe64(addr: int, val: int, offset: int = 0) -> None:
    """Puts a 64-bit integer in network order.

    :param addr: where
    :param val: the integer; its low 64 bits count
    :param offset: from ``addr``, in units of 8 bytes
    """
    ctypes.memmove(addr + 8 * offset, (val & 0xFFFFFFFFFFFFFFFF).to_bytes(8, "big"), 8)


def write(addr: int, data: str | bytes, length: int, offset: int = 0) -> None:
    """Copies bytes to memory.

    :param addr: where
    :param data: bytes, or a text that is encoded as UTF-8
    :param length: how many of them
    :param offset: from ``addr``, bytes
    :raises ValueError: ``data`` has fewer bytes than ``length``
    """
    source = data.encode() if isinstance(data, str) else bytes(data)
    if length > len(source):
        raise ValueError(f"write of {length} bytes, but data has {len(source)}")
    ctypes.memmove(addr + offset, source, length)


def read32(addr: int, offset: int = 0) -> int:
    """The 32-bit integer there, in host order.

    :param addr: where
    :param offset: from ``addr``, in units of 4 bytes
    """
    return ctypes.c_uint32.from_address(addr + 4 * offset).value


def read64(addr: int, offset: int = 0) -> int:
    """The 64-bit integer there, in host order.

    :param addr: where
    :param offset: from ``addr``, in units of 8 bytes
    """
    return ctypes.c_uint64.from_address(addr + 8 * offset).value


def read(addr: int, length: int, offset: int = 0) -> bytes:
    """Copies bytes from memory.

    :param addr: where
    :param length: how many
    :param offset: from ``addr``, bytes
    """
    return ctypes.string_at(addr + offset, length)
