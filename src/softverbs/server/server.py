# SPDX-License-Identifier: MIT
"""The server: takes connections, carries out commands, and keeps the device going.

One thread does everything. While there is work it looks at the queues of all programs, at the link and at the sockets
in turn. Some time after the last work it sleeps: first it says so in every program's control page, then it looks once
more, then it waits for the link, for a command, or for the doorbell of a program that has posted something meanwhile.
"""

import errno
import logging
import os
import select
import socket
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from softverbs._sleep import Sleeper, nap_length, sleep_exactly
from softverbs.core.memory import spaces
from softverbs.core.memory.raw import barrier
from softverbs.device import NEAR_NS, Device
from softverbs.server import (
    _cm_commands,
    _device_commands,
    _memory_commands,
    _planned,
    _qp_commands,
    _queue_commands,
    driver,
)
from softverbs.server._domains import Domains, Target
from softverbs.server._registry import HANDLERS
from softverbs.server.abi import BY_NUMBER
from softverbs.server.session import CREDENTIALS, Entry, Session

logger = logging.getLogger("softverbs.server")

_MODULES = (_cm_commands, _device_commands, _memory_commands, _planned, _qp_commands, _queue_commands)
assert BY_NUMBER.keys() == HANDLERS.keys(), "every command has a handler"

#: How long after the last work the device still looks by itself, ns.
SPIN_NS = 100_000
#: How often programs' marks are looked at in one turn without work, altogether, where nobody else wants the processor:
#: who yields is back within this time then, ns.
LOOKS, ALONE_NS = 128, 2_000
#: Whoever yields and comes back after this time, ns, competes with others for a processor. Then a sleep is better than
#: looking: the scheduler lets those run first that were asleep.
CROWDED_NS = 15_000
#: How often the sockets are looked at while there is other work, turns.
SOCKET_TURNS = 16
#: Commands of one program in a row.
BURST = 16
#: Connections that are taken in a row.
ACCEPTS = 16
#: Most connections of one process: each costs descriptors, of which others need some too.
MOST_CONNECTIONS = 1024
#: A defect of the device that shows while it works for one program should not end the others; without end, it does.
MOST_ERRORS = 100
#: A program that has posted nothing for so long, ns, rings when it does: its marks are not looked at until then.
QUIET_NS = 100_000_000
NS_PER_MS = 1_000_000
#: Longest sleep, ms: should a doorbell ever be lost, it is heard then.
LONGEST_SLEEP_MS = 100
_LONGEST_PATH = 107


