# SPDX-License-Identifier: MIT
"""The requester, over two ports: how work requests end, in which order, and what may hold them up."""

import pytest
from tests.netsim import frames
from tests.netsim.pair import (
    BAD_RESP_ERR,
    FENCE,
    FLUSH_ERR,
    INLINE,
    LOC_PROT_ERR,
    READ,
    REM_ACCESS_ERR,
    REM_INV_REQ_ERR,
    REM_OP_ERR,
    RETRY_EXC_ERR,
    SEND,
    SIGNALED,
    SUCCESS,
    WR_FAA,
    WR_READ,
    WR_SEND,
    WR_WRITE,
    WR_WRITE_IMM,
    WRITE,
    End,
    Pair,
    dropping,
)
from tests.netsim.sim import ERR, LOCAL_WRITE, MS, REMOTE_READ, RTS, SQD, move

from softverbs.core.base.errors import PyverbsRDMAError
from softverbs.core.base.limits import Options
from softverbs.core.queues.wr import SGE

EVENT_SQ_DRAINED = 5
DATA = bytes(range(256)) * 32
REQUESTS = tuple(code for code in range(0x18) if code not in frames.ANSWERS)


def silence(_: bytes) -> list[bytes]:
    """A rule: nothing gets through."""
    return []


def statuses(end: End) -> list[int]:
    return [wc.status for wc in end.polled()]


def psns(pair: Pair, end: End, *opcodes: int) -> list[int]:
    return [frames.psn(frame) for frame in pair.sent(end, *opcodes)]


# -- NAKs that end the connection


def test_nak_of_access() -> None:
    with Pair() as pair:
        pair.a.post(WR_WRITE, 0, 8, 0, rkey=0xDEAD)
        wc = pair.a.wait()[0]
        assert wc.status == REM_ACCESS_ERR
        assert "0xdead" in wc.reason
        assert "10.0.0.2" in wc.reason
        assert frames.syndrome(pair.sent(pair.b)[-1]) == frames.NAK_ACCESS


def test_nak_of_operation() -> None:
    """The receive's own memory is wrong: the peer's fault, not the request's."""
    with Pair() as pair:
        pair.b.receive(0xFFFF, 8)
        pair.a.post(WR_SEND, 0, 8)
        assert pair.a.status() == REM_OP_ERR
        assert pair.b.status() == LOC_PROT_ERR
        assert frames.syndrome(pair.sent(pair.b)[-1]) == frames.NAK_OPERATION


def test_nak_of_an_invalid_request() -> None:
    with Pair() as pair:
        pair.b.receive(0, 8)
        pair.a.post(WR_SEND, 0, 9)
        assert pair.a.status() == REM_INV_REQ_ERR
        assert frames.syndrome(pair.sent(pair.b)[-1]) == frames.NAK_INVALID


def test_nak_of_an_unknown_kind() -> None:
    with Pair() as pair:
        pair.rule = silence
        pair.a.post(WR_SEND, 0, 9)
        pair.sim.run_for(0)
        pair.rule = None
        body = frames.put_bth(frames.ACKNOWLEDGE, pair.a.qp.qp_num, 0x1000) + frames.put_aeth(0x64)
        pair.inject(pair.b, body)
        assert pair.a.status() == REM_OP_ERR


def test_a_nak_acknowledges_what_was_before_it() -> None:
    with Pair() as pair:
        pair.a.post(WR_WRITE, 0, 8, 0, wr_id=1)
        pair.a.post(WR_READ, 0, 8, 0, wr_id=2)
        pair.a.post(WR_WRITE, 0, 8, 0, wr_id=3, rkey=0)
        pair.a.post(WR_SEND, 0, 8, wr_id=4)
        wcs = pair.a.wait(4)
        expected = [(1, SUCCESS), (2, SUCCESS), (3, REM_ACCESS_ERR), (4, FLUSH_ERR)]
        assert [(wc.wr_id, wc.status) for wc in wcs] == expected
        assert pair.a.count(WRITE) == (1, 1)
        assert pair.a.count(READ) == (1, 0)
        assert pair.a.count(SEND) == (0, 1)


