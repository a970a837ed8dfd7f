# SPDX-License-Identifier: MIT
"""Listeners and the requests to them: who outlives whom, what is told of a request, and who may have which port."""

import errno

import pytest
from tests.cm.app import App, service
from tests.cm.test_service import nodes, refuses, sim
from tests.netsim.sim import SECOND, Node, Sim

from softverbs.cm import messages
from softverbs.cm.addressed import AFONLY, REUSEADDR
from softverbs.cm.addresses import parse
from softverbs.cm.events import Kind, Param
from softverbs.cm.identity import PS_TCP, PS_UDP, Identity

__all__ = ["nodes", "sim"]


@pytest.mark.parametrize("space", [PS_TCP, PS_UDP])
def test_a_request_that_was_delivered_outlives_the_listener(sim: Sim, nodes: tuple[Node, Node], space: int) -> None:
    """Only requests that the application has not got end with the listener; its port is free again."""
    server = App(nodes[1], space)
    taken, left = App(nodes[0], space), App(nodes[0], space)
    address = server.listen(7000)
    taken.connect(address)
    child = server.request()
    left.connect(address)
    sim.run_until(lambda: bool(server.events))
    server.identity.close()
    if space == PS_TCP:
        assert left.wait(Kind.REJECTED).status == messages.REJ_CONSUMER
    else:
        assert left.wait(Kind.UNREACHABLE).status == messages.SIDR_REJECT
    child.accept()
    taken.finish() if space == PS_TCP else taken.wait(Kind.ESTABLISHED)
    if space == PS_TCP:
        child.events.clear()
        taken.identity.disconnect()
        child.wait(Kind.ESTABLISHED)
        child.wait(Kind.DISCONNECTED)
    again = App(nodes[1], space)
    again.listen(7000)
    other = App(nodes[0], space)
    other.connect(address)
    again.request().accept()


def test_the_end_of_an_unanswered_request_is_told_by_the_answer(sim: Sim, nodes: tuple[Node, Node]) -> None:
    """As by Linux: no event for an identifier before it was accepted, and then accepting fails."""
    client, server = App(nodes[0]), App(nodes[1])
    client.connect(server.listen(7000))
    child = server.request()
    child.events.clear()
    client.identity.close()
    sim.run_for(60 * SECOND)
    assert not child.events and not server.events
    for answer in (lambda: child.identity.accept(Param(qp_num=5)), lambda: child.identity.reject(b"")):
        with refuses(errno.EINVAL, "in the state"):
            answer()


def test_time_wait_is_told_only_of_connections_that_were(sim: Sim, nodes: tuple[Node, Node]) -> None:
    """A peer that takes its acceptance back: REJECTED, and nothing more."""
    client, server = App(nodes[0]), App(nodes[1])
    client.connect(server.listen(7000))
    child = server.request()
    child.events.clear()
    child.accept()
    client.wait(Kind.CONNECT_RESPONSE)
    client.identity.give_up()
    assert child.wait(Kind.REJECTED).status == messages.REJ_CONSUMER
    sim.run_for(60 * SECOND)
    assert not child.events and not client.events
    child.identity.disconnect()  # as by Linux: nothing is left to be done


def test_all_addresses_of_both_ip_versions(nodes: tuple[Node, Node], monkeypatch: pytest.MonkeyPatch) -> None:
    """As by cma_check_port of Linux; the device has no address of IPv6, which nobody needs for ::."""

    def made(only: bool | None = None, reuse: bool = False) -> Identity:
        identity = Identity(nodes[0].device, PS_TCP, lambda event: None)
        if only is not None:
            identity.set_option(AFONLY, only)
        identity.set_option(REUSEADDR, reuse)
        return identity

    four, six = parse("0.0.0.0", 7000), parse("::", 7000)
    taken = made()
    taken.bind(four)
    for other in (made(), made(False)):
        with refuses(errno.EADDRNOTAVAIL, "bound to 0.0.0.0:7000"):
            other.bind(six)
    only = made(True)
    only.bind(six)
    for one in (taken, only):
        one.listen(0)
    ports = service(nodes[0]).ports
    assert ports.listener(PS_TCP, 7000, bytes(4)) is taken and ports.listener(PS_TCP, 7000, b"\1" * 16) is only
    for one in (taken, only):
        one.close()
    both = made()
    both.bind(six)
    both.listen(0)
    assert ports.listener(PS_TCP, 7000, b"\1" * 4) is both and ports.listener(PS_TCP, 7000, b"\1" * 16) is both
    with refuses(errno.EADDRNOTAVAIL, r"bound to \[::\]:7000"):
        made().bind(four)
    both.close()
    monkeypatch.setattr("softverbs.cm.addressed.only_ipv6_by_default", lambda: True)
    taken, only = made(), made()
    taken.bind(four)
    only.bind(six)
    with refuses(errno.EINVAL, "two IP versions"):
        only.resolve_addr(None, parse("10.0.0.2", 1))
