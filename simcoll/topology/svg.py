"""A topology as an SVG picture: layers from the core switches down to the GPUs, each server in a column of its own.

A large cluster is drawn as a server of each kind, with stacks for the others (`simcoll.topology.summary`). The
picture needs nothing beside itself, is readable in light and in dark, and repeats the meaning of its colours in words.
All text from outside is escaped.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from typing import Any
from xml.sax.saxutils import escape

import networkx as nx

from simcoll.core.units import counted
from simcoll.topology.summary import LinkClass, Stacks, TopologySummary, stacked, summarise

_STEP, _LAYER, _MARGIN, _BOX = 84, 96, 40, (72, 30)
_LAYERS = ("core", "spine", "leaf", "nic", "cpu", "pcie", "gpu", "nvswitch")
_SWITCHES = {1: "leaf", 2: "spine"}
_SHIFT = 3
"""Pixels between the sheets of a stack."""

# Light, dark. Plain rules, for viewers that know no variables.
_FILLS = {
    "gpu": ("#d5f0c1", "#2f4f1c"),
    "nvswitch": ("#a8dda0", "#1f5a2c"),
    "pcie": ("#e6e6e6", "#444444"),
    "cpu": ("#cfe3f7", "#1f3f5f"),
    "nic": ("#fde3b8", "#5c4212"),
    "switch": ("#cdebef", "#1d4a52"),
}
_STROKES = {
    "nvlink": ("#3d7d21", "#7fce5c"),
    "pcie": ("#6e6e6e", "#b0b0b0"),
    "c2c": ("#7a5cc2", "#b49bf0"),
    "cpu": ("#3c78b4", "#7fb5ea"),
    "network": ("#0f7c8a", "#5cc3d0"),
}
_DASHES = {"network": "7 3", "c2c": "2 2", "cpu": "1 3"}
_INK, _PAPER, _FAINT, _MARK = (
    ("#1c1c1c", "#f0f0f0"),
    ("#ffffff", "#14171c"),
    ("#555555", "#b5b5b5"),
    ("#d4006a", "#ff6ab5"),
)

Point = tuple[float, float]
Marked = Mapping[tuple[Hashable, Hashable], str]
"""Links of a topology that a picture points at, by their ends, each with its label."""


def draw(graph: nx.DiGraph[Any], marked: Marked | None = None) -> str:
    """The topology as the text of an SVG document; ``marked`` links, such as bottlenecks, stand out."""
    shown, summary = stacked(graph), summarise(graph)
    places = _places(shown.graph)
    legend = _legend(summary)
    said = [f"! {text}" for text in (marked or {}).values()]
    width = max(max((x for x, _ in places.values()), default=0) + _STEP / 2 + _MARGIN, 560)
    bottom = max((y for _, y in places.values()), default=0) + _LAYER
    height = bottom + 20 * (len(legend) + len(said)) + _MARGIN / 2
    title = summary.name + (f" ({shown.note})" if shown.note else "")
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" class="simcoll-topology" viewBox="0 0 {width:.0f} {height:.0f}" '
            'role="img" font-family="sans-serif" font-size="11">',
            f"<title>{_text(title, 200)}</title>",
            f"<desc>{_text('. '.join([_told(summary), *said]), 2000)}</desc>",
            f"<style>{_style()}</style>",
            '<rect class="paper" width="100%" height="100%"/>',
            f'<text x="{_MARGIN}" y="24" font-size="15" font-weight="bold">{_text(title, 90)}</text>',
            *_lines(shown, places, marked or {}),
            *(_box(shown.graph, node, place) for node, place in places.items()),
            *_host_names(shown.graph, places, bottom - _LAYER * 0.4),
            *_legend_lines(legend, bottom),
            *_marks(said, bottom + 20 * len(legend)),
            "</svg>",
            "",
        ]
    )


def _told(summary: TopologySummary) -> str:
    """The picture in words, for readers who do not see it."""
    nodes = ", ".join(f"{count:,} {kind}" for kind, count in summary.nodes.items())
    links = "; ".join(text for _, text in _legend(summary))
    size = f"{counted(summary.ranks, 'rank')} on {counted(summary.hosts, 'host')}"
    return f"A topology of {size}: {nodes}. Links: {links}"


def _style() -> str:
    light, dark = (_rules(place) for place in (0, 1))
    return f"{light}@media (prefers-color-scheme:dark){{{dark}}}"


def _rules(place: int) -> str:
    """Light is 0, dark is 1."""
    rules = [f".k-{kind}{{fill:{fills[place]}}}" for kind, fills in _FILLS.items()]
    rules += [f".l-{link}{{stroke:{strokes[place]}}}" for link, strokes in _STROKES.items()]
    rules += [f".l-other{{stroke:{_FAINT[place]}}}", f".paper{{fill:{_PAPER[place]}}}"]
    rules += [f"text{{fill:{_INK[place]}}}", f".faint{{fill:{_FAINT[place]}}}", f".box{{stroke:{_FAINT[place]}}}"]
    rules += [f".mark{{stroke:{_MARK[place]}}}", f".said{{fill:{_MARK[place]};font-weight:bold}}"]
    rules += [f".sign{{fill:{_MARK[place]};stroke:{_PAPER[place]}}}", f".on{{fill:{_PAPER[place]};font-weight:bold}}"]
    return "".join(f".simcoll-topology {rule}" for rule in rules)


def _layer(graph: nx.DiGraph[Any], node: Hashable) -> int:
    attributes = graph.nodes[node]
    kind = attributes.get("layer", attributes["kind"])
    if kind == "switch":
        kind = _SWITCHES.get(attributes.get("level", 1), "core")
    return _LAYERS.index(kind)


def _places(graph: nx.DiGraph[Any]) -> dict[Hashable, Point]:
    """The place of each node: servers side by side, nodes of no server spread over all of them."""
    columns: dict[object, dict[int, list[Hashable]]] = {}
    for node in graph:
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


def _lines(shown: Stacks, places: dict[Hashable, Point], marked: Marked) -> list[str]:
    """A line for each joined pair, thicker the more it carries; links within a layer are arcs, marked ones on top."""
    said = {frozenset(map(shown.place.get, ends)): text for ends, text in marked.items()}
    lines, above = [], []
    seen: set[frozenset[Hashable]] = set()
    for one, other, edge in shown.graph.edges(data=True):
        pair = frozenset((one, other))
        if pair in seen:
            continue
        seen.add(pair)
        names = " - ".join(_name(shown.graph, node) for node in (one, other))
        many = f", {edge['count']:,} links" if edge.get("count", 1) > 1 else ""
        text = f"{names}: {_rate(edge['bandwidth'], edge['latency'])}{many}"
        path = _path(places[one], places[other])
        lines.append(_line(path, str(edge.get("link")), _thickness(edge["bandwidth"]), text))
        if pair in said:
            above.append(_line(path, "mark", _thickness(edge["bandwidth"]) + 3, f"{said[pair]}. {text}"))
            above.append(_sign(places[one], places[other]))
    return lines + above


def _path(one: Point, other: Point) -> str:
    (x1, y1), (x2, y2) = one, other
    bend = y1 + 18 + abs(x1 - x2) / 6 if y1 == y2 else (y1 + y2) / 2
    return f"M{x1:.1f} {y1:.1f} Q{(x1 + x2) / 2:.1f} {bend:.1f} {x2:.1f} {y2:.1f}"


def _thickness(bandwidth: float) -> float:
    return min(max(math.log10(bandwidth / 1e9 + 1) * 1.6, 0.6), 6)


def _line(path: str, link: str, width: float, text: str) -> str:
    kind = "mark" if link == "mark" else f"l-{link if link in _STROKES else 'other'}"
    dashes = f' stroke-dasharray="{_DASHES[link]}"' if link in _DASHES else ""
    return (
        f'<path class="{kind}" d="{path}" fill="none" stroke-width="{width:.1f}"{dashes}>'
        f"<title>{_text(text, 400)}</title></path>"
    )


def _sign(one: Point, other: Point) -> str:
    """An exclamation mark on a marked link, for those who see no colour."""
    x, y = (one[0] + other[0]) / 2, (one[1] + other[1]) / 2
    disc = f'<circle class="sign" cx="{x:.1f}" cy="{y:.1f}" r="9" stroke-width="2"/>'
    return f'{disc}<text class="on" x="{x:.1f}" y="{y + 5:.1f}" text-anchor="middle" font-size="14">!</text>'


def _box(graph: nx.DiGraph[Any], node: Hashable, place: Point) -> str:
    """A node, or as a stack many of them."""
    attributes = graph.nodes[node]
    sheets = 3 if "members" in attributes else 1
    corners = [
        (place[0] - _BOX[0] / 2 + _SHIFT * sheet, place[1] - _BOX[1] / 2 - _SHIFT * sheet)
        for sheet in reversed(range(sheets))
    ]
    style = f'class="box k-{attributes["kind"]}" width="{_BOX[0]}" height="{_BOX[1]}" rx="5"'
    drawn = "".join(f'<rect {style} x="{x:.1f}" y="{y:.1f}"/>' for x, y in corners)
    label = _text(_label(graph, node), 12)
    return (
        f"<g><title>{_text(_name(graph, node), 200)}</title>{drawn}"
        f'<text x="{place[0]:.1f}" y="{place[1] + 4:.1f}" text-anchor="middle">{label}</text></g>'
    )


def _name(graph: nx.DiGraph[Any], node: Hashable) -> str:
    return str(graph.nodes[node].get("about", node))


def _label(graph: nx.DiGraph[Any], node: Hashable) -> str:
    attributes = graph.nodes[node]
    if "members" in attributes:
        return str(attributes["label"])
    short = str(node).rpartition("/")[2]
    return short if attributes["kind"] != "gpu" or "/" not in str(node) else f"{short} r{attributes.get('rank', '')}"


def _host_names(graph: nx.DiGraph[Any], places: dict[Hashable, Point], height: float) -> list[str]:
    """The name of each server, or of those that a stack stands for, under its column."""
    columns: dict[object, list[float]] = {}
    for node, (x, _) in places.items():
        if "host" in graph.nodes[node]:
            columns.setdefault(graph.nodes[node]["host"], []).append(x)
    return [
        f'<text class="faint" x="{(min(xs) + max(xs)) / 2:.1f}" y="{height:.0f}" text-anchor="middle">'
        f"{_text(str(host), 24)}</text>"
        for host, xs in columns.items()
    ]


def _legend(summary: TopologySummary) -> list[tuple[str, str]]:
    """A line for each class of links: its kind, and its bandwidth."""
    return [(link.link, _class_text(link)) for link in summary.links[:12]]


def _class_text(link: LinkClass) -> str:
    speed = _rate(link.bandwidth, link.latency)
    return f"{link.link}: {link.source} and {link.target}, {speed}, {link.count:,} edges"


def _legend_lines(legend: list[tuple[str, str]], top: float) -> list[str]:
    found = []
    for row, (link, text) in enumerate(legend):
        y = top + 20 * row
        found.append(_line(f"M{_MARGIN} {y - 4:.0f} L{_MARGIN + 20} {y - 4:.0f}", link, 3.0, text))
        found.append(f'<text x="{_MARGIN + 26}" y="{y:.0f}">{_text(text, 120)}</text>')
    return found


def _marks(said: list[str], top: float) -> list[str]:
    return [
        f'<text class="said" x="{_MARGIN}" y="{top + 20 * row:.0f}">{_text(text, 140)}</text>'
        for row, text in enumerate(said)
    ]


def _rate(bandwidth: float, latency: float) -> str:
    return f"{bandwidth / 1e9:.4g} GB/s each way, {latency * 1e6:.3g} us"


def _text(text: str, length: int) -> str:
    """A text of bounded length, escaped, without what XML cannot hold."""
    clean = "".join(character if character.isprintable() else " " for character in text[: length + 1])
    return escape(clean if len(clean) <= length else f"{clean[: length - 3]}...")
