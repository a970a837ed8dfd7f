# SPDX-License-Identifier: MIT
cimport cython
from libc.stdint cimport int32_t, uint32_t

cdef uint32_t MASK

cpdef uint32_t add(uint32_t psn, int32_t n) noexcept
cpdef uint32_t next(uint32_t psn) noexcept
@cython.locals(distance=int32_t)
cpdef int32_t diff(uint32_t a, uint32_t b) noexcept
