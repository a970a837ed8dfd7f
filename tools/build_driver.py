"""Builds the C driver: our own libibverbs.so.1, from driver/.

    python tools/build_driver.py [--output FOLDER] [--check]

An installation of the package builds the same by CMakeLists.txt. Needs a C compiler and the headers of libibverbs
(Debian: libibverbs-dev). ``driver/abi.h`` is written first, from
src/softverbs/server/abi.py. ``--check`` only says whether the one in the tree is up to date.
"""

import argparse
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DRIVER = ROOT / "driver"
OUTPUT = ROOT / "src" / "softverbs" / "_driver"
SONAME = "libibverbs.so.1"
#: Where the headers of libibverbs may be: the system's, and those that tools/venv.py fetched.
INCLUDES = (Path("/usr/include"), ROOT / ".venv" / "headers" / "usr" / "include")
FLAGS = ("-std=gnu11", "-O2", "-g", "-Wall", "-Wextra", "-fPIC", "-fvisibility=hidden", "-pthread", "-D_GNU_SOURCE")


def abi_header() -> str:
    """The text of abi.h, as src/softverbs/server/abi.py makes it."""
    environment = dict(os.environ, PYTHONPATH=str(ROOT / "src"))
    command = (sys.executable, "-m", "softverbs.server.abi")
    return subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True).stdout


def include() -> Path | None:
    """The folder of the headers of libibverbs; None where they are missing."""
    return next((folder for folder in INCLUDES if (folder / "infiniband" / "verbs.h").is_file()), None)


def build(output: Path) -> Path:
    """Compiles and links; the library.

    :raises FileNotFoundError: there are no headers of libibverbs
    """
    headers = include()
    if headers is None:
        raise FileNotFoundError("the headers of libibverbs are missing (Debian: libibverbs-dev)")
    where = [] if headers == INCLUDES[0] else [f"-I{headers}"]
    output.mkdir(parents=True, exist_ok=True)
    library = output / SONAME
    map_file = DRIVER / "libibverbs.map"
    sources = sorted(str(path) for path in DRIVER.glob("*.c"))
    compiler = os.environ.get("CC", "cc")
    linking = ("-shared", f"-Wl,-soname,{SONAME}", f"-Wl,--version-script={map_file}", "-Wl,-z,defs")
    subprocess.run((compiler, *FLAGS, *where, *sources, *linking, "-o", str(library)), check=True)
    return library


def main() -> int:
    """The command; its exit status."""
    parser = argparse.ArgumentParser(description="Builds libibverbs.so.1 from driver/.")
    parser.add_argument("--output", type=Path, default=OUTPUT, help="folder for the library")
    parser.add_argument("--check", action="store_true", help="only look whether driver/abi.h is up to date")
    options = parser.parse_args()
    header = abi_header()
    current = DRIVER / "abi.h"
    if options.check:
        if current.read_text() == header:
            return 0
        print(f"{current} is not what src/softverbs/server/abi.py says: run tools/build_driver.py", file=sys.stderr)
        return 1
    if not current.exists() or current.read_text() != header:
        current.write_text(header)
    try:
        print(build(options.output))
    except (FileNotFoundError, subprocess.CalledProcessError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
