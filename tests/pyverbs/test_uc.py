# SPDX-License-Identifier: MIT
"""Unreliable connections: as reliable ones where nothing is lost, silent where something is (IBA 9.8.2)."""

import errno
import socket
from typing import Any

import pytest
from tests.pyverbs.services import make, srq, stock, uc_pair
from tests.pyverbs.world import (
    ALL,
    PATH,
    RECV,
    REMOTE_WRITE,
    SEND,
    WRITE,
    World,
    fill,
    pattern,
    refused,
    set_state,
    values,
)

from softverbs.pyverbs import libibverbs_enums as e
from softverbs.pyverbs.mr import MR, MW, MWBind, MWBindInfo
from softverbs.pyverbs.qp import QPAttr
from softverbs.pyverbs.wr import SGE

#: First byte of a packet: its opcode (IBA table 38, unreliable connection).
SEND_FIRST, SEND_MIDDLE, SEND_LAST, SEND_ONLY = 0x20, 0x21, 0x22, 0x24
WRITE_FIRST, WRITE_MIDDLE, WRITE_LAST, WRITE_ONLY = 0x26, 0x27, 0x28, 0x2A


@pytest.fixture
def lossy(build: Any) -> World:
    made: World = build(wire=True)
    return made


# -- what works as on a reliable connection


@pytest.mark.parametrize("length", [0, 1, 1023, 1024, 1025, 20_000])
def test_a_message(world: World, length: int) -> None:
    first, second = uc_pair(world)
    data = pattern(length, length)
    fill(world.a.memory, data)
    world.b.post_recv(second, 9, length=25_000, offset=30_000)
    first.post_send(world.a.wr(e.IBV_WR_SEND_WITH_IMM, 1, length, imm=socket.htonl(7)))
    world.settle()
    found = {wc.wr_id: wc for side in {world.a, world.b} for wc in side.poll()}
    assert found[1].status == found[9].status == e.IBV_WC_SUCCESS
    assert (found[1].opcode, found[9].opcode) == (e.IBV_WC_SEND, e.IBV_WC_RECV)
    assert (found[9].byte_len, found[9].wc_flags, socket.ntohl(found[9].imm_data)) == (length, e.IBV_WC_WITH_IMM, 7)
    assert (found[9].qp_num, found[1].qp_num) == (second.qp_num, first.qp_num)
    assert world.b.memory[30_000 : 30_000 + length] == data


@pytest.mark.parametrize("length", [0, 1, 1024, 20_000])
def test_a_write(world: World, length: int) -> None:
    first, _ = uc_pair(world)
    data = pattern(length, length)
    fill(world.a.memory, data)
    first.post_send(world.a.wr(e.IBV_WR_RDMA_WRITE, 1, length, at=30_000))
    world.settle()
    assert world.a.done() == [(1, e.IBV_WC_SUCCESS)]
    assert world.b.memory[30_000 : 30_000 + length] == data


def test_a_write_that_tells(world: World) -> None:
    first, second = uc_pair(world)
    fill(world.a.memory, b"x" * 3000)
    world.b.post_recv(second, 9)
    first.post_send(world.a.wr(e.IBV_WR_RDMA_WRITE_WITH_IMM, 1, 3000, at=30_000, imm=socket.htonl(5)))
    world.settle()
    (wc,) = [wc for side in {world.a, world.b} for wc in side.poll() if wc.wr_id == 9]
    assert (wc.opcode, wc.byte_len, socket.ntohl(wc.imm_data)) == (e.IBV_WC_RECV_RDMA_WITH_IMM, 3000, 5)
    assert world.b.memory[30_000:33_000] == b"x" * 3000


def test_messages_keep_their_order(world: World) -> None:
    first, second = uc_pair(world)
    for index in range(20):
        world.b.post_recv(second, 100 + index, length=3000, offset=3000 * index)
    for index in range(20):
        world.a.memory[index] = index
        first.post_send(world.a.wr(e.IBV_WR_SEND, index, 1, index, flags=0))
    world.settle()
    assert [wc.wr_id for wc in world.b.poll() if wc.opcode == e.IBV_WC_RECV] == list(range(100, 120))
    assert [world.b.memory[3000 * index] for index in range(20)] == list(range(20))


