# SPDX-License-Identifier: MIT
"""Completion counters on every type of queue pair and every operation (semantics, section 1): a table in full."""

from types import SimpleNamespace

import pytest
from tests.netsim.pair import (
    FLUSH_ERR,
    OP_NAMES,
    OPS,
    READ,
    RECV,
    REMOTE_READ,
    REMOTE_WRITE,
    SEND,
    SIGNALED,
    SUCCESS,
    WR_ATOMIC_WRITE,
    WR_BIND,
    WR_CAS,
    WR_FAA,
    WR_FLUSH,
    WR_LOCAL_INV,
    WR_READ,
    WR_SEND,
    WR_SEND_IMM,
    WR_SEND_INV,
    WR_WRITE,
    WR_WRITE_IMM,
    WRITE,
    End,
    Pair,
)
from tests.netsim.sim import (
    CAP,
    ERR,
    QPT_RC,
    QPT_UC,
    QPT_UD,
    QPT_XRC_SEND,
    REMOTE,
    RESET,
    SQE,
    connect,
    move,
)

from softverbs.core.base.limits import Options
from softverbs.core.queues.wr import SGE, SendWR

COUNTS, BYTES = 0, 1
#: Operation: (counter at the initiator, counters at the target); 0: nowhere.
TABLE: dict[int, tuple[int, tuple[int, ...]]] = {
    WR_SEND: (SEND, (RECV,)), WR_SEND_IMM: (SEND, (RECV,)), WR_SEND_INV: (SEND, (RECV,)),
    WR_WRITE: (WRITE, (REMOTE_WRITE,)), WR_WRITE_IMM: (WRITE, (REMOTE_WRITE, RECV)),
    WR_ATOMIC_WRITE: (WRITE, (REMOTE_WRITE,)), WR_READ: (READ, (REMOTE_READ,)), WR_CAS: (READ, (REMOTE_READ,)),
    WR_FAA: (READ, (REMOTE_READ,)), WR_BIND: (0, ()), WR_LOCAL_INV: (0, ()), WR_FLUSH: (0, ()),
}  # fmt: skip
UC_OPS = (WR_SEND, WR_SEND_IMM, WR_WRITE, WR_WRITE_IMM, WR_BIND, WR_LOCAL_INV)
OPERATIONS = {
    "RC": tuple(TABLE), "RC from SRQ": tuple(TABLE), "UC": UC_OPS, "UC from SRQ": UC_OPS,
    "UD": (WR_SEND, WR_SEND_IMM), "UD from SRQ": (WR_SEND, WR_SEND_IMM),
    "XRC": tuple(opcode for opcode in TABLE if opcode not in (WR_FLUSH, WR_ATOMIC_WRITE)),
}  # fmt: skip
KINDS = {"RC": QPT_RC, "UC": QPT_UC, "UD": QPT_UD, "XRC": QPT_XRC_SEND}
CASES = [(name, opcode) for name, opcodes in OPERATIONS.items() for opcode in opcodes]
cases = pytest.mark.parametrize(("name", "opcode"), CASES, ids=[f"{name}-{opcode}" for name, opcode in CASES])
LENGTH = 300


