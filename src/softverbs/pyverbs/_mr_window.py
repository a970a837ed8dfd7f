# SPDX-License-Identifier: MIT
"""Memory windows: a part of a region opened to peers, and closed again, by work requests."""

import errno
from typing import Any

from softverbs.pyverbs import libibverbs_enums as e
from softverbs.pyverbs._fields import Field, instance, integer, lines, refused
from softverbs.pyverbs._mr_base import MR
from softverbs.pyverbs.base import PyverbsCM, Resource
from softverbs.pyverbs.pd import PD

_TYPES = {e.IBV_MW_TYPE_1: "IBV_MW_TYPE_1", e.IBV_MW_TYPE_2: "IBV_MW_TYPE_2"}


def mwtype2str(mw_type: int) -> str:
    """The name of an IBV_MW_TYPE_* number."""
    return _TYPES.get(mw_type, f"Unknown MW type ({mw_type})")


class MW(Resource):
    """A memory window, ``struct ibv_mw`` (ibv_alloc_mw(3)). It opens nothing before it is bound.

    Type 1: bound by ``QP.bind_mw``, as often as wanted, for every QP of the protection domain; a bind of 0 bytes ends
    it. Type 2: bound by the work request BIND_MW, for the peer of that QP alone; LOCAL_INV and SEND_WITH_INV end it.
    """

    _kind = "MW"

    def __init__(self, pd: PD, mw_type: int) -> None:
        """
        :param pd: the protection domain
        :param mw_type: IBV_MW_TYPE_1 or IBV_MW_TYPE_2
        :raises PyverbsRDMAError: EINVAL for another type, ENOMEM past ``max_mw``
        """
        instance(pd, PD, "MW pd")
        kind = integer(mw_type, "mw_type")
        with pd._guard("Failed to allocate MW", verb="alloc_mw") as device:
            core = device.port.regions.allocate_window(pd._core, kind)
            self._pd: PD | None = pd
            self._rkey = int(core.rkey)
            self._start(pd._context_or_closed(), core)
            pd._mws.add(self)

    def _remains(self) -> Any:
        return self._core, self._device().port.regions

    @staticmethod
    def _bury(remains: Any) -> None:
        core, regions = remains
        regions.deregister(core)

    def _forget(self) -> None:
        super()._forget()
        self._pd = None

    @property
    def handle(self) -> int:
        """The device's number for it."""
        return int(self._open().handle)

    @property
    def rkey(self) -> int:
        """The key for peers: of a window of type 1 that of the last ``bind_mw``, complete or not; of a window of type
        2 that of the last bind that was done.
        """
        core = self._open()
        return self._rkey if core.window_type == e.IBV_MW_TYPE_1 else int(core.rkey)

    @rkey.setter
    def rkey(self, value: int) -> None:
        self._open()
        self._rkey = integer(value, "MW.rkey")

    @property
    def type(self) -> int:
        """IBV_MW_TYPE_1 or IBV_MW_TYPE_2."""
        return int(self._open().window_type)

    def __str__(self) -> str:
        rows = (("Rkey", self.rkey), ("Handle", self.handle), ("MW Type", mwtype2str(self.type)))
        return "MW:\n" + lines(22, *rows)


class MWBindInfo(PyverbsCM):
    """What a window is to open, ``struct ibv_mw_bind_info`` of ibv_bind_mw(3)."""

    addr = Field("First byte, in the addressing of the region.", 64, read_only=True)
    length = Field("Bytes; 0 ends the binding of a window of type 1.", 64, read_only=True)
    mw_access_flags = Field("IBV_ACCESS_REMOTE_* and IBV_ACCESS_ZERO_BASED.", read_only=True)

    def __init__(self, mr: MR, addr: int, length: int, mw_access_flags: int) -> None:
        """
        :param mr: the region, which must have the right MW_BIND
        :param addr: first byte, in the addressing of the region
        :param length: bytes
        :param mw_access_flags: what the peer may do; REMOTE_WRITE and REMOTE_ATOMIC need LOCAL_WRITE of the region.
            With ZERO_BASED the peer calls the first byte 0
        """
        instance(mr, MR, "MWBindInfo mr")
        #: The region.
        self.mr = mr
        for name, value in (("addr", addr), ("length", length), ("mw_access_flags", mw_access_flags)):
            getattr(type(self), name).put(self, value)

    def _check(self, mw: MW) -> None:
        """Refuses what ibv_bind_mw(3) refuses before it posts anything."""
        instance(mw, MW, "mw")
        if mw.type != e.IBV_MW_TYPE_1:
            raise refused("bind_mw is for windows of type 1; one of type 2 is bound by the work request BIND_MW")
        core = self.mr._open()
        if self.length and core.lkey != core.rkey:
            raise refused("a window cannot be bound to a null region", errno.EOPNOTSUPP)

    def __str__(self) -> str:
        rows = (("Addr", self.addr), ("Length", self.length), ("MW access flags", self.mw_access_flags))
        return "MWBindInfo:\n" + lines(22, *rows)


class MWBind(PyverbsCM):
    """A request to bind a window of type 1, ``struct ibv_mw_bind`` of ibv_bind_mw(3)."""

    wr_id = Field("The number that the completion returns.", 64)
    send_flags = Field("IBV_SEND_SIGNALED, IBV_SEND_FENCE.")

    def __init__(self, info: MWBindInfo, send_flags: int, wr_id: int = 0) -> None:
        """
        :param info: what the window is to open
        :param send_flags: IBV_SEND_SIGNALED, IBV_SEND_FENCE
        :param wr_id: the number that the completion returns
        """
        instance(info, MWBindInfo, "MWBind info")
        #: What the window is to open.
        self.info = info
        self.send_flags = send_flags
        self.wr_id = wr_id

    def __str__(self) -> str:
        return "MWBind:\n" + lines(22, ("WR id", self.wr_id), ("Send flags", self.send_flags))
