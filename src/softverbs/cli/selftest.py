# SPDX-License-Identifier: MIT
"""``softverbs selftest``: a lot of data and a lot of writes between two processes, each byte and each write checked."""

from __future__ import annotations

import os
from typing import Any, NamedTuple

import click

from softverbs.cli import pair, show
from softverbs.cli.common import Fault, FloatRange, IntRange, pcap_option
from softverbs.cli.common import size as size_type
from softverbs.cli.selftest_sides import Settings, keeper, mover

_BYTES = {"compiled": "1G", "pure": "16M"}
_WRITES = {"compiled": 1_000_000, "pure": 20_000}
_MOST = 1 << 30
_MOST_WRITES = 1 << 27


class _Step(NamedTuple):
    """A step: what is said of it, how many operations it has, and whether they are READs."""

    words: str
    operations: int
    reads: bool
    size: int


@click.command("selftest", context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--bytes", "size", type=size_type(0, _MOST), help="Bytes to move each time. [default: 1G; uncompiled 16M]"
)
@click.option(
    "--piece", type=size_type(1, _MOST), default="64K", show_default=True, help="Bytes of each of many messages."
)
@click.option("--writes", type=IntRange(0, _MOST_WRITES), help="8-byte writes. [default: 1000000; uncompiled 20000]")
@click.option(
    "--timeout",
    type=FloatRange(1, 86400),
    default=600.0,
    show_default=True,
    help="Time limit for everything, seconds.",
)
@pcap_option
def command(size: int | None, piece: int, writes: int | None, timeout: float, pcap: str | None) -> None:
    """A lot of data between two processes over UDP on loopback, checked.

    Moves memory by RDMA WRITE and by RDMA READ, as one message and as many, and compares checksums; then counts 8-byte
    writes at both ends. Exit code 1 if anything is not as it should be. Takes twice --bytes of memory.
    """
    import softverbs

    build = softverbs.core_build
    size = size_type(0, _MOST)(_BYTES[build]) if size is None else size
    writes = _WRITES[build] if writes is None else writes
    if size > piece * (1 << 22):
        raise click.UsageError("--piece is too small for so many --bytes")
    settings = Settings(
        size, piece, writes, timeout, (os.environ.get("SOFTVERBS_PCAP") if pcap is None else pcap) or ""
    )
    show.heading("softverbs selftest: two processes, RoCEv2 over UDP on loopback")
    click.echo(f"softverbs {softverbs.__version__}, {build} core")
    found: dict[str, dict[str, Any]] = {}
    wrong: list[str] = []
    for message in pair.run({"keeper": keeper, "mover": mover}, settings, timeout):
        sides = found.setdefault(message.topic, {})
        sides[message.side] = message.values
        if len(sides) == 2:
            wrong += _judge(_steps(settings)[message.topic], sides["mover"], sides["keeper"])
    missing = [step for step in settings.steps if len(found.get(step, {})) != 2]
    if wrong or missing:
        raise Fault(f"not as it should be: {'; '.join([*wrong, *(f'nothing came of: {step}' for step in missing)])}")
    show.verdict(True, "All as it should be")


def _steps(settings: Settings) -> dict[str, _Step]:
    size, pieces = settings.bytes, -(-settings.bytes // settings.piece)
    many = f"{pieces:,} messages of {settings.piece:,}"
    return {
        "write one": _Step(f"{size:,} bytes by RDMA WRITE, one message", 1, False, size),
        "write many": _Step(f"{size:,} bytes by RDMA WRITE, {many}", pieces, False, size),
        "read one": _Step(f"{size:,} bytes by RDMA READ, one message", 1, True, size),
        "read many": _Step(f"{size:,} bytes by RDMA READ, {many}", pieces, True, size),
        "count": _Step(f"{settings.writes:,} RDMA WRITEs of 8 bytes", settings.writes, False, 0),
    }


def _judge(step: _Step, mover_side: dict[str, Any], keeper_side: dict[str, Any]) -> list[str]:
    """Prints a step; what is wrong with it."""
    took = mover_side["took"]
    rate = f"{step.size / took / 1e9:.2f} GB/s" if step.size else f"{step.operations / took:,.0f} writes a second"
    same = mover_side["digest"] == keeper_side["digest"]
    click.echo(f"\n{step.words}: {took:.2f} s, {rate}")
    click.echo(f"    checksums {mover_side['digest']} {'=' if same else '!='} {keeper_side['digest']}")
    expected = (0, 0, step.operations, 0) if step.reads else (step.operations, 0, 0, 0)
    wrong = [] if same else [f"{step.words}: the checksums differ"]
    for name, side in (("mover", mover_side), ("keeper", keeper_side)):
        completions, errors, read, read_errors = side["counts"]
        counted, failed = (read, read_errors) if step.reads else (completions, errors)
        entries = side["entries"]
        click.echo(
            f"    {name:6} counted {counted:,} completions, {failed} errors; {entries} completion queue entries left"
        )
        if side["counts"] != expected:
            wrong.append(f"{step.words}: the {name} counted {side['counts']}, not {expected}")
        if entries:
            wrong.append(f"{step.words}: {entries} completions too many at the {name}")
    return wrong
