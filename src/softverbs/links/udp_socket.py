# SPDX-License-Identifier: MIT
"""UDP sockets set up for RoCEv2, and what the kernel tells about them. The hot path is in udp.py.

Numbers of socket options that Python does not name come from the kernel's public headers: linux/in.h, in6.h, udp.h and
asm-generic/socket.h; see ip(7), ipv6(7), udp(7) and socket(7).
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import ipaddress
import random
import socket
import struct
from contextlib import suppress
from typing import cast

IP_MTU_DISCOVER, IPV6_MTU_DISCOVER, PMTUDISC_DO = 10, 23, 2
IP_MTU, IPV6_MTU = 14, 24
IPV6_AUTOFLOWLABEL, IPV6_FLOWINFO_SEND = 70, 33
IP_MULTICAST_ALL, IPV6_MULTICAST_ALL = 49, 29
UDP_NO_CHECK6_RX, UDP_SEGMENT, UDP_GRO = 102, 103, 104
SO_SNDBUFFORCE, SO_RCVBUFFORCE, SO_MEMINFO = 32, 33, 55
SIOCGIFMTU = 0x8921
DEFAULT_HOP_LIMIT = 64
UDP_HEADER, IPV4_HEADER, IPV6_HEADER = 8, 20, 40

BUFFER_SIZE = 32 * 1024 * 1024
"""Socket buffers asked for, bytes: several windows of a fast sender, even while this process does not run."""

_LOOPBACK_TRIES = 100

SocketAddress = tuple[str, int] | tuple[str, int, int, int]
"""A socket address as Python writes it: host and port; in IPv6 also flow information and scope."""


def resolve(address: str, port: int) -> tuple[socket.AddressFamily, SocketAddress]:
    """Return the family and the socket address of a numeric address; a scope ("fe80::1%eth0") is kept.

    Errors: ValueError if `address` is not numeric, or not one that a port can have.
    """
    try:
        found = socket.getaddrinfo(address, port, type=socket.SOCK_DGRAM, flags=socket.AI_NUMERICHOST)
    except socket.gaierror as error:
        raise ValueError(f"{address!r} is not an IPv4 or IPv6 address ({error.strerror})") from None
    family, _, _, _, sockaddr = found[0]
    ip = ipaddress.ip_address(address.partition("%")[0])
    if ip.is_unspecified or ip.is_multicast or str(ip) == "255.255.255.255":
        raise ValueError(f"{address} is not the address of one machine: a GID is made from it")
    return family, cast(SocketAddress, sockaddr)


def pack_address(sockaddr: SocketAddress, flow_label: int = 0) -> bytes:
    """Return struct sockaddr_in or sockaddr_in6 (netinet/in.h) for a socket address as Python writes it."""
    host, port = sockaddr[:2]
    if len(sockaddr) == 2:
        return struct.pack("=H", socket.AF_INET) + struct.pack("!H4s8x", port, socket.inet_pton(socket.AF_INET, host))
    packed = socket.inet_pton(socket.AF_INET6, host.partition("%")[0])
    scope = struct.pack("=I", sockaddr[3])
    return struct.pack("=H", socket.AF_INET6) + struct.pack("!HI16s", port, flow_label, packed) + scope


def open_socket(address: str, port: int) -> socket.socket:
    """Return a socket bound to `address` and `port`: not blocking, not connected, and not sharing the address.

    Errors: ValueError if `address` is no address; OSError with the reason in words if it cannot be had.
    """
    family, sockaddr = resolve(address, port)
    sock = socket.socket(family, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
    try:
        _set_options(sock)
        sock.bind(sockaddr)
    except OSError as error:
        sock.close()
        raise OSError(error.errno, _bind_reason(error, address, port)) from None
    return sock


def open_loopback_socket(port: int) -> socket.socket:
    """Return a socket on a free address of 127.0.0.0/8.

    The address is drawn from 16 million, so that an address that a process has just given up is not soon another's:
    late packets reach nobody. 127.0.x.x is left to those who choose addresses by hand.
    """
    draw = random.SystemRandom().randrange
    for _ in range(_LOOPBACK_TRIES):
        try:
            return open_socket(f"127.{draw(1, 255)}.{draw(256)}.{draw(1, 255)}", port)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
    reason = f"UDP port {port} is taken on every loopback address: is Soft-RoCE (rdma_rxe) loaded?"
    raise OSError(errno.EADDRINUSE, reason)


def _bind_reason(error: OSError, address: str, port: int) -> str:
    if error.errno == errno.EADDRNOTAVAIL:
        return f"{address} is not an address of this machine"
    if error.errno == errno.EADDRINUSE:
        return f"UDP port {port} of {address} is taken, by another softverbs process or by Soft-RoCE (rdma_rxe)"
    return f"cannot open UDP port {port} of {address}: {error.strerror}"


def _set_options(sock: socket.socket) -> None:
    if sock.family == socket.AF_INET:
        sock.setsockopt(socket.IPPROTO_IP, IP_MTU_DISCOVER, PMTUDISC_DO)
        sock.setsockopt(socket.IPPROTO_IP, socket.IP_TTL, DEFAULT_HOP_LIMIT)
    else:
        sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        sock.setsockopt(socket.IPPROTO_IPV6, IPV6_MTU_DISCOVER, PMTUDISC_DO)
        sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_UNICAST_HOPS, DEFAULT_HOP_LIMIT)
        # RoCEv2 allows the UDP checksum to be 0, and Soft-RoCE sends it so, which IPv6 refuses unless told.
        sock.setsockopt(socket.IPPROTO_UDP, UDP_NO_CHECK6_RX, 1)
        # The flow label is the caller's: take it from the address, and make none up.
        sock.setsockopt(socket.IPPROTO_IPV6, IPV6_FLOWINFO_SEND, 1)
        sock.setsockopt(socket.IPPROTO_IPV6, IPV6_AUTOFLOWLABEL, 0)
    for force, plain in ((SO_RCVBUFFORCE, socket.SO_RCVBUF), (SO_SNDBUFFORCE, socket.SO_SNDBUF)):
        try:
            sock.setsockopt(socket.SOL_SOCKET, force, BUFFER_SIZE)
        except PermissionError:  # without CAP_NET_ADMIN: as much as net.core.rmem_max and wmem_max allow
            sock.setsockopt(socket.SOL_SOCKET, plain, BUFFER_SIZE)


def interface_index(sock: socket.socket) -> int:
    """Return the index of the interface that the socket's address is at home on. OSError if it has gone."""
    source = sock.getsockname()
    if sock.family == socket.AF_INET6 and source[3]:  # link-local: other interfaces may have the same address
        return int(source[3])
    name = interface_of(str(source[0]))
    # An address that no list shows, such as 127.0.0.5, is this machine's by a route to lo.
    return socket.if_nametoindex((name or b"lo").partition(b":")[0].decode())


