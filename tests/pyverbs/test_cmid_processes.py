# SPDX-License-Identifier: MIT
"""CMIDs of two processes of one host, each with a device of its own: both say 127.0.0.1."""

import errno
import os
import signal
import threading
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from softverbs.cm.addresses import of_gid
from softverbs.cm.service import service_of
from softverbs.device import Device
from softverbs.pyverbs import libibverbs_enums as e
from softverbs.pyverbs import librdmacm_enums as ce
from softverbs.pyverbs.addr import AH
from softverbs.pyverbs.cmid import CMID, AddrInfo, CMEvent, CMEventChannel, ConnParam, UDParam
from softverbs.pyverbs.pyverbs_error import PyverbsRDMAError
from softverbs.pyverbs.qp import QPCap, QPInitAttr

pytestmark = pytest.mark.timeout(60)


class Pipe:
    """Lines from one process to the other."""

    def __init__(self) -> None:
        self.source, self.sink = os.pipe()
        self._rest = b""

    def put(self, text: object) -> None:
        os.write(self.sink, f"{text}\n".encode())

    def get(self) -> str:
        while b"\n" not in self._rest:
            data = os.read(self.source, 4096)
            assert data, "the other process has ended"
            self._rest += data
        line, _, self._rest = self._rest.partition(b"\n")
        return line.decode()


class Child:
    """A forked process that runs ``work(pipe from here, pipe to here)``. Both processes open devices of their own."""

    def __init__(self, work: Callable[[Pipe, Pipe], None]) -> None:
        self.to, self.back = Pipe(), Pipe()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # 3.12: forking a process that has threads
            self.pid = os.fork()
        if self.pid == 0:
            status = 1
            try:
                os.close(self.to.sink)
                os.close(self.back.source)
                work(self.to, self.back)
                status = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(status)
        os.close(self.to.source)
        os.close(self.back.sink)

    def join(self) -> None:
        assert os.waitpid(self.pid, 0)[1] == 0


def passive(address: str | None, space: int = ce.RDMA_PS_TCP, port: str | None = None) -> AddrInfo:
    return AddrInfo(src=address, src_service=port or "0", port_space=space, flags=ce.RAI_PASSIVE)


def active(port: str, address: str = "127.0.0.1", space: int = ce.RDMA_PS_TCP) -> AddrInfo:
    return AddrInfo(src=address, dst=address, dst_service=port, port_space=space)


def init_attr(kind: int = e.IBV_QPT_RC) -> QPInitAttr:
    return QPInitAttr(qp_type=kind, cap=QPCap(max_send_wr=4, max_recv_wr=4))


def listen(back: Pipe, address: str | None, space: int = ce.RDMA_PS_TCP) -> CMID:
    """A synchronous listener on a free port, which the other process is told."""
    cmid = CMID(creator=passive(address, space), qp_init_attr=init_attr())
    cmid.listen()
    assert cmid.local_addr is not None
    back.put(cmid.local_addr[1])
    return cmid


def serve(cmid: CMID) -> None:
    """Takes one request, answers one message, and ends the connection."""
    child = cmid.get_request()
    mr = child.reg_msgs(64)
    child.post_recv(mr)
    child.accept()
    wc = child.get_recv_comp()
    mr.write(mr.read(wc.byte_len, 0).upper(), wc.byte_len)
    child.post_send(mr, length=wc.byte_len)
    assert child.get_send_comp().status == 0
    child.disconnect()
    child.close()


def ask(cmid: CMID) -> None:
    """The other side of ``serve``."""
    mr, inbox = cmid.reg_msgs(64), cmid.reg_msgs(64)
    cmid.post_recv(inbox)
    cmid.connect()
    mr.write(b"a message", 9)
    cmid.post_send(mr, length=9)
    assert cmid.get_send_comp().status == 0
    assert cmid.get_recv_comp().byte_len == 9 and inbox.read(9, 0) == b"A MESSAGE"
    cmid.disconnect()
    cmid.close()


