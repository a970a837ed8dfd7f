# SPDX-License-Identifier: MIT
"""A token bucket: what slows a sender that nobody acknowledges, since UDP drops what a socket cannot hold."""

NAP = 20000  # ns to wait where there are no tokens
FULL = 10000000  # ns after which no more tokens gather


class Pace:
    """Tokens are bytes. ``rate`` may change at any time."""

    def __init__(self, rate: int, burst: int) -> None:
        """
        :param rate: bytes per 1,024 ns
        :param burst: most bytes at once
        """
        self.burst = burst
        self.restart(rate)

    def restart(self, rate: int) -> None:
        """Begins anew with a full bucket; ``rate``: bytes per 1,024 ns."""
        self.rate = rate
        self.tokens = self.burst
        self.refilled = 0

    def allows(self, now: int) -> bool:
        """Whether more may be sent now; else after ``NAP``."""
        elapsed = now - self.refilled
        if elapsed > FULL:
            elapsed = FULL
        self.tokens += (elapsed * self.rate) >> 10
        self.refilled = now
        if self.tokens > self.burst:
            self.tokens = self.burst
        return self.tokens > 0
