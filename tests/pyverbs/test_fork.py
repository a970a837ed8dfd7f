# SPDX-License-Identifier: MIT
"""fork: the child gets a clear error from everything, and can open a device of its own; the parent goes on."""

import errno
from collections.abc import Callable
from typing import Any

import pytest
from tests.forked import in_child

from softverbs.device import Device
from softverbs.links.inproc import Network
from softverbs.pyverbs.comp_cntr import CompCntr
from softverbs.pyverbs.cq import CQ
from softverbs.pyverbs.device import Context
from softverbs.pyverbs.mr import MR
from softverbs.pyverbs.pd import PD
from softverbs.pyverbs.pyverbs_error import PyverbsRDMAError


def refuses(act: Callable[[], Any]) -> None:
    with pytest.raises(PyverbsRDMAError, match="fork") as caught:
        act()
    assert caught.value.errno == errno.EIO


def test_the_child_gets_a_clear_error(rig: Any) -> None:
    first, second = rig.pair()
    counter = rig.counter()
    fd = counter.threshold_fd(5)
    first.post_send(rig.write())
    rig.run()

    def check() -> None:
        for act in (
            rig.cq.poll,
            counter.read,
            counter.read_err,
            counter.read_pair,
            lambda: first.post_send(rig.write()),
            lambda: second.post_recv(rig.recv()),
            lambda: counter.wait(1, 0),
            lambda: CompCntr.wait_any([(counter, 1)], 0),
            lambda: counter.inc(1),
            rig.context.query_device,
            rig.context.get_async_event,
            rig.channel.get_cq_event,
            lambda: PD(rig.context),
            lambda: CQ(rig.context, 5),
            lambda: Context(device=rig.device),
            lambda: rig.cq.resize(10),
        ):
            refuses(act)
        fd.close()
        rig.context.close()
        assert first._core is None
        rig.memory.append(1)

    in_child(check)
    assert rig.cq.poll(9)[0] == 1
    first.post_send(rig.write())
    rig.run()
    assert rig.cq.poll(9)[0] == 1
    counter.inc(5)
    assert fd.reached
    fd.close()


def test_the_child_can_open_its_own(rig: Any) -> None:
    def check() -> None:
        device = Device(link=Network().link("10.0.0.2"), thread=False)
        with Context(device=device) as context, PD(context) as pd, MR(pd, 8) as mr:
            assert mr.length == 8
        device.close()

    in_child(check)


def test_garbage_in_the_child_does_no_harm(rig: Any) -> None:
    rig.pair()

    def check() -> None:
        rig.__dict__.clear()
        import gc

        gc.collect()

    in_child(check)
    assert rig.cq.poll()[0] == 0
