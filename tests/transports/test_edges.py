# SPDX-License-Identifier: MIT
"""Where two things meet: handles that come again, links that refuse, queues that overrun, memory that goes."""

from random import Random
from typing import Any

import pytest
from tests.netsim import frames
from tests.netsim.pair import (
    FLUSH_ERR,
    OPS,
    RECV,
    REMOTE_WRITE,
    SEND,
    SIGNALED,
    SUCCESS,
    WR_SEND,
    WR_SEND_IMM,
    WR_WRITE,
    WR_WRITE_IMM,
    End,
    Pair,
)
from tests.netsim.sim import (
    ALL,
    CAP,
    ERR,
    QPT_RC,
    QPT_UC,
    QPT_UD,
    QPT_XRC_RECV,
    QPT_XRC_SEND,
    RESET,
    RTS,
    SQD,
    Sim,
    connect,
    move,
)

from softverbs.core.base.errors import PyverbsRDMAError
from softverbs.core.queues.wr import SGE, RecvWR

CQ_ERR, QP_FATAL, SRQ_LIMIT_REACHED = 0, 1, 15
GRH = 40
each_type = pytest.mark.parametrize("kind", [QPT_RC, QPT_UC, QPT_UD, QPT_XRC_SEND], ids=["RC", "UC", "UD", "XRC"])


# -- address handles


def test_a_datagram_goes_where_its_handle_led_when_it_was_posted() -> None:
    """The handle is closed, and its number given to another one, before the datagram leaves."""
    with Pair(kind=QPT_UD) as pair:
        a, b = pair.a, pair.b
        third = End(pair.sim.node(), 4096, CAP, QPT_UD)
        connect(third.qp, None, third.node, None)
        for end in (b, third):
            end.receive(0, 200, wr_id=1)
        move(a.qp, SQD)
        handle = a.node.handle(a.pd, b.node.gid)
        a.post(WR_SEND, 0, 8, handle=handle, qpn=b.qp.qp_num)
        handle.core.close()
        other = a.node.handle(a.pd, third.node.gid)
        a.post(WR_SEND, 0, 8, handle=other, qpn=third.qp.qp_num)
        move(a.qp, RTS)
        pair.sim.settle()
        assert a.done() == [(0, SUCCESS)] * 2
        assert b.done() == third.done() == [(1, SUCCESS)]
        other.core.close()


def test_handles_of_requests_that_are_flushed_or_dropped_are_let_go() -> None:
    with Pair(kind=QPT_UD) as pair:
        a = pair.a
        for target in (ERR, RESET):
            move(a.qp, SQD)
            handle = a.node.handle(a.pd, pair.b.node.gid)
            for _ in range(5):
                a.post(WR_SEND, 0, 8, handle=handle)
            handle.core.close()
            move(a.qp, target)
            a.polled()
            if target == ERR:
                move(a.qp, RESET)
            connect(a.qp, None, a.node, None)
        for _ in range(1000):
            handle = a.node.handle(a.pd, pair.b.node.gid)
            a.post(WR_SEND, 0, 8, handle=handle)
            handle.core.close()
            pair.sim.settle()
            assert len(a.polled()) == 1
        assert a.count(SEND) == (1000, 5)
        assert len(a.node.port.addresses) < 100


def test_a_request_that_names_a_handle_that_is_closed() -> None:
    """It is refused, though another handle has the number by now: nothing goes to a stranger."""
    with Pair(kind=QPT_UD) as pair:
        third = End(pair.sim.node(), 4096, CAP, QPT_UD)
        connect(third.qp, None, third.node, None)
        third.receive(0, 200)
        handle = pair.a.node.handle(pair.a.pd, pair.b.node.gid)
        wr = pair.a.wr(WR_SEND, 0, 8, handle=handle, qpn=third.qp.qp_num)
        handle.core.close()
        other = pair.a.node.handle(pair.a.pd, third.node.gid)
        with pytest.raises(PyverbsRDMAError) as caught:
            pair.a.qp.post_send(wr)
        assert caught.value.errno == 22
        pair.sim.settle()
        assert third.done() == []
        other.core.close()


