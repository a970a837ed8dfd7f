# SPDX-License-Identifier: MIT
cimport cython
from libc.stdint cimport uint8_t, uint32_t, uintptr_t
from softverbs.core.memory.raw cimport crc32, raw_load8 as load8, raw_load32 as load32, raw_store8 as store8

cdef bint _BIG_ENDIAN
cdef int _SHORTEST
cdef uint32_t _POLYNOMIAL
cdef uint32_t _X_TO_0
cdef uint32_t _X_TO_MINUS_1
cdef int _IPV4_LENGTH
cdef int _IPV4_IDENTIFICATION
cdef int _IPV6_LENGTH
cdef int _UDP_LENGTH
cdef int _AFTER_IDENTIFICATION
cdef int _CACHED

cdef uint32_t[2048] _added
cdef uint32_t[20] _back
cdef uint32_t[4608] _inverses

@cython.locals(product=uint32_t)
cpdef uint32_t _multiply(uint32_t a, uint32_t b) noexcept
cdef uint32_t _adds(int table, uint32_t value) noexcept
@cython.locals(factor=uint32_t, exponent=Py_ssize_t, k=int)
cpdef uint32_t _inverse(Py_ssize_t length) noexcept
cdef uint32_t _wire(uint32_t value) noexcept
@cython.locals(power=uint32_t)
cdef _fill()

@cython.final
cdef class IcrcPath:
    cdef readonly bint ipv4
    cdef uint32_t _start

    @cython.locals(value=uint32_t, udp_length=uint32_t)
    cdef uint32_t _headers(self, Py_ssize_t length, uint32_t identification) noexcept
    @cython.locals(value=uint32_t, masked=uint8_t)
    cpdef uint32_t compute(self, uintptr_t address, Py_ssize_t length, uint32_t identification) except? 0
    @cython.locals(difference=uint32_t, moved=uint32_t)
    cpdef int verify(self, uintptr_t address, Py_ssize_t length, uint32_t identification, bint known) except -2
