# SPDX-License-Identifier: MIT
"""Devices: the list of them, an open one (Context), what it reports about itself, and its asynchronous events."""

import contextlib
import errno
import os
import weakref
from collections import deque
from typing import TYPE_CHECKING, Any

from softverbs._interrupts import finalizer, shielded
from softverbs.core.base import limits
from softverbs.device import Device as SoftDevice
from softverbs.device import default_device
from softverbs.pyverbs import _device_query as _query
from softverbs.pyverbs import libibverbs_enums as e
from softverbs.pyverbs._async_event import AsyncEvent as AsyncEvent
from softverbs.pyverbs._async_event import Dispatcher
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
from softverbs.pyverbs._fd_arr import FdArr as FdArr
from softverbs.pyverbs._fields import fill, instance, integer, refused
from softverbs.pyverbs._identity import Identity, imported
from softverbs.pyverbs.base import Children, Guard, PyverbsObject, Resource
from softverbs.pyverbs.pyverbs_error import PyverbsRDMAError, PyverbsUserError

if TYPE_CHECKING:
    from softverbs.pyverbs.addr import GID


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
    _children = ("_qps", "_ccs", "_cqs", "_dms", "_pds", "_xrcds", "_tds", "_comp_cntrs")
    _qps: Children
    _ccs: Children
    _cqs: Children
    _dms: Children
    _pds: Children
    _xrcds: Children
    _tds: Children
    _comp_cntrs: Children

    @shielded
    def __init__(self, **kwargs: Any) -> None:
        """
        :param kwargs:
            * ``name``: the device's name, as in ``get_device_list()``
            * ``cmd_fd``: a duplicate of another context's ``cmd_fd``: the device is imported
              (ibv_import_device(3)), and objects of that context can be imported here; closing this context closes
              the descriptor
            * ``cmid``: a CMID that has a device; its own context's objects and those of this one work together
            * ``device``: Extension: a ``softverbs.device.Device`` to open instead of a name
            * ``attr``: pyverbs has it; refused with EOPNOTSUPP: there are no other providers
        :raises PyverbsUserError: without a name
        :raises PyverbsRDMAError: ENODEV where no device has the name, or ``cmd_fd`` is of no context of this process;
            EBADF
        """
        unknown = kwargs.keys() - {"name", "device", "attr", "cmid", "cmd_fd"}
        if unknown:
            raise PyverbsUserError(f"Context has no argument {', '.join(sorted(unknown))}")
        if kwargs.get("attr") is not None:
            raise refused("Failed to open device: Context(attr=...) is not supported", errno.EOPNOTSUPP)
        self._cmd_fd = -1
        #: Extension: the device that is open.
        self.device, identity = _chosen(kwargs)
        with Guard(self.device, "Failed to open device"):
            pass  # a device that is gone is refused, and so is what a plan of faults makes fail
        self._name = self.device.name
        self._bell = Bell()
        self._events: deque[tuple[int, weakref.ref[Resource] | None]] = deque()
        self._start(self, identity)
        self._context = None  # a reference to itself would leave it to the garbage collector
        identity.contexts.add(self)
        if kwargs.get("cmd_fd") is not None:
            self._cmd_fd = int(kwargs["cmd_fd"])
        with self.device.lock:
            dispatcher = self.device.port.on_event
            if not isinstance(dispatcher, Dispatcher):
                dispatcher = self.device.port.on_event = Dispatcher()
            dispatcher.contexts.add(self)
            self._at_device_close = _Closer(weakref.ref(self))
            self.device.at_close.append(self._at_device_close)
        cmid = kwargs.get("cmid")
        if cmid is not None and cmid.ctx is None:
            cmid.ctx = self

    def _device(self) -> SoftDevice:
        if self._core is None:
            raise self._closed()
        return self.device

    @staticmethod
    def _bury(remains: Any) -> None:
        """Nothing: the device itself stays open for other contexts."""

    def _forget(self) -> None:
        identity = self._core
        super()._forget()
        self._events.clear()
        self._bell.close()
        self._leave(identity)

    def _leave(self, identity: Identity) -> None:
        """The device need not tell this context any more that it is closed."""
        identity.leave(self)
        fd, self._cmd_fd = self._cmd_fd, -1
        if fd >= 0:
            with contextlib.suppress(OSError):
                os.close(fd)
        if self._at_device_close in self.device.at_close:
            self.device.at_close.remove(self._at_device_close)

    @finalizer
    def __del__(self) -> None:
        if self._core is not None:  # its children have kept it alive, so there is nothing else left to close
            self._leave(self._core)

    def _family(self) -> "list[Context]":
        """This context and those that share its objects, by import: all have one ``_core``."""
        identity: Identity = self._open()
        return [self, *(other for other in identity.contexts if other is not self)]

    @property
    def cmd_fd(self) -> int:
        """A descriptor that stands for this context: a duplicate of it (``os.dup``) can be given to
        ``Context(cmd_fd=...)``, in this process.
        """
        return int(self._open().fd)

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
            return _query.device_attr(device)

    def query_device_ex(self, ex_input: QueryDeviceExInput | None = None) -> DeviceAttrEx:
        """The device's attributes and what was added to them (ibv_query_device_ex(3)).

        :param ex_input: None, or one with ``comp_mask`` 0
        """
        if ex_input is not None:
            instance(ex_input, QueryDeviceExInput, "ex_input")
            if ex_input.comp_mask:
                raise refused(f"Failed to query EX device: comp_mask={ex_input.comp_mask:#x}: no bit of it is known")
        with self._guard("Failed to query EX device") as device:
            return _query.device_attr_ex(device)

    def query_comp_cntr_caps(self) -> CompCntrCaps:
        """What completion counters can do (ibv_query_comp_cntr_caps(3))."""
        with self._guard("Failed to query comp_cntr caps") as device:
            options = device.options
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
            _query.check_port(port_num)
            return _query.port_attr(device)

    def query_port_speed(self, port_num: int) -> int:
        """Speed of a port, in units of 100 Mbit/s.

        :param port_num: 1
        """
        with self._guard(f"Failed to query port speed for port {port_num}"):
            _query.check_port(port_num)
            return 100

    def query_pkey(self, port_num: int, index: int) -> int:
        """A P_Key of the port's table, in network order (ibv_query_pkey(3)).

        :param port_num: 1
        :param index: 0
        """
        with self._guard(f"Failed to query pkey {index} of port {port_num}"):
            _query.check_port(port_num)
            _query.check_index(index, limits.MAX_PKEYS, "P_Key")
            return limits.DEFAULT_PKEY

    def get_pkey_index(self, port_num: int, pkey: int) -> int:
        """Index of a P_Key in the port's table (ibv_get_pkey_index(3)).

        :param port_num: 1
        :param pkey: the P_Key, in network order
        """
        with self._guard(f"Failed to get pkey index of pkey = {pkey} of port {port_num}"):
            _query.check_port(port_num)
            if pkey != limits.DEFAULT_PKEY:
                raise refused(f"the table has {limits.DEFAULT_PKEY:#x} only")
            return 0

    def query_gid(self, port_num: int, index: int) -> "GID":
        """A GID of the port's table (ibv_query_gid(3)); zeros where the entry is empty.

        :param port_num: 1
        :param index: index in the table
        """
        from softverbs.pyverbs.addr import GID

        with self._guard(f"Failed to query gid {index} of port {port_num}") as device:
            entry = _query.gid_at(device, port_num, index)
            return GID._of(entry.gid if entry is not None else bytes(16))

    def query_gid_type(self, port_num: int, index: int) -> int:
        """Kind of a GID: IBV_GID_TYPE_SYSFS_ROCE_V2, or with ``gid_table=mlx5`` IBV_GID_TYPE_SYSFS_IB_ROCE_V1 as well.

        :param port_num: 1
        :param index: index in the table
        :raises PyverbsRDMAError: ENODATA where the entry is empty
        """
        with self._guard(f"Failed to query gid type of port {port_num} and gid index {index}") as device:
            entry = _query.used_gid_at(device, port_num, index)
            of_v2 = entry.kind == e.IBV_GID_TYPE_ROCE_V2
            return e.IBV_GID_TYPE_SYSFS_ROCE_V2 if of_v2 else e.IBV_GID_TYPE_SYSFS_IB_ROCE_V1

    def query_gid_ex(self, port_num: int, gid_index: int, flags: int = 0) -> GIDEntry:
        """An entry of the port's GID table (ibv_query_gid_ex(3)).

        :param port_num: 1
        :param gid_index: index in the table
        :param flags: 0
        :raises PyverbsRDMAError: ENODATA where the entry is empty
        """
        with self._guard(f"Failed to query gid table of port {port_num} in index {gid_index}") as device:
            _query.check_flags(flags)
            return _query.gid_entry(_query.used_gid_at(device, port_num, gid_index), gid_index)

    def query_gid_table(self, max_entries: int, flags: int = 0) -> list[GIDEntry]:
        """The device's GID table (ibv_query_gid_table(3)).

        :param max_entries: how many there is room for, which must do for all
        :param flags: 0
        :raises PyverbsRDMAError: EINVAL; as in C, ``error_code`` is negative, -EINVAL, where there are more entries
        """
        what = "Failed to query gid tables of the device"
        with self._guard(what) as device:
            _query.check_flags(flags)
            count = integer(max_entries, "max_entries", 64)
            entries = list(device.port.gid_table.entries)
        if count < len(entries):
            error = refused(f"{what}: max_entries is {count}, the table has {len(entries)}", -errno.EINVAL)
            error.errno = errno.EINVAL
            raise error
        return [_query.gid_entry(entry, index) for index, entry in enumerate(entries)]

    def query_rt_values_ex(self, comp_mask: int = e.IBV_VALUES_MASK_RAW_CLOCK) -> tuple[int, int]:
        """The clock that completions are stamped with (ibv_query_rt_values_ex(3)): seconds and nanoseconds.

        :param comp_mask: IBV_VALUES_MASK_RAW_CLOCK
        """
        if comp_mask != e.IBV_VALUES_MASK_RAW_CLOCK:
            raise refused(
                f"Failed to query real time values: comp_mask={comp_mask!r}: IBV_VALUES_MASK_RAW_CLOCK is known"
            )
        with self._guard("Failed to query real time values") as device:
            seconds, nanoseconds = divmod(device.clock(), _query.NS_PER_S)
        return seconds, nanoseconds

    # -- asynchronous events

    def get_async_event(self) -> "AsyncEvent":
        """The oldest asynchronous event that nobody has read (ibv_get_async_event(3)).

        Waits for one, unless O_NONBLOCK is set on ``async_fd``: then EAGAIN. Once IBV_EVENT_DEVICE_FATAL is read,
        all that is left is EIO.
        """
        device = self._device()
        device._check_open()
        taken: list[AsyncEvent] = []
        with device.lock:
            if self._take_event(taken):  # before the device is checked: the last event says that it is gone
                return taken[0]
        device.check()
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
            if user is None or _is_alive(owner):
                taken.append(AsyncEvent._of(event_type, owner))
        if not self._events:
            self._bell.silence()
        return bool(taken) or self._core is None

    def _drop_stale_events(self) -> None:
        """Drops the events of objects that are gone: nobody can read them. The lock is held, or the device is gone."""
        if not self._events:
            return
        kept = [(event_type, user) for event_type, user in self._events if user is None or _is_alive(user())]
        if len(kept) != len(self._events):
            self._events.clear()
            self._events.extend(kept)
            if not kept:
                self._bell.silence()

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


