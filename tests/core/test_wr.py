# SPDX-License-Identifier: MIT
"""Work requests and completions as objects: what they keep, what they refuse, how they print."""

import ctypes
from types import SimpleNamespace
from typing import Any

import pytest

from softverbs.core.base.errors import PyverbsUserError
from softverbs.core.queues.wr import SGE, WC, RecvWR, SendWR

U32, U64 = 2**32 - 1, 2**64 - 1


def test_sge_keeps_the_width_of_its_fields() -> None:
    with SGE(0, 0, 0) as sge:
        sge.addr, sge.length, sge.lkey = U64, U32, U32
        assert (sge.addr, sge.length, sge.lkey) == (U64, U32, U32)
        for name, value in (("addr", U64 + 1), ("length", U32 + 1), ("lkey", U32 + 1), ("addr", -1), ("lkey", "1")):
            with pytest.raises(PyverbsUserError, match=f"SGE {name}"):
                setattr(sge, name, value)
        assert (sge.addr, sge.length, sge.lkey) == (U64, U32, U32)
    assert str(SGE(0x1000, 5, 0x2A)).split() == ["Address", ":", "0x1000", "Length", ":", "5", "Key", ":", "0x2a"]


def test_sge_reads_its_bytes_and_no_others() -> None:
    buffer = ctypes.create_string_buffer(b"0123456789", 10)
    sge = SGE(ctypes.addressof(buffer), 8, 0)
    assert sge.read(8, 0) == b"01234567"
    assert sge.read(3, 5) == b"567"
    assert sge.read(0, 8) == b""
    for length, offset in ((9, 0), (1, 8), (4, 5), (-1, 4), (1, -1)):
        with pytest.raises(PyverbsUserError, match="the SGE has 8"):
            sge.read(length, offset)


@pytest.mark.parametrize("kind", [RecvWR, SendWR])
def test_list_of_elements_is_copied_and_checked(kind: Any) -> None:
    elements = [SGE(1, 2, 3), SGE(4, 5, 6)]
    wr = kind(7, num_sge=1, sg=elements)
    elements[0].addr = 99
    assert [(sge.addr, sge.length, sge.lkey) for sge in wr.sg_list] == [(1, 2, 3)]
    wr.sg_list = elements
    elements[0].addr = 1
    assert [(sge.addr, sge.length, sge.lkey) for sge in wr.sg_list] == [(99, 2, 3), (4, 5, 6)]
    assert wr.num_sge == 2
    wr.sg_list = SGE(8, 9, 10)
    assert [(sge.addr, sge.length, sge.lkey) for sge in wr.sg_list] == [(8, 9, 10)]
    for value, words in ((5, "SGE or a list"), ([SGE(0, 0, 0), 5], r"sg\[1\] is not an SGE but int")):
        with pytest.raises(PyverbsUserError, match=words):
            wr.sg_list = value
    assert wr.num_sge == 1
    for num_sge, sg, words in ((3, elements, "has 2"), (1, None, "no scatter"), (1, "ab", "must be a list")):
        with pytest.raises(PyverbsUserError, match=words):
            kind(0, num_sge=num_sge, sg=sg)


@pytest.mark.parametrize(("kind", "other"), [(RecvWR, SendWR), (SendWR, RecvWR)])
def test_next_is_of_the_same_kind(kind: Any, other: Any) -> None:
    last = kind(2)
    with kind(1, next_wr=last) as first:
        assert first.next_wr is last
        assert last.next_wr is None
        with pytest.raises(PyverbsUserError, match=f"next_wr must be a {kind.__name__}, not {other.__name__}"):
            first.next_wr = other(3)
        assert first.next_wr is last


@pytest.mark.parametrize("kind", [RecvWR, SendWR])
def test_wr_id_is_any_number_of_64_bits(kind: Any) -> None:
    wr = kind(U64)
    wr.wr_id = 5
    for value in (U64 + 1, -1, 1.0, None):
        with pytest.raises(PyverbsUserError, match="wr_id"):
            wr.wr_id = value
        with pytest.raises(PyverbsUserError, match="wr_id"):
            kind(value)
    assert wr.wr_id == 5


def test_assign_copies_everything() -> None:
    last = SendWR(9)
    wr = SendWR(1, 5, 1, 0x11223344, [SGE(1, 8, 3)], 6, last)
    wr.set_wr_atomic(0xABC, 0x1000, 7, 8)
    copy = SendWR()
    copy.assign(wr)
    wr.sg_list[0].addr = 77
    wr.wr_id = 2
    assert (copy.wr_id, copy.opcode, copy.imm_data, copy.send_flags) == (1, 5, 0x11223344, 6)
    assert (copy.rdma_rkey, copy.rdma_remote_addr, copy.next_wr) == (0xABC, 0x1000, last)
    assert copy.sg_list[0].addr == 1
    receive = RecvWR()
    receive.assign(RecvWR(3, 1, [SGE(4, 5, 6)], RecvWR(8)))
    assert (receive.wr_id, receive.sg_list[0].lkey, receive.next_wr.wr_id) == (3, 6, 8)  # type: ignore[union-attr]


def test_send_fields_keep_their_width() -> None:
    wr = SendWR()
    wr.opcode, wr.send_flags, wr.imm_data = 255, U32, U32
    assert (wr.opcode, wr.send_flags, wr.imm_data) == (255, U32, U32)
    for name, value in (("opcode", 256), ("send_flags", U32 + 1), ("imm_data", -1), ("opcode", "SEND")):
        with pytest.raises(PyverbsUserError, match=name):
            setattr(wr, name, value)
    for act in (lambda: wr.set_wr_rdma(U32 + 1, 0), lambda: wr.set_wr_atomic(0, 0, U64 + 1)):
        with pytest.raises(PyverbsUserError, match="out of range"):
            act()


def test_bind_gives_the_key_that_the_window_will_have() -> None:
    class Window:
        rkey = 0x12FF

    wr = SendWR(opcode=8)
    wr.set_bind_wr(Window(), SimpleNamespace(mr=SimpleNamespace(lkey=1), addr=2, length=3, mw_access_flags=4))
    assert wr.rkey == 0x1200, "the tag wraps, the index stays"


def test_objects_print_what_they_hold() -> None:
    assert "WR ID" in str(RecvWR(77)) and "77" in str(RecvWR(77))
    text = str(SendWR(78, send_flags=3))
    assert "78" in text and "FENCE" in text and "SIGNALED" in text
    wc = WC(wr_id=79, status=10, byte_len=5)
    wc.reason = "because"
    for word in ("79", "Remote access error", "because"):
        assert word.lower() in str(wc).lower()
