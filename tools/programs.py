"""Fetches programs that use libibverbs, for tests/programs: Debian's ibverbs-utils and perftest, with their libraries.

    python tools/programs.py       prints the folder; nothing is installed

They are unpacked into .cache/programs, once. ``apt-get download`` needs no privilege, and checks the signature. Exit
status 1 with the reason where they cannot be had. Debian's libibverbs1 is not among them: softverbs has its own.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CACHE = ROOT / ".cache" / "programs"
PACKAGES = ("ibverbs-utils", "perftest")
#: What they are linked with, beside the C library; ibverbs-providers has libmlx5 and libefa.
LIBRARIES = ("ibverbs-providers", "libibumad3", "libnl-3-200", "libnl-route-3-200", "libpci3", "librdmacm1")


def fetch() -> Path:
    """The folder that the packages are unpacked in.

    :raises OSError: a tool is missing
    :raises subprocess.SubprocessError: the packages cannot be had
    """
    if CACHE.is_dir():
        return CACHE
    CACHE.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE.parent) as scratch:
        as_root = ["-o", "APT::Sandbox::User=root"] if os.geteuid() == 0 else []
        words = ["apt-get", "-qq", *as_root, "download", *PACKAGES, *LIBRARIES]
        subprocess.run(words, cwd=scratch, check=True, timeout=180, stdout=sys.stderr)
        for archive in sorted(Path(scratch).glob("*.deb")):
            subprocess.run(["dpkg-deb", "-x", archive.name, "unpacked"], cwd=scratch, check=True, timeout=60)
        try:
            Path(scratch, "unpacked").rename(CACHE)
        except OSError:
            if not CACHE.is_dir():  # another process was faster
                raise
    return CACHE


def main() -> int:
    """The command; its exit status."""
    if not (shutil.which("apt-get") and shutil.which("dpkg-deb")):
        print("the programs come from Debian's packages: apt-get and dpkg-deb are needed", file=sys.stderr)
        return 1
    try:
        print(fetch())
    except (OSError, subprocess.SubprocessError) as error:
        print(f"the programs cannot be fetched: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
