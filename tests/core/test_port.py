# SPDX-License-Identifier: MIT
"""The port: which frames it believes, when it wants to be called, where it can send to, whom it wakes."""

import errno
import threading
from collections.abc import Callable
from typing import Any

import pytest
from tests.netsim import frames
from tests.netsim.pair import REM_ACCESS_ERR, SUCCESS, WR_WRITE, Pair
from tests.netsim.sim import ERR, RESET, RTS, SECOND, TIMEOUT_NS, Sim, connect, move

from softverbs.core.base.errors import PyverbsRDMAError
from softverbs.core.base.limits import Options
from softverbs.core.base.lock import Lock
from softverbs.core.engine.port import Port, largest_mtu
from softverbs.core.memory.raw import Block
from softverbs.core.memory.regions import ProtectionDomain
from softverbs.core.queues.completion import CompletionQueue
from softverbs.core.queues.counters import CompCntr
from softverbs.core.queues.wr import SGE, SendWR
from softverbs.core.transport.address import AddressVector
from softverbs.core.transport.qp import QueuePair
from softverbs.links.inproc import Network

WRITE_BODY = frames.put_reth(0x10000, 0, 0)


def drops(pair: Pair) -> dict[str, int]:
    """Why b's port has dropped frames."""
    stats = pair.b.node.stats()
    return {name[len("dropped_") :]: count for name, count in stats.items() if name.startswith("dropped_") and count}


def throw(pair: Pair, node: Any, frame: bytes) -> None:
    """Lets a node send these bytes to b."""
    block = Block(len(frame))
    frames.view(block.address, len(frame))[:] = frame
    node.link.send(pair.sim.now, node.link.route(0, pair.b.node.gid, 0, 0, 64), block.address, len(frame), len(frame))
    pair.sim.run_for(0)


def write(pair: Pair, opcode: int = frames.WRITE_ONLY, number: int | None = None, body: bytes = WRITE_BODY) -> bytes:
    return frames.put_bth(opcode, pair.b.qp.qp_num if number is None else number, 0x1000) + body


def patched(frame: bytes, at: int, value: int) -> bytes:
    return frame[:at] + bytes([value]) + frame[at + 1 :]


BAD_FRAMES: dict[str, tuple[str, Callable[[Pair], bytes]]] = {
    "no ICRC": ("short", lambda pair: write(pair)[:8]),
    "an odd length": ("short", lambda pair: write(pair) + b"x"),
    "another version": ("version", lambda pair: patched(write(pair), 1, 0x41)),
    "no such opcode": ("opcode", lambda pair: write(pair, 0x18)),
    "the highest opcode": ("opcode", lambda pair: write(pair, 0xFF)),
    "unreliable connection": ("transport", lambda pair: write(pair, 0x2A)),
    "unreliable datagram": ("transport", lambda pair: write(pair, 0x64, body=bytes(8))),
    "another partition": ("pkey", lambda pair: patched(write(pair), 2, 0x7F)[:3] + b"\xfe" + write(pair)[4:]),
    "beyond the table": ("unknown_qp", lambda pair: write(pair, number=0xFFFF)),
    "nobody at this place": ("unknown_qp", lambda pair: write(pair, number=3)),
    "a number of the past": ("unknown_qp", lambda pair: write(pair, number=pair.b.qp.qp_num ^ 0x10000)),
    "a header missing": ("malformed", lambda pair: write(pair, body=b"")),
    "payload where there is none": ("malformed", lambda pair: write(pair, frames.READ_REQUEST, body=bytes(20))),
    "more pad than payload": ("malformed", lambda pair: patched(write(pair), 1, 0x70)),
}


@pytest.mark.parametrize("name", BAD_FRAMES)
def test_frames_that_are_wrong_are_dropped_and_counted_by_cause(name: str) -> None:
    cause, make = BAD_FRAMES[name]
    with Pair() as pair:
        throw(pair, pair.a.node, pair.a.forge(make(pair)))
        assert drops(pair) == {cause: 1}
        assert (pair.b.qp.state, pair.b.qp.responder.epsn, pair.sent(pair.b)) == (RTS, 0x1000, [])
        pair.a.post(WR_WRITE, 0, 8, 0)
        assert pair.a.status() == SUCCESS
        assert drops(pair) == {cause: 1}


