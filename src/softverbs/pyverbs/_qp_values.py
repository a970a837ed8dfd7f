# SPDX-License-Identifier: MIT
"""Attributes of a QP, between the structures of the API and the core; and what each step towards RTS needs."""

from typing import Any

from softverbs.pyverbs import libibverbs_enums as e
from softverbs.pyverbs._qp_attr import QPAttr, QPCap
from softverbs.pyverbs.addr import AHAttr

_CONNECTED_INIT = e.IBV_QP_PKEY_INDEX | e.IBV_QP_PORT | e.IBV_QP_ACCESS_FLAGS
_PATH = e.IBV_QP_AV | e.IBV_QP_PATH_MTU | e.IBV_QP_DEST_QPN | e.IBV_QP_RQ_PSN
_RESPONDER = e.IBV_QP_MAX_DEST_RD_ATOMIC | e.IBV_QP_MIN_RNR_TIMER
_REQUESTER = e.IBV_QP_RETRY_CNT | e.IBV_QP_RNR_RETRY | e.IBV_QP_MAX_QP_RD_ATOMIC
_SEND = e.IBV_QP_TIMEOUT | e.IBV_QP_SQ_PSN
#: Type: what INIT, RTR and RTS need besides the state (ibv_modify_qp(3), IBA 11.2.5.2).
_STEPS = {
    e.IBV_QPT_RC: {"INIT": _CONNECTED_INIT, "RTR": _PATH | _RESPONDER, "RTS": _SEND | _REQUESTER},
    e.IBV_QPT_UC: {"INIT": _CONNECTED_INIT, "RTR": _PATH, "RTS": e.IBV_QP_SQ_PSN},
    e.IBV_QPT_UD: {
        "INIT": e.IBV_QP_PKEY_INDEX | e.IBV_QP_PORT | e.IBV_QP_QKEY,
        "RTR": 0,
        "RTS": e.IBV_QP_SQ_PSN,
    },
    e.IBV_QPT_XRC_SEND: {"INIT": _CONNECTED_INIT, "RTR": _PATH, "RTS": _SEND | _REQUESTER},
    e.IBV_QPT_XRC_RECV: {"INIT": _CONNECTED_INIT, "RTR": _PATH | _RESPONDER, "RTS": _SEND},
}

#: Bit of ibv_modify_qp's mask -> the member of ``struct ibv_qp_attr`` that it stands for.
MEMBERS = {
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


def step_mask(qp_type: int, target: str) -> int:
    """Which attributes a step needs, as a mask.

    :param qp_type: IBV_QPT_RC and so on
    :param target: ``INIT``, ``RTR`` or ``RTS``
    """
    return _STEPS[qp_type][target] | e.IBV_QP_STATE


def to_core(attr: QPAttr, mask: int) -> dict[str, Any]:
    """What ``mask`` names of ``attr``, for the core.

    :param attr: the attributes
    :param mask: IBV_QP_* bits
    """
    values: dict[str, Any] = {name: getattr(attr, name) for bit, name in MEMBERS.items() if mask & bit}
    if mask & e.IBV_QP_AV:
        values["ah_attr"] = attr._ah._vector()
    return values


def from_core(values: dict[str, Any], cap: QPCap) -> QPAttr:
    """What the core reports, as the structure of the API.

    :param values: by the names of the members
    :param cap: the sizes
    """
    attr = QPAttr()
    attr.cap = cap
    vector = values.pop("ah_attr", None)
    for name, value in values.items():
        setattr(attr, name, value)
    if vector is not None:
        attr._ah = AHAttr._of(vector)
    return attr
