# SPDX-License-Identifier: MIT
"""Every access check of the reliable connection: the status that the specification gives, and the reason in words."""

import logging
from typing import Any

import pytest
from tests.pyverbs.world import ALL, REMOTE, SIZE, Side, World, set_state

from softverbs.pyverbs import libibverbs_enums as e
from softverbs.pyverbs.mr import MR
from softverbs.pyverbs.pd import PD
from softverbs.pyverbs.pyverbs_error import PyverbsRDMAError
from softverbs.pyverbs.wr import SGE, SendWR

OK, FLUSHED = e.IBV_WC_SUCCESS, e.IBV_WC_WR_FLUSH_ERR
WRITE, WRITE_IMM, SEND, READ = e.IBV_WR_RDMA_WRITE, e.IBV_WR_RDMA_WRITE_WITH_IMM, e.IBV_WR_SEND, e.IBV_WR_RDMA_READ
SWAP, ADD = e.IBV_WR_ATOMIC_CMP_AND_SWP, e.IBV_WR_ATOMIC_FETCH_AND_ADD
LOCAL = e.IBV_ACCESS_LOCAL_WRITE
BAD_KEY = 0xBAD00
ONE_SIDED = [WRITE, WRITE_IMM, READ, ADD, SWAP]

#: The right that each operation needs of the region and of the queue pair it arrives at.
RIGHT = {
    WRITE: e.IBV_ACCESS_REMOTE_WRITE,
    WRITE_IMM: e.IBV_ACCESS_REMOTE_WRITE,
    READ: e.IBV_ACCESS_REMOTE_READ,
    ADD: e.IBV_ACCESS_REMOTE_ATOMIC,
    SWAP: e.IBV_ACCESS_REMOTE_ATOMIC,
}


def fails(world: World, first: Any, wr: SendWR, status: int) -> str:
    """Posts a request and one after it: the first fails with ``status``, the second is flushed. Returns the reason."""
    world.a.poll()
    first.post_send(wr)
    first.post_send(world.a.wr(WRITE, 99))
    world.settle()
    one, two = world.a.poll()
    assert (one.wr_id, one.status) == (wr.wr_id, status), one.reason
    assert (two.wr_id, two.status) == (99, FLUSHED)
    assert first.qp_state == e.IBV_QPS_ERR
    assert one.reason and two.reason
    return str(one.reason)


def local_element(side: Side, case: str) -> SGE:
    """An element that may not be used."""
    if case == "unknown key":
        return SGE(side.mr.buf, 8, BAD_KEY)
    if case == "before the region":
        return SGE(side.mr.buf - 1, 8, side.mr.lkey)
    if case == "past the end":
        return side.sge(8, SIZE - 7)
    if case == "far away":
        return SGE(2**64 - 8, 8, side.mr.lkey)
    if case == "longer than the region":
        return side.sge(2**32 - 1)
    if case == "another domain":
        side.kept = MR(PD(side.context), bytearray(64), ALL)  # type: ignore[attr-defined]
        return SGE(side.kept.buf, 8, side.kept.lkey)  # type: ignore[attr-defined]
    assert case == "closed region"
    with MR(side.pd, bytearray(64), ALL) as gone:
        return SGE(gone.buf, 8, gone.lkey)


LOCAL_CASES = ["unknown key", "before the region", "past the end", "far away", "another domain", "closed region"]


@pytest.mark.parametrize("case", LOCAL_CASES)
@pytest.mark.parametrize("opcode", [SEND, WRITE, READ, ADD])
def test_a_bad_local_element_is_a_local_protection_error(world: World, opcode: int, case: str) -> None:
    first, second = world.pair()
    world.b.post_recv(second, 5)
    wr = world.a.wr(opcode, 1, sg=[local_element(world.a, case)])
    assert fails(world, first, wr, e.IBV_WC_LOC_PROT_ERR)
    assert world.b.memory == bytes(SIZE), "nothing arrived"
    assert world.b.done() == []


@pytest.mark.parametrize("case", ["unknown key", "past the end"])
def test_one_bad_element_among_good_ones_is_enough(world: World, case: str) -> None:
    first, second = world.pair()
    world.b.post_recv(second, 5)
    wr = world.a.wr(SEND, 1, sg=[world.a.sge(3), world.a.sge(2000, 5), local_element(world.a, case)])
    fails(world, first, wr, e.IBV_WC_LOC_PROT_ERR)


