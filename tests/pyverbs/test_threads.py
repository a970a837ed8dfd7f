# SPDX-License-Identifier: MIT
"""Many threads make, use and close objects of one device at once."""

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.pyverbs.services import QKEY, ud_attr
from tests.pyverbs.world import CAP

from softverbs.device import Device
from softverbs.links.inproc import Network
from softverbs.pyverbs import libibverbs_enums as e
from softverbs.pyverbs.addr import AH, AHAttr, GlobalRoute
from softverbs.pyverbs.comp_cntr import CompCntr, CompCntrInitAttr
from softverbs.pyverbs.cq import CQ, CQEX, CqInitAttrEx
from softverbs.pyverbs.device import Context
from softverbs.pyverbs.mr import MR, MW
from softverbs.pyverbs.pd import PD
from softverbs.pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr
from softverbs.pyverbs.srq import SRQ, SrqAttr, SrqInitAttr
from softverbs.pyverbs.wr import SGE, RecvWR, SendWR

THREADS, TURNS = 6, 25
LOCAL = e.IBV_ACCESS_LOCAL_WRITE
REMOTE = LOCAL | e.IBV_ACCESS_REMOTE_WRITE | e.IBV_ACCESS_REMOTE_READ


class Side:
    """A device of real time without a thread of its own: whoever polls drives it."""

    def __init__(self) -> None:
        self.device = Device(link=Network().link("10.0.0.1"), thread=False)
        self.context = Context(device=self.device)
        self.pd = PD(self.context)
        self.cq = CQ(self.context, 1024)
        self.found: list[Any] = []

    def address(self) -> AHAttr:
        """That of the device itself."""
        return AHAttr(is_global=1, gr=GlobalRoute(self.context.query_gid(1, 0), hop_limit=64))

    def qp_attr(self, cq: CQ | None = None) -> QPInitAttr:
        queue = cq or self.cq
        return QPInitAttr(e.IBV_QPT_RC, None, queue, queue, None, QPCap(**{**CAP, "max_send_wr": 512}), 0)

    def pair(self, cq: CQ, **changes: int) -> tuple[QP, QP]:
        return self.connected(QP(self.pd, self.qp_attr(cq)), QP(self.pd, self.qp_attr(cq)), **changes)

    def connected(self, first: QP, second: QP, **changes: int) -> tuple[QP, QP]:
        for qp, other in ((first, second), (second, first)):
            attr = QPAttr()
            values = {
                "qp_access_flags": 15, "dest_qp_num": other.qp_num, "rq_psn": 1, "sq_psn": 1, "max_rd_atomic": 1,
                "max_dest_rd_atomic": 1, "min_rnr_timer": 1, "timeout": 14, "retry_cnt": 7, "rnr_retry": 7, **changes,
            }  # fmt: skip
            for name, value in values.items():
                setattr(attr, name, value)
            attr.ah_attr = self.address()
            qp.to_rts(attr)
        return first, second

    @staticmethod
    def write(region: MR, source: int, to: int, length: int) -> SendWR:
        sg = [SGE(source, length, region.lkey)]
        wr = SendWR(1, e.IBV_WR_RDMA_WRITE, 1, 0, sg, e.IBV_SEND_SIGNALED)
        wr.set_wr_rdma(region.rkey, to)
        return wr

    @staticmethod
    def wait(cq: CQ, count: int) -> list[Any]:
        """Polls until there are so many."""
        found: list[Any] = []
        end = time.monotonic() + 10
        while len(found) < count:
            found += cq.poll(count - len(found))[1]
            assert time.monotonic() < end, f"{len(found)} of {count} completions: {[wc.status for wc in found]}"
        return found


@pytest.fixture
def side() -> Iterator[Side]:
    made = Side()
    yield made
    made.context.close()
    made.device.close()


def at_once(act: Callable[[int], Any], count: int = THREADS) -> list[Any]:
    """``act(index)`` in so many threads that begin together; what they return. Their first exception is raised."""
    barrier = threading.Barrier(count)
    results: list[Any] = [None] * count
    errors: list[BaseException] = []

    def run(index: int) -> None:
        try:
            barrier.wait()
            results[index] = act(index)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(index,)) for index in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    if errors:
        raise errors[0]
    return results


