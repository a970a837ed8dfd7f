# SPDX-License-Identifier: MIT
"""Commands, one connection: what each does and refuses, and that nothing is left."""

import errno
import os
import select
import socket
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from tests.server.client import (
    ERR,
    RC,
    RESET,
    RTS,
    TO_INIT,
    UD,
    XRC_RECV,
    XRC_SEND,
    Buffer,
    Channel,
    Client,
    Connection,
    Cq,
    Gone,
    Qp,
    Refused,
    Side,
    Srq,
    close_all,
    pair,
)
from tests.server.conftest import Served

from softverbs.device import Device
from softverbs.server import abi, session
from softverbs.server.server import LONGEST_SLEEP_MS, Server
from softverbs.server.session import RETRIES

PAGE = 4096


@pytest.fixture
def client(served: Served) -> Client:
    return Client(served.path)


def refused(code: int, words: str, client: Connection, name: str, **values: Any) -> None:
    with pytest.raises(Refused, match=words) as caught:
        client.call(name, **values)
    assert caught.value.code == code


def test_hello_tells_the_device(served: Served, client: Client) -> None:
    assert client.hello["name"] == b"softverbs0"
    assert client.hello["guid"] == served.device.guid
    listing = Client(served.path, purpose=1)
    assert not listing.descriptors


def test_hello_comes_first_and_once(served: Served, client: Client) -> None:
    refused(errno.EINVAL, "HELLO is the first", Connection(served.path), "ALLOC_PD")
    refused(errno.EINVAL, "HELLO is the first", client, "HELLO", abi=abi.VERSION)


def test_a_connection_for_listing_has_no_objects(served: Served) -> None:
    listing = Client(served.path, purpose=1)
    listing.gid()
    for name in abi.COMMANDS.keys() - {"HELLO"}:
        if not name.startswith("QUERY_") or name in ("QUERY_QP", "QUERY_SRQ"):
            refused(errno.EPERM, "only for listing", listing, name)
    assert served.objects() == {}


def test_another_version_is_refused_in_words(served: Served) -> None:
    refused(errno.EPROTO, "version 99", Connection(served.path), "HELLO", abi=99)


def test_device_port_gid_pkey(served: Served, client: Client) -> None:
    device = client.call("QUERY_DEVICE")
    assert device["max_qp"] == served.device.options.max_qp and device["phys_port_cnt"] == 1
    assert device["odp_general_caps"] == 3 and device["max_cq_count"] == 65535 and device["fw_ver"]
    port = client.call("QUERY_PORT", port_num=1)
    assert port["state"] == 4 and port["link_layer"] == 2
    assert client.gid() == served.device.link.gids[0]
    assert client.call("QUERY_PKEY", port_num=1, index=0)["pkey"] == 0xFFFF
    refused(errno.ENODATA, "empty", client, "QUERY_GID", port_num=1, index=7)
    refused(errno.EINVAL, "outside", client, "QUERY_GID", port_num=1, index=8)
    refused(errno.EINVAL, "port", client, "QUERY_PORT", port_num=2)


