# SPDX-License-Identifier: MIT
"""Bytes that arrive side by side for another process are placed together: what that must not change."""

import ctypes
from collections.abc import Iterator
from typing import Any

import pytest
from tests.foreign import PAGE, READ_ONLY, Child, ForeignRegion
from tests.netsim.pair import (
    LOC_PROT_ERR,
    READ,
    REM_ACCESS_ERR,
    REM_OP_ERR,
    REMOTE_READ,
    REMOTE_WRITE,
    SUCCESS,
    WR_FAA,
    WR_READ,
    WR_SEND,
    WR_WRITE,
    WR_WRITE_IMM,
    WRITE,
    End,
    Pair,
)
from tests.netsim.sim import ALL, ERR, QPT_RC, QPT_UC, QPT_UD, QPT_XRC_SEND, RTS, Node, Sim, connect

from softverbs.core.memory import spaces
from softverbs.core.memory.far import Far
from softverbs.core.memory.raw import Block, view

SIZE = 64 * PAGE
MTU = 1024  # path_mtu 3
DATA = (bytes(range(1, 251)) * 1050)[:SIZE]
BASE = 0x10000
FIRST_PSN = 0x1000


@pytest.fixture
def child() -> Iterator[Child]:
    with Child(2 * SIZE) as child:
        yield child


def foreign(end: End, child: Child, offset: int = 0) -> ForeignRegion:
    end.memory = region = ForeignRegion(end.node, end.pd, child, ALL, BASE, offset, SIZE)  # type: ignore[assignment]
    return region


# -- by itself


@pytest.fixture
def here() -> Block:
    block = Block(len(DATA))
    view(block.address, len(DATA))[:] = DATA
    return block


def test_what_is_put_is_placed_together(child: Child, here: Block) -> None:
    far, at = Far(), spaces.far(child.space, child.address)
    for start in (0, 10, 30):
        assert far.put(at + start, here.address + 2 * start, 10 if start == 0 else 20)
    assert far.count == 3
    assert child.call("at", 0, 50) == bytes(50), "it waits"
    assert far.land() and far.count == 0
    assert child.call("at", 0, 51) == DATA[:10] + DATA[20:40] + DATA[60:80] + b"\0"
    assert far.land(), "nothing is always possible"


@pytest.mark.parametrize("gap", [-1, 1, -20, PAGE])
def test_what_is_not_side_by_side_is_not_placed_together(gap: int, child: Child, here: Block) -> None:
    far, at = Far(), spaces.far(child.space, child.address) + PAGE
    assert far.put(at, here.address, 20) and far.put(at + 20 + gap, here.address + 20, 20)
    assert far.count == 1, "the first is there"
    assert far.land()
    image = bytearray(2 * PAGE + 60)
    image[PAGE : PAGE + 20] = DATA[:20]
    image[PAGE + 20 + gap : PAGE + 40 + gap] = DATA[20:40]
    assert child.call("at", 0, len(image)) == image


def test_any_number_of_pieces(child: Child, here: Block) -> None:
    far, at = Far(), spaces.far(child.space, child.address)
    for index in range(1000):
        assert far.put(at + index * 7, here.address + index * 7, 7)
    assert far.land()
    assert child.call("at", 0, 7001) == DATA[:7000] + b"\0"


def test_which_packet_could_not_be_placed(child: Child, here: Block) -> None:
    far, at = Far(), spaces.far(child.space, child.address)
    assert child.call("protect", 2 * PAGE, PAGE, READ_ONLY) == 0
    for index in range(8):
        far.begin(100 + index)
        assert far.put(at + index * MTU, here.address + index * MTU, MTU)
        assert far.put(at + index * MTU + MTU, here.address, 0)
    far.begin(200)
    assert far.put(at + 2 * PAGE, here.address, 8)
    assert not far.land()
    assert (far.missed, far.count) == (200, 0)
    assert "not mapped writable" in far.fault
    assert child.call("at", 0, 2 * PAGE) == DATA[: 2 * PAGE], "what was before it is there"
    assert far.land(), "it is forgotten"
    assert far.put(at + 2 * PAGE, here.address, 8)
    assert not far.put(at, here.address, 8), "which would have to wait behind it"
    assert far.count == 0


