# SPDX-License-Identifier: MIT
"""What must be right: a model of a reliable connection in plain Python, which knows nothing of packets but their size.

A *flow* is one direction of a connection: the work requests that one end has posted since the connection was made, and
the receives that the other has. A reliable connection performs the requests of a flow in order, each once. So

- the requests that succeeded are a beginning of the flow; after the first error everything is flushed;
- the peer has performed a beginning of the flow, ``executed`` requests, and perhaps the first packets of the next. It
  is at least as long as what succeeded, and where nothing failed it is everything.

After an error nobody tells the initiator how far the peer has come. But memory, receives and counters of the peer must
all tell the same: ``Flow.explanations`` looks for every pair (requests, packets) that explains what is there, byte by
byte, and there must be one.
"""

import sys
from collections.abc import Iterator
from dataclasses import dataclass, field

from tests.netsim.pair import (
    BIT,
    FLUSH_ERR,
    LOC_LEN_ERR,
    LOC_PROT_ERR,
    OP_NAMES,
    READ,
    RECV,
    REM_ACCESS_ERR,
    REM_INV_REQ_ERR,
    REMOTE_READ,
    REMOTE_WRITE,
    RETRY_EXC_ERR,
    RNR_RETRY_EXC_ERR,
    SEND,
    SUCCESS,
    WR_CAS,
    WR_FAA,
    WR_READ,
    WR_SEND,
    WR_SEND_IMM,
    WR_WRITE,
    WR_WRITE_IMM,
    WRITE,
)

OP_WORDS = {
    WR_WRITE: "WRITE", WR_WRITE_IMM: "WRITE_IMM", WR_SEND: "SEND", WR_SEND_IMM: "SEND_IMM", WR_READ: "READ",
    WR_CAS: "CAS", WR_FAA: "FAA",
}  # fmt: skip
#: Why a request was made to fail: the statuses that it may end with, if the peer's answer arrives.
FAULTS = {"lkey": LOC_PROT_ERR, "rkey": REM_ACCESS_ERR, "unaligned": REM_INV_REQ_ERR}
U64 = (1 << 64) - 1
#: What buffers are filled with, byte by byte, before anything arrives.
UNTOUCHED = b"\xee"


class WalkError(AssertionError):
    """The device did what it must not do."""


def check(condition: object, what: str) -> None:
    if not condition:
        raise WalkError(what)


@dataclass
class Request:
    """A send work request."""

    number: int
    opcode: int
    length: int
    to: int = 0  # offset in the peer's memory
    data: bytes = b""  # what a SEND or WRITE carries; what a READ or atomic must bring
    places: list[tuple[int, int]] = field(default_factory=list)  # where a READ or atomic puts it: (offset, length)
    signaled: bool = True
    imm: int = 0
    add: int = 0
    swap: int = 0
    shared: bool = False  # an addition to the cell that every flow to this node adds to
    fault: str = ""
    status: int | None = None

    @property
    def sends(self) -> bool:
        return self.opcode in (WR_SEND, WR_SEND_IMM)

    @property
    def writes(self) -> bool:
        return self.opcode in (WR_WRITE, WR_WRITE_IMM)

    @property
    def atomic(self) -> bool:
        return self.opcode in (WR_CAS, WR_FAA)

    @property
    def takes(self) -> bool:
        """Whether it consumes a receive."""
        return self.sends or self.opcode == WR_WRITE_IMM

    def apply(self, memory: bytearray, length: int | None = None) -> bytes:
        """Does to the peer's memory what the request does, or its first ``length`` bytes; what an atomic finds."""
        if self.writes:
            part = self.data if length is None else self.data[:length]
            memory[self.to : self.to + len(part)] = part
        elif self.atomic and length is None and not self.shared:
            before = memory[self.to : self.to + 8]
            value = int.from_bytes(before, sys.byteorder)
            if self.opcode == WR_FAA:
                value = value + self.add & U64
            elif value == self.add:
                value = self.swap
            memory[self.to : self.to + 8] = value.to_bytes(8, sys.byteorder)
            return bytes(before)
        return b""

    def __str__(self) -> str:
        words = f"{OP_WORDS[self.opcode]} #{self.number} of {self.length} at {self.to:#x}"
        return words + (f" ({self.fault})" if self.fault else "") + ("" if self.signaled else " unsignaled")


