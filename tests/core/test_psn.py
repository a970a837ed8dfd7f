# SPDX-License-Identifier: MIT
"""PSN arithmetic against a model that counts without a modulus."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from softverbs.core.wire import psn

SPACE = 1 << 24
HALF = 1 << 23
psns = st.one_of(st.integers(0, SPACE - 1), st.sampled_from([0, 1, HALF - 1, HALF, HALF + 1, SPACE - 2, SPACE - 1]))


@pytest.mark.parametrize(
    ("a", "b", "distance"),
    [
        (0, 0, 0),
        (1, 0, 1),
        (0, 1, -1),
        (0, SPACE - 1, 1),
        (SPACE - 1, 0, -1),
        (HALF - 1, 0, HALF - 1),
        (HALF, 0, -HALF),
        (0, HALF, -HALF),
        (0, HALF + 1, HALF - 1),
        (SPACE - 1, HALF - 1, -HALF),
    ],
)
def test_diff_at_the_edges(a, b, distance):
    assert psn.diff(a, b) == distance


def test_next_wraps():
    assert psn.next(0) == 1
    assert psn.next(SPACE - 2) == SPACE - 1
    assert psn.next(SPACE - 1) == 0


@given(psns, st.integers(-(1 << 31), (1 << 31) - 1))
def test_add_is_addition_modulo_the_space(start, n):
    assert psn.add(start, n) == (start + n) % SPACE


@given(psns, st.integers(-HALF, HALF - 1))
def test_diff_undoes_add(start, n):
    assert psn.diff(psn.add(start, n), start) == n


@given(psns, psns)
def test_diff_is_the_shorter_way_round(a, b):
    distance = psn.diff(a, b)
    assert -HALF <= distance < HALF
    assert psn.add(b, distance) == a
    if distance != -HALF:
        assert psn.diff(b, a) == -distance


@given(psns)
def test_next_is_one_further(a):
    assert psn.next(a) == psn.add(a, 1)
    assert psn.diff(psn.next(a), a) == 1


@given(st.integers(0, 1 << 40), st.integers(0, HALF - 1), st.integers(0, HALF - 1))
def test_order_of_close_counts_is_kept(base, i, j):
    a, b = (base + i) % SPACE, (base + j) % SPACE
    assert (psn.diff(a, b) > 0) == (i > j)
    assert psn.diff(a, b) == i - j
