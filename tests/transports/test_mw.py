# SPDX-License-Identifier: MIT
"""Memory windows from end to end (IBA 10.6.7, ibv_alloc_mw(3), ibv_bind_mw(3)): bind, use, invalidate, bind anew."""

from random import Random
from types import SimpleNamespace

import pytest
from tests.netsim import frames
from tests.netsim.pair import (
    FENCE,
    FLUSH_ERR,
    MW_BIND_ERR,
    OPS,
    READ,
    REM_ACCESS_ERR,
    REM_INV_REQ_ERR,
    REMOTE_WRITE,
    RETRY_EXC_ERR,
    SIGNALED,
    SUCCESS,
    WR_BIND,
    WR_CAS,
    WR_FAA,
    WR_LOCAL_INV,
    WR_READ,
    WR_SEND,
    WR_SEND_INV,
    WR_WRITE,
    WR_WRITE_IMM,
    WRITE,
    End,
    Pair,
    dropping,
)
from tests.netsim.sim import (
    ALL,
    CAP,
    ERR,
    LOCAL_WRITE,
    MW_BIND,
    QPT_RC,
    QPT_UC,
    REMOTE_ATOMIC,
    REMOTE_READ,
    RTS,
    SQE,
    TIMEOUT_NS,
    Region,
    connect,
)

from softverbs.core.queues.wr import SGE, SendWR

READS, WRITES = 4, 2
ZERO_BASED = 32
START, LENGTH = 0x1000, 0x400  # of the window, in the region
WC_BIND, WC_LOCAL_INV, WITH_INV = 5, 6, 8
types = pytest.mark.parametrize("kind", [1, 2])


class Stand(Pair):
    """``b`` has a region that gives peers no right at all, and a window."""

    def __init__(self, kind: int, transport: int = QPT_RC, access: int = LOCAL_WRITE | MW_BIND, **more: int) -> None:
        super().__init__(kind=transport, path_mtu=1, **more)
        self.region: Region = self.b.node.region(self.b.pd, 0x4000, access, iova=0x900000)
        self.window = self.b.node.port.regions.allocate_window(self.b.pd, kind)

    def bind(
        self, access: int = WRITES | READS | REMOTE_ATOMIC, at: int = START, length: int = LENGTH,
        end: "End | None" = None, flags: int = SIGNALED,
    ) -> int:  # fmt: skip
        """Posts the bind; the key that it gives."""
        info = SimpleNamespace(mr=self.region.mr, addr=self.region.iova + at, length=length, mw_access_flags=access)
        wr = SendWR(77, WR_BIND, send_flags=flags)
        wr.set_bind_wr(self.window, info)
        (end or self.b).qp.post_send(wr)
        return int(wr.rkey)

    def bound(self, *args: int, **more: object) -> int:
        key = self.bind(*args, **more)  # type: ignore[arg-type]
        (wc,) = (more.get("end") or self.b).wait()  # type: ignore[attr-defined]
        assert (wc.wr_id, wc.status, wc.opcode) == (77, SUCCESS, WC_BIND)
        assert self.window.rkey == key
        return key

    def invalidate(self, key: int) -> int:
        self.b.qp.post_send(SendWR(78, WR_LOCAL_INV, imm_data=key))
        (wc,) = self.b.wait()
        assert wc.status != SUCCESS or wc.opcode == WC_LOCAL_INV
        return int(wc.status)

    def attempt(self, opcode: int, key: int, at: int = START, length: int = 8, base: int | None = None) -> int:
        """An operation of ``a`` on the window; its status."""
        wr = self.a.wr(opcode, 0, length, 0)
        base = self.region.iova if base is None else base
        wr.set_wr_atomic(key, base + at, 1, 2)
        self.a.qp.post_send(wr)
        return self.a.status()

    def again(self) -> None:
        """Connects anew what an error has ended."""
        for end in (self.a, self.b):
            end.qp.modify({"qp_state": 0}, 1)
        self.connect()
        for end in (self.a, self.b):
            end.polled()
            end.node.events()


# -- rights and ranges


