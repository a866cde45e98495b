"""Chooses the ranks of a dry run: all of a small job; of a large one some, and more where those differ."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Collection, Iterable, Mapping, Sequence

from simcoll.core.trace import Trace
from simcoll.spec.call import Call

MOST_ALL = 64
"""Jobs of up to so many ranks are run whole; of larger ones, ``auto`` chooses at most so many."""

_FIRST = 4


def first_choice(world_size: int) -> list[int]:
    """The ranks to begin with: all, or the first four, two in the middle and the last two (odd and even)."""
    if world_size <= MOST_ALL:
        return list(range(world_size))
    middle = world_size // 2
    return sorted({*range(_FIRST), middle - 1, middle, world_size - 2, world_size - 1})


def next_choice(traces: Sequence[Trace], run: Collection[int], world_size: int) -> list[int]:
    """The ranks to run next: first and last members of known groups, else ranks between two whose programs differ.

    ``run`` are all ranks that have run: one without a trace differs from those with one, and is not run again.
    """
    room = MOST_ALL - len(run)
    if world_size <= MOST_ALL or room <= 0:
        return []
    wanted = _corners(traces, run) or _between(traces, run)
    return sorted(list(wanted)[:room])


def programs(traces: Iterable[Trace]) -> dict[int, bytes]:
    """A digest of each rank's calls in order; ranks whose calls look the same have the same digest."""
    return {trace.rank: _program(trace) for trace in traces}


def _program(trace: Trace) -> bytes:
    digest = hashlib.blake2b(digest_size=16)
    calls = [repr(_common_part(call)).encode() for call in trace.signatures]
    sizes = [str(len(group.ranks)).encode() for group in trace.groups]
    lines = [f"{source.file}:{source.line};".encode() for source in trace.sources]
    for slot in trace.slots:
        digest.update(calls[slot["signature"]] + sizes[slot["group"]] + lines[slot["source"]])
    return digest.digest()


def _common_part(call: Call) -> tuple[object, ...]:
    """What is the same on all ranks of one program: not the device index, for instance."""
    buffers = [(buffer.shape, buffer.dtype, buffer.device) for buffer in (*call.inputs, *call.outputs)]
    return call.op, call.reduce_op, len(call.inputs), buffers


def _corners(traces: Sequence[Trace], run: Collection[int]) -> list[int]:
    """The first and last members of every known group that have not run."""
    found: dict[int, None] = {}
    for group in dict.fromkeys(group for trace in traces for group in trace.groups):
        found |= dict.fromkeys((group.ranks[0], group.ranks[-1]))
    return [rank for rank in found if rank not in run]


def _between(traces: Sequence[Trace], run: Collection[int]) -> list[int]:
    """The rank in the middle between two neighbours that have run and whose programs differ."""
    known: Mapping[int, bytes] = programs(traces)
    pairs = [(here, there) for here, there in itertools.pairwise(sorted(run)) if known.get(here) != known.get(there)]
    return [(here + there) // 2 for here, there in pairs if there - here > 1]
