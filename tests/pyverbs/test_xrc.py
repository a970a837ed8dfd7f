# SPDX-License-Identifier: MIT
"""XRC: one connection reaches any receive queue of a process (IBA annex A14; ibv_open_xrcd(3), ibv_open_qp(3))."""

import errno
import gc
from typing import Any

import pytest
from tests.pyverbs.services import (
    SRQ_MASK,
    Scene,
    make,
    srq,
    stock,
    xrc_pair,
    xrcd,
    xsrq,
)
from tests.pyverbs.world import ALL, CAP, OPS, World, fill, pattern, refused, set_state, set_word, values, word

from softverbs.pyverbs import libibverbs_enums as e
from softverbs.pyverbs.cq import CQ
from softverbs.pyverbs.mr import MR
from softverbs.pyverbs.pd import PD
from softverbs.pyverbs.qp import QP, QPCap, QPInitAttr, QPInitAttrEx
from softverbs.pyverbs.srq import SRQ, SrqInitAttrEx
from softverbs.pyverbs.wr import SGE, RecvWR

SUCCESS = e.IBV_WC_SUCCESS


@pytest.fixture
def scene(world: World) -> Scene:
    return Scene(world).connect()


@pytest.fixture
def one(build: Any) -> World:
    made: World = build()
    return made


# -- messages


@pytest.mark.parametrize("length", [0, 1, 1024, 1025, 10_000])
def test_a_message_goes_to_the_queue_that_it_names(world: World, length: int) -> None:
    scene = Scene(world).connect()
    stock(world.b, scene.srqs[0], 10, length=10_000)
    stock(world.b, scene.srqs[1], 20, length=10_000, offset=20_000)
    fill(world.a.memory, pattern(length))
    scene.send(1, e.IBV_WR_SEND_WITH_IMM, 1, length, imm=5)
    assert scene.sends() == [(1, SUCCESS)]
    assert scene.receives(0) == []
    (wc,) = world.b.poll(scene.came[1])
    assert (wc.wr_id, wc.status, wc.opcode, wc.byte_len) == (20, SUCCESS, e.IBV_WC_RECV, length)
    assert (wc.wc_flags, wc.imm_data, wc.qp_num) == (e.IBV_WC_WITH_IMM, 5, scene.tgt.qp_num)
    assert world.b.memory[20_000 : 20_000 + length] == pattern(length)
    scene.send(0, e.IBV_WR_SEND, 2, length)
    assert scene.receives(0) == [(10, SUCCESS)]


def test_messages_to_two_queues_over_one_connection(world: World) -> None:
    scene = Scene(world).connect()
    for index in range(2):
        stock(world.b, scene.srqs[index], *range(10), length=3000, spread=3000, offset=30_000 * index)
    order = [0, 1, 1, 0, 1, 0, 0, 0, 1, 1]
    for number, index in enumerate(order):
        fill(world.a.memory, bytes([number]) * 2500, 2500 * number)
        scene.ini.post_send(scene.wr(index, e.IBV_WR_SEND, number, 2500, offset=2500 * number))
    world.settle()
    assert scene.sends() == [(number, SUCCESS) for number in range(10)]
    for index in range(2):
        numbers = [number for number, which in enumerate(order) if which == index]
        assert scene.receives(index) == [(position, SUCCESS) for position in range(len(numbers))]
        starts = [30_000 * index + 3000 * position for position in range(len(numbers))]
        assert [world.b.memory[start] for start in starts] == numbers


def test_two_connections_share_a_queue(world: World) -> None:
    domain = xrcd(world.b)
    queue = xsrq(world.b, domain, CQ(world.b.context, 64))
    pairs = [xrc_pair(world, domain) for _ in range(2)]
    stock(world.b, queue, 10, 11, 12)
    for number, index in enumerate((1, 0, 1)):
        wr = world.a.wr(e.IBV_WR_SEND, number)
        wr.set_qp_type_xrc(queue.get_srq_num())
        pairs[index][0].post_send(wr)
        world.settle()
    found = [(wc.wr_id, wc.qp_num) for wc in world.b.poll(queue._cq)]
    assert found == [(10, pairs[1][1].qp_num), (11, pairs[0][1].qp_num), (12, pairs[1][1].qp_num)]


