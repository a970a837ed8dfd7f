# SPDX-License-Identifier: MIT
"""Datagrams on the wire (IBA 9.8.3, 10.2.5; annex A17.4.5.1 for the header that comes before them)."""

import ipaddress
import struct
from random import Random

import pytest
from tests.netsim import frames
from tests.netsim.pair import (
    FLUSH_ERR,
    INLINE,
    LOC_LEN_ERR,
    LOC_PROT_ERR,
    LOC_QP_OP_ERR,
    RECV,
    SEND,
    SIGNALED,
    SOLICITED,
    SUCCESS,
    WR_SEND,
    WR_SEND_IMM,
    End,
    Pair,
)
from tests.netsim.sim import (
    CAP,
    ERR,
    INIT,
    PATH,
    QPT_RC,
    QPT_UC,
    QPT_UD,
    RESET,
    RTR,
    RTS,
    SQD,
    SQE,
    Node,
    connect,
    move,
)

from softverbs.core.queues.completion import CompChannel
from softverbs.core.queues.wr import SGE, SendWR

GRH = 40
HEADER_IPV6, HEADER_IPV4 = 1, 2  # in the completion's ``sl``
ONLY, ONLY_IMM = 0x64, 0x65
UNTOUCHED = 0xEE
QKEY = PATH["qkey"]
IPV6 = ("fd00::1", "fd00::2")


def ud(**more: object) -> Pair:
    pair = Pair(kind=QPT_UD, **more)  # type: ignore[arg-type]
    pair.b.put(0x8000, bytes([UNTOUCHED]) * 0x8000)
    return pair


def another(like: End, kind: int = QPT_UD, number: int = -1, **attributes: int) -> End:
    """One end more, at the same device."""
    end = End(like.node, 0, CAP, kind, pd=like.pd, memory=like.memory, number=number)
    end.peer = like.peer
    connect(end.qp, like.peer.qp, like.node, like.peer.node, attributes.items())
    return end


def send(pair: Pair, length: int = 8, **more: object) -> None:
    """One datagram from a to b, and time for it to arrive."""
    pair.a.post(WR_SEND, 0, length, **more)
    pair.sim.settle()


# -- what arrives


@pytest.mark.parametrize("length", [0, 1, 3, 4, 100, 1023, 1024, 4096])
@pytest.mark.parametrize("opcode", [WR_SEND, WR_SEND_IMM])
def test_a_datagram(opcode: int, length: int) -> None:
    with ud() as pair:
        data = Random(length).randbytes(length)
        pair.a.put(0, data)
        pair.b.receive(0x8000, GRH + 4096, wr_id=7)
        pair.a.post(opcode, 0, length, imm=0x0A0B0C0D, wr_id=3)
        pair.sim.settle()
        (sent,) = pair.a.polled()
        (got,) = pair.b.polled()
        assert (sent.wr_id, sent.status, sent.opcode, sent.qp_num) == (3, SUCCESS, 0, pair.a.qp.qp_num)
        with_imm = 2 if opcode == WR_SEND_IMM else 0
        assert (got.wr_id, got.status, got.opcode) == (7, SUCCESS, 128)
        assert (got.byte_len, got.wc_flags, got.src_qp) == (GRH + length, 1 | with_imm, pair.a.qp.qp_num)
        assert (got.qp_num, got.pkey_index, got.sl) == (pair.b.qp.qp_num, 0, HEADER_IPV4)
        assert not with_imm or got.imm_data == 0x0A0B0C0D
        assert pair.b.at(0x8000 + GRH, length + 1) == data + bytes([UNTOUCHED])
        (frame,) = pair.sent(pair.a)
        assert frame[0] == (ONLY_IMM if with_imm else ONLY)
        assert struct.unpack(">II", frame[12:20]) == (QKEY, pair.a.qp.qp_num)
        assert pair.sent(pair.b) == []
        assert (pair.a.count(SEND), pair.b.count(RECV)) == ((1, 0), (1, 0))


@pytest.mark.parametrize("length", [0, 1, 777, 4096])
def test_the_header_over_ipv4(length: int) -> None:
    """In the last 20 bytes, as it was on the wire; its checksum is right."""
    with ud() as pair:
        pair.b.receive(0x8000, GRH + 4096)
        send(pair, length)
        (frame,) = pair.sent(pair.a)
        header = pair.b.at(0x8000 + 20, 20)
        version, _, total, _, fragment, _, protocol, _, source, dest = struct.unpack(">BBHHHBBH4s4s", header)
        assert (version, total, protocol) == (0x45, 20 + 8 + len(frame), 17)
        assert fragment & 0xBFFF == 0
        assert (str(ipaddress.ip_address(source)), str(ipaddress.ip_address(dest))) == ("10.0.0.1", "10.0.0.2")
        total = sum(struct.unpack(">10H", header))
        assert (total & 0xFFFF) + (total >> 16) == 0xFFFF


