# SPDX-License-Identifier: MIT
"""The grammar of a plan of faults: what a rule can say, how it is read, and how it is written.

    plan    = item { ("," | ";" | newline) item }       "#" begins a comment
    item    = setting | rule
    setting = name "=" value                            seed=1  drop=0.05  delay=2ms
    rule    = name { ":" option "=" value }             create_cq:nth=3:errno=ENOMEM

A rule is made in one place, ``Rule``, from names and values; the text form is taken apart and given to it.
"""

import difflib
import fnmatch
import random
import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from softverbs.core.base.errors import PyverbsUserError
from softverbs.faults import values as v
from softverbs.faults.values import Amount, Value
from softverbs.faults.verbs import VERBS

#: Settings of the link, of FaultLink; ``seed`` is the plan's too.
SETTINGS = ("seed", "drop", "duplicate", "reorder", "corrupt", "delay", "direction")
#: Which of the events that a rule matches it strikes.
CHOICE: dict[str, Value] = {
    "nth": v.COUNT, "every": v.COUNT, "from": v.COUNT, "times": v.COUNT, "p": v.PROBABILITY,
}  # fmt: skip
_FACTS: dict[str, Value] = {
    "qp": v.QP_NUMBER, "cq": v.NUMBER, "counter": v.NUMBER, "wr_id": v.NUMBER, "opcode": v.WR_OPCODE, "to": v.STATE,
    "type": v.QP_TYPE, "above": v.SIZE, "below": v.SIZE,
}  # fmt: skip
_FRAME: dict[str, Value] = {"opcode": v.FRAMES, "direction": v.DIRECTION, **CHOICE}
_WHEN = v.amount("packets", "completions", "posts")
_TRIGGER: dict[str, Value] = {"after": _WHEN, "every": _WHEN, "times": v.COUNT}


class Kind(NamedTuple):
    """What rules of one name can say."""

    #: How they work: ``verb``, ``completion``, ``trigger``, ``counter`` or ``wire``.
    family: str
    options: Mapping[str, Value]
    #: One of these must be there, and only one.
    needs: tuple[str, ...] = ()


_KINDS: dict[str, Kind] = {
    "completion": Kind(
        "completion",
        {
            "cq": v.NUMBER, "qp": v.QP_NUMBER, "wr_id": v.NUMBER, "opcode": v.WC_OPCODE, **CHOICE, "delay": v.TIME,
            "fail": v.STATUS,
        },
        ("delay", "fail"),
    ),
    "port_down": Kind("trigger", {**_TRIGGER, "for": v.TIME}),
    "qp_error": Kind("trigger", {"qp": v.ANY_QP, **_TRIGGER}),
    "device_fatal": Kind("trigger", {"after": _WHEN}),
    "event": Kind("trigger", {"type": v.EVENT, "qp": v.ANY_QP, "cq": v.NUMBER, **_TRIGGER}, ("type",)),
    "counter_stall": Kind(
        "counter", {"counter": v.NUMBER, "after": v.amount("updates"), "for": v.TIME, "times": v.COUNT}
    ),
    "drop": Kind("wire", _FRAME),
    "duplicate": Kind("wire", _FRAME),
    "reorder": Kind("wire", _FRAME),
    "corrupt": Kind("wire", _FRAME),
    "delay": Kind("wire", {**_FRAME, "by": v.TIME}, ("by",)),
}  # fmt: skip


def kind_of(name: str) -> Kind | None:
    """What a rule of this name can say; None where there is no such rule."""
    if name in _KINDS:
        return _KINDS[name]
    if name in VERBS:
        facts = {fact: _FACTS[fact] for fact in VERBS[name].facts}
        return Kind("verb", {**facts, **CHOICE, "errno": v.ERRNO})
    if "*" in name and fnmatch.filter(VERBS, name):
        return Kind("verb", {**CHOICE, "errno": v.ERRNO})
    return None


