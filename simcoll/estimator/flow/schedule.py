"""An algorithm's schedule: steps of transfers, kept compact, so that 16,384 ranks are arrays of that length.

A step's transfers go between endpoints: the group's ranks by their place in it, then the switches that reduce. It runs
for ``rounds`` rounds, one after the other. Transfers of a pipeline have stages: one of stage s is silent for s rounds,
then carries chunk after chunk, so that one step describes the transfers of every round of a pipelined tree.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np

from simcoll.estimator.flow.paths import Floats, Integers

Carried: TypeAlias = Callable[[int], Sequence[Sequence[Hashable]]]
"""The n-th time that the transfers take place -> the blocks that each carries."""


@dataclass(frozen=True, slots=True, eq=False)
class TransferStep:
    """Transfers that run together, ``rounds`` times.

    ``sizes`` are bytes of one round. ``stages`` are the transfers' places in a pipeline, None where all run in every
    round. ``through`` says that a byte goes on to the next stage while the others still come (a switch that reduces).
    ``carried`` has the blocks that go along, for the proof that the algorithm delivers.
    """

    sources: Integers
    targets: Integers
    sizes: Floats
    carried: Carried
    rounds: int = 1
    stages: Integers | None = None
    through: bool = False

    @property
    def depth(self) -> int:
        """The number of rounds that the last stage waits."""
        return 0 if self.stages is None or not len(self.stages) else int(self.stages.max())

    @property
    def times(self) -> int:
        """The number of rounds in which each transfer takes place."""
        return self.rounds - self.depth

    def split(self, chunks: int) -> TransferStep:
        """The same bytes in so many chunks; only for a step with stages."""
        return replace(self, sizes=self.sizes * (self.times / chunks), rounds=self.depth + chunks)


@dataclass(frozen=True, slots=True, eq=False)
class Shifts:
    """A step for each distance 1 to ``count - 1``, one after the other or all at once.

    ``period`` is the number of places after which the group looks alike (the ranks of a host): distances that leave the
    same rest are priced as one series.
    """

    count: int
    step: Callable[[int], TransferStep]
    period: int = 1
    at_once: bool = False


Schedule: TypeAlias = "tuple[TransferStep | Shifts, ...]"


def steps(schedule: Schedule) -> Iterator[TransferStep]:
    """The schedule with its shifts written out."""
    for part in schedule:
        if isinstance(part, TransferStep):
            yield part
        elif part.at_once:
            yield together([part.step(distance) for distance in range(1, part.count)])
        else:
            yield from (part.step(distance) for distance in range(1, part.count))


def powers(count: int) -> list[int]:
    """The powers of two below ``count``."""
    return [1 << bit for bit in range((count - 1).bit_length())]


def together(parts: Sequence[TransferStep]) -> TransferStep:
    """Steps of one length that run at once, as one; the stages of those that have none are 0."""
    rounds = {step.rounds for step in parts}
    if len(rounds) != 1:
        raise ValueError(f"steps of {sorted(rounds)} rounds cannot run as one, expected the same number")
    stages = [np.zeros(len(step.sources), np.int64) if step.stages is None else step.stages for step in parts]
    return TransferStep(
        np.concatenate([step.sources for step in parts]),
        np.concatenate([step.targets for step in parts]),
        np.concatenate([step.sizes for step in parts]),
        lambda time: [blocks for step in parts for blocks in step.carried(time)],
        parts[0].rounds,
        None if all(step.stages is None for step in parts) else np.concatenate(stages),
        parts[0].through,
    )