def test_everything_can_be_made_and_is_gone_at_the_end(served: Served, client: Client, tmp_path: Path) -> None:
    pd = client.pd()
    channel = Channel(client)
    cq = Cq(client, channel=channel.handle)
    buffer = Buffer(client, pd, PAGE)
    srq = Srq(client, pd)
    qps = [Qp(client, pd, cq, cq), Qp(client, pd, cq, cq, srq=srq.handle), Qp(client, pd, cq, cq, qp_type=UD)]
    xrcd = client.call("OPEN_XRCD", oflags=os.O_CREAT)["handle"]
    xrc_srq = Srq(client, pd, srq_type=1, xrcd=xrcd, cq=cq.handle)
    qps += [Qp(client, 0, None, None, qp_type=XRC_RECV, xrcd=xrcd), Qp(client, pd, cq, None, qp_type=XRC_SEND)]
    counter = client.call("CREATE_COMP_CNTR")["handle"]
    client.call("ATTACH_COMP_CNTR", qp=qps[0].handle, counter=counter, op_mask=1)
    window = client.call("ALLOC_MW", pd=pd, type=1)["handle"]
    dm = client.call("ALLOC_DM", length=64)["handle"]
    dm_region = client.call("REG_DM_MR", pd=pd, dm=dm, length=64, access=1 << 5 | 1)["handle"]
    null = client.call("REG_MR", pd=pd, flags=1)["handle"]
    where = {"dgid": client.gid(), "is_global": 1, "port_num": 1}
    ah = client.call("CREATE_AH", pd=pd, attr=where)["handle"]
    assert len(served.objects()) == 9
    refused(errno.EBUSY, "holds", client, "DEALLOC_PD", handle=pd)
    refused(errno.EBUSY, "is used by", client, "DESTROY_CQ", handle=cq.handle)
    refused(errno.EBUSY, "attached", client, "DESTROY_COMP_CNTR", handle=counter)
    for qp in qps:
        client.call("DESTROY_QP", handle=qp.handle)
    for name, handle in (
        ("DESTROY_COMP_CNTR", counter), ("DEALLOC_MW", window), ("DEREG_MR", dm_region), ("FREE_DM", dm),
        ("DEREG_MR", null), ("DEREG_MR", buffer.handle), ("DESTROY_AH", ah), ("DESTROY_SRQ", srq.handle),
        ("DESTROY_SRQ", xrc_srq.handle), ("CLOSE_XRCD", xrcd), ("DESTROY_CQ", cq.handle),
        ("DESTROY_CHANNEL", channel.handle), ("DEALLOC_PD", pd),
    ):  # fmt: skip
        client.call(name, handle=handle)
        refused(errno.EINVAL, "no .* with the handle", client, name, handle=handle)
    assert served.objects() == {}


def test_handles_are_of_one_kind_and_of_one_connection(served: Served, client: Client) -> None:
    pd = client.pd()
    refused(errno.EINVAL, "no CQ", client, "DESTROY_CQ", handle=pd)
    refused(errno.EINVAL, "no PD", Client(served.path), "DEALLOC_PD", handle=pd)
    client.call("DEALLOC_PD", handle=pd)
    assert client.pd() != pd


def test_register_looks_whether_the_memory_is_there(client: Client) -> None:
    pd = client.pd()
    buffer = Buffer(client, pd, PAGE)
    values = {"pd": pd, "iova": 0, "access": 1}
    refused(errno.EFAULT, "nothing mapped", client, "REG_MR", address=PAGE, length=PAGE, **values)
    refused(errno.EFAULT, "nothing mapped|cannot be", client, "REG_MR", address=buffer.address, length=2**46, **values)
    refused(errno.EINVAL, "unknown access", client, "REG_MR", address=buffer.address, length=9, pd=pd, access=1 << 18)
    refused(errno.EINVAL, "at least 1", client, "REG_MR", address=buffer.address, length=0, **values)
    with open("/proc/self/maps") as rows:
        readonly = next(int(row.split("-")[0], 16) for row in rows if " r--p " in row)
    refused(errno.EFAULT, "cannot be written", client, "REG_MR", address=readonly, length=8, **values)
    client.call("REG_MR", pd=pd, address=readonly, length=8)
    client.call("REG_MR", pd=pd, address=0, length=2**64 - 1, access=1 << 6 | 1)  # implicit, on demand


def test_reregister(client: Client) -> None:
    pd, other = client.pd(), client.pd()
    buffer = Buffer(client, pd, PAGE)
    keys = client.call("REREG_MR", handle=buffer.handle, flags=2 | 4, pd=other, access=1)
    assert keys["lkey"] == buffer.lkey
    client.call("DEALLOC_PD", handle=pd)
    client.call("REREG_MR", handle=buffer.handle, flags=1, address=buffer.address + 8, length=8)
    refused(errno.EINVAL, "flags", client, "REREG_MR", handle=buffer.handle, flags=64)
    refused(errno.EFAULT, "mapped", client, "REREG_MR", handle=buffer.handle, flags=1, address=64, length=8)


