"""A topology as an SVG picture: layers from the core switches down to the GPUs, each server in a column of its own.

A large cluster is drawn by its first servers and the switches above them; a line says what was left out. All text from
outside is escaped.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable
from typing import Any
from xml.sax.saxutils import escape

import networkx as nx

from simcoll.topology import hosts
from simcoll.topology_summary import summarise

_MOST_NODES = 130
_STEP, _LAYER, _MARGIN, _BOX = 84, 96, 40, (72, 30)
_LAYERS = ("core", "spine", "leaf", "nic", "cpu", "pcie", "gpu", "nvswitch")
_SWITCHES = {1: "leaf", 2: "spine"}
_FILLS = {
    "gpu": "#d5f0c1",
    "nvswitch": "#a8dda0",
    "pcie": "#e6e6e6",
    "cpu": "#cfe3f7",
    "nic": "#fde3b8",
    "switch": "#f6c9c9",
}
_STROKES = {"nvlink": "#4c9a2a", "pcie": "#808080", "c2c": "#7a5cc2", "cpu": "#3c78b4", "network": "#c0392b"}

Point = tuple[float, float]


def draw(graph: nx.DiGraph[Any]) -> str:
    """The topology as the text of an SVG document."""
    chosen, left_out = _chosen(graph)
    places = _places(graph, chosen)
    width = max((x for x, _ in places.values()), default=0) + _STEP / 2 + _MARGIN
    legend = _legend(graph)
    bottom = max((y for _, y in places.values()), default=0) + _LAYER
    title = str(graph.graph.get("name", "topology")) + (f" ({left_out})" if left_out else "")
    height = bottom + 20 * len(legend) + _MARGIN / 2
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {max(width, 560):.0f} {height:.0f}" '
            'font-family="sans-serif" font-size="11">',
            '<rect width="100%" height="100%" fill="#ffffff"/>',
            f'<text x="{_MARGIN}" y="24" font-size="15" font-weight="bold">{escape(_cut(title, 90))}</text>',
            *_lines(graph, places),
            *(_box(graph, node, place) for node, place in places.items()),
            *_host_names(graph, places, bottom - _LAYER * 0.55),
            *_legend_lines(legend, bottom),
            "</svg>",
            "",
        ]
    )


def _chosen(graph: nx.DiGraph[Any]) -> tuple[set[Hashable], str]:
    """The nodes to draw: all, or the first servers with what they reach upwards; and a word on the rest."""
    if len(graph) <= _MOST_NODES:
        return set(graph), ""
    servers = hosts(graph)
    members: dict[object, list[Hashable]] = {}
    for node, attributes in graph.nodes.items():
        members.setdefault(attributes.get("host", node), []).append(node)
    chosen: set[Hashable] = set()
    shown = 0
    for host in servers:
        if chosen and len(chosen) + len(members[host]) > _MOST_NODES * 2 // 3:
            break
        chosen.update(members[host][:_MOST_NODES])
        shown += 1
    return chosen | _above(graph, chosen), f"{shown:,} of {len(servers):,} hosts are drawn"


def _above(graph: nx.DiGraph[Any], below: Iterable[Hashable]) -> set[Hashable]:
    """The nodes of no server that can be reached from some without going down."""
    found: set[Hashable] = set()
    pending = list(below)
    while pending:
        node = pending.pop()
        for other in graph[node]:
            if other not in found and "host" not in graph.nodes[other] and _layer(graph, other) <= _layer(graph, node):
                found.add(other)
                pending.append(other)
            elif graph.nodes[other]["kind"] == "nvswitch" and "host" not in graph.nodes[other]:
                found.add(other)
    return found


def _layer(graph: nx.DiGraph[Any], node: Hashable) -> int:
    attributes = graph.nodes[node]
    kind = attributes["kind"]
    if kind == "switch":
        kind = _SWITCHES.get(attributes.get("level", 1), "core")
    return _LAYERS.index(kind)


def _places(graph: nx.DiGraph[Any], chosen: set[Hashable]) -> dict[Hashable, Point]:
    """Where each node is: servers side by side, what belongs to none spread over all of them."""
    columns: dict[object, dict[int, list[Hashable]]] = {}
    for node in (node for node in graph if node in chosen):
        host = graph.nodes[node].get("host")
        columns.setdefault(host, {}).setdefault(_layer(graph, node), []).append(node)
    used = sorted({layer for layers in columns.values() for layer in layers})
    heights = {layer: _MARGIN + 30.0 + row * _LAYER for row, layer in enumerate(used)}
    shared = columns.pop(None, {})
    places: dict[Hashable, Point] = {}
    left = float(_MARGIN)
    for layers in columns.values():
        width = _STEP * max(map(len, layers.values()))
        places |= _spread(layers, heights, left, width)
        left += width + _STEP / 3
    whole = max(left - _MARGIN, _STEP * max(map(len, shared.values()), default=1))
    return places | _spread(shared, heights, _MARGIN, whole)


def _spread(
    layers: dict[int, list[Hashable]], heights: dict[int, float], left: float, width: float
) -> dict[Hashable, Point]:
    return {
        node: (left + width * (position + 0.5) / len(nodes), heights[layer])
        for layer, nodes in layers.items()
        for position, node in enumerate(nodes)
    }


def _lines(graph: nx.DiGraph[Any], places: dict[Hashable, Point]) -> list[str]:
    """A line for each joined pair, thicker the more it carries; links within a layer are arcs."""
    lines = []
    seen: set[frozenset[Hashable]] = set()
    for one, other, edge in graph.edges(data=True):
        pair = frozenset((one, other))
        if one not in places or other not in places or pair in seen:
            continue
        seen.add(pair)
        (x1, y1), (x2, y2) = places[one], places[other]
        bend = y1 + 18 + abs(x1 - x2) / 6 if y1 == y2 else (y1 + y2) / 2
        width = min(max(math.log10(edge["bandwidth"] / 1e9 + 1) * 1.6, 0.6), 6)
        colour = _STROKES.get(str(edge.get("link")), "#555555")
        what = f"{one} - {other}: {_rate(edge['bandwidth'], edge['latency'])}"
        lines.append(
            f'<path d="M{x1:.1f} {y1:.1f} Q{(x1 + x2) / 2:.1f} {bend:.1f} {x2:.1f} {y2:.1f}" fill="none" '
            f'stroke="{colour}" stroke-width="{width:.1f}"><title>{escape(_cut(what, 200))}</title></path>'
        )
    return lines


def _box(graph: nx.DiGraph[Any], node: Hashable, place: Point) -> str:
    kind = str(graph.nodes[node]["kind"])
    name = str(node)
    short = name.rpartition("/")[2]
    label = short if kind != "gpu" or "/" not in name else f"{short} r{graph.nodes[node].get('rank', '')}"
    x, y = place[0] - _BOX[0] / 2, place[1] - _BOX[1] / 2
    return (
        f"<g><title>{escape(_cut(name, 200))}</title>"
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{_BOX[0]}" height="{_BOX[1]}" rx="5" '
        f'fill="{_FILLS[kind]}" stroke="#333333"/>'
        f'<text x="{place[0]:.1f}" y="{place[1] + 4:.1f}" text-anchor="middle">{escape(_cut(label, 12))}</text></g>'
    )


def _host_names(graph: nx.DiGraph[Any], places: dict[Hashable, Point], height: float) -> list[str]:
    """The name of each server under its column."""
    columns: dict[object, list[float]] = {}
    for node, (x, _) in places.items():
        if "host" in graph.nodes[node]:
            columns.setdefault(graph.nodes[node]["host"], []).append(x)
    return [
        f'<text x="{(min(xs) + max(xs)) / 2:.1f}" y="{height:.0f}" text-anchor="middle" fill="#555555">'
        f"{escape(_cut(str(host), 24))}</text>"
        for host, xs in columns.items()
    ]


def _legend(graph: nx.DiGraph[Any]) -> list[tuple[str, str]]:
    """A line for each class of links: colour and what it carries."""
    lines = []
    for link in summarise(graph).links[:12]:
        rate = _rate(link.bandwidth, link.latency)
        text = f"{link.link}: {link.source} and {link.target}, {rate}, {link.count:,} edges"
        lines.append((_STROKES.get(link.link, "#555555"), text))
    return lines


def _legend_lines(legend: list[tuple[str, str]], top: float) -> list[str]:
    return [
        f'<rect x="{_MARGIN}" y="{top + 20 * row - 9:.0f}" width="18" height="10" fill="{colour}"/>'
        f'<text x="{_MARGIN + 26}" y="{top + 20 * row:.0f}">{escape(_cut(text, 120))}</text>'
        for row, (colour, text) in enumerate(legend)
    ]


def _rate(bandwidth: float, latency: float) -> str:
    return f"{bandwidth / 1e9:.4g} GB/s each way, {latency * 1e6:.3g} us"


def _cut(text: str, length: int) -> str:
    """A text of bounded length without what XML cannot hold."""
    clean = "".join(character if character.isprintable() else " " for character in text)
    return clean if len(clean) <= length else f"{clean[: length - 3]}..."
