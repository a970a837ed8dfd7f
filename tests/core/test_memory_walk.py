# SPDX-License-Identifier: MIT
"""A random walk over regions and windows, held against a model of a few lines: who may touch which byte.

The model keeps, for each live key, the domain, the range, the rights and the queue pair; nothing of the table's
inner workings. After each step random accesses are tried on both.
"""

import random
from dataclasses import dataclass
from typing import Any

import pytest
from tests.netsim.sim import LOCAL_WRITE, MW_BIND, REMOTE_ATOMIC, REMOTE_READ, REMOTE_WRITE, Node, Sim

from softverbs.core.base.errors import PyverbsRDMAError
from softverbs.core.base.limits import Options
from softverbs.core.memory.regions import VALUES

ON_DEMAND, ZERO_BASED = 64, 32
RIGHTS = (0, LOCAL_WRITE, REMOTE_WRITE, REMOTE_READ, REMOTE_ATOMIC)
QPS = (3, 4)
STEPS = 400


class Pages:
    """Memory of an on-demand region: odd blocks of 256 bytes are not there."""

    def allows(self, address: int, length: int, writing: bool) -> bool:
        return all(block % 2 == 0 for block in range(address >> 8, (address + length - 1 >> 8) + 1))


@dataclass
class Model:
    """What an entry is."""

    core: Any
    pd: Any
    address: int = 0
    iova: int = 0
    length: int = 0
    access: int = 0
    checked: bool = False
    window: int = 0
    qp: int = 0
    parent: "Model | None" = None
    live: bool = True

    def translate(self, va: int, length: int, right: int, pd: Any, qp: int) -> int:
        """What the table must answer."""
        peer = right > LOCAL_WRITE
        if not self.live or pd is not self.pd or (self.window and not peer):
            return 0
        if right & ~self.access or (self.window == 2 and self.qp != qp):
            return 0
        if not self.iova <= va <= va + length <= self.iova + self.length:
            return 0
        address = self.address + va - self.iova
        return 0 if self.checked and not Pages().allows(address, length, right not in (0, REMOTE_READ)) else address


