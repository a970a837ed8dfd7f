# SPDX-License-Identifier: MIT
"""``softverbs demo``: the main job, shown and checked."""

from __future__ import annotations

import os
from typing import Any

import click

from softverbs.cli import pair, show
from softverbs.cli.common import Fault, FloatRange, IntRange, pcap_option
from softverbs.cli.demo_sides import BEHIND, WORD, Settings, receiver, sender
from softverbs.pyverbs.libibverbs_enums import names_of

_WRITES = {"compiled": 100_000, "pure": 2_000}
_MOST = 1 << 24
_ACCESS, _FLUSH = "IBV_WC_REM_ACCESS_ERR", "IBV_WC_WR_FLUSH_ERR"
_ERROR_STATE = 6  # IBV_QPS_ERR
_ACCESS_EVENT = 3  # IBV_EVENT_QP_ACCESS_ERR

Found = dict[str, dict[str, Any]]


@click.command("demo", context_settings={"help_option_names": ["-h", "--help"]})
@click.option("-n", "--writes", type=IntRange(1, _MOST), help="Writes. [default: 100000; uncompiled 2000]")
@click.option(
    "--timeout",
    type=FloatRange(1, 86400),
    default=120.0,
    show_default=True,
    help="Time limit for everything, seconds.",
)
@pcap_option
def command(writes: int | None, timeout: float, pcap: str | None) -> None:
    """Two processes over RoCEv2 on loopback: the main job, shown and checked.

    One process writes into the other's memory, which waits on a completion counter. Then a wrong key shows how errors
    are told. Exit code 1 if anything is not as it should be.
    """
    import softverbs

    count = writes or _WRITES[softverbs.core_build]
    settings = Settings(count, timeout, (os.environ.get("SOFTVERBS_PCAP") if pcap is None else pcap) or "")
    show.heading("softverbs demo: two processes, an RDMA device in each, RoCEv2 over UDP on loopback")
    click.echo(f"softverbs {softverbs.__version__}, {softverbs.core_build} core")
    found: Found = {}
    for message in pair.run({"receiver": receiver, "sender": sender}, settings, timeout):
        found[message.topic if message.topic != "up" else message.side] = message.values
        _tell(found, message.topic, count)
    if settings.pcap:
        click.echo(f"\nThe sender's frames, both ways, are in {settings.pcap}")
    _judge(found, count)


# -- what is printed


def _tell(found: Found, topic: str, count: int) -> None:
    """Prints a part as soon as everything for it is there."""
    if topic == "up" and {"receiver", "sender"} <= found.keys():
        _tell_who(found)
        click.echo(
            f"\n1. {count:,} RDMA WRITEs of {WORD} bytes, none signaled; the receiver posts no receive, and waits"
        )
        click.echo("   on its counter")
    elif topic in ("sent", "landed") and {"sent", "landed"} <= found.keys():
        _tell_writes(found, count)
        click.echo(f"\n2. One more WRITE with a wrong rkey, and {BEHIND} good ones queued behind it")
    elif topic in ("failed", "after") and {"failed", "after"} <= found.keys():
        _tell_failure(found)


def _tell_who(found: Found) -> None:
    click.echo()
    rows = []
    for name in ("receiver", "sender"):
        side = found[name]
        rows.append((name, side["pid"], f"{side['gid']}:4791", f"0x{side['qpn']:06x}", f"0x{side['rkey']:08x}"))
    show.table(("", "process", "device at", "QP", "rkey of its memory"), rows)


def _tell_writes(found: Found, count: int) -> None:
    sent, landed = found["sent"], found["landed"]
    click.echo()
    show.table(
        ("", "sender", "receiver"),
        (
            ("counter attached to", "RDMA_WRITE", "REMOTE_RDMA_WRITE"),
            ("completions", f"{sent['completions']:,}", f"{landed['completions']:,}"),
            ("errors", sent["errors"], landed["errors"]),
            ("completion queue entries", sent["entries"], landed["entries"]),
        ),
    )
    same = "each as it was sent" if landed["wrong"] < 0 else f"WRONG from byte {landed['wrong']} on"
    click.echo(f"   data: {landed['size']:,} bytes at the receiver, {same}")
    click.echo(f"   time: {sent['took']:.3f} s, {count / sent['took']:,.0f} writes a second")


