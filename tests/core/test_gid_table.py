# SPDX-License-Identifier: MIT
"""The GID table: what it has in each layout, and which of its entries frames can leave from."""

import random

import pytest
from tests.netsim.pair import SUCCESS, WR_SEND, WR_WRITE, End
from tests.netsim.sim import CAP, QPT_RC, QPT_UC, QPT_UD, Node, Sim, connect

from softverbs.core.base.errors import PyverbsRDMAError
from softverbs.core.base.limits import Options
from softverbs.core.transport.address import AddressVector
from softverbs.core.wire.gid import ROCE_V1, ROCE_V2, GidEntry, GidTable, address_of, behind_link_local, link_local_of
from softverbs.links.base import gid_of

A, B, C = (gid_of(f"10.0.0.{number}") for number in (1, 2, 3))
SIX, LINK_LOCAL = gid_of("fd00::1"), gid_of("fe80::1")
OF_A = gid_of("fe80::aff:fe00:1")
GRH = 40


# -- what is in it


@pytest.mark.parametrize(
    ("layout", "addresses", "homes"),
    [
        ("repeat", [A], [0, 0, 0, 0]),
        ("repeat", [A, SIX], [0, 1, 0, 1]),
        ("repeat", [A, B, C], [0, 1, 2, 0]),
        ("repeat", [A, B, C, SIX, LINK_LOCAL], [0, 1, 2, 3, 4]),
        ("single", [A], [0]),
        ("single", [A, SIX], [0, 1]),
    ],
)
def test_every_address_is_at_its_own_index_and_the_rest_repeats_them(
    layout: str, addresses: list[bytes], homes: list[int]
) -> None:
    assert GidTable(addresses, layout).entries == [GidEntry(addresses[home], ROCE_V2, home) for home in homes]


@pytest.mark.parametrize(
    ("addresses", "gids"),
    [
        ([A], [(OF_A, 0), (A, 0)]),
        ([A, B], [(OF_A, 0), (A, 0), (B, 1)]),
        ([SIX, A], [(OF_A, 1), (SIX, 0), (A, 1)]),
        ([A, LINK_LOCAL], [(LINK_LOCAL, 1), (A, 0)]),
        ([SIX], [(SIX, 0)]),
    ],
)
def test_the_table_of_mlx5_has_pairs_and_begins_with_link_local(
    addresses: list[bytes], gids: list[tuple[bytes, int]]
) -> None:
    expected = [GidEntry(gid, kind, home) for gid, home in gids for kind in (ROCE_V1, ROCE_V2)]
    assert GidTable(addresses, "mlx5").entries == expected


def test_a_link_local_gid_stands_for_one_address() -> None:
    """fe80::/64 and the EUI-64 of an Ethernet address that is made of the IPv4 address (RFC 4291, appendix A)."""
    assert link_local_of(A) == OF_A
    draw = random.Random(5)
    seen = {}
    for _ in range(1000):
        gid = gid_of(str(address_of(A[:12] + draw.randbytes(4))))
        found = link_local_of(gid)
        assert behind_link_local(found) == gid
        assert seen.setdefault(found, gid) == gid
    for other in (A, SIX, LINK_LOCAL, gid_of("fe80::100:aff:fe00:1"), gid_of("fe80:0:0:1:0:aff:fe00:1")):
        assert behind_link_local(other) is None


@pytest.mark.parametrize("layout", ["repeat", "single", "mlx5"])
def test_entries_are_found_where_frames_can_leave_from(layout: str) -> None:
    addresses = [SIX, A, B]
    table = GidTable(addresses, layout)
    for home, gid in enumerate(addresses):
        for index in (table.index_of(gid), table.index_of_address(home)):
            assert index is not None and table.entries[index] == GidEntry(gid, ROCE_V2, home)
    assert table.index_of(C) is None
    found = table.first_for(C)
    assert found is not None and table.entries[found].gid == A
    assert GidTable([A], layout).first_for(SIX) in (None, 1)


def test_an_unknown_layout_is_refused() -> None:
    with pytest.raises(Exception, match="gid_table='mlx4': one of repeat, single, mlx5"):
        Options(gid_table="mlx4")


# -- which of them can be used


def pair_of(a: Node, b: Node, kind: int, i: int, j: int) -> tuple[End, End]:
    """A connection between entry ``i`` of a port's table and entry ``j`` of another's."""
    ends = End(a, 4096, CAP, kind), End(b, 4096, CAP, kind)
    tables = [node.port.gid_table.entries for node in (b, a)]
    for end, peer, own, table, other in zip(ends, ends[::-1], (i, j), tables, (j, i), strict=True):
        end.peer = peer
        vector = AddressVector(table[other].gid, sgid_index=own)
        connect(end.qp, peer.qp, end.node, peer.node, [("ah_attr", vector)])  # type: ignore[list-item]
    return ends


