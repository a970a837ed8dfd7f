# SPDX-License-Identifier: MIT
"""Memory windows of both types, bound and closed by work, seen from the peer (ibv_alloc_mw(3), ibv_bind_mw(3))."""

import errno
from typing import Any

import pytest
from tests.pyverbs.world import REMOTE, SIGNALED, SIZE, Side, World, pattern, refused, set_state

from softverbs.pyverbs import libibverbs_enums as e
from softverbs.pyverbs.base import inc_rkey
from softverbs.pyverbs.mr import MR, MW, MWBind, MWBindInfo, NullMR, mwtype2str
from softverbs.pyverbs.pd import PD
from softverbs.pyverbs.pyverbs_error import PyverbsRDMAError
from softverbs.pyverbs.qp import QP, QPCap, QPInitAttr
from softverbs.pyverbs.wr import SGE, SendWR

OK, FLUSHED = e.IBV_WC_SUCCESS, e.IBV_WC_WR_FLUSH_ERR
BIND_ERR, ACCESS_ERR, INVALID_REQUEST = e.IBV_WC_MW_BIND_ERR, e.IBV_WC_REM_ACCESS_ERR, e.IBV_WC_REM_INV_REQ_ERR
READ, WRITE, ADD = e.IBV_WR_RDMA_READ, e.IBV_WR_RDMA_WRITE, e.IBV_WR_ATOMIC_FETCH_AND_ADD
LOCAL, BINDABLE = e.IBV_ACCESS_LOCAL_WRITE, e.IBV_ACCESS_MW_BIND
CAN_READ, CAN_WRITE = e.IBV_ACCESS_REMOTE_READ, e.IBV_ACCESS_REMOTE_WRITE
ZERO_BASED = e.IBV_ACCESS_ZERO_BASED
TYPES = pytest.mark.parametrize("kind", [e.IBV_MW_TYPE_1, e.IBV_MW_TYPE_2])


def bind(
    side: Side,
    qp: QP,
    window: MW,
    offset: int = 4096,
    length: int = 64,
    rights: int = REMOTE,
    mr: Any = None,
    wr_id: int = 7,
    flags: int = SIGNALED,
) -> int:
    """Posts a bind, in the way of the window's type; the key that the window will have."""
    mr = mr or side.mr
    info = MWBindInfo(mr, mr.iova + offset, length, rights)
    if window.type == e.IBV_MW_TYPE_1:
        qp.bind_mw(window, MWBind(info, flags, wr_id))
        return window.rkey
    wr = SendWR(wr_id, e.IBV_WR_BIND_MW, send_flags=flags)
    wr.set_bind_wr(window, info)
    qp.post_send(wr)
    return wr.rkey


def bound(world: World, qp: QP, window: MW, **how: Any) -> int:
    """Binds a window of side ``b`` and waits for it."""
    key = bind(world.b, qp, window, **how)
    world.settle()
    assert world.b.done() == [(7, OK)]
    assert window.rkey == key
    return key


def attempt(world: World, qp: QP, opcode: int, key: int, at: int = 4096, length: int = 8) -> tuple[int, str]:
    """An access of side ``a``: its status, and the reason where it failed."""
    qp.post_send(world.a.wr(opcode, 1, length, 0, at, key=key))
    world.settle()
    (wc,) = world.a.poll()
    return wc.status, wc.reason


@TYPES
def test_a_window_opens_its_range_with_its_rights(world: World, kind: int) -> None:
    """The region itself gives peers no right at all: what they may do is the window's to say."""
    first, second = world.pair()
    memory = bytearray(SIZE)
    region = MR(world.b.pd, memory, LOCAL | BINDABLE)
    with MW(world.b.pd, kind) as window:
        assert (window.type, mwtype2str(window.type)) == (kind, f"IBV_MW_TYPE_{kind}")
        before = window.rkey
        key = bound(world, second, window, mr=region)
        assert key == inc_rkey(before) != before
        assert "MW Type" in str(window) and str(key) in str(window)
        data = pattern(64)
        world.a.memory[:64] = data
        write = world.a.wr(WRITE, 1, 64, 0)
        write.set_wr_rdma(key, region.buf + 4096)
        read = world.a.wr(READ, 2, 64, 1024)
        read.set_wr_rdma(key, region.buf + 4096)
        write.next_wr = read
        first.post_send(write)
        world.settle()
        assert world.a.done() == [(1, OK), (2, OK)]
        assert memory[4096:4160] == data == world.a.memory[1024:1088]
        assert memory[4160:4168] == bytes(8)
        region_key = world.a.wr(WRITE, 3)
        region_key.set_wr_rdma(region.rkey, region.buf + 4096)
        first.post_send(region_key)
        world.settle()
        (wc,) = world.a.poll()
        assert wc.status == ACCESS_ERR and "lacks the right REMOTE_WRITE" in wc.reason


