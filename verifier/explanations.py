"""The ordered list of explanations of what went wrong in a job; earlier ones take precedence.

An explanation is asked after those above it. Findings of an earlier one may silence it (``yields_to``), and its own
findings may replace those of an earlier one (``replaces``): one cause gives one finding. The order in which findings
are shown is another one (:data:`SHOWN`): causes before symptoms. docs/verdict.md is written from this list.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, wraps
from typing import Final, TypeAlias

from simcoll.core.record import Record, Source, State
from simcoll.core.trace import Trace, record_at
from simcoll.verifier.agreement.own_memory import DIFFERING
from simcoll.verifier.agreement.p2p_races import racing_receives
from simcoll.verifier.findings.finding import Finding
from simcoll.verifier.findings.rules import (
    BUFFER_CHANGED,
    BUFFERS_OVERLAP,
    INVALID_ARGUMENT,
    MISSING_RANK,
    NON_MEMBER_CALL,
    P2P_DTYPE_MISMATCH,
    P2P_SIZE_MISMATCH,
    REPLICAS_DIFFER,
    WRONG_RESULT,
)
from simcoll.verifier.halts.async_misuse import never_waited, read_early
from simcoll.verifier.halts.device_queue import open_rows
from simcoll.verifier.halts.diagnosis import (
    deadlock,
    deadlock_before_failures,
    ended_peer,
    is_final,
    late_rank,
    nobody_missing,
    stopped_processes,
)
from simcoll.verifier.halts.failed_ranks import failed_ranks, lost_peers, refused_instead, refused_on_some
from simcoll.verifier.halts.job import Job
from simcoll.verifier.halts.latecomers import LateCall, came_late, follows_lateness, late_calls
from simcoll.verifier.halts.membership import (
    failed_in,
    made_by_members_only,
    membership_mismatches,
    named_differently,
    unconnected_ranks,
    unmade_groups,
    used_after_their_end,
)
from simcoll.verifier.halts.missing import missing_ranks
from simcoll.verifier.halts.p2p_unmatched import (
    assumed_unmet,
    lost_messages,
    swallowed_messages,
    unmatched_messages,
    unreceived_messages,
)
from simcoll.verifier.halts.stragglers import stragglers
from simcoll.verifier.halts.wait_graph import WaitGraph, waits_of
from simcoll.verifier.values.batches import same_data
from simcoll.verifier.values.findings import value_findings

_MEMORY: Final = (BUFFER_CHANGED.code, BUFFERS_OVERLAP.code)


@dataclass
class Inquiry:
    """A job, and the findings of the explanations that have been asked so far, by their names.

    Every explanation has its list from the beginning: an unknown name is a KeyError.
    """

    job: Job
    found: dict[str, list[Finding]] = field(
        default_factory=lambda: {one.name: [] for one in (*EXPLANATIONS, *STANDSTILL)}
    )

    @cached_property
    def late(self) -> list[LateCall]:
        """The calls that ranks gave up before others came; computed when an explanation first asks for it."""
        return late_calls(self.job)

    @cached_property
    def waits(self) -> WaitGraph:
        """The wait-for graph; built when an explanation first asks for it."""
        return waits_of(self.job)

    def of(self, *names: str) -> list[Finding]:
        """Return the findings of these explanations."""
        return [finding for name in names for finding in self.found[name]]

    def ask(self, explanations: Sequence[Explanation]) -> Inquiry:
        """Walk a list of explanations, in order."""
        for one in explanations:
            silent = bool(self.of(*one.yields_to)) or (one.only_if_halted and not self.job.halted)
            findings = [] if silent else one.find(self)
            for name in one.replaces if findings else ():
                kept = (
                    old for old in self.of(name) if not any(one.in_place_of(self.job, new, old) for new in findings)
                )
                self.found[name] = list(kept)
            self.found[one.name] = findings
        return self


Find: TypeAlias = Callable[[Inquiry], list[Finding]]
"""A function that finds one cause; its docstring states its report and the evidence for it."""

Replaces: TypeAlias = Callable[[Job, Finding, Finding], bool]
"""True if a new finding of a job replaces an old one; the docstring states the rule in words."""


def _of_job(find: Callable[[Job], list[Finding]]) -> Find:
    return wraps(find)(lambda inquiry: find(inquiry.job))


def _of_waits(find: Callable[[Job, WaitGraph], list[Finding]]) -> Find:
    return wraps(find)(lambda inquiry: find(inquiry.job, inquiry.waits))


def _whatever(job: Job, new: Finding, old: Finding) -> bool:
    """All of them."""
    return True


@dataclass(frozen=True, slots=True)
class Explanation:
    """One possible cause: the ``codes`` that it can report, and the function that finds it.

    It is not asked where an explanation named in ``yields_to`` has found something, nor, with ``only_if_halted``, for a
    job that is not known to have stopped or failed. Its findings replace those findings of the explanations named in
    ``replaces`` for which ``in_place_of`` holds.
    """

    name: str
    codes: tuple[str, ...]
    find: Find
    only_if_halted: bool = False
    yields_to: tuple[str, ...] = ()
    replaces: tuple[str, ...] = ()
    in_place_of: Replaces = _whatever


def _disagreements(inquiry: Inquiry) -> list[Finding]:
    """Ranks that met in a collective, or at the two ends of a message, stated different things; or their sequences of
    calls differ by a call that is skipped, extra or exchanged.

    The sequences are aligned first, so that calls which only follow from an earlier difference are not compared.
    """
    found = [one.finding for one in inquiry.job.mismatches if one.finding.code != NON_MEMBER_CALL.code]
    return [one for one in found if not _concerns_memory(one)]


def _message_races(inquiry: Inquiry) -> list[Finding]:
    """In a job that ended well, receives from any source might have taken a message for which a later receive waits.

    The explanation does not apply at a line where a message did not fit its receive as it was.
    """
    disagreements = inquiry.of(_PARTED[0].name)
    unfit = {line for one in disagreements if one.code in _UNFIT for line in _message_lines(one)}
    found = racing_receives([*inquiry.job.traces.values()]) if inquiry.job.clean else []
    return [one for one in found if not unfit.intersection(_message_lines(one))]


_UNFIT: Final = (P2P_SIZE_MISMATCH.code, P2P_DTYPE_MISMATCH.code)


def _message_lines(finding: Finding) -> set[tuple[int, Source]]:
    """The ranks and lines of the sends and receives that a finding names."""
    return {(stated.rank, stated.source) for side in finding.sides if side.call is not None for stated in side.sources}


def _harmful_non_member_calls(inquiry: Inquiry) -> list[Finding]:
    """Ranks made calls on a group to which they do not belong, and the calls did harm.

    A call did harm in three cases: there is no group whose members all made it; the rank failed next; the rank went on
    while members of a group of its own wait for it at that line.
    """
    return [one.finding for one in inquiry.job.mismatches if one.finding.code == NON_MEMBER_CALL.code]


def _memory_in_flight(inquiry: Inquiry) -> list[Finding]:
    """Memory was used while an asynchronous call still needed it, or the tensors of one call lie in memory such
    that its backend gives wrong results.

    Such a use makes no rank wait, so it explains no halt.
    """
    return [one.finding for one in inquiry.job.mismatches if _concerns_memory(one.finding)]


def _concerns_memory(finding: Finding) -> bool:
    return finding.code in _MEMORY or finding.differing == DIFFERING


def _reported_missing(inquiry: Inquiry) -> list[Finding]:
    """In ``detail`` mode, the ranks that waited in a collective reported others as missing there, and failed for that.

    The explanation does not apply where a mismatch among the same ranks came before, where the missing rank waits in a
    message, or where its call went to another group. Waits that may follow from each other give one finding.
    """
    messages = inquiry.of("message let go", "message unmatched")
    return missing_ranks(inquiry.job, kept={rank for one in messages for rank in one.ranks})


def _came_late(inquiry: Inquiry) -> list[Finding]:
    """By the times in the records, ranks came to a call after others had given up waiting for them there.

    A rank that was in another call meanwhile, or gave up another one itself, was held up there, and is not late.
    Collectives that were completed before show how far the clocks of different hosts are apart.
    """
    return came_late(inquiry.late)


def _refused_instead(inquiry: Inquiry) -> list[Finding]:
    """The call of a missing rank was refused before it reached the group, and the rank went on without it."""
    found = (refused_instead(inquiry.job, one) for one in inquiry.of("reported missing"))
    return [one for one in found if one is not None]


def _deadlock_given_up(inquiry: Inquiry) -> list[Finding]:
    """The missing ranks waited in a cycle themselves, for the ranks that reported them or for each other, until ranks
    gave up.

    Every wait of the cycle had begun before the first of its ranks failed, or of those that reported them where none
    did: a rank that comes later finds no rank waiting.
    """
    missing = inquiry.of("reported missing")
    return deadlock_before_failures(inquiry.job, missing) if missing else []


def _same_call(job: Job, new: Finding, old: Finding) -> bool:
    """The one on the same call."""
    return (new.group, new.sequence) == (old.group, old.sequence)


def _holds_its_culprits(job: Job, new: Finding, old: Finding) -> bool:
    """Those whose culprits stand in the cycle."""
    return set(old.culprits) <= set(new.ranks)


def _made_apart(job: Job, new: Finding, old: Finding) -> bool:
    """Missing ranks that share a rank with it, and failures where all ranks were only ended by SIGTERM."""
    if old.code in _FAILED.codes:
        return all(failure.terminated for failure in job.failures.values())
    return not set(new.ranks).isdisjoint(old.ranks)


def _failed_there(job: Job, new: Finding, old: Finding) -> bool:
    """Those on ranks that failed in a call of the group."""
    return all(failed_in(job, rank, new.group) for rank in old.ranks if rank in job.failures)


def _names_nobody(job: Job, new: Finding, old: Finding) -> bool:
    """Those that name no culprit."""
    return _is_open(old)


def _failed(inquiry: Inquiry) -> list[Finding]:
    """A rank failed by itself: an exception, an exit code or a signal that blames no other rank. The first is named.

    The failure came before the first mismatch, or the rank completed a collective in between. An end by SIGTERM counts
    only where nothing explains why the ranks hung.
    """
    late = inquiry.late if inquiry.of("came too late") else []
    follow = {one.rank for one in inquiry.job.failures.values() if follows_lateness(inquiry.job, late, one)}
    return failed_ranks(inquiry.job, explained=bool(inquiry.of(*(one.name for one in _WAITS))), victims=follow)


def _is_open(finding: Finding) -> bool:
    return finding.code == MISSING_RANK.code and not finding.culprits


def _swallowed(inquiry: Inquiry) -> list[Finding]:
    """A message was sent although the work of its receive was let go, and no later message between the two ranks
    arrives.

    The two ranks are in one collective when the job is given up, and no rank is known to be late.
    """
    certain = [one for one in inquiry.of("late rank", "nobody missing") if not _is_open(one)]
    return [] if certain else swallowed_messages(inquiry.job)


def _tolerated(inquiry: Inquiry) -> list[Finding]:
    """Warnings: differences between ranks that may be intended, or that do no harm as far as is known."""
    return [one.finding for one in inquiry.job.tolerated]


def _never_waited(inquiry: Inquiry) -> list[Finding]:
    """A warning: in a job that ended well nobody waited for the work of a call that brings a result, or only too late.

    The explanation does not apply where the line waits for its earlier calls and for none of its later ones.
    """
    traces = list(inquiry.job.traces.values())
    return [*never_waited(traces, inquiry.job.matching.unmatched), *read_early(traces)] if inquiry.job.clean else []


def _stragglers(inquiry: Inquiry) -> list[Finding]:
    """A warning: one rank came last repeatedly, and cost the others at least two fifths of their time."""
    return stragglers(inquiry.job.columns)


def _wrong_values(inquiry: Inquiry) -> list[Finding]:
    """By the digests that its ranks wrote down, the values of a collective are wrong.

    For each rule and group, the first such call is reported, and the first step after which replicas differ.
    """
    job = inquiry.job
    written = job.tells("values", "state", "promised")
    return value_findings(job.columns, [*job.traces.values()]) if written else []


def _earlier_wrong_values(inquiry: Inquiry) -> list[Finding]:
    """A rank got a wrong result before the first call on which the ranks of its group disagree: the result may have
    decided what the rank stated there.
    """
    disagreements = inquiry.of(_PARTED[0].name)
    if not disagreements:
        return []
    values = [one for one in _wrong_values(inquiry) if one.code in (REPLICAS_DIFFER.code, WRONG_RESULT.code)]
    return [one for one in values if any(_comes_before(one, other) for other in disagreements)]


def _comes_before(first: Finding, other: Finding) -> bool:
    return first.group == other.group and -1 < (first.sequence or 0) < (other.sequence or 0)


def _same_data(inquiry: Inquiry) -> list[Finding]:
    """A warning: by the digests of what entered their models, data-parallel ranks train on the same batches."""
    return same_data([*inquiry.job.traces.values()]) if inquiry.job.tells("batch") else []


def _unfinished_disagreements(inquiry: Inquiry) -> list[Finding]:
    """The ranks state different things, or call in different orders, in a collective that a rank, or its device, is
    still in.
    """
    return [one.finding for one in inquiry.job.mismatches if _is_unfinished(inquiry.job, one.finding)]


def _is_unfinished(job: Job, finding: Finding) -> bool:
    """Tell whether a rank, or its device, is still in the collective that a finding is about."""
    place = None if finding.group is None else (finding.group.name, finding.sequence)
    return any(
        (record.group, record.sequence) == place and record.state in (State.SCHEDULED, State.STARTED)
        for rank in finding.ranks
        if rank in job.last
        for record in (job.last[rank], *_queued_at(job.traces[rank], finding.sequence))
    )


def _queued_at(trace: Trace, sequence: int | None) -> list[Record]:
    """The calls of a number that a device has not ended, of whatever groups."""
    rows = open_rows(trace)
    mine = rows[trace.slots["sequence"][rows] == (sequence or 0)]
    return [record for row in mine.tolist() if (record := record_at(trace, row)) is not None]


def _names(explanations: Sequence[Explanation]) -> tuple[str, ...]:
    return tuple(one.name for one in explanations)


def _first_of(*explanations: Explanation, after: tuple[str, ...]) -> tuple[Explanation, ...]:
    """Explanations of which only the first with findings is believed; all of them yield to ``after``."""
    return tuple(
        replace(
            one,
            yields_to=one.yields_to or (*after, *(n for n in _names(explanations[:place]) if n not in one.replaces)),
        )
        for place, one in enumerate(explanations)
    )


_PARTED: Final = (
    Explanation(
        "calls disagree",
        (*(f"SC{number}" for number in range(101, 111)), "SC202", "SC203", "SC301", "SC302", "SC504"),
        _disagreements,
    ),
    Explanation("non-member call", (NON_MEMBER_CALL.code,), _harmful_non_member_calls),
    Explanation("memory in flight", (*_MEMORY, INVALID_ARGUMENT.code), _memory_in_flight),
)
_DISAGREEMENT: Final = _names(_PARTED[:2])

_WAITS: Final = (
    Explanation("message let go", ("SC501",), _of_job(lost_messages)),
    Explanation("message unmatched", ("SC303", "SC304"), _of_job(unmatched_messages)),
    Explanation("reported missing", ("SC201", "SC702"), _reported_missing),
    Explanation(
        "came too late",
        ("SC201",),
        _came_late,
        yields_to=_names(_PARTED[:2]),
        replaces=("reported missing",),
        in_place_of=_same_call,
    ),
    Explanation("refused on some ranks", ("SC601",), _of_job(refused_on_some), replaces=("reported missing",)),
    Explanation(
        "refused instead of missing",
        ("SC601",),
        _refused_instead,
        yields_to=("refused on some ranks",),
        replaces=("reported missing",),
        in_place_of=_same_call,
    ),
    Explanation(
        "deadlock given up",
        ("SC204",),
        _deadlock_given_up,
        yields_to=_names(_PARTED),
        replaces=("reported missing",),
        in_place_of=_holds_its_culprits,
    ),
)
_FAILED: Final = Explanation("rank failed", ("SC601", "SC701"), _failed)

_SWALLOWED: Final = "message swallowed"

_HALTS: Final = _first_of(
    Explanation("stopped process", ("SC201",), _of_waits(stopped_processes), only_if_halted=True),
    Explanation("not at init_process_group", ("SC201", "SC401", "SC702"), _of_job(unconnected_ranks)),
    Explanation(
        "group of other members",
        ("SC401",),
        _of_job(membership_mismatches),
        yields_to=(*_DISAGREEMENT, "stopped process", "not at init_process_group"),
        replaces=("reported missing", "rank failed"),
        in_place_of=_made_apart,
    ),
    Explanation("group of other names", ("SC401",), _of_job(named_differently)),
    Explanation("group not made", ("SC401",), _of_job(unmade_groups)),
    Explanation("deadlock", ("SC204", "SC304"), _of_waits(deadlock), only_if_halted=True),
    Explanation("peer ended", ("SC702",), _of_waits(ended_peer), only_if_halted=True),
    Explanation("late rank", ("SC201", "SC202", "SC702"), _of_waits(late_rank), only_if_halted=True),
    Explanation("message assumed unmatched", ("SC304",), _of_waits(assumed_unmet), only_if_halted=True),
    Explanation("nobody missing", ("SC201", "SC204"), _of_waits(nobody_missing), only_if_halted=True),
    Explanation(
        _SWALLOWED,
        ("SC501",),
        _swallowed,
        replaces=("late rank", "nobody missing"),
        in_place_of=_names_nobody,
    ),
    after=(*_names(_WAITS), *_DISAGREEMENT, _FAILED.name),
)

_LOST: Final = Explanation(
    "peer lost", ("SC701", "SC702"), _of_job(lost_peers), yields_to=_names((*_PARTED, *_WAITS, _FAILED, *_HALTS))
)

_VALUES: Final = Explanation(
    "wrong values", ("SC901", "SC902", "SC903", "SC904", "SC906"), _wrong_values, yields_to=_names(_PARTED)
)

_EARLIER_VALUES: Final = Explanation("wrong values before calls disagree", ("SC902", "SC903"), _earlier_wrong_values)

_WARNINGS: Final = (
    Explanation(
        "tolerated disagreement",
        ("SC107", "SC108", "SC109", "SC202", "SC203", "SC402", "SC502", "SC503", "SC504"),
        _tolerated,
    ),
    Explanation(
        "group made by its members only",
        ("SC401",),
        _of_job(made_by_members_only),
        yields_to=("not at init_process_group", "group of other members", "group not made"),
    ),
    Explanation(
        "group used after its end",
        (INVALID_ARGUMENT.code,),
        _of_job(used_after_their_end),
        yields_to=_names((*_PARTED, *_WAITS, _FAILED, *_HALTS)),
        replaces=(_LOST.name,),
        in_place_of=_failed_there,
    ),
    Explanation("message not received", ("SC304",), _of_job(unreceived_messages)),
    Explanation("message race", ("SC305",), _message_races),
    Explanation("work not waited for", ("SC501",), _never_waited, yields_to=_names(_PARTED)),
    Explanation("straggler", ("SC801",), _stragglers),
    Explanation("same data", ("SC905",), _same_data, yields_to=_names(_PARTED)),
)

EXPLANATIONS: Final[tuple[Explanation, ...]] = (
    *_PARTED,
    *_WAITS,
    _FAILED,
    *_HALTS,
    _LOST,
    _VALUES,
    _EARLIER_VALUES,
    *_WARNINGS,
)
"""All explanations that a verdict asks, in the order of belief."""

_UNFINISHED: Final = (
    Explanation("calls disagree and do not end", _PARTED[0].codes, _unfinished_disagreements),
    _WAITS[1],
    _WAITS[0],
)

STANDSTILL: Final[tuple[Explanation, ...]] = (
    *_UNFINISHED,
    *(
        replace(one, only_if_halted=True, yields_to=(*_names(_UNFINISHED), *one.yields_to))
        for one in _HALTS
        if one.name != _SWALLOWED
    ),
)
"""All that is asked, in order, about a job that stands while it runs. Whether a message was swallowed is told only of
jobs that were given up."""

_FAILURES: Final = _names((_FAILED, _LOST))
_CAUSES: Final = ("group of other members", "refused on some ranks", "refused instead of missing")

SHOWN: Final = tuple(
    dict.fromkeys(
        (
            _EARLIER_VALUES.name,
            *_names(_PARTED),
            *_CAUSES,
            *_names(_WAITS),
            *_names(_HALTS),
            *_FAILURES,
            _VALUES.name,
            *_names(_WARNINGS),
        )
    )
)
"""The order in which findings are shown: causes before symptoms. Those of the explanations of :data:`_PARTED` are put
together, by time; a failure that none of them came before is shown before all others."""


def explained(job: Job) -> list[Finding]:
    """Return the findings in a job that has ended, in the order in which they are shown."""
    inquiry = Inquiry(job).ask(EXPLANATIONS)
    failed = inquiry.of(*_FAILURES)
    # A failure that no mismatch explains and that came first is the cause of the others' reports.
    first = (*(_FAILURES if _came_first(job, failed) else ()), _EARLIER_VALUES.name)
    # The explanations of _PARTED share out the job's mismatches, which are in order of time; nothing replaces them.
    rest = (name for name in SHOWN if name not in (*first, *_names(_PARTED)))
    return [*inquiry.of(*first), *(one.finding for one in job.mismatches), *inquiry.of(*rest)]


def _came_first(job: Job, failed: Sequence[Finding]) -> bool:
    if not failed or not job.mismatches:
        return bool(failed)
    return job.failures[failed[0].ranks[0]].time_ns < job.mismatches[0].time_ns


def explained_while_it_runs(job: Job) -> tuple[list[Finding], bool]:
    """Explain why a job that still runs does not move; True beside the findings if it is proved that it never will.

    Proofs are a cycle of waits, a wait for a rank that has ended, a group that the ranks make differently, and a
    collective that disagrees and does not end. A rank that is only late, to a call or to the making of a group, may
    still come.
    """
    inquiry = Inquiry(job).ask(STANDSTILL)
    findings = inquiry.of(*_names(STANDSTILL))
    proved = inquiry.of(*_names(_UNFINISHED)) or any(is_final(job, finding, inquiry.waits) for finding in findings)
    return findings, bool(proved)
