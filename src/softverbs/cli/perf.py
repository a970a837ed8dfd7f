# SPDX-License-Identifier: MIT
"""``softverbs perf``: bandwidth and latency between two processes or hosts, in the columns of perftest."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import click

from softverbs.cli import perf_run
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
from softverbs.cli.exchange import Line, answer, call, tell_waiting
from softverbs.cli.perf_side import CONNECTIONS, MAX_COUNT, MAX_DEPTH, MAX_QPS, MAX_SIZE, TESTS, Plan, Result, Side
from softverbs.cli.rc import Way, own_gid
from softverbs.cli.show import progress
from softverbs.pyverbs.device import Context

_RULE = "-" * 95
_BANDWIDTH = (" #bytes", "#iterations", "BW peak[MB/sec]", "BW average[MB/sec]", "MsgRate[Mpps]")
_LATENCY = (" #bytes", "#iterations", "t_min[usec]", "t_max[usec]", "t_typical[usec]", "t_avg[usec]", "t_stdev[usec]")
_PERCENTILES = ("99%[usec]", "99.9%[usec]")
_NAMES = {"write": "RDMA_Write", "read": "RDMA_Read", "send": "Send", "atomic": "Atomic FETCH_AND_ADD"}
_ALL_SIZES = tuple(1 << shift for shift in range(1, 24))
_ATOMIC = 8
_PATIENCE_S = 30
#: Without -n: so many operations, but no more bytes than these (compiled, uncompiled).
_ITERATIONS = {True: 1000, False: 5000}
_MOST_BYTES = (1 << 28, 1 << 23)
_LEAST = 10


@click.command("perf", context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("test", type=click.Choice(TESTS), required=False)
@click.argument("servername", required=False)
@click.option("--bw/--lat", "bandwidth", default=True, show_default=True, help="Bandwidth or latency.")
@click.option(
    "-c",
    "--connection",
    type=click.Choice(tuple(CONNECTIONS)),
    default="rc",
    show_default=True,
    help="Type of the QPs; uc for write and send, ud for send.",
)
@tcp_port_option
@device_options
@click.option(
    "-s",
    "--size",
    type=size_type(1, MAX_SIZE),
    help="Bytes of a message. [default: 65536, of ud the MTU; of latency 2]",
)
@click.option("-a", "--all", "all_sizes", is_flag=True, help="All sizes, powers of two from 2 bytes to 8 MiB.")
@click.option(
    "-n",
    "--iters",
    type=IntRange(1, MAX_COUNT),
    help="Operations. [default: 5000, of latency 1000; fewer of long ones]",
)
@click.option("-D", "--duration", type=FloatRange(0, min_open=True), help="Seconds, instead of a number of operations.")
@click.option(
    "-t",
    "--tx-depth",
    "depth",
    type=IntRange(1, MAX_DEPTH),
    default=128,
    show_default=True,
    help="Operations outstanding on each QP.",
)
@click.option("-q", "--qp", "qps", type=IntRange(1, MAX_QPS), default=1, show_default=True, help="QPs, for bandwidth.")
@click.option("-m", "--mtu", type=click.Choice(MTUS), help="Path MTU, bytes. [default: what both ports carry]")
@click.option("--busy", is_flag=True, help="The passive side of one-sided operations polls instead of sleeping.")
@click.option("--bind", metavar="ADDRESS", help="Server: listen on this IP address only.")
@pcap_option
def command(
    test: str | None,
    servername: str | None,
    tcp_port: int,
    device: str | None,
    port: int,
    gid_index: int | None,
    bind: str | None,
    pcap: str | None,
    **wishes: Any,
) -> None:
    """Measure TEST between a server and a client. The server is started first; the client names it, SERVERNAME.

    The client's options count, a server takes part in whatever the client asks for; if it names a TEST, in that one
    only. Both check the data at the end.
    """
    if servername is not None and bind is not None:
        raise click.UsageError("--bind is for the server, which has no SERVERNAME")
    if servername is None:
        tell_waiting(tcp_port, f"softverbs perf {test or 'TEST'} HOST")
        line = answer(tcp_port, bind)
    else:
        line = call(servername, tcp_port)
    with line, opened(open_device(line.own_address(), pcap), device) as context:
        index, gid = own_gid(context, port, gid_index, line.own_address())
        own_mtu = context.query_port(port).active_mtu
        if servername is None:
            plan = _hear_plan(line, test, own_mtu)
        else:
            assert test is not None
            plan = _tell_plan(line, _plan(test, own_mtu, **wishes), own_mtu)
        if plan.connection == "ud" and max(plan.sizes) > 128 << plan.mtu:
            raise Fault(f"a datagram has at most {128 << plan.mtu} bytes here, not {max(plan.sizes)}")
        side = Side(context, plan, Way(port, index, plan.mtu))
        side.connect(line, gid)
        _head(context, side)
        with line.telling():
            for size, count in zip(plan.sizes, plan.iters, strict=True):
                _measure(side, line, size, count) if servername else _take_part(side, line, size)
        click.echo(_RULE)


# -- what is measured


def _plan(
    test: str,
    own_mtu: int,
    connection: str,
    bandwidth: bool,
    size: int | None,
    all_sizes: bool,
    iters: int | None,
    duration: float | None,
    depth: int,
    qps: int,
    mtu: str | None,
    busy: bool,
) -> Plan:
    """What the client's options ask for."""
    if all_sizes and size is not None:
        raise click.UsageError("-a and -s contradict each other")
    if iters is not None and duration is not None:
        raise click.UsageError("-n and -D contradict each other")
    if not bandwidth and qps > 1:
        raise click.UsageError("latency is measured on one QP; -q is for bandwidth")
    if test == "atomic" and (all_sizes or size not in (None, _ATOMIC)):
        raise click.UsageError("an atomic has 8 bytes")
    if test not in CONNECTIONS[connection]:
        raise click.UsageError(f"{connection} has no {test}")
    if connection == "ud" and qps > 1:
        raise click.UsageError("ud is measured on one QP; -q is for rc and uc")
    code = mtu_code(mtu) if mtu else 0
    most = 128 << (code or own_mtu) if connection == "ud" else MAX_SIZE
    usual = min(65536, most) if bandwidth else 2
    sizes = [_ATOMIC if test == "atomic" else size or usual]
    if all_sizes:
        sizes = [each for each in _ALL_SIZES if each <= most]
    counts = [_count(not bandwidth, each, iters) if duration is None else MAX_COUNT for each in sizes]
    return Plan(test, not bandwidth, sizes, counts, duration or 0.0, depth, qps, code, busy, connection)


