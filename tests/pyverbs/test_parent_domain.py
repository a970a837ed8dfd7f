# SPDX-License-Identifier: MIT
"""Parent domains: a protection domain with allocators for its queues, a thread domain, or both
(ibv_alloc_parent_domain(3), ibv_alloc_td(3)).
"""

import errno
from typing import Any

import pytest
from tests.pyverbs.world import ALL, CAP, World, pattern, refused

from softverbs import verbs
from softverbs.pyverbs import libibverbs_enums as e
from softverbs.pyverbs import mem_alloc as mem
from softverbs.pyverbs.cq import CQEX, CqInitAttrEx
from softverbs.pyverbs.device import Context
from softverbs.pyverbs.mr import MR, MW
from softverbs.pyverbs.pd import (
    PD,
    RESOURCE_CQ,
    RESOURCE_QP,
    RESOURCE_SRQ,
    TD,
    ParentDomain,
    ParentDomainContext,
    ParentDomainInitAttr,
    TDInitAttr,
)
from softverbs.pyverbs.pyverbs_error import PyverbsUserError
from softverbs.pyverbs.qp import QP, QPCap, QPInitAttr, QPInitAttrEx
from softverbs.pyverbs.srq import SRQ, SrqAttr, SrqInitAttr
from softverbs.pyverbs.wr import SGE, RecvWR

OK, DEFAULT = e.IBV_WC_SUCCESS, e._IBV_ALLOCATOR_USE_DEFAULT
SEND = e.IBV_WR_SEND


class Allocator:
    """Counts what is asked for, and what comes back."""

    def __init__(self, answer: Any = None) -> None:
        self.answer = answer
        self.live: dict[int, tuple[int, int]] = {}
        self.asked: list[tuple[int, int, int]] = []
        self.seen: set[tuple[Any, Any]] = set()

    def alloc(self, pd: Any, context: Any, size: int, alignment: int, resource: int) -> Any:
        self.asked.append((size, alignment, resource))
        self.seen.add((pd, context))
        if self.answer is not None:
            answer = self.answer(size) if callable(self.answer) else self.answer
            if isinstance(answer, int) and 0 < answer < DEFAULT:
                self.live[answer] = (size, resource)
            return answer
        address = mem.posix_memalign(size, alignment)
        self.live[address] = (size, resource)
        return address

    def free(self, pd: Any, context: Any, address: int, resource: int) -> None:
        self.seen.add((pd, context))
        _, made_for = self.live.pop(address)
        assert made_for == resource
        if self.answer is None:
            mem.free(address)

    def domain(self, context: Context, pd: PD, data: Any = None) -> ParentDomain:
        self.context = ParentDomainContext(pd, self.alloc, self.free, data)
        return ParentDomain(context, ParentDomainInitAttr(pd, self.context))


@pytest.fixture
def one(build: Any) -> Any:
    return build()


def exchange(world: World, first: QP, second: QP, count: int = 100) -> None:
    """Messages from ``a`` to ``b``, more than the queues have slots."""
    data = pattern(64)
    world.a.memory[:64] = data
    for turn in range(count):
        world.b.post_recv(second, turn, length=64, offset=64)
        first.post_send(world.a.wr(SEND, turn, 64))
        world.settle()
        assert world.a.done() == [(turn, OK)]
        assert world.b.done() == [(turn, OK)]
    assert world.b.memory[64:128] == data


def test_it_is_the_domain_that_it_extends(world: World) -> None:
    """Regions, windows and QPs of either work together."""
    pd = ParentDomain(world.b.context, ParentDomainInitAttr(world.b.pd))
    assert pd.handle == world.b.pd.handle and pd.parent is world.b.pd and pd.td is None
    region = MR(pd, 4096, ALL)
    first, second = world.connect(world.a.qp(), world.b.qp(pd=pd))
    third, _ = world.connect(world.a.qp(), world.b.qp())
    for qp in (first, third):
        wr = world.a.wr(e.IBV_WR_RDMA_WRITE)
        wr.set_wr_rdma(region.rkey, region.buf)
        qp.post_send(wr)
        world.settle()
        assert world.a.done() == [(1, OK)]
    world.b.post_recv(second, 2)  # into a region of the other name
    first.post_send(world.a.wr(SEND))
    world.settle()
    assert world.b.done() == [(2, OK)]
    MW(pd, 1).close()
    MR(PD(world.b.context), 64, 0).rereg(e.IBV_REREG_MR_CHANGE_PD, pd)


