# SPDX-License-Identifier: MIT
"""The states of one connection: two machines, a network between them that loses, repeats and reorders; virtual time."""

import errno
import heapq
import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from softverbs.cm import messages
from softverbs.cm.machine import Machine, Notice, State, Timing
from softverbs.cm.messages import Dreq, Message, Mra, Rej, Rep, Req, Rtu, decode

MS = 1_000_000
TIMING = Timing(response_ns=100 * MS, retries=5, wait_ns=300 * MS)


class Side:
    """A machine, what it has sent and what it has told."""

    def __init__(self, world: "World", number: int, timing: Timing = TIMING) -> None:
        self.world = world
        self.told: list[tuple[Notice, int]] = []
        self.last: Message | None = None
        self.machine = Machine(number, self.send, self.tell, timing)
        self.on_tell: Callable[[Notice], None] = lambda notice: None

    def send(self, message: Message) -> None:
        self.world.carry(self, message)

    def tell(self, notice: Notice, status: int, message: Message | None) -> None:
        self.told.append((notice, status))
        self.last = message
        self.on_tell(notice)

    @property
    def notices(self) -> list[Notice]:
        return [notice for notice, _ in self.told]


class World:
    """Two sides, time, and the messages on their way."""

    def __init__(self, seed: int = 0, lose: float = 0, repeat: float = 0, delay_ns: int = 0) -> None:
        self.chance = random.Random(seed)
        self.lose, self.repeat, self.delay_ns = lose, repeat, delay_ns
        self.now = 1
        self.order = 0
        self.flying: list[tuple[int, int, Side, bytes]] = []
        self.sent: list[Message] = []
        self.block: Callable[[Side, Message], bool] = lambda side, message: False
        self.a, self.b = Side(self, 0xA1), Side(self, 0xB2)

    def carry(self, source: Side, message: Message) -> None:
        self.sent.append(replace(message))
        if self.block(source, message):
            return
        for _ in range(2 if self.chance.random() < self.repeat else 1):
            if self.chance.random() >= self.lose:
                self.order += 1
                due = self.now + 1 + (self.chance.randrange(self.delay_ns) if self.delay_ns else 0)
                target = self.b if source is self.a else self.a
                heapq.heappush(self.flying, (due, self.order, target, message.encode()))

    def step(self) -> bool:
        """Goes to the next thing that happens; False where nothing ever will."""
        due = [side.machine.due for side in (self.a, self.b) if side.machine.due]
        due += [self.flying[0][0]] if self.flying else []
        if not due:
            return False
        self.now = max(self.now, min(due))
        if self.flying and self.flying[0][0] <= self.now:
            _, _, target, mad = heapq.heappop(self.flying)
            target.machine.receive(decode(mad), self.now)
        else:
            for side in (self.a, self.b):
                side.machine.on_timer(self.now)
        return True

    def run(self, until: Callable[[], bool] = lambda: False) -> None:
        for _ in range(100_000):
            if until() or not self.step():
                return
        raise AssertionError("it never ends")

    def connect(self) -> None:
        """Side a asks, side b accepts when it is asked, a gets ready when b has accepted."""
        self.a.machine.connect(Req(qpn=17, path_mtu=3, transaction_id=5, ca_guid=0xC0FFEE), self.now)
        self.a.on_tell = lambda notice: self.a.machine.ready(self.now) if notice is Notice.RESPONSE else None
        self.run(lambda: self.b.machine.state is not State.IDLE or self.a.machine.state is State.GONE)
        if self.b.machine.state is State.REQ_RECEIVED:
            self.b.machine.accept(Rep(qpn=18), self.now)
        self.run(lambda: self.b.machine.state is not State.REP_SENT)


def test_connect_and_disconnect() -> None:
    world = World()
    a, b = world.a, world.b
    world.connect()
    assert (a.machine.state, b.machine.state) == (State.ESTABLISHED, State.ESTABLISHED)
    assert (a.machine.local_qpn, a.machine.remote_qpn) == (b.machine.remote_qpn, b.machine.local_qpn) == (17, 18)
    assert a.machine.active and not b.machine.active
    assert a.notices == [Notice.RESPONSE] and b.notices == [Notice.ESTABLISHED]
    assert [type(message) for message in world.sent] == [Req, Rep, Rtu]
    assert {message.transaction_id for message in world.sent} == {5}
    b.machine.disconnect(world.now, b"bye")
    world.run(lambda: a.machine.state is State.DREQ_RECEIVED)
    assert a.notices[-1] is Notice.DISCONNECTED and a.last.private_data[:4] == b"bye\0"  # type: ignore[union-attr]
    assert b.machine.state is State.DREQ_SENT and b.notices == [Notice.ESTABLISHED]
    a.machine.disconnect(world.now)
    world.run()
    assert (a.machine.state, b.machine.state) == (State.GONE, State.GONE)
    assert a.notices[-1] is b.notices[-1] is Notice.TIMEWAIT_EXIT
    assert b.notices[-2] is Notice.DISCONNECTED
    a.machine.disconnect(world.now)  # again: of no effect
    assert not a.machine.due


