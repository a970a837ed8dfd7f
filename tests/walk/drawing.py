# SPDX-License-Identifier: MIT
"""What a mixed walk draws: requests, and what they will have done."""

from collections import deque
from typing import TYPE_CHECKING

from tests.netsim.pair import (
    WR_ATOMIC_WRITE,
    WR_CAS,
    WR_FAA,
    WR_READ,
    WR_SEND,
    WR_SEND_IMM,
    WR_SEND_INV,
    WR_WRITE,
    WR_WRITE_IMM,
)
from tests.netsim.sim import QPT_RC, QPT_UD, QPT_XRC_SEND
from tests.walk.receivers import Pool
from tests.walk.sides import DRAWS, Side, Work

if TYPE_CHECKING:
    from tests.walk.mixed import MixedWalk


def draw(walk: "MixedWalk", side: Side, last: bool = False) -> Work | None:
    """The next request of a side; None where there is nothing to be done."""
    rng = walk.rng
    draws = DRAWS[side.kind]
    opcode = rng.choices(tuple(draws), tuple(draws.values()))[0]
    if last:
        opcode = WR_SEND if side.kind == QPT_UD else WR_WRITE
    most = min(3 * walk.mtu, 4096) if side.kind == QPT_UD else 3 * walk.mtu
    kind = rng.random()
    length = 0 if kind < 0.1 else rng.randint(1, 100) if kind < 0.5 else rng.randint(1, most)
    if opcode in (WR_CAS, WR_FAA, WR_ATOMIC_WRITE):
        length = 8
    work = Work(len(side.works), opcode, length, signaled=last or rng.random() < 0.5)
    if work.number - side.retired > 12:
        work.signaled = True
    if opcode in (WR_SEND_IMM, WR_WRITE_IMM):
        work.imm = rng.getrandbits(32)
    if side.kind == QPT_UD:
        _aim_datagram(walk, side, work)
    else:
        _aim(walk, side, work)
    if walk.fault is not None and walk.fault[0] is side:
        _spoil(walk, work, walk.fault[1])
    return _place(walk, side, work)


def _aim_datagram(walk: "MixedWalk", side: Side, work: Work) -> None:
    work.target = walk.rng.choice([other for other in walk.sides if other.kind == QPT_UD])
    work.group = walk.rng.random() < 0.2


def _aim(walk: "MixedWalk", side: Side, work: Work) -> None:
    """Where it goes in the peer's memory, and by which key; sometimes it ends the peer's window instead."""
    rng, peer = walk.rng, side.peer
    assert peer is not None
    work.key = peer.end.memory.key
    low, high = peer.source, peer.end.memory.size
    window = peer.window
    if window is not None and peer.open_state == "open" and rng.random() < 0.4:
        if side.kind == QPT_RC and rng.random() < 0.25:
            work.opcode, work.imm, work.length = WR_SEND_INV, window.rkey, min(work.length, 3 * walk.mtu)
            peer.open_state = "closing"
        elif work.opcode in (WR_WRITE, WR_WRITE_IMM, WR_READ):
            work.key = window.rkey
            low, high = peer.opening[0], sum(peer.opening)
            work.length = min(work.length, high - low)
    if work.opcode in (WR_CAS, WR_FAA, WR_ATOMIC_WRITE):
        work.to = peer.end.memory.size - 8 * rng.randint(1, 8)
        work.add, work.swap = rng.getrandbits(64), rng.getrandbits(64)
        now = bytes(side.ahead[work.to : work.to + 8])
        if work.opcode == WR_CAS and rng.random() < 0.6:
            work.add = int.from_bytes(now, "little")
    elif not work.sends:
        work.to = rng.randint(low, high - work.length)


def _spoil(walk: "MixedWalk", work: Work, fault: str) -> None:
    if (fault == "lkey" and not work.sends and not work.writes) or (
        fault == "rkey" and (work.sends or not work.length)
    ):
        return
    if work.opcode == WR_SEND_INV:
        return
    work.fault = fault
    work.length = max(work.length, 1) if work.opcode != WR_ATOMIC_WRITE else 8
    if fault == "rkey":
        work.key ^= 0x5500
    walk.fault = None
    walk.tally[f"fault {fault}"] += 1


def _place(walk: "MixedWalk", side: Side, work: Work) -> Work | None:
    """Its local side: what it carries, or where its result goes; and what it will have done."""
    rng = walk.rng
    if work.sends or work.writes:
        parts = [work.length] if work.length < 4 or work.fault else _split(walk, work.length)
        for size in parts:
            work.places.append((rng.randint(0, side.source - size), size))
        work.data = b"".join(bytes(side.mirror[offset : offset + size]) for offset, size in work.places)
    elif work.reads:
        work.result = side.results.slot([work.length], [rng.randrange(12)])
        if work.result is None:
            return None
        work.places = work.result.places
    if side.reliable:
        _foresee(walk, side, work)
    return work


def _split(walk: "MixedWalk", length: int) -> list[int]:
    cut = walk.rng.randint(0, length)
    return [cut, length - cut]


def _foresee(walk: "MixedWalk", side: Side, work: Work) -> None:
    """Reliable lines do everything, once, in order."""
    peer = side.peer
    assert peer is not None
    if work.takes or work.opcode == WR_SEND_INV:
        work.pool = walk.rng.choice(peer.kit.xpools) if side.kind == QPT_XRC_SEND else pool_of(peer)
        side.expected.setdefault(id(work.pool), deque()).append(work)
    elif side.kind == QPT_XRC_SEND:
        work.pool = walk.rng.choice(peer.kit.xpools)
    if work.fault:
        return
    if work.opcode == WR_READ:
        work.data = bytes(side.ahead[work.to : work.to + work.length])
    else:
        found = work.apply(side.ahead)
        work.data = found if work.atomic else work.data


def pool_of(side: Side) -> Pool:
    return side.kit.pool if side.shared else side.own
