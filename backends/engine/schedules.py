"""Schedules: they choose the rank of the next turn, the message that a receive takes, and the buffering of sends.

A decision chooses one of several options by number; 0 is the default. A schedule is a mapping of the decisions that
differ from the default, ``{number of the decision: option}``; an empty one is the default order.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from enum import Enum
from typing import Protocol

from simcoll.errors import ConfigurationError

SENDS = ("synchronous", "buffered", "either")
"""The times at which a send completes: when its receive is posted, as with Gloo and NCCL; at once; by the schedule."""


class Decision(Enum):
    """The kinds of decisions."""

    TURN = "turn"
    """The ready rank that runs next, when one has given up its turn."""
    PREEMPTION = "preemption"
    """The rank that goes on at a call: the caller, or another one; at a poll, 1 lets no other rank run."""
    MESSAGE = "message"
    """The sender whose message a receive from any source takes."""
    BUFFER = "buffer"
    """The kind of a send: it waits for its receive (0) or is buffered (1)."""


class Choices(Protocol):
    """Makes the decisions of one run, in order. ``preempts`` is False if it never decides on a preemption."""

    @property
    def preempts(self) -> bool:
        """True if a rank may lose its turn although it could go on."""
        ...

    def choose(self, decision: Decision, options: int) -> int:
        """Choose one of ``options`` (at least 2)."""
        ...


class InOrder:
    """The default: the rank that became ready first, the message that was sent first, no preemption."""

    preempts = False

    def choose(self, decision: Decision, options: int) -> int:
        """Choose the first."""
        return 0


class RecordedSchedule:
    """Decides as another schedule does, and records the decisions that differ from the default."""

    def __init__(self, choices: Choices) -> None:
        self._choices = choices
        self.preempts = choices.preempts
        self.made = 0
        self.deviations: dict[int, int] = {}

    def choose(self, decision: Decision, options: int) -> int:
        """Choose as the other does; an invalid option counts as the first."""
        option = self._choices.choose(decision, options)
        option = option if 0 <= option < options else 0
        if option:
            self.deviations[self.made] = option
        self.made += 1
        return option


class ReplayedSchedule:
    """Replays a recorded schedule."""

    preempts = True

    def __init__(self, schedule: Mapping[int, int]) -> None:
        self._schedule = schedule
        self._made = 0

    def choose(self, decision: Decision, options: int) -> int:
        """Choose as the schedule does, or else the first."""
        option = self._schedule.get(self._made, 0)
        self._made += 1
        return option


class Random:
    """Decides at random, from a seed; preempts at most ``preemptions`` times (None: no limit).

    Most bugs of concurrency need few preemptions (Musuvathi and Qadeer, PLDI 2007), at the right places: these are
    drawn from the first ``horizon`` moments at which one is possible.
    """

    preempts = True

    def __init__(self, seed: object, *, preemptions: int | None = None, horizon: int = 64) -> None:
        self._random = random.Random(repr(seed))  # noqa: S311  # a schedule, no secret
        self._moments = None if preemptions is None else self._drawn(preemptions, horizon)
        self._passed = 0

    def choose(self, decision: Decision, options: int) -> int:
        """Choose at random; mostly no preemption."""
        if decision is not Decision.PREEMPTION:
            return self._random.randrange(options)
        self._passed += 1
        if self._moments is None:
            return self._random.randrange(options) if self._random.random() < _OFTEN else 0
        return 1 + self._random.randrange(options - 1) if self._passed - 1 in self._moments else 0

    def _drawn(self, preemptions: int, horizon: int) -> frozenset[int]:
        return frozenset(self._random.sample(range(horizon), min(preemptions, horizon)))


_OFTEN = 0.25
"""The probability of a preemption where their number is not limited."""


def schedule_text(schedule: Mapping[int, int]) -> str:
    """A schedule in the form of the command line: ``12:1,40:2``; empty for the default order."""
    return ",".join(f"{decision}:{option}" for decision, option in sorted(schedule.items()))


def schedule_of(text: str) -> dict[int, int]:
    """Read what :func:`schedule_text` wrote; raises :class:`~simcoll.errors.ConfigurationError` on anything else."""
    schedule = {}
    for part in text.split(",") if text.strip() else ():
        decision, _, option = part.strip().partition(":")
        if not (_is_number(decision) and _is_number(option)):
            raise ConfigurationError(
                f"schedule {text!r:.80}: expected decision:option, such as 12:1,40:2, got {part!r:.40}"
            )
        schedule[int(decision)] = int(option)
    return schedule


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) < 10


def choices_of(seed: int, schedule: str | None) -> Choices:
    """The choices of a schedule's text if there is one, otherwise of a seed: 0 is the default order.

    Raises :class:`~simcoll.errors.ConfigurationError` for an invalid schedule.
    """
    if schedule is not None:
        return ReplayedSchedule(schedule_of(schedule))
    return InOrder() if seed == 0 else Random(seed)
