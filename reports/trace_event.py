"""Slices of time on threads of processes as a Chrome trace-event file, which Perfetto and chrome://tracing open.

Format: the JSON object of the "Trace Event Format": ``traceEvents`` with complete events (``ph`` X, microseconds),
metadata events (M) that name processes and threads, flow events (s, t, f) that join the parts of one collective, and
instant events (i) for what was found. A file whose name ends in ``.gz`` is compressed; both viewers open that too.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from io import TextIOWrapper
from itertools import islice
from pathlib import Path
from typing import NamedTuple, TextIO

from simcoll.core.io import written_whole
from simcoll.core.text import safe

LIMIT = 1_000_000
"""Slices of a file, which Perfetto still opens quickly; more ranks than fit are left out, and that is said."""

_NAME_LIMIT = 200
_BATCH = 4096
_COMPRESSION = 4


class Slice(NamedTuple):
    """Something that took time, whole nanoseconds from the begin of the timeline; ``thread`` is one of its process.

    Slices of one thread are nested or follow each other. ``flow`` is 0, or one more than the number of the collective
    that this slice is a part of; ``phase`` then says whether it is the earliest part (s), the latest (f), or between
    them (t).
    """

    process: int
    thread: int
    name: str
    begin: int
    end: int
    args: Mapping[str, object]
    flow: int = 0
    phase: str = ""


class Instant(NamedTuple):
    """Something that happened at a moment, on a thread, or with ``thread`` None to a whole process."""

    process: int
    thread: int | None
    name: str
    time: int
    args: Mapping[str, object]


@dataclass(frozen=True, slots=True, eq=False)
class TraceEvents:
    """A timeline: names of processes and of their threads, its slices, made as they are written, and its instants.

    ``begin_ns`` is the moment (wall clock) from which times count, 0 where they are predicted. ``note`` lists the
    omissions.
    """

    processes: Mapping[int, str]
    threads: Mapping[tuple[int, int], str]
    slices: Iterable[Slice]
    begin_ns: int = 0
    note: str = ""
    about: Mapping[str, object] = field(default_factory=dict)
    instants: Sequence[Instant] = ()


def write_trace_events(path: Path, timeline: TraceEvents) -> None:
    """Write the file, piece by piece and under its name when it is whole; raises OSError."""
    with written_whole(path) as place, _opened(place, path.suffix) as file:
        _write(file, timeline)


@contextmanager
def _opened(path: Path, suffix: str) -> Iterator[TextIO]:
    """The file, compressed where its name says so; the same events are the same bytes, whenever they are written."""
    with path.open("wb") as file:
        if suffix.lower() != ".gz":
            with TextIOWrapper(file, "ascii") as text:
                yield text
            return
        with gzip.GzipFile("", "wb", _COMPRESSION, file, mtime=0) as packed, TextIOWrapper(packed, "ascii") as text:
            yield text


def _write(file: TextIO, timeline: TraceEvents) -> None:
    about = {**timeline.about, "begin_ns": timeline.begin_ns, "note": timeline.note}
    head = json.dumps({"displayTimeUnit": "ms", "otherData": about})
    file.write(head[:-1] + ', "traceEvents": [\n')
    events = _events(timeline)
    separator = ""
    while batch := list(islice(events, _BATCH)):
        file.write(separator + ",\n".join(batch))
        separator = ",\n"
    file.write("\n]}\n")


def _events(timeline: TraceEvents) -> Iterator[str]:
    """Names, slices, instants. Threads get numbers that no other process has: viewers name a thread by its number."""
    numbers = {thread: number for number, thread in enumerate(timeline.threads, 1)}
    first: dict[int, int] = {}
    for (process, _), number in numbers.items():
        first.setdefault(process, number)
    for process, name in timeline.processes.items():
        place = process, first.setdefault(process, len(numbers) + len(first) + 1)
        yield _named("process_name", *place, {"name": _text(name)})
        yield _named("process_sort_index", *place, {"sort_index": process})
    for (process, thread), name in timeline.threads.items():
        yield _named("thread_name", process, numbers[process, thread], {"name": _text(name)})
        yield _named("thread_sort_index", process, numbers[process, thread], {"sort_index": thread})
    for one in timeline.slices:
        yield from _slice(one, numbers[one.process, one.thread])
    for moment in timeline.instants:
        whole = moment.thread is None
        yield _instant(moment, first[moment.process] if whole else numbers[moment.process, moment.thread or 0])


def _named(what: str, process: int, thread: int, args: Mapping[str, object]) -> str:
    return json.dumps({"ph": "M", "name": what, "pid": process, "tid": thread, "args": args})


def _slice(one: Slice, thread: int) -> Iterator[str]:
    """The slice, and the event that joins it to the other parts of the same collective.

    An arrow needs a slice that is open at its moment (Perfetto, flow_tracker.cc): one that takes no time has none.
    """
    name = json.dumps(_text(one.name))
    args = json.dumps(_harmless(one.args, _text))
    place = f'"ts":{_microseconds(one.begin)},"pid":{one.process},"tid":{thread}'
    took = max(one.end - one.begin, 0)
    yield f'{{"ph":"X","name":{name},"cat":"simcoll",{place},"dur":{_microseconds(took)},"args":{args}}}'
    if one.flow and one.phase and took:
        enclosing = ',"bp":"e"' if one.phase == "f" else ""
        yield f'{{"ph":"{one.phase}","name":"together","cat":"collective","id":{one.flow},{place}{enclosing}}}'


def _instant(one: Instant, thread: int) -> str:
    place = {"pid": one.process, "tid": thread, "s": "p" if one.thread is None else "t"}
    event = {"ph": "i", "name": _text(one.name), "cat": "finding", **place, "args": _harmless(one.args, safe)}
    return f'{json.dumps(event)[:-1]},"ts":{_microseconds(one.time)}}}'


def _harmless(args: Mapping[str, object], shown: Callable[[str], str]) -> dict[str, object]:
    return {key: shown(value) if isinstance(value, str) else value for key, value in args.items()}


def _microseconds(nanoseconds: int) -> str:
    return f"{nanoseconds // 1000}.{nanoseconds % 1000:03d}"


def _text(value: str) -> str:
    """A name from outside: on one line, of bounded length, without half a character."""
    return safe(value[:_NAME_LIMIT])
