"""Who listens on this host: what ARP is for addresses that no device has of its own.

A device has a loopback address of its own, such as 127.3.4.5, and frames reach it there. Programs however listen on
127.0.0.1, or on all addresses, and expect to be found there. Only one process can have UDP port 4791 of 127.0.0.1, so
there the listener tells the host where its device is: it binds a UNIX socket in the abstract name space, whose name
says on what it listens and what its device's GID is. Whoever looks for it reads the names in ``/proc/net/unix``. The
kernel keeps the list, for each network namespace, and takes a name away when its process ends, however it ends.

Nothing is ever sent over these sockets. Like a port number above 1023 such a name belongs to the first who asks.
"""

import errno
import os
import socket
import weakref

_PREFIX = "softverbs/cm"
_TABLE = "/proc/net/unix"

_open: "weakref.WeakSet[Entry]" = weakref.WeakSet()


class Entry:
    """A name that stands in the registry as long as this is not closed."""

    def __init__(self, *names: str) -> None:
        """
        :param names: all or none
        :raises OSError: EADDRINUSE where somebody has one of them
        """
        self._sockets: list[socket.socket] = []
        try:
            for name in names:
                holder = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
                self._sockets.append(holder)
                holder.bind("\0" + name)
        except OSError:
            self.close()
            raise
        _open.add(self)

    def close(self) -> None:
        """Takes the name out. Twice does nothing."""
        for holder in self._sockets:
            holder.close()
        self._sockets.clear()


def announce_device(gid: bytes) -> Entry | None:
    """Says that a device of this host answers at its own GID; None where that is said already.

    :param gid: 16 bytes
    """
    try:
        return Entry(f"{_PREFIX}/device/{gid.hex()}")
    except OSError:
        return None


def has_device(gid: bytes) -> bool:
    """Whether a device of this host answers at this GID."""
    return f"{_PREFIX}/device/{gid.hex()}" in _names()


def announce(space: int, ip: str, port: int, gid: bytes) -> Entry:
    """Says that a device listens at an address that is not its own.

    :param space: RDMA_PS_*
    :param ip: the address as text, or ``*`` for all addresses
    :param port: the port
    :param gid: of the device that listens, 16 bytes
    :raises OSError: EADDRINUSE where another listens there
    """
    name = f"{_PREFIX}/{space:04x}/{ip}/{port}"
    try:
        return Entry(name, f"{name}={gid.hex()}")
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise OSError(error.errno, f"another device of this host listens on {ip} port {port}") from None
        raise


def find(space: int, ip: str, port: int) -> bytes | None:
    """The GID of the device that listens at an address, or None.

    :param space: RDMA_PS_*
    :param ip: the address as text, or ``*`` for all addresses
    :param port: the port
    """
    wanted = f"{_PREFIX}/{space:04x}/{ip}/{port}="
    for name in _names():
        if name.startswith(wanted):
            try:
                gid = bytes.fromhex(name[len(wanted) :])
            except ValueError:
                continue
            if len(gid) == 16:
                return gid
    return None


def _names() -> list[str]:
    """The names of the registry. The kernel writes the zero byte that begins an abstract name as ``@``."""
    try:
        with open(_TABLE, encoding="ascii", errors="replace") as table:
            rows = table.read().splitlines()
    except OSError:
        return []
    return [row[at + 2 :].rstrip() for row in rows if (at := row.find(" @" + _PREFIX + "/")) >= 0]


def _after_fork() -> None:
    """In the child: the names are the parent's, and must not outlive it."""
    for entry in list(_open):
        entry.close()


os.register_at_fork(after_in_child=_after_fork)
