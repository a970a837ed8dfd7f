# SPDX-License-Identifier: MIT
"""What completion counters count: which operations, when, in which unit, and what of failures."""

from typing import Any

import pytest
from tests.pyverbs.world import (
    ACK,
    ATOMIC_ACK,
    READ_ONLY,
    RECV,
    REMOTE_WRITE,
    WRITE,
    WRITE_LAST,
    World,
    readable,
    set_state,
    values,
)

from softverbs.pyverbs import libibverbs_enums as e
from softverbs.pyverbs.comp_cntr import CompCntr
from softverbs.pyverbs.cq import CQ, CQEX, CqInitAttrEx
from softverbs.pyverbs.pyverbs_error import PyverbsRDMAError
from softverbs.pyverbs.qp import QP

BYTES = e.IBV_COMP_CNTR_TYPE_BYTES
BAD_KEY = 0xBAD00

#: Operation -> what moves at the requester, what moves at the responder.
TICKS: dict[int, tuple[set[str], set[str]]] = {
    e.IBV_WR_SEND: ({"SEND"}, {"RECV"}),
    e.IBV_WR_SEND_WITH_IMM: ({"SEND"}, {"RECV"}),
    e.IBV_WR_RDMA_WRITE: ({"WRITE"}, {"REMOTE_WRITE"}),
    e.IBV_WR_RDMA_WRITE_WITH_IMM: ({"WRITE"}, {"REMOTE_WRITE", "RECV"}),
    e.IBV_WR_RDMA_READ: ({"READ"}, {"REMOTE_READ"}),
    e.IBV_WR_ATOMIC_CMP_AND_SWP: ({"READ"}, {"REMOTE_READ"}),
    e.IBV_WR_ATOMIC_FETCH_AND_ADD: ({"READ"}, {"REMOTE_READ"}),
}
NAMES = {getattr(e, name): name for name in dir(e) if name.startswith("IBV_WR_") and "TAG" not in name}
every_opcode = pytest.mark.parametrize("opcode", TICKS, ids=[NAMES[opcode] for opcode in TICKS])
atomics = pytest.mark.parametrize("opcode", [e.IBV_WR_ATOMIC_CMP_AND_SWP, e.IBV_WR_ATOMIC_FETCH_AND_ADD])
AT_A, AT_B = dict[str, CompCntr], dict[str, CompCntr]


def counted(world: World, kind: int = 0, **changes: Any) -> tuple[QP, QP, AT_A, AT_B]:
    """A connected pair with a counter of each operation bit at each end."""
    first, second = world.a.qp(), world.b.qp()
    counters = world.a.count_all(first, kind), world.b.count_all(second, kind)
    world.connect(first, second, **changes)
    return first, second, *counters


def expected(names: set[str], count: int) -> dict[str, tuple[int, int]]:
    return dict.fromkeys(names, (count, 0))


@pytest.mark.row("1: Bit SEND")
@pytest.mark.row("1: Bit RDMA_WRITE")
@pytest.mark.row("1: Bit RDMA_READ")
@pytest.mark.row("1: Bit RECV")
@pytest.mark.row("1: Inbound WRITE_WITH_IMM")
@pytest.mark.row("1: Inbound atomics")
@every_opcode
def test_an_operation_moves_its_counters_and_no_other(world: World, opcode: int) -> None:
    first, second, at_a, at_b = counted(world)
    world.b.post_recv(second, *range(3))
    for wr_id in range(3):
        first.post_send(world.a.wr(opcode, wr_id))
    world.run()
    here, there = TICKS[opcode]
    assert values(at_a) == expected(here, 3)
    assert values(at_b) == expected(there, 3)


