# SPDX-License-Identifier: MIT
cimport cython
from libc.stdint cimport uint32_t, uint64_t, uintptr_t
from softverbs.core.base.host cimport Host
from softverbs.core.memory.raw cimport Block

cdef class DeviceMemory:
    cdef readonly Host port
    cdef readonly object context_id
    cdef readonly uint64_t length
    cdef readonly Block block
    cdef readonly uintptr_t address
    cdef readonly uint32_t handle
    cdef public int users
    cdef readonly bint closed
