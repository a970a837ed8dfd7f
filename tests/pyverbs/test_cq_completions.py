# SPDX-License-Identifier: MIT
"""What completion queues hold: fields, order, batches, overruns, flushed requests, queue pairs that go."""

import errno
import threading
from typing import Any

import pytest
from tests.pyverbs.world import World, refused, set_state

from softverbs.pyverbs import libibverbs_enums as e
from softverbs.pyverbs.cq import CQ, CQEX, CqInitAttrEx
from softverbs.pyverbs.qp import QP

FLUSHED, OK = e.IBV_WC_WR_FLUSH_ERR, e.IBV_WC_SUCCESS
IGNORE, SINGLE = e.IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN, e.IBV_CREATE_CQ_ATTR_SINGLE_THREADED


def extended(world: World, cqe: int = 50, flags: int = 0) -> CQEX:
    mask = e.IBV_CQ_INIT_ATTR_MASK_FLAGS
    return CQEX(world.a.context, CqInitAttrEx(cqe, wc_flags=e.IBV_WC_STANDARD_FLAGS, comp_mask=mask, flags=flags))


def on(world: World, cq: Any) -> QP:
    """A connected QP of side ``a`` on this queue."""
    return world.connect(world.a.qp(cq), world.b.qp())[0]


def write(world: World, qp: QP, *wr_ids: int, **changes: Any) -> None:
    for wr_id in wr_ids:
        qp.post_send(world.a.wr(e.IBV_WR_RDMA_WRITE, wr_id, **changes))
    world.run()


# -- polling


def test_poll_takes_the_oldest_first_and_no_more_than_asked_for(world: World) -> None:
    write(world, on(world, world.a.cq), *range(7))
    assert [world.a.cq.poll(count)[0] for count in (0, 1, 2)] == [0, 1, 2]
    count, completions = world.a.cq.poll(100)
    assert (count, [wc.wr_id for wc in completions]) == (4, [3, 4, 5, 6])
    assert world.a.cq.poll(1) == (0, [])


@pytest.mark.parametrize("kind", ["plain", "extended"])
def test_whoever_only_polls_drives_the_device(build: Any, kind: str) -> None:
    """No wait, no thread: a loop that polls gets there."""
    world = build("loopback")
    cq = extended(world) if kind == "extended" else world.a.cq
    first = on(world, cq)
    first.post_send(world.a.wr(e.IBV_WR_RDMA_WRITE, length=5000))
    if kind == "plain":
        assert any(cq.poll(1)[0] for _ in range(100))
    else:
        assert any(cq.start_poll() == 0 for _ in range(100))
        cq.end_poll()


@pytest.mark.row("2: poll: on error")
@pytest.mark.parametrize("status", [e.IBV_WC_REM_ACCESS_ERR, FLUSHED])
def test_invalid_fields_of_an_error_are_poisoned_in_debug_mode(build: Any, status: int) -> None:
    world = build(debug=True)
    first = on(world, world.a.cq)
    write(world, first, 5, 6, key=0xBAD00)
    world.settle()
    wc = world.a.poll()[0 if status != FLUSHED else 1]
    assert (wc.status, wc.qp_num) == (status, first.qp_num)
    assert wc.wr_id == (6 if status == FLUSHED else 5)
    assert 0 < wc.vendor_err < 0x10000, "the device's own number, not what fills the others"
    known = {value for name, value in vars(e).items() if name.startswith("IBV_WC_") and "EX_WITH" not in name}
    assert wc.opcode not in known
    for name in ("byte_len", "imm_data", "src_qp", "wc_flags", "pkey_index", "slid", "sl", "dlid_path_bits"):
        assert getattr(wc, name) not in (0, 8, first.qp_num), name


@pytest.mark.row("2: poll: on error")
def test_valid_fields_are_right_in_debug_mode_too(build: Any) -> None:
    world = build(debug=True)
    first, second = world.pair()
    world.b.post_recv(second, 9)
    first.post_send(world.a.wr(e.IBV_WR_SEND_WITH_IMM, 8, length=100, imm=0x01020304))
    world.run()
    (sent,), (received,) = world.a.poll(), world.b.poll()
    assert (sent.wr_id, sent.status, sent.opcode, sent.qp_num) == (8, OK, e.IBV_WC_SEND, first.qp_num)
    assert (sent.vendor_err, received.vendor_err) == (0, 0)
    assert (received.wr_id, received.status, received.opcode) == (9, OK, e.IBV_WC_RECV)
    assert (received.byte_len, received.imm_data, received.qp_num) == (100, 0x01020304, second.qp_num)
    assert received.wc_flags & e.IBV_WC_WITH_IMM


