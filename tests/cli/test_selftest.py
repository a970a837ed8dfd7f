# SPDX-License-Identifier: MIT
"""``softverbs selftest``: the same code that moves 1 GiB, with less."""

import re
from typing import Any

import pytest
from tests.cli.command import invoke, run

from softverbs.cli import selftest
from softverbs.cli.selftest_sides import Settings


def test_it_passes() -> None:
    done = run("selftest", "--bytes", "1000003", "--piece", "5000", "--writes", "700")
    assert (done.code, done.err) == (0, "")
    assert "1,000,003 bytes by RDMA WRITE, one message: " in done.out
    assert "1,000,003 bytes by RDMA WRITE, 201 messages of 5,000: " in done.out
    assert "1,000,003 bytes by RDMA READ, one message: " in done.out
    assert "1,000,003 bytes by RDMA READ, 201 messages of 5,000: " in done.out
    assert "700 RDMA WRITEs of 8 bytes: " in done.out
    sums = re.findall(r"checksums ([0-9a-f]{32}) = ([0-9a-f]{32})", done.out)
    assert len(sums) == 5 and len(set(sums)) == 5 and all(first == second for first, second in sums)
    assert done.out.count("counted 201 completions, 0 errors; 0 completion queue entries left") == 4
    assert done.out.count("counted 700 completions, 0 errors; 0 completion queue entries left") == 2
    assert done.out.endswith("All as it should be\n")


def test_it_passes_with_loss() -> None:
    env = {"SOFTVERBS_FAULTS": "seed=2,drop=0.03,duplicate=0.03,reorder=0.03,corrupt=0.03"}
    assert run("selftest", "--bytes", "200K", "--piece", "9000", "--writes", "100", env=env).code == 0


def test_parts_can_be_left_out() -> None:
    done = run("selftest", "--bytes", "0", "--writes", "1")
    assert done.code == 0 and "RDMA READ" not in done.out
    done = run("selftest", "--bytes", "1", "--writes", "0")
    assert done.code == 0 and "RDMA WRITEs of 8 bytes" not in done.out


@pytest.mark.parametrize("words", [["--bytes", "2G"], ["--bytes", "x"], ["--piece", "0"], ["--piece", "1"]])
def test_wrong_arguments(words: list[str]) -> None:
    result = invoke("selftest", "--bytes", "1G", *words)
    assert result.exit_code == 2 and result.stderr.count("\n") == 1


def test_a_failure_of_a_side() -> None:
    done = run("selftest", "--bytes", "10", env={"SOFTVERBS_OPTIONS": "counter_ops=0"})
    assert done.code == 1
    assert "Failed to attach comp cntr" in done.err and done.err.count("\n") == 1


GOOD: dict[str, Any] = {"digest": "ab", "counts": (3, 0, 0, 0), "entries": 0, "took": 1.0}


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("digest", "cd", "checksums differ"),
        ("counts", (2, 0, 0, 0), "counted (2, 0, 0, 0), not (3, 0, 0, 0)"),
        ("counts", (3, 1, 0, 0), "counted (3, 1, 0, 0)"),
        ("counts", (3, 0, 1, 0), "counted (3, 0, 1, 0)"),
        ("entries", 1, "1 completions too many"),
    ],
)
def test_each_check_checks(name: str, value: object, words: str) -> None:
    step = selftest._steps(Settings(30, 10, 3, 1, ""))["write many"]
    assert selftest._judge(step, GOOD, GOOD) == []
    for sides in (({**GOOD, name: value}, GOOD), (GOOD, {**GOOD, name: value})):
        (wrong,) = selftest._judge(step, *sides)
        assert words in wrong
