# SPDX-License-Identifier: MIT
"""Contexts, protection domains, regions and device memory under a second name (ibv_import_device(3) and its kin)."""

import errno
import gc
import os
from typing import Any

import pytest
from tests.pyverbs.world import ALL, World, pattern, refused

from softverbs import verbs
from softverbs.pyverbs import libibverbs_enums as e
from softverbs.pyverbs._dm import DM, AllocDmAttr
from softverbs.pyverbs.cq import CQ
from softverbs.pyverbs.device import Context
from softverbs.pyverbs.mr import DMMR, MR, MW
from softverbs.pyverbs.pd import PD
from softverbs.pyverbs.pyverbs_error import PyverbsUserError
from softverbs.pyverbs.qp import QP, QPCap, QPInitAttr

OK = e.IBV_WC_SUCCESS


@pytest.fixture
def one(build: Any) -> Any:
    return build()


def second_name(context: Context) -> Context:
    return Context(cmd_fd=os.dup(context.cmd_fd))


def test_an_imported_domain_and_region_carry_traffic(world: World) -> None:
    """As rdma-core's shared PD: a QP of the imported domain, the original's region."""
    context = second_name(world.b.context)
    assert context.device is world.b.context.device
    pd = PD(context, handle=world.b.pd.handle)
    region = MR(pd, handle=world.b.mr.handle, address=world.b.mr.buf)
    assert (region.rkey, region.lkey, region.length) == (world.b.mr.rkey, world.b.mr.lkey, world.b.mr.length)
    cq = CQ(context, 16)
    qp = QP(pd, QPInitAttr(e.IBV_QPT_RC, None, cq, cq, None, QPCap()))
    first = world.a.qp()
    first.to_rts(world.attr(first, qp.qp_num))
    qp.to_rts(world.attr(world.b.qp(), first.qp_num))
    world.a.memory[:64] = data = pattern(64)
    wr = world.a.wr(e.IBV_WR_RDMA_WRITE, 1, 64, key=region.rkey)
    first.post_send(wr)
    world.settle()
    assert world.a.done() == [(1, OK)]
    assert region.read(64, 0) == data == bytes(world.b.memory[:64])
    region.unimport()
    pd.unimport()
    pd.close()
    assert qp._core is None
    assert world.b.mr.read(64, 0) == data
    context.close()


def test_the_original_survives_the_import(one: World) -> None:
    context = second_name(one.b.context)
    pd = PD(context, handle=one.b.pd.handle)
    region = MR(pd, handle=one.b.mr.handle)
    assert region.buf == 0 and region.handle == one.b.mr.handle
    with pytest.raises(PyverbsUserError, match="outside"):
        region.read(1, 0)
    users = one.b.pd._core.users
    context.close()
    assert region._core is None and pd._core is None
    assert one.b.pd._core.users == users
    assert one.b.mr.lkey and one.b.pd.handle


def test_the_import_survives_nothing(one: World) -> None:
    """Once the original is gone, so is what an import opens."""
    context = second_name(one.b.context)
    mine = PD(one.b.context)
    original = MR(mine, 64, ALL)
    pd = PD(context, handle=mine.handle)
    region = MR(pd, handle=original.handle)
    assert verbs.ibv_dereg_mr(region) == 0  # by either name
    assert one.devices[1].port.regions.find(original._core.lkey) is None
    original.close()
    assert verbs.ibv_dealloc_pd(pd) == 0
    refused(errno.EINVAL, lambda: PD(context, handle=mine.handle))
    mine.close()


def test_the_original_is_busy_while_its_import_is_used(one: World) -> None:
    mine = PD(one.b.context)
    pd = PD(second_name(one.b.context), handle=mine.handle)
    window = MW(pd, 1)
    refused(errno.EBUSY, mine._destroy)
    window.close()
    mine._destroy()
    pd.unimport()


