# SPDX-License-Identifier: MIT
"""Frames of UC and UD that Linux's Soft-RoCE has sent: ours read them, and write the same for the same messages.

tests/data/golden_unreliable.pcap is what rdma_rxe of Linux 6.1 sent at a path MTU of 1024: SEND and RDMA WRITE, with
and without immediate data, of lengths that need every pad, over IPv4 and IPv6.
"""

import ipaddress
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from scapy.utils import RawPcapReader
from tests.netsim.pair import WR_SEND, WR_SEND_IMM, WR_WRITE, WR_WRITE_IMM, Pair
from tests.netsim.sim import QPT_UC, QPT_UD

from softverbs.core.memory.raw import Block, load32, view
from softverbs.core.wire import headers, opcodes
from softverbs.core.wire.icrc import IcrcPath

CAPTURE = Path(__file__).parents[1] / "data" / "golden_unreliable.pcap"
BLOCK = Block(8192)
AT = BLOCK.address
BTH, DETH, RETH, IMM, GRH = 12, 8, 16, 4, 40
MIGRATED = 0x40  # in the second byte of the BTH: ours sets it, Soft-RoCE does not (docs/deviations.md)
CHOSEN = slice(BTH + 5, BTH + 8)  # of a datagram: the sender's queue pair


class Packet(NamedTuple):
    """A packet of the capture."""

    source: str
    dest: str
    port: int  # UDP source port
    identification: int
    frame: bytes  # BTH to ICRC

    @property
    def kind(self) -> int:
        return QPT_UD if self.frame[0] >> 5 == 3 else QPT_UC

    def has(self, flag: str) -> bool:
        return bool(opcodes.flags(self.frame[0]) & opcodes.FLAG_NAMES[flag])

    @property
    def payload(self) -> bytes:
        pad = self.frame[1] >> 4 & 3
        return self.frame[opcodes.header_length(self.frame[0]) : len(self.frame) - 4 - pad]


def packets() -> Iterator[Packet]:
    with RawPcapReader(str(CAPTURE)) as reader:
        for data, _ in reader:
            ipv4 = data[12:14] == b"\x08\x00"
            ends = (data[26:30], data[30:34]) if ipv4 else (data[22:38], data[38:54])
            start = 34 if ipv4 else 54
            identification = int.from_bytes(data[18:20], "big") if ipv4 else 0
            source, dest = (str(ipaddress.ip_address(end)) for end in ends)
            yield Packet(
                source, dest, int.from_bytes(data[start : start + 2], "big"), identification, data[start + 8 :]
            )


def messages() -> list[list[Packet]]:
    """The packets of each message."""
    found: list[list[Packet]] = [[]]
    for packet in packets():
        found[-1].append(packet)
        if packet.has("LAST") or packet.has("ONLY"):
            found.append([])
    return found[:-1]


def name(message: list[Packet]) -> str:
    length = sum(len(packet.payload) for packet in message)
    family = "v6" if ":" in message[0].source else "v4"
    return f"{opcodes.name(message[-1].frame[0])}-{length}-{family}"


MESSAGES = messages()
each_message = pytest.mark.parametrize("message", MESSAGES, ids=[name(message) for message in MESSAGES])


def test_there_is_one_of_each() -> None:
    names = {opcodes.name(packet.frame[0]) for packet in packets()}
    assert names == {
        f"UC_{op}_{part}{imm}"
        for op in ("SEND", "RDMA_WRITE")
        for part in ("FIRST", "LAST", "ONLY")
        for imm in ("", "_WITH_IMMEDIATE")
        if part != "FIRST" or not imm
    } | {"UD_SEND_ONLY", "UD_SEND_ONLY_WITH_IMMEDIATE"}
    assert {packet.frame[1] >> 4 & 3 for packet in packets() if packet.kind == QPT_UD} == {0, 1, 3}


@each_message
def test_the_icrc(message: list[Packet]) -> None:
    for packet in message:
        ends = (ipaddress.ip_address(end) for end in (packet.source, packet.dest))
        gids = [end.packed if end.version == 6 else bytes(10) + b"\xff\xff" + end.packed for end in ends]
        path = IcrcPath(gids[0], gids[1], packet.port)
        view(AT, len(packet.frame))[:] = packet.frame
        assert path.compute(AT, len(packet.frame) - 4, packet.identification) == load32(AT + len(packet.frame) - 4)
        assert path.verify(AT, len(packet.frame), packet.identification, True) == packet.identification