def test_a_space_that_was_left(child: Child, here: Block) -> None:
    far, at = Far(), spaces.far(child.space, child.address)
    far.begin(5)
    assert far.put(at, here.address, 8)
    spaces.leave(child.space)
    far.begin(6)
    assert far.put(at + 8, here.address, 8)
    assert not far.land()
    assert far.missed == 5 and "is gone" in far.fault


def test_what_is_fetched_ahead_is_forgotten(child: Child, here: Block) -> None:
    far, at = Far(), spaces.far(child.space, child.address)
    child.call("put", 0, DATA[:PAGE])
    assert far.fetch(here.address, at, 100, PAGE)
    child.call("put", 0, bytes(PAGE))
    assert far.fetch(here.address + 100, at + 100, 100, PAGE - 100)
    assert bytes(view(here.address, 200)) == DATA[:200], "both were fetched at once"
    far.forget()
    assert far.fetch(here.address, at, 100, 100)
    assert bytes(view(here.address, 100)) == bytes(100)


# -- on the way from one end to the other


class Ends:
    """Two ends whose frames arrive in bursts, as from a socket: on one device or on two. ``b`` is another process."""

    def __init__(self, child: Child, devices: int, kind: int = QPT_RC) -> None:
        self.sim = Sim()
        first = self.sim.node(seed=1, bare=True)
        self.a = End(first, SIZE, kind=kind)
        self.b = End(first if devices == 1 else self.sim.node(seed=2, bare=True), SIZE, kind=kind)
        self.a.peer, self.b.peer = self.b, self.a
        self.memory = foreign(self.b, child)
        for end in (self.a, self.b):
            connect(end.qp, end.peer.qp, end.node, end.peer.node)

    def __enter__(self) -> "Ends":
        return self

    def __exit__(self, *exc: object) -> None:
        self.sim.__exit__(*exc)


@pytest.fixture(params=[1, 2], ids=["one_device", "two_devices"])
def devices(request: Any) -> int:
    return int(request.param)


@pytest.fixture
def ends(devices: int, child: Child) -> Iterator[Ends]:
    with Ends(child, devices) as ends:
        yield ends


def test_messages_longer_than_everything(ends: Ends) -> None:
    a, b = ends.a, ends.b
    a.put(0, DATA)
    length = SIZE - 77
    a.post(WR_WRITE, 3, length - 3, 1)
    b.receive(0, SIZE, 7)
    assert a.status() == SUCCESS
    assert b.at(0, length) == b"\0" + DATA[3:length] + b"\0\0"
    a.post(WR_SEND, 0, length)
    assert a.status() == SUCCESS
    ends.sim.settle()
    assert b.done() == [(7, SUCCESS)]
    assert b.at(0, length + 1) == DATA[:length] + b"\0"
    a.put(0, bytes(SIZE))
    b.qp.post_send(b.wr(WR_READ, 0, 8, 0))
    a.post(WR_READ, 5, length - 5, 2)
    assert a.status() == SUCCESS
    assert a.at(5, length) == DATA[2 : length - 3] + bytes(5)


def test_a_read_into_far_memory(ends: Ends) -> None:
    a, b = ends.a, ends.b
    a.put(0, DATA[:SIZE])
    b.post(WR_READ, 1, SIZE - 9, 8)
    assert b.status() == SUCCESS
    assert b.at(0, SIZE - 8) == b"\0" + DATA[8 : SIZE - 1]
    ends.memory.unmap(10 * PAGE)
    b.post(WR_READ, 1, SIZE - 9, 8)
    wc = b.wait()[0]
    assert wc.status == LOC_PROT_ERR and "are not mapped writable" in wc.reason
    assert b.qp.state == ERR and b.count(READ) == (1, 1)


