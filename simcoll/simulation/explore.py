"""Tries many schedules of a simulated program, and finds the smallest one that fails.

The default order comes first; then random orders with few preemptions, which suffice for most concurrency bugs
(Musuvathi and Qadeer, PLDI 2007), alternate with random orders with any number of them. A failing schedule is shrunk by
removing decisions as long as it fails in the same way (Zeller and Hildebrandt, TSE 2002).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import networkx as nx

from simcoll.backends.engine.outcome import Outcome
from simcoll.backends.engine.schedules import Choices, InOrder, Random, ReplayedSchedule, schedule_of
from simcoll.backends.simulated import simulate
from simcoll.backends.simulated.object_calls import ObjectComm
from simcoll.errors import ConfigurationError

T = TypeVar("T")

_FEW = (1, 2, 3)
"""The numbers of preemptions of the bounded schedules, in turn."""

_SHRINKING = 500
"""At most so many runs shrink a failing schedule."""


@dataclass(frozen=True, slots=True)
class Exploration(Generic[T]):
    """The result of exploring: the numbers of schedules tried and failed, and the outcome of the smallest failure."""

    tried: int
    failed: int
    failing: Outcome[T] | None

    @property
    def schedule(self) -> str | None:
        """The schedule that replays the failure in :func:`~simcoll.simulate`; empty for the default order."""
        return None if self.failing is None else self.failing.schedule


def explore(
    program: Callable[[ObjectComm], T],
    world_size: int,
    schedules: int = 100,
    topology: nx.DiGraph[Any] | None = None,
    seed: int = 0,
    *,
    sends: str = "synchronous",
    progress: Callable[[int], None] | None = None,
    timeout: float | None = None,
) -> Exploration[T]:
    """Run ``program(comm)`` under so many ``schedules``; the arguments are those of :func:`simcoll.simulate`.

    A schedule fails if a rank does, or if a finding has severity error. ``progress`` is called with the number
    tried. ``timeout`` is that of each run. Raises :class:`~simcoll.errors.ConfigurationError` for invalid arguments.
    """

    def run(choices: Choices) -> Outcome[T]:
        return simulate(program, world_size, topology, choices=choices, sends=sends, timeout=timeout)

    return explore_runs(run, schedules, seed, progress)


def explore_runs(
    run: Callable[[Choices], Outcome[T]], schedules: int, seed: int = 0, progress: Callable[[int], None] | None = None
) -> Exploration[T]:
    """Run a program under so many schedules by ``run``; the other arguments are those of :func:`explore`."""
    if schedules < 1:
        raise ConfigurationError(f"explore tries at least 1 schedule, got {schedules}")
    failing: list[Outcome[T]] = []
    horizon = 1
    for number in range(schedules):
        outcome = run(_choices(seed, number, horizon))
        horizon = max(horizon, outcome.decisions)
        if not outcome.ok:
            failing.append(outcome)
        if progress is not None:
            progress(number + 1)
    if not failing:
        return Exploration(schedules, 0, None)
    return Exploration(schedules, len(failing), _shrunk(run, min(failing, key=_size)))


def _choices(seed: int, number: int, horizon: int) -> Choices:
    if number == 0:
        return InOrder()
    if number % 2:
        return Random((seed, number), preemptions=_FEW[number // 2 % len(_FEW)], horizon=horizon)
    return Random((seed, number))


def _size(outcome: Outcome[Any]) -> tuple[int, int]:
    return len(schedule_of(outcome.schedule)), outcome.decisions


def _shrunk(run: Callable[[Choices], Outcome[T]], failing: Outcome[T]) -> Outcome[T]:
    """Remove larger parts of the schedule first, then smaller ones, until every decision is needed."""
    smallest, failure = failing, _failure(failing)
    runs, pieces = 0, 2
    while (decisions := sorted(schedule_of(smallest.schedule).items())) and runs < _SHRINKING:
        pieces = min(pieces, len(decisions))
        for part in _parts(decisions, pieces):
            runs += 1
            tried = run(ReplayedSchedule(dict(one for one in decisions if one not in part)))
            if not tried.ok and _failure(tried) == failure and _size(tried) < _size(smallest):
                smallest, pieces = tried, max(pieces - 1, 2)
                break
        else:
            if pieces == len(decisions):
                break
            pieces = min(2 * pieces, len(decisions))
    return smallest


def _parts(decisions: list[tuple[int, int]], pieces: int) -> Iterable[list[tuple[int, int]]]:
    for piece in range(pieces):
        yield decisions[piece * len(decisions) // pieces : (piece + 1) * len(decisions) // pieces]


def _failure(outcome: Outcome[Any]) -> object:
    """Returns the kind of a run's failure: its first finding's code, or else the types of its exceptions."""
    if outcome.findings:
        return outcome.findings[0].code
    return sorted({type(error).__name__ for error in outcome.exceptions.values()})
