# SPDX-License-Identifier: MIT
"""An exception out of a signal's handler, at any moment of any call: nothing is held, leaked or lost.

SOFTVERBS_STORM is how many interrupts there are altogether; by default a few for each call. SOFTVERBS_STORM_SEED is
the seed of their places.
"""

import contextlib
import gc
import os
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.pyverbs.storm import Interrupter, left_behind

import softverbs as sv
from softverbs.device import Device
from softverbs.links.inproc import Network
from softverbs.pyverbs import librdmacm_enums as ce
from softverbs.pyverbs._dm import DM, AllocDmAttr
from softverbs.pyverbs.mr import DMMR, MW
from softverbs.pyverbs.pd import ParentDomain, ParentDomainInitAttr
from softverbs.pyverbs.qp import QPEx

STORM = int(os.environ.get("SOFTVERBS_STORM", "600"))
SEED = int(os.environ.get("SOFTVERBS_STORM_SEED", "1"))
SHORT = 0.0001


class Rig:
    """Two connected queue pairs of one device, with what calls need."""

    def __init__(self) -> None:
        self.device = Device(link=Network().link("10.0.0.1"), thread=False)
        self.ctx = sv.Context(device=self.device)
        self.pd = sv.PD(self.ctx)
        self.channel = sv.CompChannel(self.ctx)
        os.set_blocking(self.channel.fd, False)
        os.set_blocking(self.ctx.async_fd, False)
        self.cq = sv.CQ(self.ctx, 256, None, self.channel)
        self.counter = sv.CompCntr(self.ctx, sv.CompCntrInitAttr())
        self.other_counter = sv.CompCntr(self.ctx, sv.CompCntrInitAttr())
        self.mr = sv.MR(self.pd, 4096, 15)
        self.a, self.b = self.qp(), self.qp()
        attach = sv.QPAttachCompCntrAttr(op_mask=sv.IBV_QP_ATTACH_COMP_CNTR_OP_RDMA_WRITE)
        self.a.attach_comp_cntr(self.counter, attach)
        self.connect(self.a, self.b)
        self.connect(self.b, self.a)

    def qp(self, kind: int = 2) -> sv.QP:
        cap = sv.QPCap(max_send_wr=64, max_recv_wr=64)
        return sv.QP(self.pd, sv.QPInitAttr(qp_type=kind, scq=self.cq, rcq=self.cq, cap=cap, sq_sig_all=0))

    def connect(self, qp: sv.QP, peer: sv.QP) -> None:
        attr = sv.QPAttr(port_num=1)
        attr.qp_access_flags, attr.path_mtu, attr.dest_qp_num = 15, 3, peer.qp_num
        attr.max_dest_rd_atomic = attr.max_rd_atomic = 16
        gid = sv.GlobalRoute(dgid=self.ctx.query_gid(1, 0), sgid_index=0)
        attr.ah_attr = sv.AHAttr(gr=gid, is_global=1, port_num=1)
        attr.timeout, attr.retry_cnt, attr.rnr_retry, attr.min_rnr_timer = 14, 7, 7, 12
        qp.to_rts(attr)

    def write(self) -> None:
        wr = sv.SendWR(7, opcode=sv.IBV_WR_RDMA_WRITE, num_sge=1, sg=[sv.SGE(self.mr.buf, 8, self.mr.lkey)])
        wr.send_flags = sv.IBV_SEND_SIGNALED
        wr.set_wr_rdma(self.mr.rkey, self.mr.buf + 1024)
        self.a.post_send(wr)

    def drain(self) -> None:
        """Every completion is there in the end: of each WRITE that was posted one, and the counter counts it."""
        while self.cq.poll(16)[0]:
            pass
        before = self.counter.read()
        self.write()
        found = []
        while not found:
            found = self.cq.poll(1)[1]
        assert [(wc.status, wc.wr_id) for wc in found] == [(0, 7)]
        assert self.counter.read() == before + 1
        assert self.counter.read() == self.cq.statistics()["completions"], "a WRITE was counted and not completed"

    def close(self) -> None:
        self.device.close()


@pytest.fixture(scope="module")
def rig() -> Iterator[Rig]:
    made = Rig()
    yield made
    made.close()
    assert made.device.objects() == {}


CALLS: dict[str, Callable[[Rig], Any]] = {}


def call(function: Callable[[Rig], Any]) -> Callable[[Rig], Any]:
    CALLS[function.__name__] = function
    return function


@call
def memory_region(rig: Rig) -> None:
    with sv.MR(rig.pd, 64, 1):
        pass


@call
def region_over_a_buffer(rig: Rig) -> None:
    memory = bytearray(64)
    region = sv.MR(rig.pd, memory, 1)
    region.close()
    memory.append(1)  # BufferError while it is registered


@call
def garbage(rig: Rig) -> None:
    sv.MR(rig.pd, 64, 1)
    sv.CQ(rig.ctx, 8)
    sv.CompCntr(rig.ctx, sv.CompCntrInitAttr())


@call
def windows_and_handles(rig: Rig) -> None:
    gid = sv.GlobalRoute(rig.ctx.query_gid(1, 0))
    with MW(rig.pd, sv.IBV_MW_TYPE_1), sv.AH(rig.pd, attr=sv.AHAttr(gr=gid, is_global=1)):
        pass


@call
def device_memory(rig: Rig) -> None:
    with DM(rig.ctx, AllocDmAttr(64)) as memory:
        DMMR(rig.pd, 64, sv.IBV_ACCESS_ZERO_BASED | 1, memory, 0).close()


