# SPDX-License-Identifier: MIT
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
from softverbs.core.base.errors import PyverbsRDMAError
from softverbs.core.transport.attachments import Attachments
from softverbs.core.transport.qp_create import check_cap, check_objects, check_type, effective_cap
from softverbs.core.transport.qp_states import (
    ACCESS_FLAGS,
    AV,
    CUR_STATE,
    DEST_QPN,
    EN_SQD_ASYNC_NOTIFY,
    MAX_DEST_RD_ATOMIC,
    MAX_QP_RD_ATOMIC,
    MIN_RNR_TIMER,
    PATH_MTU,
    QKEY,
    QPT_RC,
    QPT_UC,
    QPT_UD,
    QPT_XRC_RECV,
    QPT_XRC_SEND,
    RETRY_CNT,
    RNR_RETRY,
    RQ_PSN,
    SQ_PSN,
    STATE,
    STATE_NAMES,
    TIMEOUT,
    applicable,
    check_transition,
    check_values,
)
from softverbs.core.wire.gid import address_of

if not cython.compiled:
    from softverbs.core.base.constants import (
        EVENT_COMM_EST,
        EVENT_QP_FATAL,
        EVENT_QP_LAST_WQE_REACHED,
        EVENT_SQ_DRAINED,
        QPS_ERR,
        QPS_RESET,
        QPS_RTR,
        QPS_RTS,
        QPS_SQD,
        QPS_SQE,
    )
    from softverbs.core.base.host import Host
    from softverbs.core.memory.raw import store32, view
    from softverbs.core.memory.regions import ProtectionDomain
    from softverbs.core.queues.completion import CompletionQueue
    from softverbs.core.queues.counters import CompCntr
    from softverbs.core.queues.marks import Marks
    from softverbs.core.queues.rings import QP_STATE, RING_HEADER, Ring, check_mapping
    from softverbs.core.queues.send_queue import SendQueue
    from softverbs.core.queues.srq import ReceiveQueue, SharedReceiveQueue, XrcDomain
    from softverbs.core.queues.wr import RecvWR, SendWR
    from softverbs.core.transport.address import AddressVector
    from softverbs.core.transport.connection import Connection
    from softverbs.core.transport.halves import build_requester, build_responder
    from softverbs.core.transport.packets import MAX_WORDS, XRCETH_LENGTH
    from softverbs.core.transport.requester import Requester
    from softverbs.core.transport.responder import Responder
    from softverbs.core.transport.unreliable import DatagramResponder
    from softverbs.core.wire.egress import Egress, Path
    from softverbs.core.wire.headers import bth_ack_request, bth_pad, bth_psn, bth_solicited
    from softverbs.core.wire.opcodes import (
        ATOMIC,
        BTH_LENGTH,
        EXPLAIN,
        RC,
        READ,
        REQUEST,
        RESPONSE,
        UD,
        XRC,
        XRCETH,
        header_length,
    )
    from softverbs.core.wire.peer import Peer

# What each type's transport adds to the opcode of an operation (``opcodes``).
_TRANSPORTS = {QPT_RC: 0x00, QPT_UC: 0x20, QPT_UD: 0x60, QPT_XRC_SEND: 0xA0, QPT_XRC_RECV: 0xA0}


