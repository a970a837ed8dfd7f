# SPDX-License-Identifier: MIT
"""Run by test_udp_wire.py in a network namespace of its own: sends over a device, and prints what was on the wire.

Its argument is "veth" or "lo". Prints a JSON list of what was captured, one dictionary a packet.
"""

import ctypes
import json
import socket
import struct
import subprocess
import sys

from softverbs.links import UdpLink, gid_of

PEER_MAC = "02:00:00:00:00:02"


def run(*words):
    subprocess.run(words, check=True, capture_output=True, text=True)


def set_up(device):
    run("ip", "link", "set", "lo", "up")
    if device == "lo":
        run("ethtool", "-K", "lo", "tx-udp-segmentation", "off")
        return "lo", ("127.0.0.5", "127.0.0.6"), None
    run("ip", "link", "add", "sv0", "type", "veth", "peer", "name", "sv1", "address", PEER_MAC)
    run("ethtool", "-K", "sv0", "tx-udp-segmentation", "off")
    run("ip", "address", "add", "10.77.0.1/24", "dev", "sv0")
    run("ip", "address", "add", "fd77::1/64", "dev", "sv0", "nodad")
    for name in ("sv0", "sv1"):
        run("ip", "link", "set", name, "up")
    for peer in ("10.77.0.2", "fd77::2"):
        run("ip", "neighbour", "add", peer, "lladdr", PEER_MAC, "dev", "sv0", "nud", "permanent")
    return "sv1", ("10.77.0.1", "10.77.0.2"), ("fd77::1", "fd77::2")


def send(link, route, length, segment):
    data = (ctypes.c_char * length)()
    assert link.send(0, route, ctypes.addressof(data), length, segment)


def capture(sock, family, count):
    """Reads `count` packets of the family to UDP port 4791; on lo each is seen twice, and is taken once."""
    found = []
    while len(found) < count:
        packet, (_, _, kind, *_) = sock.recvfrom(65536)
        if kind == socket.PACKET_OUTGOING or packet[12:14] != (b"\x08\x00" if family == 4 else b"\x86\xdd"):
            continue
        if family == 4:
            tos, length, identification, fragment, ttl, protocol = struct.unpack("!xBHHHBB", packet[14:24])
            entry = {"class": tos, "length": length - 28, "id": identification, "df": fragment == 0x4000, "ttl": ttl}
            udp = packet[34:]
        else:
            first, length, protocol, ttl = struct.unpack("!IHBB", packet[14:22])
            entry = {"class": first >> 20 & 0xFF, "label": first & 0xFFFFF, "length": length - 8, "ttl": ttl}
            udp = packet[54:]
        if protocol == 17 and udp[2:4] == (4791).to_bytes(2, "big"):
            found.append({**entry, "source_port": int.from_bytes(udp[:2], "big")})
    return found


def main(device):
    name, ipv4, ipv6 = set_up(device)
    sock = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
    sock.bind((name, 0))
    sock.settimeout(5)
    result = {}
    for family, ends in ((4, ipv4), (6, ipv6)):
        if ends is None:
            continue
        link = UdpLink(ends[0])
        result["mtu"] = link.mtu
        plain = link.route(0, gid_of(ends[1]), 0, 0, 0)
        special = link.route(0, gid_of(ends[1]), 0x12345, 0xB9, 7)
        for route in (plain, special):
            send(link, route, 100, 100)
            send(link, route, 28, 28)
            send(link, route, 460, 100)
            send(link, route, 460, 100)
        result[f"ipv{family}"] = capture(sock, family, 24)
        if device == "veth":
            send(link, plain, 2000, 2000)
            send(link, plain, 4000, 2000)
            result["too_long"] = link.stats()["send_dropped"]
        result["step"] = link.identification_step
        link.close()
    sock.close()
    print(json.dumps(result))


main(sys.argv[1])
