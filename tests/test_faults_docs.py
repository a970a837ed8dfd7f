# SPDX-License-Identifier: MIT
"""docs/faults.md: its programs run, and its lists are complete."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from softverbs.faults import VERBS, Plan
from softverbs.faults.rules import _KINDS, CHOICE, SETTINGS, kind_of

TEXT = (Path(__file__).resolve().parent.parent / "docs" / "faults.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
PROGRAMS = [block for block in BLOCKS if "def test_" in block]


def test_there_are_three_worked_examples() -> None:
    assert len(PROGRAMS) == 3


def test_the_examples_pass(tmp_path: Path) -> None:
    for number, program in enumerate(PROGRAMS):
        (tmp_path / f"test_example_{number}.py").write_text(program)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "error", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stdout + done.stderr
    assert sum(len(re.findall("^def test_", program, re.MULTILINE)) for program in PROGRAMS) == 4
    assert "9 passed" in done.stdout


def test_the_first_lines_run(capsys: pytest.CaptureFixture[str]) -> None:
    exec(compile(BLOCKS[0], "docs/faults.md", "exec"), {})
    assert capsys.readouterr().out == "seed=1,create_cq:nth=3:errno=ENOMEM\n"


def test_every_verb_stands_in_the_table() -> None:
    rows = [line for line in TEXT.splitlines() if re.match(r"\| `[a-z_]+`.* \| E[A-Z]+ \|", line)]
    listed = {verb for row in rows for verb in re.findall(r"`([a-z_]+)`", row.split("|")[1])}
    assert listed == set(VERBS)
    for row in rows:
        _, verbs, code, facts, _ = row.split("|")
        for verb in re.findall(r"`([a-z_]+)`", verbs):
            rule = Plan(f"{verb}:errno={code.strip()}").rules[0]
            assert rule.options["errno"] == VERBS[verb].code, verb
            for fact in VERBS[verb].facts:
                assert f"`{fact}=" in facts, (verb, fact)


def test_everything_that_rules_can_say_is_said() -> None:
    for name, kind in _KINDS.items():
        assert f"`{name}" in TEXT
        for option in kind.options:
            assert f"{option}=" in TEXT, (name, option)
    for name in (*CHOICE, *SETTINGS):
        assert f"`{name}" in TEXT


@pytest.mark.parametrize("text", re.findall(r"`([a-z_]+(?:\*)?(?::[a-z_]+=[^`:]+)+)`", TEXT))
def test_every_rule_in_the_text_is_one(text: str) -> None:
    assert kind_of(text.partition(":")[0]) is not None
    Plan(text)
