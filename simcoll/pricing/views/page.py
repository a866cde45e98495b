"""A priced job as a page: figures, scenarios beside each other, the timeline, and tables of what calls cost.

The timeline has the ranks' programs over time, and their collectives below. Of a job priced on a topology, the page has
the topology's picture, with the links that hold the job up.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from simcoll.core.record import Group
from simcoll.core.units import show_rate, show_size
from simcoll.pricing.job import Stream
from simcoll.pricing.price import Pricing, price
from simcoll.pricing.views.predicted_trace import predicted
from simcoll.pricing.views.summary import (
    GroupKind,
    LinkCost,
    MeanAndRange,
    StepCosts,
    groups_of,
    kinds_of,
    links_of,
    steps_of_rank,
    totals_of,
)
from simcoll.pricing.views.text import (
    GROUP_HEADINGS,
    KIND_HEADINGS,
    RANK_HEADINGS,
    VOLUME_HEADINGS,
    algorithm_of,
    counted_calls,
    group_rows,
    kind_cells,
    link_rows,
    rank_rows,
    scenario_rows,
    shown,
    volume_rows,
)
from simcoll.pricing.views.topology_figure import figure_of, marks_of_job
from simcoll.reports.page_shell import PageTable
from simcoll.reports.price_page import COLLECTIVE, COMPUTE, EXPOSED, WAITING, Bar, Bars, Fact, Sheet, Span, Spans, laned
from simcoll.reports.trace_event import Slice
from simcoll.verifier.views.summary import kind_of

MOST = 150_000
"""Slices of a page; a trace-event file holds more."""

_ROWS = 24
_EACH = 3


def spans_of(priced: Pricing, steps: StepCosts | None, most: int = MOST) -> Spans:
    """The timeline, of as many ranks as fit: first, last, slowest, and some between."""
    longest = max((len(program) for program in priced.job.programs), default=1)
    timeline = predicted(priced, min(most, _ROWS * _EACH * max(longest, 1)))
    names = {name: about.partition(" ")[2] or about for (_, name), about in timeline.threads.items()}
    groups, places = _groups(priced.job.streams, timeline.processes)
    by_rank: dict[int, list[Slice]] = defaultdict(list)
    for each in timeline.slices:
        by_rank[each.process].append(each)
    spans = [
        span for row, rank in enumerate(timeline.processes) for span in _row(_Row(row, places), by_rank[rank], names)
    ]
    ops = dict.fromkeys(span.op for span in spans if span.op)
    end = max([round(priced.seconds * 1e9), *(span.end for span in spans)])
    note = timeline.note.partition(": ")[0]
    return Spans(tuple(timeline.processes), tuple(ops), tuple(spans), end, _middle(steps), note, groups)


def _groups(
    streams: Sequence[Stream], ranks: Collection[int]
) -> tuple[tuple[tuple[Group, int], ...], dict[tuple[int, object], int]]:
    """One group of each kind with their number, and the place of the kind for each rank and name of a group."""
    kinds: dict[tuple[str, int], list[Group]] = {}
    for group in dict.fromkeys(stream.group for stream in streams):
        kinds.setdefault(kind_of(group), []).append(group)
    places: dict[tuple[int, object], int] = {
        (rank, group.name): place
        for place, alike in enumerate(kinds.values())
        for group in alike
        for rank in ranks
        if group.place(rank) is not None
    }
    return tuple((alike[0], len(alike)) for alike in kinds.values()), places


def _middle(steps: StepCosts | None) -> tuple[int, int] | None:
    """The middle one of several steps."""
    if steps is None or len(steps.steps) < 2:
        return None
    step = steps.steps[len(steps.steps) // 2]
    return round(step.begin * 1e9), round((step.begin + step.seconds) * 1e9)


@dataclass(frozen=True, slots=True)
class _Row:
    """A row of the timeline, and which group of it a rank means by a name."""

    number: int
    places: Mapping[tuple[int, object], int]

    def group(self, each: Slice) -> int:
        return self.places.get((each.process, each.args["group"]), 0)


def _row(row: _Row, slices: list[Slice], names: dict[int, str]) -> Iterator[Span]:
    program = [each for each in slices if each.thread == 0]
    for each in program:
        yield from _of_program(row, each)
    others = sorted((each for each in slices if each.thread), key=lambda each: (each.begin, each.end))
    lanes = laned([each.begin for each in others], [each.end for each in others])
    found = [_of_stream(row, lane, each, names) for lane, each in zip(lanes, others, strict=True)]
    yield from sorted(found, key=lambda span: (span.lane, span.begin))


def _of_program(row: _Row, each: Slice) -> Iterator[Span]:
    """Compute; or what a rank waits for the others, and then for the call itself."""
    if each.name == "compute":
        yield Span(row.number, 0, COMPUTE, "", 0, "", each.begin, each.end)
        return
    group, number = row.group(each), each.args["sequence"]
    assert isinstance(number, int)
    waiting = each.args.get("waiting_us", 0.0)
    come = min(each.begin + round(waiting * 1e3 if isinstance(waiting, float) else 0), each.end)
    op = each.name.removeprefix("wait for ")
    if come > each.begin:
        yield Span(row.number, 0, WAITING, op, number, "", each.begin, come, group)
    if each.end > come:
        yield Span(row.number, 0, EXPOSED, op, number, "", come, each.end, group)


def _of_stream(row: _Row, lane: int, each: Slice, names: dict[int, str]) -> Span:
    args = each.args
    size, ranks, number = args["bytes"], args["ranks"], args["sequence"]
    assert isinstance(size, int) and isinstance(number, int)  # noqa: PT018
    moved = [show_size(size)] if size else []
    said = [*moved, " ".join(filter(None, map(_text, (args["algorithm"], args["protocol"])))), names[each.thread]]
    words = ", ".join(filter(None, said)) + f" ({ranks} rank{'s' * (ranks != 1)})"
    return Span(row.number, lane, COLLECTIVE, each.name, number, words, each.begin, each.end, row.group(each))


def _text(value: object) -> str:
    return "" if value is None else str(value)


if TYPE_CHECKING:
    import networkx as nx

    from simcoll.core.trace import Trace
    from simcoll.reports.page_shell import PricedPage
    from simcoll.topology.graph import Topology


def priced_report(traces: Sequence[Trace], topology: Topology) -> PricedPage:
    """Picture and tables; raises PricingError, TopologyError and EstimateError for what cannot be priced."""
    priced = price(traces, topology)
    return {"figures": [figure_of(topology, marks_of_job(priced))], "tables": tables_of_calls(priced)}


_MOST_ROWS, _FEW_ROWS = 100, 12
_PARTS = ("compute", "communication, exposed", "waiting for other ranks")


def pricing_sheet(
    main: Pricing,
    scenarios: Sequence[Pricing],
    topology: nx.DiGraph[Any],
    notes: Sequence[str],
    warnings: Sequence[str],
) -> Sheet:
    """The page shows ``main`` in full, and where there are several scenarios these beside each other."""
    steps, several = steps_of_rank(main), len(scenarios) > 1
    changed = f" ({main.name})" if main.name != main.topology else ""
    return Sheet(
        "simcoll estimate",
        shown(main.seconds),
        f"{counted_calls(main)} on {main.topology}{changed}",
        _facts(main, steps),
        warnings,
        notes,
        _bars(scenarios),
        spans=spans_of(main, steps),
        first=[_comparison(scenarios)] if several else [],
        figures=[figure_of(topology, marks_of_job(main))],
        tables=list(_tables(main, steps)),
    )


def _facts(main: Pricing, steps: StepCosts | None) -> list[Fact]:
    totals, links = totals_of(main), links_of(main)
    facts = []
    if steps is not None:
        mean = sum(step.seconds for step in steps.steps) / len(steps.steps)
        facts.append(Fact("A step", shown(mean), f"mean of {len(steps.steps):,}, {steps.period:,} calls each"))
    share = _share(main.seconds)
    facts += [
        Fact("Compute", shown(totals.compute.mean), f"{share(totals.compute)}, mean of the ranks"),
        Fact("Communication, exposed", shown(totals.exposed.mean), f"{share(totals.exposed)}; holds ranks up"),
        Fact("Communication, overlapped", shown(totals.overlapped.mean), "behind compute, or behind each other"),
        Fact("Waiting for other ranks", shown(totals.waiting.mean), share(totals.waiting)),
    ]
    if totals.stragglers.most:
        slowest = f"{share(totals.stragglers)}; each layer waits for the slowest rank"
        facts.append(Fact("Stragglers", shown(totals.stragglers.mean), slowest))
    if totals.contention.most:
        slower = f"{share(totals.contention)}; compute is slower beside collectives"
        facts.append(Fact("Contention", shown(totals.contention.mean), slower))
    if links:
        busy = f"{links[0].source} -> {links[0].target}, busy for {shown(links[0].busy)}"
        facts.append(Fact("Bottleneck", links[0].link, busy))
    return facts


def _share(seconds: float) -> Callable[[MeanAndRange], str]:
    return lambda spread: f"{spread.mean / seconds:.0%} of the time" if seconds else "no time"


def _bars(scenarios: Sequence[Pricing]) -> Bars:
    """The parts of a rank's time, for each scenario on one scale."""
    bars = []
    for priced in scenarios:
        totals = totals_of(priced)
        parts = (
            totals.compute.mean + totals.contention.mean,
            totals.exposed.mean,
            totals.waiting.mean + totals.stragglers.mean,
        )
        text = ", ".join(f"{name} {shown(part)}" for name, part in zip(_PARTS, parts, strict=True))
        bars.append(Bar(priced.name, parts, text))
    return Bars("Where a rank's time goes", _PARTS, tuple(bars))


