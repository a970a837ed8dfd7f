# SPDX-License-Identifier: MIT
"""What the tests of links share: a sink that writes down what it gets, and pairs of links."""

import ctypes
import os
import select
import shutil
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

import softverbs.links
from softverbs.links import FaultLink, Network, PcapLink, UdpLink


class Recorder:
    """A sink. `frames` are the frames received, `bursts` the (peer, [frames]) they came in, `peers` all peers made.

    A peer is (GID, port, GID index), and the multicast GID where there is one.
    """

    def __init__(self):
        self.frames = []
        self.bursts = []
        self.peers = []

    def peer(self, source_gid, source_port, sgid_index, *dgid):
        assert type(source_gid) is bytes
        assert len(source_gid) == 16
        assert all(type(gid) is bytes and len(gid) == 16 for gid in dgid)
        self.peers.append((source_gid, source_port, sgid_index, *dgid))
        return self.peers[-1]

    def receive(self, peer, address, length, segment):
        assert 0 < segment <= length
        assert peer in self.peers
        data = ctypes.string_at(address, length)
        ctypes.memset(address, 0xEE, length)  # the memory is the sink's for the time of the call
        frames = [data[start : start + segment] for start in range(0, length, segment)]
        self.frames += frames
        self.bursts.append((peer, frames))


class Driver:
    """Sends bytes over a link, and collects."""

    def __init__(self):
        self.now = 0

    def route(self, link, gid, sgid_index=0, flow_label=0, traffic_class=0, hop_limit=0):
        return link.route(sgid_index, gid, flow_label, traffic_class, hop_limit)

    def send(self, link, route, data, segment=None):
        buffer = (ctypes.c_char * len(data)).from_buffer_copy(data)
        return link.send(self.now, route, ctypes.addressof(buffer), len(data), segment or len(data))

    def collect(self, link, sink, frames):
        """Receive until the sink has so many frames. Time goes on as the link's deadlines want."""
        while len(sink.frames) < frames:
            if link.receive(self.now, sink):
                continue
            deadline = link.deadline()
            if deadline is not None:
                self.now = max(self.now, deadline)
            else:
                assert select.select(link.filenos(), [], [], 5)[0], f"{len(sink.frames)} of {frames} frames came"


@pytest.fixture
def recorder():
    return Recorder()


@pytest.fixture
def make_recorder():
    return Recorder


@pytest.fixture
def driver():
    return Driver()


@pytest.fixture
def opened():
    """A list of links, closed at the end of the test."""
    links = []
    yield links
    for link in links:
        with suppress(OSError):
            link.close()


@pytest.fixture
def ipv6():
    """Skips the test where ::1 is missing."""
    try:
        with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as probe:
            probe.bind(("::1", 0))
    except OSError:
        pytest.skip("this machine has no ::1")


@pytest.fixture
def namespace():
    """Returns a function that runs a script of this folder in a network namespace of its own: what it prints."""
    environment = {**os.environ, "PATH": os.environ["PATH"] + ":/usr/sbin:/sbin"}
    environment["PYTHONPATH"] = str(Path(softverbs.links.__file__).parents[2])
    for tool in ("unshare", "ip", "ethtool"):
        if shutil.which(tool, path=environment["PATH"]) is None:
            pytest.skip(f"{tool} is not installed")
    inside = ["unshare", "--map-root-user", "--net"]
    if subprocess.run([*inside, "true"], capture_output=True).returncode:
        pytest.skip("network namespaces are not allowed here")

    def run(script, *arguments):
        command = [*inside, sys.executable, str(Path(__file__).with_name(script)), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


def _inproc(**options):
    network = Network(**options)
    return network.link("10.0.0.1"), network.link("10.0.0.2")


def _udp(**options):
    return UdpLink(**options), UdpLink(**options)


def _udp6():
    link = UdpLink("::1")  # the only IPv6 address that every machine has: the link talks to itself
    return link, link


def _faults(pair):
    return tuple(FaultLink(link, seed=1) for link in pair)


def _pcap(pair, folder):
    return tuple(PcapLink(link, folder / f"{index}.pcap") for index, link in enumerate(pair))


PAIRS = {
    "inproc": lambda folder: _inproc(),
    "udp": lambda folder: _udp(),
    "udp-no-gso": lambda folder: _udp(gso=False),
    "udp-no-gro": lambda folder: _udp(gro=False),
    "udp-neither": lambda folder: _udp(gso=False, gro=False),
    "udp6": lambda folder: _udp6(),
    "faults-inproc": lambda folder: _faults(_inproc()),
    "faults-udp": lambda folder: _faults(_udp()),
    "pcap-inproc": lambda folder: _pcap(_inproc(), folder),
    "pcap-udp": lambda folder: _pcap(_udp(), folder),
    "pcap-faults-udp": lambda folder: _pcap(_faults(_udp()), folder),
}


@pytest.fixture(params=PAIRS)
def pair(request, tmp_path, opened):
    """Two links that reach each other; for IPv6 one link, twice."""
    if request.param == "udp6":
        request.getfixturevalue("ipv6")
    links = PAIRS[request.param](tmp_path)
    opened.extend(links)
    return links
