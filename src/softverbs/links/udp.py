# SPDX-License-Identifier: MIT
"""RoCEv2 over UDP sockets: the link that reaches other processes, Soft-RoCE and NICs.

One socket for each address, bound to UDP port 4791 and never connected. Bursts are sent by segmentation offload (GSO),
received coalesced (GRO), and fall back to one call a frame where the kernel or the path has no such thing. Calls go to
libc by ctypes.PyDLL, on message headers that are laid out once: the interpreter's lock is kept, since no call waits.

What the IPv4 identification is. The ICRC of RoCEv2 covers it, and a socket neither sets nor shows it. Seen in captures
on Linux 6.18, on a veth pair and on lo:

- A datagram from an unconnected socket with IP_MTU_DISCOVER = IP_PMTUDISC_DO carries DF and identification 0. From a
  connected socket it counts up from a random number, so these sockets stay unconnected.
- The kernel that cuts up a GSO burst numbers the segments 0, 1, 2, ..., and begins at 0 with the next burst:
  `identification_step` is 1. A device that segments by itself (lo and veth do, as they come) passes the burst on whole,
  with identification 0; where it must be cut later, as at a router's next device, the same numbers result. How a NIC
  that segments in hardware counts has not been seen; `ethtool -K DEV tx-udp-segmentation off` leaves it to the kernel.
- IPv6 has no identification.

To see it again, in namespaces a and b with a veth pair between 10.77.0.1 and 10.77.0.2:
    ip netns exec a ethtool -K veth-a tx-udp-segmentation off
    ip netns exec b tcpdump -ni veth-b -v udp port 4791       (shows "id 0", "id 1", ... and "flags [DF]")
and the same with lo. tests/links/test_udp_wire.py does, where it may.

The UDP source port is that of the socket, 4791, for every frame. RoCEv2 lets a sender vary it, by the flow label for
one, so that routers spread flows over paths of equal cost. Here that would take a socket, and a port of this host, for
each flow: no control message sets the source port, and raw sockets need privilege. Peers would not mind, since they see
the port that they need for the ICRC; but a link that fills one path alone gains nothing. So it is not done.

The flow label goes out in the IPv6 header, in sin6_flowinfo, and needs no lease (IPV6_FLOWLABEL_MGR), unless a process
of the network namespace has leased any label for itself alone: then the kernel refuses (EINVAL) frames with labels.

When a path refuses segmentation (IPsec; in older kernels also devices that cannot compute checksums), its frames go out
one by one, each with identification 0, and for routes made from then on `identification_step` is 0.

Owner: one port, which makes one call at a time.
"""

from __future__ import annotations

import ctypes
import errno
import logging
import os
import socket
import struct
import sys
from collections.abc import Sequence
from typing import Any

from softverbs.links import base, udp_socket
from softverbs.links.udp_endpoint import BATCH, CONTROL_WORDS, OWN, STRANGER, Endpoint, Inbox, coalesced, put
from softverbs.links.udp_groups import Groups

MSG_DONTWAIT = 0x40
_TRUNCATED = int(socket.MSG_TRUNC | socket.MSG_CTRUNC)

# A route's block, in 64-bit words: address, iovec, header for one frame, header for a burst, control messages.
_IOV, _SINGLE, _BURST, _CONTROL = 4, 6, 13, 20
_ROUTE_WORDS = _CONTROL + 3 * 3  # segment size, traffic class, hop limit: each CMSG_SPACE(4) of cmsg(3)

_libc = ctypes.PyDLL(None, use_errno=True)
_sendmsg, _recvmmsg, _get_errno = _libc.sendmsg, _libc.recvmmsg, ctypes.get_errno
_log = logging.getLogger("softverbs.links")

_EAGAIN = errno.EAGAIN
_BUSY = (errno.EAGAIN, errno.ENOBUFS, errno.ENOMEM)
_NO_SEGMENTATION = (errno.EIO, errno.EINVAL, errno.EMSGSIZE, errno.ENOPROTOOPT, errno.EOPNOTSUPP)


def _cmsg(level: int, kind: int, data: bytes) -> bytes:
    return struct.pack("@Nii8s", 16 + len(data), level, kind, data)


