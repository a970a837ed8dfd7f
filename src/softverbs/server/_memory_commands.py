# SPDX-License-Identifier: MIT
"""Commands about protection domains, regions, windows and device memory."""

import errno
from typing import Any

from softverbs.core.base.errors import PyverbsRDMAError
from softverbs.core.memory import spaces
from softverbs.core.memory.device_memory import DeviceMemory
from softverbs.core.memory.raw import view
from softverbs.core.memory.regions import VALUES as KINDS
from softverbs.core.memory.regions import ProtectionDomain
from softverbs.pyverbs import libibverbs_enums as e
from softverbs.pyverbs._buffers import nothing
from softverbs.server._layout import REG_FLAGS
from softverbs.server._memory import check_mapped
from softverbs.server._registry import handles
from softverbs.server.session import Entry, Session

Values = dict[str, Any]
_WRITES = e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_REMOTE_WRITE | e.IBV_ACCESS_REMOTE_ATOMIC
_REREG_FLAGS = e.IBV_REREG_MR_CHANGE_TRANSLATION | e.IBV_REREG_MR_CHANGE_PD | e.IBV_REREG_MR_CHANGE_ACCESS
_ADVICE = (
    e._IBV_ADVISE_MR_ADVICE_PREFETCH,
    e._IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE,
    e._IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT,
)
EVERYTHING = KINDS["EVERYTHING"]
_ADDRESS = 2**48 - 1  # what is left of an address in another process (core/memory/spaces.py)


class Region:
    """A region or a window, with the ``close`` that every object of a session has."""

    def __init__(self, session: Session, core: Any) -> None:
        """
        :param core: the core's entry
        """
        self._regions = session.port.regions
        self.core = core

    def close(self) -> None:
        """Deregisters it; EBUSY while windows are bound to it."""
        self._regions.deregister(self.core)


def check_memory(session: Session, address: int, length: int, writing: bool) -> None:
    """EFAULT where a program has not mapped a range; of one that is reached by a descriptor its two ends are looked at.

    :param length: bytes, at least 1
    """
    if session.mem < 0:
        check_mapped(session.space, session.pid, address, length, writing)
    else:
        spaces.read(session.space, address, 1)
        spaces.read(session.space, address + length - 1, 1)


def _keys(entry: Entry) -> Values:
    region = entry.core.core
    return {"handle": entry.handle, "lkey": region.lkey, "rkey": region.rkey}


def _close(kind: str, session: Session, request: Values) -> None:
    session.close(session.find(kind, request["handle"]))


@handles("ALLOC_PD")
def alloc_pd(session: Session, request: Values) -> Values:
    """ibv_alloc_pd(3)."""
    return {"handle": session.add("PD", ProtectionDomain(session.port, session)).handle}


@handles("DEALLOC_PD")
def dealloc_pd(session: Session, request: Values) -> None:
    """ibv_dealloc_pd(3)."""
    _close("PD", session, request)


@handles("REG_MR")
def reg_mr(session: Session, request: Values) -> Values:
    """ibv_reg_mr_iova2(3), ibv_alloc_null_mr(3)."""
    pd = session.core("PD", request["pd"])
    regions = session.port.regions
    if request["flags"] & ~REG_FLAGS["REG_NULL"]:
        raise PyverbsRDMAError(f"flags={request['flags']:#x} are not known", errno.EINVAL)
    if request["flags"]:
        void = nothing(KINDS["LONGEST"])
        region = regions.register_null(pd, void.sink, void.zeros, void)
    else:
        address, length, access = request["address"], request["length"], request["access"]
        everything = address == 0 and length == EVERYTHING
        if everything and not access & e.IBV_ACCESS_ON_DEMAND:
            raise PyverbsRDMAError("an implicit region (address 0, every byte) must be ON_DEMAND", errno.EINVAL)
        if length and not access & e.IBV_ACCESS_ON_DEMAND:
            check_memory(session, address, length, bool(access & _WRITES))
        region = regions.register(pd, address, length, access, request["iova"], None, KINDS["PLAIN"], session.space)
    return _keys(session.add("region", Region(session, region)))


@handles("DEREG_MR")
def dereg_mr(session: Session, request: Values) -> None:
    """ibv_dereg_mr(3)."""
    _close("region", session, request)


