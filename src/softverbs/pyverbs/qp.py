# SPDX-License-Identifier: MIT
"""Queue pairs: where work is posted."""

import errno
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from softverbs.core.queues.wr import RecvWR, SendWR
from softverbs.core.transport.qp import QueuePair
from softverbs.pyverbs import libibverbs_enums as e
from softverbs.pyverbs._fields import instance, integer, lines, refused
from softverbs.pyverbs._posting import Posting
from softverbs.pyverbs._qp_attr import CAP_NAMES
from softverbs.pyverbs._qp_attr import ECE as ECE
from softverbs.pyverbs._qp_attr import QPAttachCompCntrAttr as QPAttachCompCntrAttr
from softverbs.pyverbs._qp_attr import QPAttr as QPAttr
from softverbs.pyverbs._qp_attr import QPCap as QPCap
from softverbs.pyverbs._qp_attr import QPInitAttr as QPInitAttr
from softverbs.pyverbs._qp_attr import QPInitAttrEx as QPInitAttrEx
from softverbs.pyverbs._qp_attr import QPRateLimitAttr as QPRateLimitAttr
from softverbs.pyverbs._qp_bind import bind_window
from softverbs.pyverbs._qp_create import Parts, parts_of
from softverbs.pyverbs._qp_open import IBV_QP_OPEN_ATTR_CONTEXT, SharedTarget, found
from softverbs.pyverbs._qp_open import QPOpenAttr as QPOpenAttr
from softverbs.pyverbs._qp_values import from_core, step_mask, to_core
from softverbs.pyverbs.addr import GID, gid_bytes, gid_text
from softverbs.pyverbs.base import Children
from softverbs.pyverbs.comp_cntr import CompCntr
from softverbs.pyverbs.device import Context
from softverbs.pyverbs.mr import MW, MWBind
from softverbs.pyverbs.pd import PD, RESOURCE_QP
from softverbs.pyverbs.pyverbs_error import PyverbsError
from softverbs.pyverbs.utils import qp_state_to_str, qp_type_to_str

if TYPE_CHECKING:
    from softverbs.pyverbs.qpex import DataBuffer as DataBuffer
    from softverbs.pyverbs.qpex import QPEx as QPEx

_DATAGRAMS = e.IBV_QPT_UD


