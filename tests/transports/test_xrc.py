# SPDX-License-Identifier: MIT
"""Extended reliable connections (annex A14): each request names the shared receive queue that it is for."""

import errno
import struct
from random import Random

import pytest
from tests.netsim import frames, sim
from tests.netsim.pair import (
    FENCE,
    FLUSH_ERR,
    LOC_LEN_ERR,
    READ,
    RECV,
    REM_ACCESS_ERR,
    REM_INV_REQ_ERR,
    REMOTE_READ,
    REMOTE_WRITE,
    RNR_RETRY_EXC_ERR,
    SEND,
    SUCCESS,
    WR_CAS,
    WR_FAA,
    WR_READ,
    WR_SEND,
    WR_SEND_IMM,
    WR_SEND_INV,
    WR_WRITE,
    WR_WRITE_IMM,
    WRITE,
    End,
    Pair,
    dropping,
)
from tests.netsim.sim import (
    ALL,
    CAP,
    ERR,
    LOCAL_WRITE,
    MS,
    QPT_RC,
    QPT_XRC_RECV,
    QPT_XRC_SEND,
    RESET,
    RTR,
    RTS,
    connect,
    move,
)

from softverbs.core.base.errors import PyverbsRDMAError
from softverbs.core.queues.srq import SharedReceiveQueue
from softverbs.core.queues.wr import SGE, RecvWR
from softverbs.core.transport.qp import QueuePair

XRC = 0xA0
QP_REQ_ERR, QP_ACCESS_ERR, COMM_EST, LAST_WQE_REACHED, SRQ_LIMIT_REACHED = 2, 3, 4, 16, 15


def xrc(**more: int) -> Pair:
    return Pair(kind=QPT_XRC_SEND, path_mtu=1, **more)


def queue(pair: Pair, pd: object = None, **more: object) -> tuple[SharedReceiveQueue, object]:
    """Another SRQ in the target's XRC domain, and its completion queue."""
    node = pair.b.node
    cq = node.cq()
    made = node.srq(pd or pair.b.pd, xrcd=pair.b.qp.xrcd, cq=cq, **more)  # type: ignore[arg-type]
    return made, cq


def receive(pair: Pair, srq: SharedReceiveQueue, offset: int, length: int, wr_id: int) -> None:
    srq.post_recv(RecvWR(wr_id, 1, [pair.b.sge(offset, length)]))


# -- on the wire


def test_requests_carry_the_number_and_answers_do_not() -> None:
    with xrc() as pair:
        number = pair.b.srq.srq_num  # type: ignore[union-attr]
        for _ in range(7):
            pair.b.receive(0x8000, 1000)
        key = _bound(pair)
        for opcode in (WR_SEND, WR_SEND_IMM, WR_SEND_INV, WR_WRITE, WR_WRITE_IMM, WR_READ):
            for length in (700, 100):
                if opcode == WR_SEND_INV and length == 100:
                    continue
                pair.a.post(opcode, 0, length, 0x4000, imm=key)
        for opcode in (WR_CAS, WR_FAA):
            pair.a.post(opcode, 0, 8, 0x4000, add=1)
        found = pair.a.wait(13)
        assert [wc.status for wc in found] == [SUCCESS] * 13
        requests = pair.sent(pair.a)
        assert {frame[0] for frame in requests} <= {XRC | code for code in (*range(0x0D), 0x13, 0x14, 0x16, 0x17)}
        assert {struct.unpack(">I", frame[12:16])[0] & 0xFFFFFF for frame in requests} == {number}
        answers = pair.sent(pair.b)
        assert {frame[0] for frame in answers} == {XRC | code for code in (0x0D, 0x0E, 0x0F, 0x10, 0x11, 0x12)}
        assert {frames.bth(frame).qpn for frame in answers} == {pair.a.qp.qp_num}


def _bound(pair: Pair) -> int:
    """A window of type 2 bound by hand to the target: SEND_WITH_INV ends it."""
    regions = pair.b.node.port.regions
    window = regions.allocate_window(pair.b.pd, 2)
    memory = pair.b.memory
    refusal = regions.bind(window, memory.mr, memory.iova, 64, 2, window.rkey ^ 1, pair.b.qp.qp_num)
    assert refusal == ""
    return int(window.rkey)


