# SPDX-License-Identifier: MIT
"""The cases: each takes a Pair, does one thing with it, and raises Wrong if anything is not as it should be."""

import errno
import random
from typing import Any

from peer import GUARD
from remote import DEFAULTS, STATUS, Pair, Refused, Side, Wrong

SIZES = (0, 1, 3, 4, 63, 1024, 1025, 4096, 5001, 65536, 1 << 20)
TWO_PIECES = (63, 1025, 5001)  # sizes that are gathered from, or scattered to, two elements
ATOMICS = ("ATOMIC_CMP_AND_SWP", "ATOMIC_FETCH_AND_ADD")
# operation: (its bits at the initiator, its bits at the target, opcode of its completion, opcode of the receive's)
OPS: "dict[str, tuple[tuple[str, ...], tuple[str, ...], int, int | None]]" = {
    "SEND": (("SEND",), ("RECV",), 0, 128),
    "SEND_WITH_IMM": (("SEND",), ("RECV",), 0, 128),
    "RDMA_WRITE": (("RDMA_WRITE",), ("REMOTE_RDMA_WRITE",), 1, None),
    "RDMA_WRITE_WITH_IMM": (("RDMA_WRITE",), ("REMOTE_RDMA_WRITE", "RECV"), 1, 129),
    "RDMA_READ": (("RDMA_READ",), ("REMOTE_RDMA_READ",), 2, None),
    "ATOMIC_CMP_AND_SWP": (("RDMA_READ",), ("REMOTE_RDMA_READ",), 3, None),
    "ATOMIC_FETCH_AND_ADD": (("RDMA_READ",), ("REMOTE_RDMA_READ",), 4, None),
}
WITH_IMM = 2  # IBV_WC_WITH_IMM
QPS_ERR = 6
SUCCESS, LOC_LEN_ERR, LOC_QP_OP_ERR, WR_FLUSH_ERR = 0, 1, 2, 5  # enum ibv_wc_status
REM_INV_REQ_ERR, REM_ACCESS_ERR, REM_OP_ERR, RETRY_EXC_ERR, RNR_RETRY_EXC_ERR = 9, 10, 11, 12, 13
WAIT = 40.0  # seconds for a completion that must come


def request(pair: Pair, op: str, length: int, offset: int = 0, **more: Any) -> "dict[str, Any]":
    """A work request to the same offset of the target's buffer."""
    about = pair.target.about
    return {"op": op, "length": length, "offset": offset, "rkey": about["rkey"], "addr": about["addr"] + offset, **more}


def completion(side: Side, role: str, statuses: "tuple[int, ...]" = (SUCCESS,), **fields: Any) -> "dict[str, Any]":
    """The next completion of ``side``; Wrong if it does not come, or status or a field differs."""
    got = side.poll(1, WAIT)
    if not got:
        raise Wrong(f"no completion at the {role} in {WAIT:g} s")
    wc: "dict[str, Any]" = got[0]
    if wc["status"] not in statuses:
        status, wanted = STATUS.get(wc["status"], wc["status"]), " or ".join(STATUS[s] for s in statuses)
        raise Wrong(f"the {role}'s status is {status}, not {wanted}; {wc['reason']}")
    fields["qpn"] = side.about["qpn"]
    for name, want in fields.items():
        if wc[name] != want:
            raise Wrong(f"{name} of the {role}'s completion is {wc[name]}, not {want}")
    return wc


def receive(pair: Pair, op: str, length: int, imm: int, wr_id: int) -> None:
    """The target's completion of an operation that consumes a receive."""
    wc = completion(pair.target, "target", opcode=OPS[op][3], byte_len=length, wr_id=wr_id)
    if op.endswith("WITH_IMM"):
        if not wc["flags"] & WITH_IMM or wc["imm"] != imm:
            raise Wrong(f"immediate data: flags {wc['flags']:#x}, value {wc['imm']:#x}, not {imm:#x}")
    elif wc["flags"] & WITH_IMM:
        raise Wrong("a message without immediate data arrived with some")


def compare(side: Side, seed: "int | None", length: int, offset: int = 0) -> None:
    """Every byte, and the guards."""
    difference = side.check(seed, length, offset)
    if difference:
        raise Wrong("data differ: " + difference)


def count(pair: Pair, op: str, length: int) -> None:
    """One more ``op`` of ``length`` bytes has succeeded."""
    pair.initiator.succeeded(OPS[op][0], length)
    pair.target.succeeded(OPS[op][1], length)