@pytest.mark.row("2: start_poll / next_poll / end_poll")
def test_an_empty_queue_starts_no_batch(world: World) -> None:
    cq = extended(world)
    first = on(world, cq)
    for _ in range(3):
        assert cq.start_poll() == errno.ENOENT  # no end_poll, and yet it can be called again
    write(world, first, 1)
    assert cq.start_poll() == 0
    cq.end_poll()


@pytest.mark.row("2: start_poll / next_poll / end_poll")
@pytest.mark.parametrize("batch", [1, 2, 3, 5])
def test_a_batch_takes_exactly_what_it_visited(world: World, batch: int) -> None:
    cq = extended(world)
    write(world, on(world, cq), *range(5))
    assert cq.start_poll() == 0
    visited = [cq.wr_id]
    while len(visited) < batch:
        assert cq.poll_next() == 0
        visited.append(cq.wr_id)
    cq.end_poll()
    assert visited == list(range(batch))
    if batch == 5:
        assert cq.start_poll() == errno.ENOENT
        return
    assert cq.start_poll() == 0
    assert cq.wr_id == batch, "end_poll advances once"
    cq.end_poll()


@pytest.mark.row("2: start_poll / next_poll / end_poll")
def test_a_batch_that_came_to_the_end_loses_nothing_that_comes_later(world: World) -> None:
    """rdma-core #1512: after ENOENT of next_poll, end_poll must not advance once more."""
    cq = extended(world)
    first = on(world, cq)
    for wr_id in range(10):
        write(world, first, wr_id)
        assert cq.start_poll() == 0
        assert cq.wr_id == wr_id
        assert [cq.poll_next(), cq.poll_next()] == [errno.ENOENT, errno.ENOENT]
        cq.end_poll()
    write(world, first, 10, 11)
    assert cq.start_poll() == 0
    assert (cq.wr_id, cq.poll_next(), cq.wr_id) == (10, 0, 11)
    cq.end_poll()


@pytest.mark.row("2: start_poll / next_poll / end_poll")
def test_a_completion_that_arrives_within_a_batch_can_be_visited_by_it(world: World) -> None:
    cq = extended(world)
    first = on(world, cq)
    write(world, first, 1)
    assert cq.start_poll() == 0
    assert cq.poll_next() == errno.ENOENT
    write(world, first, 2)
    assert cq.poll_next() == 0
    assert (cq.wr_id, cq.status, cq.read_opcode()) == (2, OK, e.IBV_WC_RDMA_WRITE)
    cq.end_poll()
    assert cq.start_poll() == errno.ENOENT


@pytest.mark.row("2: SINGLE_THREADED")
def test_a_single_threaded_queue_works(world: World) -> None:
    cq = extended(world, flags=SINGLE)
    write(world, on(world, cq), 1, 2)
    assert cq.start_poll() == 0
    assert (cq.wr_id, cq.poll_next(), cq.wr_id) == (1, 0, 2)
    cq.end_poll()


@pytest.mark.row("2: SINGLE_THREADED")
def test_polls_of_two_threads_at_once_are_detected_in_debug_mode(build: Any) -> None:
    world = build(debug=True)
    cq = extended(world, flags=SINGLE)
    write(world, on(world, cq), 1, 2)
    reasons: list[str] = []

    def other() -> None:
        reasons.append(refused(errno.EINVAL, cq.start_poll))

    assert cq.start_poll() == 0
    thread = threading.Thread(target=other)
    thread.start()
    thread.join()
    assert "SINGLE_THREADED" in reasons[0]
    assert cq.wr_id == 1
    cq.end_poll()
    assert cq.start_poll() == 0
    assert cq.wr_id == 2, "the intruder took nothing"
    cq.end_poll()


# -- overrun


