# SPDX-License-Identifier: MIT
"""Asynchronous events, ibv_get_async_event(3): what happened to an object, to the port or to the device."""

import weakref
from typing import TYPE_CHECKING

from softverbs.pyverbs import libibverbs_enums as e
from softverbs.pyverbs._device_text import translate_event_type
from softverbs.pyverbs._fields import fill, lines, reading
from softverbs.pyverbs.base import PyverbsObject, Resource

if TYPE_CHECKING:
    from softverbs.pyverbs.device import Context

#: Events of the port and of the device: every context gets them.
PORT_EVENTS = frozenset(
    {
        e.IBV_EVENT_PORT_ACTIVE,
        e.IBV_EVENT_PORT_ERR,
        e.IBV_EVENT_LID_CHANGE,
        e.IBV_EVENT_PKEY_CHANGE,
        e.IBV_EVENT_SM_CHANGE,
        e.IBV_EVENT_CLIENT_REREGISTER,
        e.IBV_EVENT_GID_CHANGE,
    }
)
DEVICE_EVENTS = frozenset({e.IBV_EVENT_DEVICE_FATAL, e.IBV_EVENT_DEVICE_SPEED_CHANGE})
_PORT = 1


class Dispatcher:
    """Hands the port's asynchronous events to the contexts they concern. The port calls it with the lock held.

    An event of an object goes to the context that the object belongs to; where that is gone, or where nobody outside
    of the device knows the object, it goes nowhere.
    """

    def __init__(self) -> None:
        self.contexts: weakref.WeakSet[Context] = weakref.WeakSet()

    def __call__(self, event_type: int, element: object) -> None:
        if event_type in PORT_EVENTS or event_type in DEVICE_EVENTS:
            for context in list(self.contexts):
                context._deliver(event_type, None)
            return
        user = getattr(element, "user", None)
        owner = user() if user is not None else None
        if owner is not None and owner._context is not None:
            owner._context._deliver(event_type, user)


class AsyncEvent(PyverbsObject):
    """An asynchronous event, ``struct ibv_async_event`` (ibv_get_async_event(3))."""

    event_type = reading("IBV_EVENT_CQ_ERR and so on.")

    def __init__(self, event_type: int = 0) -> None:
        """
        :param event_type: IBV_EVENT_*
        """
        fill(self, event_type=event_type)
        #: Extension: the QP, CQ or SRQ that it concerns; None for events of the port or the device.
        self.element: Resource | None = None
        self._unacknowledged = False

    @classmethod
    def _of(cls, event_type: int, element: Resource | None) -> "AsyncEvent":
        event = cls(event_type)
        event.element = element
        event._unacknowledged = True
        if element is not None:
            element._async_events += 1
        return event

    @property
    def port_num(self) -> int:
        """Extension: the port that it concerns; 0 for events of an object or of the device."""
        return _PORT if self.event_type in PORT_EVENTS else 0

    def ack(self) -> None:
        """Acknowledges it (ibv_ack_async_event(3)): ``ibv_destroy_qp``, ``ibv_destroy_cq`` and ``ibv_destroy_srq`` wait
        for that.
        """
        if self._unacknowledged and self.element is not None:
            self.element._async_events -= 1
        self._unacknowledged = False

    def __str__(self) -> str:
        return lines(24, ("Event Type", translate_event_type(self.event_type)))
