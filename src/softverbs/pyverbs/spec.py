# SPDX-License-Identifier: MIT
"""What a flow rule matches on: values and masks of header fields, ``struct ibv_flow_spec_*`` (ibv_create_flow(3)).

They are data only: the device has no flow steering (``flow.Flow`` says so).
"""

import ctypes
import socket
import struct
from collections.abc import Callable
from typing import Any, overload

from softverbs.pyverbs import libibverbs_enums as e
from softverbs.pyverbs._fields import integer, refused
from softverbs.pyverbs.base import PyverbsObject
from softverbs.pyverbs.pyverbs_error import PyverbsError

_TYPES = {
    e.IBV_FLOW_SPEC_ETH: "IBV_FLOW_SPEC_ETH",
    e.IBV_FLOW_SPEC_IPV4_EXT: "IBV_FLOW_SPEC_IPV4_EXT",
    e.IBV_FLOW_SPEC_IPV6: "IBV_FLOW_SPEC_IPV6",
    e.IBV_FLOW_SPEC_TCP: "IBV_FLOW_SPEC_TCP",
    e.IBV_FLOW_SPEC_UDP: "IBV_FLOW_SPEC_UDP",
}


def _mac(text: Any) -> bytes:
    try:
        raw = bytes(int(byte, 16) for byte in text.split(":"))
    except (AttributeError, ValueError):
        raw = b""
    if len(raw) != 6:
        raise refused(f"{text!r} is no MAC address: six bytes as in aa:bb:12:13:14:fe are expected")
    return raw


def _address(family: int) -> Callable[[Any], bytes]:
    def packed(text: Any) -> bytes:
        try:
            return socket.inet_pton(family, text)
        except (OSError, TypeError):
            version = "IPv4" if family == socket.AF_INET else "IPv6"
            raise refused(f"{text!r} is no {version} address") from None

    return packed


def _number(size: int) -> Callable[[Any], bytes]:
    return lambda value: integer(value, "the field", 8 * size).to_bytes(size, "big")


def _from_number(raw: bytes) -> int:
    return int.from_bytes(raw, "big")


class _Kind:
    """How a field is read and written; in memory it is ``size`` bytes in network order."""

    def __init__(self, size: int, pack: Callable[[Any], bytes], unpack: Callable[[bytes], Any], ones: Any) -> None:
        """
        :param size: bytes
        :param pack: value -> bytes
        :param unpack: bytes -> value
        :param ones: the mask of a field that was given without one
        """
        self.size = size
        self.pack = pack
        self.unpack = unpack
        self.ones = ones


_MAC = _Kind(6, _mac, lambda raw: raw.hex(":"), "ff:ff:ff:ff:ff:ff")
_IPV4 = _Kind(4, _address(socket.AF_INET), socket.inet_ntoa, "255.255.255.255")
_IPV6 = _Kind(16, _address(socket.AF_INET6), lambda raw: socket.inet_ntop(socket.AF_INET6, raw), "ffff:" * 7 + "ffff")
_U8 = _Kind(1, _number(1), _from_number, 0xFF)
_U16 = _Kind(2, _number(2), _from_number, 0xFFFF)
_FLOW_LABEL = _Kind(4, _number(4), _from_number, 0xFFFFF)


class _Member:
    """A field's value, or its mask, as an attribute."""

    def __init__(self, kind: _Kind, doc: str) -> None:
        """
        :param kind: how it is read and written
        :param doc: what it is
        """
        self.kind = kind
        self.__doc__ = doc
        self.name = ""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    @overload
    def __get__(self, obj: None, owner: type) -> "_Member": ...

    @overload
    def __get__(self, obj: object, owner: type) -> Any: ...

    def __get__(self, obj: object, owner: type) -> Any:
        return self if obj is None else self.kind.unpack(self.raw(obj))

    def __set__(self, obj: object, value: Any) -> None:
        obj.__dict__[self.name] = self.kind.pack(value)

    def raw(self, obj: object) -> bytes:
        """Its bytes, in network order."""
        found: bytes = obj.__dict__.get(self.name, bytes(self.kind.size))
        return found


