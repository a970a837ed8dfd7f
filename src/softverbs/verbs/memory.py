# SPDX-License-Identifier: MIT
"""Protection domains, memory regions, memory windows and device memory."""

import ctypes
import errno
from typing import Any

from softverbs.pyverbs import libibverbs_enums as e
from softverbs.pyverbs._buffers import check_mapped, exported
from softverbs.pyverbs._dm import DM, AllocDmAttr
from softverbs.pyverbs._fields import integer, is_integer, refused
from softverbs.pyverbs.device import Context
from softverbs.pyverbs.mr import DMMR, MR, MW, DmaBufMR, NullMR
from softverbs.pyverbs.pd import PD, TD, ParentDomain, ParentDomainInitAttr, TDInitAttr
from softverbs.pyverbs.pyverbs_error import PyverbsError
from softverbs.verbs._convention import need, note, returns_object, returns_status

_EVERYTHING = 2**64 - 1  # SIZE_MAX


@returns_object
def ibv_alloc_pd(context: Context) -> PD:
    """Makes a protection domain.

    :param context: the open device
    :return: a PD, or None with errno set
    """
    return PD(need(context, Context, "context"))


@returns_status
def ibv_dealloc_pd(pd: PD) -> None:
    """Ends a protection domain.

    :param pd: the protection domain
    :return: 0, or the value of errno: EBUSY while a QP or memory region is in it
    """
    need(pd, PD, "pd")._destroy()


@returns_object
def ibv_reg_mr(pd: PD, addr: Any, length: int, access: int) -> MR:
    """Lets the device touch memory. Peers may only do what ``access`` permits; local reading is always permitted.

    :param pd: the protection domain
    :param addr: ``void *``: an integer address of this process; or a buffer, whose first ``length`` bytes are meant
    :param length: bytes
    :param access: IBV_ACCESS_* bits
    :return: an MR with ``lkey`` and ``rkey``, or None with errno set
    """
    return _register(pd, addr, length, access, None)


@returns_object
def ibv_reg_mr_iova(pd: PD, addr: Any, length: int, iova: int, access: int) -> MR:
    """As ``ibv_reg_mr``, but work requests and peers call the first byte ``iova``.

    :param pd: the protection domain
    :param addr: ``void *``: an integer address of this process; or a buffer, whose first ``length`` bytes are meant
    :param length: bytes
    :param iova: what work requests call the first byte
    :param access: IBV_ACCESS_* bits
    :return: an MR, or None with errno set
    """
    return _register(pd, addr, length, access, iova)


@returns_status
def ibv_dereg_mr(mr: MR) -> None:
    """Ends a memory region: its keys are worth nothing from now on.

    :param mr: the memory region
    :return: 0, or the value of errno: EBUSY while a memory window is bound to it
    """
    need(mr, MR, "mr")._destroy()


@returns_object
def ibv_reg_dm_mr(pd: PD, dm: DM, offset: int, length: int, access: int) -> DMMR:
    """Lets work requests and peers touch device memory; they call its first byte 0.

    :param pd: the protection domain
    :param dm: the device memory
    :param offset: of the first byte in it
    :param length: bytes
    :param access: IBV_ACCESS_* bits, with ZERO_BASED
    :return: a DMMR, or None with errno set
    """
    return DMMR(need(pd, PD, "pd"), length, access, need(dm, DM, "dm"), offset)


@returns_object
def ibv_reg_dmabuf_mr(pd: PD, offset: int, length: int, iova: int, fd: int, access: int) -> DmaBufMR:
    """Refused: the device reaches memory of processes only.

    :param pd: the protection domain
    :param offset: of the first byte in the DMA-BUF
    :param length: bytes
    :param iova: what work requests call the first byte
    :param fd: descriptor of the DMA-BUF
    :param access: IBV_ACCESS_* bits
    :return: None with errno set to EOPNOTSUPP
    """
    integer(iova, "iova", 64)
    rights, size = integer(access, "access"), integer(length, "length", 64)
    return DmaBufMR(need(pd, PD, "pd"), size, rights, integer(fd, "fd"), integer(offset, "offset", 64))


@returns_object
def ibv_alloc_null_mr(pd: PD) -> NullMR:
    """Makes a region of zeros that discards what it receives. Only its ``lkey`` can be used.

    :param pd: the protection domain
    :return: a NullMR, or None with errno set
    """
    return NullMR(need(pd, PD, "pd"))


