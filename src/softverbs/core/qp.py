"""The queue pair: its states, its queues, and who does its work.

What each change of state needs is a table in ``qp_states``. A send work request is
checked whole before it is written to its slot; once it is there it will be retired, by success or by error, unless
the queue pair is reset or destroyed.
"""

import errno
import struct
from typing import Any

try:
    import cython
except ImportError:
    from softverbs import _cython as cython
from softverbs.core.errors import PyverbsRDMAError
from softverbs.core.gid import address_of
from softverbs.core.limits import (
    MAX_INLINE_DATA,
    MAX_MESSAGE_SIZE,
    MAX_SGE,
)
from softverbs.core.qp_states import (
    ACCESS_FLAGS,
    AV,
    CUR_STATE,
    DEST_QPN,
    EN_SQD_ASYNC_NOTIFY,
    MAX_QP_RD_ATOMIC,
    MIN_RNR_TIMER,
    PATH_MTU,
    QPT_RC,
    RETRY_CNT,
    RNR_RETRY,
    RQ_PSN,
    SQ_PSN,
    STATE,
    STATE_NAMES,
    TIMEOUT,
    check_transition,
    check_values,
)

if not cython.compiled:
    from softverbs.core.completion import CompCntr, CompletionQueue
    from softverbs.core.connection import Connection
    from softverbs.core.constants import (
        EVENT_COMM_EST,
        EVENT_QP_FATAL,
        EVENT_SQ_DRAINED,
        OP_RDMA_READ,
        OP_RDMA_WRITE,
        OP_RECV,
        OP_REMOTE_RDMA_READ,
        OP_REMOTE_RDMA_WRITE,
        OP_SEND,
        QPS_ERR,
        QPS_INIT,
        QPS_RESET,
        QPS_RTR,
        QPS_RTS,
        QPS_SQD,
        SEND_FENCE,
        SEND_INLINE,
        SEND_SIGNALED,
        SEND_SOLICITED,
        WR_ATOMIC_FETCH_AND_ADD,
        WR_BIND_MW,
        WR_RDMA_READ,
        WR_SEND_WITH_INV,
    )
    from softverbs.core.egress import Egress, Path
    from softverbs.core.headers import bth_ack_request, bth_pad, bth_psn, bth_solicited
    from softverbs.core.host import Host
    from softverbs.core.memory import copy, copy_checked, store8, store16, store32, store64, view
    from softverbs.core.opcodes import (
        ATOMIC,
        BTH_LENGTH,
        EXPLAIN,
        READ,
        REQUEST,
        RESPONSE,
        header_length,
    )
    from softverbs.core.packets import MAX_WORDS
    from softverbs.core.regions import ProtectionDomain
    from softverbs.core.requester import Requester, is_atomic
    from softverbs.core.responder import Responder
    from softverbs.core.rings import (
        RQ_LENGTH,
        RQ_NUM_SGE,
        RQ_SGES,
        RQ_WR_ID,
        SGE_LENGTH,
        SGE_LKEY,
        SGE_SIZE,
        SQ_COMPARE_ADD,
        SQ_FLAGS,
        SQ_IMM,
        SQ_LENGTH,
        SQ_NUM_SGE,
        SQ_OPCODE,
        SQ_REMOTE_ADDRESS,
        SQ_RKEY,
        SQ_SGES,
        SQ_STATE,
        SQ_SWAP,
        WQE_POSTED,
        Ring,
    )
    from softverbs.core.wr import SGE, RecvWR, SendWR

_SEND_FLAGS = SEND_FENCE | SEND_SIGNALED | SEND_SOLICITED | SEND_INLINE


class AddressVector:
    """Where a peer is: ``struct ibv_ah_attr`` as a RoCE device needs it."""

    def __init__(
        self,
        dgid: bytes,
        sgid_index: int = 0,
        flow_label: int = 0,
        hop_limit: int = 64,
        traffic_class: int = 0,
        sl: int = 0,
        port_num: int = 1,
        is_global: bool = True,
    ) -> None:
        """
        :param dgid: GID of the peer, 16 bytes
        :param sgid_index: which own GID to send from
        :param flow_label: 20 bits
        :param hop_limit: hops; 0 for the default
        :param traffic_class: 8 bits
        :param sl: service level
        :param port_num: 1
        :param is_global: whether there is a GRH, which RoCE needs
        """
        self.dgid = dgid
        self.sgid_index = sgid_index
        self.flow_label = flow_label
        self.hop_limit = hop_limit
        self.traffic_class = traffic_class
        self.sl = sl
        self.port_num = port_num
        self.is_global = is_global


