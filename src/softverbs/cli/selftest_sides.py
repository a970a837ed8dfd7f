# SPDX-License-Identifier: MIT
"""The two processes of ``softverbs selftest``: the mover does every operation, the keeper has memory."""

from __future__ import annotations

import hashlib
import mmap
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass

from softverbs.cli.common import check, open_device, opened
from softverbs.cli.pair import Talk
from softverbs.cli.rc import ALL_ACCESS, Region, Way, chained, counter_of, join, make_qp, own_gid, random_psn
from softverbs.pyverbs import libibverbs_enums as e
from softverbs.pyverbs.cq import CQ
from softverbs.pyverbs.device import Context
from softverbs.pyverbs.mr import MR
from softverbs.pyverbs.pd import PD

WORD = 8  # bytes of a counted write
CHUNK = 1 << 20
DEPTH = 256
_LIST = 32
_READS = 16
_DIGEST = 16  # bytes
_STEPS = ("write one", "write many", "read one", "read many")
_COUNTED = "count"


@dataclass
class Settings:
    """What both processes are told."""

    bytes: int
    piece: int
    writes: int
    seconds: float
    pcap: str

    @property
    def steps(self) -> tuple[str, ...]:
        """The steps that have something to do."""
        return (*(_STEPS if self.bytes else ()), *((_COUNTED,) if self.writes else ()))


class _End:
    """One end: one region of memory, a QP, and the two counters of one direction."""

    def __init__(self, context: Context, settings: Settings, writes: int, reads: int) -> None:
        self.context = context
        self.buffer = mmap.mmap(-1, max(settings.bytes, settings.writes * WORD, 1))
        pd = PD(context)
        self.memory = MR(pd, self.buffer, ALL_ACCESS)
        self.cq = CQ(context, DEPTH)
        self.qp = make_qp(pd, self.cq, self.cq, DEPTH, 1)
        self.writes = counter_of(context, self.qp, writes)
        self.reads = counter_of(context, self.qp, reads)

    def meet(self, talk: Talk) -> Region:
        """Connects to the other process; the two memories."""
        (index, gid), psn = own_gid(self.context, 1, None, None), random_psn()
        talk.tell(qpn=self.qp.qp_num, psn=psn, gid=gid, rkey=self.memory.rkey, address=self.memory.buf)
        there = talk.hear()
        mtu = self.context.query_port(1).active_mtu
        join(self.qp, Way(mtu=mtu, gid_index=index), psn, (there["gid"], there["qpn"], there["psn"]), _READS)
        talk.tell(connected=True)
        talk.hear()
        return Region(self.memory.buf, self.memory.lkey, there["address"], there["rkey"])

    def fill(self, size: int, seed: str) -> None:
        """Random bytes from a seed, in the first ``size`` bytes; no part is like another."""
        source = random.Random(seed)
        for start in range(0, size, CHUNK):
            end = min(start + CHUNK, size)
            self.buffer[start:end] = source.randbytes(end - start)

    def clear(self, size: int) -> None:
        """Zeros in the first ``size`` bytes, so that nothing from before passes for what is to come."""
        zeros = bytes(CHUNK)
        for start in range(0, size, CHUNK):
            end = min(start + CHUNK, size)
            self.buffer[start:end] = zeros[: end - start]

    def digest(self, size: int) -> str:
        """BLAKE2b of the first ``size`` bytes."""
        with memoryview(self.buffer) as view, view[:size] as part:
            return hashlib.blake2b(part, digest_size=_DIGEST).hexdigest()

    def entries(self) -> int:
        """How many completions wait, and are taken."""
        return int(self.cq.poll(DEPTH)[0])


