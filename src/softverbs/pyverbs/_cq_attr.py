# SPDX-License-Identifier: MIT
"""How completion queues are made and changed. ``cq`` re-exports the classes, as pyverbs has them there."""

import errno
from typing import Any

from softverbs.pyverbs import libibverbs_enums as e
from softverbs.pyverbs._cq_text import create_wc_flags_to_str
from softverbs.pyverbs._fields import Field, lines, refused
from softverbs.pyverbs.base import PyverbsObject

#: enum ibv_cq_attr_mask of ibv_modify_cq(3).
IBV_CQ_ATTR_MODERATE = 1
_KNOWN_COMP_MASK = e.IBV_CQ_INIT_ATTR_MASK_FLAGS | e.IBV_CQ_INIT_ATTR_MASK_PD
_KNOWN_FLAGS = e.IBV_CREATE_CQ_ATTR_SINGLE_THREADED | e.IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN
TIMESTAMPS = e.IBV_WC_EX_WITH_COMPLETION_TIMESTAMP | e.IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK
_SUPPORTED_WC = e.IBV_WC_STANDARD_FLAGS | TIMESTAMPS


class CqInitAttrEx(PyverbsObject):
    """How an extended CQ is made, ``struct ibv_cq_init_attr_ex`` of ibv_create_cq_ex(3)."""

    cqe = Field("Entries, at least.")
    comp_vector = Field("Completion vector.")
    wc_flags = Field("IBV_WC_EX_* bits: what can be read of a completion.", 64)
    comp_mask = Field("Which of the next fields are valid, IBV_CQ_INIT_ATTR_MASK_*.")
    flags = Field("IBV_CREATE_CQ_ATTR_* bits.")

    def __init__(
        self,
        cqe: int = 100,
        channel: Any = None,
        comp_vector: int = 0,
        wc_flags: int = 0,
        comp_mask: int = 0,
        flags: int = 0,
        parent_domain: Any = None,
    ) -> None:
        """
        :param cqe: entries, at least
        :param channel: where events go; None: there are none
        :param comp_vector: completion vector
        :param wc_flags: IBV_WC_EX_* bits: what can be read of a completion
        :param comp_mask: IBV_CQ_INIT_ATTR_MASK_* bits: whether ``flags`` and ``parent_domain`` are valid
        :param flags: IBV_CREATE_CQ_ATTR_* bits
        :param parent_domain: a ParentDomain, whose allocator makes the queue's memory; with
            IBV_CQ_INIT_ATTR_MASK_PD in ``comp_mask``
        """
        self.cqe = cqe
        self.comp_channel = channel
        self.comp_vector = comp_vector
        self.wc_flags = wc_flags
        self.comp_mask = comp_mask
        self.flags = flags
        self.parent_domain = parent_domain
        self._cq_context: Any = None

    def __str__(self) -> str:
        return lines(
            22,
            ("Number of CQEs", self.cqe),
            ("WC flags", create_wc_flags_to_str(self.wc_flags)),
            ("comp mask", self.comp_mask),
            ("flags", self.flags),
        )

    @property
    def cq_context(self) -> Any:
        """Anything; the CQ returns it (pyverbs lets it be set only)."""
        return self._cq_context

    @cq_context.setter
    def cq_context(self, val: Any) -> None:
        self._cq_context = val

    def _checked_flags(self) -> int:
        """The creation flags; EINVAL or EOPNOTSUPP where the attributes cannot be had."""
        unknown = self.comp_mask & ~_KNOWN_COMP_MASK
        if unknown:
            raise refused(f"Failed to create extended CQ: comp_mask bits {unknown:#x} are not known")
        if self.comp_mask & e.IBV_CQ_INIT_ATTR_MASK_PD and self.parent_domain is None:
            raise refused("Failed to create extended CQ: comp_mask names parent_domain, which is None")
        flags = self.flags if self.comp_mask & e.IBV_CQ_INIT_ATTR_MASK_FLAGS else 0
        if flags & ~_KNOWN_FLAGS:
            raise refused(f"Failed to create extended CQ: flags {flags & ~_KNOWN_FLAGS:#x} are not known")
        unsupported = self.wc_flags & ~_SUPPORTED_WC
        if unsupported:
            names = create_wc_flags_to_str(unsupported).strip() or f"{unsupported:#x}"
            raise refused(f"Failed to create extended CQ: wc_flags {names}: not supported", errno.EOPNOTSUPP)
        return flags


class ModifyCqAttr(PyverbsObject):
    """Extension: what of a CQ is changed, ``struct ibv_modify_cq_attr`` of ibv_modify_cq(3)."""

    attr_mask = Field("Which fields count: IBV_CQ_ATTR_MODERATE, or 0.")
    cq_count = Field("Completions for one event; 0: no moderation.", 16)
    cq_period = Field("How long a completion waits for others until there is an event, us; 0: no moderation.", 16)

    def __init__(self, attr_mask: int = IBV_CQ_ATTR_MODERATE, cq_count: int = 0, cq_period: int = 0) -> None:
        """
        :param attr_mask: which fields count: IBV_CQ_ATTR_MODERATE, or 0
        :param cq_count: completions for one event; 0: no moderation
        :param cq_period: how long a completion waits for others until there is an event, us; 0: no moderation
        """
        self.attr_mask = attr_mask
        self.cq_count = cq_count
        self.cq_period = cq_period


class PollCqAttr(PyverbsObject):
    """What ``start_poll`` may be asked, ``struct ibv_poll_cq_attr``; nothing so far."""

    comp_mask = Field("Which further fields are valid: none, 0.")


class WcTmInfo(PyverbsObject):
    """Tag-matching information of a completion, ``struct ibv_wc_tm_info``."""

    tag = Field("Tag of the message.", 64)
    priv = Field("Opaque data of the message.")
