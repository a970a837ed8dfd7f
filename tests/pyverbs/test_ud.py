# SPDX-License-Identifier: MIT
"""Unreliable datagrams: what arrives, how, and what does not (IBA 9.8.3; ibv_post_send(3), ibv_post_recv(3))."""

import errno
import gc
import socket
from typing import Any

import dpkt
import pytest
from tests.pyverbs.services import GRH, QKEY, ah, ah_attr, datagram, make, srq, stock, ud, ud_attr
from tests.pyverbs.world import RECV, SEND, SIGNALED, Side, World, fill, pattern, refused, set_state, values

from softverbs.device import Device
from softverbs.links.inproc import Network
from softverbs.pyverbs import libibverbs_enums as e
from softverbs.pyverbs._grh import route_of
from softverbs.pyverbs.addr import AH
from softverbs.pyverbs.cq import CQ, CQEX, CqInitAttrEx
from softverbs.pyverbs.mr import MW, MWBind, MWBindInfo
from softverbs.pyverbs.pd import PD
from softverbs.pyverbs.pyverbs_error import PyverbsError
from softverbs.pyverbs.qp import QPAttr
from softverbs.pyverbs.wr import SGE, SendWR

HIGH = 0x80000000

HEADER_IPV6, HEADER_IPV4 = 1, 2  # in the completion's ``sl``


class Pair:
    """A sender and a receiver of datagrams, with a CQ each."""

    def __init__(self, world: World, receives: int = 1, length: int = 4096, **cap: int) -> None:
        self.world = world
        self.sent, self.came = CQ(world.a.context, 256), CQ(world.b.context, 256)
        self.a, self.b = ud(world.a, cq=self.sent, **cap), ud(world.b, cq=self.came, **cap)
        self.ah = ah(world.a)
        for wr_id in range(receives):
            world.b.post_recv(self.b, 100 + wr_id, length=length, offset=32768 + wr_id * length)

    def send(self, **what: Any) -> None:
        self.a.post_send(datagram(self.world.a, what.pop("ah", self.ah), what.pop("to", self.b), **what))
        self.world.settle()

    def sends(self) -> list[tuple[int, int]]:
        return self.world.a.done(self.sent)

    def receives(self) -> list[tuple[int, int]]:
        return self.world.b.done(self.came)


@pytest.fixture
def pair(world: World) -> Pair:
    return Pair(world)


# -- what arrives


@pytest.mark.parametrize("length", [0, 1, 8, 1000, 4096])
def test_a_datagram_arrives_behind_its_header(world: World, length: int) -> None:
    pair = Pair(world, length=GRH + 4096)
    data = pattern(length, length)
    fill(world.a.memory, data)
    pair.send(wr_id=7, length=length)
    assert pair.sends() == [(7, e.IBV_WC_SUCCESS)]
    (wc,) = world.b.poll(pair.came)
    assert (wc.wr_id, wc.status, wc.opcode) == (100, e.IBV_WC_SUCCESS, e.IBV_WC_RECV)
    assert wc.byte_len == GRH + length
    assert wc.wc_flags == e.IBV_WC_GRH
    assert (wc.qp_num, wc.src_qp) == (pair.b.qp_num, pair.a.qp_num)
    assert (wc.pkey_index, wc.sl, wc.slid, wc.dlid_path_bits) == (0, HEADER_IPV4, 0, 0)
    assert world.b.memory[32768 + GRH : 32768 + GRH + length] == data
    route = route_of(bytes(world.b.memory[32768 : 32768 + GRH]))
    assert route.peer == world.a.context.query_gid(1, 0).raw
    assert route.to == world.b.context.query_gid(1, 0).raw


@pytest.mark.parametrize("length", [0, 5])
def test_immediate_data(pair: Pair, length: int) -> None:
    pair.send(length=length, imm=socket.htonl(0xCAFE))
    (wc,) = pair.world.b.poll(pair.came)
    assert wc.wc_flags == e.IBV_WC_GRH | e.IBV_WC_WITH_IMM
    assert (socket.ntohl(wc.imm_data), wc.byte_len) == (0xCAFE, GRH + length)


