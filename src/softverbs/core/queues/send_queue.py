# SPDX-License-Identifier: MIT
"""The send queue: a work request is checked whole, then written to its slot, where the requester finds it."""

import errno
from typing import Any

try:
    import cython
except ImportError:
    from softverbs import _cython as cython
from softverbs.core.base.errors import PyverbsRDMAError
from softverbs.core.base.limits import MAX_INLINE_DATA, MAX_MESSAGE_SIZE

if not cython.compiled:
    from softverbs.core.base.constants import (
        QPT_UD,
        SEND_FENCE,
        SEND_INLINE,
        SEND_SIGNALED,
        SEND_SOLICITED,
        WR_ATOMIC_WRITE,
        WR_BIND_MW,
        WR_FLUSH,
        WR_RDMA_READ,
        WR_SEND_WITH_INV,
    )
    from softverbs.core.base.host import Host
    from softverbs.core.memory.raw import (
        copy,
        copy_checked,
        load8,
        load16,
        load32,
        load64,
        store8,
        store16,
        store32,
        store64,
    )
    from softverbs.core.memory.regions import ProtectionDomain, Regions
    from softverbs.core.memory.spaces import fetch, is_far
    from softverbs.core.queues.operations import ATOMIC_SIZE, allowed, is_answered, is_atomic, operation_name, type_name
    from softverbs.core.queues.rings import (
        QP_SQ_TAIL,
        SGE_SIZE,
        SQ_AH,
        SQ_COMPARE_ADD,
        SQ_DESTINATION,
        SQ_FLAGS,
        SQ_IMM,
        SQ_LENGTH,
        SQ_NUM_SGE,
        SQ_OPCODE,
        SQ_REFUSED,
        SQ_REMOTE_ADDRESS,
        SQ_RESPONSES,
        SQ_RKEY,
        SQ_SGES,
        SQ_STATE,
        SQ_SWAP,
        WQE_POSTED,
        WorkQueue,
    )
    from softverbs.core.queues.srq import elements_length, put_elements
    from softverbs.core.queues.wr import SGE, SendWR

_SEND_FLAGS = SEND_FENCE | SEND_SIGNALED | SEND_SOLICITED | SEND_INLINE


