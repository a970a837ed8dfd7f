# SPDX-License-Identifier: MIT
"""What a responder refuses: every check of a request, and packets that no requester of ours would send."""

import ctypes

import pytest
from tests.netsim import frames
from tests.netsim.pair import (
    FLUSH_ERR,
    REM_ACCESS_ERR,
    REM_INV_REQ_ERR,
    REMOTE_READ,
    REMOTE_WRITE,
    SUCCESS,
    WR_CAS,
    WR_FAA,
    WR_READ,
    WR_WRITE,
    Pair,
)
from tests.netsim.sim import (
    ALL,
    ERR,
    REMOTE_ATOMIC,
)
from tests.netsim.sim import REMOTE_READ as CAN_READ
from tests.netsim.sim import REMOTE_WRITE as CAN_WRITE

QP_FATAL, QP_REQ_ERR, QP_ACCESS_ERR, COMM_EST = 1, 2, 3, 4
RECV_OP, RECV_IMM_OP = 128, 129
WITH_IMM, WITH_INV = 2, 8
DATA = bytes(range(256)) * 64


def naks(pair: Pair) -> list[tuple[int, int]]:
    """(syndrome, PSN) of every NAK that b has sent."""
    sent = pair.sent(pair.b, frames.ACKNOWLEDGE)
    return [(frames.syndrome(frame), frames.psn(frame)) for frame in sent if frames.syndrome(frame) & frames.KIND]


# -- refusals: every check of a request


def refused(pair: Pair, status: int, syndrome: int, event: int) -> None:
    """Both ends know: the initiator's status, the NAK, the responder's state and its event; nothing was touched."""
    assert pair.a.status() == status
    assert naks(pair)[-1][0] == syndrome
    assert pair.b.qp.state == ERR
    assert [kind for kind, element in pair.b.node.events() if element is pair.b.qp and kind != COMM_EST] == [event]
    assert pair.b.memory.at(0, 0x4000) == bytes(0x4000)
    assert pair.b.count(REMOTE_WRITE) == pair.b.count(REMOTE_READ) == (0, 0)
    assert pair.b.node.log, "the device's log says why"


REQUESTS = {WR_WRITE: CAN_WRITE, WR_READ: CAN_READ, WR_FAA: REMOTE_ATOMIC, WR_CAS: REMOTE_ATOMIC}


def ask(pair: Pair, opcode: int, to: int = 0, rkey: int | None = None, length: int = 8) -> None:
    pair.a.memory.put(0, DATA)
    pair.a.post(opcode, 0x20, length, to, rkey=rkey, add=1)


@pytest.mark.parametrize("opcode", REQUESTS)
def test_unknown_key(opcode: int) -> None:
    with Pair() as pair:
        ask(pair, opcode, rkey=pair.b.memory.key ^ 1)
        refused(pair, REM_ACCESS_ERR, frames.NAK_ACCESS, QP_ACCESS_ERR)


@pytest.mark.parametrize("opcode", REQUESTS)
@pytest.mark.parametrize("to", [-8, 0xFFFC, 0x10000, 1 << 40, -0x10000])
def test_range_outside_of_the_region(opcode: int, to: int) -> None:
    with Pair() as pair:
        if opcode in (WR_FAA, WR_CAS):
            to &= -8
            if to == 0xFFF8:
                to = 0x10000
        ask(pair, opcode, to=to)
        refused(pair, REM_ACCESS_ERR, frames.NAK_ACCESS, QP_ACCESS_ERR)


@pytest.mark.parametrize("opcode", [WR_WRITE, WR_READ])
def test_range_that_passes_the_end_of_the_address_space(opcode: int) -> None:
    with Pair() as pair:
        ask(pair, opcode, to=(1 << 64) - 4 - pair.b.memory.iova)
        refused(pair, REM_ACCESS_ERR, frames.NAK_ACCESS, QP_ACCESS_ERR)


@pytest.mark.parametrize(("opcode", "right"), REQUESTS.items())
def test_region_lacks_the_right(opcode: int, right: int) -> None:
    with Pair() as pair:
        other = pair.b.node.region(pair.b.pd, 64, access=ALL & ~right, iova=pair.b.memory.iova)
        ask(pair, opcode, rkey=other.key)
        refused(pair, REM_ACCESS_ERR, frames.NAK_ACCESS, QP_ACCESS_ERR)
        assert other.at(0, 64) == bytes(64)


@pytest.mark.parametrize(("opcode", "right"), REQUESTS.items())
@pytest.mark.parametrize("length", [0, 8])
def test_queue_pair_lacks_the_right(opcode: int, right: int, length: int) -> None:
    with Pair(qp_access_flags=ALL & 15 & ~right) as pair:
        ask(pair, opcode, length=8 if opcode in (WR_FAA, WR_CAS) else length)
        refused(pair, REM_INV_REQ_ERR, frames.NAK_INVALID, QP_REQ_ERR)


