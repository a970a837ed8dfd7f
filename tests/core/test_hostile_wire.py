# SPDX-License-Identifier: MIT
"""A port under attack: SOFTVERBS_PACKETS mutated packets, beside a connection that works.

The attacker has seen a whole session and knows every number: keys, queue pairs, PSNs; it can seal a frame, so that what
it makes up is not stopped by the ICRC. It may break its own connection. It must not

- make anything raise an exception,
- touch a byte that is not registered for it, or learn one,
- disturb the connection beside its own,

and every frame that is dropped is counted by its cause, which a few lines here predict.
"""

import ctypes
import os
import struct
from collections import Counter
from collections.abc import Iterator
from random import Random

import pytest
from tests.netsim import frames
from tests.netsim.frames import OPCODES
from tests.netsim.pair import (
    SIGNALED,
    SUCCESS,
    WR_CAS,
    WR_FAA,
    WR_READ,
    WR_SEND,
    WR_SEND_IMM,
    WR_SEND_INV,
    WR_WRITE,
    WR_WRITE_IMM,
    Pair,
    dropping,
)
from tests.netsim.sim import ALL, ERR, LOCAL_WRITE, MS, REMOTE_READ, RESET, RTR, SQD, Region, Sim, connect, move

from softverbs.core.queues.wr import SGE, RecvWR, SendWR
from softverbs.core.transport.qp import QueuePair

DEFAULT = {True: 100_000, False: 40_000}  # compiled, uncompiled
SECRET = b"Nobody may see this! "
#: Bytes of the headers behind the BTH, by opcode (IBA tables 38 and 39), of what the device knows.
HEADERS = {
    **dict.fromkeys((0x00, 0x01, 0x02, 0x04, 0x07, 0x08, 0x0E), 0), **dict.fromkeys((0x03, 0x05, 0x09, 0x16, 0x17), 4),
    **dict.fromkeys((0x06, 0x0A, 0x0C, 0x1D), 16), 0x0B: 20, 0x1C: 20, **dict.fromkeys((0x0D, 0x0F, 0x10, 0x11), 4),
    0x12: 12, 0x13: 28, 0x14: 28, 0xC0: 0,
}  # fmt: skip
NO_PAYLOAD = (0x0C, 0x11, 0x12, 0x13, 0x14, 0x1C)
# UC has the operations of RC up to the WRITEs; XRC those up to the SENDs with invalidate, its requests 4 bytes longer.
ANSWERS = (0x0D, 0x0E, 0x0F, 0x10, 0x11, 0x12)
HEADERS.update({opcode | 0x20: length for opcode, length in list(HEADERS.items()) if opcode < 0x0C})
HEADERS.update({
    opcode | 0xA0: length + (0 if opcode in ANSWERS else 4) for opcode, length in list(HEADERS.items()) if opcode < 0x18
})  # fmt: skip
HEADERS.update({0x64: 8, 0x65: 12, 0x81: 0})
NO_PAYLOAD += tuple(opcode | 0xA0 for opcode in NO_PAYLOAD if opcode < 0x18)
WILD = (0, 1, 3, 4, 8, 255, 0x7FFF, 0xFFFF, 1 << 23, (1 << 24) - 1, 1 << 31, (1 << 32) - 1, 1 << 63, (1 << 64) - 1)


