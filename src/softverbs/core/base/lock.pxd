# SPDX-License-Identifier: MIT

cdef extern from "Python.h":
    unsigned long PyThread_get_thread_ident() nogil

cdef class Lock:
    cdef object _identify
    cdef object _pause
    cdef object _deliver
    cdef public bint interrupted
    cdef unsigned long _owner
    cdef int _depth
    cpdef bint acquire(self, bint blocking=*) except -1
    cpdef release(self)
