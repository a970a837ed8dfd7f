# SPDX-License-Identifier: MIT
"""The extended API for sends: each operation, each kind of data, each type of QP, and who may be in a section."""

import errno
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from tests.pyverbs.sections import FLUSHABLE, QKEY, UC_OPS, UD_OPS, XRC_OPS, Pair, make
from tests.pyverbs.services import connect, stock, target, xrcd, xsrq
from tests.pyverbs.world import (
    ALL,
    SIGNALED,
    World,
    fill,
    pattern,
    refused,
    set_word,
    word,
)

from softverbs import verbs
from softverbs.pyverbs import libibverbs_enums as e
from softverbs.pyverbs.addr import AH, AHAttr, GlobalRoute
from softverbs.pyverbs.base import inc_rkey
from softverbs.pyverbs.mr import MR, MW, MWBindInfo
from softverbs.pyverbs.pyverbs_error import PyverbsRDMAError
from softverbs.pyverbs.qp import DataBuffer, QPAttr, QPInitAttrEx
from softverbs.pyverbs.wr import SGE


@pytest.fixture
def pair(world: World) -> Pair:
    return Pair(world)


@pytest.fixture
def lone() -> Iterator[Pair]:
    with World("loopback") as world:
        yield Pair(world)


# -- operations


@pytest.mark.parametrize("imm", [False, True])
def test_send(pair: Pair, imm: bool) -> None:
    data = pattern(100)
    fill(pair.a.memory, data)
    pair.b.post_recv(pair.peer, 7, offset=512)
    qp = pair.begin()
    qp.wr_send_imm(0x01020304) if imm else qp.wr_send()
    qp.wr_set_sge(pair.a.sge(100))
    qp.wr_complete()
    pair.world.settle()
    assert pair.a.done() == [(1, 0)]
    (received,) = pair.b.poll()
    assert (received.wr_id, received.byte_len) == (7, 100)
    if imm:
        assert received.imm_data.to_bytes(4, "little") == b"\1\2\3\4"
    assert pair.b.memory[512:612] == data


def test_write_read_and_a_message_of_no_bytes(pair: Pair) -> None:
    data = pattern(5000)
    fill(pair.a.memory, data)
    key, there = pair.there
    qp = pair.begin(1)
    qp.wr_rdma_write(key, there + 6000)
    qp.wr_set_sge(pair.a.sge(5000))
    qp.wr_id = 2
    qp.wr_rdma_read(key, there + 6000)
    qp.wr_set_sge_list(2, [pair.a.sge(2000, 20000), pair.a.sge(3000, 30000), pair.a.sge(1)])
    qp.wr_id = 3
    qp.wr_rdma_write(key, there)
    qp.wr_set_sge_list(0, [])
    pair.end((1, 0), (2, 0), (3, 0))
    assert pair.b.memory[6000:11000] == data
    assert pair.a.memory[20000:22000] + pair.a.memory[30000:33000] == data


def test_write_with_immediate_data(pair: Pair) -> None:
    key, there = pair.there
    pair.b.post_recv(pair.peer, 9)
    qp = pair.begin(1, 0)
    qp.wr_rdma_write_imm(key, there + 64, 0xAABBCCDD)
    qp.wr_set_inline_data(pair.a.mr.buf, 8)
    qp.wr_complete()
    pair.world.settle()
    (received,) = pair.b.poll()
    assert (received.wr_id, received.opcode) == (9, e.IBV_WC_RECV_RDMA_WITH_IMM)
    assert received.imm_data.to_bytes(4, "little") == b"\xaa\xbb\xcc\xdd"


def test_atomics(pair: Pair) -> None:
    key, there = pair.there
    set_word(pair.b.memory, 40, 64)
    qp = pair.begin(1)
    qp.wr_atomic_fetch_add(key, there + 64, 2)
    qp.wr_set_sge(pair.a.sge(8, 0))
    qp.wr_id = 2
    qp.wr_atomic_cmp_swp(key, there + 64, 42, 99)
    qp.wr_set_sge(pair.a.sge(8, 8))
    pair.end((1, 0), (2, 0))
    assert (word(pair.a.memory, 0), word(pair.a.memory, 8), word(pair.b.memory, 64)) == (40, 42, 99)


