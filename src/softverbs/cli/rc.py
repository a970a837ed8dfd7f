# SPDX-License-Identifier: MIT
"""One end of a connection, made through the public API: what the commands measure and show with."""

from __future__ import annotations

import itertools
import random
import time
from typing import NamedTuple

from softverbs.cli.common import Fault
from softverbs.links.base import gid_of, is_ipv4
from softverbs.pyverbs import libibverbs_enums as e
from softverbs.pyverbs.addr import AH, GID, AHAttr, GlobalRoute
from softverbs.pyverbs.comp_cntr import CompCntr, CompCntrInitAttr
from softverbs.pyverbs.cq import CQ, WC
from softverbs.pyverbs.device import Context
from softverbs.pyverbs.pd import PD
from softverbs.pyverbs.qp import QP, QPAttachCompCntrAttr, QPAttr, QPCap, QPInitAttr
from softverbs.pyverbs.srq import SRQ
from softverbs.pyverbs.wr import SGE, SendWR

ALL_ACCESS = (
    e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_REMOTE_WRITE | e.IBV_ACCESS_REMOTE_READ | e.IBV_ACCESS_REMOTE_ATOMIC
)
HOP_LIMIT = 64
GRH_LENGTH = 40  # bytes in front of each datagram in memory
QKEY = 0x11111111  # that of ibv_ud_pingpong
READS_IN_FLIGHT = 16
_LINK_LOCAL = b"\xfe\x80"


class Way(NamedTuple):
    """How packets travel from here: the arguments of a command."""

    port: int = 1
    gid_index: int = 0
    mtu: int = e.IBV_MTU_4096
    sl: int = 0


class Timing(NamedTuple):
    """What a QP waits for, as ``ibv_modify_qp(3)`` has it: 2^timeout times 4.096 us until retransmission."""

    timeout: int = 14
    retry_cnt: int = 7
    rnr_retry: int = 7
    min_rnr_timer: int = 12


_TIMING = Timing()


def random_psn() -> int:
    """A packet sequence number to begin with."""
    return random.SystemRandom().getrandbits(24)


def own_gid(context: Context, port: int, index: int | None, near: str | None) -> tuple[int, bytes]:
    """Index and bytes of the local GID to use.

    :param port: the port
    :param index: the index where the user gave one
    :param near: the local IP address of the connection to the peer: this GID is best, one of its family next
    """
    if index is not None:
        context.query_gid_ex(port, index)  # refuses an empty entry
        return index, context.query_gid(port, index).raw
    table = context.query_gid_table(context.query_port(port).gid_tbl_len)
    numbers = [entry.gid_index for entry in table if entry.gid_type == e.IBV_GID_TYPE_ROCE_V2]
    gids = {number: context.query_gid(port, number).raw for number in numbers}
    wanted = gid_of(near) if near is not None else None
    # An address before a link-local GID, which reaches only its like.
    order = sorted(
        numbers,
        key=lambda number: (
            gids[number] != wanted,
            gids[number].startswith(_LINK_LOCAL),
            wanted is not None and is_ipv4(gids[number]) != is_ipv4(wanted),
        ),
    )
    return order[0], gids[order[0]]


def make_qp(
    pd: PD,
    send_cq: CQ,
    recv_cq: CQ,
    send: int,
    recv: int,
    port: int = 1,
    access: int = ALL_ACCESS,
    qp_type: int = e.IBV_QPT_RC,
    srq: SRQ | None = None,
) -> QP:
    """A QP in the state INIT.

    :param send: outstanding sends
    :param recv: outstanding receives; 0 with an SRQ
    :param qp_type: RC or UC
    :param srq: what it receives from
    """
    cap = QPCap(max_send_wr=send, max_recv_wr=recv)
    attr = QPAttr(port_num=port)
    attr.qp_access_flags = access
    return QP(pd, QPInitAttr(qp_type, None, send_cq, recv_cq, srq, cap, 0), attr)


