# SPDX-License-Identifier: MIT
"""A guard page in this process, as driver/guard.c makes one: it tells address spaces apart (core/memory/spaces.py)."""

import ctypes
import os
import struct

PAGE = 4096
_READ_WRITE, _PRIVATE_ANONYMOUS_NEW = 0x3, 0x2 | 0x20 | 0x100000
_DONTFORK = 10
_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


class Guard:
    """The page: its address, and the word that stands there."""

    def __init__(self, address: int = 0) -> None:
        """
        :param address: 0: one that is drawn
        """
        number, self.secret = struct.unpack("=QQ", os.urandom(16))
        quarter = 1 << ctypes.addressof(ctypes.c_int()).bit_length() - 2
        self.address = address or (quarter + quarter // 2 + number % quarter) & -65536
        made = _libc.mmap(self.address, PAGE, _READ_WRITE, _PRIVATE_ANONYMOUS_NEW, -1, 0)
        assert made == self.address, os.strerror(ctypes.get_errno())
        ctypes.c_uint64.from_address(self.address).value = self.secret
        _libc.madvise(self.address, PAGE, _DONTFORK)

    def free(self) -> None:
        """Takes the page away."""
        _libc.munmap(self.address, PAGE)
