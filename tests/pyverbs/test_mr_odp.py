# SPDX-License-Identifier: MIT
"""On-demand memory: it may come and go, one region may be all of it, and advice pages it in (ibv_advise_mr(3))."""

import errno
import mmap
from typing import Any

import pytest
from tests.pyverbs.world import ALL, REMOTE, SIZE, World, pattern, refused

from softverbs import verbs
from softverbs.pyverbs import _buffers
from softverbs.pyverbs import libibverbs_enums as e
from softverbs.pyverbs.mr import MR, MW, MWBind, MWBindInfo
from softverbs.pyverbs.pd import PD
from softverbs.pyverbs.pyverbs_error import PyverbsUserError
from softverbs.pyverbs.qp import QP
from softverbs.pyverbs.wr import SGE, RecvWR, SendWR

OK, ACCESS_ERR, PROT_ERR = e.IBV_WC_SUCCESS, e.IBV_WC_REM_ACCESS_ERR, e.IBV_WC_LOC_PROT_ERR
READ, WRITE, ADD = e.IBV_WR_RDMA_READ, e.IBV_WR_RDMA_WRITE, e.IBV_WR_ATOMIC_FETCH_AND_ADD
LOCAL, ON_DEMAND = e.IBV_ACCESS_LOCAL_WRITE, e.IBV_ACCESS_ON_DEMAND
EVERY = LOCAL | REMOTE | ON_DEMAND
PREFETCH, PREFETCH_WRITE, NO_FAULT = (
    e._IBV_ADVISE_MR_ADVICE_PREFETCH, e._IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE, e._IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT,
)  # fmt: skip
FLUSH = e._IBV_ADVISE_MR_FLAG_FLUSH
PAGE = mmap.PAGESIZE


class Pages:
    """Anonymous pages of this process, which can be unmapped."""

    def __init__(self, count: int = 4, prot: int = mmap.PROT_READ | mmap.PROT_WRITE) -> None:
        self.map = mmap.mmap(-1, count * PAGE, prot=prot)
        with memoryview(self.map) as view:
            self.address = _buffers.address_of(view)

    def drop(self) -> None:
        self.map.close()