class Stand(Pair):
    """Counters of a kind on both ends; the window is bound to the target, for SEND_WITH_INV."""

    def __init__(self, name: str, kind: int = COUNTS, options: Options | None = None) -> None:
        transport = KINDS[name.split(maxsplit=1)[0]]
        shared = "SRQ" in name
        access = REMOTE | 768
        super().__init__(kind=transport, shared=shared, options=options, path_mtu=1, qp_access_flags=access)
        self.region = self.b.node.region(self.b.pd, 4096, 31 | 768, iova=0x900000)
        for end in (self.a, self.b):
            end.qp.close()
        self.a, self.b = self._anew(self.a, kind), self._anew(self.b, kind)
        self.a.peer, self.b.peer = self.b, self.a
        self.connect()
        for end in (self.a, self.b):
            end.node.events()

    def _anew(self, old: End, kind: int) -> End:
        """The same end, with counters of this kind."""
        end = End(
            old.node, 0, CAP, old.kind, pd=old.pd, cq=old.cq, memory=old.memory, srq=old.srq, xrcd=old.qp.xrcd,
            counted=False,
        )  # fmt: skip
        for op in OPS:
            end.counters[op] = end.node.counter(kind)
            end.qp.attach_comp_cntr(end.counters[op], op, 0)
        return end

    def length(self, opcode: int) -> int:
        if opcode in (WR_BIND, WR_LOCAL_INV, WR_FLUSH):
            return 0
        return 8 if opcode in (WR_CAS, WR_FAA, WR_ATOMIC_WRITE) else LENGTH

    def request(self, opcode: int, flags: int = SIGNALED) -> SendWR:
        a, b = self.a, self.b
        wr = a.wr(opcode, 0, self.length(opcode), 0, flags=flags)
        if opcode == WR_BIND:
            info = SimpleNamespace(mr=a.memory.mr, addr=a.memory.iova, length=8, mw_access_flags=4)
            wr.set_bind_wr(a.node.port.regions.allocate_window(a.pd, 2), info)
        elif opcode in (WR_LOCAL_INV, WR_SEND_INV):
            end = a if opcode == WR_LOCAL_INV else b
            wr.imm_data = self.key(end)
        elif opcode == WR_FLUSH:
            wr.set_wr_flush(self.region.key, self.region.iova, 8, 1, 0)
        return wr

    def key(self, end: End) -> int:
        """That of a window which is bound to the queue pair of ``end``."""
        regions, memory = end.node.port.regions, end.memory
        window = regions.allocate_window(end.pd, 2)
        assert regions.bind(window, memory.mr, memory.iova, 8, 4, window.rkey ^ 1, end.qp.qp_num) == ""
        return int(window.rkey)

    def receive_one(self) -> None:
        self.b.receive(0x8000, LENGTH + 40)

    def counts(self, end: End) -> dict[str, tuple[int, int]]:
        return {OP_NAMES[op]: end.count(op) for op in OPS if end.count(op) != (0, 0)}


@cases
@pytest.mark.parametrize(("kind", "flags"), [(COUNTS, 0), (BYTES, SIGNALED)], ids=["wrs-unsignaled", "bytes-signaled"])
def test_a_success(name: str, opcode: int, kind: int, flags: int) -> None:
    """Counted once at each side, signaled or not; bytes are those of the payload: no GRH, no immediate data."""
    with Stand(name, kind) as stand:
        stand.receive_one()
        stand.a.qp.post_send(stand.request(opcode, flags))
        stand.sim.settle()
        amount = stand.length(opcode) if kind == BYTES else 1
        near, far = TABLE[opcode]
        assert stand.counts(stand.a) == ({OP_NAMES[near]: (amount, 0)} if near else {})
        assert stand.counts(stand.b) == {OP_NAMES[op]: (amount, 0) for op in far}
        assert len(stand.a.polled()) == (1 if flags else 0)


@cases
@pytest.mark.parametrize("kind", [COUNTS, BYTES], ids=["wrs", "bytes"])
def test_a_flushed_request(name: str, opcode: int, kind: int) -> None:
    """An error each, signaled or not, never bytes; with a completion each."""
    with Stand(name, kind) as stand:
        stand.receive_one()
        request = stand.request(opcode, 0)
        move(stand.a.qp, ERR)
        stand.a.qp.post_send(request)
        stand.sim.settle()
        near, _ = TABLE[opcode]
        assert stand.counts(stand.a) == ({OP_NAMES[near]: (0, 1)} if near else {})
        assert stand.counts(stand.b) == {}
        assert [status for _, status in stand.a.done()] == [FLUSH_ERR]


@cases
def test_a_request_that_fails_at_home(name: str, opcode: int) -> None:
    """A key that is none: one error, and one for each that is flushed behind it."""
    if not Stand.length(None, opcode):  # type: ignore[arg-type]
        return
    with Stand(name) as stand:
        stand.receive_one()
        request = stand.request(opcode, 0)
        request.sg_list = [SGE(0x10, stand.length(opcode), 0xBAD)]
        stand.a.qp.post_send(request)
        stand.a.post(WR_SEND, 0, 8, flags=0)
        stand.sim.settle()
        near, _ = TABLE[opcode]
        expected = {OP_NAMES[near]: (0, 2)} if near == SEND else {OP_NAMES[SEND]: (0, 1), OP_NAMES[near]: (0, 1)}
        assert stand.counts(stand.a) == expected
        assert stand.counts(stand.b) == {} or opcode in (WR_READ, WR_CAS, WR_FAA)
        assert stand.a.qp.state in (ERR, SQE)


