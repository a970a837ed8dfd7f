# SPDX-License-Identifier: MIT
"""The responder, over two ports and a wire that does what the test says: what is placed, answered, refused, counted."""

import pytest
from tests.netsim import frames
from tests.netsim.pair import (
    FLUSH_ERR,
    LOC_LEN_ERR,
    LOC_PROT_ERR,
    READ,
    RECV,
    REM_ACCESS_ERR,
    REM_INV_REQ_ERR,
    REM_OP_ERR,
    REMOTE_READ,
    REMOTE_WRITE,
    RETRY_EXC_ERR,
    SIGNALED,
    SOLICITED,
    SUCCESS,
    WR_CAS,
    WR_FAA,
    WR_READ,
    WR_SEND,
    WR_SEND_IMM,
    WR_WRITE,
    WR_WRITE_IMM,
    Pair,
    dropping,
)
from tests.netsim.sim import (
    ERR,
    MS,
    RTR,
    RTS,
    SECOND,
    TIMEOUT_NS,
    US,
    Sim,
    connect,
    move,
)
from tests.netsim.sim import REMOTE_READ as CAN_READ

from softverbs.core.base.limits import Options
from softverbs.core.queues.wr import SGE, RecvWR, SendWR
from softverbs.core.transport.address import AddressVector

QP_FATAL, QP_REQ_ERR, QP_ACCESS_ERR, COMM_EST = 1, 2, 3, 4
RECV_OP, RECV_IMM_OP = 128, 129
WITH_IMM, WITH_INV = 2, 8
DATA = bytes(range(256)) * 64


def naks(pair: Pair) -> list[tuple[int, int]]:
    """(syndrome, PSN) of every NAK that b has sent."""
    sent = pair.sent(pair.b, frames.ACKNOWLEDGE)
    return [(frames.syndrome(frame), frames.psn(frame)) for frame in sent if frames.syndrome(frame) & frames.KIND]


# -- duplicates


def test_atomic_is_performed_once_however_often_it_is_asked_for() -> None:
    with Pair() as pair:
        pair.b.memory.put(0, (100).to_bytes(8, "little"))
        pair.rule = dropping(frames.ATOMIC_ACKNOWLEDGE, times=3)
        pair.a.post(WR_FAA, 0x40, 8, 0, add=7)
        assert pair.a.status() == SUCCESS
        assert pair.a.memory.word(0x40) == 100
        assert pair.b.memory.word(0) == 107
        assert pair.b.count(REMOTE_READ) == (1, 0)
        answers = pair.sent(pair.b, frames.ATOMIC_ACKNOWLEDGE)
        assert len(answers) == 4
        assert len(set(answers)) == 1, "the answer of the first time"
        assert pair.b.node.stats()["duplicates"] == 3


def test_atomics_are_remembered_as_many_as_may_be_outstanding() -> None:
    with Pair(max_rd_atomic=4, max_dest_rd_atomic=4) as pair:
        pair.rule = dropping(frames.ATOMIC_ACKNOWLEDGE, times=4)
        for number in range(4):
            pair.a.post(WR_FAA, 0x40 + 8 * number, 8, 0, add=1)
        assert [wc.status for wc in pair.a.wait(4)] == [SUCCESS] * 4
        assert [pair.a.memory.word(0x40 + 8 * number) for number in range(4)] == [0, 1, 2, 3]
        assert pair.b.memory.word(0) == 4


def test_compare_and_swap_is_answered_with_the_value_of_the_first_time() -> None:
    with Pair() as pair:
        pair.rule = dropping(frames.ATOMIC_ACKNOWLEDGE)
        pair.a.post(WR_CAS, 0x40, 8, 0, add=0, swap=5)
        pair.a.post(WR_CAS, 0x48, 8, 0, add=4, swap=6)
        assert [wc.status for wc in pair.a.wait(2)] == [SUCCESS] * 2
        assert (pair.a.memory.word(0x40), pair.a.memory.word(0x48), pair.b.memory.word(0)) == (0, 5, 5)


def test_duplicate_write_is_acknowledged_and_not_placed() -> None:
    with Pair() as pair:
        pair.a.memory.put(0, b"new")
        pair.rule = dropping(frames.ACKNOWLEDGE)
        pair.a.post(WR_WRITE, 0, 3, 0)
        pair.sim.run_for(MS)
        assert pair.b.memory.at(0, 3) == b"new"
        pair.b.memory.put(0, b"own")
        assert pair.a.status() == SUCCESS
        assert pair.b.memory.at(0, 3) == b"own"
        assert pair.b.count(REMOTE_WRITE) == (1, 0)


