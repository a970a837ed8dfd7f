# SPDX-License-Identifier: MIT
"""A link that loses, repeats, reorders, damages and delays the frames of another link: at random, from a seed.

The same seed and the same calls give the same run, frame by frame. Bursts are taken apart, since faults befall frames;
so each frame sent leaves by itself, with identification 0 (`identification_step` is 0).

What happens to a frame, in this order: the script, if any, replaces it by any number of frames; then, each with its
probability, it is dropped, or sent twice; each copy is damaged (bits flipped, bytes overwritten, cut short, or made
longer), and held back behind the 1 to 4 frames after it, or else put off by a random time. A frame that is held back is
let go after HOLD_TIME if too few follow, so reordering alone never loses one. Frames wait in a heap, by time.
"""

from __future__ import annotations

import ctypes
import heapq
import random
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypedDict, cast, get_args

from softverbs.links import base

HOLD_TIME = 1_000_000
"""Longest time that a frame is held back behind later ones, ns."""

RETRY_TIME = 100_000
"""Time after which frames that the inner link could not take are offered again, ns."""

LIMIT = 8192
"""Frames that may wait in each direction."""

_BATCH = 64  # frames delivered per receive()
_BUFFER_SIZE = 65536
_MOST_BEHIND = 4
_MOST_FLIPS = 3
_MOST_EXTRA = 8  # bytes that a damaged frame grows by
_PROBABILITY = "a probability, 0 to 1"
_UNITS = {"ns": 1, "us": 1_000, "ms": 1_000_000, "s": 1_000_000_000, "": 1}

Script = Callable[[int, bytes], "list[bytes]"]
Judge = Callable[[str, int, bytes], "Mapping[str, int] | None"]
"""Given "send" or "receive", the time (ns) and a frame: the faults that befall it, beside those by chance: the names of
the settings, each with a number, which for a delay is its time (ns). None: none."""
Direction = Literal["both", "send", "receive"]


class FaultOptions(TypedDict, total=False):
    """What parse_faults returns, and FaultLink takes."""

    seed: int
    drop: float
    duplicate: float
    reorder: float
    corrupt: float
    delay: int
    direction: Direction


@dataclass(frozen=True)
class _Faults:
    """How likely each fault is (0 to 1), and the longest delay (ns)."""

    drop: float
    duplicate: float
    reorder: float
    corrupt: float
    delay: int
    script: Script | None
    judge: Judge | None


class _Waiting(NamedTuple):
    """A frame in the heap; `number` keeps frames of one time in order, and the comparison from going further."""

    due: int
    number: int
    target: Any
    frame: bytes


@dataclass
class _Held:
    behind: int  # frames that must still pass
    expiry: int
    target: Any
    frame: bytes


class _Lane:
    """One direction: frames go in by `put` and come out of `due`, or do not."""

    def __init__(
        self, direction: str, faults: _Faults, chance: random.Random, counters: Counter[str], mtu: int
    ) -> None:
        self.direction = direction
        self.faults = faults
        self.chance = chance
        self.counters = counters
        self.mtu = mtu
        self.heap: list[_Waiting] = []
        self.held: list[_Held] = []
        self.retry = 0
        self._number = 0

    def __len__(self) -> int:
        return len(self.heap) + len(self.held)

    def put(self, now: int, target: Any, frame: bytes) -> None:
        """Take a frame for `target`, and let what may happen to it happen."""
        script = self.faults.script
        index = self.counters["frames"]
        self.counters["frames"] += 1
        for item in [frame] if script is None else script(index, frame):
            if len(item) > _BUFFER_SIZE:
                raise ValueError(f"no frame has {len(item)} bytes")
            judge = self.faults.judge
            verdict = (judge(self.direction, now, item) if judge is not None and item else None) or {}
            if not item or self._happens("drop", verdict):
                continue
            for _ in range(2 if self._happens("duplicate", verdict) else 1):
                self._put_copy(now, target, item, verdict)

    def due(self, now: int) -> _Waiting | None:
        """Return and remove the next frame whose time has come, or None."""
        if self.held:
            for item in [held for held in self.held if held.expiry <= now]:
                self.held.remove(item)
                self._queue(item.expiry, item.target, item.frame)
        return heapq.heappop(self.heap) if self.heap and self.heap[0].due <= now else None

    def put_back(self, now: int, item: _Waiting) -> None:
        """Take back what `due` returned, because there is no room for it."""
        heapq.heappush(self.heap, item)
        self.retry = now + RETRY_TIME

    def deadline(self) -> int | None:
        """Return when the next frame is due, or None."""
        times = [item.expiry for item in self.held]
        if self.heap:
            times.append(max(self.heap[0].due, self.retry))
        return min(times, default=None)

    def _happens(self, fault: str, verdict: Mapping[str, int]) -> bool:
        likelihood: float = getattr(self.faults, fault)
        by_chance = likelihood and self.chance.random() < likelihood
        if not by_chance and fault not in verdict:
            return False
        self.counters[fault] += 1
        return True

    def _put_copy(self, now: int, target: Any, frame: bytes, verdict: Mapping[str, int]) -> None:
        if self._happens("corrupt", verdict):
            frame = _damage(self.chance, frame, self.mtu)
        earlier = list(self.held)
        if self._happens("reorder", verdict):
            self.held.append(_Held(self.chance.randint(1, _MOST_BEHIND), now + HOLD_TIME, target, frame))
            return
        due = now
        if self.faults.delay or "delay" in verdict:
            due += verdict.get("delay", 0) + (self.chance.randint(0, self.faults.delay) if self.faults.delay else 0)
            self.counters["delay"] += 1
        self._queue(due, target, frame)
        for item in earlier:
            item.behind -= 1
            if item.behind == 0:
                self.held.remove(item)
                self._queue(due, item.target, item.frame)

    def _queue(self, due: int, target: Any, frame: bytes) -> None:
        heapq.heappush(self.heap, _Waiting(due, self._number, target, frame))
        self._number += 1


