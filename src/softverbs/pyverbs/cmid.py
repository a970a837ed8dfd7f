# SPDX-License-Identifier: MIT
"""The connection manager: connections by IP address and port, instead of by numbers that programs tell each other."""

import errno
import os
import threading
import weakref
from typing import Any

from softverbs._interrupts import Shield, finalizer, shielded
from softverbs.cm.addressed import OPTIONS
from softverbs.cm.addresses import Address
from softverbs.cm.events import Event, Kind, Membership, Param
from softverbs.cm.identity import Identity, Stage
from softverbs.cm.service import service_of
from softverbs.device import Device
from softverbs.pyverbs import libibverbs_enums as e
from softverbs.pyverbs import librdmacm_enums as ce
from softverbs.pyverbs._cm_address import AddrInfo as AddrInfo
from softverbs.pyverbs._cm_event import CMEvent as CMEvent
from softverbs.pyverbs._cm_event import CMEventChannel as CMEventChannel
from softverbs.pyverbs._cm_param import ConnParam as ConnParam
from softverbs.pyverbs._cm_param import JoinMCAttrEx as JoinMCAttrEx
from softverbs.pyverbs._cm_param import UDParam as UDParam
from softverbs.pyverbs._cm_qp import CMQueuePair
from softverbs.pyverbs._fields import instance, integer, refused
from softverbs.pyverbs.addr import GID
from softverbs.pyverbs.base import bury, close_weakrefs
from softverbs.pyverbs.device import Context
from softverbs.pyverbs.pd import PD
from softverbs.pyverbs.pyverbs_error import PyverbsError, PyverbsRDMAError, PyverbsUserError
from softverbs.pyverbs.qp import ECE, QPInitAttr

_home_lock = threading.Lock()
os.register_at_fork(after_in_child=_home_lock._at_fork_reinit)  # type: ignore[attr-defined]
_SPACES = (ce.RDMA_PS_TCP, ce.RDMA_PS_UDP, ce.RDMA_PS_IPOIB, ce.RDMA_PS_IB)


