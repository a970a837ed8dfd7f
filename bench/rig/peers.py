# SPDX-License-Identifier: MIT
"""The peers: what somebody would use instead. Each is optional; without its program its rows say so."""

from __future__ import annotations

import functools
import itertools
import os
import shutil
import subprocess
from collections.abc import Callable

from rig import debian, processes
from rig.model import (
    C_SEND,
    COMPLETION,
    LATENCY,
    SIZES,
    STREAM,
    TURNS,
    Case,
    Failed,
    Missing,
    Plan,
    as_figure,
    stream_unit,
)

MPI_PUT = "mpi4py over TCP, Put + Flush"
MPI_SEND = "mpi4py over TCP, Send/Recv"
FABRIC_UDP = "libfabric udp;ofi_rxd (C)"
FABRIC_TCP = "libfabric tcp;ofi_rxm (C)"
FABRIC_TCP_MSG = "libfabric tcp, connected (C)"
ZMQ = "pyzmq over TCP"
SOCKET = "Python UDP sockets, unreliable"

# As our own figures are over sockets, Open MPI is held to TCP: its shared memory is another path.
MPIRUN = (
    *("mpirun", "-n", "2", "--bind-to", "none", "--oversubscribe"),
    *("--mca", "pml", "ob1", "--mca", "btl", "tcp,self", "--mca", "btl_tcp_if_include", "lo"),
    *("--mca", "osc", "rdma,pt2pt", "--mca", "mpi_yield_when_idle", "0"),
)

# About how long fi_pingpong takes for a transfer, in microseconds: it wants a number of iterations, not a time.
FABRIC_GUESS_US = {8: 20.0, 4096: 35.0, 65536: 400.0, 1 << 20: 6000.0}
FABRIC_LEAST = 20


@functools.cache
def _has_module(python: str, module: str) -> bool:
    """Whether ``python`` can import ``module``."""
    command = [python, "-c", f"import {module}"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def need_module(python: str, module: str) -> None:
    """Raise Missing unless ``python`` can import ``module``."""
    if not _has_module(python, module):
        raise Missing(f"no {module} in {os.path.basename(python)} (pip install {module})")


def _mpi(mode: str, size: int, unit: str, python: str) -> Callable[[Plan], float]:
    """How to take a sample of mpi4py."""

    def run(plan: Plan) -> float:
        if shutil.which("mpirun") is None:
            raise Missing("no mpirun here (Debian package openmpi-bin)")
        need_module(python, "mpi4py")
        root = ("--allow-run-as-root",) if os.geteuid() == 0 else ()
        worker = (python, str(processes.WORKERS / "mpi_pair.py"), mode, "--size", str(size))
        options = ("--seconds", str(plan.seconds), "--cores", *map(str, plan.cores))
        answer = processes.run_worker((*MPIRUN, *root, *worker, *options))
        return as_figure(float(answer["seconds"]), unit, size)

    return run


def parse_fabric(output: str) -> float:
    """The microseconds for a transfer (half a round trip) from fi_pingpong's table.

    Raises:
        Failed: the output has no such table.
    """
    lines = output.splitlines()
    for heading, figures in itertools.pairwise(lines):
        if "usec/xfer" in heading.split():
            try:
                return float(figures.split()[heading.split().index("usec/xfer")])
            except (IndexError, ValueError):
                break
    raise Failed("no usec/xfer in the output of fi_pingpong")


def _fabric(provider: str, size: int, endpoint: str = "rdm") -> Callable[[Plan], float]:
    """How to take a sample of libfabric's fi_pingpong."""

    def run(plan: Plan) -> float:
        program, variables = debian.find("fi_pingpong", debian.LIBFABRIC)
        count = max(FABRIC_LEAST, int(plan.seconds * 1e6 / FABRIC_GUESS_US[size] / 2))
        port = processes.free_port()
        common = (program, "-p", provider, "-e", endpoint, "-I", str(count), "-S", str(size))
        server, client = (*common, "-B", str(port)), (*common, "-P", str(port), "127.0.0.1")
        return parse_fabric(processes.run_pair(server, client, plan.cores, port, variables))

    return run


def _message(kind: str, size: int, python: str) -> Callable[[Plan], float]:
    """How to take a sample of pyzmq or of bare sockets."""

    def run(plan: Plan) -> float:
        if kind == "zmq":
            need_module(python, "zmq")
        worker = (python, str(processes.WORKERS / "message_pair.py"), kind, "--size", str(size))
        cores = ("--core", str(plan.cores[1]), "--partner-core", str(plan.cores[0]))
        answer = processes.run_worker((*worker, "--seconds", str(plan.seconds), *cores))
        return as_figure(float(answer["seconds"]), LATENCY, size)

    return run


def cases(python: str) -> list[Case]:
    """Every case of the peers; ``python`` is the interpreter that has mpi4py and pyzmq."""
    made = []
    for size in SIZES:
        unit = stream_unit(size)
        made += [
            Case(COMPLETION, MPI_PUT, LATENCY, size, _mpi("put", size, LATENCY, python)),
            Case(STREAM, MPI_PUT, unit, size, _mpi("stream", size, unit, python)),
            Case(TURNS, MPI_SEND, LATENCY, size, _mpi("pingpong", size, LATENCY, python)),
            Case(TURNS, FABRIC_UDP, LATENCY, size, _fabric("udp;ofi_rxd", size)),
            Case(TURNS, FABRIC_TCP, LATENCY, size, _fabric("tcp;ofi_rxm", size)),
            Case(TURNS, ZMQ, LATENCY, size, _message("zmq", size, python)),
        ]
        if size < 65536:  # a datagram holds no more
            made.append(Case(TURNS, SOCKET, LATENCY, size, _message("udp", size, python)))
    return made


def c_cases() -> list[Case]:
    """What is measured of libfabric beside the C face; Debian has no program for its RMA, or for its bandwidth."""
    wanted = ((FABRIC_UDP, "udp;ofi_rxd", "rdm"), (FABRIC_TCP, "tcp;ofi_rxm", "rdm"), (FABRIC_TCP_MSG, "tcp", "msg"))
    return [
        Case(C_SEND, subject, LATENCY, size, _fabric(provider, size, endpoint), by_mean=True)
        for size in SIZES
        for subject, provider, endpoint in wanted
    ]
