# SPDX-License-Identifier: MIT
"""Which operations of the extended API for sends, ibv_wr_post(3), a queue pair can have: those that its type has."""

import errno
from typing import Any

from softverbs.core.queues.operations import allowed
from softverbs.pyverbs import libibverbs_enums as e
from softverbs.pyverbs._fields import refused
from softverbs.pyverbs.libibverbs_enums import names_of
from softverbs.pyverbs.utils import qp_type_to_str

#: IBV_QP_EX_WITH_* bit -> the work request's opcode.
_OPCODES = {
    getattr(e, f"IBV_QP_EX_WITH_{name}"): getattr(e, f"IBV_WR_{name}")
    for name in (
        "RDMA_WRITE",
        "RDMA_WRITE_WITH_IMM",
        "SEND",
        "SEND_WITH_IMM",
        "RDMA_READ",
        "ATOMIC_CMP_AND_SWP",
        "ATOMIC_FETCH_AND_ADD",
        "LOCAL_INV",
        "BIND_MW",
        "SEND_WITH_INV",
        "TSO",
        "FLUSH",
        "ATOMIC_WRITE",
    )
}


def send_ops(qp_type: int) -> int:
    """The IBV_QP_EX_WITH_* bits that a QP can have.

    :param qp_type: IBV_QPT_*
    """
    opcodes = allowed(qp_type)
    return sum(bit for bit, opcode in _OPCODES.items() if opcodes >> opcode & 1)


def op_names(flags: int) -> str:
    """The names of IBV_QP_EX_WITH_* bits, in words that a message can hold.

    :param flags: the bits; those without a name are shown as a number
    """
    names = names_of("ibv_qp_create_send_ops_flags")
    found = [name for bit, name in names.items() if flags & bit]
    rest = flags & ~sum(names)
    return ", ".join([*found, f"{rest:#x}"] if rest else found)


def check_send_ops(init_attr: Any, what: str) -> int:
    """The operations that ``init_attr`` asks for, IBV_QP_EX_WITH_* bits; 0 where IBV_QP_INIT_ATTR_SEND_OPS_FLAGS is
    not in its ``comp_mask``.

    :param init_attr: a QPInitAttr or a QPInitAttrEx
    :param what: what fails, for the message
    :raises PyverbsRDMAError: EOPNOTSUPP names the operations that a QP of this type cannot have
    """
    if not getattr(init_attr, "comp_mask", 0) & e.IBV_QP_INIT_ATTR_SEND_OPS_FLAGS:
        return 0
    flags = int(init_attr.send_ops_flags)
    unsupported = flags & ~send_ops(init_attr.qp_type)
    if unsupported:
        kind = qp_type_to_str(init_attr.qp_type)
        raise refused(f"{what}: send_ops_flags {op_names(unsupported)}: a QP of type {kind} has none", errno.EOPNOTSUPP)
    return flags
