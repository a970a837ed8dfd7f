# SPDX-License-Identifier: MIT
"""Runs rdma-core's own tests of verbs against softverbs, which stands in for pyverbs; nothing of them is changed.

    python3 tools/rdma_core_tests.py                    all suites, every file that is not for one maker's devices
    python3 tools/rdma_core_tests.py --suite 59 test_srq test_mr.MRTest.test_reg_mr
    python3 tools/rdma_core_tests.py --by-itself        by the suite's own run_tests.py, every file
    python3 tools/rdma_core_tests.py --update           keep the outcomes of this run as those that are expected

The newer suite is part of PyPI's source distribution of pyverbs 59.0, the older one of Debian's package
python3-pyverbs (rdma-core 44 in Debian 12). Both are fetched, once, into .cache. The older one runs a second time: on
the pyverbs of that package and our C driver, under ``softverbs run`` (``--suite driver``). Expected outcomes
are in tests/data/rdma_core_59.tsv, rdma_core_44.tsv and rdma_core_44_driver.tsv: a difference is shown and makes the
exit status 1. It is 77 where ``--suite driver`` cannot be run here.

Each file of tests runs in a process of its own, on the C driver all in one; a test that hangs or takes the process down
is noted, and the rest goes on without it. Some tests ask the command ``rdma`` for the device's network interface,
``ls`` and ``cat`` for what the kernel has about it in /sys. They know real devices only, so stand-ins of these names
are put on the tests' path; the interface is the loopback one.
"""

import argparse
import errno
import gzip
import hashlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tarfile
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
from tools import programs, rdma_core_driver  # noqa: E402

CACHE = ROOT / ".cache" / "rdma-core"
DATA = ROOT / "tests" / "data"
DOCUMENT = ROOT / "docs" / "rdma-core-tests.md"
WORKER = ROOT / "tools" / "rdma_core_worker.py"
DEVICE = "softverbs0"
SDIST = "pyverbs==59.0"
SDIST_SHA256 = "b30d56bb620b3d3b4301876f9a04c964be1c76cc6553a451e1465f1c6ac9f20e"
#: Files that are for the devices of one maker, or for a graphics card.
NOT_OURS = re.compile(r"test_(mlx5|efa|cuda)")
#: Reasons to skip that are the machine's, not the device's: elsewhere such a test may run.
OF_THE_MACHINE = (
    "Must be run by root",
    "To Create RAW QP must be done by root",
    "There are no huge pages",
    "Huge pages of size",
)
OUTCOMES = ("passed", "skipped", "failed")
#: Exit status where what was asked for cannot be run here.
CANNOT_RUN = 77


@dataclass(frozen=True)
class Suite:
    """A suite of tests, and what it is run on."""

    #: of what is kept of it: rdma-core's version, "_driver" behind it on the C driver
    name: str
    #: holds ``tests``
    folder: Path
    #: real pyverbs on the C driver; None: our own Python interface
    driver: rdma_core_driver.Driver | None = None

    @property
    def left_out(self) -> tuple[str, ...]:
        """Files that cannot run here."""
        return self.driver.left_out if self.driver else ()


@dataclass(frozen=True)
class Result:
    """How one test went."""

    test: str
    outcome: str
    reason: str = ""

    def __str__(self) -> str:
        return f"{self.outcome}{': ' if self.reason else ''}{self.reason}"

    @property
    def of_the_machine(self) -> bool:
        """Whether it was skipped for what the machine lacks."""
        return self.outcome == "skipped" and self.reason.startswith(OF_THE_MACHINE)


Results = dict[str, Result]


def say(text: str) -> None:
    print(f"-- {text}", flush=True)


# ---------------------------------------------------------------------------------------------------------------------
# Fetching


