"""The topology as a figure of a page, with the bottleneck links coloured, marked and named in words."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import networkx as nx

from simcoll.core.estimate import Bottleneck, bottleneck_text
from simcoll.core.trace import Trace
from simcoll.estimator.estimate import EstimateError, estimate
from simcoll.pricing.price import Pricing
from simcoll.pricing.views.simulated_calls import PricedLine, priced_lines
from simcoll.pricing.views.summary import links_of
from simcoll.pricing.views.text import shown
from simcoll.reports.page_shell import Figure
from simcoll.topology.graph import Topology
from simcoll.topology.svg import draw

Marks = dict[tuple[Hashable, Hashable], str]
"""Links by their ends, and what is said of each."""

_MARKED = 3
"""Links of a job that a picture points at."""


def marks_of_estimate(link: Bottleneck | None) -> Marks:
    """Returns the mark on the link that holds one collective up; empty without such a link."""
    return {} if link is None else {(link.source, link.target): f"bottleneck: {bottleneck_text(link)}"}


def marks_of_job(priced: Pricing) -> Marks:
    """The links that hold a job up for longest."""
    return {
        (one.source, one.target): f"bottleneck: {one.link} {one.source} -> {one.target}, busy for {shown(one.busy)}"
        for one in links_of(priced)[:_MARKED]
    }


_UNKNOWN = "No link of it is known to be a bottleneck."


def figure_of(topology: nx.DiGraph[Any], marks: Marks) -> Figure:
    """The picture, and what its marks say; the links of least worth come last."""
    words = f"{'; '.join(marks.values())}." if marks else _UNKNOWN
    return Figure("Topology", draw(topology, marks), words)


def topology_figure(topology: Topology, traces: Sequence[Trace]) -> Figure:
    """That of a simulated run: which link it is that holds the calls of the costliest line up."""
    lines = priced_lines(traces)
    costliest = max(lines, key=lambda line: line.seconds, default=None)
    link = None if costliest is None else _bottleneck(costliest, topology, traces)
    if costliest is None or link is None:
        return figure_of(topology, {})
    text = f"{costliest.op} at line {costliest.line} takes most of the time; its bottleneck is "
    text += f"{link.link} {link.source} -> {link.target}, busy for {_share(link.utilisation)} of it"
    return figure_of(topology, {(link.source, link.target): text})


def _share(part: float) -> str:
    return f"{part:.0%}" if part >= 0.005 else "less than 1%"


def _bottleneck(line: PricedLine, topology: Topology, traces: Sequence[Trace]) -> Bottleneck | None:
    groups = {group for trace in traces for group in trace.groups if line.group in (group.description, group.name)}
    if not groups:
        return None
    members = min(groups, key=lambda group: group.ranks).ranks
    try:
        return estimate(line.op, line.bytes, topology, ranks=members).bottleneck
    except EstimateError:
        return None
