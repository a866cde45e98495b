"""SC905 by the events of ranks: which ranks, from which step; groups that excuse them; damaged events."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from simcoll.blackbox.memory_box import MemoryBox
from simcoll.core.record import UNKNOWN_SOURCE, Group, State
from simcoll.core.steps import StepNumber
from simcoll.spec.call import Call
from simcoll.verifier.findings.finding import Finding
from simcoll.verifier.values.batches import same_data

RANKS = 4
WORLD = Group("0", "default_pg", (0, 1, 2, 3))
Digest = Callable[[int, int], int]


def found(digest: Digest, groups: Sequence[Group] = (WORLD,), steps: int = 5, **damage: object) -> list[Finding]:
    """The findings on ranks whose batches have these digests, by rank and step."""
    traces = []
    for rank in range(RANKS):
        box = MemoryBox(rank, RANKS, "record")
        for group in groups:
            if rank in group.ranks:
                box.group(group)
        known = {"index": 0, "by": "FSDP", "ranks": [*range(RANKS)], "groups": ["0"], "ordinal": 1}
        mine = {name: value for name, value in damage.items() if rank == 0}
        box.event("inputs", **(known | {name: value for name, value in mine.items() if name in known}))
        for number in range(steps):
            batch = {"inputs": 0, "number": number, "hash": digest(rank, number), "data": digest(rank, number)}
            box.event("batch", **(batch | {name: value for name, value in mine.items() if name in batch}))
        traces.append(box.trace())
    return same_data(traces)


def by_step(rank: int, number: int) -> int:
    return number


def by_pair(rank: int, number: int) -> int:
    return 10 * (rank // 2) + number


def test_all_ranks_or_some() -> None:
    [finding] = found(by_step)
    assert (finding.code, finding.culprits, finding.group) == ("SC905", (), WORLD)
    [finding] = found(lambda rank, number: number if rank in (1, 3) else 10 * rank + 20 + number)
    assert finding.culprits == (1, 3)
    [finding] = found(lambda rank, number: number if number > 1 else 10 * rank + number)
    assert "from step 3 on: in 3 of 5 steps" in finding.message
    assert finding.step == StepNumber(3, exact=True)


@pytest.mark.parametrize(
    "digest",
    [
        lambda rank, number: 0,
        lambda rank, number: number % 2,
        lambda rank, number: 10 * rank + number,
        lambda rank, number: number if number % 3 else 10 * rank,
    ],
)
def test_batches_that_stay_or_differ(digest: Digest) -> None:
    assert found(digest) == []


@pytest.mark.parametrize(("steps", "count"), [(7, 1), (8, 0)])
def test_more_than_half_of_the_batches_are_shared(steps: int, count: int) -> None:
    assert len(found(lambda rank, number: number if number < 4 else 100 * number + rank, steps=steps)) == count


PAIRS = [(0, 1), (2, 3)]


@pytest.mark.parametrize("name", ["mesh_cp", "mesh_tp", "mesh_inner", "undefined"])
def test_peers_of_a_smaller_group_are_excused(name: str) -> None:
    assert found(by_pair, [WORLD, *(Group(f"{name}{pair}", name, pair) for pair in PAIRS)]) == []


@pytest.mark.parametrize("name", ["mesh_dp_shard", "mesh_replicate", "mesh_data"])
def test_dimensions_of_data_excuse_nobody(name: str) -> None:
    [finding] = found(by_pair, [WORLD, *(Group(f"{name}{pair}", name, pair) for pair in PAIRS)])
    assert finding.message.startswith("ranks 0-1 give")
    assert finding.message.endswith("; so do ranks 2-3 among themselves")


def test_a_group_of_all_ranks_excuses_them_only_by_its_name() -> None:
    assert found(by_step, [WORLD, Group("9", "mesh_cp", WORLD.ranks)]) == []
    for name in ("mesh_replicate", "mesh_default", "undefined"):
        assert found(by_step, [WORLD, Group("9", name, WORLD.ranks)])


@pytest.mark.parametrize(
    "damage", [{"ranks": "0-3"}, {"index": None}, {"ranks": [1, 2]}, {"hash": "x"}, {"data": None}]
)
def test_a_rank_with_damaged_events_is_left_out(damage: dict[str, object]) -> None:
    [finding] = found(by_step, **damage)
    assert finding.culprits == (1, 2, 3)


@pytest.mark.parametrize(("sampled", "steps", "count"), [(True, 12, 0), (True, 8, 1), (False, 12, 1)])
def test_one_row_of_a_sample_says_nothing_of_many_steps_after_it(sampled: bool, steps: int, count: int) -> None:
    """Ranks share the first four batches, a calibration; the sample looks at no others, while the job goes on."""
    traces = []
    for rank in range(RANKS):
        box = MemoryBox(rank, RANKS, "record")
        index, call = box.group(WORLD), box.signature(Call("all_reduce", "allreduce", reduce_op="sum"))
        box.event("inputs", index=0, by="FSDP", ranks=[*range(RANKS)], groups=["0"], ordinal=1, sampled=sampled)
        for number in range(4):
            box.event("batch", inputs=0, number=number, hash=number, data=number)
            box.event("trained", inputs=0, number=number, calls=[[2 * number, 2 * number + 2]])
        for sequence in range(1, 2 * steps + 1):
            box.write(index, sequence, call, box.source(UNKNOWN_SOURCE), 0, State.COMPLETED, 0)
        traces.append(box.trace())
    assert len(same_data(traces)) == count
