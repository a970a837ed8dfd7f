# SPDX-License-Identifier: MIT
"""Memory regions that are changed in place (ibv_rereg_mr(3)): what changes, what stays, and what a failure leaves."""

import ctypes
import errno
import mmap
from typing import Any

import pytest
from tests.pyverbs.world import ALL, REMOTE, SIZE, World, pattern, refused

from softverbs import verbs
from softverbs.pyverbs import libibverbs_enums as e
from softverbs.pyverbs.mr import MR, MW, MWBind, MWBindInfo
from softverbs.pyverbs.pd import PD
from softverbs.pyverbs.qp import QP
from softverbs.pyverbs.wr import SGE, SendWR

OK, ACCESS_ERR = e.IBV_WC_SUCCESS, e.IBV_WC_REM_ACCESS_ERR
READ, WRITE, ADD = e.IBV_WR_RDMA_READ, e.IBV_WR_RDMA_WRITE, e.IBV_WR_ATOMIC_FETCH_AND_ADD
LOCAL = e.IBV_ACCESS_LOCAL_WRITE
TRANSLATION, DOMAIN, ACCESS = (
    e.IBV_REREG_MR_CHANGE_TRANSLATION, e.IBV_REREG_MR_CHANGE_PD, e.IBV_REREG_MR_CHANGE_ACCESS,
)  # fmt: skip
INPUT, COMMAND = e.IBV_REREG_MR_ERR_INPUT, e.IBV_REREG_MR_ERR_CMD


class Memory:
    """Mapped memory of this process, by address."""

    def __init__(self, length: int = SIZE, prot: int = mmap.PROT_READ | mmap.PROT_WRITE) -> None:
        self.map = mmap.mmap(-1, length, prot=prot)
        self.address = MR_address(self.map) if prot & mmap.PROT_WRITE else _read_only_address(self.map)

    def __getitem__(self, where: slice) -> bytes:
        return self.map[where]


def MR_address(buffer: Any) -> int:
    view = (ctypes.c_char * 1).from_buffer(buffer)
    address = ctypes.addressof(view)
    del view
    return address


def _read_only_address(buffer: Any) -> int:
    from softverbs.pyverbs._buffers import address_of

    with memoryview(buffer) as view:
        return address_of(view)


def access(world: World, qp: QP, opcode: int, region: MR, at: int, length: int = 8) -> tuple[int, str]:
    """An access of side ``a``; its status, and the reason where it failed."""
    wr = world.a.wr(opcode, 1, length, key=region.rkey)
    if opcode == ADD:
        wr.set_wr_atomic(region.rkey, at, 1)
    else:
        wr.set_wr_rdma(region.rkey, at)
    qp.post_send(wr)
    world.settle()
    (wc,) = world.a.poll()
    return wc.status, wc.reason


def test_access(world: World) -> None:
    """As mlx5: the keys stay, so the peer need not know."""
    first, _ = world.pair()
    third, _ = world.pair()
    region = MR(world.b.pd, SIZE, LOCAL | e.IBV_ACCESS_REMOTE_WRITE)
    keys = region.lkey, region.rkey
    assert access(world, first, WRITE, region, region.buf)[0] == OK
    region.rereg(ACCESS, access=LOCAL | e.IBV_ACCESS_REMOTE_READ)
    assert region.rereg_error == 0
    assert (region.lkey, region.rkey) == keys
    assert access(world, first, READ, region, region.buf)[0] == OK
    status, reason = access(world, first, WRITE, region, region.buf)
    assert status == ACCESS_ERR and "lacks the right REMOTE_WRITE" in reason
    region.rereg(ACCESS, access=LOCAL | REMOTE)
    assert access(world, third, ADD, region, region.buf)[0] == OK


def test_domain(world: World) -> None:
    first, _ = world.pair()
    other = PD(world.b.context)
    third, fourth = world.connect(world.a.qp(), world.b.qp(pd=other))
    region = MR(world.b.pd, SIZE, ALL)
    region.rereg(DOMAIN, other)
    assert access(world, third, WRITE, region, region.buf)[0] == OK
    status, reason = access(world, first, WRITE, region, region.buf)
    assert status == ACCESS_ERR and "protection domain" in reason
    fourth.close()
    assert "regions or windows" in refused(errno.EBUSY, other._destroy)
    region.rereg(DOMAIN, world.b.pd)
    other._destroy()
    region.rereg(DOMAIN, world.b.pd)  # to where it is
    region.close()


def test_a_domain_closes_what_came_to_it(build: Any) -> None:
    world = build()
    other = PD(world.b.context)
    region = MR(world.b.pd, SIZE, ALL)
    region.rereg(DOMAIN, other)
    other.close()
    assert region._core is None


