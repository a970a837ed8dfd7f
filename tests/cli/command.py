# SPDX-License-Identifier: MIT
"""Running the command line: in this process, and as processes of its own."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from click.testing import CliRunner, Result

from softverbs.cli import cli

WAIT_S = 60


class Ended(NamedTuple):
    """A process that has ended."""

    code: int
    out: str
    err: str


def invoke(*words: str, env: dict[str, str | None] | None = None) -> Result:
    """Runs a command in this process."""
    return CliRunner().invoke(cli, list(words), prog_name="softverbs", env=env)


def start(*words: str, env: dict[str, str] | None = None) -> "subprocess.Popen[str]":
    """Starts a command in a process of its own."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("SOFTVERBS_")}
    return subprocess.Popen(
        [sys.executable, "-W", "error", "-m", "softverbs", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**clean, **(env or {})},
    )


def finish(process: "subprocess.Popen[str]", seconds: float = WAIT_S) -> Ended:
    """Waits for its end, and kills it when that takes too long."""
    try:
        out, err = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        out, err = process.communicate()
        raise AssertionError(f"it does not end: {out}{err}") from None
    return Ended(process.returncode, out, err)


def run(*words: str, env: dict[str, str] | None = None) -> Ended:
    """Runs a command in a process of its own."""
    return finish(start(*words, env=env))


def free_port() -> int:
    """A TCP port that nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1])


def wait_until_listening(port: int, process: "subprocess.Popen[str]") -> None:
    """Returns when a process listens on a TCP port."""
    ending = f":{port:04X}"
    stop = time.monotonic() + WAIT_S
    while time.monotonic() < stop and process.poll() is None:
        for table in ("/proc/net/tcp", "/proc/net/tcp6"):
            lines = Path(table).read_text().splitlines()[1:] if Path(table).exists() else []
            if any(line.split()[1].endswith(ending) and line.split()[3] == "0A" for line in lines):
                return
        time.sleep(0.02)
    raise AssertionError(f"nobody listens on port {port}: {finish(process, 0.1)}")


@contextmanager
def server(*words: str, env: dict[str, str] | None = None) -> Iterator[tuple[int, "subprocess.Popen[str]"]]:
    """A server command on a free port of loopback, listening."""
    port = free_port()
    process = start(*words, "--bind", "127.0.0.1", "-p", str(port), env=env)
    try:
        wait_until_listening(port, process)
        yield port, process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def both(command: str, here: list[str], there: list[str], env: dict[str, str] | None = None) -> tuple[Ended, Ended]:
    """Runs a server with ``here`` and a client with ``there``; how both ended."""
    with server(command, *here, env=env) as (port, process):
        client = run(command, *there, "-p", str(port), "127.0.0.1", env=env)
        try:
            return finish(process), client
        except AssertionError as error:
            raise AssertionError(f"{error}; the client: {client}") from None
