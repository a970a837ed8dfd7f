# SPDX-License-Identifier: MIT
"""Protection domains, memory regions and memory windows: who may touch which bytes.

A key is ``index + base << 8 | tag``: the index finds the entry at once, the tag changes with each registration, so
that a key of the past finds nothing, and the base, which a device has for life, keeps others from guessing keys. Every
access of the device to an application's memory, local or for a peer, goes through ``Regions.translate``; what it
refuses, ``explain`` words. A right above LOCAL_WRITE is a peer's: then the key must be an rkey, else an lkey. They are
the same for a region; a window has no lkey, a null region no rkey.

Entries that are not plain memory have a ``limit`` of 0, so that the range check of the fast path fails and
``_beyond`` looks closer: it costs the others nothing.
"""

import errno
from collections import deque
from typing import Any

try:
    import cython
except ImportError:
    from softverbs import _cython as cython
from softverbs.core.base.errors import PyverbsRDMAError

if not cython.compiled:
    from softverbs.core.base.constants import (
        ACCESS_FLUSH_GLOBAL,
        ACCESS_FLUSH_PERSISTENT,
        ACCESS_LOCAL_WRITE,
        ACCESS_MW_BIND,
        ACCESS_REMOTE_ATOMIC,
        ACCESS_REMOTE_READ,
        ACCESS_REMOTE_WRITE,
        ACCESS_ZERO_BASED,
    )
    from softverbs.core.base.host import Host
    from softverbs.core.memory.device_memory import DeviceMemory
    from softverbs.core.memory.spaces import far, is_far

#: Rights as the words of an explanation have them; 0 is local read, which every region grants.
RIGHTS = (
    (ACCESS_LOCAL_WRITE, "LOCAL_WRITE"),
    (ACCESS_REMOTE_WRITE, "REMOTE_WRITE"),
    (ACCESS_REMOTE_READ, "REMOTE_READ"),
    (ACCESS_REMOTE_ATOMIC, "REMOTE_ATOMIC"),
    (ACCESS_MW_BIND, "MW_BIND"),
    (ACCESS_ZERO_BASED, "ZERO_BASED"),
    (ACCESS_FLUSH_GLOBAL, "FLUSH_GLOBAL"),
    (ACCESS_FLUSH_PERSISTENT, "FLUSH_PERSISTENT"),
)
# Bits from here on are hints that a device may ignore (ibv_reg_mr(3), IBV_ACCESS_OPTIONAL_RANGE).
_OPTIONAL = 0x3FF00000
# ON_DEMAND and HUGETLB change nothing here: all memory is on demand.
_IGNORED = 0x40 | 0x80
MW_TYPE_1 = 1
MW_TYPE_2 = 2
#: Kinds of entries. PLAIN: memory that is there. CHECKED: ``holder.allows`` is asked at each access. NOTHING: what is
#: read is zeros, what is written is discarded. FOREIGN: memory of another process (``spaces``).
PLAIN = 0
CHECKED = 1
NOTHING = 2
FOREIGN = 3
#: The longest access to a null region, bytes: a scatter/gather element cannot be longer.
LONGEST = 2**32
#: The length of what has no end: an implicit region, a null region (SIZE_MAX).
EVERYTHING = 2**64 - 1
#: The same for Python: the names above are C variables where the core is compiled.
VALUES = {
    "PLAIN": PLAIN, "CHECKED": CHECKED, "NOTHING": NOTHING, "FOREIGN": FOREIGN, "LONGEST": LONGEST,
    "EVERYTHING": EVERYTHING,
}  # fmt: skip
_WRITES = ACCESS_LOCAL_WRITE | ACCESS_REMOTE_WRITE | ACCESS_REMOTE_ATOMIC
_WINDOW_RIGHTS = _WRITES | ACCESS_REMOTE_READ | ACCESS_ZERO_BASED | ACCESS_FLUSH_GLOBAL | ACCESS_FLUSH_PERSISTENT
_ON_DEMAND = 0x40
_INDEX = 0xFFFFFF
#: Where addresses end: those of this process, and those of others that ``spaces`` can name.
_OWN_TOP = 2**63
_FOREIGN_TOP = 2**48