def test_garbage_of_an_import_ends_nothing(one: World) -> None:
    context = second_name(one.b.context)
    pd = PD(context, handle=one.b.pd.handle)
    MR(pd, handle=one.b.mr.handle)
    del pd
    gc.collect()
    assert one.b.mr.lkey and not one.b.pd._core.closed
    context.close()


@pytest.mark.parametrize("handle", [0, 0xFFFFFF, -1, 2**32, "x"])
def test_handles_of_nothing(one: World, handle: Any) -> None:
    for act in (
        lambda: PD(one.b.context, handle=handle),
        lambda: MR(one.b.pd, handle=handle),
        lambda: DM(one.b.context, handle=handle),
    ):
        refused(errno.EINVAL, act)


def test_handles_of_others(build: Any) -> None:
    """Of another context of the same device, and of an object of another kind."""
    world = build("loopback")
    refused(errno.EINVAL, lambda: PD(world.a.context, handle=world.b.pd.handle))
    refused(errno.EINVAL, lambda: MR(world.a.pd, handle=world.b.mr.handle))
    window = MW(world.a.pd, 1)
    refused(errno.EINVAL, lambda: MR(world.a.pd, handle=window.handle))
    dm = DM(world.b.context, AllocDmAttr(64))
    refused(errno.EINVAL, lambda: DM(world.a.context, handle=dm.handle))


def test_within_one_context(one: World) -> None:
    with PD(one.b.context, handle=one.b.pd.handle) as pd, MR(pd, handle=one.b.mr.handle) as region:
        assert region.lkey == one.b.mr.lkey
        with MR(pd, 64, ALL) as own:
            assert own.lkey != region.lkey
    refused(errno.EINVAL, one.b.pd.unimport)
    refused(errno.EINVAL, one.b.mr.unimport)


def test_device_memory(world: World) -> None:
    first, _ = world.pair()
    dm = DM(world.b.context, AllocDmAttr(64))
    context = second_name(world.b.context)
    other = DM(context, handle=dm.handle)
    dm.copy_to_dm(0, b"seen by both", 12)
    assert other.copy_from_dm(0, 12) == b"seen by both"
    access = ALL & ~e.IBV_ACCESS_MW_BIND | e.IBV_ACCESS_ZERO_BASED
    region = DMMR(PD(context, handle=world.b.pd.handle), 64, access, other, 0)
    wr = world.a.wr(e.IBV_WR_RDMA_READ, 1, 12)
    wr.set_wr_rdma(region.rkey, 0)
    first.post_send(wr)
    world.settle()
    assert world.a.memory[:12] == b"seen by both"
    refused(errno.EBUSY, dm._destroy)
    other.unimport()  # its region goes first
    assert region._core is None
    dm.close()


def test_the_functions_of_the_manual_page(one: World) -> None:
    context = second_name(one.b.context)
    pd = verbs.ibv_import_pd(context, one.b.pd.handle)
    region = verbs.ibv_import_mr(pd, one.b.mr.handle)
    assert region.rkey == one.b.mr.rkey
    dm = DM(one.b.context, AllocDmAttr(64))
    other = verbs.ibv_import_dm(context, dm.handle)
    assert verbs.ibv_unimport_dm(other) == verbs.ibv_unimport_mr(region) == verbs.ibv_unimport_pd(pd) == 0
    assert verbs.ibv_unimport_mr(one.b.mr) == errno.EINVAL
    assert verbs.ibv_import_pd(None, 1) is None
    assert verbs.ibv_import_mr(None, 1) is None
    assert verbs.ibv_import_dm(context, 2**40) is None


def test_arguments_that_are_none(one: World) -> None:
    for kind, parent in ((PD, one.b.context), (MR, one.b.pd), (DM, one.b.context)):
        with pytest.raises(PyverbsUserError, match="has no argument spam"):
            kind(parent, spam=1)
    with pytest.raises(PyverbsUserError, match="Cannot create PD"):
        PD(one.b.pd)
