"""SC504: which models may be trained together, and what a report says of those that may not."""

from __future__ import annotations

import pytest

from simcoll.core.record import UNKNOWN_SOURCE, Event, Group
from simcoll.core.trace import MemoryTrace
from simcoll.spec.ddp_model import ModelParameter, Parameters, claim_of, from_json, to_json
from simcoll.verifier.agreement.ddp_models import compare_models, model_mismatches, unnamed_mismatch
from simcoll.verifier.findings.finding import Finding
from tests.support.traces import trace_of

WORLD = Group("0", "default_pg", (0, 1, 2))
LAYERS = (
    ModelParameter("a", "float32", (4, 4)),
    ModelParameter("b", "float32", (4, 4)),
    ModelParameter("c", "float32", (2,)),
)


def compared(odd: Parameters, *, ranks: int = 3) -> Finding | None:
    stated = {rank: odd if rank == 1 else LAYERS for rank in range(ranks)}
    return compare_models(WORLD, stated, dict.fromkeys(stated, UNKNOWN_SOURCE))


@pytest.mark.parametrize(
    ("odd", "message"),
    [
        ((*LAYERS[:2], ModelParameter("c", "float32", (3,))), "c is float32[3] on rank 1, float32[2] on the others"),
        ((*LAYERS[:2], ModelParameter("c", "float16", (2,))), "c is float16[2] on rank 1, float32[2] on the others"),
        ((*LAYERS[:2], ModelParameter("c", "float32", (2,), False)), "c is frozen on rank 1, trained on the others"),
        (LAYERS[:2], "c float32[2] is missing on rank 1"),
        ((*LAYERS, ModelParameter("d", "int8", ())), "d int8[] is on rank 1, not on the others"),
        (
            (LAYERS[1], LAYERS[0], LAYERS[2]),
            "parameter 0 is b on rank 1, a on the others; parameter 1 is a on rank 1, b on the others",
        ),
    ],
)
def test_the_parameter_is_named(odd: Parameters, message: str) -> None:
    finding = compared(odd)
    assert finding is not None
    assert (finding.code, finding.culprits, finding.message) == ("SC504", (1,), message)
    assert [side.ranks for side in finding.sides] == [(0, 2), (1,)]


def test_two_ranks_have_no_majority() -> None:
    finding = compared(LAYERS[:2], ranks=2)
    assert finding is not None
    assert (finding.culprits, finding.message) == ((), "c float32[2] is missing on rank 1")


def test_other_names_alone_do_no_harm() -> None:
    assert compared(tuple(ModelParameter(f"module.{one.name}", one.dtype, one.shape) for one in LAYERS)) is None


def test_a_model_too_large_to_list_is_told_apart_by_its_digest() -> None:
    finding = unnamed_mismatch(WORLD, {0: "x", 1: "x", 2: "y"}, dict.fromkeys(range(3), UNKNOWN_SOURCE))
    assert finding is not None
    assert (finding.culprits, finding.unknown) == ((2,), ("parameters",))


def built(parameters: Parameters, *, listed: bool = True, at: int = 5) -> Event:
    data: dict[str, object] = {"group": "0", "digest": f"{claim_of(parameters).digest:016x}", "count": len(parameters)}
    return Event("parameters", at, data | ({"parameters": to_json(parameters)} if listed else {}))


def trace(rank: int, *events: Event) -> MemoryTrace:
    return trace_of(rank, 3, [WORLD], [], events=events)


def test_constructions_are_paired_in_order_and_lists_are_found_again() -> None:
    alike = [built(LAYERS), built(LAYERS[:1]), built(LAYERS, listed=False, at=9)]
    odd = [built(LAYERS), built(LAYERS[:1]), built(LAYERS[:2], at=8)]
    [mismatch] = model_mismatches([trace(0, *alike), trace(1, *odd), trace(2, *alike)])
    assert (mismatch.finding.culprits, mismatch.time_ns, mismatch.lasting) == ((1,), 8, True)
    assert mismatch.finding.message == "c float32[2] is missing on rank 1"
    assert model_mismatches([trace(rank, *alike) for rank in range(3)]) == []


def test_a_list_that_was_clipped_leaves_the_digest() -> None:
    clipped = Event("parameters", 5, {"group": "0", "digest": "77", "parameters": "[['a', "})
    [mismatch] = model_mismatches([trace(0, built(LAYERS)), trace(1, clipped), trace(2, built(LAYERS))])
    assert (mismatch.finding.culprits, mismatch.finding.unknown) == ((1,), ("parameters",))


def test_a_list_survives_json_and_nonsense_is_none() -> None:
    assert from_json(to_json(LAYERS)) == LAYERS
    for odd in (None, 3, [1], [["a", "float32", 3, True]], [[1, "float32", [], True]]):
        assert from_json(odd) is None