def test_inline_and_gathered_data(world: World) -> None:
    pair = Pair(world, receives=2)
    fill(world.a.memory, b"one two three")
    pieces = [world.a.sge(3, 0), world.a.sge(0, 0), world.a.sge(5, 8)]
    pair.send(wr_id=1, sg=pieces)
    pair.send(wr_id=2, sg=pieces, flags=SIGNALED | e.IBV_SEND_INLINE)
    assert pair.sends() == [(1, 0), (2, 0)]
    for start in (32768, 32768 + 4096):
        assert world.b.memory[start + GRH : start + GRH + 8] == b"onethree"


def test_the_header_may_be_scattered(world: World) -> None:
    pair = Pair(world, receives=0)
    sg = [world.b.sge(30, 0), world.b.sge(20, 1000), world.b.sge(100, 2000)]
    world.b.post_recv(pair.b, 1, sg=sg)
    fill(world.a.memory, pattern(50))
    pair.send(length=50)
    assert pair.receives() == [(1, 0)]
    received = world.b.memory[0:30] + world.b.memory[1000:1020] + world.b.memory[2000:2040]
    assert received[GRH:] == pattern(50)


def test_one_queue_pair_sends_to_many(world: World) -> None:
    sender = ud(world.a)
    takers = [ud(world.b) for _ in range(4)]
    handle = ah(world.a)
    for index, qp in enumerate(takers):
        world.b.post_recv(qp, 50 + index, offset=8192 * (index + 1))
    for index, qp in enumerate(takers):
        world.a.memory[0] = 65 + index
        sender.post_send(datagram(world.a, handle, qp, index, 1))
        world.settle()
    found = [wc for side in {world.a, world.b} for wc in side.poll()]
    assert {wc.qp_num for wc in found if wc.wr_id >= 50} == {qp.qp_num for qp in takers}
    assert [world.b.memory[8192 * (index + 1) + GRH] for index in range(4)] == [65, 66, 67, 68]


def test_the_extended_queue_tells_the_same(world: World) -> None:
    wanted = e.IBV_WC_EX_WITH_SRC_QP | e.IBV_WC_EX_WITH_BYTE_LEN | e.IBV_WC_EX_WITH_QP_NUM | e.IBV_WC_EX_WITH_SLID
    queue = CQEX(world.b.context, CqInitAttrEx(16, wc_flags=wanted | e.IBV_WC_EX_WITH_SL))
    sender, taker = ud(world.a), ud(world.b, cq=queue)
    world.b.post_recv(taker, 5)
    sender.post_send(datagram(world.a, ah(world.a), taker, 1, 8))
    world.settle()
    assert queue.start_poll(None) == 0
    assert (queue.wr_id, queue.status, queue.read_opcode()) == (5, 0, e.IBV_WC_RECV)
    assert (queue.read_src_qp(), queue.read_qp_num()) == (sender.qp_num, taker.qp_num)
    assert (queue.read_byte_len(), queue.read_wc_flags() & e.IBV_WC_GRH) == (GRH + 8, e.IBV_WC_GRH)
    assert (queue.read_sl(), queue.read_slid()) == (HEADER_IPV4, 0)
    queue.end_poll()


def test_a_stream_of_datagrams_keeps_its_order_where_nothing_is_lost(world: World) -> None:
    pair = Pair(world, receives=60, length=200)
    for index in range(60):
        world.a.memory[index] = index
        pair.a.post_send(datagram(world.a, pair.ah, pair.b, index, 1, index, flags=SIGNALED if index % 7 == 0 else 0))
    world.settle()
    assert pair.sends() == [(index, 0) for index in range(0, 60, 7)]
    assert [wr_id for wr_id, _ in pair.receives()] == list(range(100, 160))
    assert [world.b.memory[32768 + 200 * index + GRH] for index in range(60)] == list(range(60))


# -- Q_Keys


