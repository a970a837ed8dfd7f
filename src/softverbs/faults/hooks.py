# SPDX-License-Identifier: MIT
"""What a plan of faults does to a device: the object that the core asks, as ``Host.plan``, with the device's lock held.

It is installed only while rules need it. The core calls ``run`` whenever it makes progress, and the ``on_...`` methods
as things happen; what must not happen in the middle of them is put on an agenda, which ``run`` works off.
"""

import errno
import functools
import heapq
import itertools
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from softverbs.core.base.errors import PyverbsRDMAError
from softverbs.faults import values as v
from softverbs.faults.rules import Rule
from softverbs.faults.values import NS, Amount
from softverbs.faults.verbs import HOT, VERBS

_SUCCESS, _FLUSHED = 0, v.STATUSES["WR_FLUSH_ERR"]
_WC_NAMES = {number: name for name, number in v.WC_OPCODES.items()}
#: Facts of calls that are numbers of an enumeration: the names of the numbers.
_NAMED = {
    fact: {number: name for name, number in names.items()}
    for fact, names in (("to", v.STATES), ("type", v.QP_TYPES), ("opcode", v.WR_OPCODES))
}
_DEAD = (0, 6)  # states RESET and ERR: nothing is left to fail
#: Queue pair 1 and the ``cq_context`` of its completion queues (cm/gsi.py): the program knows nothing of them, so they
#: are neither counted nor struck.
_GSI, _GSI_QUEUE = 1, "cm"


class Hit(NamedTuple):
    """Something that was made to go wrong."""

    #: The device's time, ns.
    time: int
    rule: Rule
    #: What was struck: the verb, or what happened.
    event: str
    #: Which of the rule's events it was, from 1.
    number: int
    #: All of it, for people.
    words: str


