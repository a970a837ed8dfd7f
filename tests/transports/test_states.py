# SPDX-License-Identifier: MIT
"""Every change of state of every type of queue pair: what it needs, what it allows, what it refuses.

The tables are written down here once more, from ibv_modify_qp(3) and IBA 11.2.5.2 (table 91), annex A14 for XRC.
"""

import errno
import itertools
from types import SimpleNamespace
from typing import Any

import pytest
from tests.netsim.pair import (
    FLUSH_ERR,
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
    End,
    Pair,
)
from tests.netsim.sim import (
    CAP,
    ERR,
    INIT,
    PATH,
    QPT_RC,
    QPT_UC,
    QPT_UD,
    QPT_XRC_RECV,
    QPT_XRC_SEND,
    RESET,
    RTR,
    RTS,
    SQD,
    SQE,
    Node,
    Sim,
    connect,
    move,
)

from softverbs.core.base.errors import PyverbsRDMAError
from softverbs.core.queues.wr import SGE, RecvWR, SendWR
from softverbs.core.transport.address import AddressVector
from softverbs.core.transport.qp import QueuePair

#: enum ibv_qp_attr_mask: the attribute that each bit is for.
BITS = {
    "qp_state": 0, "cur_qp_state": 1, "en_sqd_async_notify": 2, "qp_access_flags": 3, "pkey_index": 4, "port_num": 5,
    "qkey": 6, "ah_attr": 7, "path_mtu": 8, "timeout": 9, "retry_cnt": 10, "rnr_retry": 11, "rq_psn": 12,
    "max_rd_atomic": 13, "min_rnr_timer": 15, "sq_psn": 16, "max_dest_rd_atomic": 17, "path_mig_state": 18,
    "dest_qp_num": 20,
}  # fmt: skip
STATES = (RESET, INIT, RTR, RTS, SQD, SQE, ERR)
CONNECT = {"ah_attr", "path_mtu", "dest_qp_num", "rq_psn"}
ANSWER = {"max_dest_rd_atomic", "min_rnr_timer"}
ASK = {"timeout", "retry_cnt", "rnr_retry", "sq_psn", "max_rd_atomic"}
#: (required for INIT, RTR, RTS), what may change while it works, and besides in SQD.
RULES: dict[int, tuple[tuple[set[str], set[str], set[str]], set[str], set[str]]] = {
    QPT_UD: (({"pkey_index", "port_num", "qkey"}, set(), {"sq_psn"}), {"qkey"}, {"pkey_index"}),
    QPT_UC: (
        ({"pkey_index", "port_num", "qp_access_flags"}, CONNECT, {"sq_psn"}), {"qp_access_flags", "path_mig_state"},
        {"pkey_index", "ah_attr", "port_num"},
    ),
    QPT_RC: (
        ({"pkey_index", "port_num", "qp_access_flags"}, CONNECT | ANSWER, ASK),
        {"qp_access_flags", "path_mig_state", "min_rnr_timer"},
        {"pkey_index", "ah_attr", "port_num", *ASK - {"sq_psn"}, "max_dest_rd_atomic"},
    ),
    QPT_XRC_SEND: (
        ({"pkey_index", "port_num", "qp_access_flags"}, CONNECT, ASK), {"qp_access_flags", "path_mig_state"},
        {"pkey_index", "ah_attr", "port_num", *ASK - {"sq_psn"}},
    ),
    QPT_XRC_RECV: (
        ({"pkey_index", "port_num", "qp_access_flags"}, CONNECT | ANSWER, {"timeout", "sq_psn"}),
        {"qp_access_flags", "path_mig_state", "min_rnr_timer"},
        {"pkey_index", "ah_attr", "port_num", "timeout", "max_dest_rd_atomic"},
    ),
}  # fmt: skip
#: What is left aside where it is given: half a connection has no use for it.
IGNORED: dict[int, set[str]] = {QPT_XRC_SEND: ANSWER, QPT_XRC_RECV: {"retry_cnt", "rnr_retry", "max_rd_atomic"}}
TYPES = {QPT_RC: "RC", QPT_UC: "UC", QPT_UD: "UD", QPT_XRC_SEND: "XRC_SEND", QPT_XRC_RECV: "XRC_RECV"}
each_type = pytest.mark.parametrize("kind", TYPES, ids=TYPES.values())


