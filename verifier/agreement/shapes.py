"""SC108 and SC109: equal element counts in other shapes, or in another memory order.

Dimensions of size one are dropped first. The same remaining shape and order is no difference. One side being a
flattened view of the other moves the same elements in the same order and is a warning. Anything else mixes up
elements: an error for reductions; a warning for pure movement, where the receiver gets what was sent, but an error
under ``strict`` where the shapes differ, because TORCH_DISTRIBUTED_DEBUG=DETAIL raises there (it compares shapes,
never memory orders).
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from itertools import combinations
from typing import TypeAlias, cast

from simcoll.core.record import Group
from simcoll.spec.table import Content, Kind
from simcoll.verifier.findings.describe import order_text
from simcoll.verifier.findings.finding import Finding, Severity
from simcoll.verifier.findings.rules_fields import LAYOUT_MISMATCH, SHAPE_MISMATCH
from simcoll.verifier.findings.sides import Parts, Voice, each, finding, part

Layout: TypeAlias = tuple[tuple[int, ...], "tuple[int, ...] | None"]
"""A shape without dimensions of size one, and its memory order (None is row-major)."""


def judge_shapes(group: Group, voices: Sequence[Voice], kind: Kind, *, strict: bool) -> list[Finding]:
    """The first tensor whose shapes or layouts differ between the ranks; the counts are known to agree."""
    tensors = min((len(_contents(voice)) for voice in voices), default=0)
    for index in range(tensors):
        parts = part(voices, lambda voice, index=index: _layout(_contents(voice)[index]))  # type: ignore[misc]
        if len(parts) > 1:
            return [_report(group, parts, kind, index if tensors > 1 else None, strict)]
    return []


def _contents(voice: Voice) -> tuple[Content, ...]:
    return () if voice.statement is None else voice.statement.contents


def _layout(content: Content) -> Layout | None:
    """What is compared of a tensor, or None where nothing can be mixed up: no shape stated, or no elements."""
    if content.shape is None or not content.count:
        return None
    row_major = content.order is None or content.order == tuple(range(len(content.order)))
    return content.shape, None if row_major else content.order


def _report(group: Group, parts: Parts, kind: Kind, index: int | None, strict: bool) -> Finding:
    layouts = [_as_layout(value) for value in parts]
    shaped = any(a[0] != b[0] for a, b in combinations(layouts, 2))
    grave = any(_grave(a, b, kind, strict) for a, b in combinations(layouts, 2))
    where = "" if index is None else f" of tensor {index}"
    message = each(parts, lambda value, ranks, one: f"{ranks} {'has' if one else 'have'} {_text(value, shaped)}{where}")
    return finding(
        SHAPE_MISMATCH if shaped else LAYOUT_MISMATCH,
        group,
        parts,
        message,
        differing=("shape",) if shaped else ("order",),
        severity=Severity.ERROR if grave else Severity.WARNING,
    )


def _grave(a: Layout, b: Layout, kind: Kind, strict: bool) -> bool:
    if a[0] != b[0]:
        flattened = len(a[0]) <= 1 or len(b[0]) <= 1
        return not flattened and (kind is Kind.REDUCTION or strict)
    return kind is Kind.REDUCTION


def _as_layout(value: Hashable) -> Layout:
    return cast("Layout", value)


def _text(value: Hashable, shaped: bool) -> str:
    shape, order = _as_layout(value)
    if shaped:
        return f"shape {list(shape)}"
    return "row-major memory" if order is None else f"memory order {order_text(order)}"
