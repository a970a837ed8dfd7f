# SPDX-License-Identifier: MIT
"""Walks over the control verbs: SOFTVERBS_CONTROL_WALKS of them."""

import os
from collections import Counter

import pytest
from tests.walk.control import MAKES, ControlWalk
from tests.walk.model import WalkError

DEFAULT = {True: 300, False: 40}  # compiled, uncompiled


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_control_walks(core_is_compiled: bool) -> None:
    tally: Counter[str] = Counter()
    for seed in range(int(os.environ.get("SOFTVERBS_CONTROL_WALKS", DEFAULT[core_is_compiled]))):
        walk = ControlWalk(seed)
        walk.run()
        tally += walk.tally
    for kind in MAKES:
        assert tally[f"made {kind}"] == tally[f"closed {kind}"] > 0
    assert tally["busy"] > 100 and tally["completions"] > 100


def test_a_seed_is_a_walk() -> None:
    assert ControlWalk(7).run() == ControlWalk(7).run() != ControlWalk(8).run()


@pytest.mark.parametrize("kind", ["user too many", "user too few", "left"])
def test_control_walk_notices(kind: str) -> None:
    class Spoiled(ControlWalk):
        def _close_all(self) -> None:
            pd = next(thing for thing in self.things[self.nodes[0]] if thing.kind == "pd")
            if kind == "left":
                self.nodes[0].cq()
            else:
                pd.core.use(1 if kind == "user too many" else -1)
            super()._close_all()

    with pytest.raises(WalkError, match=r"seed 3: .*python -m tests.walk --control --seed 3 -v"):
        Spoiled(3).run()