def test_atomic_write_takes_the_bytes_themselves_whatever_max_inline_data_is(world: World) -> None:
    pair = Pair(world, max_inline_data=0)
    key, there = pair.there
    data = bytearray(b"12345678 more")
    qp = pair.begin()
    qp.wr_atomic_write(key, there + 64, data)
    data[:8] = bytes(8)
    pair.end((1, 0))
    assert pair.b.memory[64:72] == b"12345678"


@pytest.mark.parametrize("level", [e.IBV_FLUSH_RANGE, e.IBV_FLUSH_MR])
def test_flush(pair: Pair, level: int) -> None:
    region = MR(pair.b.pd, 4096, ALL | FLUSHABLE)
    qp = pair.begin()
    qp.wr_flush(region.rkey, region.buf, 4096, e.IBV_FLUSH_GLOBAL, level)
    pair.end((1, 0))
    qp = pair.begin(2)
    qp.wr_flush(*pair.there, 8, e.IBV_FLUSH_GLOBAL, level)  # a region without the right
    pair.end((2, e.IBV_WC_REM_ACCESS_ERR))


def test_a_window_is_bound_used_and_invalidated(pair: Pair) -> None:
    window = MW(pair.b.pd, e.IBV_MW_TYPE_2)
    key = inc_rkey(window.rkey)
    fill(pair.a.memory, b"12345678")
    at = pair.b.mr.buf + 128
    pair.peer.wr_start()
    pair.peer.wr_id, pair.peer.wr_flags = 5, SIGNALED
    pair.peer.wr_bind_mw(window, key, MWBindInfo(pair.b.mr, at, 64, e.IBV_ACCESS_REMOTE_WRITE))
    pair.peer.wr_complete()
    pair.world.settle()
    assert pair.b.done() == [(5, 0)]
    qp = pair.begin()
    qp.wr_rdma_write(key, at)
    qp.wr_set_sge(pair.a.sge(8))
    pair.end((1, 0))
    assert pair.b.memory[128:136] == b"12345678"
    pair.b.post_recv(pair.peer, 6)
    qp = pair.begin(2)
    qp.wr_send_inv(key)
    qp.wr_set_sge_list(0, [])
    qp.wr_complete()
    pair.world.settle()
    (received,) = [wc for wc in pair.b.poll() + pair.a.poll() if wc.wr_id == 6]
    assert (received.wc_flags & e.IBV_WC_WITH_INV, received.imm_data) == (e.IBV_WC_WITH_INV, key)
    qp = pair.begin(3)
    qp.wr_rdma_write(key, at)
    qp.wr_set_sge(pair.a.sge(8))
    pair.end((3, e.IBV_WC_REM_ACCESS_ERR))


def test_a_window_is_invalidated_here(pair: Pair) -> None:
    window = MW(pair.a.pd, e.IBV_MW_TYPE_2)
    key = inc_rkey(window.rkey)
    qp = pair.begin(1)
    qp.wr_bind_mw(window, key, MWBindInfo(pair.a.mr, pair.a.mr.buf, 64, e.IBV_ACCESS_REMOTE_READ))
    qp.wr_id = 2
    qp.wr_local_inv(key)
    qp.wr_id = 3
    qp.wr_local_inv(key ^ 1)  # there is no such key
    qp.wr_complete()
    pair.world.settle()
    first, second, third = pair.a.done()
    assert (first, second) == ((1, 0), (2, 0))
    assert third[0] == 3
    assert third[1] != 0


# -- data


def test_inline_data_are_copied_when_they_are_set(pair: Pair) -> None:
    data = pattern(48)
    buffer = bytearray(data)  # not in any region
    region = MR(pair.a.pd, buffer, e.IBV_ACCESS_LOCAL_WRITE)
    qp = pair.begin()
    qp.wr_rdma_write(*pair.there)
    pieces = [DataBuffer(region.buf + 8, 40), DataBuffer(region.buf, 8), DataBuffer(0, 0)]
    qp.wr_set_inline_data_list(3, pieces)
    buffer[:] = bytes(48)
    pair.end((1, 0))
    assert pair.b.memory[:48] == data[8:] + data[:8]


def test_inline_data_of_no_bytes(pair: Pair) -> None:
    qp = pair.begin()
    qp.wr_rdma_write(*pair.there)
    qp.wr_set_inline_data(0, 0)
    pair.end((1, 0))


# -- critical sections


