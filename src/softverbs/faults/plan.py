# SPDX-License-Identifier: MIT
"""A plan of faults: rules, settings of the link, a seed, and a log of what was made to go wrong."""

from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from softverbs._interrupts import Shield, finalizer
from softverbs.core.base.errors import PyverbsUserError
from softverbs.core.wire import opcodes
from softverbs.faults.hooks import Hit, Hooks, Removed
from softverbs.faults.rules import Rule, is_setting, kind_of, split
from softverbs.links.faults import FaultLink, FaultOptions, parse_faults

#: Most hits that ``log`` keeps: the latest.
LOG_LENGTH = 100_000


class Plan:
    """What is to go wrong at a device, in the order of the rules; ``Device.faults``.

    ``Plan("seed=7,create_cq:nth=3")``, or of rules: ``Plan(Rule("create_cq", nth=3), seed=7)``. A plan belongs to one
    device; without one its rules do nothing. ``str(plan)`` is the text that makes the same plan again.
    """

    def __init__(self, *items: "str | Rule", seed: int | None = None) -> None:
        """
        :param items: rules, and texts of any number of rules and settings (docs/faults.md)
        :param seed: of all chance; instead of a ``seed=`` of the text, 0 where there is none
        :raises PyverbsUserError: names the item that is wrong
        """
        settings: list[str] = []
        self._rules: list[Rule] = []
        self._places = 0
        for item in items:
            for part in [item] if isinstance(item, Rule) else split(item):
                if isinstance(part, str) and is_setting(part):
                    settings.append(part)
                else:
                    self._rules.append(part if isinstance(part, Rule) else Rule.parse(part))
        if seed is not None:
            settings.append(f"seed={seed}")
        #: The settings of the link, as FaultLink has them.
        self.settings: FaultOptions = _settings(settings)
        #: Of all chance.
        self.seed: int = self.settings.get("seed", 0)
        #: What was made to go wrong, oldest first.
        self.log: deque[Hit] = deque(maxlen=LOG_LENGTH)
        #: How much was made to go wrong by rules.
        self.hits = 0
        self._device: Any = None
        self._claimed = False
        self._hooks: Hooks | None = None
        self._link: FaultLink | None = None
        for rule in self._rules:
            self._number(rule)

    # -- what users do

    @property
    def rules(self) -> tuple[Rule, ...]:
        """The rules, in order."""
        return tuple(self._rules)

    def add(self, rule: "Rule | str", **options: object) -> Rule:
        """Adds a rule, which works from now on and counts from zero.

        :param rule: a rule, its text, or its name where ``options`` are given: ``add("create_cq", nth=3)``
        :param options: as of Rule
        :return: the rule, to be looked at (``hits``) and removed
        :raises PyverbsUserError: names what is wrong; for faults of the link, where the device was opened without any
        """
        if not isinstance(rule, Rule):
            rule = Rule(rule, **options) if options else _one(rule)
        if any(rule is other for other in self._rules):
            raise PyverbsUserError(f"faults: {rule}: this rule is in the plan already")
        if rule.family == "wire" and self._device is not None and self._link is None:
            raise PyverbsUserError(
                f"faults: {rule}: the device was opened without faults of the link; open it with drop=0, for instance"
            )
        with self._locked():
            self._number(rule)
            self._rules.append(rule)
            self._arrange(rule)
        return rule

    def remove(self, rule: "Rule | str") -> Rule:
        """Takes a rule out. What it made last is over: the port is up again, counters go on.

        :param rule: the rule, or its text
        :return: the rule, which keeps its counts
        :raises PyverbsUserError: where there is no such rule
        """
        wanted = rule if isinstance(rule, Rule) else _one(rule)
        found = [other for other in self._rules if other is wanted] or [r for r in self._rules if r == wanted]
        if not found:
            raise PyverbsUserError(f"faults: {wanted}: there is no such rule in the plan")
        with self._locked():
            self._rules = [other for other in self._rules if other is not found[0]]
            if self._hooks is not None:
                self._hooks.end(found[0])
            self._arrange()
        return found[0]

    def clear(self) -> None:
        """Removes every rule. Settings of the link stay."""
        for rule in self.rules:
            self.remove(rule)

    def applied(self, rule: "Rule | str", **options: object) -> AbstractContextManager[Rule]:
        """A rule for a block: ``with device.faults.applied("reg_mr:errno=ENOMEM") as rule:``.

        :param rule: as of ``add``
        :param options: as of ``add``
        """
        return _Applied(self, rule if isinstance(rule, Rule) else Rule(rule, **options) if options else _one(rule))

    def __str__(self) -> str:
        return ",".join([*(f"{key}={value}" for key, value in self.settings.items()), *map(str, self._rules)])

    def __repr__(self) -> str:
        return f"Plan({str(self)!r})"

    # -- what the device does

    def claim(self) -> None:
        """A device is being made with it.

        :raises PyverbsUserError: where another has it
        """
        if self._claimed:
            raise PyverbsUserError("faults: the plan belongs to a device already; Plan(str(plan)) makes another one")
        self._claimed = True

    def around(self, link: Any) -> Any:
        """The link, with its faults around it where the plan has any."""
        if not self.settings.keys() - {"seed", "direction"} and not any(r.family == "wire" for r in self._rules):
            return link
        self._link = FaultLink(link, **self.settings, judge=self._judge)
        return self._link

    def attach(self, device: Any) -> None:
        """The device is there: rules work from now on.

        :param device: a softverbs.device.Device
        """
        self._device = device
        self._hooks = Hooks(device, self._note)
        with device.lock:
            self._arrange(*self._rules)

    def detach(self, removed: str = "") -> None:
        """The device is at its end. The lock is held.

        :param removed: why it was removed, where it was
        """
        if self._hooks is None or self._device is None:
            return
        self._hooks.stop()
        self._hooks = None
        if removed:
            self._device.port.plan = Removed(removed)

    # -- inside

    @contextmanager
    def _locked(self) -> Iterator[None]:
        if self._device is None:
            yield
            return
        with self._device.lock:
            yield

    def _number(self, rule: Rule) -> None:
        self._places += 1
        rule.begin(self.seed, self._places)

    def _arrange(self, *new: Rule) -> None:
        """The rules have changed; ``new`` ones begin."""
        if self._hooks is None or self._device is None:
            return
        for rule in new:
            self._hooks.begin(rule)
        self._hooks.arrange(self._rules)
        if new:
            self._hooks.run(self._device.clock())

    def _note(self, hit: Hit) -> None:
        self.hits += 1
        self.log.append(hit)
        if self._device is not None:
            self._device.log.info("%s: %s", self._device.name, hit.words)

    def _judge(self, direction: str, now: int, frame: bytes) -> Mapping[str, int] | None:
        """What befalls a frame: names of faults, and the time of a delay, ns."""
        found: dict[str, int] = {}
        for rule in self._rules:
            if rule.family != "wire" or rule.options.get("direction", direction) not in (direction, "both"):
                continue
            name = opcodes.name(frame[0]) if frame else ""
            if not rule.fits(name) or not rule.struck({}):
                continue
            found[rule.name] = rule.options.get("by", 1)
            words = f"fault {rule}: {name}, {len(frame)} bytes, {direction}, {rule.seen}"
            self._note(Hit(now, rule, name, rule.seen, words))
        return found or None