def set_group_options(sock: socket.socket) -> None:
    """Have what the socket sends to multicast groups leave by the interface of its own address, and reach this host.

    The hop limit is DEFAULT_HOP_LIMIT, as that of other frames; a route may have its own. See ip(7), ipv6(7).
    Errors: OSError, with words, if there is no multicast on the interface.
    """
    index = interface_index(sock)
    try:
        if sock.family == socket.AF_INET:
            sock.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, struct.pack("=4s4si", bytes(4), bytes(4), index))
            sock.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_TTL, DEFAULT_HOP_LIMIT)
            sock.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_LOOP, 1)
        else:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_IF, index)
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_HOPS, DEFAULT_HOP_LIMIT)
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_LOOP, 1)
    except OSError as error:
        raise OSError(error.errno, f"no multicast from {sock.getsockname()[0]}: {error.strerror}") from None


def open_group_socket(home: socket.socket, group: str, port: int) -> socket.socket:
    """Return a socket that receives what is sent to `group` and `port` on the interface of `home`'s address.

    It shares the address with the sockets of other members on this host. Errors: OSError, with words.
    """
    index = interface_index(home)
    sockaddr: SocketAddress = (group, port) if home.family == socket.AF_INET else (group, port, 0, index)
    check_path(home, sockaddr)  # without a way there nobody else has one either, as on lo with IPv6
    sock = socket.socket(home.family, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
    try:
        _set_options(sock)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(sockaddr)
        _join(sock, group, index)
    except OSError as error:
        sock.close()
        reason = f"cannot join {group} at {home.getsockname()[0]}: {error.strerror}"
        raise OSError(error.errno, reason) from None
    return sock


def _join(sock: socket.socket, group: str, index: int) -> None:
    if sock.family == socket.AF_INET:
        _try_option(sock, socket.IPPROTO_IP, IP_MULTICAST_ALL, 0)
        sock.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, _membership(sock, group, index))
    else:
        _try_option(sock, socket.IPPROTO_IPV6, IPV6_MULTICAST_ALL, 0)
        sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_JOIN_GROUP, _membership(sock, group, index))


def leave_group(sock: socket.socket, group: str, index: int) -> None:
    """End the membership of a socket of `open_group_socket` now, though a child of fork() may still hold the socket."""
    ipv4 = sock.family == socket.AF_INET
    level = socket.IPPROTO_IP if ipv4 else socket.IPPROTO_IPV6
    with suppress(OSError):  # the interface has gone, and the membership with it
        option = socket.IP_DROP_MEMBERSHIP if ipv4 else socket.IPV6_LEAVE_GROUP
        sock.setsockopt(level, option, _membership(sock, group, index))


