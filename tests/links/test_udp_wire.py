# SPDX-License-Identifier: MIT
"""What UDP links put on the wire, captured on a veth pair and on lo, in a namespace.

This is the proof of what links/udp.py says of the IPv4 identification, which the ICRC covers: a single datagram has 0,
and the segments of a burst that the kernel cuts up have 0, 1, 2, ...
"""

import json

import pytest

SIZES = [100, 28] + [100, 100, 100, 100, 60] * 2


@pytest.fixture
def wire(namespace):
    return lambda device: json.loads(namespace("wire_probe.py", device))


def check_ipv4(packets):
    assert [packet["id"] for packet in packets] == 2 * [0, 0, 0, 1, 2, 3, 4, 0, 1, 2, 3, 4]
    assert [packet["length"] for packet in packets] == 2 * SIZES
    assert all(packet["df"] and packet["source_port"] == 4791 for packet in packets)
    assert {(packet["class"], packet["ttl"]) for packet in packets[:12]} == {(0, 64)}
    assert {(packet["class"], packet["ttl"]) for packet in packets[12:]} == {(0xB9, 7)}


def test_veth(wire):
    result = wire("veth")
    check_ipv4(result["ipv4"])
    packets = result["ipv6"]
    assert [packet["length"] for packet in packets] == 2 * SIZES
    assert {(packet["class"], packet["label"], packet["ttl"]) for packet in packets[:12]} == {(0, 0, 64)}
    assert {(packet["class"], packet["label"], packet["ttl"]) for packet in packets[12:]} == {(0xB9, 0x12345, 7)}
    assert result["mtu"] == 1500 - 48
    assert result["too_long"] == 3
    assert result["step"] == 1


def test_loopback(wire):
    check_ipv4(wire("lo")["ipv4"])
