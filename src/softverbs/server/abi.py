"""The protocol between a program's driver and the device: every command, its structures, and the shared memory.

This file is the one definition. ``python -m softverbs.server.abi`` prints ``driver/abi.h``, which the C driver is
compiled with; the server and the tests pack and unpack by the same tables.

A connection is a UNIX socket of type SOCK_SEQPACKET, one message each way for each command:

* request: ``struct sv_request``, then the structure of the command, nothing where it has none;
* response: ``struct sv_response``, then, where ``error`` is 0, the structure of the command, and its
  descriptors by SCM_RIGHTS; where ``error`` is an errno, text that says why (UTF-8, no NUL, TEXT_SIZE bytes at most).

Integers are in host order. ``size`` counts the whole message. A request whose size is not exactly right is answered
with EINVAL. Handles are numbers of one connection; 0 is none.
"""

import struct
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from softverbs.server import _commands, _layout
from softverbs.server._commands import COMMAND_TABLE, TYPES

VERSION = 4
#: Largest message of either side, bytes.
MESSAGE_SIZE = 4096
#: Longest text of a refusal, bytes.
TEXT_SIZE = 500


@dataclass(frozen=True)
class Member:
    """One member of a structure."""

    name: str
    type: str
    count: int
    offset: int
    size: int
    record: "Record | None" = None


@dataclass
class Record:
    """A structure: its members at their natural alignment, all padding explicit, its size a multiple of 8."""

    name: str
    members: list[Member] = field(default_factory=list)
    padding: list[tuple[int, int]] = field(default_factory=list)
    size: int = 0

    def add(self, name: str, type: str, count: int, record: "Record | None") -> None:
        """Appends a member, behind the padding that it needs."""
        size, alignment = (record.size, 8) if record is not None else (TYPES[type][1], TYPES[type][1])
        self._pad(alignment)
        self.members.append(Member(name, type, count, self.size, size * max(count, 1), record))
        self.size += size * max(count, 1)

    def finish(self) -> "Record":
        """The structure with the padding at its end."""
        self._pad(8)
        return self

    def _pad(self, alignment: int) -> None:
        gap = -self.size % alignment
        if gap:
            self.padding.append((self.size, gap))
            self.size += gap

    def pack(self, values: Mapping[str, Any]) -> bytes:
        """The bytes of the structure. Members that are not named are 0; an unknown name raises KeyError.

        :param values: by name: integers, bytes for arrays of bytes and for text, a mapping for a structure within
        """
        if not self.members:
            return b""
        data = bytearray(self.size)
        known = {member.name: member for member in self.members}
        for name, value in values.items():
            member = known[name]
            if member.record is not None:
                raw = member.record.pack(value)
            elif member.count:
                raw = bytes(value)[: member.size].ljust(member.size, b"\0")
            else:
                raw = struct.pack("=" + TYPES[member.type][2], value)
            data[member.offset : member.offset + member.size] = raw
        return bytes(data)

    def unpack(self, data: bytes, start: int = 0) -> dict[str, Any]:
        """The values by name, as ``pack`` takes them; text without the zeros behind it.

        :param data: at least ``size`` bytes from ``start`` on
        """
        values: dict[str, Any] = {}
        for member in self.members:
            at = start + member.offset
            if member.record is not None:
                values[member.name] = member.record.unpack(data, at)
            elif member.count:
                raw = bytes(data[at : at + member.size])
                values[member.name] = raw.rstrip(b"\0") if member.type == "char" else raw
            else:
                (values[member.name],) = struct.unpack_from("=" + TYPES[member.type][2], data, at)
        return values


@dataclass(frozen=True)
class Command:
    """A command: its number, its structures, and the descriptors that its response carries."""

    name: str
    number: int
    request: Record
    response: Record
    descriptors: tuple[str, ...]
    text: str


def _record(name: str, text: str) -> Record:
    """A structure from its text: a member on each line or behind each semicolon, as ``u32 name`` or ``u8 name[16]``."""
    record = Record(name)
    for item in filter(None, (part.strip() for part in text.replace("\n", ";").split(";"))):
        type_name, _, rest = item.partition(" ")
        label, _, count = rest.strip().rstrip("]").partition("[")
        record.add(label, type_name, int(count or 0), RECORDS.get(type_name))
    return record.finish()


#: Structures by name, but those of single commands.
RECORDS: dict[str, Record] = {}
for _name, _text in _commands.RECORDS.items():
    RECORDS[_name] = _record(_name, _text)

