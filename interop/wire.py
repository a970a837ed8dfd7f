# SPDX-License-Identifier: MIT
"""What went over the wire: a capture by tcpdump, and what must be true of every frame in it.

The ICRC is computed here with zlib and knows nothing of softverbs' own.
"""

import contextlib
import ipaddress
import mmap
import re
import signal
import struct
import subprocess
import zlib
from collections import Counter
from typing import Any, Iterator, NamedTuple, Optional

from remote import Wrong

ROCE_PORT = 4791
ETHERNET, UDP, BTH = 14, 8, 12  # bytes of headers
DONT_FRAGMENT = 0x4000
PATIENCE = 30  # seconds for tcpdump to begin, and to end
# Payloads are random bytes: what they may look like is no matter of RoCE's.
GUESSES = ("smc", "smb_direct", "rpcordma", "nvme-rdma", "lnet", "iser", "infiniband.eoib", "infiniband_sdp", "fcoib")
GUESSING = "eth_over_ib"  # takes the first two bytes for an Ethernet type


class Frame(NamedTuple):
    """A RoCEv2 frame, as captured."""

    number: int
    source: str
    fragment: int  # IPv4: flags and offset
    identification: Optional[int]  # None: IPv6
    flow: bytes  # addresses and ports
    transport: bytes  # from the BTH to before the ICRC
    right: bool  # the ICRC is that of the frame

    @property
    def what(self) -> str:
        """For messages."""
        return f"frame {self.number} (opcode {self.transport[0]:#04x}, {len(self.transport)} bytes)"


def icrc(ip: bytes, udp: bytes, transport: bytes) -> bytes:
    """The invariant CRC of a RoCEv2 packet (annex A17): what routers may change counts as ones.

    :param transport: from the BTH to the pad
    """
    masked_ip, masked_udp, masked = bytearray(ip), bytearray(udp), bytearray(transport)
    if ip[0] >> 4 == 4:
        for at in (1, 8, 10, 11):  # type of service, time to live, checksum
            masked_ip[at] = 0xFF
    else:
        masked_ip[0] |= 0x0F  # traffic class
        for at in (1, 2, 3, 7):  # traffic class, flow label, hop limit
            masked_ip[at] = 0xFF
    masked_udp[6] = masked_udp[7] = 0xFF
    masked[4] = 0xFF
    return struct.pack("<I", zlib.crc32(bytes([0xFF]) * 8 + masked_ip + masked_udp + masked))


