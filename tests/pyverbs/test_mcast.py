# SPDX-License-Identifier: MIT
"""Multicast: what is sent to a group reaches every QP that is attached to it (ibv_attach_mcast(3), IBA 10.5)."""

import errno
import os
from typing import Any

import pytest
from tests.pyverbs.services import GRH, QKEY, datagram, make, ud, ud_attr
from tests.pyverbs.world import RECV, Side, World, fill, pattern, refused, set_state

from softverbs import verbs
from softverbs.pyverbs import libibverbs_enums as e
from softverbs.pyverbs._grh import route_of
from softverbs.pyverbs.addr import AH, GID, AHAttr, GlobalRoute
from softverbs.pyverbs.cq import CQ
from softverbs.pyverbs.qp import QP

#: 239.1.2.3 and 239.1.2.4 as GIDs.
GROUP, OTHER = (GID(f"0000:0000:0000:0000:0000:ffff:ef01:020{last}") for last in (3, 4))
TO_ALL = 0xFFFFFF


def to_group(side: Side, group: GID = GROUP) -> AH:
    return AH(side.pd, attr=AHAttr(is_global=1, gr=GlobalRoute(group, hop_limit=4)))


class Members:
    """QPs of type UD of both sides, each with a CQ and receives."""

    def __init__(self, world: World, sides: str = "abb") -> None:
        self.world = world
        self.sides = [getattr(world, side) for side in sides]
        self.queues = [CQ(side.context, 64) for side in self.sides]
        self.qps = [ud(side, cq=cq) for side, cq in zip(self.sides, self.queues, strict=True)]
        for index, (side, qp) in enumerate(zip(self.sides, self.qps, strict=True)):
            side.post_recv(qp, 10, 11, length=1100, offset=10_000 * (index + 1))

    def send(self, index: int, group: GID = GROUP, **what: Any) -> None:
        side = self.sides[index]
        self.qps[index].post_send(datagram(side, to_group(side, group), TO_ALL, 1, **what))
        self.world.settle()

    def received(self) -> list[list[int]]:
        """The receives that each has taken."""
        found = [[wc.wr_id for wc in cq.poll(64)[1] if wc.opcode == e.IBV_WC_RECV] for cq in self.queues]
        return found


def test_every_member_receives_one_copy_and_nobody_else(world: World) -> None:
    members = Members(world, "abbb")
    for qp in members.qps[1:3]:
        qp.attach_mcast(GROUP)
    fill(world.a.memory, pattern(1000))
    members.send(0, length=1000)
    assert members.received() == [[], [10], [10], []]
    for start in (20_000, 30_000):
        assert world.b.memory[start + GRH : start + GRH + 1000] == pattern(1000)
        route = route_of(bytes(world.b.memory[start : start + GRH]))
        assert (route.peer, route.to) == (world.a.context.query_gid(1, 0).raw, GROUP.raw)


def test_the_completion_of_a_member(world: World) -> None:
    members = Members(world, "ab")
    members.qps[1].attach_mcast(GROUP)
    members.send(0, length=8, imm=77)
    (wc,) = members.queues[1].poll(9)[1]
    assert (wc.status, wc.byte_len, wc.imm_data) == (0, GRH + 8, 77)
    assert wc.wc_flags == e.IBV_WC_GRH | e.IBV_WC_WITH_IMM
    assert (wc.qp_num, wc.src_qp) == (members.qps[1].qp_num, members.qps[0].qp_num)
    (wc,) = members.queues[0].poll(9)[1]
    assert (wc.status, wc.opcode) == (0, e.IBV_WC_SEND)


def test_the_sender_receives_its_own_message_if_it_is_a_member(world: World) -> None:
    members = Members(world, "ab")
    for qp in members.qps:
        qp.attach_mcast(GROUP)
    members.send(0)
    assert members.received() == [[10], [10]]


def test_attached_twice_is_attached_once(world: World) -> None:
    members = Members(world, "ab")
    members.qps[1].attach_mcast(GROUP)
    members.qps[1].attach_mcast(GROUP)
    members.send(0)
    assert members.received() == [[], [10]]
    members.qps[1].detach_mcast(GROUP)
    members.send(0)
    assert members.received() == [[], []]


def test_groups_are_kept_apart(world: World) -> None:
    members = Members(world, "abb")
    members.qps[1].attach_mcast(GROUP)
    members.qps[2].attach_mcast(OTHER)
    members.send(0, OTHER)
    assert members.received() == [[], [], [10]]
    members.qps[1].attach_mcast(OTHER)
    members.send(0, OTHER)
    members.send(0, GROUP)
    assert members.received() == [[], [10, 11], [11]]


def test_members_of_one_side_leave_one_by_one(world: World) -> None:
    members = Members(world, "abb")
    for qp in members.qps[1:]:
        qp.attach_mcast(GROUP)
    members.qps[1].detach_mcast(GROUP)
    members.send(0)
    assert members.received() == [[], [], [10]]
    members.qps[2].close()
    members.send(0)
    assert members.received()[1] == []


def test_the_key_is_looked_at_for_each_member(world: World) -> None:
    members = Members(world, "abb")
    for qp in members.qps[1:]:
        qp.attach_mcast(GROUP)
    members.qps[1].modify(ud_attr(5), e.IBV_QP_QKEY)
    members.send(0, qkey=5)
    assert members.received() == [[], [10], []]
    members.send(0, qkey=QKEY)
    assert members.received() == [[], [], [10]]


