"""Two sequences of tokens: which calls belong together, and at what cost."""

from __future__ import annotations

from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simcoll.verifier.agreement import alignment
from simcoll.verifier.agreement.alignment import UNKNOWN, Ints, align, align_all
from tests.support.native import parts

LETTERS = np.array([[k, k, k, k] for k in range(26)], np.int64)
"""Every token another call from another line."""


def tokens(text: str) -> Ints:
    return np.array([UNKNOWN if letter == "?" else ord(letter) - 97 for letter in text], np.int64)


@pytest.mark.parametrize(
    ("reference", "other", "partner", "reached"),
    [
        ("abcde", "abcde", [0, 1, 2, 3, 4], 5),
        ("abcde", "abde", [0, 1, 3, 4], 5),
        ("abcde", "abxcde", [0, 1, -1, 2, 3, 4], 5),
        ("abcde", "abxde", [0, 1, 2, 3, 4], 5),
        ("abcde", "abc", [0, 1, 2], 3),
        ("abc", "abcde", [0, 1, 2, 3, 4], 3),
        ("abcd", "abcx", [0, 1, 2, 3], 4),
        ("aaaaz", "aaaz", [0, 1, 2, 4], 5),
        ("aaaa", "aaxa", [0, 1, 2, 3], 4),
        ("abc", "", [], 0),
        ("", "abc", [0, 1, 2], 0),
        ("a", "xyz", [0, 1, 2], 1),
        ("abcde", "a?de", [0, 2, 3, 4], 5),
        ("abcabcabc", "abcabc", [0, 1, 2, 3, 4, 5], 6),
    ],
)
def test_what_belongs_together(reference: str, other: str, partner: list[int], reached: int) -> None:
    path = align(LETTERS, tokens(reference), tokens(other))
    assert (path.partner.tolist(), path.reached) == (partner, reached)


def test_lines_decide_where_calls_leave_a_choice() -> None:
    features = np.array([[0, 0, 0, line] for line in range(3)] + [[1, 1, 1, 3]], np.int64)
    path = align(features, np.array([0, 1, 2, 0, 1, 2, 3]), np.array([0, 1, 2, 0, 2, 3]))
    assert path.partner.tolist() == [0, 1, 2, 3, 5, 6]


