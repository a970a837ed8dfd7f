# SPDX-License-Identifier: MIT
"""The reliable connection: every operation, its data, its completions, order."""

import errno
from typing import Any

import pytest
from tests.pyverbs.world import (
    ALL,
    ATOMIC_ACK,
    FETCH_ADD,
    READ_ONLY,
    READ_REQUEST,
    SIZE,
    WRITE_ONLY,
    World,
    fill,
    pattern,
    refused,
    set_word,
    word,
)

from softverbs.pyverbs import libibverbs_enums as e
from softverbs.pyverbs.mr import MR
from softverbs.pyverbs.pyverbs_error import PyverbsRDMAError
from softverbs.pyverbs.qp import QP
from softverbs.pyverbs.wr import SGE, RecvWR, SendWR

OK, FLUSHED = e.IBV_WC_SUCCESS, e.IBV_WC_WR_FLUSH_ERR
WRITE, WRITE_IMM, SEND, SEND_IMM, READ = (
    e.IBV_WR_RDMA_WRITE, e.IBV_WR_RDMA_WRITE_WITH_IMM, e.IBV_WR_SEND, e.IBV_WR_SEND_WITH_IMM, e.IBV_WR_RDMA_READ,
)  # fmt: skip
SWAP, ADD = e.IBV_WR_ATOMIC_CMP_AND_SWP, e.IBV_WR_ATOMIC_FETCH_AND_ADD
SIGNALED, INLINE, FENCE = e.IBV_SEND_SIGNALED, e.IBV_SEND_INLINE, e.IBV_SEND_FENCE


# -- data


@pytest.mark.parametrize("length", [0, 1, 2, 3, 4, 5, 1023, 1024, 1025, 4096, 5000, SIZE])
@pytest.mark.parametrize("opcode", [SEND, SEND_IMM, WRITE, WRITE_IMM, READ])
def test_what_arrives_is_what_was_sent_and_nothing_beside_it(world: World, opcode: int, length: int) -> None:
    first, second = world.pair()
    source, target = (world.b, world.a) if opcode == READ else (world.a, world.b)
    data = pattern(length)
    fill(source.memory, data)
    fill(target.memory, b"\xee" * SIZE)
    world.b.post_recv(second, 5, length=SIZE)
    first.post_send(world.a.wr(opcode, 6, length, imm=0x04030201))
    world.run()
    assert target.memory[:length] == data
    assert target.memory[length:] == b"\xee" * (SIZE - length)
    (wc,) = world.a.poll()
    kind = {READ: e.IBV_WC_RDMA_READ, WRITE: e.IBV_WC_RDMA_WRITE, WRITE_IMM: e.IBV_WC_RDMA_WRITE}
    assert (wc.wr_id, wc.status, wc.opcode, wc.qp_num) == (6, OK, kind.get(opcode, e.IBV_WC_SEND), first.qp_num)
    if opcode == READ:
        assert wc.byte_len == length
    received = world.b.poll()
    if opcode in (WRITE, READ):
        assert received == []
        return
    (wc,) = received
    kind = {WRITE_IMM: e.IBV_WC_RECV_RDMA_WITH_IMM}
    assert (wc.wr_id, wc.status, wc.opcode, wc.qp_num) == (5, OK, kind.get(opcode, e.IBV_WC_RECV), second.qp_num)
    assert wc.byte_len == length
    assert bool(wc.wc_flags & e.IBV_WC_WITH_IMM) == (opcode != SEND)
    assert not wc.wc_flags & e.IBV_WC_WITH_INV
    if opcode != SEND:
        assert wc.imm_data == 0x04030201


@pytest.mark.parametrize("mtu", [e.IBV_MTU_256, e.IBV_MTU_512, e.IBV_MTU_1024, e.IBV_MTU_2048, e.IBV_MTU_4096])
@pytest.mark.parametrize("opcode", [SEND, WRITE, READ])
def test_a_message_is_cut_by_the_path_mtu(build: Any, opcode: int, mtu: int) -> None:
    world = build(wire=True)
    first, second = world.pair(path_mtu=mtu)
    size = 128 << mtu
    length = 5 * size + 3
    data = pattern(length)
    fill((world.b if opcode == READ else world.a).memory, data)
    world.b.post_recv(second, 1, length=SIZE)
    first.post_send(world.a.wr(opcode, 2, length))
    world.run()
    assert (world.a if opcode == READ else world.b).memory[:length] == data
    assert world.a.done() == [(2, OK)]
    carrying = [frame for frame in world.wire.frames if len(frame) > size]
    assert len(carrying) == 5, "five full packets, and a short one"
    assert max(len(frame) for frame in world.wire.frames) <= size + 12 + 16 + 4


