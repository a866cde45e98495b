"""Judges the calls of one collective: all ranks' records in, findings SC101 to SC110 out.

**SC102 and SC106**, the law of flows: rank i sends to rank j as much as j expects from i. The culprits follow from
the pairs that break the law: a rank whose own two statements contradict each other; a rank that stands in more broken
pairs than any other; for a pair on its own, the one that leaves the pattern of all the agreed flows beside it. If none
of these applies, no rank is named.

**SC108 and SC109**: equal element counts in other shapes, or in another memory order. Dimensions of size one are
dropped first. The same remaining shape and order is no difference. One side being a flattened view of the other moves
the same elements in the same order and is a warning. Anything else mixes up elements: an error for reductions; a
warning for pure movement, where the receiver gets what was sent, but an error under ``strict`` where the shapes differ,
because TORCH_DISTRIBUTED_DEBUG=DETAIL raises there (it compares shapes, never memory orders).
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import TypeAlias, cast

import numpy as np
import numpy.typing as npt

from simcoll.core.record import Group, Record, State
from simcoll.spec.collectives import COLLECTIVES
from simcoll.spec.flows import Flows, SparseFlow
from simcoll.spec.table import CollectiveSpec, Content, Kind
from simcoll.verifier.agreement.fields import Difference, differing_fields, differing_ops, faulty_calls, shown_root
from simcoll.verifier.agreement.known_fields import known_statement, moved, unknown_fields
from simcoll.verifier.agreement.voices import Parts, Voice, each, finding, outvoted, part, side
from simcoll.verifier.findings.describe import elements_text, order_text
from simcoll.verifier.findings.finding import Finding, Rule, Severity
from simcoll.verifier.findings.rules import LAYOUT_MISMATCH, SHAPE_MISMATCH, SIZE_MISMATCH, SPLIT_MISMATCH

Matrix: TypeAlias = npt.NDArray[np.int64]
Mask: TypeAlias = npt.NDArray[np.bool_]

_LARGEST = 2**62
_RANKS_SHOWN = 8
_PAIRS_WEIGHED = 1000


@dataclass(frozen=True, slots=True)
class BrokenLaw:
    """Broken flows of one collective: the rule, the culprits, the sentence, the voices to show with their notes."""

    rule: Rule
    culprits: tuple[int, ...]
    message: str
    parts: Parts
    notes: Mapping[int, str]


def broken_law(group: Group, voices: Sequence[Voice]) -> BrokenLaw | None:
    """Judge the flows between the ranks that are there; None where the law holds or counts say it all."""
    voices = [voice for voice in voices if not _is_hidden(voice)]
    if all(voice.flows() is None for voice in voices):
        return None
    sends, expects, replicated = _matrices(voices, len(group.ranks))
    broken: Mask = sends != expects
    if not broken.any():
        return None
    culprits = _culprits(sends, expects, broken, replicated)
    pairs = _shown_pairs(broken, culprits)
    return BrokenLaw(
        SPLIT_MISMATCH if any(_has_splits(voice) for voice in voices) else SIZE_MISMATCH,
        tuple(sorted(voices[place].rank for place in culprits)),
        _message(voices, sends, expects, pairs, int(broken.sum())),
        *_sides(voices, sends, expects, pairs, culprits),
    )


def broken_total(group: Group, voices: Sequence[Voice]) -> BrokenLaw | None:
    """Compare the totals that all ranks of a group send and expect, where splits are hidden.

    A rank whose own totals leave those of most ranks is the one that is wrong.
    """
    hidden = any(_is_hidden(voice) and not voice.hides("root") for voice in voices)
    if len(voices) < len(group.ranks) or group.partial or not hidden:
        return None
    sent, expected = (sum(column) for column in zip(*(moved(voice.call) for voice in voices), strict=True))
    if sent == expected:
        return None
    parts = part(voices, lambda voice: moved(voice.call))
    message = f"all ranks together send {elements_text(sent)} and expect {expected}"
    notes = {voice.rank: "sends {} and expects {} in all".format(*moved(voice.call)) for voice in voices[:_RANKS_SHOWN]}
    return BrokenLaw(SPLIT_MISMATCH, outvoted(parts), message, parts, notes)


def _is_hidden(voice: Voice) -> bool:
    """True if the flows of a call are not known."""
    return (voice.hides("root") and voice.root is None) or any(map(voice.hides, ("input_splits", "output_splits")))


def _matrices(voices: Sequence[Voice], size: int) -> tuple[Matrix, Matrix, tuple[bool, bool]]:
    """The matrices of what each present rank sends, and is expected to send, to each other; and, for sends and for
    receives, True if every rank has the same count with all its peers.
    """
    places = np.full(size, -1)
    places[[voice.group_rank for voice in voices]] = np.arange(len(voices))
    sends, receives = np.zeros((2, len(voices), len(voices)), np.int64)
    same_sent = same_expected = True
    for place, voice in enumerate(voices):
        flows = voice.flows() or _even(voice, size)
        same_sent &= _fill(sends[place], flows.sends, places)
        same_expected &= _fill(receives[place], flows.receives, places)
    return sends, receives.T, (same_sent, same_expected)


def _even(voice: Voice, size: int) -> Flows:
    """A rank without explicit flows moves the count that it states to and from every peer."""
    contents = () if voice.statement is None else voice.statement.contents
    count = (contents[0].count or 0) if contents else 0
    return Flows(dict.fromkeys(range(size), count), dict.fromkeys(range(size), count))


def _fill(row: npt.NDArray[np.int64], flow: SparseFlow, places: npt.NDArray[np.int64]) -> bool:
    """Write one rank's flow to the peers that are present; returns True if it is the same to several."""
    peers = [peer for peer in flow if 0 <= peer < len(places) and places[peer] >= 0]
    counts = [max(-_LARGEST, min(flow[peer], _LARGEST)) for peer in peers]
    row[places[np.array(peers, np.intp)]] = counts
    return len(counts) > 1 and len(set(counts)) == 1


