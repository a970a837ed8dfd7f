# SPDX-License-Identifier: MIT
"""One connection: its states, what each message does to them, and what is sent again when nothing comes back.

The states are those of IBA 12.9.5 to 12.9.8 (figures 124 and 125). The machine does no input or output: it is told of
messages, of time and of what the application wants; it calls ``send`` with messages and ``tell`` with what the
application has to know. Rules that it keeps, whatever a peer or a network does:

- every exchange that was begun ends, by an answer or when its retries are used up;
- a message that comes twice is answered twice and told once;
- what does not fit the state is dropped and counted, and changes nothing.
"""

import errno
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum

from softverbs.cm.messages import (
    ABOUT_OTHER,
    ABOUT_REP,
    ABOUT_REQ,
    REJ_CONSUMER,
    REJ_TIMEOUT,
    Drep,
    Dreq,
    Message,
    Mra,
    Rej,
    Rep,
    Req,
    Rtu,
)

#: How much longer an MRA of ours asks for, as a code: 4.096 us * 2^24 is 68 s.
MRA_TIMEOUT = 24
#: Times that peers ask for are not longer than this code means: 17 s.
LONGEST_CODE = 22


def code_to_ns(code: int) -> int:
    """The time that a code of 5 bits stands for, ns: 4.096 us * 2^code (IBA 12.7.22)."""
    return 4096 << code


class State(Enum):
    """Where a connection is."""

    IDLE = "idle"
    REQ_SENT = "REQ sent"
    REP_RECEIVED = "REP received"
    REQ_RECEIVED = "REQ received"
    REP_SENT = "REP sent"
    ESTABLISHED = "established"
    DREQ_SENT = "DREQ sent"
    DREQ_RECEIVED = "DREQ received"
    TIMEWAIT = "time wait"
    GONE = "gone"


class Notice(Enum):
    """What an application is told."""

    RESPONSE = "the peer has accepted: REP"
    ESTABLISHED = "the connection is established"
    REJECTED = "the peer has refused"
    UNREACHABLE = "the peer does not answer"
    DISCONNECTED = "the connection has ended"
    TIMEWAIT_EXIT = "the queue pair's number may be used again"


@dataclass
class Timing:
    """How patient a connection is."""

    #: until a message is sent again, ns
    response_ns: int = code_to_ns(18)
    #: how often
    retries: int = 15
    #: time in TIMEWAIT, ns: packets of the connection may be on their way that long
    wait_ns: int = 2 * code_to_ns(16)


