"""The extended API for sends: critical sections, builders, setters; a section is posted whole or not at all."""

import errno
import random
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.pyverbs.services import connect, stock, target, xrcd, xsrq
from tests.pyverbs.world import (
    ALL,
    CAP,
    REMOTE,
    SIGNALED,
    Side,
    World,
    fill,
    pattern,
    refused,
    set_state,
    set_word,
    word,
)

from softverbs import verbs
from softverbs.pyverbs import libibverbs_enums as e
from softverbs.pyverbs.addr import AH, AHAttr, GlobalRoute
from softverbs.pyverbs.base import inc_rkey
from softverbs.pyverbs.mr import MR, MW, MWBindInfo
from softverbs.pyverbs.pyverbs_error import PyverbsRDMAError
from softverbs.pyverbs.qp import QP, DataBuffer, QPAttr, QPCap, QPEx, QPInitAttr, QPInitAttrEx
from softverbs.pyverbs.wr import SGE

RC_OPS = (
    "RDMA_WRITE RDMA_WRITE_WITH_IMM SEND SEND_WITH_IMM RDMA_READ ATOMIC_CMP_AND_SWP ATOMIC_FETCH_AND_ADD LOCAL_INV "
    "BIND_MW SEND_WITH_INV FLUSH ATOMIC_WRITE"
)
XRC_OPS = RC_OPS.removesuffix(" FLUSH ATOMIC_WRITE")
UC_OPS = "RDMA_WRITE RDMA_WRITE_WITH_IMM SEND SEND_WITH_IMM LOCAL_INV BIND_MW"
UD_OPS = "SEND SEND_WITH_IMM"
QKEY = 0x11111111
FLUSHABLE = e.IBV_ACCESS_FLUSH_GLOBAL | e.IBV_ACCESS_FLUSH_PERSISTENT


def ops(names: str) -> int:
    return sum(getattr(e, f"IBV_QP_EX_WITH_{name}") for name in names.split())


def make(side: Side, names: str = RC_OPS, kind: int = e.IBV_QPT_RC, **cap: int) -> QPEx:
    """A QPEx that may do ``names``."""
    mask = e.IBV_QP_INIT_ATTR_PD | e.IBV_QP_INIT_ATTR_SEND_OPS_FLAGS
    init = QPInitAttrEx(
        kind, None, side.cq, side.cq, None, QPCap(**{**CAP, **cap}), 0, mask, side.pd, send_ops_flags=ops(names)
    )
    return QPEx(side.context, init)


class Pair:
    """A connected pair of extended QPs."""

    def __init__(self, world: World, **cap: int) -> None:
        self.world = world
        self.a, self.b = world.a, world.b
        self.qp = make(self.a, **cap)
        self.peer = make(self.b)
        rights = REMOTE | FLUSHABLE
        world.connect(self.qp, self.peer, qp_access_flags=rights)

    def begin(self, wr_id: int = 1, flags: int = SIGNALED) -> QPEx:
        self.qp.wr_start()
        self.qp.wr_id = wr_id
        self.qp.wr_flags = flags
        return self.qp

    def end(self, *expected: tuple[int, int]) -> None:
        """Completes the section, and looks at the completions of this side."""
        self.qp.wr_complete()
        self.world.settle()
        assert self.a.done() == list(expected)

    @property
    def there(self) -> tuple[int, int]:
        return self.b.mr.rkey, self.b.mr.buf


@pytest.fixture
def pair(world: World) -> Pair:
    return Pair(world)


@pytest.fixture
def lone() -> Iterator[Pair]:
    with World("loopback") as world:
        yield Pair(world)


# -- operations


@pytest.mark.parametrize("imm", [False, True])
def test_send(pair: Pair, imm: bool) -> None:
    data = pattern(100)
    fill(pair.a.memory, data)
    pair.b.post_recv(pair.peer, 7, offset=512)
    qp = pair.begin()
    qp.wr_send_imm(0x01020304) if imm else qp.wr_send()
    qp.wr_set_sge(pair.a.sge(100))
    qp.wr_complete()
    pair.world.settle()
    assert pair.a.done() == [(1, 0)]
    (received,) = pair.b.poll()
    assert (received.wr_id, received.byte_len) == (7, 100)
    if imm:
        assert received.imm_data.to_bytes(4, "little") == b"\1\2\3\4"
    assert pair.b.memory[512:612] == data


