# SPDX-License-Identifier: MIT
"""The responder of a reliable queue pair: request packets become memory, receives, and answers.

Owner: the queue pair, which calls it and looks at ``failed`` afterwards. Rules (IBA 9.7.4, 9.7.5.1, 9.7.6):

* ``epsn`` is the PSN expected next. Packets before it are duplicates, answered again and performed never; the first
  packet after a gap is NAKed, the others are dropped until the gap is filled.
* A request is believed when its opcode fits the message in progress, its length fits the MTU and its header, and its
  key opens what it asks for. Else it is NAKed, and the queue pair fails.
* What is owed to the peer for it is in ``answers``.
"""

try:
    import cython
except ImportError:
    from softverbs import _cython as cython
from softverbs.core.base.limits import MAX_SGE

if not cython.compiled:
    from softverbs.core.base.constants import (
        ACCESS_FLUSH_GLOBAL,
        ACCESS_FLUSH_PERSISTENT,
        ACCESS_REMOTE_ATOMIC,
        ACCESS_REMOTE_READ,
        ACCESS_REMOTE_WRITE,
        EVENT_QP_ACCESS_ERR,
        EVENT_QP_FATAL,
        EVENT_QP_REQ_ERR,
        WC_LOC_LEN_ERR,
        WC_LOC_PROT_ERR,
        WC_RECV,
        WC_RECV_RDMA_WITH_IMM,
        WC_REM_INV_REQ_ERR,
        WC_SUCCESS,
        WC_WITH_IMM,
        WC_WITH_INV,
        WC_WR_FLUSH_ERR,
    )
    from softverbs.core.memory.raw import Block, compare_swap64, copy, fetch_add64, load32, load64, store64
    from softverbs.core.memory.regions import MemoryRegion
    from softverbs.core.memory.spaces import before, compare_swap, fetch_add, is_far
    from softverbs.core.memory.spaces import explain as explain_far
    from softverbs.core.queues.completion import CompletionQueue, complete
    from softverbs.core.queues.counters import CompCntr
    from softverbs.core.queues.operations import ATOMIC_SIZE
    from softverbs.core.queues.rings import RQ_LENGTH, RQ_NUM_SGE, RQ_SGES, RQ_WR_ID, SGE_SIZE, Ring
    from softverbs.core.queues.srq import ReceiveQueue
    from softverbs.core.transport.answers import Answers, Resource
    from softverbs.core.transport.connection import Connection
    from softverbs.core.transport.packets import FETH_LENGTH, RETH_LENGTH
    from softverbs.core.wire.headers import (
        NAK_INVALID_REQUEST,
        NAK_PSN_SEQUENCE,
        NAK_REMOTE_ACCESS,
        NAK_REMOTE_OPERATION,
        atomic_compare,
        atomic_rkey,
        atomic_swap_add,
        atomic_va,
        feth_level,
        feth_type,
        ieth_rkey,
        imm,
        reth_length,
        reth_rkey,
        reth_va,
    )
    from softverbs.core.wire.opcodes import (
        ATOMIC,
        FETH,
        FIRST,
        IETH,
        IMM,
        LAST,
        ONLY,
        RC_ATOMIC_WRITE,
        RC_COMPARE_SWAP,
        READ,
        RETH,
        SEND,
        TRANSPORT_BITS,
        WRITE,
    )
    from softverbs.core.wire.psn import add, diff

MAX_MESSAGE = 0x80000000  # bytes, IBA 9.4
# FETH (annex A19).
FLUSH_GLOBAL = 1
FLUSH_PERSISTENT = 2
FLUSH_REGION = 1


