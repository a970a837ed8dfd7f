# SPDX-License-Identifier: MIT
"""The attack of test_hostile_wire.py on the other transports: UD, the general service interface, groups, UC and XRC.

SOFTVERBS_DATAGRAMS mutated frames. The attacker knows every number. Nothing may raise an exception; no byte may be
written outside of what is posted or open to it, and none be shown; every frame that is dropped is counted by its cause.
"""

import os
import struct
from collections import Counter
from collections.abc import Iterator
from random import Random

import pytest
from tests.core.test_hostile_wire import HEADERS, NO_PAYLOAD, SECRET, WILD, Attacker
from tests.netsim import frames
from tests.netsim.pair import (
    SIGNALED,
    SUCCESS,
    WR_CAS,
    WR_FAA,
    WR_READ,
    WR_SEND,
    WR_SEND_IMM,
    WR_WRITE,
    WR_WRITE_IMM,
    End,
    Pair,
)
from tests.netsim.sim import (
    ALL,
    CAP,
    ERR,
    LOCAL_WRITE,
    MS,
    QPT_UC,
    QPT_UD,
    QPT_XRC_RECV,
    QPT_XRC_SEND,
    REMOTE_READ,
    RESET,
    RTR,
    RTS,
    SQE,
    Region,
    Sim,
    connect,
    move,
)

from softverbs.core.queues.srq import SharedReceiveQueue
from softverbs.core.queues.wr import SGE, RecvWR, SendWR
from softverbs.core.transport.qp import QueuePair

DEFAULT = {True: 60_000, False: 8_000}  # compiled, uncompiled
GROUP = bytes(10) + b"\xff\xff\xef\1\1\1"
EVERYBODY = 0xFFFFFF
QKEY, GSI_QKEY = 0x11223344, 0x80010000
UC, UD, XRC = 1, 3, 5  # the highest three bits of an opcode
STRIDE, ROOM, PLACES = 512, 400, 256  # receives: bytes from one to the next, bytes of each, how many
UNTOUCHED = b"\xee"
REQUESTS = (0x00, 0x01, 0x02, 0x03, 0x04, 0x05, 0x06, 0x07, 0x08, 0x09, 0x0A, 0x0B, 0x0C, 0x13, 0x14, 0x16, 0x17)


def record() -> list[bytes]:
    """Frames of sessions of each transport, without their ICRC."""
    session: list[bytes] = []
    for kind in (QPT_UC, QPT_UD, QPT_XRC_SEND):
        with Pair(kind=kind, path_mtu=1) as pair:
            for _ in range(12):
                pair.b.receive(0, 1000)
            operations = [(WR_SEND, 700), (WR_SEND_IMM, 700), (WR_SEND, 100), (WR_SEND_IMM, 100), (WR_SEND, 0)]
            if kind != QPT_UD:
                operations += [(WR_WRITE, 700), (WR_WRITE_IMM, 700), (WR_WRITE, 100), (WR_WRITE_IMM, 100)]
            if kind == QPT_XRC_SEND:
                operations += [(WR_READ, 700), (WR_READ, 100), (WR_FAA, 8), (WR_CAS, 8)]
            for opcode, length in operations:
                pair.a.post(opcode, 0, length, 0)
            pair.sim.settle()
            session += [frame[:-4] for _, frame in pair.wire]
    return session


class Receives:
    """Places in a region, each with something behind it that nobody may touch; posted again and again."""

    def __init__(self, region: Region) -> None:
        self.region = region
        region.put(0, UNTOUCHED * region.size)
        self.next = 0

    def wr(self) -> RecvWR:
        place = self.next = (self.next + 1) % PLACES
        return RecvWR(place, 1, [SGE(self.region.iova + STRIDE * place, ROOM, self.region.key)])

    def check(self) -> None:
        assert self.region.untouched(), "something wrote beside the receives"
        for place in range(PLACES):
            behind = self.region.at(STRIDE * place + ROOM, STRIDE - ROOM)
            assert behind == UNTOUCHED * (STRIDE - ROOM), f"something wrote behind the receive at {place}"


