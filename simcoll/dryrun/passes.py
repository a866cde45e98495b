"""Runs the ranks of a dry run again where they went different ways on guesses, with what they gave to calls then known.

A pass answers from what the pass before has written down (:mod:`simcoll.dryrun.rank.known_inputs`), and is the last one
if all ranks still give the same: then each answer follows from what the ranks really give. In the third of these passes
what they receive counts as guessed, though it is the same on all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from simcoll.core.trace import Trace
from simcoll.dryrun.divergence import decided
from simcoll.dryrun.rank.known_inputs import Gifts, Given, KnownInputs, inputs_name, read_inputs
from simcoll.dryrun.rank.main import DryRun
from simcoll.dryrun.records import reads
from simcoll.recorder.recorder import box_name

MOST_PASSES = 3
"""So many more, after the first."""


class Passes:
    """What is known from pass to pass."""

    def __init__(self, folder: Path, ranks: Iterable[int]) -> None:
        self._folder = folder
        self._given: Gifts = {rank: read_inputs(folder / inputs_name(rank)) for rank in ranks}
        self._readers: set[int] = set()
        self.made = 0

    def notes(self) -> list[str]:
        """What the report says of it."""
        calls = len(set[str]().union(*self._given.values()))
        if not self._readers or not calls:
            return []
        return [f"the values of {calls:,} calls were those of the ranks that ran, which were run again with them"]

    def again(self, dry_run: DryRun, traces: Sequence[Trace], run: Callable[[DryRun, Sequence[int]], object]) -> bool:
        """Make one more pass, of the ranks that read values from others; whether another one is to follow."""
        self.made += 1
        self._readers |= {trace.rank for trace in traces if decided(trace) or reads(trace)}
        ranks = sorted(self._readers)
        for rank in ranks:
            (self._folder / box_name(rank)).unlink(missing_ok=True)
        run(replace(dry_run, known=KnownInputs(self._given, self.made < MOST_PASSES)), ranks)
        given = {**self._given, **{rank: read_inputs(self._folder / inputs_name(rank)) for rank in ranks}}
        before, self._given = self._given, given
        return self.made < MOST_PASSES and any(_texts(before[rank]) != _texts(given[rank]) for rank in ranks)


def _texts(given: Mapping[str, Given]) -> dict[str, str]:
    return {place: one.text for place, one in given.items()}


def remove_inputs(folder: Path) -> None:
    """Remove what ranks have written down."""
    for path in folder.glob("rank*.inputs"):
        path.unlink(missing_ok=True)
