"""What applications hold: a communication identifier, ``struct rdma_cm_id`` of librdmacm, without its queue pair.

It knows addresses, asks for connections and answers; what happens comes as events, in order. Whoever owns the queue
pair is told by ``attributes`` what it has to be given in each state.

The device's lock is held around every call.
"""

import errno
from collections.abc import Callable
from enum import Enum
from typing import TYPE_CHECKING, Any

from softverbs.cm import attributes, messages, registry
from softverbs.cm.addresses import Address, of_gid
from softverbs.cm.events import MOST, Event, Kind, Membership, Param
from softverbs.cm.gsi import unreachable
from softverbs.cm.machine import Machine, Notice, State
from softverbs.cm.messages import IpHeader, Message, Rep, Req, SidrRep, SidrReq, service_id_of
from softverbs.cm.service import DEFAULT_BACKLOG, Exchange, Service, service_of
from softverbs.cm.sidr import Inquired, Inquiry
from softverbs.core.address import AddressVector
from softverbs.core.errors import PyverbsRDMAError
from softverbs.core.limits import MAX_RD_ATOMIC

if TYPE_CHECKING:
    from softverbs.device import Device

# enum rdma_port_space
PS_IPOIB, PS_TCP, PS_UDP, PS_IB = 0x0002, 0x0106, 0x0111, 0x013F
_DATAGRAMS = (PS_UDP, PS_IPOIB)

#: Q_Key of datagram queue pairs that use the connection manager, RDMA_UDP_QKEY of rdma_cma.h.
UDP_QKEY = 0x01234567
MULTICAST_QPN = 0xFFFFFF
RESPONSE_TIMEOUT = 18
#: Time-out of a queue pair by default: 4.096 us * 2^16 = 268 ms.
ACK_TIMEOUT = 16
MAX_RETRIES = 15
HOP_LIMIT = 64
TARGET_ACK_DELAY = 15
#: Private data of the application, bytes at most.
ROOM = {Req: 56, Rep: 196, SidrReq: 180, SidrRep: 136}
REJECT_ROOM = 148


_KINDS = {
    Notice.RESPONSE: Kind.CONNECT_RESPONSE,
    Notice.ESTABLISHED: Kind.ESTABLISHED,
    Notice.REJECTED: Kind.REJECTED,
    Notice.UNREACHABLE: Kind.UNREACHABLE,
    Notice.DISCONNECTED: Kind.DISCONNECTED,
    Notice.TIMEWAIT_EXIT: Kind.TIMEWAIT_EXIT,
}


class Stage(Enum):
    """How far an identifier is."""

    IDLE = "idle"
    BOUND = "bound"
    ADDRESS = "address resolved"
    ROUTE = "route resolved"
    LISTEN = "listening"
    REQUEST = "a request waits for an answer"
    CONNECT = "connecting or connected"
    CLOSED = "closed"


