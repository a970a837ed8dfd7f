# SPDX-License-Identifier: MIT
"""The end of a connection that the commands use."""

import pytest

from softverbs.cli import rc
from softverbs.cli.common import Fault
from softverbs.core.base.limits import Options
from softverbs.device import Device
from softverbs.links.base import address_of, gid_of
from softverbs.pyverbs.cq import CQ
from softverbs.pyverbs.device import Context
from softverbs.pyverbs.pd import PD
from softverbs.pyverbs.pyverbs_error import PyverbsRDMAError

FIRST, SECOND = gid_of("127.0.7.5"), gid_of("::1")


def test_gids() -> None:
    assert bytes(10) + b"\xff\xff\x7f\x00\x07\x05" == FIRST
    assert gid_of("fe80::1%eth0") == b"\xfe\x80" + bytes(13) + b"\x01"
    assert [address_of(gid) for gid in (FIRST, SECOND)] == ["127.0.7.5", "::1"]


@pytest.mark.parametrize(
    ("index", "near", "chosen"),
    [
        (None, None, 0),
        (None, "127.0.7.5", 0),
        (None, "10.0.0.1", 0),
        (None, "::1", 1),
        (None, "fd77::1", 1),
        (1, None, 1),
        (0, "::1", 0),
    ],
)
def test_which_gid(index: "int | None", near: "str | None", chosen: int) -> None:
    with Device(address=["127.0.7.5", "::1"]) as device, Context(device=device) as context:
        assert rc.own_gid(context, 1, index, near) == (chosen, (FIRST, SECOND)[chosen])


def test_no_such_gid() -> None:
    with Device() as device, Context(device=device) as context, pytest.raises(PyverbsRDMAError, match="empty"):
        rc.own_gid(context, 1, 4, None)


@pytest.mark.parametrize(("near", "chosen"), [(None, 3), ("127.0.7.6", 3), ("::1", 3)])
def test_an_address_of_roce_v2_is_chosen_where_the_table_begins_with_others(near: "str | None", chosen: int) -> None:
    options = Options(gid_table="mlx5")
    with Device(address="127.0.7.6", options=options) as device, Context(device=device) as context:
        assert rc.own_gid(context, 1, None, near) == (chosen, gid_of("127.0.7.6"))


def test_a_peer_without_a_gid() -> None:
    with Device() as device, Context(device=device) as context:
        cq = CQ(context, 1)
        qp = rc.make_qp(PD(context), cq, cq, 1, 1)
        with pytest.raises(Fault, match="-g INDEX"):
            rc.join(qp, rc.Way(), 0, (bytes(16), 1, 0), 1)


def test_completions_that_do_not_come() -> None:
    with Device() as device, Context(device=device) as context, pytest.raises(Fault, match=r"0 of 2 .* in 0\.01 s"):
        rc.reap(CQ(context, 1), 2, 0.01)


def test_numbers_to_begin_with() -> None:
    numbers = {rc.random_psn() for _ in range(20)}
    assert len(numbers) > 10 and max(numbers) < 1 << 24
