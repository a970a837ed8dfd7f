# SPDX-License-Identifier: MIT
"""A device in this process, without a thread, and what tests of the Python face need on it."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.pyverbs.world import World

from softverbs.device import Device
from softverbs.links.inproc import Network
from softverbs.pyverbs import libibverbs_enums as e
from softverbs.pyverbs.addr import AHAttr, GlobalRoute
from softverbs.pyverbs.comp_cntr import CompCntr, CompCntrInitAttr
from softverbs.pyverbs.cq import CQ, CompChannel
from softverbs.pyverbs.device import Context
from softverbs.pyverbs.mr import MR
from softverbs.pyverbs.pd import PD
from softverbs.pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr
from softverbs.pyverbs.wr import SGE, RecvWR, SendWR

ALL_ACCESS = (
    e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_REMOTE_WRITE | e.IBV_ACCESS_REMOTE_READ | e.IBV_ACCESS_REMOTE_ATOMIC
)


class Rig:
    """One device with a context, a protection domain, a channel, a CQ on it, a region and, once connected, two QPs."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self.context = Context(device=device)
        self.pd = PD(self.context)
        self.channel = CompChannel(self.context)
        self.cq = CQ(self.context, 64, "context of the cq", self.channel)
        self.memory = bytearray(4096)
        self.mr = MR(self.pd, self.memory, ALL_ACCESS)
        self.gid = self.context.query_gid(1, 0)
        self.kept: list[QP] = []

    def counter(self, kind: int = e.IBV_COMP_CNTR_TYPE_WRS) -> CompCntr:
        return CompCntr(self.context, CompCntrInitAttr(cntr_type=kind))

    def init_attr(self, cq: Any = None, **cap: int) -> QPInitAttr:
        sizes = {"max_send_wr": 16, "max_recv_wr": 16, "max_send_sge": 2, "max_recv_sge": 2, "max_inline_data": 64}
        queue = self.cq if cq is None else cq
        return QPInitAttr(e.IBV_QPT_RC, None, queue, queue, None, QPCap(**{**sizes, **cap}), 0)

    def qp(self, cq: Any = None, **cap: int) -> QP:
        return QP(self.pd, self.init_attr(cq, **cap))

    def attr(self, peer: int) -> QPAttr:
        """Everything on the way to RTS, towards QP number ``peer`` of this device."""
        attr = QPAttr()
        attr.qp_access_flags = ALL_ACCESS
        attr.dest_qp_num = peer
        attr.rq_psn = attr.sq_psn = 100
        attr.max_rd_atomic = attr.max_dest_rd_atomic = 4
        attr.min_rnr_timer, attr.timeout, attr.retry_cnt, attr.rnr_retry = 12, 14, 7, 7
        attr.ah_attr = AHAttr(is_global=1, gr=GlobalRoute(self.gid, hop_limit=64))
        return attr

    def connect(self, first: QP, second: QP) -> None:
        first.to_rts(self.attr(second.qp_num))
        second.to_rts(self.attr(first.qp_num))

    def pair(self, cq: Any = None) -> tuple[QP, QP]:
        first, second = self.qp(cq), self.qp(cq)
        self.connect(first, second)
        self.kept += [first, second]
        return first, second

    def write(self, flags: int = 2, wr_id: int = 1, length: int = 8, rkey: int | None = None) -> SendWR:
        """An RDMA WRITE of the start of the region to its middle."""
        wr = SendWR(wr_id, e.IBV_WR_RDMA_WRITE, 1, sg=[SGE(self.mr.buf, length, self.mr.lkey)], send_flags=flags)
        wr.set_wr_rdma(self.mr.rkey if rkey is None else rkey, self.mr.buf + 2048)
        return wr

    def recv(self, wr_id: int = 2, length: int = 64) -> RecvWR:
        return RecvWR(wr_id, 1, [SGE(self.mr.buf + 1024, length, self.mr.lkey)])

    def run(self) -> None:
        """Progress until there is nothing to do."""
        while self.device.progress():
            pass


@pytest.fixture
def device() -> Iterator[Device]:
    made = Device(link=Network().link("10.0.0.1"), thread=False)
    yield made
    made.close()


@pytest.fixture
def rig(device: Device) -> Iterator[Rig]:
    made = Rig(device)
    yield made
    made.context.close()


# -- two sides in virtual time, for the tests of the contract (world.py)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "row(name): the row of the contract that a test is of, see test_rows.py")


@pytest.fixture(params=["loopback", "network"])
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    """Two sides on one device, and on two."""
    with World(request.param) as made:
        yield made


@pytest.fixture
def build() -> Iterator[Callable[..., World]]:
    """Makes worlds of any kind, and closes them after the test."""
    made: list[World] = []

    def make(over: str = "network", **settings: Any) -> World:
        made.append(World(over, **settings))
        return made[-1]

    yield make
    for each in made:
        each.close()
