# SPDX-License-Identifier: MIT
cimport cython
from libc.stdint cimport int32_t, int64_t, uint32_t, uint64_t, uintptr_t
from softverbs.core.base.constants cimport (
    EVENT_QP_FATAL,
    WC_GRH,
    WC_LOC_LEN_ERR,
    WC_LOC_PROT_ERR,
    WC_LOC_QP_OP_ERR,
    WC_RECV,
    WC_SL_IPV4,
    WC_SL_IPV6,
    WC_SUCCESS,
    WC_WITH_IMM,
)
from softverbs.core.memory.raw cimport Block, raw_load32 as load32, raw_load64 as load64, raw_store32 as store32
from softverbs.core.queues.completion cimport complete
from softverbs.core.queues.rings cimport (
    RQ_LENGTH,
    RQ_NUM_SGE,
    RQ_SGES,
    RQ_WR_ID,
    SQ_DESTINATION,
    SQ_LENGTH,
    SQ_RKEY,
    SQ_STATE,
    WQE_POSTED,
    WQE_STARTED,
    Ring,
)
from softverbs.core.transport.address cimport AddressHandle
from softverbs.core.transport.pace cimport NAP, Pace
from softverbs.core.transport.packets cimport DETH_LENGTH, MAX_HEADERS, write_datagram
from softverbs.core.transport.requester cimport Requester
from softverbs.core.transport.responder cimport Responder
from softverbs.core.wire.egress cimport ICRC_SIZE, Egress, Path
from softverbs.core.wire.headers cimport deth_qkey, deth_src_qpn, imm
from softverbs.core.wire.opcodes cimport BTH_LENGTH, FIRST, IMM, ONLY
from softverbs.core.wire.peer cimport GRH_LENGTH, Peer
from softverbs.core.wire.psn cimport add, diff

cdef int PACE
cdef int64_t PACE_BURST
cdef uint32_t QKEY_OF_QP

cdef class UnreliableRequester(Requester):
    cdef Pace pace
    cdef int64_t resume_at
    cdef void start_unreliable(self) noexcept
    @cython.locals(sq=Ring, slot=uintptr_t, address=uintptr_t, index=uint64_t, length=uint32_t)
    cdef int pump(self, Egress egress, int64_t now) except -1
    cdef void _gone(self, uint32_t length) noexcept
    cdef bint _may_send(self, int64_t now) noexcept
    cpdef int64_t next_deadline(self) noexcept
    cpdef void on_timer(self, int64_t now) except *

cdef class DatagramRequester(UnreliableRequester):
    cdef list handles
    cdef start_datagrams(self, list handles)
    @cython.locals(sq=Ring, slot=uintptr_t, address=uintptr_t)
    cdef int pump(self, Egress egress, int64_t now) except -1
    @cython.locals(handle=AddressHandle, path=Path, qkey=uint32_t, length=uint32_t)
    cdef void _send(self, uintptr_t slot, uintptr_t address, Egress egress, int64_t now) except *

cdef class UnreliableResponder(Responder):
    @cython.locals(gap=bint)
    cdef int on_request(self, int opcode, uint32_t flags, uint32_t psn, uintptr_t headers, uintptr_t payload, uint32_t length, bint ask, bint solicited) except -1
    cdef bint _refuse(self, int syndrome, int event, object reason) except -1
    cdef bint _not_ready(self) noexcept
    cdef bint _ignore(self) noexcept

cdef class DatagramResponder(UnreliableResponder):
    cdef Block grh
    cdef start_datagrams(self)
    @cython.locals(slot=uintptr_t, sges=uintptr_t, count=int, whole=uint32_t, immediate=uint32_t, wc_flags=uint32_t)
    cdef void on_datagram(self, Peer peer, uint32_t flags, uintptr_t headers, uintptr_t payload, uint32_t length, bint solicited) except *
