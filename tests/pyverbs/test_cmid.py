# SPDX-License-Identifier: MIT
"""CMIDs of two devices in one process, in virtual time: what each call does, and which events it brings."""

import asyncio
import errno
import inspect
import os
import select
from collections.abc import Iterator
from typing import Any

import pytest

from softverbs.device import Device
from softverbs.links.faults import FaultLink
from softverbs.links.inproc import Network
from softverbs.pyverbs import libibverbs_enums as e
from softverbs.pyverbs import librdmacm_enums as ce
from softverbs.pyverbs.addr import AH
from softverbs.pyverbs.cmid import CMID, AddrInfo, CMEvent, CMEventChannel, ConnParam, JoinMCAttrEx, UDParam
from softverbs.pyverbs.cq import CQ
from softverbs.pyverbs.device import Context
from softverbs.pyverbs.mr import MR
from softverbs.pyverbs.pd import PD
from softverbs.pyverbs.pyverbs_error import PyverbsRDMAError, PyverbsUserError
from softverbs.pyverbs.qp import ECE, QP, QPAttr, QPCap, QPInitAttr

MS = 1_000_000
PORT = "7471"


class Two:
    """Two devices on a network, in virtual time. Whoever waits lets both work, and time pass."""

    def __init__(self) -> None:
        self.now = 1000 * MS
        network = Network()
        self.lost = False
        self.links = [FaultLink(network.link(f"10.0.0.{n}"), 1, script=self.script) for n in (1, 2)]
        self.devices = [
            Device(link=link, clock=lambda: self.now, thread=False, idle=self.idle, seed=n)
            for n, link in enumerate(self.links)
        ]

    def script(self, _: int, frame: bytes) -> list[bytes]:
        return [] if self.lost else [frame]

    def idle(self, due: int) -> None:
        if sum(device.progress() for device in self.devices):
            return
        dues = [due for due in [due, *(device.deadline() for device in self.devices)] if due]
        assert dues, "nothing can happen any more"
        self.now = max(self.now, min(dues))

    def run(self) -> None:
        while sum(device.progress() for device in self.devices):
            pass


@pytest.fixture
def two() -> Iterator[Two]:
    made = Two()
    yield made
    for device in made.devices:
        device.close()


class Side:
    """An application on one device: a channel and a CMID."""

    def __init__(self, device: Device, port_space: int = ce.RDMA_PS_TCP) -> None:
        self.device = device
        self.port_space = port_space
        self.channel = CMEventChannel(device)
        self.cmid = CMID(creator=self.channel, port_space=port_space)

    def event(self, kind: int) -> CMEvent:
        """The next event, which is of this kind."""
        event = CMEvent(self.channel)
        assert event.event_type == kind, (event.event_str(), event.status)
        return event

    def expect(self, kind: int) -> bytes:
        """The next event, acknowledged; its private data."""
        with self.event(kind) as event:
            return event.private_data

    def info(self, **more: Any) -> AddrInfo:
        return AddrInfo(port_space=self.port_space, **more)

    def listen(self, backlog: int = 0) -> None:
        self.cmid.bind_addr(self.info(src="10.0.0.2", src_service=PORT, flags=ce.RAI_PASSIVE))
        self.cmid.listen(backlog)

    def resolve(self) -> None:
        self.cmid.resolve_addr(self.info(dst="10.0.0.2", dst_service=PORT))
        self.expect(ce.RDMA_CM_EVENT_ADDR_RESOLVED)
        self.cmid.resolve_route()
        self.expect(ce.RDMA_CM_EVENT_ROUTE_RESOLVED)

    def ask(self, server: "Side") -> None:
        """Asks the other side, which listens from now on, for a connection."""
        server.listen()
        self.connect()

    def connect(self) -> None:
        """Asks whoever listens for a connection."""
        self.resolve()
        self.cmid.create_qp(init_attr())
        self.cmid.connect()

    def request(self) -> tuple[CMID, bytes]:
        with self.event(ce.RDMA_CM_EVENT_CONNECT_REQUEST) as event:
            return CMID(creator=event, listen_id=self.cmid), event.private_data


def init_attr(kind: int = e.IBV_QPT_RC, **queues: Any) -> QPInitAttr:
    return QPInitAttr(qp_type=kind, cap=QPCap(max_send_wr=4, max_recv_wr=4), **queues)


def param(data: bytes = b"", room: int = 56, **more: Any) -> ConnParam:
    made = ConnParam(data_len=room, **more)
    made.set_private_data(data)
    return made


