"""A topology in a few lines: numbers of nodes, links, and a text tree of a server.

A server of each kind of a large topology and the switches above are shown one by one; the rest is stacked. Servers are
alike if they have the same nodes and the same links, of the same speed, to the same kinds of neighbours.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import networkx as nx
from rich.console import Group, RenderableType
from rich.tree import Tree

from simcoll.core.text import plain
from simcoll.core.units import counted
from simcoll.reports.tables import Rows
from simcoll.topology.graph import hosts, ranks

_MOST_NODES = 130
"""A topology of so many nodes is shown in full."""

_KINDS_OF_HOSTS, _PER_KIND, _SWITCHES = 4, 32, 8


@dataclass(frozen=True, slots=True)
class Stacks:
    """A smaller graph, whose nodes stand for those of a topology: most for themselves, a stack for many.

    Stacks have attributes ``members`` (how many nodes, or hosts), ``label``, ``about`` and perhaps the ``layer`` in
    which they belong; edges have ``count``, and bandwidth and latency of one of them. ``place`` tells which node stands
    for each. ``note`` says what is stacked.
    """

    graph: nx.DiGraph[Any]
    place: dict[Hashable, Hashable]
    note: str


def alike(graph: nx.DiGraph[Any]) -> list[list[object]]:
    """The hosts of a topology, those that are alike together, in the order in which they stand in it."""
    members = _members(graph)
    found: dict[object, list[object]] = {}
    for host in hosts(graph):
        found.setdefault(_signature(graph, host, members[host]), []).append(host)
    return list(found.values())


def _members(graph: nx.DiGraph[Any]) -> dict[object, list[Hashable]]:
    members: dict[object, list[Hashable]] = {}
    for node, attributes in graph.nodes.items():
        members.setdefault(attributes.get("host", node), []).append(node)
    return members


def _signature(graph: nx.DiGraph[Any], host: object, nodes: Sequence[Hashable]) -> object:
    kinds = Counter(str(graph.nodes[node]["kind"]) for node in nodes)
    links = Counter(
        (
            str(graph.nodes[node]["kind"]),
            str(graph.nodes[other]["kind"]),
            graph.nodes[other].get("host", other) == host,
            float(edge["bandwidth"]),
            float(edge["latency"]),
        )
        for node in nodes
        for other, edge in graph[node].items()
    )
    return frozenset(kinds.items()), frozenset(links.items())


def stacked(graph: nx.DiGraph[Any]) -> Stacks:
    """The topology itself where it is small; else a server of each kind and, of each layer, the first switches."""
    if len(graph) <= _MOST_NODES:
        return Stacks(graph, {node: node for node in graph}, "")
    stacking = _Stacking(graph)
    note = stacking.place_hosts()
    stacking.place_switches()
    return Stacks(stacking.quotient(), stacking.place, note)


class _Stacking:
    """The node that stands for each node of a graph, and the attributes of those that stand for many."""

    def __init__(self, graph: nx.DiGraph[Any]) -> None:
        self._graph, self._members = graph, _members(graph)
        self.place: dict[Hashable, Hashable] = {}
        self._stacks: dict[Hashable, dict[str, object]] = {}

    def place_hosts(self) -> str:
        """Place the first host of each kind in full, those like it as one stack; returns the note on that."""
        kinds = alike(self._graph)
        for first, *others in kinds[:_KINDS_OF_HOSTS]:
            self._place_devices(first)
            self._stack_hosts(others, f"like {first}")
        unlike = [host for kind in kinds[_KINDS_OF_HOSTS:] for host in kind]
        self._stack_hosts(unlike, "others")
        shown, count = min(len(kinds), _KINDS_OF_HOSTS), sum(map(len, kinds))
        return f"{shown:,} of {count:,} hosts in full, the others as stacks" if shown < count else "parts as stacks"

    def _place_devices(self, host: object) -> None:
        """The nodes of one host; of a kind with very many the first ones."""
        kinds: dict[str, list[Hashable]] = {}
        for node in self._members[host]:
            kinds.setdefault(str(self._graph.nodes[node]["kind"]), []).append(node)
        for kind, found in kinds.items():
            self.place.update((node, node) for node in found[:_PER_KIND])
            self._stack(found[_PER_KIND:], {"kind": kind, "host": host}, kind)

    def _stack_hosts(self, found: Sequence[object], about: str) -> None:
        if not found:
            return
        span = f"{found[0]} to {found[-1]}" if len(found) > 1 else f"{found[0]}"
        key = ("hosts", found[0])
        count = counted(len(found), "host")
        # Beside the NICs, on which the network hangs.
        self._stacks[key] = {"kind": "gpu", "layer": "nic", "host": span, "members": len(found), "label": count}
        self._stacks[key]["about"] = f"{count} {about}: {span}"
        self.place.update((node, key) for host in found for node in self._members[host])

    def place_switches(self) -> None:
        """Place layer after layer, first the nodes above those that are shown in full."""
        layers: dict[tuple[float, str], list[Hashable]] = {}
        for node, attributes in self._graph.nodes.items():
            if node not in self.place:
                layers.setdefault((float(attributes.get("level", 1)), str(attributes["kind"])), []).append(node)
        for (level, kind), nodes in sorted(layers.items()):
            near = [node for node in nodes if any(self.place.get(other) == other for other in self._graph.pred[node])]
            shown = (near or nodes)[:_SWITCHES]
            rest = [node for node in nodes if node not in set(shown)]
            shown, rest = (nodes, []) if len(rest) == 1 else (shown, rest)
            self.place.update((node, node) for node in shown)
            self._stack(rest, {"kind": kind, "level": level}, kind)

    def _stack(self, nodes: Sequence[Hashable], attributes: dict[str, object], noun: str) -> None:
        if nodes:
            key = (noun, nodes[0])
            about = f"{counted(len(nodes), noun)} more: {nodes[0]} to {nodes[-1]}"
            self._stacks[key] = {**attributes, "members": len(nodes), "label": f"{len(nodes):,} more", "about": about}
            self.place.update((node, key) for node in nodes)

    def quotient(self) -> nx.DiGraph[Any]:
        smaller: nx.DiGraph[Any] = nx.DiGraph(**self._graph.graph)
        for node in dict.fromkeys(self.place[node] for node in self._graph):
            smaller.add_node(node, **(self._stacks[node] if node in self._stacks else self._graph.nodes[node]))
        for one, other, edge in self._graph.edges(data=True):
            ends = self.place[one], self.place[other]
            if ends[0] == ends[1]:
                continue
            if smaller.has_edge(*ends):
                smaller.edges[ends]["count"] += 1
            else:
                smaller.add_edge(*ends, **{**edge, "count": 1})
        return smaller


_KINDS_SHOWN = 4
_ABOVE = {"cpu": 0, "pcie": 1, "gpu": 2, "nic": 2}
_DEVICES_SHOWN, _NAMES = 64, 8


@dataclass(frozen=True, slots=True)
class LinkClass:
    """Like links: between which kinds of node, bytes/s and seconds of each direction, how many edges."""

    link: str
    source: str
    target: str
    bandwidth: float
    latency: float
    count: int


@dataclass(frozen=True, slots=True)
class TopologySummary:
    """The content of `simcoll topology show`."""

    name: str
    ranks: int
    hosts: int
    gpu: str | None
    fabric: str | None
    nodes: dict[str, int]
    links: tuple[LinkClass, ...]
    notes: tuple[str, ...]

    def as_json(self) -> dict[str, object]:
        """The summary for programs."""
        return {"schema": "simcoll.topology-summary/1", **asdict(self)}


def summarise(graph: nx.DiGraph[Any]) -> TopologySummary:
    """Count a topology's nodes and links."""
    kinds = Counter(str(attributes["kind"]) for attributes in graph.nodes.values())
    found = Counter(_class_of(graph, *edge) for edge in graph.edges)
    links = sorted((LinkClass(*key, count) for key, count in found.items()), key=lambda link: -link.bandwidth)
    return TopologySummary(
        name=str(graph.graph.get("name", "topology")),
        ranks=len(ranks(graph)),
        hosts=len(hosts(graph)),
        gpu=graph.graph.get("gpu"),
        fabric=graph.graph.get("fabric"),
        nodes=dict(kinds),
        links=tuple(links),
        notes=tuple(map(str, graph.graph.get("notes", ()))),
    )


