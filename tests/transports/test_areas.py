# SPDX-License-Identifier: MIT
"""Cases of google's rdma-unit-test that no other test of ours has (docs/rdma-unit-test.md)."""

import errno
from random import Random
from types import SimpleNamespace

import pytest
from tests.netsim.pair import (
    FLUSH_ERR,
    MW_BIND_ERR,
    REM_ACCESS_ERR,
    REM_INV_REQ_ERR,
    RETRY_EXC_ERR,
    SUCCESS,
    WR_BIND,
    WR_FAA,
    WR_LOCAL_INV,
    WR_READ,
    WR_SEND,
    WR_SEND_INV,
    WR_WRITE,
    WR_WRITE_IMM,
    End,
    Pair,
)
from tests.netsim.sim import CAP, ERR, QPT_RC, QPT_UC, QPT_UD, RTS, Sim, connect, move

from softverbs.core.base.errors import PyverbsRDMAError
from softverbs.core.base.limits import Options
from softverbs.core.queues.wr import RecvWR, SendWR

QP_REQ_ERR, QP_ACCESS_ERR = 2, 3


# -- queue pairs


def test_numbers_come_again_late_and_never_two_at_once() -> None:
    """A number that was just given back is not the next: late packets of the old queue pair find nothing."""
    with Sim() as sim:
        node = sim.node()
        pd, cq = node.pd(), node.cq()
        kept = [node.qp(pd, cq) for _ in range(5)]
        seen: list[int] = []
        for _ in range(600):
            qp = node.qp(pd, cq)
            seen.append(qp.qp_num)
            assert qp.qp_num not in {other.qp_num for other in kept}
            qp.close()
        assert len(set(seen)) >= 200
        assert all(len(set(seen[start : start + 100])) == 100 for start in range(0, 500, 100))


@pytest.mark.parametrize("kind", [QPT_RC, QPT_UC, QPT_UD])
def test_queues_of_no_size(kind: int) -> None:
    with Sim() as sim:
        node = sim.node()
        end = End(node, 64, (0, 0, 0, 0, 0), kind)
        end.peer = end
        if kind == QPT_UD:
            connect(end.qp, None, node, None)
        else:
            connect(end.qp, end.qp, node, node)
        for post in (lambda: end.post(WR_SEND), lambda: end.receive()):
            with pytest.raises(PyverbsRDMAError) as caught:
                post()
            assert caught.value.errno == errno.ENOMEM


def test_a_list_that_bites_its_tail() -> None:
    """It is posted until the queue is full."""
    with Pair(cap=(8, 8, 1, 1, 0), shared=True) as pair:
        receive = RecvWR(1)
        receive.next_wr = receive
        with pytest.raises(PyverbsRDMAError) as caught:
            pair.b.srq.post_recv(receive)  # type: ignore[union-attr]
        assert caught.value.errno == errno.ENOMEM
        assert pair.b.srq.ring.count() == 256  # type: ignore[union-attr]
        with pytest.raises(PyverbsRDMAError) as caught:
            pair.a.qp.post_recv(receive)
        assert caught.value.errno == errno.ENOMEM
        send = SendWR(1, WR_WRITE)
        send.next_wr = send
        with pytest.raises(PyverbsRDMAError) as caught:
            pair.a.qp.post_send(send)
        assert caught.value.errno == errno.ENOMEM
        pair.sim.settle()
        assert pair.a.done() == [(1, SUCCESS)] * 8


