# SPDX-License-Identifier: MIT
cimport cython
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t, uintptr_t
from softverbs.core.base.constants cimport (
    EVENT_COMM_EST,
    EVENT_QP_FATAL,
    EVENT_QP_LAST_WQE_REACHED,
    EVENT_SQ_DRAINED,
    QPS_ERR,
    QPS_RESET,
    QPS_RTR,
    QPS_RTS,
    QPS_SQD,
    QPS_SQE,
)
from softverbs.core.base.host cimport Host
from softverbs.core.memory.raw cimport raw_store32 as store32, view
from softverbs.core.memory.regions cimport ProtectionDomain
from softverbs.core.queues.completion cimport CompletionQueue
from softverbs.core.queues.counters cimport CompCntr
from softverbs.core.queues.marks cimport Marks
from softverbs.core.queues.rings cimport QP_STATE, RING_HEADER, Ring, check_mapping
from softverbs.core.queues.send_queue cimport SendQueue
from softverbs.core.queues.srq cimport ReceiveQueue, SharedReceiveQueue, XrcDomain
from softverbs.core.queues.wr cimport RecvWR, SendWR
from softverbs.core.transport.address cimport AddressVector
from softverbs.core.transport.connection cimport Connection
from softverbs.core.transport.halves cimport build_requester, build_responder
from softverbs.core.transport.packets cimport MAX_WORDS, XRCETH_LENGTH
from softverbs.core.transport.requester cimport Requester
from softverbs.core.transport.responder cimport Responder
from softverbs.core.transport.unreliable cimport DatagramResponder
from softverbs.core.wire.egress cimport Egress, Path
from softverbs.core.wire.headers cimport bth_ack_request, bth_pad, bth_psn, bth_solicited
from softverbs.core.wire.opcodes cimport (
    ATOMIC,
    BTH_LENGTH,
    EXPLAIN,
    RC,
    READ,
    REQUEST,
    RESPONSE,
    UD,
    XRC,
    XRCETH,
    header_length,
)
from softverbs.core.wire.peer cimport Peer

cdef class QueuePair:
    cdef readonly Host port
    cdef readonly object context_id
    cdef readonly ProtectionDomain pd
    cdef readonly CompletionQueue send_cq
    cdef readonly CompletionQueue recv_cq
    cdef readonly int qp_type
    cdef readonly uint32_t unwanted
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
    cdef public bint timed
    cdef public QueuePair next_ready
    cdef readonly bint closed
    cdef public object user
    cdef dict attributes
    cdef object attachments
    cdef bint notify_drained
    cdef bint established
    cdef bint refusing
    cdef bint paced
    cdef int64_t paced_until
    cdef readonly uint64_t source_high
    cdef readonly uint64_t source_low
    cdef readonly uint64_t local_high
    cdef readonly uint64_t local_low
    cdef readonly SharedReceiveQueue srq
    cdef readonly XrcDomain xrcd
    cdef readonly int transport
    cdef readonly list groups
    cdef readonly SendQueue sends
    cdef readonly ReceiveQueue receives
    cdef DatagramResponder datagrams
    cdef readonly Connection connection
    cdef readonly uintptr_t mapping
    cdef int published_state
    cdef object holder
    cdef Marks marks
    cdef readonly int64_t mark
    cdef bint changed
    cdef readonly Requester requester
    cdef readonly Responder responder

    @cython.locals(receives=ReceiveQueue)
    cdef _build(self, CompletionQueue send_cq, CompletionQueue recv_cq)
    cdef _use(self, int count)
    cpdef post_send(self, SendWR wr)
    @cython.locals(tail=uint64_t)
    cpdef post_send_all(self, SendWR wr)
    cdef int _post_sends(self, SendWR wr) except -1
    cdef int _posted(self) except -1
    cdef int _post_send(self, SendWR wr) except -1
    cpdef list rings(self)
    cpdef post_recv(self, RecvWR wr)
    cdef void _post_recv(self, RecvWR wr) except *
    cdef int _offend(self, object reason) except -1
    cdef int _unmark(self) except -1
    cdef int note_change(self) except -1
    cpdef void publish_shared(self) except *
    @cython.locals(taken=int64_t, waiting=int64_t)
    cpdef int64_t take_shared(self) except -1
    @cython.locals(waiting=int64_t)
    cdef _drop_shared(self)
    cdef int64_t _take_sends(self, int64_t waiting) except -1
    cdef int64_t _take_receives(self, ReceiveQueue receives, int64_t waiting) except -1
    @cython.locals(headers=uintptr_t, skip=int, psn=uint32_t, pad=int, size=uint32_t)
    cdef int on_packet(self, Peer peer, int opcode, uint32_t flags, uintptr_t frame, uint32_t length, int64_t now) except -1
    cdef int on_unplaced(self, bint request) except -1
    cdef _on_words(self, uint32_t psn, uintptr_t at, int length)
    @cython.locals(more=int)
    cdef int pump(self, Egress egress, int64_t now) except -1
    @cython.locals(more=int, data_first=bint)
    cdef int _pump(self, Egress egress, int64_t now) except -1
    cdef int settle(self) except -1
    @cython.locals(is_new=bint)
    cdef bint _is_own_peer(self) except -1
    cpdef void enter_error(self, object reason) except *
    cpdef void fatal(self, object reason) except *
    @cython.locals(due=int64_t, other=int64_t)
    cdef int64_t next_deadline(self) noexcept
    cdef void on_timer(self, int64_t now) except *
    cdef _take_path(self, Path path, AddressVector vector)
