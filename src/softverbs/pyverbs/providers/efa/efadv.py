# SPDX-License-Identifier: MIT
"""Completion counters whose values live in the application's memory: efadv_create_comp_cntr(3).

What EFA has beside them is named here too, and refused.
"""

import ctypes
import errno
from typing import Any

from softverbs.pyverbs._buffers import address_of, check_mapped, exported
from softverbs.pyverbs._fields import instance, integer, is_integer, refused
from softverbs.pyverbs.base import PyverbsObject
from softverbs.pyverbs.comp_cntr import CompCntr, CompCntrInitAttr
from softverbs.pyverbs.device import Context
from softverbs.pyverbs.providers.efa._srd import SRDQP as SRDQP
from softverbs.pyverbs.providers.efa._srd import EfaAH as EfaAH
from softverbs.pyverbs.providers.efa._srd import EfaContext as EfaContext
from softverbs.pyverbs.providers.efa._srd import EfaCQ as EfaCQ
from softverbs.pyverbs.providers.efa._srd import EfaDVCQInitAttr as EfaDVCQInitAttr
from softverbs.pyverbs.providers.efa._srd import EfaMR as EfaMR
from softverbs.pyverbs.providers.efa._srd import EfaQPInitAttr as EfaQPInitAttr
from softverbs.pyverbs.providers.efa._srd import SRDQPEx as SRDQPEx
from softverbs.pyverbs.providers.efa.efa_enums import (
    EFADV_COMP_CNTR_INIT_WITH_COMP_EXTERNAL_MEM as EFADV_COMP_CNTR_INIT_WITH_COMP_EXTERNAL_MEM,
)
from softverbs.pyverbs.providers.efa.efa_enums import (
    EFADV_COMP_CNTR_INIT_WITH_ERR_EXTERNAL_MEM as EFADV_COMP_CNTR_INIT_WITH_ERR_EXTERNAL_MEM,
)
from softverbs.pyverbs.providers.efa.efa_enums import EFADV_MEMORY_LOCATION_DMABUF as EFADV_MEMORY_LOCATION_DMABUF
from softverbs.pyverbs.providers.efa.efa_enums import EFADV_MEMORY_LOCATION_VA as EFADV_MEMORY_LOCATION_VA

_FLAGS = EFADV_COMP_CNTR_INIT_WITH_COMP_EXTERNAL_MEM | EFADV_COMP_CNTR_INIT_WITH_ERR_EXTERNAL_MEM
_WORD = 8  # bytes of a value


class _DmaBuf(ctypes.Structure):
    """A place in a DMA-BUF."""

    _fields_ = (("offset", ctypes.c_uint64), ("fd", ctypes.c_int32), ("reserved", ctypes.c_uint32))


class efadv_memory_location(ctypes.Structure):
    """Where a value lives, ``struct efadv_memory_location``."""

    _fields_ = (
        ("ptr", ctypes.c_void_p),
        ("dmabuf", _DmaBuf),
        ("type", ctypes.c_uint8),
        ("reserved", ctypes.c_uint8 * 7),
    )


class efadv_comp_cntr_init_attr(ctypes.Structure):
    """What ``efadv_create_comp_cntr`` is given, ``struct efadv_comp_cntr_init_attr``."""

    _fields_ = (
        ("comp_mask", ctypes.c_uint64),
        ("flags", ctypes.c_uint32),
        ("reserved", ctypes.c_uint32),
        ("comp_cntr_ext_mem", efadv_memory_location),
        ("err_cntr_ext_mem", efadv_memory_location),
    )


