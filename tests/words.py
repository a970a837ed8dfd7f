# SPDX-License-Identifier: MIT
"""Words in memory that a device or another process looks at meanwhile: one store, one load.

``struct.pack_into`` clears the bytes before it writes the value, and in standard sizes ("=Q") ``struct`` goes byte by
byte in both directions: whoever looks at the same moment sees what was never stored.
"""

import ctypes
from typing import Any

_TYPES = {"B": ctypes.c_uint8, "H": ctypes.c_uint16, "I": ctypes.c_uint32, "Q": ctypes.c_uint64}


def store(memory: Any, offset: int, value: int, code: str = "Q") -> None:
    """Stores a word of the size that ``code`` has in ``struct``; OverflowError where the value does not fit."""
    word = _TYPES[code].from_buffer(memory, offset)
    if not 0 <= value < 1 << 8 * ctypes.sizeof(word):
        raise OverflowError(f"{value:#x} is no unsigned value of {ctypes.sizeof(word)} bytes")
    word.value = value


def load(memory: Any, offset: int, code: str = "Q") -> int:
    """Loads a word."""
    return int(_TYPES[code].from_buffer(memory, offset).value)


def store_elements(memory: Any, offset: int, elements: Any) -> None:
    """Stores scatter/gather elements, each an address, a length and a key, side by side."""
    for index, (address, length, key) in enumerate(elements):
        at = offset + 16 * index
        store(memory, at, address)
        store(memory, at + 8, length, "I")
        store(memory, at + 12, key, "I")
