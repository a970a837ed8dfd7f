"""``softverbs serve``: one device for several programs."""

from __future__ import annotations

import os
import signal
import socket
import stat

import click

from softverbs.cli.common import Fault, open_device, pcap_option
from softverbs.cli.run import address_option, more_descriptors
from softverbs.links.base import address_of
from softverbs.server import driver
from softverbs.server.server import Server


def _mode(text: str) -> int:
    """Permissions in octal digits."""
    try:
        value = int(str(text), 8)
    except ValueError:
        raise click.BadParameter(f"{text!r}: octal digits are expected, as in 660") from None
    if not 0 <= value <= 0o777:
        raise click.BadParameter(f"{text} is out of range: 0 to 777")
    return value


@click.command("serve", context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--socket", "path", required=True, metavar="PATH", help="The socket that is made.")
@click.option("--mode", type=_mode, default="600", show_default=True, help="Its permissions: who may use the device.")
@address_option
@pcap_option
def command(path: str, mode: int, address: str | None, pcap: str | None) -> None:
    """Serve a device to every program that connects to a socket, until Ctrl-C or SIGTERM.

    The device reads and writes the memory of the programs, so they must be of the same user (or this one be root, to
    whom the others' programs hand over the right to theirs).
    """
    more_descriptors()
    libraries = driver.folder()
    if address is not None:
        os.environ["SOFTVERBS_ADDRESS"] = address
    _clear(path)
    with open_device(pcap=pcap, thread=False) as device:
        server = Server(device, path, mode)
        before = {number: signal.signal(number, lambda *_: server.stop()) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            addresses = ", ".join(str(address_of(gid)) for gid in device.link.gids)
            full = os.path.abspath(path)
            click.echo(f"{device.name} at {addresses}; a program uses it with the environment")
            click.echo(f"{driver.SOCKET_VARIABLE}={full} LD_LIBRARY_PATH={libraries}")
            server.run()
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def _clear(path: str) -> None:
    """Removes the socket of a server that is gone.

    :raises Fault: somebody serves there, or it is no socket
    """
    try:
        if not stat.S_ISSOCK(os.stat(path).st_mode):
            raise Fault(f"{path} is there, and is no socket")
    except FileNotFoundError:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as probe:
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            os.unlink(path)
            return
    raise Fault(f"{path} is in use: somebody serves there")
