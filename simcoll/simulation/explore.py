"""Tries many schedules of a simulated program, and finds the smallest one that fails.

The default order comes first; then random orders with few preemptions, which suffice for most concurrency bugs
(Musuvathi and Qadeer, PLDI 2007), alternate with random orders with any number of them. A failing schedule is shrunk by
removing decisions as long as it fails in the same way (Zeller and Hildebrandt, TSE 2002).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

import networkx as nx

from simcoll.backends.engine.outcome import Outcome
from simcoll.backends.engine.schedules import Choices, InOrder, Random, ReplayedSchedule, schedule_of
from simcoll.backends.simulated import simulate
from simcoll.backends.simulated.object_calls import ObjectComm
from simcoll.core.executors import Spread
from simcoll.errors import ConfigurationError

T = TypeVar("T")

_FEW = (1, 2, 3)
"""The numbers of preemptions of the bounded schedules, in turn."""

_SHRINKING = 500
"""At most so many runs shrink a failing schedule."""

_TASKS = 4
"""A round has about so many tasks for each that an executor runs at a time."""


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
    spread: Spread | None = None,
) -> Exploration[T]:
    """Run ``program(comm)`` under so many ``schedules``; the arguments are those of :func:`simcoll.simulate`.

    A schedule fails if a rank does, or if a finding has severity error. ``progress`` is called with the number
    tried. ``timeout`` is that of each run. With ``spread`` the workers of an executor try the schedules, and what is
    found is the same. Raises :class:`~simcoll.errors.ConfigurationError` for invalid arguments.
    """
    run = _ProgramRun(program, world_size, topology, sends, timeout)
    return explore_runs(run, schedules, seed, progress, spread)


@dataclass(frozen=True, slots=True)
class _ProgramRun(Generic[T]):
    """Runs a program once; a value, so that it can be sent to a worker."""

    program: Callable[[ObjectComm], T]
    world_size: int
    topology: nx.DiGraph[Any] | None
    sends: str
    timeout: float | None

    def __call__(self, choices: Choices) -> Outcome[T]:
        return simulate(
            self.program, self.world_size, self.topology, choices=choices, sends=self.sends, timeout=self.timeout
        )


def explore_runs(
    run: Callable[[Choices], Outcome[T]],
    schedules: int,
    seed: int = 0,
    progress: Callable[[int], None] | None = None,
    spread: Spread | None = None,
) -> Exploration[T]:
    """Run a program under so many schedules by ``run``; the other arguments are those of :func:`explore`."""
    if schedules < 1:
        raise ConfigurationError(f"explore tries at least 1 schedule, got {schedules}")
    tried, failed, horizon, best = 0, 0, 1, None
    for numbers in _rounds(schedules):
        trial, longest = _Trial(run, seed, horizon), horizon
        for one in _here(trial, numbers) if spread is None else _elsewhere(trial, numbers, spread):
            tried, failed, longest = tried + 1, failed + one.failed, max(longest, one.decisions)
            if one.failed and (best is None or one.size < best.size):
                best = one
            if progress is not None:
                progress(tried)
        horizon = longest
    if best is None:
        return Exploration(schedules, 0, None)
    return Exploration(schedules, failed, _shrunk(run, best.outcome or _replayed(run, best)))


@dataclass(frozen=True, slots=True)
class _Tried(Generic[T]):
    """How the run of one schedule ended; ``outcome`` is None where it failed elsewhere, or did not fail."""

    number: int
    failed: bool
    schedule: str
    decisions: int
    outcome: Outcome[T] | None = None

    @property
    def size(self) -> tuple[int, int, int]:
        """By which the smallest failure is chosen: decisions that differ, all decisions, the first schedule."""
        return len(schedule_of(self.schedule)), self.decisions, self.number


@dataclass(frozen=True, slots=True)
class _Trial(Generic[T]):
    """Runs numbered schedules; ``horizon`` is the number of decisions among which preemptions are drawn."""

    run: Callable[[Choices], Outcome[T]]
    seed: int
    horizon: int

    def of(self, number: int) -> _Tried[T]:
        """Try one schedule."""
        outcome = self.run(_choices(self.seed, number, self.horizon))
        failed = not outcome.ok
        return _Tried(number, failed, outcome.schedule, outcome.decisions, outcome if failed else None)

    def without_outcomes(self, numbers: Sequence[int]) -> list[_Tried[T]]:
        """Try schedules on a worker: what a program returns or raises stays there."""
        return [replace(self.of(number), outcome=None) for number in numbers]


def _rounds(schedules: int) -> Iterator[range]:
    """The numbers of the schedules in rounds that grow: a round is planned by what those before it have shown."""
    begin, end = 0, 1
    while begin < schedules:
        yield range(begin, min(end, schedules))
        begin, end = end, 2 * end


def _here(trial: _Trial[T], numbers: range) -> Iterator[_Tried[T]]:
    return map(trial.of, numbers)


def _elsewhere(trial: _Trial[T], numbers: range, spread: Spread) -> Iterator[_Tried[T]]:
    count = max(1, len(numbers) // (_TASKS * spread.at_once()))
    chunks = (numbers[begin : begin + count] for begin in range(0, len(numbers), count))
    for _, found in spread.results(trial.without_outcomes, chunks):
        yield from found


def _replayed(run: Callable[[Choices], Outcome[T]], tried: _Tried[T]) -> Outcome[T]:
    outcome = run(ReplayedSchedule(schedule_of(tried.schedule)))
    if outcome.ok:
        raise ConfigurationError(
            f"schedule {tried.schedule!r:.200} failed on a worker and does not fail here: the program depends on more "
            "than the order of its ranks"
        )
    return outcome


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
