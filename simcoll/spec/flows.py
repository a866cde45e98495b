"""The flows of a call (the elements that each rank sends to each other), and the faults of one rank's call by itself.

The law between ranks is ``sends(i)[j] == receives(j)[i]`` for every i and j. A *fault* needs one rank alone: its call
contradicts itself (splits that do not add up, a list that is not one buffer a rank). Ranks state only whether their
call is valid: a call that is at fault on every rank is the backend's to refuse, one that is at fault on some leaves the
others waiting, and is a mismatch.

No function of this module raises, whatever the call. Ranks are group ranks, sizes count elements.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from simcoll.spec.call import ANY_SOURCE, Buffer, Call

_SHOWN = 16
"""Sizes of a list that are shown one by one."""

SparseFlow: TypeAlias = Mapping[int, int]
"""Elements by peer, a group rank; a peer that is absent exchanges nothing."""


@dataclass(frozen=True, slots=True)
class Flows:
    """Elements that one rank sends to, and expects from, each peer (group ranks)."""

    sends: SparseFlow
    receives: SparseFlow


FlowLaw: TypeAlias = Callable[[Call, int, int], "Flows | None"]
"""Call, group rank, group size -> flows; None where agreement on the stated counts implies them."""

FaultLaw: TypeAlias = Callable[[Call, int, int], "str | None"]
"""Call, group rank, group size -> the fault of this rank's call by itself, or None."""


def counted(call: Call, group_rank: int, group_size: int) -> Flows | None:
    """Every rank moves the count that it states: agreement on it is enough."""
    return None


def gather(call: Call, group_rank: int, group_size: int) -> Flows:
    """Everybody sends its buffer to the root."""
    root = call.root or 0
    receives = parts(call.outputs, None, group_size) if group_rank == root else {}
    return Flows({root: _elements(call.inputs)}, receives)


def scatter(call: Call, group_rank: int, group_size: int) -> Flows:
    """The root sends everybody a part."""
    root = call.root or 0
    sends = parts(call.inputs, None, group_size) if group_rank == root else {}
    return Flows(sends, {root: _elements(call.outputs)})


def all_gather(call: Call, group_rank: int, group_size: int) -> Flows | None:
    """Everybody sends its buffer to everybody; counts say it all unless a list of outputs is uneven."""
    mine = _elements(call.inputs)
    if call.coalesced or not _uneven(call.outputs, mine, group_size):
        return None
    return Flows(dict.fromkeys(range(group_size), mine), parts(call.outputs, None, group_size))


def reduce_scatter(call: Call, group_rank: int, group_size: int) -> Flows | None:
    """Everybody sends part j to rank j; counts say it all unless a list of inputs is uneven."""
    mine = _elements(call.outputs)
    if call.coalesced or not _uneven(call.inputs, mine, group_size):
        return None
    return Flows(parts(call.inputs, None, group_size), dict.fromkeys(range(group_size), mine))


def all_to_all(call: Call, group_rank: int, group_size: int) -> Flows:
    """Everybody sends part j to rank j, and states how much it expects from each."""
    return Flows(parts(call.inputs, call.input_splits, group_size), parts(call.outputs, call.output_splits, group_size))


