# SPDX-License-Identifier: MIT
"""MR, the memory region; its kinds are in ``_mr_kinds``."""

import ctypes
from typing import Any

from softverbs.core.memory.regions import VALUES as KINDS
from softverbs.pyverbs import libibverbs_enums as e
from softverbs.pyverbs._fields import instance, integer, lines, refused
from softverbs.pyverbs._importable import Importable
from softverbs.pyverbs._mr_memory import Memory, at_address, chosen
from softverbs.pyverbs.pd import PD
from softverbs.pyverbs.pyverbs_error import PyverbsRDMAError, PyverbsUserError
from softverbs.pyverbs.utils import rereg_error_to_str

_REREG_FLAGS = e.IBV_REREG_MR_CHANGE_TRANSLATION | e.IBV_REREG_MR_CHANGE_PD | e.IBV_REREG_MR_CHANGE_ACCESS
_EVERYTHING = KINDS["EVERYTHING"]


class MR(Importable):
    """A memory region, ``struct ibv_mr`` (ibv_reg_mr(3)): over memory of its own, an address, or any buffer."""

    _kind = "MR"
    #: What a refusal begins with.
    _refusal = "Failed to register a MR"
    #: Extension: what the last ``rereg`` came to, 0 or IBV_REREG_MR_ERR_*.
    rereg_error = 0

    def __init__(
        self,
        creator: Any,
        length: Any = 0,
        access: int = 0,
        address: int | None = None,
        implicit: bool = False,
        **kwargs: Any,
    ) -> None:
        """
        :param creator: the protection domain, or a CMID that has one
        :param length: bytes. Without ``address`` the region gets zeroed, page-aligned memory of its own.
            Extension: a buffer instead (bytearray, mmap, NumPy array, memoryview, bytes): it is registered as it is,
            and cannot be resized or closed before the region is
        :param access: IBV_ACCESS_* bits
        :param address: register memory of the process that lies here; the caller keeps it mapped, unless it is
            ON_DEMAND: then each access of the device looks whether it is there
        :param implicit: all memory of the process at once; needs ON_DEMAND. ``length`` and ``address`` then only say
            what ``read`` and ``write`` mean
        :param kwargs: ``handle``: import the region of this handle, of a context that shares the domain's objects
            (ibv_import_mr(3)); ``address`` is then where ``read`` and ``write`` go.
            Extension: ``iova``: what work requests call the first byte (ibv_reg_mr_iova(3)); its address by default
        :raises PyverbsRDMAError: EINVAL for contradictions, EFAULT for memory that is not there, ENOMEM
        """
        if kwargs.keys() - {"handle", "iova"}:
            raise PyverbsUserError(f"MR has no argument {', '.join(sorted(kwargs))}")
        pd, owner = _domain(creator)
        access = integer(access, "access")
        if kwargs.get("handle") is not None:
            self._import(pd, integer(kwargs["handle"], "handle"), address)
            return
        if owner is not None:
            access = _for_messages(access)
        memory = chosen(length, access, address, self._refusal)
        iova = None if kwargs.get("iova") is None else integer(kwargs["iova"], "iova", 64)
        try:
            with pd._guard(self._refusal, verb="reg_mr", size=memory.length) as device:
                regions = device.port.regions
                if implicit:
                    core = _register_everything(regions, pd._core, access, iova, memory)
                else:
                    where = memory.address if iova is None else iova
                    kind = memory.kind(access)
                    core = regions.register(pd._core, memory.address, memory.length, access, where, memory, kind)
                self._adopt(pd, core, memory)
        except BaseException:
            if self._core is None:  # else it is registered, and a signal's handler has raised
                memory.release()
            raise
        if owner is not None:
            self._keep_owner(owner)

    def _adopt(self, pd: PD, core: Any, memory: Memory) -> None:
        """Begins life in a domain; the lock is held."""
        self._memory = memory
        self._pd: PD | None = pd
        self._start(pd._context_or_closed(), core)
        pd._mrs.add(self)

    def _keep_owner(self, owner: Any) -> None:
        """A CMID closes the regions that were registered by it."""
        add_ref = getattr(owner, "add_ref", None)
        if add_ref is not None:
            add_ref(self)

    def _import(self, pd: PD, handle: int, address: int | None) -> None:
        with pd._guard("Failed to import MR", verb="import_mr") as device:
            core = device.port.regions.by_handle(handle, pd._context_or_closed()._core)
            if core is None:
                raise refused(f"the context has no memory region with handle {handle}")
            self._imported = True
            self._adopt(pd, core, at_address(address, core.length, core.access) if address else Memory(0, 0))

    def _remains(self) -> Any:
        return self._core, self._memory, self._device().port.regions

    @staticmethod
    def _bury(remains: Any) -> None:
        core, memory, regions = remains
        regions.deregister(core)
        memory.release()

    def _forget(self) -> None:
        super()._forget()
        self._memory.release()
        self._pd = None

    @property
    def buf(self) -> int:
        """Address of the first byte; 0 when closed."""
        return 0 if self._core is None else self._memory.address

    @property
    def lkey(self) -> int:
        """The key for local use, in scatter/gather elements."""
        return int(self._open().lkey)

    @property
    def rkey(self) -> int:
        """The key for peers."""
        return int(self._open().rkey)

    @property
    def length(self) -> int:
        """Bytes."""
        return int(self._open().length)

    @property
    def handle(self) -> int:
        """The device's number for it."""
        return int(self._open().handle)

    @property
    def iova(self) -> int:
        """Extension: what work requests call the first byte."""
        return int(self._open().iova)

    def write(self, data: Any, length: int, offset: int = 0) -> None:
        """Copies into the region.

        :param data: bytes, or a text that is encoded as UTF-8
        :param length: how many bytes of it
        :param offset: from the region's first byte
        :raises PyverbsUserError: outside of the region, or of ``data``, or of memory that is not there
        """
        source = octets(data, "MR.write")
        length, offset = self._range(length, offset, True)
        if length > len(source):
            raise PyverbsUserError(f"MR.write of {length} bytes, but data has {len(source)}")
        ctypes.memmove(self._memory.address + offset, source, length)

    def read(self, length: int, offset: int) -> bytes:
        """Copies out of the region.

        :param length: bytes
        :param offset: from the region's first byte
        :raises PyverbsUserError: outside of the region, or of memory that is not there
        """
        length, offset = self._range(length, offset, False)
        return ctypes.string_at(self._memory.address + offset, length)

    def _range(self, length: int, offset: int, writing: bool) -> tuple[int, int]:
        core, memory = self._open(), self._memory
        size = memory.length
        length, offset = integer(length, "length", 64, signed=True), integer(offset, "offset", 64, signed=True)
        if length < 0 or offset < 0 or length > size - offset:
            raise PyverbsUserError(f"length {length} at offset {offset} is outside of the MR, which has {size} bytes")
        checked = memory.borrowed and core.access & e.IBV_ACCESS_ON_DEMAND
        if checked and length and not memory.allows(memory.address + offset, length, writing):
            raise PyverbsUserError(f"length {length} at offset {offset} of the MR: the memory is not there")
        return length, offset

    def rereg(self, flags: int, pd: PD | None = None, addr: int = 0, length: int = 0, access: int = 0) -> None:
        """Changes a region in place (ibv_rereg_mr(3)); its keys stay.

        After IBV_REREG_MR_ERR_INPUT, which the exception and ``rereg_error`` name, the region is as it was. After
        IBV_REREG_MR_ERR_CMD it opens nothing any more and can only be closed.

        :param flags: IBV_REREG_MR_CHANGE_* bits
        :param pd: another protection domain
        :param addr: another address; the caller keeps it mapped
        :param length: another length, bytes
        :param access: other IBV_ACCESS_* bits
        :raises PyverbsRDMAError: EINVAL for contradictions, EBUSY while windows are bound, EFAULT for memory that is
            not there
        """
        flags, access = integer(flags, "flags"), integer(access, "access")
        self.rereg_error = e.IBV_REREG_MR_ERR_CMD
        with self._guard("Failed to rereg MR", verb="rereg_mr", size=length) as device:
            regions = device.port.regions
            try:
                self._check_rereg(regions, flags, pd, addr, length, access)
            except PyverbsRDMAError as error:
                raise self._not_changed(e.IBV_REREG_MR_ERR_INPUT, error) from None
            try:
                self._change(regions, flags, pd, addr, length, access)
            except PyverbsRDMAError as error:
                regions.lose(self._core)
                raise self._not_changed(e.IBV_REREG_MR_ERR_CMD, error) from None
        self.rereg_error = 0

    def _not_changed(self, code: int, error: PyverbsRDMAError) -> PyverbsRDMAError:
        self.rereg_error = code
        return refused(f"{rereg_error_to_str(code)}: {error.reason}", error.error_code)

    def _check_rereg(self, regions: Any, flags: int, pd: PD | None, addr: int, length: int, access: int) -> None:
        """What is refused before anything is done."""
        if not flags or flags & ~_REREG_FLAGS:
            raise refused(f"flags={flags:#x}: IBV_REREG_MR_CHANGE_* bits are expected")
        if flags & e.IBV_REREG_MR_CHANGE_TRANSLATION and not (
            integer(addr, "addr", 64) and integer(length, "length", 64)
        ):
            raise refused(f"CHANGE_TRANSLATION to {length} bytes at {addr:#x}: both are needed")
        if access and not flags & e.IBV_REREG_MR_CHANGE_ACCESS:
            raise refused(f"access={access:#x} without CHANGE_ACCESS")
        if flags & e.IBV_REREG_MR_CHANGE_PD:
            instance(pd, PD, "CHANGE_PD: pd")
            assert pd is not None
            pd._open()
            if pd._context_or_closed()._core is not self._context._core:  # type: ignore[union-attr]
                raise refused("the protection domain belongs to another context")
        regions.check_reregister(self._open())

    def _change(self, regions: Any, flags: int, pd: PD | None, addr: int, length: int, access: int) -> None:
        core, memory = self._core, self._memory
        if not flags & e.IBV_REREG_MR_CHANGE_ACCESS:
            access = core.access
        other = None
        if flags & e.IBV_REREG_MR_CHANGE_TRANSLATION:
            memory = other = at_address(addr, length, access)
        else:
            memory.check(access)
        domain = pd if flags & e.IBV_REREG_MR_CHANGE_PD else None
        core_pd = None if domain is None else domain._core
        regions.reregister(core, core_pd, memory.address, memory.length, access, other, memory.kind(access))
        if other is not None:
            self._memory.release()
            self._memory = other
        if domain is not None and self._pd is not None:
            self._pd._mrs.discard(self)
            self._pd = domain
            domain._mrs.add(self)

    def __str__(self) -> str:
        rows = (("lkey", self.lkey), ("rkey", self.rkey), ("length", self.length), ("buf", self.buf))
        return f"{self._kind}:\n" + lines(22, *rows, ("handle", self.handle))


