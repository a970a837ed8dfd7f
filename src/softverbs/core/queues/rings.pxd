# SPDX-License-Identifier: MIT
cimport cython
from libc.stdint cimport int64_t, uint32_t, uint64_t, uintptr_t
from softverbs.core.memory.raw cimport Block, raw_copy as copy, load_acquire64, raw_store64 as store64, store_release64

cdef int RING_HEADER
cdef int CQ_TAIL
cdef int CQ_HEAD
cdef int CQ_ARM_ANY
cdef int CQ_ARM_SOLICITED
cdef int QP_SQ_TAIL
cdef int QP_SQ_TAKEN
cdef int QP_SQ_HEAD
cdef int QP_RQ_TAIL
cdef int QP_RQ_TAKEN
cdef int QP_RQ_HEAD
cdef int QP_STATE
cdef int SGE_SIZE
cdef int SGE_LENGTH
cdef int SGE_LKEY
cdef int SQ_WR_ID
cdef int SQ_OPCODE
cdef int SQ_FLAGS
cdef int SQ_NUM_SGE
cdef int SQ_IMM
cdef int SQ_REMOTE_ADDRESS
cdef int SQ_RKEY
cdef int SQ_LENGTH
cdef int SQ_COMPARE_ADD
cdef int SQ_SWAP
cdef int SQ_FIRST_PSN
cdef int SQ_LAST_PSN
cdef int SQ_RESPONSES
cdef int SQ_STATE
cdef int SQ_DESTINATION
cdef int SQ_AH
cdef int SQ_SGES
cdef int SQ_REFUSED
cdef int WQE_POSTED
cdef int WQE_STARTED
cdef int RQ_WR_ID
cdef int RQ_NUM_SGE
cdef int RQ_LENGTH
cdef int RQ_SGES
cdef int CQ_WR_ID
cdef int CQ_STATUS
cdef int CQ_OPCODE
cdef int CQ_VENDOR_ERR
cdef int CQ_BYTE_LEN
cdef int CQ_IMM
cdef int CQ_QP_NUM
cdef int CQ_SRC_QP
cdef int CQ_FLAGS
cdef int CQ_PKEY_INDEX
cdef int CQ_SLID
cdef int CQ_SL
cdef int CQ_DLID_PATH_BITS
cdef int CQ_TIMESTAMP
cdef int CQ_FREES
cdef int CQ_SLOT
cdef uint64_t _LOW_32

cpdef check_mapping(uintptr_t address)

cdef class Ring:
    cdef readonly Block block
    cdef readonly uintptr_t address
    cdef readonly uint64_t size
    cdef readonly uint64_t mask
    cdef readonly uint32_t stride
    cdef readonly uint64_t head
    cdef readonly uint64_t tail
    cdef readonly uint64_t number
    cdef readonly uint64_t polled
    cdef uintptr_t slot(self, uint64_t index) noexcept
    cpdef uint64_t count(self) noexcept
    cdef bint full(self) noexcept
    cdef uint64_t in_use(self) noexcept
    cdef uint64_t frees(self) noexcept
    @cython.locals(fresh=uint64_t)
    cpdef void free_to(self, uint64_t index) noexcept
    cdef uintptr_t in_memory(self, uintptr_t slots, uint64_t index) noexcept
    cpdef relocate(self, uintptr_t address)
    cpdef restore(self)

cdef class WorkQueue:
    cdef readonly uint32_t max_wr
    cdef readonly Ring ring
    cdef uint32_t header
    cdef readonly uintptr_t mapping
    cdef uintptr_t slots
    cdef uint64_t published
    cdef void map(self, uintptr_t mapping, uintptr_t slots) noexcept
    cdef void publish(self) noexcept
    cdef void publish_taken(self) noexcept
    @cython.locals(ring=Ring, tail=uint64_t)
    cdef int64_t waiting(self) noexcept
