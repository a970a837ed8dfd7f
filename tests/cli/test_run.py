# SPDX-License-Identifier: MIT
"""``softverbs run`` and ``softverbs serve``: a program, its exit code, its signals; and what is left: nothing."""

import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.cli.command import finish, invoke, run, start
from tests.server.client import Client, close_all

from softverbs.cli import private_dev
from softverbs.cli.run import exit_code
from softverbs.server import driver

ROOT = Path(__file__).parents[2]


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    """A folder with something in the driver's place, and a place for temporary files."""
    (tmp_path / "driver").mkdir()
    (tmp_path / "driver" / "libibverbs.so.1").touch()
    (tmp_path / "tmp").mkdir()
    path = os.pathsep.join([str(ROOT), *sys.path])
    return {"SOFTVERBS_DRIVER": str(tmp_path / "driver"), "TMPDIR": str(tmp_path / "tmp"), "PYTHONPATH": path}


def left(env: dict[str, str]) -> list[str]:
    """What is left in the folder of temporary files."""
    return os.listdir(env["TMPDIR"])


@pytest.mark.parametrize(
    ("script", "code"), [("exit 0", 0), ("exit 42", 42), ("kill -TERM $$", 143), ("kill -9 $$", 137)]
)
def test_the_exit_code_is_the_programs(env: dict[str, str], script: str, code: int) -> None:
    assert run("run", "sh", "-c", script, env=env).code == code
    assert left(env) == []


def test_a_program_that_is_not_there(env: dict[str, str], tmp_path: Path) -> None:
    ended = run("run", "--", "/no/such/program", env=env)
    assert (ended.code, ended.err) == (127, "softverbs run: /no/such/program: not found\n")
    ended = run("run", str(tmp_path), env=env)
    assert (ended.code, ended.err) == (126, f"softverbs run: {tmp_path}: Permission denied\n")
    assert left(env) == []


def test_options_behind_the_program_are_its_own(env: dict[str, str]) -> None:
    assert run("run", "echo", "-h", "--pcap", "-n", env=env).out == "-h --pcap -n\n"
    assert run("run", "--", "echo", "-a", env=env).out == "-a\n"


def test_the_program_has_the_limits_that_it_had_before(env: dict[str, str]) -> None:
    limit = subprocess.run(["sh", "-c", "ulimit -n"], capture_output=True, text=True, check=True).stdout
    assert run("run", "sh", "-c", "ulimit -n", env=env).out == limit


def test_the_environment_names_the_socket_and_the_driver(env: dict[str, str]) -> None:
    env = {**env, "LD_LIBRARY_PATH": "/before"}
    script = 'echo $LD_LIBRARY_PATH; stat -c "%a %F" $SOFTVERBS_SOCKET $(dirname $SOFTVERBS_SOCKET)'
    lines = run("run", "sh", "-c", script, env=env).out.splitlines()
    assert lines == [f"{env['SOFTVERBS_DRIVER']}:/before", "600 socket", "700 directory"]


def test_what_the_program_preloads_itself_comes_first(tmp_path: Path) -> None:
    for name in driver.LIBRARIES[:2]:
        (tmp_path / name).write_text("a library")
    (tmp_path / driver.LIBRARIES[2]).touch()
    ours = f"{tmp_path}/libibverbs.so.1:{tmp_path}/librdmacm.so.1"
    made = driver.environment({}, "socket", tmp_path)
    assert (made["LD_PRELOAD"], made["ASAN_OPTIONS"]) == (ours, "verify_asan_link_order=0")
    made = driver.environment({"LD_PRELOAD": "libx.so liby.so", "ASAN_OPTIONS": "a=1"}, "socket", tmp_path)
    assert (made["LD_PRELOAD"], made["ASAN_OPTIONS"]) == (f"libx.so liby.so:{ours}", "verify_asan_link_order=0:a=1")
    assert "LD_PRELOAD" not in driver.environment({}, "socket", tmp_path, preload=False)