@pytest.fixture
def sides(two: Two) -> tuple[Side, Side]:
    return Side(two.devices[0]), Side(two.devices[1])


def connected(client: Side, server: Side) -> CMID:
    """The passive CMID of a new connection."""
    server.listen()
    client.resolve()
    client.cmid.create_qp(init_attr())
    client.cmid.connect(param(b"hello"))
    child, data = server.request()
    assert data == b"hello".ljust(56, b"\0")
    child.create_qp(init_attr())
    child.accept(param(b"welcome", 196))
    assert client.expect(ce.RDMA_CM_EVENT_ESTABLISHED) == b"welcome".ljust(196, b"\0")
    server.expect(ce.RDMA_CM_EVENT_ESTABLISHED)
    return child


def refuses(code: int, words: str = ".") -> pytest.RaisesExc[PyverbsRDMAError]:
    return pytest.RaisesExc(PyverbsRDMAError, match=words, check=lambda error: error.error_code == code)


def test_a_connection_from_beginning_to_end(sides: tuple[Side, Side]) -> None:
    client, server = sides
    child = connected(client, server)
    assert client.cmid.context is not None and client.cmid.dev_name == "softverbs0" and client.cmid.port_num == 1
    assert child.context is not client.cmid.context
    assert client.cmid.qpn is not None and client.cmid.query_qp(0)[0].dest_qp_num == child.qpn
    assert client.cmid.query_qp(0)[0].qp_state == child.query_qp(0)[0].qp_state == e.IBV_QPS_RTS
    assert child.peer_addr == client.cmid.local_addr and child.local_addr == ("10.0.0.2", 7471)
    message, inbox = client.cmid.reg_msgs(64), child.reg_msgs(64)
    message.write("over the connection", 19)
    child.post_recv(inbox)
    client.cmid.post_send(message, length=19)
    wc = child.get_recv_comp()
    assert (wc.status, wc.byte_len) == (0, 19) and inbox.read(19, 0) == b"over the connection"
    assert client.cmid.get_send_comp().status == 0
    child.disconnect()
    assert child.query_qp(0)[0].qp_state == e.IBV_QPS_ERR
    client.expect(ce.RDMA_CM_EVENT_DISCONNECTED)
    client.cmid.disconnect()
    server.expect(ce.RDMA_CM_EVENT_DISCONNECTED)
    client.expect(ce.RDMA_CM_EVENT_TIMEWAIT_EXIT)
    server.expect(ce.RDMA_CM_EVENT_TIMEWAIT_EXIT)
    for cmid in (child, client.cmid, server.cmid):
        cmid.close()
        cmid.close()
        assert cmid.context is None and cmid.qpn is None
    assert message._core is None


def test_rdma(sides: tuple[Side, Side]) -> None:
    client, server = sides
    child = connected(client, server)
    readable, writable, local = child.reg_read(8), child.reg_write(8), client.cmid.reg_msgs(8)
    readable.write(b"to read!", 8)
    client.cmid.post_read(local, 8, readable.buf, readable.rkey, e.IBV_SEND_SIGNALED)
    assert client.cmid.get_send_comp().opcode == e.IBV_WC_RDMA_READ
    assert local.read(8, 0) == b"to read!"
    client.cmid.post_write(local, 8, writable.buf, writable.rkey, e.IBV_SEND_SIGNALED)
    assert client.cmid.get_send_comp().status == 0
    assert writable.read(8, 0) == b"to read!"
    client.cmid.post_write(local, 8, readable.buf, readable.rkey, e.IBV_SEND_SIGNALED)
    assert client.cmid.get_send_comp().status == e.IBV_WC_REM_ACCESS_ERR


def test_rejected(sides: tuple[Side, Side]) -> None:
    client, server = sides
    client.ask(server)
    child, _ = server.request()
    child.reject(b"not you")
    with client.event(ce.RDMA_CM_EVENT_REJECTED) as event:
        assert event.status == 28 and event.private_data.startswith(b"not you\0")
    assert client.cmid.query_qp(0)[0].qp_state == e.IBV_QPS_ERR
    with refuses(errno.EINVAL):
        child.reject()


def test_nobody_listens_and_nobody_is_there(two: Two, sides: tuple[Side, Side]) -> None:
    client, server = sides
    client.resolve()
    client.cmid.create_qp(init_attr())
    two.lost = True
    client.cmid.connect()
    with client.event(ce.RDMA_CM_EVENT_UNREACHABLE) as event:
        assert event.status == -errno.ETIMEDOUT
    two.lost = False
    server.listen()
    server.cmid.close()
    other = Side(two.devices[0])
    other.resolve()
    other.cmid.create_qp(init_attr())
    other.cmid.connect()
    with other.event(ce.RDMA_CM_EVENT_REJECTED) as event:
        assert event.status == 8