@pytest.fixture(params=["madvise", "maps"])
def look(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ways to look whether memory is there: MADV_POPULATE, and /proc/self/maps for older kernels."""
    if request.param == "maps":
        monkeypatch.setattr(_buffers, "_populates", False)
    elif not _buffers._can_populate():
        pytest.skip("the kernel has no MADV_POPULATE_READ")
    else:
        monkeypatch.setattr(_buffers, "_populates", True)


def access(world: World, qp: QP, opcode: int, key: int, at: int, length: int = 8) -> tuple[int, str]:
    """An access of side ``a``; its status, and the reason where it failed."""
    wr = world.a.wr(opcode, 1, length, key=key)
    if opcode == ADD:
        wr.set_wr_atomic(key, at, 1)
    else:
        wr.set_wr_rdma(key, at)
    qp.post_send(wr)
    world.settle()
    (wc,) = world.a.poll()
    return wc.status, wc.reason


@pytest.mark.usefixtures("look")
def test_an_implicit_region_is_all_memory_of_the_process(world: World) -> None:
    first, _ = world.pair()
    pages = Pages()
    with MR(world.b.pd, 0, EVERY, implicit=True) as region:
        assert (region.length, region.buf) == (2**64 - 1, 0)
        data = world.a.memory[: 4 * PAGE] = pattern(4 * PAGE)
        assert access(world, first, WRITE, region.rkey, pages.address, 4 * PAGE)[0] == OK
        assert pages.map[:] == data
        world.a.memory[: 4 * PAGE] = bytes(4 * PAGE)
        assert access(world, first, READ, region.rkey, pages.address + 1, PAGE)[0] == OK
        assert world.a.memory[:PAGE] == data[1 : PAGE + 1]
        assert access(world, first, ADD, region.rkey, pages.address)[0] == OK


@pytest.mark.usefixtures("look")
@pytest.mark.parametrize("opcode", [WRITE, READ, ADD])
@pytest.mark.parametrize("case", ["unmapped", "half of it", "null", "kernel", "last bytes", "wraps", "read-only"])
def test_a_bad_remote_address_is_refused_and_ends_no_process(world: World, opcode: int, case: str) -> None:
    first, second = world.pair()
    pages, gone, constant = Pages(), Pages(), Pages(prot=mmap.PROT_READ)
    gone.drop()
    length = 8
    if case == "half of it":
        # The page after one that is mapped: there is a gap, or else the range of the access is not all writable.
        length = 8 if opcode == ADD else 3 * PAGE
        hole = mmap.mmap(-1, 8 * PAGE, prot=mmap.PROT_READ | mmap.PROT_WRITE)
        with memoryview(hole) as view:
            start = _buffers.address_of(view)
        hole.resize(PAGE)
    at = {
        "unmapped": gone.address,
        "half of it": start + PAGE - 16 if case == "half of it" and opcode != ADD else gone.address,
        "null": 0,
        "kernel": 0xFFFF800000000000,
        "last bytes": 2**64 - 8,
        "wraps": 2**64 - 8 if opcode == ADD else 2**64 - 4,
        "read-only": constant.address,
    }[case]
    with MR(world.b.pd, 0, EVERY, implicit=True) as region:
        status, reason = access(world, first, opcode, region.rkey, at, length)
        if case == "read-only" and opcode == READ:
            assert status == OK
            return
        assert status == ACCESS_ERR
        if case not in ("wraps", "last bytes"):  # the very last byte has no number
            assert f"not mapped {'readable' if opcode == READ else 'writable'}" in reason, reason
        assert second.qp_state == e.IBV_QPS_ERR
    assert pages.map[:] == bytes(4 * PAGE)


@pytest.mark.usefixtures("look")
def test_local_use_of_an_implicit_region(world: World) -> None:
    first, second = world.pair()
    source, target = Pages(), Pages()
    source.map[:16] = b"from everywhere."
    with MR(world.a.pd, 0, LOCAL | ON_DEMAND, implicit=True) as out, MR(world.b.pd, 0, EVERY, implicit=True) as into:
        second.post_recv(RecvWR(2, 1, [SGE(target.address + 8, 100, into.lkey)]))
        first.post_send(SendWR(1, e.IBV_WR_SEND, 1, sg=[SGE(source.address, 16, out.lkey)]))
        world.settle()
        assert world.a.done() == [(1, OK)] and world.b.done() == [(2, OK)]
        assert target.map[:32] == bytes(8) + b"from everywhere." + bytes(8)
        address = target.address
        target.drop()
        second.post_recv(RecvWR(3, 1, [SGE(address, 100, into.lkey)]))
        first.post_send(SendWR(4, e.IBV_WR_SEND, 1, sg=[SGE(source.address, 16, out.lkey)]))
        world.settle()
        (wc,) = world.b.poll()
        assert (wc.wr_id, wc.status) == (3, PROT_ERR) and "not mapped writable" in wc.reason
        assert world.a.done() == [(4, e.IBV_WC_REM_OP_ERR)]


def test_a_send_from_memory_that_is_not_there(world: World) -> None:
    first, _ = world.pair()
    with MR(world.a.pd, 0, LOCAL | ON_DEMAND, implicit=True) as out:
        for length in (8, 100000):  # one packet, and many
            first.post_send(SendWR(1, e.IBV_WR_SEND, 1, sg=[SGE(4096, length, out.lkey)]))
            world.settle()
            (wc,) = world.a.poll()
            assert wc.status == PROT_ERR and "not mapped readable" in wc.reason
            first, _ = world.pair()


def test_rights_and_domain_count_for_an_implicit_region_too(build: Any) -> None:
    world = build()
    first, _ = world.pair()
    stranger, _ = world.connect(world.a.qp(), world.b.qp(pd=PD(world.b.context)))
    pages = Pages()
    with MR(world.b.pd, 0, LOCAL | ON_DEMAND | e.IBV_ACCESS_REMOTE_READ, implicit=True) as region:
        status, reason = access(world, stranger, READ, region.rkey, pages.address)
        assert status == ACCESS_ERR and "protection domain" in reason
        assert access(world, first, READ, region.rkey, pages.address)[0] == OK
        status, reason = access(world, first, WRITE, region.rkey, pages.address)
        assert status == ACCESS_ERR and "lacks the right REMOTE_WRITE" in reason


@pytest.mark.parametrize(
    ("access_flags", "how"),
    [
        (ALL, {}),
        (EVERY | e.IBV_ACCESS_ZERO_BASED, {}),
        (EVERY | e.IBV_ACCESS_MW_BIND, {}),
        (EVERY | e.IBV_ACCESS_HUGETLB, {}),
        (EVERY, {"iova": 4096}),
        (ON_DEMAND | e.IBV_ACCESS_REMOTE_WRITE, {}),
    ],
)
def test_implicit_regions_that_cannot_be(build: Any, access_flags: int, how: dict[str, int]) -> None:
    world = build()
    refused(errno.EINVAL, lambda: MR(world.a.pd, 0, access_flags, implicit=True, **how))


def test_an_implicit_region_with_memory_of_its_own(build: Any) -> None:
    """As pyverbs: length and address are what read and write mean; and the manual page's way to say implicit."""
    world = build()
    pages = Pages()
    with MR(world.a.pd, PAGE, EVERY, implicit=True) as region:
        region.write("own", 3, 5)
        assert region.read(3, 5) == b"own" and region.buf
    with MR(world.a.pd, PAGE, EVERY, address=pages.address, implicit=True) as region:
        region.write("user", 4)
        assert pages.map[:4] == b"user" and region.buf == pages.address
        refused(errno.EINVAL, region.rereg, e.IBV_REREG_MR_CHANGE_ACCESS, None, 0, 0, LOCAL)
    region = verbs.ibv_reg_mr(world.a.pd, 0, 2**64 - 1, EVERY)
    assert region.length == 2**64 - 1
    with pytest.raises(PyverbsUserError, match="outside"):
        region.read(1, 0)
    assert verbs.ibv_reg_mr(world.a.pd, 0, 2**64 - 1, ALL) is None


@pytest.mark.usefixtures("look")
def test_an_explicit_region_whose_memory_comes_and_goes(world: World) -> None:
    first, _ = world.pair()
    third, _ = world.pair()
    pages = Pages()
    region = MR(world.b.pd, 4 * PAGE, EVERY, address=pages.address)
    assert access(world, first, WRITE, region.rkey, pages.address + PAGE, 2 * PAGE)[0] == OK
    pages.drop()
    with pytest.raises(PyverbsUserError, match="not there"):
        region.read(8, 0)
    with pytest.raises(PyverbsUserError, match="not there"):
        region.write("8 bytes.", 8)
    status, reason = access(world, first, WRITE, region.rkey, pages.address + PAGE)
    assert status == ACCESS_ERR and "not mapped writable" in reason
    status, reason = access(world, third, WRITE, region.rkey, pages.address + 4 * PAGE)
    assert status == ACCESS_ERR and "covers" in reason
    region.close()


def test_an_explicit_region_of_memory_that_is_not_there_yet(build: Any) -> None:
    world = build()
    pages = Pages()
    pages.drop()
    MR(world.a.pd, PAGE, EVERY, address=pages.address).close()
    refused(errno.EFAULT, lambda: MR(world.a.pd, PAGE, ALL, address=pages.address))


def test_a_window_of_an_on_demand_region(world: World) -> None:
    first, second = world.pair()
    pages = Pages()
    region = MR(world.b.pd, 4 * PAGE, EVERY | e.IBV_ACCESS_MW_BIND, address=pages.address)
    with MW(world.b.pd, e.IBV_MW_TYPE_1) as window:
        second.bind_mw(window, MWBind(MWBindInfo(region, pages.address + PAGE, PAGE, REMOTE), 0))
        world.settle()
        assert access(world, first, WRITE, window.rkey, pages.address + PAGE, 100)[0] == OK
        address = pages.address
        pages.drop()
        status, reason = access(world, first, WRITE, window.rkey, address + PAGE, 100)
        assert status == ACCESS_ERR and "not mapped writable" in reason


@pytest.mark.parametrize("buffer", [SIZE, bytearray(SIZE)])
def test_memory_that_cannot_go_away_is_not_looked_at(build: Any, buffer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    world = build()
    first, _ = world.pair()
    monkeypatch.setattr(_buffers, "populate", lambda *_: pytest.fail("asked"))
    region = MR(world.b.pd, buffer, EVERY)
    assert access(world, first, WRITE, region.rkey, region.buf, SIZE)[0] == OK


def test_hints_change_nothing(world: World) -> None:
    first, _ = world.pair()
    region = MR(world.b.pd, SIZE, ALL | e.IBV_ACCESS_RELAXED_ORDERING)
    world.a.memory[:] = data = pattern(SIZE)
    assert access(world, first, WRITE, region.rkey, region.buf, SIZE)[0] == OK
    assert region.read(SIZE, 0) == data


# -- advice


def resident(pages: Pages) -> int:
    """How many of the pages have memory behind them."""
    import ctypes

    found = (ctypes.c_ubyte * 4)()
    assert ctypes.CDLL(None).mincore(ctypes.c_void_p(pages.address), ctypes.c_size_t(4 * PAGE), found) == 0
    return sum(each & 1 for each in found)


@pytest.mark.parametrize("flags", [0, FLUSH])
@pytest.mark.parametrize("advice", [PREFETCH, PREFETCH_WRITE, NO_FAULT])
def test_advice_pages_in(build: Any, advice: int, flags: int) -> None:
    world = build()
    pages = Pages()
    region = MR(world.a.pd, 4 * PAGE, EVERY, address=pages.address)
    everything = MR(world.a.pd, 0, EVERY, implicit=True)
    for mr in (region, everything):
        assert world.a.pd.advise_mr(advice, flags, [SGE(pages.address + 1, 3 * PAGE, mr.lkey)]) == 0
    if advice == PREFETCH_WRITE and _buffers._can_populate():
        assert resident(pages) == 4
    assert pages.map[:] == bytes(4 * PAGE)


def test_advice_that_is_refused(build: Any) -> None:
    world = build()
    pd, pages = world.a.pd, Pages()
    region = MR(pd, 4 * PAGE, EVERY, address=pages.address)
    constant = MR(pd, 4 * PAGE, ON_DEMAND, address=pages.address)
    foreign = MR(PD(world.a.context), 4 * PAGE, EVERY, address=pages.address)
    window = MW(pd, e.IBV_MW_TYPE_1)
    good = SGE(pages.address, PAGE, region.lkey)
    past = region.lkey ^ 1

    def on(key: int, at: int = pages.address, length: int = PAGE) -> list[SGE]:
        return [good, SGE(at, length, key)]

    cases: list[tuple[int, int, int, Any]] = [
        (errno.EOPNOTSUPP, 3, 0, [good]),
        (errno.EINVAL, PREFETCH, 2, [good]),
        (errno.EINVAL, PREFETCH, 0, []),
        (errno.EINVAL, PREFETCH, 0, None),
        (errno.EINVAL, PREFETCH, 0, ["x"]),
        (errno.EINVAL, PREFETCH, 0, on(world.a.mr.lkey, world.a.mr.buf)),
        (errno.EINVAL, PREFETCH, 0, on(window.rkey)),
        (errno.EFAULT, PREFETCH, 0, on(0xBAD00)),
        (errno.EFAULT, PREFETCH, 0, on(0)),
        (errno.ENOENT, PREFETCH, 0, on(past)),
        (errno.EPERM, PREFETCH, 0, on(foreign.lkey)),
        (errno.EPERM, PREFETCH_WRITE, 0, on(constant.lkey)),
        (errno.EFAULT, PREFETCH, 0, on(region.lkey, pages.address - 1)),
        (errno.EFAULT, PREFETCH, 0, on(region.lkey, pages.address, 4 * PAGE + 1)),
    ]
    for code, advice, flags, sg_list in cases:
        assert "Failed to advise MR" in refused(code, pd.advise_mr, advice, flags, sg_list)
    assert pd.advise_mr(PREFETCH, FLUSH, on(constant.lkey)) == 0
    assert verbs.ibv_advise_mr(pd, PREFETCH, FLUSH, [good, None], 1) == 0
    assert verbs.ibv_advise_mr(pd, PREFETCH, FLUSH, [good], 2) == errno.EINVAL
    pages.drop()
    assert pd.advise_mr(PREFETCH, 0, [good]) == 0  # nobody waits for the answer
    assert "not mapped" in refused(errno.EFAULT, pd.advise_mr, PREFETCH, FLUSH, [good])


@pytest.mark.usefixtures("look")
def test_the_look_itself() -> None:
    pages, constant = Pages(), Pages(prot=mmap.PROT_READ)
    assert _buffers.populate(pages.address + 5, 4 * PAGE - 5, True)
    assert _buffers.populate(constant.address, 1, False)
    assert not _buffers.populate(constant.address, 1, True)
    assert not _buffers.populate(0, 1, False)
    assert not _buffers.populate(2**64 - 1, 2, False)
    assert not _buffers.populate(1 << 62, 8, False)
    gone = pages.address
    pages.drop()
    assert not _buffers.populate(gone, 4 * PAGE, False)
