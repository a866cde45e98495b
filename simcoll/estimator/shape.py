"""Reduces a topology, or some of its ranks, to the numbers of the closed form.

The slowest link counts: a step of a collective ends when its slowest transfer does, so that one slow NIC or NVLink
holds all ranks back. Bandwidths are bytes/s in each direction, latencies seconds from GPU to GPU.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import networkx as nx

from simcoll.errors import TopologyError
from simcoll.topology.graph import derived, link_kind
from simcoll.topology.placement import Link, Placement, both_ways, kind_of, placement_of

_INF = float("inf")


@dataclass(frozen=True, slots=True)
class ClusterShape:
    """Some ranks of a topology as the closed form sees them.

    ``domains`` is the number of NVLink domains or servers that they are in, ``local`` the number of them that a domain
    holds on average, ``root_local`` that of the domain of the first rank, which is the root. ``inside`` is the
    narrowest link between ranks of a domain, None where each has one; ``outside`` the narrowest link out of a domain,
    None where there is only one. ``network`` is the bandwidth of all links out of a domain together, ``ring_network``
    and ``exchange_network`` the part of it that the switches behind them leave to a ring and to an exchange of all
    ranks with all others, ``crowd_network`` the same for an exchange whose pieces within a domain cross its links as
    well, ``root_network`` the bandwidth of the links out of a single rank. The exchanges' are per domain of ``local``
    ranks: where domains differ, of the one that takes longest. ``sharp`` says that the NVSwitches reduce.
    """

    ranks: int
    domains: int
    local: float
    root_local: int
    family: str | None
    fabric: str | None
    cpu: str | None
    inside: Link | None
    inside_latency: float
    outside: Link | None
    outside_latency: float
    network: float
    ring_network: float
    exchange_network: float
    crowd_network: float
    root_network: float
    sharp: bool

    @property
    def inside_bandwidth(self) -> float:
        """Bytes/s of a rank's links within its domain; infinite where it is alone there."""
        return _INF if self.inside is None else self.inside.bandwidth


def shape_of(graph: nx.DiGraph[Any], group: tuple[int, ...] | None = None) -> ClusterShape:
    """The shape of a topology, or of the ranks ``group`` of it; raises TopologyError where they are not joined."""
    return derived(graph, ("shape", group), lambda graph: _shape(graph, placement_of(graph), group))


def _shape(graph: nx.DiGraph[Any], placement: Placement, group: Sequence[int] | None) -> ClusterShape:
    members = range(len(placement.gpus)) if group is None else group
    domains: dict[Hashable, list[int]] = {}
    for rank in members:
        domains.setdefault(placement.domain[rank], []).append(rank)
    inside = _inside(graph, placement, domains)
    out, root, outside = _outside(placement, domains)
    _joined(placement, members)
    ends = _ends(placement, members, domains)
    ring, exchange, crowd = _narrowed(placement, members, {domain: len(own) for domain, own in domains.items()}, out)
    family = graph.graph.get("gpu") or graph.nodes[placement.gpus[members[0]]].get("model")
    return ClusterShape(
        ranks=len(members),
        domains=len(domains),
        local=len(members) / max(len(domains), 1),
        root_local=len(domains[placement.domain[members[0]]]),
        family=_lower(family),
        fabric=_lower(graph.graph.get("fabric")),
        cpu=_lower(graph.graph.get("cpu")),
        inside=inside,
        inside_latency=_latency(graph, *ends[0]),
        outside=outside,
        outside_latency=_latency(graph, *ends[1]),
        network=min(out.values()),
        ring_network=ring,
        exchange_network=exchange,
        crowd_network=crowd,
        root_network=root,
        sharp=inside is not None and inside.kind == "nvlink" and _reduces(graph, placement, domains),
    )


def _lower(name: object) -> str | None:
    return str(name).lower() if name else None


def _joined(placement: Placement, members: Sequence[int]) -> None:
    first = members[0]
    apart = next((rank for rank in members if placement.island[rank] != placement.island[first]), None)
    if apart is not None:
        raise TopologyError(
            f"no way leads from {placement.gpus[first]!r} to {placement.gpus[apart]!r} and back; join them in both "
            "directions, or leave one of them out of the ranks"
        )


Ends = tuple[Hashable, Hashable]


def _ends(placement: Placement, members: Sequence[int], domains: dict[Hashable, list[int]]) -> tuple[Ends, Ends]:
    """Two ranks that are far apart within a domain, and two in different ones; twice the same where there are none."""
    largest, first = max(domains.values(), key=len), members[0]
    apart = next((rank for rank in reversed(members) if placement.domain[rank] != placement.domain[first]), first)
    return (placement.gpus[largest[0]], placement.gpus[largest[-1]]), (placement.gpus[first], placement.gpus[apart])