@pytest.mark.parametrize("length", [0, 1, 777, 4096])
def test_the_header_over_ipv6(length: int) -> None:
    with ud(addresses=IPV6) as pair:
        pair.b.receive(0x8000, GRH + 4096)
        send(pair, length)
        (frame,) = pair.sent(pair.a)
        (got,) = pair.b.polled()
        assert (got.wc_flags, got.sl) == (1, HEADER_IPV6)
        first, payload, following, _, source, dest = struct.unpack(">IHBB16s16s", pair.b.at(0x8000, GRH))
        assert (first >> 28, payload, following) == (6, 8 + len(frame), 17)
        assert (str(ipaddress.ip_address(source)), str(ipaddress.ip_address(dest))) == IPV6


@pytest.mark.parametrize("cuts", [(40, 0), (1, 39), (20, 25), (39, 2), (44, 100), (0, 0)])
def test_header_and_payload_are_scattered_anywhere(cuts: tuple[int, int]) -> None:
    with ud() as pair:
        pair.a.put(0, bytes(range(200)))
        pieces = [(0x8000, cuts[0]), (0x9000, cuts[1]), (0xA000, GRH + 200 - sum(cuts))]
        pair.b.receive(sg=[pair.b.sge(*piece) for piece in pieces])
        send(pair, 200)
        whole = b"".join(pair.b.at(*piece) for piece in pieces)
        assert whole[GRH:] == bytes(range(200))
        assert whole[20] == 0x45
        assert all(pair.b.at(sum(piece), 1) == bytes([UNTOUCHED]) for piece in pieces)


def test_gathered_and_inline() -> None:
    with ud() as pair:
        pair.a.put(0, bytes(range(100)))
        for flags in (SIGNALED, SIGNALED | INLINE):
            pair.b.receive(0x8000, 200)
            pair.a.post(WR_SEND, sg=[pair.a.sge(90, 10), pair.a.sge(5, 0), pair.a.sge(0, 50)], flags=flags)
            if flags & INLINE:
                pair.a.put(0, bytes(100))
            pair.sim.settle()
            assert pair.b.at(0x8000 + GRH, 60) == bytes(range(90, 100)) + bytes(range(50))


def test_a_queue_pair_sends_to_itself_and_to_its_neighbour() -> None:
    with ud() as pair:
        a = pair.a
        other = another(a)
        here = a.node.handle(a.pd, a.node.gid)
        a.receive(0x4000, 100, wr_id=1)
        other.receive(0x5000, 100, wr_id=2)
        a.put(0, b"to myself")
        for qp in (a.qp, other.qp):
            a.post(WR_SEND, 0, 9, handle=here, qpn=qp.qp_num, wr_id=3)
        pair.sim.settle()
        assert sorted(a.done()) == [(1, 0), (3, 0), (3, 0)]
        (wc,) = other.polled()
        assert (wc.src_qp, wc.byte_len, wc.wc_flags) == (a.qp.qp_num, GRH + 9, 1)
        assert a.at(0x4000 + GRH, 9) == a.at(0x5000 + GRH, 9) == b"to myself"
        assert a.at(0x4000 + 32, 8) == a.node.gid[12:] * 2


def test_solicited_datagrams_wake_who_waits_for_them() -> None:
    with ud() as pair:
        rung: list[int] = []
        node = pair.b.node
        channel = CompChannel(lambda: rung.append(1))
        cq = node.cq(channel=channel)
        end = End(node, 0, CAP, QPT_UD, pd=pair.b.pd, memory=pair.b.memory, cq=cq)
        connect(end.qp, None, node, None)
        for _ in range(2):
            end.receive(0x8000, 100)
        cq.req_notify(True)
        send(pair, qpn=end.qp.qp_num)
        assert rung == []
        send(pair, qpn=end.qp.qp_num, flags=SOLICITED)
        assert rung == [1]


# -- what does not arrive


