"""SC904 by the events of ranks: which boundary, which tensor, which ranks; damaged events are passed over."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from simcoll.blackbox.memory_box import MemoryBox
from simcoll.core.steps import StepNumber
from simcoll.values.folding import folded
from simcoll.verifier.findings.finding import Finding
from simcoll.verifier.values.replicas import drifted_replicas

NAMES = ["layer.weight", "layer.bias", "head.weight"]


def described(**other: object) -> dict[str, object]:
    known: dict[str, object] = {"index": 0, "by": "DistributedDataParallel", "group": "0", "ranks": [0, 1, 2]}
    more: dict[str, object] = {"ordinal": 1, "tensors": "parameters", "form": "f", "count": 3, "names": NAMES}
    return known | more | other


def state(at: int, digests: list[int], **other: object) -> dict[str, object]:
    whole, parts = folded(np.array(digests, np.int64))
    known: dict[str, object] = {"replicas": 0, "at": at, "steps": at, "settings": {}, "hash": whole, "parts": parts}
    return known | other


def found(write: Callable[[int, MemoryBox], None], ranks: int = 3) -> list[Finding]:
    traces = []
    for rank in range(ranks):
        box = MemoryBox(rank, ranks, "record")
        write(rank, box)
        traces.append(box.trace())
    return [one for _, _, one in drifted_replicas(traces, [])]


def test_the_first_boundary_and_tensor_and_the_minority() -> None:
    def write(rank: int, box: MemoryBox) -> None:
        box.event("replicas", **described())
        for at in range(4):
            box.event("state", **state(at, [at, 7 + (rank == 2 and at > 1), 9 + (rank == 2 and at > 0)]))

    [finding] = found(write)
    assert (finding.code, finding.culprits, finding.ranks) == ("SC904", (2,), (0, 1, 2))
    assert finding.message == (
        "parameter head.weight is not equal on ranks 0-2 after step 1; before the first step all were equal; "
        "rank 2 differs from the 2 others"
    )


def test_ranks_are_compared_at_the_same_place_only() -> None:
    def write(rank: int, box: MemoryBox) -> None:
        box.event("replicas", **described())
        for at in range(rank, 9, 3):
            box.event("state", **state(at, [rank, rank, rank]))

    assert found(write) == []


@pytest.mark.parametrize(("later", "culprits"), [(True, (1,)), (False, ())])
def test_a_rank_that_looked_later_tells_who_differs(later: bool, culprits: tuple[int, ...]) -> None:
    def write(rank: int, box: MemoryBox) -> None:
        box.event("replicas", **described())
        for at in (3, 5) if rank < 2 else (5,) * later:
            box.event("state", **state(at, [7, 8 + (rank == 1), 9]))

    [finding] = found(write)
    assert (finding.culprits, finding.ranks) == (culprits, (0, 1))
    assert "after step 3" in finding.message
    assert finding.step == StepNumber(3, exact=True)


def test_a_rank_that_has_left_out_a_step() -> None:
    """Its look after the step before comes where the others look after the next one."""

    def write(rank: int, box: MemoryBox) -> None:
        box.event("replicas", **described())
        for step in (0, 1, 2, 3):
            if rank != 0 or step != 2:
                made = step - (rank == 0 and step > 2)
                box.event("state", **state(step, [made, 8, 9], steps=made))

    [finding] = found(write)
    assert finding.culprits == (0,)
    assert finding.message == (
        "parameter layer.weight is not equal on ranks 0-2 after step 3; after step 1 all were equal; rank 0 differs "
        "from the 2 others; their optimizers have made unequal numbers of steps: 2 on rank 0, 3 on ranks 1-2"
    )


def test_other_tensors_are_not_compared() -> None:
    def write(rank: int, box: MemoryBox) -> None:
        box.event("replicas", **described(form=f"{rank}"))
        box.event("state", **state(0, [rank, rank, rank]))

    assert found(write) == []


def test_a_state_that_differs_at_once_with_the_parameters_is_theirs() -> None:
    def write(rank: int, box: MemoryBox) -> None:
        box.event("replicas", **described())
        box.event("replicas", **described(index=1, tensors="optimizer state"))
        for place in (1, 0):
            box.event("state", **state(1, [1, 1, rank], replicas=place, settings={"lr": 0.1 * (rank + 1)}))

    [finding] = found(write)
    assert finding.message.startswith("parameter head.weight is not equal on ranks 0-2 after step 1, when")
    assert "lr is 0.1 on rank 0, 0.2 on rank 1, 0.30000000000000004 on rank 2" in finding.message
    assert finding.culprits == ()


def test_of_many_tensors_the_part_is_named() -> None:
    names = [f"layers.{place}" for place in range(1000)]

    def write(rank: int, box: MemoryBox) -> None:
        box.event("replicas", **described(count=1000, names=names))
        box.event("state", **state(0, [place + (rank == 0 and place > 500) for place in range(1000)]))

    [finding] = found(write)
    assert finding.message.startswith(
        "one of the parameters from layers.500 to layers.502 and more of 1,000 are not equal"
    )
    assert finding.culprits == (0,)


@pytest.mark.parametrize(
    "damage",
    [
        {"ranks": "0-2"},
        {"ranks": [0, "1"]},
        {"count": -1},
        {"index": "0"},
        {"ranks": [1, 2, 3]},
    ],
)
def test_damaged_descriptions_are_passed_over(damage: dict[str, object]) -> None:
    def write(rank: int, box: MemoryBox) -> None:
        box.event("replicas", **described(**(damage if rank == 0 else {})))
        box.event("state", **state(0, [rank == 0, 1, 1]))

    assert found(write) == []


@pytest.mark.parametrize("damage", [{"hash": None}, {"at": "0"}, {"replicas": 3}])
def test_damaged_states_are_passed_over(damage: dict[str, object]) -> None:
    def write(rank: int, box: MemoryBox) -> None:
        box.event("replicas", **described())
        box.event("state", **(state(0, [rank == 0, 1, 1]) | (damage if rank == 0 else {})))

    assert found(write) == []


def test_without_names_or_parts_the_set_is_named() -> None:
    def write(rank: int, box: MemoryBox) -> None:
        box.event("replicas", **described(names=["x"]))
        box.event("state", **state(0, [rank, 1, 1], parts=5, settings=[]))

    [finding] = found(write)
    assert finding.message == "the parameters (3 tensors) are not equal on ranks 0-2 before the first step"