@pytest.mark.parametrize("opcode", REQUESTS)
def test_region_of_another_protection_domain(opcode: int) -> None:
    with Pair() as pair:
        other = pair.b.node.region(pair.b.node.pd(), 64, iova=pair.b.memory.iova)
        ask(pair, opcode, rkey=other.key)
        refused(pair, REM_ACCESS_ERR, frames.NAK_ACCESS, QP_ACCESS_ERR)
        assert other.at(0, 64) == bytes(64)


@pytest.mark.parametrize("opcode", [WR_WRITE, WR_READ])
def test_no_bytes_need_no_key(opcode: int) -> None:
    """IBA 9.7.4.1.5: of a request of 0 bytes the key is not looked at."""
    with Pair() as pair:
        pair.a.post(opcode, 0, 0, 1 << 50, rkey=0xBAD)
        assert pair.a.status() == SUCCESS
        op = REMOTE_WRITE if opcode == WR_WRITE else REMOTE_READ
        assert pair.b.count(op) == (1, 0)


@pytest.mark.parametrize("opcode", [WR_FAA, WR_CAS])
def test_atomic_must_be_aligned(opcode: int) -> None:
    with Pair() as pair:
        pair.a.post(opcode, 0x20, 8, 4, add=1)
        refused(pair, REM_INV_REQ_ERR, frames.NAK_INVALID, QP_REQ_ERR)


def test_atomic_must_be_aligned_in_memory_too() -> None:
    with Pair() as pair:
        buffer = ctypes.create_string_buffer(64)
        address = (ctypes.addressof(buffer) & -8) + 12
        mr = pair.b.node.port.regions.register(pair.b.pd, address, 16, ALL, pair.b.memory.iova, buffer)
        ask(pair, WR_FAA, rkey=mr.rkey)
        refused(pair, REM_INV_REQ_ERR, frames.NAK_INVALID, QP_REQ_ERR)


@pytest.mark.parametrize("opcode", [WR_READ, WR_FAA])
def test_more_reads_than_max_dest_rd_atomic(opcode: int) -> None:
    with Pair(max_rd_atomic=3, max_dest_rd_atomic=2) as pair:
        pair.sim.network.capacity = 64
        for _ in range(3):
            pair.a.post(opcode, 0x8000, 8, 0x8000, add=0)
        wcs = pair.a.wait(3)
        assert [wc.status for wc in wcs] == [SUCCESS, SUCCESS, REM_INV_REQ_ERR]
        assert naks(pair) == [(frames.NAK_INVALID, 0x1002)]
        assert "max_dest_rd_atomic, 2" in pair.b.node.log[0]


def test_max_dest_rd_atomic_zero_refuses_reads() -> None:
    with Pair(max_dest_rd_atomic=0) as pair:
        ask(pair, WR_READ)
        refused(pair, REM_INV_REQ_ERR, frames.NAK_INVALID, QP_REQ_ERR)


# -- refusals: packets that no requester of ours would send


def inject(pair: Pair, opcode: int, body: bytes, psn: int = 0x1000, pad: int = 0) -> None:
    pair.inject(pair.a, frames.put_bth(opcode, pair.b.qp.qp_num, psn, pad=pad) + body)


def invalid(pair: Pair, psn: int) -> None:
    """b has refused the request at ``psn`` as invalid."""
    assert naks(pair)[-1] == (frames.NAK_INVALID, psn)
    assert pair.b.qp.state == ERR


@pytest.mark.parametrize(
    "opcode",
    ["RC_SEND_MIDDLE", "RC_SEND_LAST", "RC_SEND_LAST_WITH_IMMEDIATE", "RC_SEND_LAST_WITH_INVALIDATE",
     "RC_RDMA_WRITE_MIDDLE", "RC_RDMA_WRITE_LAST", "RC_RDMA_WRITE_LAST_WITH_IMMEDIATE"],
)  # fmt: skip
def test_continuation_of_nothing(opcode: str) -> None:
    with Pair(path_mtu=1) as pair:
        pair.b.receive(0, 1000)
        extra = 4 if "WITH" in opcode else 0
        inject(pair, frames.OPCODES[opcode], bytes(extra + 256))
        invalid(pair, 0x1000)
        assert pair.b.memory.at(0, 1000) == bytes(1000)


@pytest.mark.parametrize(
    "opcode",
    ["RC_SEND_FIRST", "RC_SEND_ONLY", "RC_RDMA_WRITE_FIRST", "RC_RDMA_WRITE_ONLY", "RC_RDMA_WRITE_MIDDLE",
     "RC_RDMA_WRITE_LAST", "RC_RDMA_READ_REQUEST", "RC_FETCH_ADD"],
)  # fmt: skip
def test_another_message_amid_a_send(opcode: str) -> None:
    with Pair(path_mtu=1) as pair:
        pair.b.receive(0, 1000)
        inject(pair, frames.SEND_FIRST, bytes(256))
        code = frames.OPCODES[opcode]
        header = {"RC_FETCH_ADD": 28, "RC_RDMA_READ_REQUEST": 16, "RC_RDMA_WRITE_FIRST": 16, "RC_RDMA_WRITE_ONLY": 16}
        payload = 0 if opcode in ("RC_FETCH_ADD", "RC_RDMA_READ_REQUEST") else 256
        inject(pair, code, bytes(header.get(opcode, 0) + payload), psn=0x1001)
        invalid(pair, 0x1001)
        assert [wc.status for wc in pair.b.polled()] == [FLUSH_ERR]


