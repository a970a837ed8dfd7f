# SPDX-License-Identifier: MIT
"""The command line as a whole: help, versions, and how failures are told."""

import errno
import sys

import click
import pytest
from tests.cli.command import invoke, run

import softverbs
from softverbs import cli
from softverbs.pyverbs.pyverbs_error import PyverbsRDMAError

COMMANDS = ("run", "serve", "devinfo", "pingpong", "perf", "demo", "selftest")


def test_help_names_every_command() -> None:
    result = invoke()
    assert result.exit_code == 0
    assert result.output == invoke("--help").output
    for name in COMMANDS:
        assert name in result.output


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help(name: str) -> None:
    result = invoke(name, "-h")
    assert result.exit_code == 0
    assert f"Usage: softverbs {name} [OPTIONS]" in result.output


def test_version_names_the_build() -> None:
    done = run("--version")
    assert done == (0, f"softverbs {softverbs.__version__}, {softverbs.core_build} core\n", "")


def test_start_is_silent_with_warnings_as_errors() -> None:
    done = run()
    assert (done.code, done.err) == (0, "")


@pytest.mark.parametrize(
    "words",
    [("nonsense",), ("devinfo", "--nonsense"), ("devinfo", "-i", "x"), ("perf", "nonsense"), ("demo", "-n", "0")],
)
def test_wrong_words_are_one_line_and_2(words: tuple[str, ...]) -> None:
    result = invoke(*words)
    assert result.exit_code == 2
    assert result.stderr.count("\n") == 1 and result.stderr.startswith("softverbs")
    assert "--help" in result.stderr and result.stdout == ""


@pytest.mark.parametrize(
    ("error", "line", "code"),
    [
        (PyverbsRDMAError("no way", errno.EINVAL), "softverbs: no way. Errno: 22, Invalid argument", 1),
        (OSError(errno.ENOENT, "No such file", "x.pcap"), "softverbs: x.pcap: No such file", 1),
        (OSError(errno.EIO, "broken"), "softverbs: broken", 1),
        (KeyboardInterrupt(), "softverbs: interrupted", 130),
        (ValueError("a\nb"), "softverbs: unexpected ValueError: a b (SOFTVERBS_DEBUG=1 shows where)", 1),
    ],
)
def test_failures_are_one_line(error: BaseException, line: str, code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SOFTVERBS_DEBUG", raising=False)
    monkeypatch.setattr(cli._Group, "get_command", lambda *_: click.Command("fails", callback=lambda: fail(error)))
    result = invoke("fails")
    assert (result.stderr.strip(), result.exit_code) == (line, code)


def test_debug_shows_the_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        cli._Group, "get_command", lambda *_: click.Command("fails", callback=lambda: fail(ValueError("where")))
    )
    result = invoke("fails", env={"SOFTVERBS_DEBUG": "1"})
    assert isinstance(result.exception, ValueError)


def fail(error: BaseException) -> None:
    raise error


def test_import_of_the_package_does_not_import_the_command_line() -> None:
    import subprocess

    code = "import sys, softverbs.pyverbs.qp; print({'click', 'rich', 'softverbs.cli'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"
