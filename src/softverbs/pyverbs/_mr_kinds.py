# SPDX-License-Identifier: MIT
"""Memory regions over other things than plain memory of the process, and the extended way to register."""

import errno
from typing import Any

from softverbs.core.memory.regions import VALUES as KINDS
from softverbs.pyverbs._buffers import address_of, allocate, nothing
from softverbs.pyverbs._dm import DM, whole
from softverbs.pyverbs._fields import Field, fill, instance, integer, lines, refused
from softverbs.pyverbs._mr_base import MR, octets
from softverbs.pyverbs._mr_memory import Memory
from softverbs.pyverbs.base import Children, PyverbsObject, Resource
from softverbs.pyverbs.device import Context
from softverbs.pyverbs.pd import PD

_EXTENDED = "Failed to register MR using extended API"


class DMMR(MR):
    """A region over device memory (ibv_reg_dm_mr(3)): its first byte is byte 0 to peers and to work requests."""

    def __init__(self, pd: PD, length: int, access: int, dm: DM, offset: int) -> None:
        """
        :param pd: the protection domain
        :param length: bytes
        :param access: IBV_ACCESS_* bits, with ZERO_BASED
        :param dm: the device memory
        :param offset: of the region's first byte in the device memory
        :raises PyverbsRDMAError: EINVAL outside of the device memory, or without ZERO_BASED
        """
        instance(pd, PD, "DMMR pd")
        instance(dm, DM, "DMMR dm")
        size, rights = integer(whole(length), "length", 64), integer(access, "access")
        start = integer(whole(offset), "offset", 64)
        with pd._guard("Failed to register a device MR", verb="reg_dm_mr", size=size) as device:
            core = device.port.regions.register_device_memory(pd._core, dm._open(), start, size, rights)
            self._dm: DM | None = dm
            self._adopt(pd, core, Memory(0, 0))
            dm._dm_mrs.add(self)

    def _forget(self) -> None:
        super()._forget()
        self._dm = None

    def write(self, data: Any, length: int, offset: int = 0) -> None:
        """Copies into the device memory.

        :param data: bytes, or a text that is encoded as UTF-8
        :param length: how many bytes of it, a multiple of 4
        :param offset: from the first byte of the device memory, a multiple of 4
        """
        self._memory_of().copy_to_dm(offset, octets(data, "DMMR.write"), length)

    def read(self, length: int, offset: int) -> bytes:
        """Copies out of the device memory.

        :param length: bytes, a multiple of 4
        :param offset: from the first byte of the device memory, a multiple of 4
        """
        return self._memory_of().copy_from_dm(offset, length)

    def _memory_of(self) -> DM:
        self._open()
        assert self._dm is not None
        return self._dm


class NullMR(MR):
    """Extension: a null region (ibv_alloc_null_mr(3)), which pyverbs has not.

    Elements with its ``lkey`` may have any address and length: what is sent from it is zeros, what is received into
    it is discarded. Peers cannot use it.
    """

    _kind = "NullMR"

    def __init__(self, pd: PD) -> None:
        """
        :param pd: the protection domain
        :raises PyverbsRDMAError: ENOMEM
        """
        instance(pd, PD, "NullMR pd")
        with pd._guard("Failed to allocate a null MR", verb="alloc_null_mr") as device:
            void = nothing(KINDS["LONGEST"])
            core = device.port.regions.register_null(pd._core, void.sink, void.zeros, void)
            self._adopt(pd, core, Memory(0, 0))