def test_memory_operations(scene: Scene) -> None:
    world = scene.world
    fill(world.a.memory, pattern(3000))
    scene.send(0, e.IBV_WR_RDMA_WRITE, 1, 3000, at=40_000)
    assert world.b.memory[40_000:43_000] == pattern(3000)
    set_word(world.b.memory, 41, 50_000)
    scene.send(0, e.IBV_WR_ATOMIC_FETCH_AND_ADD, 2, 8, offset=5000, at=50_000, operands=(1, 0))
    assert word(world.b.memory, 50_000) == 42
    assert word(world.a.memory, 5000) == 41
    scene.send(1, e.IBV_WR_ATOMIC_CMP_AND_SWP, 3, 8, offset=5000, at=50_000, operands=(42, 7))
    scene.send(1, e.IBV_WR_RDMA_READ, 4, 2000, offset=10_000, at=40_000)
    assert world.a.memory[10_000:12_000] == pattern(3000)[:2000]
    assert word(world.b.memory, 50_000) == 7
    stock(world.b, scene.srqs[1], 20)
    scene.send(1, e.IBV_WR_RDMA_WRITE_WITH_IMM, 5, 100, at=40_000, imm=9)
    assert scene.sends() == [(wr_id, SUCCESS) for wr_id in range(1, 6)]
    (wc,) = world.b.poll(scene.came[1])
    assert (wc.wr_id, wc.opcode, wc.imm_data) == (20, e.IBV_WC_RECV_RDMA_WITH_IMM, 9)


def test_the_rights_are_those_of_the_domain_of_the_named_queue(world: World) -> None:
    """The target has no protection domain: a request may touch what the SRQ that it names may touch."""
    scene = Scene(world)
    other = PD(world.b.context)
    attr = SrqInitAttrEx(8)
    attr.comp_mask, attr.srq_type = SRQ_MASK, e.IBV_SRQT_XRC
    attr.pd, attr.xrcd, attr.cq = other, scene.domain, world.b.cq
    elsewhere = SRQ(world.b.context, attr)
    scene.connect()
    scene.send(0, e.IBV_WR_RDMA_WRITE, 1, at=40_000)
    assert scene.sends() == [(1, SUCCESS)]
    wr = world.a.wr(e.IBV_WR_RDMA_WRITE, 2, at=40_000)
    wr.set_qp_type_xrc(elsewhere.get_srq_num())
    scene.ini.post_send(wr)
    world.settle()
    assert scene.sends() == [(2, e.IBV_WC_REM_ACCESS_ERR)]


def test_a_queue_that_is_none_is_refused(world: World) -> None:
    scene = Scene(world).connect()
    wr = world.a.wr(e.IBV_WR_SEND, 1)
    wr.set_qp_type_xrc(0xFFFFFE)
    scene.ini.post_send(wr)
    world.settle()
    (wc,) = world.a.poll(scene.sent)
    assert wc.status == e.IBV_WC_REM_INV_REQ_ERR
    assert "SRQ" in wc.reason
    assert scene.tgt.qp_state == e.IBV_QPS_ERR


def test_a_queue_of_another_domain_is_refused(world: World) -> None:
    scene = Scene(world)
    other = xsrq(world.b, xrcd(world.b))
    plain = srq(world.b)
    scene.connect()
    stock(world.b, other, 10)
    wr = world.a.wr(e.IBV_WR_SEND, 1)
    wr.set_qp_type_xrc(other.get_srq_num())
    scene.ini.post_send(wr)
    world.settle()
    assert scene.sends() == [(1, e.IBV_WC_REM_INV_REQ_ERR)]
    assert "XRC" in refused(errno.EINVAL, plain.get_srq_num)


