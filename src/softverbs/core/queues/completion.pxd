# SPDX-License-Identifier: MIT
cimport cython
from libc.stdint cimport int64_t, uint32_t, uint64_t, uintptr_t
from softverbs.core.base.constants cimport EVENT_CQ_ERR, WC_FLAGS, WC_SL_SHIFT, WC_SUCCESS
from softverbs.core.base.host cimport Host
from softverbs.core.memory.raw cimport (
    barrier,
    raw_copy as copy,
    raw_load8 as load8,
    raw_load16 as load16,
    raw_load32 as load32,
    raw_load64 as load64,
    load_acquire64,
    raw_store8 as store8,
    raw_store32 as store32,
    raw_store64 as store64,
    store_release64,
)
from softverbs.core.queues.counters cimport CompCntr
from softverbs.core.queues.rings cimport (
    CQ_ARM_ANY,
    CQ_ARM_SOLICITED,
    CQ_BYTE_LEN,
    CQ_DLID_PATH_BITS,
    CQ_FLAGS,
    CQ_FREES,
    CQ_HEAD,
    CQ_IMM,
    CQ_OPCODE,
    CQ_PKEY_INDEX,
    CQ_QP_NUM,
    CQ_SL,
    CQ_SLID,
    CQ_SLOT,
    CQ_SRC_QP,
    CQ_STATUS,
    CQ_TAIL,
    CQ_TIMESTAMP,
    CQ_VENDOR_ERR,
    CQ_WR_ID,
    RING_HEADER,
    Ring,
    check_mapping,
)
from softverbs.core.queues.wr cimport WC

cdef int NOT_ARMED
cdef int ARMED_SOLICITED
cdef int ARMED_ANY
cdef uint32_t _POISON
cdef int64_t _LOW_32
cdef int64_t _SIGN_32

cdef class CompChannel:
    cdef object notify
    cdef object silence
    cdef object queues
    cdef public int users
    cdef readonly bint closed
    cpdef push(self, CompletionQueue cq)
    @cython.locals(cq=CompletionQueue)
    cpdef CompletionQueue pop(self)
    cpdef int forget(self, CompletionQueue cq)

cdef class CompletionQueue:
    cdef readonly Host port
    cdef readonly object context_id
    cdef public object cq_context
    cdef readonly CompChannel channel
    cdef readonly int comp_vector
    cdef readonly uint32_t flags
    cdef public uint32_t handle
    cdef readonly uint64_t cqe
    cdef Ring ring
    cdef readonly int armed
    cdef readonly int64_t last_solicited
    cdef uint32_t new_solicited
    cdef public int users
    cdef readonly bint overrun
    cdef readonly uint64_t added
    cdef readonly uint64_t failed
    cdef readonly uint64_t purged
    cdef readonly uint64_t lost
    cdef readonly uint32_t event_count
    cdef readonly int64_t event_period
    cdef readonly uint32_t held
    cdef readonly int64_t event_due
    cdef readonly uint64_t events_queued
    cdef readonly uint64_t events_read
    cdef readonly uint64_t events_acked
    cdef dict reasons
    cdef readonly object late
    cdef bint debug
    cdef bint keeps_on
    cdef public object user
    cdef readonly bint closed
    cdef readonly uintptr_t mapping
    cdef int64_t published
    cdef object holder
    cdef uint64_t any_word
    cdef int64_t any_from
    cdef uint64_t solicited_word
    cdef int64_t solicited_from
    cdef bint changed
    cdef bint offends
    @cython.locals(due=int64_t)
    cdef void push(
        self, uint64_t wr_id, uint32_t status, uint32_t opcode, uint32_t qp_num, uint32_t byte_len, uint32_t imm,
        uint32_t wc_flags, uint32_t src_qp, bint solicited, uint64_t frees, object reason
    ) except *
    @cython.locals(
        wr_id=uint64_t, status=uint32_t, opcode=uint32_t, qp_num=uint32_t, byte_len=uint32_t, imm=uint32_t,
        wc_flags=uint32_t, src_qp=uint32_t, solicited=bint, frees=uint64_t, entry=tuple
    )
    cpdef int64_t release(self, int64_t now) except? -2
    @cython.locals(ring=Ring, slot=uintptr_t)
    cdef void _append(
        self, uint64_t wr_id, uint32_t status, uint32_t opcode, uint32_t qp_num, uint32_t byte_len, uint32_t imm,
        uint32_t wc_flags, uint32_t src_qp, bint solicited, uint64_t frees, object reason
    ) except *
    cdef int _note_change(self) except -1
    cdef bint _make_room(self) except -1
    cdef int _event_is_due(self, uint32_t count) except -1
    cpdef int64_t publish(self, int64_t now) except? -1
    @cython.locals(armed=int)
    cdef _notify(self)
    @cython.locals(ring=Ring, slot=uintptr_t, kept=uint64_t, index=uint64_t, reasons=dict)
    cpdef purge(self, uint32_t qp_num)
    @cython.locals(ring=Ring, slot=uintptr_t, index=uint64_t)
    cpdef disown(self, uint64_t number)
    @cython.locals(port=Host, result=list)
    cpdef list poll(self, int limit)
    @cython.locals(ring=Ring, slot=uintptr_t, wc=WC, frees=uint64_t)
    cdef WC _take(self)
    cdef _poison(self, WC wc)
    cpdef list rings(self)
    cpdef uint64_t timestamp(self) noexcept
    cpdef uint64_t count(self) except? 0
    @cython.locals(ring=Ring, old=Ring, index=uint64_t, reasons=dict)
    cpdef resize(self, object cqe)
    cdef int publish_shared(self) except -1
    @cython.locals(tail=int64_t, before=int64_t)
    cdef int publish_tail(self) except -1
    @cython.locals(word=uint64_t)
    cdef void _take_arming(self, int64_t before) noexcept
    @cython.locals(behind=int64_t)
    cdef int64_t _armed_from(self, uint64_t word, int64_t before) noexcept
    @cython.locals(due=int64_t)
    cdef int _raise_event(self, int64_t before) except -1
    @cython.locals(ring=Ring, head=uint64_t)
    cdef void _see_head(self) except *
    cdef _forget_reason(self)

cdef int complete(
    CompletionQueue cq, CompCntr counter, uint64_t payload, bint listed, bint solicited, uint64_t wr_id, uint32_t status,
    uint32_t opcode, uint32_t qp_num, uint32_t byte_len, uint32_t imm, uint32_t wc_flags, uint32_t src_qp,
    uint64_t frees, object reason
) except -1
