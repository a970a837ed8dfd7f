# SPDX-License-Identifier: MIT
"""Fetches programs for tests and benchmarks from Debian's packages, with their libraries; nothing is installed.

    python tools/programs.py [SET...]       prints a folder for each set

    verbs       ibverbs-utils and perftest (where no set is named)
    libfabric   fi_pingpong, fi_info
    ucx         ucx_perftest, ucx_info
    rdmacm      rping, ucmatose, rstream and the other programs of librdmacm
    pyverbs     pyverbs with its tests; Python's library for it is a set by itself, libpython
    qperf       qperf
    libibverbs  Debian's libibverbs, for what shall run without softverbs; no other set has one

Each set is unpacked into a folder of its own in .cache/programs, once. ``apt-get download`` needs no privilege, and
checks the signature. Exit status 1 with the reason where a set cannot be had.
"""

import argparse
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CACHE = ROOT / ".cache" / "programs"
#: What everything that uses libibverbs is linked with; ibverbs-providers has libmlx5 and libefa.
VERBS_LIBRARIES = ("ibverbs-providers", "libnl-3-200", "libnl-route-3-200", "librdmacm1")
#: Intel's PSM exists on this processor only, and libfabric is linked with it there.
PSM = ("libpsm-infinipath1", "libpsm2-2", "libuuid1") if platform.machine() == "x86_64" else ()
#: The packages of each set: those with the programs, and what they are linked with beside the C and C++ libraries.
SETS: Mapping[str, Sequence[str]] = {
    "verbs": ("ibverbs-utils", "perftest", *VERBS_LIBRARIES, "libibumad3", "libpci3"),
    "libfabric": ("libfabric-bin", "libfabric1", *VERBS_LIBRARIES, "libatomic1", "libnuma1", *PSM),
    "ucx": ("ucx-utils", "libucx0", *VERBS_LIBRARIES, "libgomp1", "libnuma1"),
    "rdmacm": ("rdmacm-utils", *VERBS_LIBRARIES),
    "pyverbs": ("python3-pyverbs", *VERBS_LIBRARIES),
    "libpython": ("libpython3.11",),
    "qperf": ("qperf", *VERBS_LIBRARIES),
    "libibverbs": ("libibverbs1", *VERBS_LIBRARIES),
}
DEFAULT = "verbs"


class Unavailable(Exception):
    """A set of programs cannot be had; the text says why."""


def fetch(name: str = DEFAULT) -> Path:
    """The folder that the packages of a set are unpacked in; they are downloaded the first time.

    :raises Unavailable: they cannot be had
    """
    folder = CACHE / name
    if folder.is_dir():
        return folder
    if not (shutil.which("apt-get") and shutil.which("dpkg-deb")):
        raise Unavailable("the programs come from Debian's packages: apt-get and dpkg-deb are needed")
    try:
        CACHE.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=CACHE) as scratch:
            unpacked = _unpack(SETS[name], Path(scratch))
            try:
                unpacked.rename(folder)
            except OSError:
                if not folder.is_dir():  # another process was faster
                    raise
    except (OSError, subprocess.SubprocessError) as error:
        raise Unavailable(f"the programs cannot be fetched: {error}") from error
    return folder


def _unpack(packages: Sequence[str], scratch: Path) -> Path:
    """Downloads packages into ``scratch`` and unpacks them into a folder in it, which is returned."""
    as_root = ["-o", "APT::Sandbox::User=root"] if os.geteuid() == 0 else []
    words = ["apt-get", "-qq", *as_root, "download", *packages]
    subprocess.run(words, cwd=scratch, check=True, timeout=180, stdout=sys.stderr)
    for archive in sorted(scratch.glob("*.deb")):
        subprocess.run(["dpkg-deb", "-x", archive.name, "unpacked"], cwd=scratch, check=True, timeout=60)
    # Installing this package makes a link by update-alternatives; the library is looked for under that name.
    for library in scratch.glob("unpacked/usr/lib/libpsm1/libpsm_infinipath.so.1.*"):
        library.with_name("libpsm_infinipath.so.1").symlink_to(library.name)
    return scratch / "unpacked"


def environment(*folders: Path) -> dict[str, str]:
    """The variables that programs of unpacked sets need: the folders of their libraries, then those of the caller."""
    found = [
        str(path.parent) for folder in folders for path in sorted(folder.glob("**/lib*.so.*")) if _is_searched(path)
    ]
    before = os.environ.get("LD_LIBRARY_PATH")
    return {"LD_LIBRARY_PATH": ":".join([*dict.fromkeys(found), *([before] if before else [])])}


def _is_searched(library: Path) -> bool:
    """Whether a library is linked with, rather than loaded by its path: those are in folders of plugins."""
    return library.parent.name not in ("ucx", "libibverbs", "rsocket")


def find(program: str, *names: str) -> tuple[str, dict[str, str]]:
    """A program's path, and the variables that it needs: the system's where it is installed, else that of a set.

    :param program: the file's name, such as ``fi_pingpong``
    :param names: the sets that it needs; the first has the program
    :raises Unavailable: it is not installed, and a set cannot be had or does not have it
    """
    if found := shutil.which(program):
        return found, {}
    folders = [fetch(name) for name in names]
    path = folders[0] / "usr" / "bin" / program
    if not path.is_file():
        raise Unavailable(f"no {program} in Debian's {SETS[names[0]][0]}")
    return str(path), environment(*folders)


def main(given: Sequence[str] | None = None) -> int:
    """The command; its exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("set", nargs="*", help=", ".join(SETS))
    names = parser.parse_args(given).set or [DEFAULT]
    if unknown := [name for name in names if name not in SETS]:
        parser.error(f"there is no set {unknown[0]}: {', '.join(SETS)}")
    try:
        for name in names:
            print(fetch(name))
    except Unavailable as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
