"""Calls, sources and groups in words; also a call as a row of fields, with those marked in which the ranks differ."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from itertools import pairwise
from operator import attrgetter

from simcoll.core.ranges import ranks_text, verb
from simcoll.core.record import Group, Record, Source, State
from simcoll.core.source_roots import OWN, kind_of
from simcoll.spec.call import Buffer, Call
from simcoll.verifier.findings.finding import Finding, Side
from simcoll.verifier.findings.rules import (
    COALESCED_MISMATCH,
    DTYPE_MISMATCH,
    OP_MISMATCH,
    P2P_DTYPE_MISMATCH,
    P2P_SIZE_MISMATCH,
    RULES,
    SHAPE_MISMATCH,
    SIZE_MISMATCH,
    SPLIT_MISMATCH,
)

NAMELESS = ("", "undefined")
"""The description of a group to which nobody gave one: c10d has a word for it."""

NO_MAJORITY = "no majority says who is wrong"
"""What a message says of sides of which each may be wrong."""

_BUFFERS_SHOWN = 4

_NAMED_ORDERS = {(0, 2, 3, 1): "channels_last", (0, 2, 3, 4, 1): "channels_last_3d"}
"""Memory orders that torch has a name for."""

_IN_WORDS = {
    "reduce_op": "reduce op",
    "root": "root",
    "input_splits": "splits",
    "output_splits": "splits",
    "tag": "tag",
    "device": "device",
    "order": "memory order",
    "shape": "shape",
    "dtype": "dtype",
    "count": "element count",
    "messages": "sends and receives",
}


def call_text(call: Call, group: Group | None = None) -> str:
    """``all_reduce(float32[20, 10] on cpu, sum)``; roots and peers are given as global ranks where the group is."""
    parts = []
    if call.inputs:
        parts.append(buffers_text(call.inputs))
    if call.outputs and call.outputs != call.inputs:
        parts.append(f"into {buffers_text(call.outputs)}")
    parts += [] if call.reduce_op is None else [call.reduce_op]
    for name, value in (("root", call.root), ("peer", call.peer)):
        parts += [] if value is None else [f"{name} {global_rank(group, value)}"]
    for name, splits in (("input splits", call.input_splits), ("output splits", call.output_splits)):
        parts += [f"{name} {sizes_text(splits)}"] if splits else []
    parts += [] if not call.tag else [f"tag {call.tag}"]
    return f"{call.op}({', '.join(parts)})"


def buffers_text(buffers: tuple[Buffer, ...]) -> str:
    """``float32[20, 10] on cpu``; equal tensors are counted, long lists cut."""
    if len(set(buffers)) == 1 and len(buffers) > 1:
        return f"{len(buffers)} x {buffer_text(buffers[0])}"
    text = " + ".join(buffer_text(buffer) for buffer in buffers[:_BUFFERS_SHOWN])
    return text if len(buffers) <= _BUFFERS_SHOWN else f"{text} + {len(buffers) - _BUFFERS_SHOWN} more tensors"


def buffer_text(buffer: Buffer) -> str:
    """``float32[20, 10] on cpu``, with the memory order where it is not row-major; without what no record states."""
    order = "" if buffer.order is None else f" in memory order {order_text(buffer.order)}"
    place = f" on {buffer.device}" if buffer.device else ""
    return f"{buffer.dtype}{list(buffer.shape)}{place}{order}"


def order_text(order: Sequence[int]) -> str:
    """``[1, 0]``, ``[0, 2, 3, 1] (channels_last)``: dimensions from the slowest to the fastest in memory."""
    name = _NAMED_ORDERS.get(tuple(order))
    return str(list(order)) + (f" ({name})" if name else "")


def fields_text(names: Collection[str]) -> str:
    """Fields of a call as people call them, each once: ``reduce op, root, splits``; other names are left out."""
    return ", ".join(dict.fromkeys(text for name, text in _IN_WORDS.items() if name in names))


def sizes_text(sizes: Sequence[int]) -> str:
    """A list of sizes; a long one shows its beginning and its length."""
    shown = ", ".join(map(str, sizes[:8]))
    return f"[{shown}]" if len(sizes) <= 8 else f"[{shown}, ... {len(sizes)} in all]"


def elements_text(count: int) -> str:
    """``1 element``, ``4096 elements``: beside the other numbers of a call, which have no separators either."""
    return f"{count} element" if count == 1 else f"{count} elements"


def minority(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...]:
    """The fewer of two sides' ranks; none where they are as many."""
    return () if len(a) == len(b) else min(a, b, key=len)


