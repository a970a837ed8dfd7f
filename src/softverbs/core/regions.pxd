cimport cython
from libc.stdint cimport uint32_t, uint64_t, uintptr_t
from softverbs.core.constants cimport (
    ACCESS_LOCAL_WRITE,
    ACCESS_MW_BIND,
    ACCESS_REMOTE_ATOMIC,
    ACCESS_REMOTE_READ,
    ACCESS_REMOTE_WRITE,
    ACCESS_ZERO_BASED,
)
from softverbs.core.host cimport Host

cdef int MW_TYPE_1
cdef int MW_TYPE_2

cdef class ProtectionDomain:
    cdef readonly Host port
    cdef readonly object context_id
    cdef readonly uint32_t handle
    cdef readonly int users
    cdef public bint closed
    cpdef use(self, int count)

cdef class MemoryRegion:
    cdef readonly ProtectionDomain pd
    cdef readonly uintptr_t address
    cdef readonly uint64_t length
    cdef readonly uint32_t access
    cdef readonly uint64_t iova
    cdef readonly object holder
    cdef readonly uint32_t lkey
    cdef readonly uint32_t rkey
    cdef readonly uint32_t handle
    cdef readonly int window_type
    cdef MemoryRegion bound_to
    cdef readonly int windows
    cdef readonly uint32_t qp_num
    cdef readonly bint valid

cdef class Regions:
    cdef readonly uint32_t limit
    cdef list entries
    cdef list free
    cdef uint32_t tag
    cdef readonly uint32_t active

    @cython.locals(index=uint32_t, entry=MemoryRegion)
    cpdef MemoryRegion find(self, uint32_t key)
    @cython.locals(entry=MemoryRegion)
    cpdef uintptr_t translate(self, uint32_t key, uint64_t va, uint64_t length, uint32_t right, ProtectionDomain pd, uint32_t qp_num) except? 0
    cpdef object explain(self, uint32_t key, uint64_t va, uint64_t length, uint32_t right, ProtectionDomain pd, uint32_t qp_num)
    @cython.locals(region=MemoryRegion, key=uint32_t)
    cpdef MemoryRegion register(self, ProtectionDomain pd, object address, object length, object access, object iova, object holder)
    cpdef deregister(self, MemoryRegion region)
    @cython.locals(window=MemoryRegion)
    cpdef MemoryRegion allocate_window(self, ProtectionDomain pd, int window_type)
    cpdef object bind(self, MemoryRegion window, MemoryRegion region, uint64_t va, uint64_t length, uint32_t access, uint32_t rkey, uint32_t qp_num)
    @cython.locals(entry=MemoryRegion)
    cpdef object invalidate(self, uint32_t rkey, ProtectionDomain pd, uint32_t qp_num)
    cdef _unbind(self, MemoryRegion window)
    @cython.locals(index=uint32_t)
    cdef uint32_t _enter(self, MemoryRegion entry) except? 0
    cdef _leave(self, MemoryRegion entry)