def _count(latency: bool, size: int, iters: int | None) -> int:
    import softverbs

    if iters is not None:
        return iters
    most = _MOST_BYTES[softverbs.core_build != "compiled"] // size
    return max(_LEAST, min(_ITERATIONS[latency], most))


def _tell_plan(line: Line, plan: Plan, own_mtu: int) -> Plan:
    """The client: announces the plan; the smaller MTU of both ports becomes that of the path."""
    plan.mtu = plan.mtu or own_mtu
    line.tell(softverbs="perf", plan=plan.packed())
    plan.mtu = int(line.hear()["mtu"])
    return plan


def _hear_plan(line: Line, test: str | None, own_mtu: int) -> Plan:
    """The server: takes the client's plan."""
    plan = Plan.parsed(line.hear().get("plan"))
    if test not in (None, plan.test):
        line.tell(error=f"this server measures {test}, not {plan.test}")
        raise Fault(f"the client wants {plan.test}; this server was told {test}")
    plan.mtu = min(plan.mtu, own_mtu)
    line.tell(mtu=plan.mtu)
    return plan


# -- the two sides


def _measure(side: Side, line: Line, size: int, count: int) -> None:
    """The client: one size."""
    plan = side.plan
    side.prepare(size)
    line.tell(size=size)
    line.hear()
    with progress(f"{size} bytes", plan.seconds or count) as advance, _watched(side, line):
        if plan.both_ways:
            result = perf_run.take_turns(side, line, size, count, plan.seconds, advance)
        elif plan.latency:
            result = perf_run.alone(side, size, count, plan.seconds, advance)
        else:
            result = perf_run.stream(side, size, count, plan.seconds, advance)
    if not plan.both_ways:
        line.tell(done=result.iterations)
    side.compare(size, result.iterations, client=True)
    line.tell(row=_row(plan, result))
    arrived = line.hear().get("arrived")
    _show(_row(plan, result), plan)
    _show_losses(plan, result.iterations, arrived)


