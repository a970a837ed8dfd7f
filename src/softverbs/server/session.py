# SPDX-License-Identifier: MIT
"""One connection: the program at its other end, and everything that it has made.

Nothing a program sends is believed: sizes, numbers and handles are checked here, the rest by the core. A session's
handles find its own objects only.
"""

import errno
import itertools
import logging
import os
import socket
import struct
from array import array
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from softverbs.core.base.errors import PyverbsError, PyverbsRDMAError
from softverbs.core.memory import spaces
from softverbs.core.queues.completion import CompletionQueue
from softverbs.core.queues.marks import Marks
from softverbs.server import _planned as planned
from softverbs.server import abi
from softverbs.server._layout import CONTROL, RING_HEADER
from softverbs.server._memory import SharedMemory
from softverbs.server._registry import HANDLERS

if TYPE_CHECKING:
    from softverbs.server._domains import OpenDomain
    from softverbs.server.server import Server

logger = logging.getLogger("softverbs.server")

#: struct ucred: process, user, group.
CREDENTIALS = struct.Struct("3i")
#: Most bytes of shared memory that one connection gets.
MOST_MEMORY = 2**32
#: Most event records that wait for a program that does not read them.
MOST_RECORDS = 16384
#: Sockets with such records that are tried at once.
RETRIES = 8
#: The order in which the objects of a program that is gone are closed: users before what they use.
CLOSING_ORDER = (
    "CM id", "CM channel",
    "QP", "AH", "counter", "window", "region", "device memory", "SRQ", "CQ", "channel", "XRCD", "PD",
)  # fmt: skip
#: What a program may still do once the device was removed: tidy up, and ask why.
_LATE = (
    "DEALLOC_PD", "DEREG_MR", "FREE_DM", "DEALLOC_MW", "DESTROY_CHANNEL", "DESTROY_CQ", "ACK_EVENTS",
    "COMPLETION_REASON", "DESTROY_QP", "DESTROY_AH", "DESTROY_SRQ", "CLOSE_XRCD", "DETACH_MCAST", "DESTROY_COMP_CNTR",
    "CM_CREATE_CHANNEL", "CM_DESTROY_CHANNEL", "CM_DESTROY_ID", "CM_GET_EVENT", "CM_MIGRATE_ID", "CM_QUERY", "CM_LEAVE",
)  # fmt: skip
_ALLOWED_LATE = {abi.COMMANDS[name].number for name in _LATE}
_HELLO = abi.COMMANDS["HELLO"].number
#: What a connection may do that has no rings and no memory: space 0 is the device's own.
_ASKING = ("HELLO", "QUERY_DEVICE", "QUERY_PORT", "QUERY_GID", "QUERY_PKEY", "QUERY_COMP_CNTR_CAPS")
_ALLOWED_ASKING = {abi.COMMANDS[name].number for name in _ASKING}


@dataclass(eq=False)
class Entry:
    """One object of a session."""

    session: "Session"
    kind: str
    handle: int
    core: Any
    #: What its queue lies in.
    memory: SharedMemory | None = None
    #: Our end of a completion channel, and the program's, from which unread events of what has gone are taken back.
    end: socket.socket | None = None
    far: socket.socket | None = None
    #: The channel of a completion queue.
    channel: "Entry | None" = None
    #: The XRC domain that it was made with.
    domain: "OpenDomain | None" = None
    #: Asynchronous events of it that were raised; those, and completion events, whose records have left.
    reported: int = 0
    sent_async: int = 0
    sent_completions: int = 0
    closed: bool = field(default=False)


