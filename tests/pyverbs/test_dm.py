# SPDX-License-Identifier: MIT
"""Device memory: copied to and from, registered, reached by peers, and limited (ibv_alloc_dm(3))."""

import errno
import struct
from typing import Any

import pytest
from tests.forked import in_child
from tests.pyverbs.world import SIGNALED, World, pattern, refused

from softverbs.pyverbs import libibverbs_enums as e
from softverbs.pyverbs._dm import DM, AllocDmAttr
from softverbs.pyverbs.mr import DMMR, MR
from softverbs.pyverbs.pd import PD
from softverbs.pyverbs.pyverbs_error import PyverbsUserError
from softverbs.pyverbs.wr import SGE, RecvWR, SendWR

OK, ACCESS_ERR = e.IBV_WC_SUCCESS, e.IBV_WC_REM_ACCESS_ERR
READ, WRITE = e.IBV_WR_RDMA_READ, e.IBV_WR_RDMA_WRITE
LOCAL, ZERO_BASED = e.IBV_ACCESS_LOCAL_WRITE, e.IBV_ACCESS_ZERO_BASED
ALL = (
    ZERO_BASED | LOCAL | e.IBV_ACCESS_REMOTE_WRITE | e.IBV_ACCESS_REMOTE_READ | e.IBV_ACCESS_REMOTE_ATOMIC
)  # fmt: skip


@pytest.fixture
def one(build: Any) -> Any:
    return build()


def to_peer(
    world: World, opcode: int, region: MR, at: int, length: int, operands: tuple[int, int] | None = None
) -> Any:
    wr = world.a.wr(opcode, 1, length)
    if operands is None:
        wr.set_wr_rdma(region.rkey, at)
    else:
        wr.set_wr_atomic(region.rkey, at, *operands)
    return wr


def completion(world: World, qp: Any, wr: SendWR) -> Any:
    qp.post_send(wr)
    world.settle()
    (wc,) = world.a.poll()
    return wc


def test_what_is_copied_in_can_be_copied_out(one: World) -> None:
    with DM(one.a.context, AllocDmAttr(100)) as dm:
        assert dm.copy_from_dm(0, 100) == bytes(100)
        dm.copy_to_dm(4, pattern(64), 64)
        dm.copy_to_dm(96, b"last word", 4)
        assert dm.copy_from_dm(0, 100) == bytes(4) + pattern(64) + bytes(28) + b"last"
        dm.copy_to_dm(0, b"", 0)
        assert dm.copy_from_dm(100, 0) == b""
        assert dm.length == 100 and dm.handle
    refused(errno.EINVAL, dm.copy_from_dm, 0, 4)
    dm.close()


@pytest.mark.parametrize(
    ("offset", "length"), [(3, 4), (4, 3), (104, 4), (0, 104), (100, 4), (2**64 - 4, 8), (4, 2**64 - 4)]
)
def test_copies_that_are_refused(one: World, offset: int, length: int) -> None:
    with DM(one.a.context, AllocDmAttr(100)) as dm:
        assert "Failed to copy from dm" in refused(errno.EINVAL, dm.copy_from_dm, offset, length)
        refused(errno.EINVAL, dm.copy_to_dm, offset, bytes(min(length, 200)), length)
        assert dm.copy_from_dm(0, 100) == bytes(100)


@pytest.mark.parametrize("value", [-1, 2**64, "4", None, 1.5])
def test_numbers_that_are_none(one: World, value: Any) -> None:
    with DM(one.a.context, AllocDmAttr(100)) as dm:
        refused(errno.EINVAL, dm.copy_from_dm, value, 4)
        refused(errno.EINVAL, dm.copy_to_dm, 0, b"abcd", value)
        refused(errno.EINVAL, dm.copy_to_dm, 0, value, 4)
    if value != 1.5:
        refused(errno.EINVAL, AllocDmAttr, value)