def test_a_request_that_no_cmid_is_made_of_is_refused(sides: tuple[Side, Side]) -> None:
    client, server = sides
    client.ask(server)
    event = server.event(ce.RDMA_CM_EVENT_CONNECT_REQUEST)
    assert event.param is not None and event.param.qpn == client.cmid.qpn
    event.ack_cm_event()
    client.expect(ce.RDMA_CM_EVENT_REJECTED)
    assert event.event_str() == ""
    with refuses(errno.EINVAL, "acknowledged"):
        event.ack_cm_event()
    with refuses(errno.EINVAL, "acknowledged"):
        CMID(creator=event, listen_id=server.cmid)


def test_a_cmid_that_is_garbage_ends_its_connection(two: Two, sides: tuple[Side, Side]) -> None:
    client, server = sides
    child = connected(client, server)
    del child
    two.run()
    client.expect(ce.RDMA_CM_EVENT_DISCONNECTED)


def test_a_qp_of_the_program(two: Two, sides: tuple[Side, Side]) -> None:
    """The program makes and moves the QPs itself; vendors' options go with the messages."""
    client, server = sides
    server.listen()
    client.resolve()
    client.cmid.set_local_ece(ECE(0x1234, 0x77))

    def make(cmid: CMID) -> tuple[QP, CQ]:
        cq = CQ(cmid.context, 8)
        return QP(cmid.pd, init_attr(scq=cq, rcq=cq), QPAttr()), cq

    def move(cmid: CMID, qp: QP) -> None:
        for state in (e.IBV_QPS_INIT, e.IBV_QPS_RTR, e.IBV_QPS_RTS):
            qp.modify(*cmid.init_qp_attr(state))

    mine, _ = make(client.cmid)
    with refuses(errno.EINVAL, "queue pair"):
        client.cmid.connect()
    client.cmid.connect(ConnParam(qp_num=mine.qp_num))
    child, _ = server.request()
    ece = child.get_remote_ece()
    assert (ece.vendor_id, ece.options) == (0x1234, 0x77)
    child.set_local_ece(ECE(0x4321, 0x88))
    theirs, cq = make(child)
    move(child, theirs)
    child.accept(ConnParam(qp_num=theirs.qp_num))
    client.expect(ce.RDMA_CM_EVENT_CONNECT_RESPONSE)
    ece = client.cmid.get_remote_ece()
    assert (ece.vendor_id, ece.options) == (0x4321, 0x88)
    move(client.cmid, mine)
    client.cmid.establish()
    server.expect(ce.RDMA_CM_EVENT_ESTABLISHED)
    inbox, message = MR(child.pd, 16, e.IBV_ACCESS_LOCAL_WRITE), MR(client.cmid.pd, 16, e.IBV_ACCESS_LOCAL_WRITE)
    from softverbs.pyverbs.wr import SGE, RecvWR, SendWR

    theirs.post_recv(RecvWR(5, 1, [SGE(inbox.buf, 16, inbox.lkey)]))
    mine.post_send(SendWR(6, e.IBV_WR_SEND, 1, sg=[SGE(message.buf, 16, message.lkey)]))
    two.run()
    assert cq.poll()[1][0].wr_id == 5
    with refuses(errno.EINVAL, "no QP"):
        client.cmid.post_send(message)
    for qp in (mine, theirs):
        qp.close()


def test_data_before_the_rtu(two: Two, sides: tuple[Side, Side]) -> None:
    """rdma_notify: COMM_EST of the QP stands for an RTU that is lost."""
    client, server = sides
    client.ask(server)
    child, _ = server.request()
    child.create_qp(init_attr())
    child.accept()
    with refuses(errno.EINVAL, "COMM_EST"):
        child.notify(e.IBV_EVENT_QP_FATAL)
    child.notify(e.IBV_EVENT_COMM_EST)
    with refuses(errno.EISCONN, "established already"):
        child.notify(e.IBV_EVENT_COMM_EST)
    server.expect(ce.RDMA_CM_EVENT_ESTABLISHED)
    client.expect(ce.RDMA_CM_EVENT_ESTABLISHED)


