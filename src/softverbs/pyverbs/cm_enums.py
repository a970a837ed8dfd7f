# SPDX-License-Identifier: MIT
"""The connection manager's constants under the module name that pyverbs had for them before ``librdmacm_enums``.

Here each name is the member of its enumeration, as it was there: an integer that has a ``name`` and a ``value``.
"""

from typing import Any

from softverbs.pyverbs import librdmacm_enums
from softverbs.pyverbs.librdmacm_enums import *  # noqa: F403
from softverbs.pyverbs.librdmacm_enums import _PREFIXES

for _enumeration in _PREFIXES:
    globals().update(getattr(librdmacm_enums, _enumeration).__members__)


def __getattr__(name: str) -> Any:
    """What is no member, from ``librdmacm_enums``."""
    return getattr(librdmacm_enums, name)
