# SPDX-License-Identifier: MIT
"""Receive queues: that of one queue pair, the shared one of many (ibv_create_srq(3)), and XRC domains."""

import errno
from typing import Any

try:
    import cython
except ImportError:
    from softverbs import _cython as cython
from softverbs.core.base.errors import PyverbsRDMAError
from softverbs.core.base.limits import MAX_MESSAGE_SIZE, MAX_SGE

if not cython.compiled:
    from softverbs.core.base.constants import EVENT_SRQ_LIMIT_REACHED
    from softverbs.core.base.host import Host
    from softverbs.core.memory.raw import copy, load32, store32, store64
    from softverbs.core.memory.regions import ProtectionDomain
    from softverbs.core.queues.completion import CompletionQueue
    from softverbs.core.queues.marks import Marks
    from softverbs.core.queues.rings import (
        QP_RQ_TAIL,
        RING_HEADER,
        RQ_LENGTH,
        RQ_NUM_SGE,
        RQ_SGES,
        RQ_WR_ID,
        SGE_LENGTH,
        SGE_LKEY,
        SGE_SIZE,
        Ring,
        WorkQueue,
        check_mapping,
    )
    from softverbs.core.queues.wr import SGE, RecvWR


def put_elements(at: int, elements: list[SGE], limit: int, name: str) -> int:
    """Writes a scatter/gather list to ``at``; the bytes that it holds. EINVAL past ``limit`` elements."""
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


def elements_length(at: int, count: int) -> int:
    """The bytes that the scatter/gather list at ``at`` holds, which has ``count`` elements."""
    length = 0
    while count > 0:
        length += load32(at + SGE_LENGTH)
        at += SGE_SIZE
        count -= 1
    return length


class ReceiveQueue(WorkQueue):
    """Receive work requests that wait for messages, oldest first."""

    def __init__(self, max_wr: int, max_sge: int) -> None:
        """
        :param max_wr: most work requests
        :param max_sge: most scatter/gather elements of each
        """
        WorkQueue.__init__(self, max_wr, RQ_SGES + max_sge * SGE_SIZE, QP_RQ_TAIL)
        self.max_sge = max_sge
        #: Whether a message takes its work request out at its start: several queue pairs use it.
        self.shared = False

    def put(self, wr: RecvWR) -> None:
        """Appends one work request.

        :raises PyverbsRDMAError: ENOMEM where the queue is full, EINVAL for too many elements
        """
        ring = self.ring
        if ring.tail - ring.head >= self.max_wr:
            raise PyverbsRDMAError(f"the receive queue is full: its max_wr is {self.max_wr}", errno.ENOMEM)
        slot = ring.slot(ring.tail)
        length = put_elements(slot + RQ_SGES, wr._sg, self.max_sge, "max_recv_sge")
        store64(slot + RQ_WR_ID, wr._wr_id)
        store32(slot + RQ_NUM_SGE, len(wr._sg))
        store32(slot + RQ_LENGTH, min(length, MAX_MESSAGE_SIZE))
        ring.tail += 1

    def taken(self) -> None:
        """A message has taken the oldest work request of a shared queue."""

    # -- a program in another process posts: as in the send queue

    def skip(self, count: int) -> None:
        """Drops work requests that wait, and everything else that is posted."""
        self.ring.tail += count
        self.ring.head = self.ring.tail
        self.publish()

    def take(self, count: int) -> bool:
        """Appends work requests that wait, as many as ``waiting`` has found; False where one has too many elements."""
        ring = self.ring
        while count > 0:
            slot = ring.slot(ring.tail)
            source = ring.in_memory(self.slots, ring.tail)
            copy(slot, source, RQ_SGES)
            elements = load32(slot + RQ_NUM_SGE)
            if elements > self.max_sge:
                return False
            copy(slot + RQ_SGES, source + RQ_SGES, elements * SGE_SIZE)
            store32(slot + RQ_LENGTH, min(elements_length(slot + RQ_SGES, elements), MAX_MESSAGE_SIZE))
            ring.tail += 1
            count -= 1
        self.publish_taken()
        return True

    def refill(self) -> bool:
        """Takes what a program has posted since the device last looked; whether there is a work request now.

        For a message that finds none: its sender may know of a receive that was posted meanwhile. What is wrong there
        is noticed when the device looks the next time.
        """
        if self.mapping != 0:
            waiting = self.waiting()
            if waiting > 0:
                self.take(waiting)
        return self.ring.head != self.ring.tail