def test_options(sides: tuple[Side, Side]) -> None:
    client, server = sides
    client.cmid.set_option(ce.RDMA_OPTION_ID, ce.RDMA_OPTION_ID_ACK_TIMEOUT, 21, 1)
    client.cmid.set_option(ce.RDMA_OPTION_ID, 0, 0x68, 1)
    other = CMID(creator=client.channel)
    for option in (1, 2):  # RDMA_OPTION_ID_REUSEADDR, RDMA_OPTION_ID_AFONLY
        other.set_option(ce.RDMA_OPTION_ID, option, 1, 4)
    other.bind_addr(AddrInfo(src="::", src_service=PORT, flags=ce.RAI_PASSIVE))
    assert other.local_addr == ("::", int(PORT))
    other.close()
    with pytest.raises(PyverbsUserError, match="ACK_TIMEOUT"):
        client.cmid.set_option(ce.RDMA_OPTION_ID, 9, 1, 1)
    with refuses(errno.EINVAL, "optlen=4"):
        client.cmid.set_option(ce.RDMA_OPTION_ID, ce.RDMA_OPTION_ID_ACK_TIMEOUT, 21, 4)
    with refuses(errno.EINVAL, "optval"):
        client.cmid.set_option(ce.RDMA_OPTION_ID, ce.RDMA_OPTION_ID_ACK_TIMEOUT, 32, 1)
    child = connected(client, server)
    assert client.cmid.query_qp(0)[0].timeout == child.query_qp(0)[0].timeout == 21
    assert client.cmid.query_qp(0)[0].ah_attr.traffic_class == child.query_qp(0)[0].ah_attr.traffic_class == 0x68


def test_the_channel(two: Two, sides: tuple[Side, Side]) -> None:
    client, server = sides
    poller = select.poll()
    poller.register(server.channel.fd, select.POLLIN)
    server.listen()
    assert not poller.poll(0)
    os.set_blocking(server.channel.fd, False)
    with refuses(errno.EAGAIN, "no event"):
        CMEvent(server.channel)
    client.connect()
    two.run()
    assert poller.poll(0)
    event = CMEvent(server.channel)
    assert not poller.poll(0)
    assert str(event) == "RDMA_CM_EVENT_CONNECT_REQUEST, status 0" and event.event_str() == str(event).split(",")[0]
    event.close()
    event.close()
    client.expect(ce.RDMA_CM_EVENT_REJECTED)
    server.channel.close()
    server.channel.close()
    with refuses(errno.EINVAL, "channel is closed"):
        CMEvent(server.channel)
    with refuses(errno.EINVAL, "channel is closed"):
        CMID(creator=server.channel)


def test_events_of_a_cmid_that_ends_go_with_it(two: Two, sides: tuple[Side, Side]) -> None:
    client, server = sides
    client.ask(server)
    two.run()
    server.cmid.close()
    client.expect(ce.RDMA_CM_EVENT_REJECTED)
    os.set_blocking(server.channel.fd, False)
    with refuses(errno.EAGAIN):
        CMEvent(server.channel)


def test_migrate(sides: tuple[Side, Side]) -> None:
    client, server = sides
    child = connected(client, server)
    other = CMEventChannel(server.device)
    client.cmid.disconnect()
    child.migrate_id(other)
    assert child.event_channel is other
    with CMEvent(other) as event:
        assert event.event_type == ce.RDMA_CM_EVENT_DISCONNECTED
    with refuses(errno.EINVAL, "another device"):
        child.migrate_id(client.channel)
    client.cmid.migrate_id(None)
    child.disconnect()
    client.cmid.disconnect()
    assert client.cmid.event_channel is None


def test_datagrams(two: Two) -> None:
    client, server = (Side(device, ce.RDMA_PS_UDP) for device in two.devices)
    server.listen()
    client.resolve()
    client.cmid.create_qp(init_attr(e.IBV_QPT_UD))
    client.cmid.connect(param(b"which?", 180))
    child, data = server.request()
    assert data == b"which?".ljust(180, b"\0")
    child.create_qp(init_attr(e.IBV_QPT_UD))
    inbox = child.reg_msgs(104)
    child.post_recv(inbox)
    child.accept(param(b"this", 136))
    with client.event(ce.RDMA_CM_EVENT_ESTABLISHED) as event:
        assert event.private_data == b"this".ljust(136, b"\0")
        where = UDParam(event)
    assert (where.qp_num, where.qkey) == (child.qpn, 0x01234567)
    message = client.cmid.reg_msgs(64)
    message.write(b"datagram", 8)
    ah = AH(client.cmid.pd, attr=where.ah_attr)
    client.cmid.post_ud_send(message, ah, rqpn=where.qp_num, length=8)
    assert client.cmid.get_send_comp().status == 0
    wc = child.get_recv_comp()
    assert (wc.byte_len, wc.src_qp) == (48, client.cmid.qpn) and inbox.read(8, 40) == b"datagram"
    back = AH(child.pd, wc=wc, port_num=1, grh=inbox.buf)
    outbox = client.cmid.reg_msgs(104)
    client.cmid.post_recv(outbox)
    child.post_ud_send(inbox, back, rqpn=wc.src_qp, length=8)
    assert client.cmid.get_recv_comp().byte_len == 48
    client.cmid.disconnect()  # as by Linux: nothing ends
    second = Side(two.devices[0], ce.RDMA_PS_UDP)
    second.resolve()
    second.cmid.connect()
    other, _ = server.request()
    with refuses(errno.EINVAL, "queue pair"):
        other.accept()
    other.reject(b"no")
    with second.event(ce.RDMA_CM_EVENT_UNREACHABLE) as event:
        assert event.status == 2 and event.private_data.startswith(b"no\0")


