# SPDX-License-Identifier: MIT
"""Write what was measured: a Markdown report, and the figures as CSV and JSON."""

from __future__ import annotations

import csv
import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from rig import compare
from rig.model import BANDWIDTH, C_SECTIONS, LATENCY, RATE, SECTIONS, SIZES, Plan, Row, size_name

MARK = "†"
COLUMNS = ("section", "subject", "size", "unit", "median", "min", "max", "mean", "samples", "clean", "state", "note")
C_NOTES = """\
What the figures of the C face are, and what they were measured with:

- `ib_*_lat`: perftest's `t_typical`, the median; half a round trip for WRITE and SEND, the whole operation for READ.
- `ucx_perftest`: its 50th percentile of half a round trip (`ucp_put_lat`, `tag_lat`).
- `fi_pingpong`: half a round trip of a message, but the mean over the test. So the ratios with it are between means:
  those of perftest are in the table of means.
- bandwidth and rate: `ib_*_bw`'s average and `ucx_perftest`'s overall, with many operations outstanding; 1 GB is 1e9
  bytes.
- WRITE compares with UCX put, SEND with tag, READ with get. Debian has no program for RMA over libfabric, so its
  messages stand beside WRITE too.
- The peers are two processes, each pinned to a core, and each polls. Ours are three on one device (two programs and the
  device) and four on two devices, all of which poll, placed by the kernel. With fewer cores than that they take each
  other's turns: a program that polls its memory (`ib_write_lat`) gives way to the device only when its time slice is
  over, milliseconds later. It makes the mean much longer than the median, and where more than half of the
  operations are hit, the median too. `-e` sleeps instead.
- One device with two programs moves the data in memory, from one process to the other; two devices talk by RoCEv2 over
  UDP. Their peers are UCX over shared memory, and UCX over TCP and libfabric's `udp;ofi_rxd`.
- UCX's put and get over shared memory are for memory that UCX has allocated: the program copies by itself, and nobody
  else takes part. Its tag moves the program's own memory, as verbs do: it is the peer that does the same work.
"""


def figure(value: float, unit: str) -> str:
    """A figure with its unit, in three digits."""
    if unit == LATENCY and value >= 1000:
        return f"{value / 1000:.3g} ms"
    if unit == RATE:
        return f"{value / 1e6:.3g} M/s" if value >= 1e6 else f"{value / 1e3:.3g} k/s"
    if unit == BANDWIDTH and value < 1:
        return f"{value * 1000:.3g} MB/s"
    return f"{value:.3g} {'µs' if unit == LATENCY else unit}"


def _means(rows: Sequence[Row]) -> list[str]:
    """The means of the C face's latencies, beside those of programs that know no median."""
    found: dict[str, dict[int, str]] = {}
    for row in rows:
        if row.case.section in C_SECTIONS and row.mean is not None:
            mark = MARK if row.state == "disturbed" else ""
            found.setdefault(row.case.subject, {})[row.case.size] = figure(row.mean, row.case.unit) + mark
    if not found:
        return []
    lines = [[subject, *(cells.get(size, "") for size in SIZES)] for subject, cells in found.items()]
    return ["## C face, latency: means of the same samples", "", *table(["", *map(size_name, SIZES)], lines)]


def cell(row: Row | None) -> str:
    """A row's cell in the table: median (minimum to maximum), or why there is none."""
    if row is None:
        return ""
    if row.median is None:
        return row.state
    low, high = (figure(value, row.case.unit) for value in (row.values[0], row.values[-1]))
    mark = MARK if row.state == "disturbed" else ""
    return f"**{figure(row.median, row.case.unit)}**{mark} ({low} to {high})"


def table(heading: Sequence[str], lines: Sequence[Sequence[str]]) -> list[str]:
    """A Markdown table."""
    return [
        "| " + " | ".join(heading) + " |",
        "|" + " --- |" * len(heading),
        *("| " + " | ".join(line) + " |" for line in lines),
        "",
    ]


def _sections(rows: Sequence[Row]) -> list[str]:
    """One table for each section: a line for each subject, a column for each size."""
    found = compare.index(rows)
    text = []
    for section in SECTIONS:
        subjects = list(dict.fromkeys(row.case.subject for row in rows if row.case.section == section))
        sizes = [size for size in SIZES if any(row.case.section == section and row.case.size == size for row in rows)]
        if subjects:
            lines = [[name, *(cell(found.get((section, name, size))) for size in sizes)] for name in subjects]
            text += [f"## {section}", "", *table(["", *map(size_name, sizes)], lines)]
    return text


