"""Gloo's overlay on memory: what is named as wrong is what Gloo gets wrong, for every way in which a tensor may lie."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")
import torch.distributed as dist  # noqa: E402

pytestmark = [pytest.mark.slow, pytest.mark.gloo]

SHAPE = (2, 2, 2, 2)


def dense(values: Any) -> Any:
    return values.clone()


def spread(values: Any) -> Any:
    """With gaps of one element between the rows."""
    room = torch.full((2, 2, 2, 4), -1.0)
    room[..., :2] = values
    return room[..., :2]


def last(values: Any) -> Any:
    return values.to(memory_format=torch.channels_last)


WAYS: dict[str, Callable[[Any], Any]] = {"dense": dense, "spread": spread, "last": last}


def part(rank: int, place: int = 0) -> Any:
    return torch.arange(16.0).reshape(SHAPE) + 100 * rank + 1000 * place


def all_reduce(rank: int, given: Any, taken: Any) -> list[Any]:
    tensor = given(part(rank))
    dist.all_reduce(tensor)
    return [tensor]


def reduce(rank: int, given: Any, taken: Any) -> list[Any]:
    tensor = given(part(rank))
    dist.reduce(tensor, 0)
    return [tensor] if rank == 0 else []


def broadcast(rank: int, given: Any, taken: Any) -> list[Any]:
    tensor = given(part(rank))
    dist.broadcast(tensor, 0)
    return [tensor]


def all_gather(rank: int, given: Any, taken: Any) -> list[Any]:
    outputs = [taken(torch.zeros(SHAPE)) for _ in range(2)]
    dist.all_gather(outputs, given(part(rank)))
    return outputs


def gather(rank: int, given: Any, taken: Any) -> list[Any]:
    outputs = [taken(torch.zeros(SHAPE)) for _ in range(2)] if rank == 0 else None
    dist.gather(given(part(rank)), outputs, 0)
    return outputs or []


def scatter(rank: int, given: Any, taken: Any) -> list[Any]:
    output = taken(torch.zeros(SHAPE))
    dist.scatter(output, [given(part(place)) for place in range(2)] if rank == 0 else None, 0)
    return [output]


def reduce_scatter(rank: int, given: Any, taken: Any) -> list[Any]:
    output = taken(torch.zeros(SHAPE))
    dist.reduce_scatter(output, [given(part(rank, place)) for place in range(2)])
    return [output]


def all_to_all(rank: int, given: Any, taken: Any) -> list[Any]:
    outputs = [taken(torch.zeros(SHAPE)) for _ in range(2)]
    dist.all_to_all(outputs, [given(part(rank, place)) for place in range(2)])
    return outputs


def all_to_all_single(rank: int, given: Any, taken: Any) -> list[Any]:
    output = taken(torch.zeros(SHAPE))
    dist.all_to_all_single(output, given(part(rank)))
    return [output]


CALLS = (all_reduce, reduce, broadcast, all_gather, gather, scatter, reduce_scatter, all_to_all, all_to_all_single)


def results(rank: int) -> dict[str, object]:
    """Of each call in each way: whether the result is that of dense tensors, or the exception."""
    found: dict[str, object] = {}
    for call in CALLS:
        right = call(rank, dense, dense)
        for given, first in WAYS.items():
            for taken, second in WAYS.items():
                try:
                    got = call(rank, first, second)
                except (RuntimeError, ValueError) as error:
                    outcome: object = type(error).__name__
                else:
                    outcome = all(map(torch.equal, got, right))
                found[f"{call.__name__} {given} {taken}"] = outcome
    return found


def test_detail_stops_exactly_what_gloo_gets_wrong(ranks: Any) -> None:
    plain, proved = ranks(results, mode=None), ranks(results, mode="detail")
    wrong = {name for one in plain for name, outcome in one.items() if outcome is False}
    assert {"all_reduce spread dense", "reduce_scatter last dense", "scatter dense spread"} <= wrong
    for before, after in zip(plain, proved, strict=True):
        assert after == {name: "CollectiveMismatchError" if name in wrong else how for name, how in before.items()}


def test_outputs_of_one_memory_are_named_and_parts_of_one_buffer_are_not(ranks: Any) -> None:
    def program(rank: int) -> list[object]:
        buffer, given = torch.zeros(8), torch.ones(4)
        halves, shifted = list(buffer.chunk(2)), [buffer[:4], buffer[3:7]]
        return [
            ranks.error_of(lambda: dist.all_gather(halves, given)),
            ranks.error_of(lambda: dist.all_gather(list(torch.zeros(4, 2).unbind(1)), given)),
            ranks.error_of(lambda: dist.all_to_all(halves, halves)),
            *(type(ranks.error_of(lambda one=one: dist.all_gather(one, given))) for one in ([given] * 2, shifted)),
            type(ranks.error_of(lambda: dist.all_to_all_single(buffer.copy_(torch.arange(8.0)), buffer))),
        ]

    for seen in ranks(program):
        assert seen[:3] == [None] * 3
        assert [kind.__name__ for kind in seen[3:]] == ["CollectiveMismatchError"] * 3  # type: ignore[attr-defined]


def test_in_record_the_call_goes_on_and_is_noted_with_its_line(ranks: Any) -> None:
    def program(rank: int) -> object:
        table = torch.zeros(4, 2)
        for _ in range(3):
            dist.all_reduce(table[:, 0] if rank else torch.zeros(4))
        return None

    ranks(program, mode="record")
    noted = [[event.data for event in ranks.box(rank).events if event.kind == "unsound"] for rank in range(2)]
    assert noted[0] == []
    assert [(one["rule"], one["sequence"], one["count"]) for one in noted[1]] == [("SC601", 1, 1), ("SC601", 2, 2)]
    assert noted[1][0]["source"][0] == __file__
    assert "strides [2] has gaps in memory" in noted[1][0]["reason"]
