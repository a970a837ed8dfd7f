# SPDX-License-Identifier: MIT
"""A program in a process of its own that works with a device: ``python -m tests.server.program PATH SECONDS``.

It connects to its parent's side through its standard input and output: a line with its GID, the number of its QP, its
buffer's address and rkey, and a child's number; then the parent's. It goes on until it is killed.
"""

import os
import sys
import time

from tests.server.client import READ, WRITE, Side


def count_in_buffer(side: Side) -> None:
    """A counter of the peer's WRITEs, whose counts are kept in the first words of the buffer."""
    values = {"value_address": side.buffer.address, "error_address": side.buffer.address + 8}
    counter = side.client.call("CREATE_COMP_CNTR", external=3, **values)["handle"]
    side.client.call("ATTACH_COMP_CNTR", qp=side.qp.handle, counter=counter, op_mask=32)


def main(path: str, work: str) -> None:
    """:param work: ``serve``: only memory; ``counted``: and a counter that counts there; ``traffic``: WRITE and READ to
    the parent's buffer; ``forked``: a child that has its descriptors
    """
    side = Side(path)
    side.buffer.data.raw = bytes(range(256)) * 16
    if work == "counted":
        count_in_buffer(side)
    child = os.fork() if work == "forked" else -1
    if child == 0:
        time.sleep(60)
        os._exit(0)
    print(side.client.gid().hex(), side.qp.number, side.buffer.address, side.buffer.rkey, child, flush=True)
    gid, number, address, rkey = sys.stdin.readline().split()
    side.qp.connect(bytes.fromhex(gid), int(number))
    print("connected", flush=True)
    turn = 0
    while True:
        if work != "traffic":
            time.sleep(60)
        opcode = (WRITE, READ)[turn % 2]
        side.qp.post_send(turn, side.buffer.element(), opcode=opcode, remote=int(address), rkey=int(rkey))
        assert side.cq.wait()["status"] == 0
        turn += 1


if __name__ == "__main__":
    main(*sys.argv[1:])
