# SPDX-License-Identifier: MIT
"""Commands of the connection manager: identifiers and event channels of a program, upon softverbs.cm.

An event waits in its channel until the program takes it (CM_GET_EVENT), as in Linux's kernel: so it moves when its
identifier moves, and goes when that goes. For each event one byte is sent by the channel's socket, which programs may
wait for by poll(2).
"""

import errno
import socket
from collections import deque
from typing import Any

from softverbs.cm import messages
from softverbs.cm.addressed import OPTIONS
from softverbs.cm.addresses import Address, of_gid
from softverbs.cm.events import MOST, Event, Kind, Param
from softverbs.cm.identity import PS_IB, PS_IPOIB, PS_TCP, PS_UDP, Identity
from softverbs.core.base.errors import PyverbsRDMAError
from softverbs.core.base.limits import DEFAULT_PKEY, MAX_RD_ATOMIC
from softverbs.core.memory import spaces
from softverbs.core.transport.address import AddressVector
from softverbs.pyverbs import libibverbs_enums as e
from softverbs.pyverbs import librdmacm_enums as ce
from softverbs.server._domains import Target
from softverbs.server._qp_commands import ah_attr_of
from softverbs.server._registry import handles
from softverbs.server.session import MOST_RECORDS, Entry, Session

Values = dict[str, Any]

CHANNEL, ID = "CM channel", "CM id"
#: Identifiers and channels that one program has at most.
MOST_IDS = 16384
MOST_CHANNELS = 1024
#: Multicast groups that one identifier joins at most.
MOST_GROUPS = 1024

_QP_TYPES = {PS_TCP: (e.IBV_QPT_RC,), PS_UDP: (e.IBV_QPT_UD,), PS_IPOIB: (e.IBV_QPT_UD,), PS_IB: (e.IBV_QPT_RC,)}
_VENDOR_OPTIONS = 35  # reason of a REJ (IBA table 105)
_BYTE = b"\0"


class Waiting:
    """Events that a program has not taken."""

    def __init__(self, entry: "Entry | None" = None) -> None:
        """
        :param entry: the channel's
        """
        self.entry = entry
        self.events: deque[tuple[Held, Event, int]] = deque()

    def push(self, held: "Held", event: Event, cookie: int = 0) -> None:
        """Takes an event.

        :param held: the identifier that it is about, of CONNECT_REQUEST the new one
        :param cookie: of CM_JOIN
        """
        entry = self.entry
        assert entry is not None
        if len(self.events) >= MOST_RECORDS:
            entry.session.end(f"{MOST_RECORDS} events of the connection manager wait for it")
            return
        self.events.append((held, event, cookie))
        entry.session.send_record(entry.end, _BYTE)

    def remove(self, held: "Held", requests: bool) -> list[tuple["Held", Event, int]]:
        """Takes the events of an identifier out.

        :param requests: also the requests to it, if it listens
        """
        identity = held.identity
        gone: list[tuple[Held, Event, int]] = []
        kept: deque[tuple[Held, Event, int]] = deque()
        for item in self.events:
            if item[0] is held or (requests and item[1].listener is identity):
                gone.append(item)
            else:
                kept.append(item)
        self.events = kept
        return gone

    def unsent(self, count: int) -> int:
        """So many events are there no more: how many of their bytes the program has to take out of its descriptor. The
        others had no room there yet.
        """
        entry = self.entry
        assert entry is not None
        return entry.session.unsent(entry.end, count)

    def close(self) -> None:
        """Ends the channel. Its identifiers have gone before."""
        self.events.clear()


class Held:
    """An identifier that a program holds."""

    def __init__(self, session: Session, waiting: Waiting, identity: Identity | None = None, space: int = 0) -> None:
        """
        :param session: whose
        :param waiting: where its events go
        :param identity: of a request; None: a new one
        :param space: of a new one: RDMA_PS_*
        """
        self.session = session
        self.waiting = waiting
        self.identity = identity or Identity(session.device, space, self.emit)
        self.identity.emit = self.emit
        self.identity.user = self
        self.handle = session.add(ID, self).handle
        #: Events that the program has got.
        self.reported = 0
        self._cookie = 0

    def emit(self, event: Event) -> None:
        """Takes an event of the identifier, or a request to it."""
        if self.session.ended:
            if event.kind is Kind.CONNECT_REQUEST:
                event.identity.close()
            return
        if event.kind is Kind.CONNECT_REQUEST:
            if _count(self.session, ID) >= MOST_IDS:
                event.identity.close()
                return
            self.waiting.push(Held(self.session, self.waiting, event.identity), event)
        else:
            self.waiting.push(self, event, self._cookie)

    def join(self, address: Address, send_only: bool, cookie: int) -> None:
        """Joins a multicast group; the event brings the cookie."""
        groups = self.identity.groups
        if len(groups) >= MOST_GROUPS and address.ip not in groups:
            raise PyverbsRDMAError(f"the identifier has joined {MOST_GROUPS} groups", errno.ENOMEM)
        self._cookie = cookie
        try:
            self.identity.join(address, send_only)
        finally:
            self._cookie = 0

    def close(self) -> None:
        """Ends it: peers are told. Requests to it that the program has not taken are refused; the others live on."""
        if not self.session.ended:  # else they are closed as well
            for held, event, _ in self.waiting.remove(self, True):
                if event.listener is self.identity:
                    self.session.close(self.session.find(ID, held.handle))
        self.identity.close()


