cimport cython
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t, uintptr_t
from softverbs.core.completion cimport CompCntr, CompletionQueue, complete
from softverbs.core.connection cimport Connection
from softverbs.core.constants cimport (
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
from softverbs.core.egress cimport Egress
from softverbs.core.headers cimport (
    AETH_RNR,
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
from softverbs.core.memory cimport (
    Block,
    compare_swap64,
    raw_copy as copy,
    fetch_add64,
    raw_load32 as load32,
    raw_load64 as load64,
    raw_store64 as store64,
)
from softverbs.core.opcodes cimport (
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
from softverbs.core.packets cimport (
    ATOMIC_SIZE,
    FETH_LENGTH,
    MAX_HEADERS,
    MAX_WORDS,
    RETH_LENGTH,
    write_acknowledge,
    write_atomic_answer,
    write_read_response,
    write_words,
)
from softverbs.core.psn cimport add, diff
from softverbs.core.regions cimport MemoryRegion, ProtectionDomain
from softverbs.core.rings cimport RQ_LENGTH, RQ_NUM_SGE, RQ_SGES, RQ_WR_ID, SGE_SIZE, Ring
from softverbs.core.srq cimport ReceiveQueue

cdef uint64_t MAX_MESSAGE
cdef int GRANT
cdef int PACE_START
cdef int PACE_LEAST
cdef int PACE_MOST
cdef int PACE_NAP
cdef int64_t PACE_BURST
cdef int PACE_FULL
cdef int FLUSH_GLOBAL
cdef int FLUSH_PERSISTENT
cdef int FLUSH_REGION

cdef class Resource:
    cdef uint32_t kind
    cdef ProtectionDomain pd
    cdef uint32_t first_psn
    cdef uint32_t last_psn
    cdef uint64_t va
    cdef uint32_t rkey
    cdef uint64_t length
    cdef uint64_t original
    cdef uint64_t start
    cdef uint64_t sent
    cdef bint queued
    cdef bint answered

cdef class Responder:
    cdef Connection connection
    cdef ReceiveQueue receives
    cdef Block block
    cdef uintptr_t receive
    cdef CompletionQueue cq
    cdef bint consumes
    cdef int64_t pace_cap
    cdef public CompCntr recv_counter
    cdef public CompCntr remote_write_counter
    cdef public CompCntr remote_read_counter
    cdef public int min_rnr_timer
    cdef public bint explains
    cdef list resources
    cdef readonly uint64_t duplicates
    cdef readonly uint64_t dropped
    cdef bint refused
    cdef readonly uint32_t epsn
    cdef uint32_t ack_psn
    cdef readonly uint32_t msn
    cdef uint32_t message
    cdef uint64_t placed
    cdef uint64_t write_va
    cdef uint32_t write_rkey
    cdef uint64_t write_length
    cdef bint ack_due
    cdef int nak
    cdef uint32_t nak_psn
    cdef bint silent
    cdef int64_t newest
    cdef int queued
    cdef int64_t pace
    cdef int64_t tokens
    cdef int64_t refilled
    cdef readonly int64_t resume_at
    cdef readonly bint failed
    cdef readonly int event
    cdef readonly object reason

    cpdef reset(self, uint32_t psn, int max_resources)
    cpdef drop_receives(self)
    @cython.locals(distance=int32_t)
    cdef void on_request(self, int opcode, uint32_t flags, uint32_t psn, uintptr_t headers, uintptr_t payload, uint32_t length, bint ask, bint solicited) except *
    @cython.locals(mtu=uint32_t, kind=uint32_t)
    cdef bint _fits(self, int opcode, uint32_t flags, uint32_t length) noexcept
    @cython.locals(done=bint)
    cdef void _perform(self, int opcode, uint32_t flags, uintptr_t headers, uintptr_t payload, uint32_t length, bint ask, bint solicited) except *
    @cython.locals(connection=Connection, slot=uintptr_t, immediate=uint32_t, wc_flags=uint32_t)
    cdef bint _on_send(self, uint32_t flags, uintptr_t headers, uintptr_t payload, uint32_t length, bint solicited) except -1
    @cython.locals(ending=bint, takes=bint, address=uintptr_t, immediate=uint32_t)
    cdef bint _on_write(self, uint32_t flags, uintptr_t headers, uintptr_t payload, uint32_t length, bint solicited) except -1
    cdef uintptr_t _open_write(self, uintptr_t headers) except? 0
    cdef void _complete_write_with_imm(self, uint32_t immediate, bint solicited) except *
    @cython.locals(va=uint64_t, rkey=uint32_t, length=uint64_t, packets=uint32_t, resource=Resource)
    cdef bint _on_read(self, uintptr_t headers) except -1
    @cython.locals(va=uint64_t, address=uintptr_t, resource=Resource)
    cdef bint _on_atomic(self, int opcode, uintptr_t headers) except -1
    @cython.locals(kind=int, right=uint32_t, rkey=uint32_t, va=uint64_t, length=uint64_t, region=MemoryRegion)
    cdef bint _on_flush(self, uintptr_t headers) except -1
    @cython.locals(va=uint64_t, address=uintptr_t)
    cdef bint _on_atomic_write(self, uintptr_t headers, uintptr_t payload) except -1
    @cython.locals(resource=Resource)
    cdef bint _remember_empty(self, uint32_t kind) except -1
    @cython.locals(count=int64_t, resource=Resource)
    cdef Resource _remember(self, uint32_t kind, uint32_t packets)
    cdef bint _granted(self, uint32_t right) except -1
    cdef bint _bounded(self, uint64_t length) except -1
    @cython.locals(address=uintptr_t)
    cdef uintptr_t _opened(self, uint32_t rkey, uint64_t va, uint64_t length, uint32_t right) except? 0
    cdef void _complete_receive(self, uintptr_t slot, uint32_t length, bint solicited, int status, int opcode, uint32_t immediate, uint32_t wc_flags, object reason) except *
    cdef void _finish(self) noexcept
    @cython.locals(ring=Ring, slot=uintptr_t)
    cdef uintptr_t _take_receive(self) except? 0
    cdef void _negative(self, int syndrome, uint32_t psn) noexcept
    cdef bint _not_ready(self) noexcept
    cdef bint _refuse(self, int syndrome, int event, object reason) except -1
    @cython.locals(count=int64_t, oldest=int64_t, index=int64_t, resource=Resource)
    cdef void _on_duplicate(self, uint32_t flags, uint32_t psn, uintptr_t headers) except *
    @cython.locals(skip=uint64_t, same=bint)
    cdef void _answer_again(self, Resource resource, uint32_t flags, uint32_t psn, uintptr_t headers) except *
    cdef int pump(self, Egress egress, int64_t now) except -1
    @cython.locals(count=int64_t, index=int64_t, resource=Resource)
    cdef bint _pump_queued(self, Egress egress, int64_t now) except -1
    @cython.locals(connection=Connection, address=uintptr_t, part=uint64_t, last=bint, first=bint, psn=uint32_t, source=uintptr_t, length=uint32_t)
    cdef bint _send_responses(self, Egress egress, Resource resource, int64_t now) except -1
    cdef void _stop_reading(self, uint32_t psn) except *
    @cython.locals(elapsed=int64_t)
    cdef bint _may_send(self, int64_t now) noexcept
    @cython.locals(connection=Connection, address=uintptr_t, length=uint32_t)
    cdef bint _send_atomic(self, Egress egress, Resource resource) except -1
    @cython.locals(address=uintptr_t)
    cdef bint _send_acknowledge(self, Egress egress, uint32_t psn, int syndrome) except -1
    @cython.locals(address=uintptr_t, length=uint32_t)
    cdef bint _send_nak(self, Egress egress) except -1
    @cython.locals(ring=Ring, slot=uintptr_t)
    cpdef void flush(self, object reason) except *
