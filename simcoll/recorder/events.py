"""Writes down what was seen of the memory of calls in flight: that it was written to, that two calls use the same."""

from __future__ import annotations

from simcoll.core.record import source_document
from simcoll.recorder.recorder import Entry
from simcoll.recorder.repeated_events import write_repeated
from simcoll.recorder.source import current_source


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
