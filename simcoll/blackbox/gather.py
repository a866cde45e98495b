"""Gathers the records of a job for the verifier: the ranks' traces of one run, of the files in folders."""

from __future__ import annotations

import fnmatch
import os
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from simcoll.blackbox import BlackBox, UnreadableError
from simcoll.blackbox.accounts import LAUNCH_PATTERN, STALL_PATTERN, LaunchAccount, outcome_of
from simcoll.blackbox.file_kinds import is_record_file
from simcoll.blackbox.format import SUFFIX
from simcoll.blackbox.host_clocks import with_one_clock
from simcoll.blackbox.host_files import HOST_PATTERN, KERNEL_PATTERN, RAS_PATTERN
from simcoll.blackbox.reader_pool import Progress, read_files
from simcoll.blackbox.remote_ranks import NODES_FILE
from simcoll.blackbox.spread_reading import read_spread
from simcoll.blackbox.stacks import DUMP_SUFFIX, STACK_SUFFIX, TRACEBACK_SUFFIX
from simcoll.core.executors import Spread
from simcoll.core.trace import LaunchOutcome, Trace
from simcoll.verifier.flight_recorder import Dump, traces_of
from simcoll.verifier.flight_recorder.jobs import merge

_NAMES_RANK = re.compile(r"rank\D{0,2}\d", re.IGNORECASE)
_OWN = (SUFFIX, STACK_SUFFIX, DUMP_SUFFIX, TRACEBACK_SUFFIX)
_ACCOUNTS = (LAUNCH_PATTERN, STALL_PATTERN, HOST_PATTERN)
_BESIDE = (*_ACCOUNTS, KERNEL_PATTERN, RAS_PATTERN, NODES_FILE, "report.json", "report.html")
_MOST_NAMED = 20
"""So many files that cannot be read are named."""


@dataclass(frozen=True, slots=True)
class RunRecords:
    """The traces of one run by rank, the ends of the processes (None: unknown), and the files left out with reasons.

    ``folders`` are those beside whose records a launcher may have left its account. ``later`` has how much later (ns)
    the times of a host are here than by its own clock, which other hosts' clocks show to be wrong.
    """

    traces: tuple[Trace, ...]
    outcome: LaunchOutcome | None
    notes: tuple[str, ...] = ()
    unreadable: tuple[str, ...] = ()
    folders: tuple[Path, ...] = ()
    later: Mapping[str, int] = field(default_factory=dict)


def gather(
    paths: Iterable[Path],
    launches: Sequence[LaunchAccount] = (),
    *,
    since_ns: int = 0,
    workers: int | None = None,
    progress: Progress | None = None,
    spread: Spread | None = None,
) -> RunRecords:
    """Read black boxes and Flight Recorder dumps; of black boxes those of one run: the newest, its last attempt.

    The dumps of that run are put together with its black boxes (:mod:`simcoll.verifier.flight_recorder.jobs`).

    ``paths`` are files and folders; ``since_ns`` (wall clock) leaves out the black boxes of earlier runs in the same
    folder. ``workers`` and ``progress`` are as :func:`simcoll.blackbox.reader_pool.read_files` takes them. With
    ``spread`` its workers read the files; raises ExecutorError where they cannot.
    """
    paths = list(paths)
    found = [find_records(path) for path in paths]
    files = [*dict.fromkeys(file for one in found for file in one.files)]
    if spread is None:
        outcomes = read_files(files, workers=workers, progress=progress)
    else:
        outcomes = read_spread(files, spread, progress)
    boxes = [one for one in outcomes if isinstance(one, BlackBox) and one.created_ns >= since_ns]
    dumps = [one for one in outcomes if isinstance(one, Dump)]
    unreadable = [str(one) for one in outcomes if isinstance(one, UnreadableError)]
    chosen, notes = one_run(boxes)
    later: Mapping[str, int] = {}
    if boxes:
        dumps = _of_run(dumps, chosen, notes)
    if boxes and not dumps:
        # The host of a dump is not known.
        chosen, launches, moved, later = with_one_clock(chosen, launches)
        notes += moved
    of_paths = dict(zip(paths, found, strict=True))
    other_runs = _of_other_runs(of_paths, boxes, chosen or dumps)
    notes += [f"{path}: holds another run, which is not judged here: give it alone" for path in other_runs]
    notes += [one.note for one in found if one.note]
    traces: Sequence[Trace] = _traces(dumps, unreadable)
    if boxes:
        merged = merge(chosen, traces)
        traces, notes = merged.traces, [*notes, *merged.notes]
    outcome = outcome_of(launches) if launches else None
    folders = _folders([path for path in paths if os.path.isdir(path)], other_runs, chosen or dumps)
    return RunRecords(tuple(traces), outcome, tuple(notes), tuple(_first(unreadable)), folders, later)