def test_duplicate_send_takes_no_second_receive() -> None:
    with Pair() as pair:
        pair.b.receive(0, 8, wr_id=1)
        pair.b.receive(8, 8, wr_id=2)
        pair.rule = dropping(frames.ACKNOWLEDGE, times=2)
        pair.a.post(WR_SEND, 0, 8)
        assert pair.a.status() == SUCCESS
        assert [wc.wr_id for wc in pair.b.polled()] == [1]
        assert pair.b.count(RECV) == (1, 0)


def test_duplicate_read_reads_again_and_counts_once() -> None:
    with Pair() as pair:
        pair.b.memory.put(0, b"before")
        pair.rule = dropping(frames.RESPONSE_ONLY)
        pair.a.post(WR_READ, 0x40, 6, 0)
        pair.sim.run_for(MS)
        pair.b.memory.put(0, b"behind")
        assert pair.a.status() == SUCCESS
        assert pair.a.memory.at(0x40, 6) == b"behind"
        assert pair.b.count(REMOTE_READ) == (1, 0)


@pytest.mark.parametrize("most", [1, 2])
def test_late_duplicate_of_an_answered_read_takes_no_room(most: int) -> None:
    """The network repeats a READ request long after it was answered, in one batch with as many new ones as may be."""
    with Pair(max_rd_atomic=most, max_dest_rd_atomic=most) as pair:
        pair.b.memory.put(0, DATA)
        for turn in range(5):
            for _ in range(most):
                pair.a.post(WR_READ, 0x4000, 100, turn)
            assert [wc.status for wc in pair.a.wait(most)] == [SUCCESS] * most
            old = pair.sent(pair.a, frames.READ_REQUEST)[-most:]
            pair.rule = lambda frame, old=old: [*old, frame] if frame[0] == frames.READ_REQUEST else None
            for _ in range(most):
                pair.a.post(WR_FAA if turn % 2 else WR_READ, 0x4000, 8, 0x400, add=1)
            assert [wc.status for wc in pair.a.wait(most)] == [SUCCESS] * most
            pair.rule = None
        assert pair.b.count(REMOTE_READ) == (10 * most, 0)


def test_duplicate_read_does_not_cancel_the_answers_of_later_ones() -> None:
    with Pair() as pair:
        pair.b.memory.put(0, DATA)
        pair.a.post(WR_READ, 0x4000, 100, 0)
        assert pair.a.status() == SUCCESS
        old = pair.sent(pair.a, frames.READ_REQUEST)[0]
        pair.rule = lambda frame: [frame, old] if frame[0] == frames.READ_REQUEST else None
        pair.a.post(WR_READ, 0x4000, 100, 100)
        assert pair.a.status() == SUCCESS
        assert pair.sim.now == SECOND, "it was answered only after a time-out"


def test_late_duplicate_of_a_read_whose_memory_is_gone_does_not_hurt() -> None:
    with Pair() as pair:
        other = pair.b.node.region(pair.b.pd, 64, iova=0x7000000)
        pair.a.post(WR_READ, 0, 8, 0x7000000 - pair.b.memory.iova, rkey=other.key)
        assert pair.a.status() == SUCCESS
        other.deregister()
        pair.inject(pair.a, pair.sent(pair.a)[0][:-4])
        assert pair.b.node.stats()["duplicates"] == 1
        assert pair.b.qp.state == RTS
        pair.a.post(WR_WRITE, 0, 8, 0)
        assert pair.a.status() == SUCCESS
        assert naks(pair) == []


