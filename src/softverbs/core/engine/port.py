# SPDX-License-Identifier: MIT
"""The port: everything that comes from the link, goes to it, or waits for time.

All progress of the device happens in ``progress(now)``: frames are taken from the link, checked, and given to their
queue pairs; queue pairs that have something to do write frames; the frames go to the link, or back to this port.
Nothing a peer sends is believed before ``_on_frame`` has checked it; what is wrong is dropped and counted by cause.
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
from softverbs.core.engine.groups import Groups
from softverbs.core.wire.gid import GidTable, address_of, is_multicast

if not cython.compiled:
    from softverbs.core.base.constants import EVENT_PORT_ACTIVE, EVENT_PORT_ERR, QPS_ERR, QPS_RTR
    from softverbs.core.base.host import Host
    from softverbs.core.memory.far import Far
    from softverbs.core.memory.regions import Regions
    from softverbs.core.queues.completion import CompletionQueue
    from softverbs.core.queues.counters import CompCntr
    from softverbs.core.queues.marks import LINE, Marks
    from softverbs.core.queues.rings import Ring
    from softverbs.core.queues.srq import SharedReceiveQueue
    from softverbs.core.transport.address import AddressVector, pace_of
    from softverbs.core.transport.qp import QueuePair
    from softverbs.core.wire.egress import ICRC_SIZE, Egress, Path
    from softverbs.core.wire.headers import bth_dest_qpn, bth_opcode, bth_pad, bth_pkey, bth_version
    from softverbs.core.wire.icrc import IcrcPath
    from softverbs.core.wire.opcodes import (
        BTH_LENGTH,
        EXPLAIN,
        FIRST,
        ONLY,
        PAYLOAD,
        RC,
        READ,
        REQUEST,
        RESPONSE,
        SEND,
        TRANSPORT_BITS,
        UD,
        WRITE,
        XRC,
        header_length,
    )
    from softverbs.core.wire.opcodes import flags as opcode_flags
    from softverbs.core.wire.peer import Peer

# Why a frame was dropped, and the words that ``stats`` has for it.
DROP_SHORT = 0
DROP_VERSION = 1
DROP_OPCODE = 2
DROP_TRANSPORT = 3
DROP_PKEY = 4
DROP_UNKNOWN_QP = 5
DROP_MALFORMED = 6
DROP_ICRC = 7
DROP_SOURCE = 8
DROP_QP_STATE = 9
DROP_GROUP = 10
DROP_PORT_DOWN = 11
_DROPS = (
    "short", "version", "opcode", "transport", "pkey", "unknown_qp", "malformed", "icrc", "source", "qp_state",
    "group", "port_down",
)  # fmt: skip

FIRST_QP = 16  # 0 and 1 are for management (IBA 3.5.1); some room above them
INDEX_BITS = 0xFFFF
QPN_BITS = 0xFFFFFF
GROUP_QP = 0xFFFFFF  # the destination of a multicast datagram (IBA 10.5.2)
PKEY_BITS = 0x7FFF
MAX_ROUNDS = 64
#: How often local work may go before the link is looked at.
LOCAL_TURNS = 32
#: An application that polls again within this time polls without a pause, ns.
BUSY_NS = 20000
_LOW_32 = 0xFFFFFFFF
# What tells, of an opcode's flags, whether a packet goes on with the message of the one before it: these are the same.
_JOINS = REQUEST | RESPONSE | SEND | WRITE | READ | FIRST | ONLY
#: A server looks at the link at least so often, ns: ``serve``. While frames come, each time.
LINK_NS = 20000
#: How long after a frame more of them are expected, ns.
HEARD_NS = 1000000
#: Beside a payload of full MTU, bytes: BTH, XRCETH, RETH, immediate data, ICRC.
ROOM_FOR_HEADERS = 40


class Port(Host):
    """The one port of a device."""

    def __init__(
        self, link: Any, options: Options, lock: Any, clock: Callable[[], int], wake: Callable[[], None], seed: int = 0
    ) -> None:
        """
        :param link: what carries the frames (``links.base.Link``)
        :param options: of the device
        :param lock: reentrant; every entry takes it
        :param clock: the time, ns
        :param wake: called when there is work and somebody sleeps
        :param seed: where keys and numbers of queue pairs and SRQs begin: 80 bits that peers should not be able to
            guess. With a small one the numbers are small
        """
        Host.__init__(self, options, lock, clock)
        self.link = link
        self.far = self.copies = Far()
        #: Send queues whose slots are free when a completion is polled, by number; 0 is none.
        self.numbered: list[Ring | None] = [None]
        self.free_numbers: deque[int] = deque()
        self.gid_table = GidTable(link.gids, options.gid_table)
        self.wake = wake
        #: How many wait for the link and for ``wake``, and whether that was called since somebody answered to it.
        self.sleepers = 0
        self.rung = False
        self.regions = Regions(options.max_mr, seed & 0xFF, seed >> 32 & 0x7FFFFF)
        self.srq_seed = seed >> 56 & 0xFFFFFF
        self.egress = Egress()
        self.flushed = 0
        self.table: list[QueuePair | None] = [None] * FIRST_QP
        self.free_qps: deque[int] = deque()
        self.qp_tag = seed & 0xFF
        #: What is added to the tag and the place of a queue pair in the table to make its number.
        self.qp_base = seed >> 8 & 0xFFFFFF
        #: The queue pairs that there are, oldest first, and those of them that wait for time.
        self.live: dict[QueuePair, None] = {}
        self.timed: list[QueuePair] = []
        #: Where programs in other processes mark what they have posted to.
        self.programs: dict[Marks, None] = {}
        # Queue pairs that have something to do: a chain, which costs no memory.
        self.first_ready: QueuePair | None = None
        self.last_ready: QueuePair | None = None
        self.timer_due = 0
        self.counter_due = 0
        self.late_counters: dict[Any, None] = {}
        self.overrun: list[CompletionQueue] = []
        self.events: deque[tuple[int, object]] = deque()
        self.on_event: Callable[[int, object], None] | None = None
        #: Whose bytes are to be placed in far memory, and the flags that the next packet of the message has.
        self.placing: QueuePair | None = None
        self.placing_kind = 0
        self.local_turns = 0
        self.drops = [0] * 12
        self.groups = Groups(link, self.report)
        self.up = True
        #: Whether the link would not take the last burst.
        self.refused = False
        self.received = 0
        self.bytes_received = 0
        self.failure: str | None = None
        #: How often an application has made progress by itself.
        self.drives = 0
        self.last_drive = 0
        #: When ``serve`` last looked at the link, and when something came from there.
        self.last_look = 0
        self.last_heard = 0
        #: How often a queue of a program was looked at.
        self.looks = 0
        self.log: Callable[[str], None] | None = None
        self.active_mtu = largest_mtu(link.mtu)

    # -- progress

    def progress(self, now: int) -> int:
        """Does everything that can be done now; how much was done (0: nothing).

        :param now: the time, ns, never less than before
        """
        self.now = now
        if self.plan is not None:
            self.plan.run(now)
        work = self._pump() + self._take_in(now)
        if self.first_ready is not None:
            work += self._pump()
        return work

    def _take_in(self, now: int) -> int:
        """What arrives and what is due, without what follows from it; how many bursts came."""
        received: int = self.link.receive(now, self)
        if self.timer_due != 0 and now >= self.timer_due:
            self._run_timers()
        if self.counter_due != 0 and now >= self.counter_due:
            self._publish_counters()
        return received

    def drive(self) -> None:
        """Progress for an application that polls: local work first, since it needs no system call.

        Where it polls without a pause, answers to what has arrived wait for the next poll: the application's own
        answer, if it posts one, then goes first, and the ACK with it. ``catch_up`` sends them before a poll returns
        something, since then the application may do other things.
        """
        if self.failure is not None:
            raise PyverbsRDMAError(self.failure, errno.EIO)
        self.drives += 1
        self.now = self.clock()
        if self.plan is not None:
            self.plan.run(self.now)
        busy = self.now - self.last_drive < BUSY_NS
        self.last_drive = self.now
        if self.first_ready is not None and self._pump() and 0 < self.local_turns < LOCAL_TURNS:
            return
        self.local_turns = 0
        self._take_in(self.now)
        if not busy:
            self.catch_up()

    def catch_up(self) -> None:
        """Answers what has been received, where ``drive`` has left it for the next poll."""
        if self.first_ready is not None:
            self._pump()

    def deadline(self) -> int:
        """When there is something to do if nothing arrives, ns; ``now`` for at once, 0 for never."""
        if self.first_ready is not None or self.flushed < self.egress.bursts or self.overrun:
            return self.now
        due = self.timer_due
        if self.counter_due != 0 and (due == 0 or self.counter_due < due):
            due = self.counter_due
        if self.plan is not None:
            planned = self.plan.due
            if planned != 0 and (due == 0 or planned < due):
                due = planned
        other = self.link.deadline()
        if other is not None:
            if other <= self.now:
                return self.now  # a link may say 0 for at once
            if due == 0 or other < due:
                due = other
        return due

    def _pump(self) -> int:
        """Lets queue pairs write frames and hands these over, until nobody has anything to say."""
        work = 0
        for _ in range(MAX_ROUNDS):
            if self.overrun:
                self._stop_overrun_queues()
            if self.first_ready is None and self.flushed == self.egress.bursts:
                break
            self._pump_ready()
            work += self.egress.bursts
            if not self._flush():
                break
        return work

    def _pump_ready(self) -> None:
        """Lets every queue pair that is ready now write its frames."""
        qp = self.first_ready
        self.first_ready = None
        self.last_ready = None
        while qp is not None:
            following = qp.next_ready
            qp.next_ready = None
            qp.scheduled = False
            if not qp.closed:
                if qp.pump(self.egress, self.now):
                    self.schedule(qp)
                qp.note_change()
                self._note_deadline(qp)
            qp = following

    def _flush(self) -> bool:
        """Hands bursts over; False where the link cannot take more now."""
        try:
            return self._hand_over()
        finally:
            self._land()

    def _hand_over(self) -> bool:
        egress = self.egress
        while self.flushed < egress.bursts:
            index = self.flushed
            path = egress.paths[index]
            address = egress.address + egress.offsets[index]
            if not self.up:
                self.drops[DROP_PORT_DOWN] += (egress.lengths[index] + egress.segments[index] - 1) // egress.segments[
                    index
                ]
            elif path.local:
                self.local_turns += 1
                self._deliver_locally(path.peer, address, egress.lengths[index], egress.segments[index])
            elif not self.link.send(self.now, path.route, address, egress.lengths[index], egress.segments[index]):
                egress.open = False
                self.refused = True
                return False
            elif path.group:
                self._deliver_locally(path.peer, address, egress.lengths[index], egress.segments[index])
            self.flushed += 1
            if self.plan is not None and self.up:
                segment = egress.segments[index]
                self.plan.on_sent((egress.lengths[index] + segment - 1) // segment)
        self.flushed = 0
        self.refused = False
        egress.reset()
        return True

    def _deliver_locally(self, peer: Peer, address: int, length: int, segment: int) -> None:
        while length > 0:
            size = segment if segment < length else length
            self._on_frame(peer, address, size, 0)
            address += size
            length -= size

    # -- from the link

    def peer(self, source_gid: bytes, source_port: int, sgid_index: int, dgid: "bytes | None" = None) -> Peer:
        """Who a link has received from; the link keeps it for ``receive``.

        :param source_gid: where the frames come from, 16 bytes
        :param source_port: their UDP source port
        :param sgid_index: the own GID that they came to
        :param dgid: the multicast GID that they came to instead, or None
        """
        link = self.link
        destination = link.gids[sgid_index] if dgid is None else dgid
        icrc = IcrcPath(source_gid, destination, source_port)
        known, step = link.identification_known, link.identification_step
        return Peer(icrc, source_gid, destination, known, step, dgid is not None)

    def receive(self, peer: Peer, address: int, length: int, segment: int) -> None:
        """Frames from a peer: ``length`` bytes at ``address``, each frame ``segment`` long but the last, which may be
        shorter. The memory may be written to.
        """
        if segment <= 0:
            self.drops[DROP_SHORT] += 1
            return
        identification = 0
        try:
            while length > 0:
                size = segment if segment < length else length
                if self.up:
                    self._on_frame(peer, address, size, identification)
                else:
                    self.drops[DROP_PORT_DOWN] += 1
                identification += peer.step
                address += size
                length -= size
        finally:
            self._land()

    def _on_frame(self, peer: Peer, frame: int, length: int, identification: int) -> None:
        """One frame; where ``peer`` is this port itself, there is no ICRC."""
        self.received += 1
        self.bytes_received += length
        if peer.group:
            self._on_group_frame(peer, frame, length, identification)
        else:
            qp = self._find(peer, frame, length, identification)
            if qp is not None:
                self._hand_to(qp, peer, frame, length)

    def _hand_to(self, qp: QueuePair, peer: Peer, frame: int, length: int) -> None:
        """A frame for a queue pair, and nothing is wrong with it."""
        opcode = bth_opcode(frame)
        flags = opcode_flags(opcode)
        if self.copies.count > 0 and (qp is not self.placing or flags & _JOINS != self.placing_kind):
            self._land()
        if qp.state == QPS_ERR:  # since what was to be placed could not be
            self._drop(DROP_QP_STATE)
        else:
            qp.on_packet(peer, opcode, flags, frame, length - ICRC_SIZE, self.now)
        if self.copies.count > 0:
            self.placing = qp
            self.placing_kind = flags & _JOINS & ~FIRST
        if self.plan is not None:
            self._land()
            self.plan.on_packet(qp)

    def _land(self) -> None:
        """Places what queue pairs have put in far memory: before the frames' memory is used again, and before anything
        happens but that the next packet of the same message is taken.
        """
        if self.copies.count > 0:
            qp = self.placing
            self.placing = None
            if not self.copies.land() and qp is not None:
                qp.on_unplaced(self.placing_kind & REQUEST != 0)

    def _is_sound(self, frame: int, length: int) -> int:
        """The drop's cause + 1 where the headers of a frame contradict themselves or this port, else 0."""
        if length < BTH_LENGTH + ICRC_SIZE or length & 3:
            return DROP_SHORT + 1
        if bth_version(frame) != 0:
            return DROP_VERSION + 1
        opcode = bth_opcode(frame)
        flags = opcode_flags(opcode)
        if flags == 0:
            return DROP_OPCODE + 1
        payload = length - ICRC_SIZE - header_length(opcode) - bth_pad(frame)
        if payload < 0 or (payload + bth_pad(frame) > 0 and not flags & PAYLOAD):
            return DROP_MALFORMED + 1
        if bth_pkey(frame) & PKEY_BITS != PKEY_BITS:
            return DROP_PKEY + 1
        return 0

    def _find(self, peer: Peer, frame: int, length: int, identification: int) -> "QueuePair | None":
        """The queue pair that a frame is for, if everything about the frame is right; else None, and it is counted."""
        fault = self._is_sound(frame, length)
        if fault:
            return self._drop(fault - 1)
        number = bth_dest_qpn(frame)
        index = self._place_of(number)
        if index >= len(self.table):
            return self._drop(DROP_UNKNOWN_QP)
        qp = self.table[index]
        if qp is None or qp.qp_num != number:
            return self._drop(DROP_UNKNOWN_QP)
        opcode = bth_opcode(frame)
        if opcode & TRANSPORT_BITS != qp.transport and (
            opcode != EXPLAIN or (qp.transport != RC and qp.transport != XRC)
        ):
            return self._drop(DROP_TRANSPORT)
        if qp.unwanted != 0 and opcode_flags(opcode) & qp.unwanted:
            return self._drop(DROP_TRANSPORT)
        if qp.state < QPS_RTR or qp.state == QPS_ERR:
            return self._drop(DROP_QP_STATE)
        if qp.transport != UD and not (
            peer.gid_high == qp.source_high
            and peer.gid_low == qp.source_low
            and peer.dgid_high == qp.local_high
            and peer.dgid_low == qp.local_low
        ):
            return self._drop(DROP_SOURCE)
        if peer.icrc is not None and peer.icrc.verify(frame, length, identification, peer.known) < 0:
            return self._drop(DROP_ICRC)
        return qp

    def _on_group_frame(self, peer: Peer, frame: int, length: int, identification: int) -> None:
        """A multicast datagram: every attached queue pair gets it (IBA 10.5.2.1)."""
        fault = self._is_sound(frame, length)
        if fault:
            self._drop(fault - 1)
            return
        self._land()
        opcode = bth_opcode(frame)
        members = self.groups.members.get(peer.dgid)
        if bth_dest_qpn(frame) != GROUP_QP or opcode & TRANSPORT_BITS != UD or not members:
            self._drop(DROP_GROUP)
            return
        if peer.icrc is not None and peer.icrc.verify(frame, length, identification, peer.known) < 0:
            self._drop(DROP_ICRC)
            return
        for qp in list(members):
            if qp.state >= QPS_RTR and qp.state != QPS_ERR:
                qp.on_packet(peer, opcode, opcode_flags(opcode), frame, length - ICRC_SIZE, self.now)
                if self.plan is not None:
                    self.plan.on_packet(qp)

    def _drop(self, cause: int) -> "QueuePair | None":
        self.drops[cause] += 1
        return None

    # -- what the objects of the device report (Host)

    def schedule(self, qp: QueuePair) -> None:
        """A queue pair has something to do."""
        pair: QueuePair = qp
        pair.note_change()
        if not pair.scheduled:
            pair.scheduled = True
            last = self.last_ready
            if last is None:
                self.first_ready = pair
            else:
                last.next_ready = pair
            self.last_ready = pair
        self._ring()

    def _ring(self) -> None:
        """Wakes who sleeps: what it sleeps for may have changed."""
        if self.sleepers > 0 and not self.rung:
            self.rung = True
            self.wake()

    def raise_event(self, event_type: int, element: object) -> None:
        """Queues an asynchronous event (ibv_get_async_event(3))."""
        if self.on_event is not None:
            self.on_event(event_type, element)
        else:
            self.events.append((event_type, element))

    def report(self, text: str) -> None:
        """Says in the device's log why something was refused."""
        if self.log is not None:
            self.log(text)

    def on_overrun(self, cq: CompletionQueue) -> None:
        """A completion queue has overrun: its QPs go to ERR when the present one has finished."""
        self.overrun.append(cq)

    def _stop_overrun_queues(self) -> None:
        queues = self.overrun
        self.overrun = []
        for qp in list(self.live):
            if qp.send_cq in queues or qp.recv_cq in queues or qp.responder.cq in queues:
                qp.fatal("its completion queue has overrun")

    def delay_counter(self, counter: Any) -> None:
        """A counter, or a completion queue, has something that becomes visible later."""
        self.late_counters[counter] = None
        self.counter_due = self.now if self.now > 0 else 1
        self._ring()

    def _publish_counters(self) -> None:
        self.counter_due = 0
        kept: dict[Any, None] = {}
        for counter in self.late_counters:
            due = counter.publish(self.now)
            if due >= 0:
                kept[counter] = None
                if self.counter_due == 0 or due < self.counter_due:
                    self.counter_due = due
        self.late_counters = kept

    def _note_deadline(self, qp: QueuePair) -> None:
        due = qp.next_deadline()
        if due != 0:
            if self.timer_due == 0 or due < self.timer_due:
                self.timer_due = due
            if not qp.timed:
                qp.timed = True
                self.timed.append(qp)

    def _run_timers(self) -> None:
        """Lets those queue pairs go on whose time has come. Those that wait for nothing are forgotten."""
        self.timer_due = 0
        waiting = self.timed
        self.timed = []
        index = 0
        try:
            while index < len(waiting):
                qp: QueuePair = waiting[index]
                index += 1
                qp.timed = False
                if not qp.closed:
                    due = qp.next_deadline()
                    if due != 0 and self.now >= due:
                        qp.on_timer(self.now)
                    self._note_deadline(qp)
        finally:
            if index < len(waiting):  # it has failed for one of them
                self.timed += waiting[index:]
                self.timer_due = self.now

    # -- queues in memory that is shared with programs in other processes

    def enter_program(self, marks: Marks) -> None:
        """A program shares queues from now on, and marks what it posts to."""
        self.programs[marks] = None

    def leave_program(self, marks: Marks) -> None:
        """A program is gone. Twice does nothing."""
        self.programs.pop(marks, None)

    def serve(self, looks: int, link: bool) -> int:
        """A turn of a server: takes what programs have posted, does what follows, and tells them; how much was done.

        What needs no link is shown before the link is asked, which is a system call: that is done once in a while where
        nothing is heard from there. The lock is held.

        :param looks: how often to look at the programs' queues until something is there
        :param link: whether the link is known to have something
        """
        self.publish_shared()
        work = 0
        while looks > 0 and work == 0:
            looks -= 1
            work = self._take_posted()
        self.now = self.clock()
        if self.plan is not None:
            self.plan.run(self.now)
            self.publish_shared()  # completions that it has kept back until now
        if self.first_ready is not None or self.flushed < self.egress.bursts or self.overrun:
            work += self._pump()
            self.publish_shared()
        if link or self.now - self.last_look >= LINK_NS or self.now - self.last_heard < HEARD_NS:
            self.last_look = self.now
            if self.timer_due != 0 and self.now >= self.timer_due:
                work += 1  # a queue pair may be in error then: what was posted meanwhile is to be looked at again
            heard = self._take_in(self.now)
            if heard > 0:
                self.last_heard = self.now
                work += heard
            if self.first_ready is not None:
                work += self._pump()
            self.publish_shared()
        return work

    def take_shared(self) -> int:
        """Takes what programs have put in the memory that they share with the device; how many work requests.

        The lock is held. ``progress`` then sends them. The first thing is ``publish_shared``.
        """
        self.publish_shared()
        return self._take_posted()

    def _take_posted(self) -> int:
        taken = 0
        for program in self.programs:
            marks: Marks = program
            if marks.is_set():
                taken += self._take_marked(marks, 0)
        return taken

    def _take_marked(self, marks: Marks, first: int) -> int:
        """Takes what was posted to the queues that are marked in a line, and in the lines below it."""
        taken = 0
        found = marks.clear(first)
        number = first
        while found != 0:
            if found & 1:
                self.looks += 1
                try:
                    taken += self._take_from(marks.queues[number])
                    taken += self._take_marked(marks, LINE * (number + 1))
                except BaseException:  # what was not looked at still is to be
                    marks.restore(number, found)
                    raise
            found >>= 1
            number += 1
        return taken

    def _take_from(self, queue: Any) -> int:
        if isinstance(queue, QueuePair):
            qp: QueuePair = queue
            return qp.take_shared()
        if isinstance(queue, SharedReceiveQueue):
            srq: SharedReceiveQueue = queue
            return srq.take_shared()
        return 0  # it has gone

    def publish_shared(self) -> None:
        """Tells programs what has happened: what counters say, which slots are free again, and then what has completed.

        In this order, so that a program which has seen a completion finds it counted, and the place of its work request
        free.
        """
        if self.unplaced_counters:
            for element in self.unplaced_counters:
                counter: CompCntr = element
                counter.place()
            self.unplaced_counters.clear()
        if self.changed_qps:
            for pair in self.changed_qps:
                qp: QueuePair = pair
                qp.publish_shared()
            self.changed_qps.clear()
        if self.changed_srqs:
            for queue in self.changed_srqs:
                srq: SharedReceiveQueue = queue
                srq.publish_shared()
            self.changed_srqs.clear()
        if self.changed_cqs:
            for queue in self.changed_cqs:
                cq: CompletionQueue = queue
                cq.publish_shared()
            self.changed_cqs.clear()

    # -- control

    def enter_qp(self, qp: QueuePair, number: int) -> int:
        """Gives a new queue pair its number: a slot of the table, under a tag that changes with each use.

        :param number: a number below 16 that it shall have, or -1
        """
        if number >= 0:
            return self._enter_special_qp(qp, number)
        self.enter("queue pair", self.options.max_qp)
        if self.free_qps:
            index = self.free_qps.popleft()
        else:
            index = len(self.table)  # of 16 bits, since max_qp is limited
            self.table.append(None)
        found = 0
        while not FIRST_QP <= found < GROUP_QP:
            self.qp_tag = (self.qp_tag + 1) & 0xFF
            found = ((self.qp_tag << 16 | index) + self.qp_base) & QPN_BITS
        self.table[index] = qp
        self.live[qp] = None
        return found

    def _enter_special_qp(self, qp: QueuePair, number: int) -> int:
        if number >= FIRST_QP or self.table[number] is not None:
            raise PyverbsRDMAError(f"QP {number} is in use, or not for management", errno.EBUSY)
        self.enter("queue pair", self.options.max_qp)
        self.table[number] = qp
        self.live[qp] = None
        return number

    def enter_ring(self, ring: Any) -> None:
        """Gives the ring of a send queue the number that its completion queue entries name it by."""
        queue: Ring = ring
        if self.free_numbers:
            queue.number = self.free_numbers.popleft()
            self.numbered[queue.number] = queue
        else:
            queue.number = len(self.numbered)
            self.numbered.append(queue)

    def remove_ring(self, ring: Any) -> None:
        """A send queue is gone, and no completion queue entry names it."""
        queue: Ring = ring
        if queue.number:
            self.numbered[queue.number] = None
            self.free_numbers.append(queue.number)
            queue.number = 0

    def free_slots(self, frees: int) -> None:
        """A completion queue entry has been polled, whose ``CQ_FREES`` is not 0."""
        ring: Ring | None = self.numbered[frees >> 32]
        if ring is not None:
            ring.free_to(frees & _LOW_32)

    def remove_qp(self, qp: QueuePair) -> None:
        """A queue pair is gone: its number finds nothing."""
        index = self._place_of(qp.qp_num)
        self.table[index] = None
        if index >= FIRST_QP:
            self.free_qps.append(index)
        del self.live[qp]
        if self.placing is qp:
            self.placing = None
        self.leave("queue pair")

    def _place_of(self, number: int) -> int:
        """Where in the table the queue pair of a number is, if there is one; it may be beyond the table's end."""
        return number if number < FIRST_QP else (number - self.qp_base) & INDEX_BITS

    def qp(self, number: int) -> "QueuePair | None":
        """The queue pair that has this number, or None."""
        index = self._place_of(number)
        if index >= len(self.table):
            return None
        found: QueuePair | None = self.table[index]
        return found if found is not None and found.qp_num == number else None

    def path_to(self, vector: AddressVector) -> Path:
        """The path to an address vector.

        :raises PyverbsRDMAError: EINVAL where it is not an address that this port can send to
        """
        link = self.link
        if not vector.is_global:
            raise PyverbsRDMAError("ah_attr.is_global=0: RoCE addresses peers by GID and needs a GRH", errno.EINVAL)
        if vector.port_num != 1:
            raise PyverbsRDMAError(f"ah_attr.port_num={vector.port_num}: the device has port 1", errno.EINVAL)
        home, dgid = self.gid_table.resolve(vector.sgid_index, vector.dgid)
        source = link.gids[home]
        try:
            route = link.route(home, dgid, vector.flow_label, vector.traffic_class, vector.hop_limit)
        except OSError as error:
            raise PyverbsRDMAError(f"no route to {address_of(dgid)}: {error}", errno.EINVAL) from error
        group = is_multicast(dgid)
        local = dgid in link.gids and not link.loops_back
        nearby = link.one_host or dgid in link.gids or address_of(dgid).is_loopback
        icrc = IcrcPath(source, dgid, link.source_ports[home])
        peer = Peer(None, source, dgid, True, 0, group) if local or group else None
        path = Path(route, icrc, local, nearby, link.identification_step, group, peer)
        path.pace = pace_of(vector.static_rate)
        return path

    def attach_mcast(self, qp: QueuePair, gid: bytes) -> None:
        """Adds a queue pair to a multicast group; PyverbsRDMAError as ``Groups.add``."""
        self.groups.add(qp, gid)

    def detach_mcast(self, qp: QueuePair, gid: bytes) -> None:
        """Takes a queue pair out of a multicast group."""
        self.groups.remove(qp, gid)

    def set_state(self, up: bool) -> None:
        """Takes the port down or up, as an administrator does: PORT_ERR or PORT_ACTIVE.

        While it is down nothing leaves and nothing that arrives is looked at; timers go on.
        """
        if up != self.up:
            self.up = up
            self.raise_event(EVENT_PORT_ACTIVE if up else EVENT_PORT_ERR, self)

    def fail(self, reason: str) -> None:
        """Ends the port: from now on every poll raises ``reason``."""
        self.failure = reason

    def stats(self) -> dict[str, int]:
        """Counts since the start: frames in and out, drops by cause; of live QPs also duplicates, retransmissions and
        RNR NAKs.
        """
        result = {
            "frames_sent": self.egress.frames,
            "frames_received": self.received,
            "bytes_received": self.bytes_received,
            "duplicates": sum([qp.responder.duplicates for qp in self.live]),
            "completions_lost": self.completions_lost,
            "counts_lost": self.counts_lost,
            "dropped_qkey": self.qkey_violations,
            "dropped_no_receive": self.no_receive,
            "retransmissions": sum([qp.requester.retransmissions for qp in self.live]),
            "rnr_naks_received": sum([qp.requester.rnr_naks for qp in self.live]),
            "rnr_naks_sent": sum([qp.responder.rnr_naks for qp in self.live]),
        }
        for index in range(len(_DROPS)):
            result["dropped_" + _DROPS[index]] = self.drops[index]
        return result


def largest_mtu(payload: int) -> int:
    """``enum ibv_mtu`` of the largest RoCE MTU whose frames fit ``payload`` bytes of UDP."""
    mtu = 5
    while mtu > 1 and (128 << mtu) + ROOM_FOR_HEADERS > payload:
        mtu -= 1
    return mtu
