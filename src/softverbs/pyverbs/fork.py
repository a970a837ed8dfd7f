# SPDX-License-Identifier: MIT
"""What the verbs need to know of fork: nothing. A device's memory is neither pinned nor copied on fork.

The objects of the parent's devices refuse all work in a child (EIO), which can open a device of its own.
"""

from softverbs.pyverbs import libibverbs_enums as e


def fork_init() -> None:
    """Prepares for fork (ibv_fork_init(3)); there is nothing to prepare, whenever it is called."""


def is_fork_initialized() -> int:
    """Whether fork is safe (ibv_is_fork_initialized(3)): IBV_FORK_UNNEEDED."""
    return e.IBV_FORK_UNNEEDED