class CMID(CMQueuePair):
    """A communication identifier, ``struct rdma_cm_id`` (rdma_cm(7)).

    Made from an AddrInfo it is synchronous: calls wait until what they begin is done. Made from a CMEventChannel it is
    asynchronous: calls return at once, and events tell. Made from a CMEvent it is the connection that a request asks
    for.
    """

    def __init__(
        self,
        creator: AddrInfo | CMEventChannel | CMEvent | None = None,
        qp_init_attr: QPInitAttr | None = None,
        pd: PD | None = None,
        port_space: int = ce.RDMA_PS_TCP,
        listen_id: "CMID | None" = None,
        device: Device | None = None,
    ) -> None:
        """
        :param creator: an AddrInfo, a CMEventChannel, or a CMEvent of the kind CONNECT_REQUEST
        :param qp_init_attr: of the QP that is made: at once, or with each request (rdma_create_ep(3))
        :param pd: the protection domain of the QP; by default that of the CMIDs of the device
        :param port_space: RDMA_PS_*; an AddrInfo knows its own
        :param listen_id: with a CMEvent: the CMID that listens
        :param device: Extension: with an AddrInfo: the device, instead of the process's
        :raises PyverbsRDMAError: where the address cannot be resolved, or the QP not be made
        """
        self._event_channel: CMEventChannel | None = None
        self._own_channel: CMEventChannel | None = None
        self._mrs = weakref.WeakSet()
        self._listen_init: QPInitAttr | None = None
        self._resolved: AddrInfo | None = None
        if creator is None:
            return
        if isinstance(creator, AddrInfo):
            self._pd = pd
            self._make_endpoint(creator, qp_init_attr, device)
        elif isinstance(creator, CMEventChannel):
            creator._open()
            self._event_channel = creator
            self._begin(creator, port_space)
        elif isinstance(creator, CMEvent):
            if listen_id is None:
                raise PyverbsUserError("a CMID of a request needs listen_id, the CMID that listens")
            instance(listen_id, CMID, "listen_id")
            self._take_request(creator)
        else:
            raise PyverbsUserError(f"Cannot create CM ID from {type(creator)}")

    # -- how it begins

    @shielded
    def _begin(self, channel: CMEventChannel, port_space: int) -> None:
        space = integer(port_space, "port_space")
        if space not in _SPACES:
            raise refused(f"Failed to create CM ID: port_space={space:#x} is not known")
        device = channel.device
        device.check()
        self._adopt(Identity(device, space, channel._push))

    def _adopt(self, identity: Identity) -> None:
        self._identity = identity
        identity.user = weakref.ref(self)

    def _make_endpoint(self, info: AddrInfo, init: QPInitAttr | None, device: Device | None) -> None:
        """rdma_create_ep(3)."""
        what = "Failed to create CM ID"
        if init is not None:
            instance(init, QPInitAttr, "qp_init_attr")
        self._own_channel = CMEventChannel(device)
        self._begin(self._own_channel, info._port_space)
        try:
            if info._flags & ce.RAI_PASSIVE:
                self.bind_addr(info)
                self._listen_init = init
                return
            if info._destination is None:
                raise refused(f"{what}: the AddrInfo has no destination")
            self.resolve_addr(info)
            self.resolve_route()
            if init is not None:
                self._set_type(init)
                self.create_qp(init)
        except BaseException:
            self.close()
            raise

    def _set_type(self, init: QPInitAttr) -> None:
        """The type of a QP that is made without being asked for follows from the port space."""
        init.qp_type = e.IBV_QPT_UD if self._open().datagrams else e.IBV_QPT_RC

    @shielded
    def _take_request(self, creator: CMEvent) -> None:
        event = creator._open()
        if event.kind is not Kind.CONNECT_REQUEST:
            raise refused(f"Failed to create CM ID: {creator.event_str()} is no request")
        if event.identity.user is not None:
            raise refused("Failed to create CM ID: another was made from this request")
        self._event_channel = creator._channel  # the listener may have been closed, or moved to another one
        self._adopt(event.identity)
        self._settle_home()

    @shielded
    def _settle_home(self) -> None:
        """The device is known: so are its context and protection domain."""
        identity = self._open()
        self.device = identity.device
        with _home_lock:
            home = self._home(identity.device)
        self.ctx = home[0] if self._pd is None or self._pd._context is None else self._pd._context
        if self._pd is None:
            self._pd = home[1]

    def _home(self, device: Device) -> tuple[Context, PD]:
        """Context and protection domain of all CMIDs of a device."""
        with self._guard("Failed to open device"):
            service = service_of(device)
        home: tuple[Context, PD] | None = service.home
        if home is None or home[0]._core is None or home[1]._core is None:
            context = Context(device=device)
            home = service.home = (context, PD(context))
        return home

    # -- what it is

    @property
    def dev_name(self) -> str:
        """Name of the device."""
        if self.device is None:
            raise refused("the CMID is bound to no device")
        return self.device.name

    @property
    def port_num(self) -> int:
        """Port of the device; 0 while it is bound to none."""
        return 0 if self.device is None else 1

    @property
    def event_channel(self) -> CMEventChannel | None:
        """The channel of its events; None of a synchronous CMID."""
        return self._event_channel

    @property
    def context(self) -> Context | None:
        """The open device; None before it is bound to one."""
        return self.ctx

    @property
    def local_addr(self) -> tuple[str, int] | None:
        """Extension (rdma_get_local_addr(3)): IP address and port of this side, or None."""
        return _pair(self._open().source)

    @property
    def peer_addr(self) -> tuple[str, int] | None:
        """Extension (rdma_get_peer_addr(3)): IP address and port of the peer, or None."""
        return _pair(self._open().destination)

    # -- events

    def _channel(self) -> CMEventChannel:
        channel = self._event_channel or self._own_channel
        if channel is None:
            raise refused("CMID is closed")
        return channel

    @shielded
    def _on_event(self, event: Event) -> None:
        """What comes with an event, before it is seen: see CMEvent."""
        identity = self._identity
        if identity is None:
            return
        if event.kind in (Kind.ADDR_RESOLVED, Kind.ROUTE_RESOLVED):
            self._settle_home()
        elif event.kind is Kind.CONNECT_RESPONSE and self._qp is not None:
            self._finish_connect(identity, event)
        elif event.kind is Kind.REJECTED:
            self._fail_qp()
        elif event.kind is Kind.MULTICAST_JOIN:
            self._attach(event)

    def _finish_connect(self, identity: Identity, event: Event) -> None:
        """The peer has accepted: the QP becomes ready, and the peer hears of it."""
        try:
            self._make_ready()
            with self._guard("Failed to connect", "rdma_connect"):
                identity.establish()
            event.kind = Kind.ESTABLISHED
        except PyverbsError as error:
            event.kind, event.status = Kind.CONNECT_ERROR, -(error.errno or errno.EINVAL)
            with self._guard("Failed to connect"):
                if identity.machine is not None and identity.stage is Stage.CONNECT:
                    identity.give_up()
            self._fail_qp()

    def _attach(self, event: Event) -> None:
        """A multicast group was joined: the QP, where there is one, is to receive what is sent to it."""
        if event.vector is None or self._qp is None:
            return
        for member in self._open().groups.values():
            if member.gid == event.vector.dgid and not member.send_only and not member.attached:
                try:
                    self._qp.attach_mcast(GID._of(member.gid), 0)
                    member.attached = True
                except PyverbsError as error:
                    event.kind, event.status = Kind.MULTICAST_ERROR, -(error.errno or errno.EINVAL)

    def _complete(self, what: str, *kinds: Kind) -> None:
        """Of a synchronous CMID: waits for the event that tells the outcome."""
        channel = self._own_channel
        if channel is None:
            return
        with Shield() as shield:
            event = channel._next(what, shield)
            self._on_event(event)
        if event.status or event.kind not in kinds:
            raise refused(f"{what}: {_words(event)}", _errno_of(event))

    # -- addresses

    def bind_addr(self, lai: AddrInfo) -> None:
        """Takes a source address (rdma_bind_addr(3)).

        :param lai: the address, as a source
        :raises PyverbsRDMAError: EADDRNOTAVAIL, EADDRINUSE; EINVAL where it has one
        """
        what = "Failed to Bind ID"
        instance(lai, AddrInfo, "bind_addr lai")
        address = lai._bind_address(what)
        with self._guard(what, "rdma_bind_addr"):
            self._open().bind(address)
        self._settle_home()

    def resolve_addr(self, rai: AddrInfo, timeout_ms: int = 2000) -> None:
        """Finds the device that leads to an address (rdma_resolve_addr(3)); ADDR_RESOLVED or ADDR_ERROR tells.

        :param rai: the destination; and the source, where it is not bound
        :param timeout_ms: milliseconds at most; nothing here takes any time
        :raises PyverbsRDMAError: EADDRNOTAVAIL, EADDRINUSE for the source; EINVAL in another state
        """
        what = "Failed to Resolve Address"
        instance(rai, AddrInfo, "resolve_addr rai")
        integer(timeout_ms, "timeout_ms", signed=True)
        if rai._destination is None:
            raise refused(f"{what}: the AddrInfo has no destination")
        with self._guard(what, "rdma_resolve_addr"):
            self._open().resolve_addr(rai._source, rai._destination)
        self._complete(what, Kind.ADDR_RESOLVED)

    def resolve_route(self, timeout_ms: int = 2000) -> None:
        """Finds the route (rdma_resolve_route(3)), after the address; ROUTE_RESOLVED or ROUTE_ERROR tells.

        :param timeout_ms: milliseconds at most; nothing here takes any time
        :raises PyverbsRDMAError: EINVAL in another state
        """
        what = "Failed to Resolve Route"
        integer(timeout_ms, "timeout_ms", signed=True)
        with self._guard(what, "rdma_resolve_route"):
            self._open().resolve_route()
        self._settle_home()
        self._complete(what, Kind.ROUTE_RESOLVED)

    def resolve_addrinfo(self, node: Any = None, service: Any = None, port_space: int = 0, flags: int = 0) -> None:
        """Looks up a name and a port (rdma_resolve_addrinfo(3)); ADDRINFO_RESOLVED or ADDRINFO_ERROR tells.

        :param node: name or IP address
        :param service: name or number of the port
        :param port_space: RDMA_PS_*; 0: its own
        :param flags: RAI_* bits; RAI_SA is refused with EOPNOTSUPP: there is no subnet administrator on Ethernet
        """
        what = "Failed to Resolve AddrInfo"
        identity = self._open()
        if integer(flags, "flags") & ce.RAI_SA:
            raise refused(f"{what}: RAI_SA: there is no subnet administrator", errno.EOPNOTSUPP)
        passive = {"src": node, "src_service": service} if flags & ce.RAI_PASSIVE else {}
        active = {} if passive else {"dst": node, "dst_service": service}
        event = Event(Kind.ADDRINFO_RESOLVED, identity)
        try:
            self._resolved = AddrInfo(**passive, **active, port_space=port_space or identity.space, flags=flags)
        except PyverbsError as error:
            event.kind, event.status = Kind.ADDRINFO_ERROR, -(error.errno or errno.EINVAL)
        with self._guard(what, "rdma_resolve_addrinfo"):
            identity.emit(event)
        self._complete(what, Kind.ADDRINFO_RESOLVED)

    def query_addrinfo(self) -> AddrInfo:
        """What ``resolve_addrinfo`` has found (rdma_query_addrinfo(3)).

        :raises PyverbsRDMAError: EINVAL where it has found nothing
        """
        self._open()
        if self._resolved is None:
            raise refused("Failed to Query AddrInfo: nothing was resolved")
        found = AddrInfo._of(self._resolved._source, self._resolved._destination, self._resolved._port_space)
        found._flags = self._resolved._flags
        return found

    # -- the passive side

    def listen(self, backlog: int = 0) -> None:
        """Lets requests in (rdma_listen(3)).

        :param backlog: requests that may wait for an answer; 0: as many as can be
        :raises PyverbsRDMAError: EINVAL where it is not bound, EADDRINUSE
        """
        count = integer(backlog, "backlog", signed=True)
        with self._guard("Listen Failed", "rdma_listen"):
            self._open().listen(count)

    def get_request(self) -> "CMID":
        """Waits for a request, of a synchronous CMID (rdma_get_request(3)): a new CMID, to be accepted or rejected.

        :raises PyverbsRDMAError: EINVAL where it does not listen, or is asynchronous
        """
        what = "Failed to get request, no connection established"
        if self._own_channel is None or self._open().stage is not Stage.LISTEN:
            raise refused(f"{what}: the CMID does not listen, or is asynchronous")
        with Shield() as shield:
            event = self._own_channel._next(what, shield)
            if event.kind is not Kind.CONNECT_REQUEST:
                raise refused(f"{what}: {_words(event)}", _errno_of(event))
            return self._child(event, what)

    def _child(self, event: Event, what: str) -> "CMID":
        """The CMID of a request, to a synchronous CMID that listens."""
        assert self._own_channel is not None
        child = CMID()
        child._own_channel = CMEventChannel(event.identity.device)
        with self._guard(what, "rdma_get_request"):
            self._own_channel._move(event.identity, child._own_channel)
        child._pd = self._pd
        child._adopt(event.identity)
        child._settle_home()
        self.ctx, self._pd = child.ctx, child._pd
        if self._listen_init is not None:
            try:
                child._set_type(self._listen_init)
                child.create_qp(self._listen_init)
            except BaseException:
                child.close()
                raise
        return child

    def accept(self, param: ConnParam | None = None) -> None:
        """Accepts a request (rdma_accept(3)). Of a connection ESTABLISHED tells that the peer has heard it.

        :param param: what the peer is told; None: as much as the request asks for
        :raises PyverbsRDMAError: EINVAL without a request or a QP
        """
        what = "Failed to Accept Connection"
        wanted = self._param(param)
        with Shield():
            with self._guard(what, "rdma_accept"):
                self._open().negotiate(wanted)
            self._make_ready()
            with self._guard(what, "rdma_accept"):
                self._open().accept(wanted)
        if not self._open().datagrams:
            self._complete(what, Kind.ESTABLISHED)

    def _param(self, param: ConnParam | None) -> Param:
        qp = self._qp
        qp_num = 0 if qp is None else qp.qp_num
        shared = qp is not None and qp._parts is not None and qp._parts.srq is not None
        if param is None:
            return Param(qp_num=qp_num, srq=int(shared))
        instance(param, ConnParam, "param")
        return param._param(qp_num, shared)

    def reject(self, private_data: Any = None) -> None:
        """Refuses a request (rdma_reject(3)), or an answer.

        :param private_data: bytes for the peer, 148 at most; 136 where datagrams were asked for
        :raises PyverbsRDMAError: EINVAL where there is nothing to refuse
        """
        data = bytes(private_data) if private_data else b""
        with self._guard("Failed to Reject Connection", "rdma_reject"):
            self._open().reject(data)

    # -- the active side, and both

    def connect(self, param: ConnParam | None = None) -> None:
        """Asks for a connection, or for the queue pair of a service of datagrams (rdma_connect(3)).

        ESTABLISHED tells that it is there; CONNECT_RESPONSE, where the CMID has no QP, that ``establish`` is due;
        REJECTED and UNREACHABLE tell that it is not.

        :param param: what the peer is told; None: as much as can be
        :raises PyverbsRDMAError: EINVAL before the route is resolved, or without a QP; of a synchronous CMID
            ECONNREFUSED and ETIMEDOUT
        """
        what = "Failed to Connect"
        wanted = self._param(param)
        with self._guard(what, "rdma_connect"):
            self._open().connect(wanted)
        self._complete(what, Kind.ESTABLISHED, Kind.CONNECT_RESPONSE)

    def establish(self) -> None:
        """Says that a QP that is not the CMID's is ready (rdma_establish(3)), after CONNECT_RESPONSE.

        :raises PyverbsRDMAError: EINVAL where the CMID has a QP, or in another state
        """
        what = "Failed to Complete an active connection request"
        if self._qp is not None:
            raise refused(f"{what}: the CMID has a QP of its own")
        with self._guard(what, "rdma_establish"):
            self._open().establish()

    def disconnect(self) -> None:
        """Ends the connection (rdma_disconnect(3)), or agrees that it has ended; its QP goes to ERR.

        :raises PyverbsRDMAError: EINVAL where none was asked for
        """
        what = "Failed to Disconnect"
        with Shield():
            with self._guard(what, "rdma_disconnect"):
                self._open().conversation()
            self._fail_qp()
            with self._guard(what, "rdma_disconnect"):
                self._open().disconnect()
        if not self._open().datagrams:  # of which no event would tell
            self._complete(what, Kind.DISCONNECTED, Kind.TIMEWAIT_EXIT)

    def notify(self, event: int) -> None:
        """Extension (rdma_notify(3)): passes an event of a QP that is not the CMID's to the connection manager.

        :param event: IBV_EVENT_COMM_EST: data has come before the last message of the connection manager
        :raises PyverbsRDMAError: EISCONN, which may be ignored: the last message has come; EINVAL for another event
        """
        with self._guard("Failed to notify", "rdma_notify"):
            if integer(event, "event") != e.IBV_EVENT_COMM_EST:
                raise PyverbsRDMAError(f"event={event} is not IBV_EVENT_COMM_EST", errno.EINVAL)
            self._open().heard()

    @shielded
    def migrate_id(self, channel: CMEventChannel | None = None) -> None:
        """Extension (rdma_migrate_id(3)): moves the CMID, with events that wait, to another channel.

        :param channel: the channel; None: it becomes synchronous
        """
        what = "Failed to migrate CM ID"
        old = self._channel()
        new = CMEventChannel(self._open().device) if channel is None else channel
        instance(new, CMEventChannel, "channel")
        if new.device is not self._open().device:
            raise refused(f"{what}: the channel is of another device")
        with self._guard(what, "rdma_migrate_id"):
            new._open()
            old._move(self._open(), new)
        if old is self._own_channel:
            old.close()
        self._event_channel = channel
        self._own_channel = new if channel is None else None

    def set_option(self, level: int, optname: int, optval: int, optlen: int) -> None:
        """Sets an option (rdma_set_option(3)).

        :param level: RDMA_OPTION_ID
        :param optname: RDMA_OPTION_ID_ACK_TIMEOUT (of the QP, 4.096 us * 2^value). Extension: RDMA_OPTION_ID_TOS (0:
            the traffic class), RDMA_OPTION_ID_REUSEADDR (1), RDMA_OPTION_ID_AFONLY (2)
        :param optval: the value
        :param optlen: its size: 4 bytes of the last two, 1 byte of the others
        :raises PyverbsUserError: another option
        :raises PyverbsRDMAError: EINVAL
        """
        what = "Failed to set option"
        if optname not in OPTIONS:
            raise PyverbsUserError(
                f"optname={optname}: TOS, REUSEADDR, AFONLY and ACK_TIMEOUT, {[*OPTIONS]}, are supported"
            )
        if level != ce.RDMA_OPTION_ID or optlen != OPTIONS[optname]:
            raise refused(f"{what}: level={level}, optlen={optlen}: RDMA_OPTION_ID and {OPTIONS[optname]} are expected")
        value = integer(optval, "optval", 5 if optname == ce.RDMA_OPTION_ID_ACK_TIMEOUT else 8 * optlen)
        with self._guard(what, "rdma_set_option"):
            self._open().set_option(optname, value)

    def set_local_ece(self, ece: ECE) -> None:
        """Options of a vendor that REQ or REP tells the peer (rdma_set_local_ece(3)).

        :param ece: the options
        """
        instance(ece, ECE, "ece")
        with self._guard("Failed to set local ECE", "rdma_set_local_ece"):
            self._open().local_ece = (integer(ece.vendor_id, "vendor_id", 24), ece.options)

    def get_remote_ece(self) -> ECE:
        """Options of a vendor that the peer has told (rdma_get_remote_ece(3)); zeros where there are none."""
        vendor_id, options = self._open().remote_ece
        return ECE(vendor_id, options)

    # -- multicast

    def join_multicast(
        self, addr: AddrInfo | None = None, mc_attr: JoinMCAttrEx | None = None, context: int = 0
    ) -> None:
        """Joins a multicast group (rdma_join_multicast(3)); MULTICAST_JOIN tells, and the QP is attached then.

        :param addr: the group, as a source address
        :param mc_attr: instead: the group, and whether only to send
        :param context: any number; pyverbs has it, nothing returns it
        :raises PyverbsRDMAError: EINVAL for what is no group, or where it is bound to no device
        """
        what = "Failed to Join multicast"
        integer(context, "context", 64)
        if mc_attr is not None:
            instance(mc_attr, JoinMCAttrEx, "mc_attr")
            send_only, info = mc_attr._checked(what), mc_attr._addr
        elif addr is not None:
            instance(addr, AddrInfo, "addr")
            send_only, info = False, addr
        else:
            raise PyverbsUserError(f"{what}: addr, an AddrInfo, or mc_attr, a JoinMCAttrEx, is needed")
        with self._guard(what, "rdma_join_multicast"):
            self._open().join(info._bind_address(what), send_only)
        self._complete(what, Kind.MULTICAST_JOIN)

    def leave_multicast(self, addr: AddrInfo) -> None:
        """Leaves a multicast group (rdma_leave_multicast(3)); the QP is detached.

        :param addr: the group, as a source address
        :raises PyverbsRDMAError: EADDRNOTAVAIL where it was not joined
        """
        what = "Failed to leave multicast"
        instance(addr, AddrInfo, "addr")
        with self._guard(what, "rdma_leave_multicast"):
            member: Membership = self._open().leave(addr._bind_address(what))
        if member.attached and self._qp is not None:
            self._qp.detach_mcast(GID._of(member.gid), 0)

    # -- life

    @shielded
    def close(self) -> None:
        """Ends it, with its QP and its memory regions (rdma_destroy_ep(3), rdma_destroy_id(3)); the peer of a
        connection is told. Twice does nothing.
        """
        identity = self._identity
        if identity is None:
            return
        device = identity.device
        channel = self._event_channel or self._own_channel
        self._close_qp()
        close_weakrefs([self._mrs])
        self._identity = None
        if device.usable():
            with device.lock:
                _end((identity, channel))
                device.port.progress(device.clock())
        if self._own_channel is not None:
            self._own_channel.close()
        self._event_channel = self._own_channel = None
        self.ctx = self._pd = self.device = None

    @finalizer
    def __del__(self) -> None:
        identity = getattr(self, "_identity", None)
        if identity is not None:
            bury(identity.device, _end, (identity, self._event_channel or self._own_channel))


def _end(remains: "tuple[Identity, CMEventChannel | None]") -> None:
    """Ends an identifier, with the events that wait; the lock is held."""
    identity, channel = remains
    identity.close()
    if channel is not None:
        channel._forget(identity)


def _pair(address: Address | None) -> tuple[str, int] | None:
    return None if address is None else (address.text, address.port)


def _words(event: Event) -> str:
    """What an event says, for people."""
    if event.kind is Kind.REJECTED:
        return f"the peer refuses, reason {event.status}"
    if event.kind is Kind.UNREACHABLE and event.status > 0:
        return f"nobody serves datagrams there, status {event.status}"
    return f"RDMA_CM_EVENT_{event.kind.name}, status {event.status}"


def _errno_of(event: Event) -> int:
    """The errno of an event that tells of a failure."""
    if event.status < 0:
        return -event.status
    return errno.ECONNREFUSED if event.kind in (Kind.REJECTED, Kind.UNREACHABLE) else errno.ECONNABORTED