def presence_text(
    makers: tuple[int, ...], lackers: tuple[int, ...], op: str, sequence: int, size: int = 1, slack: int = 0
) -> str:
    """The sides, those that made a call and those that did not: skipped, too many, or neither without a majority."""
    made, lack = ranks_text(makers), ranks_text(lackers)
    culprits = minority(makers, lackers)
    last = sequence + size - 1 + slack
    where = f"collective {sequence}" if last == sequence else f"collectives {sequence} to {last}"
    where = f"one of {where}" if slack and size == 1 else f"{size} of {where}" if slack else where
    unclear = "; they look alike, so that it cannot be told which" if slack else ""
    calls = op if size == 1 else f"{size} calls, the first {op}"
    if culprits == lackers:
        return (
            f"{lack} skipped the {op} that {made} made as {where}{unclear}"
            if size == 1
            else (f"{lack} skipped {calls}, that {made} made as {where}{unclear}")
        )
    own = where.replace("collective", f"{verb(makers, 'its', 'their')} collective")
    if culprits:
        return f"{made} made {calls}, as {own}, which {lack} did not make{unclear}"
    return f"{made} made {calls}, as {own}, which {lack} did not; {NO_MAJORITY}{unclear}"


def global_rank(group: Group | None, group_rank: int) -> str:
    """A group rank as a global rank, or as what it is where the group cannot say."""
    if group is None:
        return f"{group_rank} (group rank)"
    if 0 <= group_rank < len(group.ranks):
        return str(group.ranks[group_rank])
    return f"{group_rank} (no member)"


def source_text(source: Source) -> str:
    """``train.py:41 in step``; empty where no line of the user's program is known."""
    if not source.file:
        return ""
    return f"{source.file}:{source.line}" + (f" in {source.function}" if source.function else "")


@dataclass(frozen=True, slots=True)
class Shown:
    """A frame that is shown for a call, and ``how`` the call stands to it.

    ``at`` comes first, for the frame that leads; then ``into`` frames inside of it, or ``from`` and ``through`` frames
    by which the call came there.
    """

    how: str
    frame: Source


def leading(sides: Sequence[Side], source: Source) -> Source:
    """The frame by which a line of one of these sides is named: the first of :func:`frames_shown`."""
    return frames_shown(sides, source)[0].frame


def frames_shown(sides: Sequence[Side], source: Source) -> list[Shown]:
    """The frames of a line of one of these sides: those that tell it from the other sides, or else it and its caller.

    A line that other sides have as well is a helper's: its first caller that they do not have leads, if it is the
    user's own code. Else the line leads, followed by what tells it from others, callers or packages. Where neither
    does, or the line alone, its callers follow up to the first in another file: the line may be a helper's. Of a line
    that stands alone its caller is shown in any file, unless that is the program's outermost. Where that leaves none,
    those follow that tell the call from others of its line.
    """
    lines = [stated.source for side in sides for stated in side.sources if stated.source.file]
    others = [other for other in lines if _place(other) == _place(source)]
    callers = callers_apart(source, others)
    if callers and kind_of(source.callers[callers - 1].file) == OWN:
        *inner, first = (source, *source.callers[:callers])
        return [Shown("at", first), *(Shown("into", frame) for frame in reversed(inner))]
    alone = all(other is source for other in lines)
    around = _packages_apart(source, others) if not callers and not alone else []
    if not around:
        stated = (one.callers for side in sides for one in side.sources if one.source == source)
        count = callers or _helpers(source, alone=alone) or max(stated, default=0)
        around = [Shown("from", frame) for frame in source.callers[:count]]
    return [Shown("at", source), *around]


