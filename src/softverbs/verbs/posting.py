# SPDX-License-Identifier: MIT
"""The extended API for sends, ibv_wr_post(3): work requests built by calls, and posted together or not at all.

In C the builders and setters return nothing, and what is wrong with them is told by ``ibv_wr_complete``; so it is here.
What is called outside of a critical section returns the value of errno.
"""

import sys
from collections.abc import Sequence
from typing import Any

from softverbs.core.queues.wr import SGE
from softverbs.pyverbs._fields import integer
from softverbs.pyverbs.addr import AH
from softverbs.pyverbs.qpex import DataBuffer, QPEx
from softverbs.verbs._convention import need, returns_object, returns_status


@returns_object
def ibv_qp_to_qp_ex(qp: QPEx) -> QPEx:
    """The same QP, if it has the extended API: ``wr_id`` and ``wr_flags`` are its attributes.

    :param qp: from ``ibv_create_qp_ex`` with IBV_QP_INIT_ATTR_SEND_OPS_FLAGS
    :return: the QP, or None with errno set
    """
    found: QPEx = need(qp, QPEx, "qp")
    return found


@returns_status
def ibv_wr_start(qp: QPEx) -> None:
    """Begins a critical section; waits while another thread is in one.

    :param qp: the extended QP
    :return: 0, or the value of errno (C: nothing)
    """
    need(qp, QPEx, "qp").wr_start()


@returns_status
def ibv_wr_complete(qp: QPEx) -> None:
    """Ends the critical section: posts its work requests, all of them or, where anything was wrong, none.

    :param qp: the extended QP
    :return: 0, or the value of errno
    """
    need(qp, QPEx, "qp").wr_complete()


@returns_status
def ibv_wr_abort(qp: QPEx) -> None:
    """Ends the critical section; its work requests are dropped.

    :param qp: the extended QP
    :return: 0, or the value of errno (C: nothing)
    """
    need(qp, QPEx, "qp").wr_abort()


@returns_status
def ibv_wr_send(qp: QPEx) -> None:
    """SEND."""
    need(qp, QPEx, "qp").wr_send()


@returns_status
def ibv_wr_send_imm(qp: QPEx, imm_data: int) -> None:
    """SEND_WITH_IMM.

    :param qp: the extended QP
    :param imm_data: immediate data, in network order
    """
    need(qp, QPEx, "qp").wr_send_imm(_host_order(imm_data))


@returns_status
def ibv_wr_send_inv(qp: QPEx, invalidate_rkey: int) -> None:
    """SEND_WITH_INV.

    :param qp: the extended QP
    :param invalidate_rkey: the peer's key
    """
    need(qp, QPEx, "qp").wr_send_inv(invalidate_rkey)


@returns_status
def ibv_wr_send_tso(qp: QPEx, hdr: int, hdr_sz: int, mss: int) -> None:
    """TSO: no QP can be made with it.

    :param qp: the extended QP
    :param hdr: address of the headers
    :param hdr_sz: their length, bytes
    :param mss: payload of a segment, bytes
    """
    need(qp, QPEx, "qp").wr_send_tso(hdr, hdr_sz, mss)


@returns_status
def ibv_wr_rdma_write(qp: QPEx, rkey: int, remote_addr: int) -> None:
    """RDMA_WRITE.

    :param qp: the extended QP
    :param rkey: key of the peer's memory
    :param remote_addr: address there
    """
    need(qp, QPEx, "qp").wr_rdma_write(rkey, remote_addr)


@returns_status
def ibv_wr_rdma_write_imm(qp: QPEx, rkey: int, remote_addr: int, imm_data: int) -> None:
    """RDMA_WRITE_WITH_IMM.

    :param qp: the extended QP
    :param rkey: key of the peer's memory
    :param remote_addr: address there
    :param imm_data: immediate data, in network order
    """
    need(qp, QPEx, "qp").wr_rdma_write_imm(rkey, remote_addr, _host_order(imm_data))


@returns_status
def ibv_wr_rdma_read(qp: QPEx, rkey: int, remote_addr: int) -> None:
    """RDMA_READ.

    :param qp: the extended QP
    :param rkey: key of the peer's memory
    :param remote_addr: address there
    """
    need(qp, QPEx, "qp").wr_rdma_read(rkey, remote_addr)


@returns_status
def ibv_wr_atomic_cmp_swp(qp: QPEx, rkey: int, remote_addr: int, compare: int, swap: int) -> None:
    """ATOMIC_CMP_AND_SWP.

    :param qp: the extended QP
    :param rkey: key of the peer's memory
    :param remote_addr: address there, a multiple of 8
    :param compare: compared with
    :param swap: stored where equal
    """
    need(qp, QPEx, "qp").wr_atomic_cmp_swp(rkey, remote_addr, compare, swap)


