# SPDX-License-Identifier: MIT
"""Shared receive queues (IBA 10.2.9, ibv_create_srq(3), ibv_modify_srq(3)) under several queue pairs at once."""

import errno
from random import Random

import pytest
from tests.netsim import frames
from tests.netsim.pair import (
    FLUSH_ERR,
    LOC_LEN_ERR,
    LOC_PROT_ERR,
    RECV,
    REM_INV_REQ_ERR,
    REM_OP_ERR,
    REMOTE_WRITE,
    RNR_RETRY_EXC_ERR,
    SUCCESS,
    WR_SEND,
    WR_SEND_IMM,
    WR_WRITE,
    WR_WRITE_IMM,
    End,
    Pair,
    dropping,
)
from tests.netsim.sim import (
    CAP,
    ERR,
    INIT,
    LOCAL_WRITE,
    QPT_RC,
    QPT_UC,
    QPT_UD,
    RESET,
    RNR_NS,
    RTS,
    SECOND,
    SQD,
    Node,
    Sim,
    connect,
    move,
)

from softverbs.core.base.errors import PyverbsRDMAError
from softverbs.core.queues.srq import SharedReceiveQueue
from softverbs.core.queues.wr import SGE, WC, RecvWR

SRQ_LIMIT_REACHED, LAST_WQE_REACHED, QP_FATAL = 15, 16, 1
SLOT = 4096  # bytes between receives
UNTOUCHED = 0xEE


class Hall:
    """Senders of a node, each connected to a receiver of its own at another node; these have one SRQ."""

    def __init__(self, count: int = 3, kind: int = QPT_RC, max_wr: int = 64, **attributes: int) -> None:
        self.sim = Sim()
        self.near, self.far = self.sim.node(seed=1), self.sim.node(seed=2)
        self.wire: list[bytes] = []
        self.drop = dropping(times=0)
        self.sim.tap = self._tap
        self.pd, self.cq = self.far.pd(), self.far.cq()
        self.memory = self.far.region(self.pd, 64 * SLOT)
        self.memory.put(0, bytes([UNTOUCHED]) * 64 * SLOT)
        self.srq: SharedReceiveQueue = self.far.srq(self.pd, max_wr)
        self.senders: list[End] = []
        self.receivers: list[End] = []
        for _ in range(count):
            self.add(kind, **attributes)
        self.posted = 0

    def __enter__(self) -> "Hall":
        return self

    def __exit__(self, *exc: object) -> None:
        assert self.memory.untouched()
        self.sim.__exit__(*exc)

    def _tap(self, _: Node, frame: bytes) -> list[bytes]:
        self.wire.append(frame)
        result = self.drop(frame)
        return [frame] if result is None else result

    def add(self, kind: int = QPT_RC, **attributes: int) -> None:
        a = End(self.near, 65536, CAP, kind)
        b = End(self.far, 0, CAP, kind, pd=self.pd, cq=self.cq, memory=self.memory, srq=self.srq)
        a.peer, b.peer = b, a
        for end in (a, b):
            connect(end.qp, end.peer.qp, end.node, end.peer.node, {"path_mtu": 1, **attributes}.items())
        number = len(self.senders)
        a.put(0, bytes(Random(number).choices(range(200), k=65536)))
        self.senders.append(a)
        self.receivers.append(b)

    def supply(self, count: int, size: int = SLOT - 64) -> None:
        for _ in range(count):
            self.srq.post_recv(
                RecvWR(self.posted, 1, [SGE(self.memory.iova + SLOT * self.posted, size, self.memory.key)])
            )
            self.posted += 1

    def received(self) -> list[WC]:
        self.sim.settle()
        return self.receivers[0].polled() if self.receivers else []

    def owner(self, wc: WC) -> int:
        return [end.qp.qp_num for end in self.receivers].index(wc.qp_num)

    def content(self, wc: WC, skip: int = 0) -> bytes:
        return self.memory.at(SLOT * wc.wr_id + skip, wc.byte_len - skip)


# -- who takes what


