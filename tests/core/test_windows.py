# SPDX-License-Identifier: MIT
"""Memory windows of type 2 through the data path: bound by a work request, opened to a peer, closed again."""

from types import SimpleNamespace
from typing import Any

import pytest
from tests.netsim import frames
from tests.netsim.pair import (
    FLUSH_ERR,
    MW_BIND_ERR,
    OPS,
    REM_ACCESS_ERR,
    REM_INV_REQ_ERR,
    SIGNALED,
    SUCCESS,
    WR_BIND,
    WR_FAA,
    WR_LOCAL_INV,
    WR_READ,
    WR_SEND,
    WR_SEND_INV,
    WR_WRITE,
    End,
    Pair,
    dropping,
)
from tests.netsim.sim import ALL, ERR, LOCAL_WRITE, MW_BIND, RTS, SECOND
from tests.netsim.sim import REMOTE_READ as CAN_READ
from tests.netsim.sim import REMOTE_WRITE as CAN_WRITE

BIND_OP, INV_OP, RECV_OP = 5, 6, 128
WITH_INV = 8
TYPE_1, TYPE_2 = 1, 2
ZERO_BASED = 32


def window(end: End, kind: int = TYPE_2) -> Any:
    return end.node.port.regions.allocate_window(end.pd, kind)


def bind(
    end: End, mw: Any, offset: int, length: int, access: int = CAN_WRITE | CAN_READ, mr: Any = None, wr_id: int = 0
) -> int:
    """Posts a BIND_MW; the window's new key."""
    info = SimpleNamespace(mr=mr or end.memory.mr, addr=end.memory.iova + offset, length=length, mw_access_flags=access)
    wr = end.wr(WR_BIND, wr_id=wr_id)
    wr.set_bind_wr(mw, info)
    end.qp.post_send(wr)
    return int(wr.rkey)


def test_bound_window_opens_its_range_and_nothing_else() -> None:
    with Pair() as pair:
        a, b = pair.a, pair.b
        key = bind(b, window(b), 0x1000, 64)
        wc = b.wait()[0]
        assert (wc.status, wc.opcode) == (SUCCESS, BIND_OP)
        a.memory.put(0, b"x" * 64)
        a.post(WR_WRITE, 0, 64, 0x1000, rkey=key)
        a.post(WR_READ, 0x100, 64, 0x1000, rkey=key)
        assert [wc.status for wc in a.wait(2)] == [SUCCESS, SUCCESS]
        assert b.memory.at(0x1000, 65) == b"x" * 64 + b"\0"
        a.post(WR_WRITE, 0, 64, 0x1001, rkey=key)
        assert a.status() == REM_ACCESS_ERR


@pytest.mark.parametrize(
    ("opcode", "access"), [(WR_WRITE, CAN_READ), (WR_READ, CAN_WRITE), (WR_FAA, CAN_READ | CAN_WRITE)]
)
def test_window_grants_only_its_rights(opcode: int, access: int) -> None:
    with Pair() as pair:
        key = bind(pair.b, window(pair.b), 0x1000, 64, access=access)
        assert pair.b.status() == SUCCESS
        pair.a.post(opcode, 0, 8, 0x1000, rkey=key)
        assert pair.a.status() == REM_ACCESS_ERR


def test_zero_based_window() -> None:
    with Pair() as pair:
        key = bind(pair.b, window(pair.b), 0x1000, 64, access=CAN_WRITE | ZERO_BASED)
        assert pair.b.status() == SUCCESS
        pair.a.memory.put(0, b"zero")
        pair.a.post(WR_WRITE, 0, 4, -pair.b.memory.iova + 8, rkey=key)
        assert pair.a.status() == SUCCESS
        assert pair.b.memory.at(0x1008, 4) == b"zero"


def test_window_is_for_the_queue_pair_that_bound_it() -> None:
    with Pair() as pair:
        b = pair.b
        key = bind(b, window(b), 0x1000, 64)
        assert b.status() == SUCCESS
        other = b.node.qp(b.pd, b.cq)
        regions = b.node.port.regions
        assert regions.translate(key, b.memory.iova + 0x1000, 64, CAN_WRITE, b.pd, other.qp_num) == 0
        assert "bound to QP" in regions.explain(key, b.memory.iova + 0x1000, 64, CAN_WRITE, b.pd, other.qp_num)
        assert "not to" in regions.invalidate(key, b.pd, other.qp_num)
        assert "protection domain" in regions.invalidate(key, b.node.pd(), b.qp.qp_num)


