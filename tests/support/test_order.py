"""The order in which workers take files of tests."""

from __future__ import annotations

from pathlib import Path

from tests.support.order import LONGEST, place_of

ROOT = Path(__file__).resolve().parents[2]


def test_each_file_that_takes_long_is_there_once() -> None:
    assert [name for name in LONGEST if not (ROOT / name).is_file()] == []
    assert len(set(LONGEST)) == len(LONGEST)


def test_long_files_come_first_and_the_others_stay_as_they_are() -> None:
    tests = [
        "tests/test_a.py::test_1",
        f"{LONGEST[1]}::test_2[x::y]",
        "tests/test_b.py::test_3",
        f"{LONGEST[0]}::test_4",
    ]
    assert sorted(tests, key=place_of) == [tests[3], tests[1], tests[0], tests[2]]


def test_ci_keeps_this_order() -> None:
    text = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    assert "--dist loadfile --no-loadscope-reorder" in text
