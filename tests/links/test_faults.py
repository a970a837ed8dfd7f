# SPDX-License-Identifier: MIT
"""Faults: the same from the same seed, as often as asked, and nothing lost but what was to be."""

import random

import pytest

from softverbs.links import FaultLink, Network, UdpLink, faults, parse_faults

ALL = {"drop": 0.1, "duplicate": 0.1, "reorder": 0.1, "corrupt": 0.1, "delay": 1000}


def frame(number):
    return number.to_bytes(4, "big") + bytes(28)


def number_of(data):
    return int.from_bytes(data[:4], "big")


@pytest.fixture
def network():
    return Network(capacity=100_000)


@pytest.fixture
def run(network, driver, recorder):
    """Returns a function that sends `count` frames through faults at the sender, and returns what arrives."""

    def send(count, **options):
        left, right = FaultLink(network.link("10.0.0.1"), **options), network.link("10.0.0.2")
        route = driver.route(left, right.gids[0])
        for number in range(count):
            driver.now += 10
            assert driver.send(left, route, frame(number))
            right.receive(driver.now, recorder)
        finish(driver, left, right, recorder)
        left.close()
        right.close()
        return recorder.frames

    return send


def finish(driver, left, right, sink):
    """Lets time go on until nothing waits."""
    while left.deadline() is not None or right.deadline() is not None:
        times = [time for time in (left.deadline(), right.deadline()) if time is not None]
        driver.now = max(driver.now, min(times))
        left.receive(driver.now, sink)
        right.receive(driver.now, sink)


def test_without_faults_nothing_happens(run):
    assert run(100) == [frame(number) for number in range(100)]


def test_bursts_are_taken_apart(network, driver, recorder):
    left, right = FaultLink(network.link("10.0.0.1")), network.link("10.0.0.2")
    assert (left.identification_step, left.identification_known, left.loops_back) == (0, True, True)
    driver.send(left, driver.route(left, right.gids[0]), bytes(250), 100)
    driver.collect(right, recorder, 3)
    assert [len(frames) for _, frames in recorder.bursts] == [1, 1, 1]
    assert [len(data) for data in recorder.frames] == [100, 100, 50]


def test_identification(opened):
    udp = UdpLink()
    opened.append(udp)
    assert not FaultLink(udp).identification_known
    assert FaultLink(udp).identification_step == FaultLink(udp, direction="send").identification_step == 0
    assert FaultLink(udp, direction="receive").identification_step == udp.identification_step


@pytest.mark.parametrize("direction", ["send", "both"])
def test_same_seed_same_run(network, driver, make_recorder, direction):
    def one(seed):
        sink, start = make_recorder(), driver.now
        left = FaultLink(network.link("10.0.0.1"), seed=seed, direction=direction, **ALL)
        right = FaultLink(network.link("10.0.0.2"), seed=seed, direction=direction, **ALL)
        route = driver.route(left, right.gids[0])
        times = []
        for number in range(300):
            driver.now += 100
            driver.send(left, route, frame(number) + frame(-number & 0xFFFF), 32)
            right.receive(driver.now, sink)
            times.append((driver.now - start, len(sink.frames)))
        finish(driver, left, right, sink)
        result = (sink.frames, times, left.stats(), right.stats(), driver.now - start)
        left.close()
        right.close()
        return result

    assert one(1) == one(1)
    assert one(1)[0] != one(2)[0]


@pytest.mark.parametrize("name", ["drop", "duplicate", "corrupt", "reorder"])
def test_frequency(network, driver, recorder, name):
    count = 5000
    left, right = FaultLink(network.link("10.0.0.1"), seed=3, **{name: 0.1}), network.link("10.0.0.2")
    route = driver.route(left, right.gids[0])
    for number in range(count):
        driver.send(left, route, frame(number))
    finish(driver, left, right, recorder)
    stats = left.stats()
    assert stats["fault_frames"] == count
    assert 0.085 * count < stats[f"fault_{name}"] < 0.115 * count
    assert {key for key in ALL if stats[f"fault_{key}"]} == {name}
    lost = {"drop": stats["fault_drop"], "duplicate": -stats["fault_duplicate"]}.get(name, 0)
    assert len(recorder.frames) == count - lost


