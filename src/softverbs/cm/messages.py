# SPDX-License-Identifier: MIT
"""The messages of the connection manager: management datagrams (MADs) of 256 bytes, IBA 12.6 and 13.4.

Each message is a class whose layout is a table: name of a field -> first bit and number of bits, counted from the
first byte behind the MAD header. ``decode`` believes nothing: what it cannot vouch for raises BadMad, which says in one
word what was wrong, for the counters.
"""

import struct
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeAlias

MAD_SIZE = 256
HEADER_SIZE = 24
BODY_SIZE = MAD_SIZE - HEADER_SIZE

# The header (IBA 13.4.2) as the connection manager fills it (IBA 16.7.1).
BASE_VERSION = 1
CLASS_CM = 0x07
CLASS_VERSION = 2
METHOD_SEND = 0x03
_HEADER = struct.Struct(">BBBBHHQHHI")

# Reasons of a REJ, IBA 12.6.7.2, table 108.
REJ_NO_RESOURCES = 3
REJ_TIMEOUT = 4
REJ_UNSUPPORTED = 5
REJ_INVALID_COMM_ID = 6
REJ_INVALID_SERVICE_ID = 8
REJ_INVALID_TRANSPORT = 9
REJ_STALE_CONN = 10
REJ_INVALID_MTU = 26
REJ_CONSUMER = 28

# What a REJ or an MRA is about.
ABOUT_REQ = 0
ABOUT_REP = 1
ABOUT_OTHER = 2

# Status of a SIDR_REP, IBA 12.11.2.2.
SIDR_SUCCESS = 0
SIDR_UNSUPPORTED = 1
SIDR_REJECT = 2
SIDR_NO_QP = 3

TRANSPORT_RC = 0
TRANSPORT_UC = 1
#: enum ibv_mtu of the largest path MTU, 4096 bytes
MTU_MAX = 5
#: A bit string of this name is the private data; it is bytes.
PRIVATE = "private_data"
#: Name of a field -> where it begins, how long it is.
Table: TypeAlias = dict[str, tuple[int, int]]


class BadMad(Exception):
    """A datagram that is no message of the connection manager; ``cause`` is one word for the counters."""

    def __init__(self, cause: str, reason: str) -> None:
        """
        :param cause: one word
        :param reason: what is wrong, in words
        """
        super().__init__(reason)
        self.cause = cause


@dataclass
class Message:
    """What all messages have in common. Fields hold what is on the wire; GIDs and private data are bytes."""

    ATTRIBUTE: ClassVar[int] = 0
    #: Field -> first bit, bits.
    LAYOUT: ClassVar[Table] = {}
    #: Fields that are bytes -> first byte, bytes.
    BYTES: ClassVar[Table] = {}

    #: Of the header: which exchange it belongs to.
    transaction_id: int = field(default=0, kw_only=True)
    #: Of the header: 0, but for the options of a vendor (the ECE of REQ and REP).
    attribute_modifier: int = field(default=0, kw_only=True)

    def encode(self) -> bytes:
        """The MAD, 256 bytes.

        :raises ValueError: a field does not fit its place
        """
        number = 0
        for name, (first, bits) in self.LAYOUT.items():
            value = getattr(self, name)
            if not 0 <= value < 1 << bits:
                raise ValueError(f"{type(self).__name__}.{name}={value}: {bits} bits")
            number |= value << BODY_SIZE * 8 - first - bits
        body = bytearray(number.to_bytes(BODY_SIZE, "big"))
        for name, (at, size) in self.BYTES.items():
            value = getattr(self, name)
            if len(value) > size:
                raise ValueError(f"{type(self).__name__}.{name} has {len(value)} bytes: {size} at most")
            body[at : at + len(value)] = value
        header = _HEADER.pack(
            BASE_VERSION, CLASS_CM, CLASS_VERSION, METHOD_SEND, 0, 0, self.transaction_id, self.ATTRIBUTE, 0,
            self.attribute_modifier,
        )  # fmt: skip
        return header + body

    def check(self) -> None:
        """Raises BadMad where fields have values that the specification does not know."""


