# SPDX-License-Identifier: MIT
"""Entries of the table of keys that are not plain memory: null, checked, device memory, windows, changed regions."""

import errno
from collections.abc import Iterator
from typing import Any

import pytest
from tests.netsim.sim import ALL, LOCAL_WRITE, MW_BIND, REMOTE_READ, REMOTE_WRITE, Node, Sim

from softverbs.core.base.errors import PyverbsRDMAError
from softverbs.core.base.limits import Options
from softverbs.core.memory.device_memory import DeviceMemory
from softverbs.core.memory.regions import VALUES, rights_text

ON_DEMAND, ZERO_BASED, FLUSH_GLOBAL, FLUSH_PERSISTENT = 64, 32, 256, 512
CHECKED, LONGEST, EVERYTHING = VALUES["CHECKED"], VALUES["LONGEST"], VALUES["EVERYTHING"]
SINK, ZEROS = 0x10000, 0x20000  # addresses that are only compared
TYPE_1, TYPE_2 = 1, 2


class Holder:
    """Answers like the pages of a process: mapped from ``low`` to ``high``, the first half for writing too."""

    low, high = 0x100000, 0x200000

    def __init__(self) -> None:
        self.asked: list[tuple[int, int, bool]] = []

    def allows(self, address: int, length: int, writing: bool) -> bool:
        self.asked.append((address, length, writing))
        top = self.high - (self.high - self.low) // 2 * writing
        return self.low <= address and address + length <= top


@pytest.fixture
def node() -> Iterator[Node]:
    with Sim() as sim:
        yield sim.node(options=Options.from_mapping({"max_dm_size": 4096, "max_mw": 4}))


def refused(code: int, words: str, act: Any, *args: Any) -> None:
    with pytest.raises(PyverbsRDMAError, match=words) as caught:
        act(*args)
    assert caught.value.errno == code


def reason(regions: Any, *args: Any) -> str:
    """What ``explain`` says to what ``translate`` refuses."""
    assert regions.translate(*args) == 0
    return str(regions.explain(*args))


def test_a_null_region_is_everywhere_and_for_local_use(node: Node) -> None:
    regions, pd = node.port.regions, node.pd()
    void = regions.register_null(pd, SINK, ZEROS, None)
    assert (void.rkey, void.length) == (0, EVERYTHING)
    for va in (0, 1, 2**64 - 1):
        assert regions.translate(void.lkey, va, 8, 0, pd, 0) == ZEROS
        assert regions.translate(void.lkey, va, LONGEST, LOCAL_WRITE, pd, 0) == SINK
    assert regions.translate(void.lkey, 0, LONGEST + 1, LOCAL_WRITE, pd, 0) == 0
    for right in (REMOTE_WRITE, REMOTE_READ, 8, FLUSH_GLOBAL):
        assert "peers cannot use" in reason(regions, void.lkey, 0, 8, right, pd, 0)
    assert "belongs to protection domain" in reason(regions, void.lkey, 0, 8, 0, node.pd(), 0)
    refused(errno.EINVAL, "null", regions.check_reregister, void)
    window = regions.allocate_window(pd, TYPE_1)
    assert "MW_BIND" in regions.bind(window, void, 0, 8, REMOTE_READ, window.rkey, 0)
    regions.deregister(void)
    assert "not registered" in reason(regions, void.lkey, 0, 8, 0, pd, 0)
    assert "not registered" in reason(regions, 0xFFFFFF00, 0, 8, 0, pd, 0)


