# SPDX-License-Identifier: MIT
"""The extended API for sends: a section is posted whole or not at all, and what is wrong with it is told at its end."""

import errno
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.pyverbs.sections import FLUSHABLE, RC_OPS, UC_OPS, UD_OPS, XRC_OPS, Pair, make, ops
from tests.pyverbs.world import (
    REMOTE,
    SIGNALED,
    World,
    refused,
    set_state,
)

from softverbs import verbs
from softverbs.pyverbs import libibverbs_enums as e
from softverbs.pyverbs.mr import MW, MWBindInfo
from softverbs.pyverbs.pyverbs_error import PyverbsRDMAError
from softverbs.pyverbs.qp import QP, DataBuffer, QPAttr, QPCap, QPEx, QPInitAttr, QPInitAttrEx


@pytest.fixture
def pair(world: World) -> Pair:
    return Pair(world)


@pytest.fixture
def lone() -> Iterator[Pair]:
    with World("loopback") as world:
        yield Pair(world)


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


def no_data(qp: QPEx, pair: Pair) -> None:
    qp.wr_rdma_write(*pair.there)


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
    qp.wr_set_inline_data_list(2, [DataBuffer(pair.a.mr.buf, 60), DataBuffer(pair.a.mr.buf, 60)])


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
    (no_data, r"wr_rdma_write \(wr_id 0x5\): no data setter has been called"),
    (wrong_key, "wr_local_inv .*'x'"),
    (two_elements_too_many, "wr_set_sge_list .*6 scatter/gather elements: max_send_sge=4"),
    (shorter_list, "wr_set_sge_list .*the list has 1"),
    (data_twice, "wr_set_inline_data .*wr_rdma_write has its data already"),
    (inline_read, "wr_set_inline_data .*wr_rdma_read takes no inline data"),
    (inline_too_long, "wr_set_inline_data_list .*120 bytes inline: max_inline_data=112"),
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
    qp.wr_set_sge(lone.a.sge(0))
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
        qp.wr_set_sge(pair.a.sge(8))
    assert "max_send_wr=2" in refused(errno.ENOMEM, qp.wr_complete)
    pair.world.settle()
    assert pair.a.done() == []
    pair.begin()
    for number in range(2):
        qp.wr_id = number
        qp.wr_rdma_write(*pair.there)
        qp.wr_set_sge(pair.a.sge(8))
    pair.end((0, 0), (1, 0))


def test_states(lone: Pair) -> None:
    fresh = make(lone.a)
    fresh.wr_start()
    fresh.wr_send()
    fresh.wr_set_sge(lone.a.sge(8))
    assert "RESET" in refused(errno.EINVAL, fresh.wr_complete)
    set_state(lone.qp, e.IBV_QPS_ERR)
    qp = lone.begin(1)
    qp.wr_send()
    qp.wr_set_sge(lone.a.sge(8))
    qp.wr_id = 2
    qp.wr_rdma_write(*lone.there)
    qp.wr_set_sge(lone.a.sge(8))
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
        done: list[tuple[int, int]] = []
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
                done += pair.a.done()
                waiting = 0
        world.settle()
        assert done + pair.a.done() == expected
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
