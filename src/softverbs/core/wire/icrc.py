# SPDX-License-Identifier: MIT
"""The invariant CRC at the end of every RoCEv2 frame (RoCEv2 annex A17.3.3; the CRC-32 of Ethernet).

It covers 8 bytes of ones (where InfiniBand has its LRH), the IP and UDP headers and the frame, with ones in place of
what routers may change: type of service and time to live, traffic class, flow label and hop limit, both checksums,
and byte 4 of the BTH.

A socket shows the frame only, so the headers are made up from the addresses. What varies in them from frame to frame
is the lengths and, in IPv4, the identification. CRCs are linear: the CRC of a sum is the sum of the CRCs, where a sum
is an exclusive or. So the CRC of the headers is that with zeros in these fields, plus what each byte of a field adds,
and that is a table. The same the other way round finds the identification of a frame that came through a socket: the
difference between the CRC it has and the CRC it should have, divided by the power of x by which the bytes after the
field have moved it, must be a polynomial of 16 bits. Of random damage, one in 65,536 passes this, where an exact
check lets one in 4,294,967,296 through.

As polynomials, words are reversed: the highest bit is x^0. zlib inverts the register before and after; in the
difference of two CRCs of equally long data these inversions cancel, so differences are plain remainders.
"""

import sys
import zlib

try:
    import cython
except ImportError:
    from softverbs import _cython as cython
from softverbs.core.wire.gid import is_ipv4

if not cython.compiled:
    from softverbs.core.memory.raw import crc32, load8, load32, store8

_BIG_ENDIAN = sys.byteorder == "big"
_SHORTEST = 16  # a BTH and the ICRC

_POLYNOMIAL = 0xEDB88320
_X_TO_0 = 0x80000000
_X_TO_MINUS_1 = 0xDB710641

# Tables of what a 16-bit field adds, at the start of the table of its high byte; that of its low byte follows.
_IPV4_LENGTH = 0
_IPV4_IDENTIFICATION = 512
_IPV6_LENGTH = 1024
_UDP_LENGTH = 1536
_added = [0] * 2048
# The bytes from the end of the identification to the end of the UDP header.
_AFTER_IDENTIFICATION = 22

_back = [0] * 20  # x^(-8 * 2^k)
_CACHED = 4608  # enough for a payload of 4,096 bytes
_inverses = [0] * 4608  # by length of the frame; 0: not computed yet


def _remainder(data: bytes) -> int:
    return zlib.crc32(data) ^ zlib.crc32(bytes(len(data)))


def _multiply(a: int, b: int) -> int:
    """The product of two polynomials modulo that of the CRC."""
    product = 0
    for _ in range(32):
        product = product >> 1 ^ (_POLYNOMIAL & -(product & 1))
        product ^= b & -(a & 1)
        a >>= 1
    return product


def _fill() -> None:
    after = ((_IPV4_LENGTH, 24), (_IPV4_IDENTIFICATION, _AFTER_IDENTIFICATION), (_IPV6_LENGTH, 42), (_UDP_LENGTH, 2))
    for table, distance in after:
        for byte in range(256):
            _added[table + byte] = _remainder(bytes([byte, 0]) + bytes(distance))
            _added[table + 256 + byte] = _remainder(bytes([0, byte]) + bytes(distance))
    power = _X_TO_MINUS_1
    for _ in range(3):
        power = _multiply(power, power)
    for k in range(20):
        _back[k] = power
        power = _multiply(power, power)


_fill()


def _adds(table: int, value: int) -> int:
    """What ``value`` in the 16-bit field of ``table`` adds to the CRC at the end of the UDP header."""
    return _added[table + (value >> 8 & 255)] ^ _added[table + 256 + (value & 255)]