def test_a_checked_region_asks_at_each_access_and_within_its_range_only(node: Node) -> None:
    regions, pd, holder = node.port.regions, node.pd(), Holder()
    region = regions.register(pd, holder.low - 4096, 1 << 20, ALL | ON_DEMAND, 0x5000, holder, CHECKED)
    shift = 0x5000 - (holder.low - 4096)
    assert regions.translate(region.rkey, holder.low + shift, 64, REMOTE_WRITE, pd, 0) == holder.low
    assert regions.translate(region.lkey, holder.low + shift, 64, 0, pd, 0) == holder.low
    assert holder.asked == [(holder.low, 64, True), (holder.low, 64, False)]
    assert regions.translate(region.rkey, 0x180000 + shift, 64, REMOTE_READ, pd, 0) == 0x180000
    assert "not mapped writable" in reason(regions, region.rkey, 0x180000 + shift, 64, REMOTE_WRITE, pd, 0)
    assert "not mapped writable" in reason(regions, region.lkey, 0x180000 + shift, 64, LOCAL_WRITE, pd, 0)
    assert "not mapped readable" in reason(regions, region.rkey, holder.low - 1 + shift, 64, REMOTE_READ, pd, 0)
    asked = len(holder.asked)
    assert "covers" in reason(regions, region.rkey, 0x4FFF, 64, REMOTE_READ, pd, 0)
    assert "covers" in reason(regions, region.rkey, 0x5000, (1 << 20) + 1, REMOTE_READ, pd, 0)
    assert "belongs to" in reason(regions, region.rkey, 0x6000, 8, REMOTE_READ, node.pd(), 0)
    assert "lacks" in reason(regions, region.rkey, 0x6000, 8, FLUSH_GLOBAL, pd, 0)
    assert len(holder.asked) == asked, "what is refused anyway is not looked at"


def test_a_region_of_everything(node: Node) -> None:
    regions, pd, holder = node.port.regions, node.pd(), Holder()
    region = regions.register(pd, 0, EVERYTHING, ALL | ON_DEMAND, 0, holder, CHECKED)
    assert regions.translate(region.rkey, holder.low, 8, REMOTE_WRITE, pd, 0) == holder.low
    for va, length in ((0, 8), (holder.low - 4, 8), (2**64 - 9, 8), (1, 2**64 - 2)):
        assert "not mapped" in reason(regions, region.rkey, va, length, REMOTE_READ, pd, 0)
    assert "covers" in reason(regions, region.rkey, 2**64 - 8, 8, REMOTE_READ, pd, 0)
    refused(errno.EINVAL, "implicit", regions.check_reregister, region)


def test_a_window_of_a_checked_region_asks_too(node: Node) -> None:
    regions, pd, holder = node.port.regions, node.pd(), Holder()
    region = regions.register(pd, holder.low - 64, 4096, LOCAL_WRITE | MW_BIND | ON_DEMAND, 0, holder, CHECKED)
    window = regions.allocate_window(pd, TYPE_2)
    assert regions.bind(window, region, 0, 128, REMOTE_WRITE, window.rkey, 7, pd) == ""
    assert regions.translate(window.rkey, 64, 64, REMOTE_WRITE, pd, 7) == holder.low
    assert "not mapped writable" in reason(regions, window.rkey, 63, 64, REMOTE_WRITE, pd, 7)
    assert "bound to QP" in reason(regions, window.rkey, 64, 64, REMOTE_WRITE, pd, 8)
    assert "covers" in reason(regions, window.rkey, 65, 64, REMOTE_WRITE, pd, 7)
    assert regions.invalidate(window.rkey, pd, 7) == ""
    assert "invalidated" in reason(regions, window.rkey, 64, 64, REMOTE_WRITE, pd, 7)
    regions.deregister(region)


@pytest.mark.parametrize("kind", [TYPE_1, TYPE_2])
def test_a_key_is_an_lkey_or_an_rkey(node: Node, kind: int) -> None:
    regions, pd = node.port.regions, node.pd()
    memory = node.region(pd, 4096)
    window = regions.allocate_window(pd, kind)
    assert regions.bind(window, memory.mr, memory.iova, 64, ALL & 14, window.rkey, 7, pd) == ""
    assert regions.translate(window.rkey, memory.iova, 8, REMOTE_READ, pd, 7) == memory.mr.address
    for right in (0, LOCAL_WRITE):
        assert "no lkey" in reason(regions, window.rkey, memory.iova, 8, right, pd, 7)
    assert regions.translate(memory.key, memory.iova, 8, 0, pd, 7) == memory.mr.address


