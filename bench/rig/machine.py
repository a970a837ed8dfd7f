# SPDX-License-Identifier: MIT
"""On what the benchmark ran."""

from __future__ import annotations

import datetime
import os
import platform
import re
import shutil
import subprocess
from importlib import metadata
from pathlib import Path

from rig import debian


def _processor() -> str:
    """The processor's name, from ``/proc/cpuinfo``."""
    try:
        found = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(encoding="utf-8"), re.MULTILINE)
    except OSError:
        found = None
    return found[1] if found else platform.machine()


def _first_line(*command: str) -> str:
    """The first line that a command prints, or nothing if it is not here."""
    if shutil.which(command[0]) is None:
        return ""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip().splitlines()[0] if done.returncode == 0 and done.stdout.strip() else ""


def _package(python: str, name: str) -> str:
    """The version of a package in ``python``, or nothing."""
    return _first_line(python, "-c", f"from importlib.metadata import version; print(version({name!r}))")


def describe(python: str, peer_python: str, source: Path) -> dict[str, str]:
    """Names and values for the head of the report; peers that are missing are left out.

    Called after the measurements: it asks the programs that they have used.
    """
    try:
        version = metadata.version("softverbs")
    except metadata.PackageNotFoundError:
        version = _package(python, "softverbs") or "not installed"
    commit = _first_line("git", "-C", str(source), "describe", "--always", "--dirty")
    found = {
        "date": datetime.datetime.now(tz=datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        "softverbs": f"{version} ({commit})" if commit else version,
        "processor": f"{os.cpu_count()} cores of {_processor()}",
        "kernel": f"{platform.system()} {platform.release()}",
        "Python": _first_line(python, "-c", "import platform; print(platform.python_version())"),
        "Open MPI": _first_line("mpirun", "--version").rpartition(" ")[2],
        "mpi4py": _package(peer_python, "mpi4py"),
        "pyzmq": _package(peer_python, "pyzmq"),
        **debian.versions(),
    }
    return {name: value for name, value in found.items() if value}