def test_both_directions_at_once(world: World) -> None:
    first, second = uc_pair(world)
    for index in range(8):
        first.post_send(world.a.wr(e.IBV_WR_RDMA_WRITE, index, 5000, at=10_000))
        second.post_send(world.b.wr(e.IBV_WR_RDMA_WRITE, 100 + index, 5000, at=20_000))
    world.settle()
    done = sorted(entry for side in {world.a, world.b} for entry in side.done())
    assert done == [(index, 0) for index in (*range(8), *range(100, 108))]


# -- the states


def test_the_steps_need_less_than_those_of_a_reliable_connection(world: World) -> None:
    qp = make(world.a, e.IBV_QPT_UC)
    attr = world.attr(qp, 77)
    qp.to_init(attr)
    mask = e.IBV_QP_STATE | e.IBV_QP_AV | e.IBV_QP_PATH_MTU | e.IBV_QP_DEST_QPN
    attr.qp_state = e.IBV_QPS_RTR
    assert "IBV_QP_RQ_PSN" in refused(errno.EINVAL, qp.modify, attr, mask)
    bad = mask | e.IBV_QP_RQ_PSN | e.IBV_QP_MAX_DEST_RD_ATOMIC
    assert "IBV_QP_MAX_DEST_RD_ATOMIC" in refused(errno.EINVAL, qp.modify, attr, bad)
    qp.to_rtr(attr)
    attr.qp_state = e.IBV_QPS_RTS
    bad = e.IBV_QP_STATE | e.IBV_QP_SQ_PSN | e.IBV_QP_TIMEOUT
    assert "IBV_QP_TIMEOUT" in refused(errno.EINVAL, qp.modify, attr, bad)
    qp.to_rts(attr)
    found, init = qp.query(0x1FFFFF)
    assert (found.qp_state, found.dest_qp_num, found.sq_psn, found.path_mtu) == (
        e.IBV_QPS_RTS, 77, PATH["sq_psn"], PATH["path_mtu"],
    )  # fmt: skip
    assert init.qp_type == e.IBV_QPT_UC


@pytest.mark.parametrize(
    "opcode",
    [e.IBV_WR_RDMA_READ, e.IBV_WR_ATOMIC_CMP_AND_SWP, e.IBV_WR_ATOMIC_FETCH_AND_ADD, e.IBV_WR_ATOMIC_WRITE],
)
def test_operations_that_need_an_answer_are_refused(world: World, opcode: int) -> None:
    first, _ = uc_pair(world)
    assert "UC" in refused(errno.EINVAL, first.post_send, world.a.wr(opcode))


def test_the_error_state_flushes(world: World) -> None:
    first, second = uc_pair(world)
    world.b.post_recv(second, 9)
    set_state(second, e.IBV_QPS_ERR)
    assert world.b.done() == [(9, e.IBV_WC_WR_FLUSH_ERR)]
    set_state(first, e.IBV_QPS_ERR)
    first.post_send(world.a.wr(e.IBV_WR_RDMA_WRITE, 1))
    assert world.a.done() == [(1, e.IBV_WC_WR_FLUSH_ERR)]


def test_an_error_of_the_send_side_leaves_the_receive_side_alone(world: World) -> None:
    first, second = uc_pair(world)
    first.post_send(world.a.wr(e.IBV_WR_RDMA_WRITE, 1, sg=[SGE(1, 8, 0xDEAD00)]))
    world.settle()
    assert world.a.done() == [(1, e.IBV_WC_LOC_PROT_ERR)]
    assert first.qp_state == e.IBV_QPS_SQE
    world.a.post_recv(first, 8)
    second.post_send(world.b.wr(e.IBV_WR_SEND, 2))
    world.settle()
    assert (8, e.IBV_WC_SUCCESS) in world.a.done()
    first.modify(QPAttr(qp_state=e.IBV_QPS_RTS), e.IBV_QP_STATE)
    world.b.done()
    world.b.post_recv(second, 9)
    first.post_send(world.a.wr(e.IBV_WR_SEND, 3))
    world.settle()
    done = [entry for side in {world.a, world.b} for entry in side.done()]
    assert (3, 0) in done
    assert (9, 0) in done


