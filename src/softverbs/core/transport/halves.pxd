# SPDX-License-Identifier: MIT
cimport cython
from libc.stdint cimport uint32_t
from softverbs.core.queues.completion cimport CompletionQueue
from softverbs.core.queues.send_queue cimport SendQueue
from softverbs.core.queues.srq cimport ReceiveQueue, XrcDomain
from softverbs.core.transport.connection cimport Connection
from softverbs.core.transport.requester cimport Requester
from softverbs.core.transport.responder cimport Responder
from softverbs.core.transport.unreliable cimport (
    DatagramRequester,
    DatagramResponder,
    UnreliableRequester,
    UnreliableResponder,
)
from softverbs.core.transport.xrc cimport TargetResponder
from softverbs.core.wire.opcodes cimport UC, UD

@cython.locals(sender=DatagramRequester, stream=UnreliableRequester)
cdef Requester build_requester(Connection connection, SendQueue sends, CompletionQueue cq, int transport, uint32_t window)
@cython.locals(taker=DatagramResponder, target=TargetResponder)
cdef Responder build_responder(Connection connection, ReceiveQueue receives, CompletionQueue cq, int transport, XrcDomain xrcd, bint takes_receive, uint32_t window)
