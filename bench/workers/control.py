# SPDX-License-Identifier: MIT
"""What the worker scripts share: the line between the two sides, pinning, and how many operations fill a sample.

The workers import nothing from the harness: each may run under another Python than it does.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any


class Line:
    """A line to the other side; it carries JSON values, and the end of one side ends the other."""

    def __init__(self, endpoint: socket.socket) -> None:
        # Two files, because a text file that is written forgets what it has read ahead.
        self._reader = endpoint.makefile("r", encoding="utf-8")
        self._writer = endpoint.makefile("w", encoding="utf-8")

    def send(self, value: Any) -> None:
        """Send one JSON value."""
        self._writer.write(json.dumps(value) + "\n")
        self._writer.flush()

    def receive(self) -> Any:
        """Wait for one JSON value; ends this process if the other side is gone."""
        text = self._reader.readline()
        if not text:
            sys.exit("the other side of the measurement ended")
        return json.loads(text)


def start_partner(script: str, arguments: Sequence[str], core: int) -> tuple[subprocess.Popen[bytes], Line]:
    """Start the passive side, ``script`` with ``--line FD`` and ``arguments``, pinned to ``core``."""
    near, far = socket.socketpair()
    os.set_inheritable(far.fileno(), True)
    command = [sys.executable, script, "--line", str(far.fileno()), "--core", str(core), *arguments]
    process = subprocess.Popen(command, pass_fds=[far.fileno()], stdout=sys.stderr)
    far.close()
    return process, Line(near)


def join_line(descriptor: int) -> Line:
    """The passive side's end of the line that ``start_partner`` made."""
    return Line(socket.socket(fileno=descriptor))


def pin(core: int) -> None:
    """Bind this process, with the threads that it starts later, to one core."""
    os.sched_setaffinity(0, {core})


def enough(run: Callable[[int], float], seconds: float, step: int = 1, most: int = 1 << 24) -> int:
    """Find how many operations fill a sample; what it runs for that is the warm-up.

    Args:
        run: does so many operations and returns the seconds they took.
        seconds: the time to fill.
        step: the answer is a multiple of this.
        most: the answer is not above this.

    Returns:
        The number of operations.
    """
    count = step
    while True:
        elapsed = run(count)
        if elapsed >= seconds / 10 or count >= most:
            break
        count = min(most, 4 * count)
    wanted = int(count * seconds / max(elapsed, 1e-9))
    return max(step, min(most, wanted) // step * step)


def per_operation(run: Callable[[int], float], seconds: float, step: int = 1, most: int = 1 << 24) -> float:
    """Warm up, then time a sample of about ``seconds``; returns seconds for one operation."""
    count = enough(run, seconds, step, most)
    return run(count) / count


def clock() -> float:
    """The time in seconds, for differences."""
    return time.perf_counter()


def answer(**values: Any) -> None:
    """Hand the figures to the harness: one JSON object on standard output."""
    print(json.dumps(values), flush=True)


def timed(operate: Callable[[int], None]) -> Callable[[int], float]:
    """Turn "do so many operations" into "do so many and return the seconds they took"."""

    def run(count: int) -> float:
        start = time.perf_counter()
        operate(count)
        return time.perf_counter() - start

    return run