@pytest.mark.parametrize("address", ["127.0.0.1", None])
def test_synchronous(address: str | None) -> None:
    """Two connections, one after the other, to a listener on 127.0.0.1 or on all addresses."""

    def server(go: Pipe, back: Pipe) -> None:
        cmid = listen(back, address)
        for _ in range(2):
            serve(cmid)
        cmid.close()

    child = Child(server)
    port = child.back.get()
    for _ in range(2):
        ask(CMID(creator=active(port), qp_init_attr=init_attr()))
    child.join()


def test_the_device_is_found_by_its_own_address_too() -> None:
    def server(go: Pipe, back: Pipe) -> None:
        cmid = CMID(creator=passive(None), qp_init_attr=init_attr())
        cmid.listen()
        assert cmid.context is not None and cmid.local_addr is not None
        gid = bytes.fromhex(cmid.context.query_gid(1, 0).gid.replace(":", ""))
        back.put(".".join(str(octet) for octet in gid[12:]))
        back.put(cmid.local_addr[1])
        serve(cmid)

    child = Child(server)
    address, port = child.back.get(), child.back.get()
    assert address != "127.0.0.1"
    ask(CMID(creator=AddrInfo(dst=address, dst_service=port), qp_init_attr=init_attr()))
    child.join()


def test_an_address_is_taken_once() -> None:
    def server(go: Pipe, back: Pipe) -> None:
        with listen(back, "127.0.0.1"):
            go.get()

    child = Child(server)
    port = child.back.get()
    second = CMID(creator=passive("127.0.0.1", port=port))
    with pytest.raises(PyverbsRDMAError, match="another device") as caught:
        second.listen()
    assert caught.value.error_code == errno.EADDRINUSE
    second.close()
    datagrams = CMID(creator=passive("127.0.0.1", ce.RDMA_PS_UDP, port))
    datagrams.listen()
    datagrams.close()
    child.to.put("end")
    child.join()
    third = CMID(creator=passive("127.0.0.1", port=port))
    third.listen()
    third.close()


def test_the_address_of_another_device_is_its_own() -> None:
    """Nobody else can listen there, nor is a listener on all addresses found there."""
    with Device() as other, CMID(creator=passive(None), qp_init_attr=init_attr()) as listener:
        listener.listen()
        assert listener.local_addr is not None
        address = of_gid(other.link.gids[0]).text
        with pytest.raises(PyverbsRDMAError, match="no address of this device") as caught:
            CMID(creator=passive(address))
        assert caught.value.error_code == errno.EADDRNOTAVAIL
        with other.lock:
            service_of(other)
        client = CMID(creator=AddrInfo(dst=address, dst_service=str(listener.local_addr[1])), qp_init_attr=init_attr())
        with pytest.raises(PyverbsRDMAError, match="reason 8"):
            client.connect()
        client.close()


def test_refused_and_nobody_there() -> None:
    def server(go: Pipe, back: Pipe) -> None:
        cmid = listen(back, "127.0.0.1")
        child = cmid.get_request()
        child.reject(b"no")
        cmid.close()
        back.put("closed")
        go.get()

    child = Child(server)
    port = child.back.get()
    for _ in range(2):
        cmid = CMID(creator=active(port), qp_init_attr=init_attr())
        with pytest.raises(PyverbsRDMAError, match="refuses, reason") as caught:
            cmid.connect()
        assert caught.value.error_code == errno.ECONNREFUSED
        cmid.close()
        child.back.get() if _ == 0 else child.to.put("end")
    child.join()


def test_a_peer_that_is_killed_is_no_longer_found() -> None:
    def server(go: Pipe, back: Pipe) -> None:
        with listen(back, "127.0.0.1"):
            signal.pause()

    child = Child(server)
    port = child.back.get()
    os.kill(child.pid, signal.SIGKILL)
    os.waitpid(child.pid, 0)
    cmid = CMID(creator=active(port), qp_init_attr=init_attr())
    with pytest.raises(PyverbsRDMAError, match="reason 8"):
        cmid.connect()
    cmid.close()


