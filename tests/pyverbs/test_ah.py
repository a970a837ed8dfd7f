# SPDX-License-Identifier: MIT
"""Address handles: from attributes, and from a datagram that has come (ibv_create_ah(3), ibv_create_ah_from_wc(3))."""

import errno
import sys
from typing import Any

import pytest
from tests.pyverbs.services import GRH, ah, ah_attr, datagram, ud
from tests.pyverbs.world import World, refused

from softverbs import verbs
from softverbs.links.inproc import Network
from softverbs.pyverbs import addr
from softverbs.pyverbs import libibverbs_enums as e
from softverbs.pyverbs._grh import route_of
from softverbs.pyverbs.addr import AH, GID, AHAttr, GlobalRoute
from softverbs.pyverbs.cq import WC
from softverbs.pyverbs.device import Context
from softverbs.pyverbs.pd import PD
from softverbs.pyverbs.pyverbs_error import PyverbsUserError

GROUP = GID("0000:0000:0000:0000:0000:ffff:e001:0203")
LINK_LOCAL_GROUP = GID("ff02:0000:0000:0000:0000:0000:0000:0001")


def ipv4_header(source: bytes, to: bytes, ttl: int = 9, tos: int = 0x28, right: bool = True) -> bytes:
    """20 bytes of an IPv4 header with a right checksum, or a wrong one."""
    header = bytearray(bytes((0x45, tos, 0, 60, 0, 0, 0x40, 0, ttl, 17, 0, 0)) + source + to)
    total = sum(int.from_bytes(header[at : at + 2], "big") for at in range(0, 20, 2))
    checksum = 0xFFFF - ((total & 0xFFFF) + (total >> 16))
    header[10:12] = (checksum if right else checksum ^ 1).to_bytes(2, "big")
    return bytes(header)


def ipv6_header(source: bytes, to: bytes, traffic_class: int = 0x44, flow: int = 0x12345, hops: int = 7) -> bytes:
    word = 6 << 28 | traffic_class << 20 | flow
    return word.to_bytes(4, "big") + (60).to_bytes(2, "big") + bytes((17, hops)) + source + to


def mapped(*address: int) -> bytes:
    return bytes(10) + b"\xff\xff" + bytes(address)


@pytest.fixture
def one(build: Any) -> World:
    made: World = build()
    return made


# -- from attributes


def test_a_handle_is_made_used_and_closed(one: World) -> None:
    with ah(one.a) as handle:
        assert handle.context is one.a.context
        assert handle.handle > 0
    handle.close()
    assert "closed" in refused(errno.EINVAL, lambda: handle.handle)


def test_closing_the_domain_closes_the_handle(one: World) -> None:
    pd = PD(one.a.context)
    handle = AH(pd, attr=ah_attr(one.b))
    assert verbs.ibv_dealloc_pd(pd) == errno.EBUSY
    pd.close()
    assert handle.context is None


def test_a_handle_keeps_its_domain(one: World) -> None:
    handle = AH(PD(one.a.context), attr=ah_attr(one.b))
    assert handle.context is one.a.context
    handle.close()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"is_global": 0}, "GRH"),
        ({"port_num": 2}, "port_num"),
        ({"sgid_index": 7}, "sgid_index"),
        ({"dgid": "fe80:0000:0000:0000:0000:0000:0000:0001"}, "IP version"),
    ],
)
def test_what_leads_nowhere_is_refused_in_words(one: World, change: dict[str, Any], words: str) -> None:
    attr = ah_attr(one.b)
    for name, value in change.items():
        setattr(attr, name, value)
    reason = refused(errno.EINVAL, lambda: AH(one.a.pd, attr=attr))
    assert reason.startswith("Failed to create AH")
    assert words in reason


