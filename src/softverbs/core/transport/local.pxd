# SPDX-License-Identifier: MIT
cimport cython
from libc.stdint cimport int64_t, uint32_t, uint64_t, uintptr_t
from softverbs.core.base.constants cimport WR_FLUSH, WR_LOCAL_INV
from softverbs.core.memory.raw cimport raw_load8 as load8, raw_load32 as load32, raw_load64 as load64
from softverbs.core.memory.regions cimport MemoryRegion
from softverbs.core.queues.operations cimport has_remote_memory, operation_name
from softverbs.core.queues.rings cimport (
    SQ_COMPARE_ADD,
    SQ_IMM,
    SQ_LENGTH,
    SQ_OPCODE,
    SQ_REMOTE_ADDRESS,
    SQ_RKEY,
    SQ_SWAP,
)
from softverbs.core.transport.connection cimport Connection

@cython.locals(window=MemoryRegion, region=MemoryRegion)
cdef object perform_locally(Connection connection, uintptr_t slot, int opcode)
cdef object silence(Connection connection, object what, uint32_t una, int retry_count, int64_t timeout, int64_t last_heard)
@cython.locals(opcode=int, length=uint32_t, end=uint64_t)
cdef object refusal(Connection connection, uintptr_t slot, uint32_t psn, int syndrome)
