# SPDX-License-Identifier: MIT
"""What every link must do: links/base.py. Runs over each link, and over links around links."""

import errno
import itertools
import random

import pytest

from softverbs.links import Network, address_of, gid_of
from softverbs.links.base import Link, frame_count


def split(data, segment):
    return [data[start : start + segment] for start in range(0, len(data), segment)]


def accept(link: Link) -> Link:
    """Takes what mypy takes for a link."""
    return link


def test_describes_itself(pair):
    for link in map(accept, pair):
        assert link.gids
        assert all(len(gid) == 16 for gid in link.gids)
        assert link.source_ports == [4791] * len(link.gids)
        assert 4096 <= link.mtu <= 65507
        assert link.identification_step in (0, 1)
        assert isinstance(link.identification_known, bool)
        assert isinstance(link.loops_back, bool)
        assert link.deadline() is None
        assert all(isinstance(value, int) for value in link.stats().values())


@pytest.mark.parametrize(
    ("length", "segment"),
    [(1, 1), (28, 28), (4096, 4096), (15 * 4112, 4112), (64 * 28, 28), (63 * 1000 + 1, 1000), (5000, 4999), (62, 1)],
)
def test_burst_arrives_intact_and_in_order(pair, driver, recorder, length, segment):
    left, right = pair
    data = random.Random(length).randbytes(length)
    assert driver.send(left, driver.route(left, right.gids[0]), data, segment)
    driver.collect(right, recorder, frame_count(length, segment))
    assert recorder.frames == split(data, segment)
    assert {peer for peer, _ in recorder.bursts} == {(left.gids[0], 4791, 0)}


def test_largest_frame(pair, driver, recorder):
    left, right = pair
    data = random.Random(1).randbytes(left.mtu)
    assert driver.send(left, driver.route(left, right.gids[0]), data)
    driver.collect(right, recorder, 1)
    assert recorder.frames == [data]


def test_frame_beyond_the_mtu_is_lost_and_nothing_else(pair, driver, recorder):
    left, right = pair
    route = driver.route(left, right.gids[0])
    assert driver.send(left, route, bytes(65530))
    assert driver.send(left, route, b"after")
    driver.collect(right, recorder, 1)
    assert recorder.frames == [b"after"]


def test_many_bursts_stay_in_order(pair, driver, recorder):
    left, right = pair
    route = driver.route(left, right.gids[0])
    chance = random.Random(7)
    expected = []
    for _ in range(100):
        segment = chance.choice((16, 28, 256, 1040, 4112))
        data = chance.randbytes(chance.randint(1, min(40 * segment, 20_000)))
        assert driver.send(left, route, data, segment)
        expected += split(data, segment)
        if chance.random() < 0.2:
            driver.collect(right, recorder, len(expected))
    driver.collect(right, recorder, len(expected))
    assert recorder.frames == expected
    assert right.receive(driver.now, recorder) == 0


def test_both_directions(pair, driver, make_recorder):
    left, right = pair
    for source, target in ((left, right), (right, left)):
        sink = make_recorder()
        assert driver.send(source, driver.route(source, target.gids[0]), b"to and fro")
        driver.collect(target, sink, 1)
        assert sink.bursts == [((source.gids[0], 4791, 0), [b"to and fro"])]


def test_to_itself(pair, driver, recorder):
    link = pair[0]
    assert driver.send(link, driver.route(link, link.gids[0]), bytes(range(200)), 100)
    driver.collect(link, recorder, 2)
    assert recorder.frames == split(bytes(range(200)), 100)
    assert recorder.peers[0] == (link.gids[0], 4791, 0)


def test_nothing_to_receive(pair, recorder):
    assert pair[0].receive(0, recorder) == 0
    assert recorder.peers == recorder.frames == []