def _tell_failure(found: Found) -> None:
    failed, after = found["failed"], found["after"]
    click.echo()
    show.table(
        ("", "sender", "receiver"),
        (
            ("completions", f"{failed['completions']:,}", f"{after['completions']:,}"),
            ("errors", failed["errors"], after["errors"]),
            ("completion queue entries", len(failed["list"]), after["entries"]),
        ),
    )
    click.echo(f"   waiting for success ended after {failed['took'] * 1e3:.1f} ms: {failed['woken']}")
    click.echo("   the sender's completion queue:")
    for number, status, reason in failed["list"]:
        click.echo(f"     work request {number}: {status}\n       {reason}")
    same = "untouched" if after["wrong"] < 0 else f"WRONG from byte {after['wrong']} on"
    event = names_of("ibv_event_type").get(after["event"], "none")
    click.echo(f"   the receiver's memory: {same}; its asynchronous event: {event}")


# -- what is checked


def _judge(found: Found, count: int) -> None:
    """Counts what is as it should be, and raises Fault naming the rest."""
    missing = {"receiver", "sender", "sent", "landed", "failed", "after"} - found.keys()
    if missing:
        raise Fault(f"nothing came of: {', '.join(sorted(missing))}")
    checks = [*_judge_writes(found, count), *_judge_failure(found, count)]
    wrong = [words for words, right in checks if not right]
    click.echo()
    if wrong:
        for words in wrong:
            show.verdict(False, f"NOT SO: {words}")
        raise Fault(f"{len(wrong)} of {len(checks)} checks failed")
    show.verdict(True, f"All as it should be: {len(checks)} checks")


def _judge_writes(found: Found, count: int) -> list[tuple[str, bool]]:
    sent, landed = found["sent"], found["landed"]
    return [
        ("two processes", found["sender"]["pid"] != found["receiver"]["pid"]),
        ("two devices", found["sender"]["gid"] != found["receiver"]["gid"]),
        (f"the sender counts {count} writes", sent["completions"] == count),
        (f"the receiver counts {count} writes", landed["completions"] == count),
        ("no errors at the sender", sent["errors"] == 0),
        ("no errors at the receiver", landed["errors"] == 0),
        ("the sender's completion queue is empty", sent["entries"] == 0),
        ("the receiver's completion queue is empty", landed["entries"] == 0),
        ("the data are as sent", landed["wrong"] < 0 and landed["size"] == count * WORD),
    ]


def _judge_failure(found: Found, count: int) -> list[tuple[str, bool]]:
    failed, after = found["failed"], found["after"]
    statuses = [status for _, status, _ in failed["list"]]
    numbers = [number for number, _, _ in failed["list"]]
    reason = failed["list"][0][2] if failed["list"] else ""
    return [
        ("the sender's completions stay", failed["completions"] == count),
        (f"the sender counts {BEHIND + 1} errors", failed["errors"] == BEHIND + 1),
        ("completions + errors are what was posted", failed["completions"] + failed["errors"] == count + BEHIND + 1),
        ("an error ends waiting for success", "error count" in failed["woken"] and failed["took"] < 1),
        (f"the bad write completes as {_ACCESS}", statuses[:1] == [_ACCESS]),
        (f"what was behind it completes as {_FLUSH}", statuses[1:] == [_FLUSH] * BEHIND),
        ("the completions are in order", numbers == sorted(numbers) and len(set(numbers)) == BEHIND + 1),
        ("the reason names the wrong key", f"{failed['rkey']:#x}" in reason),
        ("the receiver's completions stay", after["completions"] == count),
        ("the receiver counts no error", after["errors"] == 0),
        ("the receiver gets no completion queue entry", after["entries"] == 0),
        ("the receiver's memory is untouched", after["wrong"] < 0),
        ("the receiver's QP is in the state ERR", after["state"] == _ERROR_STATE),
        ("the receiver is told by an asynchronous event", after["event"] == _ACCESS_EVENT),
    ]
