# SPDX-License-Identifier: MIT
"""Who used the CPU while we measured.

A benchmark on a small machine is only as good as the quiet around it: with two cores, one busy neighbour moves a
latency by a factor of 4 to 30. So every measurement stands between two snapshots, and the difference says

- ``foreign``: CPU time that neither this process nor its children used. It is the time of the other processes, from
  their accounts in ``/proc``, plus what ``/proc/stat`` counted as busy and no account explains: short-lived processes,
  and those of another PID namespace.
- ``steal``: CPU time that the hypervisor gave to somebody else.

Our own share comes from ``getrusage``: this process and the children that it has waited for, so every process of a
measurement must have been waited for when the second snapshot is taken.
"""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
KERNEL_THREAD = 0x0020_0000  # PF_KTHREAD in the kernel's task flags
# ksoftirqd delivers our own packets when the kernel is behind; its time is ours.
OWN_KERNEL_THREADS = ("ksoftirqd/",)
# /proc/stat counts whole ticks on each core; less than this, in ticks a core, says nothing.
TICK_NOISE = 2
CALM_WINDOW_S = 0.2


@dataclass(frozen=True)
class Snapshot:
    """The machine's CPU accounts at one moment; every time in seconds."""

    wall: float
    busy: float
    steal: float
    own: float
    own_kernel: float
    others: dict[tuple[int, str], float] = field(repr=False)


@dataclass(frozen=True)
class Usage:
    """What happened between two snapshots; shares are fractions of one core."""

    wall: float
    foreign: float
    steal: float

    @property
    def foreign_share(self) -> float:
        """Foreign CPU time over elapsed time: 1.0 is one core busy with somebody else's work."""
        return self.foreign / self.wall if self.wall > 0 else 0.0

    @property
    def steal_share(self) -> float:
        """Stolen CPU time over elapsed time, summed over the cores."""
        return self.steal / self.wall if self.wall > 0 else 0.0

    def disturbed(self, limit: float) -> bool:
        """Whether the foreign or the stolen share is above ``limit``, a fraction of one core."""
        return self.foreign_share > limit or self.steal_share > limit


def _machine_time() -> tuple[float, float]:
    """Busy and stolen seconds of all cores since boot, from the first line of ``/proc/stat`` (proc_stat(5))."""
    with open("/proc/stat", encoding="ascii") as file:
        fields = [int(word) for word in file.readline().split()[1:]]
    user, nice, system, _idle, _iowait, irq, softirq, steal = fields[:8]
    return (user + nice + system + irq + softirq) / TICKS_PER_SECOND, steal / TICKS_PER_SECOND


def _process_time(pid: str, fallback_ticks: int) -> float:
    """Seconds that the living threads of ``pid`` have run: nanosecond accounts where the kernel keeps them."""
    total = 0
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/schedstat", encoding="ascii") as file:
                total += int(file.readline().split()[0])
    except (OSError, IndexError, ValueError):
        return fallback_ticks / TICKS_PER_SECOND
    return total / 1e9


def _processes() -> Iterator[tuple[tuple[int, str], bool, float]]:
    """Every other process: its key (PID and start time), whether its time counts as ours, and its seconds."""
    own = str(os.getpid())
    for pid in os.listdir("/proc"):
        if not pid.isdigit() or pid == own:
            continue
        try:
            with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
                text = file.read()
        except OSError:  # it ended while we looked
            continue
        # The name is in parentheses and may hold anything, so split after the last one.
        name = text[text.index("(") + 1 : text.rindex(")")]
        fields = text[text.rindex(")") + 2 :].split()
        flags, ticks, started = int(fields[6]), int(fields[11]) + int(fields[12]), fields[19]
        ours = bool(flags & KERNEL_THREAD) and name.startswith(OWN_KERNEL_THREADS)
        yield (int(pid), started), ours, _process_time(pid, ticks)


def _own_time() -> float:
    """Seconds that this process and the children it has waited for have used."""
    total = 0.0
    for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN):
        used = resource.getrusage(who)
        total += used.ru_utime + used.ru_stime
    return total


def snapshot() -> Snapshot:
    """Read the machine's CPU accounts now."""
    others: dict[tuple[int, str], float] = {}
    own_kernel = 0.0
    for key, ours, seconds in _processes():
        if ours:
            own_kernel += seconds
        else:
            others[key] = seconds
    busy, steal = _machine_time()
    return Snapshot(time.monotonic(), busy, steal, _own_time(), own_kernel, others)


def between(before: Snapshot, after: Snapshot) -> Usage:
    """Tell what was used from one snapshot to the next."""
    seen = sum(max(0.0, used - before.others.get(key, 0.0)) for key, used in after.others.items())
    own = after.own - before.own + after.own_kernel - before.own_kernel
    noise = TICK_NOISE * (os.cpu_count() or 1) / TICKS_PER_SECOND
    unexplained = max(0.0, after.busy - before.busy - own - seen - noise)
    return Usage(after.wall - before.wall, seen + unexplained, after.steal - before.steal)


def wait_for_calm(limit: float, patience: float) -> float:
    """Wait until the machine is quiet.

    Args:
        limit: the foreign share, a fraction of one core, that counts as quiet.
        patience: how long to wait at most, in seconds.

    Returns:
        How long it waited, in seconds; at least ``patience`` if it never became quiet.
    """
    start = time.monotonic()
    while True:
        before = snapshot()
        time.sleep(CALM_WINDOW_S)
        if not between(before, snapshot()).disturbed(limit):
            return time.monotonic() - start
        if time.monotonic() - start >= patience:
            return max(patience, time.monotonic() - start)


def cores() -> tuple[int, int]:
    """Two cores to pin the two sides of a measurement to; the same one twice where there is only one."""
    usable = sorted(os.sched_getaffinity(0))
    return usable[0], usable[1 % len(usable)]
