# SPDX-License-Identifier: MIT
"""A session is of one address space, one process and one user: who else has the number, or the socket, gets nothing."""

import ctypes
import errno
import os
import shutil
import signal
import subprocess
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from multiprocessing import Pipe
from pathlib import Path
from typing import Any

import pytest
from tests.driver import CC
from tests.foreign import PAGE, Child
from tests.guard import Guard
from tests.server.client import FETCH_ADD, READ, WRITE, Client, Connection, Gone, Refused, Side
from tests.server.conftest import Served

from softverbs.core.base.errors import PyverbsRDMAError
from softverbs.core.memory import spaces
from softverbs.core.memory.raw import Block, view
from softverbs.device import Device
from softverbs.server import abi
from softverbs.server._memory import open_reader

#: Where a program and the one that takes its place both have memory.
AT = 0x2000_0000_0000
REM_ACCESS_ERR = 10
NOBODY = 65534
ROUNDS = int(os.environ.get("SOFTVERBS_EXECS", "150"))
_SET_DUMPABLE = 4
_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be another user")


@pytest.fixture(scope="module")
def replaced() -> Iterator[Path]:
    """The program of replaced.c, where every user may execute it."""
    if shutil.which(CC.split()[0]) is None:
        pytest.skip("a C compiler is needed")
    folder = Path(tempfile.mkdtemp(prefix="softverbs-"))
    folder.chmod(0o755)
    subprocess.run([*CC.split(), "-O1", str(Path(__file__).with_name("replaced.c")), "-o", folder / "it"], check=True)
    yield folder / "it"
    shutil.rmtree(folder)


@pytest.fixture
def open_to_all() -> Iterator[Served]:
    """A device of this user at a socket that every user may connect to."""
    folder = Path(tempfile.mkdtemp(prefix="softverbs-"))
    folder.chmod(0o755)
    served = Served(str(folder / "socket"), Device(thread=False), 0o666)
    yield served
    served.close()
    shutil.rmtree(folder)


def become(user: int) -> None:
    """This process is another user's from now on, as one that such a user has started."""
    os.setgroups([])
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)
    _libc.prctl(_SET_DUMPABLE, 1, 0, 0, 0)


def memory_of_self() -> list[int]:
    return [os.open("/proc/self/mem", os.O_RDWR)]


class Forked:
    """A child of this process that does one thing, and says over a pipe what came of it."""

    def __init__(self, act: Callable[..., object], *arguments: object) -> None:
        self.pipe, other = Pipe()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # 3.12: forking a process that has threads
            self.pid = os.fork()
        if self.pid == 0:
            try:
                self.pipe.close()
                act(other, *arguments)
            except BaseException as error:
                other.send(repr(error))
            finally:
                os._exit(0)
        other.close()

    def result(self) -> Any:
        """What it says."""
        assert self.pipe.poll(20)
        return self.pipe.recv()

    def end(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)


def program(pipe: Any, path: str, user: int, words: list[str], output: int, answer: int) -> None:
    """Registers memory at AT, connects, leaves its descriptors to a child, and executes another program."""
    if user:
        become(user)
    assert _libc.mmap(AT, PAGE, 0x3, 0x2 | 0x20 | 0x100000, -1, 0) is not None
    side = Side(path, client=Client(path, passing=memory_of_self() if user else []))
    given = {"address": AT, "iova": AT, "length": PAGE, "access": 15}
    rkey = side.client.call("REG_MR", pd=side.pd, **given)["rkey"]
    pipe.send((side.client.gid(), side.qp.number, rkey))
    side.qp.connect(*pipe.recv())
    pipe.send("connected")
    pipe.recv()
    holder = os.fork()
    if holder == 0:
        time.sleep(60)
        os._exit(0)
    pipe.send(holder)
    os.dup2(output, 1)
    os.dup2(answer, 0)
    os.execv(words[0], words)


