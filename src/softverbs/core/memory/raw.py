# SPDX-License-Identifier: MIT
"""Raw memory: the one module that reads and writes at addresses.

Every other core module moves bytes through these functions, so that the two builds differ here only. Compiled,
each is one machine instruction or one libc call; uncompiled, ctypes does the same. Addresses are integers of
this process; the caller has checked them: nothing here can know what is mapped.

``be`` functions are in network order, the others in host order.
"""

import ctypes
import errno
import os
from typing import Any

try:
    import cython
except ImportError:
    from softverbs import _cython as cython

try:  # Several times faster than zlib on x86-64 and AArch64, with the same signature.
    from isal.isal_zlib import crc32 as _crc32
except ImportError:
    from zlib import crc32 as _crc32

_libc = ctypes.CDLL(None, use_errno=True)
_libc.process_vm_readv.restype = ctypes.c_ssize_t
_libc.process_vm_writev.restype = ctypes.c_ssize_t
_libc.preadv.restype = _libc.pwritev.restype = ctypes.c_ssize_t

#: A record of an address space of another process, 64 bits each: the number of the process (0: none), a descriptor of
#: its /proc/PID/mem by which everything goes, one for short reads alone (-1: none), the address of its guard, and the
#: word that stands there.
PROCESS_PID = 0
PROCESS_MEM = 8
PROCESS_READER = 16
PROCESS_GUARD = 24
PROCESS_SECRET = 32
PROCESS_SIZE = 40
#: The longest read that is quicker by the descriptor than with the guard in front, bytes.
SHORT_READ = 4096
_WORD = 8


def load8(address: int) -> int:
    """The byte at ``address``."""
    if cython.compiled:
        return cython.cast(u8_p, address)[0]
    return ctypes.c_uint8.from_address(address).value


def load16(address: int) -> int:
    """The 16-bit integer at ``address``, host order."""
    if cython.compiled:
        return cython.cast(u16_p, address)[0]
    return ctypes.c_uint16.from_address(address).value


def load32(address: int) -> int:
    """The 32-bit integer at ``address``, host order."""
    if cython.compiled:
        return cython.cast(u32_p, address)[0]
    return ctypes.c_uint32.from_address(address).value


def load64(address: int) -> int:
    """The 64-bit integer at ``address``, host order."""
    if cython.compiled:
        return cython.cast(u64_p, address)[0]
    return ctypes.c_uint64.from_address(address).value


def store8(address: int, value: int) -> None:
    """Puts a byte at ``address``."""
    if cython.compiled:
        cython.cast(u8_p, address)[0] = value
    else:
        ctypes.c_uint8.from_address(address).value = value


def store16(address: int, value: int) -> None:
    """Puts a 16-bit integer at ``address``, host order."""
    if cython.compiled:
        cython.cast(u16_p, address)[0] = value
    else:
        ctypes.c_uint16.from_address(address).value = value


def store32(address: int, value: int) -> None:
    """Puts a 32-bit integer at ``address``, host order."""
    if cython.compiled:
        cython.cast(u32_p, address)[0] = value
    else:
        ctypes.c_uint32.from_address(address).value = value


def store64(address: int, value: int) -> None:
    """Puts a 64-bit integer at ``address``, host order."""
    if cython.compiled:
        cython.cast(u64_p, address)[0] = value
    else:
        ctypes.c_uint64.from_address(address).value = value


def load16be(address: int) -> int:
    """The 16-bit integer at ``address``, network order."""
    if cython.compiled:
        return be16toh(cython.cast(u16_p, address)[0])
    return int.from_bytes(ctypes.string_at(address, 2), "big")


def load32be(address: int) -> int:
    """The 32-bit integer at ``address``, network order."""
    if cython.compiled:
        return be32toh(cython.cast(u32_p, address)[0])
    return int.from_bytes(ctypes.string_at(address, 4), "big")


def load64be(address: int) -> int:
    """The 64-bit integer at ``address``, network order."""
    if cython.compiled:
        return be64toh(cython.cast(u64_p, address)[0])
    return int.from_bytes(ctypes.string_at(address, 8), "big")


def store16be(address: int, value: int) -> None:
    """Puts a 16-bit integer at ``address``, network order."""
    if cython.compiled:
        cython.cast(u16_p, address)[0] = htobe16(value)
    else:
        ctypes.memmove(address, value.to_bytes(2, "big"), 2)


