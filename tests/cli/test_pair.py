# SPDX-License-Identifier: MIT
"""Two processes and their starter: whatever a side does, the starter ends, soon and with a reason."""

import os
import time
from typing import Any

import pytest
from tests.cli import sides

from softverbs.cli import pair
from softverbs.cli.common import Fault


def run(first: Any, second: Any, settings: Any = None, seconds: float = 60) -> list[pair.Message]:
    return list(pair.run({"first": first, "second": second}, settings, seconds))


def test_talk() -> None:
    messages = run(sides.greets, sides.greets, "you")
    assert sorted(message.side for message in messages) == ["first", "second"]
    assert {(message.topic, message.values["word"]) for message in messages} == {("heard", "hello you")}
    pids = {message.values["pid"] for message in messages}
    assert len(pids) == 2 and os.getpid() not in pids


def test_a_bug_in_a_side() -> None:
    with pytest.raises(Fault, match=r"^first: KeyError: 7$"):
        run(sides.raises, sides.listens, 7)


def test_a_side_that_dies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pair, "_GRACE_S", 0.5)
    with pytest.raises(Fault, match=r"^second: ended without a word$"):
        run(sides.hangs, sides.dies)


def test_a_side_that_hangs() -> None:
    start = time.monotonic()
    pids: list[int] = []
    messages = pair.run({"first": sides.hangs, "second": sides.hangs}, None, 3)
    with pytest.raises(Fault, match="time is over, and not finished: first, second"):
        pids.extend(message.values["pid"] for message in messages)
    assert time.monotonic() - start < 20
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_the_starter_stops_listening() -> None:
    messages = pair.run({"first": sides.hangs, "second": sides.hangs}, None, 60)
    pid = next(messages).values["pid"]
    messages.close()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
