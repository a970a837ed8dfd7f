# SPDX-License-Identifier: MIT
"""The responder of an XRC target: each request names the shared receive queue that it is for (annex A14)."""

try:
    import cython
except ImportError:
    from softverbs import _cython as cython

if not cython.compiled:
    from softverbs.core.base.constants import EVENT_QP_REQ_ERR
    from softverbs.core.queues.srq import SharedReceiveQueue, XrcDomain
    from softverbs.core.transport.packets import XRCETH_LENGTH
    from softverbs.core.transport.responder import Responder
    from softverbs.core.wire.headers import NAK_INVALID_REQUEST, xrceth_srqn


class TargetResponder(Responder):
    """Performs the requests of the peer of an XRC target queue pair.

    The SRQ that a request names gives the receive, the completion queue and the protection domain.
    """

    def start_target(self, xrcd: XrcDomain) -> None:
        """To be called once, before anything else; ``xrcd``: whose SRQs the peer may use."""
        self.xrcd = xrcd
        self.srq: SharedReceiveQueue | None = None

    def _perform(
        self, opcode: int, flags: int, headers: int, payload: int, length: int, ask: bool, solicited: bool
    ) -> None:
        if self._select(xrceth_srqn(headers - XRCETH_LENGTH)):
            Responder._perform(self, opcode, flags, headers, payload, length, ask, solicited)

    def _select(self, number: int) -> bool:
        """Turns to an SRQ; False: refused."""
        srq: SharedReceiveQueue | None = self.connection.port.srqs.get(number)
        if srq is None or srq.xrcd is not self.xrcd:
            return self._refuse(
                NAK_INVALID_REQUEST,
                EVENT_QP_REQ_ERR,
                f"the XRC domain of QP {self.connection.qp_num:#x} has no SRQ {number:#x}",
            )
        if self.message != 0 and srq is not self.srq:
            return self._refuse(NAK_INVALID_REQUEST, EVENT_QP_REQ_ERR, "the SRQ changed within a message")
        self.srq = srq
        self.receives = srq
        self.cq = srq.cq  # type: ignore[assignment]
        self.connection.pd = srq.pd
        self.connection.receive_pd = srq.pd
        return True

    def flush(self, reason: str) -> None:
        """As ``Responder.flush``; what was taken from a queue that is gone since counts nowhere."""
        if self.srq is not None and self.srq.closed:
            self.receive = 0
        Responder.flush(self, reason)
