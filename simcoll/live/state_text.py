"""The state of a running job in one line, and of its ranks in a few words."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from simcoll.core.ranges import ranks_text, verb
from simcoll.core.record import Source
from simcoll.core.units import show_seconds
from simcoll.live.now import Doing, GroupNow, JobNow, Motion, RankNow
from simcoll.reports.terminal import ended_text
from simcoll.verifier.findings.describe import group_name, source_text
from simcoll.verifier.findings.finding import errors_of

_NOTICEABLE = 0.05
"""The share of time from which on a late rank is named."""

_MOST_FOLLOWED = 16
"""Ranks of which all that wait behind them are looked for."""


def why_of(job: JobNow) -> str:
    """One line on why the job is in its state: the first finding, or where its ranks are; and who is not seen."""
    unseen = ""
    if job.unseen:
        reason = f" that can be read: {job.unreadable[0]}" if job.unreadable else " in this folder"
        unseen = f"; there is no record of {ranks_text(job.unseen)}{reason}"
    told = [one.rank for one in job.ranks if one.place and not one.silent_seconds]
    remote = (
        f"; {ranks_text(told)} {verb(told, 'records', 'record')} on other nodes, as node 0 was told" if told else ""
    )
    silent = _silent_text([one for one in job.ranks if one.silent_seconds])
    unjudged = f"; these records could not be judged: {job.unjudged}" if job.unjudged else ""
    return f"{_why(job)}{silent}{remote}{unseen}{unjudged}"


def _silent_text(ranks: Sequence[RankNow]) -> str:
    """The hosts of which node 0 hears nothing any more, with their ranks."""
    by_host: dict[str, list[RankNow]] = {}
    for one in ranks:
        by_host.setdefault(one.host, []).append(one)
    return "".join(
        f"; nothing was heard of {host} ({ranks_text(one.rank for one in mine)}) for "
        f"{show_seconds(min(one.silent_seconds for one in mine))}"
        for host, mine in by_host.items()
    )


def _why(job: JobNow) -> str:
    told = next(iter(errors_of(job.findings)), None)
    finding = "" if told is None else f"{told.message} ({told.code})"
    if job.motion is Motion.ENDED:
        return finding or _ended_text(job)
    if job.motion is Motion.STANDING:
        return f"for {show_seconds(job.still_seconds)}: {finding or _standing_text(job)}"
    return finding or _moving_text(job)


def doing_text(one: RankNow) -> str:
    """``waits 1.2 s for rank 3``, ``runs its own code``, ``raised ValueError (exit code 1)``, ``stopped (SIGTERM)``."""
    if one.problem:
        return f"cannot be read: {one.problem}"
    if one.silent_seconds:
        return f"not heard of for {show_seconds(one.silent_seconds)}"
    if one.doing is Doing.WAITS:
        whom = f" for {ranks_text(one.waits_for)}" if one.waits_for else ""
        return f"waits {show_seconds(one.for_seconds)}{whom}"
    if one.doing is Doing.RUNS:
        known = one.record is not None or one.place
        return f"runs its own code for {show_seconds(one.for_seconds)}" if known else "runs"
    if one.doing is Doing.GONE:
        return f"process {one.pid} is gone"
    if one.doing is Doing.FAILED:
        return f"{f'raised {one.error}' if one.error else 'failed'}{ended_text(one.exit_code)}"
    if one.doing is Doing.STOPPED:
        return f"stopped{ended_text(one.exit_code)}"
    word: str = one.doing.value
    return word


def call_text(one: RankNow) -> str:
    """The call in which a rank is, or after which it runs: operation, number, group, line."""
    if one.place:
        return f"{one.place}, on {one.host}"
    if one.record is None or one.group is None:
        return "no call yet"
    number = one.record.p2p_sequence or one.record.sequence
    at = source_text(one.record.source)
    return f"{one.record.call.op} #{number} of {group_name(one.group)} at {at}"


def doing_wordings(one: RankNow) -> list[str]:
    """The activity of a rank in fewer and fewer words, for a narrow column."""
    known, whole = (one.record is not None or bool(one.place)) and not one.problem, doing_text(one)
    if one.silent_seconds:
        return [whole, f"silent {show_seconds(one.silent_seconds)}"]
    if one.doing is Doing.WAITS and known:
        return [whole, whole.replace(" for ", ": ", 1), f"waits {show_seconds(one.for_seconds)}"]
    if one.doing is Doing.RUNS and known:
        return [whole, whole.removeprefix("runs its "), f"runs {show_seconds(one.for_seconds)}"]
    return [whole]


def call_wordings(one: RankNow) -> list[str]:
    """The call of a rank in fewer and fewer words; its line remains to the end."""
    if one.record is None or one.group is None:
        return [call_text(one)]
    source, number = one.record.source, f"#{one.record.p2p_sequence or one.record.sequence}"
    whole, near, line = source_wordings(source)
    op = f"{one.record.call.op} {number}"
    of = f"{op} of {group_name(one.group)}"
    return [
        f"{of} at {whole}",
        f"{of} at {near}",
        f"{of} at {line}",
        *(f"{op} {at}".strip() for at in (near, line)),
        f"{number} {line}",
        line or op,
    ]


def source_wordings(source: Source) -> tuple[str, str, str]:
    """A place in the program: whole, without the folders of its file, and without its function too."""
    if not source.file:
        return "", "", ""
    line = f"{os.path.basename(source.file)}:{source.line}"
    return source_text(source), f"{line} in {source.function}" if source.function else line, line


def steps_text(job: JobNow) -> str:
    """``41 to 42 steps ended, 0.52 s each``; the time alone where no step is marked; empty where nothing is known."""
    ended = [one.steps for one in job.ranks if one.steps is not None]
    pace = "" if job.step_seconds is None else show_seconds(job.step_seconds)
    if not ended:
        return f"a step takes {pace}" if pace else ""
    least, most = min(ended), max(ended)
    count = f"{least:,}" if least == most else f"{least:,} to {most:,}"
    return f"{count} {'step' if most == 1 else 'steps'} ended{pace and f', {pace} each'}"


def _ended_text(job: JobNow) -> str:
    failed = [one for one in job.ranks if one.doing in (Doing.FAILED, Doing.GONE)]
    if failed:
        first = min(failed, key=lambda one: (one.ended_ns, one.rank))
        return f"rank {first.rank}: {doing_text(first)}"
    stopped = [one for one in job.ranks if one.doing is Doing.STOPPED]
    if stopped:
        return f"{ranks_text(one.rank for one in stopped)} {doing_text(stopped[0])} by the launcher"
    return f"{'all ' if len(job.ranks) == job.world_size > 1 else ''}{ranks_text(one.rank for one in job.ranks)} ended"


def _standing_text(job: JobNow) -> str:
    """The ranks that wait for the one by which most are held up; or any rank that waits."""
    waiting = [one for one in job.ranks if one.doing is Doing.WAITS and not one.silent_seconds]
    held = _held_up(job, waiting)
    by = {one.rank: one for one in job.ranks}
    culprit = next((by[rank] for rank in held if rank in by), None)
    if culprit is None:
        # Of ranks on other nodes less is known.
        first = max(waiting, key=lambda one: (not one.place, one.for_seconds))
        told = f"{ranks_text(one.rank for one in waiting)}: rank {first.rank} {doing_text(first)} in {call_text(first)}"
        return told + _runs_apart(job)
    first = max((one for one in waiting if culprit.rank in one.waits_for), key=lambda one: one.for_seconds)
    same = [one.rank for one in waiting if _call(one) == _call(first) and one.waits_for == first.waits_for]
    behind = sorted(held[culprit.rank] - {*same})
    others = f"; {ranks_text(behind)} {verb(behind, 'waits', 'wait')} behind" if behind else ""
    return (
        f"{ranks_text(same)} {verb(same, 'waits', 'wait')} in {call_text(first)} for {ranks_text(first.waits_for)}; "
        f"rank {culprit.rank} {doing_text(culprit)}, last in {call_text(culprit)}{others}"
    )


def _runs_apart(job: JobNow) -> str:
    """The ranks of other nodes that do not wait, while all that have left records here do."""
    apart = [one for one in job.ranks if one.doing is Doing.RUNS and one.place and not one.silent_seconds]
    if not apart:
        return ""
    first = max(apart, key=lambda one: one.for_seconds)
    others = [one.rank for one in apart if one is not first]
    too = f", and so {verb(others, 'does', 'do')} {ranks_text(others)}" if others else ""
    return f"; rank {first.rank} {doing_text(first)}{too}"


def _call(one: RankNow) -> object:
    """What is equal for all ranks that wait in one collective; one rank alone waits for a message."""
    if one.record is None or one.group is None or one.record.p2p_sequence:
        return one.rank
    return one.group.name, one.group.ranks, one.record.sequence


def _held_up(job: JobNow, waiting: Sequence[RankNow]) -> dict[int, set[int]]:
    """The ranks that others wait for and that do not wait, with all that they hold up; the most first."""
    waits = {one.rank for one in waiting}
    # Those that wait in one collective wait for the same ranks: they are followed together.
    holders: dict[tuple[int, ...], list[int]] = {}
    for one in waiting:
        holders.setdefault(one.waits_for, []).append(one.rank)
    needing: dict[int, list[tuple[int, ...]]] = {}
    for ranks in holders:
        for rank in ranks:
            needing.setdefault(rank, []).append(ranks)
    free = sorted(needing.keys() - waits, key=lambda rank: -sum(len(holders[ranks]) for ranks in needing[rank]))
    held = {rank: _behind(rank, holders, needing) for rank in free[:_MOST_FOLLOWED]}
    return dict(sorted(held.items(), key=lambda item: -len(item[1])))


def _behind(
    rank: int, holders: Mapping[tuple[int, ...], Sequence[int]], needing: Mapping[int, Sequence[tuple[int, ...]]]
) -> set[int]:
    """All ranks that wait for a rank, and for those in turn."""
    found: set[int] = set()
    done: set[tuple[int, ...]] = set()
    ahead = [rank]
    while ahead:
        new = [ranks for ranks in needing.get(ahead.pop(), ()) if ranks not in done]
        done.update(new)
        more = {one for ranks in new for one in holders[ranks]} - found
        found |= more
        ahead += more
    return found


def _moving_text(job: JobNow) -> str:
    parts = []
    if (view := _main_group(job)) is not None:
        parts.append(
            f"{group_name(view.group)} has finished collective {view.finished}, {view.op} at {source_text(view.source)}"
        )
    if ended := steps_text(job):
        parts.append(ended)
    late = [one for one in job.ranks if (one.late or 0.0) >= _NOTICEABLE]
    if late:
        worst = max(late, key=lambda one: one.late or 0.0)
        parts.append(f"the others wait for rank {worst.rank} {100 * (worst.late or 0.0):.0f} % of the time")
    return "; ".join(parts) or "ranks run their own code"


def _main_group(job: JobNow) -> GroupNow | None:
    """The largest group, of these the first."""
    return max(job.groups, key=lambda view: len(view.group.ranks), default=None)
