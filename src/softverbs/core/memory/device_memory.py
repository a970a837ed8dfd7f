# SPDX-License-Identifier: MIT
"""Device memory: a little memory of the device's own, which applications copy to and from, and register."""

import errno

try:
    import cython
except ImportError:
    from softverbs import _cython as cython
from softverbs.core.base.errors import PyverbsRDMAError

if not cython.compiled:
    from softverbs.core.base.host import Host
    from softverbs.core.memory.raw import Block

#: Log base 2 of the strictest alignment that can be asked for.
MAX_LOG_ALIGN = 20


class DeviceMemory:
    """Memory of the device itself (ibv_alloc_dm(3)): reached by copying, or through a zero-based region."""

    def __init__(self, port: Host, context_id: object, length: int, log_align: int) -> None:
        """
        :param port: the port that it belongs to
        :param context_id: the same for all objects of one context
        :param length: bytes
        :param log_align: its address is a multiple of 2 to the power of this, for atomics
        :raises PyverbsRDMAError: EINVAL for impossible values, ENOMEM past ``max_dm_size``
        """
        most = port.options.max_dm_size
        if length <= 0:
            raise PyverbsRDMAError(f"device memory of {length} bytes: at least 1 is needed", errno.EINVAL)
        if log_align > MAX_LOG_ALIGN:
            raise PyverbsRDMAError(f"log_align_req is {log_align}: at most {MAX_LOG_ALIGN}", errno.EINVAL)
        used = port.regions.device_memory_used
        if used + length > most:
            raise PyverbsRDMAError(
                f"{length} bytes: the device has {most} bytes of memory (max_dm_size), of which {used} are in use",
                errno.ENOMEM,
            )
        self.port = port
        self.context_id = context_id
        self.length = length
        self.block = Block(length + (1 << log_align))
        self.address = self.block.address + (1 << log_align) - 1 & -(1 << log_align)
        self.handle = port.enter("device memory", 1 << 20)
        self.users = 0
        self.closed = False
        port.regions.device_memory_used = used + length

    def at(self, offset: int, length: int) -> int:
        """The address of a range that is to be copied (ibv_memcpy_to_dm(3)).

        :raises PyverbsRDMAError: EINVAL where it is outside, or not made of whole words of 4 bytes
        """
        if offset & 3 or length & 3:
            raise PyverbsRDMAError(
                f"{length} bytes at offset {offset}: device memory is accessed in words of 4 bytes", errno.EINVAL
            )
        if offset < 0 or length < 0 or length > self.length - offset:
            raise PyverbsRDMAError(
                f"{length} bytes at offset {offset} are outside of the device memory, which has {self.length}",
                errno.EINVAL,
            )
        return self.address + offset

    def close(self) -> None:
        """Gives it back (ibv_free_dm(3)).

        :raises PyverbsRDMAError: EBUSY while a region is registered over it
        """
        if self.closed:
            return
        if self.users:
            raise PyverbsRDMAError(f"{self.users} memory regions are registered over the device memory", errno.EBUSY)
        self.closed = True
        self.port.regions.device_memory_used -= self.length
        self.port.leave("device memory")
