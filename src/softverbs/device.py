# SPDX-License-Identifier: MIT
"""The device: a port and its link, a lock, a clock, and a thread for when nobody polls.

Core makes progress only when it is told to. An application that polls a queue, reads a counter or waits tells it so
inline, which is quickest. One background thread does it when the application is busy elsewhere, so that one-sided
operations complete whatever it does; while the application polls, the thread keeps out of its way.
"""

import atexit
import errno
import hashlib
import logging
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from softverbs._interrupts import ReentrantLock, Shield, deliver, finalizer, register, shielded, unregister, waiting
from softverbs._sleep import Sleeper, nap_length, sleep_exactly
from softverbs.core.base.constants import VALUES
from softverbs.core.base.errors import PyverbsRDMAError, PyverbsUserError
from softverbs.core.base.limits import Options
from softverbs.core.base.lock import Lock
from softverbs.core.engine import port as port_module
from softverbs.core.engine.port import Port

if TYPE_CHECKING:
    from softverbs.faults import Plan

DEFAULT_NAME = "softverbs0"
#: How long a wait polls before it sleeps, ns.
SPIN_NS = 50_000
#: A deadline nearer than this is not worth a sleep, ns: the kernel takes about as long to begin and to end one.
NEAR_NS = 50_000
#: How long the thread leaves an application alone that makes progress by itself, and a link that takes nothing now, s.
NAP_S = 0.001
NAP = -1
QPS_RESET, QPS_ERR, EVENT_DEVICE_FATAL = (VALUES[name] for name in ("QPS_RESET", "QPS_ERR", "EVENT_DEVICE_FATAL"))
#: Shortest and longest sleep of a wait for which nothing is due, ns: another thread may have done what it waits for.
SHORTEST_SLEEP_NS = 1_000_000
LONGEST_SLEEP_NS = 16_000_000
#: Longest sleep of the thread, ns.
LONGEST_IDLE_NS = 1_000_000_000

logger = logging.getLogger("softverbs")
_devices: "weakref.WeakSet[Device]" = weakref.WeakSet()


