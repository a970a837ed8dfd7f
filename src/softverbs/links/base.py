# SPDX-License-Identifier: MIT
"""What a link is: the way frames leave one port and reach another.

A frame is the payload of one RoCEv2 UDP datagram, from the BTH to the ICRC. Links carry frames and never look inside.
A burst is one or more frames of equal size (`segment` bytes), one behind the other in memory; the last may be shorter.

The rules that every link keeps, and that tests/links/test_contract.py checks:

- `send` never blocks. It returns False when it can take nothing now, and True when the frames are gone: sent, or lost,
  as on any wire. What is lost is counted in `stats()`; nothing that the network does raises an exception.
- `receive` never blocks and delivers a bounded number of bursts. The bytes lie in memory of the link, writable, valid
  until `Sink.receive` returns. A burst may arrive whole, in parts or frame by frame.
- A destination may be a multicast GID: ff00::/8, or ::ffff:224.0.0.0/100 for IPv4 groups. Such frames reach every link
  that has joined the group, but not the link that sends them: its port serves its own queue pairs. The ICRC covers the
  destination, so the sink is told the group in place of the GID that the frames came to. A member that cannot take a
  frame loses it, and nobody waits for it. The middleware's faults and captures are of what passes through the link.
- After `close`, which may be called twice, `send`, `receive`, `route`, `join` and `leave` raise OSError with EBADF.
- A link is not locked: its caller makes one call at a time.

Time is a number of nanoseconds that the caller hands in; a link never asks a clock, but for the date in a capture file.
Links do not import softverbs.core, and core does not import links: a link is passed in.
"""

from __future__ import annotations

import errno
import ipaddress
from collections.abc import Sequence
from typing import Any, Protocol

ROCE_PORT = 4791
"""The UDP port of RoCEv2 (InfiniBand specification, volume 1, annex A17.4.5.1)."""

MAX_BURST_FRAMES = 64
"""Most frames in one `send`; every Linux that has UDP segmentation takes this many."""

MAX_BURST_BYTES = 65_000
"""Most bytes in one `send`: fits an IPv4 or IPv6 datagram before segmentation."""

MAX_UDP_PAYLOAD = 65_507
"""Largest UDP payload of IPv4: 65,535 less 20 for IPv4 and 8 for UDP."""

_MAPPED = bytes(10) + b"\xff\xff"
_IPV6_LOOPBACK = bytes(15) + b"\1"


class Sink(Protocol):
    """Who takes what a link receives: a port."""

    def peer(self, source_gid: bytes, source_port: int, sgid_index: int, dgid: bytes | None = None, /) -> object:
        """Return the object that `receive` is to be given for frames from this sender. A link may keep it.

        source_gid: 16 bytes; source_port: the sender's UDP port; sgid_index: the local GID that the frames came to.
        dgid: the multicast GID that they came to, and then sgid_index is of a GID that joined it; None: not multicast.
        Senders can be forged, so a link keeps a bounded number of these and asks again for those it forgot.
        """
        ...

    def receive(self, peer: object, address: int, length: int, segment: int, /) -> None:
        """Take the burst of `length` bytes at `address`, made of frames of `segment` bytes each (bytes)."""
        ...


