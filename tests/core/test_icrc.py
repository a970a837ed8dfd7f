# SPDX-License-Identifier: MIT
"""The ICRC against scapy, against packets of Linux rxe, and against what linearity promises."""

import ipaddress
import os
import random
import struct
import zlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scapy.contrib.roce import BTH
from scapy.layers.inet import IP, UDP
from scapy.layers.inet6 import IPv6
from scapy.packet import Raw
from scapy.utils import RawPcapReader

from softverbs.core.memory import raw as memory
from softverbs.core.wire import icrc, opcodes
from softverbs.core.wire.icrc import IcrcPath

ROOT = Path(__file__).parents[2]
SHARED = Path(os.environ.get("SOFTVERBS_SHARED", ROOT.parent / "shared"))
CAPTURES = [ROOT / "tests" / "data" / "golden.pcap", *sorted((SHARED / "rxe-pcap").glob("*.pcap"))]

frame_lengths = st.one_of(st.integers(3, 20).map(lambda n: 4 * n), st.integers(12, 5000), st.sampled_from([4124, 9000]))
identifications = st.one_of(st.sampled_from([0, 1, 0xFF, 0x100, 0x8000, 0xFFFF]), st.integers(0, 0xFFFF))

BLOCK = memory.Block(1 << 16)
AT = BLOCK.address


def gid(address):
    parsed = ipaddress.ip_address(address)
    return parsed.packed if parsed.version == 6 else bytes(10) + b"\xff\xff" + parsed.packed


V4 = IcrcPath(gid("10.77.0.2"), gid("192.168.3.254"), 49152)
V6 = IcrcPath(gid("fd77::2"), gid("fd77::1:2"), 49153)
BOTH = pytest.mark.parametrize("path", [V4, V6], ids=["v4", "v6"])


def put(frame):
    memory.view(AT, len(frame))[:] = frame


def sealed(path, frame, identification):
    """Puts ``frame`` with its ICRC into memory; their length."""
    put(frame)
    memory.store32(AT + len(frame), path.compute(AT, len(frame), identification))
    return len(frame) + 4


def random_frame(seed, length):
    return random.Random(seed).randbytes(length)


# ---- against others


def rocev2(capture):
    """(IP header, UDP header, UDP payload) of each RoCEv2 packet in a capture of Ethernet."""
    with RawPcapReader(str(capture)) as packets:
        for packet, _ in packets:
            end = 34 if packet[12:14] == b"\x08\x00" else 54
            ip, udp = packet[14:end], packet[end : end + 8]
            if ip[9 if end == 34 else 6] == 17 and udp[2:4] == b"\x12\xb7":
                yield ip, udp, packet[end + 8 : end + int.from_bytes(udp[4:6], "big")]


def path_of(ip, udp):
    ends = (ip[12:16], ip[16:20]) if len(ip) == 20 else (ip[8:24], ip[24:40])
    source_port, dest_port = struct.unpack_from("!HH", udp)
    return IcrcPath(*(gid(ipaddress.ip_address(end)) for end in ends), source_port, dest_port)


