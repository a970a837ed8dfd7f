# SPDX-License-Identifier: MIT
"""Frames from outside: read, made and changed in plain Python, without the core's own readers."""

import struct
import sys
from typing import NamedTuple

from softverbs.core.memory.raw import Block, view
from softverbs.core.wire import opcodes
from softverbs.core.wire.icrc import IcrcPath

OPCODES = opcodes.NAMES
SEND_FIRST, SEND_MIDDLE, SEND_LAST = (OPCODES[f"RC_SEND_{part}"] for part in ("FIRST", "MIDDLE", "LAST"))
SEND_ONLY = OPCODES["RC_SEND_ONLY"]
WRITE_FIRST, WRITE_MIDDLE, WRITE_LAST, WRITE_ONLY = (
    OPCODES[f"RC_RDMA_WRITE_{part}"] for part in ("FIRST", "MIDDLE", "LAST", "ONLY")
)
READ_REQUEST = OPCODES["RC_RDMA_READ_REQUEST"]
RESPONSE_FIRST, RESPONSE_MIDDLE, RESPONSE_LAST, RESPONSE_ONLY = (
    OPCODES[f"RC_RDMA_READ_RESPONSE_{part}"] for part in ("FIRST", "MIDDLE", "LAST", "ONLY")
)
RESPONSES = (RESPONSE_FIRST, RESPONSE_MIDDLE, RESPONSE_LAST, RESPONSE_ONLY)
ACKNOWLEDGE = OPCODES["RC_ACKNOWLEDGE"]
ATOMIC_ACKNOWLEDGE = OPCODES["RC_ATOMIC_ACKNOWLEDGE"]
FETCH_ADD = OPCODES["RC_FETCH_ADD"]
COMPARE_SWAP = OPCODES["RC_COMPARE_SWAP"]
ANSWERS = (*RESPONSES, ACKNOWLEDGE, ATOMIC_ACKNOWLEDGE)

# AETH syndromes (IBA table 43).
ACK, RNR, NAK_SEQUENCE, NAK_INVALID, NAK_ACCESS, NAK_OPERATION = 0x1F, 0x20, 0x60, 0x61, 0x62, 0x63
KIND = 0x60


class Bth(NamedTuple):
    """A base transport header."""

    opcode: int
    solicited: bool
    pad: int
    qpn: int
    ask: bool
    psn: int


def bth(frame: bytes) -> Bth:
    opcode, bits, _, qpn, psn = struct.unpack(">BBHII", frame[:12])
    return Bth(opcode, bool(bits & 0x80), bits >> 4 & 3, qpn & 0xFFFFFF, bool(psn >> 31), psn & 0xFFFFFF)


def psn(frame: bytes) -> int:
    return int.from_bytes(frame[9:12], "big")


def syndrome(frame: bytes) -> int:
    """Of an ACK or NAK, or the answer that has one too."""
    return frame[12]


def reth(frame: bytes) -> tuple[int, int, int]:
    """Address, key and length of a READ request, or of the first packet of a WRITE."""
    va, rkey, length = struct.unpack(">QII", frame[12:28])
    return va, rkey, length


def put_bth(opcode: int, qpn: int, psn: int, ask: bool = True, pad: int = 0, solicited: bool = False) -> bytes:
    bits = (0x80 if solicited else 0) | 0x40 | pad << 4
    return struct.pack(">BBHII", opcode, bits, 0xFFFF, qpn, int(ask) << 31 | psn & 0xFFFFFF)


def put_reth(va: int, rkey: int, length: int) -> bytes:
    return struct.pack(">QII", va, rkey, length)


def put_aeth(syndrome: int, msn: int = 0) -> bytes:
    return struct.pack(">I", syndrome << 24 | msn)


class Seal:
    """Puts the ICRC behind frames of one path."""

    def __init__(self, source: bytes, dest: bytes, port: int = 4791) -> None:
        """source, dest: GIDs of 16 bytes; port: the UDP port that the frames leave from."""
        self.path = IcrcPath(source, dest, port)
        self._block = Block(65536)

    def __call__(self, body: bytes) -> bytes:
        """``body`` with its ICRC: everything from the BTH on, filled up to a multiple of 4."""
        place = view(self._block.address, len(body))
        place[:] = body
        return body + self.path.compute(self._block.address, len(body), 0).to_bytes(4, sys.byteorder)
