# SPDX-License-Identifier: MIT
"""``ibv_rc_pingpong -c`` in the virtual machine against ``softverbs pingpong`` here, each as server and client.

So too ``ibv_uc_pingpong``, ``ibv_ud_pingpong`` and ``ibv_srq_pingpong``, against ``--type uc``, ``ud`` and ``srq``.
"""

import os
import signal
import subprocess
import time

from remote import FAMILIES, Report, Wrong

PORT = 18515
WAIT = 180  # seconds for one run; the machine is emulated
Run = tuple[str, list[str], list[str]]  # name, arguments of both sides, arguments of ours only
CONNECTED: "tuple[Run, ...]" = (
    ("mtu 1024, 4096 bytes", ["-m", "1024", "-s", "4096", "-n", "100"], []),
    ("mtu 1024, 1 byte", ["-m", "1024", "-s", "1", "-n", "100"], []),
    ("mtu 4096, 5001 bytes", ["-m", "4096", "-s", "5001", "-n", "100"], []),
    ("mtu 4096, 65536 bytes, -e", ["-m", "4096", "-s", "65536", "-n", "20"], ["-e"]),
)
RUNS: "dict[str, tuple[Run, ...]]" = {
    "rc": (*CONNECTED, ("mtu 1024, 1000000 bytes", ["-m", "1024", "-s", "1000000", "-n", "5"], [])),
    "uc": CONNECTED,
    "ud": (
        ("1024 bytes", ["-s", "1024", "-n", "100"], []),
        ("1 byte", ["-s", "1", "-n", "100"], []),
        ("4095 bytes", ["-s", "4095", "-n", "100"], []),
        ("4096 bytes, -e", ["-s", "4096", "-n", "100"], ["-e"]),
    ),
    "srq": (
        ("mtu 1024, 4096 bytes, 16 QPs", ["-m", "1024", "-s", "4096", "-n", "100"], []),
        ("mtu 4096, 5001 bytes, 3 QPs", ["-m", "4096", "-s", "5001", "-n", "50", "-q", "3"], []),
        ("mtu 1024, 1 byte, 5 QPs with 5 receives", ["-m", "1024", "-s", "1", "-n", "50", "-q", "5", "-r", "5"], []),
        ("mtu 4096, 65536 bytes, 4 QPs, -e", ["-m", "4096", "-s", "65536", "-n", "20", "-q", "4"], ["-e"]),
    ),
}
DEFAULTS = "by default 1000 times 4096 bytes, ours without options"


def listening(shell: "list[str]") -> None:
    """Waits until something listens on PORT: here, or in the machine, where ``shell`` runs a command."""
    test = f"cat /proc/net/tcp /proc/net/tcp6 2>/dev/null | grep -q ':{PORT:04X} [0-9A-F:]* 0A '"
    command = [*shell, "sh", "-c", f"i=0; until {test}; do i=$((i+1)); [ $i -lt 300 ] || exit 1; sleep 0.1; done"]
    if subprocess.run(command, check=False).returncode:
        raise Wrong("the server does not listen")


def kill(process: "subprocess.Popen[str]") -> str:
    """Ends the process and its children, which it started in a session of their own. What it had printed."""
    os.killpg(process.pid, signal.SIGKILL)
    return process.communicate()[0]


def finish(process: "subprocess.Popen[str]", name: str, stop: float) -> None:
    """Wrong unless the process ends well in time, and its output has no word of bad data."""
    try:
        output = process.communicate(timeout=max(1, stop - time.monotonic()))[0]
    except subprocess.TimeoutExpired:
        raise Wrong(f"{name} does not end: {kill(process).strip()[-300:]}") from None
    if process.returncode:
        raise Wrong(f"{name} ended with {process.returncode}: {output.strip()[-300:]}")
    if "invalid data" in output or "iters in" not in output:
        raise Wrong(f"{name} says: {output.strip()[-300:]}")


def once(
    server: "list[str]",
    client: "list[str]",
    server_shell: "list[str]",
    names: "tuple[str, str]",
    ours: "dict[str, str]",
) -> None:
    """One run, to its end."""

    def start(command: "list[str]") -> "subprocess.Popen[str]":
        return subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=ours, start_new_session=True
        )

    stop = time.monotonic() + WAIT
    first = start(server)
    second = None
    try:
        listening(server_shell)
        second = start(client)
        finish(second, names[1], stop)
        finish(first, names[0], stop)
    finally:
        for process in (first, second):
            if process is not None and process.poll() is None:
                kill(process)


def run(
    report: Report, kind: str, shell: "list[str]", softverbs: "list[str]", host: "list[str]", vm: "list[str]"
) -> None:
    """All runs with one type of queue pair.

    :param kind: one of RUNS
    :param shell: runs a command in the machine
    :param softverbs: our command line
    :param host: the host's IPv4 and IPv6 address
    :param vm: the machine's
    """
    environment = {**os.environ, "SOFTVERBS_ADDRESS": ",".join(host)}
    bare = {name: value for name, value in os.environ.items() if name != "SOFTVERBS_ADDRESS"}
    guarded = [*shell[:1], "-t", str(WAIT), *shell[1:]]
    program = f"ibv_{kind}_pingpong"
    for index, family in enumerate(FAMILIES):
        group = f"pingpong {kind} {family}"
        theirs = [*guarded, program, "-d", "rxe0", "-g", str(index + 1), "-c"]
        mine = [*softverbs, "pingpong", "--type", kind, "-g", str(index), "-c"]
        for name, both, only in RUNS[kind]:
            with report.group(group, f"softverbs server and client against {program}, {name}"):
                with report.case(group, f"softverbs is the server, {name}"):
                    once([*mine, *both, *only], [*theirs, *both, host[index]], [], ("softverbs", program), environment)
                with report.case(group, f"softverbs is the client, {name}"):
                    # its server listens on IPv4 only, whatever the device's address is
                    once([*theirs, *both], [*mine, *both, *only, vm[0]], shell, (program, "softverbs"), environment)
        if kind != "rc":
            continue
        with report.group(group, DEFAULTS):
            mine = [*softverbs, "pingpong"]
            with report.case(group, "softverbs is the server, defaults"):
                once(mine, [*theirs, host[index]], [], ("softverbs", program), bare)
            if family == "IPv4":  # the client's device takes its address from the connection to the server
                with report.case(group, "softverbs is the client, defaults"):
                    once(theirs, [*mine, vm[0]], shell, (program, "softverbs"), bare)
