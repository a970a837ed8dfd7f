# SPDX-License-Identifier: MIT
cimport cython
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t, uintptr_t
from softverbs.core.base.constants cimport (
    ACCESS_REMOTE_READ,
    EVENT_QP_ACCESS_ERR,
    EVENT_QP_FATAL,
    EVENT_QP_REQ_ERR,
    WC_SUCCESS,
)
from softverbs.core.memory.regions cimport ProtectionDomain
from softverbs.core.memory.spaces cimport raw_is_far as is_far
from softverbs.core.queues.counters cimport CompCntr
from softverbs.core.transport.connection cimport Connection
from softverbs.core.transport.pace cimport NAP, Pace
from softverbs.core.transport.packets cimport (
    AETH_LENGTH,
    MAX_HEADERS,
    MAX_WORDS,
    write_acknowledge,
    write_atomic_answer,
    write_read_response,
    write_words,
)
from softverbs.core.wire.egress cimport Egress
from softverbs.core.wire.headers cimport (
    AETH_RNR,
    NAK_INVALID_REQUEST,
    NAK_REMOTE_ACCESS,
    reth_length,
    reth_rkey,
    reth_va,
)
from softverbs.core.wire.opcodes cimport ATOMIC, BTH_LENGTH, READ, SEND, WRITE
from softverbs.core.wire.psn cimport add, diff

cdef int GRANT
cdef int PACE_START
cdef int PACE_LEAST
cdef int PACE_MOST
cdef int64_t PACE_BURST

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

cdef class Answers:
    cdef Connection connection
    cdef public CompCntr remote_read_counter
    cdef public int min_rnr_timer
    cdef public bint explains
    cdef list resources
    cdef readonly uint64_t duplicates
    cdef readonly uint64_t rnr_naks
    cdef bint refused
    cdef readonly uint32_t epsn
    cdef uint32_t ack_psn
    cdef readonly uint32_t msn
    cdef bint ack_due
    cdef int nak
    cdef uint32_t nak_psn
    cdef bint silent
    cdef int64_t newest
    cdef int queued
    cdef Pace pace
    cdef readonly int64_t resume_at
    cdef readonly bint failed
    cdef readonly int event
    cdef readonly object reason

    cpdef reset_answers(self, uint32_t psn, int max_resources)
    @cython.locals(old=list, index=int64_t, resource=Resource)
    cpdef keep_resources(self, int count)
    @cython.locals(resource=Resource)
    cdef void stop_answering(self) except *
    @cython.locals(resource=Resource)
    cdef bint _remember_empty(self, uint32_t kind) except -1
    @cython.locals(count=int64_t, resource=Resource)
    cdef Resource _remember(self, uint32_t kind, uint32_t packets)
    @cython.locals(resource=Resource)
    cdef void _forget_newest(self) except *
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
    @cython.locals(at=uintptr_t)
    cdef uintptr_t _fetched(self, uintptr_t source, uint64_t part, uint64_t rest, uintptr_t frame, bint with_aeth) except? 0
    cdef void _stop_reading(self, uint32_t psn) except *
    cdef bint _may_send(self, int64_t now) noexcept
    @cython.locals(connection=Connection, address=uintptr_t, length=uint32_t)
    cdef bint _send_atomic(self, Egress egress, Resource resource) except -1
    @cython.locals(address=uintptr_t)
    cdef bint _send_acknowledge(self, Egress egress, uint32_t psn, int syndrome) except -1
    @cython.locals(address=uintptr_t, length=uint32_t)
    cdef bint _send_nak(self, Egress egress) except -1
