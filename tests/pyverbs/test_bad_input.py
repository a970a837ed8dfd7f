# SPDX-License-Identifier: MIT
"""Bad input: wrong types, closed objects, closing in any order, buffers that would vanish, fork: nothing crashes."""

import array
import asyncio
import gc
import inspect
import mmap
import os
import random
import select
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.forked import in_child
from tests.pyverbs.services import XRCD_MASK, ah_attr, xrcd
from tests.pyverbs.world import ALL, MS, OPS, World, readable, set_state

from softverbs.pyverbs import libibverbs_enums as e
from softverbs.pyverbs.addr import AH, GID, GRH, AHAttr, GlobalRoute
from softverbs.pyverbs.comp_cntr import CompCntr, CompCntrInitAttr
from softverbs.pyverbs.cq import CQ, CQEX, CompChannel, CqInitAttrEx
from softverbs.pyverbs.device import Context
from softverbs.pyverbs.mr import MR, MW, MWBind, MWBindInfo
from softverbs.pyverbs.pd import PD
from softverbs.pyverbs.pyverbs_error import PyverbsError, PyverbsRDMAError
from softverbs.pyverbs.qp import (
    ECE,
    QP,
    QPAttachCompCntrAttr,
    QPAttr,
    QPCap,
    QPInitAttr,
    QPInitAttrEx,
    QPOpenAttr,
    QPRateLimitAttr,
)
from softverbs.pyverbs.srq import SRQ, OpsWr, SrqAttr, SrqInitAttr, SrqInitAttrEx
from softverbs.pyverbs.wr import SGE, RecvWR, SendWR
from softverbs.pyverbs.xrcd import XRCD, XRCDInitAttr

JUNK: list[Any] = [None, -1, 2**31, 2**32, 2**64, 2**100, 1.5, float("nan"), "x", b"x", [], {}, object(), len]
#: As JUNK, where a large number would be a request for much memory.
SMALL_JUNK = [junk for junk in JUNK if junk not in (2**31, 2**32)]


@pytest.fixture(autouse=True)
def _quick_collections() -> Iterator[None]:
    """Garbage is collected often here: what the test run has made so far need not be looked at each time."""
    gc.freeze()
    yield
    gc.unfreeze()


def tolerated(act: Callable[[], Any]) -> bool:
    """Whether ``act`` did anything; a refusal must be one of ours, and in words. Anything else fails the test."""
    try:
        result = act()
    except PyverbsError as error:
        assert str(error).strip() and error.reason.strip()  # noqa: PT017
        return False
    if inspect.iscoroutine(result):
        result.close()
    return True