def test_local_invalidate_closes_the_window() -> None:
    with Pair() as pair:
        mw = window(pair.b)
        key = bind(pair.b, mw, 0x1000, 64)
        pair.b.post(WR_LOCAL_INV, imm=key)
        assert [(wc.status, wc.opcode) for wc in pair.b.wait(2)] == [(SUCCESS, BIND_OP), (SUCCESS, INV_OP)]
        pair.a.post(WR_WRITE, 0, 8, 0x1000, rkey=key)
        assert pair.a.status() == REM_ACCESS_ERR
        assert pair.b.memory.at(0x1000, 8) == bytes(8)
        assert all(pair.b.count(op) == (0, 0) for op in OPS), "neither is counted anywhere"


def test_window_can_be_bound_again_under_a_new_key() -> None:
    with Pair() as pair:
        b = pair.b
        mw = window(b)
        old = bind(b, mw, 0x1000, 64)
        b.post(WR_LOCAL_INV, imm=old)
        assert len(b.wait(2)) == 2
        new = bind(b, mw, 0x2000, 64)
        assert b.status() == SUCCESS
        assert new != old
        assert new >> 8 == old >> 8
        pair.a.post(WR_WRITE, 0, 8, 0x2000, rkey=new)
        assert pair.a.status() == SUCCESS
        pair.a.post(WR_WRITE, 0, 8, 0x2000, rkey=old)
        assert pair.a.status() == REM_ACCESS_ERR


def test_send_with_invalidate_closes_the_peers_window() -> None:
    with Pair() as pair:
        a, b = pair.a, pair.b
        key = bind(b, window(b), 0x1000, 64)
        assert b.status() == SUCCESS
        b.receive(0, 1000)
        pair.rule = dropping(frames.ACKNOWLEDGE, times=2)
        a.post(WR_SEND_INV, 0, 1000, imm=key)
        assert a.status() == SUCCESS
        wc = b.polled()[0]
        assert (wc.opcode, wc.byte_len, wc.wc_flags, wc.imm_data) == (RECV_OP, 1000, WITH_INV, key)
        a.post(WR_WRITE, 0, 8, 0x1000, rkey=key)
        assert a.status() == REM_ACCESS_ERR


def test_send_with_invalidate_of_a_key_that_cannot_be_invalidated() -> None:
    with Pair() as pair:
        pair.b.receive(0, 8)
        pair.a.post(WR_SEND_INV, 0, 8, imm=pair.b.memory.key)
        assert pair.a.status() == REM_INV_REQ_ERR
        assert [wc.status for wc in pair.b.polled()] == [REM_INV_REQ_ERR]
        assert "type 2" in pair.b.node.log[0]


