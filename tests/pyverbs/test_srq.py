# SPDX-License-Identifier: MIT
"""Shared receive queues (ibv_create_srq(3), ibv_modify_srq(3), ibv_post_srq_recv(3); IBA 10.2.9)."""

import errno
from typing import Any

import pytest
from tests.forked import in_child
from tests.pyverbs.services import Group, make, srq, stock
from tests.pyverbs.world import RECV, World, fill, pattern, refused, set_state, values

from softverbs import verbs
from softverbs.core.memory.raw import Block
from softverbs.pyverbs import libibverbs_enums as e
from softverbs.pyverbs.pd import PD, ParentDomain, ParentDomainContext, ParentDomainInitAttr
from softverbs.pyverbs.pyverbs_error import PyverbsError
from softverbs.pyverbs.srq import SRQ, SrqAttr, SrqInitAttr, SrqInitAttrEx
from softverbs.pyverbs.wr import RecvWR

SUCCESS = e.IBV_WC_SUCCESS


@pytest.fixture
def group(world: World) -> Group:
    return Group(world).connect()


@pytest.fixture
def one(build: Any) -> World:
    made: World = build()
    return made


# -- receiving


@pytest.mark.parametrize("qp_type", [e.IBV_QPT_RC, e.IBV_QPT_UC], ids=["RC", "UC"])
def test_messages_take_receives_in_the_order_in_which_they_come(world: World, qp_type: int) -> None:
    group = Group(world, qp_type).connect()
    stock(world.b, group.srq, *range(10, 16))
    for wr_id, index in enumerate((1, 1, 0, 1, 0, 0)):
        world.a.memory[0] = 65 + wr_id
        group.send(index, wr_id)
        world.settle()
    assert group.receives() == [(10 + wr_id, SUCCESS, index) for wr_id, index in enumerate((1, 1, 0, 1, 0, 0))]
    assert [world.b.memory[8192 + 64 * number] for number in range(6)] == [65, 66, 67, 68, 69, 70]


def test_long_messages_of_two_peers_do_not_mix(world: World) -> None:
    """Each takes its receive with its first packet, and keeps it until its last, whatever comes between them."""
    group = Group(world).connect()
    stock(world.b, group.srq, 10, 11, length=20_000, spread=20_000)
    fill(world.a.memory, b"a" * 20_000)
    fill(world.a.memory, b"b" * 20_000, 20_000)
    group.send(0, 1, 20_000, offset=0)
    group.send(1, 2, 20_000, offset=20_000)
    world.settle()
    found = {index: wr_id for wr_id, status, index in group.receives() if status == SUCCESS}
    assert sorted(found.values()) == [10, 11]
    for index, letter in enumerate((b"a", b"b")):
        start = 8192 + 20_000 * (found[index] - 10)
        assert bytes(world.b.memory[start : start + 20_000]) == letter * 20_000


def test_a_write_with_immediate_data_takes_one_too(group: Group) -> None:
    world = group.world
    stock(world.b, group.srq, 10, 11)
    group.senders[1].post_send(world.a.wr(e.IBV_WR_RDMA_WRITE_WITH_IMM, 1, 100, at=30_000))
    group.send(0)
    world.settle()
    assert sorted(group.receives()) in ([(10, 0, 1), (11, 0, 0)], [(10, 0, 0), (11, 0, 1)])
    assert group.srq.query().srq_limit == 0


def test_an_empty_queue_makes_the_peer_wait(build: Any) -> None:
    world: World = build()
    group = Group(world, rnr_retry=7).connect()
    group.send(0)
    world.run()
    assert group.receives() == []
    stock(world.b, group.srq, 10)
    world.settle()
    assert group.receives() == [(10, SUCCESS, 0)]
    assert world.a.done(group.sent) == [(1, SUCCESS)]


def test_a_peer_that_does_not_want_to_wait_is_told(build: Any) -> None:
    world: World = build()
    group = Group(world, rnr_retry=0).connect()
    group.send(0)
    world.settle()
    assert world.a.done(group.sent) == [(1, e.IBV_WC_RNR_RETRY_EXC_ERR)]


def test_a_receive_that_is_too_short(group: Group) -> None:
    world = group.world
    stock(world.b, group.srq, 10, 11, length=10)
    group.send(0, 1, 11)
    world.settle()
    assert group.receives() == [(10, e.IBV_WC_LOC_LEN_ERR, 0)]
    assert world.a.done(group.sent) == [(1, e.IBV_WC_REM_INV_REQ_ERR)]
    group.send(1, 2, 10)
    world.settle()
    assert group.receives() == [(11, SUCCESS, 1)], "the other QP goes on"