@pytest.mark.row("2: Overrun")
@pytest.mark.parametrize("size", [1, 4])
def test_an_overrun_keeps_what_fits_and_ends_every_qp_of_the_queue(world: World, size: int) -> None:
    cq = CQ(world.a.context, size)
    first, bystander, receiver = on(world, cq), on(world, cq), world.a.qp(world.a.cq, cq)
    other = on(world, world.a.cq)
    world.move(receiver, e.IBV_QPS_RTS)
    write(world, first, *range(size + 3))
    world.settle()
    attached = {first.qp_num, bystander.qp_num, receiver.qp_num}
    events = world.a.events()
    kinds = [kind for kind, _ in events]
    assert kinds.count(e.IBV_EVENT_CQ_ERR) == 1
    assert [element for kind, element in events if kind == e.IBV_EVENT_CQ_ERR] == [cq]
    fatal = [element.qp_num for kind, element in events if kind == e.IBV_EVENT_QP_FATAL]
    assert sorted(fatal) == sorted(attached), "once for each"
    assert {qp.qp_state for qp in (first, bystander, receiver)} == {e.IBV_QPS_ERR}
    assert other.qp_state == e.IBV_QPS_RTS
    assert world.a.done(cq) == [(wr_id, OK) for wr_id in range(size)]
    write(world, first, 100)
    world.a.post_recv(receiver, 101)
    world.run()
    assert world.a.done(cq) == [], "no new completions, though there is room now"
    assert world.a.events() == []


@pytest.mark.row("2: Overrun")
def test_the_completions_that_fit_are_intact(world: World) -> None:
    cq = CQ(world.b.context, 3)
    first, second = world.connect(world.a.qp(), world.b.qp(world.b.cq, cq))
    world.b.post_recv(second, *range(5))
    for number in range(5):
        first.post_send(world.a.wr(e.IBV_WR_SEND_WITH_IMM, number, length=number + 1, imm=number))
    world.settle()
    found = [(wc.wr_id, wc.status, wc.byte_len, wc.imm_data) for wc in world.b.poll(cq)]
    assert found == [(number, OK, number + 1, number) for number in range(3)]


@pytest.mark.row("2: Overrun")
def test_an_exactly_full_queue_is_no_overrun(world: World) -> None:
    cq = CQ(world.a.context, 4)
    first = on(world, cq)
    for _ in range(5):
        write(world, first, *range(4))
        assert world.a.done(cq) == [(wr_id, OK) for wr_id in range(4)]
    assert world.a.events() == []
    assert first.qp_state == e.IBV_QPS_RTS


@pytest.mark.row("2: Overrun")
def test_like_rxe_an_overrun_loses_the_completion_and_goes_on(build: Any) -> None:
    world = build(overrun="rxe")
    cq = CQ(world.a.context, 4)
    first = on(world, cq)
    write(world, first, *range(7))
    assert first.qp_state == e.IBV_QPS_RTS
    assert world.a.done(cq) == [(wr_id, OK) for wr_id in range(4)]
    write(world, first, 7)
    assert world.a.done(cq) == [(7, OK)]


@pytest.mark.row("2: IGNORE_OVERRUN")
@pytest.mark.parametrize("posted", [4, 5, 7, 30])
def test_the_oldest_is_overwritten_in_a_queue_that_ignores_overruns(world: World, posted: int) -> None:
    cq = extended(world, 4, IGNORE)
    first = on(world, cq)
    before = world.a.context.stats()
    write(world, first, *range(posted))
    found = []
    status = cq.start_poll()
    while status == 0:
        found.append(cq.wr_id)
        status = cq.poll_next()
    cq.end_poll()
    assert found == list(range(posted - 4, posted))
    assert world.a.events() == []
    assert first.qp_state == e.IBV_QPS_RTS
    after = world.a.context.stats()
    lost = {
        name: count - before.get(name, 0)
        for name, count in after.items()
        if any(word in name for word in ("overrun", "lost", "cq"))
    }
    assert sum(lost.values()) == posted - 4, "losses are counted in the statistics"


# -- queue pairs that go, and flushing