class Rule:
    """One thing that is to go wrong, and when.

    ``Rule("create_cq", nth=3, errno="ENOMEM")`` is ``create_cq:nth=3:errno=ENOMEM``; ``str(rule)`` is the text.
    ``seen`` and ``hits`` count since the rule was added to a plan.
    """

    def __init__(self, name: str, **options: object) -> None:
        """
        :param name: a verb, a pattern of verbs (``create_*``), or one of completion, port_down, qp_error, device_fatal,
            event, counter_stall, drop, duplicate, reorder, corrupt, delay
        :param options: as in the text form (docs/faults.md); ``from_`` and ``for_`` for Python's own words
        :raises PyverbsUserError: names the rule, and what of it is wrong
        """
        given = {key.rstrip("_"): str(value) for key, value in options.items()}
        text = ":".join([name, *(f"{key}={value}" for key, value in given.items())])
        name = name.strip().removeprefix("ibv_")
        kind = kind_of(name)
        if kind is None:
            raise _no_such(text, "fault", name, (*_KINDS, *VERBS))
        self.name = name
        self.family = kind.family
        #: The values by option, in the order of the documentation.
        self.options: dict[str, Any] = {}
        for key in given:
            if key not in kind.options:
                raise _no_such(text, f"option of {name}", key, kind.options)
        for key, value in kind.options.items():
            if key in given:
                self.options[key] = _parsed(text, key, value, given[key])
        self._check(text, kind)
        shown = [f"{key}={kind.options[key].show(value)}" for key, value in self.options.items()]
        self._text = ":".join([name, *shown])
        asks = self.family in ("verb", "completion", "counter")
        self._conditions = [(key, value) for key, value in self.options.items() if asks and key in _FACTS]
        #: Events that it was looked at for.
        self.seen = 0
        #: How often it struck.
        self.hits = 0
        self._chance = random.Random(0)

    @classmethod
    def parse(cls, text: str) -> "Rule":
        """A rule from its text.

        :raises PyverbsUserError: names the text, and what of it is wrong
        """
        name, *parts = (part.strip() for part in text.strip().split(":"))
        options: dict[str, str] = {}
        for part in parts:
            key, equals, value = (word.strip() for word in part.partition("="))
            if not equals:
                raise PyverbsUserError(f"faults: {text.strip()!r}: option=value is expected, not {part!r}")
            if key in options:
                raise PyverbsUserError(f"faults: {text.strip()!r}: {key} is there twice")
            options[key] = value
        if "=" in name:
            raise PyverbsUserError(f"faults: {text.strip()!r}: a rule begins with a name alone, as in drop:p=0.05")
        return cls(name, **options)

    def _check(self, text: str, kind: Kind) -> None:
        """What no single value is to blame for."""
        options = self.options
        needed = [key for key in kind.needs if key in options]
        if kind.needs and len(needed) != 1:
            words = " or ".join(f"{key}=" for key in kind.needs)
            raise PyverbsUserError(f"faults: {text!r}: {words}{', not both' if needed else ' is needed'}")
        beside = [key for key in ("every", "from", "times") if key in options and "nth" in options]
        if beside:
            raise PyverbsUserError(f"faults: {text!r}: nth says which one: {beside[0]} has no meaning beside it")
        every, after = options.get("every"), options.get("after")
        if isinstance(every, Amount):
            if not every.number:
                raise PyverbsUserError(f"faults: {text!r}: every {every} is without end")
            if after is not None and after.unit != every.unit:
                raise PyverbsUserError(f"faults: {text!r}: after and every count different things")
        if "every" not in options and self.family == "trigger" and options.get("times", 1) > 1:
            raise PyverbsUserError(f"faults: {text!r}: times needs every, or it happens once")

    def __str__(self) -> str:
        return self._text

    def __repr__(self) -> str:
        return f"Rule.parse({self._text!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Rule) and self._text == other._text

    def __hash__(self) -> int:
        return hash(self._text)

    @property
    def verbs(self) -> list[str]:
        """The verbs that it is about; none where it is about something else."""
        return fnmatch.filter(VERBS, self.name) if self.family == "verb" else []

    def begin(self, seed: int, place: int) -> None:
        """A plan takes it: it counts from zero, by chance of its own.

        :param seed: the plan's
        :param place: its number in the plan
        """
        self.seen = self.hits = 0
        self._chance = random.Random(f"{seed}/{place}/{self._text}")

    def matches(self, facts: Mapping[str, Any]) -> bool:
        """Whether it is about an event with these facts. A fact that nobody knows matches no condition."""
        for key, wanted in self._conditions:
            if key in ("above", "below"):
                size = facts.get("size")
                if size is None or not (size > wanted if key == "above" else size < wanted):
                    return False
            elif facts.get(key) != wanted:
                return False
        return True

    def fits(self, frame: str) -> bool:
        """Whether it is about frames with this BTH opcode, by name."""
        return fnmatch.fnmatchcase(frame, self.options.get("opcode", "*"))

    def chooses(self) -> bool:
        """Whether it strikes the event that was counted last."""
        options, number = self.options, self.seen
        first = options.get("from", options.get("every", 1))
        if number < first or options.get("nth", number) != number or self.hits >= options.get("times", self.hits + 1):
            return False
        if (number - first) % options.get("every", 1):
            return False
        return "p" not in options or self._chance.random() < options["p"]

    def struck(self, facts: Mapping[str, Any]) -> bool:
        """Counts an event, where it is about it; whether it strikes."""
        if not self.matches(facts):
            return False
        self.seen += 1
        if not self.chooses():
            return False
        self.hits += 1
        return True

    def pick(self, count: int) -> int:
        """A number from 0 to ``count`` - 1, by the rule's own chance."""
        return self._chance.randrange(count)


def split(text: str) -> list[str]:
    """The items of a plan's text, without comments."""
    lines = (line.partition("#")[0] for line in text.splitlines())
    return [item.strip() for line in lines for item in re.split("[,;]", line) if item.strip()]


def is_setting(item: str) -> bool:
    """Whether an item is a setting of the link, or of the plan."""
    return "=" in item.partition(":")[0]


def _parsed(text: str, key: str, value: Value, given: str) -> Any:
    try:
        return value.parse(given.strip())
    except (ValueError, OverflowError):
        raise PyverbsUserError(f"faults: {text!r}: {key} is {value.what}, not {given!r}") from None


def _no_such(text: str, what: str, word: str, known: Iterable[str]) -> PyverbsUserError:
    """The refusal of a word that nobody knows; with the one that may have been meant."""
    names = list(known)
    near = difflib.get_close_matches(word, names, 1)
    rest = "docs/faults.md has the list" if len(names) > 20 else f"known are {', '.join(names)}"
    rest = f"did you mean {near[0]}?" if near else rest
    return PyverbsUserError(f"faults: {text!r}: there is no {what} {word!r}; {rest}")
