# SPDX-License-Identifier: MIT
"""The state table of a reliable queue pair: which steps there are, what each needs, what may be done where."""

import errno
import itertools
from typing import Any

import pytest
from tests.pyverbs.world import World, refused, set_state

from softverbs.pyverbs import libibverbs_enums as e
from softverbs.pyverbs.pyverbs_error import PyverbsRDMAError
from softverbs.pyverbs.qp import QP, QPAttr
from softverbs.pyverbs.wr import RecvWR

RESET, INIT, RTR, RTS, SQD, SQE, ERR = (
    e.IBV_QPS_RESET, e.IBV_QPS_INIT, e.IBV_QPS_RTR, e.IBV_QPS_RTS, e.IBV_QPS_SQD, e.IBV_QPS_SQE, e.IBV_QPS_ERR,
)  # fmt: skip
NAMES = {RESET: "RESET", INIT: "INIT", RTR: "RTR", RTS: "RTS", SQD: "SQD", SQE: "SQE", ERR: "ERR"}
STATE = e.IBV_QP_STATE

#: ibv_modify_qp(3): what each step must name besides the state.
REQUIRED = {
    (RESET, INIT): ["PKEY_INDEX", "PORT", "ACCESS_FLAGS"],
    (INIT, RTR): ["AV", "PATH_MTU", "DEST_QPN", "RQ_PSN", "MAX_DEST_RD_ATOMIC", "MIN_RNR_TIMER"],
    (RTR, RTS): ["SQ_PSN", "TIMEOUT", "RETRY_CNT", "RNR_RETRY", "MAX_QP_RD_ATOMIC"],
}
#: Something that no step takes from there, or only an earlier one.
FOREIGN = {(RESET, INIT): "SQ_PSN", (INIT, RTR): "RNR_RETRY", (RTR, RTS): "DEST_QPN"}
#: Steps that need nothing but the state (IBA 10.3.1); RESET to ERR is left out: the sources differ.
FREE = {(state, RESET) for state in (RESET, INIT, RTR, RTS, SQD, ERR)}
FREE |= {(state, ERR) for state in (INIT, RTR, RTS, SQD, ERR)}
FREE |= {(INIT, INIT), (RTS, RTS), (RTS, SQD), (SQD, RTS), (SQD, SQD)}
REACHABLE = (RESET, INIT, RTR, RTS, SQD, ERR)
steps = pytest.mark.parametrize("step", REQUIRED, ids=lambda step: "-".join(NAMES[state] for state in step))


def mask_of(names: list[str]) -> int:
    return STATE | sum(getattr(e, f"IBV_QP_{name}") for name in names)


def begin(world: World, state: int) -> QP:
    return world.move(world.a.qp(), state)


def attributes(world: World, qp: QP, state: int, **changes: Any) -> QPAttr:
    return world.attr(qp, 0xFFFFF0, qp_state=state, cur_qp_state=qp.qp_state, **changes)


@steps
def test_a_step_is_made_with_exactly_what_it_needs(build: Any, step: tuple[int, int]) -> None:
    world = build()
    qp = begin(world, step[0])
    qp.modify(attributes(world, qp, step[1]), mask_of(REQUIRED[step]))
    assert qp.qp_state == step[1]


@pytest.mark.row("3: EINVAL of modify_qp")
@pytest.mark.parametrize(("step", "missing"), [(step, name) for step, names in REQUIRED.items() for name in names])
def test_a_missing_attribute_is_named_and_nothing_changes(build: Any, step: tuple[int, int], missing: str) -> None:
    world = build()
    qp = begin(world, step[0])
    mask = mask_of([name for name in REQUIRED[step] if name != missing])
    reason = refused(errno.EINVAL, qp.modify, attributes(world, qp, step[1]), mask)
    assert f"IBV_QP_{missing}" in reason
    present = [name for name in REQUIRED[step] if name != missing]
    assert not any(f"IBV_QP_{name}" in reason.replace(f"IBV_QP_{missing}", "") for name in present), reason
    assert qp.qp_state == step[0]
    qp.modify(attributes(world, qp, step[1]), mask_of(REQUIRED[step]))


@pytest.mark.row("3: EINVAL of modify_qp")
@steps
def test_missing_and_invalid_attributes_are_both_named(build: Any, step: tuple[int, int]) -> None:
    world = build()
    qp = begin(world, step[0])
    first, second, *given = REQUIRED[step]
    foreign = FOREIGN[step]
    mask = mask_of([*given, foreign, "QKEY"])
    reason = refused(errno.EINVAL, qp.modify, attributes(world, qp, step[1]), mask)
    for name in (first, second, foreign, "QKEY"):
        assert f"IBV_QP_{name}" in reason, reason
    assert qp.qp_state == step[0]


