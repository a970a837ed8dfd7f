# SPDX-License-Identifier: MIT
"""What others can do to a connection manager: peers that lie about who they are, and other users of the host."""

import errno
import os

import pytest
from tests.cm.app import App, pair, service
from tests.cm.test_service import Stranger, ask, reason
from tests.netsim.sim import Node, Sim

from softverbs.cm import messages, registry
from softverbs.cm.addresses import of_gid, parse
from softverbs.cm.events import Event
from softverbs.cm.identity import PS_TCP, Identity
from softverbs.cm.machine import State
from softverbs.cm.messages import IpHeader, Mra
from softverbs.cm.service import service_of
from softverbs.device import Device

ONE, OTHER = parse("127.9.8.7").gid, parse("127.9.8.6").gid
#: A port space that nobody else uses here.
SPACE = os.getpid() & 0x7FFF | 0x8000


@pytest.fixture
def sim() -> "Sim":
    with Sim() as made:
        yield made  # type: ignore[misc]


@pytest.fixture
def nodes(sim: Sim) -> tuple[Node, Node]:
    return sim.node(seed=1), sim.node(seed=2)


def test_a_stranger_that_claims_a_peers_queue_pair_ends_nothing(sim: Sim, nodes: tuple[Node, Node]) -> None:
    """CA GUID and QP number of a REQ are what anybody can know; the GID that it comes from counts too."""
    client, server = App(nodes[0]), App(nodes[1])
    child = pair(client, server)
    machine = child.identity.machine
    assert machine is not None and machine.req is not None
    got = Stranger(sim).send(nodes[1], ask(nodes[1], ca_guid=machine.req.ca_guid, qpn=machine.req.qpn))
    assert got == []  # it is a request like any other, and waits
    assert server.request().identity.exchange is not child.identity.exchange
    assert machine.state is State.ESTABLISHED and not child.events and not client.events


def test_a_peer_that_always_asks_for_more_time_costs_no_memory(sim: Sim, nodes: tuple[Node, Node]) -> None:
    stranger = Stranger(sim)
    client = App(nodes[0])
    client.connect(parse(stranger.node.name, 7000))
    sim.run_for(1_000_000)
    (req,) = stranger.got
    assert isinstance(req, messages.Req)
    owner = service(nodes[0])
    for number in range(300):
        mra = Mra(local_comm_id=5, remote_comm_id=req.local_comm_id, service_timeout=number % 25)
        stranger.send(nodes[0], mra)
    assert owner.counts["received_mra"] >= 300
    assert len(owner._times) <= 2
    machine = client.identity.machine
    assert machine is not None and owner.due <= machine.due
    sim.run_until(lambda: bool(client.events))
    assert client.events[0].status == -errno.ETIMEDOUT and not owner._times


def test_an_address_of_another_host_is_not_asked_for(nodes: tuple[Node, Node], sim: Sim) -> None:
    """The IP header in front of the private data names whom a peer wants; it may name anything."""
    node = nodes[1]
    server = App(node)
    server.listen(7000, "0.0.0.0")
    stranger = Stranger(sim)
    for wanted in ("127.0.0.1", "10.0.0.1", "0.0.0.0", "::1"):
        source = parse("::2" if ":" in wanted else "10.0.0.3").ip
        data = IpHeader(source, parse(wanted).ip, 999).encode()
        assert reason(stranger.send(node, ask(node, private_data=data))) == messages.REJ_INVALID_SERVICE_ID
    assert not server.events


def test_what_listens_on_loopback_is_for_this_host_only() -> None:
    with Device(thread=False) as device, device.lock:
        events: list[Event] = []
        listener = Identity(device, PS_TCP, events.append)
        own = service_of(device)
        listener.bind(parse("127.0.0.1", 0))
        listener.listen(0)
        assert listener.source is not None
        ip, port = listener.source.ip, listener.source.port
        assert own._asked(device.link.gids[0], PS_TCP, port, ip) is listener
        assert own._asked(parse("127.0.0.1").gid, PS_TCP, port, ip) is listener
        assert own._asked(parse("192.0.2.1").gid, PS_TCP, port, ip) is None
        assert own._asked(parse("192.0.2.1").gid, PS_TCP, port, of_gid(device.link.gids[0]).ip) is None
        listener.close()


def test_another_user_cannot_take_over_a_listener() -> None:
    """Names of the registry can be bound by anybody: what contradicts itself is nobody's, and so is a lone GID."""
    entry = registry.announce(SPACE, "127.0.0.1", 5, ONE)
    assert registry.find(SPACE, "127.0.0.1", 5) == ONE
    rivals = [f"softverbs/cm/{SPACE:04x}/{host}/5" for host in ("127.0.0.1", "0.0.0.0")]
    for names in ([f"{rivals[0]}={OTHER.hex()}"], [rivals[1], f"{rivals[1]}={OTHER.hex()}"]):
        rival = registry.Entry(*names)
        assert registry.find(SPACE, "127.0.0.1", 5) is None
        rival.close()
        assert registry.find(SPACE, "127.0.0.1", 5) == ONE
    entry.close()
    rival = registry.Entry(f"{rivals[0]}={OTHER.hex()}")
    assert registry.find(SPACE, "127.0.0.1", 5) is None
    rival.close()


def test_all_addresses_and_one_of_them_are_not_two_devices() -> None:
    """As with TCP: a port of all addresses is taken at each of them, by whoever came first."""
    for first, second in (("127.0.0.1", "0.0.0.0"), ("0.0.0.0", "127.0.0.1"), ("::1", "::")):
        entry = registry.announce(SPACE, first, 6, ONE)
        with pytest.raises(OSError, match="another device") as caught:
            registry.announce(SPACE, second, 6, OTHER)
        assert caught.value.errno == errno.EADDRINUSE
        entry.close()
    for four in ("127.0.0.1", "0.0.0.0"):
        for six in ("::1", "::"):
            one, other = registry.announce(SPACE, four, 6, ONE), registry.announce(SPACE, six, 6, OTHER)
            assert (registry.find(SPACE, "127.0.0.1", 6), registry.find(SPACE, "::1", 6)) == (ONE, OTHER)
            one.close()
            other.close()


def test_the_address_of_a_device_is_its_own() -> None:
    """A name for the address of somebody's device leads nobody away from it."""
    with Device(thread=False) as device, Device(thread=False) as seeker:
        address = of_gid(device.link.gids[0], 7000)
        rival = registry.Entry(
            *(f"softverbs/cm/{PS_TCP:04x}/{address.text}/7000{end}" for end in ("", f"={ONE.hex()}"))
        )
        with seeker.lock:
            assert service_of(seeker).locate(PS_TCP, address) == device.link.gids[0]
        rival.close()


@pytest.mark.parametrize("how", ["closed", "removed"])
def test_a_device_that_is_gone_is_no_longer_found(how: str) -> None:
    """Else peers would ask it, and wait for an answer until all retries are used up."""
    device = Device(thread=False)
    with device.lock:
        listener = Identity(device, PS_TCP, lambda event: None)
        listener.bind(parse("127.0.0.1", 0))
        listener.listen(0)
    assert listener.source is not None
    assert registry.find(PS_TCP, "127.0.0.1", listener.source.port) == device.link.gids[0]
    device.close() if how == "closed" else device.remove("by hand")
    assert registry.find(PS_TCP, "127.0.0.1", listener.source.port) is None
    device.close()