class Replaced:
    """Such a program, connected to a side of ours."""

    def __init__(self, path: str, helper: Path, user: int = 0) -> None:
        output, self.output = os.pipe()[::-1]
        answer, self.answer = os.pipe()
        self.side = Side(path)
        self.process = Forked(program, path, user, [str(helper), hex(AT)], output, answer)
        os.close(output)
        os.close(answer)
        gid, number, self.rkey = self.process.result()
        self.process.pipe.send((self.side.client.gid(), self.side.qp.number))
        self.side.qp.connect(gid, number, timeout=8, retry=2)
        assert self.process.result() == "connected"
        self.holder = 0

    def replace(self) -> str:
        """Has it execute the other program; what that says first."""
        self.process.pipe.send("replace")
        self.holder = self.process.result()
        return os.read(self.output, 100).decode()

    def access(self, opcode: int, length: int = 8) -> int:
        """One access of its memory; its status."""
        element = self.side.buffer.element(0, length)
        self.side.qp.post_send(1, element, opcode=opcode, remote=AT, rkey=self.rkey, compare_add=7)
        return self.side.cq.wait()["status"]

    def verdict(self) -> str:
        """What the other program says of its memory."""
        os.write(self.answer, b"\n")
        return os.read(self.output, 100).decode()

    def end(self) -> None:
        self.process.end()
        if self.holder:
            os.kill(self.holder, signal.SIGKILL)
        os.close(self.output)
        os.close(self.answer)


def check_replaced(served: Served, it: Replaced, opcode: int, length: int, user: int) -> None:
    before = len(served.server.sessions)
    try:
        assert it.access(WRITE, length) == it.access(READ, length) == 0
        it.side.buffer.data.raw = bytes(4096)
        assert it.replace() == f"user {user}\n"
        assert len(served.server.sessions) == before, "a child has its descriptors"
        assert it.access(opcode, length) == REM_ACCESS_ERR
        assert it.side.buffer.data.raw == bytes(4096), "nothing was read"
        assert it.verdict() == "untouched\n"
        end = time.monotonic() + 10
        while len(served.server.sessions) == before and time.monotonic() < end:
            time.sleep(0.001)
        assert len(served.server.sessions) == before - 1, "the session has ended"
    finally:
        it.end()


@pytest.mark.parametrize("length", [8, 4096])
@pytest.mark.parametrize("opcode", [WRITE, READ, FETCH_ADD])
def test_a_program_that_takes_the_place_of_a_client_is_not_touched(
    served: Served, replaced: Path, opcode: int, length: int
) -> None:
    if opcode != FETCH_ADD or length == 8:
        check_replaced(served, Replaced(served.path, replaced), opcode, length, os.geteuid())


@as_root
@pytest.mark.parametrize("opcode", [WRITE, READ, FETCH_ADD])
def test_a_set_user_id_program_is_not_touched_by_a_device_of_root(
    open_to_all: Served, replaced: Path, opcode: int
) -> None:
    privileged = replaced.with_name("set-user-id")
    shutil.copy(replaced, privileged)
    privileged.chmod(0o4755)
    if os.statvfs(privileged).f_flag & os.ST_NOSUID:
        pytest.skip("the file system of temporary files is mounted nosuid")
    check_replaced(open_to_all, Replaced(open_to_all.path, privileged, NOBODY), opcode, 8, 0)


def test_no_access_falls_into_a_program_that_is_being_executed(replaced: Path) -> None:
    """The device writes without a pause while one program takes the place of the other, hundreds of times."""
    guard = Guard()
    guard.free()
    words = [str(replaced), hex(AT), hex(guard.address), str(guard.secret), str(ROUNDS)]
    process = subprocess.Popen(words)
    space = spaces.enter(process.pid, guard.address, guard.secret)
    block, done = Block(64), [0, 0]
    view(block.address, 64)[:] = b"w" * 64
    far = spaces.far(space, AT)
    while process.poll() is None:
        for _ in range(50):
            done[spaces.place(far, block.address, 64)] += 1
    spaces.leave(space)
    assert process.returncode == 0, "a program was written that had not agreed to it"
    assert all(done), "some were before, and some after"


