# SPDX-License-Identifier: MIT
"""The constants under the module name that pyverbs had for them before ``libibverbs_enums``.

Here each name is the member of its enumeration, as it was there: an integer that has a ``name`` and a ``value``.
"""

from typing import Any

from softverbs.pyverbs import libibverbs_enums
from softverbs.pyverbs._constants import *  # noqa: F403
from softverbs.pyverbs.libibverbs_enums import _MEMBERS

for _enumeration in _MEMBERS:
    globals().update(getattr(libibverbs_enums, _enumeration).__members__)


def __getattr__(name: str) -> Any:
    """What is no member: the classes themselves, and single constants, from ``libibverbs_enums``."""
    return getattr(libibverbs_enums, name)
