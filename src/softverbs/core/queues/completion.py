# SPDX-License-Identifier: MIT
"""Completion queues and their channels, and the one sink that feeds them and the counters: ``complete``.

Order is a promise: the counter moves before the completion queue entry can be seen (semantics.md, 1).
"""

import errno
from collections import deque
from collections.abc import Callable
from typing import Any

try:
    import cython
except ImportError:
    from softverbs import _cython as cython
from softverbs.core.base.errors import PyverbsRDMAError
from softverbs.core.base.limits import Options

if not cython.compiled:
    from softverbs.core.base.constants import EVENT_CQ_ERR, WC_FLAGS, WC_SL_SHIFT, WC_SUCCESS
    from softverbs.core.base.host import Host
    from softverbs.core.memory.raw import (
        barrier,
        copy,
        load8,
        load16,
        load32,
        load64,
        load_acquire64,
        store8,
        store32,
        store64,
        store_release64,
    )
    from softverbs.core.queues.counters import CompCntr
    from softverbs.core.queues.rings import (
        CQ_ARM_ANY,
        CQ_ARM_SOLICITED,
        CQ_BYTE_LEN,
        CQ_DLID_PATH_BITS,
        CQ_FLAGS,
        CQ_FREES,
        CQ_HEAD,
        CQ_IMM,
        CQ_OPCODE,
        CQ_PKEY_INDEX,
        CQ_QP_NUM,
        CQ_SL,
        CQ_SLID,
        CQ_SLOT,
        CQ_SRC_QP,
        CQ_STATUS,
        CQ_TAIL,
        CQ_TIMESTAMP,
        CQ_VENDOR_ERR,
        CQ_WR_ID,
        RING_HEADER,
        Ring,
        check_mapping,
    )
    from softverbs.core.queues.wr import WC

#: enum ibv_create_cq_attr_flags
CQ_SINGLE_THREADED = 1
CQ_IGNORE_OVERRUN = 2

# What a queue is armed for. A program that shares memory may have armed both.
NOT_ARMED = 0
ARMED_SOLICITED = 1
ARMED_ANY = 2

_POISON = 0xDEADBEEF
_LOW_32 = 0xFFFFFFFF
_SIGN_32 = 0x80000000


class CompChannel:
    """A completion channel (ibv_create_comp_channel(3)): completion queues that have an event, in order."""

    def __init__(self, notify: Callable[[], None], silence: "Callable[[], None] | None" = None) -> None:
        """
        :param notify: called with the device's lock held when an event is queued: it makes a descriptor readable
        :param silence: called with the lock held when no event is left, since their queue is gone
        """
        self.notify = notify
        self.silence = silence
        self.queues: deque[CompletionQueue] = deque()
        self.users = 0
        self.closed = False

    @property
    def pending(self) -> int:
        """Events that nobody has read yet."""
        return len(self.queues)

    def close(self) -> None:
        """Ends the channel (ibv_destroy_comp_channel(3)).

        :raises PyverbsRDMAError: EBUSY while a completion queue uses it
        """
        if self.users:
            raise PyverbsRDMAError(f"{self.users} completion queues use the completion channel", errno.EBUSY)
        self.closed = True

    def push(self, cq: "CompletionQueue") -> None:
        """Queues an event of ``cq``."""
        self.queues.append(cq)
        self.notify()

    def pop(self) -> "CompletionQueue | None":
        """The queue of the oldest event, which then waits to be acknowledged; None where there is no event."""
        if not self.queues:
            return None
        cq = self.queues.popleft()
        cq.events_read += 1
        return cq

    def forget(self, cq: "CompletionQueue") -> int:
        """Drops the events of ``cq`` that nobody has read; how many."""
        kept = [queue for queue in self.queues if queue is not cq]
        dropped = len(self.queues) - len(kept)
        self.queues = deque(kept)
        if dropped and not kept and self.silence is not None:
            self.silence()
        return dropped