def test_memory_is_looked_up_in_the_protection_domain_of_the_queue(world: World) -> None:
    """IBA 10.2.9: the SRQ has a protection domain, which need not be that of the QP."""
    other = PD(world.b.context)
    queue = SRQ(other, SrqInitAttr(SrqAttr(8)))
    taker = make(world.b, e.IBV_QPT_RC, queue)
    sender = make(world.a, e.IBV_QPT_RC)
    world.connect(sender, taker)
    queue.post_recv(RecvWR(10, 1, [world.b.sge(64, 8192)]))
    sender.post_send(world.a.wr(e.IBV_WR_SEND, 1))
    world.settle()
    statuses = {wc.wr_id: wc.status for side in {world.a, world.b} for wc in side.poll()}
    assert statuses[10] == e.IBV_WC_LOC_PROT_ERR, "the region is of the QP's domain, not of the queue's"


@pytest.mark.parametrize("seed", range(4))
def test_over_a_bad_network_every_message_arrives_once(build: Any, seed: int) -> None:
    world: World = build(faults={"seed": seed, "drop": 0.08, "duplicate": 0.05, "reorder": 0.05})
    group = Group(world).connect()
    stock(world.b, group.srq, *range(40), length=1500, spread=1500, offset=0)
    for number in range(20):
        for index in range(2):
            fill(world.a.memory, bytes([number + 100 * index]) * 1200, 1200 * (number + 20 * index))
            group.send(index, number, 1200, offset=1200 * (number + 20 * index))
    world.settle()
    assert len(world.a.done(group.sent)) == 40
    found = group.receives()
    assert sorted(wr_id for wr_id, status, _ in found if status == SUCCESS) == list(range(40))
    for index in range(2):
        order = [
            bytes(world.b.memory[1500 * wr_id : 1500 * wr_id + 1200]) for wr_id, _, which in found if which == index
        ]
        assert order == [bytes([number + 100 * index]) * 1200 for number in range(20)]


# -- the limit


def test_the_limit_raises_one_event_and_is_disarmed(world: World) -> None:
    group = Group(world).connect()
    world.b.events()
    stock(world.b, group.srq, *range(10))
    group.srq.modify(SrqAttr(srq_limit=7), e.IBV_SRQ_LIMIT)
    assert group.srq.query().srq_limit == 7
    for number in range(3):
        group.send(number % 2, number)
        world.settle()
    assert limit_events(world, group.srq) == 0, "seven are left: not fewer than seven"
    group.send(0)
    world.settle()
    assert limit_events(world, group.srq) == 1
    assert group.srq.query().srq_limit == 0
    group.send(0)
    world.settle()
    assert limit_events(world, group.srq) == 0
    group.srq.modify(SrqAttr(srq_limit=5), e.IBV_SRQ_LIMIT)
    group.send(0)
    world.settle()
    assert limit_events(world, group.srq) == 1, "armed again, it tells again"


def limit_events(world: World, queue: SRQ) -> int:
    """How many events of the limit have come; each is about this queue."""
    found = [element for kind, element in world.b.events() if kind == e.IBV_EVENT_SRQ_LIMIT_REACHED]
    assert all(element is queue for element in found)
    return len(found)


def test_the_limit_asked_for_at_creation_is_not_armed(one: World) -> None:
    """ibv_create_srq(3): srq_limit is irrelevant there."""
    queue = SRQ(one.b.pd, SrqInitAttr(SrqAttr(8, 1, 5)))
    assert queue.query().srq_limit == 0


def test_the_last_receive_of_a_queue_pair_in_error_is_told(world: World) -> None:
    """ibv_get_async_event(3): LAST_WQE_REACHED: a QP in error takes nothing from its SRQ any more."""
    group = Group(world).connect()
    world.b.events()
    stock(world.b, group.srq, 10)
    set_state(group.takers[0], e.IBV_QPS_ERR)
    world.settle()
    found = [(kind, element) for kind, element in world.b.events() if kind == e.IBV_EVENT_QP_LAST_WQE_REACHED]
    assert found == [(e.IBV_EVENT_QP_LAST_WQE_REACHED, group.takers[0])]
    assert group.receives() == [], "what is posted stays for the others"
    group.send(1)
    world.settle()
    assert group.receives() == [(10, SUCCESS, 1)]


