# SPDX-License-Identifier: MIT
"""Our C face: Debian's perftest, unmodified, under ``softverbs run``."""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Callable

from rig import debian, processes
from rig.model import (
    BANDWIDTH,
    C_READ,
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
    Missing,
    Plan,
    Reading,
    stream_unit,
)
from rig.ours import Build

# Where the two sides are: on one device, or each on its own, which talk by RoCEv2 over UDP.
ONE, TWO = "one device", "two devices"
ARRANGEMENTS = (ONE, TWO)
EVENTS = ("-e",)
PROBE = "from softverbs.server import driver; driver.folder()"

# perftest wants a number of iterations, not a time. About how long one takes, in microseconds, with programs that wait
# for each other's processor; and how many are needed for a figure at all.
LATENCY_GUESS_US = {8: 60.0, 4096: 80.0, 65536: 400.0, 1 << 20: 6000.0}
STREAM_GUESS_US = {8: 10.0, 4096: 15.0, 65536: 150.0, 1 << 20: 3000.0}
LEAST = 50
MIB = 1 << 20


def subject(tool: str, arrangement: str, options: tuple[str, ...] = ()) -> str:
    """The row's name."""
    return f"softverbs: {' '.join((tool, *options))}, {arrangement}"


def columns(output: str) -> dict[str, float]:
    """The figures of perftest by the names in its heading.

    Raises:
        Failed: the output has no such table.
    """
    lines = [line for line in output.splitlines() if line.strip()]
    for heading, figures in itertools.pairwise(lines):
        if heading.split()[0] == "#bytes":
            # Some names have a space in them: "BW peak[MB/sec]", "99.9% percentile[usec]".
            names = re.sub(r"(BW|%) ", r"\1_", heading).split()
            try:
                return dict(zip(names, map(float, figures.split()), strict=True))
            except ValueError:
                break
    raise Failed("no figures in the output of perftest")


def _column(found: dict[str, float], name: str) -> float:
    """A figure by its name; Failed if there is none."""
    if name not in found:
        raise Failed(f"no {name} in the output of perftest")
    return found[name]


def parse_latency(output: str) -> Reading:
    """Median and mean, in microseconds: half a round trip for WRITE and SEND, the whole operation for READ."""
    found = columns(output)
    return Reading(_column(found, "t_typical[usec]"), _column(found, "t_avg[usec]"))


def parse_stream(output: str, unit: str) -> float:
    """Messages a second, or GB/s; what perftest calls MB is a MiB."""
    found = columns(output)
    if unit == RATE:
        return _column(found, "MsgRate[Mpps]") * 1e6
    assert unit == BANDWIDTH
    return _column(found, "BW_average[MB/sec]") * MIB / 1e9


@functools.cache
def _has_driver(build: Build) -> str:
    """Empty where the C driver is installed; else why it is not."""
    try:
        processes.run((build.python, "-c", PROBE), build.environment())
    except Failed as failure:
        return str(failure)
    return ""


def need_driver(build: Build) -> None:
    """Raise Missing unless ``build`` is here, with its C driver."""
    build.need()
    if reason := _has_driver(build):
        raise Missing(reason)


def iterations(size: int, seconds: float, guesses: dict[int, float]) -> int:
    """How many operations fill ``seconds``."""
    return max(LEAST, int(seconds * 1e6 / guesses[size]))


def run_tool(build: Build, arrangement: str, tool: str, *options: str) -> str:
    """Run a program of perftest as server and client; returns what the client printed.

    Raises:
        Missing: there is no compiled softverbs with a C driver, or no perftest.
        Failed: a side failed.
    """
    need_driver(build)
    program, variables = debian.find(tool, debian.PERFTEST)
    environment = {**build.environment(), **variables}
    port = processes.free_port()
    words = (program, "-F", "-p", str(port), *options)
    device = (build.python, "-m", "softverbs", "run", "--")
    if arrangement == TWO:
        server, client = (*device, *words), (*device, *words, "127.0.0.1")
        return processes.run_pair(server, client, (None, None), port, environment)
    worker = (build.python, str(processes.WORKERS / "both_sides.py"), str(port))
    return processes.run((*device, *worker, *words), environment)


def _latency(build: Build, arrangement: str, tool: str, size: int, options: tuple[str, ...]) -> Callable[..., Reading]:
    """How to take a sample of a latency."""

    def run(plan: Plan) -> Reading:
        count = iterations(size, plan.seconds / 2, LATENCY_GUESS_US)  # each of them is two turns
        return parse_latency(run_tool(build, arrangement, tool, "-s", str(size), "-n", str(count), *options))

    return run


def _stream(build: Build, arrangement: str, tool: str, size: int, unit: str) -> Callable[[Plan], float]:
    """How to take a sample of a rate or a bandwidth."""

    def run(plan: Plan) -> float:
        count = iterations(size, plan.seconds, STREAM_GUESS_US)
        return parse_stream(run_tool(build, arrangement, tool, "-s", str(size), "-n", str(count)), unit)

    return run


LATENCIES = ((C_WRITE, "ib_write_lat"), (C_SEND, "ib_send_lat"), (C_READ, "ib_read_lat"))
STREAMS = ((C_WRITES, "ib_write_bw"), (C_SENDS, "ib_send_bw"), (C_READS, "ib_read_bw"))


def cases(python: str) -> list[Case]:
    """Every case of the C face; ``python`` is the interpreter in which softverbs is installed, compiled."""
    build = Build("compiled", python)
    made = []
    for size in SIZES:
        unit = stream_unit(size)
        for arrangement in ARRANGEMENTS:
            for section, tool in LATENCIES:
                run = _latency(build, arrangement, tool, size, ())
                made.append(Case(section, subject(tool, arrangement), LATENCY, size, run))
            if size == SIZES[0]:
                asleep = _latency(build, arrangement, "ib_send_lat", size, EVENTS)
                made.append(Case(C_SEND, subject("ib_send_lat", arrangement, EVENTS), LATENCY, size, asleep))
            for section, tool in STREAMS:
                stream = _stream(build, arrangement, tool, size, unit)
                made.append(Case(section, subject(tool, arrangement), unit, size, stream))
    return made
