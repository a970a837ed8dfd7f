# SPDX-License-Identifier: MIT
"""When a slot of a send queue is free: once a completion of its work request, or of a later one, has been polled."""

import errno
import random

import pytest
from tests.netsim.pair import (
    FLUSH_ERR,
    INLINE,
    SIGNALED,
    SUCCESS,
    WR_FAA,
    WR_SEND,
    WR_WRITE,
    End,
    Pair,
)
from tests.netsim.sim import ERR, QPT_RC, QPT_UC, QPT_UD, QPT_XRC_SEND, RESET, Sim, connect, move

from softverbs.core.base.errors import PyverbsRDMAError
from softverbs.core.base.limits import Options
from softverbs.core.queues.completion import CQ_IGNORE_OVERRUN, CompletionQueue
from softverbs.core.queues.wr import SGE

FOUR = (4, 64, 2, 2, 16)
each_type = pytest.mark.parametrize("kind", [QPT_RC, QPT_UC, QPT_UD, QPT_XRC_SEND], ids=["RC", "UC", "UD", "XRC"])


def fill(end: End, count: int, flags: int = SIGNALED, start: int = 0) -> None:
    """Posts SENDs that carry nothing, numbered from ``start`` on."""
    for number in range(start, start + count):
        end.post(WR_SEND, wr_id=number, flags=flags)


def full(end: End) -> str:
    """Checks that the send queue is full; the words of the refusal."""
    with pytest.raises(PyverbsRDMAError) as caught:
        end.post(WR_SEND)
    assert caught.value.errno == errno.ENOMEM
    return str(caught.value)


def receives(end: End, count: int) -> None:
    for _ in range(count):
        end.receive(0x8000, 100)


@each_type
def test_a_slot_is_free_when_its_completion_has_been_polled(kind: int) -> None:
    with Pair(cap=FOUR, kind=kind) as pair:
        receives(pair.b, 20)
        fill(pair.a, 4)
        assert "0 of the work requests are done, 0 completions wait" in full(pair.a)
        pair.sim.settle()
        words = full(pair.a)
        assert f"the send queue of QP {pair.a.qp.qp_num:#x} is full: max_send_wr=4" in words
        assert "from wr_id=0x0 on" in words
        assert words.count("4 of the work requests are done, 4 completions wait to be polled") == 1
        assert [wc.wr_id for wc in pair.a.cq.poll(1)] == [0]
        fill(pair.a, 1, start=4)
        assert "from wr_id=0x1 on" in full(pair.a)
        pair.sim.settle()
        assert pair.a.done() == [(number, SUCCESS) for number in (1, 2, 3, 4)]
        fill(pair.a, 4, start=5)


@each_type
def test_unsignaled_requests_alone_are_never_freed(kind: int) -> None:
    with Pair(cap=FOUR, kind=kind) as pair:
        receives(pair.b, 20)
        fill(pair.a, 4, 0)
        pair.sim.settle()
        assert pair.a.done() == []
        for _ in range(2):  # whatever the time
            words = full(pair.a)
            assert "4 of the work requests are done, none is signaled, so no completion can free a slot" in words
            pair.sim.run_for(10**9)


def test_the_words_count_what_is_unsignaled_behind_the_last_signaled_one() -> None:
    with Pair(cap=FOUR) as pair:
        receives(pair.b, 20)
        fill(pair.a, 2)
        fill(pair.a, 2, 0, 2)
        pair.sim.settle()
        assert "2 completions wait to be polled, the last 2 work requests are unsignaled" in full(pair.a)
        assert pair.a.done() == [(0, SUCCESS), (1, SUCCESS)]
        fill(pair.a, 2, 0, 4)
        assert "none is signaled" in full(pair.a)


def test_counting_frees_nothing() -> None:
    """A counter moves when a request completes, as the completion queue entry does; the slot waits for the poll."""
    with Pair(cap=FOUR) as pair:
        receives(pair.b, 20)
        fill(pair.a, 4, 0)
        pair.sim.settle()
        assert pair.a.count(1) == (4, 0)
        full(pair.a)


@each_type
def test_a_reset_frees_every_slot(kind: int) -> None:
    with Pair(cap=FOUR, kind=kind) as pair:
        for flags in (SIGNALED, 0):
            fill(pair.a, 4, flags)
            full(pair.a)
            move(pair.a.qp, RESET)
            connect(pair.a.qp, None if kind == QPT_UD else pair.b.qp, pair.a.node, pair.b.node)
        fill(pair.a, 4)


def test_flushed_requests_are_freed_by_their_completions() -> None:
    """In the state ERR every work request has a completion, whether it was signaled or not."""
    with Pair(cap=FOUR) as pair:
        move(pair.a.qp, ERR)
        fill(pair.a, 4, 0)
        assert "4 of the work requests are done, 4 completions wait to be polled" in full(pair.a)
        assert pair.a.done() == [(number, FLUSH_ERR) for number in range(4)]
        fill(pair.a, 4)


def test_a_later_completion_frees_what_was_lost_in_an_overrun() -> None:
    with Sim() as sim:
        a, b = End(sim.node(), 4096, FOUR), End(sim.node(), 4096, FOUR)
        cq = CompletionQueue(a.node.port, a.node, 2, None, None, 0, CQ_IGNORE_OVERRUN)
        a = End(a.node, 4096, FOUR, cq=cq)
        a.peer, b.peer = b, a
        connect(a.qp, b.qp, a.node, b.node)
        connect(b.qp, a.qp, b.node, a.node)
        receives(b, 8)
        fill(a, 4)
        sim.settle()
        assert cq.statistics()["lost"] == 2
        full(a)
        assert [wc.wr_id for wc in cq.poll(1)] == [2]
        fill(a, 3, start=4)
        full(a)


