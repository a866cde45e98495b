"""Formats and parses lists of ranks as ranges (`0-7, 16`), so that four thousand ranks still fit a line."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from simcoll.errors import UsageError

_SHOWN = 12
_MOST = 1 << 20
_SPAN = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?", re.ASCII)


def parse_ranks(text: str) -> list[int]:
    """The ranks of ``0-7,16``, in that order; raises UsageError that says what was expected."""
    ranks: list[int] = []
    for part in text.split(","):
        found = _SPAN.fullmatch(part.strip())
        first, last = (int(found[1]), int(found[2] or found[1])) if found is not None else (1, 0)
        if last < first or last - first >= _MOST:
            raise UsageError(f"ranks {text!r:.80}: expected ranks and ranges such as 0-7,16")
        ranks += range(first, last + 1)
    return ranks


def spans(ranks: Iterable[int]) -> list[tuple[int, int]]:
    """Runs of consecutive ranks as (first, last), ascending; duplicates count once."""
    found: list[tuple[int, int]] = []
    for rank in sorted(set(ranks)):
        if found and rank == found[-1][1] + 1:
            found[-1] = (found[-1][0], rank)
        else:
            found.append((rank, rank))
    return found


def span_text(ranks: Iterable[int]) -> str:
    """``0-510, 512-1023``: the ranks without a noun; more than twelve runs are counted instead of listed."""
    runs = [str(first) if first == last else f"{first}-{last}" for first, last in spans(ranks)]
    if len(runs) > _SHOWN:
        return ", ".join(runs[:_SHOWN]) + f" and {len(runs) - _SHOWN} more runs"
    return ", ".join(runs)


def ranks_text(ranks: Iterable[int]) -> str:
    """``rank 2``, ``ranks 0-1 and 3``, ``ranks 0, 2, 4-7 and 9``; ``no rank`` where there is none."""
    unique = sorted(set(ranks))
    if len(unique) < 2:
        return f"rank {unique[0]}" if unique else "no rank"
    head, _, tail = span_text(unique).rpartition(", ")
    return f"ranks {head} and {tail}" if head and "more runs" not in tail else f"ranks {span_text(unique)}"


def verb(ranks: Sequence[int], singular: str, plural: str) -> str:
    """The form of a verb that goes with so many ranks."""
    return singular if len(ranks) == 1 else plural
