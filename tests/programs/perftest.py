# SPDX-License-Identifier: MIT
"""perftest's programs with their options: what may be combined, how a run is judged, and what figures it gave."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from tests.programs.running import Outcome, Served, free_port, pair, program

VERBS = ("send", "write", "read", "atomic")
#: The transports that a verb has on a program's command line.
TRANSPORTS = {"send": ("RC", "UC", "UD", "XRC"), "write": ("RC", "UC", "XRC"), "read": ("RC", "XRC"),
              "atomic": ("RC", "XRC")}  # fmt: skip
#: Words on the command line, and the programs that know them: (verb, bw or lat).
OPTIONS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "": (VERBS, ("bw", "lat")),
    "-a": (("send", "write", "read"), ("bw", "lat")),
    "-s 65536": (("send", "write", "read"), ("bw", "lat")),
    "-q 8": (VERBS, ("bw",)),
    "-e": (("send", "read", "atomic"), ("bw", "lat")),
    "-e -q 8": (("send", "read", "atomic"), ("bw",)),
    "--use-srq": (("send",), ("bw", "lat")),
    "--use-srq -e -q 8": (("send",), ("bw",)),
    "-b": (VERBS, ("bw",)),
    "-b -q 8": (VERBS, ("bw",)),
    "-b -e": (("send", "read", "atomic"), ("bw",)),
    "-a -b": (("send", "write", "read"), ("bw",)),
    "-a -e": (("send", "read"), ("bw", "lat")),
    "-D 5": (VERBS, ("bw", "lat")),
    "-D 5 -q 8": (VERBS, ("bw",)),
    "-D 5 -b": (VERBS, ("bw",)),
    "-I 60": (("send", "write"), ("bw", "lat")),
    "-l 8": (VERBS, ("bw",)),
    "-m 1024": (VERBS, ("bw", "lat")),
    "-Q 1 -t 8": (VERBS, ("bw",)),
    "-o 1": (("read", "atomic"), ("bw", "lat")),
    "-A CMP_AND_SWAP": (("atomic",), ("bw", "lat")),
    "--use_old_post_send": (VERBS, ("bw", "lat")),
    "--mr_per_qp -q 8": (VERBS, ("bw",)),
}
#: A row of figures. One with nan or inf is none.
_ROW = re.compile(r"^[ \t]*\d+[ \t]+\d+[ \t]+[\d. \t]+$", re.MULTILINE)
_COMPLAINT = re.compile(
    r"couldn't|failed|failure|unable|completion with error|not supported|unsupported|problem|unexpected", re.IGNORECASE
)


@dataclass(frozen=True)
class Case:
    """One run: a program of perftest, a transport, and more options."""

    verb: str
    test: str
    transport: str
    options: str

    @property
    def program(self) -> str:
        return f"ib_{self.verb}_{self.test}"

    def __str__(self) -> str:
        return f"{self.program} -c {self.transport} {self.options}".rstrip()

    @classmethod
    def of(cls, text: str) -> Case:
        """The case of a command line such as ``ib_send_bw -c UC -q 8``."""
        name, _, options = text.partition(" ")
        _, verb, test = name.split("_")
        transport = "RC"
        if options.startswith("-c "):
            _, transport, *rest = options.split(" ", 2)
            options = "".join(rest)
        return cls(verb, test, transport, options)


def cases() -> Iterator[Case]:
    """Every program with every transport and option that it has."""
    for verb in VERBS:
        for test in ("bw", "lat"):
            for transport in TRANSPORTS[verb]:
                for options, (verbs, tests) in OPTIONS.items():
                    if verb in verbs and test in tests and _applies(transport, options):
                        yield Case(verb, test, transport, options)


def _applies(transport: str, options: str) -> bool:
    """Whether a transport has an option.

    Datagrams are no longer than the MTU. And what is unreliable must not lose a message, for which perftest would wait
    without end: so each has its receive in advance, which is not so with one SRQ of ``-n`` receives for eight QPs.
    """
    if transport == "UD" and "65536" in options:
        return False
    return transport not in ("UC", "UD") or options != "--use-srq -e -q 8"


def run(case: Case, iterations: int, server: Served, client: Served, timeout: float = 60) -> Outcome:
    """Runs a case between two devices, or on one.

    :param case: what to run
    :param iterations: exchanges, where the case does not say ``-D``
    :param server: the device of the server
    :param client: the device of the client, which may be the same
    :param timeout: seconds
    """
    path, variables = program(case.program)
    port = free_port()
    words = [path, "-p", port, "-F", "-c", case.transport, *case.options.split()]
    if "-D" not in words:
        words += ["-n", str(iterations)]
    return pair(words, port, server.environment(variables), client.environment(variables), timeout)


def figures(text: str) -> list[list[float]]:
    """The rows of figures that a program printed: (bytes, iterations, …)."""
    return [[float(word) for word in row.split()] for row in (match.group() for match in _ROW.finditer(text))]


def complaint(case: Case, outcome: Outcome) -> str:
    """What is wrong with a run; empty where nothing is."""
    if not outcome.succeeded:
        sides = zip(("server", "client"), outcome.codes, (outcome.server, outcome.client), strict=True)
        return "; ".join(f"{side}: {_ended(code)}{_last(text)}" for side, code, text in sides if code != 0)
    if found := _COMPLAINT.search(outcome.server + outcome.client):
        whole = outcome.server + outcome.client
        return whole[whole.rfind("\n", 0, found.start()) + 1 :].split("\n")[0].strip()
    rows = figures(outcome.client)
    sizes = [row[0] for row in rows]
    if "-a" in case.options.split():
        wanted = [2.0**power for power in range(1, 24)]
        if case.transport == "UD":
            wanted = wanted[: len(sizes)] if len(sizes) >= 10 else wanted
        if sizes != wanted:
            return f"figures of the sizes {sizes} only"
    elif len(rows) != 1:
        return f"{len(rows)} rows of figures"
    return ""


def _ended(code: int | None) -> str:
    return "had to be killed" if code is not None and code < 0 else f"exit status {code}"


def _last(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip() and set(line.strip()) != {"-"}]
    return f", {lines[-1]}" if lines else ""