MAKERS: dict[str, Callable[[Side], Any]] = {
    "AH": lambda side: AH(side.pd, attr=side.address()),
    "CQ": lambda side: CQ(side.context, 16),
    "CQEX": lambda side: CQEX(side.context, CqInitAttrEx(16)),
    "PD": lambda side: PD(side.context),
    "MR": lambda side: MR(side.pd, 4096, LOCAL),
    "MW": lambda side: MW(side.pd, e.IBV_MW_TYPE_2),
    "QP": lambda side: QP(side.pd, side.qp_attr()),
    "SRQ": lambda side: SRQ(side.pd, SrqInitAttr(SrqAttr(16, 1))),
    "counter": lambda side: CompCntr(side.context, CompCntrInitAttr()),
}


def name_of(thing: Any) -> int:
    """What must be different while two of them exist."""
    for name in ("rkey", "qp_num", "handle"):
        if hasattr(thing, name):
            return int(getattr(thing, name))
    return id(thing)


@pytest.mark.parametrize("kind", MAKERS)
def test_made_and_closed(side: Side, kind: str) -> None:
    def act(_: int) -> None:
        for _ in range(TURNS):
            MAKERS[kind](side).close()

    at_once(act)


@pytest.mark.parametrize("kind", MAKERS)
def test_made_and_kept(side: Side, kind: str) -> None:
    made = [thing for things in at_once(lambda _: [MAKERS[kind](side) for _ in range(TURNS)]) for thing in things]
    assert len({name_of(thing) for thing in made}) == THREADS * TURNS
    at_once(lambda index: [thing.close() for thing in made[index::THREADS]])


def test_contexts_are_opened_and_closed(side: Side) -> None:
    def act(_: int) -> None:
        for _ in range(TURNS):
            with Context(device=side.device) as context:
                pd = PD(context)
                MR(pd, 64, LOCAL)

    at_once(act)


def test_lives_of_queue_pairs(side: Side) -> None:
    """Each thread makes a pair, connects it, writes, and destroys it; again and again."""
    memory = bytearray(8192)
    region = MR(side.pd, memory, REMOTE)

    def act(index: int) -> None:
        for turn in range(8):
            cq = CQ(side.context, 16)
            first, second = side.pair(cq)
            at = region.buf + 128 * index
            memory[128 * index : 128 * index + 64] = bytes([turn + 1]) * 64
            first.post_send(side.write(region, at, at + 64, 64))
            assert [wc.status for wc in side.wait(cq, 1)] == [e.IBV_WC_SUCCESS]
            assert memory[128 * index + 64 : 128 * index + 128] == bytes([turn + 1]) * 64
            for thing in (first, second, cq):
                thing.close()

    at_once(act)


def test_a_target_is_destroyed_while_it_is_written_to(side: Side) -> None:
    region = MR(side.pd, 4096, REMOTE)
    cq = CQ(side.context, 256)
    first, second = side.pair(cq, retry_cnt=1, timeout=1)
    going = threading.Event()

    def act(index: int) -> list[int]:
        if index == 0:
            assert going.wait(30)
            second.close()
            return []
        statuses = []
        while e.IBV_WC_RETRY_EXC_ERR not in statuses:
            first.post_send(side.write(region, region.buf, region.buf + 2048, 512))
            statuses += [wc.status for wc in side.wait(cq, 1)]
            if len(statuses) == 20:
                going.set()
        return statuses

    statuses = at_once(act, 2)[1]
    assert len(statuses) > 20 and set(statuses[:-1]) == {e.IBV_WC_SUCCESS}
    assert first.qp_state == e.IBV_QPS_ERR