def test_both_disconnect_at_once() -> None:
    world = World()
    world.connect()
    world.a.machine.disconnect(world.now)
    world.b.machine.disconnect(world.now)
    world.run()
    for side in (world.a, world.b):
        assert side.notices[-2:] == [Notice.DISCONNECTED, Notice.TIMEWAIT_EXIT]
        assert side.machine.state is State.GONE


def test_reject_with_a_reason_and_words() -> None:
    world = World()
    world.a.machine.connect(Req(qpn=17), world.now)
    world.run(lambda: world.b.machine.state is State.REQ_RECEIVED)
    world.b.machine.reject(world.now, messages.REJ_CONSUMER, b"not today")
    world.run()
    assert world.a.told == [(Notice.REJECTED, 28)]
    assert isinstance(world.a.last, Rej) and world.a.last.private_data.startswith(b"not today\0")
    assert world.a.machine.state is State.GONE and world.b.machine.state is State.GONE
    assert world.b.told == []


def test_a_lost_reject_is_sent_again_when_the_req_comes_again() -> None:
    world = World()
    world.block = lambda side, message: side is world.b and len(world.sent) < 3
    world.a.machine.connect(Req(qpn=17), world.now)
    world.run(lambda: world.b.machine.state is State.REQ_RECEIVED)
    world.b.machine.reject(world.now)
    world.run()
    assert world.a.told == [(Notice.REJECTED, 28)]
    assert [type(message) for message in world.sent] == [Req, Rej, Req, Rej]


def test_the_active_side_can_refuse_the_answer() -> None:
    world = World()
    world.a.machine.connect(Req(qpn=17), world.now)
    world.run(lambda: world.b.machine.state is State.REQ_RECEIVED)
    world.b.machine.accept(Rep(qpn=18), world.now)
    world.run(lambda: world.a.machine.state is State.REP_RECEIVED)
    world.a.machine.reject(world.now, private_data=b"too late")
    world.run()
    assert (Notice.REJECTED, 28) in world.b.told
    assert [side.machine.state for side in (world.a, world.b)] == [State.GONE, State.GONE]


def test_nobody_answers() -> None:
    world = World(lose=1)
    world.a.machine.connect(Req(qpn=17, ca_guid=7), world.now)
    world.run()
    assert world.a.told == [(Notice.UNREACHABLE, -errno.ETIMEDOUT)]
    assert [type(message) for message in world.sent] == [Req] * 6 + [Rej]
    last = world.sent[-1]
    assert isinstance(last, Rej) and last.reason == messages.REJ_TIMEOUT and last.info[:8] == (7).to_bytes(8, "big")
    assert 600 * MS <= world.now <= 601 * MS


def test_a_slow_application_is_announced_by_mra() -> None:
    """The REQ comes again while the application thinks: the MRA keeps the active side from giving up."""
    world = World()
    world.a.machine.connect(Req(qpn=17), world.now)
    start = world.now
    world.run(lambda: world.now > start + 30_000 * MS)
    assert sum(isinstance(message, Mra) for message in world.sent) == 1
    assert world.a.machine.state is State.REQ_SENT
    world.a.on_tell = lambda notice: world.a.machine.ready(world.now) if notice is Notice.RESPONSE else None
    world.b.machine.accept(Rep(qpn=18), world.now)
    world.run(lambda: world.b.machine.state is State.ESTABLISHED)
    assert world.a.machine.state is State.ESTABLISHED


def test_a_lost_rtu_is_sent_again() -> None:
    world = World()
    lost: list[Message] = []

    def block(side: Side, message: Message) -> bool:
        if isinstance(message, Rtu) and len(lost) < 3:
            lost.append(message)
            return True
        return False

    world.block = block
    world.connect()
    assert world.b.machine.state is State.ESTABLISHED
    assert world.b.notices == [Notice.ESTABLISHED] and world.a.notices == [Notice.RESPONSE]
    assert world.a.machine.duplicates == 3


def test_data_establishes_where_the_rtu_is_lost() -> None:
    world = World()
    world.block = lambda side, message: isinstance(message, Rtu)
    world.a.machine.connect(Req(qpn=17), world.now)
    world.a.on_tell = lambda notice: world.a.machine.ready(world.now) if notice is Notice.RESPONSE else None
    world.run(lambda: world.b.machine.state is State.REQ_RECEIVED)
    world.b.machine.accept(Rep(qpn=18), world.now)
    world.run(lambda: world.a.machine.state is State.ESTABLISHED)
    world.b.machine.heard(world.now)
    assert world.b.notices == [Notice.ESTABLISHED]
    world.b.machine.heard(world.now)
    assert world.b.notices == [Notice.ESTABLISHED] and not world.b.machine.due


def test_the_passive_side_gives_up_too() -> None:
    world = World()
    world.block = lambda side, message: side is world.b or isinstance(message, Rej)
    world.a.machine.connect(Req(qpn=17), world.now)
    world.run(lambda: world.b.machine.state is State.REQ_RECEIVED)
    world.b.machine.accept(Rep(qpn=18), world.now)
    world.run()
    assert world.b.told == [(Notice.UNREACHABLE, -errno.ETIMEDOUT), (Notice.TIMEWAIT_EXIT, 0)]
    assert world.a.told == [(Notice.UNREACHABLE, -errno.ETIMEDOUT)]