def _masks(doc: str, kind: _Kind) -> _Member:
    return _Member(kind, f"Mask: {doc}")


class Spec(PyverbsObject):
    """The root of the specifications."""

    #: IBV_FLOW_SPEC_*, without IBV_FLOW_SPEC_INNER.
    _type = 0
    #: Names of the fields, in the order of the C structure.
    _fields: tuple[str, ...] = ()
    #: What the fields are called when printed.
    _words: tuple[str, ...] = ()
    #: Of the C structure: offset of the values, bytes of the values, ``sizeof``.
    _layout = (0, 0, 0)

    def __init__(self) -> None:
        """:raises NotImplementedError: always: this class is abstract"""
        raise NotImplementedError("This class is abstract.")

    def _start(self, is_inner: Any, **given: tuple[Any, Any]) -> None:
        """Sets each field whose value is not None, and its mask: all ones, if none is given."""
        self._spec_type = self._type | (e.IBV_FLOW_SPEC_INNER if is_inner else 0)
        for name, (value, mask) in given.items():
            if value is not None:
                setattr(self, name, value)
                setattr(self, f"{name}_mask", self._member(name).kind.ones if mask is None else mask)

    @classmethod
    def _member(cls, name: str) -> _Member:
        member: _Member = getattr(cls, name)
        return member

    @property
    def size(self) -> int:
        """Bytes of the C structure."""
        return self._layout[2]

    @property
    def spec_type(self) -> int:
        """Extension: IBV_FLOW_SPEC_*."""
        return self._spec_type

    def _copy_data(self, ptr: int) -> None:
        """Puts the C structure to an address.

        :param ptr: where ``size`` bytes may be written
        """
        offset, half, size = self._layout
        value = b"".join(self._member(name).raw(self) for name in self._fields)
        mask = b"".join(self._member(f"{name}_mask").raw(self) for name in self._fields)
        head = struct.pack("=IH", self._spec_type, size).ljust(offset, b"\0")
        ctypes.memmove(ptr, (head + value.ljust(half, b"\0") + mask).ljust(size, b"\0"), size)

    @staticmethod
    def type_to_str(spec_type: int) -> str:
        """The name of IBV_FLOW_SPEC_*, with or without IBV_FLOW_SPEC_INNER.

        :raises PyverbsError: for a type that no class here has
        """
        plain = spec_type & ~e.IBV_FLOW_SPEC_INNER
        if plain not in _TYPES:
            raise PyverbsError(f"This type {plain} is not implemented yet")
        return ("IBV_FLOW_SPEC_INNER " if spec_type & e.IBV_FLOW_SPEC_INNER else "") + _TYPES[plain]

    def __str__(self) -> str:
        text = f"{'Spec type':<16}: {self.type_to_str(self._spec_type):<20}\n{'Size':<16}: {self.size:<20}\n"
        for name, word in zip(self._fields, self._words, strict=True):
            text += f"{word:<16}: {getattr(self, name):<20} {getattr(self, f'{name}_mask'):<20}\n"
        return text


