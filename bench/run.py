#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Measure softverbs and its peers in one run, and write a report.

``c`` measures the C face alone, and its peers, in about seven minutes; ``python`` all but the C face. ``profile`` says
where the time of the C face goes (``profile --help``).

The peers are optional: mpi4py and Open MPI, libfabric, UCX, pyzmq. A row whose program is not on this machine says so.
Those of Debian that are not installed (perftest, libfabric, UCX) are downloaded and unpacked (tools/programs.py).

Figures are compared as ratios within the run, because a machine's own speed varies; and a sample during which somebody
else used the CPU is taken again, or marked. See rig/cpu.py for how that is known.

``--quick`` takes fewer and shorter samples: to see that everything runs, not to quote from.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
sys.path[:0] = [str(HERE), str(ROOT)]  # for rig and for tools

from rig import cpu, machine, ours, peers, perftest, plot, profile, report, rounds, ucx  # noqa: E402
from rig.model import Case, Plan, Row  # noqa: E402

ALL, PYTHON_FACE, C_FACE = "all", "python", "c"
SOCKET_VARIABLE = "SOFTVERBS_SOCKET"


def arguments(given: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "what", nargs="?", default=ALL, metavar="WHAT", help=f"{ALL}, {PYTHON_FACE} or {C_FACE} (%(default)s)"
    )
    parser.add_argument("--quick", action="store_true", help="two short samples of each case")
    parser.add_argument(
        "--out", type=Path, default=ROOT / "build" / "bench", help="folder for the results (%(default)s)"
    )
    parser.add_argument("--rounds", type=int, help="samples of each case (5; C face alone: 3; quick: 2, 1)")
    parser.add_argument("--seconds", type=float, help="seconds a sample (0.5; C face alone: 0.3; quick: 0.1)")
    parser.add_argument(
        "--limit", type=float, default=0.05, help="foreign share of one core that disturbs (%(default)s)"
    )
    parser.add_argument(
        "--patience", type=float, help="seconds to spend on waiting for calm (900; C face alone: 60; quick: 30, 5)"
    )
    parser.add_argument("--only", metavar="TEXT", help="only cases whose section or subject has TEXT in it")
    parser.add_argument("--python", default=sys.executable, help="interpreter with softverbs, compiled (this one)")
    parser.add_argument("--peer-python", default=sys.executable, help="interpreter with mpi4py and pyzmq (this one)")
    parser.add_argument(
        "--pure", type=Path, default=ROOT / "src", help="folder with uncompiled softverbs (%(default)s)"
    )
    options = parser.parse_args(given)
    if options.what not in (ALL, PYTHON_FACE, C_FACE):
        parser.error(f"{options.what} cannot be measured: {ALL}, {PYTHON_FACE} and {C_FACE} can")
    return options


# Seconds a sample, rounds, and patience: in full and quick.
USUAL = ((0.5, 5, 900.0), (0.1, 2, 30.0))
C_ALONE = ((0.3, 3, 60.0), (0.1, 1, 5.0))
# The C face alone takes no longer than this, in seconds, on a machine that is not busy otherwise.
C_BUDGET = 480.0


def plan_of(options: argparse.Namespace) -> Plan:
    """How much to measure."""
    seconds, number, patience = (C_ALONE if options.what == C_FACE else USUAL)[options.quick]
    return Plan(
        seconds=options.seconds or seconds,
        rounds=options.rounds or number,
        limit=options.limit,
        patience=patience if options.patience is None else options.patience,
        cores=cpu.cores(),
        budget=C_BUDGET if options.what == C_FACE else math.inf,
        whole=options.what == ALL and options.only is None,
    )


def cases_of(options: argparse.Namespace) -> list[Case]:
    """What to measure."""
    every = []
    if options.what != C_FACE:
        every += [*ours.cases(options.python, options.pure), *peers.cases(options.peer_python)]
    if options.what != PYTHON_FACE:
        every += [*perftest.cases(options.python), *peers.c_cases(), *ucx.cases()]
    if options.only is None:
        return every
    wanted = options.only.lower()
    return [case for case in every if wanted in case.section.lower() or wanted in case.subject.lower()]


def draw(folder: Path, rows: Sequence[Row]) -> list[Path]:
    """Draw the plot, or say why there is none."""
    try:
        return plot.draw(folder, rows)
    except ImportError:
        print("no plot: matplotlib is not installed")
        return []


def main() -> int:
    """Measure, write the results, and say where they are; 1 if nothing could be measured."""
    if sys.argv[1:2] == ["profile"]:
        return profile.main(sys.argv[2:])
    options = arguments()
    if SOCKET_VARIABLE in os.environ:
        print("not under softverbs run: its driver would be in front of the peers too", file=sys.stderr)
        return 2
    plan, cases = plan_of(options), cases_of(options)
    start = time.monotonic()
    rows = rounds.run(cases, plan, lambda line: print(f"[{time.monotonic() - start:5.0f} s] {line}", flush=True))
    about = machine.describe(options.python, options.peer_python, ROOT)
    options.out.mkdir(parents=True, exist_ok=True)
    plots = draw(options.out, rows)
    paths = report.write(options.out, rows, plan, about, [path.name for path in plots])
    print(paths[0].read_text(encoding="utf-8"))
    print("written:", *(str(path) for path in (*paths, *plots)))
    return 0 if any(row.samples for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
