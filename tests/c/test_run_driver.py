# SPDX-License-Identifier: MIT
"""Which libibverbs a program gets from ``softverbs run``, and what it is told where that is not clear."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests import driver

HERE = Path(__file__).resolve().parent
#: A libibverbs that knows no device: the system's, or one that a package brings along.
OTHER = """
#include <stdlib.h>
void **ibv_get_device_list(int *count) { if (count) *count = 0; return calloc(1, sizeof(void *)); }
void ibv_free_device_list(void **list) { free(list); }
void *ibv_open_device(void *device) { (void)device; return 0; }
void *ibv_create_cq(void) { return 0; }
void *ibv_alloc_pd(void) { return 0; }
void *ibv_reg_dmabuf_mr(void) { return 0; }
"""
VERSIONS = "IBVERBS_1.1 { global: ibv_*; local: *; }; IBVERBS_1.12 { global: ibv_reg_dmabuf_mr; };"
MODULE = """
void **ibv_get_device_list(int *count);
int devices_of_module(void) { int count = -1; ibv_get_device_list(&count); return count; }
"""


def _cc(*words: str | Path) -> None:
    subprocess.run([*driver.CC.split(), *map(str, words)], check=True)


class Place:
    """A folder with the program, and with another libibverbs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.headers = driver.headers()
        (folder / "other.c").write_text(OTHER)
        (folder / "versions").write_text(VERSIONS)
        (folder / "module.c").write_text(MODULE)
        self.library("libibverbs.so.1")

    def library(self, name: str) -> None:
        """Makes another libibverbs, under a name."""
        script = f"-Wl,--version-script={self.folder / 'versions'}"
        _cc("-shared", "-fPIC", f"-Wl,-soname,{name}", script, self.folder / "other.c", "-o", self.folder / name)

    def program(self, *flags: str) -> str:
        """Makes the program, linked with the other libibverbs, which has the symbols of ours that it needs."""
        to = self.folder / "devices"
        where = f"-L{driver.folder()}"
        unresolved = "-Wl,--allow-shlib-undefined"
        _cc(
            *self.headers,
            "-D_GNU_SOURCE",
            HERE / "devices.c",
            "-o",
            to,
            *flags,
            where,
            "-l:libibverbs.so.1",
            unresolved,
        )
        return str(to)

    def module(self, name: str) -> str:
        """Makes a module that is linked with another libibverbs of that name, which lies beside it."""
        self.library(name)
        to = self.folder / f"module-{name}"
        where = (f"-L{self.folder}", f"-l:{name}", "-Wl,-rpath,$ORIGIN")
        _cc("-shared", "-fPIC", self.folder / "module.c", "-o", to, *where)
        return str(to)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def run(*words: str, **variables: str) -> tuple[list[str], list[str]]:
    """What a program prints by ``softverbs run``, and what stands on stderr."""
    done = subprocess.run(
        [word for word in driver.softverbs_run(*words) if word != "--"],
        env=driver.environment(**variables),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=100,
        check=True,
    )
    return done.stdout.splitlines(), done.stderr.splitlines()


@pytest.mark.parametrize("tags", ["--disable-new-dtags", "--enable-new-dtags"])
def test_a_program_with_a_path_to_another_libibverbs_finds_the_device(place: Place, tags: str) -> None:
    """DT_RPATH ranks before LD_LIBRARY_PATH, DT_RUNPATH behind it."""
    program = place.program(f"-Wl,{tags},-rpath,{place.folder}")
    assert run(program) == (["1 devices"] * 2, [])
    out, err = run("--no-preload", program)
    if tags == "--disable-new-dtags":
        assert out == ["0 devices"] * 2
        assert len(err) == 1 and "asked for no device" in err[0]
    else:
        assert (out, err) == (["1 devices"] * 2, [])


def test_modules_that_bring_a_libibverbs_under_another_name_find_the_device(place: Place) -> None:
    """As Python's wheels do; several of them in one process."""
    modules = [place.module("libibverbs-0a1b2c3d.so.1.14.44.0"), place.module("libibverbs-99aabbcc.so.1")]
    script = "import ctypes, sys\nfor path in sys.argv[1:]: print(ctypes.CDLL(path).devices_of_module(), 'devices')"
    program = (sys.executable, "-c", script, *modules)
    assert run(*program) == (["1 devices"] * 2, [])
    assert run("--no-preload", *program)[0] == ["0 devices"] * 2


