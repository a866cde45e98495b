from __future__ import annotations

import pytest

from tests.support import seeds


@pytest.mark.parametrize(("every", "expected"), [(True, 10), (False, 3)])
def test_a_part_runs_unless_all_are_asked_for(every: bool, expected: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seeds, "ALL", every)
    assert seeds.drawn(10) == expected
