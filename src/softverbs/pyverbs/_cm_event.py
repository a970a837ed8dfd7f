# SPDX-License-Identifier: MIT
"""Events of the connection manager, and the channels that they come by."""

import errno
import os
from collections import deque
from typing import TYPE_CHECKING, Any

from softverbs._interrupts import Shield, shielded
from softverbs.cm.events import Event, Kind
from softverbs.cm.identity import Identity, Stage
from softverbs.device import Device, default_device
from softverbs.pyverbs._bell import Bell, readable
from softverbs.pyverbs._fields import instance, refused
from softverbs.pyverbs.base import PyverbsCM, PyverbsObject

if TYPE_CHECKING:
    from softverbs.pyverbs._cm_param import ConnParam


class CMEventChannel(PyverbsObject):
    """Events of the identifiers that are made with it, in order, ``struct rdma_event_channel``
    (rdma_create_event_channel(3)).
    """

    def __init__(self, device: Device | None = None) -> None:
        """
        :param device: Extension: of its identifiers; by default the process's
        """
        self._given = device
        self._default: Device | None = None
        self._queue: deque[Event] | None = deque()
        self._bell = Bell()

    @property
    def device(self) -> Device:
        """Extension: the device of its identifiers."""
        if self._given is not None:
            return self._given
        if self._default is None or self._default._pid != os.getpid():
            self._default = default_device()
        return self._default

    @property
    def fd(self) -> int:
        """Extension (``fd`` of ``struct rdma_event_channel``): readable while an event waits. Set O_NONBLOCK on it
        (``os.set_blocking``) and ``CMEvent`` never waits.
        """
        self._open()
        return self._bell.fd

    def _open(self) -> deque[Event]:
        if self._queue is None:
            raise refused("the event channel is closed")
        return self._queue

    def _push(self, event: Event) -> None:
        """Takes an event; the lock is held."""
        if self._queue is None:
            if event.kind is Kind.CONNECT_REQUEST:
                event.identity.close()  # nobody can ever answer it
            return
        self._queue.append(event)
        self._bell.ring()
        device = event.identity.device
        if device.port.sleepers:
            device.wake()

    def _take(self, taken: list[Event]) -> bool:
        """Moves the oldest event to ``taken``; whether waiting is over. The lock is held."""
        queue = self._queue
        while queue and not taken:
            event = queue.popleft()
            if event.identity.stage is not Stage.CLOSED:
                event.identity.on_delivered()
                taken.append(event)
        if not queue:
            self._bell.silence()
        return bool(taken) or queue is None

    def _next(self, what: str, shield: Shield | None = None) -> Event:
        """The next event; waits for it, unless O_NONBLOCK is set.

        :param shield: that the caller is in
        """
        self._open()
        device = self.device
        taken: list[Event] = []
        with device.lock:
            self._take(taken)
        if not taken:
            if self._bell.blocking():
                device.wait_until(lambda: self._take(taken), None, shield)
            else:
                device.progress()
                with device.lock:
                    self._take(taken)
                if not taken:
                    raise refused(f"{what}: there is no event", errno.EAGAIN)
        if not taken:
            raise refused(f"{what}: the event channel was closed")
        return taken[0]

    async def event(self) -> "CMEvent":
        """Extension: the next event, for asyncio; one task at a time may wait on a channel. Needs a device that makes
        progress by itself (a thread).
        """
        taken: list[Event] = []
        while True:
            self._open()
            with self.device.lock:
                self._take(taken)
            if taken:
                return CMEvent._of(_processed(taken[0]), self)
            await readable(self._bell.fd)

    def _forget(self, identity: Identity) -> None:
        """Drops the events of an identifier that ends, and requests that nobody has seen; the lock is held."""
        if not self._queue:
            return
        kept: deque[Event] = deque()
        for event in self._queue:
            if event.identity is identity:
                continue
            if event.listener is identity:
                event.identity.close()
                continue
            kept.append(event)
        self._queue = kept
        if not kept:
            self._bell.silence()

    def _move(self, identity: Identity, other: "CMEventChannel") -> None:
        """Gives the events of an identifier, and requests to it that nobody has seen, to another channel; the lock is
        held.
        """
        queue = self._open()
        for event in [event for event in queue if identity in (event.identity, event.listener)]:
            queue.remove(event)
            event.identity.emit = other._push
            other._push(event)
        if not queue:
            self._bell.silence()
        identity.emit = other._push

    @shielded
    def close(self) -> None:
        """Ends the channel. Twice does nothing."""
        queue, self._queue = self._queue, None
        self._bell.close()
        if queue and queue[0].identity.device.usable():
            with queue[0].identity.device.lock:
                for event in queue:
                    if event.kind is Kind.CONNECT_REQUEST:
                        event.identity.close()