class QueuePair:
    """A reliable queue pair (ibv_create_qp(3))."""

    def __init__(
        self,
        port: Host,
        context_id: object,
        pd: ProtectionDomain,
        send_cq: CompletionQueue,
        recv_cq: CompletionQueue,
        srq: object,
        cap: tuple[int, int, int, int, int],
        qp_type: int,
        sq_sig_all: bool,
    ) -> None:
        """
        :param port: the port that it belongs to
        :param context_id: the same for all objects of one context
        :param pd: its protection domain
        :param send_cq: where sends complete
        :param recv_cq: where receives complete
        :param srq: None
        :param cap: max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data (bytes)
        :param qp_type: RC (2)
        :param sq_sig_all: whether every send is signaled
        :raises PyverbsRDMAError: EINVAL where a value is out of range, EOPNOTSUPP for another type or an SRQ
        """
        options = port.options
        if qp_type != QPT_RC:
            raise PyverbsRDMAError(f"qp_type={qp_type}: RC (2) is supported", errno.EOPNOTSUPP)
        if srq is not None:
            raise PyverbsRDMAError("shared receive queues are not supported", errno.EOPNOTSUPP)
        _check_cap(cap, options)
        self.max_send_wr, self.max_recv_wr, self.max_send_sge, self.max_recv_sge, self.max_inline_data = cap
        self.port = port
        self.context_id = context_id
        self.pd = pd
        self.send_cq = send_cq
        self.recv_cq = recv_cq
        self.qp_type = qp_type
        self.sq_sig_all = bool(sq_sig_all)
        self.qp_num = port.enter_qp(self)
        self.handle = self.qp_num
        self.state = QPS_RESET
        self.scheduled = False
        self.next_ready: QueuePair | None = None
        self.closed = False
        self.user: Any = None
        self.attributes: dict[str, Any] = {}
        self.attached: dict[int, CompCntr] = {}
        self.notify_drained = False
        self.established = False
        self.source_high = 0
        self.source_low = 0
        # The smallest queue has one slot: modulo zero has no meaning.
        payload = max(self.max_send_sge * SGE_SIZE, self.max_inline_data)
        self.sq = Ring(max(self.max_send_wr, 1), SQ_SGES + (payload + 63 & ~63))
        self.rq = Ring(max(self.max_recv_wr, 1), RQ_SGES + self.max_recv_sge * SGE_SIZE)
        self.connection = Connection(port, port.regions, pd, self.qp_num)
        self.requester = Requester(self.connection, self.sq, send_cq, options.window)
        self.responder = Responder(self.connection, self.rq, recv_cq, options.imm == "standard", options.window)
        pd.use(1)
        send_cq.users += 1
        recv_cq.users += 1

    # -- posting

    def post_send(self, wr: SendWR | None) -> None:
        """Posts a list of send work requests (ibv_post_send(3)).

        Those before the one that is refused are posted; the exception's ``bad_wr`` is the one.

        :raises PyverbsRDMAError: EINVAL where a work request or the state is wrong, ENOMEM where the queue is full
        """
        self.port.lock.acquire()
        try:
            while wr is not None:
                try:
                    self._post_send(wr)
                except PyverbsRDMAError as error:
                    error.bad_wr = wr
                    raise
                wr = wr._next
        finally:
            if self.state == QPS_ERR:
                self.requester.flush("the queue pair is in the state ERR")
            else:
                self.port.schedule(self)
            self.port.lock.release()

    def _post_send(self, wr: SendWR) -> None:
        sq = self.sq
        opcode = wr._opcode
        flags = wr._send_flags
        if self.state < QPS_RTS:
            raise PyverbsRDMAError(
                f"QP {self.qp_num:#x} is in the state {STATE_NAMES[self.state]}, sends need RTS", errno.EINVAL
            )
        if sq.tail - sq.head >= self.max_send_wr:
            raise PyverbsRDMAError(
                f"the send queue of QP {self.qp_num:#x} is full: max_send_wr={self.max_send_wr}", errno.ENOMEM
            )
        if opcode > WR_SEND_WITH_INV:
            raise PyverbsRDMAError(f"opcode {opcode} is not supported on a reliable connection", errno.EINVAL)
        if flags & ~_SEND_FLAGS:
            raise PyverbsRDMAError(
                f"send_flags {flags:#x}: of no meaning here: {flags & ~_SEND_FLAGS:#x}", errno.EINVAL
            )
        slot = sq.slot(sq.tail)
        elements = wr._sg
        if flags & SEND_INLINE:
            length = self._put_inline(slot, opcode, elements)
        else:
            length = self._put_elements(slot + SQ_SGES, elements, self.max_send_sge, "max_send_sge")
        if length > MAX_MESSAGE_SIZE:
            raise PyverbsRDMAError(f"a message of {length} bytes: at most {MAX_MESSAGE_SIZE}", errno.EINVAL)
        if opcode >= WR_RDMA_READ and opcode <= WR_ATOMIC_FETCH_AND_ADD:
            self._check_read(opcode, length)
        if self.sq_sig_all:
            flags |= SEND_SIGNALED
        store64(slot, wr._wr_id)
        store8(slot + SQ_OPCODE, opcode)
        store8(slot + SQ_FLAGS, flags)
        store16(slot + SQ_NUM_SGE, len(elements))
        store32(slot + SQ_IMM, wr._imm_data)
        store64(slot + SQ_REMOTE_ADDRESS, wr._remote_addr)
        store32(slot + SQ_RKEY, wr._rkey)
        store32(slot + SQ_LENGTH, length)
        store64(slot + SQ_COMPARE_ADD, wr._compare_add)
        store64(slot + SQ_SWAP, wr._swap)
        store32(slot + SQ_STATE, WQE_POSTED)
        if opcode == WR_BIND_MW:
            self._put_bind(slot, wr)
        sq.tail += 1

    def _put_elements(self, at: int, elements: list[SGE], limit: int, name: str) -> int:
        """Writes a scatter/gather list; the bytes that it holds."""
        if len(elements) > limit:
            raise PyverbsRDMAError(f"{len(elements)} scatter/gather elements: {name}={limit}", errno.EINVAL)
        length = 0
        for element in elements:
            store64(at, element._addr)
            store32(at + SGE_LENGTH, element._length)
            store32(at + SGE_LKEY, element._lkey)
            length += element._length
            at += SGE_SIZE
        return length

    def _put_inline(self, slot: int, opcode: int, elements: list[SGE]) -> int:
        """Copies the payload into the slot; its length. The elements need no key (ibv_post_send(3))."""
        if opcode >= WR_RDMA_READ and opcode != WR_SEND_WITH_INV:
            raise PyverbsRDMAError(f"SEND_INLINE has no meaning with opcode {opcode}", errno.EINVAL)
        length = 0
        for element in elements:
            length += element._length
        if length > self.max_inline_data:
            raise PyverbsRDMAError(f"{length} bytes inline: max_inline_data={self.max_inline_data}", errno.EINVAL)
        at = slot + SQ_SGES
        for element in elements:
            size = element._length
            if size > 0 and not self._copy_inline(at, element):
                raise PyverbsRDMAError(f"inline data at {element._addr:#x}, {size} bytes, cannot be read", errno.EFAULT)
            at += size
        return length

    def _copy_inline(self, at: int, element: SGE) -> bool:
        """Copies an element; where its key does not vouch for the memory, the kernel is asked."""
        size = element._length
        address = self.connection.regions.translate(element._lkey, element._addr, size, 0, self.pd, self.qp_num)
        if address == 0:
            return copy_checked(at, element._addr, size)
        copy(at, address, size)
        return True

    def _check_read(self, opcode: int, length: int) -> None:
        if self.requester.max_reads == 0:
            raise PyverbsRDMAError(f"max_rd_atomic of QP {self.qp_num:#x} is 0: it cannot READ", errno.EINVAL)
        if is_atomic(opcode) and length != 8:
            raise PyverbsRDMAError(f"an atomic returns 8 bytes, its scatter/gather list holds {length}", errno.EINVAL)

    def _put_bind(self, slot: int, wr: SendWR) -> None:
        """BIND_MW: the window's key now, the region's key, the range and the rights (``rings``)."""
        if wr._bind is None:
            raise PyverbsRDMAError("BIND_MW without a memory window: call set_bind_wr", errno.EINVAL)
        mw, info = wr._bind
        store32(slot + SQ_RKEY, mw.rkey)
        store32(slot + SQ_IMM, wr._rkey)
        store64(slot + SQ_REMOTE_ADDRESS, info.addr)
        store64(slot + SQ_COMPARE_ADD, info.length)
        store32(slot + SQ_SWAP, info.mr.lkey)
        store32(slot + SQ_SWAP + 4, info.mw_access_flags)
        store32(slot + SQ_LENGTH, 0)

    def post_recv(self, wr: RecvWR | None) -> None:
        """Posts a list of receive work requests (ibv_post_recv(3)).

        :raises PyverbsRDMAError: as post_send
        """
        self.port.lock.acquire()
        try:
            while wr is not None:
                try:
                    self._post_recv(wr)
                except PyverbsRDMAError as error:
                    error.bad_wr = wr
                    raise
                wr = wr._next
        finally:
            if self.state == QPS_ERR:
                self.responder.flush("the queue pair is in the state ERR")
            self.port.lock.release()

    def _post_recv(self, wr: RecvWR) -> None:
        rq = self.rq
        if self.state == QPS_RESET:
            raise PyverbsRDMAError(f"QP {self.qp_num:#x} is in the state RESET, receives need INIT", errno.EINVAL)
        if rq.tail - rq.head >= self.max_recv_wr:
            raise PyverbsRDMAError(
                f"the receive queue of QP {self.qp_num:#x} is full: max_recv_wr={self.max_recv_wr}", errno.ENOMEM
            )
        slot = rq.slot(rq.tail)
        length = self._put_elements(slot + RQ_SGES, wr._sg, self.max_recv_sge, "max_recv_sge")
        store64(slot + RQ_WR_ID, wr._wr_id)
        store32(slot + RQ_NUM_SGE, len(wr._sg))
        store32(slot + RQ_LENGTH, min(length, MAX_MESSAGE_SIZE))
        rq.tail += 1

    # -- the port's side

    def on_packet(self, opcode: int, flags: int, frame: int, length: int, now: int) -> None:
        """A frame for this queue pair whose ICRC, lengths and source are right; ``length`` without the ICRC."""
        headers = frame + BTH_LENGTH
        skip = header_length(opcode)
        psn = bth_psn(frame)
        pad = bth_pad(frame)
        size = length - skip - pad
        if opcode == EXPLAIN:
            self._on_words(psn, headers, size)
        elif flags & REQUEST:
            self.responder.on_request(
                opcode, flags, psn, headers, frame + skip, size, bth_ack_request(frame) != 0, bth_solicited(frame) != 0
            )
            if not self.established:
                self.established = True
                if self.state == QPS_RTR:
                    self.port.raise_event(EVENT_COMM_EST, self)
        elif flags & RESPONSE and (self.state == QPS_RTS or self.state == QPS_SQD):
            if flags & READ:
                self.requester.on_read_response(flags, psn, frame + skip, size, now)
            elif flags & ATOMIC:
                self.requester.on_atomic_acknowledge(psn, frame + skip - 8, now)
            else:
                self.requester.on_acknowledge(psn, headers, now)
        self.settle()
        self.port.schedule(self)

    def _on_words(self, psn: int, at: int, length: int) -> None:
        """What the peer says about the NAK that follows: shown to people only, so made printable."""
        text = bytes(view(at, min(length, MAX_WORDS))).decode("utf-8", "replace") if length > 0 else ""
        self.connection.words = "".join([letter if letter.isprintable() else "?" for letter in text]).strip()
        self.connection.words_psn = psn

    def pump(self, egress: Egress, now: int) -> int:
        """Sends what is due. 1 where the arena is full and more is to come, else 0."""
        if not self.connection.connected:
            return 0
        more = 0
        # Data first, where an ACK is all that is due: behind it in the same burst, the ACK costs no system call.
        data_first = self.responder.queued == 0 and self.responder.nak == 0
        if not data_first:
            more = self.responder.pump(egress, now)
            if self.responder.failed:
                self.settle()
        if self.state == QPS_RTS or self.state == QPS_SQD:
            if self.requester.pump(egress, now):
                more = 1
            self.settle()
        if data_first and self.responder.pump(egress, now):
            more = 1
        return more

    def settle(self) -> None:
        """Looks whether the requester or the responder has failed, or is drained."""
        if self.state == QPS_ERR or self.state == QPS_RESET:
            return
        if self.requester.failed:
            self.port.report(f"QP {self.qp_num:#x}: {self.requester.failure}")
            self.enter_error("an earlier work request of this queue pair completed in error")
        elif self.responder.failed:
            self.port.report(f"QP {self.qp_num:#x} refused a request: {self.responder.reason}")
            self.port.raise_event(self.responder.event, self)
            self.enter_error(self.responder.reason)
        elif self.notify_drained and self.requester.una == self.requester.top:
            self.notify_drained = False
            self.port.raise_event(EVENT_SQ_DRAINED, self)

    def enter_error(self, reason: str) -> None:
        """The state ERR: every work request that is left is flushed, once, in order."""
        self.state = QPS_ERR
        self.requester.flush(reason)
        self.responder.flush(reason)

    def fatal(self, reason: str) -> None:
        """An error that is not the peer's: QP_FATAL, then ERR."""
        if self.state != QPS_ERR and self.state != QPS_RESET:
            self.port.raise_event(EVENT_QP_FATAL, self)
            self.enter_error(reason)

    def next_deadline(self) -> int:
        """When the port has to come back, ns; 0 for never."""
        due = self.responder.resume_at
        if self.state == QPS_RTS or self.state == QPS_SQD:
            other = self.requester.next_deadline()
            if due == 0 or (other != 0 and other < due):
                due = other
        return due

    def on_timer(self, now: int) -> None:
        """Time has passed."""
        if self.state == QPS_RTS or self.state == QPS_SQD:
            self.requester.on_timer(now)
            self.settle()
        self.port.schedule(self)

    # -- states

    def modify(self, values: dict[str, Any], mask: int) -> None:
        """Changes attributes and state (ibv_modify_qp(3)); all or nothing.

        :param values: attributes by the names of ``struct ibv_qp_attr``, where ``ah_attr`` is an AddressVector
        :param mask: ``IBV_QP_*`` bits of those that count
        :raises PyverbsRDMAError: EINVAL; the words name every missing and every invalid attribute
        """
        target = values["qp_state"] if mask & STATE else self.state
        if not 0 <= target < len(STATE_NAMES):
            raise PyverbsRDMAError(f"qp_state={target} is no state", errno.EINVAL)
        if mask & CUR_STATE and values["cur_qp_state"] != self.state:
            raise PyverbsRDMAError(
                f"cur_qp_state={values['cur_qp_state']}: the QP is in the state {STATE_NAMES[self.state]}", errno.EINVAL
            )
        check_transition(self.qp_num, self.state, target, mask)
        check_values(values, mask, self.port.active_mtu)
        path = self.port.path_to(values["ah_attr"]) if mask & AV else None
        for name, value in values.items():
            self.attributes[name] = value
        self._apply(values, mask, path)
        self._enter(target)

    def _apply(self, values: dict[str, Any], mask: int, path: "Path | None") -> None:
        connection = self.connection
        if mask & ACCESS_FLAGS:
            connection.access = values["qp_access_flags"] & 0x3F
        if mask & PATH_MTU:
            connection.mtu = 128 << values["path_mtu"]
        if mask & DEST_QPN:
            connection.dest_qp_num = values["dest_qp_num"]
        if path is not None:
            self._take_path(path, values["ah_attr"])
        if mask & RQ_PSN:
            self.responder.reset(values["rq_psn"], values["max_dest_rd_atomic"])
        if mask & MIN_RNR_TIMER:
            self.responder.min_rnr_timer = values["min_rnr_timer"]
        if mask & (TIMEOUT | RETRY_CNT | RNR_RETRY | MAX_QP_RD_ATOMIC):
            known = self.attributes
            timeout = (
                int(4096 * 2 ** known["timeout"]) if known["timeout"] else 0
            )  # 4.096 us * 2^timeout, IBA 9.7.6.1.3
            self.requester.configure(timeout, known["retry_cnt"], known["rnr_retry"], known["max_rd_atomic"])
        if mask & SQ_PSN:
            self.requester.reset(values["sq_psn"])
        if mask & EN_SQD_ASYNC_NOTIFY:
            self.notify_drained = bool(values["en_sqd_async_notify"])
        connection.peer_name = f"peer {address_of(known_gid(self.attributes))} QP {connection.dest_qp_num:#x}"

    def _take_path(self, path: Path, vector: AddressVector) -> None:
        self.connection.path = path
        self.connection.connected = True
        self.source_high, self.source_low = struct.unpack(">QQ", vector.dgid)
        says = self.port.options.explain
        self.responder.explains = says == "always" or (says == "local" and (path.nearby or path.local))

    def _enter(self, target: int) -> None:
        if target == QPS_RESET:
            self._reset()
        elif target == QPS_ERR and self.state != QPS_RESET:
            self.enter_error("the queue pair was moved to the state ERR")
        self.requester.draining = target == QPS_SQD
        self.state = target
        self.port.schedule(self)
        self.settle()

    def _reset(self) -> None:
        """RESET: what was posted counts nowhere; attached counters stay attached (semantics.md, 1)."""
        self.requester.reset(0)
        self.responder.drop_receives()
        self.responder.reset(0, 0)
        self.connection.connected = False
        self.established = False
        self.notify_drained = False
        self._purge()

    def _purge(self) -> None:
        if self.port.options.purge:
            self.send_cq.purge(self.qp_num)
            self.recv_cq.purge(self.qp_num)

    def query(self) -> dict[str, Any]:
        """The attributes now (ibv_query_qp(3)), and ``cap``."""
        result = dict(self.attributes)
        result["qp_state"] = self.state
        result["cur_qp_state"] = self.state
        result["rq_psn"] = self.responder.epsn
        result["sq_psn"] = self.requester.psn
        result["sq_draining"] = int(self.requester.draining and self.requester.una != self.requester.top)
        result["cap"] = (self.max_send_wr, self.max_recv_wr, self.max_send_sge, self.max_recv_sge, self.max_inline_data)
        return result

    # -- counters

    def attach_comp_cntr(self, counter: CompCntr, op_mask: int, comp_mask: int) -> None:
        """Lets a counter count operations of this queue pair (ibv_qp_attach_comp_cntr(3)); all or nothing.

        :param op_mask: ``IBV_QP_ATTACH_COMP_CNTR_OP_*``
        :param comp_mask: 0
        :raises PyverbsRDMAError: EINVAL, then EOPNOTSUPP, then EBUSY
        """
        if comp_mask != 0:
            raise PyverbsRDMAError(f"comp_mask={comp_mask:#x}: no bit of it is known", errno.EINVAL)
        if op_mask == 0:
            raise PyverbsRDMAError("op_mask=0: at least one operation must be named", errno.EINVAL)
        if counter.context_id is not self.context_id:
            raise PyverbsRDMAError("the counter belongs to another context than the QP", errno.EINVAL)
        if self.state not in (QPS_RESET, QPS_INIT):
            raise PyverbsRDMAError(
                f"QP {self.qp_num:#x} is in the state {STATE_NAMES[self.state]}: attach counters in RESET or INIT",
                errno.EINVAL,
            )
        unsupported = op_mask & ~self.port.options.counter_ops
        if unsupported:
            raise PyverbsRDMAError(
                f"op_mask={op_mask:#x}: the device does not support {unsupported:#x}", errno.EOPNOTSUPP
            )
        taken = [bit for bit in self.attached if op_mask & bit]
        if taken:
            raise PyverbsRDMAError(
                f"op_mask={op_mask:#x}: a counter is attached already for {sum(taken):#x}", errno.EBUSY
            )
        for shift in range(6):
            if op_mask & 1 << shift:
                self.attached[1 << shift] = counter
                counter.attached += 1
        self._place_counters()

    def _place_counters(self) -> None:
        attached = self.attached
        self.requester.send_counter = attached.get(OP_SEND)
        self.requester.write_counter = attached.get(OP_RDMA_WRITE)
        self.requester.read_counter = attached.get(OP_RDMA_READ)
        self.responder.recv_counter = attached.get(OP_RECV)
        self.responder.remote_write_counter = attached.get(OP_REMOTE_RDMA_WRITE)
        self.responder.remote_read_counter = attached.get(OP_REMOTE_RDMA_READ)

    def close(self) -> None:
        """Ends the queue pair (ibv_destroy_qp(3)): counters are detached, what is unfinished counts nowhere."""
        if self.closed:
            return
        self.closed = True
        self.state = QPS_RESET
        self._reset()
        for counter in self.attached.values():
            counter.attached -= 1
        self.attached = {}
        self._place_counters()
        self.pd.use(-1)
        self.send_cq.users -= 1
        self.recv_cq.users -= 1
        self.port.remove_qp(self)


def _check_cap(cap: tuple[int, int, int, int, int], options: Any) -> None:
    names = ("max_send_wr", "max_recv_wr", "max_send_sge", "max_recv_sge", "max_inline_data")
    limits = (options.max_qp_wr, options.max_qp_wr, MAX_SGE, MAX_SGE, MAX_INLINE_DATA)
    for name, value, most in zip(names, cap, limits, strict=True):
        if not 0 <= value <= most:
            raise PyverbsRDMAError(f"{name}={value} is out of range: 0 to {most}", errno.EINVAL)


def known_gid(attributes: dict[str, Any]) -> bytes:
    """The peer's GID from the attributes; 16 zeros where it is not known."""
    vector = attributes.get("ah_attr")
    return vector.dgid if vector is not None else bytes(16)
