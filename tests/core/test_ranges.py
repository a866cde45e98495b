"""Ranks in text."""

from __future__ import annotations

import pytest

from simcoll.core.ranges import parse_ranks, ranks_text, span_text, spans


@pytest.mark.parametrize(
    ("ranks", "text"),
    [
        ([], "no rank"),
        ([2], "rank 2"),
        ([0, 1], "ranks 0-1"),
        ([3, 0, 1], "ranks 0-1 and 3"),
        ([0, 2, 4, 5, 6, 9], "ranks 0, 2, 4-6 and 9"),
        ([1, 1], "rank 1"),
        ([*range(511), *range(512, 1024)], "ranks 0-510 and 512-1023"),
    ],
)
def test_ranks_read_as_ranges(ranks: list[int], text: str) -> None:
    assert ranks_text(ranks) == text


def test_many_runs_are_counted() -> None:
    assert span_text(range(0, 4096, 2)).endswith("22 and 2036 more runs")
    assert len(ranks_text(range(0, 4096, 2))) < 80


def test_spans_are_ascending_and_closed() -> None:
    assert spans([5, 3, 4, 9]) == [(3, 5), (9, 9)]


@pytest.mark.parametrize(("text", "ranks"), [("3", [3]), ("0-3,8", [0, 1, 2, 3, 8]), ("4, 1", [4, 1]), ("2-2", [2])])
def test_ranks_are_read(text, ranks):
    assert parse_ranks(text) == ranks


@pytest.mark.parametrize("text", ["", "a", "-1", "3-1", "0-", "0-99999999", "1;2", "1" * 20])
def test_what_names_no_ranks(text):
    with pytest.raises(ValueError, match="expected ranks and ranges"):
        parse_ranks(text)
