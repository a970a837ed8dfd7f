# SPDX-License-Identifier: MIT
"""Rings in memory that a program shares with the device: posting, polling, and programs that break the rules."""

import errno
import random
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from tests.foreign import PAGE, Child, ForeignRegion
from tests.netsim.pair import (
    FENCE,
    FLUSH_ERR,
    LOC_QP_OP_ERR,
    MW_BIND_ERR,
    REM_ACCESS_ERR,
    RETRY_EXC_ERR,
    SIGNALED,
    SUCCESS,
    WR_ATOMIC_WRITE,
    WR_BIND,
    WR_CAS,
    WR_FAA,
    WR_FLUSH,
    WR_LOCAL_INV,
    WR_READ,
    WR_SEND,
    WR_SEND_IMM,
    WR_SEND_INV,
    WR_WRITE,
    WR_WRITE_IMM,
    End,
    Pair,
)
from tests.netsim.pair import SEND as COUNTS_SENDS
from tests.netsim.sim import (
    ALL,
    ERR,
    INIT,
    PATH,
    QPT_RC,
    QPT_UC,
    QPT_UD,
    QPT_XRC_SEND,
    RESET,
    RTS,
    SQD,
    SQE,
    Node,
    Sim,
    connect,
    move,
)
from tests.program import HEADER, INLINE, RECEIVE, SEND, Completions, Work, program_of

from softverbs.core.base.errors import PyverbsRDMAError
from softverbs.core.memory.raw import load32, load64
from softverbs.core.queues.completion import CompletionQueue
from softverbs.core.queues.rings import VALUES
from softverbs.core.queues.srq import SharedReceiveQueue

CAP = (4, 4, 2, 2, 64)
DATA = bytes(range(1, 251)) * 64
IGNORE_OVERRUN = 2
CQ_ERR, QP_FATAL, SRQ_LIMIT_REACHED = 0, 1, 15


def completions(cq: CompletionQueue) -> Completions:
    """Shares a completion queue with a program."""
    program = Completions(cq.mapped_size(), cq.rings()[0].mask + 1)
    cq.share(program.address, program)
    return program


def receives(srq: SharedReceiveQueue) -> Work:
    """Shares an SRQ with a program."""
    program = Work(srq.mapped_size(), None, (srq.ring.stride, srq.ring.mask + 1))
    program.share(srq.context_id, srq)
    return program


class Side:
    """An end whose queue pair and completion queue a program uses through shared memory."""

    def __init__(self, end: End) -> None:
        self.end = end
        own = [(ring.stride, ring.mask + 1) for ring in end.qp.rings()]
        self.work = Work(end.qp.mapped_size(), own[0], own[1] if len(own) > 1 else None)
        self.work.share(end.node, end.qp)
        self.cq = completions(end.cq)
        self.send, self.receive, self.poll = self.work.send, self.work.receive, self.cq.poll

    def sg(self, offset: int, length: int) -> list[tuple[int, int, int]]:
        return [(self.end.memory.iova + offset, length, self.end.memory.key)]

    def far(self, offset: int) -> dict[str, int]:
        """The remote side of a work request."""
        memory = self.end.peer.memory
        return {"remote_address": memory.iova + offset, "rkey": memory.key}


def turn(*nodes: Node, honest: bool = True) -> None:
    """What a server does: takes what was posted, makes progress until nothing is left, and tells the programs.

    honest: whether what the device has written into shared memory is still there.
    """
    for node in nodes:
        node.port.take_shared()
    nodes[0].sim.settle()
    for node in nodes:
        node.port.publish_shared()
        if honest:
            check_told(node)


def check_told(node: Node) -> None:
    """Every program knows how things are: nothing that has changed was forgotten."""
    for qp in node.port.live:
        own = qp.rings()
        if qp.mapping:
            assert load32(qp.mapping + VALUES["QP_STATE"]) == qp.state
            for name, ring in zip(("QP_SQ", "QP_RQ"), own, strict=False):
                told = [load64(qp.mapping + VALUES[f"{name}_{index}"]) for index in ("HEAD", "TAKEN")]
                assert told == [ring.head, ring.tail], name
        for cq in (qp.send_cq, qp.recv_cq):
            if cq is not None and cq.mapping:
                assert load64(cq.mapping + VALUES["CQ_TAIL"]) == cq.rings()[0].tail
    for srq in node.port.srqs.values():
        if srq.mapping:
            assert load64(srq.mapping + VALUES["QP_RQ_HEAD"]) == srq.ring.head


class Shared(Pair):
    """A connection between programs, each with its own shared memory."""

    def __init__(self, cap: tuple[int, int, int, int, int] = CAP, **more: Any) -> None:
        super().__init__(cap=cap, **more)
        self.left, self.right = Side(self.a), Side(self.b)

    def turn(self, honest: bool = True) -> None:
        turn(self.a.node, self.b.node, honest=honest)


@pytest.fixture
def pair() -> Iterator[Shared]:
    with Shared() as pair:
        yield pair