def _inverse(length: int) -> int:
    """What undoes the way of an identification to the end of a frame of ``length`` bytes, and of the CRC itself."""
    if length < _CACHED and _inverses[length] != 0:
        return _inverses[length]
    factor = _X_TO_0
    exponent = length + _AFTER_IDENTIFICATION + 4
    k = 0
    while exponent > 0:
        if exponent & 1:
            factor = _multiply(factor, _back[k])
        exponent >>= 1
        k += 1
    if length < _CACHED:
        _inverses[length] = factor
    return factor


def _wire(value: int) -> int:
    """Between a CRC, which goes onto the wire lowest byte first, and the host-order integer of its four bytes."""
    if not _BIG_ENDIAN:
        return value
    return value >> 24 | (value >> 8 & 0xFF00) | (value & 0xFF00) << 8 | (value & 0xFF) << 24


def _masked_headers(source: bytes, dest: bytes, source_port: int, dest_port: int, ipv4: bool) -> bytes:
    """All that comes before the BTH, with ones where the ICRC wants them and zeros in the fields that vary."""
    if ipv4:
        ip = b"\x45\xff\0\0\0\0\x40\0\xff\x11\xff\xff" + source[12:] + dest[12:]
    else:
        ip = b"\x6f\xff\xff\xff\0\0\x11\xff" + source + dest
    udp = source_port.to_bytes(2, "big") + dest_port.to_bytes(2, "big") + b"\0\0\xff\xff"
    return b"\xff" * 8 + ip + udp


class IcrcPath:
    """The ICRC of the frames from one address and port to another; frames that come back are another path.

    GIDs are 16 bytes; the path is IPv4 if both are IPv4-mapped (``::ffff:a.b.c.d``), else IPv6. IPv4 packets have
    no options, are not fragmented and must not be (DF). ValueError if a GID is not 16 bytes long.
    """

    def __init__(self, source_gid: bytes, dest_gid: bytes, source_port: int, dest_port: int = 4791) -> None:
        if len(source_gid) != 16 or len(dest_gid) != 16:
            raise ValueError("a GID is 16 bytes")
        self.ipv4 = is_ipv4(source_gid) and is_ipv4(dest_gid)
        self._start = zlib.crc32(_masked_headers(source_gid, dest_gid, source_port, dest_port, self.ipv4))

    def _headers(self, length: int, identification: int) -> int:
        """The CRC from the ones to the end of the UDP header, before a frame of ``length`` bytes without ICRC."""
        udp_length = length + 12
        value = self._start ^ _adds(_UDP_LENGTH, udp_length)
        if not self.ipv4:
            return value ^ _adds(_IPV6_LENGTH, udp_length)
        return value ^ _adds(_IPV4_LENGTH, udp_length + 20) ^ _adds(_IPV4_IDENTIFICATION, identification)

    def compute(self, address: int, length: int, identification: int) -> int:
        """The ICRC of the frame of ``length`` bytes, without ICRC, at ``address``: ``store32`` it behind the frame.

        ``identification`` is that of the IPv4 header, in which the payload of one UDP packet is this frame alone; it
        does not matter in IPv6. The frame is at least a BTH. Its byte 4 is another one during the call.
        """
        masked = load8(address + 4)
        store8(address + 4, 0xFF)
        value = crc32(address, length, self._headers(length, identification))
        store8(address + 4, masked)
        return _wire(value)

    def verify(self, address: int, length: int, identification: int, known: bool) -> int:
        """The IPv4 identification with which a frame of ``length`` bytes, ICRC included, is right; -1 if it is wrong.

        ``identification`` is tried first. If it is not ``known`` for sure and the path is IPv4, any other will do
        as well. In IPv6 the answer is ``identification`` or -1.
        """
        if length < _SHORTEST:
            return -1
        length -= 4
        difference = self.compute(address, length, identification) ^ load32(address + length)
        if difference == 0:
            return identification
        if known or not self.ipv4:
            return -1
        moved = _multiply(_wire(difference), _inverse(length))
        if moved & 0xFFFF:
            return -1
        return identification ^ ((moved >> 8 & 0xFF00) | moved >> 24)
