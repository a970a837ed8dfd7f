# SPDX-License-Identifier: MIT
"""What identifiers tell their owners: events, and what the two sides of a connection tell each other."""

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from softverbs.core.transport.address import AddressVector

if TYPE_CHECKING:
    from softverbs.cm.identity import Identity

#: "As much as the device can", RDMA_MAX_RESP_RES and RDMA_MAX_INIT_DEPTH.
MOST = 0xFF


class Kind(Enum):
    """What an event is about; the values are those of ``enum rdma_cm_event_type``."""

    ADDR_RESOLVED = 0
    ADDR_ERROR = 1
    ROUTE_RESOLVED = 2
    ROUTE_ERROR = 3
    CONNECT_REQUEST = 4
    CONNECT_RESPONSE = 5
    CONNECT_ERROR = 6
    UNREACHABLE = 7
    REJECTED = 8
    ESTABLISHED = 9
    DISCONNECTED = 10
    DEVICE_REMOVAL = 11
    MULTICAST_JOIN = 12
    MULTICAST_ERROR = 13
    ADDR_CHANGE = 14
    TIMEWAIT_EXIT = 15
    ADDRINFO_RESOLVED = 16
    ADDRINFO_ERROR = 17


@dataclass
class Param:
    """What the two sides tell each other of a connection, ``struct rdma_conn_param``."""

    private_data: bytes = b""
    responder_resources: int = MOST
    initiator_depth: int = MOST
    flow_control: int = 0
    retry_count: int = 7
    rnr_retry_count: int = 7
    srq: int = 0
    qp_num: int = 0


@dataclass
class Event:
    """Something that has happened to an identifier, ``struct rdma_cm_event``."""

    kind: Kind
    identity: "Identity"
    #: 0, a reason of REJ or SIDR_REP, or a negative errno
    status: int = 0
    #: of CONNECT_REQUEST: who listened
    listener: "Identity | None" = None
    private_data: bytes = b""
    param: Param | None = None
    #: of datagrams: where the peer is, and its keys
    vector: AddressVector | None = None
    qp_num: int = 0
    qkey: int = 0


@dataclass
class Membership:
    """A multicast group that was joined."""

    gid: bytes
    #: whether only sends go there (RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER)
    send_only: bool = False
    #: whether a queue pair was attached
    attached: bool = False
