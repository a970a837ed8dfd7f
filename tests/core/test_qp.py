# SPDX-License-Identifier: MIT
"""The queue pair without the Python face: what creation, posting and changes of state refuse; what a state ignores."""

import errno
from typing import Any

import pytest
from tests.netsim import frames
from tests.netsim.pair import (
    INLINE,
    SIGNALED,
    SUCCESS,
    WR_BIND,
    WR_CAS,
    WR_FAA,
    WR_LOCAL_INV,
    WR_READ,
    WR_SEND,
    WR_SEND_INV,
    WR_WRITE,
    End,
    Pair,
)
from tests.netsim.sim import CAP, ERR, INIT, PATH, QPT_RC, RESET, RTR, RTS, SECOND, SQD, Sim, connect, move

from softverbs.core.base.errors import PyverbsRDMAError
from softverbs.core.base.limits import Options
from softverbs.core.queues.operations import operation_name
from softverbs.core.queues.wr import SGE
from softverbs.core.transport.address import AddressVector
from softverbs.core.transport.qp import QueuePair
from softverbs.core.transport.qp_states import (
    ALT_PATH,
    AV,
    CUR_STATE,
    DEST_QPN,
    MAX_DEST_RD_ATOMIC,
    MIN_RNR_TIMER,
    PATH_MIG_STATE,
    PATH_MTU,
    RQ_PSN,
    STATE,
)


def refused(code: int, words: str, act: Any, *args: Any) -> None:
    with pytest.raises(PyverbsRDMAError, match=words) as caught:
        act(*args)
    assert caught.value.errno == code


def back_to_rtr(end: End) -> None:
    """Takes a queue pair through RESET to RTR, towards the same peer."""
    move(end.qp, RESET)
    end.qp.modify({"qp_state": INIT, "pkey_index": 0, "port_num": 1, "qp_access_flags": 7}, STATE | 1 << 4 | 1 << 5 | 8)
    names = ("path_mtu", "rq_psn", "max_dest_rd_atomic", "min_rnr_timer")
    values = {"qp_state": RTR, "ah_attr": AddressVector(end.peer.node.gid), "dest_qp_num": end.peer.qp.qp_num}
    mask = STATE | AV | PATH_MTU | DEST_QPN | RQ_PSN | MAX_DEST_RD_ATOMIC | MIN_RNR_TIMER
    end.qp.modify({**values, **{name: PATH[name] for name in names}}, mask)


# -- creation and destruction


def test_what_cannot_be_created_leaves_nothing_behind() -> None:
    with Sim() as sim:
        node = sim.node()
        pd, cq = node.pd(), node.cq()
        for code, words, srq, cap, kind in (
            (errno.EOPNOTSUPP, "qp_type=8 is not supported; these are: RC", None, CAP, 8),
            (errno.EINVAL, "a QP of type XRC_RECV needs an XRC domain", None, CAP, 10),
            (errno.EINVAL, "max_send_sge=33 is out of range: 0 to 32", None, (1, 1, 33, 1, 0), QPT_RC),
            (errno.EINVAL, "max_recv_wr=-1", None, (1, -1, 1, 1, 0), QPT_RC),
        ):
            refused(code, words, QueuePair, node.port, node, pd, cq, cq, srq, cap, kind, False)
        assert (pd.users, cq.users, list(node.port.live)) == (0, 0, [])


def test_a_queue_pair_closes_once() -> None:
    with Sim() as sim:
        node = sim.node(options=Options(max_qp=1))
        pd, cq = node.pd(), node.cq()
        first = node.qp(pd, cq)
        first.close()
        first.close()
        second = node.qp(pd, cq)
        first.close()
        assert list(node.port.live) == [second]
        assert (pd.users, cq.users) == (1, 2)
        refused(errno.ENOMEM, "1 queue pairs at most", node.qp, pd, cq)


def test_numbers_of_closed_queue_pairs_find_nothing() -> None:
    """The place in the table is given away again, under another number."""
    with Pair() as pair:
        old = pair.b.qp.qp_num
        pair.b.qp.close()
        new = pair.b.node.qp(pair.b.pd, pair.b.cq)
        assert new.qp_num & 0xFFFF == old & 0xFFFF
        assert new.qp_num != old
        pair.a.post(WR_WRITE, 0, 8, 0)
        pair.sim.run_for(1000)
        assert pair.b.node.stats()["dropped_unknown_qp"] == 1


# -- posting


@pytest.mark.parametrize("opcode", [WR_READ, WR_CAS, WR_FAA, WR_LOCAL_INV, WR_BIND])
def test_what_sends_no_payload_cannot_be_inline(opcode: int) -> None:
    with Pair() as pair:
        wr = pair.a.wr(opcode, 0, 8, 0, flags=INLINE | SIGNALED)
        refused(errno.EINVAL, f"SEND_INLINE has no meaning with {operation_name(opcode)}", pair.a.qp.post_send, wr)
        pair.a.post(WR_WRITE, 0, 8, 0, flags=INLINE | SIGNALED, wr_id=5)
        assert [wc.wr_id for wc in pair.a.wait()] == [5]


