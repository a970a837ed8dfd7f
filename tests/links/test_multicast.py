# SPDX-License-Identifier: MIT
"""Groups: every link that can, in one process and between processes, on loopback and over a veth pair."""

import errno
import json
import os
import random
import socket
import subprocess
import sys
import warnings
from contextlib import contextmanager
from pathlib import Path

import pytest

import softverbs.links
from softverbs.links import FaultLink, Network, PcapLink, UdpLink, gid_of, udp_socket
from softverbs.links.base import is_multicast

# Of this process alone: groups on loopback are heard by everybody on the host, by other runs of these tests too.
ADDRESS = f"239.{os.getpid() >> 15 & 0x7F}.{os.getpid() >> 7 & 0xFF}.{os.getpid() << 1 & 0xFF}"
GROUP = gid_of(ADDRESS)
OTHER = GROUP[:15] + bytes([GROUP[15] + 1])


def _inproc():
    network = Network()
    return [network.link(f"10.0.0.{number}") for number in (1, 2, 3)]


def _udp(**options):
    return [UdpLink(**options) for _ in range(3)]


TRIOS = {
    "inproc": lambda folder: _inproc(),
    "udp": lambda folder: _udp(),
    "udp-no-gso": lambda folder: _udp(gso=False),
    "udp-no-gro": lambda folder: _udp(gro=False),
    "faults-inproc": lambda folder: [FaultLink(link, seed=1) for link in _inproc()],
    "faults-udp": lambda folder: [FaultLink(link, seed=1) for link in _udp()],
    "pcap-udp": lambda folder: [PcapLink(link, folder / f"{index}.pcap") for index, link in enumerate(_udp())],
}


@pytest.fixture(params=TRIOS)
def trio(request, tmp_path, opened):
    """Three links that reach each other."""
    links = TRIOS[request.param](tmp_path)
    opened.extend(links)
    return links


def drain(link, sink, now=0):
    """Receive until nothing comes: on loopback and in process, what was sent is there when send() returns."""
    while link.receive(now, sink):
        pass


def refused(code, call, *arguments):
    with pytest.raises(OSError, match=r"\w") as caught:
        call(*arguments)
    assert caught.value.errno == code
    return str(caught.value)


def test_members_get_every_frame_and_others_none(trio, driver, make_recorder):
    sender, member, stranger = trio
    member.join(GROUP, 0)
    data = random.Random(5).randbytes(5500)
    route = driver.route(sender, GROUP)
    assert driver.send(sender, route, data, 1000)
    assert driver.send(sender, route, b"one more")
    sink, nothing = make_recorder(), make_recorder()
    driver.collect(member, sink, 7)
    assert sink.frames == [*(data[start : start + 1000] for start in range(0, 5500, 1000)), b"one more"]
    assert {peer for peer, _ in sink.bursts} == {(sender.gids[0], 4791, 0, GROUP)}
    drain(stranger, nothing)
    drain(sender, nothing)
    assert nothing.frames == []


def test_all_members_but_the_sender(trio, driver, make_recorder):
    for link in trio:
        link.join(GROUP, 0)
    for sender in trio:
        assert driver.send(sender, driver.route(sender, GROUP), b"to all")
        for link in trio:
            sink = make_recorder()
            if link is not sender:
                driver.collect(link, sink, 1)
            drain(link, sink, driver.now)
            assert [peer[0] for peer, _ in sink.bursts] == ([] if link is sender else [sender.gids[0]])


def test_unicast_beside_a_group(trio, driver, recorder):
    left, right, _ = trio
    right.join(GROUP, 0)
    driver.send(left, driver.route(left, GROUP), b"group")
    driver.send(left, driver.route(left, right.gids[0]), b"single")
    driver.collect(right, recorder, 2)
    expected = [((left.gids[0], 4791, 0), [b"single"]), ((left.gids[0], 4791, 0, GROUP), [b"group"])]
    assert sorted(recorder.bursts, key=lambda burst: len(burst[0])) == expected


def test_groups_are_kept_apart(trio, driver, recorder):
    left, right, _ = trio
    right.join(GROUP, 0)
    for group in (OTHER, GROUP):
        driver.send(left, driver.route(left, group), group[12:])
    driver.collect(right, recorder, 1)
    drain(right, recorder)
    assert recorder.frames == [GROUP[12:]]
    right.join(OTHER, 0)
    for group in (OTHER, GROUP):
        driver.send(left, driver.route(left, group), group[12:])
    driver.collect(right, recorder, 3)
    assert {peer[3] for peer, _ in recorder.bursts[1:]} == {GROUP, OTHER}


