# SPDX-License-Identifier: MIT
"""The reliable connection on a bad wire: lost packets, timers, retries, peers that are not there; draining; sockets."""

import random
import threading
from typing import Any

import pytest
from tests.pyverbs.world import (
    ACK,
    ATOMIC_ACK,
    FETCH_ADD,
    MS,
    OPS,
    SIZE,
    WRITE_MIDDLE,
    WRITE_ONLY,
    World,
    fill,
    pattern,
    set_state,
    set_word,
    word,
)

from softverbs.pyverbs import libibverbs_enums as e
from softverbs.pyverbs.qp import QPAttachCompCntrAttr

OK, FLUSHED = e.IBV_WC_SUCCESS, e.IBV_WC_WR_FLUSH_ERR
WRITE, WRITE_IMM, SEND, SEND_IMM, READ = (
    e.IBV_WR_RDMA_WRITE, e.IBV_WR_RDMA_WRITE_WITH_IMM, e.IBV_WR_SEND, e.IBV_WR_SEND_WITH_IMM, e.IBV_WR_RDMA_READ,
)  # fmt: skip
SWAP, ADD = e.IBV_WR_ATOMIC_CMP_AND_SWP, e.IBV_WR_ATOMIC_FETCH_AND_ADD
NO_PEER_QP = 0xFFFFF0
TIMEOUT_14 = 4096 << 14  # ns


# -- a bad wire


def test_a_lost_packet_is_asked_for_before_the_timer(build: Any) -> None:
    world = build(wire=True)
    first, _ = world.pair()
    fill(world.a.memory, pattern(10_000))
    world.wire.drop(WRITE_MIDDLE, skip=2)
    before = world.now
    first.post_send(world.a.wr(WRITE, 1, 10_000))
    world.until(lambda: world.a.cq.poll(1)[0])
    assert world.b.memory[:10_000] == pattern(10_000)
    assert world.now - before < TIMEOUT_14, "NAK, sequence error"


@pytest.mark.parametrize("lost", [WRITE_ONLY, ACK])
def test_a_lost_request_or_answer_costs_one_timeout(build: Any, lost: int) -> None:
    world = build(wire=True)
    first, _ = world.pair()
    world.wire.drop(lost)
    before = world.now
    first.post_send(world.a.wr(WRITE, 1))
    world.until(lambda: world.a.cq.poll(1)[0])
    assert TIMEOUT_14 <= world.now - before <= 4 * TIMEOUT_14  # IBA 9.7.6.1.3


@pytest.mark.parametrize("lost", [FETCH_ADD, ATOMIC_ACK])
def test_an_atomic_is_done_once_though_it_is_asked_for_again(build: Any, lost: int) -> None:
    world = build(wire=True)
    first, _ = world.pair()
    set_word(world.b.memory, 10)
    world.wire.drop(lost, times=3)
    first.post_send(world.a.wr(ADD, 1, operands=(5, 0)))
    first.post_send(world.a.wr(ADD, 2, offset=8, operands=(7, 0)))
    world.settle()
    assert world.a.done() == [(1, OK), (2, OK)]
    assert (word(world.a.memory), word(world.a.memory, 8), word(world.b.memory)) == (10, 15, 22)


@pytest.mark.parametrize("seed", range(4))
def test_data_survives_a_bad_network(build: Any, seed: int) -> None:
    world = build(faults={"seed": seed, "drop": 0.1, "duplicate": 0.1, "reorder": 0.1, "corrupt": 0.1, "delay": MS})
    first, second = world.pair(timeout=12)
    chance = random.Random(seed)
    fill(world.a.memory, pattern(SIZE, 1))
    fill(world.b.memory, pattern(SIZE, 2))
    expected_a, expected_b = bytearray(world.a.memory), bytearray(world.b.memory)
    for wr_id in range(24):
        length, opcode = chance.randrange(1, 2500), chance.choice([WRITE, READ, SEND])
        here, there = 2560 * wr_id, 2560 * (23 - wr_id)
        if opcode == READ:
            expected_a[here : here + length] = expected_b[there : there + length]
        else:
            expected_b[there : there + length] = expected_a[here : here + length]
        if opcode == SEND:
            world.b.post_recv(second, wr_id, length=2560, offset=there)
        first.post_send(world.a.wr(opcode, wr_id, length, offset=here, at=there))
        world.settle(10_000)
    assert world.a.done() == [(wr_id, OK) for wr_id in range(24)]
    assert (world.a.memory, world.b.memory) == (expected_a, expected_b)


# -- timers and retries


@pytest.mark.parametrize("retries", [0, 1, 3, 7])
def test_a_silent_peer_is_given_up_after_the_retries(build: Any, retries: int) -> None:
    world = build(wire=True)
    first, _ = world.pair(retry_cnt=retries, timeout=12)
    world.wire.rule = lambda _: []
    before = world.now
    for wr_id in range(3):
        first.post_send(world.a.wr(WRITE, wr_id))
    world.settle()
    assert world.a.done() == [(0, e.IBV_WC_RETRY_EXC_ERR), (1, FLUSHED), (2, FLUSHED)]
    assert first.qp_state == e.IBV_QPS_ERR
    elapsed, once = world.now - before, 4096 << 12
    assert (retries + 1) * once <= elapsed <= 4 * (retries + 1) * once


def test_timeout_0_waits_for_ever(build: Any) -> None:
    world = build(wire=True)
    first, _ = world.pair(timeout=0)
    world.wire.rule = lambda _: []
    first.post_send(world.a.wr(WRITE, 1))
    world.settle()
    world.pass_time(3600 * 1000 * MS)
    assert world.a.done() == []
    assert first.qp_state == e.IBV_QPS_RTS


