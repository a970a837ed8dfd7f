# SPDX-License-Identifier: MIT
"""Sides of a pair for tests/cli/test_pair.py: spawned processes import them from here."""

import os
import time
from typing import Any

from softverbs.cli.pair import Talk


def greets(talk: Talk, settings: Any) -> None:
    """Tells the other side and the starter."""
    talk.tell(word=f"hello {settings}")
    heard = talk.hear()
    talk.report("heard", word=heard["word"], pid=os.getpid())


def listens(talk: Talk, settings: Any) -> None:
    """Waits for the other side."""
    talk.hear()


def raises(talk: Talk, settings: Any) -> None:
    """Has a bug."""
    raise KeyError(settings)


def dies(talk: Talk, settings: Any) -> None:
    """Is gone without a word."""
    os._exit(3)


def hangs(talk: Talk, settings: Any) -> None:
    """Never ends by itself."""
    talk.report("hangs", pid=os.getpid())
    time.sleep(300)
