"""Protection domains, memory regions and memory windows: who may touch which bytes.

A key is ``index << 8 | tag``: the index finds the entry at once, the tag changes with each registration, so that a
key of the past finds nothing. Every access of the device to an application's memory, local or for a peer, goes
through ``Regions.translate``; what it refuses, ``explain`` words.
"""

import errno

try:
    import cython
except ImportError:
    from softverbs import _cython as cython
from softverbs.core.errors import PyverbsRDMAError

if not cython.compiled:
    from softverbs.core.constants import (
        ACCESS_LOCAL_WRITE,
        ACCESS_MW_BIND,
        ACCESS_REMOTE_ATOMIC,
        ACCESS_REMOTE_READ,
        ACCESS_REMOTE_WRITE,
        ACCESS_ZERO_BASED,
    )
    from softverbs.core.host import Host

#: Rights as the words of an explanation have them; 0 is local read, which every region grants.
RIGHTS = (
    (ACCESS_LOCAL_WRITE, "LOCAL_WRITE"),
    (ACCESS_REMOTE_WRITE, "REMOTE_WRITE"),
    (ACCESS_REMOTE_READ, "REMOTE_READ"),
    (ACCESS_REMOTE_ATOMIC, "REMOTE_ATOMIC"),
    (ACCESS_MW_BIND, "MW_BIND"),
    (ACCESS_ZERO_BASED, "ZERO_BASED"),
)
# Bits from here on are hints that a device may ignore (ibv_reg_mr(3), IBV_ACCESS_OPTIONAL_RANGE).
_OPTIONAL = 0x3FF00000
# ON_DEMAND and HUGETLB change nothing here: all memory is on demand.
_IGNORED = 0x40 | 0x80
MW_TYPE_1 = 1
MW_TYPE_2 = 2


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

    def __init__(self, pd: ProtectionDomain, address: int, length: int, access: int, iova: int, holder: object) -> None:
        """
        :param pd: its protection domain
        :param address: first byte, in this process
        :param length: bytes
        :param access: ``IBV_ACCESS_*``
        :param iova: what peers and work requests call the first byte
        :param holder: kept alive as long as the region
        """
        self.pd = pd
        self.address = address
        self.length = length
        self.access = access
        self.iova = iova
        self.holder = holder
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

    def __init__(self, limit: int, seed: int) -> None:
        """
        :param limit: most entries
        :param seed: of the first tag, so that keys differ between runs and peers' mistakes are noticed
        """
        self.limit = limit
        self.entries: list[MemoryRegion | None] = [None]
        self.free: list[int] = []
        self.tag = seed & 0xFF
        self.active = 0

    def find(self, key: int) -> "MemoryRegion | None":
        """The entry that ``key`` opens, or None."""
        index = key >> 8
        if index >= len(self.entries):
            return None
        entry = self.entries[index]
        if entry is None or (entry.lkey != key and entry.rkey != key):
            return None
        return entry

    def translate(self, key: int, va: int, length: int, right: int, pd: ProtectionDomain, qp_num: int) -> int:
        """The address of ``length`` bytes at ``va``, or 0 where the access is refused.

        :param key: lkey or rkey
        :param va: first byte, in the region's own addressing
        :param length: bytes, at least 1
        :param right: one ``ACCESS_*`` bit that the region must grant, or 0 for a local read
        :param pd: protection domain of the QP
        :param qp_num: number of the QP, which a window of type 2 is bound to
        """
        entry = self.find(key)
        if entry is None or not entry.valid or entry.pd is not pd:
            return 0
        if right & ~entry.access:
            return 0
        if va < entry.iova or length > entry.length or va - entry.iova > entry.length - length:
            return 0
        if entry.window_type == MW_TYPE_2 and entry.qp_num != qp_num:
            return 0
        return entry.address + (va - entry.iova)

    def explain(self, key: int, va: int, length: int, right: int, pd: ProtectionDomain, qp_num: int) -> str:
        """Why ``translate`` refuses the same arguments."""
        entry = self.find(key)
        wanted = f"{length} bytes at {va:#x}"
        if entry is None:
            return f"key {key:#x} is not registered (asked for: {wanted})"
        what = f"key {key:#x}"
        top = entry.iova + entry.length
        has = f"[{entry.iova:#x}, {top:#x}) with rights {rights_text(entry.access)}"
        if not entry.valid:
            return f"{what} is not bound or was invalidated (asked for: {wanted})"
        if entry.pd is not pd:
            return f"{what} belongs to protection domain {entry.pd.handle}, the QP to {pd.handle} ({wanted})"
        missing = right & ~entry.access
        if missing:
            return f"{what} lacks the right {rights_text(missing)}: it is {has} (asked for: {wanted})"
        if entry.window_type == MW_TYPE_2 and entry.qp_num != qp_num:
            return f"{what} is a memory window bound to QP {entry.qp_num:#x}, not to {qp_num:#x} ({wanted})"
        end = va + length
        return f"{what} covers {has}, not the range [{va:#x}, {end:#x}) asked for"

    def register(
        self, pd: ProtectionDomain, address: int, length: int, access: int, iova: int, holder: object
    ) -> MemoryRegion:
        """Registers memory (ibv_reg_mr(3), ibv_reg_mr_iova(3)).

        :raises PyverbsRDMAError: EINVAL for arguments that contradict each other, ENOMEM past ``max_mr``
        """
        _check_access(access)
        if length <= 0:
            raise PyverbsRDMAError(f"a memory region of {length} bytes: at least 1 is needed", errno.EINVAL)
        if address + length > 2**64 or iova + length > 2**64:
            raise PyverbsRDMAError(f"{length} bytes at {address:#x} (iova {iova:#x}) pass 2^64", errno.EINVAL)
        region = MemoryRegion(pd, address, length, access, 0 if access & ACCESS_ZERO_BASED else iova, holder)
        key = self._enter(region)
        region.lkey = key
        region.rkey = key
        return region

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
        window.rkey = self._enter(window)
        return window

    def bind(
        self, window: MemoryRegion, region: MemoryRegion, va: int, length: int, access: int, rkey: int, qp_num: int
    ) -> str:
        """Binds a window to a part of a region; "" or the reason why not (ibv_bind_mw(3), IBA 10.6.7.2)."""
        if window.window_type == 0 or region.window_type != 0:
            return "only a memory window can be bound, and only to a memory region"
        if window.window_type == MW_TYPE_2 and window.valid:
            return f"memory window {window.rkey:#x} of type 2 is bound already: invalidate it first"
        if window.pd is not region.pd:
            return "the memory window and the memory region are of different protection domains"
        if not region.access & ACCESS_MW_BIND:
            return f"the memory region {region.lkey:#x} lacks the right MW_BIND"
        if access & (ACCESS_REMOTE_WRITE | ACCESS_REMOTE_ATOMIC) and not region.access & ACCESS_LOCAL_WRITE:
            return f"the memory region {region.lkey:#x} lacks LOCAL_WRITE, which the window's rights need"
        if va < region.iova or length > region.length or va - region.iova > region.length - length:
            return f"{length} bytes at {va:#x} are not inside the memory region {region.lkey:#x}"
        self._unbind(window)
        window.address = region.address + (va - region.iova)
        window.iova = 0 if access & ACCESS_ZERO_BASED else va
        window.length = length
        window.access = access
        window.rkey = rkey
        window.qp_num = qp_num
        window.bound_to = region
        window.valid = length > 0
        region.windows += 1
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
        return (index << 8) | self.tag

    def _leave(self, entry: MemoryRegion) -> None:
        self.entries[entry.handle] = None
        self.free.insert(0, entry.handle)
        self.active -= 1
        entry.handle = 0
        entry.valid = False
        entry.pd.use(-1)


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
