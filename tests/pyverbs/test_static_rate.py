# SPDX-License-Identifier: MIT
"""The static rate of an address vector: packets leave no faster, over any stretch longer than a millisecond."""

import errno
from typing import Any

import pytest
from tests.pyverbs.services import ah_attr, datagram, make, ud
from tests.pyverbs.world import MS, World, refused

from softverbs.core.base.errors import PyverbsRDMAError
from softverbs.core.transport.address import RATES, AddressVector, pace_of
from softverbs.pyverbs import libibverbs_enums as e
from softverbs.pyverbs.addr import AH
from softverbs.pyverbs.qp import QP

SLOW, QUICK = 2, 3  # IBV_RATE_2_5_GBPS, IBV_RATE_10_GBPS
HEADERS = 66  # Ethernet, IPv6, UDP, FCS: what the wire adds to a frame
MESSAGES = 60
LENGTH = 60_000


def limited(world: World, kind: int, rate: int, back: int = 0) -> QP:
    """A QP of side ``a`` whose way to side ``b`` has a rate, and that of the peer ``back``."""
    first, second = make(world.a, kind), make(world.b, kind)
    for qp, other, limit in ((first, second, rate), (second, first, back)):
        attr = world.attr(qp, other.qp_num)
        vector = attr.ah_attr
        vector.static_rate = limit
        attr.ah_attr = vector
        qp.to_rts(attr)
    world._kept += [first, second]
    return first


def transfer(world: World, qp: QP, requests: list[Any]) -> float:
    """Milliseconds until all of them are done."""
    start = world.now
    for wr in requests:
        qp.post_send(wr)
    done = 0

    def finished() -> bool:
        nonlocal done
        completions = world.a.poll()
        assert all(wc.status == e.IBV_WC_SUCCESS for wc in completions)
        done += len(completions)
        return done == len(requests)

    world.until(finished)
    return (world.now - start) / MS


def milliseconds(payload: int, frames: int, rate: int) -> float:
    """How long so many bytes take, with what is around them: at least a BTH and an ICRC."""
    return (payload + frames * (HEADERS + 16)) * 8 / (RATES[rate] * 1e6)


@pytest.mark.parametrize("rate", [SLOW, QUICK])
@pytest.mark.parametrize("kind", [e.IBV_QPT_RC, e.IBV_QPT_UC])
def test_writes(world: World, kind: int, rate: int) -> None:
    qp = limited(world, kind, rate)
    took = transfer(world, qp, [world.a.wr(e.IBV_WR_RDMA_WRITE, n, LENGTH) for n in range(MESSAGES)])
    least = milliseconds(MESSAGES * LENGTH, MESSAGES * -(-LENGTH // 1024), rate)
    assert took >= least - 2
    if kind == e.IBV_QPT_RC or rate == SLOW:  # an unreliable sender has a pace of its own beside
        assert took <= least + 5


def test_the_answers_to_reads_go_at_the_rate_of_who_answers(world: World) -> None:
    qp = limited(world, e.IBV_QPT_RC, 0, SLOW)
    took = transfer(world, qp, [world.a.wr(e.IBV_WR_RDMA_READ, n, LENGTH) for n in range(MESSAGES)])
    assert took >= milliseconds(MESSAGES * LENGTH, MESSAGES * -(-LENGTH // 1024), SLOW) - 2


def test_datagrams(world: World) -> None:
    """Each goes at the rate of its own address handle."""
    attr = ah_attr(world.b)
    attr.static_rate = SLOW
    first, second = ud(world.a), ud(world.b)
    with AH(world.a.pd, attr=attr) as slow, AH(world.a.pd, attr=ah_attr(world.b)) as free:
        took = 0.0
        for _ in range(30):
            took += transfer(world, first, [datagram(world.a, slow, second, n, 4000) for n in range(50)])
        assert took >= milliseconds(1500 * 4000, 1500, SLOW) - 2
        assert transfer(world, first, [datagram(world.a, free, second, n, 4000) for n in range(20)]) < 1


def test_without_a_limit(world: World) -> None:
    qp = limited(world, e.IBV_QPT_RC, 0)
    assert transfer(world, qp, [world.a.wr(e.IBV_WR_RDMA_WRITE, n, LENGTH) for n in range(MESSAGES)]) < 1


def test_one_limit_holds_nobody_else_back(world: World) -> None:
    slow, free = limited(world, e.IBV_QPT_RC, SLOW), limited(world, e.IBV_QPT_RC, 0)
    for number in range(MESSAGES):
        slow.post_send(world.a.wr(e.IBV_WR_RDMA_WRITE, number, LENGTH, flags=0))
    world.run()
    assert transfer(world, free, [world.a.wr(e.IBV_WR_RDMA_WRITE, n, LENGTH) for n in range(MESSAGES)]) < 1


def test_it_can_be_queried(world: World) -> None:
    qp = limited(world, e.IBV_QPT_RC, QUICK)
    attr, _ = qp.query(e.IBV_QP_AV)
    assert attr.ah_attr.static_rate == QUICK


def test_no_rate(world: World) -> None:
    attr = ah_attr(world.b)
    attr.static_rate = 99
    assert "static_rate=99 is no value of enum ibv_rate" in refused(errno.EINVAL, lambda: AH(world.a.pd, attr=attr))


def test_a_limit_is_never_exceeded_by_rounding() -> None:
    for rate, gigabits in RATES.items():
        assert pace_of(rate) * gigabits >= 8 * 1024
        assert pace_of(rate) * gigabits < 8 * 1024 + gigabits
    assert pace_of(0) == 0
    with pytest.raises(PyverbsRDMAError, match="static_rate=1 "):
        pace_of(1)
    assert AddressVector(bytes(16)).static_rate == 0