@dataclass
class Req(Message):
    """REQ: asks for a connection (IBA 12.6.5)."""

    ATTRIBUTE = 0x0010
    LAYOUT: ClassVar[Table] = {
        "local_comm_id": (0, 32),
        "vendor_id": (40, 24),
        "service_id": (64, 64),
        "ca_guid": (128, 64),
        "qkey": (224, 32),
        "qpn": (256, 24),
        "responder_resources": (280, 8),
        "initiator_depth": (312, 8),
        "remote_response_timeout": (344, 5),
        "transport": (349, 2),
        "flow_control": (351, 1),
        "starting_psn": (352, 24),
        "local_response_timeout": (376, 5),
        "retry_count": (381, 3),
        "pkey": (384, 16),
        "path_mtu": (400, 4),
        "rnr_retry_count": (405, 3),
        "max_cm_retries": (408, 4),
        "srq": (412, 1),
        "extended_transport": (413, 3),
        "local_lid": (416, 16),
        "remote_lid": (432, 16),
        "flow_label": (704, 20),
        "packet_rate": (730, 6),
        "traffic_class": (736, 8),
        "hop_limit": (744, 8),
        "sl": (752, 4),
        "subnet_local": (756, 1),
        "ack_timeout": (760, 5),
    }
    BYTES: ClassVar[Table] = {
        "local_gid": (56, 16),
        "remote_gid": (72, 16),
        "alternate_local_gid": (100, 16),
        PRIVATE: (140, 92),
    }

    local_comm_id: int = 0
    vendor_id: int = 0
    service_id: int = 0
    ca_guid: int = 0
    qkey: int = 0
    qpn: int = 0
    responder_resources: int = 0
    initiator_depth: int = 0
    remote_response_timeout: int = 0
    transport: int = TRANSPORT_RC
    flow_control: int = 0
    starting_psn: int = 0
    local_response_timeout: int = 0
    retry_count: int = 0
    pkey: int = 0xFFFF
    path_mtu: int = MTU_MAX
    rnr_retry_count: int = 0
    max_cm_retries: int = 0
    srq: int = 0
    extended_transport: int = 0
    local_lid: int = 0xFFFF
    remote_lid: int = 0xFFFF
    flow_label: int = 0
    packet_rate: int = 0
    traffic_class: int = 0
    hop_limit: int = 64
    sl: int = 0
    subnet_local: int = 0
    ack_timeout: int = 0
    local_gid: bytes = bytes(16)
    remote_gid: bytes = bytes(16)
    alternate_local_gid: bytes = bytes(16)
    private_data: bytes = b""

    def check(self) -> None:
        """See Message."""
        if not self.local_comm_id:
            raise BadMad("value", "a REQ without a communication ID")
        if not self.qpn:
            raise BadMad("value", "a REQ from QP 0")
        if not 1 <= self.path_mtu <= MTU_MAX:
            raise BadMad("value", f"a REQ with the path MTU {self.path_mtu}")
        if self.pkey & 0x7FFF != 0x7FFF:
            raise BadMad("pkey", f"a REQ with the P_Key {self.pkey:#x}")


@dataclass
class Mra(Message):
    """MRA: the answer will take longer (IBA 12.6.6)."""

    ATTRIBUTE = 0x0011
    LAYOUT: ClassVar[Table] = {
        "local_comm_id": (0, 32),
        "remote_comm_id": (32, 32),
        "about": (64, 2),
        "service_timeout": (72, 5),
    }
    BYTES: ClassVar[Table] = {PRIVATE: (10, 222)}

    local_comm_id: int = 0
    remote_comm_id: int = 0
    about: int = ABOUT_REQ
    service_timeout: int = 0
    private_data: bytes = b""

    def check(self) -> None:
        """See Message."""
        if self.about > ABOUT_OTHER:
            raise BadMad("value", f"an MRA about message {self.about}")


@dataclass
class Rej(Message):
    """REJ: no (IBA 12.6.7)."""

    ATTRIBUTE = 0x0012
    LAYOUT: ClassVar[Table] = {
        "local_comm_id": (0, 32),
        "remote_comm_id": (32, 32),
        "about": (64, 2),
        "info_length": (72, 7),
        "reason": (80, 16),
    }
    BYTES: ClassVar[Table] = {"info": (12, 72), PRIVATE: (84, 148)}

    local_comm_id: int = 0
    remote_comm_id: int = 0
    about: int = ABOUT_REQ
    info_length: int = 0
    reason: int = REJ_CONSUMER
    info: bytes = b""
    private_data: bytes = b""

    def check(self) -> None:
        """See Message."""
        if self.about > ABOUT_OTHER or self.info_length > 72:
            raise BadMad("value", f"a REJ about message {self.about}, with {self.info_length} bytes more")


