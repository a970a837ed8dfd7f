# SPDX-License-Identifier: MIT
cimport cython
from libc.stdint cimport uint32_t, uint64_t, uintptr_t
from softverbs.core.base.host cimport Host
from softverbs.core.memory.far cimport Far
from softverbs.core.memory.raw cimport raw_copy as copy, raw_load32 as load32, raw_load64 as load64
from softverbs.core.memory.regions cimport ProtectionDomain, Regions
from softverbs.core.memory.spaces cimport raw_is_far as is_far
from softverbs.core.queues.rings cimport SGE_LENGTH, SGE_LKEY, SGE_SIZE
from softverbs.core.wire.egress cimport Path
from softverbs.core.wire.opcodes cimport RC

cdef class Connection:
    cdef readonly Host port
    cdef readonly Regions regions
    cdef public ProtectionDomain pd
    cdef public ProtectionDomain receive_pd
    cdef readonly uint32_t qp_num
    cdef public uint32_t dest_qp_num
    cdef public int transport
    cdef public uint32_t qkey
    cdef public Path path
    cdef public bint connected
    cdef public uint32_t mtu
    cdef public uint32_t pkey
    cdef public uint32_t access
    cdef public object peer_name
    cdef public object fault
    cdef public object words
    cdef public uint32_t words_psn
    cdef readonly dict refusals
    cdef Far far
    cdef bint gather(self, uintptr_t sges, int count, uint64_t offset, uint64_t length, uintptr_t destination) except -1
    cdef bint scatter(self, uintptr_t sges, int count, uint64_t offset, uint64_t length, uintptr_t source) except -1
    cdef bint place(self, uintptr_t sges, int count, uint64_t offset, uint64_t length, uintptr_t source) except -1
    @cython.locals(sge=uintptr_t, size=uint64_t, part=uint64_t, address=uintptr_t, key=uint32_t, va=uint64_t)
    cdef bint _move(self, uintptr_t sges, int count, uint64_t offset, uint64_t length, uintptr_t other, uint32_t right, ProtectionDomain pd) except -1
    cdef bint _move_far(self, uintptr_t address, uintptr_t other, uint64_t length, uint64_t rest, uint32_t right) except -1
    cdef bint fetch_far(self, uintptr_t destination, uintptr_t source, uint64_t length, uint64_t rest) except -1
    cdef bint place_far(self, uintptr_t destination, uintptr_t source, uint64_t length) except -1
    cdef bint land(self) except -1
    @cython.locals(sge=uintptr_t, size=uint64_t)
    cdef bint check(self, uintptr_t sges, int count, uint32_t right) except -1
    @cython.locals(address=uintptr_t)
    cdef uintptr_t translate(self, uint32_t key, uint64_t va, uint64_t length, uint32_t right) except? 0
