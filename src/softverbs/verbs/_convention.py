# SPDX-License-Identifier: MIT
"""C's conventions over Python's objects: an object or None, 0 or the value of errno, results through pointers."""

import ctypes
import errno
import functools
import threading
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from softverbs.pyverbs._fields import refused
from softverbs.pyverbs.pyverbs_error import PyverbsError, PyverbsRDMAError

_P = ParamSpec("_P")
_R = TypeVar("_R")


class _Last(threading.local):
    reason = ""


_last = _Last()


def last_reason() -> str:
    """Extension: why the last function of this module that failed on this thread did, in words; "" if none has."""
    return _last.reason


def note(error: PyverbsError) -> int:
    """Keeps the reason of ``error`` for ``last_reason`` and its errno for ``ctypes.get_errno``; returns the errno."""
    code = error.errno or errno.EINVAL
    _last.reason = error.reason
    ctypes.set_errno(code)
    return code


def returns_object(function: Callable[_P, _R]) -> Callable[_P, _R | None]:
    """Makes a refusal None with errno set."""

    @functools.wraps(function)
    def call(*args: _P.args, **kwargs: _P.kwargs) -> _R | None:
        try:
            return function(*args, **kwargs)
        except PyverbsError as error:
            note(error)
            return None

    return call


def returns_status(function: Callable[_P, int | None]) -> Callable[_P, int]:
    """Makes a refusal the value of errno, and success 0 unless the function says otherwise."""

    @functools.wraps(function)
    def call(*args: _P.args, **kwargs: _P.kwargs) -> int:
        try:
            return function(*args, **kwargs) or 0
        except PyverbsError as error:
            return note(error)

    return call


def need(value: Any, kind: type | tuple[type, ...], name: str) -> Any:
    """``value``, which must be a ``kind``: anything else, None too, is EINVAL where C would crash."""
    if not isinstance(value, kind):
        kinds = kind if isinstance(kind, tuple) else (kind,)
        expected = " or ".join(each.__name__ for each in kinds)
        raise refused(f"{name} is {'NULL' if value is None else type(value).__name__}: {expected} is expected")
    return value


def store(pointer: Any, value: Any, name: str) -> None:
    """``*pointer = value``.

    :param pointer: a ctypes object (``c_uint64()``, ``py_object()``), ``byref`` or ``pointer`` of one, or a list of
        one element
    :param value: what is stored
    :param name: how messages call the pointer
    """
    target = getattr(pointer, "_obj", pointer)  # what byref() made
    if isinstance(target, ctypes._Pointer):
        target = target.contents
    if isinstance(target, list):
        target[:] = [value]
    elif isinstance(target, (ctypes._SimpleCData, ctypes.py_object)):
        target.value = value
    else:
        raise refused(f"{name} is {'NULL' if pointer is None else type(pointer).__name__}: a ctypes object is expected")


def post(function: Callable[[Any], Any], wr: Any, bad_wr: Any) -> None:
    """Posts a list of work requests; ``*bad_wr`` becomes the one that was refused.

    :param function: what posts
    :param wr: the first of the list
    :param bad_wr: where the work request that was refused goes, or None
    """
    try:
        function(wr)
    except PyverbsRDMAError as error:
        failed = getattr(error, "bad_wr", None)
        if bad_wr is not None:
            store(bad_wr, failed if failed is not None else wr, "bad_wr")
        raise
