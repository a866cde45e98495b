"""What-if options as they are typed: a straggling rank, a slow link, the compute of a step."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import networkx as nx

from simcoll.errors import PricingError
from simcoll.pricing import compute
from simcoll.pricing.compute import Straggler
from simcoll.topology.hardware import nearest

_RANK = re.compile(r"\d{1,7}", re.ASCII)
_MOST = 1e9


@dataclass(frozen=True, slots=True)
class SlowLink:
    """The link between two nodes of the topology, or all links of one node or host, ``factor`` times as slow."""

    nodes: tuple[str, ...]
    factor: float


def parse_straggler(text: str) -> Straggler:
    """``3:1.5`` (half as long again) or ``3:+0.02`` (20 ms more in each step); raises PricingError."""
    rank, colon, much = text.partition(":")
    longer = much.startswith("+")
    value = _number(much.removeprefix("+"))
    if not colon or _RANK.fullmatch(rank) is None or value is None:
        raise PricingError(f"--straggler {text!r:.60}: expected RANK:FACTOR or RANK:+SECONDS, such as 3:1.5 or 3:+0.02")
    return Straggler(int(rank), seconds=value) if longer else Straggler(int(rank), factor=value)


def parse_slow_link(text: str) -> SlowLink:
    """``A,B,2`` (the link between two nodes at half its bandwidth), ``A,2`` (all links of one); raises PricingError."""
    *nodes, factor = text.split(",")
    value = _number(factor)
    if not 1 <= len(nodes) <= 2 or not all(nodes) or not value:
        raise PricingError(f"--slow-link {text!r:.80}: expected NODE,NODE,FACTOR or NODE,FACTOR with FACTOR above 0")
    return SlowLink(tuple(node.strip() for node in nodes), value)


def parse_compute(text: str) -> Callable[..., Any]:
    """``none``, or seconds of a step; raises PricingError."""
    if text == "none":
        return compute.none
    value = _number(text)
    if value is None:
        raise PricingError(f"--compute {text!r:.40}: expected measured, none, or the seconds of a step such as 0.25")
    return compute.per_step(value)


def step_seconds(flops: str, peak: str | None, mfu: str) -> float:
    """Seconds that a rank takes over so many floating-point operations; raises PricingError.

    ``peak`` is the GPU's, in operations/s; ``mfu`` the share of it that the program gets (model FLOPs utilisation).
    """
    work, rate, share = _number(flops), parse_peak(peak), parse_share(mfu)
    if work is None:
        raise PricingError(f"--flops {flops!r:.40}: expected the operations of a rank in a step, such as 2.5e15")
    if rate is None:
        raise PricingError("--gpu-peak: expected the GPU's operations/s, such as 989e12; it goes with --flops")
    return work / (rate * share)


def parse_peak(text: str | None) -> float | None:
    """Operations/s, None where nothing is said; raises PricingError."""
    rate = _number(text or "")
    if text is not None and not rate:
        raise PricingError(f"--gpu-peak {text!r:.40}: expected the GPU's operations/s, such as 989e12")
    return rate


def parse_share(text: str) -> float:
    """A share of a GPU's peak; raises PricingError."""
    share = _number(text)
    if not share or share > 1:
        raise PricingError(f"--mfu {text!r:.40}: expected a share of the peak, above 0 and at most 1")
    return share


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) and value >= 0 else None


def slowed(topology: nx.DiGraph[Any], links: Sequence[SlowLink]) -> nx.DiGraph[Any]:
    """A copy of a topology with slower links; raises PricingError for a link that it does not have."""
    if not links:
        return topology
    copy = topology.copy()
    for link in links:
        for one, other in _edges(copy, link):
            copy.edges[one, other]["bandwidth"] /= link.factor
    copy.graph["name"] = f"{topology.graph.get('name', 'topology')}, slow link"
    return copy


def _edges(graph: nx.DiGraph[Any], link: SlowLink) -> list[tuple[Hashable, Hashable]]:
    if len(link.nodes) == 2:
        ends = [_named(graph, name) for name in link.nodes]
        found = [edge for edge in (tuple(ends), tuple(reversed(ends))) if graph.has_edge(*edge)]
        if not found:
            beside = sorted(str(node) for node in graph.successors(ends[0]))[:6]
            raise PricingError(
                f"--slow-link: {link.nodes[0]} and {link.nodes[1]} are not joined; {link.nodes[0]} is joined to "
                f"{', '.join(beside) or 'nothing'}"
            )
        return [(one, other) for one, other in found]
    nodes = _of_host(graph, link.nodes[0]) or {_named(graph, link.nodes[0])}
    return [(one, other) for one, other in graph.edges if one in nodes or other in nodes]


def _of_host(graph: nx.DiGraph[Any], name: str) -> set[Hashable]:
    """The nodes of a server by their names (``host3/nic0``), or the GPUs whose attribute ``host`` says so."""
    gpus = {node for node, host in graph.nodes(data="host") if host is not None and str(host) == name}
    named = {node for node in graph if str(node).startswith(f"{name}/")}
    return named or gpus


def _named(graph: nx.DiGraph[Any], name: str) -> Hashable:
    names: dict[str, Hashable] = {str(node): node for node in graph}
    if name not in names:
        raise PricingError(f"--slow-link: the topology has no node {name!r:.60}, expected {nearest(name, names)}")
    return names[name]
