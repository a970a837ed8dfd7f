# SPDX-License-Identifier: MIT
cimport cython
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t, uintptr_t
from softverbs.core.base.constants cimport EVENT_PORT_ACTIVE, EVENT_PORT_ERR, QPS_ERR, QPS_RTR
from softverbs.core.base.host cimport Host
from softverbs.core.memory.far cimport Far
from softverbs.core.memory.regions cimport Regions
from softverbs.core.queues.completion cimport CompletionQueue
from softverbs.core.queues.counters cimport CompCntr
from softverbs.core.queues.marks cimport LINE, Marks
from softverbs.core.queues.rings cimport Ring
from softverbs.core.queues.srq cimport SharedReceiveQueue
from softverbs.core.transport.address cimport AddressVector, pace_of
from softverbs.core.transport.qp cimport QueuePair
from softverbs.core.wire.egress cimport ICRC_SIZE, Egress, Path
from softverbs.core.wire.headers cimport bth_dest_qpn, bth_opcode, bth_pad, bth_pkey, bth_version
from softverbs.core.wire.icrc cimport IcrcPath
from softverbs.core.wire.opcodes cimport (
    BTH_LENGTH,
    EXPLAIN,
    FIRST,
    ONLY,
    PAYLOAD,
    RC,
    READ,
    REQUEST,
    RESPONSE,
    SEND,
    TRANSPORT_BITS,
    UD,
    WRITE,
    XRC,
    header_length,
)
from softverbs.core.wire.opcodes cimport flags as opcode_flags
from softverbs.core.wire.peer cimport Peer

cdef int DROP_SHORT
cdef int DROP_VERSION
cdef int DROP_OPCODE
cdef int DROP_TRANSPORT
cdef int DROP_PKEY
cdef int DROP_UNKNOWN_QP
cdef int DROP_MALFORMED
cdef int DROP_ICRC
cdef int DROP_SOURCE
cdef int DROP_QP_STATE
cdef int DROP_GROUP
cdef int DROP_PORT_DOWN
cdef uint32_t GROUP_QP
cdef uint32_t INDEX_BITS
cdef uint32_t QPN_BITS
cdef int PKEY_BITS
cdef int MAX_ROUNDS
cdef int LOCAL_TURNS
cdef int BUSY_NS
cdef uint32_t _JOINS
cdef int LINK_NS
cdef int HEARD_NS

cdef uint64_t _LOW_32