def test_an_event_waits_to_be_acknowledged(world: World) -> None:
    group = Group(world).connect()
    world.b.events()
    stock(world.b, group.srq, 10)
    group.srq.modify(SrqAttr(srq_limit=1), e.IBV_SRQ_LIMIT)
    group.send(0)
    world.settle()
    while True:
        event = world.b.context.get_async_event()
        if event.event_type == e.IBV_EVENT_SRQ_LIMIT_REACHED:
            break
        event.ack()
    assert event.element is group.srq
    for qp in group.takers:
        qp.close()
    event.ack()
    assert verbs.ibv_destroy_srq(group.srq) == 0


# -- counters (semantics, section 1): RECV counts on the QP that consumes


@pytest.mark.row("1: Bit RECV")
def test_receives_count_on_the_queue_pair_that_consumes_them(world: World) -> None:
    group = Group(world)
    counters = [world.b.count_all(qp) for qp in group.takers]
    group.connect()
    stock(world.b, group.srq, *range(6), length=2000, spread=2000)
    for index, length in ((0, 10), (1, 2000), (1, 5)):
        group.send(index, 1, length)
        world.settle()
    group.senders[1].post_send(world.a.wr(e.IBV_WR_RDMA_WRITE_WITH_IMM, 1))
    world.settle()
    assert [values(each) for each in counters] == [{"RECV": (1, 0)}, {"RECV": (3, 0), "REMOTE_WRITE": (1, 0)}]


@pytest.mark.row("1: BYTES on error")
def test_bytes_and_errors_count_there_too(world: World) -> None:
    group = Group(world)
    counters = [world.b.count(qp, RECV, e.IBV_COMP_CNTR_TYPE_BYTES) for qp in group.takers]
    group.connect()
    stock(world.b, group.srq, *range(3), length=100, spread=100)
    group.send(1, 1, 60)
    world.settle()
    group.send(0, 1, 101)
    world.settle()
    assert [counter.read_pair() for counter in counters] == [(0, 1), (60, 0)]


@pytest.mark.row("1: Invariant")
def test_what_is_left_in_the_queue_counts_nowhere(world: World) -> None:
    group = Group(world)
    counters = [world.b.count_all(qp) for qp in group.takers]
    group.connect()
    stock(world.b, group.srq, 10, 11)
    for qp in group.takers:
        set_state(qp, e.IBV_QPS_ERR)
    world.settle()
    assert group.receives() == []
    assert [values(each) for each in counters] == [{}, {}]


def test_resetting_a_queue_pair_leaves_the_queue_alone(world: World) -> None:
    group = Group(world).connect()
    stock(world.b, group.srq, 10, 11)
    set_state(group.takers[0], e.IBV_QPS_RESET)
    fill(world.a.memory, pattern(8))
    group.send(1)
    world.settle()
    assert group.receives() == [(10, SUCCESS, 1)]
    assert world.b.memory[8192:8200] == pattern(8)


# -- messages that do not end


@pytest.mark.parametrize("end", ["error", "reset", "close"])
def test_the_receive_of_a_message_that_never_ends(build: Any, end: str) -> None:
    """It was taken out of the queue with the first packet: ERR flushes it, RESET and destroying drop it."""
    world: World = build(wire=True)
    group = Group(world)
    counter = world.b.count(group.takers[0], RECV)
    group.connect()
    world.b.events()
    stock(world.b, group.srq, 10, 11, length=4096, spread=4096)
    world.wire.rule = lambda frame: [] if frame[0] == 0x02 else None  # SEND LAST
    group.send(0, 1, 3000)
    world.run()
    assert group.receives() == []
    if end == "error":
        set_state(group.takers[0], e.IBV_QPS_ERR)
        assert group.receives() == [(10, e.IBV_WC_WR_FLUSH_ERR, 0)]
        assert counter.read_pair() == (0, 1)
        kinds = [kind for kind, _ in world.b.events()]
        assert kinds.count(e.IBV_EVENT_QP_LAST_WQE_REACHED) == 1
    elif end == "reset":
        set_state(group.takers[0], e.IBV_QPS_RESET)
        assert group.receives() == []
        assert counter.read_pair() == (0, 0)
    else:
        group.takers[0].close()
        assert counter.read_pair() == (0, 0)
    world.wire.rule = None
    group.send(1, 2, 100)
    world.settle()
    assert [(wr_id, status) for wr_id, status, _ in taken(group)] == [(11, SUCCESS)]


