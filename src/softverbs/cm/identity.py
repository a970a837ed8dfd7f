# SPDX-License-Identifier: MIT
"""What applications hold: a communication identifier, ``struct rdma_cm_id`` of librdmacm, without its queue pair.

It knows addresses, asks for connections and answers; what happens comes as events, in order. Whoever owns the queue
pair is told by ``attributes`` what it has to be given in each state.

The device's lock is held around every call.
"""

import errno
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from softverbs.cm import attributes, messages, requests
from softverbs.cm.addressed import PS_IB as PS_IB
from softverbs.cm.addressed import PS_IPOIB as PS_IPOIB
from softverbs.cm.addressed import PS_TCP as PS_TCP
from softverbs.cm.addressed import PS_UDP as PS_UDP
from softverbs.cm.addressed import Addressed
from softverbs.cm.addressed import Stage as Stage
from softverbs.cm.addresses import ANY_V4, Address
from softverbs.cm.events import MOST, Event, Kind, Membership, Param
from softverbs.cm.machine import Machine, Notice, State
from softverbs.cm.messages import IpHeader, Message, Rej, Rep, Req, SidrRep, SidrReq, service_id_of
from softverbs.cm.service import DEFAULT_BACKLOG, Exchange, Service, service_of
from softverbs.cm.sidr import Inquired, Inquiry
from softverbs.core.base.errors import PyverbsRDMAError
from softverbs.core.transport.address import AddressVector

if TYPE_CHECKING:
    from softverbs.device import Device

#: Q_Key of datagram queue pairs that use the connection manager, RDMA_UDP_QKEY of rdma_cma.h.
UDP_QKEY = 0x01234567
MULTICAST_QPN = 0xFFFFFF
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