class Siege:
    """The victim with a queue pair of each kind, and its attacker."""

    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)
        self.session = record()
        self.sim = sim = Sim()
        self.victim = victim = sim.node(seed=1, bare=True)
        self.attacker = Attacker(sim, victim.gid)
        self.group_seal = frames.Seal(self.attacker.gid, GROUP)
        self.group_route = self.attacker.link.route(0, GROUP, 0, 0, 64)
        self.pd, self.cq = victim.pd(), victim.cq(65536)
        regions = {"open": ALL, "readable": LOCAL_WRITE | REMOTE_READ, "own": LOCAL_WRITE, "foreign": ALL}
        self.regions = {
            name: victim.region(victim.pd() if name == "foreign" else self.pd, 4096, access, iova=0x100000 * number)
            for number, (name, access) in enumerate(regions.items(), 1)
        }
        for name in ("own", "foreign"):
            self.regions[name].put(0, (SECRET * 200)[:4096])
        self.regions["readable"].put(0, b"open to readers " * 256)
        self.contents = {name: region.at(0, 4096) for name, region in self.regions.items() if name != "open"}
        self.receives = Receives(victim.region(self.pd, STRIDE * PLACES, LOCAL_WRITE, iova=0x2000000))
        self._make_queues()
        self.expected: Counter[str] = Counter()
        self.sent = self.restarts = 0
        for name in self.qps:
            self.connect(name)
        for name in ("ud", "ud srq"):
            self.qps[name].attach_mcast(GROUP, 0)

    def _make_queues(self) -> None:
        victim, pd, cq = self.victim, self.pd, self.cq
        xrcd = victim.xrcd()
        self.srqs: dict[str, SharedReceiveQueue] = {
            "basic": victim.srq(pd), "xrc": victim.srq(pd, xrcd=xrcd, cq=cq),
            "other domain": victim.srq(pd, xrcd=victim.xrcd(), cq=cq),
        }  # fmt: skip
        basic = self.srqs["basic"]
        self.qps: dict[str, QueuePair] = {
            "ud": victim.qp(pd, cq, kind=QPT_UD), "ud srq": victim.qp(pd, cq, kind=QPT_UD, srq=basic),
            "gsi": victim.qp(pd, cq, kind=QPT_UD, number=1), "uc": victim.qp(pd, cq, kind=QPT_UC),
            "uc srq": victim.qp(pd, cq, kind=QPT_UC, srq=basic),
            "tgt": victim.qp(None, None, kind=QPT_XRC_RECV, xrcd=xrcd), "ini": victim.qp(pd, cq, kind=QPT_XRC_SEND),
        }  # fmt: skip
        self.by_number = {qp.qp_num: qp for qp in self.qps.values()}
        self.by_transport = {
            UC: [self.qps["uc"], self.qps["uc srq"]], UD: [self.qps[name] for name in ("ud", "ud srq", "gsi")],
            XRC: [self.qps["tgt"], self.qps["ini"]],
        }  # fmt: skip

    @property
    def qp_num(self) -> int:
        """That of the attacker's queue pair, which is none."""
        return 0xABCDEF

    def connect(self, name: str) -> None:
        qp = self.qps[name]
        if qp.state == SQE:
            move(qp, RTS)
            return
        if qp.state != RESET:
            move(qp, RESET)
        self.restarts += 1
        if qp.qp_type == QPT_UD:
            connect(qp, None, self.victim, None, qkey=GSI_QKEY if name == "gsi" else QKEY)
        else:
            values = {"path_mtu": 1, "retry_cnt": 3, "rnr_retry": 3, "rq_psn": self.rng.randrange(1 << 24)}
            connect(qp, self, self.victim, self.attacker, values.items())  # type: ignore[arg-type]

    def supply(self) -> None:
        """Nobody lacks a receive, and the initiator has something under way."""
        for qp in (*self.by_transport[UD], *self.by_transport[UC]):
            while qp.srq is None and qp.receives.ring.count() < 12 and qp.state != ERR:  # type: ignore[union-attr]
                qp.post_recv(self.receives.wr())
        for srq in self.srqs.values():
            while srq.ring.count() < 24:
                srq.post_recv(self.receives.wr())
        ini = self.qps["ini"]
        if ini.state == RTS and ini.sends.ring.count() < 3:
            opcode = self.rng.choice((WR_SEND, WR_WRITE, WR_READ, WR_FAA))
            region = self.regions["open"]
            size = 8 if opcode == WR_FAA else self.rng.choice((8, 600))
            wr = SendWR(2, opcode, 1, 0, [SGE(region.iova, size, region.key)], SIGNALED)
            wr.set_wr_atomic(7, 0x1000, 1, 2)
            wr.set_qp_type_xrc(5)
            ini.post_send(wr)

    # -- packets

    def packet(self) -> bytearray:
        """A frame that fits, spoilt by thought or by chance; without its ICRC."""
        rng = self.rng
        frame = bytearray(rng.choice(self.session))
        self._modernize(frame)
        for _ in range(rng.choice((0, 0, 0, 1, 1, 2, 3))):
            self._forge(frame)
        if rng.random() < 0.1:
            if rng.random() < 0.5:
                del frame[rng.randrange(12, len(frame) + 1) :]
            else:
                frame += bytes(rng.choice((4, 8, 252, 256, 260, 4096, 60000)))
        del frame[max(len(frame) & -4, 12) :]
        return frame

    def _modernize(self, frame: bytearray) -> None:
        rng = self.rng
        transport = frame[0] >> 5
        qp = rng.choice(self.by_transport[transport])
        if transport == XRC:
            request = frame[0] & 0x1F in REQUESTS
            if rng.random() < 0.9:
                qp = self.qps["tgt" if request else "ini"]
            if request:
                name = "xrc" if rng.random() < 0.95 else rng.choice(tuple(self.srqs))
                struct.pack_into(">I", frame, 12, self.srqs[name].srq_num)
        elif transport == UD:
            struct.pack_into(">I", frame, 12, GSI_QKEY if qp.qp_num == 1 else QKEY)
        struct.pack_into(">I", frame, 4, qp.qp_num)
        psn = qp.requester.una if qp is self.qps["ini"] else qp.responder.epsn
        if rng.random() < 0.2:
            psn += rng.randint(-2, 2)
        struct.pack_into(">I", frame, 8, frame[8] >> 7 << 31 | psn & 0xFFFFFF)
        reth = 16 if transport == XRC else 12
        operation = frame[0] & 0x1F
        if transport != UD and operation in (0x06, 0x0A, 0x0B, 0x0C, 0x13, 0x14):
            region = self.regions["open"]
            struct.pack_into(">QI", frame, reth, region.iova + 8 * rng.randrange(64), region.key)

    def _forge(self, frame: bytearray) -> None:
        rng = self.rng
        kind = rng.choice(("opcode", "known opcode", "flags", "pkey", "qpn", "psn", "word", "header", "key"))
        if kind == "opcode":
            frame[0] = rng.randrange(256)
        elif kind == "known opcode":
            frame[0] = rng.choice(tuple(HEADERS))
        elif kind == "flags":
            frame[1] ^= 1 << rng.randrange(8)
        elif kind == "pkey":
            struct.pack_into(">H", frame, 2, rng.choice((0x7FFF, 0xFFFF, 0xFFFE, 0, rng.randrange(1 << 16))))
        elif kind == "qpn":
            number = rng.choice((*self.by_number, *self.by_number, 0, 2, EVERYBODY, rng.randrange(1 << 24)))
            struct.pack_into(">I", frame, 4, rng.choice((0, 0xFF << 24)) | number)
        elif kind == "psn":
            step = rng.choice((-(1 << 23), -2, -1, 1, 2, 1000, rng.randrange(1 << 24)))
            struct.pack_into(">I", frame, 8, rng.choice((0, 1 << 31)) | (frames.psn(frame) + step) & 0xFFFFFF)
        elif kind == "header" and len(frame) >= 16:
            struct.pack_into(">I", frame, 12, rng.choice((QKEY, GSI_QKEY, *WILD[:-2])) & 0xFFFFFFFF)
        elif kind == "key" and len(frame) >= 32:
            region = rng.choice(tuple(self.regions.values()))
            place = rng.choice((12, 16))
            struct.pack_into(">QI", frame, place, region.iova + rng.choice((0, 0, 4000, 4095, -8)), region.key)
        elif len(frame) > 16:
            place = rng.randrange(12, len(frame) - 4)
            struct.pack_into(">I", frame, place, rng.choice(WILD) & 0xFFFFFFFF)

    def damaged(self, frame: bytes) -> bytes:
        rng = self.rng
        kind = rng.randrange(4)
        if kind == 0:
            return frame[: rng.randrange(1, len(frame))]
        if kind == 1:
            return frame + rng.randbytes(rng.randint(1, 64))
        if kind == 2:
            return rng.randbytes(rng.choice((1, 4, 12, 15, 16, 20, 64, 300)))
        data = bytearray(frame)
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        return bytes(data)

    # -- what must come of it

    def cause(self, frame: bytes, group: bool) -> tuple[str, int]:
        """Why this frame must be dropped, and by how many; ("", 1) if it must not."""
        if len(frame) < 16 or len(frame) % 4:
            return "short", 1
        opcode, bits, pkey, qpn = struct.unpack(">BBHI", frame[:8])
        qpn &= 0xFFFFFF
        if bits & 15:
            return "version", 1
        if opcode not in HEADERS:
            return "opcode", 1
        payload, pad = len(frame) - 16 - HEADERS[opcode], bits >> 4 & 3
        if payload < pad or (payload > 0 and opcode in NO_PAYLOAD):
            return "malformed", 1
        if pkey & 0x7FFF != 0x7FFF:
            return "pkey", 1
        sealed = (self.group_seal if group else self.attacker.seal)(frame[:-4]) == frame
        if group:
            if qpn != EVERYBODY or opcode >> 5 != UD:
                return "group", 1
            if not sealed:
                return "icrc", 1
            members = [self.qps[name] for name in ("ud", "ud srq") if RTR <= self.qps[name].state != ERR]
            wrong = len(members) if struct.unpack(">I", frame[12:16])[0] != QKEY else 0
            return ("qkey", wrong) if wrong else ("", 1)
        qp = self.by_number.get(qpn)
        return ("unknown_qp", 1) if qp is None else self._cause_at(qp, opcode, frame, sealed)

    def _cause_at(self, qp: QueuePair, opcode: int, frame: bytes, sealed: bool) -> tuple[str, int]:
        transport = {QPT_UC: UC, QPT_UD: UD}.get(qp.qp_type, XRC)
        words = opcode == 0xC0 and qp is self.qps["ini"]  # why a request was refused
        if opcode >> 5 != transport and not words:
            return "transport", 1
        if transport == XRC and not words and (opcode & 0x1F in REQUESTS) != (qp is self.qps["tgt"]):
            return "transport", 1  # an initiator answers nothing, a target asks nothing
        if qp.state < RTR or qp.state == ERR:
            return "qp_state", 1
        if not sealed:
            return "icrc", 1
        if transport == UD and struct.unpack(">I", frame[12:16])[0] != (GSI_QKEY if qp.qp_num == 1 else QKEY):
            return "qkey", 1
        return "", 1

    def attack(self, count: int) -> None:
        for _ in range(count):
            self.supply()
            self._one()
            if self.sent % 50 == 0:
                self.look()

    def _one(self) -> None:
        rng = self.rng
        body = self.packet()
        group = body[0] >> 5 == UD and rng.random() < 0.2
        if group and rng.random() < 0.9:
            struct.pack_into(">I", body, 4, EVERYBODY)
        frame = (self.group_seal if group else self.attacker.seal)(bytes(body))
        if rng.random() < 0.1:
            frame = self.damaged(frame)
        cause, times = self.cause(frame, group)
        self.expected[cause] += times
        route, self.attacker.route = self.attacker.route, self.group_route if group else self.attacker.route
        self.attacker.send(frame, len(frame))
        self.attacker.route = route
        self.victim.device.progress()
        self.sent += 1
        for name, qp in self.qps.items():
            if qp.state in (ERR, SQE) and rng.random() < 0.3:
                self.connect(name)

    def look(self) -> None:
        """Nothing but what is allowed has happened."""
        stats = self.victim.stats()
        dropped = {name.removeprefix("dropped_"): count for name, count in stats.items() if name.startswith("dropped_")}
        assert dropped == {name: self.expected[name] for name in dropped}
        for frame in self.attacker.listen():
            assert SECRET[:12] not in frame, "the attacker has seen what is not for it"
        while self.cq.count():
            for wc in self.cq.poll(64):
                assert wc.status != SUCCESS or wc.opcode < 128 or wc.opcode == 129 or wc.byte_len <= ROOM
        self.victim.events()
        if self.rng.random() < 0.1:
            self.sim.clock.now += 200 * MS
            self.victim.device.progress()

    def check_memory(self) -> None:
        self.receives.check()
        for name, region in self.regions.items():
            assert region.untouched(), f"something wrote beside the region {name!r}"
            if name in self.contents:
                assert region.at(0, 4096) == self.contents[name], f"something wrote to the region {name!r}"


