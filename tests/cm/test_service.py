# SPDX-License-Identifier: MIT
"""The connection manager over queue pair 1 of simulated devices, in virtual time."""

import errno
import random
from collections.abc import Iterator

import pytest
from tests.cm.app import App, pair, service
from tests.cm.test_messages import mad
from tests.netsim.sim import SECOND, Node, Sim

from softverbs.cm import messages
from softverbs.cm.addresses import Address, parse
from softverbs.cm.events import Kind, Param
from softverbs.cm.identity import PS_TCP, PS_UDP, Identity
from softverbs.cm.machine import State
from softverbs.cm.messages import Dreq, IpHeader, Message, Rej, Rep, Req, SidrReq, decode, service_id_of
from softverbs.core.base.errors import PyverbsRDMAError
from softverbs.core.base.limits import Options

GSI_FRAME = 12 + 8 + 256 + 4


@pytest.fixture
def sim() -> Iterator[Sim]:
    with Sim() as made:
        yield made


@pytest.fixture
def nodes(sim: Sim) -> tuple[Node, Node]:
    return sim.node(seed=1), sim.node(seed=2)


def mads(sim: Sim, lose: int = 0) -> list[tuple[str, Message]]:
    """Notes every MAD on the wire; the first ``lose`` of them are lost."""
    seen: list[tuple[str, Message]] = []

    def tap(node: Node, frame: bytes) -> list[bytes]:
        if len(frame) != GSI_FRAME or frame[5:8] != b"\0\0\1":
            return [frame]
        seen.append((node.name, decode(frame[20:276])))
        return [] if len(seen) <= lose else [frame]

    sim.tap = tap
    return seen


def kinds(seen: list[tuple[str, Message]]) -> list[str]:
    return [type(message).__name__ for _, message in seen]


def refuses(code: int, words: str) -> pytest.RaisesExc[PyverbsRDMAError]:
    return pytest.RaisesExc(PyverbsRDMAError, match=words, check=lambda error: error.error_code == code)


def test_connect_talk_disconnect(sim: Sim, nodes: tuple[Node, Node]) -> None:
    seen = mads(sim)
    client, server = App(nodes[0]), App(nodes[1])
    address = server.listen(7000)
    client.connect(address, b"hello", responder_resources=3, initiator_depth=200)
    child = server.request()
    request = child.events.pop()
    assert request.listener is server.identity and request.private_data == b"hello".ljust(56, b"\0")
    assert request.param is not None and request.param.responder_resources == 128  # what the client will ask for
    assert (request.param.initiator_depth, request.param.qp_num) == (3, client.qp.qp_num)
    assert child.identity.destination is not None and child.identity.destination.text == "10.0.0.1"
    assert child.identity.destination.port == client.identity.source.port  # type: ignore[union-attr]
    child.accept(b"welcome", responder_resources=2, initiator_depth=9)
    child.receive()
    response = client.finish()
    assert response.private_data == b"welcome".ljust(196, b"\0")
    assert response.param is not None
    assert (response.param.responder_resources, response.param.initiator_depth) == (9, 2)
    child.wait(Kind.ESTABLISHED)
    values = client.qp.query(), child.qp.query()
    assert [each["max_rd_atomic"] for each in values] == [2, 9]
    assert [each["max_dest_rd_atomic"] for each in values] == [9, 2], "what the accepting side says counts"
    assert [each["min_rnr_timer"] for each in values] == [0, 0]  # 655 ms
    client.send(b"over the connection")
    wc = child.completion()
    assert wc.status == 0 and child.memory.at(1024, wc.byte_len) == b"over the connection"
    assert client.completion().status == 0
    client.identity.disconnect()
    child.wait(Kind.DISCONNECTED)
    child.identity.disconnect()
    client.wait(Kind.DISCONNECTED)
    assert client.wait(Kind.TIMEWAIT_EXIT) and child.wait(Kind.TIMEWAIT_EXIT)
    assert kinds(seen) == ["Req", "Rep", "Rtu", "Dreq", "Drep"]
    assert not service(nodes[0]).exchanges and not service(nodes[1]).exchanges
    req = seen[0][1]
    assert isinstance(req, Req)
    assert (req.local_gid, req.remote_gid, req.ca_guid) == (nodes[0].gid, nodes[1].gid, nodes[0].device.guid)
    assert service(nodes[1]).stats()["received_req"] == 1


