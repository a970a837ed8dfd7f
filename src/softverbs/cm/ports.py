# SPDX-License-Identifier: MIT
"""Ports of a device: which identifiers are bound to one, and which of them listen.

Two identifiers share a port under the rules of Linux's rdma_cm (drivers/infiniband/core/cma.c, ``cma_check_port``):
where both have RDMA_OPTION_ID_REUSEADDR set and none of them listens, or where their addresses differ. An address of
all interfaces differs from those of the other IP version if both identifiers are for one IP version only
(RDMA_OPTION_ID_AFONLY), which IPv4 always is.
"""

import errno
import random
from typing import TYPE_CHECKING

from softverbs.cm.addresses import Address

if TYPE_CHECKING:
    from softverbs.cm.addressed import Addressed

#: Ports that are given to those who do not ask for one.
EPHEMERAL = range(32768, 61000)


class Ports:
    """The ports of one device, in all port spaces."""

    def __init__(self, numbers: random.Random) -> None:
        """
        :param numbers: chooses where the search for a free port begins
        """
        self.bound: dict[tuple[int, int], list[Addressed]] = {}
        self.listeners: dict[tuple[int, int], list[Addressed]] = {}
        self._next = numbers.choice(EPHEMERAL)

    def bind(self, owner: "Addressed", address: Address) -> Address:
        """Reserves a port of the owner's port space; the address with its port.

        :param owner: that has no port yet
        :param address: port 0 stands for any free one
        :raises OSError: EADDRINUSE, and EADDRNOTAVAIL where one of the two addresses stands for all interfaces
        """
        address = address.with_port(address.port or self._free(owner, address))
        self.check(owner, address, owner.reuse)
        self.bound.setdefault((owner.space, address.port), []).append(owner)
        return address

    def check(self, owner: "Addressed", address: Address, reuse: bool) -> None:
        """Refuses an address that is in use.

        :param owner: who is to have it
        :param address: with its port
        :param reuse: whether others that have RDMA_OPTION_ID_REUSEADDR set do not count
        :raises OSError: as ``bind``
        """
        for other in self.bound.get((owner.space, address.port), ()):
            theirs = other.source
            if other is owner or theirs is None or (reuse and other.reuse):
                continue
            if len(theirs.ip) != len(address.ip) and owner.one_family and other.one_family:
                continue
            if theirs.is_any or address.is_any:
                raise OSError(errno.EADDRNOTAVAIL, f"{address} is in use by an identifier that is bound to {theirs}")
            if theirs.ip == address.ip:
                raise OSError(errno.EADDRINUSE, f"{address} is in use")

    def _free(self, owner: "Addressed", address: Address) -> int:
        for _ in EPHEMERAL:
            self._next += 1
            if self._next not in EPHEMERAL:
                self._next = EPHEMERAL[0]
            try:
                self.check(owner, address.with_port(self._next), False)
            except OSError:
                continue
            return self._next
        raise OSError(errno.EADDRNOTAVAIL, "all ports are in use")

    def unbind(self, owner: "Addressed") -> None:
        """Gives the port back; the owner listens no more.

        :param owner: bound or not
        """
        if owner.source is None:
            return
        self._leave(self.bound, owner)
        self._leave(self.listeners, owner)

    def deafen(self, owner: "Addressed") -> None:
        """Lets the owner listen no more; the port remains its own.

        :param owner: listening or not
        """
        self._leave(self.listeners, owner)

    @staticmethod
    def _leave(table: dict[tuple[int, int], list["Addressed"]], owner: "Addressed") -> None:
        assert owner.source is not None
        key = (owner.space, owner.source.port)  # an address may change once it is bound, its port does not
        owners = table.get(key, [])
        if owner in owners:
            owners.remove(owner)
            if not owners:
                del table[key]

    def listen(self, owner: "Addressed") -> None:
        """Lets requests for the owner's address reach it. It has to be the only one there: it can share no longer.

        :param owner: bound
        :raises OSError: as ``bind``
        """
        source = owner.source
        assert source is not None
        if owner.reuse:
            self.check(owner, source, False)
            owner.reuse = False
        self.listeners.setdefault((owner.space, source.port), []).append(owner)

    def listener(self, space: int, port: int, ip: bytes) -> "Addressed | None":
        """Who listens at an address: preferably one of exactly this address, else one of all.

        :param space: RDMA_PS_*
        :param port: the port
        :param ip: 4 or 16 bytes
        """
        found = None
        for owner in self.listeners.get((space, port), ()):
            source = owner.source
            if source is not None and source.ip == ip:
                return owner
            if source is not None and source.is_any and (len(source.ip) == len(ip) or not owner.one_family):
                found = owner
        return found
