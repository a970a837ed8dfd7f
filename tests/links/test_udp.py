# SPDX-License-Identifier: MIT
"""UDP links, on loopback: what a socket may do to them."""

import ctypes
import errno
import itertools
import os
import random
import socket
import subprocess
import sys
from pathlib import Path

import pytest

import softverbs.links
from softverbs.links import UdpLink, address_of, gid_of, udp, udp_endpoint, udp_socket


@pytest.fixture
def links(opened):
    opened += [UdpLink(), UdpLink()]
    return opened


@pytest.fixture
def stranger():
    """A plain socket that anybody might have."""
    with udp_socket.open_loopback_socket(4791) as sock:
        yield sock


@pytest.fixture
def elsewhere(monkeypatch):
    """Loopback addresses are taken for those of other hosts, whose ports may be any."""
    monkeypatch.setattr(udp_endpoint.base, "is_loopback", lambda gid: False)


def address(link):
    return address_of(link.gids[0]), 4791


class Kernel:
    """Stands for sendmsg or recvmmsg: gives each error number of a list once, and then does the call."""

    def __init__(self, real, *codes):
        self.real = real
        self.codes = list(codes)
        self.calls = 0

    def __call__(self, *arguments):
        self.calls += 1
        code = self.codes.pop(0) if self.codes else 0
        if not code:
            return self.real(*arguments)
        ctypes.set_errno(code)
        return -1


@pytest.fixture
def send_errors(monkeypatch):
    def install(*codes):
        kernel = Kernel(udp._sendmsg, *codes)
        monkeypatch.setattr(udp, "_sendmsg", kernel)
        return kernel

    return install


# Addresses


def test_default_address_is_free_and_alone(links):
    first, second = (address_of(link.gids[0]) for link in links)
    assert first != second
    assert first.startswith("127.")
    assert not first.startswith("127.0.")
    with pytest.raises(OSError, match=f"UDP port 4791 of {first} is taken") as caught:
        UdpLink(first)
    assert caught.value.errno == errno.EADDRINUSE


def test_default_addresses_of_processes_differ(links):
    script = "from softverbs.links import *; print(address_of(UdpLink().gids[0]))"
    environment = {**os.environ, "PYTHONPATH": str(Path(softverbs.links.__file__).parents[2])}
    command = [sys.executable, "-W", "ignore", "-c", script]
    found = {subprocess.run(command, check=True, capture_output=True, env=environment).stdout for _ in range(3)}
    assert len(found) == 3


def test_default_address_draws_again_when_taken(links, monkeypatch, opened):
    taken, free = (int(part) for part in address_of(links[0].gids[0]).split(".")[1:]), (77, 1, 2)
    draws = itertools.chain(taken, free)

    class Fixed:
        def randrange(self, *_):
            return next(draws)

    monkeypatch.setattr(udp_socket.random, "SystemRandom", Fixed)
    opened.append(UdpLink())
    assert address_of(opened[-1].gids[0]) == "127.77.1.2"


def test_port_taken_everywhere():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as wildcard:
        wildcard.bind(("0.0.0.0", 0))  # as Soft-RoCE does with its port
        with pytest.raises(OSError, match="is Soft-RoCE") as caught:
            UdpLink(port=wildcard.getsockname()[1])
    assert caught.value.errno == errno.EADDRINUSE


@pytest.mark.parametrize("addresses", ["127.7.7.1,127.7.7.2", ["127.7.7.1", "127.7.7.2"], " 127.7.7.1 , 127.7.7.2"])
def test_several_addresses(opened, addresses, driver, recorder):
    opened.append(UdpLink(addresses, port=4799))
    link = opened[0]
    assert [address_of(gid) for gid in link.gids] == ["127.7.7.1", "127.7.7.2"]
    assert link.source_ports == [4799, 4799]
    assert len(link.filenos()) == 3  # one is for groups
    driver.send(link, driver.route(link, link.gids[1]), b"first to second")
    driver.send(link, driver.route(link, link.gids[0], sgid_index=1), b"second to first")
    driver.collect(link, recorder, 2)
    assert sorted(recorder.peers, key=lambda peer: peer[2]) == [(link.gids[1], 4799, 0), (link.gids[0], 4799, 1)]