def _has_splits(voice: Voice) -> bool:
    call = voice.call
    return bool(call.input_splits or call.output_splits) or (len(call.inputs) > 1 and len(call.outputs) > 1)


def _culprits(sends: Matrix, expects: Matrix, broken: Mask, replicated: tuple[bool, bool]) -> list[int]:
    """The places (indices of voices) of the ranks that are wrong, as far as it can be told."""
    left = broken.copy()
    found = _take(left, np.flatnonzero(broken.diagonal()))
    found += _take(left, _heavy(left))
    while len(worst := _worst(left)) == 1:
        found += _take(left, worst)
    for sender, receiver in np.argwhere(left)[:_PAIRS_WEIGHED]:
        wrong = _out_of_pattern(int(sender), int(receiver), sends, expects, broken, replicated)
        if wrong is not None and wrong not in found:
            found.append(wrong)
    return found


def _take(left: Mask, places: npt.NDArray[np.intp]) -> list[int]:
    left[places, :] = False
    left[:, places] = False
    return [int(place) for place in places]


def _heavy(left: Mask) -> npt.NDArray[np.intp]:
    """Ranks at odds with more than half of the others, if they are a minority themselves."""
    degree = (left | left.T).sum(axis=1)
    heavy = np.flatnonzero((degree > 1) & (2 * degree > len(left) - 1))
    return heavy if 2 * len(heavy) < len(left) else heavy[:0]


def _worst(left: Mask) -> npt.NDArray[np.intp]:
    """The ranks that stand in most broken pairs; none where every pair stands alone."""
    degree = (left | left.T).sum(axis=1)
    return np.flatnonzero((degree == degree.max()) & (degree > 1))


def _out_of_pattern(
    sender: int, receiver: int, sends: Matrix, expects: Matrix, broken: Mask, replicated: tuple[bool, bool]
) -> int | None:
    """The end of a single broken pair that is wrong: the one that the agreed flows around the pair contradict."""
    if len(sends) < 3:
        return None
    if replicated[0] != replicated[1]:
        return receiver if replicated[0] else sender
    votes = set()
    sent, expected = sends[sender, receiver], expects[sender, receiver]
    for line, agreed in ((sends[sender], ~broken[sender]), (sends[:, receiver], ~broken[:, receiver])):
        values = line[agreed & (line != 0)]
        if len(values) > 1 and (values == values[0]).all() and values[0] in (sent, expected):
            votes.add(receiver if values[0] == sent else sender)
    return votes.pop() if len(votes) == 1 else None