def test_the_wrong_key_is_dropped_and_counted(pair: Pair) -> None:
    pair.send(wr_id=1, qkey=QKEY + 1)
    assert pair.sends() == [(1, 0)], "nobody tells the sender"
    assert pair.receives() == []
    assert pair.world.b.context.query_port(1).qkey_viol_cntr == 1
    pair.send(wr_id=2)
    assert pair.receives() == [(100, 0)]


def test_the_highest_bit_asks_for_the_own_key(world: World) -> None:
    """IBA 10.2.5: the Q_Key of the work request with its highest bit set: the sending QP's own is sent."""
    pair = Pair(world, receives=2)
    pair.send(qkey=HIGH | 5)
    assert pair.receives() == [(100, 0)], "both queue pairs have the same key"
    pair.a.modify(ud_attr(0x22), e.IBV_QP_QKEY)
    pair.send(qkey=HIGH | QKEY)
    assert pair.receives() == []


def test_the_key_can_change_while_the_queue_pair_works(world: World) -> None:
    pair = Pair(world, receives=2)
    pair.b.modify(ud_attr(0x33), e.IBV_QP_QKEY)
    assert pair.b.query(e.IBV_QP_QKEY)[0].qkey == 0x33
    pair.send(qkey=QKEY)
    assert pair.receives() == []
    pair.send(qkey=0x33)
    assert pair.receives() == [(100, 0)]


# -- what does not arrive


def test_without_a_receive_it_is_lost(world: World) -> None:
    pair = Pair(world, receives=0)
    pair.send(wr_id=1)
    assert pair.sends() == [(1, 0)]
    world.b.post_recv(pair.b, 5)
    world.settle()
    assert pair.receives() == []
    assert pair.b.qp_state == e.IBV_QPS_RTS
    pair.send(wr_id=2)
    assert pair.receives() == [(5, 0)]


@pytest.mark.parametrize("to", [0xABCDEF, 0, 1])
def test_to_nobody(pair: Pair, to: int) -> None:
    pair.send(wr_id=1, to=to)
    assert pair.sends() == [(1, 0)]
    assert pair.receives() == []


def test_a_receive_that_is_too_short_ends_the_receiver(world: World) -> None:
    pair = Pair(world, receives=2, length=GRH + 7)
    pair.send(wr_id=1, length=8)
    assert pair.sends() == [(1, 0)]
    assert pair.receives() == [(100, e.IBV_WC_LOC_LEN_ERR), (101, e.IBV_WC_WR_FLUSH_ERR)]
    assert pair.b.qp_state == e.IBV_QPS_ERR
    assert pair.a.qp_state == e.IBV_QPS_RTS


def test_a_receive_without_room_for_the_header(world: World) -> None:
    pair = Pair(world, receives=1, length=GRH - 1)
    pair.send(length=0)
    assert pair.receives() == [(100, e.IBV_WC_LOC_LEN_ERR)]


def test_a_receive_into_memory_that_is_none(world: World) -> None:
    pair = Pair(world, receives=0)
    world.b.post_recv(pair.b, 1, sg=[SGE(world.b.mr.buf, 100, 0xDEAD00)])
    pair.send()
    assert pair.receives() == [(1, e.IBV_WC_LOC_PROT_ERR)]
    assert pair.b.qp_state == e.IBV_QPS_ERR


def test_datagrams_are_lost_one_by_one(build: Any) -> None:
    """Every third frame is lost: the others arrive, in order, and nothing is sent again."""
    world: World = build(wire=True)
    pair = Pair(world, receives=30, length=100)
    seen = 0

    def rule(_frame: bytes) -> "list[bytes] | None":
        nonlocal seen
        seen += 1
        return [] if seen % 3 == 0 else None

    world.wire.rule = rule
    for index in range(30):
        world.a.memory[0] = index
        pair.send(wr_id=index, length=1)
    assert pair.sends() == [(index, 0) for index in range(30)]
    assert pair.receives() == [(100 + index, 0) for index in range(20)]
    arrived = [world.b.memory[32768 + index * 100 + GRH] for index in range(20)]
    assert arrived == [index for index in range(30) if index % 3 != 2]
    assert len(world.wire.frames) == 30