def test_an_empty_queue_makes_the_peer_wait(build: Any) -> None:
    world: World = build()
    scene = Scene(world).connect()
    scene.ini.post_send(scene.wr(1))
    world.run()
    assert scene.receives(1) == []
    stock(world.b, scene.srqs[1], 20)
    world.settle()
    assert scene.receives(1) == [(20, SUCCESS)]
    assert scene.sends() == [(1, SUCCESS)]


def test_the_limit_of_an_xrc_queue(world: World) -> None:
    scene = Scene(world).connect()
    world.b.events()
    stock(world.b, scene.srqs[0], 10, 11)
    scene.srqs[0].modify(srq_attr(2), e.IBV_SRQ_LIMIT)
    scene.send(0)
    found = [element for kind, element in world.b.events() if kind == e.IBV_EVENT_SRQ_LIMIT_REACHED]
    assert found == [scene.srqs[0]]


def srq_attr(limit: int) -> Any:
    from softverbs.pyverbs.srq import SrqAttr

    return SrqAttr(srq_limit=limit)


@pytest.mark.parametrize("seed", range(4))
def test_over_a_bad_network_every_message_arrives_once(build: Any, seed: int) -> None:
    world: World = build(faults={"seed": seed, "drop": 0.08, "duplicate": 0.05, "reorder": 0.05})
    scene = Scene(world).connect()
    for index in range(2):
        stock(world.b, scene.srqs[index], *range(20), length=1500, spread=1500, offset=30_000 * index)
    for number in range(40):
        fill(world.a.memory, bytes([number]) * 1200, 1200 * number)
        scene.ini.post_send(scene.wr(number % 2, e.IBV_WR_SEND, number, 1200, offset=1200 * number))
    world.settle()
    assert scene.sends() == [(number, SUCCESS) for number in range(40)]
    for index in range(2):
        assert scene.receives(index) == [(number, SUCCESS) for number in range(20)]
        contents = [world.b.memory[30_000 * index + 1500 * number] for number in range(20)]
        assert contents == list(range(index, 40, 2))


# -- the queue pairs


def test_the_steps_of_both_types(world: World) -> None:
    scene = Scene(world)
    attr = world.attr(scene.ini, scene.tgt.qp_num)
    for qp in (scene.ini, scene.tgt):
        qp.to_init(attr)
        assert qp.qp_state == e.IBV_QPS_INIT
        qp.to_rtr(attr)
        assert qp.qp_state == e.IBV_QPS_RTR
        qp.to_rts(attr)
        found, init = qp.query(0x1FFFFF)
        assert (found.qp_state, init.qp_type) == (e.IBV_QPS_RTS, qp.qp_type)
    _, init = scene.tgt.query(1)
    assert (init.send_cq, init.recv_cq, init.srq) == (None, None, None)
    _, init = scene.ini.query(1)
    assert (init.send_cq, init.recv_cq, init.max_recv_wr) == (scene.sent, None, 0)
    assert "XRCD_SEND" in str(scene.ini)
    assert "XRCD_RECV" in str(scene.tgt)


def test_neither_has_what_the_other_does(scene: Scene) -> None:
    assert "XRC_RECV" in refused(errno.EINVAL, scene.tgt.post_send, scene.wr(0))
    for qp in (scene.tgt, scene.ini):
        assert "receive" in refused(errno.EINVAL, qp.post_recv, RecvWR(1))


def test_creation_with_attributes_goes_to_init(world: World) -> None:
    from softverbs.pyverbs.qp import QPAttr

    domain = xrcd(world.b)
    attr = QPInitAttrEx(e.IBV_QPT_XRC_RECV, comp_mask=e.IBV_QP_INIT_ATTR_XRCD, xrcd=domain)
    with QP(world.b.context, attr, QPAttr()) as qp:
        assert qp.qp_state == e.IBV_QPS_INIT


