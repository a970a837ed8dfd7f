# SPDX-License-Identifier: MIT
"""Unmodified Python programs on the C driver: Debian's pyverbs with rdma-core's tests, and PyPI's package ``ibverbs``.

Both are fetched into .cache, once; nothing is installed. What cannot be had here is skipped, and the reason is shown.
"""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

import pytest
from tests import driver
from tools import rdma_core_tests as tool

import softverbs

QUICK_START = Path(__file__).with_name("ibverbs_quick_start.py")
#: As it was tried; the wheel is for every CPython since 3.9.
IBVERBS = "ibverbs==2026.10.22"
#: Files of rdma-core's tests for the uncompiled core, where all of them take a minute.
SOME = ("test_atomic", "test_cq_events", "test_device", "test_mr", "test_parent_domain", "test_qp", "test_shared_pd")


def test_rdma_core_tests_of_debians_pyverbs() -> None:
    """All outcomes are as they are kept in tests/data/rdma_core_44_driver.tsv: 142 pass, and 28 are skipped."""
    words = [sys.executable, str(driver.ROOT / "tools" / "rdma_core_tests.py"), "--suite", "driver"]
    some = SOME if softverbs.core_build == "pure" else ()
    done = subprocess.run([*words, *some], env=driver.environment(), capture_output=True, text=True, timeout=170)
    lines = done.stdout.splitlines()
    if done.returncode == tool.CANNOT_RUN:
        pytest.skip(lines[-1])
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
    kept = tool.read(tool.DATA / "rdma_core_44_driver.tsv")
    expected = [name for name in kept if name.split(".")[1] in some or not some]
    if not (driver.folder() / "librdmacm.so.1").is_file():
        expected = [name for name in expected if not name.startswith("tests.test_rdmacm.")]
    assert lines[-1].endswith(f"all {len(expected)} outcomes are as expected")


@cache
def _ibverbs() -> Path | str:
    """The folder that holds PyPI's package ``ibverbs``; or why it cannot be had."""
    folder = driver.ROOT / ".cache" / re.sub(r"\W+", "-", IBVERBS)
    if folder.is_dir():
        return folder
    folder.parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        words = [sys.executable, "-m", "pip", "install", "-q", "--disable-pip-version-check", "--only-binary", ":all:"]
        words += ["--no-deps", "--no-compile", "--target", f"{scratch}/package", IBVERBS]
        done = subprocess.run(words, capture_output=True, text=True)
        if done.returncode:
            return f"{IBVERBS} cannot be had: {(done.stderr.strip().splitlines() or ['?'])[-1]}"
        try:
            Path(scratch, "package").rename(folder)
        except OSError:
            if not folder.is_dir():  # another process was faster
                raise
    return folder


def _environment() -> dict[str, str]:
    folder = _ibverbs()
    if isinstance(folder, str):
        pytest.skip(folder)
    environment = driver.environment()
    return {**environment, "PYTHONPATH": f"{environment['PYTHONPATH']}{os.pathsep}{folder}"}


def test_quick_start_of_ibverbs_on_one_device() -> None:
    text = driver.output(driver.softverbs_run(sys.executable, str(QUICK_START)), _environment())
    assert sorted(text.splitlines()) == ["a has b", "a is refused: REM_ACCESS_ERR", "b has a"]


def test_quick_start_of_ibverbs_on_two_devices() -> None:
    environment = _environment()
    a, b = socket.socketpair()
    with a, b:
        sides = [
            subprocess.Popen(
                driver.softverbs_run(sys.executable, str(QUICK_START), name, str(end.fileno())),
                env=environment, pass_fds=[end.fileno()], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            )
            for name, end in (("a", a), ("b", b))
        ]  # fmt: skip
    try:
        texts = [side.communicate(timeout=60)[0] for side in sides]
    finally:
        for side in sides:
            side.kill()
    assert texts == ["a has b\na is refused: REM_ACCESS_ERR\n", "b has a\n"]
    assert [side.returncode for side in sides] == [0, 0]