@pytest.mark.parametrize("opcode", [SEND, SEND_IMM, WRITE_IMM])
def test_without_a_receive_the_sender_waits_and_tries_again(world: World, opcode: int) -> None:
    first, second = world.pair(min_rnr_timer=14)  # 1 ms
    fill(world.a.memory, pattern(3000))
    first.post_send(world.a.wr(opcode, 1, 3000))
    world.run()
    world.pass_time(5 * MS)
    assert world.a.done() == []
    world.b.post_recv(second, 2)
    before = world.now
    world.until(lambda: world.a.done() == [(1, OK)])
    assert world.b.done() == [(2, OK)]
    assert world.b.memory[:3000] == pattern(3000)
    assert world.now - before < 2 * MS


@pytest.mark.parametrize("retries", [0, 1, 3])
def test_rnr_retries_are_used_up(world: World, retries: int) -> None:
    first, _ = world.pair(min_rnr_timer=16, rnr_retry=retries)  # 2.56 ms, IBA table 45
    before = world.now
    first.post_send(world.a.wr(SEND, 1))
    first.post_send(world.a.wr(WRITE, 2))
    found: list[Any] = []
    world.until(lambda: found.extend(world.a.done()) or len(found) == 2)
    assert found == [(1, e.IBV_WC_RNR_RETRY_EXC_ERR), (2, FLUSHED)]
    assert retries * 2_560_000 <= world.now - before <= (retries + 1) * 2_560_000
    assert first.qp_state == e.IBV_QPS_ERR


def test_rnr_retry_7_never_gives_up(world: World) -> None:
    first, second = world.pair(min_rnr_timer=1, rnr_retry=7, retry_cnt=0)
    first.post_send(world.a.wr(SEND, 1))
    world.pass_time(5 * MS)
    assert world.a.done() == []
    world.b.post_recv(second, 2)
    world.settle()
    assert world.a.done() == [(1, OK)]


# -- SQD


def test_a_queue_that_drains_sends_nothing_until_rts(world: World) -> None:
    first, second = world.pair()
    first.post_send(world.a.wr(WRITE, 1))
    world.run()
    set_state(first, e.IBV_QPS_SQD)
    first.post_send(world.a.wr(WRITE, 2))
    world.b.post_recv(second, 5)
    world.settle()
    assert world.a.done() == [(1, OK)]
    second.post_send(world.b.wr(WRITE, 3))
    world.run()
    assert world.b.done() == [(3, OK)], "a draining QP still serves its peer"
    set_state(first, e.IBV_QPS_RTS)
    world.run()
    assert world.a.done() == [(2, OK)]


def test_a_drained_queue_tells_if_asked_to(world: World) -> None:
    first, _ = world.pair()
    first.post_send(world.a.wr(WRITE, 1))
    world.run()
    attr = world.attr(first, 0, qp_state=e.IBV_QPS_SQD, en_sqd_async_notify=1)
    first.modify(attr, e.IBV_QP_STATE | e.IBV_QP_EN_SQD_ASYNC_NOTIFY)
    world.settle()
    assert world.a.events() == [(e.IBV_EVENT_SQ_DRAINED, first)]


# -- threads


def test_threads_share_a_device_and_a_queue(world: World) -> None:
    """Each has a connection of its own and drives both devices; they poll what any of them has completed."""
    pairs = [world.a.qp() for _ in range(4)]
    counter = world.a.counter()
    for first in pairs:
        first.attach_comp_cntr(counter, QPAttachCompCntrAttr(sum(OPS)))
        world.connect(first, world.b.qp())
    polled: list[int] = []

    def work(number: int) -> None:
        for step in range(50):
            pairs[number].post_send(world.a.wr(ADD, 50 * number + step, offset=8 * (50 * number + step)))
            world.b.device.progress()
            polled.extend(wc.wr_id for wc in world.a.cq.poll(3)[1])

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    world.settle()
    polled.extend(wr_id for wr_id, _ in world.a.done())
    assert sorted(polled) == list(range(200))
    assert counter.read_pair() == (200, 0)
    assert sorted(word(world.a.memory, 8 * number) for number in range(200)) == list(range(200))


# -- over real sockets


def test_every_operation_over_real_sockets(build: Any) -> None:
    world = build("udp")
    first, second = world.pair()
    fill(world.a.memory, pattern(20_000))
    world.b.post_recv(second, 1, 2, length=SIZE // 2, offset=SIZE // 2)
    opcodes = (WRITE, SEND, WRITE_IMM, ADD, READ, SWAP)
    for wr_id, opcode in enumerate(opcodes):
        length = 8 if opcode in (ADD, SWAP) else 20_000
        first.post_send(world.a.wr(opcode, wr_id, length, offset=30_000 if opcode in (READ, ADD, SWAP) else 0))
    found: list[Any] = []
    world.until(lambda: found.extend(world.a.done()) or len(found) == len(opcodes))
    assert found == [(wr_id, OK) for wr_id in range(len(opcodes))]
    assert world.b.memory[8:20_000] == pattern(20_000)[8:]
    assert world.a.memory[30_008:50_000] == pattern(20_000)[8:]
    assert world.b.memory[SIZE // 2 : SIZE // 2 + 20_000] == pattern(20_000)


def test_a_peer_that_does_not_exist_is_given_up_over_real_sockets(build: Any) -> None:
    world = build("udp")
    qp = world.move(world.a.qp(), e.IBV_QPS_RTS, NO_PEER_QP, timeout=8, retry_cnt=2)
    qp.post_send(world.a.wr(WRITE, 1))
    found: list[Any] = []
    world.until(lambda: found.extend(world.a.done()) or found)
    assert found == [(1, e.IBV_WC_RETRY_EXC_ERR)]