@pytest.mark.parametrize("capture", CAPTURES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_every_captured_packet(capture):
    packets = 0
    for ip, udp, frame in rocev2(capture):
        path = path_of(ip, udp)
        identification = int.from_bytes(ip[4:6], "big") if path.ipv4 else 0
        put(frame)
        assert opcodes.flags(frame[0]) != 0
        assert path.compute(AT, len(frame) - 4, identification) == memory.load32(AT + len(frame) - 4)
        assert path.verify(AT, len(frame), identification, True) == identification
        assert path.verify(AT, len(frame), 0, False) == identification
        assert bytes(memory.view(AT, len(frame))) == frame
        packets += 1
    assert packets > 5


def scapy_icrc(ip, source_port, frame):
    """The four bytes that scapy appends; the BTH is dissected from the frame, the rest is payload."""
    bth = BTH(frame[:12] + bytes(4))
    bth.icrc = None
    bth.remove_payload()
    built = bytes(ip / UDP(sport=source_port, dport=4791) / bth / Raw(frame[12:]))
    header = 20 if isinstance(ip, IP) else 40
    assert built[header + 8 : -4] == frame
    return built[-4:]


def settled(seed, length):
    """A random frame of an opcode that scapy attaches no further headers to."""
    return b"\x04" + random_frame(seed, length - 1)


@pytest.mark.parametrize("length", [12, 16, 28, 40, 41, 267, 1036, 4112, 8192])
def test_same_as_scapy_ipv4(length):
    rng = random.Random(length)
    for _ in range(5):
        source, dest = ipaddress.IPv4Address(rng.getrandbits(32)), ipaddress.IPv4Address(rng.getrandbits(32))
        port, identification = rng.randrange(1, 65536), rng.getrandbits(16)
        frame = settled(rng.random(), length)
        path = IcrcPath(gid(source), gid(dest), port)
        assert path.ipv4
        ip = IP(
            src=str(source),
            dst=str(dest),
            id=identification,
            flags="DF",
            tos=rng.getrandbits(8),
            ttl=rng.getrandbits(8),
        )
        sealed(path, frame, identification)
        assert bytes(memory.view(AT + length, 4)) == scapy_icrc(ip, port, frame)


@pytest.mark.parametrize("length", [12, 16, 28, 40, 41, 267, 1036, 4112, 8192])
def test_same_as_scapy_ipv6(length):
    rng = random.Random(length)
    for _ in range(5):
        source, dest = ipaddress.IPv6Address(rng.getrandbits(128)), ipaddress.IPv6Address(rng.getrandbits(128))
        port = rng.randrange(1, 65536)
        frame = settled(rng.random(), length)
        path = IcrcPath(gid(source), gid(dest), port)
        assert not path.ipv4
        ip = IPv6(
            src=str(source), dst=str(dest), fl=rng.getrandbits(20), tc=rng.getrandbits(8), hlim=rng.getrandbits(8)
        )
        sealed(path, frame, rng.getrandbits(16))
        assert bytes(memory.view(AT + length, 4)) == scapy_icrc(ip, port, frame)


# ---- the path


def test_one_mapped_address_is_not_enough_for_ipv4():
    assert not IcrcPath(gid("10.0.0.1"), gid("fd77::1"), 4791).ipv4
    assert not IcrcPath(gid("fd77::1"), gid("10.0.0.1"), 4791).ipv4


@pytest.mark.parametrize("wrong", [b"", bytes(4), bytes(15), bytes(17)])
def test_gid_of_another_length(wrong):
    with pytest.raises(ValueError, match="16 bytes"):
        IcrcPath(wrong, bytes(16), 4791)
    with pytest.raises(ValueError, match="16 bytes"):
        IcrcPath(bytes(16), wrong, 4791)


def test_ports_and_direction_count():
    put(random_frame(1, 60))
    ends = gid("10.0.0.1"), gid("10.0.0.2")
    paths = [
        IcrcPath(*ends, 4791),
        IcrcPath(*ends, 4792),
        IcrcPath(*ends, 4791, 4790),
        IcrcPath(*reversed(ends), 4791),
    ]
    assert len({path.compute(AT, 60, 0) for path in paths}) == 4
    assert paths[0].compute(AT, 60, 0) == IcrcPath(*ends, 4791, 4791).compute(AT, 60, 0)


# ---- the frame


@BOTH
def test_congestion_marks_do_not_count_and_are_kept(path):
    frame = bytearray(random_frame(2, 64))
    length = sealed(path, bytes(frame), 77)
    for mark in (0, 0x40, 0x80, 0xFF):
        memory.store8(AT + 4, mark)
        assert path.verify(AT, length, 77, True) == 77
        assert memory.load8(AT + 4) == mark


@BOTH
@pytest.mark.parametrize("known", [True, False])
def test_too_short(path, known):
    put(bytes(64))
    for length in range(16):
        assert path.verify(AT, length, 0, known) == -1


@BOTH
def test_lengths_in_any_order(path):
    """There is no state between calls that a change of length could upset."""
    rng = random.Random(3)
    for _ in range(200):
        size, identification = rng.choice([12, 16, 28, 1036, 1052, 4108, 4124]), rng.getrandbits(16)
        length = sealed(path, random_frame(rng.random(), size), identification)
        assert path.verify(AT, length, 0, False) == (identification if path.ipv4 else 0)


def test_largest_udp_payload():
    length = sealed(V4, random_frame(4, 65503), 0xBEEF)
    assert V4.verify(AT, length, 0, False) == 0xBEEF
    assert V4.verify(AT, length, 0, True) == -1


# ---- linearity


@given(frame_lengths, identifications, st.integers())
def test_identification_enters_linearly(length, identification, seed):
    put(random_frame(seed, length))
    base = V4.compute(AT, length, 0)
    total = base
    for bit in range(16):
        if identification >> bit & 1:
            total ^= V4.compute(AT, length, 1 << bit) ^ base
    assert V4.compute(AT, length, identification) == total


@given(frame_lengths, identifications, identifications, st.integers())
def test_any_identification_is_found(length, identification, guess, seed):
    length = sealed(V4, random_frame(seed, length), identification)
    assert V4.verify(AT, length, guess, False) == identification
    assert V4.verify(AT, length, guess, True) == (identification if guess == identification else -1)


@given(frame_lengths, identifications, identifications, st.integers())
def test_ipv6_has_no_identification(length, one, other, seed):
    length = sealed(V6, random_frame(seed, length), one)
    assert V6.verify(AT, length, other, False) == other
    assert V6.verify(AT, length, other, True) == other


def test_every_identification_of_one_frame():
    frame = random_frame(5, 28)
    put(frame)
    for identification in range(0, 65536, 17):
        memory.store32(AT + 28, V4.compute(AT, 28, identification))
        assert V4.verify(AT, 32, 0, False) == identification


@given(st.integers(0, 0xFFFFFFFF), st.integers(0, 0xFFFFFFFF), st.integers(0, 0xFFFFFFFF))
def test_multiplication_is_that_of_a_ring(a, b, c):
    one = 1 << 31
    assert icrc._multiply(a, one) == a
    assert icrc._multiply(a, b) == icrc._multiply(b, a)
    assert icrc._multiply(a, icrc._multiply(b, c)) == icrc._multiply(icrc._multiply(a, b), c)
    assert icrc._multiply(a, b ^ c) == icrc._multiply(a, b) ^ icrc._multiply(a, c)


@given(st.integers(0, 70000))
def test_inverse_undoes_the_bytes_behind(length):
    field = b"\x12\x34" + bytes(22 + length)
    moved = zlib.crc32(field) ^ zlib.crc32(bytes(len(field)))
    assert icrc._multiply(moved, icrc._inverse(length)) == 0x34120000
    assert icrc._inverse(length) == icrc._inverse(length)


# ---- damage


@BOTH
@pytest.mark.parametrize("size", [12, 36, 300])
def test_single_bit_flips_are_refused_when_the_identification_is_known(path, size):
    length = sealed(path, random_frame(6, size), 0x4242)
    for bit in range(8 * length):
        if bit // 8 == 4:
            continue
        at = AT + bit // 8
        memory.store8(at, memory.load8(at) ^ 1 << bit % 8)
        assert path.verify(AT, length, 0x4242, True) == -1
        memory.store8(at, memory.load8(at) ^ 1 << bit % 8)
    assert path.verify(AT, length, 0x4242, True) == 0x4242


def damaged(rng, length):
    """Overwrites a random run of bytes, of which at least one changes and none is byte 4."""
    while True:
        start = rng.randrange(5, length)
        run = min(rng.randrange(1, 40), length - start)
        old = bytes(memory.view(AT + start, run))
        new = rng.randbytes(run)
        if new != old:
            memory.view(AT + start, run)[:] = new
            return start, old


@BOTH
@pytest.mark.parametrize("known", [True, False])
def test_random_damage_is_refused(path, known):
    """Unknown, one in 65,536 would pass: none of these 3,000 does."""
    rng = random.Random(7)
    length = sealed(path, random_frame(8, 200), 999)
    for _ in range(3000):
        start, old = damaged(rng, length)
        assert path.verify(AT, length, 999, known) == -1
        memory.view(AT + start, len(old))[:] = old
    assert path.verify(AT, length, 999, known) == 999


def test_how_much_damage_passes_when_the_identification_is_unknown():
    """Of 2^32 values of the ICRC 2^16 are taken: those, and no other, that an identification makes."""
    put(random_frame(9, 16))
    right = {V4.compute(AT, 16, identification) for identification in range(65536)}
    assert len(right) == 65536
    rng = random.Random(10)
    for word in [*rng.sample(sorted(right), 200), *(rng.getrandbits(32) for _ in range(5000))]:
        memory.store32(AT + 16, word)
        assert (V4.verify(AT, 20, 0, False) != -1) == (word in right)


@BOTH
def test_wrong_path_or_length_is_refused(path):
    frame = random_frame(11, 64)
    length = sealed(path, frame, 5)
    other = IcrcPath(gid("10.77.0.2"), gid("192.168.3.253"), 49152)
    assert other.verify(AT, length, 5, False) == -1
    for wrong in (length - 4, length - 1, length + 1, length + 4):
        assert path.verify(AT, wrong, 5, False) == -1


@pytest.mark.skipif(not icrc.__file__.endswith(".py"), reason="the constant is out of Python's reach when compiled")
def test_big_endian_hosts_swap(monkeypatch):
    monkeypatch.setattr(icrc, "_BIG_ENDIAN", True)
    assert icrc._wire(0x11223344) == 0x44332211
    put(random_frame(12, 60))
    swapped = V4.compute(AT, 60, 0x1234)
    memory.store32be(AT + 60, swapped)
    monkeypatch.setattr(icrc, "_BIG_ENDIAN", False)
    assert V4.verify(AT, 64, 0x1234, True) == 0x1234
    monkeypatch.setattr(icrc, "_BIG_ENDIAN", True)
    memory.store32(AT + 60, swapped)
    assert V4.verify(AT, 64, 0, False) == 0x1234