class Stand:
    """Queue pairs of one type, in any state."""

    def __init__(self, kind: int) -> None:
        self.kind = kind
        self.sim = Sim()
        self.node: Node = self.sim.node()
        self.peer = self.sim.node()
        self.pd, self.cq, self.xrcd = self.node.pd(), self.node.cq(), self.node.xrcd()
        self.values: dict[str, Any] = {
            "pkey_index": 0, "port_num": 1, "ah_attr": AddressVector(self.peer.gid), "dest_qp_num": 7,
            "en_sqd_async_notify": 0, "path_mig_state": 0, **PATH,
        }  # fmt: skip

    def make(self) -> QueuePair:
        if self.kind == QPT_XRC_RECV:
            return self.node.qp(None, None, kind=self.kind, xrcd=self.xrcd)
        return self.node.qp(self.pd, self.cq, kind=self.kind)

    def in_state(self, state: int) -> QueuePair:
        """A new queue pair that has got into a state by itself or by the shortest way."""
        qp = self.make()
        if state in (ERR,):
            connect(qp, None, self.node, None, self.values.items(), to=INIT)
            move(qp, ERR)
        elif state != RESET:
            connect(qp, None, self.node, None, self.values.items(), to=min(state, RTS))
        if state == SQD:
            move(qp, SQD)
        if state == SQE:
            self._fail(qp)
        assert qp.state == state
        return qp

    def _fail(self, qp: QueuePair) -> None:
        wr = SendWR(0, WR_SEND, 1, 0, [SGE(0x10, 8, 0xBAD)])
        if self.kind == QPT_UD:
            wr.set_wr_ud(self.node.handle(self.pd, self.peer.gid), 7, 0)
        qp.post_send(wr)
        self.sim.settle()

    def states(self) -> list[int]:
        """Those that the type has: SQE only where an error of the send side stops this side alone (IBA 10.3.1)."""
        return [state for state in STATES if state != SQE or self.kind in (QPT_UC, QPT_UD)]

    def rule(self, state: int, target: int) -> tuple[set[str], set[str]] | None:
        """(required, optional) of a change; None where there is no such change."""
        (init, rtr, rts), live, paused = RULES[self.kind]
        if target in (RESET, ERR):
            return set(), {"cur_qp_state"}
        first = (init, {"cur_qp_state"})
        again = set(), init | {"cur_qp_state"}
        optional = {"pkey_index", "qkey"} if self.kind == QPT_UD else {"pkey_index", "qp_access_flags"}
        return {
            (RESET, INIT): first, (INIT, INIT): again, (INIT, RTR): (rtr, optional | {"cur_qp_state"}),
            (RTR, RTS): (rts, live | {"cur_qp_state"}), (RTS, RTS): (set(), live | {"cur_qp_state"}),
            (RTS, SQD): (set(), {"en_sqd_async_notify", "cur_qp_state"}), (SQD, RTS): (set(), live | {"cur_qp_state"}),
            (SQD, SQD): (set(), live | paused | {"cur_qp_state"}),
            (SQE, RTS): (set(), live | {"cur_qp_state"}),
        }.get((state, target))  # fmt: skip

    def modify(self, qp: QueuePair, target: int, names: set[str]) -> None:
        values = {**self.values, "qp_state": target, "cur_qp_state": qp.state}
        mask = 1
        for name in names:
            mask |= 1 << BITS[name]
        qp.modify({name: values[name] for name in {*names, "qp_state"}}, mask)

    def refuses(self, state: int, target: int, names: set[str], *words: str) -> None:
        """EINVAL, in words, and nothing has changed."""
        qp = self.in_state(state)
        before = qp.query()
        with pytest.raises(PyverbsRDMAError) as caught:
            self.modify(qp, target, names)
        assert caught.value.errno == errno.EINVAL
        for word in words:
            assert word in str(caught.value)
        assert qp.query() == before
        qp.close()


@pytest.fixture
def stand(kind: int) -> Any:
    made = Stand(kind)
    with made.sim:
        yield made


@each_type
def test_each_change_with_exactly_what_it_needs(stand: Stand) -> None:
    for state, target in itertools.product(stand.states(), STATES):
        rule = stand.rule(state, target)
        if rule is None:
            stand.refuses(state, target, set())
            continue
        qp = stand.in_state(state)
        stand.modify(qp, target, rule[0])
        assert qp.state == target
        qp.close()


