# SPDX-License-Identifier: MIT
"""Constants of the connection manager, as ``pyverbs.librdmacm_enums`` has them.

As in ``libibverbs_enums``, each name is a plain integer of this module, and each C enumeration is a class too.
"""

from typing import Any, Final

from softverbs.pyverbs.libibverbs_enums import _CEnum

RDMA_CM_EVENT_ADDR_RESOLVED: Final = 0
RDMA_CM_EVENT_ADDR_ERROR: Final = 1
RDMA_CM_EVENT_ROUTE_RESOLVED: Final = 2
RDMA_CM_EVENT_ROUTE_ERROR: Final = 3
RDMA_CM_EVENT_CONNECT_REQUEST: Final = 4
RDMA_CM_EVENT_CONNECT_RESPONSE: Final = 5
RDMA_CM_EVENT_CONNECT_ERROR: Final = 6
RDMA_CM_EVENT_UNREACHABLE: Final = 7
RDMA_CM_EVENT_REJECTED: Final = 8
RDMA_CM_EVENT_ESTABLISHED: Final = 9
RDMA_CM_EVENT_DISCONNECTED: Final = 10
RDMA_CM_EVENT_DEVICE_REMOVAL: Final = 11
RDMA_CM_EVENT_MULTICAST_JOIN: Final = 12
RDMA_CM_EVENT_MULTICAST_ERROR: Final = 13
RDMA_CM_EVENT_ADDR_CHANGE: Final = 14
RDMA_CM_EVENT_TIMEWAIT_EXIT: Final = 15
RDMA_CM_EVENT_ADDRINFO_RESOLVED: Final = 16
RDMA_CM_EVENT_ADDRINFO_ERROR: Final = 17

RDMA_PS_IPOIB: Final = 0x0002
RDMA_PS_TCP: Final = 0x0106
RDMA_PS_UDP: Final = 0x0111
RDMA_PS_IB: Final = 0x013F

RAI_PASSIVE: Final = 0x01
RAI_NUMERICHOST: Final = 0x02
RAI_NOROUTE: Final = 0x04
RAI_FAMILY: Final = 0x08
RAI_SA: Final = 0x10
RAI_DNS: Final = 0x20

RDMA_CM_JOIN_MC_ATTR_ADDRESS: Final = 1
RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS: Final = 2

RDMA_MC_JOIN_FLAG_FULLMEMBER: Final = 0
RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER: Final = 1

RDMA_OPTION_ID: Final = 0
RDMA_OPTION_ID_ACK_TIMEOUT: Final = 3

#: C enumeration -> what its members' names begin with.
_PREFIXES = {
    "rdma_cm_event_type": "RDMA_CM_EVENT_",
    "rdma_port_space": "RDMA_PS_",
    "rdma_cm_join_mc_attr_mask": "RDMA_CM_JOIN_MC_ATTR_",
    "rdma_cm_mc_join_flags": "RDMA_MC_JOIN_FLAG_",
}

__all__ = [name for name in [*globals(), *_PREFIXES] if name.startswith(("RDMA_", "RAI_", "rdma_"))]


def __getattr__(name: str) -> Any:
    """The class of a C enumeration, made once."""
    if name not in _PREFIXES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    values = {member: value for member, value in globals().items() if member.startswith(_PREFIXES[name])}
    make: Any = _CEnum  # the functional form, which type checkers take for a look-up by value
    made = make(name, values, module=__name__)
    globals()[name] = made
    return made


def __dir__() -> list[str]:
    """Every name, the classes that are not made yet among them."""
    return sorted({*globals(), *_PREFIXES})
