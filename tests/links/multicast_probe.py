# SPDX-License-Identifier: MIT
"""Run by test_multicast.py in a network namespace of its own: groups over a veth pair, and IPv6 groups on lo.

The other end of the pair is a child in another namespace, told what to do line by line. Prints what was seen, as JSON.
"""

import ctypes
import json
import select
import socket
import struct
import subprocess
import sys

from softverbs.links import UdpLink, gid_of

GROUPS = {"4": "239.77.1.2", "6": "ff0e::1234", "ll": "ff02::1234", "lo6": "ff0e::1234"}
ENDS = {"4": ("10.77.0.1", "10.77.0.2"), "6": ("fd77::1", "fd77::2"), "lo6": ("fd78::1", "fd78::2")}
ENDS["ll"] = ("fe80::77:1%sv0", "fe80::77:2%sv1")


class Sink:
    def __init__(self):
        self.heard = []

    def peer(self, source, port, index, dgid=None):
        return dgid

    def receive(self, peer, address, length, segment):
        self.heard.append((peer, ctypes.string_at(address, length).decode()))


def run(*words):
    subprocess.run(words, check=True, capture_output=True, text=True)


def addresses(device, end):
    run("ip", "link", "set", device, "up")
    run("ip", "address", "add", f"{ENDS['4'][end]}/24", "dev", device)
    for family in ("6", "ll"):
        host = ENDS[family][end].partition("%")[0]
        run("ip", "address", "add", f"{host}/64", "dev", device, "nodad")


def send(link, gid, text, *attributes):
    data = ctypes.create_string_buffer(text.encode(), len(text))
    route = link.route(0, gid, *(attributes or (0, 0, 0)))
    assert link.send(0, route, ctypes.addressof(data), len(text), len(text))


def collect(link, sink, text):
    """Receive until `text` has come."""
    while text not in [heard for _, heard in sink.heard]:
        assert select.select(link.filenos(), [], [], 5)[0], f"{text} did not come: {sink.heard}, {link.stats()}"
        link.receive(0, sink)


class Member:
    """What the other end does."""

    def __init__(self, family):
        self.family = family
        self.link = UdpLink(ENDS[family][1])
        self.group = gid_of(GROUPS[family])
        self.sink = Sink()
        self.link.join(self.group, 0)
        self.raw = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
        self.raw.bind(("lo" if family == "lo6" else "sv1", 0))
        self.raw.settimeout(5)

    def heard(self):
        """Wait for what was sent, and leave."""
        collect(self.link, self.sink, "again")
        self.link.leave(self.group, 0)
        assert all(group == self.group for group, _ in self.sink.heard)
        texts = [text for _, text in self.sink.heard]
        return {"heard": texts, **({} if self.family == "lo6" else self.captured(2))}

    def captured(self, count):
        macs, hops, classes = set(), [], []
        while len(hops) < count:
            packet, (_, _, kind, *_) = self.raw.recvfrom(65536)
            ipv4 = self.family == "4"
            if kind == socket.PACKET_OUTGOING or packet[12:14] != (b"\x08\x00" if ipv4 else b"\x86\xdd"):
                continue
            if packet[23 if ipv4 else 20] != socket.IPPROTO_UDP:
                continue
            macs.add(packet[:6].hex(":"))
            hops.append(packet[22 if ipv4 else 21])
            classes.append(packet[15] if ipv4 else struct.unpack("!I", packet[14:18])[0] >> 20 & 0xFF)
        return {"macs": sorted(macs), "hops": hops, "classes": classes}

    def end(self):
        """Wait for the end; what came of the group after leaving."""
        seen = len(self.sink.heard)
        collect(self.link, self.sink, "end")
        return [text for group, text in self.sink.heard[seen:] if group is not None]


def serve():
    """The child: obeys lines, and answers each with JSON."""
    member = None
    for line in sys.stdin:
        word, _, argument = line.strip().partition(" ")
        if word == "address":
            addresses("sv1", 1)
            answer = None
        elif word == "open":
            member = Member(argument)
            answer = None
        else:
            answer = getattr(member, word)()
        print(json.dumps(answer), flush=True)


def talk(family, ask):
    """The parent's part with one family; `ask` has the member do something."""
    group = gid_of(GROUPS[family])
    ask(f"open {family}")
    link, sink = UdpLink(ENDS[family][0]), Sink()
    link.join(group, 0)
    send(link, group, "from left")
    send(link, group, "again", 0x12345, 0xB9, 7)
    result = ask("heard")
    send(link, group, "late")
    send(link, gid_of(ENDS[family][1]), "end")
    result["after leaving"] = ask("end")
    link.receive(0, sink)
    result["own"] = len(sink.heard)
    link.close()
    return result


def main():
    command = ["unshare", "--net", sys.executable, __file__, "member"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:

        def ask(line):
            child.stdin.write(line + "\n")
            child.stdin.flush()
            return json.loads(child.stdout.readline())

        run("ip", "link", "set", "lo", "up")
        run("ip", "link", "add", "sv0", "type", "veth", "peer", "name", "sv1")
        child.stdout.readline()  # it is in its namespace
        run("ip", "link", "set", "sv1", "netns", str(child.pid))
        addresses("sv0", 0)
        ask("address")
        result = {family: talk(family, ask) for family in ("4", "6", "ll")}
        child.stdin.close()
    for address in ENDS["lo6"]:
        run("ip", "address", "add", f"{address}/128", "dev", "lo", "nodad")
    run("ip", "-6", "route", "add", "local", GROUPS["lo6"], "dev", "lo")
    members = []

    def ask_here(line):
        word, _, argument = line.partition(" ")
        if word == "open":
            members.append(Member(argument))
            return None
        return getattr(members[0], word)()

    result["lo6"] = talk("lo6", ask_here)
    print(json.dumps(result))


if sys.argv[1:] == ["member"]:
    print("ready", flush=True)
    serve()
else:
    main()