@each_type
def test_each_change_without_one_of_what_it_needs(stand: Stand) -> None:
    for state, target in itertools.product(stand.states(), STATES):
        rule = stand.rule(state, target)
        for name in rule[0] if rule else ():
            stand.refuses(state, target, rule[0] - {name}, "missing IBV_QP_")  # type: ignore[index]


@each_type
def test_each_change_with_each_attribute_more(stand: Stand) -> None:
    """What is optional is taken; everything else is refused by its name."""
    for state, target in itertools.product(stand.states(), STATES):
        rule = stand.rule(state, target)
        if rule is None:
            continue
        for name in set(BITS) - {"qp_state"} - rule[0] - IGNORED.get(stand.kind, set()):
            if name in rule[1]:
                qp = stand.in_state(state)
                stand.modify(qp, target, rule[0] | {name})
                assert qp.state == target
                qp.close()
            elif target not in (RESET, ERR):
                stand.refuses(state, target, rule[0] | {name}, "not allowed IBV_QP_")


@pytest.mark.parametrize("kind", IGNORED, ids=[TYPES[kind] for kind in IGNORED])
def test_what_half_a_connection_has_no_use_for(stand: Stand) -> None:
    """It may be given with every change, even out of range, and changes nothing."""
    ignored = IGNORED[stand.kind]
    stand.values |= dict.fromkeys(ignored, 1000)
    for state, target in itertools.product(stand.states(), STATES):
        rule = stand.rule(state, target)
        if rule is None:
            continue
        plain, given = stand.in_state(state), stand.in_state(state)
        stand.modify(plain, target, rule[0])
        stand.modify(given, target, rule[0] | ignored)
        assert given.query() == plain.query()
        plain.close()
        given.close()


@each_type
def test_a_wrong_current_state_is_refused(stand: Stand) -> None:
    qp = stand.in_state(RTS)
    with pytest.raises(PyverbsRDMAError, match="cur_qp_state"):
        qp.modify({"qp_state": RTS, "cur_qp_state": SQD}, 3)
    assert qp.state == RTS


@each_type
def test_out_of_range_changes_nothing(stand: Stand) -> None:
    """Each attribute of each step, one too far."""
    bad: dict[str, Any] = {
        "pkey_index": 1, "port_num": 2, "path_mtu": 9, "dest_qp_num": 1 << 24, "rq_psn": 1 << 24, "sq_psn": 1 << 24,
        "max_rd_atomic": 129, "max_dest_rd_atomic": 129, "min_rnr_timer": 32, "timeout": 32, "retry_cnt": 8,
        "rnr_retry": 8, "qkey": 1 << 32, "ah_attr": AddressVector(bytes(15) + b"\1"),
    }  # fmt: skip
    for state, names in zip((INIT, RTR, RTS), RULES[stand.kind][0], strict=True):
        for name in names & set(bad):
            qp = stand.in_state(state - 1)
            before = qp.query()
            good = stand.values[name]
            stand.values[name] = bad[name]
            with pytest.raises(PyverbsRDMAError) as caught:
                stand.modify(qp, state, names)
            stand.values[name] = good
            assert caught.value.errno == errno.EINVAL
            assert qp.query() == before, name
            qp.close()


@each_type
def test_sends_need_rts_and_receives_need_init(stand: Stand) -> None:
    """ERR, SQE and SQD take sends too: they are flushed, or wait."""
    for state in stand.states():
        qp = stand.in_state(state)
        wr = SendWR(1, WR_SEND)
        if stand.kind == QPT_UD:
            wr.set_wr_ud(stand.node.handle(stand.pd, stand.peer.gid), 7, 0)
        if stand.kind != QPT_XRC_RECV and state >= RTS:
            qp.post_send(wr)
        else:
            with pytest.raises(PyverbsRDMAError) as caught:
                qp.post_send(wr)
            assert caught.value.errno == errno.EINVAL
        if stand.kind in (QPT_RC, QPT_UC, QPT_UD) and state != RESET:
            qp.post_recv(RecvWR(2))
        else:
            with pytest.raises(PyverbsRDMAError) as caught:
                qp.post_recv(RecvWR(2))
            assert caught.value.errno == errno.EINVAL
        qp.close()


