# SPDX-License-Identifier: MIT
"""The cases of unreliable connections and of datagrams. Nothing is lost on the way: all that is sent must arrive."""

import ipaddress

from cases import OPS, SUCCESS, compare, completion, count, receive, request
from remote import Pair, Side, Wrong

UC_OPS = ("SEND", "SEND_WITH_IMM", "RDMA_WRITE", "RDMA_WRITE_WITH_IMM")
UD_OPS = ("SEND", "SEND_WITH_IMM")
SIZES = (0, 1, 3, 4, 63, 1024, 1025, 4096, 5001, 65536)
UD_SIZES = SIZES[:8]  # a datagram is one packet
GROUPS = {"IPv4": "239.77.1.2", "IPv6": "ff05::77:2"}
GRH, WITH_GRH = 40, 1  # IBV_WC_GRH
SILENCE = 0.5  # seconds in which nothing must come


def transfer(pair: Pair, op: str, length: int, seed: int) -> None:
    """One operation over UC. A message without data follows a WRITE and says that it has come: UC keeps the order."""
    pair.initiator.fill(seed, length)
    pair.target.clear(length)
    imm, silent = 0x01020304 + seed, OPS[op][3] is None
    pair.target.recv(length if op.startswith("SEND") else 0, wr_id=seed)
    posts = [request(pair, op, length, wr_id=seed + 1, imm=imm)]
    if silent:
        posts.append(request(pair, "SEND", 0, wr_id=seed + 2))
    pair.initiator.post(posts)
    completion(pair.initiator, "initiator", wr_id=seed + 1, opcode=OPS[op][2])
    count(pair, op, length)
    if silent:
        completion(pair.initiator, "initiator", wr_id=seed + 2, opcode=0)
        receive(pair, "SEND", 0, 0, seed)
        count(pair, "SEND", 0)
    else:
        receive(pair, op, length, imm, seed)
    compare(pair.target, seed, length)
    pair.check_counters()


def datagram(pair: Pair, op: str, length: int, seed: int) -> None:
    """One datagram: data, header, who sent it."""
    pair.initiator.fill(seed, length)
    pair.target.clear(length)
    imm = 0x01020304 + seed
    pair.target.recv(length, wr_id=seed)
    pair.initiator.post([request(pair, op, length, wr_id=seed + 1, imm=imm)])
    completion(pair.initiator, "initiator", wr_id=seed + 1, opcode=OPS[op][2])
    received(pair, op, length, imm, seed, pair.target.remote.addresses)
    count(pair, op, length)
    pair.check_counters()


def received(pair: Pair, op: str, length: int, imm: int, seed: int, to: "list[str]") -> None:
    """The target's completion, its data and its header.

    :param to: addresses that it may have been sent to
    """
    want = {"opcode": 128, "byte_len": GRH + length, "wr_id": seed, "src": pair.initiator.about["qpn"]}
    wc = completion(pair.target, "target", (SUCCESS,), **want)
    flags = WITH_GRH | (2 if op.endswith("WITH_IMM") else 0)
    if wc["flags"] & 3 != flags:
        raise Wrong(f"flags {wc['flags']:#x}, not {flags:#x}")
    if flags & 2 and wc["imm"] != imm:
        raise Wrong(f"immediate data {wc['imm']:#x}, not {imm:#x}")
    compare(pair.target, seed, length)
    source, dest = ends(pair.target)
    if source not in pair.initiator.remote.addresses or dest not in to:
        raise Wrong(f"the header says from {source} to {dest}")


def ends(side: Side) -> "tuple[str, str]":
    """Source and destination in the header before a datagram: IPv4 in the last 20 bytes, or IPv6 (annex A17.4.5.1)."""
    header = bytes.fromhex(side.grh())
    if header[0] >> 4 == 6:
        source, dest = header[8:24], header[24:40]
    elif header[20] == 0x45:
        source, dest = header[32:36], header[36:40]
    else:
        raise Wrong(f"neither IPv6 nor IPv4: {header.hex()}")
    return str(ipaddress.ip_address(source)), str(ipaddress.ip_address(dest))


def wrong_key(pair: Pair) -> None:
    """A datagram with another Q_Key is dropped, and the next one takes the receive."""
    pair.target.recv(64, wr_id=1)
    pair.initiator.post([request(pair, "SEND", 64, wr_id=2, qkey=0x22222222)])
    completion(pair.initiator, "initiator", wr_id=2)
    if pair.target.poll(1, SILENCE):
        raise Wrong("a datagram with another Q_Key was received")
    pair.initiator.fill(9, 64)
    pair.target.clear(64)
    pair.initiator.post([request(pair, "SEND", 64, wr_id=3)])
    completion(pair.initiator, "initiator", wr_id=3)
    wc = completion(pair.target, "target", wr_id=1, byte_len=GRH + 64)
    if wc["src"] != pair.initiator.about["qpn"]:
        raise Wrong("the wrong datagram was received")
    compare(pair.target, 9, 64)


def multicast(pair: Pair, family: str) -> None:
    """A datagram to a group: a member gets it, who has left does not."""
    group = GROUPS[family]
    pair.initiator.aim(group)
    pair.target.attach(group)
    try:
        for seed, length in enumerate((1, 1024), 1):
            pair.initiator.fill(seed, length)
            pair.target.clear(length)
            pair.target.recv(length, wr_id=seed)
            pair.initiator.post([request(pair, "SEND_WITH_IMM", length, wr_id=seed + 1, imm=seed, many=True)])
            completion(pair.initiator, "initiator", wr_id=seed + 1)
            received(pair, "SEND_WITH_IMM", length, seed, seed, [group])
    finally:
        pair.target.detach(group)
    pair.target.recv(8, wr_id=9)
    pair.initiator.post([request(pair, "SEND", 8, wr_id=10, many=True)])
    completion(pair.initiator, "initiator", wr_id=10)
    if pair.target.poll(1, SILENCE):
        raise Wrong("a queue pair that has left the group received")
