# SPDX-License-Identifier: MIT
"""Messages of the connection manager, against what Linux 6.8's Soft-RoCE and rdma-core put on the wire."""

import random

import pytest

from softverbs.cm import messages
from softverbs.cm.messages import BadMad, IpHeader, Message, decode

# MADs of a capture of rping and udaddy between two Linux hosts, 10.77.0.3 and 10.77.0.2; zeros to 256 bytes follow.
GOLDEN = {
    "REQ": (
        "010702030000000000000002727ad614001000000000000014d67a72000000000000000001061c06505400fffe77000300000000"
        "0000000000003f0100000001000000a0113a4aa7ffff57f0ffffffff00000000000000000000ffff0a4d00030000000000000000"
        "0000ffff0a4d0002ada2e00000400098"
        "0000000000000000000000000000000000000000000000000000000000000000000000000000000000000000"
        "0040dcd80000000000000000000000000a4d00030000000000000000000000000a4d0002"
    ),
    "REP": (
        "010702030000000000000002727ad614001300000000000085a3fc7b14d67a720000000000003f0000000000cd135700010178e0"
        "505400fffe770002"
    ),
    "RTU": "010702030000000000000002727ad614001400000000000014d67a7285a3fc7b",
    "DREQ": "010702030000000000000002727ad614001500000000000014d67a7285a3fc7b00003f",
    "DREP": "010702030000000000000002727ad614001600000000000085a3fc7b14d67a72",
    "SIDR_REQ": (
        "010702030000000000000002727ad617001700000000000017d67a72ffff00000000000001111c060040a747"
        "0000000000000000000000000a4d00030000000000000000000000000a4d0002"
    ),
    "SIDR_REP": "010702030000000000000002727ad617001800000000000017d67a7200000000000042000000000001111c0601234567",
}


def mad(name: str) -> bytes:
    return bytes.fromhex(GOLDEN[name]).ljust(256, b"\0")


def read(name: str) -> Message:
    return decode(mad(name))


@pytest.mark.parametrize("name", GOLDEN)
def test_what_is_decoded_is_encoded_to_the_same_bytes(name: str) -> None:
    message = read(name)
    assert message.encode() == mad(name)


def test_req() -> None:
    req = read("REQ")
    assert isinstance(req, messages.Req)
    assert req.transaction_id == 0x00000002727AD614
    assert req.local_comm_id == 0x14D67A72
    assert messages.service_of(req.service_id) == (0x0106, 7174)
    assert req.service_id == messages.service_id_of(0x0106, 7174)
    assert req.ca_guid == 0x505400FFFE770003
    assert (req.qpn, req.starting_psn, req.path_mtu, req.pkey) == (0x3F, 0x113A4A, 5, 0xFFFF)
    assert (req.responder_resources, req.initiator_depth) == (1, 1)
    assert (req.remote_response_timeout, req.local_response_timeout, req.max_cm_retries) == (20, 20, 15)
    assert (req.retry_count, req.rnr_retry_count, req.transport, req.flow_control, req.srq) == (7, 7, 0, 0, 0)
    assert (req.local_lid, req.remote_lid, req.hop_limit, req.ack_timeout) == (0xFFFF, 0xFFFF, 0x40, 0x13)
    assert req.flow_label == 0xADA2E
    assert req.local_gid == bytes.fromhex("00000000000000000000ffff0a4d0003")
    assert req.remote_gid == bytes.fromhex("00000000000000000000ffff0a4d0002")
    assert not any(req.alternate_local_gid)
    header = IpHeader.decode(req.private_data)
    assert (header.source, header.destination, header.source_port) == (
        bytes([10, 77, 0, 3]), bytes([10, 77, 0, 2]), 0xDCD8,
    )  # fmt: skip
    assert header.encode() == req.private_data[:36]
    assert len(req.private_data) == 92


def test_rep() -> None:
    rep = read("REP")
    assert isinstance(rep, messages.Rep)
    assert (rep.local_comm_id, rep.remote_comm_id) == (0x85A3FC7B, 0x14D67A72)
    assert (rep.qpn, rep.starting_psn, rep.responder_resources, rep.initiator_depth) == (0x3F, 0xCD1357, 1, 1)
    assert (rep.target_ack_delay, rep.failover, rep.flow_control) == (15, 0, 0)
    assert (rep.rnr_retry_count, rep.srq, rep.ca_guid) == (7, 0, 0x505400FFFE770002)
    assert rep.vendor_id == 0
    rep.set_vendor_id(0xA1B2C3)
    assert messages.decode(rep.encode()).vendor_id == 0xA1B2C3  # type: ignore[attr-defined]
    assert len(rep.private_data) == 196