@TYPES
@pytest.mark.parametrize(
    ("at", "length"), [(4095, 8), (4096 + 57, 8), (4096, 65), (0, 8), (SIZE - 8, 8), (4096 + 64, 1)]
)
def test_outside_of_the_window(world: World, kind: int, at: int, length: int) -> None:
    first, second = world.pair()
    with MW(world.b.pd, kind) as window:
        key = bound(world, second, window)
        status, reason = attempt(world, first, WRITE, key, at, length)
        assert status == ACCESS_ERR
        low = world.b.mr.buf + 4096
        assert f"key {key:#x}" in reason and f"[{low:#x}, {low + 64:#x})" in reason
        assert world.b.memory == bytes(SIZE)


@TYPES
@pytest.mark.parametrize(("opcode", "rights"), [(WRITE, CAN_READ), (READ, CAN_WRITE), (ADD, CAN_READ | CAN_WRITE)])
def test_a_right_that_the_window_does_not_give(world: World, kind: int, opcode: int, rights: int) -> None:
    first, second = world.pair()
    with MW(world.b.pd, kind) as window:
        key = bound(world, second, window, rights=rights)
        status, reason = attempt(world, first, opcode, key)
        assert status == ACCESS_ERR and "lacks the right" in reason


@TYPES
def test_a_zero_based_window_needs_the_flag(world: World, kind: int) -> None:
    first, second = world.pair()
    with MW(world.b.pd, kind) as window:
        key = bound(world, second, window, rights=CAN_WRITE | ZERO_BASED)
        world.a.memory[:8] = b"zerobase"
        wr = world.a.wr(WRITE)
        wr.set_wr_rdma(key, 16)
        first.post_send(wr)
        world.settle()
        assert world.a.done() == [(1, OK)]
        assert world.b.memory[4096 + 16 : 4096 + 24] == b"zerobase"
        status, _ = attempt(world, first, WRITE, key)  # by its address in the region
        assert status == ACCESS_ERR


def test_a_window_of_type_1_is_bound_again_at_will_and_its_old_key_is_worthless(world: World) -> None:
    first, second = world.pair()
    with MW(world.b.pd, e.IBV_MW_TYPE_1) as window:
        keys = [bind(world.b, second, window, 4096 * (turn + 1), wr_id=turn) for turn in range(5)]
        assert len({*keys}) == 5 and len({key >> 8 for key in keys}) == 1
        world.settle()
        assert world.b.done() == [(turn, OK) for turn in range(5)]
        assert attempt(world, first, WRITE, keys[-1], 4096 * 5)[0] == OK
        status, reason = attempt(world, first, WRITE, keys[-2], 4096 * 4)
        assert status == ACCESS_ERR and f"key {keys[-2]:#x} is not registered" in reason


def test_a_bind_of_0_bytes_ends_the_binding_of_type_1(world: World) -> None:
    first, second = world.pair()
    region = MR(world.b.pd, SIZE, LOCAL | BINDABLE)
    with MW(world.b.pd, e.IBV_MW_TYPE_1) as window:
        bound(world, second, window, mr=region)
        assert "1 memory windows are bound" in refused(errno.EBUSY, region.close)
        key = bound(world, second, window, mr=region, length=0, rights=0)
        region.close()
        status, reason = attempt(world, first, WRITE, key)
        assert status == ACCESS_ERR and "not bound or was invalidated" in reason
        _, fourth = world.pair()
        bound(world, fourth, window, mr=MR(world.b.pd, SIZE, LOCAL | BINDABLE))


