# SPDX-License-Identifier: MIT
"""Commands of the connection manager: what librdmacm's half of the driver asks for, and what it is refused."""

import errno
import os
import select
import socket
from pathlib import Path
from typing import Any

import pytest
from tests.server.client import RC, RTS, UD, Client, Cq, Gone, Qp, Refused
from tests.server.conftest import Served

from softverbs.cm.events import Kind
from softverbs.cm.service import service_of
from softverbs.core.base.limits import MAX_RD_ATOMIC
from softverbs.device import Device
from softverbs.server import _cm_commands
from softverbs.server.server import Server

TCP, UDP = 0x106, 0x111
SERVICE = 7471


def address(ip: str, port: int = SERVICE) -> dict[str, Any]:
    packed = socket.inet_pton(socket.AF_INET6 if ":" in ip else socket.AF_INET, ip)
    return {"ip": packed.ljust(16, b"\0"), "length": len(packed), "port": port}


class Events:
    """An event channel."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.handle = client.call("CM_CREATE_CHANNEL")["handle"]
        self.socket = socket.socket(fileno=client.descriptors[0])
        self.socket.settimeout(20)
        client.sockets.append(self.socket)

    def waits(self) -> bool:
        return bool(select.select([self.socket], [], [], 0)[0])

    def next(self, kind: Kind) -> dict[str, Any]:
        while True:
            assert self.socket.recv(1) == b"\0"
            event = self.client.call("CM_GET_EVENT", channel=self.handle)
            if event["found"]:
                assert Kind(event["event"]) is kind
                return event


class Id:
    """An identifier, with a queue pair."""

    def __init__(self, client: Client, space: int = TCP, handle: int = 0, events: Events | None = None) -> None:
        self.client = client
        self.events = events or Events(client)
        kind = RC if space == TCP else UD
        made = handle or client.call("CM_CREATE_ID", channel=self.events.handle, ps=space, qp_type=kind)["id"]
        self.handle: int = made
        self.cq = Cq(client)
        self.qp = Qp(client, client.pd(), self.cq, self.cq, qp_type=kind)

    def call(self, name: str, **values: Any) -> dict[str, Any]:
        return self.client.call(name, id=self.handle, **values)

    def refused(self, code: int, words: str, name: str, **values: Any) -> None:
        with pytest.raises(Refused, match=words) as caught:
            self.call(name, **values)
        assert caught.value.code == code

    def listen(self, ip: str = "0.0.0.0", port: int = SERVICE, backlog: int = 0) -> "Id":
        self.call("CM_BIND", address=address(ip, port))
        self.call("CM_LISTEN", backlog=backlog)
        return self

    def resolve_address(self, ip: str = "127.0.0.1", port: int = SERVICE) -> "Id":
        self.call("CM_RESOLVE_ADDR", destination=address(ip, port), timeout_ms=2000)
        self.events.next(Kind.ADDR_RESOLVED)
        return self

    def resolve(self, ip: str = "127.0.0.1", port: int = SERVICE) -> "Id":
        self.resolve_address(ip, port)
        self.call("CM_RESOLVE_ROUTE", timeout_ms=2000)
        self.events.next(Kind.ROUTE_RESOLVED)
        return self

    def param(self, data: bytes = b"", **values: Any) -> dict[str, Any]:
        known = {"qp_num": self.qp.number, "responder_resources": 255, "initiator_depth": 255, "retry_count": 7}
        return known | {"private_data": data, "private_data_len": len(data)} | values

    def ready(self) -> None:
        for state in (1, 2, 3):
            wanted = self.call("CM_INIT_QP_ATTR", qp_state=state)
            self.client.call("MODIFY_QP", handle=self.qp.handle, attr_mask=wanted["attr_mask"], attr=wanted["attr"])

    def state(self) -> int:
        return int(self.client.call("QUERY_QP", handle=self.qp.handle, attr_mask=1)["attr"]["qp_state"])

    def child(self, event: dict[str, Any], space: int = TCP) -> "Id":
        return Id(self.client, space, event["id"], self.events)


def connected(served: Served) -> tuple[Id, Id, Id]:
    """Who asked, who was asked, and who listens; in two connections to the device."""
    asker, listener = Id(Client(served.path)), Id(Client(served.path)).listen()
    asker.resolve().call("CM_CONNECT", param=asker.param())
    child = listener.child(listener.events.next(Kind.CONNECT_REQUEST))
    child.ready()
    child.call("CM_ACCEPT", param=child.param())
    asker.events.next(Kind.CONNECT_RESPONSE)
    asker.ready()
    asker.call("CM_ESTABLISH")
    child.events.next(Kind.ESTABLISHED)
    return asker, child, listener


def test_a_connection_from_its_request_to_its_end(served: Served) -> None:
    asker, listener = Id(Client(served.path)), Id(Client(served.path)).listen()
    asker.resolve().call("CM_CONNECT", param=asker.param(b"who is it", responder_resources=3, initiator_depth=2))
    request = listener.events.next(Kind.CONNECT_REQUEST)
    assert request["listener"] == listener.handle
    assert request["param"]["private_data"].startswith(b"who is it\0") and request["param"]["private_data_len"] == 56
    assert (request["param"]["responder_resources"], request["param"]["initiator_depth"]) == (2, 3)
    assert request["param"]["qp_num"] == asker.qp.number
    child = listener.child(request)
    child.call("CM_NEGOTIATE", responder_resources=1, initiator_depth=255)
    child.ready()
    child.call("CM_ACCEPT", param=child.param(b"it is I", responder_resources=1))
    answer = asker.events.next(Kind.CONNECT_RESPONSE)
    assert answer["param"]["private_data"].startswith(b"it is I\0") and answer["param"]["private_data_len"] == 196
    assert answer["param"]["qp_num"] == child.qp.number
    asker.ready()
    asker.call("CM_ESTABLISH")
    child.events.next(Kind.ESTABLISHED)
    assert (asker.state(), child.state()) == (RTS, RTS)
    depths = [one.client.call("QUERY_QP", handle=one.qp.handle)["attr"] for one in (asker, child)]
    assert [(one["max_rd_atomic"], one["max_dest_rd_atomic"]) for one in depths] == [(1, 3), (3, 1)]
    child.call("CM_DISCONNECT")
    asker.events.next(Kind.DISCONNECTED)
    asker.call("CM_DISCONNECT")
    child.events.next(Kind.DISCONNECTED)


def test_a_query_says_what_rdma_cm_id_holds(served: Served) -> None:
    asker, child, listener = connected(served)
    gid = asker.client.gid()
    known = asker.call("CM_QUERY")
    assert (known["sgid"], known["dgid"], known["port_num"], known["pkey"]) == (gid, gid, 1, 0xFFFF)
    assert known["destination"] == address("127.0.0.1") | {"scope_id": 0}
    assert known["source"]["ip"][:4] == gid[12:] and known["source"]["port"]
    assert child.call("CM_QUERY")["destination"]["port"] == known["source"]["port"]
    assert listener.call("CM_QUERY")["port_num"] == 0  # on all addresses, so of no device


def test_a_refusal_and_its_words(served: Served) -> None:
    asker, listener = Id(Client(served.path)), Id(Client(served.path)).listen()
    for reason, told in ((0, 28), (35, 35)):
        asker = Id(Client(served.path)).resolve()
        asker.call("CM_CONNECT", param=asker.param())
        child = listener.child(listener.events.next(Kind.CONNECT_REQUEST))
        child.call("CM_REJECT", reason=reason, private_data=b"not now", private_data_len=7)
        event = asker.events.next(Kind.REJECTED)
        assert event["status"] == told and event["param"]["private_data"].startswith(b"not now\0")
        child.call("CM_DESTROY_ID")


def test_where_nobody_listens(served: Served) -> None:
    asker = Id(Client(served.path)).resolve()
    asker.call("CM_CONNECT", param=asker.param())
    assert asker.events.next(Kind.REJECTED)["status"] == 8


def test_datagrams(served: Served) -> None:
    asker, listener = Id(Client(served.path), UDP), Id(Client(served.path), UDP).listen()
    asker.resolve().call("CM_CONNECT", param=asker.param(b"hello"))
    request = listener.events.next(Kind.CONNECT_REQUEST)
    assert request["param"]["private_data"].startswith(b"hello\0")
    child = listener.child(request, UDP)
    child.call("CM_ACCEPT", param=child.param())
    event = asker.events.next(Kind.ESTABLISHED)
    assert (event["param"]["qp_num"], event["qkey"]) == (child.qp.number, 0x01234567)
    assert event["ah_attr"]["dgid"] == listener.client.gid() and event["ah_attr"]["is_global"] == 1


def test_what_is_refused(served: Served) -> None:
    client = Client(served.path)
    one = Id(client)
    one.refused(errno.EINVAL, "is idle", "CM_RESOLVE_ROUTE")
    one.refused(errno.EINVAL, "is idle", "CM_CONNECT", param=one.param())
    one.refused(errno.EINVAL, "an address is needed", "CM_BIND")
    one.refused(errno.EINVAL, "4 or 16", "CM_BIND", address={"length": 5})
    one.refused(errno.EADDRNOTAVAIL, "no address of this device", "CM_BIND", address=address("203.0.113.1"))
    one.refused(errno.EINVAL, "no connection", "CM_DISCONNECT")
    one.refused(errno.EINVAL, "no request", "CM_REJECT")
    one.refused(errno.EINVAL, "reason=7", "CM_REJECT", reason=7)
    one.refused(errno.EINVAL, "qp_state=6", "CM_INIT_QP_ATTR", qp_state=6)
    one.refused(errno.EOPNOTSUPP, "RDMA_OPTION_ID", "CM_SET_OPTION", level=1, optname=1)
    one.refused(errno.ENOSYS, "optname=9", "CM_SET_OPTION", optname=9, length=1)
    one.refused(errno.EINVAL, "has 1 bytes", "CM_SET_OPTION", optname=0, length=4)
    one.refused(errno.EINVAL, "0 to 31", "CM_SET_OPTION", optname=3, length=1, value=b"\x20")
    one.resolve()
    most = MAX_RD_ATOMIC
    one.refused(errno.EINVAL, "bytes of private data", "CM_CONNECT", param=one.param(bytes(57)))
    one.refused(errno.EINVAL, f"initiator_depth={most + 1}", "CM_CONNECT", param=one.param(initiator_depth=most + 1))
    one.refused(errno.EADDRNOTAVAIL, "was not joined", "CM_LEAVE", address=address("224.0.0.9"))
    one.refused(errno.EINVAL, "groups are for datagrams", "CM_JOIN", address=address("224.0.0.9"))
    one.refused(errno.EINVAL, "is route resolved", "CM_SET_OPTION", optname=2, length=4, value=b"\1\0\0\0")
    two = Id(client, UDP)
    two.refused(errno.EINVAL, "for connections", "CM_SET_OPTION", optname=3, length=1, value=b"\1")
    two.refused(errno.EINVAL, "is idle", "CM_JOIN", address=address("224.0.0.9"))
    two.call("CM_BIND", address=address("0.0.0.0", 0))
    two.refused(errno.EINVAL, "bound to no device", "CM_JOIN", address=address("224.0.0.9"))
    two.resolve_address()
    two.refused(errno.EINVAL, "no multicast group", "CM_JOIN", address=address("127.0.0.1"))


def test_port_spaces_and_types(served: Served) -> None:
    client = Client(served.path)
    events = Events(client)
    for space, kind, code in ((0x999, RC, errno.EINVAL), (TCP, 9, errno.EOPNOTSUPP), (UDP, RC, errno.EOPNOTSUPP)):
        with pytest.raises(Refused) as caught:
            client.call("CM_CREATE_ID", channel=events.handle, ps=space, qp_type=kind)
        assert caught.value.code == code


def test_a_queue_pair_of_another_process_is_none(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    asker, other = Id(Client(served.path)).resolve(), Id(Client(served.path))
    theirs = asker.param(qp_num=other.qp.number)
    foreign = served.server.sessions[-1]
    monkeypatch.setattr(foreign, "pid", os.getpid() + 1)
    asker.refused(errno.EINVAL, "no such queue pair", "CM_CONNECT", param=theirs)
    monkeypatch.undo()
    asker.call("CM_CONNECT", param=theirs)  # the same process has opened the device twice


def test_handles_of_others_are_none(served: Served) -> None:
    mine, yours = Id(Client(served.path)), Client(served.path)
    with pytest.raises(Refused, match="no CM id"):
        yours.call("CM_QUERY", id=mine.handle)
    with pytest.raises(Refused, match="no CM channel"):
        yours.call("CM_GET_EVENT", channel=mine.events.handle)


def test_events_go_with_their_identifier(served: Served) -> None:
    client = Client(served.path)
    events = Events(client)
    first, second = Id(client, events=events), Id(client, events=events)
    for one in (first, second):
        one.call("CM_RESOLVE_ADDR", destination=address("127.0.0.1"))
    gone = first.call("CM_DESTROY_ID")
    assert (gone["events_reported"], gone["dropped"]) == (0, 1)
    assert events.next(Kind.ADDR_RESOLVED)["id"] == second.handle
    assert not client.call("CM_GET_EVENT", channel=events.handle)["found"]
    assert events.waits()  # the byte of the event that was dropped, which the driver takes back
    assert second.call("CM_DESTROY_ID") == {"events_reported": 1, "dropped": 0}


def test_events_move_with_their_identifier(served: Served) -> None:
    client = Client(served.path)
    one, other = Id(client), Events(client)
    one.call("CM_RESOLVE_ADDR", destination=address("127.0.0.1"))
    assert one.call("CM_MIGRATE_ID", channel=other.handle) == {"events_reported": 0, "moved": 1}
    assert other.next(Kind.ADDR_RESOLVED)["id"] == one.handle
    assert one.call("CM_MIGRATE_ID", channel=other.handle)["moved"] == 0


def test_requests_move_with_the_listener_and_end_with_it(served: Served) -> None:
    listener = Id(Client(served.path)).listen()
    askers = [Id(Client(served.path)).resolve() for _ in range(2)]
    other = Events(listener.client)
    for asker in askers:
        asker.call("CM_CONNECT", param=asker.param())
        assert select.select([listener.events.socket, other.socket], [], [], 20)[0]
        listener.call("CM_MIGRATE_ID", channel=other.handle)
    taken = other.next(Kind.CONNECT_REQUEST)
    child = Id(listener.client, TCP, taken["id"], other)
    gone = listener.call("CM_DESTROY_ID")
    assert (gone["events_reported"], gone["dropped"]) == (1, 1)
    assert askers[1].events.next(Kind.REJECTED)["status"] == 28
    child.ready()
    child.call("CM_ACCEPT", param=child.param())
    askers[0].events.next(Kind.CONNECT_RESPONSE)


def test_an_identifier_that_has_moved_outlives_the_channel_of_its_listener(served: Served) -> None:
    asker, listener = Id(Client(served.path)), Id(Client(served.path)).listen()
    asker.resolve().call("CM_CONNECT", param=asker.param())
    taken, other = listener.events.next(Kind.CONNECT_REQUEST), Events(listener.client)
    child = Id(listener.client, TCP, taken["id"], other)
    child.call("CM_MIGRATE_ID", channel=other.handle)
    listener.client.call("CM_DESTROY_CHANNEL", handle=listener.events.handle)
    child.ready()
    child.call("CM_ACCEPT", param=child.param())
    asker.events.next(Kind.CONNECT_RESPONSE)
    asker.ready()
    asker.call("CM_ESTABLISH")
    child.events.next(Kind.ESTABLISHED)


def said(event: dict[str, Any]) -> bytes:
    """The private data of an event."""
    return bytes(event["param"]["private_data"][: event["param"]["private_data_len"]])


def test_events_bring_the_private_data_that_linux_passes_on(served: Served) -> None:
    """REQ, REP and REJ, filled up with zeros; those of RTU, DREQ and DREP are not told."""
    asker, listener = Id(Client(served.path)), Id(Client(served.path)).listen()
    asker.resolve().call("CM_CONNECT", param=asker.param(b"please"))
    request = listener.events.next(Kind.CONNECT_REQUEST)
    assert said(request) == b"please".ljust(56, b"\0")
    child = listener.child(request)
    child.ready()
    child.call("CM_ACCEPT", param=child.param(b"welcome"))
    assert said(asker.events.next(Kind.CONNECT_RESPONSE)) == b"welcome".ljust(196, b"\0")
    asker.ready()
    asker.call("CM_ESTABLISH")
    established = child.events.next(Kind.ESTABLISHED)
    assert not said(established) and not established["param"]["qp_num"]
    asker.call("CM_DISCONNECT")
    assert not said(child.events.next(Kind.DISCONNECTED))
    child.call("CM_DISCONNECT")
    assert not said(asker.events.next(Kind.DISCONNECTED)) and not said(asker.events.next(Kind.TIMEWAIT_EXIT))
    assert not said(child.events.next(Kind.TIMEWAIT_EXIT))
    refused = Id(Client(served.path)).resolve()
    refused.call("CM_CONNECT", param=refused.param())
    listener.child(listener.events.next(Kind.CONNECT_REQUEST)).call("CM_REJECT")
    assert said(refused.events.next(Kind.REJECTED)) == bytes(148)
    nobody = Id(Client(served.path)).resolve(port=7999)
    nobody.call("CM_CONNECT", param=nobody.param())
    assert said(nobody.events.next(Kind.REJECTED)) == bytes(148)


def test_too_much_private_data_in_an_answer_refuses_the_peer(served: Served) -> None:
    asker, listener = Id(Client(served.path)), Id(Client(served.path)).listen()
    asker.resolve().call("CM_CONNECT", param=asker.param())
    child = listener.child(listener.events.next(Kind.CONNECT_REQUEST))
    child.refused(errno.EINVAL, "197 bytes of private data: 196", "CM_ACCEPT", param=child.param(bytes(197)))
    assert asker.events.next(Kind.REJECTED)["status"] == 28


def test_a_port_that_may_be_shared_is_shared_until_one_listens(served: Served) -> None:
    """RDMA_OPTION_ID_REUSEADDR, of both."""
    first, second, third = (Id(Client(served.path)) for _ in range(3))
    yes, no = bytes([1, 0, 0, 0]), bytes(4)
    for one in (first, second):
        one.call("CM_SET_OPTION", optname=1, length=4, value=yes)
        one.call("CM_BIND", address=address("127.0.0.1"))
    third.refused(errno.EADDRINUSE, "in use", "CM_BIND", address=address("127.0.0.1"))
    first.refused(errno.EINVAL, "is bound", "CM_SET_OPTION", optname=1, length=4, value=no)
    first.refused(errno.EADDRINUSE, "in use", "CM_LISTEN", backlog=0)
    second.call("CM_DESTROY_ID")
    first.call("CM_LISTEN", backlog=0)
    first.refused(errno.EINVAL, "is listening", "CM_SET_OPTION", optname=1, length=4, value=yes)
    third.call("CM_SET_OPTION", optname=1, length=4, value=yes)
    third.refused(errno.EADDRINUSE, "in use", "CM_BIND", address=address("127.0.0.1"))


def test_a_channel_takes_its_identifiers_along(served: Served) -> None:
    client = Client(served.path)
    one = Id(client)
    client.call("CM_DESTROY_CHANNEL", handle=one.events.handle)
    one.refused(errno.EINVAL, "no CM id", "CM_QUERY")
    assert one.events.socket.recv(1) == b""


def test_all_addresses_of_either_kind(served: Served) -> None:
    """:: is for IPv4 too, as it is for sockets, unless RDMA_OPTION_ID_AFONLY is set: then both can be had."""
    one = Id(Client(served.path)).listen("::")
    assert one.call("CM_QUERY")["source"]["length"] == 16
    asker = Id(Client(served.path)).resolve()
    asker.call("CM_CONNECT", param=asker.param())
    assert one.child(one.events.next(Kind.CONNECT_REQUEST)).call("CM_QUERY")["source"]["length"] == 4
    four, six = Id(Client(served.path)), Id(Client(served.path))
    four.refused(errno.EADDRNOTAVAIL, "bound to \\[::\\]:7471", "CM_BIND", address=address("0.0.0.0"))
    one.call("CM_DESTROY_ID")
    six.call("CM_SET_OPTION", optname=2, length=4, value=b"\1\0\0\0")
    six.listen("::")
    four.listen("0.0.0.0")
    asker = Id(Client(served.path)).resolve()
    asker.call("CM_CONNECT", param=asker.param())
    four.events.next(Kind.CONNECT_REQUEST)
    assert not six.events.waits()


def test_the_end_of_a_program_is_told_to_its_peer(served: Served) -> None:
    service, before = served.connection_manager()
    asker, child, listener = connected(served)
    asker.client.close()
    child.events.next(Kind.DISCONNECTED)
    waiting = Id(Client(served.path)).resolve()
    waiting.call("CM_CONNECT", param=waiting.param())
    assert select.select([listener.events.socket], [], [], 20)[0]
    listener.client.close()
    assert waiting.events.next(Kind.REJECTED)["status"] == 28
    waiting.client.close()
    served.wait_for_end_of(service, before)


def test_the_end_of_the_device(served: Served) -> None:
    asker, child, _ = connected(served)
    served.device.remove("unplugged")
    asker.events.next(Kind.DEVICE_REMOVAL)
    child.events.next(Kind.DEVICE_REMOVAL)
    asker.refused(errno.EIO, "unplugged", "CM_DISCONNECT")
    asker.call("CM_DESTROY_ID")
    asker.client.call("CM_DESTROY_CHANNEL", handle=asker.events.handle)


def test_a_program_that_takes_no_events(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("softverbs.server._cm_commands.MOST_RECORDS", 50)
    deaf = Id(Client(served.path), UDP).resolve_address()
    for _ in range(50):
        deaf.call("CM_JOIN", send_only=1, address=address("224.0.0.9"))
    with pytest.raises(Gone):
        deaf.call("CM_JOIN", send_only=1, address=address("224.0.0.9"))


def test_more_identifiers_than_a_program_has(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("softverbs.server._cm_commands.MOST_IDS", 2)
    listener = Id(Client(served.path)).listen()
    asker = Id(Client(served.path)).resolve()
    Id(listener.client)
    with pytest.raises(Refused, match="has 2 identifiers"):
        Id(listener.client)
    asker.call("CM_CONNECT", param=asker.param())
    assert asker.events.next(Kind.REJECTED)["status"] == 28


def test_a_group_of_senders(served: Served) -> None:
    """Nobody is attached, so that nothing is joined on any interface."""
    one = Id(Client(served.path), UDP).resolve_address()
    one.call("CM_JOIN", send_only=1, cookie=2**63, address=address("224.0.0.9"))
    event = one.events.next(Kind.MULTICAST_JOIN)
    assert (event["cookie"], event["param"]["qp_num"], event["qkey"]) == (2**63, 0xFFFFFF, 0x01234567)
    assert event["ah_attr"]["dgid"] == bytes(10) + b"\xff\xff" + bytes([224, 0, 0, 9])
    one.call("CM_LEAVE", address=address("224.0.0.9"))


def test_a_port_is_one_program_s(served: Served) -> None:
    Id(Client(served.path)).listen()
    second = Id(Client(served.path))
    second.refused(errno.EADDRNOTAVAIL, "in use", "CM_BIND", address=address("0.0.0.0"))
    with served.device.lock:
        assert len(service_of(served.device).ports.listeners) == 1


def test_groups_of_an_identifier_are_limited(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_cm_commands, "MOST_GROUPS", 2)
    one = Id(Client(served.path), UDP).resolve_address()
    for group in ("224.0.0.7", "224.0.0.8", "224.0.0.7"):
        one.call("CM_JOIN", address=address(group))
        one.events.next(Kind.MULTICAST_JOIN)
    one.refused(errno.ENOMEM, "joined 2 groups", "CM_JOIN", address=address("224.0.0.9"))
    one.call("CM_LEAVE", address=address("224.0.0.7"))
    one.call("CM_JOIN", address=address("224.0.0.9"))


def test_a_channel_takes_everything_along(served: Served) -> None:
    """A listener, requests that nobody has taken, and identifiers with events: nothing is left of them."""
    service, before = served.connection_manager()
    client, other = Client(served.path), Client(served.path)
    events = Events(client)
    listener = Id(client, events=events).listen()
    Id(client, events=events).call("CM_RESOLVE_ADDR", destination=address("127.0.0.1"), timeout_ms=2000)
    asker = Id(other).resolve()
    asker.call("CM_CONNECT", param=asker.param())
    assert select.select([events.socket], [], [], 20)[0]
    client.call("CM_DESTROY_CHANNEL", handle=events.handle)
    listener.refused(errno.EINVAL, "there is no CM id", "CM_QUERY")
    asker.events.next(Kind.REJECTED)
    with served.device.lock:
        assert len(service.identities) == 1 and not service.ports.listeners and len(service.ports.bound) == 1
    client.close()
    other.close()
    served.wait_for_end_of(service, before)


def test_the_link_is_not_asked_more_often_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once it is used, it has nothing to do most of the time."""
    now = 10**9
    device = Device(thread=False, clock=lambda: now)
    service = service_of(device)
    assert service in device.chores
    server = Server(device, str(tmp_path / "socket"))
    server.turn()
    asked: list[int] = []
    receive = device.link.receive
    monkeypatch.setattr(device.link, "receive", lambda *words: asked.append(1) or receive(*words))
    server.turn()
    assert not asked, "no time has passed since it was asked"
    now += 10**9
    server.turn()
    assert asked
    server.close()
    device.close()