def test_frames_of_somebody_else_are_dropped() -> None:
    with Pair() as pair:
        third = pair.sim.node()
        throw(pair, third, frames.Seal(third.gid, pair.b.node.gid)(write(pair)))
        assert drops(pair) == {"source": 1}
        throw(pair, pair.a.node, pair.a.forge(write(pair)))
        assert drops(pair) == {"source": 1}
        assert pair.b.qp.responder.epsn == 0x1001, "the same frame from the peer"


def test_damaged_frames_are_dropped() -> None:
    with Pair() as pair:
        frame = pair.a.forge(write(pair))
        for at in (5, 9, len(frame) - 1, 20):  # the destination's tag is unknown then; all others break the ICRC
            throw(pair, pair.a.node, patched(frame, at, frame[at] ^ 1))
        assert drops(pair) == {"unknown_qp": 1, "icrc": 3}


@pytest.mark.parametrize(("state", "cause"), [(RESET, "qp_state"), (ERR, "qp_state")])
def test_frames_for_a_queue_pair_that_is_not_ready(state: int, cause: str) -> None:
    with Pair() as pair:
        move(pair.b.qp, state)
        throw(pair, pair.a.node, pair.a.forge(write(pair)))
        assert drops(pair) == {cause: 1}


@pytest.mark.parametrize("segment", [0, -1])
def test_a_burst_of_frames_without_length(segment: int) -> None:
    """A link that says so would keep the port busy for ever."""
    with Pair() as pair:
        port = pair.b.node.port
        block = Block(64)
        port.receive(port.peer(pair.a.node.gid, 4791, 0), block.address, 64, segment)
        assert drops(pair) == {"short": 1}


# -- progress and time


def test_the_earliest_of_timer_and_link_is_the_deadline() -> None:
    with Pair() as pair:
        pair.rule = lambda _: []
        node = pair.a.node
        assert node.port.deadline() == 0, "nothing to wait for"
        pair.a.post(WR_WRITE, 0, 8, 0)
        assert node.port.deadline() == pair.sim.now, "a request waits to be sent"
        node.device.progress()
        timer = pair.sim.now + TIMEOUT_NS
        for link, due in (
            (None, timer), (timer - 1, timer - 1), (timer + 1, timer), (timer, timer), (0, pair.sim.now),
            (pair.sim.now, pair.sim.now),
        ):  # fmt: skip
            node.link.deadline = lambda link=link: link
            assert node.port.deadline() == due
        pair.finish()
        node.device.progress()
        node.link.deadline = lambda: timer + 5
        pair.sim.clock.now = timer
        node.device.progress()
        assert node.port.deadline() == timer + 5, "no timer runs any more"