@pytest.mark.parametrize("opcode", [READ, ADD, SWAP])
def test_what_a_read_brings_needs_local_write(world: World, opcode: int) -> None:
    memory = bytearray(64)
    mr = MR(world.a.pd, memory, 0)
    first, _ = world.pair()
    wr = world.a.wr(opcode, 1, sg=[SGE(mr.buf, 8, mr.lkey)])
    assert "LOCAL_WRITE" in fails(world, first, wr, e.IBV_WC_LOC_PROT_ERR)
    assert memory == bytes(64)


def test_what_is_sent_needs_no_right_at_all(world: World) -> None:
    mr = MR(world.a.pd, b"constant", 0)
    first, second = world.pair()
    world.b.post_recv(second, 5)
    first.post_send(world.a.wr(SEND, 1, sg=[SGE(mr.buf, 8, mr.lkey)]))
    world.run()
    assert world.a.done() == [(1, OK)]
    assert world.b.memory[:8] == b"constant"


# -- receives


@pytest.mark.parametrize("case", LOCAL_CASES)
def test_a_bad_receive_fails_at_both_ends(world: World, case: str) -> None:
    first, second = world.pair()
    world.b.post_recv(second, 5, sg=[local_element(world.b, case)])
    world.b.post_recv(second, 6)
    fails(world, first, world.a.wr(SEND, 1), e.IBV_WC_REM_OP_ERR)
    assert world.b.done() == [(5, e.IBV_WC_LOC_PROT_ERR), (6, FLUSHED)]
    assert second.qp_state == e.IBV_QPS_ERR


def test_a_receive_needs_local_write(world: World) -> None:
    mr = MR(world.b.pd, bytearray(64), e.IBV_ACCESS_REMOTE_READ)
    first, second = world.pair()
    world.b.post_recv(second, 5, sg=[SGE(mr.buf, 64, mr.lkey)])
    fails(world, first, world.a.wr(SEND, 1), e.IBV_WC_REM_OP_ERR)
    (wc,) = world.b.poll()
    assert (wc.wr_id, wc.status) == (5, e.IBV_WC_LOC_PROT_ERR)
    assert "LOCAL_WRITE" in wc.reason


@pytest.mark.parametrize("length", [65, 1024, 5000])
def test_a_message_longer_than_its_receive(world: World, length: int) -> None:
    first, second = world.pair()
    world.b.post_recv(second, 5, length=64, offset=100)
    world.b.post_recv(second, 6)
    fails(world, first, world.a.wr(SEND, 1, length), e.IBV_WC_REM_INV_REQ_ERR)
    assert world.b.done() == [(5, e.IBV_WC_LOC_LEN_ERR), (6, FLUSHED)]
    assert world.b.memory[164:] == bytes(SIZE - 164), "nothing beyond the receive"


def test_a_receive_that_is_not_used_may_be_bad(world: World) -> None:
    """The key of a receive is looked at when a message takes it, and only where bytes go."""
    first, second = world.pair()
    world.b.post_recv(second, 5, sg=[world.b.sge(8), SGE(0, 100, BAD_KEY)])
    first.post_send(world.a.wr(SEND, 1, 8))
    world.run()
    assert world.a.done() == [(1, OK)]
    assert world.b.done() == [(5, OK)]


# -- remote


@pytest.mark.parametrize("opcode", ONE_SIDED)
@pytest.mark.parametrize("case", ["unknown key", "another domain", "closed region", "past the end", "before", "wraps"])
def test_a_bad_remote_range_is_a_remote_access_error(world: World, opcode: int, case: str) -> None:
    first, second = world.pair()
    world.b.post_recv(second, 5)
    wr = world.a.wr(opcode, 1)
    mr, address = world.b.mr, world.b.mr.buf
    key = mr.rkey
    if case == "unknown key":
        key = BAD_KEY
    elif case == "another domain":
        other = MR(PD(world.b.context), world.b.memory, ALL)
        key = other.rkey
    elif case == "closed region":
        with MR(world.b.pd, world.b.memory, ALL) as gone:
            key = gone.rkey
    else:
        address = {"past the end": mr.buf + SIZE, "before": mr.buf - 8, "wraps": 2**64 - 8}[case]
    if opcode in (ADD, SWAP):
        wr.set_wr_atomic(key, address, 1, 1)
    else:
        wr.set_wr_rdma(key, address)
    reason = fails(world, first, wr, e.IBV_WC_REM_ACCESS_ERR)
    assert f"{key:#x}" in reason
    assert world.b.memory == bytes(SIZE)
    assert second.qp_state == e.IBV_QPS_ERR


