# SPDX-License-Identifier: MIT
"""Run by test_wire_attributes.py in a network namespace of its own: a flow label that somebody has for himself alone.

Prints [label, frames sent so far, frames dropped so far] after a frame with each label, as JSON.
"""

import ctypes
import json
import logging
import socket
import struct
import subprocess

from softverbs.links import UdpLink

IPV6_FLOWLABEL_MGR, GET, CREATE, EXCLUSIVE = 32, 0, 1, 1  # linux/in6.h

logging.disable()
subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as owner:
    # struct in6_flowlabel_req
    peer, label = socket.inet_pton(socket.AF_INET6, "::1"), (0x777).to_bytes(4, "big")
    request = struct.pack("=16s4sBBHHHI", peer, label, GET, EXCLUSIVE, CREATE, 0, 0, 0)
    owner.setsockopt(socket.IPPROTO_IPV6, IPV6_FLOWLABEL_MGR, request)
    link = UdpLink("::1")
    data = ctypes.create_string_buffer(8)
    seen = []
    for value in (0, 5, 0x777, 0):
        assert link.send(0, link.route(0, link.gids[0], value, 0, 0), ctypes.addressof(data), 8, 8)
        stats = link.stats()
        seen.append([value, stats["frames_sent"], stats["send_dropped"]])
    link.close()
print(json.dumps(seen))
