# SPDX-License-Identifier: MIT
"""Address spaces of other processes, whose memory the device reads and writes as a NIC does that of its host.

A far address is one number for an address space and an address in it: bit 63, 15 bits for the space, 48 for the
address. No process has memory of its own there, so one comparison tells (``is_far``), and offsets are added as to any
address. Far memory may be gone at any time, or may belong to nobody: each access is a system call that succeeds or
fails whole (process_vm_readv(2)), and ``explain`` words the last failure.

A space is one address space, not whatever runs under a process number: execve(2) ends it, and so does the end of the
process, whoever gets its number. That is found out by each access, within the system call of that access: the process
has mapped a page, the guard, at an address that it has drawn, with a word that it has drawn, and has told both. Or it
has passed a descriptor of its /proc/self/mem, which the kernel binds to its address space (``memory.copy_process``).
"""

import errno
import os

try:
    import cython
except ImportError:
    from softverbs import _cython as cython
from softverbs.core.base.errors import PyverbsRDMAError

if not cython.compiled:
    from softverbs.core.memory.raw import (
        PROCESS_GUARD,
        PROCESS_MEM,
        PROCESS_PID,
        PROCESS_READER,
        PROCESS_SECRET,
        PROCESS_SIZE,
        Block,
        copy,
        copy_process,
        fetch_add64,
        load64,
        place_process,
        store64,
        view,
    )

FAR = 1 << 63
_SHIFT = 48
_ADDRESS = (1 << 48) - 1
_INDEX = 0x7FFF
#: The most spaces at a time.
_MOST = 0x7FFF
_WORD = 8  # bytes that an atomic works on
_NOWHERE = (1 << 64) - 1  # -1: no descriptor

#: Records of processes (``memory.PROCESS_*``) by space, as many as there is room for. Space 0 is this process.
_records = Block(16 * PROCESS_SIZE)
_room = 16
_count = 1
_free: list[int] = []
#: Spaces whose address space was found to be gone, and how often one was.
_lost: set[int] = set()
_losses = 0
#: Of the last failure: errno, process, address, bytes, and whether it was to be written.
_failure: tuple[int, int, int, int, bool] = (0, 0, 0, 0, False)
# An atomic's value before, and after.
_cell = Block(2 * _WORD)


def enter(pid: int, guard: int, secret: int, mem: int = -1, reader: int = -1) -> int:
    """A space for the memory of another process, until ``leave``.

    Whether that may be read and written is for the kernel to say: at each access, where it is by the number of the
    process (ptrace(2), PTRACE_MODE_ATTACH_REALCREDS); when it was opened, where it is by a descriptor.

    :param pid: the process
    :param guard: address of its guard, a word of 64 bits at the start of a page of its own
    :param secret: what stands there
    :param mem: a descriptor of the process's /proc/self/mem, opened by it; the caller closes it after ``leave``
    :param reader: a descriptor of /proc/PID/mem through which the caller has seen the guard: for short reads. Unlike
        process_vm_readv(2), it reads pages that the process itself may not read, as a NIC does whose pages are pinned
    :raises PyverbsRDMAError: EINVAL for no process, EFAULT for no address, ENOMEM where there are too many spaces
    """
    global _count
    if pid <= 0:
        raise PyverbsRDMAError(f"{pid} is no process", errno.EINVAL)
    if guard >> _SHIFT or guard % _WORD:
        raise PyverbsRDMAError(f"{guard:#x} is no address of a guard", errno.EFAULT)
    if _free:
        space = _free.pop(0)
    elif _count > _MOST:
        raise PyverbsRDMAError(f"the memory of {_MOST} processes is in use", errno.ENOMEM)
    else:
        if _count == _room:
            _grow()
        space = _count
        _count += 1
    record = _records.address + space * PROCESS_SIZE
    store64(record + PROCESS_GUARD, guard)
    store64(record + PROCESS_SECRET, secret)
    store64(record + PROCESS_MEM, mem if mem >= 0 else _NOWHERE)
    store64(record + PROCESS_READER, reader if reader >= 0 else _NOWHERE)
    store64(record + PROCESS_PID, pid)
    return space


def _grow() -> None:
    global _records, _room
    records = Block(2 * _room * PROCESS_SIZE)
    copy(records.address, _records.address, _room * PROCESS_SIZE)
    _records = records
    _room *= 2


def leave(space: int) -> None:
    """Ends a space: its memory is refused from now on."""
    if 0 < space < _count:
        record = _records.address + space * PROCESS_SIZE
        if load64(record + PROCESS_PID):
            store64(record + PROCESS_PID, 0)
            _lost.discard(space)
            _free.append(space)


def holds(space: int) -> bool:
    """Whether the address space is still there, by a look at its guard; False: ``explain``."""
    record = _record_of(space << _SHIFT)
    return record != 0 and fetch(_cell.address, far(space, load64(record + PROCESS_GUARD)), _WORD)


def is_lost(space: int) -> bool:
    """Whether an access has found the address space gone: its process has executed another program, or has ended."""
    return space in _lost


def losses() -> int:
    """How often an access has found an address space gone, in all: what is no other number needs no second look."""
    return _losses


