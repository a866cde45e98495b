"""What a schedule decides: whose turn is next, whose message a receive takes, whether a send is buffered.

A decision is the number of one of its options; 0 is what happens without a schedule. So a schedule is what it decides
otherwise, ``{number of the decision: option}``, and an empty one is the default order.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from enum import Enum
from typing import Protocol

from simcoll.errors import ConfigurationError

SENDS = ("synchronous", "buffered", "either")
"""When a send ends: when its receive is there, as with Gloo and NCCL; at once; as the schedule decides."""


class Decision(Enum):
    """What is decided."""

    TURN = "turn"
    """Which of the ranks that could run goes next, when one has given its turn away."""
    PREEMPTION = "preemption"
    """Whether a rank that makes a call goes on, or which other one does; whether who asks for an end gets no time."""
    MESSAGE = "message"
    """Which sender's message a receive from any source takes."""
    BUFFER = "buffer"
    """Whether a send waits for its receive (0) or is buffered (1)."""


class Choices(Protocol):
    """Makes the decisions of one run, in order. ``preempts`` is False where no preemption is ever decided."""

    @property
    def preempts(self) -> bool:
        """Whether a rank may lose its turn though it could go on."""
        ...

    def choose(self, decision: Decision, options: int) -> int:
        """An option, below ``options``, which are at least two."""
        ...


class InOrder:
    """The default: the rank that became ready first, the message that was sent first, no preemption."""

    preempts = False

    def choose(self, decision: Decision, options: int) -> int:
        """Always the first."""
        return 0


class RecordedSchedule:
    """Decides as another does, and remembers what was decided otherwise than by default."""

    def __init__(self, choices: Choices) -> None:
        self._choices = choices
        self.preempts = choices.preempts
        self.made = 0
        self.deviations: dict[int, int] = {}

    def choose(self, decision: Decision, options: int) -> int:
        """What the other decides; an option that is not there counts as the first."""
        option = self._choices.choose(decision, options)
        option = option if 0 <= option < options else 0
        if option:
            self.deviations[self.made] = option
        self.made += 1
        return option


class ReplayedSchedule:
    """A schedule from before."""

    preempts = True

    def __init__(self, schedule: Mapping[int, int]) -> None:
        self._schedule = schedule
        self._made = 0

    def choose(self, decision: Decision, options: int) -> int:
        """What the schedule says, or else the first."""
        option = self._schedule.get(self._made, 0)
        self._made += 1
        return option


class Random:
    """Decides at random, from a seed; preempts at most ``preemptions`` times (None: as often as it likes).

    Most bugs of concurrency need few preemptions (Musuvathi and Qadeer, PLDI 2007), at the right places: these are
    drawn from the first ``horizon`` moments at which one is possible.
    """

    preempts = True

    def __init__(self, seed: object, *, preemptions: int | None = None, horizon: int = 64) -> None:
        self._random = random.Random(repr(seed))  # noqa: S311  # a schedule, no secret
        self._moments = None if preemptions is None else self._drawn(preemptions, horizon)
        self._passed = 0

    def choose(self, decision: Decision, options: int) -> int:
        """One of them at random; for a preemption mostly none."""
        if decision is not Decision.PREEMPTION:
            return self._random.randrange(options)
        self._passed += 1
        if self._moments is None:
            return self._random.randrange(options) if self._random.random() < _OFTEN else 0
        return 1 + self._random.randrange(options - 1) if self._passed - 1 in self._moments else 0

    def _drawn(self, preemptions: int, horizon: int) -> frozenset[int]:
        return frozenset(self._random.sample(range(horizon), min(preemptions, horizon)))


_OFTEN = 0.25
"""How often a rank is preempted where there is no bound."""


def schedule_text(schedule: Mapping[int, int]) -> str:
    """A schedule as it is given on a command line: ``12:1,40:2``; empty for the default order."""
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
    """Those of a schedule's text where there is one, otherwise of a seed: 0 is the default order.

    Raises :class:`~simcoll.errors.ConfigurationError` for a text that is no schedule.
    """
    if schedule is not None:
        return ReplayedSchedule(schedule_of(schedule))
    return InOrder() if seed == 0 else Random(seed)