#: Class -> valid arguments, made from the world's side.
CONSTRUCTORS: dict[type, Callable[[Any], dict[str, Any]]] = {
    CompCntrInitAttr: lambda a: {"comp_mask": 0, "cntr_type": 0, "flags": 0},
    CompCntr: lambda a: {"ctx": a.context, "attr": CompCntrInitAttr()},
    CompChannel: lambda a: {"context": a.context},
    CQ: lambda a: {"context": a.context, "cqe": 4, "cq_context": None, "channel": None, "comp_vector": 0},
    CqInitAttrEx: lambda a: {
        "cqe": 4, "channel": None, "comp_vector": 0, "wc_flags": 0, "comp_mask": 0, "flags": 0, "parent_domain": None,
    },
    CQEX: lambda a: {"context": a.context, "init_attr": CqInitAttrEx(4)},
    PD: lambda a: {"creator": a.context},
    MR: lambda a: {"creator": a.pd, "length": bytearray(64), "access": 1, "address": None},
    QPCap: lambda a: {
        "max_send_wr": 1, "max_recv_wr": 1, "max_send_sge": 1, "max_recv_sge": 1, "max_inline_data": 0,
    },
    QPInitAttr: lambda a: {
        "qp_type": e.IBV_QPT_RC, "qp_context": None, "scq": a.cq, "rcq": a.cq, "srq": None, "cap": QPCap(1, 1, 1, 1, 0),
        "sq_sig_all": 0,
    },
    QPInitAttrEx: lambda a: {"qp_type": e.IBV_QPT_RC, "scq": a.cq, "rcq": a.cq, "pd": a.pd, "comp_mask": 1},
    QP: lambda a: {"creator": a.pd, "init_attr": QPInitAttr(e.IBV_QPT_RC, scq=a.cq, rcq=a.cq), "qp_attr": None},
    QPAttr: lambda a: {"qp_state": 0, "cur_qp_state": 0, "port_num": 1, "path_mtu": 3},
    QPAttachCompCntrAttr: lambda a: {"op_mask": 1, "comp_mask": 0},
    SGE: lambda a: {"addr": a.mr.buf, "length": 8, "lkey": a.mr.lkey},
    RecvWR: lambda a: {"wr_id": 1, "num_sge": 1, "sg": [a.sge(8)], "next_wr": None},
    SendWR: lambda a: {
        "wr_id": 1, "opcode": 2, "num_sge": 1, "imm_data": 0, "sg": [a.sge(8)], "send_flags": 2, "next_wr": None,
    },
    GID: lambda a: {"val": "0000:0000:0000:0000:0000:ffff:0a00:0001"},
    GRH: lambda a: {"paylen": 0, "next_hdr": 0, "hop_limit": 1},
    GlobalRoute: lambda a: {"dgid": GID(), "flow_label": 0, "sgid_index": 0, "hop_limit": 1, "traffic_class": 0},
    AHAttr: lambda a: {"dlid": 0, "sl": 0, "is_global": 1, "port_num": 1, "gr": GlobalRoute()},
    AH: lambda a: {"pd": a.pd, "attr": ah_attr(a.peer)},
    SrqAttr: lambda a: {"max_wr": 4, "max_sge": 1, "srq_limit": 0},
    SrqInitAttr: lambda a: {"attr": SrqAttr()},
    SrqInitAttrEx: lambda a: {"max_wr": 4, "max_sge": 1, "srq_limit": 0},
    SRQ: lambda a: {"creator": a.pd, "attr": SrqInitAttr(SrqAttr(4))},
    OpsWr: lambda a: {"wr_id": 1, "opcode": 0, "flags": 1, "num_sge": 1, "sg_list": [a.sge(8)], "next_wr": OpsWr()},
    XRCDInitAttr: lambda a: {"comp_mask": XRCD_MASK, "oflags": 0, "fd": -1},
    XRCD: lambda a: {"context": a.context, "init_attr": XRCDInitAttr(XRCD_MASK, 0, -1)},
    ECE: lambda a: {"vendor_id": 0, "options": 0, "comp_mask": 0},
    QPRateLimitAttr: lambda a: {"rate_limit": 1, "max_burst_sz": 0, "typical_pkt_sz": 0, "comp_mask": 0},
    QPOpenAttr: lambda a: {"comp_mask": 11, "qp_num": 5, "xrcd": xrcd(a), "qp_context": None, "qp_type": 10},
}  # fmt: skip


@pytest.mark.parametrize("kind", CONSTRUCTORS, ids=lambda kind: kind.__name__)
def test_constructors_take_what_they_can_use_and_refuse_the_rest(build: Any, kind: type) -> None:
    side = build().a
    valid = CONSTRUCTORS[kind](side)
    assert tolerated(lambda: kind(**valid)), "valid arguments are valid"
    for name in valid:
        for junk in SMALL_JUNK if kind is MR else JUNK:
            tolerated(lambda n=name, j=junk: kind(**{**CONSTRUCTORS[kind](side), n: j}))


@pytest.mark.parametrize("kind", CONSTRUCTORS, ids=lambda kind: kind.__name__)
def test_numbers_are_refused_in_words_where_they_are_none(build: Any, kind: type) -> None:
    """Every argument whose valid value is a number refuses a text and a fraction, and names itself."""
    side = build().a
    for name, value in CONSTRUCTORS[kind](side).items():
        for junk in ("text", 1.5, float("nan")):
            if type(value) is int:
                with pytest.raises(PyverbsError, match=name.removeprefix("cntr_")):
                    kind(**{**CONSTRUCTORS[kind](side), name: junk})