def offences(node: Node) -> list[tuple[Any, str]]:
    found = list(node.port.offenders.items())
    node.port.offenders.clear()
    return found


# -- what the program sees


def test_the_header_says_how_things_are(pair: Shared) -> None:
    work = pair.left.work
    assert [work.tail(SEND), work.taken(SEND), work.head(SEND)] == [0, 0, 0]
    assert [work.tail(RECEIVE), work.taken(RECEIVE), work.head(RECEIVE)] == [0, 0, 0]
    assert work.state == RTS
    assert (pair.left.cq.tail, pair.left.cq.head) == (0, 0)
    move(pair.a.qp, ERR)
    pair.a.node.port.publish_shared()
    assert work.state == ERR


@pytest.mark.parametrize("address", [0, 8, 1 << 20 | 32])
def test_shared_memory_is_aligned(address: int, pair: Shared) -> None:
    marks = program_of(pair.a.node).marks
    for element, more in ((pair.a.qp, [marks]), (pair.a.cq, []), (pair.a.node.srq(pair.a.pd), [marks])):
        with pytest.raises(PyverbsRDMAError, match="aligned to 64 bytes") as caught:
            element.share(address, None, *more)
        assert caught.value.errno == errno.EINVAL


def test_everything_that_can_be_posted(pair: Shared) -> None:
    left, right = pair.left, pair.right
    pair.a.put(0, DATA)
    right.receive(right.sg(0x1000, 100), 1)
    right.receive([], 2)
    right.receive([*right.sg(0x2000, 10), *right.sg(0x3000, 2000)], 3)
    left.send(WR_SEND, [*left.sg(3, 50), *left.sg(100, 50)], wr_id=10)
    left.send(WR_WRITE_IMM, left.sg(7, 30), wr_id=11, imm=0x01020304, **left.far(0x100))
    left.send(WR_SEND_IMM, left.sg(0, 1500), wr_id=12, imm=5)
    pair.turn()
    assert left.poll() == [(10, SUCCESS), (11, SUCCESS), (12, SUCCESS)]
    entries = right.cq.entries()
    assert [(wc["wr_id"], wc["status"], wc["byte_len"], wc["imm"]) for wc in entries] == [
        (1, SUCCESS, 100, 0), (2, SUCCESS, 30, 0x01020304), (3, SUCCESS, 1500, 5),
    ]  # fmt: skip
    assert [wc["qp_num"] for wc in entries] == [pair.b.qp.qp_num] * 3
    assert pair.b.at(0x1000, 101) == DATA[3:53] + DATA[100:150] + b"\0"
    assert pair.b.at(0x100, 31) == DATA[7:37] + b"\0"
    assert pair.b.at(0x2000, 10) + pair.b.at(0x3000, 1490) == DATA[:1500]
    left.send(WR_WRITE, inline=b"inline data", **left.far(0x4000))
    left.send(WR_READ, left.sg(0x5000, 11), flags=SIGNALED | FENCE, **left.far(0x4000))
    left.send(WR_FAA, left.sg(0x6000, 8), compare_add=3, **left.far(0x4800))
    left.send(WR_CAS, left.sg(0x6008, 8), compare_add=3, swap=9, **left.far(0x4800))
    pair.turn()
    assert left.poll() == [(0, SUCCESS)] * 4
    assert pair.a.at(0x5000, 12) == b"inline data\0"
    assert (pair.a.memory.word(0x6000), pair.a.memory.word(0x6008), pair.b.memory.word(0x4800)) == (0, 3, 9)
    left.send(WR_ATOMIC_WRITE, inline=DATA[:8], **left.far(0x4810))
    left.send(WR_WRITE, left.sg(0, 0), flags=0, **left.far(0))
    left.send(WR_FLUSH, compare_add=8, swap=1, **left.far(0))
    pair.turn()
    assert left.poll() == [(0, SUCCESS), (0, 9)], "memory without FLUSH_GLOBAL is not flushed"
    assert pair.b.at(0x4810, 8) == DATA[:8]


def test_rings_go_round_and_are_as_large_as_they_were_asked_for(pair: Shared) -> None:
    """A program that keeps its queues full: what has completed has given its slot back."""
    left, right = pair.left, pair.right
    posted = received = sent = 0
    while sent < 50:
        while right.work.free(RECEIVE, CAP[1]):
            right.receive(right.sg(0, 64), received)
            received += 1
        while left.work.free(SEND, CAP[0]):
            left.send(WR_SEND, inline=posted.to_bytes(4, "little"), wr_id=posted)
            posted += 1
        pair.turn()
        done = left.poll(3)
        assert [status for _, status in done] == [SUCCESS] * len(done) and done
        sent += len(done)
        assert right.poll() == [] or True
        assert left.work.head(SEND) >= sent
    assert not offences(pair.a.node) + offences(pair.b.node)


