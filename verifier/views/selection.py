"""The parts of a report that are shown: some groups, some ranks. Judgement and verdict stay the whole job's."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace

from simcoll.core.ranges import ranks_text
from simcoll.core.record import Group
from simcoll.core.trace import Trace
from simcoll.errors import SimcollError
from simcoll.verifier.findings.finding import Finding, Narrowed, Place, Progress, Report, Summary, errors_of

_NAMES_SHOWN = 12


class SelectionError(SimcollError, ValueError):
    """A group or a rank was asked for that the job does not have; the text names those that it has."""


@dataclass(frozen=True, slots=True)
class Selection:
    """Groups by name or description, and ranks (global), to which a report is narrowed; empty: all of them."""

    groups: tuple[str, ...] = ()
    ranks: tuple[int, ...] = ()

    def has_group(self, group: Group | None) -> bool:
        """True if a group is shown; None, no group in particular, always is."""
        return not self.groups or group is None or group.name in self.groups or group.description in self.groups

    def has_rank(self, ranks: Iterable[int]) -> bool:
        """True if something about these ranks is shown; with no rank in particular it always is."""
        concerned = set(ranks)
        return not self.ranks or not concerned or not concerned.isdisjoint(self.ranks)


def check_selection(selection: Selection, traces: Sequence[Trace], world_size: int) -> None:
    """Raise :class:`SelectionError` where no group has one of the names, or the job has no such rank."""
    groups = {group for trace in traces for group in trace.groups} if selection.groups else set()
    for name in selection.groups:
        if not any(name in (group.name, group.description) for group in groups):
            raise SelectionError(f"no group {name!r:.80} in the records; they have {_known(groups)}")
    if absent := [rank for rank in selection.ranks if rank >= world_size]:
        raise SelectionError(f"the job has no {ranks_text(absent)}; it has {ranks_text(range(world_size))}")


def selected(report: Report, selection: Selection, traces: Sequence[Trace]) -> Report:
    """The report narrowed to a selection; it says how many findings it leaves out."""
    if not selection.groups and not selection.ranks:
        return report
    findings = tuple(finding for finding in report.findings if _concerns(finding, selection))
    ranks = selected_ranks(selection, traces)
    left_out = [finding for finding in report.findings if finding not in findings]
    errors = len(errors_of(left_out))
    return replace(
        report,
        findings=findings,
        ranks=tuple(state for state in report.ranks if state.rank in ranks),
        summary=None if report.summary is None else _summary(report.summary, selection, ranks),
        shown=Narrowed(selection.groups, selection.ranks, errors, len(left_out) - errors),
    )


def selected_ranks(selection: Selection, traces: Sequence[Trace]) -> Collection[int]:
    """The ranks that are shown: those asked for, as far as they are in one of the groups asked for."""
    members = {
        rank
        for group in {group for trace in traces for group in trace.groups if selection.has_group(group)}
        for rank in group.ranks
    }
    if not selection.groups:
        return selection.ranks or range(max((trace.world_size for trace in traces), default=0))
    return members.intersection(selection.ranks) if selection.ranks else members


def _concerns(finding: Finding, selection: Selection) -> bool:
    return selection.has_group(finding.group) and selection.has_rank(finding.ranks)


def _summary(summary: Summary, selection: Selection, ranks: Collection[int]) -> Summary:
    progress = [one for one in summary.progress if _shows(one, selection, ranks)]
    places = [replace(place, ranks=kept) for place in summary.places if (kept := _kept(place, ranks))]
    return replace(summary, progress=tuple(progress), places=tuple(places))


def _shows(progress: Progress, selection: Selection, ranks: Collection[int]) -> bool:
    named = any(map(selection.has_group, progress.groups))
    return named and not set(progress.members).isdisjoint(ranks)


def _kept(place: Place, ranks: Collection[int]) -> tuple[int, ...]:
    return tuple(rank for rank in place.ranks if rank in ranks)


def _known(groups: Collection[Group]) -> str:
    """The groups of a job in a few words: descriptions where there are any, otherwise names."""
    names = sorted({group.description or group.name for group in groups} - {"undefined"})
    names += sorted({group.name for group in groups} - set(names))
    rest = f" and {len(names) - _NAMES_SHOWN} more" if len(names) > _NAMES_SHOWN else ""
    return ", ".join(names[:_NAMES_SHOWN]) + rest if names else "no group"
