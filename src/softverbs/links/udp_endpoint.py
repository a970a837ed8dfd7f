# SPDX-License-Identifier: MIT
"""A UDP socket of a link, and the memory that it receives into; the hot path around them is in udp.py."""

from __future__ import annotations

import ctypes
import mmap
import socket
import struct
import sys

from softverbs.links import base, udp_socket

PEERS = 4096
"""Senders remembered for each socket. Anybody can forge senders, so all are forgotten when there are more."""

BATCH = 8  # datagrams per recvmmsg(); small, so that coalesced ones, of up to 64 KiB, stay in the cache
SLOT_SIZE = 65536

# struct mmsghdr (recvmmsg(2)) in 64-bit words, and the fields that hold 32 bits; so in all 64-bit ABIs of Linux.
HEADER_WORDS = 8
_CONTROL_LENGTH, _FLAGS_32, _LENGTH_32 = 5, 12, 14
_NAME_WORDS, CONTROL_WORDS = 4, 8
_GRO_ID = int.from_bytes(struct.pack("=ii", socket.IPPROTO_UDP, udp_socket.UDP_GRO), sys.byteorder)

OWN = object()
"""Stands for the peer where a frame to a group is the link's own."""
STRANGER = object()
"""Stands for the peer where a frame has a loopback address as its source and another port than a link's."""


class Inbox:
    """Where datagrams are received: message headers for recvmmsg(2), laid out once, and a slot of 64 KiB for each.

    Sockets of one family that are read one after the other may share it: what is in it is done with between two calls.
    """

    __slots__ = ("_keep", "batches", "vector", "words", "words_32")

    def __init__(self, family: int) -> None:
        """family: AF_INET or AF_INET6."""
        name_size = 16 if family == socket.AF_INET else 28
        headers = (ctypes.c_uint64 * (BATCH * (HEADER_WORDS + 2 + _NAME_WORDS + CONTROL_WORDS)))()
        data = ctypes.create_string_buffer(BATCH * SLOT_SIZE + mmap.PAGESIZE)
        # The kernel's copy is four times slower into memory that begins 16 bytes past a page, as large blocks do.
        first = ctypes.addressof(data) + -ctypes.addressof(data) % mmap.PAGESIZE
        self._keep = (headers, data)
        self.vector = ctypes.byref(headers)
        octets = memoryview(headers).cast("B")
        self.words, self.words_32 = octets.cast("Q"), octets.cast("I")
        slots: list[tuple[int, int, int, memoryview, int, int]] = []
        start = ctypes.addressof(headers)
        for slot in range(BATCH):
            header = slot * HEADER_WORDS
            iov = BATCH * HEADER_WORDS + slot * 2
            name = BATCH * (HEADER_WORDS + 2) + slot * _NAME_WORDS
            control = BATCH * (HEADER_WORDS + 2 + _NAME_WORDS) + slot * CONTROL_WORDS
            address = first + slot * SLOT_SIZE
            put(self.words, iov, address, SLOT_SIZE)
            name_at, iov_at, control_at = (start + word * 8 for word in (name, iov, control))
            put(self.words, header, name_at, name_size, iov_at, 1, control_at, CONTROL_WORDS * 8)
            key = octets[name * 8 : name * 8 + name_size]
            lengths = (header * 2 + _LENGTH_32, header + _CONTROL_LENGTH, header * 2 + _FLAGS_32)
            slots.append((*lengths, key, control, address))
        self.batches = [slots[:count] for count in range(BATCH + 1)]  # what to look at when so many came


class Endpoint:
    """A socket, its inbox, and who has been heard on it."""

    __slots__ = ("fd", "gid", "group", "inbox", "index", "own", "peers", "port", "sink", "sock")

    def __init__(
        self,
        sock: socket.socket,
        index: int,
        inbox: Inbox,
        group: bytes | None = None,
        own: frozenset[tuple[bytes, int]] = frozenset(),
    ) -> None:
        """index: of the GID that it belongs to; group: the multicast GID that it is bound to, if any.

        own: senders (GID, UDP port) whose frames to the group are not to be delivered: this very link.
        """
        self.sock = sock
        self.fd = sock.fileno()
        self.index = index
        self.inbox = inbox
        host, self.port = sock.getsockname()[:2]
        self.gid = base.gid_of(str(host))
        self.group = group
        self.own = own
        self.peers: dict[bytes, object] = {}
        self.sink: base.Sink | None = None

    def peer(self, key: bytes, sink: base.Sink) -> object:
        """Return the sink's object for the sender with socket address `key`, and remember it. OWN for own frames.

        STRANGER for what no link on this host has sent: any user can bind a port of any loopback address, while port
        4791 of a peer's address is the peer's. Soft-RoCE and NICs vary the port, and have no loopback address.
        """
        if sink is not self.sink or len(self.peers) >= PEERS:
            self.peers.clear()
            self.sink = sink
        gid = key[8:24] if len(key) == 28 else base.mapped_gid(key[4:8])
        port = int.from_bytes(key[2:4], "big")
        if (gid, port) in self.own:
            return OWN
        if port != self.port and base.is_loopback(gid):
            return STRANGER
        found = self.peers[key] = base.peer_of(sink, gid, port, self.index, self.group)
        return found

    def close(self) -> None:
        """Close the socket; a route that still refers to it gets EBADF, and not whatever has the number next."""
        self.fd = -1
        self.sock.close()


def put(words: memoryview, at: int, *values: int) -> None:
    """Write consecutive words."""
    for offset, value in enumerate(values):
        words[at + offset] = value


def coalesced(inbox: Inbox, control: int, length: int) -> int:
    """Return the size of the frames in a datagram that came with a control message; 0 if that makes no sense."""
    words = inbox.words
    if words[control] != 20 or words[control + 1] != _GRO_ID or not length:
        return 0
    return int(inbox.words_32[control * 2 + 4])
