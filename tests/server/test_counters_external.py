# SPDX-License-Identifier: MIT
"""Counters in the memory of programs: addresses that are none, memory that goes, programs that end."""

import ctypes
import errno
import mmap
import random
import time
from pathlib import Path

import pytest
from tests.server.client import WRITE, Client, Refused, Side
from tests.server.conftest import Served
from tests.server.test_hostile import Honest
from tests.server.test_processes import KILLS, Program

_libc = ctypes.CDLL(None, use_errno=True)
NOBODYS = 0x10000  # below what the kernel gives to a program
COUNTED = 32  # REMOTE_RDMA_WRITE


class Page:
    """Memory whose rights can change. It stays mapped, since this process is the device as well."""

    def __init__(self) -> None:
        self.map = mmap.mmap(-1, mmap.PAGESIZE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self.words = (ctypes.c_uint64 * 2).from_buffer(self.map)
        self.address = ctypes.addressof(self.words)

    def protect(self, rights: int) -> None:
        assert _libc.mprotect(ctypes.c_void_p(self.address), ctypes.c_size_t(mmap.PAGESIZE), rights) == 0


def refuse(client: Client, code: int, words: str, **values: int) -> None:
    with pytest.raises(Refused, match=words) as caught:
        client.call("CREATE_COMP_CNTR", **values)
    assert caught.value.code == code


@pytest.mark.parametrize(
    ("address", "code", "words"),
    [
        (0, errno.EINVAL, "must be a multiple of 8, and not 0"),
        (0x7FFF00000004, errno.EINVAL, "must be a multiple of 8"),
        (2**64 - 1, errno.EINVAL, "must be a multiple of 8"),
        (NOBODYS, errno.EFAULT, "cannot be written"),
        (2**47 - 8, errno.EFAULT, "cannot be written"),
        (2**47, errno.EFAULT, "cannot be written"),
        (2**48 - 8, errno.EFAULT, "cannot be written"),
        (2**48, errno.EFAULT, "no program has memory at"),
        (2**63, errno.EFAULT, "no program has memory at"),
        (0xFFFF888000000000, errno.EFAULT, "no program has memory at"),
        (2**64 - 8, errno.EFAULT, "no program has memory at"),
    ],
)
def test_addresses_that_are_none(served: Served, address: int, code: int, words: str) -> None:
    client, good = Client(served.path), Page()
    refuse(client, code, words, external=1, value_address=address)
    refuse(client, code, words, external=3, value_address=good.address, error_address=address)
    assert served.objects().get("completion counter", 0) == 0
    client.call("CREATE_COMP_CNTR", external=0, value_address=address, error_address=address)  # not looked at


def test_what_else_is_refused(served: Served) -> None:
    client, page = Client(served.path), Page()
    where = {"value_address": page.address, "error_address": page.address + 8}
    refuse(client, errno.EINVAL, "external=0x4: no bit above 0x3 is known", external=4, **where)
    refuse(client, errno.EINVAL, "flags=0x1", external=3, flags=1, **where)
    for rights in (mmap.PROT_READ, 0):
        page.protect(rights)
        refuse(client, errno.EFAULT, "the completion count: 8 bytes at", external=3, **where)
    page.protect(mmap.PROT_READ | mmap.PROT_WRITE)
    client.call("CREATE_COMP_CNTR", external=3, **where)


def test_random_addresses(served: Served) -> None:
    chance = random.Random(5)
    client, honest = Client(served.path), Honest(served.path)
    for _ in range(200):
        address = chance.getrandbits(chance.choice((12, 32, 47, 48, 63, 64))) | 1 << 46
        with pytest.raises(Refused) as caught:
            client.call("CREATE_COMP_CNTR", external=chance.choice((1, 3)), value_address=address & ~7 | address & 1)
        assert caught.value.code in (errno.EINVAL, errno.EFAULT)
    honest.finish()


def test_memory_that_goes_in_the_middle_of_traffic(served: Served) -> None:
    """The program's other completions, and its counter's page, go on."""
    honest, page = Honest(served.path), Page()
    left, right = Side(served.path), Side(served.path)
    where = {"value_address": page.address, "error_address": page.address + 8}
    counter = right.client.call("CREATE_COMP_CNTR", external=3, **where)["handle"]
    right.client.call("ATTACH_COMP_CNTR", qp=right.qp.handle, counter=counter, op_mask=COUNTED)
    left.connect(right)
    right.connect(left)
    for number in range(60):
        if number == 30:
            assert page.words[0] == 30
            page.protect(0)
        remote = {"remote": right.buffer.address, "rkey": right.buffer.rkey}
        left.qp.post_send(number, left.buffer.element(0, 100), opcode=WRITE, **remote)
        assert left.cq.wait()["status"] == 0
    page.protect(mmap.PROT_READ | mmap.PROT_WRITE)
    assert right.client.call("READ_COMP_CNTR", handle=counter) == {"value": 60, "errors": 0}
    assert page.words[0] == 30
    assert served.device.port.stats()["counts_lost"] == 1
    honest.finish()


def test_a_program_dies_with_a_counter_in_its_memory(served: Served) -> None:
    honest, side = Honest(served.path), Side(served.path)
    before = served.objects()
    for _ in range(KILLS):
        program = Program(served, side, "counted", timeout=8)
        remote = {"opcode": WRITE, "remote": program.address + 64, "rkey": program.rkey}
        for number in range(10):
            side.qp.post_send(number, side.buffer.element(0, 64), **remote)
        assert [side.cq.wait()["status"] for _ in range(10)] == [0] * 10
        with Path(f"/proc/{program.process.pid}/mem").open("rb", 0) as memory:
            memory.seek(program.address)
            # All is written before anybody's completion can be seen.
            assert memory.read(16) == (10).to_bytes(8, "little") + bytes(8)
        for number in range(12):
            side.qp.post_send(number, side.buffer.element(0, 64), **remote)
        program.kill()
        served.wait_for_objects(before)
        end = time.monotonic() + 10
        while side.qp.state() != 6 and time.monotonic() < end:
            if side.cq.poll() is None:
                side.qp.post_send(13, side.buffer.element(0, 64), **remote)
                side.cq.wait()
        while side.cq.poll() is not None:
            pass
        side.qp.modify(1, qp_state=0)
        side.qp.to_init()
    honest.finish()