# -- the number of a process


@pytest.fixture
def child() -> Iterator[Child]:
    with Child(PAGE) as child:
        yield child


def test_a_number_that_stands_for_another_process_opens_nothing(child: Child) -> None:
    with Child(PAGE) as other:
        space = spaces.enter(other.pid, *child.guard)
        for act in (lambda: spaces.read(space, other.address, 8), lambda: spaces.write(space, other.address, b"x" * 8)):
            with pytest.raises(PyverbsRDMAError, match="runs another program now"):
                act()
        assert spaces.is_lost(space) and not spaces.holds(space)
        assert other.call("at", 0, 8) == bytes(8)
        spaces.leave(space)
        assert not spaces.is_lost(space)


def test_a_guard_with_another_word_opens_nothing(child: Child) -> None:
    space = spaces.enter(child.pid, child.guard[0], child.guard[1] ^ 1)
    with pytest.raises(PyverbsRDMAError, match="runs another program now"):
        spaces.read(space, child.address, 8)
    spaces.leave(space)


def test_a_reader_is_of_one_address_space(child: Child) -> None:
    """Short reads go by a descriptor. It is believed once the guard was seen through it, and ends with its process."""
    guard, secret = child.guard
    assert open_reader(child.pid, guard, secret ^ 1) == -1
    assert open_reader(child.pid, 0, secret) == open_reader(child.pid, 2**64 - 8, secret) == -1
    assert open_reader(2**22 + 1, guard, secret) == -1  # above PID_MAX_LIMIT
    child.call("put", 0, b"by the reader")
    reader = open_reader(child.pid, guard, secret)
    with Child(PAGE) as other:  # whoever has the number by now: the reader finds what it was opened for
        space = spaces.enter(other.pid, guard, secret, reader=reader)
        assert spaces.read(space, child.address, 13) == b"by the reader"
        assert not spaces.holds(space), "the guard itself is looked for in what runs under the number"
        child.kill()
        with pytest.raises(PyverbsRDMAError, match="runs another program now"):
            spaces.read(space, child.address, 13)
        spaces.leave(space)
    os.close(reader)


@as_root
def test_a_process_with_the_number_of_one_that_is_gone_is_not_touched(served: Served) -> None:
    """Its number is used again at once, before the device has had a turn to notice."""
    first = Child(PAGE)
    pid = first.pid
    first.kill()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fork", lambda: fork_as(pid))
        try:
            second = Child(PAGE)
        except OSError as error:
            pytest.skip(f"the number of a process cannot be chosen: {error.strerror}")
    with second:
        assert second.pid == pid
        assert spaces.read(second.space, second.address, 8) == bytes(8)
        with pytest.raises(PyverbsRDMAError, match="runs another program now"):
            spaces.write(first.space, second.address, b"x" * 8)
        assert second.call("at", 0, 8) == bytes(8)
    spaces.leave(first.space)


def fork_as(pid: int) -> int:
    """fork(2) whose child has a number that is free (clone3(2), set_tid)."""
    number = ctypes.c_int(pid)
    words = (ctypes.c_uint64 * 11)()
    words[4] = signal.SIGCHLD
    words[8], words[9] = ctypes.addressof(number), 1
    made = int(_libc.syscall(ctypes.c_long(435), words, ctypes.c_size_t(88)))
    if made < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return made


# -- the socket, and the user


def test_a_guard_that_is_not_there_is_no_client(served: Served) -> None:
    connection = Connection(served.path)
    with pytest.raises(Refused, match="guard page") as caught:
        connection.call("HELLO", abi=abi.VERSION, purpose=0, guard=0x3000_1234_0000, secret=5)
    assert caught.value.code == errno.EFAULT
    assert not served.objects()


def ask(pipe: Any, client: Client) -> None:
    try:
        pipe.send(client.gid())
    except Refused as refused:
        pipe.send((refused.code, refused.reason))
    except Gone:
        pipe.send("gone")


