# SPDX-License-Identifier: MIT
"""The extended API for sends, ibv_wr_post(3): work requests are built by calls, and posted together or not at all.

A critical section begins with ``wr_start`` and ends with ``wr_complete`` or ``wr_abort``. Within it nothing raises: the
first thing that is wrong is remembered, and ``wr_complete`` refuses the whole section with it. Only the thread that
began a section may continue it; others wait in ``wr_start``. ``qp`` re-exports the classes, as pyverbs has them there.
"""

import errno
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any

from softverbs._interrupts import Shield, shielded
from softverbs.core.memory.raw import Block, copy_checked, view
from softverbs.core.queues.wr import SGE, SendWR
from softverbs.pyverbs import libibverbs_enums as e
from softverbs.pyverbs._fields import Field, instance, integer, refused
from softverbs.pyverbs._qp_ops import check_send_ops, op_names
from softverbs.pyverbs.addr import AH
from softverbs.pyverbs.base import PyverbsCM, reworded
from softverbs.pyverbs.mr import MW, MWBindInfo
from softverbs.pyverbs.pyverbs_error import PyverbsError
from softverbs.pyverbs.qp import QP
from softverbs.pyverbs.utils import qp_type_to_str

_FLAGS = e.IBV_SEND_FENCE | e.IBV_SEND_SIGNALED | e.IBV_SEND_SOLICITED | e.IBV_SEND_IP_CSUM
_INLINE = {
    e.IBV_WR_SEND,
    e.IBV_WR_SEND_WITH_IMM,
    e.IBV_WR_SEND_WITH_INV,
    e.IBV_WR_RDMA_WRITE,
    e.IBV_WR_RDMA_WRITE_WITH_IMM,
}
#: Operations that move no data of the list of elements.
_NO_DATA = {e.IBV_WR_BIND_MW, e.IBV_WR_LOCAL_INV, e.IBV_WR_ATOMIC_WRITE}
#: Operations that stay here, and so need no address and no number of a remote SRQ.
_LOCAL = {e.IBV_WR_BIND_MW, e.IBV_WR_LOCAL_INV}
_ATOMIC_SIZE = 8
_ADDRESS_SETTERS = {e.IBV_QPT_UD: "wr_set_ud_addr", e.IBV_QPT_XRC_SEND: "wr_set_xrc_srqn"}
_WHAT = "Failed to complete work requests"


class DataBuffer(PyverbsCM):
    """A piece of inline data, ``struct ibv_data_buf``: an address of this process and a length, bytes."""

    addr = Field("Address of the first byte.", 64)
    length = Field("Bytes.", 64)

    def __init__(self, addr: int, length: int) -> None:
        """
        :param addr: address of the first byte
        :param length: bytes
        """
        self.addr = addr
        self.length = length


