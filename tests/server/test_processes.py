# SPDX-License-Identifier: MIT
"""Programs in processes of their own: their memory is reached, and their death is tidied up."""

import gc
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.server.client import FETCH_ADD, READ, WRITE, Client, Side
from tests.server.conftest import Served

ROOT = Path(__file__).parents[2]
RETRY_EXC_ERR = 12
#: How often programs are killed: a hundred times shows more, and takes longer.
KILLS = int(os.environ.get("SOFTVERBS_KILLS", "3"))


class Program:
    """A child process with a QP that is connected to one of ours."""

    def __init__(self, served: Served, side: Side, work: str, timeout: int = 14) -> None:
        words = [sys.executable, "-m", "tests.server.program", served.path, work]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
        self.process = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        assert self.process.stdin is not None and self.process.stdout is not None
        gid, number, address, rkey, child = self.process.stdout.readline().split()
        self.child = int(child)
        self.address, self.rkey = int(address), int(rkey)
        line = f"{side.client.gid().hex()} {side.qp.number} {side.buffer.address} {side.buffer.rkey}"
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        side.qp.connect(bytes.fromhex(gid), int(number), timeout=timeout, retry=2)
        assert self.process.stdout.readline() == "connected\n"

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.close()
        self.process.stdout.close()

    def end_child(self) -> None:
        """Ends what it has left."""
        if self.child > 0:
            os.kill(self.child, signal.SIGKILL)


def test_memory_of_another_process(served: Served) -> None:
    side = Side(served.path)
    program = Program(served, side, "serve")
    side.qp.post_send(1, side.buffer.element(), opcode=READ, remote=program.address, rkey=program.rkey)
    assert side.cq.wait()["status"] == 0
    assert side.buffer.data.raw == bytes(range(256)) * 16
    side.buffer.data.raw = bytes(range(255, -1, -1)) * 16
    element = side.buffer.element(100, 2000)
    side.qp.post_send(2, element, opcode=WRITE, remote=program.address + 8, rkey=program.rkey)
    cell = side.buffer.element(0, 8)
    add = {"opcode": FETCH_ADD, "remote": program.address, "rkey": program.rkey, "compare_add": 5}
    side.qp.post_send(3, cell, **add)
    side.qp.post_send(4, cell, **add)
    assert [side.cq.wait()["status"] for _ in range(3)] == [0, 0, 0]
    assert int.from_bytes(side.buffer.data.raw[:8], "little") == int.from_bytes(bytes(range(8)), "little") + 5
    with Path(f"/proc/{program.process.pid}/mem").open("rb", 0) as memory:
        memory.seek(program.address + 8)
        assert memory.read(2000) == (bytes(range(255, -1, -1)) * 16)[100:2100]
    program.kill()


@pytest.mark.parametrize("work", ["traffic", "serve", "forked"])
def test_a_program_is_killed(served: Served, work: str) -> None:
    side, other = Side(served.path), Side(served.path)
    before = served.objects()
    has = used()
    for _ in range(KILLS):
        program = Program(served, side, work, timeout=8)
        time.sleep(0.05)
        program.kill()
        # What it has left goes, though a child of it may have its descriptors still.
        served.wait_for_objects(before)
        side.qp.post_send(7, side.buffer.element(), opcode=WRITE, remote=program.address, rkey=program.rkey)
        assert side.cq.wait()["status"] == RETRY_EXC_ERR
        side.qp.modify(1, qp_state=0)
        side.qp.to_init()
        program.end_child()
    assert used() == has
    other.client.gid()


def used() -> tuple[int, int]:
    """Descriptors of this process, and mappings that it shares with programs."""
    gc.collect()
    with open("/proc/self/maps") as rows:
        return len(os.listdir("/proc/self/fd")), sum("memfd:softverbs" in row for row in rows)


def test_nothing_is_left_of_one_whose_memory_was_written(served: Served) -> None:
    left = Side(served.path, size=65536)
    left.client.gid()
    objects, before = served.objects(), used()
    right = Side(served.path, size=65536)
    left.connect(right)
    right.connect(left)
    left.qp.post_send(1, left.buffer.element(), opcode=WRITE, remote=right.buffer.address, rkey=right.buffer.rkey)
    assert left.cq.wait()["status"] == 0
    right.client.close()
    del right
    served.wait_for_objects(objects)
    left.client.gid()  # so the server is through with it
    assert used() == before


def test_nothing_is_left_of_many_that_were_killed(served: Served) -> None:
    Client(served.path).close()
    served.wait_for_nobody()
    before = used()
    script = "import sys, os; from tests.server.client import pair; pair(sys.argv[1]); os.kill(os.getpid(), 9)"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
    for _ in range(KILLS):
        assert subprocess.run([sys.executable, "-c", script, served.path], env=environment).returncode == -9
    served.wait_for_nobody()
    assert used() == before
