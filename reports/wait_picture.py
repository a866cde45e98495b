"""Ranks that wait for each other in a circle, as boxes and arrows of the report's page."""

from __future__ import annotations

from dataclasses import dataclass
from math import hypot
from pathlib import PurePath

import networkx as nx

from simcoll.core.ranges import ranks_text
from simcoll.core.text import safe
from simcoll.verifier.findings.describe import group_name
from simcoll.verifier.findings.finding import Finding, Side
from simcoll.verifier.findings.rules import DEADLOCK_CYCLE

_MOST = 12
_BOX = (190.0, 78.0)
_LETTERS = 25
_BEND = 0.22

Point = tuple[float, float]


@dataclass(frozen=True, slots=True)
class WaitBox:
    """Ranks that wait in one call: the middle of their box, the call, its group and its line."""

    x: float
    y: float
    ranks: str
    call: str
    group: str
    line: str
    culprit: bool


@dataclass(frozen=True, slots=True)
class WaitArrow:
    """An arrow from ranks that wait to those they wait for: a quadratic curve."""

    start: Point
    bend: Point
    end: Point


@dataclass(frozen=True, slots=True)
class WaitPicture:
    """A circle of waits, in units of the picture. ``text`` says the same, ``left_out`` how many sides are not drawn."""

    width: float
    height: float
    box: tuple[float, float]
    boxes: tuple[WaitBox, ...]
    arrows: tuple[WaitArrow, ...]
    text: str
    left_out: int


def wait_picture(finding: Finding) -> WaitPicture:
    """The picture of a finding each side of which waits for the next one, and the last for the first."""
    sides = finding.sides[:_MOST]
    left_out = len(finding.sides) - len(sides)
    graph: nx.DiGraph[int] = nx.cycle_graph(len(sides) + bool(left_out), create_using=nx.DiGraph)
    places = _places(graph)
    boxes = [_box(side, places[number], finding) for number, side in enumerate(sides)]
    if left_out:
        boxes.append(WaitBox(*places[len(sides)], f"and {left_out:,} more", "that wait for each other", "", "", False))
    width, height = (max(place[axis] for place in places.values()) + _BOX[axis] / 2 + 24 for axis in (0, 1))
    arrows = tuple(_arrow(places[one], places[other], (width / 2, height / 2)) for one, other in graph.edges)
    said = "; ".join(f"{ranks_text(side.ranks)} {side.note}" for side in sides)
    return WaitPicture(width, height, _BOX, tuple(boxes), arrows, said, left_out)


def _places(graph: nx.DiGraph[int]) -> dict[int, Point]:
    """The nodes of a cycle on an ellipse that leaves room between their boxes, the first one at the left."""
    number = len(graph)
    across, down = max(190.0, number * 52.0), 10.0 if number == 2 else max(95.0, number * 34.0)
    found = nx.circular_layout(graph)
    middle = across + _BOX[0] / 2 + 24, down + _BOX[1] / 2 + (60 if number == 2 else 24)
    return {node: (middle[0] - float(x) * across, middle[1] - float(y) * down) for node, (x, y) in found.items()}


def _box(side: Side, place: Point, finding: Finding) -> WaitBox:
    source = side.sources[0].source if side.sources else None
    line = f"{PurePath(source.file).name}:{source.line}" if source is not None and source.file else ""
    number = "" if side.place is None else f" #{side.place.number}"
    call = "" if side.call is None else f"in {side.call.op}{number}"
    group = finding.group if side.place is None else side.place.group
    of = "" if group is None else f"of {group_name(group)}"
    return WaitBox(*place, _cut(ranks_text(side.ranks)), _cut(call), _cut(of), _cut(line), finding.blames(side))


def _arrow(one: Point, other: Point, middle: Point) -> WaitArrow:
    """A curve from the edge of one box to that of another, bent away from the middle of the picture."""
    (x1, y1), (x2, y2) = one, other
    across = -(y2 - y1) * _BEND, (x2 - x1) * _BEND
    centre = (x1 + x2) / 2, (y1 + y2) / 2
    ways = [(centre[0] + sign * across[0], centre[1] + sign * across[1]) for sign in (-1, 1)]
    bend = max(ways, key=lambda way: _outwards(way, middle, upwards=x1 < x2))
    return WaitArrow(_edge(one, bend, 4), bend, _edge(other, bend, 9))


def _outwards(way: Point, middle: Point, *, upwards: bool) -> tuple[float, bool]:
    """Returns how far out a bend lies; of two equally far out, an arrow to the right prefers the one above."""
    return round(hypot(way[0] - middle[0], way[1] - middle[1]), 3), (way[1] < middle[1]) == upwards


def _edge(box: Point, towards: Point, gap: float) -> Point:
    """The point a little beyond a box's edge, on the line from its middle."""
    dx, dy = towards[0] - box[0], towards[1] - box[1]
    length = hypot(dx, dy) or 1.0
    reach = min(_BOX[0] / 2 / abs(dx) if dx else float("inf"), _BOX[1] / 2 / abs(dy) if dy else float("inf"))
    part = min(reach + gap / length, 1.0)
    return box[0] + dx * part, box[1] + dy * part


def _cut(text: str) -> str:
    text = safe(text)
    return text if len(text) <= _LETTERS else f"{text[: _LETTERS - 3]}..."


def is_circle(finding: Finding) -> bool:
    """True if the sides of a finding are waits, each for the next one."""
    return finding.code == DEADLOCK_CYCLE.code and len(finding.sides) > 1
