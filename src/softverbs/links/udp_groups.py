# SPDX-License-Identifier: MIT
"""Multicast groups of a UDP link: RoCEv2 sends to a group as to any IP address, on UDP port 4791.

Each group that a link has joined on an interface has a socket of its own, bound to the group's address. So what comes
by it was sent to the group: no control message need tell, and the ICRC, which covers the destination, can be checked.
The socket shares its address (SO_REUSEADDR), so that several processes of a host can be members; the kernel gives each
member every datagram. IP_MULTICAST_ALL is off: only the interface that was joined counts.

Frames that the link itself has sent come back by the group's socket where the sender's IP_MULTICAST_LOOP is on, as it
must be for the others on this host; they are recognised by their source and dropped. The kernel could do that
(IP_BLOCK_SOURCE), but it would tell the routers of it (IGMPv3).

Over 127.0.0.0/8 groups work as they come: IPv4 needs no multicast route on an interface that is named. IPv6 does, and
lo has none: on ::1 `join` and `route` refuse, until an administrator adds it
(ip -6 route add local ff0e::1234 dev lo).
"""

from __future__ import annotations

import ctypes
import os
import select
import struct
from collections import Counter
from collections.abc import Sequence

from softverbs.links import base, udp_socket
from softverbs.links.udp_endpoint import Endpoint

_poll = ctypes.PyDLL(None, use_errno=True).poll  # keeps the interpreter's lock, since it does not wait
_poll.argtypes = (ctypes.c_void_p, ctypes.c_ulong, ctypes.c_int)


class _Member:
    """A group's socket on one interface, and how often which GID has joined."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self.joins: Counter[int] = Counter()


class Groups:
    """The groups that a link has joined, by group and interface index."""

    def __init__(self, homes: Sequence[Endpoint], port: int, coalescing: bool) -> None:
        """homes: the sockets of the link's GIDs; port: the UDP port; coalescing: whether to receive bursts (GRO)."""
        self.homes = homes
        self.port = port
        self.coalescing = coalescing
        self.own = frozenset((endpoint.gid, port) for endpoint in homes)
        self.members: dict[tuple[bytes, int], _Member] = {}
        self.endpoints: list[Endpoint] = []
        self.and_homes = list(homes)
        self.idle = True  # no group is joined
        self._lost = 0  # by sockets that are closed
        # Who waits for the link asks for descriptors once, so there is one that stands for all groups to come.
        self._epoll = select.epoll()
        self._pid = os.getpid()
        self.fd = self._epoll.fileno()
        self._pollfd = ctypes.create_string_buffer(struct.pack("=ihh", self.fd, select.POLLIN, 0), 8)

    def readable(self) -> bool:
        """Tell whether something has come to any group."""
        return bool(_poll(self._pollfd, 1, 0))

    def join(self, gid: bytes, sgid_index: int) -> None:
        """See base.Link.join; the arguments are known to fit each other."""
        home = self.homes[sgid_index]
        key = gid, udp_socket.interface_index(home.sock)
        member = self.members.get(key)
        if member is None:
            sock = udp_socket.open_group_socket(home.sock, base.address_of(gid), self.port)
            if self.coalescing:
                udp_socket.coalesce(sock)
            member = _Member(Endpoint(sock, sgid_index, home.inbox, gid, self.own))
            self._epoll.register(sock, select.EPOLLIN)
            self.members[key] = member
            self._list()
        member.joins[sgid_index] += 1

    def leave(self, gid: bytes, sgid_index: int) -> None:
        """See base.Link.leave."""
        for key, member in self.members.items():
            if key[0] == gid and member.joins[sgid_index] > 0:
                break
        else:
            raise base.no_member_error(gid, sgid_index)
        member.joins[sgid_index] -= 1
        others = +member.joins
        if not others:
            del self.members[key]
            self._list()
            if os.getpid() == self._pid:  # a child of fork() holds the same sockets and the same epoll set
                self._epoll.unregister(member.endpoint.sock)
                udp_socket.leave_group(member.endpoint.sock, base.address_of(gid), key[1])
            self._end(member.endpoint)
        elif member.endpoint.index not in others:
            member.endpoint.index = min(others)
            member.endpoint.peers.clear()

    def overflows(self) -> int:
        """Return how many datagrams the kernel threw away, of groups that were left too."""
        return self._lost + sum(udp_socket.overflows(endpoint.sock) for endpoint in self.endpoints)

    def close(self) -> None:
        """Leave every group."""
        endpoints = self.endpoints
        self.members.clear()
        self._list()
        for endpoint in endpoints:
            self._end(endpoint)
        if self.fd >= 0:
            self.fd = -1
            self._epoll.close()

    def _list(self) -> None:
        self.endpoints = [member.endpoint for member in self.members.values()]
        self.and_homes = [*self.homes, *self.endpoints]
        self.idle = not self.endpoints

    def _end(self, endpoint: Endpoint) -> None:
        self._lost += udp_socket.overflows(endpoint.sock)
        endpoint.close()