class Identity(Addressed):
    """A communication identifier."""

    def __init__(self, device: "Device", space: int, emit: Callable[[Event], None]) -> None:
        """
        :param device: that it will be of, once it is bound
        :param space: RDMA_PS_*
        :param emit: takes its events
        """
        super().__init__(device, space)
        self.emit = emit
        self.backlog = 0
        #: Requests that the application has not got yet. Those that it has got do not depend on the listener.
        self.pending: set[Identity] = set()
        self.listener: Identity | None = None
        self.exchange: Exchange | None = None
        self.groups: dict[bytes, Membership] = {}
        #: ECE: vendor and options, of this side and of the peer (IBA A19).
        self.local_ece = (0, 0)
        self.remote_ece = (0, 0)
        #: Who holds it, or None: pyverbs/cmid.py has a weak reference here, the server its own object.
        self.user: Any = None
        #: READs and atomics that this side takes at once, and that it asks for.
        self.resources = MOST
        self.depth = MOST
        #: The first PSN that the peer is to send with.
        self.psn = 0
        self._service: Service | None = None
        self._request: SidrReq | None = None
        #: Whether the application was told that the connection has ended.
        self._ended = False

    @property
    def service(self) -> Service:
        """The connection manager of its device."""
        if self._service is None:
            self._service = service_of(self.device)
            self._service.identities.add(self)
            self.psn = self._service.random.getrandbits(24)
        return self._service

    @property
    def machine(self) -> Machine | None:
        """The state of its connection; None where there is none, or for datagrams."""
        machine = self.exchange.machine if self.exchange is not None else None
        return machine if isinstance(machine, Machine) else None

    def tell(self, kind: Kind, status: int = 0) -> None:
        """Gives the application an event that has nothing to say but this."""
        self.emit(Event(kind, self, status))

    # -- listening

    def listen(self, backlog: int) -> None:
        """Listens for requests (rdma_listen(3)); what is bound to nothing, on all addresses of IPv4, at a free port.

        :param backlog: requests that may wait until the application gets them; 0: as many as can be
        :raises PyverbsRDMAError: EINVAL in another state; as ``bind``
        """
        if self.stage is Stage.IDLE:
            self.bind(Address(ANY_V4))
        self._need(Stage.BOUND)
        self._take_port()
        self.backlog = min(backlog, DEFAULT_BACKLOG) if backlog > 0 else DEFAULT_BACKLOG
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
            event.param = requests.param_of(request)
            child.resources, child.depth = request.initiator_depth, request.responder_resources
        else:
            child._request = request
            event.vector = child.vector()
        self.emit(event)

    def vector(self) -> AddressVector:
        """Where the peer is."""
        return self._vector_to(self.dgid or bytes(16))

    def _vector_to(self, dgid: bytes) -> AddressVector:
        index = self.device.port.gid_table.index_of_address(self.sgid_index)
        return AddressVector(dgid, index, hop_limit=requests.HOP_LIMIT, traffic_class=self.traffic_class)

    def on_delivered(self) -> None:
        """The application has got the request, which from now on is its own: the listener may end."""
        if self.listener is not None:
            self.listener.pending.discard(self)

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
                self.emit(self._nobody_listens())
            return last
        self.exchange = Exchange(self.service, self.dgid, self.sgid_index, self.traffic_class)
        self.exchange.owner = self
        if self.datagrams:
            self._inquire(self.exchange, requests.ip_header(self) + param.private_data)
        else:
            self._ask(self.exchange, param)
        self.exchange.settle()
        return True

    def _nobody_listens(self) -> Event:
        """What the answer of a host is told by on which nobody listens at the destination."""
        if self.datagrams:
            status, data = messages.SIDR_UNSUPPORTED, bytes(ROOM[SidrRep])
            return Event(Kind.UNREACHABLE, self, status, private_data=data)
        return Event(Kind.REJECTED, self, messages.REJ_INVALID_SERVICE_ID, private_data=bytes(REJECT_ROOM))

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

    def _ask(self, exchange: Exchange, param: Param) -> None:
        service = self.service
        self.resources = requests.wanted_depth(param.responder_resources, MOST)
        self.depth = requests.wanted_depth(param.initiator_depth, MOST)
        machine = Machine(service.enter(exchange), exchange.send, exchange.tell, service.timing)
        exchange.machine = machine
        machine.connect(requests.req_of(self, param), service.now())

    def negotiate(self, param: Param) -> None:
        """Before the queue pair is moved on to be accepted: how many READs and atomics each side takes. What the
        application says counts, as in librdmacm, even if the peer has asked for less.

        :param param: of ``accept``
        """
        self._need(Stage.REQUEST)
        self.resources = requests.wanted_depth(param.responder_resources, self.resources)
        self.depth = requests.wanted_depth(param.initiator_depth, self.depth)

    def accept(self, param: Param) -> None:
        """Says yes (rdma_accept(3)); of a connection an event tells that the peer has heard it.

        :param param: with the number of the queue pair
        :raises PyverbsRDMAError: EINVAL in another state, without a queue pair, or for too much private data: then the
            peer is refused, as by Linux
        """
        self._need(Stage.REQUEST)
        exchange = self.exchange
        assert exchange is not None
        if not 0 < param.qp_num < 1 << 24:
            raise PyverbsRDMAError(f"qp_num={param.qp_num}: the peer needs to know a queue pair", errno.EINVAL)
        try:
            self._check_private(param.private_data, ROOM[SidrRep if self.datagrams else Rep])
        except PyverbsRDMAError:
            self.reject(b"")
            raise
        if isinstance(exchange.machine, Inquired):
            self._answer_inquiry(exchange, messages.SIDR_SUCCESS, param.private_data, param.qp_num)
        elif isinstance(exchange.machine, Machine):
            self.negotiate(param)
            self._reply(exchange.machine, param)
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
        machine.accept(requests.rep_of(self, param, req), self.service.now())

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
        """Data has arrived before the RTU (rdma_notify(3), IBV_EVENT_COMM_EST).

        :raises PyverbsRDMAError: EISCONN where it is established already, EINVAL in other states
        """
        machine = self.connection()
        if machine.state is State.ESTABLISHED:
            raise PyverbsRDMAError("the connection is established already", errno.EISCONN)
        if machine.state is not State.REP_SENT:
            raise PyverbsRDMAError(f"the connection is in the state {machine.state.value!r}", errno.EINVAL)
        machine.heard(self.service.now())
        self._settle()

    def disconnect(self) -> None:
        """Ends the connection, or agrees that it has ended (rdma_disconnect(3)). Before it is established and after it
        has ended, and for datagrams, nothing is done, as by Linux.

        :raises PyverbsRDMAError: EINVAL where nothing was asked for
        """
        self.conversation()
        machine = self.machine
        if machine is not None and machine.state in (State.ESTABLISHED, State.DREQ_RECEIVED):
            machine.disconnect(self.service.now())
            self._settle()

    def give_up(self) -> None:
        """The answer of the peer is of no use: it is told."""
        machine = self.connection()
        if machine.state is State.REP_RECEIVED:
            machine.reject(self.service.now())
            self._settle()

    def conversation(self) -> Exchange:
        """What was asked for, a connection or a service of datagrams, established or not; EINVAL where nothing was."""
        if self.exchange is None:
            raise PyverbsRDMAError("the identifier has no connection", errno.EINVAL)
        return self.exchange

    def connection(self) -> Machine:
        """The state of its connection; EINVAL where there is none."""
        if self.machine is None:
            raise PyverbsRDMAError("the identifier has no connection", errno.EINVAL)
        return self.machine

    def _settle(self) -> None:
        if self.exchange is not None:
            self.exchange.settle()

    def on_notice(self, notice: Notice, status: int, message: Message | None) -> None:
        """What the machine tells. What becomes of a request before it is answered is told by the answer, as by Linux,
        which also ends a connection once, and tells of the end of TIMEWAIT only after DISCONNECTED.
        """
        if isinstance(message, Rep):
            self.remote_ece = (message.vendor_id, message.attribute_modifier)
            self.resources, self.depth = message.initiator_depth, message.responder_resources
        if self.stage is Stage.REQUEST or self._ended is not (notice is Notice.TIMEWAIT_EXIT):
            return
        self._ended = notice in (Notice.DISCONNECTED, Notice.TIMEWAIT_EXIT)
        event = Event(_KINDS[notice], self, status)
        if notice is not Notice.DISCONNECTED and isinstance(message, (Rep, Rej, SidrRep)):
            event.private_data = getattr(message, messages.PRIVATE)  # those of RTU, DREQ and DREP are not told
        if isinstance(message, Rep):
            event.param = requests.param_of(message)
        elif isinstance(message, SidrRep):
            event.vector, event.qp_num, event.qkey = self.vector(), message.qpn, message.qkey
        self.emit(event)

    def on_removal(self) -> None:
        """The device is gone: nobody is to look for it here."""
        self._withdraw()
        self.tell(Kind.DEVICE_REMOVAL)

    # -- what a queue pair is to be given

    def attributes(self, state: int) -> tuple[dict[str, Any], int]:
        """Attributes of the queue pair on its way to a state, and their mask (rdma_init_qp_attr).

        :param state: IBV_QPS_INIT, IBV_QPS_RTR or IBV_QPS_RTS
        :raises PyverbsRDMAError: EINVAL where they are not known yet
        """
        if self.datagrams:
            return attributes.of_datagrams(state, UDP_QKEY)
        agreed = attributes.Agreed(self.machine, self.vector(), self.resources, self.depth, self.psn, self.ack_timeout)
        return agreed.on_the_way_to(state)

    # -- multicast

    def join(self, address: Address, send_only: bool) -> Membership:
        """Joins a multicast group (rdma_join_multicast(3)); an event tells. The queue pair is the owner's to attach.

        :param address: of the group; RoCE's GID of it is the address itself
        :param send_only: whether nothing is to be received
        :raises PyverbsRDMAError: EINVAL where it is bound to no device, or past the resolution of its address; for
            another port space than one of datagrams; for what is no group
        """
        if not self.datagrams:
            raise PyverbsRDMAError(f"port space {self.space:#x}: groups are for datagrams", errno.EINVAL)
        self._need(Stage.BOUND, Stage.ADDRESS)
        if self.source is None or self.source.is_any:
            raise PyverbsRDMAError("the identifier is bound to no device", errno.EINVAL)
        if not address.is_multicast:
            raise PyverbsRDMAError(f"{address.text} is no multicast group", errno.EINVAL)
        found = self.groups.setdefault(address.ip, Membership(address.gid, send_only))
        vector = self._vector_to(address.gid)
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
        """Ends it (rdma_destroy_id(3)): the peer of a connection is told, and requests to it that the application has
        not got are refused. Twice does nothing.
        """
        if self.stage is Stage.CLOSED:
            return
        self.stage = Stage.CLOSED
        self.on_delivered()
        self._withdraw()
        if self._service is None:
            return
        for child in list(self.pending):
            child.close()
        self._service.identities.discard(self)
        self._service.ports.unbind(self)
        exchange = self.exchange
        if exchange is not None and not exchange.gone:
            exchange.owner = None
            if isinstance(exchange.machine, Inquired):
                if not exchange.machine.answered:
                    self._answer_inquiry(exchange, messages.SIDR_REJECT, b"")
            else:
                exchange.machine.close(self._service.now())
            exchange.settle()
