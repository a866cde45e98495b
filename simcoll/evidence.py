"""What a job left behind, gathered for the verifier: black boxes of one run, the launcher's account of its ranks."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from simcoll.blackbox import BlackBox, UnreadableError, read_black_box
from simcoll.blackbox_format import SUFFIX
from simcoll.opened import open_at_once
from simcoll.verifier.trace import LaunchOutcome, RankExit

LAUNCH_PATTERN = "launch*.json"
_LAUNCH_LIMIT = 64 << 20


@dataclass(frozen=True, slots=True)
class LaunchedRank:
    """How one rank's process ended, as its launcher saw it. ``exit_code`` is None while it runs."""

    rank: int
    exit_code: int | None
    ended_ns: int = 0
    stopped: bool = False
    pid: int = 0


@dataclass(frozen=True, slots=True)
class Launch:
    """One launcher's account: its ranks, why it could not start them, the signal that interrupted it."""

    ranks: tuple[LaunchedRank, ...] = ()
    error: str | None = None
    interrupted: str | None = None
    node: int = 0
    world_size: int = 0

    @property
    def ended(self) -> bool:
        """Whether none of its ranks runs any more."""
        return all(rank.exit_code is not None for rank in self.ranks)


@dataclass(frozen=True, slots=True)
class Evidence:
    """The traces of one run by rank, what became of the processes (None: unknown), and what was left out and why."""

    boxes: tuple[BlackBox, ...]
    outcome: LaunchOutcome | None
    notes: tuple[str, ...] = ()
    unreadable: tuple[str, ...] = field(default=())


def gather(paths: Iterable[Path], launches: Sequence[Launch] = (), *, since_ns: int = 0) -> Evidence:
    """Read black boxes and keep those of one run: the newest, and its last attempt.

    ``paths`` are files; ``since_ns`` (wall clock) leaves out what an earlier run left in the same folder.
    """
    boxes, unreadable = [], []
    for path in paths:
        try:
            boxes.append(read_black_box(path))
        except UnreadableError as error:
            unreadable.append(str(error))
    fresh = [box for box in boxes if box.created_ns >= since_ns]
    chosen, notes = _one_run(fresh)
    return Evidence(tuple(chosen), outcome_of(launches) if launches else None, tuple(notes), tuple(unreadable))


def files_of(path: Path) -> list[Path]:
    """The black boxes that a path names: itself, or those in a folder, by name."""
    return sorted(path.glob(f"*{SUFFIX}")) if path.is_dir() else [path]


def read_launch(path: Path) -> Launch:
    """Read what :mod:`simcoll.launcher` wrote; an empty account where the file is missing or not one."""
    try:
        with open_at_once(path) as file:
            document = json.loads(file.read(_LAUNCH_LIMIT))
        ranks = [_rank(entry) for entry in document["ranks"]]
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return Launch()
    error, interrupted = document.get("error"), document.get("interrupted")
    return Launch(
        tuple(ranks),
        error if isinstance(error, str) else None,
        interrupted if isinstance(interrupted, str) else None,
        _whole(document.get("node")),
        _whole(document.get("world_size")),
    )


def outcome_of(launches: Sequence[Launch]) -> LaunchOutcome:
    """The accounts of all nodes as the verifier takes them."""
    ranks = {}
    for launch in launches:
        for entry in launch.ranks:
            ranks[entry.rank] = RankExit(entry.exit_code, entry.ended_ns, stopped=entry.stopped)
    return LaunchOutcome(ranks, launched=bool(ranks))


def _whole(value: object) -> int:
    return value if type(value) is int else 0


def _rank(entry: dict[str, object]) -> LaunchedRank:
    rank, code, ended, pid = entry["rank"], entry["exit_code"], entry["ended_ns"], entry.get("pid")
    if type(rank) is not int or type(ended) is not int or not (code is None or type(code) is int):
        raise TypeError("rank")
    return LaunchedRank(rank, code, ended, entry["stopped"] is True, _whole(pid))


def _one_run(boxes: list[BlackBox]) -> tuple[list[BlackBox], list[str]]:
    """The boxes of the newest run, one a rank."""
    if not boxes:
        return [], []
    newest = max(boxes, key=lambda box: box.created_ns)
    same = [box for box in boxes if (box.run, box.world_size) == (newest.run, newest.world_size)]
    attempt = max(box.attempt for box in same)
    by_rank: dict[int, BlackBox] = {}
    for box in sorted((box for box in same if box.attempt == attempt), key=lambda box: box.created_ns):
        by_rank[box.rank] = box
    left_out = len(boxes) - len(by_rank)
    notes = [f"{left_out} black boxes of other runs or earlier attempts were left out"] if left_out else []
    return [by_rank[rank] for rank in sorted(by_rank)], notes
