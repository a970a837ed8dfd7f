# SPDX-License-Identifier: MIT
"""Commands about the device and the connection itself."""

import errno
import os
import socket
from contextlib import ExitStack
from typing import Any

from softverbs.core.base.errors import PyverbsRDMAError
from softverbs.core.base.limits import DEFAULT_PKEY, MAX_PKEYS
from softverbs.core.memory import spaces
from softverbs.core.queues.marks import Marks
from softverbs.pyverbs import _device_query as query
from softverbs.server import abi
from softverbs.server._layout import CONTROL, MARKS_SIZE, PURPOSES
from softverbs.server._memory import SharedMemory, open_reader, own_memory
from softverbs.server._planned import show_asks
from softverbs.server._registry import handles
from softverbs.server.session import Session

Values = dict[str, Any]


@handles("HELLO")
def hello(session: Session, request: Values) -> Values:
    """Begins the session: the space of its process, the control page, the doorbell, the socket of events."""
    if request["abi"] != abi.VERSION:
        raise PyverbsRDMAError(
            f"the driver speaks version {request['abi']} of the protocol, the device {abi.VERSION}", errno.EPROTO
        )
    if request["purpose"] not in PURPOSES.values():
        raise PyverbsRDMAError(f"purpose={request['purpose']} is not known", errno.EINVAL)
    if request["purpose"] == PURPOSES["PURPOSE_CONTEXT"]:
        _begin(session, request["guard"], request["secret"])
        session.server.opened += 1
    session.greeted = True
    session.server.asked += 1
    device = session.device
    return {
        "guid": device.guid,
        "abi": abi.VERSION,
        "num_comp_vectors": session.port.num_comp_vectors,
        "name": device.name.encode()[:63],
        "fw_ver": query.device_attr(device).fw_version.encode()[:63],
        **session.server.digests,
    }


def _begin(session: Session, guard: int, secret: int) -> None:
    if session.pid <= 0:
        raise PyverbsRDMAError("the program is in another pid namespace: its memory cannot be reached", errno.EPERM)
    mem = reader = -1
    with ExitStack() as undo:
        if session.user != os.geteuid():
            mem = own_memory(session.received, session.pid)
            undo.callback(os.close, mem)
        else:
            reader = open_reader(session.pid, guard, secret)
            if reader >= 0:
                undo.callback(os.close, reader)
        control = SharedMemory(CONTROL["CONTROL_SIZE"])
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        undo.callback(ours.close)
        undo.callback(theirs.close)
        doorbell = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        undo.callback(os.close, doorbell)
        passed = os.dup(doorbell)
        undo.callback(os.close, passed)
        end = os.dup(theirs.fileno())
        undo.callback(os.close, end)
        space = spaces.enter(session.pid, guard, secret, mem, reader)
        undo.callback(spaces.leave, space)
        _check_guard(space)
        undo.pop_all()
    session.space, session.mem, session.reader = space, mem, reader
    ours.setblocking(False)
    session.events, session.far_events, session.control, session.doorbell = ours, theirs, control, doorbell
    session.marks = Marks(control.address + CONTROL["CONTROL_MARKS"], MARKS_SIZE, control)
    session.pass_on(control)
    session.passing += [passed, end]
    try:
        session.server.watch_doorbell(session)
    except OSError as error:
        session.end(f"its doorbell cannot be watched: {error.strerror}")
        raise
    session.server.look_at(session)
    show_asks(session)


def _check_guard(space: int) -> None:
    """The process has the guard that was told. Where the kernel does not let the device look, each access is refused,
    too: the program may use what needs none of its memory.
    """
    if not spaces.holds(space) and spaces.is_lost(space):
        raise PyverbsRDMAError(f"the program's guard page: {spaces.explain()}", errno.EFAULT)


@handles("QUERY_DEVICE")
def query_device(session: Session, request: Values) -> Values:
    """ibv_query_device_ex(3)."""
    full = query.device_attr_ex(session.device)
    plain = full.orig_attr
    values: Values = {}
    for member in abi.COMMANDS["QUERY_DEVICE"].response.members:
        for source in (plain, full, full.cq_mod_caps, full.odp_caps):
            if hasattr(source, member.name):
                values[member.name] = getattr(source, member.name)
                break
    values["odp_general_caps"] = full.odp_caps.general_caps
    values["fw_ver"] = plain.fw_version.encode()[:63]
    return values


@handles("QUERY_PORT")
def query_port(session: Session, request: Values) -> Values:
    """ibv_query_port(3)."""
    query.check_port(request["port_num"])
    attr = query.port_attr(session.device)
    return {member.name: getattr(attr, member.name) for member in abi.COMMANDS["QUERY_PORT"].response.members}


@handles("QUERY_GID")
def query_gid(session: Session, request: Values) -> Values:
    """ibv_query_gid_ex(3)."""
    entry = query.used_gid_at(session.device, request["port_num"], request["index"])
    return {"gid": entry.gid, "type": entry.kind}


@handles("QUERY_PKEY")
def query_pkey(session: Session, request: Values) -> Values:
    """ibv_query_pkey(3)."""
    query.check_port(request["port_num"])
    query.check_index(request["index"], MAX_PKEYS, "P_Key")
    return {"pkey": DEFAULT_PKEY}
