# SPDX-License-Identifier: MIT
"""Shared receive queues: one stock of receives for many QPs."""

import errno
import weakref
from collections.abc import Callable
from typing import Any

from softverbs.core.queues.srq import SharedReceiveQueue
from softverbs.core.queues.wr import SGE, RecvWR
from softverbs.pyverbs import libibverbs_enums as e
from softverbs.pyverbs._fields import Field, fill, instance, integer, reading, refused
from softverbs.pyverbs._posting import Posting
from softverbs.pyverbs._slots import CqSlot, Slot
from softverbs.pyverbs.base import Children, PyverbsCM, PyverbsObject
from softverbs.pyverbs.cq import CQ, CQEX
from softverbs.pyverbs.device import Context
from softverbs.pyverbs.pd import PD, RESOURCE_SRQ
from softverbs.pyverbs.pyverbs_error import PyverbsError, PyverbsUserError
from softverbs.pyverbs.xrcd import XRCD

_MODIFIABLE = e.IBV_SRQ_MAX_WR | e.IBV_SRQ_LIMIT
_KNOWN = (
    e.IBV_SRQ_INIT_ATTR_TYPE
    | e.IBV_SRQ_INIT_ATTR_PD
    | e.IBV_SRQ_INIT_ATTR_XRCD
    | e.IBV_SRQ_INIT_ATTR_CQ
    | e.IBV_SRQ_INIT_ATTR_TM
)


class SrqAttr(PyverbsObject):
    """Attributes of an SRQ, ``struct ibv_srq_attr`` of ibv_modify_srq(3)."""

    max_wr = Field("Outstanding work requests, at least.")
    max_sge = Field("Scatter elements of a work request, at least.")
    srq_limit = Field("An event is raised when fewer work requests are left; 0: none is armed.")

    def __init__(self, max_wr: int = 100, max_sge: int = 1, srq_limit: int = 0) -> None:
        """
        :param max_wr: outstanding work requests, at least
        :param max_sge: scatter elements of a work request, at least
        :param srq_limit: an event is raised when fewer work requests are left
        """
        self.max_wr = max_wr
        self.max_sge = max_sge
        self.srq_limit = srq_limit


class _Sizes(PyverbsObject):
    """What the two ways to make an SRQ have in common."""

    max_wr = reading("Outstanding work requests; once the SRQ is made, the actual number.")
    max_sge = reading("Scatter elements of a work request; once the SRQ is made, the actual number.")
    srq_limit = reading("Not looked at: ``SRQ.modify`` arms the limit.")


class SrqInitAttr(_Sizes):
    """How an SRQ is made from a PD, ``struct ibv_srq_init_attr`` of ibv_create_srq(3)."""

    def __init__(self, attr: SrqAttr | None = None) -> None:
        """
        :param attr: the sizes
        """
        if attr is not None:
            instance(attr, SrqAttr, "SrqInitAttr attr")
            fill(self, max_wr=attr.max_wr, max_sge=attr.max_sge, srq_limit=attr.srq_limit)


class SrqInitAttrEx(_Sizes):
    """How an SRQ is made from a Context, ``struct ibv_srq_init_attr_ex`` of ibv_create_srq_ex(3)."""

    comp_mask = Field("Which of the other members are valid, IBV_SRQ_INIT_ATTR_*.")
    srq_type = Field("IBV_SRQT_BASIC or IBV_SRQT_XRC.")
    pd = Slot(PD, "The protection domain of the memory that is received into.")
    xrcd = Slot(XRCD, "The XRC domain, of an XRC SRQ.")
    cq = CqSlot("Where receives of an XRC SRQ complete.")
    max_num_tags = Field("Tag matching: size of the list; not supported.")
    max_ops = Field("Tag matching: outstanding operations; not supported.")

    def __init__(self, max_wr: int = 100, max_sge: int = 1, srq_limit: int = 0) -> None:
        """
        :param max_wr: outstanding work requests, at least
        :param max_sge: scatter elements of a work request, at least
        :param srq_limit: not looked at: ``SRQ.modify`` arms the limit
        """
        fill(self, max_wr=max_wr, max_sge=max_sge, srq_limit=srq_limit)