def _is_alive(owner: Resource | None) -> bool:
    return owner is not None and owner._core is not None


def get_device_list() -> list[Device]:
    """The devices of this process (ibv_get_device_list(3)): one, which this opens if it is not open yet."""
    device = default_device()
    return [Device(device.name.encode(), device.guid, e.IBV_NODE_CA, e.IBV_TRANSPORT_IB, 0)]


def rdma_get_devices() -> list[Device]:
    """The devices that the connection manager uses (rdma_get_devices(3)): the same one."""
    return get_device_list()


def _chosen(kwargs: dict[str, Any]) -> tuple[SoftDevice, Identity]:
    """The device to open, and what its objects will be known by."""
    if kwargs.get("cmd_fd") is not None:
        identity = imported(kwargs["cmd_fd"])
        return identity.device, identity
    device = kwargs.get("device")
    cmid = kwargs.get("cmid")
    if cmid is not None:
        shared = getattr(cmid, "ctx", None)
        if isinstance(shared, Context) and shared._core is not None:
            return shared.device, shared._core  # the objects of all that share it may work together
        device = getattr(cmid, "device", None)
        if device is None:
            raise refused("Failed to open device: the CMID has no device yet; resolve its address first")
    found = _find(kwargs.get("name"), device)
    return found, Identity(found)


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


def __getattr__(name: str) -> Any:
    """Device memory, whose classes pyverbs has here; imported when asked for, since they import this module."""
    if name in ("DM", "AllocDmAttr"):
        from softverbs.pyverbs import _dm

        return getattr(_dm, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
