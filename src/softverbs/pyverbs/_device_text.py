# SPDX-License-Identifier: MIT
"""Words for the numbers that a device and its ports report. ``device`` re-exports them, as pyverbs has them there."""

from collections.abc import Mapping

from softverbs.pyverbs.libibverbs_enums import names_of
from softverbs.pyverbs.utils import be64toh

_GID_TYPES = {0: "IB", 1: "RoCEv1", 2: "RoCEv2"}
_TRANSPORTS = {0: "IB", 1: "IWARP", 2: "USNIC", 3: "USNIC UDP"}
_NODES = {1: "CA", 2: "Switch", 3: "Router", 4: "RNIC", 5: "USNIC", 6: "USNIC UDP"}
_PORT_STATES = {0: "NOP", 1: "Down", 2: "Init", 3: "Armed", 4: "Active", 5: "Defer"}
_LINK_LAYERS = {0: "Unspecified", 1: "InfiniBand", 2: "Ethernet"}
_PHYS_STATES = {
    1: "Sleep",
    2: "Polling",
    3: "Disabled",
    4: "Port configuration training",
    5: "Link up",
    6: "Link error recovery",
    7: "Phy test",
}
_WIDTHS = {1: "1X", 2: "4X", 4: "8X", 8: "12X", 16: "2X"}
# Per lane and rounded, as enum ib_port_speed of the kernel has them.
_SPEEDS = {0: 0.0, 1: 2.5, 2: 5.0, 4: 5.0, 8: 10.0, 16: 14.0, 32: 25.0, 64: 50.0, 128: 100.0, 256: 200.0}


def _with_number(words: Mapping[int, object], number: int, unknown: str) -> str:
    return f"{words[number]} ({int(number)})" if number in words else unknown


def translate_gid_type(gid_type: int) -> str:
    """``RoCEv2`` for IBV_GID_TYPE_ROCE_V2, and so on."""
    return _GID_TYPES.get(gid_type, f"Unknown gid_type ({gid_type})")


def guid_format(num: int) -> str:
    """A GUID's text, four groups of four hexadecimal digits.

    :param num: the GUID as C shows it: network-order bytes in a host integer
    """
    digits = f"{be64toh(num):016x}"
    return ":".join(digits[i : i + 4] for i in range(0, 16, 4))


def translate_transport_type(transport_type: int) -> str:
    """``IB`` for IBV_TRANSPORT_IB, and so on."""
    return _TRANSPORTS.get(transport_type, "Unknown")


def translate_node_type(node_type: int) -> str:
    """``CA`` for IBV_NODE_CA, and so on."""
    return _NODES.get(node_type, "Unknown")


def guid_to_hex(node_guid: int) -> str:
    """The hexadecimal digits of a GUID, without a prefix."""
    return f"{node_guid:x}"


def port_state_to_str(port_state: int) -> str:
    """``Active (4)`` for IBV_PORT_ACTIVE, and so on."""
    return _with_number(_PORT_STATES, port_state, f"Invalid state ({port_state})")


def translate_mtu(mtu: int) -> str:
    """``1024 (3)`` for IBV_MTU_1024, and so on."""
    return _with_number({code: 128 << code for code in range(1, 6)}, mtu, f"Invalid MTU ({mtu})")


def translate_link_layer(ll: int) -> str:
    """``Ethernet`` for IBV_LINK_LAYER_ETHERNET, and so on."""
    return _LINK_LAYERS.get(ll, f"Invalid link layer ({ll})")


def translate_port_cap_flags(flags: int) -> str:
    """The names of IBV_PORT_* capability bits, one a line."""
    return str_from_flags(flags, names_of("ibv_port_cap_flags"))


def translate_port_cap_flags2(flags: int) -> str:
    """The names of the second set of port capability bits, one a line."""
    return str_from_flags(flags, names_of("ibv_port_cap_flags2"))


def translate_device_caps(flags: int) -> str:
    """The names of IBV_DEVICE_* capability bits, one a line."""
    return str_from_flags(flags, names_of("ibv_device_cap_flags"))


def translate_event_type(event_type: int) -> str:
    """The name of an asynchronous event, IBV_EVENT_*."""
    return names_of("ibv_event_type").get(event_type, f"Unknown event_type ({event_type})")


def str_from_flags(flags: int, dictionary: Mapping[int, str]) -> str:
    """The names of the set bits, one a line, indented by two.

    :param flags: the bits
    :param dictionary: bit -> name
    """
    return "\n  " + "".join(f"{name}\n  " for bit, name in dictionary.items() if flags & bit)


def phys_state_to_str(phys: int) -> str:
    """``Link up (5)`` and so on."""
    return _with_number(_PHYS_STATES, phys, "Invalid physical state")


def width_to_str(width: int) -> str:
    """``4X (2)`` and so on: lanes of the link."""
    return _with_number(_WIDTHS, width, "Invalid width")


def speed_to_str(active_speed: int, active_speed_ex: int = 0) -> str:
    """``10.0 Gbps (8)`` and so on: speed of one lane.

    :param active_speed: the 8-bit field
    :param active_speed_ex: the wide field, which counts where it is not 0
    """
    speed = active_speed_ex or active_speed
    return f"{_SPEEDS[speed]} Gbps ({speed})" if speed in _SPEEDS else "Invalid speed"
