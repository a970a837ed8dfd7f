# SPDX-License-Identifier: MIT
"""Measure what Python has without RDMA, as floors: pyzmq over TCP, and bare UDP sockets; half a round trip each."""

from __future__ import annotations

import argparse
import importlib
import socket
from collections.abc import Callable
from typing import Any

import control

Exchange = Callable[[], None]


def zmq_socket(address: str | None) -> tuple[Any, str]:
    """A pyzmq PAIR socket over TCP on loopback, connected to ``address``, or bound; with the address it has."""
    zmq: Any = importlib.import_module("zmq")
    pair = zmq.Context().socket(zmq.PAIR)
    pair.linger = 0
    if address is None:
        pair.bind("tcp://127.0.0.1:*")
    else:
        pair.connect(address)
    return pair, pair.getsockopt_string(zmq.LAST_ENDPOINT)


def zmq_turns(pair: Any, size: int) -> tuple[Exchange, Exchange]:
    """How to send and how to receive one message of ``size`` bytes over pyzmq."""
    message = bytes(size)
    return lambda: pair.send(message, copy=size < 65536), lambda: pair.recv(copy=size < 65536)


def udp_turns(pair: socket.socket, size: int) -> tuple[Exchange, Exchange]:
    """How to send and how to receive one datagram of ``size`` bytes over a connected socket."""
    message, buffer = bytes(size), bytearray(size)

    def send() -> None:
        pair.send(message)

    def receive() -> None:
        pair.recv_into(buffer)

    return send, receive


def passive(line: control.Line, kind: str, size: int) -> None:
    """Answer every message, as often as the active side says."""
    if kind == "zmq":
        zmq_pair, address = zmq_socket(None)
        line.send(address)
        send, receive = zmq_turns(zmq_pair, size)
    else:
        udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        udp.bind(("127.0.0.1", 0))
        line.send(udp.getsockname())
        udp.connect(tuple(line.receive()))
        send, receive = udp_turns(udp, size)
    line.send("ready")
    while count := line.receive():
        for _ in range(count):
            receive()
            send()


def active(line: control.Line, kind: str, size: int, seconds: float) -> float:
    """Send and await the answer, again and again; returns seconds for half a round trip."""
    if kind == "zmq":
        send, receive = zmq_turns(zmq_socket(line.receive())[0], size)
    else:
        udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        udp.bind(("127.0.0.1", 0))
        udp.connect(tuple(line.receive()))
        line.send(udp.getsockname())
        send, receive = udp_turns(udp, size)
    line.receive()

    def exchange(count: int) -> float:
        line.send(count)
        start = control.clock()
        for _ in range(count):
            send()
            receive()
        return control.clock() - start

    return control.per_operation(exchange, seconds) / 2


def main() -> None:
    """Be the active side, or with ``--line`` the passive one."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=("zmq", "udp"))
    parser.add_argument("--size", type=int, required=True)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--core", type=int, required=True)
    parser.add_argument("--partner-core", type=int, default=0)
    parser.add_argument("--line", type=int)
    arguments = parser.parse_args()
    if arguments.line is not None:
        control.pin(arguments.core)
        passive(control.join_line(arguments.line), arguments.kind, arguments.size)
        return
    partner, line = control.start_partner(
        __file__, [arguments.kind, "--size", str(arguments.size)], arguments.partner_core
    )
    control.pin(arguments.core)
    seconds = active(line, arguments.kind, arguments.size, arguments.seconds)
    line.send(0)
    partner.wait()
    control.answer(seconds=seconds)


if __name__ == "__main__":
    main()