class QP(Posting):
    """A queue pair, ``struct ibv_qp`` (ibv_create_qp(3), ibv_create_qp_ex(3)): RC, UC, UD, XRC_SEND or XRC_RECV."""

    _kind = "QP"
    _hot = {"_post_send": "post_send", "_post_recv": "post_recv"}  # noqa: RUF012
    _post_send: Callable[[SendWR], None]
    _post_recv: Callable[[RecvWR], None]
    _parts: Parts | None = None
    #: Of an XRC target: what it shares with those who opened it.
    _target: SharedTarget | None = None

    def __init__(
        self, creator: PD | Context, init_attr: QPInitAttr | QPInitAttrEx, qp_attr: QPAttr | None = None
    ) -> None:
        """
        :param creator: a PD, with a QPInitAttr; or a Context, with a QPInitAttrEx that names the PD or the XRC domain
        :param init_attr: how it is made; its sizes are replaced by the actual ones
        :param qp_attr: moves it to INIT at once, a QP of type UD to RTS
        :raises PyverbsRDMAError: EINVAL for contradictions, EOPNOTSUPP for what the device has not, ENOMEM
        """
        what = "Failed to create QP"
        parts = parts_of(creator, init_attr, what)
        with parts.context._guard(what, type=init_attr.qp_type) as device:
            pd, send_cq, recv_cq, srq, xrcd = parts.cores()
            caps = tuple(getattr(init_attr, name) for name in CAP_NAMES)
            signal_all = bool(init_attr.sq_sig_all)
            identity, kind = parts.context._core, init_attr.qp_type
            core = QueuePair(device.port, identity, pd, send_cq, recv_cq, srq, caps, kind, signal_all, xrcd)
            if parts.pd is not None:
                self._placed = parts.pd._place(RESOURCE_QP, core)
            self._adopt(core, parts, init_attr.qp_context)
            init_attr.cap = QPCap(*core.query()["cap"])
        if isinstance(creator, Context):
            creator._qps.add(self)
        if qp_attr is not None:
            self.to_init(qp_attr) if self.qp_type != _DATAGRAMS else self.to_rts(qp_attr)

    def _adopt(self, core: Any, parts: Parts, qp_context: object) -> None:
        """Begins life with ``core``; the lock is held."""
        self._parts = parts
        self._counters: list[CompCntr] = []
        self._groups: dict[tuple[bytes, int], None] = {}
        #: Anything: what was given at creation.
        self.qp_context = qp_context
        self._start(parts.context, core)
        for parent in parts.parents():
            children: Children = parent._qps  # type: ignore[attr-defined]
            children.add(self)
        if parts.xrcd is None:
            core.user = weakref.ref(self)
        else:
            self._target = self._target or SharedTarget(core, parts.xrcd)
            self._target.share(self)

    def _remains(self) -> Any:
        return self._target or self._core, self._placed

    def _before_destroy(self) -> None:
        for raw, lid in list(self._groups):
            self.detach_mcast(raw, lid)

    def _forget(self) -> None:
        super()._forget()
        self._parts = self._target = None
        self._counters = []
        self._groups = {}

    # -- states

    def _get_comp_mask(self, dst: str) -> int:
        return step_mask(self.qp_type, dst)

    def _step(self, qp_attr: QPAttr, dst: str, state: int, what: str) -> None:
        instance(qp_attr, QPAttr, "qp_attr")
        mask = self._get_comp_mask(dst)
        qp_attr.qp_state = state
        with self._guard(what, to=state):
            self._open().modify(to_core(qp_attr, mask), mask)

    def to_init(self, qp_attr: QPAttr) -> None:
        """To state INIT (ibv_modify_qp(3)): needs pkey_index, port_num and qp_access_flags; UD: qkey instead of these.

        :param qp_attr: the attributes
        :raises PyverbsRDMAError: EINVAL names the attributes that are missing or out of range
        """
        self._step(qp_attr, "INIT", e.IBV_QPS_INIT, "Failed to modify QP state to init")

    def to_rtr(self, qp_attr: QPAttr) -> None:
        """To state RTR, by way of INIT: needs ah_attr, path_mtu, dest_qp_num and rq_psn; RC and XRC_RECV also
        max_dest_rd_atomic and min_rnr_timer; UD nothing.

        :param qp_attr: the attributes, those of ``to_init`` too if the QP is not in INIT
        :raises PyverbsRDMAError: EINVAL names the attributes that are missing or out of range
        """
        if self.qp_state != e.IBV_QPS_INIT:
            self.to_init(qp_attr)
        self._step(qp_attr, "RTR", e.IBV_QPS_RTR, "Failed to modify QP state to RTR")

    def to_rts(self, qp_attr: QPAttr) -> None:
        """To state RTS, by way of INIT and RTR: needs sq_psn; RC and XRC also timeout; RC and XRC_SEND also
        retry_cnt, rnr_retry and max_rd_atomic.

        :param qp_attr: the attributes, those of ``to_rtr`` too if the QP is not in RTR
        :raises PyverbsRDMAError: EINVAL names the attributes that are missing or out of range
        """
        if self.qp_state != e.IBV_QPS_RTR:
            self.to_rtr(qp_attr)
        self._step(qp_attr, "RTS", e.IBV_QPS_RTS, "Failed to modify QP state to RTS")

    def modify(self, qp_attr: QPAttr, comp_mask: int) -> None:
        """Changes attributes (ibv_modify_qp(3)).

        :param qp_attr: the attributes
        :param comp_mask: which of them, IBV_QP_* bits
        :raises PyverbsRDMAError: EINVAL names the attributes that are missing, invalid or out of range
        """
        instance(qp_attr, QPAttr, "qp_attr")
        mask = integer(comp_mask, "comp_mask")
        with self._guard("Failed to modify QP", to=qp_attr.qp_state if mask & e.IBV_QP_STATE else None):
            self._open().modify(to_core(qp_attr, mask), mask)

    def query(self, attr_mask: int) -> tuple[QPAttr, QPInitAttr]:
        """The QP's attributes (ibv_query_qp(3)): all of them, whatever is asked for.

        :param attr_mask: IBV_QP_* bits
        """
        integer(attr_mask, "attr_mask")
        with self._guard("Failed to query QP"):
            core = self._open()
            values = core.query()
            cap = QPCap(*values.pop("cap"))
            parts = self._parts
            assert parts is not None
            queues = (parts.send_cq, parts.recv_cq, parts.srq)
            init = QPInitAttr(core.qp_type, self.qp_context, *queues, cap, int(core.sq_sig_all))
        return from_core(values, cap), init

    def modify_rate_limit(self, attr: QPRateLimitAttr) -> None:
        """Limits the rate that it sends at (ibv_modify_qp_rate_limit(3)): not supported.

        :param attr: the limits
        :raises PyverbsRDMAError: EOPNOTSUPP
        """
        instance(attr, QPRateLimitAttr, "attr")
        self._open()
        reason = "packets are paced by NICs that have the clock for it, this device has not"
        raise refused(f"Failed to modify QP rate limit: {reason}", errno.EOPNOTSUPP)

    def set_ece(self, ece: ECE) -> None:
        """Sets options of a vendor (ibv_set_ece(3)): there are none. Without a vendor nothing is done.

        :param ece: the options
        :raises PyverbsRDMAError: EOPNOTSUPP
        """
        instance(ece, ECE, "ece")
        self._open()
        if ece.vendor_id:
            reason = f"options of vendor {ece.vendor_id:#x} mean nothing to this device"
            raise refused(f"Failed to set ECE: {reason}", errno.EOPNOTSUPP)

    def query_ece(self) -> ECE:
        """The vendor's options that are in use (ibv_query_ece(3)): none, all members are 0."""
        self._open()
        return ECE()

    def query_data_in_order(self, op: int, flags: int = 0) -> int:
        """Whether the bytes of a message become visible in order (ibv_query_qp_data_in_order(3)): 0, no promise.

        Packets are placed in order, but what a processor copies within a packet becomes visible in any order.

        :param op: IBV_WR_* opcode
        :param flags: IBV_QUERY_QP_DATA_IN_ORDER_RETURN_CAPS, or 0
        """
        integer(op, "op")
        integer(flags, "flags")
        self._open()
        return 0

    def statistics(self) -> dict[str, int]:
        """Extension: counts of this QP by name: ``posted_sends`` (work requests), ``retransmissions`` (packets sent
        again), ``duplicates`` (packets that came again), ``dropped`` (packets that nothing could be done with).
        """
        with self._guard("Failed to read the statistics"):
            return dict(self._open().statistics())

    # -- work

    def post_send(self, wr: SendWR, bad_wr: SendWR | None = None) -> None:
        """Posts send work requests (ibv_post_send(3)).

        :param wr: the first of a list
        :param bad_wr: where the list fails, it is made a copy of the first work request that was not posted
        :raises PyverbsRDMAError: EINVAL, ENOMEM when the queue is full; what came before is posted
        """
        if wr is None:
            raise refused("Failed to post send: wr is None: SendWR is expected")
        try:
            self._post_send(wr)
        except (PyverbsError, TypeError, AttributeError, OverflowError) as error:
            raise self._not_posted(error, "Failed to post send", wr, bad_wr, SendWR) from None

    def post_recv(self, wr: RecvWR, bad_wr: RecvWR | None = None) -> None:
        """Posts receive work requests (ibv_post_recv(3)).

        :param wr: the first of a list
        :param bad_wr: where the list fails, it is made a copy of the first work request that was not posted
        :raises PyverbsRDMAError: EINVAL, ENOMEM when the queue is full; what came before is posted
        """
        if wr is None:
            raise refused("Failed to post recv: wr is None: RecvWR is expected")
        try:
            self._post_recv(wr)
        except (PyverbsError, TypeError, AttributeError, OverflowError) as error:
            raise self._not_posted(error, "Failed to post recv", wr, bad_wr, RecvWR) from None

    def bind_mw(self, mw: MW, mw_bind: MWBind) -> None:
        """Binds a memory window of type 1, or unbinds it (length 0); posts that as work (ibv_bind_mw(3)).

        The window has its new rkey at once; peers may use it when the work has completed.

        :param mw: the window
        :param mw_bind: what it shall open, and how the work is posted
        :raises PyverbsRDMAError: EINVAL for a window of type 2 or a QP that cannot bind, EPERM where window and region
            are of different protection domains, ENOMEM when the queue is full
        """
        bind_window(self, mw, mw_bind)

    # -- multicast

    def attach_mcast(self, gid: "GID | str | bytes", lid: int = 0) -> None:
        """Extension (pyverbs leaves it to the CM; ibv_attach_mcast(3)): lets it receive what is sent to a group.

        :param gid: the group's GID: a GID, its text, or 16 bytes
        :param lid: 0: groups of RoCE have no LID
        :raises PyverbsRDMAError: EINVAL unless the QP is of type UD and the GID is a group's; ENOMEM
        """
        what = "Failed to attach QP to a multicast group"
        raw, lid = _group(gid, lid, what)
        with self._guard(what):
            self._open().attach_mcast(raw, lid)
            self._groups[raw, lid] = None

    def detach_mcast(self, gid: "GID | str | bytes", lid: int = 0) -> None:
        """Extension (ibv_detach_mcast(3)): ends ``attach_mcast``. Closing the QP does that too.

        :param gid: the group's GID: a GID, its text, or 16 bytes
        :param lid: as it was attached
        :raises PyverbsRDMAError: EINVAL where the QP is not attached to the group
        """
        what = "Failed to detach QP from a multicast group"
        raw, lid = _group(gid, lid, what)
        with self._guard(what):
            core = self._open()
            if (raw, lid) not in self._groups:
                raise refused(f"QP {core.qp_num:#x} is not attached to {gid_text(raw)} with LID {lid:#x}")
            core.detach_mcast(raw, lid)
            del self._groups[raw, lid]

    # -- counters

    def attach_comp_cntr(self, comp_cntr: CompCntr, attr: QPAttachCompCntrAttr) -> None:
        """Lets a counter count operations of this QP (ibv_qp_attach_comp_cntr(3)), until the QP is destroyed.

        :param comp_cntr: a counter of the same context
        :param attr: which operations
        :raises PyverbsRDMAError: EINVAL unless the QP is in RESET or INIT, EOPNOTSUPP for operations that the device
            does not count, EBUSY where one of them has a counter already; in this order, all or nothing
        """
        instance(comp_cntr, CompCntr, "comp_cntr")
        instance(attr, QPAttachCompCntrAttr, "attr")
        with self._guard("Failed to attach comp cntr to QP"):
            self._open().attach_comp_cntr(comp_cntr._open(), attr.op_mask, attr.comp_mask)
            self._counters.append(comp_cntr)

    # -- properties

    @property
    def qp_type(self) -> int:
        """IBV_QPT_RC and so on."""
        return int(self._open().qp_type)

    @property
    def qp_state(self) -> int:
        """IBV_QPS_RTS and so on: the state of this moment."""
        return int(self._open().state)

    @property
    def qp_num(self) -> int:
        """Its number, 24 bits."""
        return int(self._open().qp_num)

    @property
    def handle(self) -> int:
        """Extension (``handle`` of ``struct ibv_qp``): the device's number for it."""
        return self.qp_num

    @property
    def qp(self) -> int:
        """A number that stands for the pointer of C; 0 when closed."""
        return 0 if self._core is None else id(self._core)

    def __str__(self) -> str:
        rows = (("QP type", qp_type_to_str(self.qp_type)), ("  number", self.qp_num))
        return lines(22, *rows, ("  state", qp_state_to_str(self.qp_state)))