@pytest.mark.row("1: Bit SEND")
@pytest.mark.row("1: Bit RECV")
@pytest.mark.row("1: No bit")
def test_send_with_invalidate_counts_as_send_and_binding_as_nothing(world: World) -> None:
    first, second, at_a, at_b = counted(world)
    window = world.b.window()
    second.post_send(world.b.bind(window))
    world.run()
    assert world.b.done() == [(1, e.IBV_WC_SUCCESS)]
    assert values(at_b) == {}
    world.b.post_recv(second, 2)
    first.post_send(world.a.wr(e.IBV_WR_SEND_WITH_INV, imm=window.rkey))
    world.run()
    assert values(at_a) == expected({"SEND"}, 1)
    assert values(at_b) == expected({"RECV"}, 1)


@pytest.mark.row("1: No bit")
def test_invalidation_counts_as_nothing(world: World) -> None:
    first, _, at_a, at_b = counted(world)
    window = world.a.window()
    first.post_send(world.a.bind(window, 1))
    world.run()
    first.post_send(world.a.wr(e.IBV_WR_LOCAL_INV, 2, imm=window.rkey, sg=[]))
    world.run()
    assert world.a.done() == [(1, e.IBV_WC_SUCCESS), (2, e.IBV_WC_SUCCESS)]
    assert (values(at_a), values(at_b)) == ({}, {})


@pytest.mark.row("1: No bit")
def test_what_has_no_bit_counts_no_error_either(world: World) -> None:
    first, _, at_a, _ = counted(world)
    first.post_send(world.a.wr(e.IBV_WR_LOCAL_INV, 1, imm=BAD_KEY, sg=[]))
    first.post_send(world.a.wr(e.IBV_WR_RDMA_WRITE, 2))
    world.run()
    first.post_send(world.a.wr(e.IBV_WR_LOCAL_INV, 3, imm=BAD_KEY, sg=[]))
    world.run()
    (one, status), *rest = world.a.done()
    assert one == 1 and status != e.IBV_WC_SUCCESS
    assert rest == [(2, e.IBV_WC_WR_FLUSH_ERR), (3, e.IBV_WC_WR_FLUSH_ERR)]
    assert values(at_a) == {"WRITE": (0, 1)}


@pytest.mark.row("1: Bit RDMA_WRITE")
@pytest.mark.row("1: No bit")
@pytest.mark.parametrize(("opcode", "at_requester"), [(e.IBV_WR_ATOMIC_WRITE, {"WRITE": (1, 0)}), (e.IBV_WR_FLUSH, {})])
def test_newer_operations_count_or_are_refused(
    build: Any, opcode: int, at_requester: dict[str, tuple[int, int]]
) -> None:
    world = build()
    first, _, at_a, _ = counted(world)
    try:
        first.post_send(world.a.wr(opcode))
    except PyverbsRDMAError as error:
        at_requester = {}
        reason = error.reason
        assert str(opcode) in reason or NAMES[opcode].removeprefix("IBV_WR_") in reason
    world.run()
    assert values(at_a) == at_requester


@pytest.mark.row("1: Inbound WRITE_WITH_IMM")
@pytest.mark.parametrize("receives", [0, 2])
def test_like_efa_an_inbound_write_with_immediate_takes_no_receive(build: Any, receives: int) -> None:
    world = build(imm="efa")
    first, second, at_a, at_b = counted(world)
    world.b.post_recv(second, *range(receives))
    first.post_send(world.a.wr(e.IBV_WR_RDMA_WRITE_WITH_IMM, imm=7))
    world.run()
    assert values(at_a) == expected({"WRITE"}, 1)
    assert values(at_b) == expected({"REMOTE_WRITE"}, 1)
    set_state(second, e.IBV_QPS_ERR)
    assert at_b["RECV"].read_pair() == (0, receives), "every receive is still there to be flushed"


@pytest.mark.row("1: Unsignaled work requests")
@every_opcode
def test_unsignaled_requests_count(world: World, opcode: int) -> None:
    first, second, at_a, _ = counted(world)
    world.b.post_recv(second, *range(5))
    for wr_id in range(5):
        first.post_send(world.a.wr(opcode, wr_id, flags=0))
    world.run()
    assert values(at_a) == expected(TICKS[opcode][0], 5)
    assert world.a.done() == []