def test_queues_in_memory_of_the_application(world: World) -> None:
    allocator = Allocator()
    pd = allocator.domain(world.b.context, world.b.pd, "data")
    assert allocator.context.user_data == "data"
    second = world.b.qp(pd=pd, max_send_wr=8, max_recv_wr=8)
    assert [resource for _, _, resource in allocator.asked] == [RESOURCE_QP] * 2
    assert all(size > 0 and alignment == 4096 for size, alignment, _ in allocator.asked)
    assert allocator.seen == {(world.b.pd, allocator.context)}
    first, _ = world.connect(world.a.qp(), second)
    exchange(world, first, second)
    used = sum(any(mem_bytes(address, size)) for address, (size, _) in allocator.live.items())
    assert used, "the receives were written to the application's memory"
    second.post_send(world.b.wr(SEND, 5))
    second.close()
    assert not allocator.live
    world.settle()
    pd.close()


def mem_bytes(address: int, length: int) -> bytes:
    import ctypes

    return ctypes.string_at(address, length)


def test_what_is_posted_lies_there(build: Any) -> None:
    world = build()
    allocator = Allocator()
    pd = allocator.domain(world.b.context, world.b.pd)
    qp = world.b.qp(pd=pd)
    world.move(qp, e.IBV_QPS_INIT)
    qp.post_recv(RecvWR(0x1122334455667788, 1, [world.b.sge(8)]))
    blocks = [mem_bytes(address, size) for address, (size, _) in allocator.live.items()]
    number = (0x1122334455667788).to_bytes(8, "little")
    assert sum(number in block for block in blocks) == 1


def test_an_extended_cq_and_an_srq_in_it(world: World) -> None:
    allocator = Allocator()
    pd = allocator.domain(world.b.context, world.b.pd)
    mask = e.IBV_CQ_INIT_ATTR_MASK_PD
    cq = CQEX(world.b.context, CqInitAttrEx(cqe=16, comp_mask=mask, parent_domain=pd))
    srq = SRQ(pd, SrqInitAttr(SrqAttr(max_wr=16, max_sge=2)))
    assert [resource for _, _, resource in allocator.asked] == [RESOURCE_CQ, RESOURCE_SRQ]
    init = QPInitAttr(e.IBV_QPT_RC, None, cq, cq, srq, QPCap(**CAP), 1)
    first, second = world.connect(world.a.qp(), QP(pd, init))
    world.a.memory[:8] = b"to a srq"
    for turn in range(40):
        srq.post_recv(RecvWR(turn, 1, [world.b.sge(64, 64)]))
        first.post_send(world.a.wr(SEND, turn))
        world.settle()
        assert world.a.done() == [(turn, OK)]
        assert cq.start_poll() == 0
        assert (cq.wr_id, cq.status) == (turn, OK)
        cq.end_poll()
        if turn == 10:
            cq.resize(300)
            assert allocator.asked[-1][2] == RESOURCE_CQ
    assert world.b.memory[64:72] == b"to a srq"
    for closed in (second, srq, cq):
        closed.close()
    assert not allocator.live
    pd.close()


def test_the_allocator_may_leave_it_to_the_device(world: World) -> None:
    allocator = Allocator(DEFAULT)
    pd = allocator.domain(world.b.context, world.b.pd)
    first, second = world.connect(world.a.qp(), world.b.qp(pd=pd))
    exchange(world, first, second, 10)
    assert len(allocator.asked) == 2
    second.close()


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        (0, errno.ENOMEM),
        (lambda size: None, errno.ENOMEM),
        (4096, errno.EFAULT),
        (8, errno.EINVAL),
        (-1, errno.EINVAL),
        ("x", errno.EINVAL),
    ],
)
def test_memory_that_is_of_no_use(one: World, answer: Any, code: int) -> None:
    allocator = Allocator(answer)
    pd = allocator.domain(one.b.context, one.b.pd)
    users = one.b.pd._core.users
    refused(code, lambda: one.b.qp(pd=pd))
    assert one.b.pd._core.users == users and not allocator.live
    one.b.cq.close()  # nothing of it is left in the CQ either
    pd.close()


def test_an_allocator_that_raises(one: World) -> None:
    calls = []

    def alloc(*_: Any) -> int:
        calls.append(1)
        if len(calls) == 2:
            raise RuntimeError("out of luck")
        return int(mem.posix_memalign(1 << 16, 4096))

    freed: list[int] = []
    context = ParentDomainContext(one.b.pd, alloc, lambda pd, context, address, resource: freed.append(address))
    pd = ParentDomain(one.b.context, ParentDomainInitAttr(one.b.pd, context))
    with pytest.raises(RuntimeError, match="out of luck"):
        one.b.qp(pd=pd, max_send_wr=1, max_recv_wr=1)
    assert len(freed) == 1
    mem.free(freed[0])
    one.b.cq.close()


def test_the_order_of_closing(one: World) -> None:
    allocator = Allocator()
    parent = PD(one.b.context)
    pd = allocator.domain(one.b.context, parent)
    qp = one.b.qp(pd=pd)
    assert "still there" in refused(errno.EBUSY, pd._destroy)
    assert verbs.ibv_dealloc_pd(pd) == errno.EBUSY
    assert verbs.ibv_dealloc_pd(parent) == errno.EBUSY
    qp.close()
    assert verbs.ibv_dealloc_pd(parent) == errno.EBUSY
    assert verbs.ibv_dealloc_pd(pd) == 0
    assert verbs.ibv_dealloc_pd(parent) == 0


