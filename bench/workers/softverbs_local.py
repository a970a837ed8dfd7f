# SPDX-License-Identifier: MIT
"""Measure softverbs within one process: two QPs of one device, connected to each other; RDMA WRITE.

``completion``: a signaled write is posted and its CQ polled until it has completed. ``counter``: an unsignaled write is
posted and the RDMA_WRITE counter read until it has counted it. ``posts``: unsignaled writes, posted one by one.
``lists``: the same, posted in lists of 32.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import control
import endpoint

from softverbs.pyverbs import libibverbs_enums as e
from softverbs.pyverbs.comp_cntr import CompCntr, CompCntrInitAttr
from softverbs.pyverbs.device import Context
from softverbs.pyverbs.qp import QPAttachCompCntrAttr

DEPTH = 128
INTERVAL = 32
WRITE = e.IBV_WR_RDMA_WRITE


def count_each(active: endpoint.Endpoint, counter: CompCntr, count: int) -> None:
    """Post an unsignaled write and read the counter until it has counted it, ``count`` times.

    A send queue's slots come free with a signaled completion, so one write in 64 is signaled.
    """
    post, read = active.qp.post_send, counter.read
    plain, signaled = active.request(WRITE, 0), active.request(WRITE, e.IBV_SEND_SIGNALED)
    target = read()
    for turn in range(1, count + 1):
        target += 1
        if turn % 64:
            post(plain)
            while read() < target:
                pass
        else:
            post(signaled)
            active.reap()


def connect(size: int) -> tuple[endpoint.Endpoint, endpoint.Endpoint, CompCntr]:
    """Two connected endpoints of one device, and the counter of the first one's writes."""
    context = Context(name="softverbs0")
    active, passive = (endpoint.Endpoint(context, size, DEPTH) for _ in range(2))
    counter = CompCntr(context, CompCntrInitAttr())
    active.qp.attach_comp_cntr(counter, QPAttachCompCntrAttr(op_mask=e.IBV_QP_ATTACH_COMP_CNTR_OP_RDMA_WRITE))
    active.connect(passive.name())
    passive.connect(active.name())
    return active, passive, counter


def main() -> None:
    """Measure what the arguments ask for and print the seconds for one operation."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("mode", choices=("completion", "counter", "posts", "lists"))
    parser.add_argument("--size", type=int, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--core", type=int, required=True)
    arguments = parser.parse_args()
    control.pin(arguments.core)
    active, passive, counter = connect(arguments.size)
    signaled = active.request(WRITE, e.IBV_SEND_SIGNALED)
    modes: dict[str, tuple[int, Callable[[int], None]]] = {
        "completion": (1, lambda count: endpoint.complete_each(active, signaled, count)),
        "counter": (1, lambda count: count_each(active, counter, count)),
        "posts": (INTERVAL, lambda count: endpoint.stream(active, WRITE, INTERVAL, False, count)),
        "lists": (INTERVAL, lambda count: endpoint.stream(active, WRITE, INTERVAL, True, count)),
    }
    step, operate = modes[arguments.mode]
    seconds = control.per_operation(control.timed(operate), arguments.seconds, step)
    if passive.inbox != active.outbox:
        raise RuntimeError("the bytes that arrived are not those that were sent")
    control.answer(seconds=seconds, build=endpoint.build())


if __name__ == "__main__":
    main()