class Hooks:
    """A plan at work on a device."""

    def __init__(self, device: Any, note: Callable[[Hit], None]) -> None:
        """
        :param device: the softverbs.device.Device that it is at work on
        :param note: told of each hit
        """
        self.device = device
        self.port = device.port
        self.note = note
        #: When ``run`` has something to do, ns; 0: never.
        self.due = 0
        #: When ``run`` was last called, ns. The port's time stands still while nobody makes progress.
        self._ran = 0
        self._calls: dict[str, list[Rule]] = {}
        self._completions: list[Rule] = []
        self._triggers: list[Rule] = []
        self._counters: list[Rule] = []
        #: Triggers: count at which they fire next; counters' rules: updates by counter.
        self._next: dict[int, int] = {}
        self._updates: dict[int, dict[int, int]] = {}
        self._agenda: list[tuple[int, int, Callable[[], None]]] = []
        self._turn = itertools.count()
        #: What ends what lasts, by rule.
        self._effects: dict[int, list[Callable[[], None]]] = {}
        self._late: list[Any] = []
        #: QPs that fail as soon as the core is back from what it does, by number, and why.
        self._doomed: dict[int, str] = {}

    # -- rules come and go

    def arrange(self, rules: Iterable[Rule]) -> None:
        """These rules and no others from now on."""
        self._calls = {}
        self._completions, self._triggers, self._counters = [], [], []
        lists = {"completion": self._completions, "trigger": self._triggers, "counter": self._counters}
        for rule in rules:
            for verb in rule.verbs:
                self._calls.setdefault(verb, []).append(rule)
            if rule.family in lists:
                lists[rule.family].append(rule)
        self._install()

    def begin(self, rule: Rule) -> None:
        """A rule is new: sets it going, where it waits for time or for nothing."""
        if rule.family != "trigger":
            return
        after = rule.options.get("after", rule.options.get("every", Amount(0, NS)))
        if after.unit == NS:
            self._fire_at(rule, self.device.clock() + after.number)
        else:
            self._next[id(rule)] = after.number

    def _install(self) -> None:
        """Stands where the core looks, while there is anything that it needs to know."""
        data = any(verb in self._calls for verb in HOT) or self._completions or self._triggers or self._counters
        busy = data or self._agenda or self._late or self._doomed
        self.port.plan = self if busy else None
        self.device.verb_faults = self if any(verb not in HOT for verb in self._calls) else None
        self.device.planned = self._planned()

    def _planned(self) -> frozenset[str]:
        """The verbs that the plan has rules for; those that post as well, where a rule counts posts."""
        whens = [rule.options.get("after", rule.options.get("every")) for rule in self._triggers]
        posts = any(when is not None and when.unit == "posts" for when in whens)
        return frozenset({*self._calls, *(HOT[:3] if posts else ())})

    def stop(self) -> None:
        """The end: what was kept back is shown."""
        for cq in self._late:
            cq.release(2**62)
        self._late = []
        self._agenda = []
        self._doomed = {}
        self.due = 0
        self.arrange(())

    # -- verbs

    def on_call(self, verb: str, facts: dict[str, Any]) -> None:
        """A verb is called; raises PyverbsRDMAError where it is to fail.

        :param facts: what rules may ask for: ``size``, ``qp``, ``to``, ``type``, ``opcode`` ...
        """
        for fact, names in _NAMED.items():
            if fact in facts:
                facts[fact] = names.get(facts[fact])
        struck: Rule | None = None
        for rule in self._calls.get(verb, ()):
            if struck is None and rule.struck(facts):
                struck = rule
            elif struck is not None and rule.matches(facts):
                rule.seen += 1
        if struck is not None:
            self._hit(struck, verb, struck.seen)
            code = struck.options.get("errno", VERBS[verb].code)
            raise PyverbsRDMAError(f"made to fail by {struck} (call {struck.seen} of {verb})", code)

    def on_post(self, queue: Any, wr: Any, verb: str) -> None:
        """A work request is about to be posted to a QP or an SRQ."""
        number = getattr(queue, "qp_num", None)
        if number == _GSI:
            return
        facts: dict[str, Any] = {"wr_id": wr.wr_id, "size": sum([element.length for element in wr.sg_list])}
        if verb == "post_send":
            facts["opcode"] = wr.opcode
        if number is not None:
            facts["qp"] = number
        self.on_posting(verb, facts)

    def on_posting(self, verb: str, facts: dict[str, Any]) -> None:
        """The same, of a work request that is described by the facts which rules may ask for."""
        number = facts.get("qp")
        if verb in self._calls:
            self.on_call(verb, facts)
        self._count("posts", 1, number)

    def on_poll(self, cq: Any) -> None:
        """A completion queue is polled."""
        if "poll_cq" in self._calls and not (cq.user is None and cq.cq_context == _GSI_QUEUE):
            self.on_call("poll_cq", {"cq": cq.handle})

    # -- completions and counters

    def on_retire(self, wr_id: int, status: int, opcode: int, qp_num: int) -> tuple[int, str] | None:
        """A work request is done; another status and its reason, or None."""
        if status != _SUCCESS or qp_num == _GSI:
            return None
        if qp_num in self._doomed:
            return _FLUSHED, self._doomed[qp_num]
        for rule in self._completions:
            if "fail" in rule.options and rule.struck(_facts(wr_id, opcode, qp_num)):
                name = rule.options["fail"]
                reason = f"made to fail by {rule} (completion {rule.seen}, wr_id {wr_id} of QP {qp_num:#x})"
                self._hit(rule, f"completion of wr_id {wr_id} of QP {qp_num:#x}", rule.seen)
                self._doom(qp_num, reason, fatal=False)
                return v.STATUSES[name], reason
        return None

    def on_completion(self, cq: Any, wr_id: int, status: int, opcode: int, qp_num: int) -> int:
        """An entry is about to be made; the time at which it is to be seen, ns, or 0 for at once."""
        if qp_num == _GSI:
            return 0
        delay = 0
        for rule in self._completions:
            if "delay" in rule.options and rule.struck({**_facts(wr_id, opcode, qp_num), "cq": cq.handle}):
                self._hit(rule, f"completion of wr_id {wr_id} of QP {qp_num:#x}", rule.seen)
                delay = max(delay, rule.options["delay"])
        self._count("completions", 1, qp_num, cq)
        if not delay and not cq.late:
            return 0
        due: int = max(self._now() + delay, 1)
        if cq.late:
            due = max(due, cq.late[-1][0])  # order is kept
        if cq not in self._late:
            self._late.append(cq)
        self._note_due(due)
        return due

    def on_counter(self, counter: Any) -> None:
        """A completion counter is about to show an update."""
        for rule in self._counters:
            updates = self._updates.setdefault(id(rule), {})
            count = updates.get(counter.handle, 0) + 1
            if not rule.matches({"counter": counter.handle}):
                continue
            updates[counter.handle] = count
            rule.seen += 1
            after = rule.options.get("after", Amount(0, "updates")).number
            if count == after + 1 and rule.hits < rule.options.get("times", rule.hits + 1):
                rule.hits += 1
                self._hit(rule, f"counter {counter.handle}", rule.seen)
                counter.stall(True)
                self._lasts(rule, functools.partial(_go_on, counter))

    # -- triggers

    def on_packet(self, qp: Any) -> None:
        """A packet has been received and dealt with: now the core is at rest, and what is due can be done at once."""
        self._count("packets", 1, None if qp.qp_num == _GSI else qp.qp_num)
        self.run(self.port.now)

    def on_sent(self, count: int) -> None:
        """Packets have been sent."""
        self._count("packets", count, None)

    def _count(self, unit: str, count: int, qp_num: int | None, cq: Any = None) -> None:
        """So much has happened; fires what waited for it."""
        for rule in self._triggers:
            wanted = rule.options.get("qp")
            when = rule.options.get("after", rule.options.get("every"))
            if when is None or when.unit != unit or id(rule) not in self._next:
                continue
            if rule.name == "qp_error" and qp_num is None:
                continue  # of packets that are sent nobody says whose they are
            if isinstance(wanted, int) and qp_num != wanted:
                continue
            if "cq" in rule.options and (cq is None or cq.handle != rule.options["cq"]):
                continue
            rule.seen += count
            if rule.seen >= self._next[id(rule)]:
                self._rearm(rule)
                self._fire(rule, qp_num, cq)

    def _rearm(self, rule: Rule) -> None:
        """Says when a trigger that counts fires again, if it does."""
        every = rule.options.get("every")
        if every is None or rule.hits + 1 >= rule.options.get("times", rule.hits + 2):
            del self._next[id(rule)]
            return
        self._next[id(rule)] = _next_after(self._next[id(rule)], every.number, rule.seen)

    def _fire_at(self, rule: Rule, due: int) -> None:
        self._schedule(due, lambda: self._fire_by_time(rule, due))

    def _fire_by_time(self, rule: Rule, due: int) -> None:
        """The time of a trigger has come. Times that have passed as well, since nobody made progress, are skipped."""
        if rule not in self._triggers:
            return  # removed meanwhile
        rule.seen += 1
        every = rule.options.get("every")
        if every is not None and rule.hits + 1 < rule.options.get("times", rule.hits + 2):
            self._fire_at(rule, _next_after(due, every.number, self._now()))
        self._fire(rule, None, None)

    def _fire(self, rule: Rule, qp_num: int | None, cq: Any) -> None:
        """It happens: soon, since the core is in the middle of something."""
        rule.hits += 1
        count = rule.seen
        if rule.name == "qp_error":
            for qp in self._victims(rule, qp_num):
                self._hit(rule, f"QP {qp.qp_num:#x}", count)
                self._doom(qp.qp_num, f"made to fail by {rule}", fatal=True)
            return
        self._hit(rule, rule.name, count)
        if rule.name == "port_down":
            self._soon(lambda: self._port_down(rule))
        elif rule.name == "device_fatal":
            self._soon(lambda: self.device.remove(f"made to fail by {rule}"))
        else:
            self._soon(lambda: self._raise_event(rule, qp_num, cq))

    def _victims(self, rule: Rule, qp_num: int | None) -> list[Any]:
        """The QPs that a rule is about: a given one, all, or the one at which it fired, or else one by chance."""
        wanted = rule.options.get("qp", "any")
        living = [qp for qp in self.port.live if qp.state not in _DEAD and qp.qp_num != _GSI]
        if wanted == "all":
            return living
        if wanted == "any" and qp_num is None:
            return [living[rule.pick(len(living))]] if living else []
        number = qp_num if wanted == "any" else wanted
        return [qp for qp in living if qp.qp_num == number]

    def _port_down(self, rule: Rule) -> None:
        self.port.set_state(False)
        self._lasts(rule, lambda: self.port.set_state(True))

    def _lasts(self, rule: Rule, undo: Callable[[], None]) -> None:
        """Something lasts for the rule's time, or until the rule is removed."""
        self._effects.setdefault(id(rule), []).append(undo)
        if "for" in rule.options:
            self._schedule(self._now() + rule.options["for"], lambda: self._undo(rule, undo))

    def _undo(self, rule: Rule, undo: Callable[[], None]) -> None:
        if undo in self._effects.get(id(rule), ()):
            self._effects[id(rule)].remove(undo)
            undo()

    def end(self, rule: Rule) -> None:
        """A rule is removed: what it made last is over."""
        for undo in self._effects.pop(id(rule), []):
            undo()
        self._next.pop(id(rule), None)
        self._updates.pop(id(rule), None)

    def _raise_event(self, rule: Rule, qp_num: int | None, cq: Any) -> None:
        """Raises an asynchronous event, about a QP or a CQ where its type is about one."""
        name = rule.options["type"]
        elements: list[Any] = [self.port]
        if name.startswith(("QP_", "COMM_", "SQ_", "PATH_")):
            elements = self._victims(rule, qp_num)
        elif name.startswith("CQ_"):
            elements = [cq] if cq is not None else self._queues(rule)
        elif name.startswith("SRQ_"):
            elements = list(self.port.srqs.values())
        for element in elements:
            self.port.raise_event(v.EVENTS[name], element)

    def _queues(self, rule: Rule) -> list[Any]:
        """The completion queues, in use by QPs, that an event is about: a given one, or all."""
        found = {cq.handle: cq for qp in self.port.live for cq in (qp.send_cq, qp.recv_cq) if cq is not None}
        return [cq for handle, cq in found.items() if rule.options.get("cq", handle) == handle]

    # -- agenda

    def run(self, now: int) -> None:
        """Does what is due.

        :param now: the time, ns
        """
        self._ran = max(self._ran, now)
        if self.due == 0 or now < self.due:
            return
        while self._agenda and self._agenda[0][0] <= now:
            heapq.heappop(self._agenda)[2]()
        dues = [(cq.release(now), cq) for cq in self._late]
        self._late = [cq for due, cq in dues if due >= 0]
        times = [due for due, _ in dues if due >= 0] + [entry[0] for entry in self._agenda[:1]]
        self.due = max(min(times), 1) if times else 0
        if self.due == 0 and self.port.plan is self:
            self._install()

    def _schedule(self, time: int, act: Callable[[], None]) -> None:
        heapq.heappush(self._agenda, (time, next(self._turn), act))
        self.port.plan = self
        self._note_due(time)

    def _soon(self, act: Callable[[], None]) -> None:
        self._schedule(self._now(), act)

    def _now(self) -> int:
        """The latest time that is known, ns."""
        return max(int(self.port.now), self._ran)

    def _note_due(self, time: int) -> None:
        """Something is to be done at a time; whoever sleeps may sleep too long."""
        if self.due == 0 or time < self.due:
            self.due = max(time, 1)
            if self.port.sleepers:
                self.port.wake()

    def _doom(self, qp_num: int, reason: str, fatal: bool) -> None:
        """From now on nothing of this QP succeeds; soon it goes to ERR."""
        if qp_num in self._doomed:
            return
        self._doomed[qp_num] = reason
        self._soon(lambda: self._end(qp_num, fatal))

    def _end(self, qp_num: int, fatal: bool) -> None:
        reason = self._doomed.pop(qp_num)
        for qp in list(self.port.live):
            if qp.qp_num == qp_num and qp.state not in _DEAD:
                if fatal:
                    qp.fatal(reason)
                else:
                    qp.enter_error("an earlier work request of this queue pair completed in error")

    def _hit(self, rule: Rule, event: str, count: int) -> None:
        self.note(Hit(self.port.now, rule, event, count, f"fault {rule}: {event}, {count}"))


