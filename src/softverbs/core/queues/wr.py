# SPDX-License-Identifier: MIT
"""Work requests and work completions: the objects that cross between an application and the device.

They are pyverbs' classes (``pyverbs.wr``, ``pyverbs.cq.WC``) with pyverbs' signatures. Every value is checked
against the width of its C field when it is set, so that the device only ever sees values that fit.
"""

import errno
from typing import Any

try:
    import cython
except ImportError:
    from softverbs import _cython as cython
from softverbs.core.base.errors import PyverbsRDMAError, PyverbsUserError
from softverbs.core.queues.wr_text import (
    cqe_flags_to_str,
    cqe_opcode_to_str,
    cqe_status_to_str,
    lines,
    send_flags_to_str,
)

if not cython.compiled:
    from softverbs.core.memory.raw import view

_U32 = 2**32 - 1
_U64 = 2**64 - 1
_MW_TYPE_2 = 2  # enum ibv_mw_type


def _fits(name: str, value: object, limit: int) -> int:
    """``value`` if it is an integer from 0 to ``limit``; else PyverbsUserError names it."""
    try:
        number = value.__index__()  # type: ignore[attr-defined]
    except AttributeError:
        raise PyverbsUserError(f"{name} must be an integer, not {type(value).__name__}") from None
    if not 0 <= number <= limit:
        raise PyverbsUserError(f"{name}={number:#x} is out of range: 0 to {limit:#x}")
    return int(number)


class SGE:
    """A scatter/gather element, ``struct ibv_sge``: a range of registered memory."""

    def __init__(self, addr: int, length: int, lkey: int) -> None:
        """
        :param addr: address of the first byte, in the memory region's own addressing
        :param length: bytes
        :param lkey: local key of the memory region
        """
        self._addr = _fits("SGE addr", addr, _U64)
        self._length = _fits("SGE length", length, _U32)
        self._lkey = _fits("SGE lkey", lkey, _U32)

    def __enter__(self) -> "SGE":
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Nothing to free; here because pyverbs has it."""

    def read(self, length: int, offset: int) -> bytes:
        """``length`` bytes from ``offset`` on. PyverbsUserError outside of the element."""
        if length < 0 or offset < 0 or offset + length > self._length:
            raise PyverbsUserError(f"read of {length} bytes at offset {offset}: the SGE has {self._length}")
        return bytes(view(self._addr + offset, length)) if length else b""

    def __str__(self) -> str:
        rows = (("Address", hex(self._addr)), ("Length", self._length), ("Key", hex(self._lkey)))
        return "".join(f"{name:22}: {value:<20}\n" for name, value in rows)

    @property
    def addr(self) -> int:
        """Address of the first byte."""
        return self._addr

    @addr.setter
    def addr(self, value: int) -> None:
        self._addr = _fits("SGE addr", value, _U64)

    @property
    def length(self) -> int:
        """Bytes."""
        return self._length

    @length.setter
    def length(self, value: int) -> None:
        self._length = _fits("SGE length", value, _U32)

    @property
    def lkey(self) -> int:
        """Local key of the memory region."""
        return self._lkey

    @lkey.setter
    def lkey(self, value: int) -> None:
        self._lkey = _fits("SGE lkey", value, _U32)


def _elements(num_sge: object, sg: object) -> list[SGE]:
    """Copies of the first ``num_sge`` elements of ``sg``: a work request keeps the values it was made with."""
    count = _fits("num_sge", num_sge, _U32)
    if sg is None:
        if count:
            raise PyverbsUserError(f"num_sge is {count}, but there is no scatter/gather list")
        return []
    if not isinstance(sg, (list, tuple)):
        raise PyverbsUserError(f"sg must be a list of SGE, not {type(sg).__name__}")
    if count > len(sg):
        raise PyverbsUserError(f"num_sge is {count}, but the scatter/gather list has {len(sg)}")
    result = []
    for index in range(count):
        item = sg[index]
        if not isinstance(item, SGE):
            raise PyverbsUserError(f"sg[{index}] is not an SGE but {type(item).__name__}")
        result.append(SGE(item.addr, item.length, item.lkey))
    return result


def _element_list(value: object) -> list[SGE]:
    """What ``sg_list`` is set to: copies of one element, or of all in a list."""
    if isinstance(value, SGE):
        return _elements(1, [value])
    if not isinstance(value, (list, tuple)):
        raise PyverbsUserError(f"sg_list must be an SGE or a list of SGE, not {type(value).__name__}")
    return _elements(len(value), value)


class RecvWR:
    """A receive work request, ``struct ibv_recv_wr`` of ibv_post_recv(3)."""

    def __init__(
        self, wr_id: int = 0, num_sge: int = 0, sg: "list[SGE] | None" = None, next_wr: "RecvWR | None" = None
    ) -> None:
        """
        :param wr_id: any 64-bit number; the completion returns it
        :param num_sge: how many elements of ``sg`` are used
        :param sg: where an inbound message is placed
        :param next_wr: the next work request of a list
        """
        self._wr_id = _fits("wr_id", wr_id, _U64)
        self._sg = _elements(num_sge, sg)
        self._next: RecvWR | None = None
        if next_wr is not None:
            self.next_wr = next_wr

    def __enter__(self) -> "RecvWR":
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Nothing to free; here because pyverbs has it."""

    def __str__(self) -> str:
        return lines((("WR ID", self._wr_id), ("Num SGE", len(self._sg))))

    def assign(self, other: "RecvWR") -> None:
        """Extension: makes this one a copy of ``other``, next one included."""
        self._wr_id = other._wr_id
        self._sg = _elements(len(other._sg), other._sg)
        self._next = other._next

    @property
    def next_wr(self) -> "RecvWR | None":
        """The next work request of the list, or None."""
        return self._next

    @next_wr.setter
    def next_wr(self, value: "RecvWR") -> None:
        if not isinstance(value, RecvWR):
            raise PyverbsUserError(f"next_wr must be a RecvWR, not {type(value).__name__}")
        self._next = value

    @property
    def wr_id(self) -> int:
        """The number that the completion returns."""
        return self._wr_id

    @wr_id.setter
    def wr_id(self, value: int) -> None:
        self._wr_id = _fits("wr_id", value, _U64)

    @property
    def num_sge(self) -> int:
        """How many scatter/gather elements there are."""
        return len(self._sg)

    @property
    def sg_list(self) -> "list[SGE]":
        """The elements (pyverbs gives their address)."""
        return self._sg

    @sg_list.setter
    def sg_list(self, value: "SGE | list[SGE]") -> None:
        self._sg = _element_list(value)


