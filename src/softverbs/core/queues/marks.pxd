# SPDX-License-Identifier: MIT
cimport cython
from libc.stdint cimport int64_t, uint32_t, uint64_t, uintptr_t
from softverbs.core.memory.raw cimport barrier, raw_load8 as load8, raw_load64 as load64, raw_store8 as store8

cdef int LINE
cdef int _WORD

cdef class Marks:
    cdef readonly uintptr_t address
    cdef readonly uint32_t size
    cdef object holder
    cdef readonly list queues
    cdef bint used
    cdef list free
    cpdef int64_t enter(self, object queue) except -1
    cpdef bint take_used(self) noexcept
    cpdef leave(self, int64_t number)
    @cython.locals(at=int64_t)
    cpdef void set(self, int64_t number) noexcept
    @cython.locals(count=int64_t, offset=int64_t)
    cdef void restore(self, int64_t number, uint64_t found) noexcept
    cpdef bint is_set(self) noexcept
    @cython.locals(found=uint64_t, bit=uint64_t, at=uintptr_t, count=int64_t, offset=int64_t, index=int64_t)
    cdef uint64_t clear(self, int64_t first) noexcept