@types
@pytest.mark.parametrize("access", [0, READS, WRITES, REMOTE_ATOMIC, READS | WRITES | REMOTE_ATOMIC])
def test_what_a_window_opens(kind: int, access: int) -> None:
    rights = {WR_READ: READS, WR_WRITE: WRITES, WR_WRITE_IMM: WRITES, WR_CAS: REMOTE_ATOMIC, WR_FAA: REMOTE_ATOMIC}
    with Stand(kind) as stand:
        stand.a.put(0, b"\5" * 8)
        for opcode, right in rights.items():
            if stand.b.qp.state != RTS:
                stand.again()
                if kind == 2:
                    stand.invalidate(stand.window.rkey)
            elif kind == 2 and stand.window.valid:
                stand.invalidate(stand.window.rkey)
            key = stand.bound(access)
            stand.b.receive(0, 8)
            before = stand.region.at(0, 0x4000)
            status = stand.attempt(opcode, key)
            stand.b.polled()
            assert status == (SUCCESS if access & right else REM_ACCESS_ERR), opcode
            if status != SUCCESS or opcode == WR_READ:
                assert stand.region.at(0, 0x4000) == before


@types
@pytest.mark.parametrize(
    ("at", "length"),
    [
        (START - 8, 8), (START - 1, 2), (START + LENGTH - 7, 8), (START + LENGTH, 8), (0, 8), (START, LENGTH + 1),
        (START - 8, LENGTH),
    ],
)  # fmt: skip
@pytest.mark.parametrize("opcode", [WR_READ, WR_WRITE])
def test_beyond_its_range(kind: int, opcode: int, at: int, length: int) -> None:
    with Stand(kind) as stand:
        key = stand.bound()
        assert stand.attempt(opcode, key, START, LENGTH) == SUCCESS
        before = stand.region.at(0, 0x4000)
        assert stand.attempt(opcode, key, at, length) == REM_ACCESS_ERR
        assert stand.region.at(0, 0x4000) == before
        assert (stand.a.qp.state, stand.b.qp.state) == (ERR, ERR)


@types
def test_a_window_counts_from_zero_if_asked_to(kind: int) -> None:
    with Stand(kind) as stand:
        key = stand.bound(WRITES | ZERO_BASED)
        stand.a.put(0, b"12345678")
        assert stand.attempt(WR_WRITE, key, LENGTH - 8, 8, base=0) == SUCCESS
        assert stand.region.at(START + LENGTH - 8, 8) == b"12345678"
        assert stand.attempt(WR_WRITE, key, LENGTH - 7, 8, base=0) == REM_ACCESS_ERR


@types
def test_the_key_of_a_window_opens_nothing_to_its_owner(kind: int) -> None:
    """It is no lkey (IBA 10.6.7.2)."""
    with Stand(kind) as stand:
        key = stand.bound()
        stand.b.post(WR_SEND, sg=[SGE(stand.region.iova + START, 8, key)])
        assert stand.b.status() not in (SUCCESS, FLUSH_ERR)


# -- binding


@types
@pytest.mark.parametrize(
    ("region", "access", "at", "length"),
    [
        (LOCAL_WRITE, READS, START, 8), (MW_BIND, WRITES, START, 8), (MW_BIND, REMOTE_ATOMIC, START, 8),
        (ALL, READS, -1, 8), (ALL, READS, 0x4000 - 7, 8), (ALL, READS, 0x4000, 8), (ALL, READS, 0, 0x4001),
    ],
)  # fmt: skip
def test_a_bind_that_fails(kind: int, region: int, access: int, at: int, length: int) -> None:
    """MW_BIND_ERR, and the key does not change; the queue pair is in error, as after any error of the send side."""
    with Stand(kind, access=region) as stand:
        old = stand.window.rkey
        key = stand.bind(access, at, length)
        stand.b.post(WR_SEND, 0, 8, wr_id=5)
        assert [(wc.wr_id, wc.status) for wc in stand.b.wait(2)] == [(77, MW_BIND_ERR), (5, FLUSH_ERR)]
        assert (stand.window.rkey, stand.b.qp.state) == (old, ERR)
        stand.again()
        assert stand.attempt(WR_READ, key) == REM_ACCESS_ERR


def test_a_bind_that_fails_on_uc_stops_the_send_side() -> None:
    with Stand(2, QPT_UC, access=LOCAL_WRITE) as stand:
        stand.bind()
        assert stand.b.status() == MW_BIND_ERR
        assert stand.b.qp.state == SQE


