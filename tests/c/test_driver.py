# SPDX-License-Identifier: MIT
"""C programs of ours on the C driver: they are compiled, and run on a device."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from tests import driver

from softverbs.faults import VERBS

#: Of the verbs that can fail on demand: what libibverbs has not, or what cannot fail there.
NOT_IN_C = {
    "reg_mr_ex", "reg_buf_mr", "reg_dmabuf_mr", "alloc_buf", "free_buf", "alloc_dmah", "dealloc_dmah", "ack_cq_events",
    "efadv_create_comp_cntr", "query_gid_type",
}  # fmt: skip
HERE = Path(__file__).resolve().parent


def _compile(name: str, folder: Path, *libraries: str) -> str:
    words = ["-std=gnu11", "-D_GNU_SOURCE", "-O1", "-Wall", "-Wextra", "-Werror", *driver.headers()]
    words += [
        str(HERE / f"{name}.c"),
        "-o",
        str(folder / name),
        f"-L{driver.folder()}",
        *libraries,
        "-l:libibverbs.so.1",
        "-pthread",
    ]
    subprocess.run([*driver.CC.split(), *words], check=True)
    return str(folder / name)


def test_abi_header_is_up_to_date() -> None:
    assert (driver.ROOT / "driver" / "abi.h").read_text() == driver.tool().abi_header()


def test_driver_itself(tmp_path: Path) -> None:
    words = driver.softverbs_run(_compile("driver", tmp_path))
    lines = driver.output(words, driver.environment()).splitlines()
    assert lines == ["refusals", "building", "threads", "cancelled", "few descriptors", "forks", "events", "done"]


def test_send_slots_batches_and_what_nics_refuse(tmp_path: Path) -> None:
    lines = driver.output(driver.softverbs_run(_compile("slots", tmp_path)), driver.environment()).splitlines()
    assert lines == ["slots", "threads", "batches", "setters", "lists", "done"]


def test_a_full_send_queue_says_what_would_free_it(tmp_path: Path) -> None:
    environment = driver.environment(SOFTVERBS_EXPLAIN="1")
    text = driver.output(driver.softverbs_run(_compile("slots", tmp_path)), environment)
    assert "is full: max_send_wr=64, all slots are in use, from wr_id=0 on. A slot is free once the completion" in text
    assert "of the work requests are done, none is signaled, so no completion can free a slot" in text
    assert "completions wait to be polled" in text
    assert "no data setter was called for" in text


def test_slots_are_free_without_polling_where_the_device_is_told_so(tmp_path: Path) -> None:
    words = driver.softverbs_run(_compile("slots", tmp_path), "completed")
    lines = driver.output(words, driver.environment(SOFTVERBS_OPTIONS="send_slots=completed")).splitlines()
    assert lines == ["completed", "done"]


@pytest.mark.parametrize("seed", [1, 2])
def test_threads_share_objects_that_change(tmp_path: Path, seed: int) -> None:
    """tools/sanitize.py has the sanitizers look at the same program, for longer."""
    words = driver.softverbs_run(_compile("stress", tmp_path), str(seed), "1000")
    assert driver.output(words, driver.environment()).splitlines()[-1] == "done"


def test_nothing_is_left_of_what_goes_or_changes_its_size(tmp_path: Path) -> None:
    words = driver.softverbs_run(_compile("resources", tmp_path))
    lines = driver.output(words, driver.environment()).splitlines()
    assert lines == ["resized CQ", "resized SRQ", "queues", "memory", "counter", "context", "done"]


def test_counters(tmp_path: Path) -> None:
    words = driver.softverbs_run(_compile("counters", tmp_path))
    assert driver.output(words, driver.environment()).splitlines()[-1] == "done"


def test_counters_of_a_small_device(tmp_path: Path) -> None:
    environment = driver.environment(SOFTVERBS_OPTIONS="counter_max_value=5000,max_counters=12")
    lines = driver.output(driver.softverbs_run(_compile("counters", tmp_path)), environment).splitlines()
    assert "set beyond max_value: EINVAL" in lines
    assert lines[-1] == "done"


@pytest.mark.parametrize("options", ["counter_max_value=5000,max_counters=12", "imm=efa"])
def test_what_is_counted(tmp_path: Path, options: str) -> None:
    words = driver.softverbs_run(_compile("counted", tmp_path), options)
    assert driver.output(words, driver.environment(SOFTVERBS_OPTIONS=options)).splitlines()[-1] == "done"


@pytest.mark.parametrize("options", ["", "counter_max_value=5000,max_counters=7"])
def test_counters_in_memory_of_the_program(tmp_path: Path, options: str) -> None:
    environment = driver.environment(SOFTVERBS_OPTIONS=options)
    words = driver.softverbs_run(_compile("efa_counters", tmp_path, "-l:libefa.so.1"))
    lines = driver.output(words, environment).splitlines()
    assert "efadv_query_device: EOPNOTSUPP" in lines
    assert lines[-1] == "done"


def _gids(folder: Path, options: str, address: str) -> list[str]:
    environment = driver.environment(SOFTVERBS_OPTIONS=options, SOFTVERBS_ADDRESS=address)
    return driver.output(driver.softverbs_run(_compile("gids", folder)), environment).splitlines()


@pytest.mark.parametrize(("options", "count"), [("", 4), ("gid_table=single", 1)])
def test_every_entry_of_the_gid_table_reaches_every_other(tmp_path: Path, options: str, count: int) -> None:
    lines = _gids(tmp_path, options, "127.0.8.9")
    talks = [f"{i} to {j}: talks" for i in range(count) for j in range(count)]
    assert lines == [*(f"{i} v2 ::ffff:127.0.8.9" for i in range(count)), *talks, "back: 0", "done"]


def test_the_gid_table_of_mlx5(tmp_path: Path) -> None:
    lines = _gids(tmp_path, "gid_table=mlx5", "127.0.8.10")
    gids = ("fe80::7fff:fe00:80a", "::ffff:127.0.8.10")
    assert lines[:4] == [f"{2 * at + kind - 1} v{kind} {gid}" for at, gid in enumerate(gids) for kind in (1, 2)]
    ways = dict(line.split(": ", 1) for line in lines[4:-2])
    assert [way for way, words in ways.items() if words == "talks"] == ["1 to 1", "3 to 3"]
    assert "sgid_index=2 is a GID of RoCE v1" in ways["2 to 3"]
    assert "not of one IP version" in ways["3 to 1"]
    assert lines[-2:] == ["back: 3", "done"]


def test_words_for_what_fails(tmp_path: Path) -> None:
    environment = driver.environment(SOFTVERBS_EXPLAIN="1")
    text = driver.output(driver.softverbs_run(_compile("counters", tmp_path)), environment)
    assert "softverbs: op_mask=0: at least one operation must be named" in text


def test_every_verb_fails_on_demand(tmp_path: Path) -> None:
    wanted = [verb for verb in VERBS if verb not in NOT_IN_C and not verb.startswith("rdma_")]
    plan = ",".join(f"{verb}:nth=1:errno=E2BIG" for verb in wanted)
    words = driver.softverbs_run(_compile("faults", tmp_path))
    lines = driver.output(words, driver.environment(SOFTVERBS_FAULTS=plan)).splitlines()
    assert lines[-1] == "done"
    assert sorted(lines[:-1]) == sorted(wanted)


def _cm(folder: Path) -> str:
    """The program for librdmacm; the test is skipped where there is none."""
    include = driver.tool().found("rdma/rdma_cma.h")
    if include is None or not (driver.folder() / "librdmacm.so.1").is_file():
        pytest.skip("the headers of librdmacm are needed (Debian: librdmacm-dev)")
    where = [] if include == Path("/usr/include") else [f"-I{include}"]
    return _compile("cm", folder, *where, "-l:librdmacm.so.1")


def test_connection_manager(tmp_path: Path) -> None:
    lines = driver.output(driver.softverbs_run(_cm(tmp_path)), driver.environment()).splitlines()
    parts = [
        "channels",
        "acknowledgements",
        "threads",
        "groups",
        "synchronous",
        "listeners",
        "wildcards",
        "refusals",
        "forks",
    ]
    assert lines == [*parts, "done"]


@pytest.mark.parametrize("name", ["driver", "cm"])
def test_the_device_is_killed(tmp_path: Path, name: str) -> None:
    socket = tmp_path / "socket"
    environment = driver.environment()
    words = [sys.executable, "-m", "softverbs", "serve", "--socket", str(socket)]
    program = [_cm(tmp_path) if name == "cm" else _compile(name, tmp_path), "until-gone"]
    with subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, text=True) as device:
        try:
            assert device.stdout is not None and device.stdout.readline()
            environment.update(SOFTVERBS_SOCKET=str(socket), LD_LIBRARY_PATH=str(driver.folder()))
            with subprocess.Popen(program, env=environment, stdout=subprocess.PIPE, text=True) as user:
                assert user.stdout is not None
                assert user.stdout.readline() == "waiting\n"
                device.send_signal(signal.SIGKILL)
                assert user.communicate(timeout=20)[0] == "gone\n"
                assert user.returncode == 0
        finally:
            device.kill()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be another user")
@pytest.mark.parametrize("name", ["counted", "driver"])
def test_a_program_of_another_user(name: str) -> None:
    """On a device of root: the driver hands over a descriptor of the program's memory, and all is as for root."""
    folder = Path(tempfile.mkdtemp(prefix="softverbs-"))
    folder.chmod(0o755)
    libraries = shutil.copytree(driver.folder(), folder / "libraries")
    libraries.chmod(0o755)
    program = _compile(name, folder)
    words = [sys.executable, "-m", "softverbs", "serve", "--socket", str(folder / "socket"), "--mode", "666"]
    environment = driver.environment()
    with subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, text=True) as device:
        try:
            assert device.stdout is not None and device.stdout.readline()
            own = {"SOFTVERBS_SOCKET": str(folder / "socket"), "LD_LIBRARY_PATH": str(libraries)}
            done = subprocess.run(
                [program], env={**os.environ, **own}, user=65534, group=65534, extra_groups=[], cwd="/", text=True,
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=100,
            )  # fmt: skip
            assert done.returncode == 0, done.stdout
            assert done.stdout.splitlines()[-1] == "done"
        finally:
            device.terminate()
    shutil.rmtree(folder)


def _loads(library: str) -> str:
    """Why a library does not load on our libibverbs, with every symbol bound at once; "" if it does."""
    environment = {**os.environ, "LD_BIND_NOW": "1", "LD_LIBRARY_PATH": str(driver.folder())}
    code = f"import ctypes, sys\ntry: ctypes.CDLL({library!r})\nexcept OSError as error: sys.exit(str(error))"
    done = subprocess.run([sys.executable, "-c", code], env=environment, stderr=subprocess.PIPE, text=True)
    return done.stderr.strip() if done.returncode else ""


@pytest.mark.parametrize("file", ["libmlx5.so.1", "libefa.so.1", "librdmacm.so.1"])
def test_other_libraries_load(file: str) -> None:
    """What the system's own libraries need of libibverbs is there, also of those that we have too."""
    for folder in ("/usr/lib", "/usr/lib64"):
        for path in [*Path(folder).glob(file), *Path(folder).glob(f"*-linux-gnu/{file}")]:
            assert _loads(str(path)) == ""
            return
    pytest.skip(f"the system has no {file}")


def test_our_libefa_loads_by_its_name() -> None:
    assert _loads("libefa.so.1") == ""