@pytest.mark.parametrize("layouts", [("mlx5", "mlx5"), ("repeat", "mlx5"), ("mlx5", "single")])
def test_the_gid_tables_of_the_two_sides_may_differ(sim: Sim, layouts: tuple[str, str]) -> None:
    """An identifier has an IP address, and so the entry of RoCE v2 that is this address."""
    one, other = (sim.node(seed=seed, options=Options(gid_table=layout)) for seed, layout in enumerate(layouts))
    client, server = App(one), App(other)
    child = pair(client, server)
    for app, layout in ((client, layouts[0]), (child, layouts[1])):
        assert app.identity.vector().sgid_index == (3 if layout == "mlx5" else 0)
    child.receive()
    client.send(b"words")
    assert child.completion().status == 0 and child.memory.at(1024, 5) == b"words"
    asked, listener = App(one, PS_UDP), App(other, PS_UDP)
    asked.connect(listener.listen(7001))
    answer = listener.request()
    assert answer.events.pop(0).vector.sgid_index == (3 if layouts[1] == "mlx5" else 0)
    joins = App(one, PS_UDP)
    joins.identity.bind(parse(one.name))
    joins.identity.join(parse("230.0.0.1", 0), False)
    assert joins.wait(Kind.MULTICAST_JOIN).vector.sgid_index == (3 if layouts[0] == "mlx5" else 0)


def test_rejected_with_words(sim: Sim, nodes: tuple[Node, Node]) -> None:
    client, server = App(nodes[0]), App(nodes[1])
    client.connect(server.listen(7000))
    child = server.request()
    child.identity.reject(b"no room")
    event = client.wait(Kind.REJECTED)
    assert event.status == messages.REJ_CONSUMER and event.private_data == b"no room".ljust(148, b"\0")
    with refuses(errno.EINVAL, "route|connecting"):
        client.identity.connect(Param(qp_num=1))