class Responder(Answers):
    """Performs the requests of the peer of one queue pair and answers them."""

    def __init__(
        self,
        connection: Connection,
        receives: "ReceiveQueue | None",
        cq: CompletionQueue,
        consumes: bool,
        pace_cap: int,
    ) -> None:
        """
        :param connection: numbers, path and memory of the queue pair
        :param receives: its receive queue, maybe a shared one; None where each request names one
        :param cq: where its receives complete
        :param consumes: whether an inbound WRITE_WITH_IMM consumes a receive
        :param pace_cap: most bytes of READ responses at once
        """
        Answers.__init__(self, connection, pace_cap)
        self.receives: ReceiveQueue = receives  # type: ignore[assignment]
        self.cq = cq
        #: Where a work request that was taken from a shared queue stays until its message is complete.
        self.block = Block(RQ_SGES + MAX_SGE * SGE_SIZE)
        self.consumes = consumes
        self.recv_counter: CompCntr | None = None
        self.remote_write_counter: CompCntr | None = None
        self.dropped = 0
        self.reset(0, 0)

    def reset(self, psn: int, max_resources: int) -> None:
        """Forgets every message; ``psn`` is expected next.

        :param max_resources: READs and atomics of the peer that may be outstanding
        """
        self.reset_answers(psn, max_resources)
        self.message = 0
        self.receive = 0
        self.placed = 0
        self.write_va = 0
        self.write_rkey = 0
        self.write_length = 0

    def drop_receives(self) -> None:
        """Forgets the posted receives, but for those of a shared queue: the queue pair is reset."""
        self.receive = 0
        if self.receives is None:
            return  # type: ignore[unreachable]
        if not self.receives.shared:
            self.receives.ring.head = self.receives.ring.tail

    # -- requests

    def on_request(
        self, opcode: int, flags: int, psn: int, headers: int, payload: int, length: int, ask: bool, solicited: bool
    ) -> None:
        """A request packet whose frame is sound.

        :param opcode: of the BTH
        :param flags: what ``opcodes.flags`` says of it
        :param headers: address of the extended headers
        :param payload: address of the payload
        :param length: bytes of payload, without the pad
        :param ask: whether an acknowledgement is requested
        :param solicited: whether the BTH has the solicited event bit
        """
        distance = diff(psn, self.epsn)
        if distance < 0:
            self._on_duplicate(flags, psn, headers)
        elif distance > 0:
            if not self.silent:
                self._negative(NAK_PSN_SEQUENCE, self.epsn)
        elif not self._fits(opcode, flags, length):
            self._refuse(
                NAK_INVALID_REQUEST, EVENT_QP_REQ_ERR, f"opcode {opcode:#x} with {length} bytes does not fit here"
            )
        else:
            self._perform(opcode, flags, headers, payload, length, ask, solicited)

    def _fits(self, opcode: int, flags: int, length: int) -> bool:
        """Whether the packet continues the message in progress and has a right length (IBA 9.7.4.1.2, 9.7.4.1.6)."""
        mtu = self.connection.mtu
        kind = flags & (SEND | WRITE | READ | ATOMIC)
        if kind == 0:
            return self.message == 0 and length == (ATOMIC_SIZE if opcode == RC_ATOMIC_WRITE else 0)
        if flags & (FIRST | ONLY):
            if self.message != 0:
                return False
        elif self.message != kind:
            return False
        if kind & (READ | ATOMIC):
            return length == 0
        if flags & ONLY:
            return length <= mtu
        if flags & LAST:
            return 0 < length <= mtu
        return length == mtu

    def _perform(
        self, opcode: int, flags: int, headers: int, payload: int, length: int, ask: bool, solicited: bool
    ) -> None:
        if flags & SEND:
            done = self._on_send(flags, headers, payload, length, solicited)
        elif flags & WRITE:
            done = self._on_write(flags, headers, payload, length, solicited)
        elif flags & READ:
            done = self._on_read(headers)
        elif flags & ATOMIC:
            done = self._on_atomic(opcode, headers)
        elif flags & FETH:
            done = self._on_flush(headers)
        else:
            done = self._on_atomic_write(headers, payload)
        if done:
            self.silent = False
            self.nak = 0  # what it was to ask for is here
            if flags & (SEND | WRITE):
                self.ack_psn = self.epsn
                self.epsn = add(self.epsn, 1)
                self.message = 0 if flags & (LAST | ONLY) else flags & (SEND | WRITE)
                if ask:
                    self.ack_due = True
            if flags & (LAST | ONLY):
                self.msn = add(self.msn, 1)

    def _on_send(self, flags: int, headers: int, payload: int, length: int, solicited: bool) -> bool:
        slot = self._take_receive()
        if slot == 0:
            return self._not_ready()
        if flags & (FIRST | ONLY):
            self.placed = 0
        if self.placed + length > load32(slot + RQ_LENGTH):
            reason = (
                f"a message of at least {self.placed + length} bytes came; the receive has {load32(slot + RQ_LENGTH)}"
            )
            self._complete_receive(slot, 0, False, WC_LOC_LEN_ERR, WC_RECV, 0, 0, reason)
            return self._refuse(NAK_INVALID_REQUEST, EVENT_QP_FATAL, reason)
        connection = self.connection
        connection.far.begin(self.epsn)
        placed = connection.place(slot + RQ_SGES, load32(slot + RQ_NUM_SGE), self.placed, length, payload)
        if not placed or (flags & (LAST | ONLY) and not connection.land()):
            return self._unplaced_send(slot)
        immediate = 0
        wc_flags = 0
        if flags & IETH:
            immediate = ieth_rkey(headers)
            wc_flags = WC_WITH_INV
            refusal = connection.regions.invalidate(immediate, connection.pd, connection.qp_num)
            if refusal:
                self._complete_receive(slot, 0, False, WC_REM_INV_REQ_ERR, WC_RECV, 0, 0, refusal)
                return self._refuse(NAK_INVALID_REQUEST, EVENT_QP_REQ_ERR, refusal)
        elif flags & IMM:
            immediate = imm(headers)
            wc_flags = WC_WITH_IMM
        self.placed += length
        if flags & (LAST | ONLY):
            self._complete_receive(slot, self.placed, solicited, WC_SUCCESS, WC_RECV, immediate, wc_flags, None)
        return True

    def _unplaced_send(self, slot: int) -> bool:
        """Bytes of a SEND could not be placed in its receive; always False."""
        self.epsn = self.connection.far.missed
        reason = self.connection.fault
        self._complete_receive(slot, 0, False, WC_LOC_PROT_ERR, WC_RECV, 0, 0, reason)
        return self._refuse(NAK_REMOTE_OPERATION, EVENT_QP_FATAL, f"the peer's receive: {reason}")

    def _on_write(self, flags: int, headers: int, payload: int, length: int, solicited: bool) -> bool:
        address = 0
        if flags & RETH:
            self.refused = False
            address = self._open_write(headers)
            if self.refused:
                return False
        ending = flags & (LAST | ONLY)
        if self.placed + length > self.write_length or (ending and self.placed + length != self.write_length):
            return self._refuse(
                NAK_INVALID_REQUEST,
                EVENT_QP_REQ_ERR,
                f"an RDMA WRITE of {self.write_length} bytes brought {self.placed + length}",
            )
        takes = flags & IMM and self.consumes
        if takes and self._take_receive() == 0:
            return self._not_ready()
        if length > 0:
            if address == 0:
                address = self._opened(self.write_rkey, self.write_va + self.placed, length, ACCESS_REMOTE_WRITE)
                if address == 0:
                    return False
            if is_far(address):
                self.connection.far.begin(self.epsn)
                if not self.connection.place_far(address, payload, length):
                    return self._unplaced_write()
            else:
                copy(address, payload, length)
        self.placed += length
        if not ending:
            return True
        if not self.connection.land():
            return self._unplaced_write()
        if self.remote_write_counter is not None:
            self.remote_write_counter.record(WC_SUCCESS, self.write_length)
        if flags & IMM:
            # Behind the RETH, where there is one: an ONLY packet has both.
            immediate = imm(headers + RETH_LENGTH if flags & RETH else headers)
            self._complete_write_with_imm(immediate, solicited)
        return True

    def _open_write(self, headers: int) -> int:
        """Takes the RETH of a new WRITE; the address of its first byte, or 0: it has none, or is ``refused``."""
        self.placed = 0
        self.write_va = reth_va(headers)
        self.write_rkey = reth_rkey(headers)
        self.write_length = reth_length(headers)
        if self.write_length == 0:
            self._granted(ACCESS_REMOTE_WRITE)
            return 0
        if not self._bounded(self.write_length):
            return 0
        return self._opened(self.write_rkey, self.write_va, self.write_length, ACCESS_REMOTE_WRITE)

    def _complete_write_with_imm(self, immediate: int, solicited: bool) -> None:
        if self.consumes:
            self._complete_receive(
                self.receive,
                self.write_length,
                solicited,
                WC_SUCCESS,
                WC_RECV_RDMA_WITH_IMM,
                immediate,
                WC_WITH_IMM,
                None,
            )
        else:
            self.cq.push(
                0,
                WC_SUCCESS,
                WC_RECV_RDMA_WITH_IMM,
                self.connection.qp_num,
                self.write_length,
                immediate,
                WC_WITH_IMM,
                0,
                solicited,
                0,
                None,
            )

    def _on_read(self, headers: int) -> bool:
        va = reth_va(headers)
        rkey = reth_rkey(headers)
        length = reth_length(headers)
        if length == 0:
            if not self._granted(ACCESS_REMOTE_READ):
                return False
        elif not self._bounded(length) or self._opened(rkey, va, length, ACCESS_REMOTE_READ) == 0:
            return False
        packets = 1
        if length > self.connection.mtu:
            packets = (length + self.connection.mtu - 1) // self.connection.mtu
        resource: Resource | None = self._remember(READ, packets)
        if resource is None:
            return False
        resource.va = va
        resource.rkey = rkey
        resource.length = length
        return True

    def _on_atomic(self, opcode: int, headers: int) -> bool:
        va = atomic_va(headers)
        if va & 7:
            return self._refuse(
                NAK_INVALID_REQUEST, EVENT_QP_REQ_ERR, f"an atomic at {va:#x}: the address must be a multiple of 8"
            )
        address = self._opened(atomic_rkey(headers), va, ATOMIC_SIZE, ACCESS_REMOTE_ATOMIC)
        if address == 0:
            return False
        if not self._is_aligned(address, va):
            return False
        resource = self._remember(ATOMIC, 1)
        if resource is None:
            return False
        if is_far(address):
            if not self._perform_far(opcode, headers, address):
                return False
            resource.original = before()
        elif opcode & ~TRANSPORT_BITS == RC_COMPARE_SWAP:
            resource.original = compare_swap64(address, atomic_compare(headers), atomic_swap_add(headers))
        else:
            resource.original = fetch_add64(address, atomic_swap_add(headers))
        if self.remote_read_counter is not None:
            self.remote_read_counter.record(WC_SUCCESS, ATOMIC_SIZE)
        return True

    def _perform_far(self, opcode: int, headers: int, address: int) -> bool:
        """An atomic in the memory of another process; False: refused, and not to be answered."""
        if opcode & ~TRANSPORT_BITS == RC_COMPARE_SWAP:
            done = compare_swap(address, atomic_compare(headers), atomic_swap_add(headers))
        else:
            done = fetch_add(address, atomic_swap_add(headers))
        if done:
            return True
        self._forget_newest()
        return self._refuse(NAK_REMOTE_ACCESS, EVENT_QP_ACCESS_ERR, explain_far())

    def _unplaced_write(self) -> bool:
        """Bytes of a WRITE could not be placed in the memory of another process; always False."""
        self.epsn = self.connection.far.missed
        return self._refuse(NAK_REMOTE_ACCESS, EVENT_QP_ACCESS_ERR, self.connection.fault)

    def on_unplaced(self) -> None:
        """Bytes of the message in progress could not be placed where they had been put: their packet is refused."""
        self.connection.fault = self.connection.far.fault
        if self.message == WRITE:
            self._unplaced_write()
        elif self.message == SEND:
            self._unplaced_send(self.receive)

    def _is_aligned(self, address: int, va: int) -> bool:
        """Whether the memory under an address that is a multiple of 8 for the peer is so, too; False: refused."""
        if not address & 7:
            return True
        return self._refuse(
            NAK_INVALID_REQUEST,
            EVENT_QP_REQ_ERR,
            f"an atomic at {va:#x}: in the responder's memory it is not 8-byte aligned",
        )

    def _on_flush(self, headers: int) -> bool:
        """FLUSH (annex A19): memory is visible to all once it is written: only to be checked and answered."""
        kind = feth_type(headers)
        right = 0
        if kind & FLUSH_GLOBAL:
            right = ACCESS_FLUSH_GLOBAL
        if kind & FLUSH_PERSISTENT:
            right |= ACCESS_FLUSH_PERSISTENT
        headers += FETH_LENGTH
        rkey = reth_rkey(headers)
        if right == 0 or kind & ~(FLUSH_GLOBAL | FLUSH_PERSISTENT) or feth_level(headers - FETH_LENGTH) > 1:
            return self._refuse(
                NAK_INVALID_REQUEST, EVENT_QP_REQ_ERR, f"FLUSH: no such placement type, {kind}, or level"
            )
        va = reth_va(headers)
        length = reth_length(headers)
        if feth_level(headers - FETH_LENGTH) == FLUSH_REGION:
            region: MemoryRegion | None = self.connection.regions.find(rkey)
            if region is not None:
                va = region.iova
                length = region.length
        if length == 0:
            if not self._granted(right):
                return False
        elif self._opened(rkey, va, length, right) == 0:
            return False
        return self._remember_empty(FETH)

    def _on_atomic_write(self, headers: int, payload: int) -> bool:
        """ATOMIC_WRITE (annex A19): 8 bytes at once."""
        va = reth_va(headers)
        if va & 7 or reth_length(headers) != ATOMIC_SIZE:
            return self._refuse(
                NAK_INVALID_REQUEST,
                EVENT_QP_REQ_ERR,
                f"ATOMIC_WRITE of {reth_length(headers)} bytes at {va:#x}: 8 bytes, at a multiple of 8",
            )
        address = self._opened(reth_rkey(headers), va, ATOMIC_SIZE, ACCESS_REMOTE_WRITE)
        if address == 0 or not self._is_aligned(address, va) or not self._remember_empty(WRITE):
            return False
        if is_far(address):
            if not (self.connection.place_far(address, payload, ATOMIC_SIZE) and self.connection.land()):
                self._forget_newest()
                return self._refuse(NAK_REMOTE_ACCESS, EVENT_QP_ACCESS_ERR, self.connection.fault)
        else:
            store64(address, load64(payload))  # one instruction
        if self.remote_write_counter is not None:
            self.remote_write_counter.record(WC_SUCCESS, ATOMIC_SIZE)
        return True

    def _granted(self, right: int) -> bool:
        """Whether the queue pair lets its peer do this at all (``qp_access_flags``; IBA 9.7.4.1.3: invalid request)."""
        if not right & ~self.connection.access:
            return True
        name = "REMOTE_WRITE" if right == ACCESS_REMOTE_WRITE else "REMOTE_READ"
        if right == ACCESS_REMOTE_ATOMIC:
            name = "REMOTE_ATOMIC"
        elif right & (ACCESS_FLUSH_GLOBAL | ACCESS_FLUSH_PERSISTENT):
            name = "FLUSH_GLOBAL or FLUSH_PERSISTENT"
        return self._refuse(
            NAK_INVALID_REQUEST, EVENT_QP_REQ_ERR, f"qp_access_flags of QP {self.connection.qp_num:#x} lack {name}"
        )

    def _bounded(self, length: int) -> bool:
        """Whether the specification allows a message of this length: the PSNs of a longer one could wrap."""
        if length <= MAX_MESSAGE:
            return True
        return self._refuse(
            NAK_INVALID_REQUEST, EVENT_QP_REQ_ERR, f"a message of {length} bytes: at most {MAX_MESSAGE}"
        )

    def _opened(self, rkey: int, va: int, length: int, right: int) -> int:
        """The address that the peer's key opens, or 0: refused."""
        if not self._granted(right):
            return 0
        address = self.connection.translate(rkey, va, length, right)
        if address == 0:
            self._refuse(NAK_REMOTE_ACCESS, EVENT_QP_ACCESS_ERR, self.connection.fault)
        return address

    def _complete_receive(
        self,
        slot: int,
        length: int,
        solicited: bool,
        status: int,
        opcode: int,
        immediate: int,
        wc_flags: int,
        reason: str | None,
    ) -> None:
        self._finish()
        complete(
            self.cq,
            self.recv_counter,
            length,
            True,
            solicited,
            load64(slot + RQ_WR_ID),
            status,
            opcode,
            self.connection.qp_num,
            length,
            immediate,
            wc_flags,
            0,
            0,
            reason,
        )

    def _finish(self) -> None:
        """The work request of the message in progress, or the oldest of the queue, is used up."""
        if not self.receives.shared:
            self.receives.ring.head += 1
        self.receive = 0
        self.message = 0

    def _take_receive(self) -> int:
        """The work request that the message in progress goes to, or 0: none is posted.

        That of a shared queue is taken out: other queue pairs receive meanwhile.
        """
        if self.receive == 0:
            ring: Ring = self.receives.ring
            if ring.head == ring.tail and not self.receives.refill():
                return 0
            slot = ring.slot(ring.head)
            if self.receives.shared:
                copy(self.block.address, slot, ring.stride)
                slot = self.block.address
                ring.head += 1
                self.receives.taken()
            self.receive = slot
        return self.receive

    def flush(self, reason: str) -> None:
        """Completes every posted receive with WR_FLUSH_ERR, in order (IBA 10.3.1, ERR)."""
        if self.receives is None:
            return  # type: ignore[unreachable]
        ring = self.receives.ring
        while self.receive != 0 or (ring.head < ring.tail and not self.receives.shared):
            slot = self.receive if self.receive != 0 else ring.slot(ring.head)
            self._complete_receive(slot, 0, False, WC_WR_FLUSH_ERR, WC_RECV, 0, 0, reason)
