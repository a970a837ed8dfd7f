# SPDX-License-Identifier: MIT
"""Capture files, read back by others."""

import os
import random
import shutil
import socket
import struct
import subprocess
import threading
import zlib

import pytest

from softverbs.links import FaultLink, Network, PcapLink, UdpLink, gid_of

dpkt = pytest.importorskip("dpkt")


@pytest.fixture
def network():
    return Network()


@pytest.fixture
def keep(opened):
    """Returns a function that has a link closed at the end of the test."""
    return lambda link: opened.append(link) or link


@pytest.fixture
def capture(tmp_path):
    return tmp_path / "frames.pcap"


def read(path):
    """Returns (time in ns, Ethernet packet) of each record."""
    with path.open("rb") as file:
        reader = dpkt.pcap.Reader(file)
        assert reader.datalink() == dpkt.pcap.DLT_EN10MB
        return [(round(time * 1_000_000_000), dpkt.ethernet.Ethernet(data)) for time, data in reader]


def transfer(driver, sink, left, right, data, segment, **route):
    """Sends a burst, and receives it."""
    before = len(sink.frames)
    driver.send(left, driver.route(left, right.gids[0], **route), data, segment)
    driver.collect(right, sink, before - (-len(data) // segment))


def checksum(data):
    total = sum(struct.unpack(f"!{(len(data) + 1) // 2}H", data + bytes(len(data) % 2)))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return total


def test_ipv4(network, capture, driver, recorder, keep):
    left, right = keep(PcapLink(network.link("10.0.0.1"), capture, epoch=0)), network.link("10.0.0.2")
    data = random.Random(1).randbytes(1001)
    driver.now = 1_234_567_891
    transfer(driver, recorder, left, right, data, 250, traffic_class=0x68, hop_limit=9)
    transfer(driver, recorder, right, left, data[::-1], 1001)
    packets = read(capture)  # while the link is open
    assert [packet.ip.udp.data for _, packet in packets] == recorder.frames
    for index, (time, packet) in enumerate(packets):
        ip, udp = packet.ip, packet.ip.udp
        sent = index < 5
        assert abs(time - 1_234_567_891) < 300  # the reader's floating point
        assert (ip.src, ip.dst)[:: 1 if sent else -1] == (b"\x0a\0\0\1", b"\x0a\0\0\2")
        assert (udp.sport, udp.dport, ip.p) == (4791, 4791, 17)
        assert (ip.ttl, ip.tos) == ((9, 0x68) if sent else (64, 0))
        assert (ip.df, ip.id, ip.offset) == (1, 0, 0)
        assert (ip.len, udp.ulen) == (28 + len(udp.data), 8 + len(udp.data))
        assert checksum(bytes(ip)[:20]) == 0xFFFF
        assert checksum(ip.src + ip.dst + struct.pack("!HH", 17, udp.ulen) + bytes(udp)) == 0xFFFF
        assert packet.src != packet.dst
    raw = capture.read_bytes()
    assert struct.unpack_from("=II", raw, 24) == (1, 234_567_891)
    assert left.stats()["pcap_frames"] == 6


def test_ipv6(network, capture, driver, recorder, keep):
    left, right = keep(PcapLink(network.link("fd00::1"), capture, epoch=0)), network.link("fd00::2")
    transfer(driver, recorder, left, right, b"abc" * 11, 20, flow_label=0xABCDE, traffic_class=0x68, hop_limit=255)
    packets = read(capture)
    assert len(packets) == 2
    for _, packet in packets:
        ip, udp = packet.data, packet.data.data
        assert (ip.src, ip.dst) == (gid_of("fd00::1"), gid_of("fd00::2"))
        assert (ip.fc, ip.flow, ip.hlim, ip.nxt) == (0x68, 0xABCDE, 255, 17)
        assert ip.plen == udp.ulen == 8 + len(udp.data)
        assert checksum(ip.src + ip.dst + struct.pack("!II", udp.ulen, 17) + bytes(udp)) == 0xFFFF
    assert [packet.data.data.data for _, packet in packets] == recorder.frames


@pytest.mark.parametrize("gso", [True, False])
def test_identification_is_that_of_the_wire(opened, capture, driver, recorder, gso):
    opened += [PcapLink(UdpLink(gso=gso), capture), UdpLink()]
    left, right = opened
    transfer(driver, recorder, left, right, bytes(450), 100)
    assert [packet.ip.id for _, packet in read(capture)] == [number * left.identification_step for number in range(5)]


def test_frames_to_itself_are_recorded_once(network, capture, driver, recorder, keep):
    link = keep(PcapLink(network.link(["10.0.0.1", "10.0.0.2"]), capture))
    assert link.loops_back
    driver.send(link, driver.route(link, link.gids[0]), b"to myself")
    driver.send(link, driver.route(link, link.gids[1]), b"to my other")
    driver.collect(link, recorder, 2)
    assert [packet.ip.udp.data for _, packet in read(capture)] == [b"to myself", b"to my other"]


def test_port_of_a_stranger(opened, capture, driver, recorder, keep, monkeypatch):
    monkeypatch.setattr("softverbs.links.base.is_loopback", lambda gid: False)  # as if it were of another host
    link = keep(PcapLink(UdpLink(port=4797), capture))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.bind(("127.0.0.1", 0))
        sock.sendto(b"hello", (".".join(map(str, link.gids[0][12:])), 4797))
        driver.collect(link, recorder, 1)
        port = sock.getsockname()[1]
    [(_, packet)] = read(capture)
    assert (packet.ip.udp.sport, packet.ip.udp.dport) == (port, 4797)


def test_what_was_refused_is_not_recorded(capture, driver, keep):
    network = Network(capacity=1)
    link = keep(PcapLink(network.link("10.0.0.1"), capture))
    route = driver.route(link, link.gids[0])
    assert [driver.send(link, route, b"x") for _ in range(3)] == [True, False, False]
    assert len(read(capture)) == 1


def test_inside_faults_the_file_shows_what_is_left(network, capture, driver, recorder, keep):
    left = keep(FaultLink(PcapLink(network.link("10.0.0.1"), capture), script=lambda index, data: [data] * (index % 2)))
    right = network.link("10.0.0.2")
    driver.send(left, driver.route(left, right.gids[0]), b"aabbccdd", 2)
    driver.collect(right, recorder, 2)
    assert [packet.ip.udp.data for _, packet in read(capture)] == recorder.frames == [b"bb", b"dd"]


def test_time_of_a_real_clock(network, capture, driver, keep):
    import time

    link = keep(PcapLink(network.link("10.0.0.1"), capture))
    driver.now = time.monotonic_ns()
    driver.send(link, driver.route(link, link.gids[0]), b"now")
    [(seen, _)] = read(capture)
    assert abs(seen - time.time_ns()) < 5_000_000_000


def test_file_that_cannot_be_opened(network, tmp_path):
    inner = network.link("10.0.0.1")
    with pytest.raises(FileNotFoundError):
        PcapLink(inner, tmp_path / "no folder" / "file")
    inner.close()


def test_reader_of_a_pipe_that_goes(network, tmp_path, driver, recorder, caplog, keep):
    path = tmp_path / "pipe"
    os.mkfifo(path)
    header = []

    def reader():
        with path.open("rb", buffering=0) as file:
            header.append(file.read(24))

    thread = threading.Thread(target=reader)
    thread.start()
    link = keep(PcapLink(network.link("10.0.0.1"), path))
    thread.join()
    assert len(header[0]) == 24
    for _ in range(2):
        driver.send(link, driver.route(link, link.gids[0]), b"goes on")
    driver.collect(link, recorder, 2)
    assert link.stats()["pcap_failed"] == 1
    assert link.stats()["pcap_frames"] == 0
    assert [record.message for record in caplog.records] == ["recording of frames ends: [Errno 32] Broken pipe"]


def roce_frame(source, destination, psn, payload):
    """A SEND Only of an RC queue pair, with its ICRC (InfiniBand specification 9.2 and annex A17.3).

    The payload must not be short: tshark takes it for RPC over RDMA, and then misses the rest.
    """
    bth = struct.pack("!BBHII", 0x04, 0x40, 0xFFFF, 0x000012, 0x80000000 | psn)
    length = 8 + len(bth) + len(payload) + 4
    ip = struct.pack("!BBHHHBBH", 0x45, 0xFF, 20 + length, 0, 0x4000, 0xFF, 17, 0xFFFF) + source + destination
    udp = struct.pack("!HHHH", 4791, 4791, length, 0xFFFF)
    masked = b"\xff" * 8 + ip + udp + bth[:4] + b"\xff" + bth[5:] + payload
    return bth + payload + struct.pack("<I", zlib.crc32(masked))


@pytest.mark.skipif(shutil.which("tshark") is None, reason="tshark is not installed")
def test_tshark_finds_nothing_wrong(network, capture, driver, recorder, keep):
    left, right = keep(PcapLink(network.link("10.0.0.1"), capture)), network.link("10.0.0.2")
    ends = (b"\x0a\0\0\1", b"\x0a\0\0\2")
    burst = b"".join(roce_frame(*ends, psn, bytes(64)) for psn in range(3))
    transfer(driver, recorder, left, right, burst, 80)
    transfer(driver, recorder, right, left, roce_frame(*ends[::-1], 7, bytes(64)), 80)
    fields = ["infiniband.bth.opcode", "infiniband.bth.psn", "ip.id", "udp.checksum.status", "ip.checksum.status"]
    command = ["tshark", "-r", str(capture), "-o", "udp.check_checksum:TRUE", "-o", "ip.check_checksum:TRUE"]
    words = [word for field in fields for word in ("-e", field)]
    done = subprocess.run([*command, "-T", "fields", *words], capture_output=True, text=True, check=True)
    rows = [line.split("\t") for line in done.stdout.splitlines()]
    assert [(row[0], int(row[1]), int(row[2], 16)) for row in rows] == [("4", psn, 0) for psn in (0, 1, 2, 7)]
    assert all(row[3] in ("1", "Good") and row[4] in ("1", "Good") for row in rows)
    odd = ["-Y", "_ws.malformed || _ws.expert.severity >= 0x600000"]  # warnings and errors
    assert subprocess.run([*command, *odd], capture_output=True, text=True, check=True).stdout == ""
