# SPDX-License-Identifier: MIT
"""``softverbs pingpong --type``: uc, ud and srq, between two processes and with peers that do what rdma-core's do."""

import re
import socket
from collections.abc import Iterator

import pytest
from tests.cli.command import Ended, both, finish, invoke, run, server, start
from tests.cli.test_pingpong import ADDRESS, WIRE

from softverbs.cli import rc
from softverbs.cli.common import Fault
from softverbs.cli.exchange import ADDRESS_LENGTH, SHARED_ADDRESSES
from softverbs.cli.pingpong_side import SharedSide, Side, Task
from softverbs.device import Device
from softverbs.pyverbs import libibverbs_enums as e
from softverbs.pyverbs.addr import AH
from softverbs.pyverbs.cq import CQ
from softverbs.pyverbs.device import Context
from softverbs.pyverbs.mr import MR
from softverbs.pyverbs.pd import PD
from softverbs.pyverbs.qp import QP
from softverbs.pyverbs.srq import SRQ, SrqAttr, SrqInitAttr
from softverbs.pyverbs.wr import SGE, RecvWR, SendWR

GRH = 40
NOBODY = f"0000:000000:000000:{'0' * 32}".encode() + b"\0"


def check_output(done: Ended, size: int, iters: int, qps: int = 1) -> None:
    """What rdma-core's program prints, and a line of our own."""
    assert (done.code, done.err) == (0, "")
    lines = done.out.splitlines()
    words = ["local address: "] * qps + ["remote address:"] * qps
    for line, word in zip(lines, words, strict=False):
        assert re.fullmatch(f"  {word} {ADDRESS}", line)
    first, second, third = lines[2 * qps :]
    assert re.fullmatch(rf"{2 * size * iters} bytes in \d+\.\d\d seconds = \d+\.\d\d Mbit/sec", first)
    assert re.fullmatch(rf"{iters} iters in \d+\.\d\d seconds = \d+\.\d\d usec/iter", second)
    found = re.fullmatch(r"(\d+) messages received, each as it was sent", third)
    assert found is not None and iters <= int(found[1]) < iters + qps


# -- two processes


@pytest.mark.parametrize(
    ("kind", "words", "size", "iters"),
    [
        ("uc", ["-n", "20"], 4096, 20),
        ("uc", ["-n", "5", "-s", "5001", "-m", "256", "-e", "-r", "1"], 5001, 5),
        ("uc", ["-n", "5", "-s", "0"], 0, 5),
        ("ud", ["-n", "20"], 4096, 20),
        ("ud", ["-n", "20", "-s", "1", "-e", "-r", "2"], 1, 20),
        ("ud", ["-n", "5", "-s", "0", "-r", "1"], 0, 5),
        ("rc", ["-n", "5"], 4096, 5),
    ],
)
def test_one_queue_pair(kind: str, words: list[str], size: int, iters: int) -> None:
    for done in both("pingpong", ["--type", kind, *words], ["--type", kind, *words]):
        check_output(done, size, iters)


@pytest.mark.parametrize(
    ("words", "size", "iters", "qps"),
    [
        (["-n", "40"], 4096, 40, 16),
        (["-n", "20", "-q", "3", "-r", "3", "-s", "9000", "-e"], 9000, 20, 3),
        (["-n", "3", "-q", "1", "-s", "0"], 0, 3, 1),
        (["-n", "2", "-q", "5", "-s", "1"], 1, 2, 5),
    ],
)
def test_a_shared_queue(words: list[str], size: int, iters: int, qps: int) -> None:
    for done in both("pingpong", ["--type", "srq", *words], ["--type", "srq", *words]):
        check_output(done, size, iters, qps)


def test_a_shared_queue_under_loss() -> None:
    env = {"SOFTVERBS_FAULTS": "seed=3,drop=0.05,duplicate=0.05,reorder=0.05,corrupt=0.05"}
    words = ["--type", "srq", "-n", "30", "-q", "4"]
    for done in both("pingpong", words, words, env=env):
        check_output(done, 4096, 30, 4)


