# SPDX-License-Identifier: MIT
"""FLUSH and ATOMIC_WRITE (annex A19) on reliable connections."""

import errno
import struct
from random import Random

import pytest
from tests.netsim import frames
from tests.netsim.pair import (
    FENCE,
    FLUSH_ERR,
    INLINE,
    LOC_PROT_ERR,
    OPS,
    REM_ACCESS_ERR,
    REM_INV_REQ_ERR,
    REMOTE_WRITE,
    SIGNALED,
    SUCCESS,
    WR_ATOMIC_WRITE,
    WR_FLUSH,
    WR_READ,
    WR_WRITE,
    WRITE,
    Pair,
    dropping,
)
from tests.netsim.sim import ALL, LOCAL_WRITE, QPT_UC, QPT_UD, QPT_XRC_SEND, REMOTE, TIMEOUT_NS, Region

from softverbs.core.base.errors import PyverbsRDMAError
from softverbs.core.queues.wr import SGE

FLUSH, ATOMIC_WRITE = 0x1C, 0x1D
GLOBAL, PERSISTENT = 1, 2  # placement types
RANGE, MEMORY_REGION = 0, 1  # selectivity levels
MAY_GLOBAL, MAY_PERSISTENT = 256, 512
WC_FLUSH, WC_ATOMIC_WRITE = 8, 9


class Stand(Pair):
    def __init__(self, access: int = ALL | MAY_GLOBAL | MAY_PERSISTENT, **more: int) -> None:
        super().__init__(path_mtu=1, **{"qp_access_flags": REMOTE | MAY_GLOBAL | MAY_PERSISTENT, **more})
        self.region: Region = self.b.node.region(self.b.pd, 0x2000, access, iova=0x900000)

    def flush(
        self, kind: int = GLOBAL, level: int = RANGE, at: int = 0, length: int = 64, key: int | None = None,
        flags: int = SIGNALED, wr_id: int = 0,
    ) -> None:  # fmt: skip
        wr = self.a.wr(WR_FLUSH, flags=flags, wr_id=wr_id)
        wr.set_wr_flush(self.region.key if key is None else key, self.region.iova + at, length, kind, level)
        self.a.qp.post_send(wr)

    def atomic_write(
        self, at: int = 0, source: int = 0, key: int | None = None, flags: int = SIGNALED, wr_id: int = 0
    ) -> None:
        wr = self.a.wr(WR_ATOMIC_WRITE, source, 8, flags=flags, wr_id=wr_id)
        wr.set_wr_rdma(self.region.key if key is None else key, self.region.iova + at)
        self.a.qp.post_send(wr)

    def outcome(self) -> int:
        return self.a.status()


# -- FLUSH


@pytest.mark.parametrize("kind", [GLOBAL, PERSISTENT, GLOBAL | PERSISTENT])
@pytest.mark.parametrize("level", [RANGE, MEMORY_REGION])
def test_a_flush(kind: int, level: int) -> None:
    with Stand() as stand:
        stand.flush(kind, level, 8, 100, wr_id=6)
        (wc,) = stand.a.wait()
        assert (wc.wr_id, wc.status, wc.opcode) == (6, SUCCESS, WC_FLUSH)
        (frame,) = stand.sent(stand.a)
        assert frame[0] == FLUSH and len(frame) == 12 + 4 + 16 + 4
        (feth,) = struct.unpack(">I", frame[12:16])
        assert (feth & 15, feth >> 4 & 3, feth >> 6) == (kind, level, 0)
        assert struct.unpack(">QII", frame[16:32]) == (stand.region.iova + 8, stand.region.key, 100)
        (answer,) = stand.sent(stand.b)
        assert answer[0] == frames.RESPONSE_ONLY and len(answer) == 12 + 4 + 4


def test_a_flush_counts_nowhere() -> None:
    with Stand() as stand:
        stand.flush()
        stand.flush(flags=0)
        stand.flush(key=1)
        assert [wc.status for wc in stand.a.wait(2)] == [SUCCESS, REM_ACCESS_ERR]
        for end in (stand.a, stand.b):
            assert {end.count(op) for op in OPS} == {(0, 0)}


