"""The calls of some traces that belong together: worked out once for all who look at the same traces."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass

from simcoll.core.trace import Trace
from simcoll.verifier.agreement.columns import GroupColumns, columns_of
from simcoll.verifier.agreement.p2p_matching import Matching, match_messages


@dataclass(frozen=True, slots=True, eq=False)
class MatchedCalls:
    """The collectives of all groups, and the messages, as ``traces`` have them."""

    traces: tuple[Trace, ...]
    columns: list[GroupColumns]
    messages: Matching

    @classmethod
    def of(cls, traces: Sequence[Trace], known: MatchedCalls | None = None) -> MatchedCalls:
        """Those of these traces; ``known`` ones, if they are of these."""
        if known is not None and len(known.traces) == len(traces) and all(map(operator.is_, known.traces, traces)):
            return known
        return cls(tuple(traces), columns_of(traces), match_messages(traces))
