"""Source lines as JSON: old lists of four read, callers are bounded, and what is malformed costs itself alone."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from simcoll.core.record import FRAME_LIMIT, UNKNOWN_SOURCE, Source, frames_from, source_document, source_from

LINE = Source("train.py", 7, "step", "mean(loss)")
FRAMES = tuple(Source("train.py", number, f"f{number}", "g()") for number in range(1, 12))


def test_a_line_and_its_innermost_callers_come_back() -> None:
    document = json.loads(json.dumps(source_document(replace(LINE, callers=FRAMES))))
    assert source_from(document) == LINE
    assert source_from(document).callers == FRAMES[:8]


def test_a_line_without_callers_is_written_as_before() -> None:
    assert source_document(LINE) == ["train.py", 7, "step", "mean(loss)"]
    assert source_from(["train.py", 7, "step", "mean(loss)"]).callers == ()


@pytest.mark.parametrize(
    "value", [None, [], "train.py", ["f", 1, "g"], ["f", True, "g", ""], [1, 1, "g", ""], [[]] * 6]
)
def test_what_is_no_line_is_unknown(value: object) -> None:
    assert source_from(value) is UNKNOWN_SOURCE


@pytest.mark.parametrize("bad", [None, 7, "x", [], ["f", "1", "g", ""], ["f", 1, 2, ""], {"file": "f"}])
def test_frames_end_at_the_first_that_is_malformed(bad: object) -> None:
    good = ["f", 1, "g", "h()"]
    assert frames_from([good, bad, good]) == (Source("f", 1, "g", "h()"),)
    assert source_from(["f", 1, "g", "", bad]).callers == ()


def test_frames_are_bounded_and_have_none_of_their_own() -> None:
    nested = ["f", 1, "g", "", [["f", 2, "g", ""]]]
    found = frames_from([nested] * 1000)
    assert len(found) == FRAME_LIMIT
    assert all(frame.callers == () for frame in found)