def test_hundreds_of_connections_at_once() -> None:
    with Sim() as sim:
        node, peer = sim.node(seed=1), sim.node(seed=2)
        here, there = (node.pd(), node.cq()), (peer.pd(), peer.cq())
        near, far = node.region(here[0], 1 << 16), peer.region(there[0], 1 << 16)
        near.put(0, Random(1).randbytes(1 << 16))
        ends = []
        for _ in range(150):
            a = End(node, 0, (32, 1, 1, 1, 0), pd=here[0], cq=here[1], memory=near, counted=False)
            b = End(peer, 0, (1, 1, 1, 1, 0), pd=there[0], cq=there[1], memory=far, counted=False)
            a.peer, b.peer = b, a
            for end in (a, b):
                connect(end.qp, end.peer.qp, end.node, end.peer.node)
            ends.append(a)
        for turn in range(10):
            for index, end in enumerate(ends):
                end.post(WR_WRITE, 32 * (10 * index + turn), 32, 32 * (10 * index + turn), flags=2 * (turn == 9))
        sim.run_until(lambda: here[1].count() == 150)
        assert {wc.status for wc in here[1].poll(200)} == {SUCCESS}
        assert far.at(0, 48000) == near.at(0, 48000)


def test_the_results_of_a_read_are_the_addresses_of_the_next() -> None:
    """A list in remote memory is followed to its end; what a READ has brought is there with its completion."""
    with Pair() as pair:
        places = Random(3).sample(range(0, 0x8000, 8), 50)
        for place, following in zip(places, [*places[1:], 0xFFFF], strict=True):
            pair.b.put(place, following.to_bytes(8, "little"))
        at, steps = places[0], 0
        while at != 0xFFFF:
            pair.a.post(WR_READ, 0, 8, at)
            assert pair.a.status() == SUCCESS
            at, steps = pair.a.memory.word(0), steps + 1
        assert steps == 50


@pytest.mark.parametrize(
    ("opcode", "wrong", "status", "event"),
    [
        (WR_READ, "key", REM_ACCESS_ERR, QP_ACCESS_ERR), (WR_WRITE, "key", REM_ACCESS_ERR, QP_ACCESS_ERR),
        (WR_FAA, "key", REM_ACCESS_ERR, QP_ACCESS_ERR), (WR_FAA, "address", REM_INV_REQ_ERR, QP_REQ_ERR),
    ],
)  # fmt: skip
def test_the_events_of_a_target_that_refuses(opcode: int, wrong: str, status: int, event: int) -> None:
    with Pair() as pair:
        wr = pair.a.wr(opcode, 0, 8, 0)
        wr.set_wr_atomic(
            pair.b.memory.key ^ (0x100 if wrong == "key" else 0), pair.b.memory.iova + (wrong == "address"), 1
        )
        pair.a.qp.post_send(wr)
        assert pair.a.status() == status
        assert pair.b.node.events()[-1:] == [(event, pair.b.qp)]
        assert pair.a.node.events() == []


def test_flushed_and_failed_completions_of_one_poll() -> None:
    """The one that failed, then everything behind it, on both ends, in one go."""
    with Pair() as pair:
        for number in range(5):
            pair.b.receive(0, 8, wr_id=100 + number)
        pair.a.post(WR_WRITE, 0, 8, 0, rkey=1, wr_id=1)
        for number in range(2, 6):
            pair.a.post(WR_SEND, 0, 8, wr_id=number)
        pair.a.wait(5)
        pair.sim.settle()
        assert [status for _, status in pair.b.done()] == [FLUSH_ERR] * 5
        assert pair.a.qp.state == pair.b.qp.state == ERR


# -- types that do not fit each other


@pytest.mark.parametrize("kind", [QPT_RC, QPT_UC])
def test_a_connection_to_a_ud_queue_pair(kind: int) -> None:
    """It drops what is not a datagram; a reliable initiator gives up."""
    with Sim() as sim:
        a, b = End(sim.node(), 4096, CAP, kind), End(sim.node(), 4096, CAP, QPT_UD)
        a.peer, b.peer = b, a
        connect(a.qp, b.qp, a.node, b.node, retry_cnt=1)
        connect(b.qp, None, b.node, None)
        b.receive(0, 200)
        a.post(WR_SEND, 0, 8)
        assert a.status() == (RETRY_EXC_ERR if kind == QPT_RC else SUCCESS)
        sim.settle()
        assert b.done() == [] and b.qp.state == RTS
        assert b.node.stats()["dropped_transport"] >= 1