@pytest.mark.parametrize("opcode", [WRITE, READ])
def test_a_range_that_begins_inside_and_ends_outside(world: World, opcode: int) -> None:
    first, _ = world.pair()
    fails(world, first, world.a.wr(opcode, 1, 5000, at=SIZE - 4999), e.IBV_WC_REM_ACCESS_ERR)
    assert world.a.memory == bytes(SIZE)


@pytest.mark.row("3: REM_ACCESS_ERR")
@pytest.mark.parametrize("opcode", ONE_SIDED)
@pytest.mark.parametrize("over", ["loopback", "network"])
def test_a_right_that_the_region_lacks(build: Any, over: str, opcode: int, caplog: pytest.LogCaptureFixture) -> None:
    """The reason names the key, the range asked for, the range registered and the right; the log has it, too."""
    world = build(over, explain="always")
    memory = bytearray(4096)
    mr = MR(world.b.pd, memory, LOCAL | REMOTE & ~RIGHT[opcode])
    first, second = world.pair()
    world.b.post_recv(second, 5)
    wr = world.a.wr(opcode, 1)
    at = mr.buf + 64
    if opcode in (ADD, SWAP):
        wr.set_wr_atomic(mr.rkey, at, 1, 1)
    else:
        wr.set_wr_rdma(mr.rkey, at)
    with caplog.at_level(logging.DEBUG, "softverbs"):
        reason = fails(world, first, wr, e.IBV_WC_REM_ACCESS_ERR)
    right = {e.IBV_ACCESS_REMOTE_WRITE: "REMOTE_WRITE", e.IBV_ACCESS_REMOTE_READ: "REMOTE_READ"}
    asked = (f"{mr.rkey:#x}", f"{at:#x}", "8 bytes")
    for part in (*asked, f"{mr.buf:#x}", f"{mr.buf + 4096:#x}", right.get(RIGHT[opcode], "REMOTE_ATOMIC")):
        assert part in reason, reason
    assert any(f"{mr.rkey:#x}" in record.getMessage() for record in caplog.records)
    assert memory == bytes(4096)


@pytest.mark.row("3: REM_ACCESS_ERR")
@pytest.mark.parametrize(
    ("over", "explain", "told"),
    [
        ("network", "always", True),
        ("network", "local", True),
        ("network", "never", False),
        ("loopback", "local", True),
        ("udp", "local", True),
    ],
)
def test_who_is_told_why_is_an_option(build: Any, over: str, explain: str, told: bool) -> None:
    """What only the peer knows, the range that it registered, it tells those on its own host, all, or none."""
    world = build(over, explain=explain)
    first, _ = world.pair()
    first.post_send(world.a.wr(WRITE, 1, at=SIZE))
    found: list[Any] = []
    world.until(lambda: found.extend(world.a.poll()) or found)
    assert found[0].status == e.IBV_WC_REM_ACCESS_ERR
    assert (f"{world.b.mr.buf:#x}" in found[0].reason) is told, found[0].reason
    assert f"{world.b.mr.rkey:#x}" in found[0].reason


@pytest.mark.parametrize("opcode", ONE_SIDED)
def test_a_right_that_the_queue_pair_lacks_is_an_invalid_request(world: World, opcode: int) -> None:
    first, second = world.pair(qp_access_flags=REMOTE & ~RIGHT[opcode])
    world.b.post_recv(second, 5)
    fails(world, first, world.a.wr(opcode, 1), e.IBV_WC_REM_INV_REQ_ERR)
    assert world.b.memory == bytes(SIZE)


@pytest.mark.parametrize("opcode", ONE_SIDED)
def test_each_right_alone_is_enough_for_its_operation(world: World, opcode: int) -> None:
    mr = MR(world.b.pd, bytearray(64), RIGHT[opcode] | (0 if opcode == READ else LOCAL))
    first, second = world.pair(qp_access_flags=RIGHT[opcode])
    world.b.post_recv(second, 5)
    wr = world.a.wr(opcode, 1)
    if opcode in (ADD, SWAP):
        wr.set_wr_atomic(mr.rkey, mr.buf, 1, 1)
    else:
        wr.set_wr_rdma(mr.rkey, mr.buf)
    first.post_send(wr)
    world.run()
    assert world.a.done() == [(1, OK)]


