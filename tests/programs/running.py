# SPDX-License-Identifier: MIT
"""Runs unmodified programs on devices of ``softverbs serve``: where they are, and how two of them are started.

The programs are taken from the system where they are installed, else fetched into .cache/programs (tools/programs.py).
"""

from __future__ import annotations

import itertools
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import IO

import pytest
from tests import driver
from tools import programs

from softverbs.server import driver as installed

_drawn = itertools.count()


@cache
def _found(name: str, group: str) -> tuple[str, dict[str, str]] | str:
    try:
        return programs.find(name, group)
    except programs.Unavailable as error:
        return str(error)


def program(name: str, group: str = programs.DEFAULT) -> tuple[str, dict[str, str]]:
    """The path of a program and the variables that it needs; the test is skipped where it cannot be had.

    :param name: the file's name
    :param group: the set of tools/programs.py that it belongs to
    """
    found = _found(name, group)
    if isinstance(found, str):
        pytest.skip(found)
    return found


def needs_librdmacm() -> None:
    """Skips the test where the driver was built without its librdmacm.so.1."""
    if not (driver.folder() / "librdmacm.so.1").is_file():
        pytest.skip("librdmacm.so.1 was not built: the headers of librdmacm are missing (Debian: librdmacm-dev)")


class Served:
    """A device in a process of its own, for any number of programs."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="softverbs-")
        self.socket = os.path.join(self._folder.name, "socket")
        self.libraries = driver.folder()
        words = [sys.executable, "-m", "softverbs", "serve", "--socket", self.socket]
        self.process = subprocess.Popen(
            words, env=driver.environment(), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        #: What it prints first: its name and addresses.
        self.title = self.process.stdout.readline()
        assert self.title, "softverbs serve did not start"

    def environment(self, base: dict[str, str]) -> dict[str, str]:
        """The variables of a program that is to use this device.

        :param base: those that it needs besides
        """
        return installed.environment({**os.environ, **base}, self.socket, self.libraries)

    def close(self) -> int:
        """Ends the device; the exit status of its process."""
        self.process.terminate()
        try:
            return self.process.wait(20)
        finally:
            self.process.kill()
            self.process.communicate()
            self._folder.cleanup()

    def __enter__(self) -> Served:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


@dataclass
class Outcome:
    """How a server and its client have ended, and what they printed, stderr included."""

    codes: tuple[int | None, int | None]
    server: str
    client: str
    seconds: float

    @property
    def text(self) -> str:
        return f"{self.server}-- client, exit statuses {self.codes[0]} and {self.codes[1]}:\n{self.client}"

    @property
    def succeeded(self) -> bool:
        return self.codes == (0, 0)


def free_port() -> str:
    """A port of TCP that nobody has; below those that connections get, so that none takes it meanwhile."""
    lowest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    first, count = (lowest - 10000, 10000) if lowest > 20000 else (20000, 10000)
    for _ in range(count):
        number = first + (os.getpid() * 97 + next(_drawn)) % count  # not the same as another run of tests
        with socket.socket() as probe:
            try:
                probe.bind(("0.0.0.0", number))
            except OSError:
                continue
            return str(number)
    raise OSError("no free port")


def listening(port: str) -> bool:
    """Whether somebody listens on a port of TCP; without connecting, which the program would take for its peer."""
    wanted = f":{int(port):04X}"
    for name in ("/proc/net/tcp", "/proc/net/tcp6"):
        with open(name) as table:
            if any(row.split()[1].endswith(wanted) and row.split()[3] == "0A" for row in list(table)[1:]):
                return True
    return False


def pair(
    words: Sequence[str],
    port: str,
    server: dict[str, str],
    client: dict[str, str],
    timeout: float = 60,
    other: Sequence[str] = (),
) -> Outcome:
    """Starts a program as server and, when that listens, as client; what became of them.

    A side that has not ended in time, or whose peer failed, is killed: its exit status is negative.

    :param words: the program and its arguments, with the port among them; the client has the address besides
    :param port: the port that the server will listen on
    :param server: the environment of the server
    :param client: the environment of the client
    :param timeout: seconds for both together
    :param other: the client's words where they are not those of the server and its address
    """
    began = time.monotonic()
    with tempfile.TemporaryFile("w+") as said, tempfile.TemporaryFile("w+") as told:
        first = _start(words, server, said)
        second: subprocess.Popen[str] | None = None
        try:
            while not listening(port) and first.poll() is None and time.monotonic() < began + timeout:
                time.sleep(0.005)
            second = _start(other or [*words, "127.0.0.1"], client, told)
            end = began + timeout
            _wait(second, end)
            # A client that failed leaves a server that waits for it forever.
            _wait(first, end if second.returncode == 0 else time.monotonic() + 1)
        finally:
            for process in (first, second):
                if process is not None and process.poll() is None:
                    process.kill()
                    process.wait()
        assert second is not None
        return Outcome((first.returncode, second.returncode), _all(said), _all(told), time.monotonic() - began)


def _start(words: Sequence[str], environment: dict[str, str], output: IO[str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        words, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, text=True
    )


def _wait(process: subprocess.Popen[str], end: float) -> None:
    try:
        process.wait(max(end - time.monotonic(), 0))
    except subprocess.TimeoutExpired:
        pass


def _all(file: IO[str]) -> str:
    file.seek(0)
    return file.read()