def test_interleaved_messages_keep_to_their_receives() -> None:
    """Packets of three messages arrive by turns: each message has taken one receive, at its first packet."""
    with Hall(3) as hall:
        held: list[list[bytes]] = []
        for sender in hall.senders:
            caught: list[bytes] = []
            hall.drop = lambda frame, caught=caught: caught.append(frame) or []  # type: ignore[func-returns-value]
            sender.post(WR_SEND, 0, 1000)
            hall.near.device.progress()
            held.append(caught)
        hall.drop = lambda _: []  # ACKs of the receivers
        hall.supply(5)
        for part in range(4):
            for number in (2, 0, 1):
                inject(hall, held[number][part])
        found = hall.receivers[0].polled()
        assert [(wc.wr_id, hall.owner(wc)) for wc in found] == [(0, 2), (1, 0), (2, 1)]
        for wc in found:
            assert hall.content(wc) == hall.senders[hall.owner(wc)].at(0, 1000)
        assert [end.count(RECV) for end in hall.receivers] == [(1, 0)] * 3
        assert hall.srq.ring.count() == 2


def inject(hall: Hall, frame: bytes) -> None:
    import ctypes

    buffer = ctypes.create_string_buffer(frame, len(frame))
    inner = hall.near.link.inner if hasattr(hall.near.link, "inner") else hall.near.link._inner
    route = inner.route(0, hall.far.gid, 0, 0, 64)
    inner.send(hall.sim.now, route, ctypes.addressof(buffer), len(frame), len(frame))
    hall.far.device.progress()


@pytest.mark.parametrize("kind", [QPT_RC, QPT_UC])
def test_many_messages_of_many_peers(kind: int) -> None:
    with Hall(4, kind) as hall:
        hall.supply(60)
        rng = Random(7)
        sent: dict[int, list[tuple[int, int]]] = {number: [] for number in range(4)}
        for _ in range(60):
            number = rng.randrange(4)
            offset, length = rng.randrange(60000), rng.randrange(3000)
            sent[number].append((offset, length))
            hall.senders[number].post(rng.choice((WR_SEND, WR_SEND_IMM)), offset, length)
        found = hall.received()
        assert sorted(wc.wr_id for wc in found) == list(range(60))
        for wc in found:
            offset, length = sent[hall.owner(wc)].pop(0)
            assert wc.status == SUCCESS
            assert hall.content(wc) == hall.senders[hall.owner(wc)].at(offset, length)
        assert sum(end.count(RECV)[0] for end in hall.receivers) == 60


def test_all_types_at_once() -> None:
    with Hall(0) as hall:
        for kind in (QPT_RC, QPT_UC, QPT_UD):
            hall.add(kind)
        hall.supply(9)
        for sender in hall.senders * 3:
            sender.post(WR_SEND, 100, 200)
        found = hall.received()
        assert sorted(wc.wr_id for wc in found) == list(range(9))
        for wc in found:
            skip = 40 if hall.owner(wc) == 2 else 0
            assert wc.byte_len == 200 + skip
            assert hall.content(wc, skip) == hall.senders[hall.owner(wc)].at(100, 200)
        assert [end.count(RECV) for end in hall.receivers] == [(3, 0)] * 3


def test_a_write_with_immediate_data_takes_one_and_a_write_none() -> None:
    with Hall(1) as hall:
        hall.supply(2)
        hall.senders[0].post(WR_WRITE, 0, 1000, 20 * SLOT)
        hall.senders[0].post(WR_WRITE_IMM, 0, 1000, 21 * SLOT, imm=5)
        (wc,) = hall.received()
        assert (wc.opcode, wc.wr_id, wc.imm_data, wc.byte_len) == (129, 0, 5, 1000)
        assert set(hall.memory.at(0, SLOT)) == {UNTOUCHED}
        assert hall.receivers[0].count(RECV) == (1, 0) and hall.receivers[0].count(REMOTE_WRITE) == (2, 0)


