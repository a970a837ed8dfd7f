# SPDX-License-Identifier: MIT
"""Unreliable connections on the wire (IBA 9.8.2): what is lost is lost whole, and nobody is told."""

import ctypes
from itertools import permutations
from random import Random
from types import SimpleNamespace

import pytest
from tests.netsim import frames, sim
from tests.netsim.pair import (
    BIT,
    FLUSH_ERR,
    LOC_LEN_ERR,
    LOC_PROT_ERR,
    MW_BIND_ERR,
    RECV,
    REMOTE_WRITE,
    SEND,
    SUCCESS,
    WR_BIND,
    WR_LOCAL_INV,
    WR_SEND,
    WR_SEND_IMM,
    WR_WRITE,
    WR_WRITE_IMM,
    WRITE,
    Pair,
)
from tests.netsim.sim import (
    ALL,
    CAP,
    ERR,
    LOCAL_WRITE,
    QPT_UC,
    REMOTE_READ,
    RTR,
    RTS,
    SQE,
    connect,
    move,
)

from softverbs.core.queues.wr import SGE, RecvWR, SendWR

MTU = 256
FIRST, MIDDLE, LAST, LAST_IMM, ONLY, ONLY_IMM = range(0x20, 0x26)
W_FIRST, W_MIDDLE, W_LAST, W_LAST_IMM, W_ONLY, W_ONLY_IMM = range(0x26, 0x2C)
BEGINS = (FIRST, ONLY, ONLY_IMM, W_FIRST, W_ONLY, W_ONLY_IMM)
UNTOUCHED = 0xEE


def uc(**more: int) -> Pair:
    pair = Pair(kind=QPT_UC, path_mtu=1, **more)
    pair.b.put(0x8000, bytes([UNTOUCHED]) * 0x8000)
    return pair


def lose(pair: Pair, *indices: int) -> None:
    """The frames of these numbers, from now on, are lost."""
    sent = iter(range(1 << 30))
    pair.rule = lambda _: [] if next(sent) in indices else None


def test_frames_have_the_transport_of_uc_and_nothing_comes_back() -> None:
    with uc() as pair:
        for _ in range(4):
            pair.b.receive(0x8000, 1000)
        for opcode in (WR_SEND, WR_SEND_IMM, WR_WRITE, WR_WRITE_IMM):
            pair.a.post(opcode, 0, 700, 0)
            pair.a.post(opcode, 0, 100, 0) if opcode in (WR_SEND, WR_WRITE) else None
        pair.sim.settle()
        assert [frame[0] for frame in pair.sent(pair.a)] == [
            FIRST, MIDDLE, LAST, ONLY, FIRST, MIDDLE, LAST_IMM, W_FIRST, W_MIDDLE, W_LAST, W_ONLY, W_FIRST, W_MIDDLE,
            W_LAST_IMM,
        ]  # fmt: skip
        assert pair.sent(pair.b) == []
        psns = [frames.psn(frame) for frame in pair.sent(pair.a)]
        assert psns == list(range(0x1000, 0x1000 + len(psns)))


@pytest.mark.parametrize("length", [0, 1, 255, 256, 257, 512, 5000])
@pytest.mark.parametrize("opcode", [WR_SEND, WR_SEND_IMM, WR_WRITE, WR_WRITE_IMM])
def test_every_operation_at_every_edge(opcode: int, length: int) -> None:
    with uc() as pair:
        data = Random(length).randbytes(length)
        pair.a.put(0, data)
        pair.b.receive(0x8000, 6000, wr_id=7)
        pair.a.post(opcode, 0, length, 0xC000, imm=0x01020304, wr_id=5)
        assert pair.a.done() == [] or True
        pair.sim.settle()
        assert pair.a.done() == [(5, SUCCESS)]
        at = 0xC000 if opcode in (WR_WRITE, WR_WRITE_IMM) else 0x8000
        assert pair.b.at(at, length + 1) == data + bytes([UNTOUCHED])
        found = pair.b.polled()
        if opcode == WR_WRITE:
            assert found == []
            return
        (wc,) = found
        assert (wc.wr_id, wc.status, wc.byte_len, wc.qp_num) == (7, SUCCESS, length, pair.b.qp.qp_num)
        assert wc.opcode == (129 if opcode == WR_WRITE_IMM else 128)
        with_imm = opcode in (WR_SEND_IMM, WR_WRITE_IMM)
        assert wc.wc_flags == (2 if with_imm else 0)
        assert not with_imm or wc.imm_data == 0x01020304


