# SPDX-License-Identifier: MIT
"""What a requester does without a packet: local operations on memory windows, and the words of its failures."""

try:
    import cython
except ImportError:
    from softverbs import _cython as cython

if not cython.compiled:
    from softverbs.core.base.constants import WR_FLUSH, WR_LOCAL_INV
    from softverbs.core.memory.raw import load8, load32, load64
    from softverbs.core.memory.regions import MemoryRegion
    from softverbs.core.queues.operations import has_remote_memory, operation_name
    from softverbs.core.queues.rings import (
        SQ_COMPARE_ADD,
        SQ_IMM,
        SQ_LENGTH,
        SQ_OPCODE,
        SQ_REMOTE_ADDRESS,
        SQ_RKEY,
        SQ_SWAP,
    )
    from softverbs.core.transport.connection import Connection


def perform_locally(connection: Connection, slot: int, opcode: int) -> str:
    """LOCAL_INV or BIND_MW; "" or the reason why not (IBA 10.6.7.2).

    :param connection: of the queue pair
    :param slot: address of the work request
    :param opcode: of the work request
    """
    if opcode == WR_LOCAL_INV:
        return connection.regions.invalidate(load32(slot + SQ_IMM), connection.pd, connection.qp_num)
    window: MemoryRegion | None = connection.regions.window(load32(slot + SQ_RKEY))
    region: MemoryRegion | None = connection.regions.find(load32(slot + SQ_SWAP))
    if window is None or region is None:
        return "the memory window or the memory region to bind is gone"
    return connection.regions.bind(
        window,
        region,
        load64(slot + SQ_REMOTE_ADDRESS),
        load64(slot + SQ_COMPARE_ADD),
        load32(slot + SQ_SWAP + 4),
        load32(slot + SQ_IMM),
        connection.qp_num,
        connection.pd,
    )


def silence(connection: Connection, what: str, una: int, retry_count: int, timeout: int, last_heard: int) -> str:
    """Why there are no more retries.

    :param connection: of the queue pair
    :param what: what has not come
    :param una: the oldest PSN without an answer
    :param retry_count: of the queue pair
    :param timeout: of the queue pair, ns
    :param last_heard: when the peer last answered, ns; 0 for never
    """
    heard = f"last heard at {last_heard} ns" if last_heard else "never heard"
    return (
        f"{connection.peer_name}: {what}; oldest PSN without an answer {una:#x}, "
        f"sent {retry_count + 1} times, {timeout / 1e6:g} ms apart; the peer was {heard}"
    )


def refusal(connection: Connection, slot: int, psn: int, syndrome: int) -> str:
    """What was asked, and what the peer says about its NAK, if it says anything.

    :param connection: of the queue pair
    :param slot: address of the work request
    :param psn: that the NAK names
    :param syndrome: of the NAK
    """
    opcode = load8(slot + SQ_OPCODE)
    length = load32(slot + (SQ_COMPARE_ADD if opcode == WR_FLUSH else SQ_LENGTH))
    asked = f"{operation_name(opcode)} of {length} bytes"
    if has_remote_memory(opcode):
        end = load64(slot + SQ_REMOTE_ADDRESS) + length
        asked += f" at [{load64(slot + SQ_REMOTE_ADDRESS):#x}, {end:#x}) with rkey {load32(slot + SQ_RKEY):#x}"
    words = connection.words if connection.words and connection.words_psn == psn else "it gives no reason"
    return f"{connection.peer_name} refused {asked} (NAK {syndrome & 31}): {words}"