def test_errors_of_unsignaled_requests_are_listed() -> None:
    with Pair() as pair:
        pair.a.post(WR_WRITE, 0, 8, 0, wr_id=1, flags=0)
        pair.a.post(WR_WRITE, 0, 8, 0, wr_id=2, flags=0, rkey=0)
        pair.a.post(WR_WRITE, 0, 8, 0, wr_id=3, flags=0)
        assert [(wc.wr_id, wc.status) for wc in pair.a.wait(2)] == [(2, REM_ACCESS_ERR), (3, FLUSH_ERR)]
        assert pair.a.count(WRITE) == (1, 2)


@pytest.mark.parametrize("rnr", [False, True])
def test_a_lost_nak_ends_in_retries(rnr: bool) -> None:
    """The peer is in ERR and says nothing more: the requester gives up in time, or hears of its RNR."""
    with Pair(retry_cnt=2) as pair:
        pair.rule = dropping(frames.ACKNOWLEDGE)
        if rnr:
            pair.a.post(WR_SEND, 0, 8)
            pair.sim.run_for(MS)
            pair.b.receive(0, 8)
            assert pair.a.status() == SUCCESS
        else:
            pair.a.post(WR_WRITE, 0, 8, 0, rkey=0)
            assert pair.a.status() == RETRY_EXC_ERR
            assert pair.b.node.stats()["dropped_qp_state"] == 2


# -- answers that do not fit


def outstanding(pair: Pair, opcode: int, length: int) -> None:
    pair.rule = silence
    if opcode == WR_FAA:
        pair.a.post(WR_FAA, 0, 8, 0, add=1)
    else:
        pair.a.post(opcode, 0, length, 0)
    pair.sim.run_for(0)
    pair.rule = None


@pytest.mark.parametrize("length", [0, 4, 12])
def test_read_response_of_a_wrong_length(length: int) -> None:
    with Pair() as pair:
        outstanding(pair, WR_READ, 8)
        header = frames.put_bth(frames.RESPONSE_ONLY, pair.a.qp.qp_num, 0x1000) + frames.put_aeth(frames.ACK)
        pair.inject(pair.b, header + bytes(length))
        wc = pair.a.wait()[0]
        assert wc.status == BAD_RESP_ERR
        assert f"{length} bytes" in wc.reason
        assert pair.a.memory.at(0, 32) == bytes(32)


def test_read_response_that_ends_too_early() -> None:
    with Pair(path_mtu=1) as pair:
        outstanding(pair, WR_READ, 512)
        header = frames.put_bth(frames.RESPONSE_ONLY, pair.a.qp.qp_num, 0x1000) + frames.put_aeth(frames.ACK)
        pair.inject(pair.b, header + bytes(256))
        assert pair.a.status() == BAD_RESP_ERR


def test_atomic_answered_with_read_data() -> None:
    with Pair() as pair:
        outstanding(pair, WR_FAA, 8)
        header = frames.put_bth(frames.RESPONSE_ONLY, pair.a.qp.qp_num, 0x1000) + frames.put_aeth(frames.ACK)
        pair.inject(pair.b, header + bytes(8))
        assert pair.a.status() == BAD_RESP_ERR


def test_read_answered_with_an_atomic_acknowledgement() -> None:
    with Pair() as pair:
        outstanding(pair, WR_READ, 8)
        header = frames.put_bth(frames.ATOMIC_ACKNOWLEDGE, pair.a.qp.qp_num, 0x1000) + frames.put_aeth(frames.ACK)
        pair.inject(pair.b, header + bytes(8))
        assert pair.a.status() == BAD_RESP_ERR


def test_write_answered_with_read_data() -> None:
    """Nobody asked for data: it is dropped, and the acknowledgement is waited for."""
    with Pair() as pair:
        outstanding(pair, WR_WRITE, 8)
        header = frames.put_bth(frames.RESPONSE_ONLY, pair.a.qp.qp_num, 0x1000) + frames.put_aeth(frames.ACK)
        pair.inject(pair.b, header + bytes(8))
        assert pair.a.polled() == []
        assert pair.a.status() == SUCCESS


# -- memory of the application