@pytest.mark.parametrize("preload", ["--preload", "--no-preload"])
def test_every_name_leads_to_one_library(place: Place, preload: str) -> None:
    if not (driver.folder() / "librdmacm.so.1").is_file():
        pytest.skip("there is no librdmacm here")
    lines = run(preload, place.program(), "names")[0]
    names = ("libibverbs", "librdmacm", "libefa")
    wanted = [f"{name}.so: {driver.folder()}/{name}.so.1, the same" for name in names]
    assert lines == [wanted[0], "versioned", *wanted[1:]]


def test_a_folder_whose_name_looks_like_a_list(place: Place) -> None:
    folder = place.folder / "a folder: with; three"
    shutil.copytree(driver.folder(), folder)
    program = place.program(f"-Wl,--disable-new-dtags,-rpath,{place.folder}")
    assert run(program, SOFTVERBS_DRIVER=str(folder)) == (["1 devices"] * 2, [])


def test_a_program_with_address_sanitizer_starts(place: Place) -> None:
    try:
        program = place.program("-fsanitize=address")
    except subprocess.CalledProcessError:
        pytest.skip("there is no AddressSanitizer here")
    assert run(program, "open", ASAN_OPTIONS="detect_leaks=0")[0] == ["1 devices", "1 devices", "open"]


def test_verbose_says_what_was_loaded(place: Place) -> None:
    program = place.program()
    ours = f"{driver.folder()}/libibverbs.so.1"
    _, err = run("-v", program, "open")
    assert len(err) == 1 and err[0].startswith("softverbs: devices (process ")
    assert err[0].endswith(f") uses {ours}, device softverbs0")
    module = place.module("libibverbs-0a1b2c3d.so.1")
    _, err = run("-v", program, "modules", module)
    assert f"uses {ours}, device softverbs0; also loaded: {place.folder}/libibverbs-0a1b2c3d.so.1" in err[0]
    assert err[1:] == [f"softverbs run: {program} listed the device and did not open it"]


VARIABLES = {
    "SOFTVERBS_FAULTS": "create_cq:nth=9", "SOFTVERBS_OPTIONS": "debug=yes", "SOFTVERBS_ADDRESS": "127.3.4.5",
    "SOFTVERBS_PCAP": "capture.pcap",
}  # fmt: skip


@pytest.mark.parametrize("name", VARIABLES)
def test_a_variable_of_the_program_that_is_the_devices(
    place: Place, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(place.folder)
    program = place.program()
    out, err = run("env", f"{name}={VARIABLES[name]}", program)
    assert out == ["1 devices"] * 2
    assert len(err) == 1, "once"
    assert err[0].startswith(
        f"softverbs: {name}={VARIABLES[name]} is not what the device was started with, and is ignored"
    )
    assert run(program, **{name: VARIABLES[name]})[1] == [], "the device has the same"
    assert run("env", f"{name}=", program, **{name: VARIABLES[name]})[1] == [], "it has none, and needs none"


def _alone(program: str, **variables: str) -> list[str]:
    """What a program says on stderr that has no ``softverbs run`` any more."""
    environment = {**os.environ, "LD_LIBRARY_PATH": str(driver.folder()), **variables}
    done = subprocess.run([program], env=environment, capture_output=True, text=True, timeout=100, check=True)
    assert done.stdout.splitlines() == ["0 devices"] * 2
    return done.stderr.splitlines()


def test_the_device_has_ended_before_the_program(place: Place) -> None:
    """As of a program that goes into the background."""
    program = place.program()
    gone = str(place.folder / "gone")
    (line,) = _alone(program, SOFTVERBS_SOCKET=gone)
    assert line.startswith(f"softverbs: the device of SOFTVERBS_SOCKET={gone} has ended")
    assert "softverbs serve" in line
    assert _alone(program, SOFTVERBS_SOCKET=gone, SOFTVERBS_EXPLAIN="0") == []
    assert _alone(program, SOFTVERBS_SOCKET="") == [], "nobody has promised one"
    (place.folder / "file").touch()
    (line,) = _alone(program, SOFTVERBS_SOCKET=str(place.folder / "file" / "socket"))
    assert "cannot be reached" in line and "Not a directory" in line


def test_refusals_are_told_apart_and_not_repeated(place: Place) -> None:
    _, err = run(place.program(), "refused", SOFTVERBS_EXPLAIN="1")
    assert err[0].startswith("softverbs: (refused calls are explained; ")
    assert [line.removeprefix("softverbs: ") for line in err[1:]] == [
        "ibv_create_cq: cqe=-1 (EINVAL)",
        "(the same 4 times more)",
        "ibv_reg_dmabuf_mr: descriptor 3: the device has no dma-bufs (EOPNOTSUPP: not supported here)",
        "ibv_create_cq: cqe=-2 (EINVAL)",
        "(the same 2 times more)",
    ]
