# SPDX-License-Identifier: MIT
"""The connection manager of one device: who a message is for, who listens, whose time has come.

Every message is checked before anything acts on it: its form (``messages.decode``), that it comes from the peer that it
belongs to, and that it fits the state (``machine``). What fails is dropped and counted by cause. A peer can make the
service hold as many connections as listeners have room for in their backlogs, and no more.

The device's lock is held around every call.
"""

import heapq
import random
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from softverbs.cm import messages, registry
from softverbs.cm.addresses import Address, of_gid
from softverbs.cm.gsi import Gsi
from softverbs.cm.machine import LONGEST_CODE, Machine, Notice, State, Timing, code_to_ns
from softverbs.cm.messages import BadMad, Drep, Dreq, IpHeader, Message, Rej, Rep, Req, SidrRep, SidrReq, decode
from softverbs.cm.ports import Ports
from softverbs.cm.sidr import Inquired, Inquiry

if TYPE_CHECKING:
    from softverbs.cm.identity import Identity
    from softverbs.device import Device

#: Connections that a device has at most, those included that wait for their end.
MAX_EXCHANGES = 16384
DEFAULT_BACKLOG = 1024
#: How long a request waits for a listener of this host that is not there yet, and how often it is looked for, ns.
HOPE_NS, LOOK_NS = 250_000_000, 5_000_000


class Exchange:
    """A conversation with one peer: a machine, where its messages go, and whose it is."""

    def __init__(self, service: "Service", gid: bytes, sgid_index: int, traffic_class: int = 0) -> None:
        """
        :param service: of the device
        :param gid: the peer's GID
        :param sgid_index: of the own GID that the peer knows
        :param traffic_class: of messages to the peer
        """
        self.service = service
        self.gid = gid
        self.sgid_index = sgid_index
        self.traffic_class = traffic_class
        self.owner: Identity | None = None
        self.machine: Machine | Inquiry | Inquired
        #: Places in the service's tables.
        self.number = 0
        self.remote_number = 0
        self.remote_qp: tuple[bytes, int, int] | None = None
        #: The time of its one valid entry in the service's heap, ns; 0: it has none.
        self.noted = 0

    @property
    def gone(self) -> bool:
        """Whether it is over."""
        machine = self.machine
        return machine.state is State.GONE if isinstance(machine, Machine) else machine.gone

    def send(self, message: Message) -> None:
        """Sends to the peer."""
        self.service.send(self.gid, self.sgid_index, message, self.traffic_class)

    def tell(self, notice: Notice, status: int, message: Message | None) -> None:
        """Tells the owner, where there is one."""
        if self.owner is not None:
            self.owner.on_notice(notice, status, message)

    def settle(self) -> None:
        """After each call of the machine: notes its time, and forgets what is over."""
        self.service.settle(self)