def test_there_is_so_much_of_it(build: Any) -> None:
    world = build(max_dm_size=4096)
    context = world.a.context
    attr = AllocDmAttr(length=4096.0, log_align_req=6)  # type: ignore[arg-type]
    assert (attr.length, attr.log_align_req, attr.comp_mask) == (4096, 6, 0)
    with DM(context, attr):
        reason = refused(errno.ENOMEM, DM, context, AllocDmAttr(4))
        assert "Max available size 4096" in reason and "4096 are in use" in reason
    with DM(context, AllocDmAttr(2048)), DM(context, AllocDmAttr(2048)):
        refused(errno.ENOMEM, DM, context, AllocDmAttr(1))
    refused(errno.ENOMEM, DM, context, AllocDmAttr(4097))
    refused(errno.EINVAL, DM, context, AllocDmAttr(0))
    refused(errno.EINVAL, DM, context, AllocDmAttr(4, log_align_req=21))
    refused(errno.EINVAL, DM, context, AllocDmAttr(4, comp_mask=1))
    refused(errno.EINVAL, DM, context, None)
    refused(errno.EINVAL, DM, None, attr)


def test_a_device_without_any(build: Any) -> None:
    world = build(max_dm_size=0)
    with pytest.raises(PyverbsUserError, match="max_dm_size"):
        DM(world.a.context, AllocDmAttr(4))


@pytest.mark.parametrize("log", [0, 3, 6, 12, 20])
def test_its_address_is_aligned_as_asked_for(one: World, log: int) -> None:
    with DM(one.a.context, AllocDmAttr(8, log)) as dm:
        assert dm._core.address % (1 << log) == 0
        dm.copy_to_dm(0, b"8 bytes.", 8)


def test_peers_write_and_read_it_from_byte_0_on(world: World) -> None:
    first, _ = world.pair()
    with DM(world.b.context, AllocDmAttr(1 << 14)) as dm, DMMR(world.b.pd, 8192, ALL, dm, 4096) as region:
        assert (region.buf, region.length, region.iova) == (0, 8192, 0)
        data = pattern(8192)
        world.a.memory[:8192] = data
        assert completion(world, first, to_peer(world, WRITE, region, 0, 8192)).status == OK
        assert dm.copy_from_dm(0, 1 << 14) == bytes(4096) + data + bytes(4096)
        world.a.memory[:8192] = bytes(8192)
        assert completion(world, first, to_peer(world, READ, region, 8, 8184)).status == OK
        assert world.a.memory[:8192] == data[8:] + bytes(8)


@pytest.mark.parametrize(("at", "length"), [(1, 64), (64, 1), (0, 65), (2**64 - 1, 8), (0, 2**31)])
def test_peers_do_not_reach_past_the_region(world: World, at: int, length: int) -> None:
    first, _ = world.pair()
    with DM(world.b.context, AllocDmAttr(256)) as dm, DMMR(world.b.pd, 64, ALL, dm, 64) as region:
        wr = to_peer(world, WRITE, region, at, min(length, 4096))
        wc = completion(world, first, wr)
        assert wc.status == ACCESS_ERR
        assert f"key {region.rkey:#x} covers [0x0, 0x40)" in wc.reason
        assert dm.copy_from_dm(0, 256) == bytes(256)


def test_atomics_on_it(world: World) -> None:
    first, _ = world.pair()
    with DM(world.b.context, AllocDmAttr(64, 3)) as dm, DMMR(world.b.pd, 64, ALL, dm, 0) as region:
        dm.copy_to_dm(8, struct.pack("=Q", 40), 8)
        assert (
            completion(world, first, to_peer(world, e.IBV_WR_ATOMIC_FETCH_AND_ADD, region, 8, 8, (2, 0))).status == OK
        )
        assert struct.unpack_from("=Q", world.a.memory)[0] == 40
        swap = to_peer(world, e.IBV_WR_ATOMIC_CMP_AND_SWP, region, 8, 8, (42, 7))
        assert completion(world, first, swap).status == OK
        assert struct.unpack("=Q", dm.copy_from_dm(8, 8))[0] == 7
        region.write("text", 4, 12)  # the offset is that of the device memory, as in pyverbs
        assert region.read(4, 12) == b"text"