@pytest.mark.parametrize("comes", [True, False])
def test_who_listens_a_moment_later_is_reached(sim: Sim, nodes: tuple[Node, Node], comes: bool) -> None:
    """On one host, where asking takes no time: two programs that start together find each other."""
    known: dict[int, bytes] = {}
    service(nodes[0]).locate = lambda space, address: known.get(address.port)  # type: ignore[method-assign]
    client, server = App(nodes[0]), App(nodes[1])
    client.connect(parse("10.0.0.2", 7000))
    sim.run_for(SECOND // 5)
    assert not client.events, "it waits"
    if comes:
        known[server.listen(7000).port] = nodes[1].gid
        assert server.request().identity.destination is not None
    else:
        assert client.wait(Kind.REJECTED).status == messages.REJ_INVALID_SERVICE_ID
        assert sim.now < 2 * SECOND


def test_an_identifier_that_waits_for_a_listener_ends(sim: Sim, nodes: tuple[Node, Node]) -> None:
    service(nodes[0]).locate = lambda space, address: None  # type: ignore[method-assign]
    client = App(nodes[0])
    client.connect(parse("10.0.0.2", 7000))
    client.identity.close()
    sim.run_for(SECOND)
    assert not client.events and not service(nodes[0]).due


def test_nobody_listens(sim: Sim, nodes: tuple[Node, Node]) -> None:
    service(nodes[1])
    client = App(nodes[0])
    client.connect(parse("10.0.0.2", 7000))
    assert client.wait(Kind.REJECTED).status == messages.REJ_INVALID_SERVICE_ID


def test_nobody_is_there(sim: Sim, nodes: tuple[Node, Node]) -> None:
    """A device without a connection manager does not answer."""
    client = App(nodes[0])
    client.connect(parse("10.0.0.2", 7000))
    start = sim.now
    assert client.wait(Kind.UNREACHABLE).status == -errno.ETIMEDOUT
    assert 10 * SECOND < sim.now - start < 20 * SECOND


def test_other_port_spaces_are_other_services(sim: Sim, nodes: tuple[Node, Node]) -> None:
    server, datagrams = App(nodes[1]), App(nodes[1], PS_UDP)
    address = server.listen(7000)
    datagrams.listen(7000)
    client = App(nodes[0])
    client.connect(address)
    assert server.request().identity.space == PS_TCP
    assert not datagrams.events


def test_a_listener_of_all_addresses_gives_way_to_one_of_this(sim: Sim, nodes: tuple[Node, Node]) -> None:
    everything, other = App(nodes[1]), App(nodes[1])
    everything.listen(7000, "0.0.0.0")
    client = App(nodes[0])
    client.connect(parse("10.0.0.2", 7000))
    assert everything.request()
    with refuses(errno.EADDRNOTAVAIL, "in use"):
        other.identity.bind(parse("10.0.0.2", 7000))
    other.listen(7001)
    assert service(nodes[1]).ports.listener(PS_TCP, 7001, parse("10.0.0.2").ip) is other.identity
    everything.identity.close()
    other.identity.close()
    App(nodes[1]).listen(7000)


def test_backlog(sim: Sim, nodes: tuple[Node, Node]) -> None:
    """What does not fit into the backlog is dropped, asks again, and comes in when the application has got the others,
    whether it has answered them or not.
    """
    server = App(nodes[1])
    address = server.listen(7000, backlog=1)
    first, second = App(nodes[0]), App(nodes[0])
    first.connect(address)
    second.connect(address)
    sim.run_for(2 * SECOND)
    assert len(server.events) == 1 and service(nodes[1]).stats()["dropped_backlog"] == 2
    child, other = server.request(), server.request()
    child.accept()
    first.finish()
    other.accept()
    second.finish()


@pytest.mark.parametrize("lost", [1, 2, 3])
def test_a_lost_message_comes_again(sim: Sim, nodes: tuple[Node, Node], lost: int) -> None:
    client, server = App(nodes[0]), App(nodes[1])
    count = [0]

    def tap(node: Node, frame: bytes) -> list[bytes]:
        count[0] += 1
        return [] if count[0] == lost else [frame]

    sim.tap = tap
    child = pair(client, server)
    assert client.identity.machine is not None and client.identity.machine.state is State.ESTABLISHED
    assert child.identity.machine is not None and child.identity.machine.state is State.ESTABLISHED


@pytest.mark.parametrize("seed", range(12))
def test_walk(seed: int) -> None:
    """Connections over a network that loses, repeats, reorders and damages: all come about, all end, none is left."""
    chance = random.Random(seed)
    faults = {"drop": 0.2, "duplicate": 0.2, "reorder": 0.2, "corrupt": 0.05}
    with Sim() as sim:
        one, other = sim.node(seed=seed, **faults), sim.node(seed=seed + 100, **faults)
        server = App(other)
        address = server.listen(7000)
        clients = [App(one) for _ in range(4)]
        for client in clients:
            client.connect(address, bytes([chance.randrange(256)]))
        children = [server.request() for _ in clients]
        for child in children:
            child.events.clear()
            child.accept()
        for client in clients:
            client.finish()
        for child in children:
            child.wait(Kind.ESTABLISHED)
        ends = clients + children
        for end in chance.sample(ends, len(ends)):
            end.identity.disconnect()
        for end in ends:
            end.wait(Kind.DISCONNECTED)
            end.wait(Kind.TIMEWAIT_EXIT)
            assert not end.events
        assert not server.events
        sim.run_for(60 * SECOND)
        assert not service(one).exchanges and not service(other).exchanges
        assert not service(one)._by_remote_qp and not service(other)._by_remote


# -- datagrams


def test_datagrams(sim: Sim, nodes: tuple[Node, Node]) -> None:
    seen = mads(sim)
    client, server = App(nodes[0], PS_UDP), App(nodes[1], PS_UDP)
    client.connect(server.listen(7000), b"which one?")
    child = server.request()
    request = child.events.pop()
    assert request.private_data == b"which one?".ljust(180, b"\0")
    child.accept(b"this one")
    event = client.wait(Kind.ESTABLISHED)
    assert event.private_data == b"this one".ljust(136, b"\0")
    assert (event.qp_num, event.qkey) == (child.qp.qp_num, 0x01234567)
    assert event.vector is not None and event.vector.dgid == nodes[1].gid
    assert kinds(seen) == ["SidrReq", "SidrRep"]
    assert child.qp.query()["qkey"] == client.qp.query()["qkey"] == 0x01234567
    sim.run_for(60 * SECOND)
    assert not service(nodes[1]).exchanges


def test_datagrams_refused(sim: Sim, nodes: tuple[Node, Node]) -> None:
    client, server = App(nodes[0], PS_UDP), App(nodes[1], PS_UDP)
    address = server.listen(7000)
    client.connect(address.with_port(7001))
    assert client.wait(Kind.UNREACHABLE).status == messages.SIDR_UNSUPPORTED
    second = App(nodes[0], PS_UDP)
    second.connect(address)
    child = server.request()
    child.identity.reject(b"closed")
    event = second.wait(Kind.UNREACHABLE)
    assert event.status == messages.SIDR_REJECT and event.private_data.startswith(b"closed\0")
    third = App(nodes[0], PS_UDP)
    third.connect(address)
    server.request().identity.close()
    assert third.wait(Kind.UNREACHABLE).status == messages.SIDR_REJECT


def test_a_lost_answer_is_given_again(sim: Sim, nodes: tuple[Node, Node]) -> None:
    seen = mads(sim)
    client, server = App(nodes[0], PS_UDP), App(nodes[1], PS_UDP)
    client.connect(server.listen(7000))
    child = server.request()
    sim.tap = lambda node, frame: []
    child.accept()
    sim.run_for(SECOND // 10)
    mads(sim)
    client.wait(Kind.ESTABLISHED)
    assert not server.events
    assert len(seen) == 1


def test_datagrams_that_nobody_answers(sim: Sim, nodes: tuple[Node, Node]) -> None:
    client = App(nodes[0], PS_UDP)
    client.connect(parse("10.0.0.2", 7000))
    assert client.wait(Kind.UNREACHABLE).status == -errno.ETIMEDOUT


# -- what a peer may send


def ask(node: Node, **fields: object) -> Req:
    """A REQ as a foreign device, 10.0.0.3, might send it to ``node``."""
    header = IpHeader(parse("10.0.0.3").ip, parse(node.name).ip, 999)
    values = {
        "local_comm_id": 77, "qpn": 88, "ca_guid": 99, "path_mtu": 3, "service_id": service_id_of(PS_TCP, 7000),
        "local_response_timeout": 18, "max_cm_retries": 15, "private_data": header.encode(),
        "local_gid": parse("10.0.0.3").gid, "remote_gid": node.gid,
    }  # fmt: skip
    return Req(**{**values, **fields})  # type: ignore[arg-type]


class Stranger:
    """A device whose connection manager sends what it is told to, and keeps what it is sent."""

    def __init__(self, sim: Sim) -> None:
        self.node = sim.node(seed=9)
        self.sim = sim
        self.service = service(self.node)
        self.got: list[Message] = []
        self.service._wire._take = lambda source, index, mad: self.got.append(decode(mad))

    def send(self, node: Node, message: Message | bytes) -> list[Message]:
        """Sends a message and returns what came back."""
        data = message if isinstance(message, bytes) else message.encode()
        self.service._wire.send(0, node.gid, data)
        self.sim.run_for(SECOND // 100)
        got, self.got[:] = list(self.got), []
        return got


@pytest.fixture
def stranger(sim: Sim, nodes: tuple[Node, Node]) -> Stranger:
    return Stranger(sim)


def reason(got: list[Message]) -> int:
    (rej,) = got
    assert isinstance(rej, Rej)
    return rej.reason


def test_requests_that_cannot_be_had(nodes: tuple[Node, Node], stranger: Stranger) -> None:
    node = nodes[1]
    server = App(node)
    server.listen(7000)
    assert reason(stranger.send(node, ask(node, transport=2))) == messages.REJ_INVALID_TRANSPORT
    assert reason(stranger.send(node, ask(node, transport=3, extended_transport=1))) == messages.REJ_INVALID_TRANSPORT
    assert reason(stranger.send(node, ask(node, service_id=service_id_of(PS_TCP, 7001)))) == 8
    assert not server.events
    counts = service(node).counts
    for wrong, cause in (
        (ask(node, local_gid=parse("10.0.0.1").gid), "source"),
        (ask(node, remote_gid=parse("10.0.0.9").gid), "source"),
        (ask(node, service_id=0x1234567890), "service"),
        (ask(node, private_data=b"\x11\x40"), "value"),
        (ask(node, private_data=b"\0\x70"), "value"),
    ):
        before = counts[f"dropped_{cause}"]
        assert stranger.send(node, wrong) == []
        assert counts[f"dropped_{cause}"] == before + 1
    assert not server.events and not service(node).exchanges


def test_a_mtu_too_large() -> None:
    with Sim(mtu=1200) as sim:
        small = sim.node(seed=1)
        other = sim.node(seed=2)
        stranger = Stranger(sim)
        App(small).listen(7000)
        (rej,) = stranger.send(small, ask(small, path_mtu=5))
        assert isinstance(rej, Rej) and (rej.reason, rej.info_length, rej.info[0]) == (messages.REJ_INVALID_MTU, 1, 3)
        client = App(other)
        client.connect(parse("10.0.0.1", 7000))
        assert client.identity.machine is not None and client.identity.machine.req is not None
        assert client.identity.machine.req.path_mtu == 3


def test_a_request_that_comes_twice(nodes: tuple[Node, Node], stranger: Stranger) -> None:
    node = nodes[1]
    server = App(node)
    server.listen(7000)
    assert stranger.send(node, ask(node)) == []
    (mra,) = stranger.send(node, ask(node))
    assert isinstance(mra, messages.Mra) and mra.service_timeout == 24
    child = server.request()
    assert not server.events
    child.events.clear()
    child.accept()
    first = stranger.send(node, ask(node))
    assert {message.encode() for message in first} == {first[0].encode()} and isinstance(first[0], Rep)


def test_a_number_that_is_used_again(sim: Sim, nodes: tuple[Node, Node], stranger: Stranger) -> None:
    """A peer that has restarted and uses its queue pair again: its old connection ends (IBA 12.9.8.3.1)."""
    node = nodes[1]
    server = App(node)
    server.listen(7000)
    stranger.send(node, ask(node))
    child = server.request()
    child.events.clear()
    child.accept()
    sim.run_for(SECOND // 100)
    (rep,) = stranger.got
    stranger.got.clear()
    assert isinstance(rep, Rep)
    stranger.send(node, messages.Rtu(local_comm_id=77, remote_comm_id=rep.local_comm_id))
    child.wait(Kind.ESTABLISHED)
    got = stranger.send(node, ask(node, local_comm_id=78))
    assert [type(message) for message in got] == [Dreq, Rej]
    assert got[1].reason == messages.REJ_STALE_CONN  # type: ignore[attr-defined]
    stranger.send(node, messages.Drep(local_comm_id=77, remote_comm_id=rep.local_comm_id))
    child.wait(Kind.DISCONNECTED)
    assert not server.events


def test_strangers_cannot_end_a_connection(sim: Sim, nodes: tuple[Node, Node], stranger: Stranger) -> None:
    client, server = App(nodes[0]), App(nodes[1])
    child = pair(client, server)
    machine = child.identity.machine
    assert machine is not None
    numbers = {"local_comm_id": machine.remote_comm_id, "remote_comm_id": machine.local_comm_id}
    for message in (Dreq(remote_qpn=child.qp.qp_num, **numbers), Rej(**numbers), messages.Drep(**numbers)):
        assert stranger.send(nodes[1], message) == []
    assert service(nodes[1]).stats()["dropped_source"] == 3
    assert machine.state is State.ESTABLISHED and not child.events


def test_messages_about_nothing(nodes: tuple[Node, Node], stranger: Stranger) -> None:
    node = nodes[1]
    service(node)
    (rej,) = stranger.send(node, Rep(local_comm_id=5, remote_comm_id=6, qpn=7))
    assert isinstance(rej, Rej)
    assert (rej.reason, rej.about, rej.remote_comm_id) == (messages.REJ_INVALID_COMM_ID, messages.ABOUT_REP, 5)
    (drep,) = stranger.send(node, Dreq(local_comm_id=5, remote_comm_id=6, remote_qpn=7))
    assert isinstance(drep, messages.Drep) and (drep.local_comm_id, drep.remote_comm_id) == (6, 5)
    for message in (messages.Rtu(5, 6), messages.Drep(5, 6), Rej(5, 6), messages.Mra(5, 6), messages.SidrRep(5, 1)):
        assert stranger.send(node, message) == []
    assert service(node).stats()["dropped_unknown"] == 7


def test_noise(sim: Sim, nodes: tuple[Node, Node], stranger: Stranger) -> None:
    """Datagrams of any content and length to queue pair 1: dropped and counted, and the service goes on."""
    node = nodes[1]
    server = App(node)
    address = server.listen(7000)
    chance = random.Random(3)
    golden = [ask(node).encode(), SidrReq(request_id=4, service_id=service_id_of(PS_UDP, 7)).encode(), mad("REP")]
    for _ in range(400):
        data = bytearray(chance.choice(golden))
        for _ in range(chance.randrange(6)):
            data[chance.randrange(len(data))] = chance.randrange(256)
        stranger.service._wire.send(0, node.gid, bytes(data[: chance.choice([256, 256, 256, 0, 24, 255])]))
        if chance.random() < 0.1:
            sim.run_for(SECOND // 1000)
    sim.run_for(SECOND)
    stats = service(node).stats()
    assert sum(count for name, count in stats.items() if name.startswith("dropped_")) > 50
    while server.events:
        server.events.pop().identity.close()
    client = App(nodes[0])
    client.connect(address)
    server.request().accept()
    client.finish()


def test_what_soft_roce_sends(sim: Sim) -> None:
    """The REQ and the SIDR_REQ of the captures, to a device that has the address of the capture."""
    node = Node(sim, "10.77.0.2", 1, None, True, {})
    sim.nodes.append(node)
    server, datagrams = App(node), App(node, PS_UDP)
    server.identity.bind(Address(parse("10.77.0.2").ip, 7174))
    server.identity.listen(0)
    datagrams.identity.bind(Address(parse("10.77.0.2").ip, 7174))
    datagrams.identity.listen(0)
    sent: list[tuple[int, bytes, bytes]] = []
    service(node)._wire.send = lambda index, dgid, data, tclass=0: sent.append((index, dgid, data))
    source = parse("10.77.0.3").gid
    service(node).on_mad(source, 0, mad("REQ"))
    child = App(node, identity=server.wait(Kind.CONNECT_REQUEST).identity)
    child.identity.negotiate(Param())
    child.identity.accept(Param(qp_num=child.qp.qp_num))
    index, dgid, data = sent.pop()
    rep = decode(data)
    assert isinstance(rep, Rep) and (index, dgid) == (0, source)
    assert (rep.remote_comm_id, rep.transaction_id) == (0x14D67A72, 0x2727AD614)
    rtu = bytearray(mad("RTU"))
    rtu[28:32] = rep.local_comm_id.to_bytes(4, "big")
    service(node).on_mad(source, 0, bytes(rtu))
    child.wait(Kind.ESTABLISHED)
    dreq = bytearray(mad("DREQ"))
    dreq[28:32] = rep.local_comm_id.to_bytes(4, "big")
    dreq[32:35] = child.qp.qp_num.to_bytes(3, "big")
    service(node).on_mad(source, 0, bytes(dreq))
    child.wait(Kind.DISCONNECTED)
    child.identity.disconnect()
    drep = decode(sent.pop()[2])
    assert isinstance(drep, messages.Drep) and drep.remote_comm_id == 0x14D67A72
    service(node).on_mad(source, 0, mad("SIDR_REQ"))
    asked = datagrams.wait(Kind.CONNECT_REQUEST).identity
    asked.accept(Param(qp_num=0x42))
    expected = bytearray(mad("SIDR_REP"))
    assert sent.pop()[2] == expected


# -- the identifier's own rules


def test_what_is_done_in_the_wrong_state(sim: Sim, nodes: tuple[Node, Node]) -> None:
    app = App(nodes[0])
    identity = app.identity
    for call in (
        identity.resolve_route,
        lambda: identity.connect(Param(qp_num=5)),
        lambda: identity.accept(Param(qp_num=5)),
        lambda: identity.reject(b""),
        identity.establish,
        identity.disconnect,
        lambda: identity.attributes(2),
        lambda: identity.attributes(6),
        lambda: identity.join(parse("230.0.0.1"), False),
    ):
        with refuses(errno.EINVAL, "."):
            call()
    with refuses(errno.EADDRNOTAVAIL, "no address"):
        identity.bind(parse("192.0.2.1", 7000))
    app.resolve(parse("10.0.0.2", 7000))
    with refuses(errno.EINVAL, "queue pair"):
        identity.connect(Param())
    with refuses(errno.EINVAL, "57 bytes of private data: 56"):
        identity.connect(Param(bytes(57), qp_num=5))
    with refuses(errno.EINVAL, "for datagrams"):
        identity.join(parse("230.0.0.1"), False)
    with refuses(errno.EINVAL, "route resolved"):
        identity.resolve_addr(None, parse("10.0.0.2", 7000))
    with refuses(errno.EINVAL, "route resolved"):
        identity.listen(0)
    with refuses(errno.EADDRNOTAVAIL, "not joined"):
        identity.leave(parse("230.0.0.1"))
    identity.close()
    identity.close()


def test_resolving_what_cannot_be(sim: Sim, nodes: tuple[Node, Node]) -> None:
    app = App(nodes[0])
    app.identity.resolve_addr(None, parse("2001:db8::1", 1))
    assert app.wait(Kind.ADDR_ERROR).status == -errno.EHOSTUNREACH
    app.identity.resolve_addr(None, parse("10.0.0.9", 1))
    app.wait(Kind.ADDR_RESOLVED)
    assert app.identity.source is not None and app.identity.source.text == "10.0.0.1"


def test_ports(sim: Sim, nodes: tuple[Node, Node]) -> None:
    one, other = (Identity(nodes[0].device, PS_TCP, lambda event: None) for _ in range(2))
    one.bind(parse("10.0.0.1"))
    other.bind(parse("10.0.0.1"))
    assert one.source is not None and other.source is not None
    assert one.source.port != other.source.port and one.source.port >= 32768
    with refuses(errno.EINVAL, "bound"):
        one.bind(parse("10.0.0.1"))
    third = Identity(nodes[0].device, PS_TCP, lambda event: None)
    with refuses(errno.EADDRNOTAVAIL, "in use by an identifier that is bound to 10.0.0.1"):
        third.bind(parse("0.0.0.0", one.source.port))
    with refuses(errno.EADDRINUSE, "in use"):
        third.bind(parse("10.0.0.1", one.source.port))
    one.close()
    third.bind(parse("0.0.0.0", one.source.port))


def test_multicast(sim: Sim, nodes: tuple[Node, Node]) -> None:
    app = App(nodes[0], PS_UDP)
    app.identity.bind(parse("10.0.0.1"))
    app.identity.join(parse("230.0.0.1"), False)
    event = app.wait(Kind.MULTICAST_JOIN)
    assert event.vector is not None and event.vector.dgid == bytes.fromhex("00000000000000000000ffffe6000001")
    assert (event.qp_num, event.qkey) == (0xFFFFFF, 0x01234567)
    assert app.identity.leave(parse("230.0.0.1")).gid == event.vector.dgid


def test_a_device_that_closes_tells_the_peers(sim: Sim, nodes: tuple[Node, Node]) -> None:
    client, server = App(nodes[0]), App(nodes[1])
    child = pair(client, server)
    nodes[0].device.close()
    sim.nodes.remove(nodes[0])
    child.wait(Kind.DISCONNECTED)
    client.events[:] = [event for event in client.events if event.kind is not Kind.DISCONNECTED]
    assert client.wait(Kind.DEVICE_REMOVAL)


def test_queue_pair_1_begins_anew(sim: Sim, nodes: tuple[Node, Node]) -> None:
    """A fault on demand may put every queue pair to ERR; the connection manager goes on."""
    server = App(nodes[1])
    address = server.listen(7000)
    for node in nodes:
        service(node)._wire._qp.fatal("a fault")
    sim.run_for(SECOND // 100)
    client = App(nodes[0])
    client.connect(address)
    server.request().accept()
    client.finish()


def test_a_device_that_is_removed(sim: Sim, nodes: tuple[Node, Node]) -> None:
    client, server = App(nodes[0]), App(nodes[1])
    pair(client, server)
    nodes[0].device.remove("by hand")
    assert [event.kind for event in client.events] == [Kind.DEVICE_REMOVAL]
    nodes[0].device.close()
    assert len(client.events) == 1
    sim.nodes.remove(nodes[0])


@pytest.mark.parametrize(
    "rule", ["post_send:every=2", "post_recv:every=2", "poll_cq:every=2", "completion:every=3:fail=LOC_LEN_ERR"]
)
def test_faults_on_demand_are_survived(sim: Sim, nodes: tuple[Node, Node], rule: str) -> None:
    """Whatever fails in queue pair 1 is a lost datagram, at most."""
    server = App(nodes[1])
    address = server.listen(7000)
    client = App(nodes[0])
    client.resolve(address)
    client.prepare()
    for node in nodes:
        node.device.faults.add(rule)
    client.identity.connect(Param(qp_num=client.qp.qp_num))
    server.request().accept()
    client.finish()


def test_where_no_datagram_can_go(sim: Sim, nodes: tuple[Node, Node]) -> None:
    wire = service(nodes[0])._wire
    wire.send(0, parse("2001:db8::1").gid, bytes(256))
    assert wire.unsent == 1
    for number in range(300):
        wire.send(0, parse(f"10.0.{2 + number // 250}.{number % 250}").gid, bytes(256))
    sim.run_for(SECOND // 100)
    assert len(wire._handles) == 256 and wire.unsent < 300
    client = App(nodes[0])
    client.connect(App(nodes[1]).listen(7000))