@pytest.mark.parametrize(
    ("start", "target"),
    [pair for pair in itertools.product(REACHABLE, NAMES) if pair not in REQUIRED and pair != (RESET, ERR)],
    ids=lambda state: NAMES[state],
)
def test_the_state_table(build: Any, start: int, target: int) -> None:
    world = build()
    qp = begin(world, start)
    if (start, target) in FREE:
        qp.modify(attributes(world, qp, target), STATE)
        assert qp.qp_state == target
        return
    reason = refused(errno.EINVAL, qp.modify, attributes(world, qp, target), STATE)
    assert NAMES[start] in reason and NAMES[target] in reason, reason
    assert qp.qp_state == start


@pytest.mark.parametrize(("start", "target"), [(RESET, RTR), (RESET, RTS), (INIT, RTS), (ERR, RTS), (ERR, INIT)])
def test_no_step_is_skipped_whatever_is_given(build: Any, start: int, target: int) -> None:
    world = build()
    qp = begin(world, start)
    everything = mask_of([name for names in REQUIRED.values() for name in names])
    refused(errno.EINVAL, qp.modify, attributes(world, qp, target), everything)
    assert qp.qp_state == start


@pytest.mark.row("3: EINVAL of modify_qp")
@pytest.mark.parametrize(
    ("step", "name", "values"),
    [
        ((RESET, INIT), "port_num", [0, 2, 255]),
        ((RESET, INIT), "pkey_index", [1, 0xFFFF]),
        ((RESET, INIT), "qp_access_flags", [1 << 15, 1 << 31]),
        ((INIT, RTR), "path_mtu", [0, 6, 4096]),
        ((INIT, RTR), "rq_psn", [1 << 24, 2**32 - 1]),
        ((INIT, RTR), "dest_qp_num", [1 << 24, 2**32 - 1]),
        ((INIT, RTR), "min_rnr_timer", [32, 255]),
        ((INIT, RTR), "max_dest_rd_atomic", [255]),
        ((RTR, RTS), "sq_psn", [1 << 24, 2**32 - 1]),
        ((RTR, RTS), "timeout", [32, 255]),
        ((RTR, RTS), "retry_cnt", [8, 255]),
        ((RTR, RTS), "rnr_retry", [8, 255]),
        ((RTR, RTS), "max_rd_atomic", [255]),
    ],
)
def test_a_value_out_of_range_is_named_with_its_value(
    build: Any, step: tuple[int, int], name: str, values: list[int]
) -> None:
    world = build()
    qp = begin(world, step[0])
    for value in values:
        wrong = attributes(world, qp, step[1], **{name: value})
        reason = refused(errno.EINVAL, qp.modify, wrong, mask_of(REQUIRED[step]))
        assert name in reason and (str(value) in reason or f"{value:#x}" in reason), reason
        assert qp.qp_state == step[0]
    qp.modify(attributes(world, qp, step[1]), mask_of(REQUIRED[step]))


@pytest.mark.parametrize("state", [INIT, RTR, RTS])
def test_another_current_state_than_the_real_one_is_refused(build: Any, state: int) -> None:
    world = build()
    qp = begin(world, state)
    attr = attributes(world, qp, ERR)
    attr.cur_qp_state = ERR
    refused(errno.EINVAL, qp.modify, attr, STATE | e.IBV_QP_CUR_STATE)
    assert qp.qp_state == state


def test_unknown_bits_of_the_mask_are_refused(build: Any) -> None:
    world = build()
    qp = begin(world, INIT)
    for bit in (1 << 28, 1 << 31):
        refused(errno.EINVAL, qp.modify, attributes(world, qp, ERR), STATE | bit)
    assert qp.qp_state == INIT


def test_rights_and_timers_can_be_changed_later(world: World) -> None:
    first, second = world.pair()
    changes = {"qp_access_flags": e.IBV_ACCESS_REMOTE_READ, "min_rnr_timer": 20}
    second.modify(world.attr(second, 0, **changes), e.IBV_QP_ACCESS_FLAGS | e.IBV_QP_MIN_RNR_TIMER)
    found, _ = second.query(e.IBV_QP_ACCESS_FLAGS | e.IBV_QP_MIN_RNR_TIMER)
    assert {name: getattr(found, name) for name in changes} == changes
    first.post_send(world.a.wr(e.IBV_WR_RDMA_WRITE))
    world.settle()
    assert world.a.done() == [(1, e.IBV_WC_REM_INV_REQ_ERR)]


@pytest.mark.parametrize("state", REACHABLE, ids=NAMES.get)
def test_sends_can_be_posted_from_rts_on(build: Any, state: int) -> None:
    world = build()
    qp = begin(world, state)
    if state in (RTS, SQD, ERR):
        qp.post_send(world.a.wr(e.IBV_WR_RDMA_WRITE))
        return
    assert NAMES[state] in refused(errno.EINVAL, qp.post_send, world.a.wr(e.IBV_WR_RDMA_WRITE))