def test_a_window_of_type_1_serves_every_qp_of_its_domain_and_of_no_other(world: World) -> None:
    first, second = world.pair()
    third, fourth = world.pair()
    with MW(world.b.pd, e.IBV_MW_TYPE_1) as window:
        key = bound(world, second, window)
        assert attempt(world, first, WRITE, key)[0] == OK
        assert attempt(world, third, WRITE, key)[0] == OK
        stranger, _ = world.connect(world.a.qp(), world.b.qp(pd=PD(world.b.context)))
        status, reason = attempt(world, stranger, WRITE, key)
        assert status == ACCESS_ERR and "belongs to protection domain" in reason
    assert fourth.qp_state == e.IBV_QPS_RTS


def test_a_window_of_type_2_serves_the_qp_that_bound_it(world: World) -> None:
    first, second = world.pair()
    third, _ = world.pair()
    with MW(world.b.pd, e.IBV_MW_TYPE_2) as window:
        key = bound(world, second, window)
        assert attempt(world, first, WRITE, key)[0] == OK
        status, reason = attempt(world, third, WRITE, key)
        assert status == ACCESS_ERR and f"bound to QP {second.qp_num:#x}" in reason


def test_a_window_of_type_2_is_bound_once(world: World) -> None:
    _, second = world.pair()
    with MW(world.b.pd, e.IBV_MW_TYPE_2) as window:
        bound(world, second, window)
        bind(world.b, second, window, wr_id=9)
        world.settle()
        (wc,) = world.b.poll()
        assert (wc.wr_id, wc.status) == (9, BIND_ERR) and "bound already" in wc.reason
        assert second.qp_state == e.IBV_QPS_ERR


def test_local_invalidate_ends_type_2_and_it_can_be_bound_again_in_one_go(world: World) -> None:
    first, second = world.pair()
    with MW(world.b.pd, e.IBV_MW_TYPE_2) as window:
        key = bound(world, second, window)
        invalidate = SendWR(8, e.IBV_WR_LOCAL_INV, imm_data=key)
        info = MWBindInfo(world.b.mr, world.b.mr.buf, 64, REMOTE)
        again = SendWR(9, e.IBV_WR_BIND_MW)
        again.set_bind_wr(window, info)
        invalidate.next_wr = again
        second.post_send(invalidate)
        world.settle()
        assert world.b.done() == [(8, OK), (9, OK)]
        assert attempt(world, first, WRITE, again.rkey, 0)[0] == OK
        status, reason = attempt(world, first, WRITE, key)
        assert status == ACCESS_ERR and "is not registered" in reason


def test_send_with_invalidate_ends_type_2(world: World) -> None:
    first, second = world.pair()
    with MW(world.b.pd, e.IBV_MW_TYPE_2) as window:
        key = bound(world, second, window)
        world.b.post_recv(second, 5)
        first.post_send(world.a.wr(e.IBV_WR_SEND_WITH_INV, imm=key))
        world.settle()
        assert world.a.done() == [(1, OK)]
        (wc,) = world.b.poll()
        assert (wc.wr_id, wc.status, wc.imm_data) == (5, OK, key) and wc.wc_flags & e.IBV_WC_WITH_INV
        status, reason = attempt(world, first, WRITE, key)
        assert status == ACCESS_ERR and "not bound or was invalidated" in reason


@pytest.mark.parametrize("case", ["type 1", "region", "nothing", "another QP's"])
def test_what_cannot_be_invalidated(world: World, case: str) -> None:
    first, second = world.pair()
    third, fourth = world.pair()
    windows = MW(world.b.pd, e.IBV_MW_TYPE_1), MW(world.b.pd, e.IBV_MW_TYPE_2)
    keys = {
        "type 1": bound(world, second, windows[0]),
        "region": world.b.mr.rkey,
        "nothing": 0xBAD00,
        "another QP's": bound(world, fourth, windows[1]),
    }
    world.b.post_recv(second, 5)
    first.post_send(world.a.wr(e.IBV_WR_SEND_WITH_INV, imm=keys[case]))
    world.settle()
    (wc,) = world.a.poll()
    assert wc.status == INVALID_REQUEST and f"{keys[case]:#x}" in wc.reason
    assert attempt(world, third, WRITE, keys["another QP's"])[0] == OK
    fourth.post_send(SendWR(8, e.IBV_WR_LOCAL_INV, imm_data=keys[case]))
    world.settle()
    status = world.b.done()[-1]
    assert status == ((8, OK) if case == "another QP's" else (8, BIND_ERR))


