"""Devices: the list of them, an open one (Context), what it reports about itself, and its asynchronous events."""

import errno
import weakref
from collections import deque
from typing import TYPE_CHECKING, Any

from softverbs.core import limits
from softverbs.device import Device as SoftDevice
from softverbs.device import default_device
from softverbs.pyverbs import libibverbs_enums as e
from softverbs.pyverbs._bell import Bell
from softverbs.pyverbs._device_attr import CompCntrCaps as CompCntrCaps
from softverbs.pyverbs._device_attr import CQModerationCaps as CQModerationCaps
from softverbs.pyverbs._device_attr import DeviceAttr as DeviceAttr
from softverbs.pyverbs._device_attr import DeviceAttrEx as DeviceAttrEx
from softverbs.pyverbs._device_attr import GIDEntry as GIDEntry
from softverbs.pyverbs._device_attr import ODPCaps as ODPCaps
from softverbs.pyverbs._device_attr import PacketPacingCaps as PacketPacingCaps
from softverbs.pyverbs._device_attr import PCIAtomicCaps as PCIAtomicCaps
from softverbs.pyverbs._device_attr import PortAttr as PortAttr
from softverbs.pyverbs._device_attr import QueryDeviceExInput as QueryDeviceExInput
from softverbs.pyverbs._device_attr import RSSCaps as RSSCaps
from softverbs.pyverbs._device_attr import TMCaps as TMCaps
from softverbs.pyverbs._device_attr import TSOCaps as TSOCaps
from softverbs.pyverbs._device_text import guid_format as guid_format
from softverbs.pyverbs._device_text import guid_to_hex as guid_to_hex
from softverbs.pyverbs._device_text import phys_state_to_str as phys_state_to_str
from softverbs.pyverbs._device_text import port_state_to_str as port_state_to_str
from softverbs.pyverbs._device_text import speed_to_str as speed_to_str
from softverbs.pyverbs._device_text import str_from_flags as str_from_flags
from softverbs.pyverbs._device_text import translate_device_caps as translate_device_caps
from softverbs.pyverbs._device_text import translate_event_type as translate_event_type
from softverbs.pyverbs._device_text import translate_gid_type as translate_gid_type
from softverbs.pyverbs._device_text import translate_link_layer as translate_link_layer
from softverbs.pyverbs._device_text import translate_mtu as translate_mtu
from softverbs.pyverbs._device_text import translate_node_type as translate_node_type
from softverbs.pyverbs._device_text import translate_port_cap_flags as translate_port_cap_flags
from softverbs.pyverbs._device_text import translate_port_cap_flags2 as translate_port_cap_flags2
from softverbs.pyverbs._device_text import translate_transport_type as translate_transport_type
from softverbs.pyverbs._device_text import width_to_str as width_to_str
from softverbs.pyverbs._fields import fill, instance, integer, lines, reading, refused
from softverbs.pyverbs.base import Children, PyverbsObject, Resource
from softverbs.pyverbs.pyverbs_error import PyverbsRDMAError, PyverbsUserError
from softverbs.pyverbs.utils import be64toh

if TYPE_CHECKING:
    from softverbs.pyverbs.addr import GID

_PORT = 1  # the only one
_NS_PER_S = 10**9
_CAPABILITIES = e.IBV_DEVICE_RC_RNR_NAK_GEN | e.IBV_DEVICE_CURR_QP_STATE_MOD | e.IBV_DEVICE_MEM_MGT_EXTENSIONS


class Device(PyverbsObject):
    """A device that could be opened: name, GUID and kind. Nothing needs it; a Context is opened by name."""

    def __init__(self, name: bytes, guid: int, node_type: int, transport_type: int, index: int) -> None:
        """
        :param name: name, bytes as in C
        :param guid: GUID of the node, host order
        :param node_type: IBV_NODE_*
        :param transport_type: IBV_TRANSPORT_*
        :param index: number of the device on this machine
        """
        self._name = name
        self._guid = guid
        self._node_type = node_type
        self._transport_type = transport_type
        self._index = index

    @property
    def name(self) -> bytes:
        """Name, bytes as in C."""
        return self._name

    @property
    def node_type(self) -> int:
        """IBV_NODE_CA and so on."""
        return self._node_type

    @property
    def transport_type(self) -> int:
        """IBV_TRANSPORT_IB and so on."""
        return self._transport_type

    @property
    def guid(self) -> int:
        """GUID of the node, host order."""
        return self._guid

    @property
    def index(self) -> int:
        """Number of the device on this machine."""
        return self._index

    def __str__(self) -> str:
        return (
            f"Device {self.name.decode()}, node type {translate_node_type(self.node_type)}, transport type "
            f"{translate_transport_type(self.transport_type)}, guid {guid_to_hex(self.guid)}, index {self._index}"
        )


