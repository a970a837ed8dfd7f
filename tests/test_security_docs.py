# SPDX-License-Identifier: MIT
"""docs/security.md names a test for each promise: they exist."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
_ROW = re.compile(r"^\| (\d+) \| (.+) \| (.+) \|$", re.MULTILINE)


def promises() -> list[tuple[str, str, str]]:
    return _ROW.findall((ROOT / "docs" / "security.md").read_text())


def test_every_promise_is_numbered_and_shown_by_a_test() -> None:
    assert [int(number) for number, _, _ in promises()] == list(range(1, len(promises()) + 1))
    assert len(promises()) > 10


@pytest.mark.parametrize(("number", "tests"), [(number, tests) for number, _, tests in promises()])
def test_the_tests_of_a_promise_exist(number: str, tests: str) -> None:
    file = ""
    named = re.findall(r"`([^`]*)::(\w+)`", tests)
    assert named
    for path, name in named:
        file = path or file
        assert re.search(rf"^def {name}\(", (ROOT / file).read_text(), re.MULTILINE), f"{number}: {file}::{name}"


def test_the_variables_that_make_trials_longer_exist() -> None:
    text = (ROOT / "docs" / "security.md").read_text()
    for name in re.findall(r"SOFTVERBS_[A-Z]+", text):
        files = [*ROOT.glob("tests/**/*.py"), *ROOT.glob("driver/*.c"), *ROOT.glob("src/**/*.py")]
        assert any(name in file.read_text() for file in files), name