cdef class Port(Host):
    cdef Far copies
    cdef list numbered
    cdef object free_numbers
    cdef readonly object wake
    cdef public int sleepers
    cdef public bint rung
    cdef Egress egress
    cdef int flushed
    cdef list table
    cdef object free_qps
    cdef uint32_t qp_tag
    cdef uint32_t qp_base
    cdef readonly dict live
    cdef readonly list timed
    cdef readonly dict programs
    cdef QueuePair first_ready
    cdef QueuePair last_ready
    cdef int64_t timer_due
    cdef int64_t counter_due
    cdef dict late_counters
    cdef list overrun
    cdef readonly object events
    cdef public object on_event
    cdef QueuePair placing
    cdef uint32_t placing_kind
    cdef int local_turns
    cdef uint64_t[12] drops
    cdef readonly object groups
    cdef readonly bint up
    cdef public bint refused
    cdef readonly uint64_t received
    cdef readonly uint64_t bytes_received
    cdef readonly object failure
    cdef readonly uint64_t drives
    cdef int64_t last_drive
    cdef int64_t last_look
    cdef int64_t last_heard
    cdef readonly uint64_t looks
    cdef public object log

    @cython.locals(work=int)
    cpdef int progress(self, int64_t now) except -1
    @cython.locals(busy=bint)
    cpdef drive(self)
    cpdef catch_up(self)
    @cython.locals(received=int)
    cdef int _take_in(self, int64_t now) except -1
    @cython.locals(due=int64_t, planned=int64_t)
    cpdef int64_t deadline(self) except? -1
    @cython.locals(work=int)
    cdef int _pump(self) except -1
    @cython.locals(qp=QueuePair, following=QueuePair)
    cdef int _pump_ready(self) except -1
    cdef bint _flush(self) except -1
    @cython.locals(egress=Egress, index=int, path=Path, address=uintptr_t, segment=uint32_t)
    cdef bint _hand_over(self) except -1
    @cython.locals(size=uint32_t)
    cdef int _deliver_locally(self, Peer peer, uintptr_t address, uint32_t length, uint32_t segment) except -1
    @cython.locals(size=int64_t, identification=uint32_t)
    cpdef receive(self, Peer peer, uintptr_t address, int64_t length, int64_t segment)
    @cython.locals(qp=QueuePair)
    cdef int _on_frame(self, Peer peer, uintptr_t frame, uint32_t length, uint32_t identification) except -1
    @cython.locals(opcode=int, flags=uint32_t)
    cdef int _hand_to(self, QueuePair qp, Peer peer, uintptr_t frame, uint32_t length) except -1
    @cython.locals(qp=QueuePair)
    cdef int _land(self) except -1
    @cython.locals(opcode=int, flags=uint32_t, payload=int)
    cdef int _is_sound(self, uintptr_t frame, uint32_t length) noexcept
    @cython.locals(fault=int, opcode=int, number=uint32_t, index=uint32_t, qp=QueuePair)
    cdef QueuePair _find(self, Peer peer, uintptr_t frame, uint32_t length, uint32_t identification)
    @cython.locals(fault=int, opcode=int, members=list, qp=QueuePair)
    cdef void _on_group_frame(self, Peer peer, uintptr_t frame, uint32_t length, uint32_t identification) except *
    cdef QueuePair _drop(self, int cause)
    @cython.locals(pair=QueuePair, last=QueuePair)
    cpdef schedule(self, object qp)
    cdef int _ring(self) except -1
    cpdef raise_event(self, int event_type, object element)
    cpdef report(self, object text)
    cpdef on_overrun(self, object cq)
    @cython.locals(qp=QueuePair)
    cdef _stop_overrun_queues(self)
    cpdef delay_counter(self, object counter)
    @cython.locals(due=int64_t, kept=dict)
    cdef _publish_counters(self)
    @cython.locals(due=int64_t)
    cdef int _note_deadline(self, QueuePair qp) except -1
    @cython.locals(qp=QueuePair, due=int64_t, waiting=list, index=Py_ssize_t)
    cdef void _run_timers(self) except *
    @cython.locals(work=int64_t, heard=int)
    cpdef enter_program(self, Marks marks)
    cpdef leave_program(self, Marks marks)
    cpdef int64_t serve(self, int looks, bint link) except -1
    cpdef int64_t take_shared(self) except -1
    @cython.locals(taken=int64_t, marks=Marks)
    cdef int64_t _take_posted(self) except -1
    @cython.locals(taken=int64_t, found=uint64_t, number=int64_t)
    cdef int64_t _take_marked(self, Marks marks, int64_t first) except -1
    @cython.locals(qp=QueuePair, srq=SharedReceiveQueue)
    cdef int64_t _take_from(self, object queue) except -1
    @cython.locals(counter=CompCntr, qp=QueuePair, srq=SharedReceiveQueue, cq=CompletionQueue)
    cpdef publish_shared(self)
    cpdef uint32_t enter_qp(self, object qp, int number) except? 0
    @cython.locals(queue=Ring)
    cpdef enter_ring(self, object ring)
    @cython.locals(queue=Ring)
    cpdef remove_ring(self, object ring)
    @cython.locals(ring=Ring)
    cdef int free_slots(self, uint64_t frees) except -1
    cpdef remove_qp(self, object qp)
    cdef uint32_t _place_of(self, uint32_t number) noexcept
    @cython.locals(index=uint32_t, found=QueuePair)
    cpdef QueuePair qp(self, uint32_t number)
    cpdef object path_to(self, object vector)
    cpdef attach_mcast(self, object qp, bytes gid)
    cpdef detach_mcast(self, object qp, bytes gid)