class CMEvent(PyverbsCM):
    """An event, ``struct rdma_cm_event`` (rdma_get_cm_event(3))."""

    def __init__(self, channel: CMEventChannel) -> None:
        """Reads the next event; waits for one, unless O_NONBLOCK is set on the channel's ``fd``: then EAGAIN.

        What comes with some events is done here: the QP of a CMID is made ready when the peer has accepted, goes to
        ERR when it has refused, and is attached to a multicast group that was joined.

        :param channel: where from
        """
        self._event: Event | None = None
        instance(channel, CMEventChannel, "CMEvent channel")
        self._channel = channel
        with Shield() as shield:
            self._event = _processed(channel._next("Failed to create CMEvent", shield))

    @classmethod
    def _of(cls, event: Event, channel: CMEventChannel) -> "CMEvent":
        made = cls.__new__(cls)
        made._event, made._channel = event, channel
        return made

    def _open(self) -> Event:
        if self._event is None:
            raise refused("the event was acknowledged")
        return self._event

    @property
    def event_type(self) -> int:
        """RDMA_CM_EVENT_ADDR_RESOLVED and so on."""
        return int(self._open().kind.value)

    @property
    def status(self) -> int:
        """Extension: 0; the reason of a rejection, IBA 12.6.7.2; or a negative errno."""
        return self._open().status

    @property
    def private_data(self) -> bytes:
        """What the peer has to say; with the zeros that follow it in the message."""
        return self._open().private_data

    @property
    def param(self) -> "ConnParam | None":
        """Extension (``param.conn``): of CONNECT_REQUEST and CONNECT_RESPONSE: what the peer says of the connection,
        from the view of this side.
        """
        from softverbs.pyverbs._cm_param import ConnParam

        found = self._open().param
        if found is None:
            return None
        return ConnParam(
            found.responder_resources,
            found.initiator_depth,
            found.flow_control,
            found.retry_count,
            found.rnr_retry_count,
            found.srq,
            found.qp_num,
        )

    def event_str(self) -> str:
        """The name of the event; nothing when it was acknowledged."""
        return "" if self._event is None else f"RDMA_CM_EVENT_{self._event.kind.name}"

    @shielded
    def ack_cm_event(self) -> None:
        """Acknowledges it (rdma_ack_cm_event(3)). A request that no CMID was made of is refused then."""
        event, self._event = self._event, None
        if event is None:
            raise refused("Failed to Acknowledge Event - : it was acknowledged already")
        identity = event.identity
        if event.kind is Kind.CONNECT_REQUEST and identity.user is None and identity.device.usable():
            with identity.device.lock:
                identity.close()

    def close(self) -> None:
        """Acknowledges it, where that was not done. Twice does nothing."""
        if self._event is not None:
            self.ack_cm_event()

    def __str__(self) -> str:
        return f"{self.event_str()}, status {self._event.status}" if self._event is not None else "acknowledged event"


def _processed(event: Event) -> Event:
    """Lets the CMID that an event is about do what comes with it."""
    owner: Any = event.identity.user() if event.identity.user is not None else None
    if owner is not None:
        owner._on_event(event)
    return event
