# SPDX-License-Identifier: MIT
"""``softverbs pingpong``: messages to and fro between two queue pairs; rdma-core's program may be the peer.

That is ``ibv_rc_pingpong``, ``ibv_uc_pingpong``, ``ibv_ud_pingpong`` or ``ibv_srq_pingpong``, by ``--type``.
"""

from __future__ import annotations

import time

import click

from softverbs.cli.common import (
    MTUS,
    Fault,
    FloatRange,
    IntRange,
    device_options,
    mtu_code,
    open_device,
    opened,
    patience,
    pcap_option,
    tcp_port_option,
)
from softverbs.cli.common import size as size_type
from softverbs.cli.exchange import ADDRESS_LENGTH, DONE, SHARED_ADDRESSES, Address, Line, answer, call
from softverbs.cli.pingpong_side import TYPES, SharedSide, Side, Task
from softverbs.cli.rc import Way, own_gid
from softverbs.pyverbs.device import Context

_LINGER_S = 0.2
_LONGEST_LINGER_S = 2.0
_PATIENCE_S = {True: 10.0, False: 60.0}  # by whether a loss stays one
_SHARED_QPS = 16
_NO_ADDRESS = Address(0, 0, 0, bytes(16))


@click.command("pingpong", context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("servername", required=False)
@click.option(
    "--type",
    "kind",
    type=click.Choice(tuple(TYPES)),
    default="rc",
    show_default=True,
    help="Type of the QPs; srq: several of type RC on one SRQ.",
)
@tcp_port_option
@device_options
@click.option("-s", "--size", type=size_type(0, 1 << 30), default="4096", show_default=True, help="Bytes of a message.")
@click.option("-m", "--mtu", type=click.Choice(MTUS), help="Path MTU, bytes; ud has none. [default: 1024]")
@click.option("-q", "--num-qp", "qps", type=IntRange(1, SHARED_ADDRESSES - 1), help="QPs of srq. [default: 16]")
@click.option(
    "-r",
    "--rx-depth",
    type=IntRange(1, 1 << 20),
    default=500,
    show_default=True,
    help="Receives to post at a time.",
)
@click.option(
    "-n",
    "--iters",
    type=IntRange(1),
    default=1000,
    show_default=True,
    help="Messages each way; of srq's QPs in all.",
)
@click.option("-l", "--sl", type=IntRange(0, 15), default=0, help="Service level.")
@click.option("-e", "--events", is_flag=True, help="Sleep on completion events instead of polling.")
@click.option("-c", "--chk", is_flag=True, help="Check the data: always done, here for the sake of scripts.")
@click.option("--bind", metavar="ADDRESS", help="Server: listen on this IP address only.")
@click.option(
    "--timeout",
    type=FloatRange(0),
    help="Give up after so many seconds without a message; 0: never. [default: 60, of uc and ud 10]",
)
@pcap_option
def command(
    servername: str | None,
    kind: str,
    tcp_port: int,
    device: str | None,
    port: int,
    gid_index: int | None,
    size: int,
    mtu: str | None,
    qps: int | None,
    rx_depth: int,
    iters: int,
    sl: int,
    events: bool,
    chk: bool,
    bind: str | None,
    timeout: float | None,
    pcap: str | None,
) -> None:
    """Messages to and fro: a server without SERVERNAME, else a client of it.

    The arguments and the protocol are those of ibv_rc_pingpong (ibv_uc_pingpong and so on, by --type), which may be
    the other side.
    """
    if servername is not None and bind is not None:
        raise click.UsageError("--bind is for the server, which has no SERVERNAME")
    task = Task(kind, size, rx_depth, iters, events, servername is None, _queue_pairs(kind, qps, rx_depth))
    if kind == "ud" and mtu is not None:
        raise click.UsageError("-m is not for ud, whose messages are one packet each")
    if timeout is None:
        timeout = _PATIENCE_S[task.loses]
    line = answer(tcp_port, bind) if servername is None else call(servername, tcp_port)
    with line, opened(open_device(line.own_address(), pcap), device) as context:
        index, gid = own_gid(context, port, gid_index, line.own_address())
        side = _made(context, Way(port, index, mtu_code(mtu or "1024"), sl), task)
        _meet(side, line, gid)
        words = f"pingpong over {kind}, which does not repair losses" if task.loses else "pingpong"
        with patience(timeout, lambda: side.received + side.sent, words):
            seconds = side.run()
        click.echo(
            f"{2 * size * iters} bytes in {seconds:.2f} seconds = {2 * size * iters * 8 / seconds / 1e6:.2f} Mbit/sec"
        )
        click.echo(f"{iters} iters in {seconds:.2f} seconds = {seconds * 1e6 / iters:.2f} usec/iter")
        click.echo(f"{side.received} messages received, each as it was sent")
        _part(side, line)


def _queue_pairs(kind: str, given: int | None, depth: int) -> int:
    """How many."""
    if kind != "srq":
        if given is not None:
            raise click.UsageError(f"-q is for --type srq; {kind} has one QP")
        return 1
    qps = _SHARED_QPS if given is None else given
    if qps > depth:
        raise click.UsageError(f"-r {depth} is not enough: each of {qps} QPs needs a receive")
    return qps


def _made(context: Context, way: Way, task: Task) -> Side:
    """This side's resources."""
    if task.kind == "ud":
        most = 128 << context.query_port(way.port).active_mtu
        if task.size > most:
            raise Fault(f"a datagram has at most {most} bytes here, not {task.size}")
    return (SharedSide if task.kind == "srq" else Side)(context, way, task)


def _meet(side: Side, line: Line, gid: bytes) -> None:
    """Tells the peer where this side is, and connects the QPs to the peer's."""
    own = side.own(gid)
    for address in own:
        click.echo(f"  local address:  {address}")
    count = SHARED_ADDRESSES if side.task.kind == "srq" else 1
    wire = b"".join(address.packed() for address in [*own, *[_NO_ADDRESS] * (count - len(own))])

    def connect() -> None:
        told = line.receive(ADDRESS_LENGTH * count)
        texts = [told[at : at + ADDRESS_LENGTH] for at in range(0, len(told), ADDRESS_LENGTH)]
        peers = [Address.parsed(text) for text in texts]
        for index in range(len(own)):
            click.echo(f"  remote address: {peers[index]}")
            side.connect(index, peers[index])
        if any(peer.qpn for peer in peers[len(own) :]):
            raise Fault("the peer has more QPs: give both sides the same -q")

    if side.task.server:
        connect()  # before the answer, upon which the client may send
        line.send(wire)
        if line.receive(len(DONE)) != DONE:
            raise Fault("the client did not say that it has our address; do both sides have the same --type?")
    else:
        line.send(wire)
        connect()
        line.send(DONE)


def _part(side: Side, line: Line) -> None:
    """Stays until the peer needs this side no more: it may ask again for an ACK that was lost.

    rdma-core's programs close the connection before they begin: there is nothing to wait for then.
    """
    line.finish()
    if side.task.server:
        line.linger(_LONGEST_LINGER_S)
    elif line.linger(_LINGER_S):
        time.sleep(_LINGER_S / 4)
