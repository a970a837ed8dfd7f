# SPDX-License-Identifier: MIT
cimport cython
from libc.stdint cimport uint32_t, uint64_t, uintptr_t
from softverbs.core.base.constants cimport (
    ACCESS_FLUSH_GLOBAL,
    ACCESS_FLUSH_PERSISTENT,
    ACCESS_LOCAL_WRITE,
    ACCESS_MW_BIND,
    ACCESS_REMOTE_ATOMIC,
    ACCESS_REMOTE_READ,
    ACCESS_REMOTE_WRITE,
    ACCESS_ZERO_BASED,
)
from softverbs.core.base.host cimport Host
from softverbs.core.memory.device_memory cimport DeviceMemory
from softverbs.core.memory.spaces cimport far, raw_is_far as is_far

cdef int MW_TYPE_1
cdef int MW_TYPE_2
cdef int PLAIN
cdef int CHECKED
cdef int NOTHING
cdef int FOREIGN
cdef uint64_t LONGEST
cdef uint64_t EVERYTHING
cdef uint32_t _WRITES
cdef uint32_t _WINDOW_RIGHTS
cdef uint32_t _ON_DEMAND
cdef uint32_t _INDEX
cdef uint64_t _OWN_TOP
cdef uint64_t _FOREIGN_TOP

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
    cdef readonly uint64_t limit
    cdef readonly uint32_t access
    cdef readonly uint64_t iova
    cdef readonly object holder
    cdef readonly int kind
    cdef readonly int space
    cdef readonly uintptr_t zeros
    cdef readonly DeviceMemory device_memory
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
    cdef object free
    cdef uint32_t tag
    cdef uint32_t base
    cdef readonly uint32_t active
    cdef readonly int windows
    cdef public uint64_t device_memory_used

    @cython.locals(index=uint32_t, entry=MemoryRegion)
    cpdef MemoryRegion find(self, uint32_t key)
    @cython.locals(index=uint32_t, entry=MemoryRegion)
    cpdef MemoryRegion window(self, uint32_t key)
    @cython.locals(index=uint32_t, entry=MemoryRegion)
    cpdef uintptr_t translate(self, uint32_t key, uint64_t va, uint64_t length, uint32_t right, ProtectionDomain pd, uint32_t qp_num) except? 0
    @cython.locals(address=uintptr_t)
    cdef uintptr_t _beyond(self, MemoryRegion entry, uint64_t va, uint64_t length, uint32_t right, uint32_t qp_num) except? 0
    @cython.locals(entry=MemoryRegion, top=uint64_t, end=uint64_t, missing=uint32_t, inside=bint)
    cpdef object explain(self, uint32_t key, uint64_t va, uint64_t length, uint32_t right, ProtectionDomain pd, uint32_t qp_num)
    @cython.locals(region=MemoryRegion)
    cpdef MemoryRegion register(self, ProtectionDomain pd, object address, object length, object access, object iova, object holder, int kind=*, int space=*)
    @cython.locals(region=MemoryRegion)
    cpdef MemoryRegion register_device_memory(self, ProtectionDomain pd, DeviceMemory memory, object offset, object length, object access)
    @cython.locals(region=MemoryRegion)
    cpdef MemoryRegion register_null(self, ProtectionDomain pd, uintptr_t sink, uintptr_t zeros, object holder)
    cpdef reregister(self, MemoryRegion region, ProtectionDomain pd, object address, object length, object access, object holder, int kind)
    cpdef check_reregister(self, MemoryRegion region)
    cpdef lose(self, MemoryRegion region)
    @cython.locals(entry=MemoryRegion)
    cpdef MemoryRegion by_handle(self, uint32_t handle, object context_id)
    @cython.locals(index=uint32_t, entry=MemoryRegion)
    cpdef uintptr_t advised(self, ProtectionDomain pd, uint32_t key, uint64_t va, uint64_t length, bint writing) except? 0
    cpdef deregister(self, MemoryRegion region)
    @cython.locals(window=MemoryRegion)
    cpdef MemoryRegion allocate_window(self, ProtectionDomain pd, int window_type)
    cpdef object bind(self, MemoryRegion window, MemoryRegion region, uint64_t va, uint64_t length, uint32_t access, uint32_t rkey, uint32_t qp_num, ProtectionDomain pd=*)
    cdef object _unfit(self, MemoryRegion window, MemoryRegion region, uint32_t access, uint32_t rkey, ProtectionDomain pd)
    cdef object _unbindable(self, MemoryRegion window, MemoryRegion region, uint64_t va, uint64_t length, uint32_t access)
    @cython.locals(entry=MemoryRegion)
    cpdef object invalidate(self, uint32_t rkey, ProtectionDomain pd, uint32_t qp_num)
    cdef _unbind(self, MemoryRegion window)
    @cython.locals(key=uint32_t)
    cdef MemoryRegion _enter_region(self, MemoryRegion region)
    @cython.locals(index=uint32_t)
    cdef uint32_t _enter(self, MemoryRegion entry) except? 0
    cdef _leave(self, MemoryRegion entry)