def test_write_read_and_a_message_of_no_bytes(pair: Pair) -> None:
    data = pattern(5000)
    fill(pair.a.memory, data)
    key, there = pair.there
    qp = pair.begin(1)
    qp.wr_rdma_write(key, there + 6000)
    qp.wr_set_sge(pair.a.sge(5000))
    qp.wr_id = 2
    qp.wr_rdma_read(key, there + 6000)
    qp.wr_set_sge_list(2, [pair.a.sge(2000, 20000), pair.a.sge(3000, 30000), pair.a.sge(1)])
    qp.wr_id = 3
    qp.wr_rdma_write(key, there)
    pair.end((1, 0), (2, 0), (3, 0))
    assert pair.b.memory[6000:11000] == data
    assert pair.a.memory[20000:22000] + pair.a.memory[30000:33000] == data


def test_write_with_immediate_data(pair: Pair) -> None:
    key, there = pair.there
    pair.b.post_recv(pair.peer, 9)
    qp = pair.begin(1, 0)
    qp.wr_rdma_write_imm(key, there + 64, 0xAABBCCDD)
    qp.wr_set_inline_data(pair.a.mr.buf, 8)
    qp.wr_complete()
    pair.world.settle()
    (received,) = pair.b.poll()
    assert (received.wr_id, received.opcode) == (9, e.IBV_WC_RECV_RDMA_WITH_IMM)
    assert received.imm_data.to_bytes(4, "little") == b"\xaa\xbb\xcc\xdd"


def test_atomics(pair: Pair) -> None:
    key, there = pair.there
    set_word(pair.b.memory, 40, 64)
    qp = pair.begin(1)
    qp.wr_atomic_fetch_add(key, there + 64, 2)
    qp.wr_set_sge(pair.a.sge(8, 0))
    qp.wr_id = 2
    qp.wr_atomic_cmp_swp(key, there + 64, 42, 99)
    qp.wr_set_sge(pair.a.sge(8, 8))
    pair.end((1, 0), (2, 0))
    assert (word(pair.a.memory, 0), word(pair.a.memory, 8), word(pair.b.memory, 64)) == (40, 42, 99)


def test_atomic_write_takes_the_bytes_themselves_whatever_max_inline_data_is(world: World) -> None:
    pair = Pair(world, max_inline_data=0)
    key, there = pair.there
    data = bytearray(b"12345678 more")
    qp = pair.begin()
    qp.wr_atomic_write(key, there + 64, data)
    data[:8] = bytes(8)
    pair.end((1, 0))
    assert pair.b.memory[64:72] == b"12345678"


@pytest.mark.parametrize("level", [e.IBV_FLUSH_RANGE, e.IBV_FLUSH_MR])
def test_flush(pair: Pair, level: int) -> None:
    region = MR(pair.b.pd, 4096, ALL | FLUSHABLE)
    qp = pair.begin()
    qp.wr_flush(region.rkey, region.buf, 4096, e.IBV_FLUSH_GLOBAL, level)
    pair.end((1, 0))
    qp = pair.begin(2)
    qp.wr_flush(*pair.there, 8, e.IBV_FLUSH_GLOBAL, level)  # a region without the right
    pair.end((2, e.IBV_WC_REM_ACCESS_ERR))


def test_a_window_is_bound_used_and_invalidated(pair: Pair) -> None:
    window = MW(pair.b.pd, e.IBV_MW_TYPE_2)
    key = inc_rkey(window.rkey)
    fill(pair.a.memory, b"12345678")
    at = pair.b.mr.buf + 128
    pair.peer.wr_start()
    pair.peer.wr_id, pair.peer.wr_flags = 5, SIGNALED
    pair.peer.wr_bind_mw(window, key, MWBindInfo(pair.b.mr, at, 64, e.IBV_ACCESS_REMOTE_WRITE))
    pair.peer.wr_complete()
    pair.world.settle()
    assert pair.b.done() == [(5, 0)]
    qp = pair.begin()
    qp.wr_rdma_write(key, at)
    qp.wr_set_sge(pair.a.sge(8))
    pair.end((1, 0))
    assert pair.b.memory[128:136] == b"12345678"
    pair.b.post_recv(pair.peer, 6)
    qp = pair.begin(2)
    qp.wr_send_inv(key)
    qp.wr_complete()
    pair.world.settle()
    (received,) = [wc for wc in pair.b.poll() + pair.a.poll() if wc.wr_id == 6]
    assert (received.wc_flags & e.IBV_WC_WITH_INV, received.imm_data) == (e.IBV_WC_WITH_INV, key)
    qp = pair.begin(3)
    qp.wr_rdma_write(key, at)
    qp.wr_set_sge(pair.a.sge(8))
    pair.end((3, e.IBV_WC_REM_ACCESS_ERR))


