# SPDX-License-Identifier: MIT
"""Processor time of a sender that waits for a receive at its peer, and of that peer: ``python bench/waiting_cpu.py``.

A SEND to a queue pair without a receive is tried again each time that the RNR timer has passed, and the timer may be as
short as 0.01 ms (IBA table 45). Waiting must not cost a processor: both processes ask the kernel what they have used
(getrusage(2)) while nothing is there to receive. One more row has two devices that have nothing to do. The script ends
with 1 where somebody has used more than ``MOST``. Meaningless on a machine that does other work.
"""

import resource
import sys
import time
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any

import softverbs as sv
from softverbs.device import Device

SECONDS = 3.0
#: Share of one processor, of each process.
MOST = 0.02
#: Values of min_rnr_timer, and their time in words.
TIMERS = {1: "0.01 ms", 12: "0.64 ms", 0: "655 ms"}


def used() -> float:
    """Processor time of this process, s."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


class Side:
    """One device with one queue pair."""

    def __init__(self, pipe: Connection, rnr_timer: int) -> None:
        """
        :param pipe: to the other side
        :param rnr_timer: value of min_rnr_timer (IBA table 45)
        """
        self.context = sv.Context(device=Device())
        pd = sv.PD(self.context)
        self.cq = sv.CQ(self.context, 16)
        self.mr = sv.MR(pd, 4096, sv.IBV_ACCESS_LOCAL_WRITE)
        cap = sv.QPCap(max_send_wr=4, max_recv_wr=4)
        self.qp = sv.QP(pd, sv.QPInitAttr(qp_type=sv.IBV_QPT_RC, scq=self.cq, rcq=self.cq, cap=cap, sq_sig_all=1))
        pipe.send((str(self.context.query_gid(1, 0)), self.qp.qp_num))
        gid, number = pipe.recv()
        attr = sv.QPAttr(port_num=1)
        attr.path_mtu, attr.dest_qp_num, attr.max_rd_atomic, attr.max_dest_rd_atomic = sv.IBV_MTU_1024, number, 1, 1
        route = sv.GlobalRoute(dgid=sv.GID(gid), sgid_index=0)
        attr.ah_attr = sv.AHAttr(gr=route, is_global=1, port_num=1)
        attr.timeout, attr.retry_cnt, attr.rnr_retry, attr.min_rnr_timer = 14, 7, 7, rnr_timer
        self.qp.to_rts(attr)
        pipe.send("ready")
        pipe.recv()

    def element(self) -> Any:
        """Eight bytes of its memory."""
        return sv.SGE(self.mr.buf, 8, self.mr.lkey)


def receiver(pipe: Connection, rnr_timer: int) -> None:
    """The process that posts its receive late."""
    side = Side(pipe, rnr_timer)
    pipe.recv()
    before = used()
    pipe.recv()
    pipe.send(used() - before)
    pipe.recv()
    side.qp.post_recv(sv.RecvWR(1, 1, [side.element()]))
    pipe.recv()


def measure(rnr_timer: int, sends: bool) -> tuple[float, float]:
    """Shares of a processor that sender and receiver have used.

    :param rnr_timer: value of min_rnr_timer
    :param sends: whether there is anything to wait for
    """
    spawn = get_context("spawn")
    pipe, theirs = spawn.Pipe()
    process = spawn.Process(target=receiver, args=(theirs, rnr_timer), daemon=True)
    process.start()
    side = Side(pipe, rnr_timer)
    if sends:
        side.qp.post_send(sv.SendWR(1, opcode=sv.IBV_WR_SEND, num_sge=1, sg=[side.element()]))
    time.sleep(0.5)  # what wakes both up to connect is over
    pipe.send("begin")
    before, start = used(), time.monotonic()
    time.sleep(SECONDS)
    own, seconds = used() - before, time.monotonic() - start
    pipe.send("end")
    other = float(pipe.recv())
    pipe.send("post")
    if sends:
        end = time.monotonic() + 10
        while not (completions := side.cq.poll()[1]):
            if time.monotonic() > end:
                raise SystemExit("the SEND has not completed, though a receive was posted")
        if completions[0].status != sv.IBV_WC_SUCCESS:
            raise SystemExit(f"the SEND has failed: {completions[0].reason}")
    pipe.send("over")
    process.join(10)
    side.context.device.close()
    return own / seconds, other / seconds


def main() -> int:
    """Prints the table; 1 where a process has used too much."""
    print(f"{'':28}{'sender':>8}{'receiver':>10}   of one processor, at most {MOST:.0%}")
    worst = 0.0
    rows = [(f"min_rnr_timer {value} ({text})", value, True) for value, text in TIMERS.items()]
    for name, value, sends in [*rows, ("idle", 1, False)]:
        own, other = measure(value, sends)
        worst = max(worst, own, other)
        print(f"{name:28}{own:8.1%}{other:10.1%}")
    return int(worst > MOST)


if __name__ == "__main__":
    sys.exit(main())