@pytest.mark.parametrize("page", [0, 2, 9], ids=["first", "middle", "last"])
def test_the_packet_that_cannot_be_written_is_the_one_that_is_refused(page: int, ends: Ends) -> None:
    """As if each packet had been placed when it came; and nothing says that the message was there."""
    a, b = ends.a, ends.b
    a.put(0, DATA[: 10 * PAGE])
    ends.memory.protect(page * PAGE, READ_ONLY)
    a.post(WR_WRITE, 0, 10 * PAGE, 0)
    wc = a.wait()[0]
    assert wc.status == REM_ACCESS_ERR
    assert b.qp.query()["rq_psn"] == FIRST_PSN + page * PAGE // MTU
    assert b.count(REMOTE_WRITE) == (0, 0) and a.count(WRITE) == (0, 1)
    assert b.qp.state == ERR
    assert b.at(0, (page + 1) * PAGE) == DATA[: page * PAGE] + bytes(PAGE)
    assert any(f"{MTU} bytes at" in line and "not mapped writable" in line for line in b.node.log), b.node.log


@pytest.mark.parametrize("page", [0, 5, 9], ids=["first", "middle", "last"])
def test_a_receive_that_cannot_be_written(page: int, ends: Ends) -> None:
    a, b = ends.a, ends.b
    ends.memory.protect(page * PAGE, READ_ONLY)
    b.receive(0, SIZE, 5)
    b.receive(0, SIZE, 6)
    a.post(WR_SEND, 0, 10 * PAGE)
    assert a.status() == REM_OP_ERR
    assert b.qp.query()["rq_psn"] == FIRST_PSN + page * PAGE // MTU
    (first, status), flushed = b.done()
    assert (first, status, flushed[0]) == (5, LOC_PROT_ERR, 6)
    assert b.qp.state == ERR


def test_a_write_with_immediate_tells_nobody_before_all_is_there(ends: Ends) -> None:
    a, b = ends.a, ends.b
    ends.memory.protect(9 * PAGE, READ_ONLY)
    b.receive(wr_id=5)
    a.put(0, DATA)
    a.post(WR_WRITE_IMM, 0, 9 * PAGE, 0, imm=1)
    assert a.status() == SUCCESS
    ends.sim.settle()
    assert b.done() == [(5, SUCCESS)] and b.at(0, 9 * PAGE) == DATA[: 9 * PAGE]
    b.receive(wr_id=6)
    a.post(WR_WRITE_IMM, 0, 9 * PAGE + 1, 0, imm=1)
    assert a.status() == REM_ACCESS_ERR
    assert [status for _, status in b.done()] != [SUCCESS] and b.count(REMOTE_WRITE) == (1, 0)


