# SPDX-License-Identifier: MIT
"""The bytes under a memory region: whose they are, and how long they stay."""

import errno
import mmap
from typing import Any

from softverbs.core.memory.regions import VALUES as KINDS
from softverbs.pyverbs import libibverbs_enums as e
from softverbs.pyverbs._buffers import address_of, allocate, check_mapped, exported, populate
from softverbs.pyverbs._fields import integer, is_integer, refused

WRITES = e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_REMOTE_WRITE | e.IBV_ACCESS_REMOTE_ATOMIC


class Memory:
    """Bytes that stay where they are until ``release``; those at an ``address`` the caller keeps."""

    def __init__(
        self, address: int, length: int, view: memoryview | None = None, own: mmap.mmap | None = None, keep: Any = None
    ) -> None:
        """
        :param address: first byte
        :param length: bytes
        :param view: of a buffer that is held
        :param own: what was mapped for it
        :param keep: anything else that must live as long
        """
        self.address = address
        self.length = length
        self._view = view
        self._own = own
        self._keep = keep

    @property
    def borrowed(self) -> bool:
        """Whether nothing but the caller's promise keeps it mapped."""
        return self._view is None and self._own is None and self._keep is None

    def kind(self, access: int) -> int:
        """How the core is to treat it: on-demand memory of the caller may come and go, so each access looks."""
        return KINDS["CHECKED" if self.borrowed and access & e.IBV_ACCESS_ON_DEMAND else "PLAIN"]

    def check(self, access: int) -> None:
        """EFAULT where the rights ask for more than the memory permits."""
        if not access & WRITES:
            return
        if self._view is not None and self._view.readonly:
            raise refused("the buffer is read-only, but the access flags permit writing", errno.EFAULT)
        if self.borrowed and self.length and not access & e.IBV_ACCESS_ON_DEMAND:
            check_mapped(self.address, self.length, True)

    def allows(self, address: int, length: int, writing: bool) -> bool:
        """Whether the process has a range mapped now; pages it in. The core asks this."""
        return populate(address, length, writing)

    def release(self) -> None:
        """Lets go of the buffer; memory of the region's own goes back to the system."""
        if self._view is not None:
            self._view.release()
        if self._own is not None:
            self._own.close()


def at_address(address: Any, length: Any, access: int) -> Memory:
    """Memory of the caller's.

    :param address: first byte
    :param length: bytes
    :param access: IBV_ACCESS_* bits
    :raises PyverbsRDMAError: EFAULT where it is not mapped; on-demand memory is not looked at
    """
    start, size = integer(address, "address", 64), integer(length, "length", 64)
    if size and not access & e.IBV_ACCESS_ON_DEMAND:
        check_mapped(start, size, bool(access & WRITES))
    return Memory(start, size)


def chosen(length: Any, access: int, address: int | None, failed: str) -> Memory:
    """The memory that the arguments of MR name.

    :param length: bytes, or a buffer
    :param access: IBV_ACCESS_* bits
    :param address: of the caller's memory; None or 0: the region's own
    :param failed: what a refusal begins with
    """
    if is_integer(length):
        size = integer(length, "length", 64)
        if address:
            return at_address(address, size, access)
        if not size:
            return Memory(0, 0)
        own = allocate(size, bool(access & e.IBV_ACCESS_HUGETLB))
        with memoryview(own) as view:
            start = address_of(view)
        return Memory(start, size, None, own)
    if address is not None:
        raise refused(f"{failed}: a buffer and an address were both given")
    view = exported(length)
    if view.readonly and access & WRITES:
        view.release()
        raise refused(f"{failed}: the buffer is read-only, but the access flags permit writing", errno.EFAULT)
    return Memory(address_of(view), view.nbytes, view)
