# SPDX-License-Identifier: MIT
"""The device: its waits, its thread, who sleeps and who is woken, its end, its place in the environment, and forks.

Threads meet by conditions that are looked at until they hold (``eventually``), never by luck of timing.
"""

import errno
import gc
import os
import select
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tests.forked import in_child

import softverbs.device as module
from softverbs.core.base.errors import PyverbsRDMAError, PyverbsUserError
from softverbs.core.base.limits import Options
from softverbs.core.memory.regions import ProtectionDomain
from softverbs.core.queues.completion import CompletionQueue
from softverbs.core.queues.counters import CompCntr
from softverbs.core.queues.wr import SendWR
from softverbs.core.transport.address import AddressVector
from softverbs.core.transport.qp import QueuePair
from softverbs.device import NAP, Device, default_device
from softverbs.links.base import Middleware
from softverbs.links.faults import FaultLink
from softverbs.links.inproc import Network
from softverbs.links.pcap import PcapLink
from softverbs.links.udp import UdpLink

SOON = 30  # s: what takes so long has failed
SECOND = 1_000_000_000
MS = 1_000_000


def eventually(done: Callable[[], Any]) -> None:
    limit = time.monotonic() + SOON
    while not done():
        assert time.monotonic() < limit, "it does not come true"
        os.sched_yield()


def rung(device: Device) -> int:
    """How often the bell has rung since the last look."""
    try:
        return os.eventfd_read(device._bell)
    except BlockingIOError:
        return 0


def inproc(**more: Any) -> Device:
    return Device(**{"link": Network().link("10.0.0.1"), "thread": False, **more})


class Time:
    """Virtual time, and an ``idle`` that lets it pass."""

    def __init__(self) -> None:
        self.now = SECOND
        self.idles: list[int] = []

    def __call__(self) -> int:
        return self.now

    def idle(self, due: int) -> None:
        self.idles.append(due)
        self.now = max(self.now + 1, due)


@pytest.fixture
def virtual() -> Iterator[tuple[Device, Time]]:
    clock = Time()
    with inproc(clock=clock, idle=clock.idle) as device:
        yield device, clock


@pytest.fixture
def device() -> Iterator[Device]:
    with inproc() as made:
        yield made


class Loop:
    """Two connected queue pairs on one device, and a way to make one of them write."""

    def __init__(self, device: Device) -> None:
        with device.lock:
            self.pd = ProtectionDomain(device.port, self)
            self.cq = CompletionQueue(device.port, self, 64, None, None, 0, 0)
            cap = (8, 8, 1, 1, 0)
            make = (device.port, self, self.pd, self.cq, self.cq, None, cap, 2, False)
            self.first, self.second = QueuePair(*make), QueuePair(*make)
            gid = device.link.gids[0]
            for ours, theirs in ((self.first, self.second), (self.second, self.first)):
                ours.modify({"qp_state": 1, "pkey_index": 0, "port_num": 1, "qp_access_flags": 7}, 0x39)
                rtr = {
                    "qp_state": 2, "ah_attr": AddressVector(gid), "path_mtu": 3, "dest_qp_num": theirs.qp_num,
                    "rq_psn": 0, "max_dest_rd_atomic": 1, "min_rnr_timer": 12,
                }  # fmt: skip
                ours.modify(rtr, 0x1 | 0x80 | 0x100 | 0x100000 | 0x1000 | 0x20000 | 0x8000)
                rts = {"qp_state": 3, "timeout": 14, "retry_cnt": 7, "rnr_retry": 7, "sq_psn": 0, "max_rd_atomic": 1}
                ours.modify(rts, 0x1 | 0x200 | 0x400 | 0x800 | 0x10000 | 0x2000)

    def write(self) -> None:
        """An RDMA WRITE of no bytes."""
        self.first.post_send(SendWR(1, 0))


# -- waits


def test_a_wait_for_what_is_so_already_takes_no_time(virtual: tuple[Device, Time]) -> None:
    device, clock = virtual
    owned = []
    assert device.wait_until(lambda: owned.append(device.lock._is_owned()) or True, 0)
    assert (owned, clock.idles, clock.now) == ([True], [], SECOND)


@pytest.mark.parametrize("timeout", [0, 1, 5000])
def test_a_wait_ends_with_its_time(virtual: tuple[Device, Time], timeout: int) -> None:
    device, clock = virtual
    assert not device.wait_until(lambda: False, timeout)
    assert clock.now == SECOND + timeout
    assert set(clock.idles) <= {SECOND + timeout}