@pytest.mark.parametrize("wrong", [0, 1, QKEY ^ 1, QKEY ^ 1 << 30, 0x7FFFFFFF])
def test_a_wrong_key(wrong: int) -> None:
    with ud() as pair:
        pair.b.receive(0x8000, 100)
        send(pair, qkey=wrong)
        assert pair.a.done() == [(0, SUCCESS)]
        assert pair.b.done() == []
        assert pair.b.node.stats()["dropped_qkey"] == 1
        assert (pair.b.qp.state, pair.b.count(RECV)) == (RTS, (0, 0))
        send(pair)
        assert pair.b.done() == [(0, SUCCESS)]


@pytest.mark.parametrize("key", [1 << 31, 0xFFFFFFFF, QKEY | 1 << 31])
def test_the_highest_bit_asks_for_the_senders_own_key(key: int) -> None:
    """IBA 10.2.5: the key of the QP context is sent instead."""
    with ud() as pair:
        pair.b.receive(0x8000, 100)
        send(pair, qkey=key)
        assert struct.unpack(">I", pair.sent(pair.a)[0][12:16]) == (QKEY,)
        assert pair.b.done() == [(0, SUCCESS)]


@pytest.mark.parametrize("state", [INIT, RTS])
def test_a_key_with_the_highest_bit_can_be_that_of_a_queue_pair(state: int) -> None:
    """A controlled Q_Key: sent where the sender's own has it, never from the work request."""
    with ud() as pair:
        controlled = 0x80010000
        a, b = another(pair.a, qkey=controlled), another(pair.b, qkey=controlled)
        if state == RTS:
            for end in (a, b):
                end.qp.modify({"qp_state": RTS, "qkey": controlled | 1}, 1 | 1 << 6)
        b.receive(0x8000, 100)
        a.post(WR_SEND, 0, 8, qpn=b.qp.qp_num, qkey=1 << 31)
        pair.a.post(WR_SEND, 0, 8, qpn=b.qp.qp_num, qkey=controlled | (state == RTS))
        pair.sim.settle()
        assert b.done() == [(0, SUCCESS)]
        assert pair.b.node.stats()["dropped_qkey"] == 1
        assert struct.unpack(">I", pair.sent(pair.a)[0][12:16])[0] & ~1 == controlled


def test_without_a_receive() -> None:
    with ud() as pair:
        send(pair)
        assert pair.a.done() == [(0, SUCCESS)]
        assert pair.b.node.stats()["dropped_no_receive"] == 1
        pair.b.receive(0x8000, 100)
        send(pair)
        assert pair.b.done() == [(0, SUCCESS)]


@pytest.mark.parametrize("state", [RESET, INIT, RTR, SQD, SQE, ERR])
def test_in_which_states_it_receives(state: int) -> None:
    """From RTR on, but not in ERR (IBA 10.3.1)."""
    with ud() as pair:
        b = another(pair.b) if state != RTR else End(pair.b.node, 0, CAP, QPT_UD, pd=pair.b.pd, memory=pair.b.memory)
        if state == RTR:
            connect(b.qp, None, b.node, None, to=RTR)
        if state != RESET:
            b.receive(0x8000, 100, wr_id=1)
        if state in (SQD, ERR):
            move(b.qp, state)
        elif state == SQE:
            b.peer = pair.a
            b.post(WR_SEND, sg=[SGE(0, 8, 0xBAD)])
            pair.sim.settle()
        elif state in (RESET, INIT):
            move(b.qp, RESET)
            if state == INIT:
                connect(b.qp, None, b.node, None, to=INIT)
                b.receive(0x8000, 100, wr_id=1)
        assert b.qp.state == state
        b.done()
        send(pair, qpn=b.qp.qp_num)
        assert b.done() == ([(1, SUCCESS)] if state in (RTR, SQD, SQE) else [])
        assert pair.b.node.stats()["dropped_qp_state"] == (state in (RESET, INIT, ERR))


@pytest.mark.parametrize("kind", [QPT_RC, QPT_UC])
def test_a_connected_queue_pair_takes_no_datagram(kind: int) -> None:
    with ud() as pair:
        b = another(pair.b, kind)
        b.receive(0x8000, 100)
        send(pair, qpn=b.qp.qp_num)
        assert b.done() == [] and pair.b.node.stats()["dropped_transport"] == 1
        for opcode in (0x04, 0x24):
            pair.inject(pair.a, frames.put_bth(opcode, pair.b.qp.qp_num, 0) + bytes(8))
        assert pair.b.node.stats()["dropped_transport"] == 3