@pytest.mark.parametrize(
    ("addresses", "error", "words"),
    [
        ("here", ValueError, "'here' is not an IPv4 or IPv6 address"),
        ([], ValueError, "needs an address"),
        ("192.0.2.1", OSError, r"192\.0\.2\.1 is not an address of this machine"),
        ("127.7.7.3,192.0.2.1", OSError, "not an address of this machine"),
        ("255.255.255.255", ValueError, "not the address of one machine"),
        ("0.0.0.0", ValueError, "not the address of one machine"),
        ("::", ValueError, "not the address of one machine"),
        ("ff02::1%lo", ValueError, "not the address of one machine"),
    ],
)
def test_bad_addresses_leave_nothing_open(addresses, error, words, opened):
    with pytest.raises(error, match=words):
        UdpLink(addresses)
    if "127" in addresses:
        opened.append(UdpLink("127.7.7.3"))


def test_bad_port():
    with pytest.raises(ValueError, match="1 to 65535"):
        UdpLink(port=0)


def test_mtu_and_buffer(links, ipv6, opened):
    assert links[0].mtu == 65507
    assert links[0].receive_buffer >= 2 * 65507
    opened.append(UdpLink("::1"))
    assert opened[-1].mtu <= 65507
    assert udp_socket.interface_of("127.0.0.1") == b"lo"
    assert udp_socket.interface_of("::1") == b"lo"
    assert udp_socket.interface_of("192.0.2.1") is None


def test_small_buffers_without_privilege(monkeypatch, opened):
    real = socket.socket.setsockopt

    def setsockopt(sock, level, option, value):
        if level == socket.SOL_SOCKET and option in (udp_socket.SO_RCVBUFFORCE, udp_socket.SO_SNDBUFFORCE):
            raise PermissionError
        return real(sock, level, option, value)

    monkeypatch.setattr(socket.socket, "setsockopt", setsockopt)
    opened.append(UdpLink())
    allowed = int(Path("/proc/sys/net/core/rmem_max").read_text())
    assert opened[-1].receive_buffer == 2 * min(allowed, udp_socket.BUFFER_SIZE)


# Routes


@pytest.mark.parametrize(
    ("dgid", "code", "words"),
    [
        ("0.0.0.0", errno.EINVAL, "no destination"),
        ("fd00::1", errno.EAFNOSUPPORT, "one is IPv4"),
        ("192.0.2.1", None, "a loopback address reaches this machine only"),
    ],
)
def test_no_route(links, dgid, code, words):
    with pytest.raises(OSError, match=words) as caught:
        links[0].route(0, gid_of(dgid), 0, 0, 0)
    assert code is None or caught.value.errno == code


# What arrives


def test_bursts_arrive_whole_with_offload(links, driver, recorder):
    left, right = links
    if not (left.identification_step and right.coalescing):
        pytest.skip("this kernel has no segmentation offload")
    data = random.Random(1).randbytes(15 * 4112)
    driver.send(left, driver.route(left, right.gids[0]), data, 4112)
    driver.collect(right, recorder, 15)
    assert len(recorder.bursts) == 1


def test_bursts_arrive_in_pieces_without(opened, driver, make_recorder):
    opened += [UdpLink(gso=False), UdpLink(gro=False), UdpLink()]
    single, plain, other = opened
    assert (single.identification_step, plain.coalescing) == (0, False)
    for left, right in ((single, other), (other, plain)):
        sink = make_recorder()
        driver.send(left, driver.route(left, right.gids[0]), bytes(1000), 100)
        driver.collect(right, sink, 10)
        assert len(sink.bursts) == 10


def test_peers_are_remembered_but_not_all(links, elsewhere, driver, recorder, monkeypatch):
    monkeypatch.setattr(udp_endpoint, "PEERS", 4)
    link = links[0]
    strangers = []
    for number in range(6):
        sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        sock.bind((f"127.0.1.{number + 1}", 0))
        strangers.append(sock)
    for _ in range(2):
        for sock in strangers[:2]:
            sock.sendto(b"x", address(link))
    driver.collect(link, recorder, 4)
    assert len(recorder.peers) == 2
    for sock in strangers:
        sock.sendto(b"y", address(link))
    driver.collect(link, recorder, 10)
    assert len(link._endpoints[0].peers) <= 4
    expected = [(gid_of(f"127.0.1.{n + 1}"), sock.getsockname()[1], 0) for n, sock in enumerate(strangers)]
    assert [peer for peer, _ in recorder.bursts[4:]] == expected
    for sock in strangers:
        sock.close()


def test_sender_with_the_same_address_and_another_port(links, stranger, elsewhere, driver, recorder):
    stranger.sendto(b"one", address(links[0]))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other:
        other.bind((stranger.getsockname()[0], 0))
        other.sendto(b"two", address(links[0]))
        driver.collect(links[0], recorder, 2)
        ports = [stranger.getsockname()[1], other.getsockname()[1]]
    assert [peer[1] for peer, _ in recorder.bursts] == ports