@pytest.mark.row("2: QP destroyed or reset")
@pytest.mark.parametrize("purge", [True, False])
@pytest.mark.parametrize("way", ["destroy", "reset"])
def test_completions_of_a_qp_go_with_it_unless_told_otherwise(build: Any, way: str, purge: bool) -> None:
    world = build(purge=purge)
    cq = CQ(world.a.context, 20)
    going, staying = on(world, cq), on(world, cq)
    for wr_id in range(3):
        write(world, going, 10 + wr_id)
        write(world, staying, 20 + wr_id)
    if way == "destroy":
        going.close()
    else:
        set_state(going, e.IBV_QPS_RESET)
    left = [20, 21, 22] if purge else [10, 20, 11, 21, 12, 22]
    assert world.a.done(cq) == [(wr_id, OK) for wr_id in left]
    write(world, staying, 30)
    assert world.a.done(cq) == [(30, OK)]


@pytest.mark.row("2: QP destroyed or reset")
def test_both_queues_of_a_qp_are_purged_and_have_room_again(world: World) -> None:
    send_cq, recv_cq = CQ(world.b.context, 3), CQ(world.b.context, 3)
    first, second = world.connect(world.a.qp(), world.b.qp(send_cq, recv_cq))
    world.b.post_recv(second, 1, 2, 3)
    for _ in range(3):
        first.post_send(world.a.wr(e.IBV_WR_SEND))
        second.post_send(world.b.wr(e.IBV_WR_RDMA_WRITE))
    world.run()
    second.close()
    assert (world.b.done(send_cq), world.b.done(recv_cq)) == ([], [])
    third = world.connect(world.b.qp(send_cq), world.a.qp())[0]
    for wr_id in range(3):
        third.post_send(world.b.wr(e.IBV_WR_RDMA_WRITE, wr_id))
    world.run()
    assert world.b.done(send_cq) == [(wr_id, OK) for wr_id in range(3)]
    assert world.b.events() == []


@pytest.mark.row("2: Flush")
def test_a_move_to_err_flushes_every_request_once_in_order(world: World) -> None:
    side = world.a
    send_cq, recv_cq = CQ(side.context, 50), CQ(side.context, 50)
    qp = world.move(side.qp(send_cq, recv_cq), e.IBV_QPS_RTS)
    for wr_id in range(5):
        qp.post_send(side.wr(e.IBV_WR_RDMA_WRITE, wr_id, flags=wr_id % 2 * 2))
    side.post_recv(qp, *range(10, 14))
    world.run()
    assert (side.done(send_cq), side.done(recv_cq)) == ([], [])
    set_state(qp, e.IBV_QPS_ERR)
    assert side.done(send_cq) == [(wr_id, FLUSHED) for wr_id in range(5)]
    assert side.done(recv_cq) == [(wr_id, FLUSHED) for wr_id in range(10, 14)]
    set_state(qp, e.IBV_QPS_ERR)
    world.settle()
    assert (side.done(send_cq), side.done(recv_cq)) == ([], [])


@pytest.mark.row("2: Flush")
def test_posting_in_err_succeeds_and_is_flushed_in_order(world: World) -> None:
    qp = world.move(world.a.qp(), e.IBV_QPS_ERR)
    for wr_id in range(4):
        qp.post_send(world.a.wr(e.IBV_WR_SEND, wr_id, flags=0))
    world.a.post_recv(qp, 10, 11)
    world.run()
    completions = world.a.poll()
    assert [(wc.wr_id, wc.status) for wc in completions] == [(wr_id, FLUSHED) for wr_id in (0, 1, 2, 3, 10, 11)]
    assert {wc.qp_num for wc in completions} == {qp.qp_num}
    assert all(wc.reason for wc in completions)


@pytest.mark.row("2: Flush")
def test_more_than_the_queue_holds_can_be_flushed_one_after_the_other(world: World) -> None:
    qp = world.move(world.a.qp(max_send_wr=2, max_recv_wr=2), e.IBV_QPS_ERR)
    for wr_id in range(50):
        qp.post_send(world.a.wr(e.IBV_WR_SEND, wr_id))
        world.a.post_recv(qp, 100 + wr_id)
        assert world.a.done() == [(wr_id, FLUSHED), (100 + wr_id, FLUSHED)]


@pytest.mark.row("2: Flush")
def test_receives_that_were_posted_in_init_are_flushed_too(world: World) -> None:
    qp = world.move(world.a.qp(), e.IBV_QPS_INIT)
    world.a.post_recv(qp, 1, 2)
    set_state(qp, e.IBV_QPS_ERR)
    assert world.a.done() == [(1, FLUSHED), (2, FLUSHED)]