def test_a_window_is_invalidated_here(pair: Pair) -> None:
    window = MW(pair.a.pd, e.IBV_MW_TYPE_2)
    key = inc_rkey(window.rkey)
    qp = pair.begin(1)
    qp.wr_bind_mw(window, key, MWBindInfo(pair.a.mr, pair.a.mr.buf, 64, e.IBV_ACCESS_REMOTE_READ))
    qp.wr_id = 2
    qp.wr_local_inv(key)
    qp.wr_id = 3
    qp.wr_local_inv(key ^ 1)  # there is no such key
    qp.wr_complete()
    pair.world.settle()
    first, second, third = pair.a.done()
    assert (first, second) == ((1, 0), (2, 0))
    assert third[0] == 3
    assert third[1] != 0


# -- data


def test_inline_data_are_copied_when_they_are_set(pair: Pair) -> None:
    data = pattern(48)
    buffer = bytearray(data)  # not in any region
    region = MR(pair.a.pd, buffer, e.IBV_ACCESS_LOCAL_WRITE)
    qp = pair.begin()
    qp.wr_rdma_write(*pair.there)
    pieces = [DataBuffer(region.buf + 8, 40), DataBuffer(region.buf, 8), DataBuffer(0, 0)]
    qp.wr_set_inline_data_list(3, pieces)
    buffer[:] = bytes(48)
    pair.end((1, 0))
    assert pair.b.memory[:48] == data[8:] + data[:8]


def test_inline_data_of_no_bytes(pair: Pair) -> None:
    qp = pair.begin()
    qp.wr_rdma_write(*pair.there)
    qp.wr_set_inline_data(0, 0)
    pair.end((1, 0))


# -- whole or not at all


def test_nothing_is_posted_before_the_end_nor_after_an_abort(pair: Pair) -> None:
    qp = pair.begin()
    qp.wr_rdma_write(*pair.there)
    qp.wr_set_sge(pair.a.sge(8))
    pair.world.settle()
    assert pair.a.done() == []
    qp.wr_abort()
    pair.begin(2)
    qp.wr_rdma_write(*pair.there)
    qp.wr_set_sge(pair.a.sge(8))
    pair.end((2, 0))


def test_an_empty_section(pair: Pair) -> None:
    pair.begin()
    pair.end()


def wrong_builder(qp: QPEx, pair: Pair) -> None:
    qp.wr_rdma_write(2**32, 0)


def wrong_key(qp: QPEx, pair: Pair) -> None:
    qp.wr_local_inv("x")  # type: ignore[arg-type]


def two_elements_too_many(qp: QPEx, pair: Pair) -> None:
    qp.wr_rdma_write(*pair.there)
    qp.wr_set_sge_list(6, [pair.a.sge(8)] * 6)


def shorter_list(qp: QPEx, pair: Pair) -> None:
    qp.wr_rdma_write(*pair.there)
    qp.wr_set_sge_list(2, [pair.a.sge(8)])


def data_twice(qp: QPEx, pair: Pair) -> None:
    qp.wr_rdma_write(*pair.there)
    qp.wr_set_sge(pair.a.sge(8))
    qp.wr_set_inline_data(pair.a.mr.buf, 8)


def inline_read(qp: QPEx, pair: Pair) -> None:
    qp.wr_rdma_read(*pair.there)
    qp.wr_set_inline_data(pair.a.mr.buf, 8)


def inline_too_long(qp: QPEx, pair: Pair) -> None:
    qp.wr_send()
    qp.wr_set_inline_data_list(2, [DataBuffer(pair.a.mr.buf, 40), DataBuffer(pair.a.mr.buf, 40)])


def shorter_inline_list(qp: QPEx, pair: Pair) -> None:
    qp.wr_send()
    qp.wr_set_inline_data_list(2, [DataBuffer(pair.a.mr.buf, 40)])


def data_of_an_invalidation(qp: QPEx, pair: Pair) -> None:
    qp.wr_local_inv(5)
    qp.wr_set_sge(pair.a.sge(8))


def no_element(qp: QPEx, pair: Pair) -> None:
    qp.wr_send()
    qp.wr_set_sge(None)  # type: ignore[arg-type]


def wrong_flags(qp: QPEx, pair: Pair) -> None:
    qp.wr_flags = e.IBV_SEND_INLINE
    qp.wr_send()


def address_on_a_connection(qp: QPEx, pair: Pair) -> None:
    qp.wr_send()
    qp.wr_set_ud_addr(None, 5, 5)  # type: ignore[arg-type]


