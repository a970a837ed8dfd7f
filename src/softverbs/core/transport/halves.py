# SPDX-License-Identifier: MIT
"""The two halves of a queue pair: which requester and which responder each transport has."""

try:
    import cython
except ImportError:
    from softverbs import _cython as cython

if not cython.compiled:
    from softverbs.core.queues.completion import CompletionQueue
    from softverbs.core.queues.send_queue import SendQueue
    from softverbs.core.queues.srq import ReceiveQueue, XrcDomain
    from softverbs.core.transport.connection import Connection
    from softverbs.core.transport.requester import Requester
    from softverbs.core.transport.responder import Responder
    from softverbs.core.transport.unreliable import (
        DatagramRequester,
        DatagramResponder,
        UnreliableRequester,
        UnreliableResponder,
    )
    from softverbs.core.transport.xrc import TargetResponder
    from softverbs.core.wire.opcodes import UC, UD


def build_requester(
    connection: Connection, sends: SendQueue, cq: CompletionQueue, transport: int, window: int
) -> Requester:
    """The sending half.

    :param connection: of the queue pair
    :param sends: its send queue
    :param cq: where sends complete
    :param transport: ``opcodes.RC``, ``UC``, ``UD`` or ``XRC``
    :param window: most bytes on the way
    """
    if transport == UD:
        sender = DatagramRequester(connection, sends.ring, cq, window)
        sender.start_datagrams(sends.handles)
        return sender
    if transport == UC:
        stream = UnreliableRequester(connection, sends.ring, cq, window)
        stream.start_unreliable()
        return stream
    return Requester(connection, sends.ring, cq, window)


def build_responder(
    connection: Connection,
    receives: "ReceiveQueue | None",
    cq: CompletionQueue,
    transport: int,
    xrcd: "XrcDomain | None",
    takes_receive: bool,
    window: int,
) -> Responder:
    """The receiving half.

    :param connection: of the queue pair
    :param receives: where messages go; None for XRC, where each request names its SRQ
    :param cq: where receives complete
    :param transport: ``opcodes.RC``, ``UC``, ``UD`` or ``XRC``
    :param xrcd: of an XRC target, else None
    :param takes_receive: whether an inbound WRITE_WITH_IMM consumes a receive
    :param window: most bytes of READ responses at once
    """
    if transport == UD:
        taker = DatagramResponder(connection, receives, cq, True, window)
        taker.start_datagrams()
        return taker
    if transport == UC:
        return UnreliableResponder(connection, receives, cq, takes_receive, window)
    if xrcd is not None:
        target = TargetResponder(connection, None, cq, takes_receive, window)
        target.start_target(xrcd)
        return target
    return Responder(connection, receives, cq, takes_receive, window)