def make_datagram_qp(pd: PD, send_cq: CQ, recv_cq: CQ, send: int, recv: int, psn: int, port: int = 1) -> QP:
    """A QP of type UD in the state RTS, with the Q_Key QKEY.

    :param send: outstanding sends
    :param recv: outstanding receives
    :param psn: the first that is sent
    """
    attr = QPAttr(port_num=port)
    attr.qkey, attr.sq_psn = QKEY, psn
    cap = QPCap(max_send_wr=send, max_recv_wr=recv)
    return QP(pd, QPInitAttr(e.IBV_QPT_UD, None, send_cq, recv_cq, None, cap, 0), attr)


def _address(way: Way, gid: bytes) -> AHAttr:
    """The way to a peer."""
    if not any(gid):
        raise Fault("the peer sent no GID, and RoCE needs one: rdma-core's programs take it from -g INDEX")
    route = GlobalRoute(GID(gid.hex(":", 2)), sgid_index=way.gid_index, hop_limit=HOP_LIMIT)
    return AHAttr(is_global=1, port_num=way.port, sl=way.sl, gr=route)


def address_handle(pd: PD, way: Way, gid: bytes) -> AH:
    """What datagrams to a peer are sent with.

    :param way: how packets travel
    :param gid: the peer's
    :raises Fault: where it has none
    """
    return AH(pd, attr=_address(way, gid))


def join(qp: QP, way: Way, psn: int, peer: tuple[bytes, int, int], reads: int, timing: Timing = _TIMING) -> None:
    """Takes a QP of type RC or UC from INIT to RTS, connected to the peer's.

    :param way: how packets travel
    :param psn: the first that is sent
    :param peer: its GID, QP number and first PSN
    :param reads: READs and atomics at once, each way
    :param timing: time-outs and retries, of RC
    """
    gid, number, first = peer
    attr = QPAttr(port_num=way.port, path_mtu=way.mtu)
    attr.dest_qp_num, attr.rq_psn, attr.sq_psn = number, first, psn
    attr.max_rd_atomic = attr.max_dest_rd_atomic = reads
    attr.timeout, attr.retry_cnt, attr.rnr_retry, attr.min_rnr_timer = timing
    attr.ah_attr = _address(way, gid)
    qp.to_rtr(attr)
    qp.to_rts(attr)


def counter_of(context: Context, qp: QP, operations: int) -> CompCntr:
    """A counter of operations of a QP in INIT.

    :param operations: ``IBV_QP_ATTACH_COMP_CNTR_OP_*`` bits
    """
    counter = CompCntr(context, CompCntrInitAttr())
    qp.attach_comp_cntr(counter, QPAttachCompCntrAttr(op_mask=operations))
    return counter


class Region(NamedTuple):
    """A range of registered memory here, and the range of the peer's that it goes with."""

    address: int
    lkey: int
    remote_address: int
    rkey: int

    def request(
        self, opcode: int, offset: int, length: int, flags: int = 0, wr_id: int = 0, following: SendWR | None = None
    ) -> SendWR:
        """A WRITE or READ of ``length`` bytes at ``offset`` of both; ``following`` is posted after it."""
        element = SGE(self.address + offset, length, self.lkey)
        request = SendWR(wr_id, opcode, 1, sg=[element], send_flags=flags, next_wr=following)
        request.set_wr_rdma(self.rkey, self.remote_address + offset)
        return request


def chained(requests: list[SendWR]) -> SendWR:
    """The first of a list, each linked to the next."""
    for request, following in itertools.pairwise(requests):
        request.next_wr = following
    return requests[0]


def reap(cq: CQ, count: int, seconds: float) -> list[WC]:
    """Polls until ``count`` completions have come, whatever their status.

    :param seconds: time limit
    :raises Fault: past the limit
    """
    found: list[WC] = []
    end = time.monotonic() + seconds
    while len(found) < count:
        polled, completions = cq.poll(min(count - len(found), 64))
        found += completions
        if not polled and time.monotonic() > end:
            raise Fault(f"{len(found)} of {count} completions have come in {seconds:g} s")
    return found