def test_duplicates_that_ask_for_something_else_are_ignored() -> None:
    """A READ of another range or an atomic under the PSN of a READ: no answer."""
    with Pair() as pair:
        pair.b.memory.put(0, DATA)
        pair.a.post(WR_READ, 0x4000, 100, 0)
        pair.a.post(WR_FAA, 0x4000, 8, 0x800, add=1)
        assert len(pair.a.wait(2)) == 2
        before = len(pair.sent(pair.b))
        b = pair.b
        base, key = b.memory.iova, b.memory.key
        for va, rkey, length in ((base + 4, key, 100), (base, key + 1, 100), (base, key, 101), (base, key, 0)):
            header = frames.put_bth(frames.READ_REQUEST, b.qp.qp_num, 0x1000)
            pair.inject(pair.a, header + frames.put_reth(va, rkey, length))
        pair.inject(pair.a, frames.put_bth(frames.FETCH_ADD, b.qp.qp_num, 0x1000) + bytes(28))
        request = frames.put_bth(frames.READ_REQUEST, b.qp.qp_num, 0x1001)
        pair.inject(pair.a, request + frames.put_reth(base + 0x800, key, 8))
        request = frames.put_bth(frames.READ_REQUEST, b.qp.qp_num, 0x0F00)
        pair.inject(pair.a, request + frames.put_reth(base, key, 100))
        assert len(pair.sent(pair.b)) == before
        assert b.memory.word(0x800) == int.from_bytes(DATA[:8], "little") + 1
        assert b.qp.state == RTS


# -- gaps


def test_one_nak_for_a_gap() -> None:
    with Pair(path_mtu=1) as pair:
        pair.rule = dropping(frames.WRITE_FIRST)
        pair.a.post(WR_WRITE, 0, 256 * 10, 0)
        assert pair.a.status() == SUCCESS
        assert naks(pair) == [(frames.NAK_SEQUENCE, 0x1000)]


def test_a_gap_that_closes_by_itself_is_not_reported() -> None:
    """Two packets change places within what is received at once."""
    with Pair(path_mtu=1) as pair:
        held: list[bytes] = []

        def swap(frame: bytes) -> list[bytes] | None:
            if frame[0] == frames.WRITE_FIRST:
                held.append(frame)
                return []
            return [frame, held.pop()] if held else None

        pair.rule = swap
        pair.a.post(WR_WRITE, 0, 512, 0)
        assert pair.a.status() == SUCCESS
        assert naks(pair) == []


def test_a_new_gap_is_reported_anew() -> None:
    with Pair(path_mtu=1) as pair:
        pair.rule = dropping(frames.WRITE_FIRST, frames.WRITE_LAST, times=1)
        for _ in range(2):
            pair.a.post(WR_WRITE, 0, 256 * 3, 0)
            pair.a.post(WR_WRITE, 0, 8, 0)
            assert len(pair.a.wait(2)) == 2
            pair.rule = dropping(frames.WRITE_LAST)
        assert naks(pair) == [(frames.NAK_SEQUENCE, 0x1000), (frames.NAK_SEQUENCE, 0x1006)]


# -- RNR