def srq_on_a_connection(qp: QPEx, pair: Pair) -> None:
    qp.wr_send()
    qp.wr_set_xrc_srqn(5)


def short_atomic(qp: QPEx, pair: Pair) -> None:
    qp.wr_atomic_write(*pair.there, b"1234567")


def no_bytes(qp: QPEx, pair: Pair) -> None:
    qp.wr_atomic_write(*pair.there, "12345678")


def window_of_type_1(qp: QPEx, pair: Pair) -> None:
    info = MWBindInfo(pair.a.mr, pair.a.mr.buf, 8, 0)
    qp.wr_bind_mw(MW(pair.a.pd, e.IBV_MW_TYPE_1), 5, info)


def closed_window(qp: QPEx, pair: Pair) -> None:
    window = MW(pair.a.pd, e.IBV_MW_TYPE_2)
    window.close()
    qp.wr_bind_mw(window, 5, MWBindInfo(pair.a.mr, pair.a.mr.buf, 8, 0))


def segmentation(qp: QPEx, pair: Pair) -> None:
    qp.wr_send_tso(0, 0, 0)


def atomic_of_four(qp: QPEx, pair: Pair) -> None:
    qp.wr_atomic_fetch_add(*pair.there, 1)
    qp.wr_set_sge(pair.a.sge(4))


WRONG: list[tuple[Callable[[QPEx, Pair], None], str]] = [
    (wrong_builder, r"wr_rdma_write \(wr_id 0x5\): rkey=0x100000000 is out of range"),
    (wrong_key, "wr_local_inv .*'x'"),
    (two_elements_too_many, "wr_set_sge_list .*6 scatter/gather elements: max_send_sge=4"),
    (shorter_list, "wr_set_sge_list .*the list has 1"),
    (data_twice, "wr_set_inline_data .*wr_rdma_write has its data already"),
    (inline_read, "wr_set_inline_data .*wr_rdma_read takes no inline data"),
    (inline_too_long, "wr_set_inline_data_list .*80 bytes inline: max_inline_data=64"),
    (shorter_inline_list, "wr_set_inline_data_list .*the list has 1"),
    (data_of_an_invalidation, "wr_set_sge .*wr_local_inv takes no data"),
    (no_element, "wr_set_sge .*SGE"),
    (wrong_flags, "wr_send .*of no meaning here: 0x8"),
    (address_on_a_connection, "wr_set_ud_addr .*type RC, not UD"),
    (srq_on_a_connection, "wr_set_xrc_srqn .*type RC"),
    (short_atomic, "wr_atomic_write .*7 bytes: 8 are needed"),
    (no_bytes, "wr_atomic_write .*bytes-like"),
    (window_of_type_1, "wr_bind_mw .*type 1"),
    (closed_window, "wr_bind_mw .*closed"),
    (segmentation, "wr_send_tso .*IBV_QP_EX_WITH_TSO"),
    (atomic_of_four, "8 bytes, its scatter/gather list holds 4"),
]


@pytest.mark.parametrize(("act", "words"), WRONG, ids=[act.__name__ for act, _ in WRONG])
def test_what_is_wrong_is_told_at_the_end_and_nothing_is_posted(
    lone: Pair, act: Callable[[QPEx, Pair], None], words: str
) -> None:
    qp = lone.begin(4)
    qp.wr_rdma_write(*lone.there)
    qp.wr_set_inline_data(lone.a.mr.buf, 8)
    qp.wr_id = 5
    act(qp, lone)
    qp.wr_id, qp.wr_flags = 6, SIGNALED
    qp.wr_rdma_write(*lone.there)  # what follows does no harm, and does not count
    qp.wr_set_sge(lone.a.sge(8))
    with pytest.raises(PyverbsRDMAError, match=words) as caught:
        qp.wr_complete()
    assert caught.value.errno == errno.EINVAL
    assert "Failed to complete work requests" in str(caught.value)
    lone.world.settle()
    assert lone.a.done() == []
    lone.begin(7)
    qp.wr_rdma_write(*lone.there)
    lone.end((7, 0))


def test_the_first_fault_counts(lone: Pair) -> None:
    qp = lone.begin()
    short_atomic(qp, lone)
    inline_read(qp, lone)
    assert "7 bytes" in refused(errno.EINVAL, qp.wr_complete)


def test_inline_data_that_cannot_be_read(lone: Pair) -> None:
    qp = lone.begin()
    qp.wr_send()
    qp.wr_set_inline_data(8, 8)
    assert "0x8, 8 bytes, cannot be read" in refused(errno.EFAULT, qp.wr_complete)


