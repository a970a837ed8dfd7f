# SPDX-License-Identifier: MIT
"""``softverbs perf``: every test in two processes, the columns, and peers that want something else."""

import json
import re
import socket
from typing import Any

import pytest
from tests.cli.command import Ended, both, finish, free_port, invoke, run, server

import softverbs
from softverbs.cli import perf, perf_run
from softverbs.cli.common import Fault
from softverbs.cli.perf_side import Plan, Result, Side
from softverbs.cli.rc import Way
from softverbs.device import Device
from softverbs.pyverbs.device import Context

BANDWIDTH = ["#bytes", "#iterations", "BW peak[MB/sec]", "BW average[MB/sec]", "MsgRate[Mpps]"]
LATENCY = ["#bytes", "#iterations", "t_min[usec]", "t_max[usec]", "t_typical[usec]", "t_avg[usec]", "t_stdev[usec]"]
LATENCY += ["99%[usec]", "99.9%[usec]"]
PLAN: dict[str, Any] = {
    "test": "write", "latency": False, "sizes": [64], "iters": [10], "seconds": 0.0,
    "depth": 16, "qps": 1, "mtu": 5, "busy": False, "connection": "rc",
}  # fmt: skip


def rows(done: Ended, columns: list[str]) -> list[list[str]]:
    """The cells of the table; the columns are checked."""
    assert done.code == 0, done.err
    lines = done.out.splitlines()
    at = next(index for index, line in enumerate(lines) if line.startswith(" #bytes"))
    assert re.split(r"\s{2,}", lines[at].strip()) == columns
    return [line.split() for line in lines[at + 1 :] if not line.startswith("-")]


@pytest.mark.parametrize("test", ["write", "read", "send"])
def test_bandwidth(test: str) -> None:
    words = [test, "-s", "5000", "-n", "70", "-t", "16", "-q", "2"]
    here, there = both("perf", [], words)
    assert rows(here, BANDWIDTH) == rows(there, BANDWIDTH)
    ((size, iterations, peak, average, rate),) = rows(there, BANDWIDTH)
    assert (size, iterations) == ("5000", "70")
    assert float(peak) >= float(average) > 0
    assert float(average) == pytest.approx(float(rate) * 1e6 * 5000 / (1 << 20), rel=0.02, abs=0.02)
    assert there.err == "" and here.err.startswith("Waiting for a client on port ") and "Ctrl-C ends" in here.err


@pytest.mark.parametrize("test", ["write", "read", "send", "atomic"])
def test_latency(test: str) -> None:
    here, there = both("perf", [test], [test, "--lat", "-n", "40"])
    assert rows(here, LATENCY) == rows(there, LATENCY)
    ((size, iterations, *numbers),) = rows(there, LATENCY)
    assert (size, iterations) == ("8" if test == "atomic" else "2", "40")
    least, most, typical, mean, deviation, nearly, almost = map(float, numbers)
    assert 0 < least <= typical <= nearly <= almost <= most and least <= mean <= most and deviation >= 0


@pytest.mark.parametrize(("test", "kind", "words"), [
    ("write", "uc", ["-s", "5000", "-n", "40", "-t", "8", "-q", "2"]), ("send", "uc", ["-s", "5000", "-n", "40"]),
    ("send", "ud", ["-n", "40"]), ("send", "ud", ["-s", "100", "-n", "40"]),
])  # fmt: skip
def test_unreliable_bandwidth(test: str, kind: str, words: list[str]) -> None:
    here, there = both("perf", [], [test, "-c", kind, *words])
    assert rows(here, BANDWIDTH) == rows(there, BANDWIDTH)
    ((size, iterations, *_),) = rows(there, BANDWIDTH)
    assert (size, iterations) == (words[1] if words[0] == "-s" else "4096", "40")
    assert re.search(rf" Connection type +: {kind.upper()}$", there.out, re.MULTILINE)


@pytest.mark.parametrize(("test", "kind"), [("write", "uc"), ("send", "uc"), ("send", "ud")])
def test_unreliable_latency(test: str, kind: str) -> None:
    here, there = both("perf", [], [test, "-c", kind, "--lat", "-n", "40"])
    assert rows(here, LATENCY) == rows(there, LATENCY)
    assert rows(there, LATENCY)[0][:2] == ["2", "40"]


