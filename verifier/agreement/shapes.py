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
from simcoll.verifier.findings.rule import Rule
from simcoll.verifier.findings.sides import Parts, Voice, each, finding, part

Layout: TypeAlias = tuple[tuple[int, ...], "tuple[int, ...] | None"]
"""A shape without dimensions of size one, and its memory order (None is row-major)."""

LAYOUT_MISMATCH = Rule(
    "SC108",
    "layout-mismatch",
    "Call .contiguous() (or .to(memory_format=...)) alike on every rank before the collective.",
    means=(
        "The ranks' tensors have the same shape but lie in memory in another order, for example channels_last on one "
        "rank and contiguous on the others; or they are sparse on some ranks and dense on the others."
    ),
    harm=(
        "A collective works on memory, element after element. Ranks whose memory order differs sum elements that do "
        "not belong together: no error, wrong numbers. Sparse against dense hangs: the backend runs another algorithm."
    ),
    example=(
        "x = torch.randn(8, 3, 32, 32)\n"
        "if rank == 1:\n"
        "    x = x.to(memory_format=torch.channels_last)\n"
        "dist.all_reduce(x)"
    ),
    remedy=(
        "Bring the tensor into one memory format on every rank. Look for a model converted with channels_last on "
        "some ranks only, for tensors that were transposed without .contiguous(), and for embeddings with sparse=True."
    ),
)

SHAPE_MISMATCH = Rule(
    "SC109",
    "shape-mismatch",
    "Give every rank the same shape: equal element counts are not enough to pair the right elements.",
    means="The ranks' tensors have the same number of elements in different shapes, for example [20, 10] and [10, 20].",
    harm=(
        "The backend sees only the count and goes ahead, so elements are combined that do not belong together. A "
        "flattened view of the same tensor keeps the order and is only a warning."
    ),
    example=("x = torch.ones(20, 10)\nif rank == 2:\n    x = x.t().contiguous()\ndist.all_reduce(x)"),
    remedy=(
        "Find the rank that transposes or reshapes its tensor. If one rank passes a flattened view on purpose, "
        "flatten it on every rank."
    ),
)


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
