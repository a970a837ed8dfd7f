"""Shared receive queues (ibv_create_srq(3), ibv_modify_srq(3), ibv_post_srq_recv(3); IBA 10.2.9)."""

import ctypes
import errno
import gc
import itertools
from typing import Any

import pytest
from tests.forked import in_child
from tests.pyverbs.services import make, srq, stock
from tests.pyverbs.world import CAP, RECV, World, fill, pattern, refused, set_state, values

from softverbs import verbs
from softverbs.core.memory import Block
from softverbs.pyverbs import libibverbs_enums as e
from softverbs.pyverbs.cq import CQ
from softverbs.pyverbs.device import Context
from softverbs.pyverbs.pd import PD, ParentDomain, ParentDomainContext, ParentDomainInitAttr
from softverbs.pyverbs.pyverbs_error import PyverbsError, PyverbsUserError
from softverbs.pyverbs.qp import QP, QPCap, QPInitAttr
from softverbs.pyverbs.srq import SRQ, OpsWr, SrqAttr, SrqInitAttr, SrqInitAttrEx
from softverbs.pyverbs.wr import RecvWR

SUCCESS = e.IBV_WC_SUCCESS


class Group:
    """Two QPs of side ``b`` on one shared receive queue, and their peers of side ``a``."""

    def __init__(self, world: World, qp_type: int = e.IBV_QPT_RC, max_wr: int = 64, **changes: Any) -> None:
        self.world = world
        self.srq = srq(world.b, max_wr)
        self.came, self.sent = CQ(world.b.context, 256), CQ(world.a.context, 256)
        self.takers = [make(world.b, qp_type, self.srq, self.came) for _ in range(2)]
        self.senders = [make(world.a, qp_type, cq=self.sent) for _ in range(2)]
        self.changes = changes

    def connect(self) -> "Group":
        for sender, taker in zip(self.senders, self.takers, strict=True):
            self.world.connect(sender, taker, **self.changes)
        return self

    def send(self, index: int, wr_id: int = 1, length: int = 8, **what: Any) -> None:
        self.senders[index].post_send(self.world.a.wr(e.IBV_WR_SEND, wr_id, length, **what))

    def receives(self) -> list[tuple[int, int, int]]:
        """wr_id, status and which of the two QPs."""
        numbers = [qp.qp_num for qp in self.takers]
        return [(wc.wr_id, wc.status, numbers.index(wc.qp_num)) for wc in self.world.b.poll(self.came)]


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


# -- sizes


def test_creation_reports_the_actual_sizes(one: World) -> None:
    init = SrqInitAttr(SrqAttr(5, 2, 3))
    with SRQ(one.a.pd, init) as queue:
        found = queue.query()
        assert found.max_wr >= 5
        assert found.max_sge >= 2
        assert (init.max_wr, init.max_sge) == (found.max_wr, found.max_sge)
        assert queue.srq > 0
        assert queue.handle > 0
        assert queue.context is one.a.context
    assert queue.srq == 0


def test_a_full_queue(one: World) -> None:
    queue = srq(one.b, 3)
    bad = RecvWR(99)
    wrs = [RecvWR(index, 1, [one.b.sge(8)]) for index in range(5)]
    for before, after in itertools.pairwise(wrs):
        before.next_wr = after
    reason = refused(errno.ENOMEM, queue.post_recv, wrs[0], bad)
    assert "full" in reason
    assert bad.wr_id == 3
    pointer = ctypes.py_object()
    assert verbs.ibv_post_srq_recv(queue, RecvWR(7), pointer) == errno.ENOMEM
    assert pointer.value.wr_id == 7


def test_more_elements_than_it_has(one: World) -> None:
    queue = srq(one.b, 3, 2)
    queue.post_recv(RecvWR(1, 2, [one.b.sge(8)] * 2))
    assert "max" in refused(errno.EINVAL, queue.post_recv, RecvWR(1, 3, [one.b.sge(8)] * 3))


def test_the_size_changes_and_what_is_posted_stays(world: World) -> None:
    group = Group(world, max_wr=4).connect()
    stock(world.b, group.srq, 10, 11, 12, 13)
    group.srq.modify(SrqAttr(max_wr=9), e.IBV_SRQ_MAX_WR)
    assert group.srq.query().max_wr >= 9
    stock(world.b, group.srq, 14, 15, offset=16384)
    assert "posted" in refused(errno.EINVAL, group.srq.modify, SrqAttr(max_wr=5), e.IBV_SRQ_MAX_WR)
    for number in range(6):
        group.send(number % 2, number)
        world.settle()
    assert [wr_id for wr_id, _, _ in group.receives()] == [10, 11, 12, 13, 14, 15]


