# SPDX-License-Identifier: MIT
"""The functions of the manual pages about memory: arguments, convention, and that they do what the objects do."""

import ctypes
import errno
import inspect
import mmap
from typing import Any

import pytest
from tests.pyverbs.world import ALL, World, pattern

from softverbs import verbs
from softverbs.pyverbs import libibverbs_enums as e
from softverbs.pyverbs._dm import DM, AllocDmAttr
from softverbs.pyverbs.mr import MWBind, MWBindInfo
from softverbs.pyverbs.pd import ParentDomainInitAttr, TDInitAttr

#: Arguments as the manual page has them; whether an object is returned.
MANUAL = {
    "ibv_reg_dm_mr": ("pd dm offset length access", True),
    "ibv_reg_dmabuf_mr": ("pd offset length iova fd access", True),
    "ibv_reg_mr_iova": ("pd addr length iova access", True),
    "ibv_alloc_null_mr": ("pd", True),
    "ibv_advise_mr": ("pd advice flags sg_list num_sge", False),
    "ibv_alloc_mw": ("pd type", True),
    "ibv_dealloc_mw": ("mw", False),
    "ibv_bind_mw": ("qp mw mw_bind", False),
    "ibv_alloc_dm": ("context attr", True),
    "ibv_free_dm": ("dm", False),
    "ibv_memcpy_to_dm": ("dm dm_offset host_addr length", False),
    "ibv_memcpy_from_dm": ("host_addr dm dm_offset length", False),
    "ibv_alloc_td": ("context init_attr", True),
    "ibv_dealloc_td": ("td", False),
    "ibv_alloc_parent_domain": ("context attr", True),
    "ibv_import_pd": ("context pd_handle", True),
    "ibv_unimport_pd": ("pd", False),
    "ibv_import_mr": ("pd mr_handle", True),
    "ibv_unimport_mr": ("mr", False),
    "ibv_import_dm": ("context dm_handle", True),
    "ibv_unimport_dm": ("dm", False),
}
JUNK: list[Any] = [None, 5, -1, 2**64, 1.5, "x", b"x", [], {}, object(), int]
every_function = pytest.mark.parametrize("name", MANUAL)


@pytest.fixture
def one(build: Any) -> Any:
    return build()


@every_function
def test_arguments_are_named_and_ordered_as_in_the_manual(name: str) -> None:
    assert list(inspect.signature(getattr(verbs, name)).parameters) == MANUAL[name][0].split()
    assert getattr(verbs, name).__doc__
    assert name in verbs.__all__


@every_function
@pytest.mark.parametrize("junk", JUNK, ids=lambda junk: type(junk).__name__ if junk is not int else "class")
def test_what_is_no_object_is_refused_by_the_convention(name: str, junk: Any) -> None:
    ctypes.set_errno(0)
    names, makes = MANUAL[name]
    result = getattr(verbs, name)(*[junk] * len(names.split()))
    if makes:
        assert result is None
        result = ctypes.get_errno()
    assert result == errno.EINVAL
    assert verbs.last_reason()


def test_device_memory(one: World) -> None:
    dm = verbs.ibv_alloc_dm(one.a.context, AllocDmAttr(64))
    assert isinstance(dm, DM)
    into = bytearray(64)
    memory = mmap.mmap(-1, 4096)
    at = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    assert verbs.ibv_memcpy_to_dm(dm, 4, pattern(60), 60) == 0
    assert verbs.ibv_memcpy_from_dm(into, dm, 0, 64) == 0
    assert into == bytes(4) + pattern(60)
    assert verbs.ibv_memcpy_from_dm(at, dm, 4, 60) == 0
    assert memory[:60] == pattern(60)
    memory[:4] = b"addr"
    assert verbs.ibv_memcpy_to_dm(dm, 0, at, 4) == 0
    assert dm.copy_from_dm(0, 4) == b"addr"
    assert verbs.ibv_memcpy_to_dm(dm, 1, at, 4) == errno.EINVAL
    assert verbs.ibv_memcpy_to_dm(dm, 0, at, 68) == errno.EINVAL
    assert verbs.ibv_memcpy_to_dm(dm, 0, 8, 4) == errno.EFAULT
    assert verbs.ibv_memcpy_from_dm(8, dm, 0, 4) == errno.EFAULT
    assert verbs.ibv_memcpy_from_dm(b"constant", dm, 0, 4) == errno.EFAULT
    assert verbs.ibv_memcpy_from_dm(bytearray(3), dm, 0, 4) == errno.EFAULT
    assert verbs.ibv_memcpy_to_dm(dm, 0, bytearray(3), 4) == errno.EINVAL
    region = verbs.ibv_reg_dm_mr(one.a.pd, dm, 0, 64, e.IBV_ACCESS_ZERO_BASED)
    assert region.length == 64
    assert verbs.ibv_free_dm(dm) == errno.EBUSY
    assert verbs.ibv_dereg_mr(region) == 0
    assert verbs.ibv_free_dm(dm) == 0
    assert verbs.ibv_free_dm(dm) == errno.EINVAL


def test_windows(world: World) -> None:
    _, second = world.pair()
    mw = verbs.ibv_alloc_mw(world.b.pd, e.IBV_MW_TYPE_1)
    before = mw.rkey
    request = MWBind(MWBindInfo(world.b.mr, world.b.mr.buf, 64, e.IBV_ACCESS_REMOTE_READ), e.IBV_SEND_SIGNALED, 9)
    assert verbs.ibv_bind_mw(second, mw, request) == 0
    assert mw.rkey != before
    world.settle()
    (wc,) = world.b.poll()
    assert (wc.wr_id, wc.status, wc.opcode) == (9, 0, e.IBV_WC_BIND_MW)
    assert verbs.ibv_dereg_mr(world.b.mr) == errno.EBUSY
    assert verbs.ibv_dealloc_mw(mw) == 0
    assert verbs.ibv_dealloc_mw(mw) == errno.EINVAL
    assert verbs.ibv_alloc_mw(world.b.pd, 3) is None
    assert verbs.ibv_dereg_mr(world.b.mr) == 0


def test_domains(one: World) -> None:
    td = verbs.ibv_alloc_td(one.a.context, TDInitAttr())
    pd = verbs.ibv_alloc_parent_domain(one.a.context, ParentDomainInitAttr(one.a.pd, td=td))
    region = verbs.ibv_reg_mr(pd, bytearray(64), 64, ALL)
    assert verbs.ibv_dealloc_pd(pd) == errno.EBUSY
    assert verbs.ibv_dereg_mr(region) == 0
    assert verbs.ibv_dealloc_pd(pd) == 0
    assert verbs.ibv_dealloc_td(td) == 0


def test_no_dma_buf(one: World) -> None:
    assert verbs.ibv_reg_dmabuf_mr(one.a.pd, 0, 4096, 0, 3, ALL) is None
    assert ctypes.get_errno() == errno.EOPNOTSUPP
    assert "DMA-BUF" in verbs.last_reason()
