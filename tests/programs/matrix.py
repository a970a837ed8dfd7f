# SPDX-License-Identifier: MIT
"""Runs every program of perftest with every transport and option that it has, and prints a table.

    python -m tests.programs.matrix [-k WORDS] [--apart] [--repeat N]

With ``--apart`` UC and UD lose messages where the machine is busy, and perftest waits for each: such a case fails.

The driver and the package are those that are importable. The exit status is 1 where a case fails. All take an hour on
two busy cores, a third of that on two that have nothing else to do.
"""

from __future__ import annotations

import argparse
import sys
from contextlib import ExitStack

import pytest
from tests.programs.perftest import Case, cases, complaint, figures, run
from tests.programs.running import Served


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="matrix", description="Runs every program of perftest with every option.")
    parser.add_argument("-k", dest="words", default="", help="only cases with these words, separated by commas")
    parser.add_argument("-c", dest="exactly", action="append", help="one case: its command line")
    parser.add_argument("--apart", action="store_true", help="client and server each on a device of its own")
    parser.add_argument("--repeat", type=int, default=1, help="how often each case runs")
    parser.add_argument("-n", dest="iterations", type=int, default=1000, help="exchanges; a twentieth with -a")
    parser.add_argument("--timeout", type=float, default=300, help="seconds that a case may take")
    parser.add_argument("-v", dest="verbose", action="store_true", help="print what failing programs print")
    return parser.parse_args()


def _figure(rows: list[list[float]], test: str) -> str:
    """What one wants to know first."""
    if not rows:
        return ""
    last = rows[-1]
    if test == "bw":
        return f"{last[3]:10.1f} MiB/s"
    return f"{last[4] if len(last) > 4 else last[2]:10.1f} us   "


class Bench:
    """The devices that cases run on: new ones after a failure."""

    def __init__(self, apart: bool) -> None:
        self._apart = apart
        self._stack: ExitStack | None = None
        self._pair: tuple[Served, Served] | None = None

    def devices(self) -> tuple[Served, Served]:
        if self._pair is None:
            self._stack = ExitStack()
            one = self._stack.enter_context(Served())
            self._pair = (one, self._stack.enter_context(Served()) if self._apart else one)
        return self._pair

    def close(self) -> None:
        if self._stack is not None:
            self._stack.close()
        self._stack = self._pair = None


def main() -> int:
    """The command; its exit status."""
    try:
        return _run(_arguments())
    except pytest.skip.Exception as reason:  # no driver, or no perftest
        print(reason, file=sys.stderr)
        return 1


def _run(given: argparse.Namespace) -> int:
    wanted = given.words.split(",")
    chosen = [Case.of(text) for text in given.exactly or ()] or [
        case for case in cases() if all(word in f"{case} " for word in wanted)
    ]
    bench = Bench(given.apart)
    failures = 0
    try:
        for turn in range(given.repeat):
            for case in chosen:
                iterations = max(given.iterations // (20 if "-a" in case.options.split() else 1), 5)
                outcome = run(case, iterations, *bench.devices(), given.timeout)
                wrong = complaint(case, outcome)
                figure = _figure(figures(outcome.client), case.test)
                print(f"{case!s:48} {outcome.seconds:6.1f} s {figure or '':18} {wrong or 'ok'}", flush=True)
                if wrong:
                    failures += 1
                    bench.close()
                    if given.verbose:
                        print(outcome.text, flush=True)
            print(f"turn {turn + 1}: {len(chosen)} cases, {failures} failures so far", flush=True)
    finally:
        bench.close()
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
