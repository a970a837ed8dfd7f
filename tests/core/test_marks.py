# SPDX-License-Identifier: MIT
"""Marks: how a program tells the device which of its queues it has posted to.

The program stores a tail, then the marks; the device clears a mark, then looks at what is below it. Every order in
which these steps can fall is tried: nothing that is posted is overlooked. And nothing is looked at that is not marked:
that is counted, with two queues and with two thousand.
"""

import errno
import itertools
import random
import sys
from collections.abc import Callable, Iterator

import pytest
from tests.netsim.sim import CAP, ERR, RTS, Node, Sim, connect, move
from tests.netsim.sim import US as MICROSECOND
from tests.program import RECEIVE, Completions, Program, Work

from softverbs.core.base.errors import PyverbsRDMAError
from softverbs.core.queues import marks as marks_module
from softverbs.core.queues.marks import VALUES as MARKS
from softverbs.core.queues.marks import Marks
from softverbs.core.queues.wr import SGE, SendWR
from softverbs.core.transport.qp import QueuePair

LINE = MARKS["LINE"]
IS_COMPILED = not marks_module.__file__.endswith(".py")
#: A number on each level of the tree.
NUMBERS = (0, 63, 64, 700, LINE * (LINE + 1), LINE * (LINE + 1) + 70)
WRITE = 0