def _membership(sock: socket.socket, group: str, index: int) -> bytes:
    """Return struct ip_mreqn or ipv6_mreq: ip(7), ipv6(7)."""
    packed = socket.inet_pton(sock.family, group)
    return packed + (bytes(4) if sock.family == socket.AF_INET else b"") + struct.pack("=i", index)


def receive_buffer(sock: socket.socket) -> int:
    """Return the size of the receive buffer that was granted, bytes as the kernel counts them: socket(7)."""
    return sock.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF)


def can_segment(sock: socket.socket) -> bool:
    """Tell whether the kernel knows UDP segmentation offload (GSO; Linux 4.18)."""
    return _try_option(sock, socket.IPPROTO_UDP, UDP_SEGMENT, 0)


def coalesce(sock: socket.socket) -> bool:
    """Ask for received datagrams to be joined (GRO; Linux 5.0). Returns whether the kernel can."""
    return _try_option(sock, socket.IPPROTO_UDP, UDP_GRO, 1)


def _try_option(sock: socket.socket, level: int, option: int, value: int) -> bool:
    try:
        sock.setsockopt(level, option, value)
    except OSError:
        return False
    return True


def overflows(sock: socket.socket) -> int:
    """Return how many datagrams the kernel threw away because the receive buffer was full, or they were broken."""
    try:
        info = sock.getsockopt(socket.SOL_SOCKET, SO_MEMINFO, 9 * 4)
    except OSError:  # before Linux 4.12
        return 0
    return int(struct.unpack("=9I", info)[8]) if len(info) == 36 else 0  # SK_MEMINFO_DROPS, linux/sock_diag.h


def check_path(sock: socket.socket, sockaddr: SocketAddress) -> None:
    """Raise OSError, with words, if the kernel knows no way from the socket's address to `sockaddr`. Sends nothing."""
    source = sock.getsockname()
    with socket.socket(sock.family, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((source[0], 0, *source[2:]))
            if ipaddress.ip_address(sockaddr[0].partition("%")[0]).is_multicast:
                set_group_options(probe)
            probe.connect(sockaddr)
        except OSError as error:
            raise OSError(error.errno, _path_reason(error, str(source[0]), sockaddr[0])) from None


def _path_reason(error: OSError, source: str, host: str) -> str:
    reason = f"no way from {source} to {host}: {error.strerror}"
    if ipaddress.ip_address(host.partition("%")[0]).is_multicast:
        if source == "::1":
            reason += "; lo has no route for IPv6 multicast, unless an administrator adds it"
    elif source.startswith("127."):
        reason += "; a loopback address reaches this machine only"
    return reason


def largest_payload(sock: socket.socket) -> int:
    """Return the largest UDP payload, in bytes, that the interface with the socket's address sends in one packet."""
    source = sock.getsockname()
    headers = UDP_HEADER + (IPV4_HEADER if sock.family == socket.AF_INET else IPV6_HEADER)
    name = interface_of(str(source[0]).partition("%")[0])
    if name is None:  # such as 127.0.0.5, which no list of addresses shows: ask the way to itself
        with socket.socket(sock.family, socket.SOCK_DGRAM) as probe:
            try:
                probe.connect(source)
            except PermissionError as error:
                words = f"{source[0]} is a broadcast address, not that of one machine"
                raise OSError(error.errno, words) from None
            level, option = (
                (socket.IPPROTO_IP, IP_MTU) if sock.family == socket.AF_INET else (socket.IPPROTO_IPV6, IPV6_MTU)
            )
            return probe.getsockopt(level, option) - headers
    request = fcntl.ioctl(sock, SIOCGIFMTU, struct.pack("16s16x8x", name))  # struct ifreq, netdevice(7)
    return int(struct.unpack_from("=i", request, 16)[0]) - headers


class _Ifaddrs(ctypes.Structure):
    """The start of struct ifaddrs, getifaddrs(3)."""

    _fields_ = (
        ("next", ctypes.c_void_p),
        ("name", ctypes.c_char_p),
        ("flags", ctypes.c_uint),
        ("address", ctypes.c_void_p),
    )


def interface_of(host: str) -> bytes | None:
    """Return the name of the interface that has the address `host`, or None if none lists it; see getifaddrs(3)."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    start, packed = (8 if family == socket.AF_INET6 else 4), socket.inet_pton(family, host)
    libc = ctypes.CDLL(None)
    head = ctypes.c_void_p()
    if libc.getifaddrs(ctypes.byref(head)) != 0:
        return None
    try:
        at = head.value
        while at:
            entry = _Ifaddrs.from_address(at)
            if (
                entry.address
                and ctypes.c_ushort.from_address(entry.address).value == family
                and ctypes.string_at(entry.address + start, len(packed)) == packed
            ):
                return bytes(entry.name)
            at = entry.next
        return None
    finally:
        libc.freeifaddrs(head)