def _count(session: Session, kind: str) -> int:
    return sum(entry.kind == kind for entry in session.entries.values())


def _held(session: Session, request: Values) -> Held:
    held: Held = session.core(ID, request["id"])
    return held


def _identity(session: Session, request: Values) -> Identity:
    return _held(session, request).identity


# -- values


def _address(values: Values) -> Address | None:
    """An address; None where there is none. An IPv4-mapped one is the IPv4 address."""
    length = values["length"]
    if not length:
        return None
    if length not in (4, 16):
        raise PyverbsRDMAError(f"an address of {length} bytes: 4 or 16 are expected", errno.EINVAL)
    return of_gid(Address(values["ip"][:length]).gid, values["port"])


def _needed(values: Values) -> Address:
    address = _address(values)
    if address is None:
        raise PyverbsRDMAError("an address is needed", errno.EINVAL)
    return address


def _address_values(address: Address | None) -> Values:
    if address is None:
        return {}
    return {"ip": address.ip, "length": len(address.ip), "port": address.port}


def _check_depths(identity: Identity, values: Values) -> None:
    """EINVAL for more READs and atomics than the device has; 255 stands for as many as it has."""
    for name in ("responder_resources", "initiator_depth"):
        if not identity.datagrams and MAX_RD_ATOMIC < values[name] != MOST:
            raise PyverbsRDMAError(f"{name}={values[name]}: {MAX_RD_ATOMIC} at most", errno.EINVAL)


def _param(session: Session, identity: Identity, values: Values) -> Param:
    """What a program wants of a connection; its queue pair has to be one of its process."""
    number = values["qp_num"]
    _check_depths(identity, values)
    if number and not _has_qp(session, number):
        raise PyverbsRDMAError(f"qp_num={number:#x}: the program has no such queue pair", errno.EINVAL)
    return Param(
        values["private_data"][: values["private_data_len"]],
        values["responder_resources"],
        values["initiator_depth"],
        values["flow_control"],
        values["retry_count"],
        values["rnr_retry_count"],
        values["srq"],
        number,
    )


def _wanted(session: Session, request: Values) -> tuple[Identity, Param]:
    """The identifier of a request to connect, or to accept, with its ECE; and what the program wants."""
    identity, values = _identity(session, request), request["param"]
    param = _param(session, identity, values)
    identity.local_ece = (values["vendor_id"] & 0xFFFFFF, values["options"])
    return identity, param


def _has_qp(session: Session, number: int) -> bool:
    """Whether a queue pair belongs to the process of a session, which may have opened the device more than once."""
    qp = session.port.qp(number)
    owner = qp.user if qp is not None else None
    for entry in owner.entries if isinstance(owner, Target) else [owner]:
        other = entry.session if isinstance(entry, Entry) else None
        if other is not None and (other.pid, other.user) == (session.pid, session.user):
            return other is session or spaces.holds(other.space)  # else one that had this number before it
    return False


def _param_values(event: Event) -> Values:
    """What an event tells of the peer."""
    data = event.private_data[:255]
    values: Values = {"qp_num": event.qp_num, "private_data": data, "private_data_len": len(data)}
    values["vendor_id"], values["options"] = event.identity.remote_ece
    if event.param is not None:
        for name in (
            "responder_resources", "initiator_depth", "flow_control", "retry_count", "rnr_retry_count", "srq", "qp_num",
        ):  # fmt: skip
            values[name] = getattr(event.param, name)
    return values


# -- channels