@pytest.mark.parametrize("state", REACHABLE, ids=NAMES.get)
def test_receives_can_be_posted_from_init_on(build: Any, state: int) -> None:
    world = build()
    qp = begin(world, state)
    if state != RESET:
        world.a.post_recv(qp, 1)
        return
    assert NAMES[state] in refused(errno.EINVAL, qp.post_recv, RecvWR(1))


def test_receives_that_were_posted_in_init_are_used_after_rtr(world: World) -> None:
    first, second = world.a.qp(), world.b.qp()
    second.to_init(world.attr(second, first.qp_num))
    world.b.post_recv(second, 7)
    world.connect(first, second)
    first.post_send(world.a.wr(e.IBV_WR_SEND))
    world.run()
    assert world.b.done() == [(7, e.IBV_WC_SUCCESS)]


def test_a_queue_pair_in_rtr_already_serves_its_peer(world: World) -> None:
    first, second = world.a.qp(), world.b.qp()
    first.to_rts(world.attr(first, second.qp_num))
    second.to_rtr(world.attr(second, first.qp_num))
    world.b.post_recv(second, 7)
    for wr_id, opcode in enumerate((e.IBV_WR_SEND, e.IBV_WR_RDMA_WRITE, e.IBV_WR_RDMA_READ)):
        first.post_send(world.a.wr(opcode, wr_id))
    world.run()
    assert world.a.done() == [(wr_id, e.IBV_WC_SUCCESS) for wr_id in range(3)]


@pytest.mark.parametrize("state", [RESET, INIT, ERR], ids=NAMES.get)
def test_a_peer_that_is_not_ready_is_given_up(world: World, state: int) -> None:
    first, second = world.a.qp(), world.b.qp()
    first.to_rts(world.attr(first, second.qp_num, timeout=8, retry_cnt=1))
    if state != RESET:
        second.to_init(world.attr(second, first.qp_num))
    if state == ERR:
        set_state(second, ERR)
    first.post_send(world.a.wr(e.IBV_WR_RDMA_WRITE))
    world.settle()
    assert world.a.done() == [(1, e.IBV_WC_RETRY_EXC_ERR)]
    assert values_are_untouched(world)


def values_are_untouched(world: World) -> bool:
    return not any(world.b.memory)


def test_a_reset_queue_pair_is_as_good_as_new(world: World) -> None:
    first, second = world.pair()
    for _ in range(3):
        first.post_send(world.a.wr(e.IBV_WR_RDMA_WRITE, key=0xBAD00))
        world.settle()
        assert world.a.done() == [(1, e.IBV_WC_REM_ACCESS_ERR)]
        for qp in (first, second):
            set_state(qp, RESET)
        world.connect(first, second)
        first.post_send(world.a.wr(e.IBV_WR_RDMA_WRITE))
        world.run()
        assert world.a.done() == [(1, e.IBV_WC_SUCCESS)]


def test_packets_of_before_a_reset_do_no_harm(build: Any) -> None:
    """A write is on its way when both ends are reset and connected anew: it must not land."""
    world = build(wire=True)
    first, second = world.pair()
    held: list[bytes] = []
    world.wire.rule = lambda frame: held.append(frame) or []
    world.a.memory[:8] = b"too late"
    first.post_send(world.a.wr(e.IBV_WR_RDMA_WRITE))
    world.run()
    for qp in (first, second):
        set_state(qp, RESET)
    world.connect(first, second, sq_psn=0x777777, rq_psn=0x777777)
    released = list(held)
    world.wire.rule = lambda frame: [*released, frame]
    first.post_send(world.a.wr(e.IBV_WR_RDMA_READ, 2, offset=100, at=100))
    world.settle()
    assert world.a.done() == [(2, e.IBV_WC_SUCCESS)]
    assert values_are_untouched(world)


def test_query_returns_what_was_set(world: World) -> None:
    first, second = world.pair(path_mtu=e.IBV_MTU_2048, timeout=11, retry_cnt=3, rnr_retry=5, min_rnr_timer=9,
                               max_rd_atomic=3, max_dest_rd_atomic=2, sq_psn=0xABCDEF, rq_psn=0xABCDEF)  # fmt: skip
    found, init = first.query(STATE)
    assert (found.qp_state, found.dest_qp_num, found.path_mtu) == (RTS, second.qp_num, e.IBV_MTU_2048)
    assert (found.timeout, found.retry_cnt, found.rnr_retry, found.min_rnr_timer) == (11, 3, 5, 9)
    assert (found.max_rd_atomic, found.max_dest_rd_atomic) == (3, 2)
    assert init.qp_type == e.IBV_QPT_RC
    assert init.send_cq is world.a.cq


def test_an_error_of_modify_is_a_pyverbs_error_with_a_reason(build: Any) -> None:
    world = build()
    with pytest.raises(PyverbsRDMAError) as caught:
        world.a.qp().modify(QPAttr(qp_state=RTS), STATE)
    assert caught.value.error_code == caught.value.errno == errno.EINVAL
    assert caught.value.reason in str(caught.value)
    assert "Errno: 22" in str(caught.value)