# -- datagrams


def test_datagrams_after_a_burst() -> None:
    """More than anybody can take; what comes when there are receives again arrives."""
    with Pair(1 << 20, (4096, 64, 1, 1, 0), kind=QPT_UD) as pair:
        for number in range(64):
            pair.b.receive(0x1000 * number, 0x1000)
        for _ in range(2000):
            pair.a.post(WR_SEND, 0, 2000, flags=0)
        pair.a.post(WR_SEND, 0, 2000, wr_id=1)
        assert pair.a.wait()[-1].wr_id == 1
        pair.sim.settle()
        assert len(pair.b.polled()) == 64
        assert pair.b.node.stats()["dropped_no_receive"] == 2001 - 64
        pair.b.receive(0, 0x1000, wr_id=7)
        pair.a.post(WR_SEND, 0, 2000)
        pair.sim.settle()
        assert pair.b.done() == [(7, SUCCESS)]


def test_unsignaled_datagrams_without_a_receive() -> None:
    with Pair(kind=QPT_UD) as pair:
        for number in range(10):
            pair.a.post(WR_SEND, 0, 8, flags=2 * (number == 9), wr_id=number)
        pair.sim.settle()
        assert pair.a.done() == [(9, SUCCESS)]


# -- shared receive queues


def test_a_write_with_immediate_data_and_an_srq_of_another_domain() -> None:
    """The bytes are the queue pair's affair, the receive is only taken: its memory is not looked at."""
    with Sim() as sim:
        a, node = End(sim.node(), 4096), sim.node()
        pd, other = node.pd(), node.pd()
        srq = node.srq(other)
        b = End(node, 4096, pd=pd, srq=srq)
        a.peer, b.peer = b, a
        for end in (a, b):
            connect(end.qp, end.peer.qp, end.node, end.peer.node)
        srq.post_recv(RecvWR(5, 1, [b.sge(0, 64)]))
        a.put(0, b"12345678")
        a.post(WR_WRITE_IMM, 0, 8, 0x100, imm=3)
        assert a.status() == SUCCESS
        sim.settle()
        assert (b.done(), b.at(0x100, 8)) == ([(5, SUCCESS)], b"12345678")


# -- memory windows


class Windows(Pair):
    """``b`` binds windows to its memory; ``c`` and ``d`` are another connection between the same domains."""

    def __init__(self, kind: int) -> None:
        super().__init__()
        self.c, self.d = (End(end.node, 0, pd=end.pd, memory=end.memory) for end in (self.a, self.b))
        self.c.peer, self.d.peer = self.d, self.c
        for end in (self.c, self.d):
            connect(end.qp, end.peer.qp, end.node, end.peer.node)
        self.window = self.b.node.port.regions.allocate_window(self.b.pd, kind)

    def bind(self, end: End, at: int = 0, flags: int = 2) -> int:
        info = SimpleNamespace(mr=self.b.memory.mr, addr=self.b.memory.iova + at, length=64, mw_access_flags=6)
        wr = SendWR(7, WR_BIND, send_flags=flags)
        wr.set_bind_wr(self.window, info)
        end.qp.post_send(wr)
        return int(wr.rkey)

    def write(self, end: End, key: int) -> int:
        end.post(WR_WRITE, 0, 8, 0, rkey=key)
        return end.status()


@pytest.mark.parametrize("kind", [1, 2])
def test_the_queue_pair_that_bound_a_window_is_destroyed(kind: int) -> None:
    """One of type 1 goes on to serve its domain; one of type 2 serves nobody, not even a later queue pair."""
    with Windows(kind) as pair:
        key = pair.bind(pair.b)
        assert pair.b.status() == SUCCESS
        pair.b.qp.close()
        status = pair.write(pair.c, key)
        assert status == (SUCCESS if kind == 1 else REM_ACCESS_ERR)


