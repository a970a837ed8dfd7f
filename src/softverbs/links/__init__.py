# SPDX-License-Identifier: MIT
"""Links: what carries frames between ports. base.py says what a link is; the others are links."""

from softverbs.links.base import Link, Sink, address_of, gid_of
from softverbs.links.faults import FaultLink, parse_faults
from softverbs.links.inproc import InprocLink, Network
from softverbs.links.pcap import PcapLink
from softverbs.links.udp import UdpLink

__all__ = [
    "FaultLink",
    "InprocLink",
    "Link",
    "Network",
    "PcapLink",
    "Sink",
    "UdpLink",
    "address_of",
    "gid_of",
    "parse_faults",
]
