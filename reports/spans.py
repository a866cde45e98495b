"""A timeline of ranks over time as the data of a page: what each rank's program does, and its collectives below."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from simcoll.core.record import Group
from simcoll.core.text import safe
from simcoll.reports.page_chart import packed
from simcoll.verifier.findings.describe import group_name

LANES = 3
"""Lanes of collectives below a rank's program; what runs beside more than that shares the last."""

COMPUTE, WAITING, EXPOSED, COLLECTIVE = range(4)


@dataclass(frozen=True, slots=True)
class Span:
    """A stretch of a rank's time, in nanoseconds: its kind, the call that it is or is spent on, and what else it is.

    The call is its op (or nothing), its number, and its group as a place among those of the timeline.
    """

    row: int
    lane: int
    kind: int
    op: str
    number: int
    said: str
    begin: int
    end: int
    group: int = 0


@dataclass(frozen=True, slots=True)
class Spans:
    """The rows' ranks, the ops by number, every span, the whole time in nanoseconds, one step of it, what is left out.

    Spans stand in order of rows, lanes and times. ``groups`` are the groups that spans name, each with the number of
    those of its kind, for which it stands.
    """

    ranks: tuple[int, ...]
    ops: tuple[str, ...]
    spans: tuple[Span, ...]
    end: int
    step: tuple[int, int] | None = None
    note: str = ""
    groups: tuple[tuple[Group, int], ...] = ()


def spans_document(spans: Spans) -> dict[str, object]:
    """The timeline as JSON; times in microseconds."""
    ops = {op: place for place, op in enumerate(spans.ops)}
    texts: dict[str, int] = {"": 0}
    numbers = [texts.setdefault(safe(span.said), len(texts)) for span in spans.spans]
    return {
        "ranks": spans.ranks,
        "ops": [safe(op) for op in spans.ops],
        "groups": [safe(group_name(group)) for group, _ in spans.groups],
        "texts": list(texts),
        "end": spans.end / 1e3,
        "step": None if spans.step is None else [edge / 1e3 for edge in spans.step],
        "row": packed(_column([span.row for span in spans.spans], np.uint16)),
        "lane": packed(_column([span.lane for span in spans.spans], np.uint8)),
        "kind": packed(_column([span.kind for span in spans.spans], np.uint8)),
        "op": packed(_column([ops[span.op] if span.op else 0 for span in spans.spans], np.uint16)),
        "group": packed(_column([span.group for span in spans.spans], np.uint16)),
        "number": packed(_column([span.number for span in spans.spans], np.uint32)),
        "said": packed(_column(numbers, np.uint32)),
        "begin": packed(_column([span.begin / 1e3 for span in spans.spans], np.float64)),
        "end_of": packed(_column([span.end / 1e3 for span in spans.spans], np.float64)),
    }


def _column(values: Sequence[float], kind: type[np.generic]) -> npt.NDArray[np.generic]:
    return np.array(values, kind)


def laned(begins: Sequence[int], ends: Sequence[int]) -> Iterator[int]:
    """A lane for each stretch, in order of begins: the first that is free, from 1; the last where none is."""
    free = [0] * LANES
    for begin, end in zip(begins, ends, strict=True):
        lane = next((place for place, until in enumerate(free) if until <= begin), LANES - 1)
        free[lane] = max(free[lane], end)
        yield lane + 1
