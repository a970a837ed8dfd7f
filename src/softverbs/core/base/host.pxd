# SPDX-License-Identifier: MIT
cimport cython
from libc.stdint cimport int64_t, uint32_t, uint64_t
from softverbs.core.base.lock cimport Lock

cdef class Host:
    cdef readonly object options
    cdef readonly Lock lock
    cdef readonly object clock
    cdef readonly int64_t now
    cdef readonly int num_comp_vectors
    cdef readonly int active_mtu
    cdef readonly object regions
    cdef readonly object link
    cdef readonly object gid_table
    cdef readonly dict counts
    cdef readonly int handles
    cdef readonly object far
    cdef public object plan
    cdef readonly list addresses
    cdef object free_addresses
    cdef readonly dict srqs
    cdef uint32_t srq_seed
    cdef public uint64_t qkey_violations
    cdef public uint64_t no_receive
    cdef public uint64_t completions_lost
    cdef readonly list changed_qps
    cdef readonly list changed_srqs
    cdef readonly list changed_cqs
    cdef readonly list unplaced_counters
    cdef public uint64_t counts_lost
    cdef readonly dict offenders
    cpdef int new_handle(self)
    cpdef int enter(self, object kind, int limit) except? 0
    cpdef leave(self, object kind)
    cpdef uint32_t enter_address(self, object handle) except? 0
    cpdef remove_address(self, object handle)
    cpdef enter_ring(self, object ring)
    cpdef remove_ring(self, object ring)
    cdef int free_slots(self, uint64_t frees) except -1
    cpdef uint32_t enter_srq(self, object srq) except? 0
    cpdef remove_srq(self, object srq)
    cpdef offend(self, object element, object reason)
    cpdef drive(self)
    cpdef catch_up(self)
    cpdef schedule(self, object qp)
    cpdef raise_event(self, int event_type, object element)
    cpdef report(self, object text)
    cpdef on_overrun(self, object cq)
    cpdef delay_counter(self, object counter)
    cpdef object path_to(self, object vector)
    cpdef uint32_t enter_qp(self, object qp, int number) except? 0
    cpdef attach_mcast(self, object qp, bytes gid)
    cpdef detach_mcast(self, object qp, bytes gid)
    cpdef remove_qp(self, object qp)