class _Route:
    """A destination: message headers for one frame and for a burst, ready but for address and length."""

    __slots__ = ("burst", "endpoint", "limit", "reported", "segment", "segmented", "single", "words")

    def __init__(self, endpoint: Endpoint, name: bytes, options: bytes, segmented: bool) -> None:
        """name: struct sockaddr; options: control messages for every frame; segmented: whether to use GSO."""
        block = (ctypes.c_uint64 * _ROUTE_WORDS)()
        start = ctypes.addressof(block)
        ctypes.memmove(start, name, len(name))
        segment = _cmsg(socket.IPPROTO_UDP, udp_socket.UDP_SEGMENT, bytes(2))
        ctypes.memmove(start + _CONTROL * 8, segment + options, len(segment) + len(options))
        self.words = memoryview(block).cast("B").cast("Q")
        iov, control = start + _IOV * 8, start + _CONTROL * 8
        put(self.words, _SINGLE, start, len(name), iov, 1, control + len(segment), len(options))
        put(self.words, _BURST, start, len(name), iov, 1, control, len(segment) + len(options))
        self.single = ctypes.byref(block, _SINGLE * 8)
        self.burst = ctypes.byref(block, _BURST * 8)
        self.endpoint = endpoint
        self.segmented = segmented
        self.segment = 0  # that the header for a burst is set to
        self.limit = 0  # bytes that one call takes of frames of this size; 0: one frame
        self.reported = False

    def set_segment(self, segment: int) -> None:
        """Prepare for bursts of frames of `segment` bytes."""
        self.segment = segment
        self.words[_CONTROL + 2] = int.from_bytes(struct.pack("=H6x", min(segment, 0xFFFF)), sys.byteorder)
        most = min(base.MAX_BURST_FRAMES, base.MAX_BURST_BYTES // segment)
        self.limit = most * segment if self.segmented else 0


class UdpLink:
    """A link over UDP; see base.Link for the methods. One socket per address."""

    identification_known = False  # a socket does not show the IPv4 header
    loops_back = False
    one_host = False

    def __init__(
        self,
        addresses: str | Sequence[str] | None = None,
        port: int = base.ROCE_PORT,
        gso: bool = True,
        gro: bool = True,
    ) -> None:
        """Open a socket on each address.

        addresses: IPv4 or IPv6 addresses of this machine, a list or with commas between; None takes a free address of
        127.0.0.0/8, which reaches this machine only. port: the UDP port of this end and of every peer.
        gso, gro: False keeps segmentation offload off for sending, for receiving.
        Errors: ValueError for what is no address; OSError (EADDRINUSE, EADDRNOTAVAIL, ...) if it cannot be had.
        """
        if struct.calcsize("P") != 8:
            raise OSError(errno.ENOSYS, "UDP links need a 64-bit system")
        if not 0 < port < 65536:
            raise ValueError(f"a UDP port is 1 to 65535, not {port}")
        self._port = port
        self._closed = False
        sockets = _open(addresses, port)
        self._endpoints = [Endpoint(sock, index, Inbox(sock.family)) for index, sock in enumerate(sockets)]
        self._groups = Groups(self._endpoints, port, gro)
        self.gids = [endpoint.gid for endpoint in self._endpoints]
        self.source_ports = [port] * len(self.gids)
        try:
            self.mtu = min(base.MAX_UDP_PAYLOAD, *map(udp_socket.largest_payload, sockets))
        except OSError:  # the interface has gone meanwhile
            self.close()
            raise
        self.receive_buffer = min(map(udp_socket.receive_buffer, sockets))
        """Bytes that the kernel queues for the smallest socket, by its own reckoning: overhead counts, up to half."""
        self.identification_step = int(gso and all(map(udp_socket.can_segment, sockets)))
        self.coalescing = gro and all(map(udp_socket.coalesce, sockets))
        """Whether received datagrams come joined, in bursts."""
        self.frames_sent = 0
        self.frames_received = 0
        names = ("send_busy", "send_dropped", "receive_dropped", "receive_errors", "receive_own", "receive_stranger")
        self._counters = dict.fromkeys(names, 0)

    def route(self, sgid_index: int, dgid: bytes, flow_label: int, traffic_class: int, hop_limit: int) -> object:
        """See base.Link. IPv4 has no flow label; traffic class and hop limit become its TOS and TTL."""
        self._check_open()
        base.check_gid(dgid)
        if not 0 <= sgid_index < len(self._endpoints):
            raise OSError(errno.EINVAL, f"there is no GID with index {sgid_index}")
        endpoint = self._endpoints[sgid_index]
        host = base.address_of(dgid)
        if base.is_ipv4(dgid) != base.is_ipv4(endpoint.gid):
            reason = f"no way from {base.address_of(endpoint.gid)} to {host}: one is IPv4, the other IPv6"
            raise OSError(errno.EAFNOSUPPORT, reason)
        if host in ("0.0.0.0", "::"):
            raise OSError(errno.EINVAL, f"{host} is no destination")  # Linux takes it for this machine
        own = endpoint.sock.getsockname()
        link_local = dgid[0] == 0xFE and dgid[1] & 0xC0 == 0x80
        sockaddr = (host, self._port) if len(own) == 2 else (host, self._port, 0, own[3] if link_local else 0)
        if base.is_multicast(dgid):
            udp_socket.set_group_options(endpoint.sock)
        udp_socket.check_path(endpoint.sock, sockaddr)
        name = udp_socket.pack_address(sockaddr, flow_label & 0xFFFFF)
        options = _options(base.is_ipv4(dgid), traffic_class & 0xFF, hop_limit & 0xFF)
        return _Route(endpoint, name, options, self.identification_step == 1)

    def send(self, now: int, route: Any, address: int, length: int, segment: int) -> bool:
        """See base.Link. A burst of more than base.MAX_BURST_FRAMES or MAX_BURST_BYTES is sent in parts.

        The identification begins at 0 with each part. If the kernel takes only some parts, the rest is lost.
        """
        words = route.words
        words[_IOV] = address
        words[_IOV + 1] = length
        if length <= segment:
            if _sendmsg(route.endpoint.fd, route.single, MSG_DONTWAIT) >= 0:
                self.frames_sent += 1
                return True
            return self._failed(route, _get_errno(), 1)
        if segment != route.segment:
            route.set_segment(segment)
        if length > route.limit:
            return self._send_parts(route, address, length, segment)
        if _sendmsg(route.endpoint.fd, route.burst, MSG_DONTWAIT) >= 0:
            self.frames_sent += -(-length // segment)
            return True
        return self._burst_failed(route, address, length, segment)

    def receive(self, now: int, sink: base.Sink) -> int:
        """See base.Link. Takes up to BATCH datagrams, or coalesced bursts, from each socket."""
        groups = self._groups
        delivered = 0
        for endpoint in self._endpoints if groups.idle or not groups.readable() else groups.and_homes:
            count = _recvmmsg(endpoint.fd, endpoint.inbox.vector, BATCH, MSG_DONTWAIT, None)
            if count > 0:
                delivered += self._deliver(endpoint, count, sink)
            elif _get_errno() != _EAGAIN:
                # Nothing that came from the network may stop the link; such an error is cleared by telling it.
                self._check_open()
                self._counters["receive_errors"] += 1
        return delivered

    def join(self, gid: bytes, sgid_index: int) -> None:
        """See base.Link, and udp_groups.py."""
        self._check_open()
        base.check_join(gid, sgid_index, self.gids)
        self._groups.join(bytes(gid), sgid_index)

    def leave(self, gid: bytes, sgid_index: int) -> None:
        """See base.Link."""
        self._check_open()
        self._groups.leave(bytes(gid), sgid_index)

    def deadline(self) -> int | None:
        """Return None: only the descriptors tell."""
        return None

    def filenos(self) -> list[int]:
        """Return the sockets' descriptors, and one for all groups that are or will be joined; none after close."""
        return [] if self._closed else [*(endpoint.fd for endpoint in self._endpoints), self._groups.fd]

    def stats(self) -> dict[str, int]:
        """Return the counters.

        frames_sent, frames_received; send_busy: calls that the kernel could not take now; send_dropped: frames that it
        refused for good (too long for the path, unreachable, ...); receive_dropped: datagrams that were empty,
        truncated or odd; receive_errors: errors in place of data; receive_own: datagrams of this link's own to a group;
        receive_stranger: those with a loopback address as source and another port than this link's, which no link has
        sent; receive_overflows: datagrams that the kernel dropped.
        """
        own = {"frames_sent": self.frames_sent, "frames_received": self.frames_received, **self._counters}
        lost = 0 if self._closed else sum(udp_socket.overflows(endpoint.sock) for endpoint in self._endpoints)
        return {**own, "receive_overflows": lost + self._groups.overflows()}

    def close(self) -> None:
        """Close the sockets. A second call does nothing."""
        self._closed = True
        for endpoint in self._endpoints:
            endpoint.close()
        self._groups.close()

    def _deliver(self, endpoint: Endpoint, count: int, sink: base.Sink) -> int:
        inbox, peers = endpoint.inbox, endpoint.peers
        words, words_32 = inbox.words, inbox.words_32
        if sink is not endpoint.sink:
            peers.clear()
        delivered = frames = 0
        for length_at, used_at, flags_at, name, control, address in inbox.batches[count]:
            segment = length = words_32[length_at]
            if words[used_at]:
                segment = coalesced(inbox, control, length)
            words[used_at] = CONTROL_WORDS * 8  # the kernel put there what it used
            if not segment or words_32[flags_at] & _TRUNCATED:
                self._counters["receive_dropped"] += 1
                continue
            key = name.tobytes()
            peer = peers.get(key)
            if peer is None:
                peer = endpoint.peer(key, sink)
                if peer is OWN or peer is STRANGER:
                    self._counters["receive_own" if peer is OWN else "receive_stranger"] += 1
                    continue
            frames += 1 if segment >= length else -(-length // segment)
            delivered += 1
            sink.receive(peer, address, length, segment)
        self.frames_received += frames
        return delivered

    def _call(self, route: _Route, address: int, length: int, segmented: bool) -> int:
        """Send one frame, or one burst, and return 0 or the error number."""
        put(route.words, _IOV, address, length)
        header = route.burst if segmented else route.single
        return 0 if _sendmsg(route.endpoint.fd, header, MSG_DONTWAIT) >= 0 else _get_errno()

    def _send_parts(self, route: _Route, address: int, length: int, segment: int) -> bool:
        """Send in as many calls as it takes; without segmentation offload, one for each frame."""
        most = route.limit or segment
        for start in range(0, length, most):
            size = min(most, length - start)
            code = self._call(route, address + start, size, size > segment)
            if code == 0:
                self.frames_sent += base.frame_count(size, segment)
            elif code not in _BUSY:
                self._failed(route, code, base.frame_count(size, segment))
            elif start == 0:
                return self._failed(route, code, 0)
            else:
                self._counters["send_dropped"] += base.frame_count(length - start, segment)
                break
        return True

    def _burst_failed(self, route: _Route, address: int, length: int, segment: int) -> bool:
        """Find out whether it was segmentation offload that the path refused; if so, do without from now on."""
        code, frames = _get_errno(), base.frame_count(length, segment)
        if code not in _NO_SEGMENTATION:
            return self._failed(route, code, frames)
        first = self._call(route, address, segment, False)
        if first:  # not that: the frames are too long, for one
            return self._failed(route, first, frames)
        _log.warning("segmentation offload is refused (%s): sending frame by frame", os.strerror(code))
        route.segmented, route.limit, self.identification_step = False, 0, 0
        self.frames_sent += 1
        if not self._send_parts(route, address + segment, length - segment, segment):
            self._counters["send_dropped"] += frames - 1
        return True

    def _failed(self, route: _Route, code: int, frames: int) -> bool:
        """Return what `send` is to return after an error: False to try again, True to leave it to the transport."""
        if code in _BUSY:
            self._counters["send_busy"] += 1
            return False
        self._check_open()
        self._counters["send_dropped"] += frames
        if not route.reported:
            route.reported = True
            _log.warning("frames from %s are dropped: %s", base.address_of(route.endpoint.gid), os.strerror(code))
        return True

    def _check_open(self) -> None:
        if self._closed:
            raise base.closed_error()


def _open(addresses: str | Sequence[str] | None, port: int) -> list[socket.socket]:
    """Return a socket for each address, or none at all and an error."""
    if addresses is None:
        return [udp_socket.open_loopback_socket(port)]
    names = [name.strip() for name in addresses.split(",")] if isinstance(addresses, str) else list(addresses)
    if not names:
        raise ValueError("a link needs an address")
    sockets: list[socket.socket] = []
    try:
        for name in names:
            sockets.append(udp_socket.open_socket(name, port))
    except (OSError, ValueError):
        for sock in sockets:
            sock.close()
        raise
    return sockets


def _options(ipv4: bool, traffic_class: int, hop_limit: int) -> bytes:
    """Return the control messages for what differs from the default: ip(7), ipv6(7)."""
    level = socket.IPPROTO_IP if ipv4 else socket.IPPROTO_IPV6
    options = b""
    if traffic_class:
        options += _cmsg(level, socket.IP_TOS if ipv4 else socket.IPV6_TCLASS, struct.pack("=i", traffic_class))
    if hop_limit not in (0, udp_socket.DEFAULT_HOP_LIMIT):
        options += _cmsg(level, socket.IP_TTL if ipv4 else socket.IPV6_HOPLIMIT, struct.pack("=i", hop_limit))
    return options