@returns_status
def ibv_wr_atomic_fetch_add(qp: QPEx, rkey: int, remote_addr: int, add: int) -> None:
    """ATOMIC_FETCH_AND_ADD.

    :param qp: the extended QP
    :param rkey: key of the peer's memory
    :param remote_addr: address there, a multiple of 8
    :param add: added
    """
    need(qp, QPEx, "qp").wr_atomic_fetch_add(rkey, remote_addr, add)


@returns_status
def ibv_wr_atomic_write(qp: QPEx, rkey: int, remote_addr: int, atomic_wr: Any) -> None:
    """ATOMIC_WRITE.

    :param qp: the extended QP
    :param rkey: key of the peer's memory
    :param remote_addr: address there, a multiple of 8
    :param atomic_wr: 8 bytes
    """
    need(qp, QPEx, "qp").wr_atomic_write(rkey, remote_addr, atomic_wr)


@returns_status
def ibv_wr_flush(qp: QPEx, rkey: int, remote_addr: int, len: int, type: int, level: int) -> None:
    """FLUSH.

    :param qp: the extended QP
    :param rkey: key of the peer's memory
    :param remote_addr: address there
    :param len: bytes
    :param type: IBV_FLUSH_GLOBAL, IBV_FLUSH_PERSISTENT
    :param level: IBV_FLUSH_RANGE, IBV_FLUSH_MR
    """
    need(qp, QPEx, "qp").wr_flush(rkey, remote_addr, len, type, level)


@returns_status
def ibv_wr_bind_mw(qp: QPEx, mw: Any, rkey: int, bind_info: Any) -> None:
    """BIND_MW of a memory window of type 2.

    :param qp: the extended QP
    :param mw: the window
    :param rkey: the key that it gets
    :param bind_info: what it opens, MWBindInfo
    """
    need(qp, QPEx, "qp").wr_bind_mw(mw, rkey, bind_info)


@returns_status
def ibv_wr_local_inv(qp: QPEx, invalidate_rkey: int) -> None:
    """LOCAL_INV of a memory window of type 2.

    :param qp: the extended QP
    :param invalidate_rkey: its key
    """
    need(qp, QPEx, "qp").wr_local_inv(invalidate_rkey)


@returns_status
def ibv_wr_set_sge(qp: QPEx, lkey: int, addr: int, length: int) -> None:
    """Data: one element.

    :param qp: the extended QP
    :param lkey: local key of the memory region
    :param addr: address of the first byte
    :param length: bytes
    """
    need(qp, QPEx, "qp").wr_set_sge(SGE(addr, length, lkey))


@returns_status
def ibv_wr_set_sge_list(qp: QPEx, num_sge: int, sg_list: Sequence[SGE]) -> None:
    """Data: a list of elements.

    :param qp: the extended QP
    :param num_sge: how many of them
    :param sg_list: the elements
    """
    need(qp, QPEx, "qp").wr_set_sge_list(num_sge, sg_list)


@returns_status
def ibv_wr_set_inline_data(qp: QPEx, addr: int, length: int) -> None:
    """Data: copied now.

    :param qp: the extended QP
    :param addr: address of the first byte
    :param length: bytes
    """
    need(qp, QPEx, "qp").wr_set_inline_data(addr, length)


@returns_status
def ibv_wr_set_inline_data_list(qp: QPEx, num_buf: int, buf_list: Sequence[DataBuffer]) -> None:
    """Data: pieces, copied now.

    :param qp: the extended QP
    :param num_buf: how many pieces
    :param buf_list: the pieces
    """
    need(qp, QPEx, "qp").wr_set_inline_data_list(num_buf, buf_list)


@returns_status
def ibv_wr_set_ud_addr(qp: QPEx, ah: AH, remote_qpn: int, remote_qkey: int) -> None:
    """Where a message of a UD QP goes.

    :param qp: the extended QP
    :param ah: address handle
    :param remote_qpn: number of the peer's QP
    :param remote_qkey: its Q_Key
    """
    need(qp, QPEx, "qp").wr_set_ud_addr(ah, remote_qpn, remote_qkey)


@returns_status
def ibv_wr_set_xrc_srqn(qp: QPEx, remote_srqn: int) -> None:
    """Which SRQ of the peer a message of an XRC_SEND QP is for.

    :param qp: the extended QP
    :param remote_srqn: its number
    """
    need(qp, QPEx, "qp").wr_set_xrc_srqn(remote_srqn)


def _host_order(imm_data: int) -> int:
    """Immediate data from network order, as the builders of pyverbs take it."""
    return int.from_bytes(integer(imm_data, "imm_data").to_bytes(4, sys.byteorder), "big")
