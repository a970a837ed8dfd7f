# SPDX-License-Identifier: MIT
"""Makes the virtual environments of the Makefile, and keeps what is installed in them equal to the sources.

    python3 tools/venv.py KIND     make or refresh .venv/KIND; a second call with unchanged sources does nothing
    python3 tools/venv.py headers  exit 0 if the core can be compiled here, else say why not and exit 1

Kinds: ``demo`` is what a user gets from ``pip install .``; ``compiled`` and ``pure`` are the two builds that are
tested; ``bench`` is the compiled build with what the benchmarks need, ``interop`` the compiled build alone. Needs
nothing but Python's standard library.
"""

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENVS = ROOT / ".venv"
KINDS: dict[str, tuple[str, list[str]]] = {  # kind: (SOFTVERBS_BUILD, extras)
    "demo": ("", []),
    "compiled": ("compiled", ["test"]),
    "pure": ("pure", ["test", "lint"]),
    "bench": ("compiled", ["bench"]),
    "interop": ("compiled", []),
}
QUIET = {"PIP_ROOT_USER_ACTION": "ignore", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
READ_REQUIREMENTS = """
import sys
try:
    import tomllib
except ImportError:
    from pip._vendor import tomli as tomllib
with open("pyproject.toml", "rb") as file:
    settings = tomllib.load(file)
extras = settings["project"]["optional-dependencies"]
wanted = settings["build-system"]["requires"] + settings["project"]["dependencies"]
print(*wanted, *(line for name in sys.argv[1:] for line in extras[name]), sep="\\n")
"""


def say(text: str) -> None:
    print(f"-- {text}", flush=True)


def run(*command: object, env: dict[str, str] | None = None) -> None:
    subprocess.run([str(word) for word in command], check=True, cwd=ROOT, env={**os.environ, **(env or {})})


def digest(paths: list[Path]) -> str:
    """One hash over names and contents: edited, new and deleted files all change it, a mere touch does not."""
    total = hashlib.sha256()
    for path in sorted(paths):
        content = path.read_bytes()
        total.update(f"{path.relative_to(ROOT)} {len(content)}\n".encode() + content)
    return total.hexdigest()


def sources() -> list[Path]:
    """Every file that ends up in the package, or in its metadata."""
    found = [ROOT / name for name in ("CMakeLists.txt", "README.md", "LICENSE")]
    for folder in ("src", "driver"):
        inside = (path for path in (ROOT / folder).rglob("*") if path.is_file())
        found += [path for path in inside if "__pycache__" not in path.parts and path.suffix != ".so"]
    return found


def packaging() -> str:
    """A hash over what decides the contents of an environment but for the package's own files."""
    text = (ROOT / "pyproject.toml").read_text()
    tables = re.split(r"^(?=\[)", text, flags=re.MULTILINE)
    kept = [table for table in tables if re.match(r"\[+(project|build-system|tool\.scikit-build)", table)]
    script = Path(__file__).read_text()
    return hashlib.sha256("".join([sys.version, script, *kept]).encode()).hexdigest()


def fetched(package: str, file: str, what: str) -> Path | None:
    """The folder usr/include of one of Debian's packages, unpacked into .venv/headers; None where that cannot be.

    ``apt-get download`` needs no privilege, and checks the signature.

    :param package: its name
    :param file: a header in it, which says whether it is there already
    :param what: what it is for, in words
    """
    folder = VENVS / "headers"
    include = folder / "usr" / "include"
    if (include / file).is_file():
        return include
    if not (shutil.which("apt-get") and shutil.which("dpkg-deb")):
        return None
    say(f"{what} missing; fetching {package} into .venv/headers (nothing is installed)")
    folder.mkdir(parents=True, exist_ok=True)
    try:
        subprocess.run(["apt-get", "-q", "download", package], cwd=folder, check=True, timeout=180)
        for archive in folder.glob("*.deb"):
            subprocess.run(["dpkg-deb", "-x", archive.name, "."], cwd=folder, check=True)
            archive.unlink()
    except (OSError, subprocess.SubprocessError) as error:
        say(f"that failed: {error}")
    return include if (include / file).is_file() else None


def python_headers() -> Path | None:
    """Python's headers from Debian's package for the very Python that is installed; None where that cannot be."""
    version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    if not sysconfig.get_path("include").startswith("/usr/include/"):
        return None  # not Debian's Python
    return fetched(f"lib{version}-dev", f"{version}/Python.h", "Python.h is")


def verbs_arguments() -> list[str]:
    """What CMake has to be told to find the headers that the C driver is compiled with."""
    arguments = []
    if not Path("/usr/include/infiniband/verbs.h").is_file():
        include = fetched("libibverbs-dev", "infiniband/verbs.h", "the headers of libibverbs are")
        if include is None:
            say("softverbs is built without its C driver: `softverbs run` does not work (Debian: libibverbs-dev)")
            return []
        arguments.append(f"-DVERBS_INCLUDE_DIR={include}")
    if not Path("/usr/include/rdma/rdma_cma.h").is_file():
        include = fetched("librdmacm-dev", "rdma/rdma_cma.h", "the headers of librdmacm are")
        if include is None:
            say("softverbs is built without its librdmacm.so.1 (Debian: librdmacm-dev)")
        else:
            arguments.append(f"-DRDMACM_INCLUDE_DIR={include}")
    return arguments


def compile_environment() -> tuple[dict[str, str] | None, str]:
    """What the environment of a build needs so that it can compile; or None and the reason."""
    if not any(shutil.which(name) for name in (os.environ.get("CC", "cc").split()[0], "gcc", "clang")):
        return None, "there is no C compiler (Debian: apt-get install gcc python3-dev)"
    arguments = [os.environ.get("CMAKE_ARGS", "")]
    environment = {}
    if not Path(sysconfig.get_path("include"), "Python.h").is_file():
        include = python_headers()
        if include is None:
            return None, "there is a C compiler, but no Python.h (Debian: apt-get install python3-dev)"
        arguments.append(f"-DPython_INCLUDE_DIR={include}/python{sys.version_info[0]}.{sys.version_info[1]}")
        environment["CPATH"] = f"{include}:{os.environ.get('CPATH', '')}".rstrip(":")
    environment["CMAKE_ARGS"] = " ".join([*arguments, *verbs_arguments()]).strip()
    return environment, ""


def create(folder: Path) -> None:
    """An empty virtual environment in ``folder``."""
    shutil.rmtree(folder, ignore_errors=True)
    say(f"creating {folder.relative_to(ROOT)}")
    run(sys.executable, "-m", "venv", folder)


def pip_install(python: Path, words: list[str], env: dict[str, str]) -> None:
    run(python, "-m", "pip", "install", "--quiet", *words, env={**QUIET, **env})


def install_requirements(python: Path, kind: str) -> None:
    """What builds, runs and tests the package, so that the package can be built again and again beside it."""
    build, extras = KINDS[kind]
    if not build:
        return  # `pip install .` sees to it
    say(f"installing what softverbs needs into .venv/{kind}")
    wanted = subprocess.check_output([str(python), "-c", READ_REQUIREMENTS, *extras], cwd=ROOT, text=True).splitlines()
    pip_install(python, [*wanted, *(["cmake>=3.21", "ninja"] if build == "compiled" else [])], {})


def install(python: Path, kind: str) -> None:
    """Builds the package and installs it."""
    build, _ = KINDS[kind]
    env, why = ({}, "") if build == "pure" else compile_environment()
    if env is None:
        say(f"{why}: the core stays uncompiled")
        if build == "compiled":
            raise SystemExit(1)
    say(f"installing softverbs into .venv/{kind}")
    wheels = ROOT / "build" / "wheels" / (packaging()[:8] + digest(sources())[:8])
    if not build:
        # `pip install .` in two steps, so that the other environments need not compile the same again.
        words = ["wheel", "--quiet", "--no-deps", "--wheel-dir", wheels, "."]
        run(python, "-m", "pip", *words, env={**QUIET, **(env or {})})
        pip_install(python, [str(path) for path in wheels.glob("*.whl")], {})
        return
    ready = [str(path) for path in wheels.glob("*.whl") if not path.name.endswith("-none-any.whl")]
    if build == "compiled" and ready:
        pip_install(python, ["--no-deps", "--force-reinstall", *ready], {})
        return
    # Without isolation and in a folder that stays, so that only what changed is compiled again.
    options = ["--no-build-isolation", f"--config-settings=build-dir=build/{kind}", "--no-deps", "--force-reinstall"]
    environment = {**(env or {}), "SOFTVERBS_BUILD": build}
    kept = ROOT / "build" / kind
    try:
        pip_install(python, [*options, "."], environment)
    except subprocess.CalledProcessError:
        if not kept.exists():
            raise
        say(f"once more without build/{kind}, which may name tools that have gone")
        shutil.rmtree(kept)
        pip_install(python, [*options, "."], environment)


def refresh(kind: str) -> None:
    """Makes ``.venv/KIND`` equal to the sources."""
    folder = VENVS / kind
    python = folder / "bin" / "python"
    stamp = folder / "softverbs-installed.json"
    wanted = {"packaging": packaging(), "code": digest(sources())}
    had = json.loads(stamp.read_text()) if stamp.is_file() else {}
    if had.get("packaging") != wanted["packaging"]:
        shutil.rmtree(ROOT / "build" / kind, ignore_errors=True)
        create(folder)
        install_requirements(python, kind)
        had = {"packaging": wanted["packaging"]}
    if had != wanted:
        stamp.write_text(json.dumps({"packaging": wanted["packaging"]}))
        install(python, kind)
        stamp.write_text(json.dumps(wanted))


def main(words: list[str]) -> int:
    if words == ["headers"]:
        env, why = compile_environment()
        if env is None:
            say(why)
        return int(env is None)
    if len(words) != 1 or words[0] not in KINDS:
        print(__doc__)
        return 2
    try:
        refresh(words[0])
    except subprocess.CalledProcessError as error:
        say(f"failed: {' '.join(error.cmd)}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
