# SPDX-License-Identifier: MIT
"""Extended CQs: every field that can be read, both kinds of timestamps, parent domains, statistics."""

import errno
import os
from typing import Any

import pytest
from tests.pyverbs.services import ah, datagram, ud
from tests.pyverbs.world import MS, Side, World, refused, set_state

from softverbs.device import Device
from softverbs.links.inproc import Network
from softverbs.pyverbs import libibverbs_enums as e
from softverbs.pyverbs.addr import AHAttr, GlobalRoute
from softverbs.pyverbs.cq import CQ, CQEX, CqInitAttrEx
from softverbs.pyverbs.device import Context
from softverbs.pyverbs.mem_alloc import free, posix_memalign
from softverbs.pyverbs.mr import MW, MWBindInfo
from softverbs.pyverbs.pd import PD, TD, ParentDomain, ParentDomainContext, ParentDomainInitAttr
from softverbs.pyverbs.qp import QPAttr
from softverbs.pyverbs.wr import SendWR

STAMPS = e.IBV_WC_EX_WITH_COMPLETION_TIMESTAMP | e.IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK
COUNTS = ("completions", "errors", "waiting", "lost", "purged", "events", "events_read", "events_acknowledged")
WITH_PD = e.IBV_CQ_INIT_ATTR_MASK_PD


def extended(side: Side, flags: int = e.IBV_WC_STANDARD_FLAGS | STAMPS, **attr: Any) -> CQEX:
    return CQEX(side.context, CqInitAttrEx(64, wc_flags=flags, **attr))


def completions(cq: CQEX, *fields: str) -> list[tuple[Any, ...]]:
    """``wr_id``, then these fields, of each completion that waits."""
    found = []
    if cq.start_poll(None) == 0:
        found.append((cq.wr_id, *(getattr(cq, f"read_{name}")() for name in fields)))
        while cq.poll_next() == 0:
            found.append((cq.wr_id, *(getattr(cq, f"read_{name}")() for name in fields)))
        cq.end_poll()
    return found


def test_the_fields_of_a_message_with_immediate_data(world: World) -> None:
    cq = extended(world.b)
    sender, receiver = world.a.qp(), world.b.qp(recv_cq=cq)
    world.connect(sender, receiver)
    world.b.post_recv(receiver, 9)
    sender.post_send(world.a.wr(e.IBV_WR_SEND_WITH_IMM, length=24, imm=0x04030201))
    world.settle()
    names = "opcode byte_len imm_data qp_num wc_flags slid sl dlid_path_bits vendor_err"
    expected = (e.IBV_WC_RECV, 24, 0x04030201, receiver.qp_num, e.IBV_WC_WITH_IMM, 0, 0, 0, 0)
    assert completions(cq, *names.split()) == [(9, *expected)]


def test_the_fields_of_a_datagram(world: World) -> None:
    cq = extended(world.b)
    sender, receiver = ud(world.a), ud(world.b, cq=cq)
    world.b.post_recv(receiver, 9, length=100)
    way = ah(world.a)
    sender.post_send(datagram(world.a, way, receiver, 1, 24))
    world.settle()
    names = "opcode byte_len src_qp qp_num wc_flags slid sl dlid_path_bits"
    expected = (e.IBV_WC_RECV, 64, sender.qp_num, receiver.qp_num, e.IBV_WC_GRH, 0, 2, 0)  # sl: IPv4
    assert completions(cq, *names.split()) == [(9, *expected)]


def test_the_key_that_a_message_invalidated_and_one_without(world: World) -> None:
    cq = extended(world.b)
    sender, receiver = world.a.qp(), world.b.qp(recv_cq=cq)
    world.connect(sender, receiver)
    window = MW(world.b.pd, e.IBV_MW_TYPE_2)
    bind = SendWR(1, e.IBV_WR_BIND_MW)
    bind.set_bind_wr(window, MWBindInfo(world.b.mr, world.b.mr.buf, 64, e.IBV_ACCESS_REMOTE_READ))
    receiver.post_send(bind)
    world.settle()
    world.b.post_recv(receiver, 8, 9)
    sender.post_send(world.a.wr(e.IBV_WR_SEND_WITH_INV, imm=bind.rkey))
    sender.post_send(world.a.wr(e.IBV_WR_SEND))
    world.settle()
    found = completions(cq, "imm_data", "wc_flags")
    assert found[-2:] == [(8, bind.rkey, e.IBV_WC_WITH_INV), (9, 0, 0)]