def callers_apart(source: Source, others: Sequence[Source]) -> int:
    """The number of callers of a line that tell it from all of these of the same line; 0 where none does."""
    alike = [other for other in others if _place(other) == _place(source)]
    return max((_first_apart(source.callers, other.callers) for other in alike), default=0)


def _packages_apart(source: Source, others: Sequence[Source]) -> list[Shown]:
    """The packages by which a line made its call, from the outermost to the first that others do not have."""
    inwards = source.through[::-1]
    count = max(_first_apart(inwards, other.through[::-1]) for other in [*others, source])
    return [Shown("through", frame) for frame in inwards[:count]]


def _helpers(source: Source, *, alone: bool) -> int:
    """The number of callers of a line up to the first in another file, or of a line that stands ``alone`` one."""
    for number, (called, caller) in enumerate(pairwise((source, *source.callers)), 1):
        if called.function == _OUTERMOST:
            break  # what runs the program is no part of it
        if caller.file != source.file:
            return number
    callers = source.callers[:1]
    own = alone and source.function != _OUTERMOST and callers and callers[0].function != _OUTERMOST
    return 1 if own else 0


_OUTERMOST = "<module>"


def _place(source: Source) -> tuple[str, int]:
    return source.file, source.line


def _first_apart(mine: Sequence[Source], theirs: Sequence[Source]) -> int:
    """The number of frames up to the first that differs; 0 where none does, or one side's are not known."""
    if not mine or not theirs:
        return 0
    pairs = enumerate(zip(mine, theirs, strict=False), 1)
    shorter = min(len(mine), len(theirs))
    return next((number for number, (a, b) in pairs if _place(a) != _place(b)), 0) or (
        shorter + 1 if len(mine) != len(theirs) else 0
    )


def stack_text(sides: Sequence[Side], source: Source) -> str:
    """``train.py:41 in step into utils.py:12 in mean``: a line, and the frames that tell it from other sides."""
    first, *others = frames_shown(sides, source)
    return " ".join([source_text(first.frame), *(f"{one.how} {source_text(one.frame)}" for one in others)])


def culprits_text(finding: Finding) -> str:
    """The culprits, or that there is no majority to name them."""
    return ranks_text(finding.culprits) if finding.culprits else "no majority names one"


def before_text(finding: Finding) -> str:
    """The last collectives on which the ranks agreed; empty where none are known."""
    return ", ".join(f"{record.call.op} #{record.sequence}" for record in finding.before)


def apart_text(finding: Finding) -> str:
    """``at collective 12 already, in calls that look alike: ranks 0-1 at train.py:7 in log, rank 2 at train.py:10``.

    Empty where nothing is known of it.
    """
    if finding.came_apart is None:
        return ""
    apart = finding.came_apart.sides
    sides = (
        f"{ranks_text(side.ranks)} at {' or '.join(stack_text(apart, stated.source) for stated in side.sources)}"
        for side in apart
    )
    known = " as far as the records say" if finding.unknown else ""
    return f"at collective {finding.came_apart.sequence} already, in calls that look alike{known}: {', '.join(sides)}"


def parting_text(finding: Finding) -> str:
    """``train.py:88: if val_loss < best: (ranks 0-1 took it, rank 2 did not take it)``; empty where it is not known."""
    if (parted := finding.parted) is None:
        return ""
    sides = ", ".join(f"{ranks_text(ranks)} {did}" for ranks, did in parted.sides)
    others = "".join(f", or {one.file}:{one.line}: {one.code}" for one in parted.others)
    return f"{parted.source.file}:{parted.source.line}: {parted.source.code} ({sides}){others}"