def rights_text(access: int) -> str:
    """The names of access bits, joined by ``|``; ``none`` for 0."""
    return "|".join(name for bit, name in RIGHTS if access & bit) or "none"


class ProtectionDomain:
    """A protection domain (ibv_alloc_pd(3)): QPs and memory of one domain may work together."""

    def __init__(self, port: Host, context_id: object) -> None:
        """
        :param port: the port that it belongs to
        :param context_id: the same for all objects of one context
        :raises PyverbsRDMAError: ENOMEM past ``max_pd``
        """
        self.port = port
        self.context_id = context_id
        self.handle = port.enter("protection domain", port.options.max_pd)
        self.users = 0
        self.closed = False

    def use(self, count: int) -> None:
        """Notes that an object was made in the domain (1) or that it is gone (-1)."""
        self.users += count

    def close(self) -> None:
        """Ends the domain (ibv_dealloc_pd(3)).

        :raises PyverbsRDMAError: EBUSY while there are objects in it
        """
        if self.closed:
            return
        if self.users:
            raise PyverbsRDMAError(
                f"protection domain {self.handle} holds {self.users} queue pairs, regions or windows", errno.EBUSY
            )
        self.closed = True
        self.port.leave("protection domain")


class MemoryRegion:
    """A memory region, or a memory window: the entry that a key finds."""

    def __init__(self, pd: ProtectionDomain, address: int, length: int, access: int, iova: int, holder: Any) -> None:
        """
        :param pd: its protection domain
        :param address: first byte, in this process or, where ``space`` is set afterwards, in another one
        :param length: bytes
        :param access: ``IBV_ACCESS_*``
        :param iova: what peers and work requests call the first byte
        :param holder: kept alive as long as the region
        """
        self.pd = pd
        self.address = address
        self.length = length
        #: Bytes that ``translate`` gives out at once; 0 where it must look closer.
        self.limit = length
        self.access = access
        self.iova = iova
        self.holder = holder
        self.kind = PLAIN
        #: FOREIGN: whose memory it is (``spaces``); 0: of this process.
        self.space = 0
        #: NOTHING: where zeros are read; ``address`` is where writes go.
        self.zeros = 0
        self.device_memory: DeviceMemory | None = None
        self.lkey = 0
        self.rkey = 0
        self.handle = 0
        self.window_type = 0
        self.bound_to: MemoryRegion | None = None
        self.windows = 0
        self.qp_num = 0
        self.valid = True


