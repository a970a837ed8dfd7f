# SPDX-License-Identifier: MIT
"""The global route header in front of a datagram, as a UD receive buffer holds it, read back into an address vector.

40 bytes (IBA 8.3): of a peer with an IPv6 address they are the IPv6 header; of one with an IPv4 address the last 20 are
the IPv4 header, and the first 20 mean nothing (IBA annex A17.4.5.1).
"""

import errno
import sys
from typing import TYPE_CHECKING, Any

from softverbs.core.memory.raw import Block, copy_checked, view
from softverbs.pyverbs._fields import integer, is_integer, refused

if TYPE_CHECKING:
    from softverbs.pyverbs.addr import GRH

#: Bytes of a global route header.
SIZE = 40
_IPV4_AT = 20
_MAPPED = bytes(10) + b"\xff\xff"


class Route:
    """What a header says about the way back: the peer's GID, the GID of this side that it was sent to, and the rest."""

    __slots__ = ("flow_label", "hop_limit", "peer", "to", "traffic_class")

    def __init__(self, peer: bytes, to: bytes, flow_label: int, hop_limit: int, traffic_class: int) -> None:
        """
        :param peer: GID of the sender
        :param to: GID that it sent to, which may be a multicast group's
        :param flow_label: 20 bits; 0 of IPv4
        :param hop_limit: routers that could still have been passed
        :param traffic_class: 8 bits
        """
        self.peer = peer
        self.to = to
        self.flow_label = flow_label
        self.hop_limit = hop_limit
        self.traffic_class = traffic_class

    @property
    def to_many(self) -> bool:
        """Whether it was sent to a multicast group."""
        return self.to[0] == 0xFF or (self.to[:12] == _MAPPED and 224 <= self.to[12] < 240)


def header_bytes(grh: Any, what: str) -> bytes:
    """The 40 bytes of a header.

    :param grh: their address; or the bytes themselves, in anything with a buffer
    :param what: how messages call it
    :raises PyverbsRDMAError: EFAULT where nothing can be read, EINVAL for what is no header
    """
    if is_integer(grh):
        return _at(integer(grh, what, 64), what)
    try:
        raw = bytes(memoryview(grh).cast("B")[:SIZE])
    except TypeError:
        raise refused(f"{what} is {type(grh).__name__}: an address, a GRH or bytes are expected") from None
    if len(raw) < SIZE:
        raise refused(f"{what} has {len(raw)} bytes: a global route header has {SIZE}")
    return raw


def _at(address: int, what: str) -> bytes:
    block = Block(SIZE)
    if address + SIZE > 1 << 64 or not copy_checked(block.address, address, SIZE):
        raise refused(f"{what} is {address:#x}: {SIZE} bytes cannot be read there", errno.EFAULT)
    return bytes(view(block.address, SIZE))


def packed(grh: "GRH") -> bytes:
    """The 40 bytes that a GRH object stands for. Its members are in network order, as in C."""
    return (
        grh.version_tclass_flow.to_bytes(4, sys.byteorder)
        + grh.paylen.to_bytes(2, sys.byteorder)
        + bytes((grh.next_hdr, grh.hop_limit))
        + grh._sgid
        + grh._dgid
    )


def route_of(raw: bytes) -> Route:
    """Reads a header.

    :param raw: its 40 bytes
    :raises PyverbsRDMAError: EINVAL where neither an IPv4 nor an IPv6 header is there
    """
    looks_like_6 = raw[0] >> 4 == 6
    if raw[_IPV4_AT] == 0x45 and (not looks_like_6 or _checksum_is_right(raw[_IPV4_AT:])):
        header = raw[_IPV4_AT:]
        return Route(_MAPPED + header[12:16], _MAPPED + header[16:20], 0, header[8], header[1])
    if not looks_like_6:
        raise refused("the global route header has neither an IPv4 nor an IPv6 header")
    word = int.from_bytes(raw[:4], "big")
    return Route(raw[8:24], raw[24:40], word & 0xFFFFF, raw[7], word >> 20 & 0xFF)


def _checksum_is_right(header: bytes) -> bool:
    """Whether an IPv4 header's checksum fits: what is left of a source address seldom does (RFC 791, 3.1)."""
    total = sum(int.from_bytes(header[at : at + 2], "big") for at in range(0, len(header), 2))
    return (total & 0xFFFF) + (total >> 16) == 0xFFFF
