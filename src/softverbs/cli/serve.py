# SPDX-License-Identifier: MIT
"""``softverbs serve``: one device for several programs."""

from __future__ import annotations

import os
import re
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
    if not re.fullmatch("[0-7]+", str(text)):
        raise click.BadParameter(f"{text!r}: octal digits are expected, as in 660")
    value = int(str(text), 8)
    if value > 0o777:
        raise click.BadParameter(f"{text} is out of range: 0 to 777")
    return value


_mode.__name__ = "octal"  # what --help calls the value


@click.command("serve", context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--socket", "path", required=True, metavar="PATH", help="The socket that is made.")
@click.option(
    "--mode",
    type=_mode,
    metavar="OCTAL",
    default="600",
    show_default=True,
    help="Its permissions: who may use the device.",
)
@address_option
@pcap_option
def command(path: str, mode: int, address: str | None, pcap: str | None) -> None:
    """Serve a device to every program that connects to a socket, until Ctrl-C or SIGTERM.

    The device reads and writes the memory of the programs, so they must be of the same user (or this one be root, to
    whom the others' programs hand over the right to theirs).
    """
    more_descriptors()
    libraries = driver.folder()
    _clear(path)
    with open_device(pcap=pcap, thread=False, chosen=address) as device:
        try:
            server = Server(device, path, mode)
        except OSError as error:
            raise _refused(path, error) from error
        before = {number: signal.signal(number, lambda *_: server.stop()) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            addresses = ", ".join(str(address_of(gid)) for gid in device.link.gids)
            full = os.path.abspath(path)
            click.echo(f"{device.name} at {addresses}; a program uses it with the environment")
            preload = ":".join(driver.preloaded(libraries))
            words = [f"{driver.SOCKET_VARIABLE}={full}", f"LD_LIBRARY_PATH={libraries}"]
            click.echo(" ".join([*words, *([f"LD_PRELOAD={preload}"] if preload else [])]))
            server.run()
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def _clear(path: str) -> None:
    """Removes the socket of a server that is gone.

    :raises Fault: somebody serves there, it is no socket, or it cannot be looked at
    """
    try:
        if not stat.S_ISSOCK(os.stat(path).st_mode):
            raise Fault(f"--socket {path} is there, and is no socket")
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as probe:
            probe.connect(path)
    except FileNotFoundError:
        if os.path.islink(path):
            raise Fault(f"--socket {path} is a link to {os.readlink(path)}, which is not there") from None
    except ConnectionRefusedError:
        os.unlink(path)
    except (OSError, ValueError) as error:
        raise _refused(path, error) from error
    else:
        raise Fault(f"--socket {path} is in use: somebody serves there")


def _refused(path: str, error: Exception) -> Fault:
    return Fault(f"--socket {path}: {getattr(error, 'strerror', None) or error}")
