# SPDX-License-Identifier: MIT
"""The requester of a reliable queue pair: work requests become packets, answers become completions.

Owner: the queue pair, which calls it and looks at ``failed`` afterwards. Rules (IBA 9.7.3 to 9.7.5, 9.7.7):

* PSNs: ``una`` is the oldest that is not acknowledged, ``psn`` the next to send, ``top`` the next never sent.
  They differ by less than half of the 24-bit circle.
* Work requests retire from the head of the send queue, in order, each by ``complete``.
* A loss is noticed by a NAK, by a response that is missing before another, or by time; then everything from
  ``una`` on is sent again, a READ from its first missing response.
* What is on the way is bounded by a window that halves on loss and grows with acknowledgements: UDP drops what a
  socket cannot hold, and nothing else would slow us.
"""

try:
    import cython
except ImportError:
    from softverbs import _cython as cython

if not cython.compiled:
    from softverbs.core.base.constants import (
        ACCESS_LOCAL_WRITE,
        SEND_FENCE,
        SEND_INLINE,
        SEND_SIGNALED,
        WC_BAD_RESP_ERR,
        WC_LOC_PROT_ERR,
        WC_LOC_QP_OP_ERR,
        WC_MW_BIND_ERR,
        WC_REM_ACCESS_ERR,
        WC_REM_INV_REQ_ERR,
        WC_REM_OP_ERR,
        WC_RETRY_EXC_ERR,
        WC_RNR_RETRY_EXC_ERR,
        WC_SUCCESS,
        WC_WR_FLUSH_ERR,
        WR_ATOMIC_WRITE,
        WR_BIND_MW,
        WR_FLUSH,
        WR_LOCAL_INV,
        WR_RDMA_READ,
        WR_RDMA_WRITE,
        WR_RDMA_WRITE_WITH_IMM,
        WR_SEND,
        WR_SEND_WITH_IMM,
        WR_SEND_WITH_INV,
    )
    from softverbs.core.memory.raw import Block, load8, load16, load32, load64, store8, store32, store64
    from softverbs.core.queues.completion import CompletionQueue, complete
    from softverbs.core.queues.counters import CompCntr
    from softverbs.core.queues.operations import ATOMIC_SIZE, completion_opcode, is_answered, is_atomic
    from softverbs.core.queues.rings import (
        SQ_FIRST_PSN,
        SQ_FLAGS,
        SQ_LAST_PSN,
        SQ_LENGTH,
        SQ_NUM_SGE,
        SQ_OPCODE,
        SQ_REFUSED,
        SQ_RESPONSES,
        SQ_SGES,
        SQ_STATE,
        SQ_WR_ID,
        WQE_POSTED,
        WQE_STARTED,
        Ring,
    )
    from softverbs.core.transport.connection import Connection
    from softverbs.core.transport.local import perform_locally, refusal, silence
    from softverbs.core.transport.packets import (
        MAX_HEADERS,
        write_atomic_request,
        write_atomic_write,
        write_flush_request,
        write_payload,
        write_read_request,
    )
    from softverbs.core.wire.egress import Egress
    from softverbs.core.wire.headers import (
        AETH_KIND,
        AETH_NAK,
        AETH_RNR,
        AETH_VALUE,
        NAK_INVALID_REQUEST,
        NAK_PSN_SEQUENCE,
        NAK_REMOTE_ACCESS,
        aeth_syndrome,
        atomic_ack_original,
        rnr_timer_ns,
    )
    from softverbs.core.wire.opcodes import LAST, ONLY
    from softverbs.core.wire.psn import add, diff

