"""Errors of the checks of values stay inside them: the program trains on, and no check is made from then on."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

pytest.importorskip("torch")
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from simcoll.testing import UncheckedWarning, run_ranks, try_ranks
from simcoll.values import tensors
from simcoll.values.choice import Choice
from simcoll.values.guard import Guard
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
    assert capfd.readouterr().err.count("are not checked any more on this rank") == 2


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


class LateError(Exception):
    """The program's own time limit."""


def late(number: int, frame: object) -> None:
    raise LateError(f"signal {number}")


@pytest.fixture
def alarmed() -> Iterator[None]:
    before = signal.signal(signal.SIGALRM, late)
    yield
    signal.signal(signal.SIGALRM, before)


@pytest.mark.usefixtures("alarmed")
def test_what_a_handler_of_signals_raises_reaches_the_program(capfd: Any) -> None:
    guard = Guard(Choice("all"), lambda: None, "calls")
    with pytest.raises(LateError):
        guard.run(lambda: signal.raise_signal(signal.SIGALRM))
    assert guard.run(lambda: 1) is None
    assert "are not checked any more on this rank: " in capfd.readouterr().err


class Lazy(Mapping[str, int]):
    """What the program calculates when it is asked for."""

    def __getitem__(self, key: str) -> int:
        raise LateError

    def __iter__(self) -> Iterator[str]:
        return iter("a")

    def __len__(self) -> int:
        return 1


def test_what_the_program_would_not_have_asked_for_stays_in_the_check() -> None:
    assert Guard(Choice("all"), lambda: None, "steps").run(lambda: [*batches._items([Lazy()], 4)]) is None


@pytest.mark.parametrize(("error", "raised"), [(LateError, True), (TimeoutError, False)])
def test_what_another_thread_sets_is_told_by_its_class(error: type[Exception], raised: bool) -> None:
    """It comes up in a frame of torch's or of simcoll's, of which nobody has raised it."""
    held: dict[str, Any] = {"error": error}
    exec(compile("def check(): raise error", str(torch.__file__), "exec"), held)
    guard = Guard(Choice("all"), lambda: None, "calls")
    if raised:
        with pytest.raises(error):
            guard.run(held["check"])
    else:
        assert guard.run(held["check"]) is None


@pytest.mark.slow
@pytest.mark.gloo
@pytest.mark.parametrize("last", [False, True])
def test_a_time_limit_in_a_digest_on_real_ranks(last: bool) -> None:
    """The call that was interrupted before it began was not made; one whose result was being read was."""

    def program(rank: int) -> float:
        before, digest, sides = signal.signal(signal.SIGALRM, late), tensors.side_digest, [0]

        def interrupted(*args: Any, **kwargs: Any) -> Any:
            sides[0] += 1
            if sides[0] == (4 if last else 3):
                signal.raise_signal(signal.SIGALRM)
            return digest(*args, **kwargs)

        tensors.side_digest = interrupted
        try:
            x = torch.ones(3)
            dist.all_reduce(x)
            with pytest.raises(LateError):
                dist.all_reduce(x)
            dist.all_reduce(x)
        finally:
            tensors.side_digest = digest
            signal.signal(signal.SIGALRM, before)
        return float(x[0])

    outcome = try_ranks(2, program, backend="gloo", values="all")
    assert not outcome.exceptions
    assert outcome.results == dict.fromkeys((0, 1), 8.0 if last else 4.0)
    assert outcome.report.findings == ()
    [note] = outcome.report.notes
    assert all((trace.slots["finished_ns"] > 0).all() for trace in outcome.traces)
    assert "this collective and 1 later ones, as the program was interrupted in a check: " in note


def test_an_optimizer_that_cannot_be_a_key_ends_no_check() -> None:
    class Equal(torch.optim.SGD):
        def __eq__(self, other: object) -> bool:
            return self is other

    def program(rank: int) -> None:
        model = DistributedDataParallel(nn.Linear(6, 2))
        optimizer = Equal(model.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.rand(4, 6) + rank).square().mean().backward()
            optimizer.step()

    outcome = try_ranks(2, program, backend="threaded", values="all")
    assert not outcome.exceptions
    assert (outcome.report.findings, outcome.report.notes) == ((), ())
