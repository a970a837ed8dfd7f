# SPDX-License-Identifier: MIT
"""The opcode table (IBA 9.2, table 38): what each BTH opcode means and which headers follow the BTH.

``_TABLE`` is the only place that says so; the look-ups below are made from it once, at import. The three high bits
of an opcode are the transport (RC 000, UC 001, UD 011, XRC 101), the five low ones the operation. XRC has the
operations of RC up to the SENDs with invalidate, its requests with an XRCETH (annex A14).

Compiled, the constants are C integers that Python does not see: ``NAMES`` and ``FLAG_NAMES`` hold them by name.
"""

KNOWN = 1 << 0  # in this table at all
REQUEST = 1 << 1  # from the requester of a QP to the responder of the other
RESPONSE = 1 << 2  # from a responder back to the requester
SEND = 1 << 3  # takes a receive from the queue
WRITE = 1 << 4  # RDMA write
READ = 1 << 5  # RDMA read, request or response
ATOMIC = 1 << 6  # compare-swap or fetch-add, request or response
ACK = 1 << 7  # is an acknowledgement and nothing else (read responses acknowledge too, without this bit)
FIRST = 1 << 8  # first packet of several
MIDDLE = 1 << 9  # neither first nor last
LAST = 1 << 10  # last packet of several
ONLY = 1 << 11  # the only packet of its message
PAYLOAD = 1 << 12  # may carry payload
# Extended headers that follow the BTH, in the order of _HEADERS.
RETH = 1 << 13
AETH = 1 << 14
IMM = 1 << 15
IETH = 1 << 16
ATOMIC_ETH = 1 << 17
ATOMIC_ACK_ETH = 1 << 18
DETH = 1 << 19
FETH = 1 << 20
XRCETH = 1 << 21

RC_SEND_FIRST = 0x00
RC_SEND_MIDDLE = 0x01
RC_SEND_LAST = 0x02
RC_SEND_LAST_WITH_IMMEDIATE = 0x03
RC_SEND_ONLY = 0x04
RC_SEND_ONLY_WITH_IMMEDIATE = 0x05
RC_RDMA_WRITE_FIRST = 0x06
RC_RDMA_WRITE_MIDDLE = 0x07
RC_RDMA_WRITE_LAST = 0x08
RC_RDMA_WRITE_LAST_WITH_IMMEDIATE = 0x09
RC_RDMA_WRITE_ONLY = 0x0A
RC_RDMA_WRITE_ONLY_WITH_IMMEDIATE = 0x0B
RC_RDMA_READ_REQUEST = 0x0C
RC_RDMA_READ_RESPONSE_FIRST = 0x0D
RC_RDMA_READ_RESPONSE_MIDDLE = 0x0E
RC_RDMA_READ_RESPONSE_LAST = 0x0F
RC_RDMA_READ_RESPONSE_ONLY = 0x10
RC_ACKNOWLEDGE = 0x11
RC_ATOMIC_ACKNOWLEDGE = 0x12
RC_COMPARE_SWAP = 0x13
RC_FETCH_ADD = 0x14
RC_SEND_LAST_WITH_INVALIDATE = 0x16
RC_SEND_ONLY_WITH_INVALIDATE = 0x17
RC_FLUSH = 0x1C
RC_ATOMIC_WRITE = 0x1D
UC_SEND_FIRST = 0x20
UC_SEND_MIDDLE = 0x21
UC_SEND_LAST = 0x22
UC_SEND_LAST_WITH_IMMEDIATE = 0x23
UC_SEND_ONLY = 0x24
UC_SEND_ONLY_WITH_IMMEDIATE = 0x25
UC_RDMA_WRITE_FIRST = 0x26
UC_RDMA_WRITE_MIDDLE = 0x27
UC_RDMA_WRITE_LAST = 0x28
UC_RDMA_WRITE_LAST_WITH_IMMEDIATE = 0x29
UC_RDMA_WRITE_ONLY = 0x2A
UC_RDMA_WRITE_ONLY_WITH_IMMEDIATE = 0x2B
UD_SEND_ONLY = 0x64
UD_SEND_ONLY_WITH_IMMEDIATE = 0x65
# Congestion notification packet (RoCEv2, annex A17.9.3). Its 16 reserved bytes count as payload.
CNP = 0x81
# Of the manufacturer's range 0xC0 to 0xFF, ours: words (UTF-8) about the NAK that went before. Others drop it.
EXPLAIN = 0xC0

BTH_LENGTH = 12
# Transports: what is added to the opcode of an operation.
RC = 0x00
UC = 0x20
UD = 0x60
XRC = 0xA0
TRANSPORT_BITS = 0xE0

