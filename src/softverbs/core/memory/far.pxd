# SPDX-License-Identifier: MIT
cimport cython
from libc.stdint cimport uint32_t, uint64_t, uintptr_t
from softverbs.core.memory.raw cimport Block, raw_copy as copy, raw_load64 as load64, raw_store64 as store64
from softverbs.core.memory.spaces cimport explain, fetch, place, place_pieces

cdef uint64_t AHEAD
cdef int MOST
cdef uintptr_t _PAGE
cdef int _IOV_SIZE
cdef int _IOV_LENGTH

cdef class Far:
    cdef Block ahead
    cdef uintptr_t ahead_here
    cdef uintptr_t ahead_at
    cdef uint64_t ahead_length
    cdef Block pieces
    cdef uint32_t[128] tags
    cdef readonly int count
    cdef uintptr_t at
    cdef uint64_t length
    cdef uint32_t tag
    cdef readonly uint32_t missed
    cdef readonly object fault
    cpdef void forget(self) noexcept
    cpdef bint fetch(self, uintptr_t destination, uintptr_t source, uint64_t length, uint64_t rest) except -1
    @cython.locals(length=uint64_t)
    cdef bint _fetch_ahead(self, uintptr_t source, uint64_t rest) except -1
    cpdef void begin(self, uint32_t psn) noexcept
    @cython.locals(piece=uintptr_t)
    cpdef bint put(self, uintptr_t destination, uintptr_t source, uint64_t length) except -1
    @cython.locals(count=int)
    cpdef bint land(self) except -1
    @cython.locals(at=uintptr_t, piece=uintptr_t, length=uint64_t, index=int)
    cdef bint _land_each(self, int count) except -1