def test_type_2_is_bound_once() -> None:
    with Stand(2) as stand:
        key = stand.bound()
        stand.bind()
        assert stand.b.status() == MW_BIND_ERR
        stand.again()
        assert stand.window.rkey == key


def test_type_1_is_bound_anew_and_its_old_key_is_worthless() -> None:
    with Stand(1) as stand:
        first = stand.bound(at=0)
        second = stand.bound(at=START)
        assert first >> 8 == second >> 8 and first != second
        assert stand.attempt(WR_WRITE, second, START) == SUCCESS
        assert stand.attempt(WR_WRITE, first, 0) == REM_ACCESS_ERR
        stand.again()
        assert stand.attempt(WR_WRITE, second, START) == SUCCESS


def test_type_1_ends_with_a_bind_of_nothing() -> None:
    with Stand(1) as stand:
        key = stand.bound()
        stand.bound(0, START, 0)
        for old in (key, stand.window.rkey):
            assert stand.attempt(WR_READ, old) == REM_ACCESS_ERR
            stand.again()
        stand.region.deregister()


@types
def test_bind_and_use_in_one_list(kind: int) -> None:
    """Work requests take effect in order: the key may leave with the SEND that follows (ibv_bind_mw(3))."""
    with Stand(kind) as stand:
        stand.a.receive(0x800, 8)
        key = stand.bind(flags=0)
        stand.b.put(0, key.to_bytes(8, "little"))
        stand.b.post(WR_SEND, 0, 8)
        stand.a.wait()
        assert stand.attempt(WR_WRITE, stand.a.memory.word(0x800)) == SUCCESS


@types
def test_binds_count_nowhere(kind: int) -> None:
    with Stand(kind) as stand:
        key = stand.bound()
        if kind == 2:
            assert stand.invalidate(key) == SUCCESS
        assert {stand.b.count(op) for op in OPS} == {(0, 0)}


# -- who may use it


@types
def test_which_queue_pairs_a_window_serves(kind: int) -> None:
    """Type 1: all of its protection domain. Type 2B: the one that it was bound on (IBA 10.6.7.2.1)."""
    with Stand(kind) as stand:
        key = stand.bound()
        a, b = (End(end.node, 0, CAP, pd=end.pd, memory=end.memory) for end in (stand.a, stand.b))
        a.peer, b.peer = b, a
        for end in (a, b):
            connect(end.qp, end.peer.qp, end.node, end.peer.node)
        wr = a.wr(WR_WRITE, 0, 8, 0)
        wr.set_wr_rdma(key, stand.region.iova + START)
        a.qp.post_send(wr)
        assert a.status() == (SUCCESS if kind == 1 else REM_ACCESS_ERR)
        assert stand.attempt(WR_WRITE, key) == SUCCESS


@types
def test_a_queue_pair_of_another_domain(kind: int) -> None:
    with Stand(kind) as stand:
        key = stand.bound()
        a, b = End(stand.a.node, 4096), End(stand.b.node, 4096)
        a.peer, b.peer = b, a
        for end in (a, b):
            connect(end.qp, end.peer.qp, end.node, end.peer.node)
        wr = a.wr(WR_WRITE, 0, 8, 0)
        wr.set_wr_rdma(key, stand.region.iova + START)
        a.qp.post_send(wr)
        assert a.status() == REM_ACCESS_ERR
        stand.window = b.node.port.regions.allocate_window(b.pd, kind)
        stand.bind(end=b)
        assert b.wait(1)[-1].status in (MW_BIND_ERR, FLUSH_ERR)


# -- invalidating


def test_local_invalidate_and_keys_that_come_again() -> None:
    """Each bind has its own key; after 256 the first comes again, and opens what it is bound to by then."""
    with Stand(2) as stand:
        keys = []
        for turn in range(257):
            keys.append(stand.bound(at=8 * (turn % 16)))
            if turn < 256:
                assert stand.invalidate(keys[-1]) == SUCCESS
        assert len(set(keys)) == 256 and keys[0] == keys[256]
        assert stand.attempt(WR_WRITE, keys[0], 0) == SUCCESS
        assert stand.attempt(WR_WRITE, keys[1], 0) == REM_ACCESS_ERR


