# SPDX-License-Identifier: MIT
"""Where the bytes of Python's buffers are, and whether an address range may be touched at all."""

import ctypes
import errno
import mmap
from typing import Any

from softverbs._interrupts import shielded
from softverbs.core.base.errors import PyverbsRDMAError
from softverbs.pyverbs._fields import refused

HUGE_PAGE_SIZE = 0x200000
# linux/mman.h; the mmap module of the older Pythons does not have them.
_MAP_HUGETLB = 0x40000
_MAP_NORESERVE = 0x4000
_MADV_POPULATE_READ = 22
_MADV_POPULATE_WRITE = 23
_PAGE = mmap.PAGESIZE
_USER_SPACE = 1 << 63  # no address of a process lies above


class _PyBuffer(ctypes.Structure):
    """``Py_buffer`` of CPython's C API; the stable ABI since Python 3.11, unchanged since 3.0."""

    _fields_ = (
        ("buf", ctypes.c_void_p),
        ("obj", ctypes.c_void_p),
        ("len", ctypes.c_ssize_t),
        ("itemsize", ctypes.c_ssize_t),
        ("readonly", ctypes.c_int),
        ("ndim", ctypes.c_int),
        ("format", ctypes.c_char_p),
        ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("suboffsets", ctypes.c_void_p),
        ("internal", ctypes.c_void_p),
    )


_PYBUF_ANY_CONTIGUOUS = 0x98
_get_buffer = ctypes.pythonapi.PyObject_GetBuffer
_get_buffer.argtypes = (ctypes.py_object, ctypes.POINTER(_PyBuffer), ctypes.c_int)
_get_buffer.restype = ctypes.c_int
_release_buffer = ctypes.pythonapi.PyBuffer_Release
_release_buffer.argtypes = (ctypes.POINTER(_PyBuffer),)
_release_buffer.restype = None


def exported(buffer: Any) -> memoryview:
    """A view of ``buffer``: as long as it is not released, the buffer cannot be resized, closed or moved.

    :param buffer: anything with Python's buffer protocol, writable or not, contiguous
    :raises PyverbsRDMAError: EINVAL where it is none, is not contiguous, or holds Python objects
    """
    kind = type(buffer).__name__
    try:
        view = memoryview(buffer)
    except (TypeError, ValueError, BufferError) as error:
        raise refused(f"{kind} cannot be registered: {error}") from None
    if not view.contiguous:
        view.release()
        raise refused(f"this {kind} cannot be registered: its bytes do not lie side by side")
    if "O" in view.format:
        view.release()
        raise refused(f"this {kind} cannot be registered: it holds references to Python objects")
    return view


@shielded
def address_of(view: memoryview) -> int:
    """The address of the first byte of ``view``, valid until the view is released."""
    raw = _PyBuffer()
    _get_buffer(view, ctypes.byref(raw), _PYBUF_ANY_CONTIGUOUS)
    address = raw.buf or 0
    _release_buffer(ctypes.byref(raw))
    return address


def allocate(length: int, huge: bool) -> mmap.mmap:
    """Zeroed memory of this process, page-aligned.

    :param length: bytes, at least 1
    :param huge: from huge pages, which the machine must have set aside
    :raises PyverbsRDMAError: ENOMEM
    """
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    size = length
    if huge:
        flags |= _MAP_HUGETLB
        size = -(-length // HUGE_PAGE_SIZE) * HUGE_PAGE_SIZE
    try:
        return mmap.mmap(-1, size, flags=flags)
    except (OSError, OverflowError, ValueError) as error:
        raise refused(f"Failed to allocate MR buffer of size {length}: {error}", errno.ENOMEM) from None


# With the interpreter lock kept, hardly anything can be unmapped between the look and the use.
_madvise = ctypes.PyDLL(None, use_errno=True).madvise
_madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


def _can_populate() -> bool:
    """Whether the kernel has MADV_POPULATE_READ (Linux 5.14)."""
    with mmap.mmap(-1, _PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as page, memoryview(page) as view:
        return bool(_madvise(address_of(view), _PAGE, _MADV_POPULATE_READ) == 0)


_populates: bool | None = None


def populate(address: int, length: int, writing: bool) -> bool:
    """Pages a range of addresses in, as a device with on-demand paging does; False where part of it cannot be.

    :param address: first byte
    :param length: bytes, at least 1
    :param writing: whether it must be writable
    """
    global _populates
    if _populates is None:
        _populates = _can_populate()
    if address + length > _USER_SPACE:
        return False
    if _populates:
        start = address & -_PAGE
        size = (address + length - start + _PAGE - 1) & -_PAGE
        if _madvise(start, size, _MADV_POPULATE_WRITE if writing else _MADV_POPULATE_READ) == 0:
            return True
        if ctypes.get_errno() != errno.EINVAL:
            return False
        # The rights are missing; or it is memory of another device, which cannot be paged in but is there.
    try:
        check_mapped(address, length, writing)
    except PyverbsRDMAError:
        return False
    return True


class Nothing:
    """Where the bytes of null regions come from and go to: much address space, and no memory until it is written."""

    def __init__(self, length: int) -> None:
        """
        :param length: bytes, of each
        :raises PyverbsRDMAError: ENOMEM
        """
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE
        try:
            self._zeros = mmap.mmap(-1, length, flags=flags, prot=mmap.PROT_READ)
            # Shared, since that is not accounted for before it is written.
            flags = mmap.MAP_SHARED | mmap.MAP_ANONYMOUS | _MAP_NORESERVE
            self._sink = mmap.mmap(-1, length, flags=flags)
        except (OSError, OverflowError, ValueError) as error:
            raise refused(f"no address space for a null region: {error}", errno.ENOMEM) from None
        with memoryview(self._zeros) as view:
            self.zeros = address_of(view)
        with memoryview(self._sink) as view:
            self.sink = address_of(view)


_nothing: list[Nothing] = []


def nothing(length: int) -> Nothing:
    """The one for all null regions of this process, made when it is first needed.

    :param length: bytes that one access may have
    """
    if not _nothing:
        _nothing.append(Nothing(length))
    return _nothing[0]


def check_mapped(address: int, length: int, writable: bool) -> None:
    """Refuses (EFAULT) a range of addresses that the process has not mapped, as the kernel would.

    :param address: first byte
    :param length: bytes
    :param writable: whether the device may write there
    """
    try:
        with open("/proc/self/maps", encoding="ascii", errors="replace") as maps:
            rows = maps.read().splitlines()
    except OSError:  # no /proc here: the caller answers for it
        return
    end = address + length
    for row in rows:
        bounds, rights, *_ = row.split(None, 2)
        low, high = (int(bound, 16) for bound in bounds.split("-"))
        if low <= address < high:
            if "r" not in rights or (writable and "w" not in rights):
                raise refused(
                    f"{address:#x} is mapped {rights}: not {'writable' if writable else 'readable'}", errno.EFAULT
                )
            address = high
            if address >= end:
                return
    raise refused(f"{address:#x} is not mapped in this process", errno.EFAULT)
