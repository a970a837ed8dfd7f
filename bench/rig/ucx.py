# SPDX-License-Identifier: MIT
"""A peer of the C face: UCX's own software paths, measured by its ucx_perftest.

PUT is what compares with RDMA WRITE, TAG (matched messages) with SEND, GET with READ. Over shared memory the target of
PUT is the library's own memory, which the other side writes by itself; TAG moves a user's buffer (process_vm_readv(2)
for large ones). Over TCP all of them are messages.
"""

from __future__ import annotations

from collections.abc import Callable

from rig import debian, processes
from rig.model import (
    C_READS,
    C_SEND,
    C_SENDS,
    C_WRITE,
    C_WRITES,
    LATENCY,
    RATE,
    SIZES,
    Case,
    Failed,
    Plan,
    Reading,
    stream_unit,
)

SHARED, TCP = "shared memory", "TCP"
TRANSPORTS = {
    SHARED: {"UCX_TLS": "posix,sysv,cma,self"},
    TCP: {"UCX_TLS": "tcp,self", "UCX_NET_DEVICES": "lo"},
}
# About how long an operation takes, in microseconds: ucx_perftest wants a number of iterations, not a time.
GUESS_US = {
    SHARED: {8: 0.5, 4096: 1.5, 65536: 15.0, 1 << 20: 200.0},
    TCP: {8: 15.0, 4096: 20.0, 65536: 80.0, 1 << 20: 800.0},
}
LEAST = 50
# One GET at a time: over TCP each is answered when the other side's program looks, which can be much later.
GET_FACTOR = 10
# ucx_perftest's last line: iterations; median, average, overall time; average, overall MB/s; average, overall rate.
FIELDS = 8
MEDIAN, MEAN, RATE_FIELD = 1, 3, 7


def subject(operation: str, transport: str) -> str:
    """The row's name."""
    return f"UCX {operation} over {transport} (C)"


def fields(output: str) -> list[float]:
    """The final line of ucx_perftest's table.

    Raises:
        Failed: the output has none.
    """
    for line in reversed(output.splitlines()):
        words = line.split()
        if len(words) == FIELDS:
            try:
                return [float(word) for word in words]
            except ValueError:
                break
    raise Failed("no figures in the output of ucx_perftest")


def parse_latency(output: str) -> Reading:
    """Median and mean of half a round trip, in microseconds: ucx_perftest halves it by itself."""
    found = fields(output)
    return Reading(found[MEDIAN], found[MEAN])


def parse_stream(output: str, unit: str, size: int) -> float:
    """Messages a second, or GB/s, over the whole test."""
    rate = fields(output)[RATE_FIELD]
    return rate if unit == RATE else rate * size / 1e9


def _output(test: str, transport: str, size: int, plan: Plan) -> str:
    """Run a test of ucx_perftest; what the client printed."""
    program, variables = debian.find("ucx_perftest", debian.UCX)
    guess = GUESS_US[transport][size] * (GET_FACTOR if test == "ucp_get" else 1)
    count = max(LEAST, int(plan.seconds * 1e6 / guess))
    port = processes.free_port()
    server = (program, "-p", str(port))
    numbers = ("-s", str(size), "-n", str(count), "-w", str(count // 10))
    client = (*server, "127.0.0.1", "-t", test, *numbers, "-f")
    return processes.run_pair(server, client, plan.cores, port, {**variables, **TRANSPORTS[transport]})


def _latency(test: str, transport: str, size: int) -> Callable[[Plan], Reading]:
    """How to take a sample of a latency."""

    def run(plan: Plan) -> Reading:
        return parse_latency(_output(test, transport, size, plan))

    return run


def _stream(test: str, transport: str, size: int, unit: str) -> Callable[[Plan], float]:
    """How to take a sample of a rate or a bandwidth."""

    def run(plan: Plan) -> float:
        return parse_stream(_output(test, transport, size, plan), unit, size)

    return run


PUT, TAG, GET = "put", "tag", "get"
LATENCIES = ((C_WRITE, PUT, "ucp_put_lat"), (C_SEND, TAG, "tag_lat"))
STREAMS = ((C_WRITES, PUT, "ucp_put_bw"), (C_SENDS, TAG, "tag_bw"), (C_READS, GET, "ucp_get"))


def cases() -> list[Case]:
    """Every case of UCX."""
    made = []
    for size in SIZES:
        unit = stream_unit(size)
        for transport in TRANSPORTS:
            for section, operation, test in LATENCIES:
                run = _latency(test, transport, size)
                made.append(Case(section, subject(operation, transport), LATENCY, size, run))
            for section, operation, test in STREAMS:
                stream = _stream(test, transport, size, unit)
                made.append(Case(section, subject(operation, transport), unit, size, stream))
    return made