# -- links that refuse


@pytest.mark.parametrize("kind", [QPT_UC, QPT_UD])
@pytest.mark.parametrize("seed", range(3))
def test_a_link_that_refuses_frames_loses_none(kind: int, seed: int) -> None:
    """What a link does not take is sent later; neither lost nor sent twice, and in order."""
    rng = Random(seed)
    with Pair(1 << 18, kind=kind, path_mtu=1) as pair:
        link: Any = pair.a.node.link
        take = link.send
        link.send = lambda *frame: rng.random() > 0.5 and take(*frame)
        for number in range(60):
            pair.b.receive(0x800 * number, 0x800, wr_id=number)
        pair.a.put(0, rng.randbytes(1 << 17))
        lengths = [rng.randrange(1500) for _ in range(60)]
        for number, length in enumerate(lengths):
            pair.a.post(WR_SEND, 1000 * number, length, wr_id=number, flags=2 * (number % 3 == 0 or number == 59))
        pair.sim.run_until(lambda: pair.a.count(SEND)[0] == 60)
        pair.sim.run_for(1_000_000)
        found = pair.b.polled()
        assert [(wc.wr_id, wc.status) for wc in found] == [(number, SUCCESS) for number in range(60)]
        skip = GRH if kind == QPT_UD else 0
        for number, length in enumerate(lengths):
            assert found[number].byte_len == length + skip
            assert pair.b.at(0x800 * number + skip, length) == pair.a.at(1000 * number, length)


@each_type
def test_unsignaled_requests_are_freed_by_the_completion_of_a_later_one(kind: int) -> None:
    """A queue of 4, and 40 requests, of which each fourth is signaled."""
    with Pair(cap=(4, 64, 1, 1, 0), kind=kind) as pair:
        for _ in range(40):
            pair.b.receive(0x8000, 100)
        for number in range(10):
            for flags in (0, 0, 0, SIGNALED):
                pair.a.post(WR_SEND, 0, 8, wr_id=number, flags=flags)
            pair.sim.run_for(1_000_000)
            assert pair.a.done() == [(number, SUCCESS)]
        assert (pair.a.count(SEND), pair.b.count(RECV)) == ((40, 0), (40, 0))


# -- completion queues that overrun (semantics, section 2)


@pytest.mark.parametrize("kind", [QPT_RC, QPT_UC, QPT_UD])
@pytest.mark.parametrize("shared", [False, True])
def test_an_overrun_ends_every_queue_pair_of_the_queue(kind: int, shared: bool) -> None:
    with Sim() as sim:
        a, node = End(sim.node(), 4096, CAP, kind), sim.node()
        pd, cq = node.pd(), node.cq(3)
        srq = node.srq(pd) if shared else None
        b, other = (End(node, 4096, CAP, kind, pd=pd, cq=cq, srq=srq) for _ in range(2))
        a.peer, b.peer, other.peer = b, a, a
        for end in (a, b, other):
            connect(end.qp, end.peer.qp, end.node, end.peer.node)
        for number in range(8):
            b.receive(0, 200, wr_id=number)
        for _ in range(5):
            a.post(WR_SEND, 0, 8)
        sim.run_for(1_000_000)
        events = node.events()
        assert events.count((CQ_ERR, cq)) == 1
        assert sorted(id(qp) for event, qp in events if event == QP_FATAL) == sorted((id(b.qp), id(other.qp)))
        assert b.qp.state == other.qp.state == ERR
        assert [(wc.wr_id, wc.status) for wc in cq.poll(10)] == [(0, 0), (1, 0), (2, 0)]