def ancestry(number: int) -> list[int]:
    """A queue's mark, and those above it."""
    found = [number]
    while found[-1] >= LINE:
        found.append(found[-1] // LINE - 1)
    return found


class Posted:
    """An SRQ that is one of many queues of a program, which posts to it step by step."""

    def __init__(self, node: Node, program: Program, others: int) -> None:
        while len(program.marks.queues) < others:
            program.marks.enter(object())
        self.srq = node.srq(node.pd(), max_wr=4096)
        self.work = Work(self.srq.mapped_size(), None, (self.srq.ring.stride, self.srq.ring.mask + 1))
        self.srq.share(self.work.address, self.work, program.marks)
        assert self.srq.mark == others
        self.memory = program.memory
        self.steps: list[Callable[[], None]] = [self.store]
        self.steps += [lambda at=at: self.set(at) for at in ancestry(others)]  # type: ignore[misc]

    def store(self) -> None:
        self.work.receive([])

    def set(self, at: int) -> None:
        self.memory[at] = 1

    def taken(self) -> int:
        return int(self.srq.ring.tail)


@pytest.fixture(scope="module")
def program() -> Program:
    return Program(8192)


@pytest.fixture
def node() -> Iterator[Node]:
    with Sim() as sim:
        yield sim.node()


def posted(node: Node, number: int) -> Posted:
    program = Program(8192)
    node.port.enter_program(program.marks)
    made = Posted(node, program, number)
    node.port.take_shared()
    return made


def orders(first: int, second: int) -> Iterator[list[bool]]:
    """Every order of two sequences: whether each step is of the first."""
    for chosen in itertools.combinations(range(first + second), first):
        yield [step in chosen for step in range(first + second)]


@pytest.mark.parametrize("number", NUMBERS)
def test_every_order(number: int, node: Node) -> None:
    """A program that posts twice, and a device that takes three turns."""
    one = posted(node, number)
    count = 0
    for turns in orders(2 * len(one.steps), 3):
        steps = iter(one.steps * 2)
        for is_program in turns:
            if is_program:
                next(steps)()
            else:
                node.port.take_shared()
        node.port.take_shared()  # the last look, after which a device sleeps
        count += 2
        assert one.taken() == one.work.tail(RECEIVE) == count


@pytest.mark.skipif(IS_COMPILED, reason="nothing comes between the steps of compiled code")
@pytest.mark.parametrize("number", NUMBERS)
def test_every_order_within_the_device(number: int, node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """The program's steps also fall between the store that clears marks and what is loaded behind it."""
    assert not lost(node, posted(node, number), monkeypatch)


@pytest.mark.skipif(IS_COMPILED, reason="nothing comes between the steps of compiled code")
def test_the_order_of_the_stores_matters(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """That the trial above can fail: the tail behind the marks, or a mark behind the one above it."""
    for number, wrong in ((5, (1, 0)), (700, (1, 2, 0)), (700, (0, 2, 1))):
        one = posted(node, number)
        one.steps = [one.steps[step] for step in wrong]
        assert lost(node, one, monkeypatch)


def lost(node: Node, one: Posted, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether there is an order in which something that was posted is not taken."""
    found = False
    most = len(one.steps)
    for before, *within in itertools.product(range(most + 1), repeat=4):
        steps, counts = iter(one.steps), iter(within)

        def at_barrier(steps: Iterator[Callable[[], None]] = steps, counts: Iterator[int] = counts) -> None:
            for step in itertools.islice(steps, next(counts, 0)):
                step()

        for step in itertools.islice(steps, before):
            step()
        monkeypatch.setattr(marks_module, "barrier", at_barrier)
        node.port.take_shared()
        monkeypatch.undo()
        for step in steps:
            step()
        node.port.take_shared()
        if one.taken() != one.work.tail(RECEIVE):
            found = True
            for at in ancestry(one.srq.mark):
                one.set(at)
            node.port.take_shared()
        assert one.taken() == one.work.tail(RECEIVE)
    return found


# -- numbers


def test_numbers_are_dense_and_used_again(program: Program) -> None:
    marks = Marks(program.address, 128, program)
    queues = [object() for _ in range(128)]
    assert [marks.enter(queue) for queue in queues] == list(range(128))
    with pytest.raises(PyverbsRDMAError, match="128 queues of one program are the most") as caught:
        marks.enter(object())
    assert caught.value.errno == errno.ENOMEM
    for number in (5, 5, 100):
        marks.leave(number)
    assert {marks.enter(object()), marks.enter(object())} == {5, 100}
    assert len(marks.queues) == 128


def test_a_program_that_has_gone_is_not_looked_at(node: Node) -> None:
    one = posted(node, 3)
    marks = next(iter(node.port.programs))
    for step in one.steps:
        step()
    node.port.leave_program(marks)
    node.port.leave_program(marks)
    assert node.port.take_shared() == 0
    node.port.enter_program(marks)
    assert node.port.take_shared() == 1


class Failure(Exception):
    """What a plan of faults never raises."""


class Failing:
    """A plan in which something fails that must not."""

    def on_retire(self, *about: object) -> None:
        raise Failure


# -- programs that break the rules


@pytest.mark.parametrize("seed", range(4))
def test_any_bytes_are_harmless(seed: int, node: Node) -> None:
    """Whatever is marked: queues are looked at that there are, once, and what was posted is taken."""
    chance = random.Random(seed)
    ones = [posted(node, chance.choice(NUMBERS[:4])) for _ in range(3)]
    for count in range(1, 60):
        for one in ones:
            for step in one.steps:
                step()
            if chance.random() < 0.3:
                one.memory[:] = chance.randbytes(len(one.memory))
            elif chance.random() < 0.5:
                one.memory[:] = b"\xff" * len(one.memory)
            for at in ancestry(one.srq.mark):
                one.set(at)
        looks = node.port.looks
        node.port.take_shared()
        assert node.port.looks - looks <= sum(len(marks.queues) for marks in node.port.programs)
        for one in ones:
            assert one.taken() == count
    node.port.take_shared()  # what the bytes of the last time have left below
    looks = node.port.looks
    assert node.port.take_shared() == 0 and node.port.looks == looks


def test_a_failure_overlooks_nothing(node: Node) -> None:
    """An exception in the middle of it, as of memory that is short: the next turn takes what is left."""
    program = Program()
    node.port.enter_program(program.marks)
    qp = node.qp(node.pd(), node.cq())
    connect(qp, qp, node, node)
    ones = [Posted(node, program, number) for number in (0, 100)]
    work = Work(qp.mapped_size(), *[(ring.stride, ring.mask + 1) for ring in qp.rings()])
    qp.share(work.address, work, program.marks)
    ones.append(Posted(node, program, 102))
    node.port.take_shared()
    move(qp, ERR)
    work.send(WRITE)
    program.mark(qp.mark)
    for one in ones:
        for step in one.steps:
            step()
    node.port.plan = Failing()
    with pytest.raises(Failure):
        node.port.take_shared()
    node.port.plan = None
    node.port.take_shared()
    assert [one.taken() for one in ones] == [1, 1, 1]


# -- work that grows with what is idle


class World:
    """A pair of connected queue pairs of one program on one device, among others that are idle."""

    def __init__(self, sim: Sim, idle: int) -> None:
        self.node = node = sim.node(bare=True)
        self.program = Program(8192)
        node.port.enter_program(self.program.marks)
        self.pd, self.cq = node.pd(), node.cq()
        self.memory = node.region(self.pd, 64)
        self.others = [self.make() for _ in range(idle)]
        self.qp, self.peer = self.make()[0], self.make()[0]
        self.work = Work(self.qp.mapped_size(), *[(ring.stride, ring.mask + 1) for ring in self.qp.rings()])
        self.qp.share(self.work.address, self.work, self.program.marks)
        self.completions = Completions(self.cq.mapped_size(), self.cq.rings()[0].mask + 1)
        self.cq.share(self.completions.address, self.completions)
        connect(self.qp, self.peer, node, node)
        connect(self.peer, self.qp, node, node)
        node.port.take_shared()
        sim.settle()
        node.port.publish_shared()

    def make(self) -> tuple[QueuePair, Work]:
        qp = self.node.qp(self.pd, self.cq, cap=(2, 2, 1, 1, 0))
        connect(qp, qp, self.node, self.node, to=RTS)
        work = Work(qp.mapped_size(), *[(ring.stride, ring.mask + 1) for ring in qp.rings()])
        qp.share(work.address, work, self.program.marks)
        return qp, work

    def write(self) -> None:
        """The program posts an RDMA WRITE, and a server's turns follow until it is complete."""
        sg = [(self.memory.iova, 8, self.memory.key)]
        self.work.send(WRITE, sg, remote_address=self.memory.iova + 8, rkey=self.memory.key)
        for at in ancestry(self.qp.mark):
            self.program.memory[at] = 1
        while not self.completions.poll():
            self.node.sim.clock.now += MICROSECOND
            self.node.port.serve(4, False)


def calls(call: Callable[[], object]) -> int:
    """How many functions of Python a call of one calls."""
    count = 0

    def note(frame: object, event: str, argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
    return count


@pytest.mark.parametrize("idle", [0, 2000])
def test_a_turn_looks_at_what_was_posted_to(idle: int) -> None:
    with Sim() as sim:
        world = World(sim, idle)
        port = world.node.port
        looks = port.looks
        for _ in range(20):
            port.serve(4, True)
        assert port.looks == looks, "nothing was posted"
        for _ in range(10):
            world.write()
            assert len(port.timed) <= 2, "those that wait for an answer, or did"
        # Its own mark, and the one above it, whose queue is looked at for nothing.
        assert port.looks - looks == 10 * len(ancestry(world.qp.mark)) <= 20
        sim.clock.now += 10**12
        port.serve(1, True)
        assert port.timed == []


@pytest.mark.skipif(IS_COMPILED, reason="calls within compiled code cannot be counted")
def test_idle_queue_pairs_cost_no_calls() -> None:
    """All that a WRITE takes is counted, from the turn that takes it to the one that shows its completion."""
    counted = []
    for idle in (100, 64 * 8 + 36):  # the same place within a line of the second level
        with Sim() as sim:
            world = World(sim, idle)
            world.write()
            counted.append(calls(world.write))
    assert counted[0] == counted[1] > 0


@pytest.mark.skipif(IS_COMPILED, reason="calls within compiled code cannot be counted")
def test_idle_queue_pairs_cost_no_calls_in_the_same_process() -> None:
    """The same of an application that polls: posting, progress, timers, deadlines."""
    counted = []
    for idle in (2, 500):
        with Sim() as sim:
            node = sim.node(bare=True)
            pd, cq = node.pd(), node.cq()
            memory = node.region(pd, 64)
            qps = [node.qp(pd, cq, cap=CAP if number < 2 else (1, 1, 1, 1, 0)) for number in range(idle + 2)]
            for qp, peer in zip(qps, [qps[1], qps[0], *qps[2:]], strict=True):
                connect(qp, peer, node, node)
            sim.settle()

            def write(node: Node = node, qp: QueuePair = qps[0], memory: object = memory) -> None:
                wr = SendWR(num_sge=1, sg=[SGE(memory.iova, 8, memory.key)], opcode=WRITE)  # type: ignore[attr-defined]
                wr.set_wr_rdma(memory.key, memory.iova + 8)  # type: ignore[attr-defined]
                qp.post_send(wr)
                while not qp.send_cq.poll(1):
                    node.sim.clock.now += MICROSECOND
                node.sim.clock.now += 10**9
                node.device.progress()
                node.device.deadline()

            write()
            counted.append(calls(write))
    assert counted[0] == counted[1] > 0
