# SPDX-License-Identifier: MIT
"""What a queue pair is to be given on its way to RTS, once the two sides have agreed (IBA 12.9.2, table 109)."""

import errno
from dataclasses import dataclass
from typing import Any

from softverbs.cm.machine import Machine
from softverbs.cm.messages import Req
from softverbs.core.base.constants import VALUES
from softverbs.core.base.errors import PyverbsRDMAError
from softverbs.core.transport import qp_states
from softverbs.core.transport.address import AddressVector

#: 655.36 ms (IBA table 45), which is what Linux's connection manager sets (rdma_accept(3)).
MIN_RNR_TIMER = 0
INIT, RTR, RTS = (VALUES[name] for name in ("QPS_INIT", "QPS_RTR", "QPS_RTS"))
_TO_INIT = qp_states.STATE | qp_states.PKEY_INDEX | qp_states.PORT
_TO_RTR = (
    qp_states.STATE
    | qp_states.AV
    | qp_states.PATH_MTU
    | qp_states.DEST_QPN
    | qp_states.RQ_PSN
    | qp_states.MAX_DEST_RD_ATOMIC
    | qp_states.MIN_RNR_TIMER
)
_TO_RTS = (
    qp_states.STATE
    | qp_states.TIMEOUT
    | qp_states.RETRY_CNT
    | qp_states.RNR_RETRY
    | qp_states.SQ_PSN
    | qp_states.MAX_QP_RD_ATOMIC
)


def of_datagrams(state: int, qkey: int) -> tuple[dict[str, Any], int]:
    """Attributes of a queue pair of type UD, and their mask.

    :param state: where it goes
    :param qkey: its Q_Key
    :raises PyverbsRDMAError: EINVAL for another state than INIT, RTR and RTS
    """
    _check(state)
    if state == INIT:
        return {"qp_state": state, "pkey_index": 0, "port_num": 1, "qkey": qkey}, _TO_INIT | qp_states.QKEY
    if state == RTR:
        return {"qp_state": state}, qp_states.STATE
    return {"qp_state": state, "sq_psn": 0}, qp_states.STATE | qp_states.SQ_PSN


def _check(state: int) -> None:
    if state not in (INIT, RTR, RTS):
        raise PyverbsRDMAError(f"qp_state={state}: INIT, RTR or RTS", errno.EINVAL)


@dataclass
class Agreed:
    """What is known of a connection, of the side that asks or of the one that is asked."""

    #: None: nothing, yet
    machine: Machine | None
    #: where the peer is
    vector: AddressVector
    #: READs and atomics that this side takes at once, and that it asks for
    resources: int
    depth: int
    #: the starting PSN of this side's message: what the peer sends first (IBA 12.7.31)
    psn: int
    #: where the application wants another time-out than the REQ says
    ack_timeout: int | None

    def on_the_way_to(self, state: int) -> tuple[dict[str, Any], int]:
        """Attributes of a queue pair of type RC, and their mask.

        :param state: where it goes
        :raises PyverbsRDMAError: EINVAL for another state than INIT, RTR and RTS, or while the peer is not known
        """
        _check(state)
        if state == INIT:
            values = {"qp_state": state, "pkey_index": 0, "port_num": 1, "qp_access_flags": self._access()}
            return values, _TO_INIT | qp_states.ACCESS_FLAGS
        machine = self.machine
        if machine is None or machine.req is None or (machine.active and machine.rep is None):
            raise PyverbsRDMAError("the peer's queue pair is not known yet", errno.EINVAL)
        return self._rtr(machine, machine.req) if state == RTR else self._rts(machine, machine.req)

    def _access(self) -> int:
        """What a peer may do by the queue pair: what the memory regions allow, as far as this side takes it."""
        if self.machine is None:
            return 0
        reads = VALUES["ACCESS_REMOTE_READ"] | VALUES["ACCESS_REMOTE_ATOMIC"] if self.resources else 0
        return VALUES["ACCESS_REMOTE_WRITE"] | reads

    def _rtr(self, machine: Machine, req: Req) -> tuple[dict[str, Any], int]:
        values = {
            "qp_state": RTR,
            "ah_attr": self.vector.with_flow_label(req.flow_label),
            "path_mtu": req.path_mtu,
            "dest_qp_num": machine.remote_qpn,
            "rq_psn": self.psn,
            "max_dest_rd_atomic": self.resources,
            "min_rnr_timer": MIN_RNR_TIMER,
        }
        return values, _TO_RTR

    def _rts(self, machine: Machine, req: Req) -> tuple[dict[str, Any], int]:
        theirs = machine.rep if machine.active and machine.rep is not None else req
        values = {
            "qp_state": RTS,
            "timeout": req.ack_timeout if self.ack_timeout is None else self.ack_timeout,
            "retry_cnt": req.retry_count,
            "rnr_retry": theirs.rnr_retry_count,
            "sq_psn": theirs.starting_psn,
            "max_rd_atomic": self.depth,
        }
        return values, _TO_RTS
