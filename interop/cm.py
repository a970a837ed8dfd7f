#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""cm.py server|client CASE ADDRESS PORT: one side of a case of the connection manager. "cm.py cases" names the cases.

The same program runs on both sides: it takes pyverbs where that is, else softverbs. The cases "rping" and
"mckey" speak the protocols of rdma-core's programs, which can be the other side; the "port" of mckey is a multicast
group. Prints OK, or what is wrong.
"""

import struct
import sys
import traceback

try:
    from pyverbs import addr, cmid, pyverbs_error
    from pyverbs import enums as e
    from pyverbs import qp as q

    cm = e
    try:
        from pyverbs import cm_enums as cm
    except ImportError:
        pass
except ImportError:
    from softverbs.pyverbs import addr, cmid, pyverbs_error
    from softverbs.pyverbs import libibverbs_enums as e
    from softverbs.pyverbs import librdmacm_enums as cm
    from softverbs.pyverbs import qp as q

TCP, UDP = cm.RDMA_PS_TCP, cm.RDMA_PS_UDP
SIZE = 64
GROUP_SIZE, GROUP_COUNT = 100, 10
ASKED, ANSWERED = b"asked by the client", b"answered by the server"


def expect(condition, what):
    """Fails with words."""
    if not condition:
        raise AssertionError(what)


class Side:
    """A channel and an identifier."""

    def __init__(self, space):
        self.space = space
        self.channel = cmid.CMEventChannel()
        self.id = cmid.CMID(creator=self.channel, port_space=space)

    def event(self, kind, data=None):
        """Takes the next event, which must be of this kind and have this private data."""
        event = cmid.CMEvent(self.channel)
        name = event.event_str()
        expect(event.event_type == kind, "event %s, not %d" % (name, kind))
        if data is not None:
            expect(event.private_data.startswith(data), "private data %r, not %r" % (event.private_data, data))
        return event

    def passed(self, kind, data=None):
        self.event(kind, data).ack_cm_event()

    def listen(self, address, port):
        self.id.bind_addr(cmid.AddrInfo(src=address, src_service=port, port_space=self.space, flags=cm.RAI_PASSIVE))
        self.id.listen()
        print("listening", flush=True)

    def request(self, data):
        event = self.event(cm.RDMA_CM_EVENT_CONNECT_REQUEST, data)
        child = cmid.CMID(creator=event, listen_id=self.id)
        event.ack_cm_event()
        return child

    def resolve(self, address, port):
        self.id.resolve_addr(cmid.AddrInfo(dst=address, dst_service=port, port_space=self.space))
        self.passed(cm.RDMA_CM_EVENT_ADDR_RESOLVED)
        self.id.resolve_route()
        self.passed(cm.RDMA_CM_EVENT_ROUTE_RESOLVED)


def init(kind=e.IBV_QPT_RC):
    return q.QPInitAttr(qp_type=kind, cap=q.QPCap(max_send_wr=8, max_recv_wr=8))


def param(data, room):
    made = cmid.ConnParam(resources=4, depth=4, retry=7, rnr_retry=7, data_len=room)
    made.set_private_data(data)
    return made


def talk(one, first):
    """A message in each direction; then each side reads from and writes to the other's memory, whose key it is told."""
    inbox, outbox = one.reg_msgs(SIZE), one.reg_msgs(SIZE)
    readable, writable, local = one.reg_read(SIZE), one.reg_write(SIZE), one.reg_msgs(SIZE)
    mine = b"1" if first else b"2"
    theirs = b"2" if first else b"1"
    readable.write(mine * SIZE, SIZE)
    outbox.write(struct.pack("!QIQI", readable.buf, readable.rkey, writable.buf, writable.rkey), 24)
    one.post_recv(inbox)

    def send():
        one.post_send(outbox, e.IBV_SEND_SIGNALED, 24)
        expect(one.get_send_comp().status == e.IBV_WC_SUCCESS, "send")

    def receive():
        wc = one.get_recv_comp()
        expect(wc.status == e.IBV_WC_SUCCESS and wc.byte_len == 24, "receive: %d, %d bytes" % (wc.status, wc.byte_len))

    if first:
        send()
        receive()
    else:
        receive()
        send()
    read_at, read_key, write_at, write_key = struct.unpack("!QIQI", inbox.read(24, 0))
    one.post_read(local, SIZE, read_at, read_key, e.IBV_SEND_SIGNALED)
    expect(one.get_send_comp().status == e.IBV_WC_SUCCESS, "READ")
    expect(local.read(SIZE, 0) == theirs * SIZE, "what was read")
    one.post_write(readable, SIZE, write_at, write_key, e.IBV_SEND_SIGNALED)
    expect(one.get_send_comp().status == e.IBV_WC_SUCCESS, "WRITE")
    one.post_recv(inbox)
    if first:
        send()
        receive()
    else:
        receive()
        send()
    expect(writable.read(SIZE, 0) == theirs * SIZE, "what was written")