ATTRIBUTES = [
    *(CompCntrInitAttr, CqInitAttrEx, QPCap, QPInitAttr, QPInitAttrEx, QPAttr, QPAttachCompCntrAttr),
    *(SGE, RecvWR, SendWR, GID, GRH, GlobalRoute, AHAttr),
    *(SrqAttr, SrqInitAttr, SrqInitAttrEx, OpsWr, XRCDInitAttr, ECE, QPRateLimitAttr, QPOpenAttr),
]


@pytest.mark.parametrize("kind", ATTRIBUTES, ids=lambda kind: kind.__name__)
def test_attributes_keep_what_fits_and_refuse_the_rest(build: Any, kind: type) -> None:
    side = build().a
    target = kind(**CONSTRUCTORS[kind](side))
    for name in writable(target):
        for junk in JUNK:
            before = str(getattr(target, name))
            if not tolerated(lambda n=name, j=junk: setattr(target, n, j)):
                assert str(getattr(target, name)) == before, f"{name} changed though {junk!r} was refused"
        str(target)


def writable(target: Any) -> list[str]:
    """The public attributes that can be set; setting another is an AttributeError, as in any class."""
    names = []
    for name in dir(target):
        if name.startswith("_") or callable(getattr(target, name)):
            continue
        try:
            setattr(target, name, getattr(target, name))
        except (AttributeError, PyverbsError):
            continue
        names.append(name)
    return names


class Things:
    """One of everything, and calls of every method with valid arguments."""

    def __init__(self, world: World) -> None:
        a = world.a
        self.context = Context(device=a.device)
        os.set_blocking(self.context.async_fd, False)
        self.pd = PD(self.context)
        self.channel = CompChannel(self.context)
        os.set_blocking(self.channel.fd, False)
        self.cq = CQ(self.context, 8, None, self.channel)
        self.cqex = CQEX(self.context, CqInitAttrEx(8))
        self.memory = bytearray(4096)
        self.mr = MR(self.pd, self.memory, ALL)
        self.counter = CompCntr(self.context, CompCntrInitAttr())
        self.qp = QP(self.pd, QPInitAttr(e.IBV_QPT_RC, scq=self.cq, rcq=self.cq))
        self.ah = AH(self.pd, attr=ah_attr(world.b))
        self.srq = SRQ(self.pd, SrqInitAttr(SrqAttr(8)))
        self.xrcd = XRCD(self.context, XRCDInitAttr(XRCD_MASK, 0, -1))
        self.datagrams = QP(self.pd, QPInitAttr(e.IBV_QPT_UD, scq=self.cq, rcq=self.cq), QPAttr())
        group = GID("0000:0000:0000:0000:0000:ffff:ef01:0203")
        window, info = MW(self.pd, e.IBV_MW_TYPE_1), MWBindInfo(self.mr, self.mr.buf, 8, 2)
        attr = QPAttr()
        self.calls: list[tuple[Any, str, tuple[Any, ...]]] = [
            (self.context, "query_port", (1,)),
            (self.context, "query_gid", (1, 0)),
            (self.context, "query_gid_ex", (1, 0, 0)),
            (self.context, "query_gid_table", (4, 0)),
            (self.context, "query_gid_type", (1, 0)),
            (self.context, "query_pkey", (1, 0)),
            (self.context, "get_pkey_index", (1, 0xFFFF)),
            (self.context, "query_rt_values_ex", (1,)),
            (self.context, "query_device_ex", (None,)),
            (self.channel, "get_cq_event", (self.cq,)),
            (self.cq, "poll", (1,)),
            (self.cq, "req_notify", (False,)),
            (self.cq, "ack_events", (0,)),
            (self.cq, "resize", (8,)),
            (self.cqex, "start_poll", (None,)),
            (self.mr, "read", (8, 0)),
            (self.mr, "write", (b"12345678", 8, 0)),
            (self.mr, "rereg", (0, None, 0, 0, 0)),
            (self.counter, "set", (1,)),
            (self.counter, "set_err", (1,)),
            (self.counter, "inc", (1,)),
            (self.counter, "inc_err", (1,)),
            (self.counter, "wait", (0, 0)),
            (self.counter, "threshold_fd", (0,)),
            (self.counter, "wait_any", ([(self.counter, 0)], 0)),
            (self.qp, "attach_comp_cntr", (self.counter, QPAttachCompCntrAttr(1))),
            (self.qp, "to_init", (attr,)),
            (self.qp, "modify", (attr, 1)),
            (self.qp, "query", (1,)),
            (self.qp, "post_recv", (RecvWR(1), None)),
            (self.qp, "post_send", (SendWR(1), None)),
            (self.qp, "modify_rate_limit", (QPRateLimitAttr(),)),
            (self.qp, "set_ece", (ECE(5),)),
            (self.qp, "query_ece", ()),
            (self.qp, "query_data_in_order", (2, 0)),
            (self.qp, "statistics", ()),
            (self.qp, "bind_mw", (window, MWBind(info, 2))),
            (self.datagrams, "attach_mcast", (group, 0)),
            (self.datagrams, "detach_mcast", (group, 0)),
            (self.srq, "post_recv", (RecvWR(1), None)),
            (self.srq, "post_srq_ops", (OpsWr(), None)),
            (self.srq, "modify", (SrqAttr(8), 1)),
            (self.srq, "query", ()),
            (self.srq, "get_srq_num", ()),
        ]

    def objects(self) -> list[Any]:
        return [
            *(self.datagrams, self.qp, self.ah, self.srq, self.xrcd, self.counter, self.mr, self.cqex, self.cq),
            *(self.channel, self.pd, self.context),
        ]