def test_to_a_number_that_nobody_has() -> None:
    with ud() as pair:
        for number in (0, 2, 15, 0xFFFFFE, pair.b.qp.qp_num ^ 1 << 16):
            send(pair, qpn=number)
        assert [status for _, status in pair.a.done()] == [SUCCESS] * 5
        assert pair.b.node.stats()["dropped_unknown_qp"] == 5


def test_lost_repeated_late_and_damaged() -> None:
    """What comes is taken as it comes: PSNs of datagrams mean nothing (IBA 9.8.3.1)."""
    with ud() as pair:
        for number in range(20):
            pair.b.receive(0x8000 + 256 * number, 256, wr_id=number)
        sent: list[bytes] = []
        pair.rule = lambda frame: sent.append(frame) or []  # type: ignore[func-returns-value]
        for number in range(8):
            pair.a.put(number, bytes([number]))
            pair.a.post(WR_SEND, number, 1)
        pair.sim.settle()
        pair.rule = None
        order = [5, 5, 0, 7, 2, 1, 1]
        for index in order:
            pair.inject(pair.a, sent[index][:-4])
        assert [pair.b.at(0x8000 + 256 * place + GRH, 1)[0] for place in range(len(order))] == order
        assert pair.b.done() == [(number, SUCCESS) for number in range(len(order))]
        pair.rule = lambda frame: [frame[:-5] + bytes([frame[-5] ^ 0x10]) + frame[-4:]]
        send(pair)
        assert pair.b.done() == [] and pair.b.node.stats()["dropped_icrc"] == 1


@pytest.mark.parametrize("body", [bytes(0), bytes(4), bytes(7)])
def test_a_datagram_without_its_header_is_malformed(body: bytes) -> None:
    with ud() as pair:
        pair.inject(pair.a, frames.put_bth(ONLY, pair.b.qp.qp_num, 0) + body[: len(body) & -4])
        stats = pair.b.node.stats()
        assert stats["dropped_malformed"] == 1


# -- lengths


@pytest.mark.parametrize("network", [4200, 2200, 1200, 600, 320])
def test_no_longer_than_the_mtu_of_the_port(network: int) -> None:
    """LOC_LEN_ERR, and SQE; nothing is sent."""
    with ud(network_mtu=network) as pair:
        most = 128 << pair.a.node.port.active_mtu
        pair.b.receive(0x8000, GRH + most, wr_id=1)
        send(pair, most)
        assert (pair.a.done(), pair.b.done()) == ([(0, SUCCESS)], [(1, SUCCESS)])
        before = len(pair.wire)
        send(pair, most + 1, wr_id=9)
        assert pair.a.done() == [(9, LOC_LEN_ERR)]
        assert (pair.a.qp.state, len(pair.wire)) == (SQE, before)


@pytest.mark.parametrize("room", [0, 1, 39, 40, 47])
def test_a_receive_that_is_too_short(room: int) -> None:
    """GRH and payload must fit; it fails, and with it the queue pair. Nothing is written behind it."""
    with ud() as pair:
        pair.b.receive(0x8000, room, wr_id=1)
        pair.b.receive(0x9000, 100, wr_id=2)
        send(pair)
        assert pair.b.done() == [(1, LOC_LEN_ERR), (2, FLUSH_ERR)]
        assert set(pair.b.at(0x8000 + room, 0x2000)) == {UNTOUCHED}
        assert (pair.b.qp.state, pair.b.count(RECV)) == (ERR, (0, 2))
        assert pair.a.done() == [(0, SUCCESS)]


def test_a_receive_of_memory_that_is_none() -> None:
    with ud() as pair:
        pair.b.receive(sg=[SGE(0x10, 100, 0xBAD)], wr_id=1)
        send(pair)
        assert pair.b.done() == [(1, LOC_PROT_ERR)]
        assert (pair.b.qp.state, pair.b.count(RECV)) == (ERR, (0, 1))


def test_a_receive_whose_end_is_not_registered_gets_nothing_there() -> None:
    with ud() as pair:
        beyond = SGE(pair.b.memory.iova + pair.b.memory.size - 44, 100, pair.b.memory.key)
        pair.b.receive(sg=[beyond], wr_id=1)
        send(pair)
        assert pair.b.done() == [(1, LOC_PROT_ERR)]


# -- errors of the send side


def wrong_key(pair: Pair) -> SendWR:
    return pair.a.wr(WR_SEND, sg=[SGE(0x10, 8, 0xBAD)], wr_id=10)


def too_long(pair: Pair) -> SendWR:
    return pair.a.wr(WR_SEND, 0, 5000, wr_id=10)


