# SPDX-License-Identifier: MIT
"""Where the time of the C face goes: what the device and the two programs do while perftest runs.

``python -m bench profile`` runs each load three times, on one device or with ``--two`` on two, and says

- from a run that nothing watches: the CPU time of each process, in user space and in the kernel, how long it waited for
  a core, how often it was stopped for another, and the turns of the device's loop;
- from a run under strace: the device's system calls, by count, bytes and errors. strace slows the device down, so the
  time in a call says only which calls are the dear ones;
- from a run under perf: the functions in which the device's samples fell.

strace or perf may be missing: that part then says so. With two devices, one of them is looked at: ``--two client``
or ``--two server``.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rig import cpu, debian, perftest, processes
from rig.model import Failed, Missing, size_name
from rig.ours import Build
from rig.report import table

# The loads by name: the tool of perftest, the size, operations in an iteration (both sides of a ping-pong do one), and
# about how long an iteration takes, in microseconds.
LOADS: Mapping[str, tuple[str, int, int, float]] = {
    "write_lat": ("ib_write_lat", 8, 2, 100.0),
    "send_lat": ("ib_send_lat", 8, 2, 100.0),
    "write_bw": ("ib_write_bw", 65536, 1, 150.0),
    "read_bw": ("ib_read_bw", 65536, 1, 150.0),
    "send_bw": ("ib_send_bw", 65536, 1, 150.0),
}
USUAL = ("write_lat", "send_lat", "write_bw")
SIDES = ("server", "client")
LEAST = 100
# Tracing takes about this much longer.
TRACED = 0.2
# What is left out of the tables: calls with less than these shares of the time and for each operation.
LEAST_SHARE, LEAST_COUNT = 0.01, 0.05
FUNCTIONS = 16
PLACES = 8
SAMPLES_A_SECOND = 997
# How much of a string, and of an array, strace writes: every message of a recvmmsg(2) has to be there.
ELEMENTS = "64"
END_S = 10.0
TIMEOUT_S = 120.0
# Says the environment of a program on the device at a socket; the libraries before are given too.
ENVIRONMENT = (
    "import json, sys; from softverbs.server import driver as d; "
    "print(json.dumps(d.environment({'LD_LIBRARY_PATH': sys.argv[1]}, sys.argv[2], d.folder())))"
)
# The system calls whose result is a number of bytes.
MOVING = frozenset(
    ("process_vm_readv", "process_vm_writev", "read", "readv", "recvfrom", "recvmsg", "sendmsg", "sendto", "write")
)
# Their time is not work: the device waits in them.
SLEEPS = frozenset(("clock_nanosleep", "poll", "restart_syscall", "rt_sigtimedwait"))
MESSAGES = frozenset(("recvmmsg", "sendmmsg"))
_CALL = re.compile(r"^(?:\d+\s+)?(?:<\.\.\. )?(\w+)(?:\(| resumed>)(.*?)\s+= (-?\d+|0x[0-9a-f]+|\?)(?: |$)(.*)$")
_TIME = re.compile(r"<(\d+\.\d+)>$")
_FUNCTION = re.compile(r"^\s*(\d+\.\d+)%\s+(\S+)\s+\[(.)\]\s+(.+?)(?:\s+-)*\s*$")


@dataclass(frozen=True)
class Setup:
    """What is run.

    Attributes:
        build: softverbs, with its driver.
        load: one of LOADS.
        side: with two devices, ``client`` or ``server``: whose is looked at; with one, None.
        seconds: about how long a run takes.
    """

    build: Build
    load: str
    side: str | None
    seconds: float


@dataclass
class Call:
    """What is known of a system call by its name."""

    count: int = 0
    errors: int = 0
    bytes: int = 0
    seconds: float = 0.0


@dataclass(frozen=True)
class Account:
    """A process's time during a run, in seconds, and how often it left its core."""

    user: float
    system: float
    waited: float
    voluntary: int
    involuntary: int


@dataclass
class Watched:
    """A run of a load: its duration, accounts by process, and the device's counts."""

    operations: int
    seconds: float
    accounts: dict[str, Account] = field(default_factory=dict)
    turns: dict[str, int] = field(default_factory=dict)


