"""Queue pairs: where work is posted."""

import errno
import weakref
from collections.abc import Callable
from typing import Any

from softverbs.core.qp import AddressVector, QueuePair
from softverbs.core.wr import RecvWR, SendWR
from softverbs.pyverbs import libibverbs_enums as e
from softverbs.pyverbs._fields import instance, integer, lines, refused
from softverbs.pyverbs._qp_attr import CAP_NAMES
from softverbs.pyverbs._qp_attr import QPAttachCompCntrAttr as QPAttachCompCntrAttr
from softverbs.pyverbs._qp_attr import QPAttr as QPAttr
from softverbs.pyverbs._qp_attr import QPCap as QPCap
from softverbs.pyverbs._qp_attr import QPInitAttr as QPInitAttr
from softverbs.pyverbs._qp_attr import QPInitAttrEx as QPInitAttrEx
from softverbs.pyverbs.addr import AHAttr
from softverbs.pyverbs.base import Resource, reworded
from softverbs.pyverbs.comp_cntr import CompCntr
from softverbs.pyverbs.cq import CQ, CQEX
from softverbs.pyverbs.device import Context
from softverbs.pyverbs.pd import PD
from softverbs.pyverbs.pyverbs_error import PyverbsError, PyverbsUserError
from softverbs.pyverbs.utils import qp_state_to_str, qp_type_to_str

# The attributes that each step towards RTS needs besides the state (ibv_modify_qp(3)).
_RC = {
    "INIT": e.IBV_QP_PKEY_INDEX | e.IBV_QP_PORT | e.IBV_QP_ACCESS_FLAGS,
    "RTR": e.IBV_QP_AV
    | e.IBV_QP_PATH_MTU
    | e.IBV_QP_DEST_QPN
    | e.IBV_QP_RQ_PSN
    | e.IBV_QP_MAX_DEST_RD_ATOMIC
    | e.IBV_QP_MIN_RNR_TIMER,
    "RTS": e.IBV_QP_TIMEOUT | e.IBV_QP_RETRY_CNT | e.IBV_QP_RNR_RETRY | e.IBV_QP_SQ_PSN | e.IBV_QP_MAX_QP_RD_ATOMIC,
}
_STEPS = {
    e.IBV_QPT_RC: _RC,
    e.IBV_QPT_UC: {
        "INIT": _RC["INIT"],
        "RTR": e.IBV_QP_AV | e.IBV_QP_PATH_MTU | e.IBV_QP_DEST_QPN | e.IBV_QP_RQ_PSN,
        "RTS": e.IBV_QP_SQ_PSN,
    },
    e.IBV_QPT_UD: {
        "INIT": e.IBV_QP_PKEY_INDEX | e.IBV_QP_PORT | e.IBV_QP_QKEY,
        "RTR": 0,
        "RTS": e.IBV_QP_SQ_PSN,
    },
}
_UNSUPPORTED_MASK = ~e.IBV_QP_INIT_ATTR_PD


