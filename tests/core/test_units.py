"""Sizes as people write them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simcoll.core.units import SizeError, counted, parse_range, parse_size, show_size


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0", 0),
        ("4096", 4096),
        ("1KiB", 1024),
        ("1kb", 1000),
        ("100MB", 100_000_000),
        ("1GiB", 1 << 30),
        ("1.5 GiB", 3 << 29),
        ("2G", 2 << 30),
        ("8B", 8),
    ],
)
def test_a_size(text, size):
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "-1", "1.0001KiB", "1XB", "GiB", "1e9", "0x10", "nan", "1 2", "1" * 40, "\u0661"])
def test_what_is_no_size(text):
    with pytest.raises(SizeError):
        parse_size(text)


def test_a_range():
    assert parse_range("1KiB:8KiB") == [1024, 2048, 4096, 8192]
    assert parse_range("1KiB:9KiB", 4) == [1024, 4096]
    assert parse_range("3") == [3]


@pytest.mark.parametrize("text", ["0:4", "8:4", "1:", ":4", "1:2:3"])
def test_what_is_no_range(text):
    with pytest.raises(SizeError):
        parse_range(text)


@given(st.integers(0, 1 << 50))
def test_what_is_shown_is_read(size):
    assert parse_size(show_size(size).replace(",", "")) == size


@pytest.mark.parametrize(
    ("count", "noun", "text"),
    [(1, "rank", "1 rank"), (0, "rank", "0 ranks"), (4096, "rank", "4,096 ranks"), (2, "switch", "2 switches")],
)
def test_a_count(count, noun, text):
    assert counted(count, noun) == text