@pytest.mark.parametrize("length", [0, 1, 256, 257, 3000])
@pytest.mark.parametrize("opcode", [WR_SEND, WR_SEND_IMM, WR_WRITE_IMM])
def test_a_message_completes_in_the_queue_of_its_srq(opcode: int, length: int) -> None:
    with xrc() as pair:
        data = Random(length).randbytes(length)
        pair.a.put(0, data)
        pair.b.receive(0x8000, 4000, wr_id=7)
        pair.a.post(opcode, 0, length, 0xC000, imm=9, wr_id=1)
        assert pair.a.status() == SUCCESS
        (wc,) = pair.b.polled()
        assert (wc.wr_id, wc.status, wc.byte_len, wc.qp_num) == (7, SUCCESS, length, pair.b.qp.qp_num)
        assert (wc.opcode, wc.wc_flags) == (129 if opcode == WR_WRITE_IMM else 128, 0 if opcode == WR_SEND else 2)
        assert pair.b.at(0xC000 if opcode == WR_WRITE_IMM else 0x8000, length) == data
        assert pair.b.count(RECV) == (1, 0)


def test_memory_operations() -> None:
    with xrc() as pair:
        a, b = pair.a, pair.b
        b.put(0x1000, (5).to_bytes(8, "little") + bytes(range(200)) * 5)
        a.post(WR_READ, 0x100, 1000, 0x1008)
        a.post(WR_FAA, 0x10, 8, 0x1000, add=7, flags=2 | FENCE)
        a.post(WR_CAS, 0x18, 8, 0x1000, add=12, swap=99)
        a.post(WR_WRITE, 0x100, 1000, 0x8000, flags=2 | FENCE)
        assert [wc.status for wc in a.wait(4)] == [SUCCESS] * 4
        assert (a.memory.word(0x10), a.memory.word(0x18), b.memory.word(0x1000)) == (5, 12, 99)
        assert a.at(0x100, 1000) == b.at(0x1008, 1000) == b.at(0x8000, 1000)
        assert (a.count(READ), a.count(WRITE), a.count(SEND)) == ((3, 0), (1, 0), (0, 0))
        assert (b.count(REMOTE_READ), b.count(REMOTE_WRITE), b.count(RECV)) == ((3, 0), (1, 0), (0, 0))


# -- which queue


def test_one_connection_serves_many_queues() -> None:
    with xrc() as pair:
        others = [queue(pair) for _ in range(3)]
        for number, (srq, _) in enumerate(others):
            for turn in range(4):
                receive(pair, srq, 0x1000 * (4 * number + turn), 1000, 10 * number + turn)
        for turn in range(4):
            for number, (srq, _) in enumerate(others):
                pair.a.put(0, bytes([16 * number + turn]) * 700)
                pair.a.post(WR_SEND, 0, 700, srqn=srq.srq_num)
                assert pair.a.status() == SUCCESS
        for number, (_, cq) in enumerate(others):
            found = cq.poll(10)  # type: ignore[attr-defined]
            assert [(wc.wr_id, wc.status) for wc in found] == [(10 * number + turn, SUCCESS) for turn in range(4)]
            for turn in range(4):
                assert pair.b.at(0x1000 * (4 * number + turn), 700) == bytes([16 * number + turn]) * 700
        assert pair.b.count(RECV) == (12, 0)


def test_many_connections_share_a_queue() -> None:
    with xrc() as pair:
        node = pair.a.node
        initiators = [pair.a]
        targets = [pair.b]
        for _ in range(2):
            a = End(node, 4096, CAP, QPT_XRC_SEND)
            b = End(
                pair.b.node,
                0,
                CAP,
                QPT_XRC_RECV,
                pd=pair.b.pd,
                memory=pair.b.memory,
                srq=pair.b.srq,
                xrcd=pair.b.qp.xrcd,
            )
            a.peer, b.peer = b, a
            for end in (a, b):
                connect(end.qp, end.peer.qp, end.node, end.peer.node, {"path_mtu": 1}.items())
            initiators.append(a)
            targets.append(b)
        for number in range(9):
            pair.b.receive(0x1000 * number, 1000, wr_id=number)
        for number, initiator in enumerate(initiators * 3):
            initiator.put(0, bytes([number % 3 + 1]) * 700)
            initiator.post(WR_SEND, 0, 700)
        pair.sim.settle()
        found = pair.b.polled()
        assert sorted(wc.wr_id for wc in found) == list(range(9))
        for wc in found:
            number = [target.qp.qp_num for target in targets].index(wc.qp_num)
            assert pair.b.at(0x1000 * wc.wr_id, 700) == bytes([number + 1]) * 700
        assert [target.count(RECV) for target in targets] == [(3, 0)] * 3