def test_device_memory_is_copied(client: Client) -> None:
    buffer = Buffer(client, client.pd(), 64)
    dm = client.call("ALLOC_DM", length=64)["handle"]
    buffer.data.raw = bytes(range(64))
    client.call("COPY_DM", handle=dm, to_device=1, offset=8, length=16, address=buffer.address)
    client.call("COPY_DM", handle=dm, to_device=0, offset=0, length=32, address=buffer.address)
    assert buffer.data.raw[:32] == bytes(8) + bytes(range(16)) + bytes(8)
    refused(errno.EFAULT, "cannot be read", client, "COPY_DM", handle=dm, to_device=1, length=8, address=8)
    refused(errno.EINVAL, "outside", client, "COPY_DM", handle=dm, offset=64, length=8, address=buffer.address)


def test_queue_pair_states(client: Client) -> None:
    pd, cq = client.pd(), Cq(client)
    qp = Qp(client, pd, cq, cq)
    assert qp.state() == RESET
    with pytest.raises(Refused, match=r"missing IBV_QP_ACCESS_FLAGS, IBV_QP_PKEY_INDEX, IBV_QP_PORT"):
        qp.modify(1, qp_state=1)
    qp.to_init()
    qp.connect(client.gid(), qp.number)
    assert qp.state() == RTS
    attr = qp.query()
    assert attr["qp_state"] == RTS and attr["ah_attr"]["dgid"] == client.gid() and attr["cap"]["max_send_wr"] == 16
    assert attr["dest_qp_num"] == qp.number and attr["timeout"] == 14 and attr["path_mtu"] == 3
    with pytest.raises(Refused, match="resized"):
        qp.modify(1 << 19)


def test_a_queue_pair_with_a_wrong_type_or_size(client: Client) -> None:
    pd, cq = client.pd(), Cq(client)
    with pytest.raises(Refused, match="qp_type=77"):
        Qp(client, pd, cq, cq, qp_type=77)
    with pytest.raises(Refused, match="max_send_wr"):
        Qp(client, pd, cq, cq, cap={"max_send_wr": 2**32 - 1})
    with pytest.raises(Refused, match="protection domain"):
        Qp(client, 0, cq, cq)


