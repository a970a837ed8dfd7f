# SPDX-License-Identifier: MIT
"""Words for what a completion says. ``cq`` re-exports them, as pyverbs has them there."""

from collections.abc import Mapping

from softverbs.core.queues.wr_text import cqe_flags_to_str as cqe_flags_to_str
from softverbs.core.queues.wr_text import cqe_opcode_to_str as cqe_opcode_to_str
from softverbs.core.queues.wr_text import cqe_status_to_str as cqe_status_to_str
from softverbs.pyverbs._fields import flag_names
from softverbs.pyverbs.libibverbs_enums import names_of


def flags_to_str(flags: int, dictionary: Mapping[int, str]) -> str:
    """The names of the set bits, each followed by a space.

    :param flags: the bits
    :param dictionary: bit -> name
    """
    return flag_names(flags, dict(dictionary))


def create_wc_flags_to_str(flags: int) -> str:
    """The names of IBV_WC_EX_* bits, each followed by a space."""
    return flag_names(flags, names_of("ibv_create_cq_wc_flags"))
