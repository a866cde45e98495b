"""How much Python one synchronous all_reduce runs in each mode: a count of calls, which no busy machine changes."""

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
MOST = {"record": (3, 27), "check": (12, 35), "detail": (31, 58)}
"""Python functions of simcoll, those that dataclasses generate included, that one call may run on a rank: with the
compiled parts, and without."""


def counted() -> list[int]:
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
        dist.all_reduce(tensor)
        sys.setprofile(None)
        counts.append(count)
    return counts[WARM_UP:]


@pytest.mark.slow
@pytest.mark.gloo
@pytest.mark.parametrize("mode", MOST)
def test_a_synchronous_call_in_steady_state_runs_few_functions(ranks: Any, mode: str) -> None:
    compiled = all(native(part) is not None for part in PARTS)
    for counts in ranks(lambda rank: counted(), mode=mode):
        assert max(counts) <= MOST[mode][not compiled]
        assert min(counts) > 1
