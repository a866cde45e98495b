"""What the program holds is looked at within bounds."""

from __future__ import annotations

import sys
from types import FrameType

import pytest

pytest.importorskip("torch")

from simcoll.wrapper import later_names


def test_a_list_that_grows_while_it_is_looked_at_is_looked_at_once() -> None:
    seen: list[object] = [None]

    def note(frame: FrameType, event: str, _: object) -> None:
        seen.append(event)
        if len(seen) > 10_000:
            sys.setprofile(None)

    sys.setprofile(note)
    try:
        found = later_names._is_or_holds(seen, {0})
    finally:
        sys.setprofile(None)
    assert not found
    assert len(seen) < 100
