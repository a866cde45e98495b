"""The accounts that watchers of a job's processes leave beside the black boxes: each launcher's of the ends of
its ranks, and each monitor's of a stalled job.

The launcher's file is rewritten whole whenever a rank starts or ends; the monitor's serves a later verification:

    {"schema": "simcoll.launch/1", "host": ..., "node": 0, "world_size": 4, "attempt": 0, "error": null,
     "interrupted": null, "pid": ..., "over": false, "ranks": [{"rank": 0, "local_rank": 0, "pid": ...,
     "exit_code": -11, "signal": "SIGSEGV", "ended_ns": ..., "stopped": false, "message": "..."}]}

    {"schema": "simcoll.stall/1", "since_ns": ..., "seen_ns": ..., "over": true, "blocked": [0], "busy": [],
     "stopped": [], "connecting": [], "places": {"3": ["train.py", 9, "evaluate", "event.wait()"]}}

``exit_code`` is null while a rank runs and negative for a signal; ``stopped`` says that the agent ended the rank
because another one had failed, or because the job was interrupted. ``over`` is false while the launcher (``pid``) may
start its ranks again.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from simcoll.core.io import open_at_once, write_whole
from simcoll.core.record import UNKNOWN_SOURCE, Source, source_document, source_from
from simcoll.core.trace import LaunchOutcome, RankExit, Stall

LAUNCH_SCHEMA = "simcoll.launch/1"
LAUNCH_PATTERN = "launch*.json"
STALL_SCHEMA = "simcoll.stall/1"
STALL_PATTERN = "stall*.json"
_LAUNCH_LIMIT = 64 << 20
_STALL_LIMIT = 16 << 20


@dataclass(frozen=True, slots=True)
class LaunchedRank:
    """The end of one rank's process, as its launcher saw it. ``exit_code`` is None while it runs."""

    rank: int
    exit_code: int | None
    ended_ns: int = 0
    stopped: bool = False
    pid: int = 0


@dataclass(frozen=True, slots=True)
class LaunchAccount:
    """One launcher's account: its ranks, the error that kept it from starting them, the signal that interrupted it.

    ``over`` is False while the launcher, process ``pid``, may start its ranks again.
    """

    ranks: tuple[LaunchedRank, ...] = ()
    error: str | None = None
    interrupted: str | None = None
    node: int = 0
    world_size: int = 0
    host: str = ""
    pid: int = 0
    over: bool = True

    @property
    def ended(self) -> bool:
        """True if none of its ranks runs any more."""
        return all(rank.exit_code is not None for rank in self.ranks)


def read_launch(path: Path) -> LaunchAccount:
    """Read what :mod:`simcoll.launch.agent` wrote; an empty account where the file is missing or not one."""
    try:
        with open_at_once(path) as file:
            return launch_of(file.read(_LAUNCH_LIMIT))
    except OSError:
        return LaunchAccount()


def launch_of(text: bytes) -> LaunchAccount:
    """The account in a file's text; an empty one where it is none."""
    try:
        document = json.loads(text)
        ranks = [_rank(entry) for entry in document["ranks"]]
    except (ValueError, TypeError, KeyError, RecursionError):
        return LaunchAccount()
    error, interrupted = document.get("error"), document.get("interrupted")
    return LaunchAccount(
        tuple(ranks),
        error if isinstance(error, str) else None,
        interrupted if isinstance(interrupted, str) else None,
        _whole_or_0(document.get("node")),
        _whole_or_0(document.get("world_size")),
        str(document.get("host") or ""),
        _whole_or_0(document.get("pid")),
        document.get("over") is not False,
    )


def outcome_of(launches: Sequence[LaunchAccount]) -> LaunchOutcome:
    """The accounts of all nodes as the verifier takes them."""
    ranks = {}
    for launch in launches:
        for entry in launch.ranks:
            ranks[entry.rank] = RankExit(entry.exit_code, entry.ended_ns, stopped=entry.stopped)
    return LaunchOutcome(ranks, launched=bool(ranks))


