# SPDX-License-Identifier: MIT
"""The answers of a reliable responder: READ responses, atomic answers, ACKs and NAKs (IBA 9.7.4.1.5, 9.7.5.1).

* Answers leave in the order of their PSNs: queued READ responses and atomic answers first, then one ACK for
  everything so far, or one NAK.
* The last ``max_dest_rd_atomic`` READs and atomics are remembered, so that a duplicate is answered: a READ by reading
  again, an atomic with the value of the first time.
"""

try:
    import cython
except ImportError:
    from softverbs import _cython as cython

if not cython.compiled:
    from softverbs.core.base.constants import (
        ACCESS_REMOTE_READ,
        EVENT_QP_ACCESS_ERR,
        EVENT_QP_FATAL,
        EVENT_QP_REQ_ERR,
        WC_SUCCESS,
    )
    from softverbs.core.memory.regions import ProtectionDomain
    from softverbs.core.memory.spaces import is_far
    from softverbs.core.queues.counters import CompCntr
    from softverbs.core.transport.connection import Connection
    from softverbs.core.transport.pace import NAP, Pace
    from softverbs.core.transport.packets import (
        AETH_LENGTH,
        MAX_HEADERS,
        MAX_WORDS,
        write_acknowledge,
        write_atomic_answer,
        write_read_response,
        write_words,
    )
    from softverbs.core.wire.egress import Egress
    from softverbs.core.wire.headers import (
        AETH_RNR,
        NAK_INVALID_REQUEST,
        NAK_REMOTE_ACCESS,
        reth_length,
        reth_rkey,
        reth_va,
    )
    from softverbs.core.wire.opcodes import ATOMIC, BTH_LENGTH, READ, SEND, WRITE
    from softverbs.core.wire.psn import add, diff

GRANT = 0x1F  # the syndrome of an ACK, with no statement on credits (IBA 9.7.7.2)
# READ responses are paced, since nothing on UDP would slow them: bytes per 1,024 ns.
PACE_START = 4096
PACE_LEAST = 64
PACE_MOST = 16384
PACE_BURST = 262144  # bytes at once


class Resource:
    """A READ or an atomic that is remembered, and how far its answer has got."""

    def __init__(self) -> None:
        self.kind = 0
        self.pd: ProtectionDomain = None  # type: ignore[assignment]
        self.first_psn = 0
        self.last_psn = 0
        self.va = 0
        self.rkey = 0
        self.length = 0
        self.original = 0
        self.start = 0
        self.sent = 0
        self.queued = False
        #: Whether the whole answer has been sent once.
        self.answered = False


