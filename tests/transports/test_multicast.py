# SPDX-License-Identifier: MIT
"""Multicast datagrams (IBA 10.5, ibv_attach_mcast(3)): every attached queue pair of every device gets one copy."""

import errno
import ipaddress
import itertools

import pytest
from tests.netsim import frames
from tests.netsim.pair import FLUSH_ERR, RECV, SEND, SIGNALED, SUCCESS, WR_SEND, WR_SEND_IMM, End
from tests.netsim.sim import (
    CAP,
    ERR,
    INIT,
    QPT_RC,
    QPT_UC,
    QPT_UD,
    QPT_XRC_SEND,
    RESET,
    RTR,
    RTS,
    Sim,
    connect,
    move,
)

from softverbs.core.base.errors import PyverbsRDMAError
from softverbs.core.transport.address import AddressVector

GRH = 40
EVERYBODY = 0xFFFFFF


def gid(address: str) -> bytes:
    found = ipaddress.ip_address(address)
    return found.packed if found.version == 6 else bytes(10) + b"\xff\xff" + found.packed


GROUP, OTHER, GROUP6 = gid("239.1.2.3"), gid("239.1.2.4"), gid("ff0e::77")


class Club:
    """Devices with UD queue pairs; each with receives."""

    def __init__(self, *members: int, ipv6: bool = False) -> None:
        """members: how many queue pairs each device has."""
        self.sim = Sim()
        self.wire: list[bytes] = []
        self.sim.tap = lambda _, frame: self.wire.append(frame) or [frame]  # type: ignore[func-returns-value]
        self.ends: list[End] = []
        self.group = GROUP6 if ipv6 else GROUP
        for index, count in enumerate(members):
            node = self.sim.node(seed=index, address=f"fd00::{index + 1}" if ipv6 else "")
            for _ in range(count):
                end = End(node, 65536, CAP, QPT_UD)
                connect(end.qp, None, node, None)
                self.ends.append(end)
        for end in self.ends:
            end.peer = self.ends[0]
            for number in range(8):
                end.receive(0x1000 + 0x400 * number, 0x400, wr_id=number)

    def __enter__(self) -> "Club":
        return self

    def __exit__(self, *exc: object) -> None:
        assert all(end.memory.untouched() for end in self.ends)
        self.sim.__exit__(*exc)

    def join(self, *indices: int, group: bytes | None = None) -> None:
        for index in indices:
            self.ends[index].qp.attach_mcast(group or self.group, 0)

    def send(self, index: int = 0, length: int = 100, group: bytes | None = None, **more: object) -> None:
        end = self.ends[index]
        handle = end.handle(group or self.group)
        end.post(WR_SEND, 0, length, **{"handle": handle, "qpn": EVERYBODY, "flags": 0, **more})  # type: ignore[arg-type]
        self.sim.settle()

    def got(self) -> list[list[int]]:
        """The receives that each has taken."""
        return [[wc.wr_id for wc in end.polled() if wc.opcode == 128] for end in self.ends]


@pytest.mark.parametrize("ipv6", [False, True])
def test_every_member_gets_one_copy(ipv6: bool) -> None:
    with Club(1, 2, 2, ipv6=ipv6) as club:
        club.join(1, 2, 4)
        club.ends[0].put(0, bytes(range(100)))
        club.send(imm=0)
        assert club.got() == [[], [0], [0], [], [0]]
        for index in (1, 2, 4):
            assert club.ends[index].at(0x1000 + GRH, 100) == bytes(range(100))
            header = club.ends[index].at(0x1000, GRH)
            assert header[24:] == club.group if ipv6 else header[36:] == club.group[12:]
            assert header[8:24] == club.ends[0].node.gid if ipv6 else header[32:36] == club.ends[0].node.gid[12:]
            assert club.ends[index].count(RECV) == (1, 0)
        assert len(club.wire) == 1
        assert frames.bth(club.wire[0]).qpn == EVERYBODY