def store32be(address: int, value: int) -> None:
    """Puts a 32-bit integer at ``address``, network order."""
    if cython.compiled:
        cython.cast(u32_p, address)[0] = htobe32(value)
    else:
        ctypes.memmove(address, value.to_bytes(4, "big"), 4)


def store64be(address: int, value: int) -> None:
    """Puts a 64-bit integer at ``address``, network order."""
    if cython.compiled:
        cython.cast(u64_p, address)[0] = htobe64(value)
    else:
        ctypes.memmove(address, value.to_bytes(8, "big"), 8)


def copy(destination: int, source: int, length: int) -> None:
    """Copies ``length`` bytes; the two ranges may overlap."""
    if cython.compiled:
        memmove(cython.cast(void_p, destination), cython.cast(void_p, source), length)
    else:
        ctypes.memmove(destination, source, length)


def fill(destination: int, value: int, length: int) -> None:
    """Sets ``length`` bytes to ``value``."""
    if cython.compiled:
        memset(cython.cast(void_p, destination), value, length)
    else:
        ctypes.memset(destination, value, length)


def fetch_add64(address: int, value: int) -> int:
    """Adds to the aligned 64-bit integer at ``address``, modulo 2^64, atomically towards the host; the value before.

    Uncompiled, the interpreter lock makes it atomic towards other Python threads only.
    """
    if cython.compiled:
        return __atomic_fetch_add(cython.cast(u64_p, address), value, __ATOMIC_SEQ_CST)
    cell = ctypes.c_uint64.from_address(address)
    before = cell.value
    cell.value = before + value & 0xFFFFFFFFFFFFFFFF
    return before


def compare_swap64(address: int, compare: int, swap: int) -> int:
    """Puts ``swap`` in the aligned 64-bit integer at ``address`` if it equals ``compare``; the value before."""
    if cython.compiled:
        return __sync_val_compare_and_swap(cython.cast(u64_p, address), compare, swap)
    cell = ctypes.c_uint64.from_address(address)
    before = cell.value
    if before == compare:
        cell.value = swap
    return before


def load_acquire64(address: int) -> int:
    """The 64-bit integer at ``address``, which another process stores: what it stored before is there, too."""
    if cython.compiled:
        return __atomic_load_n(cython.cast(u64_p, address), __ATOMIC_ACQUIRE)
    return ctypes.c_uint64.from_address(address).value


def store_release64(address: int, value: int) -> None:
    """Puts a 64-bit integer at ``address`` for another process, behind everything that was stored before."""
    if cython.compiled:
        __atomic_store_n(cython.cast(u64_p, address), value, __ATOMIC_RELEASE)
    else:
        ctypes.c_uint64.from_address(address).value = value


def barrier() -> None:
    """A full barrier: what is loaded behind it is newer than what was stored before it can be seen.

    Uncompiled, what takes a lock is one on x86-64; elsewhere it has to do that the interpreter takes its time.
    """
    if cython.compiled:
        __atomic_thread_fence(__ATOMIC_SEQ_CST)
    else:
        _libc.pthread_spin_trylock(ctypes.byref(ctypes.c_int(0)))


def copy_process(process: int, writes: bool, local: int, remote: int, length: int) -> int:
    """Copies between this process and another one; 0 or the errno.

    EFAULT where only a part could be copied, ESTALE where the address space that the record describes is gone.

    By process_vm_readv(2), which finds the address space of a process number once in a call, and goes through the
    ranges in their order. So the guard comes first: where the number stands for another address space, it is not
    mapped, and nothing behind it is touched. By the descriptor of /proc/PID/mem where there is one: that is of one
    address space. A short read goes by the reader, such a descriptor too, which spares the look at the guard.

    :param process: address of a record: PROCESS_*
    :param writes: whether to copy from ``local`` to ``remote``, not the other way
    :param local: address in this process
    :param remote: address in the other process
    :param length: bytes
    """
    if cython.compiled:
        return move_process(process, writes, local, remote, length)
    mem = _descriptor(process, PROCESS_MEM)
    if mem < 0 and not writes and length <= SHORT_READ and remote != load64(process + PROCESS_GUARD):
        mem = _descriptor(process, PROCESS_READER)
    if mem >= 0:
        return _move_by_descriptor(mem, writes, (ctypes.c_size_t * 2)(local, length), 1, remote, length)
    if writes:
        here = (ctypes.c_size_t * 4)(process + PROCESS_SECRET, _WORD, local, length)
        return _place(process, here, 1, remote, length)
    guard = ctypes.c_uint64(0)
    here = (ctypes.c_size_t * 4)(ctypes.addressof(guard), _WORD, local, length)
    done = _vector_call(_libc.process_vm_readv, process, here, 1, remote, length)
    if done >= _WORD and guard.value != load64(process + PROCESS_SECRET):
        return errno.ESTALE
    return _outcome(done, length)


