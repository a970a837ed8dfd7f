# SPDX-License-Identifier: MIT
"""The other ways to register: extended, over a Buf, over what this device has not (ibv_reg_mr(3))."""

import errno
from typing import Any

import pytest
from tests.pyverbs.world import ALL, REMOTE, World, pattern, refused

from softverbs.pyverbs import libibverbs_enums as e
from softverbs.pyverbs._dm import DM, AllocDmAttr
from softverbs.pyverbs.mr import (
    DMMR,
    MR,
    MW,
    Buf,
    BufMR,
    DmaBufMR,
    DMAHandle,
    DmaHandleInitAttr,
    MREx,
    MWBind,
    MWBindInfo,
)
from softverbs.pyverbs.pd import PD, ParentDomain, ParentDomainInitAttr
from softverbs.pyverbs.pyverbs_error import PyverbsUserError
from softverbs.pyverbs.wr import SendWR

OK, LOCAL = e.IBV_WC_SUCCESS, e.IBV_ACCESS_LOCAL_WRITE


@pytest.fixture
def one(build: Any) -> Any:
    return build()


def write(world: World, qp: Any, region: MR, at: int, length: int) -> int:
    wr = world.a.wr(e.IBV_WR_RDMA_WRITE, 1, length)
    wr.set_wr_rdma(region.rkey, at)
    qp.post_send(wr)
    world.settle()
    (wc,) = world.a.poll()
    return int(wc.status)


@pytest.mark.parametrize("kind", [BufMR, MREx])
def test_parts_of_a_buffer_of_the_device(world: World, kind: Any) -> None:
    first, _ = world.pair()
    pd = world.b.pd
    with Buf(pd, 8192) as buf:
        assert buf.addr and buf.size == 8192 and "Buf" in str(buf)
        if kind is BufMR:
            region = BufMR(pd, buf, 4096, ALL, offset=4096)
        else:
            region = MREx(pd, 4096, ALL, address=buf.addr + 4096, buf=buf)
        assert (region.buf, region.length) == (buf.addr + 4096, 4096)
        data = world.a.memory[:4096] = pattern(4096)
        assert write(world, first, region, region.buf, 4096) == OK
        assert region.read(4096, 0) == data
        region.close()
        whole = BufMR(pd, buf, 8192, LOCAL)
        assert whole.read(8192, 0) == bytes(4096) + data
        refused(errno.ENODATA, buf.export_dmabuf_fd)
    assert whole._core is None and buf.addr == 0
    refused(errno.EINVAL, BufMR, pd, buf, 8, LOCAL)


def test_a_buffer_lives_as_long_as_its_region(one: World) -> None:
    """Even where the application has let go of the Buf."""
    region = BufMR(one.b.pd, Buf(one.b.pd, 4096), 4096, LOCAL)
    region.write("still there", 11)
    assert region.read(11, 0) == b"still there"
    region.close()


@pytest.mark.parametrize(
    ("length", "offset"), [(4097, 0), (1, 4096), (4096, 1), (2**64 - 1, 0), (8, 2**64 - 4), (0, 0), (8, -1)]
)
def test_outside_of_the_buffer(one: World, length: int, offset: int) -> None:
    pd = one.b.pd
    buf = Buf(pd, 4096)
    refused(errno.EINVAL, BufMR, pd, buf, length, LOCAL, offset)
    assert "Failed to register a buf MR" in refused(errno.EINVAL, BufMR, pd, buf, 8, e.IBV_ACCESS_REMOTE_WRITE)
    buf.close()


def test_a_buffer_belongs_to_its_domain(one: World) -> None:
    pd, other = one.b.pd, PD(one.b.context)
    buf = Buf(pd, 4096)
    parent = ParentDomain(one.b.context, ParentDomainInitAttr(pd))
    for wrong in (other, parent):
        refused(errno.EINVAL, BufMR, wrong, buf, 8, LOCAL)
        refused(errno.EINVAL, lambda pd=wrong: MREx(pd, 8, LOCAL, buf=buf))
    refused(errno.EINVAL, Buf, pd, 0)
    refused(errno.EINVAL, Buf, None, 8)
    refused(errno.EINVAL, BufMR, pd, None, 8)


