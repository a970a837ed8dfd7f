# SPDX-License-Identifier: MIT
"""Raw memory against struct, zlib and slices of a bytearray."""

import random
import struct
import sys
import threading
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from softverbs.core.memory import raw as memory

WIDTHS = {8: "B", 16: "H", 32: "I", 64: "Q"}
EDGES = (0, 1, 0x7F, 0x80, 0xFF)


def values(bits):
    rng = random.Random(bits)
    top = (1 << bits) - 1
    return [0, 1, top, top - 1, top >> 1, (top >> 1) + 1] + [rng.getrandbits(bits) for _ in range(50)]


@pytest.fixture
def block():
    return memory.Block(4096)


@pytest.mark.parametrize("offset", [0, 1, 3, 4, 7])
@pytest.mark.parametrize("bits", WIDTHS)
def test_host_order(block, bits, offset):
    load, store = getattr(memory, f"load{bits}"), getattr(memory, f"store{bits}")
    at = block.address + offset
    for value in values(bits):
        memory.fill(block.address, 0xA5, 64)
        store(at, value)
        assert load(at) == value
        expected = bytearray(b"\xa5" * 64)
        struct.pack_into("=" + WIDTHS[bits], expected, offset, value)
        assert bytes(memory.view(block.address, 64)) == expected


@pytest.mark.parametrize("offset", [0, 1, 3, 4, 7])
@pytest.mark.parametrize("bits", [16, 32, 64])
def test_network_order(block, bits, offset):
    load, store = getattr(memory, f"load{bits}be"), getattr(memory, f"store{bits}be")
    at = block.address + offset
    for value in values(bits):
        memory.fill(block.address, 0xA5, 64)
        store(at, value)
        assert load(at) == value
        expected = bytearray(b"\xa5" * 64)
        struct.pack_into("!" + WIDTHS[bits], expected, offset, value)
        assert bytes(memory.view(block.address, 64)) == expected


@given(st.integers(0, 100), st.integers(0, 100), st.integers(0, 100))
def test_copy_may_overlap(destination, source, length):
    block = memory.Block(256)
    model = bytearray(i * 7 & 255 for i in range(256))
    memory.view(block.address, 256)[:] = model
    memory.copy(block.address + destination, block.address + source, length)
    model[destination : destination + length] = bytes(model[source : source + length])
    assert bytes(memory.view(block.address, 256)) == model


@pytest.mark.parametrize("value", EDGES)
def test_fill(block, value):
    memory.fill(block.address + 3, value, 9)
    memory.fill(block.address + 40, value, 0)
    assert bytes(memory.view(block.address, 64)) == bytes(3) + bytes([value]) * 9 + bytes(52)


def test_fetch_add_wraps(block):
    memory.store64(block.address, (1 << 64) - 2)
    assert memory.fetch_add64(block.address, 5) == (1 << 64) - 2
    assert memory.load64(block.address) == 3
    assert memory.fetch_add64(block.address, (1 << 64) - 1) == 3
    assert memory.load64(block.address) == 2


def test_compare_swap(block):
    memory.store64(block.address, 1 << 63)
    assert memory.compare_swap64(block.address, 7, 8) == 1 << 63
    assert memory.load64(block.address) == 1 << 63
    assert memory.compare_swap64(block.address, 1 << 63, (1 << 64) - 1) == 1 << 63
    assert memory.load64(block.address) == (1 << 64) - 1


def test_atomics_leave_the_neighbours_alone(block):
    memory.fill(block.address, 0xFF, 24)
    memory.fetch_add64(block.address + 8, 1)
    memory.compare_swap64(block.address + 8, 0, 5)
    assert bytes(memory.view(block.address, 24)) == b"\xff" * 8 + struct.pack("=Q", 5) + b"\xff" * 8


def test_fetch_add_of_several_threads_loses_nothing(block):
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)

    def add():
        for _ in range(2000):
            memory.fetch_add64(block.address, 1)

    try:
        threads = [threading.Thread(target=add) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert memory.load64(block.address) == 8000


def test_view_is_the_memory_itself(block):
    view = memory.view(block.address, 16)
    assert (view.format, view.itemsize, view.readonly, len(view)) == ("B", 1, False, 16)
    view[2:4] = b"\x12\x34"
    assert memory.load16be(block.address + 2) == 0x1234
    memory.store8(block.address + 15, 9)
    assert view[15] == 9
    assert len(memory.view(block.address, 0)) == 0


@given(st.binary(max_size=600), st.integers(0, 600), st.integers(0, 0xFFFFFFFF))
def test_crc32_continues_as_zlib_does(data, cut, start):
    block = memory.Block(1024)
    memory.view(block.address, len(data))[:] = data
    cut = min(cut, len(data))
    assert memory.crc32(block.address, len(data), start) == zlib.crc32(data, start)
    first = memory.crc32(block.address, cut, 0)
    assert memory.crc32(block.address + cut, len(data) - cut, first) == zlib.crc32(data)


@pytest.mark.parametrize("size", [0, 1, 63, 64, 65, 4096, 100_001])
def test_block_is_zeroed_and_aligned(size):
    block = memory.Block(size)
    assert block.size == size
    assert block.address % 64 == 0
    assert bytes(memory.view(block.address, size)) == bytes(size)


def test_blocks_do_not_overlap():
    blocks = [memory.Block(100) for _ in range(50)]
    for i, block in enumerate(blocks):
        memory.fill(block.address, i, 100)
    for i, block in enumerate(blocks):
        assert bytes(memory.view(block.address, 100)) == bytes([i]) * 100
