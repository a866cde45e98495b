"""Tells the call of a line from others that its rank made there: a helper's line says little without its callers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from simcoll.core.record import Source
from simcoll.core.trace import Trace
from simcoll.verifier.findings.describe import callers_apart
from simcoll.verifier.findings.finding import Finding, RankSource, Side

_MOST: Final = 4
"""So many callers are shown at most: where it takes more, the program has its structure in them, and no helper."""


def with_call_sites(findings: Sequence[Finding], traces: Sequence[Trace]) -> tuple[Finding, ...]:
    """The findings, each of their lines with how many of its callers tell it from its rank's other calls there."""
    known = {trace.rank: trace.sources for trace in traces}
    return tuple(replace(one, sides=tuple(_sited(side, known) for side in one.sides)) for one in findings)


def _sited(side: Side, known: Mapping[int, Sequence[Source]]) -> Side:
    sources = tuple(_with_callers(stated, known.get(stated.rank, ())) for stated in side.sources)
    return replace(side, sources=sources)


def _with_callers(stated: RankSource, others: Sequence[Source]) -> RankSource:
    count = callers_apart(stated.source, others)
    return replace(stated, callers=count) if 0 < count <= _MOST else stated