@each_message
def test_the_headers(message: list[Packet]) -> None:
    for packet in message:
        view(AT, len(packet.frame))[:] = packet.frame
        assert (headers.bth_version(AT), headers.bth_pad(AT)) == (0, -len(packet.payload) % 4)
        assert headers.bth_dest_qpn(AT) == int.from_bytes(packet.frame[5:8], "big")
        if packet.has("FIRST"):
            assert len(packet.payload) == 1024
        if packet.has("DETH"):
            assert headers.deth_qkey(AT + BTH) == 0x11111111
        if packet.has("RETH"):
            assert headers.reth_length(AT + BTH) == sum(len(each.payload) for each in message)


# -- reading


def readdressed(packet: Packet, pair: Pair) -> bytes:
    """The frame without ICRC, to the queue pair and into the memory of ``pair``'s second end."""
    frame = bytearray(packet.frame[:-4])
    frame[5:8] = pair.b.qp.qp_num.to_bytes(3, "big")
    if packet.has("RETH"):
        frame[BTH : BTH + 12] = struct.pack(">QI", pair.b.memory.iova + 0x2000, pair.b.memory.key)
    return bytes(frame)


@each_message
def test_ours_takes_it(message: list[Packet]) -> None:
    first, last = message[0], message[-1]
    data = b"".join(packet.payload for packet in message)
    psn = int.from_bytes(first.frame[9:12], "big")
    ahead = GRH if first.kind == QPT_UD else 0
    with Pair(kind=first.kind, addresses=(first.source, first.dest), rq_psn=psn, qkey=0x11111111) as pair:
        pair.b.put(0x2000, b"\xee" * 0x1000)
        pair.b.receive(0x2000 - ahead, 0x800 + ahead, wr_id=5)
        for packet in message:
            pair.inject(pair.a, readdressed(packet, pair))
        assert pair.b.at(0x2000, len(data) + 1) == data + b"\xee"
        found = pair.b.polled()
        write = any(packet.has("RETH") for packet in message)
        if write and not last.has("IMM"):
            assert found == []
            return
        (wc,) = found
        assert (wc.wr_id, wc.status, wc.opcode) == (5, 0, 129 if write else 128)
        assert wc.byte_len == len(data) + ahead
        assert wc.wc_flags == (1 if ahead else 0) | (2 if last.has("IMM") else 0)
        if last.has("IMM"):
            at = opcodes.header_length(last.frame[0]) - IMM
            assert struct.pack("=I", wc.imm_data) == last.frame[at : at + IMM]
        if ahead:
            assert wc.src_qp == int.from_bytes(last.frame[CHOSEN], "big")


# -- writing


OPCODES = {(False, False): WR_SEND, (False, True): WR_SEND_IMM, (True, False): WR_WRITE, (True, True): WR_WRITE_IMM}


@each_message
def test_ours_would_send_the_same(message: list[Packet]) -> None:
    """Byte by byte but for MigReq, the number of the sending queue pair, and so the ICRC."""
    first, last = message[0], message[-1]
    data = b"".join(packet.payload for packet in message)
    attributes: dict[str, Any] = {"sq_psn": int.from_bytes(first.frame[9:12], "big")}
    number = int.from_bytes(first.frame[5:8], "big")
    if first.kind == QPT_UC:
        attributes["dest_qp_num"] = number
    with Pair(kind=first.kind, addresses=(first.source, first.dest), **attributes) as pair:
        pair.a.put(0, data)
        wr = pair.a.wr(OPCODES[first.has("RETH"), last.has("IMM")], 0, len(data), qpn=number, qkey=0x11111111)
        if last.has("IMM"):
            at = opcodes.header_length(last.frame[0]) - IMM
            wr.imm_data = struct.unpack("=I", last.frame[at : at + IMM])[0]
        if first.has("RETH"):
            address, key = struct.unpack_from(">QI", first.frame, BTH)
            wr.set_wr_rdma(key, address)
        pair.a.qp.post_send(wr)
        pair.sim.settle()
        sent = [bytearray(frame[:-4]) for frame in pair.sent(pair.a)]
        for frame in sent:
            assert frame[1] & MIGRATED
            frame[1] ^= MIGRATED
            if first.kind == QPT_UD:
                assert int.from_bytes(frame[CHOSEN], "big") == pair.a.qp.qp_num
                frame[CHOSEN] = first.frame[CHOSEN]
        assert sent == [packet.frame[:-4] for packet in message]
        assert pair.a.done() == [(0, 0)]