def parse_strace(lines: Iterable[str]) -> dict[str, Call]:
    """Sum up what ``strace -T`` has written."""
    found: dict[str, Call] = {}
    for line in lines:
        match = _CALL.match(line)
        if match is None:  # the first half of a call that another thread interrupted; a signal
            continue
        name, arguments, result, rest = match.groups()
        call = found.setdefault(name, Call())
        call.count += 1
        if timed := _TIME.search(rest):
            call.seconds += float(timed[1])
        if result.startswith("-"):
            call.errors += 1
        elif name in MOVING and result != "?":
            call.bytes += int(result)
        elif name in MESSAGES:
            call.bytes += sum(map(int, re.findall(r"msg_len=(\d+)", arguments)))
    return found


def parse_perf(lines: Iterable[str]) -> list[tuple[float, str, str]]:
    """Per cent, place (a library's name, or ``kernel``) and function, from ``perf report --stdio``, most first."""
    found = []
    for line in lines:
        if match := _FUNCTION.match(line):
            share, place, level, function = match.groups()
            found.append((float(share), "kernel" if level == "k" else place, function))
    return sorted(found, reverse=True)


class _Device:
    """A device in a process of its own, with a socket; it tells what it has done."""

    def __init__(self, build: Build, folder: Path, name: str) -> None:
        self.socket = folder / name
        worker = processes.WORKERS / "counted_device.py"
        self.process = processes.start((build.python, str(worker), str(self.socket)), None, build.environment())
        try:
            self._line()
        except BaseException:
            self.end()
            raise

    def _line(self) -> dict[str, float]:
        assert self.process.stdout is not None
        text = self.process.stdout.readline()
        if not text:
            processes.finish(self.process)
            raise Failed("the device has ended")
        answer: dict[str, float] = json.loads(text)
        return answer

    def say(self) -> dict[str, float]:
        """What it has done so far."""
        self.process.send_signal(signal.SIGUSR1)
        return self._line()

    def end(self) -> None:
        """End it."""
        self.process.terminate()
        with contextlib.suppress(Failed):
            processes.finish(self.process, END_S)
        processes.end(self.process)


@contextlib.contextmanager
def _devices(setup: Setup) -> Iterator[dict[str, _Device]]:
    """The devices of the server and of the client: twice the same, or two."""
    with tempfile.TemporaryDirectory(prefix="softverbs-") as folder, contextlib.ExitStack() as stack:
        made = {}
        for name in SIDES if setup.side else ("both",):
            made[name] = _Device(setup.build, Path(folder), name)
            stack.callback(made[name].end)
        yield made if setup.side else dict.fromkeys(SIDES, made["both"])


def _waited(pid: int) -> float:
    """How long a process's first thread has waited for a core, in seconds; -1 if it has ended."""
    try:
        with open(f"/proc/{pid}/schedstat", encoding="ascii") as file:
            return int(file.readline().split()[1]) / 1e9
    except (OSError, IndexError, ValueError):
        return -1.0


def _end_of(sides: Mapping[str, subprocess.Popen[str]], timeout: float) -> dict[str, Account]:
    """Wait for the end of the programs; their accounts.

    Raises:
        Failed: one failed, or they take longer than ``timeout`` seconds.
    """
    waited, found = dict.fromkeys(sides, 0.0), {}
    limit = time.monotonic() + timeout
    while len(found) < len(sides):
        for name, process in sides.items():
            if name in found:
                continue
            waited[name] = max(waited[name], _waited(process.pid))
            ended, status, used = os.wait4(process.pid, os.WNOHANG)
            if not ended:
                continue
            process.returncode = os.waitstatus_to_exitcode(status)
            output, errors = process.communicate()
            if process.returncode:
                raise Failed(f"the {name} ended with {process.returncode}: {(errors or output).strip()[-200:]}")
            found[name] = Account(used.ru_utime, used.ru_stime, waited[name], used.ru_nvcsw, used.ru_nivcsw)
        if time.monotonic() > limit:
            raise Failed(f"no end after {timeout:g} s")
        time.sleep(0.01)
    return found


def _between(before: Mapping[str, float], after: Mapping[str, float]) -> tuple[Account, dict[str, int]]:
    """A device's account and counts, from one saying to the next."""
    difference = {name: after[name] - before[name] for name in after}
    account = Account(
        difference["user"],
        difference["system"],
        difference["waited"],
        int(difference["voluntary"]),
        int(difference["involuntary"]),
    )
    return account, {name: int(difference[name]) for name in ("turns", "working", "naps")}


