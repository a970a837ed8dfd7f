"""``softverbs pingpong``: messages to and fro over a reliable connection; ``ibv_rc_pingpong`` may be the peer.

Every message is checked. A client that is a softverbs changes what it sends each time, and looks for the same in the
answer, since a server sends back what it got. The server knows two ways to fill a message: that of the softverbs
client, and that of ``ibv_rc_pingpong``, which fills it with 0x7b and, where it validates, begins each page with 0.
"""

from __future__ import annotations

import random
import struct
import time
from collections.abc import Callable

import click

from softverbs.cli.common import (
    MTUS,
    Fault,
    check,
    device_options,
    mtu_code,
    open_device,
    opened,
    patience,
    pcap_option,
    tcp_port_option,
)
from softverbs.cli.common import size as size_type
from softverbs.cli.exchange import ADDRESS_LENGTH, DONE, Address, Line, answer, call
from softverbs.cli.rc import Way, join, make_qp, own_gid, random_psn
from softverbs.pyverbs import libibverbs_enums as e
from softverbs.pyverbs.cq import CQ, WC, CompChannel
from softverbs.pyverbs.device import Context
from softverbs.pyverbs.mr import MR
from softverbs.pyverbs.pd import PD
from softverbs.pyverbs.wr import SGE, RecvWR, SendWR

_RECEIVE, _SEND = 1, 2
_FILL = 0x7B  # what ibv_rc_pingpong fills its buffer with
_PAGES = (4096, 16384, 65536)  # that machines have
_STAMP = struct.Struct("<Q")
_STAMP_AT = 1  # byte 0 begins a page
_LINGER_S = 0.2