@pytest.mark.parametrize("opcode", [WR_SEND, WR_SEND_IMM, WR_WRITE_IMM])
@pytest.mark.parametrize("length", [0, 100, 1000])
def test_rnr(opcode: int, length: int) -> None:
    """A SEND needs its receive at its first packet, a WRITE with immediate at its last."""
    with Pair(path_mtu=1) as pair:
        pair.a.memory.put(0, DATA)
        pair.a.post(opcode, 0, length, 0x4000, imm=0x1234)
        pair.sim.run_for(MS // 2)
        late = 3 if length == 1000 and opcode == WR_WRITE_IMM else 0
        assert naks(pair) == [(frames.RNR | 12, 0x1000 + late)]
        assert pair.b.count(REMOTE_WRITE) == (0, 0)
        pair.b.receive(0x4000, 1000)
        assert pair.a.status() == SUCCESS
        assert pair.b.memory.at(0x4000, length) == DATA[:length]
        wc = pair.b.polled()[0]
        assert wc.opcode == (RECV_IMM_OP if opcode == WR_WRITE_IMM else RECV_OP)
        assert wc.byte_len == length
        if opcode != WR_SEND:
            assert (wc.imm_data, wc.wc_flags) == (0x1234, WITH_IMM)
        assert pair.b.count(RECV) == (1, 0)
        assert pair.b.count(REMOTE_WRITE) == (int(opcode == WR_WRITE_IMM), 0)


def test_immediate_without_a_receive_as_efa_has_it() -> None:
    with Pair(options=Options(imm="efa")) as pair:
        pair.a.post(WR_WRITE_IMM, 0, 8, 0, imm=5, flags=SIGNALED | SOLICITED)
        assert pair.a.status() == SUCCESS
        wc = pair.b.polled()[0]
        assert (wc.opcode, wc.byte_len, wc.imm_data, wc.wc_flags) == (RECV_IMM_OP, 8, 5, WITH_IMM)
        assert pair.b.count(RECV) == (0, 0)
        assert pair.b.count(REMOTE_WRITE) == (1, 0)


# -- receives


def test_receive_is_scattered() -> None:
    with Pair(path_mtu=1) as pair:
        pair.a.memory.put(0, DATA)
        parts = ((0x4000, 1), (0x5000, 0), (0x6000, 299), (0x7000, 300))
        pair.b.qp.post_recv(RecvWR(1, 4, [pair.b.sge(*part) for part in parts]))
        pair.a.post(WR_SEND, 0, 500)
        assert pair.a.status() == SUCCESS
        memory = pair.b.memory
        assert memory.at(0x4000, 2) == DATA[:1] + b"\0"
        assert memory.at(0x5000, 1) == b"\0"
        assert memory.at(0x6000, 300) == DATA[1:300] + b"\0"
        assert memory.at(0x7000, 201) == DATA[300:500] + b"\0"


@pytest.mark.parametrize(("size", "length"), [(0, 1), (99, 100), (600, 601), (300, 1000)])
def test_receive_is_too_small(size: int, length: int) -> None:
    with Pair(path_mtu=1) as pair:
        pair.a.memory.put(0, DATA)
        pair.b.receive(0x4000, size, wr_id=1)
        pair.b.receive(0x4000, size, wr_id=2)
        pair.a.post(WR_SEND, 0, length)
        assert pair.a.status() == REM_INV_REQ_ERR
        first, second = pair.b.polled()
        assert (first.wr_id, first.status) == (1, LOC_LEN_ERR)
        assert str(size) in first.reason
        assert (second.wr_id, second.status) == (2, FLUSH_ERR)
        assert pair.b.count(RECV) == (0, 2)
        assert pair.b.memory.at(0x4000 + size, 2000) == bytes(2000)
        assert pair.b.node.events()[-1][0] == QP_FATAL


def test_receive_without_the_right_to_write() -> None:
    with Pair() as pair:
        own = pair.b.node.region(pair.b.pd, 64, access=CAN_READ, iova=0x999000)
        pair.b.qp.post_recv(RecvWR(1, 1, [SGE(0x999000, 8, own.key)]))
        pair.a.post(WR_SEND, 0, 8)
        assert pair.a.status() == REM_OP_ERR
        wc = pair.b.polled()[0]
        assert wc.status == LOC_PROT_ERR
        assert "LOCAL_WRITE" in wc.reason
        assert own.at(0, 8) == bytes(8)


def test_solicited_is_the_last_packets_affair() -> None:
    with Pair(path_mtu=1) as pair:
        pair.b.receive(0, 1000)
        pair.a.post(WR_SEND, 0, 1000, flags=SIGNALED | SOLICITED)
        assert pair.a.status() == SUCCESS
        assert [frames.bth(frame).solicited for frame in pair.sent(pair.a)] == [False, False, False, True]


def test_err_flushes_every_receive_once_in_order() -> None:
    with Pair() as pair:
        for number in range(5):
            pair.b.receive(0, 8, wr_id=number)
        move(pair.b.qp, ERR)
        pair.b.receive(0, 8, wr_id=5)
        assert [(wc.wr_id, wc.status) for wc in pair.b.polled()] == [(number, FLUSH_ERR) for number in range(6)]
        assert pair.b.count(RECV) == (0, 6)


# -- READs


@pytest.mark.parametrize("length", [0, 1, 255, 256, 257, 512, 5000])
def test_read_of_any_length(length: int) -> None:
    with Pair(path_mtu=1) as pair:
        pair.b.memory.put(1, DATA)
        pair.a.post(WR_READ, 0x8001, length, 1)
        assert pair.a.status() == SUCCESS
        assert pair.a.memory.at(0x8000, length + 2) == b"\0" + DATA[:length] + b"\0"
        assert len(pair.sent(pair.b)) == max(1, -(-length // 256))


def test_reads_are_paced() -> None:
    """Nothing on UDP would slow a responder: after the first burst come 4 bytes per ns at most."""
    size = 1 << 20
    with Pair(size=2 * size) as pair:
        pair.b.memory.put(0, DATA * (size // len(DATA)))
        pair.a.post(WR_READ, size, size, 0)
        pair.sim.run_for(0)
        first = len(pair.sent(pair.b))
        assert first < 300
        assert pair.sim.now < pair.b.node.port.deadline() < SECOND + MS
        assert pair.a.status() == SUCCESS
        assert pair.a.memory.at(size, size) == pair.b.memory.at(0, size)
        assert pair.sim.now - SECOND >= (size - (256 << 10)) // 5
        assert len(pair.sent(pair.b)) == 1024
        assert pair.b.count(REMOTE_READ) == (1, 0)


def test_an_acknowledgement_waits_for_the_answers_before_it() -> None:
    size = 1 << 20
    with Pair(size=2 * size) as pair:
        pair.a.post(WR_READ, size, size, 0)
        pair.a.post(WR_WRITE, 0, 8, 0)
        assert [wc.opcode for wc in pair.a.wait(2)] == [2, 1]
        assert [frame[0] for frame in pair.sent(pair.b)][-2:] == [frames.RESPONSE_LAST, frames.ACKNOWLEDGE]
        assert pair.a.node.stats()["retransmissions"] == 0


def test_region_deregistered_amid_a_read() -> None:
    size = 1 << 20
    with Pair(size=2 * size) as pair:
        other = pair.b.node.region(pair.b.pd, size, iova=0x7000000)
        pair.a.post(WR_READ, size, size, 0x7000000 - pair.b.memory.iova, rkey=other.key)
        pair.sim.run_for(10 * US)
        other.deregister()
        wc = pair.a.wait()[0]
        assert wc.status == REM_ACCESS_ERR
        assert pair.b.qp.state == ERR
        assert pair.b.count(REMOTE_READ) == (0, 0)
        assert pair.a.count(READ) == (0, 1)


def test_region_deregistered_before_it_is_read_ends_with_one_nak() -> None:
    """READs that came behind it are not answered, which would look like a loss and cost a retry."""
    with Pair(retry_cnt=0) as pair:
        other = pair.b.node.region(pair.b.pd, 64, iova=0x7000000)
        pair.a.post(WR_READ, 0, 8, 0x7000000 - pair.b.memory.iova, rkey=other.key)
        for _ in range(2):
            pair.a.post(WR_READ, 0, 8, 0)
        pair.a.node.device.progress()
        pair.b.node.link.receive(pair.sim.now, pair.b.node.port)
        other.deregister()
        assert [wc.status for wc in pair.a.wait(3)] == [REM_ACCESS_ERR, FLUSH_ERR, FLUSH_ERR]


def test_answers_are_still_sent_after_a_refusal() -> None:
    """READs before the bad request are answered though the queue pair is in ERR by then."""
    with Pair() as pair:
        pair.b.memory.put(0, DATA)
        for number in range(3):
            pair.a.post(WR_READ, 0x4000 + 100 * number, 100, 100 * number)
        pair.a.post(WR_WRITE, 0, 8, 0, rkey=0)
        assert [wc.status for wc in pair.a.wait(4)] == [SUCCESS] * 3 + [REM_ACCESS_ERR]
        assert pair.a.memory.at(0x4000, 300) == DATA[:300]


# -- words


@pytest.mark.parametrize(
    ("says", "near", "expected"),
    [("always", False, True), ("local", True, True), ("local", False, False), ("never", True, False)],
)
def test_reason_is_told_to_those_who_may_know(says: str, near: bool, expected: bool) -> None:
    with Pair(options=Options(explain=says)) as pair:
        for end in (pair.a, pair.b):
            move(end.qp, 0)
            end.node.link.inner.one_host = near
        pair.connect()
        pair.a.post(WR_WRITE, 0, 8, 0, rkey=0xBAD00)
        wc = pair.a.wait()[0]
        assert ("not registered" in wc.reason) == expected
        assert ("no reason" in wc.reason) != expected


def test_words_are_made_printable() -> None:
    with Pair() as pair:
        pair.rule = dropping(frames.WRITE_ONLY)
        pair.a.post(WR_WRITE, 0, 8, 0)
        pair.sim.run_for(0)
        words = b"\x1b[31mred\n\xff\xfe" + bytes(5)
        pair.inject(pair.b, frames.put_bth(frames.OPCODES["EXPLAIN"], pair.a.qp.qp_num, 0x1000) + words)
        pair.inject(
            pair.b, frames.put_bth(frames.ACKNOWLEDGE, pair.a.qp.qp_num, 0x1000) + frames.put_aeth(frames.NAK_ACCESS)
        )
        reason = pair.a.wait()[0].reason
        assert reason.isprintable()
        assert "red" in reason


# -- states and neighbours


def test_rtr_receives_and_says_that_it_is_connected() -> None:
    with Sim() as sim:
        nodes = [sim.node(seed=seed) for seed in (1, 2)]
        ends = []
        for node in nodes:
            pd = node.pd()
            cq = node.cq()
            ends.append((node.qp(pd, cq), cq, node.region(pd, 4096)))
        (a, a_cq, a_memory), (b, b_cq, b_memory) = ends
        connect(a, b, *nodes)
        b.modify({"qp_state": 1, "pkey_index": 0, "port_num": 1, "qp_access_flags": 0}, 1 | 8 | 16 | 32)
        values = {"qp_state": RTR, "ah_attr": AddressVector(nodes[0].gid), "path_mtu": 3, "dest_qp_num": a.qp_num,
                  "rq_psn": 0x1000, "max_dest_rd_atomic": 1, "min_rnr_timer": 1}  # fmt: skip
        b.modify(values, 1 | 1 << 7 | 1 << 8 | 1 << 12 | 1 << 15 | 1 << 17 | 1 << 20)
        b.post_recv(RecvWR(1, 1, [SGE(b_memory.iova, 8, b_memory.key)]))
        a.post_send(SendWR(2, 2, 1, sg=[SGE(a_memory.iova, 8, a_memory.key)]))
        sim.run_until(lambda: a_cq.count() == b_cq.count() == 1)
        assert [event for event, _ in nodes[1].events()] == [COMM_EST]


@pytest.mark.parametrize("state", [0, ERR])
def test_frames_to_a_queue_pair_that_cannot_take_them_are_dropped(state: int) -> None:
    with Pair(retry_cnt=1) as pair:
        move(pair.b.qp, state)
        pair.a.post(WR_WRITE, 0, 8, 0)
        assert pair.a.status() == RETRY_EXC_ERR
        assert pair.sim.now == SECOND + 2 * TIMEOUT_NS
        assert pair.b.node.stats()["dropped_qp_state"] == 2


def test_queue_pair_that_is_gone() -> None:
    with Pair(retry_cnt=0) as pair:
        pair.b.qp.close()
        pair.a.post(WR_WRITE, 0, 8, 0)
        assert pair.a.status() == RETRY_EXC_ERR
        assert pair.b.node.stats()["dropped_unknown_qp"] == 1


def test_queue_pair_connected_elsewhere_takes_nothing_from_its_own_port() -> None:
    """Within one port frames have no ICRC and no source address; still only the peer that was named may send them."""
    with Sim() as sim:
        node = sim.node(seed=3, bare=True)
        other = sim.node(seed=4)
        pd, cq = node.pd(), node.cq()
        memory = node.region(pd, 4096)
        intruder, victim = node.qp(pd, cq), node.qp(pd, cq)
        connect(intruder, victim, node, node, retry_cnt=0)
        connect(victim, intruder, node, other)
        wr = SendWR(1, WR_WRITE, 1, sg=[SGE(memory.iova, 8, memory.key)])
        wr.set_wr_rdma(memory.key, memory.iova + 64)
        intruder.post_send(wr)
        sim.run_until(lambda: cq.count() == 1)
        assert cq.poll(1)[0].status == RETRY_EXC_ERR
        assert node.stats()["dropped_source"] == 1


def test_both_ends_on_one_port() -> None:
    """The short cut: nothing passes the link, there is no ICRC, and READs need no pace."""
    with Sim() as sim:
        node = sim.node(seed=3, bare=True)
        pd, cq = node.pd(), node.cq()
        memory = node.region(pd, 2 << 20)
        memory.put(0, DATA * 64)
        a, b = node.qp(pd, cq), node.qp(pd, cq)
        connect(a, b, node, node)
        connect(b, a, node, node)
        wr = SendWR(1, WR_READ, 1, sg=[SGE(memory.iova + (1 << 20), 1 << 20, memory.key)])
        wr.set_wr_rdma(memory.key, memory.iova)
        a.post_send(wr)
        sim.run_until(lambda: cq.count() == 1)
        assert cq.poll(1)[0].status == SUCCESS
        assert memory.at(1 << 20, 1 << 20) == memory.at(0, 1 << 20) == DATA * 64
        assert node.link.stats()["frames_sent"] == 0
