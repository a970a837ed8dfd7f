# SPDX-License-Identifier: MIT
"""What the objects of a device ask of the port they belong to. The port implements it; the layers below know this."""

import errno
from collections import deque
from collections.abc import Callable
from typing import Any

try:
    import cython
except ImportError:
    from softverbs import _cython as cython
from softverbs.core.base.errors import PyverbsRDMAError
from softverbs.core.base.limits import NUM_COMP_VECTORS, Options

if not cython.compiled:
    from softverbs.core.base.lock import Lock


class Host:
    """The base of the port: its options, its lock, its time, and what queues and counters report to it."""

    def __init__(self, options: Options, lock: "Lock | Any", clock: Callable[[], int]) -> None:
        """
        :param options: of the device
        :param lock: a reentrant lock that every entry of an application takes; compiled it must be a core Lock
        :param clock: the time, ns
        """
        self.options = options
        self.lock = lock
        self.clock = clock
        self.now = clock()
        self.num_comp_vectors = NUM_COMP_VECTORS
        self.active_mtu = 5
        self.regions: Any = None
        self.link: Any = None
        self.gid_table: Any = None
        self.counts: dict[str, int] = {}
        self.handles = 0
        #: The way to memory of other processes (``memory.far.Far``).
        self.far: Any = None
        #: Failure on demand, or None (docs/faults.md).
        self.plan: Any = None
        #: Address handles by handle; 0 is none.
        self.addresses: list[Any] = [None]
        self.free_addresses: deque[int] = deque()
        #: Shared receive queues by number.
        self.srqs: dict[int, Any] = {}
        self.srq_seed = 0
        #: Datagrams dropped since their Q_Key was wrong, and messages since no receive was posted.
        self.qkey_violations = 0
        self.no_receive = 0
        #: Completions that found their queue full.
        self.completions_lost = 0
        #: Of the queues in memory that is shared with programs, those whose program is to be told something.
        self.changed_qps: list[Any] = []
        self.changed_srqs: list[Any] = []
        self.changed_cqs: list[Any] = []
        #: Completion counters whose counts are to be stored in a program's memory; and how many cannot be any more.
        self.unplaced_counters: list[Any] = []
        self.counts_lost = 0
        #: Of the queues, those whose program has put there what cannot be, and what: whoever serves it takes them out.
        self.offenders: dict[Any, str] = {}

    def new_handle(self) -> int:
        """A number that no other object of the device has, or has had."""
        self.handles += 1
        return self.handles

    def enter(self, kind: str, limit: int) -> int:
        """Counts a new object in and gives it a handle.

        :param kind: what it is, for people
        :param limit: how many there may be
        :raises PyverbsRDMAError: ENOMEM where there are so many already
        """
        if self.counts.get(kind, 0) >= limit:
            raise PyverbsRDMAError(f"the device has {limit} {kind}s at most, and all are in use", errno.ENOMEM)
        self.counts[kind] = self.counts.get(kind, 0) + 1
        return self.new_handle()

    def leave(self, kind: str) -> None:
        """Counts an object out."""
        self.counts[kind] -= 1

    def enter_address(self, handle: Any) -> int:
        """Gives an address handle its place; ENOMEM past ``max_ah``."""
        self.enter("address handle", self.options.max_ah)
        if self.free_addresses:
            index = self.free_addresses.pop()
            self.addresses[index] = handle
        else:
            index = len(self.addresses)
            self.addresses.append(handle)
        return index

    def remove_address(self, handle: Any) -> None:
        """An address handle is gone. Its place is not given away soon, so that a late user is noticed."""
        self.addresses[handle.handle] = None
        self.free_addresses.appendleft(handle.handle)
        self.leave("address handle")

    def enter_ring(self, ring: Any) -> None:
        """Gives the ring of a send queue the number that its completion queue entries name it by."""
        raise NotImplementedError

    def remove_ring(self, ring: Any) -> None:
        """A send queue is gone, and no completion queue entry names it."""
        raise NotImplementedError

    def free_slots(self, frees: int) -> None:
        """A completion queue entry has been polled, whose ``CQ_FREES`` is not 0."""
        raise NotImplementedError

    def enter_srq(self, srq: Any) -> int:
        """Gives a shared receive queue its number, 24 bits, not 0; ENOMEM past ``max_srq``."""
        self.enter("SRQ", self.options.max_srq)
        number = (self.srq_seed + 1) & 0xFFFFFF or 1
        while number in self.srqs:
            number = (number + 1) & 0xFFFFFF or 1
        self.srq_seed = number
        self.srqs[number] = srq
        return number

    def remove_srq(self, srq: Any) -> None:
        """A shared receive queue is gone: its number finds nothing."""
        del self.srqs[srq.srq_num]
        self.leave("SRQ")

    def offend(self, element: Any, reason: str) -> None:
        """A program breaks the rules of the memory that it shares with the device."""
        self.offenders.setdefault(element, reason)

    def drive(self) -> None:
        """Makes progress on behalf of an application that polls. The lock is held."""
        raise NotImplementedError

    def catch_up(self) -> None:
        """Does what ``drive`` may have left for later, since something is returned to the application."""
        raise NotImplementedError

    def schedule(self, qp: Any) -> None:
        """A queue pair has something to do."""
        raise NotImplementedError

    def raise_event(self, event_type: int, element: object) -> None:
        """Queues an asynchronous event (ibv_get_async_event(3))."""
        raise NotImplementedError

    def report(self, text: str) -> None:
        """Says in the device's log why something was refused."""
        raise NotImplementedError

    def on_overrun(self, cq: Any) -> None:
        """A completion queue has overrun: its QPs go to ERR, soon."""
        raise NotImplementedError

    def delay_counter(self, counter: Any) -> None:
        """A counter has updates that become visible later."""
        raise NotImplementedError

    def path_to(self, vector: Any) -> Any:
        """The ``Path`` to an address vector; PyverbsRDMAError where there is none."""
        raise NotImplementedError

    def enter_qp(self, qp: Any, number: int) -> int:
        """Gives a new queue pair its number, ``number`` if it is not -1; ENOMEM where there are too many."""
        raise NotImplementedError

    def attach_mcast(self, qp: Any, gid: bytes) -> None:
        """Adds a queue pair to a multicast group; PyverbsRDMAError where it cannot be."""
        raise NotImplementedError

    def detach_mcast(self, qp: Any, gid: bytes) -> None:
        """Takes a queue pair out of a multicast group."""
        raise NotImplementedError

    def remove_qp(self, qp: Any) -> None:
        """A queue pair is gone."""
        raise NotImplementedError