class OpsWr(PyverbsCM):
    """A work request that changes a tag matching list, ``struct ibv_ops_wr`` of ibv_post_srq_ops(3)."""

    wr_id = Field("The number that the completion returns.", 64)
    opcode = Field("IBV_WR_TAG_ADD and so on.")
    flags = Field("IBV_OPS_* bits.", signed=True)
    unexpected_cnt = Field("Unexpected messages that were handled.")
    recv_wr_id = Field("The number that the completion of the message returns.", 64)
    tag = Field("The tag.", 64)
    mask = Field("Which bits of the tag count.", 64)
    handle = Field("The entry.")

    def __init__(
        self,
        wr_id: int = 0,
        opcode: int = e.IBV_WR_TAG_ADD,
        flags: int = e.IBV_OPS_SIGNALED,
        next_wr: "OpsWr | None" = None,
        unexpected_cnt: int = 0,
        recv_wr_id: int = 0,
        num_sge: int | None = None,
        tag: int = 0,
        mask: int = 0,
        sg_list: list[SGE] | None = None,
    ) -> None:
        """
        :param wr_id: the number that the completion returns
        :param opcode: IBV_WR_TAG_ADD and so on
        :param flags: IBV_OPS_* bits
        :param next_wr: the next work request of a list
        :param unexpected_cnt: unexpected messages that were handled
        :param recv_wr_id: the number that the completion of the message returns
        :param num_sge: how many elements of ``sg_list`` are used
        :param tag: the tag
        :param mask: which bits of the tag count
        :param sg_list: where the message goes
        """
        self.wr_id = wr_id
        self.opcode = opcode
        self.flags = flags
        self.unexpected_cnt = unexpected_cnt
        self.recv_wr_id = recv_wr_id
        self.tag = tag
        self.mask = mask
        self._elements = RecvWR(0, num_sge or 0, sg_list)
        self._next: OpsWr | None = None
        if next_wr is not None:
            self.next_wr = next_wr

    @property
    def next_wr(self) -> "OpsWr | None":
        """The next work request of the list, or None."""
        return self._next

    @next_wr.setter
    def next_wr(self, val: "OpsWr") -> None:
        instance(val, OpsWr, "next_wr")
        self._next = val


class SRQ(Posting):
    """A shared receive queue, ``struct ibv_srq`` (ibv_create_srq(3), ibv_create_srq_ex(3))."""

    _kind = "SRQ"
    _children = ("_qps",)
    _qps: Children
    _hot = {"_post_recv": "post_recv"}  # noqa: RUF012
    _post_recv: Callable[[RecvWR], None]

    def __init__(self, creator: PD | Context, attr: SrqInitAttr | SrqInitAttrEx) -> None:
        """
        :param creator: a PD, with a SrqInitAttr; or a Context, with a SrqInitAttrEx that names the PD
        :param attr: how it is made; its sizes are replaced by the actual ones
        :raises PyverbsRDMAError: EINVAL for contradictions, EOPNOTSUPP for tag matching, ENOMEM
        """
        what = "Failed to create SRQ"
        pd, xrcd, cq = _parts(creator, attr, what)
        context = pd._context
        if context is None:
            raise pd._closed()
        with pd._guard(what, size=attr.max_wr) as device:
            domain, queue = (None if part is None else part._open() for part in (xrcd, cq))
            core = SharedReceiveQueue(
                device.port, context._core, pd._open(), attr.max_wr, attr.max_sge, 0, domain, queue
            )
            self._placed = pd._place(RESOURCE_SRQ, core)
            self._pd: PD | None = pd
            self._xrcd: XRCD | None = xrcd
            self._cq: CQ | CQEX | None = cq
            self._start(context, core)
            core.user = weakref.ref(self)
            for parent in (pd, xrcd, cq):
                if parent is not None:
                    parent._srqs.add(self)
            fill(attr, max_wr=core.max_wr, max_sge=core.max_sge)

    def _forget(self) -> None:
        super()._forget()
        self._pd = self._xrcd = self._cq = None

    def get_srq_num(self) -> int:
        """Number of an XRC SRQ, 24 bits, which peers name it by (ibv_get_srq_num(3)).

        :raises PyverbsRDMAError: EINVAL for any other SRQ
        """
        core = self._open()
        if core.xrcd is None:
            raise refused("Failed to retrieve SRQ number: only an XRC SRQ has one")
        return int(core.srq_num)

    def modify(self, attr: SrqAttr, comp_mask: int) -> None:
        """Changes its size, or arms the limit (ibv_modify_srq(3)); all or nothing.

        An armed limit raises IBV_EVENT_SRQ_LIMIT_REACHED once, when fewer receives than that are left.

        :param attr: the attributes
        :param comp_mask: which of them: IBV_SRQ_MAX_WR, IBV_SRQ_LIMIT
        :raises PyverbsRDMAError: EINVAL where a value is out of range, or fewer than what is posted
        """
        what = "Failed to modify SRQ"
        instance(attr, SrqAttr, "attr")
        mask = integer(comp_mask, "comp_mask")
        if mask & ~_MODIFIABLE:
            raise refused(f"{what}: comp_mask bits {mask & ~_MODIFIABLE:#x} are not known")
        with self._guard(what):
            self._open().modify(
                attr.max_wr if mask & e.IBV_SRQ_MAX_WR else None, attr.srq_limit if mask & e.IBV_SRQ_LIMIT else None
            )
            if self._placed is not None:
                self._placed.again()

    def query(self) -> SrqAttr:
        """Its sizes, and the limit that is armed, 0 for none (ibv_query_srq(3))."""
        with self._guard("Failed to query SRQ"):
            return SrqAttr(*self._open().query())

    def post_recv(self, wr: RecvWR, bad_wr: RecvWR | None = None) -> None:
        """Posts receive work requests (ibv_post_srq_recv(3)).

        :param wr: the first of a list
        :param bad_wr: where the list fails, it is made a copy of the first work request that was not posted
        :raises PyverbsRDMAError: EINVAL, ENOMEM when the queue is full; what came before is posted
        """
        if wr is None:
            raise refused("Failed to post receive to SRQ: wr is None: RecvWR is expected")
        try:
            self._post_recv(wr)
        except (PyverbsError, TypeError, AttributeError, OverflowError) as error:
            raise self._not_posted(error, "Failed to post receive to SRQ", wr, bad_wr, RecvWR) from None

    def post_srq_ops(self, wr: OpsWr, bad_wr: OpsWr | None = None) -> None:
        """Changes the list of a tag matching SRQ (ibv_post_srq_ops(3)): there is none.

        :param wr: the first of a list
        :param bad_wr: not changed
        :raises PyverbsRDMAError: EOPNOTSUPP
        """
        instance(wr, OpsWr, "wr")
        self._open()
        raise refused(f"post SRQ ops failed: {_NO_TAGS}", errno.EOPNOTSUPP)

    @property
    def handle(self) -> int:
        """Extension (``handle`` of ``struct ibv_srq``): the device's number for it."""
        return int(self._open().handle)

    @property
    def srq(self) -> int:
        """A number that stands for the pointer of C; 0 when closed."""
        return 0 if self._core is None else id(self._core)


