# SPDX-License-Identifier: MIT
"""A link that writes every frame into a capture file, with the headers that it has, or would have, on the wire.

The file is classic pcap with nanoseconds (draft-ietf-opsawg-pcap) and can be read while it grows: each burst is written
in one call. A frame is recorded when it was sent or when it arrived, and only once if it goes from this link to itself.

What cannot be known is made up: Ethernet addresses, from the IP address (for groups, that is no invention); for frames
received from a socket the identification, as softverbs numbers it; TTL 64, traffic class and flow label 0 of what was
received.
"""

from __future__ import annotations

import ctypes
import logging
import struct
import time
from os import PathLike
from typing import Any, NamedTuple

from softverbs.links import base

_MAGIC_NANOSECONDS = 0xA1B23C4D
_LINKTYPE_ETHERNET = 1
_SNAPLEN = 262_144
_DONT_FRAGMENT = 0x4000
_UDP = 17
_TTL = 64

_log = logging.getLogger("softverbs.links")


class _Flow(NamedTuple):
    """The two ends of a datagram, and what the IP header says of it."""

    source: bytes
    source_port: int
    destination: bytes
    destination_port: int
    traffic_class: int = 0
    flow_label: int = 0
    hop_limit: int = _TTL


class _Route(NamedTuple):
    inner: object
    flow: _Flow


class _Peer(NamedTuple):
    outer: object
    flow: _Flow | None  # None: already recorded when it was sent


class PcapLink(base.Middleware):
    """A link that records what another link carries."""

    def __init__(self, inner: base.Link, path: str | PathLike[str], epoch: int | None = None) -> None:
        """inner: the link that does the work; path: the file, overwritten.

        epoch: ns since 1970 at time 0 of the caller's clock. None takes that clock to be time.monotonic_ns().
        Errors: OSError if the file cannot be written. If it cannot later on, recording ends and the link goes on.
        """
        super().__init__(inner)
        self._file = open(path, "wb", buffering=0)  # noqa: SIM115 - closed by close()
        self._epoch = time.time_ns() - time.monotonic_ns() if epoch is None else epoch
        self._tap: _Tap | None = None
        self._frames = 0
        self._failed = 0
        self._write(struct.pack("=IHHiIII", _MAGIC_NANOSECONDS, 2, 4, 0, 0, _SNAPLEN, _LINKTYPE_ETHERNET))

    def route(self, sgid_index: int, dgid: bytes, flow_label: int, traffic_class: int, hop_limit: int) -> object:
        """See base.Link."""
        inner = self.inner.route(sgid_index, dgid, flow_label, traffic_class, hop_limit)
        source, port = self.gids[sgid_index], self.source_ports[sgid_index]
        flow = _Flow(source, port, bytes(dgid), port, traffic_class, flow_label, hop_limit or _TTL)
        return _Route(inner, flow)

    def send(self, now: int, route: Any, address: int, length: int, segment: int) -> bool:
        """See base.Link."""
        if not self.inner.send(now, route.inner, address, length, segment):
            return False
        self.record(now, route.flow, address, length, segment)
        return True

    def receive(self, now: int, sink: base.Sink) -> int:
        """See base.Link."""
        if self._tap is None or self._tap.sink is not sink:
            self._tap = _Tap(self, sink)
        self._tap.now = now
        return self.inner.receive(now, self._tap)

    def stats(self) -> dict[str, int]:
        """Return the inner link's counters and: pcap_frames written; pcap_failed: 1 if recording had to end."""
        return {**self.inner.stats(), "pcap_frames": self._frames, "pcap_failed": self._failed}

    def close(self) -> None:
        """Close the file and the inner link."""
        self._file.close()
        self.inner.close()

    def own(self, gid: bytes, port: int) -> bool:
        """Tell whether frames from this sender were sent, and so recorded, here."""
        return any(gid == mine and port == its for mine, its in zip(self.gids, self.source_ports, strict=True))

    def record(self, now: int, flow: _Flow, address: int, length: int, segment: int) -> None:
        """Write the frames of a burst."""
        seconds, nanoseconds = divmod(now + self._epoch, 1_000_000_000)
        step = self.inner.identification_step
        records = []
        for index, start in enumerate(range(0, length, segment)):
            if min(segment, length - start) > self.inner.mtu:
                continue  # taken by the inner link to be lost: it never is on the wire
            frame = ctypes.string_at(address + start, min(segment, length - start))
            packet = _packet(flow, frame, index * step)
            records.append(struct.pack("=IIII", seconds & 0xFFFFFFFF, nanoseconds, len(packet), len(packet)) + packet)
        if self._write(b"".join(records)):
            self._frames += len(records)

    def _write(self, data: bytes) -> bool:
        if self._file.closed:
            return False
        try:
            while data:
                data = data[self._file.write(data) :]
            return True
        except OSError as error:  # the disk is full, or the reader of a pipe has gone
            self._failed = 1
            self._file.close()
            _log.warning("recording of frames ends: %s", error)
            return False