class CompletionQueue:
    """A completion queue (ibv_create_cq(3)). The port drives it; applications poll it."""

    def __init__(
        self,
        port: Host,
        context_id: object,
        cqe: int,
        cq_context: object,
        channel: "CompChannel | None",
        comp_vector: int,
        flags: int,
    ) -> None:
        """
        :param port: the port that it belongs to
        :param context_id: the same for all objects of one context
        :param cqe: entries, at least
        :param cq_context: returned with events
        :param channel: where its events go, or None
        :param comp_vector: 0 to num_comp_vectors - 1
        :param flags: ``CQ_SINGLE_THREADED``, ``CQ_IGNORE_OVERRUN``
        :raises PyverbsRDMAError: EINVAL where an argument is out of range
        """
        options = port.options
        if not 0 < cqe <= options.max_cqe:
            raise PyverbsRDMAError(f"cqe={cqe} is out of range: 1 to max_cqe, {options.max_cqe}", errno.EINVAL)
        if not 0 <= comp_vector < port.num_comp_vectors:
            raise PyverbsRDMAError(
                f"comp_vector={comp_vector} is out of range: 0 to {port.num_comp_vectors - 1}", errno.EINVAL
            )
        if flags & ~(CQ_SINGLE_THREADED | CQ_IGNORE_OVERRUN):
            raise PyverbsRDMAError(f"unknown creation flags {flags:#x}", errno.EINVAL)
        self.port = port
        self.context_id = context_id
        self.cq_context = cq_context
        self.channel = channel
        self.comp_vector = comp_vector
        self.flags = flags
        self.cqe = rounded(cqe, options)
        self.ring = Ring(self.cqe, CQ_SLOT)
        self.armed = NOT_ARMED
        #: Behind the newest entry that is solicited or in error; and how many such the program has not been told of.
        self.last_solicited = 0
        self.new_solicited = 0
        self.users = 0
        self.overrun = False
        #: Completions, those of them in error, those removed with their QP, and those that found no room.
        self.added = 0
        self.failed = 0
        self.purged = 0
        self.lost = 0
        #: Moderation: completions for one event, 0: no moderation; how long they may wait, ns; how many do; until when.
        self.event_count = 0
        self.event_period = 0
        self.held = 0
        self.event_due = 0
        self.events_queued = 0
        self.events_read = 0
        self.events_acked = 0
        self.reasons: dict[int, str] = {}
        #: Completions that a fault keeps back, each with its time, in order.
        self.late: deque[tuple[Any, ...]] = deque()
        self.debug = options.debug
        self.keeps_on = options.overrun == "rxe"
        self.user: Any = None
        self.closed = False
        #: The memory that is shared with the program which polls; 0: none. What its header has.
        self.mapping = 0
        self.published = 0
        self.holder: object = None
        #: What it was last seen to have armed there, and the entries that this is for: from these on.
        self.any_word = 0
        self.any_from = 0
        self.solicited_word = 0
        self.solicited_from = 0
        #: Whether the port knows that the program is to be told something; whether the program has broken the rules.
        self.changed = False
        self.offends = False
        self.handle = port.enter("completion queue", options.max_cq)
        if channel is not None:
            channel.users += 1

    # -- the device's side

    def push(
        self, wr_id: int, status: int, opcode: int, qp_num: int, byte_len: int, imm: int, wc_flags: int, src_qp: int,
        solicited: bool, frees: int, reason: str | None,
    ) -> None:  # fmt: skip
        """A completion: appends its entry, unless a fault makes that wait."""
        if self.port.plan is not None:
            due = self.port.plan.on_completion(self, wr_id, status, opcode, qp_num)
            if due != 0:
                self.late.append(
                    (due, wr_id, status, opcode, qp_num, byte_len, imm, wc_flags, src_qp, solicited, frees, reason)
                )
                return
        self._append(wr_id, status, opcode, qp_num, byte_len, imm, wc_flags, src_qp, solicited, frees, reason)

    def release(self, now: int) -> int:
        """Appends the late entries whose time has come, in order; when the next is due, or -1."""
        while self.late and self.late[0][0] <= now:
            entry = self.late.popleft()
            _, wr_id, status, opcode, qp_num, byte_len, imm, wc_flags, src_qp, solicited, frees, reason = entry
            self._append(wr_id, status, opcode, qp_num, byte_len, imm, wc_flags, src_qp, solicited, frees, reason)
        return self.late[0][0] if self.late else -1

    def _append(
        self, wr_id: int, status: int, opcode: int, qp_num: int, byte_len: int, imm: int, wc_flags: int, src_qp: int,
        solicited: bool, frees: int, reason: str | None,
    ) -> None:  # fmt: skip
        """Appends an entry and raises the event that it is due (IBA 11.4.2.2)."""
        ring = self.ring
        if self.overrun or ring.full():
            if not self._make_room():
                return
        slot = ring.slot(ring.tail)
        store64(slot + CQ_WR_ID, wr_id)
        store32(slot + CQ_STATUS, status)
        store32(slot + CQ_OPCODE, opcode)
        store32(slot + CQ_VENDOR_ERR, status)
        store32(slot + CQ_BYTE_LEN, byte_len)
        store32(slot + CQ_IMM, imm)
        store32(slot + CQ_QP_NUM, qp_num)
        store32(slot + CQ_SRC_QP, src_qp)
        store32(slot + CQ_FLAGS, wc_flags & WC_FLAGS)
        store64(slot + CQ_PKEY_INDEX, 0)
        store8(slot + CQ_SL, wc_flags >> WC_SL_SHIFT)
        store64(slot + CQ_TIMESTAMP, self.port.now)
        store64(slot + CQ_FREES, frees)
        if reason is not None:
            self.reasons[ring.tail] = reason
            if len(self.reasons) > ring.size:
                self._forget_reason()
        ring.tail += 1
        self.added += 1
        if self.mapping != 0:
            self._note_change()
        if status != WC_SUCCESS:
            self.failed += 1
        if solicited or status != WC_SUCCESS:
            self.last_solicited = ring.tail
            self.new_solicited += 1
            if self.armed != NOT_ARMED and self.mapping == 0:
                self._event_is_due(1)
        elif self.armed & ARMED_ANY and self.mapping == 0:
            self._event_is_due(1)

    def _note_change(self) -> None:
        """The program is to be told of the new tail, by the port."""
        if not self.changed:
            self.changed = True
            self.port.changed_cqs.append(self)

    def _make_room(self) -> bool:
        """What happens to an entry that finds the queue full; whether there is room for it now."""
        if self.mapping and not self.overrun:
            self._see_head()
            if not self.ring.full():
                return True
        self.lost += 1
        self.port.completions_lost += 1
        if self.flags & CQ_IGNORE_OVERRUN:
            self.reasons.pop(self.ring.head, None)
            self.ring.head += 1
            return True
        if not self.overrun:
            self.overrun = not self.keeps_on
            self.port.raise_event(EVENT_CQ_ERR, self)
            if self.overrun:
                self.port.on_overrun(self)
        return False

    def _event_is_due(self, count: int) -> None:
        """So many completions are due an event. Under moderation it waits for more of them, or for its time."""
        self.held += count
        if self.event_count <= 1 or self.held >= self.event_count:
            self._notify()
        elif self.event_due == 0:
            self.event_due = self.port.now + self.event_period
            self.port.delay_counter(self)

    def publish(self, now: int) -> int:
        """Raises the event that moderation has held back until now; when it is due, or -1."""
        if self.event_due == 0:
            return -1
        if now < self.event_due:
            return self.event_due
        self._notify()
        return -1

    def _notify(self) -> None:
        armed = NOT_ARMED
        if self.mapping:  # a program that has seen the newest entry and armed then means the next one
            if self.any_from >= self.published:
                armed |= self.armed & ARMED_ANY
            if self.solicited_from >= self.published:
                armed |= self.armed & ARMED_SOLICITED
        self.armed = armed
        self.held = 0
        self.event_due = 0
        if self.channel is not None:
            self.events_queued += 1
            self.channel.push(self)

    def purge(self, qp_num: int) -> None:
        """Removes the entries of a QP that is destroyed or reset; the others keep their order.

        Where a program polls shared memory it must not do so now, since entries move.
        """
        self._see_head()
        if self.mapping:
            self.publish_tail()  # what was armed is for entries as they are numbered now
        if self.late:
            self.late = deque([entry for entry in self.late if entry[4] != qp_num])
        ring = self.ring
        kept = ring.head
        reasons = self.reasons
        self.reasons = {}
        for index in range(ring.head, ring.tail):
            slot = ring.slot(index)
            if load32(slot + CQ_QP_NUM) == qp_num:
                self.purged += 1
                continue
            if kept != index:
                copy(ring.slot(kept), slot, CQ_SLOT)
            if index in reasons:
                self.reasons[kept] = reasons[index]
            kept += 1
        ring.tail = kept
        self.last_solicited = min(self.last_solicited, kept)
        if self.mapping:
            self.publish_tail()

    def disown(self, number: int) -> None:
        """The entries of a send queue that is reset or gone stay, and free nothing when they are polled.

        :param number: of the send queue (``Host.enter_ring``)
        """
        self._see_head()
        ring = self.ring
        for index in range(ring.head, ring.tail):
            slot = ring.slot(index)
            if load64(slot + CQ_FREES) >> 32 == number:
                store64(slot + CQ_FREES, 0)
        self.late = deque([(*entry[:10], 0, entry[11]) if entry[10] >> 32 == number else entry for entry in self.late])

    # -- the application's side

    def poll(self, limit: int) -> list[WC]:
        """Up to ``limit`` completions, oldest first (ibv_poll_cq(3)). Drives the device where there is none.

        :raises PyverbsRDMAError: EINVAL on a negative limit, EIO where the device is gone
        """
        port = self.port
        port.lock.acquire()
        try:
            if port.plan is not None and limit > 0:
                port.plan.on_poll(self)
            if self.ring.tail == self.ring.head:
                port.drive()
                if self.ring.tail > self.ring.head:
                    port.catch_up()
            result: list[WC] = []
            while limit > 0 and self.ring.tail > self.ring.head:
                result.append(self._take())
                limit -= 1
            return result
        finally:
            port.lock.release()

    def _take(self) -> WC:
        ring = self.ring
        slot = ring.slot(ring.head)
        wc = WC.__new__(WC)
        wc.wr_id = load64(slot + CQ_WR_ID)
        wc.status = load32(slot + CQ_STATUS)
        wc.opcode = load32(slot + CQ_OPCODE)
        wc.vendor_err = load32(slot + CQ_VENDOR_ERR)
        wc.byte_len = load32(slot + CQ_BYTE_LEN)
        wc.imm_data = load32(slot + CQ_IMM)
        wc.qp_num = load32(slot + CQ_QP_NUM)
        wc.src_qp = load32(slot + CQ_SRC_QP)
        wc.wc_flags = load32(slot + CQ_FLAGS)
        wc.pkey_index = load16(slot + CQ_PKEY_INDEX)
        wc.slid = load16(slot + CQ_SLID)
        wc.sl = load8(slot + CQ_SL)
        wc.dlid_path_bits = load8(slot + CQ_DLID_PATH_BITS)
        wc.reason = ""
        if wc.status != WC_SUCCESS:
            wc.reason = self.reasons.pop(ring.head, "")
            if self.debug:
                self._poison(wc)
        ring.head += 1
        frees = load64(slot + CQ_FREES)
        if frees != 0:
            self.port.free_slots(frees)
        return wc

    def _poison(self, wc: WC) -> None:
        """Only wr_id, status, qp_num and vendor_err are valid in an error (ibv_poll_cq(3))."""
        wc.opcode = _POISON
        wc.byte_len = _POISON
        wc.imm_data = _POISON
        wc.src_qp = _POISON
        wc.wc_flags = _POISON
        wc.pkey_index = _POISON
        wc.slid = _POISON
        wc.sl = _POISON
        wc.dlid_path_bits = _POISON

    def timestamp(self) -> int:
        """Time of the oldest entry's completion, ns of the device's clock."""
        return load64(self.ring.slot(self.ring.head) + CQ_TIMESTAMP)

    def count(self) -> int:
        """How many completions wait to be polled."""
        self._see_head()
        return self.ring.count()

    def req_notify(self, solicited_only: bool) -> None:
        """Arms one event for the next entry (ibv_req_notify_cq(3)); ANY stays ANY."""
        if solicited_only and self.armed != ARMED_ANY:
            self.armed = ARMED_SOLICITED
        else:
            self.armed = ARMED_ANY

    def rings(self) -> list[Ring]:
        """Its memory, which can be moved elsewhere before anybody uses it."""
        return [self.ring]

    def moderate(self, count: int, period: int) -> None:
        """One event for ``count`` completions, or after ``period`` ns (ibv_modify_cq(3)); either 0: one for each."""
        self.event_count = count if period else 0
        self.event_period = period
        if self.held and self.held >= self.event_count:
            self._notify()

    def statistics(self) -> dict[str, int]:
        """Extension: what has happened to it since it was made."""
        return {
            "completions": self.added,
            "errors": self.failed,
            "waiting": self.count(),
            "lost": self.lost,
            "purged": self.purged,
            "events": self.events_queued,
            "events_read": self.events_read,
            "events_acknowledged": self.events_acked,
        }

    def resize(self, cqe: int) -> None:
        """Another capacity (ibv_resize_cq(3)); every entry is kept, in order.

        :raises PyverbsRDMAError: EINVAL where it is out of range or below what waits to be polled
        """
        options = self.port.options
        if not 0 < cqe <= options.max_cqe:
            raise PyverbsRDMAError(f"cqe={cqe} is out of range: 1 to max_cqe, {options.max_cqe}", errno.EINVAL)
        old = self.ring
        if cqe < self.count():
            raise PyverbsRDMAError(f"cqe={cqe}: {old.count()} completions wait to be polled", errno.EINVAL)
        if self.mapping:
            self.publish_tail()
            self._take_arming(self.published)
        ring = Ring(rounded(cqe, options), CQ_SLOT)
        # The numbers of the entries go on: a program that looks at the tail while its memory is exchanged compares it
        # with a head of before or of afterwards, and must not find them equal by chance.
        ring.head = old.head
        ring.tail = old.tail
        for index in range(old.head, old.tail):
            copy(ring.slot(index), old.slot(index), CQ_SLOT)
        self.reasons = {index: reason for index, reason in self.reasons.items() if index >= old.head}
        self.ring = ring
        self.cqe = ring.size
        self.any_from = self.solicited_from = self.last_solicited = ring.tail
        self.unshare()

    # -- a program in another process polls

    def mapped_size(self) -> int:
        """Bytes of the memory that ``share`` wants: header and slots (``rings``)."""
        return RING_HEADER + self.ring.block.size

    def share(self, address: int, holder: object) -> None:
        """From now on the entries are in memory that is shared with a program, which takes them; to be done before
        anything uses the queue, or after ``resize``, which ends it.

        :param address: of ``mapped_size`` bytes of writable memory
        :param holder: kept alive as long as it is used
        :raises PyverbsRDMAError: EINVAL where it is not aligned to 64 bytes
        """
        check_mapping(address)
        self.unshare()
        self.holder = holder
        self.mapping = address
        self.ring.relocate(address + RING_HEADER)
        store64(address + CQ_HEAD, self.ring.head)
        store64(address + CQ_ARM_ANY, 0)
        store64(address + CQ_ARM_SOLICITED, 0)
        self.any_word = self.solicited_word = 0
        self.offends = False
        self.published = self.ring.tail + 1
        self.publish_tail()

    def unshare(self) -> None:
        """The memory that is shared with a program is not touched any more."""
        if self.mapping:
            self.mapping = 0
            self.ring.restore()
            self.holder = None

    def publish_shared(self) -> None:
        """Tells the program what has changed, if it is still there."""
        self.changed = False
        if self.mapping:
            self.publish_tail()

    def publish_tail(self) -> None:
        """Tells the program of new entries, behind everything else that it can see of them, and raises the event that
        they are due.
        """
        tail = self.ring.tail
        if self.published != tail:
            before = min(self.published, tail)
            self.published = tail
            store_release64(self.mapping + CQ_TAIL, tail)
            if self.channel is not None:
                # The program arms, then looks at the tail; here it is the other way round, so one of them notices.
                barrier()
                self._take_arming(before)
                self._raise_event(before)
            self.new_solicited = 0

    def _take_arming(self, before: int) -> None:
        """Looks at what the program has armed.

        :param before: how many entries it knew of until now
        """
        word = load64(self.mapping + CQ_ARM_ANY)
        if word != self.any_word:
            self.any_word = word
            self.any_from = self._armed_from(word, before)
            self.armed |= ARMED_ANY
        word = load64(self.mapping + CQ_ARM_SOLICITED)
        if word != self.solicited_word:
            self.solicited_word = word
            self.solicited_from = self._armed_from(word, before)
            self.armed |= ARMED_SOLICITED
        # Where entries were purged there are fewer now than were seen.
        self.any_from = min(self.any_from, self.published)
        self.solicited_from = min(self.solicited_from, self.published)

    def _armed_from(self, word: int, before: int) -> int:
        """The first entry that an arming is for: the first that the program had not seen. Whatever the program has put
        there, it is not behind the newest.
        """
        behind = (self.published - word) & _LOW_32
        if behind & _SIGN_32:  # it saw entries that were purged before the arming was noticed
            return before
        return self.published - behind

    def _raise_event(self, before: int) -> None:
        """Raises the event that the entries from ``before`` on are due."""
        due = 0
        if self.armed & ARMED_ANY:
            due = self.published - max(self.any_from, before)
        if due == 0 and self.armed & ARMED_SOLICITED and self.last_solicited > max(self.solicited_from, before):
            due = self.new_solicited
        if due > 0:
            self._event_is_due(due)

    def _see_head(self) -> None:
        """What the program has taken out, where it polls."""
        if self.mapping == 0 or self.offends:
            return
        ring = self.ring
        head = load_acquire64(self.mapping + CQ_HEAD)
        if ring.head <= head <= ring.tail:
            ring.head = head
        elif head > ring.tail or not self.flags & CQ_IGNORE_OVERRUN:
            self.offends = True
            self.port.offend(self, f"completion queue {self.handle}: the index of what was polled is out of range")

    def _forget_reason(self) -> None:
        """A program that polls shared memory takes no words away: so many are kept as there are entries."""
        self.reasons.pop(next(iter(self.reasons)))

    def reason(self, index: int) -> str:
        """The words of the entry with this index of the ring, also where the program has taken it out; "" for none."""
        return self.reasons.get(index, "")

    def ack(self, count: int) -> None:
        """Acknowledges events (ibv_ack_cq_events(3)).

        :raises PyverbsRDMAError: EINVAL for more than were read
        """
        if count < 0 or self.events_acked + count > self.events_read:
            raise PyverbsRDMAError(
                f"{count} events acknowledged on completion queue {self.handle}: {self.events_read} were read and "
                f"{self.events_acked} of them acknowledged already",
                errno.EINVAL,
            )
        self.events_acked += count

    def close(self) -> None:
        """Ends the queue (ibv_destroy_cq(3)). The caller has waited for the acknowledgements.

        :raises PyverbsRDMAError: EBUSY while a QP or SRQ uses it
        """
        if self.closed:
            return
        if self.users:
            raise PyverbsRDMAError(
                f"completion queue {self.handle} is used by {self.users} QP or SRQ queues", errno.EBUSY
            )
        self.closed = True
        self.unshare()
        self.late.clear()
        self.event_due = 0
        if self.channel is not None:
            self.channel.forget(self)
            self.channel.users -= 1
            self.channel = None
        self.port.leave("completion queue")


