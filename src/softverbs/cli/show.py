# SPDX-License-Identifier: MIT
"""Tables and progress: drawn by rich on a terminal, plain text elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import click

_REFRESH_S = 0.1


def table(headers: Sequence[str], rows: Sequence[Sequence[object]], numbers: bool = True) -> None:
    """Prints a table.

    :param headers: names of the columns
    :param rows: the cells
    :param numbers: whether all columns but the first are numbers, and flush right
    """
    cells = [[str(cell) for cell in row] for row in rows]
    if sys.stdout.isatty():
        _draw(headers, cells, numbers)
        return
    widths = [max(len(row[column]) for row in [list(headers), *cells]) for column in range(len(headers))]
    for row in [list(headers), *cells]:
        click.echo("    " + _aligned(row, widths, numbers))


def _aligned(row: Sequence[str], widths: Sequence[int], numbers: bool) -> str:
    pairs = list(zip(row, widths, strict=True))
    words = [pairs[0][0].ljust(pairs[0][1])]
    words += [text.rjust(width) if numbers else text.ljust(width) for text, width in pairs[1:]]
    return "  ".join(words).rstrip()


def _draw(headers: Sequence[str], rows: Sequence[Sequence[str]], numbers: bool) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    drawn = Table(box=box.ROUNDED)
    for index, header in enumerate(headers):
        drawn.add_column(Text(header), justify="right" if numbers and index else "left", overflow="fold")
    for row in rows:
        drawn.add_row(*(Text(cell) for cell in row))
    Console().print(drawn)


def heading(text: str) -> None:
    """Prints a line that begins a part."""
    click.secho(text, bold=True)


def verdict(right: bool, text: str) -> None:
    """Prints a line that says how it went; colours on a terminal only."""
    click.secho(text, fg="green" if right else "red", bold=True)


@contextmanager
def progress(label: str, total: float) -> Iterator[Callable[[float], None]]:
    """A progress bar on stderr, if that is a terminal; the function given takes how much is done.

    It may be called often: it draws at most ten times a second.

    :param label: what goes on
    :param total: how much there is to do
    """
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:>3.0f}%"))
    bar = Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True), transient=True, auto_refresh=False)
    with bar:
        task = bar.add_task(label, total=total)
        due = 0.0

        def advance(done: float) -> None:
            nonlocal due
            now = time.monotonic()
            if now >= due:
                due = now + _REFRESH_S
                bar.update(task, completed=min(done, total))
                bar.refresh()

        yield advance
