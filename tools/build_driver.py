# SPDX-License-Identifier: MIT
"""Builds the C driver: our own libibverbs.so.1, and the libraries that programs expect beside it, from driver/.

    python tools/build_driver.py [--output FOLDER] [--check]

A map of symbols makes a library: driver/libibverbs.map and the .c files beside it are libibverbs.so.1,
driver/efa/libefa.map and those beside it libefa.so.1. All but the first are linked with the first. Beside each lies one
under its developer's name, libibverbs.so, which only leads to it (driver/names).

An installation of the package builds the same by CMakeLists.txt. Needs a C compiler and the headers of libibverbs
(Debian: libibverbs-dev), for librdmacm.so.1 also those of librdmacm (librdmacm-dev); without them it is left out.
``driver/abi.h`` is written first, from src/softverbs/server/abi.py. ``--check`` only says whether the one in the tree
is up to date.
"""

import argparse
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DRIVER = ROOT / "driver"
OUTPUT = ROOT / "src" / "softverbs" / "_driver"
#: The library that the others are linked with.
FIRST = "libibverbs"
#: Where the headers of libibverbs may be: the system's, and those that tools/venv.py fetched.
INCLUDES = (Path("/usr/include"), ROOT / ".venv" / "headers" / "usr" / "include")
VERBS = "infiniband/verbs.h"
#: Headers that a library needs beside those; without them it is left out.
NEEDS = {"librdmacm": "rdma/rdma_cma.h"}
FLAGS = ("-std=gnu11", "-O2", "-g", "-Wall", "-Wextra", "-fPIC", "-fvisibility=hidden", "-pthread", "-D_GNU_SOURCE")
LINKING = ("-shared", "-Wl,-z,defs")
#: Of those that need another of ours: it is looked for beside them, and not where the program's DT_RPATH says.
BESIDE = ("-Wl,--enable-new-dtags", "-Wl,-rpath,$ORIGIN")
#: Of the developers' names: nothing but a need.
NAMING = ("-shared", "-nostdlib", "-Wl,--no-as-needed", *BESIDE)


def abi_header() -> str:
    """The text of abi.h, as src/softverbs/server/abi.py makes it."""
    environment = dict(os.environ, PYTHONPATH=str(ROOT / "src"))
    command = (sys.executable, "-m", "softverbs.server.abi")
    return subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True).stdout


def found(header: str) -> Path | None:
    """The folder of headers that has one; None where it is missing."""
    return next((folder for folder in INCLUDES if (folder / header).is_file()), None)


def include() -> Path | None:
    """The folder of the headers of libibverbs; None where they are missing."""
    return found(VERBS)


def maps() -> list[Path]:
    """The map of each library that can be built, that of libibverbs first."""
    others = [path for path in sorted(DRIVER.glob("*/*.map")) if found(NEEDS.get(path.stem, VERBS)) is not None]
    return [DRIVER / f"{FIRST}.map", *others]


def build(output: Path, extra: Sequence[str] = ()) -> list[Path]:
    """Compiles and links; the libraries, libibverbs.so.1 first, without those under developers' names.

    :param output: the folder for them
    :param extra: more words for the compiler, as ``-fsanitize=thread``
    :raises FileNotFoundError: there are no headers of libibverbs
    """
    headers = include()
    if headers is None:
        raise FileNotFoundError("the headers of libibverbs are missing (Debian: libibverbs-dev)")
    folders = dict.fromkeys(found(header) for header in (VERBS, *NEEDS.values()))
    where = [f"-I{DRIVER}", *(f"-I{folder}" for folder in folders if folder not in (None, INCLUDES[0]))]
    output.mkdir(parents=True, exist_ok=True)
    built: list[Path] = []
    for map_file in maps():
        library = output / f"{map_file.stem}.so.1"
        sources = sorted(map_file.parent.glob("*.c"))
        first: tuple[str | Path, ...] = (*BESIDE, *built[:1]) if built else ()
        linking = (*LINKING, f"-Wl,-soname,{library.name}", f"-Wl,--version-script={map_file}", *first)
        compile_all(*FLAGS, *extra, *where, *sources, *linking, "-o", library)
        compile_all(*FLAGS, DRIVER / "names" / "name.c", *NAMING, library, "-o", output / f"{map_file.stem}.so")
        built.append(library)
    return built


def compile_all(*words: str | Path) -> None:
    """Calls the compiler."""
    subprocess.run([os.environ.get("CC", "cc"), *map(str, words)], check=True)


def main() -> int:
    """The command; its exit status."""
    parser = argparse.ArgumentParser(description="Builds libibverbs.so.1 and what goes with it from driver/.")
    parser.add_argument("--output", type=Path, default=OUTPUT, help="folder for the libraries")
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
        print(*build(options.output), sep="\n")
    except (FileNotFoundError, subprocess.CalledProcessError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
