# SPDX-License-Identifier: MIT
"""Packets, written: a slot of the send queue and a PSN in, bytes of a frame out.

Each function writes one frame without its ICRC at ``address`` and gives its length in bytes. Nothing here has state.
"""

try:
    import cython
except ImportError:
    from softverbs import _cython as cython

if not cython.compiled:
    from softverbs.core.base.constants import (
        SEND_INLINE,
        SEND_SOLICITED,
        WR_ATOMIC_CMP_AND_SWP,
        WR_RDMA_WRITE,
        WR_RDMA_WRITE_WITH_IMM,
        WR_SEND_WITH_IMM,
        WR_SEND_WITH_INV,
    )
    from softverbs.core.memory.raw import copy, fill, load8, load16, load32, load64, view
    from softverbs.core.queues.operations import ATOMIC_SIZE
    from softverbs.core.queues.rings import (
        SQ_COMPARE_ADD,
        SQ_DESTINATION,
        SQ_FLAGS,
        SQ_IMM,
        SQ_LENGTH,
        SQ_NUM_SGE,
        SQ_OPCODE,
        SQ_REMOTE_ADDRESS,
        SQ_RKEY,
        SQ_SGES,
        SQ_SWAP,
    )
    from softverbs.core.transport.connection import Connection
    from softverbs.core.wire.headers import (
        put_aeth,
        put_atomic_ack,
        put_atomic_eth,
        put_bth,
        put_deth,
        put_feth,
        put_ieth,
        put_imm,
        put_reth,
        put_xrceth,
    )
    from softverbs.core.wire.opcodes import (
        BTH_LENGTH,
        EXPLAIN,
        RC_ACKNOWLEDGE,
        RC_ATOMIC_ACKNOWLEDGE,
        RC_ATOMIC_WRITE,
        RC_COMPARE_SWAP,
        RC_FETCH_ADD,
        RC_FLUSH,
        RC_RDMA_READ_REQUEST,
        RC_RDMA_READ_RESPONSE_FIRST,
        RC_RDMA_READ_RESPONSE_LAST,
        RC_RDMA_READ_RESPONSE_MIDDLE,
        RC_RDMA_READ_RESPONSE_ONLY,
        RC_RDMA_WRITE_FIRST,
        RC_RDMA_WRITE_LAST,
        RC_RDMA_WRITE_LAST_WITH_IMMEDIATE,
        RC_RDMA_WRITE_MIDDLE,
        RC_RDMA_WRITE_ONLY,
        RC_RDMA_WRITE_ONLY_WITH_IMMEDIATE,
        RC_SEND_FIRST,
        RC_SEND_LAST,
        RC_SEND_LAST_WITH_IMMEDIATE,
        RC_SEND_LAST_WITH_INVALIDATE,
        RC_SEND_MIDDLE,
        RC_SEND_ONLY,
        RC_SEND_ONLY_WITH_IMMEDIATE,
        RC_SEND_ONLY_WITH_INVALIDATE,
        UD_SEND_ONLY,
        UD_SEND_ONLY_WITH_IMMEDIATE,
        XRC,
    )

#: The longest that a frame is beyond its payload: BTH, XRCETH, AtomicETH; a WRITE of XRC with its pad needs 39.
MAX_HEADERS = 44
MAX_WORDS = 240  # bytes of an explanation: with its header it fits the smallest MTU
RETH_LENGTH = 16
AETH_LENGTH = 4
ATOMIC_ETH_LENGTH = 28
ATOMIC_ACK_LENGTH = 8
XRCETH_LENGTH = 4
DETH_LENGTH = 8
FETH_LENGTH = 4


def write_payload(connection: Connection, slot: int, address: int, psn: int, offset: int, part: int, ask: bool) -> int:
    """A packet of a SEND or WRITE with ``part`` bytes from ``offset``; 0 where the application's memory is gone."""
    opcode = load8(slot + SQ_OPCODE)
    flags = load8(slot + SQ_FLAGS)
    last = offset + part == load32(slot + SQ_LENGTH)
    at = put_extension(connection, slot, address)
    if offset == 0 and (opcode == WR_RDMA_WRITE or opcode == WR_RDMA_WRITE_WITH_IMM):
        put_reth(at, load64(slot + SQ_REMOTE_ADDRESS), load32(slot + SQ_RKEY), load32(slot + SQ_LENGTH))
        at += RETH_LENGTH
    if last and (opcode == WR_SEND_WITH_IMM or opcode == WR_RDMA_WRITE_WITH_IMM):
        put_imm(at, load32(slot + SQ_IMM))
        at += 4
    elif last and opcode == WR_SEND_WITH_INV:
        put_ieth(at, load32(slot + SQ_IMM))
        at += 4
    if flags & SEND_INLINE:
        copy(at, slot + SQ_SGES + offset, part)
    elif not connection.gather(slot + SQ_SGES, load16(slot + SQ_NUM_SGE), offset, part, at):
        return 0
    pad = -part & 3
    if pad:
        fill(at + part, 0, pad)
    solicited = last and flags & SEND_SOLICITED != 0
    code = connection.transport | request_opcode(opcode, offset == 0, last)
    put_bth(address, code, solicited, pad, connection.pkey, connection.dest_qp_num, ask, psn)
    return at + part + pad - address


