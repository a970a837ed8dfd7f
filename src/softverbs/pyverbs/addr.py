# SPDX-License-Identifier: MIT
"""Addresses: GID, global route, address vector."""

import sys
from typing import TYPE_CHECKING, Any

from softverbs.core.queues.wr import WC
from softverbs.core.transport.address import AddressHandle, AddressVector
from softverbs.pyverbs._fields import Field, instance, lines, refused
from softverbs.pyverbs._grh import header_bytes, packed, route_of
from softverbs.pyverbs.base import PyverbsObject, PyverbsRDMAError, Resource
from softverbs.pyverbs.libibverbs_enums import IBV_WC_GRH as _WC_GRH
from softverbs.pyverbs.pd import PD
from softverbs.pyverbs.pyverbs_error import PyverbsUserError
from softverbs.pyverbs.utils import gid_str_to_array

if TYPE_CHECKING:
    from softverbs.pyverbs.device import Context

_ZERO = bytes(16)
#: Members of an AHAttr that the device uses as they are.
_VECTOR = ("sgid_index", "flow_label", "hop_limit", "traffic_class", "sl", "port_num", "static_rate")


def gid_bytes(val: str) -> bytes:
    """The 16 bytes of a GID's text; PyverbsUserError if it is none."""
    return bytes(int(pair, 16) for pair in gid_str_to_array(val))


def gid_text(raw: bytes) -> str:
    """The text of 16 bytes: eight groups of four hexadecimal digits."""
    return raw.hex(":", 2)


class _GidText:
    """An attribute that shows 16 bytes (``_<name>`` of the object) as a GID's text."""

    def __init__(self, doc: str) -> None:
        self.__doc__ = doc
        self._slot = ""

    def __set_name__(self, owner: type, name: str) -> None:
        self._slot = f"_{name}"

    def __get__(self, obj: object, owner: type) -> Any:
        return self if obj is None else gid_text(getattr(obj, self._slot))

    def __set__(self, obj: object, val: str) -> None:
        setattr(obj, self._slot, gid_bytes(val))


class GID(PyverbsObject):
    """A global identifier, ``union ibv_gid``: 16 bytes. Of a RoCEv2 port: the IP address, IPv4 mapped."""

    def __init__(self, val: str | None = None) -> None:
        """
        :param val: eight groups of four hexadecimal digits with colons between; None for all zero
        """
        self._raw = _ZERO if val is None else gid_bytes(val)

    @property
    def raw(self) -> bytes:
        """Extension: the 16 bytes."""
        return self._raw

    @raw.setter
    def raw(self, value: Any) -> None:
        if not isinstance(value, (bytes, bytearray)) or len(value) != len(_ZERO):
            raise refused(f"GID.raw must be {len(_ZERO)} bytes, not {value!r}")
        self._raw = bytes(value)

    @classmethod
    def _of(cls, raw: bytes) -> "GID":
        gid = cls()
        gid.raw = raw
        return gid

    @property
    def gid(self) -> str:
        """Its text: eight groups of four hexadecimal digits."""
        return gid_text(self.raw)

    @gid.setter
    def gid(self, val: str) -> None:
        self.raw = gid_bytes(val)

    def __str__(self) -> str:
        return gid_text(self.raw)


def _raw(gid: GID | None, what: str) -> bytes:
    if gid is None:
        return _ZERO
    instance(gid, GID, what)
    return gid.raw


class GRH(PyverbsObject):
    """A global route header as a UD receive buffer holds it, ``struct ibv_grh`` (IBA 8.3)."""

    dgid = _GidText("Destination GID.")
    sgid = _GidText("Source GID.")
    version_tclass_flow = Field("IP version, traffic class and flow label, 32 bits in network order.")
    paylen = Field("Bytes that follow, up to and including the ICRC; network order.", 16)
    next_hdr = Field("What follows: 0x1B is the base transport header.", 8)
    hop_limit = Field("Routers that may still be passed.", 8)

    def __init__(
        self,
        sgid: GID | None = None,
        dgid: GID | None = None,
        version_tclass_flow: int = 0,
        paylen: int = 0,
        next_hdr: int = 0,
        hop_limit: int = 1,
    ) -> None:
        """
        :param sgid: source GID
        :param dgid: destination GID
        :param version_tclass_flow: IP version, traffic class, flow label; network order
        :param paylen: bytes that follow; network order
        :param next_hdr: number of the next header
        :param hop_limit: routers that may be passed
        """
        self._sgid = _raw(sgid, "GRH.sgid")
        self._dgid = _raw(dgid, "GRH.dgid")
        self.version_tclass_flow = version_tclass_flow
        self.paylen = paylen
        self.next_hdr = next_hdr
        self.hop_limit = hop_limit

    def __str__(self) -> str:
        return lines(
            22,
            ("DGID", self.dgid),
            ("SGID", self.sgid),
            ("version tclass flow", self.version_tclass_flow),
            ("paylen", self.paylen),
            ("next header", self.next_hdr),
            ("hop limit", self.hop_limit),
        )