@pytest.mark.parametrize(
    ("opcode", "length"),
    [("RC_SEND_FIRST", 252), ("RC_SEND_FIRST", 260), ("RC_SEND_ONLY", 260), ("RC_SEND_FIRST", 0)],
)
def test_packet_of_a_wrong_length(opcode: str, length: int) -> None:
    with Pair(path_mtu=1) as pair:
        pair.b.receive(0, 1000)
        inject(pair, frames.OPCODES[opcode], bytes(length))
        invalid(pair, 0x1000)


@pytest.mark.parametrize(("opcode", "length"), [("MIDDLE", 252), ("MIDDLE", 0), ("LAST", 0), ("LAST", 260)])
def test_following_packet_of_a_wrong_length(opcode: str, length: int) -> None:
    with Pair(path_mtu=1) as pair:
        pair.b.receive(0, 1000)
        inject(pair, frames.SEND_FIRST, bytes(256))
        inject(pair, frames.OPCODES[f"RC_SEND_{opcode}"], bytes(length), psn=0x1001)
        invalid(pair, 0x1001)


def test_pad_belongs_to_no_message() -> None:
    """A packet of 256 bytes with a pad of 2 carries 254: too little for the first of several."""
    with Pair(path_mtu=1) as pair:
        pair.b.receive(0, 1000)
        inject(pair, frames.SEND_FIRST, bytes(256), pad=2)
        invalid(pair, 0x1000)


@pytest.mark.parametrize(("announced", "brought"), [(8, 12), (12, 8), (0, 4), (4, 0)])
def test_write_only_brings_another_length_than_announced(announced: int, brought: int) -> None:
    with Pair() as pair:
        memory = pair.b.memory
        inject(pair, frames.WRITE_ONLY, frames.put_reth(memory.iova, memory.key, announced) + b"x" * brought)
        invalid(pair, 0x1000)
        assert memory.at(0, 64) == bytes(64)


@pytest.mark.parametrize(("announced", "last"), [(300, 256), (600, 4), (512, 252)])
def test_write_of_two_packets_brings_another_length_than_announced(announced: int, last: int) -> None:
    with Pair(path_mtu=1) as pair:
        memory = pair.b.memory
        inject(pair, frames.WRITE_FIRST, frames.put_reth(memory.iova, memory.key, announced) + b"x" * 256)
        inject(pair, frames.WRITE_LAST, b"x" * last, psn=0x1001)
        invalid(pair, 0x1001)
        assert memory.at(announced, 64) == bytes(64)
        assert pair.b.count(REMOTE_WRITE) == (0, 0)


@pytest.mark.parametrize(("offset", "length", "payload"), [(0, 8, 4), (0, 8, 12), (4, 8, 8), (0, 16, 8)])
def test_an_atomic_write_is_of_8_bytes_that_are_aligned(offset: int, length: int, payload: int) -> None:
    with Pair() as pair:
        memory = pair.b.memory
        reth = frames.put_reth(memory.iova + offset, memory.key, length)
        inject(pair, frames.OPCODES["RC_ATOMIC_WRITE"], reth + b"\1" * payload)
        invalid(pair, 0x1000)
        assert memory.at(0, 64) == bytes(64)
        assert pair.b.count(REMOTE_WRITE) == (0, 0)


@pytest.mark.parametrize("feth", [0, 4, 8, 0x21, 0x31])
def test_a_flush_of_no_known_kind(feth: int) -> None:
    with Pair() as pair:
        memory = pair.b.memory
        body = feth.to_bytes(4, "big") + frames.put_reth(memory.iova, memory.key, 8)
        inject(pair, frames.OPCODES["RC_FLUSH"], body)
        invalid(pair, 0x1000)
        assert pair.b.count(REMOTE_READ) == (0, 0)


@pytest.mark.parametrize("opcode", ["RC_RDMA_READ_REQUEST", "RC_RDMA_WRITE_ONLY"])
def test_message_longer_than_the_specification_has_it(opcode: str) -> None:
    """A region that is large enough does not make 2^32 - 1 bytes a message: at an MTU of 256 its PSNs would wrap."""
    with Pair(path_mtu=1) as pair:
        regions = pair.b.node.port.regions
        mr = regions.register(pair.b.pd, 0x10000, 1 << 40, ALL, 0, None)
        inject(pair, frames.OPCODES[opcode], frames.put_reth(0, mr.rkey, (1 << 32) - 1))
        invalid(pair, 0x1000)
        assert str(1 << 31) in pair.b.node.log[0]


def test_after_a_refusal_nothing_more_is_performed() -> None:
    with Pair() as pair:
        pair.a.memory.put(0, DATA)
        pair.a.post(WR_WRITE, 0, 8, 0, rkey=0)
        pair.a.post(WR_WRITE, 0, 8, 0)
        assert [wc.status for wc in pair.a.wait(2)] == [REM_ACCESS_ERR, FLUSH_ERR]
        assert pair.b.memory.at(0, 8) == bytes(8)