@pytest.mark.parametrize("seed", range(3))
def test_over_a_bad_network_each_message_takes_one(seed: int) -> None:
    rng = Random(seed)
    with Hall(3) as hall:
        hall.drop = lambda frame: [[], [frame] * 2, None][min(rng.randrange(20), 2)]
        hall.supply(60)
        for _ in range(20):
            for sender in hall.senders:
                sender.post(WR_SEND, 300, 700)
        found = hall.received()
        assert sorted(wc.wr_id for wc in found) == list(range(60))
        assert all(hall.content(wc) == hall.senders[hall.owner(wc)].at(300, 700) for wc in found)
        assert [end.count(RECV) for end in hall.receivers] == [(20, 0)] * 3


# -- empty


def test_an_empty_queue_makes_reliable_peers_wait() -> None:
    with Hall(2) as hall:
        for sender in hall.senders:
            sender.post(WR_SEND, 0, 600)
        hall.sim.run_for(3 * RNR_NS)
        assert hall.receivers[0].polled() == []
        syndromes = {frame[12] & 0xE0 for frame in hall.wire if frame[0] == frames.ACKNOWLEDGE}
        assert syndromes == {frames.RNR}
        hall.supply(2)
        assert sorted(wc.wr_id for wc in hall.received()) == [0, 1]
        assert [sender.status() for sender in hall.senders] == [SUCCESS] * 2


@pytest.mark.parametrize("retries", [0, 2])
def test_a_peer_that_does_not_want_to_wait(retries: int) -> None:
    with Hall(2, rnr_retry=retries) as hall:
        hall.senders[0].post(WR_SEND, 0, 600)
        hall.sim.settle()
        assert hall.senders[0].status() == RNR_RETRY_EXC_ERR
        assert sum(frame[0] == frames.ACKNOWLEDGE for frame in hall.wire) == retries + 1
        hall.supply(1)
        hall.senders[1].post(WR_SEND, 0, 600)
        assert [wc.wr_id for wc in hall.received()] == [0]


@pytest.mark.parametrize("kind", [QPT_UC, QPT_UD])
def test_an_empty_queue_loses_what_is_unreliable(kind: int) -> None:
    with Hall(1, kind) as hall:
        hall.senders[0].post(WR_SEND, 0, 200)
        assert hall.received() == []
        assert hall.far.stats()["dropped_no_receive"] == 1
        hall.supply(1)
        hall.senders[0].post(WR_SEND, 0, 200)
        assert [wc.status for wc in hall.received()] == [SUCCESS]


def test_a_uc_message_that_is_lost_gives_its_receive_to_the_next_of_its_queue_pair() -> None:
    with Hall(1, QPT_UC) as hall:
        hall.supply(2)
        hall.drop = dropping(0x21)
        hall.senders[0].post(WR_SEND, 0, 1000)
        hall.senders[0].post(WR_SEND, 0, 1000)
        hall.sim.settle()
        assert hall.far.stats()["dropped_no_receive"] == 0
        found = hall.received()
        assert [wc.status for wc in found] == [SUCCESS]
        assert found[0].wr_id == 0
        assert hall.srq.ring.count() == 1


# -- the limit (IBA 10.2.9.2)


@pytest.mark.parametrize("kind", [QPT_RC, QPT_UC, QPT_UD])
def test_the_limit_raises_one_event(kind: int) -> None:
    """When fewer than so many are left; then it is disarmed."""
    with Hall(1, kind) as hall:
        hall.supply(10)
        hall.srq.modify(None, 8)
        events = []
        for left in range(9, 4, -1):
            hall.senders[0].post(WR_SEND, 0, 100)
            hall.received()
            if hall.far.events():
                events.append(left)
        assert events == [7]
        assert hall.srq.query()[2] == 0
        hall.srq.modify(None, 5)
        assert hall.far.events() == []
        hall.senders[0].post(WR_SEND, 0, 100)
        hall.received()
        assert hall.far.events() == [(SRQ_LIMIT_REACHED, hall.srq)]


