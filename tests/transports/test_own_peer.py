# SPDX-License-Identifier: MIT
"""A reliable queue pair that is connected to itself: both halves of one connection fail together, in order."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from tests.netsim.pair import (
    FLUSH_ERR,
    LOC_LEN_ERR,
    REM_ACCESS_ERR,
    REM_INV_REQ_ERR,
    SUCCESS,
    WR_FAA,
    WR_READ,
    WR_SEND,
    WR_WRITE,
    End,
)
from tests.netsim.sim import CAP, ERR, RTS, Sim, connect

QP_FATAL, QP_REQ_ERR, QP_ACCESS_ERR = 1, 2, 3
RIGHTS = 1 | 2 | 4 | 8
REMOTE_WRITE = 2


@contextmanager
def alone(access: int = RIGHTS) -> Iterator[End]:
    """A queue pair whose peer is itself."""
    with Sim() as sim:
        node = sim.node()
        end = End(node, 1 << 16, CAP)
        end.peer = end
        connect(end.qp, end.qp, node, node, [("qp_access_flags", access)])
        yield end


def finished(end: End) -> list[tuple[int, int]]:
    end.node.sim.settle()
    return end.done()


@pytest.mark.parametrize("opcode", [WR_WRITE, WR_READ, WR_FAA])
def test_a_wrong_key_is_the_requests_own_status(opcode: int) -> None:
    with alone() as end:
        end.post(opcode, 0, 8, 0x100, wr_id=1, rkey=end.memory.key ^ 0x100, add=1)
        for number in (2, 3):
            end.post(WR_WRITE, 0, 8, 0x200, wr_id=number)
        assert finished(end) == [(1, REM_ACCESS_ERR), (2, FLUSH_ERR), (3, FLUSH_ERR)]
        assert (end.qp.state, [kind for kind, _ in end.node.events()]) == (ERR, [QP_ACCESS_ERR])
        assert end.at(0x200, 8) == bytes(8), "what is behind a refused request is not performed"


def test_a_missing_right_of_the_queue_pair_is_an_invalid_request() -> None:
    with alone(RIGHTS & ~REMOTE_WRITE) as end:
        end.put(0, b"12345678")
        end.post(WR_WRITE, 0, 8, 0x100, wr_id=1)
        assert finished(end) == [(1, REM_INV_REQ_ERR)]
        assert (end.qp.state, [kind for kind, _ in end.node.events()]) == (ERR, [QP_REQ_ERR])
        assert end.at(0x100, 8) == bytes(8)


def test_what_came_before_a_refused_request_is_answered() -> None:
    with alone() as end:
        end.put(0, bytes(range(1, 255)) * 100)
        end.post(WR_READ, 0x8000, 20000, 0, wr_id=1)
        end.post(WR_WRITE, 0, 5000, 0xE000, wr_id=2)
        end.post(WR_READ, 0x7000, 8, 0, wr_id=3, rkey=1)
        end.post(WR_READ, 0x7000, 8, 0, wr_id=4)
        assert finished(end) == [(1, SUCCESS), (2, SUCCESS), (3, REM_ACCESS_ERR), (4, FLUSH_ERR)]
        assert end.at(0x8000, 20000) == end.at(0, 20000)


def test_a_receive_that_is_too_short_fails_on_both_sides() -> None:
    with alone() as end:
        end.receive(0x100, 4, wr_id=10)
        end.receive(0x200, 8, wr_id=11)
        end.post(WR_SEND, 0, 8, wr_id=1)
        end.post(WR_SEND, 0, 8, wr_id=2)
        found = finished(end)
        assert [wc for wc in found if wc[0] >= 10] == [(10, LOC_LEN_ERR), (11, FLUSH_ERR)]
        assert [wc for wc in found if wc[0] < 10] == [(1, REM_INV_REQ_ERR), (2, FLUSH_ERR)]
        assert [kind for kind, _ in end.node.events()] == [QP_FATAL]


def test_it_works_while_nothing_is_wrong_and_again_after_a_reset() -> None:
    with alone() as end:
        for number in range(20):
            end.put(0, number.to_bytes(8, "little"))
            end.post(WR_WRITE, 0, 8, 0x100, wr_id=1, flags=0)
            end.post(WR_READ, 0x200, 8, 0x100, wr_id=2)
            assert finished(end) == [(2, SUCCESS)]
            assert end.at(0x200, 8) == number.to_bytes(8, "little")
        for _ in range(2):
            end.post(WR_WRITE, 0, 8, 0, wr_id=3, rkey=1)
            assert finished(end) == [(3, REM_ACCESS_ERR)]
            assert [kind for kind, _ in end.node.events()] == [QP_ACCESS_ERR]
            end.qp.modify({"qp_state": 0}, 1)
            connect(end.qp, end.qp, end.node, end.node, [("qp_access_flags", RIGHTS)])
            assert end.qp.state == RTS