@pytest.mark.parametrize("where", ["127.0.0.1", "its own"])
def test_loopback_peers_count_from_the_port_of_links_alone(links, stranger, driver, recorder, where):
    """Any user can bind another port of any loopback address, also of one that a link has."""
    for host in (address_of(links[1].gids[0]), where if where != "its own" else address_of(links[0].gids[0])):
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            sock.bind((host, 0))
            for _ in range(2):
                sock.sendto(b"forged", address(links[0]))
    stranger.sendto(b"from its port", address(links[0]))
    driver.collect(links[0], recorder, 1)
    assert recorder.frames == [b"from its port"]
    assert links[0].stats()["receive_stranger"] == 4
    assert links[0].stats()["frames_received"] == 1


@pytest.mark.parametrize("host", ["", "0.0.0.0"])
@pytest.mark.parametrize("option", [0, socket.SO_REUSEADDR, socket.SO_REUSEPORT])
def test_the_port_of_a_link_is_nobody_elses(links, host, option):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        if option:
            sock.setsockopt(socket.SOL_SOCKET, option, 1)
        with pytest.raises(OSError, match="in use"):
            sock.bind((host or address_of(links[0].gids[0]), 4791))


def test_odd_datagrams(links, stranger, driver, recorder):
    link = links[0]
    for data in (b"", b"a", b"", bytes(65507), b"", b"end"):
        stranger.sendto(data, address(link))
    driver.collect(link, recorder, 3)
    assert recorder.frames == [b"a", bytes(65507), b"end"]
    assert link.stats()["receive_dropped"] == 3


def test_unexpected_control_messages(links, stranger, driver, recorder):
    link = links[0]
    sock = link._endpoints[0].sock
    sock.setsockopt(socket.IPPROTO_IP, socket.IP_RECVTOS, 1)
    stranger.sendto(b"with its TOS", address(link))
    assert link.receive(0, recorder) == 0
    sock.setsockopt(socket.IPPROTO_IP, socket.IP_RECVTOS, 0)
    stranger.sendto(b"without", address(link))
    driver.collect(link, recorder, 1)
    assert recorder.frames == [b"without"]
    assert link.stats()["receive_dropped"] == 1


def test_truncated_datagram(links, stranger, driver, recorder):
    link = links[0]
    words = link._endpoints[0].inbox.words
    words[udp_endpoint.BATCH * udp_endpoint.HEADER_WORDS + 1] = 10  # room for 10 bytes
    stranger.sendto(bytes(11), address(link))
    stranger.sendto(bytes(10), address(link))
    driver.collect(link, recorder, 1)
    assert link.stats()["receive_dropped"] == 1


def test_overflow_of_the_receive_buffer_is_counted(links, driver, recorder):
    left, right = links
    right._endpoints[0].sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
    route = driver.route(left, right.gids[0])
    assert all(driver.send(left, route, bytes(1000)) for _ in range(50))
    while right.receive(0, recorder):
        pass
    assert len(recorder.frames) < 50
    assert right.stats()["receive_overflows"] == 50 - len(recorder.frames)
    assert left.stats()["frames_sent"] == 50


def test_errors_in_place_of_data(links, stranger, driver, recorder, monkeypatch):
    codes = [errno.ECONNREFUSED, errno.EHOSTUNREACH, errno.ENOMEM]
    monkeypatch.setattr(udp, "_recvmmsg", Kernel(udp._recvmmsg, *codes))
    stranger.sendto(b"x", address(links[0]))
    assert [links[0].receive(0, recorder) for _ in codes] == [0, 0, 0]
    driver.collect(links[0], recorder, 1)
    assert links[0].stats()["receive_errors"] == 3


def test_icmp_error_reported_by_the_kernel(links, driver, recorder):
    """With IP_RECVERR even an unconnected socket is told; the link must get over it."""
    left, right = links
    left._endpoints[0].sock.setsockopt(socket.IPPROTO_IP, 11, 1)  # IP_RECVERR
    route = driver.route(left, right.gids[0])
    right.close()
    driver.send(left, route, b"x")
    assert driver.send(left, route, b"x")
    assert driver.send(left, driver.route(left, left.gids[0]), b"alive")
    for _ in range(3):
        left.receive(0, recorder)
    assert left.stats()["receive_errors"] + left.stats()["send_dropped"] >= 1
    driver.send(left, driver.route(left, left.gids[0]), b"alive")
    driver.collect(left, recorder, 1)


def test_exception_in_the_sink_does_not_stop_the_link(links, stranger, driver, recorder):
    class Broken:
        def peer(self, *sender):
            raise RuntimeError("broken")

    for _ in range(3):
        stranger.sendto(b"x", address(links[0]))
    with pytest.raises(RuntimeError, match="broken"):
        links[0].receive(0, Broken())
    for _ in range(2):
        stranger.sendto(b"after", address(links[0]))
    driver.collect(links[0], recorder, 1)
    assert set(recorder.frames) == {b"after"}