def test_every_field_is_refused_where_it_was_not_asked_for(world: World) -> None:
    fields = {
        "byte_len": "BYTE_LEN", "imm_data": "IMM", "qp_num": "QP_NUM", "src_qp": "SRC_QP", "slid": "SLID", "sl": "SL",
        "dlid_path_bits": "DLID_PATH_BITS", "timestamp": "COMPLETION_TIMESTAMP",
        "completion_wallclock_ns": "COMPLETION_TIMESTAMP_WALLCLOCK",
    }  # fmt: skip
    for name, flag in fields.items():
        bit = getattr(e, f"IBV_WC_EX_WITH_{flag}")
        cq = extended(world.a, bit)
        first, _ = world.connect(world.a.qp(cq), world.b.qp())
        first.post_send(world.a.wr(e.IBV_WR_RDMA_WRITE))
        world.settle()
        assert cq.start_poll(None) == 0
        getattr(cq, f"read_{name}")()
        for other, its in fields.items():
            if other != name:
                with pytest.raises(Exception, match=f"IBV_WC_EX_WITH_{its}"):
                    getattr(cq, f"read_{other}")()
        cq.end_poll()


@pytest.mark.parametrize("flag", ["CVLAN", "FLOW_TAG", "TM_INFO"])
def test_what_the_device_has_not_is_refused_at_creation(world: World, flag: str) -> None:
    bit = getattr(e, f"IBV_WC_EX_WITH_{flag}")
    reason = refused(errno.EOPNOTSUPP, extended, world.a, bit | e.IBV_WC_EX_WITH_BYTE_LEN)
    assert f"IBV_WC_EX_WITH_{flag}" in reason
    assert "BYTE_LEN" not in reason


def test_timestamps_are_those_of_the_completion_not_of_the_poll(world: World) -> None:
    cq = extended(world.a)
    first, _ = world.connect(world.a.qp(cq), world.b.qp())
    times = []
    for wr_id in (1, 2, 3):
        first.post_send(world.a.wr(e.IBV_WR_RDMA_WRITE, wr_id))
        world.run()
        times.append(world.now)
        world.pass_time(5 * MS)
    found = completions(cq, "timestamp", "completion_wallclock_ns")
    assert [wr_id for wr_id, *_ in found] == [1, 2, 3]
    assert [stamp for _, stamp, _ in found] == times
    assert all(wall == stamp for _, stamp, wall in found)  # in virtual time they are one
    seconds, nanoseconds = world.a.context.query_rt_values_ex()
    assert seconds * 10**9 + nanoseconds == world.now


def test_the_two_kinds_of_timestamps_differ_by_one_offset() -> None:
    with Device(link=Network().link("10.0.0.1"), thread=False) as device:
        side = Side(device)
        side.peer = side
        cq = extended(side)
        qp = _connected(side, cq)
        for wr_id in (1, 2):
            qp.post_send(side.wr(e.IBV_WR_RDMA_WRITE, wr_id))
            while device.progress():
                pass
        (_, one, wall_one), (_, two, wall_two) = completions(cq, "timestamp", "completion_wallclock_ns")
        assert one <= two <= device.clock()
        assert abs((wall_two - wall_one) - (two - one)) < 10**6
        assert wall_one > 1_500_000_000 * 10**9
        side.close()


def _connected(side: Side, cq: CQEX) -> Any:
    """A QP that is connected to itself."""
    qp = side.qp(cq)
    attr = QPAttr()
    attr.qp_access_flags = 15
    attr.dest_qp_num = qp.qp_num
    attr.rq_psn = attr.sq_psn = 1
    attr.max_rd_atomic = attr.max_dest_rd_atomic = 1
    attr.min_rnr_timer, attr.timeout, attr.retry_cnt, attr.rnr_retry = 12, 14, 7, 7
    attr.ah_attr = AHAttr(is_global=1, gr=GlobalRoute(side.context.query_gid(1, 0), hop_limit=64))
    qp.to_rts(attr)
    return qp


# -- sizes


def test_a_whole_number_that_is_a_float(world: World) -> None:
    half = world.a.context.query_device().max_cqe / 2
    with CQ(world.a.context, half) as cq:  # type: ignore[arg-type]
        assert cq.cqe == int(half)
    assert "10.5" in refused(errno.EINVAL, CQ, world.a.context, 10.5)


def test_every_attribute_of_creation_is_kept() -> None:
    attr = CqInitAttrEx(7, None, 2, e.IBV_WC_EX_WITH_BYTE_LEN, 1, 2)
    attr.cq_context = "mine"
    assert (attr.cqe, attr.comp_channel, attr.comp_vector, attr.wc_flags) == (7, None, 2, 1)
    assert (attr.comp_mask, attr.flags, attr.parent_domain, attr.cq_context) == (1, 2, None, "mine")
    assert "IBV_WC_EX_WITH_BYTE_LEN" in str(attr)


# -- parent domains


