# SPDX-License-Identifier: MIT
"""The transport headers: BTH, RETH, AETH, DETH, XRCETH, FETH, AtomicETH, AtomicAckETH, ImmDt and IETH (IBA 9.2 to 9.6).

Every function takes the address of the first byte of its header. ``put_`` functions write all bytes of it, readers
read one field. All fields are in network order, but for immediate data: see ``put_imm``.

=============  ==========================================================================================
BTH, 12        opcode 8, SE 1, MigReq 1, pad 2, TVer 4, P_Key 16 | reserved 8, QPN 24 | AckReq 1, reserved 7, PSN 24
RETH, 16       virtual address 64, R_Key 32, length 32
AETH, 4        syndrome 8, MSN 24
DETH, 8        Q_Key 32 | reserved 8, source QPN 24
XRCETH, 4      reserved 8, number of the SRQ 24 (annex A14)
FETH, 4        reserved 26, selectivity level 2, placement type 4 (annex A19)
AtomicETH, 28  virtual address 64, R_Key 32, swap or add 64, compare 64
AtomicAck, 8   the value that was there 64
=============  ==========================================================================================
"""

try:
    import cython
except ImportError:
    from softverbs import _cython as cython

if not cython.compiled:
    from softverbs.core.memory.raw import load8, load16be, load32, load32be, load64be, store32, store32be, store64be

# AETH syndromes (IBA 9.7.5.1.1, table 43): two bits of kind, five of value.
AETH_ACK = 0x00
AETH_RNR = 0x20
AETH_NAK = 0x60
AETH_KIND = 0x60
AETH_VALUE = 0x1F
AETH_NO_CREDITS = 0x1F  # in an ACK: end-to-end credits are not in use
NAK_PSN_SEQUENCE = 0x60
NAK_INVALID_REQUEST = 0x61
NAK_REMOTE_ACCESS = 0x62
NAK_REMOTE_OPERATION = 0x63
NAK_INVALID_RD = 0x64

# RNR NAK timer codes 0 to 31 in units of 10 microseconds (IBA table 45).
_rnr_timers = [
    65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192,
    256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
]  # fmt: skip


def put_bth(
    address: int, opcode: int, solicited: int, pad: int, pkey: int, dest_qpn: int, ack_request: int, psn: int
) -> None:
    """Writes a BTH. ``solicited`` and ``ack_request`` are 0 or 1, ``pad`` is 0 to 3.

    MigReq is 1: without path migration a QP is in the state Migrated for good (IBA 17.2.8). Linux rxe sends 0 and
    does not look at it; there are NICs that take 0 as a request to migrate and become slow.
    """
    first = opcode << 24 | solicited << 23 | 1 << 22 | pad << 20 | pkey
    store64be(address, first << 32 | dest_qpn)
    store32be(address + 8, ack_request << 31 | psn)


def bth_opcode(address: int) -> int:
    """The opcode."""
    return load8(address)


def bth_solicited(address: int) -> int:
    """1 if the receiver is asked for an event, else 0."""
    return load8(address + 1) >> 7


def bth_pad(address: int) -> int:
    """How many bytes, 0 to 3, fill the payload up to a multiple of 4."""
    return load8(address + 1) >> 4 & 3


def bth_version(address: int) -> int:
    """The version of the transport headers; all are 0."""
    return load8(address + 1) & 15


def bth_pkey(address: int) -> int:
    """The partition key."""
    return load16be(address + 2)


def bth_dest_qpn(address: int) -> int:
    """The number of the QP that it is for."""
    return load32be(address + 4) & 0xFFFFFF


def bth_ack_request(address: int) -> int:
    """1 if an acknowledgement is asked for, else 0."""
    return load8(address + 8) >> 7


def bth_psn(address: int) -> int:
    """The packet sequence number."""
    return load32be(address + 8) & 0xFFFFFF