@click.command("pingpong", context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("servername", required=False)
@tcp_port_option
@device_options
@click.option("-s", "--size", type=size_type(0, 1 << 30), default="4096", show_default=True, help="Bytes of a message.")
@click.option("-m", "--mtu", type=click.Choice(MTUS), default="1024", show_default=True, help="Path MTU, bytes.")
@click.option(
    "-r",
    "--rx-depth",
    type=click.IntRange(1, 1 << 20),
    default=500,
    show_default=True,
    help="Receives to post at a time.",
)
@click.option("-n", "--iters", type=click.IntRange(1), default=1000, show_default=True, help="Messages each way.")
@click.option("-l", "--sl", type=click.IntRange(0, 15), default=0, help="Service level.")
@click.option("-e", "--events", is_flag=True, help="Sleep on completion events instead of polling.")
@click.option("-c", "--chk", is_flag=True, help="Check the data: always done, here for the sake of scripts.")
@click.option("--bind", metavar="ADDRESS", help="Server: listen on this IP address only.")
@click.option(
    "--timeout",
    type=click.FloatRange(0),
    default=60.0,
    show_default=True,
    help="Give up after so many seconds without a message; 0: never.",
)
@pcap_option
def command(
    servername: str | None,
    tcp_port: int,
    device: str | None,
    port: int,
    gid_index: int | None,
    size: int,
    mtu: str,
    rx_depth: int,
    iters: int,
    sl: int,
    events: bool,
    chk: bool,
    bind: str | None,
    timeout: float,
    pcap: str | None,
) -> None:
    """Messages to and fro: a server without SERVERNAME, else a client of it.

    The arguments and the protocol are those of ibv_rc_pingpong, which may be the other side.
    """
    if servername is not None and bind is not None:
        raise click.UsageError("--bind is for the server, which has no SERVERNAME")
    line = answer(tcp_port, bind) if servername is None else call(servername, tcp_port)
    with line, opened(open_device(line.own_address(), pcap), device) as context:
        index, gid = own_gid(context, port, gid_index, line.own_address())
        side = _Side(context, Way(port, index, mtu_code(mtu), sl), size, rx_depth, iters, events, servername is None)
        _meet(side, line, gid)
        with patience(timeout, lambda: side.received + side.sent, "pingpong"):
            seconds = side.run()
        click.echo(
            f"{2 * size * iters} bytes in {seconds:.2f} seconds = {2 * size * iters * 8 / seconds / 1e6:.2f} Mbit/sec"
        )
        click.echo(f"{iters} iters in {seconds:.2f} seconds = {seconds * 1e6 / iters:.2f} usec/iter")
        click.echo(f"{iters} messages received, each as it was sent")
        _part(side, line)


def _meet(side: _Side, line: Line, gid: bytes) -> None:
    """Tells the peer where this side is, and connects the QP to the peer's."""
    own = Address(0, side.qp.qp_num, random_psn(), gid)
    click.echo(f"  local address:  {own}")

    def connect() -> None:
        peer = Address.parsed(line.receive(ADDRESS_LENGTH))
        click.echo(f"  remote address: {peer}")
        join(side.qp, side.way, own.psn, (peer.gid, peer.qpn, peer.psn), 1)

    if side.server:
        connect()  # before the answer, upon which the client may send
        line.send(own.packed())
        if line.receive(len(DONE)) != DONE:
            raise Fault("the client did not say that it has our address")
    else:
        line.send(own.packed())
        connect()
        line.send(DONE)


def _part(side: _Side, line: Line) -> None:
    """Stays until the peer needs this side no more: it may ask again for an ACK that was lost."""
    if side.server:
        return
    if line.linger(_LINGER_S):  # ibv_rc_pingpong closes the connection before it begins
        time.sleep(_LINGER_S / 4)


class _Side:
    """One side of the exchange."""

    def __init__(
        self, context: Context, way: Way, size: int, depth: int, iters: int, events: bool, server: bool
    ) -> None:
        self.way, self.size, self.depth, self.iters, self.server = way, size, depth, iters, server
        self.received = self.sent = 0
        self._posted = self._events = 0
        self._pending = 0
        pd = PD(context)
        self._region = MR(pd, max(size, 1), e.IBV_ACCESS_LOCAL_WRITE)
        self._channel = CompChannel(context) if events else None
        self._cq = CQ(context, depth + 1, None, self._channel)
        self.qp = make_qp(pd, self._cq, self._cq, 1, depth, way.port, 0)
        elements = [SGE(self._region.buf, size, self._region.lkey)] if size else []
        self._receive = RecvWR(_RECEIVE, len(elements), elements)
        self._send = SendWR(_SEND, e.IBV_WR_SEND, len(elements), sg=elements, send_flags=e.IBV_SEND_SIGNALED)
        self._contents = _Contents(size)
        self._fill_up()
        if self._channel is not None:
            self._cq.req_notify()

    def run(self) -> float:
        """The whole exchange; seconds that it took."""
        step = self._poll if self._channel is None else self._sleep
        start = time.perf_counter()
        self._pending = _RECEIVE
        if not self.server:
            self._post()
        while self.received < self.iters or self.sent < self.iters:
            for completion in step():
                self._take(completion)
        seconds = time.perf_counter() - start
        if self._events:
            self._cq.ack_events(self._events)
        return max(seconds, 1e-9)

    def _poll(self) -> list[WC]:
        return self._cq.poll(2)[1]

    def _sleep(self) -> list[WC]:
        """What there is after the next event."""
        assert self._channel is not None
        self._channel.get_cq_event(self._cq)
        self._events += 1
        self._cq.req_notify()
        return self._cq.poll(2)[1]

    def _take(self, completion: WC) -> None:
        check(completion)
        if completion.wr_id == _SEND:
            self.sent += 1
        else:
            self._got(completion)
        self._pending &= ~completion.wr_id
        if not self._pending and self.sent < self.iters:
            self._pending = _RECEIVE
            self._post()

    def _got(self, completion: WC) -> None:
        if completion.byte_len != self.size:
            raise Fault(
                f"message {self.received} has {completion.byte_len} bytes, not {self.size}: give both sides the same -s"
            )
        self._contents.check(self._region.read(self.size, 0), self.received, self.server)
        self.received += 1
        self._posted -= 1
        if self._posted <= 1:
            self._fill_up()

    def _fill_up(self) -> None:
        for _ in range(self.depth - self._posted):
            self.qp.post_recv(self._receive)
        self._posted = self.depth

    def _post(self) -> None:
        """The next message: a client's is new, a server's is the one that it got."""
        if not self.server:
            self._region.write(self._contents.ours(self.sent), self.size)
        self.qp.post_send(self._send)
        self._pending |= _SEND


def _always(data: bytes) -> Callable[[int], bytes]:
    return lambda _: data


class _Contents:
    """What the messages hold."""

    def __init__(self, size: int) -> None:
        """
        :param size: bytes of a message
        """
        self._base = bytearray(random.Random(size).randbytes(size))
        self._base[:: _PAGES[0]] = bytes(len(range(0, size, _PAGES[0])))  # as ibv_rc_pingpong expects it
        self._stamped = size >= _STAMP_AT + _STAMP.size
        plain = bytes([_FILL]) * size
        self._known: list[Callable[[int], bytes]] = [self.ours, _always(plain)]
        for page in _PAGES:
            marked = bytearray(plain)
            marked[::page] = bytes(len(range(0, size, page)))
            self._known.append(_always(bytes(marked)))

    def ours(self, number: int) -> bytes:
        """Message ``number`` of a softverbs client."""
        if self._stamped:
            _STAMP.pack_into(self._base, _STAMP_AT, number)
        return bytes(self._base)

    def check(self, data: bytes, number: int, server: bool) -> None:
        """Raises Fault unless message ``number`` is as a client sends it; a client knows what it sent itself."""
        if not server:
            self._known = [self.ours]
        fitting = [known for known in self._known if known(number) == data]
        if not fitting:
            expected = self._known[0](number)
            at = next(index for index in range(len(data)) if data[index] != expected[index])
            raise Fault(f"invalid data in message {number}: byte {at} is {data[at]:#04x}, not {expected[at]:#04x}")
        self._known = fitting
