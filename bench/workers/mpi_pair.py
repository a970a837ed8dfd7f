# SPDX-License-Identifier: MIT
"""Measure mpi4py between two ranks; run by ``mpirun -n 2``.

``put`` times one-sided Put + Flush, each awaited; ``stream`` times many Puts and one Flush; ``pingpong`` times
Send/Recv, half a round trip. The window is over a buffer of the user (``Win.Create``), not over memory that the library
allocated.
"""

from __future__ import annotations

import argparse
import importlib
from typing import Any

import control


def put(window: Any, buffer: bytearray, byte: Any, count: int) -> float:
    """Put and flush ``count`` times; returns the seconds that it took."""
    start = control.clock()
    for _ in range(count):
        window.Put([buffer, byte], 1)
        window.Flush(1)
    return control.clock() - start


def stream(window: Any, buffer: bytearray, byte: Any, count: int) -> float:
    """Put ``count`` times, with one flush at the end of each window of puts; returns the seconds that it took."""
    depth = max(4, min(64, (8 << 20) // len(buffer)))
    start = control.clock()
    for first in range(0, count, depth):
        for _ in range(min(depth, count - first)):
            window.Put([buffer, byte], 1)
        window.Flush(1)
    return control.clock() - start


def one_sided(mpi: Any, mode: str, size: int, seconds: float) -> float | None:
    """Rank 0 puts into rank 1, which waits in a barrier; returns seconds for one put, on rank 0."""
    world = mpi.COMM_WORLD
    window = mpi.Win.Create(bytearray(size), 1, comm=world)
    buffer = bytearray(b"\xa5" * size)
    result = None
    window.Lock_all()
    world.Barrier()
    if world.Get_rank() == 0:
        measured = put if mode == "put" else stream
        result = control.per_operation(lambda count: measured(window, buffer, mpi.BYTE, count), seconds)
    world.Barrier()
    window.Unlock_all()
    window.Free()
    return result


def two_sided(mpi: Any, size: int, seconds: float) -> float | None:
    """Both ranks send and receive in turn; returns seconds for half a round trip, on rank 0."""
    world, byte = mpi.COMM_WORLD, mpi.BYTE
    outgoing, incoming = bytearray(size), bytearray(size)

    def exchange(count: int) -> float:
        world.bcast(count, root=0)
        start = control.clock()
        for _ in range(count):
            world.Send([outgoing, byte], 1)
            world.Recv([incoming, byte], 1)
        return control.clock() - start

    if world.Get_rank() == 0:
        result = control.per_operation(exchange, seconds) / 2
        world.bcast(0, root=0)
        return result
    while (count := world.bcast(None, root=0)) > 0:
        for _ in range(count):
            world.Recv([incoming, byte], 0)
            world.Send([outgoing, byte], 0)
    return None


def main() -> None:
    """Measure what the arguments ask for; rank 0 prints the seconds for one operation."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("mode", choices=("put", "stream", "pingpong"))
    parser.add_argument("--size", type=int, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--cores", type=int, nargs=2, required=True, help="of the passive and of the active side")
    arguments = parser.parse_args()
    settings: Any = importlib.import_module("mpi4py").rc
    settings.thread_level = "single"
    mpi: Any = importlib.import_module("mpi4py.MPI")
    control.pin(arguments.cores[1 - mpi.COMM_WORLD.Get_rank()])
    if arguments.mode == "pingpong":
        result = two_sided(mpi, arguments.size, arguments.seconds)
    else:
        result = one_sided(mpi, arguments.mode, arguments.size, arguments.seconds)
    if result is not None:
        control.answer(seconds=result)


if __name__ == "__main__":
    main()
