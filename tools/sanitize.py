# SPDX-License-Identifier: MIT
"""Runs the C programs of tests/c on a C driver that is built with the compiler's sanitizers.

    python tools/sanitize.py [--python PYTHON] [--seed SEED] [--time MS] [thread] [address] [PROGRAM ...]

``thread`` is ThreadSanitizer, ``address`` AddressSanitizer with UndefinedBehaviorSanitizer; both by default. Driver and
programs are built alike, in build/sanitize, and run on a device by ``softverbs run``. The device is another process: a
sanitizer does not see what it does to the memory that both share, so the driver reads and writes there by atomic
operations, or by others that such an operation orders.

ThreadSanitizer refuses to start where the kernel places memory more randomly than it expects (vm.mmap_rnd_bits above
28), so the programs are started with ``setarch -R`` where there is one, which turns that off for them alone.
"""

import argparse
import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parent.parent
SOURCES = ROOT / "tests" / "c"
#: Words for the compiler, and the variables with what a sanitizer is to do.
KINDS = {
    "thread": (
        ("-fsanitize=thread", "-Wno-tsan"),
        {"TSAN_OPTIONS": "exitcode=66 die_after_fork=0 second_deadlock_stack=1"},
    ),
    "address": (
        ("-fsanitize=address,undefined", "-fno-sanitize-recover=undefined", "-fno-omit-frame-pointer"),
        {"ASAN_OPTIONS": "exitcode=66 detect_stack_use_after_return=1", "UBSAN_OPTIONS": "print_stacktrace=1"},
    ),
}
#: Programs, and what they are linked with beside libibverbs.
PROGRAMS = {
    "stress": (), "driver": (), "counters": (), "counted": (), "efa_counters": ("libefa",), "slots": (),
    "cm": ("librdmacm",),
}  # fmt: skip
REPORTED = ("ThreadSanitizer", "AddressSanitizer", "LeakSanitizer", "runtime error:")


def tool() -> ModuleType:
    """tools/build_driver.py as a module."""
    spec = importlib.util.spec_from_file_location("build_driver", ROOT / "tools" / "build_driver.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def compile_program(name: str, folder: Path, flags: tuple[str, ...]) -> Path:
    """Compiles a program of tests/c, linked with the driver that is in the same folder."""
    builder = tool()
    headers = dict.fromkeys(builder.found(header) for header in (builder.VERBS, *builder.NEEDS.values()))
    words = [os.environ.get("CC", "cc"), "-std=gnu11", "-D_GNU_SOURCE", "-g", "-O1", "-Wall", *flags, "-pthread"]
    words += [f"-I{ROOT / 'driver' / 'include'}", *(f"-I{path}" for path in headers if path)]
    words += [str(SOURCES / f"{name}.c"), "-o", str(folder / name), f"-L{folder}"]
    words += [f"-l:{library}.so.1" for library in (*PROGRAMS[name], "libibverbs")]
    subprocess.run(words, check=True)
    return folder / name


def without_randomization(program: Path) -> list[str]:
    """The words that start a program at the same addresses each time, where that can be had."""
    setarch = shutil.which("setarch")
    if setarch and subprocess.run([setarch, "-R", "true"], check=False, stderr=subprocess.DEVNULL).returncode == 0:
        return [setarch, "-R", str(program)]
    return [str(program)]


def run(kind: str, name: str, options: argparse.Namespace) -> bool:
    """Runs one program on one sanitizer; whether nothing was found."""
    flags, variables = KINDS[kind]
    folder = ROOT / "build" / "sanitize" / kind
    program = compile_program(name, folder, flags)
    arguments = [str(options.seed), str(options.time)] if name == "stress" else []
    words = [options.python, "-m", "softverbs", "run", "--", *without_randomization(program), *arguments]
    environment = {**os.environ, **variables, "SOFTVERBS_DRIVER": str(folder)}
    done = subprocess.run(
        words, check=False, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    lines = done.stdout.splitlines()
    clean = done.returncode == 0 and "done" in lines and not any(word in done.stdout for word in REPORTED)
    print(f"{kind:8} {name:13} {'clean' if clean else f'exit code {done.returncode}'}", flush=True)
    if not clean:
        print(done.stdout)
    return clean


def main() -> int:
    """The command; its exit status."""
    parser = argparse.ArgumentParser(description="Runs the C programs of tests/c on a sanitized C driver.")
    parser.add_argument("--python", default=sys.executable, help="a Python that has softverbs")
    parser.add_argument("--seed", type=int, default=1, help="of the stress program")
    parser.add_argument("--time", type=int, default=5000, help="of the stress program, ms")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join([*KINDS, *PROGRAMS])}; by default all")
    options = parser.parse_args()
    unknown = set(options.names) - {*KINDS, *PROGRAMS}
    if unknown:
        parser.error(f"there is no {', '.join(sorted(unknown))}")
    kinds = [kind for kind in KINDS if kind in options.names] or list(KINDS)
    programs = [name for name in PROGRAMS if name in options.names] or list(PROGRAMS)
    results: list[bool] = []
    for kind in kinds:
        built = {path.name for path in tool().build(ROOT / "build" / "sanitize" / kind, KINDS[kind][0])}
        wanted = [name for name in programs if {f"{library}.so.1" for library in PROGRAMS[name]} <= built]
        results += [run(kind, name, options) for name in wanted]
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
