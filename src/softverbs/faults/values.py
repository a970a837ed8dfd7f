# SPDX-License-Identifier: MIT
"""What the values of a plan of faults mean: numbers, sizes, times, amounts and names, from text and as text.

Each kind of value is a ``Value``. ``parse`` raises ValueError for a text that is none; ``show`` gives a text from which
``parse`` makes the same value.
"""

import errno
import fnmatch
import math
import re
from collections.abc import Callable
from fractions import Fraction
from typing import Any, NamedTuple

from softverbs.core.base.constants import VALUES
from softverbs.core.wire import opcodes

#: Nanoseconds of each unit of time.
TIMES = {"s": 1_000_000_000, "ms": 1_000_000, "us": 1_000, "ns": 1}
#: What happens on the data path and can be counted, in the plural and in the singular.
COUNTED = {"packets": "packet", "completions": "completion", "posts": "post", "updates": "update"}
NS = "ns"
_SIZES = {"": 1, "B": 1}
for _power, _letter in enumerate("KMGT", 1):
    _SIZES |= {_letter: 1024**_power, f"{_letter}iB": 1024**_power, f"{_letter}B": 1000**_power}
_SIZE_UNITS = {unit.lower(): factor for unit, factor in _SIZES.items()}
_NUMBER_AND_UNIT = re.compile(r"(\d+(?:\.\d*)?|\.\d+)\s*([A-Za-z]*)", re.ASCII)
_BOUND = 1 << 64


class Value(NamedTuple):
    """A kind of value."""

    parse: Callable[[str], Any]
    show: Callable[[Any], str]
    #: What it is, for the words of an error.
    what: str


class Amount(NamedTuple):
    """So much of something: ``unit`` is one of COUNTED, or NS for a time."""

    number: int
    unit: str

    def __str__(self) -> str:
        if self.unit == NS:
            return show_time(self.number)
        return f"{self.number} {COUNTED[self.unit] if self.number == 1 else self.unit}"


def _ascii(text: str) -> str:
    """The text of a number: Python's own conversions take the digits of every script."""
    if not text.isascii():
        raise ValueError
    return text


def _whole(text: str, low: int) -> int:
    number = int(_ascii(text), 0)
    if not low <= number < _BOUND:
        raise ValueError
    return number


def _scaled(text: str, units: dict[str, int]) -> int:
    """A number with a unit, of which there must be a whole number of the smallest."""
    match = _NUMBER_AND_UNIT.fullmatch(text)
    if match is None or match[2] not in units:
        raise ValueError
    number = Fraction(match[1]) * units[match[2]]
    if number.denominator != 1 or number >= _BOUND:
        raise ValueError
    return int(number)


def parse_size(text: str) -> int:
    """``4096``, ``64K``, ``1MiB``, ``1.5MB``: bytes, or entries."""
    match = _NUMBER_AND_UNIT.fullmatch(text)
    return _scaled(text.lower() if match is not None else "", _SIZE_UNITS)


def show_size(size: int) -> str:
    """The shortest exact text, in binary units."""
    for unit in ("TiB", "GiB", "MiB", "KiB"):
        if size and size % _SIZES[unit] == 0:
            return f"{size // _SIZES[unit]}{unit}"
    return str(size)


def parse_time(text: str) -> int:
    """``200us``, ``2ms``, ``1.5s``, or a number of nanoseconds."""
    return _scaled(text, {**TIMES, "": 1})


def show_time(time: int) -> str:
    """The shortest exact text."""
    for unit, factor in TIMES.items():
        if time and time % factor == 0:
            return f"{time // factor}{unit}"
    return f"{time}ns"


def _parse_amount(text: str, units: tuple[str, ...]) -> Amount:
    match = _NUMBER_AND_UNIT.fullmatch(text)
    if match is None:
        raise ValueError
    unit = match[2]
    if unit in TIMES:
        return Amount(parse_time(text), NS)
    plural = {COUNTED[name]: name for name in COUNTED}.get(unit, unit) or units[0]
    if plural not in units:
        raise ValueError
    return Amount(_whole(match[1], 0), plural)