@pytest.mark.parametrize("lost", range(4))
@pytest.mark.parametrize("opcode", [WR_SEND, WR_WRITE_IMM])
def test_a_message_that_misses_a_packet_is_dropped_whole(opcode: int, lost: int) -> None:
    """Its receive is taken by the next message; the sender has succeeded all the same."""
    with uc() as pair:
        for number in range(2):
            pair.b.receive(0x8000 + 0x1000 * number, 1024, wr_id=number)
        lose(pair, lost)
        pair.a.put(0, b"1" * 1024 + b"2" * 1024)
        pair.a.post(opcode, 0, 1024, 0xC000, wr_id=1)
        pair.a.post(opcode, 1024, 1024, 0xE000, wr_id=2)
        pair.sim.settle()
        assert pair.a.done() == [(1, SUCCESS), (2, SUCCESS)]
        assert pair.b.done() == [(0, SUCCESS)]
        at = 0x8000 if opcode == WR_SEND else 0xE000
        assert pair.b.at(at, 1024) == b"2" * 1024
        assert (pair.b.count(RECV), pair.b.count(REMOTE_WRITE)[0]) == ((1, 0), int(opcode == WR_WRITE_IMM))
        assert pair.b.qp.state == RTS
        assert pair.a.count(BIT[opcode]) == (2, 0)


def test_a_packet_of_two_messages_lost() -> None:
    """The end of one message and the beginning of the next: neither arrives, the third does."""
    with uc() as pair:
        pair.b.receive(0x8000, 1024, wr_id=9)
        lose(pair, 2, 3)
        for number in range(3):
            pair.a.put(0x1000 * number, bytes([number + 1]) * 700)
            pair.a.post(WR_SEND, 0x1000 * number, 700)
        pair.sim.settle()
        assert pair.b.done() == [(9, SUCCESS)]
        assert pair.b.at(0x8000, 700) == b"\3" * 700


def test_any_order_of_the_packets_of_two_messages() -> None:
    """Whole or nothing, whatever the network does to their order; a message counts where its packets came in a row."""
    for order in permutations(range(4)):
        with uc() as pair:
            held: list[bytes] = []
            pair.rule = lambda frame, held=held: held.append(frame) or []  # type: ignore[func-returns-value]
            for number in range(2):
                pair.b.receive(0x8000 + 0x1000 * number, 512, wr_id=number)
                pair.a.put(0x1000 * number, bytes([number + 1]) * 512)
                pair.a.post(WR_SEND, 0x1000 * number, 512)
            pair.sim.settle()
            pair.rule = None
            for index in order:
                pair.inject(pair.a, held[index][:-4])
            arrived = [
                number for number in sorted(range(2), key=lambda number: order.index(2 * number + 1))
                if order.index(2 * number) + 1 == order.index(2 * number + 1)
            ]  # fmt: skip
            assert pair.b.done() == [(index, SUCCESS) for index in range(len(arrived))], order
            for index, number in enumerate(arrived):
                assert pair.b.at(0x8000 + 0x1000 * index, 512) == bytes([number + 1]) * 512, order


def test_a_duplicate_in_the_middle_spoils_its_message() -> None:
    """A PSN that is not the expected one ends the message (IBA 9.8.2.2.1)."""
    with uc() as pair:
        pair.b.receive(0x8000, 1024)
        pair.rule = lambda frame: [frame, frame] if frame[0] == MIDDLE else None
        pair.a.post(WR_SEND, 0, 1024)
        pair.sim.settle()
        assert pair.b.done() == []
        pair.rule = lambda frame: [frame, frame] if frame[0] == FIRST else None
        pair.a.post(WR_SEND, 0, 1024)
        pair.sim.settle()
        assert pair.b.done() == [(0, SUCCESS)]


@pytest.mark.parametrize("start", [0xFFFFFE, 0xFFFFFF, 0])
def test_psns_wrap(start: int) -> None:
    with uc(sq_psn=start, rq_psn=start) as pair:
        pair.b.receive(0x8000, 5000)
        pair.a.post(WR_SEND, 0, 1024)
        pair.sim.settle()
        assert pair.b.done() == [(0, SUCCESS)]


def test_the_first_message_may_have_any_psn() -> None:
    """The expected PSN is a guess until something comes: what is new begins a message (IBA 9.8.2.2)."""
    with uc(sq_psn=0x555, rq_psn=0xABCDEF) as pair:
        pair.b.receive(0x8000, 5000)
        pair.a.post(WR_SEND, 0, 1024)
        pair.sim.settle()
        assert pair.b.done() == [(0, SUCCESS)]