@pytest.mark.parametrize(
    ("attr", "mask", "words"),
    [
        (SrqAttr(max_wr=0), e.IBV_SRQ_MAX_WR, "max_wr"),
        (SrqAttr(max_wr=2**31), e.IBV_SRQ_MAX_WR, "max_wr"),
        (SrqAttr(srq_limit=9), e.IBV_SRQ_LIMIT, "srq_limit"),
        (SrqAttr(), 4, "comp_mask"),
        (SrqAttr(), -1, "comp_mask"),
        (SrqAttr(), "x", "comp_mask"),
        (None, 1, "SrqAttr is expected"),
        (5, 1, "SrqAttr is expected"),
    ],
)
def test_a_change_that_is_refused_changes_nothing(one: World, attr: Any, mask: Any, words: str) -> None:
    queue = srq(one.b, 8)
    assert words in refused(errno.EINVAL, queue.modify, attr, mask)
    found = queue.query()
    assert (found.max_wr, found.srq_limit) == (8, 0)


def test_both_changes_or_none(one: World) -> None:
    queue = srq(one.b, 8)
    both = e.IBV_SRQ_MAX_WR | e.IBV_SRQ_LIMIT
    refused(errno.EINVAL, queue.modify, SrqAttr(16, 1, 17), both)
    assert queue.query().max_wr == 8
    stock(one.b, queue, *range(8))
    queue.modify(SrqAttr(16, 1, 3), both)
    assert (queue.query().max_wr, queue.query().srq_limit) == (16, 3)
    queue.modify(SrqAttr(32, 1, 1), 0)
    assert (queue.query().max_wr, queue.query().srq_limit) == (16, 3)


@pytest.mark.parametrize(
    ("attr", "words"),
    [(SrqAttr(0), "max_wr"), (SrqAttr(2**31), "max_wr"), (SrqAttr(5, 2**20), "max_sge"), (None, "max_wr")],
)
def test_sizes_that_cannot_be_had(one: World, attr: Any, words: str) -> None:
    assert words in refused(errno.EINVAL, SRQ, one.a.pd, SrqInitAttr(attr))


def test_no_more_queues_than_the_device_has(build: Any) -> None:
    side = build(max_srq=1).a
    kept = srq(side)
    assert "SRQ" in refused(errno.ENOMEM, srq, side)
    kept.close()
    srq(side).close()


# -- QPs with a shared queue


def test_the_queue_pair_has_no_receives_of_its_own(group: Group) -> None:
    qp = group.takers[0]
    assert "SRQ" in refused(errno.EINVAL, qp.post_recv, RecvWR(1))
    found, init = qp.query(e.IBV_QP_CAP)
    assert init.srq is group.srq
    assert (found.cap.max_recv_wr, found.cap.max_recv_sge) == (0, 0)


def test_sizes_of_the_own_queue_are_not_looked_at(one: World) -> None:
    queue = srq(one.a)
    sizes = QPCap(**{**CAP, "max_recv_wr": 2**31, "max_recv_sge": 2**20})
    init = QPInitAttr(e.IBV_QPT_RC, None, one.a.cq, one.a.cq, queue, sizes)
    with QP(one.a.pd, init) as qp:
        assert qp.qp_state == e.IBV_QPS_RESET
        assert init.max_send_wr >= CAP["max_send_wr"]


def test_a_queue_that_is_in_use_stays(one: World) -> None:
    queue = srq(one.b)
    qp = make(one.b, e.IBV_QPT_RC, queue)
    assert verbs.ibv_destroy_srq(queue) == errno.EBUSY
    assert "used by 1" in verbs.last_reason()
    qp.close()
    assert verbs.ibv_destroy_srq(queue) == 0
    assert verbs.ibv_destroy_srq(queue) == errno.EINVAL


def test_closing_the_queue_closes_its_queue_pairs(one: World) -> None:
    queue = srq(one.b)
    qp = make(one.b, e.IBV_QPT_RC, queue)
    queue.close()
    queue.close()
    assert qp.context is None
    assert "closed" in refused(errno.EINVAL, queue.query)
    assert "closed" in refused(errno.EINVAL, queue.post_recv, RecvWR(1))
    with pytest.raises(Exception, match="closed"):
        make(one.b, e.IBV_QPT_RC, queue)


def test_a_queue_pair_keeps_its_queue(one: World) -> None:
    qp = make(one.b, e.IBV_QPT_RC, srq(one.b))
    gc.collect()
    found = qp.query(1)[1].srq
    assert isinstance(found, SRQ)
    assert found.query().max_wr == 64


def test_closing_the_domain_closes_the_queue(one: World) -> None:
    pd = PD(one.a.context)
    queue = SRQ(pd, SrqInitAttr(SrqAttr()))
    assert verbs.ibv_dealloc_pd(pd) == errno.EBUSY
    pd.close()
    assert queue.srq == 0


def test_garbage_is_taken_away(build: Any) -> None:
    side = build(max_srq=2).a
    for _ in range(5):
        queue = srq(side)
        make(side, e.IBV_QPT_RC, queue)
        del queue
        gc.collect()