_NO_TAGS = "tag matching is an offload of some NICs, and not part of RoCE: this device has none"


def _parts(creator: Any, attr: Any, what: str) -> tuple[PD, XRCD | None, CQ | CQEX | None]:
    """What an SRQ is made of; refuses what cannot be had."""
    if isinstance(creator, PD):
        instance(attr, SrqInitAttr, "SRQ attr")
        return creator, None, None
    if not isinstance(creator, Context):
        raise PyverbsUserError(f"Cannot create SRQ from {type(creator)}: a PD or a Context is needed")
    instance(attr, SrqInitAttrEx, "SRQ attr")
    mask = attr.comp_mask
    if mask & ~_KNOWN:
        raise refused(f"{what}: comp_mask bits {mask & ~_KNOWN:#x} are not known")
    kind = attr.srq_type if mask & e.IBV_SRQ_INIT_ATTR_TYPE else e.IBV_SRQT_BASIC
    if kind == e.IBV_SRQT_TM or mask & e.IBV_SRQ_INIT_ATTR_TM:
        raise refused(f"{what}: {_NO_TAGS}", errno.EOPNOTSUPP)
    if kind not in (e.IBV_SRQT_BASIC, e.IBV_SRQT_XRC):
        raise refused(f"{what}: srq_type={kind} is not known")
    needed = {"pd": e.IBV_SRQ_INIT_ATTR_PD}
    if kind == e.IBV_SRQT_XRC:
        needed |= {"xrcd": e.IBV_SRQ_INIT_ATTR_XRCD, "cq": e.IBV_SRQ_INIT_ATTR_CQ}
    for name, bit in needed.items():
        part = getattr(attr, name)
        if part is None or not mask & bit:
            raise refused(f"{what}: {name} is missing; it and IBV_SRQ_INIT_ATTR_{name.upper()} of comp_mask are needed")
        part._open()
        if part._context._core is not creator._core:
            raise refused(f"{what}: {name} belongs to another context")
    return attr.pd, attr.xrcd if "xrcd" in needed else None, attr.cq if "cq" in needed else None