FLAG_NAMES: dict[str, int] = {
    "KNOWN": KNOWN,
    "REQUEST": REQUEST,
    "RESPONSE": RESPONSE,
    "SEND": SEND,
    "WRITE": WRITE,
    "READ": READ,
    "ATOMIC": ATOMIC,
    "ACK": ACK,
    "FIRST": FIRST,
    "MIDDLE": MIDDLE,
    "LAST": LAST,
    "ONLY": ONLY,
    "PAYLOAD": PAYLOAD,
    "RETH": RETH,
    "AETH": AETH,
    "IMM": IMM,
    "IETH": IETH,
    "ATOMIC_ETH": ATOMIC_ETH,
    "ATOMIC_ACK_ETH": ATOMIC_ACK_ETH,
    "DETH": DETH,
    "FETH": FETH,
    "XRCETH": XRCETH,
}

# (opcode, name, flags). ATOMIC_WRITE has no WRITE bit: it is answered with a read response, as no plain write is.
_TABLE: tuple[tuple[int, str, int], ...] = (
    (RC_SEND_FIRST, "RC_SEND_FIRST", REQUEST | SEND | FIRST | PAYLOAD),
    (RC_SEND_MIDDLE, "RC_SEND_MIDDLE", REQUEST | SEND | MIDDLE | PAYLOAD),
    (RC_SEND_LAST, "RC_SEND_LAST", REQUEST | SEND | LAST | PAYLOAD),
    (RC_SEND_LAST_WITH_IMMEDIATE, "RC_SEND_LAST_WITH_IMMEDIATE", REQUEST | SEND | LAST | IMM | PAYLOAD),
    (RC_SEND_ONLY, "RC_SEND_ONLY", REQUEST | SEND | ONLY | PAYLOAD),
    (RC_SEND_ONLY_WITH_IMMEDIATE, "RC_SEND_ONLY_WITH_IMMEDIATE", REQUEST | SEND | ONLY | IMM | PAYLOAD),
    (RC_RDMA_WRITE_FIRST, "RC_RDMA_WRITE_FIRST", REQUEST | WRITE | FIRST | RETH | PAYLOAD),
    (RC_RDMA_WRITE_MIDDLE, "RC_RDMA_WRITE_MIDDLE", REQUEST | WRITE | MIDDLE | PAYLOAD),
    (RC_RDMA_WRITE_LAST, "RC_RDMA_WRITE_LAST", REQUEST | WRITE | LAST | PAYLOAD),
    (RC_RDMA_WRITE_LAST_WITH_IMMEDIATE, "RC_RDMA_WRITE_LAST_WITH_IMMEDIATE", REQUEST | WRITE | LAST | IMM | PAYLOAD),
    (RC_RDMA_WRITE_ONLY, "RC_RDMA_WRITE_ONLY", REQUEST | WRITE | ONLY | RETH | PAYLOAD),
    (
        RC_RDMA_WRITE_ONLY_WITH_IMMEDIATE,
        "RC_RDMA_WRITE_ONLY_WITH_IMMEDIATE",
        REQUEST | WRITE | ONLY | RETH | IMM | PAYLOAD,
    ),
    (RC_RDMA_READ_REQUEST, "RC_RDMA_READ_REQUEST", REQUEST | READ | ONLY | RETH),
    (RC_RDMA_READ_RESPONSE_FIRST, "RC_RDMA_READ_RESPONSE_FIRST", RESPONSE | READ | FIRST | AETH | PAYLOAD),
    (RC_RDMA_READ_RESPONSE_MIDDLE, "RC_RDMA_READ_RESPONSE_MIDDLE", RESPONSE | READ | MIDDLE | PAYLOAD),
    (RC_RDMA_READ_RESPONSE_LAST, "RC_RDMA_READ_RESPONSE_LAST", RESPONSE | READ | LAST | AETH | PAYLOAD),
    (RC_RDMA_READ_RESPONSE_ONLY, "RC_RDMA_READ_RESPONSE_ONLY", RESPONSE | READ | ONLY | AETH | PAYLOAD),
    (RC_ACKNOWLEDGE, "RC_ACKNOWLEDGE", RESPONSE | ACK | ONLY | AETH),
    (RC_ATOMIC_ACKNOWLEDGE, "RC_ATOMIC_ACKNOWLEDGE", RESPONSE | ACK | ATOMIC | ONLY | AETH | ATOMIC_ACK_ETH),
    (RC_COMPARE_SWAP, "RC_COMPARE_SWAP", REQUEST | ATOMIC | ONLY | ATOMIC_ETH),
    (RC_FETCH_ADD, "RC_FETCH_ADD", REQUEST | ATOMIC | ONLY | ATOMIC_ETH),
    (RC_SEND_LAST_WITH_INVALIDATE, "RC_SEND_LAST_WITH_INVALIDATE", REQUEST | SEND | LAST | IETH | PAYLOAD),
    (RC_SEND_ONLY_WITH_INVALIDATE, "RC_SEND_ONLY_WITH_INVALIDATE", REQUEST | SEND | ONLY | IETH | PAYLOAD),
    (RC_FLUSH, "RC_FLUSH", REQUEST | ONLY | FETH | RETH),
    (RC_ATOMIC_WRITE, "RC_ATOMIC_WRITE", REQUEST | ONLY | RETH | PAYLOAD),
    (UC_SEND_FIRST, "UC_SEND_FIRST", REQUEST | SEND | FIRST | PAYLOAD),
    (UC_SEND_MIDDLE, "UC_SEND_MIDDLE", REQUEST | SEND | MIDDLE | PAYLOAD),
    (UC_SEND_LAST, "UC_SEND_LAST", REQUEST | SEND | LAST | PAYLOAD),
    (UC_SEND_LAST_WITH_IMMEDIATE, "UC_SEND_LAST_WITH_IMMEDIATE", REQUEST | SEND | LAST | IMM | PAYLOAD),
    (UC_SEND_ONLY, "UC_SEND_ONLY", REQUEST | SEND | ONLY | PAYLOAD),
    (UC_SEND_ONLY_WITH_IMMEDIATE, "UC_SEND_ONLY_WITH_IMMEDIATE", REQUEST | SEND | ONLY | IMM | PAYLOAD),
    (UC_RDMA_WRITE_FIRST, "UC_RDMA_WRITE_FIRST", REQUEST | WRITE | FIRST | RETH | PAYLOAD),
    (UC_RDMA_WRITE_MIDDLE, "UC_RDMA_WRITE_MIDDLE", REQUEST | WRITE | MIDDLE | PAYLOAD),
    (UC_RDMA_WRITE_LAST, "UC_RDMA_WRITE_LAST", REQUEST | WRITE | LAST | PAYLOAD),
    (UC_RDMA_WRITE_LAST_WITH_IMMEDIATE, "UC_RDMA_WRITE_LAST_WITH_IMMEDIATE", REQUEST | WRITE | LAST | IMM | PAYLOAD),
    (UC_RDMA_WRITE_ONLY, "UC_RDMA_WRITE_ONLY", REQUEST | WRITE | ONLY | RETH | PAYLOAD),
    (
        UC_RDMA_WRITE_ONLY_WITH_IMMEDIATE,
        "UC_RDMA_WRITE_ONLY_WITH_IMMEDIATE",
        REQUEST | WRITE | ONLY | RETH | IMM | PAYLOAD,
    ),
    (UD_SEND_ONLY, "UD_SEND_ONLY", REQUEST | SEND | ONLY | DETH | PAYLOAD),
    (UD_SEND_ONLY_WITH_IMMEDIATE, "UD_SEND_ONLY_WITH_IMMEDIATE", REQUEST | SEND | ONLY | DETH | IMM | PAYLOAD),
    (CNP, "CNP", PAYLOAD),
    (EXPLAIN, "EXPLAIN", RESPONSE | ONLY | PAYLOAD),
)

