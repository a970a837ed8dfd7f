# SPDX-License-Identifier: MIT
"""Frames on their way out, gathered so that the link is called once for many.

Frames of one length to one destination stand side by side as a *burst*, which a link hands to the kernel in one
call (segmentation offload). A burst ends when the destination or the length changes; its last frame may be shorter.
Owner: the port. Requesters and responders only ask for room, write a frame and commit it.
"""

from typing import Any

try:
    import cython
except ImportError:
    from softverbs import _cython as cython
if not cython.compiled:
    from softverbs.core.memory.raw import Block, store32
    from softverbs.core.wire.icrc import IcrcPath

ARENA_SIZE = 512 * 1024
MAX_BURSTS = 512
BURST_FRAMES = 64  # UDP_MAX_SEGMENTS of older kernels
BURST_BYTES = 64000  # an IP packet holds 65,535
ICRC_SIZE = 4
#: What the wire adds to a frame, bytes: Ethernet, IPv6 and UDP headers, and the Ethernet FCS.
WIRE_HEADERS = 66
#: How far a path may lag behind its static rate and make up for it, ns: the grain of the device's sleeps.
RATE_GRAIN = 1000000
#: Most bytes that leave at once where there is a limit of the rate.
RATE_BURST = 65536


class Path:
    """Where a QP's frames go: the link's route, and what the ICRC needs to know.

    ``local``: to this very port, without a link and so without an ICRC.
    """

    def __init__(
        self, route: object, icrc: "IcrcPath", local: bool, nearby: bool, step: int, group: bool, peer: object
    ) -> None:
        """
        :param route: opaque to the core, from the link
        :param icrc: the ICRC of frames on this path
        :param local: deliver to the same port
        :param nearby: the peer is on this host
        :param step: segment i of a burst has the IPv4 identification ``i * step``
        :param group: to a multicast group: over the link, and to members at this port
        :param peer: what the receiving side knows of the sender, where that is this port
        """
        self.group = group
        self.peer: Any = peer
        self.route = route
        self.icrc = icrc
        self.local = local
        self.nearby = nearby
        self.step = step
        #: Limit of the rate, as the time that a byte takes, ns / 1,024; 0: none. When the next packet may leave, ns.
        self.pace = 0
        self.free_at = 0

    def is_turn(self, now: int) -> bool:
        """Whether the limit of the rate lets a packet leave now; else ``free_at`` says when."""
        if self.free_at < now - RATE_GRAIN:
            self.free_at = now - RATE_GRAIN
        return now >= self.free_at


class Egress:
    """The arena of frames, and the table of bursts in it."""

    def __init__(self) -> None:
        self.block = Block(ARENA_SIZE)
        self.address = self.block.address
        self.used = 0
        #: How far the arena may be used: less than its size while a queue pair writes that has a limit of its rate.
        self.end = ARENA_SIZE
        self.bursts = 0
        self.paths: list[Path] = [None] * MAX_BURSTS  # type: ignore[list-item]
        self.offsets = [0] * 512  # MAX_BURSTS: C wants a literal
        self.lengths = [0] * 512
        self.segments = [0] * 512
        self.open = False
        self.frames_in_burst = 0
        self.frames = 0

    def room(self, length: int) -> int:
        """Address for a frame of ``length`` bytes without its ICRC, or 0 when the arena is full."""
        if self.used + length + ICRC_SIZE > self.end or self.bursts >= MAX_BURSTS:
            return 0
        return self.address + self.used

    def commit(self, path: Path, length: int) -> None:
        """Seals the frame just written at ``room()``: ``length`` bytes, to which the ICRC is added."""
        size = length + ICRC_SIZE
        last = self.bursts - 1
        joins = (
            self.open
            and self.paths[last] is path
            and size <= self.segments[last]
            and self.frames_in_burst < BURST_FRAMES
            and self.lengths[last] + size <= BURST_BYTES
        )
        if joins:
            self.lengths[last] = self.lengths[last] + size
            self.open = size == self.segments[last]
            self.frames_in_burst += 1
        else:
            last = self.bursts
            self.paths[last] = path
            self.offsets[last] = self.used
            self.lengths[last] = size
            self.segments[last] = size
            self.bursts += 1
            self.open = True
            self.frames_in_burst = 1
        frame = self.address + self.used
        if not path.local:
            store32(frame + length, path.icrc.compute(frame, length, (self.frames_in_burst - 1) * path.step))
        if path.pace != 0:
            path.free_at += (size + WIRE_HEADERS) * path.pace >> 10
        self.used += size
        self.frames += 1

    def limit(self) -> None:
        """From now until ``unlimit`` there is room for one burst of a limited rate, at most."""
        self.end = self.used + RATE_BURST
        if self.end > ARENA_SIZE:
            self.end = ARENA_SIZE

    def unlimit(self) -> None:
        """The arena may be filled again."""
        self.end = ARENA_SIZE

    def reset(self) -> None:
        """Forgets every burst: all have been handed over."""
        self.used = 0
        self.end = ARENA_SIZE
        self.bursts = 0
        self.open = False