class Machine:
    """The state of one connection."""

    def __init__(
        self,
        local_comm_id: int,
        send: Callable[[Message], None],
        tell: Callable[[Notice, int, Message | None], None],
        timing: Timing | None = None,
    ) -> None:
        """
        :param local_comm_id: the number that the peer answers to, 32 bits, not 0
        :param send: takes messages for the peer
        :param tell: takes what the application has to know, its status (0, a reason of REJ or a negative errno) and
            the message that it came with
        :param timing: how patient it is
        """
        self.local_comm_id = local_comm_id
        self.remote_comm_id = 0
        self.state = State.IDLE
        self.timing = timing or Timing()
        #: When ``on_timer`` has to be called, ns; 0: it need not.
        self.due = 0
        #: The REQ that it began with, sent or received, and the REP that answered it.
        self.req: Req | None = None
        self.rep: Rep | None = None
        #: Messages that came again, and messages that did not fit.
        self.duplicates = 0
        self.unexpected = 0
        self._send = send
        self._tell = tell
        self._closed = False
        self._pending: Message | None = None
        self._left = 0
        self._answer: Message | None = None
        self._silent = False

    @property
    def active(self) -> bool:
        """Whether this side has asked for the connection."""
        return self.req is not None and self.req.local_comm_id == self.local_comm_id

    @property
    def refused(self) -> bool:
        """Whether this side has refused the REQ, and only waits for it to come again."""
        return self._silent

    @property
    def local_qpn(self) -> int:
        """The queue pair of this side; 0 while it is not known."""
        mine = self.req if self.active else self.rep
        return mine.qpn if mine is not None else 0

    @property
    def remote_qpn(self) -> int:
        """The queue pair of the peer; 0 while it is not known."""
        theirs = self.rep if self.active else self.req
        return theirs.qpn if theirs is not None else 0

    # -- what the application wants

    def connect(self, req: Req, now: int) -> None:
        """Asks for the connection.

        :param req: complete, but for the communication ID
        :param now: ns
        """
        self._need(State.IDLE)
        req.local_comm_id = self.local_comm_id
        self.req = req
        self._begin(State.REQ_SENT, req, now)

    def accept(self, rep: Rep, now: int) -> None:
        """Says yes to the REQ.

        :param rep: complete, but for the communication IDs
        :param now: ns
        """
        self._need(State.REQ_RECEIVED)
        self._address(rep)
        self.rep = rep
        self._begin(State.REP_SENT, rep, now)

    def ready(self, now: int, private_data: bytes = b"") -> None:
        """The queue pair can send and receive: RTU.

        :param now: ns
        :param private_data: 224 bytes at most
        """
        self._need(State.REP_RECEIVED)
        self._answer = self._address(Rtu(private_data=private_data))
        self._enter(State.ESTABLISHED)
        self._send(self._answer)

    def heard(self, now: int) -> None:
        """Data has arrived from the peer, so that it is established there, and the RTU may be lost (IBA 12.9.7.3)."""
        if self.state is State.REP_SENT:
            self._enter(State.ESTABLISHED)
            self._report(Notice.ESTABLISHED)

    def reject(self, now: int, reason: int = REJ_CONSUMER, private_data: bytes = b"", info: bytes = b"") -> None:
        """Says no to the REQ or the REP.

        :param now: ns
        :param reason: of IBA 12.6.7.2
        :param private_data: 148 bytes at most
        :param info: additional reject information, 72 bytes at most
        """
        self._need(State.REQ_RECEIVED, State.REP_RECEIVED, State.REP_SENT)
        about = {State.REQ_RECEIVED: ABOUT_REQ, State.REP_RECEIVED: ABOUT_REP}.get(self.state, ABOUT_OTHER)
        self._refuse(now, about, reason, private_data, info)

    def disconnect(self, now: int, private_data: bytes = b"") -> None:
        """Ends the connection, or agrees to its end.

        :param now: ns
        :param private_data: 220 bytes at most
        """
        if self.state is State.ESTABLISHED:
            dreq = Dreq(remote_qpn=self.remote_qpn, private_data=private_data)
            self._address(dreq)
            self._begin(State.DREQ_SENT, dreq, now)
        elif self.state is State.DREQ_RECEIVED:
            self._agree(now)
        else:
            self._need(State.DREQ_SENT, State.TIMEWAIT, State.GONE)

    def close(self, now: int) -> None:
        """The application lets go: the peer is told what it has to know, nobody here is told anything more.

        :param now: ns
        """
        self._closed = True
        if self.state is State.IDLE:
            self._enter(State.GONE)
        elif self.state is State.REQ_SENT:
            self._send_timeout()
            self._enter(State.GONE)
        elif self.state in (State.REQ_RECEIVED, State.REP_RECEIVED, State.REP_SENT):
            self.reject(now)
        elif self.state in (State.ESTABLISHED, State.DREQ_RECEIVED):
            self.disconnect(now)

    # -- what the peer says

    def receive(self, message: Message, now: int) -> None:
        """A message for this connection, whose communication IDs are right.

        :param message: what came
        :param now: ns
        """
        handler = _HANDLERS.get(type(message))
        if handler is None:
            self.unexpected += 1
        else:
            handler(self, message, now)

    def _on_req(self, req: Req, now: int) -> None:
        if self.state is State.IDLE:
            self.req = req
            self.remote_comm_id = req.local_comm_id
            self._enter(State.REQ_RECEIVED)
            return
        self.duplicates += 1
        if self.state is State.REQ_RECEIVED:
            mra = Mra(about=ABOUT_REQ, service_timeout=MRA_TIMEOUT)
            self._send(self._address(mra))
        elif self.state is State.REP_SENT and self._pending is not None:
            self._send(self._pending)
        elif self.state is State.TIMEWAIT and isinstance(self._answer, Rej):
            self._send(self._answer)

    def _on_mra(self, mra: Mra, now: int) -> None:
        about = {State.REQ_SENT: ABOUT_REQ, State.REP_SENT: ABOUT_REP}.get(self.state)
        if about is None or mra.about != about:
            self.unexpected += 1
            return
        self.due = now + code_to_ns(min(mra.service_timeout, MRA_TIMEOUT)) + self.timing.response_ns

    def _on_rep(self, rep: Rep, now: int) -> None:
        if self.state is State.REQ_SENT:
            self.rep = rep
            self.remote_comm_id = rep.local_comm_id
            self._enter(State.REP_RECEIVED)
            self._report(Notice.RESPONSE, 0, rep)
        elif self.state is State.REP_RECEIVED:
            self.duplicates += 1
            self._send(self._address(Mra(about=ABOUT_REP, service_timeout=MRA_TIMEOUT)))
        elif self._answer is not None and (self.state is State.ESTABLISHED or isinstance(self._answer, Rej)):
            self.duplicates += 1
            self._send(self._answer)
        else:
            self.unexpected += 1

    def _on_rtu(self, rtu: Rtu, now: int) -> None:
        if self.state is State.REP_SENT:
            self._enter(State.ESTABLISHED)
            self._report(Notice.ESTABLISHED, 0, rtu)
        elif self.state is State.ESTABLISHED:
            self.duplicates += 1
        else:
            self.unexpected += 1

    def _on_rej(self, rej: Rej, now: int) -> None:
        if self.state is State.REQ_SENT:
            self._enter(State.GONE)
            self._report(Notice.REJECTED, rej.reason, rej)
        elif self.state in (State.REQ_RECEIVED, State.REP_RECEIVED, State.REP_SENT, State.ESTABLISHED):
            self._wait(now)
            self._report(Notice.REJECTED, rej.reason, rej)
        elif self.state is State.DREQ_SENT:
            self._wait(now)
            self._report(Notice.DISCONNECTED, 0, rej)
        else:
            self.unexpected += 1

    def _on_dreq(self, dreq: Dreq, now: int) -> None:
        if self.local_qpn and dreq.remote_qpn != self.local_qpn:
            self.unexpected += 1
        elif self.state in (State.REP_RECEIVED, State.REP_SENT, State.ESTABLISHED):
            self._enter(State.DREQ_RECEIVED)
            self._answer = self._address(Drep(transaction_id=dreq.transaction_id))
            self._report(Notice.DISCONNECTED, 0, dreq)
            if self._closed:
                self._agree(now)
        elif self.state is State.DREQ_SENT:  # both at once: each agrees
            self._answer = self._address(Drep(transaction_id=dreq.transaction_id))
            self._agree(now)
            self._report(Notice.DISCONNECTED, 0, dreq)
        elif self.state is State.TIMEWAIT:
            self.duplicates += 1
            self._send(self._address(Drep(transaction_id=dreq.transaction_id)))
        elif self.state is State.DREQ_RECEIVED:
            self.duplicates += 1
        else:
            self.unexpected += 1

    def _on_drep(self, drep: Drep, now: int) -> None:
        if self.state is State.DREQ_SENT:
            self._wait(now)
            self._report(Notice.DISCONNECTED, 0, drep)
        elif self.state is State.TIMEWAIT:
            self.duplicates += 1
        else:
            self.unexpected += 1

    # -- what time does

    def on_timer(self, now: int) -> None:
        """Time has passed.

        :param now: ns
        """
        if not self.due or now < self.due:
            return
        if self.state is State.TIMEWAIT:
            silent = self._silent
            self._enter(State.GONE)
            if not silent:
                self._report(Notice.TIMEWAIT_EXIT)
        elif self._left > 0 and self._pending is not None:
            self._left -= 1
            self.due = now + self.timing.response_ns
            self._send(self._pending)
        else:
            self._give_up(now)

    def _give_up(self, now: int) -> None:
        """All retries are used up."""
        if self.state is State.REQ_SENT:
            self._send_timeout()
            self._enter(State.GONE)
            self._report(Notice.UNREACHABLE, -errno.ETIMEDOUT)
        elif self.state is State.REP_SENT:
            self._refuse(now, ABOUT_OTHER, REJ_TIMEOUT)
            self._report(Notice.UNREACHABLE, -errno.ETIMEDOUT)
        else:
            self._wait(now)
            self._report(Notice.DISCONNECTED, -errno.ETIMEDOUT)

    # -- small steps

    def _need(self, *states: State) -> None:
        if self.state not in states:
            raise ValueError(f"the connection is in the state {self.state.value!r}")

    def _enter(self, state: State) -> None:
        self.state = state
        self.due = 0
        self._pending = None

    def _begin(self, state: State, message: Message, now: int) -> None:
        """Sends what has to be answered."""
        self._enter(state)
        self._pending = message
        self._left = self.timing.retries
        self.due = now + self.timing.response_ns
        self._send(message)

    def _wait(self, now: int) -> None:
        self._enter(State.TIMEWAIT)
        self.due = now + max(self.timing.wait_ns, 1)

    def _agree(self, now: int) -> None:
        """DREP."""
        answer = self._answer
        self._wait(now)
        if answer is not None:
            self._send(answer)

    def _refuse(self, now: int, about: int, reason: int, private_data: bytes = b"", info: bytes = b"") -> None:
        self._answer = self._rej(about, reason, private_data, info)
        self._silent = self.state is State.REQ_RECEIVED
        self._wait(now)
        self._send(self._answer)

    def _send_timeout(self) -> None:
        """The REQ will not be sent again. The peer's number is not known: our GUID says whose REQ it was."""
        guid = self.req.ca_guid.to_bytes(8, "big") if self.req is not None else b""
        self._send(self._rej(ABOUT_REQ, REJ_TIMEOUT, info=guid))

    def _rej(self, about: int, reason: int, private_data: bytes = b"", info: bytes = b"") -> Message:
        rej = Rej(about=about, reason=reason, private_data=private_data, info=info, info_length=len(info))
        return self._address(rej)

    def _address(self, message: Message) -> Message:
        """Fills in the communication IDs and, unless it has one, the transaction ID."""
        message.local_comm_id = self.local_comm_id  # type: ignore[attr-defined]
        message.remote_comm_id = self.remote_comm_id  # type: ignore[attr-defined]
        if not message.transaction_id and self.req is not None:
            message.transaction_id = self.req.transaction_id
        return message

    def _report(self, notice: Notice, status: int = 0, message: Message | None = None) -> None:
        if not self._closed:
            self._tell(notice, status, message if message is None else replace(message))


_HANDLERS: dict[type, Callable[..., None]] = {
    Req: Machine._on_req,
    Mra: Machine._on_mra,
    Rep: Machine._on_rep,
    Rtu: Machine._on_rtu,
    Rej: Machine._on_rej,
    Dreq: Machine._on_dreq,
    Drep: Machine._on_drep,
}