# Extended headers in the order in which they follow the BTH, and their lengths in bytes.
_HEADERS: tuple[tuple[int, int], ...] = (
    (DETH, 8),
    (XRCETH, 4),
    (FETH, 4),
    (RETH, 16),
    (AETH, 4),
    (ATOMIC_ETH, 28),
    (ATOMIC_ACK_ETH, 8),
    (IMM, 4),
    (IETH, 4),
)

NAMES: dict[str, int] = {}

_names: list[str] = [f"0x{opcode:02X}" for opcode in range(256)]
_flags = [0] * 256
_lengths = [BTH_LENGTH] * 256


def _fill() -> None:
    for opcode, label, bits in _TABLE:
        _enter(opcode, label, bits | KNOWN)
        if opcode <= RC_SEND_ONLY_WITH_INVALIDATE:
            _enter(opcode | XRC, f"X{label}", bits | KNOWN | (XRCETH if bits & REQUEST else 0))


def _enter(opcode: int, label: str, bits: int) -> None:
    NAMES[label] = opcode
    _names[opcode] = label
    _flags[opcode] = bits
    _lengths[opcode] = BTH_LENGTH + sum(length for header, length in _HEADERS if bits & header)


_fill()


def flags(opcode: int) -> int:
    """The flag bits of ``opcode`` (0 to 255); 0 if the device does not know it."""
    return _flags[opcode]


def header_length(opcode: int) -> int:
    """Bytes of the BTH and the extended headers of ``opcode`` (0 to 255); of the BTH alone if it is unknown."""
    return _lengths[opcode]


def name(opcode: int) -> str:
    """The name of ``opcode`` (0 to 255) for people; its number in hexadecimal if it is unknown."""
    return _names[opcode]