def test_large_messages(world: World) -> None:
    """1 MiB in each direction, of an odd length, into buffers of their own."""
    first, _ = world.pair(path_mtu=e.IBV_MTU_4096)
    length = (1 << 20) + 1
    buffers = [bytearray(pattern(length)), bytearray(length), bytearray(length)]
    source, back = (MR(world.a.pd, buffer, ALL) for buffer in (buffers[0], buffers[2]))
    target = MR(world.b.pd, buffers[1], ALL)
    for opcode, mr in ((WRITE, source), (READ, back)):
        wr = SendWR(1, opcode, 1, sg=[SGE(mr.buf, length, mr.lkey)])
        wr.set_wr_rdma(target.rkey, target.buf)
        first.post_send(wr)
        world.settle()
    assert world.a.done() == [(1, OK), (1, OK)]
    assert buffers[0] == buffers[1] == buffers[2]


@pytest.mark.parametrize("alignment", range(4))
def test_addresses_need_no_alignment(world: World, alignment: int) -> None:
    first, _ = world.pair()
    data = pattern(3001)
    fill(world.a.memory, data, alignment)
    first.post_send(world.a.wr(WRITE, 1, 3001, offset=alignment, at=3 - alignment))
    world.run()
    first.post_send(world.a.wr(READ, 2, 3001, offset=5000 + alignment, at=3 - alignment))
    world.run()
    assert world.b.memory[3 - alignment : 3004 - alignment] == data
    assert world.a.memory[5000 + alignment : 8001 + alignment] == data


# -- atomics


def test_fetch_and_add_returns_the_old_value_and_wraps(world: World) -> None:
    first, _ = world.pair()
    set_word(world.b.memory, 2**64 - 2, 64)
    for offset, expected, after in ((0, 2**64 - 2, 1), (8, 1, 4)):
        first.post_send(world.a.wr(ADD, 1, offset=offset, at=64, operands=(3, 0)))
        world.run()
        (wc,) = world.a.poll()
        assert (wc.status, wc.opcode, wc.byte_len) == (OK, e.IBV_WC_FETCH_ADD, 8)
        assert word(world.a.memory, offset) == expected
        assert word(world.b.memory, 64) == after
    assert world.b.poll() == []


@pytest.mark.parametrize(("compare", "after"), [(0x1122334455667788, 99), (0x1122334455667789, 0x1122334455667788)])
def test_compare_and_swap_stores_only_where_equal(world: World, compare: int, after: int) -> None:
    first, _ = world.pair()
    set_word(world.b.memory, 0x1122334455667788, 8)
    first.post_send(world.a.wr(SWAP, 1, at=8, operands=(compare, 99)))
    world.run()
    (wc,) = world.a.poll()
    assert (wc.status, wc.opcode) == (OK, e.IBV_WC_COMP_SWAP)
    assert word(world.a.memory) == 0x1122334455667788
    assert word(world.b.memory, 8) == after


def test_atomics_of_many_connections_add_up(world: World) -> None:
    pairs = [world.pair() for _ in range(4)]
    for number in range(40):
        pairs[number % 4][0].post_send(world.a.wr(ADD, number, offset=8 * number, operands=(1, 0)))
    world.run()
    assert word(world.b.memory) == 40
    assert sorted(word(world.a.memory, 8 * number) for number in range(40)) == list(range(40))


# -- scatter and gather


@pytest.mark.parametrize("lengths", [[1, 2, 3], [0, 700, 0, 900], [2000], [1, 1024, 1, 1023], []])
@pytest.mark.parametrize("opcode", [SEND, WRITE, READ])
def test_elements_are_gathered_and_scattered_in_order(world: World, opcode: int, lengths: list[int]) -> None:
    first, second = world.pair()
    data = pattern(sum(lengths))
    pieces, elements, at = [], [], 0
    for number, length in enumerate(lengths):
        offset = 10_000 * (number + 1)
        pieces.append((offset, data[at : at + length]))
        elements.append(world.a.sge(length, offset))
        at += length
    if opcode == READ:
        fill(world.b.memory, data)
    else:
        for offset, piece in pieces:
            fill(world.a.memory, piece, offset)
    world.b.post_recv(second, 1)
    first.post_send(world.a.wr(opcode, 2, sg=elements))
    world.run()
    assert world.a.done() == [(2, OK)]
    if opcode == READ:
        assert all(world.a.memory[offset : offset + len(piece)] == piece for offset, piece in pieces)
    else:
        assert world.b.memory[: len(data)] == data