@dataclass
class Receive:
    """A posted receive."""

    number: int
    places: list[tuple[int, int]]
    status: int | None = None

    @property
    def size(self) -> int:
        return sum(length for _, length in self.places)


def scatter(memory: bytearray, places: list[tuple[int, int]], data: bytes) -> None:
    """Puts ``data`` in the places, in order."""
    for offset, length in places:
        part = data[:length]
        memory[offset : offset + len(part)] = part
        data = data[length:]


@dataclass
class Counts:
    """What an end's six counters say, or should say: completions and errors by operation."""

    done: dict[int, int] = field(default_factory=lambda: dict.fromkeys(OP_NAMES, 0))
    errors: dict[int, int] = field(default_factory=lambda: dict.fromkeys(OP_NAMES, 0))


class Flow:
    """One direction of a connection: requests of the initiator, receives of the target, and the target's memory."""

    def __init__(self, name: str, tag: int, mtu: int, memory: bytearray, rnr_retry: int, kinds: dict[int, int]) -> None:
        """tag: in its wr_ids; memory: of the target, now; kinds: 1 for operations that are counted in bytes."""
        self.name = name
        self.tag = tag
        self.mtu = mtu
        self.rnr_retry = rnr_retry
        self.kinds = kinds
        self.base = bytes(memory)
        #: The target's memory as it will be when everything posted is done.
        self.ahead = bytearray(memory)
        self.requests: list[Request] = []
        self.receives: list[Receive] = []
        self.retired = 0  # known from completions
        self.polled = 0  # behind the last request whose completion was polled
        self.received = 0
        self.taking: list[Request] = []  # requests that consume a receive
        #: The initiator was stopped from outside: what is left may be flushed though nothing of it failed.
        self.cut = False
        #: The initiator was reset: what is left counts nowhere.
        self.dropped = False
        #: The target was stopped from outside, or by the other flow: it no longer answers.
        self.deaf = False
        self.summed = 0  # requests whose additions to the shared cell are accounted for

    # -- what is posted

    def post(self, request: Request) -> None:
        self.requests.append(request)
        if request.takes:
            self.taking.append(request)
        if request.fault:
            return
        if request.opcode == WR_READ:
            request.data = bytes(self.ahead[request.to : request.to + request.length])
        else:
            found = request.apply(self.ahead)
            if request.atomic:
                request.data = found

    def reads_pending(self, start: int, length: int) -> bool:
        """Whether a READ or atomic that may not be done yet touches this range: a later WRITE needs a fence."""
        return any(
            (request.opcode == WR_READ or request.atomic)
            and request.to < start + length
            and start < request.to + request.length
            for request in self.requests[self.retired :]
        )

    # -- what completes

    def complete(self, number: int, status: int) -> None:
        """The completion of a request: those before it that made none have succeeded."""
        check(number < len(self.requests), f"{self.name}: completion of request #{number}, which was never posted")
        check(number >= self.retired, f"{self.name}: completion of {self.requests[number]} twice, or out of order")
        for skipped in self.requests[self.retired : number]:
            check(not skipped.signaled, f"{self.name}: {skipped} is signaled and made no completion")
            skipped.status = SUCCESS
        request = self.requests[number]
        check(request.signaled or status != SUCCESS, f"{self.name}: {request} succeeded and made a completion")
        request.status = status
        self.retired = self.polled = number + 1

    def retire_silently(self, count: int) -> None:
        """The counters say that ``count`` requests are done, the last ones without a completion."""
        check(self.retired <= count <= len(self.requests), f"{self.name}: {count} requests counted")
        for request in self.requests[self.retired : count]:
            check(not request.signaled, f"{self.name}: {request} is counted and made no completion")
            request.status = SUCCESS
        self.retired = count

    def receive(self, number: int, status: int) -> Request | None:
        """The completion of a receive; the request that it belongs to, if it succeeded."""
        check(number == self.received, f"{self.name}: receive #{number} completed, #{self.received} was due")
        check(number < len(self.receives), f"{self.name}: receive #{number} was never posted")
        self.receives[number].status = status
        self.received += 1
        if status != SUCCESS:
            return None
        check(number < len(self.taking), f"{self.name}: receive #{number} got a message that nobody sent")
        return self.taking[number]

    # -- what must be true when all is quiet

    @property
    def successes(self) -> int:
        """How many requests have succeeded: a beginning of the flow."""
        for index, request in enumerate(self.requests):
            if request.status != SUCCESS:
                return index
        return len(self.requests)

    def check_statuses(self) -> None:
        """SUCCESS, then one error with a reason, then FLUSH_ERR."""
        first = self.successes
        rest = self.requests[first:]
        for request in self.requests[:first]:
            check(not request.fault, f"{self.name}: {request} succeeded")
        if self.dropped:
            check(all(request.status is None for request in rest), f"{self.name}: a request succeeded after a failure")
            return
        if not rest:
            return
        head = rest[0]
        check(head.status in self._possible(head, first), f"{self.name}: {head} ended with status {head.status}")
        for request in rest[1:]:
            check(request.status == FLUSH_ERR, f"{self.name}: {request} ended with {request.status}, after an error")

    def _possible(self, request: Request, index: int) -> set[int]:
        """How the first request that did not succeed may have ended."""
        possible = {RETRY_EXC_ERR}  # whatever may happen, all answers may be lost
        if self.cut:
            possible.add(FLUSH_ERR)
        if self.rnr_retry < 7 and request.takes:
            possible.add(RNR_RETRY_EXC_ERR)
        if request.fault == "lkey":
            possible.add(LOC_PROT_ERR)
        elif request.fault:
            possible.add(FAULTS[request.fault])
        if request.sends and not self.fits(request):
            possible.add(REM_INV_REQ_ERR)
        return possible

    def fits(self, request: Request) -> bool:
        """Whether a SEND fits the receive that it will find, as far as this is known."""
        place = self.taking.index(request)
        return place >= len(self.receives) or request.length <= self.receives[place].size

    @property
    def refused(self) -> bool:
        """Whether it has a request that the target must refuse, if it comes to it: this stops the target's own flow."""
        return any(
            request.fault in ("rkey", "unaligned") or (request.sends and not self.fits(request))
            for request in self.requests
        )

    @property
    def lucky(self) -> bool:
        """Whether it ended by bad luck alone: retries were exhausted and there was no reason but lost frames."""
        first = self.successes
        if first == len(self.requests) or self.cut or self.dropped or self.deaf:
            return False
        request = self.requests[first]
        return request.status == RETRY_EXC_ERR and not request.fault and (not request.sends or self.fits(request))

    # -- what the target's side tells

    def _furthest(self) -> int:
        """Index of the first request that cannot have been executed."""
        for index, request in enumerate(self.requests):
            if request.fault or (request.sends and not self.fits(request)):
                return index
        return len(self.requests)

    def explanations(self, memory: bytes, partial: bytes, counted: Counts) -> Iterator[tuple[int, int]]:
        """(requests executed, packets of the next one placed): all that explain what is there.

        memory: of the target; partial: what is in the first receive that did not succeed, where UNTOUCHED means
        nothing; counted: by the target, since the flow began.
        """
        furthest = self._furthest()
        succeeded = sum(receive.status == SUCCESS for receive in self.receives)
        image = bytearray(self.base)
        for request in self.requests[: self.successes]:
            request.apply(image)
        for executed in range(self.successes, furthest + 1):
            following = self.requests[executed] if executed < len(self.requests) else None
            if self._agrees(executed, succeeded, counted):
                for packets in range(self._packets(following)):
                    state, received = bytearray(image), UNTOUCHED * len(partial)
                    if following is not None and packets:
                        data = following.data[: packets * self.mtu]
                        if following.writes:
                            following.apply(state, len(data))
                        else:
                            received = (data + received[len(data) :])[: len(received)]
                    if state == memory and received == partial:
                        yield executed, packets
            if following is not None:
                following.apply(image)

    def _packets(self, request: Request | None) -> int:
        """How many packets of a request may have been placed without its being executed, and one more."""
        if request is None or request.fault or not (request.sends or request.writes) or request.length == 0:
            return 1
        return -(-request.length // self.mtu)

    def _agrees(self, executed: int, succeeded: int, counted: Counts) -> bool:
        """Whether receives and counters of the target fit this number of executed requests."""
        done = self.requests[:executed]
        if sum(request.takes for request in done) != succeeded:
            return False
        if counted.done[REMOTE_WRITE] != sum(self.weight(REMOTE_WRITE, request) for request in done if request.writes):
            return False
        atomics = sum(self.weight(REMOTE_READ, request) for request in done if request.atomic)
        reads = [(index, request) for index, request in enumerate(done) if request.opcode == WR_READ]
        # A READ counts when it has been answered, which may be never.
        least = atomics + sum(self.weight(REMOTE_READ, read) for index, read in reads if index < self.successes)
        most = atomics + sum(self.weight(REMOTE_READ, read) for _, read in reads)
        return least <= counted.done[REMOTE_READ] <= most

    def describe(self, counted: Counts) -> str:
        """The numbers, for a message."""
        receives = sum(receive.status == SUCCESS for receive in self.receives)
        remote = {OP_NAMES[op]: counted.done[op] for op in (REMOTE_READ, REMOTE_WRITE)}
        return (
            f"{self.successes} of {len(self.requests)} requests succeeded, at most {self._furthest()} could be done, "
            f"{receives} receives of {len(self.taking)} messages, {remote}"
        )

    # -- counters

    def weight(self, op: int, request: Request) -> int:
        """What a success of ``request`` adds to a counter of ``op``."""
        return request.length if self.kinds[op] else 1

    def check_initiator(self, counted: Counts) -> None:
        """Completions + errors == work requests retired, for each operation bit; and each for itself."""
        for op in (SEND, WRITE, READ):
            mine = [request for request in self.requests[: self.retired] if BIT[request.opcode] == op]
            done = sum(self.weight(op, request) for request in mine if request.status == SUCCESS)
            errors = sum(request.status != SUCCESS for request in mine)
            found = counted.done[op], counted.errors[op]
            check(found == (done, errors), f"{self.name}: counter {OP_NAMES[op]} is {found}, not {(done, errors)}")

    def check_target(self, counted: Counts) -> None:
        """The same for receives; and REMOTE_* never count errors."""
        weights = zip(self.taking, self.receives, strict=False)
        done = sum(self.weight(RECV, request) for request, receive in weights if receive.status == SUCCESS)
        errors = sum(receive.status not in (None, SUCCESS) for receive in self.receives)
        found = counted.done[RECV], counted.errors[RECV]
        check(found == (done, errors), f"{self.name}: counter RECV is {found}, not {(done, errors)}")
        for op in (REMOTE_READ, REMOTE_WRITE):
            check(counted.errors[op] == 0, f"{self.name}: counter {OP_NAMES[op]} counts errors")

    def check_receives(self, flushed: bool) -> None:
        """Receives succeed in order; where the target is in ERR one may fail for its size, and the rest is flushed."""
        rest = [receive.status for receive in self.receives]
        while rest and rest[0] == SUCCESS:
            rest.pop(0)
        if rest and rest[0] == LOC_LEN_ERR and flushed:
            rest.pop(0)
        expected = FLUSH_ERR if flushed else None
        check(set(rest) <= {expected}, f"{self.name}: receives ended with {rest} after the last success")
