# SPDX-License-Identifier: MIT
"""What tests of datagrams, unreliable connections, shared receive queues and XRC need on a world's two sides."""

import os
import sys
from collections.abc import Sequence
from typing import Any

from tests.pyverbs.world import CAP, PATH, SIGNALED, Side, World

from softverbs.pyverbs import libibverbs_enums as e
from softverbs.pyverbs.addr import AH, AHAttr, GlobalRoute
from softverbs.pyverbs.cq import CQ
from softverbs.pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr, QPInitAttrEx
from softverbs.pyverbs.srq import SRQ, SrqAttr, SrqInitAttr, SrqInitAttrEx
from softverbs.pyverbs.wr import SGE, RecvWR, SendWR
from softverbs.pyverbs.xrcd import XRCD, XRCDInitAttr

GRH = 40
QKEY = 0x11111111
XRCD_MASK = e.IBV_XRCD_INIT_ATTR_FD | e.IBV_XRCD_INIT_ATTR_OFLAGS
SRQ_MASK = (
    e.IBV_SRQ_INIT_ATTR_TYPE | e.IBV_SRQ_INIT_ATTR_PD | e.IBV_SRQ_INIT_ATTR_XRCD | e.IBV_SRQ_INIT_ATTR_CQ
)  # fmt: skip


def make(side: Side, qp_type: int, srq: SRQ | None = None, cq: Any = None, **cap: int) -> QP:
    """A QP of any type that a PD makes, in RESET."""
    queue = cq or side.cq
    return QP(side.pd, QPInitAttr(qp_type, None, queue, queue, srq, QPCap(**{**CAP, **cap}), 0))


# -- datagrams


def ud_attr(qkey: int = QKEY) -> QPAttr:
    attr = QPAttr()
    attr.qkey = qkey
    attr.sq_psn = 0x55
    return attr


def ud(side: Side, srq: SRQ | None = None, qkey: int = QKEY, cq: Any = None, **cap: int) -> QP:
    """A QP of type UD in RTS."""
    qp = make(side, e.IBV_QPT_UD, srq, cq, **cap)
    qp.to_rts(ud_attr(qkey))
    return qp


def ah_attr(to: Side, **route: int) -> AHAttr:
    gid = to.context.query_gid(1, 0)
    return AHAttr(is_global=1, gr=GlobalRoute(gid, **{"hop_limit": 64, **route}))


def ah(side: Side, to: Side | None = None, **route: int) -> AH:
    """An address handle of ``side`` that leads to the other one."""
    return AH(side.pd, attr=ah_attr(to or side.peer, **route))


def datagram(
    side: Side,
    handle: AH,
    to: QP | int,
    wr_id: int = 1,
    length: int = 8,
    offset: int = 0,
    qkey: int = QKEY,
    imm: int | None = None,
    flags: int = SIGNALED,
    sg: Sequence[SGE] | None = None,
) -> SendWR:
    """A SEND of ``length`` bytes from ``offset`` of the side's memory, with immediate data if there is any."""
    elements = [side.sge(length, offset)] if sg is None else list(sg)
    opcode = e.IBV_WR_SEND if imm is None else e.IBV_WR_SEND_WITH_IMM
    wr = SendWR(wr_id, opcode, len(elements), imm or 0, elements, flags)
    wr.set_wr_ud(handle, to if isinstance(to, int) else to.qp_num, qkey)
    return wr


# -- connections


def connect(world: World, first: QP, second: QP, **changes: Any) -> tuple[QP, QP]:
    """Connects two QPs of any connected type, the first of side ``a``."""
    return world.connect(first, second, **changes)


def uc_pair(world: World, **changes: Any) -> tuple[QP, QP]:
    return connect(world, make(world.a, e.IBV_QPT_UC), make(world.b, e.IBV_QPT_UC), **changes)


# -- shared receive queues


def srq(side: Side, max_wr: int = 64, max_sge: int = 4) -> SRQ:
    return SRQ(side.pd, SrqInitAttr(SrqAttr(max_wr, max_sge)))


def stock(side: Side, queue: SRQ, *wr_ids: int, length: int = 64, spread: int = 64, offset: int = 8192) -> None:
    """Posts receives, each ``spread`` bytes after the one before."""
    for index, wr_id in enumerate(wr_ids):
        queue.post_recv(RecvWR(wr_id, 1, [side.sge(length, offset + index * spread)]))


# -- XRC


def xrcd(side: Side, fd: int = -1, oflags: int = os.O_CREAT) -> XRCD:
    return XRCD(side.context, XRCDInitAttr(XRCD_MASK, oflags, fd))


def xsrq(side: Side, domain: XRCD, cq: Any = None, max_wr: int = 64) -> SRQ:
    attr = SrqInitAttrEx(max_wr)
    attr.comp_mask = SRQ_MASK
    attr.srq_type = e.IBV_SRQT_XRC
    attr.pd, attr.xrcd, attr.cq = side.pd, domain, cq or side.cq
    return SRQ(side.context, attr)


def target(side: Side, domain: XRCD) -> QP:
    """A QP of type XRC_RECV."""
    return QP(side.context, QPInitAttrEx(e.IBV_QPT_XRC_RECV, comp_mask=e.IBV_QP_INIT_ATTR_XRCD, xrcd=domain))


def initiator(side: Side, cq: Any = None, **cap: int) -> QP:
    """A QP of type XRC_SEND."""
    sizes = QPCap(**{**CAP, "max_recv_wr": 0, "max_recv_sge": 0, **cap})
    attr = QPInitAttrEx(e.IBV_QPT_XRC_SEND, scq=cq or side.cq, cap=sizes, comp_mask=e.IBV_QP_INIT_ATTR_PD, pd=side.pd)
    return QP(side.context, attr)


def xrc_pair(world: World, domain: XRCD, **changes: Any) -> tuple[QP, QP]:
    """An initiator of side ``a``, and its target of side ``b``."""
    return connect(world, initiator(world.a), target(world.b, domain), **changes)


def settings() -> dict[str, int]:
    return dict(PATH)


def native(value: int, width: int) -> bytes:
    return value.to_bytes(width, sys.byteorder)


class Scene:
    """XRC: side ``a`` has an initiator; side ``b`` its target, in a domain with two receive queues, with a CQ each."""

    def __init__(self, world: World, **changes: Any) -> None:
        self.world = world
        self.domain = xrcd(world.b)
        self.sent = CQ(world.a.context, 256)
        self.came = [CQ(world.b.context, 256) for _ in range(2)]
        self.srqs = [xsrq(world.b, self.domain, cq) for cq in self.came]
        self.ini, self.tgt = initiator(world.a, self.sent), target(world.b, self.domain)
        self.changes = changes

    def connect(self) -> "Scene":
        connect(self.world, self.ini, self.tgt, **self.changes)
        return self

    def wr(self, index: int, opcode: int = e.IBV_WR_SEND, wr_id: int = 1, length: int = 8, **what: Any) -> SendWR:
        wr = self.world.a.wr(opcode, wr_id, length, **what)
        wr.set_qp_type_xrc(self.srqs[index].get_srq_num())
        return wr

    def send(self, index: int, *args: Any, **what: Any) -> None:
        self.ini.post_send(self.wr(index, *args, **what))
        self.world.settle()

    def sends(self) -> list[tuple[int, int]]:
        return self.world.a.done(self.sent)

    def receives(self, index: int) -> list[tuple[int, int]]:
        return self.world.b.done(self.came[index])


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
