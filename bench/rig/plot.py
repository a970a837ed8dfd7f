# SPDX-License-Identifier: MIT
"""Draw the figures: latencies and bandwidths over the message size, and the two builds side by side."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rig.model import (
    BANDWIDTH,
    C_WRITE,
    C_WRITES,
    COMPLETION,
    LATENCY,
    LOCAL,
    LOCAL_RATE,
    RATE,
    STREAM,
    TURNS,
    Row,
    size_name,
)  # fmt: skip

PEER_COLOURS = ("#7f7f7f", "#8c564b", "#bcbd22", "#e377c2", "#17becf")
OWN_COLOURS = ("#1f4e9c", "#2a8fd6", "#5b3fa0", "#0b7a4b", "#3c6e71")
MARKERS = "osD^v"


def _series(rows: Sequence[Row], section: str, unit: str) -> dict[str, list[Row]]:
    """The rows of a section that have a figure in ``unit``, by subject, by ascending size."""
    found: dict[str, list[Row]] = {}
    for row in sorted(rows, key=lambda each: each.case.size):
        if row.case.section == section and row.case.unit == unit and row.median is not None:
            found.setdefault(row.case.subject, []).append(row)
    return found


def _lines(axes: Any, rows: Sequence[Row], section: str, unit: str, label: str) -> None:
    """Draw a section over the size, with minimum and maximum as bars: ours solid, uncompiled dotted, peers dashed."""
    ours = peers = 0
    sizes: set[int] = set()
    for subject, points in _series(rows, section, unit).items():
        own = subject.startswith("softverbs")
        colour = OWN_COLOURS[ours % len(OWN_COLOURS)] if own else PEER_COLOURS[peers % len(PEER_COLOURS)]
        style = "-" if subject.startswith("softverbs:") else ":" if own else "--"
        x, y = [row.case.size for row in points], [row.median or 0.0 for row in points]
        bars = [[row.median - row.values[0] for row in points if row.median is not None]]
        bars.append([row.values[-1] - row.median for row in points if row.median is not None])
        marker = MARKERS[(ours if own else peers) % len(MARKERS)]
        axes.errorbar(
            x, y, yerr=bars, color=colour, linestyle=style, marker=marker, markersize=4, capsize=2, label=subject
        )
        ours, peers, sizes = ours + own, peers + (not own), sizes | set(x)
    axes.set(title=section, xlabel="message size", ylabel=label, xscale="log")
    if sizes:
        axes.set_yscale("log")
        axes.set_xticks(sorted(sizes), [size_name(size) for size in sorted(sizes)])
        axes.minorticks_off()
        axes.legend(fontsize=7)
    axes.grid(True, alpha=0.3)


def _bars(axes: Any, rows: Sequence[Row], section: str, title: str) -> None:
    """Draw the rates of a section as bars, one below the other; each says its value."""
    found = {subject: (points[0].median or 0.0) / 1e6 for subject, points in _series(rows, section, RATE).items()}
    colours = [OWN_COLOURS[0] if name.startswith("softverbs:") else PEER_COLOURS[0] for name in found]
    bars = axes.barh(range(len(found)), list(found.values()), color=colours)
    axes.bar_label(bars, [f"{value:.3g} M/s" for value in found.values()], padding=3)
    axes.set_yticks(range(len(found)), list(found), fontsize=7)
    axes.invert_yaxis()
    axes.margins(x=0.2)
    axes.set(title=title, xlabel="million a second")


def draw(folder: Path, rows: Sequence[Row]) -> list[Path]:
    """Write ``figures.svg`` and ``figures.png`` into ``folder``; returns their paths.

    Raises:
        ImportError: matplotlib is not installed.
    """
    matplotlib: Any = importlib.import_module("matplotlib")
    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "softverbs"  # the same figures make the same file
    plots: Any = importlib.import_module("matplotlib.pyplot")
    page, axes = plots.subplots(4, 2, figsize=(15, 23), layout="constrained")
    _lines(axes[0][0], rows, TURNS, LATENCY, "µs, half a round trip")
    _lines(axes[0][1], rows, COMPLETION, LATENCY, "µs")
    _lines(axes[1][0], rows, STREAM, BANDWIDTH, "GB/s")
    _bars(axes[1][1], rows, STREAM, "Two processes: 8 B operations a second")
    _lines(axes[2][0], rows, LOCAL, LATENCY, "µs")
    _bars(axes[2][1], rows, LOCAL_RATE, "In one process: 8 B writes a second")
    _lines(axes[3][0], rows, C_WRITE, LATENCY, "µs, half a round trip")
    _lines(axes[3][1], rows, C_WRITES, BANDWIDTH, "GB/s")
    paths = [folder / "figures.svg", folder / "figures.png"]
    for path in paths:
        page.savefig(path, dpi=110)
    plots.close(page)
    return paths
