# SPDX-License-Identifier: MIT
"""What is chosen once for a walk, and the trace of what happens in it."""

import hashlib
from dataclasses import dataclass
from random import Random

from tests.netsim import frames
from tests.netsim.sim import MS, SECOND, US, Node

from softverbs.core.base.limits import Options


class Trace:
    """Everything that happens, as a hash, and in words if ``say`` is given."""

    def __init__(self, say: bool = False) -> None:
        self.hash = hashlib.blake2b(digest_size=16)
        self.say = say

    def event(self, now: int, what: str) -> None:
        self.hash.update(f"{now} {what}\n".encode())
        if self.say:
            print(f"{(now - SECOND) / MS:12.6f} ms  {what}")

    def frame(self, now: int, node: Node, frame: bytes) -> None:
        self.hash.update(f"{now} {node.name} {len(frame)} ".encode())
        self.hash.update(frame)
        if self.say:
            bth = frames.bth(frame)
            code = next(name for name, number in frames.OPCODES.items() if number == bth.opcode)
            syndrome = f" syndrome {frame[12]:#04x}" if bth.opcode == frames.ACKNOWLEDGE else ""
            print(
                f"{(now - SECOND) / MS:12.6f} ms    {node.name} -> QP {bth.qpn:#x} {code} PSN {bth.psn:#x}"
                f" {len(frame)} bytes{' asks' if bth.ask else ''}{syndrome}"
            )


@dataclass
class Plan:
    """What is chosen once for a walk."""

    mtu: int
    nodes: int
    bare: bool
    connections: int
    epochs: int
    depth: int
    bytes_counted: bool
    faults: dict[str, float]
    options: Options
    attributes: dict[str, int]

    @classmethod
    def draw(cls, rng: Random) -> "Plan":
        bare = rng.random() < 0.03
        reads = rng.choice((1, 2, 4, 16))
        faults = {} if bare else dict.fromkeys(("drop", "duplicate", "reorder", "corrupt"), 0.1)
        if not bare and rng.random() < 0.3:
            faults["delay"] = rng.choice((20 * US, MS))
        return cls(
            mtu=rng.randint(1, 5),
            nodes=1 if bare or rng.random() < 0.1 else 2,
            bare=bare,
            connections=rng.choice((1, 1, 2)),
            epochs=rng.choice((1, 1, 2, 3)),
            depth=rng.choice((8, 16, 40)),
            bytes_counted=rng.random() < 0.25,
            faults=faults,
            options=Options(
                window=rng.choice((16384, 65536, 1 << 20)), explain=rng.choice(("always", "local", "never"))
            ),
            attributes={
                "max_rd_atomic": reads,
                "max_dest_rd_atomic": reads + rng.choice((0, 0, 3)),
                "min_rnr_timer": rng.choice((1, 6, 12)),
                "timeout": rng.choice((10, 12, 14)),
                "rnr_retry": rng.choice((7, 7, 7, 7, 6, 2)),
            },
        )