def test_multicast(two: Two) -> None:
    sides = [Side(device, ce.RDMA_PS_UDP) for device in two.devices]
    group = AddrInfo(src="230.0.0.7")
    for number, side in enumerate(sides, 1):
        side.cmid.bind_addr(side.info(src=f"10.0.0.{number}"))
        side.cmid.resolve_addr(AddrInfo(src=f"10.0.0.{number}", dst="230.0.0.7"))
        side.expect(ce.RDMA_CM_EVENT_ADDR_RESOLVED)
        side.cmid.create_qp(init_attr(e.IBV_QPT_UD))
    sender, receiver = sides
    both = ce.RDMA_CM_JOIN_MC_ATTR_ADDRESS | ce.RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS
    only_send = JoinMCAttrEx(group, both, ce.RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER)
    sender.cmid.join_multicast(mc_attr=only_send)
    with sender.event(ce.RDMA_CM_EVENT_MULTICAST_JOIN) as event:
        where = UDParam(event)
    assert where.qp_num == 0xFFFFFF and where.ah_attr.raw_dgid.endswith(b"\xff\xff\xe6\0\0\x07")
    receiver.cmid.join_multicast(addr=group)
    receiver.expect(ce.RDMA_CM_EVENT_MULTICAST_JOIN)
    inbox, message = receiver.cmid.reg_msgs(64), sender.cmid.reg_msgs(64)
    own = sender.cmid.reg_msgs(64)
    sender.cmid.post_recv(own)
    ah = AH(sender.cmid.pd, attr=where.ah_attr)
    receiver.cmid.post_recv(inbox)
    sender.cmid.post_ud_send(message, ah, rqpn=0xFFFFFF, length=8)
    assert receiver.cmid.get_recv_comp().byte_len == 48
    assert sender.cmid.get_send_comp().status == 0
    receiver.cmid.leave_multicast(group)
    receiver.cmid.post_recv(inbox)
    sender.cmid.post_ud_send(message, ah, rqpn=0xFFFFFF, length=8)
    sender.cmid.get_send_comp()
    two.run()
    assert receiver.cmid.qp is not None and not receiver.cmid.qp._parts.recv_cq._core.count()  # type: ignore[union-attr]
    assert not sender.cmid.qp._parts.recv_cq._core.count()  # type: ignore[union-attr]
    with refuses(errno.EADDRNOTAVAIL, "not joined"):
        receiver.cmid.leave_multicast(group)
    with refuses(errno.EINVAL, "comp_mask"):
        receiver.cmid.join_multicast(mc_attr=JoinMCAttrEx(group))
    with pytest.raises(PyverbsUserError, match="JoinMCAttrEx, is needed"):
        receiver.cmid.join_multicast()
    with refuses(errno.EINVAL, "no multicast"):
        receiver.cmid.join_multicast(addr=AddrInfo(src="10.0.0.1"))


def test_a_device_that_is_closed_or_removed(two: Two, sides: tuple[Side, Side]) -> None:
    client, server = sides
    child = connected(client, server)
    client.device.close()
    client.expect(ce.RDMA_CM_EVENT_DEVICE_REMOVAL)
    with refuses(errno.EIO, "closed"):
        CMEvent(client.channel)
    two.devices = two.devices[1:]
    server.expect(ce.RDMA_CM_EVENT_DISCONNECTED)
    server.device.remove("by hand")
    server.expect(ce.RDMA_CM_EVENT_DEVICE_REMOVAL)
    server.expect(ce.RDMA_CM_EVENT_DEVICE_REMOVAL)
    with refuses(errno.EIO, "by hand"):
        child.disconnect()
    for cmid in (client.cmid, child, server.cmid):
        cmid.close()