def foreign_handle(pair: Pair) -> SendWR:
    pd = pair.a.node.pd()
    return pair.a.wr(WR_SEND, 0, 8, handle=pair.a.node.handle(pd, pair.b.node.gid), wr_id=10)


@pytest.mark.parametrize(
    ("make", "status"), [(wrong_key, LOC_PROT_ERR), (too_long, LOC_LEN_ERR), (foreign_handle, LOC_QP_OP_ERR)]
)
@pytest.mark.parametrize("signaled", [0, SIGNALED])
def test_an_error_of_the_send_side_and_the_way_back(make: object, status: int, signaled: int) -> None:
    with ud() as pair:
        a, b = pair.a, pair.b
        a.receive(0x8000, 100, wr_id=1)
        b.receive(0x8000, 100, wr_id=2)
        a.post(WR_SEND, 0, 8, flags=0, wr_id=9)
        wr = make(pair)  # type: ignore[operator]
        wr.send_flags = signaled
        a.qp.post_send(wr)
        for number in (11, 12):
            a.post(WR_SEND, 0, 8, flags=0, wr_id=number)
        pair.sim.settle()
        assert a.done() == [(10, status), (11, FLUSH_ERR), (12, FLUSH_ERR)]
        assert (a.qp.state, len(pair.sent(a)), b.done()) == (SQE, 1, [(2, SUCCESS)])
        b.post(WR_SEND, 0, 8)
        pair.sim.settle()
        assert a.done() == [(1, SUCCESS)]
        a.post(WR_SEND, 0, 8, flags=0, wr_id=13)
        assert a.done() == [(13, FLUSH_ERR)]
        move(a.qp, RTS)
        b.receive(0x8000, 100, wr_id=3)
        send(pair, wr_id=14)
        assert (a.done(), b.done()) == ([(14, SUCCESS)], [(0, SUCCESS), (3, SUCCESS)])
        assert a.count(SEND) == (2, 4)
        assert a.node.events() == []


def test_from_sqe_to_err_and_reset() -> None:
    with ud() as pair:
        for target in (ERR, RESET):
            pair.a.receive(0x8000, 100, wr_id=1)
            pair.a.qp.post_send(wrong_key(pair))
            pair.sim.settle()
            assert (pair.a.qp.state, pair.a.done()) == (SQE, [(10, LOC_PROT_ERR)])
            move(pair.a.qp, target)
            assert pair.a.done() == ([(1, FLUSH_ERR)] if target == ERR else [])
            move(pair.a.qp, RESET)
            connect(pair.a.qp, None, pair.a.node, None)


def test_sqd_holds_what_has_not_started_and_receives() -> None:
    with ud() as pair:
        move(pair.a.qp, SQD)
        pair.a.receive(0x8000, 100, wr_id=1)
        pair.b.receive(0x8000, 100, wr_id=2)
        send(pair, wr_id=3)
        pair.b.post(WR_SEND, 0, 8)
        pair.sim.settle()
        assert pair.a.done() == [(1, SUCCESS)]
        move(pair.a.qp, RTS)
        pair.sim.settle()
        assert (pair.a.done(), pair.b.done()) == ([(3, SUCCESS)], [(0, SUCCESS), (2, SUCCESS)])


# -- the general service interface, QP 1 (IBA 3.5.1, 9.8.3)


def gsi(node: Node) -> End:
    pd = node.pd()
    end = End(node, 4096, CAP, QPT_UD, pd=pd, number=1, counted=False)
    connect(end.qp, None, node, None, qkey=0x80010000)
    return end


def test_the_general_service_interface() -> None:
    """Its Q_Key is 0x80010000, which no work request can carry; there is one."""
    with ud() as pair:
        one, two = gsi(pair.a.node), gsi(pair.b.node)
        one.peer, two.peer = two, one
        assert one.qp.qp_num == two.qp.qp_num == 1
        with pytest.raises(Exception, match="QP 1"):
            gsi(pair.a.node)
        two.receive(0, 256 + GRH, wr_id=5)
        pair.a.post(WR_SEND, 0, 256, qpn=1, qkey=0x80010000)
        pair.sim.settle()
        assert two.done() == [] and pair.b.node.stats()["dropped_qkey"] == 1
        one.post(WR_SEND, 0, 256, qkey=0x80010000)
        pair.sim.settle()
        (wc,) = two.polled()
        assert (wc.wr_id, wc.src_qp, wc.byte_len) == (5, 1, 256 + GRH)
        one.qp.close()
        gsi(pair.a.node)
