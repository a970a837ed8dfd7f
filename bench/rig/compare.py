"""What the figures are held against: the peers of the same run, and the project's aims."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from rig import ours, peers
from rig.model import COMPLETION, LATENCY, LOCAL, LOCAL_RATE, SIZES, STREAM, TURNS, Row

Rows = Mapping[tuple[str, str, int], Row]
SMALL, LARGE = SIZES[0], SIZES[-1]
COMPILED = ours.Build("compiled", "")
UNCOMPILED = ours.Build("uncompiled", "")

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
    """How many times better ``row`` is: faster for a latency, more for a rate; None without both figures."""
    if row.median is None or other.median is None:
        return None
    return other.median / row.median if row.case.unit == LATENCY else row.median / other.median


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


def _faster(rows: Rows, text: str, key: tuple[str, str, int], other: tuple[str, str, int]) -> Aim:
    """An aim that is a comparison with a peer."""
    row, against = rows.get(key), rows.get(other)
    times = times_better(row, against) if row and against else None
    if row is None or against is None or times is None:
        return Aim(text, "not measured", None, False)
    measured = f"{row.median:.3g} against {against.median:.3g} {row.case.unit}: {times:.2f} times"
    return Aim(text, measured, times > 1, row.state == against.state == "ok")


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
        _faster(rows, "over UDP, 8 B write, polled: faster than a message of udp;ofi_rxd", polled, fabric),
        _held_to(rows, "over UDP, 8 B write, polled, goal: at most 8 us", polled, 8.0),
        _held_to(rows, "over UDP, 8 B write, blocking, goal: at most 15 us", event, 15.0),
        _held_to(rows, "over UDP, 1 MiB writes: at least 1 GB/s", stream, 1.0),
        _held_to(rows, "the same, goal: 2 GB/s", stream, 2.0),
        _held_to(rows, "over UDP, 1 MiB reads: at least 1 GB/s", reads, 1.0),
    )
