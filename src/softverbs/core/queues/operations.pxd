# SPDX-License-Identifier: MIT
from libc.stdint cimport uint32_t
from softverbs.core.base.constants cimport (
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

cdef uint32_t _UD
cdef uint32_t _UC
cdef uint32_t _XRC
cdef uint32_t _RC

cdef int ATOMIC_SIZE

cpdef str operation_name(int opcode)
cpdef str type_name(int qp_type)
cpdef uint32_t allowed(int qp_type) noexcept
cdef bint is_atomic(int opcode) noexcept
cdef bint is_answered(int opcode) noexcept
cdef bint has_remote_memory(int opcode) noexcept
cdef int completion_opcode(int opcode) noexcept