def put_extension(connection: Connection, slot: int, address: int) -> int:
    """Writes the XRCETH that each request of XRC has behind its BTH; where the next header goes."""
    at = address + BTH_LENGTH
    if connection.transport != XRC:
        return at
    put_xrceth(at, load32(slot + SQ_DESTINATION))
    return at + XRCETH_LENGTH


def write_datagram(
    connection: Connection, slot: int, address: int, psn: int, source_qpn: int, destination: int, qkey: int
) -> int:
    """A datagram: a whole message; 0 where the application's memory is gone.

    :param source_qpn: number of the sending QP
    :param destination: number of the QP that it is for
    :param qkey: the Q_Key that it shows
    """
    opcode = load8(slot + SQ_OPCODE)
    flags = load8(slot + SQ_FLAGS)
    length = load32(slot + SQ_LENGTH)
    put_deth(address + BTH_LENGTH, qkey, source_qpn)
    at = address + BTH_LENGTH + DETH_LENGTH
    code = UD_SEND_ONLY
    if opcode == WR_SEND_WITH_IMM:
        put_imm(at, load32(slot + SQ_IMM))
        at += 4
        code = UD_SEND_ONLY_WITH_IMMEDIATE
    if flags & SEND_INLINE:
        copy(at, slot + SQ_SGES, length)
    elif not connection.gather(slot + SQ_SGES, load16(slot + SQ_NUM_SGE), 0, length, at):
        return 0
    pad = -length & 3
    if pad:
        fill(at + length, 0, pad)
    put_bth(address, code, flags & SEND_SOLICITED != 0, pad, connection.pkey, destination, 0, psn)
    return at + length + pad - address


def write_read_request(connection: Connection, slot: int, address: int, psn: int, skip: int) -> int:
    """A READ request for what is left after ``skip`` bytes."""
    at = put_extension(connection, slot, address)
    code = connection.transport | RC_RDMA_READ_REQUEST
    put_bth(address, code, 0, 0, connection.pkey, connection.dest_qp_num, 1, psn)
    va = load64(slot + SQ_REMOTE_ADDRESS) + skip
    put_reth(at, va, load32(slot + SQ_RKEY), load32(slot + SQ_LENGTH) - skip)
    return at + RETH_LENGTH - address


def write_atomic_request(connection: Connection, slot: int, address: int, psn: int) -> int:
    """CMP_AND_SWP or FETCH_AND_ADD."""
    at = put_extension(connection, slot, address)
    va = load64(slot + SQ_REMOTE_ADDRESS)
    rkey = load32(slot + SQ_RKEY)
    operand = load64(slot + SQ_COMPARE_ADD)
    if load8(slot + SQ_OPCODE) == WR_ATOMIC_CMP_AND_SWP:
        code = connection.transport | RC_COMPARE_SWAP
        put_atomic_eth(at, va, rkey, load64(slot + SQ_SWAP), operand)
    else:
        code = connection.transport | RC_FETCH_ADD
        put_atomic_eth(at, va, rkey, operand, 0)
    put_bth(address, code, 0, 0, connection.pkey, connection.dest_qp_num, 1, psn)
    return at + ATOMIC_ETH_LENGTH - address


def write_flush_request(connection: Connection, slot: int, address: int, psn: int) -> int:
    """FLUSH (annex A19)."""
    put_bth(address, RC_FLUSH, 0, 0, connection.pkey, connection.dest_qp_num, 1, psn)
    put_feth(address + BTH_LENGTH, load32(slot + SQ_SWAP))
    at = address + BTH_LENGTH + FETH_LENGTH
    put_reth(at, load64(slot + SQ_REMOTE_ADDRESS), load32(slot + SQ_RKEY), load32(slot + SQ_COMPARE_ADD))
    return at + RETH_LENGTH - address


