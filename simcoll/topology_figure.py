"""The topology of a simulated run as a figure of its page, with what holds its costliest call up marked."""

from __future__ import annotations

from collections.abc import Sequence

from simcoll.estimate_value import Bottleneck
from simcoll.estimator import EstimateError, estimate
from simcoll.priced_calls import PricedLine, priced_lines
from simcoll.reports.html_report import Figure
from simcoll.topology import Topology
from simcoll.topology_drawing import draw
from simcoll.verifier.trace import Trace


def topology_figure(topology: Topology, traces: Sequence[Trace]) -> Figure:
    """The picture, and in words which link it is that holds the calls of which line up."""
    lines = priced_lines(traces)
    costliest = max(lines, key=lambda line: line.seconds, default=None)
    link = None if costliest is None else _bottleneck(costliest, topology, traces)
    if costliest is None or link is None:
        return Figure("Topology", draw(topology), "No link of it is known to be the bottleneck of the run.")
    text = f"{costliest.op} at line {costliest.line} takes most of the time; its bottleneck is "
    text += f"{link.link} {link.source} -> {link.target}, busy for {link.utilisation:.0%} of it"
    return Figure("Topology", draw(topology, {(link.source, link.target): text}), f"{text}.")


def _bottleneck(line: PricedLine, topology: Topology, traces: Sequence[Trace]) -> Bottleneck | None:
    groups = {group for trace in traces for group in trace.groups if line.group in (group.description, group.name)}
    if not groups:
        return None
    members = min(groups, key=lambda group: group.ranks).ranks
    try:
        return estimate(line.op, line.bytes, topology, ranks=members).bottleneck
    except EstimateError:
        return None