class Identity:
    """A communication identifier."""

    def __init__(self, device: "Device", space: int, emit: Callable[[Event], None]) -> None:
        """
        :param device: that it will be of, once it is bound
        :param space: RDMA_PS_*
        :param emit: takes its events
        """
        self.device = device
        self.space = space
        self.emit = emit
        self.stage = Stage.IDLE
        self.source: Address | None = None
        self.destination: Address | None = None
        self.sgid_index = 0
        self.dgid: bytes | None = None
        self.backlog = 0
        #: Requests that nobody has answered.
        self.pending: set[Identity] = set()
        self.listener: Identity | None = None
        self.exchange: Exchange | None = None
        self.groups: dict[bytes, Membership] = {}
        self.ack_timeout: int | None = None
        self.traffic_class = 0
        #: ECE: vendor and options, of this side and of the peer (IBA A19).
        self.local_ece = (0, 0)
        self.remote_ece = (0, 0)
        #: Who holds it, or None: pyverbs/cmid.py has a weak reference here, the server its own object.
        self.user: Any = None
        self._entry: registry.Entry | None = None
        self._service: Service | None = None
        self._resources = MOST
        self._depth = MOST
        self._request: SidrReq | None = None
        #: The first PSN that the peer is to send with.
        self._psn = 0

    @property
    def service(self) -> Service:
        """The connection manager of its device."""
        if self._service is None:
            self._service = service_of(self.device)
            self._service.identities.add(self)
            self._psn = self._service.random.getrandbits(24)
        return self._service

    @property
    def datagrams(self) -> bool:
        """Whether it is of a port space of datagrams."""
        return self.space in _DATAGRAMS

    @property
    def machine(self) -> Machine | None:
        """The state of its connection; None where there is none, or for datagrams."""
        machine = self.exchange.machine if self.exchange is not None else None
        return machine if isinstance(machine, Machine) else None

    def _need(self, *stages: Stage) -> None:
        if self.stage not in stages:
            raise PyverbsRDMAError(f"the identifier is {self.stage.value}", errno.EINVAL)

    # -- addresses

    def bind(self, address: Address) -> None:
        """Takes a source address (rdma_bind_addr(3)).

        :param address: of the device, another address of this host, or all addresses; port 0: a free port
        :raises PyverbsRDMAError: EINVAL in another state, EADDRNOTAVAIL, EADDRINUSE
        """
        self._need(Stage.IDLE)
        gids = self.service.device.link.gids
        if address.gid in gids:
            self.sgid_index = gids.index(address.gid)
        elif address.is_any or (self.service.on_host and address.is_local() and not registry.has_device(address.ip)):
            index = self._index_for(address)
            if index is None:
                raise PyverbsRDMAError(f"the device has no address of the kind of {address.text}", errno.EADDRNOTAVAIL)
            self.sgid_index = index
        else:
            raise PyverbsRDMAError(f"{address.text} is no address of this device or host", errno.EADDRNOTAVAIL)
        self._reserve(address)
        self.stage = Stage.BOUND

    def _reserve(self, address: Address) -> None:
        try:
            self.source = self.service.bind(self, address)
        except OSError as error:
            raise PyverbsRDMAError(str(error.strerror), error.errno or errno.EADDRINUSE) from None

    def _index_for(self, address: Address) -> int | None:
        """The first GID of the same IP version."""
        for index, gid in enumerate(self.service.device.link.gids):
            if len(of_gid(gid).ip) == len(address.ip):
                return index
        return None

    def resolve_addr(self, source: Address | None, destination: Address) -> None:
        """Finds the way to a destination (rdma_resolve_addr(3)); an event tells.

        :param source: where the identifier is not bound yet; None: the device's
        :param destination: a host or a multicast group
        :raises PyverbsRDMAError: EINVAL, or of ``bind``
        """
        self._need(Stage.IDLE, Stage.BOUND)
        self.destination = destination
        if self.stage is Stage.IDLE and source is not None:
            self.bind(source)
        index = self._index_for(destination)
        if index is None:
            self.emit(Event(Kind.ADDR_ERROR, self, -errno.EHOSTUNREACH))
            return
        if self.source is None or self.source.is_any:
            self.sgid_index = index
            port = self.source.port if self.source is not None else 0
            own = of_gid(self.service.device.link.gids[index], port)
            if self.source is None:
                self._reserve(own)
            else:
                self.source = own
        elif len(self.source.ip) != len(destination.ip):
            self.emit(Event(Kind.ADDR_ERROR, self, -errno.EAFNOSUPPORT))
            return
        self.stage = Stage.ADDRESS
        self.emit(Event(Kind.ADDR_RESOLVED, self))

    def resolve_route(self) -> None:
        """Finds the route (rdma_resolve_route(3)); an event tells."""
        self._need(Stage.ADDRESS)
        self._locate()
        if self.dgid is not None:
            status = unreachable(self.device, self.sgid_index, self.dgid, self.traffic_class)
            if status:
                self.emit(Event(Kind.ROUTE_ERROR, self, status))
                return
        self.stage = Stage.ROUTE
        self.emit(Event(Kind.ROUTE_RESOLVED, self))

    def _locate(self) -> None:
        """Looks where the destination is; ``dgid`` stays None where it is on this host and nobody listens there."""
        if self.destination is not None:
            self.dgid = self.service.locate(self.space, self.destination)

    # -- listening

    def listen(self, backlog: int) -> None:
        """Listens for requests (rdma_listen(3)).

        :param backlog: requests that may wait for an answer; 0: as many as can be
        :raises PyverbsRDMAError: EINVAL where it is bound to nothing, EADDRINUSE
        """
        if self.stage is Stage.IDLE:
            raise PyverbsRDMAError("the identifier is not bound to an address", errno.EINVAL)
        self._need(Stage.BOUND)
        source = self.source
        assert source is not None
        gid = self.service.device.link.gids[self.sgid_index]
        if self.service.on_host and source.gid not in self.service.device.link.gids:
            text = "*" if source.is_any else source.text
            try:
                self._entry = registry.announce(self.space, text, source.port, gid)
            except OSError as error:
                if not source.is_any:  # on all addresses: the device's own remains
                    raise PyverbsRDMAError(str(error.strerror), error.errno or errno.EADDRINUSE) from None
        self.backlog = min(backlog, DEFAULT_BACKLOG) if backlog > 0 else DEFAULT_BACKLOG
        self.service.listen(self)
        self.stage = Stage.LISTEN

    def backlog_full(self) -> bool:
        """Whether so many requests wait that one more must be dropped."""
        return len(self.pending) >= self.backlog

    def on_request(self, exchange: Exchange, request: Req | SidrReq, header: IpHeader, private_data: bytes) -> None:
        """A request has come: a new identifier begins, in an event."""
        child = Identity(self.device, self.space, self.emit)
        assert self.source is not None and child.service is self.service
        child.listener = self
        child.source = Address(header.destination, self.source.port)
        child.destination = Address(header.source, header.source_port)
        child.sgid_index = exchange.sgid_index
        child.dgid = exchange.gid
        child.exchange = exchange
        child.stage = Stage.REQUEST
        child.traffic_class = exchange.traffic_class
        exchange.owner = child
        self.pending.add(child)
        event = Event(Kind.CONNECT_REQUEST, child, listener=self, private_data=private_data)
        if isinstance(request, Req):
            child.remote_ece = (request.vendor_id, request.attribute_modifier)
            event.param = child._param_of(request)
            child._resources, child._depth = request.initiator_depth, request.responder_resources
        else:
            child._request = request
            event.vector = child.vector()
        self.emit(event)

    def vector(self) -> AddressVector:
        """Where the peer is."""
        return self._vector_to(self.dgid or bytes(16), HOP_LIMIT)

    def _vector_to(self, dgid: bytes, hop_limit: int) -> AddressVector:
        index = self.device.port.gid_table.index_of_address(self.sgid_index)
        return AddressVector(dgid, index, hop_limit=hop_limit, traffic_class=self.traffic_class)

    @staticmethod
    def _param_of(message: Req | Rep) -> Param:
        """What a peer says of the connection, from the view of this side: what it answers, this side may ask."""
        return Param(
            responder_resources=message.initiator_depth,
            initiator_depth=message.responder_resources,
            flow_control=message.flow_control,
            retry_count=message.retry_count if isinstance(message, Req) else 0,
            rnr_retry_count=message.rnr_retry_count,
            srq=message.srq,
            qp_num=message.qpn,
        )

    # -- connections

    def connect(self, param: Param) -> None:
        """Asks for a connection, or for the queue pair that serves datagrams (rdma_connect(3)); an event tells.

        :param param: with the number of the queue pair
        :raises PyverbsRDMAError: EINVAL in another state, without a queue pair, or for too much private data
        """
        self._need(Stage.ROUTE)
        self._check_private(param.private_data, ROOM[SidrReq if self.datagrams else Req])
        if not self.datagrams and not 0 < param.qp_num < 1 << 24:
            raise PyverbsRDMAError(f"qp_num={param.qp_num}: a connection needs a queue pair", errno.EINVAL)
        self.stage = Stage.CONNECT
        if not self._start(param, False):
            self.service.hope(lambda last: self._start_late(param, last))

    def _start_late(self, param: Param, last: bool) -> bool:
        """As ``_start``; what would be refused becomes an event."""
        try:
            return self._start(param, last)
        except PyverbsRDMAError as error:
            self.emit(Event(Kind.CONNECT_ERROR, self, -(error.errno or errno.EINVAL)))
            return True

    def _start(self, param: Param, last: bool) -> bool:
        """Begins to connect; False where nobody of this host listens there yet, and this is not the ``last`` try."""
        if self.stage is not Stage.CONNECT or self.exchange is not None:
            return True
        assert self.destination is not None and self.source is not None
        if self.dgid is None:
            self._locate()
        if self.dgid is None:
            if last:  # what the host there would say
                status = messages.SIDR_UNSUPPORTED if self.datagrams else messages.REJ_INVALID_SERVICE_ID
                self.emit(Event(Kind.UNREACHABLE if self.datagrams else Kind.REJECTED, self, status))
            return last
        self.exchange = Exchange(self.service, self.dgid, self.sgid_index, self.traffic_class)
        self.exchange.owner = self
        header = IpHeader(self.source.ip, self.destination.ip, self.source.port).encode()
        if self.datagrams:
            self._inquire(self.exchange, header + param.private_data)
        else:
            self._ask(self.exchange, param, header + param.private_data)
        self.exchange.settle()
        return True

    @staticmethod
    def _check_private(data: bytes, room: int) -> None:
        if len(data) > room:
            raise PyverbsRDMAError(f"{len(data)} bytes of private data: {room} at most", errno.EINVAL)

    def _inquire(self, exchange: Exchange, private_data: bytes) -> None:
        assert self.destination is not None
        inquiry = Inquiry(exchange.send, exchange.tell, self.service.timing)
        exchange.machine = inquiry
        request = SidrReq(
            request_id=self.service.enter(exchange),
            service_id=service_id_of(self.space, self.destination.port),
            private_data=private_data,
            transaction_id=self.service.next_transaction(),
        )
        inquiry.start(request, self.service.now())

    def _ask(self, exchange: Exchange, param: Param, private_data: bytes) -> None:
        service = self.service
        assert self.destination is not None and self.dgid is not None
        self._resources = min(param.responder_resources, MAX_RD_ATOMIC)
        self._depth = min(param.initiator_depth, MAX_RD_ATOMIC)
        timeout = ACK_TIMEOUT if self.ack_timeout is None else self.ack_timeout
        machine = Machine(service.enter(exchange), exchange.send, exchange.tell, service.timing)
        exchange.machine = machine
        req = Req(
            vendor_id=self.local_ece[0],
            attribute_modifier=self.local_ece[1],
            service_id=service_id_of(self.space, self.destination.port),
            ca_guid=self.device.guid,
            qpn=param.qp_num,
            responder_resources=self._resources,
            initiator_depth=self._depth,
            remote_response_timeout=RESPONSE_TIMEOUT,
            local_response_timeout=RESPONSE_TIMEOUT,
            flow_control=int(bool(param.flow_control)),
            starting_psn=self._psn,
            retry_count=min(param.retry_count, 7),
            rnr_retry_count=min(param.rnr_retry_count, 7),
            path_mtu=self.device.port.active_mtu,
            max_cm_retries=MAX_RETRIES,
            srq=int(bool(param.srq)),
            traffic_class=self.traffic_class,
            hop_limit=HOP_LIMIT,
            ack_timeout=timeout,
            local_gid=self.device.link.gids[self.sgid_index],
            remote_gid=self.dgid,
            private_data=private_data,
            transaction_id=service.next_transaction(),
        )
        machine.connect(req, service.now())

    def negotiate(self, param: Param) -> None:
        """Before the queue pair is moved on to be accepted: how many READs and atomics each side takes.

        :param param: of ``accept``
        """
        self._need(Stage.REQUEST)
        self._resources = min(param.responder_resources, self._resources, MAX_RD_ATOMIC)
        self._depth = min(param.initiator_depth, self._depth, MAX_RD_ATOMIC)

    def accept(self, param: Param) -> None:
        """Says yes (rdma_accept(3)); of a connection an event tells that the peer has heard it.

        :param param: with the number of the queue pair
        :raises PyverbsRDMAError: EINVAL in another state, without a queue pair, or for too much private data
        """
        self._need(Stage.REQUEST)
        exchange = self.exchange
        assert exchange is not None
        self._check_private(param.private_data, ROOM[SidrRep if self.datagrams else Rep])
        if not 0 < param.qp_num < 1 << 24:
            raise PyverbsRDMAError(f"qp_num={param.qp_num}: the peer needs to know a queue pair", errno.EINVAL)
        if isinstance(exchange.machine, Inquired):
            self._answer_inquiry(exchange, messages.SIDR_SUCCESS, param.private_data, param.qp_num)
        elif isinstance(exchange.machine, Machine):
            self.negotiate(param)
            self._reply(exchange.machine, param)
        self._answered()
        self.stage = Stage.CONNECT
        exchange.settle()

    def _answer_inquiry(self, exchange: Exchange, status: int, private_data: bytes, qp_num: int = 0) -> None:
        request = self._request
        assert isinstance(exchange.machine, Inquired) and request is not None
        reply = SidrRep(
            request_id=request.request_id,
            status=status,
            qpn=qp_num,
            service_id=request.service_id,
            qkey=UDP_QKEY if qp_num else 0,
            private_data=private_data,
            transaction_id=request.transaction_id,
        )
        exchange.machine.answer(reply, self.service.now())

    def _reply(self, machine: Machine, param: Param) -> None:
        req = machine.req
        if machine.state is not State.REQ_RECEIVED or req is None:
            raise PyverbsRDMAError(f"the connection is in the state {machine.state.value!r}", errno.EINVAL)
        rep = Rep(
            qpn=param.qp_num,
            starting_psn=self._psn,
            responder_resources=self._resources,
            initiator_depth=self._depth,
            target_ack_delay=TARGET_ACK_DELAY,
            failover=1 if any(req.alternate_local_gid) else 0,
            flow_control=int(bool(param.flow_control)),
            rnr_retry_count=min(param.rnr_retry_count, 7),
            srq=int(bool(param.srq)),
            ca_guid=self.device.guid,
            private_data=param.private_data,
            attribute_modifier=self.local_ece[1],
            transaction_id=req.transaction_id,
        )
        rep.set_vendor_id(self.local_ece[0])
        machine.accept(rep, self.service.now())

    def _answered(self) -> None:
        if self.listener is not None:
            self.listener.pending.discard(self)

    def reject(self, private_data: bytes, reason: int = messages.REJ_CONSUMER) -> None:
        """Says no (rdma_reject(3)).

        :param private_data: for the peer
        :param reason: of a connection: of IBA 12.6.7.2
        :raises PyverbsRDMAError: EINVAL where nothing is to be refused, or for too much private data
        """
        exchange = self.exchange
        if exchange is None:
            raise PyverbsRDMAError("there is no request to reject", errno.EINVAL)
        if isinstance(exchange.machine, Inquired):
            self._need(Stage.REQUEST)
            self._check_private(private_data, ROOM[SidrRep])
            self._answer_inquiry(exchange, messages.SIDR_REJECT, private_data)
        elif isinstance(exchange.machine, Machine):
            self._check_private(private_data, REJECT_ROOM)
            self._checked(exchange.machine.reject, self.service.now(), reason, private_data=private_data)
        self._answered()
        self.stage = Stage.CONNECT
        exchange.settle()

    @staticmethod
    def _checked(method: Callable[..., None], *args: Any, **more: Any) -> None:
        """A call of a machine, whose objection to its state is the caller's mistake."""
        try:
            method(*args, **more)
        except ValueError as error:
            raise PyverbsRDMAError(str(error), errno.EINVAL) from None

    def establish(self) -> None:
        """The queue pair is ready (rdma_establish(3)): the passive side is told."""
        machine = self.connection()
        self._checked(machine.ready, self.service.now())

    def heard(self) -> None:
        """Data has arrived before the RTU (rdma_notify(3), IBV_EVENT_COMM_EST)."""
        machine = self.connection()
        machine.heard(self.service.now())
        self._settle()

    def disconnect(self) -> None:
        """Ends the connection, or agrees that it has ended (rdma_disconnect(3))."""
        machine = self.connection()
        self._checked(machine.disconnect, self.service.now())
        self._settle()

    def give_up(self) -> None:
        """The answer of the peer is of no use: it is told."""
        machine = self.connection()
        if machine.state is State.REP_RECEIVED:
            machine.reject(self.service.now())
            self._settle()

    def connection(self) -> Machine:
        """The state of its connection; EINVAL where there is none."""
        if self.machine is None:
            raise PyverbsRDMAError("the identifier has no connection", errno.EINVAL)
        return self.machine

    def _settle(self) -> None:
        if self.exchange is not None:
            self.exchange.settle()

    def on_notice(self, notice: Notice, status: int, message: Message | None) -> None:
        """What the machine tells."""
        event = Event(_KINDS[notice], self, status)
        if message is not None:
            event.private_data = getattr(message, messages.PRIVATE)
        if isinstance(message, Rep):
            self.remote_ece = (message.vendor_id, message.attribute_modifier)
            event.param = self._param_of(message)
            self._depth = min(self._depth, message.responder_resources)
        elif isinstance(message, SidrRep):
            event.vector, event.qp_num, event.qkey = self.vector(), message.qpn, message.qkey
        if self.stage is Stage.REQUEST:
            self._answered()
        self.emit(event)

    def on_removal(self) -> None:
        """The device is gone: nobody is to look for it here."""
        if self._entry is not None:
            self._entry.close()
        self.emit(Event(Kind.DEVICE_REMOVAL, self))

    # -- what a queue pair is to be given

    def attributes(self, state: int) -> tuple[dict[str, Any], int]:
        """Attributes of the queue pair on its way to a state, and their mask (rdma_init_qp_attr).

        :param state: IBV_QPS_INIT, IBV_QPS_RTR or IBV_QPS_RTS
        :raises PyverbsRDMAError: EINVAL where they are not known yet
        """
        if self.datagrams:
            return attributes.of_datagrams(state, UDP_QKEY)
        agreed = attributes.Agreed(
            self.machine, self.vector(), self._resources, self._depth, self._psn, self.ack_timeout
        )
        return agreed.on_the_way_to(state)

    # -- multicast

    def join(self, address: Address, send_only: bool) -> Membership:
        """Joins a multicast group (rdma_join_multicast(3)); an event tells. The queue pair is the owner's to attach.

        :param address: of the group; RoCE's GID of it is the address itself
        :param send_only: whether nothing is to be received
        :raises PyverbsRDMAError: EINVAL where it is bound to no device, or for what is no group
        """
        if self.stage in (Stage.IDLE, Stage.LISTEN, Stage.CLOSED):
            raise PyverbsRDMAError(f"the identifier is {self.stage.value}", errno.EINVAL)
        if not address.is_multicast:
            raise PyverbsRDMAError(f"{address.text} is no multicast group", errno.EINVAL)
        found = self.groups.setdefault(address.ip, Membership(address.gid, send_only))
        vector = self._vector_to(address.gid, 1)
        self.emit(Event(Kind.MULTICAST_JOIN, self, vector=vector, qp_num=MULTICAST_QPN, qkey=UDP_QKEY))
        return found

    def leave(self, address: Address) -> Membership:
        """Leaves a multicast group (rdma_leave_multicast(3)).

        :raises PyverbsRDMAError: EADDRNOTAVAIL where it was not joined
        """
        found = self.groups.pop(address.ip, None)
        if found is None:
            raise PyverbsRDMAError(f"{address.text} was not joined", errno.EADDRNOTAVAIL)
        return found

    # -- life

    def close(self) -> None:
        """Ends it (rdma_destroy_id(3)): the peer of a connection is told. Twice does nothing."""
        if self.stage is Stage.CLOSED:
            return
        self.stage = Stage.CLOSED
        self._answered()
        if self._entry is not None:
            self._entry.close()
        if self._service is None:
            return
        for child in list(self.pending):
            child.close()
        self._service.identities.discard(self)
        self._service.unbind(self)
        exchange = self.exchange
        if exchange is not None and not exchange.gone:
            exchange.owner = None
            if isinstance(exchange.machine, Inquired):
                if not exchange.machine.answered:
                    self._answer_inquiry(exchange, messages.SIDR_REJECT, b"")
            else:
                exchange.machine.close(self._service.now())
            exchange.settle()