@pytest.mark.row("1: Unsignaled work requests")
def test_signaled_and_unsignaled_count_alike(world: World) -> None:
    first, _, at_a, _ = counted(world)
    for wr_id in range(10):
        first.post_send(world.a.wr(e.IBV_WR_RDMA_WRITE, wr_id, flags=e.IBV_SEND_SIGNALED if wr_id % 3 == 0 else 0))
    world.run()
    assert values(at_a) == {"WRITE": (10, 0)}
    assert [wr_id for wr_id, _ in world.a.done()] == [0, 3, 6, 9]


# -- failures


@pytest.mark.row("1: Flushed work requests")
@pytest.mark.parametrize("flags", [0, e.IBV_SEND_SIGNALED])
def test_each_flushed_request_is_an_error(world: World, flags: int) -> None:
    side = world.a
    qp = side.qp()
    counters = side.count_all(qp)
    world.move(qp, e.IBV_QPS_RTS)  # towards nobody: nothing can complete
    side.post_recv(qp, 10, 11, 12)
    for wr_id, opcode in enumerate((e.IBV_WR_SEND, e.IBV_WR_RDMA_WRITE, e.IBV_WR_RDMA_READ, e.IBV_WR_SEND)):
        qp.post_send(side.wr(opcode, wr_id, flags=flags))
    world.run()
    assert values(counters) == {}
    set_state(qp, e.IBV_QPS_ERR)
    world.run()
    flushed = {"SEND": (0, 2), "WRITE": (0, 1), "READ": (0, 1), "RECV": (0, 3)}
    assert values(counters) == flushed
    qp.post_send(side.wr(e.IBV_WR_RDMA_WRITE, 4, flags=flags))
    side.post_recv(qp, 13)
    world.run()
    assert values(counters) == {**flushed, "WRITE": (0, 2), "RECV": (0, 4)}
    assert {status for _, status in side.done()} == {e.IBV_WC_WR_FLUSH_ERR}