def test_a_child_with_the_socket_can_ask_for_nothing(served: Served) -> None:
    client = Client(served.path)
    code, reason = Forked(ask, client).result()
    assert code == errno.EACCES and f"the connection is process {os.getpid()}'s" in reason
    assert client.gid()


def connect_and_change(pipe: Any, path: str) -> None:
    client = Client(path)
    pipe.send(len(client.gid()))
    become(NOBODY)
    ask(pipe, client)


@as_root
def test_a_change_of_the_user_ends_the_session(served: Served) -> None:
    child = Forked(connect_and_change, served.path)
    assert (child.result(), child.result()) == (16, "gone")
    served.wait_for_objects({})


def greet(pipe: Any, path: str, files: list[str]) -> None:
    become(NOBODY)
    try:
        Client(path, passing=[os.open(name, os.O_RDONLY) for name in files])
        pipe.send("welcome")
    except Refused as refused:
        pipe.send((refused.code, refused.reason))


@as_root
@pytest.mark.parametrize(
    ("files", "words"),
    [
        ([], "each user can run a device of his own"),
        (["/dev/zero"], "is not one of /proc/"),
        (["/proc/self/maps"], "is not one of /proc/"),
        (["/proc/thread-self/mem"], "is not one of /proc/"),
    ],
)
def test_another_user_has_to_hand_over_his_right(open_to_all: Served, files: list[str], words: str) -> None:
    code, reason = Forked(greet, open_to_all.path, files).result()
    assert code == errno.EPERM and words in reason


@as_root
def test_memory_of_another_user_is_read_and_written_and_may_be_gone(open_to_all: Served) -> None:
    """By the descriptor that he has passed."""
    side = Side(open_to_all.path, size=65536)
    child = Forked(exchange, open_to_all.path)
    gid, number, address, rkey = child.result()
    child.pipe.send((side.client.gid(), side.qp.number))
    side.qp.connect(gid, number)
    assert child.result() == "connected"
    side.buffer.data.raw = bytes(range(256)) * 256
    side.qp.post_send(1, side.buffer.element(3, 60000), opcode=WRITE, remote=address + 1, rkey=rkey)
    assert side.cq.wait()["status"] == 0
    child.pipe.send("look")
    assert child.result() == b"\0" + (bytes(range(256)) * 256)[3:60003] + b"\0"
    side.qp.post_send(2, side.buffer.element(0, 50000), opcode=READ, remote=address + 1, rkey=rkey)
    assert side.cq.wait()["status"] == 0
    assert side.buffer.data.raw[:50000] == (bytes(range(256)) * 256)[3:50003]
    child.pipe.send("unmap")
    assert child.result() == 0
    side.qp.post_send(3, side.buffer.element(0, 8), opcode=WRITE, remote=address + 65536, rkey=rkey)
    assert side.cq.wait()["status"] == REM_ACCESS_ERR
    child.end()


def exchange(pipe: Any, path: str) -> None:
    become(NOBODY)
    side = Side(path, client=Client(path, passing=memory_of_self()))
    memory = _libc.mmap(AT, 32 * PAGE, 0x3, 0x2 | 0x20 | 0x100000, -1, 0)
    assert memory is not None
    made = side.client.call("REG_MR", pd=side.pd, address=AT, iova=AT, length=32 * PAGE, access=15)
    with pytest.raises(Refused, match="cannot be read"):
        side.client.call("REG_MR", pd=side.pd, address=AT, iova=AT, length=33 * PAGE, access=15)
    pipe.send((side.client.gid(), side.qp.number, AT, made["rkey"]))
    side.qp.connect(*pipe.recv())
    pipe.send("connected")
    pipe.recv()
    pipe.send(ctypes.string_at(AT, 60002))
    pipe.recv()
    pipe.send(_libc.munmap(ctypes.c_void_p(AT + 65536), PAGE))
    pipe.recv()
