"""What a simulated rank may give to a call, and what it is told where that is none of it: SC601, with the rank."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import simcoll
from simcoll.backends.simulated.object_calls import ObjectComm

ARRAY = np.zeros(4)

REFUSED: list[tuple[Callable[[ObjectComm], object], str, str]] = [
    (
        lambda comm: comm.all_reduce([1, 2]),
        "TypeError",
        r"all_reduce: expected a numpy array, got \[1, 2\] of type list",
    ),
    (lambda comm: comm.all_reduce(2.0), "TypeError", "got 2.0 of type float"),
    (lambda comm: comm.all_reduce(np.float32(2)), "TypeError", "of type float32"),
    (lambda comm: comm.all_reduce(np.array([None])), "TypeError", "expected an array of numbers, got dtype object"),
    (lambda comm: comm.all_reduce(np.array(["a"])), "TypeError", "got dtype <U1"),
    (lambda comm: comm.all_reduce(np.zeros(2, "M8[s]")), "TypeError", "got dtype datetime64"),
    (lambda comm: comm.all_reduce(np.zeros(2, [("a", "i4")])), "TypeError", "got dtype"),
    (lambda comm: comm.all_reduce(ARRAY.copy(), np.add), "TypeError", "expected a reduce op by its name"),
    (lambda comm: comm.all_reduce(ARRAY.copy(), "mean"), "RefusedCallError", "reduce op mean is unknown"),
    (lambda comm: comm.all_reduce(_read_only()), "RefusedCallError", "all_reduce: assignment destination is read-only"),
    (lambda comm: comm.all_gather_into_tensor(None, ARRAY), "TypeError", "expected a numpy array, got None"),
    (lambda comm: comm.all_gather(7, ARRAY), "TypeError", "expected a list of numpy arrays, got 7"),
    (lambda comm: comm.all_gather([np.zeros(4)], ARRAY), "RefusedCallError", "the output holds 4 elements, expected 8"),
    (lambda comm: comm.broadcast(ARRAY.copy(), "a"), "TypeError", "expected a whole number as root, got 'a'"),
    (lambda comm: comm.broadcast(ARRAY.copy(), 1.0), "TypeError", "expected a whole number as root"),
    (lambda comm: comm.broadcast(ARRAY.copy(), 7), "RefusedCallError", "root 7 is not a rank of a group of 2"),
    (lambda comm: comm.send(ARRAY, 1 - comm.rank, "t"), "TypeError", "expected a whole number as tag"),
    (lambda comm: comm.isend(ARRAY, None).wait(), "TypeError", "expected a rank as peer, got None"),
    (
        lambda comm: comm.all_to_all_single(np.zeros(2), np.zeros(2), 1, 1),
        "TypeError",
        "expected input splits as a list",
    ),
    (lambda comm: comm.all_to_all_single(np.zeros(2), np.zeros(2), (1.5, 1), [1, 1]), "TypeError", "as output splits"),
    (lambda comm: comm.call("all_the_things"), "KeyError", "all_the_things: c10d has no such method"),
]


def _read_only() -> np.ndarray[Any, Any]:
    array = np.zeros(3)
    array.flags.writeable = False
    return array


@pytest.mark.parametrize(("call", "kind", "message"), REFUSED)
def test_a_call_that_cannot_be_is_refused_on_the_rank_that_makes_it(
    call: Callable[[ObjectComm], object], kind: str, message: str
) -> None:
    outcome = simcoll.simulate(call, 2)
    assert [finding.code for finding in outcome.findings] == ["SC601"]
    refused = {rank: error for rank, error in outcome.exceptions.items() if type(error).__name__ == kind}
    assert refused
    for rank, error in refused.items():
        with pytest.raises(type(error), match=message):
            raise error
        assert f"rank {rank}: " in str(error)
    assert all(source.source.file == __file__ for side in outcome.findings[0].sides for source in side.sources)


@pytest.mark.parametrize(
    ("call", "kind", "message"),
    [
        (lambda comm: comm.new_group(0), TypeError, "rank 0: new_group of 0: give a list of ranks"),
        (lambda comm: comm.new_group([0, 9]), ValueError, "distinct ranks of the world of 2"),
        (lambda comm: comm.split("a"), TypeError, "expected a whole number as color"),
        (lambda comm: comm.compute(-1), ValueError, "rank 0: compute: expected seconds, 0 or more, got -1"),
        (lambda comm: comm.compute(float("nan")), ValueError, "got nan"),
        (lambda comm: comm.compute("x"), ValueError, "got 'x'"),
        (
            lambda comm: comm.batch_isend_irecv([("shout", ARRAY, 0, 0)]),
            ValueError,
            "rank 0: batch_isend_irecv: expected",
        ),
        (lambda comm: comm.batch_isend_irecv([("send", ARRAY, 0)]), ValueError, "expected .* got"),
    ],
)
def test_what_is_no_call_says_so_too(call: Callable[[ObjectComm], object], kind: type, message: str) -> None:
    error = simcoll.simulate(call, 2).exceptions[0]
    with pytest.raises(kind, match=message):
        raise error


def test_arrays_of_every_layout_are_fine() -> None:
    def program(comm: ObjectComm) -> list[float]:
        strided = np.arange(12.0).reshape(3, 4)[:, ::2]
        comm.all_reduce(strided)
        scalar = np.array(2.0)
        comm.all_reduce(scalar)
        swapped = np.ones(2, ">f4")
        comm.all_reduce(swapped)
        rows = np.zeros((2, 3))
        comm.all_gather(rows, _read_only())
        comm.broadcast(np.zeros(1), root=np.int64(1))
        return [float(strided.sum()), float(scalar), float(swapped.sum())]

    outcome = simcoll.simulate(program, np.int64(2))
    assert outcome.results == {rank: [60.0, 4.0, 4.0] for rank in range(2)}


@pytest.mark.parametrize("size", ["3", 2.0, True, None, 0, -1, 1_000_000])
def test_a_world_that_cannot_be_is_refused(size: Any) -> None:
    with pytest.raises(simcoll.ConfigurationError, match="a simulated world has 1 to 16384 ranks, got"):
        simcoll.simulate(lambda comm: None, size)
