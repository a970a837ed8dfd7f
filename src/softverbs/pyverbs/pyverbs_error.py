# SPDX-License-Identifier: MIT
"""The exceptions of pyverbs. Each also carries ``errno`` (None if it has none) and ``reason``, the words alone."""

from softverbs.core.base.errors import PyverbsError as PyverbsError
from softverbs.core.base.errors import PyverbsRDMAError as PyverbsRDMAError
from softverbs.core.base.errors import PyverbsUserError as PyverbsUserError

__all__ = ["PyverbsError", "PyverbsRDMAError", "PyverbsUserError"]