def test_a_peer_that_died_is_disconnected_by_time() -> None:
    world = World()
    world.connect()
    world.block = lambda side, message: True
    world.a.machine.disconnect(world.now)
    world.run(lambda: world.a.machine.state is State.GONE)
    assert world.a.told[-2:] == [(Notice.DISCONNECTED, -errno.ETIMEDOUT), (Notice.TIMEWAIT_EXIT, 0)]


def test_a_dreq_for_another_queue_pair_changes_nothing() -> None:
    world = World()
    world.connect()
    world.b.machine.receive(Dreq(local_comm_id=0xA1, remote_comm_id=0xB2, remote_qpn=99), world.now)
    assert world.b.machine.state is State.ESTABLISHED and world.b.machine.unexpected == 1


@pytest.mark.parametrize("closer", ["a", "b"])
@pytest.mark.parametrize("state", ["REQ_SENT", "REQ_RECEIVED", "REP_SENT", "ESTABLISHED", "DREQ_SENT"])
def test_letting_go_tells_the_peer_and_nobody_here(state: str, closer: str) -> None:
    world = World()
    world.a.machine.connect(Req(qpn=17), world.now)
    if state != "REQ_SENT":
        world.run(lambda: world.b.machine.state is State.REQ_RECEIVED)
    if state in ("REP_SENT", "ESTABLISHED", "DREQ_SENT"):
        world.b.machine.accept(Rep(qpn=18), world.now)
        world.run(lambda: world.a.machine.state is State.REP_RECEIVED)
    if state in ("ESTABLISHED", "DREQ_SENT"):
        world.a.machine.ready(world.now)
        world.run(lambda: world.b.machine.state is State.ESTABLISHED)
    if state == "DREQ_SENT":
        world.a.machine.disconnect(world.now)
    one, other = (world.a, world.b) if closer == "a" else (world.b, world.a)
    before = list(one.told)
    one.machine.close(world.now)
    other.on_tell = lambda notice: (
        other.machine.disconnect(world.now) if other.machine.state is State.DREQ_RECEIVED else None
    )
    if one.machine.state is State.GONE and other is world.a:
        return  # nothing had reached it
    world.run(lambda: other.machine.state in (State.GONE, State.REQ_RECEIVED))
    world.run()
    assert one.told == before
    assert one.machine.state is State.GONE


@pytest.mark.parametrize("seed", range(150))
def test_walk(seed: int) -> None:
    """A network that loses, repeats and reorders: both sides agree in the end, and hear each thing once."""
    chance = random.Random(seed)
    world = World(seed, lose=chance.choice([0, 0.1, 0.3, 0.5]), repeat=chance.choice([0, 0.3]), delay_ns=400 * MS)
    a, b = world.a, world.b
    world.connect()
    if chance.random() < 0.5:
        a.machine.receive(Mra(about=2, service_timeout=3), world.now)
    for side in chance.sample([a, b], chance.choice([1, 2])):
        if side.machine.state is State.ESTABLISHED:
            side.machine.disconnect(world.now)
    for side in (a, b):

        def answer(notice: Notice, side: Side = side) -> None:
            if notice is Notice.DISCONNECTED and side.machine.state is State.DREQ_RECEIVED:
                side.machine.disconnect(world.now)
            elif notice is Notice.RESPONSE:
                side.machine.ready(world.now)

        side.on_tell = answer
    world.run()
    for side in (a, b):
        if side.machine.state is State.ESTABLISHED:  # the other side gave up, and every REJ of it was lost
            side.machine.disconnect(world.now)
            world.run()
        assert side.machine.state in (State.GONE, State.IDLE), side.machine.state
        assert len(set(side.notices)) == len(side.notices), side.notices
        assert side.notices.count(Notice.DISCONNECTED) + side.notices.count(Notice.REJECTED) <= 1 + (
            Notice.UNREACHABLE in side.notices
        )
        if Notice.DISCONNECTED in side.notices:
            assert side.notices[-1] is Notice.TIMEWAIT_EXIT


def test_noise_in_every_state_changes_nothing_forbidden() -> None:
    """Random messages with the right numbers, in every state: never an exception, and the states stay known."""
    kinds = [Req, Mra, Rej, Rep, Rtu, Dreq, messages.Drep, messages.SidrReq]
    for seed in range(60):
        chance = random.Random(seed)
        world = World(seed)
        world.connect()
        for _ in range(30):
            side = chance.choice([world.a, world.b])
            kind = chance.choice(kinds)
            values = {
                name: chance.randrange(1 << bits) for name, (_, bits) in kind.LAYOUT.items() if not name.endswith("id")
            }
            side.machine.receive(kind(**values), world.now)
            world.now += chance.randrange(50 * MS)
            side.machine.on_timer(world.now)
        for side in (world.a, world.b):
            side.machine.close(world.now)
        world.run()
        assert {world.a.machine.state, world.b.machine.state} <= {State.GONE, State.TIMEWAIT, State.IDLE}
