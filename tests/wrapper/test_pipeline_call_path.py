"""How much Python one all_reduce runs in each mode: a count of calls, which no busy machine changes."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

import pytest

pytest.importorskip("torch")
import torch.distributed as dist

from simcoll.core.native import PARTS, native
from simcoll.recorder.source import forget_chains
from tests.support.calls import ones

WARM_UP = 5
CALLS = 20
MOST = {
    ("record", False): (2, 29),
    ("check", False): (3, 37),
    ("detail", False): (7, 58),
    ("record", True): (4, 65),
    ("check", True): (5, 70),
}
"""Python functions of simcoll, those that dataclasses generate included, that one call may run on a rank, and the wait
for it where it is asynchronous: with the compiled parts, and without."""
LATE = 12
"""As many more may run in ``detail`` on a rank whose peer does not come at once."""


def counted(asynchronous: bool) -> list[int]:
    """How many functions of simcoll each of some calls in steady state runs."""
    # The tests that ran before in this process are other programs.
    forget_chains()
    tensor, counts = ones(1), []
    count = 0

    def note(frame: FrameType, event: str, _argument: object) -> None:
        nonlocal count
        count += event == "call" and str(frame.f_globals.get("__name__")).startswith("simcoll.")

    for _ in range(WARM_UP + CALLS):
        count = 0
        # From the first call on: Python stands at other instructions where it is watched.
        sys.setprofile(note)
        # One line for all: what is written down once a line belongs to the first call.
        work = dist.all_reduce(tensor, async_op=asynchronous)
        if work is not None:
            work.wait()
            del work
        sys.setprofile(None)
        counts.append(count)
    return counts[WARM_UP:]


@pytest.mark.slow
@pytest.mark.gloo
@pytest.mark.parametrize(("mode", "asynchronous"), MOST)
def test_a_call_in_steady_state_runs_few_functions(ranks: Any, mode: str, asynchronous: bool) -> None:
    compiled = all(native(part) is not None for part in PARTS)
    most = MOST[mode, asynchronous][not compiled]
    for counts in ranks(lambda rank: counted(asynchronous), mode=mode):
        assert 1 < min(counts) <= most, counts
        assert max(counts) <= most + LATE * (mode == "detail"), counts
