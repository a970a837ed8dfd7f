# SPDX-License-Identifier: MIT
"""The functions of the manual pages, with their names, their order of arguments and C's conventions.

A thin layer over the objects of ``softverbs.pyverbs``: what makes an object returns it, or None with errno set
(``ctypes.get_errno()``); the others return 0, or the value of errno. A pointer to a result is a ctypes object
(``ctypes.c_uint64()``), a pointer to a structure is the object that pyverbs has for it. ``last_reason()`` has the
words of the last refusal.
"""

from softverbs.verbs._convention import last_reason as last_reason
from softverbs.verbs.addresses import *  # noqa: F403
from softverbs.verbs.counters import *  # noqa: F403
from softverbs.verbs.devices import *  # noqa: F403
from softverbs.verbs.efadv import *  # noqa: F403
from softverbs.verbs.memory import *  # noqa: F403
from softverbs.verbs.posting import *  # noqa: F403
from softverbs.verbs.qps import *  # noqa: F403
from softverbs.verbs.queues import *  # noqa: F403
from softverbs.verbs.srqs import *  # noqa: F403

__all__ = ["last_reason"]
__all__ += [name for name in dir() if name.startswith(("ibv_", "efadv_"))]
