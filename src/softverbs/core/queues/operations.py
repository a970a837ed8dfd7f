# SPDX-License-Identifier: MIT
"""What the opcode of a work request means (ibv_post_send(3)): how it is answered, completed, and who may post it."""

try:
    import cython
except ImportError:
    from softverbs import _cython as cython

if not cython.compiled:
    from softverbs.core.base.constants import (
        QPT_RC,
        QPT_UC,
        QPT_UD,
        QPT_XRC_RECV,
        QPT_XRC_SEND,
        WC_ATOMIC_WRITE,
        WC_BIND_MW,
        WC_COMP_SWAP,
        WC_FETCH_ADD,
        WC_FLUSH,
        WC_LOCAL_INV,
        WC_RDMA_READ,
        WC_RDMA_WRITE,
        WC_SEND,
        WR_ATOMIC_CMP_AND_SWP,
        WR_ATOMIC_FETCH_AND_ADD,
        WR_ATOMIC_WRITE,
        WR_BIND_MW,
        WR_FLUSH,
        WR_LOCAL_INV,
        WR_RDMA_READ,
        WR_RDMA_WRITE,
        WR_RDMA_WRITE_WITH_IMM,
        WR_SEND,
        WR_SEND_WITH_IMM,
        WR_SEND_WITH_INV,
    )

#: Bytes that an atomic works on.
ATOMIC_SIZE = 8

#: The types of queue pairs, for people.
TYPE_NAMES = {QPT_RC: "RC", QPT_UC: "UC", QPT_UD: "UD", QPT_XRC_SEND: "XRC_SEND", QPT_XRC_RECV: "XRC_RECV"}

# Operations that a queue pair of each type may post, one bit each (IBA table 88; FLUSH and ATOMIC_WRITE: annex A19).
_UD = 1 << WR_SEND | 1 << WR_SEND_WITH_IMM
_UC = _UD | 1 << WR_RDMA_WRITE | 1 << WR_RDMA_WRITE_WITH_IMM | 1 << WR_LOCAL_INV | 1 << WR_BIND_MW
_XRC = _UC | 1 << WR_RDMA_READ | 1 << WR_ATOMIC_CMP_AND_SWP | 1 << WR_ATOMIC_FETCH_AND_ADD | 1 << WR_SEND_WITH_INV
_RC = _XRC | 1 << WR_FLUSH | 1 << WR_ATOMIC_WRITE

_NAMES = {
    WR_RDMA_WRITE: "RDMA_WRITE",
    WR_RDMA_WRITE_WITH_IMM: "RDMA_WRITE_WITH_IMM",
    WR_SEND: "SEND",
    WR_SEND_WITH_IMM: "SEND_WITH_IMM",
    WR_RDMA_READ: "RDMA_READ",
    WR_ATOMIC_CMP_AND_SWP: "ATOMIC_CMP_AND_SWP",
    WR_ATOMIC_FETCH_AND_ADD: "ATOMIC_FETCH_AND_ADD",
    WR_LOCAL_INV: "LOCAL_INV",
    WR_BIND_MW: "BIND_MW",
    WR_SEND_WITH_INV: "SEND_WITH_INV",
    WR_FLUSH: "FLUSH",
    WR_ATOMIC_WRITE: "ATOMIC_WRITE",
}


def operation_name(opcode: int) -> str:
    """The name of an operation, for people."""
    return _NAMES.get(opcode, f"opcode {opcode}")


def type_name(qp_type: int) -> str:
    """The name of a type of queue pairs, for people."""
    return TYPE_NAMES[qp_type]


def allowed(qp_type: int) -> int:
    """The operations that a queue pair of a type may post, one bit each."""
    if qp_type == QPT_RC:
        return _RC
    if qp_type == QPT_UC:
        return _UC
    if qp_type == QPT_UD:
        return _UD
    return _XRC if qp_type == QPT_XRC_SEND else 0


def is_atomic(opcode: int) -> bool:
    """Whether it is one of the atomics that return a value."""
    return opcode == WR_ATOMIC_CMP_AND_SWP or opcode == WR_ATOMIC_FETCH_AND_ADD


def is_answered(opcode: int) -> bool:
    """Whether it waits for a response of its own, not for an ACK: READ, the atomics, FLUSH and ATOMIC_WRITE."""
    return (opcode >= WR_RDMA_READ and opcode <= WR_ATOMIC_FETCH_AND_ADD) or opcode >= WR_FLUSH


def has_remote_memory(opcode: int) -> bool:
    """Whether it names memory of the peer."""
    return opcode == WR_RDMA_WRITE or opcode == WR_RDMA_WRITE_WITH_IMM or is_answered(opcode)


def completion_opcode(opcode: int) -> int:
    """``enum ibv_wc_opcode`` of a work request's opcode."""
    if opcode == WR_RDMA_WRITE or opcode == WR_RDMA_WRITE_WITH_IMM:
        return WC_RDMA_WRITE
    if opcode == WR_RDMA_READ:
        return WC_RDMA_READ
    if opcode == WR_ATOMIC_CMP_AND_SWP:
        return WC_COMP_SWAP
    if opcode == WR_ATOMIC_FETCH_AND_ADD:
        return WC_FETCH_ADD
    if opcode == WR_LOCAL_INV:
        return WC_LOCAL_INV
    if opcode == WR_BIND_MW:
        return WC_BIND_MW
    if opcode == WR_FLUSH:
        return WC_FLUSH
    if opcode == WR_ATOMIC_WRITE:
        return WC_ATOMIC_WRITE
    return WC_SEND