@pytest.mark.parametrize(
    ("kind", "access", "allowed"),
    [
        (GLOBAL, MAY_GLOBAL, True), (GLOBAL, MAY_PERSISTENT, False), (GLOBAL, ALL, False),
        (PERSISTENT, MAY_PERSISTENT, True), (PERSISTENT, MAY_GLOBAL | ALL, False), (3, MAY_GLOBAL, False),
        (3, MAY_PERSISTENT, False), (3, MAY_GLOBAL | MAY_PERSISTENT, True),
    ],
)  # fmt: skip
def test_the_right_is_that_of_each_placement_type(kind: int, access: int, allowed: bool) -> None:
    with Stand(access) as stand:
        stand.flush(kind)
        assert stand.outcome() == (SUCCESS if allowed else REM_ACCESS_ERR)
    with Stand(qp_access_flags=access & ~16) as stand:
        stand.flush(kind)
        assert stand.outcome() == (SUCCESS if allowed else REM_INV_REQ_ERR)


@pytest.mark.parametrize(("at", "length"), [(-1, 8), (0x2000, 1), (0x1FFF, 2), (0, 0x2001)])
def test_beyond_the_region(at: int, length: int) -> None:
    """By range it is refused; by memory region address and length mean nothing."""
    with Stand() as stand:
        stand.flush(GLOBAL, MEMORY_REGION, at, length)
        assert stand.outcome() == SUCCESS
        stand.flush(GLOBAL, RANGE, at, length)
        assert stand.outcome() == REM_ACCESS_ERR


@pytest.mark.parametrize("level", [RANGE, MEMORY_REGION])
def test_a_key_that_is_none(level: int) -> None:
    with Stand() as stand:
        stand.flush(GLOBAL, level, key=stand.region.key ^ 0x100)
        assert stand.outcome() == REM_ACCESS_ERR


@pytest.mark.parametrize(("kind", "level"), [(0, 0), (4, 0), (8, 0), (1, 2), (1, 3)])
def test_a_flush_of_no_kind(kind: int, level: int) -> None:
    with Stand() as stand:
        stand.flush(kind, level)
        assert stand.outcome() == REM_INV_REQ_ERR


def test_a_flush_has_no_data() -> None:
    with Stand() as stand:
        for sg in ([stand.a.sge(0, 8)], [stand.a.sge(0, 1)]):
            wr = stand.a.wr(WR_FLUSH, sg=sg)
            wr.set_wr_flush(stand.region.key, stand.region.iova, 8, 1, 0)
            with pytest.raises(PyverbsRDMAError) as caught:
                stand.a.qp.post_send(wr)
            assert caught.value.errno == errno.EINVAL


def test_a_flush_follows_the_writes_before_it() -> None:
    """It completes after them, with their bytes in place, though their packets were lost."""
    with Stand() as stand:
        stand.a.put(0, bytes(range(250)) * 4)
        stand.rule = dropping(frames.WRITE_MIDDLE, times=2)
        wr = stand.a.wr(WR_WRITE, 0, 1000, 0, flags=0)
        wr.set_wr_rdma(stand.region.key, stand.region.iova)
        stand.a.qp.post_send(wr)
        stand.flush(length=1000, wr_id=2)
        assert [wc.wr_id for wc in stand.a.wait()] == [2]
        assert stand.region.at(0, 1000) == stand.a.at(0, 1000)


# -- ATOMIC_WRITE


def test_an_atomic_write() -> None:
    with Stand() as stand:
        stand.a.put(0, b"abcdefgh")
        stand.atomic_write(0x100, wr_id=4)
        (wc,) = stand.a.wait()
        assert (wc.wr_id, wc.status, wc.opcode) == (4, SUCCESS, WC_ATOMIC_WRITE)
        assert stand.region.at(0xF8, 24) == bytes(8) + b"abcdefgh" + bytes(8)
        (frame,) = stand.sent(stand.a)
        assert frame[0] == ATOMIC_WRITE and frame[28:36] == b"abcdefgh"
        assert struct.unpack(">QII", frame[12:28]) == (stand.region.iova + 0x100, stand.region.key, 8)
        (answer,) = stand.sent(stand.b)
        assert answer[0] == frames.RESPONSE_ONLY and len(answer) == 12 + 4 + 4
        assert (stand.a.count(WRITE), stand.b.count(REMOTE_WRITE)) == ((1, 0), (1, 0))
        others = {stand.a.count(op) for op in OPS if op != WRITE} | {
            stand.b.count(op) for op in OPS if op != REMOTE_WRITE
        }
        assert others == {(0, 0)}