class Server:
    """A device for the programs that connect to a socket."""

    def __init__(self, device: Device, path: str, mode: int = 0o600) -> None:
        """
        :param device: made with ``thread=False``
        :param path: of the socket, which must not exist
        :param mode: its permissions: who may connect
        :raises OSError: the socket cannot be made
        """
        self.device = device
        self.port = device.port
        self.path = path
        self.domains = Domains()
        self.sessions: list[Session] = []
        #: How many each process has.
        self._connections: Counter[int] = Counter()
        #: Those whose marks are looked at, and those that have event records which wait; when the former were last gone
        #: through for programs that are quiet.
        self._watched: dict[Session, None] = {}
        self.backlogged: dict[Session, None] = {}
        self._last_sweep = 0
        #: How often programs have asked for the device, and opened it.
        self.asked = 0
        self.opened = 0
        #: What the variables of the device were when it was started.
        self.digests = {
            field: driver.digest(os.environ.get(name, "")) for field, name in driver.DEVICE_VARIABLES.items()
        }
        self._count = 0
        self._ends = False
        self._guard = threading.RLock()
        #: Asynchronous events that were raised, and channels that have events.
        self._raised: deque[tuple[int, Any]] = deque()
        self._channels: dict[Entry, None] = {}
        #: Whether nobody else wanted the processor lately.
        self._alone = False
        #: Whether the link is known to have something.
        self._heard = False
        #: Whether programs have been told that it looks at their queues by itself.
        self.awake = True
        self._descriptors = select.epoll()
        self._sleeper = Sleeper([self._descriptors.fileno()])
        #: What to do when a descriptor is readable.
        self._calls: dict[int, Callable[[], object]] = {}
        self._listener = _listen(path, mode)
        self._spare = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)
        self._errors = 0
        #: How many losses of address spaces it has looked at (``spaces.losses``).
        self._losses = spaces.losses()
        #: The verbs of the plan of faults that programs have been told of.
        self._planned = device.planned
        self._bell = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._watch(self._listener.fileno(), self._accept)
        self._watch(self._bell, self._rung)
        for descriptor in device.link.filenos():
            self._watch(descriptor, self._hear)
        self.port.on_event = self._note_event

    # -- the loop

    def run(self) -> None:
        """Serves until ``stop``, then closes everything but the device."""
        try:
            self._serve()
        finally:
            self.close()

    def stop(self) -> None:
        """Ends ``run``, from any thread or signal handler."""
        with self._guard:  # reentrant, for signal handlers
            self._ends = True
            if self._bell >= 0:
                os.eventfd_write(self._bell, 1)

    def _serve(self) -> None:
        sleep_exactly()
        last = self.device.clock()
        turn = 0
        while not self._ends:
            work = self.turn()
            turn += 1
            if (not work and self.awake) or turn % SOCKET_TURNS == 0:
                work += self.commands()
            now = self.device.clock()
            if now - self._last_sweep >= QUIET_NS:
                self._sweep(now)
            if not self.awake:
                self._say_awake(True)
                last = now - SPIN_NS // 2
            if work:
                last = now
            elif now - last >= SPIN_NS or self._yields_long(now):
                self._nap()

    def _yields_long(self, before: int) -> bool:
        """Lets others run; whether that took long.

        :param before: the time now
        """
        os.sched_yield()
        duration = self.device.clock() - before
        self._alone = duration < ALONE_NS
        return duration >= CROWDED_NS

    def turn(self) -> int:
        """Takes what was posted, makes progress, shows what came of it; how much was done."""
        device, port = self.device, self.port
        with device.lock:
            if port.failure is not None:
                port.take_shared()
                port.publish_shared()
                for session in self.sessions:
                    session.say_gone()
                self._deliver()
                return 0
            try:
                heard, self._heard = self._heard, False
                work = port.serve(self._looks() if self._alone else 1, heard)
                if device.deferred or self._is_due():  # what contexts of this process have left to do
                    work += device.progress()
                    port.publish_shared()
            except Exception:
                self._errors += 1
                if self._errors > MOST_ERRORS:
                    raise
                logger.exception("unexpected")
                work = 0
            if port.offenders:
                self._punish()
            if work and self._losses != spaces.losses():
                self._end_lost()
            if self._raised or self._channels:
                self._deliver()
            return int(work)

    def _is_due(self) -> bool:
        """Whether something beside the port has to be done now: a timer of the connection manager."""
        now = self.port.now
        return any(0 < chore.due <= now for chore in self.device.chores)

    def _looks(self) -> int:
        return max(LOOKS // (len(self._watched) or LOOKS), 1)

    def commands(self) -> int:
        """Carries out what has come by the sockets; how much it was."""
        return self._answer(self._descriptors.poll(0))

    def _answer(self, ready: list[tuple[int, int]]) -> int:
        """Does what there is to do for descriptors that are readable; for how many there was something."""
        if self._planned is not self.device.planned:
            self._show_asks()
        calls = [call for call in [self._calls.get(descriptor) for descriptor, _ in ready] if call is not None]
        if calls:
            with self.device.lock:
                for call in calls:
                    call()
                self.port.publish_shared()
                self._deliver()
        for session in list(self.backlogged):
            with self.device.lock:
                session.retry_records()
                if not session.backlog:
                    self.backlogged.pop(session, None)
        return len(ready)

    def _nap(self) -> None:
        """Sleeps until there is something to do. Programs ring from then on, until ``_say_awake(True)``."""
        if self.awake:
            self._say_awake(False)
            # The queues are looked at after the word is out. Whoever posts does it the other way round.
            barrier()
            if self.turn():
                return
        with self.device.lock:
            gone = self.port.failure is not None  # then nobody does what was due
            due = 0 if gone else self.device.deadline()
            refused = self.port.refused and not gone
        wait = nap_length(due, self.device.clock(), LONGEST_SLEEP_MS * NS_PER_MS)
        if refused or self.backlogged:
            wait = min(wait, NS_PER_MS)
        self._answer(self._sleep(wait))

    def _sleep(self, duration: int) -> list[tuple[int, int]]:
        """Sleeps, at most so long, ns; which descriptors are readable. epoll counts in milliseconds."""
        if duration < NEAR_NS:
            time.sleep(0)
        elif duration < NS_PER_MS:
            self._sleeper.sleep(duration)
        return self._descriptors.poll(duration // NS_PER_MS / 1000)

    def _say_awake(self, awake: bool) -> None:
        self.awake = awake
        for session in self._watched:
            session.say_awake(awake)

    def look_at(self, session: Session) -> None:
        """Looks at what a program posts from now on, until it has been quiet for a while."""
        if session.marks is not None and session not in self._watched:
            self._watched[session] = None
            self.port.enter_program(session.marks)
            session.say_awake(self.awake)

    def _sweep(self, now: int) -> None:
        """Leaves programs alone that have posted nothing since the last time: they ring when they do."""
        self._last_sweep = now
        with self.device.lock:
            for session in list(self._watched):
                marks = session.marks
                if marks is None or marks.take_used():
                    continue
                session.say_awake(False)
                barrier()  # the program marks, and then looks whether it has to ring
                if marks.is_set():
                    session.say_awake(self.awake)
                else:
                    self._look_away(session)

    def _look_away(self, session: Session) -> None:
        self._watched.pop(session, None)
        if session.marks is not None:
            self.port.leave_program(session.marks)

    def _show_asks(self) -> None:
        """Tells the programs that the plan of faults has changed."""
        with self.device.lock:
            self._planned = self.device.planned
            for session in self.sessions:
                _planned.show_asks(session)

    # -- connections

    def _watch(self, descriptor: int, call: Callable[[], object]) -> None:
        self._descriptors.register(descriptor, select.EPOLLIN)
        self._calls[descriptor] = call

    def _unwatch(self, descriptor: int) -> None:
        if self._calls.pop(descriptor, None) is not None:
            self._descriptors.unregister(descriptor)

    def _hear(self) -> None:
        self._heard = True
        if self.port.failure is not None:  # nobody takes it any more, and it would be readable for ever
            for descriptor in self.device.link.filenos():
                self._unwatch(descriptor)

    def _rung(self) -> None:
        try:
            os.eventfd_read(self._bell)
        except BlockingIOError:
            pass

    def _accept(self) -> None:
        for _ in range(ACCEPTS):
            try:
                connection, _ = self._listener.accept()
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                logger.warning("a connection cannot be taken: %s", error.strerror)
                if error.errno in (errno.EMFILE, errno.ENFILE):
                    self._turn_away()
                return
            self._begin(connection)

    def _turn_away(self) -> None:
        """Closes the connection that waits, with the descriptor that was kept for this."""
        if self._spare >= 0:
            os.close(self._spare)
            self._spare = -1
        with suppress(OSError):  # it has gone by itself, or others have taken the place
            self._listener.accept()[0].close()
        with suppress(OSError):  # then there is none until the next one is turned away
            self._spare = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)

    def _begin(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size)
        pid, user, _ = CREDENTIALS.unpack(credentials)
        self._count += 1
        self._connections[pid] += 1
        session = Session(self, connection, pid, user, self._count)
        self.sessions.append(session)
        try:
            self._watch_session(session)
        except OSError as error:  # what epoll may watch is limited for each user (epoll(7)): other programs count, too
            session.end(f"it cannot be watched: {error.strerror}")

    def _watch_session(self, session: Session) -> None:
        pid = session.pid
        self._watch(session.connection.fileno(), lambda: self._receive(session))
        if self._connections[pid] > MOST_CONNECTIONS:
            session.end(f"its process has {MOST_CONNECTIONS} connections already")
            return
        try:
            session.process = os.pidfd_open(pid) if pid > 0 else -1
        except OSError:
            session.end("its process is gone already")
            return
        if session.process >= 0:
            # The socket alone does not tell: a child of the process may have it still.
            self._watch(session.process, lambda: session.end("its process has ended"))

    def _receive(self, session: Session) -> None:
        self.look_at(session)  # what it has posted before counts
        try:
            for _ in range(BURST):
                if session.ended or not session.receive():
                    return
        except Exception:
            logger.exception("unexpected")
            session.end("ended, since the device has a defect")

    def watch_doorbell(self, session: Session) -> None:
        """Wakes the device when a program rings its doorbell."""
        # Each ring is told once, and nobody reads the counter: the program could make a read of it block.
        self._descriptors.register(session.doorbell, select.EPOLLIN | select.EPOLLET)
        self._calls[session.doorbell] = lambda: self.look_at(session)

    def leave(self, session: Session) -> None:
        """A session is about to close its descriptors."""
        self.sessions.remove(session)
        self._connections[session.pid] -= 1
        if not self._connections[session.pid]:
            del self._connections[session.pid]
        self._look_away(session)
        self.backlogged.pop(session, None)
        self._unwatch(session.connection.fileno())
        if session.process >= 0:
            self._unwatch(session.process)
        if session.doorbell >= 0:
            self._calls.pop(session.doorbell, None)
            with suppress(OSError):  # it could not be watched
                self._descriptors.unregister(session.doorbell)

    # -- events

    def note_channel(self, entry: Entry) -> None:
        """A completion channel has events. They are sent once their completions can be seen."""
        self._channels[entry] = None

    def _note_event(self, event: int, element: object) -> None:
        self._raised.append((event, element))

    def _deliver(self) -> None:
        """Sends the events that were noted."""
        while self._raised:
            event, element = self._raised.popleft()
            if element is self.port:
                for session in list(self.sessions):
                    session.report(event, None)
                continue
            owner = getattr(element, "user", None)
            entries = owner.entries if isinstance(owner, Target) else [owner]
            for entry in list(entries):
                if entry is not None and not entry.closed:
                    entry.session.report(event, entry)
        channels, self._channels = self._channels, {}
        for entry in channels:
            _queue_commands.deliver_channel(entry)

    def _punish(self) -> None:
        """Ends the sessions whose queues say what cannot be."""
        offenders = list(self.port.offenders.items())
        self.port.offenders.clear()
        for core, reason in offenders:
            core.context_id.end(f"ended, since {reason}")

    def _end_lost(self) -> None:
        """Ends the sessions whose programs were found to be gone when their memory was wanted."""
        self._losses = spaces.losses()
        for session in list(self.sessions):
            session.end_if_lost()

    # -- the end

    def close(self) -> None:
        """Ends every session and removes the socket."""
        with self.device.lock:
            if self._bell < 0:
                return
            for session in list(self.sessions):
                session.end("the device is closed")
            self.port.on_event = None
            self._listener.close()
            self._descriptors.close()
            with self._guard:
                bell, self._bell = self._bell, -1
                os.close(bell)
            if self._spare >= 0:
                os.close(self._spare)
        try:
            os.unlink(self.path)
        except FileNotFoundError:
            pass


def _listen(path: str, mode: int) -> socket.socket:
    """A socket at a path, which nobody can connect to before it has its permissions."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        length = len(os.fsencode(path))
        if length > _LONGEST_PATH:
            words = f"a path of {length} bytes: that of a socket has at most {_LONGEST_PATH} (unix(7))"
            raise OSError(errno.ENAMETOOLONG, words, path)
        mask = os.umask(0o177)
        try:
            listener.bind(path)
        except OSError as error:
            raise OSError(error.errno, error.strerror or str(error), path) from None
        finally:
            os.umask(mask)
        os.chmod(path, mode)
        listener.setblocking(False)
        # Each message says who has sent it; connections inherit it, so what was sent before they are taken does, too.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        listener.listen(128)
    except BaseException:
        listener.close()
        raise
    return listener