def _of_other_runs(
    found: Mapping[Path, RecordFiles], boxes: Sequence[BlackBox], used: Sequence[BlackBox | Dump]
) -> list[Path]:
    """The given folders that have black boxes, and none of which any record is used."""
    files, mine = {box.path for box in boxes}, {one.path for one in used}
    names = {path: one.files for path, one in found.items() if os.path.isdir(path)}
    return [path for path, own in names.items() if files.intersection(own) and mine.isdisjoint(own)]


def _of_run(dumps: Sequence[Dump], boxes: Sequence[BlackBox], notes: list[str]) -> list[Dump]:
    """The dumps of a run: those with calls that were made after it had begun."""
    begun = min(box.created_ns for box in boxes)
    kept = [dump for dump in dumps if (int(dump.slots["scheduled_ns"].max(initial=0)) or dump.seen_ns) >= begun]
    if left_out := len(dumps) - len(kept):
        others = _counted(left_out, "Flight Recorder dump of another run", "Flight Recorder dumps of other runs")
        notes.append(f"{others} left out")
    return kept


def _folders(given: Sequence[Path], other_runs: Collection[Path], used: Sequence[BlackBox | Dump]) -> tuple[Path, ...]:
    """The folders that were given, and those below them of which a record is used: not those of other runs."""
    # A host all of whose ranks failed before they recorded has left an account alone.
    own = [path for path in given if path not in other_runs]
    below = sorted({Path(folder) for folder in {_folder_of(one.path) for one in used}})
    return tuple(dict.fromkeys([*own, *(folder for folder in below if any(map(folder.is_relative_to, given)))]))


def _counted(number: int, one: str, many: str) -> str:
    return f"{number} {one} was" if number == 1 else f"{number:,} {many} were"


def _first(texts: Sequence[str]) -> Sequence[str]:
    """The first `_MOST_NAMED` texts, and the number of the rest."""
    more = len(texts) - _MOST_NAMED
    if more <= 0:
        return texts
    return [*texts[:_MOST_NAMED], f"{more:,} more {'file' if more == 1 else 'files'} cannot be read"]


def _traces(dumps: Sequence[Dump], unreadable: list[str]) -> Sequence[Trace]:
    try:
        return traces_of(dumps)
    except UnreadableError as error:
        unreadable.append(str(error))
        return ()


def files_of(path: Path) -> list[Path]:
    """The black boxes that a path names: itself, or those in a folder, by name."""
    return matching(path, f"*{SUFFIX}") if os.path.isdir(path) else [path]


def boxes_below(folder: Path) -> list[Path]:
    """The black boxes of a folder, or else those of its sub-folders (one a host), by name: no other file is opened."""
    return files_of(folder) or [box for below in filter(os.path.isdir, _visible(folder)) for box in files_of(below)]


def matching(folder: Path, pattern: str) -> list[Path]:
    """The files of a folder that have such a name, sorted; none where it is no folder, or is gone."""
    return [folder / name for name in _names_matching(folder, pattern)]


def _names_matching(folder: Path, pattern: str) -> list[str]:
    try:
        return sorted(fnmatch.filter(os.listdir(folder), pattern))
    except OSError:
        return []


@dataclass(frozen=True, slots=True)
class RecordFiles:
    """The files to read that a path names, as texts, which are made sooner than paths; and notes on the others."""

    files: Sequence[str]
    note: str = ""