def test_inline_and_in_pieces() -> None:
    with Stand() as stand:
        stand.a.put(0, b"abcdefgh")
        wr = stand.a.wr(WR_ATOMIC_WRITE, sg=[stand.a.sge(4, 4), stand.a.sge(0, 4)], flags=SIGNALED | INLINE)
        wr.set_wr_rdma(stand.region.key, stand.region.iova)
        stand.a.qp.post_send(wr)
        stand.a.put(0, bytes(8))
        assert (stand.outcome(), stand.region.at(0, 8)) == (SUCCESS, b"efghabcd")


@pytest.mark.parametrize("length", [0, 1, 4, 7, 9, 16])
def test_it_is_8_bytes(length: int) -> None:
    with Stand() as stand:
        wr = stand.a.wr(WR_ATOMIC_WRITE, 0, length, 0)
        with pytest.raises(PyverbsRDMAError) as caught:
            stand.a.qp.post_send(wr)
        assert caught.value.errno == errno.EINVAL


@pytest.mark.parametrize("at", [1, 2, 4, 7, 0x1FFC])
def test_it_is_aligned(at: int) -> None:
    with Stand() as stand:
        stand.atomic_write(at)
        assert stand.outcome() == REM_INV_REQ_ERR
        assert stand.region.at(0, 0x2000) == bytes(0x2000)
        assert (stand.a.count(WRITE), stand.b.count(REMOTE_WRITE)) == ((0, 1), (0, 0))


@pytest.mark.parametrize("case", ["key", "beyond", "right", "qp right"])
def test_what_is_not_allowed(case: str) -> None:
    access = LOCAL_WRITE | 4 if case == "right" else ALL
    with Stand(access, **({"qp_access_flags": 4} if case == "qp right" else {})) as stand:
        stand.atomic_write(0x2000 if case == "beyond" else 0, key=1 if case == "key" else None)
        assert stand.outcome() == (REM_INV_REQ_ERR if case == "qp right" else REM_ACCESS_ERR)
        assert stand.region.at(0, 0x2000) == bytes(0x2000)


def test_a_local_key_that_is_none() -> None:
    with Stand() as stand:
        wr = stand.a.wr(WR_ATOMIC_WRITE, sg=[SGE(0x10, 8, 0xBAD)])
        wr.set_wr_rdma(stand.region.key, stand.region.iova)
        stand.a.qp.post_send(wr)
        stand.flush(wr_id=1)
        assert [wc.status for wc in stand.a.wait(2)] == [LOC_PROT_ERR, FLUSH_ERR]
        assert stand.a.count(WRITE) == (0, 1)


# -- reliable


@pytest.mark.parametrize("operation", ["flush", "atomic write"])
@pytest.mark.parametrize("lost", ["request", "answer"])
def test_what_is_lost_comes_again_and_is_done_once(operation: str, lost: str) -> None:
    """An ATOMIC_WRITE that was performed is not performed again: its word may have changed since."""
    with Stand() as stand:
        stand.a.put(0, b"abcdefgh")
        stand.rule = dropping(frames.RESPONSE_ONLY) if lost == "answer" else dropping(FLUSH, ATOMIC_WRITE)
        if operation == "flush":
            stand.flush()
        else:
            stand.atomic_write()
        stand.sim.run_for(1000)
        stand.region.put(0, b"changed!")
        assert stand.outcome() == SUCCESS
        assert stand.sim.now >= TIMEOUT_NS
        again = lost == "request" and operation == "atomic write"
        assert stand.region.at(0, 8) == (b"abcdefgh" if again else b"changed!")
        assert stand.b.count(REMOTE_WRITE) == ((1, 0) if operation == "atomic write" else (0, 0))


