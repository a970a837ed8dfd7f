# SPDX-License-Identifier: MIT
"""Hostile programs: the device survives, its other programs do not notice, and nothing is left."""

import errno
import fcntl
import os
import socket
import struct
import threading
import time
from collections.abc import Callable
from contextlib import suppress

import pytest
from tests.server.client import Client, Connection, Cq, Gone, Refused, Side, pair
from tests.server.conftest import Served
from tests.server.hostile import Hostile

from softverbs.core.queues.rings import VALUES
from softverbs.server import server


class Honest:
    """Two programs that exchange messages all the time."""

    def __init__(self, path: str) -> None:
        self.left, self.right = pair(path)
        self.rounds = 0
        self.failure: BaseException | None = None
        self._stop = False
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            while not self._stop:
                payload = os.urandom(500)
                self.left.buffer.data.raw = payload.ljust(4096, b"\0")
                self.right.qp.post_recv(self.rounds, self.right.buffer.element())
                self.left.qp.post_send(self.rounds, self.left.buffer.element(0, 500))
                assert self.left.cq.wait()["status"] == 0
                found = self.right.cq.wait()
                assert (found["status"], found["wr_id"], found["byte_len"]) == (0, self.rounds, 500)
                assert self.right.buffer.data.raw[:500] == payload
                self.rounds += 1
                time.sleep(0.005)
        except BaseException as error:
            self.failure = error

    def finish(self) -> None:
        """Nothing was noticed."""
        before = self.rounds
        end = time.monotonic() + 10
        while self.rounds < before + 3 and self.failure is None and time.monotonic() < end:
            time.sleep(0.01)
        self._stop = True
        self._thread.join()
        assert self.failure is None
        assert self.rounds >= before + 3
        self.left.client.close()
        self.right.client.close()


def is_ended(client: Client, act: Callable[[], object] | None = None) -> bool:
    """Whether the device ends a connection while it is used."""
    end = time.monotonic() + 10
    try:
        while time.monotonic() < end:
            (act or client.gid)()
    except Gone:
        return True
    return False


def descriptors() -> int:
    """How many this process has."""
    return len(os.listdir("/proc/self/fd"))


def wait_for_descriptors(wanted: int) -> bool:
    """Whether it soon has no more than so many."""
    end = time.monotonic() + 10
    while descriptors() > wanted and time.monotonic() < end:
        time.sleep(0.005)
    return descriptors() <= wanted


@pytest.mark.parametrize("seed", range(6))
def test_random_commands_and_memory(served: Served, seed: int) -> None:
    service, before = served.connection_manager()
    honest = Honest(served.path)
    hostile = Hostile(served.path, seed)
    hostile.work(400)
    assert hostile.accepted and hostile.refused
    for connection in list(hostile.connections):
        hostile.forget(connection)
    honest.finish()
    served.wait_for_end_of(service, before)


@pytest.mark.parametrize("seed", range(4))
def test_random_connections(served: Served, seed: int, caplog: pytest.LogCaptureFixture) -> None:
    service, before = served.connection_manager()
    honest = Honest(served.path)
    hostile = Hostile(served.path, seed)
    hostile.connect(300)
    assert not [record for record in caplog.records if record.levelname == "ERROR"], caplog.text
    assert {"received_req", "received_sidrreq"} & service.stats().keys()
    for connection in list(hostile.connections):
        hostile.forget(connection)
    honest.finish()
    served.wait_for_end_of(service, before)


@pytest.mark.parametrize("seed", range(4))
def test_random_slots(served: Served, seed: int) -> None:
    honest = Honest(served.path)
    Hostile(served.path, seed).slots(400)
    honest.finish()
    served.wait_for_objects({})


@pytest.mark.parametrize("name", ["QP_SQ_TAIL", "QP_RQ_TAIL"])
@pytest.mark.parametrize("value", [17, 2**32, 2**63, 2**64 - 1])
def test_an_index_out_of_range_ends_that_program(served: Served, name: str, value: int) -> None:
    left, right = pair(served.path)
    left.qp.memory.store(VALUES[name], value)
    left.client.mark(left.qp.rings["mark"])
    left.client.ring()
    assert is_ended(left.client)
    right.client.gid()