# -- what is lost


@pytest.mark.parametrize("lost", [SEND_FIRST, SEND_MIDDLE, SEND_LAST])
def test_a_message_that_misses_a_packet_is_dropped_whole(lossy: World, lost: int) -> None:
    first, second = uc_pair(lossy)
    lossy.b.post_recv(second, 9, 10, length=4096)
    lossy.wire.drop(lost)
    first.post_send(lossy.a.wr(e.IBV_WR_SEND, 1, 3000))
    first.post_send(lossy.a.wr(e.IBV_WR_SEND, 2, 2500))
    lossy.settle()
    assert lossy.a.done() == [(1, 0), (2, 0)], "nobody tells the sender"
    found = lossy.b.poll()
    assert [(wc.wr_id, wc.status, wc.byte_len) for wc in found] == [(9, 0, 2500)], "its receive takes the next one"
    assert second.qp_state == e.IBV_QPS_RTS
    assert lossy.wire.count(SEND_FIRST, SEND_MIDDLE, SEND_LAST) == 6, "nothing is sent again, or acknowledged"
    assert len(lossy.wire.frames) == 6


def test_a_write_that_misses_its_end_has_still_written(lossy: World) -> None:
    """What a lost packet leaves of a WRITE is not defined (IBA 9.8.2.2); the target only hears of whole messages."""
    first, second = uc_pair(lossy)
    lossy.b.post_recv(second, 9)
    lossy.wire.drop(0x29)  # WRITE LAST with immediate data
    first.post_send(lossy.a.wr(e.IBV_WR_RDMA_WRITE_WITH_IMM, 1, 3000, at=30_000, imm=1))
    lossy.settle()
    assert lossy.a.done() == [(1, 0)]
    assert lossy.b.done() == []
    first.post_send(lossy.a.wr(e.IBV_WR_RDMA_WRITE_WITH_IMM, 2, 10, at=30_000, imm=1))
    lossy.settle()
    assert lossy.b.done() == [(9, 0)]


def test_duplicates_and_late_packets(lossy: World) -> None:
    """UC has no duplicates: a packet out of order begins a gap, and its message is lost."""
    first, second = uc_pair(lossy)
    lossy.b.post_recv(second, 9, 10, 11, length=4096)
    lossy.wire.rule = lambda frame: [frame, frame] if frame[0] == SEND_MIDDLE else None
    first.post_send(lossy.a.wr(e.IBV_WR_SEND, 1, 3000))
    first.post_send(lossy.a.wr(e.IBV_WR_SEND, 2, 100))
    lossy.settle()
    assert lossy.b.done() == [(9, 0)]


def test_without_a_receive_the_message_is_lost(world: World) -> None:
    first, second = uc_pair(world)
    first.post_send(world.a.wr(e.IBV_WR_SEND, 1))
    world.settle()
    assert world.a.done() == [(1, 0)]
    world.b.post_recv(second, 9)
    first.post_send(world.a.wr(e.IBV_WR_SEND, 2))
    world.settle()
    done = [entry for side in {world.a, world.b} for entry in side.done()]
    assert sorted(done) == [(2, 0), (9, 0)]


def test_a_write_without_the_right_changes_nothing_and_nobody_hears_of_it(world: World) -> None:
    first, second = uc_pair(world)
    mr = MR(world.b.pd, bytearray(64), e.IBV_ACCESS_LOCAL_WRITE)
    wr = world.a.wr(e.IBV_WR_RDMA_WRITE, 1)
    wr.set_wr_rdma(mr.rkey, mr.buf)
    fill(world.a.memory, b"\x55" * 8)
    first.post_send(wr)
    world.settle()
    assert world.a.done() == [(1, 0)]
    assert mr.read(8, 0) == bytes(8)
    assert second.qp_state == e.IBV_QPS_RTS
    assert MR(world.b.pd, 8, ALL).length == 8


def test_a_receive_that_is_too_short_ends_the_receiver(world: World) -> None:
    first, second = uc_pair(world)
    world.b.post_recv(second, 9, length=100)
    first.post_send(world.a.wr(e.IBV_WR_SEND, 1, 101))
    world.settle()
    done = [entry for side in {world.a, world.b} for entry in side.done()]
    assert (1, 0) in done
    assert (9, e.IBV_WC_LOC_LEN_ERR) in done
    assert second.qp_state == e.IBV_QPS_ERR