@pytest.mark.parametrize(("test", "kind"), [("write", "uc"), ("send", "uc"), ("send", "ud")])
def test_losses_are_told(test: str, kind: str) -> None:
    env = {"SOFTVERBS_FAULTS": "seed=1,drop=0.2"}
    ends = both("perf", [], [test, "-c", kind, "-n", "100", "-s", "1000"], env=env)
    told = [
        re.search(rf"^ (\d+) of 100 messages arrived: {kind} does not repair losses$", done.out, re.M) for done in ends
    ]
    assert [done.code for done in ends] == [0, 0]
    assert told[0] is not None and told[1] is not None
    assert told[0][1] == told[1][1]
    assert 40 < int(told[0][1]) < 100


def test_a_loss_ends_a_latency_test() -> None:
    """With a message, and not never."""
    plan = Plan(**{**PLAN, "test": "send", "latency": True, "connection": "ud"})
    assert plan.words == "perf over ud, which does not repair losses"
    assert Plan(**PLAN).words == "perf"


def test_all_sizes_of_datagrams() -> None:
    _, there = both("perf", [], ["send", "-c", "ud", "-a", "-n", "2"])
    assert [int(row[0]) for row in rows(there, BANDWIDTH)] == [1 << shift for shift in range(1, 13)]


def test_a_datagram_that_is_too_long() -> None:
    here, there = both("perf", [], ["send", "-c", "ud", "-s", "1025", "-m", "1024"])
    text = "softverbs: a datagram has at most 1024 bytes here, not 1025\n"
    assert (here.code, there.code, there.err) == (1, 1, text)
    assert here.err.endswith(text)


def test_atomic_bandwidth() -> None:
    _, there = both("perf", [], ["atomic", "-n", "30", "-q", "3", "--busy"])
    assert rows(there, BANDWIDTH)[0][:2] == ["8", "30"]


@pytest.mark.parametrize("words", [["write", "--bw"], ["write", "--lat"], ["read", "--lat"], ["send"]])
def test_duration(words: list[str]) -> None:
    here, there = both("perf", [], [*words, "-D", "0.5", "-s", "64"])
    columns = LATENCY if "--lat" in words else BANDWIDTH
    assert rows(here, columns) == rows(there, columns)
    assert int(rows(there, columns)[0][1]) > 10


def test_all_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    _, there = both("perf", [], ["send", "--lat", "-a", "-n", "2"])
    assert [int(row[0]) for row in rows(there, LATENCY)] == [1 << shift for shift in range(1, 24)]


def test_head() -> None:
    _, there = both("perf", [], ["write", "-n", "1", "-m", "1024"])
    assert "RDMA_Write BW Test\n" in there.out
    assert re.search(rf"^ Device +: softverbs0 +Core +: {softverbs.core_build}$", there.out, re.MULTILINE)
    assert re.search(r"^ TX depth +: 128 +Mtu +: 1024\[B\]$", there.out, re.MULTILINE)
    address = r"QPN 0x[0-9a-f]{6} PSN 0x[0-9a-f]{6} RKey 0x[0-9a-f]{8} VAddr 0x[0-9a-f]{12} GID 127\.\d+\.\d+\.\d+"
    assert re.search(f"^ local address:  {address}\n remote address: {address}\n-", there.out, re.MULTILINE)


def test_loss() -> None:
    env = {"SOFTVERBS_FAULTS": "seed=1,drop=0.03,duplicate=0.03,corrupt=0.03"}
    _, there = both("perf", [], ["write", "-s", "30000", "-n", "20"], env=env)
    assert rows(there, BANDWIDTH)[0][1] == "20"


def test_a_server_that_measures_something_else() -> None:
    here, there = both("perf", ["read"], ["write", "-n", "1"])
    assert (here.code, there.code) == (1, 1)
    assert here.err.splitlines()[1:] == ["softverbs: the client wants write; this server was told read"]
    assert there.err == "softverbs: the peer says: this server measures read, not write\n"