class Device:
    """An RDMA device with one port, in this process.

    ``lock`` is reentrant; whoever calls core objects, other than the few that lock by themselves, holds it.
    """

    @shielded
    def __init__(
        self,
        name: str = DEFAULT_NAME,
        address: str | list[str] | None = None,
        link: Any = None,
        clock: Callable[[], int] = time.monotonic_ns,
        thread: bool = True,
        options: Options | str | None = None,
        faults: "Plan | str | None" = None,
        pcap: str | None = None,
        idle: Callable[[int], None] | None = None,
        seed: int | None = None,
        **settings: object,
    ) -> None:
        """
        :param name: what programs call it
        :param address: IP addresses of the port, each an entry of the GID table; by default a free one of 127.0.0.0/8
        :param link: carries the frames instead of UDP
        :param clock: the time, ns
        :param thread: whether a thread makes progress when nobody polls
        :param options: Options, or their text form
        :param faults: a plan of what is to fail, or its text form (docs/faults.md)
        :param pcap: file that every frame is captured to
        :param idle: called with the next deadline (ns, 0: none) instead of sleeping in a wait: virtual time
        :param seed: of keys and numbers of queue pairs and SRQs (``core.port.Port``); by default from the system
        :param settings: single options
        :raises PyverbsUserError: an unknown or wrong option
        :raises OSError: the address cannot be bound
        """
        if settings and options is not None:
            raise PyverbsUserError(f"give options or single settings ({', '.join(settings)}), not both")
        if isinstance(options, str):
            options = Options.parse(options)
        self.options = options or Options.from_mapping(settings)
        self.name = name
        self.clock = clock
        self.idle = idle
        self.log = logger
        self.lock = _build_lock()
        self.deferred: deque[Callable[[], None]] = deque()
        #: What has times of its own beside the port: ``due`` (ns, 0: never), and ``run(now)`` that is called then.
        self.chores: list[Any] = []
        #: The connection manager, once somebody has asked for it (cm/service.py).
        self.cm: Any = None
        #: Called by ``close`` while the device still works: contexts close their objects.
        self.at_close: list[Callable[[], None]] = []
        #: What is to fail: rules can be added and removed at any time.
        self.faults: Plan = _plan(faults)
        #: Asked about each call of a verb but the quick ones, where a plan has rules for them (pyverbs/base.py).
        self.verb_faults: Any = None
        #: The verbs that the plan has rules for. Another set each time that rules come or go.
        self.planned: frozenset[str] = frozenset()
        self.link = _build_link(link, address, self.faults, pcap)
        self.guid = _guid(self.link.gids[0])
        self._closed = False
        self._removed = False
        self._pid = os.getpid()
        self._bell = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._waiting = 0
        self._seen_drives = 0
        seed = int.from_bytes(os.urandom(10), "big") if seed is None else seed
        self.port = Port(self.link, self.options, self.lock, clock, self.wake, seed)
        self.port.log = self._log
        self.faults.attach(self)
        register(self.lock)
        _devices.add(self)
        self._thread: threading.Thread | None = None
        if thread:
            work = (weakref.ref(self),)
            self._thread = threading.Thread(target=_run, args=work, name=f"{name} progress", daemon=True)
            self._thread.start()

    def __enter__(self) -> "Device":
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    # -- progress

    def progress(self) -> int:
        """Does everything that can be done now; 0 where there was nothing."""
        with self.lock:
            self.check()
            work = self.port.progress(self.clock())
            return work + self._run_deferred()

    def wait_until(self, done: Callable[[], bool], timeout_ns: int | None = None, shield: Shield | None = None) -> bool:
        """Makes progress until ``done()``, which is called with the lock held.

        :param timeout_ns: how long, ns; None or negative: for ever
        :param shield: that the caller is in, which is opened while this sleeps
        :return: False where the time has passed
        """
        if shield is None:
            with Shield() as shield:
                return self.wait_until(done, timeout_ns, shield)
        start = self.clock()
        end = None if timeout_ns is None or timeout_ns < 0 else start + timeout_ns
        with self.lock:
            self._check_open()
            sleeper = self._sleeper()
            self._waiting += 1
        try:
            return self._wait(done, start, end, sleeper, shield)
        finally:
            with self.lock:
                self._waiting -= 1

    def _wait(self, done: Callable[[], bool], start: int, end: int | None, sleeper: Sleeper, shield: Shield) -> bool:
        longest = SHORTEST_SLEEP_NS
        while True:
            with self.lock:
                self._check_open()
                worked = self.port.progress(self.clock()) if self.port.failure is None else 0
                self._run_deferred()
                if done():
                    return True
                self.check()  # of a device that was removed, what there is can still be had
                now = self.clock()
                if end is not None and now >= end:
                    return False
                due = _earlier(self.deadline(), end)
                refused = self.port.refused
                tired = self.idle is None and now - start > SPIN_NS
                asleep = tired and not _near(due, now)
                if asleep:
                    self.port.sleepers += 1
            if worked:
                longest = SHORTEST_SLEEP_NS
            if asleep:
                quiet = self._sleep(sleeper, nap_length(due, now, longest), shield)
                longest = min(2 * longest, LONGEST_SLEEP_NS) if quiet else SHORTEST_SLEEP_NS
            elif self.idle is not None or tired or waiting():
                self._idle(due, tired and refused, shield)

    def _sleep(self, sleeper: Sleeper, duration: int, shield: Shield) -> bool:
        """Sleeps, after this thread was counted as a sleeper; whether nothing ended it."""
        try:
            shield.open()
            return not sleeper.sleep(duration)
        finally:
            shield.shut()
            self._awake()

    def _idle(self, due: int, refused: bool, shield: Shield) -> None:
        """Lets others run between two looks."""
        try:
            shield.open()
            if self.idle is not None:
                self.idle(due)
            elif refused:
                time.sleep(NAP_S)
            else:
                os.sched_yield()
        finally:
            shield.shut()

    def _sleeper(self) -> Sleeper:
        """Waits for the link and the bell."""
        return Sleeper((*self.link.filenos(), self._bell))

    def wake(self) -> None:
        """Wakes whoever sleeps in a wait, and the thread."""
        if self._bell >= 0:
            os.eventfd_write(self._bell, 1)

    def _awake(self) -> None:
        """A sleeper is back."""
        with self.lock:
            self.port.sleepers -= 1
            if self._closed:
                return  # the bell stays rung, for everybody
            self.port.rung = False
            try:
                os.eventfd_read(self._bell)
            except BlockingIOError:
                pass  # nobody rang

    def _run_deferred(self) -> int:
        """Does what had to wait until the port had finished, and what is due beside it; how much it was."""
        waiting = len(self.deferred)
        for _ in range(waiting):
            self.deferred.popleft()()
        count = max(waiting - len(self.deferred), 0)
        for chore in list(self.chores):
            if chore.due:
                now = self.clock()
                if chore.due <= now:
                    chore.run(now)
                    count += 1
        return count

    def deadline(self) -> int:
        """When there is something to do if nothing arrives, ns; 0 for never. The lock is held."""
        due = self.port.deadline()
        for chore in self.chores:
            if chore.due:
                due = _earlier(due, chore.due)
        return due

    def _turn(self) -> int | None:
        """One turn of the thread: how long to sleep then, ns; 0: not at all, NAP: a nap, None: the end."""
        with self.lock:
            if not self.usable():
                return None
            if self._waiting or self.port.drives != self._seen_drives:
                self._seen_drives = self.port.drives
                self._run_deferred()  # a poll leaves these alone
                return NAP
            now = self.clock()
            self.port.progress(now)
            self._run_deferred()
            due = self.deadline()
            if self.port.refused:
                return NAP
            if _near(due, now):
                return 0
            self.port.sleepers += 1
            return nap_length(due, now, LONGEST_IDLE_NS)

    # -- life

    def try_enter(self) -> bool:
        """Takes the lock if nobody holds it, this thread included: for finalizers, which may run anywhere."""
        if self.lock._is_owned():
            return False
        return bool(self.lock.acquire(False))

    def usable(self) -> bool:
        """Whether the device is open, in the process that opened it, and was not removed."""
        return not self._closed and not self._removed and self._pid == os.getpid()

    def check(self) -> None:
        """Raises PyverbsRDMAError (EIO) where the device is not usable."""
        self._check_open()
        if self.port.failure is not None:
            raise PyverbsRDMAError(self.port.failure, errno.EIO)

    def _check_open(self) -> None:
        """``check``, but a device that was removed passes."""
        if self._closed:
            raise PyverbsRDMAError(f"device {self.name} is closed", errno.EIO)
        if self.port.failure is not None and not self._removed:
            raise PyverbsRDMAError(self.port.failure, errno.EIO)

    def objects(self) -> dict[str, int]:
        """How many objects of each kind there are, of all contexts together: a test sees whether something was left.

        Kinds of which there is none are not in it. Memory regions and windows count as one kind.
        """
        with self.lock:
            self._run_deferred()
            counts = {kind: count for kind, count in self.port.counts.items() if count}
            memory = self.port.regions.active
            return {**counts, "memory region": memory} if memory else counts

    def wall_clock_offset(self) -> int:
        """Nanoseconds to add to the device's time for the time since 1970; 0 in virtual time."""
        return time.time_ns() - time.monotonic_ns() if self.clock is time.monotonic_ns else 0

    def set_port_state(self, up: bool) -> None:
        """Takes the port down, or up again, as when a cable is pulled: every context gets IBV_EVENT_PORT_ERR or
        IBV_EVENT_PORT_ACTIVE, ``query_port`` tells it, and while the port is down nothing is sent or received. QPs stay
        as they are: what they miss ends by their time-outs. The same state again does nothing.

        :param up: whether the port works
        :raises PyverbsRDMAError: EIO where the device is not usable
        """
        with self.lock:
            self.check()
            self.port.set_state(bool(up))
        self.wake()

    def remove(self, reason: str) -> None:
        """Takes the device away from the programs that use it, as when a card is pulled out. Twice does nothing.

        Its queue pairs flush what was posted, every context gets IBV_EVENT_DEVICE_FATAL, and whoever waits is woken.
        Completions that are there can still be polled, events still be read, and objects be closed; every other call
        raises PyverbsRDMAError (EIO) with the reason.

        :param reason: why, in words
        """
        with self.lock:
            if not self.usable() or self.port.failure is not None:
                return
            reason = f"device {self.name} was removed: {reason}"
            self._log(reason)
            self.faults.detach(reason)
            for qp in list(self.port.live):
                if qp.state not in (QPS_RESET, QPS_ERR):
                    qp.enter_error(reason)
            self.port.raise_event(EVENT_DEVICE_FATAL, self.port)
            if self.cm is not None:
                self.cm.on_removal()
            self._removed = True
            self.port.fail(reason)
        self.wake()

    @shielded
    def close(self) -> None:
        """Ends the device: its link is closed, its thread stops. Twice does nothing."""
        with self.lock:
            if not self._closed:
                self.faults.detach()  # what is closed with the device is closed whatever was planned
        for call in list(self.at_close):
            call()
        with self.lock:
            if self._closed:
                return
            self._closed = True
            self.port.fail(f"device {self.name} is closed")
            _devices.discard(self)
        if self._pid == os.getpid():
            self.wake()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout=5)
        with self.lock:
            self.link.close()
            bell, self._bell = self._bell, -1
        os.close(bell)
        unregister(self.lock)

    @finalizer
    def __del__(self) -> None:
        if not getattr(self, "_closed", True):
            self.close()

    def _log(self, text: str) -> None:
        self.log.info("%s: %s", self.name, text)

    def _after_fork(self) -> None:
        """In the child: the link's sockets and the thread are the parent's."""
        self.lock._at_fork_reinit()
        self._thread = None
        self._removed = False
        self.port.fail(
            f"device {self.name} was opened before fork(): it belongs to process {self._pid}; open one in this process"
        )


