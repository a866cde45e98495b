"""Measured times of a cluster's collectives, inter- and extrapolated over sizes and world sizes.

A topology that ``simcoll calibrate`` has written carries its measurements as the graph's attribute ``measured``: a list
of ``{"op", "ranks", "bytes", "seconds"}``, ``bytes`` as nccl-tests counts them. Between two sizes the time follows a
straight line on logarithmic axes; below the smallest size it stays; above the largest the bandwidth does. A world size
in between two that were measured lies between their times; beyond them the part of the time that does not depend on the
size grows with the number of ranks, and the rest with the collective's traffic factor.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import networkx as nx

from simcoll.errors import TopologyError
from simcoll.spec.collectives import COLLECTIVES
from simcoll.topology.graph import derived

SCHEMA = "simcoll.measured/1"
"""The schema of the file that the measuring ranks write."""

MEASURABLE = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast")
"""The collectives that `simcoll calibrate` measures."""

SMALLEST = 1024
"""The smallest size that it measures, in bytes."""

ATTRIBUTE = "measured"
_FIELDS: dict[str, type | tuple[type, ...]] = {"op": str, "ranks": int, "bytes": int, "seconds": (int, float)}


@dataclass(frozen=True, slots=True)
class Measurement:
    """One row: ``seconds`` that a collective of ``bytes`` took on ``ranks`` ranks."""

    op: str
    ranks: int
    bytes: int
    seconds: float


@dataclass(frozen=True, slots=True)
class MeasuredCurve:
    """Seconds by size for one op and world size; neither ever falls."""

    sizes: tuple[int, ...]
    seconds: tuple[float, ...]

    def at(self, size: int) -> float:
        """Seconds for a size in bytes."""
        last = len(self.sizes) - 1
        after = bisect_right(self.sizes, size)
        if after == 0:
            return self.seconds[0]
        if after > last:
            return self.seconds[last] * self._growth(size)
        (low, high), (fast, slow) = self.sizes[after - 1 : after + 1], self.seconds[after - 1 : after + 1]
        share = math.log(size / low) / math.log(high / low)
        return fast * math.exp(share * math.log(slow / fast))

    def _growth(self, size: int) -> float:
        """The ratio of the time of a size beyond the largest to that of the largest, by the last stretch's bytes."""
        largest, time = self.sizes[-1], self.seconds[-1]
        if len(self.sizes) == 1:
            return size / largest
        # Where noise has levelled the last stretch, at least half of what a byte took so far.
        per_byte = (time - self.seconds[-2]) / (largest - self.sizes[-2])
        return 1 + max(per_byte, time / largest / 2) * (size - largest) / time

    @property
    def fixed(self) -> float:
        """The part that does not depend on the size, in seconds."""
        return self.seconds[0]


Curves = Mapping[str, Mapping[int, MeasuredCurve]]


def curves(graph: nx.DiGraph[Any]) -> Curves:
    """The measurements of a topology by op and world size; empty for one that has none; raises TopologyError."""
    return derived(graph, ATTRIBUTE, lambda one: curves_of(measurements(one.graph.get(ATTRIBUTE, ()))))


def measurements(rows: object) -> list[Measurement]:
    """Rows as they stand in a file; raises TopologyError that names the wrong row and the expected form."""
    if not isinstance(rows, (list, tuple)):
        raise TopologyError(f"{ATTRIBUTE} is {type(rows).__name__}, expected a list of op, ranks, bytes, seconds")
    return [_measurement(number, row) for number, row in enumerate(rows)]


def _measurement(number: int, row: object) -> Measurement:
    where = f"{ATTRIBUTE}[{number}]"
    if not isinstance(row, Mapping):
        raise TopologyError(f"{where} is {row!r:.80}, expected op, ranks, bytes and seconds")
    for name, kind in _FIELDS.items():
        value = row.get(name)
        if not isinstance(value, kind) or isinstance(value, bool):
            raise TopologyError(f"{where} has {name} {value!r:.80}, expected {_expected(name)}")
    if row["op"] not in COLLECTIVES:
        raise TopologyError(f"{where} has op {row['op']!r:.80}, expected one of {', '.join(COLLECTIVES)}")
    if not (row["ranks"] >= 1 and row["bytes"] >= 0 and 0 < row["seconds"] < math.inf):
        raise TopologyError(f"{where}: expected at least 1 rank, at least 0 bytes and seconds above 0, got {dict(row)}")
    return Measurement(row["op"], row["ranks"], row["bytes"], float(row["seconds"]))


def _expected(name: str) -> str:
    return {"op": "the name of a collective", "seconds": "a number"}.get(name, "a whole number")


def curves_of(rows: Iterable[Measurement]) -> dict[str, dict[int, MeasuredCurve]]:
    """The rows as curves; several rows of one size count with their median."""
    grouped: dict[str, dict[int, dict[int, list[float]]]] = {}
    for row in rows:
        of_size = grouped.setdefault(row.op, {}).setdefault(row.ranks, {})
        of_size.setdefault(max(1, row.bytes), []).append(row.seconds)
    return {op: {ranks: _curve(times) for ranks, times in by_ranks.items()} for op, by_ranks in grouped.items()}


def _curve(times: Mapping[int, list[float]]) -> MeasuredCurve:
    sizes = sorted(times)
    seconds = [sorted(times[size])[len(times[size]) // 2] for size in sizes]
    return MeasuredCurve(tuple(sizes), tuple(_never_falling(seconds)))


def _never_falling(values: list[float]) -> list[float]:
    """The closest values, in the geometric mean, that never fall: neighbours that do share one."""
    blocks: list[tuple[float, int]] = []
    for value in values:
        blocks.append((math.log(value), 1))
        while len(blocks) > 1 and blocks[-2][0] > blocks[-1][0]:
            (right, width), (left, other) = blocks.pop(), blocks.pop()
            blocks.append(((left * other + right * width) / (width + other), width + other))
    return [math.exp(level) for level, width in blocks for _ in range(width)]


def seconds(found: Curves, op: str, size: int, ranks: int) -> float | None:
    """Returns a call's seconds from the measurements; None where they do not cover it."""
    by_ranks = found.get(op)
    if not by_ranks or ranks < 2:
        return None
    if ranks in by_ranks:
        return by_ranks[ranks].at(size)
    worlds = sorted(by_ranks)
    for fewer, more in pairwise(worlds):
        if fewer < ranks < more:
            low, high = by_ranks[fewer].at(size), by_ranks[more].at(size)
            return low + (high - low) * (ranks - fewer) / (more - fewer)
    nearest = worlds[0] if ranks < worlds[0] else worlds[-1]
    return _scaled(by_ranks[nearest], op, size, nearest, ranks)


def _scaled(curve: MeasuredCurve, op: str, size: int, measured: int, ranks: int) -> float:
    """A world size beyond those that were measured."""
    traffic = COLLECTIVES[op].traffic
    moved = traffic(ranks) / traffic(measured) if measured > 1 else 1.0
    return curve.fixed * ranks / measured + (curve.at(size) - curve.fixed) * moved