def _class_of(graph: nx.DiGraph[Any], one: Hashable, other: Hashable) -> tuple[str, str, str, float, float]:
    """Both directions of a link are of one class if they are alike."""
    edge = graph.edges[one, other]
    source, target = sorted((str(graph.nodes[one]["kind"]), str(graph.nodes[other]["kind"])))
    return str(edge.get("link", "link")), source, target, float(edge["bandwidth"]), float(edge["latency"])


def render_summary(summary: TopologySummary) -> RenderableType:
    """The summary for people."""
    counts = ", ".join(f"{count:,} {kind}" for kind, count in summary.nodes.items())
    hardware = ", ".join(filter(None, (summary.gpu, summary.fabric)))
    size = f"{counted(summary.ranks, 'rank')}, {counted(summary.hosts, 'host')}"
    head = f"{summary.name}: {size}{f' ({hardware})' if hardware else ''}"
    table = Rows("link", "between", "GB/s each way", "us", "edges")
    for link in summary.links:
        ends = f"{link.source} and {link.target}"
        speed = f"{link.bandwidth / 1e9:,.2f}"
        table.add_row(plain(link.link), ends, speed, f"{link.latency * 1e6:.2f}", f"{link.count:,}")
    notes = [plain(f"note: {text}") for text in summary.notes]
    return Group(plain(head, "bold"), plain(counts), table, *notes)