def _shown_pairs(broken: Mask, culprits: Sequence[int]) -> list[tuple[int, int]]:
    """Broken pairs worth showing: those of a culprit with somebody else first."""
    pairs = [(int(i), int(j)) for i, j in np.argwhere(broken)[: 4 * len(broken)]]
    guilty = set(culprits)
    return sorted(pairs, key=lambda pair: (not guilty & set(pair), pair[0] == pair[1]))


def _message(
    voices: Sequence[Voice], sends: Matrix, expects: Matrix, pairs: Sequence[tuple[int, int]], total: int
) -> str:
    sender, receiver = pairs[0]
    sent, expected = int(sends[sender, receiver]), int(expects[sender, receiver])
    who = "itself, where it" if sender == receiver else f"rank {voices[receiver].rank}, which"
    text = f"rank {voices[sender].rank} sends {elements_text(sent)} to {who} expects {expected}"
    return text if total == 1 else f"{text} ({total - 1} more of the group's pairs disagree)"


def _sides(
    voices: Sequence[Voice],
    sends: Matrix,
    expects: Matrix,
    pairs: Sequence[tuple[int, int]],
    culprits: Sequence[int],
) -> tuple[Parts, dict[int, str]]:
    """All ranks where few calls are distinct, otherwise those of the shown pairs; a note for each rank of a pair."""
    notes: dict[int, str] = {}
    for sender, receiver in pairs:
        sent, expected = int(sends[sender, receiver]), int(expects[sender, receiver])
        notes.setdefault(voices[sender].rank, f"sends {sent} to rank {voices[receiver].rank}")
        notes.setdefault(voices[receiver].rank, f"expects {expected} from rank {voices[sender].rank}")
    parts = part(voices, lambda voice: voice.call)
    if len(parts) > _RANKS_SHOWN:
        shown = list(dict.fromkeys([*culprits, *(place for pair in pairs for place in pair)]))[:_RANKS_SHOWN]
        parts = part([voices[place] for place in sorted(shown)], lambda voice: voice.call)
    return parts, notes


Layout: TypeAlias = tuple[tuple[int, ...], "tuple[int, ...] | None"]
"""A shape without dimensions of size one, and its memory order (None is row-major)."""


def judge_shapes(group: Group, voices: Sequence[Voice], spec: CollectiveSpec, *, strict: bool) -> list[Finding]:
    """The first tensor whose shapes or layouts differ between the ranks; the counts are known to agree."""
    if _has_own_places(voices, spec):
        return []
    tensors = min((len(voice.contents) for voice in voices), default=0)
    for index in range(tensors):
        parts = part(voices, lambda voice, index=index: _layout(voice.contents[index]))  # type: ignore[misc]
        if len(parts) > 1:
            return [_report(group, parts, spec, index if tensors > 1 else None, strict)]
    return []


def _has_own_places(voices: Sequence[Voice], spec: CollectiveSpec) -> bool:
    """True if all ranks list the same outputs, one from each rank, and each gives what has its place in that list."""
    listed = {tuple(buffer.shape for buffer in voice.call.outputs) for voice in voices}
    if spec.divided != {"outputs"} or len(listed) != 1 or any(len(voice.call.inputs) != 1 for voice in voices):
        return False
    (shapes,) = listed
    own_order = all(buffer.order is None for voice in voices for buffer in (*voice.call.inputs, *voice.call.outputs))
    return own_order and all(
        len(shapes) == voice.size and voice.call.inputs[0].shape == shapes[voice.group_rank] for voice in voices
    )


def _layout(content: Content) -> Layout | None:
    """The shape and order to compare of a tensor, or None where none is stated, or the tensor has no elements."""
    if content.shape is None or not content.count:
        return None
    row_major = content.order is None or content.order == tuple(range(len(content.order)))
    return content.shape, None if row_major else content.order