def parts(buffers: Sequence[Buffer], splits: tuple[int, ...] | None, group_size: int) -> SparseFlow:
    """Elements by peer: of a list the buffers, of one buffer equal parts, or as many rows as ``splits`` says.

    A buffer that does not divide evenly is cut as Gloo cuts it: the remainder is left over.
    """
    if len(buffers) != 1:
        return {peer: buffer.elements for peer, buffer in enumerate(buffers)}
    whole = buffers[0]
    if not splits:
        return dict.fromkeys(range(group_size), whole.elements // group_size)
    row = math.prod(whole.shape[1:])
    return {peer: rows * row for peer, rows in enumerate(splits)}


def no_fault(call: Call, group_rank: int, group_size: int) -> str | None:
    """No fault is possible on one rank alone."""
    return None


def root_fault(call: Call, group_rank: int, group_size: int) -> str | None:
    """A root that is no rank of the group."""
    root = call.root or 0
    if not 0 <= root < group_size:
        return f"root {root} is not a rank of a group of {group_size}"
    return None


def gather_fault(call: Call, group_rank: int, group_size: int) -> str | None:
    """At the root: outputs that do not hold one part a rank."""
    fault = root_fault(call, group_rank, group_size)
    if fault or group_rank != (call.root or 0):
        return fault
    return _exchange_fault("output", call.outputs, "input", call.inputs, group_rank, group_size)


def scatter_fault(call: Call, group_rank: int, group_size: int) -> str | None:
    """At the root: inputs that do not hold one part a rank."""
    fault = root_fault(call, group_rank, group_size)
    if fault or group_rank != (call.root or 0):
        return fault
    return _exchange_fault("input", call.inputs, "output", call.outputs, group_rank, group_size)


def all_gather_fault(call: Call, group_rank: int, group_size: int) -> str | None:
    """Outputs that do not hold one part a rank, this rank's part as large as its input."""
    if call.coalesced:
        return _coalesced_fault("output", call.outputs, "input", call.inputs, group_size)
    return _exchange_fault("output", call.outputs, "input", call.inputs, group_rank, group_size)


def reduce_scatter_fault(call: Call, group_rank: int, group_size: int) -> str | None:
    """Inputs that do not hold one part a rank, this rank's part as large as its output."""
    if call.coalesced:
        return _coalesced_fault("input", call.inputs, "output", call.outputs, group_size)
    return _exchange_fault("input", call.inputs, "output", call.outputs, group_rank, group_size)


def all_to_all_fault(call: Call, group_rank: int, group_size: int) -> str | None:
    """Splits or buffers that do not make one part a rank."""
    return _split_fault("input", call.inputs, call.input_splits, group_size) or _split_fault(
        "output", call.outputs, call.output_splits, group_size
    )


def peer_fault(call: Call, group_rank: int, group_size: int) -> str | None:
    """A peer that is no rank of the group."""
    peer = call.peer
    if peer is None or 0 <= peer < group_size or (peer == ANY_SOURCE and call.outputs):
        return None
    return f"peer {peer} is not a rank of a group of {group_size}"


def _elements(buffers: Sequence[Buffer]) -> int:
    return buffers[0].elements if buffers else 0


def _uneven(buffers: Sequence[Buffer], mine: int, group_size: int) -> bool:
    return len(buffers) == group_size and any(buffer.elements != mine for buffer in buffers) and group_size > 1


def _exchange_fault(
    many: str, divided: Sequence[Buffer], one: str, single: Sequence[Buffer], group_rank: int, group_size: int
) -> str | None:
    """``divided`` is one buffer of equal parts or a list of one buffer a rank; mine is as large as ``single``."""
    if len(single) != 1:
        return f"{len(single)} {one} buffers were given, expected 1"
    mine = single[0].elements
    if len(divided) == 1:
        if divided[0].elements != mine * group_size:
            return (
                f"the {many} holds {divided[0].elements} elements, expected {mine * group_size}:"
                f" {group_size} ranks of {mine}"
            )
        return None
    if len(divided) != group_size:
        return f"the {many} list has {len(divided)} buffers, expected {group_size}, one a rank"
    if divided[group_rank].elements != mine:
        return f"the {many} for this rank holds {divided[group_rank].elements} elements, its {one} {mine}"
    return None


def _coalesced_fault(
    many: str, divided: Sequence[Buffer], one: str, single: Sequence[Buffer], group_size: int
) -> str | None:
    """Each of ``single`` has either one buffer of equal parts in ``divided``, or one buffer a rank."""
    if len(divided) not in (len(single), len(single) * group_size):
        return f"{len(divided)} {many} buffers were given for {len(single)} {one} buffers and {group_size} ranks"
    held, needed = sum(b.elements for b in divided), sum(b.elements for b in single) * group_size
    if held != needed:
        return f"the {many} buffers hold {held} elements, expected {needed}"
    return None


def _split_fault(name: str, buffers: Sequence[Buffer], splits: tuple[int, ...] | None, group_size: int) -> str | None:
    if len(buffers) != 1:
        if len(buffers) != group_size:
            return f"the {name} list has {len(buffers)} buffers, expected {group_size}, one a rank"
        return None
    if splits:
        return _rows_fault(name, buffers[0], splits, group_size)
    if buffers[0].elements % group_size:
        return f"the {name} has {buffers[0].elements} elements, which {group_size} ranks cannot share evenly"
    return None


def _rows_fault(name: str, whole: Buffer, splits: tuple[int, ...], group_size: int) -> str | None:
    rows = whole.shape[0] if whole.shape else 0
    if len(splits) != group_size:
        return f"{name} splits {_listed(splits)} are {len(splits)} sizes, expected {group_size}, one a rank"
    if min(splits) < 0 or sum(splits) != rows:
        return f"{name} splits {_listed(splits)} do not add up to the {rows} rows of the {name}"
    return None


def _listed(sizes: Sequence[int]) -> str:
    """A list of sizes; a long one by its beginning."""
    return str(list(sizes)) if len(sizes) <= _SHOWN else f"[{', '.join(map(str, sizes[:_SHOWN]))}, ...]"