def amount(*units: str) -> Value:
    """An amount of one of ``units``, the first of which need not be named, or a time."""
    return Value(
        lambda text: _parse_amount(text, units), str, f"a number of {' or '.join(units)}, or a time such as 5ms"
    )


def named(what: str, names: dict[str, int], prefix: str) -> Value:
    """A name of an enumeration, with or without ``IBV_...``, in any case; or its number."""

    def parse(text: str) -> str:
        name = text.upper().removeprefix("IBV_").removeprefix(prefix)
        if text.isascii() and text.isdecimal():
            name = next((each for each, number in names.items() if number == int(text)), text)
        if name not in names:
            raise ValueError
        return name

    return Value(parse, str, f"{what}: {', '.join(names)}")


def _parse_errno(text: str) -> int:
    numbers = {name: number for number, name in errno.errorcode.items()}
    number = numbers.get(text.upper(), 0) if text[:1].isalpha() else int(_ascii(text))
    if number not in errno.errorcode:
        raise ValueError
    return number


def _parse_number_or(words: tuple[str, ...]) -> Callable[[str], Any]:
    return lambda text: text.lower() if text.lower() in words else _whole(text, 0)


def _probability(text: str) -> float:
    number = float(_ascii(text))
    if math.isnan(number) or not 0 <= number <= 1:
        raise ValueError
    return number


def _frames(text: str) -> str:
    """A pattern of BTH opcodes by name."""
    pattern = text.upper()
    if not fnmatch.filter(opcodes.NAMES, pattern):
        raise ValueError
    return pattern


def _names(prefix: str, **more: int) -> dict[str, int]:
    """The names of the core's numbers with this prefix, without it."""
    found = {name.removeprefix(prefix): number for name, number in VALUES.items() if name.startswith(prefix)}
    return found | more


#: ``enum ibv_event_type``: those of the core, and those that it never raises by itself.
EVENTS = _names(
    "EVENT_",
    PATH_MIG=6,
    PATH_MIG_ERR=7,
    LID_CHANGE=11,
    PKEY_CHANGE=12,
    SM_CHANGE=13,
    SRQ_ERR=14,
    CLIENT_REREGISTER=17,
    GID_CHANGE=18,
)
#: ``enum ibv_wc_status`` but for success.
STATUSES = {name: number for name, number in _names("WC_").items() if name.endswith("_ERR")}
#: ``enum ibv_wc_opcode``.
WC_OPCODES = {
    name: number
    for name, number in _names("WC_").items()
    if name not in STATUSES and name not in ("SUCCESS", "GRH", "WITH_IMM", "WITH_INV")
}
WR_OPCODES = _names("WR_")
STATES = _names("QPS_")
QP_TYPES = _names("QPT_", RC=2, UC=3, UD=4, XRC_SEND=9, XRC_RECV=10)

COUNT = Value(lambda text: _whole(text, 1), str, "a number, from 1")
NUMBER = Value(lambda text: _whole(text, 0), str, "a number")
QP_NUMBER = Value(lambda text: _whole(text, 0), hex, "the number of a QP")
ANY_QP = Value(
    _parse_number_or(("any", "all")),
    lambda qp: qp if isinstance(qp, str) else hex(qp),
    "any, all or the number of a QP",
)
PROBABILITY = Value(_probability, repr, "a probability, 0 to 1")
SIZE = Value(parse_size, show_size, "a size such as 4096 or 1MiB")
TIME = Value(parse_time, show_time, "a time such as 500us or 2ms")
ERRNO = Value(_parse_errno, lambda number: errno.errorcode[number], "an errno such as ENOMEM")
FRAMES = Value(_frames, str, "the name of a packet such as RC_ACKNOWLEDGE or RC_SEND_*")
EVENT = named("the type of an event", EVENTS, "EVENT_")
STATUS = named("a status", STATUSES, "WC_")
WC_OPCODE = named("an opcode", WC_OPCODES, "WC_")
WR_OPCODE = named("an opcode", WR_OPCODES, "WR_")
STATE = named("a state", STATES, "QPS_")
QP_TYPE = named("a type", QP_TYPES, "QPT_")


def _direction(text: str) -> str:
    if text not in ("both", "send", "receive"):
        raise ValueError
    return text


DIRECTION = Value(_direction, str, "both, send or receive")