def test_joins_are_counted(trio, driver, recorder):
    left, right, _ = trio
    route = driver.route(left, GROUP)
    right.join(GROUP, 0)
    right.join(GROUP, 0)
    right.leave(GROUP, 0)
    driver.send(left, route, b"still in")
    driver.collect(right, recorder, 1)
    right.leave(GROUP, 0)
    driver.send(left, route, b"out")
    drain(right, recorder)
    assert f"has not joined {ADDRESS}" in refused(errno.EADDRNOTAVAIL, right.leave, GROUP, 0)
    right.join(GROUP, 0)
    driver.send(left, route, b"in again")
    driver.collect(right, recorder, 2)
    assert recorder.frames == [b"still in", b"in again"]


def test_what_cannot_be_joined(trio):
    link = trio[0]
    assert "no multicast address" in refused(errno.EINVAL, link.join, gid_of("10.0.0.7"), 0)
    assert "no GID with index 1" in refused(errno.EINVAL, link.join, GROUP, 1)
    assert "no GID with index -1" in refused(errno.EINVAL, link.join, GROUP, -1)
    assert "one is IPv4, the other IPv6" in refused(errno.EAFNOSUPPORT, link.join, gid_of("ff0e::1"), 0)
    with pytest.raises(ValueError, match="16 bytes"):
        link.join(b"short", 0)


def test_closed(trio, driver, recorder):
    left, right, _ = trio
    right.join(GROUP, 0)
    right.close()
    refused(errno.EBADF, right.join, GROUP, 0)
    refused(errno.EBADF, right.leave, GROUP, 0)
    assert right.filenos() == []
    assert driver.send(left, driver.route(left, GROUP), b"to nobody")


def test_descriptors_for_groups_to_come(trio, driver, recorder):
    """Who waits asks for descriptors once: those of groups that are joined later are among them."""
    left, right, _ = trio
    before = right.filenos()
    right.join(GROUP, 0)
    assert right.filenos() == before
    driver.send(left, driver.route(left, GROUP), b"x")
    driver.collect(right, recorder, 1)  # which waits by these descriptors


def test_peers_belong_to_the_sink(trio, driver, make_recorder):
    left, right, _ = trio
    right.join(GROUP, 0)
    for _ in range(2):
        sink = make_recorder()  # asserts that the peer is its own
        driver.send(left, driver.route(left, GROUP), b"x")
        driver.collect(right, sink, 1)


def _two_gids(kind):
    if kind == "inproc":
        network = Network()
        return network.link("10.0.0.1"), network.link(["10.0.0.2", "10.0.0.3"])
    return UdpLink(), UdpLink(["127.77.1.1", "127.77.1.2"])


@pytest.mark.parametrize("kind", ["inproc", "udp"])
def test_two_gids_of_one_link(opened, driver, recorder, kind):
    left, right = _two_gids(kind)
    opened += [left, right]
    right.join(GROUP, 1)
    right.join(GROUP, 0)
    route = driver.route(left, GROUP)
    driver.send(left, route, b"once")
    driver.collect(right, recorder, 1)
    drain(right, recorder)
    assert recorder.frames == [b"once"]
    right.leave(GROUP, 1)
    refused(errno.EADDRNOTAVAIL, right.leave, GROUP, 1)
    driver.send(left, route, b"twice")
    driver.collect(right, recorder, 2)
    assert recorder.bursts[-1] == ((left.gids[0], 4791, 0, GROUP), [b"twice"])
    # What one GID of a link sends does not come back to the other: the port sees to that.
    driver.send(right, driver.route(right, GROUP, sgid_index=1), b"own")
    drain(right, recorder)
    assert len(recorder.frames) == 2
    right.leave(GROUP, 0)
    driver.send(left, route, b"gone")
    drain(right, recorder)
    assert len(recorder.frames) == 2


def test_own_frames_are_counted_and_a_stranger_with_the_same_address_is_heard(opened, driver, recorder, monkeypatch):
    link = UdpLink("127.77.1.4")
    opened.append(link)
    link.join(GROUP, 0)
    driver.send(link, driver.route(link, GROUP), bytes(10), 1)
    assert link.receive(0, recorder) == 0
    assert link.stats()["receive_own"] > 0
    assert link.stats()["frames_received"] == 0
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.bind(("127.77.1.4", 0))
        sock.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton("127.0.0.1"))
        sock.sendto(b"another port", (ADDRESS, 4791))
        while not link.stats()["receive_stranger"]:
            assert link.receive(0, recorder) == 0
        monkeypatch.setattr("softverbs.links.base.is_loopback", lambda gid: False)  # as if it were of another host
        sock.sendto(b"another port", (ADDRESS, 4791))
        driver.collect(link, recorder, 1)
        assert recorder.bursts == [((link.gids[0], sock.getsockname()[1], 0, GROUP), [b"another port"])]