@pytest.mark.parametrize("destroy", [True, False], ids=["destroyed", "reset"])
def test_completions_that_outlive_their_queue_free_nothing_of_another(destroy: bool) -> None:
    """With ``purge=no`` they stay in the completion queue; the next queue pair has the same number inside."""
    with Sim() as sim:
        node, peer = sim.node(options=Options(purge=False)), sim.node()
        a, b = End(node, 4096, FOUR), End(peer, 4096, FOUR, counted=False)
        a.peer, b.peer = b, a
        connect(a.qp, b.qp, node, peer)
        connect(b.qp, a.qp, peer, node)
        receives(b, 4)
        fill(a, 4)
        sim.settle()
        if destroy:
            a.qp.close()
            b.qp.close()
            a = End(node, 4096, FOUR, cq=a.cq, pd=a.pd, memory=a.memory)
            b = End(peer, 4096, FOUR, counted=False)
            a.peer, b.peer = b, a
        else:
            move(a.qp, RESET)
            move(b.qp, RESET)
        connect(a.qp, b.qp, node, peer)
        connect(b.qp, a.qp, peer, node)
        receives(b, 4)
        fill(a, 4, start=10)
        sim.settle()
        assert [wc.wr_id for wc in a.cq.poll(4)] == [0, 1, 2, 3]
        full(a)
        assert [wc.wr_id for wc in a.cq.poll(4)] == [10, 11, 12, 13]
        fill(a, 4)


def test_a_resized_completion_queue_frees_as_before() -> None:
    with Pair(cap=FOUR) as pair:
        receives(pair.b, 8)
        fill(pair.a, 4)
        pair.sim.settle()
        pair.a.cq.resize(4)
        full(pair.a)
        assert len(pair.a.done()) == 4
        fill(pair.a, 4)


@each_type
def test_the_rule_of_soft_roce_is_an_option(kind: int) -> None:
    """``send_slots=completed``: a slot is free when its request has completed, polled or not."""
    with Pair(cap=FOUR, kind=kind, options=Options(send_slots="completed")) as pair:
        receives(pair.b, 44)
        for number in range(10):
            fill(pair.a, 4, SIGNALED if number & 1 else 0)
            pair.sim.settle()
        assert pair.a.cq.count() == 20
        fill(pair.a, 4)
        assert full(pair.a).endswith("is full: max_send_wr=4. Errno: 12, Cannot allocate memory")


@pytest.mark.parametrize("seed", range(10))
def test_a_completion_queue_as_large_as_its_send_queues_never_overruns(seed: int) -> None:
    """Whatever is posted and polled, and when: a refused post is the flow control that programs rely on."""
    choose = random.Random(seed)
    with Sim() as sim:
        node, peer = sim.node(), sim.node()
        pd, cq = node.pd(), node.cq(12)
        ends = [End(node, 4096, FOUR, pd=pd, cq=cq) for _ in range(3)]
        for end in ends:
            end.peer = End(peer, 4096, FOUR, counted=False)
            end.peer.peer = end
            connect(end.qp, end.peer.qp, node, peer)
            connect(end.peer.qp, end.qp, peer, node)
        refused = posted = polled = 0
        for _ in range(600):
            end = choose.choice(ends)
            if posts(end, SIGNALED if choose.random() < 0.7 else 0):
                posted += 1
            else:
                refused += 1
                if choose.random() < 0.1:  # or one that none was signaled of would be full for ever
                    for one in (end, end.peer):
                        move(one.qp, RESET)
                    for one, other in ((end, end.peer), (end.peer, end)):
                        connect(one.qp, other.qp, one.node, other.node)
            if choose.random() < 0.5:
                sim.settle()
            if choose.random() < 0.2:
                polled += len(cq.poll(choose.randrange(1, 8)))
        assert (cq.statistics()["lost"], node.events()) == (0, [])
        assert refused > 50 and posted > 100 and polled > 50


def posts(end: End, flags: int) -> bool:
    """Posts a WRITE; whether there was room."""
    try:
        end.post(WR_WRITE, 0, 8, 0, flags=flags)
    except PyverbsRDMAError as error:
        if error.errno != errno.ENOMEM:
            raise
        return False
    return True


# -- what NICs refuse besides


def refused(end: End, words: str, *args: int, **more: object) -> None:
    with pytest.raises(PyverbsRDMAError, match=words) as caught:
        end.post(*args, **more)
    assert caught.value.errno == errno.EINVAL


def test_inline_data_has_no_more_elements_than_the_queue_allows() -> None:
    with Pair(cap=FOUR) as pair:
        piece = SGE(pair.a.memory.iova, 2, pair.a.memory.key)
        pair.a.post(WR_WRITE, to=0, sg=[piece, piece], flags=SIGNALED | INLINE)
        refused(pair.a, "3 scatter/gather elements: max_send_sge=2", WR_WRITE, to=0, sg=[piece] * 3, flags=INLINE)


def test_an_atomic_has_one_element() -> None:
    with Pair(cap=FOUR) as pair:
        half = SGE(pair.a.memory.iova, 4, pair.a.memory.key)
        refused(pair.a, "an atomic has one scatter/gather element, not 2", WR_FAA, to=0, sg=[half, half], add=1)
