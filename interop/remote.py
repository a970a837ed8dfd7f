# SPDX-License-Identifier: MIT
"""The controller's view of the two sides: processes that obey orders, and pairs of connected queue pairs."""

import contextlib
import ipaddress
import json
import random
import select
import subprocess
import time
from typing import Any, Callable, Iterator, Optional

STATUS = {
    0: "SUCCESS", 1: "LOC_LEN_ERR", 2: "LOC_QP_OP_ERR", 4: "LOC_PROT_ERR", 5: "WR_FLUSH_ERR", 9: "REM_INV_REQ_ERR",
    10: "REM_ACCESS_ERR", 11: "REM_OP_ERR", 12: "RETRY_EXC_ERR", 13: "RNR_RETRY_EXC_ERR", 21: "GENERAL_ERR",
}  # fmt: skip
FAMILIES = ("IPv4", "IPv6")
ALL_RIGHTS = ["REMOTE_WRITE", "REMOTE_READ", "REMOTE_ATOMIC"]
DEFAULTS: "dict[str, Any]" = {
    "size": 1 << 20, "mtu": 1024, "rd_atomic": 4, "min_rnr_timer": 12, "timeout": 14, "retry_cnt": 7, "rnr_retry": 7,
    "signal_all": 1, "rights": ALL_RIGHTS, "qp_rights": ALL_RIGHTS, "counters": "WRS", "type": "RC",
}  # fmt: skip
PATIENCE = 60.0  # seconds that any one step may take; emulation is slow


class Wrong(Exception):
    """Something is not as the specification says."""


class Refused(Exception):
    """A side raised an exception; ``errno`` is that of verbs, if any."""

    def __init__(self, text: str, errno: Optional[int]) -> None:
        super().__init__(text)
        self.errno = errno


