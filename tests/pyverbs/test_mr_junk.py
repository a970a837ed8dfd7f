# SPDX-License-Identifier: MIT
"""Bad input for what has to do with memory: whatever is passed, a refusal in words, and nothing is left behind."""

import inspect
from collections.abc import Callable
from typing import Any

import pytest
from tests.pyverbs.world import ALL, World

from softverbs.pyverbs import libibverbs_enums as e
from softverbs.pyverbs._dm import DM, AllocDmAttr
from softverbs.pyverbs.mr import (
    DMMR,
    MR,
    MW,
    Buf,
    BufMR,
    DmaBufMR,
    DMAHandle,
    DmaHandleInitAttr,
    MREx,
    MWBind,
    MWBindInfo,
    NullMR,
)
from softverbs.pyverbs.pd import PD, TD, ParentDomain, ParentDomainContext, ParentDomainInitAttr, TDInitAttr
from softverbs.pyverbs.pyverbs_error import PyverbsError

JUNK: list[Any] = [None, -1, 2**63, 2**64, 2**100, 1.5, float("nan"), float("inf"), "x", b"x", [], {}, object(), len]


def tolerated(act: Callable[[], Any]) -> Any:
    """What ``act`` returns, or None where it refuses; a refusal must be one of ours, and in words."""
    try:
        return act()
    except PyverbsError as error:
        assert str(error).strip() and error.reason.strip()  # noqa: PT017
        return None


@pytest.fixture
def one(build: Any) -> Any:
    return build(max_dm_size=4096)


def good(world: World) -> dict[type, list[Any]]:
    """Arguments with which each class can be made, in order."""
    context, pd, mr = world.b.context, world.b.pd, world.b.mr
    dm, buf = DM(context, AllocDmAttr(64)), Buf(pd, 64)
    return {
        PD: [context],
        TD: [context, TDInitAttr()],
        TDInitAttr: [0],
        ParentDomain: [context, ParentDomainInitAttr(pd)],
        ParentDomainContext: [pd, len, len, None],
        ParentDomainInitAttr: [pd, None, 0],
        MR: [pd, 64, ALL, None, False],
        MREx: [pd, 64, ALL, None, None, None, 0, None, False, None],
        NullMR: [pd],
        DMMR: [pd, 64, ALL & ~e.IBV_ACCESS_MW_BIND | e.IBV_ACCESS_ZERO_BASED, dm, 0],
        DmaBufMR: [pd, 64, ALL, None, 0, 0, 0],
        DMAHandle: [context, DmaHandleInitAttr()],
        DmaHandleInitAttr: [0, 0, 0, 0],
        Buf: [pd, 64],
        BufMR: [pd, buf, 64, ALL, 0],
        MW: [pd, 1],
        MWBindInfo: [mr, mr.buf, 64, 2],
        MWBind: [MWBindInfo(mr, mr.buf, 64, 2), 0, 0],
        DM: [context, AllocDmAttr(64)],
        AllocDmAttr: [64, 0, 0],
    }


CLASSES = [
    PD, TD, TDInitAttr, ParentDomain, ParentDomainContext, ParentDomainInitAttr, MR, MREx, NullMR, DMMR, DmaBufMR,
    DMAHandle, DmaHandleInitAttr, Buf, BufMR, MW, MWBindInfo, MWBind, DM, AllocDmAttr,
]  # fmt: skip


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_arguments(one: World, kind: type) -> None:
    """Each argument in turn; the others are right."""
    arguments = good(one)[kind]
    for index in range(len(arguments)):
        for junk in JUNK:
            wrong = [*arguments[:index], junk, *arguments[index + 1 :]]
            made = tolerated(lambda wrong=wrong: kind(*wrong))
            close = getattr(made, "close", None)
            if close is not None:
                str(made)
                close()
    assert tolerated(lambda: kind(*arguments)) is not None or kind in (DmaBufMR, DMAHandle)
    one.b.context.close()
    left = {name: count for name, count in one.devices[1].objects().items() if count}
    assert not left, left


METHODS = {
    MR: ["write", "read", "rereg"],
    DMMR: ["write", "read", "rereg"],
    NullMR: ["write", "read", "rereg"],
    DM: ["copy_to_dm", "copy_from_dm"],
    PD: ["advise_mr"],
}


@pytest.mark.parametrize("kind", METHODS, ids=lambda kind: kind.__name__)
def test_methods(one: World, kind: type) -> None:
    """All arguments are the same junk, and each alone among zeros; then on what is closed."""
    made = kind(*good(one)[kind])
    for closed in (False, True):
        if closed:
            made.close()
        for name in METHODS[kind]:
            method = getattr(made, name)
            count = len(inspect.signature(method).parameters)
            for junk in JUNK:
                calls = [[junk] * count] + [[0] * index + [junk] + [0] * (count - index - 1) for index in range(count)]
                for arguments in calls:
                    result = tolerated(lambda: method(*arguments))  # noqa: B023
                    assert not closed or result is None
    one.b.context.close()


ATTRIBUTES = ["lkey", "rkey", "length", "handle", "iova", "type", "size", "addr", "buf", "pd", "ctx", "td", "parent"]


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_attributes_of_what_is_closed(one: World, kind: type) -> None:
    made = tolerated(lambda: kind(*good(one)[kind]))
    if made is None or not hasattr(made, "close"):
        return
    made.close()
    for name in ATTRIBUTES:
        tolerated(lambda: getattr(made, name, None))  # noqa: B023
    tolerated(lambda: str(made))
    if hasattr(made, "unimport"):
        tolerated(made.unimport)
    made.close()