def test_closing_the_domain_closes_all_that_is_in_it(one: World) -> None:
    allocator = Allocator()
    parent = PD(one.b.context)
    td = TD(one.b.context)
    pd = ParentDomain(one.b.context, ParentDomainInitAttr(parent, td=td))
    inner = allocator.domain(one.b.context, pd)
    assert inner.handle == parent.handle
    qp, region = one.b.qp(pd=inner), MR(inner, 64, 0)
    parent.close()
    assert qp._core is region._core is pd._core is inner._core is None
    assert not allocator.live
    td.close()


def test_a_closed_context_closes_it(build: Any) -> None:
    world = build()
    allocator = Allocator()
    pd = allocator.domain(world.b.context, world.b.pd)
    qp = world.b.qp(pd=pd)
    world.b.context.close()
    assert pd._core is None and qp._core is None and not allocator.live


def test_a_collected_qp_gives_its_memory_back(one: World) -> None:
    allocator = Allocator()
    pd = allocator.domain(one.b.context, one.b.pd)
    one.b.qp(pd=pd)
    assert not allocator.live
    pd.close()


def test_from_a_context_by_attributes(one: World) -> None:
    allocator = Allocator()
    pd = allocator.domain(one.b.context, one.b.pd)
    init = QPInitAttrEx(
        qp_type=e.IBV_QPT_RC, scq=one.b.cq, rcq=one.b.cq, cap=QPCap(), pd=pd, comp_mask=e.IBV_QP_INIT_ATTR_PD
    )
    with QP(one.b.context, init):
        assert allocator.live
    assert not allocator.live


def test_thread_domains(one: World) -> None:
    context = one.b.context
    td = verbs.ibv_alloc_td(context, TDInitAttr())
    pd = verbs.ibv_alloc_parent_domain(context, ParentDomainInitAttr(one.b.pd, td=td))
    assert pd.td is td
    assert "1 parent domains" in refused(errno.EBUSY, td._destroy)
    assert verbs.ibv_dealloc_td(td) == errno.EBUSY
    assert verbs.ibv_dealloc_pd(pd) == 0
    assert verbs.ibv_dealloc_td(td) == 0
    assert verbs.ibv_alloc_td(context, TDInitAttr(1)) is None
    assert verbs.ibv_alloc_td(context, None) is None
    assert verbs.ibv_dealloc_td(td) == errno.EINVAL


def test_attributes_that_cannot_be(one: World) -> None:
    pd, context = one.b.pd, one.b.context
    bits = e.IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS | e.IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT
    own = ParentDomainContext(pd, print, print)
    assert ParentDomainInitAttr(pd, own).comp_mask == bits
    assert ParentDomainInitAttr(pd).comp_mask == 0
    for mask in (bits, 1, 2):
        with pytest.raises(PyverbsUserError, match="allocators need pd_context"):
            ParentDomainInitAttr(pd, comp_mask=mask)
    refused(errno.EINVAL, ParentDomainInitAttr, None)
    refused(errno.EINVAL, ParentDomainInitAttr, pd, "x")
    refused(errno.EINVAL, lambda: ParentDomainInitAttr(pd, td="x"))  # type: ignore[arg-type]
    refused(errno.EINVAL, ParentDomain, context, ParentDomainInitAttr(pd, comp_mask=8))
    refused(errno.EINVAL, ParentDomain, context, None)
    refused(errno.EINVAL, ParentDomain, None, ParentDomainInitAttr(pd))
    other = Context(device=one.devices[1])
    refused(errno.EINVAL, ParentDomain, other, ParentDomainInitAttr(pd))
    refused(errno.EINVAL, ParentDomain, context, ParentDomainInitAttr(pd, td=TD(other)))
    with ParentDomain(context, ParentDomainInitAttr(pd, comp_mask=4)) as made:
        assert made.ctx is context
    closed = PD(context)
    attr = ParentDomainInitAttr(closed)
    closed.close()
    refused(errno.EINVAL, ParentDomain, context, attr)
    refused(errno.EINVAL, MR, made, 64, 0)


def test_an_element_of_a_region_of_another_domain_stays_refused(one: World) -> None:
    first, _ = one.connect(one.a.qp(), one.b.qp())
    foreign = ParentDomain(one.a.context, ParentDomainInitAttr(PD(one.a.context)))
    region = MR(foreign, 64, ALL)
    first.post_send(one.a.wr(SEND, sg=[SGE(region.buf, 8, region.lkey)]))
    one.settle()
    assert one.a.done() == [(1, e.IBV_WC_LOC_PROT_ERR)]