def test_one_call_does_a_bounded_amount_of_work() -> None:
    """Both ends on one port: requests and answers would go to and fro in one call until the last byte."""
    size = 1 << 18
    with Sim() as sim:
        node = sim.node(options=Options(window=4096), bare=True)
        pd, cq = node.pd(), node.cq()
        memory = node.region(pd, 2 * size)
        first, second = node.qp(pd, cq), node.qp(pd, cq)
        connect(first, second, node, node, path_mtu=1)
        connect(second, first, node, node, path_mtu=1)
        memory.put(0, bytes(range(256)) * (size // 256))
        wr = SendWR(1, 0, 1, sg=[SGE(memory.iova, size, memory.key)])
        wr.set_wr_rdma(memory.key, memory.iova + size)
        first.post_send(wr)
        calls = 0
        while not cq.count():
            assert node.device.progress() > 0, "there is more to do"
            calls += 1
        assert calls > 1
        assert cq.poll(2)[0].status == SUCCESS
        assert memory.at(size, size) == memory.at(0, size)


def test_a_link_that_is_full_is_tried_again() -> None:
    with Pair() as pair:
        node = pair.a.node
        tries = []
        send = node.link.send

        def full(*args: Any) -> bool:
            tries.append(args[2:])
            return False

        node.link.send = full
        pair.a.memory.put(0, b"12345678")
        pair.a.post(WR_WRITE, 0, 8, 0)
        node.device.progress()
        node.device.progress()
        assert tries
        assert set(tries) == {tries[0]}, "the same burst each time"
        assert node.port.deadline() == pair.sim.now
        pair.a.post(WR_WRITE, 8, 8, 8)
        node.device.progress()
        node.link.send = send
        assert [wc.status for wc in pair.a.wait(2)] == [SUCCESS, SUCCESS]
        assert pair.b.memory.at(0, 8) == b"12345678"
        assert pair.a.qp.requester.retransmissions == 0
        assert len(pair.sent(pair.a)) == 2


def test_a_port_that_has_failed_says_why_to_whoever_polls() -> None:
    with Pair() as pair:
        counter = pair.a.node.counter()
        pair.a.node.port.fail("the link has burnt")
        for act in (lambda: pair.a.cq.poll(1), counter.read, counter.read_err, counter.read_pair):
            with pytest.raises(PyverbsRDMAError, match="the link has burnt") as caught:
                act()
            assert caught.value.errno == errno.EIO
        with pair.a.node.port.lock:  # and the lock is free again
            pass


def test_refusals_need_no_log() -> None:
    with Pair() as pair:
        pair.a.post(WR_WRITE, 0, 8, 0, rkey=0xBAD)
        pair.b.node.port.log = None
        assert pair.a.status() == REM_ACCESS_ERR
        assert pair.b.node.log == []
        assert len(pair.a.node.log) == 1


# -- who is woken


def test_sleepers_are_woken_once_until_they_answer(core_is_compiled: bool) -> None:
    wakes: list[int] = []
    lock: Any = Lock(threading.get_ident, lambda: None, lambda _: None) if core_is_compiled else threading.RLock()
    port = Port(Network().link("10.0.0.1"), Options(counter_delay_ns=5), lock, lambda: SECOND, lambda: wakes.append(1))
    pd = ProtectionDomain(port, None)
    cq = CompletionQueue(port, None, 4, None, None, 0, 0)
    qp = QueuePair(port, None, pd, cq, cq, None, (1, 1, 1, 1, 0), 2, False)
    counter = CompCntr(port, None, 0, 0, 0)
    port.schedule(qp)
    counter.inc(1)
    assert wakes == [], "nobody sleeps"
    port.sleepers = 2
    port.schedule(qp)
    port.schedule(qp)
    counter.inc(1)
    assert (wakes, port.rung) == ([1], True)
    port.sleepers, port.rung = 1, False
    counter.inc(1)
    assert (wakes, port.rung) == ([1, 1], True), "an update that becomes visible later is something to wake for too"
    port.schedule(qp)
    assert wakes == [1, 1]


# -- paths


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"is_global": False}, "is_global=0: RoCE addresses peers by GID"),
        ({"port_num": 2}, "port_num=2: the device has port 1"),
        ({"port_num": 0}, "port_num=0"),
        ({"sgid_index": 4}, "sgid_index=4: the GID table has 4 entries"),
        ({"sgid_index": -1}, "sgid_index=-1"),
        ({"dgid": bytes(15) + b"\x01"}, "::1 and the GID at sgid_index 0, 10.0.0.1, are not of one IP version"),
    ],
)
def test_addresses_that_a_port_cannot_send_to(changes: dict[str, Any], words: str) -> None:
    with Pair() as pair, pytest.raises(PyverbsRDMAError, match=words) as caught:
        pair.a.node.port.path_to(AddressVector(**{"dgid": pair.b.node.gid, **changes}))
    assert caught.value.errno == errno.EINVAL


def test_no_route() -> None:
    with Pair() as pair:

        def route(*_: object) -> object:
            raise OSError(errno.ENETUNREACH, "Network is unreachable")

        pair.a.node.link.route = route
        with pytest.raises(PyverbsRDMAError, match=r"no route to 10\.0\.0\.2: .*unreachable") as caught:
            pair.a.node.port.path_to(AddressVector(pair.b.node.gid))
        assert caught.value.errno == errno.EINVAL


@pytest.mark.parametrize(
    ("payload", "mtu"),
    [(65507, 5), (4096 + 40, 5), (4096 + 39, 4), (2048 + 40, 4), (1472, 3), (1063, 2), (512 + 40, 2), (551, 1), (1, 1)],
)
def test_the_mtu_is_the_largest_that_fits_a_frame(payload: int, mtu: int) -> None:
    assert largest_mtu(payload) == mtu
    if payload > 256 + 40:
        with Sim(payload) as sim:
            assert sim.node().port.active_mtu == mtu


def test_numbers_are_16_bits_of_place_and_8_of_tag() -> None:
    with Sim() as sim:
        node = sim.node(seed=0xFE)
        pd, cq = node.pd(), node.cq()
        numbers = [node.qp(pd, cq, cap=(1, 1, 1, 1, 0)).qp_num for _ in range(4)]
        assert numbers == [0xFF0010, 0x000011, 0x010012, 0x020013]