class EthSpec(Spec):
    """An Ethernet header, ``struct ibv_flow_spec_eth``."""

    _type = e.IBV_FLOW_SPEC_ETH
    _fields = ("dst_mac", "src_mac", "ether_type", "vlan_tag")
    _words = ("Dst mac", "Src mac", "Ether type", "Vlan tag")
    _layout = (6, 16, 40)

    dst_mac = _Member(_MAC, "Destination, as in aa:bb:12:13:14:fe.")
    dst_mac_mask = _masks("destination.", _MAC)
    src_mac = _Member(_MAC, "Source, as in aa:bb:12:13:14:fe.")
    src_mac_mask = _masks("source.", _MAC)
    ether_type = _Member(_U16, "EtherType.")
    ether_type_mask = _masks("EtherType.", _U16)
    vlan_tag = _Member(_U16, "VLAN tag.")
    vlan_tag_mask = _masks("VLAN tag.", _U16)

    def __init__(
        self,
        dst_mac: str | None = None,
        dst_mac_mask: str | None = None,
        src_mac: str | None = None,
        src_mac_mask: str | None = None,
        ether_type: int | None = None,
        ether_type_mask: int | None = None,
        vlan_tag: int | None = None,
        vlan_tag_mask: int | None = None,
        is_inner: int = 0,
    ) -> None:
        """
        :param dst_mac: destination, as in aa:bb:12:13:14:fe; of each pair, a mask without a value means nothing,
            and a value without a mask counts whole
        :param dst_mac_mask: its mask
        :param src_mac: source
        :param src_mac_mask: its mask
        :param ether_type: EtherType
        :param ether_type_mask: its mask
        :param vlan_tag: VLAN tag
        :param vlan_tag_mask: its mask
        :param is_inner: whether it is the header inside of a tunnel
        """
        self._start(
            is_inner,
            dst_mac=(dst_mac, dst_mac_mask),
            src_mac=(src_mac, src_mac_mask),
            ether_type=(ether_type, ether_type_mask),
            vlan_tag=(vlan_tag, vlan_tag_mask),
        )


class Ipv4ExtSpec(Spec):
    """An IPv4 header, ``struct ibv_flow_spec_ipv4_ext``."""

    _type = e.IBV_FLOW_SPEC_IPV4_EXT
    _fields = ("src_ip", "dst_ip", "proto", "tos", "ttl", "flags")
    _words = ("Src IP", "Dst IP", "Proto", "ToS", "TTL", "Flags")
    _layout = (8, 12, 32)

    src_ip = _Member(_IPV4, "Source, as in 1.2.3.4.")
    src_ip_mask = _masks("source.", _IPV4)
    dst_ip = _Member(_IPV4, "Destination, as in 1.2.3.4.")
    dst_ip_mask = _masks("destination.", _IPV4)
    proto = _Member(_U8, "Protocol.")
    proto_mask = _masks("protocol.", _U8)
    tos = _Member(_U8, "Type of service.")
    tos_mask = _masks("type of service.", _U8)
    ttl = _Member(_U8, "Time to live.")
    ttl_mask = _masks("time to live.", _U8)
    flags = _Member(_U8, "Flags.")
    flags_mask = _masks("flags.", _U8)

    def __init__(
        self,
        dst_ip: str | None = None,
        dst_ip_mask: str | None = None,
        src_ip: str | None = None,
        src_ip_mask: str | None = None,
        proto: int | None = None,
        proto_mask: int | None = None,
        tos: int | None = None,
        tos_mask: int | None = None,
        ttl: int | None = None,
        ttl_mask: int | None = None,
        flags: int | None = None,
        flags_mask: int | None = None,
        is_inner: bool = False,
    ) -> None:
        """
        :param dst_ip: destination, as in 1.2.3.4; masks as in EthSpec
        :param dst_ip_mask: its mask, as in 255.255.255.0
        :param src_ip: source
        :param src_ip_mask: its mask
        :param proto: protocol
        :param proto_mask: its mask
        :param tos: type of service
        :param tos_mask: its mask
        :param ttl: time to live
        :param ttl_mask: its mask
        :param flags: flags
        :param flags_mask: their mask
        :param is_inner: whether it is the header inside of a tunnel
        """
        self._start(
            is_inner,
            dst_ip=(dst_ip, dst_ip_mask),
            src_ip=(src_ip, src_ip_mask),
            proto=(proto, proto_mask),
            tos=(tos, tos_mask),
            ttl=(ttl, ttl_mask),
            flags=(flags, flags_mask),
        )