@pytest.mark.parametrize("opcode", [WRITE, READ])
@pytest.mark.parametrize("key", [0, BAD_KEY])
def test_0_bytes_need_no_key(world: World, opcode: int, key: int) -> None:
    """IBA 9.6.2 and 11.4.1.1: no access is checked where there is nothing to access."""
    first, _ = world.pair()
    wr = SendWR(1, opcode)
    wr.set_wr_rdma(key, 0xDEADBEEF000)
    first.post_send(wr)
    world.settle()
    assert world.a.done() == [(1, OK)]


@pytest.mark.parametrize("opcode", [ADD, SWAP])
@pytest.mark.parametrize("shift", [1, 4, 7])
def test_an_atomic_that_is_not_aligned_is_an_invalid_request(world: World, opcode: int, shift: int) -> None:
    first, _ = world.pair()
    fails(world, first, world.a.wr(opcode, 1, at=shift), e.IBV_WC_REM_INV_REQ_ERR)
    assert world.b.memory == bytes(SIZE)


@pytest.mark.parametrize("opcode", [READ, ADD])
def test_a_peer_that_serves_no_reads_refuses_them(world: World, opcode: int) -> None:
    first, second = world.a.qp(), world.b.qp()
    first.to_rts(world.attr(first, second.qp_num))
    second.to_rts(world.attr(second, first.qp_num, max_dest_rd_atomic=0))
    fails(world, first, world.a.wr(opcode, 1), e.IBV_WC_REM_INV_REQ_ERR)


def test_a_region_with_an_iova_is_reached_by_it(world: World) -> None:
    memory = bytearray(4096)
    mr = MR(world.b.pd, memory, ALL, iova=0x10000)
    first, second = world.pair()
    wr = world.a.wr(WRITE, 1)
    world.a.memory[:8] = b"relative"
    wr.set_wr_rdma(mr.rkey, 0x10010)
    first.post_send(wr)
    world.b.post_recv(second, 5, sg=[SGE(0x10020, 8, mr.lkey)])
    first.post_send(world.a.wr(SEND, 2))
    world.run()
    assert world.a.done() == [(1, OK), (2, OK)]
    assert memory[0x10:0x18] == memory[0x20:0x28] == b"relative"
    wr = world.a.wr(WRITE, 3)
    wr.set_wr_rdma(mr.rkey, mr.buf)
    fails(world, first, wr, e.IBV_WC_REM_ACCESS_ERR)


def test_a_region_that_is_closed_under_traffic_is_refused_from_then_on(world: World) -> None:
    mr = MR(world.b.pd, bytearray(64), ALL)
    first, _ = world.pair()
    wr = world.a.wr(WRITE, 1)
    wr.set_wr_rdma(mr.rkey, mr.buf)
    first.post_send(wr)
    world.run()
    assert world.a.done() == [(1, OK)]
    mr.close()
    fails(world, first, wr, e.IBV_WC_REM_ACCESS_ERR)


# -- windows


def test_a_window_opens_its_part_with_its_rights_and_no_more(world: World) -> None:
    outcomes = []
    for opcode, at in ((WRITE, 0), (WRITE, 92), (WRITE, 93), (READ, 0), (WRITE, 100)):
        first, second = world.pair()
        window = world.b.window()
        second.post_send(world.b.bind(window, 1, 100, e.IBV_ACCESS_REMOTE_WRITE))
        world.run()
        first.post_send(world.a.wr(opcode, 2, at=at, key=window.rkey))
        world.settle()
        outcomes += [status for _, status in world.a.done()]
    refused = e.IBV_WC_REM_ACCESS_ERR
    assert outcomes == [OK, OK, refused, refused, refused]


def test_a_window_is_open_to_its_queue_pair_alone(world: World) -> None:
    """Type 2B: bound through one QP, it serves no other."""
    _, second = world.pair()
    other, _ = world.pair()
    window = world.b.window()
    second.post_send(world.b.bind(window))
    world.run()
    fails(world, other, world.a.wr(WRITE, 2, key=window.rkey), e.IBV_WC_REM_ACCESS_ERR)


def test_binding_what_cannot_be_bound_is_a_bind_error(world: World) -> None:
    first, _ = world.pair()
    unbindable = MR(world.a.pd, bytearray(64), ALL & ~e.IBV_ACCESS_MW_BIND)
    wr = world.a.bind(world.a.window(), 1, 64, mr=unbindable)
    assert "MW_BIND" in fails(world, first, wr, e.IBV_WC_MW_BIND_ERR)


