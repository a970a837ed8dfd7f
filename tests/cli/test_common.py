# SPDX-License-Identifier: MIT
"""What the commands share."""

import socket
import sys
import threading
import time

import click
import pytest

from softverbs.cli import cli, common
from softverbs.cli.common import Fault
from softverbs.core.queues.wr import WC
from softverbs.device import Device
from softverbs.pyverbs.cq import CQ, CompChannel
from softverbs.pyverbs.device import Context


@pytest.mark.parametrize(
    ("text", "number"), [("0", 0), ("4096", 4096), ("64K", 65536), ("64k", 65536), (" 1M", 1 << 20), ("1G", 1 << 30)]
)
def test_sizes(text: str, number: int) -> None:
    assert common.size(0, 1 << 30)(text) == number


@pytest.mark.parametrize("text", ["", "K", "x", "-1", "1.5M", "1T", "2G", "0x10", "9" * 30, "\u0663"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(click.BadParameter):
        common.size(1, 1 << 30)(text)


@pytest.mark.parametrize("text", ["\u0663", "1\u0660", "\uff15"])
def test_numbers_are_in_ascii_digits(text: str) -> None:
    """Python's ``int`` and ``float`` take the digits of every script."""
    assert int(text) == float(text)
    for kind in (common.IntRange(0, 100), common.FloatRange(0, 100)):
        with pytest.raises(click.BadParameter, match="ASCII"):
            kind.convert(text, None, None)


@pytest.mark.parametrize("text", ["nan", "inf", "-nan"])
def test_numbers_are_finite(text: str) -> None:
    with pytest.raises(click.BadParameter):
        common.FloatRange(0).convert(text, None, None)


def test_every_number_of_the_command_line_is_checked_so() -> None:
    for name in cli.list_commands(click.Context(cli)):
        command = cli.get_command(click.Context(cli), name)
        assert command is not None
        for option in command.params:
            if isinstance(option.type, (click.types.IntParamType, click.types.FloatParamType)):
                assert isinstance(option.type, (common.IntRange, common.FloatRange)), (name, option.name)


def test_mtus() -> None:
    assert [common.mtu_code(mtu) for mtu in common.MTUS] == [1, 2, 3, 4, 5]


def test_completions() -> None:
    common.check(WC(wr_id=1))
    failed = WC(wr_id=7, status=10)
    with pytest.raises(Fault, match=r"^work request 7 failed: IBV_WC_REM_ACCESS_ERR$"):
        common.check(failed)
    failed.reason = "no such key"
    with pytest.raises(Fault, match=r"IBV_WC_REM_ACCESS_ERR: no such key"):
        common.check(failed)
    assert common.status_name(999) == "status 999"


def spin(seconds: float) -> None:
    """Busy for a while, as the loops are that patience is for."""
    stop = time.monotonic() + seconds
    while time.monotonic() < stop:
        pass


def test_patience_ends() -> None:
    with pytest.raises(Fault, match=r"for 0\.5 s"), common.patience(0.5, lambda: 0, "waiting"):
        spin(10)


@pytest.mark.parametrize("sleeping", [False, True])
def test_patience_leaves_the_device_whole(sleeping: bool) -> None:
    """It does not raise while the device has its lock, and ends a sleep in the device all the same."""
    with Device() as device, Context(device=device) as context:
        channel = CompChannel(context)
        queue = CQ(context, 4, None, channel)

        def forever() -> None:
            while True:
                channel.get_cq_event(queue) if sleeping else queue.poll(1)

        with pytest.raises(Fault, match=r"for 0\.5 s"), common.patience(0.5, lambda: 0, "waiting"):
            forever()
        assert queue.poll(1) == (0, [])
        other = threading.Thread(target=queue.poll, args=(1,), daemon=True)
        other.start()
        other.join(60)
        assert not other.is_alive()  # the lock is free, for other threads and for closing


def test_where_patience_does_not_raise() -> None:
    found: list[bool] = []
    with Device() as device:
        device.wait_until(lambda: bool(found.append(common._in_device(sys._getframe())) or True), None)
    assert found == [True]
    assert not common._in_device(sys._getframe())


def test_patience_with_progress() -> None:
    with common.patience(0.5, time.monotonic, "waiting"):
        spin(1.6)
    spin(1.2)  # the timer is off


def test_patience_sees_that_the_peer_has_gone() -> None:
    here, there = socket.socketpair()
    there.close()
    waiting = common.patience(30, lambda: 0, "waiting", here)
    with here, pytest.raises(Fault, match="waiting: the peer has gone"), waiting:
        spin(10)


def test_patience_for_ever_and_in_other_threads() -> None:
    with common.patience(0, lambda: 0, "waiting"):
        pass
    failed: list[BaseException] = []

    def elsewhere() -> None:
        try:
            with common.patience(1, lambda: 0, "waiting"):
                pass
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert not failed


def test_whether_a_peer_has_gone() -> None:
    here, there = socket.socketpair()
    assert not common.has_gone(here)
    there.sendall(b"x")
    there.close()
    assert not common.has_gone(here)
    here.recv(1)
    assert common.has_gone(here)
    here.close()
    assert common.has_gone(here)


def test_a_device_takes_the_address_that_it_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SOFTVERBS_ADDRESS", raising=False)
    with common.opened(common.open_device("127.0.7.2", ""), "softverbs0") as context:
        assert context.query_gid(1, 0).raw[12:] == bytes((127, 0, 7, 2))


def test_the_environment_has_precedence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOFTVERBS_ADDRESS", "127.0.7.3,::1")
    with common.opened(common.open_device("127.0.7.4", "")) as context:
        table = context.query_gid_table(context.query_port(1).gid_tbl_len)
        assert len({entry.gid_str() for entry in table}) == 2
        assert context.query_gid(1, 0).raw[12:] == bytes((127, 0, 7, 3))