def test_the_completions() -> None:
    with Club(1, 1) as club:
        club.join(1)
        a, b = club.ends
        a.post(WR_SEND_IMM, 0, 10, handle=a.handle(GROUP), qpn=EVERYBODY, imm=7, wr_id=3)
        club.sim.settle()
        assert a.done() == [(3, SUCCESS)]
        (wc,) = b.polled()
        assert (wc.status, wc.byte_len, wc.wc_flags, wc.src_qp, wc.imm_data) == (0, 50, 3, a.qp.qp_num, 7)
        assert wc.qp_num == b.qp.qp_num
        assert a.count(SEND) == (1, 0)


@pytest.mark.parametrize("which", list(itertools.product([False, True], repeat=3)))
def test_senders_that_are_members(which: tuple[bool, ...]) -> None:
    """A sender's own device gives its members a copy, the sender itself among them (IBA 10.5.2.2)."""
    with Club(2, 1) as club:
        club.join(*[index for index in range(3) if which[index]])
        club.send(0)
        assert club.got() == [[0] if member else [] for member in which]


def test_groups_are_kept_apart() -> None:
    with Club(1, 1, 1) as club:
        club.join(1, group=GROUP)
        club.join(2, group=OTHER)
        club.send(group=OTHER)
        assert club.got() == [[], [], [0]]
        club.join(2, group=GROUP)
        club.send(group=GROUP)
        assert club.got() == [[], [0], [1]]


def test_attached_twice_is_attached_once() -> None:
    with Club(1, 1) as club:
        club.join(1, 1)
        club.send()
        assert club.got() == [[], [0]]
        club.ends[1].qp.detach_mcast(GROUP, 0)
        club.send()
        assert club.got() == [[], []]
        with pytest.raises(PyverbsRDMAError) as caught:
            club.ends[1].qp.detach_mcast(GROUP, 0)
        assert caught.value.errno == errno.EINVAL


def test_the_last_that_leaves_ends_it() -> None:
    with Club(1, 3) as club:
        club.join(1, 2, 3)
        club.ends[1].qp.detach_mcast(GROUP, 0)
        club.send()
        assert club.got() == [[], [], [0], [0]]
        club.ends[2].qp.close()
        club.send()
        assert club.got() == [[], [], [], [1]]
        club.ends[3].qp.detach_mcast(GROUP, 0)
        before = club.ends[1].node.stats()["frames_received"]
        club.send()
        assert club.ends[1].node.stats()["frames_received"] == before


def test_each_member_looks_at_the_key() -> None:
    with Club(1, 3) as club:
        club.join(1, 2, 3)
        club.ends[2].qp.modify({"qp_state": RTS, "qkey": 5}, 1 | 1 << 6)
        club.send()
        assert club.got() == [[], [0], [], [0]]
        assert club.ends[1].node.stats()["dropped_qkey"] == 1
        club.send(qkey=5)
        assert club.got() == [[], [], [0], []]


def test_each_member_has_its_own_luck() -> None:
    """Without a receive, with one that is too short, in ERR, not yet in RTR: the others get theirs."""
    with Club(1, 5) as club:
        club.join(1, 2, 3, 4, 5)
        one, two, three, four, _ = (end.qp for end in club.ends[1:])
        move(one, RESET)
        connect(one, None, club.ends[1].node, None)
        move(two, RESET)
        connect(two, None, club.ends[2].node, None)
        club.ends[2].receive(0x1000, 60, wr_id=9)
        move(three, ERR)
        move(four, RESET)
        connect(four, None, club.ends[4].node, None, to=INIT)
        for end in club.ends:
            end.polled()
        club.send()
        assert club.ends[1].done() == []
        assert club.ends[2].done() == [(9, 1)]
        assert club.ends[3].done() == club.ends[4].done() == []
        assert club.ends[5].done() == [(0, SUCCESS)]
        assert (one.state, two.state) == (RTS, ERR)
        assert club.ends[1].node.stats()["dropped_no_receive"] == 1


def test_a_member_in_rtr() -> None:
    with Club(1, 1) as club:
        move(club.ends[1].qp, RESET)
        club.join(1)
        connect(club.ends[1].qp, None, club.ends[1].node, None, to=RTR)
        club.ends[1].receive(0x1000, 200, wr_id=4)
        club.send()
        assert club.got() == [[], [4]]