def keeper(talk: Talk, settings: Settings) -> None:
    """Has memory, and says what is in it."""
    writes, reads = e.IBV_QP_ATTACH_COMP_CNTR_OP_REMOTE_RDMA_WRITE, e.IBV_QP_ATTACH_COMP_CNTR_OP_REMOTE_RDMA_READ
    with opened(open_device(pcap="")) as context:
        end = _End(context, settings, writes, reads)
        end.meet(talk)
        for step in settings.steps:
            size = settings.writes * WORD if step == _COUNTED else settings.bytes
            _start(end, size, step, step.startswith("read"))
            talk.tell(ready=True)
            talk.hear()
            counts = (*end.writes.read_pair(), *end.reads.read_pair())
            talk.report(step, side="keeper", digest=end.digest(size), counts=counts, entries=end.entries())
            talk.tell(done=True)
            talk.hear()


def _start(end: _End, size: int, step: str, source: bool) -> None:
    """Before a step, while nothing is on the way: counts from zero; data where they come from, zeros where they go."""
    end.fill(size, step) if source else end.clear(size)
    end.writes.set(0)
    end.reads.set(0)


def mover(talk: Talk, settings: Settings) -> None:
    """Writes and reads the other's memory."""
    writes, reads = e.IBV_QP_ATTACH_COMP_CNTR_OP_RDMA_WRITE, e.IBV_QP_ATTACH_COMP_CNTR_OP_RDMA_READ
    with opened(open_device(pcap=settings.pcap)) as context:
        end = _End(context, settings, writes, reads)
        region = end.meet(talk)
        for step in settings.steps:
            size = settings.writes * WORD if step == _COUNTED else settings.bytes
            _start(end, size, step, not step.startswith("read"))
            talk.hear()
            begun = time.perf_counter()
            if step == _COUNTED:
                _count(end, region, settings)
            else:
                _move(end, region, step, settings)
            took = time.perf_counter() - begun
            counts = (*end.writes.read_pair(), *end.reads.read_pair())
            report = {"digest": end.digest(size), "counts": counts, "entries": end.entries()}
            talk.report(step, side="mover", took=took, **report)
            talk.tell(moved=True)
            talk.hear()
            talk.tell(go_on=True)


def _pieces(step: str, settings: Settings) -> Iterator[tuple[int, int]]:
    """(offset, length) of each message."""
    piece = settings.bytes if step.endswith("one") else settings.piece
    for offset in range(0, settings.bytes, piece):
        yield offset, min(piece, settings.bytes - offset)


def _move(end: _End, region: Region, step: str, settings: Settings) -> None:
    """Each message once; one in ``_LIST`` is signaled, and the last."""
    opcode = e.IBV_WR_RDMA_READ if step.startswith("read") else e.IBV_WR_RDMA_WRITE
    pieces = list(_pieces(step, settings))
    outstanding = 0
    for first in range(0, len(pieces), _LIST):
        part = pieces[first : first + _LIST]
        while outstanding >= DEPTH // _LIST:
            outstanding -= _reap(end)
        requests = [region.request(opcode, offset, length) for offset, length in part]
        requests[-1].send_flags = e.IBV_SEND_SIGNALED
        end.qp.post_send(chained(requests))
        outstanding += 1
    while outstanding:
        outstanding -= _reap(end)


def _reap(end: _End) -> int:
    polled, completions = end.cq.poll(_LIST)
    for completion in completions:
        check(completion)
    return polled


def _count(end: _End, region: Region, settings: Settings) -> None:
    """8-byte writes: the counter tells how many are done. One in ``_LIST`` is signaled, to free the send queue."""
    outstanding = 0
    for first in range(0, settings.writes, _LIST):
        while outstanding >= DEPTH // _LIST:
            outstanding -= _reap(end)
        last = min(first + _LIST, settings.writes)
        requests = [region.request(e.IBV_WR_RDMA_WRITE, index * WORD, WORD) for index in range(first, last)]
        requests[-1].send_flags = e.IBV_SEND_SIGNALED
        end.qp.post_send(chained(requests))
        outstanding += 1
    end.writes.wait(settings.writes, settings.seconds)
    while outstanding:
        outstanding -= _reap(end)
