"""A priced job on a terminal: where the time goes, the steps, what costs most, and scenarios side by side.

Its picture has a row a rank, and a character a piece of time, of one step or of all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from simcoll.core.estimate import Estimate
from simcoll.core.text import plain
from simcoll.core.units import counted, show_size
from simcoll.pricing.job import Floats
from simcoll.pricing.price import Pricing
from simcoll.pricing.views.slice_plan import plan_slices
from simcoll.pricing.views.summary import (
    GroupCost,
    GroupKind,
    LinkCost,
    RankTimes,
    StepCosts,
    groups_of,
    kinds_of,
    links_of,
    rank_times,
    steps_of_rank,
    totals_of,
)
from simcoll.reports.tables import Rows

_KINDS, _GROUPS, _LINKS = 12, 6, 5
_LEAST_US = 5e-8
"""Seconds that are no tenth of a microsecond."""


@dataclass(frozen=True, slots=True)
class PricingText:
    """One priced job; where there are several scenarios they come first, side by side, and ``warnings`` before all."""

    main: Pricing
    scenarios: Sequence[Pricing]
    notes: Sequence[str] = ()
    warnings: Sequence[str] = ()

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield from (plain(f"warning: {text}", "bold") for text in self.warnings)
        if len(self.scenarios) > 1:
            yield _comparison(self.scenarios)
        yield from _report(self.main)
        yield from (plain(f"note: {note}") for note in self.notes)


def _report(priced: Pricing) -> Iterator[Rows | Text]:
    yield plain(_headline(priced), "bold")
    yield _totals(priced)
    steps = steps_of_rank(priced)
    if steps is not None:
        yield _steps(steps)
        yield _volumes(steps)
    yield _kinds(priced)
    groups = groups_of(priced)
    if len(groups) > 1:
        yield _groups(groups)
    if links_of(priced):
        yield _links(priced)


def _headline(priced: Pricing) -> str:
    return f"{counted_calls(priced)} on {priced.topology}: {shown(priced.seconds)}"


def counted_calls(priced: Pricing) -> str:
    """Describes how many collectives and messages ran on how many ranks."""
    job = priced.job
    ran = job.collectives.came > 0
    message = np.array([stream.message for stream in job.streams], np.bool_)
    messages = int(message[job.collectives.stream[ran]].sum())
    calls = [counted(int(ran.sum()) - messages, "collective")]
    calls += [counted(messages, "message")] if messages else []
    return f"{' and '.join(calls)} of {counted(len(job.ranks), 'rank')}"


def shown(seconds: float) -> str:
    """Seconds in a unit that leaves few digits."""
    if seconds >= 1:
        return f"{seconds:,.3f} s"
    if 0 < seconds < _LEAST_US:
        return f"{seconds * 1e9:.2g} ns"
    return f"{seconds * 1e3:,.3f} ms" if seconds >= 1e-3 else f"{seconds * 1e6:,.1f} us"


def table_of(title: str, *columns: str, left: int = 1, rows: Iterable[Sequence[str]] = ()) -> Rows:
    """Numbers stand to the right; the first ``left`` columns are texts from anywhere, and may be folded."""
    table = Rows(title=title, title_justify="left", box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for place, column in enumerate(columns):
        text = place < left
        table.add_column(column, justify="left" if text else "right", no_wrap=not text, overflow="fold")
    for row in rows:
        table.add_row(*map(plain, row[:left]), *row[left:])
    return table


def _totals(priced: Pricing) -> Rows:
    return table_of("a rank's time", *RANK_HEADINGS, rows=rank_rows(priced))


RANK_HEADINGS = "", "mean", "least", "rank", "most", "rank"


def rank_rows(priced: Pricing) -> list[tuple[str, ...]]:
    """The parts of the ranks' time."""
    totals = totals_of(priced)
    spreads = (
        ("compute", totals.compute),
        ("communication, exposed", totals.exposed),
        ("communication, overlapped", totals.overlapped),
        ("waiting for other ranks", totals.waiting),
        *(pair for pair in (("stragglers", totals.stragglers), ("contention", totals.contention)) if pair[1].most),
    )
    return [
        (name, shown(one.mean), shown(one.least), str(one.least_rank), shown(one.most), str(one.most_rank))
        for name, one in spreads
    ]


def _steps(found: StepCosts) -> Rows:
    count = len(found.steps)
    title = f"{counted(count, 'step')} of {counted(found.period, 'call')}, as rank {found.rank} has them"
    table = table_of(title, "", "mean", "least", "most")
    for name in ("seconds", "exposed", "waiting", "compute", "stragglers", "contention"):
        values = [float(getattr(step, name)) for step in found.steps]
        if name not in ("stragglers", "contention") or any(values):
            row = shown(sum(values) / count), shown(min(values)), shown(max(values))
            table.add_row("step" if name == "seconds" else name, *row)
    return table


def _volumes(found: StepCosts) -> Rows:
    title = f"volumes of a step, as rank {found.rank} has them"
    return table_of(title, *VOLUME_HEADINGS, left=2, rows=volume_rows(found))