def test_a_damaged_packet_is_a_lost_one() -> None:
    with uc() as pair:
        pair.b.receive(0x8000, 1024)
        pair.rule = lambda frame: [frame[:20] + bytes([frame[20] ^ 1]) + frame[21:]] if frame[0] == MIDDLE else None
        pair.a.post(WR_SEND, 0, 1024)
        pair.sim.settle()
        assert pair.b.done() == [] and pair.b.node.stats()["dropped_icrc"] == 2


@pytest.mark.parametrize("opcode", [WR_SEND, WR_SEND_IMM, WR_WRITE_IMM])
def test_without_a_receive_the_message_is_lost(opcode: int) -> None:
    with uc() as pair:
        pair.a.post(opcode, 0, 700, 0xC000)
        pair.a.post(opcode, 0, 10, 0xC000)
        pair.sim.settle()
        assert [status for _, status in pair.a.done()] == [SUCCESS] * 2
        assert pair.b.node.stats()["dropped_no_receive"] == 2
        pair.b.receive(0x8000, 700)
        pair.a.put(0, b"x" * 700)
        pair.a.post(opcode, 0, 700, 0xC000)
        pair.sim.settle()
        assert pair.b.done() == [(0, SUCCESS)]
        assert pair.b.at(0x8000 if opcode != WR_WRITE_IMM else 0xC000, 700) == b"x" * 700
        assert pair.sent(pair.b) == []


def test_a_receive_posted_in_the_middle_of_a_message_is_for_the_next() -> None:
    with uc() as pair:
        qpn = pair.b.qp.qp_num
        pair.inject(pair.a, frames.put_bth(FIRST, qpn, 0x1000) + bytes(256))
        pair.b.receive(0x8000, 1024, wr_id=3)
        pair.inject(pair.a, frames.put_bth(MIDDLE, qpn, 0x1001) + bytes(256))
        pair.inject(pair.a, frames.put_bth(LAST, qpn, 0x1002) + bytes(8))
        assert pair.b.done() == []
        pair.inject(pair.a, frames.put_bth(ONLY, qpn, 0x1003) + bytes(8))
        assert pair.b.done() == [(3, SUCCESS)]


@pytest.mark.parametrize("room", [0, 1, 255, 256, 511, 699])
def test_a_message_longer_than_its_receive(room: int) -> None:
    """The receive fails, and with it the queue pair; not a byte is written behind it, and the peer hears nothing."""
    with uc() as pair:
        pair.b.receive(0x8000, room, wr_id=1)
        pair.b.receive(0x9000, 1024, wr_id=2)
        pair.a.post(WR_SEND, 0, 700)
        pair.a.post(WR_SEND, 0, 700)
        pair.sim.settle()
        assert [status for _, status in pair.a.done()] == [SUCCESS] * 2
        assert pair.b.done() == [(1, LOC_LEN_ERR), (2, FLUSH_ERR)]
        assert pair.b.qp.state == ERR
        assert set(pair.b.at(0x8000 + room, 0x1000)) == {UNTOUCHED}
        assert (pair.b.count(RECV), pair.sent(pair.b)) == ((0, 2), [])


@pytest.mark.parametrize("wrong", ["key", "beyond", "access", "qp access"])
def test_a_write_that_is_not_allowed_is_dropped_without_a_word(wrong: str) -> None:
    """All of its packets; and what follows arrives."""
    with uc(**({"qp_access_flags": REMOTE_READ} if wrong == "qp access" else {})) as pair:
        region = pair.b.node.region(pair.b.pd, 4096, LOCAL_WRITE | REMOTE_READ, iova=0x700000)
        pair.b.receive(0x8000, 1000, wr_id=4)
        pair.b.receive(0x8000, 1000, wr_id=5)
        for opcode in (WR_WRITE, WR_WRITE_IMM):
            wr = pair.a.wr(opcode, 0, 700, 0xC000)
            if wrong == "key":
                wr.set_wr_rdma(pair.b.memory.key ^ 0x100, pair.b.memory.iova + 0xC000)
            elif wrong == "beyond":
                wr.set_wr_rdma(pair.b.memory.key, pair.b.memory.iova + 0x10000 - 699)
            elif wrong == "access":
                wr.set_wr_rdma(region.key, region.iova)
            pair.a.qp.post_send(wr)
        pair.a.post(WR_SEND, 0, 700)
        pair.sim.settle()
        assert [status for _, status in pair.a.done()] == [SUCCESS] * 3
        assert pair.b.done() == [(4, SUCCESS)]
        assert region.at(0, 4096) == bytes(4096)
        assert set(pair.b.at(0x9000, 0x7000)) == {UNTOUCHED}
        assert (pair.b.count(REMOTE_WRITE), pair.b.count(RECV), pair.b.qp.state) == ((0, 0), (1, 0), RTS)
        assert pair.b.node.events() in ([], [(4, pair.b.qp)])


