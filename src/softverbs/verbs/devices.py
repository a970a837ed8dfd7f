# SPDX-License-Identifier: MIT
"""Devices, their ports and their asynchronous events."""

from collections.abc import Sequence
from typing import Any

from softverbs.pyverbs import device as _device
from softverbs.pyverbs._cq_text import cqe_status_to_str
from softverbs.pyverbs._fields import fill, refused
from softverbs.pyverbs.addr import GID
from softverbs.pyverbs.device import (
    AsyncEvent,
    CompCntrCaps,
    Context,
    Device,
    DeviceAttr,
    DeviceAttrEx,
    GIDEntry,
    PortAttr,
    QueryDeviceExInput,
)
from softverbs.pyverbs.pyverbs_error import PyverbsError
from softverbs.pyverbs.utils import be64toh
from softverbs.verbs._convention import need, note, returns_object, returns_status, store


@returns_object
def ibv_get_device_list(num_devices: Any = None) -> list[Device]:
    """The devices that can be opened: one, the device of this process.

    :param num_devices: ``int *``: where the number of devices goes, or None
    :return: a list of Device, without C's NULL at the end; or None with errno set
    """
    devices = _device.get_device_list()
    if num_devices is not None:
        store(num_devices, len(devices), "num_devices")
    return devices


def ibv_free_device_list(device_list: Sequence[Device] | None) -> None:
    """Gives the list back. Contexts opened from it stay open.

    :param device_list: from ``ibv_get_device_list``
    """


def ibv_get_device_name(device: Device) -> str:
    """The name of a device.

    :param device: an entry of the list
    """
    return device.name.decode()


def ibv_get_device_guid(device: Device) -> int:
    """The GUID of a device, in network order: its bytes in a host integer.

    :param device: an entry of the list
    """
    return be64toh(device.guid)


@returns_object
def ibv_open_device(device: Device) -> Context:
    """Opens a device.

    :param device: an entry of the list
    :return: a Context, or None with errno set
    """
    return Context(name=need(device, Device, "device").name.decode())


@returns_object
def ibv_import_device(cmd_fd: int) -> Context:
    """Opens the device of another context of this process once more; objects of that context can be imported.

    :param cmd_fd: a duplicate of that context's ``cmd_fd``; closing the new context closes it
    :return: a Context, or None with errno set: EBADF, ENODEV
    """
    return Context(cmd_fd=cmd_fd)


@returns_status
def ibv_close_device(context: Context) -> None:
    """Closes a device, with what is left of the objects of this context, as the kernel does.

    :param context: the open device
    :return: 0, or the value of errno
    """
    need(context, Context, "context").close()


@returns_status
def ibv_query_device(context: Context, device_attr: DeviceAttr) -> None:
    """The device's attributes: limits, mostly upper bounds, which other uses of the device may lower.

    :param context: the open device
    :param device_attr: filled in
    :return: 0, or the value of errno
    """
    _overwrite(need(device_attr, DeviceAttr, "device_attr"), need(context, Context, "context").query_device())


@returns_status
def ibv_query_device_ex(context: Context, input: QueryDeviceExInput | None, attr: DeviceAttrEx) -> None:
    """The device's attributes and what was added to them: timestamps, on-demand paging and so on.

    :param context: the open device
    :param input: None
    :param attr: filled in
    :return: 0, or the value of errno
    """
    _overwrite(need(attr, DeviceAttrEx, "attr"), need(context, Context, "context").query_device_ex(input))


@returns_status
def ibv_query_comp_cntr_caps(context: Context, caps: CompCntrCaps) -> None:
    """What completion counters can do: their number, their largest value, the operations they can count.

    :param context: the open device
    :param caps: filled in
    :return: 0, or the value of errno
    """
    _overwrite(need(caps, CompCntrCaps, "caps"), need(context, Context, "context").query_comp_cntr_caps())


@returns_status
def ibv_query_port(context: Context, port_num: int, port_attr: PortAttr) -> None:
    """The attributes of a port.

    :param context: the open device
    :param port_num: 1
    :param port_attr: filled in
    :return: 0, or the value of errno
    """
    _overwrite(need(port_attr, PortAttr, "port_attr"), need(context, Context, "context").query_port(port_num))


@returns_status
def ibv_query_gid(context: Context, port_num: int, index: int, gid: GID) -> None:
    """An entry of the port's GID table.

    :param context: the open device
    :param port_num: 1
    :param index: index in the table
    :param gid: filled in
    :return: 0, or the value of errno (C: -1)
    """
    need(gid, GID, "gid").raw = need(context, Context, "context").query_gid(port_num, index).raw


@returns_status
def ibv_query_gid_ex(context: Context, port_num: int, gid_index: int, entry: GIDEntry, flags: int) -> None:
    """An entry of the port's GID table, with its type.

    :param context: the open device
    :param port_num: 1
    :param gid_index: index in the table
    :param entry: filled in
    :param flags: 0
    :return: 0, or the value of errno
    """
    found = need(context, Context, "context").query_gid_ex(port_num, gid_index, flags)
    _overwrite(need(entry, GIDEntry, "entry"), found)


def ibv_query_gid_table(context: Context, entries: list[Any], max_entries: int, flags: int) -> int:
    """The device's GID table.

    :param context: the open device
    :param entries: a list, whose first entries become those of the table; it grows where it is shorter
    :param max_entries: how many there is room for, which must do for all
    :param flags: 0
    :return: how many there are; or a negative number, whose absolute value is that of errno
    """
    try:
        found = need(context, Context, "context").query_gid_table(max_entries, flags)
        need(entries, list, "entries")[: len(found)] = found
        return len(found)
    except PyverbsError as error:
        return -note(error)


@returns_status
def ibv_query_pkey(context: Context, port_num: int, index: int, pkey: Any) -> None:
    """An entry of the port's P_Key table.

    :param context: the open device
    :param port_num: 1
    :param index: index in the table
    :param pkey: ``__be16 *``: where the P_Key goes, in network order
    :return: 0, or the value of errno (C: -1)
    """
    store(pkey, need(context, Context, "context").query_pkey(port_num, index), "pkey")


@returns_status
def ibv_get_async_event(context: Context, event: AsyncEvent) -> None:
    """Waits for the next asynchronous event; EAGAIN instead where O_NONBLOCK is set on ``context.async_fd``.

    :param context: the open device
    :param event: filled in; it must be acknowledged
    :return: 0, or the value of errno (C: -1 with errno set)
    """
    need(event, AsyncEvent, "event")
    _overwrite(event, need(context, Context, "context").get_async_event())


@returns_status
def ibv_ack_async_event(event: AsyncEvent) -> None:
    """Acknowledges an event. Destroying the QP or CQ it is about waits for that.

    :param event: from ``ibv_get_async_event``
    :return: 0, or the value of errno (C: nothing)
    """
    need(event, AsyncEvent, "event").ack()


def ibv_event_type_str(event_type: int) -> str:
    """The name of an asynchronous event.

    :param event_type: IBV_EVENT_*
    """
    return _device.translate_event_type(event_type)


def ibv_wc_status_str(status: int) -> str:
    """The name of a completion's status.

    :param status: IBV_WC_*
    """
    return cqe_status_to_str(status)


def _overwrite(target: Any, source: Any) -> None:
    """``*target = *source``."""
    if type(target) is not type(source):
        raise refused(f"{type(target).__name__} where {type(source).__name__} is expected")
    fill(target, **source.__dict__)
