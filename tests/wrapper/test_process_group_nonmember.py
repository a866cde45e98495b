"""Calls on groups that a rank does not belong to: noted, and dropped by torch with its own warning."""

from __future__ import annotations

import warnings
from typing import Any

import pytest

torch = pytest.importorskip("torch")
import torch.distributed as dist  # noqa: E402

pytestmark = [pytest.mark.slow, pytest.mark.gloo]


def noted(ranks: Any, rank: int) -> list[tuple[str, int]]:
    events = [event.data for event in ranks.box(rank).events if event.kind == "non_member"]
    return [(event["function"], event["count"]) for event in events]


def test_calls_are_noted_where_they_are_dropped_and_questions_are_not(ranks: Any) -> None:
    def program(rank: int) -> object:
        first = dist.new_group([0])
        answers: list[object] = [dist.get_rank(first) >= 0]
        for _ in range(5):
            dist.all_reduce(torch.ones(1), group=first)
        dist.all_gather_object([None], "object", group=first)
        if rank == 1:
            answers += [dist.isend(torch.ones(1), dst=0, group=first), dist.barrier(group=first)]
        dist.destroy_process_group(first) if rank == 0 else None
        return answers

    assert ranks(program) == [[True], [False, None, None]]
    assert noted(ranks, 0) == []
    counts = [("all_reduce", 1), ("all_reduce", 2), ("all_reduce", 4)]
    assert noted(ranks, 1) == [*counts, ("all_gather_object", 1), ("isend", 1), ("barrier", 1)]


def test_the_warning_is_torchs_own(ranks: Any) -> None:
    def program(rank: int) -> object:
        first = dist.new_group([0])
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            dist.all_reduce(torch.ones(1), group=first)
        return [(str(warning.message), warning.filename.rpartition("/")[2]) for warning in caught]

    text = "Running all_reduce on global rank 1 which does not belong to the given group."
    assert ranks(program)[1] == ranks(program, mode=None)[1] == [(text, "distributed_c10d.py")]