def test_methods_take_what_they_can_use_and_refuse_the_rest(build: Any) -> None:
    things = Things(build())
    for target, name, valid in things.calls:
        for position in range(len(valid)):
            for junk in JUNK:
                arguments = [*valid[:position], junk, *valid[position + 1 :]]
                tolerated(lambda t=target, n=name, args=arguments: getattr(t, n)(*args))
    tolerated(things.context.close)


@pytest.mark.parametrize("count", [1.5, float("nan"), "1", None, []])
def test_polling_takes_a_number(world: World, count: Any) -> None:
    first, _ = world.pair()
    first.post_send(world.a.wr(e.IBV_WR_RDMA_WRITE))
    world.run()
    with pytest.raises(PyverbsError):
        world.a.cq.poll(count)
    assert world.a.done() == [(1, e.IBV_WC_SUCCESS)], "nothing was taken"


def test_closed_objects_refuse_everything_in_words(build: Any) -> None:
    things = Things(build())
    for thing in things.objects():
        thing.close()
        thing.close()
    refusals = [
        tolerated(lambda t=target, n=name, args=valid: getattr(t, n)(*args)) for target, name, valid in things.calls
    ]
    assert not any(refusals), "wait_any is refused for its closed counter, the others for themselves"


def test_whatever_is_asked_of_a_closed_object_is_no_crash(build: Any) -> None:
    """All public names of all objects: properties read, methods without arguments called."""
    things = Things(build())
    for thing in things.objects():
        thing.close()
    for thing in things.objects():
        str_is_fine = tolerated(lambda t=thing: str(t))
        assert str_is_fine in (True, False)
        for name in dir(thing):
            if name.startswith("_"):
                continue
            found: list[Any] = []
            if not tolerated(lambda t=thing, n=name, f=found: f.append(getattr(t, n))):
                continue
            if callable(found[0]) and not required(found[0]):
                tolerated(found[0])


def required(method: Any) -> bool:
    try:
        parameters = inspect.signature(method).parameters.values()
    except ValueError:
        return True
    return any(p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) for p in parameters)


# -- closing