@each_type
def test_the_error_state_flushes_each_once_in_order(stand: Stand) -> None:
    if stand.kind == QPT_XRC_RECV:
        return
    qp = stand.in_state(SQD)
    handle = stand.node.handle(stand.pd, stand.peer.gid)

    def post(number: int) -> None:
        wr = SendWR(number, WR_SEND, send_flags=0)
        if stand.kind == QPT_UD:
            wr.set_wr_ud(handle, 7, 0)
        qp.post_send(wr)
        if stand.kind != QPT_XRC_SEND:
            qp.post_recv(RecvWR(100 + number))

    for number in range(3):
        post(number)
    move(qp, ERR)
    post(3)
    post(4)
    found = [(wc.wr_id, wc.status, wc.qp_num) for wc in stand.cq.poll(100)]
    receives = [] if stand.kind == QPT_XRC_SEND else [(100 + number, FLUSH_ERR, qp.qp_num) for number in range(5)]
    assert [entry for entry in found if entry[0] < 100] == [(number, FLUSH_ERR, qp.qp_num) for number in range(5)]
    assert [entry for entry in found if entry[0] >= 100] == receives
    move(qp, ERR)
    move(qp, RESET)
    assert stand.cq.poll(100) == []


@each_type
def test_reset_drops_everything_without_a_word(stand: Stand) -> None:
    if stand.kind == QPT_XRC_RECV:
        return
    qp = stand.in_state(SQD)
    wr = SendWR(1, WR_SEND)
    if stand.kind == QPT_UD:
        wr.set_wr_ud(stand.node.handle(stand.pd, stand.peer.gid), 7, 0)
    qp.post_send(wr)
    if stand.kind != QPT_XRC_SEND:
        qp.post_recv(RecvWR(2))
    move(qp, RESET)
    connect(qp, None, stand.node, None, stand.values.items())
    move(qp, ERR)
    assert stand.cq.poll(100) == []


# -- which operations each type has (ibv_post_send(3), ibv_wr_post(3); IBA table 88)

SENDS = {WR_SEND, WR_SEND_IMM}
WRITES = {WR_WRITE, WR_WRITE_IMM}
WINDOWS = {WR_BIND, WR_LOCAL_INV}
ANSWERED = {WR_READ, WR_CAS, WR_FAA}
EVERY = SENDS | WRITES | WINDOWS | ANSWERED | {WR_SEND_INV, WR_FLUSH, WR_ATOMIC_WRITE}
#: SEND_WITH_INV on UC is in ibv_post_send(3) but has no opcode on the wire (IBA table 38): refused.
ALLOWED = {
    QPT_UD: SENDS, QPT_UC: SENDS | WRITES | WINDOWS, QPT_XRC_SEND: EVERY - {WR_FLUSH, WR_ATOMIC_WRITE}, QPT_RC: EVERY,
}  # fmt: skip


@pytest.mark.parametrize("kind", ALLOWED, ids=[TYPES[kind] for kind in ALLOWED])
def test_operations_of_each_type(kind: int) -> None:
    with Pair(kind=kind) as pair:
        end = pair.a
        move(end.qp, SQD)
        for opcode in range(18):
            wr = _request(end, min(opcode, 15))
            wr.opcode = opcode
            if opcode in ALLOWED[kind]:
                end.qp.post_send(wr)
                continue
            with pytest.raises(PyverbsRDMAError) as caught:
                end.qp.post_send(wr)
            assert caught.value.errno == errno.EINVAL, opcode
            assert TYPES[kind] in str(caught.value)


def _request(end: End, opcode: int) -> SendWR:
    """A work request that is right but for its opcode."""
    wr = end.wr(opcode, 0, 8 if opcode in (WR_CAS, WR_FAA, WR_ATOMIC_WRITE) else 0, 0)
    if opcode == WR_BIND:
        info = SimpleNamespace(mr=end.memory.mr, addr=end.memory.iova, length=8, mw_access_flags=4)
        wr.set_bind_wr(end.node.port.regions.allocate_window(end.pd, 2), info)
    elif opcode == WR_FLUSH:
        wr.set_wr_flush(end.peer.memory.key, end.peer.memory.iova, 8, 1, 0)
    return wr


def test_a_target_posts_nothing() -> None:
    with Pair(kind=QPT_XRC_SEND) as pair:
        for opcode in EVERY:
            with pytest.raises(PyverbsRDMAError, match="XRC_RECV") as caught:
                pair.b.qp.post_send(SendWR(0, opcode))
            assert caught.value.errno == errno.EINVAL


# -- what each type is made of (ibv_create_qp_ex(3))


