# SPDX-License-Identifier: MIT
"""Importing softverbs is silent, starts nothing, and says truly which build it is."""

import subprocess
import sys

import softverbs
from softverbs.core.memory import raw as memory


def run(code: str) -> str:
    """What a fresh interpreter prints for ``code``, with every warning an error; nothing may appear on stderr."""
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.strip()


def test_import_is_silent() -> None:
    assert run("import softverbs") == ""


def test_import_starts_no_thread() -> None:
    code = "import os, softverbs; print(len(os.listdir('/proc/self/task')))"
    assert run(code) == "1"


def test_import_opens_no_file() -> None:
    count = "len(os.listdir('/proc/self/fd'))"
    assert run(f"import os; before = {count}; import softverbs; print({count} - before)") == "0"


def test_import_loads_nothing_heavy() -> None:
    heavy = ["numpy", "scapy", "click", "rich", "asyncio", "multiprocessing"]
    code = f"import sys, softverbs; print([name for name in {heavy} if name in sys.modules])"
    assert run(code) == "[]"


def test_core_build_is_true() -> None:
    loaded = "compiled" if (memory.__file__ or "").endswith(".so") else "pure"
    assert softverbs.core_build == loaded


def test_version_is_the_installed_one() -> None:
    from importlib.metadata import version

    assert softverbs.__version__ == version("softverbs")
