# SPDX-License-Identifier: MIT
"""Random walks: SOFTVERBS_WALKS of them, by default as many as a minute allows."""

import os
from collections import Counter
from collections.abc import Callable

import pytest
from tests.netsim.pair import OPS
from tests.walk.walk import Walk, WalkError

DEFAULT = {True: 500, False: 150}  # compiled, uncompiled
#: What must have happened among many walks, or they do not test what they are there for.
HAPPENED = (
    "SEND", "SEND_IMM", "WRITE", "WRITE_IMM", "READ", "CAS", "FAA", "executed, and not known to be", "partly placed",
    "trouble err", "trouble reset", "trouble small", "trouble sqd", "fault lkey", "fault rkey", "fault unaligned",
    "status 4", "status 5", "status 9", "status 10", "status 12", "status 13",
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_walks(core_is_compiled: bool) -> None:
    """Completions + errors == work requests retired, and every byte is right, whatever the network and the peer do."""
    tally: Counter[str] = Counter()
    count = int(os.environ.get("SOFTVERBS_WALKS", DEFAULT[core_is_compiled]))
    for seed in range(count):
        walk = Walk(seed)
        walk.run()
        tally += walk.tally
    if count >= min(DEFAULT.values()):
        assert [what for what in HAPPENED if not tally[what]] == []
        # Retries may be exhausted by chance alone, as on any network; seldom, or something is wrong with them.
        assert tally["bad luck"] < tally["flows"] / 100


@pytest.mark.parametrize("seed", range(1000, 1010))
def test_a_seed_is_a_walk(seed: int) -> None:
    """Every frame, every completion, and the time of each: the same again."""
    assert Walk(seed).run() == Walk(seed).run()


def test_seeds_differ() -> None:
    assert len({Walk(seed).run() for seed in range(2000, 2008)}) == 8


# A walk that would not notice is worth nothing.


def spoil(walk: Walk, where: str) -> None:
    end = walk.ends[0]
    offset = {"source": 5, "target": end.to + 77, "cells": end.arrival - 9, "arrivals": end.region.size - 1}[where]
    end.region.view[offset] ^= 1


SPOILERS: dict[str, Callable[[Walk], object]] = {
    "source": lambda walk: spoil(walk, "source"),
    "target": lambda walk: spoil(walk, "target"),
    "cells": lambda walk: spoil(walk, "cells"),
    "arrivals": lambda walk: spoil(walk, "arrivals"),
    "guard before": lambda walk: walk.ends[0].region._front.__setitem__(-1, 0),
    "guard behind": lambda walk: walk.ends[0].region._behind.__setitem__(0, 0),
    "read-only region": lambda walk: walk.ends[0].readonly.put(0, b"x"),
    "shared cell": lambda walk: walk.shared[walk.sim.nodes[0]].put(7, b"\x40"),
    "beside the shared cell": lambda walk: walk.shared[walk.sim.nodes[0]].put(8, b"x"),
    **{f"counter {op}": lambda walk, op=op: walk.ends[0].counters[op].inc(1) for op in OPS},
    **{f"errors {op}": lambda walk, op=op: walk.ends[0].counters[op].inc_err(1) for op in OPS},
}


@pytest.mark.parametrize("what", SPOILERS)
def test_walk_notices(what: str) -> None:
    class Spoiled(Walk):
        def _finish(self) -> None:
            super()._finish()
            SPOILERS[what](self)

    for seed in range(3003, 3007):
        with pytest.raises(WalkError, match=f"seed {seed}: .*python -m tests.walk --seed {seed} -v"):
            Spoiled(seed).run()