def fetch_sdist(python: str) -> Path:
    """The folder of the newer suite, which holds ``tests``; fetched from the package index if it is not there yet."""
    folder = CACHE / "59"
    if (folder / "tests" / "base.py").is_file():
        return folder
    say(f"fetching the source distribution of {SDIST} into .cache/rdma-core")
    with tempfile.TemporaryDirectory() as scratch:
        words = ["-m", "pip", "download", "-q", "--no-deps", "--no-binary", "pyverbs", "-d", scratch, SDIST]
        env = {**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
        if subprocess.run([python, *words], env=env, check=False).returncode:
            raise SystemExit(f"{SDIST} could not be fetched; a folder that holds its tests can be given by --folder")
        (archive,) = Path(scratch).glob("*.tar.gz")
        found = hashlib.sha256(archive.read_bytes()).hexdigest()
        if found != SDIST_SHA256:
            raise SystemExit(f"{archive.name} has SHA-256 {found}, {SDIST_SHA256} is expected")
        with tarfile.open(archive) as tar:
            inside = re.compile(r"[^/]+/rdma-core/tests/([^/]+\.py)")
            files = {match[1]: member for member in tar if member.isfile() and (match := inside.fullmatch(member.name))}
            fill(folder, ((name, tar.extractfile(member).read()) for name, member in files.items()))  # type: ignore[union-attr]
    return folder


def fetch_deb() -> Path | None:
    """The folder of Debian's suite, which holds ``tests``; None where it cannot be fetched."""
    try:
        package = programs.fetch("pyverbs")
        folder = CACHE / rdma_core_driver.version_of(package)
    except programs.Unavailable as error:
        say(f"Debian's suite is left out: {error}")
        return None
    if not (folder / "tests" / "base.py").is_file():
        tests = package / "usr" / "share" / "doc" / "rdma-core" / "tests"
        unpacked = ((path, gzip.decompress(path.read_bytes())) for path in tests.glob("*.py.gz"))
        plain = ((path, path.read_bytes()) for path in tests.glob("*.py"))
        fill(folder, ((path.name.removesuffix(".gz"), content) for path, content in [*plain, *unpacked]))
    return folder


def fill(folder: Path, files: Iterable[tuple[str, bytes]]) -> None:
    """Writes ``folder``/tests; a half-written one is never taken for a whole one, and two runs may do it at once."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        partial = Path(scratch, folder.name)
        (partial / "tests").mkdir(parents=True)
        for name, content in files:
            (partial / "tests" / name).write_bytes(content)
        try:
            partial.rename(folder)
        except OSError:
            if not (folder / "tests" / "base.py").is_file():  # another process was faster
                raise


# ---------------------------------------------------------------------------------------------------------------------
# Running


def stand_ins(folder: Path) -> None:
    """Commands that answer what the tests ask about the device: its network interface, and its partition key."""
    folder.mkdir(parents=True, exist_ok=True)
    link = [{"ifindex": 0, "ifname": DEVICE, "port": 1, "state": "ACTIVE", "physical_state": "LINK_UP", "netdev": "lo"}]
    address = [
        {"ifname": "lo", "address": "00:00:00:00:00:00", "addr_info": [{"family": "inet", "local": "127.0.0.1"}]}
    ]
    sys_folder = f"/sys/class/infiniband/{DEVICE}"
    scripts = {
        "rdma": f"echo '{json.dumps(link)}'",
        "cat": instead("cat", f"{sys_folder}/ports/1/pkeys/0", "0xffff"),
        "ls": instead("ls", f"{sys_folder}/device/net/", "lo"),
    }
    if not shutil.which("ip"):
        scripts["ip"] = f"echo '{json.dumps(address)}'"
    for name, script in scripts.items():
        (folder / name).write_text(f"#!/bin/sh\n{script}\n")
        (folder / name).chmod(0o755)


def instead(command: str, argument: str, answer: str) -> str:
    """A script that answers one question, and is the command of its name otherwise."""
    return f'if [ "$*" = {argument} ]; then echo {answer}; else exec {shutil.which(command)} "$@"; fi'


def environment(scratch: Path) -> dict[str, str]:
    """Environment variables of the tests: the stand-ins are in the path, nothing sets the device up.

    :param scratch: a folder for the stand-ins
    """
    stand_ins(scratch / "bin")
    env = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("SOFTVERBS_") or name == "SOFTVERBS_DRIVER"
    }
    env["PATH"] = f"{scratch / 'bin'}{os.pathsep}{env.get('PATH', os.defpath)}"
    env["PYTHONFAULTHANDLER"] = "1"
    if places := env.get("PYTHONPATH"):
        env["PYTHONPATH"] = os.pathsep.join(str(Path(place).resolve()) for place in places.split(os.pathsep))
    return env


@contextmanager
def alone() -> Iterator[None]:
    """Waits until no other run on this machine is at it: tests of the connection manager all listen on one port."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as mark:
        told = False
        while True:
            try:
                mark.bind("\0softverbs/rdma-core-tests")
                break
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise
            if not told:
                say("waiting for another run on this machine")
                told = True
            time.sleep(0.5)
        yield


class Runner:
    """Runs files of one suite, one after the other."""

    def __init__(self, args: argparse.Namespace, suite: Suite, log: Path) -> None:
        """
        :param args: the command line
        :param suite: to run
        :param log: what the tests print, and the tracebacks
        """
        self.args = args
        self.suite = suite
        self.log = log
        self.scratch = tempfile.TemporaryDirectory()
        self.out = Path(self.scratch.name, "report")
        self.env = environment(Path(self.scratch.name))
        self.words = [args.python, str(WORKER), "--folder", str(suite.folder)]
        if suite.driver:
            self.env |= suite.driver.variables
            self.words = [*suite.driver.words(args.python), *self.words[1:], "--pyverbs", str(suite.driver.folder)]
        self.found: Results = {}

    def run(self, modules: dict[str, list[str]]) -> Results:
        """The outcomes.

        :param modules: module -> ids of the tests to run, or their beginnings; none: all
        """
        with self.scratch, self.log.open("wb"):
            if self.suite.driver:  # one process for all: a device is started for each
                self.run_modules(list(modules), [name for module, only in modules.items() for name in only or [module]])
                return self.found
            for module, only in modules.items():
                with alone() if module == "tests.test_rdmacm" else nullcontext():
                    self.run_modules([module], only)
        return self.found

    def run_modules(self, modules: list[str], only: list[str]) -> None:
        """Runs files in one process, and in another one when that dies, until each of their tests has an outcome."""
        seen: list[str] = []
        while True:
            started, ended = self.attempt(modules, only, seen)
            if ended:
                return
            if started is None:  # it died between tests: nothing can be said about the rest
                self.note(Result(modules[-1], "failed", "the process died between two tests"), 0)
                return
            seen.append(started)

    def attempt(self, modules: list[str], only: list[str], seen: list[str]) -> tuple[str | None, bool]:
        """One process: what it was at when it died, and whether it came to its end."""
        self.out.write_text("")
        words = ["--out", str(self.out), "--modules", ",".join(modules)]
        words += ["--only", ",".join(only), "--without", ",".join(seen)]
        options = ["--dev", DEVICE, "--port", "1"]
        if self.args.gid is not None:
            options += ["--gid", str(self.args.gid)]
        with self.log.open("ab") as log:
            process = subprocess.Popen(
                [*self.words, *words, "--", *options],
                cwd=self.scratch.name, env=self.env, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True,
            )  # fmt: skip
        started: str | None = None
        ended = False
        since = time.monotonic()
        why = ""
        try:
            for line in self.lines(process):
                since = time.monotonic()
                if "start" in line:
                    started = str(line["start"])
                elif "end" in line:
                    ended = True
                else:
                    started = None
                    seen.append(str(line["test"]))
                    self.note(Result(str(line["test"]), str(line["outcome"]), str(line["reason"])), line["seconds"])
        except TimeoutError:
            why = f"hangs: no end after {self.args.timeout:g} s"
        finally:
            self.end(process)
        if started is not None:
            self.note(
                Result(started, "failed", why or f"the process died ({process.returncode})"), time.monotonic() - since
            )
        return started, ended

    def lines(self, process: "subprocess.Popen[bytes]") -> Iterator[dict[str, object]]:
        """Lines of the report as they come, to the end of the process; TimeoutError where none comes in time."""
        rest = ""
        latest = time.monotonic()
        with self.out.open() as out:
            while True:
                dead = process.poll() is not None
                *whole, rest = (rest + out.read()).split("\n")
                if whole:
                    latest = time.monotonic()
                yield from map(json.loads, whole)
                if dead:
                    return
                if time.monotonic() > latest + self.args.timeout:
                    raise TimeoutError
                time.sleep(0.02)

    @staticmethod
    def end(process: "subprocess.Popen[bytes]") -> None:
        """Ends the process and what it has started."""
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        process.wait(10)

    def note(self, result: Result, seconds: object) -> None:
        """Keeps an outcome, and shows it."""
        self.found[result.test] = result
        reason = f"  {result.reason[:110]}" if result.reason else ""
        print(f"{result.outcome:8} {float(str(seconds)):6.1f} s  {result.test}{reason}", flush=True)


def modules_of(suite: Suite, names: list[str]) -> dict[str, list[str]]:
    """Module -> ids of its tests that were named (none: all), for each file of tests to run."""
    folder = suite.folder
    files = [path.stem for path in sorted((folder / "tests").glob("test_*.py")) if not NOT_OURS.match(path.name)]
    if not names:
        return {f"tests.{name}": [] for name in files if name not in suite.left_out}
    wanted: dict[str, list[str]] = {}
    for name in names:
        words = name.removeprefix("tests.").removesuffix(".py").split(".")
        if not (folder / "tests" / f"{words[0]}.py").is_file():
            say(f"{words[0]} is not in this suite")
            continue
        only = wanted.setdefault(f"tests.{words[0]}", [])
        if len(words) > 1:
            only.append(f"tests.{'.'.join(words)}")
    return wanted


# ---------------------------------------------------------------------------------------------------------------------
# Comparing and writing down


def read(path: Path) -> Results:
    """A table of outcomes; empty where there is none."""
    if not path.is_file():
        return {}
    rows = [line.split("\t") for line in path.read_text().splitlines()[1:]]
    return {row[0]: Result(row[0], row[1], row[2] if len(row) > 2 else "") for row in rows}


def write(path: Path, results: Results) -> None:
    """Writes a table of outcomes, sorted."""
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = ["test\toutcome\treason"]
    rows += [f"{row.test}\t{row.outcome}\t{row.reason}".rstrip() for _, row in sorted(results.items())]
    path.write_text("\n".join(rows) + "\n")


def differs(expected: Result | None, found: Result | None) -> bool:
    """Whether an outcome is another than the expected one, as far as the device is concerned."""
    if expected is None or found is None:
        return True
    if expected.outcome == "failed" and found.outcome == "failed":
        return False  # the words may hold addresses
    if found.outcome != "failed" and (expected.of_the_machine or found.of_the_machine):
        return False
    return expected != found


def difference(expected: Results, found: Results, whole: bool) -> list[str]:
    """What is other than expected, readable.

    :param expected: outcomes that were kept
    :param found: outcomes of this run
    :param whole: whether every test was to run
    """
    names = sorted(expected.keys() | found.keys() if whole else found.keys())
    lines = []
    for name in names:
        old, new = expected.get(name), found.get(name)
        if new is None and ".".join(name.split(".")[:2]) in found:
            continue  # nothing of its file ran, and that is said once
        if differs(old, new):
            lines += [name, f"    expected  {old or 'no such test'}", f"    found     {new or 'it did not run'}"]
    return lines


def counts(results: Iterable[Result]) -> "Counter[str]":
    return Counter(result.outcome for result in results)


def by_file(results: Results) -> dict[str, list[Result]]:
    files: dict[str, list[Result]] = {}
    for name, result in sorted(results.items()):
        files.setdefault(name.split(".")[1], []).append(result)
    return files


def title(version: str) -> str:
    """What a suite is called in tables."""
    number, _, driver = version.partition("_")
    return f"rdma-core {number}{', its own pyverbs on the C driver' if driver else ''}"


def table(version: str, results: Results, other: Results) -> list[str]:
    """The outcomes of one suite as Markdown, a row for each file.

    :param version: the suite's name
    :param results: outcomes
    :param other: outcomes of Soft-RoCE; empty where they are not known
    """
    heads = [title(version), *OUTCOMES, *(["Soft-RoCE: passed"] if other else [])]
    rows = [*by_file(results).items(), ("**all**", list(results.values()))]
    lines = ["| " + " | ".join(heads) + " |", "|---" + "|--:" * (len(heads) - 1) + "|"]
    for name, of_file in rows:
        count = counts(of_file)
        cells = [name if "*" in name else f"`{name}`", *(str(count[outcome]) for outcome in OUTCOMES)]
        if other:
            cells.append(str(sum(1 for row in of_file if row.test in other and other[row.test].outcome == "passed")))
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def reasons(results: Results) -> list[str]:
    """Why tests are skipped, as Markdown, most frequent first."""
    count: Counter[str] = Counter(result.reason for result in results.values() if result.outcome == "skipped")
    return ["| Skipped | The test's own words |", "|--:|---|", *(f"| {n} | {why} |" for why, n in count.most_common())]


def document(suites: dict[str, Results]) -> None:
    """Puts the tables of the expected outcomes into the document, between its two marks."""
    start, end = "<!-- tables: written by tools/rdma_core_tests.py --update -->", "<!-- end of tables -->"
    text = DOCUMENT.read_text()
    other = read(DATA / "rdma_core_44_soft_roce.tsv")
    blocks = [
        "\n".join([*table(version, results, other if version != "59" else {}), "", *reasons(results)])
        for version, results in suites.items()
    ]
    before, _, rest = text.partition(start)
    after = rest.partition(end)[2]
    DOCUMENT.write_text(f"{before}{start}\n\n" + "\n\n".join(blocks) + f"\n\n{end}{after}")


# ---------------------------------------------------------------------------------------------------------------------


def run_suite(args: argparse.Namespace, suite: Suite) -> bool:
    """Runs one suite; whether everything was as expected."""
    version = suite.name
    say(f"{title(version)}: tests of {suite.folder}{', without ' if suite.left_out else ''}{', '.join(suite.left_out)}")
    modules = modules_of(suite, args.names)
    if args.names:
        with tempfile.NamedTemporaryFile(suffix=".log") as log:
            found = Runner(args, suite, Path(log.name)).run(modules)
            print(Path(log.name).read_text(errors="replace"))
    else:
        results = CACHE / "results" / f"{version}.tsv"
        results.parent.mkdir(parents=True, exist_ok=True)
        found = Runner(args, suite, results.with_suffix(".log")).run(modules)
        write(results, found)
        say(f"outcomes are in {results}, tracebacks in {results.with_suffix('.log')}")
    print("\n" + "\n".join(table(version, found, {})) + "\n")
    kept = DATA / f"rdma_core_{version}.tsv"
    if args.update:
        write(kept, {**(read(kept) if args.names else {}), **found})
        say(f"{kept.relative_to(ROOT)} is written")
        return True
    if not kept.is_file():
        say(f"no outcomes are kept for {title(version)}: nothing to compare with")
        return True
    expected = {name: row for name, row in read(kept).items() if name.split(".")[1] not in suite.left_out}
    lines = difference(expected, found, whole=not args.names)
    if lines:
        say(f"{title(version)}: other than {kept.relative_to(ROOT)} has it (--update keeps the new outcomes)")
        print("\n".join(lines))
    else:
        say(f"{title(version)}: all {len(found)} outcomes are as expected")
    return not lines


def run_by_itself(args: argparse.Namespace, folder: Path) -> bool:
    """Runs a suite by its own ``run_tests.py``, all in one process; whether nothing failed."""
    words = ["-m", "softverbs.as_pyverbs", str(folder / "tests" / "run_tests.py"), "--dev", DEVICE, "-v"]
    names = [f"tests.{name.removeprefix('tests.')}" for name in args.names]
    with tempfile.TemporaryDirectory() as scratch, alone():
        env = environment(Path(scratch))
        return subprocess.run([args.python, *words, *names], env=env, cwd=scratch, check=False).returncode == 0


def interpreter(name: str) -> str:
    """An interpreter's name or path, good in any folder. A link stays one, or it would lose its packages."""
    return os.path.abspath(name) if os.sep in name else name


def check_python(python: str) -> None:
    """Says which softverbs is tested; ends the run where there is none."""
    program = (
        "import json, softverbs as s, sys; print(json.dumps([s.core_build, s.__path__[0], sys.version.split()[0]]))"
    )
    done = subprocess.run([python, "-c", program], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{python} has no softverbs: {done.stderr.strip().splitlines()[-1]}")
    build, place, version = json.loads(done.stdout)
    say(f"softverbs ({build}) in {place}, Python {version}")


def suites_of(args: argparse.Namespace) -> list[Suite]:
    """The suites to run, as far as they can be had."""
    if args.folder:
        return [Suite(args.folder.name, args.folder.resolve())]
    suites: list[Suite] = []
    if args.suite in ("59", "all"):
        suites.append(Suite("59", fetch_sdist(args.python)))
    if args.suite != "59" and (folder := fetch_deb()):
        if args.suite in ("debian", "all"):
            suites.append(Suite(folder.name, folder))
        if args.suite in ("driver", "all") and (driver := on_driver(args.python)):
            suites.append(Suite(f"{folder.name}_driver", folder, driver))
    return suites


def on_driver(python: str) -> rdma_core_driver.Driver | None:
    """What Debian's suite needs to run on the C driver; None where it cannot."""
    try:
        return rdma_core_driver.prepare(python)
    except programs.Unavailable as error:
        say(f"Debian's suite on the C driver is left out: {error}")
        return None


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="a file, class or test: test_srq.SrqTestCase")
    parser.add_argument("--suite", choices=["59", "debian", "driver", "all"], default="all")
    parser.add_argument("--folder", type=Path, help="of the suite, which holds `tests`; by default it is fetched")
    parser.add_argument("--python", default=sys.executable, help="interpreter that has softverbs")
    parser.add_argument("--gid", type=int, help="index of the GID to use")
    parser.add_argument("--timeout", type=float, default=120, help="of one test, seconds")
    parser.add_argument("--by-itself", action="store_true", help="use the suite's own run_tests.py; compare nothing")
    parser.add_argument("--update", action="store_true", help="keep the outcomes as the expected ones")
    args = parser.parse_args(words)
    args.python = interpreter(args.python)
    check_python(args.python)
    suites = suites_of(args)
    if args.suite == "driver" and not suites:
        return CANNOT_RUN
    if args.by_itself:
        fine = [run_by_itself(args, suite.folder) for suite in suites if not suite.driver]
    else:
        fine = [run_suite(args, suite) for suite in suites]
    if args.update and not args.by_itself:
        document({version: read(DATA / f"rdma_core_{version}.tsv") for version in ("59", "44", "44_driver")})
    return 0 if all(fine) else 1


if __name__ == "__main__":
    sys.exit(main())