def transfer(pair: Pair, op: str, length: int, seed: int) -> None:
    """One operation, alone: data, completions at both ends, counters at both ends."""
    if op in ATOMICS:
        return atomic(pair, op, seed)
    source, sink = (pair.target, pair.initiator) if op == "RDMA_READ" else (pair.initiator, pair.target)
    source.fill(seed, length)
    sink.clear(length)
    imm = 0x01020304 + seed
    if OPS[op][3] is not None:
        pair.target.recv(length if op.startswith("SEND") else 0, wr_id=seed)
    pieces = 2 if length in TWO_PIECES else 1
    pair.initiator.post([request(pair, op, length, wr_id=seed + 1, imm=imm, pieces=pieces)])
    fields: "dict[str, Any]" = {"byte_len": length} if op == "RDMA_READ" else {}
    completion(pair.initiator, "initiator", wr_id=seed + 1, opcode=OPS[op][2], **fields)
    if OPS[op][3] is not None:
        receive(pair, op, length, imm, seed)
    compare(sink, seed, length)
    count(pair, op, length)
    pair.check_counters()


def operands(op: str, generator: random.Random) -> "tuple[int, list[int], int]":
    """A value in the target's memory, operands, and the value that must be there afterwards."""
    before, swap = generator.getrandbits(64), generator.getrandbits(64)
    if op == "ATOMIC_FETCH_AND_ADD":
        return before, [swap, 0], (before + swap) % 2**64
    if generator.random() < 0.5:
        return before, [before, swap], swap
    return before, [before ^ 1, swap], before  # does not match: stays


def atomic(pair: Pair, op: str, seed: int) -> None:
    """One atomic: the value returned and the value left."""
    before, values, after = operands(op, random.Random(seed))
    pair.initiator.clear(8)
    pair.target.clear(8)
    pair.target.store(before)
    pair.initiator.post([request(pair, op, 8, wr_id=seed, operands=values)])
    completion(pair.initiator, "initiator", wr_id=seed, opcode=OPS[op][2], byte_len=8)
    for what, side, want in (("returned", pair.initiator, before), ("left", pair.target, after)):
        if side.load() != want:
            raise Wrong(f"the value {what} is {side.load():#x}, not {want:#x}")
    count(pair, op, 8)
    pair.check_counters()


def increments(pair: Pair, number: int) -> None:
    """Many FETCH_AND_ADD of 1 on one word: each old value is seen once, in order; nothing is added twice."""
    pair.target.store(0)
    for first in range(0, number, 16):
        batch = range(first, min(first + 16, number))
        posts = [
            {**request(pair, "ATOMIC_FETCH_AND_ADD", 8, operands=[1, 0], wr_id=n), "offset": 8 + 8 * n} for n in batch
        ]
        pair.initiator.post(posts)
        for n in batch:
            completion(pair.initiator, "initiator", wr_id=n, opcode=4)
            count(pair, "ATOMIC_FETCH_AND_ADD", 8)
    seen = [pair.initiator.load(8 + 8 * n) for n in range(number)]
    if seen != list(range(number)) or pair.target.load() != number:
        raise Wrong(f"{number} increments left {pair.target.load()}, and returned {seen}")
    pair.check_counters()


def burst(pair: Pair, seed: int, number: int = 24) -> None:
    """A mixture, posted at once, some of it unsignaled; each request has its own slot of the buffers."""
    generator = random.Random(seed)
    slot = 20480
    plan = []
    for n in range(number):
        op = generator.choice(list(OPS))
        length = 8 if op in ATOMICS else generator.choice((0, 1, 63, 1024, 4096, 5001, 16384, 20000))
        plan.append((n, op, length, n * slot, operands(op, generator) if op in ATOMICS else None))
    posts = []
    for n, op, length, offset, values in plan:
        towards_us = op in ATOMICS or op == "RDMA_READ"
        source, sink = (pair.target, pair.initiator) if towards_us else (pair.initiator, pair.target)
        sink.clear(length, offset)
        if values is None:
            source.fill(seed + n, length, offset)
        else:
            source.store(values[0], offset)
        if OPS[op][3] is not None:
            pair.target.recv(length, offset, wr_id=n)
        signaled = n == number - 1 or generator.random() < 0.5
        more = {"operands": values[1]} if values else {"imm": n}
        posts.append(request(pair, op, length, offset, wr_id=n, flags=["SIGNALED"] if signaled else [], **more))
    pair.initiator.post(posts)
    for post in posts:
        if post["flags"]:
            completion(pair.initiator, "initiator", wr_id=post["wr_id"], opcode=OPS[post["op"]][2])
    for n, op, length, offset, values in plan:
        if OPS[op][3] is not None:
            receive(pair, op, length, n, n)
        if values is None:
            compare(pair.initiator if op == "RDMA_READ" else pair.target, seed + n, length, offset)
        elif (pair.initiator.load(offset), pair.target.load(offset)) != (values[0], values[2]):
            returned, left = pair.initiator.load(offset), pair.target.load(offset)
            raise Wrong(f"{op} {n} returned {returned:#x}, not {values[0]:#x}; it left {left:#x}, not {values[2]:#x}")
        count(pair, op, length)
    pair.check_idle()
    pair.check_counters()