def test_ipv6_checksum_zero_is_accepted(ipv6, elsewhere, opened, driver, recorder):
    opened.append(UdpLink("::1"))
    with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as sock:
        sock.setsockopt(socket.IPPROTO_UDP, 101, 1)  # UDP_NO_CHECK6_TX
        sock.sendto(b"no checksum", ("::1", 4791))
        driver.collect(opened[0], recorder, 1)
        assert recorder.peers == [(gid_of("::1"), sock.getsockname()[1], 0)]


# What is sent, and errors


def test_busy_kernel(links, driver, recorder, send_errors):
    left, right = links
    route = driver.route(left, right.gids[0])
    send_errors(errno.EAGAIN, errno.ENOBUFS, errno.EAGAIN)
    assert not driver.send(left, route, b"x")
    assert not driver.send(left, route, b"x")
    assert not driver.send(left, route, bytes(100), 10)
    assert driver.send(left, route, b"x")
    driver.collect(right, recorder, 1)
    assert left.stats()["send_busy"] == 3
    assert left.stats()["send_dropped"] == 0


@pytest.mark.parametrize("code", [errno.EMSGSIZE, errno.ENETUNREACH, errno.EPERM, errno.ECONNREFUSED])
def test_refused_frames_are_lost_and_logged_once(links, driver, send_errors, caplog, code):
    left, right = links
    route = driver.route(left, right.gids[0])
    send_errors(code, code, code, code)
    assert driver.send(left, route, b"x")
    assert driver.send(left, route, b"x")
    assert driver.send(left, route, bytes(100), 10)
    assert left.stats()["send_dropped"] == 12
    assert [record.message for record in caplog.records] == [
        f"frames from {address_of(left.gids[0])} are dropped: {os.strerror(code)}"
    ]


@pytest.mark.parametrize("code", [errno.EIO, errno.EINVAL])
def test_path_without_segmentation_offload(links, driver, recorder, send_errors, caplog, code):
    left, right = links
    if not left.identification_step:
        pytest.skip("this kernel has no segmentation offload")
    route = driver.route(left, right.gids[0])
    kernel = send_errors(code)
    data = random.Random(2).randbytes(95)
    assert driver.send(left, route, data, 10)
    assert kernel.calls == 11
    assert driver.send(left, route, data, 10)
    assert kernel.calls == 21
    driver.collect(right, recorder, 20)
    assert recorder.frames == 2 * [data[start : start + 10] for start in range(0, 95, 10)]
    assert left.identification_step == 0
    assert "frame by frame" in caplog.text
    assert driver.send(left, driver.route(left, right.gids[0]), data, 10)
    assert kernel.calls == 31


def test_burst_that_is_too_long_does_not_end_segmentation(links, driver, send_errors):
    left, right = links
    send_errors(errno.EINVAL, errno.EMSGSIZE)  # what kernels say of a burst, and of its first frame alone
    assert driver.send(left, driver.route(left, right.gids[0]), bytes(95), 10)
    assert left.identification_step == int(udp_socket.can_segment(left._endpoints[0].sock))
    assert left.stats()["send_dropped"] == 10


@pytest.mark.parametrize("gso", [True, False])
def test_burst_that_is_taken_in_part(opened, driver, recorder, send_errors, gso):
    opened += [UdpLink(gso=gso), UdpLink()]
    left, right = opened
    route = driver.route(left, right.gids[0])
    frames = 100 if gso else 5
    send_errors(0, errno.EAGAIN)
    assert driver.send(left, route, bytes(frames), 1)
    taken = 64 if left.identification_step else 1
    driver.collect(right, recorder, taken)
    assert right.receive(0, recorder) == 0
    assert left.stats()["frames_sent"] == taken
    assert left.stats()["send_dropped"] == frames - taken


def test_segmentation_given_up_halfway(links, driver, recorder, send_errors):
    left, right = links
    if not left.identification_step:
        pytest.skip("this kernel has no segmentation offload")
    send_errors(errno.EIO, 0, errno.EAGAIN)
    assert driver.send(left, driver.route(left, right.gids[0]), bytes(10), 1)
    driver.collect(right, recorder, 1)
    assert left.stats()["send_dropped"] == 9


def test_closed_socket_numbers_are_not_used_again(links, driver, stranger):
    left, right = links
    route = driver.route(left, right.gids[0])
    left.close()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM), pytest.raises(OSError, match="closed"):
        driver.send(left, route, b"x")  # the new socket has the old one's number