def ibv_rereg_mr(mr: MR, flags: int, pd: PD | None, addr: int, length: int, access: int) -> int:
    """Changes a memory region in place; its keys stay.

    :param mr: the memory region
    :param flags: IBV_REREG_MR_CHANGE_* bits: which of the others are new
    :param pd: the protection domain
    :param addr: ``void *``: an integer address of this process
    :param length: bytes
    :param access: IBV_ACCESS_* bits
    :return: 0, or IBV_REREG_MR_ERR_* with errno set: after ERR_INPUT the region is as it was, after ERR_CMD it can
        only be deregistered
    """
    try:
        need(mr, MR, "mr").rereg(flags, pd, addr, length, access)
    except PyverbsError as error:
        note(error)
        return getattr(mr, "rereg_error", 0) or e.IBV_REREG_MR_ERR_INPUT
    return 0


@returns_status
def ibv_advise_mr(pd: PD, advice: int, flags: int, sg_list: list[Any], num_sge: int) -> None:
    """Says how on-demand memory will be used: pages it in.

    :param pd: the protection domain
    :param advice: IBV_ADVISE_MR_ADVICE_*
    :param flags: 0 or IBV_ADVISE_MR_FLAG_FLUSH
    :param sg_list: SGEs, parts of ON_DEMAND regions
    :param num_sge: how many of them are used
    :return: 0, or the value of errno (ibv_advise_mr(3) lists them)
    """
    need(pd, PD, "pd")
    need(sg_list, (list, tuple), "sg_list")
    count = integer(num_sge, "num_sge")
    if count > len(sg_list):
        raise refused(f"num_sge is {count}, but sg_list has {len(sg_list)}")
    pd.advise_mr(advice, flags, sg_list[:count])


@returns_object
def ibv_alloc_mw(pd: PD, type: int) -> MW:
    """Makes a memory window, which opens nothing before it is bound.

    :param pd: the protection domain
    :param type: IBV_MW_TYPE_1 or IBV_MW_TYPE_2
    :return: an MW, or None with errno set
    """
    return MW(need(pd, PD, "pd"), type)


@returns_status
def ibv_dealloc_mw(mw: MW) -> None:
    """Ends a memory window, and its binding.

    :param mw: the memory window
    :return: 0, or the value of errno
    """
    need(mw, MW, "mw")._destroy()


@returns_object
def ibv_alloc_dm(context: Context, attr: AllocDmAttr) -> DM:
    """Takes some of the device's own memory.

    :param context: the open device
    :param attr: how much, and how aligned
    :return: a DM, or None with errno set
    """
    return DM(need(context, Context, "context"), need(attr, AllocDmAttr, "attr"))


@returns_status
def ibv_free_dm(dm: DM) -> None:
    """Gives device memory back.

    :param dm: the device memory
    :return: 0, or the value of errno: EBUSY while a region is registered over it
    """
    need(dm, DM, "dm")._destroy()


@returns_status
def ibv_memcpy_to_dm(dm: DM, dm_offset: int, host_addr: Any, length: int) -> None:
    """Copies into device memory.

    :param dm: the device memory
    :param dm_offset: from its first byte
    :param host_addr: ``void *``: an integer address of this process; or a buffer
    :param length: bytes
    :return: 0, or the value of errno
    """
    need(dm, DM, "dm")._open()
    size = integer(length, "length", 64)
    if is_integer(host_addr):
        start = integer(host_addr, "host_addr", 64)
        dm._open().at(integer(dm_offset, "dm_offset", 64), size)
        if size:
            check_mapped(start, size, False)
        dm.copy_to_dm(dm_offset, ctypes.string_at(start, size) if size else b"", size)
        return
    with exported(host_addr) as whole, whole.cast("B") as view:
        dm.copy_to_dm(dm_offset, view, size)