def end(side, one, begins):
    """Disconnects; ``begins``: this side first."""
    if begins:
        one.disconnect()
        side.passed(cm.RDMA_CM_EVENT_DISCONNECTED)
    else:
        side.passed(cm.RDMA_CM_EVENT_DISCONNECTED)
        one.disconnect()


def connect_server(address, port, begins):
    side = Side(TCP)
    side.listen(address, port)
    child = side.request(ASKED)
    child.create_qp(init())
    child.accept(param(ANSWERED, 196))
    side.passed(cm.RDMA_CM_EVENT_ESTABLISHED)
    talk(child, False)
    end(side, child, begins)


def connect_client(address, port, begins):
    side = Side(TCP)
    side.resolve(address, port)
    side.id.create_qp(init())
    side.id.connect(param(ASKED, 56))
    side.passed(cm.RDMA_CM_EVENT_ESTABLISHED, ANSWERED)
    talk(side.id, True)
    end(side, side.id, begins)


def reject_server(address, port):
    side = Side(TCP)
    side.listen(address, port)
    side.request(ASKED).reject(b"not today")


def reject_client(address, port):
    side = Side(TCP)
    side.resolve(address, port)
    side.id.create_qp(init())
    side.id.connect(param(ASKED, 56))
    side.passed(cm.RDMA_CM_EVENT_REJECTED, b"not today")


def nobody_client(address, port):
    side = Side(TCP)
    side.resolve(address, port)
    side.id.create_qp(init())
    side.id.connect(param(ASKED, 56))
    side.passed(cm.RDMA_CM_EVENT_REJECTED)
    other = Side(UDP)
    other.resolve(address, port)
    other.id.connect(param(ASKED, 180))
    other.passed(cm.RDMA_CM_EVENT_UNREACHABLE)


def nobody_server(address, port):
    side = Side(UDP)  # the same port, of another port space
    side.listen(address, port)
    side.request(ASKED).reject(b"")


def synchronous_server(address, port):
    info = cmid.AddrInfo(src=address, src_service=port, port_space=TCP, flags=cm.RAI_PASSIVE)
    listener = cmid.CMID(creator=info, qp_init_attr=init())
    listener.listen()
    print("listening", flush=True)
    child = listener.get_request()
    child.accept()
    talk(child, False)
    child.disconnect()


def synchronous_client(address, port):
    one = cmid.CMID(creator=cmid.AddrInfo(dst=address, dst_service=port, port_space=TCP), qp_init_attr=init())
    one.connect()
    talk(one, True)
    one.disconnect()


def datagram_server(address, port):
    side = Side(UDP)
    side.listen(address, port)
    child = side.request(ASKED)
    child.create_qp(init(e.IBV_QPT_UD))
    mr = child.reg_msgs(SIZE + 40)
    child.post_recv(mr)
    child.accept(param(ANSWERED, 136))
    wc = child.get_recv_comp()
    expect(wc.status == e.IBV_WC_SUCCESS and mr.read(8, 40) == b"datagram", "the datagram")
    ah = addr.AH(child.pd, wc=wc, port_num=1, grh=mr.buf)
    child.post_ud_send(mr, ah, rqpn=wc.src_qp, length=8)
    child.get_send_comp()


def datagram_client(address, port):
    side = Side(UDP)
    side.resolve(address, port)
    side.id.create_qp(init(e.IBV_QPT_UD))
    mr, outbox = side.id.reg_msgs(SIZE + 40), side.id.reg_msgs(8)
    side.id.post_recv(mr)
    side.id.connect(param(ASKED, 180))
    event = side.event(cm.RDMA_CM_EVENT_ESTABLISHED)
    where = cmid.UDParam(event)
    event.ack_cm_event()
    outbox.write(b"datagram", 8)
    ah = addr.AH(side.id.pd, attr=where.ah_attr)
    side.id.post_ud_send(outbox, ah, rqpn=where.qp_num)
    side.id.get_send_comp()
    wc = side.id.get_recv_comp()
    expect(wc.status == e.IBV_WC_SUCCESS and wc.byte_len == 48, "the answer")


def rping_message(one, mr, values):
    mr.write(struct.pack("!QII", *values), 16)
    one.post_send(mr, e.IBV_SEND_SIGNALED, 16)
    expect(one.get_send_comp().status == e.IBV_WC_SUCCESS, "send")