class _Tap:
    """Stands between the inner link and the sink, and records what passes."""

    def __init__(self, link: PcapLink, sink: base.Sink) -> None:
        self.link = link
        self.sink = sink
        self.now = 0

    def peer(self, source_gid: bytes, source_port: int, sgid_index: int, dgid: bytes | None = None, /) -> object:
        flow = None
        if not self.link.own(source_gid, source_port):
            own = self.link.gids[sgid_index], self.link.source_ports[sgid_index]
            flow = _Flow(source_gid, source_port, dgid or own[0], own[1])
        return _Peer(base.peer_of(self.sink, source_gid, source_port, sgid_index, dgid), flow)

    def receive(self, peer: Any, address: int, length: int, segment: int, /) -> None:
        if peer.flow is not None:  # before the sink, which may write into the frames
            self.link.record(self.now, peer.flow, address, length, segment)
        self.sink.receive(peer.outer, address, length, segment)


def _packet(flow: _Flow, frame: bytes, identification: int) -> bytes:
    """Return the Ethernet packet around a frame: IEEE 802.3; RFC 791, 768, 8200."""
    length = 8 + len(frame)
    ipv4 = base.is_ipv4(flow.source) and base.is_ipv4(flow.destination)
    ends = flow.source[12:] + flow.destination[12:] if ipv4 else flow.source + flow.destination
    udp = struct.pack("!HHHH", flow.source_port, flow.destination_port, length, 0)
    checksum = _checksum(ends + struct.pack("!II", length, _UDP) + udp + frame) or 0xFFFF  # 0 would mean none
    udp = udp[:6] + struct.pack("!H", checksum)
    if ipv4:
        lead = (0x45, flow.traffic_class, 20 + length, identification, _DONT_FRAGMENT, flow.hop_limit, _UDP)
        ip = struct.pack("!BBHHHBBH", *lead, _checksum(struct.pack("!BBHHHBBH", *lead, 0) + ends))
    else:
        first = 6 << 28 | flow.traffic_class << 20 | flow.flow_label
        ip = struct.pack("!IHBB", first, length, _UDP, flow.hop_limit)
    ethernet = _mac(flow.destination) + _mac(flow.source) + (b"\x08\x00" if ipv4 else b"\x86\xdd")
    return ethernet + ip + ends + udp + frame


def _mac(gid: bytes) -> bytes:
    """Return the Ethernet address of a group (RFC 1112, section 6.4; RFC 2464, section 7), or one that is made up."""
    if base.is_multicast(gid):
        return b"\x01\x00\x5e" + bytes([gid[13] & 0x7F]) + gid[14:] if base.is_ipv4(gid) else b"\x33\x33" + gid[12:]
    return b"\x02\x00" + gid[12:]  # locally administered


def _checksum(data: bytes) -> int:
    """Return the Internet checksum (RFC 1071): the sum of 16-bit words modulo 65,535, complemented."""
    total = int.from_bytes(data + bytes(len(data) % 2), "big")
    return 0xFFFF - (total % 0xFFFF or (0xFFFF if total else 0))