def test_a_completion_is_not_seen_before_its_slot_is_free(pair: Shared) -> None:
    left, right = pair.left, pair.right
    right.receive(right.sg(0, 64))
    left.send(WR_SEND, inline=b"x")
    pair.a.node.port.take_shared()
    assert (left.work.taken(SEND), left.work.head(SEND)) == (1, 0)
    pair.b.node.port.take_shared()
    pair.sim.settle()
    assert (left.cq.tail, left.work.head(SEND), right.cq.tail, right.work.head(RECEIVE)) == (0, 0, 0, 0)
    pair.a.node.port.publish_shared()
    pair.b.node.port.publish_shared()
    assert (left.cq.tail, left.work.head(SEND), right.cq.tail, right.work.head(RECEIVE)) == (1, 1, 1, 1)


def test_what_is_taken_is_a_copy(pair: Shared) -> None:
    left = pair.left
    pair.a.put(0, DATA)
    slot = left.send(WR_WRITE, left.sg(0, 100), wr_id=1, **left.far(0))
    other = left.send(WR_WRITE, inline=DATA[:50], wr_id=2, **left.far(0x100))
    pair.a.node.port.take_shared()
    for at in (slot, other):
        left.work.memory[at : at + 128] = bytes([0xFF]) * 128
    pair.turn()
    assert left.poll() == [(1, SUCCESS), (2, SUCCESS)]
    assert pair.b.at(0, 100) == DATA[:100] and pair.b.at(0x100, 50) == DATA[:50]


def test_every_send_is_signaled_where_the_queue_pair_says_so() -> None:
    with Sim() as sim:
        node, peer = sim.node(), sim.node()
        ends = []
        for each in (node, peer):
            end = End(each, 4096, CAP)
            end.qp.close()
            end.qp = each.qp(end.pd, end.cq, cap=CAP, signal_all=True)
            ends.append(end)
        ends[0].peer, ends[1].peer = ends[1], ends[0]
        for end in ends:
            connect(end.qp, end.peer.qp, end.node, end.peer.node)
        side = Side(ends[0])
        side.send(WR_WRITE, side.sg(0, 8), flags=0, wr_id=3, **side.far(0))
        turn(node, peer)
        assert side.poll() == [(3, SUCCESS)]


def test_windows_are_bound_and_closed_by_slots(pair: Shared) -> None:
    left, right = pair.left, pair.right
    regions = pair.b.node.port.regions
    window = regions.allocate_window(pair.b.pd, 2)
    key = window.rkey + 1 & 0xFF | window.rkey & ~0xFF
    bind = {"rkey": window.rkey, "imm": key, "remote_address": pair.b.memory.iova + 64, "compare_add": 64}
    right.send(WR_BIND, swap=pair.b.memory.key | 2 << 32, wr_id=1, **bind)
    pair.turn()
    assert right.poll() == [(1, SUCCESS)]
    pair.a.put(0, DATA)
    left.send(WR_WRITE, left.sg(0, 64), remote_address=pair.b.memory.iova + 64, rkey=key)
    pair.turn()
    assert left.poll() == [(0, SUCCESS)] and pair.b.at(63, 66) == b"\0" + DATA[:64] + b"\0"
    right.receive([], 5)
    left.send(WR_SEND_INV, imm=key)
    pair.turn()
    assert left.poll() == [(0, SUCCESS)] and right.cq.entries()[0]["imm"] == key
    right.send(WR_LOCAL_INV, imm=0xFFFFFF00, wr_id=6)
    pair.turn()
    assert right.poll() == [(6, MW_BIND_ERR)]


@pytest.mark.parametrize("kind", [QPT_UC, QPT_UD, QPT_XRC_SEND])
def test_other_transports(kind: int) -> None:
    with Pair(kind=kind, cap=CAP) as pair:
        a, b = pair.a, pair.b
        left = Side(a)
        grh = 40 if kind == QPT_UD else 0
        program = Side(b) if b.srq is None else None
        srq = program.work if program is not None else receives(b.srq)  # type: ignore[arg-type]
        cq = program.cq if program is not None else completions(b.cq)
        srq.receive([(b.memory.iova, 200 + grh, b.memory.key)], 4)
        a.put(0, DATA)
        to = {"destination": b.srq.srq_num} if b.srq is not None else {}
        if kind == QPT_UD:
            to = {"destination": b.qp.qp_num, "rkey": PATH["qkey"], "ah": a.handle().core.handle}
        left.send(WR_SEND, left.sg(0, 200), wr_id=3, **to)
        turn(a.node, b.node)
        assert left.poll() == [(3, SUCCESS)] and cq.poll() == [(4, SUCCESS)]
        assert b.at(grh, 200) == DATA[:200]
        assert srq.head(RECEIVE) == 1