def octets(data: Any, what: str) -> bytes:
    """The bytes of ``data``, which may be a text (UTF-8).

    :param what: who asks, for the message
    """
    try:
        return data.encode() if isinstance(data, str) else bytes(memoryview(data))
    except TypeError:
        raise refused(f"{what}: data is {type(data).__name__}: bytes are expected") from None


def _register_everything(regions: Any, pd: Any, access: int, iova: int | None, memory: Memory) -> Any:
    """An implicit region: all of the process."""
    if not access & e.IBV_ACCESS_ON_DEMAND:
        raise refused("an implicit region needs IBV_ACCESS_ON_DEMAND")
    if access & (e.IBV_ACCESS_ZERO_BASED | e.IBV_ACCESS_MW_BIND | e.IBV_ACCESS_HUGETLB) or iova:
        raise refused("an implicit region has no ZERO_BASED, MW_BIND, HUGETLB or iova")
    return regions.register(pd, 0, _EVERYTHING, access, 0, memory, KINDS["CHECKED"])


def _domain(creator: Any) -> tuple[PD, Any]:
    """The protection domain that a region is made in, and the CMID that it came from, if any."""
    if isinstance(creator, PD):
        creator._context_or_closed()
        return creator, None
    pd = getattr(creator, "pd", None)
    if not isinstance(pd, PD):
        instance(creator, PD, "MR creator")
    return pd, creator  # type: ignore[return-value]


def _for_messages(access: int) -> int:
    """The rights of rdma_reg_msgs(3), rdma_reg_read(3) and rdma_reg_write(3): all of them may be received into."""
    if access not in (e.IBV_ACCESS_LOCAL_WRITE, e.IBV_ACCESS_REMOTE_WRITE, e.IBV_ACCESS_REMOTE_READ):
        raise refused(
            f"Failed to register a MR: access={access:#x}: a CMID registers for LOCAL_WRITE, REMOTE_WRITE or "
            "REMOTE_READ, one of them"
        )
    return access | e.IBV_ACCESS_LOCAL_WRITE
