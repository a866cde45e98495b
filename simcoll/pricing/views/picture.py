"""A priced job as a picture in the terminal: a row a rank, a character a piece of time, of one step or of all."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from simcoll.pricing.job import Floats
from simcoll.pricing.price import Pricing
from simcoll.pricing.views.slice_plan import plan_slices
from simcoll.pricing.views.summary import RankTimes, rank_times, steps_of_rank
from simcoll.pricing.views.text import shown

_ROWS = 16
_LABEL = 12
_SIGNS = (".", "#", "~", " ")
_STYLES = ("dim", "red", "yellow", "")
_LEGEND = ". computes   # communicates, and is held up   ~ waits for other ranks"


@dataclass(frozen=True, slots=True)
class PricingPicture:
    """A picture that fills the width it is given. What takes most of a piece of time is drawn."""

    priced: Pricing

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        begin, end, title = _window(self.priced)
        edges = np.linspace(begin, max(end, begin + 1e-9), max(options.max_width - _LABEL - 1, 8) + 1)
        ranks = self.priced.job.ranks
        yield Text(f"{title}: {shown(end - begin)}, {shown((edges[1] - edges[0]).item())} a character", "bold")
        slowest = int(self.priced.replayed.rank_end.argmax())
        for column in plan_slices(ranks, [1] * len(ranks), 1, slowest, _ROWS).columns:
            row = Text(f"rank {ranks[column]}".ljust(_LABEL), no_wrap=True, overflow="crop")
            for sign, style in _row(rank_times(self.priced, column), edges):
                row.append(sign, style)
            yield row
        yield Text(_LEGEND)


def _window(priced: Pricing) -> tuple[float, float, str]:
    """The middle step, where there are steps, or all of the time."""
    found = steps_of_rank(priced)
    if found is None:
        return 0.0, priced.seconds, "all of the time"
    number = len(found.steps) // 2
    step = found.steps[number]
    return step.begin, step.begin + step.seconds, f"step {number + 1:,} of {len(found.steps):,} of rank {found.rank}"


def _row(times: RankTimes, edges: Floats) -> Iterator[tuple[str, str]]:
    come, behind = times.arrived, times.arrived + times.waited
    parts = [
        _share(come - times.compute, come, edges),
        _share(behind, behind + times.exposed, edges),
        _share(come, behind, edges),
    ]
    # What is left of a piece is a rank that has ended, or goes on at once.
    rest = np.maximum(np.diff(edges) - sum(parts), 0.0)
    for winner in np.argmax([*parts, rest], axis=0):
        yield _SIGNS[winner], _STYLES[winner]


def _share(begins: Floats, ends: Floats, edges: Floats) -> Floats:
    """How much of each piece these stretches take, which follow each other."""
    points = np.maximum.accumulate(np.stack([begins, ends], axis=1).ravel())
    taken = np.cumsum(np.stack([np.zeros(len(begins)), points[1::2] - points[::2]], axis=1).ravel())
    if not len(points):
        return np.zeros(len(edges) - 1)
    shares: Floats = np.diff(np.interp(edges, points, taken))
    return shares