@pytest.mark.parametrize("kind", [QPT_RC, QPT_UC, QPT_UD])
def test_a_receive_that_was_posted_when_its_message_left(kind: int) -> None:
    """The device has looked at the receiver's queue before, and not since: the message finds it all the same."""
    with Pair(kind=kind, cap=CAP) as pair:
        a, b = pair.a, pair.b
        left, right = Side(a), Side(b)
        grh = 40 if kind == QPT_UD else 0
        a.put(0, DATA)
        to = {"destination": b.qp.qp_num, "rkey": PATH["qkey"], "ah": a.handle().core.handle} if grh else {}
        for number in range(3):
            turn(a.node, b.node)
            right.receive([(b.memory.iova, 200 + grh, b.memory.key)], number)
            left.send(WR_SEND, left.sg(0, 200), wr_id=number, **to)
            a.node.port.take_shared()
            a.node.sim.settle()
            a.node.port.publish_shared()
            b.node.port.publish_shared()
            assert left.poll() == [(number, SUCCESS)] and right.poll() == [(number, SUCCESS)]
        assert b.node.port.no_receive == 0 and a.qp.requester.retransmissions == 0
        right.work.store(VALUES["QP_RQ_TAIL"], 99)  # nonsense is not taken, and told at the next look
        left.send(WR_SEND, left.sg(0, 200), wr_id=9, **to)
        a.node.port.take_shared()
        a.node.port.progress(a.node.sim.clock.now)
        b.node.port.progress(b.node.sim.clock.now)
        assert not offences(b.node) and not right.poll()
        b.node.port.take_shared()
        assert [element for element, _ in offences(b.node)] == [b.qp]


# -- states


def test_in_error_everything_is_flushed(pair: Shared) -> None:
    left = pair.left
    move(pair.a.qp, ERR)
    left.send(WR_SEND, wr_id=1)
    left.receive([], wr_id=2)
    pair.turn()
    assert left.poll() == [(1, FLUSH_ERR), (2, FLUSH_ERR)]


def test_a_drained_queue_pair_takes_but_does_not_send(pair: Shared) -> None:
    left = pair.left
    move(pair.a.qp, SQD)
    left.send(WR_WRITE, left.sg(0, 8), **left.far(0))
    pair.turn()
    assert (left.poll(), left.work.taken(SEND)) == ([], 1)
    move(pair.a.qp, RTS)
    pair.turn()
    assert left.poll() == [(0, SUCCESS)]


def test_reset_forgets_what_was_posted_and_the_rings_go_on(pair: Shared) -> None:
    left, right = pair.left, pair.right
    for _ in range(3):
        left.receive(left.sg(0, 8))
    left.send(WR_SEND)
    pair.a.node.port.take_shared()
    left.send(WR_SEND)
    left.receive([])
    move(pair.a.qp, RESET)
    pair.turn()
    work = left.work
    assert [work.tail(SEND), work.taken(SEND), work.head(SEND)] == [2, 2, 2]
    assert [work.tail(RECEIVE), work.taken(RECEIVE), work.head(RECEIVE)] == [4, 4, 4]
    left.send(WR_SEND)
    left.receive([])  # neither is allowed: nothing comes of it
    pair.turn()
    assert (left.poll(), work.head(SEND), work.head(RECEIVE)) == ([], 3, 5)
    move(pair.b.qp, RESET)
    connect(pair.a.qp, pair.b.qp, pair.a.node, pair.b.node, to=INIT)
    left.send(WR_SEND)
    left.receive(left.sg(0, 64), 7)  # this one is
    pair.turn()
    assert (left.poll(), work.head(SEND), work.head(RECEIVE), work.taken(RECEIVE)) == ([], 4, 5, 6)
    pair.connect()
    right.send(WR_SEND, inline=b"hello", wr_id=1)
    left.send(WR_WRITE, inline=b"x", wr_id=2, **left.far(0x100))
    pair.turn()
    assert right.poll() == [(1, SUCCESS)] and sorted(left.poll()) == [(2, SUCCESS), (7, SUCCESS)]
    assert pair.a.at(0, 5) == b"hello" and pair.b.at(0x100, 1) == b"x"
    assert not offences(pair.a.node)


# -- work requests that are wrong