def test_asyncio(two: Two, sides: tuple[Side, Side]) -> None:
    client, server = sides

    async def main() -> None:
        server.listen()
        client.cmid.resolve_addr(client.info(dst="10.0.0.2", dst_service=PORT))
        with await client.channel.event() as event:
            assert event.event_type == ce.RDMA_CM_EVENT_ADDR_RESOLVED
        waiting = asyncio.ensure_future(client.channel.event())
        await asyncio.sleep(0)
        client.cmid.resolve_route()
        with await waiting as event:
            assert event.event_type == ce.RDMA_CM_EVENT_ROUTE_RESOLVED

    asyncio.run(main())


def test_address_info() -> None:
    info = AddrInfo(src="127.0.0.1", src_service="7471", flags=ce.RAI_PASSIVE)
    assert str(info) == "AddrInfo: source 127.0.0.1:7471, destination None"
    assert str(AddrInfo(dst=b"localhost", dst_service=b"80")).endswith(("127.0.0.1:80", "[::1]:80"))
    assert str(AddrInfo(dst="::ffff:1.2.3.4", dst_service="5")) == "AddrInfo: source None, destination 1.2.3.4:5"
    assert str(AddrInfo(src_service="5", flags=ce.RAI_PASSIVE)) == "AddrInfo: source 0.0.0.0:5, destination None"
    assert str(AddrInfo(dst_service="5")) == "AddrInfo: source None, destination 127.0.0.1:5"
    assert str(AddrInfo(src="::1", dst="fe80::1%lo")) == "AddrInfo: source [::1]:0, destination [fe80::1]:0"
    assert str(AddrInfo(dst="1.2.3.4", dst_service="http")).endswith(":80")
    for arguments, code in (
        ({"dst": "host.invalid", "flags": ce.RAI_NUMERICHOST}, errno.ENODEV),
        ({"dst": "1.2.3.4", "dst_service": "no such service"}, errno.ENODEV),
        ({"dst": "1.2.3.4", "dst_service": "65536"}, errno.EINVAL),
    ):
        with refuses(code, "Failed to get Address Info"):
            AddrInfo(**arguments)  # type: ignore[arg-type]
    info.close()
    info.close()
    with refuses(errno.EINVAL, "neither"):
        info.get_addrinfo()


def test_resolving_names_by_a_cmid(sides: tuple[Side, Side]) -> None:
    client, _ = sides
    client.cmid.resolve_addrinfo("localhost", PORT)
    client.expect(ce.RDMA_CM_EVENT_ADDRINFO_RESOLVED)
    assert str(client.cmid.query_addrinfo()).endswith(":7471")
    client.cmid.resolve_addrinfo("no name", PORT, flags=ce.RAI_NUMERICHOST)
    with client.event(ce.RDMA_CM_EVENT_ADDRINFO_ERROR) as event:
        assert event.status == -errno.ENODEV
    with refuses(errno.EOPNOTSUPP, "subnet administrator"):
        client.cmid.resolve_addrinfo("localhost", PORT, flags=ce.RAI_SA)


def test_addresses_that_cannot_be_resolved(two: Two, sides: tuple[Side, Side]) -> None:
    client, server = sides
    client.cmid.resolve_addr(AddrInfo(dst="2001:db8::1", dst_service=PORT))
    with client.event(ce.RDMA_CM_EVENT_ADDR_ERROR) as event:
        assert event.status == -errno.EHOSTUNREACH
    with refuses(errno.EADDRNOTAVAIL, "192.0.2.1"):
        client.cmid.bind_addr(AddrInfo(src="192.0.2.1"))
    server.listen()
    with refuses(errno.EADDRINUSE, "in use"):
        CMID(creator=server.channel).bind_addr(AddrInfo(src="10.0.0.2", src_service=PORT))


