"""Unmodified programs of Debian on the device: ibverbs-utils and perftest, as they are in its packages.

They are taken from the system where they are installed, else fetched into .cache/programs (tools/programs.py); without
both the tests are skipped.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from functools import cache
from pathlib import Path

import pytest
from tests import driver

import softverbs

FEW = "30" if softverbs.core_build == "pure" else "200"
GID = ("-g", "0")


@cache
def _fetched() -> Path | str:
    """The folder that the programs were unpacked in; or why that cannot be."""
    words = [sys.executable, str(driver.ROOT / "tools" / "programs.py")]
    done = subprocess.run(words, capture_output=True, text=True)
    return Path(done.stdout.strip()) if done.returncode == 0 else done.stderr.strip()


def _program(name: str) -> tuple[str, dict[str, str]]:
    """The path of a program, and the environment to run it in."""
    environment = driver.environment()
    if found := shutil.which(name):
        return found, environment
    fetched = _fetched()
    if isinstance(fetched, str):
        pytest.skip(fetched)
    libraries = [str(path.parent) for path in sorted(fetched.glob("**/libibumad.so.3"))]
    libraries += [str(path.parent) for path in sorted(fetched.glob("**/lib*.so.*"))]
    before = os.environ.get("LD_LIBRARY_PATH")
    environment["LD_LIBRARY_PATH"] = ":".join([*dict.fromkeys(libraries), *([before] if before else [])])
    return str(fetched / "usr" / "bin" / name), environment


def _free_port() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


def _listening(port: str) -> bool:
    """Whether somebody listens on a TCP port; without connecting, which the program would take for its peer."""
    wanted = f":{int(port):04X}"
    for name in ("/proc/net/tcp", "/proc/net/tcp6"):
        with open(name) as table:
            if any(row.split()[1].endswith(wanted) and row.split()[3] == "0A" for row in list(table)[1:]):
                return True
    return False


def _pair(name: str, *arguments: str, apart: bool = False) -> tuple[str, str]:
    """Runs a program as server and as client: on one device, or on two; what both print."""
    path, environment = _program(name)
    port = _free_port()
    words = [path, "-p", port, *arguments]
    if apart:
        return _both(driver.softverbs_run(*words), driver.softverbs_run(*words, "127.0.0.1"), port, environment)
    script = driver.softverbs_run(sys.executable, __file__, port, *words)
    text = driver.output(script, {**environment, "PYTHONPATH": f"{environment['PYTHONPATH']}:{driver.ROOT}"})
    server, _, client = text.partition("-- client\n")
    return server, client


def _both(server: list[str], client: list[str], port: str, environment: dict[str, str]) -> tuple[str, str]:
    """Starts the server, and, when it listens, the client; both have to succeed."""
    options = {"env": environment, "stdin": subprocess.DEVNULL, "stderr": subprocess.STDOUT, "text": True}
    with subprocess.Popen(server, stdout=subprocess.PIPE, **options) as first:  # type: ignore[call-overload]
        try:
            end = time.monotonic() + 30
            while not _listening(port) and first.poll() is None and time.monotonic() < end:
                time.sleep(0.02)
            second = subprocess.run(client, stdout=subprocess.PIPE, timeout=60, **options)  # type: ignore[call-overload]
            text = first.communicate(timeout=30)[0]
        finally:
            first.kill()
    assert second.returncode == 0, second.stdout + text
    assert first.returncode == 0, text
    return text, second.stdout


def test_ibv_devices() -> None:
    path, environment = _program("ibv_devices")
    text = driver.output(driver.softverbs_run(path), environment)
    assert "softverbs0" in text


def test_ibv_devinfo() -> None:
    path, environment = _program("ibv_devinfo")
    text = driver.output(driver.softverbs_run(path, "-v"), environment)
    assert "PORT_ACTIVE" in text
    assert "RoCE v2" in text
    assert "ATOMIC_HCA" in text


def test_without_a_device() -> None:
    path, environment = _program("ibv_devinfo")
    libraries = f"{driver.folder()}:{environment.get('LD_LIBRARY_PATH', '')}".rstrip(":")
    done = subprocess.run([path], env={**environment, "LD_LIBRARY_PATH": libraries}, stderr=subprocess.PIPE, text=True)
    assert "No IB devices found" in done.stderr


def test_two_devices() -> None:
    server, client = _pair("ibv_rc_pingpong", *GID, "-n", FEW, "-e", apart=True)
    assert f"{FEW} iters" in server
    assert f"{FEW} iters" in client


@pytest.mark.parametrize(
    "words",
    [
        "ibv_rc_pingpong",
        "ibv_rc_pingpong -e -c -s 100000 -m 1024",
        "ibv_rc_pingpong -j -N",
        "ibv_rc_pingpong -t -o",
        "ibv_uc_pingpong -e",
        "ibv_ud_pingpong",
        "ibv_ud_pingpong -e -c",
        "ibv_srq_pingpong -e -c",
    ],
)
def test_pingpong(words: str) -> None:
    name, *options = words.split()
    _, client = _pair(name, *GID, "-n", FEW, *options)
    assert f"{FEW} iters" in client


def test_xsrq_pingpong() -> None:
    _, client = _pair("ibv_xsrq_pingpong", *GID, "-n", FEW)
    assert "success" in client


@pytest.mark.parametrize(
    "words",
    [
        "ib_send_bw -s 1000 -q 4",
        "ib_send_bw -c UD -s 1000 --use-srq",
        "ib_send_lat -e",
        "ib_write_bw -s 65536 -b",
        "ib_write_lat -I 60",
        "ib_read_bw -s 65536",
        "ib_atomic_bw -A CMP_AND_SWAP",
    ],
)
def test_perftest(words: str) -> None:
    name, *options = words.split()
    _, client = _pair(name, "-x", "0", "-n", FEW, *options)
    assert "#bytes" in client


if __name__ == "__main__":  # within `softverbs run`: both sides on its device
    outputs = _both(sys.argv[2:], [*sys.argv[2:], "127.0.0.1"], sys.argv[1], dict(os.environ))
    print(outputs[0], outputs[1], sep="-- client\n")