class _OpenedQP(QP):
    """A target QP of an XRC domain that was made elsewhere in the process (ibv_open_qp(3))."""

    def __init__(self, context: Context, attr: QPOpenAttr) -> None:
        instance(context, Context, "context")
        instance(attr, QPOpenAttr, "attr")
        with context._guard("Failed to open QP"):
            self._target = found(context, attr)
            given = attr.comp_mask & IBV_QP_OPEN_ATTR_CONTEXT
            self._adopt(self._target.core, Parts(context, xrcd=attr.xrcd), attr.qp_context if given else None)
            context._qps.add(self)

    def attach_comp_cntr(self, comp_cntr: CompCntr, attr: QPAttachCompCntrAttr) -> None:
        """Refused: who made the QP attaches counters.

        :param comp_cntr: a counter
        :param attr: which operations
        :raises PyverbsRDMAError: EINVAL
        """
        instance(comp_cntr, CompCntr, "comp_cntr")
        instance(attr, QPAttachCompCntrAttr, "attr")
        self._open()
        raise refused("Failed to attach comp cntr to QP: this is an opened XRC QP: who made it attaches counters")


def open_qp(context: Context, attr: QPOpenAttr) -> QP:
    """Extension: opens a target QP that another context, or another part of the process, has made (ibv_open_qp(3)).

    It is the same QP, and ends with the last object that refers to it. Counters are attached by who made it.

    :param context: the open device
    :param attr: which QP
    :raises PyverbsRDMAError: EINVAL where the domain has no such QP
    """
    return _OpenedQP(context, attr)


def _group(gid: Any, lid: Any, what: str) -> tuple[bytes, int]:
    """The group of a call as the core wants it."""
    if isinstance(gid, GID):
        raw = gid.raw
    elif isinstance(gid, (bytes, bytearray)) and len(gid) == 16:
        raw = bytes(gid)
    elif isinstance(gid, str):
        raw = gid_bytes(gid)
    else:
        raise refused(f"{what}: gid is {gid!r}: a GID, its text or 16 bytes are expected")
    return raw, integer(lid, f"{what}: lid", 16)


def __getattr__(name: str) -> Any:
    """QPEx is here in pyverbs. Its module imports this one, so that it can only be looked up late."""
    if name in ("QPEx", "DataBuffer"):
        from softverbs.pyverbs import qpex

        return getattr(qpex, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