@pytest.mark.parametrize("opcode", [WR_SEND, WR_WRITE_IMM, WR_WRITE, WR_READ, WR_FAA])
@pytest.mark.parametrize("case", ["none", "gone", "basic", "other domain"])
def test_a_number_that_is_not_of_the_domain(case: str, opcode: int) -> None:
    """A NAK, invalid request, whatever the operation: a request belongs to its SRQ (A14.5.1)."""
    with xrc() as pair:
        node, pd = pair.b.node, pair.b.pd
        number = 0xABC
        if case == "gone":
            srq, _ = queue(pair)
            number = srq.srq_num
            srq.close()
        elif case == "basic":
            number = node.srq(pd).srq_num
        elif case == "other domain":
            number = node.srq(pd, xrcd=node.xrcd(), cq=node.cq()).srq_num
        pair.b.receive(0x8000, 100)
        length = 8 if opcode == WR_FAA else 60
        pair.a.put(0, b"\1" * 60)
        pair.a.post(opcode, 0, length, 0x4000, srqn=number, add=1)
        assert pair.a.status() == REM_INV_REQ_ERR
        assert (pair.a.qp.state, pair.b.qp.state) == (ERR, ERR)
        assert pair.b.polled() == [] and pair.b.at(0x4000, 60) == bytes(60)
        assert (QP_REQ_ERR, pair.b.qp) in node.events()
        assert (pair.b.count(RECV), pair.b.count(REMOTE_WRITE), pair.b.count(REMOTE_READ)) == ((0, 0),) * 3


def test_the_queue_cannot_change_within_a_message() -> None:
    with xrc() as pair:
        other, cq = queue(pair)
        pair.b.receive(0x8000, 1000)
        receive(pair, other, 0x9000, 1000, 5)
        qpn = pair.b.qp.qp_num
        numbers = (pair.b.srq.srq_num, other.srq_num)  # type: ignore[union-attr]
        pair.inject(pair.a, frames.put_bth(XRC, qpn, 0x1000) + struct.pack(">I", numbers[0]) + bytes(256))
        pair.inject(pair.a, frames.put_bth(XRC | 2, qpn, 0x1001) + struct.pack(">I", numbers[1]) + bytes(8))
        pair.sim.run_for(MS)
        naks = [
            frame for frame in pair.sent(pair.b) if frame[0] == XRC | 0x11 and frame[12] & frames.KIND == frames.KIND
        ]
        assert [frame[12] for frame in naks] == [frames.NAK_INVALID]
        assert pair.b.qp.state == ERR
        assert cq.poll(1) == []  # type: ignore[attr-defined]
        assert [status for _, status in pair.b.done()] == [FLUSH_ERR]


# -- whose memory


@pytest.mark.parametrize("opcode", [WR_WRITE, WR_READ, WR_FAA, WR_WRITE_IMM])
def test_the_domain_of_the_named_queue_decides(opcode: int) -> None:
    """The target queue pair has no protection domain: that of the SRQ is asked (A14.3.1)."""
    with xrc() as pair:
        other_pd = pair.b.node.pd()
        other, _ = queue(pair, other_pd)
        theirs = pair.b.node.region(other_pd, 4096, ALL, iova=0x700000)
        pair.b.receive(0x8000, 100)
        other.post_recv(RecvWR(1, 1, [SGE(theirs.iova, 100, theirs.key)]))

        def attempt(srqn: int, region: object) -> int:
            wr = pair.a.wr(opcode, 0, 8, 0, srqn=srqn)
            wr.set_wr_atomic(region.key, region.iova, 1)  # type: ignore[attr-defined]
            pair.a.qp.post_send(wr)
            return pair.a.status()

        own = pair.b.srq.srq_num  # type: ignore[union-attr]
        assert attempt(own, pair.b.memory) == SUCCESS
        assert attempt(other.srq_num, theirs) == SUCCESS
        assert attempt(other.srq_num, pair.b.memory) == REM_ACCESS_ERR
        assert pair.b.qp.state == ERR