VOLUME_HEADINGS = "op", "group", "calls", "bytes"


def volume_rows(found: StepCosts) -> list[tuple[str, ...]]:
    """To the byte: what a step moves can be reckoned from the model."""
    return [
        (one.op, f"{one.description or one.group} ({one.size})", f"{one.calls:,}", f"{one.bytes:,}")
        for one in found.volumes
    ]


def _kinds(priced: Pricing) -> Rows:
    kinds = kinds_of(priced)
    hidden = len(kinds) - _KINDS
    title = "calls, the dearest first" + (f" ({hidden:,} more kinds)" if hidden > 0 else "")
    rows = [(*kind_cells(kind, ""), algorithm_of(kind.estimate)) for kind in kinds[:_KINDS]]
    return table_of(title, *KIND_HEADINGS, "algorithm", left=2, rows=rows)


KIND_HEADINGS = "op", "group", "bytes", "calls", "each", "in all"


def kind_cells(kind: GroupKind, nothing: str) -> tuple[str, ...]:
    """Returns the op, group, bytes (``nothing`` where there are none), number and times of a kind of call."""
    alike = f"{kind.size}" if kind.groups == 1 else f"{kind.groups:,} x {kind.size}"
    return (
        kind.estimate.op,
        f"{kind.group} ({alike})",
        show_size(kind.estimate.bytes) if kind.estimate.bytes else nothing,
        f"{kind.calls:,}",
        shown(kind.seconds / max(kind.calls, 1)),
        shown(kind.seconds / max(kind.groups, 1)),
    )


def algorithm_of(found: Estimate) -> str:
    """Algorithm and protocol."""
    return " ".join(filter(None, (found.algorithm, found.protocol)))


def _groups(groups: Sequence[GroupCost]) -> Rows:
    hidden = len(groups) - _GROUPS
    title = "groups" + (f" ({hidden:,} more)" if hidden > 0 else "")
    return table_of(title, *GROUP_HEADINGS, rows=group_rows(groups[:_GROUPS]))


GROUP_HEADINGS = "group", "ranks", "calls", "time", "exposed", "waiting"


def group_rows(groups: Sequence[GroupCost]) -> list[tuple[str, ...]]:
    """Returns the costs of the calls of each group, one row a group."""
    return [
        (
            f"{group.name} {group.description}" if group.description else group.name,
            f"{len(group.ranks):,}",
            f"{group.collectives + group.messages:,}",
            *(shown(one) for one in (group.seconds, group.exposed, group.waiting)),
        )
        for group in groups
    ]


def _links(priced: Pricing) -> Rows:
    links = links_of(priced)
    hidden = len(links) - _LINKS
    title = "bottleneck links" + (f" ({hidden:,} more)" if hidden > 0 else "")
    rows = link_rows(links[:_LINKS], lambda bandwidth: f"{bandwidth / 1e9:,.1f}")
    return table_of(title, "link", "GB/s", "calls", "busy", rows=rows)


def link_rows(links: Sequence[LinkCost], rate: Callable[[float], str]) -> list[tuple[str, ...]]:
    """The links that hold calls up, and for how long."""
    return [
        (f"{link.link} {link.source} -> {link.target}", rate(link.bandwidth), f"{link.calls:,}", shown(link.busy))
        for link in links
    ]


def _comparison(scenarios: Sequence[Pricing]) -> Rows:
    rows = scenario_rows(scenarios, "")
    return table_of("what if", "scenario", "ranks", "time", "", "exposed", "waiting", "step", rows=rows)


def scenario_rows(scenarios: Sequence[Pricing], nothing: str) -> list[tuple[str, ...]]:
    """The scenarios beside the first one; ``nothing`` in place of what there is not."""
    rows: list[tuple[str, ...]] = []
    first = scenarios[0].seconds
    for priced in scenarios:
        totals, steps = totals_of(priced), steps_of_rank(priced)
        step = nothing if steps is None else shown(sum(one.seconds for one in steps.steps) / len(steps.steps))
        ratio = f"x{priced.seconds / first:.2f}" if first else nothing
        times = shown(priced.seconds), ratio, shown(totals.exposed.mean), shown(totals.waiting.mean), step
        rows.append((priced.name, f"{priced.job.world_size:,}", *times))
    return rows


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
    # In the rest of a piece the rank has ended, or goes on at once.
    rest = np.maximum(np.diff(edges) - sum(parts), 0.0)
    for winner in np.argmax([*parts, rest], axis=0):
        yield _SIGNS[winner], _STYLES[winner]


def _share(begins: Floats, ends: Floats, edges: Floats) -> Floats:
    """Returns how much of each piece these consecutive stretches take."""
    points = np.maximum.accumulate(np.stack([begins, ends], axis=1).ravel())
    taken = np.cumsum(np.stack([np.zeros(len(begins)), points[1::2] - points[::2]], axis=1).ravel())
    if not len(points):
        return np.zeros(len(edges) - 1)
    shares: Floats = np.diff(np.interp(edges, points, taken))
    return shares
