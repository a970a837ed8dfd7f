# SPDX-License-Identifier: MIT
"""What the commands share: options, opening the device, patience, the words for completions that failed."""

from __future__ import annotations

import math
import select
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from softverbs.device import Device
    from softverbs.pyverbs.cq import WC
    from softverbs.pyverbs.device import Context

_Function = TypeVar("_Function", bound=Callable[..., Any])
_DEVICE = ("softverbs.core.", "softverbs.device", "softverbs.links.", "softverbs.pyverbs.")
_SOON_S, _LATER = (
    0.001,
    300,
)  # how soon a time-out looks again where it must not raise, and how often: it may sleep there
#: TCP port of servers, as of ibv_rc_pingpong and perftest.
USUAL_PORT = 18515
MTUS = ("256", "512", "1024", "2048", "4096")


class Fault(click.ClickException):
    """Something is not as it should be, in one line: exit code 1."""


class IntRange(click.IntRange):
    """``click.IntRange`` of ASCII digits: ``int`` takes those of every script."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The number; a usage error that names the value."""
        _check_ascii(self, value, param, ctx)
        return super().convert(value, param, ctx)


class FloatRange(click.FloatRange):
    """``click.FloatRange`` of finite numbers in ASCII digits: no bound holds for ``nan``."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The number; a usage error that names the value."""
        _check_ascii(self, value, param, ctx)
        number = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value!r} is not a finite number", param, ctx)
        return number


def _check_ascii(
    kind: click.IntRange | click.FloatRange, value: Any, param: click.Parameter | None, ctx: click.Context | None
) -> None:
    if isinstance(value, str) and not value.isascii():
        kind.fail(f"{value!r} is not a number in ASCII digits", param, ctx)


_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def size(low: int, high: int) -> Callable[[str], int]:
    """A type of click: a number of bytes, as in ``65536``, ``64K``, ``1M``, ``1G``.

    :param low: least
    :param high: most
    """

    def convert(text: str) -> int:
        digits = str(text).strip().upper()
        unit = _UNITS.get(digits[-1:], 1)
        if unit > 1:
            digits = digits[:-1]
        if not (digits.isascii() and digits.isdigit() and len(digits) < 20):
            raise click.BadParameter(f"{text!r} is no size; 4096, 64K, 1M and 1G are")
        if not low <= int(digits) * unit <= high:
            raise click.BadParameter(f"{text} is out of range: {low} to {high}")
        return int(digits) * unit

    convert.__name__ = "size"
    return convert


def device_options(command: _Function) -> _Function:
    """``-d``, ``-i`` and ``-g``: which device, which port, which address."""
    for option in (
        click.option("-g", "--gid-idx", "gid_index", type=IntRange(0, 255), help="Index of the local GID."),
        click.option("-i", "--ib-port", "port", type=IntRange(1, 255), default=1, help="Port of the device."),
        click.option("-d", "--ib-dev", "device", metavar="DEV", help="Device: softverbs0, there is no other."),
    ):
        command = option(command)
    return command


def tcp_port_option(command: _Function) -> _Function:
    """``-p``: where the server listens."""
    kind = IntRange(1, 65535)
    text = "TCP port of the server."
    option = click.option("-p", "--port", "tcp_port", type=kind, default=USUAL_PORT, show_default=True, help=text)
    return option(command)


def pcap_option(command: _Function) -> _Function:
    """``--pcap``: a capture of every frame."""
    kind = click.Path(dir_okay=False, writable=True)
    return click.option("--pcap", type=kind, help="Capture every frame to this file, for tshark or Wireshark.")(command)