def record() -> list[bytes]:
    """Frames of a session in which every opcode and every answer occurs, without their ICRC."""
    with Pair(path_mtu=1) as pair:
        a, b = pair.a, pair.b
        key = b.open_window(0, 64)
        for _ in range(4):
            b.receive(0, 700)
        a.post(WR_SEND, 0, 600)
        a.post(WR_SEND_IMM, 0, 700, imm=1)
        a.post(WR_SEND_INV, 0, 700, imm=key)
        a.post(WR_WRITE_IMM, 0, 700, 0, imm=2)
        a.post(WR_WRITE, 0, 1000, 0)
        a.post(WR_READ, 0, 1000, 0)
        a.post(WR_FAA, 0, 8, 0, add=1)
        a.post(WR_CAS, 0, 8, 0, add=1, swap=2)
        a.wait(8)
        key = b.open_window(0, 64)
        for opcode in (WR_SEND, WR_SEND_IMM, WR_SEND_INV, WR_WRITE_IMM, WR_WRITE, WR_READ):
            a.post(opcode, 0, 100, 0, imm=key)
        pair.sim.run_for(MS // 4)
        for _ in range(4):
            b.receive(0, 700)
        a.wait(6)
        pair.rule = dropping(frames.WRITE_FIRST)
        a.post(WR_WRITE, 0, 1000, 0)
        a.wait()
        a.post(WR_WRITE, 0, 8, 0, rkey=0)
        a.wait()
        return [frame[:-4] for _, frame in pair.wire]


class Attacker:
    """An address on the network, and whoever sits there."""

    def __init__(self, sim: Sim, victim: bytes) -> None:
        self.link = sim.network.link("10.0.0.66")
        self.gid = self.link.gids[0]
        self.seal = frames.Seal(self.gid, victim)
        self.sim = sim
        self.route = self.link.route(0, victim, 0, 0, 64)
        self.heard: list[bytes] = []
        self.buffer = (ctypes.c_char * 65536)()

    def send(self, data: bytes, segment: int) -> None:
        ctypes.memmove(self.buffer, data, len(data))
        assert self.link.send(self.sim.now, self.route, ctypes.addressof(self.buffer), len(data), segment)

    def listen(self) -> list[bytes]:
        """What the victim has sent since the last call."""
        while self.link.receive(self.sim.now, self):
            pass
        heard, self.heard = self.heard, []
        return heard

    # A link's sink.

    def peer(self, *_: object) -> object:
        return self

    def receive(self, _: object, address: int, length: int, segment: int) -> None:
        data = ctypes.string_at(address, length)
        self.heard += [data[start : start + segment] for start in range(0, length, segment)]


class Siege:
    """The victim, its attacker, and its friend."""

    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)
        self.sim = sim = Sim()
        self.victim = victim = sim.node(seed=1, bare=True)
        self.attacker = Attacker(sim, victim.gid)
        self.session = record()
        self.pd = victim.pd()
        self.cq = victim.cq(65536)
        self.qp: QueuePair = victim.qp(self.pd, self.cq, cap=(64, 64, 4, 4, 64))
        others = (
            ("readable", self.pd, LOCAL_WRITE | REMOTE_READ), ("own", self.pd, LOCAL_WRITE),
            ("foreign", victim.pd(), ALL), ("gone", self.pd, ALL),
        )  # fmt: skip
        self.open = victim.region(self.pd, 8192, ALL, iova=0x10000)
        self.regions: dict[str, Region] = {
            name: victim.region(pd, 4096, access, iova=0x100000 * number)
            for number, (name, pd, access) in enumerate(others, 1)
        }
        for name, region in self.regions.items():
            region.put(0, b"open to readers " * 256 if name == "readable" else (SECRET * 200)[:4096])
        self.results = victim.region(self.pd, 4096, LOCAL_WRITE, iova=0x900000)
        self.contents = {name: region.at(0, 4096) for name, region in self.regions.items()}
        self.keys = [region.key for region in (self.open, self.results, *self.regions.values())]
        self.regions["gone"].deregister()
        self.expected: Counter[str] = Counter()
        self.sent = 0
        self.restarts = 0
        self.next = 0
        self.beside = Beside(self)
        self.connect()

    # -- the connection that is attacked

    def connect(self) -> None:
        """Brings the attacked queue pair to life: with receives posted, and with requests that want answers."""
        rng, qp = self.rng, self.qp
        if qp.state != RESET:
            move(qp, RESET)
        self.restarts += 1
        values = {
            "rq_psn": rng.choice((0, 0xFFFFFF, rng.randrange(1 << 24))), "sq_psn": rng.choice((0, 0xFFFFFE)),
            "max_dest_rd_atomic": rng.choice((1, 4)), "rnr_retry": 3, "retry_cnt": 3, "path_mtu": 1,
        }  # fmt: skip
        connect(qp, self, self.victim, self.attacker, values.items())  # type: ignore[arg-type]
        for _ in range(rng.randrange(8)):
            size = rng.choice((0, 100, 1000))
            qp.post_recv(RecvWR(1, 1, [SGE(self.results.iova, size, self.results.key)]))
        for _ in range(rng.randrange(6)):
            self.post()
        if rng.random() < 0.05:
            move(qp, rng.choice((SQD, ERR, RESET)))

    @property
    def qp_num(self) -> int:
        """That of the attacker's queue pair, which is none."""
        return 0xABCDEF

    def post(self) -> None:
        opcode = self.rng.choice((WR_SEND, WR_WRITE, WR_READ, WR_FAA, WR_CAS))
        length = 8 if opcode in (WR_FAA, WR_CAS) else self.rng.choice((8, 700))
        wr = SendWR(2, opcode, 1, 0, [SGE(self.results.iova, length, self.results.key)], SIGNALED)
        wr.set_wr_atomic(7, 0x1000, 1, 2)
        self.qp.post_send(wr)

    # -- packets

    def packet(self) -> bytes:
        """A frame of the session, made to fit the present connection, and then spoilt."""
        rng = self.rng
        if rng.random() < 0.4:
            self.next = rng.randrange(len(self.session))  # else the session goes on, so that messages get somewhere
        frame = bytearray(self.session[self.next])
        self.next = (self.next + 1) % len(self.session)
        self._modernize(frame)
        if rng.random() < 0.2:
            return self._damaged(frame)
        for _ in range(rng.choice((0, 0, 0, 1, 1, 2, 3))):
            self._forge(frame)
        if rng.random() < 0.1:
            self._resize(frame)
        del frame[max(len(frame) & -4, 12) :]
        return self.attacker.seal(bytes(frame))

    def _modernize(self, frame: bytearray) -> None:
        """The numbers of now: queue pair, PSN, key and address."""
        rng = self.rng
        struct.pack_into(">I", frame, 4, self.qp.qp_num)
        requester = self.qp.requester
        psn = requester.una if frame[0] in (*frames.ANSWERS, 0xC0) else self.qp.responder.epsn
        if rng.random() < 0.2:
            psn += rng.randint(-3, 3)
        struct.pack_into(">I", frame, 8, frame[8] >> 7 << 31 | psn & 0xFFFFFF)
        if frame[0] in (0x06, 0x0A, 0x0B, 0x0C, 0x13, 0x14):
            struct.pack_into(">QI", frame, 12, self.open.iova + 8 * rng.randrange(64), self.open.key)

    def _damaged(self, frame: bytearray) -> bytes:
        """Without a thought, as by a bad cable."""
        rng = self.rng
        data = bytearray(self.attacker.seal(bytes(frame)))
        kind = rng.randrange(5)
        if kind == 0:
            return bytes(data[: rng.randrange(1, len(data))])
        if kind == 1:
            return bytes(data) + rng.randbytes(rng.randint(1, 64))
        if kind == 2:
            return rng.randbytes(rng.choice((1, 4, 12, 15, 16, 20, 64, 300)))
        for _ in range(rng.randint(1, 4)):
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        return bytes(data)

    def _forge(self, frame: bytearray) -> None:
        """With a thought: one field gets another value."""
        rng = self.rng
        kind = rng.choice(("opcode", "known opcode", "flags", "pkey", "qpn", "psn", "word", "range", "key", "syndrome"))
        if kind == "opcode":
            frame[0] = rng.randrange(256)
        elif kind == "known opcode":
            frame[0] = rng.choice(tuple(HEADERS))
        elif kind == "flags":
            frame[1] ^= 1 << rng.randrange(8)
        elif kind == "pkey":
            struct.pack_into(">H", frame, 2, rng.choice((0x7FFF, 0xFFFF, 0xFFFE, 0, rng.randrange(1 << 16))))
        elif kind == "qpn":
            number = rng.choice((self.beside.qp.qp_num, self.qp.qp_num ^ 1 << rng.randrange(24), 0, 1, 0xFFFFFF))
            struct.pack_into(">I", frame, 4, rng.choice((0, 0xFF << 24)) | number)
        elif kind == "psn":
            step = rng.choice((-(1 << 23), -1000, -2, -1, 1, 2, 1000, (1 << 23) - 1, rng.randrange(1 << 24)))
            struct.pack_into(">I", frame, 8, rng.choice((0, 1 << 31)) | (frames.psn(frame) + step) & 0xFFFFFF)
        elif len(frame) >= 28 and kind == "range":
            at = rng.choice((self.open.iova, self.open.iova + 8000, *(region.iova for region in self.regions.values())))
            struct.pack_into(">Q", frame, 12, (rng.choice((at, at, 0)) + rng.choice((*WILD, -8))) & (1 << 64) - 1)
            struct.pack_into(">I", frame, 24, rng.choice((*WILD[:-2], 8192)))
        elif len(frame) >= 28 and kind == "key":
            struct.pack_into(">I", frame, 20, rng.choice((*self.keys, rng.choice(self.keys) ^ 1 << rng.randrange(32))))
        elif kind == "syndrome" and len(frame) > 12:
            known = (0, 0x1F, 0x20, 0x2C, 0x3F, 0x40, 0x60, 0x61, 0x62, 0x63, 0x64, 0x7F)
            frame[12] = rng.choice((*known, rng.randrange(256)))
        elif len(frame) > 16:
            place = rng.randrange(12, len(frame) - 4)
            struct.pack_into(">I", frame, place, rng.choice(WILD) & 0xFFFFFFFF)

    def _resize(self, frame: bytearray) -> None:
        rng = self.rng
        if rng.random() < 0.5:
            del frame[rng.randrange(12, len(frame) + 1) :]
        else:
            frame += bytes(rng.choice((4, 8, 252, 256, 260, 4096, 60000)))

    # -- what must come of it

    def cause(self, frame: bytes) -> str:
        """Why this frame must be dropped; "" if it must not."""
        if len(frame) < 16 or len(frame) % 4:
            return "short"
        opcode, bits, pkey, qpn = struct.unpack(">BBHI", frame[:8])
        qpn &= 0xFFFFFF
        if bits & 15:
            return "version"
        if opcode not in HEADERS:
            return "opcode"
        payload = len(frame) - 4 - 12 - HEADERS[opcode]
        pad = bits >> 4 & 3
        if payload < pad or (payload > 0 and opcode in NO_PAYLOAD):
            return "malformed"
        if pkey & 0x7FFF != 0x7FFF:
            return "pkey"
        if qpn not in (self.qp.qp_num, self.beside.qp.qp_num):
            return "unknown_qp"
        if opcode >> 5 and opcode != 0xC0:
            return "transport"
        if qpn == self.beside.qp.qp_num:
            return "source"
        if self.qp.state < RTR or self.qp.state == ERR:
            return "qp_state"
        return "" if self.attacker.seal(frame[:-4]) == frame else "icrc"

    def attack(self, count: int) -> None:
        for _ in range(count):
            if self.rng.random() < 0.01:
                self._burst()
            else:
                self._one(self.packet())
            if self.sent % 50 == 0:
                self._look()
            if self.sent % 1000 == 0:
                self.beside.exchange()

    def _one(self, frame: bytes) -> None:
        cause = self.cause(frame)
        self.expected[cause] += 1
        self.attacker.send(frame, len(frame))
        self.victim.device.progress()
        self.sent += 1
        if self.qp.state == ERR and self.rng.random() < 0.3:
            self.connect()

    def _burst(self) -> None:
        """Several in one, cut at places of our choice: what becomes of each is not predicted."""
        before = self.victim.stats()
        data = b"".join(self.packet() for _ in range(self.rng.randint(2, 6)))[:60000]
        segment = self.rng.choice((len(data), self.rng.randint(len(data) // 60 + 1, len(data)), 32))
        if len(data) // segment > 60:
            segment = len(data)
        self.attacker.send(data, segment)
        self.victim.device.progress()
        self.sent += 1
        after = self.victim.stats()
        assert after["frames_received"] - before["frames_received"] == -(-len(data) // segment)
        for name, number in after.items():
            if name.startswith("dropped_"):
                self.expected[name.removeprefix("dropped_")] += number - before[name]

    def _look(self) -> None:
        """Nothing but what is allowed has happened; then the attacked connection is made anew, where it is broken."""
        stats = self.victim.stats()
        dropped = {name.removeprefix("dropped_"): count for name, count in stats.items() if name.startswith("dropped_")}
        assert dropped == {name: self.expected[name] for name in dropped}
        for frame in self.attacker.listen():
            assert SECRET[:12] not in frame, "the attacker has seen what is not for it"
        while self.cq.count():
            self.cq.poll(64)
        self.victim.events()
        if self.rng.random() < 0.1:
            self.sim.clock.now += 200 * MS
            self.victim.device.progress()
        if self.qp.state in (ERR, RESET, SQD) or self.rng.random() < 0.1:
            self.connect()

    def check_memory(self) -> None:
        for region in (self.open, self.results, *self.regions.values(), self.beside.region):
            assert region.untouched(), "something wrote beside a memory region"
        for name, content in self.contents.items():
            assert self.regions[name].at(0, 4096) == content, f"something wrote to the region {name!r}"


class Beside:
    """A connection between the victim and its friend, in which everything must go on as if nothing were."""

    def __init__(self, siege: Siege) -> None:
        self.sim = sim = siege.sim
        victim, friend = siege.victim, sim.node(seed=2)
        self.cq, self.friends_cq = victim.cq(), friend.cq()
        self.region = victim.region(siege.pd, 65536, ALL, iova=0x5000000)
        pd = friend.pd()
        self.far = friend.region(pd, 65536, ALL, iova=0x6000000)
        self.qp = victim.qp(siege.pd, self.cq)
        self.friend = friend.qp(pd, self.friends_cq)
        connect(self.qp, self.friend, victim, friend)
        connect(self.friend, self.qp, friend, victim)
        self.turns = 0

    def exchange(self) -> None:
        """A WRITE, a READ, a SEND and an addition in each direction."""
        self.turns += 1
        start = self.sim.now
        ends = ((self.qp, self.cq, self.region, self.far), (self.friend, self.friends_cq, self.far, self.region))
        data = bytes([self.turns % 255 + 1]) * 5000
        for (qp, cq, near, far), (other, _, _, _) in (ends, ends[::-1]):
            near.put(0, data)
            far.put(0x8000, (1000).to_bytes(8, "little"))
            other.post_recv(RecvWR(9, 1, [SGE(far.iova + 0x3000, 5000, far.key)]))
            requests = ((WR_WRITE, 0, 0x1800), (WR_READ, 0x5000, 0x1800), (WR_SEND, 0, 0), (WR_FAA, 0x7000, 0x8000))
            for opcode, at, to in requests:
                size = 8 if opcode == WR_FAA else 5000
                wr = SendWR(1, opcode, 1, 0, [SGE(near.iova + at, size, near.key)])
                wr.set_wr_atomic(far.key, far.iova + to, 5)
                qp.post_send(wr)
            self.sim.run_until(lambda cq=cq: cq.count() >= 4, 100 * MS)
            assert [wc.status for wc in cq.poll(4)] == [SUCCESS] * 4
            assert far.at(0x1800, 5000) == far.at(0x3000, 5000) == near.at(0x5000, 5000) == data
            assert (near.word(0x7000), far.word(0x8000)) == (1000, 1005)
            self.sim.run_until(lambda: self.cq.count() + self.friends_cq.count() == 1)
            assert [wc.status for wc in self.cq.poll(1) + self.friends_cq.poll(1)] == [SUCCESS]
        assert self.sim.now == start, "the connection beside has lost frames"


@pytest.fixture
def siege() -> Iterator[Siege]:
    siege = Siege(2026)
    with siege.sim:
        yield siege


def test_session_has_every_opcode(siege: Siege) -> None:
    codes = {frame[0] for frame in siege.session}
    unsupported = {OPCODES["RC_FLUSH"], OPCODES["RC_ATOMIC_WRITE"]}
    assert codes == {code for code in HEADERS if code < 0x20 or code == 0xC0} - unsupported
    syndromes = {frame[12] for frame in siege.session if frame[0] == frames.ACKNOWLEDGE}
    assert syndromes == {frames.ACK, frames.RNR | 12, frames.NAK_SEQUENCE, frames.NAK_ACCESS}


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_mutated_packets(siege: Siege, core_is_compiled: bool) -> None:
    count = int(os.environ.get("SOFTVERBS_PACKETS", DEFAULT[core_is_compiled]))
    siege.beside.exchange()
    siege.attack(count)
    siege._look()
    siege.beside.exchange()
    siege.check_memory()
    stats = siege.victim.stats()
    dropped = {name: number for name, number in stats.items() if name.startswith("dropped_")}
    print(f"{siege.sent} packets, {siege.restarts} connections, {siege.expected['']} taken, {dropped}")
    never = {name for name, number in dropped.items() if not number}
    other = {"dropped_group", "dropped_port_down", "dropped_qkey", "dropped_no_receive"}
    assert never == other, "every cause that one connection has, has happened"
    assert siege.expected[""] > count // 4, "many have come through to the queue pair"


def test_a_mutation_does_not_reach_memory_or_the_check_is_blind(siege: Siege) -> None:
    """The checks of this file see what they are there to see."""
    siege.regions["own"].put(100, b"!")
    with pytest.raises(AssertionError, match="'own'"):
        siege.check_memory()
    siege.regions["own"].put(100, SECRET[100 % 21 : 100 % 21 + 1])
    siege.check_memory()
    siege.expected["icrc"] += 1
    with pytest.raises(AssertionError):
        siege._look()
