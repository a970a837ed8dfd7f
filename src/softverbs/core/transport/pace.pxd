# SPDX-License-Identifier: MIT
cimport cython
from libc.stdint cimport int64_t

cdef int NAP
cdef int FULL

cdef class Pace:
    cdef int64_t rate
    cdef int64_t burst
    cdef int64_t tokens
    cdef int64_t refilled
    cdef void restart(self, int64_t rate) noexcept
    @cython.locals(elapsed=int64_t)
    cdef bint allows(self, int64_t now) noexcept