TOO_LONG = [(0x10000, 0xFFFFFFFF, 0)] * 2
WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "opcode": ({"opcode": 200}, "no operation opcode 200"),
    "refused": ({"opcode": 12}, "no operation opcode 12"),
    "TSO": ({"opcode": 10}, "no operation opcode 10"),
    "flags": ({"opcode": WR_SEND, "flags": 0x82}, "send_flags 0x82"),
    "elements": ({"opcode": WR_SEND, "num_sge": 3}, "3 scatter/gather elements: max_send_sge=2"),
    "more": ({"opcode": WR_SEND, "num_sge": 65535}, "65535 scatter/gather elements"),
    "length": ({"opcode": WR_SEND, "sg": TOO_LONG}, "a message of 8589934590 bytes"),
    "inline": ({"opcode": WR_SEND, "flags": INLINE, "length": 113}, "113 bytes inline: max_inline_data=112"),
    "longer": ({"opcode": WR_SEND, "flags": INLINE, "length": 2**32 - 1}, "4294967295 bytes inline"),
    "read": ({"opcode": WR_READ, "flags": INLINE, "length": 8}, "SEND_INLINE has no meaning with RDMA_READ"),
    "atomic": ({"opcode": WR_FAA, "sg": [(0x10000, 4, 0)]}, "an atomic is 8 bytes"),
    "flush": ({"opcode": WR_FLUSH, "sg": [(0x10000, 4, 0)]}, "FLUSH carries no data"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_work_request_fails_when_its_turn_has_come(case: str, pair: Shared) -> None:
    left, right = pair.left, pair.right
    fields, words = WRONG[case]
    right.receive(right.sg(0, 64), 5)
    left.send(WR_SEND, inline=b"before", wr_id=1)
    left.send(wr_id=2, **fields)
    left.send(WR_SEND, inline=b"behind", wr_id=3)
    pair.turn()
    assert left.poll() == [(1, SUCCESS), (2, LOC_QP_OP_ERR), (3, FLUSH_ERR)]
    assert words in pair.a.cq.reason(1)
    assert pair.a.qp.state == ERR and left.work.state == ERR
    assert right.poll() == [(5, SUCCESS)]
    expected = (1, 1 + (fields["opcode"] == WR_SEND))
    assert pair.a.count(COUNTS_SENDS) == expected, "it counts as what it says it is"
    assert not offences(pair.a.node)


@pytest.mark.parametrize("kind", [QPT_UC, QPT_UD])
def test_a_wrong_work_request_stops_an_unreliable_sender(kind: int) -> None:
    with Shared(kind=kind) as pair:
        left = pair.left
        left.send(200, wr_id=1)
        left.send(WR_SEND, inline=b"behind", wr_id=2)
        pair.turn()
        assert left.poll() == [(1, LOC_QP_OP_ERR), (2, FLUSH_ERR)]
        assert pair.a.qp.state == SQE
        move(pair.a.qp, RTS)
        ah = {"destination": pair.b.qp.qp_num, "rkey": PATH["qkey"], "ah": 1} if kind == QPT_UD else {}
        if kind == QPT_UD:
            ah["ah"] = pair.a.handle().core.handle
        left.send(WR_SEND, inline=b"again", wr_id=3, **ah)
        pair.turn()
        assert left.poll() == [(3, SUCCESS)]


@pytest.mark.parametrize("number", [0, 77, 2**32 - 1])
def test_a_datagram_without_an_address_handle(number: int) -> None:
    with Shared(kind=QPT_UD) as pair:
        pair.left.send(WR_SEND, inline=b"x", ah=number, destination=pair.b.qp.qp_num)
        pair.turn()
        assert pair.left.poll() == [(0, LOC_QP_OP_ERR)]
        assert "address handle" in pair.a.cq.reason(0)


def test_the_address_handle_of_another_program() -> None:
    with Shared(kind=QPT_UD) as pair:
        strangers = pair.a.node.handle(pair.a.node.pd(), pair.b.node.gid)
        pair.left.send(WR_SEND, inline=b"x", ah=strangers.core.handle, destination=pair.b.qp.qp_num)
        pair.turn()
        assert pair.left.poll() == [(0, LOC_QP_OP_ERR)]


def test_reads_where_none_may_be_outstanding() -> None:
    with Shared(max_rd_atomic=0) as pair:
        pair.left.send(WR_READ, pair.left.sg(0, 8), **pair.left.far(0))
        pair.turn()
        assert pair.left.poll() == [(0, LOC_QP_OP_ERR)]
        assert "max_rd_atomic" in pair.a.cq.reason(0)


def test_words_of_refusals_do_not_pile_up(pair: Shared) -> None:
    left = pair.left
    for _ in range(3):
        left.send(200)
    pair.a.node.port.take_shared()
    assert len(pair.a.qp.connection.refusals) == 3
    move(pair.a.qp, RESET)
    assert pair.a.qp.connection.refusals == {}


# -- indices that cannot be


@pytest.mark.parametrize("name", ["QP_SQ_TAIL", "QP_RQ_TAIL"])
@pytest.mark.parametrize("tail", [7, 2**64 - 1, 2**63, 1])
def test_a_tail_that_cannot_be(name: str, tail: int, pair: Shared) -> None:
    """Two are posted and done, and the queues hold four: 2 to 6 is possible."""
    left, right = pair.left, pair.right
    for _ in range(2):
        left.receive(left.sg(0, 8))
        right.send(WR_SEND, inline=b"x")
        left.send(WR_WRITE, inline=b"y", **left.far(0))
    pair.turn()
    assert len(left.poll()) == 4
    left.work.store(VALUES[name], tail)
    pair.turn()
    assert [element for element, _ in offences(pair.a.node)] == [pair.a.qp]
    pair.turn()
    assert offences(pair.a.node) == [] and left.poll() == []
    left.work.store(VALUES[name], 2)
    left.send(WR_WRITE, inline=b"z", **left.far(0))
    pair.turn()
    assert left.poll() == [], "nobody looks any more"
    pair.a.qp.close()


@pytest.mark.parametrize("head", [3, 2**64 - 1, 0])
def test_a_head_that_cannot_be(head: int) -> None:
    with Sim() as sim:
        node = sim.node()
        end = End(node, 4096, cq=node.cq(2))
        program = completions(end.cq)
        fill(end, program, 2)
        assert len(program.poll(1)) == 1
        assert end.cq.count() == 1
        program.store(VALUES["CQ_HEAD"], head)
        assert end.cq.count() == 1
        assert [(element is end.cq, "out of range" in words) for element, words in offences(node)] == [(True, True)]
        assert end.cq.count() == 1 and not offences(node)


def test_a_receive_with_too_many_elements(pair: Shared) -> None:
    pair.left.receive([], num_sge=3)
    pair.turn()
    assert "max_recv_sge" in offences(pair.a.node)[0][1]


def test_an_srq_whose_program_breaks_the_rules() -> None:
    for breaks in (lambda work: work.receive([], num_sge=99), lambda work: work.advance(RECEIVE, 5)):
        with Sim() as sim:
            node = sim.node()
            srq = node.srq(node.pd(), max_wr=4)
            work = receives(srq)
            breaks(work)
            turn(node)
            assert [element for element, _ in offences(node)] == [srq]
            srq.close()


@pytest.mark.parametrize("seed", range(12))
def test_a_program_that_writes_anything_anywhere(seed: int) -> None:
    """Nothing is raised, the device goes on, and a neighbour on the same devices notices nothing."""
    chance = random.Random(seed)
    with Shared(kind=chance.choice([QPT_RC, QPT_UC, QPT_UD]), cap=(8, 8, 2, 2, 64)) as pair:
        neighbour = [End(pair.a.node, 4096, CAP), End(pair.b.node, 4096, CAP)]
        neighbour[0].peer, neighbour[1].peer = neighbour[1], neighbour[0]
        for end in neighbour:
            connect(end.qp, end.peer.qp, end.node, end.peer.node)
        good = Side(neighbour[0])
        for _ in range(30):
            side = chance.choice([pair.left, pair.right])
            work = chance.choice([side.work, side.work, side.cq])
            for _ in range(chance.randrange(40)):
                at = chance.randrange(HEADER, len(work.memory))
                work.memory[at] = chance.randrange(256)
            if work is side.work:
                for name in (SEND, RECEIVE):
                    if chance.random() < 0.7:
                        side.work.advance(name, chance.randrange(4))
                if chance.random() < 0.1:
                    side.work.store(chance.choice([0, 64, 128, 192, 256, 320, 384]), chance.getrandbits(64))
            elif chance.random() < 0.2:
                side.cq.store(chance.choice([0, 64]), chance.getrandbits(64))
            good.send(WR_WRITE, good.sg(0, 64), wr_id=9, **good.far(0))
            pair.turn(honest=False)
            assert good.poll() == [(9, SUCCESS)]
            for end in (pair.a, pair.b):
                if end.qp.state in (ERR, SQE) and chance.random() < 0.5:
                    move(end.qp, RESET)
                    connect(end.qp, end.peer.qp, end.node, end.peer.node)
        assert all(element in (pair.a.qp, pair.b.qp, pair.a.cq, pair.b.cq)
                   for node in (pair.a.node, pair.b.node) for element, _ in offences(node))  # fmt: skip


# -- completion queues


def fill(end: End, program: Completions, count: int) -> None:
    """``count`` completions, wr_id 1, 2, ...: receives of a queue pair in ERR."""
    if end.qp.state != ERR:
        if end.qp.state == RESET:
            connect(end.qp, end.qp, end.node, end.node, to=INIT)
        move(end.qp, ERR)
    for number in range(count):
        end.receive(wr_id=number + 1)
    end.node.port.publish_shared()


def test_a_queue_holds_what_it_was_asked_for_and_polling_makes_room() -> None:
    with Sim() as sim:
        node = sim.node()
        end = End(node, 4096, cq=node.cq(3))
        program = completions(end.cq)
        for _ in range(5):
            fill(end, program, 3)
            assert program.poll() == [(number, FLUSH_ERR) for number in (1, 2, 3)]
            assert end.cq.statistics()["waiting"] == 0
        assert not node.events() and not end.cq.overrun


def test_overrun() -> None:
    with Sim() as sim:
        node = sim.node()
        end = End(node, 4096, cq=node.cq(3))
        program = completions(end.cq)
        fill(end, program, 4)
        assert CQ_ERR in [kind for kind, _ in node.events()] and end.cq.overrun
        assert program.poll() == [(number, FLUSH_ERR) for number in (1, 2, 3)]
        fill(end, program, 1)
        assert program.poll() == [], "an overrun queue takes nothing any more"


def test_a_queue_that_ignores_overrun_keeps_the_newest() -> None:
    with Sim() as sim:
        node = sim.node()
        cq = CompletionQueue(node.port, node, 4, None, None, 0, IGNORE_OVERRUN)
        end = End(node, 4096, cq=cq)
        program = completions(cq)
        fill(end, program, 10)
        assert (program.tail, program.head) == (10, 0)
        program.store(VALUES["CQ_HEAD"], program.tail - 4)
        assert [wr_id for wr_id, _ in program.poll()] == [7, 8, 9, 10]
        assert cq.count() == 0 and not offences(node)


def test_words_are_kept_for_a_program_that_asks_later() -> None:
    with Sim() as sim:
        node = sim.node()
        end = End(node, 4096, cq=node.cq(3))
        program = completions(end.cq)
        for turns in range(4):
            fill(end, program, 3)
            program.poll()
            assert [bool(end.cq.reason(3 * turns + index)) for index in range(3)] == [True] * 3
        assert (end.cq.reason(0), end.cq.reason(99)) == ("", "")


def test_entries_of_a_queue_pair_that_is_gone_are_purged() -> None:
    with Sim() as sim:
        node = sim.node()
        end = End(node, 4096)
        other = End(node, 4096, pd=end.pd, cq=end.cq)
        program = completions(end.cq)
        fill(end, program, 2)
        assert program.poll(1) == [(1, FLUSH_ERR)]
        fill(other, program, 3)
        end.qp.close()
        node.port.publish_shared()
        assert (program.head, program.tail) == (1, 4)
        assert program.poll() == [(number, FLUSH_ERR) for number in (1, 2, 3)]


def test_resizing_moves_what_waits_to_other_memory() -> None:
    with Sim() as sim:
        node = sim.node()
        end = End(node, 4096, cq=node.cq(4))
        program = completions(end.cq)
        fill(end, program, 4)
        assert program.poll(1) == [(1, FLUSH_ERR)]
        with pytest.raises(PyverbsRDMAError, match="3 completions wait"):
            end.cq.resize(2)
        end.cq.resize(100)
        old = bytes(program.memory)
        again = completions(end.cq)
        fill(end, again, 2)
        assert again.poll() == [(number, FLUSH_ERR) for number in (2, 3, 4, 1, 2)]
        assert bytes(program.memory) == old and end.cq.reason(4)


def test_memory_is_left_alone_when_the_objects_are_gone(pair: Shared) -> None:
    left = pair.left
    before = bytes(left.work.memory), bytes(left.cq.memory)
    pair.a.qp.close()
    pair.a.cq.close()
    left.work.advance(SEND)
    pair.turn()
    left.work.store(VALUES["QP_SQ_TAIL"], 0)
    assert (bytes(left.work.memory), bytes(left.cq.memory)) == before
    assert (pair.a.qp.mapping, pair.a.cq.mapping, program_of(pair.a.node).marks.queues) == (0, 0, [None])


# -- shared receive queues


def test_a_shared_receive_queue() -> None:
    with Pair(shared=True, cap=CAP) as pair:
        a, b = pair.a, pair.b
        assert b.srq is not None
        work, cq = receives(b.srq), completions(b.cq)
        for number in range(3):
            work.receive([(b.memory.iova + 64 * number, 64, b.memory.key)], number)
        turn(a.node, b.node)
        b.srq.modify(None, 2)
        for _ in range(2):
            a.post(WR_SEND, 0, 8)
        turn(a.node, b.node)
        assert cq.poll() == [(0, SUCCESS), (1, SUCCESS)]
        assert (work.tail(RECEIVE), work.taken(RECEIVE), work.head(RECEIVE)) == (3, 3, 2)
        assert SRQ_LIMIT_REACHED in [kind for kind, _ in b.node.events()]
        work.receive([], 9)
        b.srq.modify(512, None)  # takes what is there, and ends the sharing
        assert b.srq.mapping == 0
        again = receives(b.srq)
        assert again.tail(RECEIVE) - again.head(RECEIVE) == 2
        again.receive([], 10)
        assert len(a.polled()) == 2
        for _ in range(3):
            a.post(WR_WRITE_IMM, 0, 0, 0)
        turn(a.node, b.node)
        assert cq.poll() == [(2, SUCCESS), (9, SUCCESS), (10, SUCCESS)]


# -- a program in another process


def test_two_programs_in_processes_of_their_own() -> None:
    """They post and poll by themselves; this process only makes progress, and works on their memory."""
    with Pair(cap=(16, *CAP[1:])) as pair:
        sides = [Side(pair.a), Side(pair.b)]
        children = []
        for side in sides:
            tasks = {"send": side.work.send, "receive": side.work.receive, "poll": side.poll}
            children.append(Child(4 * PAGE, **tasks))
        with children[0] as first, children[1] as second:
            for end, child in zip((pair.a, pair.b), children, strict=True):
                end.memory = ForeignRegion(end.node, end.pd, child, ALL)  # type: ignore[assignment]
            pair.a.put(0, DATA[: 2 * PAGE])
            for number in range(10):
                second.call("receive", sides[1].sg(0, 2 * PAGE), number)
                first.call("send", WR_SEND, sides[0].sg(number, PAGE))
                turn(pair.a.node, pair.b.node)
                assert first.call("poll") == [(0, SUCCESS)] and second.call("poll") == [(number, SUCCESS)]
                assert pair.b.at(0, PAGE) == DATA[number : number + PAGE]
            pair.b.put(64, (41).to_bytes(8, sys.byteorder))
            far = sides[0].far(64)
            pair.a.post(WR_FAA, 8, 8, 64, add=1)
            turn(pair.a.node, pair.b.node)
            assert first.call("poll") == [(0, SUCCESS)]
            assert (pair.a.memory.word(8), pair.b.memory.word(64)) == (41, 42)
            assert far["remote_address"] == pair.b.memory.iova + 64
            second.kill()
            pair.a.post(WR_WRITE, 0, 8, 0)
            turn(pair.a.node, pair.b.node)
            assert first.call("poll") == [(0, REM_ACCESS_ERR)]


# -- a server's turn


class Asked:
    """Counts how often a link is asked for what has arrived."""

    def __init__(self, node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        receive = node.link.receive

        def counted(now: int, sink: Any) -> int:
            self.count += 1
            return int(receive(now, sink))

        monkeypatch.setattr(node.link, "receive", counted)


def looped(node: Node) -> Side:
    """A queue pair of a program that is connected to another one of the same device."""
    ends = [End(node, 4096, CAP), End(node, 4096, CAP)]
    ends[0].peer, ends[1].peer = ends[1], ends[0]
    for end in ends:
        connect(end.qp, end.peer.qp, node, node)
    return Side(ends[0])


def test_local_work_is_shown_before_the_link_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    with Sim() as sim:
        node = sim.node(bare=True)
        side = looped(node)
        asked = Asked(node, monkeypatch)
        node.port.serve(1, True)
        assert asked.count == 1
        for number in range(3):
            side.send(WR_WRITE, inline=b"x", wr_id=number, **side.far(0))
            assert node.port.serve(1, False) > 0
            assert side.poll() == [(number, SUCCESS)]
        assert asked.count == 1, "nothing was heard, and no time has passed"
        sim.clock.now += 20_000
        assert (node.port.serve(1, False), asked.count) == (0, 2)
        assert (node.port.serve(1, False), asked.count) == (0, 2)
        assert (node.port.serve(1, True), asked.count) == (0, 3)


def test_the_link_is_asked_each_time_while_something_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    with Sim() as sim:
        node, peer = sim.node(bare=True), sim.node(bare=True)
        ends = [End(node, 4096, CAP), End(peer, 4096, CAP)]
        ends[0].peer, ends[1].peer = ends[1], ends[0]
        for end in ends:
            connect(end.qp, end.peer.qp, end.node, end.peer.node)
        left = Side(ends[0])
        left.send(WR_WRITE, inline=b"x", **left.far(0))
        node.port.serve(1, False)
        peer.port.serve(1, True)
        asked = Asked(node, monkeypatch)
        assert node.port.serve(1, False) == 0 and not left.poll(), "it does not ask yet"
        assert node.port.serve(1, True) > 0 and left.poll() == [(0, SUCCESS)]
        for _ in range(110):
            sim.clock.now += 10_000
            node.port.serve(1, False)
        assert asked.count == 1 + 99 + 5, "each time for a millisecond, and then each 20 us"


def test_time_that_has_come_is_work() -> None:
    """A queue pair goes to ERR by it, and sends nothing: receives that were posted since the last look are flushed."""
    with Sim() as sim:
        node, peer = sim.node(bare=True), sim.node(bare=True)
        ends = [End(node, 4096, CAP), End(peer, 4096, CAP)]
        ends[0].peer, ends[1].peer = ends[1], ends[0]
        for end in ends:
            connect(end.qp, end.peer.qp, end.node, end.peer.node)
        peer.port.set_state(False)
        left = Side(ends[0])
        left.send(WR_WRITE, inline=b"x", **left.far(0))
        done: list[tuple[int, int]] = []
        work = 0
        for _ in range(1000):
            sim.clock.now += 10**8
            work = node.port.serve(1, False)
            done = left.poll()
            if done:
                break
        assert done == [(0, RETRY_EXC_ERR)]
        assert work > 0 and left.end.qp.state == ERR


def test_a_server_looks_until_something_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    with Sim() as sim:
        node = sim.node(bare=True)
        side = looped(node)
        assert node.port.serve(100, False) == 0
        side.send(WR_WRITE, inline=b"x", **side.far(0))
        assert node.port.serve(100, False) > 0
        assert side.poll() == [(0, SUCCESS)]
        side.work.store(VALUES["QP_SQ_TAIL"], 99)
        assert node.port.serve(100, False) == 0
        assert [element for element, _ in offences(node)] == [side.end.qp]
