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


def fetched_headers() -> Path | None:
    """Python's headers from Debian's package for them, unpacked into .venv/headers; None where that cannot be.

    Debian's Python has no Python.h unless python3-dev is installed. ``apt-get download`` needs no privilege, checks
    the signature, and gives the headers of the very Python that is installed.
    """
    version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    folder = VENVS / "headers"
    include = folder / "usr" / "include"
    if (include / version / "Python.h").is_file():
        return include
    debian = sysconfig.get_path("include").startswith("/usr/include/")
    if not (debian and shutil.which("apt-get") and shutil.which("dpkg-deb")):
        return None
    say(f"Python.h is missing; fetching lib{version}-dev into .venv/headers (nothing is installed)")
    folder.mkdir(parents=True, exist_ok=True)
    try:
        subprocess.run(["apt-get", "-q", "download", f"lib{version}-dev"], cwd=folder, check=True, timeout=180)
        for package in folder.glob("*.deb"):
            subprocess.run(["dpkg-deb", "-x", package.name, "."], cwd=folder, check=True)
            package.unlink()
    except (OSError, subprocess.SubprocessError) as error:
        say(f"that failed: {error}")
    return include if (include / version / "Python.h").is_file() else None


def compile_environment() -> tuple[dict[str, str] | None, str]:
    """What the environment of a build needs so that it can compile; or None and the reason."""
    if not any(shutil.which(name) for name in (os.environ.get("CC", "cc").split()[0], "gcc", "clang")):
        return None, "there is no C compiler (Debian: apt-get install gcc python3-dev)"
    if Path(sysconfig.get_path("include"), "Python.h").is_file():
        return {}, ""
    include = fetched_headers()
    if include is None:
        return None, "there is a C compiler, but no Python.h (Debian: apt-get install python3-dev)"
    python = include / f"python{sys.version_info[0]}.{sys.version_info[1]}"
    arguments = f"{os.environ.get('CMAKE_ARGS', '')} -DPython_INCLUDE_DIR={python}"
    return {"CMAKE_ARGS": arguments.strip(), "CPATH": f"{include}:{os.environ.get('CPATH', '')}".rstrip(":")}, ""


def create(folder: Path) -> None:
    """An empty virtual environment in ``folder``."""
    shutil.rmtree(folder, ignore_errors=True)
    say(f"creating {folder.relative_to(ROOT)}")
    run(sys.executable, "-m", "venv", folder)


def pip_install(python: Path, words: list[str], env: dict[str, str]) -> None:
    quiet = {"PIP_ROOT_USER_ACTION": "ignore", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    run(python, "-m", "pip", "install", "--quiet", *words, env={**quiet, **env})


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
    if not build:
        pip_install(python, ["."], env or {})
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
