#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The interoperability matrix: softverbs on the host against Linux Soft-RoCE in a virtual machine.

Runs on the host, inside the namespace that the machine is attached to (see run.sh). Starts one peer.py on each side,
takes them through every case in both directions over IPv4 and IPv6, captures what goes over the wire and checks that,
prints a table and writes each case to a TSV file. Exit status 1 if anything failed.
"""

import argparse
import contextlib
import functools
import pathlib
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

import cases
import pingpong
import unreliable
import wire
from remote import ALL_RIGHTS, FAMILIES, Pair, Remote, Report, Wrong

HERE = pathlib.Path(__file__).resolve().parent
SECTIONS = ("plain", "burst", "rnr", "errors", "unreliable", "loss", "pingpong")
DROPS = ("short", "version", "opcode", "transport", "pkey", "malformed", "icrc", "source")  # never of a good peer's
VERSIONS = (  # of the machine's side
    'echo "vm:   Linux $(uname -r), rdma-core $(dpkg-query -W -f "\\${Version}" ibverbs-utils)";'
    " ibv_devinfo -d rxe0 | awk '/active_mtu/ {print \"      rxe0 with active MTU\", $2}'"
)
Step = tuple[str, Callable[[Pair], None]]


class Matrix:
    """The two sides, and the sections of the table."""

    def __init__(
        self, host: Remote, vm: Remote, shell: "list[str]", report: Report, loss: float, mtus: "list[int]"
    ) -> None:
        """
        :param shell: runs a command in the virtual machine
        :param loss: percent of the packets, each way, in the section loss
        :param mtus: path MTUs, bytes
        """
        self.host, self.vm, self.shell, self.report, self.percent = host, vm, shell, report, loss
        self.mtus = mtus

    def directions(self) -> "Iterator[tuple[str, Callable[..., Pair], Remote]]":
        """Each (words, what makes a pair, the target)."""
        for initiator, target in ((self.host, self.vm), (self.vm, self.host)):
            for family in FAMILIES:
                words = f"{initiator.name} -> {target.name}  {family}"
                yield words, functools.partial(Pair, initiator, target, family), target

    def run(self, group: str, open_pair: "Callable[[], Pair]", steps: "list[Step]") -> None:
        """Several cases on one pair; a new pair after one that failed."""
        pair = None
        for name, step in steps:
            failed = self.report.failed
            with self.report.case(group, name):
                if pair is None:
                    pair = open_pair()
                step(pair)
            if self.report.failed != failed and pair is not None:
                with self.report.case(group, f"closing after {name}"):
                    pair.close()
                pair = None
        if pair is not None:
            with self.report.case(group, f"after {steps[-1][0]}: no completion left over, closing"):
                pair.check_idle()
                pair.close()

    def once(self, group: str, name: str, open_pair: "Callable[[], Pair]", step: "Callable[[Pair], None]") -> None:
        """One case on a pair of its own."""
        with self.report.case(group, name):
            pair = open_pair()
            try:
                step(pair)
            finally:
                pair.close()

    def plain(self, prefix: str = "") -> None:
        """Every operation, every size, each path MTU."""
        for words, open_pair, _ in self.directions():
            for mtu in self.mtus:
                group = f"{prefix}{words}  {mtu}"
                for op in cases.OPS:
                    sizes = (8,) * 4 if op in cases.ATOMICS else cases.SIZES
                    steps: "list[Step]" = [
                        (f"{op} {size}", functools.partial(cases.transfer, op=op, length=size, seed=n))
                        for n, size in enumerate(sizes, 1)
                    ]
                    with self.report.group(group, f"{op}  {' '.join(map(str, dict.fromkeys(sizes)))}"):
                        self.run(group, functools.partial(open_pair, mtu=mtu), steps)

    def burst(self, prefix: str = "", seeds: int = 4) -> None:
        """24 mixed requests at once, half of them unsignaled; many atomics on one word.

        With the larger path MTU our counters count bytes, and not work requests.
        """
        for words, open_pair, _ in self.directions():
            for mtu in self.mtus:
                group = f"{prefix}{words}  {mtu}"
                steps: "list[Step]" = [
                    (f"burst, seed {seed}", functools.partial(cases.burst, seed=seed)) for seed in range(seeds)
                ]
                steps.append(("64 increments", functools.partial(cases.increments, number=64)))
                counters = "BYTES" if mtu == max(self.mtus) else "WRS"
                words_2 = f"{seeds} bursts of 24 mixed requests, 64 increments of one word; {counters}"
                with self.report.group(group, words_2):
                    self.run(group, functools.partial(open_pair, mtu=mtu, signal_all=0, counters=counters), steps)

    def rnr(self) -> None:
        """Receives that come late, or never."""
        for words, open_pair, _ in self.directions():
            with self.report.group(words, "receive posted late: SEND, SEND_WITH_IMM, RDMA_WRITE_WITH_IMM; never"):
                steps: "list[Step]" = [
                    (f"late receive, {op} {size}", functools.partial(cases.late_receive, op=op, length=size))
                    for op in ("SEND", "SEND_WITH_IMM", "RDMA_WRITE_WITH_IMM")
                    for size in (1, 5001)
                ]
                self.run(words, open_pair, steps)
                never = functools.partial(cases.refused, op="SEND", statuses=(cases.RNR_RETRY_EXC_ERR,))
                self.once(words, "no receive: RNR_RETRY_EXC_ERR", functools.partial(open_pair, rnr_retry=2), never)

    def errors(self) -> None:
        """What the target must refuse, and what the initiator must then say."""
        for words, open_pair, target in self.directions():
            with self.report.group(words, "bad rkey, range, rights, alignment; too long; nobody there"):
                for name, op, status, changes, options in refusals():
                    step = functools.partial(cases.refused, op=op, statuses=(status,), **changes)
                    self.once(words, name, functools.partial(open_pair, target_options=options), step)
                name = "SEND longer than the receive: REM_INV_REQ_ERR, LOC_LEN_ERR"
                rxe = target.about["package"] == "pyverbs"
                self.once(words, name, open_pair, functools.partial(cases.too_long, rxe=rxe))
                name = "the target's QP is gone: RETRY_EXC_ERR"
                self.once(words, name, functools.partial(open_pair, timeout=12, retry_cnt=2), cases.nobody)

    def unreliable(self) -> None:
        """UC and UD: every operation and size, Q_Keys, multicast towards softverbs."""
        for words, open_pair, target in self.directions():
            family = words.split()[-1]
            for mtu in self.mtus:
                for op in unreliable.UC_OPS:
                    steps: "list[Step]" = [
                        (f"UC {op} {size}", functools.partial(unreliable.transfer, op=op, length=size, seed=n))
                        for n, size in enumerate(unreliable.SIZES, 1)
                    ]
                    with self.report.group(f"{words}  {mtu}", f"UC {op}  {' '.join(map(str, unreliable.SIZES))}"):
                        self.run(f"{words}  {mtu}", functools.partial(open_pair, mtu=mtu, type="UC"), steps)
            open_ud = functools.partial(open_pair, type="UD")
            for op in unreliable.UD_OPS:
                steps = [
                    (f"UD {op} {size}", functools.partial(unreliable.datagram, op=op, length=size, seed=n))
                    for n, size in enumerate(unreliable.UD_SIZES, 1)
                ]
                with self.report.group(words, f"UD {op}  {' '.join(map(str, unreliable.UD_SIZES))}"):
                    self.run(words, open_ud, steps)
            with self.report.group(words, "UD another Q_Key; multicast: a member, and one who has left"):
                self.once(words, "UD, another Q_Key: dropped", open_ud, unreliable.wrong_key)
                if target.about["package"] != "pyverbs":  # which cannot attach a queue pair to a group
                    step = functools.partial(unreliable.multicast, family=family)
                    self.once(words, f"UD, multicast to {unreliable.GROUPS[family]}", open_ud, step)

    def guest_loss(self, *words: str) -> str:
        """Runs guest-loss.sh in the virtual machine."""
        command = [*self.shell, "sh", "/host/guest-loss.sh", *words]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    def loss(self) -> None:
        """Plain and burst again while netem drops packets both ways."""
        self.vm.stop()
        self.guest_loss("prepare", *self.host.addresses)
        self.vm.start()
        self.guest_loss("on", f"{self.percent:g}")
        label = f"{self.percent:g}% loss  "
        self.plain(label)
        self.burst(label)
        for line in self.guest_loss("drops").splitlines():
            device, sent, dropped = line.split()
            way = {"eth0": "from the VM", "rv0": "to the VM"}[device]
            share = 100 * int(dropped) / (int(sent) + int(dropped))
            print(f"      netem {way}: {dropped} packets dropped, {sent} passed ({share:.1f}%)")
            with self.report.case(label, f"netem dropped packets {way}"):
                if not self.percent / 2 < share < self.percent * 2:
                    raise Wrong(f"{share:.1f}% is not about {self.percent:g}%")
        self.guest_loss("off")


class Wire:
    """Captures a section, and checks every frame in it."""

    def __init__(self, report: Report, device: str, ours: "list[str]", keep: pathlib.Path) -> None:
        """
        :param device: the interface towards the machine
        :param ours: our addresses
        :param keep: folder that captures with something wrong are moved to
        """
        self.report, self.device, self.ours, self.keep = report, device, ours, keep
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="interop-wire."))

    @contextlib.contextmanager
    def watch(self, section: str) -> "Iterator[None]":
        """Captures what happens in it."""
        path, kept = self.folder / f"{section}.pcap", self.keep / f"interop-{section}.pcap"
        kept.unlink(missing_ok=True)
        failed = self.report.failed
        try:
            with self.report.case("wire", "tcpdump captures all frames"), wire.capture(self.device, str(path)):
                yield
            with self.report.group("wire", "ICRCs, identifications, tshark"):
                self.check(section, str(path))
        finally:
            if self.report.failed != failed and path.exists():
                shutil.move(path, kept)
                print(f"      the capture is kept: {kept}")
            path.unlink(missing_ok=True)

    def check(self, section: str, path: str) -> None:
        """ICRCs, identifications, and tshark."""
        findings = wire.Findings(path, self.ours)
        print(f"      {findings}")
        with self.report.case("wire", "the headers' lengths fit"):
            findings.check_lengths()
        for side, words in (("ours", "ours"), ("theirs", "rxe's")):
            with self.report.case("wire", f"each ICRC of {words} is right"):
                findings.check_icrc(side)
        with self.report.case("wire", "ours: DF is set, IPv4's identification counts 0, 1, 2, ... in each burst"):
            findings.check_bursts()
            if section in ("plain", "burst", "loss") and not findings.bursts:
                raise Wrong("no burst at all: nothing was segmented by the kernel")
        with self.report.case("wire", "ours: tshark finds nothing malformed, and no bad checksum of IP or UDP"):
            wire.tshark(path, self.ours, findings.opcodes)

    def close(self) -> None:
        """Removes what is left."""
        shutil.rmtree(self.folder, ignore_errors=True)


def refusals() -> "Iterator[tuple[str, str, int, dict[str, Any], dict[str, Any]]]":
    """Each (name, operation, status, what is wrong with the request, options of the target's end)."""
    write, read, fetch = "RDMA_WRITE", "RDMA_READ", "ATOMIC_FETCH_AND_ADD"
    access, invalid = cases.REM_ACCESS_ERR, cases.REM_INV_REQ_ERR
    needs = {write: "REMOTE_WRITE", read: "REMOTE_READ", fetch: "REMOTE_ATOMIC"}

    def others(op: str) -> "list[str]":
        return [right for right in ALL_RIGHTS if right != needs[op]]

    for op in (write, read, fetch):
        yield f"{op}, bad rkey: REM_ACCESS_ERR", op, access, {"bad_key": True}, {}
    yield f"{write} of 5001, bad rkey: REM_ACCESS_ERR", write, access, {"bad_key": True, "length": 5001}, {}
    for op in (write, read):
        yield f"{op}, one byte past the end: REM_ACCESS_ERR", op, access, {"past_end": True, "length": 4000}, {}
    for op in (write, read, fetch):
        yield f"{op}, the region lacks the right: REM_ACCESS_ERR", op, access, {}, {"rights": others(op)}
    for op in (write, read, fetch):
        yield f"{op}, the QP lacks the right: REM_INV_REQ_ERR", op, invalid, {}, {"qp_rights": others(op)}
    yield f"{fetch}, unaligned: REM_INV_REQ_ERR", fetch, invalid, {"offset": 4}, {}


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    peer = f"{sys.executable} {HERE / 'peer.py'} softverbs.pyverbs"
    parser.add_argument("--vm", required=True, help="rxe-vm's run-in-vm with its arguments")
    parser.add_argument("--host", default=peer, help="starts the host's peer.py")
    parser.add_argument("--host-addresses", default="10.77.0.1,fd77::1")
    parser.add_argument("--vm-addresses", default="10.77.0.2,fd77::2")
    parser.add_argument("--sections", default=",".join(SECTIONS), help="default: %(default)s")
    parser.add_argument("--mtus", default="1024,4096", help="path MTUs (default: %(default)s)")
    parser.add_argument(
        "--types", default=",".join(pingpong.RUNS), help="in the section pingpong (default: %(default)s)"
    )
    parser.add_argument("--loss", type=float, default=5, help="percent, in the section loss (default: %(default)g)")
    parser.add_argument("--table", default="interop.tsv", help="where each case is written to")
    parser.add_argument("--capture", metavar="DEVICE", help="interface whose frames are captured and checked")
    parser.add_argument("--softverbs", default=f"{sys.executable} -m softverbs", help="for the section pingpong")
    options = parser.parse_args()
    options.sections, options.types = options.sections.split(","), options.types.split(",")
    options.mtus = [int(mtu) for mtu in options.mtus.split(",")]
    for what, given, known in (("section", options.sections, SECTIONS), ("type", options.types, pingpong.RUNS)):
        if unknown := set(given) - set(known):
            parser.error(f"no such {what}: {', '.join(unknown)}")
    options.vm = shlex.split(options.vm)
    return options


def check_drops(host: Remote) -> None:
    """Wrong if softverbs threw frames away that a good peer does not send, or that were not for it."""
    stats = host.call("stats")
    found = {name: stats[f"dropped_{name}"] for name in DROPS if stats.get(f"dropped_{name}")}
    if found:
        raise Wrong(f"{host.name} dropped frames: {found}")


def run_sections(options: argparse.Namespace, report: Report, watch: "Callable[[str], Any]") -> None:
    """All sections asked for but the last."""
    run_in_vm, *which = options.vm
    command = [run_in_vm, "-t", "100000", "-i", *which, "python3", "/host/peer.py", "pyverbs", "rxe0"]
    vm = Remote("vm", command, options.vm_addresses)
    host = Remote("host", shlex.split(options.host), options.host_addresses)
    for remote in (host, vm):
        about = remote.about
        counters = "has" if about["counters"] else "no"
        print(f"{remote.name + ':':<5} {about['package']}, Python {about['python']}, {counters} completion counters")
    matrix = Matrix(host, vm, options.vm, report, options.loss, options.mtus)
    for section in SECTIONS[:-1]:
        if section in options.sections:
            with report.section(section), watch(section):
                getattr(matrix, section)()
                with report.case("host", "no frame was dropped for its form, its ICRC or its source"):
                    check_drops(host)
    host.stop()
    vm.stop()


def main() -> int:
    """Runs the sections; the exit status."""
    options = arguments()
    report = Report(options.table)
    print(
        subprocess.run([*options.vm, "sh", "-c", VERSIONS], check=True, capture_output=True, text=True).stdout, end=""
    )
    watcher = None
    watch: "Callable[[str], Any]" = contextlib.nullcontext
    ours = options.host_addresses.split(",")
    if options.capture:
        watcher = Wire(report, options.capture, ours, pathlib.Path(options.table).resolve().parent)
        watch = watcher.watch
    try:
        if set(options.sections) != {"pingpong"}:
            run_sections(options, report, watch)
        if "pingpong" in options.sections:
            with report.section("pingpong"), watch("pingpong"):
                theirs = options.vm_addresses.split(",")
                for kind in options.types:
                    pingpong.run(report, kind, options.vm, shlex.split(options.softverbs), ours, theirs)
    finally:
        if watcher is not None:
            watcher.close()
    print(
        f"\n{report.summary()}\n\ninterop: {'FAILED' if report.failed else 'passed'}; each case is in {options.table}"
    )
    return 1 if report.failed else 0


if __name__ == "__main__":
    sys.exit(main())