@dataclass
class Rep(Message):
    """REP: yes (IBA 12.6.8)."""

    ATTRIBUTE = 0x0013
    LAYOUT: ClassVar[Table] = {
        "local_comm_id": (0, 32),
        "remote_comm_id": (32, 32),
        "qkey": (64, 32),
        "qpn": (96, 24),
        "vendor_id_high": (120, 8),
        "vendor_id_middle": (152, 8),
        "starting_psn": (160, 24),
        "vendor_id_low": (184, 8),
        "responder_resources": (192, 8),
        "initiator_depth": (200, 8),
        "target_ack_delay": (208, 5),
        "failover": (213, 2),
        "flow_control": (215, 1),
        "rnr_retry_count": (216, 3),
        "srq": (219, 1),
        "ca_guid": (224, 64),
    }
    BYTES: ClassVar[Table] = {PRIVATE: (36, 196)}

    local_comm_id: int = 0
    remote_comm_id: int = 0
    qkey: int = 0
    qpn: int = 0
    vendor_id_high: int = 0
    vendor_id_middle: int = 0
    starting_psn: int = 0
    vendor_id_low: int = 0
    responder_resources: int = 0
    initiator_depth: int = 0
    target_ack_delay: int = 0
    failover: int = 0
    flow_control: int = 0
    rnr_retry_count: int = 0
    srq: int = 0
    ca_guid: int = 0
    private_data: bytes = b""

    @property
    def vendor_id(self) -> int:
        """Of the ECE: three bytes that lie apart."""
        return self.vendor_id_high << 16 | self.vendor_id_middle << 8 | self.vendor_id_low

    def set_vendor_id(self, vendor_id: int) -> None:
        """Spreads the vendor's number over its three places."""
        self.vendor_id_high, self.vendor_id_middle, self.vendor_id_low = (vendor_id & 0xFFFFFF).to_bytes(3, "big")

    def check(self) -> None:
        """See Message."""
        if not self.local_comm_id or not self.qpn:
            raise BadMad("value", "a REP without a communication ID or a QP")


@dataclass
class _Pair(Message):
    """A message that has two communication IDs and private data, and nothing else."""

    LAYOUT: ClassVar[Table] = {"local_comm_id": (0, 32), "remote_comm_id": (32, 32)}
    BYTES: ClassVar[Table] = {PRIVATE: (8, 224)}

    local_comm_id: int = 0
    remote_comm_id: int = 0
    private_data: bytes = b""


@dataclass
class Rtu(_Pair):
    """RTU: the side that asked is ready (IBA 12.6.9)."""

    ATTRIBUTE = 0x0014


@dataclass
class Dreq(Message):
    """DREQ: the connection ends (IBA 12.6.10)."""

    ATTRIBUTE = 0x0015
    LAYOUT: ClassVar[Table] = {"local_comm_id": (0, 32), "remote_comm_id": (32, 32), "remote_qpn": (64, 24)}
    BYTES: ClassVar[Table] = {PRIVATE: (12, 220)}

    local_comm_id: int = 0
    remote_comm_id: int = 0
    remote_qpn: int = 0
    private_data: bytes = b""


@dataclass
class Drep(_Pair):
    """DREP: it has ended (IBA 12.6.11)."""

    ATTRIBUTE = 0x0016


@dataclass
class SidrReq(Message):
    """SIDR_REQ: asks which queue pair serves datagrams of a service (IBA 12.11.1)."""

    ATTRIBUTE = 0x0017
    LAYOUT: ClassVar[Table] = {"request_id": (0, 32), "pkey": (32, 16), "service_id": (64, 64)}
    BYTES: ClassVar[Table] = {PRIVATE: (16, 216)}

    request_id: int = 0
    pkey: int = 0xFFFF
    service_id: int = 0
    private_data: bytes = b""

    def check(self) -> None:
        """See Message."""
        if self.pkey & 0x7FFF != 0x7FFF:
            raise BadMad("pkey", f"a SIDR_REQ with the P_Key {self.pkey:#x}")


