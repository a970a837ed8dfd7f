# SPDX-License-Identifier: MIT
"""tools/programs.py: which folder, which program, which variables; nothing is downloaded here."""

from __future__ import annotations

from pathlib import Path

import pytest
from tools import programs


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache with one set in it, unpacked; no program is installed."""
    for name in (
        "ucx/usr/bin/ucx_perftest",
        "ucx/usr/lib/some-linux/libucp.so.0",
        "ucx/usr/lib/some-linux/ucx/libuct_cma.so.0",
        "ucx/lib/some-linux/libnl-3.so.200",
        "libibverbs/usr/lib/some-linux/libibverbs.so.1",
    ):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    monkeypatch.setattr(programs, "CACHE", tmp_path)
    monkeypatch.setattr(programs.shutil, "which", lambda name: None)
    monkeypatch.delenv("LD_LIBRARY_PATH", raising=False)
    return tmp_path


def test_a_program_of_a_set_comes_with_the_libraries_of_all_that_it_needs(cache: Path) -> None:
    path, variables = programs.find("ucx_perftest", "ucx", "libibverbs")
    assert path == str(cache / "ucx/usr/bin/ucx_perftest")
    # Plugins are loaded by their path, so their folder is not among them.
    folders = ("ucx/lib/some-linux", "ucx/usr/lib/some-linux", "libibverbs/usr/lib/some-linux")
    assert variables == {"LD_LIBRARY_PATH": ":".join(str(cache / folder) for folder in folders)}


def test_the_folders_of_the_caller_come_last(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", "/somewhere")
    assert programs.environment(cache / "libibverbs")["LD_LIBRARY_PATH"].endswith("some-linux:/somewhere")


def test_a_program_that_is_installed_is_taken_as_it_is(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs.shutil, "which", lambda name: f"/usr/bin/{name}")
    assert programs.find("rping", "rdmacm") == ("/usr/bin/rping", {})


def test_says_why_a_set_or_a_program_cannot_be_had(cache: Path) -> None:
    with pytest.raises(programs.Unavailable, match="apt-get and dpkg-deb are needed"):
        programs.fetch("libfabric")
    with pytest.raises(programs.Unavailable, match="no ucx_nothing in Debian's ucx-utils"):
        programs.find("ucx_nothing", "ucx")


def test_a_download_that_fails_leaves_nothing_behind(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(words: list[str], **_: object) -> None:
        raise programs.subprocess.CalledProcessError(100, words)

    monkeypatch.setattr(programs.shutil, "which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr(programs.subprocess, "run", fails)
    with pytest.raises(programs.Unavailable, match="exit status 100"):
        programs.fetch("rdmacm")
    assert sorted(path.name for path in cache.iterdir()) == ["libibverbs", "ucx"]


def test_prints_a_folder_for_each_set(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert programs.main(["ucx", "libibverbs"]) == 0
    assert capsys.readouterr().out.split() == [str(cache / "ucx"), str(cache / "libibverbs")]
    assert programs.main([]) == 1
    assert "apt-get" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        programs.main(["no-such-set"])


def test_only_one_set_has_a_libibverbs() -> None:
    assert [name for name, packages in programs.SETS.items() if "libibverbs1" in packages] == ["libibverbs"]