def late_receive(pair: Pair, op: str, length: int) -> None:
    """The receives come only after the requests: the requester waits (RNR NAK) and then goes on, in order."""
    posts = []
    for n in range(3):
        pair.initiator.fill(100 + n, length, n * 8192)
        pair.target.clear(length, n * 8192)
        posts.append(request(pair, op, length, n * 8192, wr_id=n, imm=n))
    pair.initiator.post(posts)
    early = pair.initiator.poll(1, 0.3)
    if early:
        raise Wrong(f"a completion before there was a receive: {early[0]}")
    for n in range(3):
        pair.target.recv(length, n * 8192, wr_id=n)
    for n in range(3):
        completion(pair.initiator, "initiator", wr_id=n, opcode=OPS[op][2])
        receive(pair, op, length, n, n)
        compare(pair.target, 100 + n, length, n * 8192)
        count(pair, op, length)
    pair.check_counters()


def refused(
    pair: Pair,
    op: str,
    statuses: "tuple[int, ...]",
    length: int = 100,
    offset: int = 0,
    bad_key: bool = False,
    past_end: bool = False,
) -> None:
    """The target must refuse ``op``: its memory and its counters stay as they are."""
    more = {"operands": [1, 0]} if op in ATOMICS else {}
    post = request(pair, op, 8 if op in ATOMICS else length, offset, **more)
    if bad_key:
        post["rkey"] ^= 0x55
    if past_end:
        post["addr"] += DEFAULTS["size"] + GUARD - length + 1  # the buffer ends with a guard
    try:
        fails(pair, post, statuses)
    except Refused as error:  # rxe looks at the alignment of an atomic when it is posted: nothing goes out
        if error.errno != errno.EINVAL or op not in ATOMICS or not offset:
            raise


def too_long(pair: Pair, rxe: bool) -> None:
    """A SEND of 100 bytes into a receive of 50.

    :param rxe: the target is rxe, which says "operation error" at both ends; the specification says "invalid request"
    """
    pair.target.recv(50)
    at_initiator = (REM_INV_REQ_ERR, REM_OP_ERR) if rxe else (REM_INV_REQ_ERR,)
    at_target = (LOC_LEN_ERR, LOC_QP_OP_ERR) if rxe else (LOC_LEN_ERR,)
    fails(pair, request(pair, "SEND", 100), at_initiator, at_target)


def nobody(pair: Pair) -> None:
    """The target's queue pair is closed."""
    pair.target.close_qp()
    fails(pair, request(pair, "SEND", 100), (RETRY_EXC_ERR,))


def fails(pair: Pair, post: "dict[str, Any]", statuses: "tuple[int, ...]", at_target: "tuple[int, ...]" = ()) -> None:
    """``post`` must end in one of ``statuses``; what follows it is flushed, in order; the QP is then in ERR.

    :param at_target: the status of the receive that is consumed; empty if none is, and the target's memory stays whole
    """
    pair.target.clear(8192)
    follow = [request(pair, "RDMA_WRITE", 16, wr_id=1000 + n) for n in range(2)]
    pair.initiator.post([{**post, "wr_id": 999}, *follow])
    completion(pair.initiator, "initiator", statuses, wr_id=999)
    pair.initiator.failed(*OPS[post["op"]][0])
    for later in follow:
        completion(pair.initiator, "initiator", (WR_FLUSH_ERR,), wr_id=later["wr_id"])
        pair.initiator.failed("RDMA_WRITE")
    if pair.initiator.state() != QPS_ERR:
        raise Wrong(f"the initiator's QP is in state {pair.initiator.state()}, not ERR")
    if at_target:
        completion(pair.target, "target", at_target)
        pair.target.failed("RECV")
    else:
        compare(pair.target, None, 8192)
    pair.check_idle()
    pair.check_counters()
