# SPDX-License-Identifier: MIT
"""Where an identifier is: its port space, its addresses, the device's GID that they lead to, and the port that it has.

The device's lock is held around every call.
"""

import contextlib
import errno
from enum import Enum
from typing import TYPE_CHECKING

from softverbs.cm import registry
from softverbs.cm.addresses import ANY_V4, ANY_V6, Address, of_gid, only_ipv6_by_default
from softverbs.cm.events import Kind
from softverbs.cm.gsi import unreachable
from softverbs.core.base.errors import PyverbsRDMAError

if TYPE_CHECKING:
    from softverbs.cm.service import Service
    from softverbs.device import Device

# enum rdma_port_space
PS_IPOIB, PS_TCP, PS_UDP, PS_IB = 0x0002, 0x0106, 0x0111, 0x013F
_DATAGRAMS = (PS_UDP, PS_IPOIB)
#: RDMA_OPTION_ID_*, and the size of the value in bytes.
TOS, REUSEADDR, AFONLY, ACK_TIMEOUT = range(4)
OPTIONS = {TOS: 1, REUSEADDR: 4, AFONLY: 4, ACK_TIMEOUT: 1}


class Stage(Enum):
    """How far an identifier is."""

    IDLE = "idle"
    BOUND = "bound"
    ADDRESS = "address resolved"
    ROUTE = "route resolved"
    LISTEN = "listening"
    REQUEST = "a request waits for an answer"
    CONNECT = "connecting or connected"
    CLOSED = "closed"