def _report(group: Group, parts: Parts, spec: CollectiveSpec, index: int | None, strict: bool) -> Finding:
    layouts = [_as_layout(value) for value in parts]
    shaped = any(a[0] != b[0] for a, b in combinations(layouts, 2))
    grave = any(_grave(a, b, spec, strict) for a, b in combinations(layouts, 2))
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


def _grave(a: Layout, b: Layout, spec: CollectiveSpec, strict: bool) -> bool:
    if a[0] != b[0]:
        flattened = len(a[0]) <= 1 or len(b[0]) <= 1
        return not flattened and (spec.kind is Kind.REDUCTION or strict)
    # Data moved within one buffer arrives permuted; other movements copy, by position.
    return spec.kind is Kind.REDUCTION or spec.in_place


def _as_layout(value: Hashable) -> Layout:
    return cast("Layout", value)


def _text(value: Hashable, shaped: bool) -> str:
    shape, order = _as_layout(value)
    if shaped:
        return f"shape {list(shape)}"
    return "row-major memory" if order is None else f"memory order {order_text(order)}"


_NOTHING: frozenset[str] = frozenset()


def compare(
    group: Group, records: Mapping[int, Record], *, strict: bool = True, unknown: frozenset[str] = _NOTHING
) -> list[Finding]:
    """Findings on one collective, whose calls are given by group rank; ranks that are not there are not judged.

    An empty list says that the calls belong together. Fields that part the ranks in the same way have one cause and
    give one finding, which lists them all as ``differing``. ``strict`` makes other shapes an error for pure movement
    too, as ``detail`` mode wants. Send and receive are no collectives and are passed over. Odd calls (as read from a
    file) are judged by what they state, never refused. ``unknown`` fields are not compared.
    """
    members = [(rank, record) for rank, record in sorted(records.items()) if 0 <= rank < len(group.ranks)]
    voices = [_voice(group, rank, record, unknown) for rank, record in members]
    voices = [voice for voice in voices if voice.spec is None or voice.spec.kind is not Kind.POINT_TO_POINT]
    if any(voice.call.coalesced for voice in voices):
        voices = [voice for voice in voices if not _has_just_begun(voice)]
    if not voices:
        return []
    if (ops := differing_ops(voices)) is not None:
        return [_combine(group, [ops], voices)]
    return [] if voices[0].spec is None else _judge(group, _with_root(voices), voices[0].spec, strict)


def _voice(group: Group, group_rank: int, record: Record, unknown: frozenset[str]) -> Voice:
    spec = COLLECTIVES.get(record.call.op)
    rank, size = group.ranks[group_rank], len(group.ranks)
    if spec is None:
        return Voice(group_rank, rank, size, record, None, None, unknown)
    statement = known_statement(spec, record.call, group_rank, size, unknown)
    if "root" in unknown and spec.shows_root(record.call):
        statement = replace(statement, root=group_rank)
    return Voice(group_rank, rank, size, record, spec, statement, unknown)


def _has_just_begun(voice: Voice) -> bool:
    """True if a call may be the first part of a coalesced one: its rank's dump was written while it was made."""
    just_made = voice.record.state is State.SCHEDULED and not voice.record.awaited
    return bool(voice.unknown) and just_made and not voice.call.coalesced


def _with_root(voices: Sequence[Voice]) -> Sequence[Voice]:
    """Voices that know the root which no record states, where one rank's buffers give it away."""
    root = shown_root(voices)
    return voices if root is None else [replace(voice, root=root) for voice in voices]