def test_sends_of_a_queue_pair_that_another_thread_moves_to_err(side: Side) -> None:
    """Each request completes once, in order: those before with success, the rest flushed."""
    region = MR(side.pd, 4096, REMOTE)
    cq = CQ(side.context, 4096)
    first, second = side.pair(cq)
    going = threading.Event()

    def act(index: int) -> int:
        if index == 0:
            assert going.wait(30)
            attr = QPAttr()
            attr.qp_state = e.IBV_QPS_ERR
            first.modify(attr, e.IBV_QP_STATE)
            return 0
        for number in range(400):
            wr = side.write(region, region.buf, region.buf + 2048, 8)
            wr.wr_id = number
            first.post_send(wr)
            side.found += cq.poll(4)[1]
            if number == 100:
                going.set()
        return 400

    at_once(act, 2)
    found = side.found + side.wait(cq, 400 - len(side.found))
    assert [wc.wr_id for wc in found] == list(range(400))
    statuses = [wc.status for wc in found]
    succeeded = statuses.count(e.IBV_WC_SUCCESS)
    assert second.qp_state == e.IBV_QPS_RTS
    assert statuses == [e.IBV_WC_SUCCESS] * succeeded + [e.IBV_WC_WR_FLUSH_ERR] * (400 - succeeded)


def test_threads_share_a_shared_receive_queue(side: Side) -> None:
    """Each sends over its own connection; all receives come from one queue, which a thread of its own fills."""
    region = MR(side.pd, 1 << 16, REMOTE)
    queue = SRQ(side.pd, SrqInitAttr(SrqAttr(64, 1)))
    count, messages = 4, 20
    arrivals = CQ(side.context, 1024)
    queues = [CQ(side.context, 64) for _ in range(count)]
    pairs = []
    for cq in queues:
        attr = QPInitAttr(e.IBV_QPT_RC, None, arrivals, arrivals, queue, QPCap(**CAP), 0)
        pairs.append(side.connected(QP(side.pd, side.qp_attr(cq)), QP(side.pd, attr)))

    def act(index: int) -> list[int]:
        if index == count:
            numbers: list[int] = []
            for number in range(count * messages):
                queue.post_recv(RecvWR(number, 1, [SGE(region.buf + 64 * number, 64, region.lkey)]))
                if number % 32 == 31:
                    numbers += [wc.wr_id for wc in side.wait(arrivals, 16)]
            return numbers + [wc.wr_id for wc in side.wait(arrivals, count * messages - len(numbers))]
        for number in range(messages):
            sg = [SGE(region.buf + 32768, 64, region.lkey)]
            pairs[index][0].post_send(SendWR(number, e.IBV_WR_SEND, 1, 0, sg, e.IBV_SEND_SIGNALED))
        return [wc.status for wc in side.wait(queues[index], messages)]

    results = at_once(act, count + 1)
    assert sorted(results[-1]) == list(range(count * messages))
    assert all(statuses == [e.IBV_WC_SUCCESS] * messages for statuses in results[:-1])


def test_address_handles_of_many_threads(side: Side) -> None:
    """Made, used once and closed at once: every datagram that was posted arrives (docs/rdma-unit-test.md)."""
    region = MR(side.pd, 1 << 16, REMOTE)
    cqs = CQ(side.context, 512), CQ(side.context, 512)
    qps = [
        QP(side.pd, QPInitAttr(e.IBV_QPT_UD, None, cq, cq, None, QPCap(**{**CAP, "max_recv_wr": 64}), 0)) for cq in cqs
    ]
    for qp in qps:
        qp.to_rts(ud_attr())
    for number in range(48):
        qps[1].post_recv(RecvWR(number, 1, [SGE(region.buf + 128 * number, 128, region.lkey)]))

    def act(_: int) -> None:
        for _ in range(8):
            with AH(side.pd, attr=side.address()) as handle:
                sg = [SGE(region.buf + 32768, 8, region.lkey)]
                wr = SendWR(1, e.IBV_WR_SEND, 1, 0, sg, e.IBV_SEND_SIGNALED)
                wr.set_wr_ud(handle, qps[1].qp_num, QKEY)
                qps[0].post_send(wr)

    at_once(act)
    assert {wc.status for wc in side.wait(cqs[0], 48)} == {e.IBV_WC_SUCCESS}
    assert {wc.status for wc in side.wait(cqs[1], 48)} == {e.IBV_WC_SUCCESS}