def test_the_others() -> None:
    rtu, dreq, drep, request, reply = (read(name) for name in ("RTU", "DREQ", "DREP", "SIDR_REQ", "SIDR_REP"))
    assert isinstance(rtu, messages.Rtu) and rtu.local_comm_id == 0x14D67A72
    assert isinstance(dreq, messages.Dreq) and dreq.remote_qpn == 0x3F
    assert isinstance(drep, messages.Drep) and drep.remote_comm_id == 0x14D67A72
    assert isinstance(request, messages.SidrReq) and messages.service_of(request.service_id) == (0x0111, 7174)
    assert IpHeader.decode(request.private_data).source_port == 0xA747
    assert isinstance(reply, messages.SidrRep)
    assert (reply.status, reply.qpn, reply.qkey, reply.request_id) == (0, 0x42, 0x01234567, 0x17D67A72)


def test_ipv6_header() -> None:
    header = IpHeader(bytes(range(16)), bytes(range(16, 32)), 7)
    assert IpHeader.decode(header.encode() + b"more") == header
    with pytest.raises(BadMad, match="35 bytes"):
        IpHeader.decode(bytes(35))
    with pytest.raises(BadMad, match="version"):
        IpHeader.decode(b"\0\x50" + bytes(40))
    with pytest.raises(BadMad, match="version"):
        IpHeader.decode(b"\1\x40" + bytes(40))


@pytest.mark.parametrize("kind", [messages.Mra, messages.Rej, messages.Rep, messages.Req, messages.SidrRep])
def test_every_field_survives_alone(kind: type[Message]) -> None:
    base = {"local_comm_id": 1, "qpn": 1, "path_mtu": 1}
    base = {name: value for name, value in base.items() if name in kind.LAYOUT}
    for name, (_, bits) in kind.LAYOUT.items():
        for value in (1, (1 << bits) - 1):
            message = kind(**{**base, name: value})
            try:
                assert getattr(decode(message.encode()), name) == value
            except BadMad:
                assert name in ("path_mtu", "about", "info_length", "pkey")
        with pytest.raises(ValueError, match=name):
            kind(**{**base, name: 1 << bits}).encode()
    for name, (_, size) in kind.BYTES.items():
        assert getattr(decode(kind(**base, **{name: b"\xff" * size}).encode()), name) == b"\xff" * size
        with pytest.raises(ValueError, match=name):
            kind(**base, **{name: bytes(size + 1)}).encode()


def test_what_is_no_message() -> None:
    good = mad("REQ")

    def cause(mad: bytes) -> str:
        with pytest.raises(BadMad) as caught:
            decode(mad)
        return caught.value.cause

    def changed(at: int, value: int) -> bytes:
        return good[:at] + bytes([value]) + good[at + 1 :]

    assert cause(good[:-1]) == cause(good + b"\0") == cause(b"") == "length"
    assert cause(changed(0, 2)) == cause(changed(1, 3)) == cause(changed(2, 1)) == "class"
    assert cause(changed(3, 1)) == "method"
    assert cause(changed(17, 0x19)) == cause(changed(16, 1)) == "attribute"
    assert cause(changed(24 + 50, 0x07)) == "value"  # path MTU 0
    assert cause(changed(24 + 48, 0x12)) == "pkey"
    assert cause(good[:24] + bytes(4) + good[28:]) == "value"  # no communication ID
    assert cause(good[:56] + bytes(3) + good[59:]) == "value"  # no QP
    with pytest.raises(BadMad, match="service"):
        messages.service_of(0x1234)


def test_noise_is_refused_or_makes_sense() -> None:
    """Seeded noise over good messages: a message or BadMad, never anything else."""
    chance = random.Random(5)
    refused = 0
    for _ in range(2000):
        data = bytearray(mad(chance.choice(list(GOLDEN))))
        for _ in range(chance.randrange(1, 8)):
            data[chance.randrange(256)] = chance.randrange(256)
        try:
            message = decode(bytes(data))
        except BadMad:
            refused += 1
        else:
            assert decode(message.encode()) == message
    assert 100 < refused < 1000
