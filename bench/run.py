#!/usr/bin/env python3
"""Measure softverbs and its peers in one run, and write a report.

The peers are optional: mpi4py and Open MPI, libfabric's fi_pingpong, pyzmq. A row whose program is not on this machine
says so. Figures are compared as ratios within the run, because a machine's own speed varies; and a sample during which
somebody else used the CPU is taken again, or marked. See rig/cpu.py for how that is known.

``--quick`` takes fewer and shorter samples: to see that everything runs, not to quote from.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from rig import cpu, machine, ours, peers, plot, report, rounds  # noqa: E402
from rig.model import Case, Plan, Row  # noqa: E402

ROOT = HERE.parent


def arguments(given: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="two short samples of each case")
    parser.add_argument(
        "--out", type=Path, default=ROOT / "build" / "bench", help="folder for the results (%(default)s)"
    )
    parser.add_argument("--rounds", type=int, help="samples of each case (5; quick: 2)")
    parser.add_argument("--seconds", type=float, help="seconds a sample (0.5; quick: 0.1)")
    parser.add_argument(
        "--limit", type=float, default=0.05, help="foreign share of one core that disturbs (%(default)s)"
    )
    parser.add_argument("--patience", type=float, help="seconds to spend on waiting for calm (900; quick: 30)")
    parser.add_argument("--only", metavar="TEXT", help="only cases whose section or subject has TEXT in it")
    parser.add_argument("--python", default=sys.executable, help="interpreter with softverbs, compiled (this one)")
    parser.add_argument("--peer-python", default=sys.executable, help="interpreter with mpi4py and pyzmq (this one)")
    parser.add_argument(
        "--pure", type=Path, default=ROOT / "src", help="folder with uncompiled softverbs (%(default)s)"
    )
    return parser.parse_args(given)


def plan_of(options: argparse.Namespace) -> Plan:
    """How much to measure."""
    quick = options.quick
    return Plan(
        seconds=options.seconds or (0.1 if quick else 0.5),
        rounds=options.rounds or (2 if quick else 5),
        limit=options.limit,
        patience=(30.0 if quick else 900.0) if options.patience is None else options.patience,
        cores=cpu.cores(),
    )


def cases_of(options: argparse.Namespace) -> list[Case]:
    """What to measure."""
    every = [*ours.cases(options.python, options.pure), *peers.cases(options.peer_python)]
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
    options = arguments()
    plan, cases = plan_of(options), cases_of(options)
    start = time.monotonic()
    about = machine.describe(options.python, options.peer_python, ROOT)
    rows = rounds.run(cases, plan, lambda line: print(f"[{time.monotonic() - start:5.0f} s] {line}", flush=True))
    options.out.mkdir(parents=True, exist_ok=True)
    plots = draw(options.out, rows)
    paths = report.write(options.out, rows, plan, about, [path.name for path in plots])
    print(paths[0].read_text(encoding="utf-8"))
    print("written:", *(str(path) for path in (*paths, *plots)))
    return 0 if any(row.samples for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