def taken(group: Group) -> list[tuple[int, int, int]]:
    """As ``Group.receives``, where one of the two may be closed."""
    return [(wc.wr_id, wc.status, wc.qp_num) for wc in group.world.b.poll(group.came)]


def test_a_queue_that_grows_while_a_message_is_under_way(build: Any) -> None:
    world: World = build(wire=True)
    group = Group(world, max_wr=2).connect()
    stock(world.b, group.srq, 10, 11, length=4096, spread=4096)
    fill(world.a.memory, pattern(3000))
    held: list[bytes] = []
    world.wire.rule = lambda frame: held.append(frame) or [] if frame[0] == 0x02 and not held else None  # type: ignore[func-returns-value]
    group.send(0, 1, 3000)
    world.run()
    group.srq.modify(SrqAttr(max_wr=50), e.IBV_SRQ_MAX_WR)
    stock(world.b, group.srq, *range(12, 40), offset=20_000)
    world.settle()
    assert held
    assert group.receives() == [(10, SUCCESS, 0)]
    assert world.b.memory[8192 : 8192 + 3000] == pattern(3000)
    group.send(1, 2, 10)
    world.settle()
    assert group.receives() == [(11, SUCCESS, 1)]


# -- real sockets, and fork


def test_over_real_sockets(build: Any) -> None:
    world: World = build("udp")
    group = Group(world).connect()
    stock(world.b, group.srq, *range(20), length=2000, spread=2000, offset=0)
    fill(world.a.memory, pattern(40_000))
    for number in range(20):
        group.send(number % 2, number, 2000, offset=2000 * number)
    found: list[Any] = []
    world.until(lambda: found.extend(group.receives()) or len(found) == 20)
    assert [wr_id for wr_id, status, _ in found if status == SUCCESS] == list(range(20))
    contents = sorted(bytes(world.b.memory[2000 * wr_id : 2000 * wr_id + 2000]) for wr_id in range(20))
    assert contents == sorted(pattern(40_000)[2000 * number : 2000 * number + 2000] for number in range(20))


def test_a_forked_child_is_told(build: Any) -> None:
    world: World = build()
    queue = srq(world.a)

    def check() -> None:
        for act in (lambda: queue.post_recv(RecvWR(1)), queue.query, lambda: srq(world.a)):
            with pytest.raises(PyverbsError, match="fork"):
                act()
        queue.close()

    in_child(check)
    queue.post_recv(RecvWR(1))


def test_what_is_closed_makes_no_queue(one: World) -> None:
    pd = PD(one.a.context)
    pd.close()
    assert "closed" in refused(errno.EINVAL, SRQ, pd, SrqInitAttr(SrqAttr()))
    attr = SrqInitAttrEx()
    attr.comp_mask, attr.pd = e.IBV_SRQ_INIT_ATTR_PD, pd
    assert "closed" in refused(errno.EINVAL, SRQ, one.a.context, attr)


def test_the_size_of_a_queue_in_memory_of_the_application_changes(world: World) -> None:
    """A parent domain's allocator gives the new queue, and gets the old one back."""
    given: dict[int, Any] = {}

    def allocate(_pd: Any, _context: Any, size: int, _alignment: int, _resource: int) -> int:
        block = Block(size)
        given[block.address] = block
        return int(block.address)

    def free(_pd: Any, _context: Any, address: int, _resource: int) -> None:
        del given[address]

    init = ParentDomainInitAttr(world.b.pd, pd_context=ParentDomainContext(world.b.pd, allocate, free))
    with ParentDomain(world.b.context, init) as parent:
        queue = SRQ(parent, SrqInitAttr(SrqAttr(4)))
        taker, sender = make(world.b, e.IBV_QPT_RC, queue), make(world.a, e.IBV_QPT_RC)
        world.connect(sender, taker)
        stock(world.b, queue, 10, 11)
        (before,) = given
        queue.modify(SrqAttr(100), e.IBV_SRQ_MAX_WR)
        (after,) = given
        assert after != before
        stock(world.b, queue, *range(12, 60), offset=16384)
        for wr_id in range(3):
            sender.post_send(world.a.wr(e.IBV_WR_SEND, wr_id))
            world.settle()
        done = [entry for side in {world.a, world.b} for entry in side.done()]
        assert [wr_id for wr_id, _ in done if wr_id >= 10] == [10, 11, 12]
        queue.close()
        assert given == {}