class Walk:
    """The table, its models, and the dice."""

    def __init__(self, node: Node, seed: int) -> None:
        self.dice = random.Random(seed)
        self.regions: Any = node.port.regions
        self.pds = [node.pd(), node.pd()]
        self.memory: list[Model] = []
        self.windows: list[Model] = []
        self.past: list[int] = []

    def rights(self) -> int:
        return self.dice.choice((0, 1, 1 | 2, 4, 15, 15, 1 | 8)) | self.dice.choice((0, ZERO_BASED))

    def register(self) -> None:
        access = self.rights() | self.dice.choice((0, MW_BIND, MW_BIND))
        checked = self.dice.random() < 0.3
        address, length = self.dice.randrange(1, 1 << 12) << 8, self.dice.randrange(1, 2048)
        iova = self.dice.choice((address, self.dice.randrange(1 << 40)))
        pd = self.dice.choice(self.pds)
        kind = VALUES["CHECKED" if checked else "PLAIN"]
        core = self.regions.register(pd, address, length, access, iova, Pages(), kind)
        base = 0 if access & ZERO_BASED else iova
        self.memory.append(Model(core, pd, address, base, length, access, checked))

    def deregister(self) -> None:
        model = self.pick(self.memory)
        if model is None:
            return
        bound = any(window.live and window.parent is model for window in self.windows)
        if bound:
            with pytest.raises(PyverbsRDMAError, match="windows are bound"):
                self.regions.deregister(model.core)
            return
        self.past.append(model.core.lkey)
        self.regions.deregister(model.core)
        self.memory.remove(model)

    def change(self) -> None:
        model = self.pick(self.memory)
        if model is None:
            return
        pd = self.dice.choice((None, *self.pds))
        access, kind = self.rights() | MW_BIND, VALUES["PLAIN"]
        try:
            self.regions.reregister(model.core, pd, 0x5000, 512, access, "holder", kind)
        except PyverbsRDMAError:
            assert any(window.live and window.parent is model for window in self.windows)
            return
        model.pd, model.address, model.length, model.access = pd or model.pd, 0x5000, 512, access
        model.iova, model.checked = (0 if access & ZERO_BASED else 0x5000), False

    def window(self) -> None:
        pd, kind = self.dice.choice(self.pds), self.dice.choice((1, 2))
        self.windows.append(Model(self.regions.allocate_window(pd, kind), pd, window=kind, live=False))

    def free_window(self) -> None:
        model = self.pick(self.windows)
        if model is not None:
            self.past.append(model.core.rkey)
            self.regions.deregister(model.core)
            self.windows.remove(model)

    def bind(self) -> None:
        model, parent = self.pick(self.windows), self.pick(self.memory)
        if model is None or parent is None:
            return
        access = self.rights() & ~LOCAL_WRITE
        length = self.dice.choice((0, self.dice.randrange(1, 1024), parent.length))
        va = parent.iova + self.dice.choice((0, 0, self.dice.randrange(2048)))
        qp, pd = self.dice.choice(QPS), self.dice.choice(self.pds)
        key = model.core.rkey & ~0xFF | (model.core.rkey + 1) & 0xFF
        inside = va + length <= parent.iova + parent.length
        writing = access & (REMOTE_WRITE | REMOTE_ATOMIC)
        fits = model.pd is parent.pd is pd and not (model.window == 2 and (model.live or length == 0))
        if length:
            fits = fits and bool(parent.access & MW_BIND) and inside and (not writing or bool(parent.access & 1))
        old = model.core.rkey
        refusal = self.regions.bind(model.core, parent.core, va, length, access, key, qp, pd)
        assert (refusal == "") == fits, refusal
        if refusal:
            assert model.core.rkey == old
            return
        self.past.append(old)
        model.live, model.qp = length > 0, qp
        model.parent = parent if length else None
        model.address, model.length, model.access = parent.address + va - parent.iova, length, access
        model.iova, model.checked = (0 if access & ZERO_BASED else va), parent.checked

    def invalidate(self) -> None:
        model = self.pick([*self.windows, *self.memory])
        if model is None:
            return
        qp, pd = self.dice.choice(QPS), self.dice.choice(self.pds)
        fits = model.window == 2 and pd is model.pd and (not model.live or qp == model.qp)
        assert (self.regions.invalidate(model.core.rkey, pd, qp) == "") == fits
        if fits:
            model.live, model.parent = False, None

    def pick(self, models: list[Model]) -> "Model | None":
        return self.dice.choice(models) if models else None

    def look(self) -> None:
        """Random accesses, to what is there and to keys of the past."""
        for _ in range(8):
            model = self.pick([*self.memory, *self.windows])
            right, pd, qp = self.dice.choice(RIGHTS), self.dice.choice(self.pds), self.dice.choice(QPS)
            if model is not None:
                va = max(0, model.iova + self.dice.choice((0, -1, self.dice.randrange(2048), model.length - 1)))
                length = self.dice.choice((1, 8, 256, model.length or 1, self.dice.randrange(1, 2048)))
                key = model.core.rkey
                arguments = (key, va, length, right, pd, qp)
                expected = model.translate(va, length, right, pd, qp)
                assert self.regions.translate(*arguments) == expected
                if not expected:
                    assert f"{key:#x}" in self.regions.explain(*arguments)
        for key in self.past[-4:]:
            live = {each.core.rkey for each in (*self.memory, *self.windows)}
            if key not in live:
                assert self.regions.translate(key, 0x5000, 1, 0, self.pds[0], 3) == 0

    def count(self) -> None:
        """What the table counts is what there is."""
        assert self.regions.active == len(self.memory) + len(self.windows)
        for pd in self.pds:
            assert pd.users == sum(each.pd is pd for each in (*self.memory, *self.windows))
        for model in self.memory:
            assert model.core.windows == sum(each.live and each.parent is model for each in self.windows)


@pytest.mark.parametrize("seed", range(8))
def test_walk(seed: int) -> None:
    with Sim() as sim:
        walk = Walk(sim.node(options=Options.from_mapping({"max_mr": 64})), seed)
        steps = [
            walk.register, walk.register, walk.deregister, walk.change, walk.window, walk.free_window,
            walk.bind, walk.bind, walk.bind, walk.bind, walk.invalidate,
        ]  # fmt: skip
        for _ in range(STEPS):
            try:
                walk.dice.choice(steps)()
            except PyverbsRDMAError as error:
                assert "in use" in error.reason or "need LOCAL_WRITE" in error.reason, error  # noqa: PT017
            walk.look()
            walk.count()
        for model in (*walk.windows, *walk.memory):
            walk.regions.deregister(model.core)
        for pd in walk.pds:
            pd.close()