_EXTRA_FIRST = "Look for an extra or skipped call first: the ranks are at different lines. If there is none: "
_SAME_GROUP = "Give the call the group that the other ranks give it."
_VARYING = frozenset(
    rule.code for rule in (SIZE_MISMATCH, DTYPE_MISMATCH, SPLIT_MISMATCH, SHAPE_MISMATCH, COALESCED_MISMATCH)
)
"""What differs from call to call of any program."""

_OBJECTS_SHOW_IN = _VARYING | {OP_MISMATCH.code, P2P_DTYPE_MISMATCH.code, P2P_SIZE_MISMATCH.code}


_OBJECTS = (
    "Send objects on every rank ({0}), or tensors on every rank: objects go as tensors of their own, first their sizes "
    "in bytes (int64), then the bytes (uint8)."
)
_OBJECT_CALLS = re.compile(
    r"\b(all_gather_object|gather_object|broadcast_object_list|scatter_object_list|send_object_list|recv_object_list)\s*\("
)
_OF_OBJECTS = ("int64", "uint8")
"""The dtypes of what torch sends for objects."""


def _object_call(side: Side) -> str:
    """The name of the function that sends objects, if the line of a side's call names one; empty where it does not."""
    if side.call is None or not side.sources:
        return ""
    if any(one.dtype not in _OF_OBJECTS for one in (*side.call.inputs, *side.call.outputs)):
        return ""
    text = side.sources[0].source.stack[0].code.partition("#")[0]
    named = _OBJECT_CALLS.search(text)
    return "" if named is None else named[1]


def _objects_of_some(finding: Finding) -> str:
    """The function by which a side sends objects, if the calls differ and another side sends a tensor."""
    names = [_object_call(side) for side in finding.sides if side.call is not None]
    return next(filter(None, names), "") if finding.code in _OBJECTS_SHOW_IN and "" in names else ""


def advice_of(finding: Finding) -> str:
    """The advice on a finding: its rule's, after the more likely cause where the sides' lines point to it."""
    advice = RULES[finding.code].advice
    if "group" in finding.differing:
        return _SAME_GROUP
    if name := _objects_of_some(finding):
        return _OBJECTS.format(name)
    sources = [side.sources[0].source for side in finding.sides if side.sources]
    pairs = ((sources[0], other) for other in sources[1:])
    apart = any(_place(one) != _place(other) or _first_apart(one.callers, other.callers) for one, other in pairs)
    if finding.code not in _VARYING or not apart or finding.parted is not None:
        return advice
    return _EXTRA_FIRST + advice[:1].lower() + advice[1:]


def group_name(group: Group) -> str:
    """``default_pg``: what the program calls a group; ``group 3`` where it gave no description."""
    return f"group {group.name}" if group.description in NAMELESS else group.description


def group_text(group: Group) -> str:
    """``group 0 (default_pg, ranks 0-3)``; where no record states the members, those that made calls."""
    description = f"{group.description}, " if group.description not in (*NAMELESS, group.name) else ""
    guessed = ", as far as known" if group.partial else ""
    return f"group {group.name} ({description}{ranks_text(group.ranks)}{guessed})"


def where_text(finding: Finding) -> str:
    """``group 0 (default_pg, ranks 0-3), collective 3, step 2``: the parts that are known; empty where none is."""
    parts = [] if finding.group is None else [group_text(finding.group)]
    if finding.group is not None and finding.sequence is not None:
        parts.append(f"collective {finding.sequence}")
    if finding.step is not None:
        parts.append(str(finding.step))
    return ", ".join(parts)


def record_text(record: Record, *, ended_known: bool = True, placed: bool = True) -> str:
    """``all_reduce #6 of group 0, completed, at train.py:41 in step``.

    ``ended_known``: its record says how it ended; ``placed`` is false where its line is shown anyway.
    """
    place = f"#{record.p2p_sequence} (point-to-point)" if record.p2p_sequence else f"#{record.sequence}"
    line = f", at {text}" if placed and (text := source_text(record.source)) else ""
    state = "ended" if record.state is State.COMPLETED and not ended_known else record.state.name.lower()
    return f"{record.call.op} {place} of group {record.group}, {state}{line}"


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
