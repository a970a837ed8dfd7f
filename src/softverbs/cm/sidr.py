# SPDX-License-Identifier: MIT
"""Service ID resolution: which queue pair serves datagrams of a service (IBA 12.11). One question, one answer."""

import errno
from collections.abc import Callable

from softverbs.cm.machine import Notice, Timing
from softverbs.cm.messages import SIDR_SUCCESS, Message, SidrRep, SidrReq


class Inquiry:
    """The side that asks, until it has an answer or gives up."""

    def __init__(
        self, send: Callable[[Message], None], tell: Callable[[Notice, int, Message | None], None], timing: Timing
    ) -> None:
        """
        :param send: takes messages for the peer
        :param tell: takes what the application has to know: ESTABLISHED, or UNREACHABLE with the status of the answer
            or a negative errno
        :param timing: how patient it is
        """
        self.due = 0
        self.gone = False
        self.unexpected = 0
        self._send = send
        self._tell = tell
        self._timing = timing
        self._left = timing.retries
        self._request: SidrReq | None = None

    def start(self, request: SidrReq, now: int) -> None:
        """Asks.

        :param request: complete
        :param now: ns
        """
        self._request = request
        self.due = now + self._timing.response_ns
        self._send(request)

    def receive(self, message: Message, now: int) -> None:
        """The answer."""
        request = self._request
        if self.gone or not isinstance(message, SidrRep) or request is None or message.service_id != request.service_id:
            self.unexpected += 1
            return
        self.close(now)
        if message.status == SIDR_SUCCESS:
            self._tell(Notice.ESTABLISHED, 0, message)
        else:
            self._tell(Notice.UNREACHABLE, message.status, message)

    def on_timer(self, now: int) -> None:
        """Time has passed."""
        if not self.due or now < self.due or self._request is None:
            return
        if self._left > 0:
            self._left -= 1
            self.due = now + self._timing.response_ns
            self._send(self._request)
        else:
            self.close(now)
            self._tell(Notice.UNREACHABLE, -errno.ETIMEDOUT, None)

    def close(self, now: int) -> None:
        """Asks no more."""
        self.due = 0
        self.gone = True


class Inquired:
    """The side that is asked. The answer is kept for a while: the question comes again where it was lost."""

    def __init__(self, send: Callable[[Message], None], timing: Timing) -> None:
        """
        :param send: takes messages for the peer
        :param timing: how patient the peer is
        """
        self.due = 0
        self.gone = False
        self.duplicates = 0
        self._send = send
        self._keep_ns = timing.response_ns * (timing.retries + 1)
        self._answer: SidrRep | None = None

    @property
    def answered(self) -> bool:
        """Whether the answer was given."""
        return self._answer is not None

    def answer(self, answer: SidrRep, now: int) -> None:
        """Answers.

        :param answer: complete
        :param now: ns
        """
        self._answer = answer
        self.due = now + self._keep_ns
        self._send(answer)

    def receive(self, message: Message, now: int) -> None:
        """The question, again."""
        if not isinstance(message, SidrReq):
            return
        self.duplicates += 1
        if self._answer is not None:
            self._send(self._answer)

    def on_timer(self, now: int) -> None:
        """Time has passed."""
        if self.due and now >= self.due:
            self.close(now)

    def close(self, now: int) -> None:
        """Ends it."""
        self.due = 0
        self.gone = True