def events(channel: CMEventChannel, *kinds: int) -> list[Any]:
    """Reads events, which are of these kinds, in order; not acknowledged."""
    found = []
    for kind in kinds:
        event = CMEvent(channel)
        assert event.event_type == kind, event.event_str()
        found.append(event)
    return found


def test_datagrams() -> None:
    udp = ce.RDMA_PS_UDP

    def server(go: Pipe, back: Pipe) -> None:
        channel = CMEventChannel()
        cmid = CMID(creator=channel, port_space=udp)
        cmid.bind_addr(passive("127.0.0.1", udp))
        cmid.listen()
        back.put(cmid.local_addr[1])  # type: ignore[index]
        (request,) = events(channel, ce.RDMA_CM_EVENT_CONNECT_REQUEST)
        child = CMID(creator=request, listen_id=cmid)
        request.ack_cm_event()
        child.create_qp(init_attr(e.IBV_QPT_UD))
        mr = child.reg_msgs(104)
        child.post_recv(mr)
        child.accept(ConnParam())
        wc = child.get_recv_comp()
        assert mr.read(6, 40) == b"a ping"
        ah = AH(child.pd, wc=wc, port_num=1, grh=mr.buf)
        child.post_ud_send(mr, ah, rqpn=wc.src_qp, length=8)
        child.get_send_comp()

    child = Child(server)
    channel = CMEventChannel()
    cmid = CMID(creator=channel, port_space=udp)
    cmid.resolve_addr(active(child.back.get(), space=udp))
    events(channel, ce.RDMA_CM_EVENT_ADDR_RESOLVED)
    cmid.resolve_route()
    events(channel, ce.RDMA_CM_EVENT_ROUTE_RESOLVED)
    cmid.create_qp(init_attr(e.IBV_QPT_UD))
    mr = cmid.reg_msgs(104)
    cmid.connect(ConnParam())
    (established,) = events(channel, ce.RDMA_CM_EVENT_ESTABLISHED)
    where = UDParam(established)
    cmid.post_recv(mr)
    outbox = cmid.reg_msgs(8)
    outbox.write(b"a ping", 6)
    cmid.post_ud_send(outbox, AH(cmid.pd, attr=where.ah_attr), rqpn=where.qp_num)
    assert cmid.get_recv_comp().src_qp == where.qp_num
    cmid.close()
    child.join()


def test_multicast() -> None:
    udp = ce.RDMA_PS_UDP
    group = AddrInfo(src="230.0.0.77")

    def join() -> tuple[CMID, UDParam]:
        channel = CMEventChannel()
        cmid = CMID(creator=channel, port_space=udp)
        cmid.bind_addr(passive("127.0.0.1", udp))
        cmid.resolve_addr(AddrInfo(src="127.0.0.1", dst="230.0.0.77"))
        events(channel, ce.RDMA_CM_EVENT_ADDR_RESOLVED)
        cmid.create_qp(init_attr(e.IBV_QPT_UD))
        cmid.join_multicast(addr=group)
        return cmid, UDParam(events(channel, ce.RDMA_CM_EVENT_MULTICAST_JOIN)[0])

    def receiver(go: Pipe, back: Pipe) -> None:
        cmid, _ = join()
        mr = cmid.reg_msgs(104)
        cmid.post_recv(mr)
        back.put("joined")
        assert cmid.get_recv_comp().byte_len == 48 and mr.read(8, 40) == b"to many!"
        cmid.leave_multicast(group)

    child = Child(receiver)
    cmid, where = join()
    child.back.get()
    mr = cmid.reg_msgs(8)
    mr.write(b"to many!", 8)
    cmid.post_ud_send(mr, AH(cmid.pd, attr=where.ah_attr), rqpn=where.qp_num)
    assert cmid.get_send_comp().status == 0
    child.join()
    cmid.close()