def _judge(group: Group, voices: Sequence[Voice], spec: CollectiveSpec, strict: bool) -> list[Finding]:
    if all(voice.fault() is not None for voice in voices):
        # The backend refuses every one of them, in its own words; nobody waits for anybody.
        return []
    faults = faulty_calls(voices)
    # The flows and counts of a call that contradicts itself mean nothing.
    sound = [voice for voice in voices if faults is None or voice.rank not in (faults.culprits or ())]
    differences = [] if faults is None else [faults]
    differences += differing_fields(group, voices)
    # Flows rest on the size of the group.
    uneven = not group.partial and any(voice.flows() is not None for voice in sound)
    if uneven or faults is not None:
        differences = [difference for difference in differences if difference.name not in ("count", "contents")]
    causes = [_combine(group, same, voices) for same in _by_partition(differences)]
    if any(difference.name == "root" for difference in differences) and uneven:
        # Flows depend on the root: where the ranks differ on it, broken flows are its symptom.
        return causes
    if uneven:
        return _with_law(group, causes, broken_law(group, sound), voices)
    if (total := broken_total(group, voices)) is not None:
        return _with_law(group, causes, total, voices)
    if any(difference.name in ("count", "contents") for difference in differences):
        return causes
    return _with_shapes(causes, judge_shapes(group, sound, spec, strict=strict))


def _by_partition(differences: Sequence[Difference]) -> list[list[Difference]]:
    """Differences that part the ranks alike, together, in order of the first of each."""
    together: dict[object, list[Difference]] = {}
    for difference in differences:
        together.setdefault(_partition(difference.parts), []).append(difference)
    return list(together.values())


def _partition(parts: Parts) -> frozenset[frozenset[int]]:
    return frozenset(frozenset(voice.rank for voice in members) for members in parts.values())


def _combine(group: Group, differences: Sequence[Difference], voices: Sequence[Voice]) -> Finding:
    """One finding for differences with one cause: the first gives the code, all give their names and sentences."""
    first = differences[0]
    found = finding(
        first.rule,
        group,
        first.parts,
        "; ".join(difference.message for difference in differences),
        differing=tuple(difference.name for difference in differences),
        culprits=first.culprits,
    )
    return replace(found, unknown=_unknown(voices, found.differing))


def _unknown(voices: Sequence[Voice], differing: Sequence[str] = ()) -> tuple[str, ...]:
    """Fields that these ranks must agree on and that no record states."""
    agree = frozenset() if voices[0].spec is None else voices[0].spec.agree
    silent = [name for name in ("reduce_op", "root") if name in agree and _is_silent(voices, name)]
    left_out = unknown_fields({voice.call.op for voice in voices}, voices[0].unknown)
    return tuple(name for name in dict.fromkeys([*silent, *left_out]) if name not in differing)


def _is_silent(voices: Sequence[Voice], name: str) -> bool:
    return all(getattr(voice.call, name) is None for voice in voices)


def _with_law(group: Group, causes: list[Finding], law: BrokenLaw | None, voices: Sequence[Voice]) -> list[Finding]:
    """Add broken flows as a finding of their own, or as one more field of a finding on the same ranks."""
    if law is None:
        return causes
    name = "splits" if law.rule.code == "SC106" else "count"
    for index, cause in enumerate(causes):
        if cause.culprits == law.culprits:
            together = replace(cause, message=f"{cause.message}; {law.message}", differing=(*cause.differing, name))
            return [*causes[:index], together, *causes[index + 1 :]]
    found = finding(law.rule, group, law.parts, law.message, differing=(name,), culprits=law.culprits)
    ranks = tuple(sorted(voice.rank for voice in voices))
    sides = tuple(
        side(members, "; ".join(dict.fromkeys(law.notes[voice.rank] for voice in members if voice.rank in law.notes)))
        for members in law.parts.values()
    )
    return [*causes, replace(found, ranks=ranks, sides=sides, unknown=_unknown(voices))]


def _with_shapes(causes: list[Finding], shapes: list[Finding]) -> list[Finding]:
    """Add a difference of shapes, unless a finding on the same ranks already names them: then it is a field of it."""
    for shape in shapes:
        ranks = {one.ranks for one in shape.sides}
        for index, cause in enumerate(causes):
            if {one.ranks for one in cause.sides} == ranks:
                joined = replace(
                    cause,
                    message=f"{cause.message}; {shape.message}",
                    differing=(*cause.differing, *shape.differing),
                )
                return [*causes[:index], joined, *causes[index + 1 :]]
    return [*causes, *shapes]
