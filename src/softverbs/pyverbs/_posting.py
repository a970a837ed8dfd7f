# SPDX-License-Identifier: MIT
"""Posting lists of work requests, to a QP or an SRQ: what a refusal becomes."""

from typing import TYPE_CHECKING, Any

from softverbs.pyverbs._fields import refused
from softverbs.pyverbs.base import Resource, reworded

if TYPE_CHECKING:
    from softverbs.pyverbs.pd import Placement


class Posting(Resource):
    """An object that work requests are posted to. A parent domain may have given the memory of its queues."""

    _placed: "Placement | None" = None

    def _remains(self) -> Any:
        return self._core, self._placed

    @staticmethod
    def _bury(remains: Any) -> None:
        owner, placed = remains
        owner.close()
        if placed is not None:
            placed.release()

    def _forget(self) -> None:
        super()._forget()
        self._placed = None

    def _not_posted(self, error: BaseException, what: str, wr: Any, bad_wr: Any, kind: type) -> BaseException:
        """What posting raises; fills ``bad_wr`` in.

        :param error: what the core raised
        :param what: what failed
        :param wr: the first of the list
        :param bad_wr: where a copy of the work request that was refused goes, or None
        :param kind: the class of work request that belongs here
        """
        if not isinstance(wr, kind):
            return refused(f"{what}: wr is {type(wr).__name__}: {kind.__name__} is expected")
        worded = reworded(error, what)
        if worded is None:
            return error
        if isinstance(bad_wr, kind) and worded.bad_wr is not None:
            bad_wr.assign(worded.bad_wr)  # type: ignore[attr-defined]
        if self._context is not None:
            self._context.device.log.info("%s", worded)
        return worded