@pytest.mark.parametrize("kind", ["uc", "ud"])
@pytest.mark.parametrize("faults", ["seed=1,drop=0.2", "seed=1,corrupt=0.2"])
def test_a_loss_ends_it_with_a_message(kind: str, faults: str) -> None:
    words = ["--type", kind, "-n", "200", "-s", "64", "--timeout", "1"]
    ends = both("pingpong", words, words, env={"SOFTVERBS_FAULTS": faults})
    for done in ends:
        assert done.code == 1
        text = f"softverbs: pingpong over {kind}, which does not repair losses: nothing has happened for 1 s\n"
        assert done.err == text


@pytest.mark.parametrize("kind", ["uc", "ud"])
def test_a_repeated_message_is_noticed(kind: str) -> None:
    """A packet that is a whole message is delivered twice by either."""
    words = ["--type", kind, "-n", "200", "-s", "64", "--timeout", "1"]
    ends = both("pingpong", words, words, env={"SOFTVERBS_FAULTS": "seed=1,duplicate=0.2"})
    assert [done.code for done in ends] == [1, 1]
    assert any(re.search(r"message (\d+) is message \d+ once more", done.err) for done in ends)


def test_numbers_of_queue_pairs_that_differ() -> None:
    here, there = both("pingpong", ["--type", "srq", "-q", "2"], ["--type", "srq", "-q", "3"])
    assert here.err == "softverbs: the peer has more QPs: give both sides the same -q\n"
    assert there.code == 1 and there.err.count("\n") == 1
    here, there = both("pingpong", ["--type", "srq", "-q", "3"], ["--type", "srq", "-q", "2"])
    assert here.err == "softverbs: the peer has fewer QPs: give both sides the same -q\n"


def test_types_that_differ() -> None:
    words = ["-n", "3", "-s", "100", "--timeout", "1"]
    for done in both("pingpong", ["--type", "uc", *words], ["--type", "ud", *words]):
        assert done.code == 1 and "nothing has happened for 1 s" in done.err


def test_sizes_that_differ() -> None:
    here, there = both(
        "pingpong", ["--type", "ud", "-s", "1000"], ["--type", "ud", "-s", "100", "-n", "3", "--timeout", "1"]
    )
    assert here.code == 1 and "message 0 has 100 bytes, not 1000: give both sides the same -s" in here.err
    assert there.code == 1