class QueuePair:
    """A queue pair of any type (ibv_create_qp(3)): what differs between them is its requester and its responder."""

    def __init__(
        self,
        port: Host,
        context_id: object,
        pd: "ProtectionDomain | None",
        send_cq: "CompletionQueue | None",
        recv_cq: "CompletionQueue | None",
        srq: "SharedReceiveQueue | None",
        cap: tuple[int, int, int, int, int],
        qp_type: int,
        sq_sig_all: bool,
        xrcd: "XrcDomain | None" = None,
        number: int = -1,
    ) -> None:
        """
        :param port: the port that it belongs to
        :param context_id: the same for all objects of one context
        :param pd: its protection domain; None for XRC_RECV, where each request's SRQ has one
        :param send_cq: where sends complete; None for XRC_RECV
        :param recv_cq: where receives complete; None for the XRC types
        :param srq: a shared receive queue instead of its own, or None
        :param cap: max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data (bytes)
        :param qp_type: RC (2), UC (3), UD (4), XRC_SEND (9), XRC_RECV (10)
        :param sq_sig_all: whether every send is signaled
        :param xrcd: XRC_RECV: its XRC domain
        :param number: 1 for the general service interface (IBA 3.5.1), else the port chooses one
        :raises PyverbsRDMAError: EINVAL where a value is out of range or an object is missing, EOPNOTSUPP for another
            type
        """
        check_type(qp_type)
        cap = effective_cap(cap, qp_type, srq is not None)
        check_cap(cap, port.options)
        check_objects(qp_type, pd, send_cq, recv_cq, srq, xrcd)
        self.max_send_wr, self.max_recv_wr, self.max_send_sge, self.max_recv_sge, self.max_inline_data = cap
        self.port = port
        self.context_id = context_id
        self.pd = pd
        self.send_cq = send_cq
        self.recv_cq = recv_cq
        self.srq = srq
        self.xrcd = xrcd
        self.qp_type = qp_type
        self.transport = _TRANSPORTS[qp_type]
        #: What it has no use for: an XRC initiator has no responder, a target no requester (annex A14).
        self.unwanted = {QPT_XRC_SEND: REQUEST, QPT_XRC_RECV: RESPONSE}.get(qp_type, 0)
        self.sq_sig_all = bool(sq_sig_all)
        self.groups: list[bytes] = []
        self.state = QPS_RESET
        self.scheduled = False
        self.timed = False
        self.next_ready: QueuePair | None = None
        self.closed = False
        self.user: Any = None
        self.attributes: dict[str, Any] = {}
        self.attachments = Attachments()
        self.notify_drained = False
        self.established = False
        #: Whether the responder has failed, and an event has told of it.
        self.refusing = False
        #: Whether the path has a static rate; when that lets the next packets go, ns, and 0 where they need not wait.
        self.paced = False
        self.paced_until = 0
        self.source_high = 0
        self.source_low = 0
        self.local_high = 0
        self.local_low = 0
        #: The memory that is shared with the program which posts; 0: none. The state that its header has.
        self.mapping = 0
        self.published_state = -1
        self.holder: object = None
        #: Where that program marks what it has posted to, and as what; whether the port knows that it is to be told
        #: something.
        self.marks: Marks | None = None
        self.mark = 0
        self.changed = False
        # An XRC target gets one with each request.
        self.connection = Connection(port, port.regions, pd, 0)  # type: ignore[arg-type]
        self.connection.transport = self.transport
        if srq is not None:
            self.connection.receive_pd = srq.pd
        self.sends = SendQueue(
            port,
            port.regions,
            pd,  # type: ignore[arg-type]
            self.connection.refusals,
            qp_type,
            self.max_send_wr,
            self.max_send_sge,
            self.max_inline_data,
            self.sq_sig_all,
        )
        self.max_inline_data = self.sends.max_inline_data
        self._build(send_cq, recv_cq)
        # Last, since the port looks at those that it knows, and one that memory was short for must not be among them.
        self.qp_num = port.enter_qp(self, number)
        self.handle = self.qp_num
        self.connection.qp_num = self.sends.qp_num = self.qp_num
        if port.options.send_slots == "polled" and send_cq is not None:
            port.enter_ring(self.sends.ring)
        self._use(1)

    def _build(self, send_cq: Any, recv_cq: Any) -> None:
        """The receive queue, the requester and the responder that the type needs."""
        receives: ReceiveQueue | None = self.srq
        if receives is None and self.transport != XRC:
            receives = ReceiveQueue(self.max_recv_wr, self.max_recv_sge)
        self.receives = receives
        options = self.port.options
        self.requester: Requester = build_requester(
            self.connection, self.sends, send_cq, self.transport, options.window
        )
        takes_receive = options.imm == "standard"
        self.responder: Responder = build_responder(
            self.connection, receives, recv_cq, self.transport, self.xrcd, takes_receive, options.window
        )
        self.datagrams: DatagramResponder | None = None
        if self.transport == UD:
            self.datagrams = self.responder  # type: ignore[assignment]

    def _use(self, count: int) -> None:
        """Notes at every object that it stands on that there is one user more (1), or less (-1)."""
        if self.pd is not None:
            self.pd.use(count)
        if self.send_cq is not None:
            self.send_cq.users += count
        if self.recv_cq is not None:
            self.recv_cq.users += count
        if self.srq is not None:
            self.srq.users += count
        if self.xrcd is not None:
            self.xrcd.users += count

    def rings(self) -> list[Ring]:
        """The memory of its own queues; not of an SRQ's."""
        found = [self.sends.ring]
        if self.srq is None and self.receives is not None:
            found.append(self.receives.ring)
        return found

    # -- posting

    def post_send(self, wr: SendWR | None) -> None:
        """Posts a list of send work requests (ibv_post_send(3)).

        Those before the one that is refused are posted; the exception's ``bad_wr`` is the one.

        :raises PyverbsRDMAError: EINVAL where a work request or the state is wrong, ENOMEM where the queue is full
        """
        self.port.lock.acquire()
        try:
            self._post_sends(wr)
        finally:
            self._posted()
            self.port.lock.release()

    def post_send_all(self, wr: SendWR | None) -> None:
        """Posts a list of send work requests, all of them or none (ibv_wr_complete(3)).

        :raises PyverbsRDMAError: as post_send; none is posted then
        """
        self.port.lock.acquire()
        try:
            tail = self.sends.ring.tail
            try:
                self._post_sends(wr)
            except BaseException:
                self.sends.take_back(tail)  # nobody has seen them: progress needs the lock
                raise
            self._posted()
        finally:
            self.port.lock.release()

    def _post_sends(self, wr: SendWR | None) -> None:
        while wr is not None:
            try:
                if self.port.plan is not None:
                    self.port.plan.on_post(self, wr, "post_send")
                self._post_send(wr)
            except PyverbsRDMAError as error:
                error.bad_wr = wr
                raise
            wr = wr._next

    def _posted(self) -> None:
        """There may be new send work requests."""
        if self.state >= QPS_SQE:
            self.requester.flush(f"the queue pair is in the state {STATE_NAMES[self.state]}")
            self.note_change()
        else:
            self.port.schedule(self)

    def _post_send(self, wr: SendWR) -> None:
        if self.state < QPS_RTS:
            raise PyverbsRDMAError(
                f"QP {self.qp_num:#x} is in the state {STATE_NAMES[self.state]}, sends need RTS", errno.EINVAL
            )
        self.sends.put(wr, self.requester.max_reads)

    def post_recv(self, wr: RecvWR | None) -> None:
        """Posts a list of receive work requests (ibv_post_recv(3)).

        :raises PyverbsRDMAError: as post_send
        """
        self.port.lock.acquire()
        try:
            while wr is not None:
                try:
                    if self.port.plan is not None:
                        self.port.plan.on_post(self, wr, "post_recv")
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
        if self.receives is None or self.receives.shared:
            raise PyverbsRDMAError(
                f"QP {self.qp_num:#x} has no receive queue of its own: post to its SRQ, if it has one", errno.EINVAL
            )
        if self.state == QPS_RESET:
            raise PyverbsRDMAError(f"QP {self.qp_num:#x} is in the state RESET, receives need INIT", errno.EINVAL)
        self.receives.put(wr)

    # -- a program in another process posts

    def mapped_size(self) -> int:
        """Bytes of the memory that ``share`` wants: header, send slots and, 64-aligned, receive slots (``rings``)."""
        own = self.rings()
        size = RING_HEADER + own[0].block.size
        return int(size if len(own) == 1 else (size + 63 & ~63) + own[1].block.size)

    def share(self, address: int, holder: object, marks: Marks) -> None:
        """From now on a program posts through memory that it shares with the device.

        :param address: of ``mapped_size`` bytes of writable memory
        :param holder: kept alive as long as it is used
        :param marks: where the program marks that it has posted something, as ``mark``
        :raises PyverbsRDMAError: EINVAL where the memory is not aligned to 64 bytes, ENOMEM where the program has too
            many queues
        """
        check_mapping(address)
        self.unshare()
        self.mark = marks.enter(self)
        self.marks = marks
        self.holder = holder
        self.mapping = address
        slots = address + RING_HEADER
        self.sends.map(address, slots)
        if self.receives is not None and not self.receives.shared:
            self.receives.map(address, slots + self.sends.ring.block.size + 63 & ~63)
        self.published_state = -1
        self.publish_shared()

    def unshare(self) -> None:
        """The memory that is shared with a program is not touched any more."""
        if self.mapping:
            self.mapping = 0
            self.sends.map(0, 0)
            if self.receives is not None and not self.receives.shared:
                self.receives.map(0, 0)
            self._unmark()
            self.holder = None

    def _unmark(self) -> None:
        """What the program posts is not looked at any more."""
        if self.marks is not None:
            self.marks.leave(self.mark)
            self.marks = None

    def _offend(self, reason: str) -> None:
        """The program breaks the rules of the memory that it shares: nobody looks at that any more."""
        self._unmark()
        self.port.offend(self, f"QP {self.qp_num:#x}: {reason}")

    def note_change(self) -> None:
        """There may be something to tell the program: the port does it when it tells programs what has happened."""
        if self.mapping != 0 and not self.changed:
            self.changed = True
            self.port.changed_qps.append(self)

    def publish_shared(self) -> None:
        """Tells the program which slots are free again, and the state."""
        self.changed = False
        if self.mapping == 0:
            return
        self.sends.publish()
        if self.receives is not None and self.receives.mapping and not self.receives.shared:
            self.receives.publish()
        if self.published_state != self.state:
            self.published_state = self.state
            store32(self.mapping + QP_STATE, self.state)

    def take_shared(self) -> int:
        """Takes what the program has posted; how many work requests. The device's lock is held."""
        taken = 0
        waiting = self.sends.waiting()
        if waiting != 0:
            taken = self._take_sends(waiting)
        if self.receives is not None and self.receives.mapping and not self.receives.shared:
            waiting = self.receives.waiting()
            if waiting != 0:
                taken += self._take_receives(self.receives, waiting)
        return taken

    def _drop_shared(self) -> None:
        """Drops what the program has posted and is not taken yet."""
        waiting = self.sends.waiting()
        if waiting > 0:
            self.sends.skip(waiting)
        if self.receives is not None and self.receives.mapping and not self.receives.shared:
            waiting = self.receives.waiting()
            if waiting > 0:
                self.receives.skip(waiting)

    def _take_sends(self, waiting: int) -> int:
        if waiting < 0:
            self._offend("the index of its sends is out of range")
            return 0
        if self.state < QPS_RTS:  # the program knows: it was moved here while it posted
            self.note_change()
            self.sends.skip(waiting)
            self.requester.reset(self.requester.psn)
            return 0
        self.sends.take(waiting, self.requester.max_reads)
        self._posted()
        return waiting

    def _take_receives(self, receives: ReceiveQueue, waiting: int) -> int:
        if waiting < 0:
            self._offend("the index of its receives is out of range")
            return 0
        if self.state == QPS_RESET:
            receives.skip(waiting)  # which tells the program
            return 0
        if not receives.take(waiting):
            self._offend("more receive elements than max_recv_sge")
        if self.state == QPS_ERR:
            self.responder.flush("the queue pair is in the state ERR")
            self.note_change()
        return waiting

    # -- the port's side

    def on_packet(self, peer: Peer, opcode: int, flags: int, frame: int, length: int, now: int) -> None:
        """A frame for this queue pair whose ICRC, lengths and source are right; ``length`` without the ICRC."""
        headers = frame + BTH_LENGTH
        if flags & XRCETH:
            headers += XRCETH_LENGTH
        skip = header_length(opcode)
        psn = bth_psn(frame)
        pad = bth_pad(frame)
        size = length - skip - pad
        if opcode == EXPLAIN:
            self._on_words(psn, headers, size)
        elif self.datagrams is not None:
            self.datagrams.on_datagram(peer, flags, headers, frame + skip, size, bth_solicited(frame) != 0)
        elif flags & REQUEST and not self.responder.failed:
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

    def on_unplaced(self, request: bool) -> None:
        """Bytes that had been put in far memory could not be placed after all (``Far.land``).

        :param request: whether they came with requests of the peer, not with answers to this queue pair's own
        """
        if self.state != QPS_ERR and self.state != QPS_RESET:
            if request:
                self.responder.on_unplaced()
            else:
                self.requester.on_unplaced()
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
        if self.connection.far.ahead_length != 0:
            self.connection.far.forget()
        self.paced_until = 0
        if self.paced:
            if not self.connection.path.is_turn(now):
                self.paced_until = self.connection.path.free_at
                return 0
            egress.limit()
            more = self._pump(egress, now)
            egress.unlimit()
            return more
        return self._pump(egress, now)

    def _pump(self, egress: Egress, now: int) -> int:
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
            pass
        elif self.requester.failed and self.state != QPS_SQE:
            self.port.report(f"QP {self.qp_num:#x}: {self.requester.failure}")
            reason = "an earlier work request of this queue pair completed in error"
            if self.transport == RC or self.transport == XRC:
                self.enter_error(reason)
            else:
                self.state = QPS_SQE
                self.note_change()
                self.requester.flush(reason)
        elif self.responder.failed:
            if not self.refusing:
                self.refusing = True
                self.port.report(f"QP {self.qp_num:#x} refused a request: {self.responder.reason}")
                self.port.raise_event(self.responder.event, self)
            if self.requester.is_idle() or not self._is_own_peer():
                self.enter_error(self.responder.reason)
        elif self.notify_drained and self.requester.is_idle():
            self.notify_drained = False
            self.port.raise_event(EVENT_SQ_DRAINED, self)

    def _is_own_peer(self) -> bool:
        """Whether a reliable queue pair is connected to itself. The request that it has refused then completes with the
        status of the NAK, which is on its way, and what is behind it is flushed (IBA 10.3.1).
        """
        own_number = self.transport == RC and self.connection.dest_qp_num == self.qp_num
        return own_number and known_gid(self.attributes) in self.port.link.gids

    def enter_error(self, reason: str) -> None:
        """The state ERR: every work request that is left is flushed, once, in order."""
        is_new = self.state != QPS_ERR
        self.state = QPS_ERR
        self.note_change()
        self.requester.flush(reason)
        self.responder.flush(reason)
        if not self.responder.failed:  # else a NAK follows the answers to what came before
            self.responder.stop_answering()
        if is_new and self.srq is not None:
            self.port.raise_event(EVENT_QP_LAST_WQE_REACHED, self)

    def fatal(self, reason: str) -> None:
        """An error that is not the peer's: QP_FATAL, then ERR."""
        if self.state != QPS_ERR and self.state != QPS_RESET:
            self.port.raise_event(EVENT_QP_FATAL, self)
            self.enter_error(reason)

    def next_deadline(self) -> int:
        """When the port has to come back, ns; 0 for never."""
        due = self.responder.resume_at
        if self.paced_until != 0:
            due = self.paced_until
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
        values, mask = applicable(self.qp_type, values, mask)
        target = values["qp_state"] if mask & STATE else self.state
        if not 0 <= target < len(STATE_NAMES):
            raise PyverbsRDMAError(f"qp_state={target} is no state", errno.EINVAL)
        if mask & CUR_STATE and values["cur_qp_state"] != self.state:
            raise PyverbsRDMAError(
                f"cur_qp_state={values['cur_qp_state']}: the QP is in the state {STATE_NAMES[self.state]}", errno.EINVAL
            )
        check_transition(self.qp_type, self.qp_num, self.state, target, mask)
        check_values(values, mask, self.port.active_mtu)
        path = self.port.path_to(values["ah_attr"]) if mask & AV else None
        if path is not None and path.group:
            raise PyverbsRDMAError("ah_attr: a connection cannot lead to a multicast group", errno.EINVAL)
        for name, value in values.items():
            self.attributes[name] = value
        self._apply(values, mask, path)
        self._enter(target)

    def _apply(self, values: dict[str, Any], mask: int, path: "Path | None") -> None:
        connection = self.connection
        if mask & ACCESS_FLAGS:
            connection.access = values["qp_access_flags"] & 0x33F
        if mask & PATH_MTU:
            connection.mtu = 128 << values["path_mtu"]
        if mask & DEST_QPN:
            connection.dest_qp_num = values["dest_qp_num"]
        if path is not None:
            self._take_path(path, values["ah_attr"])
        if mask & RQ_PSN:
            self.responder.reset(values["rq_psn"], values.get("max_dest_rd_atomic", 0))
        elif mask & MAX_DEST_RD_ATOMIC:
            self.responder.keep_resources(values["max_dest_rd_atomic"])
        if mask & QKEY:
            connection.qkey = values["qkey"]
        if mask & MIN_RNR_TIMER:
            self.responder.min_rnr_timer = values["min_rnr_timer"]
        if mask & (TIMEOUT | RETRY_CNT | RNR_RETRY | MAX_QP_RD_ATOMIC):
            known = self.attributes
            timeout = (
                int(4096 * 2 ** known["timeout"]) if known["timeout"] else 0
            )  # 4.096 us * 2^timeout, IBA 9.7.6.1.3
            self.requester.configure(
                timeout, known.get("retry_cnt", 0), known.get("rnr_retry", 0), known.get("max_rd_atomic", 0)
            )
        if mask & SQ_PSN:
            self.requester.reset(values["sq_psn"])
        if mask & EN_SQD_ASYNC_NOTIFY:
            self.notify_drained = bool(values["en_sqd_async_notify"])
        connection.peer_name = f"peer {address_of(known_gid(self.attributes))} QP {connection.dest_qp_num:#x}"

    def _take_path(self, path: Path, vector: AddressVector) -> None:
        self.connection.path = path
        self.paced = path.pace != 0
        self.connection.connected = True
        home, dgid = self.port.gid_table.resolve(vector.sgid_index, vector.dgid)
        self.source_high, self.source_low = struct.unpack(">QQ", dgid)
        self.local_high, self.local_low = struct.unpack(">QQ", self.port.link.gids[home])
        says = self.port.options.explain
        self.responder.explains = says == "always" or (says == "local" and (path.nearby or path.local))

    def _enter(self, target: int) -> None:
        if target == QPS_RESET:
            self._reset()
        elif target == QPS_ERR and self.state != QPS_RESET:
            self.enter_error("the queue pair was moved to the state ERR")
        elif target == QPS_RTR and self.transport == UD:
            self.connection.mtu = 128 << self.port.active_mtu
            self.connection.connected = True
        elif self.state == QPS_SQE:
            self.requester.reset(self.requester.psn)
        self.requester.draining = target == QPS_SQD
        if target != QPS_SQD:
            self.notify_drained = False
        self.state = target
        self.port.schedule(self)
        self.settle()

    def _reset(self) -> None:
        """RESET: what was posted counts nowhere; attached counters stay attached (semantics.md, 1)."""
        if self.mapping:
            self._drop_shared()
        self.requester.reset(0)
        self.sends.release()
        self.responder.drop_receives()
        self.responder.reset(0, 0)
        self.connection.connected = False
        self.connection.words = ""
        self.paced = False
        self.paced_until = 0
        self.established = False
        self.refusing = False
        self.notify_drained = False
        self.attributes = {}
        self._purge()

    def _purge(self) -> None:
        if self.port.options.purge:
            if self.send_cq is not None:
                self.send_cq.purge(self.qp_num)
            if self.recv_cq is not None:
                self.recv_cq.purge(self.qp_num)
        elif self.send_cq is not None:
            self.send_cq.disown(self.sends.ring.number)

    def query(self) -> dict[str, Any]:
        """The attributes now (ibv_query_qp(3)), and ``cap``."""
        result = dict(self.attributes)
        result["qp_state"] = self.state
        result["cur_qp_state"] = self.state
        result["rq_psn"] = self.responder.epsn
        result["sq_psn"] = self.requester.psn
        result["sq_draining"] = int(self.requester.draining and not self.requester.is_idle())
        result["cap"] = (self.max_send_wr, self.max_recv_wr, self.max_send_sge, self.max_recv_sge, self.max_inline_data)
        return result

    # -- counters

    def attach_comp_cntr(self, counter: CompCntr, op_mask: int, comp_mask: int) -> None:
        """Lets a counter count operations of this queue pair (ibv_qp_attach_comp_cntr(3)); all or nothing.

        :param op_mask: ``IBV_QP_ATTACH_COMP_CNTR_OP_*``
        :param comp_mask: 0
        :raises PyverbsRDMAError: EINVAL, then EOPNOTSUPP, then EBUSY
        """
        self.attachments.add(self, counter, op_mask, comp_mask)

    # -- multicast

    def attach_mcast(self, gid: bytes, lid: int) -> None:
        """Joins a multicast group (ibv_attach_mcast(3)); twice is as good as once.

        :param gid: of the group, 16 bytes
        :param lid: of no meaning over Ethernet
        :raises PyverbsRDMAError: EINVAL unless the QP is UD and the GID a multicast one, ENOMEM past the limits
        """
        if self.transport != UD:
            raise PyverbsRDMAError(f"QP {self.qp_num:#x} is not UD: it cannot join a multicast group", errno.EINVAL)
        if gid not in self.groups:
            self.port.attach_mcast(self, gid)
            self.groups.append(gid)

    def detach_mcast(self, gid: bytes, lid: int) -> None:
        """Leaves a multicast group (ibv_detach_mcast(3)).

        :raises PyverbsRDMAError: EINVAL where the QP is not attached to it
        """
        if gid not in self.groups:
            raise PyverbsRDMAError(
                f"QP {self.qp_num:#x} is not attached to the multicast group {address_of(gid)}", errno.EINVAL
            )
        self.groups.remove(gid)
        self.port.detach_mcast(self, gid)

    def detach_all(self) -> None:
        """Leaves every multicast group."""
        for gid in list(self.groups):
            self.detach_mcast(gid, 0)

    # -- life

    def statistics(self) -> dict[str, int]:
        """Extension: counts since the queue pair was made."""
        return {
            "posted_sends": self.sends.ring.tail,
            "retransmissions": self.requester.retransmissions,
            "duplicates": self.responder.duplicates,
            "dropped": self.responder.dropped,
        }

    def close(self) -> None:
        """Ends the queue pair (ibv_destroy_qp(3)): counters are detached, multicast groups left, what is unfinished
        counts nowhere.
        """
        if self.closed:
            return
        self.detach_all()
        self.unshare()
        self.closed = True
        self.state = QPS_RESET
        self._reset()
        self.port.remove_ring(self.sends.ring)
        self.attachments.clear(self)
        self._use(-1)
        self.port.remove_qp(self)


def known_gid(attributes: dict[str, Any]) -> bytes:
    """The peer's GID from the attributes; 16 zeros where it is not known."""
    vector = attributes.get("ah_attr")
    return vector.dgid if vector is not None else bytes(16)
