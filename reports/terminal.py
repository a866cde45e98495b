"""The report on a terminal: a summary, then one panel a finding. A value for rich; this module prints nothing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.padding import Padding
from rich.panel import Panel
from rich.syntax import Syntax
from rich.table import Table
from rich.text import Text

from simcoll.core.process import signal_name
from simcoll.core.ranges import ranks_text
from simcoll.core.record import Source
from simcoll.core.text import Outside, plain, safe
from simcoll.core.units import counted
from simcoll.reports.causes import render_advice
from simcoll.reports.overview import TimelineText, render_histories, render_speeds, render_summary
from simcoll.verifier.findings.describe import (
    Field,
    advice_of,
    apart_text,
    before_text,
    culprits_text,
    fields_of,
    fields_text,
    frames_shown,
    marked_in,
    parting_text,
    record_text,
    source_text,
    where_text,
)
from simcoll.verifier.findings.finding import DRY_RUN, Activity, Finding, Report, Severity, Side, Verdict
from simcoll.verifier.findings.rules import RULES

_STYLES = {Severity.ERROR: "red", Severity.WARNING: "yellow"}
_SIDES_SHOWN = 8
_STATES_SHOWN = 8


@dataclass(frozen=True, slots=True)
class TerminalReport:
    """A report that draws itself in the width it is given, 80 columns or more, with or without colour.

    ``speeds`` says that the bandwidths of a clean job are shown too.
    """

    report: Report
    speeds: bool = False

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield plain(summary_line(self.report), "bold" if self.report.findings else "")
        asides = [*shown_texts(self.report), *(f"note: {note}" for note in self.report.notes)]
        yield from (Padding(plain(text), (0, 0, 0, 2)) for text in asides)
        if self.report.verdict is not Verdict.OK or _somebody_waits(self.report):
            summary = self.report.summary
            yield from _states(self.report) if summary is None else [render_summary(summary)]
        elif self.speeds and self.report.summary is not None and self.report.summary.bandwidths:
            yield render_speeds(self.report.summary)
        yield from (FindingPanel(finding) for finding in self.report.findings)
        if self.report.advice is not None:
            yield render_advice(self.report.advice)
        if self.report.histories:
            yield render_histories(self.report.histories)
        if self.report.timeline is not None:
            yield TimelineText(self.report.timeline)


@dataclass(frozen=True, slots=True)
class FindingPanel:
    """One finding, as a panel."""

    finding: Finding

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        finding = self.finding
        style = _STYLES[finding.severity]
        rule = RULES[finding.code]
        title = Text(f"{finding.code} {rule.name} ({finding.severity.value})", f"bold {style}")
        yield Panel(Group(*_parts(finding)), title=title, title_align="left", border_style=style)


def summary_line(report: Report) -> str:
    """The whole report in one line; the only line printed for a clean run."""
    job = counted(report.world_size, "rank")
    agree = _agreement(report, job)
    counts = _count(report, Severity.ERROR), _count(report, Severity.WARNING)
    if any(counts):
        kinds = zip(counts, ("error", "warning"), strict=True)
        found = ", ".join(counted(number, kind) for number, kind in kinds if number)
        return f"simcoll: {found}; {agree}"
    if report.verdict is Verdict.FAILED:
        return f"simcoll: the program failed; {agree}"
    return f"simcoll: {agree}"


def _somebody_waits(report: Report) -> bool:
    """True if ranks that were not stopped wait where the records end: a reader of a running job asks for them."""
    places = () if report.summary is None else report.summary.places
    return any(place.activity is Activity.WAITS and place.process != "stopped" for place in places)


def _agreement(report: Report, job: str) -> str:
    agreed, summary, job_size = report.agreed, report.summary, report.world_size
    if report.mode == DRY_RUN:
        return _dry_agreement(report, job)
    if agreed == 0 and report.messages:
        # A pipeline may have nothing else.
        return f"{counted(report.messages, 'message')} on {job} {'agrees' if report.messages == 1 else 'agree'}"
    if agreed == 0 and report.verdict is Verdict.FINDINGS:
        return f"no collective on {job} is proved to agree"
    if agreed == 0:
        recorded = job_size if summary is None else summary.recorded
        left = "" if recorded == job_size else f", of which {recorded:,} left a record"
        return f"no collective was recorded on all of {job}{left}"
    return f"{agreed:,} collective{' on ' + job + ' agrees' if agreed == 1 else 's on ' + job + ' agree'}"


def _dry_agreement(report: Report, job: str) -> str:
    """Describes the agreement of ranks that ran one by one; ranks that did not run are left out."""
    run = len(report.ranks)
    said = (
        f"a dry run of {job}" if run == report.world_size else f"{run:,} of {job} {'was' if run == 1 else 'were'} run"
    )
    if report.coverage is not None and not report.coverage.complete:
        gaps = report.coverage.gaps
        more = "" if len(gaps) == 1 else f", and {counted(len(gaps) - 1, 'more gap')}"
        said += f", incomplete ({gaps[0]}{more})"
    if not report.agreed and report.messages:
        return f"{said}: they agree on {counted(report.messages, 'message')}"
    if run == 1 or (not report.agreed and report.verdict is Verdict.OK):
        return f"{said}: no collective was recorded on more than one of them"
    if not report.agreed:
        return f"{said}: no collective of theirs is proved to agree"
    return f"{said}: they agree on {counted(report.agreed, 'collective')}"


def _count(report: Report, severity: Severity) -> int:
    """The findings of the whole job, those included that are not shown."""
    hidden = 0
    if report.shown is not None:
        hidden = report.shown.hidden_errors if severity is Severity.ERROR else report.shown.hidden_warnings
    return hidden + sum(finding.severity is severity for finding in report.findings)


def shown_texts(report: Report) -> Iterator[str]:
    """The selection to which a report was narrowed, and the number of findings that it hides."""
    if report.shown is None:
        return
    noun = "group" if len(report.shown.groups) == 1 else "groups"
    groups = f"{noun} {', '.join(report.shown.groups)}" if report.shown.groups else ""
    ranks = ranks_text(report.shown.ranks) if report.shown.ranks else ""
    yield f"shown: {' and '.join(filter(None, (groups, ranks)))}; the verdict is that of the whole job"
    hidden = report.shown.hidden_errors + report.shown.hidden_warnings
    if hidden:
        yield f"hidden: {counted(hidden, 'finding')} on other groups or ranks"


def _states(report: Report) -> Iterator[RenderableType]:
    """The places where the ranks ended, those at the same place on one line."""
    places = ended_places(report)
    table = Table.grid(padding=(0, 2))
    for (status, last), members in list(places.items())[:_STATES_SHOWN]:
        table.add_row(plain(ranks_text(members)), plain(status), plain(f"last call {last}" if last else NO_CALL))
    if len(places) > _STATES_SHOWN:
        rest = [rank for members in list(places.values())[_STATES_SHOWN:] for rank in members]
        table.add_row(plain(ranks_text(rest)), "", plain(f"at {len(places) - _STATES_SHOWN} more places"))
    yield Padding(table, (0, 0, 0, 2))


NO_CALL = "no call recorded"


def ended_places(report: Report) -> dict[tuple[str, str], list[int]]:
    """The ranks by how they ended and after which call, empty for none; the first rank's place comes first."""
    places: dict[tuple[str, str], list[int]] = {}
    for state in report.ranks:
        last = "" if (record := report.last.get(state.rank)) is None else record_text(record)
        places.setdefault((state.status.value + ended_text(state.exit_code), last), []).append(state.rank)
    return places


def ended_text(exit_code: int | None) -> str:
    """`` (exit code 1)``, `` (SIGKILL)``: a negative exit code is a signal's number; empty for 0 and None."""
    if not exit_code:
        return ""
    return f" ({signal_name(-exit_code)})" if exit_code < 0 else f" (exit code {exit_code})"


def _parts(finding: Finding) -> Iterator[RenderableType]:
    yield plain(finding.message, "bold")
    if where := where_text(finding):
        yield plain(f"in {where}", "dim")
    yield Text("")
    if finding.sides:
        yield _sides(finding)
        yield Text("")
    yield _labelled("culprits", culprits_text(finding), "bold")
    if finding.unknown:
        yield _labelled("unknown", f"{fields_text(finding.unknown)} (the records do not say)")
    if finding.before:
        yield _labelled("before", before_text(finding))
    if finding.came_apart is not None:
        yield _labelled("came apart", apart_text(finding))
    if finding.parted is not None:
        yield _labelled("ranks parted at", parting_text(finding))
    yield _labelled("advice", advice_of(finding))


def _labelled(label: str, text: str, style: str = "") -> RenderableType:
    table = Table.grid(padding=(0, 1))
    table.add_row(Text(f"{label}:", "dim"), plain(text, style))
    return table


def _sides(finding: Finding) -> RenderableType:
    """Renders one row a side: its ranks, its call with the differing fields marked, its source lines below."""
    table = Table.grid(padding=(0, 2, 0, 0), expand=True)
    table.add_column(max_width=24)
    table.add_column(ratio=1, overflow="fold")
    for place, side in enumerate(finding.sides[:_SIDES_SHOWN]):
        if place:
            table.add_row("", "")
        style = "bold" if finding.blames(side) else ""
        table.add_row(plain(ranks_text(side.ranks), style), Group(*_side(side, finding)))
    if len(finding.sides) > _SIDES_SHOWN:
        rest = [rank for side in finding.sides[_SIDES_SHOWN:] for rank in side.ranks]
        table.add_row("", "")
        table.add_row(plain(ranks_text(rest)), plain(f"{len(finding.sides) - _SIDES_SHOWN:,} more sides"))
    return table


def _side(side: Side, finding: Finding) -> Iterator[RenderableType]:
    if side.call is not None:
        yield _call(fields_of(side.call, finding.group, marked_in(finding)))
    if side.note:
        yield plain(side.note)
    for stated in side.sources:
        lone = len(side.sources) > 1 and len(side.ranks) > 1
        rank = f"rank {stated.rank} " if lone else ""
        for place, one in enumerate(frames_shown(finding.sides, stated.source)):
            yield plain(f"{'' if place else rank}{one.how} {source_text(one.frame)}", "cyan")
            yield from _code(one.frame)


def _call(fields: list[Field]) -> Text:
    """Fields side by side; a differing one is bold and stands between arrows, which survives without colour."""
    text = Outside(overflow="fold")
    for field in fields:
        said = f"{field.name} {field.value}".strip()
        text.append(f">>{safe(said)}<<" if field.differs else safe(said), "bold reverse" if field.differs else "")
        text.append("  ")
    text.rstrip()
    return text


def _code(source: Source) -> Iterator[RenderableType]:
    """One line of the program, in the colours of its syntax; nothing where its text is not known."""
    if code := source.code.strip():
        text = Outside(overflow="fold").append_text(Syntax("", "python", theme="ansi_dark").highlight(safe(code)))
        text.rstrip()
        yield Padding(text, (0, 0, 0, 2))