def test_full_member_loses_frames_and_nobody_waits(driver, make_recorder):
    network = Network(capacity=2)
    left, slow, quick = (network.link(f"10.0.0.{number}") for number in (1, 2, 3))
    slow.join(GROUP, 0)
    quick.join(GROUP, 0)
    route = driver.route(left, GROUP)
    heard, missed = make_recorder(), make_recorder()
    for number in range(5):
        assert driver.send(left, route, bytes([number]))
        drain(quick, heard)
    drain(slow, missed)
    assert heard.frames == [bytes([number]) for number in range(5)]
    assert missed.frames == [b"\0", b"\1"]
    assert (slow.stats()["overflow"], left.stats()["frames_sent"]) == (3, 5)


def test_overflow_of_a_group_that_was_left_is_still_counted(opened, driver):
    left, right = UdpLink(), UdpLink()
    opened += [left, right]
    right.join(GROUP, 0)
    right._groups.endpoints[0].sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
    route = driver.route(left, GROUP)
    for _ in range(50):
        assert driver.send(left, route, bytes(1000))
    lost = right.stats()["receive_overflows"]
    assert lost > 0
    right.leave(GROUP, 0)
    assert right.stats()["receive_overflows"] == lost


def test_a_child_of_fork_does_not_keep_the_group(opened, driver, recorder):
    """The child holds the sockets: leaving must end it all the same, and what the child does must not."""
    left, right = UdpLink(), UdpLink()
    opened += [left, right]
    right.join(GROUP, 0)
    with forked(lambda: right.leave(GROUP, 0)):
        driver.send(left, driver.route(left, GROUP), b"still in")
        driver.collect(right, recorder, 1)
        right.leave(GROUP, 0)
        driver.send(left, driver.route(left, GROUP), b"out")
        assert not right._groups.readable()
        drain(right, recorder)
    assert recorder.frames == [b"still in"]


@contextmanager
def forked(call):
    """A child that has made a call, and lives as long as the block."""
    here, there = socket.socketpair()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # 3.12: forking a process that has threads
        child = os.fork()
    if child == 0:
        try:
            call()
            there.send(b"done")
            here.close()
            there.recv(1)
        finally:
            os._exit(0)
    there.close()
    try:
        assert here.recv(4) == b"done"
        yield
    finally:
        here.close()
        os.waitpid(child, 0)


def test_faults_befall_frames_to_groups(opened, driver, recorder):
    network = Network()
    left = FaultLink(network.link("10.0.0.1"), seed=3, duplicate=1.0)
    right = network.link("10.0.0.2")
    right.join(GROUP, 0)
    assert driver.send(left, driver.route(left, GROUP), b"twice")
    driver.collect(right, recorder, 2)
    assert recorder.frames == [b"twice", b"twice"]


def test_capture_of_both_ends(tmp_path, opened, driver, recorder):
    dpkt = pytest.importorskip("dpkt")
    network = Network()
    left, right = (PcapLink(network.link(f"10.0.0.{n}"), tmp_path / f"{n}.pcap", epoch=0) for n in (1, 2))
    opened += [left, right]
    right.join(GROUP, 0)
    driver.send(left, driver.route(left, GROUP, traffic_class=8), b"to be seen")
    driver.collect(right, recorder, 1)
    for number, tos in ((1, 8), (2, 0)):
        with (tmp_path / f"{number}.pcap").open("rb") as file:
            [(_, data)] = list(dpkt.pcap.Reader(file))
        packet = dpkt.ethernet.Ethernet(data)
        assert packet.dst == b"\x01\x00\x5e" + bytes([GROUP[13] & 0x7F]) + GROUP[14:]
        assert (packet.data.src, packet.data.dst) == (b"\x0a\0\0\x01", GROUP[12:])
        assert (packet.data.tos, bytes(packet.data.data.data)) == (tos, b"to be seen")


def test_which_gids_are_groups():
    for address in ("224.0.0.1", "239.255.255.255", "ff02::1", "ff0e::1:2"):
        assert is_multicast(gid_of(address))
    for address in ("223.255.255.255", "240.0.0.1", "255.255.255.255", "fe80::1", "::e000:1", "e000::1"):
        assert not is_multicast(gid_of(address))