def test_arguments_that_are_none(one: World) -> None:
    pd = one.a.pd
    for act in (
        lambda: AH(pd),
        lambda: AH(pd, attr=ah_attr(one.b), port_num=1),
        lambda: AH(pd, wc=WC()),
        lambda: AH(pd, colour="red"),
    ):
        with pytest.raises(PyverbsUserError):
            act()
    for junk in (None, 5, "x", object(), GlobalRoute()):
        assert "AHAttr is expected" in refused(errno.EINVAL, lambda j=junk: AH(pd, attr=j))
        assert "PD is expected" in refused(errno.EINVAL, lambda j=junk: AH(j, attr=ah_attr(one.b)))
        assert "WC is expected" in refused(errno.EINVAL, lambda j=junk: AH(pd, wc=j, grh=0, port_num=1))
    closed = PD(one.a.context)
    closed.close()
    assert "closed" in refused(errno.EINVAL, lambda: AH(closed, attr=ah_attr(one.b)))


def test_no_more_handles_than_the_device_has(build: Any) -> None:
    side = build(max_ah=2).a
    kept = [ah(side), ah(side)]
    assert "address handle" in refused(errno.ENOMEM, lambda: ah(side))
    kept.pop().close()
    kept.append(ah(side))
    assert len(kept) == 2


# -- from a datagram


def test_the_way_back_of_a_datagram(world: World) -> None:
    """What a server does: it answers whoever has written, with nothing but the completion and the buffer."""
    client, server = ud(world.a), ud(world.b)
    world.b.post_recv(server, 5)
    world.a.memory[:8] = b"question"
    client.post_send(datagram(world.a, ah(world.a), server))
    world.settle()
    (wc,) = world.b.poll() if world.a is not world.b else [wc for wc in world.b.poll() if wc.wr_id == 5]
    back = AH(world.b.pd, wc=wc, grh=world.b.mr.buf, port_num=1)
    world.a.done()
    world.a.post_recv(client, 6, offset=4096)
    world.b.memory[2048:2054] = b"answer"
    server.post_send(datagram(world.b, back, wc.src_qp, 7, 6, 2048))
    world.settle()
    assert (6, e.IBV_WC_SUCCESS) in world.a.done()
    assert world.a.memory[4096 + GRH : 4096 + GRH + 6] == b"answer"


def test_the_attributes_of_the_way_back(one: World) -> None:
    client, server = ud(one.a), ud(one.b)
    one.b.post_recv(server, 5)
    client.post_send(datagram(one.a, ah(one.a), server))
    one.settle()
    (wc,) = one.b.poll()
    attr = AHAttr()
    assert verbs.ibv_init_ah_from_wc(one.b.context, 1, wc, one.b.mr.buf, attr) == 0
    assert attr.is_global == 1
    assert attr.dgid == one.a.context.query_gid(1, 0).gid
    assert (attr.sgid_index, attr.port_num, attr.sl, attr.dlid) == (0, 1, wc.sl, 0)
    assert attr.hop_limit > 0
    handle = verbs.ibv_create_ah(one.b.pd, attr)
    assert isinstance(handle, AH)
    assert verbs.ibv_destroy_ah(handle) == 0
    again = verbs.ibv_create_ah_from_wc(one.b.pd, wc, one.b.mr.buf, 1)
    assert isinstance(again, AH)


def test_the_header_as_bytes_and_as_an_object(one: World) -> None:
    raw = bytes(20) + ipv4_header(bytes((10, 0, 0, 2)), bytes((10, 0, 0, 1)))
    wc = WC(wc_flags=e.IBV_WC_GRH)
    grh = addr.GRH(
        GID(addr.gid_text(raw[8:24])),
        GID(addr.gid_text(raw[24:])),
        int.from_bytes(raw[:4], sys.byteorder),
        int.from_bytes(raw[4:6], sys.byteorder),
        raw[6],
        raw[7],
    )
    one.a.memory[100:140] = raw
    for form in (raw, bytearray(raw + b"more"), memoryview(raw), grh, one.a.mr.buf + 100):
        attr = AHAttr()
        assert verbs.ibv_init_ah_from_wc(one.a.context, 1, wc, form, attr) == 0
        assert (attr.raw_dgid, attr.hop_limit, attr.traffic_class) == (mapped(10, 0, 0, 2), 9, 0x28)


