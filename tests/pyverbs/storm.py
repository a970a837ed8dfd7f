# SPDX-License-Identifier: MIT
"""Interrupts at every place of a call: an exception out of a signal's handler, at the nth instruction, for every n.

A real signal comes at few of the instructions of a call: where the interpreter looks (at calls, at the start of
functions, at the ends of loops). Here one can come at every instruction of the package's Python code, those of the core
included where it is not compiled. No time and no chance is in it: the same number is the same place.
"""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

import softverbs
from softverbs import _interrupts

PACKAGE = os.path.dirname(softverbs.__file__) + os.sep
#: The code that stands between a signal and its handler: to interrupt it says nothing of the device.
OWN = _interrupts.__file__
SIGNAL = signal.SIGUSR2
SOON_S = 10


class Stop(BaseException):
    """What the handler raises. As KeyboardInterrupt, it is no Exception."""


class Interrupter:
    """Runs calls, each with one signal at a place of its own."""

    def __init__(self) -> None:
        self.raised = 0
        self._countdown = 0
        self._passed = 0

    def __enter__(self) -> "Interrupter":
        self._before = signal.signal(SIGNAL, self._handler)
        return self

    def __exit__(self, *exc: object) -> None:
        signal.signal(SIGNAL, self._before)

    def _handler(self, signum: int, frame: FrameType | None) -> None:
        self.raised += 1
        raise Stop

    def _trace(self, frame: FrameType, event: str, arg: Any) -> Any:
        name = frame.f_code.co_filename
        if not name.startswith(PACKAGE) or name == OWN:
            return None
        frame.f_trace_opcodes = True
        frame.f_trace_lines = False
        return self._instruction

    def _instruction(self, frame: FrameType, event: str, arg: Any) -> Any:
        if event == "opcode":
            self._passed += 1
            if self._passed == self._countdown:
                signal.raise_signal(SIGNAL)
        return self._instruction

    def length(self, call: Callable[[], object]) -> int:
        """How many instructions a call has."""
        assert not self.run(call, 0)
        return self._passed

    def run(self, call: Callable[[], object], place: int) -> bool:
        """Makes a call with a signal before its instruction number ``place``, from 1; whether it was reached.

        The handler must have raised once, and nothing else may come out of the call.
        """
        self._countdown, self._passed = place, 0
        before, arrived = self.raised, 0
        try:
            sys.settrace(self._trace)
            try:
                call()
            finally:
                sys.settrace(None)
            reached = 0 < place <= self._passed
            end = time.monotonic() + SOON_S
            while reached and self.raised == before and time.monotonic() < end:
                time.sleep(0.0001)  # it came in a finalizer
        except Stop:
            arrived = 1
        reached = 0 < place <= self._passed
        assert self.raised - before == reached, f"place {place}: the handler has run {self.raised - before} times"
        assert arrived == reached, f"place {place}: what the handler raised did not arrive"
        return bool(reached)


def left_behind(device: Any) -> dict[str, Any]:
    """What a call may leave behind: what is held, waits or was registered."""
    others: list[int] = []
    thread = threading.Thread(target=lambda: others.append(device.progress()), daemon=True)
    thread.start()
    thread.join(SOON_S)
    return {
        "another thread waits": not others,
        "lock": device.lock._is_owned(),
        "waiting": device._waiting,
        "sleepers": device.port.sleepers,
        "objects": device.objects(),
        "at_close": len(device.at_close),
        "rules": len(device.faults.rules),
        "handlers": len(_interrupts._pending),
        "shield": _interrupts._place.now,
        "descriptors": len(os.listdir("/proc/self/fd")),
    }
