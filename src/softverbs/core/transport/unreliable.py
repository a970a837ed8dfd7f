# SPDX-License-Identifier: MIT
"""Unreliable transports: the connected one, UC, and datagrams, UD (IBA 9.8.2, 9.8.3).

Nothing is acknowledged: a work request is done when its last packet has been handed to the link, and what the network
loses is lost. So nothing slows a sender but its own pace, since a socket drops what it cannot hold. An error of the
send side stops that side alone, in the state SQE (IBA 10.3.1).
"""

from typing import Any

try:
    import cython
except ImportError:
    from softverbs import _cython as cython

if not cython.compiled:
    from softverbs.core.base.constants import (
        EVENT_QP_FATAL,
        WC_GRH,
        WC_LOC_LEN_ERR,
        WC_LOC_PROT_ERR,
        WC_LOC_QP_OP_ERR,
        WC_RECV,
        WC_SL_IPV4,
        WC_SL_IPV6,
        WC_SUCCESS,
        WC_WITH_IMM,
    )
    from softverbs.core.memory.raw import Block, load32, load64, store32
    from softverbs.core.queues.completion import complete
    from softverbs.core.queues.rings import (
        RQ_LENGTH,
        RQ_NUM_SGE,
        RQ_SGES,
        RQ_WR_ID,
        SQ_DESTINATION,
        SQ_LENGTH,
        SQ_RKEY,
        SQ_STATE,
        WQE_POSTED,
        WQE_STARTED,
    )
    from softverbs.core.transport.address import AddressHandle
    from softverbs.core.transport.pace import NAP, Pace
    from softverbs.core.transport.packets import DETH_LENGTH, MAX_HEADERS, write_datagram
    from softverbs.core.transport.requester import Requester
    from softverbs.core.transport.responder import Responder
    from softverbs.core.wire.egress import ICRC_SIZE, Egress, Path
    from softverbs.core.wire.headers import deth_qkey, deth_src_qpn, imm
    from softverbs.core.wire.opcodes import BTH_LENGTH, FIRST, IMM, ONLY
    from softverbs.core.wire.peer import GRH_LENGTH, Peer
    from softverbs.core.wire.psn import add, diff

#: Bytes per 1,024 ns, and at once: about what a reader of a socket takes out of it, and what the socket holds.
PACE = 1024
PACE_BURST = 131072
QKEY_OF_QP = 0x80000000  # in a Q_Key: the sending queue pair's own is used (IBA 10.2.5)


class UnreliableRequester(Requester):
    """Sends the work requests of a UC queue pair."""

    def start_unreliable(self) -> None:
        """To be called once, before anything else."""
        self.reliable = False
        self.pace = Pace(PACE, PACE_BURST)
        self.resume_at = 0

    def pump(self, egress: Egress, now: int) -> int:
        """Sends what may be sent. 1 where the arena is full and more is to come, else 0."""
        sq = self.sq
        self.resume_at = 0
        while self.cursor < sq.tail and not self.failed:
            slot = sq.slot(self.cursor)
            if load32(slot + SQ_STATE) == WQE_POSTED and not self._start(slot):
                return 0
            if load32(slot + SQ_STATE) == WQE_POSTED:
                continue  # a local operation: done and gone
            if not self.connection.path.local and not self._may_send(now):
                return 0
            address = egress.room(MAX_HEADERS + self.connection.mtu)
            if address == 0:
                return 1
            index = self.cursor
            length = self._emit_payload(slot, address)
            if length == 0:
                return 0
            egress.commit(self.connection.path, length)
            self._gone(length)
            if self.cursor > index:
                self._retire()
        return 0

    def _gone(self, length: int) -> None:
        """A packet has left, and nobody will ask for it again."""
        self.una = self.psn
        self.top = self.psn
        self.in_flight = 0
        self.pace.tokens -= length

    def _may_send(self, now: int) -> bool:
        """Whether the pace allows more now; else ``resume_at`` says when."""
        if self.pace.allows(now):
            return True
        self.resume_at = now + NAP
        return False

    def next_deadline(self) -> int:
        """When ``pump`` can go on, ns; 0 for never."""
        return self.resume_at

    def on_timer(self, now: int) -> None:
        """Time has passed: ``pump`` follows, or waits for something else, and then knows a new time."""
        self.resume_at = 0