@handles("CM_CREATE_CHANNEL")
def create_channel(session: Session, request: Values) -> Values:
    """rdma_create_event_channel(3)."""
    if _count(session, CHANNEL) >= MOST_CHANNELS:
        raise PyverbsRDMAError(f"the program has {MOST_CHANNELS} event channels", errno.ENFILE)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    ours.setblocking(False)
    waiting = Waiting()
    waiting.entry = entry = session.add(CHANNEL, waiting)
    entry.end = ours
    session.passing.append(theirs.detach())
    return {"handle": entry.handle}


@handles("CM_DESTROY_CHANNEL")
def destroy_channel(session: Session, request: Values) -> None:
    """rdma_destroy_event_channel(3). Identifiers that are left go with it, as in the kernel."""
    entry = session.find(CHANNEL, request["handle"])
    entry.core.events.clear()  # of identifiers that all go: each would look for its own
    for other in [other for other in session.entries.values() if other.kind == ID and other.core.waiting is entry.core]:
        if not other.closed:
            session.close(other)
    session.close(entry)


@handles("CM_GET_EVENT")
def get_event(session: Session, request: Values) -> Values:
    """rdma_get_cm_event(3)."""
    waiting: Waiting = session.core(CHANNEL, request["channel"])
    if not waiting.events:
        return {}
    held, event, cookie = waiting.events.popleft()
    event.identity.on_delivered()
    listener = event.listener.user if event.listener is not None else None
    (listener or held).reported += 1
    values = {
        "found": 1,
        "id": held.handle,
        "listener": listener.handle if listener is not None else 0,
        "event": event.kind.value,
        "status": event.status,
        "qkey": event.qkey,
        "cookie": cookie,
        "param": _param_values(event),
    }
    if event.vector is not None:
        values["ah_attr"] = ah_attr_of(event.vector)
    return values


# -- identifiers


@handles("CM_CREATE_ID")
def create_id(session: Session, request: Values) -> Values:
    """rdma_create_id(3)."""
    space, qp_type = request["ps"], request["qp_type"]
    waiting: Waiting = session.core(CHANNEL, request["channel"])
    if space not in _QP_TYPES:
        raise PyverbsRDMAError(f"port space {space:#x} is not known", errno.EINVAL)
    if qp_type not in _QP_TYPES[space]:
        raise PyverbsRDMAError(
            f"port space {space:#x}: connections of type RC and datagrams of type UD are supported, not {qp_type}",
            errno.EOPNOTSUPP,
        )
    if _count(session, ID) >= MOST_IDS:
        raise PyverbsRDMAError(f"the program has {MOST_IDS} identifiers", errno.ENOMEM)
    return {"id": Held(session, waiting, space=space).handle}


@handles("CM_DESTROY_ID")
def destroy_id(session: Session, request: Values) -> Values:
    """rdma_destroy_id(3)."""
    entry = session.find(ID, request["id"])
    held: Held = entry.core
    before = len(held.waiting.events)
    session.close(entry)
    return {"events_reported": held.reported, "dropped": held.waiting.unsent(before - len(held.waiting.events))}


@handles("CM_MIGRATE_ID")
def migrate_id(session: Session, request: Values) -> Values:
    """rdma_migrate_id(3)."""
    held = _held(session, request)
    channel: Waiting = session.core(CHANNEL, request["channel"])
    before = held.waiting
    moved = before.remove(held, True) if channel is not before else []
    held.waiting = channel
    for item in moved:
        item[0].waiting = channel  # also of requests, which the listener's channel tells
        channel.push(*item)
    return {"events_reported": held.reported, "moved": before.unsent(len(moved))}


@handles("CM_QUERY")
def query(session: Session, request: Values) -> Values:
    """What librdmacm writes into rdma_cm_id."""
    identity = _identity(session, request)
    values: Values = {
        "source": _address_values(identity.source),
        "destination": _address_values(identity.destination),
    }
    if identity.source is not None and not identity.source.is_any:
        gids = session.device.link.gids
        values |= {"sgid": gids[identity.sgid_index], "port_num": 1, "pkey": DEFAULT_PKEY}
    if identity.dgid is not None:
        vector = identity.vector()
        values |= {"dgid": vector.dgid, "mtu": session.port.active_mtu, "routed": 1}
        values |= {"hop_limit": vector.hop_limit, "traffic_class": vector.traffic_class}
    return values


@handles("CM_SET_OPTION")
def set_option(session: Session, request: Values) -> None:
    """rdma_set_option(3)."""
    identity = _identity(session, request)
    level, name, length = request["level"], request["optname"], request["length"]
    if level != ce.RDMA_OPTION_ID:
        raise PyverbsRDMAError(
            f"level={level}: RDMA_OPTION_ID is supported: RoCE has no path records", errno.EOPNOTSUPP
        )
    if name not in OPTIONS:
        raise PyverbsRDMAError(f"optname={name} is not known", errno.ENOSYS)
    if length != OPTIONS[name]:
        raise PyverbsRDMAError(f"optname={name} has {OPTIONS[name]} bytes, not {length}", errno.EINVAL)
    identity.set_option(name, int.from_bytes(request["value"][:length], "little"))