class _Applied(AbstractContextManager[Rule]):
    """A rule for a block. Where a signal's handler raises before ``__exit__`` has begun, the rule goes with this."""

    def __init__(self, plan: Plan, rule: Rule) -> None:
        self._plan = plan
        self._rule = rule
        self._entered = False

    def __enter__(self) -> Rule:
        with Shield():
            self._plan.add(self._rule)
            self._entered = True
        return self._rule

    def __exit__(self, *exc: object) -> None:
        with Shield():
            self._end()

    def _end(self) -> None:
        if self._entered and any(self._rule is other for other in self._plan.rules):
            self._plan.remove(self._rule)
        self._entered = False

    @finalizer
    def __del__(self) -> None:
        device = self._plan._device
        if not self._entered:
            return
        if device is None or device.try_enter():
            try:
                self._end()
            finally:
                if device is not None:
                    device.lock.release()
        else:
            device.deferred.append(self._end)


def _one(text: str) -> Rule:
    """The one rule of a text."""
    items = split(text)
    if len(items) != 1:
        raise PyverbsUserError(f"faults: {text!r}: one rule is expected, not {len(items)}")
    if is_setting(items[0]):
        raise PyverbsUserError(f"faults: {text!r}: settings are given when the device is opened; a rule is expected")
    return Rule.parse(items[0])


def _settings(items: list[str]) -> FaultOptions:
    """The settings of the link; PyverbsUserError names the item that is wrong."""
    for item in items:
        try:
            parse_faults(item)
        except ValueError as error:
            words = str(error)
            name, _, value = (part.strip() for part in item.partition("="))
            if ":" in value and kind_of(name) is not None:
                words = f"with more to say it is a rule: {name}:p={value}"
            elif "there is no" in words and kind_of(name) is not None:
                words = f"{name} is no setting but a rule: {name}:nth=1, for instance"
            raise PyverbsUserError(f"faults: {item!r}: {words}") from error
    return parse_faults(",".join(items))