def _run(reference: "weakref.ref[Device]") -> None:
    """The background thread. While it sleeps it holds no reference to the device, so that this can be collected."""
    sleeper = None
    sleep_exactly()
    while True:
        device = reference()
        if device is None:
            return
        if sleeper is None:
            sleeper = device._sleeper()
        turn = device._turn()
        del device
        if turn is None:
            return
        if turn == NAP:
            time.sleep(NAP_S)
        elif turn == 0:
            os.sched_yield()
        else:
            sleeper.sleep(turn)
            device = reference()
            if device is not None:
                device._awake()


def _near(due: int, now: int) -> bool:
    """Whether something is due before a sleep could end."""
    return due != 0 and due - now < NEAR_NS


def _earlier(due: int, end: int | None) -> int:
    if end is None:
        return due
    return end if due == 0 else min(due, end)


def _build_link(link: Any, address: str | list[str] | None, plan: "Plan", pcap: str | None) -> Any:
    """The link, with faults and capture around it where they are asked for."""
    if link is None:
        from softverbs.links.udp import UdpLink

        link = UdpLink(address)
    try:
        if pcap is not None:
            from softverbs.links.pcap import PcapLink

            link = PcapLink(link, pcap)
        return plan.around(link)
    except BaseException:
        link.close()
        raise


