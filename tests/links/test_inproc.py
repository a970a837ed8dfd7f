# SPDX-License-Identifier: MIT
"""The switch in one process."""

import errno

import pytest

from softverbs.links import Network, gid_of
from softverbs.links.inproc import PATIENCE


@pytest.fixture
def network():
    return Network(mtu=1000, capacity=3)


def test_is_exact_about_the_identification(network):
    link = network.link("10.0.0.1")
    assert (link.identification_known, link.identification_step, link.loops_back) == (True, 0, False)
    assert Network(loops_back=True).link("10.0.0.1").loops_back
    assert Network(port=1234).link("10.0.0.1").source_ports == [1234]


def test_full_queue_refuses_and_sends_nothing(network, driver, recorder):
    left, right = network.link("10.0.0.1"), network.link("10.0.0.2")
    route = driver.route(left, right.gids[0])
    assert [driver.send(left, route, bytes([n])) for n in range(5)] == [True, True, True, False, False]
    assert left.stats()["full"] == 2
    assert right.deadline() == 0
    assert right.receive(0, recorder) == 3
    assert right.deadline() is None
    assert driver.send(left, route, b"again")
    driver.collect(right, recorder, 4)
    assert recorder.frames == [b"\0", b"\1", b"\2", b"again"]


def test_peer_that_makes_no_progress_holds_nobody_back_for_ever(network, driver, recorder):
    left, stuck, other = (network.link(f"10.0.0.{number}") for number in (1, 2, 3))
    to_stuck, to_other = (driver.route(left, link.gids[0]) for link in (stuck, other))
    for number in range(3):
        assert driver.send(left, to_stuck, bytes([number]))
    driver.now = 5_000
    assert not driver.send(left, to_stuck, b"waits")
    driver.now += PATIENCE - 1
    assert not driver.send(left, to_stuck, b"waits")
    driver.now += 1
    assert driver.send(left, to_stuck, bytes(20), 10)  # lost, as by UDP
    assert driver.send(left, to_other, b"goes on")
    assert driver.send(left, to_stuck, b"lost at once")
    assert (left.stats()["full"], stuck.stats()["overflow"], left.stats()["frames_sent"]) == (2, 3, 4)
    driver.collect(stuck, recorder, 3)
    for _ in range(3):
        assert driver.send(left, to_stuck, b"back")
    assert not driver.send(left, to_stuck, b"waits again")
    driver.collect(stuck, recorder, 6)
    assert recorder.frames == [b"\0", b"\1", b"\2", *[b"back"] * 3]


def test_lost_frames_are_counted(network, driver):
    link = network.link("10.0.0.1")
    assert driver.send(link, driver.route(link, gid_of("10.0.0.9")), bytes(30), 10)
    assert driver.send(link, driver.route(link, link.gids[0]), bytes(1001))
    assert driver.send(link, driver.route(link, link.gids[0]), bytes(2002), 1001)
    assert (link.stats()["no_owner"], link.stats()["too_long"], link.deadline()) == (3, 3, None)


def test_address_is_free_again_after_close(network):
    first = network.link("10.0.0.1")
    with pytest.raises(OSError, match=r"10\.0\.0\.1 has a link") as caught:
        network.link("10.0.0.1")
    assert caught.value.errno == errno.EADDRINUSE
    first.close()
    network.link("10.0.0.1")


@pytest.mark.parametrize("addresses", [[], "no address", b"15 bytes, no gid", ["10.0.0.1", b""]])
def test_bad_addresses(network, addresses):
    if addresses == b"15 bytes, no gid":
        addresses = addresses[:15]
    with pytest.raises(ValueError, match=r"address|16 bytes"):
        network.link(addresses)
    network.link("10.0.0.1")


def test_same_address_twice(network):
    with pytest.raises(OSError, match="already"):
        network.link(["10.0.0.1", "10.0.0.1"])


def test_sink_may_send_to_the_link_that_delivers(network, driver):
    link = network.link("10.0.0.1")
    route = driver.route(link, link.gids[0])

    class Echo:
        count = 0

        def peer(self, *sender):
            return sender

        def receive(self, peer, address, length, segment):
            self.count += 1
            link.send(0, route, address, length, segment)

    echo = Echo()
    driver.send(link, route, b"x")
    assert [link.receive(0, echo) for _ in range(4)] == [1, 1, 1, 1]
    assert echo.count == 4