def test_what_is_posted_stays_after_leaving() -> None:
    with Club(1, 1) as club:
        club.join(1)
        club.ends[1].qp.detach_mcast(GROUP, 0)
        move(club.ends[1].qp, ERR)
        assert club.ends[1].done() == [(number, FLUSH_ERR) for number in range(8)]


@pytest.mark.parametrize("number", [0, 1, 0xFFFFFE, 0x1000010])
def test_a_datagram_to_a_group_is_for_everybody(number: int) -> None:
    """QP 0xFFFFFF (IBA 10.5.2.1)."""
    with Club(1, 1) as club:
        club.join(1)
        club.send(qpn=number & 0xFFFFFF)
        assert club.got() == [[], []]
        assert club.ends[1].node.stats()["dropped_group"] == 1


def test_a_unicast_datagram_to_everybody_is_for_nobody() -> None:
    with Club(1, 1) as club:
        club.join(1)
        club.ends[0].post(WR_SEND, 0, 8, handle=club.ends[0].handle(club.ends[1].node.gid), qpn=EVERYBODY)
        club.sim.settle()
        assert club.got() == [[], []]


@pytest.mark.parametrize("kind", [QPT_RC, QPT_UC, QPT_XRC_SEND])
def test_only_datagrams_have_groups(kind: int) -> None:
    with Sim() as sim:
        node = sim.node()
        end = End(node, 64, CAP, kind)
        with pytest.raises(PyverbsRDMAError) as caught:
            end.qp.attach_mcast(GROUP, 0)
        assert caught.value.errno == errno.EINVAL


@pytest.mark.parametrize("group", [gid("10.0.0.1"), gid("fd00::1"), bytes(16), b"", gid("239.1.1.1")[:15]])
def test_what_is_no_group(group: bytes) -> None:
    with Club(1) as club:
        with pytest.raises(PyverbsRDMAError) as caught:
            club.ends[0].qp.attach_mcast(group, 0)
        assert caught.value.errno == errno.EINVAL


def test_a_group_of_the_other_ip_version() -> None:
    with Club(1) as club:
        with pytest.raises(PyverbsRDMAError) as caught:
            club.ends[0].qp.attach_mcast(GROUP6, 0)
        assert caught.value.errno == errno.EINVAL


def test_a_connection_does_not_lead_to_a_group() -> None:
    with Sim() as sim:
        node = sim.node()
        end = End(node, 64)
        with pytest.raises(PyverbsRDMAError) as caught:
            connect(end.qp, end.qp, node, node, [("ah_attr", AddressVector(GROUP))])  # type: ignore[list-item]
        assert caught.value.errno == errno.EINVAL


def test_members_of_a_shared_queue() -> None:
    """Each copy takes one."""
    with Club(1, 0, 1) as club:
        node = club.sim.nodes[1]
        pd, cq = node.pd(), node.cq()
        srq = node.srq(pd)
        memory = node.region(pd, 65536)
        for _ in range(2):
            end = End(node, 0, CAP, QPT_UD, pd=pd, cq=cq, memory=memory, srq=srq)
            connect(end.qp, None, node, None)
            end.qp.attach_mcast(GROUP, 0)
            end.receive(0x400 * srq.ring.count(), 0x400, wr_id=srq.ring.count())
        club.send()
        assert sorted((wc.wr_id, wc.status) for wc in end.polled()) == [(0, SUCCESS), (1, SUCCESS)]
        assert srq.ring.count() == 0


def test_a_device_that_sends_much_to_a_group() -> None:
    with Club(2, 2) as club:
        club.join(0, 1, 2, 3)
        for number in range(8):
            club.ends[0].put(0, bytes([number]) * 64)
            club.send(0, 64, flags=SIGNALED)
        for end in club.ends:
            assert [end.at(0x1000 + 0x400 * number + GRH, 1)[0] for number in range(8)] == list(range(8))
        assert [sorted(indices) for indices in club.got()] == [list(range(8))] * 4
        assert club.ends[0].count(SEND) == (8, 0)