@pytest.mark.parametrize(
    ("words", "code", "line"),
    [
        (["--type", "ud", "-s", "4097"], 1, "softverbs: a datagram has at most 4096 bytes here, not 4097"),
        (
            ["--type", "srq", "-s", "1G"],
            1,
            "softverbs: 500 receives of 1073741824 bytes take too much memory: lower -r",
        ),
        (["--type", "ud", "-m", "1024"], 2, ".*-m is not for ud.*"),
        (["--type", "uc", "-q", "2"], 2, ".*-q is for --type srq; uc has one QP.*"),
        (["--type", "srq", "-q", "256"], 2, ".*1<=x<=255.*"),
        (["--type", "srq", "-r", "15"], 2, ".*-r 15 is not enough: each of 16 QPs needs a receive.*"),
        (["--type", "xrc"], 2, ".*'xrc' is not one of 'rc', 'uc', 'ud', 'srq'.*"),
    ],
)
def test_wrong_arguments(words: list[str], code: int, line: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        result = invoke("pingpong", "-p", str(listener.getsockname()[1]), *words, "127.0.0.1")
    assert result.exit_code == code
    assert re.fullmatch(line, result.stderr.strip()), result.stderr


# -- peers that do what rdma-core's programs do


class Peer:
    """QPs in this process that share one buffer, as rdma-core's programs have them."""

    def __init__(self, context: Context, kind: str, qps: int = 1) -> None:
        self.kind, self.ahead, self.pd = kind, GRH if kind == "ud" else 0, PD(context)
        self.cq = CQ(context, 256)
        self.region = MR(self.pd, 1 << 16, e.IBV_ACCESS_LOCAL_WRITE)
        self.srq = SRQ(self.pd, SrqInitAttr(SrqAttr(128, 1))) if kind == "srq" else None
        self.qps = [self._made() for _ in range(qps)]
        self.gid = context.query_gid(1, 0).raw
        self.handle: AH | None = None
        self.remote: list[int] = []

    def _made(self) -> QP:
        if self.kind == "ud":
            return rc.make_datagram_qp(self.pd, self.cq, self.cq, 4, 32, 0xABC)
        kind = e.IBV_QPT_UC if self.kind == "uc" else e.IBV_QPT_RC
        return rc.make_qp(self.pd, self.cq, self.cq, 4, 0 if self.srq else 32, qp_type=kind, srq=self.srq)

    @property
    def wire(self) -> bytes:
        """As it goes over TCP."""
        own = [f"0000:{qp.qp_num:06x}:000abc:{self.gid.hex()}".encode() + b"\0" for qp in self.qps]
        return b"".join(own) + NOBODY * (SHARED_ADDRESSES - len(own) if self.srq else 0)

    def join(self, wire: bytes) -> None:
        """Connects to what came over TCP."""
        texts = [wire[at : at + ADDRESS_LENGTH] for at in range(0, len(wire), ADDRESS_LENGTH)]
        assert texts[len(self.qps) :] == [NOBODY] * (SHARED_ADDRESSES - len(self.qps) if self.srq else 0)
        for qp, text in zip(self.qps, texts, strict=False):
            found = WIRE.fullmatch(text)
            assert found is not None, text
            gid, number, psn = bytes.fromhex(found[3].decode()), int(found[1], 16), int(found[2], 16)
            self.remote.append(number)
            if self.kind == "ud":
                self.handle = rc.address_handle(self.pd, rc.Way(), gid)
            else:
                rc.join(qp, rc.Way(mtu=e.IBV_MTU_1024), 0xABC, (gid, number, psn), 1)

    def post_receives(self, size: int, count: int) -> None:
        wr = RecvWR(1, 1, [SGE(self.region.buf, size + self.ahead, self.region.lkey)])
        for _ in range(count):
            (self.srq or self.qps[0]).post_recv(wr)

    def send(self, size: int, index: int = 0) -> None:
        element = SGE(self.region.buf + self.ahead, size, self.region.lkey)
        wr = SendWR(2, e.IBV_WR_SEND, 1, sg=[element], send_flags=e.IBV_SEND_SIGNALED)
        if self.handle is not None:
            wr.set_wr_ud(self.handle, self.remote[index], 0x11111111)
        self.qps[index].post_send(wr)

    def reap(self, count: int) -> None:
        found = rc.reap(self.cq, count, 30)
        assert [wc.reason for wc in found] == [""] * count

    def fill(self, size: int) -> None:
        """As with -c."""
        data = bytearray(b"\x7b" * size)
        data[::4096] = bytes(len(range(0, size, 4096)))
        self.region.write(bytes(data), size, self.ahead)

    def read(self, size: int) -> bytes:
        return bytes(self.region.read(size, self.ahead))


@pytest.fixture
def context() -> Iterator[Context]:
    with Device() as device, Context(device=device) as made:
        yield made


def receive(tcp: socket.socket, length: int) -> bytes:
    data = b""
    while len(data) < length:
        part = tcp.recv(length - len(data))
        assert part, data
        data += part
    return data


@pytest.mark.parametrize(("kind", "qps"), [("uc", 1), ("ud", 1), ("srq", 5)])
def test_our_server_with_their_client(context: Context, kind: str, qps: int) -> None:
    """The client closes the TCP connection before it begins."""
    size, iters, peer = 3000, 10, Peer(context, kind, qps)
    words = ["-q", str(qps)] if kind == "srq" else []
    with server("pingpong", "--type", kind, "-n", str(iters), "-s", str(size), *words) as (port, process):
        with socket.create_connection(("127.0.0.1", port)) as tcp:
            tcp.sendall(peer.wire)
            answer = receive(tcp, len(peer.wire))
            tcp.sendall(b"done\0")
        peer.join(answer)
        peer.post_receives(size, iters)
        peer.fill(size)
        sent = peer.read(size)
        for _ in range(iters // qps):
            for index in range(qps):
                peer.send(size, index)
            peer.reap(2 * qps)
            assert peer.read(size) == sent
        check_output(finish(process), size, iters, qps)


@pytest.mark.parametrize(("kind", "qps"), [("uc", 1), ("ud", 1), ("srq", 5)])
def test_our_client_with_their_server(context: Context, kind: str, qps: int) -> None:
    """The server sends back what its one buffer holds, whichever QP that came on."""
    size, iters, peer = 3000, 10, Peer(context, kind, qps)
    words = ["-q", str(qps)] if kind == "srq" else []
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = str(listener.getsockname()[1])
        process = start("pingpong", "--type", kind, "-n", str(iters), "-s", str(size), *words, "-p", port, "127.0.0.1")
        tcp, _ = listener.accept()
    with tcp:
        first = receive(tcp, len(peer.wire))
        peer.post_receives(size, iters + qps)
        peer.join(first)
        tcp.sendall(peer.wire)
        assert receive(tcp, 5) == b"done\0"
    for _ in range(iters // qps):
        peer.reap(qps)
        assert peer.read(size)[:1] == b"\0"  # which rdma-core's programs look at with -c
        for index in range(qps):
            peer.send(size, index)
        peer.reap(qps)
    check_output(finish(process), size, iters, qps)


def test_a_stranger_s_datagram(context: Context) -> None:
    peer, stranger = Peer(context, "ud"), Peer(context, "ud")
    with server("pingpong", "--type", "ud", "-n", "3", "-s", "100") as (port, process):
        with socket.create_connection(("127.0.0.1", port)) as tcp:
            tcp.sendall(peer.wire)
            answer = receive(tcp, ADDRESS_LENGTH)
            tcp.sendall(b"done\0")
        stranger.join(answer)
        stranger.fill(100)
        stranger.send(100)
        done = finish(process)
    text = f"softverbs: datagram 0 is of QP 0x{stranger.qps[0].qp_num:06x}, which is not the peer's\n"
    assert (done.code, done.err) == (1, text)


def test_a_client_of_another_type(context: Context) -> None:
    peer = Peer(context, "srq", 2)
    with (
        server("pingpong", "--type", "uc") as (port, process),
        socket.create_connection(("127.0.0.1", port)) as tcp,
    ):
        tcp.sendall(peer.wire)
        receive(tcp, ADDRESS_LENGTH)
        done = finish(process)
    assert done.code == 1 and "do both sides have the same --type?" in done.err


def test_a_peer_without_a_gid(context: Context) -> None:
    with (
        server("pingpong", "--type", "ud") as (port, process),
        socket.create_connection(("127.0.0.1", port)) as tcp,
    ):
        tcp.sendall(f"0000:000010:000abc:{'0' * 32}".encode() + b"\0")
        done = finish(process)
    assert done.code == 1 and "the peer sent no GID" in done.err


# -- a side by itself


def test_receives_of_a_shared_queue_hold_no_message(context: Context) -> None:
    """So that a message that is not written is noticed, though all are the same."""
    side = SharedSide(context, rc.Way(), Task("srq", 100, 4, 10, False, False, 2))
    expected = side._contents.ours(0)
    assert all(side._region.read(100, 100 * slot) != expected for slot in range(4))
    assert side._region.read(100, 400) == expected


def test_a_datagram_without_its_header_is_noticed(context: Context) -> None:
    from softverbs.pyverbs.cq import WC

    side = Side(context, rc.Way(), Task("ud", 100, 4, 10, False, False))
    with pytest.raises(Fault, match="without a GRH"):
        side._got(WC(wr_id=1, byte_len=140), 0)


def test_help_names_the_types() -> None:
    assert "[rc|uc|ud|srq]" in run("pingpong", "--help").out
