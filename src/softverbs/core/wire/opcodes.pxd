# SPDX-License-Identifier: MIT
from libc.stdint cimport uint8_t, uint32_t

cdef uint32_t KNOWN
cdef uint32_t REQUEST
cdef uint32_t RESPONSE
cdef uint32_t SEND
cdef uint32_t WRITE
cdef uint32_t READ
cdef uint32_t ATOMIC
cdef uint32_t ACK
cdef uint32_t FIRST
cdef uint32_t MIDDLE
cdef uint32_t LAST
cdef uint32_t ONLY
cdef uint32_t PAYLOAD
cdef uint32_t RETH
cdef uint32_t AETH
cdef uint32_t IMM
cdef uint32_t IETH
cdef uint32_t ATOMIC_ETH
cdef uint32_t ATOMIC_ACK_ETH
cdef uint32_t DETH
cdef uint32_t FETH
cdef uint32_t XRCETH

cdef int RC_SEND_FIRST
cdef int RC_SEND_MIDDLE
cdef int RC_SEND_LAST
cdef int RC_SEND_LAST_WITH_IMMEDIATE
cdef int RC_SEND_ONLY
cdef int RC_SEND_ONLY_WITH_IMMEDIATE
cdef int RC_RDMA_WRITE_FIRST
cdef int RC_RDMA_WRITE_MIDDLE
cdef int RC_RDMA_WRITE_LAST
cdef int RC_RDMA_WRITE_LAST_WITH_IMMEDIATE
cdef int RC_RDMA_WRITE_ONLY
cdef int RC_RDMA_WRITE_ONLY_WITH_IMMEDIATE
cdef int RC_RDMA_READ_REQUEST
cdef int RC_RDMA_READ_RESPONSE_FIRST
cdef int RC_RDMA_READ_RESPONSE_MIDDLE
cdef int RC_RDMA_READ_RESPONSE_LAST
cdef int RC_RDMA_READ_RESPONSE_ONLY
cdef int RC_ACKNOWLEDGE
cdef int RC_ATOMIC_ACKNOWLEDGE
cdef int RC_COMPARE_SWAP
cdef int RC_FETCH_ADD
cdef int RC_SEND_LAST_WITH_INVALIDATE
cdef int RC_SEND_ONLY_WITH_INVALIDATE
cdef int RC_FLUSH
cdef int RC_ATOMIC_WRITE
cdef int UC_SEND_FIRST
cdef int UC_SEND_MIDDLE
cdef int UC_SEND_LAST
cdef int UC_SEND_LAST_WITH_IMMEDIATE
cdef int UC_SEND_ONLY
cdef int UC_SEND_ONLY_WITH_IMMEDIATE
cdef int UC_RDMA_WRITE_FIRST
cdef int UC_RDMA_WRITE_MIDDLE
cdef int UC_RDMA_WRITE_LAST
cdef int UC_RDMA_WRITE_LAST_WITH_IMMEDIATE
cdef int UC_RDMA_WRITE_ONLY
cdef int UC_RDMA_WRITE_ONLY_WITH_IMMEDIATE
cdef int UD_SEND_ONLY
cdef int UD_SEND_ONLY_WITH_IMMEDIATE
cdef int CNP
cdef int EXPLAIN

cdef int BTH_LENGTH
cdef int RC
cdef int UC
cdef int UD
cdef int XRC
cdef int TRANSPORT_BITS

cdef list _names
cdef uint32_t[256] _flags
cdef int[256] _lengths

cpdef uint32_t flags(uint8_t opcode) noexcept
cpdef int header_length(uint8_t opcode) noexcept
cpdef str name(uint8_t opcode)