def test_a_duplicate_is_a_datagram_of_its_own(build: Any) -> None:
    world: World = build(wire=True)
    pair = Pair(world, receives=2)
    world.wire.rule = lambda frame: [frame, frame]
    pair.send()
    assert pair.receives() == [(100, 0), (101, 0)]


# -- what cannot be sent


def test_more_than_a_packet_is_an_error_of_the_work_request(pair: Pair) -> None:
    pair.send(wr_id=1, length=4097)
    assert pair.sends() == [(1, e.IBV_WC_LOC_LEN_ERR)]
    assert pair.a.qp_state == e.IBV_QPS_SQE
    assert pair.receives() == []


def test_the_send_side_recovers_from_its_error(world: World) -> None:
    """IBA 10.3.1: SQE flushes what is behind the error, receives go on, and a modify leads back to RTS."""
    pair = Pair(world, receives=1)
    back = ah(world.b)
    world.a.post_recv(pair.a, 55)
    pair.a.post_send(datagram(world.a, pair.ah, pair.b, 1, sg=[SGE(1, 8, 0xDEAD00)]))
    pair.a.post_send(datagram(world.a, pair.ah, pair.b, 2))
    world.settle()
    assert pair.sends() == [(1, e.IBV_WC_LOC_PROT_ERR), (2, e.IBV_WC_WR_FLUSH_ERR)]
    assert pair.a.query(e.IBV_QP_STATE)[0].qp_state == e.IBV_QPS_SQE
    pair.b.post_send(datagram(world.b, back, pair.a, 3))
    world.settle()
    assert pair.sends() == [(55, 0)], "it still receives"
    assert pair.receives() == [(3, 0)]
    pair.send(wr_id=4)
    assert pair.sends() == [(4, e.IBV_WC_WR_FLUSH_ERR)]
    pair.a.modify(QPAttr(qp_state=e.IBV_QPS_RTS), e.IBV_QP_STATE)
    pair.send(wr_id=5)
    assert pair.sends() == [(5, 0)]
    assert pair.receives() == [(100, 0)]


@pytest.mark.parametrize(
    "opcode",
    [
        e.IBV_WR_RDMA_WRITE, e.IBV_WR_RDMA_WRITE_WITH_IMM, e.IBV_WR_RDMA_READ, e.IBV_WR_ATOMIC_CMP_AND_SWP,
        e.IBV_WR_ATOMIC_FETCH_AND_ADD, e.IBV_WR_SEND_WITH_INV, e.IBV_WR_LOCAL_INV, e.IBV_WR_BIND_MW, e.IBV_WR_TSO,
    ],
)  # fmt: skip
def test_operations_that_datagrams_have_not(pair: Pair, opcode: int) -> None:
    wr = pair.world.a.wr(opcode)
    wr.set_wr_ud(pair.ah, pair.b.qp_num, QKEY)
    assert "UD" in refused(errno.EINVAL, pair.a.post_send, wr)


def test_a_datagram_to_nowhere_is_refused(pair: Pair) -> None:
    assert "address handle" in refused(errno.EINVAL, pair.a.post_send, SendWR(1))
    pair.ah.close()
    assert "closed" in refused(errno.EINVAL, datagram, pair.world.a, pair.ah, pair.b)


def test_a_handle_of_another_domain(pair: Pair) -> None:
    """ibv_post_send(3): the address handle must be of the QP's protection domain."""
    other = AH(PD(pair.world.a.context), attr=ah_attr(pair.world.b))
    pair.send(wr_id=1, ah=other)
    assert pair.sends() == [(1, e.IBV_WC_LOC_QP_OP_ERR)]
    assert pair.receives() == []


def test_what_is_no_handle(pair: Pair) -> None:
    for junk in (None, 5, "x", pair.b, object()):
        with pytest.raises(PyverbsError, match="AH is expected"):
            SendWR(1).set_wr_ud(junk, 1, 1)


# -- states


