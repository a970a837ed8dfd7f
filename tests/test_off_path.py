# SPDX-License-Identifier: MIT
"""Another user of this host, who is not on the path: what he sends in a peer's name has no effect.

With another port than 4791 he may know every number. From port 4791, of an address that nobody has, he can name any
address of this host as the source (IP_PKTINFO, ip(7)); then he has to guess the numbers, and no device begins with one
that can be.
"""

import os
import random
import select
import socket
import struct
from collections.abc import Callable, Iterator

import pytest
from tests.forked import in_child
from tests.netsim import frames
from tests.netsim.frames import OPCODES, Seal, put_aeth, put_bth, put_reth

import softverbs as sv
from softverbs.cm.addresses import of_gid
from softverbs.cm.events import Event
from softverbs.cm.identity import PS_TCP, Identity
from softverbs.cm.messages import Dreq, Rej, Req
from softverbs.cm.service import service_of
from softverbs.device import Device
from softverbs.links import address_of, udp_socket

NOBODY = 65534
PSN, QKEY, CM_QKEY = 0x5A17C3, 0x1234, 0x80010000
GROUP = bytes(10) + b"\xff\xff" + bytes([239, 77, 1, 9])
SIZE = 4096
#: Frames that guess, of each transport.
GUESSES = int(os.environ.get("SOFTVERBS_GUESSES", "2000"))


class End:
    """A device, and queue pairs of three types on it: RC and UC, which are connected, and UD, in a group."""

    def __init__(self, seed: int) -> None:
        self.device = Device(thread=False, seed=random.Random(seed).getrandbits(80))
        self.gid = self.device.link.gids[0]
        self.context = sv.Context(device=self.device)
        self.pd, self.cq = sv.PD(self.context), sv.CQ(self.context, 256)
        self.mr = sv.MR(self.pd, SIZE, 15)
        self.mr.write(b"secret" * 100, 600, 600)
        cap = sv.QPCap(max_send_wr=16, max_recv_wr=16)
        made = [sv.QP(self.pd, sv.QPInitAttr(qp_type=kind, scq=self.cq, rcq=self.cq, cap=cap)) for kind in (2, 3, 4)]
        self.rc, self.uc, self.ud = made

    def connect(self, other: "End") -> None:
        for mine, theirs in ((self.rc, other.rc), (self.uc, other.uc)):
            attr = sv.QPAttr(port_num=1, qp_state=0)
            attr.qp_access_flags, attr.path_mtu = 15, 3
            attr.dest_qp_num, attr.rq_psn, attr.sq_psn = theirs.qp_num, PSN, PSN
            attr.max_dest_rd_atomic = attr.max_rd_atomic = 16
            attr.timeout, attr.retry_cnt, attr.rnr_retry, attr.min_rnr_timer = 14, 7, 7, 1
            where = sv.GlobalRoute(dgid=other.context.query_gid(1, 0), sgid_index=0)
            attr.ah_attr = sv.AHAttr(gr=where, is_global=1, port_num=1)
            mine.to_rts(attr)
        attr = sv.QPAttr(port_num=1)
        attr.qkey = QKEY
        self.ud.to_rts(attr)
        for qp in (self.rc, self.uc, self.ud):
            qp.post_recv(sv.RecvWR(qp.qp_num, 1, [sv.SGE(self.mr.buf, 512, self.mr.lkey)]))


@pytest.fixture
def ends() -> Iterator[tuple[End, End]]:
    a, b = End(1), End(2)
    a.connect(b)
    b.connect(a)
    b.ud.attach_mcast(GROUP)
    yield a, b
    a.device.close()
    b.device.close()


def in_another_process(act: Callable[[], None]) -> None:
    """Has a child do it, as nobody where this process is root's."""

    def act_as_nobody() -> None:
        if os.geteuid() == 0:
            os.setgroups([])
            os.setresgid(NOBODY, NOBODY, NOBODY)
            os.setresuid(NOBODY, NOBODY, NOBODY)
        act()

    in_child(act_as_nobody)


