# SPDX-License-Identifier: MIT
cimport cython
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t, uintptr_t
from softverbs.core.memory.raw cimport (
    raw_load8 as load8,
    load16be,
    raw_load32 as load32,
    load32be,
    load64be,
    raw_store32 as store32,
    store32be,
    store64be,
)

cdef int AETH_ACK
cdef int AETH_RNR
cdef int AETH_NAK
cdef int AETH_KIND
cdef int AETH_VALUE
cdef int AETH_NO_CREDITS
cdef int NAK_PSN_SEQUENCE
cdef int NAK_INVALID_REQUEST
cdef int NAK_REMOTE_ACCESS
cdef int NAK_REMOTE_OPERATION
cdef int NAK_INVALID_RD

cdef int64_t[32] _rnr_timers

@cython.locals(first=uint64_t)
cpdef void put_bth(
    uintptr_t address, uint64_t opcode, uint64_t solicited, uint64_t pad, uint64_t pkey, uint32_t dest_qpn,
    uint32_t ack_request, uint32_t psn
) noexcept
cpdef uint8_t bth_opcode(uintptr_t address) noexcept
cpdef int bth_solicited(uintptr_t address) noexcept
cpdef int bth_pad(uintptr_t address) noexcept
cpdef int bth_version(uintptr_t address) noexcept
cpdef uint16_t bth_pkey(uintptr_t address) noexcept
cpdef uint32_t bth_dest_qpn(uintptr_t address) noexcept
cpdef int bth_ack_request(uintptr_t address) noexcept
cpdef uint32_t bth_psn(uintptr_t address) noexcept

cpdef void put_reth(uintptr_t address, uint64_t va, uint32_t rkey, uint32_t length) noexcept
cpdef uint64_t reth_va(uintptr_t address) noexcept
cpdef uint32_t reth_rkey(uintptr_t address) noexcept
cpdef uint32_t reth_length(uintptr_t address) noexcept

cpdef void put_aeth(uintptr_t address, uint32_t syndrome, uint32_t msn) noexcept
cpdef int aeth_syndrome(uintptr_t address) noexcept
cpdef uint32_t aeth_msn(uintptr_t address) noexcept

cpdef void put_deth(uintptr_t address, uint32_t qkey, uint32_t src_qpn) noexcept
cpdef uint32_t deth_qkey(uintptr_t address) noexcept
cpdef uint32_t deth_src_qpn(uintptr_t address) noexcept

cpdef void put_xrceth(uintptr_t address, uint32_t srqn) noexcept
cpdef uint32_t xrceth_srqn(uintptr_t address) noexcept
cpdef void put_feth(uintptr_t address, uint32_t level_and_type) noexcept
cpdef int feth_type(uintptr_t address) noexcept
cpdef int feth_level(uintptr_t address) noexcept

cpdef void put_atomic_eth(uintptr_t address, uint64_t va, uint32_t rkey, uint64_t swap_add, uint64_t compare) noexcept
cpdef uint64_t atomic_va(uintptr_t address) noexcept
cpdef uint32_t atomic_rkey(uintptr_t address) noexcept
cpdef uint64_t atomic_swap_add(uintptr_t address) noexcept
cpdef uint64_t atomic_compare(uintptr_t address) noexcept
cpdef void put_atomic_ack(uintptr_t address, uint64_t original) noexcept
cpdef uint64_t atomic_ack_original(uintptr_t address) noexcept

cpdef void put_imm(uintptr_t address, uint32_t value) noexcept
cpdef uint32_t imm(uintptr_t address) noexcept
cpdef void put_ieth(uintptr_t address, uint32_t rkey) noexcept
cpdef uint32_t ieth_rkey(uintptr_t address) noexcept

cpdef int64_t rnr_timer_ns(int code) noexcept
