# SPDX-License-Identifier: MIT
"""Ports with several GIDs, of both IP versions: which one a frame leaves from, and which one it came to."""

import ipaddress
import struct

import pytest
from tests.netsim.pair import RETRY_EXC_ERR, SUCCESS, WR_SEND, WR_WRITE, End
from tests.netsim.sim import CAP, QPT_RC, QPT_UC, QPT_UD, QPT_XRC_RECV, QPT_XRC_SEND, RTS, Sim, connect

from softverbs.core.base.errors import PyverbsRDMAError
from softverbs.core.transport.address import AddressVector

OURS = ["10.0.0.5", "fd00::5", "10.0.0.6", "fd00::6"]
THEIRS = ["10.0.0.7", "fd00::7", "10.0.0.8"]
GRH = 40


class World:
    def __init__(self) -> None:
        self.sim = Sim()
        self.a, self.b = self.sim.node(seed=1, address=OURS), self.sim.node(seed=2, address=THEIRS)

    def __enter__(self) -> "World":
        return self

    def __exit__(self, *exc: object) -> None:
        self.sim.__exit__(*exc)


def address(gid: bytes) -> str:
    found = ipaddress.IPv6Address(gid)
    return str(found.ipv4_mapped or found)


def pairs() -> list[tuple[int, int]]:
    """Indices of GIDs of one IP version."""
    return [(i, j) for i in range(4) for j in range(3) if (":" in OURS[i]) == (":" in THEIRS[j])]


def linked(world: World, kind: int, i: int, j: int) -> tuple[End, End]:
    """A connection between these GIDs."""
    a = End(world.a, 4096, CAP, kind)
    if kind == QPT_XRC_SEND:
        pd, cq, xrcd = world.b.pd(), world.b.cq(), world.b.xrcd()
        b = End(world.b, 4096, CAP, QPT_XRC_RECV, pd=pd, cq=cq, srq=world.b.srq(pd, xrcd=xrcd, cq=cq), xrcd=xrcd)
    else:
        b = End(world.b, 4096, CAP, kind)
    a.peer, b.peer = b, a
    for end, own, other in ((a, i, world.b.link.gids[j]), (b, j, world.a.link.gids[i])):
        vector = AddressVector(other, sgid_index=own)
        connect(end.qp, end.peer.qp, end.node, end.peer.node, [("ah_attr", vector), ("retry_cnt", 1)])  # type: ignore[list-item]
    return a, b


@pytest.mark.parametrize(("i", "j"), pairs())
@pytest.mark.parametrize("kind", [QPT_RC, QPT_UC, QPT_XRC_SEND])
def test_a_connection_between_any_two(kind: int, i: int, j: int) -> None:
    with World() as world:
        a, b = linked(world, kind, i, j)
        a.put(0, b"12345678")
        b.receive(0x100, 8)
        a.post(WR_SEND, 0, 8)
        a.post(WR_WRITE, 0, 8, 0x200)
        assert [wc.status for wc in a.wait(2)] == [SUCCESS] * 2
        world.sim.settle()
        assert b.done() == [(0, SUCCESS)] and b.at(0x100, 8) == b.at(0x200, 8) == b"12345678"


@pytest.mark.parametrize("kind", [QPT_RC, QPT_UC, QPT_XRC_SEND])
@pytest.mark.parametrize("wrong", ["source", "destination"])
def test_the_other_gids_of_a_peer_are_strangers(kind: int, wrong: str) -> None:
    """A connection is between two GIDs; frames of and to others are not its own (annex A17.4.5)."""
    with World() as world:
        a, b = linked(world, kind, 0, 0)
        b.receive(0x100, 8)
        a.qp.modify({"qp_state": 4}, 1)
        vector = AddressVector(world.b.link.gids[2 if wrong == "destination" else 0], 2 if wrong == "source" else 0)
        a.qp.modify({"qp_state": 4, "ah_attr": vector}, 1 | 1 << 7)
        a.qp.modify({"qp_state": RTS}, 1)
        a.post(WR_SEND, 0, 8)
        assert a.status() == (SUCCESS if kind == QPT_UC else RETRY_EXC_ERR)
        world.sim.settle()
        assert b.done() == [] and world.b.stats()["dropped_source"] >= 1