def test_outside_of_a_section_every_call_is_refused_at_once(lone: Pair) -> None:
    qp = lone.qp
    for name, act in (
        ("wr_complete", qp.wr_complete),
        ("wr_abort", qp.wr_abort),
        ("wr_send", qp.wr_send),
        ("wr_rdma_read", lambda: qp.wr_rdma_read(1, 2)),
        ("wr_send_imm", lambda: qp.wr_send_imm(1)),
        ("wr_set_sge", lambda: qp.wr_set_sge(lone.a.sge(8))),
        ("wr_set_xrc_srqn", lambda: qp.wr_set_xrc_srqn(1)),
    ):
        assert f"{name}: no critical section is open" in refused(errno.EINVAL, act)


def test_a_section_is_not_begun_twice(lone: Pair) -> None:
    qp = lone.begin()
    qp.wr_rdma_write(*lone.there)
    qp.wr_set_sge(lone.a.sge(8))
    assert "is open" in refused(errno.EINVAL, qp.wr_start)
    lone.end((1, 0))


def test_a_section_keeps_other_threads_out(lone: Pair) -> None:
    order: list[str] = []
    trying = threading.Event()

    def other() -> None:
        trying.set()
        with pytest.raises(PyverbsRDMAError, match="no critical section"):
            lone.qp.wr_send()
        lone.qp.wr_start()
        order.append("second")
        lone.qp.wr_abort()

    lone.begin()
    thread = threading.Thread(target=other)
    thread.start()
    assert trying.wait(30)
    order.append("first")
    lone.qp.wr_abort()
    thread.join(30)
    assert order == ["first", "second"]


