"""Tries many schedules of a simulated program, and finds the smallest one that fails.

The default order comes first; then, in turn, random orders with few preemptions, which most bugs of concurrency need no
more of (Musuvathi and Qadeer, PLDI 2007), and random orders with as many as they like. What fails is made smaller by
leaving decisions out for as long as it fails in the same way (Zeller and Hildebrandt, TSE 2002).
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
"""How many preemptions the bounded schedules have, in turn."""

_SHRINKING = 500
"""At most so many runs make a failing schedule smaller."""


@dataclass(frozen=True, slots=True)
class Exploration(Generic[T]):
    """What exploring found: how many schedules were tried, how many failed, and the smallest failing one's outcome."""

    tried: int
    failed: int
    failing: Outcome[T] | None

    @property
    def schedule(self) -> str | None:
        """What :func:`~simcoll.simulate` replays the failure from; empty for the default order, None for none."""
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

    A schedule fails where a rank does, or where a finding has severity error. ``progress`` is told how many were tried.
    ``timeout`` is that of each run.
    Raises :class:`~simcoll.errors.ConfigurationError` for arguments that cannot be.
    """

    def run(choices: Choices) -> Outcome[T]:
        return simulate(program, world_size, topology, choices=choices, sends=sends, timeout=timeout)

    return explore_runs(run, schedules, seed, progress)


def explore_runs(
    run: Callable[[Choices], Outcome[T]], schedules: int, seed: int = 0, progress: Callable[[int], None] | None = None
) -> Exploration[T]:
    """Run a program under so many schedules, whatever runs it; the arguments are as :func:`explore` has them."""
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
    """Leave out larger parts of the schedule first, then smaller ones, until no single decision can be spared."""
    smallest, way = failing, _way(failing)
    runs, pieces = 0, 2
    while (decisions := sorted(schedule_of(smallest.schedule).items())) and runs < _SHRINKING:
        pieces = min(pieces, len(decisions))
        for part in _parts(decisions, pieces):
            runs += 1
            tried = run(ReplayedSchedule(dict(one for one in decisions if one not in part)))
            if not tried.ok and _way(tried) == way and _size(tried) < _size(smallest):
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


def _way(outcome: Outcome[Any]) -> object:
    """How a run failed."""
    if outcome.findings:
        return outcome.findings[0].code
    return sorted({type(error).__name__ for error in outcome.exceptions.values()})
