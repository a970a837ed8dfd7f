# SPDX-License-Identifier: MIT
"""Work that must not grow with what is idle: queues, connections. It is counted, not timed."""

import time

import pytest
from tests.server.client import INIT, RTR, RTS, UD, WRITE, Client, Qp, Side, pair
from tests.server.conftest import Served

from softverbs.server import server

SMALL = {"max_send_wr": 1, "max_recv_wr": 1, "max_send_sge": 1, "max_recv_sge": 1, "max_inline_data": 0}


def write(side: Side, other: Side, number: int) -> None:
    side.qp.post_send(
        number, side.buffer.element(0, 8), opcode=WRITE, remote=other.buffer.address, rkey=other.buffer.rkey
    )
    assert side.cq.wait()["wr_id"] == number


def test_two_thousand_queue_pairs(served: Served) -> None:
    """Making them, commands about them and a message beside them look at what was posted to, and at nothing else."""
    left, right = pair(served.path)
    port = served.device.port
    looks = port.looks
    others = [Qp(left.client, left.pd, left.cq, left.cq, cap=SMALL) for _ in range(2000)]
    last = Side(served.path)  # of another program
    assert port.looks == looks, "nothing was posted"
    for qp in others[::20]:
        qp.to_init()
        qp.connect(left.client.gid(), qp.number)
    assert port.looks == looks
    for number in range(100):
        write(left, right, number)
    assert 0 < port.looks - looks <= 100, "two levels of marks, but the pair is on the first"
    looks = port.looks
    for number, qp in enumerate(others[1:20]):
        qp.to_init()
        qp.connect(left.client.gid(), qp.number)
        where = {"opcode": WRITE, "remote": left.buffer.address, "rkey": left.buffer.rkey}
        qp.post_send(number, left.buffer.element(0, 8), **where)
        assert left.cq.wait()["wr_id"] == number
    assert 0 < port.looks - looks <= 3 * 19
    last.client.gid()


def quiet(served: Served) -> None:
    """Waits until no program's marks are looked at."""
    end = time.monotonic() + 20
    while served.device.port.programs and time.monotonic() < end:
        time.sleep(0.001)
    assert not served.device.port.programs


def test_a_program_that_was_quiet_rings(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """Connections that post nothing are not looked at; what they post then is taken all the same."""
    monkeypatch.setattr(server, "QUIET_NS", 1_000_000)
    left, right = pair(served.path)
    others = [Client(served.path) for _ in range(20)]
    for number in range(10):
        quiet(served)
        write(left, right, 2 * number)
        write(right, left, 2 * number + 1)
    for other in others:
        other.gid()


def test_what_a_quiet_program_has_posted_counts_before_its_command(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A datagram, and then the end of its address handle: whichever of bell and command is heard first."""
    monkeypatch.setattr(server, "QUIET_NS", 1_000_000)
    side = Side(served.path)
    qp = Qp(side.client, side.pd, side.cq, side.cq, qp_type=UD)
    qp.modify(1 | 1 << 4 | 1 << 5 | 1 << 6, qp_state=INIT, port_num=1, qkey=5)
    qp.modify(1, qp_state=RTR)
    qp.modify(1 | 1 << 16, qp_state=RTS)
    where = {"dgid": side.client.gid(), "is_global": 1, "port_num": 1}
    for number in range(10):
        ah = side.client.call("CREATE_AH", pd=side.pd, attr=where)
        quiet(served)
        with monkeypatch.context() as patch:
            patch.setattr(side.client, "ring", lambda: None)  # it is heard later than the command
            qp.post_send(number, side.buffer.element(0, 8), ah=ah["number"], destination=qp.number)
        side.client.call("DESTROY_AH", handle=ah["handle"])
        side.client.ring()
        done = side.cq.wait()
        assert (done["wr_id"], done["status"]) == (number, 0)


def test_a_program_that_posts_on_is_not_left_alone(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever falls between its posts and the looks for programs that are quiet."""
    monkeypatch.setattr(server, "QUIET_NS", 0)  # in each turn
    left, right = pair(served.path)
    for number in range(200):
        write(left, right, number)
