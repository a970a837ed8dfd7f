# SPDX-License-Identifier: MIT
"""The quick start of the README of PyPI's package ``ibverbs``, between two processes; run by test_python_programs.py.

    python ibverbs_quick_start.py NAME DESCRIPTOR    one side; the descriptor is a socket to the other
    python ibverbs_quick_start.py                    both sides, on one device

Each side writes its name into the other's memory, and prints what was written into its own; then one of them tries a
key that the other does not have, and prints what that gives. The buffers are ctypes', so that numpy is not needed.
"""

import ctypes
import json
import socket
import subprocess
import sys
import time
from typing import BinaryIO

import ibverbs as ib

PORT, GID_INDEX = 1, 0


def _say(peer: BinaryIO, words: object) -> object:
    """Sends one line to the other side, and receives one."""
    peer.write(json.dumps(words).encode() + b"\n")
    peer.flush()
    return json.loads(peer.readline())


def _write(qp: ib.QP, cq: ib.CQ, mr: ib.MR, length: int, address: int, rkey: int) -> ib.WC:
    qp.post_send(
        ib.SendWR(
            wr_id=1,
            sg_list=[ib.SGE(mr, length)],
            opcode=ib.WROpcode.RDMA_WRITE,
            send_flags=ib.SendFlags.SIGNALED,
            remote_addr=address,
            rkey=rkey,
        )
    )
    end = time.monotonic() + 30
    while time.monotonic() < end:
        for wc in cq.poll(16):
            return wc
    raise TimeoutError("no completion")


def one_side(name: str, peer: BinaryIO) -> None:
    ctx = ib.get_device_list()[0].open()
    pd = ctx.alloc_pd()
    cq = ctx.create_cq(64)
    access = ib.AccessFlags.LOCAL_WRITE | ib.AccessFlags.REMOTE_WRITE | ib.AccessFlags.REMOTE_READ
    source, target = ctypes.create_string_buffer(name.encode(), 64), ctypes.create_string_buffer(64)
    mr = pd.reg_mr(ctypes.addressof(source), 64, access)
    target_mr = pd.reg_mr(ctypes.addressof(target), 64, access)
    qp = pd.create_qp(ib.QPInitAttr(send_cq=cq, recv_cq=cq, qp_type=ib.QPType.RC))
    local = ib.local_qp_info(qp, ctx.query_port(PORT), ctx.query_gid(PORT, GID_INDEX), port=PORT, psn=0)

    mine = [local.to_bytes().hex(), target_mr.addr, target_mr.rkey]
    remote, address, rkey = _say(peer, mine)  # type: ignore[misc]
    ib.connect_rc(qp, ib.QPInfo.from_bytes(bytes.fromhex(remote)), port=PORT, sgid_index=GID_INDEX, access=access)
    _say(peer, "connected")
    _write(qp, cq, mr, 64, address, rkey).raise_for_status()
    _say(peer, "written")
    sys.stdout.write(f"{name} has {target.value.decode()}\n")  # print may write a line in two pieces
    if name == "a":  # the first refusal ends the connection on both sides
        try:
            _write(qp, cq, mr, 64, address, rkey ^ 0x5A5A00).raise_for_status()
        except ib.CompletionError as error:
            sys.stdout.write(f"{name} is refused: {ib.WCStatus(error.status).name}\n")
    _say(peer, "done")
    for resource in (qp, cq, mr, target_mr, pd, ctx):
        resource.close()


def both_sides() -> None:
    a, b = socket.socketpair()
    sides = [
        subprocess.Popen([sys.executable, __file__, name, str(end.fileno())], pass_fds=[end.fileno()])
        for name, end in (("a", a), ("b", b))
    ]
    a.close()
    b.close()
    sys.exit(max(side.wait(60) for side in sides))


if __name__ == "__main__":
    if sys.argv[1:]:
        with socket.socket(fileno=int(sys.argv[2])) as end, end.makefile("rwb") as stream:
            one_side(sys.argv[1], stream)
    else:
        both_sides()
