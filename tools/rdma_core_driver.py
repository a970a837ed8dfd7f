# SPDX-License-Identifier: MIT
"""Debian's own pyverbs upon our libibverbs.so.1, for ``tools/rdma_core_tests.py --suite driver``.

The package python3-pyverbs is compiled for one version of CPython, and its tests belong to one version of rdma-core;
the outcomes that are kept are those of rdma-core 44 (Debian 12). Elsewhere it cannot be had, and the reason is said.
"""

import gzip
import json
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tools import programs

#: Of rdma-core: what is in Debian 12.
VERSION = "44"
#: Python's library, which Debian's extension modules are linked with.
LIBPYTHON = "libpython3.11.so.1.0"
#: The connection manager of ours, and the tests that need it: that of rdma-core asks the kernel.
LIBRDMACM = "librdmacm.so.1"
NEED_LIBRDMACM = ("test_rdmacm",)


@dataclass(frozen=True)
class Driver:
    """How the tests are run on real pyverbs."""

    #: which its extension modules are for
    interpreter: str
    #: of the package ``pyverbs``
    folder: Path
    #: what the libraries need
    variables: dict[str, str]
    #: files of tests that cannot run here
    left_out: tuple[str, ...] = ()

    def words(self, python: str) -> list[str]:
        """What stands before a script to run it on a device.

        :param python: interpreter that has softverbs
        """
        return [python, "-m", "softverbs", "run", "--", self.interpreter]


def version_of(package: Path) -> str:
    """Which rdma-core an unpacked python3-pyverbs is of.

    :raises programs.Unavailable: it does not say
    """
    for path in sorted(package.glob("usr/share/doc/*pyverbs*/changelog.Debian.gz")):
        with gzip.open(path, "rt") as text:
            return text.readline().partition("(")[2].partition(".")[0]
    raise programs.Unavailable("Debian's python3-pyverbs does not say which version it is")


def prepare(python: str) -> Driver:
    """What is needed to run the tests, fetched where it is not there yet.

    :param python: interpreter that has softverbs
    :raises programs.Unavailable: something cannot be had here
    """
    package = programs.fetch("pyverbs")
    if (version := version_of(package)) != VERSION:
        raise programs.Unavailable(f"Debian has rdma-core {version} here; outcomes are kept of {VERSION}")
    left_out = () if (library_folder(python) / LIBRDMACM).is_file() else NEED_LIBRDMACM
    folder = package / "usr" / "lib" / "python3" / "dist-packages"
    (module,) = folder.glob("pyverbs/device.*.so")
    interpreter, has_library = suitable(module.name.removeprefix("device"), ["/usr/bin/python3", python])
    folders = [package] if has_library else [package, programs.fetch("libpython")]
    return Driver(interpreter, folder, programs.environment(*folders), left_out)


def library_folder(python: str) -> Path:
    """Where the C driver is.

    :raises programs.Unavailable: there is none
    """
    program = "from softverbs.server import driver; print(driver.folder())"
    done = subprocess.run([python, "-c", program], capture_output=True, text=True, check=False)
    if done.returncode:
        raise programs.Unavailable(done.stderr.strip().splitlines()[-1].partition(": ")[2])
    return Path(done.stdout.strip())


def suitable(suffix: str, candidates: Iterable[str]) -> tuple[str, bool]:
    """The first interpreter whose extension modules end so, and whether it finds Python's library.

    :raises programs.Unavailable: none is
    """
    program = f"""
import ctypes, json, sysconfig
try:
    found = bool(ctypes.CDLL({LIBPYTHON!r}))
except OSError:
    found = False
print(json.dumps([sysconfig.get_config_var("EXT_SUFFIX"), found]))
"""
    for candidate in candidates:
        try:
            done = subprocess.run([candidate, "-c", program], capture_output=True, check=True)
        except (OSError, subprocess.SubprocessError):
            continue
        has, found = json.loads(done.stdout)
        if has == suffix:
            return candidate, found
    raise programs.Unavailable(f"Debian's pyverbs is for another Python: no interpreter takes modules *{suffix}")
