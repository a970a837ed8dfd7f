# SPDX-License-Identifier: MIT
"""Members of structures that refer to an object of the API, or to nothing."""

from typing import Any

from softverbs.pyverbs._fields import instance
from softverbs.pyverbs.cq import CQ, CQEX
from softverbs.pyverbs.pyverbs_error import PyverbsUserError


class Slot:
    """An attribute that holds an object of one class, or None."""

    def __init__(self, kind: type, doc: str) -> None:
        """
        :param kind: the class
        :param doc: what it means
        """
        self.__doc__ = doc
        self._kind = kind
        self._name = ""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, obj: object, owner: type) -> Any:
        return self if obj is None else obj.__dict__.get(self._name)

    def __set__(self, obj: object, value: Any) -> None:
        if value is not None:
            self._check(obj, value)
        obj.__dict__[self._name] = value

    def _check(self, obj: object, value: Any) -> None:
        instance(value, self._kind, f"{type(obj).__name__}.{self._name}")


class CqSlot(Slot):
    """An attribute that holds a CQ or a CQEX, or None."""

    def __init__(self, doc: str) -> None:
        """
        :param doc: what it means
        """
        super().__init__(CQ, doc)

    def _check(self, obj: object, value: Any) -> None:
        if not isinstance(value, (CQ, CQEX)):
            raise PyverbsUserError(f"Expected CQ/CQEX, got {type(value)}")