def test_the_rights_of_the_target_and_of_the_region() -> None:
    for flags, access in ((LOCAL_WRITE, ALL), (ALL & 15, LOCAL_WRITE | sim.REMOTE_READ)):
        with xrc(qp_access_flags=flags & 15) as pair:
            region = pair.b.node.region(pair.b.pd, 64, access, iova=0x700000)
            wr = pair.a.wr(WR_WRITE, 0, 8, 0)
            wr.set_wr_rdma(region.key, region.iova)
            pair.a.qp.post_send(wr)
            assert pair.a.status() == (REM_INV_REQ_ERR if flags == LOCAL_WRITE else REM_ACCESS_ERR)
            assert region.at(0, 64) == bytes(64)


# -- reliable


@pytest.mark.parametrize("seed", range(3))
def test_over_a_bad_network(seed: int) -> None:
    rng = Random(seed)
    with xrc() as pair:
        pair.rule = lambda frame: [[], [frame] * 2, None][min(rng.randrange(16), 2)]
        others = [queue(pair) for _ in range(2)]
        for number in range(15):
            for which, (srq, _) in enumerate(others):
                receive(pair, srq, 0x400 * (15 * which + number), 1000, number)
        pair.a.put(0, rng.randbytes(40000))
        sent: list[list[int]] = [[], []]
        for _ in range(30):
            which = rng.randrange(2)
            if len(sent[which]) == 15:
                which ^= 1
            sent[which].append(rng.randrange(30000))
            pair.a.post(WR_SEND, sent[which][-1], 900, srqn=others[which][0].srq_num)
            pair.a.post(WR_READ, 0xF000, 600, 0x9000)
        pair.a.wait(60)
        for which, (_, cq) in enumerate(others):
            found = cq.poll(20)  # type: ignore[attr-defined]
            assert [wc.wr_id for wc in found] == list(range(15))
            for number in range(15):
                assert pair.b.at(0x400 * (15 * which + number), 900) == pair.a.at(sent[which][number], 900)
        assert pair.b.count(RECV) == (30, 0)


def test_an_empty_queue_makes_the_peer_wait_and_the_other_queue_too() -> None:
    """One connection is one stream: requests to other queues wait behind."""
    with xrc() as pair:
        other, cq = queue(pair)
        receive(pair, other, 0x9000, 100, 3)
        pair.a.post(WR_SEND, 0, 60, wr_id=1)
        pair.a.post(WR_SEND, 0, 60, srqn=other.srq_num, wr_id=2)
        pair.sim.run_for(5 * MS)
        assert (pair.a.polled(), cq.poll(1)) == ([], [])  # type: ignore[attr-defined]
        assert {frame[12] & 0xE0 for frame in pair.sent(pair.b, XRC | 0x11)} == {frames.RNR}
        pair.b.receive(0x8000, 100, wr_id=4)
        pair.a.wait(2)
        assert (pair.b.done(), [wc.wr_id for wc in cq.poll(1)]) == ([(4, SUCCESS)], [3])  # type: ignore[attr-defined]


def test_an_initiator_that_does_not_want_to_wait() -> None:
    with xrc(rnr_retry=1) as pair:
        pair.a.post(WR_SEND, 0, 60)
        assert pair.a.status() == RNR_RETRY_EXC_ERR


def test_a_message_that_is_too_long() -> None:
    with xrc() as pair:
        pair.b.receive(0x8000, 500, wr_id=1)
        pair.b.receive(0x9000, 1000, wr_id=2)
        pair.a.post(WR_SEND, 0, 1000)
        assert pair.a.status() == REM_INV_REQ_ERR
        assert pair.b.done() == [(1, LOC_LEN_ERR)]
        assert (pair.b.count(RECV), pair.b.srq.ring.count()) == ((0, 1), 1)  # type: ignore[union-attr]


# -- states and life


def test_a_target_in_error_flushes_what_is_in_progress_only() -> None:
    with xrc() as pair:
        for number in range(3):
            pair.b.receive(0x8000, 1000, wr_id=number)
        pair.rule = dropping(XRC | 2, times=100)
        pair.a.post(WR_SEND, 0, 1000)
        pair.sim.run_for(1000)
        move(pair.b.qp, ERR)
        assert pair.b.done() == [(0, FLUSH_ERR)]
        assert pair.b.srq.ring.count() == 2  # type: ignore[union-attr]
        assert pair.b.count(RECV) == (0, 1)


