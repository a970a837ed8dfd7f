# SPDX-License-Identifier: MIT
"""Where frames come from: what checks their ICRC, who sent them, and the IP header that a datagram's receiver sees."""

try:
    import cython
except ImportError:
    from softverbs import _cython as cython
from softverbs.core.wire.gid import is_ipv4

if not cython.compiled:
    from softverbs.core.memory.raw import Block, copy, store16be, view
    from softverbs.core.wire.icrc import IcrcPath

GRH_LENGTH = 40
_UDP_LENGTH = 8
_HOP_LIMIT = 64


class Peer:
    """One source of frames, as a link has seen it, or this port itself."""

    def __init__(
        self, icrc: "IcrcPath | None", gid: bytes, dgid: bytes, known: bool, step: int, group: bool = False
    ) -> None:
        """
        :param icrc: of the path from there to here; None where the peer is this port
        :param gid: the source
        :param dgid: where the frames were sent to: a GID of this port, or a multicast GID
        :param known: whether the IPv4 identification is known
        :param step: segment i of a burst has the identification ``i * step``
        :param group: whether ``dgid`` is that of a multicast group
        """
        self.icrc = icrc
        self.gid_high = int.from_bytes(gid[:8], "big")
        self.gid_low = int.from_bytes(gid[8:], "big")
        self.dgid = dgid
        self.dgid_high = int.from_bytes(dgid[:8], "big")
        self.dgid_low = int.from_bytes(dgid[8:], "big")
        self.known = known
        self.step = step
        self.group = group
        self.ipv4 = is_ipv4(gid)
        self.header = Block(GRH_LENGTH)
        self._write_header(gid, dgid)

    def _write_header(self, gid: bytes, dgid: bytes) -> None:
        """The IP header but for its length. Hop limit and traffic class are not known to links: 64 and 0."""
        header = view(self.header.address, GRH_LENGTH)
        if self.ipv4:
            packed = b"\x45\0\0\0\0\0\x40\0" + bytes([_HOP_LIMIT, 17, 0, 0]) + gid[12:] + dgid[12:]
            header[:] = bytes(20) + packed
            self.checksum = sum([packed[index] << 8 | packed[index + 1] for index in range(0, 20, 2)])
        else:
            header[:] = b"\x60\0\0\0\0\0" + bytes([17, _HOP_LIMIT]) + gid + dgid
            self.checksum = 0

    def write_grh(self, address: int, length: int) -> None:
        """The 40 bytes before a received datagram (IBA 11.4.1.2; IPv4: in the last 20 of them, annex A17.4.5.1).

        :param address: where to
        :param length: of the frame, from its BTH to its ICRC, bytes
        """
        copy(address, self.header.address, GRH_LENGTH)
        length += _UDP_LENGTH
        if not self.ipv4:
            store16be(address + 4, length)
            return
        length += 20
        store16be(address + 22, length)
        checksum = self.checksum + length
        checksum = (checksum & 0xFFFF) + (checksum >> 16)
        checksum = (checksum & 0xFFFF) + (checksum >> 16)
        store16be(address + 30, ~checksum & 0xFFFF)
