# SPDX-License-Identifier: MIT
"""What every test run is checked for before it starts, and how hypothesis behaves in it.

``SOFTVERBS_CORE=compiled`` or ``pure`` says which build the run must be of; ``make`` sets it, and then a stale
installation is refused too. Without it anything importable is tested (``PYTHONPATH=src pytest``, during development).
"""

import importlib
import os
import sys
from pathlib import Path

import hypothesis
import pytest

import softverbs.core

CORE = Path(softverbs.core.__path__[0])
SOURCES = Path(__file__).resolve().parent.parent / "src" / "softverbs"

hypothesis.settings.register_profile("fixed", derandomize=True, deadline=None, print_blob=True)
hypothesis.settings.register_profile("explore", deadline=None, print_blob=True, max_examples=1000)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "fixed"))


def core_build() -> str:
    """Which build is importable here, from where each module of the core was really loaded: not from what it says."""
    suffixes = set()
    for declaration in CORE.rglob("*.pxd"):
        if declaration.stem != "__init__":
            module = importlib.import_module(f"softverbs.core.{declaration.parent.name}.{declaration.stem}")
            suffixes.add(Path(module.__file__ or "").suffix)
    return {frozenset([".so"]): "compiled", frozenset([".py"]): "pure"}.get(frozenset(suffixes), "mixed")


def stale() -> list[str]:
    """Files of the checkout that differ from the installed ones, and installed ones that the checkout lacks."""
    package = CORE.parent
    names = {
        str(path.relative_to(root))
        for root in (package, SOURCES)
        for path in root.rglob("*")
        if path.suffix in (".py", ".pxd")
    }

    def content(path: Path) -> bytes:
        return path.read_bytes() if path.is_file() else b""

    return sorted(name for name in names if content(package / name) != content(SOURCES / name))


def pytest_configure(config: pytest.Config) -> None:
    wanted = os.environ.get("SOFTVERBS_CORE")
    if wanted is None:
        return
    if core_build() != wanted:
        raise pytest.UsageError(f"SOFTVERBS_CORE={wanted}, but the core in {CORE} is {core_build()}")
    if differing := stale():
        raise pytest.UsageError(f"{CORE.parent} differs from the checkout: {', '.join(differing)}; use make test")


def pytest_report_header(config: pytest.Config) -> str:
    return f"softverbs: {core_build()} core in {CORE}, Python {sys.version.split()[0]}"


@pytest.fixture(scope="session")
def core_is_compiled() -> bool:
    """True in a run of the compiled build."""
    return core_build() == "compiled"
