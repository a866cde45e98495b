"""The model that a rank gives to DistributedDataParallel: written down, proved, and otherwise left alone."""

from __future__ import annotations

import warnings
from typing import Any

import pytest

torch = pytest.importorskip("torch")
import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

from simcoll.errors import CollectiveMismatchError  # noqa: E402

pytestmark = [pytest.mark.slow, pytest.mark.gloo]


def stated(ranks: Any, rank: int) -> list[dict[str, Any]]:
    return [event.data for event in ranks.box(rank).events if event.kind == "parameters"]


def test_a_model_is_written_down_once_and_then_by_its_digest(ranks: Any) -> None:
    def program(rank: int) -> object:
        for _ in range(2):
            DistributedDataParallel(nn.Linear(2, 3))(torch.ones(1, 2)).sum().backward()
        return None

    ranks(program)
    first, second = stated(ranks, 1)
    assert first["parameters"] == [["weight", "float32", [3, 2], True], ["bias", "float32", [3], True]]
    assert first["source"][0] == __file__
    assert (second["digest"], "parameters" in second) == (first["digest"], False)


def test_what_is_excluded_or_not_synchronised_is_not_stated(ranks: Any) -> None:
    def program(rank: int) -> object:
        model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2 + rank))
        excluded: Any = ["1.weight", "1.bias"]
        model._ddp_params_and_buffers_to_ignore = excluded
        DistributedDataParallel(model)
        DistributedDataParallel(nn.Linear(2, 2), init_sync=False)
        return None

    ranks(program)
    [event] = stated(ranks, 0)
    assert [name for name, *_ in event["parameters"]] == ["0.weight", "0.bias"]


def test_detail_raises_on_every_rank_before_torch_looks(ranks: Any) -> None:
    def program(rank: int) -> object:
        error = ranks.error_of(lambda: DistributedDataParallel(nn.Linear(2, 3 + (rank == 1))))
        assert isinstance(error, CollectiveMismatchError)
        dist.barrier()
        [finding] = error.findings
        return finding.code, finding.culprits, finding.message, finding.sequence

    message = "weight is float32[4, 2] on rank 1, float32[3, 2] on the others; bias is float32[4] on rank 1, float32[3]"
    assert ranks(program, 3) == [("SC504", (1,), f"{message} on the others", 1)] * 3


def test_another_call_in_its_place_is_named_as_such(ranks: Any) -> None:
    def program(rank: int) -> object:
        if rank == 1:
            return type(ranks.error_of(dist.barrier)).__name__
        error = ranks.error_of(lambda: DistributedDataParallel(nn.Linear(2, 3)))
        return [finding.code for finding in getattr(error, "findings", ())]

    assert ranks(program) == [["SC101"], "CollectiveMismatchError"]


def test_warnings_of_the_constructor_keep_their_place(ranks: Any) -> None:
    def program(rank: int) -> object:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            DistributedDataParallel(nn.Linear(2, 2), check_reduction=True, broadcast_buffers=False)
        return [warning.filename for warning in caught if warning.category is FutureWarning]

    for files in ranks(program):
        assert all("simcoll/" not in file.replace(__file__, "") for file in files)


def test_without_simcoll_torch_is_as_it_was(ranks: Any) -> None:
    def program(rank: int) -> object:
        from torch.nn.parallel import distributed

        import simcoll

        recorded = distributed._verify_param_shape_across_processes
        simcoll.disable()
        return recorded is not distributed._verify_param_shape_across_processes

    assert ranks(program) == [True] * 2
