# SPDX-License-Identifier: MIT
cimport cython
from libc.stdint cimport uint32_t, uint64_t, uintptr_t
from softverbs.core.memory.raw cimport Block, raw_copy as copy, store16be, view
from softverbs.core.wire.icrc cimport IcrcPath

cdef int GRH_LENGTH
cdef int _UDP_LENGTH
cdef int _HOP_LIMIT

cdef class Peer:
    cdef IcrcPath icrc
    cdef uint64_t gid_high
    cdef uint64_t gid_low
    cdef readonly bytes dgid
    cdef uint64_t dgid_high
    cdef uint64_t dgid_low
    cdef bint known
    cdef int step
    cdef bint group
    cdef bint ipv4
    cdef Block header
    cdef uint32_t checksum
    @cython.locals(checksum=uint32_t)
    cdef void write_grh(self, uintptr_t address, uint32_t length) noexcept