def rping_server(address, port, rounds=3):
    """rping -s: reads what the client has, and writes it back."""
    side = Side(TCP)
    side.listen(address, port)
    child = side.request(None)
    child.create_qp(init())
    inbox, outbox, data = child.reg_msgs(16), child.reg_msgs(16), child.reg_msgs(SIZE)
    child.post_recv(inbox)
    child.accept(cmid.ConnParam(resources=1, depth=1, retry=7, rnr_retry=7))
    side.passed(cm.RDMA_CM_EVENT_ESTABLISHED)
    for _ in range(rounds):
        for operation in (child.post_read, child.post_write):
            expect(child.get_recv_comp().status == e.IBV_WC_SUCCESS, "receive")
            where, rkey, size = struct.unpack("!QII", inbox.read(16, 0))
            child.post_recv(inbox)
            operation(data, min(size, SIZE), where, rkey, e.IBV_SEND_SIGNALED)
            expect(child.get_send_comp().status == e.IBV_WC_SUCCESS, "READ or WRITE")
            rping_message(child, outbox, (0, 0, 0))
        print(data.read(SIZE, 0).rstrip(b"\0").decode(), flush=True)
    end(side, child, False)


def rping_client(address, port, rounds=3):
    """rping -c."""
    side = Side(TCP)
    side.resolve(address, port)
    one = side.id
    one.create_qp(init())
    inbox, outbox = one.reg_msgs(16), one.reg_msgs(16)
    source, sink = one.reg_read(SIZE), one.reg_write(SIZE)
    one.post_recv(inbox)
    one.connect(cmid.ConnParam(resources=1, depth=1, retry=7, rnr_retry=7))
    side.passed(cm.RDMA_CM_EVENT_ESTABLISHED)
    for number in range(rounds):
        text = ("rdma-ping-%d: abcdefghijklmnopqrstuvwxyz" % number).encode().ljust(SIZE - 1, b".") + b"\0"
        source.write(text, SIZE)
        for mr in (source, sink):
            rping_message(one, outbox, (mr.buf, mr.rkey, SIZE))
            expect(one.get_recv_comp().status == e.IBV_WC_SUCCESS, "receive")
            one.post_recv(inbox)
        expect(sink.read(SIZE, 0) == text, "what came back")
    end(side, one, True)


def group(address, name):
    """Joins a multicast group; the identifier, and where the group is."""
    side = Side(UDP)
    side.id.bind_addr(cmid.AddrInfo(src=address, port_space=UDP))
    side.id.resolve_addr(cmid.AddrInfo(src=address, dst=name, port_space=UDP))
    side.passed(cm.RDMA_CM_EVENT_ADDR_RESOLVED)
    side.id.create_qp(q.QPInitAttr(qp_type=e.IBV_QPT_UD, cap=q.QPCap(max_send_wr=16, max_recv_wr=16)))
    mrs = [side.id.reg_msgs(GROUP_SIZE + 40) for _ in range(GROUP_COUNT)]
    for mr in mrs:
        side.id.post_recv(mr)
    side.id.join_multicast(addr=cmid.AddrInfo(src=name))
    event = side.event(cm.RDMA_CM_EVENT_MULTICAST_JOIN)
    where = cmid.UDParam(event)
    event.ack_cm_event()
    print("listening", flush=True)
    return side, mrs, where


def group_server(address, name):
    """mckey: receives. The argument "port" is the group."""
    side, mrs, _ = group(address, name)
    for _ in mrs:
        wc = side.id.get_recv_comp()
        expect(
            wc.status == e.IBV_WC_SUCCESS and wc.byte_len == GROUP_SIZE + 40,
            "a datagram to the group: status %d, %d bytes, from QP %#x" % (wc.status, wc.byte_len, wc.src_qp),
        )


def group_client(address, name):
    """mckey -s: sends."""
    side, mrs, where = group(address, name)
    ah = addr.AH(side.id.pd, attr=where.ah_attr)
    for mr in mrs:
        side.id.post_ud_send(mr, ah, rqpn=where.qp_num, length=GROUP_SIZE)
        expect(side.id.get_send_comp().status == e.IBV_WC_SUCCESS, "send")


CASES = {
    "client ends": (lambda a, p: connect_server(a, p, False), lambda a, p: connect_client(a, p, True)),
    "server ends": (lambda a, p: connect_server(a, p, True), lambda a, p: connect_client(a, p, False)),
    "reject": (reject_server, reject_client),
    "nobody": (nobody_server, nobody_client),
    "synchronous": (synchronous_server, synchronous_client),
    "datagram": (datagram_server, datagram_client),
    "rping": (rping_server, rping_client),
    "mckey": (group_server, group_client),
}


def main():
    if sys.argv[1:] == ["cases"]:
        print("\n".join(CASES))
        return 0
    role, case, address, port = sys.argv[1:]
    try:
        CASES[case][role == "client"](address, port)
    except (AssertionError, pyverbs_error.PyverbsError):
        traceback.print_exc()
        return 1
    print("OK", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
