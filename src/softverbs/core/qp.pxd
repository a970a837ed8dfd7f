cimport cython
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t, uintptr_t
from softverbs.core.completion cimport CompCntr, CompletionQueue
from softverbs.core.connection cimport Connection
from softverbs.core.constants cimport (
    EVENT_COMM_EST,
    EVENT_QP_FATAL,
    EVENT_SQ_DRAINED,
    OP_RDMA_READ,
    OP_RDMA_WRITE,
    OP_RECV,
    OP_REMOTE_RDMA_READ,
    OP_REMOTE_RDMA_WRITE,
    OP_SEND,
    QPS_ERR,
    QPS_INIT,
    QPS_RESET,
    QPS_RTR,
    QPS_RTS,
    QPS_SQD,
    SEND_FENCE,
    SEND_INLINE,
    SEND_SIGNALED,
    SEND_SOLICITED,
    WR_ATOMIC_FETCH_AND_ADD,
    WR_BIND_MW,
    WR_RDMA_READ,
    WR_SEND_WITH_INV,
)
from softverbs.core.egress cimport Egress, Path
from softverbs.core.headers cimport bth_ack_request, bth_pad, bth_psn, bth_solicited
from softverbs.core.host cimport Host
from softverbs.core.memory cimport (
    raw_copy as copy,
    copy_checked,
    raw_store8 as store8,
    raw_store16 as store16,
    raw_store32 as store32,
    raw_store64 as store64,
    view,
)
from softverbs.core.opcodes cimport (
    ATOMIC,
    BTH_LENGTH,
    EXPLAIN,
    READ,
    REQUEST,
    RESPONSE,
    header_length,
)
from softverbs.core.packets cimport MAX_WORDS
from softverbs.core.regions cimport ProtectionDomain
from softverbs.core.requester cimport Requester, is_atomic
from softverbs.core.responder cimport Responder
from softverbs.core.rings cimport (
    RQ_LENGTH,
    RQ_NUM_SGE,
    RQ_SGES,
    RQ_WR_ID,
    SGE_LENGTH,
    SGE_LKEY,
    SGE_SIZE,
    SQ_COMPARE_ADD,
    SQ_FLAGS,
    SQ_IMM,
    SQ_LENGTH,
    SQ_NUM_SGE,
    SQ_OPCODE,
    SQ_REMOTE_ADDRESS,
    SQ_RKEY,
    SQ_SGES,
    SQ_STATE,
    SQ_SWAP,
    WQE_POSTED,
    Ring,
)
from softverbs.core.wr cimport SGE, RecvWR, SendWR

cdef uint32_t _SEND_FLAGS

cdef class AddressVector:
    cdef readonly bytes dgid
    cdef readonly object sgid_index
    cdef readonly object flow_label
    cdef readonly object hop_limit
    cdef readonly object traffic_class
    cdef readonly object sl
    cdef readonly object port_num
    cdef readonly object is_global

cdef class QueuePair:
    cdef readonly Host port
    cdef readonly object context_id
    cdef readonly ProtectionDomain pd
    cdef readonly CompletionQueue send_cq
    cdef readonly CompletionQueue recv_cq
    cdef readonly int qp_type
    cdef readonly bint sq_sig_all
    cdef readonly uint32_t max_send_wr
    cdef readonly uint32_t max_recv_wr
    cdef readonly uint32_t max_send_sge
    cdef readonly uint32_t max_recv_sge
    cdef readonly uint32_t max_inline_data
    cdef readonly uint32_t qp_num
    cdef readonly uint32_t handle
    cdef readonly int state
    cdef public bint scheduled
    cdef public QueuePair next_ready
    cdef readonly bint closed
    cdef public object user
    cdef dict attributes
    cdef dict attached
    cdef bint notify_drained
    cdef bint established
    cdef readonly uint64_t source_high
    cdef readonly uint64_t source_low
    cdef Ring sq
    cdef Ring rq
    cdef readonly Connection connection
    cdef readonly Requester requester
    cdef readonly Responder responder

    cpdef post_send(self, SendWR wr)
    @cython.locals(sq=Ring, opcode=uint32_t, flags=uint32_t, slot=uintptr_t, elements=list, length=uint64_t)
    cdef void _post_send(self, SendWR wr) except *
    @cython.locals(length=uint64_t, element=SGE)
    cdef uint64_t _put_elements(self, uintptr_t at, list elements, uint32_t limit, object name) except? 0
    @cython.locals(length=uint64_t, element=SGE, at=uintptr_t, size=uint32_t)
    cdef uint64_t _put_inline(self, uintptr_t slot, int opcode, list elements) except? 0
    @cython.locals(size=uint32_t, address=uintptr_t)
    cdef bint _copy_inline(self, uintptr_t at, SGE element) except -1
    cdef void _check_read(self, int opcode, uint64_t length) except *
    cdef void _put_bind(self, uintptr_t slot, SendWR wr) except *
    cpdef post_recv(self, RecvWR wr)
    @cython.locals(rq=Ring, slot=uintptr_t, length=uint64_t)
    cdef void _post_recv(self, RecvWR wr) except *
    @cython.locals(headers=uintptr_t, skip=int, psn=uint32_t, pad=int, size=uint32_t)
    cdef void on_packet(self, int opcode, uint32_t flags, uintptr_t frame, uint32_t length, int64_t now) except *
    cdef _on_words(self, uint32_t psn, uintptr_t at, int length)
    @cython.locals(more=int, data_first=bint)
    cdef int pump(self, Egress egress, int64_t now) except -1
    cdef void settle(self) except *
    cpdef void enter_error(self, object reason) except *
    cpdef void fatal(self, object reason) except *
    @cython.locals(due=int64_t, other=int64_t)
    cdef int64_t next_deadline(self) noexcept
    cdef void on_timer(self, int64_t now) except *
    cdef _take_path(self, Path path, AddressVector vector)