class Link(Protocol):
    """The way out of a port, and in. Index i of `gids` and `source_ports` is the port's address number i.

    What is called `sgid_index` here is that number. The port's GID table is made of the addresses (core/wire/gid.py).
    """

    @property
    def gids(self) -> list[bytes]:
        """GIDs, 16 bytes each; IPv4 address a.b.c.d is ::ffff:a.b.c.d."""
        ...

    @property
    def source_ports(self) -> list[int]:
        """UDP port that frames leave from, for each GID."""
        ...

    @property
    def mtu(self) -> int:
        """Largest frame, in bytes."""
        ...

    @property
    def identification_known(self) -> bool:
        """True if received frames are sure to have had the IPv4 identification that `identification_step` tells."""
        ...

    @property
    def identification_step(self) -> int:
        """Frame i of a burst leaves with IPv4 identification i times this: 0 or 1. The ICRC covers it.

        It may fall from 1 to 0 while the link is open, when a path refuses segmentation (see udp.py).
        """
        ...

    @property
    def one_host(self) -> bool:
        """True: whoever can be reached is on this host."""
        ...

    @property
    def loops_back(self) -> bool:
        """True: frames from a GID to itself must be sent too. False: the port may keep them to itself."""
        ...

    def route(self, sgid_index: int, dgid: bytes, flow_label: int, traffic_class: int, hop_limit: int) -> object:
        """Return what `send` needs to reach a peer; opaque, and good until the link closes.

        sgid_index: the local GID to send from; dgid: the peer's GID, 16 bytes; flow_label: 0 to 2^20 - 1;
        traffic_class: 0 to 255, DSCP and ECN; hop_limit: 0 to 255, where 0 means 64. dgid may be a multicast GID, and
        need not be joined to send to it.
        Errors: OSError if there is no such GID here (EINVAL), or no way to the peer (ENETUNREACH and others).
        """
        ...

    def join(self, gid: bytes, sgid_index: int) -> None:
        """Receive frames to a multicast GID from now on, where the local GID with this index is at home.

        gid: 16 bytes. Joins are counted: as many calls of `leave` end it. Two GIDs of one interface that join the same
        group get each frame once, as that of either.
        Errors: OSError, with words: EINVAL (no multicast GID, no such index), EAFNOSUPPORT (an IPv4 group at an IPv6
        GID, or the other way round), EOPNOTSUPP (the link knows no multicast), ENETUNREACH (its interface does not),
        and what else the system says (EMFILE, ENOBUFS, ...).
        """
        ...

    def leave(self, gid: bytes, sgid_index: int) -> None:
        """Undo one `join` with the same arguments. OSError with EADDRNOTAVAIL if there was none."""
        ...

    def send(self, now: int, route: Any, address: int, length: int, segment: int) -> bool:
        """Send the `length` bytes at `address` as frames of `segment` bytes; the last may be shorter.

        now: ns; at most MAX_BURST_FRAMES frames and MAX_BURST_BYTES bytes. False: nothing was sent, try again later.
        """
        ...

    def receive(self, now: int, sink: Sink) -> int:
        """Hand what has arrived to `sink`, without waiting. Returns the number of bursts delivered; 0: none."""
        ...

    def deadline(self) -> int | None:
        """Return the time (ns) at which `receive` must be called again, or None if only the descriptors tell."""
        ...

    def filenos(self) -> list[int]:
        """Return file descriptors that are readable when `receive` has something to do."""
        ...

    def stats(self) -> dict[str, int]:
        """Return the link's counters. Each layer of a wrapped link has its own names."""
        ...

    def close(self) -> None:
        """Let go of everything. A second call does nothing."""
        ...


class Middleware:
    """A link around another link: passes everything on. Its subclasses change what they are there to change."""

    def __init__(self, inner: Link) -> None:
        """inner: the link that does the work; closed with this one."""
        self.inner = inner

    @property
    def gids(self) -> list[bytes]:
        """See Link.gids."""
        return self.inner.gids

    @property
    def source_ports(self) -> list[int]:
        """See Link.source_ports."""
        return self.inner.source_ports

    @property
    def mtu(self) -> int:
        """See Link.mtu."""
        return self.inner.mtu

    @property
    def identification_known(self) -> bool:
        """See Link.identification_known."""
        return self.inner.identification_known

    @property
    def identification_step(self) -> int:
        """See Link.identification_step."""
        return self.inner.identification_step

    @property
    def one_host(self) -> bool:
        """See Link.one_host."""
        return self.inner.one_host

    @property
    def loops_back(self) -> bool:
        """True: a link is wrapped so that it sees every frame."""
        return True

    def route(self, sgid_index: int, dgid: bytes, flow_label: int, traffic_class: int, hop_limit: int) -> object:
        """See Link.route."""
        return self.inner.route(sgid_index, dgid, flow_label, traffic_class, hop_limit)

    def join(self, gid: bytes, sgid_index: int) -> None:
        """See Link.join."""
        self.inner.join(gid, sgid_index)

    def leave(self, gid: bytes, sgid_index: int) -> None:
        """See Link.leave."""
        self.inner.leave(gid, sgid_index)

    def send(self, now: int, route: Any, address: int, length: int, segment: int) -> bool:
        """See Link.send."""
        return self.inner.send(now, route, address, length, segment)

    def receive(self, now: int, sink: Sink) -> int:
        """See Link.receive."""
        return self.inner.receive(now, sink)

    def deadline(self) -> int | None:
        """See Link.deadline."""
        return self.inner.deadline()

    def filenos(self) -> list[int]:
        """See Link.filenos."""
        return self.inner.filenos()

    def stats(self) -> dict[str, int]:
        """See Link.stats."""
        return self.inner.stats()

    def close(self) -> None:
        """See Link.close."""
        self.inner.close()