class Memory:
    """Allocators that count."""

    def __init__(self) -> None:
        self.taken: list[tuple[int, int]] = []
        self.freed: list[int] = []

    def allocate(self, pd: Any, context: Any, size: int, alignment: int, resource_type: int) -> int:
        address = int(posix_memalign(size, alignment))
        self.taken.append((address, size))
        return address

    def free(self, pd: Any, context: Any, address: int, resource_type: int) -> None:
        self.freed.append(address)
        free(address)

    def domain(self, side: Side) -> ParentDomain:
        context = ParentDomainContext(side.pd, self.allocate, self.free)
        return ParentDomain(side.context, ParentDomainInitAttr(side.pd, context))


def test_the_memory_of_a_queue_comes_from_its_parent_domain(world: World) -> None:
    memory = Memory()
    domain = memory.domain(world.a)
    cq = extended(world.a, parent_domain=domain, comp_mask=WITH_PD)
    (first,) = memory.taken
    assert first[1] >= 64 * 64
    qp, _ = world.connect(world.a.qp(cq), world.b.qp())
    for wr_id in range(5):
        qp.post_send(world.a.wr(e.IBV_WR_RDMA_WRITE, wr_id))
        world.settle()
    cq.resize(1000)
    assert completions(cq) == [(wr_id,) for wr_id in range(5)]
    assert len(memory.taken) == 2
    assert memory.freed == [first[0]]
    domain.close()
    assert sorted(memory.freed) == sorted(address for address, _ in memory.taken)
    assert "closed" in refused(errno.EINVAL, cq.req_notify)


def test_parent_domains_that_do_not_fit(world: World) -> None:
    domain = ParentDomain(world.a.context, ParentDomainInitAttr(world.a.pd))
    extended(world.a, parent_domain=domain).close()  # not named by comp_mask: it does not count
    for words, side, attr in (
        ("which is None", world.a, {"comp_mask": WITH_PD}),
        ("plain protection domain", world.a, {"comp_mask": WITH_PD, "parent_domain": world.a.pd}),
        ("plain protection domain", world.a, {"parent_domain": world.a.pd}),
        ("int: ParentDomain is expected", world.a, {"comp_mask": WITH_PD, "parent_domain": 5}),
        ("another context", world.b, {"comp_mask": WITH_PD, "parent_domain": domain}),
    ):
        assert words in refused(errno.EINVAL, lambda s=side, a=attr: extended(s, **a))
    assert isinstance(domain, PD)


def test_a_thread_domain_makes_a_queue_single_threaded() -> None:
    with World("loopback", debug=True) as world:
        side = world.a
        domain = ParentDomain(side.context, ParentDomainInitAttr(side.pd, td=TD(side.context)))
        cq = extended(side, parent_domain=domain, comp_mask=WITH_PD)
        assert cq._batch.acquire(blocking=False)
        assert "SINGLE_THREADED" in refused(errno.EINVAL, cq.start_poll, None)
        cq._batch.release()


# -- statistics


def test_statistics(world: World) -> None:
    cq = CQ(world.a.context, 4)
    first, _ = world.connect(world.a.qp(cq), world.b.qp())
    zero = dict.fromkeys(COUNTS, 0)
    assert cq.statistics() == zero
    for wr_id in range(3):
        first.post_send(world.a.wr(e.IBV_WR_RDMA_WRITE, wr_id))
    world.settle()
    assert cq.statistics() == {**zero, "completions": 3, "waiting": 3}
    cq.poll(2)
    set_state(first, e.IBV_QPS_ERR)
    first.post_send(world.a.wr(e.IBV_WR_RDMA_WRITE, 3))
    assert cq.statistics() == {**zero, "completions": 4, "waiting": 2, "errors": 1}
    first.close()
    assert cq.statistics() == {**zero, "completions": 4, "errors": 1, "purged": 2}


def test_statistics_of_an_overrun(world: World) -> None:
    cq = CQ(world.a.context, 2)
    first, _ = world.connect(world.a.qp(cq), world.b.qp())
    for wr_id in range(4):
        first.post_send(world.a.wr(e.IBV_WR_RDMA_WRITE, wr_id))
    world.settle()
    found = cq.statistics()
    assert (found["completions"], found["waiting"]) == (2, 2)
    assert found["lost"] >= 1
    assert e.IBV_EVENT_CQ_ERR in [kind for kind, element in world.a.events() if element is cq]


def test_imported_contexts_share_parent_domains(world: World) -> None:
    with Context(cmd_fd=os.dup(world.a.context.cmd_fd)) as other:
        domain = ParentDomain(world.a.context, ParentDomainInitAttr(world.a.pd))
        cq = CQEX(other, CqInitAttrEx(4, parent_domain=domain, comp_mask=WITH_PD))
        assert cq.context is other