def test_bad_lkey_fails_after_those_before_it() -> None:
    """The first one is lost once: it must still be sent again before the second may fail."""
    with Pair() as pair:
        pair.rule = dropping(frames.WRITE_ONLY)
        pair.a.post(WR_WRITE, 0, 8, 0, wr_id=1)
        pair.a.post(WR_WRITE, 0x10000, 8, 0, wr_id=2)
        pair.a.post(WR_WRITE, 0, 8, 0, wr_id=3)
        wcs = pair.a.wait(3)
        assert [(wc.wr_id, wc.status) for wc in wcs] == [(1, SUCCESS), (2, LOC_PROT_ERR), (3, FLUSH_ERR)]
        assert "range" in wcs[1].reason
        assert psns(pair, pair.a) == [0x1000, 0x1000]


@pytest.mark.parametrize("opcode", [WR_READ, WR_FAA])
def test_result_must_be_writable(opcode: int) -> None:
    with Pair() as pair:
        own = pair.a.node.region(pair.a.pd, 64, access=REMOTE_READ, iova=0x999000)
        pair.a.post(opcode, to=0, sg=[SGE(0x999000, 8, own.key)])
        wc = pair.a.wait()[0]
        assert wc.status == LOC_PROT_ERR
        assert "LOCAL_WRITE" in wc.reason
        assert pair.wire == []


def test_memory_deregistered_while_it_is_sent() -> None:
    with Pair(path_mtu=1, options=Options(window=4096)) as pair:
        own = pair.a.node.region(pair.a.pd, 0x4000, access=LOCAL_WRITE, iova=0x999000)
        pair.rule = dropping(frames.ACKNOWLEDGE)
        pair.a.post(WR_WRITE, 0, 8, 0, wr_id=1)
        pair.a.post(WR_WRITE, to=0, sg=[SGE(0x999000, 0x4000, own.key)], wr_id=2)
        pair.sim.run_for(MS)
        own.deregister()
        wcs = pair.a.wait(2)
        assert [(wc.wr_id, wc.status) for wc in wcs] == [(1, SUCCESS), (2, LOC_PROT_ERR)]
        assert "not registered" in wcs[1].reason


def test_memory_deregistered_before_the_answer() -> None:
    with Pair() as pair:
        own = pair.a.node.region(pair.a.pd, 64, iova=0x999000)
        pair.rule = silence
        pair.a.post(WR_FAA, to=0, sg=[SGE(0x999000, 8, own.key)], add=1)
        pair.sim.run_for(MS)
        own.deregister()
        pair.rule = None
        assert pair.a.status() == LOC_PROT_ERR


def test_inline_data_is_taken_when_it_is_posted() -> None:
    with Pair() as pair:
        pair.a.memory.put(0, b"before")
        pair.a.post(WR_WRITE, 0, 6, 0, flags=SIGNALED | INLINE)
        pair.a.memory.put(0, b"behind")
        assert pair.a.status() == SUCCESS
        assert pair.b.memory.at(0, 6) == b"before"


# -- order: fences, outstanding READs, draining


def test_fence_waits_for_reads() -> None:
    with Pair() as pair:
        pair.rule = dropping(frames.RESPONSE_ONLY)
        pair.a.post(WR_READ, 0x4000, 8, 0)
        pair.a.post(WR_WRITE, 0, 8, 0, flags=SIGNALED | FENCE)
        pair.sim.run_for(MS)
        assert pair.sent(pair.a, frames.WRITE_ONLY) == []
        assert [wc.opcode for wc in pair.a.wait(2)] == [2, 1]


def test_without_a_fence_a_write_follows_at_once() -> None:
    with Pair() as pair:
        pair.rule = silence
        pair.a.post(WR_READ, 0x4000, 8, 0)
        pair.a.post(WR_WRITE, 0, 8, 0)
        pair.sim.run_for(0)
        assert [frame[0] for frame in pair.sent(pair.a)] == [frames.READ_REQUEST, frames.WRITE_ONLY]