def test_a_packet_with_the_length_of_another_place_drops_the_message() -> None:
    """FIRST and MIDDLE are as long as the path MTU (IBA 9.8.2.2.4)."""
    with uc() as pair:
        pair.b.receive(0x8000, 4000)
        qpn = pair.b.qp.qp_num
        for psn, (opcode, size) in enumerate([(FIRST, 252), (LAST, 4), (ONLY, 260), (FIRST, 256), (LAST, 260)], 0x1000):
            pair.inject(pair.a, frames.put_bth(opcode, qpn, psn) + bytes(size))
        pair.inject(
            pair.a, frames.put_bth(W_ONLY, qpn, 0x1005) + frames.put_reth(0x1C000, pair.b.memory.key, 8) + bytes(4)
        )
        pair.sim.settle()
        assert pair.b.done() == []
        assert pair.b.count(REMOTE_WRITE) == (0, 0)
        pair.inject(pair.a, frames.put_bth(ONLY, qpn, 0x1006) + bytes(256))
        assert pair.b.done() == [(0, SUCCESS)]


def test_a_middle_without_a_first_and_a_first_in_a_message() -> None:
    with uc() as pair:
        pair.b.receive(0x8000, 4000, wr_id=1)
        qpn = pair.b.qp.qp_num
        sequence = [(MIDDLE, 256), (LAST, 8), (FIRST, 256), (FIRST, 256), (W_MIDDLE, 256), (LAST, 8), (W_LAST, 8)]
        for psn, (opcode, size) in enumerate(sequence, 0x1000):
            pair.inject(pair.a, frames.put_bth(opcode, qpn, psn) + bytes(size))
        assert pair.b.done() == []
        for psn, (opcode, size) in enumerate([(FIRST, 256), (MIDDLE, 252), (LAST, 8), (FIRST, 256), (LAST, 0)], 0x1007):
            pair.inject(pair.a, frames.put_bth(opcode, qpn, psn) + bytes(size))
        assert pair.b.done() == []
        pair.inject(pair.a, frames.put_bth(FIRST, qpn, 0x1007) + b"\7" * 256)
        pair.inject(pair.a, frames.put_bth(LAST, qpn, 0x1008) + b"\7" * 8)
        assert pair.b.done() == [(1, SUCCESS)]
        assert pair.b.at(0x8000, 264) == b"\7" * 264


def test_operations_of_other_transports_are_not_looked_at() -> None:
    with uc() as pair:
        for opcode, size in ((frames.READ_REQUEST, 16), (frames.SEND_ONLY, 0), (0x2C, 16), (0x33, 28), (0x64, 8)):
            pair.inject(pair.a, frames.put_bth(opcode, pair.b.qp.qp_num, 0x1000) + bytes(size))
        stats = pair.b.node.stats()
        assert stats["dropped_transport"] + stats["dropped_opcode"] == 5


# -- errors of the send side: SQE, and the way back (IBA 10.3.1)


