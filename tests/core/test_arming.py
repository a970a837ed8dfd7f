# SPDX-License-Identifier: MIT
"""Arming a completion queue through memory that is shared with a program (ibv_req_notify_cq(3)).

The program looks at the tail, stores what it arms, and polls; the device stores the tail, and looks at what is armed.
Every order in which these steps can fall is tried: no wake-up is lost, and no event comes that nobody has asked for.
"""

import itertools
import random
from collections.abc import Callable, Iterator

import pytest
from tests.netsim.sim import Node, Sim
from tests.program import Completions, arming

from softverbs.core.queues import completion
from softverbs.core.queues.completion import CompChannel, CompletionQueue

SUCCESS, FLUSH_ERR = 0, 5
PLAIN, SOLICITED, ERROR = "plain", "solicited", "error"
ANY, ONLY_SOLICITED = False, True
QP_NUM = 0x1234
IS_COMPILED = not completion.__file__.endswith(".py")


class Queue:
    """A completion queue with a channel, and its program."""

    def __init__(self, node: Node, cqe: int = 16) -> None:
        self.node = node
        self.channel = CompChannel(lambda: None)
        self.core = CompletionQueue(node.port, node, cqe, None, self.channel, 0, 0)
        self.share()

    def share(self) -> None:
        armings = self.program.armings if hasattr(self, "program") else 0
        self.program = Completions(self.core.mapped_size(), self.core.rings()[0].mask + 1)
        self.program.armings = armings
        self.core.share(self.program.address, self.program)

    def complete(self, kind: str = PLAIN, qp_num: int = QP_NUM) -> None:
        """A completion, which the program cannot see yet."""
        status = FLUSH_ERR if kind == ERROR else SUCCESS
        self.core.late.append((0, 1, status, 0, qp_num, 0, 0, 0, 0, kind == SOLICITED, 0, None))
        self.core.release(self.node.sim.now)

    def publish(self) -> None:
        self.node.port.publish_shared()

    def show(self, kind: str = PLAIN, qp_num: int = QP_NUM) -> None:
        """A completion, which the program can see."""
        self.complete(kind, qp_num)
        self.publish()

    def events(self) -> int:
        """How many events there were since the last time."""
        count = 0
        while self.channel.pop() is not None:
            count += 1
        return count


@pytest.fixture
def queue() -> Iterator[Queue]:
    with Sim() as sim:
        yield Queue(sim.node())


# -- the contract


@pytest.mark.parametrize("kind", [PLAIN, SOLICITED, ERROR])
def test_one_event_for_each_arming(kind: str, queue: Queue) -> None:
    queue.show(kind)
    assert queue.events() == 0
    for _ in range(3):
        queue.program.arm()
        queue.publish()
        assert queue.events() == 0, "what was there before raises none"
        queue.show(kind)
        assert queue.events() == 1
        queue.show(kind)
        assert queue.events() == 0


def test_solicited_ones_and_errors(queue: Queue) -> None:
    for kind in (SOLICITED, ERROR):
        queue.program.arm(ONLY_SOLICITED)
        queue.show(PLAIN)
        queue.complete(PLAIN)
        queue.show(PLAIN)
        assert queue.events() == 0
        queue.complete(kind)
        queue.show(PLAIN)
        assert queue.events() == 1
        queue.show(kind)
        assert queue.events() == 0


@pytest.mark.parametrize("between", [True, False], ids=["seen", "at once"])
def test_any_is_wider(between: bool, queue: Queue) -> None:
    """ANY then SOLICITED stays ANY, SOLICITED then ANY becomes it; it is one event."""
    for first in (ANY, ONLY_SOLICITED):
        queue.show(qp_num=99)
        queue.program.arm(first)
        if between:  # the device has looked at the first when the second comes
            queue.core.purge(99)
            assert queue.core.armed == (1 if first else 2)
        queue.program.arm(not first)
        queue.show(PLAIN)
        assert queue.events() == 1
        queue.show(SOLICITED)
        assert queue.events() == 0


def test_armed_twice_is_one_event(queue: Queue) -> None:
    queue.program.arm()
    queue.program.arm()
    queue.complete()
    queue.program.arm()
    queue.show()
    queue.show()
    assert queue.events() == 1


def test_several_at_once_are_one_event(queue: Queue) -> None:
    queue.program.arm()
    for _ in range(5):
        queue.complete(ERROR)
    queue.publish()
    assert queue.events() == 1
    assert len(queue.program.poll()) == 5


def test_the_device_is_not_woken_to_be_armed(queue: Queue) -> None:
    """Nothing happens but the program's store until there is a completion."""
    queue.program.arm()
    for _ in range(3):
        queue.publish()
    assert (queue.core.armed, queue.events()) == (0, 0)
    queue.show()
    assert queue.events() == 1


