"""Writes docs/costs.md from ``growth.json`` and ``overhead.json`` in ``benchmarks/data``: ``python docs/cost_page.py``.

``make costs`` measures the first and then runs this; a test compares page and data.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from simcoll.core.units import show_size

TARGET = Path(__file__).with_name("costs.md")
DATA = Path(__file__).parents[1] / "benchmarks" / "data"
FAR = 100_000
_OF_RANKS = ("ranks", "GPUs")
_VARIANTS = ("plain", "record", "check", "detail", "DETAIL")


def page() -> str:
    """The page, made anew."""
    growth = json.loads((DATA / "growth.json").read_text(encoding="utf-8"))
    overhead = json.loads((DATA / "overhead.json").read_text(encoding="utf-8"))
    parts = [_head(growth), *(_series(one) for one in growth["series"]), _calls(overhead), _LIMITS]
    return "\n\n".join(part.strip("\n") for part in parts) + "\n"


def _head(document: dict[str, Any]) -> str:
    machine = document["machine"]
    measured = (
        f"This page is made of stored measurements by `make costs`, which measures anew. They are of {document['date']}"
        f": Python {machine['python']}, {machine['machine']}, {machine['cores']} cores, files in memory. Seconds are "
        "those "
        "of the processors, of the whole command and its children, start-up included; MiB are the most that they held "
        "together."
    )
    fitted_to = (
        "Below each table is the power with which the cost grows, fitted to the rows after the cost of the same "
        f"command on the smallest input is taken away: 1 is linear. What is stated for {FAR:,} ranks follows from that "
        "power, and was not measured."
    )
    title = "# What simcoll costs, and how that grows"
    return "\n\n".join([title, _wrapped(measured), _wrapped(fitted_to), "## Commands"])


def _series(one: dict[str, Any]) -> str:
    grows_with, points = one["grows_with"], one["points"]
    with_peer = bool(one["peer"])
    head = [grows_with, "CPU s", "MiB", *(["peer: CPU s", "ratio"] if with_peer else [])]
    rows = []
    for point in points:
        row = [f"{point['size']:,}", f"{point['seconds']:.2f}", f"{point['mib']:,.0f}"]
        if with_peer:
            row += [f"{point['peer']:.2f}", _ratio(point["seconds"] / point["peer"])]
        rows.append(row)
    return f"### {one['name']}\n\n{_table(head, rows)}\n\n{_told(one)}"


def _ratio(value: float) -> str:
    return f"{value:.1f}" if value < 10 else f"{value:,.0f}"


def _told(one: dict[str, Any]) -> str:
    grows_with, least = one["grows_with"], one["least"]
    sizes = [point["size"] for point in one["points"]]
    factor, power = fitted(sizes, [point["seconds"] - least for point in one["points"]])
    peer = f"The peer is {one['peer']}. " if one["peer"] else ""
    text = f"{peer}It grows with the {grows_with} to the power of {power:.2f}, above {least:.2f} s."
    if grows_with in _OF_RANKS:
        text += f" At {FAR:,} it would be {_seconds(least + factor * FAR**power)} by that power."
    return _wrapped(text)


def fitted(sizes: Sequence[float], costs: Sequence[float]) -> tuple[float, float]:
    """The factor and the power of the line of least squares through the logarithms."""
    across = [math.log(size) for size in sizes]
    up = [math.log(max(cost, 1e-3)) for cost in costs]
    mean_across, mean_up = math.fsum(across) / len(across), math.fsum(up) / len(up)
    spread = math.fsum((one - mean_across) ** 2 for one in across)
    slope = math.fsum((one - mean_across) * (other - mean_up) for one, other in zip(across, up, strict=True)) / spread
    return math.exp(mean_up - slope * mean_across), slope


def _seconds(value: float) -> str:
    return f"{value:.1f} s" if value < 10 else f"{value:,.0f} s"


def _calls(document: dict[str, Any]) -> str:
    """What a call costs by its size: wall time, two ranks, beside plain and DETAIL."""
    rows = [
        [show_size(one["size"]), *(f"{one['seconds'][name] * 1e6:,.0f}" for name in _VARIANTS)]
        for one in document["seconds"]
        if one["pattern"] == "sync" and one["ranks"] == 2
    ]
    machine = document["machine"]
    text = (
        "An all_reduce and its wait at two ranks on Gloo, in microseconds of wall time, by the size of its tensor; "
        f"of {document['date']}, torch {machine['torch']}, {machine['cores']} cores. `plain` is torch alone, `DETAIL` "
        "is `TORCH_DISTRIBUTED_DEBUG=DETAIL`. [Comparisons](comparisons.md) has asynchronous calls."
    )
    return f"## A call\n\n{_wrapped(text)}\n\n{_table(['size', *_VARIANTS], rows)}"


_LIMITS = """## What is bounded

A rank's black box has a fixed size (4.4 MiB by default) and a table that grows to 32 MiB at most, however many calls
the job makes: the ring is overwritten, and counts what it has lost ([black box](black-box.md)). Nor does a rank's
memory grow (`make bench-bounded`; torch 2.13.0+cpu, Gloo on one host):

* Of two ranks in `check` that made 1,000,000 synchronous calls, one held 237.0 MiB after 50,000 calls and 239.5 MiB
  from 250,000 to the last, most of it torch's; plain, a rank of 2,000 calls held 223.8 MiB. Their two files took
  8.7 MiB throughout.
* Of 64 ranks in `check`, each held 231.6 MiB before the first call and 234.1 MiB from the second to the last of 40;
  their files took 4.4 MiB each.
* A rank that dropped 4,000 Works of 64 KiB each while it ran ahead, 250 MiB of tensors, and the other rank held 924 MiB
  at most in plain torch, 941 in `record`, 927 in `check` and 946 in `detail`, of which 21 are simcoll itself."""


def _wrapped(text: str, width: int = 120) -> str:
    lines, line = [], ""
    for word in text.split():
        if line and len(line) + 1 + len(word) > width:
            lines.append(line)
            line = word
        else:
            line = f"{line} {word}".strip()
    return "\n".join([*lines, line])


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---:" for _ in head], *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


if __name__ == "__main__":
    TARGET.write_text(page(), encoding="utf-8")