class GlobalRoute(PyverbsObject):
    """Where packets go and how, ``struct ibv_global_route``."""

    dgid = _GidText("Destination GID.")
    flow_label = Field("20 bits that keep the packets of a flow in order on their way.")
    sgid_index = Field("Index of the source in the port's GID table.", 8)
    hop_limit = Field("Routers that may be passed (IP time to live).", 8)
    traffic_class = Field("IP traffic class.", 8)

    def __init__(
        self,
        dgid: GID | None = None,
        flow_label: int = 0,
        sgid_index: int = 0,
        hop_limit: int = 1,
        traffic_class: int = 0,
    ) -> None:
        """
        :param dgid: destination GID
        :param flow_label: 20 bits, 0 for none
        :param sgid_index: index of the source in the port's GID table
        :param hop_limit: routers that may be passed
        :param traffic_class: IP traffic class
        """
        self._dgid = _raw(dgid, "GlobalRoute.dgid")
        self.flow_label = flow_label
        self.sgid_index = sgid_index
        self.hop_limit = hop_limit
        self.traffic_class = traffic_class

    def __str__(self) -> str:
        return lines(22, *_route_rows(self, "traffic class"))


class _RouteField(Field):
    """A member of the address vector's global route: None where there is no such route."""

    def __get__(self, obj: object, owner: type) -> Any:
        if obj is None:
            return self
        return obj.__dict__.get(self.name, 0) if obj.__dict__.get("is_global") else None


class AHAttr(PyverbsObject):
    """An address vector, ``struct ibv_ah_attr`` (ibv_create_ah(3), ibv_modify_qp(3))."""

    port_num = Field("Local port that the packets leave from.", 8)
    sl = Field("Service level.", 8)
    src_path_bits = Field("Low bits of the source LID; nothing over Ethernet.", 8)
    dlid = Field("Destination LID; nothing over Ethernet.", 16)
    static_rate = Field("Limit of the packet rate, enum ibv_rate.", 8)
    is_global = Field("Not 0: there is a global route. RoCE needs one.", 8)
    flow_label = _RouteField("20 bits of the global route, or None.")
    sgid_index = _RouteField("Index of the source in the port's GID table, or None.", 8)
    hop_limit = _RouteField("Routers that may be passed, or None.", 8)
    traffic_class = _RouteField("IP traffic class, or None.", 8)

    def __init__(
        self,
        dlid: int = 0,
        sl: int = 0,
        src_path_bits: int = 0,
        static_rate: int = 0,
        is_global: int = 0,
        port_num: int = 1,
        gr: GlobalRoute | None = None,
    ) -> None:
        """
        :param dlid: destination LID; nothing over Ethernet
        :param sl: service level
        :param src_path_bits: low bits of the source LID
        :param static_rate: limit of the packet rate, enum ibv_rate
        :param is_global: not 0: ``gr`` is used
        :param port_num: local port
        :param gr: the global route; its values are copied
        :raises PyverbsUserError: if ``is_global`` is set and ``gr`` is None
        """
        self.port_num = port_num
        self.sl = sl
        self.src_path_bits = src_path_bits
        self.dlid = dlid
        self.static_rate = static_rate
        self.is_global = is_global
        self._dgid = _ZERO
        if is_global:
            self._copy_route(gr)

    def _copy_route(self, gr: GlobalRoute | None) -> None:
        if gr is None:
            raise PyverbsUserError("AHAttr is global, but there is no global route: gr is None")
        instance(gr, GlobalRoute, "AHAttr gr")
        self._dgid = gr._dgid
        self.flow_label = gr.flow_label
        self.sgid_index = gr.sgid_index
        self.hop_limit = gr.hop_limit
        self.traffic_class = gr.traffic_class

    def _copy(self) -> "AHAttr":
        """A copy, as C copies the structure."""
        twin = AHAttr()
        twin.__dict__.update(self.__dict__)
        return twin

    def _vector(self) -> AddressVector:
        """The same for the core."""
        route = {name: getattr(self, name) or 0 for name in _VECTOR}
        return AddressVector(self._dgid, is_global=bool(self.is_global), **route)

    @classmethod
    def _of(cls, vector: AddressVector) -> "AHAttr":
        """What the core reports."""
        attr = cls(is_global=0)
        attr.is_global = int(vector.is_global)
        attr._dgid = vector.dgid
        for name in _VECTOR:
            setattr(attr, name, getattr(vector, name))
        return attr

    @property
    def raw_dgid(self) -> bytes:
        """Extension: the destination GID, 16 bytes."""
        return self._dgid

    @property
    def dgid(self) -> str | None:
        """Destination GID as text, or None without a global route."""
        return gid_text(self._dgid) if self.is_global else None

    @dgid.setter
    def dgid(self, val: str) -> None:
        if self.is_global:
            self._dgid = gid_bytes(val)

    def __str__(self) -> str:
        rows: list[tuple[str, object]] = [
            ("port num", self.port_num),
            ("sl", self.sl),
            ("source path bits", self.src_path_bits),
            ("dlid", self.dlid),
            ("static rate", self.static_rate),
            ("is global", self.is_global),
        ]
        return lines(22, *rows, *(_route_rows(self, "traffic_class", "dgid") if self.is_global else ()), indent="  ")