@pytest.mark.parametrize(
    "words",
    [
        ["-a", "-s", "2"],
        ["-n", "2", "-D", "1"],
        ["--lat", "-q", "2"],
        ["-s", "0"],
        ["-D", "0"],
        ["-t", "0"],
        ["--bind", "127.0.0.1"],
    ],
)
def test_contradictions(words: list[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        result = invoke("perf", "write", *words, "-p", str(listener.getsockname()[1]), "127.0.0.1")
    assert result.exit_code == 2
    assert result.stderr.count("\n") == 1 and "see softverbs perf --help" in result.stderr


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["read", "-c", "uc"], "uc has no read"),
        (["atomic", "-c", "uc"], "uc has no atomic"),
        (["write", "-c", "ud"], "ud has no write"),
        (["send", "-c", "ud", "-q", "2"], "-q is for rc and uc"),
    ],
)
def test_what_unreliable_connections_cannot_do(words: list[str], text: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        result = invoke("perf", *words, "-p", str(listener.getsockname()[1]), "127.0.0.1")
    assert (result.exit_code, text in result.stderr) == (2, True)


def test_an_atomic_has_one_size() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        result = invoke("perf", "atomic", "-s", "16", "-p", str(listener.getsockname()[1]), "127.0.0.1")
    assert (result.exit_code, "an atomic has 8 bytes" in result.stderr) == (2, True)


def test_no_server() -> None:
    port = free_port()
    done = run("perf", "write", "-p", str(port), "127.0.0.1")
    assert done.code == 1 and done.err.startswith(f"softverbs: cannot connect to 127.0.0.1 port {port}")


# -- peers


@pytest.mark.parametrize(
    ("sent", "words"),
    [
        (b"SSH-2.0-OpenSSH\r\n", "the peer is no softverbs perf"),
        (b"{}\n", "another version"),
        (json.dumps({"plan": {**PLAN, "qps": 10**9}}).encode() + b"\n", "another version"),
        (b"", "closed the connection"),
    ],
)
def test_a_client_that_is_something_else(sent: bytes, words: str) -> None:
    with server("perf") as (port, process), socket.create_connection(("127.0.0.1", port)) as tcp:
        tcp.sendall(sent)
        tcp.shutdown(socket.SHUT_WR)
        done = finish(process)
    assert done.code == 1
    assert words in done.err.splitlines()[1] and done.err.count("\n") == 2


def test_a_client_that_goes_away() -> None:
    with server("perf") as (port, process):
        with socket.create_connection(("127.0.0.1", port)) as tcp:
            lines = tcp.makefile("rw")
            lines.write(json.dumps({"plan": PLAN}) + "\n")
            lines.flush()
            assert json.loads(lines.readline()) == {"mtu": 5}
            address = json.loads(lines.readline())
            assert address.keys() == {"gid", "qps", "rkey", "address"}
            lines.write(json.dumps(address) + '\n{"ready": true}\n')  # its own: it is connected to itself
            lines.flush()
            lines.close()
        done = finish(process)
    assert done.code == 1
    # TCP says "reset" where the server had already written something that nobody will read.
    (line,) = done.err.splitlines()[1:]
    assert re.fullmatch("softverbs: the peer has (closed the connection|gone: Connection reset by peer)", line)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("test", "nonsense"), ("sizes", []), ("sizes", [0]), ("sizes", ["x"]), ("sizes", 5), ("sizes", [1, 2]),
        ("iters", [-1]), ("depth", 0), ("depth", 10**6), ("mtu", 6), ("seconds", "x"), ("more", 1),
        ("connection", "xrc"), ("connection", "ud"), ("connection", 1),
    ],
)  # fmt: skip
def test_plans_are_checked(name: str, value: object) -> None:
    assert Plan.parsed(PLAN) == Plan(**PLAN)
    with pytest.raises(Fault, match="another version"):
        Plan.parsed({**PLAN, name: value})


@pytest.mark.parametrize(("iters", "latency", "size"), [(None, False, 64), (None, True, 1 << 23), (7, True, 1 << 23)])
def test_how_many(iters: "int | None", latency: bool, size: int) -> None:
    count = perf._count(latency, size, iters)
    assert count == iters if iters is not None else 10 <= count <= 5000


# -- numbers


def test_peak_is_the_best_stretch() -> None:
    samples = [(0.0, 0), (1.0, 10), (2.0, 40), (3.0, 50)]
    assert perf_run.peak(samples, 10) == 30
    assert perf_run.peak(samples, 40) == 20
    assert perf_run.peak(samples, 50) == pytest.approx(50 / 3)
    assert perf_run.peak(samples, 51) == 0
    assert perf_run.peak([(0.0, 0)], 1) == 0


def test_rows() -> None:
    result = Result(1 << 20, 100, 2.0, peak=60 * (1 << 20), times=[4e-6, 1e-6, 2e-6, 3e-6])
    assert result.bandwidth_row() == ["1048576", "100", "60.00", "50.00", "0.000050"]
    assert result.latency_row() == ["1048576", "100", "1.00", "4.00", "2.50", "2.50", "1.12", "4.00", "4.00"]


@pytest.mark.parametrize("test", ["write", "read", "atomic"])
def test_wrong_data_are_noticed(test: str) -> None:
    plan = Plan(**{**PLAN, "test": test})
    with Device() as device, Context(device=device) as context:
        side = Side(context, plan, Way())
        side.prepare(64)
        side.compare(64, 0, client=test != "read")
        with pytest.raises(Fault, match=r"not those that were sent|the sum is 0"):
            side.compare(64, 3, client=test == "read")