def watch(setup: Setup, watcher: Sequence[str] = ()) -> Watched:
    """Run a load once.

    Args:
        setup: what is run.
        watcher: a command that watches the device, to which ``-p PID`` is added; it ends by SIGINT.

    Raises:
        Missing: something is not here.
        Failed: a process failed.
    """
    perftest.need_driver(setup.build)
    tool, size, each, guess = LOADS[setup.load]
    program, variables = debian.find(tool, debian.PERFTEST)
    count = max(LEAST, int(setup.seconds * 1e6 / guess))
    port = processes.free_port()
    words = (program, "-F", "-s", str(size), "-n", str(count), "-p", str(port))
    with _devices(setup) as devices, contextlib.ExitStack() as stack:
        environments = {side: _program_environment(setup.build, variables, devices[side].socket) for side in SIDES}
        sides = {"server": processes.start(words, None, environments["server"])}
        stack.callback(processes.end, sides["server"])
        processes.wait_for_listener(port, sides["server"])
        device = devices[setup.side or "client"]
        if watcher:
            stack.enter_context(_watched_by((*watcher, "-p", str(device.process.pid))))
        before = device.say()
        start = time.monotonic()
        sides["client"] = processes.start((*words, "127.0.0.1"), None, environments["client"])
        stack.callback(processes.end, sides["client"])
        programs = _end_of(sides, TIMEOUT_S)
        seconds = time.monotonic() - start
        account, turns = _between(before, device.say())
        return Watched(count * each, seconds, {"device": account, **programs}, turns)


def _program_environment(build: Build, variables: Mapping[str, str], socket: Path) -> dict[str, str]:
    """What a program's environment needs to be on the device at ``socket``."""
    before = variables.get("LD_LIBRARY_PATH", os.environ.get("LD_LIBRARY_PATH", ""))
    found: dict[str, str] = json.loads(
        processes.run((build.python, "-c", ENVIRONMENT, before, str(socket)), build.environment())
    )
    return {**variables, **found}


@contextlib.contextmanager
def _watched_by(command: Sequence[str]) -> Iterator[None]:
    """Runs a command that watches a process, from when it has attached."""
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    try:
        # Neither says anything to wait for. Should it attach later, it misses the begin of the setting up only.
        time.sleep(0.5)
        if process.poll() is not None:
            assert process.stderr is not None
            raise Missing(process.stderr.read().decode(errors="replace").strip() or f"{command[0]} ended")
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(END_S)
        process.kill()
        process.communicate()


def _need(name: str) -> str:
    """A tool's path; Missing without it."""
    found = shutil.which(name)
    if found is None:
        raise Missing(f"{name} is not installed")
    return found


def system_calls(setup: Setup) -> tuple[Watched, dict[str, Call]]:
    """Run a load with strace on the device: its system calls by name."""
    strace = _need("strace")
    with tempfile.NamedTemporaryFile("r", encoding="utf-8", errors="replace") as file:
        shorter = dataclasses.replace(setup, seconds=setup.seconds * TRACED)
        watched = watch(shorter, (strace, "-f", "-T", "-s", ELEMENTS, "-o", file.name))
        return watched, parse_strace(file)


def functions(setup: Setup) -> list[tuple[float, str, str]]:
    """Run a load with perf on the device: the functions in which its samples fell."""
    perf = _need("perf")
    with tempfile.TemporaryDirectory() as folder:
        data = str(Path(folder, "data"))
        record = (perf, "record", "-q", "-e", "cpu-clock", "-F", str(SAMPLES_A_SECOND), "-o", data)
        watch(setup, record)
        report = (perf, "report", "-i", data, "--stdio", "--sort", "dso,symbol")
        return parse_perf(processes.run(report).splitlines())


