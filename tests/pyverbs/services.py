"""What tests of datagrams, unreliable connections, shared receive queues and XRC need on a world's two sides."""

import os
import sys
from collections.abc import Sequence
from typing import Any

from tests.pyverbs.world import CAP, PATH, SIGNALED, Side, World

from softverbs.pyverbs import libibverbs_enums as e
from softverbs.pyverbs.addr import AH, AHAttr, GlobalRoute
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
