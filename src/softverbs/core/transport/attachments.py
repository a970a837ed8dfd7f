# SPDX-License-Identifier: MIT
"""Which completion counters count which operations of a queue pair (ibv_qp_attach_comp_cntr(3))."""

import errno
from typing import Any

from softverbs.core.base.constants import VALUES
from softverbs.core.base.errors import PyverbsRDMAError
from softverbs.core.transport.qp_states import STATE_NAMES

#: Operation: whose attribute holds its counter. The hot path reads it there.
_PLACES = {
    VALUES["OP_SEND"]: ("requester", "send_counter"),
    VALUES["OP_RDMA_WRITE"]: ("requester", "write_counter"),
    VALUES["OP_RDMA_READ"]: ("requester", "read_counter"),
    VALUES["OP_RECV"]: ("responder", "recv_counter"),
    VALUES["OP_REMOTE_RDMA_WRITE"]: ("responder", "remote_write_counter"),
    VALUES["OP_REMOTE_RDMA_READ"]: ("responder", "remote_read_counter"),
}
_ATTACHABLE = (VALUES["QPS_RESET"], VALUES["QPS_INIT"])


class Attachments:
    """The counters of one queue pair, at most one for each operation."""

    def __init__(self) -> None:
        self._counters: dict[int, Any] = {}

    def add(self, qp: Any, counter: Any, op_mask: int, comp_mask: int) -> None:
        """Attaches a counter; all or nothing.

        :param qp: the queue pair
        :param counter: the ``CompCntr``
        :param op_mask: the operations, ``IBV_QP_ATTACH_COMP_CNTR_OP_*``
        :param comp_mask: 0
        :raises PyverbsRDMAError: EINVAL, then EOPNOTSUPP, then EBUSY
        """
        if comp_mask != 0:
            raise PyverbsRDMAError(f"comp_mask={comp_mask:#x}: no bit of it is known", errno.EINVAL)
        if op_mask == 0:
            raise PyverbsRDMAError("op_mask=0: at least one operation must be named", errno.EINVAL)
        if counter.context_id is not qp.context_id:
            raise PyverbsRDMAError("the counter belongs to another context than the QP", errno.EINVAL)
        if qp.state not in _ATTACHABLE:
            raise PyverbsRDMAError(
                f"QP {qp.qp_num:#x} is in the state {STATE_NAMES[qp.state]}: attach counters in RESET or INIT",
                errno.EINVAL,
            )
        unsupported = op_mask & ~qp.port.options.counter_ops
        if unsupported:
            raise PyverbsRDMAError(
                f"op_mask={op_mask:#x}: the device does not support {unsupported:#x}", errno.EOPNOTSUPP
            )
        taken = [bit for bit in self._counters if op_mask & bit]
        if taken:
            raise PyverbsRDMAError(
                f"op_mask={op_mask:#x}: a counter is attached already for {sum(taken):#x}", errno.EBUSY
            )
        for bit in _PLACES:
            if op_mask & bit:
                self._counters[bit] = counter
                counter.attached += 1
        self._place(qp)

    def clear(self, qp: Any) -> None:
        """Detaches all: the queue pair is destroyed. Their values stay."""
        for counter in self._counters.values():
            counter.attached -= 1
        self._counters.clear()
        self._place(qp)

    def _place(self, qp: Any) -> None:
        for bit, (half, name) in _PLACES.items():
            setattr(getattr(qp, half), name, self._counters.get(bit))