def test_a_setter_needs_a_builder(lone: Pair) -> None:
    qp = lone.begin()
    qp.wr_set_sge(lone.a.sge(8))
    assert "wr_set_sge (wr_id 0x1): there is no work request" in refused(errno.EINVAL, qp.wr_complete)


def test_a_queue_without_room_for_all_takes_none(world: World) -> None:
    pair = Pair(world, max_send_wr=2)
    qp = pair.begin()
    for number in range(3):
        qp.wr_id = number
        qp.wr_rdma_write(*pair.there)
    assert "max_send_wr=2" in refused(errno.ENOMEM, qp.wr_complete)
    pair.world.settle()
    assert pair.a.done() == []
    pair.begin()
    for number in range(2):
        qp.wr_id = number
        qp.wr_rdma_write(*pair.there)
    pair.end((0, 0), (1, 0))


def test_states(lone: Pair) -> None:
    fresh = make(lone.a)
    fresh.wr_start()
    fresh.wr_send()
    assert "RESET" in refused(errno.EINVAL, fresh.wr_complete)
    set_state(lone.qp, e.IBV_QPS_ERR)
    qp = lone.begin(1)
    qp.wr_send()
    qp.wr_id = 2
    qp.wr_rdma_write(*lone.there)
    lone.end((1, e.IBV_WC_WR_FLUSH_ERR), (2, e.IBV_WC_WR_FLUSH_ERR))


def test_in_the_state_err_too_all_or_nothing(lone: Pair) -> None:
    set_state(lone.qp, e.IBV_QPS_ERR)
    qp = lone.begin(1)
    qp.wr_send()
    atomic_of_four(qp, lone)
    refused(errno.EINVAL, qp.wr_complete)
    assert lone.a.done() == []