class Answers:
    """What a responder owes its peer: READ responses and atomic answers in order, then one ACK or NAK."""

    def __init__(self, connection: Connection, pace_cap: int) -> None:
        """
        :param connection: numbers, path and memory of the queue pair
        :param pace_cap: most bytes of READ responses at once
        """
        self.connection = connection
        self.pace = Pace(PACE_START, min(pace_cap, PACE_BURST))
        self.remote_read_counter: CompCntr | None = None
        self.min_rnr_timer = 0
        self.explains = False
        self.resources: list[Resource] = []
        self.duplicates = 0
        self.rnr_naks = 0
        self.refused = False
        self.reset_answers(0, 0)

    def reset_answers(self, psn: int, max_resources: int) -> None:
        """Owes nothing; ``psn`` is expected next.

        :param max_resources: READs and atomics of the peer that may be outstanding
        """
        self.epsn = psn
        self.ack_psn = add(psn, -1)
        self.msn = 0
        self.ack_due = False
        self.nak = 0
        self.nak_psn = 0
        self.silent = False
        self.resources = [Resource() for _ in range(max_resources)]
        self.newest = 0
        self.queued = 0
        self.pace.restart(PACE_START)
        self.resume_at = 0
        self.failed = False
        self.event = EVENT_QP_FATAL
        self.reason = ""

    # -- what is to be answered

    def keep_resources(self, count: int) -> None:
        """Another number of READs and atomics that may be outstanding; the newest are remembered (SQD)."""
        old = self.resources
        self.resources = [Resource() for _ in range(count)]
        for index in range(max(self.newest - min(count, len(old)), 0), self.newest):
            self.resources[index % count] = old[index % len(old)]
        self.queued = 0
        for resource in self.resources:
            if resource.queued:
                self.queued += 1

    def stop_answering(self) -> None:
        """READs and atomics get no answer any more: the queue pair is in error (IBA 10.3.1)."""
        for resource in self.resources:
            resource.queued = False
        self.queued = 0
        self.resume_at = 0

    def _remember(self, kind: int, packets: int) -> "Resource | None":
        """A resource for a new READ or atomic of so many PSNs, queued to be answered; None: there are too many."""
        count = len(self.resources)
        resource = self.resources[self.newest % count] if count > 0 else None
        if resource is None or (resource.queued and not resource.answered):
            self._refuse(
                NAK_INVALID_REQUEST,
                EVENT_QP_REQ_ERR,
                f"more READs and atomics at once than max_dest_rd_atomic, {count}",
            )
            return None
        if resource.queued:
            # To be repeated, for a duplicate that was late: the peer has the answer, or it would not go on.
            self.queued -= 1
        self.newest += 1
        resource.kind = kind
        resource.pd = self.connection.pd
        resource.first_psn = self.epsn
        resource.last_psn = add(self.epsn, packets - 1)
        resource.start = 0
        resource.sent = 0
        resource.answered = False
        resource.queued = True
        self.queued += 1
        self.epsn = add(resource.last_psn, 1)
        self.ack_due = False  # the answer acknowledges what was before it
        return resource

    def _remember_empty(self, kind: int) -> bool:
        """A resource whose answer is a READ response of 0 bytes; False: refused."""
        resource = self._remember(kind, 1)
        if resource is None:
            return False
        resource.length = 0
        return True

    def _forget_newest(self) -> None:
        """The newest resource could not be performed: there will be no answer to it, but a NAK."""
        resource = self.resources[(self.newest - 1) % len(self.resources)]
        resource.queued = False
        self.queued -= 1
        self.newest -= 1
        self.epsn = resource.first_psn

    def _negative(self, syndrome: int, psn: int) -> None:
        """Queues a NAK. Until what it asks for arrives, further packets say nothing new."""
        self.nak = syndrome
        self.nak_psn = psn
        self.silent = True
        self.ack_due = False

    def _not_ready(self) -> bool:
        """No receive is posted: RNR NAK (IBA 9.7.5.2.8)."""
        self.rnr_naks += 1
        self._negative(AETH_RNR | self.min_rnr_timer, self.epsn)
        return False

    def _refuse(self, syndrome: int, event: int, reason: str) -> bool:
        """A NAK after which the queue pair is in error; ``reason`` goes to the log, and to a peer that may know it."""
        self._negative(syndrome, self.epsn)
        self.refused = True
        self.failed = True
        self.event = event
        self.reason = reason
        return False

    def _on_duplicate(self, flags: int, psn: int, headers: int) -> None:
        """A packet that was here before (IBA 9.7.4.1.5 and 9.7.5.1.5): answered again, not performed again."""
        self.duplicates += 1
        if flags & (SEND | WRITE):
            self.ack_due = True
            return
        count = len(self.resources)
        oldest = max(self.newest - count, 0)
        for index in range(self.newest, oldest, -1):
            resource = self.resources[(index - 1) % count]
            if diff(psn, resource.first_psn) >= 0 and diff(psn, resource.last_psn) <= 0:
                self._answer_again(resource, flags, psn, headers)
                return

    def _answer_again(self, resource: Resource, flags: int, psn: int, headers: int) -> None:
        skip = 0
        if flags & READ:
            skip = diff(psn, resource.first_psn) * self.connection.mtu
            same = reth_va(headers) == resource.va + skip and reth_rkey(headers) == resource.rkey
            if resource.kind != READ or not same or reth_length(headers) != resource.length - skip:
                return
            self.pace.rate = max(self.pace.rate // 2, PACE_LEAST)
        elif resource.kind == READ or (flags & ATOMIC != 0) != (resource.kind == ATOMIC):
            return
        resource.start = skip
        resource.sent = skip
        if not resource.queued:
            resource.queued = True
            self.queued += 1

    # -- answering

    def pump(self, egress: Egress, now: int) -> int:
        """Sends the answers that are due. 1 where the arena is full and more is to come, else 0."""
        self.resume_at = 0
        if self.queued > 0 and not self._pump_queued(egress, now):
            return 0 if self.resume_at != 0 else 1
        if self.nak != 0:
            if not self._send_nak(egress):
                return 1
            self.nak = 0
        elif self.ack_due:
            # Of the last SEND or WRITE: some requesters take the ACK of a READ or atomic for its answer.
            if not self._send_acknowledge(egress, self.ack_psn, GRANT):
                return 1
            self.ack_due = False
        return 0

    def _pump_queued(self, egress: Egress, now: int) -> bool:
        """Sends queued answers, oldest first; False where it has to stop before the end."""
        count = len(self.resources)
        for index in range(max(self.newest - count, 0), self.newest):
            resource = self.resources[index % count]
            if not resource.queued:
                continue
            if resource.kind == ATOMIC:
                if not self._send_atomic(egress, resource):
                    return False
            elif not self._send_responses(egress, resource, now):
                return False
            resource.queued = False
            self.queued -= 1
            if not resource.answered:
                break  # its memory is gone: a NAK follows, and no answer of what came after it
        return True

    def _send_responses(self, egress: Egress, resource: Resource, now: int) -> bool:
        """READ responses from ``resource.sent`` on; False where the arena is full, or it is time to pause."""
        connection = self.connection
        while True:
            if not connection.path.local and not self._may_send(now):
                return False
            address = egress.room(MAX_HEADERS + connection.mtu)
            if address == 0:
                return False
            part = resource.length - resource.sent
            last = part <= connection.mtu
            if not last:
                part = connection.mtu
            first = resource.sent == resource.start
            psn = add(resource.first_psn, resource.sent // connection.mtu)
            source = 0
            if part > 0:
                connection.pd = resource.pd
                source = connection.translate(resource.rkey, resource.va + resource.sent, part, ACCESS_REMOTE_READ)
                if is_far(source):
                    source = self._fetched(source, part, resource.length - resource.sent, address, first or last)
                if source == 0:
                    if not resource.answered:  # else it is a late duplicate, which may not hurt
                        self._stop_reading(psn)
                    return True
            length = write_read_response(connection, address, psn, GRANT, self.msn, source, part, first, last)
            egress.commit(connection.path, length)
            self.pace.tokens -= part
            resource.sent += part
            if last:
                break
        if not resource.answered:
            resource.answered = True
            if self.remote_read_counter is not None and resource.kind == READ:
                self.remote_read_counter.record(WC_SUCCESS, resource.length)
            if self.pace.rate < PACE_MOST:
                self.pace.rate += self.pace.rate // 16
        return True

    def _fetched(self, source: int, part: int, rest: int, frame: int, with_aeth: bool) -> int:
        """Brings bytes of another process to where they belong in a READ response; there, or 0: they are gone."""
        at = frame + BTH_LENGTH
        if with_aeth:
            at += AETH_LENGTH
        return at if self.connection.fetch_far(at, source, part, rest) else 0

    def _stop_reading(self, psn: int) -> None:
        """The memory of a READ was deregistered while it was being answered."""
        self._refuse(NAK_REMOTE_ACCESS, EVENT_QP_ACCESS_ERR, self.connection.fault)
        self.nak_psn = psn

    def _may_send(self, now: int) -> bool:
        """Whether the pace allows more READ responses now; else ``resume_at`` says when."""
        if self.pace.allows(now):
            return True
        self.resume_at = now + NAP
        return False

    def _send_atomic(self, egress: Egress, resource: Resource) -> bool:
        address = egress.room(MAX_HEADERS)
        if address == 0:
            return False
        connection = self.connection
        length = write_atomic_answer(connection, address, resource.first_psn, GRANT, self.msn, resource.original)
        egress.commit(connection.path, length)
        resource.answered = True
        return True

    def _send_acknowledge(self, egress: Egress, psn: int, syndrome: int) -> bool:
        address = egress.room(MAX_HEADERS)
        if address == 0:
            return False
        egress.commit(self.connection.path, write_acknowledge(self.connection, address, psn, syndrome, self.msn))
        return True

    def _send_nak(self, egress: Egress) -> bool:
        """A NAK; before one that ends the connection goes the reason, to a peer that may know it."""
        if self.failed and self.explains:
            address = egress.room(MAX_HEADERS + MAX_WORDS)
            if address == 0:
                return False
            length = write_words(self.connection, address, self.nak_psn, self.reason)
            egress.commit(self.connection.path, length)
            self.explains = False
        return self._send_acknowledge(egress, self.nak_psn, self.nak)