class SendWR:
    """A send work request, ``struct ibv_send_wr`` of ibv_post_send(3)."""

    def __init__(
        self,
        wr_id: int = 0,
        opcode: int = 2,
        num_sge: int = 0,
        imm_data: int = 0,
        sg: "list[SGE] | None" = None,
        send_flags: int = 2,
        next_wr: "SendWR | None" = None,
    ) -> None:
        """
        :param wr_id: any 64-bit number; the completion returns it
        :param opcode: ``IBV_WR_*``; SEND by default
        :param num_sge: how many elements of ``sg`` are used; 0 makes a message of 0 bytes
        :param imm_data: immediate data, already in network order (``htonl``), or the rkey to invalidate
        :param sg: what is sent; for READ and atomics where the result is placed
        :param send_flags: ``IBV_SEND_*``; SIGNALED by default
        :param next_wr: the next work request of a list
        """
        self._wr_id = _fits("wr_id", wr_id, _U64)
        self._opcode = _fits("opcode", opcode, 255)
        self._send_flags = _fits("send_flags", send_flags, _U32)
        self._imm_data = _fits("imm_data", imm_data, _U32)
        self._sg = _elements(num_sge, sg)
        self._next: SendWR | None = None
        self._remote_addr = 0
        self._rkey = 0
        self._compare_add = 0
        self._swap = 0
        #: Memory window, the region's lkey, address, length, rights.
        self._bind: tuple[Any, int, int, int, int] | None = None
        #: UD: handle of the address handle, the peer's QP and Q_Key. XRC: the peer's SRQ.
        self._ah = 0
        self._ah_core: object = None
        self._ah_owner: object = None
        self._destination = 0
        #: FLUSH: bytes, placement type and selectivity level << 4.
        self._flush_length = 0
        self._flush_kind = 0
        if next_wr is not None:
            self.next_wr = next_wr

    def __enter__(self) -> "SendWR":
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Nothing to free; here because pyverbs has it."""

    def __str__(self) -> str:
        return lines(
            (
                ("WR ID", self._wr_id),
                ("Num SGE", len(self._sg)),
                ("Opcode", self._opcode),
                ("Send flags", send_flags_to_str(self._send_flags)),
                ("Imm Data", self._imm_data),
            )
        )

    def assign(self, other: "SendWR") -> None:
        """Extension: makes this one a copy of ``other``, next one included."""
        self._wr_id = other._wr_id
        self._opcode = other._opcode
        self._send_flags = other._send_flags
        self._imm_data = other._imm_data
        self._sg = _elements(len(other._sg), other._sg)
        self._next = other._next
        self._remote_addr = other._remote_addr
        self._rkey = other._rkey
        self._compare_add = other._compare_add
        self._swap = other._swap
        self._bind = other._bind
        self._ah = other._ah
        self._ah_core = other._ah_core
        self._ah_owner = other._ah_owner
        self._destination = other._destination
        self._flush_length = other._flush_length
        self._flush_kind = other._flush_kind

    @property
    def next_wr(self) -> "SendWR | None":
        """The next work request of the list, or None."""
        return self._next

    @next_wr.setter
    def next_wr(self, value: "SendWR") -> None:
        if not isinstance(value, SendWR):
            raise PyverbsUserError(f"next_wr must be a SendWR, not {type(value).__name__}")
        self._next = value

    @property
    def wr_id(self) -> int:
        """The number that the completion returns."""
        return self._wr_id

    @wr_id.setter
    def wr_id(self, value: int) -> None:
        self._wr_id = _fits("wr_id", value, _U64)

    @property
    def num_sge(self) -> int:
        """How many scatter/gather elements there are."""
        return len(self._sg)

    @property
    def imm_data(self) -> int:
        """Immediate data, in network order; or the rkey to invalidate."""
        return self._imm_data

    @imm_data.setter
    def imm_data(self, value: int) -> None:
        self._imm_data = _fits("imm_data", value, _U32)

    @property
    def opcode(self) -> int:
        """``IBV_WR_*``."""
        return self._opcode

    @opcode.setter
    def opcode(self, value: int) -> None:
        self._opcode = _fits("opcode", value, 255)

    @property
    def send_flags(self) -> int:
        """``IBV_SEND_*``."""
        return self._send_flags

    @send_flags.setter
    def send_flags(self, value: int) -> None:
        self._send_flags = _fits("send_flags", value, _U32)

    @property
    def sg_list(self) -> "list[SGE]":
        """The elements (pyverbs gives their address)."""
        return self._sg

    @sg_list.setter
    def sg_list(self, value: "SGE | list[SGE]") -> None:
        self._sg = _element_list(value)

    def set_wr_rdma(self, rkey: int, addr: int) -> None:
        """The remote side of RDMA WRITE and READ.

        :param rkey: key of the peer's memory
        :param addr: address there
        """
        self._rkey = _fits("rkey", rkey, _U32)
        self._remote_addr = _fits("remote_addr", addr, _U64)

    def set_wr_atomic(self, rkey: int, addr: int, compare_add: int, swap: int = 0) -> None:
        """The remote side of an atomic.

        :param rkey: key of the peer's memory
        :param addr: address there, a multiple of 8
        :param compare_add: CMP_AND_SWP: compared with; FETCH_AND_ADD: added
        :param swap: CMP_AND_SWP: stored where equal
        """
        self.set_wr_rdma(rkey, addr)
        self._compare_add = _fits("compare_add", compare_add, _U64)
        self._swap = _fits("swap", swap, _U64)

    def set_wr_ud(self, ah: Any, rqpn: int, rqkey: int) -> None:
        """Where a datagram goes.

        :param ah: the address handle
        :param rqpn: number of the peer's QP; 0xffffff for a multicast group
        :param rqkey: the peer's Q_Key; with its highest bit set, that of the sending QP is used
        """
        if not hasattr(ah, "_open") or not hasattr(ah._open(), "vector"):
            raise PyverbsUserError(f"ah is {type(ah).__name__}: AH is expected")
        self._ah_core = ah._open()
        self._ah = _fits("address handle", ah._open().handle, _U32)
        self._ah_owner = ah  # kept alive until the work request is posted
        self._destination = _fits("remote_qpn", rqpn, 0xFFFFFF)
        self._rkey = _fits("remote_qkey", rqkey, _U32)

    def set_qp_type_xrc(self, remote_srqn: int) -> None:
        """Where an XRC message goes.

        :param remote_srqn: number of the peer's SRQ
        """
        self._destination = _fits("remote_srqn", remote_srqn, 0xFFFFFF)

    def set_wr_flush(self, rkey: int, addr: int, length: int, placement_type: int, level: int) -> None:
        """Extension: what a FLUSH flushes (ibv_wr_flush(3)).

        :param rkey: key of the peer's memory
        :param addr: address there
        :param length: bytes
        :param placement_type: ``IBV_FLUSH_GLOBAL``, ``IBV_FLUSH_PERSISTENT``, or both
        :param level: ``IBV_FLUSH_RANGE`` or ``IBV_FLUSH_MR``
        """
        self.set_wr_rdma(rkey, addr)
        self._flush_length = _fits("flush length", length, _U32)
        self._flush_kind = _fits("placement type", placement_type, 15) | _fits("selectivity level", level, 3) << 4

    def set_bind_wr(self, mw: Any, bind_info: Any) -> None:
        """Binds a memory window of type 2.

        :param mw: the memory window
        :param bind_info: what it shall open
        :raises PyverbsRDMAError: EINVAL for a window of type 1 (ibv_bind_mw(3) binds it)
        """
        if getattr(mw, "type", _MW_TYPE_2) != _MW_TYPE_2:
            words = "BIND_MW is for memory windows of type 2; bind_mw binds those of type 1"
            raise PyverbsRDMAError(words, errno.EINVAL)
        self._set_bind(mw, bind_info)

    def _set_bind(self, mw: Any, bind_info: Any) -> None:
        """Binds a memory window of either type."""
        current = _fits("rkey", mw.rkey, _U32)
        self._bind = (
            mw,
            _fits("lkey", bind_info.mr.lkey, _U32),
            _fits("bind addr", bind_info.addr, _U64),
            _fits("bind length", bind_info.length, _U64),
            _fits("mw_access_flags", bind_info.mw_access_flags, _U32),
        )
        self._rkey = (current & 0xFFFFFF00) | ((current + 1) & 0xFF)

    @property
    def rkey(self) -> int:
        """The key that a bind will give to its memory window; else the remote key."""
        return self._rkey

    @property
    def rdma_remote_addr(self) -> int:
        """The remote address."""
        return self._remote_addr

    @property
    def rdma_rkey(self) -> int:
        """The remote key."""
        return self._rkey


class WC:
    """A work completion, ``struct ibv_wc`` of ibv_poll_cq(3), plus ``reason``."""

    def __init__(
        self,
        wr_id: int = 0,
        status: int = 0,
        opcode: int = 0,
        vendor_err: int = 0,
        byte_len: int = 0,
        qp_num: int = 0,
        src_qp: int = 0,
        imm_data: int = 0,
        wc_flags: int = 0,
        pkey_index: int = 0,
        slid: int = 0,
        sl: int = 0,
        dlid_path_bits: int = 0,
    ) -> None:
        """
        :param wr_id: number of the work request
        :param status: ``IBV_WC_*``; where it is not SUCCESS only wr_id, status, qp_num and vendor_err are valid
        :param opcode: ``IBV_WC_SEND`` and so on
        :param vendor_err: the device's own error number
        :param byte_len: bytes received, or read
        :param qp_num: number of the local QP
        :param src_qp: number of the remote QP, for UD
        :param imm_data: immediate data in network order, or the rkey that was invalidated
        :param wc_flags: ``IBV_WC_GRH``, ``WITH_IMM``, ``WITH_INV``
        :param pkey_index: index of the P_Key
        :param slid: source LID; 0 over Ethernet
        :param sl: service level
        :param dlid_path_bits: 0 over Ethernet
        """
        self.wr_id = wr_id
        self.status = status
        self.opcode = opcode
        self.vendor_err = vendor_err
        self.byte_len = byte_len
        self.qp_num = qp_num
        self.src_qp = src_qp
        self.imm_data = imm_data
        self.wc_flags = wc_flags
        self.pkey_index = pkey_index
        self.slid = slid
        self.sl = sl
        self.dlid_path_bits = dlid_path_bits
        #: Extension: why it did not succeed, in words; empty where it did.
        self.reason = ""

    def __str__(self) -> str:
        return lines(
            (
                ("WR ID", self.wr_id),
                ("status", cqe_status_to_str(self.status)),
                ("opcode", cqe_opcode_to_str(self.opcode)),
                ("vendor error", self.vendor_err),
                ("byte length", self.byte_len),
                ("QP num", self.qp_num),
                ("source QP", self.src_qp),
                ("WC flags", cqe_flags_to_str(self.wc_flags)),
                ("pkey index", self.pkey_index),
                ("slid", self.slid),
                ("sl", self.sl),
                ("imm_data", self.imm_data),
                ("dlid path bits", self.dlid_path_bits),
                ("reason", self.reason),
            )
        )
