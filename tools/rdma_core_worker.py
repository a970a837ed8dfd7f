# SPDX-License-Identifier: MIT
"""Runs files of rdma-core's tests in a process of their own, and says on a file how each test went.

Started by tools/rdma_core_tests.py, with the interpreter that has softverbs or real pyverbs; not meant to be called by
hand. Each line of the report is a JSON object: ``{"start": id}``, ``{"test": id, "outcome": ..., "reason": ...,
"seconds": ...}``, and ``{"end": modules}`` after the last one.
"""

import argparse
import importlib
import json
import multiprocessing
import os
import sys
import time
import traceback
import types
import unittest
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, TextIO

DEVICE = "softverbs0"
LONGEST_REASON = 300  # characters
ErrorInfo = tuple[type[BaseException], BaseException, TracebackType] | tuple[None, None, None]


class Report(unittest.TestResult):
    """Writes each test's outcome down as soon as it is known."""

    def __init__(self, out: TextIO) -> None:
        super().__init__()
        self.out = out
        self.outcome = ""
        self.reason = ""
        self.began = 0.0

    def say(self, **what: object) -> None:
        """Writes one line."""
        self.out.write(json.dumps(what) + "\n")

    def startTest(self, test: unittest.TestCase) -> None:
        """A test begins."""
        super().startTest(test)
        self.outcome = self.reason = ""
        self.began = time.monotonic()
        self.say(start=test.id())

    def stopTest(self, test: unittest.TestCase) -> None:
        """A test has ended: no news is good news."""
        super().stopTest(test)
        seconds = round(time.monotonic() - self.began, 3)
        self.say(test=test.id(), outcome=self.outcome or "passed", reason=self.reason, seconds=seconds)

    def note(self, outcome: str, reason: str) -> None:
        """Remembers how the running test went; a failure outweighs the rest."""
        if self.outcome != "failed":
            self.outcome, self.reason = outcome, " ".join(reason.split())[:LONGEST_REASON]

    def addSkip(self, test: unittest.TestCase, reason: str) -> None:
        """A test, or a class of them, was left out."""
        super().addSkip(test, reason)
        self.note("skipped", str(reason))
        if not hasattr(test, "_testMethodName"):  # a whole class
            self.say(test=test.id(), outcome="skipped", reason=self.reason, seconds=0)

    def addFailure(self, test: unittest.TestCase, err: ErrorInfo) -> None:
        """An assertion failed."""
        self.failed(test, err)

    def addError(self, test: unittest.TestCase, err: ErrorInfo) -> None:
        """Anything else was raised."""
        self.failed(test, err)

    def addSubTest(self, test: unittest.TestCase, subtest: unittest.TestCase, err: ErrorInfo | None) -> None:
        """One of a test's parts has ended."""
        if err is not None:
            self.failed(test, err)

    def failed(self, test: unittest.TestCase, err: ErrorInfo) -> None:
        """A failure, with its traceback for the log."""
        traceback.print_exception(*err)
        self.note("failed", "".join(traceback.format_exception_only(err[0], err[1])))
        if not hasattr(test, "_testMethodName"):  # setUpClass and the like
            self.say(test=test.id(), outcome="failed", reason=self.reason, seconds=0)


def flat(suite: Any) -> Iterator[unittest.TestCase]:
    for test in suite:
        if isinstance(test, unittest.TestSuite):
            yield from flat(test)
        else:
            yield test


def show_interface() -> None:
    """Lets ``os.path.exists`` find the folder of the device's network interface, which the kernel has for its own."""
    exists = os.path.exists
    os.path.exists = lambda path: path == f"/sys/class/infiniband/{DEVICE}/device/net/" or exists(path)


def use_pyverbs(folder: Path | None) -> None:
    """Settles what ``pyverbs`` is.

    :param folder: of the real one; None: softverbs stands in for it
    """
    if folder is None:
        import softverbs

        softverbs.install_as_pyverbs()
        return
    sys.path.insert(0, str(folder))
    device = importlib.import_module("pyverbs.device")
    assert device.__file__ and device.__file__.endswith(".so") and Path(device.__file__).is_relative_to(folder)


def prepare(folder: Path, options: list[str]) -> None:
    """Makes the suite's modules importable, and gives it its command line.

    Its package ``tests`` imports every file when it is imported, those for single makers' devices and graphics cards
    among them; so the package is set up without that.
    """
    multiprocessing.set_start_method("fork")  # what the tests rely on; the default until Python 3.14
    show_interface()
    sys.path[:0] = [str(folder / "tests"), str(folder)]
    package = types.ModuleType("tests")
    package.__path__ = [str(folder / "tests")]
    sys.modules["tests"] = package
    parser = importlib.import_module("args_parser").parser
    sys.argv[1:] = options
    parser.parse_args()
    sys.argv[1:] = []


def load(modules: list[str], report: Report) -> Iterator[unittest.TestCase]:
    """The tests of some files; one that cannot be imported is a failure."""
    for module in modules:
        try:
            yield from flat(unittest.defaultTestLoader.loadTestsFromModule(importlib.import_module(module)))
        except Exception as error:
            cannot_be_imported(module, error, report)


def cannot_be_imported(module: str, error: Exception, report: Report) -> None:
    """Says so, with the traceback for the log."""
    traceback.print_exception(error)
    report.say(test=module, outcome="failed", reason=f"cannot be imported: {error!r}"[:LONGEST_REASON], seconds=0)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--pyverbs", type=Path, help="folder of the real one; without it softverbs stands in")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--modules", required=True, help="separated by commas")
    parser.add_argument("--only", default="", help="ids, separated by commas, or their beginnings")
    parser.add_argument("--without", default="", help="ids, separated by commas")
    parser.add_argument("options", nargs="*", help="for the suite")
    args = parser.parse_args()
    modules, only, without = [
        [word for word in words.split(",") if word] for words in (args.modules, args.only, args.without)
    ]
    with args.out.open("a", buffering=1) as out:
        report = Report(out)
        try:
            use_pyverbs(args.pyverbs)
            prepare(args.folder, args.options)
        except Exception as error:
            for module in modules:
                cannot_be_imported(module, error, report)
        else:
            tests = [test for test in load(modules, report) if test.id() not in without]
            if only:
                tests = [test for test in tests if any(f"{test.id()}.".startswith(f"{word}.") for word in only)]
            unittest.TestSuite(tests).run(report)
        report.say(end=args.modules)


if __name__ == "__main__":
    main()
