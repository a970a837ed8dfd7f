# SPDX-License-Identifier: MIT
"""What a CMID owns and borrows: whose protection domain, what is left of what failed, and who holds the lock."""

import errno

import pytest
from tests.pyverbs.test_cmid import PORT, Side, Two, init_attr, sides, two

from softverbs.pyverbs import libibverbs_enums as e
from softverbs.pyverbs import librdmacm_enums as ce
from softverbs.pyverbs.cmid import CMID, AddrInfo, CMEventChannel
from softverbs.pyverbs.device import Context
from softverbs.pyverbs.pd import PD
from softverbs.pyverbs.pyverbs_error import PyverbsRDMAError

__all__ = ["sides", "two"]


def test_a_request_gets_the_protection_domain_of_the_listener(two: Two) -> None:
    """rdma_create_ep(3), rdma_get_request(3): QPs of requests are made in the PD that was given."""
    context = Context(device=two.devices[1])
    pd = PD(context)
    info = AddrInfo(src="10.0.0.2", src_service=PORT, flags=ce.RAI_PASSIVE)
    listener = CMID(creator=info, qp_init_attr=init_attr(), pd=pd, device=two.devices[1])
    listener.listen()
    client = Side(two.devices[0])
    client.connect()
    child = listener.get_request()
    assert child.pd is pd and listener.pd is pd and child.context is context
    assert child.qp is not None and child.qp._parts is not None and child.qp._parts.pd is pd
    child.close()
    listener.close()
    pd.close()
    context.close()


def test_a_qp_that_cannot_be_moved_to_init_is_not_left_behind(sides: tuple[Side, Side]) -> None:
    client, _ = sides
    client.resolve()
    before = client.device.objects()
    client.device.faults.add("modify_qp:nth=1")
    with pytest.raises(PyverbsRDMAError, match="made to fail"):
        client.cmid.create_qp(init_attr())
    assert client.cmid.qp is None and client.device.objects() == before
    client.device.faults.clear()
    client.cmid.create_qp(init_attr())
    assert client.cmid.query_qp(e.IBV_QP_STATE)[0].qp_state == e.IBV_QPS_INIT


def test_regions_stay_when_a_qp_cannot_be_made(sides: tuple[Side, Side]) -> None:
    client, _ = sides
    client.resolve()
    mr = client.cmid.reg_msgs(64)
    client.device.faults.add("modify_qp:nth=1")
    with pytest.raises(PyverbsRDMAError):
        client.cmid.create_qp(init_attr())
    assert mr.lkey
    client.cmid.close()
    with pytest.raises(PyverbsRDMAError, match="closed"):
        mr.lkey  # noqa: B018


def test_a_device_that_breaks_in_the_middle_of_a_call_gives_its_lock_back(
    sides: tuple[Side, Side], monkeypatch: pytest.MonkeyPatch
) -> None:
    client, _ = sides

    class Broken:
        """A port that cannot work."""

        failure = None

        def progress(self, now: int) -> int:
            raise OSError(errno.EBADF, "the link is closed")

    port = client.device.port
    monkeypatch.setattr(client.device, "port", Broken())
    with pytest.raises(OSError, match="link is closed"):
        client.cmid.set_option(ce.RDMA_OPTION_ID, ce.RDMA_OPTION_ID_ACK_TIMEOUT, 14, 1)
    monkeypatch.setattr(client.device, "port", port)
    assert client.device.try_enter()
    client.device.lock.release()


def test_a_cmid_that_moves_to_a_channel_leaves_no_descriptor(two: Two) -> None:
    info = AddrInfo(dst="10.0.0.2", dst_service=PORT)
    cmid = CMID(creator=info, device=two.devices[0])
    own = cmid._own_channel
    assert own is not None
    channel = CMEventChannel(two.devices[0])
    cmid.migrate_id(channel)
    with pytest.raises(PyverbsRDMAError, match="closed"):
        own.fd  # noqa: B018
    assert cmid.event_channel is channel
    cmid.close()
    channel.close()