def render_tree(graph: nx.DiGraph[Any]) -> RenderableType:
    """The topology as a text tree: the switches of the network, and a server of each kind in full."""
    servers, kinds = hosts(graph), alike(graph)
    tree = Tree(plain(str(graph.graph.get("name", "topology")), "bold"))
    _add_network(tree, graph)
    for first, *others in kinds[:_KINDS_SHOWN]:
        _add_host(tree, graph, first, servers[first])
        if others:
            span = f"{others[0]} to {others[-1]}" if len(others) > 1 else f"{others[0]}"
            tree.add(plain(f"{counted(len(others), 'more host')} like {first}: {span}", "dim"))
    if unlike := sum(map(len, kinds[_KINDS_SHOWN:])):
        tree.add(plain(f"and {unlike:,} more hosts of other kinds", "dim"))
    return tree


def _add_network(tree: Tree, graph: nx.DiGraph[Any]) -> None:
    """Switches by level, the highest first."""
    levels: dict[int, list[Hashable]] = {}
    for node, attributes in graph.nodes.items():
        if attributes["kind"] == "switch":
            levels.setdefault(int(attributes.get("level", 1)), []).append(node)
    for level in sorted(levels, reverse=True):
        switches = levels[level]
        named = str(switches[0]) if len(switches) == 1 else f"{switches[0]} to {switches[-1]}"
        tree.add(plain(f"{named}: {len(switches):,} switch{'es' if len(switches) > 1 else ''}, level {level}"))


def _add_host(tree: Tree, graph: nx.DiGraph[Any], host: object, gpus: list[Hashable]) -> None:
    """Sockets, PCIe switches and devices as a tree; then the NVLinks."""
    members = [node for node, attributes in graph.nodes.items() if attributes.get("host", node) == host]
    branch = tree.add(plain(f"{host}: {len(gpus)} GPU{'s' if len(gpus) > 1 else ''}"))
    branches: dict[Hashable | None, Tree] = {}
    listed = [node for node in members if graph.nodes[node]["kind"] != "nvswitch"]
    for node in sorted(listed, key=lambda node: _ABOVE.get(graph.nodes[node]["kind"], 3))[:_DEVICES_SHOWN]:
        parent = next((other for other in graph[node] if other in branches and _hangs(graph, node, other)), None)
        speed = f"  {graph.edges[node, parent]['bandwidth'] / 1e9:.4g} GB/s" if parent is not None else ""
        branches[node] = branches.get(parent, branch).add(plain(_short(node) + speed))
    if len(listed) > _DEVICES_SHOWN:
        branch.add(plain(f"and {len(listed) - _DEVICES_SHOWN:,} more devices", "dim"))
    for line in _nvlinks(graph, gpus):
        branch.add(plain(line))


def _hangs(graph: nx.DiGraph[Any], node: Hashable, other: Hashable) -> bool:
    kinds = graph.nodes[node]["kind"], graph.nodes[other]["kind"]
    within = graph.edges[node, other].get("link") in ("pcie", "c2c")
    return within and (_ABOVE.get(kinds[0], 3) > _ABOVE.get(kinds[1], 3) or kinds == ("pcie", "pcie"))


def _nvlinks(graph: nx.DiGraph[Any], gpus: list[Hashable]) -> list[str]:
    """A line for each NVSwitch, and one for each pair of GPUs with links of their own."""
    ends: dict[Hashable, list[Hashable]] = {}
    for gpu in gpus:
        for other, edge in graph[gpu].items():
            if edge.get("link") == "nvlink" and (graph.nodes[other]["kind"] != "gpu" or str(other) > str(gpu)):
                ends.setdefault(other, []).append(gpu)
    return [f"{_short(other)} by NVLink: {_rates(graph, other, members)}" for other, members in ends.items()]


def _rates(graph: nx.DiGraph[Any], other: Hashable, gpus: list[Hashable]) -> str:
    """The GPUs at a speed, and the speed: once where all have the same."""
    found: dict[str, list[str]] = {}
    for gpu in gpus:
        found.setdefault(_gbs(graph, gpu, other), []).append(_short(gpu))
    parts = []
    for speed, names in found.items():
        shown = ", ".join(names) if len(names) <= _NAMES else f"{names[0]} to {names[-1]}"
        parts.append(f"{shown} {speed}" if len(names) == 1 else f"{shown} {speed} each")
    return "; ".join(parts)


def _gbs(graph: nx.DiGraph[Any], one: Hashable, other: Hashable) -> str:
    return f"{graph.edges[one, other]['bandwidth'] / 1e9:.4g} GB/s"


def _short(node: Hashable) -> str:
    return str(node).rpartition("/")[2]