@cases
def test_a_request_that_is_refused_over_there(name: str, opcode: int) -> None:
    """At the initiator one error where somebody tells it, else a success; at the target nothing, ever."""
    if opcode not in (WR_WRITE, WR_WRITE_IMM, WR_READ, WR_CAS, WR_FAA, WR_ATOMIC_WRITE):
        return
    with Stand(name) as stand:
        stand.receive_one()
        request = stand.request(opcode)
        request.set_wr_atomic(0xBAD, 0x10000, 0)
        stand.a.qp.post_send(request)
        stand.sim.settle()
        reliable = not name.startswith("U")
        assert stand.counts(stand.a) == {OP_NAMES[TABLE[opcode][0]]: (0, 1) if reliable else (1, 0)}
        posted_to_own = reliable and "SRQ" not in name and name != "XRC"
        assert stand.counts(stand.b) == ({OP_NAMES[RECV]: (0, 1)} if posted_to_own else {})


@cases
def test_reset_counts_nothing_and_keeps_the_counters(name: str, opcode: int) -> None:
    with Stand(name) as stand:
        stand.receive_one()
        stand.sim.tap = lambda *_: []
        request = stand.request(opcode)
        if opcode in (WR_BIND, WR_LOCAL_INV):
            return
        stand.a.qp.post_send(request)
        before = stand.counts(stand.a)
        for end in (stand.a, stand.b):
            move(end.qp, RESET)
        assert stand.counts(stand.a) == before == {}
        assert stand.counts(stand.b) == {}
        stand.sim.tap = lambda _, frame: [frame]
        stand.connect()
        if stand.b.srq is None:
            stand.receive_one()
        stand.a.qp.post_send(stand.request(opcode))
        stand.sim.settle()
        near, far = TABLE[opcode]
        assert stand.counts(stand.a) == ({OP_NAMES[near]: (1, 0)} if near else {})
        assert stand.counts(stand.b) == {OP_NAMES[op]: (1, 0) for op in far}


@pytest.mark.parametrize("name", ["RC", "RC from SRQ", "UC", "UC from SRQ", "XRC"])
def test_immediate_data_as_efa_has_it(name: str) -> None:
    """``imm=efa``: no receive is consumed, so RECV does not move."""
    with Stand(name, options=Options(imm="efa")) as stand:
        stand.receive_one()
        stand.a.qp.post_send(stand.request(WR_WRITE_IMM))
        stand.sim.settle()
        assert stand.counts(stand.b) == {"REMOTE_WRITE": (1, 0)}
        (wc,) = stand.b.polled()
        assert (wc.status, wc.opcode) == (SUCCESS, 129)


@pytest.mark.parametrize("name", ["RC", "UC", "UD", "XRC"])
def test_a_counter_of_all_operations_and_of_two_queue_pairs(name: str) -> None:
    """One counter may have all bits of a queue pair, and several queue pairs."""
    with Stand(name) as stand:
        counter = stand.a.node.counter()
        ends = []
        for _ in range(2):
            end = End(stand.a.node, 4096, CAP, stand.a.kind, counted=False)
            end.qp.attach_comp_cntr(counter, SEND | WRITE | READ, 0)
            end.qp.attach_comp_cntr(counter, RECV | REMOTE_READ | REMOTE_WRITE, 0)
            end.peer = stand.b
            ends.append(end)
        for end in ends:
            connect(end.qp, stand.b.qp, end.node, stand.b.node)
            move(end.qp, ERR)
            end.post(WR_SEND, 0, 8)
        assert (counter.visible_value, counter.visible_errors) == (0, 2)


@pytest.mark.parametrize("name", list(OPERATIONS))
def test_the_counter_moves_before_its_completion_is_seen(name: str) -> None:
    with Stand(name) as stand:
        for _ in range(20):
            stand.receive_one()
        for _ in range(20):
            stand.a.post(WR_SEND, 0, 8)
        seen = {stand.a: 0, stand.b: 0}
        while min(seen.values()) < 20:
            progress = stand.sim.step()
            for end, op in ((stand.a, SEND), (stand.b, RECV)):
                seen[end] += len(end.polled())
                assert end.count(op)[0] >= seen[end]
            assert progress
