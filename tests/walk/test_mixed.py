# SPDX-License-Identifier: MIT
"""Mixed walks: SOFTVERBS_MIXED_WALKS of them."""

import os
from collections import Counter
from collections.abc import Callable

import pytest
from tests.netsim.pair import OPS
from tests.netsim.sim import QPT_UC, QPT_UD
from tests.walk.mixed import MixedWalk
from tests.walk.model import WalkError
from tests.walk.receivers import Arrival

DEFAULT = {True: 150, False: 8}  # compiled, uncompiled
#: What must have happened among many walks.
HAPPENED = (
    *(f"RC {word}" for word in ("SEND", "SEND_IMM", "SEND_INV", "WRITE", "WRITE_IMM", "READ", "CAS", "FAA", "FLUSH")),
    *(f"INI {word}" for word in ("SEND", "SEND_IMM", "WRITE", "WRITE_IMM", "READ", "CAS", "FAA")),
    *(f"UC {word}" for word in ("SEND", "SEND_IMM", "WRITE", "WRITE_IMM", "BIND", "LOCAL_INV", "received")),
    "RC ATOMIC_WRITE", "RC BIND", "RC LOCAL_INV", "UD SEND", "UD SEND_IMM", "UD received", "recovered", "broken lines",
    "fault lkey", "fault rkey", "trouble err", "trouble reset", "trouble small", "trouble sqd", "trouble port",
    "status 4", "status 5", "status 10", "status 12", "event 9", "event 10", "event 15", "event 16",
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_mixed_walks(core_is_compiled: bool) -> None:
    """Every completion, every counter and every byte, on all types of queue pair beside each other."""
    tally: Counter[str] = Counter()
    count = int(os.environ.get("SOFTVERBS_MIXED_WALKS", DEFAULT[core_is_compiled]))
    for seed in range(count):
        walk = MixedWalk(seed)
        walk.run()
        tally += walk.tally
    if count >= 200:
        assert [what for what in HAPPENED if not tally[what]] == []
        assert tally["bad luck"] <= tally["lines"] / 100


@pytest.mark.parametrize("seed", range(1000, 1002))
def test_a_seed_is_a_walk(seed: int) -> None:
    assert MixedWalk(seed).run() == MixedWalk(seed).run()


def test_seeds_differ() -> None:
    assert len({MixedWalk(seed).run() for seed in range(2000, 2003)}) == 3


# A walk that would not notice is worth nothing.


def with_datagrams(walk: MixedWalk, kind: int) -> None:
    """A message has arrived, and no receive tells it."""
    side = next(side for side in walk.sides if side.kind == kind)
    side.receiver.due.append(Arrival(0))  # type: ignore[union-attr]


def flip(region: object, offset: int) -> None:
    region.view[offset] ^= 1  # type: ignore[attr-defined]


SPOILERS: dict[str, Callable[[MixedWalk], object]] = {
    "source": lambda walk: flip(walk.sides[0].end.memory, 5),
    "target": lambda walk: flip(walk.sides[0].end.memory, walk.sides[0].end.memory.size - 1),
    "guard": lambda walk: walk.sides[0].own.region._front.__setitem__(-1, 0),  # type: ignore[attr-defined]
    "receives of a shared queue": lambda walk: [
        flip(kit.pool.region, slot.start) for kit in walk.kits.values() for slot in kit.pool.posted.values()
    ],
    "guard of a shared queue": lambda walk: next(iter(walk.kits.values())).xpools[0].region._behind.__setitem__(0, 0),  # type: ignore[attr-defined]
    "a receive too few": lambda walk: next(iter(walk.kits.values())).pool.posted.clear(),
    "messages of datagrams": lambda walk: with_datagrams(walk, QPT_UD),
    "messages of UC": lambda walk: with_datagrams(walk, QPT_UC),
    **{f"counter {op}": lambda walk, op=op: walk.sides[0].end.counters[op].inc(1) for op in OPS},  # type: ignore[misc]
    **{f"errors {op}": lambda walk, op=op: walk.sides[0].end.counters[op].inc_err(1) for op in OPS},  # type: ignore[misc]
}


@pytest.mark.parametrize("what", SPOILERS)
def test_mixed_walk_notices(what: str) -> None:
    class Spoiled(MixedWalk):
        def _finish(self) -> None:
            super()._finish()
            SPOILERS[what](self)

    seed = 3034  # lines of every type
    with pytest.raises(WalkError, match=f"seed {seed}: .*python -m tests.walk --mixed --seed {seed} -v"):
        Spoiled(seed).run()


@pytest.mark.parametrize("what", ["lost", "twice", "other bytes"])
def test_mixed_walk_notices_what_the_device_gets_wrong(what: str) -> None:
    """A frame that the walk hears and the device does not, or the other way round, or otherwise."""

    class Deaf(MixedWalk):
        heard = 0

        def _hear(self, node: object, dgid: bytes, frame: bytes) -> None:  # type: ignore[override]
            ours = frame[0] >> 5 in (1, 3) and bool(self.by_number)
            self.heard += ours
            if ours and self.heard % 10 == 0:
                if what == "lost":
                    return
                if what == "twice":
                    super()._hear(node, dgid, frame)  # type: ignore[arg-type]
                elif len(frame) > 60:
                    other = frame[:-5] + bytes([frame[-5] ^ 1]) + frame[-4:]
                    self.genuine.add(other[:4] + other[5:])
                    frame = other
            super()._hear(node, dgid, frame)  # type: ignore[arg-type]

    found = 0
    for seed in range(4000, 4004):
        try:
            Deaf(seed).run()
        except WalkError:
            found += 1
    assert found >= 2