@pytest.mark.parametrize(
    ("members", "words"),
    [
        ({"comp_mask": 0}, "needs a Context"),
        ({"comp_mask": e.IBV_QP_INIT_ATTR_PD}, "needs a Context"),
        ({"xrcd": None}, "needs a Context"),
        ({"qp_type": e.IBV_QPT_RC}, "xrcd"),
    ],
)
def test_a_target_that_cannot_be_had(one: World, members: dict[str, Any], words: str) -> None:
    attr = QPInitAttrEx(e.IBV_QPT_XRC_RECV, comp_mask=e.IBV_QP_INIT_ATTR_XRCD, xrcd=xrcd(one.b), pd=one.b.pd)
    for name, value in members.items():
        setattr(attr, name, value)
    assert words in refused(errno.EINVAL, QP, one.b.context, attr)


def test_an_initiator_that_cannot_be_had(one: World) -> None:
    attr = QPInitAttrEx(e.IBV_QPT_XRC_SEND, scq=one.a.cq, cap=QPCap(**CAP))
    assert "names no PD" in refused(errno.EINVAL, QP, one.a.context, attr)
    attr.comp_mask, attr.pd, attr.send_cq = e.IBV_QP_INIT_ATTR_PD, one.a.pd, None
    assert "send_cq is missing" in refused(errno.EINVAL, QP, one.a.context, attr)
    assert "needs a Context" in refused(errno.EINVAL, QP, one.a.pd, QPInitAttr(e.IBV_QPT_XRC_RECV))


def test_an_initiator_from_a_domain(one: World) -> None:
    with QP(one.a.pd, QPInitAttr(e.IBV_QPT_XRC_SEND, scq=one.a.cq, cap=QPCap(**CAP))) as qp:
        assert qp.qp_type == e.IBV_QPT_XRC_SEND


def test_an_xrc_queue_serves_no_other_queue_pair(one: World) -> None:
    domain = xrcd(one.b)
    assert "XRC" in refused(errno.EINVAL, make, one.b, e.IBV_QPT_RC, xsrq(one.b, domain))


def test_the_error_state_flushes(scene: Scene) -> None:
    set_state(scene.ini, e.IBV_QPS_ERR)
    scene.ini.post_send(scene.wr(0))
    assert scene.sends() == [(1, e.IBV_WC_WR_FLUSH_ERR)]
    stock(scene.world.b, scene.srqs[0], 10)
    set_state(scene.tgt, e.IBV_QPS_ERR)
    assert scene.receives(0) == [], "receives belong to the queue, not to the QP"


# -- counters (semantics, section 1)


@pytest.mark.row("1: Bit RECV")
def test_counters(world: World) -> None:
    scene = Scene(world)
    here, there = world.a.count_all(scene.ini), world.b.count_all(scene.tgt)
    scene.connect()
    for index in range(2):
        stock(world.b, scene.srqs[index], 10, 11)
    for index, opcode in (
        (0, e.IBV_WR_SEND), (1, e.IBV_WR_SEND_WITH_IMM), (1, e.IBV_WR_RDMA_WRITE_WITH_IMM), (0, e.IBV_WR_RDMA_WRITE),
        (0, e.IBV_WR_RDMA_READ), (1, e.IBV_WR_ATOMIC_FETCH_AND_ADD),
    ):  # fmt: skip
        scene.send(index, opcode, flags=0)
    assert values(here) == {"SEND": (2, 0), "WRITE": (2, 0), "READ": (2, 0)}
    assert values(there) == {"RECV": (3, 0), "REMOTE_WRITE": (2, 0), "REMOTE_READ": (2, 0)}
    assert scene.sends() == []
    set_state(scene.ini, e.IBV_QPS_ERR)
    scene.ini.post_send(scene.wr(0, flags=0))
    assert values(here)["SEND"] == (2, 1)
    assert len(OPS) == 6


# -- real sockets