def exchange(a: End, b: End) -> None:
    a.put(0, b"12345678")
    b.receive(0x100, 8)
    a.post(WR_SEND, 0, 8)
    a.post(WR_WRITE, 0, 8, 0x200)
    assert [wc.status for wc in a.wait(2)] == [SUCCESS] * 2
    a.node.sim.settle()
    assert b.done() == [(0, SUCCESS)] and b.at(0x100, 8) == b.at(0x200, 8) == b"12345678"


@pytest.mark.parametrize("devices", [1, 2])
@pytest.mark.parametrize("kind", [QPT_RC, QPT_UC])
@pytest.mark.parametrize(("i", "j"), [(0, 0), (1, 1), (3, 3), (0, 1), (1, 3), (2, 0)])
def test_any_two_indexes_connect(devices: int, kind: int, i: int, j: int) -> None:
    with Sim() as sim:
        a = sim.node(seed=1)
        b = a if devices == 1 else sim.node(seed=2)
        exchange(*pair_of(a, b, kind, i, j))


@pytest.mark.parametrize("devices", [1, 2])
@pytest.mark.parametrize("index", [1, 3])
@pytest.mark.parametrize("kind", [QPT_RC, QPT_UC])
def test_the_entries_of_roce_v2_of_mlx5_connect(devices: int, index: int, kind: int) -> None:
    with Sim() as sim:
        options = Options(gid_table="mlx5")
        a = sim.node(seed=1, options=options)
        b = a if devices == 1 else sim.node(seed=2, options=options)
        ends = pair_of(a, b, kind, index, index)
        exchange(*ends)
        vector = ends[0].qp.query()["ah_attr"]
        assert (vector.sgid_index, vector.dgid) == (index, b.port.gid_table.entries[index].gid), "as it was given"


def test_a_device_with_another_table_is_reached_by_its_address() -> None:
    with Sim() as sim:
        a, b = sim.node(seed=1, options=Options(gid_table="mlx5")), sim.node(seed=2)
        exchange(*pair_of(a, b, QPT_RC, 3, 1))


@pytest.mark.parametrize(
    ("index", "dgid", "words"),
    [
        (0, None, "sgid_index=0 is a GID of RoCE v1, which this device does not send; of RoCE v2: 1, 3"),
        (2, None, "sgid_index=2 is a GID of RoCE v1"),
        (4, None, "sgid_index=4: the GID table has 4 entries"),
        (1, A, r"dgid 10.0.0.1: the GID at sgid_index 1, fe80::.*, reaches link-local GIDs"),
        (1, LINK_LOCAL, "dgid fe80::1: the GID at sgid_index 1"),
        (3, OF_A, r"dgid fe80::aff:fe00:1 and the GID at sgid_index 3, 10\..* are not of one IP version"),
    ],
)
def test_what_an_entry_cannot_reach_is_refused_in_words(index: int, dgid: bytes | None, words: str) -> None:
    with Sim() as sim:
        node = sim.node(seed=1, options=Options(gid_table="mlx5"))
        pd = node.pd()
        with pytest.raises(PyverbsRDMAError, match=words) as caught:
            node.handle(pd, dgid or node.port.gid_table.entries[index % 4].gid, sgid_index=index)
        assert caught.value.errno == 22
        pd.close()


@pytest.mark.parametrize("devices", [1, 2])
def test_a_datagram_of_a_link_local_gid_shows_the_addresses_behind_it(devices: int) -> None:
    """It travels as IPv4: the header in front of it says so, and leads back."""
    with Sim() as sim:
        options = Options(gid_table="mlx5")
        a = sim.node(seed=1, options=options)
        b = a if devices == 1 else sim.node(seed=2, options=options)
        here, there = End(a, 4096, CAP, QPT_UD), End(b, 4096, CAP, QPT_UD)
        here.peer, there.peer = there, here
        for end in (here, there):
            connect(end.qp, None, end.node, None)
            end.receive(0x100, 200, wr_id=7)
        here.post(WR_SEND, 0, 8, handle=a.handle(here.pd, link_local_of(b.gid), sgid_index=1))
        sim.settle()
        assert (7, SUCCESS) in there.done()
        header = there.at(0x100, GRH)
        assert (header[32:36], header[36:40]) == (a.gid[12:], b.gid[12:])
        back = b.port.gid_table.index_of(bytes(10) + b"\xff\xff" + header[36:40])
        assert back == 3
        there.post(WR_SEND, 0, 8, handle=b.handle(there.pd, a.gid, sgid_index=back))
        sim.settle()
        assert (7, SUCCESS) in here.done()