def refusals(side: Side) -> dict[str, tuple[str, dict[str, Any]]]:
    """What a bind is refused for: words of the reason, arguments."""
    plain = MR(side.pd, SIZE, LOCAL)
    read_only = MR(side.pd, SIZE, BINDABLE)
    foreign = MR(PD(side.context), SIZE, LOCAL | BINDABLE)
    return {
        "no MW_BIND": ("lacks the right MW_BIND", {"mr": plain}),
        "write without LOCAL_WRITE": ("lacks LOCAL_WRITE", {"mr": read_only, "rights": CAN_WRITE}),
        "atomic without LOCAL_WRITE": ("lacks LOCAL_WRITE", {"mr": read_only, "rights": e.IBV_ACCESS_REMOTE_ATOMIC}),
        "another domain": ("different protection domains", {"mr": foreign}),
        "before the region": ("not inside the memory region", {"offset": -1}),
        "past its end": ("not inside the memory region", {"offset": SIZE - 63}),
        "longer than the region": ("not inside the memory region", {"offset": 0, "length": 2**64 - 1}),
        "rights of no window": ("none of a memory window", {"rights": CAN_READ | BINDABLE}),
    }


@TYPES
@pytest.mark.parametrize(
    "case",
    [
        "no MW_BIND", "write without LOCAL_WRITE", "atomic without LOCAL_WRITE", "another domain", "before the region",
        "past its end", "longer than the region", "rights of no window",
    ],
)  # fmt: skip
def test_a_bind_that_is_refused(build: Any, kind: int, case: str) -> None:
    world = build()
    _, second = world.pair()
    words, how = refusals(world.b)[case]
    with MW(world.b.pd, kind) as window:
        if kind == e.IBV_MW_TYPE_1 and case == "another domain":  # ibv_bind_mw says so at once
            refused(errno.EPERM, lambda: bind(world.b, second, window, **how))
            return
        bind(world.b, second, window, **how)
        bind(world.b, second, MW(world.b.pd, kind), wr_id=8)
        world.settle()
        one, two = world.b.poll()
        assert (one.wr_id, one.status, two.wr_id, two.status) == (7, BIND_ERR, 8, FLUSHED)
        assert words in one.reason
        assert second.qp_state == e.IBV_QPS_ERR


@TYPES
def test_reading_needs_no_local_write(world: World, kind: int) -> None:
    first, second = world.pair()
    region = MR(world.b.pd, b"only to be read " * 16, BINDABLE)
    with MW(world.b.pd, kind) as window:
        key = bound(world, second, window, mr=region, offset=0, length=16, rights=CAN_READ)
        wr = world.a.wr(READ, 1, 16)
        wr.set_wr_rdma(key, region.buf)
        first.post_send(wr)
        world.settle()
        assert world.a.done() == [(1, OK)]
        assert world.a.memory[:16] == b"only to be read "


@TYPES
def test_window_region_and_qp_are_of_one_domain(build: Any, kind: int) -> None:
    """IBA C10-72: the protection domain of the QP counts as well."""
    world = build()
    _, second = world.connect(world.a.qp(), world.b.qp(pd=PD(world.b.context)))
    with MW(world.b.pd, kind) as window:
        bind(world.b, second, window)
        world.settle()
        (wc,) = world.b.poll()
        assert wc.status == BIND_ERR and "belongs to protection domain" in wc.reason