class QP(Resource):
    """A queue pair, ``struct ibv_qp`` (ibv_create_qp(3))."""

    _kind = "QP"
    _hot = {"_post_send": "post_send", "_post_recv": "post_recv"}  # noqa: RUF012
    _post_send: Callable[[SendWR], None]
    _post_recv: Callable[[RecvWR], None]

    def __init__(
        self, creator: PD | Context, init_attr: QPInitAttr | QPInitAttrEx, qp_attr: QPAttr | None = None
    ) -> None:
        """
        :param creator: a PD, with a QPInitAttr; or a Context, with a QPInitAttrEx that names the PD
        :param init_attr: how it is made; its sizes are replaced by the actual ones
        :param qp_attr: moves an RC QP to INIT at once
        :raises PyverbsRDMAError: EINVAL for contradictions, EOPNOTSUPP for what the device has not, ENOMEM
        """
        what = "Failed to create QP"
        pd = _domain(creator, init_attr, what)
        context = pd._context
        if context is None:
            raise pd._closed()
        queues = _queues(init_attr, context, what)
        with pd._guard(what) as device:
            send_cq, recv_cq = (queue._open() for queue in queues)
            caps = tuple(getattr(init_attr, name) for name in CAP_NAMES)
            signal_all = bool(init_attr.sq_sig_all)
            core = QueuePair(
                device.port, context._core, pd._open(), send_cq, recv_cq, None, caps, init_attr.qp_type, signal_all
            )
            self._adopt(context, core, pd, queues, init_attr)
        if qp_attr is not None:
            self.to_init(qp_attr) if self.qp_type != e.IBV_QPT_UD else self.to_rts(qp_attr)

    def _adopt(
        self,
        context: Context,
        core: Any,
        pd: PD,
        queues: "tuple[CQ | CQEX, CQ | CQEX]",
        attr: QPInitAttr | QPInitAttrEx,
    ) -> None:
        self._pd: PD | None = pd
        self._scq: CQ | CQEX | None = queues[0]
        self._rcq: CQ | CQEX | None = queues[1]
        self._counters: list[CompCntr] = []
        self.qp_context = attr.qp_context
        self._start(context, core)
        for parent in {pd, *queues}:
            parent._qps.add(self)
        if isinstance(attr, QPInitAttrEx):
            context._qps.add(self)
        core.user = weakref.ref(self)
        attr.cap = QPCap(*core.query()["cap"])

    def _forget(self) -> None:
        super()._forget()
        self._pd = self._scq = self._rcq = None
        self._counters = []

    # -- states

    def _get_comp_mask(self, dst: str) -> int:
        steps = _STEPS.get(self.qp_type)
        if steps is None:
            raise refused(f"QPs of type {qp_type_to_str(self.qp_type)} are not supported", errno.EOPNOTSUPP)
        return steps[dst] | e.IBV_QP_STATE

    def _step(self, qp_attr: QPAttr, dst: str, state: int, what: str) -> None:
        instance(qp_attr, QPAttr, "qp_attr")
        mask = self._get_comp_mask(dst)
        qp_attr.qp_state = state
        with self._guard(what):
            self._open().modify(_values(qp_attr, mask), mask)

    def to_init(self, qp_attr: QPAttr) -> None:
        """To state INIT (ibv_modify_qp(3)): needs pkey_index, port_num and qp_access_flags.

        :param qp_attr: the attributes
        :raises PyverbsRDMAError: EINVAL names the attributes that are missing or out of range
        """
        self._step(qp_attr, "INIT", e.IBV_QPS_INIT, "Failed to modify QP state to init")

    def to_rtr(self, qp_attr: QPAttr) -> None:
        """To state RTR, by way of INIT: needs ah_attr, path_mtu, dest_qp_num, rq_psn,
        max_dest_rd_atomic and min_rnr_timer.

        :param qp_attr: the attributes, those of ``to_init`` too if the QP is not in INIT
        :raises PyverbsRDMAError: EINVAL names the attributes that are missing or out of range
        """
        if self.qp_state != e.IBV_QPS_INIT:
            self.to_init(qp_attr)
        self._step(qp_attr, "RTR", e.IBV_QPS_RTR, "Failed to modify QP state to RTR")

    def to_rts(self, qp_attr: QPAttr) -> None:
        """To state RTS, by way of INIT and RTR: needs timeout, retry_cnt, rnr_retry, sq_psn and max_rd_atomic.

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
        with self._guard("Failed to modify QP"):
            self._open().modify(_values(qp_attr, mask), mask)

    def query(self, attr_mask: int) -> tuple[QPAttr, QPInitAttr]:
        """The QP's attributes (ibv_query_qp(3)): all of them, whatever is asked for.

        :param attr_mask: IBV_QP_* bits
        """
        integer(attr_mask, "attr_mask")
        with self._guard("Failed to query QP"):
            core = self._open()
            values = core.query()
            cap = QPCap(*values.pop("cap"))
            init = QPInitAttr(core.qp_type, self.qp_context, self._scq, self._rcq, None, cap, int(core.sq_sig_all))
        return _attributes(values, cap), init

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

    def _not_posted(self, error: BaseException, what: str, wr: Any, bad_wr: Any, kind: type) -> BaseException:
        """What posting raises; fills ``bad_wr`` in."""
        if not isinstance(wr, kind):
            return refused(f"{what}: wr is {type(wr).__name__}: {kind.__name__} is expected")
        worded = reworded(error, what)
        if worded is None:
            return error
        if isinstance(bad_wr, kind) and worded.bad_wr is not None:
            bad_wr.assign(worded.bad_wr)  # type: ignore[attr-defined]
        if self._context is not None:
            self._context.device.log.info("%s", worded)
        return worded

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


def _domain(creator: PD | Context, init_attr: Any, what: str) -> PD:
    """The protection domain of a QP to be made; refuses what cannot be had."""
    if isinstance(creator, PD):
        instance(init_attr, QPInitAttr, "QP init_attr")
        return creator
    if not isinstance(creator, Context):
        raise PyverbsUserError(f"Cannot create QP from {type(creator)}")
    instance(init_attr, QPInitAttrEx, "QP init_attr")
    unsupported = init_attr.comp_mask & _UNSUPPORTED_MASK
    if unsupported:
        raise refused(f"{what}: comp_mask bits {unsupported:#x} are not supported", errno.EOPNOTSUPP)
    if init_attr.pd is None or not init_attr.comp_mask & e.IBV_QP_INIT_ATTR_PD:
        raise refused(f"{what}: init_attr names no PD; pd and IBV_QP_INIT_ATTR_PD of comp_mask are both needed")
    pd = init_attr.pd
    instance(pd, PD, "QPInitAttrEx.pd")
    assert isinstance(pd, PD)
    if pd._context is not creator and pd._context is not None:
        raise refused(f"{what}: the PD belongs to another context")
    return pd


def _queues(init_attr: QPInitAttr | QPInitAttrEx, context: Context, what: str) -> tuple[CQ | CQEX, CQ | CQEX]:
    """The two CQs of a QP to be made; both must be there and of its context."""
    if init_attr.srq is not None:
        raise refused(f"{what}: shared receive queues are not supported", errno.EOPNOTSUPP)
    for name in ("send_cq", "recv_cq"):
        queue = getattr(init_attr, name)
        if queue is None:
            raise refused(f"{what}: {name} is missing")
        queue._open()
        if queue._context is not context:
            raise refused(f"{what}: {name} belongs to another context")
    return init_attr.send_cq, init_attr.recv_cq


#: Bit of ibv_modify_qp's mask -> the member of ``struct ibv_qp_attr`` that it stands for.
_MEMBERS = {
    e.IBV_QP_STATE: "qp_state",
    e.IBV_QP_CUR_STATE: "cur_qp_state",
    e.IBV_QP_EN_SQD_ASYNC_NOTIFY: "en_sqd_async_notify",
    e.IBV_QP_ACCESS_FLAGS: "qp_access_flags",
    e.IBV_QP_PKEY_INDEX: "pkey_index",
    e.IBV_QP_PORT: "port_num",
    e.IBV_QP_QKEY: "qkey",
    e.IBV_QP_PATH_MTU: "path_mtu",
    e.IBV_QP_TIMEOUT: "timeout",
    e.IBV_QP_RETRY_CNT: "retry_cnt",
    e.IBV_QP_RNR_RETRY: "rnr_retry",
    e.IBV_QP_RQ_PSN: "rq_psn",
    e.IBV_QP_MAX_QP_RD_ATOMIC: "max_rd_atomic",
    e.IBV_QP_MIN_RNR_TIMER: "min_rnr_timer",
    e.IBV_QP_SQ_PSN: "sq_psn",
    e.IBV_QP_MAX_DEST_RD_ATOMIC: "max_dest_rd_atomic",
    e.IBV_QP_PATH_MIG_STATE: "path_mig_state",
    e.IBV_QP_DEST_QPN: "dest_qp_num",
    e.IBV_QP_RATE_LIMIT: "rate_limit",
}
_VECTOR = ("sgid_index", "flow_label", "hop_limit", "traffic_class", "sl", "port_num")


def _values(attr: QPAttr, mask: int) -> dict[str, Any]:
    """What ``mask`` names of ``attr``, for the core."""
    values: dict[str, Any] = {name: getattr(attr, name) for bit, name in _MEMBERS.items() if mask & bit}
    if mask & e.IBV_QP_AV:
        ah = attr._ah
        route = {name: getattr(ah, name) or 0 for name in _VECTOR}
        values["ah_attr"] = AddressVector(ah.raw_dgid, is_global=bool(ah.is_global), **route)
    return values


def _attributes(values: dict[str, Any], cap: QPCap) -> QPAttr:
    """What the core reports, as the structure of the API."""
    attr = QPAttr()
    attr.cap = cap
    vector = values.pop("ah_attr", None)
    for name, value in values.items():
        setattr(attr, name, value)
    if vector is not None:
        ah = AHAttr()
        ah.is_global = int(vector.is_global)
        ah._dgid = vector.dgid
        for name in _VECTOR:
            setattr(ah, name, getattr(vector, name))
        attr._ah = ah
    return attr
