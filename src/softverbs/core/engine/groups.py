# SPDX-License-Identifier: MIT
"""The multicast groups of a port: which queue pairs are in them, and that the link has joined (IBA 10.5)."""

import errno
from collections.abc import Callable
from typing import Any

from softverbs.core.base.errors import PyverbsRDMAError
from softverbs.core.base.limits import MAX_MCAST_GRP, MAX_MCAST_QP_ATTACH
from softverbs.core.wire.gid import address_of, is_ipv4, is_multicast


class Groups:
    """Multicast groups by GID (16 bytes). The link is in a group as long as a queue pair is."""

    def __init__(self, link: Any, report: Callable[[str], None]) -> None:
        """
        :param link: the port's link
        :param report: says in the device's log what went wrong
        """
        self._link = link
        self._report = report
        #: The queue pairs of each group.
        self.members: dict[bytes, list[Any]] = {}
        # By the same GIDs: the own GIDs, by index, whose interfaces have joined.
        self._joined: dict[bytes, list[int]] = {}

    def add(self, qp: Any, gid: bytes) -> None:
        """Adds a queue pair to a group.

        :param gid: of the group, 16 bytes
        :raises PyverbsRDMAError: EINVAL where it is no multicast GID, or the port has no GID of its IP version, ENOMEM
            past the limits; the link's own error where it cannot join
        """
        if len(gid) != 16 or not is_multicast(gid):
            raise PyverbsRDMAError(f"{address_of(gid) if len(gid) == 16 else gid!r} is no multicast GID", errno.EINVAL)
        members = self.members.get(gid)
        if members is None:
            self._joined[gid] = self._join(gid)
            members = self.members[gid] = []
        if len(members) >= MAX_MCAST_QP_ATTACH:
            raise PyverbsRDMAError(f"{len(members)} QPs are attached to {address_of(gid)} already", errno.ENOMEM)
        members.append(qp)

    def _join(self, gid: bytes) -> list[int]:
        """Joins with every own GID that can; which these are."""
        if len(self.members) >= MAX_MCAST_GRP:
            raise PyverbsRDMAError(f"the device is in {len(self.members)} multicast groups already", errno.ENOMEM)
        gids = self._link.gids
        indices = [index for index, own in enumerate(gids) if is_ipv4(own) == is_ipv4(gid)]
        if not indices:
            raise PyverbsRDMAError(f"the port has no GID of the IP version of {address_of(gid)}", errno.EINVAL)
        joined = []
        refusal: OSError | None = None
        for index in indices:
            try:
                self._link.join(gid, index)
                joined.append(index)
            except OSError as error:
                refusal = refusal or error
        if not joined and refusal is not None:
            raise PyverbsRDMAError(
                f"cannot join the multicast group {address_of(gid)}: {refusal}", refusal.errno or errno.EOPNOTSUPP
            )
        return joined

    def remove(self, qp: Any, gid: bytes) -> None:
        """Takes a queue pair out of a group that it is in."""
        members = self.members[gid]
        members.remove(qp)
        if members:
            return
        del self.members[gid]
        for index in self._joined.pop(gid):
            try:
                self._link.leave(gid, index)
            except OSError as error:  # a closed link has left already
                self._report(f"cannot leave the multicast group {address_of(gid)}: {error}")