class Service:
    """The connection manager of one device."""

    def __init__(
        self, device: "Device", wire: "Callable[..., Any]" = Gsi, timing: Timing | None = None, seed: int | None = None
    ) -> None:
        """
        :param device: whose
        :param wire: makes what carries datagrams: called with the device and what takes them
        :param timing: how patient connections are
        :param seed: of numbers; by default from the system
        """
        self.device = device
        self.timing = timing or Timing()
        # Who could guess numbers could end connections of others (docs/security.md).
        self.random = random.SystemRandom() if seed is None else random.Random(seed)
        self.counts: Counter[str] = Counter()
        self.ports = Ports(self.random)
        self.identities: set[Identity] = set()
        #: Context and protection domain that identifiers share (pyverbs/cmid.py).
        self.home: Any = None
        self.exchanges: dict[int, Exchange] = {}
        self._by_remote: dict[tuple[bytes, int, bool], Exchange] = {}
        self._by_remote_qp: dict[tuple[bytes, int, int], Exchange] = {}
        self._times: list[tuple[int, int, Exchange]] = []
        self._order = 0
        self._removed = False
        self._transactions = self.random.getrandbits(32) << 32
        #: Whether others on this host can be reached, so that the host's registry says where they are.
        self.on_host = bool(device.link.filenos())
        #: Connections to listeners of this host that are not there yet: until when, and what tries; when to look next.
        self._hopes: list[tuple[int, Callable[[bool], bool]]] = []
        self._look = 0
        self._wire = wire(device, self.on_mad)
        device.chores.append(self)
        device.at_close.append(self.close)

    # -- time (Device.chores)

    @property
    def due(self) -> int:
        """When ``run`` has to be called, ns; 0: it need not."""
        due = self._exchange_due()
        if self._hopes and (not due or self._look < due):
            return self._look
        return due

    def _exchange_due(self) -> int:
        """The same of the exchanges alone."""
        times = self._times
        while times:
            time, _, exchange = times[0]
            if exchange.noted == time and exchange.machine.due == time:
                return time
            heapq.heappop(times)
            if exchange.noted == time:  # it was put off, or is over
                exchange.noted = 0
                self._note(exchange)
        return 0

    def run(self, now: int) -> None:
        """Does what is due.

        :param now: ns
        """
        if self._hopes and self._look <= now:
            self._try_again(now)
        while 0 < self._exchange_due() <= now:
            _, _, exchange = heapq.heappop(self._times)
            exchange.noted = 0
            exchange.machine.on_timer(now)
            exchange.settle()

    def hope(self, attempt: Callable[[bool], bool]) -> None:
        """Tries for a moment to reach a listener of this host that is not there yet.

        On a network a request takes its time. Here it takes none, and programs whose two sides start together, such as
        perftest's, would ask before the other one listens.

        :param attempt: called with whether it is the last time; whether it is done
        """
        now = self.now()
        if not self._hopes:
            self._look = now + LOOK_NS
        self._hopes.append((now + HOPE_NS, attempt))
        self.device.wake()

    def _try_again(self, now: int) -> None:
        hopes, self._hopes = self._hopes, []
        self._look = now + LOOK_NS
        self._hopes += [(until, attempt) for until, attempt in hopes if not attempt(until <= now)]

    def now(self) -> int:
        """The device's time, ns."""
        return self.device.clock()

    def settle(self, exchange: Exchange) -> None:
        """See Exchange.settle."""
        if exchange.gone:
            self._forget(exchange)
            return
        machine = exchange.machine
        if isinstance(machine, Machine) and exchange.remote_qp is None and machine.remote_comm_id:
            self._learn(exchange, machine)
        self._note(exchange)

    def _note(self, exchange: Exchange) -> None:
        """Enters an exchange's time. What was put off is looked at when the earlier time comes: so a peer that asks for
        more time again and again adds nothing.
        """
        due = exchange.machine.due
        if due and (not exchange.noted or due < exchange.noted):
            exchange.noted = due
            self._order += 1
            heapq.heappush(self._times, (due, self._order, exchange))

    def _learn(self, exchange: Exchange, machine: Machine) -> None:
        """The peer's numbers are known now."""
        theirs = machine.rep if machine.active else machine.req
        if theirs is not None:
            exchange.remote_number = machine.remote_comm_id
            self._by_remote[exchange.gid, machine.remote_comm_id, False] = exchange
            exchange.remote_qp = (exchange.gid, theirs.ca_guid, theirs.qpn)
            self._by_remote_qp[exchange.remote_qp] = exchange

    def _forget(self, exchange: Exchange) -> None:
        self.exchanges.pop(exchange.number, None)
        for asks in (False, True):
            key = (exchange.gid, exchange.remote_number, asks)
            if self._by_remote.get(key) is exchange:
                del self._by_remote[key]
        if exchange.remote_qp is not None and self._by_remote_qp.get(exchange.remote_qp) is exchange:
            del self._by_remote_qp[exchange.remote_qp]

    # -- numbers

    def enter(self, exchange: Exchange) -> int:
        """Gives an exchange a number that peers answer to."""
        number = 0
        while not number or number in self.exchanges:
            number = self.random.getrandbits(32)
        exchange.number = number
        self.exchanges[number] = exchange
        return number

    def full(self) -> bool:
        """Whether there are as many connections as can be."""
        return len(self.exchanges) >= MAX_EXCHANGES

    def next_transaction(self) -> int:
        """A transaction ID: of 64 bits, the high half of which is the same for the life of the service."""
        self._transactions = self._transactions & ~0xFFFFFFFF | (self._transactions + 1) & 0xFFFFFFFF
        return self._transactions

    # -- where peers are

    def locate(self, space: int, address: Address) -> bytes | None:
        """The GID behind an address: what ARP is on a real network; None where nobody of this host is there.

        :param space: RDMA_PS_*
        :param address: the IP address, and the port that somebody may listen on
        """
        gid = address.gid
        if gid in self.device.link.gids or not self.on_host or not address.is_local():
            return gid
        if registry.has_device(address.ip):
            return gid
        return registry.find(space, address.text, address.port)

    # -- messages

    def send(self, gid: bytes, sgid_index: int, message: Message, traffic_class: int = 0) -> None:
        """Sends a message.

        :param gid: the peer's GID
        :param sgid_index: the own GID
        :param message: complete
        :param traffic_class: 8 bits
        """
        if not message.transaction_id:
            message.transaction_id = self.next_transaction()
        self.counts[f"sent_{type(message).__name__.lower()}"] += 1
        self._wire.send(sgid_index, gid, message.encode(), traffic_class)

    def on_mad(self, source: bytes, sgid_index: int, mad: bytes) -> None:
        """A datagram has come to queue pair 1.

        :param source: the GID that it came from
        :param sgid_index: of the own GID that it came to
        :param mad: the datagram
        """
        try:
            message = decode(mad)
            self.counts[f"received_{type(message).__name__.lower()}"] += 1
            if isinstance(message, Req):
                self._on_req(source, sgid_index, message)
            elif isinstance(message, SidrReq):
                self._on_sidr_req(source, sgid_index, message)
            elif isinstance(message, SidrRep):
                self._on_answer(source, sgid_index, message, message.request_id, 0)
            else:
                numbers: Any = message
                self._on_answer(source, sgid_index, message, numbers.remote_comm_id, numbers.local_comm_id)
        except BadMad as error:
            self._drop(error.cause)

    def _drop(self, cause: str) -> None:
        self.counts[f"dropped_{cause}"] += 1

    def _on_answer(self, source: bytes, sgid_index: int, message: Message, mine: int, theirs: int) -> None:
        """Anything but the first message of a conversation."""
        exchange = self.exchanges.get(mine)
        if exchange is None and isinstance(message, Rej) and message.reason == messages.REJ_TIMEOUT:
            exchange = self._by_remote.get((source, theirs, False))  # sent by one who never learned our number
        if exchange is None:
            self._on_unknown(source, sgid_index, message)
            return
        machine = exchange.machine
        known = machine.remote_comm_id if isinstance(machine, Machine) else 0
        if exchange.gid != source or (known and theirs != known and not (isinstance(message, Rej) and not theirs)):
            self._drop("source")
            return
        machine.receive(message, self.now())
        exchange.settle()

    def _on_unknown(self, source: bytes, sgid_index: int, message: Message) -> None:
        """A message about a connection that is not here, or no longer."""
        if isinstance(message, Rep):
            rej = Rej(
                remote_comm_id=message.local_comm_id,
                local_comm_id=message.remote_comm_id,
                about=messages.ABOUT_REP,
                reason=messages.REJ_INVALID_COMM_ID,
                transaction_id=message.transaction_id,
            )
            self.send(source, sgid_index, rej)
        elif isinstance(message, Dreq):
            drep = Drep(
                local_comm_id=message.remote_comm_id,
                remote_comm_id=message.local_comm_id,
                transaction_id=message.transaction_id,
            )
            self.send(source, sgid_index, drep)
        self._drop("unknown")

    # -- requests

    def _on_req(self, source: bytes, sgid_index: int, req: Req) -> None:
        known = self._by_remote.get((source, req.local_comm_id, False))
        if known is not None and isinstance(known.machine, Machine):
            first = known.machine.req
            if first is not None and (first.qpn, first.starting_psn) == (req.qpn, req.starting_psn):
                known.machine.receive(req, self.now())
                known.settle()
                return
            self._end_stale(known)
        if req.local_gid != source or req.remote_gid != self.device.link.gids[sgid_index]:
            self._drop("source")
            return
        header = IpHeader.decode(req.private_data)
        reason, info = self._objection(req)
        listener = None
        if not reason:
            space, port = messages.service_of(req.service_id)
            listener = self._asked(source, space, port, header.destination)
            if listener is None:
                reason = messages.REJ_INVALID_SERVICE_ID
        if listener is None:
            rej = Rej(remote_comm_id=req.local_comm_id, reason=reason, info=info, info_length=len(info))
            rej.transaction_id = req.transaction_id
            self.send(source, sgid_index, rej)
            return
        if self.full() or listener.backlog_full():
            self._drop("backlog")  # the peer asks again: there may be room by then
            return
        exchange = Exchange(self, source, sgid_index, req.traffic_class)
        machine = Machine(self.enter(exchange), exchange.send, exchange.tell, self._timing_for(req))
        exchange.machine = machine
        machine.receive(req, self.now())
        exchange.settle()
        listener.on_request(exchange, req, header, req.private_data[messages.IP_HEADER_SIZE :])

    def _asked(self, source: bytes, space: int, port: int, ip: bytes) -> "Identity | None":
        """Who listens at the address that a peer names: the device's; another of this host only for peers on it, so
        that what listens on 127.0.0.1 is not reached from outside.
        """
        if Address(ip).gid in self.device.link.gids or (self.on_host and of_gid(source).is_local()):
            found: Any = self.ports.listener(space, port, ip)  # identifiers are all that is bound
            return found  # type: ignore[no-any-return]
        return None

    def _objection(self, req: Req) -> tuple[int, bytes]:
        """Why a REQ cannot be had, whoever listens: the reason of the REJ, and its additional information."""
        if req.transport != messages.TRANSPORT_RC or req.extended_transport:
            return messages.REJ_INVALID_TRANSPORT, b""
        if req.path_mtu > self.device.port.active_mtu:
            return messages.REJ_INVALID_MTU, bytes([self.device.port.active_mtu])
        stale = self._by_remote_qp.get((req.local_gid, req.ca_guid, req.qpn))
        if stale is not None and not (isinstance(stale.machine, Machine) and stale.machine.refused):
            self._end_stale(stale)
            return messages.REJ_STALE_CONN, b""
        return 0, b""

    def _end_stale(self, exchange: Exchange) -> None:
        """The peer has used a number again: what it had under it is no more (IBA 12.9.8.3.1)."""
        self.counts["stale"] += 1
        machine = exchange.machine
        if isinstance(machine, Machine) and machine.state is State.ESTABLISHED:
            machine.disconnect(self.now())
        elif isinstance(machine, Machine) and machine.state is State.TIMEWAIT:
            self._by_remote.pop((exchange.gid, exchange.remote_number, False), None)
        exchange.settle()

    def _timing_for(self, req: Req) -> Timing:
        """How patient the passive side is: as the REQ says, within reason."""
        code = min(req.local_response_timeout, LONGEST_CODE)
        wait = 2 * code_to_ns(min(req.ack_timeout, LONGEST_CODE))
        return Timing(max(code_to_ns(code), 1_000_000), max(req.max_cm_retries, 1), wait)

    def _on_sidr_req(self, source: bytes, sgid_index: int, request: SidrReq) -> None:
        known = self._by_remote.get((source, request.request_id, True))
        if known is not None:
            known.machine.receive(request, self.now())
            return
        header = IpHeader.decode(request.private_data)
        space, port = messages.service_of(request.service_id)
        listener = self._asked(source, space, port, header.destination)
        if listener is None:
            reply = SidrRep(request_id=request.request_id, status=messages.SIDR_UNSUPPORTED)
            reply.service_id, reply.transaction_id = request.service_id, request.transaction_id
            self.send(source, sgid_index, reply)
            return
        if self.full() or listener.backlog_full():
            self._drop("backlog")
            return
        exchange = Exchange(self, source, sgid_index)
        exchange.machine = Inquired(exchange.send, self.timing)
        self.enter(exchange)
        exchange.remote_number = request.request_id
        self._by_remote[source, request.request_id, True] = exchange
        listener.on_request(exchange, request, header, request.private_data[messages.IP_HEADER_SIZE :])

    # -- life

    def stats(self) -> dict[str, int]:
        """How many messages of each kind were sent, received and dropped, and by what cause."""
        return dict(self.counts)

    def on_removal(self) -> None:
        """The device is gone, or about to go: applications are told, once. The lock is held."""
        if not self._removed:
            self._removed = True
            self._hopes.clear()
            for owner in list(self.identities):
                owner.on_removal()

    def close(self) -> None:
        """Ends it, as the device does: peers are told once, applications of this side by DEVICE_REMOVAL."""
        with self.device.lock:
            if self not in self.device.chores:
                return
            self.on_removal()
            self.device.chores.remove(self)
            if self.device.port.failure is None:
                for exchange in list(self.exchanges.values()):
                    exchange.machine.close(self.now())
                self.device.port.progress(self.now())
            self._wire.close()


def service_of(device: "Device") -> Service:
    """The connection manager of a device, which begins when it is first asked for. The device's lock is held."""
    if device.cm is None:
        device.cm = Service(device)
    found: Service = device.cm
    return found
