# SPDX-License-Identifier: MIT
"""The grammar of a plan of faults: what it takes, what it gives back, and what it says about the rest."""

import errno

import pytest
from hypothesis import given
from hypothesis import strategies as st

from softverbs.core.base.errors import PyverbsUserError
from softverbs.faults import VERBS, Plan, Rule
from softverbs.faults import values as v
from softverbs.faults.rules import _KINDS, kind_of
from softverbs.faults.verbs import HOT

# -- texts and what they mean


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("", ""),
        (" , ;\n", ""),
        ("seed=1,drop=0.05", "seed=1,drop=0.05"),
        ("create_cq", "create_cq"),
        ("ibv_create_cq:nth=3:errno=ENOMEM", "create_cq:nth=3:errno=ENOMEM"),
        ("create_cq:errno=12:nth=3", "create_cq:nth=3:errno=ENOMEM"),
        (" create_cq : nth = 3 ; create_qp:every=2 ", "create_cq:nth=3,create_qp:every=2"),
        ("create_cq:nth=3\n# words, more words; and more\ncreate_qp # and here", "create_cq:nth=3,create_qp"),
        ("reg_mr:above=1048576", "reg_mr:above=1MiB"),
        ("reg_mr:above=1M:below=1.5g", "reg_mr:above=1MiB:below=1536MiB"),
        ("reg_mr:above=1MB", "reg_mr:above=1000000"),
        ("modify_qp:to=IBV_QPS_RTS", "modify_qp:to=RTS"),
        ("modify_qp:to=rts:qp=17", "modify_qp:qp=0x11:to=RTS"),
        ("create_qp:type=4", "create_qp:type=UD"),
        ("post_send:opcode=IBV_WR_RDMA_WRITE:wr_id=0x10", "post_send:wr_id=16:opcode=RDMA_WRITE"),
        ("create_*:p=0.1", "create_*:p=0.1"),
        ("port_down:after=1000", "port_down:after=1000 packets"),
        ("port_down:after=1 packet:for=5000us", "port_down:after=1 packets:for=5ms"),
        ("port_down:after=5ms:every=1s:times=3", "port_down:after=5ms:every=1s:times=3"),
        ("qp_error:qp=ANY:after=20 completions", "qp_error:qp=any:after=20 completions"),
        ("qp_error:qp=0x11:after=2posts", "qp_error:qp=0x11:after=2 posts"),
        ("counter_stall:after=20:for=5ms", "counter_stall:after=20 updates:for=5ms"),
        ("completion:delay=2ms:wr_id=7", "completion:wr_id=7:delay=2ms"),
        ("completion:fail=IBV_WC_REM_ACCESS_ERR", "completion:fail=REM_ACCESS_ERR"),
        ("event:type=IBV_EVENT_GID_CHANGE", "event:type=GID_CHANGE"),
        ("drop:opcode=rc_ack*:nth=2", "drop:opcode=RC_ACK*:nth=2"),
        ("delay:by=2ms:every=3:direction=send", "delay:direction=send:every=3:by=2ms"),
        ("delay=2ms,direction=send", "delay=2000000,direction=send"),
    ],
)
def test_a_plan_and_its_text(text: str, canonical: str) -> None:
    plan = Plan(text)
    assert str(plan) == canonical.replace("1 packets", "1 packet")
    assert str(Plan(str(plan))) == str(plan)
    assert Plan(str(plan)).rules == plan.rules


def test_rules_of_python() -> None:
    assert Rule("create_cq", nth=3, errno=errno.ENOMEM) == Rule.parse("create_cq:nth=3:errno=ENOMEM")
    assert Rule("reg_mr", above=1 << 20) == Rule("reg_mr", above="1MiB")
    assert Rule("port_down", for_="5ms", after="3 packets") == Rule.parse("port_down:after=3:for=5ms")
    assert Rule("drop", from_=3, times=2) == Rule.parse("drop:from=3:times=2")
    assert len({Rule("create_cq"), Rule("create_cq"), Rule("create_qp")}) == 2
    assert Rule("create_cq") != "create_cq"
    assert eval(repr(Rule("create_cq", nth=3))) == Rule("create_cq", nth=3)


def test_plans_of_rules_and_texts() -> None:
    plan = Plan(Rule("create_cq", nth=1), "drop=0.5,reg_mr", seed=7)
    assert (plan.seed, plan.settings) == (7, {"drop": 0.5, "seed": 7})
    assert [str(rule) for rule in plan.rules] == ["create_cq:nth=1", "reg_mr"]
    assert Plan("seed=3").seed == 3
    assert Plan().seed == 0
    assert repr(Plan("create_cq")) == "Plan('create_cq')"


# -- what is wrong is named