@pytest.fixture
def siege() -> Iterator[Siege]:
    siege = Siege(2027)
    with siege.sim:
        yield siege


def test_sessions_have_every_opcode(siege: Siege) -> None:
    codes = {frame[0] for frame in siege.session}
    assert codes >= {code for code in HEADERS if code >> 5 in (UC, UD)}
    assert codes >= {0xA0 | code for code in REQUESTS if code not in (0x16, 0x17)}


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_mutated_datagrams(siege: Siege, core_is_compiled: bool) -> None:
    count = int(os.environ.get("SOFTVERBS_DATAGRAMS", DEFAULT[core_is_compiled]))
    siege.attack(count)
    siege.look()
    siege.check_memory()
    stats = siege.victim.stats()
    dropped = {name: number for name, number in stats.items() if name.startswith("dropped_")}
    print(f"{siege.sent} frames, {siege.restarts} restarts, {siege.expected['']} taken, {dropped}")
    assert {name for name, number in dropped.items() if not number} == {
        "dropped_port_down", "dropped_no_receive", "dropped_source",
    }, "every other cause has happened"  # fmt: skip
    assert siege.expected[""] > count // 4


def test_all_goes_on_afterwards(siege: Siege) -> None:
    """A datagram of a friend still arrives."""
    siege.attack(500)
    for name in siege.qps:
        if siege.qps[name].state == ERR:
            siege.connect(name)
    siege.supply()
    friend = End(siege.sim.node(seed=9), 4096, CAP, QPT_UD)
    connect(friend.qp, None, friend.node, None)
    handle = friend.handle(siege.victim.gid)
    siege.cq.poll(65536)
    for name in ("ud", "ud srq"):
        friend.post(WR_SEND, 0, 64, handle=handle, qpn=siege.qps[name].qp_num, qkey=QKEY)
    siege.sim.run_for(0)
    found = [wc for wc in siege.cq.poll(64) if wc.src_qp == friend.qp.qp_num]
    assert [wc.status for wc in found] == [SUCCESS] * 2


def test_the_checks_see_what_they_are_there_to_see(siege: Siege) -> None:
    siege.receives.region.put(ROOM + 1, b"!")
    with pytest.raises(AssertionError, match="behind the receive"):
        siege.check_memory()
    siege.expected["qkey"] += 1
    with pytest.raises(AssertionError):
        siege.look()
