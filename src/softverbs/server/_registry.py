# SPDX-License-Identifier: MIT
"""Which function carries out which command."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from softverbs.server import abi

if TYPE_CHECKING:
    from softverbs.server.session import Session

Handler = Callable[["Session", dict[str, Any]], "dict[str, Any] | None"]
HANDLERS: dict[int, Handler] = {}


def handles(name: str) -> Callable[[Handler], Handler]:
    """Makes a function the one for a command. It gets the session and the request, and returns the response's values.

    :param name: of the command, as in ``abi.COMMANDS``
    """

    def enter(function: Handler) -> Handler:
        number = abi.COMMANDS[name].number
        assert number not in HANDLERS, name
        HANDLERS[number] = function
        return function

    return enter