class QPEx(QP):
    """A QP with the extended API for sends, ``struct ibv_qp_ex`` (ibv_wr_post(3)).

    Its QPInitAttrEx has IBV_QP_INIT_ATTR_SEND_OPS_FLAGS in ``comp_mask`` and, in ``send_ops_flags``, the operations
    that will be posted.
    """

    _hot = {**QP._hot, "_post_all": "post_send_all"}  # noqa: RUF012
    _post_all: Callable[[SendWR], None]

    comp_mask = Field("Which further fields are valid: none, 0.", 64)
    wr_id = Field("Number of the next work request, which its completion returns.", 64)
    wr_flags = Field("IBV_SEND_* flags of the next work request: FENCE, SIGNALED, SOLICITED.")

    def __init__(self, creator: Any, init_attr: Any, qp_attr: Any = None) -> None:
        """
        :param creator: a Context, with a QPInitAttrEx that names the PD; or a PD, with a QPInitAttr
        :param init_attr: how it is made; ``send_ops_flags`` are the operations
        :param qp_attr: moves the QP to INIT at once, a UD QP to RTS
        :raises PyverbsRDMAError: as QP; EOPNOTSUPP names operations that a QP of this type cannot have
        """
        self._ops = check_send_ops(init_attr, "Failed to create QP")
        self._section = threading.Lock()
        self._owner = 0
        self._begin()
        super().__init__(creator, init_attr, qp_attr)

    @property
    def ind_table(self) -> None:
        """Table of receive work queues: none, there is no receive-side scaling."""
        return None

    # -- the critical section

    def wr_start(self) -> None:
        """Begins a critical section; waits while another thread is in one.

        :raises PyverbsRDMAError: EINVAL where this thread is in one already, or the QP has no extended API
        """
        self._open()
        if not self._ops:
            raise refused("wr_start: the QP was made without IBV_QP_INIT_ATTR_SEND_OPS_FLAGS and send_ops_flags")
        me = threading.get_ident()
        if self._owner == me:
            raise refused("wr_start: a critical section is open; wr_complete or wr_abort comes first")
        try:
            with Shield() as shield:
                if self._section.locked():
                    self._device().check()  # in a forked child the thread that is in it does not exist
                shield.acquire(self._section)
                self._owner = me
                if self._core is None:  # closed while this thread waited
                    raise self._closed()
                self._begin()
        except BaseException:
            if self._owner == me:
                self._leave()
            raise

    def wr_complete(self) -> None:
        """Ends the critical section: posts its work requests, all of them or, where anything was wrong, none.

        :raises PyverbsRDMAError: the first thing that was wrong, EINVAL mostly; ENOMEM when the queue has not room for
            all; EFAULT where inline data could not be read
        """
        self._inside("wr_complete")
        try:
            self._finish()
            if self._fault is not None:
                raise self._fault
            if self._work:
                self._post_all(self._work[0])
        except (PyverbsError, TypeError, OverflowError) as error:
            raise self._refusal(error) from None
        finally:
            self._leave()

    def _refusal(self, error: BaseException) -> BaseException:
        worded = reworded(error, _WHAT)
        if worded is None:
            return error
        if self._context is not None:
            self._context.device.log.info("%s", worded)
        return worded

    def wr_abort(self) -> None:
        """Ends the critical section; its work requests are dropped."""
        self._inside("wr_abort")
        self._leave()

    def _begin(self) -> None:
        """A section without work."""
        self._work: list[SendWR] = []
        self._builder = ""
        self._has_data = self._has_address = False
        self._fault: PyverbsError | None = None
        self._blocks: list[Block] = []  # copies of inline data, until the device has its own

    @shielded
    def _leave(self) -> None:
        self._begin()
        owner, self._owner = self._owner, 0
        if owner:
            self._section.release()

    def _forget(self) -> None:
        super()._forget()
        self._leave()  # whoever waits for the section need not wait for ever

    def _inside(self, name: str) -> None:
        """Refuses what is called outside of a section: there is no wr_complete that could."""
        self._open()
        if self._owner != threading.get_ident():
            raise refused(f"{name}: no critical section is open; wr_start comes first")

    def _remember(self, name: str, error: BaseException, wr_id: int = -1) -> None:
        """Keeps the first fault for ``wr_complete``; ``wr_id``: of the work request, or -1 for the present one."""
        if self._fault is None:
            what = f"{name} (wr_id {self.wr_id if wr_id < 0 else wr_id:#x})"
            self._fault = reworded(error, what) or refused(f"{what}: {error}")

    def _finish(self) -> None:
        """Looks whether the work request that was built last has all that it needs."""
        if not self._work or self._fault is not None:
            return
        last = self._work[-1]
        kind = int(self._open().qp_type)
        if not self._has_address and last.opcode not in _LOCAL and kind in _ADDRESS_SETTERS:
            lacking = refused(f"{_ADDRESS_SETTERS[kind]} has not been called; a {qp_type_to_str(kind)} QP needs it")
            self._remember(self._builder, lacking, last.wr_id)
        elif not self._has_data and last.opcode != e.IBV_WR_FLUSH:
            lacking = refused("no data setter has been called; for a message of 0 bytes, set 0 bytes")
            self._remember(self._builder, lacking, last.wr_id)

    # -- builders

    def _build(
        self, name: str, op: int, opcode: int, number: int = 0, more: "Callable[[SendWR], None] | None" = None
    ) -> None:
        """Begins a work request; what is wrong with it is remembered.

        :param name: the builder
        :param op: the bit of ``send_ops_flags`` that permits it
        :param opcode: IBV_WR_*
        :param number: immediate data in network order, or the key to invalidate
        :param more: fills in what else the operation has
        """
        self._inside(name)
        self._finish()
        self._builder = name
        self._has_data = opcode in _NO_DATA
        self._has_address = False
        try:
            if not op & self._ops:
                raise refused(f"the QP was made without {op_names(op)} in send_ops_flags")
            if self.wr_flags & ~_FLAGS:
                raise refused(f"wr_flags {self.wr_flags:#x}: of no meaning here: {self.wr_flags & ~_FLAGS:#x}")
            wr = SendWR(self.wr_id, opcode, 0, number, None, self.wr_flags)
            if more is not None:
                more(wr)
        except (PyverbsError, TypeError, AttributeError, OverflowError) as error:
            self._remember(name, error)
            return
        if self._work:
            self._work[-1].next_wr = wr
        self._work.append(wr)

    def wr_send(self) -> None:
        """SEND. Data: one of the data setters."""
        self._build("wr_send", e.IBV_QP_EX_WITH_SEND, e.IBV_WR_SEND)

    def wr_send_imm(self, data: int) -> None:
        """SEND_WITH_IMM.

        :param data: immediate data, in host order; the completion at the receiver has it in network order
        """
        self._with_imm("wr_send_imm", e.IBV_QP_EX_WITH_SEND_WITH_IMM, e.IBV_WR_SEND_WITH_IMM, data)

    def _with_imm(self, name: str, op: int, opcode: int, data: int, more: Any = None) -> None:
        def fill_in(wr: SendWR) -> None:
            wr.imm_data = int.from_bytes(integer(data, "data").to_bytes(4, "big"), sys.byteorder)
            if more is not None:
                more(wr)

        self._build(name, op, opcode, 0, fill_in)

    def wr_send_inv(self, invalidate_rkey: int) -> None:
        """SEND_WITH_INV: the peer's memory window or region is invalidated before its receive completes.

        :param invalidate_rkey: the peer's key
        """
        self._with_key("wr_send_inv", e.IBV_QP_EX_WITH_SEND_WITH_INV, e.IBV_WR_SEND_WITH_INV, invalidate_rkey)

    def wr_local_inv(self, invalidate_rkey: int) -> None:
        """LOCAL_INV of a memory window of type 2.

        :param invalidate_rkey: its key
        """
        self._with_key("wr_local_inv", e.IBV_QP_EX_WITH_LOCAL_INV, e.IBV_WR_LOCAL_INV, invalidate_rkey)

    def _with_key(self, name: str, op: int, opcode: int, key: int) -> None:
        def fill_in(wr: SendWR) -> None:
            wr.imm_data = integer(key, "invalidate_rkey")

        self._build(name, op, opcode, 0, fill_in)

    def wr_send_tso(self, hdr: int, hdr_sz: int, mss: int) -> None:
        """TSO: remembered as a refusal; no QP can be made with it.

        :param hdr: address of the headers
        :param hdr_sz: their length, bytes
        :param mss: payload of a segment, bytes
        """
        self._build("wr_send_tso", e.IBV_QP_EX_WITH_TSO, e.IBV_WR_TSO)

    def wr_rdma_write(self, rkey: int, remote_addr: int) -> None:
        """RDMA_WRITE.

        :param rkey: key of the peer's memory
        :param remote_addr: address there
        """
        op = e.IBV_QP_EX_WITH_RDMA_WRITE
        self._build("wr_rdma_write", op, e.IBV_WR_RDMA_WRITE, 0, lambda wr: wr.set_wr_rdma(rkey, remote_addr))

    def wr_rdma_write_imm(self, rkey: int, remote_addr: int, data: int) -> None:
        """RDMA_WRITE_WITH_IMM.

        :param rkey: key of the peer's memory
        :param remote_addr: address there
        :param data: immediate data, in host order
        """
        op, opcode = e.IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM, e.IBV_WR_RDMA_WRITE_WITH_IMM
        self._with_imm("wr_rdma_write_imm", op, opcode, data, lambda wr: wr.set_wr_rdma(rkey, remote_addr))

    def wr_rdma_read(self, rkey: int, remote_addr: int) -> None:
        """RDMA_READ.

        :param rkey: key of the peer's memory
        :param remote_addr: address there
        """
        op = e.IBV_QP_EX_WITH_RDMA_READ
        self._build("wr_rdma_read", op, e.IBV_WR_RDMA_READ, 0, lambda wr: wr.set_wr_rdma(rkey, remote_addr))

    def wr_atomic_cmp_swp(self, rkey: int, remote_addr: int, compare: int, swap: int) -> None:
        """ATOMIC_CMP_AND_SWP of 8 bytes.

        :param rkey: key of the peer's memory
        :param remote_addr: address there, a multiple of 8
        :param compare: compared with
        :param swap: stored where equal
        """
        op, opcode = e.IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP, e.IBV_WR_ATOMIC_CMP_AND_SWP
        self._build("wr_atomic_cmp_swp", op, opcode, 0, lambda wr: wr.set_wr_atomic(rkey, remote_addr, compare, swap))

    def wr_atomic_fetch_add(self, rkey: int, remote_addr: int, add: int) -> None:
        """ATOMIC_FETCH_AND_ADD of 8 bytes.

        :param rkey: key of the peer's memory
        :param remote_addr: address there, a multiple of 8
        :param add: added
        """
        op, opcode = e.IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD, e.IBV_WR_ATOMIC_FETCH_AND_ADD
        self._build("wr_atomic_fetch_add", op, opcode, 0, lambda wr: wr.set_wr_atomic(rkey, remote_addr, add))

    def wr_atomic_write(self, rkey: int, remote_addr: int, atomic_wr: Any) -> None:
        """ATOMIC_WRITE of 8 bytes, which are copied now.

        :param rkey: key of the peer's memory
        :param remote_addr: address there, a multiple of 8
        :param atomic_wr: 8 bytes (bytes, or what has the buffer protocol); what follows them does not count
        """

        def fill_in(wr: SendWR) -> None:
            with memoryview(atomic_wr) as given:
                data = given.tobytes()[:_ATOMIC_SIZE]
            if len(data) < _ATOMIC_SIZE:
                raise refused(f"atomic_wr has {len(data)} bytes: {_ATOMIC_SIZE} are needed")
            wr.set_wr_rdma(rkey, remote_addr)
            block = Block(_ATOMIC_SIZE)
            view(block.address, _ATOMIC_SIZE)[:] = data
            self._take_inline(wr, block, _ATOMIC_SIZE)

        self._build("wr_atomic_write", e.IBV_QP_EX_WITH_ATOMIC_WRITE, e.IBV_WR_ATOMIC_WRITE, 0, fill_in)

    def wr_flush(self, rkey: int, remote_addr: int, length: int, ptype: int, level: int) -> None:
        """FLUSH: completes when what was written there before is visible, or persistent. A data setter is ignored.

        :param rkey: key of the peer's memory
        :param remote_addr: address there
        :param length: bytes
        :param ptype: IBV_FLUSH_GLOBAL, IBV_FLUSH_PERSISTENT
        :param level: IBV_FLUSH_RANGE: this range; IBV_FLUSH_MR: the whole region
        """
        op = e.IBV_QP_EX_WITH_FLUSH
        self._build(
            "wr_flush", op, e.IBV_WR_FLUSH, 0, lambda wr: wr.set_wr_flush(rkey, remote_addr, length, ptype, level)
        )

    def wr_bind_mw(self, mw: MW, rkey: int, bind_info: MWBindInfo) -> None:
        """BIND_MW of a memory window of type 2.

        :param mw: the window
        :param rkey: the key that it gets: its present one with another low byte (``inc_rkey``)
        :param bind_info: MWBindInfo: what it opens
        """

        def fill_in(wr: SendWR) -> None:
            instance(mw, MW, "mw")
            instance(bind_info, MWBindInfo, "bind_info")
            mw._open()
            bind_info.mr._open()
            if mw.type != e.IBV_MW_TYPE_2:
                raise refused("the window is of type 1; QP.bind_mw binds it")
            wr.set_bind_wr(mw, bind_info)
            wr.set_wr_rdma(rkey, 0)  # the key that set_bind_wr has chosen gives way

        self._build("wr_bind_mw", e.IBV_QP_EX_WITH_BIND_MW, e.IBV_WR_BIND_MW, 0, fill_in)

    # -- setters

    def _set(self, name: str, change: Callable[[SendWR], None]) -> None:
        """Completes the work request that was begun last; what is wrong is remembered."""
        self._inside(name)
        if self._fault is not None:
            return
        try:
            if not self._work:
                raise refused("there is no work request; a builder comes first")
            change(self._work[-1])
        except (PyverbsError, TypeError, AttributeError, OverflowError) as error:
            self._remember(name, error)

    def _set_data(self, name: str, change: Callable[[SendWR], None]) -> None:
        def once(wr: SendWR) -> None:
            if wr.opcode in _NO_DATA:
                raise refused(f"{self._builder} takes no data")
            if self._has_data:
                raise refused(f"{self._builder} has its data already")
            self._has_data = True
            change(wr)

        self._set(name, once)

    def wr_set_sge(self, sge: SGE) -> None:
        """Data: one element.

        :param sge: the element
        """
        self._set_elements("wr_set_sge", 1, [sge])

    def wr_set_sge_list(self, num_sge: int, sg_list: Sequence[SGE]) -> None:
        """Data: a list of elements.

        :param num_sge: how many of them
        :param sg_list: the elements
        """
        self._set_elements("wr_set_sge_list", num_sge, sg_list)

    def _set_elements(self, name: str, num_sge: int, sg_list: Sequence[SGE]) -> None:
        def change(wr: SendWR) -> None:
            count = integer(num_sge, "num_sge")
            if count > len(sg_list):
                raise refused(f"num_sge is {count}, but the list has {len(sg_list)}")
            elements = list(sg_list[:count])
            most = int(self._open().max_send_sge)
            if count > most:
                raise refused(f"{count} scatter/gather elements: max_send_sge={most}")
            if wr.opcode != e.IBV_WR_FLUSH:
                wr.sg_list = elements

        self._set_data(name, change)

    def wr_set_inline_data(self, addr: int, length: int) -> None:
        """Data: copied now, so that the memory can be used again at once. For SEND and RDMA_WRITE.

        :param addr: address of the first byte, of any memory of this process
        :param length: bytes, ``max_inline_data`` at most
        """
        self._set_data("wr_set_inline_data", lambda wr: self._inline(wr, [(addr, length)]))

    def wr_set_inline_data_list(self, num_buf: int, buf_list: Sequence[DataBuffer]) -> None:
        """Data: pieces, copied now, one after the other. For SEND and RDMA_WRITE.

        :param num_buf: how many pieces
        :param buf_list: the pieces, DataBuffer
        """

        def change(wr: SendWR) -> None:
            count = integer(num_buf, "num_buf", 64)
            if count > len(buf_list):
                raise refused(f"num_buf is {count}, but the list has {len(buf_list)}")
            self._inline(wr, [(buffer.addr, buffer.length) for buffer in buf_list[:count]])

        self._set_data("wr_set_inline_data_list", change)

    def _inline(self, wr: SendWR, pieces: list[tuple[int, int]]) -> None:
        """Copies pieces of memory for the work request."""
        if wr.opcode not in _INLINE:
            raise refused(f"{self._builder} takes no inline data; SEND and RDMA_WRITE do")
        sizes = [(integer(address, "addr", 64), integer(length, "length", 64)) for address, length in pieces]
        total = sum(length for _, length in sizes)
        most = int(self._open().max_inline_data)
        if total > most:
            raise refused(f"{total} bytes inline: max_inline_data={most}")
        block = Block(max(total, 1))
        at = block.address
        for address, length in sizes:
            if length and not copy_checked(at, address, length):
                raise refused(f"inline data at {address:#x}, {length} bytes, cannot be read", errno.EFAULT)
            at += length
        self._take_inline(wr, block, total)

    def _take_inline(self, wr: SendWR, block: Block, length: int) -> None:
        self._blocks.append(block)
        wr.send_flags |= e.IBV_SEND_INLINE
        wr.sg_list = [SGE(block.address, length, 0)] if length else []

    def wr_set_ud_addr(self, ah: AH, remote_qpn: int, remote_rkey: int) -> None:
        """Where a message of a UD QP goes.

        :param ah: address handle
        :param remote_qpn: number of the peer's QP
        :param remote_rkey: its Q_Key
        """

        def change(wr: SendWR) -> None:
            self._for_type(e.IBV_QPT_UD)
            instance(ah, AH, "ah")
            wr.set_wr_ud(ah, remote_qpn, remote_rkey)
            self._has_address = True

        self._set("wr_set_ud_addr", change)

    def wr_set_xrc_srqn(self, remote_srqn: int) -> None:
        """Which SRQ of the peer a message of an XRC_SEND QP is for.

        :param remote_srqn: its number
        """

        def change(wr: SendWR) -> None:
            self._for_type(e.IBV_QPT_XRC_SEND)
            wr.set_qp_type_xrc(remote_srqn)
            self._has_address = True

        self._set("wr_set_xrc_srqn", change)

    def _for_type(self, kind: int) -> None:
        mine = int(self._open().qp_type)
        if mine != kind:
            raise refused(f"this is a QP of type {qp_type_to_str(mine)}, not {qp_type_to_str(kind)}")