class Regions:
    """All regions and windows of a device, by key."""

    def __init__(self, limit: int, tag: int, base: int = 0) -> None:
        """
        :param limit: most entries
        :param tag: before the first one, so that keys differ between runs and peers' mistakes are noticed
        :param base: what keys have instead of index 0, of 23 bits, so that nobody guesses them
        """
        self.limit = limit
        self.entries: list[MemoryRegion | None] = [None]
        self.free: deque[int] = deque()
        self.tag = tag
        self.base = base
        self.active = 0
        self.windows = 0
        #: Bytes of the device's own memory that are taken.
        self.device_memory_used = 0

    def find(self, key: int) -> "MemoryRegion | None":
        """The entry that ``key`` opens, or None."""
        index = ((key >> 8) - self.base) & _INDEX
        if index >= len(self.entries):
            return None
        entry = self.entries[index]
        if entry is None or (entry.lkey != key and entry.rkey != key):
            return None
        return entry

    def window(self, key: int) -> "MemoryRegion | None":
        """The entry of the rkey ``key``, also where a window has been bound again since and has another; or None."""
        index = ((key >> 8) - self.base) & _INDEX
        if index >= len(self.entries):
            return None
        entry = self.entries[index]
        return entry if entry is not None and (entry.window_type or entry.rkey == key) else None

    def translate(self, key: int, va: int, length: int, right: int, pd: ProtectionDomain, qp_num: int) -> int:
        """The address of ``length`` bytes at ``va``, maybe a far one (``spaces``), or 0 where the access is refused.

        :param key: lkey or rkey
        :param va: first byte, in the region's own addressing
        :param length: bytes, at least 1
        :param right: one ``ACCESS_*`` bit that the region must grant, or 0 for a local read
        :param pd: protection domain of the QP
        :param qp_num: number of the QP, which a window of type 2 is bound to
        """
        index = ((key >> 8) - self.base) & _INDEX
        if index >= len(self.entries):
            return 0
        entry = self.entries[index]
        if entry is None:
            return 0
        if right > ACCESS_LOCAL_WRITE:
            if entry.rkey != key:
                return 0
        elif entry.lkey != key:
            return 0
        if entry.pd is not pd or right & ~entry.access:
            return 0
        if va < entry.iova or length > entry.limit or va - entry.iova > entry.limit - length:
            return self._beyond(entry, va, length, right, qp_num)
        if entry.window_type == MW_TYPE_2 and entry.qp_num != qp_num:
            return 0
        return entry.address + (va - entry.iova)

    def _beyond(self, entry: MemoryRegion, va: int, length: int, right: int, qp_num: int) -> int:
        """``translate`` for what is outside of an entry, or in one that is not plain memory."""
        if entry.kind == PLAIN or not entry.valid:
            return 0
        if entry.kind == NOTHING:
            if length > LONGEST:
                return 0
            return entry.address if right else entry.zeros
        if va < entry.iova or length > entry.length or va - entry.iova > entry.length - length:
            return 0
        if entry.window_type == MW_TYPE_2 and entry.qp_num != qp_num:
            return 0
        address = entry.address + (va - entry.iova)
        if entry.kind == FOREIGN:
            return 0 if address >= _FOREIGN_TOP else far(entry.space, address)
        if is_far(address) or not entry.holder.allows(address, length, right & _WRITES != 0):
            return 0
        return address

    def explain(self, key: int, va: int, length: int, right: int, pd: "ProtectionDomain | None", qp_num: int) -> str:
        """Why ``translate`` refuses the same arguments."""
        entry = self.find(key)
        wanted = f"{length} bytes at {va:#x}"
        if entry is None:
            return f"key {key:#x} is not registered (asked for: {wanted})"
        what = f"key {key:#x}"
        top = entry.iova + entry.length
        has = f"[{entry.iova:#x}, {top:#x}) with rights {rights_text(entry.access)}"
        if right > ACCESS_LOCAL_WRITE and entry.rkey != key:
            return f"{what} is the lkey of a null memory region, which peers cannot use ({wanted})"
        if right <= ACCESS_LOCAL_WRITE and entry.lkey != key:
            return f"{what} is the rkey of a memory window: it is for peers, and no lkey ({wanted})"
        if not entry.valid:
            if entry.window_type:
                return f"{what} is not bound or was invalidated (asked for: {wanted})"
            return f"{what} has no memory since a rereg_mr of it failed: it can only be deregistered ({wanted})"
        if entry.pd is not pd:
            own = "to none" if pd is None else f"to {pd.handle}"
            return f"{what} belongs to protection domain {entry.pd.handle}, the QP {own} ({wanted})"
        missing = right & ~entry.access
        if missing:
            return f"{what} lacks the right {rights_text(missing)}: it is {has} (asked for: {wanted})"
        if entry.window_type == MW_TYPE_2 and entry.qp_num != qp_num:
            return f"{what} is a memory window bound to QP {entry.qp_num:#x}, not to {qp_num:#x} ({wanted})"
        end = va + length
        inside = va >= entry.iova and length <= entry.length and va - entry.iova <= entry.length - length
        if entry.kind == CHECKED and inside:
            kind = "writable" if right & _WRITES else "readable"
            return f"{what}: the range [{va:#x}, {end:#x}) is not mapped {kind} in the process of the region"
        return f"{what} covers {has}, not the range [{va:#x}, {end:#x}) asked for"

    def register(
        self, pd: ProtectionDomain, address: int, length: int, access: int, iova: int, holder: object, kind: int = 0,
        space: int = 0,
    ) -> MemoryRegion:  # fmt: skip
        """Registers memory (ibv_reg_mr(3), ibv_reg_mr_iova(3)).

        :param kind: PLAIN, or CHECKED: each access asks ``holder.allows(address, length, writing)``
        :param space: where ``address`` is one of another process: its space (``spaces.enter``), kind FOREIGN.
            Whether the memory is there is found out by each access.
        :raises PyverbsRDMAError: EINVAL for arguments that contradict each other, EFAULT where no program has memory,
            ENOMEM past ``max_mr``
        """
        _check_access(access)
        _check_range(address, length, iova)
        _check_space(address, length, space)
        region = MemoryRegion(pd, address, length, access, 0 if access & ACCESS_ZERO_BASED else iova, holder)
        region.kind = FOREIGN if space else kind
        region.space = space
        if region.kind != PLAIN:
            region.limit = 0
        return self._enter_region(region)

    def register_device_memory(
        self, pd: ProtectionDomain, memory: DeviceMemory, offset: int, length: int, access: int
    ) -> MemoryRegion:
        """Registers device memory (ibv_reg_dm_mr(3)); its first byte is byte 0 to peers and work requests.

        :param offset: of the first byte in the device memory
        :param length: bytes; 0 makes a region that opens nothing
        :param access: ``IBV_ACCESS_*``, with ZERO_BASED
        :raises PyverbsRDMAError: EINVAL outside of the memory, or without ZERO_BASED
        """
        _check_access(access)
        if not access & ACCESS_ZERO_BASED:
            raise PyverbsRDMAError("a region over device memory needs ZERO_BASED (ibv_alloc_dm(3))", errno.EINVAL)
        if access & _ON_DEMAND:
            raise PyverbsRDMAError("a region over device memory cannot be ON_DEMAND", errno.EINVAL)
        if memory.closed:
            raise PyverbsRDMAError("the device memory was freed", errno.EINVAL)
        if offset < 0 or length < 0 or length > memory.length - offset:
            raise PyverbsRDMAError(
                f"{length} bytes at offset {offset} are outside of the device memory, which has {memory.length}",
                errno.EINVAL,
            )
        region = MemoryRegion(pd, memory.address + offset, length, access, 0, memory)
        region = self._enter_region(region)
        region.device_memory = memory
        memory.users += 1
        return region

    def register_null(self, pd: ProtectionDomain, sink: int, zeros: int, holder: object) -> MemoryRegion:
        """A null region (ibv_alloc_null_mr(3)): local use only, of any address and length.

        :param sink: address of LONGEST bytes that nobody reads
        :param zeros: address of LONGEST bytes that nobody writes
        :param holder: of both
        """
        region = MemoryRegion(pd, sink, EVERYTHING, ACCESS_LOCAL_WRITE, 0, holder)
        region.kind = NOTHING
        region.limit = 0
        region.zeros = zeros
        region.lkey = self._enter(region)
        return region

    def reregister(
        self,
        region: MemoryRegion,
        pd: "ProtectionDomain | None",
        address: int,
        length: int,
        access: int,
        holder: object,
        kind: int,
    ) -> None:
        """Changes a region in place; its keys stay (ibv_rereg_mr(3)). Where it is refused nothing has changed.

        :param pd: another protection domain, or None
        :param address: of other memory; looked at where ``holder`` is not None
        :param length: of other memory, bytes
        :param access: the rights from now on
        :param holder: of other memory, or None
        :param kind: PLAIN or CHECKED; looked at for memory of this process
        :raises PyverbsRDMAError: EINVAL for what cannot be changed so, EBUSY while windows are bound
        """
        self.check_reregister(region)
        _check_access(access)
        if holder is not None:
            _check_range(address, length, address)
            _check_space(address, length, region.space)
        if pd is not None and pd is not region.pd:
            pd.use(1)
            region.pd.use(-1)
            region.pd = pd
        if holder is not None:
            region.address = address
            region.length = length
            region.iova = address
            region.holder = holder
        if access & ACCESS_ZERO_BASED:
            region.iova = 0
        elif region.access & ACCESS_ZERO_BASED:
            region.iova = region.address
        region.access = access
        region.kind = FOREIGN if region.space else kind
        region.limit = region.length if region.kind == PLAIN else 0

    def check_reregister(self, region: MemoryRegion) -> None:
        """Refuses regions that ``reregister`` cannot change."""
        if not region.valid:
            raise PyverbsRDMAError("the region has no memory since a rereg_mr of it failed", errno.EINVAL)
        if region.kind == NOTHING or region.device_memory is not None or region.length == EVERYTHING:
            raise PyverbsRDMAError("a null, implicit or device memory region cannot be changed", errno.EINVAL)
        if region.windows:
            raise PyverbsRDMAError(
                f"{region.windows} memory windows are bound to the region with lkey {region.lkey:#x}", errno.EBUSY
            )

    def lose(self, region: MemoryRegion) -> None:
        """A region whose reregistration failed half way opens nothing from now on."""
        region.valid = False
        region.limit = 0

    def by_handle(self, handle: int, context_id: object) -> "MemoryRegion | None":
        """The memory region of a context that has this handle, or None (ibv_import_mr(3))."""
        if not 0 < handle < len(self.entries):
            return None
        entry = self.entries[handle]
        if entry is None or entry.window_type or entry.pd.context_id is not context_id:
            return None
        return entry

    def advised(self, pd: ProtectionDomain, key: int, va: int, length: int, writing: bool) -> int:
        """The address of a range that ibv_advise_mr(3) may speak of.

        :param key: lkey of an ON_DEMAND region
        :param writing: whether it is to be made ready for writing
        :raises PyverbsRDMAError: EFAULT for no region or outside of it, ENOENT for a key of the past, EINVAL for a
            window or a region that is not ON_DEMAND, EPERM for another protection domain or a read-only region
        """
        index = ((key >> 8) - self.base) & _INDEX
        entry: MemoryRegion | None = None
        if index < len(self.entries):
            entry = self.entries[index]
        if entry is None:
            raise PyverbsRDMAError(f"key {key:#x} is not registered", errno.EFAULT)
        if entry.window_type or (entry.lkey == key and not entry.access & _ON_DEMAND):
            raise PyverbsRDMAError(f"key {key:#x} is not that of an ON_DEMAND memory region", errno.EINVAL)
        if entry.lkey != key or not entry.valid:
            raise PyverbsRDMAError(f"key {key:#x} is of the past: its place has another one", errno.ENOENT)
        if entry.pd is not pd:
            raise PyverbsRDMAError(f"key {key:#x} belongs to another protection domain", errno.EPERM)
        if writing and not entry.access & ACCESS_LOCAL_WRITE:
            raise PyverbsRDMAError(f"key {key:#x} lacks LOCAL_WRITE, which PREFETCH_WRITE needs", errno.EPERM)
        if va < entry.iova or length > entry.length or va - entry.iova > entry.length - length:
            raise PyverbsRDMAError(
                f"{length} bytes at {va:#x} are outside of the region with lkey {key:#x}", errno.EFAULT
            )
        return entry.address + (va - entry.iova)

    def deregister(self, region: MemoryRegion) -> None:
        """Ends a region (ibv_dereg_mr(3)): its keys find nothing from now on.

        :raises PyverbsRDMAError: EBUSY while memory windows are bound to it
        """
        if not region.handle:
            return
        if region.windows:
            raise PyverbsRDMAError(
                f"{region.windows} memory windows are bound to the region with lkey {region.lkey:#x}", errno.EBUSY
            )
        self._unbind(region)
        if region.window_type:
            self.windows -= 1
        if region.device_memory is not None:
            region.device_memory.users -= 1
            region.device_memory = None
        self._leave(region)
        region.holder = None

    def allocate_window(self, pd: ProtectionDomain, window_type: int) -> MemoryRegion:
        """A memory window that is not bound (ibv_alloc_mw(3)).

        :param window_type: ``IBV_MW_TYPE_1`` or ``IBV_MW_TYPE_2``
        """
        if window_type not in (MW_TYPE_1, MW_TYPE_2):
            raise PyverbsRDMAError(f"memory window type {window_type}: 1 or 2", errno.EINVAL)
        window = MemoryRegion(pd, 0, 0, 0, 0, None)
        window.window_type = window_type
        window.valid = False
        most = pd.port.options.max_mw
        if self.windows >= most:
            raise PyverbsRDMAError(f"the device has {most} memory windows at most, and all are in use", errno.ENOMEM)
        window.rkey = self._enter(window)
        self.windows += 1
        return window

    def bind(
        self,
        window: MemoryRegion,
        region: MemoryRegion,
        va: int,
        length: int,
        access: int,
        rkey: int,
        qp_num: int,
        pd: "ProtectionDomain | None" = None,
    ) -> str:
        """Binds a window to a part of a region; "" or the reason why not (ibv_bind_mw(3), IBA 10.6.7.2).

        A window of type 1 may be bound anew at any time; a length of 0 ends its binding.

        :param rkey: the window's key from now on: the same place, another tag
        :param qp_num: the queue pair that binds it; a window of type 2 is open to its peer only
        :param pd: protection domain of that queue pair
        """
        refusal = self._unfit(window, region, access, rkey, pd)
        if refusal:
            return refusal
        if length == 0:
            if window.window_type == MW_TYPE_2:
                return "a memory window of type 2 is unbound by LOCAL_INV or SEND_WITH_INV, not by a bind of 0 bytes"
        else:
            refusal = self._unbindable(window, region, va, length, access)
            if refusal:
                return refusal
        self._unbind(window)
        window.rkey = rkey
        window.qp_num = qp_num
        if length == 0:
            return ""
        window.address = region.address + (va - region.iova)
        window.iova = 0 if access & ACCESS_ZERO_BASED else va
        window.length = length
        window.access = access
        window.kind = region.kind
        window.space = region.space
        window.holder = region.holder
        window.limit = length if region.kind == PLAIN else 0
        window.bound_to = region
        window.valid = True
        region.windows += 1
        return ""

    def _unfit(
        self, window: MemoryRegion, region: MemoryRegion, access: int, rkey: int, pd: "ProtectionDomain | None"
    ) -> str:
        """Why a window and a region cannot be brought together at all, or ""."""
        if window.window_type == 0 or region.window_type != 0:
            return "only a memory window can be bound, and only to a memory region"
        if window.window_type == MW_TYPE_2 and window.valid:
            return f"memory window {window.rkey:#x} of type 2 is bound already: invalidate it first"
        if window.pd is not region.pd:
            return "the memory window and the memory region are of different protection domains"
        if pd is not None and window.pd is not pd:
            return f"the memory window belongs to protection domain {window.pd.handle}, the QP to {pd.handle}"
        if rkey >> 8 != window.rkey >> 8:
            return f"the new key {rkey:#x} differs from {window.rkey:#x} in more than its low 8 bits"
        if access & ~_WINDOW_RIGHTS:
            return f"rights {access & ~_WINDOW_RIGHTS:#x} are none of a memory window"
        return ""

    def _unbindable(self, window: MemoryRegion, region: MemoryRegion, va: int, length: int, access: int) -> str:
        """Why a region does not let a window be bound so, or ""."""
        if not region.access & ACCESS_MW_BIND:
            return f"the memory region {region.lkey:#x} lacks the right MW_BIND"
        if not region.valid:
            return f"the memory region {region.lkey:#x} has no memory since a rereg_mr of it failed"
        if access & (ACCESS_REMOTE_WRITE | ACCESS_REMOTE_ATOMIC) and not region.access & ACCESS_LOCAL_WRITE:
            return f"the memory region {region.lkey:#x} lacks LOCAL_WRITE, which the window's rights need"
        if va < region.iova or length > region.length or va - region.iova > region.length - length:
            return f"{length} bytes at {va:#x} are not inside the memory region {region.lkey:#x}"
        return ""

    def invalidate(self, rkey: int, pd: ProtectionDomain, qp_num: int) -> str:
        """Ends the binding of a window of type 2; "" or the reason why not (IBA 10.6.7.2.4)."""
        entry = self.find(rkey)
        if entry is None:
            return f"key {rkey:#x} is not registered, so it cannot be invalidated"
        if entry.window_type != MW_TYPE_2:
            return f"key {rkey:#x} is not that of a memory window of type 2: only such a key can be invalidated"
        if entry.pd is not pd:
            return f"key {rkey:#x} belongs to protection domain {entry.pd.handle}, the QP to {pd.handle}"
        if entry.valid and entry.qp_num != qp_num:
            return f"key {rkey:#x} is bound to QP {entry.qp_num:#x}, not to {qp_num:#x}"
        self._unbind(entry)
        return ""

    def _unbind(self, window: MemoryRegion) -> None:
        if window.bound_to is not None:
            window.bound_to.windows -= 1
            window.bound_to = None
            window.valid = False
            window.limit = 0
            window.kind = PLAIN
            window.space = 0
            window.holder = None

    def _enter_region(self, region: MemoryRegion) -> MemoryRegion:
        key = self._enter(region)
        region.lkey = key
        region.rkey = key
        return region

    def _enter(self, entry: MemoryRegion) -> int:
        if self.active >= self.limit:
            raise PyverbsRDMAError(f"all {self.limit} memory regions of the device are in use", errno.ENOMEM)
        if self.free:
            index = self.free.pop()
        else:
            index = len(self.entries)
            self.entries.append(None)
        self.entries[index] = entry
        self.active += 1
        self.tag = (self.tag + 1) & 0xFF
        entry.handle = index
        entry.pd.use(1)
        return (index + self.base & _INDEX) << 8 | self.tag

    def _leave(self, entry: MemoryRegion) -> None:
        self.entries[entry.handle] = None
        self.free.appendleft(entry.handle)
        self.active -= 1
        entry.handle = 0
        entry.valid = False
        entry.limit = 0
        entry.pd.use(-1)