REQUEST = RECORDS["request"]
RESPONSE = RECORDS["response"]
#: The same two in one go, since each command needs them: size, command or error, sequence.
REQUEST_HEAD = struct.Struct("=IIQ")
RESPONSE_HEAD = struct.Struct("=IiQ")
assert (REQUEST_HEAD.size, RESPONSE_HEAD.size) == (REQUEST.size, RESPONSE.size)
COMMANDS: dict[str, Command] = {}
BY_NUMBER: dict[int, Command] = {}
for _name, _number, _request, _response, _descriptors, _text in COMMAND_TABLE:
    _command = Command(
        _name,
        _number,
        _record(f"{_name.lower()}_request", _request),
        _record(f"{_name.lower()}_response", _response),
        tuple(_descriptors.split()),
        _text,
    )
    assert _number not in BY_NUMBER and _name not in COMMANDS
    COMMANDS[_name] = BY_NUMBER[_number] = _command


def pack_request(command: Command, sequence: int, values: Mapping[str, Any]) -> bytes:
    """A whole request.

    :param sequence: any number; the response returns it
    :param values: of the command's structure
    """
    size = REQUEST.size + command.request.size
    head = REQUEST.pack({"size": size, "command": command.number, "sequence": sequence})
    return head + command.request.pack(values)


def pack_response(command: Command, sequence: int, values: Mapping[str, Any]) -> bytes:
    """A whole response of success."""
    size = RESPONSE.size + command.response.size
    return RESPONSE_HEAD.pack(size, 0, sequence) + command.response.pack(values)


def pack_refusal(sequence: int, error: int, reason: str) -> bytes:
    """A whole response of failure.

    :param error: an errno, not 0
    :param reason: in words; cut after TEXT_SIZE bytes
    """
    text = reason.encode("utf-8", "replace")[:TEXT_SIZE].decode("utf-8", "ignore").replace("\0", "?").encode()
    return RESPONSE_HEAD.pack(RESPONSE.size + len(text), error, sequence) + text


# -- driver/abi.h


def _struct_lines(record: Record) -> Iterator[str]:
    """A structure in C, and the check of its size."""
    yield f"struct sv_{record.name} {{"
    parts: list[tuple[int, str]] = [(at, f"uint8_t reserved{at}[{gap}];") for at, gap in record.padding]
    for member in record.members:
        c_type = f"struct sv_{member.type}" if member.record is not None else TYPES[member.type][0]
        parts.append((member.offset, f"{c_type} {member.name}{f'[{member.count}]' if member.count else ''};"))
    for at, text in sorted(parts):
        yield f"\t{text:<40} /* {at} */"
    yield "};"
    yield f'SV_ABI_ASSERT(sizeof(struct sv_{record.name}) == {record.size}, "{record.name}");'
    yield ""


def header() -> str:
    """The text of ``driver/abi.h``."""
    lines = [
        "/* SPDX-License-Identifier: MIT */",
        "/* Made by `python -m softverbs.server.abi` from softverbs/server/abi.py, which explains it. */",
        "#ifndef SOFTVERBS_ABI_H",
        "#define SOFTVERBS_ABI_H",
        "",
        "#include <stdint.h>",
        "",
        "#ifdef __cplusplus",
        "#define SV_ABI_ASSERT static_assert",
        "#else",
        "#define SV_ABI_ASSERT _Static_assert",
        "#endif",
        "",
        f"#define SV_ABI_VERSION {VERSION}",
        f"#define SV_MESSAGE_SIZE {MESSAGE_SIZE}",
        f"#define SV_TEXT_SIZE {TEXT_SIZE}",
        "",
    ]
    for title, values in _layout.GROUPS:
        lines.append(f"/* {title} */")
        lines += [f"#define SV_{name:<28} {value}" for name, value in values.items()]
        lines.append("")
    lines += ["/* Commands. */", "enum sv_command {"]
    lines += [f"\tSV_{command.name} = {command.number}," for command in COMMANDS.values()]
    lines += ["};", ""]
    for record in RECORDS.values():
        lines += _struct_lines(record)
    for command in COMMANDS.values():
        passed = f" Descriptors: {', '.join(command.descriptors)}." if command.descriptors else ""
        lines.append(f"/* {command.name}: {command.text}{passed} */")
        for record in (command.request, command.response):
            if record.size:
                lines += _struct_lines(record)
        if not command.request.size and not command.response.size:
            lines.append("")
    lines += ["#endif", ""]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.stdout.write(header())