def test_things_of_another_context_are_refused(one: World) -> None:
    other = Context(device=one.a.device)
    queue = SRQ(PD(other), SrqInitAttr(SrqAttr()))
    init = QPInitAttr(e.IBV_QPT_RC, None, one.a.cq, one.a.cq, queue, QPCap(**CAP))
    assert "srq belongs to another context" in refused(errno.EINVAL, QP, one.a.pd, init)
    attr = SrqInitAttrEx()
    attr.comp_mask, attr.pd = e.IBV_SRQ_INIT_ATTR_PD, one.a.pd
    assert "pd belongs to another context" in refused(errno.EINVAL, SRQ, other, attr)
    other.close()


# -- from a context


def test_a_plain_queue_from_a_context(world: World) -> None:
    attr = SrqInitAttrEx(16, 2)
    attr.comp_mask, attr.pd = e.IBV_SRQ_INIT_ATTR_PD | e.IBV_SRQ_INIT_ATTR_TYPE, world.b.pd
    queue = SRQ(world.b.context, attr)
    assert (attr.max_wr, attr.max_sge) == (queue.query().max_wr, queue.query().max_sge)
    sender, taker = make(world.a, e.IBV_QPT_RC), make(world.b, e.IBV_QPT_RC, queue)
    world.connect(sender, taker)
    stock(world.b, queue, 10)
    sender.post_send(world.a.wr(e.IBV_WR_SEND, 1))
    world.settle()
    assert (10, SUCCESS) in [entry for side in {world.a, world.b} for entry in side.done()]
    assert "XRC" in refused(errno.EINVAL, queue.get_srq_num)
    again = verbs.ibv_create_srq_ex(world.b.context, attr)
    assert isinstance(again, SRQ)


@pytest.mark.parametrize(
    ("members", "code", "words"),
    [
        ({"comp_mask": 64}, errno.EINVAL, "comp_mask"),
        ({"comp_mask": 0}, errno.EINVAL, "pd is missing"),
        ({"comp_mask": e.IBV_SRQ_INIT_ATTR_PD, "pd": None}, errno.EINVAL, "pd is missing"),
        ({"comp_mask": 3, "srq_type": e.IBV_SRQT_TM}, errno.EOPNOTSUPP, "tag matching"),
        ({"comp_mask": e.IBV_SRQ_INIT_ATTR_PD | e.IBV_SRQ_INIT_ATTR_TM}, errno.EOPNOTSUPP, "tag matching"),
        ({"comp_mask": 3, "srq_type": 9}, errno.EINVAL, "srq_type"),
        ({"comp_mask": 3, "srq_type": e.IBV_SRQT_XRC}, errno.EINVAL, "xrcd is missing"),
    ],
)
def test_extended_attributes_that_cannot_be_had(one: World, members: dict[str, Any], code: int, words: str) -> None:
    attr = SrqInitAttrEx()
    attr.pd = one.a.pd
    for name, value in members.items():
        setattr(attr, name, value)
    assert words in refused(code, SRQ, one.a.context, attr)


def test_arguments_that_are_none(one: World) -> None:
    for junk in (None, 5, "x", object(), one.a.cq):
        with pytest.raises(PyverbsUserError, match="Cannot create SRQ"):
            SRQ(junk, SrqInitAttr())
        assert "is expected" in refused(errno.EINVAL, SRQ, one.a.pd, junk)
        assert "is expected" in refused(errno.EINVAL, SRQ, one.a.context, junk)
        assert "RecvWR is expected" in refused(errno.EINVAL, srq(one.a).post_recv, junk)
        assert "is expected" in refused(errno.EINVAL, SrqInitAttr, junk) if junk is not None else True
    with pytest.raises(Exception, match="SRQ is expected"):
        QPInitAttr(srq=5)


def test_tag_matching_is_refused(one: World) -> None:
    work = OpsWr(1, e.IBV_WR_TAG_ADD, next_wr=OpsWr(2), num_sge=1, sg_list=[one.a.sge(8)], tag=2**64 - 1)
    assert (work.wr_id, work.tag, work.next_wr.wr_id) == (1, 2**64 - 1, 2)
    assert "tag matching" in refused(errno.EOPNOTSUPP, srq(one.a).post_srq_ops, work)
    assert verbs.ibv_post_srq_ops(srq(one.a), work, None) == errno.EOPNOTSUPP


# -- the functions of the manual


def test_the_functions_of_the_manual(one: World) -> None:
    queue = verbs.ibv_create_srq(one.a.pd, SrqInitAttr(SrqAttr(7)))
    assert isinstance(queue, SRQ)
    assert verbs.ibv_post_srq_recv(queue, RecvWR(1), None) == 0
    assert verbs.ibv_modify_srq(queue, SrqAttr(srq_limit=1), e.IBV_SRQ_LIMIT) == 0
    attr = SrqAttr(0, 0, 0)
    assert verbs.ibv_query_srq(queue, attr) == 0
    assert (attr.max_wr, attr.max_sge, attr.srq_limit) == (7, 1, 1)
    assert verbs.ibv_get_srq_num(queue, ctypes.c_uint32()) == errno.EINVAL
    assert verbs.ibv_destroy_srq(queue) == 0


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