def _whole_or_0(value: object) -> int:
    return value if type(value) is int else 0


def _rank(entry: dict[str, object]) -> LaunchedRank:
    rank, code, ended, pid = entry["rank"], entry["exit_code"], entry["ended_ns"], entry.get("pid")
    if type(rank) is not int or type(ended) is not int or not (code is None or type(code) is int):
        raise TypeError("rank")
    return LaunchedRank(rank, code, ended, entry["stopped"] is True, _whole_or_0(pid))


def write_stall(path: Path, stall: Stall) -> None:
    """Write one node's account; raises OSError."""
    write_whole(path, stall_text(stall))


def stall_text(stall: Stall) -> str:
    """An account as it is written."""
    document = {
        "schema": STALL_SCHEMA,
        "since_ns": stall.since_ns,
        "seen_ns": stall.seen_ns,
        "over": stall.over,
        "blocked": sorted(stall.blocked),
        "busy": sorted(stall.busy),
        "stopped": sorted(stall.stopped),
        "connecting": sorted(stall.connecting),
        "places": {str(rank): source_document(place) for rank, place in sorted(stall.places.items())},
    }
    return json.dumps(document) + "\n"


def read_stall(path: Path) -> Stall | None:
    """Read what :func:`write_stall` wrote; None where the file is missing or is no such account."""
    try:
        with open_at_once(path) as file:
            return stall_of(file.read(_STALL_LIMIT))
    except OSError:
        return None


def stall_of(text: bytes) -> Stall | None:
    """The account in a file's text; None where it is none."""
    try:
        document = json.loads(text)
        if document["schema"] != STALL_SCHEMA:
            return None
        return Stall(
            _whole(document["since_ns"]),
            _whole(document["seen_ns"]),
            {int(rank): _source(value) for rank, value in document["places"].items()},
            blocked=frozenset(map(_whole, document["blocked"])),
            busy=frozenset(map(_whole, document["busy"])),
            stopped=frozenset(map(_whole, document["stopped"])),
            connecting=frozenset(map(_whole, document.get("connecting", ()))),
            over=document["over"] is True,
        )
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None


def read_stalls(paths: Iterable[Path], later: Mapping[str, int] | None = None) -> Stall | None:
    """The accounts in these files, one of each node, as one; None where there is none. ``later`` is as for
    :func:`stall_by`.
    """
    return together(filter(None, (stall_by(path, later or {}) for path in paths)))


def stall_by(path: Path, later: Mapping[str, int]) -> Stall | None:
    """A monitor's account, with its times so much later (ns) as ``later`` says of the host of the launcher beside."""
    stall = read_stall(path)
    if stall is None or not later:
        return stall
    by = later.get(read_launch(path.with_name(path.name.replace("stall", "launch", 1))).host, 0)
    return replace(stall, since_ns=stall.since_ns + by, seen_ns=stall.seen_ns + by)


def together(stalls: Iterable[Stall]) -> Stall | None:
    """The accounts of all nodes as one; None where there is none."""
    known = list(stalls)
    if not known:
        return None
    return Stall(
        min(stall.since_ns for stall in known),
        max(stall.seen_ns for stall in known),
        {rank: place for stall in known for rank, place in stall.places.items()},
        frozenset().union(*(stall.blocked for stall in known)),
        frozenset().union(*(stall.busy for stall in known)),
        frozenset().union(*(stall.stopped for stall in known)),
        frozenset().union(*(stall.connecting for stall in known)),
        over=any(stall.over for stall in known),
    )


def _whole(value: object) -> int:
    if type(value) is not int:
        raise TypeError(f"expected an integer, got {value!r:.80}")
    return value


def _source(value: object) -> Source:
    source = source_from(value)
    if source is UNKNOWN_SOURCE:
        raise TypeError(f"expected file, line, function and code, got {value!r:.80}")
    return source
