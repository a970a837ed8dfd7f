# SPDX-License-Identifier: MIT
cimport cython
from libc.stdint cimport int64_t, uint32_t, uint64_t, uintptr_t
from softverbs.core.base.constants cimport (
    QPT_UD,
    SEND_FENCE,
    SEND_INLINE,
    SEND_SIGNALED,
    SEND_SOLICITED,
    WR_ATOMIC_WRITE,
    WR_BIND_MW,
    WR_FLUSH,
    WR_RDMA_READ,
    WR_SEND_WITH_INV,
)
from softverbs.core.base.host cimport Host
from softverbs.core.memory.raw cimport (
    raw_copy as copy,
    copy_checked,
    raw_load8 as load8,
    raw_load16 as load16,
    raw_load32 as load32,
    raw_load64 as load64,
    raw_store8 as store8,
    raw_store16 as store16,
    raw_store32 as store32,
    raw_store64 as store64,
)
from softverbs.core.memory.regions cimport ProtectionDomain, Regions
from softverbs.core.memory.spaces cimport fetch, raw_is_far as is_far
from softverbs.core.queues.operations cimport ATOMIC_SIZE, allowed, is_answered, is_atomic, operation_name, type_name
from softverbs.core.queues.rings cimport (
    QP_SQ_TAIL,
    SGE_SIZE,
    SQ_AH,
    SQ_COMPARE_ADD,
    SQ_DESTINATION,
    SQ_FLAGS,
    SQ_IMM,
    SQ_LENGTH,
    SQ_NUM_SGE,
    SQ_OPCODE,
    SQ_REFUSED,
    SQ_REMOTE_ADDRESS,
    SQ_RESPONSES,
    SQ_RKEY,
    SQ_SGES,
    SQ_STATE,
    SQ_SWAP,
    WQE_POSTED,
    Ring,
    WorkQueue,
)
from softverbs.core.queues.srq cimport elements_length, put_elements
from softverbs.core.queues.wr cimport SGE, SendWR

cdef uint32_t _SEND_FLAGS

cdef class SendQueue(WorkQueue):
    cdef readonly Host port
    cdef readonly Regions regions
    cdef readonly ProtectionDomain pd
    cdef public uint32_t qp_num
    cdef readonly dict refusals
    cdef readonly int qp_type
    cdef uint32_t allowed
    cdef readonly uint32_t max_sge
    cdef readonly uint32_t max_inline_data
    cdef readonly bint signal_all
    cdef readonly list handles
    @cython.locals(ring=Ring, opcode=uint32_t, flags=uint32_t, slot=uintptr_t, elements=list, length=uint64_t)
    cdef int put(self, SendWR wr, int max_reads) except -1
    cdef void release(self) noexcept
    cdef void take_back(self, uint64_t tail) noexcept
    @cython.locals(ring=Ring, index=uint64_t, signaled=uint64_t, ready=uint64_t, silent=uint64_t)
    cdef _refuse_full(self)
    cdef _refuse_opcode(self, uint32_t opcode)
    cdef _refuse_flags(self, uint32_t flags)
    cdef _refuse_elements(self, int count)
    cdef _refuse_length(self, uint64_t length)
    cdef void _check_inline(self, int opcode, uint64_t length) except *
    @cython.locals(length=uint64_t, element=SGE, at=uintptr_t, size=uint32_t)
    cdef uint64_t _put_inline(self, uintptr_t slot, int opcode, list elements) except? 0
    @cython.locals(size=uint32_t, address=uintptr_t)
    cdef bint _copy_inline(self, uintptr_t at, SGE element) except -1
    cdef void _check_answered(self, int opcode, int elements, uint64_t length, int max_reads) except *
    @cython.locals(handles=list)
    cdef object _handle_of(self, uint32_t number)
    cdef void _put_bind(self, uintptr_t slot, SendWR wr) except *
    cdef void _put_flush(self, uintptr_t slot, SendWR wr) except *
    cdef void skip(self, uint64_t count) noexcept
    @cython.locals(ring=Ring, slot=uintptr_t, source=uintptr_t)
    cdef void take(self, int64_t count, int max_reads) except *
    @cython.locals(opcode=uint32_t, flags=uint32_t, length=uint64_t)
    cdef void _complete_slot(self, uintptr_t slot, uintptr_t source, int max_reads) except *
    @cython.locals(count=uint32_t)
    cdef uint64_t _take_elements(self, uintptr_t slot, uintptr_t source) except? 0
    @cython.locals(ring=Ring)
    cdef _refuse_slot(self, uintptr_t slot, object reason)
