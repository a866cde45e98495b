"""What the program holds is looked at within bounds."""

from __future__ import annotations

import sys
import weakref
from types import FrameType

import pytest

torch = pytest.importorskip("torch")

from simcoll.core.record import UNKNOWN_SOURCE  # noqa: E402
from simcoll.recorder.source import Site  # noqa: E402
from simcoll.wrapper import later_names  # noqa: E402


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


def test_a_look_keeps_no_variable_of_the_program_alive_and_takes_none_from_it() -> None:
    def looks() -> bool:
        x = torch.ones(2)
        gone = weakref.ref(x)
        later_names.named_later(Site(UNKNOWN_SOURCE, by_torch=False, of_model=False), [gone])
        del x
        return gone() is None

    def has_asked() -> list[str]:
        x = torch.ones(2)
        known = locals()
        later_names.named_later(Site(UNKNOWN_SOURCE, by_torch=False, of_model=False), [weakref.ref(x)])
        return sorted(known)

    assert looks()
    assert has_asked()[-1] == "x"