@pytest.mark.parametrize("timeout", [None, -1])
def test_a_wait_without_a_time(virtual: tuple[Device, Time], timeout: int | None) -> None:
    device, clock = virtual
    assert device.wait_until(lambda: len(clock.idles) == 50, timeout)
    assert set(clock.idles) == {0}, "nothing is due, ever"


def test_a_wait_goes_from_deadline_to_deadline(virtual: tuple[Device, Time]) -> None:
    device, clock = virtual
    link = device.link
    link.deadline = lambda: SECOND + 70 if clock.now < SECOND + 70 else None
    assert not device.wait_until(lambda: False, 100)
    assert clock.idles == [SECOND + 70, SECOND + 100]


def test_a_wait_makes_progress(virtual: tuple[Device, Time]) -> None:
    device, _ = virtual
    loop = Loop(device)
    loop.write()
    assert device.wait_until(lambda: loop.cq.count() == 1, SECOND)


@pytest.fixture
def endless(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sleeps end by a descriptor or not at all."""
    monkeypatch.setattr(module, "nap_length", lambda due, now, most: 2 * SOON * SECOND)


@pytest.mark.usefixtures("endless")
def test_a_sleeping_wait_is_woken(device: Device) -> None:
    ready: list[int] = []
    with ThreadPoolExecutor(1) as pool:
        waits = pool.submit(device.wait_until, lambda: bool(ready))
        eventually(lambda: device.port.sleepers == 1)
        ready.append(1)
        device.wake()
        assert waits.result(SOON)
    assert (device.port.sleepers, device.port.rung, device._waiting, rung(device)) == (0, False, 0, 0)


@pytest.mark.usefixtures("endless")
def test_work_that_another_thread_posts_wakes_a_sleeping_wait(device: Device) -> None:
    loop = Loop(device)
    with ThreadPoolExecutor(1) as pool:
        waits = pool.submit(device.wait_until, lambda: loop.cq.count() > 0)
        eventually(lambda: device.port.sleepers == 1)
        loop.write()
        assert waits.result(SOON)


@pytest.mark.usefixtures("endless")
def test_several_sleeping_waits_are_all_woken(device: Device) -> None:
    ready: list[int] = []
    with ThreadPoolExecutor(3) as pool:
        waits = [pool.submit(device.wait_until, lambda: bool(ready)) for _ in range(3)]
        eventually(lambda: device.port.sleepers == 3)
        ready.append(1)

        def again() -> bool:
            device.wake()  # each ring wakes one at least
            return all(wait.done() for wait in waits)

        eventually(again)
        assert [wait.result(SOON) for wait in waits] == [True] * 3
    assert device.port.sleepers == 0


def test_a_wait_that_sleeps_sees_its_time_pass(device: Device) -> None:
    start = time.monotonic_ns()
    assert not device.wait_until(lambda: False, 20 * MS)
    assert time.monotonic_ns() - start >= 20 * MS
    assert device.port.sleepers == 0


def test_an_error_in_a_sleep_is_accounted_for(device: Device) -> None:
    """As one that a signal's handler raises: a sleeper that nobody counts out would be woken for ever."""

    class Interrupted:
        def sleep(self, _: int) -> bool:
            assert device.port.sleepers == 1
            raise KeyboardInterrupt

    device._sleeper = Interrupted  # type: ignore[assignment, method-assign]
    with pytest.raises(KeyboardInterrupt):
        device.wait_until(lambda: False)
    assert (device.port.sleepers, device._waiting) == (0, 0)
    assert not device.lock._is_owned()


def test_an_error_in_the_condition_ends_a_wait(device: Device) -> None:
    with pytest.raises(ZeroDivisionError):
        device.wait_until(lambda: bool(1 // 0))
    assert (device.port.sleepers, device._waiting) == (0, 0)
    assert not device.lock._is_owned()


# -- the bell


def test_the_bell_rings_once_for_sleepers_and_never_else(device: Device) -> None:
    loop = Loop(device)
    device.progress()
    rung(device)
    loop.write()
    assert rung(device) == 0
    device.progress()
    device.port.sleepers += 1
    loop.write()
    loop.write()
    assert device.port.rung
    device._awake()
    assert (device.port.sleepers, device.port.rung, rung(device)) == (0, False, 0)
    device._awake()  # nobody has rung: no error
    device.port.sleepers += 2


@pytest.mark.usefixtures("endless")
def test_an_update_that_is_delayed_reaches_who_sleeps() -> None:
    """The thread knew of nothing that is due when it went to sleep."""
    with inproc(thread=True, counter_delay_ns=module.NEAR_NS // 2) as device:
        counter = CompCntr(device.port, None, 0, 0, 0)
        reached = threading.Event()
        with device.lock:
            counter.watch(5, lambda _: reached.set())
        eventually(lambda: device.port.sleepers == 1)
        with device.lock:
            counter.inc(5)
        assert reached.wait(SOON)
        with device.lock:
            counter.close()


# -- the thread


def test_one_turn_of_the_thread(virtual: tuple[Device, Time]) -> None:
    device, clock = virtual
    port = device.port
    assert (device._turn(), port.sleepers) == (SECOND, 1), "nothing is due: the longest sleep"
    device._awake()
    device.link.deadline = lambda: clock.now + 7 * MS + 1
    assert (device._turn(), port.sleepers) == (7 * MS + 1, 1), "until what is due, and never past it"
    device._awake()
    device.link.deadline = lambda: clock.now + module.NEAR_NS
    assert (device._turn(), port.sleepers) == (module.NEAR_NS, 1), "sleeps are exact to less than a millisecond"
    device._awake()
    device.link.deadline = lambda: clock.now + module.NEAR_NS - 1
    assert (device._turn(), port.sleepers) == (0, 0), "too near to sleep"
    port.drive()
    assert (device._turn(), port.sleepers) == (NAP, 0), "the application polls"
    assert device._turn() == 0, "and now it does not"
    device._waiting += 1
    assert (device._turn(), port.sleepers) == (NAP, 0), "somebody waits, and makes progress"
    device._waiting -= 1
    ran = []
    device.deferred.append(lambda: ran.append(1))
    device._turn()
    assert ran == [1]
    device.close()
    assert device._turn() is None


def test_the_thread_works_while_nobody_polls() -> None:
    with inproc(thread=True) as device:
        loop = Loop(device)
        eventually(lambda: device.port.sleepers == 1)
        loop.write()
        eventually(lambda: loop.cq.count() == 1)
        assert device.port.drives == 0


def test_the_thread_naps_while_the_application_polls() -> None:
    with inproc(thread=True) as device:
        loop = Loop(device)
        eventually(lambda: device.port.sleepers == 1)
        loop.write()
        eventually(lambda: loop.cq.poll(1))
        assert loop.cq.poll(1) == []
        assert device.port.drives > 0
        device.wake()
        eventually(lambda: device._seen_drives == device.port.drives and device.port.sleepers == 1)


def test_a_device_that_nobody_has_any_more_ends_with_its_thread() -> None:
    device = inproc(thread=True)
    link, thread, ended = device.link, device._thread, weakref.ref(device)
    eventually(lambda: ended().port.sleepers == 1)  # type: ignore[union-attr]
    del device
    eventually(lambda: gc.collect() is not None and ended() is None)
    assert thread is not None
    thread.join(SOON)
    assert not thread.is_alive()
    with pytest.raises(OSError, match="closed"):
        link.deadline() or link.send(0, None, 0, 4, 4)


def test_a_device_that_could_not_be_made_is_collected_in_silence() -> None:
    with pytest.raises(PyverbsUserError):
        Device(colour="red")
    gc.collect()


# -- closing


class Spy(Middleware):
    """Counts how often it is closed."""

    def __init__(self, inner: Any) -> None:
        super().__init__(inner)
        self.closed = 0

    def close(self) -> None:
        self.closed += 1
        super().close()


def test_closing_twice_closes_once() -> None:
    link = Spy(Network().link("10.0.0.1"))
    device = Device(link=link, thread=True)
    called: list[Any] = []
    device.at_close.append(lambda: called.append(device.usable()))
    with device as entered:
        assert entered is device
    assert not device.usable()
    device.close()
    assert link.closed == 1
    assert called[0] is True, "contexts close their objects while the device still works"
    device.wake()  # nobody is there, and no descriptor: nothing happens
    for act in (device.progress, device.check, lambda: device.wait_until(lambda: True)):
        with pytest.raises(PyverbsRDMAError, match="softverbs0 is closed") as caught:
            act()
        assert caught.value.errno == errno.EIO


@pytest.mark.usefixtures("endless")
def test_closing_ends_the_waits_of_other_threads() -> None:
    device = inproc(name="gone0", thread=True)
    with ThreadPoolExecutor(2) as pool:
        waits = [pool.submit(device.wait_until, lambda: False) for _ in range(2)]
        eventually(lambda: device._waiting == 2)
        device.close()
        for wait in waits:
            error = wait.exception(SOON)
            assert isinstance(error, PyverbsRDMAError)
            assert "gone0 is closed" in str(error)


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_devices_close_in_any_order(order: tuple[int, int]) -> None:
    devices = [Device(f"order{number}") for number in range(2)]
    fds = [fd for device in devices for fd in (device._bell, *device.link.filenos())]
    for index in order:
        devices[index].close()
    for fd in fds:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(fd)


def test_the_thread_itself_may_close_the_device() -> None:
    """As a callback does, or the garbage collector, where they run there. It cannot wait for its own end."""
    device = Device("own0", thread=True)
    thread = device._thread
    assert thread is not None
    closed_by: list[threading.Thread] = []
    device.at_close.append(lambda: closed_by.append(threading.current_thread()))
    with device.lock:
        device.deferred.append(device.close)
    device.wake()
    thread.join(SOON)
    assert not thread.is_alive()
    assert (closed_by, device.usable(), device._bell) == ([thread], False, -1)


def test_devices_that_are_left_open_end_with_the_process() -> None:
    program = (
        "from softverbs.device import Device, default_device\n"
        "kept = [Device('a'), Device('b', thread=False), default_device()]\n"
        "kept[1].close()\n"
        "closed = []\n"
        "kept[0].at_close.append(lambda: print('closing a', flush=True))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=2 * SOON)
    assert (done.returncode, done.stdout, done.stderr) == (0, "closing a\n", "")


# -- the lock


def test_finalizers_enter_only_where_nobody_is(device: Device) -> None:
    assert device.try_enter()
    assert not device.try_enter(), "not even this thread"
    with ThreadPoolExecutor(1) as pool:
        assert not pool.submit(device.try_enter).result(SOON)
        device.lock.release()
        assert device.try_enter()
        device.lock.release()


def test_the_lock_pauses_where_it_is_taken(device: Device) -> None:
    """Whichever lock it is: who comes second waits."""
    inside: list[str] = []
    asks = threading.Event()

    def second() -> None:
        asks.set()
        with device.lock:
            inside.append("second")

    with ThreadPoolExecutor(1) as pool:
        with device.lock:
            future = pool.submit(second)
            assert asks.wait(SOON)
            inside.append("first")
        future.result(SOON)
    assert inside == ["first", "second"]


# -- what it is made of


def test_options_in_text_or_singly_but_not_both() -> None:
    with inproc(options="imm=efa,debug=1") as device:
        assert (device.options.imm, device.options.debug) == ("efa", True)
    with inproc(options=Options(max_qp=3)) as device:
        assert device.port.options.max_qp == 3
    with inproc(imm="efa") as device:
        assert device.options == Options(imm="efa")
    with pytest.raises(PyverbsUserError, match=r"single settings \(imm\), not both"):
        inproc(options="", imm="efa")


@pytest.mark.parametrize("bad", [{"faults": "drop=2"}, {"faults": "gravity=1"}, {"pcap": "/does/not/exist/x.pcap"}])
def test_what_is_wrong_leaves_no_link_open(bad: dict[str, str]) -> None:
    address = free_address()
    with pytest.raises((PyverbsUserError, OSError), match=r"faults: |No such file"):
        Device(address=address, **bad)
    UdpLink([address]).close()


def test_a_failure_behind_the_link_closes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    link = Spy(Network().link("10.0.0.1"))
    with pytest.raises(OSError, match="No such file"):
        Device(link=link, thread=False, pcap="/does/not/exist/x.pcap")
    assert link.closed == 1


def test_faults_see_frames_before_the_capture_does(tmp_path: Path) -> None:
    """What the capture holds is what is on the wire."""
    with inproc(faults="drop=0.5,seed=3", pcap=str(tmp_path / "x.pcap")) as device:
        assert isinstance(device.link, FaultLink)
        assert isinstance(device.link.inner, PcapLink)
        assert device.link.loops_back


def test_wall_clock(virtual: tuple[Device, Time]) -> None:
    assert virtual[0].wall_clock_offset() == 0
    with inproc() as device:
        assert abs(time.monotonic_ns() + device.wall_clock_offset() - time.time_ns()) < SECOND


def test_guid_belongs_to_the_address() -> None:
    guids = []
    for address in ("10.0.0.1", "10.0.0.2", "10.0.0.1"):
        with Device(link=Network().link(address), thread=False) as device:
            guids.append(device.guid)
    assert guids[0] == guids[2] != guids[1]
    for guid in guids:
        assert guid >> 56 & 3 == 2, "locally administered, of one node"
        assert 0 < guid < 2**64


def test_the_log_names_the_device(device: Device, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", "softverbs"):
        device.port.report("QP 0x11: refused")
    assert caplog.messages == ["softverbs0: QP 0x11: refused"]


# -- the device of the process


def free_address() -> str:
    link = UdpLink()
    address = ".".join(str(part) for part in link.gids[0][12:])
    link.close()
    return address


@pytest.fixture
def no_default(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As in a process that has not asked for it; what the test opens is closed."""
    monkeypatch.setattr(module, "_default", None)
    for name in ("ADDRESS", "OPTIONS", "FAULTS", "PCAP"):
        monkeypatch.delenv(f"SOFTVERBS_{name}", raising=False)
    yield
    if module._default is not None:
        module._default.close()


@pytest.mark.usefixtures("no_default")
def test_one_default_device_as_long_as_it_is_open() -> None:
    first = default_device()
    assert default_device() is first
    assert first.name == "softverbs0"
    assert first.options == Options()
    assert first.link.gids[0][12] == 127
    first.close()
    second = default_device()
    assert second is not first
    assert second.usable()


@pytest.mark.usefixtures("no_default")
def test_the_environment_shapes_the_default_device(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    first, second = free_address(), free_address()
    while second == first:
        second = free_address()
    monkeypatch.setenv("SOFTVERBS_ADDRESS", f"{first},{second}")
    monkeypatch.setenv("SOFTVERBS_OPTIONS", "imm=efa,counter_max_value=7")
    monkeypatch.setenv("SOFTVERBS_FAULTS", "seed=1,drop=0.25")
    monkeypatch.setenv("SOFTVERBS_PCAP", str(tmp_path / "all.pcap"))
    device = default_device()
    addresses = [".".join(str(part) for part in gid[12:]) for gid in device.link.gids]
    assert addresses == [first, second]
    assert device.options == Options(imm="efa", counter_max_value=7)
    assert isinstance(device.link, FaultLink)
    assert (tmp_path / "all.pcap").exists()


@pytest.mark.usefixtures("no_default")
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("OPTIONS", "colour=red"), ("OPTIONS", "max_qp=\u0663"), ("FAULTS", "drop=9"), ("FAULTS", "drop=\u0660"),
        ("ADDRESS", "nowhere"), ("ADDRESS", "127.255.255.255"), ("PCAP", "/"), ("PCAP", "/nowhere/x"),
    ],
)  # fmt: skip
def test_a_wrong_environment_opens_nothing(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    """It is told with the variable and its value."""
    monkeypatch.setenv(f"SOFTVERBS_{name}", value)
    with pytest.raises((PyverbsUserError, OSError, ValueError), match=f"SOFTVERBS_{name}={value}: "):
        default_device()
    assert module._default is None
    monkeypatch.delenv(f"SOFTVERBS_{name}")
    assert default_device().usable()


# -- forks


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_child_neither_uses_nor_disturbs_the_device_of_its_parent() -> None:
    with inproc(name="parent0", thread=True) as device:
        eventually(lambda: device.port.sleepers == 1)
        with device.lock:  # the child gets the lock free all the same

            def check() -> None:
                assert not device.usable()
                for act in (device.progress, device.check, lambda: device.wait_until(lambda: True)):
                    with pytest.raises(PyverbsRDMAError, match=f"parent0.*before fork.*process {os.getppid()}"):
                        act()
                assert not device.lock._is_owned()
                assert device._thread is None
                device.close()
                with Device(link=Network().link("10.0.0.9")) as own:
                    assert own.usable()

            in_child(check)
            assert rung(device) == 0, "the child's closing must not ring the parent's bell"
        assert device.usable()
        loop = Loop(device)
        loop.write()
        eventually(lambda: loop.cq.count() == 1)


@pytest.mark.usefixtures("no_default")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_child_has_a_default_device_of_its_own() -> None:
    parents = default_device()

    def check() -> None:
        assert default_device() is not parents
        assert default_device().link.gids != parents.link.gids
        default_device().close()

    in_child(check)
    assert default_device() is parents


def test_what_a_fork_leaves_in_the_child() -> None:
    """The same as in a child, in this process."""
    device = inproc(name="forked0")
    device._pid -= 1  # as if another process had opened it
    device._after_fork()
    with pytest.raises(PyverbsRDMAError, match=f"forked0 was opened before fork.*process {os.getpid() - 1}"):
        device.check()
    assert not device.usable()
    assert device._turn() is None
    poller = select.poll()
    bell = os.dup(device._bell)
    device.close()
    poller.register(bell, select.POLLIN)
    assert poller.poll(0) == [], "the bell is the other process's, too"
    os.close(bell)