def test_a_member_without_a_receive_does_not_hold_the_others(world: World) -> None:
    members = Members(world, "abb")
    bare = ud(world.b)
    for qp in (bare, *members.qps[1:]):
        qp.attach_mcast(GROUP)
    members.send(0)
    assert members.received() == [[], [10], [10]]


def test_a_member_that_is_not_ready_gets_nothing(world: World) -> None:
    members = Members(world, "abb")
    for qp in members.qps[1:]:
        qp.attach_mcast(GROUP)
    set_state(members.qps[1], e.IBV_QPS_RESET)
    members.send(0)
    assert members.received() == [[], [], [10]]


def test_a_datagram_to_a_group_needs_the_number_of_all(world: World) -> None:
    """IBA 10.5.2.2: QP number 0xFFFFFF."""
    members = Members(world, "ab")
    members.qps[1].attach_mcast(GROUP)
    side = members.sides[0]
    members.qps[0].post_send(datagram(side, to_group(side), members.qps[1], 1))
    world.settle()
    assert members.received() == [[], []]


def test_counters_count_each_member(world: World) -> None:
    sender = ud(world.a)
    takers = [make(world.b, e.IBV_QPT_UD) for _ in range(2)]
    counters = [world.b.count(qp, RECV) for qp in takers]
    for qp in takers:
        qp.to_rts(ud_attr())
        world.b.post_recv(qp, 10, 11)
        qp.attach_mcast(GROUP)
    handle = to_group(world.a)
    for wr_id in range(2):
        sender.post_send(datagram(world.a, handle, TO_ALL, wr_id))
    world.settle()
    assert [counter.read_pair() for counter in counters] == [(2, 0), (2, 0)]


# -- what is refused


@pytest.mark.parametrize("qp_type", [e.IBV_QPT_RC, e.IBV_QPT_UC], ids=["RC", "UC"])
def test_only_datagrams_have_groups(world: World, qp_type: int) -> None:
    assert "UD" in refused(errno.EINVAL, make(world.a, qp_type).attach_mcast, GROUP)


def test_what_is_no_group(world: World) -> None:
    qp = ud(world.a)
    for junk in (None, 5, "x" * 39, b"short", object(), world.a.context.query_gid(1, 0), GID()):
        with pytest.raises(Exception, match=r"roup|GID"):
            qp.attach_mcast(junk)
    for lid in (-1, 65536, "x", None):
        assert "lid" in refused(errno.EINVAL, qp.attach_mcast, GROUP, lid)
    assert "not attached" in refused(errno.EINVAL, qp.detach_mcast, GROUP)


@pytest.mark.parametrize("form", [GROUP, GROUP.gid, GROUP.raw, bytearray(GROUP.raw)])
def test_forms_of_a_group(world: World, form: Any) -> None:
    qp = ud(world.a)
    qp.attach_mcast(form)
    qp.detach_mcast(GROUP)


def test_the_functions_of_the_manual(world: World) -> None:
    qp = ud(world.b)
    assert verbs.ibv_attach_mcast(qp, GROUP, 0) == 0
    assert verbs.ibv_destroy_qp(qp) == errno.EBUSY, "ibv_create_qp(3): it fails while attached to a group"
    assert "multicast" in verbs.last_reason()
    assert verbs.ibv_detach_mcast(qp, GROUP, 0) == 0
    assert verbs.ibv_detach_mcast(qp, GROUP, 0) == errno.EINVAL
    assert verbs.ibv_attach_mcast(qp, None, 0) == errno.EINVAL
    assert verbs.ibv_destroy_qp(qp) == 0


def test_closing_detaches(world: World) -> None:
    members = Members(world, "ab")
    qp: QP = members.qps[1]
    qp.attach_mcast(GROUP)
    qp.close()
    assert "closed" in refused(errno.EINVAL, qp.attach_mcast, GROUP)
    again = ud(world.b)
    again.attach_mcast(GROUP)
    members.send(0)
    again.detach_mcast(GROUP)


# -- between processes


def test_between_processes_of_one_host(build: Any) -> None:
    """A group reaches the other process by real sockets on loopback."""
    ready, told = os.pipe(), os.pipe()

    def child() -> None:
        world = build("udp")
        qp = ud(world.a)
        world.a.post_recv(qp, 10, length=1000)
        qp.attach_mcast(GROUP)
        os.write(ready[1], b"r")
        found: list[Any] = []
        world.until(lambda: found.extend(world.a.poll()) or found)
        assert found[0].byte_len == GRH + 8
        assert world.a.memory[GRH : GRH + 8] == b"to you a"
        os.write(told[1], b"t")
        world.close()

    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            child()
            code = 0
        finally:
            os._exit(code)
    os.read(ready[0], 1)
    world: World = build("udp")
    sender = ud(world.a)
    fill(world.a.memory, b"to you all")
    sender.post_send(datagram(world.a, to_group(world.a), TO_ALL, 1))
    world.until(lambda: world.a.done() == [(1, 0)])
    assert os.read(told[0], 1) == b"t"
    assert os.waitpid(pid, 0)[1] == 0