@pytest.mark.parametrize(
    ("item", "words"),
    [
        ("creat_cq:nth=3", "there is no fault 'creat_cq'; did you mean create_cq?"),
        ("zzz_*", "there is no fault 'zzz_*'; docs/faults.md has the list"),
        ("create_cq:nth", "option=value is expected, not 'nth'"),
        ("create_cq:nht=3", "there is no option of create_cq 'nht'; did you mean nth?"),
        ("create_cq:zzz=3", "there is no option of create_cq 'zzz'; known are above, below, nth, every, "),
        ("create_cq:nth=0", "nth is a number, from 1, not '0'"),
        ("create_cq:nth=-1", "nth is a number, from 1, not '-1'"),
        ("create_cq:nth=three", "nth is a number, from 1, not 'three'"),
        ("create_cq:nth=", "nth is a number, from 1, not ''"),
        ("create_cq:nth=18446744073709551616", "nth is a number"),
        ("create_cq:p=1.5", "p is a probability, 0 to 1, not '1.5'"),
        ("create_cq:p=nan", "p is a probability, 0 to 1, not 'nan'"),
        ("create_cq:errno=EFOO", "errno is an errno such as ENOMEM, not 'EFOO'"),
        ("create_cq:errno=0", "errno is an errno such as ENOMEM, not '0'"),
        ("create_cq:errno=errorcode", "errno is an errno such as ENOMEM"),
        ("create_cq:nth=3:nth=4", "nth is there twice"),
        ("create_cq:nth=3:times=2", "nth says which one: times has no meaning beside it"),
        ("create_cq=3", "create_cq is no setting but a rule: create_cq:nth=1, for instance"),
        ("create_*:above=3", "there is no option of create_* 'above'"),
        ("reg_mr:above=lots", "above is a size such as 4096 or 1MiB, not 'lots'"),
        ("reg_mr:above=0.3", "above is a size"),
        ("modify_qp:to=FOO", "to is a state: RESET, INIT, RTR, RTS, SQD, SQE, ERR, not 'FOO'"),
        ("create_qp:type=77", "type is a type: "),
        ("completion:nth=3", "delay= or fail= is needed"),
        ("completion:delay=1ms:fail=REM_OP_ERR", "delay= or fail=, not both"),
        ("completion:fail=SUCCESS", "fail is a status: "),
        ("event:after=3", "type= is needed"),
        ("event:type=FOO", "type is the type of an event: CQ_ERR, "),
        ("delay:nth=3", "by= is needed"),
        ("port_down:after=10 pints", "after is a number of packets or completions or posts, or a time such as 5ms"),
        ("port_down:after=5 updates", "after is a number of packets or completions or posts"),
        ("port_down:after=", "after is a number of packets or completions or posts, or a time"),
        ("port_down:every=0", "every 0 packets is without end"),
        ("port_down:times=2", "times needs every, or it happens once"),
        ("port_down:after=5ms:every=3 packets", "after and every count different things"),
        ("port_down:for=ever", "for is a time such as 500us or 2ms, not 'ever'"),
        ("qp_error:qp=some", "qp is any, all or the number of a QP, not 'some'"),
        ("drop:opcode=NAK", "opcode is the name of a packet such as RC_ACKNOWLEDGE or RC_SEND_*, not 'NAK'"),
        ("drop:direction=up", "direction is both, send or receive, not 'up'"),
        (":nth=3", "there is no fault ''"),
        ("drop=2", "drop is a probability, 0 to 1, not '2'"),
        ("gravity=1", "there is no fault 'gravity'; known are seed, drop"),
        ("drop=0.1:nth=3", "with more to say it is a rule: drop:p=0.1:nth=3"),
    ],
)
def test_what_is_wrong_is_named(item: str, words: str) -> None:
    with pytest.raises(PyverbsUserError) as caught:
        Plan(f"seed=1,create_qp:nth=1,{item}")
    assert str(caught.value).startswith(f"faults: {item!r}: ")
    assert words in str(caught.value)


def test_one_rule_is_one_rule() -> None:
    plan = Plan()
    for text, words in (("create_cq,create_qp", "not 2"), ("", "not 0"), ("drop=0.5", "when the device is opened")):
        with pytest.raises(PyverbsUserError, match=words):
            plan.add(text)
    with pytest.raises(PyverbsUserError, match="a rule begins with a name alone"):
        Rule.parse("drop=0.5:nth=1")
    rule = plan.add("create_cq")
    with pytest.raises(PyverbsUserError, match="in the plan already"):
        plan.add(rule)
    with pytest.raises(PyverbsUserError, match="no such rule"):
        plan.remove("create_qp")
    assert plan.remove("create_cq") is rule
    assert plan.rules == ()


# -- every plan can be written down and read again