@pytest.mark.parametrize("lengths", [[10, 20, 30], [0, 33, 0, 100], [1, 1, 1, 1000]])
def test_a_receive_is_scattered_and_the_rest_left_alone(world: World, lengths: list[int]) -> None:
    first, second = world.pair()
    data = pattern(33)
    fill(world.a.memory, data)
    sg = [world.b.sge(length, 2000 * (number + 1)) for number, length in enumerate(lengths)]
    world.b.post_recv(second, 1, sg=sg)
    first.post_send(world.a.wr(SEND, 2, 33))
    world.run()
    (wc,) = world.b.poll()
    assert (wc.status, wc.byte_len) == (OK, 33)
    found = b"".join(world.b.memory[2000 * (n + 1) : 2000 * (n + 1) + length] for n, length in enumerate(lengths))
    assert found == data + bytes(sum(lengths) - 33)


def test_as_many_elements_as_the_device_has(build: Any) -> None:
    world = build()
    limit = world.a.context.query_device().max_sge
    caps = {"max_send_sge": limit, "max_recv_sge": limit}
    first, second = world.connect(world.a.qp(**caps), world.b.qp(**caps))
    fill(world.a.memory, pattern(3 * limit))
    sg = [world.a.sge(3, 3 * number) for number in range(limit)]
    world.b.post_recv(second, 1, sg=[world.b.sge(3, 3 * number) for number in range(limit)])
    first.post_send(world.a.wr(SEND, 2, sg=sg))
    world.run()
    assert world.a.done() == [(2, OK)]
    assert world.b.memory[: 3 * limit] == pattern(3 * limit)
    with pytest.raises(PyverbsRDMAError) as caught:
        world.a.qp(max_send_sge=limit + 1)
    assert caught.value.errno == errno.EINVAL


def test_more_elements_than_the_queue_has_are_refused(world: World) -> None:
    first, second = world.pair()
    refused(errno.EINVAL, first.post_send, world.a.wr(SEND, sg=[world.a.sge(1)] * 5))
    refused(errno.EINVAL, second.post_recv, RecvWR(1, 5, [world.b.sge(1)] * 5))
    world.run()
    assert (world.a.done(), world.b.done()) == ([], [])


# -- flags


@pytest.mark.parametrize("opcode", [SEND, SEND_IMM, WRITE, WRITE_IMM])
def test_inline_data_is_taken_when_it_is_posted_and_needs_no_key(build: Any, opcode: int) -> None:
    world = build()
    first, second = world.pair()
    world.b.post_recv(second, 1)
    fill(world.a.memory, b"at the time")
    wr = world.a.wr(opcode, 2, sg=[SGE(world.a.mr.buf, 11, 0xBADBAD)], flags=SIGNALED | INLINE)
    first.post_send(wr)
    fill(world.a.memory, b"much later!")
    world.run()
    assert world.a.done() == [(2, OK)]
    assert world.b.memory[:11] == b"at the time"


def test_the_memory_of_a_send_is_read_when_it_leaves(build: Any) -> None:
    """A program that reuses it before the completion sends what it has put there meanwhile (ibv_post_send(3))."""
    world = build()
    first, second = world.pair()
    world.b.post_recv(second, 1)
    fill(world.a.memory, b"at the time")
    first.post_send(world.a.wr(SEND, 2, length=11, flags=SIGNALED))
    fill(world.a.memory, b"much later!")
    world.run()
    assert world.a.done() == [(2, OK)]
    assert world.b.memory[:11] == b"much later!"


def test_inline_data_has_a_limit(build: Any) -> None:
    world = build()
    first = world.a.qp(max_inline_data=20)
    limit = first.query(e.IBV_QP_CAP)[0].cap.max_inline_data
    assert limit >= 20
    _, second = world.connect(first, world.b.qp())
    world.b.post_recv(second, 1, 2)
    refused(errno.EINVAL, first.post_send, world.a.wr(SEND, length=limit + 1, flags=SIGNALED | INLINE))
    first.post_send(world.a.wr(SEND, 3, length=limit, flags=SIGNALED | INLINE))
    world.run()
    assert world.a.done() == [(3, OK)]