def parse(number: int, data: bytes) -> Frame:
    """An Ethernet frame that tcpdump took for RoCEv2; Wrong if its lengths do not fit."""
    kind = int.from_bytes(data[12:14], "big")
    ip_length = {0x0800: (data[14] & 15) * 4, 0x86DD: 40}[kind]
    start = ETHERNET + ip_length
    ip, udp = data[ETHERNET:start], data[start : start + UDP]
    ipv4 = kind == 0x0800
    told = int.from_bytes(ip[2:4], "big") if ipv4 else 40 + int.from_bytes(ip[4:6], "big")
    if told != len(data) - ETHERNET or int.from_bytes(udp[4:6], "big") != told - ip_length:
        raise Wrong(f"frame {number} has {len(data)} bytes, and headers that say otherwise")
    transport, crc = data[start + UDP : -4], data[-4:]
    if len(transport) < BTH:
        raise Wrong(f"frame {number} is too short for a BTH")
    addresses = ip[12:20] if ipv4 else ip[8:40]
    source = str(ipaddress.ip_address(addresses[: len(addresses) // 2]))
    fragment, identification = (int.from_bytes(ip[6:8], "big"), int.from_bytes(ip[4:6], "big")) if ipv4 else (0, None)
    right = icrc(ip, udp, transport) == crc
    return Frame(number, source, fragment, identification, addresses + udp[:4], transport, right)


def records(path: str) -> "Iterator[tuple[int, bytes]]":
    """Number and bytes of every frame in a capture of tcpdump (pcap-savefile(5)); counted from 1, as by tshark."""
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        order = "<" if data[:4] in (b"\xd4\xc3\xb2\xa1", b"\x4d\x3c\xb2\xa1") else ">"
        at, number = 24, 1
        while at + 16 <= len(data):
            kept = struct.unpack_from(order + "I", data, at + 8)[0]
            yield number, data[at + 16 : at + 16 + kept]
            at, number = at + 16 + kept, number + 1


class Findings:
    """What a capture shows of our side."""

    def __init__(self, path: str, ours: "list[str]") -> None:
        """
        :param ours: our addresses
        """
        self.frames: "Counter[str]" = Counter()  # by side
        self.bad: "dict[str, list[str]]" = {"ours": [], "theirs": []}  # whose ICRC is wrong
        self.opcodes: "Counter[int]" = Counter()  # of our frames
        self.unlike: "list[str]" = []  # frames of ours that are fragments, or whose identification does not count
        self.bursts: "Counter[int]" = Counter()  # frames in an IPv4 burst of ours: how many such bursts
        self.unfit: "list[str]" = []  # frames that could not be taken apart
        self.before: "Optional[Frame]" = None  # our last frame of IPv4
        for number, data in records(path):
            try:
                frame = parse(number, data)
            except Wrong as error:
                self.unfit.append(str(error))
            else:
                self._add(frame, "ours" if frame.source in ours else "theirs")
        self._ends()

    def _add(self, frame: Frame, side: str) -> None:
        self.frames[side] += 1
        if not frame.right:
            self.bad[side].append(frame.what)
        if side == "ours":
            self.opcodes[frame.transport[0]] += 1
            if frame.identification is not None:
                self._count(self.before, frame)
                self.before = frame

    def _ends(self) -> None:
        if self.before is not None and self.before.identification:
            self.bursts[self.before.identification + 1] += 1

    def _count(self, before: "Optional[Frame]", frame: Frame) -> None:
        """One more frame of IPv4: the first of a burst has identification 0, and each one more than the one before."""
        if frame.fragment != DONT_FRAGMENT:
            self.unlike.append(f"{frame.what} has flags and fragment offset {frame.fragment:#06x}")
        if frame.identification == 0:
            return self._ends()
        follows = (
            before is not None
            and before.identification is not None
            and frame.identification == before.identification + 1
            and frame.flow == before.flow
            and len(frame.transport) <= len(before.transport)
        )
        if not follows:
            self.unlike.append(f"{frame.what} has identification {frame.identification}, and does not go on a burst")

    def check_lengths(self) -> None:
        """Wrong if a frame could not be taken apart."""
        if self.unfit:
            raise Wrong(f"{len(self.unfit)} frames: {'; '.join(self.unfit[:5])}")

    def check_icrc(self, side: str) -> None:
        """Wrong unless there are frames and each has the right ICRC."""
        if not self.frames[side]:
            raise Wrong(f"no frame of {side} was captured")
        if self.bad[side]:
            raise Wrong(
                f"{len(self.bad[side])} of {self.frames[side]} have a wrong ICRC: {', '.join(self.bad[side][:5])}"
            )

    def check_bursts(self) -> None:
        """Wrong unless IPv4's identifications are 0, 1, 2, ... in each burst."""
        if self.unlike:
            raise Wrong(f"{len(self.unlike)} frames: {'; '.join(self.unlike[:5])}")

    def __str__(self) -> str:
        many = sum(self.bursts.values())
        longest = f", the longest of {max(self.bursts)} frames" if many else ""
        return (
            f"{self.frames['ours']} frames of ours, {self.frames['theirs']} of rxe's; "
            f"{many} IPv4 bursts of ours{longest}"
        )


def tshark(path: str, ours: "list[str]", expected: "Counter[int]") -> None:
    """Wrong if tshark finds a frame of ours malformed or a checksum bad, or sees other opcodes than we do."""
    fields = ("frame.number", "infiniband.bth.opcode", "_ws.malformed", "ip.checksum.status", "udp.checksum.status")
    mine = " || ".join(f"{'ipv6' if ':' in address else 'ip'}.src == {address}" for address in ours)
    command = ["tshark", "-n", "-r", path, "-Y", mine, "-T", "fields", "-E", "occurrence=f"]
    command += [word for field in fields for word in ("-e", field)]
    command += ["-o", "ip.check_checksum:TRUE", "-o", "udp.check_checksum:TRUE"]
    command += [word for guess in GUESSES for word in ("--disable-protocol", guess)]
    command += ["--disable-heuristic", GUESSING]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode:
        raise Wrong(f"tshark: {result.stderr.strip()[-300:]}")
    seen: "Counter[int]" = Counter()
    bad = []
    for line in result.stdout.splitlines():
        number, opcode, malformed, ip, udp = line.split("\t")
        if opcode:
            seen[int(opcode)] += 1
        # 1 is good; 3 is "not there", as in IPv6 or with a UDP checksum of 0
        if malformed or not opcode or ip not in ("", "1") or udp not in ("1", "3"):
            bad.append(f"frame {number}: {malformed or 'checksums of IP and UDP: ' + ip + ' ' + udp}")
    if bad:
        raise Wrong(f"tshark objects to {len(bad)} frames: {', '.join(bad[:5])}")
    if seen != expected:
        raise Wrong(f"tshark sees the opcodes {dict(seen)}, not {dict(expected)}")


@contextlib.contextmanager
def capture(device: str, path: str) -> "Iterator[None]":
    """Captures RoCEv2 on an interface; Wrong if the kernel lost frames of it."""
    command = ["tcpdump", "-n", "-i", device, "--immediate-mode", "-B", "131072", "-s", "0", "-Z", "root", "-w", path]
    process: "subprocess.Popen[str]" = subprocess.Popen(
        [*command, "udp", "port", str(ROCE_PORT)], stderr=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    said = ""
    try:
        while "listening" not in said:
            line = process.stderr.readline()
            said += line
            if not line:
                raise Wrong(f"tcpdump: {said.strip()}")
        yield
    finally:
        process.send_signal(signal.SIGINT)
        said += process.communicate(timeout=PATIENCE)[1]
    lost: "Any" = re.search(r"(\d+) packets dropped by kernel", said)
    if lost is None or int(lost[1]):
        raise Wrong(f"tcpdump did not get everything: {said.strip()}")