@dataclass
class SidrRep(Message):
    """SIDR_REP: this one (IBA 12.11.2)."""

    ATTRIBUTE = 0x0018
    LAYOUT: ClassVar[Table] = {
        "request_id": (0, 32),
        "status": (32, 8),
        "info_length": (40, 8),
        "qpn": (64, 24),
        "service_id": (96, 64),
        "qkey": (160, 32),
    }
    BYTES: ClassVar[Table] = {"info": (24, 72), PRIVATE: (96, 136)}

    request_id: int = 0
    status: int = SIDR_SUCCESS
    info_length: int = 0
    qpn: int = 0
    service_id: int = 0
    qkey: int = 0
    info: bytes = b""
    private_data: bytes = b""

    def check(self) -> None:
        """See Message."""
        if self.info_length > 72 or (self.status == SIDR_SUCCESS and not self.qpn):
            raise BadMad("value", f"a SIDR_REP of status {self.status} with QP {self.qpn}")


_KINDS: dict[int, type[Message]] = {
    kind.ATTRIBUTE: kind for kind in (Req, Mra, Rej, Rep, Rtu, Dreq, Drep, SidrReq, SidrRep)
}


def decode(mad: bytes) -> Message:
    """The message that a MAD holds; its private data has the full length of its place.

    :param mad: 256 bytes
    :raises BadMad: it is none
    """
    if len(mad) != MAD_SIZE:
        raise BadMad("length", f"a MAD of {len(mad)} bytes")
    base, kind, version, method, _, _, transaction, attribute, _, modifier = _HEADER.unpack_from(mad)
    if (base, kind, version) != (BASE_VERSION, CLASS_CM, CLASS_VERSION):
        raise BadMad("class", f"base version {base}, class {kind:#x}, class version {version}")
    if method != METHOD_SEND:
        raise BadMad("method", f"method {method:#x}")
    found = _KINDS.get(attribute)
    if found is None:
        raise BadMad("attribute", f"attribute {attribute:#x}")
    number = int.from_bytes(mad[HEADER_SIZE:], "big")
    values: dict[str, Any] = {
        name: number >> BODY_SIZE * 8 - first - bits & (1 << bits) - 1 for name, (first, bits) in found.LAYOUT.items()
    }
    for name, (at, size) in found.BYTES.items():
        values[name] = mad[HEADER_SIZE + at : HEADER_SIZE + at + size]
    message = found(transaction_id=transaction, attribute_modifier=modifier, **values)
    message.check()
    return message


# -- the IP addresses that an IP service puts in front of its private data (annex A11.3)

IP_HEADER_SIZE = 36
_IP_HEADER = struct.Struct(">BBH16s16s")


@dataclass
class IpHeader:
    """Who asks, and whom: IP addresses and the port that the asking side is bound to."""

    #: 4 or 16 bytes
    source: bytes
    #: 4 or 16 bytes
    destination: bytes
    source_port: int = 0

    def encode(self) -> bytes:
        """36 bytes."""
        version = 4 if len(self.source) == 4 else 6
        return _IP_HEADER.pack(
            0, version << 4, self.source_port, self.source.rjust(16, b"\0"), self.destination.rjust(16, b"\0")
        )

    @classmethod
    def decode(cls, private: bytes) -> "IpHeader":
        """What the private data begins with.

        :raises BadMad: another version than 0.0, or addresses of another IP version than 4 and 6
        """
        if len(private) < IP_HEADER_SIZE:
            raise BadMad("length", f"private data of {len(private)} bytes")
        version, ip_version, port, source, destination = _IP_HEADER.unpack_from(private)
        if version != 0 or ip_version & 0x0F or ip_version >> 4 not in (4, 6):
            raise BadMad("value", f"IP CM header of version {version:#x}, IP version {ip_version:#x}")
        skip = 12 if ip_version >> 4 == 4 else 0
        return cls(source[skip:], destination[skip:], port)


def service_id_of(port_space: int, port: int) -> int:
    """The service ID of a port (annex A11.2): ``port_space`` is RDMA_PS_TCP, RDMA_PS_UDP, RDMA_PS_IPOIB or RDMA_PS_IB.

    :param port: 0 to 65535
    """
    return port_space << 16 | port


def service_of(service_id: int) -> tuple[int, int]:
    """The port space and the port of a service ID.

    :raises BadMad: it is none of an IP service
    """
    space, port = service_id >> 16, service_id & 0xFFFF
    if space not in (0x0106, 0x0111, 0x0002, 0x013F):
        raise BadMad("service", f"service ID {service_id:#x}")
    return space, port
