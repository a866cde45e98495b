"""The account of a dry run: its request and the ends of its ranks' processes, in a file beside their records.

`simcoll verify` finds it there, and judges the records as the dry run did. The file may be damaged or made up: a
file that this module does not write so is no account.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from simcoll.core.io import open_at_once, write_whole
from simcoll.core.trace import Trace
from simcoll.dryrun.endings import ProcessEnd
from simcoll.dryrun.records import last_ns

ACCOUNT_NAME = "dry-run.json"
SCHEMA = "simcoll.dry-run/1"
_MOST_BYTES = 1 << 28


@dataclass(frozen=True, slots=True)
class Account:
    """A dry run as it was carried out. ``timeout`` is each rank's limit in seconds, ``memory`` in bytes.

    ``ends`` has the ranks (global) that ran, ``passes`` the report's notes on their files and on repeated runs.
    """

    world_size: int
    local_world_size: int
    timeout: float
    steps: int | None
    memory: int | None
    cuda: bool
    ends: Mapping[int, ProcessEnd]
    passes: Sequence[str] = ()

    def covers(self, traces: Iterable[Trace]) -> bool:
        """True for the dry run's own records, False for those of a job that used its folder after it."""
        return all(
            trace.rank in self.ends
            and trace.world_size == self.world_size
            and last_ns(trace) <= self.ends[trace.rank].time_ns
            for trace in traces
        )


def write_account(folder: Path, account: Account) -> None:
    """Write the account into the dry run's folder; raises OSError."""
    document = {"schema": SCHEMA, **asdict(account)}
    document["ends"] = [{"rank": rank, **end} for rank, end in sorted(document["ends"].items())]
    write_whole(folder / ACCOUNT_NAME, json.dumps(document, indent=1) + "\n")


def read_account(folder: Path) -> Account | None:
    """The account in a folder; None where there is none, or none that can be read."""
    try:
        with open_at_once(folder / ACCOUNT_NAME) as file:
            document = json.loads(file.read(_MOST_BYTES))
        return _account(document) if document["schema"] == SCHEMA else None
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return None


def _account(document: Mapping[str, Any]) -> Account:
    ends = {_whole(one["rank"]): _end(one) for one in document["ends"]}
    size, timeout, passes = _whole(document["world_size"], 1), document["timeout"], document["passes"]
    if type(timeout) not in (int, float) or not all(isinstance(text, str) for text in passes):
        raise TypeError("timeout and passes: expected a number and texts")
    if any(rank >= size for rank in ends):
        raise ValueError("ends: expected ranks below the world size")
    return Account(
        size,
        _whole(document["local_world_size"], 1),
        timeout,
        None if document["steps"] is None else _whole(document["steps"]),
        None if document["memory"] is None else _whole(document["memory"]),
        document["cuda"] is True,
        ends,
        tuple(passes),
    )


def _end(one: Mapping[str, Any]) -> ProcessEnd:
    code = one["exit_code"]
    place = one["place"]
    if type(code) is not int or not isinstance(place, str):
        raise TypeError("exit_code and place: expected a whole number and a text")
    return ProcessEnd(code, _whole(one["time_ns"]), one["timed_out"] is True, one["out_of_memory"] is True, place)


def _whole(value: object, least: int = 0) -> int:
    if type(value) is not int or value < least:
        raise TypeError(f"expected a whole number, at least {least}")
    return value
