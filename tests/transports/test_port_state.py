# SPDX-License-Identifier: MIT
"""A port that is taken down and up (IBA 11.6.3.3): its events, and what becomes of the traffic of every type."""

import pytest
from tests.netsim.pair import (
    FLUSH_ERR,
    RECV,
    RETRY_EXC_ERR,
    SEND,
    SUCCESS,
    WR_LOCAL_INV,
    WR_SEND,
    WR_WRITE,
    End,
    Pair,
)
from tests.netsim.sim import (
    CAP,
    ERR,
    MS,
    QPT_RC,
    QPT_UC,
    QPT_UD,
    QPT_XRC_SEND,
    RTS,
    TIMEOUT_NS,
    connect,
    move,
)

PORT_ACTIVE, PORT_ERR = 9, 10
TYPES = {QPT_RC: "RC", QPT_UC: "UC", QPT_UD: "UD", QPT_XRC_SEND: "XRC"}
each_type = pytest.mark.parametrize("kind", TYPES, ids=TYPES.values())
RELIABLE = (QPT_RC, QPT_XRC_SEND)


def test_events() -> None:
    """One for each change, and none for what is so already."""
    with Pair() as pair:
        port = pair.a.node.port
        assert port.up
        for up in (True, False, False, True, True, False):
            port.set_state(up)
            assert port.up == up
        events = pair.a.node.events()
        assert [event for event, _ in events] == [PORT_ERR, PORT_ACTIVE, PORT_ERR]
        assert pair.b.node.events() == []


@each_type
@pytest.mark.parametrize("down", ["sender", "receiver"])
def test_a_short_break(kind: int, down: str) -> None:
    """Reliable connections get over it; unreliable messages are lost, and nobody is in error."""
    with Pair(kind=kind, shared=kind == QPT_RC) as pair:
        node = pair.a.node if down == "sender" else pair.b.node
        for number in range(4):
            pair.b.receive(0x8000 + 0x800 * number, 0x800, wr_id=number)
        node.port.set_state(False)
        pair.a.put(0, b"x" * 1500)
        pair.a.post(WR_SEND, 0, 1500, wr_id=1)
        pair.sim.run_for(2 * TIMEOUT_NS)
        assert pair.b.polled() == []
        assert pair.a.done() == ([] if kind in RELIABLE else [(1, SUCCESS)])
        assert pair.wire == [] or down == "receiver"
        node.port.set_state(True)
        pair.sim.run_for(20 * TIMEOUT_NS)
        if kind in RELIABLE:
            assert pair.a.done() == [(1, SUCCESS)]
        pair.a.post(WR_SEND, 0, 1500, wr_id=2)
        pair.sim.run_for(20 * TIMEOUT_NS)
        assert pair.a.done() == [(2, SUCCESS)]
        assert pair.b.done() == [(number, SUCCESS) for number in range(2 if kind in RELIABLE else 1)]
        assert (pair.a.qp.state, pair.b.qp.state) == (RTS, RTS)
        assert pair.a.count(SEND) == (2, 0)
        assert pair.b.count(RECV) == ((2 if kind in RELIABLE else 1), 0)


@each_type
def test_a_long_break(kind: int) -> None:
    """Longer than the retries of a reliable connection: this ends it."""
    with Pair(kind=kind, retry_cnt=2) as pair:
        pair.b.receive(0x8000, 0x800)
        pair.b.node.port.set_state(False)
        pair.a.post(WR_SEND, 0, 100, wr_id=1)
        pair.a.post(WR_SEND, 0, 100, wr_id=2)
        pair.sim.run_for(60 * TIMEOUT_NS)
        if kind in RELIABLE:
            assert pair.a.done() == [(1, RETRY_EXC_ERR), (2, FLUSH_ERR)]
            assert pair.a.count(SEND) == (0, 2)
        else:
            assert pair.a.done() == [(1, SUCCESS), (2, SUCCESS)]
        assert pair.b.done() == []


def test_what_arrives_is_not_looked_at_and_counted() -> None:
    with Pair(kind=QPT_UD) as pair:
        pair.b.receive(0x8000, 0x800)
        pair.b.node.port.set_state(False)
        for _ in range(3):
            pair.a.post(WR_SEND, 0, 8)
        pair.sim.settle()
        stats = pair.b.node.stats()
        assert stats["dropped_port_down"] == 3
        assert sum(count for name, count in stats.items() if name.startswith("dropped_")) == 3


@each_type
def test_the_verbs_go_on(kind: int) -> None:
    """Posting, moving, flushing, binding: none of them needs the port."""
    with Pair(kind=kind) as pair:
        node = pair.a.node
        node.port.set_state(False)
        if kind != QPT_UD:
            pair.a.open_window(0, 64)
            pair.a.post(WR_LOCAL_INV, imm=0xABCDEF00)
            found = pair.a.wait()
            assert found[0].status != SUCCESS
        move(pair.a.qp, ERR)
        pair.a.polled()
        pair.a.post(WR_SEND, 0, 8, flags=0, wr_id=9)
        assert pair.a.done()[-1] == (9, FLUSH_ERR)
        end = End(node, 64, CAP, QPT_UD)
        connect(end.qp, None, node, None)
        end.qp.close()


def test_messages_between_queue_pairs_of_one_port_need_it_too() -> None:
    with Pair(kind=QPT_UD) as pair:
        node = pair.a.node
        other = End(node, 4096, CAP, QPT_UD)
        connect(other.qp, None, node, None)
        for _ in range(2):
            other.receive(0, 200)
        for up in (False, True):
            node.port.set_state(up)
            pair.a.post(WR_SEND, 0, 8, handle=pair.a.handle(node.gid), qpn=other.qp.qp_num)
            pair.sim.settle()
            assert [status for _, status in pair.a.done()] == [SUCCESS]
            assert [status for _, status in other.done()] == ([SUCCESS] if up else [])


def test_members_of_a_group_hear_nothing() -> None:
    group = bytes(10) + b"\xff\xff\xef\1\1\1"
    with Pair(kind=QPT_UD) as pair:
        pair.b.qp.attach_mcast(group, 0)
        for number in range(2):
            pair.b.receive(0x8000, 200, wr_id=number)
        for up in (False, True):
            pair.b.node.port.set_state(up)
            pair.a.post(WR_SEND, 0, 8, handle=pair.a.handle(group), qpn=0xFFFFFF)
            pair.sim.settle()
            assert pair.b.done() == ([(0, SUCCESS)] if up else [])


def test_a_write_in_the_middle_of_which_the_port_goes_down() -> None:
    """A reliable connection goes on where it was; each byte is right."""
    with Pair(1 << 20, path_mtu=1, retry_cnt=7) as pair:
        pair.a.put(0, bytes(range(256)) * 2048)
        down = 0

        def rule(_: bytes) -> list[bytes] | None:
            nonlocal down
            down += 1
            if down == 500:
                pair.sim.after(0, lambda: pair.a.node.port.set_state(False))
                pair.sim.after(50 * MS, lambda: pair.a.node.port.set_state(True))
            return None

        pair.rule = rule
        pair.a.post(WR_WRITE, 0, 1 << 19, 0)
        assert pair.a.status() == SUCCESS
        assert pair.b.at(0, 1 << 19) == pair.a.at(0, 1 << 19)
        assert [event for event, _ in pair.a.node.events()] in ([PORT_ERR, PORT_ACTIVE], [])