def place_process(process: int, pieces: int, count: int, remote: int, length: int) -> int:
    """Copies pieces of this process, one after the other, to one place in another one; as ``copy_process``.

    :param pieces: address of 1 + ``count`` pairs of an address and a length (struct iovec, readv(2)); the first is
        for this function
    :param length: bytes, all together
    """
    if cython.compiled:
        return place_in_process(process, pieces, count, remote, length)
    mem = _descriptor(process, PROCESS_MEM)
    if mem >= 0:
        return _move_by_descriptor(mem, True, ctypes.c_void_p(pieces + 2 * _WORD), count, remote, length)
    store64(pieces, process + PROCESS_SECRET)
    store64(pieces + _WORD, _WORD)
    return _place(process, ctypes.c_void_p(pieces), count, remote, length)


def _place(process: int, here: Any, count: int, remote: int, length: int) -> int:
    return _outcome(_vector_call(_libc.process_vm_writev, process, here, count, remote, length), length)


def _vector_call(call: Any, process: int, here: Any, count: int, remote: int, length: int) -> int:
    """process_vm_readv(2) or process_vm_writev(2) of the guard and one range; bytes, or -1."""
    there = (ctypes.c_size_t * 4)(load64(process + PROCESS_GUARD), _WORD, remote, length)
    pid = ctypes.c_long(load64(process + PROCESS_PID))
    return int(call(pid, here, ctypes.c_ulong(1 + count), there, ctypes.c_ulong(2), ctypes.c_ulong(0)))


def _outcome(done: int, length: int) -> int:
    """The errno of a call that has done so many bytes, those of the guard included."""
    if done == _WORD + length:
        return 0
    if done >= _WORD:
        return errno.EFAULT
    code = ctypes.get_errno()
    return errno.ESTALE if done >= 0 or code == errno.EFAULT else code


def _descriptor(process: int, offset: int) -> int:
    return ctypes.c_int64(load64(process + offset)).value


def _move_by_descriptor(descriptor: int, writes: bool, here: Any, count: int, remote: int, length: int) -> int:
    call = _libc.pwritev if writes else _libc.preadv
    done = call(ctypes.c_int(descriptor), here, ctypes.c_int(count), ctypes.c_int64(remote))
    if done == length:
        return 0
    return errno.ESTALE if done == 0 else errno.EFAULT


def copy_checked(destination: int, source: int, length: int) -> bool:
    """Copies from an address that may not be mapped: False where it is not (the kernel looks, 2 us)."""
    if cython.compiled:
        return copy_own(destination, source, length) == length
    here, there = (ctypes.c_size_t * 2)(destination, length), (ctypes.c_size_t * 2)(source, length)
    one = ctypes.c_ulong(1)
    return bool(_libc.process_vm_readv(os.getpid(), here, one, there, one, ctypes.c_ulong(0)) == length)


def view(address: int, length: int) -> memoryview:
    """A writable view of ``length`` bytes at ``address``. It does not keep the memory: drop it before its owner."""
    if cython.compiled:
        return PyMemoryView_FromMemory(cython.cast(char_p, address), length, PyBUF_WRITE)
    return memoryview((ctypes.c_char * length).from_address(address)).cast("B")


def crc32(address: int, length: int, value: int) -> int:
    """Continues the CRC-32 of Ethernet (reflected 0x04C11DB7, as zlib's ``crc32``) from ``value`` over a range."""
    return _crc32(view(address, length), value)


class Block:
    """Zeroed memory of this process, freed with the object. ``address`` is a multiple of 64."""

    def __init__(self, size: int) -> None:
        self._buffer = bytearray(size + 64)
        self._holder = (ctypes.c_char * (size + 64)).from_buffer(self._buffer)
        self.size = size
        self.address = (ctypes.addressof(self._holder) + 63) & -64