class Remote:
    """A running peer.py. Its orders are called like methods."""

    def __init__(self, name: str, command: "list[str]", addresses: str) -> None:
        """
        :param name: for the table
        :param command: starts peer.py
        :param addresses: its IPv4 and IPv6 address, with a comma between
        """
        self.name, self.command, self.addresses = name, command, addresses.split(",")
        self.start()

    def start(self) -> None:
        """Starts the process and asks what it is."""
        self.process = subprocess.Popen(self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.about = self.call("hello")
        self.gid_index = {}
        for family, address in zip(FAMILIES, self.addresses, strict=True):
            text = "::ffff:" + address if family == "IPv4" else address
            self.gid_index[family] = self.about["gids"].index(ipaddress.IPv6Address(text).exploded)

    def stop(self) -> None:
        """Lets the process end; kills it if it does not."""
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it is gone already
            self.process.stdin.close()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()

    def call(self, do: str, **arguments: Any) -> Any:
        """The result of an order; Refused if it raised; Wrong if the process hangs or is gone."""
        stdin, stdout = self.process.stdin, self.process.stdout
        assert stdin is not None and stdout is not None
        try:
            stdin.write(json.dumps({"do": do, **arguments}).encode() + b"\n")
            stdin.flush()
        except BrokenPipeError:
            raise Wrong(f"{self.name} is gone") from None
        if not select.select([stdout], [], [], PATIENCE + arguments.get("seconds", 0))[0]:
            self.process.kill()
            raise Wrong(f"{self.name} does not answer {do}")
        line = stdout.readline()
        if not line:
            raise Wrong(f"{self.name} ended during {do}")
        answer = json.loads(line)
        if "error" in answer:
            raise Refused(f"{self.name}: {do}: {answer['error']}", answer["errno"])
        return answer["ok"]


class Side:
    """One end of a pair: orders for it need no number."""

    def __init__(self, remote: Remote, family: str, psn: int, options: "dict[str, Any]") -> None:
        self.remote = remote
        self.options = {**DEFAULTS, **options}
        self.about = remote.call("open", gid_index=remote.gid_index[family], psn=psn, **self.options)
        self.end = self.about["end"]
        self.counted: "dict[str, list[int]]" = {}  # what the counters must say

    def __getattr__(self, do: str) -> Callable[..., Any]:
        return lambda *values, **named: self.remote.call(
            do, end=self.end, **dict(zip(ORDERS[do], values, strict=False)), **named
        )

    def succeeded(self, operations: "tuple[str, ...]", length: int) -> None:
        """From now on the counters of ``operations`` are to be higher by one success, or by its bytes."""
        for name in operations:
            self.counted.setdefault(name, [0, 0])[0] += length if self.options["counters"] == "BYTES" else 1

    def failed(self, *operations: str) -> None:
        """From now on the counters of ``operations`` are to have one more error."""
        for name in operations:
            self.counted.setdefault(name, [0, 0])[1] += 1

    def check_counters(self, role: str) -> None:
        """Every counter has exactly the expected values, where there are counters."""
        for name, values in self.count().items():
            want = self.counted.get(name, [0, 0])
            if values != want:
                raise Wrong(f"{role}'s counter {name} is {values[0]} / {values[1]}, not {want[0]} / {want[1]}")


ORDERS = {  # names of the positional arguments
    "clear": ("length", "offset"), "fill": ("seed", "length", "offset"), "check": ("seed", "length", "offset"),
    "store": ("value", "offset"), "load": ("offset",), "recv": ("length", "offset", "wr_id"), "post": ("requests",),
    "grh": (), "attach": ("group",), "detach": ("group",), "aim": ("group",),
    "poll": ("count", "seconds"), "count": (), "state": (), "connect": ("remote",), "close": (), "close_qp": (),
}  # fmt: skip


class Pair:
    """Two connected queue pairs: ``initiator`` posts, ``target`` is what it is posted to."""

    def __init__(
        self,
        initiator: Remote,
        target: Remote,
        family: str,
        target_options: "dict[str, Any] | None" = None,
        **options: Any,
    ) -> None:
        generator = random.Random(f"{initiator.name}{family}{options}")
        # the sequence numbers pass from 2^24 - 1 to 0 soon
        self.initiator = Side(initiator, family, 0xFFFF00 + generator.randrange(256), options)
        self.target = Side(target, family, 0xFFFF00 + generator.randrange(256), {**options, **(target_options or {})})
        try:
            self.target.connect(self.initiator.about)
            self.initiator.connect(self.target.about)
        except Refused:
            self.close()
            raise

    def close(self) -> None:
        """Both ends."""
        self.initiator.close()
        self.target.close()

    def check_counters(self) -> None:
        """Both ends."""
        self.initiator.check_counters("initiator")
        self.target.check_counters("target")

    def check_idle(self) -> None:
        """No completion is left anywhere."""
        for role, side in (("initiator", self.initiator), ("target", self.target)):
            left = side.poll(1, 0)
            if left:
                raise Wrong(f"the {role} has an unexpected completion: {left[0]}")


class Report:
    """The table: one record a case, one printed line a group of cases, and a summary of the sections."""

    def __init__(self, path: str) -> None:
        self.file = open(path, "w")  # noqa: SIM115 - stays open
        self.passed = self.failed = 0
        self.name = ""  # of the section
        self.sections: "dict[str, tuple[int, int, float]]" = {}  # passed, failed, seconds

    @contextlib.contextmanager
    def section(self, name: str) -> Iterator[None]:
        """Names the cases in it, and adds them up."""
        passed, failed, started = self.passed, self.failed, time.monotonic()
        self.name = name
        try:
            yield
        finally:
            good, bad = self.passed - passed, self.failed - failed
            self.sections[name] = good, bad, time.monotonic() - started

    def summary(self) -> str:
        """The sections, one a line, and a last line on all."""
        lines = [f"{'section':<10} {'passed':>7} {'failed':>7} {'seconds':>8}"]
        for name, (good, bad, seconds) in self.sections.items():
            lines.append(f"{name:<10} {good:7} {bad:7} {seconds:8.1f}")
        seconds = sum(entry[2] for entry in self.sections.values())
        lines.append(f"{'all':<10} {self.passed:7} {self.failed:7} {seconds:8.1f}")
        return "\n".join(lines)

    @contextlib.contextmanager
    def case(self, group: str, what: str) -> Iterator[None]:
        """Runs one case; what it raises is a failure and is printed at once."""
        started = time.monotonic()
        problem = ""
        try:
            yield
        except (Wrong, Refused, ValueError) as error:
            problem = str(error) or type(error).__name__
        self.file.write(f"{self.name}\t{group}\t{what}\t{problem or 'ok'}\t{time.monotonic() - started:.3f}\n")
        self.file.flush()
        if problem:
            self.failed += 1
            print(f"FAIL  {group}  {what}: {problem}", flush=True)
        else:
            self.passed += 1

    @contextlib.contextmanager
    def group(self, name: str, what: str) -> Iterator[None]:
        """Prints one line for all cases in it."""
        passed, failed, started = self.passed, self.failed, time.monotonic()
        yield
        good, bad = self.passed - passed, self.failed - failed
        result = f"{bad} FAILED, {good} ok" if bad else f"{good} ok"
        print(f"{name:<32} {what:<76} {time.monotonic() - started:6.1f} s  {result}", flush=True)