def test_a_window_is_found_under_its_keys_of_the_past(node: Node) -> None:
    """A bind that was posted before another was done names it by the key that it had then."""
    regions, pd = node.port.regions, node.pd()
    memory = node.region(pd, 4096)
    window = regions.allocate_window(pd, TYPE_1)
    old = window.rkey
    new = old & ~0xFF | (old + 1) & 0xFF
    assert regions.bind(window, memory.mr, memory.iova, 64, REMOTE_READ, new, 7, pd) == ""
    assert regions.find(old) is None
    assert regions.window(old) is window is regions.window(new)
    assert regions.window(memory.key) is memory.mr
    assert regions.window(memory.key ^ 1) is None
    assert regions.window(0xFFFFFF00) is None
    assert "low 8 bits" in regions.bind(window, memory.mr, memory.iova, 64, REMOTE_READ, new + 256, 7, pd)
    assert regions.bind(memory.mr, memory.mr, memory.iova, 64, 0, 0, 7, pd) != ""
    assert "protection domain" in regions.bind(window, memory.mr, memory.iova, 64, 0, new, 7, node.pd())


def test_a_bind_of_0_bytes(node: Node) -> None:
    regions, pd = node.port.regions, node.pd()
    memory = node.region(pd, 4096)
    for kind, words in ((TYPE_1, ""), (TYPE_2, "not by a bind of 0 bytes")):
        window = regions.allocate_window(pd, kind)
        assert words in regions.bind(window, memory.mr, 0, 0, 0, window.rkey, 7, pd)
        assert not window.valid
    memory.deregister()


def test_there_are_so_many_windows(node: Node) -> None:
    regions, pd = node.port.regions, node.pd()
    windows = [regions.allocate_window(pd, TYPE_1) for _ in range(4)]
    refused(errno.ENOMEM, "memory windows", regions.allocate_window, pd, TYPE_1)
    regions.deregister(windows.pop())
    regions.allocate_window(pd, TYPE_2)


def test_device_memory_is_counted_and_busy(node: Node) -> None:
    regions, pd = node.port.regions, node.pd()
    memory = DeviceMemory(node.port, None, 4000, 12)
    assert memory.address % 4096 == 0 and regions.device_memory_used == 4000
    refused(errno.ENOMEM, "4000 are in use", DeviceMemory, node.port, None, 97, 0)
    region = regions.register_device_memory(pd, memory, 8, 3992, ALL & 15 | ZERO_BASED)
    assert regions.translate(region.rkey, 0, 3992, REMOTE_WRITE, pd, 0) == memory.address + 8
    assert "[0x0, 0xf98)" in reason(regions, region.rkey, 0, 3993, REMOTE_WRITE, pd, 0)
    refused(errno.EBUSY, "1 memory regions", memory.close)
    refused(errno.EINVAL, "device memory", regions.check_reregister, region)
    empty = regions.register_device_memory(pd, memory, 4000, 0, ZERO_BASED)
    assert "covers" in reason(regions, empty.lkey, 0, 1, 0, pd, 0)
    for each in (region, empty):
        regions.deregister(each)
        regions.deregister(each)
    memory.close()
    memory.close()
    assert regions.device_memory_used == 0
    refused(errno.EINVAL, "freed", regions.register_device_memory, pd, memory, 0, 8, ZERO_BASED)


@pytest.mark.parametrize(
    ("length", "log", "code"),
    [(0, 0, errno.EINVAL), (-1, 0, errno.EINVAL), (4, 21, errno.EINVAL), (4097, 0, errno.ENOMEM)],
)
def test_device_memory_that_cannot_be(node: Node, length: int, log: int, code: int) -> None:
    refused(code, ":", DeviceMemory, node.port, None, length, log)
    assert node.port.regions.device_memory_used == 0