def _comparison(scenarios: Sequence[Pricing]) -> PageTable:
    headings = "scenario", "ranks", "time", "ratio", "exposed", "waiting", "a step"
    return PageTable("What if", headings, tuple(scenario_rows(scenarios, "-")))


def tables_of_calls(main: Pricing) -> list[PageTable]:
    """Returns tables of the costs of calls and of the links that hold them up."""
    links = links_of(main)
    return [_kinds(kinds_of(main)), *([_links(links)] if links else [])]


def _tables(main: Pricing, steps: StepCosts | None) -> Iterable[PageTable]:
    yield from tables_of_calls(main)
    if len(groups := groups_of(main)) > 1:
        yield _table("Groups", GROUP_HEADINGS, group_rows(groups))
    yield _table("A rank's time", RANK_HEADINGS, rank_rows(main))
    if steps is not None:
        yield _steps(steps)
        yield _table(f"Volumes of a step of rank {steps.rank}", VOLUME_HEADINGS, volume_rows(steps), 2)


def _table(
    title: str, headings: tuple[str, ...], rows: Sequence[tuple[str, ...]], texts: int = 1, *, folded: bool = False
) -> PageTable:
    hidden = len(rows) - _MOST_ROWS
    note = f"and {hidden:,} more rows, which --json has" if hidden > 0 else ""
    return PageTable(title, headings, tuple(rows[:_MOST_ROWS]), texts, note, folded)


