# SPDX-License-Identifier: MIT
cimport cython
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t, uintptr_t
from softverbs.core.base.constants cimport (
    SEND_INLINE,
    SEND_SOLICITED,
    WR_ATOMIC_CMP_AND_SWP,
    WR_RDMA_WRITE,
    WR_RDMA_WRITE_WITH_IMM,
    WR_SEND_WITH_IMM,
    WR_SEND_WITH_INV,
)
from softverbs.core.memory.raw cimport (
    raw_copy as copy,
    fill,
    raw_load8 as load8,
    raw_load16 as load16,
    raw_load32 as load32,
    raw_load64 as load64,
    view,
)
from softverbs.core.queues.operations cimport ATOMIC_SIZE
from softverbs.core.queues.rings cimport (
    SQ_COMPARE_ADD,
    SQ_DESTINATION,
    SQ_FLAGS,
    SQ_IMM,
    SQ_LENGTH,
    SQ_NUM_SGE,
    SQ_OPCODE,
    SQ_REMOTE_ADDRESS,
    SQ_RKEY,
    SQ_SGES,
    SQ_SWAP,
)
from softverbs.core.transport.connection cimport Connection
from softverbs.core.wire.headers cimport (
    put_aeth,
    put_atomic_ack,
    put_atomic_eth,
    put_bth,
    put_deth,
    put_feth,
    put_ieth,
    put_imm,
    put_reth,
    put_xrceth,
)
from softverbs.core.wire.opcodes cimport (
    BTH_LENGTH,
    EXPLAIN,
    RC_ACKNOWLEDGE,
    RC_ATOMIC_ACKNOWLEDGE,
    RC_ATOMIC_WRITE,
    RC_COMPARE_SWAP,
    RC_FETCH_ADD,
    RC_FLUSH,
    RC_RDMA_READ_REQUEST,
    RC_RDMA_READ_RESPONSE_FIRST,
    RC_RDMA_READ_RESPONSE_LAST,
    RC_RDMA_READ_RESPONSE_MIDDLE,
    RC_RDMA_READ_RESPONSE_ONLY,
    RC_RDMA_WRITE_FIRST,
    RC_RDMA_WRITE_LAST,
    RC_RDMA_WRITE_LAST_WITH_IMMEDIATE,
    RC_RDMA_WRITE_MIDDLE,
    RC_RDMA_WRITE_ONLY,
    RC_RDMA_WRITE_ONLY_WITH_IMMEDIATE,
    RC_SEND_FIRST,
    RC_SEND_LAST,
    RC_SEND_LAST_WITH_IMMEDIATE,
    RC_SEND_LAST_WITH_INVALIDATE,
    RC_SEND_MIDDLE,
    RC_SEND_ONLY,
    RC_SEND_ONLY_WITH_IMMEDIATE,
    RC_SEND_ONLY_WITH_INVALIDATE,
    UD_SEND_ONLY,
    UD_SEND_ONLY_WITH_IMMEDIATE,
    XRC,
)

cdef int MAX_HEADERS
cdef int MAX_WORDS
cdef int RETH_LENGTH
cdef int AETH_LENGTH
cdef int ATOMIC_ETH_LENGTH
cdef int ATOMIC_ACK_LENGTH
cdef int XRCETH_LENGTH
cdef int DETH_LENGTH
cdef int FETH_LENGTH

@cython.locals(opcode=int, flags=int, last=bint, at=uintptr_t, pad=int, solicited=bint, code=int)
cdef uint32_t write_payload(Connection connection, uintptr_t slot, uintptr_t address, uint32_t psn, uint64_t offset, uint64_t part, bint ask) except? 0
@cython.locals(at=uintptr_t)
cdef uintptr_t put_extension(Connection connection, uintptr_t slot, uintptr_t address) noexcept
@cython.locals(opcode=int, flags=int, at=uintptr_t, pad=int, code=int, length=uint32_t)
cdef uint32_t write_datagram(Connection connection, uintptr_t slot, uintptr_t address, uint32_t psn, uint32_t source_qpn, uint32_t destination, uint32_t qkey) except? 0
@cython.locals(va=uint64_t, at=uintptr_t, code=int)
cdef uint32_t write_read_request(Connection connection, uintptr_t slot, uintptr_t address, uint32_t psn, uint32_t skip) noexcept
@cython.locals(va=uint64_t, rkey=uint32_t, operand=uint64_t, at=uintptr_t, code=int)
cdef uint32_t write_atomic_request(Connection connection, uintptr_t slot, uintptr_t address, uint32_t psn) noexcept
@cython.locals(at=uintptr_t)
cdef uint32_t write_flush_request(Connection connection, uintptr_t slot, uintptr_t address, uint32_t psn) noexcept
@cython.locals(at=uintptr_t)
cdef uint32_t write_atomic_write(Connection connection, uintptr_t slot, uintptr_t address, uint32_t psn) except? 0
@cython.locals(at=uintptr_t, pad=int, code=int)
cdef uint32_t write_read_response(Connection connection, uintptr_t address, uint32_t psn, int syndrome, uint32_t msn, uintptr_t source, uint64_t part, bint first, bint last) noexcept
@cython.locals(code=int)
cdef uint32_t write_atomic_answer(Connection connection, uintptr_t address, uint32_t psn, int syndrome, uint32_t msn, uint64_t original) noexcept
@cython.locals(code=int)
cdef uint32_t write_acknowledge(Connection connection, uintptr_t address, uint32_t psn, int syndrome, uint32_t msn) noexcept
@cython.locals(words=bytes)
cdef uint32_t write_words(Connection connection, uintptr_t address, uint32_t psn, object reason) except? 0
cpdef int request_opcode(int opcode, bint first, bint last) noexcept
cpdef int response_opcode(bint first, bint last) noexcept
