"""What node 0 knows of ranks whose records lie on other nodes while the job runs: a file beside its own records.

    {"schema": "simcoll.nodes/1", "ranks": [{"rank": 4, "node": 1, "host": "node-1", "place": "started all_reduce
     (collective 42 of group 0)", "waits": true, "since_ns": ..., "exit_code": null, "stopped": false, "silent_ns": 0}]}

It is rewritten whole about once a second, and removed when their records have come.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from simcoll.core.io import open_at_once, write_whole

NODES_SCHEMA: Final = "simcoll.nodes/1"
NODES_FILE: Final = "nodes.json"
_LIMIT: Final = 64 << 20


@dataclass(frozen=True, slots=True)
class RemoteRank:
    """A rank (global) of another node, as that node told last.

    ``place`` names its last call in words; ``waits`` says that it waits in that call, ``since_ns`` (node 0's wall
    clock) since when, or since when it runs its own code. ``exit_code`` and ``stopped`` are those of its launcher.
    ``silent_ns`` is when its node, which is lost, was heard of last; 0 for one that answers.
    """

    rank: int
    node: int
    host: str
    place: str
    waits: bool
    since_ns: int
    exit_code: int | None = None
    stopped: bool = False
    silent_ns: int = 0


def write_remote(path: Path, ranks: Sequence[RemoteRank]) -> None:
    """Write what is known; raises OSError."""
    write_whole(path, json.dumps({"schema": NODES_SCHEMA, "ranks": [asdict(one) for one in ranks]}) + "\n")


def read_remote(path: Path) -> tuple[RemoteRank, ...]:
    """Read what :func:`write_remote` wrote; nothing where the file is missing or is none."""
    try:
        with open_at_once(path) as file:
            document = json.loads(file.read(_LIMIT))
        if document["schema"] != NODES_SCHEMA:
            return ()
        return tuple(map(_rank, document["ranks"]))
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return ()


def _rank(entry: dict[str, object]) -> RemoteRank:
    rank, node, since, code = entry["rank"], entry["node"], entry["since_ns"], entry["exit_code"]
    if type(rank) is not int or type(node) is not int or type(since) is not int or not isinstance(code, int | None):
        raise TypeError("rank")
    words = str(entry["host"]), str(entry["place"])
    silent = entry["silent_ns"]
    if type(silent) is not int:
        raise TypeError("silent_ns")
    return RemoteRank(rank, node, *words, entry["waits"] is True, since, code, entry["stopped"] is True, silent)