class SendQueue(WorkQueue):
    """Send work requests that wait, or that are under way, oldest first."""

    def __init__(
        self,
        port: Host,
        regions: Regions,
        pd: ProtectionDomain,
        refusals: dict[int, str],
        qp_type: int,
        max_wr: int,
        max_sge: int,
        max_inline_data: int,
        signal_all: bool,
    ) -> None:
        """
        :param port: the port of the queue pair
        :param regions: the device's memory regions
        :param pd: protection domain of the queue pair; None for an XRC target
        :param refusals: takes why work requests that came through shared memory are wrong, by their place in the queue
        :param qp_type: its type
        :param max_wr: most work requests
        :param max_sge: most scatter/gather elements of each
        :param max_inline_data: bytes of inline data that each must have room for; 0: none is taken
        :param signal_all: whether every work request is signaled
        """
        self.port = port
        self.regions = regions
        self.pd = pd
        #: Number of the queue pair; 0 until it has one.
        self.qp_num = 0
        self.refusals = refusals
        self.qp_type = qp_type
        self.allowed = allowed(qp_type)
        self.max_sge = max_sge
        self.signal_all = signal_all
        payload = max(max_sge * SGE_SIZE, max_inline_data, ATOMIC_SIZE)
        stride = SQ_SGES + payload + 63 & ~63  # whole cache lines
        # What a slot has room for is the program's, as with NICs: it may ask for less than it can make use of.
        self.max_inline_data = min(stride - SQ_SGES, MAX_INLINE_DATA) if max_inline_data > 0 else 0
        WorkQueue.__init__(self, max_wr, stride, QP_SQ_TAIL)
        #: UD: the address handle of each slot.
        self.handles: list[Any] = [None] * (self.ring.mask + 1 if qp_type == QPT_UD else 0)

    def put(self, wr: SendWR, max_reads: int) -> None:
        """Appends one work request.

        :param max_reads: READs and atomics that the queue pair may have outstanding
        :raises PyverbsRDMAError: EINVAL where it is wrong, ENOMEM where the queue is full, EFAULT for inline data that
            cannot be read
        """
        ring = self.ring
        opcode = wr._opcode
        flags = wr._send_flags
        if opcode > WR_ATOMIC_WRITE or not self.allowed >> opcode & 1:
            self._refuse_opcode(opcode)
        if ring.in_use() >= self.max_wr:
            self._refuse_full()
        if flags & ~_SEND_FLAGS:
            self._refuse_flags(flags)
        slot = ring.slot(ring.tail)
        elements = wr._sg
        if flags & SEND_INLINE:
            if len(elements) > self.max_sge and len(elements) > 1:
                self._refuse_elements(len(elements))
            length = self._put_inline(slot, opcode, elements)
        else:
            length = put_elements(slot + SQ_SGES, elements, self.max_sge, "max_send_sge")
        if length > MAX_MESSAGE_SIZE:
            self._refuse_length(length)
        if is_answered(opcode):
            self._check_answered(opcode, len(elements), length, max_reads)
        if self.signal_all:
            flags |= SEND_SIGNALED
        store64(slot, wr._wr_id)
        store8(slot + SQ_OPCODE, opcode)
        store8(slot + SQ_FLAGS, flags)
        store16(slot + SQ_NUM_SGE, 0 if flags & SEND_INLINE else len(elements))
        store32(slot + SQ_IMM, wr._imm_data)
        store64(slot + SQ_REMOTE_ADDRESS, wr._remote_addr)
        store32(slot + SQ_RKEY, wr._rkey)
        store32(slot + SQ_LENGTH, length)
        store64(slot + SQ_COMPARE_ADD, wr._compare_add)
        store64(slot + SQ_SWAP, wr._swap)
        store32(slot + SQ_DESTINATION, wr._destination)
        store32(slot + SQ_AH, wr._ah)
        store32(slot + SQ_STATE, WQE_POSTED)
        if opcode == WR_BIND_MW:
            self._put_bind(slot, wr)
        elif opcode == WR_FLUSH:
            self._put_flush(slot, wr)
        elif self.qp_type == QPT_UD:
            handle = self._handle_of(wr._ah)
            if handle is not wr._ah_core:  # the number is another's now
                raise PyverbsRDMAError("the address handle of the datagram is closed", errno.EINVAL)
            self.handles[ring.tail & ring.mask] = handle
        ring.tail += 1

    def _refuse_full(self) -> None:
        """Says what would free the slots."""
        ring = self.ring
        words = f"the send queue of QP {self.qp_num:#x} is full: max_send_wr={self.max_wr}"
        if ring.number == 0 or self.max_wr == 0:
            raise PyverbsRDMAError(words, errno.ENOMEM)
        # Completions that are asked for, those of them that are there, and the requests behind the last of them.
        signaled = ready = silent = 0
        for index in range(ring.polled, ring.tail):
            silent += 1
            if load8(ring.slot(index) + SQ_FLAGS) & SEND_SIGNALED:
                signaled += 1
                ready += index < ring.head
                silent = 0
        oldest = load64(ring.slot(ring.polled))
        words += (
            f", all slots are in use, from wr_id={oldest:#x} on. A slot is free once the completion of its work "
            f"request, or of a later one, has been polled. {ring.head - ring.polled} of the work requests are done, "
        )
        if signaled == 0:
            words += "none is signaled, so no completion can free a slot: signal at least one in max_send_wr, and poll"
        else:
            words += f"{ready} completions wait to be polled"
            if silent:
                words += f", the last {silent} work requests are unsignaled"
        raise PyverbsRDMAError(words, errno.ENOMEM)

    def _refuse_opcode(self, opcode: int) -> None:
        raise PyverbsRDMAError(
            f"a QP of type {type_name(self.qp_type)} has no operation {operation_name(opcode)}", errno.EINVAL
        )

    def _refuse_flags(self, flags: int) -> None:
        unknown = flags & ~_SEND_FLAGS
        raise PyverbsRDMAError(f"send_flags {flags:#x}: of no meaning here: {unknown:#x}", errno.EINVAL)

    def _refuse_elements(self, count: int) -> None:
        raise PyverbsRDMAError(f"{count} scatter/gather elements: max_send_sge={self.max_sge}", errno.EINVAL)

    def _refuse_length(self, length: int) -> None:
        raise PyverbsRDMAError(f"a message of {length} bytes: at most {MAX_MESSAGE_SIZE}", errno.EINVAL)

    def release(self) -> None:
        """Every slot is free: the queue pair is reset."""
        self.ring.polled = self.ring.tail

    def take_back(self, tail: int) -> None:
        """Removes what was appended since the ring's tail was ``tail``: nothing of it has started."""
        self.ring.tail = tail

    def _put_inline(self, slot: int, opcode: int, elements: list[SGE]) -> int:
        """Copies the payload into the slot; its length. The elements need no key (ibv_post_send(3))."""
        length = 0
        for element in elements:
            length += element._length
        self._check_inline(opcode, length)
        at = slot + SQ_SGES
        for element in elements:
            size = element._length
            if size > 0 and not self._copy_inline(at, element):
                raise PyverbsRDMAError(f"inline data at {element._addr:#x}, {size} bytes, cannot be read", errno.EFAULT)
            at += size
        return length

    def _check_inline(self, opcode: int, length: int) -> None:
        if opcode >= WR_RDMA_READ and opcode != WR_SEND_WITH_INV and opcode != WR_ATOMIC_WRITE:
            raise PyverbsRDMAError(f"SEND_INLINE has no meaning with {operation_name(opcode)}", errno.EINVAL)
        if length > self.max_inline_data and (opcode != WR_ATOMIC_WRITE or length != ATOMIC_SIZE):
            raise PyverbsRDMAError(f"{length} bytes inline: max_inline_data={self.max_inline_data}", errno.EINVAL)

    def _copy_inline(self, at: int, element: SGE) -> bool:
        """Copies an element; where its key does not vouch for the memory, the kernel is asked."""
        size = element._length
        address = self.regions.translate(element._lkey, element._addr, size, 0, self.pd, self.qp_num)
        if address == 0:
            return copy_checked(at, element._addr, size)
        if is_far(address):
            return fetch(at, address, size)
        copy(at, address, size)
        return True

    def _check_answered(self, opcode: int, elements: int, length: int, max_reads: int) -> None:
        if max_reads == 0:
            raise PyverbsRDMAError(
                f"max_rd_atomic of QP {self.qp_num:#x} is 0: it has no {operation_name(opcode)}",
                errno.EINVAL,
            )
        if (is_atomic(opcode) or opcode == WR_ATOMIC_WRITE) and length != ATOMIC_SIZE:
            raise PyverbsRDMAError(f"an atomic is 8 bytes, its scatter/gather list holds {length}", errno.EINVAL)
        if is_atomic(opcode) and elements != 1:
            raise PyverbsRDMAError(f"an atomic has one scatter/gather element, not {elements}", errno.EINVAL)
        if opcode == WR_FLUSH and length != 0:
            raise PyverbsRDMAError(f"FLUSH carries no data, its scatter/gather list holds {length}", errno.EINVAL)

    def _handle_of(self, number: int) -> Any:
        """UD: the address handle, which may be destroyed before the datagram has left."""
        handles = self.port.addresses
        handle = handles[number] if number < len(handles) else None
        if number == 0:
            raise PyverbsRDMAError("a datagram without an address handle: call set_wr_ud", errno.EINVAL)
        if handle is None:
            raise PyverbsRDMAError("the address handle of the datagram is closed", errno.EINVAL)
        return handle

    def _put_bind(self, slot: int, wr: SendWR) -> None:
        """BIND_MW: the window's key now, the region's key, the range and the rights (``rings``)."""
        if wr._bind is None:
            raise PyverbsRDMAError("BIND_MW without a memory window: call set_bind_wr", errno.EINVAL)
        mw, lkey, address, length, access = wr._bind
        store32(slot + SQ_RKEY, mw.rkey)
        store32(slot + SQ_IMM, wr._rkey)
        store64(slot + SQ_REMOTE_ADDRESS, address)
        store64(slot + SQ_COMPARE_ADD, length)
        store32(slot + SQ_SWAP, lkey)
        store32(slot + SQ_SWAP + 4, access)
        store32(slot + SQ_LENGTH, 0)

    def _put_flush(self, slot: int, wr: SendWR) -> None:
        store32(slot + SQ_LENGTH, 0)
        store64(slot + SQ_COMPARE_ADD, wr._flush_length)
        store32(slot + SQ_SWAP, wr._flush_kind)

    # -- a program in another process posts

    def skip(self, count: int) -> None:
        """Drops work requests that wait to be taken. The caller forgets them in its requester."""
        self.ring.tail += count
        self.publish_taken()

    def take(self, count: int, max_reads: int) -> None:
        """Appends work requests that wait, as many as ``waiting`` has found.

        The program may change a slot at any time, so what is checked is the copy. One that is wrong fails when its turn
        has come, since the program was told already that it is posted.

        :param max_reads: READs and atomics that the queue pair may have outstanding
        """
        ring = self.ring
        while count > 0:
            slot = ring.slot(ring.tail)
            source = ring.in_memory(self.slots, ring.tail)
            copy(slot, source, SQ_SGES)
            try:
                self._complete_slot(slot, source + SQ_SGES, max_reads)
            except PyverbsRDMAError as error:
                self._refuse_slot(slot, str(error))
            store32(slot + SQ_STATE, WQE_POSTED)
            ring.tail += 1
            count -= 1
        self.publish_taken()

    def _complete_slot(self, slot: int, source: int, max_reads: int) -> None:
        """Checks a slot that was copied up to its elements, or inline data, and copies these."""
        opcode = load8(slot + SQ_OPCODE)
        flags = load8(slot + SQ_FLAGS)
        if opcode > WR_ATOMIC_WRITE or not self.allowed >> opcode & 1:
            self._refuse_opcode(opcode)
        if flags & ~_SEND_FLAGS:
            self._refuse_flags(flags)
        if flags & SEND_INLINE:
            length = load32(slot + SQ_LENGTH)
            self._check_inline(opcode, length)
            copy(slot + SQ_SGES, source, length)
            store16(slot + SQ_NUM_SGE, 0)
        else:
            length = self._take_elements(slot, source)
        if length > MAX_MESSAGE_SIZE:
            self._refuse_length(length)
        if is_answered(opcode):
            self._check_answered(opcode, load16(slot + SQ_NUM_SGE), length, max_reads)
        if self.signal_all:
            store8(slot + SQ_FLAGS, flags | SEND_SIGNALED)
        store32(slot + SQ_LENGTH, 0 if opcode == WR_BIND_MW else length)
        if self.qp_type == QPT_UD:
            self.handles[self.ring.tail & self.ring.mask] = self._handle_of(load32(slot + SQ_AH))

    def _take_elements(self, slot: int, source: int) -> int:
        """Copies the scatter/gather list; the bytes that it holds."""
        count = load16(slot + SQ_NUM_SGE)
        if count > self.max_sge:
            self._refuse_elements(count)
        copy(slot + SQ_SGES, source, count * SGE_SIZE)
        return elements_length(slot + SQ_SGES, count)

    def _refuse_slot(self, slot: int, reason: str) -> None:
        ring = self.ring
        self.refusals[ring.tail] = reason
        store32(slot + SQ_RESPONSES, load8(slot + SQ_OPCODE))
        store8(slot + SQ_OPCODE, SQ_REFUSED)
        store8(slot + SQ_FLAGS, 0)
        store16(slot + SQ_NUM_SGE, 0)
        store32(slot + SQ_LENGTH, 0)
        if self.qp_type == QPT_UD:
            self.handles[ring.tail & ring.mask] = None
