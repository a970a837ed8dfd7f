# SPDX-License-Identifier: MIT
"""An application of the connection manager on a device of the simulated world: an identifier, and a queue pair."""

from typing import Any

from tests.netsim.sim import CAP, Node

from softverbs.cm.addresses import Address, parse
from softverbs.cm.events import Event, Kind, Param
from softverbs.cm.identity import PS_TCP, Identity
from softverbs.cm.service import Service, service_of
from softverbs.core.queues.wr import SGE, WC, RecvWR, SendWR

INIT, RTR, RTS = 1, 2, 3
RC, UD = 2, 4


def service(node: Node) -> Service:
    with node.device.lock:
        return service_of(node.device)


class App:
    """Holds one identifier. ``events`` are those that nobody has looked at."""

    def __init__(self, node: Node, space: int = PS_TCP, identity: Identity | None = None) -> None:
        self.node = node
        self.events: list[Event] = []
        self.identity = identity or Identity(node.device, space, self.events.append)
        if identity is not None:
            identity.emit = self.events.append
        self.pd = node.pd()
        self.cq = node.cq(64)
        kind = UD if self.identity.datagrams else RC
        self.qp = node.qp(self.pd, self.cq, cap=CAP, kind=kind)
        self.memory = node.region(self.pd, 4096)

    def wait(self, kind: Kind) -> Event:
        """Lets time pass until the next event, which is of this kind."""
        self.node.sim.run_until(lambda: bool(self.events))
        event = self.events.pop(0)
        assert event.kind is kind, event
        return event

    def move(self, *states: int) -> None:
        for state in states:
            self.qp.modify(*self.identity.attributes(state))

    def prepare(self) -> None:
        """INIT; a queue pair of datagrams goes to RTS at once."""
        self.move(INIT)
        if self.identity.datagrams:
            self.move(RTR, RTS)

    def resolve(self, address: Address, source: Address | None = None) -> None:
        self.identity.resolve_addr(source, address)
        self.wait(Kind.ADDR_RESOLVED)
        self.identity.resolve_route()
        self.wait(Kind.ROUTE_RESOLVED)

    def connect(self, address: Address, private_data: bytes = b"", **param: Any) -> None:
        """Resolves and asks; the answer is an event."""
        self.resolve(address)
        self.prepare()
        self.identity.connect(Param(private_data, qp_num=self.qp.qp_num, **param))

    def finish(self) -> Event:
        """The peer has accepted: the queue pair becomes ready."""
        event = self.wait(Kind.CONNECT_RESPONSE)
        self.move(INIT, RTR, RTS)
        self.identity.establish()
        return event

    def listen(self, port: int, address: str | None = None, backlog: int = 0) -> Address:
        """Listens on the device's address; that address."""
        own = parse(address or self.node.name, port)
        self.identity.bind(own)
        self.identity.listen(backlog)
        return own

    def request(self) -> "App":
        """Waits for a request: an application that answers it."""
        event = self.wait(Kind.CONNECT_REQUEST)
        event.identity.on_delivered()
        child = App(self.node, identity=event.identity)
        child.events.append(event)
        return child

    def accept(self, private_data: bytes = b"", **param: Any) -> None:
        wanted = Param(private_data, qp_num=self.qp.qp_num, **param)
        self.identity.negotiate(wanted)
        self.prepare()
        if not self.identity.datagrams:
            self.move(INIT, RTR, RTS)
        self.identity.accept(wanted)

    def send(self, data: bytes, wr_id: int = 1) -> None:
        self.memory.put(0, data)
        self.qp.post_send(SendWR(wr_id, 2, 1, sg=[SGE(self.memory.iova, len(data), self.memory.key)]))

    def receive(self, size: int = 64, wr_id: int = 2) -> None:
        self.qp.post_recv(RecvWR(wr_id, 1, [SGE(self.memory.iova + 1024, size, self.memory.key)]))

    def completion(self) -> WC:
        self.node.sim.run_until(lambda: self.cq.count() > 0)
        return self.cq.poll(1)[0]


def pair(one: App, other: App, port: int = 7000, private_data: bytes = b"", answer: bytes = b"") -> App:
    """Connects ``one`` to ``other``, which listens; the application at the other end."""
    address = other.listen(port)
    one.connect(address, private_data)
    child = other.request()
    child.events.clear()
    child.accept(answer)
    one.finish()
    child.wait(Kind.ESTABLISHED)
    return child
