# SPDX-License-Identifier: MIT
"""The TCP connection beside the RDMA one: over it the two sides tell each other where they are.

``softverbs pingpong`` speaks as ``ibv_rc_pingpong``, ``ibv_uc_pingpong``, ``ibv_ud_pingpong`` and ``ibv_srq_pingpong``
of rdma-core do. Each side sends one text of 52 bytes, ``LID:QPN:PSN:GID`` in lower-case hexadecimal (4, 6, 6 and 32
digits) with a zero byte at the end; with an SRQ 256 of them, of which the first ones are in use. The client begins;
the server makes its QPs ready before it answers, and the client then says ``done``, with a zero byte at its end too.

``softverbs perf`` sends lines of JSON.
"""

from __future__ import annotations

import ipaddress
import json
import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

import click

from softverbs.cli.common import USUAL_PORT, Fault, readable
from softverbs.pyverbs.pyverbs_error import PyverbsError

DONE = b"done\0"
ADDRESS_LENGTH = 52  # bytes, the last one is zero
SHARED_ADDRESSES = 256  # that ibv_srq_pingpong sends, however many QPs it has
_ADDRESS = re.compile(rb"([0-9a-f]{4}):([0-9a-f]{6}):([0-9a-f]{6}):([0-9a-f]{32})\0", re.IGNORECASE)
_HANDSHAKE_S = 30
_LONGEST_LINE = 1 << 16


class Address(NamedTuple):
    """Where one end of a connection is."""

    lid: int
    qpn: int
    psn: int
    gid: bytes

    def packed(self) -> bytes:
        """As ``ibv_rc_pingpong`` sends it."""
        return f"{self.lid:04x}:{self.qpn:06x}:{self.psn:06x}:{self.gid.hex()}".encode() + b"\0"

    @classmethod
    def parsed(cls, data: bytes) -> Address:
        """What a peer sent; Fault if it is something else."""
        found = _ADDRESS.fullmatch(data)
        if found is None:
            raise Fault(f"the peer sent {data[:60]!r}, which is no address of ibv_rc_pingpong")
        lid, qpn, psn, gid = found.groups()
        return cls(int(lid, 16), int(qpn, 16), int(psn, 16), bytes.fromhex(gid.decode()))

    def __str__(self) -> str:
        gid = socket.inet_ntop(socket.AF_INET6, self.gid)
        return f"LID 0x{self.lid:04x}, QPN 0x{self.qpn:06x}, PSN 0x{self.psn:06x}, GID {gid}"