class DmaBufMR(MR):
    """A region over a DMA-BUF (ibv_reg_dmabuf_mr(3)). This device works with the memory of processes only: every
    creation is refused.
    """

    def __init__(
        self,
        pd: PD,
        length: int,
        access: int,
        dmabuf: Any = None,
        offset: int = 0,
        gpu: int = 0,
        gtt: int = 0,
    ) -> None:
        """
        :param pd: the protection domain
        :param length: bytes
        :param access: IBV_ACCESS_* bits
        :param dmabuf: a DmaBuf or its descriptor
        :param offset: of the first byte in it
        :param gpu: number of the GPU, where ``dmabuf`` is None
        :param gtt: whether system memory that the GPU has mapped is wanted
        :raises PyverbsRDMAError: EOPNOTSUPP
        """
        instance(pd, PD, "DmaBufMR pd")
        with pd._guard("Failed to register a dma-buf MR", verb="reg_dmabuf_mr"):
            raise refused(
                f"{length} bytes, access flags {access}: this device reaches memory of processes, not DMA-BUFs",
                errno.EOPNOTSUPP,
            )


class DmaHandleInitAttr(PyverbsObject):
    """How a DMA handle is made, ``struct ibv_dmah_init_attr`` of ibv_alloc_dmah(3)."""

    comp_mask = Field("Which members are valid.")
    cpu_id = Field("The processor that will read the data.")
    ph = Field("Processing hint.", 8)
    tph_mem_type = Field("Kind of the memory.")

    def __init__(self, comp_mask: int = 0, cpu_id: int = 0, ph: int = 0, tph_mem_type: int = 0) -> None:
        """
        :param comp_mask: which of the others are valid
        :param cpu_id: the processor that will read the data
        :param ph: processing hint
        :param tph_mem_type: kind of the memory
        """
        fill(self, comp_mask=comp_mask, cpu_id=cpu_id, ph=ph, tph_mem_type=tph_mem_type)

    def __str__(self) -> str:
        names = ("comp_mask", "cpu_id", "ph", "tph_mem_type")
        return "DmaHandleInitAttr:\n" + lines(22, *((name, getattr(self, name)) for name in names))


class DMAHandle(Resource):
    """Hints for the DMA of a PCI device (ibv_alloc_dmah(3)). This device has none: every creation is refused."""

    _kind = "DMA Handle"

    def __init__(self, ctx: Context, init_attr: DmaHandleInitAttr) -> None:
        """
        :param ctx: the open device
        :param init_attr: how it is made
        :raises PyverbsRDMAError: EOPNOTSUPP
        """
        instance(ctx, Context, "DMAHandle ctx")
        instance(init_attr, DmaHandleInitAttr, "DMAHandle init_attr")
        with ctx._guard("Failed to create DMA Handle", verb="alloc_dmah"):
            raise refused("there is no PCI device whose DMA could be hinted at", errno.EOPNOTSUPP)


class Buf(Resource):
    """A buffer that the device chooses for a protection domain (ibv_alloc_buf(3)): zeroed pages of the process."""

    _kind = "Buf"
    _children = ("_mrs",)
    _mrs: Children

    def __init__(self, pd: PD, size: int) -> None:
        """
        :param pd: the protection domain
        :param size: bytes
        :raises PyverbsRDMAError: EINVAL for 0 bytes, ENOMEM
        """
        instance(pd, PD, "Buf pd")
        length = integer(size, "size", 64)
        with pd._guard(f"Failed to allocate ibv_buf of size {length}", verb="alloc_buf", size=length):
            if not length:
                raise refused("at least 1 byte is needed")
            own = allocate(length, False)
            with memoryview(own) as view:
                self._memory = Memory(address_of(view), length, None, own)
            self._pd: PD | None = pd
            self._start(pd._context_or_closed(), self._memory)
            pd._bufs.add(self)

    @staticmethod
    def _bury(remains: Any) -> None:
        remains.release()

    def _forget(self) -> None:
        super()._forget()
        self._pd = None

    @property
    def addr(self) -> int:
        """Address of the first byte; 0 when closed."""
        return 0 if self._core is None else self._memory.address

    @property
    def size(self) -> int:
        """Bytes."""
        return self._memory.length

    def export_dmabuf_fd(self) -> int:
        """Refused with ENODATA: the memory is that of the process, and no DMA-BUF."""
        self._open()
        raise refused("Failed to export dmabuf FD for Buf: this device makes no DMA-BUF", errno.ENODATA)

    def __str__(self) -> str:
        return "Buf:\n" + lines(22, ("addr", self.addr), ("size", self.size))


