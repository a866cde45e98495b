"""SC801: one rank for which the others wait, again and again, and what that costs.

How long a rank is inside a synchronous collective is told by its own clock alone: whoever comes last is inside for the
shortest time. So hosts whose clocks differ do not matter.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from simcoll.verifier.columns import GroupColumns
from simcoll.verifier.describe import group_text
from simcoll.verifier.finding import Finding
from simcoll.verifier.rules_job import STRAGGLER

_ENOUGH_COLLECTIVES = 30
_USUALLY = 0.9
_SECONDS_LOST = 5.0
_SHARE_LOST = 0.4


def stragglers(groups: Sequence[GroupColumns]) -> list[Finding]:
    """A warning for the group that lost most by one rank: at least five seconds and two fifths of its time.

    A rank that is slow for a while, or for a purpose (rank 0 evaluates), is nobody's fault and is not named.
    """
    found = [one for columns in groups if (one := _of_group(columns)) is not None]
    return [finding for _, finding in sorted(found, key=lambda item: -item[0])[:1]]


def _of_group(columns: GroupColumns) -> tuple[float, Finding] | None:
    ranks, times = columns.durations()
    if len(ranks) < 2 or len(times) < _ENOUGH_COLLECTIVES:
        return None
    last = times.argmin(axis=1)
    counts = np.bincount(last, minlength=len(ranks))
    slow = int(counts.argmax())
    lost = _lost(times, slow, last == slow)
    span = columns.span_seconds()
    if counts[slow] < _USUALLY * len(times) or lost < max(_SECONDS_LOST, _SHARE_LOST * span):
        return None
    rank = columns.group.ranks[ranks[slow]]
    message = (
        f"rank {rank} came last to {counts[slow]} of {len(times)} collectives of {group_text(columns.group)}: the "
        f"others waited for it for {lost:.0f} s of {span:.0f} s"
    )
    finding = Finding(
        STRAGGLER.code,
        STRAGGLER.severity,
        message,
        group=columns.group,
        ranks=columns.group.ranks,
        culprits=(rank,),
    )
    return lost, finding


def _lost(times: npt.NDArray[np.float64], slow: int, late: npt.NDArray[np.bool_]) -> float:
    """Seconds for which the typical other rank waited where this one came last."""
    others = np.median(np.delete(times[late], slow, axis=1), axis=1)
    return float(np.maximum(others - times[late, slow], 0).sum())
