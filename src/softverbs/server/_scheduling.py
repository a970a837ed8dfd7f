"""What the device asks of the kernel's scheduler, for its own thread."""

import ctypes
import platform
import struct

#: How long it runs at most before others may, ns: the shortest that Linux grants (6.12 or later).
SLICE_NS = 100_000
#: sched_setattr(2) and sched_getattr(2), which the C library has no functions for.
_NUMBERS = {"x86_64": (314, 315), "aarch64": (274, 275)}
#: struct sched_attr: size, policy, flags, nice, priority, runtime, deadline, period.
_ATTR = struct.Struct("=IIQiIQQQ")
_SCHED_OTHER = 0

_libc = ctypes.CDLL(None, use_errno=True)


def ask_for_short_slices() -> bool:
    """Asks for short time slices for this thread; whether the kernel has heard of it.

    Who wants little at a time gets it sooner: where programs that poll have taken every processor, a device that is
    woken by a doorbell goes before them, instead of waiting until their slices, some milliseconds each, are used up. It
    gets no more of a processor than before.
    """
    numbers = _NUMBERS.get(platform.machine())
    if numbers is None:
        return False
    setter, getter = numbers
    block = ctypes.create_string_buffer(_ATTR.size)
    if _libc.syscall(getter, 0, block, _ATTR.size, 0) != 0:
        return False
    _, policy, flags, nice, priority, _, deadline, period = _ATTR.unpack(block.raw)
    if policy != _SCHED_OTHER:  # somebody has chosen otherwise
        return False
    block.raw = _ATTR.pack(_ATTR.size, policy, flags, nice, priority, SLICE_NS, deadline, period)
    return bool(_libc.syscall(setter, 0, block, 0) == 0)