def test_a_head_out_of_range_ends_that_program(served: Served) -> None:
    left, right = pair(served.path)
    left.cq.memory.store(VALUES["CQ_HEAD"], 5)  # nothing was completed
    with suppress(Gone, Refused):
        left.cq.resize(10)  # which looks at it
    assert is_ended(left.client)
    right.client.gid()


def test_a_program_that_does_not_read_its_responses(served: Served) -> None:
    honest = Honest(served.path)
    rude = Client(served.path)
    command = struct.pack("=IIQ", 16, 2, 0)
    rude.socket.settimeout(0.5)
    assert is_ended(rude, lambda: rude.send(command))
    honest.finish()


def test_a_doorbell_that_blocks_is_no_trap(served: Served) -> None:
    rude = Client(served.path)
    fcntl.fcntl(rude.doorbell, fcntl.F_SETFL, 0)
    for _ in range(20):
        os.eventfd_write(rude.doorbell, 1)
        time.sleep(0.001)
        os.eventfd_read(rude.doorbell)
    Client(served.path).gid()


def test_descriptors_that_nobody_asked_for_are_closed(served: Served) -> None:
    client = Client(served.path)
    before = descriptors()
    for _ in range(50):
        client.call("ALLOC_PD", [0, 0, 0, 0])
    assert wait_for_descriptors(before)


def test_a_program_that_does_not_read_its_events(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("softverbs.server.session.MOST_RECORDS", 100)
    deaf, other = Client(served.path), Client(served.path)
    for up in [False, True] * 1000:
        served.device.set_port_state(up)
        served.server.turn()
        other.events.recv(16)
    assert is_ended(deaf)
    other.gid()


def test_keys_of_other_programs_open_nothing(served: Served) -> None:
    left, right = Side(served.path), Side(served.path)
    left.connect(right)
    right.connect(left)
    left.qp.post_send(1, (right.buffer.address, 8, right.buffer.lkey))
    assert left.cq.wait()["status"] == 4


def test_connections_without_hello_cost_little_and_end(served: Served) -> None:
    before = descriptors()
    for _ in range(100):
        Connection(served.path).close()
    Client(served.path).close()
    assert wait_for_descriptors(before)


def test_a_process_has_so_many_connections(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "MOST_CONNECTIONS", 5)
    clients = [Client(served.path) for _ in range(5)]
    with pytest.raises(Gone):
        Client(served.path)
    clients[0].close()
    served.wait_for_objects({})
    clients[1].gid()
    assert Client(served.path).gid()


class Exhausted:
    """A listener in a process that has no descriptor left: the first try to accept a connection fails, each time."""

    def __init__(self, listener: socket.socket) -> None:
        self.listener = listener
        self.tries = 0

    def accept(self) -> object:
        self.tries += 1
        if self.tries % 2:
            raise OSError(errno.EMFILE, "no descriptor left")
        return self.listener.accept()

    def __getattr__(self, name: str) -> object:
        return getattr(self.listener, name)


@pytest.mark.parametrize("spare", [True, False])
def test_where_there_are_no_descriptors_left(served: Served, monkeypatch: pytest.MonkeyPatch, spare: bool) -> None:
    """Who connects is turned away, though the descriptor that is kept for this may be lost; then all is as before."""
    honest = Client(served.path)
    with monkeypatch.context() as patch:
        patch.setattr(served.server, "_listener", Exhausted(served.server._listener))
        if not spare:
            patch.setattr(server.os, "open", refuse)
        for _ in range(3):
            with pytest.raises(Gone):
                Client(served.path)
            honest.gid()
    assert Client(served.path).gid() == honest.gid()


def refuse(*arguments: object) -> int:
    raise OSError(errno.ENFILE, "no descriptor left")


def test_too_large_a_queue_is_refused(served: Served) -> None:
    client = Client(served.path)
    with pytest.raises(Refused) as caught:
        Cq(client, 2**31)
    assert caught.value.code == errno.EINVAL