def gid_of(address: str) -> bytes:
    """Return the GID of an IPv4 or IPv6 address; a scope ("fe80::1%eth0") is left out. ValueError if it is neither."""
    packed = ipaddress.ip_address(address.partition("%")[0]).packed
    return mapped_gid(packed) if len(packed) == 4 else packed


def mapped_gid(packed: bytes) -> bytes:
    """Return the GID of an IPv4 address of 4 bytes, in network order."""
    return _MAPPED + packed


def address_of(gid: bytes) -> str:
    """Return the IPv4 or IPv6 address that a GID stands for. ValueError if it is not 16 bytes long."""
    check_gid(gid)
    return str(ipaddress.ip_address(gid[12:] if gid.startswith(_MAPPED) else gid))


def is_ipv4(gid: bytes) -> bool:
    """Tell whether a GID stands for an IPv4 address (::ffff:a.b.c.d)."""
    return gid.startswith(_MAPPED)


def is_loopback(gid: bytes) -> bool:
    """Tell whether a GID stands for an address of this host alone: 127.0.0.0/8 (RFC 1122), or ::1 (RFC 4291)."""
    return (gid.startswith(_MAPPED) and gid[12] == 127) or gid == _IPV6_LOOPBACK


def is_multicast(gid: bytes) -> bool:
    """Tell whether a GID stands for a group: ff00::/8 (RFC 4291), or an IPv4 address of 224.0.0.0/4 (RFC 5771)."""
    return gid[0] == 0xFF or (gid.startswith(_MAPPED) and gid[12] >> 4 == 0xE)


def check_join(gid: bytes, sgid_index: int, gids: Sequence[bytes]) -> None:
    """Raise what `Link.join` is to raise for a link with these `gids`, where no system is needed to say so."""
    check_gid(gid)
    if not 0 <= sgid_index < len(gids):
        raise OSError(errno.EINVAL, f"there is no GID with index {sgid_index}")
    if not is_multicast(gid):
        raise OSError(errno.EINVAL, f"{address_of(gid)} is no multicast address: 224.0.0.0/4 and ff00::/8 are")
    if is_ipv4(gid) != is_ipv4(gids[sgid_index]):
        host = address_of(gids[sgid_index])
        raise OSError(errno.EAFNOSUPPORT, f"{host} cannot join {address_of(gid)}: one is IPv4, the other IPv6")


def no_member_error(gid: bytes, sgid_index: int) -> OSError:
    """Return the error of a `Link.leave` without a `Link.join`."""
    return OSError(errno.EADDRNOTAVAIL, f"GID index {sgid_index} has not joined {address_of(gid)}")


def peer_of(sink: Sink, source_gid: bytes, source_port: int, sgid_index: int, dgid: bytes | None) -> object:
    """Ask the sink for its peer. Where the frames did not come to a group, a sink need not know about groups."""
    if dgid is None:
        return sink.peer(source_gid, source_port, sgid_index)
    return sink.peer(source_gid, source_port, sgid_index, dgid)


def check_gid(gid: bytes) -> None:
    """Raise ValueError unless `gid` is 16 bytes long."""
    if len(gid) != 16:
        raise ValueError(f"a GID has 16 bytes, not {len(gid)}")


def frame_count(length: int, segment: int) -> int:
    """Return how many frames of `segment` bytes make `length` bytes."""
    return -(-length // segment)


def closed_error() -> OSError:
    """Return the error for the use of a closed link."""
    return OSError(errno.EBADF, "the link is closed")