def test_bind_waits_for_everything_before_it() -> None:
    """IBA 10.8.3.3. What comes after it waits too."""
    with Pair() as pair:
        pair.rule = dropping(frames.WRITE_ONLY)
        pair.a.post(WR_WRITE, 0, 8, 0, wr_id=1)
        bind(pair.a, window(pair.a), 0, 64, wr_id=2)
        pair.a.post(WR_WRITE, 0, 8, 0, wr_id=3)
        pair.sim.run_for(SECOND // 100)
        assert len(pair.wire) == 1
        assert [wc.wr_id for wc in pair.a.wait(3)] == [1, 2, 3]


def test_unsignaled_bind_makes_no_completion() -> None:
    with Pair() as pair:
        wr = pair.a.wr(WR_BIND, flags=0)
        mr = pair.a.memory.mr
        wr.set_bind_wr(
            window(pair.a), SimpleNamespace(mr=mr, addr=pair.a.memory.iova, length=8, mw_access_flags=CAN_READ)
        )
        pair.a.qp.post_send(wr)
        pair.a.post(WR_WRITE, 0, 8, 0, wr_id=9)
        assert [wc.wr_id for wc in pair.a.wait(1)] == [9]


def fails(end: End, reason: str) -> None:
    """The bind fails and takes the queue pair with it."""
    end.post(WR_SEND, 0, 8, flags=SIGNALED)
    first, second = end.wait(2)
    assert (first.status, second.status) == (MW_BIND_ERR, FLUSH_ERR)
    assert reason in first.reason
    assert end.qp.state == ERR


@pytest.mark.parametrize(("offset", "length"), [(-1, 8), (0x10000 - 4, 8), (0, 0x10001), (1 << 40, 8)])
def test_window_beyond_its_region(offset: int, length: int) -> None:
    with Pair() as pair:
        bind(pair.a, window(pair.a), offset, length)
        fails(pair.a, "not inside")


def test_region_must_allow_windows() -> None:
    with Pair() as pair:
        mr = pair.a.node.region(pair.a.pd, 0x10000, access=ALL & ~MW_BIND).mr
        bind(pair.a, window(pair.a), 0, 8, mr=mr)
        fails(pair.a, "MW_BIND")


def test_region_must_be_writable_for_a_window_that_is() -> None:
    with Pair() as pair:
        mr = pair.a.node.region(pair.a.pd, 0x10000, access=MW_BIND | CAN_READ).mr
        bind(pair.a, window(pair.a), 0, 8, mr=mr)
        fails(pair.a, "LOCAL_WRITE")


def test_region_of_another_protection_domain() -> None:
    with Pair() as pair:
        mr = pair.a.node.region(pair.a.node.pd(), 0x10000).mr
        bind(pair.a, window(pair.a), 0, 8, mr=mr)
        fails(pair.a, "different protection domains")


def test_window_is_bound_already() -> None:
    with Pair() as pair:
        mw = window(pair.a)
        bind(pair.a, mw, 0, 8)
        assert pair.a.status() == SUCCESS
        bind(pair.a, mw, 0, 8)
        fails(pair.a, "bound already")


def test_window_is_gone() -> None:
    with Pair() as pair:
        mw = window(pair.a)
        key = mw.rkey
        pair.a.node.port.regions.deregister(mw)
        bind(pair.a, SimpleNamespace(rkey=key), 0, 8)
        fails(pair.a, "gone")


def test_a_region_is_no_window_and_a_window_no_region() -> None:
    """The keys look alike: neither may stand in for the other, or a region would change its place."""
    for exchanged in (False, True):
        with Pair() as pair:
            mw = window(pair.a)
            bind(pair.a, mw, 0, 64)
            assert pair.a.status() == SUCCESS
            if exchanged:
                bind(pair.a, window(pair.a), 0, 8, mr=SimpleNamespace(lkey=mw.rkey))
            else:
                bind(pair.a, SimpleNamespace(rkey=pair.a.memory.key), 0, 8)
            fails(pair.a, "only")
            assert pair.a.memory.mr.length == 0x10000


@pytest.mark.parametrize("what", ["region", "nothing", "type 1"])
def test_local_invalidate_of_what_is_no_window_of_type_2(what: str) -> None:
    with Pair() as pair:
        key = {"region": pair.a.memory.key, "nothing": 0xABCDEF, "type 1": window(pair.a, TYPE_1).rkey}[what]
        pair.a.post(WR_LOCAL_INV, imm=key)
        fails(pair.a, "cannot be invalidated" if what == "nothing" else "type 2")


def test_a_failing_bind_waits_for_what_is_lost_before_it() -> None:
    with Pair() as pair:
        pair.rule = dropping(frames.WRITE_ONLY)
        pair.a.post(WR_WRITE, 0, 8, 0, wr_id=1)
        pair.a.post(WR_LOCAL_INV, imm=0xABCDEF, wr_id=2)
        assert [(wc.wr_id, wc.status) for wc in pair.a.wait(2)] == [(1, SUCCESS), (2, MW_BIND_ERR)]
        assert pair.b.qp.state == RTS


def test_region_under_a_window_stays() -> None:
    with Pair() as pair:
        own = pair.a.node.region(pair.a.pd, 64, access=LOCAL_WRITE | MW_BIND | CAN_READ)
        mw = window(pair.a)
        bind(pair.a, mw, 0, 64, access=CAN_READ, mr=own.mr)
        assert pair.a.status() == SUCCESS
        with pytest.raises(Exception, match="memory windows are bound"):
            own.deregister()
        pair.a.node.port.regions.deregister(mw)
        own.deregister()