def _ratios(rows: Sequence[Row]) -> list[str]:
    """How many times better ours are, side by side in one run."""
    found: dict[tuple[str, str, str], dict[int, str]] = {}
    for ratio in compare.ratios(compare.index(rows)):
        cells = found.setdefault((ratio.section, ratio.subject, ratio.other), {})
        cells[ratio.size] = f"{ratio.times:.3g}{'' if ratio.trusted else MARK}"
    if not found:
        return []
    lines = [
        [section, subject, other, *(cells.get(size, "") for size in SIZES)]
        for (section, subject, other), cells in found.items()
    ]
    return [
        "## Ratios of this run",
        "",
        "How many times better (faster, or more) the first is than the second; below 1 it is worse.",
        "",
        *table(["", "first", "second", *map(size_name, SIZES)], lines),
    ]


def _verdict(aim: compare.Aim) -> str:
    """Whether an aim is met, in a word; a disturbed figure proves nothing."""
    if aim.met is None:
        return ""
    if not aim.trusted:
        return "not judged: disturbed"
    return "met" if aim.met else "**missed**"


def _aims(rows: Sequence[Row], whole: bool) -> list[str]:
    """What was to be reached; if this is not a ``whole`` run, only what has figures."""
    lines = [
        [aim.text, aim.measured + ("" if aim.trusted or aim.met is None else MARK), _verdict(aim)]
        for aim in compare.aims(compare.index(rows))
        if aim.met is not None or whole
    ]
    if not lines:
        return []
    return ["## Aims", "", *table(["aim", "measured", ""], lines)]


def _notes(rows: Sequence[Row], plan: Plan) -> list[str]:
    """What a reader must know to judge the figures."""
    samples = [sample for row in rows for sample in row.samples]
    clean = sum(sample.clean for sample in samples)
    text = [
        "## How it was measured",
        "",
        f"Median (minimum to maximum) of up to {plan.rounds} samples of about {plan.seconds:g} s, each by new "
        "processes, taken in rounds over all cases. The two sides, but for those of the C face, are pinned to "
        + (f"cores {plan.cores[0]} and {plan.cores[1]}." if plan.cores[0] != plan.cores[1] else "the only core."),
        "",
        (
            f"A sample is disturbed if other work had more than {plan.limit:.0%} of one core while it ran, "
            f"or the hypervisor took as much. {clean} of the {len(samples)} samples that were kept are clean. "
            f"{MARK} marks a figure with too few clean samples: it is of all of them, and is not to be trusted."
        ),
        "",
    ]
    reasons: dict[str, list[str]] = {}
    for row in rows:
        if row.note:
            state = row.state if row.median is None else "a sample failed"
            subjects = reasons.setdefault(f"{state}: {row.note}", [])
            if row.case.subject not in subjects:
                subjects.append(row.case.subject)
    text += [f"- {reason}: {'; '.join(subjects)}" for reason, subjects in reasons.items()]
    return [*text, ""] if reasons else text


def markdown(rows: Sequence[Row], plan: Plan, machine: Mapping[str, str], plots: Sequence[str]) -> str:
    """The report."""
    text = ["# Benchmark", "", *table(["", ""], [[name, value] for name, value in machine.items()])]
    text += [f"![{name}]({name})\n" for name in plots if name.endswith(".svg")]
    text += [*_aims(rows, plan.whole), *_sections(rows), *_means(rows), *_ratios(rows), *_notes(rows, plan)]
    if any(row.case.section in C_SECTIONS for row in rows):
        text.append(C_NOTES)
    return "\n".join(text)


def record(row: Row) -> dict[str, object]:
    """A row as flat values, in the order of COLUMNS."""
    case, values = row.case, row.values
    low, high = (values[0], values[-1]) if values else (None, None)
    found = (case.section, case.subject, case.size, case.unit, row.median, low, high, row.mean)
    return dict(zip(COLUMNS, (*found, len(row.samples), len(row.clean), row.state, row.note), strict=True))


def write(
    folder: Path, rows: Sequence[Row], plan: Plan, machine: Mapping[str, str], plots: Sequence[str]
) -> list[Path]:
    """Write ``report.md``, ``figures.csv`` and ``figures.json`` into ``folder``; returns their paths."""
    report, flat, full = folder / "report.md", folder / "figures.csv", folder / "figures.json"
    report.write_text(markdown(rows, plan, machine, plots), encoding="utf-8")
    with flat.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        writer.writerows(record(row) for row in rows)
    content = {
        "machine": machine,
        "plan": dataclasses.asdict(plan),
        "rows": [{**record(row), "values": [dataclasses.asdict(sample) for sample in row.samples]} for row in rows],
        "ratios": [dataclasses.asdict(ratio) for ratio in compare.ratios(compare.index(rows))],
        "aims": [dataclasses.asdict(aim) for aim in compare.aims(compare.index(rows))],
    }
    full.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return [report, flat, full]