def test_an_overrun_of_the_queue_of_an_xrc_srq() -> None:
    """The target that its message came to has lost a completion: it goes to ERR with QP_FATAL."""
    with Sim() as sim:
        a, node = End(sim.node(), 4096, CAP, QPT_XRC_SEND), sim.node()
        pd, cq, xrcd = node.pd(), node.cq(2), node.xrcd()
        b = End(node, 4096, CAP, QPT_XRC_RECV, pd=pd, cq=cq, srq=node.srq(pd, xrcd=xrcd, cq=cq), xrcd=xrcd)
        a.peer, b.peer = b, a
        for end in (a, b):
            connect(end.qp, end.peer.qp, end.node, end.peer.node, retry_cnt=1)
        for number in range(6):
            b.receive(0, 200, wr_id=number)
        for _ in range(5):
            a.post(WR_SEND, 0, 8)
        sim.run_for(1_000_000_000)
        events = node.events()
        assert events.count((CQ_ERR, cq)) == 1
        assert [(wc.wr_id, wc.status) for wc in cq.poll(10)] == [(0, 0), (1, 0)]
        assert (b.qp.state, events.count((QP_FATAL, b.qp))) == (ERR, 1)


# -- memory that goes


@pytest.mark.parametrize("kind", [QPT_RC, QPT_UC, QPT_XRC_SEND])
def test_a_region_that_goes_between_two_packets_of_a_write(kind: int) -> None:
    with Pair(kind=kind, path_mtu=1) as pair:
        region = pair.b.node.region(pair.b.pd, 4096, ALL, iova=0x900000)
        transport = {QPT_RC: 0, QPT_UC: 0x20, QPT_XRC_SEND: 0xA0}[kind]
        extra = pair.b.srq.srq_num.to_bytes(4, "big") if kind == QPT_XRC_SEND else b""  # type: ignore[union-attr]
        qpn = pair.b.qp.qp_num
        head = frames.put_reth(region.iova, region.key, 600)
        pair.inject(
            pair.a, frames.put_bth(transport | frames.WRITE_FIRST, qpn, 0x1000, False) + extra + head + b"1" * 256
        )
        region.deregister()
        pair.inject(pair.a, frames.put_bth(transport | frames.WRITE_MIDDLE, qpn, 0x1001) + extra + b"2" * 256)
        pair.inject(pair.a, frames.put_bth(transport | frames.WRITE_LAST, qpn, 0x1002) + extra + b"3" * 88)
        pair.sim.run_for(1_000_000)
        assert region.at(0, 600) == b"1" * 256 + bytes(344)
        assert pair.b.count(REMOTE_WRITE) == (0, 0)
        assert pair.b.qp.state == (RTS if kind == QPT_UC else ERR)


@pytest.mark.parametrize("kind", [QPT_UC, QPT_UD])
def test_a_region_that_goes_before_a_request_is_sent(kind: int) -> None:
    with Pair(kind=kind) as pair:
        region = pair.a.node.region(pair.a.pd, 4096, ALL, iova=0x900000)
        move(pair.a.qp, SQD)
        pair.a.post(WR_SEND, sg=[SGE(region.iova, 100, region.key)], wr_id=1)
        pair.a.post(WR_SEND, 0, 8, wr_id=2)
        region.deregister()
        move(pair.a.qp, RTS)
        pair.sim.settle()
        assert pair.a.done() == [(1, 4), (2, FLUSH_ERR)]
        assert pair.wire == []


def test_a_receive_whose_region_goes_in_the_middle_of_a_message() -> None:
    with Pair(kind=QPT_UC, path_mtu=1) as pair:
        region = pair.b.node.region(pair.b.pd, 4096, ALL, iova=0x900000)
        pair.b.receive(sg=[SGE(region.iova, 1000, region.key)], wr_id=1)
        qpn = pair.b.qp.qp_num
        pair.inject(pair.a, frames.put_bth(0x20, qpn, 0x1000) + b"1" * 256)
        region.deregister()
        pair.inject(pair.a, frames.put_bth(0x22, qpn, 0x1001) + b"2" * 256)
        assert region.at(0, 512) == b"1" * 256 + bytes(256)
        assert pair.b.done() == [(1, 4)]
        assert pair.b.qp.state == ERR