class Addressed:
    """An identifier as far as its addresses are concerned; ``identity`` has the rest."""

    def __init__(self, device: "Device", space: int) -> None:
        """
        :param device: that it will be of, once it is bound
        :param space: RDMA_PS_*
        """
        self.device = device
        self.space = space
        self.stage = Stage.IDLE
        self.source: Address | None = None
        self.destination: Address | None = None
        self.sgid_index = 0
        self.dgid: bytes | None = None
        self.traffic_class = 0
        self.ack_timeout: int | None = None
        #: Whether others that say the same may have its port (RDMA_OPTION_ID_REUSEADDR), as long as none listens.
        self.reuse = False
        #: Whether an address of all interfaces is for its own IP version only (RDMA_OPTION_ID_AFONLY); bound, it is
        #: known. Of IPv4 it is unless that was set otherwise.
        self.one_family = False
        self._family_set = False
        self._entries: list[registry.Entry] = []

    @property
    def service(self) -> "Service":
        """The connection manager of its device."""
        raise NotImplementedError

    def tell(self, kind: Kind, status: int = 0) -> None:
        """Gives the application an event.

        :param kind: what it is about
        :param status: 0 or a negative errno
        """
        raise NotImplementedError

    @property
    def datagrams(self) -> bool:
        """Whether it is of a port space of datagrams."""
        return self.space in _DATAGRAMS

    def _need(self, *stages: Stage) -> None:
        if self.stage not in stages:
            raise PyverbsRDMAError(f"the identifier is {self.stage.value}", errno.EINVAL)

    # -- options

    def set_option(self, name: int, value: int) -> None:
        """Sets an option of RDMA_OPTION_ID (rdma_set_option(3)).

        :param name: one of ``OPTIONS``
        :param value: TOS: the traffic class. REUSEADDR: whether others that say the same may have its port. AFONLY:
            whether an address of all interfaces is for its own IP version only. ACK_TIMEOUT: 5 bits, 4.096 us * 2^value
        :raises PyverbsRDMAError: EINVAL for another value, or where it is too late
        """
        if name == TOS:
            self.traffic_class = value
        elif name == REUSEADDR:
            if self.stage is Stage.LISTEN or (not value and self.stage is not Stage.IDLE):
                raise PyverbsRDMAError(f"RDMA_OPTION_ID_REUSEADDR: the identifier is {self.stage.value}", errno.EINVAL)
            self.reuse = bool(value)
        elif name == AFONLY:
            self._need(Stage.IDLE, Stage.BOUND)
            self.one_family, self._family_set = bool(value), True
        else:
            if self.datagrams or not 0 <= value < 32:
                raise PyverbsRDMAError(f"RDMA_OPTION_ID_ACK_TIMEOUT: {value}: 0 to 31, for connections", errno.EINVAL)
            self.ack_timeout = value

    # -- addresses

    def bind(self, address: Address) -> None:
        """Takes a source address (rdma_bind_addr(3)).

        :param address: of the device, another address of this host, or all addresses; port 0: a free port
        :raises PyverbsRDMAError: EINVAL in another state; EADDRNOTAVAIL for an address that is not here; for one that
            is in use EADDRINUSE, or EADDRNOTAVAIL if either identifier is bound to all addresses
        """
        self._need(Stage.IDLE)
        gids = self.service.device.link.gids
        if address.gid in gids:
            self.sgid_index = gids.index(address.gid)
        elif address.is_any:  # of which IP version it is, no device needs to know
            self.sgid_index = self._index_for(address) or 0
        elif self.service.on_host and address.is_local() and not registry.has_device(address.ip):
            index = self._index_for(address)
            if index is None:
                raise PyverbsRDMAError(f"the device has no address of the kind of {address.text}", errno.EADDRNOTAVAIL)
            self.sgid_index = index
        else:
            raise PyverbsRDMAError(f"{address.text} is no address of this device or host", errno.EADDRNOTAVAIL)
        self._reserve(address)
        self.stage = Stage.BOUND

    def _reserve(self, address: Address) -> None:
        if not self._family_set:
            self.one_family = len(address.ip) == len(ANY_V4) or only_ipv6_by_default()
        try:
            self.source = self.service.ports.bind(self, address)
        except OSError as error:
            raise _refused(error) from None

    def _index_for(self, address: Address) -> int | None:
        """The first GID of the same IP version."""
        for index, gid in enumerate(self.service.device.link.gids):
            if len(of_gid(gid).ip) == len(address.ip):
                return index
        return None

    def resolve_addr(self, source: Address | None, destination: Address) -> None:
        """Finds the way to a destination (rdma_resolve_addr(3)); an event tells.

        :param source: where the identifier is not bound yet; None: the device's
        :param destination: a host or a multicast group
        :raises PyverbsRDMAError: EINVAL, or of ``bind``
        """
        self._need(Stage.IDLE, Stage.BOUND)
        if self.stage is Stage.IDLE and source is not None:
            self.bind(source)
        if self.source is not None and len(self.source.ip) != len(destination.ip):
            raise PyverbsRDMAError(f"{destination.text} and {self.source.text}: two IP versions", errno.EINVAL)
        self.destination = destination
        index = self._index_for(destination)
        if index is None:
            self.tell(Kind.ADDR_ERROR, -errno.EHOSTUNREACH)
            return
        if self.source is None or self.source.is_any:
            self.sgid_index = index
            port = self.source.port if self.source is not None else 0
            own = of_gid(self.service.device.link.gids[index], port)
            if self.source is None:
                self._reserve(own)
            else:
                self.source = own
        self.stage = Stage.ADDRESS
        self.tell(Kind.ADDR_RESOLVED)

    def resolve_route(self) -> None:
        """Finds the route (rdma_resolve_route(3)); an event tells."""
        self._need(Stage.ADDRESS)
        self._locate()
        if self.dgid is not None:
            status = unreachable(self.device, self.sgid_index, self.dgid, self.traffic_class)
            if status:
                self.tell(Kind.ROUTE_ERROR, status)
                return
        self.stage = Stage.ROUTE
        self.tell(Kind.ROUTE_RESOLVED)

    def _locate(self) -> None:
        """Looks where the destination is; ``dgid`` stays None where it is on this host and nobody listens there."""
        if self.destination is not None:
            self.dgid = self.service.locate(self.space, self.destination)

    # -- listening

    def _take_port(self) -> None:
        """Listens at its port, here and on the host."""
        try:
            self.service.ports.listen(self)
            self._announce()
        except OSError as error:
            self.service.ports.deafen(self)
            raise _refused(error) from None

    def _announce(self) -> None:
        """Tells the host of an address that is not the device's own; OSError where another device listens there."""
        source = self.source
        assert source is not None
        gids = self.service.device.link.gids
        if not self.service.on_host or source.gid in gids:
            return
        if not source.is_any:
            self._entries.append(registry.announce(self.space, source.text, source.port, gids[self.sgid_index]))
            return
        for every in [source] if self.one_family else [Address(ANY_V4), Address(ANY_V6)]:
            index = self._index_for(every)
            if index is not None:
                with contextlib.suppress(OSError):  # on all addresses: the device's own remains
                    self._entries.append(registry.announce(self.space, every.text, source.port, gids[index]))

    def _withdraw(self) -> None:
        """Takes its names out of the host's registry."""
        for entry in self._entries:
            entry.close()


def _refused(error: OSError) -> PyverbsRDMAError:
    return PyverbsRDMAError(str(error.strerror), error.errno or errno.EADDRINUSE)
