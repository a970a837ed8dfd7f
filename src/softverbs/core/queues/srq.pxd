# SPDX-License-Identifier: MIT
cimport cython
from libc.stdint cimport int64_t, uint32_t, uint64_t, uintptr_t
from softverbs.core.base.constants cimport EVENT_SRQ_LIMIT_REACHED
from softverbs.core.base.host cimport Host
from softverbs.core.memory.raw cimport (
    raw_copy as copy,
    raw_load32 as load32,
    raw_store32 as store32,
    raw_store64 as store64,
)
from softverbs.core.memory.regions cimport ProtectionDomain
from softverbs.core.queues.completion cimport CompletionQueue
from softverbs.core.queues.marks cimport Marks
from softverbs.core.queues.rings cimport (
    QP_RQ_TAIL,
    RING_HEADER,
    RQ_LENGTH,
    RQ_NUM_SGE,
    RQ_SGES,
    RQ_WR_ID,
    SGE_LENGTH,
    SGE_LKEY,
    SGE_SIZE,
    Ring,
    WorkQueue,
    check_mapping,
)
from softverbs.core.queues.wr cimport SGE, RecvWR

@cython.locals(length=uint64_t, element=SGE)
cdef uint64_t put_elements(uintptr_t at, list elements, uint32_t limit, object name) except? 0

@cython.locals(length=uint64_t)
cdef uint64_t elements_length(uintptr_t at, uint32_t count) noexcept

cdef class ReceiveQueue(WorkQueue):
    cdef readonly uint32_t max_sge
    cdef readonly bint shared
    @cython.locals(ring=Ring, slot=uintptr_t, length=uint64_t)
    cdef void put(self, RecvWR wr) except *
    cdef void taken(self) except *
    cdef void skip(self, uint64_t count) noexcept
    @cython.locals(ring=Ring, slot=uintptr_t, source=uintptr_t, elements=uint32_t)
    cdef bint take(self, int64_t count) except -1
    @cython.locals(waiting=int64_t)
    cdef bint refill(self) except -1

cdef class XrcDomain:
    cdef readonly Host port
    cdef readonly object context_id
    cdef readonly uint32_t handle
    cdef public int users
    cdef readonly bint closed

cdef class SharedReceiveQueue(ReceiveQueue):
    cdef readonly Host port
    cdef readonly object context_id
    cdef readonly ProtectionDomain pd
    cdef readonly XrcDomain xrcd
    cdef readonly CompletionQueue cq
    cdef readonly uint32_t limit
    cdef public int users
    cdef public object user
    cdef readonly bint closed
    cdef object holder
    cdef Marks marks
    cdef readonly int64_t mark
    cdef bint changed
    cdef readonly uint32_t srq_num
    cdef readonly uint32_t handle

    cpdef post_recv(self, RecvWR wr)
    cpdef list rings(self)
    @cython.locals(waiting=int64_t)
    cpdef int64_t take_shared(self) except -1
    cdef int _offend(self, object reason) except -1
    cdef int _unmark(self) except -1
    cdef int publish_shared(self) except -1
    @cython.locals(old=Ring, ring=Ring, index=uint64_t)
    cdef void _resize(self, uint32_t max_wr) except *
