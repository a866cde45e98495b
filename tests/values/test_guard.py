"""Errors of the checks of values stay inside them: the program trains on, and no check is made from then on."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch")
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from simcoll.testing import UncheckedWarning, run_ranks, try_ranks
from simcoll.values import tensors
from simcoll.wrapper import batches, random_states, replicas


def train(rank: int) -> float:
    torch.manual_seed(rank)
    model = DistributedDataParallel(nn.Linear(6, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(4):
        optimizer.zero_grad()
        model(torch.rand(4, 6)).square().mean().backward()
        optimizer.step()
    flag = torch.ones(1)
    dist.all_reduce(flag)
    return float(flag)


def broken(*args: Any, **kwargs: Any) -> Any:
    raise KeyError("a check that is wrong")


@pytest.mark.parametrize(
    ("place", "name"),
    [
        (tensors, "side_digest"),
        (replicas, "calls_made"),
        (replicas, "dtensor"),
        (replicas, "_broadcasts_buffers"),
        (batches, "random_state"),
        (batches, "_items"),
    ],
)
def test_training_goes_on(place: Any, name: str, monkeypatch: pytest.MonkeyPatch, capfd: Any) -> None:
    monkeypatch.setattr(place, name, broken)
    outcome = try_ranks(2, train, backend="threaded", values="all")
    assert not outcome.exceptions
    assert outcome.results == {0: 2.0, 1: 2.0}
    assert not outcome.report.findings
    told = [event for trace in outcome.traces for event in trace.events if event.kind == "unchecked"]
    assert [event.data["type"] for event in told] == ["KeyError", "KeyError"]
    [note] = outcome.report.notes
    assert note.startswith("values were not checked to the end on ranks 0-1: ")
    assert "a check that is wrong" in note
    assert ("this collective and " in note) == (place is tensors)
    assert capfd.readouterr().err.count("values are not checked any more on this rank") == 2


def test_run_ranks_warns_of_checks_that_were_not_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensors, "side_digest", broken)
    with pytest.warns(UncheckedWarning, match=r"this collective and 2 later ones, .*a check that is wrong"):
        run_ranks(2, lambda: [dist.all_reduce(torch.ones(1)) for _ in range(3)], backend="threaded", values="all")


def test_a_generator_is_left_alone_while_a_graph_is_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    """To read the state of a device's generator during a capture ends the capture with an error."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", broken)
    assert random_states.random_state() is None