class Removed:
    """What the core asks once the device was removed: nothing can be posted, and nothing else happens."""

    due = 0

    def __init__(self, reason: str) -> None:
        """
        :param reason: why it was removed
        """
        self._reason = reason

    def on_post(self, queue: Any, wr: Any, verb: str) -> None:
        """Raises PyverbsRDMAError (EIO)."""
        raise PyverbsRDMAError(self._reason, errno.EIO)

    def on_poll(self, cq: Any) -> None:
        """What is there can be polled; the core refuses the rest."""

    def on_retire(self, wr_id: int, status: int, opcode: int, qp_num: int) -> None:
        """As it is."""

    def on_completion(self, cq: Any, wr_id: int, status: int, opcode: int, qp_num: int) -> int:
        """At once."""
        return 0

    def on_counter(self, counter: Any) -> None:
        """Nothing."""

    def on_packet(self, qp: Any) -> None:
        """Nothing."""

    def on_sent(self, count: int) -> None:
        """Nothing."""

    def run(self, now: int) -> None:
        """Nothing."""


def _facts(wr_id: int, opcode: int, qp_num: int) -> dict[str, Any]:
    return {"wr_id": wr_id, "qp": qp_num, "opcode": _WC_NAMES.get(opcode)}


def _next_after(first: int, step: int, passed: int) -> int:
    """The first of ``first``, ``first + step``, ... that lies behind ``passed``, however many do not."""
    return first if first > passed else first + ((passed - first) // step + 1) * step


def _go_on(counter: Any) -> None:
    if not counter.closed:
        counter.stall(False)