def find_records(path: Path) -> RecordFiles:
    """The black boxes of a folder with the dumps beside them, or else its dumps, or else those of its sub-folders (one
    a host); a file is itself.

    Dumps are recognised by their content, not by their names; hidden files are skipped.
    """
    if not os.path.isdir(path):
        return RecordFiles([str(path)])
    files, passed = _records_in(path)
    if not files:
        for folder in filter(os.path.isdir, _visible(path)):
            more, others = _records_in(folder)
            files, passed = files + more, passed + others
    return RecordFiles(files, f"{path}: {_counted(passed, 'other file', 'other files')} passed over" if passed else "")


def _records_in(folder: Path) -> tuple[list[str], int]:
    """The files of one folder to be read, and the number of others beside the dumps among them."""
    if boxes := _names_matching(folder, f"*{SUFFIX}"):
        below = str(folder / "name").removesuffix("name")
        return [*(below + name for name in boxes), *map(str, dumps_beside(folder))], 0
    files = [path for path in _visible(folder) if os.path.isfile(path) and not _is_own(path)]
    dumps = [str(path) for path in files if is_record_file(path)]
    return dumps, len(files) - len(dumps)


def dumps_beside(folder: Path) -> list[Path]:
    """The Flight Recorder dumps in a folder of black boxes: files whose names contain a rank."""
    try:
        names = sorted(os.listdir(folder))
    except OSError:
        return []
    # Most are black boxes, of thousands of ranks: names are sorted out before they are made paths.
    others = (name for name in names if not name.endswith(_OWN) and not name.startswith("."))
    named = [folder / name for name in others if _NAMES_RANK.search(name)]
    return [path for path in named if os.path.isfile(path) and not _is_own(path) and is_record_file(path)]


def _visible(folder: Path) -> list[Path]:
    try:
        return sorted((path for path in folder.iterdir() if not path.name.startswith(".")), key=os.fspath)
    except OSError:
        return []


def _is_own(path: Path) -> bool:
    """True for a file that simcoll itself leaves beside the records, or reads there."""
    return any(path.match(pattern) for pattern in _BESIDE)


def one_run(boxes: Sequence[BlackBox]) -> tuple[list[BlackBox], list[str]]:
    """The boxes of the newest run, one a rank."""
    if not boxes:
        return [], []
    by_rank: dict[int, BlackBox] = {}
    for box in sorted(_of_newest_run(boxes), key=lambda box: box.created_ns):
        by_rank[box.rank] = box
    left_out = len(boxes) - len(by_rank)
    others = _counted(left_out, "black box of another run or attempt", "black boxes of other runs or earlier attempts")
    notes = [f"{others} left out"] if left_out else []
    return [by_rank[rank] for rank in sorted(by_rank)], notes


def _of_newest_run(boxes: Sequence[BlackBox]) -> list[BlackBox]:
    """Those of the run and attempt of the newest box; of folders that hold the same ranks, that of the newest alone.

    Launchers may give all runs one id, or none; hosts never hold the same ranks. A box whose description is damaged
    belongs to the run of the sound ones beside it: it must not define one in which no other rank is.
    """
    newest = max([box for box in boxes if box.about] or boxes, key=lambda box: box.created_ns)
    folder, run = _folder_of(newest.path), _run_of(newest)
    same = [box for box in boxes if _run_of(box) == run or (not box.about and _is_beside(box, newest))]
    placed = [(box, _folder_of(box.path)) for box in same]
    ranks = {box.rank for box, own in placed if own == folder}
    other_runs = {own for box, own in placed if box.rank in ranks} - {folder}
    return [box for box, own in placed if own not in other_runs]


def _folder_of(path: str) -> str:
    """The folder of a file whose path is written without needless characters, as pathlib writes it."""
    return path.rpartition(os.sep)[0] or os.path.dirname(path)


def _is_beside(box: BlackBox, other: BlackBox) -> bool:
    alike = (box.world_size, box.attempt) == (other.world_size, other.attempt)
    return alike and _folder_of(box.path) == _folder_of(other.path)


def _run_of(box: BlackBox) -> tuple[str, int, int]:
    return box.run, box.world_size, box.attempt