def far(space: int, address: int) -> int:
    """The far address of an address in a space; in space 0 the address itself.

    :raises PyverbsRDMAError: EFAULT where no program has memory
    """
    if space == 0:
        return address
    if address >> _SHIFT:
        raise PyverbsRDMAError(f"no program has memory at {address:#x}", errno.EFAULT)
    return FAR | space << _SHIFT | address


def is_far(address: int) -> bool:
    """Whether an address is one of another process."""
    return address >> 63 != 0


def fetch(destination: int, source: int, length: int) -> bool:
    """Copies ``length`` bytes from a far address; False where they cannot be read: ``explain``."""
    return _move(source, destination, length, False)


def place(destination: int, source: int, length: int) -> bool:
    """Copies ``length`` bytes to a far address; False where they cannot be written: ``explain``."""
    return _move(destination, source, length, True)


def _move(there: int, here: int, length: int, writes: bool) -> bool:
    global _failure
    if length == 0:
        return True
    record = _record_of(there)
    error = errno.ESRCH if record == 0 else copy_process(record, writes, here, there & _ADDRESS, length)
    if error == 0:
        return True
    _failure = (error, load64(record + PROCESS_PID) if record else 0, there & _ADDRESS, length, writes)
    if record and error in (errno.ESTALE, errno.ESRCH):
        _lose(there >> _SHIFT & _INDEX)
    return False


def _lose(space: int) -> None:
    global _losses
    _lost.add(space)
    _losses += 1


def _record_of(address: int) -> int:
    """The record of the process that a far address is of; 0: it is gone."""
    space = address >> _SHIFT & _INDEX
    record = _records.address + space * PROCESS_SIZE
    return record if space < _count and load64(record + PROCESS_PID) else 0


def place_pieces(destination: int, pieces: int, count: int, length: int) -> bool:
    """Copies ``count`` pieces, side by side, to a far address; False where they cannot be written: ``place`` tells why.

    :param pieces: as of ``memory.place_process``
    :param length: bytes, all together
    """
    record = _record_of(destination)
    return record != 0 and place_process(record, pieces, count, destination & _ADDRESS, length) == 0


def fetch_add(address: int, value: int) -> bool:
    """Adds to the 64-bit integer at a far address, modulo 2^64; ``before`` is its value before. False: ``explain``.

    Atomic towards other operations of the device, not towards the process (IBV_ATOMIC_HCA).
    """
    if not fetch(_cell.address, address, _WORD):
        return False
    store64(_cell.address + _WORD, load64(_cell.address))
    fetch_add64(_cell.address + _WORD, value)
    return place(address, _cell.address + _WORD, _WORD)


def compare_swap(address: int, compare: int, swap: int) -> bool:
    """Puts ``swap`` in the 64-bit integer at a far address if it equals ``compare``; as ``fetch_add``."""
    if not fetch(_cell.address, address, _WORD):
        return False
    if load64(_cell.address) != compare:
        return True
    store64(_cell.address + _WORD, swap)
    return place(address, _cell.address + _WORD, _WORD)


def before() -> int:
    """What the last ``fetch_add`` or ``compare_swap`` has found."""
    return load64(_cell.address)


def place_word(address: int, value: int) -> bool:
    """Puts a 64-bit integer at a far address, host order; False where that cannot be written: ``explain``."""
    store64(_cell.address + _WORD, value)
    return place(address, _cell.address + _WORD, _WORD)


def explain() -> str:
    """Why the last access failed."""
    error, pid, address, length, writes = _failure
    what = f"{length} bytes at {address:#x} cannot be {'written' if writes else 'read'}"
    if pid == 0 or error == errno.ESRCH:
        return f"{what}: the process that they belong to is gone"
    if error == errno.ESTALE:
        return f"{what}: process {pid} runs another program now (execve(2)), or its guard page is gone"
    if error == errno.EFAULT:
        return f"{what}: they are not mapped {'writable' if writes else 'readable'} in process {pid}"
    return f"{what} in process {pid}: {os.strerror(error)}"


def _check_space(space: int) -> None:
    if not 0 < space < _count:
        raise PyverbsRDMAError(f"there is no space {space}", errno.EINVAL)


def read(space: int, address: int, length: int) -> bytes:
    """Bytes of a process.

    :param space: not 0: who asks for bytes of another process must not get those of this one
    :raises PyverbsRDMAError: EFAULT where they cannot be read
    """
    _check_space(space)
    if length <= 0:
        return b""
    block = Block(length)
    if not fetch(block.address, far(space, address), length):
        raise PyverbsRDMAError(explain(), errno.EFAULT)
    return bytes(view(block.address, length))


def write(space: int, address: int, data: bytes) -> None:
    """Puts bytes in the memory of a process.

    :param space: not 0
    :raises PyverbsRDMAError: EFAULT where they cannot be written
    """
    _check_space(space)
    if not data:
        return
    block = Block(len(data))
    view(block.address, len(data))[:] = data
    if not place(far(space, address), block.address, len(data)):
        raise PyverbsRDMAError(explain(), errno.EFAULT)
