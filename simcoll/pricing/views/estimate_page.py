"""The price of a collective as a page: figures, the curve over sizes, the topology with its bottleneck, terms."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from simcoll.core.estimate import Estimate, bottleneck_text
from simcoll.core.units import counted, show_rate, show_size
from simcoll.pricing.views.text import algorithm_of, shown
from simcoll.pricing.views.topology_figure import figure_of, marks_of_estimate
from simcoll.reports.page_shell import Figure, PageTable
from simcoll.reports.price_page import CurvePicture, Fact, Sheet, bandwidth_curve

if TYPE_CHECKING:
    from simcoll.topology.graph import Topology


def estimate_sheet(names: Sequence[str], topologies: Sequence[Topology], rows: Sequence[Sequence[Estimate]]) -> Sheet:
    """A row of estimates, one a topology, for each size. Facts and the picture are those of the largest size."""
    largest = rows[-1]
    first, several = largest[0], len(names) > 1
    size = f" of {show_size(first.bytes)}" if first.bytes else ""
    return Sheet(
        "simcoll estimate",
        shown(first.seconds),
        f"{first.op}{size} on {counted(first.ranks, 'rank')} of {names[0]}",
        _facts(first),
        curve=_curve(names, rows),
        first=[_comparison(names, rows)] if several else [_sizes(names[0], [row[0] for row in rows])],
        figures=[_figure(*each, several=several) for each in zip(names, topologies, largest, strict=True)],
        tables=[
            *([_sizes(name, [row[place] for row in rows]) for place, name in enumerate(names)] if several else []),
            *(_terms(name, [row[place] for row in rows]) for place, name in enumerate(names)),
        ],
        notes=_notes(first),
    )


def _facts(found: Estimate) -> list[Fact]:
    facts = []
    if found.bytes:
        facts.append(Fact("Bus bandwidth", show_rate(found.bus_bandwidth), "as nccl-tests counts"))
        facts.append(Fact("Algorithm bandwidth", show_rate(found.algorithm_bandwidth)))
    facts.append(Fact("Algorithm", found.algorithm, found.protocol or ""))
    if found.bottleneck is not None:
        link = found.bottleneck
        busy = f"{link.source} -> {link.target}, {link.utilisation:.0%} of {show_rate(link.bandwidth)}"
        facts.append(Fact("Bottleneck", link.link, busy))
    return facts


def _curve(names: Sequence[str], rows: Sequence[Sequence[Estimate]]) -> CurvePicture | None:
    lines = [(name, [row[place].bus_bandwidth for row in rows]) for place, name in enumerate(names)]
    return bandwidth_curve([row[0].bytes for row in rows], lines, f"Bus bandwidth of {rows[0][0].op} by size")


def _figure(name: str, topology: Topology, found: Estimate, *, several: bool) -> Figure:
    made = figure_of(topology, marks_of_estimate(found.bottleneck))
    return Figure(f"Topology: {name}", made.svg, made.text) if several else made


def _sizes(name: str, found: Sequence[Estimate]) -> PageTable:
    headings = "size", "algorithm", "bottleneck", "time", "algorithm bandwidth", "bus bandwidth"
    rows = [
        (
            show_size(each.bytes) if each.bytes else "-",
            algorithm_of(each),
            "-" if each.bottleneck is None else bottleneck_text(each.bottleneck),
            shown(each.seconds),
            show_rate(each.algorithm_bandwidth) if each.bytes else "-",
            show_rate(each.bus_bandwidth) if each.bytes else "-",
        )
        for each in found
    ]
    return PageTable(f"By size, on {counted(found[0].ranks, 'rank')} of {name}", headings, tuple(rows), 3)


def _comparison(names: Sequence[str], rows: Sequence[Sequence[Estimate]]) -> PageTable:
    headings = "size", *(f"{name}, {counted(one.ranks, 'rank')}" for name, one in zip(names, rows[0], strict=True))
    found = []
    for row in rows:
        first = row[0].seconds
        ratios = [f" (x{each.seconds / first:.2f})" if first and place else "" for place, each in enumerate(row)]
        times = [shown(each.seconds) + ratio for each, ratio in zip(row, ratios, strict=True)]
        found.append((show_size(row[0].bytes) if row[0].bytes else "-", *times))
    return PageTable(
        "Compared", headings, tuple(found), note="Times; in brackets how many times as long as on the first."
    )


def _terms(name: str, found: Sequence[Estimate]) -> PageTable:
    """Returns a table of the terms that add up to each time."""
    terms = list(dict.fromkeys(term for each in found for term, _ in each.terms))
    rows = [
        (show_size(each.bytes) if each.bytes else "-", *(shown(dict(each.terms).get(term, 0.0)) for term in terms))
        for each in found
    ]
    return PageTable(f"What the time is made of, on {name}", ("size", *terms), tuple(rows), folded=len(rows) > 1)


def _notes(found: Estimate) -> list[str]:
    engine = "closed formulas" if found.engine == "closed" else "a flow simulation"
    overheads = "with" if found.calibrated else "without"
    return [
        f"times are those of {engine}, {overheads} launch and protocol overheads; nothing was measured here",
        "size is what nccl-tests means by it: the larger of the send and receive buffers",
    ]
