"""Reads what ``ncclras -f json`` printed (NCCL 2.28.7 and newer): a job's communicators, and ranks that are missing.

Source: NCCL user guide, Troubleshooting, RAS, "JSON Output": ``missing_ranks`` are ranks that gave no data;
``unresponsive``: RAS was unable to reach them; ``considered_dead``: for 60 seconds. ``async_error`` is the code that
``ncclCommGetAsyncError`` would give (``ncclResult_t``: 6 is ncclRemoteError, 7 ncclInProgress). NCCL 2.28.9 leaves out
a comma among the fields of a missing rank (Ray Train's reader of these documents, ``_MISSING_COMMA_RE``).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Final

from simcoll.verifier.causes.facts import RasRank

_MOST_RANKS: Final = 1 << 20

_COMMA_LACKS: Final = re.compile(r'(?<=[\w"}\]])(?=[ \t\r]*\n\s*"[^"\n]*"[ \t]*:)')


def ras_ranks(text: str) -> tuple[RasRank, ...] | None:
    """The ranks of all communicators; None where the text is no such document.

    A number is that of the rank in its communicator; ``pid`` and ``host`` tell which process it is.
    """
    document = _parsed(text)
    if document is None:
        document = _parsed(_with_commas(text))
    if not isinstance(document, dict) or "nccl_version" not in document:
        return None
    communicators = document.get("communicators")
    if not isinstance(communicators, list):
        return None
    found = [
        rank
        for one in communicators
        if isinstance(one, dict)
        for key in ("ranks", "missing_ranks")
        for entry in _list(one.get(key))
        if (rank := _rank(entry, missing=key == "missing_ranks")) is not None
    ]
    return tuple(found[:_MOST_RANKS])


def _parsed(text: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _with_commas(text: str) -> str:
    """The text with a comma at the end of each line that lacks it before a key: a string has no line's end."""
    return _COMMA_LACKS.sub(",", text)


def _list(value: object) -> list[object]:
    return value if isinstance(value, list) else []


def _rank(entry: object, *, missing: bool) -> RasRank | None:
    if not isinstance(entry, dict):
        return None
    number, host, pid, status = entry.get("rank"), entry.get("host"), entry.get("pid"), entry.get("status")
    if type(number) is not int or not isinstance(host, str) or type(pid) is not int or not isinstance(status, Mapping):
        return None
    error = status.get("async_error", 0)
    return RasRank(
        number,
        host,
        pid,
        error if type(error) is int else 0,
        missing,
        status.get("unresponsive") is True,
        status.get("considered_dead") is True,
    )