def test_threads_take_turns() -> None:
    with World("udp") as world:
        pair = Pair(world, max_send_wr=256)
        failed: list[BaseException] = []

        def work(first: int) -> None:
            try:
                for number in range(first, first + 20, 2):
                    pair.qp.wr_start()
                    pair.qp.wr_flags = SIGNALED
                    for wr_id in (number, number + 1):
                        pair.qp.wr_id = wr_id
                        pair.qp.wr_rdma_write(*pair.there)
                        pair.qp.wr_set_inline_data(pair.a.mr.buf, 8)
                    pair.qp.wr_complete()
            except BaseException as error:
                failed.append(error)

        threads = [threading.Thread(target=work, args=(100 * number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        assert not failed
        done: list[tuple[int, int]] = []
        world.until(lambda: done.extend(pair.a.done()) or len(done) == 80)
        assert all(status == 0 for _, status in done)
        order = [wr_id for wr_id, _ in done]
        assert sorted(order) == sorted(100 * number + wr_id for number in range(4) for wr_id in range(20))
        assert all(order[index] + 1 == order[index + 1] for index in range(0, 80, 2)), "sections are not mixed"


def test_the_number_and_the_flags_must_fit(lone: Pair) -> None:
    for name, value in (("wr_id", 2**64), ("wr_id", -1), ("wr_flags", 2**32), ("comp_mask", "x")):
        with pytest.raises(PyverbsRDMAError, match=name):
            setattr(lone.qp, name, value)
    lone.qp.wr_id = 2**64 - 1
    assert lone.qp.wr_id == 2**64 - 1


def test_closing_in_a_section(lone: Pair) -> None:
    qp = lone.begin()
    qp.wr_send()
    qp.close()
    for act in (qp.wr_complete, qp.wr_abort, qp.wr_start, qp.wr_send):
        assert "QP is closed" in refused(errno.EINVAL, act)


# -- datagrams and XRC


def test_datagrams(world: World) -> None:
    a, b = world.a, world.b
    sender, receiver = make(a, UD_OPS, e.IBV_QPT_UD), make(b, UD_OPS, e.IBV_QPT_UD)
    for qp in (sender, receiver):
        attr = QPAttr(port_num=1)
        attr.qkey = QKEY
        qp.to_rts(attr)
    route = GlobalRoute(b.context.query_gid(1, 0), hop_limit=64)
    ah = AH(a.pd, attr=AHAttr(gr=route, is_global=1, port_num=1))
    fill(a.memory, b"datagram")
    b.post_recv(receiver, 8, offset=1024, length=48)
    sender.wr_start()
    sender.wr_id, sender.wr_flags = 1, SIGNALED
    sender.wr_send()
    sender.wr_set_ud_addr(ah, receiver.qp_num, QKEY)
    sender.wr_set_sge(a.sge(8))
    sender.wr_complete()
    world.settle()
    done = a.poll() + b.poll()
    assert {(wc.wr_id, wc.status) for wc in done} == {(1, 0), (8, 0)}
    assert b.memory[1064:1072] == b"datagram"
    for count in (1, 2):  # the address of a former work request does not count
        sender.wr_start()
        for _ in range(count):
            sender.wr_send()
            sender.wr_set_sge(a.sge(8))
            if count == 2 and _ == 0:
                sender.wr_set_ud_addr(ah, receiver.qp_num, QKEY)
        assert "wr_set_ud_addr has not been called" in refused(errno.EINVAL, sender.wr_complete)
    sender.wr_start()
    sender.wr_send()
    sender.wr_set_sge(a.sge(8))
    sender.wr_set_ud_addr(ah, 2**24, QKEY)
    assert "remote_qpn" in refused(errno.EINVAL, sender.wr_complete)
    sender.wr_start()
    sender.wr_send()
    sender.wr_set_sge(a.sge(8))
    sender.wr_set_ud_addr(5, 1, QKEY)  # type: ignore[arg-type]
    assert "AH is expected" in refused(errno.EINVAL, sender.wr_complete)


def test_unreliable_connections(world: World) -> None:
    a, b = world.a, world.b
    sender, receiver = make(a, UC_OPS, e.IBV_QPT_UC), make(b, UC_OPS, e.IBV_QPT_UC)
    connect(world, sender, receiver)
    data = pattern(3000)
    fill(a.memory, data)
    b.post_recv(receiver, 8, offset=8192)
    sender.wr_start()
    sender.wr_id, sender.wr_flags = 1, SIGNALED
    sender.wr_rdma_write(b.mr.rkey, b.mr.buf)
    sender.wr_set_sge(a.sge(3000))
    sender.wr_id = 2
    sender.wr_send()
    sender.wr_set_inline_data(a.mr.buf, 64)
    sender.wr_complete()
    world.settle()
    assert a.done() == [(1, 0), (2, 0)]
    assert b.done() == [(8, 0)]
    assert b.memory[:3000] == data
    assert b.memory[8192:8256] == data[:64]


def test_xrc(world: World) -> None:
    a, b = world.a, world.b
    domain = xrcd(b)
    queues = [xsrq(b, domain, b.cq) for _ in range(2)]
    for index, queue in enumerate(queues):
        stock(b, queue, 10 + index, offset=1024 * index)
    initiator = make(a, XRC_OPS, e.IBV_QPT_XRC_SEND, max_recv_wr=0, max_recv_sge=0)
    connect(world, initiator, target(b, domain))
    fill(a.memory, b"xrc")
    initiator.wr_start()
    initiator.wr_flags = SIGNALED
    for wr_id in (1, 0):
        initiator.wr_id = wr_id
        initiator.wr_send()
        initiator.wr_set_xrc_srqn(queues[wr_id].get_srq_num())
        initiator.wr_set_sge(a.sge(3))
    initiator.wr_complete()
    world.settle()
    assert a.done() == [(1, 0), (0, 0)]
    assert b.done() == [(11, 0), (10, 0)]
    assert b.memory[:3] == b.memory[1024:1027] == b"xrc"


def test_an_xrc_qp_needs_the_number_of_an_srq(lone: Pair) -> None:
    qp = make(lone.a, "SEND LOCAL_INV", e.IBV_QPT_XRC_SEND, max_recv_wr=0, max_recv_sge=0)
    qp.wr_start()
    qp.wr_send()
    assert "wr_set_xrc_srqn has not been called" in refused(errno.EINVAL, qp.wr_complete)


def test_a_qp_that_is_closed_in_a_section_frees_who_waits(lone: Pair) -> None:
    qp = lone.qp
    qp.wr_start()
    answers: list[PyverbsRDMAError] = []

    def wait() -> None:
        with pytest.raises(PyverbsRDMAError, match="closed") as caught:
            qp.wr_start()
        answers.append(caught.value)

    threads = [threading.Thread(target=wait, daemon=True) for _ in range(2)]
    for thread in threads:
        thread.start()
    qp.close()
    for thread in threads:
        thread.join(10)
    assert len(answers) == 2
    assert "closed" in refused(errno.EINVAL, qp.wr_complete)


# -- the functions of the manual page


def test_the_function_makes_what_the_attributes_ask_for(lone: Pair) -> None:
    """ibv_create_qp_ex(3): with IBV_QP_INIT_ATTR_SEND_OPS_FLAGS the QP has the extended API."""
    attr = QPInitAttrEx(
        e.IBV_QPT_RC,
        scq=lone.a.cq,
        rcq=lone.a.cq,
        pd=lone.a.pd,
        comp_mask=e.IBV_QP_INIT_ATTR_PD | e.IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
        send_ops_flags=e.IBV_QP_EX_WITH_SEND,
    )
    made = verbs.ibv_create_qp_ex(lone.a.context, attr)
    assert made is not None and verbs.ibv_qp_to_qp_ex(made) is made
    assert verbs.ibv_wr_start(made) == 0 and verbs.ibv_wr_abort(made) == 0
    assert verbs.ibv_destroy_qp(made) == 0


def test_functions(lone: Pair) -> None:
    qp = lone.qp
    assert verbs.ibv_qp_to_qp_ex(qp) is qp
    assert verbs.ibv_qp_to_qp_ex(lone.a.qp()) is None  # type: ignore[arg-type]
    assert verbs.ibv_wr_complete(qp) == errno.EINVAL
    key, there = lone.there
    lone.b.post_recv(lone.peer, 100, 101)
    assert verbs.ibv_wr_start(qp) == 0
    qp.wr_flags = SIGNALED
    calls: list[tuple[Any, ...]] = [
        (verbs.ibv_wr_rdma_write, key, there),
        (verbs.ibv_wr_rdma_read, key, there),
        (verbs.ibv_wr_send,),
        (verbs.ibv_wr_send_imm, int.from_bytes(b"\1\2\3\4", "little")),
        (verbs.ibv_wr_atomic_fetch_add, key, there, 1),
        (verbs.ibv_wr_atomic_cmp_swp, key, there, 1, 2),
    ]
    for number, (call, *args) in enumerate(calls):
        qp.wr_id = number
        assert call(qp, *args) == 0
        assert verbs.ibv_wr_set_sge(qp, lone.a.mr.lkey, lone.a.mr.buf, 8) == 0
    assert verbs.ibv_wr_complete(qp) == 0
    lone.world.settle()
    done = lone.a.poll() + lone.b.poll()
    assert all(wc.status == 0 for wc in done)
    assert {wc.wr_id for wc in done} == {*range(6), 100, 101}
    (imm,) = [wc.imm_data for wc in done if wc.wr_id == 101]
    assert imm.to_bytes(4, "little") == b"\1\2\3\4"
    assert verbs.ibv_wr_start(qp) == 0
    verbs.ibv_wr_rdma_write(qp, key, there)
    assert verbs.ibv_wr_set_inline_data(qp, lone.a.mr.buf, 8) == 0
    verbs.ibv_wr_rdma_write(qp, key, there)
    assert verbs.ibv_wr_set_inline_data_list(qp, 1, [DataBuffer(lone.a.mr.buf, 8)]) == 0
    verbs.ibv_wr_rdma_write(qp, key, there)
    assert verbs.ibv_wr_set_sge_list(qp, 1, [SGE(lone.a.mr.buf, 8, lone.a.mr.lkey)]) == 0
    assert verbs.ibv_wr_rdma_write_imm(qp, key, there, 5) == 0
    assert verbs.ibv_wr_send_inv(qp, 5) == 0
    assert verbs.ibv_wr_local_inv(qp, 5) == 0
    assert verbs.ibv_wr_atomic_write(qp, key, there, b"12345678") == 0
    assert verbs.ibv_wr_flush(qp, key, there, 8, 1, 0) == 0
    assert verbs.ibv_wr_abort(qp) == 0
    for number, (call, *args) in enumerate(
        [
            (verbs.ibv_wr_bind_mw, None, 1, None),
            (verbs.ibv_wr_send_tso, 0, 0, 0),
            (verbs.ibv_wr_set_ud_addr, None, 0, 0),
            (verbs.ibv_wr_set_xrc_srqn, 0),
        ]
    ):
        assert verbs.ibv_wr_start(qp) == 0
        qp.wr_id = number
        assert call(qp, *args) == 0
        assert verbs.ibv_wr_complete(qp) == errno.EINVAL
        assert verbs.last_reason()
    assert lone.a.done() == []