def test_the_extended_call(world: World) -> None:
    first, _ = world.pair()
    region = MREx(world.b.pd, 4096, ALL, iova=0x10000)
    assert region.iova == 0x10000 and "MREx" in str(region)
    assert write(world, first, region, 0x10000 + 64, 64) == OK
    everything = MREx(world.b.pd, access=LOCAL | REMOTE | e.IBV_ACCESS_ON_DEMAND, implicit=True)
    assert write(world, first, everything, region.buf, 64) == OK
    words = "Failed to register MR using extended API"
    assert words in refused(errno.EINVAL, MREx, world.b.pd, 8, e.IBV_ACCESS_REMOTE_WRITE)
    assert words in refused(errno.EOPNOTSUPP, lambda: MREx(world.b.pd, 8, LOCAL, fd=0))
    assert words in refused(errno.EOPNOTSUPP, lambda: MREx(world.b.pd, 8, LOCAL, dmah=object()))  # type: ignore[arg-type]
    with pytest.raises(PyverbsUserError, match="spam"):
        MREx(world.b.pd, 8, LOCAL, spam=1)


def test_what_needs_hardware(one: World) -> None:
    assert "DMA-BUF" in refused(errno.EOPNOTSUPP, DmaBufMR, one.b.pd, 4096, LOCAL)
    attr = DmaHandleInitAttr(1, 2, 3, 4)
    assert (attr.comp_mask, attr.cpu_id, attr.ph, attr.tph_mem_type) == (1, 2, 3, 4)
    assert "tph_mem_type" in str(attr)
    assert "no PCI device" in refused(errno.EOPNOTSUPP, DMAHandle, one.b.context, attr)
    refused(errno.EINVAL, DMAHandle, one.b.context, None)


def test_every_kind_over_sockets_in_both_directions(build: Any) -> None:
    """Real frames: each kind of region is written by the other side and read back."""
    world = build("udp")
    first, second = world.pair()
    kept = []
    for side, qp in ((world.a, second), (world.b, first)):
        dm = DM(side.context, AllocDmAttr(4096))
        access = LOCAL | REMOTE
        window_region = MR(side.pd, 8192, LOCAL | e.IBV_ACCESS_MW_BIND)
        window = MW(side.pd, e.IBV_MW_TYPE_1)
        own = first if side is world.a else second
        own.bind_mw(window, MWBind(MWBindInfo(window_region, window_region.buf + 4096, 4096, REMOTE), 2, 7))
        world.until(lambda side=side: side.done() == [(7, OK)])
        whole = MR(side.pd, 4096, access | e.IBV_ACCESS_ON_DEMAND, implicit=True)
        regions = [
            (DMMR(side.pd, 4096, access | e.IBV_ACCESS_ZERO_BASED, dm, 0), 0, None),
            (window_region, window_region.buf + 4096, window.rkey),
            (whole, whole.buf, None),
        ]
        kept.append((dm, window, regions))
        for number, (region, at, key) in enumerate(regions):
            peer = side.peer
            data = pattern(4096, number)
            peer.memory[:4096], peer.memory[8192:12288] = data, bytes(4096)
            write = SendWR(1, e.IBV_WR_RDMA_WRITE, 1, sg=[peer.sge(4096)], send_flags=0)
            read = SendWR(2, e.IBV_WR_RDMA_READ, 1, sg=[peer.sge(4096, 8192)])
            for wr in (write, read):
                wr.set_wr_rdma(region.rkey if key is None else key, at)
            write.next_wr = read
            qp.post_send(write)
            world.until(lambda peer=peer: peer.done() == [(2, OK)])
            assert peer.memory[8192:12288] == data