#: What a packet costs the window beside its payload, bytes: headers, and the kernel's accounting.
PACKET_COST = 64
#: Where the window starts, bytes: less than what a socket of an unprivileged process holds.
FIRST_WINDOW = 196608
#: An acknowledgement is asked for at least this often, packets.
ACK_EVERY = 16
RNR_RETRY_FOREVER = 7  # IBA 9.7.5.2.8
#: Where the peer has had no receive for long, a request waits longer than the NAK asks for ("at least", 9.7.5.2.8): an
#: eighth (shift) of the time that it has waited already, and not longer than this, ns.
RNR_SHIFT = 3
RNR_LONGEST = 40000000
#: After this time without a receive at the peer the log says so, ns.
RNR_PATIENCE = 1000000000
# Operations that need no packet, one bit each; and what is none.
_LOCAL = 1 << WR_LOCAL_INV | 1 << WR_BIND_MW | 1 << SQ_REFUSED


class Requester:
    """Sends the work requests of one queue pair and retires them."""

    def __init__(self, connection: Connection, sq: Ring, cq: CompletionQueue, window: int) -> None:
        """
        :param connection: numbers, path and memory of the queue pair
        :param sq: its send queue
        :param cq: where its work requests complete
        :param window: most bytes on the way
        """
        self.connection = connection
        self.sq = sq
        self.cq = cq
        self.max_window = window
        self.send_counter: CompCntr | None = None
        self.write_counter: CompCntr | None = None
        self.read_counter: CompCntr | None = None
        self.scratch = Block(ATOMIC_SIZE)
        self.timeout = 0
        self.retry_count = 0
        self.rnr_retry_count = 0
        self.max_reads = 0
        self.draining = False
        self.reliable = True
        self.retransmissions = 0
        #: RNR NAKs that made a request wait. Since when the oldest request waits for a receive; whether the log knows.
        self.rnr_naks = 0
        self.rnr_since = 0
        self.rnr_told = False
        self.reset(0)

    def reset(self, psn: int) -> None:
        """Forgets everything that was sent; ``psn`` is the first to be sent."""
        self.connection.refusals.clear()
        self.psn = psn
        self.una = psn
        self.top = psn
        self.cursor = self.sq.tail
        self.sq.head = self.sq.tail
        self.offset = 0
        self.in_flight = 0
        self.window = min(self.max_window, FIRST_WINDOW)
        self.head_acked = 0
        self.unasked = 0
        self.reads = 0
        self.gap = False
        self.gap_psn = 0
        self.deadline = 0
        self.rnr_until = 0
        self.rnr_since = 0
        self.retries_left = self.retry_count
        self.rnr_retries_left = self.rnr_retry_count
        self.last_heard = 0
        self.doomed = False
        self.doom_index = 0
        self.doom_status = 0
        self.doom_reason: str | None = None
        self.failed = False
        #: Why, in words.
        self.failure: str | None = None

    def configure(self, timeout: int, retry_count: int, rnr_retry_count: int, max_reads: int) -> None:
        """Takes the attributes of modify_qp.

        :param timeout: ns until an answer is missed, 0 for never
        :param retry_count: how often a request is sent again without an answer
        :param rnr_retry_count: the same after RNR NAKs; 7: for ever
        :param max_reads: READs and atomics that may be outstanding
        """
        self.timeout = timeout
        self.retry_count = retry_count
        self.rnr_retry_count = rnr_retry_count
        self.max_reads = max_reads
        self.retries_left = retry_count
        self.rnr_retries_left = rnr_retry_count

    # -- sending

    def pump(self, egress: Egress, now: int) -> int:
        """Sends what may be sent. 1 where the arena is full and more is to come, else 0."""
        sq = self.sq
        # What is before a doomed work request must still be sent again where it is lost.
        while self.cursor < sq.tail and not self.failed and not (self.doomed and self.cursor >= self.doom_index):
            if self.rnr_until != 0:
                return 0
            slot = sq.slot(self.cursor)
            if load32(slot + SQ_STATE) == WQE_POSTED and not self._start(slot):
                return 0
            if load32(slot + SQ_STATE) == WQE_POSTED:
                continue  # a local operation: done and gone
            if self.in_flight >= self.window:
                return 0
            address = egress.room(MAX_HEADERS + self.connection.mtu)
            if address == 0:
                return 1
            self._emit(slot, address, egress, now)
        return 0

    def _start(self, slot: int) -> bool:
        """Admits a work request to the wire, or performs it if it is local; False: not now, or never."""
        opcode = load8(slot + SQ_OPCODE)
        if self.draining:
            return False
        if _LOCAL >> opcode & 1:
            return self._perform_locally(slot, opcode)
        reading = is_answered(opcode)
        length = load32(slot + SQ_LENGTH)
        flags = load8(slot + SQ_FLAGS)
        if self.reads > 0 and (flags & SEND_FENCE or (reading and self.reads >= self.max_reads)):
            return False
        if not flags & SEND_INLINE and (reading or length > self.connection.mtu):  # else gathering is the check
            right = ACCESS_LOCAL_WRITE if opcode == WR_RDMA_READ or is_atomic(opcode) else 0
            if not self.connection.check(slot + SQ_SGES, load16(slot + SQ_NUM_SGE), right):
                self._doom(WC_LOC_PROT_ERR, self.connection.fault)
                return False
        packets = 1
        if length > self.connection.mtu and not is_atomic(opcode):
            packets = (length + self.connection.mtu - 1) // self.connection.mtu
        store32(slot + SQ_FIRST_PSN, self.psn)
        store32(slot + SQ_LAST_PSN, add(self.psn, packets - 1))
        store32(slot + SQ_RESPONSES, 0)
        store32(slot + SQ_STATE, WQE_STARTED)
        if reading:
            self.reads += 1
        return True

    def _perform_locally(self, slot: int, opcode: int) -> bool:
        """LOCAL_INV and BIND_MW: when everything before them is complete (IBA 10.8.3.3)."""
        if self.cursor != self.sq.head:
            return False
        if opcode == SQ_REFUSED:
            self._fail_refused(slot)
            return False
        fault = perform_locally(self.connection, slot, opcode)
        if fault:
            self._doom(WC_MW_BIND_ERR, fault)
            return False
        self.cursor += 1
        self._retire()
        return True

    def _fail_refused(self, slot: int) -> None:
        """The head is a work request that was wrong when it was taken from shared memory."""
        store8(slot + SQ_OPCODE, load32(slot + SQ_RESPONSES))
        self._fail(WC_LOC_QP_OP_ERR, self.connection.refusals.pop(self.cursor, "the work request is wrong"))

    def _emit(self, slot: int, address: int, egress: Egress, now: int) -> None:
        """Writes the next packet of a work request."""
        opcode = load8(slot + SQ_OPCODE)
        if opcode == WR_RDMA_READ:
            length = self._emit_read(slot, address)
        elif is_answered(opcode):
            length = self._emit_single(slot, opcode, address)
        else:
            length = self._emit_payload(slot, address)
        if length != 0:
            egress.commit(self.connection.path, length)
            if diff(self.psn, self.top) > 0:
                self.top = self.psn
            else:
                self.retransmissions += 1
            if self.deadline == 0 and self.timeout != 0:
                self.deadline = now + self.timeout

    def _emit_read(self, slot: int, address: int) -> int:
        """A READ request for the responses that have not arrived."""
        done = load32(slot + SQ_RESPONSES)
        skip = done * self.connection.mtu
        psn = add(load32(slot + SQ_FIRST_PSN), done)
        length = write_read_request(self.connection, slot, address, psn, skip)
        self._sent(add(load32(slot + SQ_LAST_PSN), 1), load32(slot + SQ_LENGTH) - skip)
        return length

    def _emit_single(self, slot: int, opcode: int, address: int) -> int:
        """An atomic, a FLUSH or an ATOMIC_WRITE; its length, or 0 where the application's memory is gone."""
        if opcode == WR_FLUSH:
            length = write_flush_request(self.connection, slot, address, self.psn)
        elif opcode == WR_ATOMIC_WRITE:
            length = write_atomic_write(self.connection, slot, address, self.psn)
        else:
            length = write_atomic_request(self.connection, slot, address, self.psn)
        if length == 0:
            self._doom(WC_LOC_PROT_ERR, self.connection.fault)
            return 0
        self._sent(add(self.psn, 1), 0)
        return length

    def _sent(self, psn: int, payload: int) -> None:
        """A request of one packet is out, whose answer will bring ``payload`` bytes; ``psn`` comes next."""
        self.psn = psn
        self.in_flight += payload + PACKET_COST
        self.unasked = 0
        self.cursor += 1

    def _emit_payload(self, slot: int, address: int) -> int:
        """A packet of a SEND or a WRITE; its length, or 0 where the application's memory is gone."""
        part = load32(slot + SQ_LENGTH) - self.offset
        last = part <= self.connection.mtu
        if not last:
            part = self.connection.mtu
        self.unasked += 1
        ask = last or self.unasked >= ACK_EVERY or self.in_flight + part + PACKET_COST >= self.window
        ask = ask and self.reliable
        length = write_payload(self.connection, slot, address, self.psn, self.offset, part, ask)
        if length == 0:
            self._doom(WC_LOC_PROT_ERR, self.connection.fault)
            return 0
        self.in_flight += part + PACKET_COST
        self.psn = add(self.psn, 1)
        self.offset += part
        if ask:
            self.unasked = 0
        if last:
            self.offset = 0
            self.cursor += 1
        return length

    # -- answers

    def on_acknowledge(self, psn: int, aeth: int, now: int) -> None:
        """An ACK or a NAK (IBA 9.7.5.1.2, 9.7.5.2)."""
        syndrome = aeth_syndrome(aeth)
        kind = syndrome & AETH_KIND
        if diff(psn, self.una) < 0 or diff(psn, self.top) >= 0:
            pass  # of the past, or of what was never sent
        elif kind == AETH_RNR:
            self._advance(add(psn, -1), now)
            self._on_rnr(psn, syndrome & AETH_VALUE, now)
        elif kind == AETH_NAK:
            self._advance(add(psn, -1), now)
            self._on_nak(psn, syndrome)
        elif kind == 0:
            self._advance(psn, now)
            self._skip_ahead()

    def _on_rnr(self, psn: int, timer: int, now: int) -> None:
        if diff(psn, self.una) != 0 or self.failed or self.sq.head == self.sq.tail:
            return
        if self.rnr_until != 0:
            return  # the same NAK again: the network has repeated it
        self.rnr_naks += 1
        if self.rnr_retry_count != RNR_RETRY_FOREVER:
            if self.rnr_retries_left == 0:
                self._fail(
                    WC_RNR_RETRY_EXC_ERR,
                    f"{self.connection.peer_name} had no receive posted for PSN {psn:#x}, "
                    f"{self.rnr_retry_count + 1} times",
                )
                return
            self.rnr_retries_left -= 1
        self.retries_left = self.retry_count  # the peer is there and saw this very packet
        self._rewind()
        self.deadline = 0
        self.rnr_until = now + self._rnr_wait(rnr_timer_ns(timer), now)

    def _rnr_wait(self, timer: int, now: int) -> int:
        """How long to wait after an RNR NAK that asks for ``timer``, ns."""
        if self.rnr_retry_count != RNR_RETRY_FOREVER:
            return timer
        if self.rnr_since == 0:
            self.rnr_since = now
            self.rnr_told = False
        waited = now - self.rnr_since
        if waited >= RNR_PATIENCE and not self.rnr_told:
            self.rnr_told = True
            self.connection.port.report(
                f"QP {self.connection.qp_num:#x}: {self.connection.peer_name} has no receive posted since "
                f"{waited // 1000000} ms; rnr_retry=7 is for ever"
            )
        longer = waited >> RNR_SHIFT
        if longer > RNR_LONGEST:
            longer = RNR_LONGEST
        return timer if timer > longer else longer

    def _on_nak(self, psn: int, syndrome: int) -> None:
        if diff(psn, self.una) != 0 or self.failed or self.sq.head == self.sq.tail:
            return
        if syndrome == NAK_PSN_SEQUENCE:
            # During an RNR wait: what followed the packet that found no receive came early, which is no loss.
            # Where nothing was sent since the last loss, the network has repeated the NAK.
            if self.rnr_until == 0 and diff(self.psn, self.una) != 0:
                self._lost("it misses a packet")
            return
        status = WC_REM_OP_ERR
        if syndrome == NAK_INVALID_REQUEST:
            status = WC_REM_INV_REQ_ERR
        elif syndrome == NAK_REMOTE_ACCESS:
            status = WC_REM_ACCESS_ERR
        self._fail(status, refusal(self.connection, self.sq.slot(self.sq.head), psn, syndrome))

    def on_read_response(self, kind: int, psn: int, payload: int, length: int, now: int) -> None:
        """A READ response; ``kind``: FIRST, MIDDLE, LAST or ONLY (IBA 9.7.5.1.4)."""
        slot = self._awaited(psn, now)
        if slot == 0:
            return
        opcode = load8(slot + SQ_OPCODE)
        if is_atomic(opcode):
            self._fail(WC_BAD_RESP_ERR, f"{self.connection.peer_name} answered an atomic (PSN {psn:#x}) with READ data")
            return
        mtu = self.connection.mtu
        done = load32(slot + SQ_RESPONSES)
        rest = load32(slot + SQ_LENGTH) - done * mtu if opcode == WR_RDMA_READ else 0
        last = psn == load32(slot + SQ_LAST_PSN)
        if last != (kind & (LAST | ONLY) != 0) or length != (rest if last else mtu):
            self._fail(
                WC_BAD_RESP_ERR,
                f"{self.connection.peer_name} sent a READ response of {length} bytes at PSN {psn:#x}; {rest} were due",
            )
            return
        placed = self.connection.scatter(slot + SQ_SGES, load16(slot + SQ_NUM_SGE), done * mtu, length, payload)
        if not placed or (last and not self.connection.land()):
            self._fail(WC_LOC_PROT_ERR, self.connection.fault)
            return
        store32(slot + SQ_RESPONSES, done + 1)
        self._progress(add(psn, 1), now)
        self._give_back(length)
        if last:
            self._retire()
            self._skip_ahead()

    def on_unplaced(self) -> None:
        """Bytes of the READ at the head, which had been put, could not be placed in its list."""
        self._fail(WC_LOC_PROT_ERR, self.connection.far.fault)

    def on_atomic_acknowledge(self, psn: int, original: int, now: int) -> None:
        """The answer to an atomic; ``original``: address of the value in network order (IBA 9.4.5)."""
        slot = self._awaited(psn, now)
        if slot == 0:
            return
        if not is_atomic(load8(slot + SQ_OPCODE)):
            self._fail(
                WC_BAD_RESP_ERR, f"{self.connection.peer_name} answered a READ (PSN {psn:#x}) with an atomic ACK"
            )
            return
        store64(self.scratch.address, atomic_ack_original(original))
        sges, count = slot + SQ_SGES, load16(slot + SQ_NUM_SGE)
        if not (self.connection.scatter(sges, count, 0, ATOMIC_SIZE, self.scratch.address) and self.connection.land()):
            self._fail(WC_LOC_PROT_ERR, self.connection.fault)
            return
        store32(slot + SQ_RESPONSES, 1)
        self._progress(add(psn, 1), now)
        self._retire()
        self._skip_ahead()

    def _awaited(self, psn: int, now: int) -> int:
        """The slot of the READ or atomic that waits for ``psn``; 0 where the response is old, early or unasked."""
        if self.deadline != 0:
            # Late answers to what was asked twice: the peer is there, and goes on when it is through with them.
            self.deadline = now + self.timeout
        if diff(psn, self.una) < 0 or diff(psn, self.top) >= 0:
            return 0
        self._advance(add(psn, -1), now)  # a response acknowledges what was before it
        self._skip_ahead()
        if self.failed or diff(psn, self.una) != 0 or self.sq.head >= self.sq.tail:
            return 0
        slot = self.sq.slot(self.sq.head)
        opcode = load8(slot + SQ_OPCODE)
        if load32(slot + SQ_STATE) != WQE_STARTED or not is_answered(opcode):
            return 0
        return slot

    def _advance(self, psn: int, now: int) -> None:
        """Takes everything up to ``psn`` as acknowledged, but for READs and atomics whose response is missing.

        A READ of 0 bytes has nothing to miss. (rxe of Linux 6.12 answers it once and never again.)
        """
        sq = self.sq
        while not self.failed and sq.head < sq.tail and diff(psn, self.una) >= 0:
            slot = sq.slot(sq.head)  # it has started, since una is a PSN of it
            opcode = load8(slot + SQ_OPCODE)
            last = load32(slot + SQ_LAST_PSN)
            if is_answered(opcode) and not (opcode == WR_RDMA_READ and load32(slot + SQ_LENGTH) == 0):
                self._missed(psn)
                break
            if diff(last, psn) > 0:
                self._credit(load32(slot + SQ_LENGTH), diff(psn, load32(slot + SQ_FIRST_PSN)) + 1)
                self._progress(add(psn, 1), now)
                break
            self._credit(load32(slot + SQ_LENGTH), diff(last, load32(slot + SQ_FIRST_PSN)) + 1)
            self._progress(add(last, 1), now)
            self._retire()

    def _missed(self, psn: int) -> None:
        """Something answers ``psn``, or the packet after it, but what is due before has not come: asks again.

        Once: other answers to the first request may follow. But where they begin anew, before what showed the gap, they
        are those to the second, and what is due is missing there, too. That costs no retry: the peer is there.
        """
        if not self.gap:
            self._lost("a response of it is missing")
            self.gap = True
            self.gap_psn = psn
        elif diff(psn, self.gap_psn) < 0:
            self.gap_psn = psn
            self._rewind()

    def _credit(self, length: int, packets: int) -> None:
        """Gives back to the window what the packets of the head that are now acknowledged had taken."""
        fresh = packets - self.head_acked
        mtu = self.connection.mtu
        amount = fresh * PACKET_COST
        payload = length - self.head_acked * mtu
        if payload > fresh * mtu:
            payload = fresh * mtu
        amount += payload
        self._give_back(amount)
        self.head_acked = packets

    def _give_back(self, amount: int) -> None:
        if amount > self.in_flight:
            amount = self.in_flight
        self.in_flight -= amount

    def _progress(self, una: int, now: int) -> None:
        """The peer has answered: ``una`` is what is missing next."""
        self.una = una
        self.gap = False
        self.rnr_until = 0  # the packet that found no receive has arrived after all
        self.rnr_since = 0
        self.last_heard = now
        self.retries_left = self.retry_count
        self.rnr_retries_left = self.rnr_retry_count
        self.deadline = 0
        if self.timeout != 0 and diff(self.top, una) > 0:
            self.deadline = now + self.timeout
        if self.window < self.max_window:
            self.window += self.connection.mtu

    def _skip_ahead(self) -> None:
        """After a rewind, late answers may acknowledge what was about to be sent again: go on behind it."""
        if diff(self.una, self.psn) > 0:
            self._rewind()

    def _retire(self) -> None:
        """The head of the send queue is done."""
        slot = self.sq.slot(self.sq.head)
        opcode = load8(slot + SQ_OPCODE)
        if is_answered(opcode):
            self.reads -= 1
            self._give_back(PACKET_COST)
        self._complete_head(slot, opcode, WC_SUCCESS, None)

    def _complete_head(self, slot: int, opcode: int, status: int, reason: str | None) -> None:
        listed = load8(slot + SQ_FLAGS) & SEND_SIGNALED != 0
        length = load32(slot + SQ_LENGTH)
        self.sq.head += 1
        self.head_acked = 0
        if self.cursor < self.sq.head:
            self.cursor = self.sq.head
            self.offset = 0
        if status != WC_SUCCESS and not listed:
            store8(slot + SQ_FLAGS, load8(slot + SQ_FLAGS) | SEND_SIGNALED)  # an error always has a completion
        complete(
            self.cq,
            self._counter(opcode),
            length,
            listed,
            False,
            load64(slot + SQ_WR_ID),
            status,
            completion_opcode(opcode),
            self.connection.qp_num,
            length,
            0,
            0,
            0,
            self.sq.frees(),
            reason,
        )
        if self.doomed and not self.failed and self.sq.head == self.doom_index:
            self._fail(self.doom_status, self.doom_reason)

    def _counter(self, opcode: int) -> "CompCntr | None":
        if opcode == WR_SEND or opcode == WR_SEND_WITH_IMM or opcode == WR_SEND_WITH_INV:
            return self.send_counter
        if opcode == WR_RDMA_WRITE or opcode == WR_RDMA_WRITE_WITH_IMM or opcode == WR_ATOMIC_WRITE:
            return self.write_counter
        if opcode == WR_RDMA_READ or is_atomic(opcode):
            return self.read_counter
        return None

    # -- loss, time and errors

    def _lost(self, what: str) -> None:
        """Something did not arrive: send again from ``una``, more carefully."""
        if self.retries_left == 0:
            self._fail(
                WC_RETRY_EXC_ERR,
                silence(self.connection, what, self.una, self.retry_count, self.timeout, self.last_heard),
            )
            return
        self.retries_left -= 1
        self.deadline = 0  # it starts anew with what is sent again
        self.window = max(self.window // 2, 2 * (self.connection.mtu + PACKET_COST))
        self._rewind()

    def _rewind(self) -> None:
        """Puts the cursor on the packet ``una``: it is one of the head's, where the head has started."""
        self.psn = self.una
        self.in_flight = 0
        self.unasked = 0
        self.offset = 0
        self.cursor = self.sq.head
        if self.cursor < self.sq.tail:
            slot = self.sq.slot(self.cursor)
            opcode = load8(slot + SQ_OPCODE)
            if load32(slot + SQ_STATE) == WQE_STARTED and not is_answered(opcode):
                self.offset = diff(self.una, load32(slot + SQ_FIRST_PSN)) * self.connection.mtu

    def is_idle(self) -> bool:
        """Whether every work request that has started is done: none waits for an answer, none is sent in part."""
        return self.una == self.top and self.offset == 0

    def next_deadline(self) -> int:
        """When ``on_timer`` is due, ns; 0 for never."""
        return self.rnr_until if self.rnr_until != 0 else self.deadline

    def on_timer(self, now: int) -> None:
        """Time has passed: the end of an RNR wait, or an answer that did not come (IBA 9.7.6.1.3)."""
        if self.rnr_until != 0:
            if now >= self.rnr_until:
                self.rnr_until = 0
        elif self.deadline != 0 and now >= self.deadline:
            self.deadline = 0
            self.gap_psn = self.top  # whatever comes now answers the next request
            self._lost("no answer came in time")

    def _doom(self, status: int, reason: str | None) -> None:
        """The work request at the cursor fails as soon as those before it are done."""
        self.doomed = True
        self.doom_index = self.cursor
        self.doom_status = status
        self.doom_reason = reason
        if self.sq.head == self.doom_index:
            self._fail(status, reason)

    def _fail(self, status: int, reason: str | None) -> None:
        """Completes the head in error; the queue pair goes to ERR when it sees ``failed``."""
        self.failed = True
        self.failure = reason
        slot = self.sq.slot(self.sq.head)
        self._complete_head(slot, load8(slot + SQ_OPCODE), status, reason)

    def flush(self, reason: str) -> None:
        """Completes everything that is left with WR_FLUSH_ERR, in order (IBA 10.3.1, ERR)."""
        self.failed = True
        self.deadline = 0
        self.rnr_until = 0
        while self.sq.head < self.sq.tail:
            slot = self.sq.slot(self.sq.head)
            self._complete_head(slot, load8(slot + SQ_OPCODE), WC_WR_FLUSH_ERR, reason)
        self.cursor = self.sq.tail
        self.connection.refusals.clear()
