# SPDX-License-Identifier: MIT
"""The C driver for tests: the installed one, or one that is built for them; and how a program is run on a device."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest

import softverbs
from softverbs.server import driver

ROOT = Path(__file__).resolve().parent.parent
CC = os.environ.get("CC", "cc")


@cache
def tool() -> ModuleType:
    """tools/build_driver.py as a module."""
    spec = importlib.util.spec_from_file_location("build_driver", ROOT / "tools" / "build_driver.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@cache
def _built() -> Path | str:
    """The folder of a driver that is built now; or why that cannot be."""
    if shutil.which(CC.split()[0]) is None:
        return "there is no C compiler, and no C driver is installed"
    if tool().include() is None:
        return "the headers of libibverbs are missing (Debian: libibverbs-dev), and no C driver is installed"
    folder = Path(tempfile.mkdtemp(prefix="softverbs-driver-"))
    import atexit

    atexit.register(shutil.rmtree, folder, True)
    tool().build(folder)
    return folder


def folder() -> Path:
    """The folder of our libibverbs.so.1; the test is skipped where there is none."""
    try:
        return driver.folder()
    except FileNotFoundError:
        found = _built()
    if isinstance(found, str):
        pytest.skip(found)
    return found


def headers() -> list[str]:
    """The compiler's words for the headers of libibverbs; the test is skipped where C cannot be compiled."""
    include = tool().include()
    if include is None or shutil.which(CC.split()[0]) is None:
        pytest.skip("a C compiler and the headers of libibverbs (Debian: libibverbs-dev) are needed")
    return [f"-I{ROOT}/driver/include", *([] if include == Path("/usr/include") else [f"-I{include}"])]


def environment(**more: str) -> dict[str, str]:
    """The environment for ``softverbs run`` and ``softverbs serve``."""
    package = str(Path(softverbs.__path__[0]).parent)
    return {**os.environ, "PYTHONPATH": package, "SOFTVERBS_DRIVER": str(folder()), **more}


def softverbs_run(*program: str) -> list[str]:
    """The words of ``softverbs run -- PROGRAM``."""
    return [sys.executable, "-m", "softverbs", "run", "--", *program]


def output(words: Sequence[str], env: dict[str, str], timeout: float = 100) -> str:
    """What a program prints, which has to succeed."""
    done = subprocess.run(
        words,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=timeout,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout
