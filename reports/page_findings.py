"""Findings as a page shows them: words and fields, ready to be escaped."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from simcoll.core.ranges import ranks_text
from simcoll.reports.fields import Field, fields_of, marked_in
from simcoll.reports.wait_picture import WaitPicture, is_circle, wait_picture
from simcoll.verifier.findings.describe import apart_text, fields_text, group_text, source_text
from simcoll.verifier.findings.finding import Finding, RankSource, Side
from simcoll.verifier.findings.rule import Rule
from simcoll.verifier.findings.rules import RULES

_SIDES_SHOWN = 64


@dataclass(frozen=True, slots=True)
class PageLine:
    """A line of the user's program: where, and its text."""

    place: str
    code: str


@dataclass(frozen=True, slots=True)
class SideView:
    """Ranks that stated the same; ``culprit`` where all of them are."""

    ranks: str
    culprit: bool
    fields: tuple[Field, ...]
    note: str
    lines: tuple[PageLine, ...]


@dataclass(frozen=True, slots=True)
class FindingView:
    """One finding. ``place`` is its group and collective, ``hidden`` how many sides are not shown."""

    number: int
    rule: Rule
    severity: str
    message: str
    place: str
    culprits: str
    unknown: str
    before: str
    came_apart: str
    sides: tuple[SideView, ...]
    hidden: int
    waits: WaitPicture | None


def finding_views(findings: Sequence[Finding]) -> list[FindingView]:
    """Findings in their order; ``number`` counts from 0."""
    return [_view(number, finding) for number, finding in enumerate(findings)]


def _view(number: int, finding: Finding) -> FindingView:
    place = "" if finding.group is None else f"in {group_text(finding.group)}"
    if place and finding.sequence is not None:
        place += f", collective {finding.sequence}"
    return FindingView(
        number,
        RULES[finding.code],
        finding.severity.value,
        finding.message,
        place,
        ranks_text(finding.culprits) if finding.culprits else "no majority names one",
        fields_text(finding.unknown),
        ", ".join(f"{record.call.op} #{record.sequence}" for record in finding.before),
        apart_text(finding),
        tuple(_side(side, finding) for side in finding.sides[:_SIDES_SHOWN]),
        max(len(finding.sides) - _SIDES_SHOWN, 0),
        wait_picture(finding) if is_circle(finding) else None,
    )


def _side(side: Side, finding: Finding) -> SideView:
    fields = () if side.call is None else tuple(fields_of(side.call, finding.group, marked_in(finding)))
    culprit = bool(side.ranks) and set(side.ranks) <= set(finding.culprits)
    return SideView(
        ranks_text(side.ranks), culprit, fields, side.note, tuple(_line(stated, side) for stated in side.sources)
    )


def _line(stated: RankSource, side: Side) -> PageLine:
    lone = len(side.sources) > 1 and len(side.ranks) > 1
    return PageLine(
        (f"rank {stated.rank} at " if lone else "") + source_text(stated.source), stated.source.code.strip()
    )