def test_ipv6_loopback_without_a_multicast_route(ipv6, opened):
    """As every machine comes; where an administrator has added the route, it works: see below, in a namespace."""
    link = UdpLink("::1", port=4797)
    opened.append(link)
    words = refused(errno.ENETUNREACH, link.join, gid_of("ff0e::5f3a"), 0)
    assert "lo has no route for IPv6 multicast" in words
    refused(errno.ENETUNREACH, link.route, 0, gid_of("ff0e::5f3a"), 0, 0, 0)
    assert link._groups.members == {}


MEMBER = """
import ctypes, select, sys
from softverbs.links import UdpLink, gid_of, address_of

class Sink:
    def peer(self, source, port, index, dgid=None):
        return source, dgid
    def receive(self, peer, address, length, segment):
        print(address_of(peer[0]), address_of(peer[1]), ctypes.string_at(address, length).decode(), flush=True)
        sys.exit()

link = UdpLink()
link.join(gid_of(sys.argv[1]), 0)
print(address_of(link.gids[0]), flush=True)
while True:
    assert select.select(link.filenos(), [], [], 20)[0], "nothing came"
    link.receive(0, Sink())
"""


def test_between_processes(opened, driver):
    """Two other processes are members of one group."""
    link = UdpLink()
    opened.append(link)
    link.join(GROUP, 0)
    environment = {**os.environ, "PYTHONPATH": str(Path(softverbs.links.__file__).parents[2])}
    command = [sys.executable, "-W", "ignore", "-c", MEMBER, ADDRESS]
    members = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) for _ in range(2)]
    try:
        addresses = {member.stdout.readline().strip() for member in members}
        assert len(addresses) == 2
        assert driver.send(link, driver.route(link, GROUP), b"hello")
        heard = {member.stdout.readline().strip() for member in members}
        assert heard == {f"{socket.inet_ntoa(link.gids[0][12:])} {ADDRESS} hello"}
        assert [member.wait(timeout=20) for member in members] == [0, 0]
    finally:
        for member in members:
            member.kill()
            member.communicate()


def test_over_a_veth_pair(namespace):
    """IPv4 and IPv6 groups, another network namespace being the peer: see multicast_probe.py."""
    result = json.loads(namespace("multicast_probe.py"))
    for family in ("4", "6", "ll", "lo6"):
        assert result[family]["heard"] == ["from left", "again"], result
        assert result[family]["own"] == 0
        assert result[family]["after leaving"] == []
    assert result["4"]["macs"] == ["01:00:5e:4d:01:02"]
    assert result["6"]["macs"] == ["33:33:00:00:12:34"]
    for family in ("4", "6", "ll"):
        assert (result[family]["hops"], result[family]["classes"]) == ([64, 7], [0, 0xB9])


@pytest.fixture
def kernel(monkeypatch):
    """Returns a function: the kernel refuses a socket option with an error from then on."""

    def refuse(option, code):
        class Refusing(socket.socket):
            def setsockopt(self, level, name, value):
                if name == option and level == socket.IPPROTO_IP:
                    raise OSError(code, os.strerror(code))
                super().setsockopt(level, name, value)

        monkeypatch.setattr(udp_socket.socket, "socket", Refusing)

    return refuse


def test_a_join_that_the_kernel_refuses_leaves_nothing_behind(opened, kernel):
    link = UdpLink()
    opened.append(link)
    kernel(socket.IP_ADD_MEMBERSHIP, errno.ENOBUFS)
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        words = refused(errno.ENOBUFS, link.join, GROUP, 0)
        assert f"cannot join {ADDRESS} at 127." in words
    assert len(os.listdir("/proc/self/fd")) == before
    refused(errno.EADDRNOTAVAIL, link.leave, GROUP, 0)


def test_an_interface_without_multicast(opened, kernel):
    kernel(socket.IP_MULTICAST_IF, errno.EADDRNOTAVAIL)
    link = UdpLink()
    opened.append(link)
    for call in (lambda: link.route(0, GROUP, 0, 0, 0), lambda: link.join(GROUP, 0)):
        assert "no multicast from 127." in refused(errno.EADDRNOTAVAIL, call)


def test_a_kernel_without_multicast_all(opened, kernel, driver, recorder):
    """As before Linux 4.20 for IPv6: membership of others counts too, and nothing else is different."""
    kernel(udp_socket.IP_MULTICAST_ALL, errno.ENOPROTOOPT)
    kernel(socket.IP_DROP_MEMBERSHIP, errno.EADDRNOTAVAIL)  # as where the interface has gone
    left, right = UdpLink(), UdpLink()
    opened += [left, right]
    right.join(GROUP, 0)
    driver.send(left, driver.route(left, GROUP), b"x")
    driver.collect(right, recorder, 1)
    right.leave(GROUP, 0)
    assert right.receive(0, recorder) == 0
