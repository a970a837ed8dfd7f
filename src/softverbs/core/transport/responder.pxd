# SPDX-License-Identifier: MIT
cimport cython
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t, uintptr_t
from softverbs.core.base.constants cimport (
    ACCESS_FLUSH_GLOBAL,
    ACCESS_FLUSH_PERSISTENT,
    ACCESS_REMOTE_ATOMIC,
    ACCESS_REMOTE_READ,
    ACCESS_REMOTE_WRITE,
    EVENT_QP_ACCESS_ERR,
    EVENT_QP_FATAL,
    EVENT_QP_REQ_ERR,
    WC_LOC_LEN_ERR,
    WC_LOC_PROT_ERR,
    WC_RECV,
    WC_RECV_RDMA_WITH_IMM,
    WC_REM_INV_REQ_ERR,
    WC_SUCCESS,
    WC_WITH_IMM,
    WC_WITH_INV,
    WC_WR_FLUSH_ERR,
)
from softverbs.core.memory.raw cimport (
    Block,
    compare_swap64,
    raw_copy as copy,
    fetch_add64,
    raw_load32 as load32,
    raw_load64 as load64,
    raw_store64 as store64,
)
from softverbs.core.memory.regions cimport MemoryRegion
from softverbs.core.memory.spaces cimport before, compare_swap, fetch_add, raw_is_far as is_far
from softverbs.core.memory.spaces cimport explain as explain_far
from softverbs.core.queues.completion cimport CompletionQueue, complete
from softverbs.core.queues.counters cimport CompCntr
from softverbs.core.queues.operations cimport ATOMIC_SIZE
from softverbs.core.queues.rings cimport RQ_LENGTH, RQ_NUM_SGE, RQ_SGES, RQ_WR_ID, SGE_SIZE, Ring
from softverbs.core.queues.srq cimport ReceiveQueue
from softverbs.core.transport.answers cimport Answers, Resource
from softverbs.core.transport.connection cimport Connection
from softverbs.core.transport.packets cimport FETH_LENGTH, RETH_LENGTH
from softverbs.core.wire.headers cimport (
    NAK_INVALID_REQUEST,
    NAK_PSN_SEQUENCE,
    NAK_REMOTE_ACCESS,
    NAK_REMOTE_OPERATION,
    atomic_compare,
    atomic_rkey,
    atomic_swap_add,
    atomic_va,
    feth_level,
    feth_type,
    ieth_rkey,
    imm,
    reth_length,
    reth_rkey,
    reth_va,
)
from softverbs.core.wire.opcodes cimport (
    ATOMIC,
    FETH,
    FIRST,
    IETH,
    IMM,
    LAST,
    ONLY,
    RC_ATOMIC_WRITE,
    RC_COMPARE_SWAP,
    READ,
    RETH,
    SEND,
    TRANSPORT_BITS,
    WRITE,
)
from softverbs.core.wire.psn cimport add, diff

cdef uint64_t MAX_MESSAGE
cdef int FLUSH_GLOBAL
cdef int FLUSH_PERSISTENT
cdef int FLUSH_REGION

cdef class Responder(Answers):
    cdef ReceiveQueue receives
    cdef Block block
    cdef uintptr_t receive
    cdef CompletionQueue cq
    cdef bint consumes
    cdef public CompCntr recv_counter
    cdef public CompCntr remote_write_counter
    cdef readonly uint64_t dropped
    cdef uint32_t message
    cdef uint64_t placed
    cdef uint64_t write_va
    cdef uint32_t write_rkey
    cdef uint64_t write_length
    cpdef reset(self, uint32_t psn, int max_resources)
    cpdef drop_receives(self)
    @cython.locals(distance=int32_t)
    cdef int on_request(self, int opcode, uint32_t flags, uint32_t psn, uintptr_t headers, uintptr_t payload, uint32_t length, bint ask, bint solicited) except -1
    @cython.locals(mtu=uint32_t, kind=uint32_t)
    cdef bint _fits(self, int opcode, uint32_t flags, uint32_t length) noexcept
    @cython.locals(done=bint)
    cdef int _perform(self, int opcode, uint32_t flags, uintptr_t headers, uintptr_t payload, uint32_t length, bint ask, bint solicited) except -1
    @cython.locals(connection=Connection, slot=uintptr_t, placed=bint, immediate=uint32_t, wc_flags=uint32_t)
    cdef bint _on_send(self, uint32_t flags, uintptr_t headers, uintptr_t payload, uint32_t length, bint solicited) except -1
    cdef bint _unplaced_send(self, uintptr_t slot) except -1
    @cython.locals(ending=bint, takes=bint, address=uintptr_t, immediate=uint32_t)
    cdef bint _on_write(self, uint32_t flags, uintptr_t headers, uintptr_t payload, uint32_t length, bint solicited) except -1
    cdef uintptr_t _open_write(self, uintptr_t headers) except? 0
    cdef void _complete_write_with_imm(self, uint32_t immediate, bint solicited) except *
    @cython.locals(va=uint64_t, rkey=uint32_t, length=uint64_t, packets=uint32_t, resource=Resource)
    cdef bint _on_read(self, uintptr_t headers) except -1
    @cython.locals(va=uint64_t, address=uintptr_t, resource=Resource)
    cdef bint _on_atomic(self, int opcode, uintptr_t headers) except -1
    @cython.locals(done=bint)
    cdef bint _perform_far(self, int opcode, uintptr_t headers, uintptr_t address) except -1
    cdef bint _unplaced_write(self) except -1
    cdef int on_unplaced(self) except -1
    @cython.locals(kind=int, right=uint32_t, rkey=uint32_t, va=uint64_t, length=uint64_t, region=MemoryRegion)
    cdef bint _on_flush(self, uintptr_t headers) except -1
    cdef bint _is_aligned(self, uintptr_t address, uint64_t va) except -1
    @cython.locals(va=uint64_t, address=uintptr_t)
    cdef bint _on_atomic_write(self, uintptr_t headers, uintptr_t payload) except -1
    cdef bint _granted(self, uint32_t right) except -1
    cdef bint _bounded(self, uint64_t length) except -1
    @cython.locals(address=uintptr_t)
    cdef uintptr_t _opened(self, uint32_t rkey, uint64_t va, uint64_t length, uint32_t right) except? 0
    cdef void _complete_receive(self, uintptr_t slot, uint32_t length, bint solicited, int status, int opcode, uint32_t immediate, uint32_t wc_flags, object reason) except *
    cdef void _finish(self) noexcept
    @cython.locals(ring=Ring, slot=uintptr_t)
    cdef uintptr_t _take_receive(self) except? 0
    @cython.locals(ring=Ring, slot=uintptr_t)
    cpdef void flush(self, object reason) except *