def test_after_local_invalidate_nobody_gets_in() -> None:
    with Stand(2) as stand:
        key = stand.bound()
        assert stand.attempt(WR_WRITE, key) == SUCCESS
        assert stand.invalidate(key) == SUCCESS
        assert stand.attempt(WR_WRITE, key) == REM_ACCESS_ERR
        stand.region.deregister()


@pytest.mark.parametrize("length", [0, 100, 1000])
def test_send_with_invalidate(length: int) -> None:
    """The receive tells the key; the window is closed when it completes."""
    with Stand(2) as stand:
        key = stand.bound()
        stand.b.receive(0x8000, 1000, wr_id=3)
        stand.a.post(WR_SEND_INV, 0, length, imm=key)
        assert stand.a.status() == SUCCESS
        (wc,) = stand.b.polled()
        assert (wc.wr_id, wc.status, wc.opcode, wc.byte_len) == (3, SUCCESS, 128, length)
        assert (wc.wc_flags, wc.imm_data) == (WITH_INV, key)
        assert stand.attempt(WR_WRITE, key) == REM_ACCESS_ERR
        stand.again()
        assert stand.bound() != key


@pytest.mark.parametrize("case", ["region", "type 1", "unknown", "old key", "other qp"])
@pytest.mark.parametrize("how", ["local", "remote"])
def test_what_cannot_be_invalidated(how: str, case: str) -> None:
    with Stand(1 if case == "type 1" else 2) as stand:
        key = stand.bound()
        other = End(stand.b.node, 0, CAP, pd=stand.b.pd, memory=stand.b.memory)
        other.peer = stand.a
        connect(other.qp, stand.a.qp, other.node, stand.a.node)
        bad = {"region": stand.b.memory.key, "unknown": key ^ 0x100, "old key": key ^ 1}.get(case, key)
        if case == "other qp":
            stand.invalidate(key)
            bad = stand.bound(end=other)
        if how == "local":
            status = stand.invalidate(bad)
            assert status not in (SUCCESS, FLUSH_ERR)
        else:
            stand.b.receive(0x8000, 100)
            stand.a.post(WR_SEND_INV, 0, 8, imm=bad)
            assert stand.a.status() == REM_INV_REQ_ERR
            assert stand.b.wait()[0].status != SUCCESS
        assert stand.b.qp.state == ERR
        if case not in ("old key", "other qp"):
            stand.again()
            assert stand.attempt(WR_WRITE, key) == SUCCESS


# -- in the middle of things


def test_a_write_whose_window_closes_under_it() -> None:
    """Its later packets are refused; what came before is there."""
    with Stand(2) as stand:
        key = stand.bound()
        qpn = stand.b.qp.qp_num
        head = frames.put_reth(stand.region.iova + START, key, 600)
        stand.inject(stand.a, frames.put_bth(frames.WRITE_FIRST, qpn, 0x1000, False) + head + b"1" * 256)
        assert stand.invalidate(key) == SUCCESS
        stand.inject(stand.a, frames.put_bth(frames.WRITE_MIDDLE, qpn, 0x1001, True) + b"2" * 256)
        stand.sim.run_for(1000)
        assert [frame[12] for frame in stand.sent(stand.b, frames.ACKNOWLEDGE)][-1] == frames.NAK_ACCESS
        assert stand.region.at(START, 512) == b"1" * 256 + bytes(256)
        assert stand.b.qp.state == ERR
        assert stand.b.count(REMOTE_WRITE) == (0, 0)


def test_a_read_that_is_repeated_after_its_window_has_closed() -> None:
    """The answer was lost; asked again, nothing is shown any more."""
    with Stand(2) as stand:
        key = stand.bound()
        stand.region.put(START, b"secret!!" * 32)
        stand.rule = dropping(*frames.RESPONSES)
        wr = stand.a.wr(WR_READ, 0x2000, 256, 0)
        wr.set_wr_rdma(key, stand.region.iova + START)
        stand.a.qp.post_send(wr)
        stand.sim.run_for(1000)
        assert stand.invalidate(key) == SUCCESS
        # What is wrong with a request that comes again may be passed over in silence (IBA 9.7.4.3).
        assert stand.a.wait()[0].status in (REM_ACCESS_ERR, RETRY_EXC_ERR)
        assert stand.sim.now >= TIMEOUT_NS
        assert stand.a.at(0x2000, 256) == bytes(256)


