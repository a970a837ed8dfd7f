# SPDX-License-Identifier: MIT
"""Transport headers: their bytes against struct and scapy, and every field there and back."""

import struct
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scapy.contrib import roce

from softverbs.core.memory import raw as memory
from softverbs.core.wire import headers

bit = st.integers(0, 1)
u8 = st.integers(0, 0xFF)
u16 = st.integers(0, 0xFFFF)
u24 = st.integers(0, 0xFFFFFF)
u32 = st.integers(0, 0xFFFFFFFF)
u64 = st.integers(0, 0xFFFFFFFFFFFFFFFF)

BLOCK = memory.Block(256)
# Headers follow each other at any multiple of 4.
AT = BLOCK.address + 68


def written(length):
    """The ``length`` bytes of a header; nothing around it may have changed."""
    around = bytes(memory.view(BLOCK.address, 256))
    assert around[:68] == b"\xa5" * 68
    assert around[68 + length :] == b"\xa5" * (256 - 68 - length)
    return around[68 : 68 + length]


def clear():
    memory.fill(BLOCK.address, 0xA5, 256)


@given(u8, bit, st.integers(0, 3), u16, u24, bit, u24)
def test_bth(opcode, solicited, pad, pkey, dest_qpn, ack_request, psn):
    clear()
    headers.put_bth(AT, opcode, solicited, pad, pkey, dest_qpn, ack_request, psn)
    assert headers.bth_opcode(AT) == opcode
    assert headers.bth_solicited(AT) == solicited
    assert headers.bth_pad(AT) == pad
    assert headers.bth_version(AT) == 0
    assert headers.bth_pkey(AT) == pkey
    assert headers.bth_dest_qpn(AT) == dest_qpn
    assert headers.bth_ack_request(AT) == ack_request
    assert headers.bth_psn(AT) == psn
    theirs = roce.BTH(written(12) + bytes(4))
    assert (theirs.opcode, theirs.solicited, theirs.padcount, theirs.version) == (opcode, solicited, pad, 0)
    assert (theirs.pkey, theirs.dqpn, theirs.ackreq, theirs.psn) == (pkey, dest_qpn, ack_request, psn)
    assert (theirs.migreq, theirs.fecn, theirs.becn, theirs.resv6, theirs.resv7) == (1, 0, 0, 0, 0)


def test_bth_readers_ignore_their_neighbours():
    everything = 0xFF
    memory.fill(AT, everything, 12)
    assert headers.bth_opcode(AT) == 0xFF
    assert headers.bth_solicited(AT) == 1
    assert headers.bth_pad(AT) == 3
    assert headers.bth_version(AT) == 15
    assert headers.bth_pkey(AT) == 0xFFFF
    assert headers.bth_dest_qpn(AT) == 0xFFFFFF
    assert headers.bth_ack_request(AT) == 1
    assert headers.bth_psn(AT) == 0xFFFFFF


@given(u64, u32, u32)
def test_reth(va, rkey, length):
    clear()
    headers.put_reth(AT, va, rkey, length)
    assert written(16) == struct.pack("!QII", va, rkey, length)
    assert (headers.reth_va(AT), headers.reth_rkey(AT), headers.reth_length(AT)) == (va, rkey, length)


@given(u8, u24)
def test_aeth(syndrome, msn):
    clear()
    headers.put_aeth(AT, syndrome, msn)
    assert (headers.aeth_syndrome(AT), headers.aeth_msn(AT)) == (syndrome, msn)
    theirs = roce.AETH(written(4))
    assert (theirs.syndrome, theirs.msn) == (syndrome, msn)


@given(u32, u24)
def test_deth(qkey, src_qpn):
    clear()
    headers.put_deth(AT, qkey, src_qpn)
    assert written(8) == struct.pack("!II", qkey, src_qpn)
    assert (headers.deth_qkey(AT), headers.deth_src_qpn(AT)) == (qkey, src_qpn)


def test_deth_reserved_byte_is_not_part_of_the_qpn():
    memory.fill(AT, 0xFF, 8)
    assert headers.deth_src_qpn(AT) == 0xFFFFFF


@given(u64, u32, u64, u64)
def test_atomic_eth(va, rkey, swap_add, compare):
    clear()
    headers.put_atomic_eth(AT, va, rkey, swap_add, compare)
    assert written(28) == struct.pack("!QIQQ", va, rkey, swap_add, compare)
    assert (headers.atomic_va(AT), headers.atomic_rkey(AT)) == (va, rkey)
    assert (headers.atomic_swap_add(AT), headers.atomic_compare(AT)) == (swap_add, compare)


@given(u64)
def test_atomic_ack(original):
    clear()
    headers.put_atomic_ack(AT, original)
    assert written(8) == struct.pack("!Q", original)
    assert headers.atomic_ack_original(AT) == original


@given(u32)
def test_immediate_data_is_the_bytes_of_the_host(value):
    clear()
    headers.put_imm(AT, value)
    assert written(4) == value.to_bytes(4, sys.byteorder)
    assert headers.imm(AT) == value


@given(u32)
def test_ieth(rkey):
    clear()
    headers.put_ieth(AT, rkey)
    assert written(4) == struct.pack("!I", rkey)
    assert headers.ieth_rkey(AT) == rkey


# IBA table 45, milliseconds, as printed there.
TIMERS = (
    "655.36 0.01 0.02 0.03 0.04 0.06 0.08 0.12 0.16 0.24 0.32 0.48 0.64 0.96 1.28 1.92 "
    "2.56 3.84 5.12 7.68 10.24 15.36 20.48 30.72 40.96 61.44 81.92 122.88 163.84 245.76 327.68 491.52"
)


@pytest.mark.parametrize(("code", "milliseconds"), list(enumerate(TIMERS.split())))
def test_rnr_timer(code, milliseconds):
    assert headers.rnr_timer_ns(code) == round(float(milliseconds) * 1_000_000)


def test_rnr_timer_takes_a_syndrome():
    assert headers.rnr_timer_ns(0x20 | 12) == 640_000
