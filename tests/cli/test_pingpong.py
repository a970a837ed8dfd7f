# SPDX-License-Identifier: MIT
"""``softverbs pingpong``: two processes; and the protocol of ibv_rc_pingpong, byte by byte, with scripted peers."""

import re
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from tests.cli.command import Ended, both, finish, free_port, invoke, run, server, start

from softverbs.cli import rc
from softverbs.cli.common import Fault
from softverbs.cli.pingpong_side import Contents
from softverbs.device import Device
from softverbs.pyverbs import libibverbs_enums as e
from softverbs.pyverbs.cq import CQ
from softverbs.pyverbs.device import Context
from softverbs.pyverbs.mr import MR
from softverbs.pyverbs.pd import PD
from softverbs.pyverbs.qp import QP
from softverbs.pyverbs.wr import SGE, RecvWR, SendWR

ADDRESS = r"LID 0x0000, QPN 0x[0-9a-f]{6}, PSN 0x[0-9a-f]{6}, GID ::ffff:127\.\d+\.\d+\.\d+"
WIRE = re.compile(rb"0000:([0-9a-f]{6}):([0-9a-f]{6}):(00000000000000000000ffff7f[0-9a-f]{6})\0")


def check_output(done: Ended, size: int, iters: int) -> None:
    """What ibv_rc_pingpong prints, and a line of our own."""
    assert (done.code, done.err) == (0, "")
    lines = done.out.splitlines()
    assert re.fullmatch(f"  local address:  {ADDRESS}", lines[0])
    assert re.fullmatch(f"  remote address: {ADDRESS}", lines[1])
    assert re.fullmatch(rf"{2 * size * iters} bytes in \d+\.\d\d seconds = \d+\.\d\d Mbit/sec", lines[2])
    assert re.fullmatch(rf"{iters} iters in \d+\.\d\d seconds = \d+\.\d\d usec/iter", lines[3])
    assert lines[4:] == [f"{iters} messages received, each as it was sent"]


@pytest.mark.parametrize(
    ("words", "size", "iters"),
    [
        (["-n", "20"], 4096, 20),
        (["-n", "20", "-s", "0"], 0, 20),
        (["-n", "20", "-s", "1", "-e", "-r", "2"], 1, 20),
        (["-n", "20", "-s", "9", "-r", "1", "-c", "-l", "3"], 9, 20),
        (["-n", "5", "-s", "100K", "-m", "4096", "-e"], 102400, 5),
        (["-n", "5", "-s", "5001", "-m", "256", "-d", "softverbs0", "-i", "1", "-g", "0"], 5001, 5),
        (["-n", "1", "-s", "4097", "--timeout", "0"], 4097, 1),
    ],
)
def test_two_processes(words: list[str], size: int, iters: int) -> None:
    for done in both("pingpong", words, words):
        check_output(done, size, iters)


def test_the_sides_name_each_other() -> None:
    here, there = both("pingpong", ["-n", "3"], ["-n", "3"])
    first, second = here.out.splitlines(), there.out.splitlines()
    assert first[0].partition(":")[2].strip() == second[1].partition(":")[2].strip()
    assert first[1].partition(":")[2].strip() == second[0].partition(":")[2].strip()


def test_loss_corruption_and_reordering() -> None:
    env = {"SOFTVERBS_FAULTS": "seed=3,drop=0.05,duplicate=0.05,reorder=0.05,corrupt=0.05"}
    for _ in range(3):
        with server("pingpong", "-n", "20", env=env) as (port, process):
            client = run("pingpong", "-n", "20", "-p", str(port), "127.0.0.1", env=env)
            if client.code and "no answer came in time" in client.err:
                continue  # 8 x 67 ms have passed: on a busy machine the server may not run for so long
            check_output(client, 4096, 20)
            check_output(finish(process), 4096, 20)
            return
    raise AssertionError(f"three times in a row: {client.err}")


def test_given_addresses() -> None:
    with server("pingpong", "-n", "3", env={"SOFTVERBS_ADDRESS": "127.0.7.6,::1"}) as (port, process):
        client = run("pingpong", "-n", "3", "-p", str(port), "127.0.0.1", env={"SOFTVERBS_ADDRESS": "127.0.7.7"})
        check_output(client, 4096, 3)
        assert "GID ::ffff:127.0.7.7" in finish(process).out


def test_capture(tmp_path: Path) -> None:
    if shutil.which("tshark") is None:
        pytest.skip("no tshark here")
    file = tmp_path / "frames.pcap"
    _, client = both("pingpong", ["-n", "4", "-s", "3000"], ["-n", "4", "-s", "3000", "--pcap", str(file)])
    assert client.code == 0
    command = ["tshark", "-r", str(file), "-T", "fields", "-e", "infiniband.bth.opcode", "-e", "_ws.malformed"]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    opcodes = [int(line.strip()) for line in lines]  # nothing but the number: nothing is malformed
    assert [opcodes.count(kind) for kind in (0, 1, 2)] == [8, 8, 8]  # SEND first, middle, last


