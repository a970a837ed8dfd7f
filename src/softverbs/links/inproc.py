"""A switch inside one process: what is sent waits, in order, in a bounded queue of the link that has the GID.

No thread, no descriptor, no clock and no chance: the same calls give the same result. Tests run on it in virtual time.
It knows the identification of every frame to be 0, since no IP header exists to say otherwise.
"""

from __future__ import annotations

import ctypes
import errno
from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

from softverbs.links import base

_BATCH = 16  # bursts per receive(): enough to amortise the call, few enough that a flood cannot hold the caller


class _Burst(NamedTuple):
    source: bytes
    source_port: int
    sgid_index: int
    data: ctypes.Array[ctypes.c_char]
    segment: int


class _Route(NamedTuple):
    source: bytes
    source_port: int
    dgid: bytes


class Network:
    """The switch. `link` plugs in a port; frames go by destination GID, and those to nobody are lost, and counted."""

    def __init__(
        self,
        mtu: int = base.MAX_UDP_PAYLOAD,
        capacity: int = 1024,
        loops_back: bool = False,
        port: int = base.ROCE_PORT,
    ) -> None:
        """mtu: largest frame, bytes; capacity: bursts that wait at each link; loops_back: see base.Link; port: UDP."""
        self.mtu = mtu
        self.capacity = capacity
        self.loops_back = loops_back
        self.port = port
        self._owners: dict[bytes, tuple[InprocLink, int]] = {}

    def link(self, addresses: str | bytes | Sequence[str | bytes]) -> InprocLink:
        """Plug in a link with these addresses ("10.0.0.1", "fd00::1") or GIDs (16 bytes).

        Errors: ValueError for what is neither; OSError (EADDRINUSE) if another open link has the address.
        """
        if isinstance(addresses, (str, bytes)):
            addresses = [addresses]
        gids = [base.gid_of(item) if isinstance(item, str) else bytes(item) for item in addresses]
        if not gids:
            raise ValueError("a link needs an address")
        for gid in gids:
            base.check_gid(gid)
            if gid in self._owners or gids.count(gid) > 1:
                raise OSError(errno.EADDRINUSE, f"{base.address_of(gid)} has a link in this network already")
        link = InprocLink(self, gids)
        self._owners.update((gid, (link, index)) for index, gid in enumerate(gids))
        return link

    def owner(self, gid: bytes) -> tuple[InprocLink, int] | None:
        """Return the link that has `gid`, and at which index, or None."""
        return self._owners.get(gid)

    def unplug(self, link: InprocLink) -> None:
        """Forget a link; its addresses are free again."""
        for gid in link.gids:
            del self._owners[gid]


class InprocLink:
    """A port's plug in a Network; see base.Link for the methods."""

    identification_known = True
    identification_step = 0

    def __init__(self, network: Network, gids: list[bytes]) -> None:
        """Made by Network.link."""
        self.network = network
        self.gids = gids
        self.source_ports = [network.port] * len(gids)
        self.mtu = network.mtu
        self.loops_back = network.loops_back
        self.one_host = True
        self._queue: deque[_Burst] = deque()
        self._counters = dict.fromkeys(("frames_sent", "frames_received", "too_long", "no_owner", "full"), 0)
        self._closed = False

    def route(self, sgid_index: int, dgid: bytes, flow_label: int, traffic_class: int, hop_limit: int) -> object:
        """See base.Link. The peer need not be there yet."""
        self._check_open()
        base.check_gid(dgid)
        if not 0 <= sgid_index < len(self.gids):
            raise OSError(errno.EINVAL, f"there is no GID with index {sgid_index}")
        return _Route(self.gids[sgid_index], self.source_ports[sgid_index], bytes(dgid))

    def send(self, now: int, route: Any, address: int, length: int, segment: int) -> bool:
        """See base.Link. False if the peer's queue is full."""
        self._check_open()
        frames = base.frame_count(length, segment)
        if min(length, segment) > self.mtu:
            return self._lost("too_long", frames)
        owner = self.network.owner(route.dgid)
        if owner is None:
            return self._lost("no_owner", frames)
        link, index = owner
        if len(link._queue) >= self.network.capacity:
            self._counters["full"] += 1
            return False
        data = (ctypes.c_char * length)()
        ctypes.memmove(data, address, length)
        link._queue.append(_Burst(route.source, route.source_port, index, data, segment))
        self._counters["frames_sent"] += frames
        return True

    def receive(self, now: int, sink: base.Sink) -> int:
        """See base.Link."""
        self._check_open()
        count = min(len(self._queue), _BATCH)  # fixed beforehand: the sink may send to this very link
        for _ in range(count):
            burst = self._queue.popleft()
            length = len(burst.data)
            self._counters["frames_received"] += base.frame_count(length, burst.segment)
            peer = sink.peer(burst.source, burst.source_port, burst.sgid_index)
            sink.receive(peer, ctypes.addressof(burst.data), length, min(length, burst.segment))
        return count

    def deadline(self) -> int | None:
        """Return 0, which is always past, while something waits; None otherwise."""
        return 0 if self._queue else None

    def filenos(self) -> list[int]:
        """Return no descriptors: nothing happens here that the process did not do itself."""
        return []

    def stats(self) -> dict[str, int]:
        """Return the counters; `full` counts refused calls, the others frames."""
        return dict(self._counters)

    def close(self) -> None:
        """Unplug. What waits here is lost."""
        if not self._closed:
            self._closed = True
            self._queue.clear()
            self.network.unplug(self)

    def _lost(self, reason: str, frames: int) -> bool:
        self._counters[reason] += frames
        return True

    def _check_open(self) -> None:
        if self._closed:
            raise base.closed_error()
