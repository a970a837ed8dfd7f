# SPDX-License-Identifier: MIT
"""What ends while something is under way: a send queue that drains, an SRQ that goes, a link, memory that is short."""

import contextlib
import resource
import struct
from pathlib import Path

import pytest
from tests.forked import in_child
from tests.netsim import frames
from tests.netsim.pair import (
    ERR,
    REMOTE_READ,
    RETRY_EXC_ERR,
    SUCCESS,
    WR_ATOMIC_WRITE,
    WR_FLUSH,
    WR_READ,
    WR_WRITE,
    End,
    Pair,
    dropping,
)
from tests.netsim.sim import QPT_RC, QPT_UC, QPT_UD, QPT_XRC_SEND, RESET, RTS, SQD, Sim, connect, move

from softverbs.core.base.limits import Options
from softverbs.core.memory.raw import load16
from softverbs.core.queues.wr import SGE, SendWR
from softverbs.core.transport.address import AddressVector
from softverbs.core.transport.qp_states import ACCESS_FLAGS, AV, EN_SQD_ASYNC_NOTIFY, STATE

SQ_DRAINED = 5
INLINE, SIGNALED = 8, 2
XRC = 0xA0
EXPLAIN = 0xC0
GROUP = bytes(10) + b"\xff\xff\xef\1\1\1"
LONG = 400_000
SQ_NUM_SGE = 10  # offset in a slot of the send queue (core/queues/rings.py)


def drain(end: End) -> None:
    """To SQD, with an event when it is drained."""
    end.qp.modify({"qp_state": SQD, "en_sqd_async_notify": 1}, STATE | EN_SQD_ASYNC_NOTIFY)


def drained(end: End) -> int:
    return [event for event, _ in end.node.events()].count(SQ_DRAINED)


@pytest.mark.parametrize("kind", [QPT_RC, QPT_UC])
def test_a_send_queue_is_drained_when_the_message_under_way_has_left_whole(kind: int) -> None:
    """IBA 10.3.1 (SQD): not where all that was sent of it is acknowledged, but more of it is to be sent."""
    with Pair(size=LONG, kind=kind, options=Options(window=4096)) as pair:
        a = pair.a
        a.post(WR_WRITE, 0, LONG, 0)
        a.post(WR_WRITE, 0, 100, 0)
        pair.sim.run_until(lambda: len(pair.wire) > 10)
        drain(a)
        assert not drained(a)
        assert a.qp.query()["sq_draining"] == 1
        events = 0
        while pair.sim.step():
            events += drained(a)
            assert events == a.cq.count(), "drained in the middle of a message"
        assert events == 1
        assert a.done() == [(0, SUCCESS)]
        assert a.qp.query()["sq_draining"] == 0
        move(a.qp, RTS)
        assert len(a.wait()) == 1


def test_nobody_hears_of_draining_once_the_queue_pair_goes_on() -> None:
    with Pair(size=LONG, options=Options(window=4096)) as pair:
        a = pair.a
        a.post(WR_WRITE, 0, LONG, 0)
        pair.sim.run_until(lambda: len(pair.wire) > 10)
        drain(a)
        move(a.qp, RTS)
        pair.sim.settle()
        assert a.done() == [(0, SUCCESS)]
        assert not drained(a)


def test_a_static_rate_and_the_pace_of_a_socket_wait_without_haste() -> None:
    """5 Gbit/s are about what UC allows itself: the simulator tells of a device that wants to be called without end."""
    with Pair(size=1 << 20, kind=QPT_UC) as pair:
        a = pair.a
        move(a.qp, SQD)
        a.qp.modify({"ah_attr": AddressVector(pair.b.node.gid, static_rate=5)}, AV)
        move(a.qp, RTS)
        for _ in range(4):
            a.post(WR_WRITE, 0, 1 << 20, 0)
        steps = 0
        while pair.sim.step():
            steps += 1
        assert len(a.polled()) == 4
        assert steps < 6000


def test_inline_data_is_no_list_of_elements() -> None:
    """Nobody may read as many elements out of the slot as the inline data was gathered from."""
    with Pair(cap=(4, 4, 32, 1, 64)) as pair:
        a, b = pair.a, pair.b
        a.put(0, b"softverb")
        elements = [SGE(a.memory.iova, 0, a.memory.key)] * 31 + [a.sge(0, 8)]
        a.post(WR_ATOMIC_WRITE, to=16, sg=elements, flags=INLINE | SIGNALED)
        assert load16(a.qp.sends.ring.address + SQ_NUM_SGE) == 0
        assert a.status() == SUCCESS
        assert b.at(16, 8) == b"softverb"


