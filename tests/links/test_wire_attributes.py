# SPDX-License-Identifier: MIT
"""What a route says reaches the wire: traffic class (DSCP and ECN), hop limit, flow label, source port.

A plain socket receives, and the kernel tells what was in the IP header: IP_RECVTOS and IP_RECVTTL of ip(7);
IPV6_RECVTCLASS, IPV6_RECVHOPLIMIT and IPV6_FLOWINFO of ipv6(7). No privilege is needed. The other end of ::1 is the
link's own socket, since no machine is sure to have a second IPv6 address.
"""

import json
import select
import socket
import struct

import pytest

from softverbs.device import Device
from softverbs.links import FaultLink, PcapLink, UdpLink, gid_of, udp_socket
from softverbs.pyverbs.addr import GID, AHAttr, GlobalRoute
from softverbs.pyverbs.cq import CQ
from softverbs.pyverbs.device import Context
from softverbs.pyverbs.pd import PD
from softverbs.pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr
from softverbs.pyverbs.wr import SendWR

PORT = 4796  # for ::1, which the whole machine shares
IPV6_FLOWINFO = 11  # linux/in6.h
# DSCP 46 (expedited forwarding) with ECN 2 (ECT(0)), DSCP 26, ECN alone, all bits.
CLASSES = (0, 46 << 2 | 2, 26 << 2, 1, 0xFF)
HOPS = ((0, 64), (1, 1), (63, 63), (64, 64), (255, 255))
LABELS = (0, 1, 0x12345, 0xFFFFF)


def received(sock):
    """Return (frame, source port, traffic class, hop limit, flow label) of the next datagram."""
    assert select.select([sock], [], [], 5)[0], "nothing came"
    data, control, flags, source = sock.recvmsg(65536, 512)
    assert not flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC)
    told = {(level, kind): value for level, kind, value in control}
    if sock.family == socket.AF_INET:
        (hops,) = struct.unpack("=i", told[socket.IPPROTO_IP, socket.IP_TTL])
        return data, source[1], told[socket.IPPROTO_IP, socket.IP_TOS][0], hops, None
    words = [
        struct.unpack("=i", told[socket.IPPROTO_IPV6, kind])[0] for kind in (socket.IPV6_TCLASS, socket.IPV6_HOPLIMIT)
    ]
    # Left out by the kernel where class and label are 0.
    flow = int.from_bytes(told.get((socket.IPPROTO_IPV6, IPV6_FLOWINFO), bytes(4)), "big")
    return data, source[1], *words, flow & 0xFFFFF