@call
def queue_pair(rig: Rig) -> None:
    with rig.qp() as qp:
        rig.connect(qp, rig.a)


@call
def context_and_its_children(rig: Rig) -> None:
    with sv.Context(device=rig.device) as ctx:
        pd = sv.PD(ctx)
        sv.MR(pd, 64, 1)
        sv.CQ(ctx, 8, None, sv.CompChannel(ctx))
        assert ctx.cmd_fd >= 0


@call
def shared_receive_queue(rig: Rig) -> None:
    with sv.SRQ(rig.pd, sv.SrqInitAttr(sv.SrqAttr(max_wr=4))) as srq:
        srq.post_recv(sv.RecvWR(1, 1, [sv.SGE(rig.mr.buf, 8, rig.mr.lkey)]))


@call
def xrc_domain(rig: Rig) -> None:
    attr = sv.XRCDInitAttr(sv.IBV_XRCD_INIT_ATTR_FD | sv.IBV_XRCD_INIT_ATTR_OFLAGS, os.O_CREAT, 0)
    sv.XRCD(rig.ctx, attr).close()


@call
def parent_domain(rig: Rig) -> None:
    with ParentDomain(rig.ctx, ParentDomainInitAttr(rig.pd)) as domain:
        sv.MR(domain, 64, 1).close()


@call
def write_and_poll(rig: Rig) -> None:
    rig.write()
    rig.cq.poll(4)


@call
def counter(rig: Rig) -> None:
    rig.other_counter.inc(1)
    rig.other_counter.read_pair()
    rig.other_counter.set(0)


@call
def wait_for_a_counter(rig: Rig) -> None:
    with contextlib.suppress(sv.PyverbsError):
        rig.other_counter.wait(1 << 60, SHORT)


@call
def threshold(rig: Rig) -> None:
    with rig.other_counter.threshold_fd(1 << 60):
        pass
    rig.other_counter.threshold_fd(1 << 60)


@call
def resize_and_events(rig: Rig) -> None:
    rig.cq.resize(256)
    rig.cq.req_notify()
    rig.write()
    rig.cq.poll(1)
    with contextlib.suppress(sv.PyverbsRDMAError):
        rig.channel.get_cq_event().ack_events(1)
    with contextlib.suppress(sv.PyverbsRDMAError):
        rig.ctx.get_async_event()


@call
def batch(rig: Rig) -> None:
    with sv.CQEX(rig.ctx) as queue:
        if queue.start_poll() == 0:
            queue.end_poll()


@call
def critical_section(rig: Rig) -> None:
    init = sv.QPInitAttrEx(
        qp_type=sv.IBV_QPT_RC, scq=rig.cq, rcq=rig.cq, cap=sv.QPCap(), pd=rig.pd,
        comp_mask=sv.IBV_QP_INIT_ATTR_PD | sv.IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
        send_ops_flags=sv.IBV_QP_EX_WITH_RDMA_WRITE,
    )  # fmt: skip
    with QPEx(rig.ctx, init) as qp:
        qp.wr_start()
        qp.wr_rdma_write(1, 2)
        qp.wr_abort()


@call
def planned_fault(rig: Rig) -> None:
    with rig.device.faults.applied("reg_mr:errno=ENOMEM"), contextlib.suppress(sv.PyverbsRDMAError):
        sv.MR(rig.pd, 64, 1)


@call
def port_down_and_up(rig: Rig) -> None:
    try:
        rig.device.set_port_state(False)
    finally:
        rig.device.set_port_state(True)
    with contextlib.suppress(sv.PyverbsRDMAError):
        while True:
            rig.ctx.get_async_event().ack()


@call
def another_device(rig: Rig) -> None:
    with Device(link=Network().link("10.0.0.9")) as device, sv.Context(device=device) as ctx:
        sv.PD(ctx)


@call
def udp_device(rig: Rig) -> None:
    Device(thread=False).close()


@call
def connection(rig: Rig) -> None:
    """The connection manager of the same device, both sides at once."""
    channel = sv.CMEventChannel(rig.device)
    os.set_blocking(channel.fd, False)
    with sv.CMID(channel) as identifier:
        with contextlib.suppress(sv.PyverbsError):
            identifier.bind_addr(sv.AddrInfo(src="10.0.0.1", port_space=ce.RDMA_PS_TCP, flags=ce.RAI_PASSIVE))
        with contextlib.suppress(sv.PyverbsError):
            identifier.listen()
    channel.close()


def settle(rig: Rig) -> dict[str, Any]:
    for _ in range(3):
        rig.device.progress()
    with contextlib.suppress(sv.PyverbsRDMAError):
        while True:
            rig.ctx.get_async_event().ack()
    return left_behind(rig.device)


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", CALLS)
def test_an_interrupt_leaves_nothing_behind(rig: Rig, name: str) -> None:
    act = CALLS[name]
    chance = random.Random(f"{SEED} {name}")
    act(rig)
    gc.collect()
    before = settle(rig)
    gc.disable()
    try:
        with Interrupter() as interrupter:
            length = interrupter.length(lambda: act(rig))
            count = max(STORM // len(CALLS), 1)
            places = range(1, length + 1) if count >= length else sorted(chance.sample(range(1, length + 1), count))
            for place in places:
                interrupter.run(lambda: act(rig), place)
                after = settle(rig)
                if after != before:
                    gc.collect()  # what was garbage may be in a cycle with the traceback
                    after = settle(rig)
                assert after == before, f"{name}, place {place} of {length}"
                rig.drain()
    finally:
        gc.enable()
