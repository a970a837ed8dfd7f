# SPDX-License-Identifier: MIT
"""The opcode table against scapy's, against its own rules, and against packets of Linux rxe."""

from pathlib import Path

import pytest
from scapy.contrib import roce
from scapy.utils import RawPcapReader

from softverbs.core.memory import raw as memory
from softverbs.core.wire import headers, opcodes

GOLDEN = Path(__file__).parents[1] / "data" / "golden.pcap"
OF = opcodes.NAMES
F = opcodes.FLAG_NAMES
POSITIONS = F["FIRST"] | F["MIDDLE"] | F["LAST"] | F["ONLY"]
KNOWN = sorted(OF.values())

# Bytes of headers, BTH included, counted by hand from the layouts in the InfiniBand specification.
LENGTHS = {
    "RC_SEND_ONLY": 12,
    "RC_SEND_ONLY_WITH_IMMEDIATE": 16,
    "RC_SEND_LAST_WITH_INVALIDATE": 16,
    "RC_RDMA_WRITE_FIRST": 28,
    "RC_RDMA_WRITE_MIDDLE": 12,
    "RC_RDMA_WRITE_LAST_WITH_IMMEDIATE": 16,
    "RC_RDMA_WRITE_ONLY_WITH_IMMEDIATE": 32,
    "RC_RDMA_READ_REQUEST": 28,
    "RC_RDMA_READ_RESPONSE_FIRST": 16,
    "RC_RDMA_READ_RESPONSE_MIDDLE": 12,
    "RC_ACKNOWLEDGE": 16,
    "RC_ATOMIC_ACKNOWLEDGE": 24,
    "RC_COMPARE_SWAP": 40,
    "RC_FETCH_ADD": 40,
    "RC_FLUSH": 32,
    "RC_ATOMIC_WRITE": 28,
    "UC_RDMA_WRITE_ONLY": 28,
    "UD_SEND_ONLY": 20,
    "UD_SEND_ONLY_WITH_IMMEDIATE": 24,
    "CNP": 12,
    "EXPLAIN": 12,
}


def is_set(opcode, flag):
    return bool(opcodes.flags(opcode) & F[flag])


def test_same_as_scapy():
    theirs = {name: code for code, name in roce._bth_opcodes.items() if not name.startswith("RD_")}
    newer = {
        "RC_SEND_LAST_WITH_INVALIDATE": 0x16,
        "RC_SEND_ONLY_WITH_INVALIDATE": 0x17,
        "RC_FLUSH": 0x1C,
        "RC_ATOMIC_WRITE": 0x1D,
        "EXPLAIN": 0xC0,
    }
    # XRC: the operations of RC, with other high bits; FLUSH and ATOMIC_WRITE are not among ours (annex A14).
    known = theirs | newer
    xrc = {f"X{name}": code | 0xA0 for name, code in known.items() if name.startswith("RC_") and code <= 0x17}
    assert known | xrc == OF


def test_names_both_ways():
    for name, opcode in OF.items():
        assert opcodes.name(opcode) == name
    assert opcodes.name(0x15) == "0x15"
    assert opcodes.name(0xFF) == "0xFF"


def test_every_opcode_can_be_asked():
    for opcode in range(256):
        known = opcode in KNOWN
        assert is_set(opcode, "KNOWN") == known
        if not known:
            assert opcodes.flags(opcode) == 0
            assert opcodes.header_length(opcode) == 12
            assert opcodes.name(opcode) == f"0x{opcode:02X}"


@pytest.mark.parametrize(("name", "length"), list(LENGTHS.items()))
def test_header_length(name, length):
    assert opcodes.header_length(OF[name]) == length


def test_flag_bits_are_single_and_distinct():
    assert len(set(F.values())) == len(F)
    assert all(bit > 0 and bit & (bit - 1) == 0 and bit < 1 << 31 for bit in F.values())


@pytest.mark.parametrize("opcode", KNOWN, ids=opcodes.name)
def test_flags_agree_with_the_name(opcode):
    name = opcodes.name(opcode)
    if name == "CNP":
        assert opcodes.flags(opcode) == F["KNOWN"] | F["PAYLOAD"]
        return
    position = opcodes.flags(opcode) & POSITIONS
    assert position in (F["FIRST"], F["MIDDLE"], F["LAST"], F["ONLY"])
    for word in ("FIRST", "MIDDLE", "LAST"):
        assert is_set(opcode, word) == (f"_{word}" in name)
    assert is_set(opcode, "SEND") == ("_SEND_" in name)
    assert is_set(opcode, "WRITE") == ("_RDMA_WRITE_" in name)
    assert is_set(opcode, "READ") == ("_RDMA_READ_" in name)
    operation = name.removeprefix("X").removeprefix("RC_")
    assert is_set(opcode, "ATOMIC") == (operation in ("ATOMIC_ACKNOWLEDGE", "COMPARE_SWAP", "FETCH_ADD"))
    assert is_set(opcode, "ACK") == ("ACKNOWLEDGE" in name)
    assert is_set(opcode, "IMM") == ("IMMEDIATE" in name)
    assert is_set(opcode, "IETH") == ("INVALIDATE" in name)
    assert is_set(opcode, "DETH") == name.startswith("UD_")
    assert is_set(opcode, "RESPONSE") == ("ACKNOWLEDGE" in name or "RESPONSE" in name or name == "EXPLAIN")
    assert is_set(opcode, "REQUEST") != is_set(opcode, "RESPONSE")


def test_uc_is_rc_with_another_transport():
    for name, opcode in OF.items():
        if name.startswith("UC_"):
            assert opcode == OF["RC_" + name[3:]] + 0x20
            assert opcodes.flags(opcode) == opcodes.flags(opcode - 0x20)


def golden():
    """UDP payloads without ICRC."""
    with RawPcapReader(str(GOLDEN)) as packets:
        for packet, _ in packets:
            yield packet[42:-4] if packet[12:14] == b"\x08\x00" else packet[62:-4]


def test_golden_packets_are_as_long_as_the_table_says():
    block = memory.Block(8192)
    at = block.address
    seen = set()
    for frame in golden():
        memory.view(at, len(frame))[:] = frame
        opcode = headers.bth_opcode(at)
        seen.add(opcodes.name(opcode))
        payload = len(frame) - opcodes.header_length(opcode) - headers.bth_pad(at)
        assert payload >= 0
        assert headers.bth_version(at) == 0
        if not is_set(opcode, "PAYLOAD"):
            assert payload == 0
            assert headers.bth_pad(at) == 0
        if is_set(opcode, "RETH") and is_set(opcode, "ONLY") and is_set(opcode, "PAYLOAD"):
            assert payload == headers.reth_length(at + 12)
        if is_set(opcode, "FIRST") or is_set(opcode, "MIDDLE"):
            assert payload in (256, 512, 1024, 2048, 4096)
    assert len(seen) > 30
    assert {"RC_ATOMIC_WRITE", "UD_SEND_ONLY_WITH_IMMEDIATE", "RC_SEND_LAST_WITH_INVALIDATE"} <= seen
