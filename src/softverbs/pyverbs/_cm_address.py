# SPDX-License-Identifier: MIT
"""Addresses for the connection manager: names and ports, looked up."""

import contextlib
import errno
import socket
from typing import Any

from softverbs.cm.addresses import ANY_V4, Address, parse
from softverbs.pyverbs import librdmacm_enums as ce
from softverbs.pyverbs._fields import integer, refused
from softverbs.pyverbs.base import PyverbsObject

_WHAT = "Failed to get Address Info"
_LOOPBACK = bytes([127, 0, 0, 1])
#: Errors of getaddrinfo(3) -> errno, as rdma_getaddrinfo(3) has them.
_CODES = {
    socket.EAI_AGAIN: errno.EAGAIN,
    socket.EAI_MEMORY: errno.ENOMEM,
    socket.EAI_FAMILY: errno.EAFNOSUPPORT,
    socket.EAI_BADFLAGS: errno.EINVAL,
    socket.EAI_SERVICE: errno.EINVAL,
}


class AddrInfo(PyverbsObject):
    """Where to bind and where to connect, ``struct rdma_addrinfo`` (rdma_getaddrinfo(3))."""

    def __init__(
        self,
        src: Any = None,
        dst: Any = None,
        src_service: Any = None,
        dst_service: Any = None,
        port_space: int = 0,
        flags: int = 0,
    ) -> None:
        """
        :param src: name or IP address to bind to, text or bytes
        :param dst: name or IP address to connect to
        :param src_service: name or number of the port to bind to
        :param dst_service: name or number of the port to connect to
        :param port_space: RDMA_PS_TCP, RDMA_PS_UDP, RDMA_PS_IPOIB or RDMA_PS_IB; 0: TCP
        :param flags: RAI_* bits
        :raises PyverbsRDMAError: ENODEV for a name or service that nobody knows, and other errors of the lookup
        """
        self._source: Address | None = None
        self._destination: Address | None = None
        self._flags = 0
        self._port_space: int = ce.RDMA_PS_TCP
        if src or dst or src_service or dst_service:
            self.get_addrinfo(src, dst, src_service, dst_service, port_space, flags)

    def get_addrinfo(
        self,
        src: Any = None,
        dst: Any = None,
        src_service: Any = None,
        dst_service: Any = None,
        port_space: int = 0,
        flags: int = 0,
    ) -> None:
        """Looks up source and destination. The arguments are those of the constructor."""
        self._flags = integer(flags, "AddrInfo flags")
        space = integer(port_space, "AddrInfo port_space")
        self._port_space = space or ce.RDMA_PS_TCP
        if self._flags & ce.RAI_PASSIVE:
            self._source, self._destination = _look_up(src, src_service, self._flags, space, True), None
            return
        self._source = _look_up(src, src_service, self._flags, space, True) if src else None
        wanted = dst is not None or dst_service is not None
        self._destination = _look_up(dst, dst_service, self._flags, space, False) if wanted else None
        if not wanted and self._source is None:
            raise refused(f"{_WHAT}: neither a source nor a destination is given")

    @classmethod
    def _of(cls, source: Address | None, destination: Address | None, space: int) -> "AddrInfo":
        made = cls()
        made._source, made._destination, made._port_space = source, destination, space
        return made

    def _bind_address(self, what: str) -> Address:
        """The source; refused where there is none."""
        if self._source is None:
            raise refused(f"{what}: the AddrInfo has no source address")
        return self._source

    def close(self) -> None:
        """Forgets the addresses. Twice does nothing."""
        self._source = self._destination = None

    def __str__(self) -> str:
        return f"AddrInfo: source {self._source}, destination {self._destination}"


def _text(value: Any) -> str | None:
    if value is None:
        return None
    if isinstance(value, (bytes, bytearray)):
        return bytes(value).decode()
    return str(value)


def _look_up(node: Any, service: Any, flags: int, space: int, passive: bool) -> Address:
    """One address."""
    name = _text(node)
    port = _port(_text(service), space)
    if not name:
        return Address(ANY_V4 if passive else _LOOPBACK, port)
    with contextlib.suppress(ValueError):
        return parse(name, port)
    if flags & ce.RAI_NUMERICHOST or space == ce.RDMA_PS_IB:
        raise refused(f"{_WHAT}: {name!r} is no IP address", errno.ENODEV)
    try:
        found = socket.getaddrinfo(name, None, type=socket.SOCK_DGRAM)
    except (OSError, UnicodeError) as error:
        code = _CODES.get(getattr(error, "errno", 0) or 0, errno.ENODEV)
        raise refused(f"{_WHAT}: {name!r}: {error}", code) from None
    return parse(str(found[0][4][0]), port)


def _port(service: str | None, space: int) -> int:
    if not service:
        return 0
    try:
        number = int(service, 0 if space == ce.RDMA_PS_IB else 10)
    except ValueError:
        try:
            number = socket.getservbyname(service, "udp" if space == ce.RDMA_PS_UDP else "tcp")
        except OSError as error:
            raise refused(f"{_WHAT}: service {service!r}: {error}", errno.ENODEV) from None
    if space == ce.RDMA_PS_IB:
        number &= 0xFFFF
    if not 0 <= number <= 0xFFFF:
        raise refused(f"{_WHAT}: port {number}: 0 to 65535")
    return number