def test_messages_from_it_and_into_it(world: World) -> None:
    first, second = world.pair()
    with (
        DM(world.a.context, AllocDmAttr(64)) as source,
        DM(world.b.context, AllocDmAttr(64)) as target,
        DMMR(world.a.pd, 64, ZERO_BASED | LOCAL, source, 0) as out,
        DMMR(world.b.pd, 64, ZERO_BASED | LOCAL, target, 0) as into,
    ):
        source.copy_to_dm(0, pattern(64), 64)
        second.post_recv(RecvWR(2, 1, [SGE(16, 48, into.lkey)]))
        first.post_send(SendWR(1, e.IBV_WR_SEND, 1, sg=[SGE(8, 48, out.lkey)], send_flags=SIGNALED))
        world.settle()
        assert world.a.done() == [(1, OK)] and world.b.done() == [(2, OK)]
        assert target.copy_from_dm(16, 48) == pattern(64)[8:56]
        first.post_send(SendWR(1, e.IBV_WR_SEND, 1, sg=[SGE(8, 57, out.lkey)], send_flags=SIGNALED))
        world.settle()
        (wc,) = world.a.poll()
        assert wc.status == e.IBV_WC_LOC_PROT_ERR and "[0x0, 0x40)" in wc.reason


@pytest.mark.parametrize(
    ("length", "access", "offset"),
    [
        (104, ALL, 0),
        (4, ALL, 100),
        (100, ALL, 4),
        (4, ALL & ~ZERO_BASED, 0),
        (4, ALL | e.IBV_ACCESS_ON_DEMAND, 0),
        (4, ZERO_BASED | e.IBV_ACCESS_REMOTE_WRITE, 0),
        (2**64 - 1, ALL, 0),
        (8, ALL, 2**64 - 4),
        (-4, ALL, 0),
        ("x", ALL, 0),
    ],
)
def test_registrations_that_are_refused(one: World, length: Any, access: int, offset: int) -> None:
    with DM(one.a.context, AllocDmAttr(100)) as dm:
        refused(errno.EINVAL, DMMR, one.a.pd, length, access, dm, offset)
    refused(errno.EINVAL, DMMR, one.a.pd, 4, ALL, dm, 0)  # closed
    refused(errno.EINVAL, DMMR, one.a.pd, 4, ALL, None, 0)


def test_it_stays_while_it_is_registered(one: World) -> None:
    dm = DM(one.a.context, AllocDmAttr(64))
    region = DMMR(one.a.pd, 64, ALL, dm, 0)
    empty = DMMR(one.a.pd, 0.0, ALL, dm, 64)
    assert empty.length == 0
    assert "2 memory regions" in refused(errno.EBUSY, dm._destroy)
    assert "device memory region" in refused(
        errno.EINVAL, region.rereg, e.IBV_REREG_MR_CHANGE_ACCESS, None, 0, 0, LOCAL
    )
    assert region.rereg_error == e.IBV_REREG_MR_ERR_INPUT
    dm.close()  # its regions go first
    assert region._core is None and empty._core is None


def test_a_context_closes_it_before_its_domains(build: Any) -> None:
    world = build()
    dm = DM(world.a.context, AllocDmAttr(64))
    region = DMMR(PD(world.a.context), 64, ALL, dm, 0)
    world.a.context.close()
    assert dm._core is None and region._core is None
    assert world.devices[0].port.regions.device_memory_used == 0


def test_no_dma_buf(one: World) -> None:
    with DM(one.a.context, AllocDmAttr(64)) as dm:
        refused(errno.EOPNOTSUPP, dm.export_dmabuf_fd)


def test_a_forked_child_takes_memory_of_its_own(one: World) -> None:
    """rdma-core's tests allocate in children, on the context of the parent."""
    parent = DM(one.a.context, AllocDmAttr(64))
    parent.copy_to_dm(0, b"parent's", 8)

    def child() -> None:
        with DM(one.a.context, AllocDmAttr(length=64)) as dm:
            dm.copy_to_dm(0, b"child's.", 8)
            assert dm.copy_from_dm(0, 8) == b"child's."
            refused(errno.EINVAL, dm.copy_from_dm, 1, 4)
            refused(errno.EIO, lambda: DMMR(one.a.pd, 64, ALL, dm, 0))
        refused(errno.ENOMEM, DM, one.a.context, AllocDmAttr(1 << 40))
        refused(errno.EIO, parent.copy_from_dm, 0, 8)

    in_child(child)
    assert parent.copy_from_dm(0, 8) == b"parent's"