# -- shared receive queues and the limit


@pytest.mark.parametrize("opcode", [WR_SEND, WR_SEND_IMM, WR_WRITE_IMM])
@each_type
def test_every_receive_counts_for_the_limit(kind: int, opcode: int) -> None:
    if kind == QPT_UD and opcode == WR_WRITE_IMM:
        return
    with Pair(kind=kind, shared=True) as pair:
        for _ in range(4):
            pair.b.receive(0x8000, 200)
        pair.b.srq.modify(None, 3)  # type: ignore[union-attr]
        for expected in ([], [(SRQ_LIMIT_REACHED, pair.b.srq)], []):
            pair.a.post(opcode, 0, 8, 0)
            pair.sim.run_for(1_000_000)
            assert pair.b.node.events() == expected
        pair.a.post(WR_WRITE, 0, 8, 0) if kind != QPT_UD else None
        pair.sim.run_for(1_000_000)
        assert pair.b.srq.ring.count() == 1  # type: ignore[union-attr]


def test_one_queue_through_many_lives_of_its_queue_pairs() -> None:
    """Queue pairs come and go in the middle of messages; each receive is used at most once, and none twice."""
    rng = Random(5)
    with Sim() as sim:
        near, far = sim.node(seed=1), sim.node(seed=2)
        pd = far.pd()
        srq, memory = far.srq(pd, 256), far.region(pd, 1 << 18)
        for number in range(256):
            srq.post_recv(RecvWR(number, 1, [SGE(memory.iova + 1024 * number, 1024, memory.key)]))
        seen: list[int] = []
        for turn in range(60):
            kind = rng.choice((QPT_RC, QPT_UC, QPT_UD))
            a = End(near, 4096, CAP, kind, counted=False)
            b = End(far, 0, CAP, kind, pd=pd, memory=memory, srq=srq, counted=False)
            a.peer, b.peer = b, a
            for end in (a, b):
                connect(end.qp, end.peer.qp, end.node, end.peer.node, {"path_mtu": 1}.items())
            a.put(0, bytes([turn + 1]) * 900)
            for _ in range(3):
                a.post(WR_SEND, 0, 900)
            for _ in range(rng.randrange(1, 30)):
                sim.step()
            for wc in b.polled():
                if wc.status == SUCCESS:
                    skip = GRH if kind == QPT_UD else 0
                    assert memory.at(1024 * wc.wr_id + skip, 900) == bytes([turn + 1]) * 900
                seen.append(wc.wr_id)
            if rng.random() < 0.5:
                move(b.qp, ERR)
                seen += [wc.wr_id for wc in b.polled()]
            b.qp.close()
            a.qp.close()
            sim.run_for(10_000)
        assert len(seen) == len(set(seen))
        assert memory.untouched() and len(seen) + srq.ring.count() <= 256
        srq.close()


@each_type
def test_counters_of_a_pair_that_talks_both_ways(kind: int) -> None:
    """Both ends at once, what each has sent the other has received."""
    with Pair(kind=kind) as pair:
        ends = (pair.a, pair.b) if kind != QPT_XRC_SEND else (pair.a,)
        for end in ends:
            for _ in range(20):
                end.peer.receive(0x8000, 300)
        for _ in range(20):
            for end in ends:
                end.post(WR_SEND, 0, 200, flags=0)
        pair.sim.settle()
        for end in ends:
            assert (end.count(SEND), end.peer.count(RECV)) == ((20, 0), (20, 0))
        assert all(end.count(op)[1] == 0 for end in (pair.a, pair.b) for op in OPS)