def _inside(graph: nx.DiGraph[Any], placement: Placement, domains: dict[Hashable, list[int]]) -> Link | None:
    """The narrowest link that a ring within a domain crosses, over all domains."""
    links = [
        _within(graph, [placement.gpus[rank] for rank in members]) for members in domains.values() if len(members) > 1
    ]
    return min(links, key=lambda link: link.bandwidth) if links else None


def _within(graph: nx.DiGraph[Any], gpus: list[Hashable]) -> Link:
    """NVLink where it joins all of them, else the narrowest link that does: NVLink of some does not help a ring."""
    chosen = set(gpus)
    joined = [_nvlinks(graph, gpu, chosen) for gpu in gpus]
    if all(joined) and _connected(graph, gpus):
        return min((link for links in joined for link in links[:1]), key=lambda link: link.bandwidth)
    return min(_wires(graph, gpus), key=lambda link: link.bandwidth)


def _nvlinks(graph: nx.DiGraph[Any], gpu: Hashable, chosen: set[Hashable]) -> list[Link]:
    """One link that stands for all NVLinks of a GPU to switches, or without a switch to the chosen GPUs."""
    found = [
        (other, both_ways(graph, gpu, other))
        for other in graph.successors(gpu)
        if link_kind(graph, gpu, other) == "nvlink" and (kind_of(graph, other) != "gpu" or other in chosen)
    ]
    if not found:
        return []
    return [Link(gpu, found[0][0], "nvlink", sum(bandwidth for _, bandwidth in found))]


def _connected(graph: nx.DiGraph[Any], gpus: list[Hashable]) -> bool:
    """True if NVLink alone leads from the first GPU to all others, through switches and the GPUs among them."""
    chosen, seen, queue = set(gpus), {gpus[0]}, deque(gpus[:1])
    while queue:
        one = queue.popleft()
        for other in graph.successors(one):
            passes = kind_of(graph, other) == "nvswitch" or other in chosen
            if passes and other not in seen and link_kind(graph, one, other) == "nvlink":
                seen.add(other)
                queue.append(other)
    return chosen <= seen


def _wires(graph: nx.DiGraph[Any], gpus: list[Hashable]) -> list[Link]:
    """The links of PCIe and between sockets on the way from each GPU to the next: a ring crosses each once."""
    links = []
    for one, other in zip(gpus, gpus[1:] + gpus[:1], strict=True):
        way = _way(graph, one, other, ("pcie", "cpu")) or _way(graph, one, other, ("pcie", "cpu", "nvswitch", "gpu"))
        for source, target in pairwise(way):
            kind = link_kind(graph, source, target)
            links.append(Link(source, target, kind, both_ways(graph, source, target)))
    if not links:
        raise TopologyError(
            f"GPUs {gpus[0]!r} and {gpus[1]!r} are on one host, but no link joins them; "
            "join them over nvlink, pcie or cpu, or give them different hosts"
        )
    return links


def _way(graph: nx.DiGraph[Any], start: Hashable, end: Hashable, passing: Sequence[str]) -> list[Hashable]:
    """The nodes of a way of fewest hops through nodes of those kinds, ends included; empty where there is none.

    Of several it is the one that a search from the start alone finds first. It is looked for from both ends, each time
    from where fewer links lead on: from one end a way past the network's switches would lead to every NIC of the
    cluster, for each pair of ranks anew.
    """
    onward, back = _Neighbours(graph, "successors", passing), _Neighbours(graph, "predecessors", passing)
    came: dict[Hashable, Hashable] = {start: start}
    level, far, near = [start], [{end}], {end}
    while level and far[-1] and far[-1].isdisjoint(level):
        if onward.count(level) <= back.count(far[-1]):
            level = _next_level(level, came, onward, end)
        else:
            far.append({other for one in far[-1] for other in back.of(one, start)} - near)
            near |= far[-1]
    # What is on no shortest way is passed over, and the others stay in their order.
    for due in reversed(far[:-1]):
        level = _next_level(level, came, onward, end, due)
    return _back(came, start, end) if end in came else []


def _next_level(
    level: list[Hashable],
    came: dict[Hashable, Hashable],
    onward: _Neighbours,
    end: Hashable,
    due: set[Hashable] | None = None,
) -> list[Hashable]:
    """The nodes that are one link farther, in the order in which they are found; those that are ``due`` alone."""
    found = []
    for one in level:
        for other in onward.of(one, end):
            if other not in came and (due is None or other in due):
                came[other] = one
                found.append(other)
    return found


