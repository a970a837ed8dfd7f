# SPDX-License-Identifier: MIT
"""The protocol's tables, and the header that is made of them."""

from pathlib import Path

import pytest

from softverbs.server import abi
from softverbs.server._registry import HANDLERS
from softverbs.server.server import Server

HEADER = Path(__file__).parents[2] / "driver" / "abi.h"


def test_the_header_is_the_one_that_is_made() -> None:
    assert HEADER.read_text() == abi.header(), "run python -m softverbs.server.abi > driver/abi.h"


def test_members_are_aligned_and_padding_is_explicit() -> None:
    records = [record for command in abi.COMMANDS.values() for record in (command.request, command.response)]
    for record in [*records, *abi.RECORDS.values()]:
        assert record.size % 8 == 0
        spans = [(member.offset, member.size) for member in record.members] + record.padding
        at = 0
        for offset, size in sorted(spans):
            assert offset == at
            at += size
        assert at == record.size


def test_what_is_packed_is_unpacked() -> None:
    command = abi.COMMANDS["MODIFY_QP"]
    attr = {"qp_state": 3, "ah_attr": {"dgid": bytes(range(16)), "hop_limit": 7}, "timeout": 14}
    data = abi.pack_request(command, 5, {"handle": 9, "attr": attr})
    assert abi.REQUEST.unpack(data) == {"size": len(data), "command": 31, "sequence": 5}
    found = command.request.unpack(data, 16)
    assert found["handle"] == 9 and found["attr"]["timeout"] == 14 and found["attr"]["sq_psn"] == 0
    assert found["attr"]["ah_attr"]["dgid"] == bytes(range(16)) and found["attr"]["ah_attr"]["hop_limit"] == 7


def test_an_unknown_member_is_noticed() -> None:
    with pytest.raises(KeyError):
        abi.COMMANDS["MODIFY_CQ"].request.pack({"handel": 1})


@pytest.mark.parametrize("text", ["", "because", "\0 and \0", "ü" * 400, "x" + "ü" * 400])
def test_words_are_cut_between_letters(text: str) -> None:
    data = abi.pack_refusal(3, 22, text)
    head = abi.RESPONSE.unpack(data)
    assert head == {"size": len(data), "error": 22, "sequence": 3}
    words = data[16:].decode()
    assert len(data) <= 16 + abi.TEXT_SIZE
    assert text.replace("\0", "?").startswith(words)


def test_text_in_a_structure_has_no_zeros_behind_it() -> None:
    response = abi.COMMANDS["COMPLETION_REASON"].response
    assert response.unpack(response.pack({"text": b"why"})) == {"text": b"why"}


def test_every_command_is_carried_out_by_a_function() -> None:
    assert HANDLERS.keys() == abi.BY_NUMBER.keys()
    assert Server.__doc__


def test_messages_fit() -> None:
    for command in abi.COMMANDS.values():
        assert 16 + max(command.request.size, command.response.size, abi.TEXT_SIZE) <= abi.MESSAGE_SIZE