def test_inline_data_that_cannot_be_read() -> None:
    """Its key need not be right; its memory must be there."""
    with Pair() as pair:
        pair.a.memory.put(0, b"good")
        good = SGE(pair.a.memory.address, 4, 0xBAD)
        wr = pair.a.wr(WR_WRITE, to=0, flags=INLINE | SIGNALED, sg=[good, SGE(8, 4, 0)], wr_id=1)
        refused(errno.EFAULT, "inline data at 0x8, 4 bytes, cannot be read", pair.a.qp.post_send, wr)
        pair.a.post(WR_WRITE, to=0, flags=INLINE | SIGNALED, sg=[good, SGE(8, 0, 0)], wr_id=2)
        assert [(wc.wr_id, wc.status) for wc in pair.a.wait()] == [(2, SUCCESS)]
        assert pair.b.memory.at(0, 4) == b"good"


def test_a_bind_needs_a_window() -> None:
    with Pair() as pair:
        refused(errno.EINVAL, "BIND_MW without a memory window", pair.a.qp.post_send, pair.a.wr(WR_BIND))
        pair.sim.settle()
        assert pair.a.cq.count() == 0
        pair.a.post(WR_WRITE, 0, 8, 0)
        assert pair.a.status() == SUCCESS


def test_the_one_that_is_refused_is_named_and_those_before_it_are_posted() -> None:
    with Pair() as pair:
        last = pair.a.wr(WR_WRITE, 0, 8, 0, wr_id=3)
        bad = pair.a.wr(WR_SEND_INV + 1, wr_id=2)
        bad.next_wr = last
        first = pair.a.wr(WR_WRITE, 0, 8, 0, wr_id=1)
        first.next_wr = bad
        with pytest.raises(PyverbsRDMAError, match="has no operation opcode 10") as caught:
            pair.a.qp.post_send(first)
        assert caught.value.bad_wr is bad
        pair.sim.settle()
        assert [wc.wr_id for wc in pair.a.polled()] == [1]


# -- states


@pytest.mark.parametrize("state", [-1, 7, 2**31 - 1])
def test_states_that_do_not_exist(state: int) -> None:
    with Pair() as pair:
        refused(errno.EINVAL, f"qp_state={state} is no state", pair.a.qp.modify, {"qp_state": state}, STATE)
        assert pair.a.qp.state == RTS


def test_the_state_that_the_application_believes_in() -> None:
    with Pair() as pair:
        values = {"qp_state": SQD, "cur_qp_state": RTR}
        refused(errno.EINVAL, "cur_qp_state=2: the QP is in the state RTS", pair.a.qp.modify, values, STATE | CUR_STATE)
        pair.a.qp.modify({"qp_state": SQD, "cur_qp_state": RTS}, STATE | CUR_STATE)
        assert pair.a.qp.state == SQD


@pytest.mark.parametrize(
    ("values", "mask", "allowed"),
    [
        ({"alt_ah_attr": None}, ALT_PATH, False),
        ({"path_mig_state": 1}, PATH_MIG_STATE, False),
        ({"path_mig_state": 0}, PATH_MIG_STATE, True),
    ],
)
def test_there_is_no_path_migration(values: dict[str, Any], mask: int, allowed: bool) -> None:
    with Pair() as pair:
        if allowed:
            pair.a.qp.modify(values, mask)
        else:
            refused(errno.EINVAL, "path migration is not supported", pair.a.qp.modify, values, mask)
        assert pair.a.qp.state == RTS


def test_answers_mean_nothing_before_rts() -> None:
    with Pair() as pair:
        back_to_rtr(pair.a)
        before = pair.a.qp.query()
        for opcode, header in (
            (frames.ACKNOWLEDGE, frames.put_aeth(frames.NAK_ACCESS)),
            (frames.RESPONSE_ONLY, frames.put_aeth(frames.ACK) + bytes(8)),
            (frames.ATOMIC_ACKNOWLEDGE, frames.put_aeth(frames.ACK) + bytes(8)),
        ):
            pair.inject(pair.b, frames.put_bth(opcode, pair.a.qp.qp_num, 0) + header)
        assert pair.a.qp.query() == before
        assert pair.a.node.events() == []
        assert sum(count for name, count in pair.a.node.stats().items() if name.startswith("dropped")) == 0


def test_a_long_read_is_answered_in_rtr() -> None:
    """Its pauses end by time, which a queue pair that has no requester yet must see too."""
    size = 1 << 20
    with Pair(size=size, options=Options(window=65536)) as pair:
        back_to_rtr(pair.b)
        move(pair.a.qp, RESET)
        connect(pair.a.qp, pair.b.qp, pair.a.node, pair.b.node)
        pair.b.memory.put(0, bytes(range(256)) * (size // 256))
        start = pair.sim.now
        pair.a.post(WR_READ, 0, size, 0)
        assert [wc.status for wc in pair.a.wait(limit=SECOND // 20)] == [SUCCESS]
        assert pair.sim.now > start, "there were pauses"
        assert pair.a.memory.view == pair.b.memory.view
        assert pair.b.qp.state == RTR


def test_a_failed_queue_pair_is_deaf_and_says_so_once() -> None:
    with Pair() as pair:
        move(pair.b.qp, ERR)
        pair.a.post(WR_SEND, 0, 8)
        pair.sim.run_for(1000)
        assert pair.b.node.stats()["dropped_qp_state"] == 1
        assert pair.sent(pair.b) == []
