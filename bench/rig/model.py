# SPDX-License-Identifier: MIT
"""What the benchmark is made of: cases, samples and rows."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from dataclasses import dataclass, field

SIZES = (8, 4096, 65536, 1 << 20)

LATENCY = "us"
RATE = "op/s"
BANDWIDTH = "GB/s"

LOCAL = "In one process: post to completion"
LOCAL_RATE = "In one process: rate"
TURNS = "Two processes: a write or message, half a round trip"
COMPLETION = "Two processes: one operation, from post to confirmed end"
STREAM = "Two processes: rate and bandwidth"
C_WRITE = "C face, latency: RDMA WRITE, half a round trip"
C_SEND = "C face, latency: SEND, half a round trip"
C_READ = "C face, latency: RDMA READ, a whole operation"
C_WRITES = "C face, bandwidth: RDMA WRITE"
C_SENDS = "C face, bandwidth: SEND"
C_READS = "C face, bandwidth: RDMA READ"
C_SECTIONS = (C_WRITE, C_SEND, C_READ, C_WRITES, C_SENDS, C_READS)
SECTIONS = (LOCAL, LOCAL_RATE, TURNS, COMPLETION, STREAM, *C_SECTIONS)


class Missing(Exception):
    """A program or package that a case needs is not on this machine; the text says which."""


class Failed(Exception):
    """A measurement ended without a figure; the text says why."""


def as_figure(seconds: float, unit: str, size: int) -> float:
    """Turn the seconds for one operation into ``unit``."""
    if unit == LATENCY:
        return seconds * 1e6
    return 1 / seconds if unit == RATE else size / seconds / 1e9


def size_name(size: int) -> str:
    """``size`` bytes, in words."""
    for factor, name in ((1 << 20, "MiB"), (1 << 10, "KiB")):
        if size >= factor:
            return f"{size // factor} {name}"
    return f"{size} B"


def stream_unit(size: int) -> str:
    """How a stream is given: small messages in operations a second, large ones in bytes a second."""
    return RATE if size < 4096 else BANDWIDTH


@dataclass(frozen=True)
class Reading:
    """What a program says of one sample that knows the latency of each of its operations.

    Attributes:
        value: the figure: the median.
        mean: the mean, to be held against programs that know no median.
    """

    value: float
    mean: float


@dataclass(frozen=True)
class Plan:
    """How much to measure.

    Attributes:
        seconds: about how long one sample may take, without start-up.
        rounds: samples wanted of each case.
        limit: foreign CPU share, a fraction of one core, above which a sample is disturbed.
        patience: seconds that the whole run may spend on waiting for calm and on repeating disturbed samples.
        cores: the cores of the passive and of the active side.
        budget: seconds after which no further round is begun, by the duration of those before.
        whole: every case is measured, not a choice of them.
    """

    seconds: float
    rounds: int
    limit: float
    patience: float
    cores: tuple[int, int]
    budget: float = math.inf
    whole: bool = True


@dataclass(frozen=True)
class Case:
    """One figure to measure, by one program, at one size.

    Attributes:
        section: the table that it belongs to.
        subject: who is measured: the row of the table.
        unit: LATENCY, RATE or BANDWIDTH.
        size: message size in bytes.
        run: takes a sample, in ``unit``; raises Missing or Failed.
        by_mean: the program says a mean only, so it is compared with the means of others.
    """

    section: str
    subject: str
    unit: str
    size: int
    run: Callable[[Plan], float | Reading] = field(repr=False, compare=False)
    by_mean: bool = False

    @property
    def key(self) -> tuple[str, str, int]:
        """What comparisons look rows up by: section, subject and size."""
        return self.section, self.subject, self.size


@dataclass(frozen=True)
class Sample:
    """One measurement and what the gate saw while it ran."""

    value: float
    foreign_share: float
    steal_share: float
    clean: bool
    mean: float | None = None


@dataclass
class Row:
    """A case with its samples.

    ``state`` is ``ok``, ``disturbed`` (too few clean samples: the figure is of all of them), ``missing`` or ``failed``.
    """

    case: Case
    samples: list[Sample] = field(default_factory=list)
    failures: int = 0
    missing: bool = False
    note: str = ""
    wanted: int = 1

    @property
    def clean(self) -> list[Sample]:
        """The samples that nothing disturbed."""
        return [sample for sample in self.samples if sample.clean]

    @property
    def state(self) -> str:
        """Whether the figure can be trusted."""
        if self.missing:
            return "missing"
        if not self.samples:
            return "failed"
        return "ok" if 2 * len(self.clean) >= self.wanted else "disturbed"

    @property
    def used(self) -> list[Sample]:
        """The samples that the figure is made of: the clean ones, or all if too few are clean."""
        return self.clean if self.state == "ok" else self.samples

    @property
    def values(self) -> list[float]:
        """The values that the figure is made of, ascending."""
        return sorted(sample.value for sample in self.used)

    @property
    def median(self) -> float | None:
        """The figure, or None if there is none."""
        return statistics.median(self.values) if self.values else None

    @property
    def mean(self) -> float | None:
        """The median of the samples' means; None where they have none."""
        means = [sample.value if self.case.by_mean else sample.mean for sample in self.used]
        known = [mean for mean in means if mean is not None]
        return statistics.median(known) if known else None