@pytest.mark.row("1: Flushed work requests")
@pytest.mark.row("1: Invariant")
@pytest.mark.parametrize("bad", [0, 3, 7])
def test_what_follows_a_failure_is_flushed_and_counted_once(world: World, bad: int) -> None:
    first, second, at_a, at_b = counted(world)
    world.b.post_recv(second, *range(100, 110))
    for wr_id in range(8):
        opcode = (e.IBV_WR_RDMA_WRITE, e.IBV_WR_SEND)[wr_id % 2]
        first.post_send(world.a.wr(opcode if wr_id != bad else e.IBV_WR_RDMA_WRITE, wr_id, flags=0,
                                   key=BAD_KEY if wr_id == bad else None))  # fmt: skip
    world.settle()
    totals = [sum(part) for part in zip(*values(at_a).values(), strict=True)]
    assert totals == [bad, 8 - bad]
    set_state(second, e.IBV_QPS_ERR)
    world.settle()
    received, flushed = at_b["RECV"].read_pair()
    assert (received, received + flushed) == (bad // 2, 10)


@pytest.mark.row("1: Flushed work requests")
def test_a_failed_receive_is_an_error_too(world: World) -> None:
    first, second, at_a, at_b = counted(world)
    world.b.post_recv(second, 1, length=4)
    world.b.post_recv(second, 2, 3)
    first.post_send(world.a.wr(e.IBV_WR_SEND, length=5))
    world.settle()
    assert values(at_a) == {"SEND": (0, 1)}
    assert values(at_b) == {"RECV": (0, 3)}, "one too long, two flushed"


@pytest.mark.row("1: Flushed work requests")
@pytest.mark.parametrize("cause", ["retry", "rnr"])
def test_giving_up_is_one_error_for_each_request(world: World, cause: str) -> None:
    first, second, at_a, _ = counted(world, retry_cnt=2, rnr_retry=1, timeout=10)
    if cause == "retry":
        second.close()
    for wr_id in range(3):
        first.post_send(world.a.wr(e.IBV_WR_SEND, wr_id, flags=0))
    world.settle()
    assert values(at_a) == {"SEND": (0, 3)}
    first_status = {"retry": e.IBV_WC_RETRY_EXC_ERR, "rnr": e.IBV_WC_RNR_RETRY_EXC_ERR}[cause]
    assert world.a.done() == [(0, first_status), (1, e.IBV_WC_WR_FLUSH_ERR), (2, e.IBV_WC_WR_FLUSH_ERR)]


@pytest.mark.row("1: REMOTE_* errors")
@pytest.mark.row("1: When REMOTE_* ticks")
@pytest.mark.parametrize(
    "opcode", [e.IBV_WR_RDMA_WRITE, e.IBV_WR_RDMA_READ, e.IBV_WR_ATOMIC_FETCH_AND_ADD, e.IBV_WR_RDMA_WRITE_WITH_IMM]
)
def test_a_refused_request_moves_nothing_at_the_responder(world: World, opcode: int) -> None:
    first, _second, at_a, at_b = counted(world)
    first.post_send(world.a.wr(opcode, key=BAD_KEY))
    world.settle()
    assert sum(counter.read_err() for counter in at_a.values()) == 1
    assert values(at_b) == {}


@pytest.mark.row("1: REMOTE_* errors")
def test_a_long_write_that_is_refused_half_way_ticks_neither_value(build: Any) -> None:
    """The start of the range is fine, its end is not: whatever was placed, no message was completed."""
    world = build()
    first, _, _, at_b = counted(world)
    first.post_send(world.a.wr(e.IBV_WR_RDMA_WRITE, length=5000, at=len(world.b.memory) - 3000))
    world.settle()
    assert values(at_b) == {}


# -- bytes

SIZES = [0, 1, 8, 1024, 1025, 5000]


@pytest.mark.row("1: BYTES on success")
@pytest.mark.parametrize("length", SIZES)
@pytest.mark.parametrize(
    "opcode",
    [e.IBV_WR_SEND, e.IBV_WR_SEND_WITH_IMM, e.IBV_WR_RDMA_WRITE, e.IBV_WR_RDMA_WRITE_WITH_IMM, e.IBV_WR_RDMA_READ],
)
def test_bytes_are_those_of_the_payload(world: World, opcode: int, length: int) -> None:
    first, second, at_a, at_b = counted(world, BYTES)
    world.b.post_recv(second, 1, 2, length=8000)  # longer than what comes
    for _ in range(2):
        first.post_send(world.a.wr(opcode, length=length, imm=0xFFFFFFFF))
    world.run()
    here, there = TICKS[opcode]
    if opcode == e.IBV_WR_RDMA_WRITE_WITH_IMM:
        there = {"REMOTE_WRITE"}  # what its receive counts in bytes, the contract leaves open
        del at_b["RECV"]
    assert values(at_a) == (expected(here, 2 * length) if length else {})
    assert values(at_b) == (expected(there, 2 * length) if length else {})


@pytest.mark.row("1: BYTES on success")
@atomics
def test_an_atomic_is_8_bytes(world: World, opcode: int) -> None:
    first, _, at_a, at_b = counted(world, BYTES)
    first.post_send(world.a.wr(opcode))
    world.run()
    assert values(at_a) == {"READ": (8, 0)}
    assert values(at_b) == {"REMOTE_READ": (8, 0)}


@pytest.mark.row("1: BYTES on success")
@pytest.mark.parametrize("flags", [0, e.IBV_SEND_INLINE])
def test_the_bytes_of_all_elements_count(world: World, flags: int) -> None:
    first, second, at_a, at_b = counted(world, BYTES)
    world.b.post_recv(second, 1, sg=[world.b.sge(2, 100), world.b.sge(50, 200)])
    first.post_send(world.a.wr(e.IBV_WR_SEND, sg=[world.a.sge(3), world.a.sge(0), world.a.sge(4, 9)], flags=flags))
    world.run()
    assert (values(at_a), values(at_b)) == ({"SEND": (7, 0)}, {"RECV": (7, 0)})


@pytest.mark.row("1: BYTES on error")
def test_errors_are_counted_in_requests_never_in_bytes(world: World) -> None:
    first, second, at_a, at_b = counted(world, BYTES)
    world.b.post_recv(second, 1, 2, length=100)
    first.post_send(world.a.wr(e.IBV_WR_RDMA_WRITE, 1, length=500))
    first.post_send(world.a.wr(e.IBV_WR_SEND, 2, length=100))
    first.post_send(world.a.wr(e.IBV_WR_SEND, 3, length=101))
    first.post_send(world.a.wr(e.IBV_WR_RDMA_WRITE, 4, length=4000))
    world.settle()
    assert values(at_a) == {"WRITE": (500, 1), "SEND": (100, 1)}
    assert values(at_b) == {"REMOTE_WRITE": (500, 0), "RECV": (100, 1)}


@pytest.mark.row("1: BYTES on success")
@pytest.mark.row("1: When REMOTE_* ticks")
def test_two_units_of_one_operation_need_two_queue_pairs(world: World) -> None:
    """The same traffic, once counted in requests and once in bytes."""
    results = []
    for kind in (e.IBV_COMP_CNTR_TYPE_WRS, BYTES):
        first, _, at_a, at_b = counted(world, kind)
        for length in (1, 0, 2000):
            first.post_send(world.a.wr(e.IBV_WR_RDMA_WRITE, length=length))
        world.run()
        results.append((at_a["WRITE"].read_pair(), at_b["REMOTE_WRITE"].read_pair()))
    assert results == [((3, 0), (3, 0)), ((2001, 0), (2001, 0))]


# -- when


@pytest.mark.row("1: When REMOTE_* ticks")
def test_a_write_ticks_at_its_target_after_the_last_byte(build: Any) -> None:
    world = build(wire=True)
    first, _, at_a, at_b = counted(world)
    held: list[bytes] = []
    world.wire.rule = lambda frame: held.append(frame) or [] if frame[0] == WRITE_LAST else None
    data = bytes(range(1, 251)) * 10
    world.a.memory[: len(data)] = data
    first.post_send(world.a.wr(e.IBV_WR_RDMA_WRITE, length=len(data)))
    world.run()
    assert world.b.memory[:2048] == data[:2048]
    assert (values(at_a), values(at_b)) == ({}, {})
    world.wire.rule = None
    world.settle()
    assert len(held) == 1
    assert world.b.memory[: len(data)] == data
    assert (values(at_a), values(at_b)) == ({"WRITE": (1, 0)}, {"REMOTE_WRITE": (1, 0)})


@pytest.mark.row("1: When REMOTE_* ticks")
@every_opcode
def test_messages_of_0_bytes_tick(world: World, opcode: int) -> None:
    first, second, at_a, at_b = counted(world)
    world.b.post_recv(second, 1)
    length = 8 if "ATOMIC" in NAMES[opcode] else 0
    first.post_send(world.a.wr(opcode, length=length, sg=[] if length == 0 else None))
    world.run()
    here, there = TICKS[opcode]
    assert (values(at_a), values(at_b)) == (expected(here, 1), expected(there, 1))


@pytest.mark.row("1: When REMOTE_* ticks")
@pytest.mark.row("1: Inbound atomics")
@every_opcode
def test_a_request_whose_answer_was_lost_ticks_once(build: Any, opcode: int) -> None:
    world = build(wire=True)
    first, second, at_a, at_b = counted(world)
    world.b.post_recv(second, 1, 2, 3)
    answer = {e.IBV_WR_RDMA_READ: READ_ONLY}.get(opcode, ATOMIC_ACK if "ATOMIC" in NAMES[opcode] else ACK)
    world.wire.drop(answer, times=2)
    first.post_send(world.a.wr(opcode))
    world.settle()
    here, there = TICKS[opcode]
    assert world.wire.count(answer) == 3
    assert (values(at_a), values(at_b)) == (expected(here, 1), expected(there, 1))


@pytest.mark.row("1: When REMOTE_* ticks")
@every_opcode
def test_every_packet_twice_ticks_once(build: Any, opcode: int) -> None:
    world = build(wire=True)
    first, second, at_a, at_b = counted(world)
    world.b.post_recv(second, *range(9))
    world.wire.rule = lambda frame: [frame, frame]
    for wr_id in range(3):
        first.post_send(world.a.wr(opcode, wr_id, length=8 if "ATOMIC" in NAMES[opcode] else 3000))
    world.settle()
    here, there = TICKS[opcode]
    assert (values(at_a), values(at_b)) == (expected(here, 3), expected(there, 3))


@pytest.mark.row("1: When REMOTE_* ticks")
def test_a_write_with_immediate_that_waits_for_a_receive_ticks_once(world: World) -> None:
    first, second, _, at_b = counted(world)
    first.post_send(world.a.wr(e.IBV_WR_RDMA_WRITE_WITH_IMM))
    world.run()
    assert values(at_b) == {}
    world.b.post_recv(second, 1)
    world.settle()
    assert values(at_b) == expected({"REMOTE_WRITE", "RECV"}, 1)


@pytest.mark.row("1: Order")
@pytest.mark.row("1: Invariant")
@pytest.mark.parametrize("bad", [None, 12])
def test_the_counter_moves_before_the_completion_can_be_polled(world: World, bad: int | None) -> None:
    """Descriptors, since looking at them drives nothing: number k is readable once the sum has reached k."""
    first, second = world.a.qp(), world.b.qp()
    counter = world.a.count(first, WRITE)
    world.connect(first, second)
    descriptors = [counter.threshold_fd(k) for k in range(1, 21)]
    for wr_id in range(20):
        first.post_send(world.a.wr(e.IBV_WR_RDMA_WRITE, wr_id, length=2000, key=BAD_KEY if wr_id == bad else None))
    polled = 0
    while polled < 20:
        count, completions = world.a.cq.poll(1)
        if not count:
            world.idle()
            continue
        polled += count
        assert completions[0].wr_id == polled - 1
        assert readable(descriptors[polled - 1])
        assert sum(counter.read_pair()) >= polled
    for descriptor in descriptors:
        descriptor.close()


@pytest.mark.row("1: Order")
def test_the_receive_counter_moves_before_the_completion_can_be_polled(world: World) -> None:
    first, second = world.a.qp(), world.b.qp()
    counter = world.b.count(second, RECV)
    world.connect(first, second)
    world.b.post_recv(second, *range(20))
    for wr_id in range(20):
        first.post_send(world.a.wr(e.IBV_WR_SEND, wr_id))
    polled = 0
    while polled < 20:
        with counter.threshold_fd(polled + 1) as descriptor:
            polled += world.b.cq.poll(1)[0] or world.idle() or 0
            assert readable(descriptor) or counter.read() >= polled


@pytest.mark.row("1: Order")
def test_over_real_sockets_the_sum_is_never_behind_the_completions(build: Any) -> None:
    world = build("udp")
    first, second = world.a.qp(), world.b.qp()
    counter, arrived = world.a.count(first, WRITE), world.b.count(second, REMOTE_WRITE)
    world.connect(first, second)
    polled = posted = 0
    while polled < 300:
        while posted < 300 and posted - polled < 32:
            first.post_send(world.a.wr(e.IBV_WR_RDMA_WRITE, posted))
            posted += 1
        polled += world.a.cq.poll(8)[0]
        assert sum(counter.read_pair()) >= polled
    assert counter.read_pair() == arrived.read_pair() == (300, 0)


@pytest.mark.parametrize("read", ["read", "read_pair"])
def test_whoever_only_reads_a_counter_drives_the_device(build: Any, read: str) -> None:
    """No poll, no wait, no thread: a loop that looks at the counter gets there."""
    world = build("loopback")
    first, second = world.a.qp(), world.b.qp()
    counter = world.b.count(second, REMOTE_WRITE)
    world.connect(first, second)
    first.post_send(world.a.wr(e.IBV_WR_RDMA_WRITE, length=5000))
    assert any(getattr(counter, read)() in (1, (1, 0)) for _ in range(100))


@pytest.mark.row("1: CQ overrun")
@pytest.mark.parametrize("mode", ["standard", "rxe", "ignored"])
def test_operations_count_though_their_completions_have_no_room(build: Any, mode: str) -> None:
    world = build(**({"overrun": mode} if mode != "ignored" else {}))
    flags = {"comp_mask": e.IBV_CQ_INIT_ATTR_MASK_FLAGS, "flags": e.IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN}
    cq = CQEX(world.a.context, CqInitAttrEx(2, **flags)) if mode == "ignored" else CQ(world.a.context, 2)
    first, second = world.a.qp(cq), world.b.qp()
    counter = world.a.count(first, WRITE)
    world.connect(first, second)
    for wr_id in range(6):
        first.post_send(world.a.wr(e.IBV_WR_RDMA_WRITE, wr_id))
    world.settle()
    completions, errors = counter.read_pair()
    assert completions + errors == 6
    if mode == "standard":
        assert completions >= 3, "the third completed, and had no room"
    else:
        assert (completions, errors) == (6, 0)


@pytest.mark.row("1: CQ overrun")
@pytest.mark.row("1: Flushed work requests")
def test_flushed_requests_count_though_their_completions_have_no_room(world: World) -> None:
    side = world.a
    qp = side.qp(CQ(side.context, 2))
    counters = side.count_all(qp)
    world.move(qp, e.IBV_QPS_RTS)
    side.post_recv(qp, *range(5))
    for wr_id in range(6):
        qp.post_send(side.wr(e.IBV_WR_RDMA_WRITE, wr_id))
    set_state(qp, e.IBV_QPS_ERR)
    world.settle()
    assert values(counters) == {"WRITE": (0, 6), "RECV": (0, 5)}


@pytest.mark.row("1: Invariant")
@pytest.mark.parametrize("bad", [None, 20])
@pytest.mark.parametrize("seed", range(4))
def test_completions_and_errors_are_what_was_retired_on_a_bad_network(build: Any, seed: int, bad: int | None) -> None:
    """All operations, half of them unsignaled, perhaps a bad key; loss, duplicates, reordering, corruption."""
    world = build(faults={"seed": seed, "drop": 0.1, "duplicate": 0.1, "reorder": 0.1, "corrupt": 0.05})
    first, second, at_a, at_b = counted(world, timeout=10)
    posted = dict.fromkeys(at_a, 0)
    receives = 12
    world.b.post_recv(second, *range(receives))
    for wr_id, opcode in enumerate([*TICKS] * 4):
        length = 8 if "ATOMIC" in NAMES[opcode] else wr_id * 90
        key = BAD_KEY if wr_id == bad else None
        first.post_send(world.a.wr(opcode, wr_id, length, flags=wr_id % 2 * 2, key=key))
        (name,) = TICKS[opcode][0]
        posted[name] += 1
    world.settle(20_000)
    assert {name: sum(counter.read_pair()) for name, counter in at_a.items()} == posted
    completed = {name: counter.read() for name, counter in at_a.items()}
    arrived = {name: counter.read() for name, counter in at_b.items()}
    if bad is None:
        assert completed == posted
        assert arrived == {"WRITE": 0, "READ": 0, "SEND": 0, "REMOTE_WRITE": 8, "REMOTE_READ": 12, "RECV": receives}
    else:  # of what came before the failure, an answer may be lost for good
        assert sum(completed.values()) <= bad
        assert arrived["REMOTE_WRITE"] + arrived["REMOTE_READ"] + arrived["RECV"] == bad + 3, (
            "writes with immediate twice"
        )
        assert sum(at_b["RECV"].read_pair()) == receives