def test_they_take_turns_with_reads() -> None:
    """They are among those of which max_rd_atomic may be under way; the order of all is kept."""
    with Stand(max_rd_atomic=2, max_dest_rd_atomic=2) as stand:
        for turn in range(20):
            stand.a.put(8 * turn, bytes([turn + 1]) * 8)
            stand.atomic_write(8 * turn, 8 * turn, wr_id=3 * turn)
            wr = stand.a.wr(WR_READ, 0x4000 + 8 * turn, 8, 0, wr_id=3 * turn + 1)
            wr.set_wr_rdma(stand.region.key, stand.region.iova + 8 * turn)
            stand.a.qp.post_send(wr)
            stand.flush(wr_id=3 * turn + 2)
        assert [(wc.wr_id, wc.status) for wc in stand.a.wait(60)] == [(number, SUCCESS) for number in range(60)]
        assert stand.a.at(0x4000, 160) == stand.a.at(0, 160) == stand.region.at(0, 160)


def test_without_any_reads_there_are_none() -> None:
    with Stand(max_rd_atomic=0) as stand:
        for post in (stand.flush, stand.atomic_write):
            with pytest.raises(PyverbsRDMAError, match="max_rd_atomic") as caught:
                post()
            assert caught.value.errno == errno.EINVAL


@pytest.mark.parametrize("seed", range(3))
def test_over_a_bad_network(seed: int) -> None:
    rng = Random(seed)
    with Stand() as stand:
        stand.rule = lambda frame: [[], [frame] * 2, None][min(rng.randrange(15), 2)]
        expected = bytearray(0x2000)
        for number in range(80):
            at = 8 * rng.randrange(0x400)
            if rng.random() < 0.3:
                stand.flush(rng.choice((1, 2, 3)), rng.choice((0, 1)), at, 8, wr_id=number)
                continue
            data = rng.randbytes(8)
            stand.a.put(8 * number, data)
            expected[at : at + 8] = data
            stand.atomic_write(at, 8 * number, wr_id=number, flags=SIGNALED | (FENCE if number % 3 else 0))
        assert [(wc.wr_id, wc.status) for wc in stand.a.wait(80)] == [(number, SUCCESS) for number in range(80)]
        assert stand.region.at(0, 0x2000) == expected
        assert stand.a.count(WRITE) == stand.b.count(REMOTE_WRITE)


# -- on the wire, from somebody who keeps no rule


@pytest.mark.parametrize("size", [0, 4, 12])
def test_an_atomic_write_of_another_size_on_the_wire(size: int) -> None:
    with Stand() as stand:
        head = frames.put_reth(stand.region.iova, stand.region.key, size)
        stand.inject(stand.a, frames.put_bth(ATOMIC_WRITE, stand.b.qp.qp_num, 0x1000) + head + b"x" * size)
        stand.sim.run_for(1000)
        assert stand.region.at(0, 16) == bytes(16)
        assert [frame[12] for frame in stand.sent(stand.b, frames.ACKNOWLEDGE)] == [frames.NAK_INVALID]


def test_an_atomic_write_in_the_middle_of_a_message() -> None:
    with Stand() as stand:
        qpn = stand.b.qp.qp_num
        head = frames.put_reth(stand.region.iova, stand.region.key, 600)
        stand.inject(stand.a, frames.put_bth(frames.WRITE_FIRST, qpn, 0x1000, False) + head + b"1" * 256)
        head = frames.put_reth(stand.region.iova + 0x1000, stand.region.key, 8)
        stand.inject(stand.a, frames.put_bth(ATOMIC_WRITE, qpn, 0x1001) + head + b"2" * 8)
        stand.sim.run_for(1000)
        assert stand.region.at(0x1000, 8) == bytes(8)
        assert [frame[12] for frame in stand.sent(stand.b, frames.ACKNOWLEDGE)][-1] == frames.NAK_INVALID


@pytest.mark.parametrize("kind", [QPT_UC, QPT_UD, QPT_XRC_SEND])
def test_other_types_have_neither(kind: int) -> None:
    with Pair(kind=kind) as pair:
        for opcode in (WR_FLUSH, WR_ATOMIC_WRITE):
            wr = pair.a.wr(opcode, 0, 8 if opcode == WR_ATOMIC_WRITE else 0, 0)
            with pytest.raises(PyverbsRDMAError) as caught:
                pair.a.qp.post_send(wr)
            assert caught.value.errno == errno.EINVAL