def busy_scene(world: World) -> list[Any]:
    """Everything in use: traffic under way, receives posted, counters, watches, events unread and unacknowledged."""
    things: list[Any] = []
    for side in (world.a, world.b):
        context = Context(device=side.device)
        os.set_blocking(context.async_fd, False)
        pd, channel = PD(context), CompChannel(context)
        cq, tiny = CQ(context, 30, None, channel), CQ(context, 1, None, channel)
        memory = bytearray(4096)
        mr = MR(pd, memory, ALL)
        counter = CompCntr(context, CompCntrInitAttr())
        qps = [QP(pd, QPInitAttr(e.IBV_QPT_RC, scq=queue, rcq=queue, cap=QPCap(8, 8, 1, 1, 0))) for queue in (cq, tiny)]
        for qp in qps:
            qp.attach_comp_cntr(counter, QPAttachCompCntrAttr(sum(OPS)))
        cq.req_notify()
        things.append((context, pd, channel, cq, tiny, mr, counter, *qps, counter.threshold_fd(10**6)))
    here, there = things
    for index in (7, 8):
        for one, other, gid in ((here, there, world.b), (there, here, world.a)):
            attr = world.attr(one[index], other[index].qp_num)
            attr.ah_attr = AHAttr(is_global=1, gr=GlobalRoute(gid.context.query_gid(1, 0), hop_limit=1))
            one[index].to_rts(attr)
            one[index].post_recv(RecvWR(1, 1, [SGE(one[5].buf, 64, one[5].lkey)]))
        for wr_id in range(4):
            wr = SendWR(wr_id, e.IBV_WR_RDMA_WRITE, 1, sg=[SGE(here[5].buf, 2000, here[5].lkey)])
            wr.set_wr_rdma(there[5].rkey, there[5].buf)
            here[index].post_send(wr)
    world.a.device.progress()
    if readable(here[2].fd):
        here[2].get_cq_event()
    return [thing for side in things for thing in side]


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("way", ["close", "garbage", "both"])
def test_a_busy_scene_is_closed_in_any_order(world: World, seed: int, way: str) -> None:
    chance = random.Random(seed)
    things = busy_scene(world)
    chance.shuffle(things)
    while things:
        thing = things.pop()
        if way == "close" or (way == "both" and chance.random() < 0.5):
            try:
                thing.close()
                thing.close()
            except PyverbsRDMAError as error:
                assert isinstance(thing, CompCntr)
                assert error.errno == 16, "a counter is busy while a QP counts with it"  # noqa: PT017
        del thing
        if chance.random() < 0.4:
            gc.collect()
        if chance.random() < 0.4:
            world.run()
    gc.collect()
    world.settle()
    first, _ = world.pair()
    first.post_send(world.a.wr(e.IBV_WR_RDMA_WRITE))
    world.run()
    assert world.a.done() == [(1, e.IBV_WC_SUCCESS)], "the devices work as before"


def test_a_device_closed_under_a_busy_scene_ends_everything(world: World) -> None:
    things = busy_scene(world)
    for device in world.devices:
        device.close()
        device.close()
    for thing in things:
        tolerated(thing.close)
        tolerated(lambda t=thing: str(t))
    del things
    gc.collect()


def test_closing_from_within_an_await(world: World) -> None:
    counter = world.a.counter()

    async def main() -> None:
        task = asyncio.ensure_future(counter.reached(1))
        await asyncio.sleep(0)
        task.cancel()
        counter.close()
        with pytest.raises((asyncio.CancelledError, PyverbsError)):
            await task

    asyncio.run(main())


# -- buffers


@pytest.mark.parametrize(
    ("make", "vanish"),
    [
        (lambda: bytearray(64), lambda buffer: buffer.extend(bytes(10_000))),
        (lambda: bytearray(64), lambda buffer: buffer.clear()),
        (lambda: mmap.mmap(-1, 4096), lambda buffer: buffer.close()),
        (lambda: mmap.mmap(-1, 4096), lambda buffer: buffer.resize(8192)),
        (lambda: array.array("q", range(8)), lambda buffer: buffer.append(1)),
    ],
    ids=["bytearray grows", "bytearray clears", "mmap closes", "mmap grows", "array grows"],
)
def test_a_buffer_cannot_vanish_under_a_region(
    world: World, make: Callable[[], Any], vanish: Callable[[Any], Any]
) -> None:
    buffer = make()
    mr = MR(world.b.pd, buffer, ALL)
    with pytest.raises(BufferError):
        vanish(buffer)
    first, _ = world.pair()
    world.a.memory[:8] = b"still ok"
    wr = world.a.wr(e.IBV_WR_RDMA_WRITE)
    wr.set_wr_rdma(mr.rkey, mr.buf)
    first.post_send(wr)
    world.run()
    assert bytes(memoryview(buffer).cast("B")[:8]) == b"still ok"
    mr.close()
    vanish(buffer)