@handles("REREG_MR")
def rereg_mr(session: Session, request: Values) -> Values:
    """ibv_rereg_mr(3)."""
    region = session.core("region", request["handle"]).core
    flags, address, length = request["flags"], request["address"], request["length"]
    if not flags or flags & ~_REREG_FLAGS:
        raise PyverbsRDMAError(f"flags={flags:#x}: IBV_REREG_MR_CHANGE_* bits are expected", errno.EINVAL)
    pd = session.core("PD", request["pd"]) if flags & e.IBV_REREG_MR_CHANGE_PD else None
    access = request["access"] if flags & e.IBV_REREG_MR_CHANGE_ACCESS else region.access
    moves = bool(flags & e.IBV_REREG_MR_CHANGE_TRANSLATION)
    if moves and length and not access & e.IBV_ACCESS_ON_DEMAND:
        check_memory(session, address, length, bool(access & _WRITES))
    holder = session if moves else None  # what is not None says that there is other memory
    session.port.regions.reregister(region, pd, address, length, access, holder, KINDS["PLAIN"])
    return {"lkey": region.lkey, "rkey": region.rkey}


@handles("ADVISE_MR")
def advise_mr(session: Session, request: Values) -> None:
    """ibv_advise_mr(3): memory is paged in when it is touched, so there is nothing to do beyond the checks."""
    pd = session.core("PD", request["pd"])
    advice, flags = request["advice"], request["flags"]
    if advice not in _ADVICE:
        raise PyverbsRDMAError(f"advice={advice} is not known", errno.EOPNOTSUPP)
    if flags & ~e._IBV_ADVISE_MR_FLAG_FLUSH:
        raise PyverbsRDMAError(f"flags={flags:#x}: IBV_ADVISE_MR_FLAG_FLUSH is known", errno.EINVAL)
    writing = advice == e._IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE
    lkey, address, length = request["lkey"], request["address"], request["length"]
    if length >= 2**32:
        raise PyverbsRDMAError(f"length={length}: a scatter/gather element is shorter", errno.EINVAL)
    found = session.port.regions.advised(pd, lkey, address, length, writing)
    if flags and length and advice != e._IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT:
        check_memory(session, found & _ADDRESS, length, writing)


@handles("ALLOC_MW")
def alloc_mw(session: Session, request: Values) -> Values:
    """ibv_alloc_mw(3)."""
    window = session.port.regions.allocate_window(session.core("PD", request["pd"]), request["type"])
    return {"handle": session.add("window", Region(session, window)).handle, "rkey": window.rkey}


@handles("DEALLOC_MW")
def dealloc_mw(session: Session, request: Values) -> None:
    """ibv_dealloc_mw(3)."""
    _close("window", session, request)


@handles("ALLOC_DM")
def alloc_dm(session: Session, request: Values) -> Values:
    """ibv_alloc_dm(3)."""
    if request["comp_mask"]:
        raise PyverbsRDMAError(f"comp_mask={request['comp_mask']:#x}: no bit of it is known", errno.EINVAL)
    memory = DeviceMemory(session.port, session, request["length"], request["log_align_req"])
    return {"handle": session.add("device memory", memory).handle}


@handles("FREE_DM")
def free_dm(session: Session, request: Values) -> None:
    """ibv_free_dm(3)."""
    _close("device memory", session, request)


@handles("COPY_DM")
def copy_dm(session: Session, request: Values) -> None:
    """ibv_memcpy_to_dm(3), ibv_memcpy_from_dm(3)."""
    memory = session.core("device memory", request["handle"])
    length = request["length"]
    at = memory.at(request["offset"], length)
    if not length:
        return
    if request["to_device"]:
        view(at, length)[:] = spaces.read(session.space, request["address"], length)
    else:
        spaces.write(session.space, request["address"], bytes(view(at, length)))


@handles("REG_DM_MR")
def reg_dm_mr(session: Session, request: Values) -> Values:
    """ibv_reg_dm_mr(3)."""
    pd, memory = session.core("PD", request["pd"]), session.core("device memory", request["dm"])
    region = session.port.regions.register_device_memory(
        pd, memory, request["offset"], request["length"], request["access"]
    )
    return _keys(session.add("region", Region(session, region)))