def open_device(
    address: str | None = None, pcap: str | None = None, thread: bool = True, chosen: str | None = None
) -> Device:
    """The device of this command.

    :param address: IP address where ``SOFTVERBS_ADDRESS`` names none; None: a free one of 127.0.0.0/8
    :param pcap: capture file; None: as ``SOFTVERBS_PCAP`` says; empty: none
    :param thread: whether the device has a thread of its own
    :param chosen: addresses that the command line names, which come before ``SOFTVERBS_ADDRESS``
    :raises Fault: if it cannot be opened
    """
    from softverbs.device import open_from_environment

    try:
        return open_from_environment(chosen, pcap, address, thread)
    except (OSError, ValueError) as error:
        raise Fault(f"cannot open a device: {getattr(error, 'strerror', None) or error}") from error


@contextmanager
def opened(device: Device, name: str | None = None) -> Iterator[Context]:
    """A Context on ``device``; both are closed at the end.

    :param name: the name that the user knows it by, which must be right
    :raises Fault: where it has another name
    """
    from softverbs.pyverbs.device import Context

    try:
        if name is not None and name != device.name:
            raise Fault(f"there is no device {name}; there is {device.name}")
        with Context(device=device) as context:
            yield context
    finally:
        device.close()


def mtu_code(mtu: str | int) -> int:
    """``IBV_MTU_*`` of a number of bytes, one of MTUS."""
    return int(mtu).bit_length() - 8


def check(completion: WC) -> None:
    """Raises Fault where a work completion is no success."""
    if completion.status:
        raise Fault(f"work request {completion.wr_id} failed: {status_words(completion)}")


def status_words(completion: WC) -> str:
    """The status by name, and the reason."""
    name = status_name(completion.status)
    return f"{name}: {completion.reason}" if completion.reason else name


def status_name(status: int) -> str:
    """``IBV_WC_REM_ACCESS_ERR`` and so on."""
    from softverbs.pyverbs.libibverbs_enums import names_of

    return names_of("ibv_wc_status").get(status, f"status {status}")


@contextmanager
def patience(
    seconds: float, progress: Callable[[], object], what: str, peer: socket.socket | None = None
) -> Iterator[None]:
    """Ends the block with a Fault when ``progress()`` has had the same value for too long. Costs the block nothing.

    A timer signal looks once a second, so this does nothing outside of the main thread.

    :param seconds: how long; 0: for ever
    :param progress: anything that changes as the block goes on
    :param what: the words for it
    :param peer: a connection that the peer closes only when it has gone
    """
    if not seconds or threading.current_thread() is not threading.main_thread():
        yield
        return
    last, since, later = progress(), time.monotonic(), 0

    def look(_number: int, frame: FrameType | None) -> None:
        nonlocal last, since, later
        value, now = progress(), time.monotonic()
        if value != last:
            last, since = value, now
            return
        words = ""
        if peer is not None and has_gone(peer):
            words = "the peer has gone"
        elif now - since > seconds:
            words = f"nothing has happened for {seconds:g} s"
        if words and later < _LATER and _in_device(frame):
            later += 1
            signal.setitimer(signal.ITIMER_REAL, _SOON_S, 1)
        elif words:
            raise Fault(f"{what}: {words}")

    before = signal.signal(signal.SIGALRM, look)
    signal.setitimer(signal.ITIMER_REAL, 1, 1)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _in_device(frame: FrameType | None) -> bool:
    """Whether code of the device is running, where an exception out of nowhere may leave a lock taken."""
    while frame is not None:
        if str(frame.f_globals.get("__name__")).startswith(_DEVICE):
            return True
        frame = frame.f_back
    return False


def readable(sock: socket.socket) -> bool:
    """Whether something, or the end, can be read at once, whatever the socket's time-out is."""
    if sock.fileno() < 0:
        return True
    poller = select.poll()
    poller.register(sock, select.POLLIN)
    return bool(poller.poll(0))


def has_gone(peer: socket.socket) -> bool:
    """Whether the other end of a connection has closed it, and left nothing to read."""
    try:
        return readable(peer) and not peer.recv(1, socket.MSG_PEEK)
    except OSError:
        return True
