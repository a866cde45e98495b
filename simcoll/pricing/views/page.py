"""A priced job as a page: figures, scenarios beside each other, the timeline, the topology with what holds it up.

What a page has of a job that is priced on a topology: its picture, what holds the job up, what calls cost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from simcoll.core.units import show_rate, show_size
from simcoll.pricing.price import Pricing, price
from simcoll.pricing.views.bottlenecks import marks_of_job
from simcoll.pricing.views.spans import spans_of
from simcoll.pricing.views.steps import StepCosts, steps_of_rank
from simcoll.pricing.views.summary import (
    GroupCost,
    GroupKind,
    LinkCost,
    Spread,
    groups_of,
    kinds_of,
    links_of,
    totals_of,
)
from simcoll.pricing.views.text import counted_calls, shown
from simcoll.pricing.views.topology_figure import figure_of
from simcoll.reports.page_shell import PageTable
from simcoll.reports.price_page import Bar, Bars, Fact, Sheet

if TYPE_CHECKING:
    from simcoll.core.trace import Trace
    from simcoll.reports.page_shell import PricedPage
    from simcoll.topology.graph import Topology


def priced_report(traces: Sequence[Trace], topology: Topology) -> PricedPage:
    """Picture and tables; raises PricingError, TopologyError and EstimateError for what cannot be priced."""
    priced = price(traces, topology)
    return {"figures": [figure_of(topology, marks_of_job(priced))], "tables": tables_of_calls(priced)}


if TYPE_CHECKING:
    import networkx as nx


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
    if links:
        busy = f"{links[0].source} -> {links[0].target}, busy for {shown(links[0].busy)}"
        facts.append(Fact("Bottleneck", links[0].link, busy, marked=True))
    return facts


def _share(seconds: float) -> Callable[[Spread], str]:
    return lambda spread: f"{spread.mean / seconds:.0%} of the time" if seconds else "no time"


def _bars(scenarios: Sequence[Pricing]) -> Bars:
    """Where a rank's time goes, for each scenario on one scale."""
    bars = []
    for priced in scenarios:
        totals = totals_of(priced)
        parts = totals.compute.mean, totals.exposed.mean, totals.waiting.mean
        text = ", ".join(f"{name} {shown(part)}" for name, part in zip(_PARTS, parts, strict=True))
        bars.append(Bar(priced.name, parts, text))
    return Bars("Where a rank's time goes", _PARTS, tuple(bars))


def _comparison(scenarios: Sequence[Pricing]) -> PageTable:
    rows, first = [], scenarios[0].seconds
    for priced in scenarios:
        totals, steps = totals_of(priced), steps_of_rank(priced)
        step = "-" if steps is None else shown(sum(one.seconds for one in steps.steps) / len(steps.steps))
        ratio = f"x{priced.seconds / first:.2f}" if first else "-"
        times = shown(priced.seconds), ratio, shown(totals.exposed.mean), shown(totals.waiting.mean), step
        rows.append((priced.name, f"{priced.job.world_size:,}", *times))
    return PageTable("What if", ("scenario", "ranks", "time", "ratio", "exposed", "waiting", "a step"), tuple(rows))


def tables_of_calls(main: Pricing) -> list[PageTable]:
    """What calls cost, and which links hold them up."""
    links = links_of(main)
    return [_kinds(kinds_of(main)), *([_links(links)] if links else [])]


def _tables(main: Pricing, steps: StepCosts | None) -> Iterable[PageTable]:
    yield from tables_of_calls(main)
    if len(groups := groups_of(main)) > 1:
        yield _groups(groups)
    yield _ranks(main)
    if steps is not None:
        yield _steps(steps)
        yield _volumes(steps)


def _table(
    title: str, headings: tuple[str, ...], rows: Sequence[tuple[str, ...]], texts: int = 1, *, folded: bool = False
) -> PageTable:
    hidden = len(rows) - _MOST_ROWS
    note = f"and {hidden:,} more rows, which --json has" if hidden > 0 else ""
    return PageTable(title, headings, tuple(rows[:_MOST_ROWS]), texts, note, folded)


def _kinds(kinds: Sequence[GroupKind]) -> PageTable:
    headings = "op", "group", "algorithm", "bytes", "calls", "each", "in all", "bus bandwidth", "exposed", "waiting"
    rows = [
        (
            kind.estimate.op,
            f"{kind.group} ({kind.size if kind.groups == 1 else f'{kind.groups:,} x {kind.size}'})",
            " ".join(filter(None, (kind.estimate.algorithm, kind.estimate.protocol))),
            show_size(kind.estimate.bytes) if kind.estimate.bytes else "-",
            f"{kind.calls:,}",
            shown(kind.seconds / max(kind.calls, 1)),
            shown(kind.seconds / max(kind.groups, 1)),
            show_rate(kind.estimate.bus_bandwidth) if kind.estimate.bytes else "-",
            shown(kind.exposed),
            shown(kind.waiting),
        )
        for kind in kinds
    ]
    return _table("Calls, the dearest first", headings, rows, 3)


def _links(links: Sequence[LinkCost]) -> PageTable:
    rows = [
        (
            f"{link.link} {link.source} -> {link.target}",
            show_rate(link.bandwidth),
            f"{link.calls:,}",
            shown(link.busy),
        )
        for link in links
    ]
    return _table("Bottleneck links", ("link", "bandwidth", "calls", "busy"), rows)


def _groups(groups: Sequence[GroupCost]) -> PageTable:
    rows = [
        (
            f"{group.name} {group.description}".strip(),
            f"{len(group.ranks):,}",
            f"{group.collectives + group.messages:,}",
            *(shown(one) for one in (group.seconds, group.exposed, group.waiting)),
        )
        for group in groups
    ]
    return _table("Groups", ("group", "ranks", "calls", "time", "exposed", "waiting"), rows)


def _ranks(main: Pricing) -> PageTable:
    totals = totals_of(main)
    spreads = (
        ("compute", totals.compute),
        ("communication, exposed", totals.exposed),
        ("communication, overlapped", totals.overlapped),
        ("waiting for other ranks", totals.waiting),
    )
    rows = [
        (name, shown(one.mean), shown(one.least), f"{one.least_rank}", shown(one.most), f"{one.most_rank}")
        for name, one in spreads
    ]
    return _table("A rank's time", ("", "mean", "least", "rank", "most", "rank"), rows)


def _steps(found: StepCosts) -> PageTable:
    rows = [
        (f"{number:,}", *(shown(part) for part in (step.seconds, step.compute, step.exposed, step.waiting)))
        for number, step in enumerate(found.steps, 1)
    ]
    headings = "step", "time", "compute", "exposed", "waiting"
    return _table(f"Steps of rank {found.rank}", headings, rows, folded=len(rows) > _FEW_ROWS)


def _volumes(found: StepCosts) -> PageTable:
    """To the byte: what a step moves can be reckoned from the model."""
    rows = [
        (one.op, f"{one.description or one.group} ({one.size})", f"{one.calls:,}", f"{one.bytes:,}")
        for one in found.volumes
    ]
    return _table(f"Volumes of a step of rank {found.rank}", ("op", "group", "calls", "bytes"), rows, 2)
