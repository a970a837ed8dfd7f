# SPDX-License-Identifier: MIT
"""Memory of other processes: every operation on it, and what happens where it is gone."""

import errno
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.foreign import PAGE, READ_ONLY, Child, ForeignRegion
from tests.netsim import pair as names
from tests.netsim.pair import (
    FENCE,
    INLINE,
    LOC_PROT_ERR,
    READ,
    REM_ACCESS_ERR,
    REM_OP_ERR,
    SIGNALED,
    SUCCESS,
    WR_ATOMIC_WRITE,
    WR_CAS,
    WR_FAA,
    WR_FLUSH,
    WR_READ,
    WR_SEND,
    WR_WRITE,
    WR_WRITE_IMM,
    WRITE,
    Pair,
)
from tests.netsim.sim import ALL, ERR, LOCAL_WRITE, MW_BIND, QPT_RC, QPT_UC, QPT_UD, QPT_XRC_SEND, Sim

from softverbs.core.base.errors import PyverbsRDMAError
from softverbs.core.memory import spaces
from softverbs.core.memory.raw import Block, view
from softverbs.core.memory.regions import VALUES

SIZE = 32 * PAGE
DATA = bytes(range(1, 251)) * 64
BASE = 0x10000  # iova
ON_DEMAND = 64
FLUSH_GLOBAL = 256


def number(data: bytes) -> int:
    return int.from_bytes(data, sys.byteorder)


@pytest.fixture
def child() -> Iterator[Child]:
    with Child(SIZE) as child:
        yield child


@pytest.fixture
def other() -> Iterator[Child]:
    with Child(SIZE) as child:
        yield child


def refused(code: int, words: str, act: Callable[..., Any], *args: Any) -> None:
    with pytest.raises(PyverbsRDMAError, match=words) as caught:
        act(*args)
    assert caught.value.errno == code