def _route_rows(
    route: "GlobalRoute | AHAttr", class_name: str, dgid_name: str = "DGID"
) -> tuple[tuple[str, object], ...]:
    return (
        (dgid_name, route.dgid),
        ("flow label", route.flow_label),
        ("sgid index", route.sgid_index),
        ("hop limit", route.hop_limit),
        (class_name, route.traffic_class),
    )


class AH(Resource):
    """An address handle (ibv_create_ah(3)): where a datagram goes. A work request names one (``SendWR.set_wr_ud``)."""

    _kind = "AH"

    def __init__(self, pd: PD, **kwargs: Any) -> None:
        """
        :param pd: the protection domain
        :param kwargs:
            * ``attr``: where it leads, an AHAttr, ``is_global`` not 0
            * or ``wc``, ``grh`` and ``port_num``: the way back to the sender of a datagram (ibv_create_ah_from_wc(3)):
              its completion; the global route header in front of it (the address of the receive buffer; Extension: a
              GRH, or 40 bytes); the port that it came to
        :raises PyverbsRDMAError: EINVAL where this port cannot send there, ENOMEM, EFAULT where ``grh`` is no memory
        """
        what = "Failed to create AH"
        instance(pd, PD, "AH pd")
        context = pd._context
        if context is None:
            raise pd._closed()
        attr = _wanted(context, kwargs)
        with pd._guard(what) as device:
            self._pd: PD | None = pd
            self._start(context, AddressHandle(device.port, pd._open(), attr._vector()))
            pd._ahs.add(self)

    def _forget(self) -> None:
        super()._forget()
        self._pd = None

    @property
    def handle(self) -> int:
        """Extension (``handle`` of ``struct ibv_ah``): the device's number for it."""
        return int(self._open().handle)


_FROM_WC = ("wc", "grh", "port_num")


def _wanted(context: "Context", kwargs: dict[str, Any]) -> AHAttr:
    """What the arguments of AH say."""
    unknown = kwargs.keys() - {"attr", *_FROM_WC}
    if unknown:
        raise PyverbsUserError(f"AH has no argument {', '.join(sorted(unknown))}")
    if kwargs.keys() == {"attr"}:
        instance(kwargs["attr"], AHAttr, "AH attr")
        attr: AHAttr = kwargs["attr"]
        return attr
    if kwargs.keys() != set(_FROM_WC):
        raise PyverbsUserError("AH needs either attr, or all of wc, grh and port_num")
    return way_back(context, kwargs["port_num"], kwargs["wc"], kwargs["grh"], "Failed to create AH: ")


def way_back(context: "Context", port_num: int, wc: WC, grh: Any, what: str) -> AHAttr:
    """The address vector that leads to the sender of a datagram (ibv_init_ah_from_wc(3)).

    :param context: the context that it came to
    :param port_num: the port that it came to
    :param wc: its completion
    :param grh: the header in front of it: an address, a GRH or 40 bytes; not looked at where ``wc`` says there is none
    :param what: how messages begin
    :raises PyverbsRDMAError: EINVAL where the header is none, or was not sent to a GID of the port; EFAULT
    """
    instance(wc, WC, f"{what}wc")
    attr = AHAttr(wc.slid, wc.sl, wc.dlid_path_bits, port_num=port_num)
    if not wc.wc_flags & _WC_GRH:
        return attr
    raw = packed(grh) if isinstance(grh, GRH) else header_bytes(grh, f"{what}grh")
    try:
        route = route_of(raw)
    except PyverbsRDMAError as error:
        raise refused(what + error.reason) from None
    attr.is_global = 1
    attr._dgid = route.peer
    attr.flow_label, attr.hop_limit, attr.traffic_class = route.flow_label, route.hop_limit, route.traffic_class
    table = context._device().port.gid_table
    index = table.index_of(route.to) if not route.to_many else table.first_for(route.peer)
    if index is None:
        raise refused(f"{what}the datagram was sent to {gid_text(route.to)}, which is no GID of port {port_num}")
    attr.sgid_index = index
    return attr


def host_order(half: bytes) -> int:
    """8 network-order bytes as C shows them in a ``__be64``: an integer of host order over the same bytes."""
    return int.from_bytes(half, sys.byteorder)