class Line:
    """A TCP connection to the peer."""

    def __init__(self, sock: socket.socket) -> None:
        """
        :param sock: connected
        """
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.settimeout(_HANDSHAKE_S)
        self.sock = sock
        self._rest = b""

    def __enter__(self) -> Line:
        return self

    def __exit__(self, *exc: object) -> None:
        self.sock.close()

    def own_address(self) -> str | None:
        """The IP address that this end of the connection has; None where both ends are on this machine.

        Two processes on one machine cannot both have its address: each takes a free one of 127.0.0.0/8 then.
        """
        own, peer = (_ip(name[0]) for name in (self.sock.getsockname(), self.sock.getpeername()))
        if own == peer or ipaddress.ip_address(own.partition("%")[0]).is_loopback:
            return None
        return own

    # -- texts of fixed length

    def send(self, data: bytes) -> None:
        """Sends bytes."""
        try:
            self.sock.sendall(data)
        except OSError as error:
            raise Fault(f"the peer has gone: {error.strerror or error}") from None

    def receive(self, length: int) -> bytes:
        """Receives exactly ``length`` bytes."""
        while len(self._rest) < length:
            self._read_more()
        data, self._rest = self._rest[:length], self._rest[length:]
        return data

    # -- lines of JSON

    def tell(self, **values: Any) -> None:
        """Sends one line."""
        self.send(json.dumps(values).encode() + b"\n")

    def hear(self, patient: bool = False) -> dict[str, Any]:
        """Receives one line. One that has ``error`` becomes a Fault.

        :param patient: wait for ever, and not for 30 s
        """
        self.sock.settimeout(None if patient else _HANDSHAKE_S)
        while b"\n" not in self._rest:
            if len(self._rest) > _LONGEST_LINE:
                raise Fault("the peer is no softverbs perf: it sends no lines")
            self._read_more()
        line, _, self._rest = self._rest.partition(b"\n")
        try:
            values = json.loads(line)
        except ValueError:
            values = None
        if not isinstance(values, dict):
            raise Fault(f"the peer is no softverbs perf: it sent {line[:60]!r}")
        if "error" in values:
            raise Fault(f"the peer says: {' '.join(str(values['error']).split())}")
        return values

    @contextmanager
    def telling(self) -> Iterator[None]:
        """Tells the peer, if it is there, of what fails in the block."""
        try:
            yield
        except (Fault, PyverbsError) as error:
            with suppress(OSError):
                self.sock.sendall(json.dumps({"error": str(error)}).encode() + b"\n")
            raise

    def waits(self) -> bool:
        """Whether a line, or the end, can be read at once."""
        return b"\n" in self._rest or readable(self.sock)

    def finish(self) -> None:
        """Tells the peer that this side has got all that it needs."""
        with suppress(OSError):
            self.sock.shutdown(socket.SHUT_WR)

    def linger(self, seconds: float) -> bool:
        """Waits for the peer to close the connection; whether it did."""
        self.sock.settimeout(seconds)
        try:
            while self.sock.recv(4096):
                pass
        except TimeoutError:
            return False
        except OSError:
            pass
        return True

    def _read_more(self) -> None:
        try:
            data = self.sock.recv(4096)
        except TimeoutError:
            raise Fault(f"the peer does not answer: nothing came for {_HANDSHAKE_S} s") from None
        except OSError as error:
            raise Fault(f"the peer has gone: {error.strerror or error}") from None
        if not data:
            raise Fault("the peer has closed the connection")
        self._rest += data


def call(server: str, port: int) -> Line:
    """Connects to a server.

    :param server: host name or IP address
    :param port: TCP port
    :raises Fault: where that fails
    """
    try:
        return Line(socket.create_connection((server, port), timeout=_HANDSHAKE_S))
    except socket.gaierror as error:
        raise Fault(f"there is no host {server}: {error.strerror}") from None
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise Fault(f"cannot connect to {server} port {port}: {reason}") from None


def tell_waiting(port: int, client: str) -> None:
    """Says on stderr that a server waits, and for what.

    :param port: TCP port
    :param client: the command that is the client, without a port
    """
    client += f" -p {port}" if port != USUAL_PORT else ""
    click.echo(f"Waiting for a client on port {port}: {client}; Ctrl-C ends", err=True)


def answer(port: int, bind: str | None = None) -> Line:
    """Waits for one client, for ever.

    :param port: TCP port
    :param bind: IP address to listen on; None: all, as ``ibv_rc_pingpong`` does
    :raises Fault: where the port cannot be had
    """
    try:
        with _listener(port, bind) as listener:
            sock, _ = listener.accept()
    except OSError as error:
        raise Fault(f"cannot listen on port {port}{f' of {bind}' if bind else ''}: {error.strerror or error}") from None
    return Line(sock)


def _listener(port: int, bind: str | None) -> socket.socket:
    if bind is not None:
        return socket.create_server((bind, port), family=socket.AF_INET6 if ":" in bind else socket.AF_INET)
    if socket.has_dualstack_ipv6():
        return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True)
    return socket.create_server(("", port))


def _ip(host: str) -> str:
    """An address as a device takes it: IPv4 where it is an IPv4-mapped one."""
    address = ipaddress.ip_address(host.partition("%")[0])
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return str(mapped) if mapped is not None else host