class EfaCompCntrInitAttr(PyverbsObject):
    """Where the values of a counter live."""

    def __init__(self, comp_ext_mem_ptr: Any = None, err_ext_mem_ptr: Any = None) -> None:
        """
        :param comp_ext_mem_ptr: address of the completion count, a multiple of 8; None: the counter's own memory.
            Extension: a writable buffer of at least 8 bytes, which the counter then holds
        :param err_ext_mem_ptr: the same for the error count
        """
        #: The structure of C.
        self.attr = efadv_comp_cntr_init_attr()
        self._views: dict[str, memoryview] = {}
        if comp_ext_mem_ptr is not None:
            self.set_comp_ext_mem_va(comp_ext_mem_ptr)
        if err_ext_mem_ptr is not None:
            self.set_err_ext_mem_va(err_ext_mem_ptr)

    def set_comp_ext_mem_va(self, ptr: Any) -> None:
        """Where the completion count lives.

        :param ptr: an address, or a buffer, as at creation
        """
        self.attr.flags |= EFADV_COMP_CNTR_INIT_WITH_COMP_EXTERNAL_MEM
        self._place("comp_cntr_ext_mem", ptr)

    def set_err_ext_mem_va(self, ptr: Any) -> None:
        """Where the error count lives.

        :param ptr: an address, or a buffer, as at creation
        """
        self.attr.flags |= EFADV_COMP_CNTR_INIT_WITH_ERR_EXTERNAL_MEM
        self._place("err_cntr_ext_mem", ptr)

    def _place(self, member: str, ptr: Any) -> None:
        self._views.pop(member, None)
        if is_integer(ptr):
            address = integer(ptr, f"{member}.ptr", 64)
        else:
            view = exported(ptr)
            if view.readonly or view.nbytes < _WORD:
                raise refused(f"{member}: a writable buffer of at least {_WORD} bytes is needed")
            self._views[member] = view
            address = address_of(view)
        getattr(self.attr, member).ptr = address


class EfaCompCntr(CompCntr):
    """A completion counter whose values are also kept in memory of the application.

    They are zeroed at creation, and stored there at every update until the counter is closed.
    """

    _verb = "efadv_create_comp_cntr"

    def __init__(self, ctx: Context, attr: CompCntrInitAttr, efa_attr: EfaCompCntrInitAttr | None = None) -> None:
        """
        :param ctx: the open device
        :param attr: how it is made
        :param efa_attr: where its values live; None: in its own memory
        :raises PyverbsRDMAError: EINVAL for an address that is no multiple of 8 and for unknown bits, EFAULT for one
            that cannot be written to, EOPNOTSUPP for a DMA-BUF; and what ``CompCntr`` raises
        """
        where = EfaCompCntrInitAttr() if efa_attr is None else efa_attr
        instance(where, EfaCompCntrInitAttr, "EfaCompCntr efa_attr")
        value, error = places(where.attr)
        super().__init__(ctx, attr)
        self._views = [memoryview(view) for view in where._views.values()]
        with self._guard("Failed to create EFA comp_cntr", verb=""):
            for address in filter(None, (value, error)):
                ctypes.memset(address, 0, _WORD)
            self._core.value_address = value
            self._core.error_address = error

    def _remains(self) -> Any:
        return self._core, self.__dict__.get("_views", [])

    @staticmethod
    def _bury(remains: Any) -> None:
        core, views = remains
        core.close()
        for view in views:
            view.release()


def places(attr: efadv_comp_cntr_init_attr) -> tuple[int, int]:
    """The addresses of the completion count and the error count, checked; 0 for the counter's own memory.

    :param attr: the structure of C
    """
    what = "Failed to create EFA comp_cntr"
    if attr.comp_mask or attr.reserved:
        raise refused(f"{what}: comp_mask={attr.comp_mask:#x}: no bit of it is known")
    if attr.flags & ~_FLAGS:
        raise refused(f"{what}: flags {attr.flags & ~_FLAGS:#x} are not known")
    value = error = 0
    if attr.flags & EFADV_COMP_CNTR_INIT_WITH_COMP_EXTERNAL_MEM:
        value = _address(attr.comp_cntr_ext_mem, f"{what}: comp_cntr_ext_mem")
    if attr.flags & EFADV_COMP_CNTR_INIT_WITH_ERR_EXTERNAL_MEM:
        error = _address(attr.err_cntr_ext_mem, f"{what}: err_cntr_ext_mem")
    return value, error


def _address(location: efadv_memory_location, what: str) -> int:
    if location.type != EFADV_MEMORY_LOCATION_VA:
        raise refused(f"{what} is of type {location.type}: only virtual addresses are supported", errno.EOPNOTSUPP)
    address = location.ptr or 0
    if not address or address % _WORD:
        raise refused(f"{what} is at {address:#x}: not a multiple of {_WORD}")
    check_mapped(address, _WORD, True)
    return int(address)
