"""Writes down what was seen of the memory of calls in flight: that it was written to, that two calls use the same.

Events of which a loop makes many: the first of a kind is written down, and then each time that they have doubled.
"""

from __future__ import annotations

from collections import Counter
from weakref import WeakKeyDictionary

from simcoll.core.record import source_document
from simcoll.recorder.recorder import Entry, Recorder
from simcoll.recorder.source import current_source

_counts: WeakKeyDictionary[Recorder, Counter[object]] = WeakKeyDictionary()


def write_repeated(recorder: Recorder, kind: str, case: object, **data: object) -> None:
    """Write down an event with its ``count`` so far; events of one kind and (hashable) ``case`` count together."""
    counts = _counts.setdefault(recorder, Counter())
    counts[kind, case] += 1
    count = counts[kind, case]
    if count & (count - 1) == 0:
        recorder.event(kind, count=count, **data)


def report_change(entry: Entry, *, known: bool) -> None:
    """A buffer of a call was written to; ``known`` says that it was before the data had left.

    Otherwise the line that runs now is where it was noticed.
    """
    noticed = None if known else current_source()
    _write(
        entry,
        "changed",
        (known, noticed),
        known=known,
        noticed=None if noticed is None else source_document(noticed),
    )


def report_overlap(entry: Entry, first: Entry, *, both_write: bool, running: bool) -> None:
    """A call uses memory of an earlier one, for which nobody has waited, and which may still be ``running``."""
    _write(
        entry,
        "overlap",
        (first.source, both_write, running),
        both_write=both_write,
        running=running,
        other={
            "group": first.log.group.name,
            "sequence": first.sequence,
            "op": first.call.op,
            "source": source_document(first.source),
        },
    )


def _write(entry: Entry, kind: str, case: tuple[object, ...], **data: object) -> None:
    write_repeated(
        entry.log.recorder,
        kind,
        (entry.source, *case),
        group=entry.log.group.name,
        sequence=entry.sequence,
        op=entry.call.op,
        source=source_document(entry.source),
        **data,
    )
