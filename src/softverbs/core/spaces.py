"""Address spaces of other processes, whose memory the device reads and writes as a NIC does that of its host.

A far address is one number for a process and an address in it: bit 63, 15 bits for the space, 48 for the address.
No process has memory of its own there, so one comparison tells (``is_far``), and offsets are added as to any address.
Far memory may be gone at any time, or may belong to nobody: each access is a system call that succeeds or fails whole
(process_vm_readv(2)), and ``explain`` words the last failure.
"""

import errno
import os

try:
    import cython
except ImportError:
    from softverbs import _cython as cython
from softverbs.core.errors import PyverbsRDMAError

if not cython.compiled:
    from softverbs.core.memory import Block, copy_process, fetch_add64, load64, place_process, store64, view

FAR = 1 << 63
_SHIFT = 48
_ADDRESS = (1 << 48) - 1
_INDEX = 0x7FFF
#: The most spaces at a time.
_MOST = 0x7FFF
_WORD = 8  # bytes that an atomic works on

#: Processes by space; 0: none. Space 0 is this process, which is asked nothing.
_pids: list[int] = [0]
_free: list[int] = []
#: Of the last failure: errno, process, address, bytes, and whether it was to be written.
_failure: tuple[int, int, int, int, bool] = (0, 0, 0, 0, False)
# An atomic's value before, and after.
_cell = Block(2 * _WORD)


def enter(pid: int) -> int:
    """A space for the memory of another process, until ``leave``.

    Whether that may be read and written is for the kernel to say (ptrace(2), PTRACE_MODE_ATTACH_REALCREDS).

    :param pid: the process
    :raises PyverbsRDMAError: EINVAL for no process, ENOMEM where there are too many spaces
    """
    if pid <= 0:
        raise PyverbsRDMAError(f"{pid} is no process", errno.EINVAL)
    if _free:
        space = _free.pop(0)
        _pids[space] = pid
        return space
    if len(_pids) > _MOST:
        raise PyverbsRDMAError(f"the memory of {_MOST} processes is in use", errno.ENOMEM)
    _pids.append(pid)
    return len(_pids) - 1


def leave(space: int) -> None:
    """Ends a space: its memory is refused from now on. At once when the process is gone: its number is used again."""
    if 0 < space < len(_pids) and _pids[space]:
        _pids[space] = 0
        _free.append(space)


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
    pid = _pid_of(there)
    error = errno.ESRCH if pid == 0 else copy_process(pid, writes, here, there & _ADDRESS, length)
    if error == 0:
        return True
    _failure = (error, pid, there & _ADDRESS, length, writes)
    return False


def _pid_of(address: int) -> int:
    """The process that a far address is of; 0: it is gone."""
    space = address >> _SHIFT & _INDEX
    return _pids[space] if space < len(_pids) else 0


def place_pieces(destination: int, pieces: int, count: int, length: int) -> bool:
    """Copies ``count`` pieces, side by side, to a far address; False where they cannot be written: ``place`` tells why.

    :param pieces: as of ``memory.place_process``
    :param length: bytes, all together
    """
    pid = _pid_of(destination)
    return pid != 0 and place_process(pid, pieces, count, destination & _ADDRESS, length) == 0


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
    if error == errno.EFAULT:
        return f"{what}: they are not mapped {'writable' if writes else 'readable'} in process {pid}"
    return f"{what} in process {pid}: {os.strerror(error)}"


def _check_space(space: int) -> None:
    if not 0 < space < len(_pids):
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