def test_bad_input(two: Two, sides: tuple[Side, Side]) -> None:
    client, server = sides
    context = Context(device=two.devices[0])
    for call in (
        lambda: CMID(creator=client.channel, port_space=5),
        lambda: client.cmid.bind_addr("127.0.0.1"),  # type: ignore[arg-type]
        lambda: client.cmid.bind_addr(AddrInfo()),
        lambda: client.cmid.resolve_addr(AddrInfo(src="10.0.0.1")),
        lambda: client.cmid.create_qp(init_attr()),
        lambda: client.cmid.reg_msgs(8),
        lambda: client.cmid.disconnect(),
        lambda: client.cmid.establish(),
        lambda: client.cmid.accept(),
        lambda: client.cmid.reject(),
        lambda: client.cmid.get_request(),
        lambda: client.cmid.connect(5),  # type: ignore[arg-type]
        lambda: client.cmid.query_addrinfo(),
        lambda: client.cmid.get_send_comp(),
        lambda: client.cmid.init_qp_attr(e.IBV_QPS_RTR),
        lambda: client.cmid.dev_name,
        lambda: CMEvent(context),  # type: ignore[arg-type]
        lambda: ConnParam(resources=256),
        lambda: ConnParam(data_len=256),
    ):
        with refuses(errno.EINVAL):
            call()
    for make in (lambda: CMID(creator=5), lambda: CMID(creator=context)):  # type: ignore[arg-type]
        with pytest.raises(PyverbsUserError, match="Cannot create CM ID from"):
            make()
    client.cmid.bind_addr(AddrInfo(src="10.0.0.1"))
    with refuses(errno.EINVAL, "port space"):
        client.cmid.create_qp(init_attr(e.IBV_QPT_UD))
    client.cmid.create_qp(init_attr())
    with refuses(errno.EINVAL, "has a QP"):
        client.cmid.create_qp(init_attr())
    with refuses(errno.EINVAL, "resolved|bound"):
        client.cmid.connect()
    server.listen()
    other = Side(two.devices[0])
    other.resolve()
    other.cmid.create_qp(init_attr())
    other.cmid.connect()
    with server.event(ce.RDMA_CM_EVENT_CONNECT_REQUEST) as event:
        with pytest.raises(PyverbsUserError, match="needs listen_id"):
            CMID(creator=event)
        with refuses(errno.EINVAL, "nothing of datagrams"):
            UDParam(event)
        child = CMID(creator=event, listen_id=server.cmid)
        with refuses(errno.EINVAL, "another was made"):
            CMID(creator=event, listen_id=server.cmid)
    child.close()
    with refuses(errno.EINVAL, "CMID is closed"):
        child.accept()
    CMID().close()


def test_a_qp_that_cannot_be_made_ready(two: Two, sides: tuple[Side, Side]) -> None:
    """The peer has accepted, and then this side fails: CONNECT_ERROR here, and the peer is told."""
    client, server = sides
    client.ask(server)
    child, _ = server.request()
    child.create_qp(init_attr())
    child.accept()
    rule = client.device.faults.add("modify_qp:nth=1:errno=ENOMEM")
    with client.event(ce.RDMA_CM_EVENT_CONNECT_ERROR) as event:
        assert event.status == -errno.ENOMEM
    client.device.faults.remove(rule)
    server.expect(ce.RDMA_CM_EVENT_REJECTED)
    assert child.query_qp(0)[0].qp_state == e.IBV_QPS_ERR


def test_a_group_that_cannot_be_attached(two: Two) -> None:
    side = Side(two.devices[0], ce.RDMA_PS_UDP)
    side.cmid.bind_addr(AddrInfo(src="10.0.0.1", port_space=ce.RDMA_PS_UDP))
    side.cmid.create_qp(init_attr(e.IBV_QPT_UD))
    group = AddrInfo(src="230.0.0.1")
    with two.devices[0].faults.applied("attach_mcast:errno=ENOMEM"):
        side.cmid.join_multicast(addr=group)
        with side.event(ce.RDMA_CM_EVENT_MULTICAST_ERROR) as event:
            assert event.status == -errno.ENOMEM
    side.cmid.leave_multicast(group)


def test_calls_fail_on_demand(two: Two, sides: tuple[Side, Side]) -> None:
    client, server = sides
    with server.device.faults.applied("rdma_listen:errno=ENOMEM"), refuses(errno.ENOMEM, "Listen Failed"):
        server.listen()
    server.cmid.listen()
    client.resolve()
    with client.device.faults.applied("create_cq:errno=ENOMEM"), refuses(errno.ENOMEM):
        client.cmid.create_qp(init_attr())
    with client.device.faults.applied("create_qp:errno=ENOMEM"), refuses(errno.ENOMEM):
        client.cmid.create_qp(init_attr())
    client.cmid.create_qp(init_attr())
    with client.device.faults.applied("rdma_connect:errno=ENOMEM"), refuses(errno.ENOMEM, "Failed to Connect"):
        client.cmid.connect()
    client.cmid.connect()
    server.request()


