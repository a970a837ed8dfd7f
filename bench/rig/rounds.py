# SPDX-License-Identifier: MIT
"""Take the samples: in rounds over all cases, so that a slow minute of the machine falls on all of them alike."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rig import cpu
from rig.model import Case, Failed, Missing, Plan, Reading, Row, Sample

RETRIES = 3
MAX_FAILURES = 2
CALM_AT_ONCE_S = 15.0


@dataclass
class Patience:
    """The seconds that the run may still spend on disturbances."""

    left: float

    def spend(self, seconds: float) -> None:
        """Take ``seconds`` off."""
        self.left = max(0.0, self.left - seconds)


def measure(case: Case, plan: Plan) -> Sample:
    """Take one sample of ``case`` between two snapshots of the machine's CPU accounts."""
    before = cpu.snapshot()
    value = case.run(plan)
    usage = cpu.between(before, cpu.snapshot())
    mean = None
    if isinstance(value, Reading):
        value, mean = value.value, value.mean
    return Sample(value, usage.foreign_share, usage.steal_share, not usage.disturbed(plan.limit), mean)


def take_sample(row: Row, plan: Plan, patience: Patience) -> None:
    """Add one clean sample to ``row``; if the machine never gets quiet enough, a disturbed one, marked as such."""
    for attempt in range(1 + RETRIES):
        if patience.left > 0:
            patience.spend(max(0.0, cpu.wait_for_calm(plan.limit, min(CALM_AT_ONCE_S, patience.left)) - 1.0))
        start = time.monotonic()
        sample = measure(row.case, plan)
        if sample.clean or attempt == RETRIES or patience.left <= 0:
            row.samples.append(sample)
            return
        patience.spend(time.monotonic() - start)


def run(cases: Sequence[Case], plan: Plan, say: Callable[[str], None]) -> list[Row]:
    """Measure every case ``plan.rounds`` times.

    Args:
        cases: what to measure; each round goes through them in this order.
        plan: how much, and what counts as disturbed.
        say: takes one line of progress.

    Returns:
        One row for each case, also for those that could not be measured.
    """
    rows = [Row(case, wanted=plan.rounds) for case in cases]
    patience = Patience(plan.patience)
    start = time.monotonic()
    for number in range(1, plan.rounds + 1):
        done = number - 1
        if done and (time.monotonic() - start) * number / done > plan.budget:
            say(f"no time for round {number}")
            for row in rows:
                row.wanted = done
            break
        for row in rows:
            if row.missing or row.failures >= MAX_FAILURES:
                continue
            try:
                take_sample(row, plan, patience)
            except Missing as reason:
                row.missing, row.note = True, str(reason)
            except Failed as reason:
                row.failures, row.note = row.failures + 1, str(reason)
            say(f"round {number}/{plan.rounds}  {describe(row)}")
        if patience.left <= 0:
            say("patience is used up: disturbed samples are no longer repeated, only marked")
    return rows


def describe(row: Row) -> str:
    """One line about a row's last sample."""
    case = row.case
    name = f"{case.section}: {case.subject}, {case.size} B"
    if row.missing or (row.note and not row.samples):
        return f"{name}: {'missing' if row.missing else 'failed'}: {row.note}"
    last = row.samples[-1]
    mark = "" if last.clean else f"  (disturbed: {last.foreign_share:.0%} foreign, {last.steal_share:.0%} stolen)"
    return f"{name}: {last.value:.4g} {case.unit}{mark}"