def test_a_region_keeps_a_buffer_that_nobody_else_holds(world: World) -> None:
    mr = MR(world.b.pd, bytearray(b"\x11" * 64), ALL)
    gc.collect()
    first, _ = world.pair()
    wr = world.a.wr(e.IBV_WR_RDMA_READ)
    wr.set_wr_rdma(mr.rkey, mr.buf)
    first.post_send(wr)
    world.run()
    assert world.a.memory[:8] == b"\x11" * 8


def test_a_region_closed_while_a_read_is_under_way_is_not_written_any_more(build: Any) -> None:
    """The answers of the peer find no region: the read fails, the freed buffer stays as it is."""
    world = build()
    buffer = bytearray(b"\x55" * 8192)
    mr = MR(world.a.pd, buffer, ALL)
    first, _ = world.pair()
    world.b.memory[:8192] = b"\xaa" * 8192
    first.post_send(world.a.wr(e.IBV_WR_RDMA_READ, 1, sg=[SGE(mr.buf, 8192, mr.lkey)]))
    world.a.device.progress()
    mr.close()
    buffer.append(1)
    copy = bytes(buffer)
    world.settle()
    assert bytes(buffer) == copy
    ((wr_id, status),) = world.a.done()
    assert (wr_id, status) == (1, e.IBV_WC_LOC_PROT_ERR)


def test_a_region_closed_while_a_write_is_under_way_is_not_read_any_more(build: Any) -> None:
    world = build(wire=True)
    mr = MR(world.a.pd, bytearray(b"\x55" * 8192), ALL)
    first, _ = world.pair()
    world.wire.rule = lambda _: []
    first.post_send(world.a.wr(e.IBV_WR_RDMA_WRITE, 1, sg=[SGE(mr.buf, 8192, mr.lkey)]))
    world.run()
    mr.close()
    gc.collect()
    world.wire.rule = None
    world.settle()
    assert world.a.done() == [(1, e.IBV_WC_LOC_PROT_ERR)], "there is nothing to send again from"


# -- fork


@pytest.mark.parametrize("over", ["loopback", "network", "udp"])
def test_after_fork_the_child_is_told_and_the_parent_goes_on(build: Any, over: str) -> None:
    world = build(over)
    first, second = world.a.qp(), world.b.qp()
    counter, arrived = world.a.count(first, sum(OPS)), world.b.count(second, sum(OPS))
    world.connect(first, second)
    first.post_send(world.a.wr(e.IBV_WR_RDMA_WRITE, 1))

    def check() -> None:
        for act in (
            lambda: first.post_send(world.a.wr(e.IBV_WR_RDMA_WRITE, 2)),
            lambda: world.a.post_recv(second, 3),
            world.a.cq.poll,
            counter.read,
            arrived.read_pair,
            lambda: counter.wait(5, 0.01),
            lambda: CQ(world.a.context, 4),
            lambda: set_state(first, e.IBV_QPS_ERR),
            world.a.context.query_device,
            lambda: MR(world.a.pd, 64),
        ):
            with pytest.raises(PyverbsError, match="fork"):
                act()
        world.a.context.close()
        gc.collect()

    in_child(check)
    first.post_send(world.a.wr(e.IBV_WR_RDMA_WRITE, 4))
    found: list[Any] = []
    world.until(lambda: found.extend(world.a.done()) or len(found) == 2)
    assert found == [(1, e.IBV_WC_SUCCESS), (4, e.IBV_WC_SUCCESS)]
    assert counter.read_pair() == arrived.read_pair() == (2, 0)


def test_a_child_that_closes_nothing_leaves_the_descriptors_of_the_parent_alone(build: Any) -> None:
    world = build()
    channel = CompChannel(world.a.context)
    cq = CQ(world.a.context, 4, None, channel)
    first, _ = world.connect(world.a.qp(cq), world.b.qp())
    in_child(gc.collect)
    cq.req_notify()
    first.post_send(world.a.wr(e.IBV_WR_RDMA_WRITE))
    world.pass_time(MS)
    poller = select.poll()
    poller.register(channel.fd, select.POLLIN)
    assert poller.poll(0)
    channel.get_cq_event(cq)
    cq.ack_events(1)