@pytest.mark.parametrize("signal_all", [0, 1])
def test_completions_come_for_signaled_requests_or_for_all(world: World, signal_all: int) -> None:
    first, _ = world.connect(world.a.qp(signal_all=signal_all), world.b.qp())
    for wr_id in range(6):
        first.post_send(world.a.wr(WRITE, wr_id, flags=SIGNALED if wr_id in (2, 5) else 0))
    world.run()
    expected = range(6) if signal_all else (2, 5)
    assert world.a.done() == [(wr_id, OK) for wr_id in expected]


@pytest.mark.parametrize("fenced", [True, False])
def test_a_fence_waits_for_reads_before_it(build: Any, fenced: bool) -> None:
    world = build(wire=True)
    first, _ = world.pair()
    fill(world.b.memory, b"from there", 100)
    held: list[bytes] = []
    world.wire.rule = lambda frame: held.append(frame) or [] if frame[0] == READ_ONLY else None
    first.post_send(world.a.wr(READ, 1, 10, at=100))
    first.post_send(world.a.wr(WRITE, 2, 10, flags=SIGNALED | (FENCE if fenced else 0)))
    world.run()
    assert held
    assert bool(world.wire.count(WRITE_ONLY)) is not fenced
    world.wire.rule = None
    world.settle()
    assert world.a.done() == [(1, OK), (2, OK)]
    if fenced:
        assert world.b.memory[:10] == b"from there", "what the read brought was written"


def test_a_fence_without_a_read_waits_for_nothing(world: World) -> None:
    first, _ = world.pair()
    for wr_id in range(5):
        first.post_send(world.a.wr(WRITE, wr_id, flags=SIGNALED | FENCE))
    world.run()
    assert world.a.done() == [(wr_id, OK) for wr_id in range(5)]


# -- windows and invalidation


def bound(world: World, second: QP, **changes: Any) -> Any:
    """A window over side ``b``'s region, bound to its QP."""
    window = world.b.window()
    second.post_send(world.b.bind(window, 90, **changes))
    world.run()
    assert world.b.done() == [(90, OK)]
    return window


def test_send_with_invalidate_delivers_and_ends_the_key(world: World) -> None:
    first, second = world.pair()
    window = bound(world, second)
    key = window.rkey
    fill(world.a.memory, b"last words")
    first.post_send(world.a.wr(WRITE, 1, key=key))
    world.b.post_recv(second, 2, offset=500)
    first.post_send(world.a.wr(e.IBV_WR_SEND_WITH_INV, 3, 10, imm=key))
    world.run()
    assert world.a.done() == [(1, OK), (3, OK)]
    (wc,) = world.b.poll()
    assert (wc.wr_id, wc.status, wc.opcode, wc.byte_len) == (2, OK, e.IBV_WC_RECV, 10)
    assert wc.wc_flags & e.IBV_WC_WITH_INV
    assert not wc.wc_flags & e.IBV_WC_WITH_IMM
    assert wc.imm_data == key
    assert world.b.memory[500:510] == b"last words"
    first.post_send(world.a.wr(WRITE, 4, key=key))
    world.settle()
    assert world.a.done() == [(4, e.IBV_WC_REM_ACCESS_ERR)]


def test_a_long_send_with_invalidate_ends_the_key_with_its_last_packet(world: World) -> None:
    first, second = world.pair()
    window = bound(world, second)
    fill(world.a.memory, pattern(5000))
    world.b.post_recv(second, 2, length=5000)
    first.post_send(world.a.wr(e.IBV_WR_SEND_WITH_INV, 3, 5000, imm=window.rkey))
    world.run()
    assert world.b.memory[:5000] == pattern(5000)
    assert world.b.poll()[0].wc_flags & e.IBV_WC_WITH_INV


def test_local_invalidate_ends_the_key(world: World) -> None:
    first, second = world.pair()
    window = bound(world, second)
    key = window.rkey
    first.post_send(world.a.wr(WRITE, 1, key=key))
    world.run()
    second.post_send(world.b.wr(e.IBV_WR_LOCAL_INV, 2, imm=key, sg=[]))
    world.run()
    (wc,) = world.b.poll()
    assert (wc.wr_id, wc.status, wc.opcode) == (2, OK, e.IBV_WC_LOCAL_INV)
    first.post_send(world.a.wr(WRITE, 3, key=key))
    world.settle()
    assert world.a.done() == [(1, OK), (3, e.IBV_WC_REM_ACCESS_ERR)]