def test_the_example_of_the_documentation(monkeypatch: pytest.MonkeyPatch) -> None:
    text = (Path(__file__).parent.parent.parent / "docs" / "cm.md").read_text()
    code = text.partition("```python")[2].partition("```")[0].replace("7471", str(20000 + os.getpid() % 10000))
    names: dict[str, Any] = {}
    exec(code, names)
    listen = CMID.listen

    def server(go: Pipe, back: Pipe) -> None:
        def listening(cmid: CMID) -> None:
            listen(cmid)
            back.put("listening")

        monkeypatch.setattr(CMID, "listen", listening)
        names["serve"]()

    child = Child(server)
    assert child.back.get() == "listening"
    names["ask"]()
    child.join()


def test_one_process_with_itself() -> None:
    """Both ends on the one device of the process."""
    channel = CMEventChannel()
    server = CMID(creator=channel)
    server.bind_addr(passive("127.0.0.1"))
    server.listen()
    client = CMID(creator=channel)
    client.resolve_addr(active(str(server.local_addr[1])))  # type: ignore[index]
    events(channel, ce.RDMA_CM_EVENT_ADDR_RESOLVED)
    client.resolve_route()
    events(channel, ce.RDMA_CM_EVENT_ROUTE_RESOLVED)
    client.create_qp(init_attr())
    client.connect(ConnParam())
    (request,) = events(channel, ce.RDMA_CM_EVENT_CONNECT_REQUEST)
    child = CMID(creator=request, listen_id=server)
    child.create_qp(init_attr())
    child.accept(ConnParam())
    events(channel, ce.RDMA_CM_EVENT_ESTABLISHED, ce.RDMA_CM_EVENT_ESTABLISHED)
    assert client.context is child.context and client.pd is child.pd
    inbox, message = child.reg_msgs(8), client.reg_msgs(8)
    child.post_recv(inbox)
    client.post_send(message)
    assert child.get_recv_comp().status == client.get_send_comp().status == 0
    client.disconnect()
    events(channel, ce.RDMA_CM_EVENT_DISCONNECTED)
    child.disconnect()
    events(channel, ce.RDMA_CM_EVENT_DISCONNECTED)
    for cmid in (child, client, server):
        cmid.close()
    channel.close()


def test_two_threads_of_one_process() -> None:
    """The synchronous API on one device, a thread at each end."""
    listener = CMID(creator=passive("127.0.0.1"), qp_init_attr=init_attr())
    listener.listen()
    assert listener.local_addr is not None
    port = str(listener.local_addr[1])
    failures: list[BaseException] = []

    def server() -> None:
        try:
            for _ in range(3):
                serve(listener)
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=server)
    thread.start()
    for _ in range(3):
        ask(CMID(creator=active(port), qp_init_attr=init_attr()))
    thread.join()
    assert not failures
    listener.close()


def test_closing_wakes_who_waits() -> None:
    """A thread that waits for a request, an event or a completion is told when what it waits for ends."""
    listener = CMID(creator=passive("127.0.0.1"), qp_init_attr=init_attr())
    listener.listen()
    channel = CMEventChannel()
    datagrams = CMID(creator=channel, port_space=ce.RDMA_PS_UDP)
    datagrams.bind_addr(passive("127.0.0.1", ce.RDMA_PS_UDP))
    datagrams.create_qp(init_attr(e.IBV_QPT_UD))
    told: list[BaseException] = []

    def wait(call: Callable[[], object]) -> None:
        try:
            call()
        except PyverbsRDMAError as error:
            told.append(error)

    calls = (listener.get_request, lambda: CMEvent(channel), datagrams.get_recv_comp)
    threads = [threading.Thread(target=wait, args=(call,)) for call in calls]
    for thread in threads:
        thread.start()
    device = channel.device
    while device._waiting < len(threads):
        os.sched_yield()
    listener.close()
    datagrams.close()
    channel.close()
    for thread in threads:
        thread.join(timeout=30)
        assert not thread.is_alive()
    assert len(told) == 3
