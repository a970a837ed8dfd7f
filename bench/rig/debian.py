# SPDX-License-Identifier: MIT
"""Programs of Debian's packages: those of the system, or unpacked by tools/programs.py. Nothing is installed."""

from __future__ import annotations

import functools
import os
import subprocess
from collections.abc import Mapping

from tools import programs

from rig.model import Missing

PERFTEST = ("verbs",)
# The peers are linked with libibverbs. They get Debian's own, so that no driver of ours is in front of them.
LIBFABRIC = ("libfabric", "libibverbs")
UCX = ("ucx", "libibverbs")
# What says its version in the last word of its first line, and with which option.
VERSIONS = (
    ("perftest", "ib_write_lat", PERFTEST, "--version"),
    ("libfabric", "fi_info", LIBFABRIC, "--version"),
    ("UCX", "ucx_info", UCX, "-v"),
)
_used: set[tuple[str, ...]] = set()


@functools.cache
def _found(program: str, sets: tuple[str, ...]) -> tuple[str, Mapping[str, str]] | str:
    """A program and the variables that it needs, or why it cannot be had; asked once, since downloads take long."""
    try:
        return programs.find(program, *sets)
    except programs.Unavailable as reason:
        return str(reason)


def find(program: str, sets: tuple[str, ...]) -> tuple[str, Mapping[str, str]]:
    """A program's path, and the variables that it needs beside those of this process.

    Raises:
        Missing: it is neither installed nor to be had.
    """
    found = _found(program, sets)
    if isinstance(found, str):
        raise Missing(f"no {program} here: {found}")
    _used.add(sets)
    return found


def versions() -> dict[str, str]:
    """The versions of the packages that this run has used, by name."""
    found = {}
    for name, program, sets, option in VERSIONS:
        if sets in _used:
            path, variables = find(program, tuple(dict.fromkeys((*sets, "libibverbs"))))
            environment = {**os.environ, **variables}
            done = subprocess.run([path, option], capture_output=True, text=True, check=False, env=environment)
            if lines := (done.stdout + done.stderr).splitlines():
                found[name] = lines[0].split()[-1]
    return found