def take(end: End) -> int:
    """Lets a device take everything that has come; how many frames its link has let pass."""
    before = end.device.link.stats()["frames_received"]
    while end.device.progress() or select.select(end.device.link.filenos(), [], [], 0)[0]:
        pass
    return int(end.device.link.stats()["frames_received"] - before)


def check_untouched(a: End, b: End) -> None:
    """Nothing has been received, or written, and the true peers still understand each other."""
    assert b.cq.poll(16)[0] == 0
    assert b.mr.read(SIZE, 0) == bytes(600) + b"secret" * 100 + bytes(SIZE - 1200)
    for mine, theirs in ((a.rc, b.rc), (a.uc, b.uc)):
        mine.post_send(sv.SendWR(1, opcode=2, num_sge=1, sg=[sv.SGE(a.mr.buf, 8, a.mr.lkey)], send_flags=2))
        done: list[tuple[int, int]] = []
        for _ in range(10000):
            done += [(wc.status, wc.qp_num) for end in (a, b) for wc in end.cq.poll(16)[1]]
            if len(done) == 2:
                break
        assert sorted(done) == sorted([(0, mine.qp_num), (0, theirs.qp_num)])


def sealed(seal: Seal, opcode: str, qpn: int, psn: int, rest: bytes = b"") -> bytes:
    return seal(put_bth(OPCODES[opcode], qpn, psn) + rest)


def forged(seal: Seal, b: End, qpns: tuple[int, int, int], psn: int, rkey: int) -> list[bytes]:
    """Everything that could have an effect, for queue pairs of type RC, UC and UD."""
    rc, uc, ud = qpns
    target = put_reth(b.mr.buf + 1024, rkey, 16) + b"written by nobod"
    deth = struct.pack(">II", QKEY, 7)
    return [
        sealed(seal, "RC_SEND_ONLY", rc, psn, b"forged!!"),
        sealed(seal, "RC_RDMA_WRITE_ONLY", rc, psn, target),
        sealed(seal, "RC_RDMA_READ_REQUEST", rc, psn, put_reth(b.mr.buf + 600, rkey, 16)),
        sealed(seal, "RC_FETCH_ADD", rc, psn, struct.pack(">QIQQ", b.mr.buf + 1024, rkey, 5, 0)),
        sealed(seal, "RC_ACKNOWLEDGE", rc, psn, put_aeth(frames.ACK)),
        sealed(seal, "RC_ACKNOWLEDGE", rc, psn, put_aeth(frames.NAK_ACCESS)),
        sealed(seal, "UC_SEND_ONLY", uc, psn, b"forged!!"),
        sealed(seal, "UC_RDMA_WRITE_ONLY", uc, psn, target),
        sealed(seal, "UD_SEND_ONLY", ud, psn, deth + b"forged!!"),
    ]


def test_from_another_port_not_even_one_who_knows_every_number(ends: tuple[End, End]) -> None:
    a, b = ends
    events: list[Event] = []
    with b.device.lock:
        listener = Identity(b.device, PS_TCP, events.append)
        listener.bind(of_gid(b.gid, 7000))
        listener.listen(0)
        mads = [
            Req(service_id=PS_TCP << 16 | 7000, local_comm_id=5, qpn=a.rc.qp_num, starting_psn=PSN).encode(),
            Dreq(local_comm_id=5, remote_comm_id=5, remote_qpn=b.rc.qp_num).encode(),
            Rej(local_comm_id=5, remote_comm_id=5, reason=8).encode(),
        ]
        received = service_of(b.device).stats()

    def act() -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            sock.setsockopt(socket.IPPROTO_IP, udp_socket.IP_MTU_DISCOVER, udp_socket.PMTUDISC_DO)
            sock.bind((address_of(a.gid), 0))
            port = sock.getsockname()[1]
            seal, to_group = Seal(a.gid, b.gid, port), Seal(a.gid, GROUP, port)
            sent = forged(seal, b, (b.rc.qp_num, b.uc.qp_num, b.ud.qp_num), PSN, b.mr.rkey)
            deth = struct.pack(">II", CM_QKEY, 1)
            for frame in [*sent, *(sealed(seal, "UD_SEND_ONLY", 1, 0, deth + mad) for mad in mads)]:
                sock.sendto(frame, (address_of(b.gid), 4791))
            sock.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton("127.0.0.1"))
            group = sealed(to_group, "UD_SEND_ONLY", 0xFFFFFF, 0, struct.pack(">II", QKEY, 7) + b"forged!!")
            sock.sendto(group, (address_of(GROUP), 4791))

    in_another_process(act)
    assert take(b) == 0
    assert b.device.link.stats()["receive_stranger"] == 9 + len(mads) + 1
    assert not events and service_of(b.device).stats() == received
    check_untouched(a, b)


