"""A call as a row of fields, with those marked in which the ranks differ."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from operator import attrgetter

from simcoll.core.record import Group
from simcoll.spec.call import Buffer, Call
from simcoll.verifier.findings.describe import global_rank, order_text, sizes_text
from simcoll.verifier.findings.finding import Finding

_TENSORS_SHOWN = 6


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a call in words; the op has no name before it."""

    name: str
    value: str
    differs: bool


def fields_of(call: Call, group: Group | None, differing: Collection[str]) -> list[Field]:
    """The fields that a call has and its record states: the op, then those that differ.

    ``differing`` names fields as a finding does.
    """
    fields = _fields(call, group, differing)
    return fields[:1] + sorted(fields[1:], key=lambda field: not field.differs)


def marked_in(finding: Finding) -> Collection[str]:
    """The fields in which a finding's calls differ: of what is coalesced, the dtypes or the shapes, or both."""
    if "contents" not in finding.differing:
        return finding.differing
    lists = [side.call.inputs or side.call.outputs for side in finding.sides if side.call is not None]
    parts = [name for name in ("dtype", "shape") if len({tuple(map(attrgetter(name), one)) for one in lists}) > 1]
    return (*(name for name in finding.differing if name != "contents"), *parts) if parts else finding.differing


def _fields(call: Call, group: Group | None, differing: Collection[str]) -> list[Field]:
    tensors = call.inputs or call.outputs
    sizes = bool({"count", "shape", "contents", "arguments"} & set(differing))
    found = [Field("", call.op, "op" in differing)]
    if tensors:
        stated = [
            Field("dtype", _joined(tensors, lambda buffer: buffer.dtype), bool({"dtype", "contents"} & set(differing))),
            Field("shape", _shapes(tensors), sizes),
            Field("on", _joined(tensors, lambda buffer: buffer.device), "device" in differing),
        ]
        found += [field for field in stated if field.value]
    if call.outputs and call.outputs != tensors:
        found.append(Field("into", _shapes(call.outputs), sizes))
    if any(buffer.order is not None for buffer in tensors) or "order" in differing:
        found.append(Field("memory order", _joined(tensors, _order), "order" in differing))
    return found + _numbers(call, group, differing)


def _numbers(call: Call, group: Group | None, differing: Collection[str]) -> list[Field]:
    found = []
    if call.reduce_op is not None:
        found.append(Field("reduce op", call.reduce_op, "reduce_op" in differing))
    if call.root is not None:
        found.append(Field("root", global_rank(group, call.root), "root" in differing))
    if call.peer is not None:
        found.append(Field("peer", global_rank(group, call.peer), "peer" in differing))
    if call.tag or "tag" in differing:
        found.append(Field("tag", str(call.tag or 0), "tag" in differing))
    for name, splits in (("input splits", call.input_splits), ("output splits", call.output_splits)):
        if splits:
            found.append(Field(name, sizes_text(splits), bool({"splits", "arguments"} & set(differing))))
    return found


def _shapes(buffers: tuple[Buffer, ...]) -> str:
    return _joined(buffers, lambda buffer: str(list(buffer.shape)))


def _order(buffer: Buffer) -> str:
    return "row-major" if buffer.order is None else order_text(buffer.order)


def _joined(buffers: tuple[Buffer, ...], say: Callable[[Buffer], str]) -> str:
    """One word where all buffers say the same, with their number; otherwise the first few."""
    words = [say(buffer) for buffer in buffers]
    if len(set(words)) == 1:
        return words[0] if len(words) == 1 or not words[0].startswith("[") else f"{len(words)} x {words[0]}"
    shown = " + ".join(words[:_TENSORS_SHOWN])
    return shown if len(words) <= _TENSORS_SHOWN else f"{shown} + {len(words) - _TENSORS_SHOWN} more"