class DatagramRequester(UnreliableRequester):
    """Sends the work requests of a UD queue pair."""

    def start_datagrams(self, handles: list[Any]) -> None:
        """To be called once, before anything else; ``handles``: the address handle of each slot."""
        self.start_unreliable()
        self.handles = handles

    def pump(self, egress: Egress, now: int) -> int:
        """Sends what may be sent. 1 where the arena is full and more is to come, else 0."""
        sq = self.sq
        self.resume_at = 0
        while self.cursor < sq.tail and not self.failed and not self.draining:
            if not self._may_send(now):
                return 0
            address = egress.room(MAX_HEADERS + self.connection.mtu)
            if address == 0:
                return 1
            slot = sq.slot(self.cursor)
            store32(slot + SQ_STATE, WQE_STARTED)
            self._send(slot, address, egress, now)
            if self.resume_at != 0:
                return 0
        return 0

    def _send(self, slot: int, address: int, egress: Egress, now: int) -> None:
        """Sends one datagram, unless its static rate has it wait: then ``resume_at`` says how long."""
        connection = self.connection
        handle: AddressHandle | None = self.handles[self.cursor & self.sq.mask]
        if handle is None:
            self._fail_refused(slot)
            return
        if handle.pd is not connection.pd:
            self._fail(
                WC_LOC_QP_OP_ERR,
                f"the address handle belongs to protection domain {handle.pd.handle}, the QP to {connection.pd.handle}",
            )
            return
        if load32(slot + SQ_LENGTH) > connection.mtu:
            self._fail(WC_LOC_LEN_ERR, f"a datagram of {load32(slot + SQ_LENGTH)} bytes: the MTU is {connection.mtu}")
            return
        path: Path = handle.path
        if path.pace != 0 and not path.is_turn(now):
            self.resume_at = path.free_at
            return
        qkey = load32(slot + SQ_RKEY)
        if qkey & QKEY_OF_QP:
            qkey = connection.qkey
        length = write_datagram(
            connection, slot, address, self.psn, connection.qp_num, load32(slot + SQ_DESTINATION), qkey
        )
        if length == 0:
            self._fail(WC_LOC_PROT_ERR, connection.fault)
            return
        egress.commit(path, length)
        self.psn = add(self.psn, 1)
        self._gone(0 if path.local else length)
        self.cursor += 1
        self._retire()


class UnreliableResponder(Responder):
    """Takes the messages of a UC queue pair's peer. A message that misses a packet is dropped whole."""

    def on_request(
        self, opcode: int, flags: int, psn: int, headers: int, payload: int, length: int, ask: bool, solicited: bool
    ) -> None:
        """As ``Responder.on_request`` (IBA 9.8.2.2)."""
        gap = diff(psn, self.epsn) != 0
        self.epsn = psn
        if gap or flags & (FIRST | ONLY):
            self.message = 0  # what was in progress misses its end: its receive waits for the next message
        if self._fits(opcode, flags, length):
            self._perform(opcode, flags, headers, payload, length, False, solicited)
        else:
            self._ignore()
        self.epsn = add(psn, 1)

    def _refuse(self, syndrome: int, event: int, reason: str) -> bool:
        """Drops the message; an error of the receive that it came to ends the queue pair."""
        if event == EVENT_QP_FATAL:
            self.failed = True
            self.event = event
            self.reason = reason
        return self._ignore()

    def _not_ready(self) -> bool:
        self.connection.port.no_receive += 1
        return self._ignore()

    def _ignore(self) -> bool:
        self.message = 0
        self.dropped += 1
        self.refused = True
        return False


class DatagramResponder(UnreliableResponder):
    """Takes the datagrams that come to a UD queue pair."""

    def start_datagrams(self) -> None:
        """To be called once, before anything else."""
        self.grh = Block(GRH_LENGTH)

    def on_datagram(self, peer: Peer, flags: int, headers: int, payload: int, length: int, solicited: bool) -> None:
        """A datagram whose frame is sound (IBA 9.8.3.2, 10.2.5).

        :param peer: who sent it
        :param flags: what ``opcodes.flags`` says of its opcode
        :param headers: address of its DETH
        :param payload: address of its payload
        :param length: bytes of payload
        :param solicited: whether the BTH has the solicited event bit
        """
        connection = self.connection
        if deth_qkey(headers) != connection.qkey:
            connection.port.qkey_violations += 1
            return
        slot = self._take_receive()
        if slot == 0:
            connection.port.no_receive += 1
            return
        whole = GRH_LENGTH + length
        if whole > load32(slot + RQ_LENGTH):
            reason = f"a datagram of {length} bytes and 40 of GRH came; the receive has {load32(slot + RQ_LENGTH)}"
            self._complete_receive(slot, 0, False, WC_LOC_LEN_ERR, WC_RECV, 0, 0, reason)
            self._refuse(0, EVENT_QP_FATAL, reason)
            return
        peer.write_grh(self.grh.address, payload - headers + (length + 3 & ~3) + BTH_LENGTH + ICRC_SIZE)
        sges = slot + RQ_SGES
        count = load32(slot + RQ_NUM_SGE)
        if not (
            connection.place(sges, count, 0, GRH_LENGTH, self.grh.address)
            and connection.place(sges, count, GRH_LENGTH, length, payload)
            and connection.land()
        ):
            reason = connection.fault
            connection.land()  # what is left of it is nobody else's: other members of the group put theirs next
            self._complete_receive(slot, 0, False, WC_LOC_PROT_ERR, WC_RECV, 0, 0, reason)
            self._refuse(0, EVENT_QP_FATAL, reason)
            return
        immediate = 0
        wc_flags = WC_GRH | (WC_SL_IPV4 if peer.ipv4 else WC_SL_IPV6)
        if flags & IMM:
            immediate = imm(headers + DETH_LENGTH)
            wc_flags |= WC_WITH_IMM
        self._finish()
        complete(
            self.cq,
            self.recv_counter,
            length,
            True,
            solicited,
            load64(slot + RQ_WR_ID),
            WC_SUCCESS,
            WC_RECV,
            connection.qp_num,
            whole,
            immediate,
            wc_flags,
            deth_src_qpn(headers),
            0,
            None,
        )
