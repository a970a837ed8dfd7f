# SPDX-License-Identifier: MIT
cimport cython
from libc.stdint cimport int64_t, uint32_t, uint64_t, uintptr_t
from softverbs.core.base.constants cimport WC_SUCCESS
from softverbs.core.base.host cimport Host
from softverbs.core.memory.raw cimport raw_store64 as store64
from softverbs.core.memory.spaces cimport explain, raw_is_far as is_far, place_word

cdef int PAGE_ERRORS
cdef int PAGE_LOST
cdef int LOST_VALUE
cdef int LOST_ERRORS

cdef class CompCntr:
    cdef readonly Host port
    cdef readonly object context_id
    cdef readonly int type
    cdef readonly uint64_t max_value
    cdef readonly int64_t delay
    cdef readonly uint64_t value
    cdef readonly uint64_t errors
    cdef readonly uint64_t visible_value
    cdef readonly uint64_t visible_errors
    cdef readonly uint64_t seen_errors
    cdef readonly bint stalled
    cdef bint late
    cdef object pending
    cdef list watchers
    cdef public int attached
    cdef public uintptr_t value_address
    cdef public uintptr_t error_address
    cdef readonly uintptr_t page
    cdef object page_holder
    cdef uint64_t placed_value
    cdef uint64_t placed_errors
    cdef bint unplaced
    cdef bint overwrite
    cdef readonly int lost
    cdef public uint32_t handle
    cdef readonly bint closed
    cdef public object user
    cdef int record(self, uint32_t status, uint64_t payload) except -1
    cdef uint64_t _plus(self, uint64_t value, uint64_t amount) noexcept
    cdef void _changed(self) except *
    cdef int _show(self, uint64_t value, uint64_t errors) except -1
    cdef void _store(self) noexcept
    cpdef place(self)
    cdef _lose(self, int lost)
    cpdef keep(self, uintptr_t value_address, uintptr_t error_address)
    cpdef show(self, uintptr_t page, object holder)
    cdef _wake(self)
    cdef bint _reached(self, uint64_t threshold) noexcept
    @cython.locals(value=uint64_t, errors=uint64_t, shown=bint)
    cpdef int64_t publish(self, int64_t now) except? -1
    cpdef uint64_t read(self) except? 0
    cpdef uint64_t read_err(self) except? 0
    cdef _drive(self)

cdef class Watch:
    cdef readonly uint64_t threshold
    cdef readonly object callback