def test_translation(world: World) -> None:
    first, _ = world.pair()
    region = MR(world.b.pd, 4096, ALL)
    old, memory = region.buf, Memory()
    region.rereg(TRANSLATION, addr=memory.address, length=SIZE)
    assert (region.buf, region.length, region.iova) == (memory.address, SIZE, memory.address)
    world.a.memory[:SIZE] = data = pattern(SIZE)
    assert access(world, first, WRITE, region, memory.address, SIZE)[0] == OK
    assert memory[0:SIZE] == data == region.read(SIZE, 0)
    status, reason = access(world, first, WRITE, region, old)
    assert status == ACCESS_ERR and f"[{memory.address:#x}, {memory.address + SIZE:#x})" in reason


def test_all_three_at_once(world: World) -> None:
    other = PD(world.b.context)
    third, _ = world.connect(world.a.qp(), world.b.qp(pd=other))
    region, memory = MR(world.b.pd, bytearray(64), LOCAL), Memory()
    zero_based = LOCAL | REMOTE | e.IBV_ACCESS_ZERO_BASED
    region.rereg(TRANSLATION | DOMAIN | ACCESS, other, memory.address, SIZE, zero_based)
    assert region.iova == 0
    assert access(world, third, WRITE, region, SIZE - 8)[0] == OK
    region.rereg(ACCESS, access=LOCAL | REMOTE)
    assert region.iova == memory.address
    assert access(world, third, WRITE, region, memory.address)[0] == OK
    region.close()
    other.close()


def test_a_buffer_is_let_go_when_the_memory_changes(build: Any) -> None:
    world = build()
    buffer, memory = bytearray(64), Memory()
    region = MR(world.b.pd, buffer, LOCAL)
    with pytest.raises(BufferError):
        buffer.append(0)
    region.rereg(TRANSLATION, addr=memory.address, length=64)
    buffer.append(0)
    region.write("text", 4)
    assert memory[0:4] == b"text"


@pytest.mark.parametrize(
    ("flags", "how"),
    [
        (0, {}),
        (8, {}),
        (TRANSLATION | 16, {"addr": 4096, "length": 8}),
        (TRANSLATION, {"addr": 4096}),
        (TRANSLATION, {"length": 4096}),
        (TRANSLATION, {"addr": -1, "length": 8}),
        (DOMAIN, {"access": LOCAL}),
        (DOMAIN, {}),
        (DOMAIN, {"pd": "x"}),
    ],
)
def test_input_errors_leave_the_region_as_it_was(world: World, flags: int, how: dict[str, Any]) -> None:
    first, _ = world.pair()
    region = world.b.mr
    assert "IBV_REREG_MR_ERR_INPUT" in refused(errno.EINVAL, lambda: region.rereg(flags, **how))
    assert region.rereg_error == INPUT
    assert access(world, first, WRITE, region, region.buf)[0] == OK


def test_domains_of_others(build: Any) -> None:
    world = build()
    for other in (world.a.pd, PD(type(world.b.context)(device=world.devices[1]))):
        assert "another context" in refused(errno.EINVAL, world.b.mr.rereg, DOMAIN, other)
    closed = PD(world.b.context)
    closed.close()
    refused(errno.EINVAL, world.b.mr.rereg, DOMAIN, closed)
    assert world.b.mr.rereg_error == INPUT


def test_not_while_windows_are_bound(world: World) -> None:
    first, second = world.pair()
    region = MR(world.b.pd, SIZE, ALL)
    with MW(world.b.pd, e.IBV_MW_TYPE_1) as window:
        second.bind_mw(window, MWBind(MWBindInfo(region, region.buf, 64, REMOTE), 0))
        world.settle()
        assert "1 memory windows" in refused(errno.EBUSY, region.rereg, ACCESS, None, 0, 0, LOCAL)
        assert region.rereg_error == INPUT
        assert access(world, first, WRITE, region, region.buf)[0] == OK
    region.rereg(ACCESS, access=LOCAL)


def unmapped() -> int:
    memory = Memory()
    memory.map.close()
    return memory.address


def commands() -> dict[str, tuple[int, int, dict[str, Any]]]:
    """What only the device can see: errno, flags, arguments."""
    constant = Memory(prot=mmap.PROT_READ)
    return {
        "not mapped": (errno.EFAULT, TRANSLATION, {"addr": unmapped(), "length": 8}),
        "read-only": (errno.EFAULT, TRANSLATION, {"addr": constant.address, "length": 8, "keep": constant}),
        "past 2^64": (errno.EFAULT, TRANSLATION, {"addr": 2**64 - 8, "length": 16}),
        "remote without local": (errno.EINVAL, ACCESS, {"access": e.IBV_ACCESS_REMOTE_WRITE}),
        "unknown bits": (errno.EINVAL, ACCESS, {"access": 1 << 15}),
    }