def test_a_program_that_asks_for_no_device(env: dict[str, str]) -> None:
    ended = run("run", "true", env=env)
    assert (ended.code, ended.err.count("\n")) == (0, 1)
    assert ended.err.startswith("softverbs run: true and what it started asked for no device; ")
    assert "--no-preload" not in ended.err
    assert "leave --no-preload out" in run("run", "--no-preload", "true", env=env).err


def test_a_program_that_only_lists_the_device(env: dict[str, str]) -> None:
    script = "import os; from tests.server.client import Client; Client(os.environ['SOFTVERBS_SOCKET'], purpose=1)"
    assert run("run", sys.executable, "-c", script, env=env).err == ""
    words = "listed the device and did not open it"
    assert run("run", "-v", "python3", "-c", "", env=env).err.count("\n") == 1
    assert run("run", "-v", sys.executable, "-c", script, env=env).err == f"softverbs run: {sys.executable} {words}\n"


def test_a_program_that_closes_its_pipe_dies_of_it_as_usual(env: dict[str, str]) -> None:
    assert run("run", "sh", "-c", "yes | head -n 1", env=env).out == "y\n"
    script = "import signal; print(signal.getsignal(signal.SIGPIPE) and signal.pthread_sigmask(signal.SIG_BLOCK, []))"
    assert run("run", sys.executable, "-c", script, env=env).out == "set()\n"


def test_the_program_talks_to_the_device(env: dict[str, str]) -> None:
    script = """
import os
from tests.server.client import pair, close_all
left, right = pair(os.environ["SOFTVERBS_SOCKET"])
assert left.client.server() == os.getppid()
right.qp.post_recv(1, right.buffer.element())
left.buffer.data.raw = b"hello".ljust(4096)
left.qp.post_send(1, left.buffer.element(0, 5))
print(right.cq.wait()["byte_len"], right.buffer.data.raw[:5])
close_all()
"""
    ended = run("run", "-a", "127.9.8.7", sys.executable, "-c", script, env=env)
    assert (ended.out, ended.err, ended.code) == ("5 b'hello'\n", "", 0)


def wait_for(what: Callable[[], object], seconds: float = 20) -> None:
    """Until it is so."""
    end = time.monotonic() + seconds
    while not what() and time.monotonic() < end:
        time.sleep(0.005)
    assert what()


@contextmanager
def heeded(number: signal.Signals) -> Iterator[None]:
    """What is started meanwhile does not ignore a signal, as it would under nohup(1) or in a shell's background."""
    ignored = signal.getsignal(number) is signal.SIG_IGN
    if ignored:
        signal.signal(number, signal.SIG_DFL)
    try:
        yield
    finally:
        if ignored:
            signal.signal(number, signal.SIG_IGN)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1])
def test_signals_are_passed_on(env: dict[str, str], tmp_path: Path, number: signal.Signals) -> None:
    ready = tmp_path / "ready"
    script = f"trap 'echo caught; exit 5' {number.name[3:]}; touch {ready}; while :; do sleep 0.05; done"
    with heeded(number):
        process = start("run", "sh", "-c", script, env=env)
    wait_for(ready.exists)
    process.send_signal(number)
    ended = finish(process)
    assert (ended.code, ended.out) == (5, "caught\n")
    assert left(env) == []


def test_without_a_driver_it_says_so(env: dict[str, str]) -> None:
    ended = run("run", "true", env={**env, "SOFTVERBS_DRIVER": env["TMPDIR"]})
    assert ended.code == 1
    assert "there is no libibverbs.so.1" in ended.err and ended.err.count("\n") == 1


def test_exit_codes() -> None:
    assert exit_code(0) == 0
    assert exit_code(3 << 8) == 3
    assert exit_code(9) == 137


