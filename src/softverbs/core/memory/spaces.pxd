# SPDX-License-Identifier: MIT
cimport cython
from libc.stdint cimport uint64_t, uintptr_t
from softverbs.core.memory.raw cimport (
    PROCESS_GUARD,
    PROCESS_MEM,
    PROCESS_PID,
    PROCESS_READER,
    PROCESS_SECRET,
    PROCESS_SIZE,
    Block,
    raw_copy as copy,
    copy_process,
    fetch_add64,
    raw_load64 as load64,
    place_process,
    raw_store64 as store64,
    view,
)

cdef uint64_t FAR
cdef int _SHIFT
cdef uint64_t _ADDRESS
cdef int _INDEX
cdef int _MOST
cdef int _WORD
cdef uint64_t _NOWHERE
cdef Block _records
cdef int _room
cdef int _count
cdef list _free
cdef set _lost
cdef int _losses
cdef tuple _failure
cdef Block _cell

# What other modules cimport under the name of the function.
cdef extern from *:
    """
    #include <stdint.h>
    static inline int raw_is_far(uintptr_t address) { return (int)(address >> 63); }
    """
    bint raw_is_far(uintptr_t) noexcept nogil

@cython.locals(space=int, record=uintptr_t)
cpdef int enter(int pid, uint64_t guard, uint64_t secret, int mem=*, int reader=*) except -1
cdef int _grow() except -1
@cython.locals(record=uintptr_t)
cpdef leave(int space)
@cython.locals(record=uintptr_t)
cpdef bint holds(uint64_t space) except -1
cpdef bint is_lost(int space)
cpdef int losses() noexcept
cpdef uintptr_t far(uint64_t space, uint64_t address) except? 0
cpdef bint is_far(uintptr_t address) noexcept
cpdef bint fetch(uintptr_t destination, uintptr_t source, size_t length) except -1
cpdef bint place(uintptr_t destination, uintptr_t source, size_t length) except -1
@cython.locals(record=uintptr_t, error=int)
cdef bint _move(uintptr_t there, uintptr_t here, size_t length, bint writes) except -1
cdef int _lose(int space) except -1
@cython.locals(space=uint64_t, record=uintptr_t)
cdef uintptr_t _record_of(uintptr_t address) noexcept
@cython.locals(record=uintptr_t)
cpdef bint place_pieces(uintptr_t destination, uintptr_t pieces, int count, size_t length) except -1
cpdef bint fetch_add(uintptr_t address, uint64_t value) except -1
cpdef bint compare_swap(uintptr_t address, uint64_t compare, uint64_t swap) except -1
cpdef uint64_t before() noexcept
cpdef bint place_word(uintptr_t address, uint64_t value) except -1
cpdef str explain()