def rounded(cqe: int, options: Options) -> int:
    """The size that a queue gets when ``cqe`` entries are asked for."""
    if options.cqe_rounding == "pow2":
        return min((1 << cqe.bit_length()) - 1, options.max_cqe)  # 10 to 15, as rxe
    return cqe


def complete(
    cq: CompletionQueue, counter: "CompCntr | None", payload: int, listed: bool, solicited: bool, wr_id: int,
    status: int, opcode: int, qp_num: int, byte_len: int, imm: int, wc_flags: int, src_qp: int, frees: int,
    reason: str | None,
) -> None:  # fmt: skip
    """Retires one work request: first the counter, then the completion queue.

    :param counter: attached to this QP and operation, or None
    :param payload: bytes that a BYTES counter counts
    :param listed: whether success makes an entry (signaled); an error always does
    :param wc_flags: ``IBV_WC_*`` flags, and a datagram's ``WC_SL_*``
    :param frees: what is free once the entry has been polled (``rings.CQ_FREES``)
    """
    if cq.port.plan is not None:
        changed = cq.port.plan.on_retire(wr_id, status, opcode, qp_num)
        if changed is not None:
            status, reason = changed
    if counter is not None:
        counter.record(status, payload)
    if listed or status != WC_SUCCESS:
        cq.push(wr_id, status, opcode, qp_num, byte_len, imm, wc_flags, src_qp, solicited, frees, reason)
