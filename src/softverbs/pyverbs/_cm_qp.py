# SPDX-License-Identifier: MIT
"""The queue pair of a CMID: made, moved through its states, and used (rdma_verbs.h of librdmacm)."""

import weakref
from typing import Any

from softverbs._interrupts import shielded
from softverbs.cm.identity import UDP_QKEY, Identity
from softverbs.core.queues.wr import SGE, WC, RecvWR, SendWR
from softverbs.device import Device
from softverbs.pyverbs import libibverbs_enums as e
from softverbs.pyverbs._fields import instance, integer, refused
from softverbs.pyverbs._qp_values import from_core
from softverbs.pyverbs.addr import AH
from softverbs.pyverbs.base import Guard, PyverbsCM
from softverbs.pyverbs.cq import CQ
from softverbs.pyverbs.device import Context
from softverbs.pyverbs.mr import MR
from softverbs.pyverbs.pd import PD
from softverbs.pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr


class _Guard(Guard):
    """A guard at whose end the messages of the call are on their way: the program may end next."""

    def __exit__(self, exc_type: Any, exc_value: Any, traceback: Any) -> None:
        try:
            if exc_value is None:
                self.device.port.progress(self.device.clock())
        finally:
            super().__exit__(exc_type, exc_value, traceback)


class CMQueuePair(PyverbsCM):
    """What a CMID does with its queue pair."""

    #: Extension: the device that it is of, once it is bound; None when closed.
    device: Device | None = None
    #: The context of that device, the same for all CMIDs; None before.
    ctx: Context | None = None
    _pd: PD | None = None
    _qp: QP | None = None
    _own_cqs: tuple[CQ, ...] = ()
    _identity: Identity | None = None
    _mrs: "weakref.WeakSet[MR]"

    def _open(self) -> Identity:
        if self._identity is None:
            raise refused("CMID is closed")
        return self._identity

    def _guard(self, what: str, verb: str = "") -> Guard:
        """The lock for one call; EINVAL when closed.

        :param what: what failed, if it fails
        :param verb: the function of librdmacm, for faults on demand
        """
        return _Guard(self._open().device, what, None, {"verb": verb})

    @property
    def pd(self) -> PD | None:
        """The protection domain; None while it is not bound to a device."""
        return self._pd

    @property
    def qpn(self) -> int | None:
        """Number of its QP, or None."""
        return None if self._qp is None else self._qp.qp_num

    @property
    def qp(self) -> QP | None:
        """Extension: its QP, or None."""
        return self._qp

    def _queue_pair(self, what: str) -> QP:
        self._open()
        if self._qp is None:
            raise refused(f"{what}: the CMID has no QP")
        return self._qp

    # -- making it

    @shielded
    def create_qp(self, qp_init: QPInitAttr) -> None:
        """Makes a QP that belongs to the CMID (rdma_create_qp(3)): a connection's in the state INIT, one for datagrams
        in RTS.

        :param qp_init: how; where it names no CQs, they are made, and ``get_send_comp`` and ``get_recv_comp`` wait for
            them
        :raises PyverbsRDMAError: EINVAL without a device, with a QP already, or for a QP type that does not fit
        """
        what = "Failed to Create QP"
        instance(qp_init, QPInitAttr, "qp_init")
        identity = self._open()
        if self._qp is not None:
            raise refused(f"{what}: the CMID has a QP")
        if self._pd is None or self.ctx is None:
            raise refused(f"{what}: the CMID is bound to no device; resolve its address first")
        datagrams = qp_init.qp_type == e.IBV_QPT_UD
        if datagrams != identity.datagrams or qp_init.qp_type not in (e.IBV_QPT_UD, e.IBV_QPT_RC):
            raise refused(f"{what}: qp_type={qp_init.qp_type} is not of the port space {identity.space:#x}")
        init, own = self._completed(qp_init)
        try:
            qp = QP(self._pd, init)
        except BaseException:
            for queue in own:
                queue.close()
            raise
        self._qp, self._own_cqs = qp, own
        for name in ("max_send_wr", "max_recv_wr", "max_send_sge", "max_recv_sge", "max_inline_data"):
            setattr(qp_init, name, getattr(init, name))
        try:
            for state in (e.IBV_QPS_INIT, e.IBV_QPS_RTR, e.IBV_QPS_RTS) if datagrams else (e.IBV_QPS_INIT,):
                self._move(state)
        except BaseException:
            self._close_qp()
            raise

    def _completed(self, wanted: QPInitAttr) -> tuple[QPInitAttr, tuple[CQ, ...]]:
        """A copy of the attributes with CQs in it, and the CQs that were made."""
        context = self.ctx
        assert context is not None
        own: list[CQ] = []

        def queue(given: Any, entries: int) -> Any:
            if given is not None:
                return given
            own.append(CQ(context, max(entries, 1)))
            return own[-1]

        send_cq = queue(wanted.send_cq, wanted.max_send_wr)
        recv_cq = queue(wanted.recv_cq, wanted.max_recv_wr)
        cap = QPCap(
            wanted.max_send_wr, wanted.max_recv_wr, wanted.max_send_sge, wanted.max_recv_sge, wanted.max_inline_data
        )
        init = QPInitAttr(
            wanted.qp_type, wanted.qp_context, send_cq, recv_cq, wanted.srq, cap, int(bool(wanted.sq_sig_all))
        )
        return init, tuple(own)

    def _move(self, state: int) -> None:
        """Moves the QP to a state, with what the connection manager knows."""
        qp = self._queue_pair("Failed to modify QP")
        with self._guard("Failed to modify QP", "modify_qp"):
            qp._open().modify(*self._open().attributes(state))

    def _make_ready(self) -> None:
        """Moves the QP of a connection to RTS."""
        if self._qp is not None and not self._open().datagrams:
            for state in (e.IBV_QPS_INIT, e.IBV_QPS_RTR, e.IBV_QPS_RTS):
                self._move(state)

    def _fail_qp(self) -> None:
        """Moves the QP of a connection to ERR."""
        qp = self._qp
        if qp is None or self._open().datagrams or qp._core is None or qp.qp_state == e.IBV_QPS_RESET:
            return
        with self._guard("Failed to modify QP", "modify_qp"):
            qp._open().modify({"qp_state": e.IBV_QPS_ERR}, e.IBV_QP_STATE)

    def _close_qp(self) -> None:
        """Ends the QP and what was made for it."""
        qp, self._qp = self._qp, None
        if qp is not None:
            qp.close()
        queues, self._own_cqs = self._own_cqs, ()
        for queue in queues:
            queue.close()

    def query_qp(self, attr_mask: int) -> tuple[QPAttr, QPInitAttr]:
        """The attributes of the QP (ibv_query_qp(3)).

        :param attr_mask: IBV_QP_* bits
        """
        return self._queue_pair("Failed to query QP").query(attr_mask)

    def init_qp_attr(self, qp_state: int) -> tuple[QPAttr, int]:
        """Attributes for a QP that is not the CMID's, on its way to a state, and the mask of those that are valid.

        :param qp_state: IBV_QPS_INIT, IBV_QPS_RTR or IBV_QPS_RTS
        :raises PyverbsRDMAError: EINVAL while the peer's are not known
        """
        state = integer(qp_state, "qp_state")
        with self._guard("Failed to get QP attributes"):
            values, mask = self._open().attributes(state)
        return from_core(dict(values), QPCap()), mask

    # -- memory

    def reg_msgs(self, size: Any) -> MR:
        """A memory region for messages.

        :param size: bytes, or a buffer
        """
        return self._register(size, 0)

    def reg_read(self, size: Any = 0) -> MR:
        """A memory region for messages, which the peer may read.

        :param size: bytes, or a buffer
        """
        return self._register(size, e.IBV_ACCESS_REMOTE_READ)

    def reg_write(self, size: Any = 0) -> MR:
        """A memory region for messages, which the peer may write.

        :param size: bytes, or a buffer
        """
        return self._register(size, e.IBV_ACCESS_REMOTE_WRITE)

    def _register(self, size: Any, access: int) -> MR:
        self._open()
        if self._pd is None:
            raise refused("Failed to register a MR: the CMID is bound to no device")
        mr = MR(self._pd, size, e.IBV_ACCESS_LOCAL_WRITE | access)
        self.add_ref(mr)
        return mr

    def add_ref(self, obj: MR) -> None:
        """Lets the CMID close a memory region with itself; ``MR(cmid, ...)`` calls it.

        :param obj: the region
        """
        instance(obj, MR, "add_ref")
        self._mrs.add(obj)

    # -- work

    def post_recv(self, mr: MR, length: int | None = None) -> None:
        """Posts a receive.

        :param mr: where the message goes
        :param length: bytes; all of the region by default
        """
        qp = self._queue_pair("Failed to Post Receive")
        element = _element(mr, length)
        srq = qp._parts.srq if qp._parts is not None else None
        (qp if srq is None else srq).post_recv(RecvWR(0, 1, [element]))

    def post_send(self, mr: MR, flags: int = e.IBV_SEND_SIGNALED, length: int | None = None) -> None:
        """Posts a message.

        :param mr: the message
        :param flags: IBV_SEND_* bits
        :param length: bytes; all of the region by default
        """
        qp = self._queue_pair("Failed to Post Send")
        qp.post_send(SendWR(0, e.IBV_WR_SEND, 1, sg=[_element(mr, length)], send_flags=flags))

    def post_read(self, mr: MR, length: int, remote_addr: int, rkey: int, flags: int = 0) -> None:
        """Posts an RDMA READ.

        :param mr: where the bytes go
        :param length: bytes
        :param remote_addr: address at the peer
        :param rkey: the peer's key
        :param flags: IBV_SEND_* bits
        """
        self._post_rdma(e.IBV_WR_RDMA_READ, mr, length, remote_addr, rkey, flags, "Failed to Post Read")

    def post_write(self, mr: MR, length: int, remote_addr: int, rkey: int, flags: int = 0) -> None:
        """Posts an RDMA WRITE.

        :param mr: the bytes
        :param length: bytes
        :param remote_addr: address at the peer
        :param rkey: the peer's key
        :param flags: IBV_SEND_* bits
        """
        self._post_rdma(e.IBV_WR_RDMA_WRITE, mr, length, remote_addr, rkey, flags, "Failed to Post Write")

    def _post_rdma(self, opcode: int, mr: MR, length: int, remote_addr: int, rkey: int, flags: int, what: str) -> None:
        wr = SendWR(0, opcode, 1, sg=[_element(mr, length)], send_flags=flags)
        wr.set_wr_rdma(rkey, remote_addr)
        self._queue_pair(what).post_send(wr)

    def post_ud_send(
        self, mr: MR, ah: AH, rqpn: int = 0, flags: int = e.IBV_SEND_SIGNALED, length: int | None = None
    ) -> None:
        """Posts a datagram.

        :param mr: the message
        :param ah: where it goes
        :param rqpn: number of the peer's QP
        :param flags: IBV_SEND_* bits
        :param length: bytes; all of the region by default
        """
        instance(ah, AH, "post_ud_send ah")
        wr = SendWR(0, e.IBV_WR_SEND, 1, sg=[_element(mr, length)], send_flags=flags)
        wr.set_wr_ud(ah, rqpn, UDP_QKEY)
        self._queue_pair("Failed to Post Send").post_send(wr)

    def get_recv_comp(self) -> WC:
        """Waits for a completion of a receive, and returns it."""
        qp = self._queue_pair("Failed to retrieve receive completion")
        return self._completion(qp, "recv_cq")

    def get_send_comp(self) -> WC:
        """Waits for a completion of a send, and returns it."""
        qp = self._queue_pair("Failed to retrieve send completion")
        return self._completion(qp, "send_cq")

    def _completion(self, qp: QP, name: str) -> WC:
        queue = getattr(qp._parts, name)
        core = queue._open()
        found: list[WC] = list(core.poll(1))
        if found:
            return found[0]

        def done() -> bool:
            if not found and self._qp is qp and core.count():
                found.extend(core.poll(1))
            return bool(found) or self._qp is not qp

        self._open().device.wait_until(done, None)
        if not found:
            raise refused("CMID was closed while it waited for a completion")
        return found[0]


def _element(mr: MR, length: int | None) -> SGE:
    instance(mr, MR, "mr")
    return SGE(mr.buf, length or mr.length, mr.lkey)
