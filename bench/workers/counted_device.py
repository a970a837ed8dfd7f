# SPDX-License-Identifier: MIT
"""Serve a device, as ``softverbs serve`` does, and count what its loop does.

    counted_device.py SOCKET

A JSON object is printed, on one line, when it can be used and then at each SIGUSR1: the counts so far and the account
of this process. SIGTERM ends it.
"""

from __future__ import annotations

import json
import resource
import signal
import sys
import time
from typing import Any

from softverbs.cli.common import open_device
from softverbs.cli.run import more_descriptors
from softverbs.server.server import Server


class Counted(Server):
    """A server that counts its turns."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.turns = self.working = self.naps = 0

    def turn(self) -> int:
        """A turn; it is counted, and whether it found work."""
        work = super().turn()
        self.turns += 1
        self.working += work > 0
        return work

    def _nap(self) -> None:
        self.naps += 1
        super()._nap()

    def say(self, *_: object) -> None:
        """Print the counts and the account."""
        used = resource.getrusage(resource.RUSAGE_SELF)
        with open("/proc/thread-self/schedstat", encoding="ascii") as file:
            waited = int(file.readline().split()[1]) / 1e9
        found = {
            "clock": time.monotonic(),
            "user": used.ru_utime,
            "system": used.ru_stime,
            "waited": waited,
            "voluntary": used.ru_nvcsw,
            "involuntary": used.ru_nivcsw,
            "turns": self.turns,
            "working": self.working,
            "naps": self.naps,
        }
        print(json.dumps(found), flush=True)


def main() -> None:
    """Serve until SIGTERM."""
    more_descriptors()
    with open_device(pcap=None, thread=False) as device:
        server = Counted(device, sys.argv[1])
        signal.signal(signal.SIGUSR1, server.say)
        signal.signal(signal.SIGTERM, lambda *_: server.stop())
        server.say()
        server.run()


if __name__ == "__main__":
    main()