@pytest.mark.parametrize("kind", [0, 1, 5, 6, 8, 11, 255, -1])
def test_other_types_are_not_supported(kind: int) -> None:
    with Sim() as sim:
        node = sim.node()
        with pytest.raises(PyverbsRDMAError) as caught:
            node.qp(node.pd(), node.cq(), kind=kind)
        assert caught.value.errno == errno.EOPNOTSUPP


@pytest.mark.parametrize("kind", [QPT_RC, QPT_UC, QPT_UD, QPT_XRC_SEND])
def test_a_domain_and_queues_are_needed(kind: int) -> None:
    with Sim() as sim:
        node = sim.node()
        pd, cq = node.pd(), node.cq()
        receives = None if kind == QPT_XRC_SEND else cq
        for missing in ("pd", "send_cq", "recv_cq"):
            if missing == "recv_cq" and receives is None:
                continue
            with pytest.raises(PyverbsRDMAError) as caught:
                QueuePair(
                    node.port, node, None if missing == "pd" else pd, None if missing == "send_cq" else cq,
                    None if missing == "recv_cq" else receives, None, CAP, kind, False,
                )  # fmt: skip
            assert caught.value.errno == errno.EINVAL
        pd.close()
        cq.close()


def test_an_xrc_target_needs_an_xrc_domain() -> None:
    with Sim() as sim:
        node = sim.node()
        with pytest.raises(PyverbsRDMAError, match="XRC domain") as caught:
            node.qp(None, None, kind=QPT_XRC_RECV)
        assert caught.value.errno == errno.EINVAL


@pytest.mark.parametrize("kind", [QPT_RC, QPT_UC, QPT_UD])
def test_an_xrc_srq_is_for_targets_only(kind: int) -> None:
    with Sim() as sim:
        node = sim.node()
        pd, cq = node.pd(), node.cq()
        srq = node.srq(pd, xrcd=node.xrcd(), cq=cq)
        with pytest.raises(PyverbsRDMAError) as caught:
            node.qp(pd, cq, kind=kind, srq=srq)
        assert caught.value.errno == errno.EINVAL


# -- SQD


@pytest.mark.parametrize("kind", ALLOWED, ids=[TYPES[kind] for kind in ALLOWED])
@pytest.mark.parametrize("busy", [False, True])
@pytest.mark.parametrize("notify", [0, 1])
def test_the_send_queue_is_drained(kind: int, busy: bool, notify: int) -> None:
    """SQ_DRAINED, once, if asked for: when what had started is done (ibv_modify_qp(3), IBA 10.3.1.5)."""
    with Pair(kind=kind, path_mtu=1) as pair:
        for _ in range(2):
            pair.b.receive(0x8000, 5000)
        if busy:
            pair.a.post(WR_SEND, 0, 2000)
            pair.a.node.device.progress()
        pair.a.qp.modify({"qp_state": SQD, "en_sqd_async_notify": notify}, 1 | 1 << 2)
        pair.a.post(WR_SEND, 0, 100, wr_id=9)
        pair.sim.run_for(1_000_000)
        assert [event for event, _ in pair.a.node.events()] == [5] * notify
        assert pair.a.done() == [(0, 0)] * busy
        move(pair.a.qp, RTS)
        pair.sim.settle()
        assert pair.a.done() == [(9, 0)]
        assert pair.a.node.events() == []


@pytest.mark.parametrize("kind", [QPT_RC, QPT_UC, QPT_XRC_SEND])
def test_another_path_while_it_is_drained(kind: int) -> None:
    """What is sent from then on takes it."""
    with Pair(kind=kind) as pair:
        pair.b.receive(0x8000, 100)
        move(pair.a.qp, SQD)
        pair.a.qp.modify({"qp_state": SQD, "ah_attr": AddressVector(pair.b.node.gid, traffic_class=0x20)}, 1 | 1 << 7)
        move(pair.a.qp, RTS)
        pair.a.post(WR_SEND, 0, 8)
        assert pair.a.status() == 0
        nowhere = pair.sim.node()
        move(pair.a.qp, SQD)
        pair.a.qp.modify({"qp_state": SQD, "ah_attr": AddressVector(nowhere.gid)}, 1 | 1 << 7)
        move(pair.a.qp, RTS)
        pair.a.post(WR_SEND, 0, 8)
        pair.sim.run_for(1_000_000)
        assert nowhere.stats()["frames_received"] > 0
