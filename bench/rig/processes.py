# SPDX-License-Identifier: MIT
"""Start the programs of a measurement, pinned, and never leave one behind."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rig.model import Failed

WORKERS = Path(__file__).resolve().parent.parent / "workers"
TIMEOUT_S = 60.0
SERVER_END_S = 5.0


@contextlib.contextmanager
def _pinned(core: int | None) -> Iterator[None]:
    """What is started meanwhile is bound to ``core``: a child inherits its parent's cores."""
    before = os.sched_getaffinity(0)
    if core is not None:
        os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def start(
    command: Sequence[str], core: int | None = None, environment: Mapping[str, str] | None = None
) -> subprocess.Popen[str]:
    """Start a program in a session of its own, so that all it starts can be ended with it.

    Raises:
        Failed: it cannot be started.
    """
    try:
        with _pinned(core):
            return subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                start_new_session=True,
                env={**os.environ, **(environment or {})},
            )
    except OSError as error:
        raise Failed(f"{command[0]}: {error.strerror}") from error


def end(process: subprocess.Popen[str]) -> None:
    """End a program and all that it started, and wait for it; nothing happens if it has ended already."""
    if process.returncode is None:  # not waited for yet, so its number cannot belong to another process
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def finish(process: subprocess.Popen[str], timeout: float = TIMEOUT_S) -> str:
    """Wait for a program's end and return what it printed.

    Raises:
        Failed: it returned non-zero or took longer than ``timeout`` seconds.
    """
    try:
        output, errors = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        end(process)
        raise Failed(f"no answer within {timeout:g} s") from None
    if process.returncode != 0:
        lines = [line for line in errors.splitlines() if line.strip()]
        raise Failed(lines[-1].strip() if lines else f"exit status {process.returncode}")
    return output


def run(command: Sequence[str], environment: Mapping[str, str] | None = None) -> str:
    """Run a program to its end; returns what it printed.

    Raises:
        Failed: it failed.
    """
    process = start(command, environment=environment)
    try:
        return finish(process)
    finally:
        end(process)


def run_worker(command: Sequence[str], environment: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Run a worker script; its last line of output is a JSON object, which is returned.

    Raises:
        Failed: it failed, or printed no such line.
    """
    output = run(command, environment)
    try:
        answer = json.loads(output.strip().splitlines()[-1])
    except (IndexError, ValueError):
        raise Failed(f"no figure in the output of {command[0]}") from None
    if not isinstance(answer, dict):
        raise Failed(f"no figure in the output of {command[0]}")
    return answer


def run_pair(
    server: Sequence[str],
    client: Sequence[str],
    cores: tuple[int, int] | tuple[None, None],
    port: int,
    environment: Mapping[str, str] | None = None,
) -> str:
    """Run a server and, once it listens on TCP ``port``, its client; return what the client printed.

    Raises:
        Failed: one of them failed.
    """
    serving = start(server, cores[0], environment)
    try:
        wait_for_listener(port, serving)
        asking = start(client, cores[1], environment)
        try:
            output = finish(asking)
        finally:
            end(asking)
        # It ends by itself, and then its account has the time of its own children too.
        with contextlib.suppress(Failed):
            finish(serving, SERVER_END_S)
        return output
    finally:
        end(serving)


def free_port() -> int:
    """A TCP port of 127.0.0.1 that nobody uses now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _listening(port: int) -> bool:
    """Whether some socket listens on TCP ``port`` (connecting to find out would use up the server's one client)."""
    wanted = f":{port:04X}"
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with contextlib.suppress(OSError), open(table, encoding="ascii") as file:
            for line in file:
                fields = line.split()
                if fields[1].endswith(wanted) and fields[3] == "0A":
                    return True
    return False


def wait_for_listener(port: int, server: subprocess.Popen[str], timeout: float = 10.0) -> None:
    """Return when ``server`` listens on ``port``."""
    limit = time.monotonic() + timeout
    while not _listening(port):
        if server.poll() is not None:
            finish(server)
            raise Failed("the server ended before its client came")
        if time.monotonic() > limit:
            raise Failed(f"the server does not listen after {timeout:g} s")
        time.sleep(0.02)
