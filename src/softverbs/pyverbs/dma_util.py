# SPDX-License-Identifier: MIT
"""What programs that drive a device's registers themselves need; here the registers would be plain memory."""

import threading

from softverbs.pyverbs.mem_alloc import writebe32, writebe64

_fence = threading.Lock()


def udma_to_dev_barrier() -> None:
    """Orders what was written before with what is written after it, as the device sees it."""
    with _fence:  # taking and giving back a lock is a barrier
        pass


def udma_from_dev_barrier() -> None:
    """Orders what was read from the device before with what is read after it."""
    with _fence:
        pass


def mmio_write64_as_be(addr: int, val: int) -> None:
    """Puts a 64-bit integer in network order.

    :param addr: where
    :param val: the integer
    """
    writebe64(addr, val)


def mmio_write32_as_be(addr: int, val: int) -> None:
    """Puts a 32-bit integer in network order.

    :param addr: where
    :param val: the integer
    """
    writebe32(addr, val)
