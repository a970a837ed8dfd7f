# SPDX-License-Identifier: MIT
"""Who listens on this host: what ARP is for addresses that no device has of its own.

A device has a loopback address of its own, such as 127.3.4.5, and frames reach it there. Programs however listen on
127.0.0.1, or on all addresses, and expect to be found there. Only one process can have UDP port 4791 of 127.0.0.1, so
there the listener tells the host where its device is: it binds a UNIX socket in the abstract name space, whose name
says on what it listens and what its device's GID is. Whoever looks for it reads the names in ``/proc/net/unix``. The
kernel keeps the list, for each network namespace, and takes a name away when its process ends, however it ends.

Nothing is ever sent over these sockets. Like a port number above 1023 such a name belongs to the first who asks. Any
user of the host can bind others, so what contradicts itself, two devices for one address and port, counts as nobody.
"""

import errno
import os
import socket
import struct
import weakref

_PREFIX = "softverbs/cm"
_TABLE = "/proc/net/unix"
#: The UDP port of RoCEv2 (annex A17.4.5.1).
ROCE_PORT = 4791

_open: "weakref.WeakSet[Entry]" = weakref.WeakSet()


class Entry:
    """A name that stands in the registry as long as this is not closed."""

    def __init__(self, *names: str) -> None:
        """
        :param names: all or none
        :raises OSError: EADDRINUSE where somebody has one of them
        """
        self._sockets: list[socket.socket] = []
        _open.add(self)
        try:
            for name in names:
                holder = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
                self._sockets.append(holder)
                holder.bind("\0" + name)
        except OSError:
            self.close()
            raise

    def close(self) -> None:
        """Takes the name out. Twice does nothing."""
        for holder in self._sockets:
            holder.close()
        self._sockets.clear()


def has_device(ip: bytes) -> bool:
    """Whether a device of this host has an IP address: a socket is bound to its RoCE port.

    :param ip: 4 or 16 bytes
    """
    words = struct.unpack(f"={len(ip) // 4}I", ip)  # the kernel prints words of its own byte order
    wanted = f" {''.join(f'{word:08X}' for word in words)}:{ROCE_PORT:04X} "
    return any(wanted in row for row in _rows("/proc/net/udp" if len(ip) == 4 else "/proc/net/udp6"))


def announce(space: int, ip: str, port: int, gid: bytes) -> Entry:
    """Says that a device listens at an address that is not its own.

    :param space: RDMA_PS_*
    :param ip: the address as text; ``0.0.0.0`` or ``::`` for all addresses of that IP version
    :param port: the port
    :param gid: of the device that listens, 16 bytes
    :raises OSError: EADDRINUSE where another listens there
    """
    name, every = _name(space, ip, port), _every(ip)
    taken = OSError(errno.EADDRINUSE, f"another device of this host listens on {ip} port {port}")
    before, after = f"{_PREFIX}/{space:04x}/", f"/{port}"
    others = [other for other in _names() if other.startswith(before) and other.endswith(after)]
    hosts = [host for other in others if _every(host := other[len(before) : -len(after)]) == every]
    if hosts and (ip == every or every in hosts):
        raise taken
    try:
        return Entry(name, f"{name}={gid.hex()}")
    except OSError as error:
        raise taken if error.errno == errno.EADDRINUSE else error from None


def find(space: int, ip: str, port: int) -> bytes | None:
    """The GID of the device that listens at an address, or at all; None where there is none, or more than one.

    :param space: RDMA_PS_*
    :param ip: the address as text
    :param port: the port
    """
    names = _names()
    found = set()
    for name in (_name(space, ip, port), _name(space, _every(ip), port)):
        if name in names:  # that name is one process's; those that say a GID may be anybody's
            found |= {gid for other in names if (gid := _gid(other, f"{name}="))}
    return found.pop() if len(found) == 1 else None


def _every(ip: str) -> str:
    """All addresses of the same IP version."""
    return "::" if ":" in ip else "0.0.0.0"


def _name(space: int, ip: str, port: int) -> str:
    return f"{_PREFIX}/{space:04x}/{ip}/{port}"


def _gid(name: str, before: str) -> bytes:
    """The GID that a name says; nothing where it says none."""
    if not name.startswith(before):
        return b""
    try:
        gid = bytes.fromhex(name[len(before) :])
    except ValueError:
        return b""
    return gid if len(gid) == 16 else b""


def _names() -> list[str]:
    """The names of the registry. The kernel writes the zero byte that begins an abstract name as ``@``."""
    return [row[at + 2 :].rstrip() for row in _rows(_TABLE) if (at := row.find(" @" + _PREFIX + "/")) >= 0]


def _rows(table: str) -> list[str]:
    try:
        with open(table, encoding="ascii", errors="replace") as rows:
            return rows.read().splitlines()
    except OSError:
        return []


def _after_fork() -> None:
    """In the child: the names are the parent's, and must not outlive it."""
    for entry in list(_open):
        entry.close()


os.register_at_fork(after_in_child=_after_fork)