def test_an_initiator_in_error_flushes_its_sends() -> None:
    with xrc() as pair:
        pair.rule = lambda _: []
        for number in range(3):
            pair.a.post(WR_SEND, 0, 8, flags=0, wr_id=number)
        move(pair.a.qp, ERR)
        pair.a.post(WR_SEND, 0, 8, flags=0, wr_id=3)
        assert pair.a.done() == [(number, FLUSH_ERR) for number in range(4)]
        assert pair.a.count(SEND) == (0, 4)


def test_a_target_receives_in_rtr_and_tells() -> None:
    with xrc() as pair:
        move(pair.b.qp, RESET)
        move(pair.a.qp, RESET)
        connect(pair.b.qp, pair.a.qp, pair.b.node, pair.a.node, to=RTR)
        connect(pair.a.qp, pair.b.qp, pair.a.node, pair.b.node)
        pair.b.receive(0x8000, 1000)
        pair.a.post(WR_SEND, 0, 8)
        assert pair.a.status() == SUCCESS
        assert pair.b.node.events() == [(COMM_EST, pair.b.qp)]


def test_the_limit_event() -> None:
    with xrc() as pair:
        for _ in range(3):
            pair.b.receive(0x8000, 100)
        pair.b.srq.modify(None, 3)  # type: ignore[union-attr]
        pair.a.post(WR_SEND, 0, 8)
        pair.a.wait()
        assert pair.b.node.events() == [(SRQ_LIMIT_REACHED, pair.b.srq)]


def test_what_is_in_use_cannot_be_closed() -> None:
    with xrc() as pair:
        b = pair.b
        xrcd, srq = b.qp.xrcd, b.srq
        assert xrcd is not None and srq is not None
        for thing, busy in ((xrcd, True), (b.cq, True), (b.pd, True)):
            with pytest.raises(PyverbsRDMAError) as caught:
                thing.close()
            assert caught.value.errno == errno.EBUSY and busy
        b.qp.close()
        with pytest.raises(PyverbsRDMAError):
            xrcd.close()
        srq.close()
        xrcd.close()
        b.cq.close()


def test_an_xrc_queue_needs_a_domain_and_a_completion_queue() -> None:
    with xrc() as pair:
        node, pd = pair.b.node, pair.b.pd
        for xrcd, cq in ((node.xrcd(), None), (None, node.cq())):
            with pytest.raises(PyverbsRDMAError) as caught:
                node.srq(pd, xrcd=xrcd, cq=cq)
            assert caught.value.errno == errno.EINVAL


def test_srq_and_cq_that_an_initiator_does_not_have() -> None:
    with xrc() as pair:
        node, pd = pair.a.node, pair.a.pd
        with pytest.raises(PyverbsRDMAError) as caught:
            QueuePair(node.port, node, pd, pair.a.cq, None, node.srq(pd), CAP, QPT_XRC_SEND, False)
        assert caught.value.errno == errno.EINVAL


def test_frames_of_rc_are_not_for_a_target_and_the_other_way_round() -> None:
    with xrc() as pair:
        rc = End(pair.b.node, 0, CAP, QPT_RC, pd=pair.b.pd, memory=pair.b.memory)
        connect(rc.qp, pair.a.qp, pair.b.node, pair.a.node)
        pair.inject(pair.a, frames.put_bth(frames.SEND_ONLY, pair.b.qp.qp_num, 0x1000) + bytes(8))
        pair.inject(pair.a, frames.put_bth(XRC | 4, rc.qp.qp_num, 0x1000) + bytes(4) + bytes(8))
        assert pair.b.node.stats()["dropped_transport"] == 2
        assert (pair.b.qp.state, rc.qp.state) == (RTS, RTS)
        # An initiator answers nothing, a target asks nothing.
        before = len(pair.sent(pair.a))
        pair.inject(pair.b, frames.put_bth(XRC | 4, pair.a.qp.qp_num, 0x1000) + bytes(4) + bytes(8))
        pair.inject(pair.a, frames.put_bth(XRC | 0x11, pair.b.qp.qp_num, 0x1000) + frames.put_aeth(0x1F, 1))
        pair.sim.run_for(MS)
        acks = [
            frame for frame in pair.sent(pair.a)[before:] if frame[12] & frames.KIND == 0 and frame[0] == XRC | 0x11
        ]
        assert len(acks) <= 1 and pair.a.polled() == []