# -- addresses


@handles("CM_BIND")
def bind(session: Session, request: Values) -> None:
    """rdma_bind_addr(3)."""
    _identity(session, request).bind(_needed(request["address"]))


@handles("CM_RESOLVE_ADDR")
def resolve_addr(session: Session, request: Values) -> None:
    """rdma_resolve_addr(3)."""
    identity = _identity(session, request)
    destination = _needed(request["destination"])
    source = _address(request["source"])
    if source is not None and source.is_any and not source.port:
        source = None
    if destination.is_any:  # this host, as for connect(2)
        loopback = bytes([127, 0, 0, 1]) if len(destination.ip) == 4 else bytes(15) + b"\1"
        destination = Address(loopback, destination.port)
    identity.resolve_addr(source, destination)


@handles("CM_RESOLVE_ROUTE")
def resolve_route(session: Session, request: Values) -> None:
    """rdma_resolve_route(3)."""
    _identity(session, request).resolve_route()


# -- connections


@handles("CM_LISTEN")
def listen(session: Session, request: Values) -> None:
    """rdma_listen(3)."""
    _identity(session, request).listen(request["backlog"])


@handles("CM_CONNECT")
def connect(session: Session, request: Values) -> None:
    """rdma_connect(3)."""
    identity, param = _wanted(session, request)
    identity.connect(param)


@handles("CM_NEGOTIATE")
def negotiate(session: Session, request: Values) -> None:
    """Before CM_ACCEPT: how many READs and atomics each side takes."""
    identity = _identity(session, request)
    _check_depths(identity, request)
    resources, depth = request["responder_resources"], request["initiator_depth"]
    identity.negotiate(Param(responder_resources=resources, initiator_depth=depth))


@handles("CM_ACCEPT")
def accept(session: Session, request: Values) -> None:
    """rdma_accept(3)."""
    identity, param = _wanted(session, request)
    identity.accept(param)


@handles("CM_ESTABLISH")
def establish(session: Session, request: Values) -> None:
    """rdma_establish(3)."""
    _identity(session, request).establish()


@handles("CM_REJECT")
def reject(session: Session, request: Values) -> None:
    """rdma_reject(3), rdma_reject_ece(3)."""
    reason = request["reason"]
    if reason not in (0, messages.REJ_CONSUMER, _VENDOR_OPTIONS):
        raise PyverbsRDMAError(f"reason={reason}: a program gives 28, or 35 (vendor options)", errno.EINVAL)
    length = request["private_data_len"]
    if length > len(request["private_data"]):
        raise PyverbsRDMAError(f"{length} bytes of private data", errno.EINVAL)
    _identity(session, request).reject(request["private_data"][:length], reason or messages.REJ_CONSUMER)


@handles("CM_NOTIFY")
def notify(session: Session, request: Values) -> None:
    """rdma_notify(3)."""
    identity, event = _identity(session, request), request["event"]
    if event != e.IBV_EVENT_COMM_EST:
        raise PyverbsRDMAError(
            f"event={event}: IBV_EVENT_COMM_EST is what the connection manager acts on", errno.EINVAL
        )
    identity.heard()


@handles("CM_DISCONNECT")
def disconnect(session: Session, request: Values) -> None:
    """rdma_disconnect(3)."""
    _identity(session, request).disconnect()


@handles("CM_INIT_QP_ATTR")
def init_qp_attr(session: Session, request: Values) -> Values:
    """rdma_init_qp_attr(3)."""
    attr, mask = _identity(session, request).attributes(request["qp_state"])
    values = dict(attr)
    vector: AddressVector | None = values.get("ah_attr")
    if vector is not None:
        values["ah_attr"] = ah_attr_of(vector)
    return {"attr": values, "attr_mask": mask}


# -- multicast


@handles("CM_JOIN")
def join(session: Session, request: Values) -> None:
    """rdma_join_multicast_ex(3). The program attaches its queue pair."""
    held = _held(session, request)
    held.join(_needed(request["address"]), bool(request["send_only"]), request["cookie"])


@handles("CM_LEAVE")
def leave(session: Session, request: Values) -> None:
    """rdma_leave_multicast(3)."""
    _identity(session, request).leave(_needed(request["address"]))
