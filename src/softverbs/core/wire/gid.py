# SPDX-License-Identifier: MIT
"""GIDs of RoCEv2, and the table of them that a port has.

A GID is 16 bytes that are an IPv6 address, or an IPv4 address mapped into one (annex A17.4.4). Frames leave from the
addresses of the port's link; the table is what programs see of them, and `sgid_index` of an address vector is an index
of the table.
"""

import errno
import ipaddress
from collections.abc import Sequence
from typing import NamedTuple

from softverbs.core.base.errors import PyverbsRDMAError

ROCE_V1 = 1  # enum ibv_gid_type, ibv_query_gid_table(3)
ROCE_V2 = 2

#: The default table has so many entries at least: programs ask for index 1 and 3, where NICs have RoCE v2.
ENTRIES = 4

_MAPPED = bytes(10) + b"\xff\xff"
#: The first bytes of a link-local GID that stands for an IPv4 address: fe80::/64, then the EUI-64 of an Ethernet
#: address 02:00:a:b:c:d, locally administered (RFC 4291, appendix A).
_LINK_LOCAL = b"\xfe\x80" + bytes(8)


def is_ipv4(gid: bytes) -> bool:
    """Whether a GID is an IPv4-mapped address."""
    return gid[:12] == _MAPPED


def is_multicast(gid: bytes) -> bool:
    """Whether a GID is that of a multicast group: an IPv6 multicast address, or an IPv4 one that is mapped."""
    return gid[0] == 0xFF or (is_ipv4(gid) and gid[12] >> 4 == 0xE)


def is_link_local(gid: bytes) -> bool:
    """Whether a GID is a link-local address, of fe80::/10."""
    return gid[0] == 0xFE and gid[1] & 0xC0 == 0x80


def address_of(gid: bytes) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """The address that a GID stands for; ``str()`` writes it as people do."""
    address = ipaddress.IPv6Address(gid)
    return address.ipv4_mapped or address


def link_local_of(gid: bytes) -> bytes:
    """The link-local GID that a port has beside the GID of an IPv4 address, as NICs have one of their MAC address."""
    return _LINK_LOCAL + gid[12:13] + b"\xff\xfe" + gid[13:]


def behind_link_local(gid: bytes) -> bytes | None:
    """The GID of an IPv4 address, from ``link_local_of`` it; None where it is another link-local GID."""
    if gid[:10] != _LINK_LOCAL or gid[11:13] != b"\xff\xfe":
        return None
    return _MAPPED + gid[10:11] + gid[13:]


class GidEntry(NamedTuple):
    """An entry of a GID table."""

    #: 16 bytes.
    gid: bytes
    #: ``ROCE_V1`` or ``ROCE_V2``.
    kind: int
    #: Index of the address in the link's list that frames of this GID leave from.
    home: int


class GidTable:
    """The GID table of a port: what it was made of does not change while the port is there."""

    def __init__(self, addresses: Sequence[bytes], layout: str) -> None:
        """
        :param addresses: GIDs of the link's addresses, at least one
        :param layout: ``repeat``, ``single`` or ``mlx5`` (``limits.Options.gid_table``)
        """
        self.addresses = [bytes(gid) for gid in addresses]
        if layout == "mlx5":
            self.entries = list(_pairs(self.addresses))
        else:
            count = len(self.addresses)
            homes = [index % count for index in range(max(count, ENTRIES if layout == "repeat" else 0))]
            self.entries = [GidEntry(self.addresses[home], ROCE_V2, home) for home in homes]

    def index_of(self, gid: bytes) -> int | None:
        """The first entry with this GID that frames can leave from; None where there is none."""
        for index, entry in enumerate(self.entries):
            if entry.gid == gid and entry.kind == ROCE_V2:
                return index
        return None

    def first_for(self, dgid: bytes) -> int | None:
        """The first entry that frames to a GID of the same IP version can leave from; None where there is none."""
        for index, entry in enumerate(self.entries):
            if entry.kind == ROCE_V2 and is_ipv4(entry.gid) == is_ipv4(dgid):
                return index
        return None

    def index_of_address(self, home: int) -> int:
        """The first entry that is the GID of the link's address with this index, of RoCE v2."""
        return self.entries.index(GidEntry(self.addresses[home], ROCE_V2, home))

    def resolve(self, sgid_index: int, dgid: bytes) -> tuple[int, bytes]:
        """From which of the link's addresses, and to which GID, the frames of an address vector go.

        :param sgid_index: index of the table
        :param dgid: the peer's GID, 16 bytes
        :raises PyverbsRDMAError: EINVAL where there is no such entry, or none that can reach the peer
        """
        count = len(self.entries)
        if not 0 <= sgid_index < count:
            raise PyverbsRDMAError(f"sgid_index={sgid_index}: the GID table has {count} entries, from 0", errno.EINVAL)
        gid, kind, home = self.entries[sgid_index]
        if kind != ROCE_V2:
            others = ", ".join(str(index) for index, entry in enumerate(self.entries) if entry.kind == ROCE_V2)
            raise PyverbsRDMAError(
                f"sgid_index={sgid_index} is a GID of RoCE v1, which this device does not send; of RoCE v2: {others}",
                errno.EINVAL,
            )
        source = self.addresses[home]
        if gid != source:
            found = behind_link_local(dgid)
            if found is None:
                raise PyverbsRDMAError(
                    f"dgid {address_of(dgid)}: the GID at sgid_index {sgid_index}, {address_of(gid)}, "
                    "reaches link-local GIDs of devices that have an IPv4 address",
                    errno.EINVAL,
                )
            dgid = found
        elif is_ipv4(source) != is_ipv4(dgid):
            raise PyverbsRDMAError(
                f"dgid {address_of(dgid)} and the GID at sgid_index {sgid_index}, {address_of(source)}, "
                "are not of one IP version",
                errno.EINVAL,
            )
        return home, dgid


def _pairs(addresses: list[bytes]) -> "list[GidEntry]":
    """The entries of a mlx5 port: RoCE v1 and RoCE v2 of each GID, link-local ones first."""
    homes = [(gid, home) for home, gid in enumerate(addresses) if is_link_local(gid)]
    if not homes:
        homes = [(link_local_of(gid), home) for home, gid in enumerate(addresses) if is_ipv4(gid)][:1]
    homes += [(gid, home) for home, gid in enumerate(addresses) if not is_link_local(gid)]
    return [GidEntry(gid, kind, home) for gid, home in homes for kind in (ROCE_V1, ROCE_V2)]