def _accounts(watched: Watched) -> list[str]:
    """The table of the processes."""
    operations = watched.operations

    def each(seconds: float) -> str:
        return f"{seconds * 1e6 / operations:.3g}"

    lines = []
    for name, account in watched.accounts.items():
        switches = f"{account.voluntary / operations:.3g} / {account.involuntary / operations:.3g}"
        lines.append([name, each(account.user), each(account.system), each(account.waited), switches])
    turns = watched.turns
    heading = ("process", "user, µs", "kernel, µs", "waited for a core, µs", "gave its core away / lost it")
    return [
        f"Nothing attached: {operations} operations in {watched.seconds:.2f} s, "
        f"{each(watched.seconds)} µs each with start-up. For one operation:",
        "",
        *table(heading, lines),
        f"The device's loop: {turns['turns'] / operations:.3g} turns an operation, "
        f"{turns['working'] / max(1, turns['turns']):.0%} of them with work, and {turns['naps']} sleeps in all.",
        "",
    ]


def _calls(watched: Watched, calls: Mapping[str, Call]) -> list[str]:
    """The table of the system calls."""
    total = sum(call.seconds for name, call in calls.items() if name not in SLEEPS) or 1.0
    lines = []
    for name, call in sorted(calls.items(), key=lambda item: -item[1].seconds):
        good = call.count - call.errors
        size = f"{call.bytes / good:.0f}" if call.bytes and good else ""
        share = call.seconds / total
        if share >= LEAST_SHARE or call.count >= watched.operations * LEAST_COUNT:
            time_said = "asleep" if name in SLEEPS else f"{share:.0%}"
            lines.append([name, f"{call.count / watched.operations:.3g}", str(call.errors), size, time_said])
    head = (
        f"The device's system calls, under strace ({watched.operations} operations, their setting up included; "
        f"{watched.turns.get('turns', 0) / watched.operations:.3g} turns an operation):"
    )
    return [head, "", *table(("call", "for an operation", "errors", "bytes a call", "of the time"), lines)]


def _functions(found: Sequence[tuple[float, str, str]]) -> list[str]:
    """The table of the functions."""
    lines = [[f"{share:.1f} %", place, f"`{function}`"] for share, place, function in found[:FUNCTIONS]]
    places: dict[str, float] = {}
    for share, place, _ in found:
        places[place] = places.get(place, 0.0) + share
    most = sorted(places.items(), key=lambda item: -item[1])[:PLACES]
    text = ", ".join(f"{place} {share:.0f} %" for place, share in most)
    return [f"The device's samples, by perf: {text}.", "", *table(("share", "where", "function"), lines)]


def describe(setup: Setup) -> list[str]:
    """A load's part of the report.

    Raises:
        Missing: something is not here.
        Failed: a process failed.
    """
    tool, size, _, _ = LOADS[setup.load]
    place = f"two devices, the {setup.side}'s" if setup.side else "one device"
    text = [f"## {tool}, {size_name(size)}, {place}", ""]
    before = cpu.snapshot()
    watched = watch(setup)
    usage = cpu.between(before, cpu.snapshot())
    text += _accounts(watched)
    text += [f"Other work meanwhile: {usage.foreign_share:.0%} of a core; stolen: {usage.steal_share:.0%}.", ""]
    try:
        text += _calls(*system_calls(setup))
    except (Failed, Missing) as reason:
        text += [f"no system calls: {reason}", ""]
    try:
        text += _functions(functions(setup))
    except (Failed, Missing) as reason:
        text += [f"no functions: {reason}", ""]
    return text


def main(given: Sequence[str]) -> int:
    """The command; its exit status."""
    parser = argparse.ArgumentParser(
        "bench profile", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("load", nargs="*", help=f"{', '.join(LOADS)} (by default {', '.join(USUAL)})")
    parser.add_argument(
        "--two", choices=SIDES, metavar="SIDE", help="two devices, over UDP; whose is looked at: client or server"
    )
    parser.add_argument("--seconds", type=float, default=2.0, help="about how long each run takes (%(default)s)")
    parser.add_argument("--python", default=sys.executable, help="interpreter with softverbs, compiled (this one)")
    options = parser.parse_args(given)
    if unknown := [load for load in options.load if load not in LOADS]:
        parser.error(f"there is no load {unknown[0]}: {', '.join(LOADS)}")
    build = Build("compiled", options.python)
    for load in options.load or USUAL:
        try:
            print("\n".join(describe(Setup(build, load, options.two, options.seconds))), flush=True)
        except (Failed, Missing) as reason:
            print(f"{load} is not measured: {reason}", file=sys.stderr)
            return 1
    return 0