def put_reth(address: int, va: int, rkey: int, length: int) -> None:
    """Writes a RETH; ``length`` is the whole message's, in bytes."""
    store64be(address, va)
    store32be(address + 8, rkey)
    store32be(address + 12, length)


def reth_va(address: int) -> int:
    """The virtual address at the responder."""
    return load64be(address)


def reth_rkey(address: int) -> int:
    """The remote key."""
    return load32be(address + 8)


def reth_length(address: int) -> int:
    """The length of the whole message, bytes."""
    return load32be(address + 12)


def put_aeth(address: int, syndrome: int, msn: int) -> None:
    """Writes an AETH: a syndrome (see the constants) and the 24-bit message sequence number."""
    store32be(address, syndrome << 24 | msn)


def aeth_syndrome(address: int) -> int:
    """The syndrome: kind in ``AETH_KIND``, value in ``AETH_VALUE``."""
    return load8(address)


def aeth_msn(address: int) -> int:
    """The message sequence number: how many messages the responder has completed."""
    return load32be(address) & 0xFFFFFF


def put_deth(address: int, qkey: int, src_qpn: int) -> None:
    """Writes a DETH."""
    store32be(address, qkey)
    store32be(address + 4, src_qpn)


def deth_qkey(address: int) -> int:
    """The queue key."""
    return load32be(address)


def deth_src_qpn(address: int) -> int:
    """The number of the QP that sent it."""
    return load32be(address + 4) & 0xFFFFFF


def put_xrceth(address: int, srqn: int) -> None:
    """Writes an XRCETH."""
    store32be(address, srqn)


def xrceth_srqn(address: int) -> int:
    """The number of the XRC SRQ."""
    return load32be(address) & 0xFFFFFF


def put_feth(address: int, level_and_type: int) -> None:
    """Writes a FETH: placement type (4 bits), selectivity level << 4 (2 bits)."""
    store32be(address, level_and_type)


def feth_type(address: int) -> int:
    """The placement type: 1 for global visibility, 2 for persistence."""
    return load32be(address) & 15


def feth_level(address: int) -> int:
    """The selectivity level: 0 for a range, 1 for a whole memory region."""
    return load32be(address) >> 4 & 3


def put_atomic_eth(address: int, va: int, rkey: int, swap_add: int, compare: int) -> None:
    """Writes an AtomicETH; ``swap_add`` is what to put there or what to add, ``compare`` is 0 for an addition."""
    store64be(address, va)
    store32be(address + 8, rkey)
    store64be(address + 12, swap_add)
    store64be(address + 20, compare)


def atomic_va(address: int) -> int:
    """The virtual address at the responder."""
    return load64be(address)


def atomic_rkey(address: int) -> int:
    """The remote key."""
    return load32be(address + 8)


def atomic_swap_add(address: int) -> int:
    """What to put there, or what to add."""
    return load64be(address + 12)


def atomic_compare(address: int) -> int:
    """What must be there for the swap."""
    return load64be(address + 20)


def put_atomic_ack(address: int, original: int) -> None:
    """Writes an AtomicAckETH: the value that was there before the operation."""
    store64be(address, original)


def atomic_ack_original(address: int) -> int:
    """The value that was there before the operation."""
    return load64be(address)


def put_imm(address: int, value: int) -> None:
    """Writes immediate data: the four bytes of a host-order integer.

    The application has put it in network order already, since ``imm_data`` is a ``__be32`` (ibv_post_send(3)).
    """
    store32(address, value)


def imm(address: int) -> int:
    """Immediate data, as ``ibv_wc`` has it: network order in a host-order integer."""
    return load32(address)


def put_ieth(address: int, rkey: int) -> None:
    """Writes an IETH: the key that the responder invalidates."""
    store32be(address, rkey)


def ieth_rkey(address: int) -> int:
    """The key to invalidate."""
    return load32be(address)


def rnr_timer_ns(code: int) -> int:
    """The delay in nanoseconds that an RNR NAK's timer code stands for; of ``code``, the five low bits count."""
    return _rnr_timers[code & 31] * 10000