class _Neighbours:
    """The nodes to which links lead (or from which they come), through nodes of some kinds."""

    def __init__(self, graph: nx.DiGraph[Any], direction: str, passing: Sequence[str]) -> None:
        self._of, self._nodes, self._passing = getattr(graph, direction), graph.nodes, passing
        self._known: dict[Hashable, list[tuple[Hashable, str]]] = derived(graph, direction, lambda graph: {})

    def _all(self, node: Hashable) -> list[tuple[Hashable, str]]:
        if (found := self._known.get(node)) is None:
            found = self._known[node] = [(other, self._nodes[other]["kind"]) for other in self._of(node)]
        return found

    def count(self, nodes: Iterable[Hashable]) -> int:
        """The number of links there."""
        return sum(len(self._all(node)) for node in nodes)

    def of(self, node: Hashable, last: Hashable) -> Iterator[Hashable]:
        """Those that may be passed, and the last one of a way, of whatever kind it is."""
        return (other for other, kind in self._all(node) if kind in self._passing or other == last)


def _back(came: dict[Hashable, Hashable], start: Hashable, end: Hashable) -> list[Hashable]:
    way = [end]
    while way[-1] != start:
        way.append(came[way[-1]])
    return way[::-1]


def _latency(graph: nx.DiGraph[Any], one: Hashable, other: Hashable) -> float:
    """Seconds of a way of fewest hops; raises TopologyError where there is none."""
    if one == other:
        return 0.0
    way = _way(graph, one, other, ("pcie", "cpu", "nic", "nvswitch", "switch", "gpu"))
    if not way:
        raise TopologyError(f"no way leads from {one!r} to {other!r}; join them, or leave one of them out of the ranks")
    return float(sum(graph.edges[edge]["latency"] for edge in pairwise(way)))


def _outside(
    placement: Placement, domains: dict[Hashable, list[int]]
) -> tuple[dict[Hashable, float], float, Link | None]:
    """Bytes/s out of each domain and out of the narrowest rank, and the narrowest link.

    A collective spreads evenly over a domain's NICs and ranks, so that the slowest of them sets the pace of all.
    """
    if len(domains) == 1:
        return dict.fromkeys(domains, _INF), _INF, None
    out: dict[Hashable, float] = {}
    root, narrowest = _INF, None
    for domain, members in domains.items():
        links = list(dict.fromkeys(link for rank in members for link in placement.exits[rank]))
        if not links:
            raise TopologyError(f"no link leads out of the server of {placement.gpus[members[0]]!r}; give it a NIC")
        slowest = min(links, key=lambda link: link.bandwidth)
        way = min(placement.ways[rank] for rank in members)
        out[domain] = min(slowest.bandwidth * len(links), way * len(members))
        root = min(root, way, slowest.bandwidth * min(len(placement.exits[rank]) for rank in members))
        if narrowest is None or slowest.bandwidth < narrowest.bandwidth:
            narrowest = slowest
    return out, root, narrowest


def _narrowed(
    placement: Placement, members: Sequence[int], sizes: dict[Hashable, int], out: dict[Hashable, float]
) -> tuple[float, float, float]:
    """Returns a domain's bandwidth for a ring, for an exchange, and for one of all pieces; see `ClusterShape`.

    A ring leaves each part of the network once. In an exchange a part of k ranks sends k(n - k) pieces, a domain of p
    ranks p(n - p), or pn with those that stay inside.
    """
    ring, ranks = min(out.values()), len(members)
    if len(sizes) == 1:
        return ring, ring, ring
    local = ranks / len(sizes)
    spread = local * (ranks - local)
    bounds = []
    for cut in placement.cuts:
        parts = Counter(cut.part[rank] for rank in members)
        if len(parts) > 1:
            ring = min([ring, *(cut.out.get(part, 0.0) for part in parts)])
            bounds += [cut.out.get(part, 0.0) * spread / (k * (ranks - k)) for part, k in parts.items()]
    if ring == 0.0:
        raise TopologyError("a part of the network has no link to the rest; join its switches to a higher level")
    exchange = min(bounds + [out[domain] * spread / (p * (ranks - p)) for domain, p in sizes.items()])
    return ring, exchange, min(bounds + [out[domain] * local / p for domain, p in sizes.items()])


def _reduces(graph: nx.DiGraph[Any], placement: Placement, domains: dict[Hashable, list[int]]) -> bool:
    """True if the first rank of each domain with several hangs on an NVSwitch that reduces."""
    return all(
        any(graph.nodes[other].get("sharp") is True for other in graph.successors(placement.gpus[members[0]]))
        for members in domains.values()
        if len(members) > 1
    )
