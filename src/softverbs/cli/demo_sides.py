# SPDX-License-Identifier: MIT
"""The two processes of ``softverbs demo``: one writes into the other's memory."""

from __future__ import annotations

import os
import random
import time
from dataclasses import dataclass
from typing import Any

from softverbs.cli.common import Fault, open_device, opened, status_name
from softverbs.cli.pair import Talk
from softverbs.cli.rc import ALL_ACCESS, Region, Way, chained, counter_of, join, make_qp, own_gid, random_psn, reap
from softverbs.links.base import address_of
from softverbs.pyverbs import libibverbs_enums as e
from softverbs.pyverbs.cq import CQ, WC
from softverbs.pyverbs.device import Context
from softverbs.pyverbs.mr import MR
from softverbs.pyverbs.pd import PD
from softverbs.pyverbs.pyverbs_error import PyverbsRDMAError

WORD = 8  # bytes of a write
BEHIND = 3  # writes that are queued behind the bad one
DEPTH = 256
BAD_ID = 1000
_LIST = 32
_SEED = 2026
_READS = 1
_ENTRIES = 64


@dataclass
class Settings:
    """What both processes are told."""

    writes: int
    seconds: float
    pcap: str


class _End:
    """One end: a context, memory for every write, a QP, and a counter attached to it."""

    def __init__(self, context: Context, settings: Settings, operation: int) -> None:
        self.context, self.size = context, settings.writes * WORD
        pd = PD(context)
        self.memory = MR(pd, self.size, ALL_ACCESS)
        self.cq = CQ(context, _ENTRIES)
        self.qp = make_qp(pd, self.cq, self.cq, DEPTH, 1)
        self.counter = counter_of(context, self.qp, operation)

    def meet(self, talk: Talk) -> Region:
        """Connects to the other process; the two memories."""
        (index, gid), psn = own_gid(self.context, 1, None, None), random_psn()
        here = {"qpn": self.qp.qp_num, "psn": psn, "gid": gid, "rkey": self.memory.rkey, "address": self.memory.buf}
        talk.tell(**here)
        there = talk.hear()
        mtu = self.context.query_port(1).active_mtu
        join(self.qp, Way(mtu=mtu, gid_index=index), psn, (there["gid"], there["qpn"], there["psn"]), _READS)
        talk.tell(connected=True)
        talk.hear()
        talk.report("up", pid=os.getpid(), gid=address_of(gid), qpn=self.qp.qp_num, rkey=self.memory.rkey)
        return Region(self.memory.buf, self.memory.lkey, there["address"], there["rkey"])

    def counted(self) -> dict[str, Any]:
        """What the counter says, and how many entries the completion queue had."""
        completions, errors = self.counter.read_pair()
        return {"completions": completions, "errors": errors, "entries": self.cq.poll(_ENTRIES)[0]}


def pattern(size: int) -> bytes:
    """What the sender writes, and the receiver looks for."""
    return random.Random(_SEED).randbytes(size)


def receiver(talk: Talk, settings: Settings) -> None:
    """Waits on a counter of inbound writes; posts no receive, and gets no completion queue entry."""
    with opened(open_device(pcap="")) as context:
        os.set_blocking(context.async_fd, False)
        end = _End(context, settings, e.IBV_QP_ATTACH_COMP_CNTR_OP_REMOTE_RDMA_WRITE)
        expected = pattern(end.size)
        end.meet(talk)
        end.counter.wait(settings.writes, settings.seconds)
        talk.report("landed", **end.counted(), wrong=_first_difference(end, expected), size=end.size)
        talk.tell(counted=True)
        talk.hear()
        after = {**end.counted(), "wrong": _first_difference(end, expected), "state": end.qp.qp_state}
        talk.report("after", **after, event=_event(context))
        talk.tell(done=True)
        talk.hear()


def _first_difference(end: _End, expected: bytes) -> int:
    """Where the memory is not as it should be; -1 where it is."""
    found = end.memory.read(end.size, 0)
    if found == expected:
        return -1
    return next(index for index in range(end.size) if found[index] != expected[index])


def _event(context: Context) -> int:
    """The asynchronous event of the refused request; -1 where there is none."""
    try:
        event = context.get_async_event()
    except PyverbsRDMAError:
        return -1
    event.ack()
    return event.event_type


def sender(talk: Talk, settings: Settings) -> None:
    """Watches a counter of its writes; then one write with a wrong key."""
    with opened(open_device(pcap=settings.pcap)) as context:
        end = _End(context, settings, e.IBV_QP_ATTACH_COMP_CNTR_OP_RDMA_WRITE)
        end.memory.write(pattern(end.size), end.size)
        region = end.meet(talk)
        start = time.perf_counter()
        _write_all(end, region, settings)
        seconds = time.perf_counter() - start
        talk.report("sent", **end.counted(), took=seconds)
        talk.hear()
        _write_badly(talk, end, region, settings)
        talk.tell(bad=True)
        talk.hear()
        talk.tell(done=True)


def _write_all(end: _End, region: Region, settings: Settings) -> None:
    """Posts every write, and waits until all are counted. The last of each list is signaled: polling its completion
    frees the list's places in the send queue.
    """
    outstanding = 0
    for first in range(0, settings.writes, _LIST):
        while outstanding >= DEPTH // _LIST:
            outstanding -= len(reap(end.cq, 1, settings.seconds))
        last = min(first + _LIST, settings.writes)
        requests = [region.request(e.IBV_WR_RDMA_WRITE, index * WORD, WORD) for index in range(first, last)]
        requests[-1].send_flags = e.IBV_SEND_SIGNALED
        end.qp.post_send(chained(requests))
        outstanding += 1
    end.counter.wait(settings.writes, settings.seconds)
    reap(end.cq, outstanding, settings.seconds)


def _write_badly(talk: Talk, end: _End, region: Region, settings: Settings) -> None:
    """One write with a wrong rkey and some good ones behind it, in one list. Only the bad one is signaled."""
    bad = region._replace(rkey=region.rkey ^ 0xFF)
    requests = [bad.request(e.IBV_WR_RDMA_WRITE, 0, WORD, e.IBV_SEND_SIGNALED, BAD_ID)]
    for number in range(1, BEHIND + 1):
        requests.append(region.request(e.IBV_WR_RDMA_WRITE, 0, WORD, 0, BAD_ID + number))
    end.qp.post_send(chained(requests))
    start = time.perf_counter()
    woken = ""
    try:
        end.counter.wait(settings.writes + len(requests), settings.seconds)
    except PyverbsRDMAError as error:
        woken = error.reason
    took = time.perf_counter() - start
    found = reap(end.cq, len(requests), settings.seconds)
    counted = end.counted()
    if counted["entries"]:
        raise Fault(f"{counted['entries']} completions too many")
    talk.report("failed", **counted, woken=woken, took=took, rkey=bad.rkey, list=[_told(wc) for wc in found])


def _told(completion: WC) -> tuple[int, str, str]:
    return completion.wr_id, status_name(completion.status), completion.reason
