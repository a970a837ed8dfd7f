# SPDX-License-Identifier: MIT
"""What the requester and the responder of one queue pair both read. Owner: the queue pair.

It alone writes it, but for the protection domain of an XRC target, which is that of the SRQ that a request names.
"""

try:
    import cython
except ImportError:
    from softverbs import _cython as cython

if not cython.compiled:
    from softverbs.core.base.host import Host
    from softverbs.core.memory.far import Far
    from softverbs.core.memory.raw import copy, load32, load64
    from softverbs.core.memory.regions import ProtectionDomain, Regions
    from softverbs.core.memory.spaces import is_far
    from softverbs.core.queues.rings import SGE_LENGTH, SGE_LKEY, SGE_SIZE
    from softverbs.core.wire.egress import Path
    from softverbs.core.wire.opcodes import RC


class Connection:
    """Both ends' numbers, the path between them, and access to the application's memory."""

    def __init__(self, port: Host, regions: Regions, pd: ProtectionDomain, qp_num: int) -> None:
        """
        :param port: the port of the queue pair
        :param regions: the device's memory regions
        :param pd: protection domain of the queue pair; None for an XRC target
        :param qp_num: its number
        """
        self.port = port
        self.regions = regions
        self.pd = pd
        #: That of the memory that receives name: the SRQ's, where there is one.
        self.receive_pd = pd
        self.qp_num = qp_num
        self.dest_qp_num = 0
        #: What the transport adds to the opcode of an operation (``opcodes``).
        self.transport = RC
        self.qkey = 0
        #: There is one from RTR on: ``connected``.
        self.path: Path = None  # type: ignore[assignment]
        self.connected = False
        self.mtu = 1024
        self.pkey = 0xFFFF
        self.access = 0
        self.peer_name = "nobody"
        #: Why the last access to memory was refused.
        self.fault = ""
        #: What the peer said about its last NAK, and about which PSN.
        self.words = ""
        self.words_psn = 0
        #: The way to memory of other processes, for all of the port.
        self.far: Far = port.far
        #: Why work requests that came through shared memory are wrong, by their place in the send queue.
        self.refusals: dict[int, str] = {}

    def gather(self, sges: int, count: int, offset: int, length: int, destination: int) -> bool:
        """Copies ``length`` bytes out of a scatter/gather list, from ``offset`` bytes into it; False: ``fault``."""
        return self._move(sges, count, offset, length, destination, 0, self.pd)

    def scatter(self, sges: int, count: int, offset: int, length: int, source: int) -> bool:
        """Copies ``length`` bytes into a scatter/gather list, from ``offset`` bytes into it; False: ``fault``.

        Where the memory is far, ``land`` has to follow before anybody is told.
        """
        return self._move(sges, count, offset, length, source, 1, self.pd)

    def place(self, sges: int, count: int, offset: int, length: int, source: int) -> bool:
        """As ``scatter``, into the list of a receive."""
        return self._move(sges, count, offset, length, source, 1, self.receive_pd)

    def _move(
        self, sges: int, count: int, offset: int, length: int, other: int, right: int, pd: ProtectionDomain
    ) -> bool:
        """``right``: ACCESS_LOCAL_WRITE (1) to write the list, 0 to read it."""
        sge = sges
        for _ in range(count):
            size = load32(sge + SGE_LENGTH)
            if offset >= size:
                offset -= size
            elif length > 0:
                part = size - offset
                if part > length:
                    part = length
                key = load32(sge + SGE_LKEY)
                va = load64(sge) + offset
                address = self.regions.translate(key, va, part, right, pd, self.qp_num)
                if address == 0:
                    self.fault = self.regions.explain(key, va, part, right, pd, self.qp_num)
                    return False
                if is_far(address):
                    if not self._move_far(address, other, part, size - offset, right):
                        return False
                elif right:
                    copy(address, other, part)
                else:
                    copy(other, address, part)
                other += part
                length -= part
                offset = 0
            sge += SGE_SIZE
        return length == 0

    def _move_far(self, address: int, other: int, length: int, rest: int, right: int) -> bool:
        return self.place_far(address, other, length) if right else self.fetch_far(other, address, length, rest)

    def fetch_far(self, destination: int, source: int, length: int, rest: int) -> bool:
        """``Far.fetch``; False: ``fault``."""
        if self.far.fetch(destination, source, length, rest):
            return True
        self.fault = self.far.fault
        return False

    def place_far(self, destination: int, source: int, length: int) -> bool:
        """``Far.put``: ``land`` has to follow before anybody is told. False: ``fault``."""
        if self.far.put(destination, source, length):
            return True
        self.fault = self.far.fault
        return False

    def land(self) -> bool:
        """``Far.land``; False: ``fault``."""
        if self.far.count == 0 or self.far.land():
            return True
        self.fault = self.far.fault
        return False

    def check(self, sges: int, count: int, right: int) -> bool:
        """Whether every element of a list may be accessed whole; False: ``fault``."""
        sge = sges
        for _ in range(count):
            size = load32(sge + SGE_LENGTH)
            if size > 0 and self.translate(load32(sge + SGE_LKEY), load64(sge), size, right) == 0:
                return False
            sge += SGE_SIZE
        return True

    def translate(self, key: int, va: int, length: int, right: int) -> int:
        """As ``Regions.translate``, for this queue pair; 0: ``fault``."""
        address = self.regions.translate(key, va, length, right, self.pd, self.qp_num)
        if address == 0:
            self.fault = self.regions.explain(key, va, length, right, self.pd, self.qp_num)
        return address