def test_the_steps_and_what_they_need(world: World) -> None:
    qp = make(world.a, e.IBV_QPT_UD)
    attr = ud_attr(0x77)
    qp.to_init(attr)
    assert qp.qp_state == e.IBV_QPS_INIT
    assert qp.query(e.IBV_QP_QKEY)[0].qkey == 0x77
    qp.to_rtr(attr)
    assert "RTS" in refused(errno.EINVAL, qp.post_send, datagram(world.a, ah(world.a), qp))
    qp.to_rts(attr)
    found, init = qp.query(e.IBV_QP_STATE | e.IBV_QP_SQ_PSN)
    assert (found.qp_state, found.sq_psn, found.qkey) == (e.IBV_QPS_RTS, 0x55, 0x77)
    assert init.qp_type == e.IBV_QPT_UD
    qp.modify(QPAttr(qp_state=e.IBV_QPS_RESET), e.IBV_QP_STATE)
    assert qp.qp_state == e.IBV_QPS_RESET


def test_a_missing_key_is_named(world: World) -> None:
    qp = make(world.a, e.IBV_QPT_UD)
    attr = QPAttr()
    reason = refused(errno.EINVAL, qp.modify, attr, e.IBV_QP_STATE | e.IBV_QP_PKEY_INDEX | e.IBV_QP_PORT)
    assert "IBV_QP_QKEY" in reason
    mask = e.IBV_QP_STATE | e.IBV_QP_PKEY_INDEX | e.IBV_QP_PORT | e.IBV_QP_QKEY | e.IBV_QP_ACCESS_FLAGS
    assert "IBV_QP_ACCESS_FLAGS" in refused(errno.EINVAL, qp.modify, attr, mask)


def test_what_is_posted_before_the_error_state_is_flushed(world: World) -> None:
    pair = Pair(world, receives=2)
    set_state(pair.b, e.IBV_QPS_ERR)
    assert pair.receives() == [(100, e.IBV_WC_WR_FLUSH_ERR), (101, e.IBV_WC_WR_FLUSH_ERR)]
    pair.send(wr_id=1)
    assert pair.sends() == [(1, 0)]
    set_state(pair.a, e.IBV_QPS_ERR)
    pair.send(wr_id=2)
    assert pair.sends() == [(2, e.IBV_WC_WR_FLUSH_ERR)]


def test_a_drained_queue_waits_until_it_is_started_again(pair: Pair) -> None:
    set_state(pair.a, e.IBV_QPS_SQD)
    pair.send(wr_id=1)
    assert pair.sends() == []
    pair.a.modify(QPAttr(qp_state=e.IBV_QPS_RTS), e.IBV_QP_STATE)
    pair.world.settle()
    assert pair.sends() == [(1, 0)]
    assert pair.receives() == [(100, 0)]


# -- counters (semantics, section 1)


def test_counters(world: World) -> None:
    sent, came = make(world.a, e.IBV_QPT_UD), make(world.b, e.IBV_QPT_UD)
    here, there = world.a.count_all(sent), world.b.count_all(came)
    sent.to_rts(ud_attr())
    came.to_rts(ud_attr())
    world.b.post_recv(came, 1, 2, 3)
    handle = ah(world.a)
    for length in (0, 10, 4096, 5000):
        sent.post_send(datagram(world.a, handle, came, 1, length, flags=0))
        world.settle()
    assert values(here) == {"SEND": (3, 1)}
    set_state(came, e.IBV_QPS_ERR)
    assert values(there) in ({"RECV": (2, 1)}, {"RECV": (2, 2)}, {"RECV": (3, 0)})


@pytest.mark.row("1: BYTES on success")
def test_counted_bytes_are_payload_without_the_header(world: World) -> None:
    sent, came = make(world.a, e.IBV_QPT_UD), make(world.b, e.IBV_QPT_UD)
    here = world.a.count(sent, SEND, e.IBV_COMP_CNTR_TYPE_BYTES)
    there = world.b.count(came, RECV, e.IBV_COMP_CNTR_TYPE_BYTES)
    sent.to_rts(ud_attr())
    came.to_rts(ud_attr())
    world.b.post_recv(came, 1, 2)
    handle = ah(world.a)
    sent.post_send(datagram(world.a, handle, came, 1, 100))
    sent.post_send(datagram(world.a, handle, came, 2, 23, imm=5))
    world.settle()
    assert (here.read_pair(), there.read_pair()) == ((123, 0), (123, 0))


