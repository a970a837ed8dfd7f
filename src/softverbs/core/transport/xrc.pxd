# SPDX-License-Identifier: MIT
cimport cython
from libc.stdint cimport uint32_t, uintptr_t
from softverbs.core.base.constants cimport EVENT_QP_REQ_ERR
from softverbs.core.queues.srq cimport SharedReceiveQueue, XrcDomain
from softverbs.core.transport.packets cimport XRCETH_LENGTH
from softverbs.core.transport.responder cimport Responder
from softverbs.core.wire.headers cimport NAK_INVALID_REQUEST, xrceth_srqn

cdef class TargetResponder(Responder):
    cdef XrcDomain xrcd
    cdef SharedReceiveQueue srq
    cdef start_target(self, XrcDomain xrcd)
    cdef int _perform(self, int opcode, uint32_t flags, uintptr_t headers, uintptr_t payload, uint32_t length, bint ask, bint solicited) except -1
    @cython.locals(srq=SharedReceiveQueue)
    cdef bint _select(self, uint32_t number) except -1
    cpdef void flush(self, object reason) except *
