"""What UDP links put on the wire, captured on a veth pair and on lo, in a namespace.

This is the proof of what links/udp.py says of the IPv4 identification, which the ICRC covers: a single datagram has 0,
and the segments of a burst that the kernel cuts up have 0, 1, 2, ...
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import softverbs.links

NAMESPACE = ["unshare", "--map-root-user", "--net"]
SIZES = [100, 28] + [100, 100, 100, 100, 60] * 2


def wire(device):
    for tool in ("unshare", "ip", "ethtool"):
        if shutil.which(tool, path=os.environ["PATH"] + ":/usr/sbin:/sbin") is None:
            pytest.skip(f"{tool} is not installed")
    if subprocess.run([*NAMESPACE, "true"], capture_output=True).returncode:
        pytest.skip("network namespaces are not allowed here")
    environment = {
        **os.environ,
        "PATH": os.environ["PATH"] + ":/usr/sbin:/sbin",
        "PYTHONPATH": str(Path(softverbs.links.__file__).parents[2]),
    }
    command = [*NAMESPACE, sys.executable, str(Path(__file__).with_name("wire_probe.py")), device]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def check_ipv4(packets):
    assert [packet["id"] for packet in packets] == 2 * [0, 0, 0, 1, 2, 3, 4, 0, 1, 2, 3, 4]
    assert [packet["length"] for packet in packets] == 2 * SIZES
    assert all(packet["df"] and packet["source_port"] == 4791 for packet in packets)
    assert {(packet["class"], packet["ttl"]) for packet in packets[:12]} == {(0, 64)}
    assert {(packet["class"], packet["ttl"]) for packet in packets[12:]} == {(0xB9, 7)}


def test_veth():
    result = wire("veth")
    check_ipv4(result["ipv4"])
    packets = result["ipv6"]
    assert [packet["length"] for packet in packets] == 2 * SIZES
    assert {(packet["class"], packet["label"], packet["ttl"]) for packet in packets[:12]} == {(0, 0, 64)}
    assert {(packet["class"], packet["label"], packet["ttl"]) for packet in packets[12:]} == {(0xB9, 0x12345, 7)}
    assert result["mtu"] == 1500 - 48
    assert result["too_long"] == 3
    assert result["step"] == 1


def test_loopback():
    check_ipv4(wire("lo")["ipv4"])
