"""Protection domains and memory regions."""

from typing import Any

from softverbs.pyverbs._buffers import exported
from softverbs.pyverbs._fields import integer, is_integer, refused
from softverbs.pyverbs.device import Context
from softverbs.pyverbs.mr import MR
from softverbs.pyverbs.pd import PD
from softverbs.verbs._convention import need, returns_object, returns_status


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


def _register(pd: PD, addr: Any, length: int, access: int, iova: int | None) -> MR:
    need(pd, PD, "pd")
    length = integer(length, "length", 64)
    if is_integer(addr):
        return MR(pd, length, access, address=addr, iova=iova)
    with exported(addr) as whole, whole.cast("B") as view:
        if length > view.nbytes:
            raise refused(f"length is {length}, but the buffer has {view.nbytes} bytes")
        with view[:length] as part:
            return MR(pd, part, access, iova=iova)
