# SPDX-License-Identifier: MIT
"""Shared receive queues as objects: sizes, who uses them, how they end, what is refused (ibv_create_srq(3))."""

import ctypes
import errno
import gc
import itertools
from typing import Any

import pytest
from tests.pyverbs.services import Group, make, srq, stock
from tests.pyverbs.world import CAP, World, refused

from softverbs import verbs
from softverbs.pyverbs import libibverbs_enums as e
from softverbs.pyverbs.device import Context
from softverbs.pyverbs.pd import PD
from softverbs.pyverbs.pyverbs_error import PyverbsUserError
from softverbs.pyverbs.qp import QP, QPCap, QPInitAttr
from softverbs.pyverbs.srq import SRQ, OpsWr, SrqAttr, SrqInitAttr, SrqInitAttrEx
from softverbs.pyverbs.wr import RecvWR

SUCCESS = e.IBV_WC_SUCCESS


@pytest.fixture
def group(world: World) -> Group:
    return Group(world).connect()


@pytest.fixture
def one(build: Any) -> World:
    made: World = build()
    return made


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
