# SPDX-License-Identifier: MIT
"""Unmodified programs that use the connection manager, on our librdmacm: rdmacm-utils, perftest -R, libfabric.

They are Debian's, as in test_programs.py.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tests import driver
from tests.programs import running

HERE = "127.0.0.1"
TCP, UDP = "0106", "0111"
WAIT_S = 60


def _program(name: str, group: str) -> tuple[str, dict[str, str]]:
    """The path of a program, and the environment to run it in; the test is skipped where it cannot be had."""
    running.needs_librdmacm()
    path, variables = running.program(name, group)
    environment = driver.environment(**variables)
    return path, {**environment, "PYTHONPATH": f"{environment['PYTHONPATH']}:{driver.ROOT}"}


def _announced(space: str, port: str) -> bool:
    """Whether a listener of the connection manager is in the registry of this host (softverbs/cm/registry.py)."""
    before, after = f" @softverbs/cm/{space}/", f"/{port}"
    with open("/proc/net/unix") as table:
        return any(before in row and row.rstrip().endswith(after) for row in table)


READY: dict[str, Callable[[str, str], bool]] = {
    TCP: _announced,
    UDP: _announced,
    "socket": lambda _, port: running.listening(port),
}


def _both(server: list[str], client: list[str], how: str, port: str, environment: dict[str, str]) -> tuple[str, str]:
    """Starts the server, and, when it listens, the client; both have to succeed. What both print."""
    endless = any(word.endswith("/cmtime") for word in server)  # it never ends by itself
    options = {"env": environment, "stdin": subprocess.DEVNULL, "stderr": subprocess.STDOUT, "text": True}
    with subprocess.Popen(server, stdout=subprocess.PIPE, **options) as first:  # type: ignore[call-overload]
        try:
            end = time.monotonic() + WAIT_S
            while not READY[how](how, port) and first.poll() is None and time.monotonic() < end:
                time.sleep(0.02)
            second = subprocess.run(client, stdout=subprocess.PIPE, timeout=WAIT_S, **options)  # type: ignore[call-overload]
            if endless or second.returncode:
                first.kill()
            text = first.communicate(timeout=WAIT_S)[0]
        finally:
            first.kill()
    assert second.returncode == 0, second.stdout + text
    assert endless or first.returncode == 0, text
    return text, second.stdout


def _pair(
    words: list[str], server: str, client: str, how: str, port: str, environment: dict[str, str], apart: bool
) -> tuple[str, str]:
    """Runs a program as server and as client, on one device or on two."""
    sides = [[*words, *more.replace("PORT", port).split()] for more in (server, client)]
    if apart:
        sides = [driver.softverbs_run(*side) for side in sides]
        return _both(sides[0], sides[1], how, port, environment)
    script = driver.softverbs_run(sys.executable, __file__, how, port, *sides[0], "--", *sides[1])
    text = driver.output(script, environment)
    first, _, second = text.partition("-- client\n")
    return first, second


@pytest.mark.parametrize("apart", [False, True], ids=["one device", "two devices"])
def test_rping(apart: bool) -> None:
    _rping(f"-a {HERE} -p PORT -C 5 -v -V", apart)


def test_rping_with_a_queue_pair_of_its_own() -> None:
    _rping(f"-a {HERE} -p PORT -C 5 -v -V -q", False)


def _rping(common: str, apart: bool) -> None:
    path, environment = _program("rping", "rdmacm")
    server, client = _pair([path], f"-s {common}", f"-c {common}", TCP, running.free_port(), environment, apart)
    assert "server ping data: rdma-ping-4" in server
    assert "ping data: rdma-ping-4" in client


def test_datagrams() -> None:
    path, environment = _program("udaddy", "rdmacm")
    port = "7174"  # the only one that it has
    outputs = _pair([path], "-c 3", f"-c 3 -s {HERE}", UDP, port, environment, True)
    assert all("return status 0" in text for text in outputs)


def test_connections_that_migrate() -> None:
    path, environment = _program("ucmatose", "rdmacm")
    outputs = _pair(
        [path], "-p PORT -c 3 -m", f"-p PORT -c 3 -m -s {HERE}", TCP, running.free_port(), environment, False
    )
    assert all("return status 0" in text for text in outputs)


def test_the_synchronous_interface() -> None:
    path, environment = _program("rdma_client", "rdmacm")
    name, port = path.removesuffix("client"), running.free_port()
    server, client = f"{name}server -p PORT", f"{name}client -p PORT -s {HERE}"
    outputs = _pair([], server, client, TCP, port, environment, False)
    assert all("end 0" in text for text in outputs)


def test_many_connections() -> None:
    path, environment = _program("cmtime", "rdmacm")
    _, client = _pair([path], "-p PORT -c 20", f"-p PORT -c 20 -s {HERE}", TCP, running.free_port(), environment, False)
    assert "disconnect" in client


@pytest.mark.parametrize("words", ["ib_write_bw -R -n 20 -s 4096 -q 2", "ib_send_lat -R -c UD -n 20"])
def test_perftest(words: str) -> None:
    name, *options = words.split()
    path, environment = _program(name, "verbs")
    _, client = _pair([path, *options], "-p PORT", f"-p PORT {HERE}", TCP, running.free_port(), environment, False)
    assert "#bytes" in client


@pytest.mark.parametrize("kind", ["msg", "dgram"])
def test_libfabric(kind: str) -> None:
    path, environment = _program("fi_pingpong", "libfabric")
    words = [path, "-p", "verbs", "-e", kind, "-I", "5", "-S", "1024"]
    _, client = _pair(words, "-B PORT", f"-P PORT {HERE}", "socket", running.free_port(), environment, kind == "dgram")
    assert "=5" in client


def test_multicast() -> None:
    """In a network namespace of its own, on a pair of virtual interfaces."""
    path, environment = _program("mckey", "rdmacm")
    environment["PATH"] += ":/usr/sbin:/sbin"
    inside = ["unshare", "--map-root-user", "--net"]
    if any(shutil.which(tool, path=environment["PATH"]) is None for tool in ("unshare", "ip")):
        pytest.skip("unshare and ip are needed")
    if subprocess.run([*inside, "true"], capture_output=True).returncode:
        pytest.skip("network namespaces are not allowed here")
    text = driver.output([*inside, sys.executable, __file__, "mckey", path], environment)
    assert text.count("return status 0") == 2


def _in_namespace(path: str) -> None:
    """Two members of a multicast group, on two devices."""
    for words in (
        "link set lo up", "link add near type veth peer name far", "addr add 10.99.0.1/24 dev near",
        "addr add 10.99.0.2/24 dev near", "link set near up", "link set far up", "route add 224.0.0.0/4 dev near",
    ):  # fmt: skip
        subprocess.run(["ip", *words.split()], check=True)
    group = ["-m", "239.1.2.3", "-C", "5"]
    run = [sys.executable, "-m", "softverbs", "run"]
    receiver = [*run, "-a", "10.99.0.1", path, *group, "-b", "10.99.0.1"]
    sender = [*run, "-a", "10.99.0.2", path, *group, "-b", "10.99.0.2", "-s"]
    with subprocess.Popen(receiver) as first:
        try:
            end = time.monotonic() + WAIT_S
            while "030201EF" not in Path("/proc/net/igmp").read_text() and first.poll() is None:
                assert time.monotonic() < end
                time.sleep(0.02)
            subprocess.run(sender, check=True, timeout=WAIT_S)
            assert first.wait(WAIT_S) == 0
        finally:
            first.kill()


if __name__ == "__main__":
    if sys.argv[1] == "mckey":
        _in_namespace(sys.argv[2])
    else:  # within `softverbs run`: both sides on its device
        split = sys.argv.index("--")
        outputs = _both(sys.argv[3:split], sys.argv[split + 1 :], sys.argv[1], sys.argv[2], dict(os.environ))
        print(outputs[0], outputs[1], sep="-- client\n")
