# SPDX-License-Identifier: MIT
"""What the figures are held against: the peers of the same run, and the project's aims."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from rig import ours, peers, perftest, ucx
from rig.model import (
    C_READS,
    C_SEND,
    C_SENDS,
    C_WRITE,
    C_WRITES,
    COMPLETION,
    LATENCY,
    LOCAL,
    LOCAL_RATE,
    SIZES,
    STREAM,
    TURNS,
    Row,
    size_name,
)

Rows = Mapping[tuple[str, str, int], Row]
SMALL, LARGE = SIZES[0], SIZES[-1]
COMPILED = ours.Build("compiled", "")
UNCOMPILED = ours.Build("uncompiled", "")
# "Within twice the peer's", as the share of it that is still enough.
WITHIN = 0.5

# Which transport of UCX takes the path of one device of ours, and which that of two.
SAME_PATH = ((perftest.ONE, ucx.SHARED), (perftest.TWO, ucx.TCP))
FABRICS = (peers.FABRIC_UDP, peers.FABRIC_TCP_MSG)
C_TOOLS = (
    (C_WRITE, "ib_write_lat", ucx.PUT),
    (C_SEND, "ib_send_lat", ucx.TAG),
    (C_WRITES, "ib_write_bw", ucx.PUT),
    (C_SENDS, "ib_send_bw", ucx.TAG),
    (C_READS, "ib_read_bw", ucx.GET),
)

# What is compared with what: section and subject of ours, section and subject of the other.
PAIRS = (
    (TURNS, COMPILED.subject(ours.POLLED), TURNS, peers.FABRIC_UDP),
    (TURNS, COMPILED.subject(ours.EVENT), TURNS, peers.FABRIC_UDP),
    (TURNS, COMPILED.subject(ours.POLLED), TURNS, peers.MPI_SEND),
    (TURNS, COMPILED.subject(ours.POLLED), TURNS, peers.FABRIC_TCP),
    (TURNS, COMPILED.subject(ours.EVENT), TURNS, peers.ZMQ),
    (COMPLETION, COMPILED.subject(ours.BUSY), COMPLETION, peers.MPI_PUT),
    (COMPLETION, COMPILED.subject(ours.ASLEEP), COMPLETION, peers.MPI_PUT),
    (STREAM, COMPILED.subject(ours.WRITE), STREAM, peers.MPI_PUT),
    (LOCAL, COMPILED.subject(ours.CQ), LOCAL, UNCOMPILED.subject(ours.CQ)),
    (LOCAL, COMPILED.subject(ours.COUNTER), LOCAL, UNCOMPILED.subject(ours.COUNTER)),
    (LOCAL_RATE, COMPILED.subject(ours.LISTS), LOCAL_RATE, UNCOMPILED.subject(ours.LISTS)),
    (TURNS, COMPILED.subject(ours.POLLED), TURNS, UNCOMPILED.subject(ours.POLLED)),
    (STREAM, COMPILED.subject(ours.WRITE), STREAM, UNCOMPILED.subject(ours.WRITE)),
    *(
        (section, perftest.subject(tool, arrangement), section, ucx.subject(operation, transport))
        for section, tool, operation in C_TOOLS
        for arrangement, transport in SAME_PATH
    ),
    *((C_WRITE, perftest.subject("ib_write_lat", perftest.TWO), C_SEND, fabric) for fabric in FABRICS),
    *((C_SEND, perftest.subject("ib_send_lat", perftest.TWO), C_SEND, fabric) for fabric in FABRICS),
)


@dataclass(frozen=True)
class Ratio:
    """How many times better one subject is than another at one size: above 1, ``subject`` is the better one."""

    section: str
    subject: str
    other: str
    size: int
    times: float
    trusted: bool


@dataclass(frozen=True)
class Aim:
    """An aim with what was measured; ``met`` is None where there is no figure."""

    text: str
    measured: str
    met: bool | None
    trusted: bool


def index(rows: Iterable[Row]) -> Rows:
    """The rows by section, subject and size."""
    return {row.case.key: row for row in rows}


def times_better(row: Row, other: Row) -> float | None:
    """How many times better ``row`` is: faster for a latency, more for a rate; None without both figures.

    Where a program says no more than a mean, it is the mean of both that counts, if both have one.
    """
    mine, its = figures(row, other)
    if mine is None or its is None:
        return None
    return its / mine if row.case.unit == LATENCY else mine / its


def figures(row: Row, other: Row) -> tuple[float | None, float | None]:
    """The figures of two rows that can be compared: medians, or the means where one has only that."""
    if (row.case.by_mean or other.case.by_mean) and row.mean is not None and other.mean is not None:
        return row.mean, other.mean
    return row.median, other.median


def ratios(rows: Rows) -> list[Ratio]:
    """Every comparison of PAIRS for which this run has both figures."""
    found = []
    for section, subject, other_section, other in PAIRS:
        for size in SIZES:
            row, against = rows.get((section, subject, size)), rows.get((other_section, other, size))
            if row is None or against is None:
                continue
            times = times_better(row, against)
            if times is not None:
                trusted = row.state == against.state == "ok"
                found.append(Ratio(section, subject, other, size, times, trusted))
    return found


def _held_to(rows: Rows, text: str, key: tuple[str, str, int], bound: float) -> Aim:
    """An aim that is a bound on one figure."""
    row = rows.get(key)
    if row is None or row.median is None:
        return Aim(text, "not measured", None, False)
    met = row.median <= bound if row.case.unit == LATENCY else row.median >= bound
    return Aim(text, f"{row.median:.3g} {row.case.unit}", met, row.state == "ok")


def _better(rows: Rows, text: str, key: tuple[str, str, int], other: tuple[str, str, int], least: float = 1) -> Aim:
    """An aim that is a comparison with a peer: more than ``least`` times better."""
    row, against = rows.get(key), rows.get(other)
    times = times_better(row, against) if row and against else None
    if row is None or against is None or times is None:
        return Aim(text, "not measured", None, False)
    mine, its = figures(row, against)
    measured = f"{mine:.3g} against {its:.3g} {row.case.unit}: {times:.3g} times"
    return Aim(text, measured, times > least, row.state == against.state == "ok")


def aims(rows: Rows) -> Sequence[Aim]:
    """What the project wants to reach, and what this run measured."""
    local = (LOCAL, COMPILED.subject(ours.CQ), SMALL)
    local_lists = (LOCAL_RATE, COMPILED.subject(ours.LISTS), SMALL)
    polled = (TURNS, COMPILED.subject(ours.POLLED), SMALL)
    event = (TURNS, COMPILED.subject(ours.EVENT), SMALL)
    fabric = (TURNS, peers.FABRIC_UDP, SMALL)
    stream = (STREAM, COMPILED.subject(ours.WRITE), LARGE)
    reads = (STREAM, COMPILED.subject(ours.READ), LARGE)
    return (
        _held_to(rows, "one process, 8 B write: post to polled completion at most 1 us", local, 1.0),
        _held_to(rows, "the same, goal: below 0.5 us", local, 0.5),
        _held_to(rows, "one process, 8 B writes in lists, goal: more than 5 M/s", local_lists, 5e6),
        _better(rows, "over UDP, 8 B write, polled: faster than a message of udp;ofi_rxd", polled, fabric),
        _held_to(rows, "over UDP, 8 B write, polled, goal: at most 8 us", polled, 8.0),
        _held_to(rows, "over UDP, 8 B write, blocking, goal: at most 15 us", event, 15.0),
        _held_to(rows, "over UDP, 1 MiB writes: at least 1 GB/s", stream, 1.0),
        _held_to(rows, "the same, goal: 2 GB/s", stream, 2.0),
        _held_to(rows, "over UDP, 1 MiB reads: at least 1 GB/s", reads, 1.0),
        *_c_aims(rows),
    )


def _c_aims(rows: Rows) -> list[Aim]:
    """The C face: within a factor of two of the peers on the same path."""
    found = []
    for size in (SMALL, SIZES[2]):
        for arrangement, transport in SAME_PATH:
            for section, tool, what in (
                (C_WRITE, "ib_write_lat", "write latency"),
                (C_WRITES, "ib_write_bw", "writes"),
            ):
                text = f"C face, {arrangement}, {size_name(size)}: {what} within twice UCX put over {transport}"
                key = (section, perftest.subject(tool, arrangement), size)
                found.append(_better(rows, text, key, (section, ucx.subject(ucx.PUT, transport), size), WITHIN))
        for section, tool in ((C_WRITE, "ib_write_lat"), (C_SEND, "ib_send_lat")):
            text = f"C face, two devices, {size_name(size)}: {tool} within twice {peers.FABRIC_UDP}"
            key = (section, perftest.subject(tool, perftest.TWO), size)
            found.append(_better(rows, text, key, (C_SEND, peers.FABRIC_UDP, size), WITHIN))
    return found