def test_sizes_that_differ() -> None:
    here, there = both("pingpong", ["-n", "3", "-s", "100"], ["-n", "3", "-s", "1000"])
    assert (here.code, there.code) == (1, 1)
    assert "IBV_WC_LOC_LEN_ERR" in here.err and here.err.count("\n") == 1
    assert "IBV_WC_REM_INV_REQ_ERR" in there.err and there.err.count("\n") == 1


def test_a_shorter_message() -> None:
    here, there = both("pingpong", ["-n", "3", "-s", "1000"], ["-n", "3", "-s", "100", "--timeout", "1"])
    assert here.code == 1 and "message 0 has 100 bytes, not 1000: give both sides the same -s" in here.err
    assert there.code == 1 and there.err.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "code", "line"),
    [
        (["-d", "mlx5_0"], 1, "softverbs: there is no device mlx5_0; there is softverbs0"),
        (["-g", "9"], 1, "softverbs: Failed to query gid .*index 9.*"),
        (["-i", "2"], 1, "softverbs: .*port_num.*"),
        (["-r", "1000000"], 1, "softverbs: .*cqe.*|softverbs: .*max_recv_wr.*"),
        (["-m", "1000"], 2, r".*256.*4096.*\(see softverbs pingpong --help\)"),
        (["-s", "x"], 2, r".*no size.*\(see softverbs pingpong --help\)"),
        (["--bind", "127.0.0.1"], 2, r".*--bind is for the server.*"),
    ],
)
def test_wrong_arguments_of_the_client(words: list[str], code: int, line: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        result = invoke("pingpong", "-p", str(listener.getsockname()[1]), *words, "127.0.0.1")
    assert result.exit_code == code
    assert re.fullmatch(line, result.stderr.strip()), result.stderr


def test_no_server() -> None:
    port = free_port()
    result = invoke("pingpong", "-p", str(port), "127.0.0.1")
    assert result.stderr.startswith(f"softverbs: cannot connect to 127.0.0.1 port {port}: ")
    assert result.exit_code == 1


# -- a peer that does what ibv_rc_pingpong does


class Peer(NamedTuple):
    """A QP in this process, with a buffer."""

    context: Context
    cq: CQ
    region: MR
    qp: QP

    @property
    def address(self) -> bytes:
        """As it goes over TCP."""
        gid = self.context.query_gid(1, 0).raw
        return f"0000:{self.qp.qp_num:06x}:000abc:{gid.hex()}".encode() + b"\0"

    def join(self, wire: bytes) -> None:
        """Connects to what came over TCP."""
        found = WIRE.fullmatch(wire)
        assert found is not None, wire
        peer = bytes.fromhex(found[3].decode()), int(found[1], 16), int(found[2], 16)
        rc.join(self.qp, rc.Way(mtu=e.IBV_MTU_1024), 0xABC, peer, 1)

    def element(self, size: int) -> SGE:
        return SGE(self.region.buf, size, self.region.lkey)

    def post_receives(self, size: int, count: int) -> None:
        for _ in range(count):
            self.qp.post_recv(RecvWR(1, 1, [self.element(size)]))

    def send(self, size: int) -> None:
        self.qp.post_send(SendWR(2, e.IBV_WR_SEND, 1, sg=[self.element(size)], send_flags=e.IBV_SEND_SIGNALED))

    def reap(self, count: int) -> None:
        found = rc.reap(self.cq, count, 30)
        assert [wc.reason for wc in found] == [""] * count

    def fill(self, size: int, page: int) -> None:
        """As ``ibv_rc_pingpong -c`` does on a machine with pages of that size; without -c for 0."""
        data = bytearray(b"\x7b" * size)
        if page:
            data[::page] = bytes(len(range(0, size, page)))
        self.region.write(bytes(data), size)


@pytest.fixture
def peer() -> Iterator[Peer]:
    with Device() as device, Context(device=device) as context:
        pd, cq = PD(context), CQ(context, 64)
        yield Peer(context, cq, MR(pd, 1 << 17, e.IBV_ACCESS_LOCAL_WRITE), rc.make_qp(pd, cq, cq, 4, 32))


@pytest.mark.parametrize(("size", "page"), [(10000, 4096), (10000, 0), (70000, 65536), (70000, 16384), (1, 4096)])
def test_our_server_with_their_client(peer: Peer, size: int, page: int) -> None:
    """The client writes 52 bytes, reads 52, writes "done" with its zero, and closes; then it begins."""
    iters = 3
    with server("pingpong", "-n", str(iters), "-s", str(size)) as (port, process):
        with socket.create_connection(("127.0.0.1", port)) as tcp:
            tcp.sendall(peer.address)
            answer = tcp.recv(100)
            assert len(answer) == 52
            tcp.sendall(b"done\0")
        peer.join(answer)
        peer.post_receives(size, iters)
        peer.fill(size, page)
        sent = peer.region.read(size, 0)
        for _ in range(iters):
            peer.send(size)
            peer.reap(2)
            assert peer.region.read(size, 0) == sent
        check_output(finish(process), size, iters)


def test_our_client_with_their_server(peer: Peer) -> None:
    """The server answers once its QP is ready, reads "done" with its zero, closes, and sends back what it gets."""
    size, iters = 10000, 3
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = str(listener.getsockname()[1])
        process = start("pingpong", "-n", str(iters), "-s", str(size), "-p", port, "127.0.0.1")
        tcp, _ = listener.accept()
    with tcp:
        first = tcp.recv(100)
        peer.post_receives(size, iters)
        peer.join(first)
        tcp.sendall(peer.address)
        assert tcp.recv(100) == b"done\0"
    contents = set()
    for _ in range(iters):
        peer.reap(1)
        got = peer.region.read(size, 0)
        contents.add(got)
        assert got[::4096] == bytes(3)  # which ibv_rc_pingpong -c looks at
        peer.send(size)
        peer.reap(1)
    assert len(contents) == iters
    check_output(finish(process), size, iters)


def test_our_client_notices_wrong_data(peer: Peer) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = str(listener.getsockname()[1])
        process = start("pingpong", "-n", "3", "-s", "100", "-p", port, "127.0.0.1")
        tcp, _ = listener.accept()
    with tcp:
        peer.post_receives(100, 3)
        peer.join(tcp.recv(100))
        tcp.sendall(peer.address)
    peer.reap(1)
    wrong = bytearray(peer.region.read(100, 0))
    wrong[77] ^= 1
    peer.region.write(bytes(wrong), 100)
    peer.send(100)
    done = finish(process)
    assert done.code == 1
    assert re.fullmatch("softverbs.*: invalid data in message 0: byte 77 is 0x.., not 0x..\n", done.err)


def test_our_server_notices_wrong_data(peer: Peer) -> None:
    with server("pingpong", "-n", "3", "-s", "5000") as (port, process):
        with socket.create_connection(("127.0.0.1", port)) as tcp:
            tcp.sendall(peer.address)
            peer.join(tcp.recv(100))
            tcp.sendall(b"done\0")
        peer.fill(5000, 4096)
        peer.region.write(b"x", 1, 4999)
        peer.send(5000)
        done = finish(process)
    assert done.code == 1 and "invalid data in message 0" in done.err


@pytest.mark.parametrize(
    ("wire", "words"),
    [
        (b"0000:000010:000abc:" + b"0" * 32 + b"\0", "the peer sent no GID"),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\nAccept: */*\r\n\r\n........", "no address of ibv_rc_pingpong"),
        (b"0000:", "the peer has closed the connection"),
    ],
)
def test_a_peer_that_is_something_else(wire: bytes, words: str) -> None:
    with server("pingpong") as (port, process), socket.create_connection(("127.0.0.1", port)) as tcp:
        tcp.sendall(wire)
        tcp.shutdown(socket.SHUT_WR)
        done = finish(process)
    assert done.code == 1
    assert words in done.err and done.err.count("\n") == 1


def test_a_peer_that_falls_silent(peer: Peer) -> None:
    with server("pingpong", "--timeout", "1") as (port, process):
        with socket.create_connection(("127.0.0.1", port)) as tcp:
            tcp.sendall(peer.address)
            peer.join(tcp.recv(100))
            tcp.sendall(b"done\0")
        done = finish(process)
    assert (done.code, done.err) == (1, "softverbs: pingpong: nothing has happened for 1 s\n")


def test_a_client_that_does_not_say_done(peer: Peer) -> None:
    with server("pingpong") as (port, process), socket.create_connection(("127.0.0.1", port)) as tcp:
        tcp.sendall(peer.address)
        tcp.recv(100)
        tcp.sendall(b"okay!")
        done = finish(process)
    assert done.code == 1 and "did not say that it has our address" in done.err


# -- what the messages hold


def test_messages_differ_and_begin_pages_with_0() -> None:
    contents = Contents(9000)
    first, second = contents.ours(0), contents.ours(1)
    assert first != second
    assert first[::4096] == second[::4096] == bytes(3)


@pytest.mark.parametrize("size", [0, 1, 8, 9, 5000])
def test_a_server_knows_our_messages(size: int) -> None:
    server_side, client_side = Contents(size), Contents(size)
    for number in range(3):
        server_side.check(client_side.ours(number), number, True)


def test_a_server_does_not_take_an_old_message_for_a_new_one() -> None:
    server_side, client_side = Contents(100), Contents(100)
    server_side.check(client_side.ours(0), 0, True)
    with pytest.raises(Fault, match="message 1 is message 0 once more"):
        server_side.check(client_side.ours(0), 1, True)


def test_a_client_does_not_take_their_fill_for_its_own() -> None:
    with pytest.raises(Fault, match="message 0"):
        Contents(100).check(b"\x7b" * 100, 0, False)


def test_a_server_knows_what_older_programs_send() -> None:
    """ibv_srq_pingpong of rdma-core 44 fills its messages with 0."""
    contents = Contents(5000)
    contents.check(bytes(5000), 0, True)
    with pytest.raises(Fault, match="message 1"):
        contents.check(b"\x7b" * 5000, 1, True)