@pytest.mark.parametrize("what", ["unknown", "region"])
def test_local_invalidate_of_what_cannot_be_invalidated_fails(world: World, what: str) -> None:
    first, _ = world.pair()
    key = world.a.mr.rkey if what == "region" else 0xBAD00
    first.post_send(world.a.wr(e.IBV_WR_LOCAL_INV, 1, imm=key, sg=[]))
    first.post_send(world.a.wr(WRITE, 2))
    world.run()
    (one, two) = world.a.poll()
    assert one.status not in (OK, FLUSHED)
    assert one.reason
    assert (two.wr_id, two.status) == (2, FLUSHED)
    assert first.qp_state == e.IBV_QPS_ERR


# -- order


def test_requests_complete_in_the_order_of_posting(world: World) -> None:
    first, second = world.pair()
    world.b.post_recv(second, *range(100, 120))
    opcodes = [WRITE, READ, SEND, ADD, WRITE_IMM, SEND_IMM, READ, SWAP, WRITE] * 3
    for wr_id, opcode in enumerate(opcodes):
        first.post_send(world.a.wr(opcode, wr_id, 8 if opcode in (ADD, SWAP) else 500 * (wr_id % 5)))
    world.run()
    assert world.a.done() == [(wr_id, OK) for wr_id in range(len(opcodes))]
    assert world.b.done() == [(wr_id, OK) for wr_id in range(100, 109)]


def test_a_list_of_requests_is_posted_in_order(world: World) -> None:
    first, second = world.pair()
    last = None
    for wr_id in (3, 2, 1):
        wr = world.a.wr(SEND, wr_id)
        if last is not None:
            wr.next_wr = last
        last = wr
    third = RecvWR(12, 1, [world.b.sge(100)])
    second.post_recv(RecvWR(10, 1, [world.b.sge(100)], RecvWR(11, 1, [world.b.sge(100)], third)))
    first.post_send(last)
    world.run()
    assert world.a.done() == [(1, OK), (2, OK), (3, OK)]
    assert world.b.done() == [(10, OK), (11, OK), (12, OK)]


def test_a_full_queue_is_enomem_and_has_room_again_after_a_completion(world: World) -> None:
    first = world.a.qp(max_send_wr=4, max_recv_wr=3)
    second = world.b.qp()
    world.connect(first, second)
    cap = first.query(e.IBV_QP_CAP)[0].cap
    for wr_id in range(cap.max_recv_wr):
        world.a.post_recv(first, wr_id)
    refused(errno.ENOMEM, world.a.post_recv, first, 99)
    for wr_id in range(cap.max_send_wr):
        first.post_send(world.a.wr(WRITE, wr_id))
    refused(errno.ENOMEM, first.post_send, world.a.wr(WRITE, 99))
    world.run()
    refused(errno.ENOMEM, first.post_send, world.a.wr(WRITE, 99))  # done, and not polled
    assert len(world.a.done()) == 4
    first.post_send(world.a.wr(WRITE, 100))
    world.run()
    assert world.a.done()[-1] == (100, OK)


@pytest.mark.parametrize("psn", [0, 1, 0xFFFFFF, 0xFFFFFE, 0x7FFFFF])
def test_sequence_numbers_wrap_around(world: World, psn: int) -> None:
    first, second = world.pair(sq_psn=psn, rq_psn=psn)
    fill(world.a.memory, pattern(6000))
    world.b.post_recv(second, 1, 2)
    for wr_id, opcode in enumerate((WRITE, READ, SEND, ADD, SEND, WRITE)):
        first.post_send(world.a.wr(opcode, wr_id, 8 if opcode == ADD else 3000))
    world.settle()
    assert world.a.done() == [(wr_id, OK) for wr_id in range(6)]


@pytest.mark.parametrize("limit", [1, 2, 4])
def test_no_more_reads_and_atomics_are_asked_for_at_once_than_agreed(build: Any, limit: int) -> None:
    world = build(wire=True)
    first, _ = world.pair(max_rd_atomic=limit, max_dest_rd_atomic=limit)
    open_requests, most = 0, 0

    def rule(frame: bytes) -> None:
        nonlocal open_requests, most
        open_requests += frame[0] in (READ_REQUEST, FETCH_ADD)
        open_requests -= frame[0] in (READ_ONLY, ATOMIC_ACK)
        most = max(most, open_requests)

    world.wire.rule = rule
    for wr_id in range(12):
        first.post_send(world.a.wr((READ, ADD)[wr_id % 2], wr_id))
    world.settle()
    assert world.a.done() == [(wr_id, OK) for wr_id in range(12)]
    assert most == limit
