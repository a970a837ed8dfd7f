# SPDX-License-Identifier: MIT
"""Words that are stored whole: whoever looks meanwhile sees the value before or the value after, nothing between."""

import mmap
import os
import signal
import struct

import pytest
from tests import words

LOOKS = 20_000
OLD, NEW = 0x1122334455667788, 0x99AABBCCDDEEFF00


def test_a_store_is_one_store() -> None:
    memory = mmap.mmap(-1, 4096)
    words.store(memory, 8, OLD)
    child = os.fork()
    if child == 0:
        while True:
            words.store(memory, 8, NEW)
            words.store(memory, 8, OLD)
    try:
        seen = {words.load(memory, 8) for _ in range(LOOKS)}
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    assert seen <= {OLD, NEW}


@pytest.mark.parametrize(("code", "size"), [("B", 1), ("H", 2), ("I", 4), ("Q", 8)])
def test_words_are_as_those_of_struct(code: str, size: int) -> None:
    memory = bytearray(b"\xee" * 24)
    words.store(memory, 8, (1 << 8 * size) - 2, code)
    assert memory == b"\xee" * 8 + struct.pack("=" + code, (1 << 8 * size) - 2) + b"\xee" * (16 - size)
    assert words.load(memory, 8, code) == (1 << 8 * size) - 2
    for wrong in (-1, 1 << 8 * size):
        with pytest.raises(OverflowError):
            words.store(memory, 8, wrong, code)


def test_elements_lie_side_by_side() -> None:
    memory = bytearray(40)
    words.store_elements(memory, 8, [(1 << 60, 2, 3), (4, 5, 0xFFFFFFFF)])
    assert memory[8:] == struct.pack("=QIIQII", 1 << 60, 2, 3, 4, 5, 0xFFFFFFFF)