def test_over_real_sockets(build: Any) -> None:
    world: World = build("udp")
    scene = Scene(world).connect()
    for index in range(2):
        stock(world.b, scene.srqs[index], *range(10), length=2000, spread=2000, offset=20_000 * index)
    fill(world.a.memory, pattern(40_000))
    for number in range(20):
        scene.ini.post_send(scene.wr(number % 2, e.IBV_WR_SEND, number, 2000, offset=2000 * number))
    found: list[list[Any]] = [[], []]
    world.until(lambda: [found[i].extend(scene.receives(i)) for i in (0, 1)] and len(found[0]) == len(found[1]) == 10)
    assert found == [[(number, SUCCESS) for number in range(10)]] * 2
    arrived = [bytes(world.b.memory[2000 * number : 2000 * number + 2000]) for number in range(20)]
    data = [pattern(40_000)[2000 * number : 2000 * number + 2000] for number in range(20)]
    assert arrived == data[::2] + data[1::2]


# -- what changes under a message


def test_a_read_of_one_domain_and_a_message_to_another(world: World) -> None:
    """The answer of a READ is written while later requests name other queues: its memory is that of its own."""
    scene = Scene(world)
    other, buffer = PD(world.b.context), bytearray(4096)
    mr = MR(other, buffer, ALL)
    attr = SrqInitAttrEx(8)
    attr.comp_mask, attr.srq_type = SRQ_MASK, e.IBV_SRQT_XRC
    attr.pd, attr.xrcd, attr.cq = other, scene.domain, world.b.cq
    elsewhere = SRQ(world.b.context, attr)
    elsewhere.post_recv(RecvWR(5, 1, [SGE(mr.buf, 100, mr.lkey)]))
    scene.connect()
    fill(world.b.memory, pattern(30_000), 30_000)
    read = scene.wr(0, e.IBV_WR_RDMA_READ, 1, 30_000, at=30_000)
    read.next_wr = world.a.wr(e.IBV_WR_SEND, 2, 50, offset=100)
    read.next_wr.set_qp_type_xrc(elsewhere.get_srq_num())
    scene.ini.post_send(read)
    world.settle()
    assert scene.sends() == [(1, SUCCESS), (2, SUCCESS)]
    assert world.a.memory[:30_000] == pattern(30_000)


@pytest.mark.parametrize("what", ["queue", "queue and CQ"])
def test_a_queue_that_is_closed_in_the_middle_of_a_message(build: Any, what: str) -> None:
    world: World = build(wire=True)
    domain, cq = xrcd(world.b), CQ(world.b.context, 64)
    queue = xsrq(world.b, domain, cq)
    ini, made = xrc_pair(world, domain)
    stock(world.b, queue, 10, length=4096)
    held: list[bytes] = []

    def rule(frame: bytes) -> "list[bytes] | None":
        if frame[0] != 0xA2 or held:  # XRC SEND LAST
            return None
        held.append(frame)
        return []

    world.wire.rule = rule
    wr = world.a.wr(e.IBV_WR_SEND, 1, 3000)
    wr.set_qp_type_xrc(queue.get_srq_num())
    ini.post_send(wr)
    world.run()
    assert held
    queue.close()
    if what != "queue":
        cq.close()
    gc.collect()
    world.settle()
    assert world.a.done() == [(1, e.IBV_WC_REM_INV_REQ_ERR)]
    assert made.qp_state == e.IBV_QPS_ERR


@pytest.mark.row("2: Overrun")
def test_an_overrun_of_the_queues_cq_stops_the_target(build: Any) -> None:
    world: World = build()
    domain, cq = xrcd(world.b), CQ(world.b.context, 1)
    queue = xsrq(world.b, domain, cq)
    ini, made = xrc_pair(world, domain)
    stock(world.b, queue, *range(5))
    world.b.events()
    for wr_id in range(4):
        wr = world.a.wr(e.IBV_WR_SEND, wr_id)
        wr.set_qp_type_xrc(queue.get_srq_num())
        ini.post_send(wr)
    world.settle()
    assert (e.IBV_EVENT_CQ_ERR, cq) in world.b.events()
    assert made.qp_state == e.IBV_QPS_ERR
    assert [wc.wr_id for wc in cq.poll(9)[1]] == [0]