class Session:
    """A connection and its objects. Every method needs the device's lock."""

    def __init__(self, server: "Server", connection: socket.socket, pid: int, user: int, number: int) -> None:
        """
        :param server: whose device it is
        :param connection: the socket, which the session owns from now on
        :param pid: of the process that connected
        :param user: its effective user when it did
        :param number: for the log
        """
        self.server = server
        self.device = server.device
        self.port = server.device.port
        self.connection = connection
        self.pid = pid
        self.user = user
        #: Process, user and group that sent HELLO, by the kernel's word. All other commands must come from them.
        self.sender: tuple[int, ...] = ()
        self.number = number
        self.greeted = False
        self.ended = ""
        self.space = 0
        #: The descriptor of the program's memory, where that is reached by one (``_memory.own_memory``).
        self.mem = -1
        #: The device's own descriptor of the memory of a program of its user, for short reads; -1: none.
        self.reader = -1
        self.entries: dict[int, Entry] = {}
        self.memory_used = 0
        self.control: SharedMemory | None = None
        #: What the program has posted to; None where it can post nothing.
        self.marks: Marks | None = None
        self.doorbell = -1
        self.process = -1
        #: The socket of asynchronous events, and the program's end of it.
        self.events: socket.socket | None = None
        self.far_events: socket.socket | None = None
        #: Descriptors that came with the request, and those that go with the response.
        self.received: list[int] = []
        self.passing: list[int] = []
        #: Event records that there is no room for yet, by the socket that they wait for: one that a program never reads
        #: keeps back nothing of the others.
        self.backlog: dict[socket.socket, deque[tuple[bytes, Entry | None]]] = {}

    # -- objects

    def add(self, kind: str, core: Any, memory: SharedMemory | None = None, handle: int = 0) -> Entry:
        """Gives an object a handle, which is never used again, and notes whose it is.

        :param kind: one of CLOSING_ORDER
        :param handle: that of the core, where plans of faults name the object by it; 0: a new one
        """
        entry = Entry(self, kind, handle or self.port.new_handle(), core, memory)
        self.entries[entry.handle] = entry
        return entry

    def find(self, kind: str, handle: int) -> Entry:
        """The object of that kind and handle; EINVAL where there is none."""
        entry = self.entries.get(handle)
        if entry is None or entry.kind != kind:
            raise PyverbsRDMAError(f"there is no {kind} with the handle {handle}", errno.EINVAL)
        return entry

    def core(self, kind: str, handle: int) -> Any:
        """The core's object of that kind and handle."""
        return self.find(kind, handle).core

    def optional(self, kind: str, handle: int) -> Any:
        """The same; None for the handle 0."""
        return self.find(kind, handle).core if handle else None

    def close(self, entry: Entry) -> None:
        """Closes an object and forgets it. Where the core refuses, nothing has changed."""
        entry.core.close()
        self.forget(entry)

    def forget(self, entry: Entry) -> None:
        """Takes an object that is closed out of the table."""
        entry.closed = True
        del self.entries[entry.handle]
        if entry.memory is not None:
            self.memory_used -= entry.memory.size
            entry.memory = None
        if entry.domain is not None:
            entry.domain.children -= 1
            entry.domain = None
        for end in (entry.end, entry.far):
            if end is not None:
                self.backlog.pop(end, None)
                end.close()
        if not self.ended:
            self._take_back_events(entry)

    def bind(self, entry: Entry, domain: "OpenDomain") -> None:
        """An object uses an XRC domain that the session has opened, which cannot be closed before it."""
        entry.domain = domain
        domain.children += 1

    def check_room(self, size: int) -> None:
        """Refuses more shared memory than a connection gets, with ENOMEM."""
        if self.memory_used + size > MOST_MEMORY:
            raise PyverbsRDMAError(
                f"{size} bytes: this program's queues have {self.memory_used} bytes already, of at most {MOST_MEMORY}",
                errno.ENOMEM,
            )

    def check_resize(self, slots: int, stride: int) -> None:
        """The same for a queue that is to have so many slots, which may become twice as many."""
        self.check_room(RING_HEADER + (stride << min(slots, 2**32).bit_length()))

    def allocate(self, size: int) -> SharedMemory:
        """Memory for a queue, whose descriptor goes with the response.

        :raises PyverbsRDMAError: ENOMEM past what a connection gets
        """
        self.check_room(size)
        memory = SharedMemory(size)
        self.memory_used += memory.size
        self.pass_on(memory)
        return memory

    def share(self, core: Any) -> SharedMemory:
        """Puts the queues of an object into memory that the program maps too.

        :param core: a CQ, QP or SRQ
        """
        memory = self.allocate(core.mapped_size())
        try:
            if isinstance(core, CompletionQueue):
                core.share(memory.address, memory)
            else:
                core.share(memory.address, memory, self.marks)
        except BaseException:
            self.memory_used -= memory.size
            raise
        return memory

    def share_new(self, core: Any) -> SharedMemory:
        """The same for an object that was just made: where it fails, the object is closed."""
        try:
            return self.share(core)
        except BaseException:
            core.close()
            raise

    def share_again(self, entry: Entry) -> SharedMemory:
        """The same for an object whose queue has another size now: where it fails, the session ends."""
        try:
            memory = self.share(entry.core)
        except BaseException as error:
            self.end(f"no memory for its {entry.kind} after it was resized: {error}")
            raise
        if entry.memory is not None:
            self.memory_used -= entry.memory.size
        entry.memory = memory
        return memory

    def settle(self) -> None:
        """Does what was posted before a command, as far as it can be done now."""
        self.port.take_shared()
        self.device.progress()

    def pass_on(self, memory: SharedMemory) -> None:
        """Lets the descriptor of shared memory go with the response; ours is closed then."""
        self.passing.append(memory.descriptor)
        memory.descriptor = -1

    # -- commands

    def receive(self) -> bool:
        """Carries out one command if one is there; whether it was. The connection may have ended by it."""
        space = socket.CMSG_SPACE(4 * 4) + socket.CMSG_SPACE(CREDENTIALS.size)
        try:
            data, ancillary, flags, _ = self.connection.recvmsg(abi.MESSAGE_SIZE, space, socket.MSG_CMSG_CLOEXEC)
        except (BlockingIOError, InterruptedError):
            return False
        except OSError as error:
            self.end(f"its socket: {error.strerror}")
            return True
        self.received = _descriptors(ancillary)
        try:
            if not data:
                self.end("it has closed its socket")
            else:
                self._answer(bytes(data), bool(flags & socket.MSG_TRUNC), _sender(ancillary))
        finally:
            for descriptor in self.received:
                os.close(descriptor)
            self.received = []
        return True

    def _check_sender(self, sender: tuple[int, ...]) -> None:
        """A command must come from the program that the session is of. The socket alone does not say so: a child may
        hold it, and the program may have executed another one, or changed its user, since it said HELLO.

        :raises PyverbsRDMAError: EACCES. Where the program is not there any more, the session has ended, too
        """
        if sender[0] != self.pid:
            raise PyverbsRDMAError(f"process {sender[0]}: the connection is process {self.pid}'s", errno.EACCES)
        if not self.sender:
            self.sender = sender
        if sender != self.sender:
            self.end("its user or group is another one")
        elif self.space and not spaces.holds(self.space):
            self.end_if_lost()
        if self.ended:
            raise PyverbsRDMAError(f"the connection is ended, since {self.ended}", errno.EACCES)

    def _answer(self, data: bytes, truncated: bool, sender: tuple[int, ...]) -> None:
        if len(data) < abi.REQUEST.size:
            self.end(f"a message of {len(data)} bytes is no request")
            return
        try:
            response = self._perform(data, truncated, sender)
            self.port.publish_shared()
            if not self.ended:
                self._send(response)
        finally:
            for descriptor in self.passing:
                os.close(descriptor)
            self.passing = []

    def _perform(self, data: bytes, truncated: bool, sender: tuple[int, ...]) -> bytes:
        """Carries out a request; the response."""
        size, number, sequence = abi.REQUEST_HEAD.unpack_from(data)
        try:
            command = abi.BY_NUMBER.get(number)
            if command is None:
                raise PyverbsRDMAError(f"there is no command {number}", errno.EOPNOTSUPP)
            wanted = abi.REQUEST.size + command.request.size
            if truncated or len(data) != wanted or size != wanted:
                raise PyverbsRDMAError(
                    f"{command.name}: {len(data)} bytes that say they are {size}; {wanted} are expected",
                    errno.EINVAL,
                )
            self._check_sender(sender)
            self._check_allowed(command)
            request = command.request.unpack(data, abi.REQUEST.size)
            if self.device.verb_faults is not None:
                planned.let_fail(self, command.name, request)
            values = HANDLERS[number](self, request)
            return abi.pack_response(command, sequence, values or {})
        except Exception as error:
            code, reason = _explain(error)
            for descriptor in self.passing:
                os.close(descriptor)
            self.passing = []
            logger.debug("client %d: %s: %s", self.number, number, reason)
            return abi.pack_refusal(sequence, code, reason)

    def _check_allowed(self, command: abi.Command) -> None:
        if self.greeted == (command.number == _HELLO):
            raise PyverbsRDMAError("HELLO is the first command, once", errno.EINVAL)
        if not self.space and command.number not in _ALLOWED_ASKING:
            raise PyverbsRDMAError(f"{command.name}: this connection is only for listing the device", errno.EPERM)
        if command.number not in _ALLOWED_LATE:
            self.device.check()

    def _send(self, response: bytes) -> None:
        try:
            rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", self.passing))] if self.passing else []
            self.connection.sendmsg([response], rights)
        except BlockingIOError:
            self.end("it sends commands and does not read the responses")
        except OSError as error:
            self.end(f"its socket: {error.strerror}")

    # -- events

    def send_record(self, where: socket.socket | None, record: bytes, about: Entry | None = None) -> None:
        """Sends an event record, or keeps it until there is room for it.

        :param where: our end of the socket
        :param about: the object whose event it is, which goes with it
        """
        if where is None or self.ended:
            return
        if where not in self.backlog:
            if self._sent(where, record, about):
                return
            self.backlog[where] = deque()
            self.server.backlogged[self] = None
        self.backlog[where].append((record, about))
        if self._waiting() > MOST_RECORDS:
            self._drop_stale()
            if self._waiting() > MOST_RECORDS:
                self.end(f"{MOST_RECORDS} events wait for it")

    def _waiting(self) -> int:
        return sum(map(len, self.backlog.values()))

    def _drop_stale(self) -> None:
        """Drops events of objects that are gone, as the kernel does: few programs read the asynchronous ones."""
        for where, records in self.backlog.items():
            self.backlog[where] = deque(item for item in records if item[1] is None or not item[1].closed)

    def retry_records(self) -> None:
        """Sends what had to wait: that of a few sockets, since each that has no room yet costs a system call."""
        for where in list(itertools.islice(self.backlog, RETRIES)):
            records = self.backlog.pop(where)
            while records:
                record, about = records[0]
                if not (about is not None and about.closed) and not self._sent(where, record, about):
                    self.backlog[where] = records  # as the last
                    break
                records.popleft()

    def _sent(self, where: socket.socket, record: bytes, about: Entry | None) -> bool:
        """Whether a record has left, or never will; False: there is no room for it now."""
        try:
            where.send(record)
        except BlockingIOError:
            return False
        except OSError:
            return True  # the program has closed its end
        if about is not None:
            if where is self.events:
                about.sent_async += 1
            else:
                about.sent_completions += 1
        return True

    def unsent(self, where: socket.socket | None, count: int) -> int:
        """Takes back so many records of a socket whose records are all alike, the newest first; how many had left.

        :param where: our end
        """
        records = self.backlog.get(where) if where is not None else None
        while records and count > 0:
            records.pop()
            count -= 1
        return count

    def _take_back_events(self, entry: Entry) -> None:
        """Takes the events of an object that has gone, which nobody has read, out of the sockets: a descriptor must be
        readable only while there is an event to read (ib_uverbs_release_ucq and _uevent do so in Linux).
        """
        if entry.sent_async and self.events is not None and self.far_events is not None:
            _take_back(self.events, self.far_events, _ASYNC, "handle", entry, entry.sent_async)
        channel = entry.channel
        if entry.sent_completions and channel is not None and channel.end is not None and channel.far is not None:
            _take_back(channel.end, channel.far, _CHANNEL, "cq", entry, entry.sent_completions)

    def report(self, event: int, entry: Entry | None) -> None:
        """Sends an asynchronous event.

        :param event: ``IBV_EVENT_*``
        :param entry: what it is about; None: the port
        """
        handle = 0
        if entry is not None:
            entry.reported += 1
            handle = entry.handle
        self.send_record(self.events, _ASYNC.pack({"event": event, "port": 1, "handle": handle}), entry)

    def say_awake(self, awake: bool) -> None:
        """Whether the device looks at this program's queues by itself."""
        if self.control is not None:
            self.control.store32(CONTROL["CONTROL_AWAKE"], awake)

    def say_gone(self) -> None:
        """The device was removed: what the driver does by itself fails from now on."""
        if self.control is not None:
            self.control.store32(CONTROL["CONTROL_GONE"], 1)

    # -- the end

    def end_if_lost(self) -> None:
        """Ends the session if an access has found that its program's address space is gone."""
        if spaces.is_lost(self.space):
            self.end("its program has executed another one, or has ended")

    def end(self, reason: str) -> None:
        """Ends the session: its objects are closed, users before what they use. Twice does nothing."""
        if self.ended:
            return
        self.ended = reason
        logger.info("client %d (process %d): %s", self.number, self.pid, reason)
        if self.space:
            spaces.leave(self.space)
        for kind in CLOSING_ORDER:
            for entry in [entry for entry in self.entries.values() if entry.kind == kind]:
                try:
                    self.close(entry)
                except Exception:
                    logger.exception("client %d: %s %d cannot be closed", self.number, kind, entry.handle)
                    self.forget(entry)
        self.backlog.clear()
        self.server.leave(self)
        self.marks = None
        self.say_gone()
        self.connection.close()
        for events in (self.events, self.far_events):
            if events is not None:
                events.close()
        for descriptor in (self.doorbell, self.process, self.mem, self.reader):
            if descriptor >= 0:
                os.close(descriptor)