def _kinds(kinds: Sequence[GroupKind]) -> PageTable:
    headings = *KIND_HEADINGS[:2], "algorithm", *KIND_HEADINGS[2:], "bus bandwidth", "exposed", "waiting"
    rows = []
    for kind in kinds:
        op, group, *numbers = kind_cells(kind, "-")
        bandwidth = show_rate(kind.estimate.bus_bandwidth) if kind.estimate.bytes else "-"
        times = shown(kind.exposed), shown(kind.waiting)
        rows.append((op, group, algorithm_of(kind.estimate), *numbers, bandwidth, *times))
    return _table("Calls, the dearest first", headings, rows, 3)


def _links(links: Sequence[LinkCost]) -> PageTable:
    return _table("Bottleneck links", ("link", "bandwidth", "calls", "busy"), link_rows(links, show_rate))


def _steps(found: StepCosts) -> PageTable:
    rows = [
        (
            f"{number:,}",
            *map(shown, (step.seconds, step.compute + step.contention, step.exposed, step.waiting + step.stragglers)),
        )
        for number, step in enumerate(found.steps, 1)
    ]
    headings = "step", "time", "compute", "exposed", "waiting"
    return _table(f"Steps of rank {found.rank}", headings, rows, folded=len(rows) > _FEW_ROWS)
