# SPDX-License-Identifier: MIT
"""The states of a queue pair, as a table: what each change needs and allows (ibv_modify_qp(3), IBA 11.2.5.2)."""

import errno
from typing import Any

from softverbs.core.base.errors import PyverbsRDMAError
from softverbs.core.base.limits import MAX_RD_ATOMIC

QPT_RC = 2
QPT_UC = 3
QPT_UD = 4
QPT_XRC_SEND = 9
QPT_XRC_RECV = 10

# enum ibv_qp_attr_mask
STATE = 1 << 0
CUR_STATE = 1 << 1
EN_SQD_ASYNC_NOTIFY = 1 << 2
ACCESS_FLAGS = 1 << 3
PKEY_INDEX = 1 << 4
PORT = 1 << 5
QKEY = 1 << 6
AV = 1 << 7
PATH_MTU = 1 << 8
TIMEOUT = 1 << 9
RETRY_CNT = 1 << 10
RNR_RETRY = 1 << 11
RQ_PSN = 1 << 12
MAX_QP_RD_ATOMIC = 1 << 13
ALT_PATH = 1 << 14
MIN_RNR_TIMER = 1 << 15
SQ_PSN = 1 << 16
MAX_DEST_RD_ATOMIC = 1 << 17
PATH_MIG_STATE = 1 << 18
CAP = 1 << 19
DEST_QPN = 1 << 20
RATE_LIMIT = 1 << 25

MASK_NAMES = {
    STATE: "IBV_QP_STATE",
    CUR_STATE: "IBV_QP_CUR_STATE",
    EN_SQD_ASYNC_NOTIFY: "IBV_QP_EN_SQD_ASYNC_NOTIFY",
    ACCESS_FLAGS: "IBV_QP_ACCESS_FLAGS",
    PKEY_INDEX: "IBV_QP_PKEY_INDEX",
    PORT: "IBV_QP_PORT",
    QKEY: "IBV_QP_QKEY",
    AV: "IBV_QP_AV",
    PATH_MTU: "IBV_QP_PATH_MTU",
    TIMEOUT: "IBV_QP_TIMEOUT",
    RETRY_CNT: "IBV_QP_RETRY_CNT",
    RNR_RETRY: "IBV_QP_RNR_RETRY",
    RQ_PSN: "IBV_QP_RQ_PSN",
    MAX_QP_RD_ATOMIC: "IBV_QP_MAX_QP_RD_ATOMIC",
    ALT_PATH: "IBV_QP_ALT_PATH",
    MIN_RNR_TIMER: "IBV_QP_MIN_RNR_TIMER",
    SQ_PSN: "IBV_QP_SQ_PSN",
    MAX_DEST_RD_ATOMIC: "IBV_QP_MAX_DEST_RD_ATOMIC",
    PATH_MIG_STATE: "IBV_QP_PATH_MIG_STATE",
    CAP: "IBV_QP_CAP",
    DEST_QPN: "IBV_QP_DEST_QPN",
    RATE_LIMIT: "IBV_QP_RATE_LIMIT",
}
STATE_NAMES = ("RESET", "INIT", "RTR", "RTS", "SQD", "SQE", "ERR")

#: ``enum ibv_access_flags`` that may stand in qp_access_flags; those of memory regions only change nothing.
KNOWN_ACCESS = 0x3FF003FF

Row = tuple[int, int]  # attributes that must be given, attributes that may be given

# What can change while a queue pair works.
_UD_LIVE = CUR_STATE | QKEY
_UC_LIVE = CUR_STATE | ACCESS_FLAGS | ALT_PATH | PATH_MIG_STATE
_RC_LIVE = _UC_LIVE | MIN_RNR_TIMER
_TO_INIT = PKEY_INDEX | PORT | ACCESS_FLAGS
_CONNECT = AV | PATH_MTU | DEST_QPN | RQ_PSN
_CONNECT_OPTIONAL = ALT_PATH | ACCESS_FLAGS | PKEY_INDEX
_RESPONDS = MAX_DEST_RD_ATOMIC | MIN_RNR_TIMER
_REQUESTS = TIMEOUT | RETRY_CNT | RNR_RETRY | SQ_PSN | MAX_QP_RD_ATOMIC
_PAUSED = PORT | AV | PKEY_INDEX


def _rows(init: int, connect: Row, start: int, live: int, paused: int, restarts: bool) -> dict[tuple[int, int], Row]:
    """The table of one transport.

    :param init: attributes for RESET to INIT
    :param connect: for INIT to RTR
    :param start: for RTR to RTS
    :param live: may be given from RTR to RTS and later
    :param paused: may be given in SQD besides
    :param restarts: whether there is a way from SQE
    """
    rows = {
        (0, 1): (init, 0),
        (1, 1): (0, init),
        (1, 2): connect,
        (2, 3): (start, live),
        (3, 3): (0, live),
        (3, 4): (0, EN_SQD_ASYNC_NOTIFY),
        (4, 3): (0, live),
        (4, 4): (0, paused | live),
    }
    if restarts:
        rows[(5, 3)] = (0, live)
    return rows