def test_a_limit_that_is_reached_already() -> None:
    """Armed below what is left: at once (mlx5), since no later receive need come to tell it."""
    with Hall(1) as hall:
        hall.supply(3)
        hall.srq.modify(None, 4)
        hall.senders[0].post(WR_SEND, 0, 10)
        hall.received()
        assert hall.far.events() == [(SRQ_LIMIT_REACHED, hall.srq)]


def test_the_limit_is_taken_back_and_not_armed_by_creation() -> None:
    with Hall(1) as hall:
        assert hall.srq.query()[2] == 0
        hall.supply(3)
        hall.srq.modify(None, 3)
        hall.srq.modify(None, 0)
        for _ in range(3):
            hall.senders[0].post(WR_SEND, 0, 10)
        hall.received()
        assert hall.far.events() == []


# -- errors and states


def test_a_queue_pair_in_error_leaves_the_queue_alone() -> None:
    """Nothing that waits is flushed; LAST_WQE_REACHED says that nothing of this queue pair is left (IBA 10.2.9.3)."""
    with Hall(2) as hall:
        hall.supply(3)
        move(hall.receivers[0].qp, ERR)
        assert hall.received() == []
        assert hall.far.events() == [(LAST_WQE_REACHED, hall.receivers[0].qp)]
        assert hall.srq.ring.count() == 3
        for _ in range(3):
            hall.senders[1].post(WR_SEND, 0, 10)
        assert [wc.status for wc in hall.received()] == [SUCCESS] * 3
        assert hall.receivers[0].count(RECV) == (0, 0)
        move(hall.receivers[0].qp, ERR)
        assert hall.far.events() == []


def test_the_message_in_progress_is_flushed() -> None:
    """The receive that it has taken completes; before the event, so that none follows it."""
    with Hall(2) as hall:
        hall.supply(3)
        hall.drop = dropping(frames.SEND_LAST, times=100)
        hall.senders[0].post(WR_SEND, 0, 1000)
        hall.sim.run_for(1000)
        assert hall.srq.ring.count() == 2
        move(hall.receivers[0].qp, ERR)
        (wc,) = hall.receivers[0].polled()
        assert (wc.wr_id, wc.status, wc.qp_num) == (0, FLUSH_ERR, hall.receivers[0].qp.qp_num)
        assert [event for event, _ in hall.far.events()][-1] == LAST_WQE_REACHED
        assert (hall.receivers[0].count(RECV), hall.srq.ring.count()) == ((0, 1), 2)


@pytest.mark.parametrize("ending", ["reset", "destroy"])
def test_reset_and_destroy_of_a_queue_pair_leave_the_queue_alone(ending: str) -> None:
    with Hall(2) as hall:
        hall.supply(4)
        hall.drop = dropping(frames.SEND_LAST, times=1)
        hall.senders[0].post(WR_SEND, 0, 1000)
        hall.sim.run_for(1000)
        if ending == "reset":
            move(hall.receivers[0].qp, RESET)
        else:
            hall.receivers[0].qp.close()
        move(hall.senders[0].qp, RESET)
        assert hall.receivers[1].polled() == []
        assert hall.srq.ring.count() == 3
        hall.senders[1].post(WR_SEND, 0, 1000)
        hall.sim.settle()
        assert [wc.status for wc in hall.receivers[1].polled()] == [SUCCESS]
        if ending == "reset":
            assert hall.receivers[0].count(RECV) == (0, 0)


def test_a_message_that_is_too_long() -> None:
    """Its receive fails, and its queue pair; the queue and the others go on."""
    with Hall(2) as hall:
        hall.supply(1, size=500)
        hall.supply(2)
        hall.senders[0].post(WR_SEND, 0, 1000)
        (wc,) = hall.received()
        assert (wc.wr_id, wc.status, hall.owner(wc)) == (0, LOC_LEN_ERR, 0)
        assert hall.senders[0].status() == REM_INV_REQ_ERR
        assert set(hall.memory.at(500, 1000)) == {UNTOUCHED}
        events = hall.far.events()
        assert (LAST_WQE_REACHED, hall.receivers[0].qp) in events and len(events) == 2
        hall.senders[1].post(WR_SEND, 0, 1000)
        assert [wc.wr_id for wc in hall.received()] == [1]


