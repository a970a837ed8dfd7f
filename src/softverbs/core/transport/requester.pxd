# SPDX-License-Identifier: MIT
cimport cython
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t, uintptr_t
from softverbs.core.base.constants cimport (
    ACCESS_LOCAL_WRITE,
    SEND_FENCE,
    SEND_INLINE,
    SEND_SIGNALED,
    WC_BAD_RESP_ERR,
    WC_LOC_PROT_ERR,
    WC_LOC_QP_OP_ERR,
    WC_MW_BIND_ERR,
    WC_REM_ACCESS_ERR,
    WC_REM_INV_REQ_ERR,
    WC_REM_OP_ERR,
    WC_RETRY_EXC_ERR,
    WC_RNR_RETRY_EXC_ERR,
    WC_SUCCESS,
    WC_WR_FLUSH_ERR,
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
from softverbs.core.memory.raw cimport (
    Block,
    raw_load8 as load8,
    raw_load16 as load16,
    raw_load32 as load32,
    raw_load64 as load64,
    raw_store8 as store8,
    raw_store32 as store32,
    raw_store64 as store64,
)
from softverbs.core.queues.completion cimport CompletionQueue, complete
from softverbs.core.queues.counters cimport CompCntr
from softverbs.core.queues.operations cimport ATOMIC_SIZE, completion_opcode, is_answered, is_atomic
from softverbs.core.queues.rings cimport (
    SQ_FIRST_PSN,
    SQ_FLAGS,
    SQ_LAST_PSN,
    SQ_LENGTH,
    SQ_NUM_SGE,
    SQ_OPCODE,
    SQ_REFUSED,
    SQ_RESPONSES,
    SQ_SGES,
    SQ_STATE,
    SQ_WR_ID,
    WQE_POSTED,
    WQE_STARTED,
    Ring,
)
from softverbs.core.transport.connection cimport Connection
from softverbs.core.transport.local cimport perform_locally, refusal, silence
from softverbs.core.transport.packets cimport (
    MAX_HEADERS,
    write_atomic_request,
    write_atomic_write,
    write_flush_request,
    write_payload,
    write_read_request,
)
from softverbs.core.wire.egress cimport Egress
from softverbs.core.wire.headers cimport (
    AETH_KIND,
    AETH_NAK,
    AETH_RNR,
    AETH_VALUE,
    NAK_INVALID_REQUEST,
    NAK_PSN_SEQUENCE,
    NAK_REMOTE_ACCESS,
    aeth_syndrome,
    atomic_ack_original,
    rnr_timer_ns,
)
from softverbs.core.wire.opcodes cimport LAST, ONLY
from softverbs.core.wire.psn cimport add, diff

cdef int PACKET_COST
cdef uint32_t FIRST_WINDOW
cdef int ACK_EVERY
cdef int RNR_RETRY_FOREVER
cdef int RNR_SHIFT
cdef int64_t RNR_LONGEST
cdef int64_t RNR_PATIENCE
cdef uint32_t _LOCAL

cdef class Requester:
    cdef Connection connection
    cdef Ring sq
    cdef CompletionQueue cq
    cdef readonly uint32_t max_window
    cdef public CompCntr send_counter
    cdef public CompCntr write_counter
    cdef public CompCntr read_counter
    cdef Block scratch
    cdef readonly int64_t timeout
    cdef readonly int retry_count
    cdef readonly int rnr_retry_count
    cdef readonly int max_reads
    cdef public bint draining
    cdef bint reliable
    cdef readonly uint64_t retransmissions
    cdef readonly uint32_t psn
    cdef readonly uint32_t una
    cdef readonly uint32_t top
    cdef readonly uint64_t cursor
    cdef uint64_t offset
    cdef readonly uint64_t in_flight
    cdef readonly uint64_t window
    cdef int64_t head_acked
    cdef int unasked
    cdef readonly int reads
    cdef bint gap
    cdef uint32_t gap_psn
    cdef readonly int64_t deadline
    cdef readonly int64_t rnr_until
    cdef readonly uint64_t rnr_naks
    cdef int64_t rnr_since
    cdef bint rnr_told
    cdef int retries_left
    cdef int rnr_retries_left
    cdef int64_t last_heard
    cdef bint doomed
    cdef uint64_t doom_index
    cdef int doom_status
    cdef object doom_reason
    cdef readonly bint failed
    cdef readonly object failure

    cpdef reset(self, uint32_t psn)
    cpdef configure(self, int64_t timeout, int retry_count, int rnr_retry_count, int max_reads)
    @cython.locals(sq=Ring, slot=uintptr_t, address=uintptr_t)
    cdef int pump(self, Egress egress, int64_t now) except -1
    @cython.locals(opcode=int, flags=int, reading=bint, right=uint32_t, packets=uint32_t, length=uint32_t)
    cdef bint _start(self, uintptr_t slot) except -1
    @cython.locals(connection=Connection)
    cdef bint _perform_locally(self, uintptr_t slot, int opcode) except -1
    cdef void _fail_refused(self, uintptr_t slot) except *
    @cython.locals(opcode=int, length=uint32_t)
    cdef int _emit(self, uintptr_t slot, uintptr_t address, Egress egress, int64_t now) except -1
    @cython.locals(done=uint32_t, skip=uint32_t, psn=uint32_t, length=uint32_t)
    cdef uint32_t _emit_read(self, uintptr_t slot, uintptr_t address) except? 0
    @cython.locals(length=uint32_t)
    cdef uint32_t _emit_single(self, uintptr_t slot, int opcode, uintptr_t address) except? 0
    cdef void _sent(self, uint32_t psn, uint32_t payload) noexcept
    @cython.locals(part=uint64_t, last=bint, ask=bint, length=uint32_t)
    cdef uint32_t _emit_payload(self, uintptr_t slot, uintptr_t address) except? 0
    @cython.locals(syndrome=int, kind=int)
    cdef int on_acknowledge(self, uint32_t psn, uintptr_t aeth, int64_t now) except -1
    cdef void _on_rnr(self, uint32_t psn, int timer, int64_t now) except *
    @cython.locals(waited=int64_t, longer=int64_t)
    cdef int64_t _rnr_wait(self, int64_t timer, int64_t now) except -1
    @cython.locals(status=int)
    cdef void _on_nak(self, uint32_t psn, int syndrome) except *
    @cython.locals(slot=uintptr_t, opcode=int, mtu=uint64_t, done=uint64_t, rest=uint64_t, last=bint, placed=bint)
    cdef void on_read_response(self, uint32_t kind, uint32_t psn, uintptr_t payload, uint32_t length, int64_t now) except *
    cdef int on_unplaced(self) except -1
    @cython.locals(slot=uintptr_t, sges=uintptr_t, count=int)
    cdef void on_atomic_acknowledge(self, uint32_t psn, uintptr_t original, int64_t now) except *
    @cython.locals(slot=uintptr_t, opcode=int)
    cdef uintptr_t _awaited(self, uint32_t psn, int64_t now) except? 0
    @cython.locals(sq=Ring, slot=uintptr_t, opcode=int, last=uint32_t)
    cdef int _advance(self, uint32_t psn, int64_t now) except -1
    cdef void _missed(self, uint32_t psn) except *
    @cython.locals(fresh=int64_t, amount=int64_t, payload=int64_t, mtu=int64_t)
    cdef void _credit(self, int64_t length, int64_t packets) noexcept
    cdef void _give_back(self, uint64_t amount) noexcept
    cdef void _progress(self, uint32_t una, int64_t now) noexcept
    cdef void _skip_ahead(self) noexcept
    @cython.locals(slot=uintptr_t, opcode=int)
    cdef int _retire(self) except -1
    @cython.locals(listed=bint, length=uint32_t)
    cdef int _complete_head(self, uintptr_t slot, int opcode, int status, object reason) except -1
    cdef CompCntr _counter(self, int opcode)
    cdef void _lost(self, object what) except *
    @cython.locals(slot=uintptr_t, opcode=int)
    cdef void _rewind(self) noexcept
    cdef bint is_idle(self) noexcept
    cpdef int64_t next_deadline(self) noexcept
    cpdef void on_timer(self, int64_t now) except *
    cdef void _doom(self, int status, object reason) except *
    @cython.locals(slot=uintptr_t)
    cdef void _fail(self, int status, object reason) except *
    @cython.locals(slot=uintptr_t)
    cpdef void flush(self, object reason) except *
