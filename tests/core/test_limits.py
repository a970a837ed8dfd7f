# SPDX-License-Identifier: MIT
"""Device options: their text form, their ranges, and the words for what is wrong."""

from dataclasses import asdict, fields
from typing import Any

import pytest

from softverbs.core.base import limits
from softverbs.core.base.errors import PyverbsUserError
from softverbs.core.base.limits import Options


def test_the_text_form_gives_what_the_names_give() -> None:
    text = " imm = efa , counter_max_value=7,counter_ops=0x21,explain=never, , window=8192,debug=yes"
    assert Options.parse(text) == Options(
        imm="efa", counter_max_value=7, counter_ops=0x21, explain="never", window=8192, debug=True
    )


@pytest.mark.parametrize("text", ["", " ", ",", " , "])
def test_an_empty_text_changes_nothing(text: str) -> None:
    assert Options.parse(text) == Options()


@pytest.mark.parametrize("name", ["purge", "debug"])
@pytest.mark.parametrize(
    ("word", "value"),
    [
        ("1", True), ("0", False), ("true", True), ("false", False), ("True", True), ("FALSE", False), ("yes", True),
        ("no", False), ("on", True), ("off", False),
    ],
)  # fmt: skip
def test_flags_in_words_and_numbers(name: str, word: str, value: bool) -> None:
    assert getattr(Options.parse(f"{name}={word}"), name) is value


@pytest.mark.parametrize("word", ["2", "", "maybe", "-1", "01"])
def test_other_words_are_no_flag(word: str) -> None:
    with pytest.raises(PyverbsUserError, match=f"option debug='{word}': True or False"):
        Options.parse(f"debug={word}")


@pytest.mark.parametrize("value", [1, 0, "true", None])
def test_a_flag_given_as_an_object_is_a_boolean(value: object) -> None:
    with pytest.raises(PyverbsUserError, match=r"option purge=.*True or False"):
        Options.from_mapping({"purge": value})


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("imm", "'imm': name=value is expected"),
        ("imm=efa,colour=red", "unknown device option 'colour'; known: .*counter_delay_ns, .*window"),
        ("colour=1", "unknown device option 'colour'"),
        ("imm=mlx", "imm='mlx': one of standard, efa"),
        ("cqe_rounding=", "cqe_rounding='': one of exact, pow2"),
        ("max_qp=many", "option max_qp='many': not a number"),
        ("max_qp=true", "option max_qp='true': not a number"),
        ("max_qp=1.5", "option max_qp='1.5': not a number"),
        ("max_qp=0", "option max_qp=0: an integer from 1 to 65520"),
    ],
)
def test_what_is_wrong_is_named(text: str, words: str) -> None:
    with pytest.raises(PyverbsUserError, match=words):
        Options.parse(text)


@pytest.mark.parametrize("name", sorted(limits._RANGES))
def test_ranges_hold_their_ends_and_no_more(name: str) -> None:
    low, high = limits._RANGES[name]
    assert getattr(Options.from_mapping({name: low}), name) == low
    assert getattr(Options.parse(f"{name}={high:#x}"), name) == high
    for value in (low - 1, high + 1, True, float(low), str(low), None):
        with pytest.raises(PyverbsUserError, match=f"option {name}=.*an integer from {low} to {high}"):
            Options.from_mapping({name: value})


@pytest.mark.parametrize("name", sorted(limits._CHOICES))
def test_choices_are_the_words_of_their_table(name: str) -> None:
    for word in limits._CHOICES[name]:
        assert getattr(Options.parse(f"{name}={word}"), name) == word
    wrong: tuple[Any, ...] = ("", "Standard", 1, None)
    for value in wrong:
        with pytest.raises(PyverbsUserError, match=f"option {name}=.*one of"):
            Options.from_mapping({name: value})


def test_every_option_is_checked() -> None:
    """An option in none of the tables would take anything."""
    known = {*limits._RANGES, *limits._CHOICES, *limits._FLAGS}
    assert {field.name for field in fields(Options)} == known
    assert Options.from_mapping(asdict(Options())) == Options()