def test_from_port_4791_one_who_has_to_guess(ends: tuple[End, End]) -> None:
    a, b = ends
    draw = random.Random(7)

    def act() -> None:
        seal = Seal(a.gid, b.gid)
        with udp_socket.open_loopback_socket(4791) as sock:
            source = [(socket.IPPROTO_IP, 8, struct.pack("=i4s4s", 0, a.gid[12:], bytes(4)))]  # IP_PKTINFO
            for number in range(GUESSES):
                # The numbers of a device that has made little, and any number.
                likely = draw.randrange(256) << 16 | draw.choice((16, 17, 18))
                qpns = tuple(draw.choice((likely, draw.getrandbits(24))) for _ in range(3))
                psn = draw.choice((0, PSN, draw.getrandbits(24)))
                rkey = draw.choice((draw.randrange(1 << 12), draw.getrandbits(32)))
                for frame in forged(seal, b, qpns, psn, rkey):  # type: ignore[arg-type]
                    sock.sendmsg([frame], source, 0, (address_of(b.gid), 4791))
                if number % 50 == 0:
                    os.sched_yield()

    in_another_process(act)
    assert take(b) > 0, "it was heard"
    assert b.device.port.stats()["dropped_unknown_qp"] == b.device.port.stats()["frames_received"] > 0
    check_untouched(a, b)


def test_numbers_begin_where_nobody_can_guess() -> None:
    """Of a few devices no two have begin alike, in any part of a number that a peer could know."""
    numbers: dict[str, list[int]] = {}
    for _ in range(24):
        with Device(thread=False) as device:
            context = sv.Context(device=device)
            pd, cq = sv.PD(context), sv.CQ(context, 16)
            mr, qp = sv.MR(pd, 64, 15), sv.QP(pd, sv.QPInitAttr(qp_type=2, scq=cq, rcq=cq, cap=sv.QPCap()))
            srq = sv.SRQ(pd, sv.SrqInitAttr(sv.SrqAttr(max_wr=4, max_sge=1)))
            found = {"QP": qp.qp_num, "key": mr.rkey, "SRQ": srq._core.srq_num}
            with device.lock:
                service = service_of(device)
                found |= {"transaction": service.next_transaction() >> 32, "PSN": service.random.getrandbits(24)}
        for name, value in found.items():
            numbers.setdefault(name, []).append(value)
    for name, values in numbers.items():
        low = 8 if name == "key" else 0  # the low 8 bits are a tag
        for shift in (low, low + 8):
            assert len({value >> shift & 0xFFFF for value in values}) > 20, (name, values)


def test_the_seed_decides_on_numbers() -> None:
    """And with a small one they are small: tests rely on it."""

    def of(seed: int) -> tuple[int, int]:
        with Device(thread=False, seed=seed) as device:
            context = sv.Context(device=device)
            pd, cq = sv.PD(context), sv.CQ(context, 16)
            mr, qp = sv.MR(pd, 64, 15), sv.QP(pd, sv.QPInitAttr(qp_type=2, scq=cq, rcq=cq, cap=sv.QPCap()))
            return qp.qp_num, mr.rkey

    assert of(5) == (6 << 16 | 16, 1 << 8 | 6)
    assert of(1 << 79 | 77) == of(1 << 79 | 77)
    base = (1 << 24) - (6 << 16) - 16 + 3
    assert of(base << 8 | 5)[0] >= 16, "numbers below are for management"
