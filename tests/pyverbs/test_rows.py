# SPDX-License-Identifier: MIT
"""Each row of the contract has a test that names it, and each test that names a row names one that exists."""

import ast
from collections import Counter
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parent.parent
LISTED = (TESTS / "data" / "semantics_rows.txt").read_text().splitlines()
ROWS = [line for line in LISTED if line and not line.startswith("#")]


def named() -> Counter[str]:
    """How many test functions name each row with ``@pytest.mark.row``."""
    found: Counter[str] = Counter()
    for path in sorted(TESTS.rglob("test_*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.FunctionDef) or not node.name.startswith("test_"):
                continue
            for mark in node.decorator_list:
                if isinstance(mark, ast.Call) and ast.unparse(mark.func) == "pytest.mark.row":
                    found[ast.literal_eval(mark.args[0])] += 1
    return found


NAMED = named()


@pytest.mark.parametrize("row", ROWS)
def test_a_row_has_a_test(row: str) -> None:
    assert NAMED[row] >= 1


def test_rows_that_tests_name_are_listed_once() -> None:
    assert len(set(ROWS)) == len(ROWS)
    assert set(NAMED) - set(ROWS) == set()