@pytest.mark.parametrize("kind", [QPT_RC, QPT_UC, QPT_UD])
def test_memory_is_that_of_the_queues_domain(kind: int) -> None:
    """Of the SRQ's protection domain, not of the queue pair's (IBA 10.2.9.1)."""
    with Hall(0) as hall:
        other = hall.far.pd()
        a = End(hall.near, 4096, CAP, kind)
        b = End(hall.far, 0, CAP, kind, pd=other, memory=hall.memory, srq=hall.srq)
        a.peer, b.peer = b, a
        foreign = hall.far.region(other, 4096, iova=0x800000)
        for end in (a, b):
            connect(end.qp, end.peer.qp, end.node, end.peer.node)
        hall.supply(1)
        a.post(WR_SEND, 0, 100)
        hall.sim.settle()
        assert [wc.status for wc in b.polled()] == [SUCCESS]
        hall.srq.post_recv(RecvWR(9, 1, [SGE(foreign.iova, 4096, foreign.key)]))
        a.done()
        a.post(WR_SEND, 0, 100)
        hall.sim.settle()
        assert [(wc.wr_id, wc.status) for wc in b.polled()] == [(9, LOC_PROT_ERR)]
        assert foreign.at(0, 4096) == bytes(4096)
        assert a.status() == (REM_OP_ERR if kind == QPT_RC else SUCCESS)


def test_each_state_and_the_queue() -> None:
    """post_recv is refused in every state, by its reason; posting to the SRQ needs no queue pair at all."""
    with Hall(0) as hall:
        hall.supply(2)
        hall.add()
        qp = hall.receivers[0].qp
        for state in (RTS, SQD, ERR, RESET, INIT):
            if state == INIT:
                connect(qp, None, hall.far, None, to=INIT)
            elif state != RTS:
                move(qp, state)
            with pytest.raises(PyverbsRDMAError, match="SRQ") as caught:
                qp.post_recv(RecvWR(1))
            assert caught.value.errno == errno.EINVAL
        assert hall.srq.ring.count() == 2


# -- sizes


@pytest.mark.parametrize(("max_wr", "max_sge"), [(0, 1), (-1, 1), (32769, 1), (1, 33), (1, -1)])
def test_sizes_that_cannot_be_had(max_wr: int, max_sge: int) -> None:
    with Sim() as sim:
        node = sim.node()
        pd = node.pd()
        with pytest.raises(PyverbsRDMAError) as caught:
            node.srq(pd, max_wr, max_sge)
        assert caught.value.errno == errno.EINVAL
        pd.close()


def test_exactly_max_wr_can_be_posted() -> None:
    with Hall(1, max_wr=5) as hall:
        assert hall.srq.query() == (5, 4, 0)
        hall.supply(5)
        with pytest.raises(PyverbsRDMAError) as caught:
            hall.supply(1)
        assert caught.value.errno == errno.ENOMEM
        hall.senders[0].post(WR_SEND, 0, 10)
        hall.received()
        hall.supply(1)


def test_too_many_elements_and_the_rest_of_the_list() -> None:
    with Hall(1) as hall:
        good, bad, after = RecvWR(1), RecvWR(2, 5, [SGE(0, 0, 0)] * 5), RecvWR(3)
        good.next_wr = bad
        bad.next_wr = after
        with pytest.raises(PyverbsRDMAError) as caught:
            hall.srq.post_recv(good)
        assert caught.value.errno == errno.EINVAL
        assert caught.value.bad_wr is bad
        assert hall.srq.ring.count() == 1