def _plan(faults: "Plan | str | None") -> "Plan":
    """The plan, which no other device may have; PyverbsUserError says what is wrong with its text."""
    from softverbs.faults import Plan

    plan = faults if isinstance(faults, Plan) else Plan(faults or "")
    plan.claim()
    return plan


def _build_lock() -> Any:
    """The quick lock where the core is compiled (core/base/lock.py), else one like ``threading.RLock``."""
    if port_module.__file__.endswith(".py"):
        return ReentrantLock()
    return Lock(threading.get_ident, _pause, deliver)


def _pause() -> None:
    time.sleep(0.00005)


def _guid(gid: bytes) -> int:
    """A node GUID, locally administered, from the first GID: stable as long as the address is."""
    digest = hashlib.sha256(gid).digest()
    return int.from_bytes(bytes([digest[0] & 0xFC | 0x02]) + digest[1:8], "big")


_default: Device | None = None
_default_lock = threading.Lock()


def default_device() -> Device:
    """The device ``softverbs0`` of this process, opened when it is first asked for.

    Environment: ``SOFTVERBS_ADDRESS`` (addresses separated by commas), ``SOFTVERBS_OPTIONS``, ``SOFTVERBS_FAULTS``,
    ``SOFTVERBS_PCAP``.
    """
    global _default
    with _default_lock:
        if _default is None or not _default.usable():
            _default = open_from_environment()
        return _default


