"""GIDs of RoCEv2: 16 bytes that are an IPv6 address, or an IPv4 address mapped into one (annex A17.4.4)."""

import ipaddress

_MAPPED = bytes(10) + b"\xff\xff"


def is_ipv4(gid: bytes) -> bool:
    """Whether a GID is an IPv4-mapped address."""
    return gid[:12] == _MAPPED


def is_multicast(gid: bytes) -> bool:
    """Whether a GID is that of a multicast group: an IPv6 multicast address, or an IPv4 one that is mapped."""
    return gid[0] == 0xFF or (is_ipv4(gid) and gid[12] >> 4 == 0xE)


def address_of(gid: bytes) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """The address that a GID stands for; ``str()`` writes it as people do."""
    address = ipaddress.IPv6Address(gid)
    return address.ipv4_mapped or address