def test_a_header_that_is_none(one: World) -> None:
    wc = WC(wc_flags=e.IBV_WC_GRH)
    for form, code, words in (
        (bytes(40), errno.EINVAL, "neither"),
        (b"\x60" + bytes(30), errno.EINVAL, "40"),
        (0, errno.EFAULT, "cannot be read"),
        (2**64 - 1, errno.EFAULT, "cannot be read"),
        (2**64, errno.EINVAL, "grh"),
        (-1, errno.EINVAL, "grh"),
        (None, errno.EINVAL, "grh"),
        ("text", errno.EINVAL, "grh"),
        (object(), errno.EINVAL, "grh"),
        (bytes(20) + ipv4_header(bytes((10, 0, 0, 2)), bytes((10, 9, 9, 9))), errno.EINVAL, "no GID of port 1"),
    ):
        assert words in refused(code, lambda f=form: AH(one.a.pd, wc=wc, grh=f, port_num=1))
    assert "port_num" in refused(
        errno.EINVAL,
        lambda: AH(
            one.a.pd, wc=wc, grh=bytes(20) + ipv4_header(bytes((10, 0, 0, 2)), bytes((10, 0, 0, 1))), port_num=9
        ),
    )
    assert "GRH" in refused(errno.EINVAL, lambda: AH(one.a.pd, wc=WC(), grh=0, port_num=1))


def test_an_ipv6_header_and_one_that_only_looks_like_it() -> None:
    """The first 20 bytes in front of an IPv4 header mean nothing, and may look like an IPv6 header."""
    source, to = bytes.fromhex("fd00" + "00" * 13 + "02"), bytes.fromhex("fd00" + "00" * 13 + "01")
    route = route_of(ipv6_header(source, to))
    assert (route.peer, route.to, route.to_many) == (source, to, False)
    assert (route.flow_label, route.traffic_class, route.hop_limit) == (0x12345, 0x44, 7)
    four = ipv4_header(bytes((10, 0, 0, 2)), bytes((10, 0, 0, 1)))
    assert route_of(b"\x6f" * 20 + four).peer == mapped(10, 0, 0, 2)
    six = b"\x60" + bytes(19) + ipv4_header(bytes((10, 0, 0, 2)), bytes((10, 0, 0, 1)), right=False)
    assert route_of(six).peer == six[8:24]


@pytest.mark.parametrize("group", [GROUP, LINK_LOCAL_GROUP], ids=["IPv4", "IPv6"])
def test_the_way_back_of_what_came_to_a_group_leaves_from_the_first_gid(build: Any, group: GID) -> None:
    one: World = build()
    if group is GROUP:
        raw = bytes(20) + ipv4_header(bytes((10, 0, 0, 2)), group.raw[12:])
    else:
        raw = ipv6_header(mapped(10, 0, 0, 2), group.raw)
    attr = AHAttr()
    assert verbs.ibv_init_ah_from_wc(one.a.context, 1, WC(wc_flags=e.IBV_WC_GRH), raw, attr) == 0
    assert (attr.raw_dgid, attr.sgid_index) == (mapped(10, 0, 0, 2), 0)


def test_the_gid_that_it_was_sent_to_is_the_one_that_the_answer_leaves_from() -> None:
    from softverbs.device import Device

    device = Device(link=Network().link(["10.0.0.1", "10.0.0.2"]), thread=False)
    try:
        context = Context(device=device)
        attr = AHAttr()
        raw = bytes(20) + ipv4_header(bytes((10, 0, 0, 9)), bytes((10, 0, 0, 2)))
        assert verbs.ibv_init_ah_from_wc(context, 1, WC(wc_flags=e.IBV_WC_GRH), raw, attr) == 0
        assert attr.sgid_index == 1
        context.close()
    finally:
        device.close()