class FaultLink(base.Middleware):
    """A bad link, made of a good one."""

    def __init__(
        self,
        inner: base.Link,
        seed: int = 0,
        drop: float = 0.0,
        duplicate: float = 0.0,
        reorder: float = 0.0,
        corrupt: float = 0.0,
        delay: int = 0,
        direction: Direction = "both",
        script: Script | None = None,
        judge: Judge | None = None,
    ) -> None:
        """inner: the link that does the work; seed: of the only source of chance.

        drop, duplicate, reorder, corrupt: probability of each for a frame, 0 to 1; delay: longest delay, ns, each as
        likely as another; direction: which frames faults befall; script: given the frame's number, from 0, over all
        that faults may befall, and its bytes, returns the frames to go on with instead (empty ones are dropped);
        judge: says what befalls each of these.
        Errors: ValueError, which names what is out of range.
        """
        super().__init__(inner)
        for name, value in (("drop", drop), ("duplicate", duplicate), ("reorder", reorder), ("corrupt", corrupt)):
            if not 0 <= value <= 1:
                raise ValueError(f"{name} is a probability, 0 to 1, not {value}")
        if delay < 0:
            raise ValueError(f"delay is a time in ns, not {delay}")
        if direction not in get_args(Direction):
            raise ValueError(f"direction is both, send or receive, not {direction}")
        names = ("frames", "drop", "duplicate", "reorder", "corrupt", "delay", "overflow")
        self._counters = Counter(dict.fromkeys(names, 0))
        faults = _Faults(drop, duplicate, reorder, corrupt, delay, script, judge)
        chance = random.Random(seed)
        self._out = _Lane("send", faults, chance, self._counters, inner.mtu) if direction != "receive" else None
        self._in = _Lane("receive", faults, chance, self._counters, inner.mtu) if direction != "send" else None
        self._tap: _Tap | None = None
        self._closed = False
        self._out_buffer = (ctypes.c_char * _BUFFER_SIZE)()
        self._in_buffer = (ctypes.c_char * _BUFFER_SIZE)()

    @property
    def identification_known(self) -> bool:
        """See base.Link: frames taken out of a burst no longer tell their place in it."""
        alone = self._in is None or self.inner.identification_step == 0
        return alone and self.inner.identification_known

    @property
    def identification_step(self) -> int:
        """See base.Link: 0, since frames leave one by one."""
        return self.inner.identification_step if self._out is None else 0

    def send(self, now: int, route: Any, address: int, length: int, segment: int) -> bool:
        """See base.Link. False if LIMIT frames wait."""
        if self._out is None:
            return self.inner.send(now, route, address, length, segment)
        if self._closed:
            raise base.closed_error()
        self._flush(now, self._out)
        if len(self._out) + base.frame_count(length, segment) > LIMIT:
            return False
        for start in range(0, length, segment):
            self._out.put(now, route, ctypes.string_at(address + start, min(segment, length - start)))
        self._flush(now, self._out)
        return True

    def receive(self, now: int, sink: base.Sink) -> int:
        """See base.Link."""
        if self._out is not None:
            self._flush(now, self._out)
        if self._in is None:
            return self.inner.receive(now, sink)
        if self._tap is None or self._tap.sink is not sink:
            self._tap = _Tap(self._in, sink)
        self._tap.now = now
        self.inner.receive(now, self._tap)
        return self._deliver(now, self._in)

    def deadline(self) -> int | None:
        """Return the earliest time at which a frame that waits here, or in the inner link, is due."""
        lanes = [lane.deadline() for lane in (self._out, self._in) if lane is not None]
        return min((time for time in [*lanes, self.inner.deadline()] if time is not None), default=None)

    def stats(self) -> dict[str, int]:
        """Return the inner link's counters and, with "fault_" before each name, those of this one.

        frames: that faults might befall; drop, duplicate, reorder, corrupt, delay: that each befell; overflow: received
        frames lost because too many waited.
        """
        return {**self.inner.stats(), **{f"fault_{name}": count for name, count in self._counters.items()}}

    def close(self) -> None:
        """Close the inner link. Frames that wait are lost."""
        self._closed = True
        self.inner.close()
        for lane in (self._out, self._in):
            if lane is not None:
                lane.heap.clear()
                lane.held.clear()

    def _flush(self, now: int, lane: _Lane) -> None:
        """Send what is due."""
        while (item := lane.due(now)) is not None:
            size = len(item.frame)
            ctypes.memmove(self._out_buffer, item.frame, size)
            if not self.inner.send(now, item.target, ctypes.addressof(self._out_buffer), size, size):
                lane.put_back(now, item)
                return

    def _deliver(self, now: int, lane: _Lane) -> int:
        """Hand over what is due, up to a bound."""
        for count in range(_BATCH):
            item = lane.due(now)
            if item is None:
                return count
            sink, peer = item.target
            size = len(item.frame)
            ctypes.memmove(self._in_buffer, item.frame, size)
            sink.receive(peer, ctypes.addressof(self._in_buffer), size, size)
        return _BATCH