def test_bind_mw_is_for_type_1(build: Any) -> None:
    world = build()
    _, second = world.pair()
    info = MWBindInfo(world.b.mr, world.b.mr.buf, 64, REMOTE)
    assert (info.addr, info.length, info.mw_access_flags) == (world.b.mr.buf, 64, REMOTE)
    assert "MWBindInfo" in str(info) and "Send flags" in str(MWBind(info, 2, 3))
    with MW(world.b.pd, e.IBV_MW_TYPE_2) as window:
        assert "type 2" in refused(errno.EINVAL, second.bind_mw, window, MWBind(info, SIGNALED))
    refused(errno.EINVAL, second.bind_mw, window, MWBind(info, SIGNALED))  # closed
    refused(errno.EINVAL, MW, world.b.pd, 3)
    refused(errno.EINVAL, MW, None, 1)
    refused(errno.EINVAL, MWBindInfo, None, 0, 0, 0)


def test_work_does_not_bind_type_1(world: World) -> None:
    with MW(world.b.pd, e.IBV_MW_TYPE_1) as window:
        info = MWBindInfo(world.b.mr, world.b.mr.buf + 4096, 64, REMOTE)
        assert "bind_mw binds those of type 1" in refused(
            errno.EINVAL, SendWR(7, e.IBV_WR_BIND_MW).set_bind_wr, window, info
        )


def test_a_null_region_has_no_windows(build: Any) -> None:
    world = build()
    _, second = world.pair()
    with NullMR(world.b.pd) as void, MW(world.b.pd, e.IBV_MW_TYPE_2) as window:
        bind(world.b, second, window, mr=void, offset=0)
        world.settle()
        (wc,) = world.b.poll()
        assert wc.status == BIND_ERR and "MW_BIND" in wc.reason
        info = MWBindInfo(void, 0, 64, REMOTE)
        refused(errno.EOPNOTSUPP, world.pair()[1].bind_mw, MW(world.b.pd, e.IBV_MW_TYPE_1), MWBind(info, SIGNALED))


def test_a_region_that_lost_its_memory_has_no_windows(build: Any) -> None:
    world = build()
    _, second = world.pair()
    region = MR(world.b.pd, SIZE, LOCAL | BINDABLE)
    refused(errno.EFAULT, region.rereg, e.IBV_REREG_MR_CHANGE_TRANSLATION, None, 4096, 8)
    with MW(world.b.pd, e.IBV_MW_TYPE_1) as window:
        bind(world.b, second, window, mr=region)
        world.settle()
        (wc,) = world.b.poll()
        assert wc.status == BIND_ERR and "a rereg_mr of it failed" in wc.reason


@TYPES
def test_the_key_of_a_window_is_no_lkey(world: World, kind: int) -> None:
    """Neither for what is sent nor for what is received, with all rights there are."""
    first, second = world.pair()
    with MW(world.b.pd, kind) as window:
        key = bound(world, second, window)
        second.post_send(SendWR(3, e.IBV_WR_SEND, 1, sg=[SGE(world.b.mr.buf + 4096, 2048, key)]))
        world.settle()
        (wc,) = world.b.poll()
        assert wc.status == e.IBV_WC_LOC_PROT_ERR and "no lkey" in wc.reason
        set_state(first, e.IBV_QPS_RESET)
        set_state(second, e.IBV_QPS_RESET)
        world.connect(first, second)
        world.b.poll()
        world.b.post_recv(second, 4, sg=[SGE(world.b.mr.buf + 4096, 64, key)])
        first.post_send(world.a.wr(e.IBV_WR_SEND))
        world.settle()
        assert world.b.poll()[0].status == e.IBV_WC_LOC_PROT_ERR


@TYPES
def test_closing_a_bound_window_closes_it_to_peers(world: World, kind: int) -> None:
    first, second = world.pair()
    region = MR(world.b.pd, SIZE, LOCAL | BINDABLE)
    window = MW(world.b.pd, kind)
    key = bound(world, second, window, mr=region)
    refused(errno.EBUSY, region.close)
    window.close()
    window.close()
    region.close()
    status, reason = attempt(world, first, WRITE, key)
    assert status == ACCESS_ERR and "is not registered" in reason
    with pytest.raises(PyverbsRDMAError, match="MW is closed"):
        _ = window.rkey