@pytest.mark.parametrize("seed", range(4))
def test_over_a_bad_network_what_arrives_is_whole_and_in_order(build: Any, seed: int) -> None:
    world: World = build(faults={"seed": seed, "drop": 0.1, "duplicate": 0.05, "reorder": 0.05})
    first, second = uc_pair(world)
    for index in range(40):
        world.b.post_recv(second, index, length=1500, offset=1500 * index)
    for index in range(40):
        fill(world.a.memory, bytes([index]) * 1300, 1300 * index)
        first.post_send(world.a.wr(e.IBV_WR_SEND, index, 1300, 1300 * index))
    world.settle()
    assert [status for _, status in world.a.done()] == [0] * 40
    found = world.b.poll()
    assert 0 < len(found) < 40
    assert [wc.wr_id for wc in found] == list(range(len(found)))
    contents = [bytes(world.b.memory[1500 * wc.wr_id : 1500 * wc.wr_id + 1300]) for wc in found]
    assert all(set(content) == {content[0]} for content in contents)
    assert [content[0] for content in contents] == sorted(content[0] for content in contents)


# -- counters (semantics, section 1)


@pytest.mark.row("1: Bit SEND")
def test_counters(world: World) -> None:
    first, second = make(world.a, e.IBV_QPT_UC), make(world.b, e.IBV_QPT_UC)
    here, there = world.a.count_all(first), world.b.count_all(second)
    world.connect(first, second)
    world.b.post_recv(second, 1, 2, 3)
    for wr in (
        world.a.wr(e.IBV_WR_SEND, flags=0),
        world.a.wr(e.IBV_WR_RDMA_WRITE, flags=0),
        world.a.wr(e.IBV_WR_RDMA_WRITE_WITH_IMM),
        world.a.wr(e.IBV_WR_SEND_WITH_IMM, length=3000),
    ):
        first.post_send(wr)
    world.settle()
    assert values(here) == {"SEND": (2, 0), "WRITE": (2, 0)}
    assert values(there) == {"RECV": (3, 0), "REMOTE_WRITE": (2, 0)}
    set_state(first, e.IBV_QPS_ERR)
    first.post_send(world.a.wr(e.IBV_WR_SEND, flags=0))
    assert values(here) == {"SEND": (2, 1), "WRITE": (2, 0)}


def test_lost_messages_count_where_they_were_sent_only(lossy: World) -> None:
    first, second = make(lossy.a, e.IBV_QPT_UC), make(lossy.b, e.IBV_QPT_UC)
    here = lossy.a.count(first, SEND | WRITE)
    there = lossy.b.count(second, RECV | REMOTE_WRITE)
    lossy.connect(first, second)
    lossy.b.post_recv(second, 1, 2, 3)
    lossy.wire.drop(SEND_ONLY)
    first.post_send(lossy.a.wr(e.IBV_WR_SEND, 1))
    first.post_send(lossy.a.wr(e.IBV_WR_RDMA_WRITE, 2))
    lossy.settle()
    assert (here.read_pair(), there.read_pair()) == ((2, 0), (1, 0))


# -- the send queue, drained


def test_a_drained_queue_tells_and_waits(world: World) -> None:
    first, second = uc_pair(world)
    world.a.events()
    attr = QPAttr(qp_state=e.IBV_QPS_SQD)
    attr.en_sqd_async_notify = 1
    first.modify(attr, e.IBV_QP_STATE | e.IBV_QP_EN_SQD_ASYNC_NOTIFY)
    world.settle()
    assert (e.IBV_EVENT_SQ_DRAINED, first) in world.a.events()
    first.post_send(world.a.wr(e.IBV_WR_RDMA_WRITE, 1))
    world.settle()
    assert world.a.done() == []
    first.modify(QPAttr(qp_state=e.IBV_QPS_RTS), e.IBV_QP_STATE)
    world.settle()
    assert world.a.done() == [(1, 0)]
    assert second.qp_state == e.IBV_QPS_RTS


