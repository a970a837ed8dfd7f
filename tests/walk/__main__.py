# SPDX-License-Identifier: MIT
"""Replays walks: ``python -m tests.walk --seed 17 -v`` shows every frame and every completion of one."""

import argparse
import sys
import time
from collections import Counter

from tests.walk.control import ControlWalk
from tests.walk.mixed import MixedWalk
from tests.walk.walk import Walk, WalkError


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.walk", description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="the first walk (default 0)")
    parser.add_argument("--runs", type=int, default=1, help="how many, of seeds that follow each other (default 1)")
    parser.add_argument("--mixed", action="store_true", help="walks over all types of queue pair")
    parser.add_argument("--control", action="store_true", help="walks over making and closing objects")
    parser.add_argument("-v", "--verbose", action="store_true", help="say everything that happens")
    arguments = parser.parse_args()
    kind = MixedWalk if arguments.mixed else ControlWalk if arguments.control else Walk
    tally: Counter[str] = Counter()
    failures = 0
    start = time.perf_counter()
    for seed in range(arguments.seed, arguments.seed + arguments.runs):
        try:
            walk = kind(seed, say=arguments.verbose)
            print(f"\rseed {seed}: {walk.run()}", end="", flush=True)
            tally += walk.tally
        except WalkError as error:
            failures += 1
            print(f"\n{error}", file=sys.stderr)
    print(f"\n{arguments.runs} walks in {time.perf_counter() - start:.1f} s, {failures} failed")
    print(", ".join(f"{what}: {count}" for what, count in sorted(tally.items())))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
