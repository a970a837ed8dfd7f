# SPDX-License-Identifier: MIT
"""Target QPs of an XRC domain that several QP objects share (ibv_open_qp(3)). Extension: pyverbs does not have it."""

import weakref
from typing import TYPE_CHECKING, Any

from softverbs.pyverbs import libibverbs_enums as e
from softverbs.pyverbs._fields import Field, refused
from softverbs.pyverbs._slots import Slot
from softverbs.pyverbs.base import PyverbsObject, Resource
from softverbs.pyverbs.xrcd import XRCD

if TYPE_CHECKING:
    from softverbs.pyverbs.device import Context

#: ``enum ibv_qp_open_attr_mask``; pyverbs does not have it.
IBV_QP_OPEN_ATTR_NUM = 1
IBV_QP_OPEN_ATTR_XRCD = 2
IBV_QP_OPEN_ATTR_CONTEXT = 4
IBV_QP_OPEN_ATTR_TYPE = 8
_NEEDED = IBV_QP_OPEN_ATTR_NUM | IBV_QP_OPEN_ATTR_XRCD | IBV_QP_OPEN_ATTR_TYPE
_KNOWN = _NEEDED | IBV_QP_OPEN_ATTR_CONTEXT


class QPOpenAttr(PyverbsObject):
    """Extension: which QP is opened, ``struct ibv_qp_open_attr`` of ibv_open_qp(3)."""

    comp_mask = Field("Which of the other members are valid, IBV_QP_OPEN_ATTR_*: all but CONTEXT are needed.")
    qp_num = Field("Number of the QP.")
    xrcd = Slot(XRCD, "The XRC domain that it is in.")
    qp_type = Field("IBV_QPT_XRC_RECV.")

    def __init__(
        self,
        comp_mask: int = _NEEDED,
        qp_num: int = 0,
        xrcd: XRCD | None = None,
        qp_context: object = None,
        qp_type: int = e.IBV_QPT_XRC_RECV,
    ) -> None:
        """
        :param comp_mask: which of the other members are valid
        :param qp_num: number of the QP
        :param xrcd: the XRC domain that it is in
        :param qp_context: anything; ``QP.qp_context`` returns it
        :param qp_type: IBV_QPT_XRC_RECV
        """
        self.comp_mask = comp_mask
        self.qp_num = qp_num
        self.xrcd = xrcd
        self.qp_context = qp_context
        self.qp_type = qp_type


class SharedTarget:
    """A target QP of the device, and the QP objects that refer to it: it ends with the last of them."""

    def __init__(self, core: Any, xrcd: XRCD) -> None:
        """
        :param core: the QP of the core
        :param xrcd: the domain that it was made in
        """
        self.core = core
        self._home = xrcd._domain.targets
        self._home[core.qp_num] = self
        self._references = 0
        self._users: list[weakref.ref[Resource]] = []
        core.user = self.owner

    def share(self, user: Resource) -> None:
        """One QP object more."""
        self._references += 1
        self._users.append(weakref.ref(user))

    def owner(self) -> Resource | None:
        """The object that asynchronous events of the QP concern: the oldest that is not closed."""
        for reference in self._users:
            user = reference()
            if user is not None and user._core is not None:
                return user
        return None

    def close(self) -> None:
        """One QP object less; the last one ends the QP."""
        if self._references == 1:
            self.core.close()
            del self._home[self.core.qp_num]
        self._references -= 1
        self._users = [reference for reference in self._users if reference() is not None]


def found(context: "Context", attr: QPOpenAttr) -> SharedTarget:
    """The target that ``attr`` asks for.

    :param context: the open device
    :param attr: which
    :raises PyverbsRDMAError: EINVAL where the domain has no such QP, or the attributes contradict each other
    """
    missing = _NEEDED & ~attr.comp_mask
    if missing or attr.comp_mask & ~_KNOWN:
        raise refused(f"comp_mask={attr.comp_mask:#x}: NUM, XRCD and TYPE are needed, CONTEXT is known")
    xrcd = attr.xrcd
    if xrcd is None:
        raise refused("xrcd is missing")
    xrcd._open()
    if xrcd._context._core is not context._core:
        raise refused("xrcd belongs to another context")
    target: SharedTarget | None = xrcd._domain.targets.get(attr.qp_num)
    if target is None or attr.qp_type != e.IBV_QPT_XRC_RECV:
        raise refused(f"the XRC domain has no QP {attr.qp_num:#x} of type {attr.qp_type}")
    return target
