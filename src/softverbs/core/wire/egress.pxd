# SPDX-License-Identifier: MIT
cimport cython
from libc.stdint cimport int64_t, uint32_t, uint64_t, uintptr_t
from softverbs.core.memory.raw cimport Block, raw_store32 as store32
from softverbs.core.wire.icrc cimport IcrcPath

cdef int ARENA_SIZE
cdef int MAX_BURSTS
cdef int BURST_FRAMES
cdef int BURST_BYTES
cdef int ICRC_SIZE
cdef int WIRE_HEADERS
cdef int RATE_GRAIN
cdef int RATE_BURST

cdef class Path:
    cdef readonly object route
    cdef readonly IcrcPath icrc
    cdef readonly bint local
    cdef readonly bint nearby
    cdef readonly int step
    cdef public int64_t pace
    cdef readonly int64_t free_at
    cdef bint is_turn(self, int64_t now) noexcept
    cdef readonly bint group
    cdef readonly object peer

cdef class Egress:
    cdef Block block
    cdef uintptr_t address
    cdef size_t used
    cdef size_t end
    cdef int bursts
    cdef list paths
    cdef uint32_t[512] offsets
    cdef uint32_t[512] lengths
    cdef uint32_t[512] segments
    cdef bint open
    cdef int frames_in_burst
    cdef readonly uint64_t frames
    cdef uintptr_t room(self, size_t length) noexcept
    @cython.locals(size=uint32_t, last=int, frame=uintptr_t, joins=bint)
    cdef int commit(self, Path path, uint32_t length) except -1
    cdef void limit(self) noexcept
    cdef void unlimit(self) noexcept
    cdef void reset(self) noexcept
