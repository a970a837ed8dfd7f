from libc.stdint cimport int64_t, uint32_t, uint64_t

from softverbs.core.lock cimport Lock

cdef class Host:
    cdef readonly object options
    cdef readonly Lock lock
    cdef readonly object clock
    cdef readonly int64_t now
    cdef readonly int num_comp_vectors
    cdef readonly int active_mtu
    cdef readonly object regions
    cdef readonly dict counts
    cdef readonly int handles
    cdef public uint64_t completions_lost
    cpdef int enter(self, object kind, int limit) except? 0
    cpdef leave(self, object kind)
    cpdef drive(self)
    cpdef catch_up(self)
    cpdef schedule(self, object qp)
    cpdef raise_event(self, int event_type, object element)
    cpdef report(self, object text)
    cpdef on_overrun(self, object cq)
    cpdef delay_counter(self, object counter)
    cpdef object path_to(self, object vector)
    cpdef uint32_t enter_qp(self, object qp) except? 0
    cpdef remove_qp(self, object qp)
