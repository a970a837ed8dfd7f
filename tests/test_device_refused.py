# SPDX-License-Identifier: MIT
"""A link that takes no frames for a while: the device tries again, but does not spin."""

import time
from collections.abc import Iterator
from typing import Any

import pytest

from softverbs import device as device_module
from softverbs.device import NAP, NAP_S, Device
from softverbs.links import Network
from softverbs.links.base import Middleware, gid_of
from softverbs.pyverbs.addr import GID, AHAttr, GlobalRoute
from softverbs.pyverbs.cq import CQ
from softverbs.pyverbs.device import Context
from softverbs.pyverbs.pd import PD
from softverbs.pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr
from softverbs.pyverbs.wr import SendWR


class Refusing(Middleware):
    """Takes nothing while `full` is set."""

    def __init__(self, inner: Any) -> None:
        super().__init__(inner)
        self.full = True
        self.asked = 0
        self.taken = 0

    def send(self, now: int, route: Any, address: int, length: int, segment: int) -> bool:
        self.asked += 1
        if self.full:
            return False
        self.taken += 1
        return super().send(now, route, address, length, segment)


@pytest.fixture
def link() -> Refusing:
    return Refusing(Network().link("10.0.0.1"))


@pytest.fixture
def device(link: Refusing) -> Iterator[Device]:
    """A device that has a frame to send to an address where nobody is."""
    with Device(link=link, thread=False) as made, Context(device=made) as context, PD(context) as pd:
        gid = GID()
        gid.raw = gid_of("10.0.0.2")
        attributes = QPAttr(port_num=1)
        attributes.ah_attr = AHAttr(gr=GlobalRoute(gid, sgid_index=0, hop_limit=64), is_global=1, port_num=1)
        attributes.timeout = 0  # the frame is sent once
        with CQ(context, 4) as cq:
            init = QPInitAttr(qp_type=2, scq=cq, rcq=cq, cap=QPCap(max_send_wr=1, max_recv_wr=1))
            with QP(pd, init) as qp:
                qp.to_rts(attributes)
                qp.post_send(SendWR(opcode=2, num_sge=0))
                yield made


def test_the_thread_naps(device: Device, link: Refusing) -> None:
    for turn in range(1, 4):
        assert device._turn() == NAP
        assert link.asked == turn  # once in a turn
    link.full = False
    assert device._turn() != NAP
    assert link.taken == 1
    assert device._turn() != NAP


def test_a_wait_naps(device: Device, link: Refusing, monkeypatch: pytest.MonkeyPatch) -> None:
    naps: list[float] = []

    def sleep(seconds: float) -> None:
        naps.append(seconds)
        link.full = len(naps) < 3

    monkeypatch.setattr(device_module, "SPIN_NS", -1)
    monkeypatch.setattr(device_module, "time", Clock(sleep))
    assert device.wait_until(lambda: link.taken > 0, 10_000_000_000)
    assert naps == [NAP_S] * 3


class Clock:
    """The module `time`, with a sleep of our own."""

    def __init__(self, sleep: Any) -> None:
        self.sleep = sleep

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)