_ASYNC = abi.RECORDS["async_record"]
_CHANNEL = abi.RECORDS["channel_record"]


def _receive_now(far: socket.socket, flags: int = 0) -> bytes:
    """The next record of a socket that is the program's too; b"" where there is none."""
    try:
        return far.recv(abi.MESSAGE_SIZE, flags | socket.MSG_DONTWAIT)
    except (BlockingIOError, InterruptedError):
        return b""


def _take_back(near: socket.socket, far: socket.socket, kind: abi.Record, name: str, entry: Entry, most: int) -> None:
    """Takes the unread records of an object out of a socket. The program may read meanwhile.

    :param near: our end
    :param far: the program's end
    :param kind: of the records
    :param name: the field with the object's handle
    :param entry: the object
    :param most: records of it that were sent; what is left is looked through only where some may be there still
    """
    kept: list[bytes] = []
    while most > 0:
        record = _receive_now(far, socket.MSG_PEEK)
        if not record:
            break
        if kind.unpack(record)[name] != entry.handle:
            while record := _receive_now(far):
                kept.append(record)
            break
        taken = _receive_now(far)
        if taken == record:
            most -= 1
        elif taken:
            kept.append(taken)  # the program was first, and this is the next one
    for record in kept:
        if kind.unpack(record)[name] != entry.handle:
            with suppress(OSError):  # the program has shut it down; there is room, since it was there before
                near.send(record)


def _descriptors(ancillary: list[tuple[int, int, bytes]]) -> list[int]:
    """The descriptors that came with a message."""
    found: list[int] = []
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            numbers = array("i")
            numbers.frombytes(data[: len(data) - len(data) % numbers.itemsize])
            found += numbers
    return found


def _sender(ancillary: list[tuple[int, int, bytes]]) -> tuple[int, ...]:
    """Process, user and group that have sent a message (unix(7), SCM_CREDENTIALS)."""
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_CREDENTIALS and len(data) == CREDENTIALS.size:
            return CREDENTIALS.unpack(data)
    return (0, -1, -1)


def _explain(error: Exception) -> tuple[int, str]:
    """The errno and the words for a refusal."""
    if isinstance(error, PyverbsError):
        return error.errno or errno.EINVAL, error.reason
    if isinstance(error, OSError) and error.errno:
        return error.errno, error.strerror or str(error)
    if isinstance(error, MemoryError):
        return errno.ENOMEM, "the device has no memory for it"
    if isinstance(error, OverflowError):
        return errno.EINVAL, f"a value is out of range: {error}"
    logger.error("unexpected", exc_info=error)
    return errno.EIO, f"unexpected {type(error).__name__}: {error}"
