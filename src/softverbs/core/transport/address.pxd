# SPDX-License-Identifier: MIT
from libc.stdint cimport uint32_t
from softverbs.core.base.host cimport Host
from softverbs.core.memory.regions cimport ProtectionDomain
from softverbs.core.wire.egress cimport Path

cpdef int pace_of(object static_rate) except -1

cdef class AddressVector:
    cdef readonly bytes dgid
    cdef readonly object sgid_index
    cdef readonly object flow_label
    cdef readonly object hop_limit
    cdef readonly object traffic_class
    cdef readonly object sl
    cdef readonly object port_num
    cdef readonly object is_global
    cdef readonly object static_rate

cdef class AddressHandle:
    cdef readonly Host port
    cdef readonly ProtectionDomain pd
    cdef readonly AddressVector vector
    cdef readonly Path path
    cdef readonly bint closed
    cdef readonly uint32_t handle