def test_without_a_channel_nobody_looks(queue: Queue) -> None:
    core = CompletionQueue(queue.node.port, queue.node, 4, None, None, 0, 0)
    program = Completions(core.mapped_size(), core.rings()[0].mask + 1)
    core.share(program.address, program)
    program.arm()
    core.late.append((0, 1, SUCCESS, 0, QP_NUM, 0, 0, 0, 0, False, 0, None))
    core.release(0)
    queue.publish()
    assert (program.tail, core.armed, core.statistics()["events"]) == (1, 0, 0)


# -- every order

ARMINGS = [(ANY,), (ONLY_SOLICITED,), (ANY, ONLY_SOLICITED), (ONLY_SOLICITED, ANY)]
DEVICE: list[tuple[str, ...]] = [
    (PLAIN, "publish", SOLICITED, "publish"),
    (SOLICITED, "publish", PLAIN, "publish"),
    (PLAIN, SOLICITED, "publish", ERROR, "publish"),
]


class Order:
    """One order of the steps, and what must be true of it."""

    def __init__(self, queue: Queue, armings: tuple[bool, ...]) -> None:
        self.queue = queue
        self.kinds: list[str] = []
        self.shown = 0
        #: Of each arming: what it is for, the tail that it saw, and how many events there were when it was stored.
        self.armings: list[tuple[bool, int, int]] = []
        #: The tails at which events were raised.
        self.raised: list[int] = []
        self.seen = 0
        self.polled = 0
        self.program: list[Callable[[], None]] = []
        for solicited in armings:
            self.program += [self.look, lambda solicited=solicited: self.store(solicited)]  # type: ignore[misc]
        self.program.append(self.poll)

    def look(self) -> None:
        self.seen = self.queue.program.tail

    def store(self, solicited: bool) -> None:
        self.queue.program.arm(solicited, self.seen)
        self.armings.append((solicited, self.seen, len(self.raised)))

    def poll(self) -> None:
        self.polled = self.queue.program.tail

    def device(self, step: str) -> None:
        if step != "publish":
            self.kinds.append(step)
            self.queue.complete(step)
            return
        before, self.shown = self.shown, len(self.kinds)
        self.queue.publish()
        count = self.queue.events()
        assert count <= 1
        if count:
            assert self.has_reason(before), "an event that nobody has asked for"
            self.raised.append(self.shown)

    def matches(self, solicited: bool, first: int) -> bool:
        """Whether a completion from ``first`` on that was shown is one that an arming is for."""
        return any(not solicited or kind != PLAIN for kind in self.kinds[first : self.shown])

    def has_reason(self, before: int) -> bool:
        return any(
            self.matches(solicited, max(seen, before))
            for solicited, seen, events in self.armings
            if events == len(self.raised) or seen >= self.raised[-1]
        )

    def check(self) -> None:
        """Whether the program, which now waits for an event, does not wait for ever."""
        for solicited, _, events in self.armings:
            if self.matches(solicited, self.polled):
                assert len(self.raised) > events, "a wake-up is lost"


def orders(first: int, second: int) -> Iterator[list[bool]]:
    """Every order of two sequences: whether each step is of the first."""
    for chosen in itertools.combinations(range(first + second), first):
        yield [step in chosen for step in range(first + second)]


@pytest.mark.parametrize("steps", DEVICE, ids="-".join)
@pytest.mark.parametrize("armings", ARMINGS)
def test_every_order(armings: tuple[bool, ...], steps: tuple[str, ...], queue: Queue) -> None:
    for turns in orders(2 * len(armings) + 1, len(steps)):
        order = Order(Queue(queue.node), armings)
        program, device = iter(order.program), iter(steps)
        for is_program in turns:
            if is_program:
                next(program)()
            else:
                order.device(next(device))
        order.check()
        order.queue.core.close()