def test_another_size_keeps_what_is_posted_in_order() -> None:
    with Hall(1, max_wr=8) as hall:
        for turn, size in enumerate((20, 4, 32, 3)):
            hall.supply(3)
            with pytest.raises(PyverbsRDMAError) as caught:
                hall.srq.modify(2, None)
            assert caught.value.errno == errno.EINVAL
            hall.srq.modify(size, None)
            assert hall.srq.query()[0] >= size
            for _ in range(3):
                hall.senders[0].post(WR_SEND, 0, 1000)
            assert [wc.wr_id for wc in hall.received()] == [3 * turn, 3 * turn + 1, 3 * turn + 2]
            hall.srq.modify(8, None)


def test_another_size_in_the_middle_of_a_message() -> None:
    with Hall(2, max_wr=8) as hall:
        hall.supply(4)
        hall.drop = dropping(frames.SEND_LAST, times=1)
        hall.senders[0].post(WR_SEND, 0, 1000)
        hall.sim.run_for(1000)
        hall.srq.modify(3, None)
        hall.srq.modify(30, None)
        hall.supply(20)
        found = hall.received()
        assert [(wc.wr_id, wc.status) for wc in found] == [(0, SUCCESS)]
        assert hall.content(found[0]) == hall.senders[0].at(0, 1000)


@pytest.mark.parametrize("values", [(0, None), (-1, None), (1 << 20, None), (None, -1), (None, 9), (4, 5), (0, 1)])
def test_a_change_that_cannot_be_had_changes_nothing(values: tuple[int | None, int | None]) -> None:
    with Hall(1, max_wr=8) as hall:
        hall.supply(3)
        hall.srq.modify(None, 2)
        with pytest.raises(PyverbsRDMAError) as caught:
            hall.srq.modify(*values)
        assert caught.value.errno == errno.EINVAL
        assert hall.srq.query() == (8, 4, 2)


# -- life


def test_in_use_it_cannot_be_destroyed() -> None:
    with Hall(2) as hall:
        hall.supply(2)
        for receiver in hall.receivers:
            with pytest.raises(PyverbsRDMAError) as caught:
                hall.srq.close()
            assert caught.value.errno == errno.EBUSY
            receiver.qp.close()
        with pytest.raises(PyverbsRDMAError) as caught:
            hall.pd.close()
        assert caught.value.errno == errno.EBUSY
        hall.srq.close()
        hall.srq.close()


def test_there_are_so_many() -> None:
    from softverbs.core.base.limits import Options

    with Sim() as sim:
        node = sim.node(options=Options(max_srq=3))
        pd = node.pd()
        queues = [node.srq(pd) for _ in range(3)]
        assert len({srq.srq_num for srq in queues}) == 3
        with pytest.raises(PyverbsRDMAError) as caught:
            node.srq(pd)
        assert caught.value.errno == errno.ENOMEM
        queues[1].close()
        node.srq(pd)


def test_a_receive_without_room_serves_a_message_without_bytes() -> None:
    with Hall(1) as hall:
        hall.srq.post_recv(RecvWR(7))
        hall.senders[0].post(WR_SEND, 0, 0)
        (wc,) = hall.received()
        assert (wc.wr_id, wc.status, wc.byte_len) == (7, SUCCESS, 0)


def test_lkeys_are_looked_at_when_the_bytes_come() -> None:
    with Hall(1) as hall:
        region = hall.far.region(hall.pd, 4096, LOCAL_WRITE, iova=0x900000)
        hall.srq.post_recv(RecvWR(7, 1, [SGE(region.iova, 4096, region.key)]))
        region.deregister()
        hall.senders[0].post(WR_SEND, 0, 100)
        assert [(wc.wr_id, wc.status) for wc in hall.received()] == [(7, LOC_PROT_ERR)]
        assert hall.sim.now < 10 * SECOND


def test_counting_goes_to_the_consuming_queue_pair_only() -> None:
    with Pair(kind=QPT_RC, shared=True) as pair:
        pair.b.receive(0x8000, 100)
        pair.b.receive(0x8000, 100)
        pair.a.post(WR_SEND, 0, 60)
        assert pair.a.status() == SUCCESS
        assert pair.b.count(RECV) == (1, 0)
        move(pair.b.qp, ERR)
        assert pair.b.count(RECV) == (1, 0)