def test_a_window_moves_to_another_queue_pair() -> None:
    with Windows(2) as pair:
        first = pair.bind(pair.b)
        assert pair.b.status() == SUCCESS
        pair.b.qp.post_send(SendWR(1, WR_LOCAL_INV, imm_data=first))
        assert pair.b.status() == SUCCESS
        second = pair.bind(pair.d)
        assert pair.d.status() == SUCCESS and second != first
        assert pair.write(pair.c, second) == SUCCESS
        assert pair.write(pair.a, second) == REM_ACCESS_ERR


def test_unsignaled_binds_and_invalidations() -> None:
    """No completion where they succeed, one where they do not."""
    with Windows(2) as pair:
        for _ in range(3):
            key = pair.bind(pair.b, flags=0)
            pair.b.qp.post_send(SendWR(1, WR_LOCAL_INV, imm_data=key, send_flags=0))
        pair.bind(pair.b, at=-8, flags=0)
        assert [(wc.wr_id, wc.status) for wc in pair.b.wait()] == [(7, MW_BIND_ERR)]
    with Windows(2) as pair:
        pair.b.qp.post_send(SendWR(4, WR_LOCAL_INV, imm_data=0xABC00, send_flags=0))
        (wc,) = pair.b.wait()
        assert wc.wr_id == 4 and wc.status not in (SUCCESS, FLUSH_ERR)


@pytest.mark.parametrize("kind", [1, 2])
def test_a_bind_on_a_queue_pair_in_error_is_flushed(kind: int) -> None:
    with Windows(kind) as pair:
        before = pair.window.rkey
        move(pair.b.qp, ERR)
        pair.bind(pair.b)
        assert pair.b.done() == [(7, FLUSH_ERR)]
        assert pair.window.rkey == before and not pair.window.valid


def test_an_invalidation_without_a_receive_waits_for_it() -> None:
    with Windows(2) as pair:
        key = pair.bind(pair.b)
        pair.b.wait()
        pair.a.post(WR_SEND_INV, 0, 0, imm=key)
        pair.sim.run_for(10_000)
        assert pair.window.valid
        pair.b.receive(0, 8)
        assert pair.a.status() == SUCCESS and not pair.window.valid


def test_reads_of_one_connection_and_a_window_that_closes_between_them() -> None:
    """Those before the invalidation bring the bytes, those after it nothing."""
    with Windows(2) as pair:
        pair.b.put(0, b"s" * 64)
        key = pair.bind(pair.b)
        pair.b.wait()
        pair.b.receive(0x100, 8)
        for number in range(3):
            pair.a.post(WR_READ, 0x1000 * number, 64, 0, rkey=key, wr_id=number)
        pair.a.post(WR_SEND_INV, 0, 0, imm=key, flags=3, wr_id=3)
        pair.a.post(WR_READ, 0x4000, 64, 0, rkey=key, wr_id=4)
        found = [(wc.wr_id, wc.status) for wc in pair.a.wait(5)]
        assert found == [(0, 0), (1, 0), (2, 0), (3, 0), (4, REM_ACCESS_ERR)]
        assert pair.a.at(0x2000, 64) == b"s" * 64 and pair.a.at(0x4000, 64) == bytes(64)


# -- limits of the device


def test_so_many_domains_windows_and_regions_at_once() -> None:
    with Sim() as sim:
        node = sim.node(options=Options(max_pd=4, max_mr=6, max_mw=3))
        domains = [node.pd() for _ in range(4)]
        with pytest.raises(PyverbsRDMAError) as caught:
            node.pd()
        assert caught.value.errno == errno.ENOMEM
        windows = [node.port.regions.allocate_window(domains[0], 2) for _ in range(3)]
        with pytest.raises(PyverbsRDMAError) as caught:
            node.port.regions.allocate_window(domains[0], 2)
        assert caught.value.errno == errno.ENOMEM
        assert len({window.rkey for window in windows}) == 3
