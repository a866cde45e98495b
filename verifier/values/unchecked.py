"""What was not checked although the user asked for it: a check of values that fails itself, or in which the program is
interrupted, ends those of its rank.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from simcoll.core.ranges import ranks_text
from simcoll.core.record import text
from simcoll.core.trace import Trace
from simcoll.values.guard import CHECKED


def unchecked_notes(traces: Sequence[Trace]) -> list[str]:
    """A sentence for each way in which a check failed, with its ranks and what they have not checked from then on."""
    found: dict[tuple[str, str, bool], dict[int, int]] = defaultdict(dict)
    for trace in traces:
        for event in trace.events:
            if event.kind == "unchecked":
                collective = trace.slots["p2p_sequence"] == 0
                later = int((collective & (trace.slots["scheduled_ns"] > event.time_ns)).sum())
                interrupted = event.data.get("interrupted") is True
                found[text(event, "of"), text(event, "message"), interrupted][trace.rank] = later
    return [_note(*what, ranks) for what, ranks in found.items()]


def _note(of: str, message: str, interrupted: bool, ranks: dict[int, int]) -> str:
    more = max(ranks.values())
    lost = f"this collective and {more:,} later ones" if of == "calls" else CHECKED["steps"]
    cause = "the program was interrupted in a check" if interrupted else "a check failed itself"
    return f"values were not checked to the end on {ranks_text(ranks)}: {lost}, as {cause}: {message}"