def open_from_environment(
    address: str | None = None, pcap: str | None = None, fallback: str | None = None, thread: bool = True
) -> Device:
    """A new device as the environment has it (``default_device``), or the options of a command, which come first.

    What is wrong is told with the variable or the option that it comes from, and its value.

    :param address: of ``--address``; None or empty: as ``SOFTVERBS_ADDRESS`` says
    :param pcap: of ``--pcap``; None: as ``SOFTVERBS_PCAP`` says; empty: none
    :param fallback: address where neither names one; None: a free one of 127.0.0.0/8
    :param thread: whether the device has a thread of its own
    :raises PyverbsUserError: options or faults that are wrong
    :raises ValueError: an address that is none
    :raises OSError: an address that cannot be had, a file that cannot be written
    """
    from softverbs.faults import Plan
    from softverbs.links.pcap import PcapLink
    from softverbs.links.udp import UdpLink

    get = os.environ.get
    with _named("SOFTVERBS_OPTIONS", get("SOFTVERBS_OPTIONS")) as text:
        options = Options.parse(text)
    with _named("SOFTVERBS_FAULTS", get("SOFTVERBS_FAULTS")) as text:
        plan = Plan(text)
    name, where = ("--address", address) if address else ("SOFTVERBS_ADDRESS", get("SOFTVERBS_ADDRESS") or fallback)
    with _named(name, where) as text:
        link: Any = UdpLink(text.split(",") if text else None)
    name, where = ("SOFTVERBS_PCAP", get("SOFTVERBS_PCAP")) if pcap is None else ("--pcap", pcap)
    try:
        with _named(name, where) as text:
            link = PcapLink(link, text) if text else link
        return Device(link=link, options=options, faults=plan, thread=thread)
    except BaseException:
        link.close()
        raise


@contextmanager
def _named(name: str, value: str | None) -> Iterator[str]:
    """Puts in front of what goes wrong with a value where the value comes from."""
    try:
        yield value or ""
    except PyverbsUserError as error:
        raise PyverbsUserError(f"{name}={value}: {error.reason}") from error
    except ValueError as error:
        raise ValueError(f"{name}={value}: {error}") from error
    except OSError as error:
        words = error.strerror or str(error)
        raise OSError(error.errno, f"{name}={value}: {words}" if value else words) from error


def _close_all() -> None:
    for device in list(_devices):
        if not device._closed and device._pid == os.getpid():
            device.close()


def _after_fork_in_child() -> None:
    _default_lock._at_fork_reinit()  # type: ignore[attr-defined]
    for device in list(_devices):
        device._after_fork()


atexit.register(_close_all)
os.register_at_fork(after_in_child=_after_fork_in_child)