@pytest.mark.skipif(IS_COMPILED, reason="nothing comes between the steps of compiled code")
@pytest.mark.parametrize("steps", DEVICE[:2], ids="-".join)
@pytest.mark.parametrize("armings", ARMINGS)
def test_every_order_within_the_device(
    armings: tuple[bool, ...], steps: tuple[str, ...], queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The program's steps also fall between the store of the tail and the look at what is armed."""
    for before, within in itertools.product(orders(2 * len(armings) + 1, len(steps)), (1, 2, 3)):
        order = Order(Queue(queue.node), armings)
        program, device = iter(order.program), iter(steps)

        def at_barrier(program: Iterator[Callable[[], None]] = program, within: int = within) -> None:
            for step in itertools.islice(program, within):
                step()

        monkeypatch.setattr(completion, "barrier", at_barrier)
        for is_program in before:
            if not is_program:
                order.device(next(device))
            elif (step := next(program, None)) is not None:
                step()
        for step in program:
            step()
        order.check()
        order.queue.core.close()


# -- what else happens to a queue


def test_purged_entries_are_not_waited_for(queue: Queue) -> None:
    """The program has seen five entries; two are left when it has armed, and the next one is new all the same."""
    for number in range(5):
        queue.show(qp_num=1 if number < 3 else 2)
    queue.program.arm()
    queue.core.purge(1)
    assert queue.program.tail == 2
    queue.show()
    assert queue.events() == 1
    queue.show()
    assert queue.events() == 0


def test_an_arming_that_saw_what_was_purged_meanwhile(queue: Queue) -> None:
    for _ in range(5):
        queue.show(qp_num=1)
    seen = queue.program.tail
    queue.core.purge(1)
    queue.program.arm(seen=seen)
    queue.show()
    assert queue.events() == 1


def test_an_entry_that_takes_the_place_of_a_purged_one(queue: Queue) -> None:
    queue.show(qp_num=1)
    queue.program.arm()
    queue.core.purge(1)
    queue.complete(qp_num=2)
    queue.publish()
    assert (queue.program.tail, queue.events()) == (1, 1)


@pytest.mark.parametrize("solicited", [ANY, ONLY_SOLICITED])
def test_what_is_armed_goes_along_to_other_memory(solicited: bool, queue: Queue) -> None:
    queue.show()
    queue.show()
    assert queue.program.poll(1)
    queue.program.arm(solicited)
    queue.core.resize(100)
    queue.share()
    assert queue.events() == 0 and queue.program.tail - queue.program.head == 1
    queue.show(ERROR)
    assert queue.events() == 1
    queue.program.arm(solicited)
    queue.show(ERROR)
    queue.show(ERROR)
    assert queue.events() == 1


def test_moderation_counts_what_came_behind_the_arming(queue: Queue) -> None:
    queue.core.moderate(3, 1000)
    queue.show()
    queue.program.arm()
    queue.show()
    queue.complete()
    assert queue.events() == 0
    queue.show()
    assert queue.events() == 1
    queue.program.arm(ONLY_SOLICITED)
    for kind in (SOLICITED, PLAIN, ERROR):
        queue.show(kind)
    due = queue.node.port.now + 1000
    assert queue.events() == 0 and queue.core.event_due == due
    assert queue.core.publish(due - 1) == due and queue.events() == 0
    assert queue.core.publish(due) == -1 and queue.events() == 1, "its time has come"
    queue.show(ERROR)
    assert queue.events() == 0


class Late:
    """A plan that keeps completions back until a time."""

    def __init__(self, core: CompletionQueue) -> None:
        self.core = core
        self.due = 0

    def run(self, now: int) -> None:
        self.core.release(now)


def test_what_a_plan_has_kept_back_is_shown_in_the_turn_that_it_is_due(queue: Queue) -> None:
    """The server may sleep after a turn without work: nothing waits for the next one."""
    port = queue.node.port
    queue.node.sim.clock.now += 10**7
    port.serve(1, True)
    queue.program.arm()
    queue.core.late.append((port.now, 1, SUCCESS, 0, QP_NUM, 0, 0, 0, 0, False, 0, None))
    port.plan = Late(queue.core)
    assert port.serve(1, False) == 0
    port.plan = None
    assert (queue.program.tail, queue.events()) == (1, 1)


# -- programs that break the rules


@pytest.mark.parametrize("seed", range(4))
def test_any_value_is_harmless(seed: int) -> None:
    """Whatever a program arms, it gets at most one event for each store, and its queue works on."""
    chance = random.Random(seed)
    edges = [0, 1, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**63, 2**64 - 1]
    with Sim() as sim:
        queue = Queue(sim.node())
        stores = events = shown = 0
        for _ in range(300):
            if chance.random() < 0.6:
                word = chance.choice([*edges, chance.getrandbits(64), chance.getrandbits(64) & ~0xFFFFFFFF | shown])
                queue.program.store(arming(chance.random() < 0.5), word)
                stores += 1
            if chance.random() < 0.1:
                queue.core.purge(QP_NUM)
                queue.publish()
            queue.show(chance.choice([PLAIN, SOLICITED, ERROR]))
            events += queue.events()
            assert events <= stores and queue.core.armed in (0, 1, 2, 3)
            shown = queue.program.tail
            assert queue.program.poll()
        assert not queue.node.port.offenders
        while queue.core.armed:  # what was left
            queue.show(ERROR)
        queue.events()
        queue.program.arm()
        queue.show()
        assert queue.events() == 1, "and one that keeps the rules again is served"