def test_what_comes_after_a_write_finds_its_bytes(ends: Ends) -> None:
    a, b = ends.a, ends.b
    a.put(0, (5).to_bytes(8, "little") * (10 * PAGE // 8))
    for at in (0, 4 * PAGE, 10 * PAGE - 8):
        a.post(WR_WRITE, 0, 10 * PAGE, 0)
        a.post(WR_FAA, 20 * PAGE, 8, at, add=2)
        a.post(WR_READ, 30 * PAGE, 8, at)
        assert [wc.status for wc in a.wait(3)] == [SUCCESS] * 3
        assert (a.memory.word(20 * PAGE), a.memory.word(30 * PAGE), b.memory.word(at)) == (5, 7, 7)
    assert b.count(REMOTE_WRITE) == (3, 0) and b.count(REMOTE_READ) == (6, 0)


def test_unreliable_messages(devices: int, child: Child) -> None:
    """One that cannot be written is lost, and the next is as good as ever."""
    with Ends(child, devices, QPT_UC) as ends:
        a, b = ends.a, ends.b
        a.put(0, DATA)
        ends.memory.protect(3 * PAGE, READ_ONLY)
        a.post(WR_WRITE, 0, 10 * PAGE, 0)
        a.post(WR_WRITE, 0, 10 * PAGE, 20 * PAGE)
        assert [wc.status for wc in a.wait(2)] == [SUCCESS] * 2
        ends.sim.settle()
        assert b.qp.state == RTS and b.count(REMOTE_WRITE) == (1, 0)
        assert b.at(20 * PAGE, 10 * PAGE) == DATA[: 10 * PAGE]
        b.receive(0, SIZE, 5)
        a.post(WR_SEND, 0, 10 * PAGE)
        ends.sim.settle()
        assert b.done() == [(5, LOC_PROT_ERR)] and b.qp.state == ERR


def test_many_connections_at_once(ends: Ends, child: Child) -> None:
    """Their messages lie beside each other in one memory, so that one could be taken for the rest of another."""
    a, b = ends.a, ends.b
    others = []
    for _ in range(3):
        pair = a.node.qp(a.pd, a.cq), b.node.qp(b.pd, b.cq)
        connect(pair[0], pair[1], a.node, b.node)
        connect(pair[1], pair[0], b.node, a.node)
        others.append(pair[0])
    a.put(0, DATA)
    share = SIZE // 16
    for turn in range(4):
        for index, qp in enumerate([a.qp, *others]):
            at = (turn * 4 + index) * share
            qp.post_send(a.wr(WR_WRITE, at, share, at))
    assert [wc.status for wc in a.wait(16)] == [SUCCESS] * 16
    assert b.at(0, SIZE) == DATA[:SIZE]


def test_memory_is_deregistered_in_the_middle_of_a_message(child: Child) -> None:
    with Ends(child, 2) as ends:
        a, b = ends.a, ends.b
        a.put(0, DATA)
        a.post(WR_WRITE, 0, SIZE, 0)
        a.node.device.progress()
        b.node.device.progress()
        reached = b.qp.query()["rq_psn"] - FIRST_PSN
        assert 0 < reached < SIZE // MTU, "it is in the middle"
        ends.memory.deregister()
        assert a.status() == REM_ACCESS_ERR
        assert b.at(0, SIZE) == DATA[: reached * MTU] + bytes(SIZE - reached * MTU)


# -- bursts of the test's choice


class Burst:
    """A pair whose first end's frames are held back, so that the other gets them as the test likes."""

    def __init__(self, pair: Pair, child: Child) -> None:
        self.pair, self.a, self.b = pair, pair.a, pair.b
        self.memory = foreign(pair.b, child)
        self.peer = pair.b.node.port.peer(pair.a.node.gid, 4791, 0)
        pair.a.put(0, DATA[: 1 << 16])

    def frames(self, *words: Any, qp: Any = None, **more: Any) -> list[bytes]:
        """The frames of a work request, which get lost."""
        self.pair.rule = lambda _: []
        seen = len(self.pair.wire)
        (qp or self.a.qp).post_send(self.a.wr(*words, **more))
        self.a.node.device.progress()
        self.pair.rule = None
        return [frame for _, frame in self.pair.wire[seen:]]

    def deliver(self, frames: list[bytes]) -> None:
        """Hands frames to the other end, those of one length in one burst. Their memory is used again at once."""
        while frames:
            count = 1
            while count < len(frames) and len(frames[count]) == len(frames[0]):
                count += 1
            data = b"".join(frames[:count])
            buffer = ctypes.create_string_buffer(data, len(data))
            self.b.node.port.receive(self.peer, ctypes.addressof(buffer), len(data), len(frames[0]))
            ctypes.memset(buffer, 0xEE, len(data))
            frames = frames[count:]


@pytest.fixture(params=[QPT_RC, QPT_XRC_SEND], ids=["rc", "xrc"])
def burst(request: Any, child: Child) -> Iterator[Burst]:
    with Pair(kind=request.param) as pair:
        yield Burst(pair, child)


def test_what_was_not_in_order(burst: Burst) -> None:
    """Packets twice, and one that is missing in the middle of a burst: what it is missed by is sent again."""
    frames = burst.frames(WR_WRITE, 0, 12 * MTU, 0)
    burst.deliver([*frames[:3], *frames[1:3], *frames[3:6], *frames[7:10], frames[2], frames[5]])
    assert burst.b.at(0, 7 * MTU) == DATA[: 6 * MTU] + bytes(MTU)
    assert burst.b.count(REMOTE_WRITE) == (0, 0)
    assert burst.a.status() == SUCCESS
    assert burst.b.at(0, 12 * MTU + 1) == DATA[: 12 * MTU] + b"\0"
    assert burst.b.count(REMOTE_WRITE) == (1, 0)


def test_what_is_placed_is_acknowledged_and_nothing_else(burst: Burst) -> None:
    """The PSN of the NAK is that of the packet, though the whole burst was taken before anybody knew."""
    frames = burst.frames(WR_WRITE, 0, 12 * MTU, 0)
    burst.memory.protect(PAGE, READ_ONLY)
    burst.deliver(frames[:11])
    assert burst.b.qp.state == ERR
    burst.deliver(frames[11:])
    burst.pair.sim.run_for(0)
    answers = burst.pair.sent(burst.b, 0x11, 0xB1)
    assert [(int.from_bytes(frame[9:12], "big"), frame[12]) for frame in answers] == [(FIRST_PSN + PAGE // MTU, 0x62)]
    assert burst.a.status() == REM_ACCESS_ERR
    assert burst.b.node.stats()["dropped_qp_state"] == 1


def test_an_end_in_error_is_told_nothing_more(burst: Burst) -> None:
    """A bad packet ends the connection while bytes wait, and these cannot be placed either: one refusal."""
    frames = burst.frames(WR_SEND, 0, 8 * MTU)
    burst.b.receive(0, SIZE, 5)
    burst.memory.protect(0, READ_ONLY)
    last = burst.frames(WR_SEND, 0, 8 * MTU)[-1]
    wrong = burst.a.forge(last[:9] + frames[4][9:12] + last[12:-4])  # the end of the message, as long as a middle
    burst.deliver([frames[0], frames[1], frames[2], frames[3], wrong])
    assert burst.b.done() == [(5, LOC_PROT_ERR)] and burst.b.qp.state == ERR


def test_two_messages_in_turns(child: Child) -> None:
    """Packet by packet from two connections, to adjacent memory; one of them cannot be written."""
    with Pair() as pair:
        burst = Burst(pair, child)
        a, b = pair.a, pair.b
        ours, theirs = a.node.qp(a.pd, a.cq), b.node.qp(b.pd, b.cq)
        connect(ours, theirs, a.node, b.node)
        connect(theirs, ours, b.node, a.node)
        burst.memory.protect(3 * PAGE, READ_ONLY)
        one = burst.frames(WR_WRITE, 0, 8 * MTU, 0)
        two = burst.frames(WR_WRITE, 0, 8 * MTU, 2 * PAGE, qp=ours)
        burst.deliver([one[0], two[0]])
        burst.deliver([frame for both in zip(one[1:7], two[1:7], strict=True) for frame in both])
        assert b.at(0, 7 * MTU) == DATA[: 7 * MTU]
        assert (b.qp.state, theirs.state) == (RTS, ERR)
        assert theirs.query()["rq_psn"] == FIRST_PSN + 4
        assert b.at(2 * PAGE, 2 * PAGE) == DATA[:PAGE] + bytes(PAGE)
        burst.deliver(one[7:])
        assert sorted(wc.status for wc in a.wait(2)) == [SUCCESS, REM_ACCESS_ERR]
        assert b.at(0, 8 * MTU) == DATA[: 8 * MTU] and b.count(REMOTE_WRITE) == (1, 0)


def test_no_receive_at_the_end_of_a_message(child: Child) -> None:
    """The last packet has to come again, the others are there."""
    with Pair() as pair:
        burst = Burst(pair, child)
        frames = burst.frames(WR_WRITE_IMM, 0, 6 * MTU, 0, imm=1)
        burst.deliver(frames)
        assert burst.b.at(0, 6 * MTU) == DATA[: 5 * MTU] + bytes(MTU)
        burst.b.receive(wr_id=3)
        assert burst.a.status() == SUCCESS
        assert burst.b.done() == [(3, SUCCESS)] and burst.b.at(0, 6 * MTU) == DATA[: 6 * MTU]


def test_a_list_of_far_and_near_pieces(child: Child) -> None:
    with Pair() as pair:
        burst = Burst(pair, child)
        b = pair.b
        near = b.node.region(b.pd, PAGE, ALL)
        key = near.key
        lists = [b.sge(0, 1500), b.sge(1500, 700), b.sge(PAGE, 3000)]
        near_sge = b.sge(0, 900)
        near_sge.__init__(near.iova, 900, key)  # type: ignore[misc]
        b.receive(sg=[*lists[:2], near_sge, lists[2]], wr_id=4)
        burst.deliver(burst.frames(WR_SEND, 0, 6 * MTU - 200))
        assert b.done() == [(4, SUCCESS)]
        assert b.at(0, 2201) == DATA[:2200] + b"\0"
        assert near.at(0, 901) == DATA[2200:3100] + b"\0"
        assert b.at(PAGE, 6 * MTU - 200 - 3100 + 1) == DATA[3100 : 6 * MTU - 200] + b"\0"
        assert pair.a.status() == SUCCESS


GROUP = bytes(10) + b"\xff\xff" + bytes([239, 1, 2, 3])


def test_a_member_of_a_group_that_cannot_receive_hurts_nobody_else(child: Child) -> None:
    """Its list begins in memory that cannot be written, and goes on with a key that is wrong."""
    with Pair() as pair:
        reader = pair.b
        foreign(reader, child)
        sender, bad, good = End(pair.a.node, PAGE, kind=QPT_UD), *(End(reader.node, PAGE, kind=QPT_UD) for _ in "bg")
        for end in (sender, bad, good):
            end.peer = bad
            connect(end.qp, None, end.node, None)
        for end in (bad, good):
            foreign(end, child)
            end.qp.attach_mcast(GROUP, 0)
        reader.memory.put(0, bytes(SIZE))  # type: ignore[attr-defined]
        reader.post(WR_READ, 0, 3 * MTU, 0)  # the last that has put bytes in far memory
        assert reader.status() == SUCCESS
        reader.memory.protect(4 * PAGE, READ_ONLY)  # type: ignore[attr-defined]
        wrong = bad.sge(5 * PAGE, 100)
        wrong.__init__(BASE, 100, 0x12345)  # type: ignore[misc]
        bad.receive(sg=[bad.sge(4 * PAGE, 60), wrong], wr_id=1)
        good.receive(6 * PAGE, 200, wr_id=2)
        sender.put(0, DATA[:80])
        sender.post(WR_SEND, 0, 80, handle=sender.handle(GROUP), qpn=0xFFFFFF)
        pair.sim.settle()
        assert bad.done() == [(1, LOC_PROT_ERR)] and bad.qp.state == ERR
        assert good.done() == [(2, SUCCESS)] and good.qp.state == RTS
        assert good.at(6 * PAGE + 40, 81) == DATA[:80] + b"\0"
        assert reader.done() == [] and reader.qp.state == RTS


def test_nodes_have_one_way_to_far_memory_each() -> None:
    with Sim() as sim:
        nodes: list[Node] = [sim.node(), sim.node()]
        assert nodes[0].port.far is not nodes[1].port.far
