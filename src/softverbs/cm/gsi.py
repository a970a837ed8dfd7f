# SPDX-License-Identifier: MIT
"""Queue pair 1, the general service interface: it carries management datagrams (IBA 9.8 and 13.5.1)."""

import errno
from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from softverbs.cm.addresses import of_gid
from softverbs.cm.messages import MAD_SIZE
from softverbs.core.base.constants import VALUES
from softverbs.core.base.errors import PyverbsRDMAError
from softverbs.core.memory.raw import Block, view
from softverbs.core.memory.regions import ProtectionDomain
from softverbs.core.queues.completion import CompChannel, CompletionQueue
from softverbs.core.queues.wr import SGE, RecvWR, SendWR
from softverbs.core.transport import qp_states
from softverbs.core.transport.address import AddressHandle, AddressVector
from softverbs.core.transport.qp import QueuePair

if TYPE_CHECKING:
    from softverbs.device import Device

GSI_QPN = 1
GSI_QKEY = 0x80010000
GRH_SIZE = 40
SLOT = GRH_SIZE + MAD_SIZE
#: Datagrams that may wait to be looked at, and to be sent.
RECEIVES = 256
SENDS = 256
#: Address handles that are kept.
HANDLES = 256

_LOCAL_WRITE = 1
_UD = 4
_RESET, _INIT, _RTR, _RTS = (VALUES[name] for name in ("QPS_RESET", "QPS_INIT", "QPS_RTR", "QPS_RTS"))
_SQE, _ERR, _FLUSHED = (VALUES[name] for name in ("QPS_SQE", "QPS_ERR", "WC_WR_FLUSH_ERR"))
_SEND, _INLINE = VALUES["WR_SEND"], VALUES["SEND_INLINE"]


class _Handle:
    """A core address handle, as a work request takes it."""

    def __init__(self, core: AddressHandle) -> None:
        self.core = core

    def _open(self) -> AddressHandle:
        return self.core