_RC_PAUSED = _PAUSED | TIMEOUT | RETRY_CNT | RNR_RETRY | MAX_QP_RD_ATOMIC | MAX_DEST_RD_ATOMIC
_INI_PAUSED = _PAUSED | TIMEOUT | RETRY_CNT | RNR_RETRY | MAX_QP_RD_ATOMIC
#: Type of queue pair: (from, to): (attributes that must be given, attributes that may be given).
TRANSITIONS = {
    QPT_RC: _rows(_TO_INIT, (_CONNECT | _RESPONDS, _CONNECT_OPTIONAL), _REQUESTS, _RC_LIVE, _RC_PAUSED, False),
    QPT_UC: _rows(_TO_INIT, (_CONNECT, _CONNECT_OPTIONAL), SQ_PSN, _UC_LIVE, _PAUSED, True),
    QPT_UD: _rows(PKEY_INDEX | PORT | QKEY, (0, PKEY_INDEX | QKEY), SQ_PSN, _UD_LIVE, PKEY_INDEX, True),
    QPT_XRC_SEND: _rows(_TO_INIT, (_CONNECT, _CONNECT_OPTIONAL), _REQUESTS, _UC_LIVE, _INI_PAUSED, False),
    QPT_XRC_RECV: _rows(
        _TO_INIT,
        (_CONNECT | _RESPONDS, _CONNECT_OPTIONAL),
        TIMEOUT | SQ_PSN,
        _RC_LIVE,
        _PAUSED | TIMEOUT | MAX_DEST_RD_ATOMIC,
        False,
    ),
}
#: What half a connection has no use for. It is left aside where it is given, as the kernel does for programs
#: (modify_qp_mask() of uverbs_cmd.c): perftest, for one, gives an XRC initiator all that an RC queue pair needs.
IGNORED = {QPT_XRC_SEND: _RESPONDS, QPT_XRC_RECV: RETRY_CNT | RNR_RETRY | MAX_QP_RD_ATOMIC}
#: Attribute: (its bit, its largest value).
RANGES = {
    "pkey_index": (PKEY_INDEX, 0),
    "dest_qp_num": (DEST_QPN, 0xFFFFFF),
    "rq_psn": (RQ_PSN, 0xFFFFFF),
    "sq_psn": (SQ_PSN, 0xFFFFFF),
    "max_rd_atomic": (MAX_QP_RD_ATOMIC, MAX_RD_ATOMIC),
    "max_dest_rd_atomic": (MAX_DEST_RD_ATOMIC, MAX_RD_ATOMIC),
    "min_rnr_timer": (MIN_RNR_TIMER, 31),
    "timeout": (TIMEOUT, 31),
    "retry_cnt": (RETRY_CNT, 7),
    "rnr_retry": (RNR_RETRY, 7),
    "qkey": (QKEY, 2**32 - 1),
    "en_sqd_async_notify": (EN_SQD_ASYNC_NOTIFY, 1),
}


def applicable(qp_type: int, values: dict[str, Any], mask: int) -> tuple[dict[str, Any], int]:
    """The attributes and the mask without what the type of queue pair ignores.

    :param values: by the names of ``struct ibv_qp_attr``
    :param mask: which of them count
    """
    ignored = IGNORED.get(qp_type, 0) & mask
    if not ignored:
        return values, mask
    left = {name: value for name, value in values.items() if name not in RANGES or not RANGES[name][0] & ignored}
    return left, mask & ~ignored


def check_transition(qp_type: int, qp_num: int, state: int, target: int, mask: int) -> None:
    """Refuses a change of state that is not in the table, and names every missing and every unwelcome attribute.

    :raises PyverbsRDMAError: EINVAL
    """
    change = f"{STATE_NAMES[state]} to {STATE_NAMES[target]}"
    if STATE_NAMES[target] in ("RESET", "ERR"):
        required, optional = 0, CUR_STATE
    elif (state, target) in TRANSITIONS[qp_type]:
        required, optional = TRANSITIONS[qp_type][(state, target)]
    else:
        raise PyverbsRDMAError(f"QP {qp_num:#x} cannot go from {change}", errno.EINVAL)
    missing = required & ~mask
    invalid = mask & ~(required | optional | STATE | CUR_STATE)
    if missing or invalid:
        words = [f"{change}:"]
        if missing:
            words.append(f"missing {mask_text(missing)}")
        if invalid:
            words.append(f"not allowed {mask_text(invalid)}")
        raise PyverbsRDMAError(" ".join(words), errno.EINVAL)


def check_values(values: dict[str, Any], mask: int, active_mtu: int) -> None:
    """Refuses attributes that are out of range.

    :param values: by the names of ``struct ibv_qp_attr``
    :param mask: which of them count
    :param active_mtu: ``enum ibv_mtu`` of the port
    :raises PyverbsRDMAError: EINVAL, with the name, the value and the range
    """
    for name, (bit, most) in RANGES.items():
        if mask & bit and not 0 <= values[name] <= most:
            raise PyverbsRDMAError(f"{name}={values[name]} is out of range: 0 to {most}", errno.EINVAL)
    if mask & PORT and values["port_num"] != 1:
        raise PyverbsRDMAError(f"port_num={values['port_num']}: the device has port 1", errno.EINVAL)
    if mask & ACCESS_FLAGS and values["qp_access_flags"] & ~KNOWN_ACCESS:
        raise PyverbsRDMAError(f"qp_access_flags={values['qp_access_flags']:#x}: unknown bits", errno.EINVAL)
    if mask & PATH_MTU and not 1 <= values["path_mtu"] <= active_mtu:
        raise PyverbsRDMAError(
            f"path_mtu={values['path_mtu']} is out of range: IBV_MTU_256 (1) to the port's active_mtu, {active_mtu}",
            errno.EINVAL,
        )
    if mask & ALT_PATH or (mask & PATH_MIG_STATE and values["path_mig_state"] != 0):
        raise PyverbsRDMAError(
            "automatic path migration is not supported: no ALT_PATH, path_mig_state MIGRATED only", errno.EINVAL
        )


def mask_text(mask: int) -> str:
    """The names of attribute mask bits, separated by commas."""
    names = []
    for shift in range(32):
        if mask & 1 << shift:
            names.append(MASK_NAMES.get(1 << shift, f"{1 << shift:#x}"))
    return ", ".join(names)
