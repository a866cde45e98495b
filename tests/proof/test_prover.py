"""The proof of one call: who is told what, what is harmless, and what a peer may send."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from simcoll.core.record import Group, Source
from simcoll.errors import CollectiveMismatchError, MissingRankError
from simcoll.spec.call import MalformedCallError

torch = pytest.importorskip("torch")

from simcoll.proof.prover import Prover, record_of  # noqa: E402
from simcoll.proof.store import PolledStore, StoreConnection  # noqa: E402
from simcoll.recorder.arguments import arguments  # noqa: E402
from simcoll.recorder.recorder import GroupLog, Recorder  # noqa: E402

SECONDS = timedelta(seconds=10)


def prover(ranks: Any, rank: int, size: int, calls: list[Callable[[], Any]], timeout: timedelta = SECONDS) -> list[Any]:
    """What proving these calls in turn raises, on this rank of a group of its own."""
    group = Group("7", "half", tuple(range(10, 10 + size)))
    log = GroupLog(Recorder(ranks.boxes, "detail", rank, size), group, rank)
    store = StoreConnection(ranks.store(f"proof {ranks.boxes}"))
    proof = Prover(group, rank, PolledStore(store), lambda: timeout)
    told = []
    for call in calls:
        entry = log.begin(call(), Source("train.py", 10 + rank, "step", "dist.all_reduce(x)"))
        told.append(ranks.error_of(lambda entry=entry: proof.prove(entry, None)))
    proof.close()
    return told


def reduced(*shape: int) -> Callable[[], Any]:
    return lambda: arguments("allreduce", ([torch.ones(*shape)],), {})


def sent_from(root: int, *shape: int) -> Callable[[], Any]:
    return lambda: arguments("broadcast", (torch.ones(*shape), root), {})


@pytest.mark.slow
@pytest.mark.gloo
@pytest.mark.parametrize("size", [2, 3, 5])
def test_every_rank_is_told_of_every_side_with_global_ranks(ranks: Any, size: int) -> None:
    calls = [reduced(4), reduced(4), reduced(4)]

    def program(rank: int) -> object:
        return prover(ranks, rank, size, [calls[0], reduced(4 + (rank == 1)), calls[2]])

    for rank, (before, error, after) in enumerate(ranks(program, size, mode=None, backend=None)):
        assert before is after is None
        assert type(error) is CollectiveMismatchError
        [finding] = error.findings
        assert (finding.code, finding.sequence) == ("SC102", 2)
        assert finding.culprits == ((11,) if size > 2 else ())
        assert {source.source.line for side in finding.sides for source in side.sources} >= {11}
        assert f"Rank {10 + rank} is running collective" in str(error)


@pytest.mark.slow
@pytest.mark.gloo
def test_a_flattened_view_counts_as_the_same_until_something_else_differs(ranks: Any) -> None:
    def program(rank: int) -> object:
        mine = (2, 3) if rank else (6,)
        calls = [sent_from(0, *mine)] * 3 + [sent_from(rank, *mine), sent_from(0, *mine), sent_from(0, 7 - rank)]
        return [type(error) for error in prover(ranks, rank, 2, calls)]

    told = [type(None)] * 3 + [CollectiveMismatchError, type(None), CollectiveMismatchError]
    assert ranks(program, mode=None, backend=None) == [told, told]


@pytest.mark.slow
@pytest.mark.gloo
def test_a_rank_that_does_not_come_is_named_by_its_global_rank(ranks: Any) -> None:
    def program(rank: int) -> object:
        return prover(ranks, rank, 3, [reduced(1)] * (1 + (rank != 1)), timedelta(seconds=5))

    first, absent, third = ranks(program, 3, mode=None, backend=None)
    assert absent == [None]
    for told in (first, third):
        assert told[0] is None
        assert type(told[1]) is MissingRankError
        assert told[1].absent == (11,)


@pytest.mark.parametrize("document", [None, [], "text", 3])
def test_a_peer_that_sends_no_call_is_refused(document: object) -> None:
    with pytest.raises(MalformedCallError, match="a peer sent"):
        record_of(Group("0", "", (0, 1)), document)