@pytest.mark.parametrize(
    ("offset", "length", "words"),
    [(2, 4, "words of 4"), (0, 5, "words of 4"), (-4, 4, "outside"), (4, -4, "outside"), (60, 8, "outside")],
)
def test_copies_of_device_memory(node: Node, offset: int, length: int, words: str) -> None:
    memory = DeviceMemory(node.port, None, 64, 0)
    refused(errno.EINVAL, words, memory.at, offset, length)
    assert memory.at(60, 4) == memory.address + 60
    memory.close()


def test_a_changed_region_keeps_its_keys(node: Node) -> None:
    regions, pd, other = node.port.regions, node.pd(), node.pd()
    memory = node.region(pd, 4096)
    region, key = memory.mr, memory.key
    users = pd.users, other.users
    regions.reregister(region, other, 0x7000, 64, LOCAL_WRITE, "holder", 0)
    assert (region.address, region.length, region.iova, region.access) == (0x7000, 64, 0x7000, LOCAL_WRITE)
    assert (pd.users, other.users) == (users[0] - 1, users[1] + 1)
    assert regions.translate(key, 0x7000, 64, LOCAL_WRITE, other, 0) == 0x7000
    assert "belongs to protection domain" in reason(regions, key, 0x7000, 64, 0, pd, 0)
    regions.reregister(region, None, 0, 0, LOCAL_WRITE | ZERO_BASED, None, 0)
    assert region.iova == 0
    regions.reregister(region, None, 0, 0, LOCAL_WRITE, None, 0)
    assert region.iova == 0x7000
    refused(errno.EINVAL, "need LOCAL_WRITE", regions.reregister, region, pd, 0, 0, REMOTE_WRITE, None, 0)
    refused(errno.EINVAL, "2\\^64", regions.reregister, region, pd, 2**64 - 8, 9, LOCAL_WRITE, "holder", 0)
    assert region.pd is other and region.access == LOCAL_WRITE, "nothing has changed"
    regions.lose(region)
    assert "rereg_mr of it failed" in reason(regions, key, 0x7000, 64, 0, other, 0)
    refused(errno.EINVAL, "no memory", regions.check_reregister, region)
    regions.deregister(region)
    assert other.users == users[1]


def test_a_region_with_windows_is_not_changed(node: Node) -> None:
    regions, pd = node.port.regions, node.pd()
    memory = node.region(pd, 4096)
    window = regions.allocate_window(pd, TYPE_1)
    assert regions.bind(window, memory.mr, memory.iova, 64, REMOTE_READ, window.rkey, 7, pd) == ""
    refused(errno.EBUSY, "1 memory windows", regions.reregister, memory.mr, None, 0, 0, LOCAL_WRITE, None, 0)


def test_regions_by_handle(node: Node) -> None:
    regions, pd = node.port.regions, node.pd()
    memory = node.region(pd, 64)
    window = regions.allocate_window(pd, TYPE_1)
    handle = memory.mr.handle
    assert regions.by_handle(handle, pd.context_id) is memory.mr
    assert regions.by_handle(handle, object()) is None
    assert regions.by_handle(window.handle, pd.context_id) is None
    assert regions.by_handle(0, pd.context_id) is None
    assert regions.by_handle(1 << 30, pd.context_id) is None
    memory.deregister()
    assert regions.by_handle(handle, pd.context_id) is None


def test_rights_of_flush(node: Node) -> None:
    """They need no LOCAL_WRITE, and no key without them opens a flush."""
    regions, pd = node.port.regions, node.pd()
    region = regions.register(pd, 0x7000, 64, FLUSH_GLOBAL, 0x7000, None)
    assert rights_text(FLUSH_GLOBAL | FLUSH_PERSISTENT) == "FLUSH_GLOBAL|FLUSH_PERSISTENT"
    assert regions.translate(region.rkey, 0x7000, 64, FLUSH_GLOBAL, pd, 0) == 0x7000
    assert "FLUSH_PERSISTENT" in reason(regions, region.rkey, 0x7000, 64, FLUSH_PERSISTENT, pd, 0)