SAMPLES = {
    v.COUNT: st.integers(1, 2**64 - 1),
    v.NUMBER: st.integers(0, 2**64 - 1),
    v.QP_NUMBER: st.integers(0, 2**24 - 1),
    v.ANY_QP: st.one_of(st.sampled_from(["any", "all"]), st.integers(0, 2**24 - 1)),
    v.PROBABILITY: st.floats(0, 1),
    v.SIZE: st.one_of(st.integers(0, 2**64 - 1), st.integers(0, 1000).map(lambda n: f"{n}KiB")),
    v.TIME: st.one_of(st.integers(0, 10**15), st.integers(0, 1000).map(lambda n: f"{n}us")),
    v.ERRNO: st.sampled_from(sorted(errno.errorcode)),
    v.FRAMES: st.sampled_from(["RC_ACKNOWLEDGE", "*", "RC_SEND_*", "UD_*"]),
    v.EVENT: st.sampled_from(sorted(v.EVENTS)),
    v.STATUS: st.sampled_from(sorted(v.STATUSES)),
    v.WC_OPCODE: st.sampled_from(sorted(v.WC_OPCODES)),
    v.WR_OPCODE: st.sampled_from(sorted(v.WR_OPCODES)),
    v.STATE: st.sampled_from(sorted(v.STATES)),
    v.QP_TYPE: st.sampled_from(sorted(v.QP_TYPES)),
    v.DIRECTION: st.sampled_from(["send", "receive", "both"]),
}
AMOUNTS = st.tuples(st.integers(1, 10**6), st.sampled_from([" packets", "posts", " completions", "ms", "ns", ""]))


@st.composite
def rules(draw: st.DrawFn) -> Rule:
    name = draw(st.sampled_from([*VERBS, *_KINDS, "create_*", "*"]))
    kind = kind_of(name)
    assert kind is not None
    keys = draw(st.lists(st.sampled_from(list(kind.options)), unique=True))
    given_options = {}
    for key in dict.fromkeys([*kind.needs[:1], *keys]):
        value = kind.options[key]
        if value in SAMPLES:
            given_options[key] = draw(SAMPLES[value])
        else:
            number, unit = draw(AMOUNTS)
            given_options[key] = f"{number}{unit if name != 'counter_stall' else ''}"
    for key in kind.needs[1:]:
        given_options.pop(key, None)
    if "nth" in given_options or kind.family == "trigger":
        for key in ("every", "from", "times"):
            given_options.pop(key, None)
    return Rule(name, **given_options)


@given(st.lists(rules(), max_size=5), st.integers(0, 2**32))
def test_a_plan_survives_being_written_down(items: list[Rule], seed: int) -> None:
    plan = Plan(*items, seed=seed)
    again = Plan(str(plan))
    assert again.rules == plan.rules == tuple(items)
    assert [rule.options for rule in again.rules] == [rule.options for rule in items]
    assert (again.seed, str(again)) == (seed, str(plan))


@given(st.text())
def test_no_text_does_anything_but_parse_or_be_refused(text: str) -> None:
    try:
        plan = Plan(text)
    except PyverbsUserError as error:
        words = str(error)
    else:
        words = "faults: "
        assert Plan(str(plan)).rules == plan.rules
    assert words.startswith("faults: ")


# -- which events a rule chooses


def chosen(text: str, count: int = 12, seed: int = 0) -> list[int]:
    rule = Rule.parse(text)
    rule.begin(seed, 1)
    struck = [number for number in range(1, count + 1) if rule.struck({})]
    assert (rule.seen, rule.hits) == (count, len(struck))
    return struck


@pytest.mark.parametrize(
    ("options", "numbers"),
    [
        ("", list(range(1, 13))),
        (":nth=3", [3]),
        (":every=5", [5, 10]),
        (":from=10", [10, 11, 12]),
        (":from=2:every=4", [2, 6, 10]),
        (":times=2", [1, 2]),
        (":from=4:times=2", [4, 5]),
        (":every=3:times=2", [3, 6]),
        (":p=0", []),
        (":p=1:nth=7", [7]),
    ],
)
def test_which_calls_are_chosen(options: str, numbers: list[int]) -> None:
    assert chosen(f"create_cq{options}") == numbers


def test_chance_comes_from_the_seed_and_the_rule() -> None:
    first = chosen("create_cq:p=0.3", 1000, 1)
    assert 240 < len(first) < 360
    assert chosen("create_cq:p=0.3", 1000, 1) == first
    assert chosen("create_cq:p=0.3", 1000, 2) != first
    assert chosen("create_qp:p=0.3", 1000, 1) != first


def test_conditions() -> None:
    above = Rule("reg_mr", above="1K", below="1M")
    assert [above.matches({"size": size}) for size in (1024, 1025, 2**20 - 1, 2**20)] == [False, True, True, False]
    assert not above.matches({}), "what nobody knows is no match"
    modify = Rule("modify_qp", to="RTS", qp=17)
    assert modify.matches({"to": "RTS", "qp": 17})
    assert not modify.matches({"to": "RTS", "qp": 18})
    assert not modify.matches({"to": "RTR", "qp": 17})


def test_every_verb_has_a_rule() -> None:
    assert set(HOT) <= set(VERBS)
    for name in VERBS:
        assert Rule(name).verbs == [name]
    assert set(Rule("create_cq*").verbs) == {"create_cq", "create_cq_ex"}
    assert Rule("drop").verbs == []
