# SPDX-License-Identifier: MIT
"""The README's program does what the README says."""

import re
from pathlib import Path

import pytest

README = Path(__file__).resolve().parent.parent / "README.md"


def test_the_first_program_runs(capsys: pytest.CaptureFixture[str]) -> None:
    program = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)[0]
    exec(compile(program, "README.md", "exec"), {})
    first, second = capsys.readouterr().out.splitlines()
    assert first == "b'hello, verbs' 1"
    assert "key 0x1234 is not registered" in second
