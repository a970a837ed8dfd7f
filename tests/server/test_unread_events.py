# SPDX-License-Identifier: MIT
"""Unread events go with their object: a descriptor is readable exactly while there is an event to read."""

from __future__ import annotations

import random
import select
import socket

import pytest
from tests.server.client import Channel, Client, Cq
from tests.server.conftest import Served

from softverbs.server import session

LIMIT_REACHED = 15


@pytest.fixture
def client(served: Served) -> Client:
    return Client(served.path)


def _readable(where: socket.socket, timeout: float = 0) -> bool:
    return bool(select.select([where], [], [], timeout)[0])


class Side:
    """A program with objects that have events: its model of what is unread, and how they are raised and destroyed."""

    def __init__(self, served: Served, client: Client, asynchronous: bool) -> None:
        self.served = served
        self.client = client
        self.asynchronous = asynchronous
        self.channel = Channel(client)
        self.pd = client.pd()
        self.socket = client.events if asynchronous else self.channel.socket
        self.unread: list[int] = []
        self.objects: list[int] = []

    def make(self) -> None:
        if self.asynchronous:
            self.objects.append(self.client.call("CREATE_SRQ", pd=self.pd, max_wr=4, max_sge=1)["handle"])
        else:
            self.objects.append(Cq(self.client, 4, self.channel.handle).handle)

    def fire(self, handle: int) -> None:
        if self.asynchronous:
            self.client.call("MODIFY_SRQ", handle=handle, attr_mask=2, srq_limit=1)
        else:
            with self.served.device.lock:
                (core,) = [one.entries[handle].core for one in self.served.server.sessions if handle in one.entries]
                core.channel.push(core)
        self.unread.append(handle)

    def destroy(self, handle: int) -> None:
        self.client.call("DESTROY_SRQ" if self.asynchronous else "DESTROY_CQ", handle=handle)
        self.objects.remove(handle)
        self.unread = [other for other in self.unread if other != handle]

    def read(self) -> int:
        return int(self.client.next_event()["handle"]) if self.asynchronous else self.channel.next()


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("room", [0, 4096])
@pytest.mark.parametrize("seed", range(2))
def test_the_descriptor_is_readable_while_there_is_an_event(
    served: Served, client: Client, seed: int, room: int, asynchronous: bool
) -> None:
    """A seeded walk; with little room in the socket most of the events wait in the device."""
    draw = random.Random(seed)
    side = Side(served, client, asynchronous)
    if room:
        with served.device.lock:
            for one in served.server.sessions:
                for end in (one.events, *(entry.end for entry in one.entries.values())):
                    if end is not None:
                        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, room)
    for _ in range(150):
        step = draw.random()
        if step < 0.2 or not side.objects:
            side.make()
        elif step < 0.65:
            side.fire(draw.choice(side.objects))
        elif step < 0.85:
            side.destroy(draw.choice(side.objects))
        elif side.unread:
            assert side.read() == side.unread.pop(0)
        with served.device.lock:
            pass  # events are sent behind the answer
        assert _readable(side.socket, 20 if side.unread else 0) == bool(side.unread)
    while side.unread:
        assert side.read() == side.unread.pop(0)
    assert not _readable(side.socket)


def test_destroying_in_order_looks_at_no_other_event(
    served: Served, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The unread events of many objects make destroying them no slower."""
    side = Side(served, client, True)
    for _ in range(100):
        side.make()
        side.fire(side.objects[-1])
    with served.device.lock:
        pass  # events are sent behind the answer
    looks: list[int] = []
    receive = session._receive_now

    def counted(far: socket.socket, flags: int = 0) -> bytes:
        looks.append(flags)
        return receive(far, flags)

    monkeypatch.setattr(session, "_receive_now", counted)
    for handle in list(side.objects):
        side.destroy(handle)
    assert len(looks) == 200, "each looks at its own, and takes it"
    assert not _readable(client.events)