class TcpUdpSpec(Spec):
    """A TCP or UDP header, ``struct ibv_flow_spec_tcp_udp``."""

    _fields = ("dst_port", "src_port")
    _words = ("Dst port", "Src port")
    _layout = (6, 4, 16)

    dst_port = _Member(_U16, "Destination port.")
    dst_port_mask = _masks("destination port.", _U16)
    src_port = _Member(_U16, "Source port.")
    src_port_mask = _masks("source port.", _U16)

    def __init__(
        self,
        spec_type: int,
        dst_port: int | None = None,
        dst_port_mask: int | None = None,
        src_port: int | None = None,
        src_port_mask: int | None = None,
        is_inner: bool = False,
    ) -> None:
        """
        :param spec_type: IBV_FLOW_SPEC_TCP or IBV_FLOW_SPEC_UDP
        :param dst_port: destination port; masks as in EthSpec
        :param dst_port_mask: its mask
        :param src_port: source port
        :param src_port_mask: its mask
        :param is_inner: whether it is the header inside of a tunnel
        :raises PyverbsError: another type
        """
        if spec_type not in (e.IBV_FLOW_SPEC_TCP, e.IBV_FLOW_SPEC_UDP):
            raise PyverbsError("Spec type must be IBV_FLOW_SPEC_TCP or IBV_FLOW_SPEC_UDP")
        self._type = int(spec_type)
        self._start(is_inner, dst_port=(dst_port, dst_port_mask), src_port=(src_port, src_port_mask))


class Ipv6Spec(Spec):
    """An IPv6 header, ``struct ibv_flow_spec_ipv6``."""

    _type = e.IBV_FLOW_SPEC_IPV6
    _fields = ("src_ip", "dst_ip", "flow_label", "next_hdr", "traffic_class", "hop_limit")
    _words = ("Src IP", "Dst IP", "Flow label", "Next header", "Traffic class", "Hop limit")
    _layout = (8, 40, 88)

    src_ip = _Member(_IPV6, "Source, as in fd00::1.")
    src_ip_mask = _masks("source.", _IPV6)
    dst_ip = _Member(_IPV6, "Destination, as in fd00::1.")
    dst_ip_mask = _masks("destination.", _IPV6)
    flow_label = _Member(_FLOW_LABEL, "Flow label.")
    flow_label_mask = _masks("flow label.", _FLOW_LABEL)
    next_hdr = _Member(_U8, "Next header.")
    next_hdr_mask = _masks("next header.", _U8)
    traffic_class = _Member(_U8, "Traffic class.")
    traffic_class_mask = _masks("traffic class.", _U8)
    hop_limit = _Member(_U8, "Hop limit.")
    hop_limit_mask = _masks("hop limit.", _U8)

    def __init__(
        self,
        dst_ip: str | None = None,
        dst_ip_mask: str | None = None,
        src_ip: str | None = None,
        src_ip_mask: str | None = None,
        flow_label: int | None = None,
        flow_label_mask: int | None = None,
        next_hdr: int | None = None,
        next_hdr_mask: int | None = None,
        traffic_class: int | None = None,
        traffic_class_mask: int | None = None,
        hop_limit: int | None = None,
        hop_limit_mask: int | None = None,
        is_inner: bool = False,
    ) -> None:
        """
        :param dst_ip: destination, as in fd00::1; masks as in EthSpec
        :param dst_ip_mask: its mask, as in ffff:ffff::
        :param src_ip: source
        :param src_ip_mask: its mask
        :param flow_label: flow label
        :param flow_label_mask: its mask
        :param next_hdr: next header
        :param next_hdr_mask: its mask
        :param traffic_class: traffic class
        :param traffic_class_mask: its mask
        :param hop_limit: hop limit
        :param hop_limit_mask: its mask
        :param is_inner: whether it is the header inside of a tunnel
        """
        self._start(
            is_inner,
            dst_ip=(dst_ip, dst_ip_mask),
            src_ip=(src_ip, src_ip_mask),
            flow_label=(flow_label, flow_label_mask),
            next_hdr=(next_hdr, next_hdr_mask),
            traffic_class=(traffic_class, traffic_class_mask),
            hop_limit=(hop_limit, hop_limit_mask),
        )