# -- with a shared receive queue


def test_receives_come_from_a_shared_queue(world: World) -> None:
    queue = srq(world.b)
    takers = [ud(world.b, srq=queue) for _ in range(2)]
    sender, handle = ud(world.a), ah(world.a)
    stock(world.b, queue, 10, 11, 12, length=100, spread=100)
    for wr_id, taker in enumerate((takers[1], takers[0], takers[1])):
        sender.post_send(datagram(world.a, handle, taker, wr_id, 8))
    world.settle()
    found = [(wc.wr_id, wc.qp_num) for wc in world.b.poll() if wc.opcode == e.IBV_WC_RECV]
    assert found == [(10, takers[1].qp_num), (11, takers[0].qp_num), (12, takers[1].qp_num)]


# -- statistics


def test_the_statistics_of_a_queue_pair(pair: Pair) -> None:
    before = pair.a.statistics()
    pair.send()
    after = pair.a.statistics()
    assert all(isinstance(value, int) for value in after.values())
    assert after.keys() == before.keys()
    assert after != before


# -- address handles that are gone


def test_a_datagram_that_was_posted_leaves_though_its_handle_is_gone(build: Any) -> None:
    """A NIC copies the address into the work queue when the work is posted; programs rely on that."""
    world: World = build()
    pair = Pair(world, receives=2)
    pair.a.post_send(datagram(world.a, pair.ah, pair.b, 1))
    pair.ah.close()
    pair.a.post_send(datagram(world.a, ah(world.a), pair.b, 2))
    world.settle()
    assert pair.sends() == [(1, 0), (2, 0)]
    assert pair.receives() == [(100, 0), (101, 0)]


def test_a_work_request_keeps_its_handle(build: Any) -> None:
    world: World = build()
    pair = Pair(world)
    wr = datagram(world.a, ah(world.a), pair.b, 1)
    gc.collect()
    pair.a.post_send(wr)
    world.settle()
    assert pair.receives() == [(100, 0)]


def test_a_closed_handle_cannot_be_posted(build: Any) -> None:
    world: World = build()
    pair = Pair(world)
    wr = datagram(world.a, pair.ah, pair.b, 1)
    pair.ah.close()
    assert "address handle" in refused(errno.EINVAL, pair.a.post_send, wr)


# -- lists, and the own queue


def test_a_list_is_posted_up_to_what_is_wrong(world: World) -> None:
    pair = Pair(world, receives=3)
    wrs = [datagram(world.a, pair.ah, pair.b, index) for index in range(3)]
    wrs[1].opcode = e.IBV_WR_RDMA_READ
    wrs[0].next_wr, wrs[1].next_wr = wrs[1], wrs[2]
    bad = SendWR(sg=[], num_sge=0)
    refused(errno.EINVAL, pair.a.post_send, wrs[0], bad)
    assert bad.wr_id == 1
    world.settle()
    assert pair.sends() == [(0, 0)]
    assert pair.receives() == [(100, 0)]


def test_a_queue_pair_writes_to_itself(world: World) -> None:
    qp = ud(world.a)
    world.a.post_recv(qp, 9, offset=4096)
    world.a.memory[:8] = b"to self!"
    qp.post_send(datagram(world.a, ah(world.a, world.a), qp, 1))
    world.settle()
    assert sorted(world.a.done()) == [(1, 0), (9, 0)]
    assert world.a.memory[4096 + GRH : 4096 + GRH + 8] == b"to self!"


# -- the header in detail


