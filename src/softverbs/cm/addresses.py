# SPDX-License-Identifier: MIT
"""IP addresses with ports, as ``struct sockaddr``: what services are found by."""

import ipaddress
import socket
from dataclasses import dataclass

_MAPPED = bytes(10) + b"\xff\xff"
#: All addresses of the host, of IPv4 and of IPv6.
ANY_V4, ANY_V6 = bytes(4), bytes(16)


@dataclass(frozen=True)
class Address:
    """An IP address, 4 or 16 bytes, and a port; port 0 stands for one that is not chosen yet."""

    ip: bytes
    port: int = 0

    @property
    def text(self) -> str:
        """The IP address as people write it."""
        return str(ipaddress.ip_address(self.ip))

    @property
    def gid(self) -> bytes:
        """The GID of RoCEv2: an IPv4 address is mapped into IPv6 (annex A17.4.4)."""
        return self.ip if len(self.ip) == 16 else _MAPPED + self.ip

    @property
    def is_any(self) -> bool:
        """Whether it stands for all addresses of the host."""
        return not any(self.ip)

    @property
    def is_multicast(self) -> bool:
        """Whether it is a group's."""
        return ipaddress.ip_address(self.ip).is_multicast

    @property
    def is_loopback(self) -> bool:
        """Whether it never leaves the host: 127.0.0.0/8 or ::1."""
        return ipaddress.ip_address(self.ip).is_loopback

    def with_port(self, port: int) -> "Address":
        """The same address with another port."""
        return Address(self.ip, port)

    def is_local(self) -> bool:
        """Whether the host has this address, which means that a socket can be bound to it."""
        if self.is_loopback:
            return True
        family = socket.AF_INET if len(self.ip) == 4 else socket.AF_INET6
        try:
            with socket.socket(family, socket.SOCK_DGRAM) as probe:
                probe.bind((self.text, 0))
        except OSError:
            return False
        return True

    def __str__(self) -> str:
        return f"{self.text}:{self.port}" if len(self.ip) == 4 else f"[{self.text}]:{self.port}"


def of_gid(gid: bytes, port: int = 0) -> Address:
    """The address that a GID stands for."""
    return Address(gid[12:] if gid.startswith(_MAPPED) else gid, port)


def only_ipv6_by_default() -> bool:
    """Whether ``::`` stands for IPv6 alone unless somebody asks for both (``net.ipv6.bindv6only``, ip-sysctl)."""
    try:
        with open("/proc/sys/net/ipv6/bindv6only", encoding="ascii") as value:
            return value.read().strip() == "1"
    except OSError:
        return False


def parse(text: str, port: int = 0) -> Address:
    """The address of a text such as ``127.0.0.1`` or ``::1``; an IPv4-mapped one is the IPv4 address.

    :raises ValueError: it is none
    """
    packed = ipaddress.ip_address(text.partition("%")[0]).packed
    return of_gid(packed.rjust(16, b"\0") if len(packed) == 16 else _MAPPED + packed, port)
