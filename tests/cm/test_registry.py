# SPDX-License-Identifier: MIT
"""Who listens where on this host: names that end with their processes."""

import errno
import os
import signal

import pytest
from tests.forked import in_child

from softverbs.cm import registry
from softverbs.cm.addresses import Address, of_gid, parse
from softverbs.device import Device

GID = bytes(10) + b"\xff\xff" + bytes([127, 9, 8, 7])
#: A port space that nobody else uses here.
SPACE = os.getpid() & 0x7FFF


def test_announce_and_find() -> None:
    assert registry.find(SPACE, "127.0.0.1", 5) is None
    entry = registry.announce(SPACE, "127.0.0.1", 5, GID)
    assert registry.find(SPACE, "127.0.0.1", 5) == GID
    assert registry.find(SPACE, "127.0.0.1", 50) is None and registry.find(SPACE + 1, "127.0.0.1", 5) is None
    assert registry.find(SPACE, "0.0.0.0", 5) is None and registry.find(SPACE, "::", 5) is None
    with pytest.raises(OSError, match="another device") as caught:
        registry.announce(SPACE, "127.0.0.1", 5, bytes(16))
    assert caught.value.errno == errno.EADDRINUSE
    entry.close()
    entry.close()
    assert registry.find(SPACE, "127.0.0.1", 5) is None
    registry.announce(SPACE, "127.0.0.1", 5, bytes(16)).close()


def test_devices() -> None:
    """An address at which somebody has the RoCE port is a device's."""
    with Device(thread=False) as device:
        ip = of_gid(device.link.gids[0]).ip
        assert registry.has_device(ip)
        assert not registry.has_device(ip[:3] + bytes([ip[3] ^ 1]))
    assert not registry.has_device(ip)
    assert not registry.has_device(parse("2001:db8::1").ip)


def test_a_forked_child_does_not_keep_the_name() -> None:
    entry = registry.announce(SPACE, "127.0.0.1", 6, GID)
    ready, go = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        os.write(ready[1], b".")
        os.read(go[0], 1)
        os._exit(0)
    os.read(ready[0], 1)
    entry.close()
    assert registry.find(SPACE, "127.0.0.1", 6) is None
    os.write(go[1], b".")
    os.waitpid(child, 0)


def test_a_name_ends_with_its_process() -> None:
    ready = os.pipe()
    child = os.fork()
    if child == 0:
        holder = registry.announce(SPACE, "127.0.0.1", 7, GID)
        os.write(ready[1], b".")
        signal.pause()
        holder.close()
    os.read(ready[0], 1)
    assert registry.find(SPACE, "127.0.0.1", 7) == GID
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    assert registry.find(SPACE, "127.0.0.1", 7) is None


def test_names_that_make_no_sense_are_passed_over() -> None:
    names = [f"softverbs/cm/{SPACE:04x}/127.0.0.1/8=zz", f"softverbs/cm/{SPACE:04x}/127.0.0.1/9=00"]
    entry = registry.Entry(*names)
    assert registry.find(SPACE, "127.0.0.1", 8) is None and registry.find(SPACE, "127.0.0.1", 9) is None
    entry.close()


def test_a_host_without_the_list_has_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_TABLE", "/nowhere")
    assert registry.find(SPACE, "127.0.0.1", 5) is None


def test_in_a_child_names_can_be_taken_again() -> None:
    entry = registry.announce(SPACE, "127.0.0.1", 10, GID)

    def check() -> None:
        with pytest.raises(OSError, match="another device"):
            registry.announce(SPACE, "127.0.0.1", 10, GID)

    in_child(check)
    entry.close()


def test_addresses() -> None:
    one = parse("127.0.0.1", 7)
    assert one == Address(bytes([127, 0, 0, 1]), 7) and str(one) == "127.0.0.1:7"
    assert one.is_local() and one.is_loopback and not one.is_any and not one.is_multicast
    assert one.gid.hex() == "00000000000000000000ffff7f000001" and of_gid(one.gid, 7) == one
    assert parse("::ffff:127.0.0.1", 7) == one and one.with_port(8).port == 8
    six = parse("fe80::1%eth0")
    assert six.gid == six.ip and str(six) == "[fe80::1]:0" and of_gid(six.gid) == six
    assert parse("::").is_any and parse("ff02::1").is_multicast and parse("230.0.0.1").is_multicast
    assert not parse("192.0.2.77").is_local()
    with pytest.raises(ValueError, match="does not appear"):
        parse("nowhere")