def write_atomic_write(connection: Connection, slot: int, address: int, psn: int) -> int:
    """ATOMIC_WRITE: 8 bytes (annex A19); 0 where the application's memory is gone."""
    put_bth(address, RC_ATOMIC_WRITE, 0, 0, connection.pkey, connection.dest_qp_num, 1, psn)
    at = address + BTH_LENGTH
    put_reth(at, load64(slot + SQ_REMOTE_ADDRESS), load32(slot + SQ_RKEY), ATOMIC_SIZE)
    at += RETH_LENGTH
    if load8(slot + SQ_FLAGS) & SEND_INLINE:
        copy(at, slot + SQ_SGES, ATOMIC_SIZE)
    elif not connection.gather(slot + SQ_SGES, load16(slot + SQ_NUM_SGE), 0, ATOMIC_SIZE, at):
        return 0
    return at + ATOMIC_SIZE - address


def write_read_response(
    connection: Connection,
    address: int,
    psn: int,
    syndrome: int,
    msn: int,
    source: int,
    part: int,
    first: bool,
    last: bool,
) -> int:
    """A READ response with ``part`` bytes from the address ``source``."""
    at = address + BTH_LENGTH
    if first or last:
        put_aeth(at, syndrome, msn)
        at += AETH_LENGTH
    if part > 0:
        copy(at, source, part)
    pad = -part & 3
    if pad:
        fill(at + part, 0, pad)
    code = connection.transport | response_opcode(first, last)
    put_bth(address, code, 0, pad, connection.pkey, connection.dest_qp_num, 0, psn)
    return at + part + pad - address


def write_atomic_answer(connection: Connection, address: int, psn: int, syndrome: int, msn: int, original: int) -> int:
    """The answer to an atomic: the value before."""
    code = connection.transport | RC_ATOMIC_ACKNOWLEDGE
    put_bth(address, code, 0, 0, connection.pkey, connection.dest_qp_num, 0, psn)
    put_aeth(address + BTH_LENGTH, syndrome, msn)
    put_atomic_ack(address + BTH_LENGTH + AETH_LENGTH, original)
    return BTH_LENGTH + AETH_LENGTH + ATOMIC_ACK_LENGTH


def write_acknowledge(connection: Connection, address: int, psn: int, syndrome: int, msn: int) -> int:
    """An ACK or a NAK."""
    code = connection.transport | RC_ACKNOWLEDGE
    put_bth(address, code, 0, 0, connection.pkey, connection.dest_qp_num, 0, psn)
    put_aeth(address + BTH_LENGTH, syndrome, msn)
    return BTH_LENGTH + AETH_LENGTH


def write_words(connection: Connection, address: int, psn: int, reason: str) -> int:
    """Why the NAK of ``psn`` follows, in words: a packet of our own, which other devices drop unread."""
    words = reason.encode()[:MAX_WORDS]
    words += b" " * (-len(words) & 3)
    put_bth(address, EXPLAIN, 0, 0, connection.pkey, connection.dest_qp_num, 0, psn)
    view(address + BTH_LENGTH, len(words))[:] = words
    return BTH_LENGTH + len(words)


def request_opcode(opcode: int, first: bool, last: bool) -> int:
    """The BTH opcode of a packet of a SEND or WRITE."""
    if opcode == WR_RDMA_WRITE or opcode == WR_RDMA_WRITE_WITH_IMM:
        if not last:
            return RC_RDMA_WRITE_FIRST if first else RC_RDMA_WRITE_MIDDLE
        if opcode == WR_RDMA_WRITE:
            return RC_RDMA_WRITE_ONLY if first else RC_RDMA_WRITE_LAST
        return RC_RDMA_WRITE_ONLY_WITH_IMMEDIATE if first else RC_RDMA_WRITE_LAST_WITH_IMMEDIATE
    if not last:
        return RC_SEND_FIRST if first else RC_SEND_MIDDLE
    if opcode == WR_SEND_WITH_IMM:
        return RC_SEND_ONLY_WITH_IMMEDIATE if first else RC_SEND_LAST_WITH_IMMEDIATE
    if opcode == WR_SEND_WITH_INV:
        return RC_SEND_ONLY_WITH_INVALIDATE if first else RC_SEND_LAST_WITH_INVALIDATE
    return RC_SEND_ONLY if first else RC_SEND_LAST


def response_opcode(first: bool, last: bool) -> int:
    """The BTH opcode of a READ response."""
    if first:
        return RC_RDMA_READ_RESPONSE_ONLY if last else RC_RDMA_READ_RESPONSE_FIRST
    return RC_RDMA_READ_RESPONSE_LAST if last else RC_RDMA_READ_RESPONSE_MIDDLE