@pytest.mark.parametrize("opcode", [WR_SEND, WR_WRITE, WR_BIND, WR_LOCAL_INV])
def test_an_error_of_the_send_side(opcode: int) -> None:
    """It stops sending, flushes what follows, goes on receiving, and RTS begins anew."""
    with uc() as pair:
        a, b = pair.a, pair.b
        a.receive(0x8000, 1000, wr_id=1)
        a.receive(0x8000, 1000, wr_id=2)
        wr = SendWR(10, opcode, 1, 0, [SGE(0x10, 8, 0xBAD)], 2)
        if opcode == WR_BIND:
            window = a.node.port.regions.allocate_window(a.pd, 2)
            info = SimpleNamespace(mr=a.memory.mr, addr=a.memory.iova - 1, length=8, mw_access_flags=4)
            wr = SendWR(10, opcode)
            wr.set_bind_wr(window, info)
        elif opcode == WR_LOCAL_INV:
            wr = SendWR(10, opcode, imm_data=0xABCDEF)
        a.qp.post_send(wr)
        a.post(WR_SEND, 0, 8, flags=0, wr_id=11)
        pair.sim.settle()
        status = {WR_SEND: LOC_PROT_ERR, WR_WRITE: LOC_PROT_ERR, WR_BIND: MW_BIND_ERR}
        found = a.polled()
        assert [(wc.wr_id, wc.status) for wc in found[1:]] == [(11, FLUSH_ERR)]
        assert found[0].wr_id == 10 and found[0].status not in (SUCCESS, FLUSH_ERR)
        assert found[0].status == status.get(opcode, found[0].status)
        assert a.qp.state == SQE
        assert pair.sent(a) == []
        a.post(WR_SEND, 0, 8, wr_id=12)
        assert a.done() == [(12, FLUSH_ERR)]
        b.post(WR_SEND, 0, 500)
        pair.sim.settle()
        assert a.done() == [(1, SUCCESS)]
        move(a.qp, RTS)
        b.receive(0x8000, 100, wr_id=3)
        a.post(WR_SEND, 0, 8, wr_id=13)
        pair.sim.settle()
        assert (a.done(), b.done()[-1]) == ([(13, SUCCESS)], (3, SUCCESS))
        assert a.count(SEND) == ((1, 3) if opcode == WR_SEND else (1, 2))
        assert a.count(WRITE) == ((0, 1) if opcode == WR_WRITE else (0, 0))
        assert a.node.events() == []


def test_the_error_state_flushes_both_sides_from_sqe() -> None:
    with uc() as pair:
        pair.a.receive(0, 8, wr_id=1)
        pair.a.qp.post_send(SendWR(10, WR_SEND, 1, 0, [SGE(0x10, 8, 0xBAD)], 2))
        pair.sim.settle()
        assert pair.a.qp.state == SQE
        pair.a.done()
        move(pair.a.qp, ERR)
        assert pair.a.done() == [(1, FLUSH_ERR)]


# -- other


def test_a_stream_is_not_held_back_by_anything() -> None:
    """More than any window: nothing asks for an answer."""
    with Pair(1 << 20, (4096, 4096, 4, 4, 0), kind=QPT_UC) as pair:
        pair.a.put(0, Random(3).randbytes(1 << 20))
        for number in range(16):
            pair.a.post(WR_WRITE, 65536 * number, 65536, 65536 * number, wr_id=number)
        assert pair.a.wait(16) and pair.sim.now
        pair.sim.settle()
        assert pair.b.at(0, 1 << 20) == pair.a.at(0, 1 << 20)
        assert not any(frames.bth(frame).ask for frame in pair.sent(pair.a))


def test_a_receiver_in_rtr_receives_and_tells_once() -> None:
    """COMM_EST, while the queue pair is not yet in RTS (IBA 11.6.3.2)."""
    with uc() as pair:
        node = pair.b.node
        late = node.qp(pair.b.pd, pair.b.cq, cap=CAP, kind=QPT_UC)
        connect(late, pair.a.qp, node, pair.a.node, {"path_mtu": 1}.items(), to=RTR)
        move(pair.a.qp, 0)
        connect(pair.a.qp, late, pair.a.node, node, {"path_mtu": 1}.items())
        for _ in range(2):
            late.post_recv(RecvWR(1, 1, [pair.b.sge(0x8000, 100)]))
            pair.a.post(WR_SEND, 0, 50)
        pair.sim.settle()
        assert [status for _, status in pair.b.done()] == [SUCCESS] * 2
        assert node.events() == [(4, late)]


def test_frames_of_a_stranger_are_dropped() -> None:
    with uc() as pair:
        stranger = pair.sim.node()
        pair.b.receive(0x8000, 100)
        frame = frames.Seal(stranger.gid, pair.b.node.gid)(frames.put_bth(ONLY, pair.b.qp.qp_num, 0x1000))
        buffer = ctypes.create_string_buffer(frame, len(frame))
        route = stranger.link.route(0, pair.b.node.gid, 0, 0, 64)
        stranger.link.send(pair.sim.now, route, ctypes.addressof(buffer), len(frame), len(frame))
        pair.sim.settle()
        assert pair.b.done() == [] and pair.b.node.stats()["dropped_source"] == 1


def test_an_access_flag_taken_away_while_it_works() -> None:
    with uc() as pair:
        for flags, written in ((sim.REMOTE_WRITE, 1), (0, 1), (ALL & 15, 2)):
            pair.b.qp.modify({"qp_state": RTS, "qp_access_flags": flags}, 1 | 8)
            pair.a.post(WR_WRITE, 0, 8, 0)
            pair.sim.settle()
            assert pair.b.count(REMOTE_WRITE) == (written, 0)