JUNK: list[Any] = [None, -1, 2**32, 2**64, 2**100, 1.5, float("nan"), "x", b"x", [], [None], {}, object(), len]
CALLS = {
    "wr_send_imm": 1, "wr_send_inv": 1, "wr_local_inv": 1, "wr_rdma_write": 2, "wr_rdma_read": 2,
    "wr_rdma_write_imm": 3, "wr_atomic_cmp_swp": 4, "wr_atomic_fetch_add": 3, "wr_atomic_write": 3, "wr_flush": 5,
    "wr_bind_mw": 3, "wr_send_tso": 3, "wr_set_sge": 1, "wr_set_sge_list": 2, "wr_set_inline_data": 2,
    "wr_set_inline_data_list": 2, "wr_set_ud_addr": 3, "wr_set_xrc_srqn": 1,
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_junk_never_raises_before_the_end_nor_anything_else(lone: Pair, name: str) -> None:
    choose = random.Random(name)
    for round_ in range(60):
        arguments = [choose.choice([*JUNK, 1, 8]) for _ in range(CALLS[name])]
        arguments[round_ % len(arguments)] = choose.choice(JUNK)
        qp = lone.begin(1)
        if "_set_" in name:
            qp.wr_send()
        getattr(qp, name)(*arguments)
        assert verbs.ibv_wr_complete(qp) in (0, errno.EINVAL, errno.EFAULT), verbs.last_reason()
    assert verbs.ibv_wr_abort(lone.qp) == errno.EINVAL


FAULTS = (short_atomic, inline_read, wrong_flags, segmentation, data_of_an_invalidation, shorter_list)


@pytest.mark.parametrize("seed", range(20))
def test_any_sections_are_posted_whole_or_not_at_all(seed: int) -> None:
    """Sections of any length, with faults anywhere, aborted or completed, on a queue that is often full."""
    choose = random.Random(seed)
    with World("network") as world:
        pair = Pair(world, max_send_wr=6)
        expected: list[tuple[int, int]] = []
        waiting, number = 0, 0
        for _ in range(60):
            qp = pair.begin(0)
            good, wr_ids = True, []
            for _ in range(choose.randrange(5)):
                number += 1
                qp.wr_id, qp.wr_flags = number, SIGNALED
                if choose.random() < 0.08:
                    choose.choice(FAULTS)(qp, pair)
                    good = False
                    continue
                wr_ids.append(number)
                qp.wr_rdma_write(*pair.there)
                if choose.random() < 0.5:
                    qp.wr_set_inline_data(pair.a.mr.buf, choose.randrange(65))
                else:
                    qp.wr_set_sge(pair.a.sge(choose.randrange(5000)))
            if choose.random() < 0.15:
                qp.wr_abort()
            elif good and waiting + len(wr_ids) <= 6:
                qp.wr_complete()
                waiting += len(wr_ids)
                expected += [(wr_id, 0) for wr_id in wr_ids]
            else:
                refused(errno.ENOMEM if good else errno.EINVAL, qp.wr_complete)
            if choose.random() < 0.4:
                world.settle()
                waiting = 0
        world.settle()
        assert pair.a.done() == expected
        assert len(expected) > 20


# -- creation


@pytest.mark.parametrize(
    ("kind", "allowed"),
    [(e.IBV_QPT_RC, RC_OPS), (e.IBV_QPT_UC, UC_OPS), (e.IBV_QPT_UD, UD_OPS), (e.IBV_QPT_XRC_SEND, XRC_OPS)],
)
def test_each_type_has_its_operations(lone: Pair, kind: int, allowed: str) -> None:
    cap = {"max_recv_wr": 0, "max_recv_sge": 0} if kind == e.IBV_QPT_XRC_SEND else {}
    make(lone.a, allowed, kind, **cap)
    for name in (*RC_OPS.split(), "TSO"):
        if name not in allowed.split():
            reason = refused(errno.EOPNOTSUPP, make, lone.a, f"SEND {name}", kind)
            assert f"IBV_QP_EX_WITH_{name}" in reason
            assert "IBV_QP_EX_WITH_SEND," not in reason


def test_operations_are_those_that_were_asked_for(lone: Pair) -> None:
    qp = make(lone.a, "SEND")
    qp.wr_start()
    qp.wr_id = 3
    qp.wr_rdma_read(*lone.there)
    reason = refused(errno.EINVAL, qp.wr_complete)
    assert "wr_rdma_read (wr_id 0x3): the QP was made without IBV_QP_EX_WITH_RDMA_READ" in reason


def test_unknown_operations(lone: Pair) -> None:
    mask = e.IBV_QP_INIT_ATTR_PD | e.IBV_QP_INIT_ATTR_SEND_OPS_FLAGS
    for kind in (QP, QPEx):
        init = QPInitAttrEx(
            e.IBV_QPT_RC, None, lone.a.cq, lone.a.cq, comp_mask=mask, pd=lone.a.pd, send_ops_flags=1 << 40
        )
        assert "0x10000000000" in refused(errno.EOPNOTSUPP, kind, lone.a.context, init)


def test_without_send_ops_flags_there_is_no_extended_api(lone: Pair) -> None:
    init = QPInitAttrEx(e.IBV_QPT_RC, None, lone.a.cq, lone.a.cq, comp_mask=e.IBV_QP_INIT_ATTR_PD, pd=lone.a.pd)
    plain = QPInitAttr(e.IBV_QPT_RC, None, lone.a.cq, lone.a.cq)
    for qp in (QPEx(lone.a.context, init), QPEx(lone.a.pd, plain)):
        assert "IBV_QP_INIT_ATTR_SEND_OPS_FLAGS" in refused(errno.EINVAL, qp.wr_start)
        assert qp.ind_table is None


def test_to_init_at_creation(lone: Pair) -> None:
    mask = e.IBV_QP_INIT_ATTR_PD | e.IBV_QP_INIT_ATTR_SEND_OPS_FLAGS
    init = QPInitAttrEx(
        e.IBV_QPT_RC, None, lone.a.cq, lone.a.cq, None, QPCap(), 0, mask, lone.a.pd, send_ops_flags=ops("SEND")
    )
    attr = QPAttr(port_num=1)
    attr.qp_access_flags = REMOTE | FLUSHABLE
    assert QPEx(lone.a.context, init, attr).qp_state == e.IBV_QPS_INIT


# -- critical sections


def test_outside_of_a_section_every_call_is_refused_at_once(lone: Pair) -> None:
    qp = lone.qp
    for name, act in (
        ("wr_complete", qp.wr_complete),
        ("wr_abort", qp.wr_abort),
        ("wr_send", qp.wr_send),
        ("wr_rdma_read", lambda: qp.wr_rdma_read(1, 2)),
        ("wr_send_imm", lambda: qp.wr_send_imm(1)),
        ("wr_set_sge", lambda: qp.wr_set_sge(lone.a.sge(8))),
        ("wr_set_xrc_srqn", lambda: qp.wr_set_xrc_srqn(1)),
    ):
        assert f"{name}: no critical section is open" in refused(errno.EINVAL, act)


def test_a_section_is_not_begun_twice(lone: Pair) -> None:
    qp = lone.begin()
    qp.wr_rdma_write(*lone.there)
    assert "is open" in refused(errno.EINVAL, qp.wr_start)
    lone.end((1, 0))


def test_a_section_keeps_other_threads_out(lone: Pair) -> None:
    order: list[str] = []
    trying = threading.Event()

    def other() -> None:
        trying.set()
        with pytest.raises(PyverbsRDMAError, match="no critical section"):
            lone.qp.wr_send()
        lone.qp.wr_start()
        order.append("second")
        lone.qp.wr_abort()

    lone.begin()
    thread = threading.Thread(target=other)
    thread.start()
    assert trying.wait(30)
    order.append("first")
    lone.qp.wr_abort()
    thread.join(30)
    assert order == ["first", "second"]


def test_the_number_and_the_flags_must_fit(lone: Pair) -> None:
    for name, value in (("wr_id", 2**64), ("wr_id", -1), ("wr_flags", 2**32), ("comp_mask", "x")):
        with pytest.raises(PyverbsRDMAError, match=name):
            setattr(lone.qp, name, value)
    lone.qp.wr_id = 2**64 - 1
    assert lone.qp.wr_id == 2**64 - 1


def test_closing_in_a_section(lone: Pair) -> None:
    qp = lone.begin()
    qp.wr_send()
    qp.close()
    for act in (qp.wr_complete, qp.wr_abort, qp.wr_start, qp.wr_send):
        assert "QP is closed" in refused(errno.EINVAL, act)


# -- datagrams and XRC


def test_datagrams(world: World) -> None:
    a, b = world.a, world.b
    sender, receiver = make(a, UD_OPS, e.IBV_QPT_UD), make(b, UD_OPS, e.IBV_QPT_UD)
    for qp in (sender, receiver):
        attr = QPAttr(port_num=1)
        attr.qkey = QKEY
        qp.to_rts(attr)
    route = GlobalRoute(b.context.query_gid(1, 0), hop_limit=64)
    ah = AH(a.pd, attr=AHAttr(gr=route, is_global=1, port_num=1))
    fill(a.memory, b"datagram")
    b.post_recv(receiver, 8, offset=1024, length=48)
    sender.wr_start()
    sender.wr_id, sender.wr_flags = 1, SIGNALED
    sender.wr_send()
    sender.wr_set_ud_addr(ah, receiver.qp_num, QKEY)
    sender.wr_set_sge(a.sge(8))
    sender.wr_complete()
    world.settle()
    done = a.poll() + b.poll()
    assert {(wc.wr_id, wc.status) for wc in done} == {(1, 0), (8, 0)}
    assert b.memory[1064:1072] == b"datagram"
    for count in (1, 2):  # the address of a former work request does not count
        sender.wr_start()
        for _ in range(count):
            sender.wr_send()
            if count == 2 and _ == 0:
                sender.wr_set_ud_addr(ah, receiver.qp_num, QKEY)
        assert "wr_set_ud_addr has not been called" in refused(errno.EINVAL, sender.wr_complete)
    sender.wr_start()
    sender.wr_send()
    sender.wr_set_ud_addr(ah, 2**24, QKEY)
    assert "remote_qpn" in refused(errno.EINVAL, sender.wr_complete)
    sender.wr_start()
    sender.wr_send()
    sender.wr_set_ud_addr(5, 1, QKEY)  # type: ignore[arg-type]
    assert "AH is expected" in refused(errno.EINVAL, sender.wr_complete)


def test_unreliable_connections(world: World) -> None:
    a, b = world.a, world.b
    sender, receiver = make(a, UC_OPS, e.IBV_QPT_UC), make(b, UC_OPS, e.IBV_QPT_UC)
    connect(world, sender, receiver)
    data = pattern(3000)
    fill(a.memory, data)
    b.post_recv(receiver, 8, offset=8192)
    sender.wr_start()
    sender.wr_id, sender.wr_flags = 1, SIGNALED
    sender.wr_rdma_write(b.mr.rkey, b.mr.buf)
    sender.wr_set_sge(a.sge(3000))
    sender.wr_id = 2
    sender.wr_send()
    sender.wr_set_inline_data(a.mr.buf, 64)
    sender.wr_complete()
    world.settle()
    assert a.done() == [(1, 0), (2, 0)]
    assert b.done() == [(8, 0)]
    assert b.memory[:3000] == data
    assert b.memory[8192:8256] == data[:64]


def test_xrc(world: World) -> None:
    a, b = world.a, world.b
    domain = xrcd(b)
    queues = [xsrq(b, domain, b.cq) for _ in range(2)]
    for index, queue in enumerate(queues):
        stock(b, queue, 10 + index, offset=1024 * index)
    initiator = make(a, XRC_OPS, e.IBV_QPT_XRC_SEND, max_recv_wr=0, max_recv_sge=0)
    connect(world, initiator, target(b, domain))
    fill(a.memory, b"xrc")
    initiator.wr_start()
    initiator.wr_flags = SIGNALED
    for wr_id in (1, 0):
        initiator.wr_id = wr_id
        initiator.wr_send()
        initiator.wr_set_xrc_srqn(queues[wr_id].get_srq_num())
        initiator.wr_set_sge(a.sge(3))
    initiator.wr_complete()
    world.settle()
    assert a.done() == [(1, 0), (0, 0)]
    assert b.done() == [(11, 0), (10, 0)]
    assert b.memory[:3] == b.memory[1024:1027] == b"xrc"


def test_an_xrc_qp_needs_the_number_of_an_srq(lone: Pair) -> None:
    qp = make(lone.a, "SEND LOCAL_INV", e.IBV_QPT_XRC_SEND, max_recv_wr=0, max_recv_sge=0)
    qp.wr_start()
    qp.wr_send()
    assert "wr_set_xrc_srqn has not been called" in refused(errno.EINVAL, qp.wr_complete)


# -- the functions of the manual page


def test_functions(lone: Pair) -> None:
    qp = lone.qp
    assert verbs.ibv_qp_to_qp_ex(qp) is qp
    assert verbs.ibv_qp_to_qp_ex(lone.a.qp()) is None  # type: ignore[arg-type]
    assert verbs.ibv_wr_complete(qp) == errno.EINVAL
    key, there = lone.there
    lone.b.post_recv(lone.peer, 100, 101)
    assert verbs.ibv_wr_start(qp) == 0
    qp.wr_flags = SIGNALED
    calls: list[tuple[Any, ...]] = [
        (verbs.ibv_wr_rdma_write, key, there),
        (verbs.ibv_wr_rdma_read, key, there),
        (verbs.ibv_wr_send,),
        (verbs.ibv_wr_send_imm, int.from_bytes(b"\1\2\3\4", "little")),
        (verbs.ibv_wr_atomic_fetch_add, key, there, 1),
        (verbs.ibv_wr_atomic_cmp_swp, key, there, 1, 2),
    ]
    for number, (call, *args) in enumerate(calls):
        qp.wr_id = number
        assert call(qp, *args) == 0
        assert verbs.ibv_wr_set_sge(qp, lone.a.mr.lkey, lone.a.mr.buf, 8) == 0
    assert verbs.ibv_wr_complete(qp) == 0
    lone.world.settle()
    done = lone.a.poll() + lone.b.poll()
    assert all(wc.status == 0 for wc in done)
    assert {wc.wr_id for wc in done} == {*range(6), 100, 101}
    (imm,) = [wc.imm_data for wc in done if wc.wr_id == 101]
    assert imm.to_bytes(4, "little") == b"\1\2\3\4"
    assert verbs.ibv_wr_start(qp) == 0
    verbs.ibv_wr_rdma_write(qp, key, there)
    assert verbs.ibv_wr_set_inline_data(qp, lone.a.mr.buf, 8) == 0
    verbs.ibv_wr_rdma_write(qp, key, there)
    assert verbs.ibv_wr_set_inline_data_list(qp, 1, [DataBuffer(lone.a.mr.buf, 8)]) == 0
    verbs.ibv_wr_rdma_write(qp, key, there)
    assert verbs.ibv_wr_set_sge_list(qp, 1, [SGE(lone.a.mr.buf, 8, lone.a.mr.lkey)]) == 0
    assert verbs.ibv_wr_rdma_write_imm(qp, key, there, 5) == 0
    assert verbs.ibv_wr_send_inv(qp, 5) == 0
    assert verbs.ibv_wr_local_inv(qp, 5) == 0
    assert verbs.ibv_wr_atomic_write(qp, key, there, b"12345678") == 0
    assert verbs.ibv_wr_flush(qp, key, there, 8, 1, 0) == 0
    assert verbs.ibv_wr_abort(qp) == 0
    for number, (call, *args) in enumerate(
        [
            (verbs.ibv_wr_bind_mw, None, 1, None),
            (verbs.ibv_wr_send_tso, 0, 0, 0),
            (verbs.ibv_wr_set_ud_addr, None, 0, 0),
            (verbs.ibv_wr_set_xrc_srqn, 0),
        ]
    ):
        assert verbs.ibv_wr_start(qp) == 0
        qp.wr_id = number
        assert call(qp, *args) == 0
        assert verbs.ibv_wr_complete(qp) == errno.EINVAL
        assert verbs.last_reason()
    assert lone.a.done() == []
