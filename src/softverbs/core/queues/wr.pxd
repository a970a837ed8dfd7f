# SPDX-License-Identifier: MIT
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from softverbs.core.memory.raw cimport view

cdef class SGE:
    cdef uint64_t _addr
    cdef uint32_t _length
    cdef uint32_t _lkey

cdef class RecvWR:
    cdef uint64_t _wr_id
    cdef list _sg
    cdef RecvWR _next

    cpdef assign(self, RecvWR other)

cdef class SendWR:
    cdef uint64_t _wr_id
    cdef uint32_t _opcode
    cdef uint32_t _send_flags
    cdef uint32_t _imm_data
    cdef list _sg
    cdef SendWR _next
    cdef uint64_t _remote_addr
    cdef uint32_t _rkey
    cdef uint64_t _compare_add
    cdef uint64_t _swap
    cdef object _bind
    cdef uint32_t _ah
    cdef object _ah_core
    cdef object _ah_owner
    cdef uint32_t _destination
    cdef uint32_t _flush_length
    cdef uint32_t _flush_kind

    cpdef assign(self, SendWR other)

cdef class WC:
    cdef public uint64_t wr_id
    cdef public uint32_t status
    cdef public uint32_t opcode
    cdef public uint32_t vendor_err
    cdef public uint32_t byte_len
    cdef public uint32_t qp_num
    cdef public uint32_t src_qp
    cdef public uint32_t imm_data
    cdef public uint32_t wc_flags
    cdef public uint32_t pkey_index
    cdef public uint32_t slid
    cdef public uint32_t sl
    cdef public uint32_t dlid_path_bits
    cdef public object reason