@pytest.mark.parametrize(("i", "j"), pairs())
def test_a_datagram_tells_both_addresses(i: int, j: int) -> None:
    """In the GRH; an address handle made from it leads back."""
    with World() as world:
        a, b = End(world.a, 4096, CAP, QPT_UD), End(world.b, 4096, CAP, QPT_UD)
        a.peer, b.peer = b, a
        for end in (a, b):
            connect(end.qp, None, end.node, None)
            end.receive(0x100, 200, wr_id=7)
        handle = world.a.handle(a.pd, world.b.link.gids[j], sgid_index=i)
        a.post(WR_SEND, 0, 8, handle=handle)
        world.sim.settle()
        assert b.done() == [(7, SUCCESS)]
        header = b.at(0x100, GRH)
        if ":" in OURS[i]:
            source, dest = header[8:24], header[24:40]
        else:
            source, dest = (bytes(10) + b"\xff\xff" + part for part in (header[32:36], header[36:40]))
            assert sum(struct.unpack(">10H", header[20:])) % 0xFFFF == 0
        assert (address(source), address(dest)) == (OURS[i], THEIRS[j])
        back = world.b.handle(b.pd, source, sgid_index=world.b.link.gids.index(dest))
        b.post(WR_SEND, 0, 8, handle=back)
        world.sim.settle()
        assert (7, SUCCESS) in a.done()


@pytest.mark.parametrize(
    "vector",
    [
        {"sgid_index": 4}, {"sgid_index": -1}, {"sgid_index": 1}, {"port_num": 0}, {"port_num": 2},
        {"is_global": False},
    ],
)  # fmt: skip
def test_vectors_that_lead_nowhere(vector: dict[str, int]) -> None:
    with World() as world:
        pd = world.a.pd()
        with pytest.raises(PyverbsRDMAError) as caught:
            world.a.handle(pd, world.b.link.gids[0], **vector)
        assert caught.value.errno == 22
        pd.close()


def test_groups_are_joined_with_every_gid_of_their_ip_version() -> None:
    """One copy, though two of the port's GIDs are members."""
    for group, senders in (("239.9.9.9", (0, 2)), ("ff0e::99", (1, 3))):
        packed = ipaddress.ip_address(group).packed
        gid = packed if len(packed) == 16 else bytes(10) + b"\xff\xff" + packed
        with World() as world:
            b = End(world.b, 4096, CAP, QPT_UD)
            connect(b.qp, None, world.b, None)
            b.qp.attach_mcast(gid, 0)
            for number in range(4):
                b.receive(0x100 * number, 200, wr_id=number)
            for count, index in enumerate(senders):
                a = End(world.a, 4096, CAP, QPT_UD)
                a.peer = b
                connect(a.qp, None, world.a, None)
                a.post(WR_SEND, 0, 8, handle=world.a.handle(a.pd, gid, sgid_index=index), qpn=0xFFFFFF)
                world.sim.settle()
                assert b.done() == [(count, SUCCESS)]


@pytest.mark.parametrize(("i", "j"), [(0, 2), (1, 3), (2, 0)])
@pytest.mark.parametrize("kind", [QPT_RC, QPT_UC])
def test_between_two_gids_of_one_port(kind: int, i: int, j: int) -> None:
    with World() as world:
        gids = world.a.link.gids
        a, b = End(world.a, 4096, CAP, kind), End(world.a, 4096, CAP, kind)
        a.peer, b.peer = b, a
        for end, own, other in ((a, i, j), (b, j, i)):
            vector = AddressVector(gids[other], sgid_index=own)
            connect(end.qp, end.peer.qp, world.a, world.a, [("ah_attr", vector)])  # type: ignore[list-item]
        b.receive(0x100, 8)
        a.post(WR_SEND, 0, 8)
        assert a.status() == SUCCESS
        world.sim.settle()
        assert b.done() == [(0, SUCCESS)]