def test_a_send_with_invalidate_is_done_once() -> None:
    """Its ACK is lost; by the time it comes again the window is bound anew, and stays."""
    with Stand(2) as stand:
        key = stand.bound()
        for _ in range(2):
            stand.b.receive(0x8000, 100)
        stand.rule = dropping(frames.ACKNOWLEDGE)
        stand.a.post(WR_SEND_INV, 0, 8, imm=key)
        stand.b.wait()
        for turn in range(256):
            again = stand.bound(at=8 * (turn % 8), length=8)
            if turn < 255:
                stand.invalidate(again)
        assert again == key
        assert stand.a.status() == SUCCESS
        assert len(stand.sent(stand.a, 0x17)) == 2
        assert stand.window.valid and stand.attempt(WR_WRITE, key, 56) == SUCCESS


def test_a_local_invalidate_waits_for_a_fence_only() -> None:
    """With a fence it is done after the READs before it (IBA 10.8.3.3)."""
    with Stand(2) as stand:
        key = stand.bound()
        stand.b.put(0, b"x" * 8)
        stand.rule = dropping(*frames.RESPONSES)
        stand.b.post(WR_READ, 0, 8, 0, wr_id=1)
        stand.b.qp.post_send(SendWR(2, WR_LOCAL_INV, imm_data=key, send_flags=SIGNALED | FENCE))
        stand.sim.run_for(1000)
        assert stand.window.valid
        assert [wc.wr_id for wc in stand.b.wait(2)] == [1, 2]
        assert not stand.window.valid
        assert stand.b.count(READ) == (1, 0)


def test_over_a_bad_network() -> None:
    """Bind, tell, write, invalidate; again and again, while a tenth of everything is lost."""
    rng = Random(4)
    with Stand(2) as stand:
        stand.rule = lambda frame: [[], [frame] * 2, None][min(rng.randrange(20), 2)]
        for turn in range(30):
            stand.a.receive(0x800, 8)
            stand.b.receive(0x8000, 8)
            key = stand.bind(at=64 * turn, length=64)
            stand.b.put(0, key.to_bytes(8, "little"))
            stand.b.post(WR_SEND, 0, 8)
            stand.a.wait()
            stand.a.put(0, bytes([turn + 1]) * 64)
            wr = stand.a.wr(WR_WRITE, 0, 64, 0)
            wr.set_wr_rdma(stand.a.memory.word(0x800), stand.region.iova + 64 * turn)
            stand.a.qp.post_send(wr)
            stand.a.post(WR_SEND_INV, 0, 0, imm=key)
            stand.a.wait(2)
            assert not stand.window.valid
            stand.sim.settle()
            stand.b.polled()
        assert stand.region.at(0, 64 * 30) == b"".join(bytes([turn + 1]) * 64 for turn in range(30))
        assert stand.a.count(WRITE) == (30, 0) and stand.b.count(REMOTE_WRITE) == (30, 0)


# -- unreliable connections


def test_a_window_on_uc() -> None:
    with Stand(2, QPT_UC) as stand:
        key = stand.bound()
        stand.a.put(0, b"12345678")
        for at, arrives in ((START, True), (START + LENGTH, False), (START + 8, True)):
            assert stand.attempt(WR_WRITE, key, at) == SUCCESS
            stand.sim.settle()
            assert stand.region.at(at, 8) == (b"12345678" if arrives else bytes(8))
        assert stand.b.count(REMOTE_WRITE) == (2, 0)
        assert stand.invalidate(key) == SUCCESS
        assert stand.attempt(WR_WRITE, key, START + 16) == SUCCESS
        stand.sim.settle()
        assert stand.region.at(START + 16, 8) == bytes(8)
        assert stand.b.qp.state == RTS


def test_a_window_does_not_outlive_its_region() -> None:
    with Stand(2) as stand:
        stand.bound(REMOTE_READ)
        with pytest.raises(Exception, match="window"):
            stand.region.deregister()