def test_each_frame_that_a_port_that_is_down_does_not_send_is_counted() -> None:
    with Pair(kind=QPT_UC) as pair:
        a = pair.a
        a.node.port.set_state(False)
        a.post(WR_WRITE, 0, 7 * 1024, 0)
        pair.sim.settle()
        assert a.node.stats()["dropped_port_down"] == 7
        assert pair.wire == []


def test_what_a_target_took_from_a_queue_that_is_gone_counts_nowhere() -> None:
    """The SRQ of an XRC target may go while a message comes; its completion queue is not written to any more."""
    with Pair(kind=QPT_XRC_SEND) as pair:
        b = pair.b
        assert b.srq is not None
        srq, number = b.srq, b.qp.qp_num
        b.receive(0, 4096, wr_id=7)
        pair.inject(pair.a, frames.put_bth(XRC, number, 0x1000) + struct.pack(">I", srq.srq_num) + bytes(1024))
        pair.sim.settle()
        srq.close()
        before = b.cq.statistics()["completions"]
        pair.inject(pair.a, frames.put_bth(XRC | 2, number, 0x1001) + struct.pack(">I", srq.srq_num) + bytes(8))
        pair.sim.settle()
        assert b.qp.state == ERR
        assert b.cq.statistics()["completions"] == before


def test_a_member_of_a_group_can_be_destroyed_after_its_device_was_closed() -> None:
    with Sim() as sim:
        node = sim.node(bare=True)
        qp = node.qp(node.pd(), node.cq(), kind=QPT_UD)
        connect(qp, None, node, None)
        qp.attach_mcast(GROUP, 0)
        node.device.close()
        qp.close()
        assert qp.closed


def test_a_queue_pair_that_memory_is_short_for_is_not_there() -> None:
    """Where its making fails half way, the port does not know it: what looks at all of them goes on."""

    def starve() -> None:
        with Sim() as sim:
            node = sim.node(bare=True)
            pd, cq = node.pd(), node.cq()
            used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
            resource.setrlimit(resource.RLIMIT_AS, (used + (32 << 20), resource.RLIM_INFINITY))
            ballast: list[bytearray] = []
            with contextlib.suppress(MemoryError):
                while len(ballast) < 1000:
                    ballast.append(bytearray(8 << 20))
            with pytest.raises(MemoryError):
                node.qp(pd, cq, cap=(32768, 32768, 32, 32, 1024))
            ballast.clear()
            resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
            node.device.progress()
            assert node.stats()["duplicates"] == 0
            cq.close()
            pd.close()

    in_child(starve)


def test_a_flush_that_is_refused_says_what_it_was_to_flush() -> None:
    with Pair() as pair:
        a, b = pair.a, pair.b
        wr = SendWR(1, WR_FLUSH)
        wr.set_wr_flush(b.memory.key, b.memory.iova + 64, 4096, 1, 0)
        a.qp.post_send(wr)
        reason = a.wait()[0].reason
        assert f"FLUSH of 4096 bytes at [{b.memory.iova + 64:#x}, {b.memory.iova + 64 + 4096:#x})" in reason


def test_a_queue_pair_in_error_answers_no_read_to_its_end() -> None:
    """IBA 10.3.1 (Error): whoever moves a queue pair there takes the peer's access to memory away at once."""
    with Pair(size=LONG) as pair:
        a, b = pair.a, pair.b
        a.post(WR_READ, 0, LONG, 0)
        pair.sim.run_until(lambda: len(pair.sent(b)) > 20)
        move(b.qp, ERR)
        sent = len(pair.sent(b))
        pair.sim.settle()
        assert sent < LONG // 1024
        assert len(pair.sent(b)) == sent
        assert a.done() == [(0, RETRY_EXC_ERR)]
        assert b.count(REMOTE_READ) == (0, 0)


def test_what_an_earlier_peer_said_is_not_said_of_the_next() -> None:
    """The reason of a refusal comes beside the NAK, and belongs to one connection."""
    with Pair() as pair:
        a, b = pair.a, pair.b
        a.post(WR_WRITE, 0, 8, 0, rkey=0x999)
        assert "key 0x999 is not registered" in a.wait()[0].reason
        for end in (a, b):
            move(end.qp, RESET)
        pair.connect()
        pair.rule = dropping(EXPLAIN)
        b.qp.modify({"qp_access_flags": 0}, ACCESS_FLAGS)
        a.post(WR_WRITE, 0, 8, 0)
        assert "it gives no reason" in a.wait()[0].reason