def test_counters_attach_to_a_target() -> None:
    """In RESET or INIT, as to any queue pair (semantics, section 1)."""
    with xrc() as pair:
        with pytest.raises(PyverbsRDMAError) as caught:
            pair.b.qp.attach_comp_cntr(pair.b.node.counter(), 1, 0)
        assert caught.value.errno == errno.EINVAL
        move(pair.b.qp, RESET)
        with pytest.raises(PyverbsRDMAError) as caught:
            pair.b.qp.attach_comp_cntr(pair.b.node.counter(), 1, 0)
        assert caught.value.errno == errno.EBUSY


@pytest.mark.parametrize("again", [False, True])
def test_a_read_is_answered_from_its_own_domain_whatever_follows(again: bool) -> None:
    """Another request names a queue of another domain before the answer is written, or asked for again."""
    with xrc() as pair:
        other_pd = pair.b.node.pd()
        other, cq = queue(pair, other_pd)
        theirs = pair.b.node.region(other_pd, 0x2000, ALL, iova=0x700000)
        other.post_recv(RecvWR(1, 1, [SGE(theirs.iova, 0x1000, theirs.key)]))
        pair.b.put(0, bytes(range(250)) * 20)
        if again:
            pair.rule = dropping(*[XRC | code for code in frames.RESPONSES], times=3)
        pair.a.post(WR_READ, 0x2000, 4000, 0)
        pair.a.post(WR_SEND, 0, 700, srqn=other.srq_num)
        assert [wc.status for wc in pair.a.wait(2)] == [SUCCESS] * 2
        assert pair.a.at(0x2000, 4000) == pair.b.at(0, 4000)
        assert [wc.status for wc in cq.poll(2)] == [SUCCESS]  # type: ignore[attr-defined]


def test_a_write_and_messages_of_several_domains_take_turns() -> None:
    with xrc() as pair:
        places = []
        for number in range(3):
            pd = pair.b.node.pd()
            srq, _ = queue(pair, pd)
            places.append((srq, pair.b.node.region(pd, 0x2000, ALL, iova=0x700000 + 0x10000 * number)))
        for turn in range(4):
            for number, (srq, region) in enumerate(places):
                srq.post_recv(RecvWR(turn, 1, [SGE(region.iova + 0x1000, 0x1000, region.key)]))
                pair.a.put(0x400 * number, bytes([16 * number + turn + 1]) * 0x400)
                for opcode, at in ((WR_SEND, 0), (WR_WRITE, 0), (WR_READ, 0x4000 + 0x400 * number)):
                    source = 0x400 * number if opcode != WR_READ else at
                    wr = pair.a.wr(opcode, source, 0x400, srqn=srq.srq_num, flags=2 | FENCE)
                    wr.set_wr_rdma(region.key, region.iova)
                    pair.a.qp.post_send(wr)
            assert [wc.status for wc in pair.a.wait(9)] == [SUCCESS] * 9
            for number, (_, region) in enumerate(places):
                assert region.at(0, 0x400) == region.at(0x1000, 0x400) == pair.a.at(0x4000 + 0x400 * number, 0x400)


def test_a_queue_that_is_closed_in_the_middle_of_a_message() -> None:
    """The message cannot go on: invalid request. Nothing is written any more."""
    with xrc() as pair:
        other, _ = queue(pair)
        receive(pair, other, 0x9000, 1000, 5)
        qpn = pair.b.qp.qp_num
        head = struct.pack(">I", other.srq_num)
        pair.inject(pair.a, frames.put_bth(XRC, qpn, 0x1000) + head + b"1" * 256)
        other.close()
        pair.inject(pair.a, frames.put_bth(XRC | 1, qpn, 0x1001) + head + b"2" * 256)
        pair.sim.run_for(MS)
        assert pair.b.at(0x9100, 256) == bytes(256)
        assert pair.b.qp.state == ERR
        assert pair.b.done() == []
