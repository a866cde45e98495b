"""Runs ranks again where the verdict rests on guessed values: their inputs to calls are known from the pass before.

A pass works out results from the inputs that the pass before has saved (:mod:`simcoll.dryrun.rank.known_inputs`). It is
the last one if all ranks give the same inputs again: then each result follows from what the ranks really give. In the
third of these passes, results count as guessed, though they are the same on all ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from simcoll.core.trace import Trace
from simcoll.dryrun.divergence import branch_lines
from simcoll.dryrun.rank.known_inputs import GivenInputs, InputsByRank, KnownInputs, inputs_name, read_inputs
from simcoll.dryrun.rank.main import DryRun
from simcoll.dryrun.records import tainted_reads
from simcoll.recorder.recorder import box_name

MOST_PASSES = 3
"""At most so many passes follow the first run."""


class Passes:
    """The inputs that are known from pass to pass."""

    def __init__(self, folder: Path, ranks: Iterable[int]) -> None:
        self._folder = folder
        self._given: InputsByRank = {rank: read_inputs(folder / inputs_name(rank)) for rank in ranks}
        self._readers: set[int] = set()
        self.made = 0

    def notes(self) -> list[str]:
        """The report's notes about the passes."""
        calls = len(set[str]().union(*self._given.values()))
        if not self._readers or not calls:
            return []
        return [f"the values of {calls:,} calls were those of the ranks that ran, which were run again with them"]

    def rerun(self, dry_run: DryRun, traces: Sequence[Trace], run: Callable[[DryRun, Sequence[int]], object]) -> bool:
        """Make one more pass with the ranks that read values from others; returns whether another one is to follow."""
        self.made += 1
        self._readers |= {trace.rank for trace in traces if branch_lines(trace) or tainted_reads(trace)}
        ranks = sorted(self._readers)
        for rank in ranks:
            (self._folder / box_name(rank)).unlink(missing_ok=True)
        run(replace(dry_run, known=KnownInputs(self._given, self.made < MOST_PASSES)), ranks)
        given = {**self._given, **{rank: read_inputs(self._folder / inputs_name(rank)) for rank in ranks}}
        before, self._given = self._given, given
        return self.made < MOST_PASSES and any(_texts(before[rank]) != _texts(given[rank]) for rank in ranks)


def _texts(given: Mapping[str, GivenInputs]) -> dict[str, str]:
    return {place: one.text for place, one in given.items()}


def remove_inputs(folder: Path) -> None:
    """Remove the inputs that ranks have saved."""
    for path in folder.glob("rank*.inputs"):
        path.unlink(missing_ok=True)
