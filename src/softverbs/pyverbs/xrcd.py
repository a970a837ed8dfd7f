# SPDX-License-Identifier: MIT
"""XRC domains: receive queues and target QPs of one domain work together, also across contexts."""

import errno
import os
import weakref
from typing import TYPE_CHECKING, Any

from softverbs.core.queues.srq import XrcDomain
from softverbs.pyverbs import libibverbs_enums as e
from softverbs.pyverbs._fields import Field, instance, refused
from softverbs.pyverbs.base import Children, PyverbsObject, Resource
from softverbs.pyverbs.device import Context

if TYPE_CHECKING:
    from softverbs.device import Device
    from softverbs.pyverbs._qp_open import SharedTarget

_NEEDED = e.IBV_XRCD_INIT_ATTR_FD | e.IBV_XRCD_INIT_ATTR_OFLAGS


class XRCDInitAttr(PyverbsObject):
    """How an XRC domain is opened, ``struct ibv_xrcd_init_attr`` of ibv_open_xrcd(3)."""

    comp_mask = Field("Which of the other members are valid: IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS.")
    fd = Field("Descriptor of the file that names the domain; -1: the domain has no name.", signed=True)
    oflags = Field("os.O_CREAT: make it if there is none; with os.O_EXCL: only if there is none.", signed=True)

    def __init__(self, comp_mask: int, oflags: int, fd: int) -> None:
        """
        :param comp_mask: IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS
        :param oflags: 0, or os.O_CREAT, or os.O_CREAT | os.O_EXCL
        :param fd: descriptor of the file that names the domain; -1 for a domain that nobody else can open
        """
        self.fd = fd
        self.comp_mask = comp_mask
        self.oflags = oflags


class _Domain:
    """A domain of the device, and how often it is open.

    While it lives it keeps its file open, so that the file's number cannot become another file's.
    """

    def __init__(self, port: Any, context_id: object, home: "dict[tuple[int, int], _Domain]", fd: int) -> None:
        """
        :param port: the device's port
        :param context_id: of the context that opens it first
        :param home: where it enters itself, if it has a name
        :param fd: the file that names it, -1 for none
        """
        self.home = home
        self.name = None
        if fd != -1:
            self.name = _name(fd)
            self.file = weakref.finalize(self, os.close, os.dup(fd))
        self.core = XrcDomain(port, context_id)
        self.opened = 0
        #: Target QPs by number, which ``ibv_open_qp`` finds.
        self.targets: dict[int, SharedTarget] = {}
        if self.name is not None:
            home[self.name] = self

    def close(self) -> None:
        """One opener less; the last one ends the domain, or gets EBUSY while it is in use."""
        if self.opened == 1:
            self.core.close()
            if self.name is not None:
                del self.home[self.name]
                self.file()
        self.opened -= 1


#: The named domains of each device, by device and inode of the file.
_homes: "weakref.WeakKeyDictionary[Device, dict[tuple[int, int], _Domain]]" = weakref.WeakKeyDictionary()


class XRCD(Resource):
    """An XRC domain, ``struct ibv_xrcd`` (ibv_open_xrcd(3)).

    Opened twice with the same file, in one process, it is the same domain; it ends with the last of them.
    """

    _kind = "XRCD"
    _children = ("_qps", "_srqs")
    _qps: Children
    _srqs: Children
    _domain: _Domain

    def __init__(self, context: Context, init_attr: XRCDInitAttr) -> None:
        """
        :param context: the open device
        :param init_attr: which domain
        :raises PyverbsRDMAError: EINVAL where ``comp_mask`` lacks a bit, or where O_EXCL finds the domain; EAGAIN
            where there is none and O_CREAT is not set; EBADF for a descriptor that is none; ENOMEM
        """
        what = "Failed to open XRCD"
        instance(context, Context, "XRCD context")
        instance(init_attr, XRCDInitAttr, "XRCD init_attr")
        if init_attr.comp_mask & ~_NEEDED:
            raise refused(f"{what}: comp_mask={init_attr.comp_mask:#x}: only FD and OFLAGS are known", errno.EOPNOTSUPP)
        if init_attr.comp_mask != _NEEDED:
            raise refused(f"{what}: comp_mask={init_attr.comp_mask:#x}: both FD and OFLAGS are needed")
        with context._guard(what) as device:
            domain = _find(device, context, init_attr)
            domain.opened += 1
            self._domain = domain
            self._start(context, domain.core)
            context._xrcds.add(self)

    def _remains(self) -> Any:
        return self._domain

    def _close_alone(self) -> None:
        using = sum(child._core is not None for children in (self._qps, self._srqs) for child in children)
        if using:
            raise refused(f"it is used by {using} SRQs or QPs that were made with it", errno.EBUSY)
        super()._close_alone()

    @property
    def handle(self) -> int:
        """Extension: the device's number for the domain: the same for all that have opened it."""
        return int(self._open().handle)


def _find(device: "Device", context: Context, attr: XRCDInitAttr) -> _Domain:
    """The domain that ``attr`` asks for, found or made. The lock is held."""
    home = _homes.setdefault(device, {})
    if attr.fd != -1:
        found = home.get(_name(attr.fd))
        if found is not None:
            if attr.oflags & os.O_CREAT and attr.oflags & os.O_EXCL:
                raise refused("O_EXCL is set, and there is a domain of this file")
            return found
        if not attr.oflags & os.O_CREAT:
            raise refused("there is no domain of this file, and O_CREAT is not set", errno.EAGAIN)
    return _Domain(device.port, context._core, home, attr.fd)


def _name(fd: int) -> tuple[int, int]:
    """Device and inode of an open file."""
    try:
        found = os.fstat(fd)
    except OSError as error:
        raise refused(f"fd={fd}: {error.strerror}", error.errno or errno.EBADF) from None
    return found.st_dev, found.st_ino