def test_receive_is_bounded(pair, driver, recorder):
    left, right = pair
    route = driver.route(left, right.gids[0])
    for number in range(200):
        assert driver.send(left, route, number.to_bytes(4, "big"))
    driver.collect(right, recorder, 1)
    assert len(recorder.frames) <= 64
    driver.collect(right, recorder, 200)
    assert recorder.frames == [number.to_bytes(4, "big") for number in range(200)]


def test_peers_belong_to_the_sink(pair, driver, make_recorder):
    left, right = pair
    route = driver.route(left, right.gids[0])
    for _ in range(2):
        sink = make_recorder()  # asserts that the peer is its own
        assert driver.send(left, route, b"x")
        driver.collect(right, sink, 1)


def test_burst_longer_than_allowed_arrives_all_the_same(pair, driver, recorder):
    left, right = pair
    data = random.Random(3).randbytes(150 * 1000)
    assert driver.send(left, driver.route(left, right.gids[0]), data, 1000)
    driver.collect(right, recorder, 150)
    assert recorder.frames == split(data, 1000)


def test_closed(pair, driver, recorder):
    left, right = pair
    route = driver.route(left, right.gids[0])
    left.close()
    left.close()
    for use in (
        lambda: driver.send(left, route, b"x"),
        lambda: driver.send(left, route, b"xx", 1),
        lambda: left.receive(0, recorder),
        lambda: driver.route(left, right.gids[0]),
    ):
        with pytest.raises(OSError, match="the link is closed") as caught:
            use()
        assert caught.value.errno == errno.EBADF
    assert left.filenos() == []
    assert left.deadline() is None
    assert left.stats()


def test_peer_that_has_gone(pair, driver, recorder):
    left, right = pair
    if left is right:
        pytest.skip("one link only")
    route = driver.route(left, right.gids[0])
    right.close()
    for _ in range(3):  # an ICMP error may come after the first, and must not stop the link
        assert driver.send(left, route, b"x")
        assert left.receive(driver.now, recorder) == 0
    assert driver.send(left, driver.route(left, left.gids[0]), b"still here")
    driver.collect(left, recorder, 1)


def test_route_errors(pair):
    link = pair[0]
    for index in (-1, len(link.gids)):
        with pytest.raises(OSError, match="no GID with index") as caught:
            link.route(index, link.gids[0], 0, 0, 0)
        assert caught.value.errno == errno.EINVAL
    with pytest.raises(ValueError, match="16 bytes"):
        link.route(0, b"short", 0, 0, 0)


def test_route_attributes_do_not_matter_to_the_frame(pair, driver, recorder):
    left, right = pair
    expected = []
    for traffic_class, hop_limit in itertools.product((0, 0x20, 0xFF), (0, 1, 64, 255)):
        route = driver.route(left, right.gids[0], 0, 0xFFFFF, traffic_class, hop_limit)
        assert driver.send(left, route, b"single")
        assert driver.send(left, route, b"ab" * 20, 2)
        expected += [b"single"] + [b"ab"] * 20
        driver.collect(right, recorder, len(expected))
    assert recorder.frames == expected


def test_several_gids(opened, driver, recorder):
    network = Network()
    left, right = network.link(["10.0.0.1", "fd00::1"]), network.link([gid_of("fd00::2"), "10.0.0.2"])
    driver.send(left, driver.route(left, gid_of("10.0.0.2")), b"four")
    driver.send(left, driver.route(left, gid_of("fd00::2"), sgid_index=1), b"six")
    driver.collect(right, recorder, 2)
    assert recorder.bursts == [((gid_of("10.0.0.1"), 4791, 1), [b"four"]), ((gid_of("fd00::1"), 4791, 0), [b"six"])]


def test_gids():
    assert gid_of("1.2.3.4") == bytes(10) + b"\xff\xff\x01\x02\x03\x04"
    assert gid_of("fe80::1%eth0") == b"\xfe\x80" + bytes(13) + b"\x01"
    for address in ("1.2.3.4", "fd77::1"):
        assert address_of(gid_of(address)) == address
    with pytest.raises(ValueError, match="not appear to be"):
        gid_of("somewhere")
