cimport cython
from libc.stdint cimport uint32_t
from softverbs.core.completion cimport CompletionQueue
from softverbs.core.connection cimport Connection
from softverbs.core.opcodes cimport UC, UD
from softverbs.core.requester cimport Requester
from softverbs.core.responder cimport Responder
from softverbs.core.send_queue cimport SendQueue
from softverbs.core.srq cimport ReceiveQueue, XrcDomain
from softverbs.core.unreliable cimport (
    DatagramRequester,
    DatagramResponder,
    UnreliableRequester,
    UnreliableResponder,
)
from softverbs.core.xrc cimport TargetResponder

@cython.locals(sender=DatagramRequester, stream=UnreliableRequester)
cdef Requester build_requester(Connection connection, SendQueue sends, CompletionQueue cq, int transport, uint32_t window)
@cython.locals(taker=DatagramResponder, target=TargetResponder)
cdef Responder build_responder(Connection connection, ReceiveQueue receives, CompletionQueue cq, int transport, XrcDomain xrcd, bint takes_receive, uint32_t window)
