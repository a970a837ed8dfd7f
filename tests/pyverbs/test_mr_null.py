# SPDX-License-Identifier: MIT
"""Null regions: zeros are read from them, and what is written to them is discarded (ibv_alloc_null_mr(3))."""

import errno
from typing import Any

import pytest
from tests.pyverbs.world import World, pattern, refused

from softverbs import verbs
from softverbs.core.memory import regions
from softverbs.pyverbs import _buffers
from softverbs.pyverbs import libibverbs_enums as e
from softverbs.pyverbs.mr import NullMR
from softverbs.pyverbs.wr import SGE, RecvWR, SendWR

OK = e.IBV_WC_SUCCESS
READ, WRITE, SEND = e.IBV_WR_RDMA_READ, e.IBV_WR_RDMA_WRITE, e.IBV_WR_SEND
ADDRESSES = pytest.mark.parametrize("address", [0, 1, 0xDEAD0000, 2**64 - 4096])


@ADDRESSES
def test_zeros_are_sent_from_it(world: World, address: int) -> None:
    first, second = world.pair()
    world.b.memory[:] = b"\xff" * len(world.b.memory)
    with NullMR(world.a.pd) as void:
        parts = [SGE(address, 1000, void.lkey), world.a.sge(24), SGE(address, 3000, void.lkey)]
        world.a.memory[:24] = pattern(24)
        world.b.post_recv(second, 2, length=8192)
        first.post_send(SendWR(1, SEND, 3, sg=parts))
        world.settle()
        assert world.a.done() == [(1, OK)] and world.b.done() == [(2, OK)]
        assert world.b.memory[:4025] == bytes(1000) + pattern(24) + bytes(3000) + b"\xff"


@ADDRESSES
def test_what_is_received_into_it_is_discarded(world: World, address: int) -> None:
    """And is not there when it is read."""
    first, second = world.pair()
    with NullMR(world.b.pd) as void:
        data = pattern(4000)
        world.a.memory[:4000] = data
        parts = [SGE(address, 100, void.lkey), world.b.sge(8), SGE(address, 4096, void.lkey)]
        second.post_recv(RecvWR(2, 3, parts))
        first.post_send(world.a.wr(SEND, 1, 4000))
        world.settle()
        assert world.a.done() == [(1, OK)]
        (wc,) = world.b.poll()
        assert (wc.status, wc.byte_len) == (OK, 4000)
        assert world.b.memory[:16] == data[100:108] + bytes(8)
        second.post_send(world.b.wr(WRITE, 3, sg=[SGE(address, 4096, void.lkey)]))
        world.settle()
        assert world.b.done() == [(3, OK)]
        assert world.a.memory[:4096] == bytes(4096)


def test_a_read_and_an_atomic_into_it(world: World) -> None:
    first, _ = world.pair()
    with NullMR(world.a.pd) as void:
        for opcode, length in ((READ, 30000), (e.IBV_WR_ATOMIC_FETCH_AND_ADD, 8)):
            first.post_send(world.a.wr(opcode, 1, sg=[SGE(5, length, void.lkey)]))
            world.settle()
            assert world.a.done() == [(1, OK)]


def test_an_element_as_long_as_can_be(world: World) -> None:
    """2^32 - 1 bytes to receive into: it costs address space and no memory."""
    first, second = world.pair()
    with NullMR(world.b.pd) as void:
        second.post_recv(RecvWR(2, 1, [SGE(0, 2**32 - 1, void.lkey)]))
        first.post_send(world.a.wr(SEND, 1, 65536))
        world.settle()
        (wc,) = world.b.poll()
        assert (wc.status, wc.byte_len) == (OK, 65536)


@pytest.mark.parametrize("opcode", [WRITE, READ])
def test_peers_cannot_use_it(world: World, opcode: int) -> None:
    first, _ = world.pair()
    with NullMR(world.b.pd) as void:
        assert void.rkey == 0
        wr = world.a.wr(opcode)
        wr.set_wr_rdma(void.lkey, 0)
        first.post_send(wr)
        world.settle()
        (wc,) = world.a.poll()
        assert wc.status == e.IBV_WC_REM_ACCESS_ERR and "null memory region, which peers cannot use" in wc.reason


def test_another_domain_cannot_use_it(build: Any) -> None:
    world = build()
    first, _ = world.connect(world.a.qp(), world.b.qp())
    other = verbs.ibv_alloc_pd(world.a.context)
    void = verbs.ibv_alloc_null_mr(other)
    first.post_send(SendWR(1, SEND, 1, sg=[SGE(0, 8, void.lkey)]))
    world.settle()
    (wc,) = world.a.poll()
    assert wc.status == e.IBV_WC_LOC_PROT_ERR and "protection domain" in wc.reason
    assert verbs.ibv_dealloc_pd(other) == errno.EBUSY
    assert verbs.ibv_dereg_mr(void) == 0
    assert verbs.ibv_dealloc_pd(other) == 0
    assert verbs.ibv_alloc_null_mr(None) is None


def test_it_is_as_long_as_can_be_and_stays_what_it_is(build: Any) -> None:
    world = build()
    with NullMR(world.a.pd) as void:
        assert (void.length, void.buf) == (2**64 - 1, 0)
        assert "NullMR" in str(void)
        refused(errno.EINVAL, void.rereg, e.IBV_REREG_MR_CHANGE_ACCESS)
        assert void.rereg_error == e.IBV_REREG_MR_ERR_INPUT
        with NullMR(world.a.pd) as second:
            assert second.lkey != void.lkey


def test_without_address_space(build: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    world = build()
    monkeypatch.setattr(_buffers, "_nothing", [])
    monkeypatch.setitem(regions.VALUES, "LONGEST", 1 << 62)
    assert "no address space" in refused(errno.ENOMEM, NullMR, world.a.pd)
