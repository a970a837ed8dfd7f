"""The constants under the module name that pyverbs had for them before ``libibverbs_enums``."""

from typing import Any

from softverbs.pyverbs import libibverbs_enums
from softverbs.pyverbs._constants import *  # noqa: F403


def __getattr__(name: str) -> Any:
    """The class of a C enumeration, from ``libibverbs_enums``."""
    return getattr(libibverbs_enums, name)
