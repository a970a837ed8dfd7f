# SPDX-License-Identifier: MIT
"""XRC domains that several programs open by one file, and their target queue pairs, which they share."""

import errno
import os
from typing import TYPE_CHECKING, Any

from softverbs.core.base.errors import PyverbsRDMAError
from softverbs.core.queues.srq import XrcDomain

if TYPE_CHECKING:
    from softverbs.server.session import Entry, Session


class Domain:
    """A domain of the device, and how often it is open.

    While it lives it keeps its file open, so that the file's number cannot become another file's.
    """

    def __init__(self, port: Any, context_id: object, descriptor: int, name: "tuple[int, int] | None") -> None:
        """
        :param port: the device's port
        :param context_id: of the session that opens it first
        :param descriptor: of its file, which is duplicated; -1 for none
        :param name: device and inode of that file
        """
        self.core = XrcDomain(port, context_id)
        self.name = name
        self.file = os.dup(descriptor) if name is not None else -1
        self.users = 0
        #: Target QPs by number, which ``ibv_open_qp`` finds.
        self.targets: dict[int, Target] = {}


class OpenDomain:
    """A domain as one session has opened it."""

    def __init__(self, domains: "Domains", domain: Domain) -> None:
        """
        :param domains: of the device
        :param domain: which
        """
        self._domains = domains
        self.domain = domain
        self.core = domain.core
        #: SRQs and QPs that the session has made with it.
        self.children = 0
        domain.users += 1

    def close(self) -> None:
        """One opener less, EBUSY while it uses the domain; the last one ends it."""
        if self.children:
            raise PyverbsRDMAError(f"the XRC domain is used by {self.children} SRQs or QPs", errno.EBUSY)
        if self.domain.users == 1:
            self._domains.end(self.domain)
        self.domain.users -= 1


class Domains:
    """The XRC domains of a device."""

    def __init__(self) -> None:
        self._by_file: dict[tuple[int, int], Domain] = {}

    def open(self, session: "Session", descriptor: int, flags: int) -> OpenDomain:
        """Finds or makes a domain.

        :param descriptor: of the file that names it, -1 for none
        :param flags: ``O_CREAT``, ``O_EXCL``
        :raises PyverbsRDMAError: EINVAL where O_EXCL finds one; EAGAIN where there is none and O_CREAT is not set
        """
        name = None
        if descriptor >= 0:
            found = os.fstat(descriptor)
            name = (found.st_dev, found.st_ino)
            known = self._by_file.get(name)
            if known is not None:
                if flags & os.O_CREAT and flags & os.O_EXCL:
                    raise PyverbsRDMAError("O_EXCL is set, and there is a domain of this file", errno.EINVAL)
                return OpenDomain(self, known)
            if not flags & os.O_CREAT:
                raise PyverbsRDMAError("there is no domain of this file, and O_CREAT is not set", errno.EAGAIN)
        domain = Domain(session.port, session, descriptor, name)
        if name is not None:
            self._by_file[name] = domain
        return OpenDomain(self, domain)

    def end(self, domain: Domain) -> None:
        """Ends a domain that nobody else has open; EBUSY while it is in use."""
        domain.core.close()
        if domain.name is not None:
            del self._by_file[domain.name]
            os.close(domain.file)


class Target:
    """A target queue pair, and the entries that refer to it: it ends with the last of them."""

    def __init__(self, core: Any, domain: Domain) -> None:
        """
        :param core: the queue pair
        :param domain: that it belongs to
        """
        self.core = core
        self.domain = domain
        self.entries: list[Entry] = []
        core.user = self
        domain.targets[core.qp_num] = self

    def opened(self, entry: "Entry") -> "OpenTarget":
        """One entry more."""
        self.entries.append(entry)
        return OpenTarget(self, entry)


class OpenTarget:
    """A target as one session has opened it."""

    def __init__(self, target: Target, entry: "Entry") -> None:
        """
        :param target: which
        :param entry: whose
        """
        self._target = target
        self._entry = entry
        self.core = target.core

    def close(self) -> None:
        """One user less; the last one ends the queue pair."""
        target = self._target
        target.entries.remove(self._entry)
        if not target.entries:
            target.core.close()
            del target.domain.targets[target.core.qp_num]