def test_a_send_that_invalidates_an_ordinary_region_fails_and_leaves_the_region_alone(world: World) -> None:
    first, second = world.pair()
    world.b.post_recv(second, 5)
    first.post_send(world.a.wr(e.IBV_WR_SEND_WITH_INV, 1, imm=world.b.mr.rkey))
    world.settle()
    (wc,) = world.b.poll()
    assert (wc.wr_id, second.qp_state) == (5, e.IBV_QPS_ERR)
    assert wc.status not in (OK, FLUSHED)
    assert f"{world.b.mr.rkey:#x}" in wc.reason
    world.a.poll()
    third, _ = world.pair()
    third.post_send(world.a.wr(WRITE, 2))
    world.run()
    assert world.a.done() == [(2, OK)]


# -- reasons, and what is refused when it is posted


@pytest.mark.row("3: RETRY_EXC_ERR")
@pytest.mark.parametrize("heard", [False, True])
def test_giving_up_names_the_peer_the_psn_and_what_was_last_heard(build: Any, heard: bool) -> None:
    world = build(wire=True)
    first, second = world.pair(sq_psn=0x123456, rq_psn=0x123456, timeout=10, retry_cnt=1)
    if heard:
        first.post_send(world.a.wr(WRITE, 1))
        world.run()
    world.wire.rule = lambda _: []
    reason = fails(world, first, world.a.wr(WRITE, 2), e.IBV_WC_RETRY_EXC_ERR)
    assert "10.0.0.2" in reason
    assert f"{second.qp_num:#x}" in reason
    assert ("0x123457" if heard else "0x123456") in reason
    assert "heard" in reason


def test_a_message_of_1_gib_is_the_limit(build: Any) -> None:
    """The region is shorter, so that nothing is sent: what the limit allows fails there, what it forbids before."""
    world = build()
    limit = world.a.context.query_port(1).max_msg_sz
    assert limit == 1 << 30
    first, _ = world.pair()
    halves = [world.a.sge(limit // 2)] * 2
    with pytest.raises(PyverbsRDMAError, match=str(limit)):
        first.post_send(world.a.wr(WRITE, 1, sg=[*halves, world.a.sge(1)]))
    fails(world, first, world.a.wr(WRITE, 2, sg=halves), e.IBV_WC_LOC_PROT_ERR)


@pytest.mark.parametrize("flags", [1 << 5, 1 << 31])
def test_unknown_flags_are_refused(build: Any, flags: int) -> None:
    world = build()
    first, _ = world.pair()
    with pytest.raises(PyverbsRDMAError, match="flags"):
        first.post_send(world.a.wr(WRITE, flags=flags))


@pytest.mark.parametrize("opcode", [10, 11, 12, 99, 255])
def test_operations_that_do_not_exist_are_refused(build: Any, opcode: int) -> None:
    world = build()
    first, _ = world.pair()
    with pytest.raises(PyverbsRDMAError, match=str(opcode)):
        first.post_send(SendWR(1, opcode))
    world.run()
    assert world.a.done() == []


@pytest.mark.parametrize("lengths", [[], [4], [16], [4, 8]])
def test_an_atomic_returns_8_bytes(build: Any, lengths: list[int]) -> None:
    world = build()
    first, _ = world.pair()
    with pytest.raises(PyverbsRDMAError, match="8 bytes"):
        first.post_send(world.a.wr(ADD, sg=[world.a.sge(length) for length in lengths]))


def test_the_failing_request_keeps_its_status_and_all_others_are_flushed_in_order(world: World) -> None:
    first, second = world.pair()
    for wr_id in range(10):
        first.post_send(world.a.wr((WRITE, READ)[wr_id % 2], wr_id, key=BAD_KEY if wr_id in (3, 5) else None,
                                   flags=0 if wr_id in (1, 3, 7) else e.IBV_SEND_SIGNALED))  # fmt: skip
    world.b.post_recv(second, 20, 21)
    world.settle()
    flushed = [(wr_id, FLUSHED) for wr_id in range(4, 10)]
    assert world.a.done() == [(0, OK), (2, OK), (3, e.IBV_WC_REM_ACCESS_ERR), *flushed]
    set_state(second, e.IBV_QPS_ERR)
    assert world.b.done() == [(20, FLUSHED), (21, FLUSHED)]