def serve(env: dict[str, str], path: Path, *words: str) -> "subprocess.Popen[str]":
    """A server that is ready."""
    process = start("serve", "--socket", str(path), *words, env={**env, "PYTHONUNBUFFERED": "1"})
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line.startswith("softverbs0 at 127."), line
    assert process.stdout.readline() == f"SOFTVERBS_SOCKET={path} LD_LIBRARY_PATH={env['SOFTVERBS_DRIVER']}\n"
    return process


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_serve_until_a_signal(env: dict[str, str], tmp_path: Path, number: signal.Signals) -> None:
    path = tmp_path / "socket"
    process = serve(env, path, "--mode", "660")
    assert stat.S_IMODE(path.stat().st_mode) == 0o660
    assert Client(str(path)).server() == process.pid
    process.send_signal(number)
    ended = finish(process)
    assert (ended.code, ended.err) == (0, "")
    assert not path.exists()
    close_all()


def test_serve_takes_the_place_of_one_that_was_killed(env: dict[str, str], tmp_path: Path) -> None:
    path = tmp_path / "socket"
    process = serve(env, path)
    ended = run("serve", "--socket", str(path), env=env)
    assert ended.code == 1 and "in use" in ended.err
    process.kill()
    finish(process)
    process = serve(env, path)
    process.terminate()
    assert finish(process).code == 0


def test_serve_leaves_other_files_alone(env: dict[str, str], tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("mine")
    ended = run("serve", "--socket", str(path), env=env)
    assert ended.code == 1 and "is no socket" in ended.err
    assert path.read_text() == "mine"


def test_help_says_what_a_mode_is() -> None:
    text = invoke("serve", "--help").output
    assert "--mode OCTAL" in text and "_MODE" not in text


def test_serve_says_what_is_wrong_with_its_socket(env: dict[str, str], tmp_path: Path) -> None:
    """The option, the path, and the reason."""
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "nothing")
    wrong = {
        str(tmp_path / ("x" * 120)): "that of a socket has at most 107 (unix(7))",
        str(tmp_path / ("x" * 300)): "File name too long",
        str(tmp_path / "none" / "socket"): "No such file or directory",
        str(link): f"is a link to {tmp_path / 'nothing'}, which is not there",
        str(tmp_path / "driver" / "libibverbs.so.1" / "socket"): "Not a directory",
    }
    for path, words in wrong.items():
        ended = run("serve", "--socket", path, env=env)
        assert ended.code == 1 and ended.err.count("\n") == 1
        assert f"--socket {path}" in ended.err and words in ended.err
    assert link.is_symlink() and not (tmp_path / "nothing").exists()


def test_what_is_wrong_is_named(env: dict[str, str], tmp_path: Path) -> None:
    """Each variable and each option that a value comes from, the value, and the reason."""
    folder = tmp_path / ("y" * 100)
    folder.mkdir()
    for words, more, told in (
        ((), {"SOFTVERBS_PCAP": str(tmp_path)}, f"SOFTVERBS_PCAP={tmp_path}: Is a directory"),
        ((), {"SOFTVERBS_PCAP": "/nowhere/x"}, "SOFTVERBS_PCAP=/nowhere/x: No such file or directory"),
        (("--pcap", "/nowhere/x"), {"SOFTVERBS_PCAP": "y"}, "--pcap=/nowhere/x: No such file or directory"),
        (("-a", "nowhere"), {"SOFTVERBS_ADDRESS": "127.0.7.9"}, "--address=nowhere: 'nowhere' is not an IPv4"),
        ((), {"SOFTVERBS_DRIVER": str(tmp_path)}, f"SOFTVERBS_DRIVER={tmp_path}: there is no libibverbs.so.1"),
        ((), {"TMPDIR": str(folder)}, "in the folder for temporary files (TMPDIR): a path of"),
    ):
        ended = run("run", *words, "true", env={**env, **more})
        assert ended.code == 1 and ended.err.count("\n") == 1
        assert told in ended.err


@pytest.mark.parametrize("mode", ["8", "x", "7777", "-0", "0o660", "\u0666\u0666\u0660"])
def test_serve_refuses_a_wrong_mode(mode: str) -> None:
    assert invoke("serve", "--socket", "x", "--mode", mode).exit_code == 2


