# SPDX-License-Identifier: MIT
"""UCX and libfabric of Debian on the device, unmodified: as far as they go, which docs/run.md says in words."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from tests import driver
from tests.programs.running import Outcome, Served, free_port, pair, program

import softverbs
from softverbs.cli import private_dev

FEW = "200" if softverbs.core_build == "compiled" else "20"
WITH_DEV = (sys.executable, "-m", "softverbs", "run", "--dev", "--")


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    """One device for all programs here."""
    with Served() as device:
        yield device
        assert device.process.poll() is None, "the device has ended before its time"


@cache
def _no_namespace() -> str:
    """Why a program cannot have a /dev of its own; empty where it can."""
    with tempfile.TemporaryDirectory() as folder:
        words = [sys.executable, "-I", "-S", private_dev.__file__, folder, "true"]
        done = subprocess.run(words, stderr=subprocess.PIPE, text=True)
    return done.stderr if done.returncode == private_dev.REFUSED else ""


@pytest.fixture
def ucx() -> tuple[str, dict[str, str]]:
    """``ucx_perftest`` and the variables that it needs."""
    if reason := _no_namespace():
        pytest.skip(reason)
    return program("ucx_perftest", "ucx")


def _ucx(served: Served, ucx: tuple[str, dict[str, str]], folder: Path, *arguments: str, **variables: str) -> Outcome:
    """``ucx_perftest`` as server and client on one device, each with a /dev of its own."""
    path, needed = ucx
    port = free_port()
    words = [sys.executable, "-I", "-S", private_dev.__file__, str(folder), path, "-p", port, "-n", FEW, "-w", "5"]
    environment = served.environment({**needed, **variables})
    return pair([*words, *arguments], port, environment, environment, timeout=100)


@pytest.mark.parametrize(
    "words",
    [
        "-x rc_verbs -t am_lat",
        "-x rc_verbs -t put_bw -D zcopy -s 65536",
        "-x rc_verbs -t get -D zcopy -s 1000",
        "-x rc_verbs -t fadd",
        "-x ud_verbs -t am_bw",
        "-x ud_verbs -t am_lat -D bcopy -s 1000",
    ],
)
def test_ucx_transports(served: Served, ucx: tuple[str, dict[str, str]], tmp_path: Path, words: str) -> None:
    """Messages over both; remote memory over RC, since datagrams have none."""
    outcome = _ucx(served, ucx, tmp_path, *words.split(), "-d", "softverbs0:1")
    assert outcome.succeeded, outcome.text
    assert "Final:" in outcome.client, outcome.text


@pytest.mark.parametrize("transport", ["rc", "ud"])
def test_ucx_protocols(served: Served, ucx: tuple[str, dict[str, str]], tmp_path: Path, transport: str) -> None:
    """The layer that MPI uses: tagged messages, above the eager limit too."""
    outcome = _ucx(
        served, ucx, tmp_path, "-t", "tag_lat", "-s", "100000", UCX_TLS=transport, UCX_NET_DEVICES="softverbs0:1"
    )
    assert outcome.succeeded, outcome.text
    assert "Final:" in outcome.client, outcome.text


def test_ucx_between_two_devices(ucx: tuple[str, dict[str, str]]) -> None:
    """Each side in ``softverbs run --dev``."""
    path, needed = ucx
    port = free_port()
    words = [*WITH_DEV, path, "-p", port, "-n", FEW, "-w", "5", "-t", "am_lat", "-x", "ud_verbs", "-d", "softverbs0:1"]
    environment = driver.environment(**needed)
    outcome = pair(words, port, environment, environment, timeout=100)
    assert outcome.succeeded, outcome.text
    assert "Final:" in outcome.client, outcome.text


def test_ucx_looks_for_its_file(served: Served, tmp_path: Path) -> None:
    """What ``--dev`` is for: without it UCX finds no device."""
    path, needed = program("ucx_info", "ucx")
    environment = served.environment(needed)
    if not Path(private_dev.DEVICE).exists():
        assert "softverbs0" not in driver.output([path, "-d"], environment)
    if reason := _no_namespace():
        pytest.skip(reason)
    words = [sys.executable, "-I", "-S", private_dev.__file__, str(tmp_path), path, "-d"]
    assert "softverbs0" in driver.output(words, environment)


def _pingpong(served: Served, *arguments: str) -> Outcome:
    path, needed = program("fi_pingpong", "libfabric")
    port = free_port()
    environment = served.environment(needed)
    client = [path, "-P", port, *arguments, "127.0.0.1"]
    return pair([path, "-B", port, *arguments], port, environment, environment, other=client)


def test_libfabric_reliable_datagrams(served: Served) -> None:
    """``ofi_rxd`` makes them of UD queue pairs."""
    outcome = _pingpong(served, "-p", "verbs;ofi_rxd", "-e", "rdm", "-I", FEW, "-S", "1024")
    assert outcome.succeeded, outcome.text
    assert f"={FEW}" in outcome.client, outcome.text
