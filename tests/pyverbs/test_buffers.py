# SPDX-License-Identifier: MIT
"""Memory regions over any buffer: where the bytes are, and that they stay there."""

import array
import ctypes
import errno
import gc
import mmap
from typing import Any

import numpy as np
import pytest

from softverbs.pyverbs import libibverbs_enums as e
from softverbs.pyverbs.mr import MR
from softverbs.pyverbs.pyverbs_error import PyverbsError, PyverbsRDMAError, PyverbsUserError

WRITE = e.IBV_ACCESS_LOCAL_WRITE


def test_memory_of_its_own_is_zeroed_and_page_aligned(rig: Any) -> None:
    with MR(rig.pd, 5000, WRITE) as mr:
        assert mr.length == 5000
        assert mr.buf % mmap.PAGESIZE == 0
        assert mr.read(5000, 0) == bytes(5000)
        mr.write("abc", 3, 10)
        mr.write(b"xyz?", 3, 4997)
        assert mr.read(5, 9) == b"\0abc\0"
        assert mr.read(3, 4997) == b"xyz"
        assert str(mr).startswith("MR:\nlkey                  : ")
        assert mr.handle
        assert mr.iova == mr.buf


def test_a_bytearray_cannot_be_resized_while_it_is_registered(rig: Any) -> None:
    memory = bytearray(b"0123456789")
    with MR(rig.pd, memory, WRITE) as mr:
        assert mr.length == 10
        assert mr.read(10, 0) == b"0123456789"
        mr.write(b"ab", 2, 0)
        assert memory[:2] == b"ab"
        with pytest.raises(BufferError):
            memory.append(1)
    memory.append(1)


def test_a_region_that_is_collected_lets_go(rig: Any) -> None:
    memory = bytearray(8)
    MR(rig.pd, memory, WRITE)
    gc.collect()
    memory.append(1)


def test_a_refused_registration_lets_go(rig: Any) -> None:
    memory = bytearray(8)
    for access in (1 << 10, e.IBV_ACCESS_REMOTE_WRITE):
        with pytest.raises(PyverbsRDMAError):
            MR(rig.pd, memory, access)
    memory.append(1)


def test_a_mapping_cannot_be_closed_while_it_is_registered(rig: Any) -> None:
    memory = mmap.mmap(-1, 8192)
    mr = MR(rig.pd, memory, WRITE)
    mr.write(b"mapped", 6, 4096)
    assert memory[4096:4102] == b"mapped"
    with pytest.raises(BufferError):
        memory.close()
    mr.close()
    memory.close()


def test_a_numpy_array(rig: Any) -> None:
    values = np.arange(6, dtype=np.int64).reshape(2, 3)
    for layout in (values, np.asfortranarray(values)):
        with MR(rig.pd, layout, WRITE) as mr:
            assert mr.buf == layout.ctypes.data
            assert mr.length == 48
    with MR(rig.pd, values[1:], WRITE) as mr:
        assert mr.buf == values.ctypes.data + 24
        mr.write((77).to_bytes(8, "little"), 8, 0)
    assert values[1, 0] == 77


@pytest.mark.parametrize(
    ("buffer", "words"),
    [
        (np.zeros((4, 4))[:, 1], "side by side"),
        (np.array([object()]), "references"),
        (np.zeros(3, "datetime64[s]"), "ndarray cannot be registered"),
        (memoryview(bytearray(8))[::2], "side by side"),
        ("text", "str cannot be registered"),
        (None, "NoneType cannot be registered"),
        (1.5, "float cannot be registered"),
        (["list"], "list cannot be registered"),
    ],
)
def test_what_is_no_memory(rig: Any, buffer: Any, words: str) -> None:
    with pytest.raises(PyverbsRDMAError, match=words) as caught:
        MR(rig.pd, buffer, WRITE)
    assert caught.value.errno == errno.EINVAL


def test_other_buffers(rig: Any) -> None:
    numbers = array.array("i", [1, 2, 3])
    with MR(rig.pd, numbers, WRITE) as mr:
        assert mr.buf == numbers.buffer_info()[0]
        with pytest.raises(BufferError):
            numbers.append(4)
    block = (ctypes.c_char * 16)()
    with MR(rig.pd, block, WRITE) as mr:
        assert mr.buf == ctypes.addressof(block)
    whole = bytearray(100)
    with memoryview(whole) as view, MR(rig.pd, view[10:20], WRITE) as mr:
        mr.write(b"z" * 10, 10)
    assert whole == bytes(10) + b"z" * 10 + bytes(80)


def test_a_released_view_does_not_matter(rig: Any) -> None:
    memory = bytearray(16)
    view = memoryview(memory)
    mr = MR(rig.pd, view, WRITE)
    view.release()
    mr.write(b"still", 5)
    assert memory[:5] == b"still"
    mr.close()
    with pytest.raises(PyverbsRDMAError, match="released"):
        MR(rig.pd, view, WRITE)


