# SPDX-License-Identifier: MIT
"""Members of C structures as attributes: integers of a known width, refused in words where they do not fit."""

import errno
from operator import index
from typing import Any, overload

from softverbs.core.base.errors import PyverbsRDMAError


def refused(reason: str, error_code: int = errno.EINVAL) -> PyverbsRDMAError:
    """The exception for bad input.

    :param reason: what is wrong, in words
    :param error_code: value of errno
    """
    return PyverbsRDMAError(reason, error_code)


def integer(value: object, what: str, bits: int = 32, signed: bool = False) -> int:
    """``value`` as a plain integer that fits a C type; PyverbsRDMAError (EINVAL) says what does not.

    :param value: an integer, or anything with ``__index__``, as an enumeration's member or NumPy's integers; a float
        that is a whole number (``max_cqe / 2``), since pyverbs takes floats
    :param what: how the message calls it
    :param bits: width of the C type
    :param signed: whether the C type is signed
    """
    try:
        number = int(value) if isinstance(value, float) and value.is_integer() else index(value)  # type: ignore[arg-type]
    except TypeError:
        raise refused(f"{what} is {value!r}: an integer is expected") from None
    low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)
    if not low <= number <= high:
        c_type = "int" if signed else "uint"
        raise refused(f"{what} is {number}: it does not fit {c_type}{bits}, {low} to {high}")
    return number


def is_integer(value: object) -> bool:
    """Whether a value is a number: NumPy's arrays have ``__index__`` too, but it does not work."""
    try:
        index(value)  # type: ignore[arg-type]
    except TypeError:
        return False
    return True


def instance(value: object, kind: type, what: str) -> None:
    """Refuses, in words, what is not an instance of ``kind``."""
    if not isinstance(value, kind):
        raise refused(f"{what} is {type(value).__name__}: {kind.__name__} is expected")


class Field:
    """One integer member of a C structure: an attribute whose values always fit the member's C type."""

    def __init__(self, doc: str, bits: int = 32, signed: bool = False, read_only: bool = False) -> None:
        """
        :param doc: what it means, with its unit
        :param bits: width of the C type
        :param signed: whether the C type is signed
        :param read_only: whether users can only read it
        """
        self.__doc__ = doc
        self.name = ""
        self._bits = bits
        self._signed = signed
        self._read_only = read_only

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    @overload
    def __get__(self, obj: None, owner: type) -> "Field": ...

    @overload
    def __get__(self, obj: object, owner: type) -> int: ...

    def __get__(self, obj: object, owner: type) -> "Field | int":
        return self if obj is None else obj.__dict__.get(self.name, 0)

    def __set__(self, obj: object, value: int) -> None:
        if self._read_only:
            raise AttributeError(f"{type(obj).__name__}.{self.name} can only be read")
        self.put(obj, value)

    def put(self, obj: object, value: int) -> None:
        """Sets the member, read-only or not."""
        obj.__dict__[self.name] = integer(value, f"{type(obj).__name__}.{self.name}", self._bits, self._signed)


def reading(doc: str, bits: int = 32) -> Field:
    """A member that users can only read."""
    return Field(doc, bits, read_only=True)


def fill(obj: Any, **values: Any) -> None:
    """Sets members of ``obj`` by name, read-only ones too; what is not an integer goes past the checks."""
    for name, value in values.items():
        field = getattr(type(obj), name, None)
        if isinstance(field, Field):
            field.put(obj, value)
        else:
            obj.__dict__[name] = value


def lines(width: int, *rows: tuple[str, object], indent: str = "") -> str:
    """Rows of ``name: value``, one a line, the names padded to ``width``; what pyverbs prints."""
    return "".join(f"{indent}{name:{width}}: {value:<20}\n" for name, value in rows)


def flag_names(flags: int, names: dict[int, str]) -> str:
    """The names of the set bits, each followed by a space."""
    return "".join(f"{name} " for bit, name in names.items() if flags & bit)