class XrcDomain:
    """An XRC domain (ibv_open_xrcd(3)): receive queues and target queue pairs that work together."""

    def __init__(self, port: Host, context_id: object) -> None:
        """
        :param port: the port that it belongs to
        :param context_id: the same for all objects of one context
        :raises PyverbsRDMAError: ENOMEM past ``max_xrcd``
        """
        self.port = port
        self.context_id = context_id
        self.handle = port.enter("XRC domain", port.options.max_xrcd)
        self.users = 0
        self.closed = False

    def close(self) -> None:
        """Ends the domain (ibv_close_xrcd(3)).

        :raises PyverbsRDMAError: EBUSY while an SRQ or a queue pair uses it
        """
        if self.closed:
            return
        if self.users:
            raise PyverbsRDMAError(f"XRC domain {self.handle} is used by {self.users} SRQs or queue pairs", errno.EBUSY)
        self.closed = True
        self.port.leave("XRC domain")


class SharedReceiveQueue(ReceiveQueue):
    """A shared receive queue, for queue pairs of any context or, with an XRC domain, for XRC targets."""

    def __init__(
        self,
        port: Host,
        context_id: object,
        pd: ProtectionDomain,
        max_wr: int,
        max_sge: int,
        limit: int = 0,
        xrcd: "XrcDomain | None" = None,
        cq: "CompletionQueue | None" = None,
    ) -> None:
        """
        :param port: the port that it belongs to
        :param context_id: the same for all objects of one context
        :param pd: protection domain of the memory that it receives into
        :param max_wr: most work requests
        :param max_sge: most scatter/gather elements of each
        :param limit: ignored at creation (ibv_create_srq(3))
        :param xrcd: XRC domain; makes it an XRC SRQ
        :param cq: of an XRC SRQ: where its receives complete
        :raises PyverbsRDMAError: EINVAL where a value is out of range, ENOMEM past ``max_srq``
        """
        options = port.options
        _check_size(max_wr, options.max_srq_wr)
        if not 0 <= max_sge <= MAX_SGE:
            raise PyverbsRDMAError(f"max_sge={max_sge} is out of range: 0 to {MAX_SGE}", errno.EINVAL)
        if (xrcd is None) != (cq is None):
            raise PyverbsRDMAError("an XRC SRQ needs both an XRC domain and a completion queue", errno.EINVAL)
        ReceiveQueue.__init__(self, max_wr, max_sge)
        self.shared = True
        self.port = port
        self.context_id = context_id
        self.pd = pd
        self.xrcd = xrcd
        self.cq = cq
        self.limit = 0
        self.users = 0
        self.user: Any = None
        self.closed = False
        #: As of a queue pair: the memory's owner, the program's marks, and whether it is to be told something.
        self.holder: object = None
        self.marks: Marks | None = None
        self.mark = 0
        self.changed = False
        self.srq_num = port.enter_srq(self)
        self.handle = self.srq_num
        pd.use(1)
        if xrcd is not None:
            xrcd.users += 1
        if cq is not None:
            cq.users += 1

    def post_recv(self, wr: "RecvWR | None") -> None:
        """Posts a list of receive work requests (ibv_post_srq_recv(3)).

        Those before the one that is refused are posted; the exception's ``bad_wr`` is the one.

        :raises PyverbsRDMAError: ENOMEM where the queue is full, EINVAL for too many elements
        """
        self.port.lock.acquire()
        try:
            while wr is not None:
                try:
                    if self.port.plan is not None:
                        self.port.plan.on_post(self, wr, "post_srq_recv")
                    self.put(wr)
                except PyverbsRDMAError as error:
                    error.bad_wr = wr
                    raise
                wr = wr._next
        finally:
            self.port.lock.release()

    def mapped_size(self) -> int:
        """Bytes of the memory that ``share`` wants: header and slots (``rings``)."""
        return RING_HEADER + self.ring.block.size

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
        self.map(address, address + RING_HEADER)

    def unshare(self) -> None:
        """The memory that is shared with a program is not touched any more."""
        if self.mapping:
            self.map(0, 0)
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
        self.port.offend(self, f"SRQ {self.handle:#x}: {reason}")

    def publish_shared(self) -> None:
        """Tells the program which slots are free again."""
        self.changed = False
        if self.mapping:
            self.publish()

    def take_shared(self) -> int:
        """Takes what the program has posted; how many work requests."""
        waiting = self.waiting()
        if waiting == 0:
            return 0
        if waiting < 0:
            self._offend("the index of its receives is out of range")
            return 0
        if not self.take(waiting):
            self._offend(f"more scatter/gather elements than max_sge, {self.max_sge}")
        return waiting

    def taken(self) -> None:
        """Raises SRQ_LIMIT_REACHED, once, where fewer work requests than the armed limit are left (IBA 10.2.9.2)."""
        if self.mapping != 0 and not self.changed:
            self.changed = True
            self.port.changed_srqs.append(self)
        if self.limit and self.ring.tail - self.ring.head < self.limit:
            self.limit = 0
            self.port.raise_event(EVENT_SRQ_LIMIT_REACHED, self)

    def modify(self, max_wr: "int | None", limit: "int | None") -> None:
        """Another size, or another limit to be armed (ibv_modify_srq(3)); all or nothing.

        :param max_wr: most work requests; None: as before
        :param limit: an event is raised when fewer are left; 0 for none; None: as before
        :raises PyverbsRDMAError: EINVAL where a value is out of range
        """
        if self.mapping:
            self.take_shared()
        if max_wr is not None:
            _check_size(max_wr, self.port.options.max_srq_wr)
            if max_wr < self.ring.count():
                raise PyverbsRDMAError(f"max_wr={max_wr}: {self.ring.count()} receives are posted", errno.EINVAL)
        most = self.max_wr if max_wr is None else max_wr
        if limit is not None and not 0 <= limit <= most:
            raise PyverbsRDMAError(f"srq_limit={limit} is out of range: 0 to max_wr, {most}", errno.EINVAL)
        if limit is None and self.limit > most:
            raise PyverbsRDMAError(f"max_wr={max_wr} is below the limit that is armed, {self.limit}", errno.EINVAL)
        if max_wr is not None:
            self._resize(max_wr)
        if limit is not None:
            self.limit = limit
            self.taken()

    def _resize(self, max_wr: int) -> None:
        self.unshare()
        old = self.ring
        ring = Ring(max_wr, old.stride)
        for index in range(old.head, old.tail):
            copy(ring.slot(ring.tail), old.slot(index), old.stride)
            ring.tail += 1
        self.ring = ring
        self.max_wr = max_wr

    def rings(self) -> list[Ring]:
        """The memory of the queue."""
        return [self.ring]

    def query(self) -> tuple[int, int, int]:
        """``max_wr``, ``max_sge`` and the limit that is armed (ibv_query_srq(3))."""
        return self.max_wr, self.max_sge, self.limit

    def close(self) -> None:
        """Ends the queue (ibv_destroy_srq(3)); what is posted counts nowhere.

        :raises PyverbsRDMAError: EBUSY while a queue pair uses it
        """
        if self.closed:
            return
        if self.users:
            raise PyverbsRDMAError(f"SRQ {self.handle:#x} is used by {self.users} queue pairs", errno.EBUSY)
        self.closed = True
        self.unshare()
        self.port.remove_srq(self)
        self.pd.use(-1)
        if self.xrcd is not None:
            self.xrcd.users -= 1
        if self.cq is not None:
            self.cq.users -= 1


def _check_size(max_wr: int, most: int) -> None:
    if not 0 < max_wr <= most:
        raise PyverbsRDMAError(f"max_wr={max_wr} is out of range: 1 to {most}", errno.EINVAL)