@pytest.mark.parametrize("most", [1, 3])
def test_max_rd_atomic_bounds_outstanding_reads(most: int) -> None:
    with Pair(max_rd_atomic=most) as pair:
        pair.rule = silence
        for number in range(6):
            pair.a.post(WR_FAA if number % 2 else WR_READ, 0x4000, 8, 0, add=1)
        pair.sim.run_for(0)
        assert len(pair.sent(pair.a)) == most
        pair.rule = None
        assert [wc.status for wc in pair.a.wait(6)] == [SUCCESS] * 6
        assert pair.b.memory.word(0) == 3


def test_max_rd_atomic_zero_refuses_reads() -> None:
    with Pair(max_rd_atomic=0) as pair:
        with pytest.raises(PyverbsRDMAError, match="max_rd_atomic"):
            pair.a.post(WR_READ, 0, 8, 0)
        pair.a.post(WR_WRITE, 0, 8, 0)
        assert pair.a.status() == SUCCESS


def test_sqd_holds_back_what_is_new_and_finishes_what_is_not() -> None:
    with Pair() as pair:
        pair.rule = dropping(frames.WRITE_ONLY)
        pair.a.post(WR_WRITE, 0, 8, 0, wr_id=1)
        pair.sim.run_for(0)
        pair.a.qp.modify({"qp_state": SQD, "en_sqd_async_notify": 1}, 1 | 4)
        pair.a.post(WR_WRITE, 0, 8, 0, wr_id=2)
        assert pair.a.qp.query()["sq_draining"] == 1
        assert [wc.wr_id for wc in pair.a.wait()] == [1]
        pair.sim.settle()
        assert [event for event, _ in pair.a.node.events() if event == EVENT_SQ_DRAINED] == [EVENT_SQ_DRAINED]
        assert pair.a.qp.query()["sq_draining"] == 0
        assert pair.a.polled() == []
        move(pair.a.qp, RTS)
        assert [wc.wr_id for wc in pair.a.wait()] == [2]


def test_error_while_draining_flushes() -> None:
    with Pair(retry_cnt=0) as pair:
        pair.rule = silence
        pair.a.post(WR_WRITE, 0, 8, 0)
        pair.sim.run_for(0)
        move(pair.a.qp, SQD)
        pair.a.post(WR_WRITE, 0, 8, 0)
        assert [wc.status for wc in pair.a.wait(2)] == [RETRY_EXC_ERR, FLUSH_ERR]


def test_moving_to_err_flushes_in_order_and_later_posts_too() -> None:
    with Pair() as pair:
        pair.rule = silence
        for number in range(4):
            pair.a.post((WR_SEND, WR_WRITE, WR_READ, WR_WRITE_IMM)[number], 0, 8, 0, wr_id=number, flags=0)
        pair.sim.run_for(0)
        move(pair.a.qp, ERR)
        pair.a.post(WR_SEND, 0, 8, wr_id=4, flags=0)
        wcs = pair.a.wait(5)
        assert [(wc.wr_id, wc.status) for wc in wcs] == [(number, FLUSH_ERR) for number in range(5)]
        assert (pair.a.count(SEND), pair.a.count(WRITE), pair.a.count(READ)) == ((0, 2), (0, 2), (0, 1))
        pair.sim.settle()
        assert pair.a.node.port.deadline() == 0


def test_reset_forgets_and_the_pair_works_again() -> None:
    with Pair() as pair:
        pair.a.post(WR_WRITE, 0, 8, 0, flags=0)
        pair.b.post(WR_WRITE, 0, 8, 0)
        pair.sim.settle()
        assert pair.b.cq.count() == 1
        pair.rule = silence
        pair.a.post(WR_WRITE, 0, 8, 0)
        pair.sim.run_for(0)
        pair.rule = None
        for end in (pair.a, pair.b):
            move(end.qp, 0)
        pair.sim.settle()
        assert pair.a.polled() == pair.b.polled() == []
        assert pair.a.count(WRITE) == pair.b.count(WRITE) == (1, 0)
        pair.connect(sq_psn=77, rq_psn=77)
        pair.a.post(WR_WRITE, 0, 8, 0)
        assert pair.a.status() == SUCCESS
        assert pair.a.count(WRITE) == (2, 0)
