# SPDX-License-Identifier: MIT
"""A switch inside one process: what is sent waits, in order, in a bounded queue of the link that has the GID.

A full queue makes the sender wait, so nothing is lost between ports that make progress. A port that makes none would
hold back all that the sender has to say, to others too; so after PATIENCE its frames are lost until it is back.

No thread, no descriptor, no clock and no chance: the same calls give the same result. Tests run on it in virtual time.
It knows the identification of every frame to be 0, since no IP header exists to say otherwise.
"""

from __future__ import annotations

import ctypes
import errno
from collections import Counter, deque
from collections.abc import Sequence
from typing import Any, NamedTuple

from softverbs.links import base

PATIENCE = 10_000_000
"""How long a sender waits for a link with a full queue that takes nothing out of it, ns. Then it is as with UDP."""

_BATCH = 16  # bursts per receive(): enough to amortise the call, few enough that a flood cannot hold the caller


class _Burst(NamedTuple):
    source: bytes
    source_port: int
    sgid_index: int
    group: bytes | None  # that it was sent to
    data: ctypes.Array[ctypes.c_char]
    segment: int


class _Route(NamedTuple):
    source: bytes
    source_port: int
    dgid: bytes
    to_group: bool


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
        self._members: dict[bytes, dict[InprocLink, Counter[int]]] = {}

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

    def members(self, group: bytes) -> list[tuple[InprocLink, int]]:
        """Return the links that have joined a multicast GID, in the order in which they did, and the GID index of each.

        Where a link has joined by several GIDs, the index is the smallest: each link gets a frame once.
        """
        return [(link, min(+joins)) for link, joins in self._members.get(group, {}).items()]

    def join(self, link: InprocLink, group: bytes, sgid_index: int) -> None:
        """Count a link in."""
        self._members.setdefault(group, {}).setdefault(link, Counter())[sgid_index] += 1

    def leave(self, link: InprocLink, group: bytes, sgid_index: int) -> bool:
        """Count a link out. False if it was not in."""
        links = self._members.get(group, {})
        joins = links.get(link, Counter())
        if joins[sgid_index] == 0:
            return False
        joins[sgid_index] -= 1
        if not +joins:
            del links[link]
        if not links:
            del self._members[group]
        return True

    def unplug(self, link: InprocLink) -> None:
        """Forget a link; its addresses are free again."""
        for gid in link.gids:
            del self._owners[gid]
        for group in list(self._members):
            self._members[group].pop(link, None)
            if not self._members[group]:
                del self._members[group]


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
        self._full_since: int | None = None  # when it first refused a burst since receive() was last called
        self._counters = dict.fromkeys(
            ("frames_sent", "frames_received", "too_long", "no_owner", "full", "overflow"), 0
        )
        self._closed = False

    def route(self, sgid_index: int, dgid: bytes, flow_label: int, traffic_class: int, hop_limit: int) -> object:
        """See base.Link. The peer need not be there yet."""
        self._check_open()
        base.check_gid(dgid)
        if not 0 <= sgid_index < len(self.gids):
            raise OSError(errno.EINVAL, f"there is no GID with index {sgid_index}")
        return _Route(self.gids[sgid_index], self.source_ports[sgid_index], bytes(dgid), base.is_multicast(dgid))

    def send(self, now: int, route: Any, address: int, length: int, segment: int) -> bool:
        """See base.Link. False if the peer's queue is full, until PATIENCE has passed."""
        self._check_open()
        frames = base.frame_count(length, segment)
        if min(length, segment) > self.mtu:
            return self._lost("too_long", frames)
        if route.to_group:
            return self._send_to_group(route, address, length, segment)
        owner = self.network.owner(route.dgid)
        if owner is None:
            return self._lost("no_owner", frames)
        link, index = owner
        if len(link._queue) >= self.network.capacity:
            if link._full_since is None:
                link._full_since = now
            if now - link._full_since < PATIENCE:
                self._counters["full"] += 1
                return False
            return link._lost("overflow", frames)
        link._put(route, index, None, address, length, segment)
        self._counters["frames_sent"] += frames
        return True

    def _send_to_group(self, route: _Route, address: int, length: int, segment: int) -> bool:
        """Give a copy to every other member; one whose queue is full loses it, as in IP multicast nobody waits."""
        frames = base.frame_count(length, segment)
        for link, index in self.network.members(route.dgid):
            if link is self:
                continue
            if len(link._queue) < self.network.capacity:
                link._put(route, index, route.dgid, address, length, segment)
            else:
                link._counters["overflow"] += frames
        self._counters["frames_sent"] += frames
        return True

    def _put(self, route: _Route, index: int, group: bytes | None, address: int, length: int, segment: int) -> None:
        """Queue a copy of a burst that comes by `route`."""
        data = (ctypes.c_char * length)()
        ctypes.memmove(data, address, length)
        self._queue.append(_Burst(route.source, route.source_port, index, group, data, segment))

    def receive(self, now: int, sink: base.Sink) -> int:
        """See base.Link."""
        self._check_open()
        self._full_since = None
        count = min(len(self._queue), _BATCH)  # fixed beforehand: the sink may send to this very link
        for _ in range(count):
            burst = self._queue.popleft()
            length = len(burst.data)
            self._counters["frames_received"] += base.frame_count(length, burst.segment)
            peer = base.peer_of(sink, burst.source, burst.source_port, burst.sgid_index, burst.group)
            sink.receive(peer, ctypes.addressof(burst.data), length, min(length, burst.segment))
        return count

    def join(self, gid: bytes, sgid_index: int) -> None:
        """See base.Link."""
        self._check_open()
        base.check_join(gid, sgid_index, self.gids)
        self.network.join(self, bytes(gid), sgid_index)

    def leave(self, gid: bytes, sgid_index: int) -> None:
        """See base.Link."""
        self._check_open()
        if not self.network.leave(self, bytes(gid), sgid_index):
            raise base.no_member_error(gid, sgid_index)

    def deadline(self) -> int | None:
        """Return 0, which is always past, while something waits; None otherwise."""
        return 0 if self._queue else None

    def filenos(self) -> list[int]:
        """Return no descriptors: nothing happens here that the process did not do itself."""
        return []

    def stats(self) -> dict[str, int]:
        """Return the counters, of frames; but `full` counts calls that were refused.

        overflow: frames that were lost because this link's queue was full; no_owner, too_long: that it sent in vain.
        """
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