def foreign(end: names.End, child: Child, access: int = ALL) -> ForeignRegion:
    """Gives an end the child's memory instead of its own; ``a`` and ``b`` each have their half of it."""
    half = SIZE // 2 if end.node.gid > end.peer.node.gid else 0
    region = ForeignRegion(end.node, end.pd, child, access, BASE, half, SIZE // 2)
    end.memory = region  # type: ignore[assignment]
    return region


@pytest.fixture(params=["a", "b", "both"])
def pair(request: Any, child: Child) -> Iterator[Pair]:
    """A connection one end of which, or both, are of another process."""
    with Pair() as pair:
        for name in ("a", "b") if request.param == "both" else (request.param,):
            foreign(getattr(pair, name), child)
        yield pair


# -- the spaces themselves


def test_bytes_go_there_and_back(child: Child) -> None:
    spaces.write(child.space, child.address + 5, b"hello")
    assert child.call("at", 4, 7) == b"\0hello\0"
    assert child.memory[:16] == bytes(16), "the same address of this process is other memory"
    child.call("put", 100, DATA)
    assert spaces.read(child.space, child.address + 100, len(DATA)) == DATA
    assert spaces.read(child.space, 0, 0) == b""
    spaces.write(child.space, 0, b"")


def test_a_far_address_is_one_number(child: Child) -> None:
    far = spaces.far(child.space, child.address)
    assert spaces.is_far(far) and not spaces.is_far(child.address)
    assert spaces.far(0, child.address) == child.address
    block = Block(16)
    view(block.address, 3)[:] = b"abc"
    assert spaces.place(far + 8, block.address, 3)
    assert spaces.fetch(block.address + 8, far + 7, 5)
    assert bytes(view(block.address + 8, 5)) == b"\0abc\0"
    assert spaces.fetch(0, far, 0) and spaces.place(far, 0, 0), "nothing is always possible"
    refused(errno.EFAULT, "no program has memory at", spaces.far, child.space, 1 << 48)


def test_what_fails_fails_whole_and_says_why(child: Child) -> None:
    assert child.call("unmap", PAGE, PAGE) == 0
    assert child.call("protect", 3 * PAGE, PAGE, READ_ONLY) == 0
    at = child.address
    refused(errno.EFAULT, f"4 bytes at {at + PAGE:#x} cannot be read: they are not mapped readable in process",
            spaces.read, child.space, at + PAGE, 4)  # fmt: skip
    refused(errno.EFAULT, "cannot be read", spaces.read, child.space, at + PAGE - 8, 16)
    refused(errno.EFAULT, "cannot be written: they are not mapped writable", spaces.write, child.space, at + PAGE, b"x")
    refused(errno.EFAULT, "cannot be written", spaces.write, child.space, at + 3 * PAGE, b"x")
    assert spaces.read(child.space, at + 3 * PAGE, 4) == bytes(4)
    refused(errno.EFAULT, "cannot be read", spaces.read, child.space, 0, 8)


def test_a_process_that_is_gone(child: Child) -> None:
    child.kill()
    refused(errno.EFAULT, "the process that they belong to is gone", spaces.read, child.space, child.address, 8)


def test_a_process_that_may_not_be_looked_at() -> None:
    """Process 1 of this namespace is another user's, or this one's ancestor; where it may be read, there is no test."""
    space = spaces.enter(1, 0x10000, 1)
    try:
        with pytest.raises(PyverbsRDMAError) as caught:
            spaces.read(space, 0x1000, 8)
        assert "in process 1" in str(caught.value)
    finally:
        spaces.leave(space)


def test_a_space_that_was_left_opens_nothing(child: Child) -> None:
    spaces.leave(child.space)
    refused(errno.EFAULT, "is gone", spaces.read, child.space, child.address, 8)
    spaces.leave(child.space)
    again = spaces.enter(child.pid, *child.guard)
    try:
        assert spaces.read(again, child.address, 8) == bytes(8)
    finally:
        spaces.leave(again)
    for space in (0, -1, 32767):
        refused(errno.EINVAL, "no space", spaces.read, space, child.address, 8)
        refused(errno.EINVAL, "no space", spaces.write, space, child.address, b"x")
    for pid in (0, -1):
        refused(errno.EINVAL, "no process", spaces.enter, pid, 0x10000, 1)
    for guard in (1 << 48, 4):
        refused(errno.EFAULT, "no address of a guard", spaces.enter, child.pid, guard, 1)


def test_there_are_so_many_spaces_and_no_more() -> None:
    taken = []
    try:
        while len(taken) < 32000:
            taken.append(spaces.enter(1, 0x10000, 1))
        assert len(set(taken)) == len(taken) and min(taken) > 0
        while len(taken) < 32767:
            try:
                taken.append(spaces.enter(1, 0x10000, 1))
            except PyverbsRDMAError:
                break  # other spaces are in use
        refused(errno.ENOMEM, "is in use", spaces.enter, 1, 0x10000, 1)
    finally:
        for space in taken:
            spaces.leave(space)
    space = spaces.enter(1, 0x10000, 1)
    spaces.leave(space)


# -- regions


def test_the_table_of_keys(child: Child) -> None:
    with Sim() as sim:
        node = sim.node()
        pd, regions = node.pd(), node.port.regions
        memory = ForeignRegion(node, pd, child, LOCAL_WRITE | MW_BIND | 2)
        far = spaces.far(child.space, child.address)
        assert memory.mr.space == child.space
        assert regions.translate(memory.key, BASE + 8, 16, 0, pd, 0) == far + 8
        assert regions.translate(memory.key, BASE, SIZE, 1, pd, 0) == far
        assert regions.translate(memory.key, BASE + 1, SIZE, 1, pd, 0) == 0
        assert regions.translate(memory.key, BASE - 1, 2, 1, pd, 0) == 0
        assert regions.translate(memory.key, BASE, 8, 4, pd, 0) == 0, "it lacks REMOTE_READ"
        assert "not the range" in regions.explain(memory.key, BASE + 1, SIZE, 1, pd, 0)
        window = regions.allocate_window(pd, 1)
        assert regions.bind(window, memory.mr, BASE + 64, 64, 2, window.rkey, 0) == ""
        assert regions.translate(window.rkey, BASE + 64, 64, 2, pd, 0) == far + 64
        assert regions.translate(window.rkey, BASE + 65, 64, 2, pd, 0) == 0
        assert regions.bind(window, memory.mr, 0, 0, 0, window.rkey, 0) == ""
        assert regions.translate(window.rkey, BASE + 64, 64, 2, pd, 0) == 0
        regions.reregister(memory.mr, None, child.address + PAGE, PAGE, ALL, "holder", 0)
        assert regions.translate(memory.key, child.address + PAGE, 8, 4, pd, 0) == far + PAGE
        refused(errno.EFAULT, "no program has memory there",
                regions.reregister, memory.mr, None, (1 << 48) - 8, 16, ALL, "holder", 0)  # fmt: skip
        refused(errno.EFAULT, "no program", regions.register, pd, 1 << 48, 8, ALL, 0, None, 0, child.space)
        refused(errno.EFAULT, "no program", regions.register, pd, (1 << 63) - 8, 16, ALL, 0, None)


def test_a_region_over_everything_of_a_process(child: Child) -> None:
    with Sim() as sim:
        node = sim.node()
        pd, regions = node.pd(), node.port.regions
        region = regions.register(pd, 0, VALUES["EVERYTHING"], ALL | ON_DEMAND, 0, None, 0, child.space)
        assert regions.translate(region.lkey, child.address, 8, 0, pd, 0) == spaces.far(child.space, child.address)
        for va in (1 << 48, 1 << 63, 2**64 - 16):
            assert regions.translate(region.lkey, va, 8, 0, pd, 0) == 0


# -- every operation


@pytest.mark.parametrize("length", [1, 8, 1000, 5000])
def test_payloads(pair: Pair, length: int) -> None:
    a, b = pair.a, pair.b
    a.put(0, DATA)
    a.post(WR_WRITE, 3, length, 0x21)
    b.receive(0x2000, 0x1800, 7)
    a.post(WR_SEND, 5, length)
    b.receive(0, 0, 8)
    a.post(WR_WRITE_IMM, 2, length, 0x4000, imm=1)
    a.post(WR_READ, 0x6000, length, 0x21, flags=SIGNALED | FENCE)
    assert [wc.status for wc in a.wait(4)] == [SUCCESS] * 4
    assert b.done() == [(7, SUCCESS), (8, SUCCESS)]
    assert b.at(0x20, length + 2) == b"\0" + DATA[3 : 3 + length] + b"\0"
    assert b.at(0x2000, length + 1) == DATA[5 : 5 + length] + b"\0"
    assert b.at(0x4000, length + 1) == DATA[2 : 2 + length] + b"\0"
    assert a.at(0x6000, length + 1) == DATA[3 : 3 + length] + b"\0"
    assert a.count(WRITE) == (2, 0) and a.count(READ) == (1, 0)


@pytest.mark.parametrize("start", [0, 1, PAGE - 5])
def test_long_messages(start: int, pair: Pair) -> None:
    """Longer than what is fetched at once; and what changes between two work requests is seen."""
    a, b = pair.a, pair.b
    for fill in (DATA, DATA[::-1]):
        data = (fill * 4)[: SIZE // 2]
        a.put(0, data)
        b.put(0, bytes(len(data)))
        length = len(data) - PAGE
        a.post(WR_WRITE, start, length, 7)
        assert a.status() == SUCCESS
        assert b.at(0, length + 8) == bytes(7) + data[start : start + length] + b"\0"
        a.post(WR_READ, 3, length, start)
        assert a.status() == SUCCESS
        assert a.at(3, length) == b.at(start, length)


def test_what_is_behind_a_message_need_not_be_there(child: Child) -> None:
    """The list holds more than the message, and fetching ahead of it finds a hole."""
    with Pair() as pair:
        memory = foreign(pair.a, child)
        pair.a.put(0, DATA[: 4 * PAGE])
        memory.unmap(5 * PAGE)
        pair.a.post(WR_WRITE, 0, 5 * PAGE, 0)
        assert pair.a.status() == SUCCESS
        pair.a.post(WR_WRITE, 0, 6 * PAGE, 0)
        assert pair.a.status() == LOC_PROT_ERR
        assert pair.b.at(0, 5 * PAGE) == pair.a.at(0, 5 * PAGE)


def test_a_list_of_pieces(pair: Pair) -> None:
    a, b = pair.a, pair.b
    a.put(0, DATA)
    b.receive(sg=[b.sge(0x100, 7), b.sge(0x200, 1500), b.sge(0x1000, 3000)])
    a.post(WR_SEND, sg=[a.sge(0, 2000), a.sge(0x1000, 1), a.sge(9, 500)])
    assert a.status() == SUCCESS
    sent = DATA[:2000] + DATA[0x1000:0x1001] + DATA[9:509]
    assert b.at(0x100, 7) + b.at(0x200, 1500) + b.at(0x1000, len(sent) - 1507) == sent


def test_inline_data_is_taken_at_once(pair: Pair) -> None:
    a, b = pair.a, pair.b
    a.put(0, DATA)
    a.post(WR_WRITE, 1, 50, 0, flags=SIGNALED | INLINE)
    a.put(0, bytes(100))
    assert a.status() == SUCCESS
    assert b.at(0, 51) == DATA[1:51] + b"\0"


def test_atomics(pair: Pair) -> None:
    a, b = pair.a, pair.b
    b.put(8, (2**64 - 1).to_bytes(8, sys.byteorder))
    a.post(WR_FAA, 0, 8, 8, add=3)
    assert a.status() == SUCCESS
    assert (number(a.at(0, 8)), number(b.at(8, 8))) == (2**64 - 1, 2)
    a.post(WR_CAS, 0, 8, 8, add=7, swap=9)
    assert a.status() == SUCCESS
    assert (number(a.at(0, 8)), number(b.at(8, 8))) == (2, 2)
    a.post(WR_CAS, 0, 8, 8, add=2, swap=9)
    assert a.status() == SUCCESS
    assert (number(a.at(0, 8)), number(b.at(8, 8))) == (2, 9)
    a.put(16, DATA[:8])
    a.post(WR_ATOMIC_WRITE, 16, 8, 24)
    assert a.status() == SUCCESS
    assert b.at(16, 24) == bytes(8) + DATA[:8] + bytes(8)


def test_flush(child: Child) -> None:
    with Pair(qp_access_flags=ALL & 15 | FLUSH_GLOBAL) as pair:
        foreign(pair.b, child, ALL | FLUSH_GLOBAL)
        wr = pair.a.wr(WR_FLUSH)
        wr.set_wr_flush(pair.b.memory.key, BASE, 64, 1, 0)
        pair.a.qp.post_send(wr)
        assert pair.a.status() == SUCCESS


@pytest.mark.parametrize("kind", [QPT_UC, QPT_UD, QPT_XRC_SEND])
def test_other_transports(kind: int, child: Child) -> None:
    with Pair(kind=kind) as pair:
        a, b = pair.a, pair.b
        foreign(a, child)
        foreign(b, child)
        grh = 40 if kind == QPT_UD else 0
        a.put(0, DATA)
        b.receive(0, 900 + grh)
        a.post(WR_SEND, 1, 900)
        pair.sim.settle()
        assert [wc.status for wc in a.polled() + b.polled()] == [SUCCESS] * 2
        assert b.at(grh, 900) == DATA[1:901]
        if grh:
            assert b.at(0, 40) != bytes(40)


def test_a_bound_window(child: Child) -> None:
    with Pair() as pair:
        a, b = pair.a, pair.b
        foreign(b, child)
        a.put(0, DATA)
        key = b.open_window(64, 64)
        a.post(WR_WRITE, 0, 64, 64, rkey=key)
        assert a.status() == SUCCESS
        assert b.at(63, 66) == b"\0" + DATA[:64] + b"\0"


# -- memory that is gone


def failed(pair: Pair, status: int) -> None:
    assert pair.a.status() == status
    assert pair.b.qp.state == ERR or status == LOC_PROT_ERR


@pytest.mark.parametrize("opcode", [WR_WRITE, WR_READ, WR_FAA, WR_CAS, WR_ATOMIC_WRITE])
def test_a_peer_asks_for_memory_that_is_gone(opcode: int, child: Child) -> None:
    with Pair() as pair:
        a, b = pair.a, pair.b
        memory = foreign(b, child)
        memory.unmap(PAGE)
        a.post(opcode, 0, 8, PAGE, add=1)
        wc = a.wait()[0]
        assert wc.status == REM_ACCESS_ERR
        assert b.qp.state == ERR and b.count(names.REMOTE_WRITE) == b.count(names.REMOTE_READ) == (0, 0)
        assert any("they are not mapped" in line for line in b.node.log), b.node.log


@pytest.mark.parametrize("opcode", [WR_WRITE, WR_FAA, WR_CAS, WR_ATOMIC_WRITE])
def test_a_peer_writes_what_is_read_only(opcode: int, child: Child) -> None:
    with Pair() as pair:
        memory = foreign(pair.b, child)
        memory.protect(PAGE, READ_ONLY)
        pair.a.post(WR_READ, 0, 8, PAGE)
        assert pair.a.status() == SUCCESS
        pair.a.post(opcode, 0, 8, PAGE, add=0, swap=1)
        failed(pair, REM_ACCESS_ERR)


@pytest.mark.parametrize("opcode", [WR_WRITE, WR_READ])
def test_memory_goes_in_the_middle_of_a_long_message(opcode: int, child: Child) -> None:
    with Pair() as pair:
        memory = foreign(pair.b, child)
        memory.unmap(3 * PAGE)
        pair.a.post(opcode, 0, 8 * PAGE, 0)
        failed(pair, REM_ACCESS_ERR)


def test_a_receive_goes_to_memory_that_is_gone(child: Child) -> None:
    with Pair() as pair:
        memory = foreign(pair.b, child)
        memory.unmap(PAGE)
        pair.b.receive(PAGE - 8, 64, 5)
        pair.a.post(WR_SEND, 0, 64)
        failed(pair, REM_OP_ERR)
        assert pair.b.done() == [(5, LOC_PROT_ERR)]


@pytest.mark.parametrize("opcode", [WR_SEND, WR_WRITE, WR_READ, WR_FAA])
def test_own_memory_that_is_gone(opcode: int, child: Child) -> None:
    with Pair() as pair:
        memory = foreign(pair.a, child)
        memory.unmap(PAGE)
        pair.b.receive(0, 64)
        pair.a.post(opcode, PAGE, 8, 0)
        wc = pair.a.wait()[0]
        assert wc.status == LOC_PROT_ERR
        assert "they are not mapped" in wc.reason


def test_inline_data_that_is_not_there(child: Child) -> None:
    with Pair() as pair:
        memory = foreign(pair.a, child)
        memory.unmap(PAGE)
        with pytest.raises(PyverbsRDMAError) as caught:
            pair.a.post(WR_SEND, PAGE, 8, flags=INLINE)
        assert caught.value.errno == errno.EFAULT


def test_a_process_is_killed_and_the_others_do_not_notice(child: Child, other: Child) -> None:
    with Pair() as pair, Pair() as second:
        foreign(pair.b, child)
        foreign(second.b, other)
        child.kill()
        pair.a.post(WR_WRITE, 0, 8, 0)
        failed(pair, REM_ACCESS_ERR)
        assert any("is gone" in line for line in pair.b.node.log)
        second.a.put(0, DATA)
        second.a.post(WR_WRITE, 0, 5000, 0)
        assert second.a.status() == SUCCESS
        assert second.b.at(0, 5000) == DATA[:5000]


# -- counters


@pytest.mark.parametrize("kind", [QPT_RC, QPT_UC])
def test_a_counter_in_the_memory_of_a_process(kind: int, child: Child) -> None:
    with Pair(kind=kind) as pair:
        counter = pair.a.counters[WRITE]
        counter.value_address = spaces.far(child.space, child.address + 64)
        counter.error_address = spaces.far(child.space, child.address + 72)
        for _ in range(3):
            pair.a.post(WR_WRITE, 0, 8, 0)
        pair.sim.settle()
        port = pair.a.node.port
        port.publish_shared()
        assert (number(child.call("at", 64, 8)), number(child.call("at", 72, 8))) == (3, 0)
        pair.a.qp.modify({"qp_state": ERR}, 1)
        pair.a.post(WR_WRITE, 0, 8, 0)
        port.publish_shared()
        assert (number(child.call("at", 64, 8)), number(child.call("at", 72, 8))) == (3, 1)
        counter.set(2**64 - 1)
        port.publish_shared()
        assert number(child.call("at", 64, 8)) == 2**64 - 1
        child.kill()
        counter.inc(2)
        port.publish_shared()
        assert (counter.visible_value, counter.value_address, counter.lost, port.counts_lost) == (1, 0, 1, 1)
        assert "is gone" in pair.a.node.log[-1]
        counter.inc_err(1)
        port.publish_shared()
        assert (counter.visible_errors, counter.error_address, counter.lost, port.counts_lost) == (2, 0, 3, 2)
