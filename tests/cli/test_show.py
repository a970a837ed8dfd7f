# SPDX-License-Identifier: MIT
"""Tables and progress, on a terminal and elsewhere."""

import io
import os
import pty
import sys

import pytest

from softverbs.cli import show

ROWS = [("one", 1, "x"), ("twenty-one", 21, "yyyy")]


class Terminal(io.StringIO):
    """A text stream that says that it is a terminal."""

    def isatty(self) -> bool:
        return True


def test_plain_table(capsys: pytest.CaptureFixture[str]) -> None:
    show.table(("", "number", "z"), ROWS)
    expected = "                number     z\n    one              1     x\n    twenty-one      21  yyyy\n"
    assert capsys.readouterr().out == expected


def test_plain_table_of_words(capsys: pytest.CaptureFixture[str]) -> None:
    show.table(("a", "b"), [("1", "long"), ("2", "s")], numbers=False)
    assert capsys.readouterr().out == "    a  b\n    1  long\n    2  s\n"


def test_table_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    show.table(("", "[number]", "z"), ROWS)
    text = terminal.getvalue()
    assert "╭" in text and "[number]" in text and "twenty-one" in text


def test_no_progress_where_there_is_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with show.progress("work", 10) as advance:
        advance(5)
    assert capsys.readouterr() == ("", "")


def test_progress_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    with show.progress("work", 10) as advance:
        for done in range(1000):
            advance(done)
    text = terminal.getvalue()
    assert "work" in text and text.count("work") < 10  # not a thousand times


def test_colours_on_a_terminal_only(capsys: pytest.CaptureFixture[str]) -> None:
    show.heading("title")
    show.verdict(True, "good")
    show.verdict(False, "bad")
    assert capsys.readouterr().out == "title\ngood\nbad\n"


def test_demo_on_a_real_terminal() -> None:
    """Through a pseudo-terminal: tables are drawn."""
    master, slave = pty.openpty()
    import subprocess

    command = [sys.executable, "-m", "softverbs", "demo", "-n", "20"]
    env = {**os.environ, "TERM": "xterm", "COLUMNS": "100"}
    process = subprocess.Popen(command, stdout=slave, stderr=slave, stdin=slave, env=env)
    os.close(slave)
    text = b""
    while True:
        try:
            part = os.read(master, 65536)
        except OSError:  # EIO: the other end is closed
            break
        if not part:
            break
        text += part
    os.close(master)
    assert process.wait(60) == 0
    assert "╭".encode() in text and b"All as it should be" in text
