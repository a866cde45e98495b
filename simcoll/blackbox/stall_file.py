"""The stall file: what a node's monitor observed when the job stalled, kept beside the black boxes.

{"schema": "simcoll.stall/1", "since_ns": ..., "seen_ns": ..., "over": true, "blocked": [0], "busy": [],
"stopped": [], "connecting": [], "places": {"3": ["train.py", 9, "evaluate", "event.wait()"]}}
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from simcoll.core.io import open_at_once, write_whole
from simcoll.core.record import Source
from simcoll.core.trace import Stall

SCHEMA = "simcoll.stall/1"
PATTERN = "stall*.json"
_LIMIT = 16 << 20


def write_stall(path: Path, stall: Stall) -> None:
    """Write one node's account; raises OSError."""
    document = {
        "schema": SCHEMA,
        "since_ns": stall.since_ns,
        "seen_ns": stall.seen_ns,
        "over": stall.over,
        "blocked": sorted(stall.blocked),
        "busy": sorted(stall.busy),
        "stopped": sorted(stall.stopped),
        "connecting": sorted(stall.connecting),
        "places": {str(rank): [at.file, at.line, at.function, at.code] for rank, at in sorted(stall.places.items())},
    }
    write_whole(path, json.dumps(document) + "\n")


def read_stall(path: Path) -> Stall | None:
    """Read what :func:`write_stall` wrote; None where the file is missing or is no such account."""
    try:
        with open_at_once(path) as file:
            document = json.loads(file.read(_LIMIT))
        if document["schema"] != SCHEMA:
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
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None


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
    if not isinstance(value, list) or len(value) != 4 or not all(isinstance(value[i], str) for i in (0, 2, 3)):
        raise TypeError(f"expected file, line, function and code, got {value!r:.80}")
    return Source(value[0], _whole(value[1]), value[2], value[3])