def test_dropped_frames_are_gone_and_the_rest_in_order(run):
    numbers = [number_of(data) for data in run(500, seed=1, drop=0.3)]
    assert numbers == sorted(set(numbers))
    assert 300 < len(numbers) < 400


def test_everything_dropped(run):
    assert run(50, drop=1.0) == []


def test_everything_twice(run):
    assert run(50, duplicate=1.0) == [frame(number // 2) for number in range(100)]


def test_corruption_changes_every_frame(run):
    originals = [frame(number) for number in range(1000)]
    seen = run(1000, seed=5, corrupt=1.0)
    assert all(data != original for data, original in zip(seen, originals, strict=True))
    lengths = [len(data) - 32 for data in seen]
    assert min(lengths) < 0 < max(lengths) <= 8
    assert all(len(data) for data in seen)
    flips = [
        sum((one ^ two).bit_count() for one, two in zip(data, original, strict=True))
        for data, original in zip(seen, originals, strict=True)
        if len(data) == 32
    ]
    assert set(flips) >= {1, 2, 3}


def test_corruption_keeps_to_the_mtu(driver, recorder):
    network = Network(mtu=32)
    left, right = FaultLink(network.link("10.0.0.1"), corrupt=1.0), network.link("10.0.0.2")
    for number in range(200):
        driver.send(left, driver.route(left, right.gids[0]), frame(number))
        driver.collect(right, recorder, number + 1)
    assert max(map(len, recorder.frames)) == 32


def test_corruption_of_one_byte(driver, recorder, network):
    left, right = FaultLink(network.link("10.0.0.1"), corrupt=1.0), network.link("10.0.0.2")
    for number in range(100):
        driver.send(left, driver.route(left, right.gids[0]), b"x")
        driver.collect(right, recorder, number + 1)
    assert b"x" not in recorder.frames


def test_reordered_frames_come_a_little_later(run):
    numbers = [number_of(data) for data in run(1000, seed=2, reorder=0.1)]
    assert sorted(numbers) == list(range(1000))
    assert numbers != list(range(1000))
    behind = [max(numbers[:place], default=-1) - number for place, number in enumerate(numbers)]
    assert 1 <= max(behind) <= 8  # 4, and those that are held back themselves


def test_frame_held_back_is_let_go(network, driver, recorder):
    left, right = FaultLink(network.link("10.0.0.1"), reorder=1.0), network.link("10.0.0.2")
    driver.now = 5
    driver.send(left, driver.route(left, right.gids[0]), b"alone")
    assert left.deadline() == 5 + faults.HOLD_TIME
    left.receive(5 + faults.HOLD_TIME - 1, recorder)
    assert right.receive(0, recorder) == 0
    left.receive(5 + faults.HOLD_TIME, recorder)
    assert left.deadline() is None
    assert right.receive(0, recorder) == 1


def test_delay(network, driver, recorder):
    left, right = FaultLink(network.link("10.0.0.1"), seed=1, delay=1000), network.link("10.0.0.2")
    route = driver.route(left, right.gids[0])
    arrivals = []
    for number in range(400):
        driver.now = number * 2000
        driver.send(left, route, frame(number))
        while right.receive(driver.now, recorder) == 0:
            driver.now = left.deadline()
            left.receive(driver.now, recorder)
        arrivals.append(driver.now - number * 2000)
    assert [number_of(data) for data in recorder.frames] == list(range(400))
    assert 0 <= min(arrivals) < 50
    assert 950 < max(arrivals) <= 1000


@pytest.mark.parametrize("direction", ["send", "receive", "both"])
def test_direction(network, driver, make_recorder, direction):
    bad = FaultLink(network.link("10.0.0.1"), drop=1.0, direction=direction)
    good = network.link("10.0.0.2")
    arrived = {}
    for name, source, target in (("send", bad, good), ("receive", good, bad)):
        sink = make_recorder()
        driver.send(source, driver.route(source, target.gids[0]), b"xx", 1)
        target.receive(0, sink)
        arrived[name] = len(sink.frames)
    assert arrived == {name: 0 if direction in (name, "both") else 2 for name in arrived}


def test_receiving_side(network, driver, recorder):
    left, right = network.link("10.0.0.1"), FaultLink(network.link("10.0.0.2"), seed=4, direction="receive", **ALL)
    route = driver.route(left, right.gids[0])
    for number in range(500):
        driver.now += 100
        driver.send(left, route, frame(number) + frame(number), 32)
        right.receive(driver.now, recorder)
    finish(driver, left, right, recorder)
    stats = right.stats()
    assert len(recorder.frames) == 1000 - stats["fault_drop"] + stats["fault_duplicate"]
    assert {peer for peer, _ in recorder.bursts} == {(left.gids[0], 4791, 0)}


def test_peers_of_another_sink(network, driver, make_recorder):
    left, right = network.link("10.0.0.1"), FaultLink(network.link("10.0.0.2"), delay=100)
    for _ in range(2):
        sink = make_recorder()  # asserts that the peer is its own
        driver.send(left, driver.route(left, right.gids[0]), b"x")
        driver.collect(right, sink, 1)


def test_script(run):
    seen = []

    def script(index, data):
        seen.append((index, data))
        return {2: [], 3: [data, data], 4: [b"other"], 5: [b"", data[:7]]}.get(index, [data])

    expected = [frame(0), frame(1), frame(3), frame(3), b"other", frame(5)[:7], frame(6)]
    assert run(7, script=script) == expected
    assert seen == [(number, frame(number)) for number in range(7)]


def test_judge(network, driver, recorder):
    seen = []

    def judge(direction, now, data):
        seen.append((direction, number_of(data)))
        return {1: {"drop": 1}, 3: {"duplicate": 1}, 5: {"corrupt": 1}, 6: {"delay": 5000}}.get(number_of(data))

    left, right = FaultLink(network.link("10.0.0.1"), judge=judge, direction="send"), network.link("10.0.0.2")
    route = driver.route(left, right.gids[0])
    for number in range(8):
        driver.send(left, route, frame(number))
    finish(driver, left, right, recorder)
    assert seen == [("send", number) for number in range(8)]
    arrived = [number_of(data) for data in recorder.frames if data in [frame(number) for number in range(8)]]
    assert arrived == [0, 2, 3, 3, 4, 7, 6]
    assert len(recorder.frames) == 8, "and one that is damaged"
    stats = left.stats()
    assert [stats[f"fault_{name}"] for name in ("drop", "duplicate", "corrupt", "reorder", "delay")] == [1, 1, 1, 0, 1]


def test_judge_of_what_arrives(network, driver, recorder):
    directions = []

    def judge(direction, now, data):
        directions.append(direction)

    left, right = network.link("10.0.0.1"), FaultLink(network.link("10.0.0.2"), judge=judge)
    driver.send(left, driver.route(left, right.gids[0]), frame(1))
    driver.send(right, driver.route(right, left.gids[0]), frame(2))
    driver.collect(right, recorder, 1)
    assert directions == ["send", "receive"]


def test_script_with_too_long_a_frame(network, driver):
    link = FaultLink(network.link("10.0.0.1"), script=lambda index, data: [bytes(65537)])
    with pytest.raises(ValueError, match="65537 bytes"):
        driver.send(link, driver.route(link, link.gids[0]), b"x")


def test_inner_link_that_is_full(driver, recorder):
    network = Network(capacity=2)
    left, right = FaultLink(network.link("10.0.0.1")), network.link("10.0.0.2")
    route = driver.route(left, right.gids[0])
    for number in range(5):
        assert driver.send(left, route, frame(number))
    assert left.deadline() == driver.now + faults.RETRY_TIME
    finish(driver, left, right, recorder)
    assert [number_of(data) for data in recorder.frames] == list(range(5))


def test_bounded(network, driver, recorder, monkeypatch):
    monkeypatch.setattr(faults, "LIMIT", 10)
    left, right = FaultLink(network.link("10.0.0.1"), delay=1000), FaultLink(network.link("10.0.0.2"), delay=1000)
    route = driver.route(left, right.gids[0])
    assert driver.send(left, route, bytes(9), 1)
    assert not driver.send(left, route, bytes(2), 1)
    assert driver.send(left, route, b"\0")
    assert left.stats()["fault_frames"] == 10
    for _ in range(3):  # received at once, and then let out late
        plain = network.link("10.0.0.3")
        driver.send(plain, driver.route(plain, right.gids[0]), bytes(7), 1)
        plain.close()
    right.receive(driver.now, recorder)
    assert right.stats()["fault_overflow"] + len(recorder.frames) >= 21 - 10
    finish(driver, left, right, recorder)
    assert len(recorder.frames) + right.stats()["fault_overflow"] == 10 + 21


def test_closed_while_frames_wait(network, driver):
    link = FaultLink(network.link("10.0.0.1"), delay=1000)
    driver.send(link, driver.route(link, link.gids[0]), b"x")
    link.close()
    assert link.deadline() is None


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"drop": 1.5}, "drop is a probability"),
        ({"reorder": -0.1}, "reorder is a probability"),
        ({"corrupt": float("nan")}, "corrupt is a probability"),
        ({"delay": -1}, "delay is a time"),
        ({"direction": "up"}, "direction is both, send or receive"),
    ],
)
def test_bad_options(network, options, words):
    with pytest.raises(ValueError, match=words):
        FaultLink(network.link("10.0.0.1"), **options)


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ("", {}),
        ("seed=1", {"seed": 1}),
        ("seed=0x10,", None),
        (" drop = 0.05 , duplicate=1,reorder=0", {"drop": 0.05, "duplicate": 1.0, "reorder": 0.0}),
        ("delay=2ms", {"delay": 2_000_000}),
        ("delay=1.5us", {"delay": 1500}),
        ("delay=7", {"delay": 7}),
        ("delay=7ns", {"delay": 7}),
        ("delay=1s", {"delay": 1_000_000_000}),
        ("corrupt=1e-3,direction=send", {"corrupt": 0.001, "direction": "send"}),
    ],
)
def test_parse(network, text, options):
    if options is None:
        with pytest.raises(ValueError, match="seed is a whole number, not '0x10'"):
            parse_faults(text)
    else:
        assert parse_faults(text) == options
        FaultLink(network.link("10.0.0.1"), **parse_faults(text))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("dorp=0.1", "no fault 'dorp'; known are seed, drop"),
        ("drop", "drop is a probability, 0 to 1, not ''"),
        ("drop=2", "drop is a probability, 0 to 1, not '2'"),
        ("seed=1,corrupt=often", "corrupt is a probability, 0 to 1, not 'often'"),
        ("delay=2 minutes", "delay is a time, such as 500us or 2ms, not '2 minutes'"),
        ("delay=-1ms", "delay is a time"),
        ("delay=infs", "delay is a time"),
        ("delay=ms", "delay is a time"),
        ("seed=one", "seed is a whole number, not 'one'"),
        ("direction=up", "direction is both, send or receive, not 'up'"),
    ],
)
def test_parse_errors(text, words):
    with pytest.raises(ValueError, match=words):
        parse_faults(text)


def test_damage_is_of_every_kind():
    chance = random.Random(0)
    data = bytes(100)
    kinds = {len(faults._damage(chance, data, 1000)) - 100 for _ in range(300)}
    assert min(kinds) < 0
    assert set(range(9)) <= kinds