# -- memory windows: UC binds and invalidates locally (ibv_bind_mw(3), IBA table 88)


def test_a_window_is_bound_and_written_through(world: World) -> None:
    first, second = uc_pair(world)
    window = MW(world.b.pd, e.IBV_MW_TYPE_1)
    info = MWBindInfo(world.b.mr, world.b.mr.buf + 40_000, 64, e.IBV_ACCESS_REMOTE_WRITE)
    second.bind_mw(window, MWBind(info, e.IBV_SEND_SIGNALED, 5))
    world.settle()
    assert (5, 0) in world.b.done()
    fill(world.a.memory, b"through a window")
    wr = world.a.wr(e.IBV_WR_RDMA_WRITE, 1, 16)
    wr.set_wr_rdma(window.rkey, world.b.mr.buf + 40_000)
    first.post_send(wr)
    world.settle()
    assert world.b.memory[40_000:40_016] == b"through a window"


# -- with a shared receive queue, and over real sockets


def test_a_message_that_lost_its_end_leaves_its_receive_to_the_next(lossy: World) -> None:
    """With a shared queue the receive of a broken message belongs to the QP, and waits there for its next message."""
    queue = srq(lossy.b)
    first = make(lossy.a, e.IBV_QPT_UC)
    second = make(lossy.b, e.IBV_QPT_UC, queue)
    lossy.connect(first, second)
    stock(lossy.b, queue, 10, 11, 12, length=4096, spread=4096)
    lossy.wire.drop(SEND_LAST)
    for wr_id in range(3):
        first.post_send(lossy.a.wr(e.IBV_WR_SEND, wr_id, 3000))
    lossy.settle()
    found = [wr_id for wr_id, status in lossy.b.done() if status == 0]
    assert len(found) == 2
    assert found == sorted(found)
    first.post_send(lossy.a.wr(e.IBV_WR_SEND, 9, 3000))
    lossy.settle()
    last = lossy.b.done()
    assert (len(last) == 1) == (found != [11, 12]), "a receive was lost with the message, or it was not"


def test_over_real_sockets(build: Any) -> None:
    world: World = build("udp")
    first, second = uc_pair(world)
    fill(world.a.memory, pattern(30_000))
    found: list[Any] = []
    for index in range(10):
        world.b.post_recv(second, 100 + index, length=3000, offset=3000 * index)
        first.post_send(world.a.wr(e.IBV_WR_SEND, index, 3000, 3000 * index))
        world.until(lambda: found.extend(world.b.poll()) or len(found) > index)  # noqa: B023
    assert [(wc.wr_id, wc.status, wc.byte_len) for wc in found] == [(100 + index, 0, 3000) for index in range(10)]
    assert world.b.memory[:30_000] == pattern(30_000)


def test_a_long_write_over_real_sockets_is_paced(build: Any) -> None:
    """Nobody acknowledges: what is sent faster than the reader takes it out of its socket would be lost.

    A busy machine may lose some all the same; then the target hears nothing, and never of half a message.
    """
    world: World = build("udp")
    size = 4_000_000
    source, target = bytearray(pattern(size)), bytearray(size)
    here, there = MR(world.a.pd, source, ALL), MR(world.b.pd, target, ALL)
    first, second = uc_pair(world)
    world.b.post_recv(second, 9)
    wr = world.a.wr(e.IBV_WR_RDMA_WRITE_WITH_IMM, 1, sg=[SGE(here.buf, size, here.lkey)])
    wr.set_wr_rdma(there.rkey, there.buf)
    first.post_send(wr)
    sent: list[Any] = []
    world.until(lambda: sent.extend(world.a.poll()) or sent)
    assert sent[0].status == 0
    ping, pong = make(world.a, e.IBV_QPT_RC), make(world.b, e.IBV_QPT_RC)
    world.connect(ping, pong)
    world.b.post_recv(pong, 10)
    ping.post_send(world.a.wr(e.IBV_WR_SEND, 2))  # what arrived of the write arrived before this
    came: list[Any] = []
    world.until(lambda: came.extend(world.b.done()) or (10, 0) in came)
    if (9, 0) in came:
        assert target == source