class _Tap:
    """Stands between the inner link and the sink, and takes what arrives apart."""

    def __init__(self, lane: _Lane, sink: base.Sink) -> None:
        self.lane = lane
        self.sink = sink
        self.now = 0

    def peer(self, source_gid: bytes, source_port: int, sgid_index: int, dgid: bytes | None = None, /) -> object:
        return base.peer_of(self.sink, source_gid, source_port, sgid_index, dgid)

    def receive(self, peer: object, address: int, length: int, segment: int, /) -> None:
        for start in range(0, length, segment):
            if len(self.lane) >= LIMIT:
                self.lane.counters["overflow"] += 1
                continue
            frame = ctypes.string_at(address + start, min(segment, length - start))
            self.lane.put(self.now, (self.sink, peer), frame)


def _damage(chance: random.Random, frame: bytes, mtu: int) -> bytes:
    """Return the frame with 1 to 3 bits or bytes changed, or cut short, or with random bytes behind it."""
    data = bytearray(frame)
    kind = chance.choice(("bits", "bits", "bytes", "cut", "longer"))
    if kind == "cut" and len(data) > 1:
        return bytes(data[: chance.randrange(1, len(data))])
    if kind == "longer" and len(data) + _MOST_EXTRA <= mtu:
        return bytes(data) + chance.randbytes(chance.randint(1, _MOST_EXTRA))
    places = chance.sample(range(len(data)), min(chance.randint(1, _MOST_FLIPS), len(data)))
    for place in places:  # distinct, so that no change undoes another
        data[place] ^= chance.randint(1, 255) if kind == "bytes" else 1 << chance.randrange(8)
    return bytes(data)


def parse_faults(text: str) -> FaultOptions:
    """Return FaultLink's arguments from words like "seed=1,drop=0.05,delay=2ms,direction=send".

    Probabilities are 0 to 1; delay is a number with ns, us, ms or s, or of ns.
    Errors: ValueError, which names the key or the value that is wrong.
    """
    options: dict[str, Any] = {}
    for item in filter(None, (part.strip() for part in text.split(","))):
        key, _, value = (part.strip() for part in item.partition("="))
        if key not in _PARSERS:
            raise ValueError(f"there is no fault {key!r}; known are {', '.join(_PARSERS)}")
        convert, what = _PARSERS[key]
        try:
            if not value.isascii():  # Python's conversions take the digits of every script
                raise ValueError
            options[key] = convert(value)
        except (ValueError, OverflowError):
            raise ValueError(f"{key} is {what}, not {value!r}") from None
    return cast(FaultOptions, options)


def _probability(value: str) -> float:
    number = float(value)
    if not 0 <= number <= 1:
        raise ValueError
    return number


def _duration(value: str) -> int:
    number = value.rstrip("abcdefghijklmnopqrstuvwxyz")
    unit = value[len(number) :]
    if unit not in _UNITS or float(number) < 0:
        raise ValueError
    return round(float(number) * _UNITS[unit])


def _direction(value: str) -> str:
    if value not in get_args(Direction):
        raise ValueError
    return value


_PARSERS: dict[str, tuple[Callable[[str], Any], str]] = {
    "seed": (int, "a whole number"),
    "drop": (_probability, _PROBABILITY),
    "duplicate": (_probability, _PROBABILITY),
    "reorder": (_probability, _PROBABILITY),
    "corrupt": (_probability, _PROBABILITY),
    "delay": (_duration, "a time, such as 500us or 2ms"),
    "direction": (_direction, "both, send or receive"),
}