class Gsi:
    """Queue pair 1 of a device. The device's lock is held around every call."""

    def __init__(self, device: "Device", take: Callable[[bytes, int, bytes], None]) -> None:
        """
        :param device: whose port it is
        :param take: takes the GID that a datagram came from, the index of the GID that it came to, and the datagram
        :raises PyverbsRDMAError: EBUSY where the port has a queue pair 1 already
        """
        self._device = device
        self._take = take
        port = device.port
        self._owner = object()
        self._handles: OrderedDict[tuple[int, bytes, int], _Handle] = OrderedDict()
        self._pd = ProtectionDomain(port, self._owner)
        self._memory = Block(SLOT * RECEIVES)
        self._scratch = Block(MAD_SIZE)
        size = SLOT * RECEIVES
        self._mr = port.regions.register(
            self._pd, self._memory.address, size, _LOCAL_WRITE, self._memory.address, self._memory
        )
        self._channel = CompChannel(self._notify)
        self._scheduled = False
        self._receive_cq = CompletionQueue(port, self._owner, RECEIVES, "cm", self._channel, 0, 0)
        self._send_cq = CompletionQueue(port, self._owner, SENDS, "cm", self._channel, 0, 0)
        cap = (SENDS, RECEIVES, 1, 1, MAD_SIZE)
        self._qp = QueuePair(
            port, self._owner, self._pd, self._send_cq, self._receive_cq, None, cap, _UD, True, None, GSI_QPN
        )
        #: Slots that could not be posted.
        self._unposted: list[int] = []
        self._start()
        for queue in (self._receive_cq, self._send_cq):
            queue.req_notify(False)
        #: Datagrams that could not be sent, since the queue was full or there is no way to the peer.
        self.unsent = 0

    def _start(self) -> None:
        mask = qp_states.STATE | qp_states.PKEY_INDEX | qp_states.PORT | qp_states.QKEY
        self._qp.modify({"qp_state": _INIT, "pkey_index": 0, "port_num": 1, "qkey": GSI_QKEY}, mask)
        for slot in range(RECEIVES):
            self._post(slot)
        self._qp.modify({"qp_state": _RTR}, qp_states.STATE)
        self._qp.modify({"qp_state": _RTS, "sq_psn": 0}, qp_states.STATE | qp_states.SQ_PSN)

    def _post(self, slot: int) -> None:
        element = SGE(self._memory.address + slot * SLOT, SLOT, self._mr.lkey)
        try:
            self._qp.post_recv(RecvWR(slot, 1, [element]))
        except PyverbsRDMAError:  # a fault on demand
            self._unposted.append(slot)

    def _notify(self) -> None:
        """Something has completed, somewhere in the middle of the device's work: it is looked at afterwards."""
        if not self._scheduled:
            self._scheduled = True
            self._device.deferred.append(self._run)

    def _run(self) -> None:
        """Hands on what has arrived."""
        self._scheduled = False
        if self._qp.closed:
            return
        unposted, self._unposted = self._unposted, []
        for slot in unposted:
            self._post(slot)
        try:
            self._drain()
        except PyverbsRDMAError as error:  # a fault on demand; of a device that is gone nothing can be polled
            if self._device.port.failure is None:
                self._device.log.info("connection manager: %s", error)
                self._notify()
        if self._qp.state == _ERR and self._device.port.failure is None:
            self._qp.modify({"qp_state": _RESET}, qp_states.STATE)  # a fault on demand: it begins anew
            self._unposted.clear()
            self._start()

    def _drain(self) -> None:
        """Takes completions until there is none and the next will be told."""
        while self._take_completions():
            while (queue := self._channel.pop()) is not None:
                queue.ack(1)
                queue.req_notify(False)

    def _take_completions(self) -> bool:
        """Takes what there is; whether an event or a completion was there."""
        found = self._channel.pending > 0
        found |= self._take_sends()
        while self._receive_cq.count():
            found = True
            for wc in self._receive_cq.poll(1):
                self._on_receive(wc)
        return found

    def _take_sends(self) -> bool:
        """Takes the completions of sends, which frees their slots; whether there was one."""
        found = False
        while self._send_cq.count():
            found = True
            for wc in self._send_cq.poll(1):
                if wc.status:
                    self.unsent += 1
            if self._qp.state == _SQE:
                self._qp.modify({"qp_state": _RTS}, qp_states.STATE)
        return found

    def _on_receive(self, wc: Any) -> None:
        slot = int(wc.wr_id)
        if wc.status == _FLUSHED:
            return
        data = bytes(view(self._memory.address + slot * SLOT, SLOT)) if not wc.status else b""
        self._post(slot)
        if wc.status or wc.byte_len < GRH_SIZE:
            return
        source, target = grh_gids(data[:GRH_SIZE])
        gids = self._device.link.gids
        if target in gids:
            self._take(source, gids.index(target), data[GRH_SIZE : wc.byte_len])

    def send(self, sgid_index: int, dgid: bytes, mad: bytes, traffic_class: int = 0) -> None:
        """Sends a datagram; one that cannot be sent is lost, as on any wire.

        :param sgid_index: the own GID
        :param dgid: the peer's GID
        :param mad: 256 bytes
        :param traffic_class: 8 bits
        """
        wr = SendWR(0, _SEND, 1, 0, [SGE(self._scratch.address, len(mad), 0)], _INLINE)
        view(self._scratch.address, len(mad))[:] = mad
        try:
            self._take_sends()
            wr.set_wr_ud(self._handle(sgid_index, dgid, traffic_class), GSI_QPN, GSI_QKEY)
            self._qp.post_send(wr)
        except PyverbsRDMAError as error:
            self.unsent += 1
            self._device.log.info("connection manager: nothing sent to %s: %s", of_gid(dgid).text, error)

    def _handle(self, sgid_index: int, dgid: bytes, traffic_class: int) -> _Handle:
        key = (sgid_index, dgid, traffic_class)
        handle = self._handles.get(key)
        if handle is None:
            while len(self._handles) >= HANDLES:
                self._handles.popitem(last=False)[1].core.close()
            index = self._device.port.gid_table.index_of_address(sgid_index)
            vector = AddressVector(dgid, index, traffic_class=traffic_class)
            handle = _Handle(AddressHandle(self._device.port, self._pd, vector))
            self._handles[key] = handle
        self._handles.move_to_end(key)
        return handle

    def close(self) -> None:
        """Ends queue pair 1."""
        if self._qp.closed:
            return
        self._qp.close()
        for handle in self._handles.values():
            handle.core.close()
        self._handles.clear()
        for queue in (self._receive_cq, self._send_cq):
            queue.close()
        self._device.port.regions.deregister(self._mr)
        self._pd.close()


def grh_gids(grh: bytes) -> tuple[bytes, bytes]:
    """Source and destination GID of the 40 bytes in front of a datagram: an IPv6 header, or zeros and an IPv4 header.

    :param grh: 40 bytes (annex A17.4.5.1)
    """
    if grh[0] >> 4 != 6 and grh[20] >> 4 == 4:
        mapped = bytes(10) + b"\xff\xff"
        return mapped + grh[32:36], mapped + grh[36:40]
    return grh[8:24], grh[24:40]


def unreachable(device: "Device", sgid_index: int, dgid: bytes, traffic_class: int = 0) -> int:
    """0, or why a GID cannot be reached: a negative errno.

    :param device: from which port
    :param sgid_index: from which of its GIDs
    :param dgid: the peer's GID
    :param traffic_class: 8 bits
    """
    index = device.port.gid_table.index_of_address(sgid_index)
    try:
        device.port.path_to(AddressVector(dgid, index, traffic_class=traffic_class))
    except PyverbsRDMAError as error:
        return -(error.errno or errno.ENETUNREACH)
    return 0
