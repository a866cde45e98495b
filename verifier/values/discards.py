"""When ranks threw gradients away, as programs do that look at them, or mended them, so that their weights outlived the
step: what was not finite was not used then.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter

from simcoll.core.record import number
from simcoll.core.trace import Trace
from simcoll.verifier.values.digests import CollectiveValues

_AT_ONCE = 8
"""Models whose gradients a rank clears in turns."""


@dataclass(frozen=True, slots=True)
class Discards:
    """By rank, in order, the numbers of two clearings of gradients that were not used in between, and whether an
    optimizer would have used them: of the program's own steps nothing is known. ``looks`` are the numbers among these
    clearings of looks at the weights after a step, and whether all were finite.
    """

    spans: Mapping[int, Sequence[tuple[int, int, bool]]] = field(default_factory=dict)
    looks: Mapping[int, Sequence[tuple[int, bool]]] = field(default_factory=dict)

    @classmethod
    def of(cls, traces: Iterable[Trace]) -> Discards:
        """Those that ranks wrote down."""
        found: dict[int, list[tuple[int, int, bool]]] = {}
        looks: dict[int, list[tuple[int, bool]]] = {}
        for trace in traces:
            for event in trace.events:
                if event.kind == "discarded":
                    since, until = number(event, "since"), number(event, "until")
                    if since is not None and until is not None:
                        optimized = event.data.get("optimized") is not False
                        found.setdefault(trace.rank, []).append((since, until, optimized))
                elif event.kind == "outlived" and (until := number(event, "until")) is not None:
                    looks.setdefault(trace.rank, []).append((until, event.data.get("finite") is True))
        return cls(
            {rank: sorted(spans, key=itemgetter(1)) for rank, spans in found.items()},
            {rank: sorted(mine) for rank, mine in looks.items()},
        )

    def outlived(self, values: CollectiveValues, senders: Iterable[int]) -> bool:
        """True if the weights of the ``senders`` (group ranks) were finite when a rank looked at them after a step that
        followed a call, and those of the other ranks, as far as they looked.
        """
        sent = {*senders}
        return all(
            look is True or (look is None and one.group_rank not in sent)
            for one, look in (
                (one, self._look(values.group.ranks[one.group_rank], one.cleared)) for one in values.ranks
            )
        )

    def used(self, values: CollectiveValues) -> bool:
        """True if the weights of a rank were not finite when it looked at them after a step that followed a call."""
        return any(self._look(values.group.ranks[one.group_rank], one.cleared) is False for one in values.ranks)

    def _look(self, rank: int, cleared: int) -> bool | None:
        """What the first look after a call has shown; None if there was none."""
        looks = self.looks.get(rank, ())
        first = bisect_right(looks, cleared, key=itemgetter(0))
        return looks[first][1] if first < len(looks) else None

    def span(self, values: CollectiveValues, *, optimized: bool = False) -> int | None:
        """The clearing, on the first rank, after which all ranks made a call whose gradients they threw away; None if
        one did not; or, where it has to be ``optimized``, if none of them has an optimizer: one may step for all.
        """
        found = [self._of(values.group.ranks[one.group_rank], one.cleared) for one in values.ranks]
        known = [one for one in found if one is not None]
        return known[0][0] if len(known) == len(found) and any(mine >= optimized for _, mine in known) else None

    def _of(self, rank: int, cleared: int) -> tuple[int, bool] | None:
        spans = self.spans.get(rank, ())
        first = bisect_right(spans, cleared, key=itemgetter(1))
        within = (one for one in spans[first : first + _AT_ONCE] if one[0] <= cleared)
        return next(((since, optimized) for since, _, optimized in within), None)