def test_memory_of_queues_has_its_limit(served: Served, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("softverbs.server.session.MOST_MEMORY", 64 * PAGE)
    before = served.objects()
    refused(errno.ENOMEM, "bytes already", client, "CREATE_CQ", cqe=PAGE)
    assert served.objects() == before
    cq = Cq(client, 32 * 64)
    with pytest.raises(Refused, match="bytes already"):
        Cq(client, 32 * 64)
    with pytest.raises(Refused, match="bytes already"):
        cq.resize(PAGE)
    srq = Srq(client, client.pd(), max_wr=1)
    with pytest.raises(Refused, match="bytes already"):
        srq.resize(PAGE)
    client.call("DESTROY_CQ", handle=cq.handle)
    Cq(client, 20 * 64)


def test_shared_memory_cannot_be_made_shorter(client: Client) -> None:
    client.call("CREATE_CQ", cqe=10)
    (descriptor,) = client.descriptors
    for size in (0, 1 << 20):
        with pytest.raises(PermissionError):
            os.ftruncate(descriptor, size)
    os.close(descriptor)


def test_counters_show_their_counts(served: Served) -> None:
    left, right = Side(served.path), Side(served.path)
    counter = left.client.call("CREATE_COMP_CNTR")["handle"]
    (page,) = left.client.descriptors
    left.client.call("ATTACH_COMP_CNTR", qp=left.qp.handle, counter=counter, op_mask=1)
    left.connect(right)
    right.connect(left)
    for number in range(3):
        right.qp.post_recv(number, right.buffer.element())
        left.qp.post_send(number, left.buffer.element())
    for _ in range(3):
        left.cq.wait()
    assert os.pread(page, 16, 0) == (3).to_bytes(8, "little") + bytes(8)
    left.client.call("INC_COMP_CNTR", handle=counter, amount=4)
    left.client.call("INC_ERR_COMP_CNTR", handle=counter, amount=2)
    assert left.client.call("READ_COMP_CNTR", handle=counter) == {"value": 7, "errors": 2}
    left.client.call("SET_COMP_CNTR", handle=counter, value=0)
    left.client.call("SET_ERR_COMP_CNTR", handle=counter, value=1)
    assert os.pread(page, 16, 0) == bytes(8) + (1).to_bytes(8, "little")
    caps = left.client.call("QUERY_COMP_CNTR_CAPS")
    assert caps["max_value"] == 2**64 - 1 and caps["supported_qp_attach_ops"] == 0x3F
    refused(errno.EOPNOTSUPP, "type=9", left.client, "CREATE_COMP_CNTR", type=9)
    os.close(page)


def test_events_of_a_channel(served: Served) -> None:
    left = Side(served.path)
    right = Side(served.path, channel=True)
    left.connect(right)
    right.connect(left)
    assert right.channel is not None
    for number in range(3):
        right.qp.post_recv(number, right.buffer.element())
        right.cq.arm()
        assert right.cq.poll() is None
        left.qp.post_send(number, left.buffer.element())
        assert right.channel.next() == right.cq.handle
        found = right.cq.poll()
        assert found is not None and found["wr_id"] == number  # the completion is there before its event
    right.client.call("ACK_EVENTS", handle=right.cq.handle, count=3)
    refused(errno.EINVAL, "acknowledged", right.client, "ACK_EVENTS", handle=right.cq.handle, count=1)
    refused(errno.EBUSY, "use", right.client, "DESTROY_CHANNEL", handle=right.channel.handle)
    right.client.call("DESTROY_QP", handle=right.qp.handle)
    gone = right.client.call("DESTROY_CQ", handle=right.cq.handle)
    assert gone["comp_events_reported"] == 3
    right.client.call("DESTROY_CHANNEL", handle=right.channel.handle)
    assert right.channel.socket.recv(8) == b""


def test_asynchronous_events(served: Served) -> None:
    left, right = pair(served.path)
    served.device.set_port_state(False)
    assert left.client.next_event() == {"event": 10, "port": 1, "handle": 0}
    assert right.client.next_event()["event"] == 10
    served.device.set_port_state(True)
    assert left.client.next_event()["event"] == 9
    right.qp.post_recv(1, right.buffer.element())
    left.qp.post_send(1, left.buffer.element(), opcode=0, remote=8, rkey=0x1234)
    assert left.cq.wait()["status"] == 10
    event = right.client.next_event()
    while event["event"] in (9, 4):  # PORT_ACTIVE, COMM_EST
        event = right.client.next_event()
    assert event == {"event": 3, "port": 1, "handle": right.qp.handle}
    assert right.client.call("DESTROY_QP", handle=right.qp.handle)["async_events_reported"] >= 1


def test_the_words_of_a_completion(served: Served) -> None:
    left, _ = pair(served.path)
    left.qp.post_send(1, (8, 8, 0x7777))
    found = left.cq.wait()
    assert found["status"] == 4
    words = left.client.call("COMPLETION_REASON", handle=left.cq.handle, index=found["index"])["text"].decode()
    assert "0x7777" in words
    assert left.client.call("COMPLETION_REASON", handle=left.cq.handle, index=2**64 - 1)["text"] == b""


def test_resized_queues_keep_what_they_hold(served: Served) -> None:
    left, right = pair(served.path)
    for number in range(4):
        right.qp.post_recv(number, right.buffer.element())
        left.qp.post_send(number, left.buffer.element())
    assert left.cq.wait()["wr_id"] == 0
    right.cq.wait()
    left.cq.resize(200)
    assert left.cq.slots == 256
    assert [left.cq.wait()["wr_id"] for _ in range(3)] == [1, 2, 3]
    with pytest.raises(Refused, match="cqe=0"):
        left.cq.resize(0)


def test_what_was_posted_counts_for_a_resize(served: Served) -> None:
    left, _ = pair(served.path)
    left.qp.modify(1, qp_state=6)
    for number in range(10):
        left.qp.post_send(number, left.buffer.element())
    with pytest.raises(Refused, match="cqe=2: 10 completions"):
        left.cq.resize(2)


def test_a_shared_receive_queue(served: Served) -> None:
    client = Client(served.path)
    pd, cq = client.pd(), Cq(client)
    buffer = Buffer(client, pd, PAGE)
    srq = Srq(client, pd, max_wr=2)
    qp = Qp(client, pd, cq, cq, srq=srq.handle)
    assert qp.rings["rq_slots"] == 0
    left = Side(served.path)
    qp.to_init()
    qp.connect(client.gid(), left.qp.number)
    left.qp.connect(client.gid(), qp.number)
    srq.post_recv(1, buffer.element())
    srq.resize(8)
    for number in range(2, 6):
        srq.post_recv(number, buffer.element())
    client.call("MODIFY_SRQ", handle=srq.handle, attr_mask=2, srq_limit=4)
    assert client.call("QUERY_SRQ", handle=srq.handle)["srq_limit"] == 4
    for number in range(5):
        left.qp.post_send(number, left.buffer.element())
    assert [cq.wait()["wr_id"] for _ in range(5)] == [1, 2, 3, 4, 5]
    assert client.next_event() == {"event": 15, "port": 1, "handle": srq.handle}
    refused(errno.EINVAL, "srq_attr_mask", client, "MODIFY_SRQ", handle=srq.handle, attr_mask=8)


def test_datagrams_and_a_group(served: Served) -> None:
    client = Client(served.path)
    pd, cq = client.pd(), Cq(client)
    buffer = Buffer(client, pd, PAGE)
    qp = Qp(client, pd, cq, cq, qp_type=UD)
    qp.modify(1 | 1 << 4 | 1 << 5 | 1 << 6, qp_state=1, port_num=1, qkey=5)
    qp.modify(1, qp_state=2)
    qp.modify(1 | 1 << 16, qp_state=3)
    ah = client.call("CREATE_AH", pd=pd, attr={"dgid": client.gid(), "is_global": 1, "port_num": 1})
    qp.post_recv(1, buffer.element())
    qp.post_send(2, buffer.element(0, 100), destination=qp.number, rkey=5, ah=ah["number"])
    done = {found["wr_id"]: found for found in (cq.wait(), cq.wait())}
    assert done[1]["byte_len"] == 140 and done[1]["src_qp"] == qp.number and done[2]["status"] == 0
    # Another program's handle is not for this one.
    other = Client(served.path)
    theirs = other.call("CREATE_AH", pd=other.pd(), attr={"dgid": client.gid(), "is_global": 1, "port_num": 1})
    qp.post_send(3, buffer.element(0, 100), destination=qp.number, rkey=5, ah=theirs["number"])
    assert cq.wait()["status"] == 2
    group = bytes(10) + b"\xff\xff" + bytes([239, 1, 2, 3])
    client.call("ATTACH_MCAST", qp=qp.handle, gid=group)
    client.call("DETACH_MCAST", qp=qp.handle, gid=group)
    refused(errno.EINVAL, "not attached", client, "DETACH_MCAST", qp=qp.handle, gid=group)


def test_datagrams_that_were_posted_before_their_queue_pair_ends_leave(tmp_path: Path) -> None:
    """A program may post, ring, and destroy at once, as mckey does: the command must not overtake the doorbell."""
    device = Device(thread=False)
    server = Server(device, str(tmp_path / "socket"))

    def commands_only(work: Callable[[], Any]) -> Any:
        """Does the work of a program while the device carries out commands and does not look at queues by itself."""
        with ThreadPoolExecutor(1) as pool:
            done = pool.submit(work)
            while not done.done():
                server.commands()
        return done.result()

    def made(client: Client, pd: int, cq: Cq) -> Qp:
        qp = Qp(client, pd, cq, cq, qp_type=UD)
        qp.modify(1 | 1 << 4 | 1 << 5 | 1 << 6, qp_state=1, port_num=1, qkey=5)
        qp.modify(1, qp_state=2)
        qp.modify(1 | 1 << 16, qp_state=3)
        return qp

    def program() -> Cq:
        client = Client(str(tmp_path / "socket"))
        pd, cq = client.pd(), Cq(client)
        buffer = Buffer(client, pd, PAGE)
        sender, receiver = made(client, pd, Cq(client)), made(client, pd, cq)
        ah = client.call("CREATE_AH", pd=pd, attr={"dgid": client.gid(), "is_global": 1, "port_num": 1})
        for number in range(3):
            receiver.post_recv(number, buffer.element())
            sender.post_send(9, buffer.element(0, 10), flags=0, destination=receiver.number, rkey=5, ah=ah["number"])
        client.call("DESTROY_QP", handle=sender.handle)
        return cq

    cq = commands_only(program)
    for _ in range(100):
        server.turn()
    assert [cq.poll()["wr_id"] for _ in range(3)] == [0, 1, 2]
    server.close()
    device.close()
    close_all()


def test_xrc_domains_are_shared_by_a_file(served: Served, tmp_path: Path) -> None:
    one, two = Client(served.path), Client(served.path)
    name = os.open(tmp_path / "domain", os.O_CREAT | os.O_RDWR)
    refused(errno.EAGAIN, "no domain", one, "OPEN_XRCD", has_fd=1, passing=[name])
    first = one.call("OPEN_XRCD", [name], has_fd=1, oflags=os.O_CREAT)["handle"]
    refused(errno.EINVAL, "O_EXCL", two, "OPEN_XRCD", has_fd=1, oflags=os.O_CREAT | os.O_EXCL, passing=[name])
    refused(errno.EBADF, "descriptor", two, "OPEN_XRCD", has_fd=1)
    second = two.call("OPEN_XRCD", [name], has_fd=1)["handle"]
    os.close(name)
    target = Qp(one, 0, None, None, qp_type=XRC_RECV, xrcd=first)
    refused(errno.EINVAL, "no QP", two, "OPEN_QP", xrcd=second, qp_num=target.number, qp_type=RC)
    opened = two.call("OPEN_QP", xrcd=second, qp_num=target.number, qp_type=XRC_RECV)["handle"]
    one.close()  # the target and the domain live on
    two.call("MODIFY_QP", handle=opened, attr_mask=TO_INIT, attr={"qp_state": 1, "port_num": 1})
    refused(errno.EBUSY, "used", two, "CLOSE_XRCD", handle=second)
    two.call("DESTROY_QP", handle=opened)
    two.call("CLOSE_XRCD", handle=second)
    served.wait_for_objects({})


def test_a_removed_device_lets_programs_tidy_up(served: Served) -> None:
    left, right = pair(served.path)
    left.qp.post_recv(1, left.buffer.element())
    served.device.remove("pulled out")
    event = left.client.next_event()
    while event["event"] == 4:
        event = left.client.next_event()
    assert event["event"] == 8  # DEVICE_FATAL
    assert left.cq.wait()["status"] == 5
    refused(errno.EIO, "pulled out", left.client, "ALLOC_PD")
    assert left.client.control is not None and left.client.control.load(4, "I") == 1
    left.client.call("DESTROY_QP", handle=left.qp.handle)
    left.client.call("DEREG_MR", handle=left.buffer.handle)
    right.client.close()


def test_events_that_nobody_reads_keep_back_no_others(served: Served, client: Client) -> None:
    """Asynchronous events fill their socket; those of a completion channel have one of their own."""
    side = Side(served.path)
    channel = Channel(side.client)
    cq = Cq(side.client, channel=channel.handle)
    qp = Qp(side.client, side.pd, cq, cq)
    srq = side.client.call("CREATE_SRQ", pd=side.pd, max_wr=4, max_sge=1)["handle"]
    for _ in range(600):  # each raises SRQ_LIMIT_REACHED, since nothing is posted
        side.client.call("MODIFY_SRQ", handle=srq, attr_mask=2, srq_limit=1)
    cq.arm()
    channel.socket.settimeout(5)
    side.client.call("MODIFY_QP", handle=qp.handle, attr_mask=TO_INIT, attr={"qp_state": 1, "port_num": 1})
    side.client.call("MODIFY_QP", handle=qp.handle, attr_mask=1, attr={"qp_state": ERR})
    qp.post_recv(1, side.buffer.element())
    side.client.ring()
    assert channel.next() == cq.handle
    found = [side.client.next_event() for _ in range(600)]
    assert {(event["event"], event["handle"]) for event in found} == {(15, srq)}


def test_events_of_objects_that_are_gone_end_nobody(
    served: Served, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program may live long and never read any; those of objects that it has still are kept."""
    monkeypatch.setattr(session, "MOST_RECORDS", 20)
    pd = client.pd()
    kept = client.call("CREATE_SRQ", pd=pd, max_wr=4, max_sge=1)["handle"]
    for number in range(600):
        srq = client.call("CREATE_SRQ", pd=pd, max_wr=4, max_sge=1)["handle"]
        client.call("MODIFY_SRQ", handle=srq, attr_mask=2, srq_limit=1)
        with served.device.lock:
            pass  # the event is sent now, if it can be
        client.call("DESTROY_SRQ", handle=srq)
        if number % 50 == 0:
            client.call("MODIFY_SRQ", handle=kept, attr_mask=2, srq_limit=1)
    found = 0
    while found < 12:
        found += client.next_event()["handle"] == kept
    raised = 0
    with suppress(Gone):
        while raised < 1000:
            client.call("MODIFY_SRQ", handle=kept, attr_mask=2, srq_limit=1)
            raised += 1
    assert raised < 1000, "those are too many"


def test_every_socket_gets_its_turn(served: Served, client: Client) -> None:
    """Of many that have no room, some are tried at a time, so that each look costs little."""
    with served.device.lock:
        one = served.server.sessions[0]
        pairs = [socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(3 * RETRIES)]
        for ours, _ in pairs:
            ours.setblocking(False)
            ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
            count = 0
            while ours not in one.backlog:
                one.send_record(ours, count.to_bytes(8, "little"))
                count += 1
            one.send_record(ours, count.to_bytes(8, "little"))
        for _, theirs in pairs:
            theirs.settimeout(0)
            assert theirs.recv(8) == bytes(8)
        for left in (2, 1, 0):
            one.retry_records()
            assert sum(len(records) == 2 for records in one.backlog.values()) == left * RETRIES
        found: list[list[int]] = [[] for _ in pairs]
        for _ in range(3 * 3):
            for numbers, (_, theirs) in zip(found, pairs, strict=True):
                with suppress(BlockingIOError):
                    while True:
                        numbers.append(int.from_bytes(theirs.recv(8), "little"))
            one.retry_records()
        assert not one.backlog
        assert all(numbers == list(range(1, count + 1)) for numbers in found), "in order, and all"
        for both in pairs:
            for end in both:
                end.close()


@pytest.mark.parametrize("others", [0, 1], ids=["socket", "doorbell"])
def test_a_program_that_cannot_be_watched_is_turned_away(
    served: Served, client: Client, others: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel limits what may be watched, for all programs of a user together (epoll(7))."""

    class Full:
        def __init__(self, descriptors: Any) -> None:
            self.descriptors = descriptors

        def register(self, descriptor: int, events: int) -> None:
            if not others or events & select.EPOLLET:
                raise OSError(errno.ENOSPC, "No space left on device")
            self.descriptors.register(descriptor, events)

        def __getattr__(self, name: str) -> Any:
            return getattr(self.descriptors, name)

    with served.device.lock:
        monkeypatch.setattr(served.server, "_descriptors", Full(served.server._descriptors))
    with pytest.raises(Gone):
        Client(served.path)
    client.gid()
    with served.device.lock:
        monkeypatch.undo()
    Client(served.path).gid()
    assert len(served.server.sessions) == 2


def test_a_server_whose_device_is_removed_sleeps(tmp_path: Path) -> None:
    """What was due is not done any more: it must not be waited for again and again."""

    class Chore:
        due = 1

        def run(self, now: int) -> None:
            raise AssertionError("the device is gone")

    device = Device(thread=False)
    server = Server(device, str(tmp_path / "socket"))
    device.remove("pulled out")
    device.chores.append(Chore())
    server._answer(server._descriptors.poll(0))  # what has happened until now
    start = time.monotonic()
    server._nap()
    assert time.monotonic() - start > LONGEST_SLEEP_MS / 2000
    server.close()
    device.close()


def test_a_stopped_server_ends_its_clients(served: Served, client: Client) -> None:
    served.server.stop()
    with pytest.raises(Gone):
        client.receive()
    assert client.control is not None and client.control.load(4, "I") == 1