def test_calls_that_agree_belong_together_from_whatever_lines() -> None:
    features = np.array([[k // 2, k // 2, 0, k] for k in range(6)], np.int64)
    path = align(features, np.array([0, 2, 4] * 5), np.array([1, 3, 5] * 5))
    assert path.partner.tolist() == list(range(15))


@given(st.text("abcd", max_size=40), st.text("abcd", max_size=40))
def test_a_path_is_in_order_and_complete(reference: str, other: str) -> None:
    path = align(LETTERS, tokens(reference), tokens(other))
    paired = [partner for partner in path.partner.tolist() if partner >= 0]
    assert paired == sorted(set(paired))
    assert 0 <= path.reached <= len(reference)
    assert len(path.partner) == len(other)
    beyond = [partner for partner in paired if partner >= path.reached]
    assert not beyond or path.reached == len(reference)


@pytest.mark.parametrize("table", [1 << 20, 0], ids=["of-kinds", "of-calls"])
@pytest.mark.parametrize("narrow", [1, 32])
@given(st.text("abcd", max_size=12), st.text("abcd", max_size=12))
def test_the_cost_is_the_least(narrow: int, table: int, reference: str, other: str) -> None:
    """A path is as cheap as the best of all paths, by the plain recursion, however narrow the first band is."""
    with mock.patch.multiple(alignment, _TIGHT=min(narrow, 2), _NARROW=narrow, _TABLE=table):
        path = align(LETTERS, tokens(reference), tokens(other))
    assert _cost(reference, other, path.partner.tolist()) == pytest.approx(_least(reference, other))


@settings(max_examples=40)
@given(
    st.booleans(),
    st.sampled_from([2, 4, 32]),
    st.lists(st.tuples(*(st.integers(0, 2),) * 4), min_size=6, max_size=6),
    st.lists(st.integers(-1, 5), max_size=20),
    st.lists(st.lists(st.integers(-1, 5), max_size=20), min_size=1, max_size=3),
)
def test_compiled_bands_give_the_paths_of_those_in_python(
    by_line: bool, narrow: int, kinds: list[tuple[int, ...]], reference: list[int], others: list[list[int]]
) -> None:
    """Also where several paths cost the same; and the first, tight band gives what a wider one gives."""
    features, first = np.array(kinds, np.int64), np.array(reference, np.int64)
    asked = [np.array(other, np.int64) for other in others]
    found = []
    for kind, tight in (("compiled", 1), ("python", 1), ("compiled", narrow)):
        with parts(kind), mock.patch.multiple(alignment, _TIGHT=tight, _NARROW=narrow):
            paths = align_all(features, first, asked, by_line=by_line)
        found.append([(path.partner.tolist(), path.reached) for path in paths])
    assert found[0] == found[1] == found[2]


def _cost(reference: str, other: str, partner: list[int]) -> float:
    cost, place, j, gap = 0.0, 0, 0, ""
    while j < len(other) and partner[j] < len(reference):
        if partner[j] < 0:
            cost, gap, j = cost + (4 if gap == "+" else 5.5), "+", j + 1
        elif partner[j] > place:
            cost, gap, place = cost + (4 if gap == "-" else 5.5), "-", place + 1
        else:
            cost += 0 if reference[place] == other[j] else 5
            place, j, gap = place + 1, j + 1, ""
    return cost + 3.5 * (len(reference) - place + len(other) - j)


def _least(reference: str, other: str) -> float:
    n, m = len(reference), len(other)
    best = {(0, 0, ""): 0.0}
    for i in range(n + 1):
        for j in range(m + 1):
            if i and j:
                cost = 0 if reference[i - 1] == other[j - 1] else 5
                best[i, j, ""] = cost + min(best.get((i - 1, j - 1, gap), 1e9) for gap in ("", "+", "-"))
            if i:
                best[i, j, "-"] = min(
                    best.get((i - 1, j, gap), 1e9) + (4 if gap == "-" else 5.5) for gap in ("", "+", "-")
                )
            if j:
                best[i, j, "+"] = min(
                    best.get((i, j - 1, gap), 1e9) + (4 if gap == "+" else 5.5) for gap in ("", "+", "-")
                )
    return min(cost + 3.5 * (n - i + m - j) for (i, j, _), cost in best.items() if i == n or j == m)


def test_a_call_skipped_in_every_step() -> None:
    path = align(LETTERS, tokens("abc" * 300), tokens("ac" * 300))
    assert path.reached == 900
    assert set(range(900)) - set(path.partner.tolist()) == set(range(1, 900, 3))


@pytest.mark.slow
def test_calls_that_differ_throughout_are_paired_place_by_place() -> None:
    """Every call states something else; one is skipped: no wider band than the first is needed."""
    features = np.array([[k, k, 0, 0] for k in range(40_000)], np.int64)
    reference, other = np.arange(20_000), np.delete(np.arange(20_000, 40_000), 9_000)
    path = align(features, reference, other)
    assert path.partner.tolist() == list(range(19_999))
    with mock.patch.object(alignment, "_banded", side_effect=AssertionError):
        same = align(features, reference, np.arange(20_000, 40_000))
    assert same.partner.tolist() == list(range(20_000))


@pytest.mark.parametrize("together", [1, 1 << 26], ids=["alone", "together"])
@pytest.mark.parametrize("table", [1 << 20, 0], ids=["of-kinds", "of-calls"])
@given(st.text("abcd", max_size=20), st.lists(st.text("abcd?", max_size=20), max_size=5), st.booleans())
def test_sequences_are_aligned_together_as_each_alone(
    together: int, table: int, reference: str, others: list[str], by_line: bool
) -> None:
    made = [tokens(other) for other in others]
    with mock.patch.multiple(alignment, _NARROW=2, _TABLE=table, _WINDOW=8, _TOGETHER=together):
        paths = align_all(LETTERS, tokens(reference), made, by_line=by_line)
        alone = [align(LETTERS, tokens(reference), one, by_line=by_line) for one in made]
    for path, other in zip(paths, alone, strict=True):
        assert (path.partner.tolist(), path.reached) == (other.partner.tolist(), other.reached)


def test_sequences_that_lack_another_call_each_are_looked_at_together() -> None:
    reference = np.resize(tokens("abcdefgh"), 200)
    with mock.patch.object(alignment, "_banded", wraps=alignment._banded) as banded:
        paths = align_all(LETTERS, reference, [np.delete(reference, 5 * rank) for rank in range(30)])
    assert [sorted({*range(200)} - {*path.partner.tolist()}) for path in paths] == [[5 * rank] for rank in range(30)]
    assert banded.call_count == 1


@pytest.mark.slow
def test_long_sequences_are_aligned_window_by_window() -> None:
    random = np.random.default_rng(7)
    reference = random.integers(1, 26, 60_000).cumsum() % 26
    lacking = [100, 9_000, 30_000, 59_000]
    with mock.patch.object(alignment, "_banded", wraps=alignment._banded) as banded:
        path = align(LETTERS, reference, np.delete(reference, lacking))
    assert sorted(set(range(60_000)) - set(path.partner.tolist())) == lacking
    # A table of all pairs would have 60,000 places a call.
    looked_at = [(one, band) for (pairs, band, _), _ in banded.call_args_list for one in pairs]
    assert sum(len(one.reference) * (2 * band + 1) for one, band in looked_at) < 60_000 * 100