def _part(pd: PD, buf: Buf, address: int | None, length: int) -> Memory:
    """A part of a Buf, as the memory of a region of the domain that it was made in."""
    instance(buf, Buf, "buf")
    whole_memory: Memory = buf._open()
    if buf._pd is not pd:
        raise refused("the Buf was made in another protection domain")
    start = whole_memory.address if address is None else integer(address, "address", 64)
    size = integer(length, "length", 64)
    offset = start - whole_memory.address
    if offset < 0 or size > whole_memory.length - offset:
        raise refused(f"{size} bytes at {start:#x} are outside of the Buf, which has {whole_memory.length}")
    return Memory(start, size, keep=buf)  # a Buf that is collected gives its memory back


class BufMR(MR):
    """A region over a part of a Buf (ibv_reg_buf_mr(3))."""

    def __init__(self, pd: PD, buf: Buf, length: int = 0, access: int = 0, offset: int = 0) -> None:
        """
        :param pd: the protection domain of the Buf
        :param buf: the buffer
        :param length: bytes
        :param access: IBV_ACCESS_* bits
        :param offset: of the first byte in the Buf
        :raises PyverbsRDMAError: EINVAL outside of the Buf, or in another domain
        """
        instance(pd, PD, "BufMR pd")
        instance(buf, Buf, "BufMR buf")
        rights = integer(access, "access")
        with pd._guard("Failed to register a buf MR", verb="reg_buf_mr", size=length) as device:
            memory = _part(pd, buf, buf.addr + integer(offset, "offset", 64), length)
            core = device.port.regions.register(pd._core, memory.address, length, rights, memory.address, memory)
            self._adopt(pd, core, memory)
            buf._mrs.add(self)


class MREx(MR):
    """A region registered by the extended call (ibv_reg_mr_ex(3))."""

    _kind = "MREx"
    _refusal = _EXTENDED

    def __init__(
        self,
        pd: PD,
        length: Any = 0,
        access: int = 0,
        address: int | None = None,
        iova: int | None = None,
        fd: int | None = None,
        fd_offset: int = 0,
        dmah: DMAHandle | None = None,
        implicit: bool = False,
        buf: Buf | None = None,
        **kwargs: Any,
    ) -> None:
        """
        :param pd: the protection domain
        :param length: bytes
        :param access: IBV_ACCESS_* bits
        :param address: register memory of the process that lies here; None: the region's own, or that of ``buf``
        :param iova: what work requests call the first byte; its address by default
        :param fd: descriptor of a DMA-BUF; refused with EOPNOTSUPP
        :param fd_offset: of the first byte in it
        :param dmah: hints for the DMA; refused with EOPNOTSUPP
        :param implicit: all memory of the process at once; needs ON_DEMAND
        :param buf: a Buf that the memory is a part of
        :param kwargs: nothing
        :raises PyverbsRDMAError: EINVAL for contradictions, EFAULT for memory that is not there, ENOMEM
        """
        instance(pd, PD, "MREx pd")
        if fd is not None or dmah is not None:
            name = "fd" if fd is not None else "dmah"
            with pd._guard(_EXTENDED, verb="reg_mr_ex"):
                raise refused(f"{name}: this device reaches memory of processes, without DMA", errno.EOPNOTSUPP)
        if buf is None:
            super().__init__(pd, length, access, address, implicit, iova=iova, **kwargs)
            return
        rights = integer(access, "access")
        with pd._guard(_EXTENDED, verb="reg_mr_ex", size=length) as device:
            memory = _part(pd, buf, address, length)
            where = memory.address if iova is None else integer(iova, "iova", 64)
            regions = device.port.regions
            core = regions.register(pd._core, memory.address, memory.length, rights, where, memory)
            self._adopt(pd, core, memory)
            buf._mrs.add(self)