@pytest.fixture
def listener(opened):
    """A plain IPv4 socket, and a link that sends to it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.bind(("127.78.1.2", 0))
        port = sock.getsockname()[1]
        sock.setsockopt(socket.IPPROTO_IP, socket.IP_RECVTOS, 1)
        sock.setsockopt(socket.IPPROTO_IP, 12, 1)  # IP_RECVTTL
        opened.append(UdpLink("127.78.1.1", port=port))
        yield opened[0], sock


@pytest.fixture
def listener6(ipv6, opened):
    """A link on ::1, and the socket it sends to: its own, which here is read as a plain one."""
    opened.append(UdpLink("::1", port=PORT, gro=False))
    sock = opened[0]._endpoints[0].sock
    for option in (socket.IPV6_RECVTCLASS, socket.IPV6_RECVHOPLIMIT, IPV6_FLOWINFO):
        sock.setsockopt(socket.IPPROTO_IPV6, option, 1)
    return opened[0], sock


def check(driver, link, sock, route, expected):
    """Send a frame alone and a burst by a route: each frame says the same."""
    assert driver.send(link, route, b"alone")
    assert driver.send(link, route, b"burst" * 3, 5)
    for frame in (b"alone", b"burst", b"burst", b"burst"):
        assert received(sock) == (frame, *expected)


@pytest.mark.parametrize("traffic_class", CLASSES)
@pytest.mark.parametrize(("hop_limit", "hops"), HOPS)
def test_ipv4(listener, driver, traffic_class, hop_limit, hops):
    link, sock = listener
    route = driver.route(link, gid_of("127.78.1.2"), traffic_class=traffic_class, hop_limit=hop_limit)
    check(driver, link, sock, route, (link.source_ports[0], traffic_class, hops, None))


@pytest.mark.parametrize("traffic_class", CLASSES)
@pytest.mark.parametrize(("hop_limit", "hops"), HOPS)
def test_ipv6(listener6, driver, traffic_class, hop_limit, hops):
    link, sock = listener6
    route = driver.route(link, link.gids[0], traffic_class=traffic_class, hop_limit=hop_limit)
    check(driver, link, sock, route, (PORT, traffic_class, hops, 0))


@pytest.mark.parametrize("label", LABELS)
@pytest.mark.parametrize("traffic_class", CLASSES)
def test_flow_label(listener6, driver, label, traffic_class):
    """No lease of the label is needed (IPV6_FLOWLABEL_MGR), unless a process of the host has it for itself alone."""
    link, sock = listener6
    route = driver.route(link, link.gids[0], flow_label=label, traffic_class=traffic_class, hop_limit=9)
    check(driver, link, sock, route, (PORT, traffic_class, 9, label))


def test_flow_labels_where_a_process_has_one_for_itself_alone(namespace):
    """A restriction of Linux, documented in udp.py: labels are refused then; frames are lost, and counted."""
    assert json.loads(namespace("label_probe.py")) == [[0, 1, 0], [5, 1, 1], [0x777, 1, 2], [0, 2, 2]]


def test_a_flow_label_changes_nothing_in_ipv4(listener, driver):
    """There is no such field; and frames leave from port 4791 whatever it is: see udp.py."""
    link, sock = listener
    for label in LABELS:
        route = driver.route(link, gid_of("127.78.1.2"), flow_label=label)
        check(driver, link, sock, route, (link.source_ports[0], 0, 64, None))


def test_routes_do_not_mix(listener, driver):
    """Two routes of one socket keep what is theirs, however they alternate."""
    link, sock = listener
    routes = [
        driver.route(link, gid_of("127.78.1.2"), traffic_class=tos, hop_limit=hops) for tos, hops in ((8, 3), (0, 0))
    ]
    for _ in range(3):
        check(driver, link, sock, routes[0], (link.source_ports[0], 8, 3, None))
        check(driver, link, sock, routes[1], (link.source_ports[0], 0, 64, None))


def test_groups(opened, driver):
    """The hop limit of a frame to a group is that of its route, and not 1, as that of other datagrams to groups."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.bind(("239.78.1.1", 0))
        request = socket.inet_aton("239.78.1.1") + socket.inet_aton("127.0.0.1")
        sock.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, request)
        sock.setsockopt(socket.IPPROTO_IP, socket.IP_RECVTOS, 1)
        sock.setsockopt(socket.IPPROTO_IP, 12, 1)
        link = UdpLink("127.78.1.1", port=sock.getsockname()[1])
        opened.append(link)
        for traffic_class, hop_limit, hops in ((0, 0, 64), (0xB9, 1, 1), (4, 200, 200)):
            route = driver.route(link, gid_of("239.78.1.1"), traffic_class=traffic_class, hop_limit=hop_limit)
            check(driver, link, sock, route, (link.source_ports[0], traffic_class, hops, None))


@pytest.mark.parametrize("around", ["faults", "pcap"])
def test_middleware_passes_them_on(listener, opened, driver, tmp_path, around):
    inner, sock = listener
    link = FaultLink(inner, seed=1) if around == "faults" else PcapLink(inner, tmp_path / "frames.pcap")
    opened.append(link)
    route = driver.route(link, gid_of("127.78.1.2"), traffic_class=0x2A, hop_limit=17)
    check(driver, link, sock, route, (link.source_ports[0], 0x2A, 17, None))


@pytest.mark.parametrize(("traffic_class", "hop_limit"), [(0, 64), (0x6A, 33)])
def test_from_an_address_vector_to_the_wire(traffic_class, hop_limit):
    """A queue pair's ah_attr is what its frames show: the first of them, caught by a socket that answers nothing."""
    with udp_socket.open_loopback_socket(4791) as sock, Device(thread=False) as device:
        sock.setsockopt(socket.IPPROTO_IP, socket.IP_RECVTOS, 1)
        sock.setsockopt(socket.IPPROTO_IP, 12, 1)  # IP_RECVTTL
        with Context(device=device) as context, PD(context) as pd, CQ(context, 4) as cq:
            attributes = QPAttr(port_num=1)
            gid = GID()
            gid.raw = gid_of(sock.getsockname()[0])
            route = GlobalRoute(gid, sgid_index=0)
            route.traffic_class, route.hop_limit = traffic_class, hop_limit
            attributes.ah_attr = AHAttr(gr=route, is_global=1, port_num=1)
            attributes.dest_qp_num = 77
            init = QPInitAttr(qp_type=2, scq=cq, rcq=cq, cap=QPCap(max_send_wr=1, max_recv_wr=1))
            with QP(pd, init) as qp:
                qp.to_rts(attributes)
                qp.post_send(SendWR(opcode=2, num_sge=0))
                device.progress()
                frame, port, *rest = received(sock)
    assert (port, *rest[:2]) == (4791, traffic_class, hop_limit)
    assert int.from_bytes(frame[5:8], "big") == 77