@pytest.mark.parametrize("memory", [b"only to read", memoryview(b"only to read").toreadonly()])
def test_read_only_memory(rig: Any, memory: Any) -> None:
    with MR(rig.pd, memory, e.IBV_ACCESS_REMOTE_READ) as mr:
        assert mr.read(4, 0) == b"only"
    for access in (WRITE, WRITE | e.IBV_ACCESS_REMOTE_WRITE):
        with pytest.raises(PyverbsRDMAError, match="read-only") as caught:
            MR(rig.pd, memory, access)
        assert caught.value.errno == errno.EFAULT


def test_an_address(rig: Any) -> None:
    block = (ctypes.c_char * 64)()
    address = ctypes.addressof(block)
    with MR(rig.pd, 64, WRITE, address=address) as mr:
        mr.write(b"here", 4, 8)
        assert mr.buf == address
        assert block[8:12] == b"here"
    with MR(rig.pd, np.int64(64), WRITE, np.uint64(address)) as mr:
        assert mr.length == 64


def test_an_address_that_is_not_mapped(rig: Any) -> None:
    gone = mmap.mmap(-1, mmap.PAGESIZE)
    with MR(rig.pd, gone, 0) as mr:
        address = mr.buf
    gone.close()
    for length in (8, 2**40):
        with pytest.raises(PyverbsRDMAError, match="not mapped") as caught:
            MR(rig.pd, length, WRITE, address=address)
        assert caught.value.errno == errno.EFAULT
    with pytest.raises(PyverbsRDMAError, match="not mapped"):
        MR(rig.pd, 8, WRITE, address=8)


def test_an_address_that_may_only_be_read(rig: Any) -> None:
    page = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ)
    with MR(rig.pd, page, 0) as mr:
        address = mr.buf
    MR(rig.pd, 8, 0, address=address).close()
    with pytest.raises(PyverbsRDMAError, match="not writable"):
        MR(rig.pd, 8, WRITE, address=address)
    page.close()


def test_an_iova(rig: Any) -> None:
    with MR(rig.pd, bytearray(16), WRITE, iova=0x1000) as mr:
        assert mr.iova == 0x1000
        assert mr.buf != 0x1000
    with MR(rig.pd, bytearray(16), WRITE | e.IBV_ACCESS_ZERO_BASED) as mr:
        assert mr.iova == 0
    with pytest.raises(PyverbsRDMAError, match="pass 2"):
        MR(rig.pd, bytearray(16), WRITE, iova=2**64 - 8)


@pytest.mark.parametrize(
    ("words", "make"),
    [
        ("at least 1", lambda pd: MR(pd)),
        ("at least 1", lambda pd: MR(pd, bytearray())),
        ("length is -1", lambda pd: MR(pd, -1, WRITE)),
        ("length is 18446744073709551616", lambda pd: MR(pd, 2**64, WRITE)),
        ("access is 'rw'", lambda pd: MR(pd, 8, "rw")),
        ("access is 4294967296", lambda pd: MR(pd, 8, 2**32)),
        ("unknown access flags", lambda pd: MR(pd, 8, 1 << 10)),
        ("need LOCAL_WRITE", lambda pd: MR(pd, 8, e.IBV_ACCESS_REMOTE_ATOMIC)),
        ("address is -1", lambda pd: MR(pd, 8, WRITE, address=-1)),
        ("a buffer and an address", lambda pd: MR(pd, bytearray(8), WRITE, address=8)),
        ("implicit", lambda pd: MR(pd, 0, WRITE, implicit=True)),
        ("no argument adress", lambda pd: MR(pd, 8, WRITE, adress=8)),
        ("buffer of size", lambda pd: MR(pd, 2**62, WRITE)),
        ("rereg", lambda pd: MR(pd, 8, WRITE).rereg(1)),
    ],
)
def test_contradictions(rig: Any, words: str, make: Any) -> None:
    with pytest.raises(PyverbsError, match=words):
        make(rig.pd)


def test_huge_pages_are_had_or_refused(rig: Any) -> None:
    try:
        with MR(rig.pd, 5, WRITE | e.IBV_ACCESS_HUGETLB) as mr:
            assert mr.buf % 0x200000 == 0
    except PyverbsRDMAError as error:
        assert error.errno == errno.ENOMEM  # noqa: PT017


@pytest.mark.parametrize(("length", "offset"), [(11, 0), (1, 10), (-1, 0), (1, -1), (2**63, 0), (0, 11)])
def test_access_outside_of_the_region(rig: Any, length: int, offset: int) -> None:
    with MR(rig.pd, bytearray(10), WRITE) as mr:
        with pytest.raises(PyverbsError):
            mr.read(length, offset)
        with pytest.raises(PyverbsError):
            mr.write(bytes(20), length, offset)
        with pytest.raises(PyverbsUserError, match="data has 1"):
            mr.write(b"x", 2)
        assert mr.read(0, 10) == b""


def test_write_takes_what_is_bytes(rig: Any) -> None:
    with pytest.raises(PyverbsRDMAError, match="data"):
        rig.mr.write(5, 1)
    rig.mr.write(np.array([1], dtype=np.uint16), 2)
