# SPDX-License-Identifier: MIT
"""Objects of every type of QP, in use, closed or collected in any order: nothing crashes, nothing is left behind."""

import gc
import os
import random
from collections.abc import Iterator
from typing import Any

import pytest
from tests.pyverbs.services import (
    QKEY,
    XRCD_MASK,
    ah_attr,
    ud_attr,
)
from tests.pyverbs.world import ALL, CAP, OPS, World

from softverbs.pyverbs import libibverbs_enums as e
from softverbs.pyverbs.addr import AH, GID
from softverbs.pyverbs.comp_cntr import CompCntr, CompCntrInitAttr
from softverbs.pyverbs.cq import CQ, CompChannel
from softverbs.pyverbs.device import Context
from softverbs.pyverbs.mr import MR, MW, MWBind, MWBindInfo
from softverbs.pyverbs.pd import PD
from softverbs.pyverbs.pyverbs_error import PyverbsError, PyverbsRDMAError
from softverbs.pyverbs.qp import QP, QPAttachCompCntrAttr, QPCap, QPInitAttr, QPInitAttrEx, QPOpenAttr, open_qp
from softverbs.pyverbs.srq import SRQ, SrqAttr, SrqInitAttr, SrqInitAttrEx
from softverbs.pyverbs.wr import SGE, RecvWR, SendWR
from softverbs.pyverbs.xrcd import XRCD, XRCDInitAttr

GROUP = GID("0000:0000:0000:0000:0000:ffff:ef01:0203")


@pytest.fixture(autouse=True)
def _quick_collections() -> Iterator[None]:
    """Garbage is collected often here: what the test run has made so far need not be looked at each time."""
    gc.freeze()
    yield
    gc.unfreeze()


class End:
    """One context with a QP of each type, what they need, and receives."""

    def __init__(self, world: World, side: Any) -> None:
        context = self.context = Context(device=side.device)
        os.set_blocking(context.async_fd, False)
        self.pd, self.channel = PD(context), CompChannel(context)
        self.cq = CQ(context, 256, None, self.channel)
        self.memory = bytearray(8192)
        self.mr = MR(self.pd, self.memory, ALL)
        self.srq = SRQ(self.pd, SrqInitAttr(SrqAttr(16)))
        self.xrcd = XRCD(context, XRCDInitAttr(XRCD_MASK, os.O_CREAT, -1))
        attr = SrqInitAttrEx(16)
        attr.comp_mask, attr.srq_type = 15, e.IBV_SRQT_XRC
        attr.pd, attr.xrcd, attr.cq = self.pd, self.xrcd, self.cq
        self.xsrq = SRQ(context, attr)
        self.counter = CompCntr(context, CompCntrInitAttr())
        self.qps = [self._qp(kind) for kind in (e.IBV_QPT_RC, e.IBV_QPT_UC, e.IBV_QPT_UD, e.IBV_QPT_XRC_SEND)]
        ex = QPInitAttrEx(e.IBV_QPT_XRC_RECV, comp_mask=e.IBV_QP_INIT_ATTR_XRCD, xrcd=self.xrcd)
        self.target = QP(context, ex)
        self.opened = open_qp(context, QPOpenAttr(qp_num=self.target.qp_num, xrcd=self.xrcd))
        for qp in (*self.qps, self.target):
            qp.attach_comp_cntr(self.counter, QPAttachCompCntrAttr(sum(OPS)))
        self.qps[2].to_rts(ud_attr())
        self.qps[2].attach_mcast(GROUP)
        self.ah = AH(self.pd, attr=ah_attr(side.peer))
        self.window = MW(self.pd, e.IBV_MW_TYPE_1)
        for queue in (self.srq, self.xsrq):
            for wr_id in range(4):
                queue.post_recv(RecvWR(wr_id, 1, [self.sge(256, 4096)]))
        self.world = world

    def _qp(self, kind: int) -> QP:
        return QP(self.pd, QPInitAttr(kind, None, self.cq, self.cq, self.srq, QPCap(**CAP), 0))

    def sge(self, length: int, offset: int = 0) -> SGE:
        return SGE(self.mr.buf + offset, length, self.mr.lkey)

    def post(self, other: "End") -> None:
        """Work for every QP: some will be under way, and some will wait."""
        for index, qp in enumerate(self.qps):
            for wr_id in range(3):
                wr = SendWR(wr_id, e.IBV_WR_SEND, 1, sg=[self.sge(200)])
                if index == 2:
                    wr.set_wr_ud(self.ah, other.qps[2].qp_num if wr_id else 0xFFFFFF, QKEY)
                elif index == 3:
                    wr.set_qp_type_xrc(other.xsrq.get_srq_num())
                qp.post_send(wr)
        info = MWBindInfo(self.mr, self.mr.buf, 64, e.IBV_ACCESS_REMOTE_WRITE)
        self.qps[0].bind_mw(self.window, MWBind(info, e.IBV_SEND_SIGNALED))

    def things(self) -> list[Any]:
        return [
            *(self.context, self.pd, self.channel, self.cq, self.mr, self.srq, self.xrcd, self.xsrq, self.counter),
            *(*self.qps, self.target, self.opened, self.ah, self.window),
        ]


def scene(world: World) -> list[Any]:
    here, there = End(world, world.a), End(world, world.b)
    for index in (0, 1):
        _connect(world, here.qps[index], there.qps[index])
    _connect(world, here.qps[3], there.target)
    _connect(world, there.qps[3], here.target)
    here.post(there)
    there.post(here)
    world.a.device.progress()
    return here.things() + there.things()


def _connect(world: World, first: QP, second: QP) -> None:
    """As ``World.connect``, for contexts that are not the sides' own."""
    gids = {qp: qp.context.query_gid(1, 0) for qp in (first, second)}
    for qp, other in ((first, second), (second, first)):
        attr = world.attr(qp, other.qp_num)
        route = attr.ah_attr
        route.dgid = gids[other].gid
        attr.ah_attr = route
        qp.to_rts(attr)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("way", ["close", "garbage", "both"])
def test_in_any_order(world: World, seed: int, way: str) -> None:
    chance = random.Random(seed)
    things = scene(world)
    chance.shuffle(things)
    while things:
        thing = things.pop()
        if way == "close" or (way == "both" and chance.random() < 0.5):
            try:
                thing.close()
                thing.close()
            except PyverbsRDMAError as error:
                assert isinstance(thing, (CompCntr, MR))
                assert error.errno == 16, "a QP counts with it, or a window is bound to it"  # noqa: PT017
        del thing
        if chance.random() < 0.4:
            gc.collect()
        if chance.random() < 0.4:
            world.run()
    gc.collect()
    world.settle()
    world.pair()
    counts = world.a.device.port.counts
    assert counts["XRC domain"] == counts["SRQ"] == counts["address handle"] == 0


def test_a_device_closed_under_it_ends_everything(world: World) -> None:
    things = scene(world)
    for device in world.devices:
        device.close()
    for thing in things:
        for act in (thing.close, lambda t=thing: str(t)):
            try:
                act()
            except PyverbsError as error:
                assert error.reason  # noqa: PT017
    del things
    gc.collect()
