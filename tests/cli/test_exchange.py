# SPDX-License-Identifier: MIT
"""The TCP connection beside the RDMA one: its formats, and what is said when the peer is something else."""

import json
import socket
import threading
from collections.abc import Callable, Iterator

import pytest
from tests.cli.command import free_port

from softverbs.cli import exchange
from softverbs.cli.common import Fault
from softverbs.cli.exchange import Address, Line

GID = bytes(10) + b"\xff\xff" + bytes((127, 1, 2, 3))
PACKED = b"0000:00abcd:123456:00000000000000000000ffff7f010203\0"


def test_address_as_ibv_rc_pingpong_sends_it() -> None:
    assert Address(0, 0xABCD, 0x123456, GID).packed() == PACKED
    assert len(PACKED) == exchange.ADDRESS_LENGTH


def test_address_is_read_back() -> None:
    assert Address.parsed(PACKED) == Address(0, 0xABCD, 0x123456, GID)
    assert Address.parsed(PACKED.upper()) == Address(0, 0xABCD, 0x123456, GID)


def test_address_in_words() -> None:
    assert str(Address(0, 0xABCD, 0x123456, GID)) == "LID 0x0000, QPN 0x00abcd, PSN 0x123456, GID ::ffff:127.1.2.3"


@pytest.mark.parametrize(
    "data", [b"", PACKED[:-1], PACKED[:-1] + b"x", b"GET / HTTP/1.1\r\n" + bytes(36), PACKED + b"x"]
)
def test_what_is_no_address_is_refused(data: bytes) -> None:
    with pytest.raises(Fault, match="no address of ibv_rc_pingpong"):
        Address.parsed(data)


@pytest.fixture
def ends() -> Iterator[tuple[Line, socket.socket]]:
    """A line, and the socket at its other end."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = socket.create_connection(listener.getsockname())
        accepted, _ = listener.accept()
    with Line(client) as line, accepted:
        yield line, accepted


def test_bytes_arrive_in_any_portions(ends: tuple[Line, socket.socket]) -> None:
    line, other = ends
    for part in (PACKED[:3], PACKED[3:], b"done\0"):
        other.sendall(part)
    assert line.receive(len(PACKED)) == PACKED
    assert line.receive(5) == b"done\0"


def test_lines(ends: tuple[Line, socket.socket]) -> None:
    line, other = ends
    line.tell(a=1, b=[2])
    assert json.loads(other.recv(100)) == {"a": 1, "b": [2]}
    assert not line.waits()
    other.sendall(b'{"c": 3}\n{"d": 4}\n')
    assert line.hear() == {"c": 3}
    assert line.waits()
    assert line.hear() == {"d": 4}


@pytest.mark.parametrize("data", [b"nonsense\n", b"[1]\n", b"SSH-2.0-x\r\n", b"\xff\n", b"x" * 70000])
def test_what_is_no_line_is_refused(ends: tuple[Line, socket.socket], data: bytes) -> None:
    line, other = ends
    other.sendall(data)
    with pytest.raises(Fault, match="no softverbs perf"):
        line.hear()


def test_the_peers_error_is_told(ends: tuple[Line, socket.socket]) -> None:
    line, other = ends
    other.sendall(b'{"error": "not\\n today"}\n')
    with pytest.raises(Fault, match="the peer says: not today"):
        line.hear()


def test_own_failure_is_told_to_the_peer(ends: tuple[Line, socket.socket]) -> None:
    line, other = ends
    with pytest.raises(Fault), line.telling():
        raise Fault("that hurts")
    assert json.loads(other.recv(100)) == {"error": "that hurts"}


def test_a_closed_connection(ends: tuple[Line, socket.socket]) -> None:
    line, other = ends
    other.close()
    with pytest.raises(Fault, match="closed the connection"):
        line.receive(1)
    assert line.waits()
    assert line.linger(1)


def test_lingering_ends(ends: tuple[Line, socket.socket]) -> None:
    assert not ends[0].linger(0.01)


def test_a_reset_connection(ends: tuple[Line, socket.socket]) -> None:
    line, other = ends
    other.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    other.close()
    with pytest.raises(Fault, match="the peer has gone"):
        line.receive(1)
    with pytest.raises(Fault, match="the peer has gone"):
        line.send(bytes(1 << 16)), line.send(bytes(1 << 16))


def test_silence(ends: tuple[Line, socket.socket], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange, "_HANDSHAKE_S", 0.01)
    with pytest.raises(Fault, match="does not answer"):
        ends[0].hear()


def test_both_ends_here_take_loopback_addresses(ends: tuple[Line, socket.socket]) -> None:
    assert ends[0].own_address() is None


class Named:
    """A socket with any names."""

    def __init__(self, own: str, peer: str) -> None:
        self.own, self.peer = own, peer

    def getsockname(self) -> tuple[str, int]:
        return self.own, 1

    def getpeername(self) -> tuple[str, int]:
        return self.peer, 2

    def setsockopt(self, *_: int) -> None:
        pass

    def settimeout(self, _: float) -> None:
        pass


@pytest.mark.parametrize(
    ("own", "peer", "address"),
    [
        ("10.0.0.1", "10.0.0.2", "10.0.0.1"),
        ("10.0.0.1", "10.0.0.1", None),
        ("::ffff:10.0.0.1", "::ffff:10.0.0.2", "10.0.0.1"),
        ("::1", "::1", None),
        ("fd77::1", "fd77::2", "fd77::1"),
        ("fe80::1%eth0", "fe80::2%eth0", "fe80::1%eth0"),
        ("::ffff:127.0.0.1", "::ffff:127.0.0.1", None),
    ],
)
def test_own_address_is_that_of_the_connection(own: str, peer: str, address: "str | None") -> None:
    assert Line(Named(own, peer)).own_address() == address  # type: ignore[arg-type]


def test_no_host() -> None:
    with pytest.raises(Fault, match=r"there is no host host\.invalid"):
        exchange.call("host.invalid", 1)


@pytest.mark.parametrize("name", ["127.0.0.1", "::1"])
def test_nobody_listens(name: str) -> None:
    port = free_port()
    with pytest.raises(Fault, match=f"cannot connect to {name} port {port}: "):
        exchange.call(name, port)


def test_a_name_that_cannot_be_one() -> None:
    with pytest.raises(Fault):
        exchange.call("x" * 300, 1)


def test_a_port_that_is_taken() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(Fault, match=f"cannot listen on port {port} of 127.0.0.1: "):
            exchange.answer(port, "127.0.0.1")


def test_an_address_that_is_not_here() -> None:
    with pytest.raises(Fault, match=r"cannot listen on port 1 of 192\.0\.2\.1: "):
        exchange.answer(1, "192.0.2.1")


@pytest.mark.parametrize("bind", [None, "127.0.0.1"])
def test_an_answer(bind: "str | None") -> None:
    port = free_port()
    found: list[Line] = []
    thread = threading.Thread(target=lambda: found.append(exchange.answer(port, bind)))
    thread.start()
    with retried(lambda: exchange.call("127.0.0.1", port)) as line:
        thread.join()
        with found[0] as other:
            line.send(PACKED)
            assert other.receive(len(PACKED)) == PACKED
            assert other.own_address() is None


def retried(call: Callable[[], Line]) -> Line:
    """The connection, once the listener is there."""
    while True:
        try:
            return call()
        except Fault:
            pass