class _Identity:
    """What the core knows of a context: objects of one context have the same."""

    __slots__ = ()


class _Dispatcher:
    """Hands the port's asynchronous events to the contexts they concern. The port calls it with the lock held."""

    def __init__(self) -> None:
        self.contexts: weakref.WeakSet[Context] = weakref.WeakSet()

    def __call__(self, event_type: int, element: object) -> None:
        user = getattr(element, "user", None)
        owner = user() if user is not None else None
        if owner is not None:
            if owner._context is not None:
                owner._context._deliver(event_type, user)
        elif user is None:
            for context in list(self.contexts):
                context._deliver(event_type, None)


class _Closer:
    """Closes a context when its device is closed, if the context is still there."""

    __slots__ = ("_context",)

    def __init__(self, context: "weakref.ref[Context]") -> None:
        self._context = context

    def __call__(self) -> None:
        context = self._context()
        if context is not None:
            context.close()


class Context(Resource):
    """An open device, ``struct ibv_context`` (ibv_open_device(3))."""

    _kind = "context"
    _children = ("_qps", "_ccs", "_cqs", "_pds", "_comp_cntrs")
    _qps: Children
    _ccs: Children
    _cqs: Children
    _pds: Children
    _comp_cntrs: Children

    def __init__(self, **kwargs: Any) -> None:
        """
        :param kwargs:
            * ``name``: the device's name, as in ``get_device_list()``
            * ``device``: Extension: a ``softverbs.device.Device`` to open instead of a name
            * ``attr``, ``cmid``, ``cmd_fd``: pyverbs has them; refused with EOPNOTSUPP
        :raises PyverbsUserError: without a name
        :raises PyverbsRDMAError: ENODEV where no device has the name
        """
        for other in ("attr", "cmid", "cmd_fd"):
            if kwargs.get(other) is not None:
                raise refused(f"Failed to open device: Context({other}=...) is not supported", errno.EOPNOTSUPP)
        unknown = kwargs.keys() - {"name", "device", "attr", "cmid", "cmd_fd"}
        if unknown:
            raise PyverbsUserError(f"Context has no argument {', '.join(sorted(unknown))}")
        #: Extension: the device that is open.
        self.device = _find(kwargs.get("name"), kwargs.get("device"))
        self.device.check()
        self._name = self.device.name
        self._bell = Bell()
        self._events: deque[tuple[int, weakref.ref[Resource] | None]] = deque()
        self._start(self, _Identity())
        self._context = None  # a reference to itself would leave it to the garbage collector
        with self.device.lock:
            dispatcher = self.device.port.on_event
            if not isinstance(dispatcher, _Dispatcher):
                dispatcher = self.device.port.on_event = _Dispatcher()
            dispatcher.contexts.add(self)
            self._at_device_close = _Closer(weakref.ref(self))
            self.device.at_close.append(self._at_device_close)

    def _device(self) -> SoftDevice:
        if self._core is None:
            raise self._closed()
        return self.device

    @staticmethod
    def _bury(remains: Any) -> None:
        """Nothing: the device itself stays open for other contexts."""

    def _forget(self) -> None:
        super()._forget()
        self._events.clear()
        self._bell.close()
        self._leave()

    def _leave(self) -> None:
        """The device need not tell this context any more that it is closed."""
        if self._at_device_close in self.device.at_close:
            self.device.at_close.remove(self._at_device_close)

    def __del__(self) -> None:
        if self._core is not None:  # its children have kept it alive, so there is nothing else left to close
            self._leave()

    @property
    def context(self) -> int:
        """A number that stands for the pointer of C; 0 when closed."""
        return 0 if self._core is None else id(self._core)

    @property
    def name(self) -> str:
        """The device's name."""
        return self._name

    @property
    def num_comp_vectors(self) -> int:
        """Completion vectors: a CQ names one of 0 to this less 1."""
        return int(self._device().port.num_comp_vectors)

    # -- queries

    def query_device(self) -> DeviceAttr:
        """The device's attributes (ibv_query_device(3))."""
        with self._guard("Failed to query device") as device:
            return _device_attr(device)

    def query_device_ex(self, ex_input: QueryDeviceExInput | None = None) -> DeviceAttrEx:
        """The device's attributes and what was added to them (ibv_query_device_ex(3)).

        :param ex_input: None, or one with ``comp_mask`` 0
        """
        if ex_input is not None:
            instance(ex_input, QueryDeviceExInput, "ex_input")
            if ex_input.comp_mask:
                raise refused(f"Failed to query EX device: comp_mask={ex_input.comp_mask:#x}: no bit of it is known")
        with self._guard("Failed to query EX device") as device:
            attr = DeviceAttrEx()
            attr.orig_attr = _device_attr(device)
            fill(attr, completion_timestamp_mask=2**64 - 1, hca_core_clock=_NS_PER_S // 1000, phys_port_cnt_ex=1)
            fill(attr, device_cap_flags_ex=attr.orig_attr.device_cap_flags)
            return attr

    def query_comp_cntr_caps(self) -> CompCntrCaps:
        """What completion counters can do (ibv_query_comp_cntr_caps(3))."""
        options = self._device().options
        caps = CompCntrCaps()
        fill(caps, max_counters=options.max_counters, max_value=options.counter_max_value)
        fill(caps, supported_qp_attach_ops=options.counter_ops)
        return caps

    def query_port(self, port_num: int) -> PortAttr:
        """Attributes of a port (ibv_query_port(3)).

        :param port_num: 1
        """
        what = f"Failed to query port {port_num}"
        with self._guard(what) as device:
            _check_port(port_num)
            return _port_attr(device)

    def query_port_speed(self, port_num: int) -> int:
        """Speed of a port, in units of 100 Mbit/s.

        :param port_num: 1
        """
        with self._guard(f"Failed to query port speed for port {port_num}"):
            _check_port(port_num)
            return 100

    def query_pkey(self, port_num: int, index: int) -> int:
        """A P_Key of the port's table, in network order (ibv_query_pkey(3)).

        :param port_num: 1
        :param index: 0
        """
        with self._guard(f"Failed to query pkey {index} of port {port_num}"):
            _check_port(port_num)
            _check_index(index, limits.MAX_PKEYS, "P_Key")
            return limits.DEFAULT_PKEY

    def get_pkey_index(self, port_num: int, pkey: int) -> int:
        """Index of a P_Key in the port's table (ibv_get_pkey_index(3)).

        :param port_num: 1
        :param pkey: the P_Key, in network order
        """
        with self._guard(f"Failed to get pkey index of pkey = {pkey} of port {port_num}"):
            _check_port(port_num)
            if pkey != limits.DEFAULT_PKEY:
                raise refused(f"the table has {limits.DEFAULT_PKEY:#x} only")
            return 0

    def query_gid(self, port_num: int, index: int) -> "GID":
        """A GID of the port's table (ibv_query_gid(3)).

        :param port_num: 1
        :param index: index in the table
        """
        from softverbs.pyverbs.addr import GID

        with self._guard(f"Failed to query gid {index} of port {port_num}") as device:
            return GID._of(_gid(device, port_num, index))

    def query_gid_type(self, port_num: int, index: int) -> int:
        """Kind of a GID: IBV_GID_TYPE_SYSFS_ROCE_V2.

        :param port_num: 1
        :param index: index in the table
        """
        with self._guard(f"Failed to query gid type of port {port_num} and gid index {index}") as device:
            _gid(device, port_num, index)
            return e.IBV_GID_TYPE_SYSFS_ROCE_V2

    def query_gid_ex(self, port_num: int, gid_index: int, flags: int = 0) -> GIDEntry:
        """An entry of the port's GID table (ibv_query_gid_ex(3)).

        :param port_num: 1
        :param gid_index: index in the table
        :param flags: 0
        """
        with self._guard(f"Failed to query gid table of port {port_num} in index {gid_index}") as device:
            _check_flags(flags)
            return _gid_entry(_gid(device, port_num, gid_index), gid_index)

    def query_gid_table(self, max_entries: int, flags: int = 0) -> list[GIDEntry]:
        """The device's GID table (ibv_query_gid_table(3)).

        :param max_entries: return so many at most
        :param flags: 0
        """
        with self._guard("Failed to query gid tables of the device") as device:
            _check_flags(flags)
            count = integer(max_entries, "max_entries", 64)
            return [_gid_entry(raw, index) for index, raw in enumerate(device.link.gids[:count])]

    def query_rt_values_ex(self, comp_mask: int = e.IBV_VALUES_MASK_RAW_CLOCK) -> tuple[int, int]:
        """The clock that completions are stamped with (ibv_query_rt_values_ex(3)): seconds and nanoseconds.

        :param comp_mask: IBV_VALUES_MASK_RAW_CLOCK
        """
        if comp_mask != e.IBV_VALUES_MASK_RAW_CLOCK:
            raise refused(
                f"Failed to query real time values: comp_mask={comp_mask!r}: IBV_VALUES_MASK_RAW_CLOCK is known"
            )
        seconds, nanoseconds = divmod(self._device().clock(), _NS_PER_S)
        return seconds, nanoseconds

    # -- asynchronous events

    def get_async_event(self) -> "AsyncEvent":
        """The oldest asynchronous event that nobody has read (ibv_get_async_event(3)).

        Waits for one, unless O_NONBLOCK is set on ``async_fd``: then EAGAIN.
        """
        device = self._device()
        device.check()
        taken: list[AsyncEvent] = []
        with device.lock:
            if self._take_event(taken):
                return taken[0]
        if not self._bell.blocking():
            raise refused("Failed to get async event: there is none", errno.EAGAIN)
        device.wait_until(lambda: self._take_event(taken), None)
        if not taken:
            raise self._closed()
        return taken[0]

    def _take_event(self, taken: "list[AsyncEvent]") -> bool:
        """Moves the oldest event of a live object to ``taken``; whether waiting is over. The lock is held."""
        while self._events and not taken:
            event_type, user = self._events.popleft()
            owner = user() if user is not None else None
            if user is None or (owner is not None and owner._core is not None):
                taken.append(AsyncEvent._of(event_type, owner))
        if not self._events:
            self._bell.silence()
        return bool(taken) or self._core is None

    def _deliver(self, event_type: int, user: "weakref.ref[Resource] | None") -> None:
        self._events.append((event_type, user))
        self._bell.ring()

    @property
    def async_fd(self) -> int:
        """Extension (``async_fd`` of ``struct ibv_context``): readable while an asynchronous event waits."""
        self._open()
        return self._bell.fd

    def stats(self) -> dict[str, int]:
        """Extension: the device's statistics, such as packets dropped by cause."""
        with self._guard("Failed to read the statistics") as device:
            return dict(device.port.stats())


class AsyncEvent(PyverbsObject):
    """An asynchronous event, ``struct ibv_async_event`` (ibv_get_async_event(3))."""

    event_type = reading("IBV_EVENT_CQ_ERR and so on.")

    def __init__(self, event_type: int = 0) -> None:
        """
        :param event_type: IBV_EVENT_*
        """
        fill(self, event_type=event_type)
        #: Extension: the QP or CQ that it concerns; None for events of the port.
        self.element: Resource | None = None
        self._unacknowledged = False

    @classmethod
    def _of(cls, event_type: int, element: Resource | None) -> "AsyncEvent":
        event = cls(event_type)
        event.element = element
        event._unacknowledged = True
        if element is not None:
            element._async_events += 1
        return event

    def ack(self) -> None:
        """Acknowledges it (ibv_ack_async_event(3)): ``ibv_destroy_qp`` and ``ibv_destroy_cq`` wait for that."""
        if self._unacknowledged and self.element is not None:
            self.element._async_events -= 1
        self._unacknowledged = False

    def __str__(self) -> str:
        return lines(24, ("Event Type", translate_event_type(self.event_type)))


def get_device_list() -> list[Device]:
    """The devices of this process (ibv_get_device_list(3)): one, which this opens if it is not open yet."""
    device = default_device()
    return [Device(device.name.encode(), device.guid, e.IBV_NODE_CA, e.IBV_TRANSPORT_IB, 0)]


def _find(name: object, device: object) -> SoftDevice:
    if device is not None:
        instance(device, SoftDevice, "Context device")
        assert isinstance(device, SoftDevice)
        if name is not None and name != device.name:
            raise refused(f"Failed to find device {name}: the given device is {device.name}", errno.ENODEV)
        return device
    if name is None:
        raise PyverbsUserError("Device name must be provided")
    found = default_device()
    if name != found.name:
        raise PyverbsRDMAError(f"Failed to find device {name}: there is {found.name}", errno.ENODEV)
    return found


def _device_attr(device: SoftDevice) -> DeviceAttr:
    options = device.options
    attr = DeviceAttr()
    guid = be64toh(device.guid)
    fill(attr, fw_version=_version(), node_guid=guid, sys_image_guid=guid, max_mr_size=limits.MAX_MR_SIZE)
    fill(attr, page_size_cap=0xFFFFF000, max_qp=options.max_qp, max_qp_wr=options.max_qp_wr)
    fill(attr, device_cap_flags=_CAPABILITIES)
    fill(attr, max_sge=limits.MAX_SGE, max_sge_rd=limits.MAX_SGE, max_cq=options.max_cq, max_cqe=options.max_cqe)
    fill(attr, max_mr=options.max_mr, max_pd=options.max_pd, max_qp_rd_atom=limits.MAX_RD_ATOMIC)
    fill(attr, max_res_rd_atom=limits.MAX_RD_ATOMIC * options.max_qp, max_qp_init_rd_atom=limits.MAX_RD_ATOMIC)
    fill(attr, atomic_caps=e.IBV_ATOMIC_HCA, max_pkeys=limits.MAX_PKEYS, local_ca_ack_delay=15, phys_port_cnt=1)
    return attr


def _version() -> str:
    """The version of this package: the device has no other firmware."""
    from importlib.metadata import PackageNotFoundError, version  # slow, and seldom asked for

    try:
        return version("softverbs")
    except PackageNotFoundError:
        return "0"


def _port_attr(device: SoftDevice) -> PortAttr:
    attr = PortAttr()
    fill(attr, state=e.IBV_PORT_ACTIVE, max_mtu=e.IBV_MTU_4096, active_mtu=device.port.active_mtu)
    fill(attr, gid_tbl_len=len(device.link.gids), port_cap_flags=e.IBV_PORT_IP_BASED_GIDS)
    fill(attr, max_msg_sz=limits.MAX_MESSAGE_SIZE, pkey_tbl_len=limits.MAX_PKEYS, max_vl_num=1)
    fill(attr, active_width=1, active_speed=8, phys_state=5, link_layer=e.IBV_LINK_LAYER_ETHERNET)
    fill(attr, flags=e.IBV_QPF_GRH_REQUIRED)
    return attr


def _check_port(port_num: int) -> None:
    if integer(port_num, "port_num") != _PORT:
        raise refused(f"port_num is {port_num}: the device has one port, number {_PORT}")


def _check_index(index: int, count: int, table: str) -> int:
    number = integer(index, "index", signed=True)
    if not 0 <= number < count:
        raise refused(f"index {number} is outside of the {table} table, which has {count} entries")
    return number


def _check_flags(flags: int) -> None:
    if integer(flags, "flags"):
        raise refused(f"flags={flags:#x}: no bit of it is known")


def _gid(device: SoftDevice, port_num: int, index: int) -> bytes:
    _check_port(port_num)
    return bytes(device.link.gids[_check_index(index, len(device.link.gids), "GID")])


def _gid_entry(raw: bytes, index: int) -> GIDEntry:
    from softverbs.pyverbs.addr import host_order

    return GIDEntry(host_order(raw[:8]), host_order(raw[8:]), index, _PORT, e.IBV_GID_TYPE_ROCE_V2)