def test_a_domain_closes_its_windows_before_its_regions(build: Any) -> None:
    world = build()
    pd = PD(world.b.context)
    region = MR(pd, SIZE, LOCAL | BINDABLE)
    window = MW(pd, e.IBV_MW_TYPE_1)
    _, second = world.connect(world.a.qp(), world.b.qp(pd=pd))
    bind(world.b, second, window, mr=region)
    world.settle()
    refused(errno.EBUSY, pd._destroy)
    pd.close()
    assert region._core is None and window._core is None


def test_a_window_whose_region_was_never_there(build: Any) -> None:
    world = build()
    _, second = world.pair()
    region = MR(world.b.pd, SIZE, LOCAL | BINDABLE)
    info = MWBindInfo(region, region.buf, 64, REMOTE)
    region.close()
    with MW(world.b.pd, e.IBV_MW_TYPE_1) as one, MW(world.b.pd, e.IBV_MW_TYPE_2) as two:
        refused(errno.EINVAL, second.bind_mw, one, MWBind(info, SIGNALED))
        refused(errno.EINVAL, SendWR(1, e.IBV_WR_BIND_MW).set_bind_wr, two, info)
        refused(errno.EINVAL, second.post_send, SendWR(2, e.IBV_WR_BIND_MW))


def test_there_are_so_many_windows(build: Any) -> None:
    world = build(max_mw=1)
    with MW(world.b.pd, 1):
        assert "memory windows" in refused(errno.ENOMEM, MW, world.b.pd, 1)
    MW(world.b.pd, 2).close()


def test_a_window_outlives_its_qp(build: Any) -> None:
    world = build()
    _, second = world.pair()
    third, fourth = world.pair()
    region = MR(world.b.pd, SIZE, LOCAL | BINDABLE)
    window = MW(world.b.pd, e.IBV_MW_TYPE_2)
    key = bound(world, second, window, mr=region)
    second.close()
    assert attempt(world, third, WRITE, key)[0] == ACCESS_ERR
    refused(errno.EBUSY, region.close)
    _, sixth = world.pair()
    bind(world.b, sixth, window, mr=region)
    world.settle()
    (wc,) = world.b.poll()
    assert wc.status == BIND_ERR and "bound already" in wc.reason
    window.close()
    region.close()
    assert fourth.qp_state == e.IBV_QPS_ERR


@TYPES
def test_windows_over_an_unreliable_connection(build: Any, kind: int) -> None:
    """A write that the window does not permit is dropped without a word (IBA 9.8.3)."""
    world = build()
    ends = []
    for side in (world.a, world.b):
        init = QPInitAttr(e.IBV_QPT_UC, None, side.cq, side.cq, None, QPCap(max_send_wr=8, max_recv_wr=8), 0)
        ends.append(QP(side.pd, init))
    first, second = world.connect(*ends)
    with MW(world.b.pd, kind) as window:
        key = bound(world, second, window)
        world.a.memory[:8] = b"no reply"
        assert attempt(world, first, WRITE, key)[0] == OK
        assert world.b.memory[4096:4104] == b"no reply"
        for at in (4096 + 57, 0):
            assert attempt(world, first, WRITE, key, at)[0] == OK
        assert world.b.memory[:4096] == bytes(4096) and world.b.memory[4104:] == bytes(SIZE - 4104)


@TYPES
def test_binds_of_a_destroyed_window_or_region_that_are_posted_already(build: Any, kind: int) -> None:
    """The bind waits behind a READ that gets no answer; then the window goes."""
    world = build(wire=True)
    first, second = world.pair()
    world.wire.rule = lambda frame: [] if frame[0] == 0x0C else None
    second.post_send(world.b.wr(READ, 1, 8))
    window = MW(world.b.pd, kind)
    bind(world.b, second, window, wr_id=2)
    world.run()
    window.close()
    world.wire.rule = None
    world.settle()
    one, two = world.b.poll()
    assert (one.wr_id, one.status, two.wr_id, two.status) == (1, OK, 2, BIND_ERR)
    assert "gone" in two.reason
    assert first.qp_state == e.IBV_QPS_RTS
