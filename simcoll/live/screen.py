"""A look at a running job as a picture: its state, its groups, its ranks, its findings."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from simcoll.core.ranges import ranks_text, span_text
from simcoll.core.text import Fitted, plain
from simcoll.core.units import counted, show_seconds
from simcoll.live.now import Doing, GroupNow, JobNow, Motion, RankNow
from simcoll.live.state_text import call_text, call_wordings, doing_text, doing_wordings, source_wordings, steps_text
from simcoll.verifier.findings.describe import group_name, source_text
from simcoll.verifier.findings.finding import Severity

_STYLES = {Motion.MOVING: "green", Motion.STANDING: "bold red", Motion.ENDED: "bold"}
_DOING = {Doing.WAITS: "yellow", Doing.FAILED: "red", Doing.GONE: "red"}

Order = Callable[[RankNow], tuple[float, ...]]

ORDERS: Final[dict[str, Order]] = {
    "rank": lambda one: (one.rank,),
    "time": lambda one: (-one.for_seconds, one.rank),
    "waiting": lambda one: (-(one.waiting or 0.0), one.rank),
    "late": lambda one: (-(one.late or 0.0), one.rank),
    "step": lambda one: (-(one.step_seconds or 0.0), one.rank),
}
"""The orders in which ranks can be shown; the largest value comes first."""

FILTERS: Final[dict[str, Callable[[RankNow], bool]]] = {
    "all": lambda _: True,
    "waiting": lambda one: one.doing is Doing.WAITS,
    "not waiting": lambda one: one.doing is not Doing.WAITS,
    "ended": lambda one: one.doing.over,
}
"""The ranks that can be shown alone."""


@dataclass(frozen=True, slots=True)
class ScreenState:
    """The selection that is shown: the order and the filter of ranks by name, a group by its place, one rank.

    ``first`` is the first row of ranks. ``paused`` says that the picture stands still.
    """

    order: str = "rank"
    shown: str = "all"
    group: int | None = None
    rank: int | None = None
    first: int = 0
    paused: bool = False


@dataclass(frozen=True, slots=True)
class JobScreen:
    """One look as a picture of at most ``height`` lines; None is as long as it takes."""

    job: JobNow
    choice: ScreenState
    height: int | None = None

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        job, choice = self.job, self.choice
        yield _head(job, choice)
        room = None if self.height is None else max(self.height - 3, 6)
        groups = _shown_groups(job, choice)
        findings = list(_findings(job))
        rows = None if room is None else max(min(len(groups), room // 3), 1)
        if groups:
            yield _groups(groups, rows)
        if choice.rank is not None:
            yield from _one_rank(job, choice.rank)
        else:
            left = None if room is None or rows is None else max(room - rows - len(findings) - 6, 1)
            yield _ranks(ranks_shown(job, choice), choice, left)
        yield from findings


def ranks_shown(job: JobNow, choice: ScreenState) -> Sequence[RankNow]:
    """The ranks of the choice, in its order."""
    groups = _shown_groups(job, choice)
    members = {rank for view in groups for rank in view.group.ranks} if choice.group is not None else None
    found = [one for one in job.ranks if FILTERS[choice.shown](one) and (members is None or one.rank in members)]
    return sorted(found, key=ORDERS[choice.order])


def _shown_groups(job: JobNow, choice: ScreenState) -> Sequence[GroupNow]:
    if choice.group is not None and job.groups:
        return [job.groups[choice.group % len(job.groups)]]
    return sorted(job.groups, key=lambda view: (not (view.came and view.absent), -view.for_seconds))


def _head(job: JobNow, choice: ScreenState) -> RenderableType:
    facts = [f"{len(job.ranks):,} of {counted(job.world_size, 'rank')}", f"mode {job.mode}"]
    if ended := steps_text(job):
        facts.append(ended)
    if job.calls_per_second is not None:
        facts.append(f"{job.calls_per_second:,.0f} calls/s")
    if choice.paused:
        facts.append("paused")
    text = plain(f"{job.folder}: ")
    text.append(job.motion.value, _STYLES[job.motion])
    text.append(f"  {', '.join(facts)}")
    return Group(text, plain(job.why, "bold" if job.motion is Motion.STANDING else ""))


def _groups(groups: Sequence[GroupNow], rows: int | None) -> RenderableType:
    table = _table("group", "finished", "next", "came", "not come", "for")
    shown = groups if rows is None else groups[:rows]
    for view in shown:
        absent = view.absent if view.came else ()
        whole, near, line = source_wordings(view.source)
        at = [f"{view.op} {place}".strip() for place in (whole, near, line)] + [line or view.op]
        table.add_row(
            Fitted([group_name(view.group)], keep_end=False),
            f"#{view.finished}",
            Fitted(at if view.came else [""]),
            Fitted([span_text(view.came)], keep_end=False),
            Fitted([span_text(absent)], keep_end=False),
            show_seconds(view.for_seconds) if view.came else "",
        )
    if len(shown) < len(groups):
        table.add_row(f"{len(groups) - len(shown):,} more", "", "", "", "", "")
    return table


def _ranks(ranks: Sequence[RankNow], choice: ScreenState, rows: int | None) -> RenderableType:
    table = _table("rank", "does", "call", "waits", "late", "step")
    first = min(choice.first, max(len(ranks) - 1, 0))
    shown = ranks[first:] if rows is None else ranks[first : first + rows]
    for one in shown:
        table.add_row(
            str(one.rank),
            Fitted(doing_wordings(one), _DOING.get(one.doing, ""), keep_end=False),
            Fitted(call_wordings(one)),
            _share(one.waiting),
            _share(one.late),
            "" if one.step_seconds is None else show_seconds(one.step_seconds),
        )
    if len(shown) < len(ranks):
        table.add_row("", f"{len(ranks) - len(shown):,} more", "", "", "", "")
    return table


def _table(*headings: str) -> Table:
    """A table of one line a row; where there is no room for all, the widest columns give way."""
    table = Table(box=None, padding=(0, 1, 0, 0), header_style="bold dim")
    for heading in headings:
        table.add_column(Text(heading, no_wrap=True, overflow="crop"), no_wrap=heading not in _YIELDING)
    return table


_YIELDING = frozenset({"group", "next", "came", "not come", "does", "call"})


def _share(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.0f} %"


def _one_rank(job: JobNow, rank: int) -> Iterator[RenderableType]:
    """One rank with the stack of its call."""
    one = next((one for one in job.ranks if one.rank == rank), None)
    if one is None:
        yield plain(f"rank {rank} has left no record")
        return
    table = Table.grid(padding=(0, 2))
    process = f", process {one.pid}" if one.pid else ""
    table.add_row("rank", plain(f"{one.rank}{process} on {one.host or 'an unknown host'}"))
    table.add_row("does", plain(doing_text(one)))
    table.add_row("call", plain(call_text(one)))
    for frame in () if one.record is None else one.record.source.callers:
        table.add_row("", plain(f"from {source_text(frame)}"))
    pace = "" if one.step_seconds is None else show_seconds(one.step_seconds)
    table.add_row("waits, late, step", plain(f"{_share(one.waiting)}  {_share(one.late)}  {pace}"))
    if one.steps is not None:
        table.add_row("steps", f"{one.steps:,} ended")
    table.add_row("calls", plain(f"{one.calls:,}, of which {one.lost:,} entries were lost"))
    yield table


def _findings(job: JobNow) -> Iterator[RenderableType]:
    for finding in job.findings:
        style = "red" if finding.severity is Severity.ERROR else "yellow"
        culprits = f"; culprits: {ranks_text(finding.culprits)}" if finding.culprits else ""
        yield plain(f"{finding.code} ({finding.severity.value}) {finding.message}{culprits}", style)