@returns_status
def ibv_memcpy_from_dm(host_addr: Any, dm: DM, dm_offset: int, length: int) -> None:
    """Copies out of device memory.

    :param host_addr: ``void *``: an integer address of this process; or a writable buffer
    :param dm: the device memory
    :param dm_offset: from its first byte
    :param length: bytes
    :return: 0, or the value of errno
    """
    data = need(dm, DM, "dm").copy_from_dm(dm_offset, length)
    if is_integer(host_addr):
        start = integer(host_addr, "host_addr", 64)
        if data:
            check_mapped(start, len(data), True)
            ctypes.memmove(start, data, len(data))
        return
    with exported(host_addr) as whole, whole.cast("B") as view:
        if view.readonly or view.nbytes < len(data):
            raise refused(f"host_addr: a writable buffer of {len(data)} bytes is expected", errno.EFAULT)
        view[: len(data)] = data


@returns_object
def ibv_alloc_td(context: Context, init_attr: TDInitAttr) -> TD:
    """Makes a thread domain.

    :param context: the open device
    :param init_attr: how it is made
    :return: a TD, or None with errno set
    """
    return TD(need(context, Context, "context"), need(init_attr, TDInitAttr, "init_attr"))


@returns_status
def ibv_dealloc_td(td: TD) -> None:
    """Ends a thread domain.

    :param td: the thread domain
    :return: 0, or the value of errno: EBUSY while a parent domain uses it
    """
    need(td, TD, "td")._destroy()


@returns_object
def ibv_alloc_parent_domain(context: Context, attr: ParentDomainInitAttr) -> ParentDomain:
    """Makes a parent domain: a protection domain with allocators, a thread domain, or both.

    :param context: the open device
    :param attr: how it is made
    :return: a ParentDomain, for ``ibv_dealloc_pd``; or None with errno set
    """
    return ParentDomain(need(context, Context, "context"), need(attr, ParentDomainInitAttr, "attr"))


@returns_object
def ibv_import_pd(context: Context, pd_handle: int) -> PD:
    """Another name for a protection domain of a context that shares its objects with this one.

    :param context: the open device, imported from the other (``ibv_import_device``)
    :param pd_handle: ``handle`` of the domain
    :return: a PD, or None with errno set
    """
    return PD(need(context, Context, "context"), handle=integer(pd_handle, "pd_handle"))


@returns_status
def ibv_unimport_pd(pd: PD) -> None:
    """Ends another name for a protection domain (C returns nothing).

    :param pd: what ``ibv_import_pd`` returned
    :return: 0, or the value of errno
    """
    need(pd, PD, "pd").unimport()


@returns_object
def ibv_import_mr(pd: PD, mr_handle: int) -> MR:
    """Another name for a memory region of a context that shares its objects with that of ``pd``.

    :param pd: the protection domain
    :param mr_handle: ``handle`` of the region
    :return: an MR whose ``buf`` is 0, or None with errno set
    """
    return MR(need(pd, PD, "pd"), handle=integer(mr_handle, "mr_handle"))


@returns_status
def ibv_unimport_mr(mr: MR) -> None:
    """Ends another name for a memory region (C returns nothing).

    :param mr: what ``ibv_import_mr`` returned
    :return: 0, or the value of errno
    """
    need(mr, MR, "mr").unimport()


@returns_object
def ibv_import_dm(context: Context, dm_handle: int) -> DM:
    """Another name for device memory of a context that shares its objects with this one.

    :param context: the open device, imported from the other (``ibv_import_device``)
    :param dm_handle: ``handle`` of the device memory
    :return: a DM, or None with errno set
    """
    return DM(need(context, Context, "context"), handle=integer(dm_handle, "dm_handle"))


@returns_status
def ibv_unimport_dm(dm: DM) -> None:
    """Ends another name for device memory (C returns nothing).

    :param dm: what ``ibv_import_dm`` returned
    :return: 0, or the value of errno
    """
    need(dm, DM, "dm").unimport()


def _register(pd: PD, addr: Any, length: int, access: int, iova: int | None) -> MR:
    need(pd, PD, "pd")
    length = integer(length, "length", 64)
    if is_integer(addr):
        if not addr and length == _EVERYTHING:
            return MR(pd, 0, access, implicit=True, iova=iova)
        return MR(pd, length, access, address=addr, iova=iova)
    with exported(addr) as whole, whole.cast("B") as view:
        if length > view.nbytes:
            raise refused(f"length is {length}, but the buffer has {view.nbytes} bytes")
        with view[:length] as part:
            return MR(pd, part, access, iova=iova)
