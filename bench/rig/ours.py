# SPDX-License-Identifier: MIT
"""Our own cases: softverbs through its public Python API, compiled and uncompiled."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from rig import processes
from rig.model import (
    COMPLETION,
    LATENCY,
    LOCAL,
    LOCAL_RATE,
    RATE,
    SIZES,
    STREAM,
    TURNS,
    Case,
    Failed,
    Missing,
    Plan,
    as_figure,
    stream_unit,
)

SMALLEST = SIZES[0]
LARGEST = SIZES[-1]
PROBE = "import softverbs.core.memory.raw as m; print('uncompiled' if m.__file__.endswith('.py') else 'compiled')"


@dataclass(frozen=True)
class Build:
    """A build of softverbs and how a worker gets it.

    Attributes:
        name: ``compiled`` or ``uncompiled``, as the worker reports it.
        python: the interpreter to run.
        path: a folder to put first on the import path: uncompiled sources; None to use what is installed.
    """

    name: str
    python: str
    path: Path | None = None

    def subject(self, what: str) -> str:
        """The row's name: the compiled build is the one to expect, so only the other is named."""
        return f"softverbs: {what}" if self.name == "compiled" else f"softverbs, {self.name}: {what}"

    def environment(self) -> dict[str, str]:
        """What a worker's environment needs to load this build."""
        # A variable that demands one build would end the worker of the other.
        wanted = {"SOFTVERBS_CORE": ""}
        return wanted if self.path is None else {**wanted, "PYTHONPATH": str(self.path)}

    def need(self) -> None:
        """Raise Missing unless this build is here."""
        loaded = _loaded(self)
        if loaded != self.name:
            place = f"in {self.path.name}" if self.path else "installed"
            raise Missing(f"no {self.name} softverbs {place}: {loaded}")

    def run(self, script: str, *arguments: str) -> float:
        """Run a worker; returns seconds for one operation.

        Raises:
            Missing: this build is not here.
            Failed: the worker failed.
        """
        self.need()
        answer = processes.run_worker((self.python, str(processes.WORKERS / script), *arguments), self.environment())
        if answer["build"] != self.name:
            raise Failed(f"the worker loaded the {answer['build']} softverbs")
        return float(answer["seconds"])


@functools.cache
def _loaded(build: Build) -> str:
    """Which build an interpreter set up for ``build`` loads: compiled, uncompiled, or why it loads none."""
    process = processes.start((build.python, "-c", PROBE), environment=build.environment())
    try:
        return processes.finish(process).strip()
    except Failed as failure:
        return str(failure)


def _local(build: Build, mode: str, unit: str, size: int) -> Callable[[Plan], float]:
    """How to take a sample within one process."""

    def run(plan: Plan) -> float:
        arguments = ("--size", str(size), "--seconds", str(plan.seconds), "--core", str(plan.cores[1]))
        return as_figure(build.run("softverbs_local.py", mode, *arguments), unit, size)

    return run


def _pair(build: Build, mode: str, unit: str, size: int, *options: str) -> Callable[[Plan], float]:
    """How to take a sample between two processes."""

    def run(plan: Plan) -> float:
        cores = ("--core", str(plan.cores[1]), "--partner-core", str(plan.cores[0]))
        arguments = ("--size", str(size), "--seconds", str(plan.seconds), *cores, *options)
        return as_figure(build.run("softverbs_pair.py", mode, *arguments), unit, size)

    return run


def local_cases(build: Build) -> list[Case]:
    """Within one process."""
    made = [Case(LOCAL, build.subject(CQ), LATENCY, size, _local(build, "completion", LATENCY, size)) for size in SIZES]
    made.append(Case(LOCAL, build.subject(COUNTER), LATENCY, SMALLEST, _local(build, "counter", LATENCY, SMALLEST)))
    for subject, mode in ((POSTS, "posts"), (LISTS, "lists")):
        made.append(Case(LOCAL_RATE, build.subject(subject), RATE, SMALLEST, _local(build, mode, RATE, SMALLEST)))
    return made


def pair_cases(build: Build, sizes: Sequence[int] = SIZES, only: Collection[str] = ()) -> list[Case]:
    """Between two processes over UDP, at each of ``sizes``; all cases, or those named in ``only``."""
    made = []
    for size in sizes:
        unit = stream_unit(size)
        wanted: list[tuple[str, str, str, tuple[str, ...]]] = [
            (TURNS, POLLED, "polled", ()),
            (TURNS, EVENT, "event", ()),
            (TURNS, WAIT, "counter", ()),
            (COMPLETION, ASLEEP, "completion", ()),
            (COMPLETION, BUSY, "completion", ("--busy",)),
            (STREAM, WRITE, "write", ()),
            (STREAM, READ, "read", ()),
        ]
        if size == SMALLEST:
            wanted.append((STREAM, WRITE_LISTS, "lists", ()))
        for section, what, mode, options in wanted:
            if not only or what in only:
                measured = unit if section == STREAM else LATENCY
                run = _pair(build, mode, measured, size, *options)
                made.append(Case(section, build.subject(what), measured, size, run))
    return made


def cases(python: str, source: Path) -> list[Case]:
    """Every case of ours.

    Args:
        python: the interpreter in which softverbs is installed, compiled.
        source: the folder with the uncompiled package.
    """
    compiled, uncompiled = Build("compiled", python), Build("uncompiled", python, source)
    return [
        *local_cases(compiled),
        *local_cases(uncompiled),
        *pair_cases(compiled),
        *pair_cases(uncompiled, (SMALLEST, LARGEST), only=(POLLED, ASLEEP, WRITE)),
    ]


CQ = "write, CQ polled"
COUNTER = "write, counter read"
POSTS = "writes posted one by one"
LISTS = "writes posted in lists of 32"
POLLED = "write, polled"
EVENT = "write with immediate, CQ event"
WAIT = "write, counter wait"
ASLEEP = "write, target asleep"
BUSY = "write, target polling"
WRITE = "write"
WRITE_LISTS = "write, in lists"
READ = "read"
