"""Events of which a loop makes many: the first of a kind is written down, and then each time that they have doubled."""

from __future__ import annotations

from collections import Counter
from weakref import WeakKeyDictionary

from simcoll.recorder.recorder import Recorder

_counts: WeakKeyDictionary[Recorder, Counter[object]] = WeakKeyDictionary()


def write_repeated(recorder: Recorder, kind: str, case: object, **data: object) -> None:
    """Write down an event with its ``count`` so far; events of one kind and (hashable) ``case`` count together."""
    counts = _counts.setdefault(recorder, Counter())
    counts[kind, case] += 1
    count = counts[kind, case]
    if count & (count - 1) == 0:
        recorder.event(kind, count=count, **data)
