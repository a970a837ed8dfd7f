# SPDX-License-Identifier: MIT
"""Two processes, each with a device of its own, and a third that starts them, listens to them and ends them in time.

A side is a module-level function ``side(talk, settings)``. It may tell the starter things (``talk.report``) and
exchange things with the other side (``talk.tell``, ``talk.hear``). Its failures reach the starter as a Fault.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from typing import Any, NamedTuple

from softverbs.cli.common import Fault
from softverbs.pyverbs.pyverbs_error import PyverbsError

_GRACE_S = 5.0  # for the other side, once one has failed


class Message(NamedTuple):
    """What a side tells the starter."""

    side: str
    topic: str
    values: dict[str, Any]


class Talk:
    """A side's connections: to the starter, and to the other side."""

    def __init__(self, starter: Connection, other: Connection, seconds: float) -> None:
        """
        :param starter: takes reports
        :param other: to the other side
        :param seconds: how long to wait for the other side
        """
        self._starter, self._other, self.seconds = starter, other, seconds

    def report(self, topic: str, **values: Any) -> None:
        """Tells the starter."""
        self._starter.send((topic, values))

    def tell(self, **values: Any) -> None:
        """Tells the other side."""
        self._other.send(values)

    def hear(self) -> dict[str, Any]:
        """What the other side tells next.

        :raises Fault: where it has gone, or takes too long
        """
        if not self._other.poll(self.seconds):
            raise Fault(f"the other side says nothing for {self.seconds:g} s")
        values: dict[str, Any] = self._other.recv()
        return values


Side = Callable[[Talk, Any], None]


def run(sides: dict[str, Side], settings: Any, seconds: float) -> Iterator[Message]:
    """Runs two sides, and yields what they report.

    :param sides: two functions by their names; each must be importable by the new process
    :param settings: what both get; picklable
    :param seconds: limit for everything; whatever runs then is killed
    :raises Fault: where a side fails, or time is over
    """
    context = multiprocessing.get_context("spawn")
    ends = context.Pipe()
    processes: dict[str, SpawnProcess] = {}
    reports: dict[Any, str] = {}
    stop = time.monotonic() + seconds
    try:
        with _ctrl_c_ignored():
            for (name, side), end in zip(sides.items(), ends, strict=True):
                ours, theirs = context.Pipe(duplex=False)
                process = context.Process(target=_child, args=(side, theirs, end, settings, seconds), daemon=True)
                process.start()
                processes[name] = process
                reports[ours] = name
                theirs.close()
        for end in ends:
            end.close()
        yield from _listen(reports, stop)
        for process in processes.values():
            process.join(_GRACE_S)
    finally:
        for process in processes.values():
            process.kill()
            process.join()
            process.close()


def _listen(reports: dict[Any, str], stop: float) -> Iterator[Message]:
    """Yields reports until both sides are through. A side that fails because the other has gone is not the culprit."""
    faults: list[str] = []
    while reports:
        ready: list[Any] = list(wait(list(reports), max(0.0, stop - time.monotonic())))
        if not ready:
            break
        for connection in ready:
            name = reports[connection]
            try:
                topic, values = connection.recv()
            except (EOFError, OSError):
                topic, values = "fault", {"text": "ended without a word"}
            if topic in ("end", "fault"):
                del reports[connection]
            if topic == "fault":
                faults.append(f"{name}: {values['text']}")
                stop = min(stop, time.monotonic() + _GRACE_S)
            elif topic != "end":
                yield Message(name, topic, values)
    if faults:
        raise Fault(faults[0])
    if reports:
        raise Fault(f"time is over, and not finished: {', '.join(reports.values())}")


@contextmanager
def _ctrl_c_ignored() -> Iterator[None]:
    """What is started meanwhile ignores Ctrl-C, which a terminal sends to all: the starter ends it."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _child(side: Side, starter: Connection, other: Connection, settings: Any, seconds: float) -> None:
    """The life of a side's process."""
    _die_with(os.getppid(), seconds)
    os.environ.pop("SOFTVERBS_ADDRESS", None)  # two devices cannot share it; both take one of 127.0.0.0/8
    talk = Talk(starter, other, seconds)
    try:
        side(talk, settings)
    except BaseException as error:
        if os.environ.get("SOFTVERBS_DEBUG"):
            raise
        with suppress(OSError):
            talk.report("fault", text=_words(error))
    else:
        with suppress(OSError):
            talk.report("end")


def _words(error: BaseException) -> str:
    if isinstance(error, Fault):
        return error.message
    if isinstance(error, PyverbsError):
        return " ".join(str(error).split())
    if isinstance(error, (EOFError, ConnectionError)):
        return "the other side has gone"
    return f"{type(error).__name__}: {error}"


def _die_with(parent: int, seconds: float) -> None:
    """Ends this process when its parent has gone, or long after everything should be over."""
    stop = time.monotonic() + seconds + _GRACE_S

    def watch() -> None:
        while os.getppid() == parent and time.monotonic() < stop:
            time.sleep(1)
        os._exit(1)

    threading.Thread(target=watch, name="starter watch", daemon=True).start()