def _take_part(side: Side, line: Line, size: int) -> None:
    """The server: one size."""
    plan = side.plan
    if line.hear(patient=True).get("size") != size:
        raise Fault("the client measures another size than it said")
    side.prepare(size)
    before = side.arrived()
    line.tell(ready=True)
    if plan.both_ways:
        with _watched(side, line):
            arrived = sent = perf_run.give_turns(side, line, size)
    elif plan.test == "send" and not plan.latency:
        with _watched(side, line):
            arrived, sent = perf_run.absorb(side, line)
    else:
        arrived = sent = _stand_by(side, line)
        if plan.loses:
            arrived = perf_run.await_writes(side, before, sent)
    row = line.hear(patient=True).get("row")
    side.compare(size, arrived, client=False)
    line.tell(checked=True, arrived=arrived)
    if isinstance(row, list):
        _show([str(cell) for cell in row], plan)
    _show_losses(plan, sent, arrived)


def _watched(side: Side, line: Line) -> AbstractContextManager[None]:
    return patience(_PATIENCE_S, lambda: side.done, side.plan.words, line.sock)


def _stand_by(side: Side, line: Line) -> int:
    """The passive side of one-sided operations: polls, or sleeps, until the client has done them."""
    while side.plan.busy and not line.waits():
        for _ in range(64):
            side.send_cq.poll(1)
    return int(line.hear(patient=True)["done"])


# -- what is printed


def _row(plan: Plan, result: Result) -> list[str]:
    return result.latency_row() if plan.latency else result.bandwidth_row()


def _columns(plan: Plan) -> tuple[str, ...]:
    return (*_LATENCY, *_PERCENTILES) if plan.latency else _BANDWIDTH


def _head(context: Context, side: Side) -> None:
    import softverbs

    plan = side.plan
    kind = "Latency" if plan.latency else "BW"
    click.echo(f"{_RULE}\n{_NAMES[plan.test]} {kind} Test".replace("\n", "\n" + " " * 36))
    facts = [("Device", context.name), ("Core", softverbs.core_build), ("Number of qps", plan.qps)]
    facts += [("Connection type", plan.connection.upper()), ("TX depth", plan.depth), ("Mtu", f"{128 << plan.mtu}[B]")]
    for first, second in zip(facts[::2], facts[1::2], strict=True):
        click.echo(f" {first[0]:16}: {first[1]!s:16} {second[0]:16}: {second[1]}")
    click.echo(f"{_RULE}\n local address:  {side.own_text}\n remote address: {side.peer_text}\n{_RULE}")
    click.echo("  ".join(_columns(plan)))


def _show(row: list[str], plan: Plan) -> None:
    widths = [len(column) for column in _columns(plan)]
    cells = [
        f" {row[0]}".ljust(widths[0]),
        *(cell.ljust(width) for cell, width in zip(row[1:], widths[1:], strict=True)),
    ]
    click.echo("  ".join(cells).rstrip())


def _show_losses(plan: Plan, sent: int, arrived: object) -> None:
    if isinstance(arrived, int) and arrived < sent:
        click.echo(f" {arrived} of {sent} messages arrived: {plan.connection} does not repair losses")
