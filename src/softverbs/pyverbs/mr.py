"""Memory regions: memory that the device may touch."""

import ctypes
import errno
import mmap
from typing import Any

from softverbs.pyverbs import libibverbs_enums as e
from softverbs.pyverbs._buffers import address_of, allocate, check_mapped, exported
from softverbs.pyverbs._fields import instance, integer, is_integer, lines, refused
from softverbs.pyverbs.base import Resource
from softverbs.pyverbs.pd import PD
from softverbs.pyverbs.pyverbs_error import PyverbsUserError

_WRITES = e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_REMOTE_WRITE | e.IBV_ACCESS_REMOTE_ATOMIC


class _Memory:
    """The bytes under a region, kept where they are until ``release``."""

    def __init__(self, address: int, length: int, view: memoryview | None, own: mmap.mmap | None) -> None:
        self.address = address
        self.length = length
        self._view = view
        self._own = own

    def release(self) -> None:
        """Lets go of the buffer; memory of the region's own goes back to the system."""
        if self._view is not None:
            self._view.release()
        if self._own is not None:
            self._own.close()


class MR(Resource):
    """A memory region, ``struct ibv_mr`` (ibv_reg_mr(3)): over memory of its own, an address, or any buffer."""

    _kind = "MR"

    def __init__(
        self,
        creator: PD,
        length: Any = 0,
        access: int = 0,
        address: int | None = None,
        implicit: bool = False,
        **kwargs: Any,
    ) -> None:
        """
        :param creator: the protection domain
        :param length: bytes. Without ``address`` the region gets zeroed, page-aligned memory of its own.
            Extension: a buffer instead (bytearray, mmap, NumPy array, memoryview, bytes): it is registered as it is,
            and cannot be resized or closed before the region is
        :param access: IBV_ACCESS_* bits
        :param address: register memory of the process that lies here; the caller keeps it mapped
        :param implicit: all memory at once; refused with EOPNOTSUPP
        :param kwargs: Extension: ``iova``: what work requests call the first byte (ibv_reg_mr_iova(3)); its address
            by default. ``handle``, to import a region, is refused with EOPNOTSUPP
        :raises PyverbsRDMAError: EINVAL for contradictions, EFAULT for memory that is not there, ENOMEM
        """
        what = "Failed to register a MR"
        instance(creator, PD, "MR creator")
        context = creator._context
        if context is None:
            raise creator._closed()
        if implicit:
            raise refused(f"{what}: implicit regions are not supported", errno.EOPNOTSUPP)
        if kwargs.get("handle") is not None:
            raise refused(f"{what}: importing a region is not supported", errno.EOPNOTSUPP)
        if kwargs.keys() - {"handle", "iova"}:
            raise PyverbsUserError(f"MR has no argument {', '.join(sorted(kwargs))}")
        access = integer(access, "access")
        memory = _memory(length, access, address)
        iova = memory.address if kwargs.get("iova") is None else integer(kwargs["iova"], "iova", 64)
        try:
            with creator._guard(what) as device:
                core = device.port.regions.register(creator._core, memory.address, memory.length, access, iova, memory)
                self._memory = memory
                self._pd: PD | None = creator
                self._start(context, core)
                creator._mrs.add(self)
        except BaseException:
            memory.release()
            raise

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
        :raises PyverbsUserError: outside of the region, or of ``data``
        """
        try:
            source = data.encode() if isinstance(data, str) else bytes(memoryview(data))
        except TypeError:
            raise refused(f"MR.write: data is {type(data).__name__}: bytes are expected") from None
        length, offset = self._range(length, offset)
        if length > len(source):
            raise PyverbsUserError(f"MR.write of {length} bytes, but data has {len(source)}")
        ctypes.memmove(self._memory.address + offset, source, length)

    def read(self, length: int, offset: int) -> bytes:
        """Copies out of the region.

        :param length: bytes
        :param offset: from the region's first byte
        :raises PyverbsUserError: outside of the region
        """
        length, offset = self._range(length, offset)
        return ctypes.string_at(self._memory.address + offset, length)

    def _range(self, length: int, offset: int) -> tuple[int, int]:
        size = self.length
        length, offset = integer(length, "length", 64, signed=True), integer(offset, "offset", 64, signed=True)
        if length < 0 or offset < 0 or length > size - offset:
            raise PyverbsUserError(f"length {length} at offset {offset} is outside of the MR, which has {size} bytes")
        return length, offset

    def rereg(self, flags: int, pd: PD | None = None, addr: int = 0, length: int = 0, access: int = 0) -> None:
        """Changes a region in place (ibv_rereg_mr(3)); refused with EOPNOTSUPP.

        :param flags: IBV_REREG_MR_CHANGE_* bits
        :param pd: another protection domain
        :param addr: another address
        :param length: another length, bytes
        :param access: other IBV_ACCESS_* bits
        """
        self._open()
        raise refused("Failed to rereg MR: not supported; close it and register again", errno.EOPNOTSUPP)

    def __str__(self) -> str:
        rows = (("lkey", self.lkey), ("rkey", self.rkey), ("length", self.length), ("buf", self.buf))
        return "MR:\n" + lines(22, *rows, ("handle", self.handle))


def _memory(length: Any, access: int, address: int | None) -> _Memory:
    """The memory that the arguments of MR name."""
    if is_integer(length):
        size = integer(length, "length", 64)
        if address:
            start = integer(address, "address", 64)
            if size:
                check_mapped(start, size, bool(access & _WRITES))
            return _Memory(start, size, None, None)
        if not size:
            return _Memory(0, 0, None, None)
        own = allocate(size, bool(access & e.IBV_ACCESS_HUGETLB))
        with memoryview(own) as view:
            start = address_of(view)
        return _Memory(start, size, None, own)
    if address is not None:
        raise refused("Failed to register a MR: a buffer and an address were both given")
    view = exported(length)
    if view.readonly and access & _WRITES:
        view.release()
        raise refused(
            "Failed to register a MR: the buffer is read-only, but the access flags permit writing", errno.EFAULT
        )
    return _Memory(address_of(view), view.nbytes, view, None)