@pytest.mark.parametrize("length", [0, 1, 7, 4096])
def test_the_ip_header_is_whole(build: Any, length: int) -> None:
    """The last 20 of the 40 bytes are an IPv4 header whose length and checksum are right (IBA annex A17.4.5.1)."""
    world: World = build()
    pair = Pair(world, length=GRH + 4096)
    pair.send(length=length)
    header = bytes(world.b.memory[32768 + 20 : 32768 + GRH])
    packet = dpkt.ip.IP(header + bytes(8))
    padded = length + 3 & ~3
    assert packet.len == 20 + 8 + 12 + 8 + padded + 4, "IP, UDP, BTH, DETH, payload, ICRC"
    assert (packet.v, packet.hl, packet.p) == (4, 5, 17)
    total = sum(int.from_bytes(header[at : at + 2], "big") for at in range(0, 20, 2))
    assert (total & 0xFFFF) + (total >> 16) == 0xFFFF


def test_over_ipv6() -> None:
    """The 40 bytes are the IPv6 header."""
    network = Network()
    devices = [Device(link=network.link(f"fd00::{number}"), thread=False) for number in (1, 2)]
    sides = [Side(device) for device in devices]
    sides[0].peer, sides[1].peer = sides[1], sides[0]
    sender, taker = (ud(side) for side in sides)
    sides[1].post_recv(taker, 9, length=GRH + 100)
    fill(sides[0].memory, b"hello six")
    sender.post_send(datagram(sides[0], ah(sides[0]), taker, 1, 9))
    for _ in range(10):
        for device in devices:
            device.progress()
    (wc,) = sides[1].poll()
    assert (wc.status, wc.byte_len, wc.wc_flags, wc.sl) == (0, GRH + 9, e.IBV_WC_GRH, HEADER_IPV6)
    raw = bytes(sides[1].memory[:GRH])
    route = route_of(raw)
    assert (route.peer, route.to) == tuple(side.context.query_gid(1, 0).raw for side in sides)
    assert int.from_bytes(raw[4:6], "big") == 8 + 12 + 8 + 12 + 4
    assert raw[6] == 17
    assert sides[1].memory[GRH : GRH + 9] == b"hello six"
    back = AH(sides[1].pd, wc=wc, grh=sides[1].mr.buf, port_num=1)
    sides[0].post_recv(sender, 8, offset=1000)
    taker.post_send(datagram(sides[1], back, wc.src_qp, 2, 4))
    for _ in range(10):
        for device in devices:
            device.progress()
    assert (8, 0) in sides[0].done()
    for side, device in zip(sides, devices, strict=True):
        side.close()
        device.close()


# -- real sockets


def test_over_real_sockets(build: Any) -> None:
    world: World = build("udp")
    pair = Pair(world, receives=20, length=GRH + 1000)
    fill(world.a.memory, pattern(20_000))
    found: list[Any] = []
    for index in range(20):
        pair.a.post_send(datagram(world.a, pair.ah, pair.b, index, 1000, 1000 * index))
        world.until(lambda: found.extend(world.b.poll(pair.came)) or len(found) > index)  # noqa: B023
    assert [(wc.wr_id, wc.status, wc.src_qp) for wc in found] == [(100 + n, 0, pair.a.qp_num) for n in range(20)]
    size = GRH + 1000
    arrived = [bytes(world.b.memory[32768 + size * n + GRH : 32768 + size * (n + 1)]) for n in range(20)]
    assert b"".join(arrived) == pattern(20_000)
    back = AH(world.b.pd, wc=found[0], grh=world.b.mr.buf + 32768, port_num=1)
    world.a.post_recv(pair.a, 7)
    pair.b.post_send(datagram(world.b, back, found[0].src_qp, 8))
    answers: list[Any] = []
    world.until(lambda: answers.extend(wc.wr_id for wc in world.a.poll(pair.sent)) or 7 in answers)


def test_datagrams_have_no_windows(world: World) -> None:
    window = MW(world.a.pd, e.IBV_MW_TYPE_1)
    bind = MWBind(MWBindInfo(world.a.mr, world.a.mr.buf, 8, e.IBV_ACCESS_REMOTE_WRITE), SIGNALED)
    assert "cannot bind" in refused(errno.EINVAL, ud(world.a).bind_mw, window, bind)
