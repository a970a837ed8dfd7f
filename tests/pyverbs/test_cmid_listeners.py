# SPDX-License-Identifier: MIT
"""CMIDs of requests: what becomes of them when the listener is closed or moves to another channel."""

from tests.pyverbs.test_cmid import PORT, Side, Two, init_attr, sides, two

from softverbs.pyverbs import librdmacm_enums as ce
from softverbs.pyverbs.cmid import CMID, AddrInfo, CMEvent, CMEventChannel

__all__ = ["sides", "two"]


def test_a_request_that_was_delivered_outlives_the_listener(two: Two, sides: tuple[Side, Side]) -> None:
    """Its CMID may be made and accepted after the listener was closed; events come by the channel of the request."""
    client, server = sides
    client.ask(server)
    event = server.event(ce.RDMA_CM_EVENT_CONNECT_REQUEST)
    server.cmid.close()
    child = CMID(creator=event, listen_id=server.cmid)
    event.close()
    assert child.event_channel is server.channel
    child.create_qp(init_attr())
    child.accept()
    client.expect(ce.RDMA_CM_EVENT_ESTABLISHED)
    assert server.expect(ce.RDMA_CM_EVENT_ESTABLISHED) == b""


def test_a_synchronous_request_outlives_the_listener(two: Two) -> None:
    info = AddrInfo(src="10.0.0.2", src_service=PORT, flags=ce.RAI_PASSIVE)
    listener = CMID(creator=info, qp_init_attr=init_attr(), device=two.devices[1])
    listener.listen()
    client = Side(two.devices[0])
    client.connect()
    child = listener.get_request()
    listener.close()
    child.migrate_id(CMEventChannel(two.devices[1]))  # else accept waits for the client, which is this thread
    child.accept()
    client.expect(ce.RDMA_CM_EVENT_ESTABLISHED)


def test_requests_that_wait_move_with_the_listener(two: Two, sides: tuple[Side, Side]) -> None:
    client, server = sides
    client.ask(server)
    two.run()
    other = CMEventChannel(server.device)
    server.cmid.migrate_id(other)
    server.channel.close()
    with CMEvent(other) as event:
        child = CMID(creator=event, listen_id=server.cmid)
    child.create_qp(init_attr())
    child.accept()
    client.expect(ce.RDMA_CM_EVENT_ESTABLISHED)
    with CMEvent(other) as event:
        assert event.event_type == ce.RDMA_CM_EVENT_ESTABLISHED
