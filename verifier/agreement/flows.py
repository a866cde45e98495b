"""SC102 and SC106: the law of flows, what rank i sends to rank j is what j expects from i.

Who is wrong follows from the pairs that break the law: a rank whose own two statements contradict each other; a rank
that stands in more broken pairs than any other; for a pair on its own, the one that leaves the pattern of all the
agreed flows beside it. Where none of these speaks, nobody is named.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from simcoll.core.record import Group
from simcoll.spec.flows import Flows, SparseFlow
from simcoll.verifier.findings.finding import Rule
from simcoll.verifier.findings.rules import SIZE_MISMATCH, SPLIT_MISMATCH
from simcoll.verifier.findings.sides import Parts, Voice, moved, outvoted, part

Matrix: TypeAlias = npt.NDArray[np.int64]
Mask: TypeAlias = npt.NDArray[np.bool_]

_LARGEST = 2**62
_RANKS_SHOWN = 8
_PAIRS_WEIGHED = 1000


@dataclass(frozen=True, slots=True)
class BrokenLaw:
    """Broken flows of one collective: which rule, who is wrong, the sentence, the voices to show with their notes."""

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
    """Judge what all ranks of a group send against what they expect, all together, where splits are hidden.

    A rank whose own totals leave those of most ranks is the one that is wrong.
    """
    hidden = any(_is_hidden(voice) and not voice.hides("root") for voice in voices)
    if len(voices) < len(group.ranks) or group.partial or not hidden:
        return None
    sent, expected = (sum(column) for column in zip(*(moved(voice.call) for voice in voices), strict=True))
    if sent == expected:
        return None
    parts = part(voices, lambda voice: moved(voice.call))
    message = f"all ranks together send {_elements(sent)} and expect {expected}"
    notes = {voice.rank: "sends {} and expects {} in all".format(*moved(voice.call)) for voice in voices[:_RANKS_SHOWN]}
    return BrokenLaw(SPLIT_MISMATCH, outvoted(parts), message, parts, notes)


def _is_hidden(voice: Voice) -> bool:
    """Whether the flows of a call are not known."""
    return (voice.hides("root") and voice.root is None) or any(map(voice.hides, ("input_splits", "output_splits")))


def _matrices(voices: Sequence[Voice], size: int) -> tuple[Matrix, Matrix, tuple[bool, bool]]:
    """What each present rank sends to, and is expected to send to, each other; and whether every rank sends the same
    to all, expects the same from all.
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
    """Write one rank's flow without peers that are absent or outside the group; whether it is the same to several."""
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
    """Which end of a single broken pair is wrong: the one that the agreed flows around it do not bear out."""
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
    text = f"rank {voices[sender].rank} sends {_elements(sent)} to {who} expects {expected}"
    return text if total == 1 else f"{text} ({total - 1} more of the group's pairs disagree)"


def _elements(count: int) -> str:
    return f"{count} element" if count == 1 else f"{count} elements"


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