def test_a_socket_that_nobody_may_use(env: dict[str, str], tmp_path: Path) -> None:
    path = tmp_path / "socket"
    process = serve(env, path, "--mode", "0")
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as probe:
        if os.geteuid() != 0:
            with pytest.raises(PermissionError):
                probe.connect(str(path))
    process.terminate()
    assert finish(process).code == 0


# -- a /dev of the program's own


def private(folder: Path, *words: str, before: tuple[str, ...] = ()) -> "subprocess.CompletedProcess[str]":
    """Runs a program as ``softverbs run --dev`` does, without a device."""
    helper = [sys.executable, "-I", "-S", private_dev.__file__, str(folder), *words]
    return subprocess.run([*before, *helper], capture_output=True, text=True, timeout=60)


@pytest.fixture
def namespace(tmp_path: Path) -> Path:
    """A folder to build in; the test is skipped where no program can have a /dev of its own."""
    folder = tmp_path / "dev"
    folder.mkdir()
    if (tried := private(folder, "true")).returncode == private_dev.REFUSED:
        pytest.skip(tried.stderr)
    return folder


def test_a_dev_of_its_own(env: dict[str, str], namespace: Path) -> None:
    """All that was there is there and works, and the file that UCX looks for; outside nothing has changed."""
    before = sorted(os.listdir("/dev"))
    script = "ls /dev; test -c /dev/infiniband/uverbs0 && test -w /dev/infiniband/uverbs0 && echo yes >/dev/stdout"
    ended = run("run", "--dev", "--", "sh", "-c", script, env=env)
    assert ended.code == 0 and ended.err.startswith("softverbs run: sh and what it started asked for no device")
    assert ended.out.splitlines() == [*sorted({*before, "infiniband"}), "yes"]
    assert sorted(os.listdir("/dev")) == before
    assert left(env) == []


@pytest.mark.parametrize(("script", "code"), [("exit 42", 42), ("kill -TERM $$", 143), ("kill -PIPE $$", 141)])
def test_the_exit_code_with_a_dev_of_its_own(env: dict[str, str], namespace: Path, script: str, code: int) -> None:
    """Signals are as the program expects them, too: SIGPIPE ends it."""
    assert run("run", "--dev", "sh", "-c", script, env=env).code == code
    assert left(env) == []


def test_a_program_that_is_not_there_with_a_dev(env: dict[str, str], namespace: Path, tmp_path: Path) -> None:
    ended = run("run", "--dev", "--", "/no/such/program", env=env)
    assert (ended.code, ended.err) == (127, "softverbs run: /no/such/program: not found\n")
    ended = run("run", "--dev", str(tmp_path), env=env)
    assert (ended.code, ended.err) == (126, f"softverbs run: {tmp_path}: Permission denied\n")


def test_the_user_stays_who_it_is(namespace: Path) -> None:
    """Without privileges too: here in a user namespace where this user has none."""
    unprivileged = ("unshare", "--user", "--map-user=1000", "--map-group=1000")
    if shutil.which("unshare") is None or subprocess.run([*unprivileged, "true"], capture_output=True).returncode:
        pytest.skip("there is no unshare(1) that makes a user without privileges")
    ended = private(namespace, "sh", "-c", "id -u; id -g; test -c /dev/infiniband/uverbs0", before=unprivileged)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "1000\n1000\n", "")


def test_where_namespaces_are_refused(namespace: Path) -> None:
    """It says what is missing, and how to do without."""
    script = 'echo 0 >/proc/sys/user/max_mnt_namespaces; exec "$@"'
    none = ("unshare", "--user", "--map-root-user", "sh", "-c", script, "sh")
    if shutil.which("unshare") is None or subprocess.run([*none, "true"], capture_output=True).returncode:
        pytest.skip("there is no unshare(1) that makes a place without namespaces")
    ended = private(namespace, "echo", "never", before=none)
    assert (ended.returncode, ended.stdout) == (private_dev.REFUSED, "")
    assert "unshare: No space left on device" in ended.stderr
    assert "ln -s /dev/null /dev/infiniband/uverbs0" in ended.stderr
