# SPDX-License-Identifier: MIT
"""Unmodified programs of Debian on the device: ibverbs-utils and perftest, as they are in its packages.

All that perftest can do is ``make programs`` (tests/programs/matrix.py); here is each program, each transport and each
option once. Without the packages the tests are skipped.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator

import pytest
from tests import driver
from tests.programs import perftest, running
from tests.programs.running import Served, program

import softverbs

COMPILED = softverbs.core_build == "compiled"
FEW = "200" if COMPILED else "32"
GID = ("-g", "0")


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    """One device for all programs here."""
    with Served() as device:
        yield device
        assert device.process.poll() is None, "the device has ended before its time"


def _output(served: Served, name: str, *arguments: str) -> str:
    path, variables = program(name)
    return driver.output([path, *arguments], served.environment(variables))


def _pair(served: Served, name: str, *arguments: str) -> str:
    """Runs a program of ibverbs-utils as server and as client; what the client prints."""
    path, variables = program(name)
    port = running.free_port()
    environment = served.environment(variables)
    outcome = running.pair([path, "-p", port, *GID, *arguments], port, environment, environment)
    assert outcome.succeeded, outcome.text
    return outcome.client


def test_ibv_devices(served: Served) -> None:
    assert "softverbs0" in _output(served, "ibv_devices")


def test_ibv_devinfo(served: Served) -> None:
    text = _output(served, "ibv_devinfo", "-v")
    assert "PORT_ACTIVE" in text
    assert text.count("RoCE v2") == 4
    assert "ATOMIC_HCA" in text


def test_ibv_devinfo_shows_the_types_of_gids() -> None:
    path, variables = program("ibv_devinfo")
    environment = driver.environment(SOFTVERBS_OPTIONS="gid_table=mlx5", SOFTVERBS_ADDRESS="127.0.8.11", **variables)
    lines = [line.split(":", 1)[1].split() for line in driver.output(
        driver.softverbs_run(path, "-v"), environment).splitlines() if "GID[" in line]  # fmt: skip
    assert [words[0] for words in lines[1::2]] == ["fe80::7fff:fe00:80b,", "::ffff:127.0.8.11,"]
    assert [words[-1] for words in lines] == ["v1", "v2", "v1", "v2"]


def test_without_a_device() -> None:
    path, variables = program("ibv_devinfo")
    environment = driver.environment(**variables)
    libraries = f"{driver.folder()}:{environment.get('LD_LIBRARY_PATH', '')}".rstrip(":")
    done = subprocess.run([path], env={**environment, "LD_LIBRARY_PATH": libraries}, stderr=subprocess.PIPE, text=True)
    assert "No IB devices found" in done.stderr


def test_two_devices() -> None:
    """Each side in ``softverbs run``, with a device of its own."""
    path, variables = program("ibv_rc_pingpong")
    port = running.free_port()
    words = driver.softverbs_run(path, "-p", port, *GID, "-n", FEW, "-e")
    environment = driver.environment(**variables)
    outcome = running.pair(words, port, environment, environment)
    assert outcome.succeeded, outcome.text
    assert f"{FEW} iters" in outcome.server
    assert f"{FEW} iters" in outcome.client


@pytest.mark.parametrize(
    ("options", "server", "client"),
    [("", "1", "1"), ("", "3", "0"), ("", "0", "1"), ("gid_table=mlx5", "1", "1"), ("gid_table=mlx5", "3", "3")],
)
def test_two_devices_by_the_indexes_that_are_usual_on_nics(options: str, server: str, client: str) -> None:
    path, variables = program("ibv_rc_pingpong")
    port = running.free_port()
    words = driver.softverbs_run(path, "-p", port, "-n", FEW, "-e", "-g")
    environment = driver.environment(SOFTVERBS_OPTIONS=options, **variables)
    outcome = running.pair([*words, server], port, environment, environment, other=[*words, client, "127.0.0.1"])
    assert outcome.succeeded, outcome.text


@pytest.mark.parametrize("options", ["", "gid_table=mlx5"])
def test_perftest_chooses_a_gid_that_works(options: str) -> None:
    path, variables = program("ib_write_lat")
    port = running.free_port()
    words = driver.softverbs_run(path, "-p", port, "-n", FEW)
    environment = driver.environment(SOFTVERBS_OPTIONS=options, **variables)
    outcome = running.pair(words, port, environment, environment)
    assert outcome.succeeded, outcome.text
    assert f"GID index       : {3 if options else 0}" in outcome.text


@pytest.mark.parametrize(
    "words",
    [
        "ibv_rc_pingpong",
        "ibv_rc_pingpong -e -c -s 100000 -m 1024",
        "ibv_rc_pingpong -j -N",
        "ibv_rc_pingpong -t -o",
        "ibv_uc_pingpong -e",
        "ibv_ud_pingpong",
        "ibv_ud_pingpong -e -c",
        "ibv_srq_pingpong -e -c",
    ],
)
def test_pingpong(served: Served, words: str) -> None:
    name, *options = words.split()
    assert f"{FEW} iters" in _pair(served, name, "-n", FEW, *options)


def test_xsrq_pingpong(served: Served) -> None:
    assert "success" in _pair(served, "ibv_xsrq_pingpong", "-n", FEW)


#: Those with -a and -D take longest, and more would show nothing about the uncompiled core.
WHERE_COMPILED = [
    "ib_send_bw -c UD -a",
    "ib_write_bw -a -b",
    "ib_read_lat -c XRC -a",
    "ib_send_bw -c UC -D 2 -q 8",
    "ib_write_lat -c UC -D 2",
    "ib_atomic_bw -c XRC -D 2",
]
EVERYWHERE = [
    "ib_send_bw -s 65536",
    "ib_send_bw -e -q 8",
    "ib_send_bw --use-srq -e -q 8",
    "ib_send_bw -c UC -b -q 8",
    "ib_send_bw -c UD --use-srq",
    "ib_send_bw -c XRC -b -e",
    "ib_send_lat -e",
    "ib_send_lat -c UD -I 60",
    "ib_send_lat -c XRC",
    "ib_write_bw -l 8",
    "ib_write_bw -x 3",
    "ib_write_bw -c UC -q 8",
    "ib_write_bw -c XRC -m 1024",
    "ib_write_lat -D 2",
    "ib_read_bw -e -q 8",
    "ib_read_bw -c XRC -b",
    "ib_read_lat -o 1",
    "ib_atomic_bw -A CMP_AND_SWAP -q 8",
    "ib_atomic_lat -c XRC -e",
]


@pytest.mark.parametrize("words", [*EVERYWHERE, *(WHERE_COMPILED if COMPILED else ())])
def test_perftest(served: Served, words: str) -> None:
    case = perftest.Case.of(words)
    few = 5 if "-a" in case.options.split() else int(FEW)
    outcome = perftest.run(case, few, served, served, timeout=100)
    wrong = perftest.complaint(case, outcome)
    assert not wrong, f"{wrong}\n{outcome.text}"


def test_perftest_between_two_devices(served: Served) -> None:
    case = perftest.Case.of("ib_send_bw -c XRC -q 4")
    with Served() as other:
        outcome = perftest.run(case, int(FEW), other, served)
    assert not perftest.complaint(case, outcome), outcome.text


def test_every_program_transport_and_option_is_run() -> None:
    """What the whole matrix has, here is once; but for what takes only longer."""
    chosen = [perftest.Case.of(words) for words in (*EVERYWHERE, *WHERE_COMPILED)]
    every = list(perftest.cases())
    assert {case.program for case in chosen} == {case.program for case in every}
    assert {(case.verb, case.transport) for case in chosen} == {(case.verb, case.transport) for case in every}
    for option in ("-a", "-q 8", "-e", "--use-srq", "-b", "-D", "-I", "-l", "-m", "-A", "-o", "-s"):
        assert any(option in case.options for case in chosen), option


@pytest.mark.parametrize(
    ("client", "codes", "wrong"),
    [
        (" 65536      200       584.05      246.18  \t   0.003939\n", (0, 0), ""),
        (" 65536      200       584.05      246.18  \t   0.003939\n", (0, 1), "client: exit status 1"),
        (" 65536      200       inf      246.18  \t   0.003939\n", (0, 0), "0 rows"),
        ("Completion with error at client\n 65536  200  584.05   246.18  0.1\n", (0, 0), "Completion with error"),
        ("nothing", (0, -9), "killed"),
    ],
)
def test_a_run_is_judged(client: str, codes: tuple[int, int], wrong: str) -> None:
    found = perftest.complaint(perftest.Case.of("ib_send_bw"), running.Outcome(codes, "", client, 1.0))
    assert found == wrong if not wrong else wrong in found