def _check_range(address: int, length: int, iova: int) -> None:
    if length <= 0:
        raise PyverbsRDMAError(f"a memory region of {length} bytes: at least 1 is needed", errno.EINVAL)
    if address + length > 2**64 or iova + length > 2**64:
        raise PyverbsRDMAError(f"{length} bytes at {address:#x} (iova {iova:#x}) pass 2^64", errno.EINVAL)


def _check_space(address: int, length: int, space: int) -> None:
    top = _FOREIGN_TOP if space else _OWN_TOP
    if address + length > top and length != EVERYTHING:
        raise PyverbsRDMAError(f"{length} bytes at {address:#x}: no program has memory there", errno.EFAULT)


def _check_access(access: int) -> None:
    known = ACCESS_ZERO_BASED | _IGNORED | _OPTIONAL
    for bit, _ in RIGHTS:
        known |= bit
    if access & ~known:
        raise PyverbsRDMAError(f"unknown access flags {access & ~known:#x}", errno.EINVAL)
    if access & (ACCESS_REMOTE_WRITE | ACCESS_REMOTE_ATOMIC) and not access & ACCESS_LOCAL_WRITE:
        raise PyverbsRDMAError(
            f"access {rights_text(access)}: REMOTE_WRITE and REMOTE_ATOMIC need LOCAL_WRITE (ibv_reg_mr(3))",
            errno.EINVAL,
        )
