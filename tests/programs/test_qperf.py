# SPDX-License-Identifier: MIT
"""Unmodified qperf of Debian: its RC tests, by the connection manager, between two processes.

qperf without ``-cm1`` addresses its peer by LID, as in an InfiniBand subnet: that
does not run on RoCE, here or elsewhere. With it, version 0.4.11 has a race of its own: its server names its port before
it listens, so that a quick client is rejected (repaired after that version). What met it is run again.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from collections.abc import Callable

from tests import driver
from tests.programs.running import free_port, needs_librdmacm, program

#: The server in the background, and the client, which waits for it.
BOTH = """
"$0" -lp "$1" & server=$!
shift
"$0" "$@"; code=$?
kill $server
exit $code
"""


def _qperf(**variables: str) -> tuple[str, dict[str, str]]:
    """The path of qperf, and the environment to run it in."""
    path, libraries = program("qperf", "qperf")
    return path, {**driver.environment(), **libraries, **variables}


def _client(port: str, host: str, words: str) -> list[str]:
    return ["-lp", port, "-ws", "30", "-to", "60", *shlex.split(words.replace("HOST", host))]


def _again_if_rejected(run: Callable[[], subprocess.CompletedProcess[str]]) -> str:
    """What a run prints, which has to succeed."""
    for _ in range(4):
        done = run()
        if "Event rejected" not in done.stdout:
            break
    assert done.returncode == 0, done.stdout
    return done.stdout


def _on_one_device(words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    path, environment = _qperf(**variables)
    port = free_port()
    words_of_both = ["sh", "-c", BOTH, path, port, *_client(port, "127.0.0.1", words)]
    return subprocess.run(
        driver.softverbs_run(*words_of_both), env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True, timeout=100,
    )  # fmt: skip


def _figures(text: str) -> dict[str, str]:
    """What each test measured."""
    return dict(re.findall(r"^(\w+):\n +\w+ += +(\S.*)$", text, re.MULTILINE))


def test_on_one_device() -> None:
    """Messages, one way and to and fro, a poll of memory, and atomics whose results are looked at; a second each."""
    needs_librdmacm()
    tests = ["rc_bw", "rc_lat", "rc_rdma_write_poll_lat", "ver_rc_compare_swap"]
    text = _again_if_rejected(lambda: _on_one_device(f"-t 1 -m 4096 HOST -cm1 {' '.join(tests)}"))
    assert list(_figures(text)) == tests


def _on_two_devices(words: str) -> subprocess.CompletedProcess[str]:
    path, environment = _qperf()
    pid, port = os.getpid(), free_port()
    address = f"127.{128 + (pid >> 16)}.{pid >> 8 & 255}.{pid & 255}"  # of nobody else
    run = driver.softverbs_run()
    server = [*run[:-1], "-a", address, "--", path, "-lp", port]
    with subprocess.Popen(server, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL) as first:
        try:
            return subprocess.run(
                [*run, path, *_client(port, address, words)], env=environment, stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=100,
            )  # fmt: skip
        finally:
            first.terminate()


def test_on_two_devices() -> None:
    needs_librdmacm()
    text = _again_if_rejected(lambda: _on_two_devices("-t 1 -m 4096 HOST -cm1 rc_rdma_read_bw ver_rc_fetch_add"))
    assert set(_figures(text)) == {"rc_rdma_read_bw", "ver_rc_fetch_add"}


def test_by_lid_it_is_told_why_not() -> None:
    done = _on_one_device("-n 10 HOST rc_bw", SOFTVERBS_EXPLAIN="1")
    assert done.returncode == 1, done.stdout
    assert "RoCE addresses peers by GID" in done.stdout
    assert "failed to modify QP to RTR" in done.stdout