def test_objects_made_from_a_cmid(two: Two, sides: tuple[Side, Side]) -> None:
    """Context(cmid=...), PD(cmid) and MR(cmid, ...), as pyverbs has them."""
    client, _ = sides
    with pytest.raises(PyverbsRDMAError, match="no device yet"):
        Context(cmid=client.cmid)
    client.resolve()
    pd = PD(client.cmid)
    mr = MR(client.cmid, 64, e.IBV_ACCESS_LOCAL_WRITE)
    client.cmid.create_qp(init_attr())
    client.cmid.post_recv(mr)
    assert client.cmid.pd is not None and pd.handle == client.cmid.pd.handle
    pd.close()
    context = Context(cmid=client.cmid)
    assert context.device is client.device
    QP(client.cmid.pd, init_attr(scq=CQ(context, 4), rcq=CQ(context, 4))).close()
    context.close()
    client.cmid.close()
    with refuses(errno.EINVAL, "closed"):
        mr.lkey  # noqa: B018


def test_a_protection_domain_of_the_program(two: Two) -> None:
    context = Context(device=two.devices[0])
    with PD(context) as pd:
        info = AddrInfo(dst="10.0.0.2", dst_service=PORT)
        cmid = CMID(creator=info, qp_init_attr=init_attr(), pd=pd, device=two.devices[0])
        assert cmid.pd is pd and cmid.context is context and cmid.qpn
        cmid.close()
    with refuses(errno.EINVAL, "no destination"):
        CMID(creator=AddrInfo(src="10.0.0.1"), device=two.devices[0])


#: Class -> method -> its parameters in pyverbs of rdma-core 65, in order.
SIGNATURES = {
    ConnParam: {
        "__init__": "resources depth flow_control retry rnr_retry srq qp_num data_len",
        "set_private_data": "data",
    },
    JoinMCAttrEx: {"__init__": "addr comp_mask join_flags"},
    UDParam: {"__init__": "cm_event"},
    AddrInfo: {
        "__init__": "src dst src_service dst_service port_space flags",
        "get_addrinfo": "src dst src_service dst_service port_space flags",
        "close": "",
    },
    CMEvent: {"__init__": "channel", "ack_cm_event": "", "event_str": "", "close": ""},
    CMEventChannel: {"__init__": "", "close": ""},
    CMID: {
        "__init__": "creator qp_init_attr pd port_space listen_id",
        "close": "",
        "get_request": "",
        "bind_addr": "lai",
        "resolve_addr": "rai timeout_ms",
        "join_multicast": "addr mc_attr context",
        "leave_multicast": "addr",
        "resolve_route": "timeout_ms",
        "listen": "backlog",
        "connect": "param",
        "disconnect": "",
        "accept": "param",
        "establish": "",
        "set_local_ece": "ece",
        "get_remote_ece": "",
        "create_qp": "qp_init",
        "query_qp": "attr_mask",
        "init_qp_attr": "qp_state",
        "reg_msgs": "size",
        "reg_read": "size",
        "reg_write": "size",
        "post_recv": "mr length",
        "post_send": "mr flags length",
        "post_read": "mr length remote_addr rkey flags",
        "post_write": "mr length remote_addr rkey flags",
        "post_ud_send": "mr ah rqpn flags length",
        "get_recv_comp": "",
        "get_send_comp": "",
        "set_option": "level optname optval optlen",
        "reject": "private_data",
        "resolve_addrinfo": "node service port_space flags",
        "query_addrinfo": "",
    },
}
PROPERTIES = {
    ConnParam: "qpn private_data",
    JoinMCAttrEx: "join_flags comp_mask",
    UDParam: "qp_num qkey ah_attr",
    CMEvent: "event_type private_data",
    CMID: "dev_name port_num event_channel context pd qpn",
}


def test_names_and_parameters_are_those_of_pyverbs() -> None:
    for kind, methods in SIGNATURES.items():
        for name, wanted in methods.items():
            parameters = list(inspect.signature(getattr(kind, name)).parameters)[1:]
            assert parameters[: len(wanted.split())] == wanted.split(), (kind, name)
            assert all(extension == "device" for extension in parameters[len(wanted.split()) :]), (kind, name)
    for kind, names in PROPERTIES.items():
        assert all(hasattr(kind, name) for name in names.split())


def test_conn_param() -> None:
    made = ConnParam(1, 2, 0, 3, 4, 1, 9, 4)
    made.set_private_data(b"too long")
    assert made.private_data == b"too "
    assert (made.qpn, made.responder_resources, made.initiator_depth) == (9, 1, 2)
    made.qpn = 10
    assert "qp number: 10" in str(made) and "responder resources: 1" in str(made)
    assert ConnParam().private_data == b""