@pytest.mark.parametrize("case", ["not mapped", "read-only", "past 2^64", "remote without local", "unknown bits"])
def test_after_a_command_error_the_region_can_only_be_closed(world: World, case: str) -> None:
    first, second = world.pair()
    code, flags, how = commands()[case]
    kept = how.pop("keep", None)
    region = MR(world.b.pd, SIZE, ALL)
    assert "IBV_REREG_MR_ERR_CMD" in refused(code, lambda: region.rereg(flags, **how))
    assert region.rereg_error == COMMAND
    status, reason = access(world, first, WRITE, region, region.buf)
    assert status == ACCESS_ERR and "a rereg_mr of it failed" in reason
    refused(errno.EINVAL, region.rereg, ACCESS, None, 0, 0, LOCAL)
    assert region.rereg_error == INPUT
    users = world.b.pd._core.users
    region.close()
    assert world.b.pd._core.users == users - 1
    assert second.qp_state == e.IBV_QPS_ERR and (kept is None or kept.address)


def test_read_only_buffers_are_not_opened_for_writing(build: Any) -> None:
    world = build()
    region = MR(world.b.pd, b"constant", 0)
    refused(errno.EFAULT, region.rereg, ACCESS, None, 0, 0, LOCAL)


def test_a_receive_that_is_posted_to_memory_that_went(world: World) -> None:
    first, second = world.pair()
    region, memory = MR(world.b.pd, SIZE, LOCAL), Memory()
    world.b.post_recv(second, 2, sg=[SGE(region.buf, 64, region.lkey)])
    region.rereg(TRANSLATION, addr=memory.address, length=SIZE)
    first.post_send(world.a.wr(e.IBV_WR_SEND))
    world.settle()
    assert world.a.done() == [(1, e.IBV_WC_REM_OP_ERR)]
    assert world.b.done() == [(2, e.IBV_WC_LOC_PROT_ERR)]
    assert memory[0:64] == bytes(64)


def test_in_the_middle_of_a_message(build: Any) -> None:
    """What is left of it is not written, neither to the old place nor to the new one."""
    world = build(wire=True)
    first, second = world.pair(timeout=0)
    region, memory = MR(world.b.pd, SIZE, ALL), Memory()
    seen = 0

    def rule(frame: bytes) -> None:
        nonlocal seen
        seen += frame[0] in (0x06, 0x07, 0x08)
        if seen == 3 and region.buf != memory.address:
            region.rereg(TRANSLATION, addr=memory.address, length=SIZE)

    world.wire.rule = rule
    world.a.memory[:8192] = pattern(8192)
    status, _ = access(world, first, WRITE, region, region.buf, 8192)
    assert status == ACCESS_ERR
    assert memory[0:SIZE] == bytes(SIZE)
    assert second.qp_state == e.IBV_QPS_ERR


def test_the_function_of_the_manual_page(build: Any) -> None:
    world = build()
    region, memory = world.b.mr, Memory()
    assert verbs.ibv_rereg_mr(region, TRANSLATION, None, memory.address, SIZE, 0) == 0
    assert region.buf == memory.address
    assert verbs.ibv_rereg_mr(region, 0, None, 0, 0, 0) == INPUT
    assert ctypes.get_errno() == errno.EINVAL
    assert verbs.ibv_rereg_mr(region, TRANSLATION, None, unmapped(), 8, 0) == COMMAND
    assert ctypes.get_errno() == errno.EFAULT
    assert verbs.ibv_rereg_mr(None, 0, None, 0, 0, 0) == INPUT
    assert verbs.ibv_dereg_mr(region) == 0
    assert verbs.ibv_rereg_mr(region, ACCESS, None, 0, 0, LOCAL) < 0


def test_the_second_name_is_the_same_region(build: Any) -> None:
    """A send whose element is of the region, before and after."""
    world = build()
    first, second = world.pair()
    region = MR(world.a.pd, 4096, LOCAL)
    region.write("old!", 4)
    memory = Memory()
    memory.map[:4] = b"new!"
    for expected in (b"old!", b"new!"):
        world.b.post_recv(second, 2)
        first.post_send(SendWR(1, e.IBV_WR_SEND, 1, sg=[SGE(region.buf, 4, region.lkey)]))
        world.settle()
        assert world.b.done() == [(2, OK)] and world.b.memory[:4] == expected
        region.rereg(TRANSLATION, addr=memory.address, length=4096)
