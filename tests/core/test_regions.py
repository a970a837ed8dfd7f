# SPDX-License-Identifier: MIT
"""Protection domains and the table of keys: what ends when, how many there may be."""

import errno

import pytest
from tests.netsim.sim import ALL, Node, Sim

from softverbs.core.base.errors import PyverbsRDMAError
from softverbs.core.base.limits import Options


def refused(code: int, words: str, act: object, *args: object) -> None:
    with pytest.raises(PyverbsRDMAError, match=words) as caught:
        act(*args)  # type: ignore[operator]
    assert caught.value.errno == code


def node_with(sim: Sim, **options: int) -> Node:
    return sim.node(options=Options.from_mapping(options))


def test_a_domain_ends_once_and_not_before_what_is_in_it() -> None:
    with Sim() as sim:
        node = node_with(sim, max_pd=1)
        pd = node.pd()
        region = node.region(pd, 64)
        refused(errno.EBUSY, "holds 1 queue pairs, regions or windows", pd.close)
        region.deregister()
        pd.close()
        pd.close()
        other = node.pd()
        refused(errno.ENOMEM, "1 protection domains at most", node.pd)
        other.close()


def test_a_region_ends_once() -> None:
    """A second deregistration must not end the region that has got the place of the first."""
    with Sim() as sim:
        node = node_with(sim, max_mr=1)
        pd = node.pd()
        first = node.region(pd, 64)
        first.deregister()
        second = node.region(pd, 64)
        first.deregister()
        assert node.port.regions.find(second.key) is second.mr
        assert node.port.regions.find(first.key) is None or first.key == second.key
        assert pd.users == 1
        assert node.port.regions.active == 1


def test_there_are_as_many_regions_and_windows_as_max_mr() -> None:
    with Sim() as sim:
        node = node_with(sim, max_mr=2)
        pd = node.pd()
        region = node.region(pd, 64)
        window = node.port.regions.allocate_window(pd, 2)
        refused(errno.ENOMEM, "all 2 memory regions", node.region, pd, 64)
        refused(errno.ENOMEM, "all 2 memory regions", node.port.regions.allocate_window, pd, 2)
        assert pd.users == 2
        node.port.regions.deregister(window)
        node.region(pd, 64).deregister()
        region.deregister()
        assert pd.users == 0


@pytest.mark.parametrize("kind", [0, 3, -1])
def test_windows_are_of_type_1_or_2(kind: int) -> None:
    with Sim() as sim:
        node = sim.node()
        pd = node.pd()
        refused(errno.EINVAL, f"type {kind}: 1 or 2", node.port.regions.allocate_window, pd, kind)
        assert pd.users == 0


def test_a_region_with_a_window_bound_to_it_stays() -> None:
    with Sim() as sim:
        node = sim.node()
        pd = node.pd()
        region = node.region(pd, 64)
        window = node.port.regions.allocate_window(pd, 1)
        assert node.port.regions.bind(window, region.mr, region.iova, 32, ALL & 7, window.rkey + 1, 0) == ""
        refused(errno.EBUSY, "1 memory windows are bound", region.deregister)
        node.port.regions.deregister(window)
        region.deregister()
        assert pd.users == 0
